"""Calibration, selective prediction and intervals, in NumPy.

Conventions. `confidence` is (N,) in [0, 1]. `correct` is (N,) in [0, 1]: 0 or 1, or the
expected correctness under a soft label. Forecasts, labels and masks are those of
`scored`. `n_bins` and `binning` are those of `bin_index`. No result depends on the
order of rows. NaN, infinite or misshapen input raises `MetricError`. A function that
draws takes its generator `rng`. A mean is reported with an `Interval`; `level` .95
leaves .025 in each tail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit, xlogy

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Binning = Literal["width", "mass"]
# Numbers drawn at a time by the resampling loops: bounds memory, not results.
CHUNK = 2**18


class MetricError(ValueError):
    """Input that cannot be scored or measured; the message says what to pass."""


def _vector(name: str, values: ArrayLike, n: int | None = None) -> NDArray[Any]:
    """Check a non-empty vector of finite numbers; floats keep their precision."""
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or n not in (None, array.size):
        raise MetricError(
            f"{name}: shape is {array.shape}; pass ({'N >= 1' if n is None else n},)"
        )
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise MetricError(f"{name}: pass finite numbers, not NaN or {array.dtype}")
    return array


def _unit(name: str, values: ArrayLike, n: int | None = None) -> NDArray[Any]:
    array = _vector(name, values, n)
    # An average of probabilities may pass 1 by rounding.
    if not ((array >= 0) & (array <= 1 + 1e-6)).all():
        raise MetricError(f"{name}: pass probabilities or outcomes in [0, 1]")
    return array


def _pair(confidence: ArrayLike, correct: ArrayLike) -> tuple[Array, Array]:
    first = _unit("confidence", confidence).astype(np.float64)
    return first, _unit("correct", correct, first.size).astype(np.float64)


def distribution(
    name: str, values: ArrayLike, mask: ArrayLike | None
) -> tuple[Array, Mask]:
    """Check probabilities (..., K); returns them and which options exist."""
    p = np.asarray(values, dtype=np.float64)
    if p.ndim < 1 or p.shape[-1] < 2:
        raise MetricError(
            f"{name}: shape is {p.shape}; pass (..., K) with K >= 2, at least 2 options"
        )
    exists = np.ones(p.shape, bool) if mask is None else np.asarray(mask, bool)
    if exists.shape != p.shape or (exists.sum(-1) < 2).any():
        raise MetricError("mask: pass the shape of p, with at least 2 options a row")
    # 1e-4 lets a float32 softmax over a thousand options pass.
    if not ((p >= 0).all() and (np.abs(p.sum(-1) - 1) < 1e-4).all()):
        raise MetricError(
            f"{name}: rows must be finite, not negative and sum to 1; "
            "pass probabilities, not logits or counts"
        )
    if p[~exists].any():
        raise MetricError(f"{name}: mass on a masked option; it must be exactly 0")
    return p, exists


def as_target(y: ArrayLike, exists: Mask) -> Array:
    """Labels or soft targets as distributions, of the shape of the mask (..., K)."""
    target, shape = np.asarray(y), exists.shape
    is_label = target.dtype.kind in "iu" and target.shape != shape
    # Labels written as floats would otherwise pass for one soft target when N = K.
    fits = is_label or (target.ndim == len(shape) and target.shape[-1] == shape[-1])
    try:
        target = np.broadcast_to(target, shape[:-1] if is_label else shape)
    except ValueError:
        fits = False
    if not fits:
        raise MetricError(
            f"y: shape is {np.shape(y)}, dtype {np.asarray(y).dtype}, for p of shape "
            f"{shape}; pass integer labels (...) or soft targets (..., K)"
        )
    if not is_label:
        return distribution("y", target, exists)[0]
    one_hot = target[..., None] == np.arange(shape[-1])
    if not (one_hot & exists).any(-1).all():
        raise MetricError(
            "y: a label is not among its row's options: out of range or a masked option"
        )
    return one_hot.astype(np.float64)


def scored(
    p: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None
) -> tuple[Array, Array, Mask]:
    """Forecast, target as a distribution, and mask, all of the shape of p.

    Parameters
    ----------
    p : array (..., K)
        Forecasts, rows summing to 1.
    y : int array (...) or float array (..., K)
        Labels, or soft targets.
    mask : bool array (..., K), optional
        False where a row has no such option; p must be exactly 0 there.

    Raises
    ------
    MetricError
        If shapes differ, a label is no option of its row, or p or y is no distribution.
    """
    forecast, exists = distribution("p", p, mask)
    return forecast, as_target(y, exists), exists


def _tail(level: float) -> float:
    if not 0 < level < 1:
        raise MetricError(f"level: {level!r}; pass a coverage such as 0.95")
    return (1 - level) / 2


def _draws(name: str, count: int) -> Array:
    if count < 1:
        raise MetricError(f"{name}: {count!r}; pass at least 1")
    return np.empty(count)


def _codes(groups: ArrayLike | None, n: int) -> tuple[NDArray[np.intp], int]:
    if groups is None:
        return np.arange(n), n
    if np.shape(groups) != (n,):
        raise MetricError(f"groups: shape is {np.shape(groups)}; pass ({n},)")
    distinct, codes = np.unique(np.asarray(groups), return_inverse=True)
    return codes, distinct.size


# --- From forecasts to confidence and correctness --------------------------------


def _table(
    p: ArrayLike, y: ArrayLike, mask: ArrayLike | None
) -> tuple[Array, Array, Mask]:
    """As `scored`, for (N, K) alone: no label stands for several rows."""
    if np.ndim(p) != 2 or not len(p) or np.shape(y)[:1] != np.shape(p)[:1]:
        raise MetricError("pass p (N, K) and one label per row, N >= 1")
    return scored(p, y, mask)


def top_option(
    p: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None
) -> tuple[Array, Array]:
    """Confidence and correctness, each (N,), of the most probable option.

    Arguments as `scored`, for (N, K). On a tie the first option counts as chosen, as in
    an answer. Under a soft label q correctness is the q of the chosen option.
    """
    forecast, target, _ = _table(p, y, mask)
    rows, chosen = np.arange(len(forecast)), forecast.argmax(-1)
    return forecast[rows, chosen], target[rows, chosen]


def accuracy(p: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None) -> float:
    """Share of rows whose most probable option is right; arguments as `scored`."""
    return float(top_option(p, y, mask)[1].mean())


def entropy_confidence(p: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """Confidence ``1 - H(p) / ln K`` in [0, 1], with each row's own K; shape (...).

    Examples
    --------
    >>> round(float(entropy_confidence([0.0, 0.95, 0.05])), 7)
    0.8193036
    """
    array, exists = distribution("p", p, mask)
    scale = np.log(exists.sum(-1))
    return np.clip(1 + xlogy(array, array).sum(-1) / scale, 0.0, 1.0)


# --- Calibration -----------------------------------------------------------------


def bin_index(
    confidence: ArrayLike, n_bins: int = 15, binning: Binning = "width"
) -> NDArray[np.intp]:
    """Bin of each confidence, (N,) in 0..n_bins-1.

    Parameters
    ----------
    binning : {"width", "mass"}
        "width": bin k is [k/n_bins, (k+1)/n_bins), and 1.0 lies in the last. "mass":
        by rank, so that bins hold equal shares; tied values all go to the bin of the
        first of them, so a tie never straddles bins (and bins may stay empty).
    """
    array = _unit("confidence", confidence)
    if not isinstance(n_bins, int | np.integer) or n_bins < 1:
        raise MetricError(f"n_bins: {n_bins!r}; pass an integer of at least 1")
    match binning:
        case "width":
            # Compared in the precision of the input: a float32 .7 lies below the
            # float64 edge 7/10, yet on the float32 one.
            edges = (np.arange(1, n_bins) / n_bins).astype(array.dtype)
            return np.searchsorted(edges, array, side="right")
        case "mass":
            _, code, count = np.unique(array, return_inverse=True, return_counts=True)
            return ((np.cumsum(count) - count) * n_bins // array.size)[code]
    raise MetricError(f"binning: {binning!r}; pass 'width' or 'mass'")


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram's numbers; every array has length n_bins.

    `count` of rows per bin; mean `confidence` and mean `accuracy` per bin, NaN where it
    is empty; `lower` and `upper`, the edges ("width") or the extreme confidences inside
    ("mass", NaN where empty).
    """

    count: NDArray[np.intp]
    confidence: Array
    accuracy: Array
    lower: Array
    upper: Array
    binning: Binning

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.count.sum())

    @property
    def ece(self) -> float:
        """Plug-in expected calibration error, see `ece`."""
        gap = np.abs(self.accuracy - self.confidence)
        return float(np.nansum(self.count * gap) / self.n)


def reliability(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15,
    binning: Binning = "width",
) -> Reliability:  # fmt: skip
    """Mean confidence against mean correctness, bin by bin."""
    index = bin_index(confidence, n_bins, binning)
    values, hits = _pair(confidence, correct)
    count = np.bincount(index, minlength=n_bins)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(index, w, n_bins) / count for w in (values, hits)]
    if binning == "width":
        lower, upper = np.arange(n_bins) / n_bins, np.arange(1, n_bins + 1) / n_bins
    else:
        lower, upper = np.full((2, n_bins), np.nan)
        np.fmin.at(lower, index, values)
        np.fmax.at(upper, index, values)
    return Reliability(count, means[0], means[1], lower, upper, binning)


def ece(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15,
    binning: Binning = "width",
) -> float:  # fmt: skip
    """Plug-in ``sum_b (n_b/n) |mean correct_b - mean confidence_b|``, in [0, 1].

    Biased upward: a perfect forecaster scores above 0. Report n, n_bins, and
    `ece_debiased` or `ece_noise_floor` beside it. Naeini, Cooper & Hauskrecht (2015).

    Examples
    --------
    >>> round(ece([0.6, 0.55], [1, 0], n_bins=10), 12)
    0.475
    """
    return reliability(confidence, correct, n_bins, binning).ece


def ece_debiased(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15,
    binning: Binning = "width", *, groups: ArrayLike | None = None,
) -> float:  # fmt: skip
    """Calibration error that leaves each row out of its own bin's mean.

    With residual r_i = correct - confidence and S_-i the sum of the other residuals in
    its bin, the estimate is ``mean_i sign(S_-i) r_i`` (the jackknife idea). If rows are
    drawn at random, row and sign are independent, so in expectation it is 0 for a
    perfect forecaster and at most the true binned error, where plug-in `ece` is at
    least that: the two bracket the truth. A single value is noisy and may be negative:
    over 3,200 honest rows its standard deviation is about five times that of `ece`.

    Parameters
    ----------
    groups : array (N,), optional
        Leave out whole groups, where rows of a group depend on each other.
    """
    index = bin_index(confidence, n_bins, binning)
    values, hits = _pair(confidence, correct)
    codes, n_groups = _codes(groups, values.size)
    cells, cell = np.unique(index * n_groups + codes, return_inverse=True)
    own, home = np.bincount(cell, hits - values), cells // n_groups
    others = np.bincount(home, own)[home] - own
    others[np.abs(others) < 1e-12] = 0.0  # rounding residue has no sign
    return float(np.sign(others) @ own / values.size)


def ece_noise_floor(
    confidence: ArrayLike, n_bins: int = 15, binning: Binning = "width", *,
    rng: np.random.Generator, n_draws: int = 1000, quantile: float | None = None,
) -> float:  # fmt: skip
    """Plug-in ECE that a perfectly calibrated forecaster would show on as many rows.

    The mean over draws of independent outcomes whose chances are the confidences, or a
    `quantile` of them: an ECE above the .95 quantile is evidence of miscalibration at
    the 5 % level. With dependent rows the true floor lies higher.
    """
    index = bin_index(confidence, n_bins, binning)
    order = np.argsort(index, kind="stable")
    values = np.asarray(confidence, dtype=np.float64)[order]
    starts = np.flatnonzero(np.diff(index[order], prepend=-1))
    draws = _draws("n_draws", n_draws)
    step = max(1, CHUNK // values.size)
    for start in range(0, n_draws, step):
        size = (min(step, n_draws - start), values.size)
        gaps = np.add.reduceat((rng.random(size) < values) - values, starts, axis=1)
        draws[start : start + step] = np.abs(gaps).sum(1) / values.size
    return float(draws.mean() if quantile is None else np.quantile(draws, quantile))


def classwise_reliability(
    p: ArrayLike, y: ArrayLike, n_bins: int = 15, binning: Binning = "width",
    mask: ArrayLike | None = None,
) -> tuple[Reliability, ...]:  # fmt: skip
    """One diagram per option, p_k against the event "k is right"; see `scored`.

    A row counts for the options it has. The mean of the ``.ece`` is the classwise ECE
    (Kull et al. 2019).
    """
    forecast, target, exists = _table(p, y, mask)
    if not exists.any(0).all():
        unused = int(exists.any(0).argmin())
        raise MetricError(f"mask: no row has option {unused}; leave its column out")
    return tuple(
        reliability(forecast[rows, k], target[rows, k], n_bins, binning)
        for k, rows in enumerate(exists.T)
    )


# --- Selective prediction --------------------------------------------------------


class RiskCoverage(NamedTuple):
    """Arrays (T,), one entry per distinct confidence from the highest down.

    Answering the rows with confidence >= `threshold` answers the share `coverage` of
    all, with error rate `risk`.
    """

    threshold: Array
    coverage: Array
    risk: Array


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Risk-coverage curve; tied rows are answered together or not at all."""
    values, hits = _pair(confidence, correct)
    distinct, code, count = np.unique(-values, return_inverse=True, return_counts=True)
    answered = np.cumsum(count)
    wrong = np.cumsum(np.bincount(code, 1 - hits))
    return RiskCoverage(-distinct, answered / values.size, wrong / answered)


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk-coverage curve, in [0, 1], lower is better.

    ``mean_i risk(rows at least as confident as i)``: the usual value where confidences
    are distinct, free of row order where they tie. Geifman, Uziel & El-Yaniv (2019).

    Examples
    --------
    >>> aurc([0.5, 0.5, 0.5, 0.5], [1, 0, 0, 1])
    0.5
    """
    curve = risk_coverage(confidence, correct)
    return float(np.diff(curve.coverage, prepend=0.0) @ curve.risk)


def coverage_error(confidence: ArrayLike, correct: ArrayLike, coverage: float) -> float:
    """Error rate of the most confident rows, at least the share `coverage` in (0, 1].

    Ties stay together, so the share answered may be larger than asked for.
    """
    if not 0 < coverage <= 1:
        raise MetricError(f"coverage: {coverage!r}; pass a share in (0, 1]")
    curve = risk_coverage(confidence, correct)
    return float(curve.risk[np.argmax(curve.coverage >= coverage)])


def coverage_at_error(confidence: ArrayLike, correct: ArrayLike, error: float) -> float:
    """Largest share of rows answered with an error rate of at most `error`; else 0.

    A plug-in value on the rows given, without a guarantee for new ones.
    """
    if not 0 <= error <= 1:
        raise MetricError(f"error: {error!r}; pass a rate in [0, 1]")
    curve = risk_coverage(confidence, correct)
    return float(curve.coverage[curve.risk <= error].max(initial=0.0))


def auroc(score: ArrayLike, correct: ArrayLike) -> float:
    """Chance that a right row scores above a wrong one, a tie counting one half.

    `score` (N,) is any finite number. A soft `correct` c counts as a right row of
    weight c and a wrong one of 1 - c. Raises `MetricError` if all rows are right or all
    are wrong, when there is nothing to compare.
    """
    hits = _unit("correct", correct).astype(np.float64)
    _, code = np.unique(_vector("score", score, hits.size), return_inverse=True)
    right, wrong = np.bincount(code, hits), np.bincount(code, 1 - hits)
    if right.sum() == 0 or wrong.sum() == 0:
        raise MetricError(
            "auroc: every row has the same outcome; pass rows with right and wrong ones"
        )
    below = np.cumsum(wrong) - wrong / 2
    return float(right @ below / (right.sum() * wrong.sum()))


# --- Intervals -------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval at `level`; `n` independent units stand behind it.

    ``f"{interval:.3f}"`` gives "estimate [low, high]".
    """

    estimate: float
    low: float
    high: float
    level: float
    n: int
    method: str

    def __format__(self, spec: str) -> str:
        values = [format(v, spec) for v in (self.estimate, self.low, self.high)]
        return f"{values[0]} [{values[1]}, {values[2]}]"


@dataclass(frozen=True)
class Statistic:
    """A statistic that the bootstrap can resample.

    `features` is (N, M), the numbers of each row. If `additive`, `reduce` maps sums of
    features over rows, (R, M), to (R,) values, all resamples at once. Otherwise it maps
    the features of one resample's rows, (N', M), to a float, as `aurc` needs.
    """

    features: Array
    reduce: Callable[[Array], Any]
    additive: bool = True

    def value(self) -> float:
        """The statistic of the rows themselves."""
        if self.additive:
            return float(self.reduce(self.features.sum(0, keepdims=True))[0])
        return float(self.reduce(self.features))


def mean_statistic(values: ArrayLike) -> Statistic:
    """Mean of (N,) finite values."""
    array = _vector("values", values).astype(np.float64)
    features = np.stack([array, np.ones_like(array)], axis=1)
    return Statistic(features, lambda sums: sums[:, 0] / sums[:, 1])


def ece_statistic(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15,
    binning: Binning = "width",
) -> Statistic:  # fmt: skip
    """Plug-in `ece`; the bins stay those of the full sample."""
    index = bin_index(confidence, n_bins, binning)
    values, hits = _pair(confidence, correct)
    features = np.zeros((values.size, n_bins + 1))
    features[np.arange(values.size), index] = hits - values
    features[:, -1] = 1.0
    return Statistic(features, lambda s: np.abs(s[:, :-1]).sum(1) / s[:, -1])


def bootstrap_interval(
    statistic: Statistic | ArrayLike, *, groups: ArrayLike | None = None,
    rng: np.random.Generator, n_resamples: int = 10_000, level: float = 0.95,
    method: Literal["percentile", "basic"] = "percentile",
) -> Interval:  # fmt: skip
    """Bootstrap interval of a statistic, resampling whole groups.

    Each resample draws as many groups as there are, with replacement, and takes all
    rows of each. Sums within a group are formed once, so additive statistics are fast.

    Parameters
    ----------
    statistic : Statistic or array (N,)
        An array stands for its mean.
    groups : array (N,), optional
        Group of each row, such as its state; without it every row is a group.
    method : {"percentile", "basic"}
        "basic" reflects the percentiles about the estimate. For a single ECE neither
        keeps its level: resampling adds the plug-in bias a second time, so that the
        percentile interval can lie wholly above the estimate, and "basic" covers about
        .72 to .88 where .95 is promised (400 rows); compare with `ece_noise_floor`.

    Raises
    ------
    MetricError
        If there are fewer than 2 groups, or shapes differ.
    """
    if not isinstance(statistic, Statistic):
        statistic = mean_statistic(statistic)
    if method not in ("percentile", "basic"):
        raise MetricError(f"method: {method!r}; pass 'percentile' or 'basic'")
    features, reduce, tail = statistic.features, statistic.reduce, _tail(level)
    codes, n = _codes(groups, len(features))
    if n < 2:
        raise MetricError(f"groups: {n} group(s); an interval needs at least 2")
    sums = features
    if groups is not None:
        sums = np.stack([np.bincount(codes, f, n) for f in features.T], axis=1)
    draws = _draws("n_resamples", n_resamples)
    step = max(1, CHUNK // n)
    small = np.min_scalar_type(n - 1)  # fewer random bits to draw
    for start in range(0, n_resamples, step):
        size = min(step, n_resamples - start)
        picks = rng.integers(0, n, (size, n), dtype=small)
        flat = (picks + np.arange(size)[:, None] * n).ravel()
        times = np.bincount(flat, minlength=size * n).reshape(size, n)
        if statistic.additive:
            values = reduce(times.astype(np.float64) @ sums)
        else:
            values = [reduce(np.repeat(features, t[codes], axis=0)) for t in times]
        draws[start : start + size] = values
    estimate = statistic.value()
    low, high = (float(v) for v in np.quantile(draws, [tail, 1 - tail]))
    if method == "basic":
        low, high = 2 * estimate - high, 2 * estimate - low
    return Interval(estimate, low, high, level, n, f"{method} bootstrap")


def paired_bootstrap(
    first: Statistic | ArrayLike, second: Statistic | ArrayLike, *,
    groups: ArrayLike | None = None, rng: np.random.Generator,
    n_resamples: int = 10_000, level: float = 0.95,
) -> Interval:  # fmt: skip
    """Percentile interval of ``first - second``, the same statistic of two runs.

    Both hold the same rows in the same order and see the same resample of whole groups,
    so what they have in common cancels. Arguments as `bootstrap_interval`.
    """
    a = first if isinstance(first, Statistic) else mean_statistic(first)
    b = second if isinstance(second, Statistic) else mean_statistic(second)
    if len(a.features) != len(b.features) or a.additive != b.additive:
        raise MetricError(
            f"paired runs have {len(a.features)} and {len(b.features)} rows; pass one "
            "statistic of the same rows, in the same order"
        )
    width = a.features.shape[1]
    both = Statistic(
        np.concatenate([a.features, b.features], axis=1),
        lambda x: a.reduce(x[:, :width]) - b.reduce(x[:, width:]),
        a.additive,
    )
    return bootstrap_interval(
        both, groups=groups, rng=rng, n_resamples=n_resamples, level=level
    )


def seed_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Student t interval of a mean over n >= 2 seeds; for pairs, pass differences."""
    array = _vector("values", values).astype(np.float64)
    if array.size < 2:
        raise MetricError("values: one seed has no interval; pass at least 2")
    mean, error = array.mean(), array.std(ddof=1) / np.sqrt(array.size)
    half = stdtrit(array.size - 1, 1 - _tail(level)) * error
    low, high = float(mean - half), float(mean + half)
    return Interval(float(mean), low, high, level, array.size, "Student t")


def _trimmed(scores: Array) -> Array:
    cut = scores.shape[-1] // 4
    return np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(-1)


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean of all values pooled: a quarter is cut at each end.

    Agarwal et al. (2021), NeurIPS ("rliable").
    """
    return float(_trimmed(_vector("scores", np.ravel(scores))))


def iqm_interval(
    scores: ArrayLike, *, rng: np.random.Generator, n_resamples: int = 10_000,
    level: float = 0.95,
) -> Interval:  # fmt: skip
    """Percentile interval of `iqm`, resampling runs within each task (stratified).

    `scores` is (runs,) or (runs, tasks), with at least 2 runs.
    """
    array = np.asarray(scores, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or len(array) < 2:
        raise MetricError(f"scores: shape {array.shape}; pass (runs >= 2, tasks)")
    estimate, tail = iqm(array), _tail(level)
    picks = rng.integers(0, len(array), (n_resamples, *array.shape))
    drawn = np.take_along_axis(array[None], picks, axis=1)
    draws = _trimmed(drawn.reshape(n_resamples, -1))
    low, high = (float(v) for v in np.quantile(draws, [tail, 1 - tail]))
    return Interval(estimate, low, high, level, len(array), "stratified bootstrap")


def wilson_interval(
    successes: ArrayLike, n: ArrayLike, level: float = 0.95
) -> tuple[Array, Array]:
    """Score interval (low, high) of proportions (Wilson 1927); NaN where n is 0.

    `successes` and `n` are arrays of one shape, 0 <= successes <= n; a sum of soft
    outcomes may stand for a count.
    """
    k, size = np.asarray(successes, np.float64), np.asarray(n, np.float64)
    if not ((k >= 0) & (k <= size * (1 + 1e-6)) & np.isfinite(size)).all():
        raise MetricError("wilson_interval: pass 0 <= successes <= n, finite")
    z = NormalDist().inv_cdf(1 - _tail(level))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.minimum(k / size, 1.0)
        scale = 1 + z**2 / size
        centre = (share + z**2 / (2 * size)) / scale
        half = z / scale * np.sqrt(share * (1 - share) / size + (z / (2 * size)) ** 2)
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)


def budget_to_reach(budgets: ArrayLike, scores: ArrayLike, target: float) -> float:
    """Budget at which a falling score first reaches ``target``.

    Between neighbouring budgets the score is interpolated linearly in the logarithm of
    the budget. NaN if the smallest budget is already at or below the target (the
    crossing lies outside the data), infinity if no budget reaches it.

    Parameters
    ----------
    budgets : (T,) array
        Positive and increasing.
    scores : (T,) array
        Finite, lower is better.

    Examples
    --------
    >>> round(budget_to_reach([10, 1000], [0.4, 0.2], 0.3), 6)
    100.0
    """
    at = _vector("budgets", budgets).astype(np.float64)
    score = _vector("scores", scores, at.size).astype(np.float64)
    _vector("target", [target])
    if at[0] <= 0 or (np.diff(at) <= 0).any():
        raise MetricError(f"budgets must be positive and increasing, not {at.tolist()}")
    below = np.flatnonzero(score <= target)
    if not len(below):
        return float("inf")
    first = int(below[0])
    if first == 0:
        return float("nan")
    before, after = score[first - 1], score[first]
    part = (before - target) / (before - after)
    low, high = np.log(at[first - 1]), np.log(at[first])
    return float(np.exp(low + part * (high - low)))
