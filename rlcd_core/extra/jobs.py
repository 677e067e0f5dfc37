"""Jobs: one run to be done, described so that its record can be found again.

A family is a list of jobs (:mod:`rlcd_core.extra.families`). A job of another policy
than the decision head is a class of its own with the same fields and two methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from rlcd_core.arms import ARMS
from rlcd_core.data.build import load_items, read_lock
from rlcd_core.records import RunRecord, config_hash
from rlcd_core.tasks import (
    WARMUP_ARM,
    Elsewhere,
    Noise,
    Task,
    Warmup,
    elsewhere_config,
    label_task,
    one_hot_counts,
    rater_task,
    run,
    run_config,
)
from rlcd_core.train import Arm, TrainConfig


class AnyJob(Protocol):
    """What the grid asks of a job; ``train`` runs in a worker process."""

    arm: Arm
    seed: int

    def full_config(self) -> dict[str, Any]: ...

    def train(self, family: str) -> tuple[RunRecord, np.ndarray]: ...


@dataclass(frozen=True)
class Job:
    """One run of the decision head: a task by name, an arm, sizes, a seed."""

    task: str
    arm: Arm
    config: TrainConfig
    seed: int
    warmup: Warmup = Warmup()
    noise: Noise = Noise()
    elsewhere: tuple[str, ...] = ()
    on: str = "bandit"

    def full_config(self) -> dict[str, Any]:
        """What :func:`rlcd_core.tasks.run` will put into the record."""
        locked = {name: _Locked(source_hash(name)) for name in self.elsewhere}
        return run_config(
            _task(self.task),
            self.arm,
            self.config,
            self.seed,
            self.warmup,
            self.noise,
            more=elsewhere_config(locked, self.on),
        )

    def train(self, family: str) -> tuple[RunRecord, np.ndarray]:
        """Do the job in this process, on one thread so that workers do not compete."""
        import torch

        from rlcd_core.policy import DecisionHead

        torch.set_num_threads(1)
        return run(
            _task(self.task),
            lambda generator: DecisionHead(_encoder(), generator=generator),
            self.arm,
            self.config,
            self.seed,
            family=family,
            warmup=self.warmup,
            noise=self.noise,
            prepared=_prepared(self.task),
            elsewhere={name: _elsewhere(name) for name in self.elsewhere},
            on=self.on,
        )


@dataclass(frozen=True)
class _Locked:
    sha256: str


def source_hash(name: str) -> str:
    """First 16 hex digits over the locked splits of a source; reads no data."""
    return config_hash(read_lock()[name]["splits"])


def source_items(name: str) -> list[Any]:
    """Every row of a built source, whatever the split."""
    return [
        item for part in ("train", "val", "test") for item in load_items(name, part)
    ]


def source_counts(name: str) -> np.ndarray:
    """(N, K) verdicts per option of :func:`source_items`, one-hot for labels."""
    rows = source_items(name)
    if rows[0].counts:
        return np.array([item.counts for item in rows])
    return one_hot_counts(rows)


def arm(name: str) -> Arm:
    """An arm by name, the warm-up included; errors list what there is."""
    if name == WARMUP_ARM.name:
        return WARMUP_ARM
    if name not in ARMS:
        raise KeyError(f"no arm {name!r}; there are {', '.join(sorted(ARMS))}")
    return ARMS[name]


def best_cell(
    records: Iterable[RunRecord],
    cell: Callable[[dict[str, Any]], Any],
    metric: str,
    *,
    cells: int,
    seeds: int,
    what: str,
    family: str,
) -> Any:
    """The cell of a tuning grid with the best mean validation metric.

    Parameters
    ----------
    records : iterable of RunRecord
        The tuning runs of one arm; no other split than validation is looked at.
    cell : callable
        The cell of a run, from its ``config["train"]``.
    metric : str
        ``"accuracy"`` is maximised, any other metric minimised.
    cells, seeds : int
        Size of the grid and runs of each cell.
    what, family : str
        Whose grid it is and the family that fills it, for the error.

    Raises
    ------
    LookupError
        If the grid is not complete.
    """
    found: dict[Any, list[float]] = {}
    for record in records:
        row = found.setdefault(cell(record.config["train"]), [])
        row.append(record.metrics["validation"][metric])
    full = [key for key, row in found.items() if len(row) >= seeds]
    if len(full) < cells:
        raise LookupError(
            f"the grid of {what} has {len(full)} of {cells} cells; finish it with: "
            f"rlcd runs {family}"
        )
    sign = -1.0 if metric == "accuracy" else 1.0
    return min(full, key=lambda key: sign * float(np.mean(found[key])))


@cache
def _task(name: str) -> Task:
    match name.split("-"):
        case ["rater", source, reading]:
            return rater_task(source, int(reading))
        case ["label", source]:
            return label_task(source)
    raise KeyError(f"no task {name!r}; rater-<source>-<3 or 5> or label-<source>")


@cache
def _encoder() -> Any:
    from rlcd_core.policy import Encoder

    return Encoder.load()


@cache
def _prepared(name: str) -> Any:
    from rlcd_core.policy import DecisionHead

    return DecisionHead(_encoder()).prepare(_task(name).items)


@cache
def _elsewhere(name: str) -> Elsewhere:
    from rlcd_core.policy import DecisionHead

    rows = source_items(name)
    items = [(item.state, item.question) for item in rows]
    prepared = DecisionHead(_encoder()).prepare(items)
    return Elsewhere(prepared, source_counts(name), source_hash(name))
