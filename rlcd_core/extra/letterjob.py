"""A job that trains all of a causal language model, on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlcd_core.data.manifest import cache_dir, load_manifest, sha256_of
from rlcd_core.data.nota import NOTA, present
from rlcd_core.data.triage import probe, probe_summary
from rlcd_core.extra.check import model_folder
from rlcd_core.records import RunRecord
from rlcd_core.tasks import Task, Warmup, run, run_config
from rlcd_core.train import Arm, TrainConfig


@dataclass(frozen=True)
class LetterJob:
    """One run of a letter policy with every weight trained.

    A run that is killed goes on from its last checkpoint, and the arms of one seed
    share one warm-up. Where a runtime loses its disk, let ``RLCD_CACHE`` (checkpoints)
    and ``RLCD_RESULTS`` (records) name folders that outlive it.

    Parameters
    ----------
    make_task : callable
        Returns the task; called often, so let it be cached.
    model : str
        Model of a manifest, loaded at its pinned revision, or a folder.
    max_tokens : int, optional
        Longest prompt; the end of a longer state is cut.
    on : {"bandit", "labelled"}
        As :func:`rlcd_core.tasks.run` has it.
    probe_rows : int
        Tickets of each kind of the known-posterior probe, asked after training.
    """

    make_task: Callable[[], Task]
    arm: Arm
    config: TrainConfig
    seed: int
    warmup: Warmup
    model: str
    max_tokens: int | None = None
    on: Literal["bandit", "labelled"] = "bandit"
    batch_size: int = 64
    probe_rows: int = 0

    def policy_config(self) -> dict[str, Any]:
        """What the policy is, for the record: model, its revision, longest prompt."""
        found: dict[str, Any] = {"trained": "all", "max_tokens": self.max_tokens}
        if Path(self.model).is_dir():
            weights = sorted(Path(self.model).glob("*.safetensors"))
            return found | {
                "model": "folder",
                "sha256": [sha256_of(w) for w in weights],
            }
        manifest = load_manifest(self.model)
        revision = manifest.version or ""
        if manifest.members:
            revision = manifest.members[0].sha256[:16]
        return found | {"model": self.model, "revision": revision}

    def full_config(self) -> dict[str, Any]:
        """What :func:`rlcd_core.tasks.run` will put into the record."""
        return run_config(
            self.make_task(),
            self.arm,
            self.config,
            self.seed,
            self.warmup,
            policy=self.policy_config(),
            more={} if self.on == "bandit" else {"on": self.on},
        )

    def train(self, family: str) -> tuple[RunRecord, np.ndarray]:
        """Do the job; autocast in bf16, or in fp16 below compute capability 8.0."""
        import torch

        from rlcd_core.policy.letter import LetterPolicy

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        task = self.make_task()

        made: list[LetterPolicy] = []

        def fresh(generator: torch.Generator) -> LetterPolicy:
            folder = model_folder(self.model)
            cut = {"max_tokens": self.max_tokens, "truncate": True}
            made.append(LetterPolicy.load(folder, **cut).to(device))
            return made[0]

        record, p = run(
            task,
            fresh,
            self.arm,
            self.config,
            self.seed,
            family=family,
            warmup=self.warmup,
            on=self.on,
            policy_config=self.policy_config(),
            batch_size=self.batch_size,
            checkpoints=cache_dir() / "checkpoints",
            progress=True,
        )
        more = {"nota": nota_rates(p, task)} | self._probed(made[0])
        return replace(record, metrics=record.metrics | more), p

    def _probed(self, policy: Any) -> dict[str, dict[str, float]]:
        """What the policy states where the posterior is known, by kind of ticket."""
        from rlcd_core.policy import predict
        from rlcd_core.train import autocast

        found = {}
        kinds = (
            probe(self.probe_rows, np.random.default_rng(0)) if self.probe_rows else {}
        )
        for kind, rows in kinds.items():
            shown = present(rows, 0, shuffle=True)
            prepared = policy.prepare([(item.state, item.question) for item in shown])
            with autocast(policy.device):
                p = predict(policy, prepared, batch_size=self.batch_size)
            found[f"probe_{kind}"] = probe_summary(p, shown)
        return found


def nota_rates(p: np.ndarray, task: Task) -> dict[str, float]:
    """How "None of the above" is used on the test rows.

    Parameters
    ----------
    p : (n_test, K) array
        Stated probabilities.

    Returns
    -------
    dict
        ``recall``: share answered so among rows where it is right; ``false_alarm``:
        the same among rows where it is offered and wrong; ``right`` and ``wrong``, how
        many rows each is of. A rate of no row is left out.
    """
    rows = task.splits["test"]
    options = [task.items[row][1].options for row in rows]
    place = np.array([o.index(NOTA) if NOTA in o else -1 for o in options])
    chosen, true = p.argmax(-1) == place, task.counts[rows].argmax(-1) == place
    right, wrong = (place >= 0) & true, (place >= 0) & ~true
    found = {"right": float(right.sum()), "wrong": float(wrong.sum())}
    if right.any():
        found["recall"] = float(chosen[right].mean())
    if wrong.any():
        found["false_alarm"] = float(chosen[wrong].mean())
    return found
