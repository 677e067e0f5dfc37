"""The rater bandit on film reviews: one rate, the tuning grid, every arm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from operator import itemgetter

from rlcd_core.arms import ARMS
from rlcd_core.extra.jobs import Job, arm, best_cell
from rlcd_core.records import RunRecord, Store
from rlcd_core.tasks import WARMUP_ARM
from rlcd_core.train import TrainConfig

# The rate of the comparison at one rate was fixed beforehand as the one at which RLVR,
# not RLCD, has its best validation accuracy (family rater_rate, seeds 100 to 102): the
# comparison is made where the weaker side is strongest.
ONE_RATE = TrainConfig(learning_rate=1e-4)
BANDIT_ARMS = (
    "warmup",
    "rlcd",
    "rlcd_loo",
    "rlvr",
    "rlvr_loo",
    "rlcd_std",
    "verdict_nll",
    "nll",
)
RATES = (2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4)


def rater_rate() -> list[Job]:
    """Which single rate: RLVR on validation rows, seeds that no result uses."""
    return [
        Job("rater-movie-3", arm(name), replace(ONE_RATE, learning_rate=rate), seed)
        for name in ("rlvr", "rlvr_loo")
        for rate in RATES
        for seed in (100, 101, 102)
    ]


def rater_bandit() -> list[Job]:
    """The comparison of the chapter: one rate, one batch, 60,000 outcomes, 10 seeds."""
    config = replace(ONE_RATE, eval_every=94)
    return [
        Job("rater-movie-3", arm(name), config, seed)
        for name in BANDIT_ARMS
        for seed in range(10)
    ]


# One grid for every arm, fixed before any test row was seen: learning rates by outcomes
# per step. Larger batches take fewer steps, so their rates lie higher.
TUNING_GRID = {
    64: (2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4, 8e-4),
    256: (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3),
    1024: (2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3),
}
# No optimum may lie on an edge: arms that chose the smallest batch of this grid get the
# next smaller one, and the next larger rate at the old one.
AT_THE_EDGE = (
    "nll",
    "rlcd_g4",
    "rlvr_shannon_0.3",
    "rlvr_shannon_0.5",
    "rlvr_kl_0.2",
    "rlvr_kl_0.5",
)
EXTENSION = {16: (1.25e-5, 2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4), 64: (1.6e-3,)}
TUNING_SEEDS = (100, 101, 102)
FRESH_SEEDS = tuple(range(200, 210))
# RLVR and its rescues would, judged by Brier, choose hardly to learn: they are chosen
# by validation accuracy, every other arm by validation Brier.
BY_ACCURACY = ("rlvr", "rlcd_std")


def rater_tuning() -> list[Job]:
    """Every arm on the whole grid; validation rows only, seeds no result uses."""
    every = tuple(name for name in ARMS if name not in SAME_AS)
    return [
        Job(
            "rater-movie-3",
            ARMS[name],
            TrainConfig(learning_rate=rate, outcomes_per_step=batch),
            seed,
        )
        for grid, names in ((TUNING_GRID, every), (EXTENSION, AT_THE_EDGE))
        for batch, rates in grid.items()
        for seed in TUNING_SEEDS
        for rate in rates
        for name in names
    ]


# Arms that differ from another one by the rate alone are cells of its grid.
SAME_AS = {"rlvr_low": "rlvr_loo", "rlcd_low": "rlcd_loo"}


def by_accuracy(name: str) -> bool:
    """Whether an arm is chosen by validation accuracy rather than Brier score."""
    return name.startswith(BY_ACCURACY) and name != "rlvr_gini"


@cache
def _tuning_records() -> list[RunRecord]:
    return Store("rater_tuning").records()


def tuned(name: str) -> TrainConfig:
    """The cell of the grid that an arm's own rule chooses on validation rows.

    Raises
    ------
    LookupError
        If the grid of this arm is not complete.
    """
    grids = [TUNING_GRID, EXTENSION] if name in AT_THE_EDGE else [TUNING_GRID]
    rate, batch = best_cell(
        (r for r in _tuning_records() if r.arm == name),
        itemgetter("learning_rate", "outcomes_per_step"),
        "accuracy" if by_accuracy(name) else "brier",
        cells=sum(len(rates) for grid in grids for rates in grid.values()),
        seeds=len(TUNING_SEEDS),
        what=f"arm {name!r}",
        family="rater_tuning",
    )
    return TrainConfig(learning_rate=rate, outcomes_per_step=batch)


def rater_arms() -> list[Job]:
    """Every arm at the cell that its own rule chose, ten fresh seeds."""
    return [
        Job("rater-movie-3", one, tuned(one.name), seed)
        for one in ARMS.values()
        if one.name not in SAME_AS
        for seed in FRESH_SEEDS
    ] + [Job("rater-movie-3", WARMUP_ARM, ONE_RATE, seed) for seed in FRESH_SEEDS]


FAMILIES: dict[str, Callable[[], list[Job]]] = {
    "rater_rate": rater_rate,
    "rater_bandit": rater_bandit,
    "rater_tuning": rater_tuning,
    "rater_arms": rater_arms,
}

# Families whose test predictions are kept row by row; tuning needs metrics alone.
WITH_PREDICTIONS = frozenset({"rater_bandit", "rater_arms"})
