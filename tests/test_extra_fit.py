"""From a log to a decider: every fault of a log, splits, the gate, and the page."""

from __future__ import annotations

import csv
import json
import re
import tracemalloc
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rlcd_core.calibrate import fit_temperature, fit_verdict_temperature
from rlcd_core.data.log import LogError
from rlcd_core.decider import Decider
from rlcd_core.export import ExportError, load_export
from rlcd_core.extra import fit as module
from rlcd_core.extra.batching import gates_for
from rlcd_core.extra.fit import (
    PARTS,
    FitConfig,
    FitError,
    fit,
    judge,
    learn,
    read_cases,
    read_questions,
    split_cases,
)
from rlcd_core.extra.fit_page import checkable, scores
from rlcd_core.policy import DecisionHead, Encoder
from rlcd_core.schema import Choice
from tests.tiny_models import HashEncoder, tiny_encoder

torch.set_num_threads(1)
OPTIONS = ["billing", "network", "sales"]
WORDS = {"billing": "invoice paid twice", "network": "server down", "sales": "buy more"}
SMALL = FitConfig(error=0.2, epochs=20, rank=8, batch=16, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TQDM_DISABLE", "1")


def word(k: int) -> str:
    """Another word of letters for each number: near duplicates share their digits."""
    return "".join("abcdefghijklmnopqrstuvwxyz"[k // 26**i % 26] for i in range(3))


def decisions(
    n: int = 240, mode: str = "labels", seed: int = 0
) -> list[dict[str, Any]]:
    """A log in which the words of the state decide, but for one row in ten."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(n):
        topic = OPTIONS[k % 3]
        right = OPTIONS[int(rng.integers(3))] if rng.random() < 0.1 else topic
        row: dict[str, Any] = {
            "id": f"d{k}",
            "state": f"{WORDS[topic]} case {word(k)} {word(k + 7000)}",
            "question": "Which team?",
            "options": json.dumps(OPTIONS),
            "source": ["mail", "chat"][k % 2],
        }
        if mode == "labels":
            row["label"] = right
        else:
            likely = np.where(np.array(OPTIONS) == topic, 0.6, 0.2)
            action = int(rng.choice(3, p=likely))
            row["action"] = OPTIONS[action]
            row["outcome"] = int(OPTIONS[action] == right)
            if mode == "propensities":
                row["propensity"] = float(likely[action])
        rows.append(row)
    return rows


def write(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        writer = csv.DictWriter(file, columns, **options)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = tiny_encoder(tmp_path_factory.mktemp("encoder"))
    return Encoder(folder, max_tokens=64)


# --- reading: case 25 -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": "marketing"}, "row 8 .*action 'marketing' is none of the options"),
        ({"propensity": 0}, "row 8 .*propensity 0.0 must be in"),
        ({"propensity": 1.2}, "row 8 .*propensity 1.2 must be in"),
        ({"id": "d3"}, "row 8 .*earlier row has this id"),
        ({"outcome": 0.5}, "row 8 .*outcome 0.5 must be 0, 1, or empty"),
        ({"outcome": 1, "label": "sales", "action": "network"}, "row 8 .*contradicts"),
        ({"decided_at": "soon"}, "row 8 .*decided_at 'soon' is no time in ISO 8601"),
    ],
)
def test_a_row_at_fault_is_named_and_nothing_is_written(
    tmp_path: Path, encoder: Encoder, change: dict[str, Any], message: str
) -> None:
    rows = decisions(mode="propensities")
    rows[7] |= change
    log = write(tmp_path / "log.csv", rows)
    with pytest.raises(LogError, match=f"log.csv, {message}"):
        fit(log, tmp_path / "out", encoder=encoder)
    assert not (tmp_path / "out").exists()


def test_blank_outcomes_windows_line_ends_and_a_mark(tmp_path: Path) -> None:
    rows = decisions(mode="propensities")
    for row in rows[:30]:
        row["outcome"] = ""
    plain = read_cases(write(tmp_path / "a.csv", rows))
    odd = read_cases(
        write(tmp_path / "b.csv", rows, lineterminator="\r\n", encoding="utf-8-sig")
    )
    assert plain.notes == {"rows in the log": 240, "unresolved, left out": 30}
    assert len(plain) == 210 and plain.items == odd.items
    np.testing.assert_array_equal(plain.actions, odd.actions)
    none = write(tmp_path / "c.csv", [{**row, "outcome": ""} for row in rows])
    with pytest.raises(FitError, match="none of 240 rows has an outcome or a label"):
        read_cases(none)


def test_memory_is_bounded_by_the_limit_not_by_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("w") as file:
        for k in range(3000):  # 12 MB
            state = f"case {k} " + "x" * 4000
            row = {"id": k, "state": state, "question": "Q?", "type": "noul"}
            file.write(json.dumps({**row, "label": ["true", "false"][k % 2]}) + "\n")
    tracemalloc.start()
    cases = read_cases(path, limit=50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(cases) == 50 and peak < 2.5e6
    assert cases.notes["over the limit of rows kept, left out"] == 2950
    # A random sample, in the order of the log, the same each time.
    kept = [int(state.split()[1]) for state, _ in cases.items]
    assert kept == sorted(kept) and kept[0] < 600 and kept[-1] > 2400
    assert read_cases(path, limit=50).items == cases.items


def test_what_is_known_for_certain(tmp_path: Path) -> None:
    three, two = json.dumps(OPTIONS), json.dumps(OPTIONS[:2])
    base = {"question": "Q?", "propensity": 0.5}
    rows = [
        {**base, "options": three, "action": "sales", "outcome": 1},
        {**base, "options": three, "action": "sales", "outcome": 0},
        {**base, "options": two, "action": "network", "outcome": 1},
        {**base, "options": two, "action": "network", "outcome": 0},
        {**base, "options": three, "label": "network", "action": "sales"},
    ]
    rows = [{**row, "id": k, "state": f"s {k}"} for k, row in enumerate(rows)]
    cases = read_cases(write(tmp_path / "log.csv", rows))
    # That an action was right would tell too, but rows kept for it would be selected.
    assert cases.truth.tolist() == [-1, -1, 1, 0, 1]
    assert cases.actions.tolist() == [2, 2, 1, 1, 1]
    assert cases.outcomes.tolist() == [1, 0, 1, 0, 1]
    assert cases.propensities.tolist() == [0.5, 0.5, 0.5, 0.5, 1]
    assert cases.mode == "propensities"
    p = np.array([[0.1, 0.2, 0.7], [0.1, 0.7, 0.2], [0.6, 0.4, 0], [0.6, 0.4, 0]])
    p = np.concatenate([p, [[0.8, 0.1, 0.1]]])
    found = judge(p, np.array([0, 1, 2, 3, 0]), cases)
    # Row 1 and the last propose what was not tried, whatever came of the other option.
    assert found.rows.tolist() == [0, 2, 3]
    assert found.right.tolist() == [1, 0, 1]
    assert found.confidence.tolist() == [0.7, 0.6, 0.6]


# --- splitting ------------------------------------------------------------------------


def test_with_times_the_latest_rows_judge(tmp_path: Path) -> None:
    rows = decisions()
    order = np.random.default_rng(0).permutation(len(rows))
    for k, row in zip(order, rows, strict=True):
        row["decided_at"] = f"2026-01-{1 + k // 24:02d}T{k % 24:02d}:00:00"
    first, last = int(order.argmin()), int(order.argmax())
    rows[last]["state"] = rows[first]["state"].upper()
    cases = read_cases(write(tmp_path / "log.csv", rows))
    part, left = split_cases(cases)
    for early, late in zip(range(3), range(1, 4), strict=True):
        times = cases.times
        before = max(times[i] for i in np.flatnonzero(part == early))
        assert before < min(times[i] for i in np.flatnonzero(part == late))
    sizes = Counter(PARTS[k] for k in part if k >= 0)
    assert sizes["train"] == pytest.approx(144, abs=2)
    assert part[first] == 0 and part[last] == -1
    assert left == {"a state of an earlier part again": 1}
    late = [{**row, "decided_at": "2026-01-01"} for row in rows]
    with pytest.raises(FitError, match="leave decided_at out, to split by state"):
        split_cases(read_cases(write(tmp_path / "late.csv", late)))
    rows[5]["decided_at"] = ""
    with pytest.raises(FitError, match="1 of 240 usable rows have no decided_at"):
        read_cases(write(tmp_path / "log.csv", rows))
    rows[5]["decided_at"] = "2026-01-01T00:00:00+00:00"
    with pytest.raises(FitError, match="have a zone and some have none"):
        read_cases(write(tmp_path / "log.csv", rows))


def test_no_state_is_in_two_parts_and_judges_see_each_once(tmp_path: Path) -> None:
    rows = decisions(300)
    for k, row in enumerate(rows):  # each state three times
        row["state"] = f"case {word(k // 3)}"
    cases = read_cases(write(tmp_path / "log.csv", rows))
    with pytest.raises(FitError, match="each needs at least 20"):
        split_cases(cases)
    rows = decisions(300)
    for k, row in enumerate(rows[:60]):
        row["state"] = rows[100 + k]["state"].upper() + "!"
    cases = read_cases(write(tmp_path / "log.csv", rows))
    part, left = split_cases(cases)
    home: dict[str, set[int]] = {}
    for group, where in zip(cases.groups, part.tolist(), strict=True):
        home.setdefault(group, set()).add(where)
    assert all(len(parts - {-1}) == 1 for parts in home.values())
    for k in (1, 2, 3):
        groups = [cases.groups[i] for i in np.flatnonzero(part == k)]
        assert len(groups) == len(set(groups))
    assert left["a state of the same judging part again"] > 0


def test_the_split_of_the_log_is_kept(tmp_path: Path) -> None:
    rows = decisions()
    for k, row in enumerate(rows):
        row["split"] = ["train", "train", "val", "test"][k % 4]
    cases = read_cases(write(tmp_path / "log.csv", rows))
    part, _ = split_cases(cases)
    assert {rows[i]["split"] for i in np.flatnonzero(part == 0)} == {"train"}
    assert {rows[i]["split"] for i in np.flatnonzero(part == 3)} == {"test"}
    assert {rows[i]["split"] for i in np.flatnonzero((part == 1) | (part == 2))} == {
        "val"
    }
    rows[0]["split"] = "dev"
    with pytest.raises(FitError, match="split 'dev'; use train, val and test"):
        read_cases(write(tmp_path / "log.csv", rows))


# --- learning -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "objective"),
    [
        ("labels", "verdict_nll"),
        ("labels", "rlcd"),
        ("propensities", "verdict_nll"),
        ("propensities", "rlcd_ips"),
        ("propensities", "rlcd_snips"),
        ("outcomes", "verdict_brier"),
        ("outcomes", "rlcd"),
    ],
)
def test_every_objective_learns(tmp_path: Path, mode: str, objective: str) -> None:
    rows = decisions(mode=mode)
    for row in rows:  # a state is its topic, so that the hash of a text suffices
        row["state"] = row["state"].partition(" case")[0]
    cases = read_cases(write(tmp_path / "log.csv", rows))
    policy = DecisionHead(HashEncoder(), 8)
    prepared = policy.prepare(cases.items)
    config = FitConfig(objective=objective, epochs=20, batch=16, learning_rate=5e-3)
    learn(policy, prepared, np.arange(len(cases)), cases, config)
    log_p = module.log_probabilities(policy, prepared, np.arange(3))
    for row, option in zip(np.exp(log_p), OPTIONS, strict=True):
        assert row.argmax() == OPTIONS.index(option)
        assert 0.85 < row.max() < 0.98


def test_mixed_rows_warm_up_on_labels(tmp_path: Path) -> None:
    rows = decisions(60) + [
        {**row, "id": f"o{k}"}
        for k, row in enumerate(decisions(60, "propensities", seed=1))
    ]
    cases = read_cases(write(tmp_path / "log.csv", rows))
    policy = DecisionHead(HashEncoder(), 8)
    prepared, every = policy.prepare(cases.items), np.arange(len(cases))
    config = FitConfig(objective="rlcd_snips", epochs=1)
    assert learn(policy, prepared, every, cases, config) == [
        "verdict_nll: 60 labels and 0 outcomes, 1 times",
        "rlcd_snips: 0 labels and 60 outcomes, 1 times",
    ]
    config = FitConfig(epochs=1)
    assert learn(policy, prepared, every, cases, config) == [
        "verdict_nll: 60 labels and 60 outcomes, 1 times"
    ]
    del rows[100]["propensity"]
    cases = read_cases(write(tmp_path / "log.csv", rows))
    assert cases.notes["without propensity, so that none is used"] == 1
    with pytest.raises(FitError, match="needs the propensity of every outcome"):
        config = FitConfig(objective="rlcd_ips")
        learn(policy, prepared, every, cases, config)


def test_the_temperature_of_verdicts() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 4)) * 3
    p = np.exp(z / 2) / np.exp(z / 2).sum(1, keepdims=True)
    y = (p.cumsum(1) < rng.random((4000, 1))).sum(1)
    a = rng.integers(0, 4, 4000)
    found = fit_verdict_temperature(z, a, a == y)
    assert found.value == pytest.approx(2, abs=0.15) and found.after < found.before
    labels = fit_verdict_temperature(z, y, np.ones(4000))
    assert labels.value == pytest.approx(fit_temperature(z, y).value, abs=1e-4)
    z[:, 3] = -1e9
    with pytest.raises(ValueError, match="masked option"):
        fit_verdict_temperature(z, a, a == y)
    with pytest.raises(ValueError, match="0 or 1"):
        fit_verdict_temperature(z, a % 3, np.full(4000, 0.5))


def test_an_honest_decider_looks_honest_in_a_mixed_log(tmp_path: Path) -> None:
    # Every case as often as it occurs; half of them are labelled instead of tried.
    p, mu = np.array([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    rows = [
        {"action": OPTIONS[a], "outcome": int(a == y), "label": ""}
        for y in range(3)
        for a in range(3)
        for _ in range(int(16 * p[y] * mu[a]))
    ] + [
        {"action": "", "outcome": "", "label": OPTIONS[y]}
        for y in range(3)
        for _ in range(int(16 * p[y]))
    ]
    fixed = {"question": "Which team?", "options": json.dumps(OPTIONS)}
    rows = [{"id": k, "state": word(k), **fixed, **row} for k, row in enumerate(rows)]
    cases = read_cases(write(tmp_path / "log.csv", rows))
    stated, right, what = checkable(np.tile(p, (32, 1)), np.arange(32), cases)
    assert "the action taken (where the right option is known" in what
    for chance in (0.25, 0.5):
        assert right[stated == chance].mean() == pytest.approx(chance)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": "sales"}, "Every label to learn from is 'sales'"),
        ({"label": "", "action": "sales", "outcome": 1}, "Every outcome .* is 1:"),
    ],
)
def test_a_log_that_knows_one_thing_says_so(
    tmp_path: Path, encoder: Encoder, change: dict[str, Any], said: str
) -> None:
    log = write(tmp_path / "log.csv", [{**row, **change} for row in decisions()])
    found = fit(log, tmp_path / "out", SMALL, encoder=encoder, copy_encoder=True)
    assert any(re.search(said, line) for line in found.report["limits"])
    assert any(line.startswith("limit: ") for line in found.lines())


def test_several_questions_have_a_gate_each(tmp_path: Path, encoder: Encoder) -> None:
    rows = decisions(600)
    for row in rows[::2]:
        row["question"] = "Who helps?"
    log = write(tmp_path / "log.csv", rows)
    helps = {"helper": Choice("Who helps?", OPTIONS)}
    out = tmp_path / "out"
    found = fit(
        log, out, SMALL, questions=helps, encoder=encoder, copy_encoder=True
    ).report
    decider = Decider.load(out)
    # A name that was given stays.
    assert set(decider.exported.questions) == {"helper", "question_2"}
    assert set(decider.exported.gates) == {"act", "helper", "question_2"}
    assert sum(gate["n"] for gate in found["gates"].values()) == found["gate"]["n"]
    told = gates_for(decider, dict(decider.exported.questions))
    assert {name: list(gates) for name, gates in told.items()} == {
        "helper": ["helper"],
        "question_2": ["question_2"],
    }
    assert "helper: Who helps?" in (out / "audit.html").read_text()


def test_questions_are_read_as_rlcd_ask_reads_them(tmp_path: Path) -> None:
    path, team = tmp_path / "q.json", Choice("Team?", ["a", "b"])
    path.write_text(json.dumps({"team": team.to_dict()}), encoding="utf-8-sig")
    assert read_questions(path) == {"team": team} and read_questions(None) == {}
    schema = {"enum": ["a", "b"], "description": "Team?"}
    path.write_text(json.dumps({"type": "object", "properties": {"team": schema}}))
    assert read_questions(path) == {"team": team}
    path.write_text("[" * 5000)
    with pytest.raises(ValueError, match="q.json: it is no JSON"):
        read_questions(path)


def test_a_decider_that_never_acts_says_why(tmp_path: Path, encoder: Encoder) -> None:
    log = write(tmp_path / "log.csv", decisions())
    for error, said in (
        (0.01, "230 without an error are needed"),
        (0.07, "the surest"),
    ):
        out = tmp_path / str(error)
        config = FitConfig(error=error, epochs=1, rank=8)
        found = fit(log, out, config, encoder=encoder, copy_encoder=True)
        assert found.report["gate"]["gate"]["act"] is None
        assert any(said in line for line in found.report["limits"])
        page = (out / "audit.html").read_text()
        assert "never acts alone" in page and said in page


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(FitError, match="choose one of verdict_nll"):
        FitConfig(objective="rlvr")
    with pytest.raises(FitError, match="at least 1"):
        FitConfig(epochs=0)
    with pytest.raises(ValueError, match="error: 1.5"):
        FitConfig(error=1.5)


# --- the whole way --------------------------------------------------------------------


class Page(HTMLParser):
    """What a page asks for and says."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        assert not {name for name, _ in attrs} & {"src", "href"}

    def handle_data(self, data: str) -> None:
        self.text += data + " "


@pytest.mark.parametrize("mode", ["labels", "propensities", "outcomes"])
def test_from_a_log_to_answers(tmp_path: Path, encoder: Encoder, mode: str) -> None:
    rows = decisions(360, mode)
    rows[0]["source"] = "<script>alert(1)</script>"
    log = write(tmp_path / "log.csv", rows)
    out = tmp_path / "out"
    found = fit(log, out, SMALL, encoder=encoder, copy_encoder=True)
    report = json.loads((out / "report.json").read_text())
    assert report == json.loads(json.dumps(found.report))
    assert report["mode"] == mode
    assert sum(report["parts"].values()) + sum(
        report["left_out_of_parts"].values()
    ) == len(rows)
    # The decider is the one that was measured.
    decider = Decider.load(out)
    gate = decider.exported.gates["act"]
    assert decider.exported.temperature.value == report["temperature"]["value"]
    assert gate.gate.act is not None and gate.promise == "error" and gate.target == 0.2
    answer = decider.ask("server down again", decider.exported.questions)["question"]
    assert answer.option == "network"
    assert gate.gate.decide(answer.confidence) in ("act", "escalate")
    cases = read_cases(log)
    part, _ = split_cases(cases)
    test = np.flatnonzero(part == 3)
    policy = load_export(out).policy
    p = np.exp(module.log_probabilities(policy, policy.prepare(cases.items), test))
    judged = judge(p, test, cases)
    acts = gate.gate.acts(judged.confidence)
    assert report["gate"]["test_acts"] == pytest.approx(acts.sum(), abs=1)
    assert report["gate"]["test_wrong"] <= acts.sum()
    assert sum(b["n"] for b in report["reliability"]["bins"]) == len(test)
    assert sum(row["n"] for row in report["sources"]) == len(test)
    if mode == "labels":
        assert len(judged.rows) == len(test) and "accuracy" in report["scores"]
    else:
        assert len(judged.rows) < len(test) and "accuracy" not in report["scores"]
        assert any("log took the proposed option" in x for x in report["limits"])
        weighted = "Brier score in [0, 2], inverse propensity" in report["scores"]
        assert weighted == (mode == "propensities")
        assert ("Lost" in report["mode_says"]) and "n = " in str(report["scores"])
    page = Page()
    page.feed((out / "audit.html").read_text())
    assert page.tags["svg"] == 1 and page.tags["script"] == 0
    assert page.tags["circle"] == len(report["reliability"]["bins"])
    for part_of_it in ("How much can be automated", "By source", "Limits", "360"):
        assert part_of_it in page.text
    card = (out / "README.md").read_text()
    assert "log.csv" in card and "share that can be automated at error 0.2" in card
    with pytest.raises(ExportError, match="exists"):
        fit(log, out, SMALL, encoder=encoder)


def test_estimates_by_inverse_propensity_are_unbiased(tmp_path: Path) -> None:
    # Exact enumeration: a log that holds every action and label as often as they occur.
    p, q, mu = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    rows = [
        {
            "id": f"{a}{y}{k}",
            "state": word(100 * a + 10 * y + k),
            "question": "Which team?",
            "options": json.dumps(OPTIONS),
            "action": OPTIONS[a],
            "outcome": int(a == y),
            "propensity": mu[a],
        }
        for a in range(3)
        for y in range(3)
        for k in range(int(16 * mu[a] * q[y]))
    ]
    cases = read_cases(write(tmp_path / "log.csv", rows))
    found = scores(np.tile(p, (16, 1)), np.arange(16), cases)
    brier = sum(q[y] * ((p - np.eye(3)[y]) ** 2).sum() for y in range(3))

    def said(name: str) -> float:
        return float(found[name].split()[0])

    assert said("Brier score in [0, 2], inverse propensity") == pytest.approx(
        brier, abs=6e-4
    )
    assert said("accuracy, inverse propensity") == pytest.approx(q[1], abs=6e-4)
    squared = sum(
        mu[a] * (q[a] * (p[a] - 1) ** 2 + (1 - q[a]) * p[a] ** 2) for a in range(3)
    )
    name = "squared error of the stated chance of the action taken"
    assert said(name) == pytest.approx(squared, abs=6e-4)
    # Weights 4 on the 4 rows that took option 1.
    assert found["effective rows behind the accuracy"].startswith("4 of 16; smallest")


def test_options_that_were_never_tried_are_named(
    tmp_path: Path, encoder: Encoder
) -> None:
    rows = [r for r in decisions(900, "outcomes") if r["action"] != "sales"]
    found = fit(
        write(tmp_path / "log.csv", rows),
        tmp_path / "out",
        SMALL,
        encoder=encoder,
        copy_encoder=True,
    )
    assert found.report["untried"] == ["Which team?: sales"]
    assert any("rest on their wording alone" in x for x in found.report["limits"])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlcd_core.__main__ import app

    folder = tiny_encoder(tmp_path / "cache" / "sources" / "minilm")
    monkeypatch.setattr("rlcd_core.policy.encoder.fetch", lambda name: folder)
    rows = decisions(mode="labels")
    for row in rows:
        row["question"] = "team"
        del row["options"]
    log = write(tmp_path / "log.csv", rows)
    asked = tmp_path / "questions.json"
    team = {"kind": "choice", "text": "Which team?", "options": OPTIONS}
    asked.write_text(json.dumps({"team": team}))
    out = tmp_path / "out"
    command = ["fit", str(log), "--out", str(out), "--questions", str(asked)]
    run = CliRunner().invoke(app, [*command, "--epochs", "3", "--error", ".3"])
    assert run.exit_code == 0, run.output
    assert "240 usable rows of 240; mode: labels" in run.output
    assert {"audit.html", "manifest.json"} <= {path.name for path in out.iterdir()}
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1 and "exists; choose another folder" in again.output
    rows[3]["label"] = "marketing"
    write(log, rows)
    command[3] = str(tmp_path / "other")
    bad = CliRunner().invoke(app, command)
    assert bad.exit_code == 1
    assert "log.csv, row 4 (id 'd3'): label 'marketing' is none" in bad.output
    assert not (tmp_path / "other").exists()
