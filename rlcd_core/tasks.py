"""Tasks: what is decided, on which rows, and who judges it.

A task holds items that a policy can prepare, counts of verdicts per option for each
item (one-hot where there is a single label), and group-wise splits. A run trains one
arm on one task with one seed and returns its record and its test predictions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from filelock import FileLock

from rlcd_core import metrics
from rlcd_core.data.build import load_items
from rlcd_core.data.rater import expected_brier, load_rater, squared_distance
from rlcd_core.data.split import split_by_group
from rlcd_core.env import Flip, LabelledEnv, RaterEnv, Redraw, Unresolved
from rlcd_core.policy import Item, predict
from rlcd_core.records import RunRecord, config_hash, thin
from rlcd_core.train import Arm, TrainConfig, TrainResult, autocast, train

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
        review, editorial or repeated text never straddle them. Where a protocol fixes
        the rows of the warm-up, they are ``warmup`` and all of ``train`` is for the
        arm; else each seed draws them from ``train``.
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
    """The labelled start that every arm shares: one verdict each on a few rows.

    Without rows there is no such start: an arm begins with the policy as it was made.
    """

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


def label_task(name: str) -> Task:
    """A source with one label a row, in the splits it was built with.

    Parameters
    ----------
    name : str
        A source whose rows share one list of options, such as ``"trec"``.

    Raises
    ------
    ValueError
        Rows differ in their number of options.
    """
    built = {"train": "train", "validation": "val", "test": "test"}
    parts = {split: load_items(name, part) for split, part in built.items()}
    rows = [item for part in parts.values() for item in part]
    edges = np.cumsum([0, *map(len, parts.values())])
    splits = {
        split: np.arange(start, stop)
        for split, start, stop in zip(parts, edges, edges[1:], strict=False)
    }
    return Task(
        f"label-{name}",
        [(item.state, item.question) for item in rows],
        one_hot_counts(rows),
        splits,
    )


def one_hot_counts(rows: Sequence[Any]) -> np.ndarray:
    """(N, K) verdict counts of labelled items: one verdict each."""
    sizes = {len(item.question.options) for item in rows}
    if len(sizes) != 1:
        raise ValueError(
            f"{rows[0].source}: rows have {sorted(sizes)} options; a task of one table "
            "of counts needs the same number in each row"
        )
    return np.eye(sizes.pop(), dtype=np.int64)[[item.label for item in rows]]


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
                kind = ScoredAsWrong if self.as_wrong else Unresolved
                return kind(env, self.rate, seed, self.rate_wrong)
        raise ValueError(
            f"noise kind {self.kind!r} is not none, flip, redraw or unresolved"
        )


class ScoredAsWrong(Unresolved):
    """The common mistake: an outcome that never came counts as a failure."""

    __slots__ = ()

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Outcomes with NaN replaced by 0."""
        return np.nan_to_num(super().outcomes(rows, actions), nan=0.0)


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
        option; ``brier`` in [0, 2]; ``nll`` in nats, p no lower than the least float32
        (87 nats) so that it stays finite; ``ece``: 15 equal-width bins; ``confidence``:
        mean max p; ``gap``: confidence minus accuracy.
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
    elsewhere: Mapping[str, Elsewhere] | None = None,
    on: Literal["bandit", "labelled"] = "bandit",
    policy_config: dict[str, Any] | None = None,
    batch_size: int = 4096,
    checkpoints: Path | None = None,
    progress: bool = False,
) -> tuple[RunRecord, np.ndarray]:
    """Warm up, train one arm, and score it on validation and test rows.

    Parameters
    ----------
    make_policy : callable
        Maps a generator to a fresh policy.
    prepared : optional
        ``policy.prepare(task.items)``, to share between runs.
    elsewhere : mapping of str to Elsewhere, optional
        Rows of other sources that the trained policy is scored on; no choice uses them.
    on : {"bandit", "labelled"}
        Rows that the arm trains on: those the warm-up left, or the warm-up's own again.
    policy_config : dict, optional
        What the policy is, JSON-ready, where it is not the decision head; part of the
        record's configuration. Such runs are few and keep their signals.
    batch_size : int
        Rows a forward pass when probabilities are predicted.
    checkpoints : Path, optional
        Folder of checkpoints. Arms of one seed and start share the warm-up's, which is
        trained once; a run that was killed goes on from its own, which is deleted when
        the run is finished.

    Returns
    -------
    record : RunRecord
    predictions : (n_test + n_elsewhere, K) float32 array
        Test rows, then those of each other source in the order given; a source with
        fewer options is padded with zeros.
    """
    policy = make_policy(torch.Generator().manual_seed(seed))
    prepared = policy.prepare(task.items) if prepared is None else prepared
    rng = np.random.default_rng([seed, _WARMUP])
    order = rng.permutation(task.splits["train"])
    labelled, bandit = order[: warmup.rows], order[warmup.rows :]
    if "warmup" in task.splits:
        labelled, bandit = task.splits["warmup"][: warmup.rows], task.splits["train"]
    if len(labelled) < warmup.rows:
        raise ValueError(
            f"task {task.name!r} has {len(labelled)} rows, too few for a warm-up of "
            f"{warmup.rows}"
        )

    def evaluate(p: Any, split: str = "validation") -> dict[str, float]:
        rows = task.splits[split]
        return score(stated(p, prepared, rows), task.counts[rows])

    def stated(p: Any, of: Any, rows: Any = None) -> np.ndarray:
        with autocast(next(p.parameters()).device):  # as in training
            return predict(p, of, rows, batch_size=batch_size)

    if checkpoints:
        checkpoints.mkdir(parents=True, exist_ok=True)

    def place(name: str, of: dict[str, Any]) -> Path | None:
        return checkpoints and checkpoints / f"{name}-{config_hash(of)}.safetensors"

    more = elsewhere_config(elsewhere or {}, on)
    full = run_config(task, arm, config, seed, warmup, noise, policy_config, more)
    start = LabelledEnv(task.counts, seed=[seed, _LABELS])
    later = ("arm", "train", "noise", "on", "elsewhere")
    shared = {k: v for k, v in full.items() if k not in later}
    started = replace(
        warmup.config(),
        weight_decay=config.weight_decay,
        micro_batch=config.micro_batch,
        checkpoint_every=config.checkpoint_every,
    )
    shared |= {"start": asdict(started)}
    kept = place("warmup", shared)
    # The second of two arms that begin together waits for the first.
    with FileLock(f"{kept}.lock") if kept else nullcontext():
        warmed = (
            train(
                policy,
                prepared,
                labelled,
                start,
                WARMUP_ARM,
                started,
                seed,
                evaluate=lambda p: evaluate(p, "test"),
                checkpoint=kept,
            )
            if warmup.rows
            else TrainResult(evaluations=[evaluate(policy, "test")])
        )
    before = {k: v for k, v in warmed.evaluations[-1].items() if k != "step"}
    result = TrainResult()
    if arm.name != WARMUP_ARM.name:
        kind = LabelledEnv if arm.needs == "label" else RaterEnv
        env = noise.wrap(
            kind(task.counts, [seed, _VERDICTS], arm.shared_outcome), [seed, _NOISE]
        )
        result = train(
            policy,
            prepared,
            bandit if on == "bandit" else labelled,
            env,
            arm,
            config,
            seed,
            evaluate=evaluate if config.eval_every else None,
            checkpoint=place(arm.name, full),
            progress=progress,
        )
    test = task.splits["test"]
    p = stated(policy, prepared, test)
    others = {
        name: stated(policy, other.prepared)
        for name, other in (elsewhere or {}).items()
    }
    record = RunRecord(
        family=family,
        arm=arm.name,
        seed=int(seed),
        config=full,
        metrics={
            "validation": evaluate(policy),
            "test": score(p, task.counts[test]) | _distance(p, task.counts[test]),
            "test_before": before,
            **{name: score(q, elsewhere[name].counts) for name, q in others.items()},
        },
        used={
            "labels": float(warmup.rows),
            "outcomes": float(result.outcomes),
            "prompts": float(result.prompts),
            "forward_passes": float(result.forward_passes),
            "steps": float(result.steps),
            "seconds": round(result.seconds, 3),
        },
        curve=[_rounded(row) for row in result.evaluations],
        # Runs without evaluations are cells of a grid: their metrics are enough.
        signals=(
            thin(result.history or warmed.history)
            if policy_config or config.eval_every
            else []
        ),
        stopped=result.stopped,
        data_hash=task.data_hash,
    )
    if result.steps and checkpoints:
        place(arm.name, full).unlink()
    width = p.shape[1]
    rest = [np.pad(q, ((0, 0), (0, width - q.shape[1]))) for q in others.values()]
    return record, np.concatenate([p, *rest])


def run_config(
    task: Task,
    arm: Arm,
    config: TrainConfig,
    seed: int,
    warmup: Warmup = Warmup(),
    noise: Noise = Noise(),
    policy: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that decides a run's result, JSON-ready; its hash is the key.

    The warm-up alone spends no outcomes, whatever the budget of the others. ``policy``
    is left out where it is None, the decision head of old; ``more`` is what few runs
    need to say (:func:`elsewhere_config`).
    """
    if arm.name == WARMUP_ARM.name:
        config = replace(config, outcomes=0)
    return {
        "task": task.name,
        "data": task.data_hash,
        "arm": asdict(arm),
        "train": _without_later(asdict(config)),
        "warmup": _without_later(asdict(warmup)),
        "noise": asdict(noise),
        "seed": int(seed),
        **({"policy": policy} if policy else {}),
        **(more or {}),
    }


@dataclass(frozen=True)
class Elsewhere:
    """Rows of another source, as the policy prepared them.

    Parameters
    ----------
    prepared : Prepared
    counts : (N, K) int array
        Verdicts per option; K at most that of the task.
    sha256 : str
        Hash of the built source, so that the record's key names the bytes.
    """

    prepared: Any = field(repr=False)
    counts: np.ndarray = field(repr=False)
    sha256: str


def elsewhere_config(
    elsewhere: Mapping[str, Any], on: str = "bandit"
) -> dict[str, Any]:
    """What a record's configuration says of other sources and rows; {} if nothing.

    ``elsewhere`` maps names to anything with ``sha256``.
    """
    told: dict[str, Any] = {}
    if elsewhere:
        told["elsewhere"] = {n: other.sha256 for n, other in elsewhere.items()}
    if on != "bandit":
        told["on"] = on
    return told


def _distance(p: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    # Needs two verdicts a row; a source with one label a row has no such number.
    if counts.sum(-1).min() < 2:
        return {}
    return {"distance": float(squared_distance(p, counts).mean())}


# Settings that came later are left out at their default: older runs keep their key.
_LATER = {"replays": 0}


def _without_later(config: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in _LATER or v != _LATER[k]}


def _rounded(row: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in row.items()}
