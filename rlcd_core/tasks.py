"""Tasks: what is decided, on which rows, and who judges it.

A task holds items that a policy can prepare, counts of verdicts per option for each
item (one-hot where there is a single label), and group-wise splits. A run trains one
arm on one task with one seed and returns its record and its test predictions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rlcd_core import metrics
from rlcd_core.data.rater import expected_brier, load_rater, squared_distance
from rlcd_core.data.split import split_by_group
from rlcd_core.env import Flip, LabelledEnv, RaterEnv, Redraw, Unresolved
from rlcd_core.policy import Item, predict
from rlcd_core.records import RunRecord, thin
from rlcd_core.train import Arm, TrainConfig, train

# Streams of one seed that must not touch each other.
_WARMUP, _VERDICTS, _LABELS, _NOISE = 11, 12, 13, 14


@dataclass(frozen=True)
class Task:
    """Items, verdicts and splits.

    Parameters
    ----------
    name : str
    items : list of (state, question)
    counts : (N, K) int array
        Verdicts per option; each row sums to at least 1.
    splits : dict of (n,) int arrays
        ``train``, ``validation`` and ``test``; made by group, so that rows of one
        review, editorial or repeated text never straddle them.
    """

    name: str
    items: list[Item] = field(repr=False)
    counts: np.ndarray = field(repr=False)
    splits: dict[str, np.ndarray] = field(repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        items: list[Item],
        counts: np.ndarray,
        groups: Sequence[str],
        fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    ) -> Task:
        """A task whose groups are split once and for all (seed 0 of the split)."""
        part = split_by_group(groups, fractions, seed=0)
        names = ("train", "validation", "test")
        splits = {n: np.flatnonzero(part == i) for i, n in enumerate(names)}
        return cls(name, items, counts, splits)

    @cached_property
    def data_hash(self) -> str:
        """First 16 hex digits over items, verdicts and splits."""
        digest = hashlib.sha256(np.ascontiguousarray(self.counts, np.int64).tobytes())
        for state, question in self.items:
            digest.update(f"{state}\0{question}\n".encode())
        for rows in self.splits.values():
            digest.update(np.ascontiguousarray(rows, np.int64).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Warmup:
    """The labelled start that every arm shares: one verdict each on a few rows."""

    rows: int = 320
    epochs: int = 2
    batch: int = 32
    learning_rate: float = 1e-3

    def config(self) -> TrainConfig:
        """The training configuration of the warm-up."""
        return TrainConfig(
            learning_rate=self.learning_rate,
            outcomes=self.rows * self.epochs,
            outcomes_per_step=self.batch,
        )


def rater_task(name: str, reading: int = 3) -> Task:
    """The rater bandit on one source: an outcome is one person's verdict.

    Parameters
    ----------
    name : {"movie", "amazon", "nyt", "tweets"}
    reading : {3, 5}
        Negative / neutral / positive, or five levels.
    """
    data = load_rater(name, reading)
    items = [(text, data.question) for text in data.texts]
    return Task.of(f"rater-{name}-{reading}", items, data.counts, data.groups)


@dataclass(frozen=True)
class Noise:
    """What stands between the true outcome and what the arm hears.

    Parameters
    ----------
    kind : {"none", "flip", "redraw", "unresolved"}
    rate : float
        Chance of a flip or redraw; for ``unresolved`` the chance that the outcome of a
        right action resolves.
    rate_wrong : float
        For ``unresolved``: the chance that the outcome of a wrong action resolves.
    as_wrong : bool
        Whether unresolved outcomes are scored as wrong instead of left out.
    """

    kind: str = "none"
    rate: float = 0.0
    rate_wrong: float = 0.0
    as_wrong: bool = False

    def wrap(self, env: Any, seed: Any) -> Any:
        """The environment as the arm meets it."""
        match self.kind:
            case "none":
                return env
            case "flip":
                return Flip(env, self.rate, seed)
            case "redraw":
                return Redraw(env, self.rate, seed)
            case "unresolved":
                hidden = Unresolved(env, self.rate, seed, self.rate_wrong)
                return ScoredAsWrong(hidden) if self.as_wrong else hidden
        raise ValueError(
            f"noise kind {self.kind!r} is not none, flip, redraw or unresolved"
        )


class ScoredAsWrong:
    """The common mistake: an outcome that never came counts as a failure."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Outcomes with NaN replaced by 0."""
        return np.nan_to_num(self._env.outcomes(rows, actions), nan=0.0)

    def state_dict(self) -> dict[str, Any]:
        """State of the wrapped environment."""
        return self._env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the wrapped environment."""
        self._env.load_state_dict(state)


WARMUP_ARM = Arm("warmup", "Warm-up", "nll")


def score(p: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Test metrics as expectations over all of a row's verdicts.

    Parameters
    ----------
    p : (n, K) array
        Stated probabilities.
    counts : (n, K) int array
        Verdicts per option.

    Returns
    -------
    dict
        ``accuracy``: chance that a random verdict agrees with the most probable
        option; ``brier`` in [0, 2]; ``nll`` in nats; ``ece``: 15 equal-width bins;
        ``confidence``: mean max p; ``gap``: confidence minus accuracy.
    """
    p = np.asarray(p, dtype=np.float64)
    share = counts / counts.sum(-1, keepdims=True)
    rows = np.arange(len(p))
    chosen = p.argmax(-1)
    confidence, right = p[rows, chosen], share[rows, chosen]
    tiny = np.finfo(np.float32).tiny
    return {
        "accuracy": float(right.mean()),
        "brier": float(expected_brier(p, counts).mean()),
        "nll": float(-(share * np.log(np.maximum(p, tiny))).sum(-1).mean()),
        "ece": float(metrics.ece(confidence, right)),
        "confidence": float(confidence.mean()),
        "gap": float(confidence.mean() - right.mean()),
    }


def run(
    task: Task,
    make_policy: Callable[[torch.Generator], Any],
    arm: Arm,
    config: TrainConfig,
    seed: int,
    *,
    family: str,
    warmup: Warmup = Warmup(),
    noise: Noise = Noise(),
    prepared: Any = None,
    progress: bool = False,
) -> tuple[RunRecord, np.ndarray]:
    """Warm up, train one arm, and score it on validation and test rows.

    Parameters
    ----------
    make_policy : callable
        Maps a generator to a fresh policy.
    prepared : optional
        ``policy.prepare(task.items)``, to share between runs.

    Returns
    -------
    record : RunRecord
    predictions : (n_test, K) float32 array
    """
    policy = make_policy(torch.Generator().manual_seed(seed))
    prepared = policy.prepare(task.items) if prepared is None else prepared
    rng = np.random.default_rng([seed, _WARMUP])
    order = rng.permutation(task.splits["train"])
    labelled, bandit = order[: warmup.rows], order[warmup.rows :]

    def evaluate(p: Any, split: str = "validation") -> dict[str, float]:
        rows = task.splits[split]
        return score(predict(p, prepared, rows, batch_size=4096), task.counts[rows])

    start = LabelledEnv(task.counts, seed=[seed, _LABELS])
    train(policy, prepared, labelled, start, WARMUP_ARM, warmup.config(), seed)
    before = evaluate(policy, "test")
    if arm.name == WARMUP_ARM.name:
        config = replace(config, outcomes=0)
        result = None
    else:
        kind = LabelledEnv if arm.needs == "label" else RaterEnv
        env = noise.wrap(
            kind(task.counts, [seed, _VERDICTS], arm.shared_outcome), [seed, _NOISE]
        )
        result = train(
            policy,
            prepared,
            bandit,
            env,
            arm,
            config,
            seed,
            evaluate=evaluate if config.eval_every else None,
            progress=progress,
        )
    test = task.splits["test"]
    p = predict(policy, prepared, test, batch_size=4096)
    record = RunRecord(
        family=family,
        arm=arm.name,
        seed=int(seed),
        config=run_config(task, arm, config, seed, warmup, noise),
        metrics={
            "validation": evaluate(policy),
            "test": score(p, task.counts[test])
            | {"distance": float(squared_distance(p, task.counts[test]).mean())},
            "test_before": before,
        },
        used={
            "labels": float(warmup.rows),
            "outcomes": float(result.outcomes) if result else 0.0,
            "prompts": float(result.prompts) if result else 0.0,
            "forward_passes": float(result.forward_passes) if result else 0.0,
            "steps": float(result.steps) if result else 0.0,
            "seconds": round(result.seconds, 3) if result else 0.0,
        },
        curve=[_rounded(row) for row in result.evaluations] if result else [],
        # Runs without evaluations are cells of a grid: their metrics are enough.
        signals=thin(result.history) if result and config.eval_every else [],
        stopped=bool(result and result.stopped),
        data_hash=task.data_hash,
    )
    return record, p


def run_config(
    task: Task,
    arm: Arm,
    config: TrainConfig,
    seed: int,
    warmup: Warmup = Warmup(),
    noise: Noise = Noise(),
) -> dict[str, Any]:
    """Everything that decides a run's result, JSON-ready; its hash is the key."""
    return {
        "task": task.name,
        "data": task.data_hash,
        "arm": asdict(arm),
        "train": asdict(config),
        "warmup": asdict(warmup),
        "noise": asdict(noise),
        "seed": int(seed),
    }


def _rounded(row: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in row.items()}
