"""How many outcomes an estimator needs: smaller budgets, and outcomes used again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from rlcd_core.arms import ARMS
from rlcd_core.extra.families.rater import FRESH_SEEDS, TUNING_SEEDS, tuned
from rlcd_core.extra.jobs import Job
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
    cells: dict[tuple[float, int, int], list[float]] = {}
    for record in _records():
        sizes = record.config["train"]
        again = sizes.get("replays", 0)
        allowed = replay or not again
        if record.arm == name and sizes["outcomes"] == budget and allowed:
            cell = sizes["learning_rate"], sizes["outcomes_per_step"], again
            cells.setdefault(cell, []).append(record.metrics["validation"]["brier"])
    wanted = sum(len(rates) for _, again, rates in GRID if replay or not again)
    if len(cells) < wanted or min(map(len, cells.values())) < len(TUNING_SEEDS):
        raise LookupError(
            f"the grid of arm {name!r} at {budget:,} outcomes has {len(cells)} of "
            f"{wanted} cells; finish it with: rlcd runs efficiency_tuning"
        )
    rate, batch, again = min(cells, key=lambda cell: float(np.mean(cells[cell])))
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
