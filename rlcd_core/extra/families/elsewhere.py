"""Beyond film reviews: another source, other texts, noise, other kinds of question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from operator import itemgetter

from rlcd_core.arms import ARMS
from rlcd_core.extra.families.rater import FRESH_SEEDS, ONE_RATE, by_accuracy, tuned
from rlcd_core.extra.jobs import Job, arm, best_cell
from rlcd_core.records import RunRecord, Store
from rlcd_core.tasks import WARMUP_ARM, Noise
from rlcd_core.train import Arm, TrainConfig

HEADLINE = ("nll", "rlcd", "rlcd_loo", "verdict_nll", "rlvr", "rlvr_loo", "rlcd_std")
AMAZON_ARMS = (
    *HEADLINE,
    "brier",
    "rlcd_g4",
    "residual_ht",
    "verdict_brier",
    "one_bit_log",
    "rlvr_shannon_0.3",
    "rlvr_kl_0.2",
)
OUT_ARMS = (*HEADLINE, "rlvr_shannon_0.3")
OUT_SOURCES = ("amazon", "nyt", "tweets", "uci_sentences")
NOISE_ARMS = ("rlcd", "rlcd_loo", "verdict_nll", "rlvr")
NOISES = {
    "flip_1": Noise("flip", 0.1),
    "flip_2": Noise("flip", 0.2),
    "redraw_1": Noise("redraw", 0.1),
    "redraw_2": Noise("redraw", 0.2),
    "lost": Noise("unresolved", 0.7, 0.7),
    "lost_more_when_wrong": Noise("unresolved", 0.9, 0.5),
    "lost_as_wrong": Noise("unresolved", 0.9, 0.5, as_wrong=True),
}
"""Noise kinds by the name that tables use; rates as in the protocol."""

CONTINUED = Arm("supervised", "Supervised continuation", "nll")
CONTINUED_RATES = (1e-4, 1e-3)

# Text tasks are tuned afresh: a smaller grid, the same for every arm.
TEXT_ARMS = (*HEADLINE, "one_bit_log", "rlvr_shannon_0.3")
TEXT_SOURCES = ("trec", "sms_spam")
TEXT_GRID = {
    64: (1e-4, 2e-4, 4e-4, 8e-4),
    256: (2e-4, 4e-4, 8e-4, 1.6e-3),
}
TEXT_TUNING_SEEDS = (100, 101)


def rater_controls() -> list[Job]:
    """Controls on film reviews: the warm-up's labels again, low and shared rates."""
    shared = tuned("rlcd_loo")
    # One verdict a row, heard once: ten batches, then the same number of steps as the
    # other arms take at batch 64.
    continued = [
        TrainConfig(learning_rate=rate, outcomes=320, outcomes_per_step=32, replays=93)
        for rate in CONTINUED_RATES
    ]
    return [
        Job("rater-movie-3", CONTINUED, config, seed, on="labelled")
        for config in continued
        for seed in FRESH_SEEDS
    ] + [
        Job("rater-movie-3", ARMS[name], shared, seed)
        for name in ("rlvr_loo", "rlvr_low", "rlcd_low")
        for seed in FRESH_SEEDS
    ]


def amazon_arms() -> list[Job]:
    """Amazon reviews with the settings chosen on film reviews, ten fresh seeds."""
    return [
        Job("rater-amazon-3", ARMS[name], tuned(name), seed)
        for name in AMAZON_ARMS
        for seed in FRESH_SEEDS
    ] + [Job("rater-amazon-3", WARMUP_ARM, ONE_RATE, seed) for seed in FRESH_SEEDS]


def rater_out() -> list[Job]:
    """Trained on film reviews, scored on four other sources, ten fresh seeds."""
    return [
        Job(
            "rater-movie-3",
            arm(name),
            ONE_RATE if name == WARMUP_ARM.name else tuned(name),
            seed,
            elsewhere=OUT_SOURCES,
        )
        for name in (*OUT_ARMS, WARMUP_ARM.name)
        for seed in FRESH_SEEDS
    ]


def rater_noise() -> list[Job]:
    """Film reviews with flipped, redrawn and lost outcomes, ten fresh seeds."""
    return [
        Job("rater-movie-3", ARMS[name], tuned(name), seed, noise=noise)
        for noise in NOISES.values()
        for name in NOISE_ARMS
        for seed in FRESH_SEEDS
    ]


def text_tuning() -> list[Job]:
    """TREC and SMS: every arm on one grid; validation rows only."""
    return [
        Job(
            f"label-{source}",
            ARMS[name],
            TrainConfig(learning_rate=rate, outcomes_per_step=batch),
            seed,
        )
        for source in TEXT_SOURCES
        for seed in TEXT_TUNING_SEEDS
        for batch, rates in TEXT_GRID.items()
        for rate in rates
        for name in TEXT_ARMS
    ]


@cache
def _text_records() -> list[RunRecord]:
    return Store("text_tuning").records()


def text_tuned(source: str, name: str) -> TrainConfig:
    """The cell that an arm's own rule chooses on validation rows of one text task.

    Raises
    ------
    LookupError
        If the grid of this arm is not complete.
    """
    rate, batch = best_cell(
        (
            r
            for r in _text_records()
            if r.arm == name and r.config["task"] == f"label-{source}"
        ),
        itemgetter("learning_rate", "outcomes_per_step"),
        "accuracy" if by_accuracy(name) else "brier",
        cells=sum(map(len, TEXT_GRID.values())),
        seeds=len(TEXT_TUNING_SEEDS),
        what=f"arm {name!r} on {source}",
        family="text_tuning",
    )
    return TrainConfig(learning_rate=rate, outcomes_per_step=batch)


def text_arms() -> list[Job]:
    """TREC and SMS at the cell that each arm's own rule chose, ten fresh seeds."""
    return [
        Job(
            f"label-{source}",
            arm(name),
            replace(ONE_RATE) if name == WARMUP_ARM.name else text_tuned(source, name),
            seed,
        )
        for source in TEXT_SOURCES
        for name in (*TEXT_ARMS, WARMUP_ARM.name)
        for seed in FRESH_SEEDS
    ]


FAMILIES: dict[str, Callable[[], list[Job]]] = {
    "rater_controls": rater_controls,
    "amazon_arms": amazon_arms,
    "rater_out": rater_out,
    "rater_noise": rater_noise,
    "text_tuning": text_tuning,
    "text_arms": text_arms,
}

WITH_PREDICTIONS = frozenset({"amazon_arms", "rater_out", "text_arms"})
