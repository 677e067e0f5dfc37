"""Many runs: families of jobs, finished one by one, kept as they finish.

A family is a list of jobs; its records are committed under ``results/``. Running a
family again trains only what has no record yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from tqdm import tqdm

from rlcd_core.arms import ARMS
from rlcd_core.records import RunRecord, Store, config_hash
from rlcd_core.tasks import (
    WARMUP_ARM,
    Noise,
    Task,
    Warmup,
    rater_task,
    run,
    run_config,
)
from rlcd_core.train import Arm, TrainConfig


@dataclass(frozen=True)
class Job:
    """One run to be done: a task by name, an arm, sizes, a seed."""

    task: str
    arm: Arm
    config: TrainConfig
    seed: int
    warmup: Warmup = Warmup()
    noise: Noise = Noise()

    def full_config(self) -> dict[str, Any]:
        """What :func:`rlcd_core.tasks.run` will put into the record."""
        # The warm-up alone spends no outcomes, whatever the budget of the others.
        spent = self.arm.name != WARMUP_ARM.name
        config = self.config if spent else replace(self.config, outcomes=0)
        return run_config(
            _task(self.task), self.arm, config, self.seed, self.warmup, self.noise
        )


def arm(name: str) -> Arm:
    """An arm by name, the warm-up included; errors list what there is."""
    if name == WARMUP_ARM.name:
        return WARMUP_ARM
    if name not in ARMS:
        raise KeyError(f"no arm {name!r}; there are {', '.join(sorted(ARMS))}")
    return ARMS[name]


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
TUNING_SEEDS = (100, 101, 102)
FRESH_SEEDS = tuple(range(200, 210))
# RLVR and its rescues would, judged by Brier, choose hardly to learn: they are chosen
# by validation accuracy, every other arm by validation Brier.
BY_ACCURACY = ("rlvr", "rlcd_std")


def rater_tuning() -> list[Job]:
    """Every arm on the whole grid; validation rows only, seeds no result uses."""
    return [
        Job(
            "rater-movie-3",
            one,
            TrainConfig(learning_rate=rate, outcomes_per_step=batch),
            seed,
        )
        for batch, rates in TUNING_GRID.items()
        for seed in TUNING_SEEDS
        for rate in rates
        for one in ARMS.values()
        if one.name not in SAME_AS
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
    cells: dict[tuple[float, int], list[dict[str, float]]] = {}
    for record in _tuning_records():
        if record.arm == name:
            sizes = record.config["train"]
            cell = sizes["learning_rate"], sizes["outcomes_per_step"]
            cells.setdefault(cell, []).append(record.metrics["validation"])
    wanted = sum(map(len, TUNING_GRID.values()))
    if len(cells) < wanted or min(map(len, cells.values())) < len(TUNING_SEEDS):
        raise LookupError(
            f"the grid of arm {name!r} has {len(cells)} of {wanted} cells; finish it "
            "with: rlcd runs rater_tuning"
        )
    key, sign = ("accuracy", -1) if by_accuracy(name) else ("brier", 1)

    def cost(cell: tuple[float, int]) -> float:
        return sign * float(np.mean([row[key] for row in cells[cell]]))

    rate, batch = min(cells, key=cost)
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
"""Families by name. Their records are ``results/<name>.jsonl``."""

# Families whose test predictions are kept row by row; tuning needs metrics alone.
WITH_PREDICTIONS = frozenset({"rater_bandit", "rater_arms"})


def first_line(make: Callable[[], list[Job]]) -> str:
    """What a family is, in one line."""
    return (make.__doc__ or "").splitlines()[0]


def family_records(name: str) -> list[RunRecord]:
    """The records of exactly the jobs of a family, in the order of its jobs.

    Raises
    ------
    LookupError
        If a job has no record: it never ran, or data, arm or sizes changed since.
    """
    known = {record.key: record for record in Store(name).records()}
    keys = [config_hash(job.full_config()) for job in FAMILIES[name]()]
    missing = sum(key not in known for key in keys)
    if missing:
        raise LookupError(
            f"{missing} of {len(keys)} runs of {name!r} have no record for the data, "
            f"arms and sizes of this version; run: rlcd runs {name}"
        )
    return [known[key] for key in keys]


def run_family(name: str, n_jobs: int = 2, limit: int | None = None) -> int:
    """Train every job of a family that has no record, then merge the records.

    Parameters
    ----------
    name : str
        Key of ``FAMILIES``.
    n_jobs : int
        Worker processes, one thread each.
    limit : int, optional
        Train at most this many missing jobs.

    Returns
    -------
    int
        Records of the family after the merge.
    """
    if name not in FAMILIES:
        raise KeyError(f"no family {name!r}; there are {', '.join(sorted(FAMILIES))}")
    store = Store(name)
    jobs = FAMILIES[name]()
    known = {record.key for record in store.records()}
    missing = [j for j in jobs if config_hash(j.full_config()) not in known][:limit]
    work = (delayed(train_job)(job, name) for job in missing)
    done: Iterable[tuple[RunRecord, np.ndarray]] = Parallel(
        n_jobs=n_jobs, return_as="generator_unordered"
    )(work)
    for record, predictions in tqdm(done, total=len(missing), desc=name):
        store.add(record, predictions if name in WITH_PREDICTIONS else None)
    return store.gather(keep=(config_hash(job.full_config()) for job in jobs))


def train_job(job: Job, family: str) -> tuple[RunRecord, np.ndarray]:
    """Do one job in this process, on one thread so that workers do not compete."""
    import torch

    from rlcd_core.policy import DecisionHead

    torch.set_num_threads(1)
    return run(
        _task(job.task),
        lambda generator: DecisionHead(_encoder(), generator=generator),
        job.arm,
        job.config,
        job.seed,
        family=family,
        warmup=job.warmup,
        noise=job.noise,
        prepared=_prepared(job.task),
    )


@cache
def _task(name: str) -> Task:
    match name.split("-"):
        case ["rater", source, reading]:
            return rater_task(source, int(reading))
    raise KeyError(f"no task {name!r}; rater-<source>-<3 or 5>")


@cache
def _encoder() -> Any:
    from rlcd_core.policy import Encoder

    return Encoder.load()


@cache
def _prepared(name: str) -> Any:
    from rlcd_core.policy import DecisionHead

    return DecisionHead(_encoder()).prepare(_task(name).items)
