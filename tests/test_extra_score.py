"""Scoring files: every row once, whatever happens; bad rows named; bounded memory."""

from __future__ import annotations

import csv
import errno
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock
from typer.testing import CliRunner

from rlcd_core.__main__ import app
from rlcd_core.calibrate import Temperature
from rlcd_core.decider import Decider
from rlcd_core.export import Export, export
from rlcd_core.extra import batching, bulk
from rlcd_core.extra.bulk import BulkError, score_file
from rlcd_core.gates import Gate
from rlcd_core.policy import DecisionHead
from rlcd_core.policy.letter import LetterPolicy
from tests.tiny_models import QUESTIONS, HashEncoder, letter_tokenizer, tiny_model

torch.set_num_threads(1)
NAMED = dict(zip(("team", "urgency", "page"), QUESTIONS, strict=True))
QUIET: dict[str, Any] = {"progress": False}


def decider(seed: int = 0) -> Decider:
    """A head whose answers depend on the state."""
    head = DecisionHead(HashEncoder(), 4)
    torch.nn.init.normal_(head.query, generator=torch.Generator().manual_seed(seed))
    return Decider(head)


def write_jsonl(path: Path, count: int, **extra: Any) -> Path:
    rows = [{"id": f"t{i}", "state": f"ticket {i}", **extra} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def left_beside(path: Path) -> list[str]:
    """What lies beside an output that should not."""
    return [p.name for p in path.parent.glob(f"{path.name}?*")]


# --- What comes out --------------------------------------------------------------


def test_answers_are_those_of_ask(tmp_path: Path) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", 23), tmp_path / "out.parquet"
    report = score_file(
        decider(), NAMED, source, target, part_rows=7, batch_rows=3, **QUIET
    )
    assert report == bulk.Report(23, 0, 0) and left_beside(target) == []
    found = rows_of(target)
    assert [row["row"] for row in found] == list(range(23))
    assert [row["id"] for row in found] == [f"t{i}" for i in range(23)]
    assert "state" not in found[0]
    for row in found:
        answers = decider().ask(f"ticket {row['row']}", NAMED)
        for name, answer in answers.items():
            assert row[f"{name}.p"] == pytest.approx(list(answer.p), abs=1e-6)
            assert row[f"{name}.value"] == answer.value
            assert row[f"{name}.confidence"] == pytest.approx(answer.confidence)
        assert row["error"] is None
    about = json.loads(pq.read_schema(target).metadata[b"rlcd"])
    assert about["questions"]["team"]["options"] == list(QUESTIONS[0].options)


def test_a_shared_prefix_policy_gives_the_same(tmp_path: Path) -> None:
    letter = Decider(LetterPolicy(tiny_model("llama"), letter_tokenizer()))
    source, target = write_jsonl(tmp_path / "in.jsonl", 3), tmp_path / "out.parquet"
    for asked in (NAMED, {"team": QUESTIONS[0]}):
        score_file(letter, asked, source, target, restart=True, **QUIET)
        for row in rows_of(target):
            answers = letter.ask(f"ticket {row['row']}", asked)
            for name, answer in answers.items():
                assert row[f"{name}.p"] == pytest.approx(list(answer.p), abs=1e-6)


def test_csv_jsonl_and_parquet_say_the_same(tmp_path: Path) -> None:
    states = ["plain", 'quoted "x", with a comma', "two\nlines", "ümläut \u2028 sep"]
    with (tmp_path / "a.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)  # Windows line ends, and a byte-order mark
        writer.writerow(["other", "text", "key"])
        writer.writerows([["x", state, f"k{i}"] for i, state in enumerate(states)])
    (tmp_path / "a.jsonl").write_text(
        "\ufeff"
        + "\n\n".join(
            json.dumps({"text": s, "key": f"k{i}"}, ensure_ascii=i % 2 == 0)
            for i, s in enumerate(states)
        ),
        encoding="utf-8",
    )
    table = pa.table({"text": states, "key": [f"k{i}" for i in range(4)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    found = []
    for kind in ("csv", "jsonl", "parquet"):
        target = tmp_path / f"{kind}.out.parquet"
        score_file(
            decider(),
            NAMED,
            tmp_path / f"a.{kind}",
            target,
            state="text",
            key="key",
            keep_state=True,
            **QUIET,
        )
        found.append(rows_of(target))
    assert found[0] == found[1] == found[2]
    assert [row["state"] for row in found[0]] == states
    assert [row["id"] for row in found[0]] == ["k0", "k1", "k2", "k3"]


def test_states_may_be_fields_or_turns_and_are_kept_without_an_id(
    tmp_path: Path,
) -> None:
    states = [{"tier": 1, "note": "down"}, [{"role": "user", "content": "Down!"}]]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    source.write_text("".join(json.dumps({"state": s}) + "\n" for s in states))
    score_file(decider(), NAMED, source, target, **QUIET)
    for row, state in zip(rows_of(target), states, strict=True):
        assert json.loads(row["state"]) == state and "id" not in row
        (answer,) = decider().ask(state, [QUESTIONS[0]])
        assert row["team.p"] == pytest.approx(list(answer.p), abs=1e-6)


def test_a_file_without_rows_gives_an_output_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    (tmp_path / "a.csv").write_text("state\n")
    pq.write_table(
        pa.table({"state": pa.array([], pa.string())}), tmp_path / "a.parquet"
    )
    for kind in ("jsonl", "csv", "parquet"):
        target = tmp_path / f"{kind}.out.parquet"
        report = score_file(decider(), NAMED, tmp_path / f"a.{kind}", target, **QUIET)
        assert report == bulk.Report(0, 0, 0) and rows_of(target) == []


# --- Bad rows --------------------------------------------------------------------

BAD_LINES = {
    3: (b"{", "no JSON"),
    4: (b'["x"]', "not an object"),
    5: (b'{"text": "x"}', "has no 'state'"),
    6: (b'{"state": " "}', "empty"),
    7: (b'{"state": 3}', "cannot be rendered"),
    8: (b'{"state": "\xff"}', "not UTF-8"),
    9: (rb'{"state": "\ud83d"}', "half a character"),
    10: (b"[" * 100_000, "no JSON"),
}


def bad_file(path: Path) -> Path:
    lines = [b'{"state": "good", "id": 1}', b'{"state": "too", "id": {"a": 1}}']
    lines += [line for line, _ in BAD_LINES.values()]
    lines.append(b'{"state": "last"}')
    path.write_bytes(b"\n".join(lines))
    return path


def test_a_bad_row_stops_with_its_line_or_is_kept(tmp_path: Path) -> None:
    source, target = bad_file(tmp_path / "in.jsonl"), tmp_path / "out.parquet"
    with pytest.raises(BulkError, match="in.jsonl: line 3: it is no JSON"):
        score_file(decider(), NAMED, source, target, **QUIET)
    assert not target.exists()
    # What came before is kept, and the same command with "keep" goes on from there.
    report = score_file(decider(), NAMED, source, target, on_error="keep", **QUIET)
    assert report == bulk.Report(11, 8, 2)
    found = rows_of(target)
    assert [row["id"] for row in found[:2]] == ["1", '{"a": 1}']
    for row, (_, said) in zip(found[2:10], BAD_LINES.values(), strict=True):
        assert said in row["error"], row
        assert row["team.value"] is None and row["team.p"] is None
    assert found[10]["error"] is None and found[10]["team.p"] is not None


def test_a_row_that_the_policy_refuses_leaves_its_batch_alone(tmp_path: Path) -> None:
    letter = Decider(
        LetterPolicy(tiny_model("llama"), letter_tokenizer(), max_tokens=120)
    )
    source, target = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    states = ["short", "word " * 200, "also short", "word " * 300, "end"]
    source.write_text("".join(json.dumps({"state": s}) + "\n" for s in states))
    for asked in ({"page": QUESTIONS[2]}, NAMED):
        report = score_file(
            letter, asked, source, target, on_error="keep", restart=True, **QUIET
        )
        assert report == bulk.Report(5, 2, 0)
        errors = [row["error"] for row in rows_of(target)]
        assert [e is None for e in errors] == [True, False, True, False, True]
        assert "limit is 120" in errors[1]


def test_csv_and_parquet_rows_are_named_too(tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    source = tmp_path / "a.csv"
    source.write_bytes(b'state,n\n"two\nlines",1\nx\n\xff,2\n"",3\n')
    with pytest.raises(BulkError, match="line 4: it has 1 fields and the header 2"):
        score_file(decider(), NAMED, source, target, **QUIET)
    score_file(decider(), NAMED, source, target, on_error="keep", **QUIET)
    errors = [row["error"] for row in rows_of(target)]
    assert errors[0] is None and "UTF-8" in errors[2] and "empty" in errors[3]
    broken = tmp_path / "b.csv"
    broken.write_text('state\n"open\nnever closed\n')
    with pytest.raises(BulkError, match="line 2"):
        score_file(decider(), NAMED, broken, tmp_path / "b.out.parquet", **QUIET)
    table = tmp_path / "c.parquet"
    pq.write_table(pa.table({"state": ["x", None]}), table)
    with pytest.raises(BulkError, match="row 2: state: a NoneType"):
        score_file(decider(), NAMED, table, tmp_path / "c.out.parquet", **QUIET)


def test_what_cannot_be_begun_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    good = write_jsonl(tmp_path / "in.jsonl", 2)
    (tmp_path / "in.txt").write_text("x")
    (tmp_path / "no.csv").write_text("text\nx\n")
    (tmp_path / "twice.csv").write_text("state,state\nx,y\n")
    (tmp_path / "semicolons.csv").write_text("id;state\n1;x\n")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and nothing PAR1")
    target = tmp_path / "out.parquet"
    for source, options, error, said in (
        (tmp_path / "in.txt", {}, BulkError, "must end in"),
        (tmp_path / "none.jsonl", {}, FileNotFoundError, "no file"),
        (tmp_path / "no.csv", {}, BulkError, "no column 'state'"),
        (tmp_path / "twice.csv", {}, BulkError, "same name"),
        (good, {"on_error": "skip"}, BulkError, "'stop' or 'keep'"),
        (good, {"part_rows": 0}, BulkError, "at least 1"),
        (tmp_path / "semicolons.csv", {}, BulkError, "separate the columns by commas"),
        (tmp_path / "damaged.parquet", {}, BulkError, "damaged.parquet: it cannot be"),
    ):
        with pytest.raises(error, match=said):
            score_file(decider(), NAMED, source, target, **options, **QUIET)
    with pytest.raises(BulkError, match="same file"):
        score_file(decider(), NAMED, good, good, **QUIET)
    with pytest.raises(ValueError, match="at least one"):
        score_file(decider(), {}, good, target, **QUIET)
    with pytest.raises(BulkError, match="end in .parquet"):  # or restart deletes it
        score_file(decider(), NAMED, good, tmp_path / "mine.jsonl", **QUIET)
    with pytest.raises(BulkError, match="two columns .* named 'a.gate.value'"):
        asked = {"a": QUESTIONS[2], "a.gate": QUESTIONS[2]}
        gated = decider()
        gates = {"a": Gate(act=0.5)}
        gated.exported = Export(gated.policy, {"a": QUESTIONS[2]}, None, gates, {})
        gated.exported.gates["value"] = gates["a"]
        gated.exported.manifest["sha256"] = "x"
        score_file(gated, asked, good, target, **QUIET)
    assert not target.exists() and left_beside(target) == []


def test_a_line_without_end_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_LINE", 100)
    source, target = tmp_path / "long.jsonl", tmp_path / "out.parquet"
    source.write_text('{"state": "x"}\n' + "y" * 1000 + '\n{"state": "z"}\n')
    with pytest.raises(BulkError, match="line 2: it is longer than 100"):
        score_file(decider(), NAMED, source, target, **QUIET)
    report = score_file(decider(), NAMED, source, target, on_error="keep", **QUIET)
    assert report == bulk.Report(3, 1, 1)
    assert [row["state"] for row in rows_of(target)] == ["x", None, "z"]
    # Where the next row begins in a CSV is not known, so that it ends there.
    table = tmp_path / "long.csv"
    for text in ("state\nx\n" + "y" * 1000, "state" * 100):
        table.write_text(text)
        with pytest.raises(BulkError, match="line . ?: it is longer than 100"):
            score_file(
                decider(), NAMED, table, target, on_error="keep", restart=True, **QUIET
            )


def test_an_id_in_a_later_row_is_not_lost(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    source.write_text('{"state": "x"}\n{"id": 0, "state": "y"}\n')
    score_file(decider(), NAMED, source, target, **QUIET)
    assert [row["id"] for row in rows_of(target)] == [None, "0"]


def test_damage_inside_a_parquet_file_names_the_file(tmp_path: Path) -> None:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"state": ["x" * 3000]}), source, compression="none")
    data = bytearray(source.read_bytes())
    data[10:40] = b"\xff" * 30
    source.write_bytes(data)
    with pytest.raises(BulkError, match="in.parquet: it cannot be read"):
        score_file(decider(), NAMED, source, target, **QUIET)


# --- Killed, and gone on ---------------------------------------------------------


def in_a_process(work: Callable[[], None]) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def check_complete(target: Path, count: int, expected: list[dict[str, Any]]) -> None:
    found = rows_of(target)
    assert [row["row"] for row in found] == list(range(count))
    assert found == expected
    assert left_beside(target) == []


def test_killed_at_random_moments_no_row_is_lost_or_doubled(tmp_path: Path) -> None:
    count = 1200
    source = write_jsonl(tmp_path / "in.jsonl", count)
    whole, target = tmp_path / "whole.parquet", tmp_path / "out.parquet"

    def score(path: Path) -> None:
        score_file(decider(), NAMED, source, path, part_rows=60, batch_rows=20, **QUIET)

    begun = time.perf_counter()
    score(whole)
    once = time.perf_counter() - begun
    rng, kills, parts_seen = np.random.default_rng(0), 0, set()
    while not target.exists():
        process = in_a_process(lambda: score(target))
        process.join(rng.uniform(0.05, 0.6) * once)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        parts = target.with_name(target.name + ".parts")
        parts_seen.add(len(list(parts.glob("*.parquet"))))
        assert kills < 200
    score(target)
    assert kills >= 2 and len(parts_seen) >= 2
    check_complete(target, count, rows_of(whole))


def test_killed_at_every_step_on_disk(tmp_path: Path) -> None:
    """The process dies at its k-th change on disk, for every k there is."""
    count = 25
    source = write_jsonl(tmp_path / "in.jsonl", count)
    options: dict[str, Any] = {"part_rows": 10, "batch_rows": 4, **QUIET}
    whole = tmp_path / "whole.parquet"
    score_file(decider(), NAMED, source, whole, **options)
    expected = rows_of(whole)

    def dying(target: Path, step: int) -> None:
        done = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal done
                done += 1
                if done == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **named)

            return call

        for name in ("replace", "fsync", "unlink", "rmdir", "chmod"):
            setattr(os, name, counted(getattr(os, name)))
        for name in ("unlink", "rmdir"):
            setattr(Path, name, counted(getattr(Path, name)))
        score_file(decider(), NAMED, source, target, **options)

    step, codes = 0, []
    while not codes or codes[-1] != 0:
        step += 1
        target = tmp_path / f"out{step}.parquet"
        process = in_a_process(lambda t=target, s=step: dying(t, s))
        process.join()
        codes.append(process.exitcode)
        assert codes[-1] in (0, -signal.SIGKILL) and step < 100
        report = score_file(decider(), NAMED, source, target, **options)
        assert report.rows == count
        check_complete(target, count, expected)
    # Manifest, three parts and the merged file take three steps each at least.
    assert len(codes) > 15


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("no memory")])
def test_what_is_answered_outlives_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", 30), tmp_path / "out.parquet"
    original, calls = bulk.answer_batch, 0

    def stopped(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise fault
        return original(*arguments)

    with monkeypatch.context() as patch, pytest.raises(type(fault)):
        patch.setattr(bulk, "answer_batch", stopped)
        score_file(decider(), NAMED, source, target, batch_rows=5, **QUIET)
    report = score_file(decider(), NAMED, source, target, **QUIET)
    assert report == bulk.Report(30, 0, 15)
    assert [row["row"] for row in rows_of(target)] == list(range(30))


def test_a_slow_policy_writes_its_parts_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PART_SECONDS", -1)
    sizes, writing = [], bulk._Work._write_part

    def wrote(self: Any, number: int, table: pa.Table) -> None:
        sizes.append(len(table))
        writing(self, number, table)

    monkeypatch.setattr(bulk._Work, "_write_part", wrote)
    source, target = write_jsonl(tmp_path / "in.jsonl", 23), tmp_path / "out.parquet"
    score_file(decider(), NAMED, source, target, batch_rows=5, **QUIET)
    assert sizes == [5, 5, 5, 5, 3]
    assert [row["row"] for row in rows_of(target)] == list(range(23))


def test_a_full_disk_names_the_file_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at its k-th write, for every k there is."""
    source = write_jsonl(tmp_path / "in.jsonl", 12)
    options: dict[str, Any] = {"part_rows": 5, **QUIET}
    real, step, faults = os.fsync, 0, 1
    while faults:
        step, faults, done = step + 1, 0, 0

        def full(handle: int, at: int = step) -> None:
            nonlocal done, faults
            done += 1
            if done == at:
                faults += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        target = tmp_path / f"out{step}.parquet"
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            try:
                score_file(decider(), NAMED, source, target, **options)
            except OSError as error:
                assert f"out{step}.parquet" in str(error)
        assert not list(tmp_path.glob("**/*.part"))
        report = score_file(decider(), NAMED, source, target, **options)
        kept = {1: 0, 2: 0, 3: 5, 4: 10}.get(step, 12)
        assert report == bulk.Report(12, 0, kept)
        assert [row["row"] for row in rows_of(target)] == list(range(12))
        assert left_beside(target) == []
    assert step == 6  # manifest, three parts, the output, and none


def test_a_loser_leaves_the_lock_of_the_winner(tmp_path: Path) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", 3), tmp_path / "out.parquet"
    parts = target.with_name(target.name + ".parts")
    parts.mkdir()
    with FileLock(parts / "lock"):
        for _ in range(2):  # the first must not take the lock's file away
            with pytest.raises(BulkError, match="another run"):
                score_file(decider(), NAMED, source, target, **QUIET)
        assert (parts / "lock").exists()


def interrupted(
    tmp_path: Path, count: int = 30, fail_at: int = 17
) -> tuple[Path, Path]:
    """A run that stopped at a bad row, its first rows kept in parts."""
    source, target = write_jsonl(tmp_path / "in.jsonl", count), tmp_path / "out.parquet"
    lines = source.read_text().splitlines()
    lines[fail_at] = "{"
    source.write_text("\n".join(lines))
    with pytest.raises(BulkError, match=f"line {fail_at + 1}"):
        score_file(decider(), NAMED, source, target, part_rows=5, **QUIET)
    return source, target


def test_another_input_question_or_policy_is_not_mixed_in(tmp_path: Path) -> None:
    source, target = interrupted(tmp_path)
    keep: dict[str, Any] = {"on_error": "keep", **QUIET}
    with pytest.raises(BulkError, match="different: questions"):
        score_file(decider(), {"page": QUESTIONS[2]}, source, target, **keep)
    with pytest.raises(BulkError, match="different: policy"):
        score_file(decider(1), NAMED, source, target, **keep)
    with pytest.raises(BulkError, match="different: columns"):
        score_file(decider(), NAMED, source, target, keep_state=True, **keep)
    text = source.read_text()
    source.write_text(text.replace("ticket 0", "ticket zero"))
    with pytest.raises(BulkError, match="different: input"):
        score_file(decider(), NAMED, source, target, **keep)
    source.write_text(text)
    assert score_file(decider(), NAMED, source, target, **keep).resumed == 17
    # The finished output is guarded the same way, and known again.
    with pytest.raises(BulkError, match="another run"):
        score_file(decider(1), NAMED, source, target, **keep)
    assert score_file(decider(), NAMED, source, target, **keep).resumed == 30
    report = score_file(decider(1), NAMED, source, target, restart=True, **keep)
    assert report == bulk.Report(30, 1, 0)
    other = tmp_path / "other.parquet"
    other.write_text("not a table")
    with pytest.raises(BulkError, match="no output of this command"):
        score_file(decider(), NAMED, source, other, **keep)
    assert other.read_text() == "not a table"


def test_a_setting_that_is_no_weight_is_noticed(tmp_path: Path) -> None:
    class Sharper(DecisionHead):
        def utilities(self, batch: Any) -> Any:
            return super().utilities(batch) * 1.5

    source, target = interrupted(tmp_path)
    changed = decider()
    changed.policy.__class__ = Sharper
    Sharper.__name__ = "DecisionHead"
    with pytest.raises(BulkError, match="line 1 was answered otherwise"):
        score_file(changed, NAMED, source, target, on_error="keep", **QUIET)


def test_damaged_parts_are_done_again(tmp_path: Path) -> None:
    for fault in ("cut", "flip", "gone", "swapped", "left"):
        folder = tmp_path / fault
        folder.mkdir()
        source, target = interrupted(folder)
        parts = target.with_name(target.name + ".parts")
        second = parts / "00000001.parquet"
        data = second.read_bytes()
        match fault:
            case "cut":
                second.write_bytes(data[: len(data) // 2])
            case "flip":
                place = len(data) // 8
                second.write_bytes(
                    data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]
                )
            case "gone":
                second.unlink()
            case "swapped":
                second.write_bytes((parts / "00000002.parquet").read_bytes())
            case "left":
                (parts / "00000009.parquet").write_bytes(data)
                (parts / "x.part").write_bytes(b"half")
        report = score_file(decider(), NAMED, source, target, on_error="keep", **QUIET)
        assert report == bulk.Report(30, 1, 17 if fault == "left" else 5), fault
        found = rows_of(target)
        assert [row["row"] for row in found] == list(range(30)), fault
        assert left_beside(target) == []
        for row in found[:16]:
            (answer,) = decider().ask(f"ticket {row['row']}", [QUESTIONS[0]])
            assert row["team.p"] == pytest.approx(list(answer.p), abs=1e-6)


def test_a_damaged_manifest_is_told(tmp_path: Path) -> None:
    source, target = interrupted(tmp_path)
    (target.with_name(target.name + ".parts") / "manifest.json").write_text("{")
    with pytest.raises(BulkError, match="manifest.json is damaged.*restart"):
        score_file(decider(), NAMED, source, target, **QUIET)


def test_files_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", 3), tmp_path / "out.parquet"
    parts = target.with_name(target.name + ".parts")
    parts.mkdir()
    (parts / "notes.txt").write_text("mine")
    score_file(decider(), NAMED, source, target, restart=True, **QUIET)
    assert (parts / "notes.txt").read_text() == "mine"
    assert [p.name for p in parts.iterdir()] == ["notes.txt"]


def test_two_runs_do_not_write_the_same_output(tmp_path: Path) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", 3), tmp_path / "out.parquet"
    parts = target.with_name(target.name + ".parts")
    parts.mkdir()
    with FileLock(parts / "lock"), pytest.raises(BulkError, match="another run"):
        score_file(decider(), NAMED, source, target, **QUIET)
    assert score_file(decider(), NAMED, source, target, **QUIET).rows == 3


def test_an_input_that_changes_under_way_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", 30), tmp_path / "out.parquet"
    original = bulk.answer_batch

    def meddling(*arguments: Any) -> Any:
        os.utime(source, ns=(1, 1))
        return original(*arguments)

    monkeypatch.setattr(bulk, "answer_batch", meddling)
    with pytest.raises(BulkError, match="changed while it was read"):
        score_file(decider(), NAMED, source, target, **QUIET)
    assert not target.exists()


# --- Bounded memory, and no trace --------------------------------------------------


def test_no_more_than_a_part_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", 100), tmp_path / "out.parquet"
    read, written, ahead = 0, 0, []
    reading, writing = bulk.read_rows, bulk._Work._write_part

    def counted(*arguments: Any) -> Any:
        nonlocal read
        for row in reading(*arguments):
            read += 1
            ahead.append(read - written)
            yield row

    def wrote(self: Any, number: int, table: pa.Table) -> None:
        nonlocal written
        writing(self, number, table)
        written += len(table)

    monkeypatch.setattr(bulk, "read_rows", counted)
    monkeypatch.setattr(bulk._Work, "_write_part", wrote)
    score_file(decider(), NAMED, source, target, part_rows=10, batch_rows=4, **QUIET)
    assert read == written == 100 and max(ahead) <= 10


def test_row_groups_of_the_output_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "ROW_GROUP", (20, 10**9))
    source, target = write_jsonl(tmp_path / "in.jsonl", 55), tmp_path / "out.parquet"
    score_file(decider(), NAMED, source, target, part_rows=10, **QUIET)
    metadata = pq.ParquetFile(target).metadata
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sizes == [20, 20, 15]


def test_a_forgetful_encoder_writes_nothing_and_remembers_little() -> None:
    class Counting(HashEncoder):
        fingerprint = "x"
        asked: list[str] = []

        def embed(self, texts: Any, **options: Any) -> Any:
            assert options == {"progress": False, "keep": False}
            self.asked += texts
            return super().embed(texts)

    inner = Counting()
    encoder = batching.Forgetful(inner, remember=3)  # type: ignore[arg-type]
    rows = encoder.embed(["a", "b", "a"])
    assert np.array_equal(rows, HashEncoder().embed(["a", "b", "a"]))
    encoder.embed(["a", "c", "d", "e"])
    encoder.embed(["e", "b"])
    assert inner.asked == ["a", "b", "c", "d", "e", "b"]
    assert len(encoder._known) == 3


def test_fingerprints_tell_policies_apart() -> None:
    head = decider().policy
    assert batching.fingerprint(head) == batching.fingerprint(decider().policy)
    assert batching.fingerprint(head) != batching.fingerprint(decider(1).policy)
    other = decider().policy
    other.encoder.fingerprint = "another encoder"
    assert batching.fingerprint(head) != batching.fingerprint(other)


# --- Exports and the command -----------------------------------------------------


def test_an_export_brings_gates_and_is_told_from_its_policy(tmp_path: Path) -> None:
    folders = []
    for name, temperature in (("warm", 2.0), ("hot", 2.01)):
        folders.append(tmp_path / name)
        export(
            LetterPolicy(tiny_model("llama"), letter_tokenizer()),
            folders[-1],
            questions={"team": QUESTIONS[0]},
            temperature=Temperature(temperature, "nll", 1.0, 1.0, False),
            gates={"act": Gate(act=0.5)},
        )
    source, target = write_jsonl(tmp_path / "in.jsonl", 8), tmp_path / "out.parquet"
    command = ["score", str(source), str(target), "--policy"]
    result = CliRunner().invoke(app, [*command, str(folders[0])])
    assert result.exit_code == 0, result.stderr
    for row in rows_of(target):
        said = "act" if row["team.confidence"] >= 0.5 else "escalate"
        assert row["team.gate.act"] == said
    result = CliRunner().invoke(app, [*command, str(folders[1])])
    assert result.exit_code == 1 and "different: export" in result.stderr


def test_the_command_scores_and_refuses_in_one_line(tmp_path: Path) -> None:
    model = tmp_path / "model"
    tiny_model("llama").save_pretrained(model)
    letter_tokenizer().save_pretrained(model)
    source, target = bad_file(tmp_path / "in.jsonl"), tmp_path / "out.parquet"
    command = ["score", str(source), str(target), "--noul", "page=Page?"]
    command += ["--policy", str(model)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("rlcd: in.jsonl: line 3: it is no JSON")
    result = CliRunner().invoke(app, [*command, "--on-error", "keep"])
    assert result.exit_code == 0, result.stderr
    assert "11 rows, 2 by an earlier run, 8 errors" in result.stdout
    assert len(rows_of(target)) == 11
