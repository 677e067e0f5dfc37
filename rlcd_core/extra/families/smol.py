"""SmolLM2-135M on TREC: the top third of the layers on a CPU, all of it on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np

from rlcd_core.data.manifest import cache_dir, load_manifest
from rlcd_core.extra.jobs import arm, best_cell
from rlcd_core.extra.letterjob import LetterJob
from rlcd_core.records import RunRecord, Store
from rlcd_core.tasks import (
    WARMUP_ARM,
    Task,
    Warmup,
    label_task,
    one_hot_counts,
    run,
    run_config,
)
from rlcd_core.train import TrainConfig

ARM_NAMES = ("warmup", "rlcd", "rlcd_loo", "rlvr_loo", "verdict_nll", "nll")
SEEDS = (0, 1, 2)
PILOT_SEED = 100
# A factor of about 3 between neighbours. Of the warm-up's four rates 2e-4 won; at more
# than that the arms, which go on from there, can only forget, so theirs reach lower.
START_RATES = (6e-5, 2e-4, 6e-4, 2e-3)
PILOT_RATES = (2e-5, 6e-5, 2e-4)
STEPS, PILOT_STEPS = 300, 30
# Four outcomes a step, whoever spends them: 4 prompts, or 1 of four actions.
OUTCOMES_PER_STEP = 4
TOP_LAYERS = 10
# The first rows of the built splits, whose order is random and fixed.
ROWS = {"train": 800, "validation": 120, "test": 400}
_BUILT = {"train": "train", "validation": "val", "test": "test"}
WARMUP_ROWS, WARMUP_EPOCHS = 256, 3


@dataclass(frozen=True)
class SmolJob:
    """One run of the top layers on TREC, fixed option order.

    In float32: many processors have no bfloat16 products, and are 40 times slower then.
    """

    arm: Any
    config: TrainConfig
    seed: int
    warmup: Warmup

    @property
    def task(self) -> Task:
        """The task; the pilot's where the seed is the pilot's."""
        return trec_task(self.seed == PILOT_SEED)

    def full_config(self) -> dict[str, Any]:
        """What :func:`rlcd_core.tasks.run` will put into the record."""
        return run_config(
            self.task,
            self.arm,
            self.config,
            self.seed,
            self.warmup,
            policy=policy_config(),
        )

    def train(self, family: str) -> tuple[RunRecord, np.ndarray]:
        """Do the job in this process, on one thread so that workers do not compete."""
        import torch

        torch.set_num_threads(1)
        return run(
            self.task,
            lambda generator: _fresh_policy(),
            self.arm,
            self.config,
            self.seed,
            family=family,
            warmup=self.warmup,
            prepared=_prepared(),
            policy_config=policy_config(),
            batch_size=32,
            checkpoints=cache_dir() / "checkpoints",
        )


@cache
def trec_task(pilot: bool = False) -> Task:
    """Kind of answer, six classes, options always in the same order.

    A pilot meets no test row: what is scored as such are a few validation rows again.
    """
    from rlcd_core.data.build import load_items

    found = {s: load_items("trec", _BUILT[s])[:n] for s, n in ROWS.items()}
    items = [item for part in found.values() for item in part]
    edges = np.cumsum([0, *map(len, found.values())])
    splits = {
        name: np.arange(start, stop)
        for name, start, stop in zip(found, edges[:-1], edges[1:], strict=True)
    }
    if pilot:
        splits["test"] = splits["validation"][:16]
    width = len(items[0].question.options)
    counts = np.eye(width, dtype=np.int64)[[item.label for item in items]]
    name = "trec-pilot" if pilot else "trec"
    return Task(name, [(i.state, i.question) for i in items], counts, splits)


def policy_config() -> dict[str, Any]:
    """What the policy is, for the record."""
    return {
        "model": "smollm2",
        "sha256": load_manifest("smollm2").members[0].sha256[:16],
        "top_layers": TOP_LAYERS,
        "dtype": "float32",
    }


@cache
def _policy() -> tuple[Any, list[Any]]:
    from rlcd_core.policy.letter import LetterPolicy
    from rlcd_core.policy.top import TopPolicy

    policy = TopPolicy(LetterPolicy.load(), TOP_LAYERS)
    return policy, [p.detach().clone() for p in policy.parameters() if p.requires_grad]


def _fresh_policy() -> Any:
    """The one policy of this process, with the weights it was loaded with."""
    import torch

    policy, initial = _policy()
    trained = [p for p in policy.parameters() if p.requires_grad]
    with torch.no_grad():
        for parameter, value in zip(trained, initial, strict=True):
            parameter.copy_(value)
    return policy


@cache
def _prepared() -> Any:
    return _policy()[0].prepare(trec_task().items)


def _config(rate: float, steps: int) -> TrainConfig:
    return TrainConfig(
        learning_rate=rate,
        outcomes=steps * OUTCOMES_PER_STEP,
        outcomes_per_step=OUTCOMES_PER_STEP,
    )


def _warmup(rate: float) -> Warmup:
    return Warmup(rows=WARMUP_ROWS, epochs=WARMUP_EPOCHS, batch=8, learning_rate=rate)


def smol_trec_start() -> list[SmolJob]:
    """Which rate for the warm-up: validation rows, a seed that no result uses."""
    return [
        SmolJob(arm("warmup"), _config(rate, STEPS), PILOT_SEED, _warmup(rate))
        for rate in START_RATES
    ]


def smol_trec_pilot() -> list[SmolJob]:
    """Which rate for each arm: 30 steps on validation rows and a seed of its own."""
    start = _warmup(chosen_rate("warmup"))
    return [
        SmolJob(arm(name), _config(rate, PILOT_STEPS), PILOT_SEED, start)
        for rate in PILOT_RATES
        for name in ARM_NAMES
        if name != WARMUP_ARM.name
    ]


@cache
def _pilot_records() -> tuple[RunRecord, ...]:
    families = ("smol_trec_start", "smol_trec_pilot")
    return tuple(r for family in families for r in Store(family).records())


def chosen_rate(name: str) -> float:
    """The rate of the pilot with the best validation score.

    RLVR by accuracy, every other arm by Brier score, as everywhere in the book.

    Raises
    ------
    LookupError
        The pilot of this arm is not complete.
    """
    first = name == WARMUP_ARM.name
    return best_cell(
        (r for r in _pilot_records() if r.arm == name),
        itemgetter("learning_rate"),
        "accuracy" if name.startswith("rlvr") else "brier",
        cells=len(START_RATES if first else PILOT_RATES),
        seeds=1,
        what=f"arm {name!r}",
        family="smol_trec_start" if first else "smol_trec_pilot",
    )


def smol_trec() -> list[SmolJob]:
    """SmolLM2-135M on TREC, top 10 of 30 layers, six arms, three seeds."""
    start = _warmup(chosen_rate("warmup"))
    return [
        SmolJob(
            arm(name),
            _config(
                start.learning_rate if name == "warmup" else chosen_rate(name), STEPS
            ),
            seed,
            start,
        )
        for seed in SEEDS
        for name in ARM_NAMES
    ]


def smol_trec_control() -> list[SmolJob]:
    """RLVR at the rate that RLCD's seed recipe chose: was it the reward or the rate?"""
    start = _warmup(chosen_rate("warmup"))
    config = _config(chosen_rate("rlcd_loo"), STEPS)
    return [SmolJob(arm("rlvr_loo"), config, seed, start) for seed in SEEDS]


@cache
def shuffled_task() -> Task:
    """All of TREC, the options of each question in an order of its own."""
    from rlcd_core.data.build import load_items
    from rlcd_core.data.nota import present

    task = label_task("trec")
    rows = [i for part in _BUILT.values() for i in load_items("trec", part)]
    shown = present(rows, 0, shuffle=True)
    items = [(item.state, item.question) for item in shown]
    return Task("trec-shuffled", items, one_hot_counts(shown), task.splits)


# As the reference protocol has them, at the size of this source.
GPU_ARMS = (*ARM_NAMES, "rlvr_low")
GPU = TrainConfig(
    learning_rate=2e-5,
    outcomes=300 * 128,
    outcomes_per_step=128,
    weight_decay=0.1,
    micro_batch=32,
    eval_every=50,
    checkpoint_every=50,
)


def smol_trec_gpu() -> list[LetterJob]:
    """SmolLM2-135M on TREC, all layers, shuffled options, two RLVR rates, on a GPU."""
    return [
        LetterJob(
            make_task=shuffled_task,
            arm=arm(name),
            config=GPU,
            seed=seed,
            warmup=Warmup(rows=320, epochs=2, batch=32, learning_rate=2e-5),
            model="smollm2",
        )
        for seed in SEEDS
        for name in GPU_ARMS
    ]


FAMILIES: dict[str, Callable[[], list[Any]]] = {
    "smol_trec_start": smol_trec_start,
    "smol_trec_pilot": smol_trec_pilot,
    "smol_trec": smol_trec,
    "smol_trec_control": smol_trec_control,
    "smol_trec_gpu": smol_trec_gpu,
}

WITH_PREDICTIONS = frozenset({"smol_trec", "smol_trec_control", "smol_trec_gpu"})
ON_GPU = frozenset({"smol_trec_gpu"})
# Whoever finishes one of them takes it out; a test asks for its records from then on.
UNFINISHED = frozenset({"smol_trec_gpu"})
