"""Typed questions, typed answers, and the prompt that joins a question to a state.

Three kinds of question share one shape, a text and a tuple of options: `Choice`
(unordered options), `Score` (ordered levels, lowest first) and `Noul` (yes or no;
option 0 is "true"). A policy turns the prompt ``render_prefix(state) +
render_suffix(question)`` into one probability per option, and `make_answer` wraps
those in a typed, immutable answer. Whatever cannot be used raises `SchemaError`.
"""

from __future__ import annotations

import json
import math
import string
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

LETTERS: tuple[str, ...] = tuple(string.ascii_uppercase)
"""The default option labels, A to Z."""


class SchemaError(ValueError):
    """A question, state or answer that cannot be used: which one, and the mend."""


def _check_encodable(what: str, text: str) -> None:
    """Refuse half of a character, as a cut "\\ud83d" in JSON leaves it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(
            f"{what} {text[max(0, error.start - 20) : error.end + 20]!r} holds half a "
            "character (a lone surrogate), which no model can read; remove it"
        ) from error


def _checked_options(name: str, options: Iterable[str]) -> tuple[str, ...]:
    if isinstance(options, str):
        raise SchemaError(
            f"{name}: the options are one string; pass a list of strings, "
            f"such as [{options!r}, ...]"
        )
    if isinstance(options, Set | Mapping) or not isinstance(options, Iterable):
        # A set has another order in each process, and with it other answers.
        raise SchemaError(
            f"{name}: the options are a {type(options).__name__}; pass a list of "
            "strings in a fixed order"
        )
    checked = tuple(options)
    if len(checked) < 2:
        raise SchemaError(
            f"{name}: {len(checked)} option(s) given; a decision needs at least 2"
        )
    seen: dict[str, str] = {}
    for option in checked:
        if not isinstance(option, str):
            kind = type(option).__name__
            raise SchemaError(
                f"{name}: option {option!r} is of type {kind}; write it as a string"
            )
        look = _look(option)
        if not look:
            raise SchemaError(f"{name}: option {option!r} is empty; give it a name")
        if option.splitlines() != [option]:
            raise SchemaError(
                f"{name}: option {option!r} holds a line break; "
                "each option must be one line, so join its lines with a space"
            )
        _check_encodable(f"{name}: option", option)
        if look in seen:
            raise SchemaError(
                f"{name}: options {seen[look]!r} and {option!r} look the same (case, "
                "spaces, width and invisible characters aside); rename or drop one of "
                "them"
            )
        seen[look] = option
    return checked


def _look(option: str) -> str:
    """What a reader can tell apart: options of one look would be one option twice."""
    shown = unicodedata.normalize("NFKC", option)
    # Space-like controls stay for split(); all other unseen characters go.
    kept = "".join(
        c for c in shown if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf")
    )
    return " ".join(kept.split()).casefold()


@dataclass(frozen=True)
class Question:
    """What the three kinds of question share; build a subclass, not this.

    Parameters
    ----------
    text : str
        The question as a person would ask it; not empty.
    options : sequence of str
        At least 2, each one line, distinct after stripping and case folding.
        Stored as a tuple, exactly as given.

    Raises
    ------
    SchemaError
        If the text is empty or the options break one of the rules above; the message
        names the question.
    """

    text: str
    options: tuple[str, ...]
    kind: ClassVar[str] = "question"

    def __post_init__(self) -> None:
        if type(self) is Question:
            raise SchemaError("Question has no kind; build a Choice, Score or Noul")
        if not isinstance(self.text, str) or not self.text.strip():
            raise SchemaError(
                f"{type(self).__name__} with options {self.options!r}: the text is "
                f"{self.text!r}; write the question out"
            )
        _check_encodable(f"{type(self).__name__}: the text", self.text)
        options = _checked_options(self.name, self.options)
        object.__setattr__(self, "options", options)

    @property
    def name(self) -> str:
        """How error messages call the question: its type and its text."""
        return f"{type(self).__name__} {self.text!r}"

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"kind", "text", "options"}``; `make_question` reads it back."""
        return {"kind": self.kind, "text": self.text, "options": list(self.options)}


@dataclass(frozen=True)
class Choice(Question):
    """A question with unordered options.

    Examples
    --------
    >>> Choice("Which team?", ["billing", "security"]).options
    ('billing', 'security')
    """

    kind: ClassVar[str] = "choice"


@dataclass(frozen=True)
class Score(Question):
    """A question whose options are ordered levels, lowest first."""

    kind: ClassVar[str] = "score"


@dataclass(frozen=True)
class Noul(Question):
    """A yes-or-no question. Its options are fixed, and option 0 is "true".

    Examples
    --------
    >>> Noul("Page the engineer on call?").options
    ('true', 'false')
    """

    options: tuple[str, ...] = ("true", "false")
    kind: ClassVar[str] = "noul"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.options != ("true", "false"):
            raise SchemaError(
                f"{self.name}: a Noul always has the options ('true', 'false'); "
                "ask a Choice to use other words"
            )


KINDS: dict[str, type[Question]] = {c.kind: c for c in (Choice, Score, Noul)}


def make_question(fields: Mapping[str, Any]) -> Question:
    """Build a question from ``{"kind", "text", "options"}``.

    ``kind`` is "choice", "score" or "noul"; a noul may leave ``options`` out. Raises
    `SchemaError` if a key is missing or unknown, or the question itself is invalid.

    Examples
    --------
    >>> make_question({"kind": "noul", "text": "Refund?"})
    Noul(text='Refund?', options=('true', 'false'))
    """
    if not isinstance(fields, Mapping):
        raise SchemaError(f"question {fields!r}: pass a mapping of kind, text, options")
    if "text" not in fields or not set(fields) <= {"kind", "text", "options"}:
        raise SchemaError(
            f"question {dict(fields)!r}: give exactly the keys kind, text, options"
        )
    kind = KINDS.get(str(fields.get("kind")))
    if kind is None:
        raise SchemaError(
            f"question {fields['text']!r}: kind is {fields.get('kind')!r}; "
            f"use one of {sorted(KINDS)}"
        )
    if kind is Noul and "options" not in fields:
        return Noul(fields["text"])
    return kind(fields["text"], fields.get("options", ()))


def name_questions(
    questions: Mapping[str, Question | Mapping[str, Any]],
) -> dict[str, Question]:
    """Check a named set of questions; plain mappings are built by `make_question`.

    The order is kept. Raises `SchemaError` if there is no question, a name is empty,
    or a question is invalid (the message then starts with its name).
    """
    if not questions:
        raise SchemaError("no question given; ask at least one")
    if not isinstance(questions, Mapping):
        raise SchemaError(
            f"questions: a {type(questions).__name__} has no names; pass a mapping of "
            "names to questions"
        )
    named: dict[str, Question] = {}
    for name, question in questions.items():
        if not isinstance(name, str) or not name.strip():
            raise SchemaError(f"question name {name!r}: use a non-empty string")
        if isinstance(question, Mapping):
            try:
                question = make_question(question)
            except SchemaError as error:
                raise SchemaError(f"{name}: {error}") from error
        if not isinstance(question, Question):
            raise SchemaError(
                f"{name}: {question!r} is no question; pass a Choice, Score or Noul"
            )
        named[name] = question
    return named


def is_schema(questions: Any) -> bool:
    """Whether this is a JSON object schema; else it should be names to questions."""
    return (
        isinstance(questions, Mapping)
        and questions.get("type") == "object"
        and "properties" in questions
    )


def questions_of(questions: Mapping[str, Any]) -> dict[str, Question]:
    """Named questions, from names to questions or from a JSON object schema.

    Raises `SchemaError` as `name_questions` and `questions_from_schema` do.
    """
    return (questions_from_schema if is_schema(questions) else name_questions)(
        questions
    )


def _properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not properties:
        raise SchemaError(
            "the JSON schema has no properties; pass an object schema with one "
            "property per question"
        )
    resolved: dict[str, Mapping[str, Any]] = {}
    for name, fields in properties.items():
        if isinstance(fields, Mapping) and "$ref" in fields:
            # One step suffices: generators put an enumeration in #/$defs and refer
            # to it from the property.
            _, _, target = str(fields["$ref"]).partition("#/$defs/")
            parts = schema.get("$defs")
            known = parts.get(target) if isinstance(parts, Mapping) else None
            fields = {**(known if isinstance(known, Mapping) else {}), **fields}
        if not isinstance(fields, Mapping):
            raise SchemaError(f"property {name!r}: {fields!r} is no JSON schema")
        resolved[name] = fields
    return resolved


def _values(name: str, fields: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Kind of question, and the JSON values that the property can take, in order."""
    kind = "choice"
    values: Any = None
    match fields:
        case {"enum": [*values]}:
            pass
        case {"oneOf": [*parts]} if all(
            isinstance(part, Mapping) and "const" in part for part in parts
        ):
            values = [part["const"] for part in parts]
        case {"type": "boolean"}:
            return "noul", [True, False]
        case {"type": "integer", "minimum": int(low), "maximum": int(high)}:
            # The limit keeps a schema of a few bytes from asking for all memory.
            if high - low < 10_000:
                kind, values = "score", list(range(low, high + 1))
    if values is None or not all(isinstance(v, str | int | float) for v in values):
        raise SchemaError(
            f"property {name!r}: {dict(fields)!r} has no short list of text or number "
            "options; use enum, oneOf with const, boolean, or integer with minimum "
            "and maximum"
        )
    return ("score" if fields.get("x-ordered") else kind), values


def questions_from_schema(schema: Mapping[str, Any]) -> dict[str, Question]:
    """Read one question from each property of a JSON object schema, by name.

    ``boolean`` becomes a `Noul`; ``enum`` or ``oneOf`` with ``const`` a `Choice`, or a
    `Score` when the property says ``"x-ordered": true``; ``integer`` with ``minimum``
    and ``maximum`` a `Score`. The text is the property's ``description``, else its
    ``title``, else its name. A ``$ref`` to ``#/$defs`` is followed. Options that are
    not text are written as JSON; `instance_from_answers` undoes that.

    Raises
    ------
    SchemaError
        If a property has no short list of options, or its question is invalid; the
        message names the property.

    Examples
    --------
    >>> questions_from_schema({"type": "object", "properties": {
    ...     "team": {"enum": ["billing", "security"], "description": "Which team?"}}})
    {'team': Choice(text='Which team?', options=('billing', 'security'))}
    """
    questions: dict[str, Mapping[str, Any]] = {}
    for name, fields in _properties(schema).items():
        kind, values = _values(name, fields)
        text = fields.get("description") or fields.get("title") or name
        options = [v if isinstance(v, str) else json.dumps(v) for v in values]
        questions[name] = {"kind": kind, "text": text, "options": options}
    return name_questions(questions)


def instance_from_answers(
    schema: Mapping[str, Any], answers: Mapping[str, Answer]
) -> dict[str, Any]:
    """Turn answers to `questions_from_schema` into a document that the schema accepts.

    Raises `SchemaError` if the names of answers and properties differ, or an answer
    chose among other options than its property has.
    """
    properties, asked = _properties(schema), questions_from_schema(schema)
    if set(answers) != set(properties):
        raise SchemaError(
            f"answers {sorted(answers)} do not match properties {sorted(properties)}"
        )
    for name, question in asked.items():
        if answers[name].question.options != question.options:
            raise SchemaError(
                f"property {name!r} has the options {question.options}, the answer "
                f"chose among {answers[name].question.options}; ask with this schema"
            )
    return {n: _values(n, f)[1][answers[n].index] for n, f in properties.items()}


# --- The prompt ------------------------------------------------------------------


def _indented(text: str) -> str:
    # Later lines start with two spaces, so that none can pose as a key or a turn.
    return "\n  ".join(text.splitlines())


def _field(key: Any, value: Any) -> str:
    if not isinstance(key, str) or key.splitlines() != [key]:
        raise SchemaError(f"state: key {key!r} must be one line of text")
    try:
        text = (
            value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
        )
    except (TypeError, ValueError, RecursionError) as error:
        shown = type(value).__name__
        if not isinstance(error, RecursionError):  # else its repr would recurse too
            shown = f"{value!r:.200}"
        raise SchemaError(
            f"state: {key} is {shown}, which JSON cannot hold; "
            "write it as text, a number, a list or a mapping"
        ) from error
    # JSON leaves some line ends, such as U+2028, as they are.
    return f"{key}: {_indented(text)}"


def _turn(position: int, turn: Any) -> str:
    match turn:
        case {"role": str(role), "content": str(content), **rest} if not rest:
            pass
        case [str(role), str(content)]:
            pass
        case _:
            raise SchemaError(
                f"state: turn {position} is {turn!r}; "
                'write {"role": ..., "content": ...} or (role, content), both text'
            )
    if not content.strip() or not role.strip() or role.splitlines() != [role]:
        raise SchemaError(
            f"state: turn {position} needs a one-line role and a content, got {turn!r}"
        )
    return f"{role}: {_indented(content)}"


def render_state(state: str | Mapping[str, Any] | Sequence[Any]) -> str:
    r"""Write a state as text; equal states always give equal text.

    Parameters
    ----------
    state : str, mapping or sequence of turns
        Text is returned unchanged. A mapping gives a ``key: value`` line per key, in
        sorted order; values that are not text are written as JSON. Turns
        (``{"role", "content"}`` or ``(role, content)``) give a ``role: content`` line
        each, in order. Later lines of a value are indented by two spaces.

    Raises
    ------
    SchemaError
        If the state is empty or blank, or of another type, or holds what JSON cannot.

    Examples
    --------
    >>> render_state({"tier": 1, "note": "down\nsince noon"})
    'note: down\n  since noon\ntier: 1'
    """
    match state:
        case str():
            text = state
        case Mapping():
            text = "\n".join(_field(key, state[key]) for key in sorted(state, key=str))
        case list() | tuple():
            text = "\n".join(_turn(i, turn) for i, turn in enumerate(state))
        case _:
            raise SchemaError(
                f"state: a {type(state).__name__} cannot be rendered; "
                "pass text, a mapping or a list of turns"
            )
    if not text.strip():
        raise SchemaError("state: it is empty; say what the question is about")
    _check_encodable("state:", text)
    return text


def render_prefix(state: str | Mapping[str, Any] | Sequence[Any]) -> str:
    """Write the part of the prompt that all questions on one state share.

    It ends after ``Question:``, because a tokenizer never merges a colon with the
    space and the word that follow; a seam inside the blank line would be tokenised
    otherwise than the whole prompt.
    """
    return f"User: Context:\n{render_state(state)}\n\nQuestion:"


def render_suffix(question: Question, labels: Sequence[str] = LETTERS) -> str:
    """Write the part of the prompt that belongs to one question.

    Text and options are written without outer spaces. A policy may pass more than 26
    `labels` of its own. Raises `SchemaError` if there are more options than labels.

    Examples
    --------
    >>> print(render_suffix(Noul("Refund?")))
     Refund?
    Options:
    A) true
    B) false
    Answer with the letter only.
    Assistant: The answer is
    """
    if len(question.options) > len(labels):
        raise SchemaError(
            f"{question.name}: {len(question.options)} options but only {len(labels)} "
            "labels; pass more verified labels, or choose in two stages"
        )
    pairs = zip(labels, question.options, strict=False)
    options = "\n".join(f"{label}) {option.strip()}" for label, option in pairs)
    return (
        f" {question.text.strip()}\nOptions:\n{options}\n"
        "Answer with the letter only.\nAssistant: The answer is"
    )


# --- Answers ---------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What the three kinds of answer share; build one with `make_answer`.

    Parameters
    ----------
    question : Question
        The question that was asked.
    p : sequence of float, length K
        One probability per option, in the question's order.

    Raises
    ------
    SchemaError
        If `p` has another length, holds NaN, infinite or negative values, or does not
        sum to 1 within 1e-4.
    """

    question: Question
    p: tuple[float, ...]

    def __post_init__(self) -> None:
        p, k = tuple(float(value) for value in self.p), len(self.question.options)
        name, total = self.question.name, math.fsum(v for v in p if math.isfinite(v))
        if len(p) != k:
            raise SchemaError(f"{name}: {len(p)} probabilities for {k} options")
        if not all(math.isfinite(v) and v >= 0 for v in p):
            raise SchemaError(
                f"{name}: probabilities {p} must be finite and not negative; "
                "check the logits"
            )
        # A float32 softmax over a thousand options is off by far less.
        if abs(total - 1) > 1e-4:
            raise SchemaError(f"{name}: probabilities sum to {total!r}, not to 1")
        object.__setattr__(self, "p", p)

    @property
    def index(self) -> int:
        """Index of the most probable option; the first of them on a tie."""
        return max(range(len(self.p)), key=self.p.__getitem__)

    @property
    def option(self) -> str:
        """The most probable option, as written in the question."""
        return self.question.options[self.index]

    @property
    def value(self) -> str | bool:
        """The answer itself: the most probable option (a bool for a Noul)."""
        return self.option

    @property
    def probabilities(self) -> dict[str, float]:
        """Option to probability, in the question's order."""
        return dict(zip(self.question.options, self.p, strict=True))

    @property
    def confidence(self) -> float:
        """The largest probability, in [1/K, 1]."""
        return max(self.p)

    @property
    def entropy_confidence(self) -> float:
        """``1 - H(p) / ln K``: 0 for the uniform distribution, 1 for certainty."""
        entropy = -math.fsum(v * math.log(v) for v in self.p if v > 0)
        return min(1.0, max(0.0, 1 - entropy / math.log(len(self.p))))

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values that are always valid JSON."""
        return {
            "kind": self.question.kind,
            "question": self.question.text,
            "value": self.value,
            "probabilities": self.probabilities,
            "confidence": self.confidence,
            "entropy_confidence": self.entropy_confidence,
        }


@dataclass(frozen=True)
class ChoiceAnswer(Answer):
    """The answer to a `Choice`.

    Examples
    --------
    >>> answer = ChoiceAnswer(Choice("Team?", ["billing", "sales"]), (0.75, 0.25))
    >>> answer.value, answer.confidence
    ('billing', 0.75)
    """


@dataclass(frozen=True)
class ScoreAnswer(Answer):
    """The answer to a `Score`."""

    @property
    def score(self) -> float:
        """Mean level index divided by K - 1, in [0, 1]."""
        mean = math.fsum(k * v for k, v in enumerate(self.p)) / math.fsum(self.p)
        return mean / (len(self.p) - 1)

    def to_dict(self) -> dict[str, Any]:
        """As `Answer.to_dict`, with ``score``."""
        return {**super().to_dict(), "score": self.score}


@dataclass(frozen=True)
class NoulAnswer(Answer):
    """The answer to a `Noul`."""

    @property
    def value(self) -> bool:
        """True if "true" is at least as probable as "false"."""
        return self.index == 0


def make_answer(question: Question, p: Iterable[float]) -> Answer:
    """Wrap probabilities in the answer type of the question; errors as `Answer`."""
    match question:
        case Choice():
            return ChoiceAnswer(question, tuple(p))
        case Score():
            return ScoreAnswer(question, tuple(p))
        case Noul():
            return NoulAnswer(question, tuple(p))
        case _:
            raise SchemaError(f"{question!r} is no Choice, Score or Noul")
