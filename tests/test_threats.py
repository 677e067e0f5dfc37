"""What would sink the evidence, checked on the committed records and their data."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from rlcd_core.data.split import LeakError, check_no_leak
from rlcd_core.extra import jobs
from rlcd_core.extra.families import (
    efficiency,
    elsewhere,
    joint,
    preferences,
    rater,
    smol,
    triage,
)
from rlcd_core.metrics import ece
from rlcd_core.records import Store
from rlcd_core.schema import render_state
from rlcd_core.tasks import Task

pytestmark = pytest.mark.data

TASKS: dict[str, Callable[[], Task]] = {
    "rater-movie-3": lambda: jobs._task("rater-movie-3"),
    "rater-amazon-3": lambda: jobs._task("rater-amazon-3"),
    "label-trec": lambda: jobs._task("label-trec"),
    "label-sms_spam": lambda: jobs._task("label-sms_spam"),
    "trec": smol.trec_task,
}
# Few words in many orders: the generator's sentences are alike by design, so that only
# equal tickets count as a leak.
MADE: dict[str, Callable[[], Task]] = {
    "triage-deciding": lambda: triage.triage_task("triage-deciding"),
    "joint": joint.joint_task,
}
# What is tuned, and the result that it is tuned for.
TUNED_FOR = [
    ("rater_rate", "rater_bandit"),
    ("rater_tuning", "rater_arms"),
    ("efficiency_tuning", "efficiency_arms"),
    ("text_tuning", "text_arms"),
    ("preferences_tuning", "preferences"),
    ("preferences_tuning", "preferences_few"),
    ("triage_tuning", "triage_arms"),
    ("smol_trec_pilot", "smol_trec"),
    ("smol_trec_pilot", "smol_trec_control"),
]


def states(task: Task) -> tuple[list[str], list[str]]:
    """The text of every row that a split holds, and its split."""
    texts, where = [], []
    for name, rows in task.splits.items():
        texts += [render_state(task.items[row][0]) for row in rows]
        where += [name] * len(rows)
    return texts, where


@pytest.mark.parametrize("name", sorted({**TASKS, **MADE}))
def test_no_row_is_in_two_splits(name: str) -> None:
    task = {**TASKS, **MADE}[name]()
    rows = np.concatenate(list(task.splits.values()))
    assert len(rows) == len(set(rows.tolist()))
    assert set(task.splits) == {"train", "validation", "test"}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_no_text_nearly_repeats_in_another_split(name: str) -> None:
    texts, where = states(TASKS[name]())
    check_no_leak(texts, [str(i) for i in range(len(texts))], where)
    # Planted: one test text, put into training with another digit and case.
    planted = texts[where.index("test")].upper() + "!"
    with pytest.raises(LeakError, match="nearly repeat"):
        check_no_leak(
            [*texts, planted],
            [str(i) for i in range(len(texts) + 1)],
            [*where, "train"],
        )


@pytest.mark.parametrize("name", sorted(MADE))
def test_no_made_ticket_is_repeated_in_another_split(name: str) -> None:
    found = defaultdict(set)
    for text, where in zip(*states(MADE[name]()), strict=True):
        found[text].add(where)
    assert max(map(len, found.values())) == 1


@pytest.mark.parametrize(("tuning", "result"), TUNED_FOR)
def test_seeds_of_tuning_appear_in_no_result(tuning: str, result: str) -> None:
    seeds = {name: {r.seed for r in Store(name).records()} for name in (tuning, result)}
    assert seeds[tuning] and seeds[tuning].isdisjoint(seeds[result])


CHOICES = [
    ("rater_tuning", rater._tuning_records, lambda: rater.tuned("rlcd")),
    ("rater_tuning", rater._tuning_records, lambda: rater.tuned("rlvr")),
    (
        "efficiency_tuning",
        efficiency._records,
        lambda: efficiency.chosen("rlcd", 6_000, True),
    ),
    (
        "text_tuning",
        elsewhere._text_records,
        lambda: elsewhere.text_tuned("trec", "rlvr"),
    ),
    (
        "preferences_tuning",
        preferences._tuning_records,
        lambda: [preferences.tuned(*key) for key in _forms()],
    ),
    ("triage_tuning", triage._tuning_records, lambda: triage.tuned("rlvr_loo")),
    (
        "smol_trec_pilot",
        smol._pilot_records,
        lambda: [smol.chosen_rate(name) for name in smol.ARM_NAMES],
    ),
]


def _forms() -> list[tuple[str, str]]:
    return [(task, n) for task, names in preferences.FORMS_OF.items() for n in names]


@pytest.mark.parametrize(("family", "records", "choose"), CHOICES)
def test_no_choice_looks_at_a_test_metric(family, records, choose, monkeypatch) -> None:
    before = choose()
    for record in records():
        for split in set(record.metrics) - {"validation"}:
            monkeypatch.delitem(record.metrics, split)
    assert choose() == before


BINNED = [
    ("rater_bandit", "rater-movie-3"),
    ("rater_arms", "rater-movie-3"),
    ("amazon_arms", "rater-amazon-3"),
    ("text_arms", "label-trec"),
    ("smol_trec", "trec"),
    ("triage_arms", "triage-deciding"),
]


@pytest.mark.parametrize(("family", "name"), BINNED)
def test_every_ece_has_the_fifteen_bins_that_were_fixed_before(family, name) -> None:
    store, task = Store(family), {**TASKS, **MADE}[name]()
    counts = task.counts[task.splits["test"]]
    share = counts / counts.sum(-1, keepdims=True)
    off: dict[int, list[float]] = {10: [], 15: [], 20: []}
    for record in store.records()[::9]:
        if record.config["task"] == task.name:
            p = store.predictions(record).astype(np.float64)
            best = p.argmax(-1)[:, None]
            stated, right = (np.take_along_axis(x, best, 1)[:, 0] for x in (p, share))
            for bins, found in off.items():
                value = ece(stated, right, bins)
                found.append(abs(value - record.metrics["test"]["ece"]))
    # Rows are kept in float16, so that a few cross an edge.
    assert np.median(off[15]) < 5e-4
    assert min(np.median(off[10]), np.median(off[20])) > np.median(off[15])
