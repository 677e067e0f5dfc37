"""Questions, states and policies as a command line gives them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcd_core.decider import Decider
from rlcd_core.extra.batching import answer_dict, gates_for
from rlcd_core.policy.loading import smollm2_directory
from rlcd_core.schema import (
    Answer,
    SchemaError,
    instance_from_answers,
    is_schema,
    name_questions,
)

MAX_STATE = 64 * 2**20
"""Largest state from a file or standard input, in bytes."""


def read_object(path: Path) -> Mapping[str, Any]:
    """An object from a JSON file; `SchemaError` if it holds anything else."""
    try:
        found = json.loads(path.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path}: it is no JSON in UTF-8 ({error})") from error
    if not isinstance(found, dict):
        raise SchemaError(f"{path}: it is a {type(found).__name__}; write an object")
    return found


def question_from_flag(kind: str, text: str) -> tuple[str, dict[str, Any]]:
    """Read ``NAME=TEXT | OPTION | OPTION`` (a noul has no options).

    Examples
    --------
    >>> question_from_flag("choice", "team=Which team? | billing | sales")[1]["options"]
    ['billing', 'sales']
    """
    name, equals, rest = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]+", name.strip()):
        raise SchemaError(
            f"--{kind} {text!r}: write NAME=TEXT"
            + ("" if kind == "noul" else " | OPTION | OPTION")
            + ", the name without spaces"
        )
    asked, *options = [part.strip() for part in rest.split("|")]
    fields: dict[str, Any] = {"kind": kind, "text": asked}
    if kind != "noul":
        fields["options"] = options
    elif options:
        raise SchemaError(f"--noul {text!r}: a noul has no options; use --choice")
    return name.strip(), fields


def gather_questions(
    file: Path | None,
    flags: Mapping[str, Sequence[str] | None],
    decider: Decider | None = None,
) -> Mapping[str, Any]:
    """Questions from a file or from flags, else those of an export.

    Parameters
    ----------
    file : Path, optional
        A JSON schema (``"type": "object"``) or an object of names to
        ``{"kind", "text", "options"}``.
    flags : mapping
        "choice", "score" and "noul" to what was given with each.
    decider : Decider, optional
        Where nothing is given, its export's questions are asked.

    Returns
    -------
    mapping
        As `Decider.ask` takes it.

    Raises
    ------
    SchemaError
        None or both are given, a name is given twice, or a question is invalid.
    """
    given = [(kind, text) for kind, texts in flags.items() for text in texts or ()]
    if file is not None and given:
        raise SchemaError("questions come from a file or from flags, not from both")
    if file is not None:
        return read_object(file)
    exported = None if decider is None else decider.exported
    if not given and exported is not None and exported.questions:
        return exported.questions
    if not given:
        raise SchemaError(
            "no question given; pass --questions FILE, --choice, --score or --noul"
        )
    asked: dict[str, Any] = {}
    for kind, text in given:
        name, fields = question_from_flag(kind, text)
        if name in asked:
            raise SchemaError(f"two questions have the name {name!r}; rename one")
        asked[name] = fields
    return name_questions(asked)


def read_state(text: str | None, file: Path | None, as_json: bool) -> Any:
    """A state from an argument, a file, or standard input ("-", or neither given).

    Raises
    ------
    SchemaError
        Both are given, nothing is, or it is not what it says it is.
    """
    if text is not None and file is not None:
        raise SchemaError("the state comes from the argument or from --file, not both")
    if file is None and text not in (None, "-"):
        found = str(text)
    else:
        if file is None and sys.stdin.isatty() and text is None:
            raise SchemaError("no state given; pass it as argument, --file, or pipe it")
        stream = sys.stdin.buffer if file is None else file.open("rb")
        with stream:
            data = stream.read(MAX_STATE + 1)
        if len(data) > MAX_STATE:
            raise SchemaError(f"the state is over the limit of {MAX_STATE:,} bytes")
        try:
            found = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SchemaError(f"the state is no UTF-8 ({error})") from error
    if not as_json:
        return found
    try:
        return json.loads(found)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the state is no JSON ({error})") from error


def load_decider(policy: Path | None) -> Decider:
    """The packaged SmolLM2, or what a folder holds (a model or an export)."""
    if policy is not None and not policy.is_dir():
        raise FileNotFoundError(
            f"no folder {policy}: pass one with a model or an export; nothing is "
            "loaded from a hub by name"
        )
    return Decider.load(policy)


def folder_of(policy: Path | None) -> Path:
    """Where the files of a policy lie, for their hashes."""
    return smollm2_directory() if policy is None else policy


def written(
    asked: Mapping[str, Any],
    answers: Mapping[str, Answer],
    values_only: bool,
    decider: Decider,
) -> str:
    """Answers as JSON text; only the values where asked, in the schema's own types."""
    gates = gates_for(decider, {name: a.question for name, a in answers.items()})
    shown: Any = {n: answer_dict(a, gates.get(n)) for n, a in answers.items()}
    if values_only and is_schema(asked):
        shown = instance_from_answers(asked, answers)
    elif values_only:
        shown = {name: answer.value for name, answer in answers.items()}
    return json.dumps(shown, ensure_ascii=False, allow_nan=False, indent=1)
