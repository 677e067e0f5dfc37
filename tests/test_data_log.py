"""The outcome log: three formats, every fault named."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from rlcd_core.data.log import LogError, read_log
from rlcd_core.schema import Noul

HEAD = "id,state,question,options,type,action,outcome,propensity,label,decided_at"
GOOD = [
    'a,"late, again",Which team?,"[""billing"", ""security""]",choice,billing,1,0.5,,'
    "2026-01-02T03:04:05+00:00",
    'b,down,Which team?,"[""billing"", ""security""]",choice,security,,,,',
    'c,odd,Which team?,"[""billing"", ""security""]",choice,,,,security,',
]


def write(path: Path, rows: list[str], newline: str = "\n", mark: str = "") -> Path:
    path.write_bytes((mark + newline.join([HEAD, *rows]) + newline).encode())
    return path


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_with_mark_and_line_ends(tmp_path: Path, newline: str, mark: str) -> None:
    rows = list(read_log(write(tmp_path / "log.csv", GOOD, newline, mark)))
    first, unresolved, labelled = rows
    assert (first.id, first.action, first.outcome) == ("a", 0, 1.0)
    assert first.propensity == 0.5 and first.state == "late, again"
    assert first.decided_at is not None and first.decided_at.year == 2026
    assert unresolved.action == 1 and unresolved.outcome is None
    assert labelled.label == 1 and labelled.action is None


def test_a_bool_of_json_is_an_option_of_a_noul(tmp_path: Path) -> None:
    row = {"id": "a", "state": "x", "question": "Q?", "type": "noul", "outcome": 1}
    path = tmp_path / "log.jsonl"
    for action in (True, False):
        path.write_text(json.dumps(row | {"action": action}) + "\n")
        (decision,) = read_log(path)
        assert decision.action == (0 if action else 1)


def test_jsonl_and_parquet_agree_with_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    rows = [
        {
            "id": "a",
            "state": "x",
            "question": "Q?",
            "options": ["u", "v"],
            "type": "choice",
            "action": "v",
            "outcome": 0,
            "propensity": 0.25,
        },
        {
            "id": "b",
            "state": "y",
            "question": "Q?",
            "options": ["u", "v"],
            "type": "choice",
            "action": "u",
            "outcome": None,
            "propensity": None,
        },
    ]
    lines = tmp_path / "log.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    table = tmp_path / "log.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    assert list(read_log(lines)) == list(read_log(table))
    assert [d.outcome for d in read_log(table)] == [0.0, None]


def test_named_questions_and_derived_outcome(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"id": 1, "state": {"k": 1}, "question": "page", "action": "true",'
        ' "label": "false", "probabilities": [0.75, 0.25]}\n'
    )
    (row,) = read_log(path, {"page": Noul("Page the engineer?")})
    assert row.question == Noul("Page the engineer?") and row.outcome == 0.0
    assert row.probabilities == (0.75, 0.25)


def test_spaces_about_ids_and_numbers_are_none_of_theirs(tmp_path: Path) -> None:
    blank = GOOD[0].replace(",1,0.5,", ", , 0.5 ,", 1)
    (row,) = read_log(write(tmp_path / "log.csv", [blank]))
    assert row.outcome is None and row.propensity == 0.5
    same = GOOD[0].replace("a,", "a ,", 1)
    with pytest.raises(LogError, match="make ids unique"):
        list(read_log(write(tmp_path / "twice.csv", [GOOD[0], same])))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",1,0.5,", ",1,0,", "propensity 0.0 must be in (0, 1]"),
        (",1,0.5,", ",1,1.2,", "propensity 1.2 must be"),
        (",1,0.5,", ",1,nan,", "propensity nan must be"),
        (",1,0.5,", ",1,often,", "propensity 'often' is no number; leave it empty"),
        (",1,0.5,", ",1,1e-300,", "propensity 1e-300 must be in (0, 1] and at least"),
        (",1,0.5,", ",NA,0.5,", "outcome 'NA' is no number; leave it empty"),
        (",1,0.5,", ",2,0.5,", "outcome 2.0 must be 0, 1, or empty"),
        (",billing,1", ",sales,1", "action 'sales' is none of the options"),
        (",billing,1", ",,1", "an outcome needs its action"),
        (",1,0.5,,", ",1,0.5,security,", "outcome 1 contradicts the label 'security'"),
        (",1,0.5,,", ",0,0.5,billing,", "outcome 0 contradicts the label 'billing'"),
        ("a,", ",", "no id"),
        ("2026-01-02T03:04:05+00:00", "yesterday", "yesterday"),
        ('"[""billing"", ""security""]"', '"[""billing""]"', "at least 2"),
        ("choice", "tick", "kind is 'tick'"),
        ('"late, again"', "   ", "state: it is empty"),
        ('"[""billing"", ""security""]"', "5", "options '5': write a JSON list"),
        ('"[""billing"", ""security""]"', "null", "write a JSON list"),
        ('"[""billing"", ""security""]"', "[billing", "write a JSON list"),
        ('"[""billing"", ""security""]"', '"{""a"": 1}"', "write a JSON list"),
    ],
)
def test_faults_name_row_and_mend(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = write(tmp_path / "log.csv", [GOOD[0].replace(old, new, 1)])
    with pytest.raises(LogError) as caught:
        list(read_log(path))
    assert "log.csv, row 1" in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": 5}, "options 5: write a JSON list"),
        ({"question": ["Q"]}, "must be text or a name"),
        ({"state": {}}, "state: it is empty"),
        ({"state": 5}, "cannot be rendered"),
        ({"probabilities": 0.5}, "write a JSON list"),
        ({"probabilities": [None, 1]}, "probability None is no number"),
        ({"probabilities": [-0.5, 1.5]}, ">= 0, and sum to 1"),
        ({"probabilities": []}, "write a JSON list|one per option"),
    ],
)
def test_faults_of_json_lines_name_the_row(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    row = {"id": 1, "state": "s", "question": "Q", "options": ["x ", "y"], "label": "x"}
    path = tmp_path / "log.jsonl"
    path.write_text("\n" + json.dumps(row) + "\n")
    assert next(read_log(path)).label == 0  # outer spaces of an option do not count
    path.write_text(json.dumps({**row, **change}))
    with pytest.raises(LogError, match=f"log.jsonl, row 1 .*({message})"):
        list(read_log(path))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"id": 1', "a.jsonl, row 1: cannot be read"),
        ("a.jsonl", b"[1]\n", "a.jsonl, row 1: .*no JSON object"),
        ("a.csv", f"{HEAD}\n{GOOD[1]}".encode("utf-16"), "save the file as UTF-8"),
        ("a.csv", f"{HEAD}\ncaf\xe9".encode("latin-1"), "save the file as UTF-8"),
        ("a.parquet", b"no parquet", "a.parquet, row 1: cannot be read"),
        ("a.jsonl", b'{"id": ' + b"[" * 5000, "a.jsonl, row 1: cannot be read"),
        ("a.csv", b"id;state;question\n1;x;y\n", "separate the columns by commas"),
        ("a.csv", b"id,text,question\n1,x,y\n", "has no 'state', only ..id', 'text'"),
        ("a.csv", b"id,state,question,id\n1,x,y,2\n", "have the same name"),
        # A row that was cut off is not one whose outcome is still open.
        ("a.csv", f"{HEAD}\n{GOOD[1][:60]}".encode(), "fields than the header"),
        ("a.csv", f"{HEAD}\na,b,c,d,e\n".encode(), "more or fewer fields"),
        ("a.csv", f'{HEAD}\na,"open\n{GOOD[1]}'.encode(), "cannot be read"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(LogError, match=message):
        list(read_log(tmp_path / name))


def test_duplicate_id_and_unknown_format(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", [GOOD[0], GOOD[1], GOOD[0]])
    with pytest.raises(LogError, match="row 3 .*earlier row has this id"):
        list(read_log(path))
    with pytest.raises(LogError, match="is no log"):
        list(read_log(tmp_path / "log.xlsx"))


def test_memory_does_not_grow_with_the_states(tmp_path: Path) -> None:
    long = "x" * 20_000
    rows = [GOOD[1].replace("b,down", f"r{k},{long}") for k in range(600)]
    path = write(tmp_path / "log.csv", rows)  # 12 MB
    tracemalloc.start()
    assert sum(1 for _ in read_log(path)) == 600
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5e6
