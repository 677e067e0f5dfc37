"""Records: found by configuration, whole after a kill, exact for prose."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

from rlcd_core.files import write_atomically
from rlcd_core.records import (
    RunRecord,
    Store,
    config_hash,
    metric_values,
    save_numbers,
    thin,
)


def record(seed: int, arm: str = "rlcd") -> RunRecord:
    return RunRecord(
        family="toy",
        arm=arm,
        seed=seed,
        config={"arm": arm, "seed": seed},
        metrics={"test": {"brier": 0.25}},
        used={"outcomes": 10.0},
    )


def test_store_finds_by_configuration_and_gathers(tmp_path) -> None:
    store = Store("toy", tmp_path / "results")
    p = np.array([[0.2, 0.8], [0.5, 0.5]])
    store.add(record(1), p)
    store.add(record(0))
    assert [r.seed for r in store.records()] == [0, 1]
    assert store.find({"arm": "rlcd", "seed": 1}) == record(1)
    assert store.find({"seed": 1, "arm": "rlcd"}) == record(1)
    assert store.find({"arm": "rlcd", "seed": 2}) is None
    assert store.gather() == 2
    assert not list(store.scratch.glob("*"))
    fresh = Store("toy", tmp_path / "results")
    assert fresh.records() == [record(0), record(1)]
    # float16 holds 11 bits: relative error below 2^-11, renormalised.
    np.testing.assert_allclose(fresh.predictions(record(1)), p, rtol=1e-3)
    np.testing.assert_allclose(fresh.predictions(record(1)).sum(-1), 1)
    with pytest.raises(KeyError, match="no predictions of arm 'rlcd', seed 0"):
        fresh.predictions(record(0))
    with pytest.raises(KeyError, match="file is missing"):
        Store("other", tmp_path / "results").predictions(record(0))


def test_gather_keeps_only_what_is_asked(tmp_path) -> None:
    store = Store("toy", tmp_path / "results")
    for seed in range(3):
        store.add(record(seed), np.eye(2))
    store.gather()
    store.add(record(7), np.eye(2))
    assert store.gather(keep=[record(1).key, record(7).key]) == 2
    assert [r.seed for r in store.records()] == [1, 7]
    np.testing.assert_allclose(store.predictions(record(1)), np.eye(2))


def test_gathering_again_changes_no_byte(tmp_path) -> None:
    # Thirds in float16 do not sum to 1: normalised and rounded again, they drift.
    p = np.random.default_rng(0).dirichlet(np.full(3, 0.3), 4000)
    Store("toy", tmp_path / "results").add(record(0), p)
    found = []
    for _ in range(3):
        Store("toy", tmp_path / "results").gather()
        found.append((tmp_path / "results" / "toy.npz").read_bytes())
    assert found[0] == found[1] == found[2]


def test_a_run_that_ends_while_others_are_gathered_is_kept(
    tmp_path, monkeypatch
) -> None:
    store = Store("toy", tmp_path / "results")
    store.add(record(0), np.eye(2))

    def slow(path, data):
        write_atomically(path, data)
        if path.suffix == ".jsonl":  # another process, before the scratch is cleared
            monkeypatch.undo()
            store.add(record(1), np.eye(2))

    monkeypatch.setattr("rlcd_core.records.write_atomically", slow)
    assert store.gather() == 1
    assert [r.seed for r in store.records()] == [0, 1]
    assert store.gather() == 2
    assert store.predictions(record(1)).tolist() == np.eye(2).tolist()
    assert not list(store.scratch.glob("*"))


def test_of_two_merges_at_once_none_loses_the_others_records(
    tmp_path, monkeypatch
) -> None:
    first, second = (Store("toy", tmp_path / "results") for _ in range(2))
    first.add(record(0))
    has_read, may_write = Event(), Event()
    read = first.records

    def slowly() -> list[RunRecord]:
        rows = read()
        has_read.set()
        assert may_write.wait(30)
        return rows

    monkeypatch.setattr(first, "records", slowly)
    with ThreadPoolExecutor() as pool:
        one = pool.submit(first.gather)
        assert has_read.wait(30)
        second.add(record(1))
        two = pool.submit(second.gather)
        # Without the lock the second ends here, and the first overwrites it.
        with pytest.raises(TimeoutError):
            two.result(timeout=0.3)
        may_write.set()
        assert (one.result(30), two.result(30)) == (1, 2)
    assert [r.seed for r in second.records()] == [0, 1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda row: row.pop("metrics"), "metrics"),
        (lambda row: row.pop("key"), "key"),
        # Filled in by default, this machine would pass for the one that ran.
        (lambda row: row.pop("hardware"), "no hardware"),
        (lambda row: (row.pop("code"), row.pop("versions")), "no code, versions"),
        (lambda row: row.update(odd=1), "odd"),
        (lambda row: row["config"].update(seed=9), "changed after the run"),
    ],
)
def test_damaged_records_name_file_and_line(tmp_path, change, reason) -> None:
    rows = [record(0).to_dict(), record(1).to_dict()]
    change(rows[1])
    path = tmp_path / "toy.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=f"toy.jsonl, line 2: .*{reason}"):
        Store("toy", tmp_path).records()
    path.write_text(json.dumps(rows[0])[:60])
    with pytest.raises(ValueError, match="line 1: not a whole run record"):
        Store("toy", tmp_path).records()


def test_a_missing_metric_says_what_there_is() -> None:
    assert metric_values([record(0)], "rlcd", "brier").tolist() == [0.25]
    with pytest.raises(KeyError, match="no metric 'ece' of split 'test'.*brier"):
        metric_values([record(0)], "rlcd", "ece")
    with pytest.raises(KeyError, match="split 'val'"):
        metric_values([record(0)], "rlcd", "brier", "val")


def test_hash_ignores_order_but_no_value() -> None:
    a = config_hash({"x": 1, "y": {"z": 0.1}})
    assert a == config_hash({"y": {"z": 0.1}, "x": 1})
    assert a != config_hash({"y": {"z": 0.10000001}, "x": 1})


def test_numbers_merge_and_refuse_what_cannot_be_shown(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RLCD_NUMBERS_DIR", str(tmp_path))
    save_numbers("01_x", {"a": np.float64(0.5)})
    save_numbers("01_x", {"b": 3, "a": 0.25})
    assert json.loads((tmp_path / "01_x.json").read_text()) == {"a": 0.25, "b": 3}
    with pytest.raises(ValueError, match="c is nan"):
        save_numbers("01_x", {"c": float("nan")})


def test_thin_takes_block_means() -> None:
    rows = [{"loss": float(i)} for i in range(10)]
    assert thin(rows, 2) == [{"loss": 2.0}, {"loss": 7.0}]
    assert thin([], 2) == []
    assert len(thin(rows, 60)) == 10
