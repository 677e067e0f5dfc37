"""Jobs: one run to be done, described so that its record can be found again.

A family is a list of jobs (:mod:`rlcd_core.extra.families`). A job of another policy
than the decision head is a class of its own with the same fields and two methods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import numpy as np

from rlcd_core.arms import ARMS
from rlcd_core.records import RunRecord
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

    def full_config(self) -> dict[str, Any]:
        """What :func:`rlcd_core.tasks.run` will put into the record."""
        # The warm-up alone spends no outcomes, whatever the budget of the others.
        spent = self.arm.name != WARMUP_ARM.name
        config = self.config if spent else replace(self.config, outcomes=0)
        return run_config(
            _task(self.task), self.arm, config, self.seed, self.warmup, self.noise
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
        )


def arm(name: str) -> Arm:
    """An arm by name, the warm-up included; errors list what there is."""
    if name == WARMUP_ARM.name:
        return WARMUP_ARM
    if name not in ARMS:
        raise KeyError(f"no arm {name!r}; there are {', '.join(sorted(ARMS))}")
    return ARMS[name]


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
