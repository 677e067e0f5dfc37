"""How many outcomes an estimator needs: smaller budgets, and outcomes used again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from rlcd_core.arms import ARMS
from rlcd_core.extra.families.rater import FRESH_SEEDS, TUNING_SEEDS, tuned
from rlcd_core.extra.jobs import Job, best_cell
from rlcd_core.records import RunRecord, Store
from rlcd_core.train import TrainConfig

REFERENCE = "rlcd_loo"
"""The seed recipe: its final Brier score at the full budget is the mark to reach."""

FULL_BUDGET = 60_000
BUDGETS = (6_000, 12_000, 24_000)
ARM_NAMES = ("rlcd", "verdict_nll", "verdict_brier", "residual_ht", "rlcd_loo")
# Outcomes per step, replays of each batch, learning rates; the same for every arm.
GRID = (
    (64, 0, (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)),
    (256, 0, (2e-4, 4e-4, 8e-4, 1.6e-3)),
    (256, 3, (2e-4, 4e-4, 8e-4, 1.6e-3)),
    (256, 15, (5e-5, 1e-4, 2e-4, 4e-4, 8e-4)),
)


def efficiency_tuning() -> list[Job]:
    """Small budgets: rates, batches and replays, chosen on validation rows."""
    return [
        Job(
            "rater-movie-3",
            ARMS[name],
            TrainConfig(
                learning_rate=rate,
                outcomes=budget,
                outcomes_per_step=batch,
                replays=replays,
            ),
            seed,
        )
        for budget in BUDGETS
        for seed in TUNING_SEEDS
        for batch, replays, rates in GRID
        for rate in rates
        for name in ARM_NAMES
    ]


@cache
def _records() -> list[RunRecord]:
    return Store("efficiency_tuning").records()


def _replays(sizes: dict[str, Any]) -> int:
    return sizes.get("replays", 0)  # a default that records leave out


def chosen(name: str, budget: int, replay: bool) -> TrainConfig:
    """The cell with the best mean validation Brier score at one budget.

    Parameters
    ----------
    replay : bool
        Whether cells that use outcomes again may be chosen.

    Raises
    ------
    LookupError
        If the grid is not complete.
    """
    rate, batch, again = best_cell(
        (
            r
            for r in _records()
            if r.arm == name
            and r.config["train"]["outcomes"] == budget
            and (replay or not _replays(r.config["train"]))
        ),
        lambda sizes: (
            sizes["learning_rate"],
            sizes["outcomes_per_step"],
            _replays(sizes),
        ),
        "brier",
        cells=sum(len(rates) for _, again, rates in GRID if replay or not again),
        seeds=len(TUNING_SEEDS),
        what=f"arm {name!r} at {budget:,} outcomes",
        family="efficiency_tuning",
    )
    return TrainConfig(
        learning_rate=rate, outcomes=budget, outcomes_per_step=batch, replays=again
    )


def efficiency_arms() -> list[Job]:
    """Each estimator at each budget, with one update a batch and with replays."""
    jobs = [
        Job("rater-movie-3", ARMS[name], config, seed)
        for name in ARM_NAMES
        for budget in BUDGETS
        for config in dict.fromkeys(chosen(name, budget, r) for r in (False, True))
        for seed in FRESH_SEEDS
    ]
    full = [
        Job("rater-movie-3", ARMS[name], tuned(name), seed)
        for name in ARM_NAMES
        for seed in FRESH_SEEDS
    ]
    return jobs + full


FAMILIES: dict[str, Callable[[], list[Job]]] = {
    "efficiency_tuning": efficiency_tuning,
    "efficiency_arms": efficiency_arms,
}

WITH_PREDICTIONS: frozenset[str] = frozenset()
