"""Three fields of one ticket, each trained as a question of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from rlcd_core.data.triage import JointTicket, joint_tickets
from rlcd_core.env import LabelEnv, LabelledEnv
from rlcd_core.extra.jobs import _encoder, arm
from rlcd_core.records import RunRecord
from rlcd_core.tasks import WARMUP_ARM, Task, Warmup, run_config, score
from rlcd_core.train import Arm, TrainConfig, TrainResult, train

FIELDS = ("department", "severity", "needs_human")
TICKETS, DRAW = 4000, 6
# One rate for all: a few times higher, and RLVR states exact zeros, at which a log loss
# is infinite with rules or without.
CONFIG = TrainConfig(learning_rate=2e-4)
JOINT_ARMS = ("warmup", "nll", "rlcd", "rlvr", "rlvr_loo")
SEEDS = tuple(range(5))


@cache
def joint_rows() -> list[JointTicket]:
    """The tickets, always the same ones."""
    return joint_tickets(TICKETS, np.random.default_rng(DRAW))


@cache
def joint_task() -> Task:
    """Three items a ticket, in the order of `FIELDS`; a ticket is never split."""
    found = [ticket.items[name] for ticket in joint_rows() for name in FIELDS]
    counts = np.zeros((len(found), max(len(i.question.options) for i in found)), int)
    counts[np.arange(len(found)), [item.label for item in found]] = 1
    items = [(item.state, item.question) for item in found]
    return Task.of("joint-triage", items, counts, [item.group for item in found])


@cache
def _prepared() -> Any:
    from rlcd_core.policy import DecisionHead

    return DecisionHead(_encoder()).prepare(joint_task().items)


@dataclass(frozen=True)
class JointJob:
    """One run of the decision head on the three fields."""

    arm: Arm
    config: TrainConfig
    seed: int
    warmup: Warmup = Warmup()

    def full_config(self) -> dict[str, Any]:
        """Everything that decides the result; its hash is the record's key."""
        return run_config(joint_task(), self.arm, self.config, self.seed, self.warmup)

    def train(self, family: str) -> tuple[RunRecord, np.ndarray]:
        """Do the job in this process, on one thread so that workers do not compete.

        An outcome is about one field of one ticket; the fields meet only in decoding.
        """
        import torch

        from rlcd_core.policy import DecisionHead, predict

        torch.set_num_threads(1)
        task, prepared = joint_task(), _prepared()
        labels = task.counts.argmax(1)
        sizes = np.array([len(question.options) for _, question in task.items])
        policy = DecisionHead(
            _encoder(), generator=torch.Generator().manual_seed(self.seed)
        )
        order = np.random.default_rng(self.seed).permutation(task.splits["train"])
        labelled, bandit = np.split(order, [self.warmup.rows])
        seen = LabelledEnv(task.counts, seed=self.seed)
        train(
            policy,
            prepared,
            labelled,
            seen,
            WARMUP_ARM,
            self.warmup.config(),
            self.seed,
        )
        result = TrainResult()
        if self.arm.name != WARMUP_ARM.name:
            told = self.arm.needs == "label"
            env: Any = LabelEnv(labels, sizes)
            if told:
                env = LabelledEnv(task.counts, self.seed)
            result = train(
                policy, prepared, bandit, env, self.arm, self.config, self.seed
            )
        found = {
            name: predict(policy, prepared, task.splits[name], batch_size=4096)
            for name in ("validation", "test")
        }
        record = RunRecord(
            family=family,
            arm=self.arm.name,
            seed=self.seed,
            config=self.full_config(),
            metrics={
                name: score(p, task.counts[task.splits[name]])
                for name, p in found.items()
            },
            used={
                "labels": float(self.warmup.rows),
                "outcomes": float(result.outcomes),
                "steps": float(result.steps),
                "seconds": round(result.seconds, 3),
            },
            data_hash=task.data_hash,
        )
        return record, found["test"]


def joint_fields() -> list[JointJob]:
    """Every arm of the chapter on the three-field tickets, five seeds."""
    return [JointJob(arm(name), CONFIG, seed) for name in JOINT_ARMS for seed in SEEDS]


FAMILIES: dict[str, Callable[[], list[JointJob]]] = {"joint_fields": joint_fields}

WITH_PREDICTIONS = frozenset({"joint_fields"})
