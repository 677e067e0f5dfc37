"""Preferences made from people's ratings: which is better, and in which order.

Two ways to make an answer from the verdicts of a text. *Drawn*: people are asked one
after another, and who speaks first decides; rankings then follow Plackett-Luce with
the shares of the people as weights. *Counts*: the options stand in the order of how
many people chose them, as a published leaderboard does; luck plays no part but in ties.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rlcd_core.data.rater import load_rater
from rlcd_core.data.split import split_by_group
from rlcd_core.env import spawn_rng
from rlcd_core.schema import Choice
from rlcd_core.tasks import Task

PAIRS = {"train": 20_000, "validation": 4_000, "test": 4_000}
"""Pairs of texts that are drawn in each split."""

SOURCES = ("drawn", "counts")


class RankingEnv:
    """Answers with rankings of a row's options, best first.

    Parameters
    ----------
    counts : (N, K) int array
        Verdicts per option, at least one a row.
    seed
        Fixes the draws.
    source : {"drawn", "counts"}
        ``drawn``: people are drawn with replacement; options stand in the order in
        which they are first named, and an option that nobody chose is not ranked (-1
        at the end). ``counts``: decreasing counts, all options; ties are broken by a
        fresh coin at each call.
    size : int, optional
        Length of a ranking: 1 asks for the best alone. Default K.
    pairs : bool
        Ask for the better of two options, (B, 2). The two are drawn evenly among the
        pairs of which at least one was chosen by somebody: with ``drawn`` the first
        person who names one of the two decides, with ``counts`` the larger count.

    Attributes
    ----------
    people : float
        Expected number of people who had to be asked so far for the answers given,
        were they asked one by one (``drawn``), or number of people counted
        (``counts``).

    Raises
    ------
    ValueError
        Counts that are no counts, an unknown source, or a size outside 1..K.

    Examples
    --------
    >>> env = RankingEnv(np.array([[0, 9, 0]]), 0, "drawn")
    >>> env.rankings(np.array([0]))
    array([[ 1, -1, -1]])
    """

    def __init__(
        self,
        counts: np.ndarray,
        seed: Any,
        source: str,
        *,
        size: int | None = None,
        pairs: bool = False,
    ) -> None:
        counts = np.asarray(counts)
        whole = counts.ndim == 2 and counts.dtype.kind in "iu"
        if not whole or (counts < 0).any() or (counts.sum(1) < 1).any():
            raise ValueError(
                "counts must be (N, K) whole, >= 0, a verdict in every row"
            )
        options = counts.shape[1]
        if source not in SOURCES:
            raise ValueError(f"source {source!r} is not one of {', '.join(SOURCES)}")
        if size is not None and not 1 <= size <= options:
            raise ValueError(f"size {size} is outside 1..{options}")
        if pairs and options < 2:
            raise ValueError("a pair takes two options")
        self._counts, self._drawn, self._pairs = counts, source == "drawn", pairs
        self._size = 2 if pairs else size or options
        self._rng = spawn_rng(seed, 5)
        self.people = 0.0

    def rankings(self, rows: np.ndarray) -> np.ndarray:
        """One ranking a row, (B, L) int64 of options, -1 where nobody is left."""
        counts = self._counts[rows].astype(np.float64)
        asked = self._two(counts) if self._pairs else np.ones(counts.shape, bool)
        # Exponential clocks with the counts as rates ring in the order in which options
        # are first named (thm-plackett-luce); a clock of rate 0 never rings.
        clocks = self._rng.exponential(size=counts.shape)
        if self._drawn:
            with np.errstate(divide="ignore"):
                key = clocks / np.where(asked, counts, 0.0)
        else:
            lots = clocks.argsort(1).argsort(1) / counts.shape[1]  # in [0, 1)
            key = np.where(asked, lots - counts, np.inf)
        order = key.argsort(1)[:, : self._size]
        named = np.take_along_axis(np.isfinite(key), order, 1)
        if self._pairs:
            # The loser is known without waiting for somebody who would name it.
            named[:, 1] = False
            winner = order[:, 0]
            asked[np.arange(len(order)), winner] = False
            answer = np.stack([winner, asked.argmax(1)], 1)
            asked[np.arange(len(order)), winner] = True
        else:
            answer = np.where(named, order, -1)
        self._tally(rows, np.where(asked, counts, 0.0), order, named)
        return answer

    def _two(self, counts: np.ndarray) -> np.ndarray:
        """Mask (B, K) of two options, even among pairs that somebody can judge."""
        first, second = np.triu_indices(counts.shape[1], 1)
        able = (counts[:, first] + counts[:, second]) > 0
        lot = self._rng.random(counts.shape)[:, 0] * able.sum(1)
        pick = (able.cumsum(1) > lot[:, None]).argmax(1)
        asked, at = np.zeros(counts.shape, bool), np.arange(len(counts))
        asked[at, first[pick]] = asked[at, second[pick]] = True
        return asked

    def _tally(
        self, rows: np.ndarray, counts: np.ndarray, order: np.ndarray, named: np.ndarray
    ) -> None:
        """Add the people behind these answers; an option waits for its first voice."""
        total = self._counts[rows].sum(1)
        if not self._drawn:
            self.people += float(total.sum())
            return
        taken = np.take_along_axis(counts, order, 1)
        left = counts.sum(1, keepdims=True) - (taken.cumsum(1) - taken)
        waits = np.where(named, total[:, None] / np.where(named, left, 1.0), 0.0)
        self.people += float(waits.sum())

    def state_dict(self) -> dict[str, Any]:
        """JSON-safe state of the random stream and of the tally."""
        return {"rng": self._rng.bit_generator.state, "people": self.people}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._rng.bit_generator.state = state["rng"]
        self.people = state["people"]


def wins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pairs of people, one of each text, who put one text above the other, (N, 2).

    Parameters
    ----------
    first, second : (N, K) int arrays
        Verdicts per option of two texts, options in increasing order.

    Returns
    -------
    (N, 2) int64 array
        Pairs with the first text higher, and with the second; pairs that agree on one
        option are ties and count for neither.

    Examples
    --------
    >>> wins(np.array([[1, 0, 2]]), np.array([[0, 3, 0]]))
    array([[6, 3]])
    """
    below_first = np.cumsum(second, axis=1) - second
    below_second = np.cumsum(first, axis=1) - first
    up = (first * below_first).sum(1)
    return np.stack([up, (second * below_second).sum(1)], 1).astype(np.int64)


@cache
def pair_task(name: str, reading: int = 5) -> Task:
    """Which of two texts of a rater source is more positive?

    Texts are split as in :func:`rlcd_core.tasks.rater_task`, and both texts of a pair
    come from one split. ``counts`` are pairs of raters who differ (`wins`): an outcome
    is the opinion of one rater of each text, and where they tie two others are asked.
    Pairs of texts whose raters always tie are not drawn.
    """
    data = load_rater(name, reading)
    part = split_by_group(data.groups, (0.6, 0.2, 0.2), seed=0)
    question = "Which of the two texts expresses the more positive feeling?"
    items, counts, splits, start = [], [], {}, 0
    for which, (split, size) in enumerate(PAIRS.items()):
        texts = np.flatnonzero(part == which)
        rng = np.random.default_rng([which, 0])
        drawn = texts[rng.integers(0, len(texts), (2 * size, 2))]
        won = wins(data.counts[drawn[:, 0]], data.counts[drawn[:, 1]])
        wording = np.array([data.texts[i] for i in range(len(data.texts))], object)
        able = (won.sum(1) > 0) & (wording[drawn[:, 0]] != wording[drawn[:, 1]])
        kept = np.flatnonzero(able)[:size]
        if len(kept) < size:
            raise ValueError(f"{name}: only {len(kept)} of {size} pairs can be judged")
        for i, j in drawn[kept]:
            pair = (data.texts[i], data.texts[j])
            items.append(("Two texts of one source.", Choice(question, pair)))
        counts.append(won[kept])
        splits[split] = np.arange(start, start + size)
        start += size
    return Task(f"pairs-{name}-{reading}", items, np.concatenate(counts), splits)
