"""Families: complete, and one cheap run of each re-trained as its sentinel."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from rlcd_core.arms import ARMS
from rlcd_core.env import RaterEnv, Unresolved
from rlcd_core.extra import grid, jobs
from rlcd_core.extra.families import efficiency, elsewhere, rater
from rlcd_core.policy import TabularPolicy
from rlcd_core.records import Store, config_hash, metric_values
from rlcd_core.schema import Choice
from rlcd_core.tasks import (
    Noise,
    ScoredAsWrong,
    Task,
    Warmup,
    one_hot_counts,
    run,
    score,
)
from rlcd_core.train import TrainConfig

# Bit-equal on one machine. Sums round differently elsewhere and training amplifies it:
# across-seed standard deviations are .001 (Brier) and .003 (ECE).
BRIER, ECE = 0.003, 0.01

SENTINELS = [
    ("rater_bandit", "rlcd", 3),
    ("rater_bandit", "rlcd_loo", 4),
    ("rater_bandit", "rlvr", 5),
    ("rater_rate", "rlvr_loo", 100),
    ("rater_arms", "verdict_nll", 203),
    ("rater_arms", "rlvr_shannon_0.3", 204),
    ("rater_tuning", "residual_ht", 101),
    ("preferences", "pl_drawn", 203),
    ("preferences_few", "top_counts", 200),
    ("preferences_tuning", "bt_drawn", 101),
    ("joint_fields", "rlcd", 3),
    ("rater_controls", "supervised", 205),
    ("amazon_arms", "rlcd_g4", 206),
    ("rater_noise", "rlvr", 207),
    ("rater_out", "rlcd", 208),
    ("text_tuning", "verdict_nll", 101),
    ("text_arms", "rlcd", 209),
    ("efficiency_tuning", "rlcd_loo", 102),
    ("efficiency_arms", "verdict_nll", 200),
    # The arms go on from it, and rounding does not grow in it as on a plateau.
    ("triage_arms", "warmup", 200),
]


@pytest.mark.data
@pytest.mark.parametrize(("family", "name", "seed"), SENTINELS)
def test_a_record_is_reproduced(family: str, name: str, seed: int) -> None:
    records = grid.family_records(family)
    job, record = next(
        (job, record)
        for job, record in zip(grid.FAMILIES[family](), records, strict=True)
        if (job.arm.name, job.seed) == (name, seed)
    )
    again, p = job.train(family)
    assert config_hash(again.config) == record.key
    for split in ("validation", "test"):
        now, then = again.metrics[split], record.metrics[split]
        assert now["brier"] == pytest.approx(then["brier"], abs=BRIER)
        assert now["ece"] == pytest.approx(then["ece"], abs=ECE)
    assert again.used["outcomes"] == record.used["outcomes"]
    if family in grid.WITH_PREDICTIONS:
        stored = Store(family).predictions(record)
        assert np.abs(stored - p).mean() < 0.005


@pytest.mark.data
@pytest.mark.parametrize("family", sorted({*grid.FAMILIES} - grid.UNFINISHED))
def test_families_are_complete_and_hold_nothing_else(family: str) -> None:
    records = grid.family_records(family)
    assert len(records) == len(Store(family).records())


@pytest.mark.data
def test_stored_predictions_give_the_stored_metrics() -> None:
    store = Store("rater_bandit")
    task = jobs._task("rater-movie-3")
    counts = task.counts[task.splits["test"]]
    for record in grid.family_records("rater_bandit")[::11]:
        found = score(store.predictions(record), counts)
        for key, value in found.items():
            # float16 rows: each probability is off by 2^-12 at most.
            if key != "nll":
                assert value == pytest.approx(record.metrics["test"][key], abs=2e-3)


@pytest.mark.data
def test_arms_of_a_family_share_seeds_warmups_and_budget() -> None:
    records = grid.family_records("rater_bandit")
    for seed in range(10):
        mine = [r for r in records if r.seed == seed]
        assert len({r.metrics["test_before"]["brier"] for r in mine}) == 1
        spent = {r.used["outcomes"] for r in mine if r.arm != "warmup"}
        assert max(spent) - min(spent) <= 64
    assert len(metric_values(records, "rlcd", "brier")) == 10


def test_seeds_of_tuning_appear_in_no_result() -> None:
    tuning = {job.seed for job in rater.rater_rate()} | set(rater.TUNING_SEEDS)
    assert tuning.isdisjoint(job.seed for job in rater.rater_bandit())
    assert tuning.isdisjoint(rater.FRESH_SEEDS)


@pytest.mark.data
def test_choices_follow_their_rule_and_tests_rows_play_no_part(monkeypatch) -> None:
    rows = [r for r in rater._tuning_records() if r.arm in ("rlcd", "rlvr")]
    for name, key, best in (("rlcd", "brier", min), ("rlvr", "accuracy", max)):
        cells: dict[tuple, list[float]] = {}
        for r in rows:
            if r.arm == name:
                sizes = r.config["train"]
                cell = sizes["learning_rate"], sizes["outcomes_per_step"]
                cells.setdefault(cell, []).append(r.metrics["validation"][key])
        wanted = best(cells, key=lambda c, cells=cells: np.mean(cells[c]))
        found = rater.tuned(name)
        assert (found.learning_rate, found.outcomes_per_step) == wanted
    # Planted fault: with test metrics swapped for noise the choice must not move.
    before = rater.tuned("rlcd")
    for r in rows:
        monkeypatch.setitem(r.metrics, "test", {"brier": 0.0, "accuracy": 1.0})
    assert rater.tuned("rlcd") == before


def test_an_unfinished_grid_is_no_choice(monkeypatch) -> None:
    monkeypatch.setattr(rater, "_tuning_records", list)
    with pytest.raises(LookupError, match="0 of 18 cells"):
        rater.tuned("rlcd")
    with pytest.raises(LookupError, match="0 of 25 cells"):
        rater.tuned(rater.AT_THE_EDGE[0])
    monkeypatch.setattr(elsewhere, "_text_records", list)
    with pytest.raises(LookupError, match="on trec has 0 of 8 cells"):
        elsewhere.text_tuned("trec", "rlcd")
    monkeypatch.setattr(efficiency, "_records", list)
    with pytest.raises(LookupError, match="6,000 outcomes has 0 of 18 cells"):
        efficiency.chosen("rlcd", 6_000, True)


@pytest.mark.data
def test_the_grid_was_extended_for_the_arms_at_its_edge_and_no_other() -> None:
    def best(name: str) -> int:
        key, sign = ("accuracy", -1) if rater.by_accuracy(name) else ("brier", 1)
        cells: dict[tuple, list[float]] = {}
        for r in rater._tuning_records():
            sizes = r.config["train"]
            cell = sizes["outcomes_per_step"], sizes["learning_rate"]
            if r.arm == name and cell[1] in rater.TUNING_GRID.get(cell[0], ()):
                cells.setdefault(cell, []).append(sign * r.metrics["validation"][key])
        return min(cells, key=lambda c: np.mean(cells[c]))[0]

    smallest = min(rater.TUNING_GRID)
    names = [name for name in ARMS if name not in rater.SAME_AS]
    at_edge = {name for name in names if best(name) == smallest}
    assert at_edge == set(rater.AT_THE_EDGE)


@pytest.mark.data
def test_rows_of_other_sources_choose_nothing_and_are_named_in_the_key() -> None:
    plain, out = (
        jobs.Job("rater-movie-3", ARMS["rlcd"], rater.ONE_RATE, 3, elsewhere=names)
        for names in ((), ("nyt",))
    )
    told = out.full_config()
    assert told.pop("elsewhere") == {"nyt": jobs.source_hash("nyt")}
    assert told == plain.full_config()
    # A run on the warm-up's own rows is another run; the default adds no key.
    again = jobs.Job("rater-movie-3", ARMS["nll"], rater.ONE_RATE, 3, on="labelled")
    assert again.full_config()["on"] == "labelled"
    assert "on" not in told and "replays" not in told["train"]


@pytest.mark.data
def test_a_run_elsewhere_scores_every_row_and_learns_the_same() -> None:
    small = TrainConfig(learning_rate=1e-3, outcomes=640, outcomes_per_step=64)
    task = "label-sms_spam"
    plain, p = jobs.Job(task, ARMS["rlcd"], small, 3).train("x")
    out = jobs.Job(task, ARMS["rlcd"], small, 3, elsewhere=("sms_spam",))
    record, both = out.train("x")
    rows = jobs.source_items("sms_spam")
    assert both.shape == (len(p) + len(rows), 2)
    assert np.array_equal(both[: len(p)], p)
    assert record.metrics["test"] == plain.metrics["test"]
    # One label a row has no unbiased distance; scored rows are all of the source.
    assert "distance" not in record.metrics["test"]
    found = score(both[len(p) :], one_hot_counts(rows))
    assert record.metrics["sms_spam"] == found


def test_a_label_task_needs_one_number_of_options() -> None:
    @dataclass
    class Row:
        question: object
        label: int
        source: str = "made"

    rows = [Row(Choice("Which?", tuple("abc")[:k]), 0) for k in (2, 3)]
    with pytest.raises(ValueError, match=r"made: rows have \[2, 3\] options"):
        one_hot_counts(rows)
    assert one_hot_counts(rows[1:]).tolist() == [[1, 0, 0]]


def test_budgets_and_replays_of_the_efficiency_family() -> None:
    every = efficiency.efficiency_tuning()
    for job in every:
        steps = job.config.steps(job.arm.group_size)
        assert (
            job.config.fresh_steps(job.arm.group_size) * (1 + job.config.replays)
            == steps
        )
    assert {job.config.outcomes for job in every} == set(efficiency.BUDGETS)
    per_arm = Counter(job.arm.name for job in every)
    assert len(set(per_arm.values())) == 1, "every arm has the same number of cells"


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(KeyError, match="rlcd_loo"):
        jobs.arm("rlcd_lo")
    with pytest.raises(KeyError, match="rater_bandit"):
        grid.run_family("rater")
    with pytest.raises(KeyError, match="rater-<source>"):
        jobs._task("movie")
    with pytest.raises(ValueError, match="flip, redraw"):
        Noise("flop").wrap(None, 0)


def test_every_arm_names_itself() -> None:
    for name, one in ARMS.items():
        assert name == one.name == jobs.arm(name).name


def test_score_by_hand() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]])
    counts = np.array([[3, 1, 0], [0, 1, 1]])
    found = score(p, counts)
    assert found["accuracy"] == pytest.approx((0.75 + 0.5) / 2)
    assert found["confidence"] == pytest.approx(0.6)
    brier = [
        0.75 * (0.09 + 0.04 + 0.01) + 0.25 * (0.49 + 0.64 + 0.01),
        0.5 * (0.04 + 0.25 + 0.09) + 0.5 * (0.04 + 0.25 + 0.49),
    ]
    assert found["brier"] == pytest.approx(np.mean(brier))
    # .7 and .5 fall into bins of their own.
    assert found["ece"] == pytest.approx((0.05 + 0.0) / 2)
    nll = -(0.75 * np.log(0.7) + 0.25 * np.log(0.2))
    nll += -(0.5 * np.log(0.5) + 0.5 * np.log(0.3))
    assert found["nll"] == pytest.approx(nll / 2)


def test_scored_as_wrong_hides_the_missing_outcome() -> None:
    counts, rows = np.array([[3, 1], [1, 1]]), np.repeat([0, 1], 50)
    actions = np.zeros((100, 1), int)
    honest = Unresolved(RaterEnv(counts, 0), 0.9, 1, 0.5)
    wrong = ScoredAsWrong(RaterEnv(counts, 0), 0.9, 1, 0.5)
    heard = honest.outcomes(rows, actions)
    assert np.isnan(heard).any() and (heard == 1).any()
    assert np.array_equal(wrong.outcomes(rows, actions), np.nan_to_num(heard))
    assert wrong.state_dict() == honest.state_dict()
    told = Noise("unresolved", 0.9, 0.5, as_wrong=True).wrap(RaterEnv(counts, 0), 1)
    assert np.array_equal(told.outcomes(rows, actions), np.nan_to_num(heard))


def test_a_warm_up_larger_than_its_rows_is_named() -> None:
    items = [(f"ticket {i}", Choice("Which queue?", ["a", "b"])) for i in range(10)]
    parts = {"train": 6, "validation": 2, "test": 2}
    edges = np.cumsum([0, *parts.values()])
    splits = {n: np.arange(edges[i], edges[i + 1]) for i, n in enumerate(parts)}
    task = Task("toy", items, np.ones((10, 2), int), splits)
    sizes = TrainConfig(outcomes=64, outcomes_per_step=8)
    options = {"family": "toy", "warmup": Warmup(rows=7)}
    # The record would tell of seven labels where six were seen.
    with pytest.raises(
        ValueError, match="'toy' has 6 rows, too few for a warm-up of 7"
    ):
        run(task, lambda _: TabularPolicy(items), ARMS["rlcd"], sizes, 0, **options)
