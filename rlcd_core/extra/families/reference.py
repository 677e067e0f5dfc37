"""The reference protocol: Qwen3-0.6B-Base on the eight sources, every weight trained.

``rlcd runs reference`` trains every arm, ``rlcd runs reference --arm rlcd_loo`` one of
them. It wants a GPU and the dataset hub. Finished runs are kept, a killed one goes on
from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from rlcd_core.arms import ARMS
from rlcd_core.data.build import MIXTURES, mix
from rlcd_core.data.manifest import SourceError
from rlcd_core.extra.letterjob import LetterJob
from rlcd_core.tasks import WARMUP_ARM, Task, Warmup
from rlcd_core.train import Arm, TrainConfig

SEEDS = (0, 1, 2)

# The supervised controls are the oracle's objective on other rows.
CONTINUED = Arm("supervised", "Supervised continuation", "nll")
LABELS_32K = Arm("labels_32k", "32k-label reference", "nll")
OUTCOME_ARMS = ("rlcd_loo", "rlvr_loo", "rlvr_low", "rlcd_low")


@dataclass(frozen=True)
class Protocol:
    """Everything that the protocol fixes; a test shrinks the sizes and nothing else.

    Parameters
    ----------
    model : str
        Model of a manifest, or a folder.
    preset : str
        Key of ``rlcd_core.data.build.MIXTURES``.
    warmup_rows : int
        The warm-up learns from rows 0 to this, once.
    label_rows, rows : int
        Outcome arms and the oracle train on rows ``label_rows`` to ``rows``; the
        large-label reference on rows 0 to ``label_rows``.
    validation, test : int
        Rows of the evaluations during training, and of the final one.
    supervised_prompts, prompts : int
        Prompts a step with labels in the controls, and of the arms that are compared.
    micro_batch : int
        Prompts a forward pass: memory, not learning, depends on it.
    every : int
        Steps between evaluations, and between checkpoints.
    probe_rows : int
        Tickets of each kind of the known-posterior probe.
    """

    model: str = "qwen3"
    preset: str = "protocol"
    max_tokens: int = 512
    warmup_rows: int = 6400
    label_rows: int = 32_000
    rows: int = 64_000
    validation: int = 2000
    test: int = 8000
    supervised_prompts: int = 64
    prompts: int = 128
    steps: int = 500
    rate: float = 2e-5
    micro_batch: int = 2
    every: int = 50
    probe_rows: int = 300

    def config(self, prompts: int, group_size: int = 1) -> TrainConfig:
        """Sizes and optimiser of one arm."""
        outcomes = prompts * group_size
        return TrainConfig(
            learning_rate=self.rate,
            outcomes=self.steps * outcomes,
            outcomes_per_step=outcomes,
            warmup_fraction=0.05,
            final_rate=0.1,
            weight_decay=0.1,
            betas=(0.9, 0.95),
            micro_batch=self.micro_batch,
            eval_every=self.every,
            stop_drop=0.10,
            stop_patience=3,
            checkpoint_every=self.every,
        )


PROTOCOL = Protocol()


@cache
def reference_task(protocol: Protocol = PROTOCOL, labels: bool = False) -> Task:
    """The mixture as it is shown, with the protocol's rows.

    Parameters
    ----------
    labels : bool
        Train on rows 0 to ``label_rows``, without a warm-up, instead of the rest.

    Raises
    ------
    SourceError
        A source cannot be had, or the mixture holds no row for the arms.
    """
    names, per_source = MIXTURES[protocol.preset]
    mixed = mix(names, per_source)
    found = {
        "train": mixed["train"][: protocol.rows],
        "validation": mixed["val"][: protocol.validation],
        "test": mixed["test"][: protocol.test],
    }
    short = [name for name in ("validation", "test") if not found[name]]
    if short or len(found["train"]) <= protocol.label_rows:
        raise SourceError(
            f"the mixture {protocol.preset!r} has {len(found['train']):,} training, "
            f"{len(found['validation']):,} validation and {len(found['test']):,} test "
            f"rows; the arms train on rows from {protocol.label_rows:,} on: build its "
            f"sources again (rlcd data build {' '.join(names)})"
        )
    items = [item for part in found.values() for item in part]
    edges = np.cumsum([0, *map(len, found.values())])
    splits = {
        name: np.arange(start, stop)
        for name, start, stop in zip(found, edges[:-1], edges[1:], strict=True)
    }
    train = splits["train"]
    splits["warmup"] = train[: protocol.warmup_rows]
    splits["train"] = (
        train[: protocol.label_rows] if labels else train[protocol.label_rows :]
    )
    width = max(len(item.question.options) for item in items)
    counts = np.eye(width, dtype=np.int64)[[item.label for item in items]]
    name = f"reference-{protocol.preset}{'-labels' if labels else ''}"
    return Task(name, [(i.state, i.question) for i in items], counts, splits)


def reference_jobs(
    protocol: Protocol = PROTOCOL, seeds: tuple[int, ...] = SEEDS
) -> list[LetterJob]:
    """The warm-up, the controls and the outcome arms, seed by seed."""
    start = Warmup(
        rows=protocol.warmup_rows,
        epochs=1,
        batch=protocol.supervised_prompts,
        learning_rate=protocol.rate,
    )
    supervised = protocol.config(protocol.supervised_prompts)
    oracle = protocol.config(protocol.prompts)
    group = ARMS["rlcd_loo"].group_size
    bandit = protocol.config(protocol.prompts, group)

    def job(arm: Arm, config: TrainConfig, seed: int, **how: Any) -> LetterJob:
        labels = how.pop("labels", False)
        return LetterJob(
            make_task=partial(reference_task, protocol, labels),
            arm=arm,
            config=config,
            seed=seed,
            warmup=replace(start, rows=0) if labels else start,
            model=protocol.model,
            max_tokens=protocol.max_tokens,
            probe_rows=protocol.probe_rows,
            **how,
        )

    return [
        made
        for seed in seeds
        for made in (
            job(WARMUP_ARM, supervised, seed),
            *(job(ARMS[name], bandit, seed) for name in OUTCOME_ARMS),
            job(ARMS["nll"], oracle, seed),
            job(CONTINUED, supervised, seed, on="labelled"),
            job(LABELS_32K, supervised, seed, labels=True),
        )
    ]


def reference() -> list[LetterJob]:
    """Qwen3-0.6B-Base, the reference protocol: eight arms, three seeds, on a GPU."""
    return reference_jobs()


FAMILIES: dict[str, Callable[[], list[Any]]] = {"reference": reference}
WITH_PREDICTIONS = frozenset({"reference"})
ON_GPU = frozenset({"reference"})
UNFINISHED = frozenset({"reference"})
