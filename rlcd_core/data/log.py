"""The outcome log: one row a decision, read and checked in constant memory.

Columns: ``id`` (unique), ``state``, ``question``, ``options``, ``type``, ``action``
(an option), ``outcome`` (0, 1, or empty: unresolved) or ``label`` (an option), and
optional ``propensity`` in (0, 1], ``probabilities``, ``decided_at``, ``resolved_at``,
``source``, ``split``. CSV (options as a JSON list), JSONL or Parquet.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from rlcd_core.schema import Question, SchemaError, make_question, render_state

COLUMNS = (
    "id state question options type action outcome label propensity probabilities "
    "decided_at resolved_at source split"
).split()
TEXTS = ("state", "question", "options")
TINY = 2.0**-126  # the least normal number of 32 bits


class LogError(ValueError):
    """A row of an outcome log that cannot be used; names file, row and mend."""


@dataclass(frozen=True)
class Decision:
    """One checked row of the log; `action` and `label` are option indices.

    `outcome` is 1.0, 0.0 or None (unresolved); `propensity` is in (0, 1] or None.
    At least one of `action` and `label` is known.
    """

    id: str
    state: Any
    question: Question
    action: int | None
    outcome: float | None
    label: int | None
    propensity: float | None
    probabilities: tuple[float, ...] | None
    decided_at: datetime | None
    resolved_at: datetime | None
    source: str
    split: str


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Raw rows, one at a time, whatever the format."""
    match path.suffix.lower():
        case ".csv":
            # utf-8-sig drops a byte-order mark; newline="" leaves CRLF to csv.
            csv.field_size_limit(16 * 2**20)  # an open quote swallows no more
            with path.open(encoding="utf-8-sig", newline="") as handle:
                reader = csv.DictReader(handle, strict=True)
                _check_header(list(reader.fieldnames or ()))
                for row in reader:
                    if None in row or None in row.values():
                        raise LogError("it has more or fewer fields than the header")
                    yield row
        case ".jsonl":
            with path.open(encoding="utf-8-sig") as handle:
                for line in handle:
                    if line.strip():
                        row = json.loads(line)
                        if not isinstance(row, dict):
                            raise LogError(f"{line.strip()[:60]} is no JSON object")
                        yield row
        case ".parquet":
            import pyarrow.parquet as parquet

            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=1024):
                    yield from batch.to_pylist()
        case suffix:
            raise LogError(f"{path}: {suffix!r} is no log; use csv, jsonl, parquet")


def _check_header(names: list[str]) -> None:
    """What a CSV file has no column for, every row lacks."""
    missing = [name for name in ("id", "state", "question") if name not in names]
    if missing:
        mend = "name the columns so"
        if len(names) == 1 and set(names[0]) & {";", "\t"}:
            mend = "separate the columns by commas"
        raise LogError(f"the header has no {missing[0]!r}, only {names[:12]}; {mend}")
    if len(set(names)) < len(names):
        raise LogError(f"two columns of the header have the same name: {names[:20]}")


def _numbered(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Raw rows from 1; what stops the reading names the row that it stopped at."""
    rows = _rows(path)
    number = 1
    while True:
        try:
            row = next(rows, None)
        except UnicodeDecodeError as error:
            raise LogError(f"{path.name}: {error}; save the file as UTF-8.") from error
        except LogError as error:
            raise LogError(f"{path.name}, row {number}: {error}.") from error
        except (ValueError, RecursionError, csv.Error) as error:  # JSON, CSV, Parquet
            raise LogError(
                f"{path.name}, row {number}: cannot be read ({error}); mend that row, "
                "or write the file again."
            ) from error
        if row is None:
            return
        yield number, row
        number += 1


def _known(value: Any) -> bool:
    empty = value is None or (isinstance(value, float) and math.isnan(value))
    return not empty and value != ""


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise LogError(
            f"{name} {value!r} is no number; leave it empty if unknown"
        ) from None


def _listed(name: str, value: Any) -> list[Any]:
    """A list from a JSON text or from the file itself; an object has no order."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise LogError(f'{name} {value!r}: write a JSON list, such as ["a", "b"]')
    return found


def _parse(row: Mapping[str, Any], questions: Mapping[str, Question]) -> Decision:
    # Spaces about a text are part of it; about an id, a number or a time they are not.
    told = {
        key: value.strip() if isinstance(value, str) and key not in TEXTS else value
        for key, value in row.items()
        if key in COLUMNS
    }
    told = {key: value for key, value in told.items() if _known(value)}
    for needed in ("id", "state", "question"):
        if needed not in told:
            raise LogError(f"no {needed}: fill that column")
    if not isinstance(told["question"], str):
        raise LogError(f"question {told['question']!r} must be text or a name")
    render_state(told["state"])  # blank, or what JSON cannot hold
    if told["question"] in questions and "options" not in told:
        question = questions[told["question"]]
    else:
        parts = {"kind": told.get("type", "choice"), "text": told["question"]}
        if "options" in told:
            parts["options"] = _listed("options", told["options"])
        question = make_question(parts)

    def index(name: str) -> int | None:
        if name not in told:
            return None
        value = told[name]
        # JSON's true is the option "true" of a Noul, as it is in a schema.
        value = json.dumps(value) if isinstance(value, bool) else str(value).strip()
        options = [option.strip() for option in question.options]
        if value not in options:
            raise LogError(f"{name} {value!r} is none of the options {options}")
        return options.index(value)

    action, label = index("action"), index("label")
    numbers = {
        name: _number(name, told[name])
        for name in ("outcome", "propensity")
        if name in told
    }
    outcome, propensity = numbers.get("outcome"), numbers.get("propensity")
    if outcome not in (None, 0.0, 1.0):
        raise LogError(f"outcome {outcome} must be 0, 1, or empty for unresolved")
    if action is None and outcome is not None:
        raise LogError("an outcome needs its action: fill that column")
    if action is None and label is None:
        raise LogError("no action and no label: fill one of them")
    if propensity is not None and not TINY <= propensity <= 1.0:
        raise LogError(
            f"propensity {propensity} must be in (0, 1] and at least {TINY:.1e}; leave "
            "it empty if unknown"
        )
    p = told.get("probabilities")
    if p is not None:
        p = tuple(_number("probability", x) for x in _listed("probabilities", p))
        whole = math.isclose(sum(p), 1, abs_tol=1e-3) and min(p) >= 0
        if len(p) != len(question.options) or not whole:
            raise LogError(
                f"probabilities {p} must be one per option, >= 0, and sum to 1"
            )

    def moment(name: str) -> datetime | None:
        value = told.get(name)
        if value is None or isinstance(value, datetime):
            return value
        try:
            if isinstance(value, str | date):  # a number would be read as a date
                return datetime.fromisoformat(str(value).strip())
        except ValueError:
            pass
        raise LogError(
            f"{name} {value!r} is no time in ISO 8601, such as 2026-01-31T09:00:00"
        )

    if label is not None and action is not None:
        right = float(action == label)
        if outcome not in (None, right):
            raise LogError(
                f"outcome {outcome:g} contradicts the label {told['label']!r} of "
                f"action {told['action']!r}: correct one of them, or leave the outcome "
                "empty"
            )
        outcome = right
    return Decision(
        id=str(told["id"]),
        state=told["state"],
        question=question,
        action=action,
        outcome=outcome,
        label=label,
        propensity=propensity,
        probabilities=p,
        decided_at=moment("decided_at"),
        resolved_at=moment("resolved_at"),
        source=str(told.get("source", "")),
        split=str(told.get("split", "")),
    )


def read_log(
    path: Path, questions: Mapping[str, Question] | None = None
) -> Iterator[Decision]:
    """Yield the checked rows of an outcome log, one at a time.

    A file larger than memory is fine: beside the row at hand only 16 bytes per id are
    kept, to find duplicates.

    Parameters
    ----------
    path
        ``.csv`` (byte-order mark and Windows line ends allowed), ``.jsonl`` or
        ``.parquet``.
    questions
        Questions that the column ``question`` may call by name.

    Raises
    ------
    LogError
        Names the file, the row (from 1, without the header), its id, and the mend:
        a missing column, an unknown option, an outcome other than 0, 1 or empty, a
        propensity outside (0, 1], an outcome that contradicts its label, a duplicate
        id, a time that is not ISO 8601, a line that is no JSON object, bytes that are
        not UTF-8, a damaged file.
    """
    seen: set[bytes] = set()
    for number, row in _numbered(Path(path)):
        where = f"{Path(path).name}, row {number} (id {row.get('id')!r})"
        try:
            decision = _parse(row, questions or {})
        except (LogError, SchemaError, ValueError) as error:
            raise LogError(f"{where}: {error}.") from error
        # A lone surrogate in an id has no UTF-8 form and must not stop the reading.
        told = decision.id.encode(errors="surrogatepass")
        digest = hashlib.blake2b(told, digest_size=16).digest()
        if digest in seen:
            raise LogError(f"{where}: an earlier row has this id; make ids unique.")
        seen.add(digest)
        yield decision
