"""Synthetic triage with a letter reader trained from nothing.

Every ticket's posterior is known, so that calibration is measured against the truth and
not against a bin of outcomes: validation and test rows hold `VERDICTS` verdicts in the
exact proportions of their posterior. Training rows hold one label each, drawn once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcd_core.data.items import Item
from rlcd_core.data.manifest import cache_dir
from rlcd_core.data.nota import NOTA, inject_nota, shuffle_options
from rlcd_core.data.split import split_by_group
from rlcd_core.data.triage import tickets
from rlcd_core.extra.jobs import arm, best_cell
from rlcd_core.extra.scratch import Reader
from rlcd_core.files import write_atomically
from rlcd_core.records import RunRecord, Store, results_dir
from rlcd_core.tasks import (
    Task,
    Warmup,
    elsewhere_config,
    run,
    run_config,
)
from rlcd_core.train import Arm, TrainConfig

if TYPE_CHECKING:
    import torch

    from rlcd_core.policy import LetterPolicy

VERDICTS = 80
"""Verdicts of a row that is scored: .9, .5 and 9/16 are whole multiples of 1/80."""

NOTA_RIGHT, NOTA_DISTRACTOR = 0.15, 0.35
READER = Reader()
# The control that sees no new row: the warm-up's own labels, again and again.
SUPERVISED = Arm("supervised", "Supervised continuation", "nll")

# --- Reading: how many examples until options are read at all -------------------

READING_SEEDS = (0, 1, 2, 3)
# Every fifth surface form is kept for reading; the arms meet the other four.
READING_WORDING, DECIDING_WORDING = "held_out", "seen"
# A constant rate: on a falling one the end of the plateau would depend on the budget.
READING = TrainConfig(
    learning_rate=3e-3,
    outcomes_per_step=64,
    warmup_fraction=0.0,
    final_rate=1.0,
    eval_every=10,
)
READING_ROWS = {"fixed": 9_600, "shuffled": 25_600}
# Smaller weights at the start, where theory says that the plateau is longer.
SMALLER_SPREADS, SPREAD_SEEDS = (0.05, 0.025), (0, 1, 2)

# --- Deciding: the arms -----------------------------------------------------------

# Every run starts from one reader of the first part, as others start from a pretrained
# model: it finds options and says their letter, and it knows a fifth of the wording.
BASE_SEED = 3
WARMUP = Warmup(rows=5120, epochs=1, batch=32, learning_rate=1e-3)
DECIDING = TrainConfig(learning_rate=1e-3, outcomes=12_800, outcomes_per_step=64)
ARM_NAMES = (
    "nll",
    "supervised",
    "rlcd_loo",
    "rlcd",
    "residual_ht",
    "one_bit_log",
    "verdict_nll",
    "rlvr_loo",
)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
TUNING_SEEDS = (100, 101)
FRESH_SEEDS = (200, 201, 202, 203, 204)


def base_path() -> Path:
    """The base reader's weights, in half precision."""
    return results_dir() / "triage_base.safetensors"


@dataclass(frozen=True)
class TriageJob:
    """One run of a letter reader, from random weights or from the base reader."""

    task: str
    arm: Arm
    config: TrainConfig
    seed: int
    warmup: Warmup = WARMUP
    reader: Reader = READER
    from_base: bool = True

    def full_config(self) -> dict[str, Any]:
        """What :func:`rlcd_core.tasks.run` will put into the record."""
        return run_config(
            triage_task(self.task),
            self.arm,
            self.config,
            self.seed,
            self.warmup,
            policy=self._policy(),
            more=elsewhere_config({}, self._on),
        )

    def train(self, family: str) -> tuple[RunRecord, np.ndarray]:
        """Do the job in this process, on one thread so that workers do not compete."""
        import torch

        torch.set_num_threads(1)
        made: list[LetterPolicy] = []

        def make(generator: torch.Generator) -> LetterPolicy:
            made.append(self.start(generator))
            return made[0]

        record, p = run(
            triage_task(self.task),
            make,
            self.arm,
            self.config,
            self.seed,
            family=family,
            warmup=self.warmup,
            prepared=_prepared(self.task, self.reader),
            on=self._on,
            policy_config=self._policy(),
            batch_size=512,
            checkpoints=cache_dir() / "checkpoints" if self.warmup.rows else None,
        )
        # Kept once: other machines round otherwise, and the key of every run from the
        # base holds the hash of its file.
        if self == base_job() and not base_path().exists():
            save_base(made[0])
        return record, p

    def start(self, generator: torch.Generator) -> LetterPolicy:
        """The reader as it is before any label of this task."""
        policy = self.reader.build(generator)
        if self.from_base:
            load_base(policy)
        return policy

    @property
    def _on(self) -> str:
        return "labelled" if self.arm == SUPERVISED else "bandit"

    def _policy(self) -> dict[str, Any]:
        base = {"base": base_hash()} if self.from_base else {}
        return {"reader": asdict(self.reader), **base}


def _arm(name: str) -> Arm:
    return SUPERVISED if name == SUPERVISED.name else arm(name)


def save_base(policy: LetterPolicy) -> None:
    """Keep a reader's weights as the base, rounded to half precision."""
    from safetensors.torch import save

    halves = {n: p.detach().half().contiguous() for n, p in policy.named_parameters()}
    write_atomically(base_path(), save(halves))
    base_hash.cache_clear()


@cache
def base_hash() -> str:
    """First 16 hex digits of the SHA-256 of the base's file; part of a run's key.

    Raises
    ------
    FileNotFoundError
        There is no base yet.
    """
    if not base_path().exists():
        raise FileNotFoundError(
            f"{base_path()} is missing; restore it, or train it: rlcd runs "
            "triage_examples"
        )
    return hashlib.sha256(base_path().read_bytes()).hexdigest()[:16]


def load_base(policy: LetterPolicy) -> None:
    """Give a reader the base's weights.

    Raises
    ------
    ValueError
        The file holds a reader of other sizes.
    """
    import torch
    from safetensors.torch import load

    base_hash()  # says what to do where there is no file
    found, wanted = load(base_path().read_bytes()), dict(policy.named_parameters())
    shapes = {n: tuple(t.shape) for n, t in found.items()}
    if shapes != {n: tuple(t.shape) for n, t in wanted.items()}:
        raise ValueError(
            f"{base_path()} is a reader of other sizes; train it again: rlcd runs "
            "triage_examples"
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(found[name])


@cache
def _prepared(task: str, reader: Reader) -> Any:
    import torch

    # Tokens depend on no weight: every seed shares them.
    return reader.build(torch.Generator()).prepare(triage_task(task).items)


@cache
def _reading_items() -> list[Item]:
    one_cue = (1.0, 0.0, 0.0)
    rng = np.random.default_rng(31)
    return tickets(30_000, rng, READING_WORDING, bare=True, shares=one_cue)


@cache
def triage_task(name: str) -> Task:
    """A task of bare tickets.

    Parameters
    ----------
    name : str
        ``triage-reading-fixed`` and ``triage-reading-shuffled``: one-cue tickets, so
        that an option is certainly right, in the fixed or a random order.
        ``triage-deciding``: all three kinds, shuffled, with "None of the above".

    Returns
    -------
    Task
        Tickets with the same words are in the same split.
    """
    match name.split("-"):
        case ["triage", "reading", "fixed" | "shuffled" as order]:
            shuffle = order == "shuffled"
            parts = (0.88, 0.06, 0.06)
            # Few wordings, often repeated: none may dominate what is scored.
            return _task(name, _reading_items(), parts, shuffle, False, most=4)
        case ["triage", "deciding"]:
            rng = np.random.default_rng(32)
            items = tickets(16_000, rng, DECIDING_WORDING, bare=True)
            return _task(name, items, (0.76, 0.09, 0.15), True, True)
    raise KeyError(
        f"no task {name!r}; triage-reading-<fixed or shuffled>, triage-deciding"
    )


def _task(
    name: str,
    items: list[Item],
    fractions: tuple[float, float, float],
    shuffle: bool,
    nota: bool,
    most: int | None = None,
) -> Task:
    rng = np.random.default_rng(33)
    if shuffle:
        items = [shuffle_options(item, rng) for item in items]
    if nota:
        items = [with_nota(item, rng) for item in items]
    part = split_by_group([item.group for item in items], fractions, seed=0)
    width = max(len(item.posterior) for item in items)
    counts = np.zeros((len(items), width), dtype=np.int64)
    for row, item in enumerate(items):
        if part[row] == 0:
            counts[row, item.label] = 1
        else:
            counts[row, : len(item.posterior)] = verdicts(item.posterior)
    names = ("train", "validation", "test")
    splits = {n: np.flatnonzero(part == i) for i, n in enumerate(names)}
    if most is not None:
        groups = [item.group for item in items]
        for split in names[1:]:
            splits[split] = _first_of_each(splits[split], groups, most)
    return Task(name, [(i.state, i.question) for i in items], counts, splits)


def _first_of_each(rows: np.ndarray, groups: list[str], most: int) -> np.ndarray:
    """The first `most` rows of each group, in order."""
    met: Counter[str] = Counter()
    kept = []
    for row in rows:
        met[groups[row]] += 1
        if met[groups[row]] <= most:
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def verdicts(posterior: tuple[float, ...]) -> np.ndarray:
    """`VERDICTS` verdicts in exactly the proportions of a posterior, (K,) int64.

    Raises
    ------
    ValueError
        The proportions are no multiples of ``1 / VERDICTS``.
    """
    exact = np.asarray(posterior) * VERDICTS
    whole = np.rint(exact).astype(np.int64)
    if np.abs(exact - whole).max() > 1e-6 or whole.sum() != VERDICTS:
        raise ValueError(f"posterior {posterior} is no multiple of 1/{VERDICTS}")
    return whole


def with_nota(item: Item, rng: np.random.Generator) -> Item:
    r"""Inject "None of the above" and carry the posterior along.

    The label is drawn before the option is replaced, so that Bayes' rule gives what a
    reader of the shown options should believe. With prior :math:`\pi` over the K
    options and NOTA in place j,

    .. math:: q_y \propto \pi_y \cdot
              \begin{cases} r & y = j \\ d / (K - 1) & y \ne j \end{cases}

    for the rates r (NOTA replaces the right option) and d (it replaces a wrong one).
    Where NOTA is not shown the posterior is the prior. Nouls are never given it.
    """
    if item.question.kind != "choice":
        return item
    shown = inject_nota(replace(item, posterior=()), rng, NOTA_RIGHT, NOTA_DISTRACTOR)
    mass = np.array(item.posterior)
    if NOTA in shown.question.options:
        place = shown.question.options.index(NOTA)
        rate = np.full(len(mass), NOTA_DISTRACTOR / (len(mass) - 1))
        rate[place] = NOTA_RIGHT
        mass = mass * rate / (mass * rate).sum()
    return replace(shown, posterior=tuple(float(round(q, 12)) for q in mass))


# --- What is measured on the test rows --------------------------------------------


def posteriors(task: Task, split: str = "test") -> np.ndarray:
    """True probabilities of the scored rows of a split, (n, K)."""
    counts = task.counts[task.splits[split]]
    return counts / counts.sum(-1, keepdims=True)


def probe_rows(task: Task, split: str = "test") -> dict[str, np.ndarray]:
    """Rows of a split by kind, as positions within it.

    Returns
    -------
    dict of int arrays
        The known-posterior probe, on rows that do not show NOTA: ``one_cue`` (ideal
        largest probability 1), ``two_cues`` (.5), ``escalate`` (.9); and ``nota``, the
        rows that do show it.
    """
    truth = posteriors(task, split)
    shown = [task.items[row][1].options for row in task.splits[split]]
    nota = np.array([NOTA in options for options in shown])
    yes_no = np.array([len(options) == 2 for options in shown])
    certain = truth.max(1) == 1.0
    found = {
        "one_cue": certain & ~nota,
        "two_cues": ~certain & ~yes_no & ~nota,
        "escalate": yes_no,
        "nota": nota,
    }
    return {kind: np.flatnonzero(rows) for kind, rows in found.items()}


def nota_rates(p: np.ndarray, task: Task, split: str = "test") -> dict[str, float]:
    """How "None of the above" is used, in expectation over the labels.

    Parameters
    ----------
    p : (n, K) array
        Probabilities of the split's rows.

    Returns
    -------
    dict
        ``recall``: chance that the most probable option is NOTA where NOTA is right;
        ``false_alarm``: the same where NOTA is shown and wrong.
    """
    rows = probe_rows(task, split)["nota"]
    shown = [task.items[task.splits[split][row]][1].options for row in rows]
    place = np.array([options.index(NOTA) for options in shown])
    right = posteriors(task, split)[rows, place]
    said = p[rows].argmax(1) == place
    return {
        "recall": float((right * said).sum() / right.sum()),
        "false_alarm": float(((1 - right) * said).sum() / (1 - right).sum()),
    }


def total_variation(p: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Half the sum of absolute differences of each row, (n,) in [0, 1]."""
    return 0.5 * np.abs(np.asarray(p, float) - truth).sum(-1)


def end_of_plateau(curve: list[dict[str, float]], level: float = 0.5) -> float:
    """Step from which on the accuracy stays at a level, between evaluations linear.

    The last crossing, since chance crosses a low level now and then. NaN if the last
    evaluation is below it, 0 if none is.
    """
    steps = np.array([row["step"] for row in curve])
    accuracy = np.array([row["accuracy"] for row in curve])
    below = np.flatnonzero(accuracy < level)
    if not len(below):
        return float(steps[0])
    i = int(below[-1]) + 1
    if i == len(accuracy):
        return float("nan")
    part = (level - accuracy[i - 1]) / (accuracy[i] - accuracy[i - 1])
    return float(steps[i - 1] + part * (steps[i] - steps[i - 1]))


def triage_examples() -> list[TriageJob]:
    """From random weights: options in fixed and in shuffled order, labels only."""
    usual = [(READER, o, seed) for o in READING_ROWS for seed in READING_SEEDS]
    smaller = [
        (replace(READER, spread=spread), "shuffled", seed)
        for spread in SMALLER_SPREADS
        for seed in SPREAD_SEEDS
    ]
    return [
        TriageJob(
            f"triage-reading-{order}",
            _arm("nll"),
            replace(READING, outcomes=READING_ROWS[order]),
            seed,
            Warmup(rows=0),
            reader,
            from_base=False,
        )
        for reader, order, seed in usual + smaller
    ]


def base_job() -> TriageJob:
    """The run whose trained reader is the base."""
    return next(
        job
        for job in triage_examples()
        if (job.task, job.seed, job.reader)
        == ("triage-reading-shuffled", BASE_SEED, READER)
    )


def triage_tuning() -> list[TriageJob]:
    """Every arm at every rate; validation rows only, seeds no result uses."""
    return [
        TriageJob(
            "triage-deciding", _arm(name), replace(DECIDING, learning_rate=rate), seed
        )
        for seed in TUNING_SEEDS
        for name in ARM_NAMES
        for rate in RATES
    ]


@cache
def _tuning_records() -> list[RunRecord]:
    return Store("triage_tuning").records()


def tuned(name: str) -> TrainConfig:
    """The rate that an arm's own rule chooses on validation rows.

    RLVR is chosen by accuracy, since by Brier score it would choose hardly to learn;
    every other arm by Brier score. The low-rate RLVR arm takes a fifth of the rate that
    the RLCD recipe chose, as was published.

    Raises
    ------
    LookupError
        If the grid of this arm is not complete.
    """
    name = {"rlvr_low": "rlcd_loo", "warmup": "rlcd_loo"}.get(name, name)
    best = best_cell(
        (r for r in _tuning_records() if r.arm == name),
        itemgetter("learning_rate"),
        "accuracy" if name == "rlvr_loo" else "brier",
        cells=len(RATES),
        seeds=len(TUNING_SEEDS),
        what=f"arm {name!r}",
        family="triage_tuning",
    )
    return replace(DECIDING, learning_rate=best)


def triage_arms() -> list[TriageJob]:
    """Every arm at its own rate, from one warm-up per seed, fresh seeds."""
    return [
        TriageJob("triage-deciding", _arm(name), tuned(name), seed)
        for seed in FRESH_SEEDS
        for name in ("warmup", *ARM_NAMES, "rlvr_low")
    ]


FAMILIES: dict[str, Callable[[], list[TriageJob]]] = {
    "triage_examples": triage_examples,
    "triage_tuning": triage_tuning,
    "triage_arms": triage_arms,
}

# Families whose test predictions are kept row by row.
WITH_PREDICTIONS = frozenset({"triage_arms"})
