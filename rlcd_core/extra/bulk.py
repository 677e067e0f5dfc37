"""Score a file of states: JSONL, CSV or Parquet in, Parquet out, whatever its size.

Rows are read, answered and written in bounded batches, so that the memory does not grow
with the file. Finished rows lie in parts beside the output, each written whole or not
at all; a killed run goes on after the last part, and the output appears complete.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from tqdm import tqdm

from rlcd_core.data.manifest import sha256_of
from rlcd_core.decider import Decider
from rlcd_core.extra.batching import answer_batch, fingerprint, gates_for
from rlcd_core.files import opened_atomically, write_atomically
from rlcd_core.gates import Gate
from rlcd_core.schema import (
    Answer,
    Noul,
    Question,
    questions_of,
)

MAX_LINE = 16 * 2**20
"""Longest line of a JSONL file and longest field of a CSV file, in bytes."""

ROW_GROUP = 50_000, 64 * 2**20
"""Rows or bytes, whichever comes first, of a row group of the output."""

PART_SECONDS = 60
"""A part is written after so long even if it has fewer rows than it may have."""


class BulkError(ValueError):
    """A file cannot be scored or a run cannot go on: which row, and the mend."""


@dataclass(frozen=True)
class Row:
    """One row of the input.

    Attributes
    ----------
    number : int
        From 0, over all rows of the file.
    place : str
        Where it stands, for messages: "line 3" or "row 3".
    key : str or None
        Its id as text.
    state : Any
        None where `error` says why there is none.
    error : str or None
    """

    number: int
    place: str
    key: str | None
    state: Any
    error: str | None = None


@dataclass(frozen=True)
class Report:
    """What became of a file: rows in the output, those with an error, and rows that an
    earlier run had left finished."""

    rows: int
    errors: int
    resumed: int


def score_file(
    decider: Decider,
    questions: Mapping[str, Any],
    source: Path | str,
    target: Path | str,
    *,
    state: str = "state",
    key: str | None = "id",
    keep_state: bool = False,
    on_error: Literal["stop", "keep"] = "stop",
    part_rows: int = 2000,
    batch_rows: int = 64,
    restart: bool = False,
    progress: bool = True,
) -> Report:
    """Answer the same questions about every row of a file.

    Parameters
    ----------
    decider : Decider
    questions : mapping
        Names to questions, or a JSON schema, as `Decider.ask` takes them.
    source : path
        ``.jsonl`` or ``.ndjson`` (objects), ``.csv`` (with a header) or ``.parquet``.
    target : path
        The ``.parquet`` file to write. Columns: ``row`` (from 0), ``id`` if the source
        has one, ``state`` if asked for or if there is no id, and for each question
        ``NAME.value``, ``NAME.p`` (in the order of the options, which the file's
        metadata names), ``NAME.confidence`` and, where an export brings a gate for
        the question, ``NAME.gate.GATE``; then ``error``.
    state, key : str
        Columns of the state and of the id; no id is read where ``key`` is None.
    keep_state : bool
        Also write the state of rows that have an id.
    on_error : {"stop", "keep"}
        A row that cannot be answered ends the run with its line, or is kept with
        the message in ``error`` and no answers.
    part_rows : int
        Most rows of a part, which is also written after a minute: what a kill costs.
        Ctrl-C and faults cost nothing that was answered.
    batch_rows : int
        Rows answered together; changes answers by float rounding only.
    restart : bool
        Throw away what another run left beside the output, and the output.
    progress : bool
        Show a bar on standard error.

    Returns
    -------
    Report

    Raises
    ------
    BulkError
        A row cannot be answered (and ``on_error`` is "stop"); the input, the
        questions or the policy are not those of the run that was interrupted, or of
        the output that is there; another run is writing.
    OSError
        A file cannot be read or written. What is finished stays.
    """
    if on_error not in ("stop", "keep"):
        raise BulkError(f"on_error={on_error!r}: pass 'stop' or 'keep'")
    if part_rows < 1 or batch_rows < 1:
        raise BulkError(f"part_rows={part_rows}, batch_rows={batch_rows}: at least 1")
    named = questions_of(questions)
    source, target = Path(source), Path(target)
    if source.resolve() == target.resolve():
        raise BulkError(f"{source}: input and output are the same file; name another")
    if target.suffix.lower() != ".parquet":
        raise BulkError(
            f"{target}: the output is Parquet; let its name end in .parquet"
        )
    _kind(source)
    begun = source.stat()
    has_key = _has_column(source, state, key)
    columns = {
        "state": state,
        "key": key if has_key else None,
        "keep_state": keep_state or not has_key,
    }
    identity = {
        "input": {"sha256": sha256_of(source), "bytes": begun.st_size},
        "questions": {name: q.to_dict() for name, q in named.items()},
        "columns": columns,
        "policy": fingerprint(decider.policy),
    }
    if decider.exported is not None:  # its settings and gates too
        identity["export"] = decider.exported.manifest["sha256"]
    parts = target.with_name(target.name + ".parts")
    parts.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(parts / "lock", timeout=0):
            try:
                work = _Work(decider, named, source, target, parts, identity, part_rows)
                return work.run(begun, on_error, batch_rows, restart, progress)
            finally:  # in here: outside, the lock may be another run's by now
                if [path.name for path in parts.glob("*")] == ["lock"]:
                    _remove(parts)  # nothing was begun
    except Timeout:
        raise BulkError(
            f"{parts}: another run is writing there; wait for it, or name another "
            "output"
        ) from None


# --- Reading ---------------------------------------------------------------------


_KINDS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


def _kind(path: Path) -> str:
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise BulkError(f"{path.name}: its name must end in one of {', '.join(_KINDS)}")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    return kind


def _has_column(path: Path, state: str, key: str | None) -> bool:
    """Whether the source has the id column; the state column must be there."""
    kind = _kind(path)
    if kind == "jsonl":
        # Any row may be the first with an id; parsing costs little beside answering.
        return any(row.key is not None for row, _ in _read_jsonl(path, state, key))
    if kind == "csv":
        try:
            with _opened_csv(path) as text:
                names = next(csv.reader(_bounded(text), strict=True), [])
        except csv.Error as error:
            raise BulkError(f"{path.name}: line 1: {error}") from error
    else:
        with _readable(path), pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
    if state not in names:
        mend = "say which column holds the state"
        if kind == "csv" and len(names) == 1 and set(names[0]) & {";", "\t"}:
            mend = "separate the columns by commas"
        raise BulkError(
            f"{path.name}: it has no column {state!r}, only {names[:12]}; {mend}"
        )
    if len(set(names)) != len(names):
        raise BulkError(f"{path.name}: two columns have the same name: {names[:12]}")
    return key in names


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What Parquet says of a damaged file, with the file's name."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise BulkError(
            f"{path.name}: it cannot be read as Parquet ({error}); write it again"
        ) from error


def _opened_csv(path: Path) -> Any:
    # Bytes that are no UTF-8 come through as lone surrogates and are named later.
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def read_rows(path: Path, state: str, key: str | None) -> Iterator[tuple[Row, int]]:
    """Rows of a file one after the other, and how far they are (bytes, or rows).

    A row that cannot be read has an `error`; a file that cannot be read on raises
    `BulkError`. Blank lines are no rows. No line is held that is over `MAX_LINE`.
    """
    reader = {"jsonl": _read_jsonl, "csv": _read_csv, "parquet": _read_parquet}
    return reader[_kind(path)](path, state, key)


def _text_key(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)


def _read_jsonl(path: Path, state: str, key: str | None) -> Iterator[tuple[Row, int]]:
    number, done = 0, 0
    with path.open("rb") as lines:
        for at in range(1, 2**63):
            line = lines.readline(MAX_LINE + 1)
            if not line:
                return
            done += len(line)
            place, name, value, error = f"line {at}", None, None, None
            if len(line) > MAX_LINE:
                while line and not line.endswith(b"\n"):
                    line = lines.readline(MAX_LINE)
                    done += len(line)
                error = (
                    f"it is longer than {MAX_LINE:,} bytes; is this one object per "
                    "line?"
                )
                yield Row(number, place, None, None, error), done
                number += 1
                continue
            if not line.strip():
                continue
            try:
                fields = json.loads(line.decode("utf-8-sig" if at == 1 else "utf-8"))
                if not isinstance(fields, dict):
                    error = f"it is a {type(fields).__name__}, not an object"
                elif state not in fields:
                    error = f"it has no {state!r}, only {list(fields)[:12]}"
                else:
                    value = fields[state]
                    name = _text_key(fields.get(key)) if key else None
            except UnicodeDecodeError as fault:
                error = f"it is not UTF-8 ({fault.reason} at byte {fault.start})"
            except (ValueError, RecursionError) as fault:
                error = f"it is no JSON ({fault})"
            yield Row(number, place, name, value, error), done
            number += 1


def _bounded(text: Any) -> Iterator[str]:
    """Lines of a text, none of which is read further than it may be long."""
    while line := text.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise csv.Error(f"it is longer than {MAX_LINE:,} characters")
        yield line


def _read_csv(path: Path, state: str, key: str | None) -> Iterator[tuple[Row, int]]:
    csv.field_size_limit(MAX_LINE)
    with _opened_csv(path) as text:
        reader = csv.reader(_bounded(text), strict=True)
        names = next(reader)
        at, number = reader.line_num + 1, 0
        try:
            for values in reader:
                place, at = f"line {at}", reader.line_num + 1
                if not values:
                    continue
                name, value, error = None, None, None
                if len(values) != len(names):
                    error = f"it has {len(values)} fields and the header {len(names)}"
                else:
                    fields = dict(zip(names, values, strict=True))
                    value, name = fields[state], fields[key] if key else None
                    both = f"{value}{name or ''}"
                    if any("\udc80" <= c <= "\udcff" for c in both):
                        value, name, error = None, None, "it is not UTF-8"
                yield Row(number, place, name, value, error), text.buffer.tell()
                number += 1
        except csv.Error as fault:
            raise BulkError(
                f"{path.name}: line {at}: {fault}; the rows after it cannot be told "
                "apart"
            ) from fault


def _read_parquet(path: Path, state: str, key: str | None) -> Iterator[tuple[Row, int]]:
    wanted, number = [state, *([key] if key else [])], 0
    with _readable(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            names = batch.column(key).to_pylist() if key else [None] * len(batch)
            for value, name in zip(batch.column(state).to_pylist(), names, strict=True):
                place = f"row {number + 1}"
                yield Row(number, place, _text_key(name), value), number + 1
                number += 1


def _total(path: Path) -> int:
    if _kind(path) == "parquet":
        return pq.ParquetFile(path).metadata.num_rows
    return path.stat().st_size


# --- Writing ---------------------------------------------------------------------


def _output_schema(
    named: Mapping[str, Question],
    gates: Mapping[str, Mapping[str, Gate]],
    columns: Mapping[str, Any],
    about: dict[str, Any],
) -> pa.Schema:
    fields = [pa.field("row", pa.int64())]
    if columns["key"] is not None:
        fields.append(pa.field("id", pa.string()))
    if columns["keep_state"]:
        fields.append(pa.field("state", pa.string()))
    for name, question in named.items():
        value = pa.bool_() if isinstance(question, Noul) else pa.string()
        fields += [
            pa.field(f"{name}.value", value),
            pa.field(f"{name}.p", pa.list_(pa.float64())),
            pa.field(f"{name}.confidence", pa.float64()),
            *(pa.field(f"{name}.gate.{g}", pa.string()) for g in gates.get(name, ())),
        ]
    fields.append(pa.field("error", pa.string()))
    for name, count in Counter(field.name for field in fields).items():
        if count > 1:
            raise BulkError(
                f"two columns of the output would be named {name!r}; rename a question"
            )
    return pa.schema(fields, metadata={"rlcd": json.dumps(about, sort_keys=True)})


def _shown_state(state: Any) -> str | None:
    """A state as text: itself, or JSON; half characters of a damaged one replaced."""
    if state is None:
        return None
    text = state
    if not isinstance(state, str):
        text = json.dumps(state, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace").decode()


class _Work:
    """One run over one file; the caller holds the lock."""

    def __init__(
        self,
        decider: Decider,
        named: Mapping[str, Question],
        source: Path,
        target: Path,
        parts: Path,
        identity: dict[str, Any],
        part_rows: int,
    ) -> None:
        self.decider, self.named = decider, named
        self.source, self.target, self.parts = source, target, parts
        self.identity, self.part_rows = identity, part_rows
        text = json.dumps(identity, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()
        about = {"key": self.key, **identity}
        self.gates = gates_for(decider, named)
        self.schema = _output_schema(named, self.gates, identity["columns"], about)

    def run(
        self,
        begun: os.stat_result,
        on_error: str,
        batch_rows: int,
        restart: bool,
        progress: bool,
    ) -> Report:
        if restart:
            self.target.unlink(missing_ok=True)
            self._clear()
        elif self.target.exists():
            rows, errors = self._finished()
            self._remove_parts()
            return Report(rows, errors, rows)
        self._claim()
        done, number = self._kept_parts()
        resumed = done
        rows = read_rows(
            self.source,
            self.identity["columns"]["state"],
            self.identity["columns"]["key"],
        )
        # Not passed where shown, so that TQDM_DISABLE still counts.
        quiet = {} if progress else {"disable": True}
        bytewise = _kind(self.source) != "parquet"
        bar = tqdm(
            total=_total(self.source),
            desc=self.source.name,
            unit="B" if bytewise else "row",
            unit_scale=bytewise,
            **quiet,
        )
        with bar:
            for batches in _chunks(_skip(rows, done, bar), self.part_rows, batch_rows):
                table, fault = self._answered(batches, on_error, bar)
                if len(table):
                    self._write_part(number, table)
                    done, number = done + len(table), number + 1
                if fault is not None:
                    raise fault
        now = self.source.stat()
        if (begun.st_size, begun.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
            raise BulkError(
                f"{self.source.name} was changed while it was read; start again with "
                "restart"
            )
        errors = self._merge(number, done)
        self._remove_parts()
        return Report(done, errors, resumed)

    # What an earlier run left.

    def _about(self, path: Path) -> dict[str, Any]:
        try:
            held = pq.read_schema(path).metadata or {}
            found = json.loads(held.get(b"rlcd", b"{}"))
        except (pa.ArrowInvalid, ValueError) as error:
            raise BulkError(
                f"{path} is no output of this command ({error}); name another file or "
                "pass restart"
            ) from error
        return found if isinstance(found, dict) else {}

    def _differs(self, other: Mapping[str, Any]) -> str:
        names = [n for n in self.identity if other.get(n) != self.identity[n]]
        return " and ".join(names) or "nothing"

    def _finished(self) -> tuple[int, int]:
        """Rows and errors of the output, if it is that of this run."""
        about = self._about(self.target)
        if about.get("key") != self.key:
            raise BulkError(
                f"{self.target} is there and comes from another run (different: "
                f"{self._differs(about)}); name another output or pass restart"
            )
        rows = errors = 0
        with pq.ParquetFile(self.target) as file:
            for batch in file.iter_batches(columns=["error"]):
                rows += len(batch)
                errors += len(batch) - batch.column("error").null_count
        return rows, errors

    def _claim(self) -> None:
        """Write the manifest, or check that the parts there are of this run."""
        for left in self.parts.glob("*.part"):
            left.unlink()  # what a kill left half written; nobody else holds the lock
        manifest = self.parts / "manifest.json"
        if not manifest.exists():
            self._clear()
            text = json.dumps({"key": self.key, **self.identity}, indent=1)
            write_atomically(manifest, text.encode())
            return
        try:
            held = json.loads(manifest.read_text())
        except ValueError as error:
            raise BulkError(
                f"{manifest} is damaged ({error}); pass restart to begin anew"
            ) from error
        if held.get("key") != self.key:
            raise BulkError(
                f"{self.parts} holds the parts of another run (different: "
                f"{self._differs(held)}); finish that one, or pass restart to throw "
                "them away"
            )

    def _part(self, number: int) -> Path:
        return self.parts / f"{number:08d}.parquet"

    def _kept_parts(self) -> tuple[int, int]:
        """Rows and number of the parts that are whole and follow on one another."""
        rows = number = 0
        while self._part(number).exists():
            path = self._part(number)
            try:
                table = pq.read_table(path, page_checksum_verification=True)
                whole = self._about(path).get("key") == self.key
            except (OSError, pa.ArrowInvalid, BulkError):
                whole = False
            if not whole or table.column("row").to_pylist() != list(
                range(rows, rows + len(table))
            ):
                break
            rows, number = rows + len(table), number + 1
        for path in self.parts.glob("[0-9]" * 8 + ".parquet"):
            if int(path.stem) >= number:
                path.unlink()  # a full disk or a power cut; its rows are done again
        if number:
            self._check_answers(pq.read_table(self._part(0)))
        return rows, number

    def _check_answers(self, first: pa.Table) -> None:
        """The rows that lie there must be answered alike now: settings that are no
        weights, such as a temperature, are in no fingerprint."""
        good = [i for i, e in enumerate(first.column("error").to_pylist()) if e is None]
        wanted = {int(first.column("row")[i].as_py()): i for i in good[:4]}
        columns = self.identity["columns"]
        rows = read_rows(self.source, columns["state"], columns["key"])
        for row, _ in rows:
            if row.number > max(wanted, default=-1):
                return
            if row.number not in wanted:
                continue
            (answers,) = answer_batch(
                self.decider, [(row.state, list(self.named.values()))]
            )
            for name, answer in zip(self.named, _or_raise(answers), strict=True):
                then = first.column(f"{name}.p")[wanted[row.number]].as_py()
                gap = max(abs(a - b) for a, b in zip(then, answer.p, strict=True))
                if gap > 1e-3:
                    raise BulkError(
                        f"{self.parts}: {row.place} was answered otherwise by the run "
                        f"that was interrupted ({name} moves by {gap:.3f}): the policy "
                        "has changed; pass restart"
                    )

    # Rows to tables.

    def _answered(
        self, batches: Iterable[list[tuple[Row, int]]], on_error: str, bar: Any
    ) -> tuple[pa.Table, BaseException | None]:
        """One part, and what ended it early: what is answered is never lost."""
        lines: list[dict[str, Any]] = []
        asked, fault = list(self.named.values()), None
        end = time.monotonic() + PART_SECONDS
        try:
            for batch in batches:
                readable = [row for row, _ in batch if row.error is None]
                replies = iter(
                    answer_batch(self.decider, [(row.state, asked) for row in readable])
                )
                for row, at in batch:
                    reply = BulkError(row.error) if row.error else next(replies)
                    if isinstance(reply, ValueError) and on_error == "stop":
                        raise BulkError(
                            f"{self.source.name}: {row.place}: {reply} (the rows "
                            "before it are kept; pass on-error keep to go on past such "
                            "rows, or mend the file and restart)"
                        )
                    lines.append(self._line(row, reply))
                    bar.update(at - bar.n)
                if time.monotonic() > end:
                    break
        except BaseException as error:  # also Ctrl-C
            fault = error
        return pa.Table.from_pylist(lines, schema=self.schema), fault

    def _line(self, row: Row, reply: list[Answer] | ValueError) -> dict[str, Any]:
        """One row of the output; columns that are left out are null."""
        line: dict[str, Any] = {"row": row.number}
        line |= {"id": _shown_state(row.key), "state": _shown_state(row.state)}
        if isinstance(reply, ValueError):
            return line | {"error": _shown_state(str(reply))}
        for name, answer in zip(self.named, reply, strict=True):
            line[f"{name}.value"] = answer.value
            line[f"{name}.p"] = list(answer.p)
            line[f"{name}.confidence"] = answer.confidence
            for gate_name, gate in self.gates.get(name, {}).items():
                line[f"{name}.gate.{gate_name}"] = str(gate.decide(answer.confidence))
        return line

    def _write_part(self, number: int, table: pa.Table) -> None:
        buffer = io.BytesIO()
        pq.write_table(table, buffer, write_page_checksum=True)
        write_atomically(self._part(number), buffer.getvalue())

    def _merge(self, parts: int, rows: int) -> int:
        """Stream the parts into the output; the errors counted."""
        errors = written = 0
        # In the folder of the parts, where the next run finds what a kill leaves.
        with opened_atomically(self.target, self.parts) as file:
            with pq.ParquetWriter(file, self.schema) as writer:
                waiting: list[pa.Table] = []
                for number in range(parts):
                    table = pq.read_table(
                        self._part(number), page_checksum_verification=True
                    )
                    errors += len(table) - table.column("error").null_count
                    written += len(table)
                    waiting.append(table)
                    size = sum(t.nbytes for t in waiting)
                    if sum(map(len, waiting)) >= ROW_GROUP[0] or size >= ROW_GROUP[1]:
                        writer.write_table(pa.concat_tables(waiting))
                        waiting = []
                if waiting:
                    writer.write_table(pa.concat_tables(waiting))
            if written != rows:
                raise BulkError(
                    f"{self.parts}: {written:,} rows lie there and {rows:,} were "
                    "written: a part is gone; run again"
                )
        return errors

    def _clear(self) -> None:
        for path in _ours(self.parts):
            path.unlink()

    def _remove_parts(self) -> None:
        self._clear()
        _remove(self.parts)


def _ours(parts: Path) -> list[Path]:
    """What this module wrote into a folder; never a file of somebody else."""
    names = ("manifest.json", "[0-9]" * 8 + ".parquet", "*.part")
    return [path for name in names for path in parts.glob(name)]


def _remove(parts: Path) -> None:
    (parts / "lock").unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody else's file keeps the folder
        parts.rmdir()


def _or_raise(reply: Any) -> list[Answer]:
    if isinstance(reply, ValueError):
        raise BulkError(f"a row that was answered before cannot be now: {reply}")
    return reply


def _skip(rows: Iterator[Any], count: int, bar: Any) -> Iterator[Any]:
    for row, at in rows:
        if row.number >= count:
            yield row, at
        else:
            bar.update(at - bar.n)


def _chunks(
    rows: Iterator[Any], part_rows: int, batch_rows: int
) -> Iterator[Iterator[list[Any]]]:
    """Parts of at most `part_rows` rows, each in batches; a part is used up before the
    next begins."""
    for first in rows:
        part = itertools.chain([first], itertools.islice(rows, part_rows - 1))
        # Bound here: each part reads its own rows.
        yield iter(lambda p=part: list(itertools.islice(p, batch_rows)), [])
