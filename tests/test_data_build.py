"""Converters, hub loaders, built splits, lock, card and command line."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from rlcd_core.__main__ import app
from rlcd_core.data import build as B
from rlcd_core.data import convert, hub
from rlcd_core.data.items import Item, from_jsonl
from rlcd_core.data.manifest import (
    HashMismatch,
    Manifest,
    SourceError,
    Unreachable,
    load_manifest,
)
from rlcd_core.data.nota import NOTA
from rlcd_core.data.split import check_no_leak
from rlcd_core.schema import Noul

# --- converters of packaged sources, on lines in the sources' own format ------------


def test_trec_lines(tmp_path: Path) -> None:
    (tmp_path / "question_labels.txt").write_text(
        "DESC:manner How did serfdom end ?\nNUM:date When was that ?\n"
    )
    coarse = list(convert.READERS["trec"](tmp_path))
    assert coarse == [
        ("0", "How did serfdom end ?", "DESC"),
        ("1", "When was that ?", "NUM"),
    ]
    fine = list(convert.READERS["trec_fine"](tmp_path))
    assert [row[2] for row in fine] == ["DESC:manner", "NUM:date"]


def test_sms_broken_quoting(tmp_path: Path) -> None:
    (tmp_path / "sms-spam.csv").write_text(
        ',spam,text\n0,0,"Go, now"\n1,1,Win ""MIX"" now\nham\tOk... "yes"\n'
        '2,0,"Speak only ""then"" - night'
    )
    rows = [row[1:] for row in convert.READERS["sms_spam"](tmp_path)]
    assert rows == [
        ("Go, now", "0"),
        ('Win "MIX" now', "1"),
        ('Ok... "yes"', "ham"),
        ('"Speak only "then" - night', "0"),
    ]
    spam = convert.make_item(load_manifest("sms_spam"), "1", "x", "spam", {})
    assert isinstance(spam.question, Noul) and spam.label == 0  # true is option 0


def test_glosses_and_mails(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(
        '  1 licence line\n00001740 03 n 01 entity 0 000 | that which is; "an x"  \n'
    )
    assert list(convert.READERS["wordnet"](tmp_path)) == [
        ("00001740", "that which is", "03")
    ]
    (tmp_path / "mails/spam-1").mkdir(parents=True)
    (tmp_path / "mails/spam-1/7.txt").write_bytes(
        b"From: a\nX-Spam: yes\nSubject: Win now\n\nBody \xff here\n\nmore"
    )
    ((key, text, label),) = convert.READERS["spam_assassin"](tmp_path)
    assert (key, label) == ("spam-1/7", "spam-1")
    assert text.startswith("Subject: Win now\n\nBody ") and text.endswith("more")
    assert "X-Spam" not in text  # a header that would give the answer away


def test_unknown_labels_and_row_counts_are_refused() -> None:
    manifest = load_manifest("trec")
    with pytest.raises(SourceError, match="unknown label 'ODD' in row 7"):
        convert.make_item(manifest, "7", "Why ?", "ODD", {})
    with pytest.raises(SourceError, match="3 rows, the manifest says 15452"):
        convert.check_rows(manifest, "all", 3)
    long = convert.make_item(manifest, "7", "x" * 4000, "NUM", {})
    assert len(str(long.state)) == convert.MAX_CHARS


# --- hub sources: the real `datasets` code path on files of the same schema ---------


def write_hub(
    folder: Path,
    manifest: Manifest,
    splits: dict[str, list[dict[str, Any]]],
    kind: str = "parquet",
    names: list[str] | None = None,
) -> Manifest:
    datasets = pytest.importorskip("datasets")
    root = folder / manifest.name
    root = root / manifest.config if manifest.config else root
    root.mkdir(parents=True)
    for split, rows in splits.items():
        table = datasets.Dataset.from_list(rows)
        if names is not None:
            label = datasets.ClassLabel(names=names)
            table = table.cast_column(manifest.read["label"], label)
        if kind == "parquet":
            table.to_parquet(root / f"{split}-00000-of-00001.parquet")
        else:
            table.to_json(root / f"{split}.jsonl")
    return replace(
        manifest,
        package=str(root),
        config="",
        rows={split: len(rows) for split, rows in splits.items()},
    )


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `datasets` cache of these tests is thrown away with them."""
    try:
        import datasets
    except ImportError:
        return
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()


def spelt(k: int) -> str:
    return "".join(chr(97 + int(digit)) for digit in str(k))


def rows_of(name: str, n: int) -> tuple[list[dict[str, Any]], list[str] | None]:
    """n rows in the schema of a hub source, and its ClassLabel names if it has any."""
    m = load_manifest(name)
    rows: list[dict[str, Any]] = []
    for k in range(n):
        own = spelt(k)  # letters: digits are masked when near duplicates are sought
        text = f"words of {name} alpha{own} beta{own} gamma{own} row {k}"
        match name:
            case "bitext":
                row = {
                    "flags": "B",
                    "instruction": text + " {{Order Number}}",
                    "category": "ORDER",
                    "intent": m.labels[k % 27],
                    "response": "r",
                }
            case "mnli":
                row = {
                    "premise": text,
                    "hypothesis": f"h{k} {{}}",
                    "label": k % 3,
                    "genre": "fiction",
                }
            case "sst5":
                row = {"text": text, "label": k % 5, "label_text": m.labels[k % 5]}
            case "boolq":
                row = {"question": f"is it {k}", "answer": k % 2 == 0, "passage": text}
            case "mmlu":
                row = {
                    "question": text,
                    "subject": "s",
                    "answer": k % 4,
                    "choices": [f"a{k}", "b", "c", "d"],
                }
            case "arc_easy":
                letters = list("1234" if k % 2 else "ABCD")
                row = {
                    "id": str(k),
                    "question": text,
                    "answerKey": letters[k % 4],
                    "choices": {"text": [f"a{k}", "b", "c", "d"], "label": letters},
                }
            case "clinc":
                row = {"text": text, "intent": k % 151}
            case _:
                row = {"text": text, "label": k % len(m.labels)}
        rows.append(row)
    typed = name not in ("bitext", "sst5", "boolq", "arc_easy")
    return rows, list(m.labels) if typed else None


HUB = [n for n in B.data_names() if load_manifest(n).registry == "hub"]


@pytest.mark.parametrize("name", HUB)
def test_every_hub_source_loads_through_datasets(name: str, tmp_path: Path) -> None:
    manifest = load_manifest(name)
    rows, names = rows_of(name, 12)
    kind = "jsonl" if name in ("sst5", "boolq") else "parquet"
    local = write_hub(tmp_path, manifest, {s: rows for s in manifest.rows}, kind, names)
    split = next(iter(manifest.rows))
    found, refused = hub.read_hub(local, {split: 100})
    assert refused == 0 and len(found[split]) == 12
    for item in found[split]:
        k = int(item.id.rpartition("-")[2])
        assert f"alpha{spelt(k)} " in str(item.state)
        size = len(item.question.options)
        want = {"boolq": k % 2, "mmlu": k % 4, "arc_easy": k % 4}.get(name)
        assert item.label == (want if want is not None else k % size)
        if name == "mnli":
            assert item.question.text.endswith(f"h{k} {{}}")
        if name == "boolq":
            assert item.question == Noul(f"is it {k}?")
        if name in ("mmlu", "arc_easy"):
            assert item.question.options[0] == f"a{k}"


def test_hub_refusals_name_the_difference(tmp_path: Path) -> None:
    manifest = load_manifest("ag_news")
    rows, names = rows_of("ag_news", 8)
    local = write_hub(tmp_path / "a", manifest, {"train": rows}, names=names)
    with pytest.raises(SourceError, match="has 8 rows, the manifest says 9"):
        hub.load_hub(replace(local, rows={"train": 9}), "train")
    with pytest.raises(SourceError, match=r"columns \['title'\] are missing"):
        hub.load_hub(replace(local, columns=("text", "title")), "train")
    turned = ["Sports", "World", "Business", "Sci/Tech"]
    local = write_hub(tmp_path / "b", manifest, {"train": rows}, names=turned)
    with pytest.raises(SourceError, match="label names or their order differ"):
        hub.load_hub(local, "train")
    with pytest.raises(SourceError, match="could not load"):
        hub.load_hub(local, "test")


def test_label_text_and_unlabelled_rows(tmp_path: Path) -> None:
    manifest = load_manifest("sst5")
    rows, _ = rows_of("sst5", 5)
    rows[2]["label"] = -1  # unlabelled, as hidden test sets have it
    local = write_hub(tmp_path / "a", manifest, {"train": rows})
    found, refused = hub.read_hub(local, {"train": 9})
    assert (len(found["train"]), refused) == (4, 1)
    rows[1]["label_text"] = "positive"  # id 1 is "negative"
    local = write_hub(tmp_path / "b", manifest, {"train": rows})
    with pytest.raises(SourceError, match="id 1 is called 'positive'"):
        hub.read_hub(local, {"train": 9})


def test_a_converted_model_does_not_hide_a_changed_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from rlcd_core import __main__ as command

    def changed(name: str) -> Path:
        raise SourceError(f"{name}: the bytes differ")

    monkeypatch.setattr(command, "fetch", changed)
    monkeypatch.setattr("rlcd_core.policy.loading.smollm2_directory", Path)
    run = CliRunner().invoke
    assert run(app, ["data", "build", "smollm2"]).exit_code == 0
    result = run(app, ["data", "verify", "smollm2"])
    assert result.exit_code == 1 and "the bytes differ" in result.output


def test_loading_scripts_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    root = tmp_path / "scripted"
    root.mkdir()
    (root / "scripted.py").write_text("raise SystemExit('this was run')\n")
    local = replace(load_manifest("ag_news"), package=str(root), rows={"train": 1})
    with pytest.raises(SourceError, match="pin a revision that holds Parquet"):
        hub.load_hub(local, "train")


def test_an_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def down(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", down)
    with pytest.raises(Unreachable, match="offline, connect it.*HF_HOME"):
        hub.load_hub(load_manifest("yelp"), "test")

    def odd(*_: object, **__: object) -> None:
        raise ValueError("no file fits the description")

    monkeypatch.setattr(datasets, "load_dataset", odd)
    with pytest.raises(SourceError, match="HF_HOME.*description"):  # it is no script
        hub.load_hub(load_manifest("yelp"), "test")


def test_hub_build_carves_caps_and_drops_leaks(tmp_path: Path) -> None:
    rows, names = rows_of("banking77", 300)
    test_rows, _ = rows_of("banking77", 320)
    test_rows = test_rows[290:]  # ten of them are train rows again
    # Five more say nearly what a train row says.
    test_rows += [{**row, "text": row["text"] + " please"} for row in rows[10:15]]
    rows += [dict(rows[0]), {**rows[1], "label": 5}]  # a repeat and a contradiction
    manifest = load_manifest("banking77")
    local = write_hub(
        tmp_path, manifest, {"train": rows, "test": test_rows}, names=names
    )
    built = B.build(local, per_source=240)
    assert {s: len(v) for s, v in built.splits.items()} == {
        "train": 240,
        "val": 30,
        "test": 20,
    }
    assert built.dropped == {"conflicting": 2, "leak": 5, "repeated": 11}
    assert built.near_duplicates == 5
    check_splits(built)


# --- built splits -------------------------------------------------------------------


def check_splits(built: B.Built) -> None:
    rows = [(i, s) for s, items in built.splits.items() for i in items]
    texts = [str(item.state) for item, _ in rows]
    order = list(B.SPLITS)
    check_no_leak(texts, [i.group for i, _ in rows], [order.index(s) for _, s in rows])


def labelled(texts: list[str]) -> list[Item]:
    manifest = load_manifest("trec")
    return [
        convert.make_item(manifest, str(k), text, "NUM", {})
        for k, text in enumerate(texts)
    ]


def test_repeats_and_conflicts() -> None:
    items = labelled(["a b", "a b", "c d", "c d", "e f"])
    items[3] = replace(items[3], label=0)
    dropped: Counter[str] = Counter()
    kept = B._without_repeats(items, dropped)
    assert kept == [0, 4]
    assert dropped == {"repeated": 1, "conflicting": 2}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source "trec" of 200 rows, near duplicates among them, with its own lock."""
    texts = [f"what is the x{spelt(k)} of y{spelt(k)} worth" for k in range(100)]
    texts += [f"{text} now" for text in texts]
    monkeypatch.setattr(B, "read_packaged", lambda _: {"all": labelled(texts)})
    monkeypatch.setattr(B, "manifest_dir", lambda: tmp_path)
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_build_lock_and_reload(small: Path) -> None:
    first = B.build_and_store("trec")
    assert not (small / "lock.yaml").exists()  # only a deliberate act writes the lock
    assert first.near_duplicates > 0
    check_splits(first)
    assert B.build_and_store("trec", update_lock=True) == first
    lock = yaml.safe_load((small / "lock.yaml").read_text())
    assert lock["trec"]["splits"] == first.summary()["splits"]
    assert B.build_and_store("trec") == first  # from the cache
    assert B.build_and_store("trec", fresh=True) == first
    assert B.load_items("trec", "val") == first.splits["val"]
    with pytest.raises(ValueError, match="split must be one of"):
        B.load_items("trec", "dev")


def test_other_bytes_are_refused_with_both_hashes(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = B.build_and_store("trec", update_lock=True).summary()["splits"]
    monkeypatch.setattr(B, "read_packaged", lambda _: {"all": labelled(["changed"])})
    stored = small / "cache/built/trec/train.jsonl"
    before = stored.read_bytes()
    with pytest.raises(HashMismatch) as caught:
        B.build_and_store("trec", fresh=True)
    assert good["train"]["sha256"] in str(caught.value)
    assert "found" in str(caught.value) and "--update-lock" in str(caught.value)
    assert stored.read_bytes() == before  # the good build stays
    # A changed byte in the built cache is not used: the source is built again.
    stored.write_bytes(before.replace(b"worth", b"dirt", 1))
    with pytest.raises(HashMismatch):
        B.build_and_store("trec")


def test_mixture_shows_options_as_the_protocol_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [f"kind {k}" for k in range(400)]
    items = labelled(texts)

    def stored(name: str) -> B.Built:
        mine = [replace(item, source=name) for item in items]
        return B.Built(name, {split: mine for split in B.SPLITS}, {}, 0)

    monkeypatch.setattr(B, "build_and_store", stored)
    mixed = B.mix(["trec", "trec_fine"], per_source=160, seed=3)
    assert {s: len(v) for s, v in mixed.items()} == {
        "train": 320,
        "val": 40,
        "test": 40,
    }
    assert mixed == B.mix(["trec_fine", "trec"], per_source=160, seed=3)
    assert mixed != B.mix(["trec", "trec_fine"], per_source=160, seed=4)
    train = mixed["train"]
    share = np.mean([NOTA in i.question.options for i in train])
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(train))
    assert len({i.label for i in train}) > 3  # shuffled: the label moved
    assert {i.source for i in train[:20]} == {"trec", "trec_fine"}
    assert sorted(B.MIXTURES["protocol"][0]) == B.MIXTURES["protocol"][0]
    assert len(B.MIXTURES["protocol"][0]) * B.MIXTURES["protocol"][1] == 64_000


def test_card_lists_every_source_from_manifest_and_lock() -> None:
    text = B.card(B.data_names())
    for name in B.data_names():
        assert f"\n| {name} | " in text
    assert "8,484 / 1,060 / 1,061" in text and "Hutto" not in text
    assert "not built here" in text and "50: 5,380" in text
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 2
    for table in tables:
        # A pipe in a title would break the table.
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_command_line(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner().invoke
    result = run(app, ["data", "build", "trec"])
    assert result.exit_code == 0 and "NOT in lock.yaml yet" in result.output
    result = run(app, ["data", "build", "trec", "--update-lock"])
    assert result.exit_code == 0 and "as locked" in result.output
    assert run(app, ["data", "verify", "trec"]).exit_code == 0
    monkeypatch.setattr(B, "read_packaged", lambda _: {"all": labelled(["changed"])})
    result = run(app, ["data", "verify", "trec"])
    assert result.exit_code == 1 and "differs from the lock" in result.output

    def down(*_: object) -> None:
        raise Unreachable("hub is down")

    monkeypatch.setattr(hub, "read_hub", down)
    result = run(app, ["data", "build", "yelp", "mmlu"])
    assert result.exit_code == 1 and "mmlu: FAILED. not tried" in result.output
    assert "movie" in run(app, ["data", "list"]).output
    assert run(app, ["data", "card", "--output", str(small / "c.md")]).exit_code == 0
    assert (small / "c.md").read_text().startswith("# Data card")
    assert run(app, ["data", "mix", "x", "--preset", "odd"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("data build nosuch", 1, "Unknown source 'nosuch'. Known sources"),
        ("data verify trec nosuch", 1, "Unknown source 'nosuch'"),
        ("data card --output {file}/card.md", 1, "{file}"),
        ("runs nosuch", 2, "nosuch"),
        ("runs rater_bandit --jobs 0", 2, "--jobs"),
        ("runs rater_bandit --limit -1", 2, "--limit"),
        ("data mix", 2, "output"),
        ("nosuch", 2, "nosuch"),
    ],
)
def test_misuse_of_the_command_line_is_no_traceback(
    small: Path, arguments: str, status: int, message: str
) -> None:
    file = small / "file"
    file.write_text("where a folder should be")
    words = [word.format(file=file) for word in arguments.split()]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == status and isinstance(result.exception, SystemExit)
    shown = result.output + result.stderr
    assert message.format(file=file) in shown and "Traceback" not in shown


def test_a_plain_installation_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("rlcd_core.extra.grid", "rlcd_core.tasks", "rlcd_core.train"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if loaded := sys.modules.get("rlcd_core.extra"):
        monkeypatch.delattr(loaded, "grid", raising=False)
    monkeypatch.setitem(sys.modules, "joblib", None)
    result = CliRunner().invoke(app, ["runs"])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "needs joblib" in result.output + result.stderr


def test_a_cache_that_is_a_file_is_told(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small / "file").write_text("")
    monkeypatch.setenv("RLCD_CACHE", str(small / "file"))
    for words in (["data", "list"], ["data", "build", "trec"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        assert str(small / "file") in result.output + result.stderr


@pytest.mark.data
@pytest.mark.parametrize("name", ["amazon", "trec", "sms_spam", "triage", "tweets"])
def test_real_builds_equal_the_lock(name: str) -> None:
    built = B.build(load_manifest(name))
    assert B.check_lock(built)
    assert built.summary() == B.read_lock()[name]
    if name != "triage":  # tickets share sentences by design
        check_splits(built)
    for items in built.splits.values():
        assert len({item.id for item in items}) == len(items)


@pytest.mark.data
def test_packaged_mixture_is_whole(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["data", "mix", str(tmp_path)])
    assert result.exit_code == 0
    items = from_jsonl((tmp_path / "test.jsonl").read_bytes())
    assert {i.source for i in items} == {
        "movie",
        "amazon",
        "trec",
        "sms_spam",
        "triage",
    }
