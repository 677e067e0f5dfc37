"""Learning from preferences: verdicts, labels, pairs and rankings at equal bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np

from rlcd_core.arms import ARMS
from rlcd_core.env import LabelledEnv, RaterEnv
from rlcd_core.extra.jobs import best_cell
from rlcd_core.extra.preferences import RankingEnv, pair_task
from rlcd_core.policy import DecisionHead, Encoder, predict
from rlcd_core.records import RunRecord, Store
from rlcd_core.tasks import Task, rater_task, score
from rlcd_core.train import Arm, TrainConfig, train

# Streams of one seed that must not touch each other.
_ANSWERS, _TEXTS = 21, 22

OPTIONS, TEXTS = "rater-movie-3", "pairs-movie-5"


@dataclass(frozen=True)
class Form:
    """How a person answers, and what the answer is worth at most.

    Parameters
    ----------
    arm : Arm
        Whose objective reads the answer.
    source : {"", "drawn", "counts"}
        Where rankings come from (`RankingEnv`); empty for verdicts and labels.
    size : int
        Length of a ranking; 0 means all options.
    pairs : bool
        Whether two options are compared.
    """

    arm: Arm
    source: str = ""
    size: int = 0
    pairs: bool = False

    def answers(self, options: int) -> int:
        """Number of possible answers to a question of so many options."""
        if self.arm.needs == "outcome" or self.pairs:
            return 2
        if self.arm.needs == "label" or self.size == 1:
            return options
        return math.factorial(options)

    def bits(self, options: int) -> float:
        """log2 of the number of possible answers: the most that one can tell."""
        return math.log2(self.answers(options))

    def comparisons(self, options: int) -> int:
        """Choices "one rather than another" in an answer.

        A verdict and a pair hold one, the best of K options K - 1, and a ranking one
        for each two options.
        """
        if self.answers(options) == 2:
            return 1
        ranked = 1 if self.arm.needs == "label" or self.size == 1 else options - 1
        return sum(options - 1 - stage for stage in range(ranked))

    def environment(self, counts: np.ndarray, seed: int) -> Any:
        """The world as this form asks it."""
        stream = [seed, _ANSWERS]
        if self.source:
            size = self.size or None
            return RankingEnv(counts, stream, self.source, size=size, pairs=self.pairs)
        kind = LabelledEnv if self.arm.needs == "label" else RaterEnv
        return kind(counts, stream, self.arm.shared_outcome)


_PL, _BT = "plackett_luce", "bradley_terry"
FORMS = {
    form.arm.name: form
    for form in (
        Form(ARMS["rlcd"]),
        Form(ARMS["verdict_nll"]),
        Form(ARMS["nll"]),
        Form(Arm("bt_drawn", "Pairs, drawn", _BT), "drawn", pairs=True),
        Form(Arm("pl_drawn", "Rankings, drawn", _PL), "drawn"),
        Form(Arm("top_counts", "Favourite, counted", _PL), "counts", size=1),
        Form(Arm("bt_counts", "Pairs, counted", _BT), "counts", pairs=True),
        Form(Arm("pl_counts", "Rankings, counted", _PL), "counts"),
    )
}
"""Every form of answer by the name of its arm."""

# With two options a label, a pair and a ranking are one and the same answer.
FORMS_OF = {
    OPTIONS: tuple(FORMS),
    TEXTS: ("rlcd", "verdict_nll", "bt_drawn", "bt_counts"),
}
# Every step of every arm spends this many bits, and there are as many steps.
BITS_PER_STEP, STEPS = 256, 234
# One grid a task for every form, fixed before any test row was seen.
RATES = {
    OPTIONS: (2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1.28e-2),
    TEXTS: (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3),
}
TUNING_SEEDS = (100, 101, 102)
FRESH_SEEDS = tuple(range(200, 210))


def sizes(task: str, name: str, rate: float) -> TrainConfig:
    """The same bits a step and the same steps for every form of answer."""
    options = 2 if task == TEXTS else 3
    batch = round(BITS_PER_STEP / FORMS[name].bits(options))
    return TrainConfig(
        learning_rate=rate, outcomes=STEPS * batch, outcomes_per_step=batch
    )


@dataclass(frozen=True)
class PreferenceJob:
    """One run of a decision head from scratch, without any warm-up.

    ``texts`` limits the training rows to so many, drawn by the seed.
    """

    task: str
    form: Form
    config: TrainConfig
    seed: int
    texts: int | None = None

    @property
    def arm(self) -> Arm:
        """The arm that reads the answers."""
        return self.form.arm

    def full_config(self) -> dict[str, Any]:
        """Everything that decides the result, JSON-ready."""
        task = _task(self.task)
        # Settings of later versions count only where they are used.
        used = {k: v for k, v in asdict(self.config).items() if k in _SETTINGS}
        return {
            "task": task.name,
            "data": task.data_hash,
            "form": asdict(self.form),
            "train": used,
            "texts": self.texts,
            "seed": int(self.seed),
        }

    def train(self, family: str) -> tuple[RunRecord, np.ndarray]:
        """Do the job in this process, on one thread."""
        import torch

        torch.set_num_threads(1)
        task, prepared = _task(self.task), _prepared(self.task)
        generator = torch.Generator().manual_seed(self.seed)
        policy = DecisionHead(_encoder(), generator=generator)
        env = self.form.environment(task.counts, self.seed)
        rows = task.splits["train"]
        if self.texts is not None:
            few = np.random.default_rng([self.seed, _TEXTS]).permutation(rows)
            rows = np.sort(few[: self.texts])
        result = train(
            policy,
            prepared,
            rows,
            env,
            self.arm,
            self.config,
            self.seed,
        )
        splits = {"train": rows} | {k: task.splits[k] for k in ("validation", "test")}
        p = {
            split: predict(policy, prepared, of, batch_size=4096)
            for split, of in splits.items()
        }
        options = task.counts.shape[1]
        used = {
            "outcomes": float(result.outcomes),
            "bits": round(result.outcomes * self.form.bits(options), 1),
            "comparisons": float(result.outcomes * self.form.comparisons(options)),
            "prompts": float(result.prompts),
            "forward_passes": float(result.forward_passes),
            "steps": float(result.steps),
            "seconds": round(result.seconds, 3),
        }
        if self.task == OPTIONS:  # rows of pairs count pairs of people, ties left out
            used["people"] = round(getattr(env, "people", float(result.outcomes)), 1)
        record = RunRecord(
            family=family,
            arm=self.arm.name,
            seed=int(self.seed),
            config=self.full_config(),
            metrics={
                split: score(stated, task.counts[splits[split]])
                for split, stated in p.items()
            },
            used=used,
            data_hash=task.data_hash,
        )
        return record, p["test"]


_SETTINGS = (
    "learning_rate outcomes outcomes_per_step warmup_fraction final_rate weight_decay "
    "betas clip"
).split()


def preferences_tuning() -> list[PreferenceJob]:
    """Every form of answer at every rate; validation rows only."""
    return [
        PreferenceJob(task, FORMS[name], sizes(task, name, rate), seed)
        for task, names in FORMS_OF.items()
        for seed in TUNING_SEEDS
        for rate in RATES[task]
        for name in names
    ]


def tuned(task: str, name: str) -> TrainConfig:
    """The rate that an arm's own rule chooses on validation rows.

    Counted preferences give probabilities of another event (is it the favourite?), so
    they are chosen by validation accuracy, every other form by validation Brier.

    Raises
    ------
    LookupError
        If the grid of this arm is not complete.
    """
    key = "accuracy" if FORMS[name].source == "counts" else "brier"
    return chosen_by(task, name, key)


def chosen_by(task: str, name: str, key: str) -> TrainConfig:
    """The rate of the best mean validation metric ``key``; errors as `tuned`."""
    rate = best_cell(
        (
            r
            for r in _tuning_records()
            if r.arm == name and r.config["task"] == _task(task).name
        ),
        itemgetter("learning_rate"),
        key,
        cells=len(RATES[task]),
        seeds=len(TUNING_SEEDS),
        what=f"{name!r} on {task!r}",
        family="preferences_tuning",
    )
    return sizes(task, name, rate)


@cache
def _tuning_records() -> list[RunRecord]:
    return Store("preferences_tuning").records()


def preferences() -> list[PreferenceJob]:
    """Every form of answer at the rate its own rule chose, ten fresh seeds."""
    return [
        PreferenceJob(task, FORMS[name], tuned(task, name), seed)
        for task, names in FORMS_OF.items()
        for name in names
        for seed in FRESH_SEEDS
    ]


# Enough parameters to put any order on so few texts: what the losses do in the limit.
FEW_TEXTS, FEW_RATE = 300, 6.4e-3
FEW = ("nll", "pl_drawn", "top_counts", "pl_counts")


def preferences_few() -> list[PreferenceJob]:
    """Drawn and counted answers about 300 texts, which the head can learn by heart."""
    return [
        PreferenceJob(
            OPTIONS, FORMS[name], sizes(OPTIONS, name, FEW_RATE), seed, FEW_TEXTS
        )
        for name in FEW
        for seed in FRESH_SEEDS
    ]


@cache
def _task(name: str) -> Task:
    match name.split("-"):
        case ["rater", source, reading]:
            return rater_task(source, int(reading))
        case ["pairs", source, reading]:
            return pair_task(source, int(reading))
    raise KeyError(f"no task {name!r}; rater- or pairs-<source>-<3 or 5>")


@cache
def _encoder() -> Encoder:
    return Encoder.load()


@cache
def _prepared(name: str) -> Any:
    return DecisionHead(_encoder()).prepare(_task(name).items)


FAMILIES: dict[str, Callable[[], list[PreferenceJob]]] = {
    "preferences_tuning": preferences_tuning,
    "preferences": preferences,
    "preferences_few": preferences_few,
}
WITH_PREDICTIONS = frozenset({"preferences"})
