"""Fields that must agree: declared rules between questions, decoded jointly.

A policy answers each field by itself, so its answers may contradict each other. Rules
between named fields (`Implies`, `Excludes`, `AtMostOne`) are declared, not learned.
`Joint` multiplies the fields' distributions, keeps what the rules allow and
renormalises (`thm-fields-projection`):

    p(y) proportional to prod_f p_f(y_f) * prod_r exp(-w_r * 1[y breaks r]),

with w_r infinite unless a rule says otherwise. Marginals, the most probable assignment
and the mass that the rules kept are exact: fields that no rule connects never meet, and
connected ones are summed out one by one, or refused if that takes too large a table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import expit

from rlcd_core.schema import (
    Answer,
    Question,
    SchemaError,
    instance_from_answers,
    make_answer,
    questions_of,
)

Array = NDArray[np.float64]
Value = str | bool | int | float
LIMIT = 2**20
"""Cells of the largest table that is ever built for one row."""
_CELLS = 2**22  # of a table for many rows at once; more rows are cut into pieces


class JointError(SchemaError):
    """Rules or probabilities that cannot be joined: which field, which value, the mend.

    A `SchemaError`, so that whoever refuses an invalid question refuses these as well.
    """


# --- Rules -----------------------------------------------------------------------


def _option(value: Any, where: str) -> str:
    """The option that a value stands for: True is "true", 3 is "3", as in a schema."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise JointError(
        f"{where}: value {value!r} is a {type(value).__name__}; pass an option as "
        "text, or as the bool or number that the JSON schema has"
    )


def _pair(pair: Any, where: str) -> tuple[str, Any]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise JointError(f"{where}: {pair!r} is no (field, value); pass a pair")
    field, value = pair
    if not isinstance(field, str) or not field.strip():
        raise JointError(f"{where}: field {field!r}: use the name of a question")
    return field, value


def _single(pair: Any, where: str) -> tuple[str, Any]:
    """A field with one value, which is an option."""
    field, value = _pair(pair, where)
    _option(value, f"{where}, field {field!r}")
    return field, value


def _terms(pairs: Iterable[tuple[str, Any]]) -> tuple[tuple[str, frozenset[str]], ...]:
    """The fields, sorted, each with the options that stand for its values."""
    found: dict[str, set[str]] = {}
    for field, value in pairs:
        found.setdefault(field, set()).add(_option(value, field))
    return tuple((field, frozenset(found[field])) for field in sorted(found))


@dataclass(frozen=True)
class Rule:
    """What the rules share; build a subclass, not this.

    Attributes
    ----------
    weight : float in (0, inf]
        A broken rule multiplies the probability by ``exp(-weight)``. Infinite, the
        default, is a rule without exceptions.
    """

    _: KW_ONLY
    weight: float = math.inf

    def __post_init__(self) -> None:
        weight = self.weight
        if not isinstance(weight, int | float) or not weight > 0:
            raise JointError(
                f"{type(self).__name__}: weight {weight!r}; pass a number above 0, or "
                "leave it out for a rule without exceptions"
            )

    @property
    def terms(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """Each field of the rule once, by name, with the options that it speaks of."""
        raise NotImplementedError

    def forbids(self, hits: Sequence[Any]) -> Any:
        """Whether the rule is broken, given which of `terms` are hit (bool arrays)."""
        return sum(np.asarray(hit, int) for hit in hits) > 1


@dataclass(frozen=True)
class Implies(Rule):
    """Where one field has a value, another has a certain value, or one of several.

    Parameters
    ----------
    given : (field, value)
    then : (field, value) or (field, collection of values)
    weight : float
        As `Rule`.

    Raises
    ------
    JointError
        Not pairs, no value, or both pairs name the same field.

    Examples
    --------
    >>> print(Implies(("severity", "critical"), ("needs_human", True)))
    severity=critical implies needs_human=true
    """

    given: tuple[str, Value]
    then: tuple[str, Value | tuple[Value, ...]]

    def __post_init__(self) -> None:
        field, value = _single(self.given, "Implies")
        other, values = _pair(self.then, "Implies")
        if isinstance(values, Set | list):
            values = tuple(sorted(values, key=str))
        several = values if isinstance(values, tuple) else (values,)
        options = [_option(v, f"Implies, field {other!r}") for v in several]
        if not options or len(set(options)) < len(options):
            raise JointError(
                f"Implies, field {other!r}: values {values!r}; pass at least one, and "
                "none twice"
            )
        if field == other:
            raise JointError(
                f"Implies: field {field!r} on both sides; name two fields, since a "
                "field always has exactly one value"
            )
        super().__post_init__()
        object.__setattr__(self, "given", (field, value))
        object.__setattr__(self, "then", (other, values))

    @property
    def terms(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """The field that implies, then the one that is implied."""
        other, values = self.then
        several = values if isinstance(values, tuple) else (values,)
        return _terms([self.given]) + _terms((other, value) for value in several)

    def forbids(self, hits: Sequence[Any]) -> Any:
        """True where the first is hit and the second is not."""
        return np.asarray(hits[0]) & ~np.asarray(hits[1])

    def __str__(self) -> str:
        (field, value), (other, options) = ((f, sorted(o)) for f, o in self.terms)
        return f"{field}={value[0]} implies {other}={' or '.join(options)}"


@dataclass(frozen=True)
class Excludes(Rule):
    """Two values of two fields never come together.

    Examples
    --------
    >>> print(Excludes(("team", "billing"), ("severity", "critical")))
    team=billing excludes severity=critical
    """

    first: tuple[str, Value]
    second: tuple[str, Value]

    def __post_init__(self) -> None:
        pairs = [_single(pair, "Excludes") for pair in (self.first, self.second)]
        if pairs[0][0] == pairs[1][0]:
            raise JointError(
                f"Excludes: field {pairs[0][0]!r} on both sides; name two fields, "
                "since two values of one field never come together anyway"
            )
        super().__post_init__()
        object.__setattr__(self, "first", pairs[0])
        object.__setattr__(self, "second", pairs[1])

    @property
    def terms(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """Both fields, sorted."""
        return _terms((self.first, self.second))

    def __str__(self) -> str:
        pairs = (self.first, self.second)
        return " excludes ".join(f"{f}={_option(v, f)}" for f, v in pairs)


@dataclass(frozen=True)
class AtMostOne(Rule):
    """Of several values of at least two fields, at most one is true.

    Parameters
    ----------
    values : sequence of (field, value)
        A field may stand there with several of its values.
    weight : float
        As `Rule`; paid once, however many of the values come together.

    Examples
    --------
    >>> print(AtMostOne([("refund", True), ("replace", True), ("repair", True)]))
    at most one of refund=true, replace=true, repair=true
    """

    values: tuple[tuple[str, Value], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.values, tuple | list):
            raise JointError(
                f"AtMostOne: {self.values!r}; pass a list of (field, value) pairs"
            )
        pairs = tuple(_single(pair, "AtMostOne") for pair in self.values)
        options = [(field, _option(value, field)) for field, value in pairs]
        for pair in options:
            if options.count(pair) > 1:
                raise JointError(
                    f"AtMostOne: {pair[0]}={pair[1]} is listed twice; list it once"
                )
        if len({field for field, _ in options}) < 2:
            raise JointError(
                f"AtMostOne: {self.values!r} names fewer than two fields; name "
                "several, since a field always has exactly one value"
            )
        super().__post_init__()
        object.__setattr__(self, "values", pairs)

    @property
    def terms(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """The fields, sorted, each with its listed values."""
        return _terms(self.values)

    def __str__(self) -> str:
        listed = ", ".join(f"{f}={_option(v, f)}" for f, v in self.values)
        return f"at most one of {listed}"


# --- Summing out -----------------------------------------------------------------


def _log_sum(table: Array, axis: int) -> Array:
    """Log of the sum of exponentials along an axis; all -inf gives -inf."""
    top = table.max(axis=axis, keepdims=True)
    shift = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(table - shift).sum(axis=axis, keepdims=True))
    return np.asarray((total + shift).squeeze(axis))


def _normal(logs: Array) -> Array:
    """(N, K) rows that sum to 1, from their logs up to a constant."""
    values = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(values / values.sum(1, keepdims=True))


def _log(p: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(p)


@dataclass(frozen=True)
class _Step:
    """One variable summed out. `scope` ends with it; the others leave later, in order.

    `table` holds the rules' log factors over the scope, `parent` the step that takes
    the message over the others, or None at the end of a component.
    """

    scope: tuple[int, ...]
    table: Array
    parent: int | None


class _Tree:
    """Exact sums over log factors of few variables each, by elimination.

    Lauritzen & Spiegelhalter (1988). The order is greedy, smallest table first, ties
    by number: the same whatever the order of the factors.
    """

    def __init__(
        self, sizes: Sequence[int], factors: Sequence[tuple[tuple[int, ...], Array]]
    ) -> None:
        near: dict[int, set[int]] = {v: set() for v in range(len(sizes))}
        for scope, _ in factors:
            for v in scope:
                near[v] |= set(scope) - {v}

        def cells(v: int) -> int:
            return sizes[v] * math.prod(sizes[u] for u in near[v])

        order: list[tuple[int, set[int]]] = []
        while near:
            v = min(near, key=lambda v: (cells(v), v))
            others = near.pop(v)
            order.append((v, others))
            for u in others:
                near[u] = (near[u] | others) - {u, v}
        self.place = {v: i for i, (v, _) in enumerate(order)}
        self.largest = [
            (sizes[v] * math.prod(sizes[u] for u in others), (v, *others))
            for v, others in order
        ]
        self.sizes, self.order, self.factors = tuple(sizes), order, factors

    def build(self) -> None:
        """Fill the tables; only once their size is known to be acceptable."""
        mine: dict[int, list[tuple[tuple[int, ...], Array]]] = {}
        for scope, table in self.factors:
            mine.setdefault(min(self.place[v] for v in scope), []).append(
                (scope, table)
            )
        self.steps: list[_Step] = []
        for i, (v, others) in enumerate(self.order):
            scope = (*sorted(others, key=self.place.__getitem__, reverse=True), v)
            total = np.zeros([self.sizes[u] for u in scope])
            for axes, table in mine.get(i, ()):
                by_place = sorted(axes, key=self.place.__getitem__, reverse=True)
                table = table.transpose([axes.index(u) for u in by_place])
                total = total + self._spread(table, tuple(by_place), scope)
            parent = min((self.place[u] for u in others), default=None)
            self.steps.append(_Step(scope, total, parent))

    def _spread(
        self, table: Array, axes: tuple[int, ...], scope: tuple[int, ...]
    ) -> Array:
        """Give a table over `axes`, with any leading axes, the axes of `scope`."""
        lead = table.shape[: table.ndim - len(axes)]
        shape = [self.sizes[u] if u in axes else 1 for u in scope]
        return table.reshape(*lead, *shape)

    def _up(self, unary: Sequence[Array], reduce: Any) -> tuple[list[Array], Array]:
        """Tables with all messages from below, and the (N,) total."""
        n = len(unary[0])
        tables = [np.broadcast_to(s.table, (n, *s.table.shape)) for s in self.steps]
        total = np.zeros(n)
        for i, step in enumerate(self.steps):
            v = step.scope[-1]
            tables[i] = tables[i] + self._spread(unary[v], (v,), step.scope)
            message = reduce(tables[i], -1)
            if step.parent is None:
                total = total + message
            else:
                above = self.steps[step.parent].scope
                spread = self._spread(message, step.scope[:-1], above)
                tables[step.parent] = tables[step.parent] + spread
        return tables, total

    def marginals(self, unary: Sequence[Array]) -> tuple[list[Array], Array]:
        """(N, K) log marginals, not normalised, of each variable; (N,) log sum."""
        tables, total = self._up(unary, _log_sum)
        found: list[Array] = [np.empty(0)] * len(self.steps)
        for i in reversed(range(len(self.steps))):
            step = self.steps[i]
            if step.parent is not None:
                # What the parent knows without this step's own message. Where that
                # message is -inf this step's table is -inf too, so 0 will do.
                above, table = self.steps[step.parent].scope, tables[step.parent]
                for axis in reversed(range(len(above))):
                    if above[axis] not in step.scope:
                        table = _log_sum(table, axis + 1)
                own = _log_sum(tables[i], -1)
                own = np.where(np.isfinite(own), own, 0.0)
                tables[i] = tables[i] + (table - own)[..., None]
            table = tables[i]
            for _ in step.scope[:-1]:
                table = _log_sum(table, 1)
            found[step.scope[-1]] = table
        return found, total

    def best(self, unary: Sequence[Array]) -> tuple[NDArray[np.intp], Array]:
        """(N, V) most probable assignment and its (N,) log weight."""
        tables, top = self._up(unary, np.max)
        picks = np.zeros((len(unary[0]), len(self.sizes)), np.intp)
        rows = np.arange(len(picks))
        for i in reversed(range(len(self.steps))):
            *others, v = self.steps[i].scope
            chosen = tables[i][(rows, *(picks[:, u] for u in others))]
            picks[:, v] = chosen.argmax(-1)
        return picks, top


# --- Joint decoding --------------------------------------------------------------


@dataclass(frozen=True)
class Decoded:
    """What `Joint.decode` finds for N rows.

    Attributes
    ----------
    marginals : dict of str to (N, K) array
        Rows sum to 1. Fields without a rule come back as they were given.
    assignment : dict of str to (N,) int array
        The most probable values together: they keep the rules, which the most
        probable value of each marginal need not.
    log_kept : (N,) array
        Log of the share of the independent fields' mass that the rules kept, at most
        0. Far below 0: the policy contradicted the rules.
    log_joint : (N,) array
        Log-probability of the assignment, of all fields together.
    """

    marginals: dict[str, Array]
    assignment: dict[str, NDArray[np.intp]]
    log_kept: Array
    log_joint: Array


@dataclass(frozen=True)
class JointAnswers(Mapping[str, Answer]):
    """Answers by name that respect the rules, and one assignment that keeps them.

    A mapping of names to answers, so that it can stand where a plain dict does.

    Attributes
    ----------
    answers : dict of str to Answer
        Marginals. Taken one by one, their most probable values may break a rule.
    indices : dict of str to int
        The most probable values together, as option indices.
    log_kept, log_joint : float
        As in `Decoded`.
    """

    answers: dict[str, Answer]
    indices: dict[str, int]
    log_kept: float
    log_joint: float

    def __getitem__(self, name: str) -> Answer:
        return self.answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def _certain(self) -> dict[str, Answer]:
        found = {}
        for name, answer in self.answers.items():
            one = np.eye(len(answer.p))[self.indices[name]]
            found[name] = make_answer(answer.question, one)
        return found

    @property
    def assignment(self) -> dict[str, str | bool]:
        """The most probable values together: option texts, a bool for a Noul."""
        return {name: answer.value for name, answer in self._certain().items()}

    @property
    def confidence(self) -> float:
        """Probability that all fields of the assignment are right, in [0, 1]."""
        return min(1.0, math.exp(self.log_joint))

    def document(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The assignment as a document that the JSON schema accepts.

        Raises `SchemaError` if the names of answers and properties differ.
        """
        return instance_from_answers(schema, self._certain())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that are always valid JSON."""
        return {
            "answers": {name: a.to_dict() for name, a in self.answers.items()},
            "assignment": self.assignment,
            "confidence": self.confidence,
            "log_kept": self.log_kept,
        }


class Joint:
    """Named questions with rules between them.

    Parameters
    ----------
    questions : mapping
        Names to questions, or a JSON object schema.
    rules : iterable of Rule
        Their order, like that of the questions, changes nothing.

    Raises
    ------
    JointError
        A rule names an unknown field or option, or says nothing; two rules say the
        same; the rules contradict each other, so that an option could never be
        chosen; or connected fields need a table of more than `LIMIT` cells.
    SchemaError
        The questions are invalid.

    Notes
    -----
    `thm-fields-projection` and `thm-fields-loss` say what decoding is good for,
    `prp-fields-harm` whom it harms, `thm-fields-matched` what `matched` is.

    Examples
    --------
    >>> from rlcd_core.schema import Noul
    >>> joint = Joint(
    ...     {"paged": Noul("Page?"), "urgent": Noul("Urgent?")},
    ...     [Implies(("paged", True), ("urgent", True))])
    >>> found = joint.decode({"paged": [[0.5, 0.5]], "urgent": [[0.2, 0.8]]})
    >>> found.marginals["paged"].round(3).tolist(), found.log_kept.round(3).tolist()
    ([[0.167, 0.833]], [-0.511])
    """

    def __init__(self, questions: Mapping[str, Any], rules: Iterable[Rule]) -> None:
        self.questions = questions_of(questions)
        if isinstance(rules, Rule):
            rules = [rules]
        self.rules = tuple(rules)
        for rule in self.rules:
            if not isinstance(rule, Implies | Excludes | AtMostOne):
                raise JointError(
                    f"{rule!r} is no rule; pass Implies, Excludes or AtMostOne"
                )
            self._check(rule)
        self._check_twice()
        self._names, self._tree = _tree(self.questions, self.rules)
        self._check_size()
        self._tree.build()
        self._check_contradiction()

    def _check(self, rule: Rule) -> None:
        for field, options in rule.terms:
            if field not in self.questions:
                raise JointError(
                    f"rule {rule}: there is no field {field!r}; the fields are "
                    f"{', '.join(self.questions)}"
                )
            known = self.questions[field].options
            for option in sorted(options - set(known)):
                raise JointError(
                    f"rule {rule}: field {field!r} has no option {option!r}; its "
                    f"options are {', '.join(known)}"
                )
        field, options = rule.terms[-1]
        if isinstance(rule, Implies) and len(options) == len(
            self.questions[field].options
        ):
            raise JointError(
                f"rule {rule}: it allows every option of {field!r}, so it says "
                "nothing; drop it"
            )

    def _check_twice(self) -> None:
        seen: dict[frozenset[Any], Rule] = {}
        for rule in self.rules:
            key = self._forbidden(rule)
            if key in seen:
                raise JointError(
                    f"rules {seen[key]} and {rule} forbid the same; drop one of them"
                )
            seen[key] = rule

    def _forbidden(self, rule: Rule) -> frozenset[frozenset[tuple[str, str]]]:
        """Pairs of values that may not come together: each rule is a set of them."""
        terms = list(rule.terms)
        if isinstance(rule, Implies):
            field, allowed = terms[1]
            terms[1] = (field, frozenset(self.questions[field].options) - allowed)
        return frozenset(
            frozenset([(f, x), (g, y)])
            for i, (f, xs) in enumerate(terms)
            for g, ys in terms[:i]
            for x in xs
            for y in ys
        )

    def _check_size(self) -> None:
        size, scope = max(self._tree.largest, default=(0, ()))
        if size > LIMIT:
            fields = sorted(self._names[v] for v in scope if v < len(self._names))
            raise JointError(
                f"the rules tie {len(fields)} fields so closely that a table of "
                f"{size:,} cells is needed, and at most {LIMIT:,} are built: "
                f"{', '.join(fields)}; drop rules between them, or give them fewer "
                "options"
            )

    def _check_contradiction(self) -> None:
        dead = _dead(self.questions, self._names, self._tree)
        if not dead:
            return
        needed = list(self.rules)
        for rule in self.rules:  # what is left is contradictory, and no less is
            fewer = [r for r in needed if r is not rule]
            names, tree = _tree(self.questions, fewer)
            tree.build()
            if dead[0] in _dead(self.questions, names, tree):
                needed = fewer
        field, option = dead[0]
        raise JointError(
            f"field {field!r} can never be {option!r}: the rules "
            f"{'; '.join(map(str, needed))} contradict each other there; drop one of "
            "them, or the option"
        )

    def broken(self, labels: Mapping[str, ArrayLike]) -> NDArray[np.bool_]:
        """Which rules an assignment breaks.

        Parameters
        ----------
        labels : dict of str to (N,) int array
            Option indices; at least of the fields that have rules.

        Returns
        -------
        (N, R) bool array
            In the order of the rules.

        Raises
        ------
        JointError
            A field has no labels, another number of them, or one that is no option.
        """
        size = len(next(iter(labels.values()), ()))  # type: ignore[arg-type]
        places = self._places(labels, self._names, size)
        columns = []
        for rule in self.rules:
            pairs = zip(rule.terms, _hits(self.questions, rule), strict=True)
            columns.append(rule.forbids([hit[places[f]] for (f, _), hit in pairs]))
        return np.stack(columns, 1) if columns else np.zeros((size, 0), bool)

    def _places(
        self, labels: Mapping[str, ArrayLike], fields: Iterable[str], size: int
    ) -> dict[str, NDArray[np.intp]]:
        """The `size` labels of each of these fields, checked to be option indices."""
        found = {}
        for name in fields:
            if name not in labels:
                raise JointError(f"no labels of field {name!r}; pass option indices")
            row, count = np.asarray(labels[name]), len(self.questions[name].options)
            whole = row.shape == (size,) and row.dtype.kind in "iu"
            if size and not (whole and ((row >= 0) & (row < count)).all()):
                raise JointError(
                    f"field {name!r}: labels {row.tolist()!r:.80}; pass {size} whole "
                    f"numbers from 0 to {count - 1}, one a row"
                )
            found[name] = row.astype(np.intp)
        return found

    def decode(self, p: Mapping[str, ArrayLike]) -> Decoded:
        """Marginals, most probable assignment and kept mass, exactly.

        Parameters
        ----------
        p : dict of str to (N, K) array
            One distribution a row, of every field, as if it were asked alone.

        Raises
        ------
        JointError
            A field is missing, shapes differ, a row is no distribution, or no
            assignment with positive probability keeps the rules.
        """
        given = self._distributions(p)
        marginals = dict(given)
        assignment = {name: row.argmax(1) for name, row in given.items()}
        n = len(next(iter(given.values())))
        log_kept, log_joint = np.zeros(n), np.zeros(n)
        for name in sorted(set(given) - set(self._names)):
            log_joint += _log(given[name].max(1) / given[name].sum(1))
        if self._names:
            found = {name: np.empty_like(given[name]) for name in self._names}
            for rows in self._pieces(n):
                unary = self._unary(given, rows)
                logs, total = self._tree.marginals(unary)
                picks, top = self._tree.best(unary)
                self._check_total(total, rows)
                log_kept[rows] = total
                log_joint[rows] += top - total
                for v, name in enumerate(self._names):
                    found[name][rows] = _normal(logs[v])
                    assignment[name][rows] = picks[:, v]
            marginals.update(found)
        return Decoded(
            marginals, assignment, np.minimum(log_kept, 0.0), np.minimum(log_joint, 0.0)
        )

    def log_prob(
        self, p: Mapping[str, ArrayLike], labels: Mapping[str, ArrayLike]
    ) -> Array:
        """(N,) joint log-probability of given values; -inf if they break a hard rule.

        Parameters
        ----------
        p : dict of str to (N, K) array
            As `decode` takes it.
        labels : dict of str to (N,) int array
            Option indices of every field.
        """
        given = self._distributions(p)
        rows = np.arange(len(next(iter(given.values()))))
        places = self._places(labels, given, len(rows))
        weights = np.array([rule.weight for rule in self.rules])
        found = -np.where(self.broken(labels), weights, 0.0).sum(1)
        for name, row in given.items():
            found = found + _log(row / row.sum(1, keepdims=True))[rows, places[name]]
        return np.asarray(found - self.decode(given).log_kept)

    def matched(
        self, p: Mapping[str, ArrayLike], tolerance: float = 1e-8, sweeps: int = 500
    ) -> tuple[dict[str, Array], NDArray[np.bool_]]:
        """Distributions that `decode` turns into the marginals given.

        Decoding takes the fields for independent witnesses and moves their marginals.
        Where these are honest they should stay: of all joint distributions that keep
        the rules and have the marginals `p`, this finds the one closest to
        independence, by iterative proportional fitting (`thm-fields-matched`).

        Parameters
        ----------
        p : dict of str to (N, K) array
            As `decode` takes it.
        tolerance : float
            Largest difference of a marginal that counts as reached.
        sweeps : int
            Passes over the fields at most.

        Returns
        -------
        fields : dict of str to (N, K) array
            What to pass to `decode` and `log_prob`; its kept mass has no meaning then.
        reached : (N,) bool array
            False where no allowed joint has these marginals, or only one with further
            zeros, as an implication from a probability above the implied one. Those
            rows come back as given, so that `decode` conditions them.
        """
        given = self._distributions(p)
        n = len(next(iter(given.values())))
        fields = {name: row.copy() for name, row in given.items()}
        reached = np.full(n, not self._names)
        for rows in self._pieces(n) if self._names else []:
            for _ in range(sweeps):
                now = self._marginals(fields, rows)
                gaps = [
                    np.abs(at - given[name][rows]).max(1)
                    for name, at in zip(self._names, now, strict=True)
                ]
                done = np.max(gaps, 0) <= tolerance
                reached[rows[done]] = True
                rows = rows[~done]
                if not rows.size:
                    break
                alive = np.ones(len(rows), bool)
                at = now[0][~done]
                for v, name in enumerate(self._names):
                    if v:
                        at = self._marginals(fields, rows)[v]
                    target = given[name][rows]
                    ratio = np.divide(target, at, out=np.zeros_like(at), where=at > 0)
                    row = fields[name][rows] * ratio
                    # Without a limit, a value runs to 0: this row has no such joint.
                    alive &= ~((row < 1e-100) & (target > 0)).any(1)
                    row[~alive] = target[~alive]
                    fields[name][rows] = row / row.sum(1, keepdims=True)
                rows = rows[alive]
        for name, row in given.items():
            fields[name][~reached] = row[~reached]
        return fields, reached

    def answer(self, answers: Mapping[str, Answer]) -> JointAnswers:
        """Join the answers to the questions, each as if it had been asked alone.

        Raises `JointError` as `decode` does.
        """
        found = self.decode({name: [answer.p] for name, answer in answers.items()})
        joined = {
            name: make_answer(answer.question, found.marginals[name][0])
            if name in self._names
            else answer
            for name, answer in answers.items()
        }
        return JointAnswers(
            joined,
            {name: int(found.assignment[name][0]) for name in answers},
            float(found.log_kept[0]),
            float(found.log_joint[0]),
        )

    def _distributions(self, p: Mapping[str, ArrayLike]) -> dict[str, Array]:
        if set(p) != set(self.questions):
            odd = sorted(set(p) ^ set(self.questions))[0]
            raise JointError(
                f"field {odd!r} has {'no question' if odd in p else 'no probabilities'}"
                f"; pass exactly {', '.join(self.questions)}"
            )
        given = {name: np.asarray(p[name], np.float64) for name in self.questions}
        lengths = [len(row) if row.ndim else 0 for row in given.values()]
        n = max(lengths, key=lengths.count)
        for name, row in given.items():
            wanted = (n, len(self.questions[name].options))
            if row.shape != wanted or n == 0:
                raise JointError(
                    f"field {name!r}: probabilities of shape {row.shape}; pass "
                    f"(N, {wanted[1]}) with the same N >= 1 for all fields"
                )
            good = np.isfinite(row).all(1) & (row >= 0).all(1)
            good &= np.abs(row.sum(1) - 1) <= 1e-4  # as an Answer allows
            if not good.all():
                at = int(np.argmin(good))
                raise JointError(
                    f"field {name!r}, row {at}: {row[at].tolist()} is no distribution; "
                    "pass probabilities that sum to 1"
                )
        return given

    def _pieces(self, n: int) -> list[NDArray[np.intp]]:
        """Rows 0 to n - 1, as many at once as the largest table allows."""
        size = max(cells for cells, _ in self._tree.largest)
        return np.array_split(np.arange(n), -(-n * size // _CELLS))

    def _marginals(
        self, given: Mapping[str, Array], rows: NDArray[np.intp]
    ) -> list[Array]:
        logs, total = self._tree.marginals(self._unary(given, rows))
        self._check_total(total, rows)
        return [_normal(logs[v]) for v in range(len(self._names))]

    def _unary(self, given: Mapping[str, Array], rows: NDArray[np.intp]) -> list[Array]:
        """Log-probabilities of the fields, then zeros for the counters of rules."""
        found = []
        for name in self._names:
            row = given[name][rows]
            found.append(_log(row / row.sum(1, keepdims=True)))
        extra = self._tree.sizes[len(found) :]
        return found + [np.zeros((len(rows), size)) for size in extra]

    def _check_total(self, total: Array, rows: NDArray[np.intp]) -> None:
        if not np.isfinite(total).all():
            at = int(rows[np.argmin(np.isfinite(total))])
            raise JointError(
                f"row {at}: every assignment that the rules allow has probability 0 "
                f"under the fields {', '.join(self._names)}; pass probabilities that "
                "were not rounded to 0, or give the rules a finite weight"
            )


def _tree(
    questions: Mapping[str, Question], rules: Iterable[Rule]
) -> tuple[list[str], _Tree]:
    """The fields that have rules, sorted, and the elimination over them.

    A rule on more than two fields counts its hits along the fields (0, 1, "more") in
    variables of its own, so that its table does not grow with their number.
    """

    def key(rule: Rule) -> tuple[Any, ...]:
        terms = [(field, sorted(options)) for field, options in rule.terms]
        return type(rule).__name__, terms, rule.weight

    rules = sorted(rules, key=key)  # any order of declaration gives the same sums
    names = sorted({field for rule in rules for field, _ in rule.terms})
    place = {name: v for v, name in enumerate(names)}
    sizes = [len(questions[name].options) for name in names]
    factors: list[tuple[tuple[int, ...], Array]] = []
    for rule in rules:
        weight = rule.weight
        fields = [place[field] for field, _ in rule.terms]
        hits = _hits(questions, rule)
        if len(fields) == 2:
            cost = rule.forbids([hits[0][:, None], hits[1][None, :]])
            factors.append((tuple(fields), np.where(cost, -weight, 0.0)))
            continue
        before, count = None, np.zeros(1, int)
        for field, hit in zip(fields[:-1], hits[:-1], strict=True):
            after = np.minimum(count[:, None] + hit[None, :], 2)
            exact = after[..., None] == np.arange(3)
            table = np.where(exact, 0.0, -np.inf)
            sizes.append(3)
            now = len(sizes) - 1
            if before is None:
                factors.append(((field, now), table[0]))
            else:
                factors.append(((before, field, now), table))
            before, count = now, np.arange(3)
        over = count[:, None] + hits[-1][None, :] > 1
        assert before is not None  # more than two fields
        factors.append(((before, fields[-1]), np.where(over, -weight, 0.0)))
    return names, _Tree(sizes, factors)


def _hits(questions: Mapping[str, Question], rule: Rule) -> list[NDArray[np.bool_]]:
    """(K,) of each term of the rule: which options of its field it speaks of."""
    return [
        np.array([option in options for option in questions[field].options])
        for field, options in rule.terms
    ]


def _dead(
    questions: Mapping[str, Question], names: Sequence[str], tree: _Tree
) -> list[tuple[str, str]]:
    """Options that no allowed assignment holds, as (field, option)."""
    if not names:
        return []
    logs, _ = tree.marginals([np.zeros((1, size)) for size in tree.sizes])
    return [
        (name, questions[name].options[k])
        for v, name in enumerate(names)
        for k in np.flatnonzero(~np.isfinite(logs[v][0]))
    ]


def fit_weight(log_kept: ArrayLike, broken: ArrayLike) -> float:
    r"""The weight at which one rule is stated to be broken as often as it was.

    It solves :math:`\operatorname{mean} m e^{-w} / (1 - m + m e^{-w}) = v` for w >= 0,
    where m is the mass that the hard rule removes and v the share of rows that broke
    it. That is the least mean joint log loss of all weights (`prp-fields-soft`).

    Parameters
    ----------
    log_kept : (N,) array
        `Decoded.log_kept` of the one rule, hard, on held-out rows.
    broken : (N,) bool array
        Whether the true values broke it.

    Returns
    -------
    float
        In [0, inf): 0 if the rule is broken as often as the fields say anyway. No
        break among N rows counts as half a break among N + 1: it proves no rule.
    """
    kept = np.exp(np.asarray(log_kept, np.float64))
    seen = np.asarray(broken)
    if kept.ndim != 1 or seen.shape != kept.shape or not kept.size:
        raise JointError(
            f"log_kept has shape {kept.shape}, broken {seen.shape}; pass (N,) of both"
        )
    if seen.dtype != bool or not ((kept >= 0) & (kept <= 1)).all():
        raise JointError("pass log_kept <= 0, and broken as bool values")
    rate = seen.mean() if seen.any() else 0.5 / (len(seen) + 1)
    mass = 1 - kept

    def excess(weight: float) -> float:
        stated = expit(_log(mass) - _log(kept) - weight)
        return float(stated.mean() - rate)

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high))
