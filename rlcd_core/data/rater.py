"""Texts that 15 to 99 people rated each: a real outcome distribution per text.

Source: Hutto & Gilbert (2014). A person gives a text a whole number from -4 to 4; a
reading groups the nine numbers into 3 or 5 ordered options. An outcome is one
person's verdict, so the right probabilities are those of the people, and even a
perfect policy is often "wrong".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlcd_core.data.manifest import SourceError, fetch, load_manifest
from rlcd_core.data.split import link_groups, near_duplicates, normalise
from rlcd_core.schema import Score

RATER_SOURCES = ("movie", "amazon", "nyt", "tweets")
# Upper edges of the readings on the scale of ratings. 3-way: negative, zero, positive.
# 5-way: <= -2.5, (-2.5, -.5], (-.5, .5), [.5, 2.5), >= 2.5; ratings are whole, so
# which side an edge belongs to never matters.
_EDGES = {3: (-0.5, 0.5), 5: (-2.5, -0.5, 0.5, 2.5)}
_OPTIONS = {
    3: ("negative", "neutral", "positive"),
    5: ("very negative", "negative", "neutral", "positive", "very positive"),
}
MEAN_TOLERANCE = 0.01


@dataclass(frozen=True)
class RaterData:
    """Texts with the verdicts of their raters.

    Attributes
    ----------
    counts : ndarray of int64, shape (N, K)
        Number of raters whose verdict is option k.
    groups : tuple of str
        Review or editorial (Amazon, NYT), else the normalised text; groups that
        share a near-duplicate text are merged (`split.near_duplicates`), so that a
        split by group leaks nothing.
    excluded : tuple of str
        Ids left out because the text's stated mean is not that of the ratings under
        the same id.
    """

    name: str
    reading: int
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    counts: np.ndarray
    groups: tuple[str, ...]
    options: tuple[str, ...]
    excluded: tuple[str, ...]

    @property
    def question(self) -> Score:
        """The question that the raters answered."""
        return Score("What feeling does the writer of this text express?", self.options)

    @property
    def q(self) -> np.ndarray:
        """Share of raters per option, (N, K): the plug-in estimate of q."""
        return self.counts / self.counts.sum(axis=1, keepdims=True)


def read_verdicts(ratings: Sequence[Sequence[int]], reading: int) -> np.ndarray:
    """Count the options that each text's whole-number ratings fall into, (N, K).

    Examples
    --------
    >>> read_verdicts([[-3, -2, 0, 2, 3, 4]], reading=5)
    array([[1, 1, 1, 1, 2]])
    """
    if reading not in _EDGES:
        raise ValueError(f"reading must be 3 or 5, not {reading!r}")
    row = np.repeat(np.arange(len(ratings)), [len(values) for values in ratings])
    option = np.searchsorted(_EDGES[reading], np.concatenate(ratings))
    flat = np.bincount(row * reading + option, minlength=len(ratings) * reading)
    return flat.reshape(len(ratings), reading).astype(np.int64)


def load_rater(name: str, reading: int = 3) -> RaterData:
    """Load one rater source, joined by id and checked against its stated means.

    A text whose stated mean differs by more than 0.01 from the mean of the ratings
    under its id has lost its ratings (196 of 4,200 tweets, none elsewhere); it is
    excluded and counted, never repaired.

    Parameters
    ----------
    name
        "movie", "amazon", "nyt" or "tweets".
    reading
        3 (negative, zero, positive rating) or 5 (very negative .. very positive).

    Raises
    ------
    SourceError
        Unknown name; ids of texts and ratings differ; a row count other than the
        manifest's.
    HashMismatch
        The bytes are not those of the manifest.
    """
    if name not in RATER_SOURCES:
        raise SourceError(f"{name!r} is no rater source; use one of {RATER_SOURCES}.")
    manifest = load_manifest(name)
    folder = fetch(name)
    # utf-8-sig: the Amazon ratings begin with a byte-order mark that hides id 1_1.
    texts = {}
    for line in (folder / "texts.tsv").read_text("utf-8-sig").split("\n")[1:]:
        if line:
            key, mean, text = line.rstrip("\r").split("\t")
            texts[key] = (float(mean), text.strip())
    ratings = {}
    for line in (folder / "ratings.tsv").read_text("utf-8-sig").split("\n"):
        if line.strip():
            key, _, _, values = line.split("\t")
            ratings[key] = [int(value) for value in json.loads(values)]
    if texts.keys() != ratings.keys():
        raise SourceError(
            f"{name}: {len(texts.keys() ^ ratings.keys())} ids have a text or ratings "
            "but not both, such as "
            f"{sorted(texts.keys() ^ ratings.keys())[0]!r}. Review the manifest."
        )
    gap = {k: texts[k][0] - sum(ratings[k]) / len(ratings[k]) for k in texts}
    kept = [k for k in texts if abs(gap[k]) <= MEAN_TOLERANCE]
    for split, found in (("source", len(texts)), ("all", len(kept))):
        if manifest.rows[split] != found:
            raise SourceError(
                f"{name}: {found} rows ({split}), the manifest says "
                f"{manifest.rows[split]}. Review the manifest before use."
            )
    snippets = name in ("amazon", "nyt")
    wording = [texts[k][1] for k in kept]
    own = [
        f"{name}:{k.split('_')[0]}" if snippets else normalise(text)
        for k, text in zip(kept, wording, strict=True)
    ]
    return RaterData(
        name=name,
        reading=reading,
        ids=tuple(kept),
        texts=tuple(wording),
        counts=read_verdicts([ratings[k] for k in kept], reading),
        groups=tuple(link_groups(own, near_duplicates(wording))),
        options=_OPTIONS[reading],
        excluded=tuple(k for k in texts if abs(gap[k]) > MEAN_TOLERANCE),
    )


def label_entropy(counts: np.ndarray) -> np.ndarray:
    """Plug-in entropy of the raters' verdicts in nats, (N,); biased downward.

    Examples
    --------
    >>> label_entropy(np.array([[5, 5, 0]])).round(4)
    array([0.6931])
    """
    q = counts / counts.sum(axis=1, keepdims=True)
    return -np.sum(q * np.log(np.where(q > 0, q, 1.0)), axis=1)


def expected_brier(p: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Brier score of p in expectation over a text's raters.

    ``mean_i sum_k (p_k - y_ik)^2 = sum_k p_k^2 - 2 sum_k p_k qhat_k + 1``, an
    unbiased estimate of the score against a fresh rater.

    Parameters
    ----------
    p : ndarray, shape (N, K)
        Probabilities.
    counts : ndarray, shape (N, K)
        Verdicts per option.

    Returns
    -------
    ndarray, shape (N,)
        In [0, 2]; lower is better.

    Examples
    --------
    >>> expected_brier(np.array([[1.0, 0.0]]), np.array([[3, 1]]))
    array([0.5])
    """
    q = counts / counts.sum(axis=1, keepdims=True)
    return np.sum(p * p - 2 * p * q, axis=1) + 1.0


def squared_distance(p: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Unbiased estimate of ``sum_k (p_k - q_k)^2`` from n raters, (N,).

    ``sum_k (p_k - qhat_k)^2 - sum_k qhat_k (1 - qhat_k) / (n - 1)``: the plug-in
    distance is too large by the variance of qhat, and the second term estimates that
    variance without bias. A single value may be negative; means are what to read.

    Raises
    ------
    ValueError
        A text has fewer than 2 raters.

    Examples
    --------
    >>> squared_distance(np.array([[0.5, 0.5]]), np.array([[1, 1]]))
    array([-0.5])
    """
    n = counts.sum(axis=1)
    if np.any(n < 2):
        raise ValueError("each text needs at least 2 raters for an unbiased distance")
    q = counts / n[:, None]
    return np.sum((p - q) ** 2, axis=1) - np.sum(q * (1 - q), axis=1) / (n - 1)


def rater_floor(counts: np.ndarray) -> np.ndarray:
    """Unbiased estimate of the Brier score that q itself would get, (N,).

    ``n / (n - 1) * (1 - sum_k qhat_k^2)``; without the factor (plug-in) it is too low.
    ``expected_brier(p, counts) == rater_floor(counts) + squared_distance(p, counts)``.
    """
    n = counts.sum(axis=1)
    q = counts / n[:, None]
    return n / (n - 1) * (1 - np.sum(q * q, axis=1))
