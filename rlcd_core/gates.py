"""From probability to action: act, escalate or abstain, with or without a guarantee.

A `Gate` reads one number, the stated confidence that the proposed action is right. Its
threshold may be set by hand, by costs (`Costs.gate`), or on held-out outcomes so that
a promise holds: `learn_then_test` for the error among the decisions acted on,
`conformal_risk_control` for a loss per decision, `split_conformal` for sets of options.

Every promise is about new rows drawn like the calibration rows, which no model was
trained on. Rows must be independent: of several decisions about one state, pass one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr

from rlcd_core.metrics import Interval

Array = NDArray[np.float64]
ACT, ESCALATE, ABSTAIN = "act", "escalate", "abstain"
# Share of the rows, most confident first, at which testing begins by default: a start
# further up dies of the first error, one further down passes small oracle shares by.
START = 0.1


class GateError(ValueError):
    """Input on which no gate can be set; the message says what to pass."""


def _unit(name: str, values: ArrayLike, shape: tuple[int, ...] | None = None) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "iubf" or (shape is not None and array.shape != shape):
        raise GateError(
            f"{name}: shape is {array.shape}, type {array.dtype}; pass numbers"
            + (f" of shape {shape}" if shape else "")
        )
    array = array.astype(np.float64)
    # An average of probabilities may pass 1 by rounding.
    if not ((array >= 0) & (array <= 1 + 1e-6)).all():
        raise GateError(
            f"{name}: pass values in [0, 1], not NaN; leave unresolved rows out"
        )
    return array


def _open(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise GateError(f"{name}: {value!r}; pass a rate strictly between 0 and 1")
    return float(value)


@dataclass(frozen=True)
class Gate:
    """Answers by confidence: act from `act` up, abstain below `abstain`, else escalate.

    Parameters
    ----------
    act : float or None
        In [0, 1]; None never acts.
    abstain : float
        In [0, 1], at most `act`; 0 never abstains.

    Raises
    ------
    GateError
        For thresholds out of range or order.

    Examples
    --------
    >>> Gate(act=0.9, abstain=0.2).decide([0.95, 0.9, 0.5, 0.1]).tolist()
    ['act', 'act', 'escalate', 'abstain']
    """

    act: float | None
    abstain: float = 0.0

    def __post_init__(self) -> None:
        top = 1 if self.act is None else self.act
        if not 0 <= self.abstain <= top <= 1 + 1e-6:
            raise GateError(
                f"act={self.act!r}, abstain={self.abstain!r}; pass 0 <= abstain <= act "
                "<= 1, or act=None for a gate that never acts"
            )

    def acts(self, confidence: ArrayLike) -> NDArray[np.bool_]:
        """True (...) where the gate acts; rows with tied confidence go together."""
        values = _unit("confidence", confidence)
        return values >= (np.inf if self.act is None else self.act)

    def decide(self, confidence: ArrayLike) -> NDArray[np.str_]:
        """"act", "escalate" or "abstain" for each confidence (...) in [0, 1]."""
        values = _unit("confidence", confidence)
        below = np.where(values < self.abstain, ABSTAIN, ESCALATE)
        return np.where(self.acts(values), ACT, below)


@dataclass(frozen=True)
class Costs:
    """What each answer costs, in one unit; finite or infinite, not negative.

    `wrong`: an act that turns out wrong. `escalate`: asking a person, who is right.
    `missed`: to abstain where the act would have been right. A right act and a rightly
    abstained one cost 0. An infinite cost takes that answer away.

    Examples
    --------
    >>> gate = Costs(wrong=20, escalate=2, missed=8).gate()
    >>> gate.act, gate.abstain
    (0.9, 0.25)
    """

    wrong: float
    escalate: float
    missed: float = math.inf

    def __post_init__(self) -> None:
        costs = (self.wrong, self.escalate, self.missed)
        if not all(c >= 0 for c in costs) or not 0 < self.wrong < math.inf:
            raise GateError(f"costs are {costs}; pass numbers >= 0, `wrong` > 0, finite")
        if math.isinf(self.escalate) and math.isinf(self.missed):
            raise GateError("escalate and missed are both infinite; give one a price")

    def gate(self) -> Gate:
        """The gate of least expected cost for confidences that are honest.

        At confidence p an act costs ``wrong (1 - p)``, abstaining ``missed p`` and
        escalating ``escalate``; ties go to the act. Chow (1970); `thm-gates-costs`.
        """
        even = self.wrong / (self.wrong + self.missed)  # act as good as abstain
        person = self.escalate / self.missed if self.missed else math.inf
        act = max(1 - self.escalate / self.wrong, even, 0.0)
        return Gate(act, min(person, even))

    def mean(self, answers: ArrayLike, correct: ArrayLike) -> float:
        """Mean cost of answers (N,) where the act would be right in `correct` (N,)."""
        given = np.asarray(answers)
        right = _unit("correct", correct, given.shape)
        if given.size == 0 or not np.isin(given, (ACT, ESCALATE, ABSTAIN)).all():
            raise GateError("answers: pass at least one 'act', 'escalate' or 'abstain'")
        # 0 times an infinite cost is no cost.
        missed = self.missed if right[given == ABSTAIN].any() else 0.0
        person = self.escalate if (given == ESCALATE).any() else 0.0
        kinds = [given == ACT, given == ABSTAIN]
        prices = [self.wrong * (1 - right), missed * right]
        return float(np.select(kinds, prices, person).mean())


@dataclass(frozen=True)
class Guarantee:
    """A gate and what is promised of it.

    `promise` names it: "error" (error rate among acts at most `target`, with
    probability `1 - delta` over calibration draws) or "loss" (expected loss per
    decision at most `target`; `delta` is None). The gate acts on `accepted` of the `n`
    calibration rows, with `loss` summed over these (for "error": how many were wrong).
    """

    gate: Gate
    promise: str
    target: float
    delta: float | None
    n: int
    accepted: int
    loss: float

    def share(self, level: float = 0.95) -> Interval:
        """Share of decisions acted on, in [0, 1], with its interval.

        The threshold was chosen on the same rows, so the interval is the one that
        holds for all thresholds at once (Dvoretzky, Kiefer & Wolfowitz, constant of
        Massart 1990): half width ``sqrt(ln(2 / (1 - level)) / (2 n))``. A gate that
        never acts has share 0 for certain.
        """
        tail, found = 1 - _open("level", level), self.accepted / self.n
        half = 0.0 if self.gate.act is None else math.sqrt(math.log(2 / tail) / 2 / self.n)
        low, high = max(found - half, 0.0), min(found + half, 1.0)
        return Interval(found, low, high, level, self.n, "DKW")


def _path(confidence: Array, loss: Array) -> tuple[Array, NDArray[np.intp], Array]:
    """Distinct confidences (T,) from the top; rows at or above each, their loss."""
    distinct, code, count = np.unique(
        -confidence, return_inverse=True, return_counts=True
    )
    return -distinct, np.cumsum(count), np.cumsum(np.bincount(code, loss))


def _rows(confidence: ArrayLike, name: str, values: ArrayLike) -> tuple[Array, Array]:
    first = _unit("confidence", confidence)
    if first.ndim != 1 or first.size == 0:
        raise GateError(f"confidence: shape is {first.shape}; pass (N,), N >= 1")
    return first, _unit(name, values, first.shape)


def least_rows(error: float, delta: float = 0.1) -> int:
    """Fewest accepted rows, all right, that can show an error rate below `error`.

    The smallest n with ``(1 - error)^n <= delta``.

    Examples
    --------
    >>> least_rows(error=0.02), least_rows(error=0.1)
    (114, 22)
    """
    exact = math.log(_open("delta", delta)) / math.log1p(-_open("error", error))
    return math.ceil(exact - 1e-9)


def learn_then_test(
    confidence: ArrayLike,
    correct: ArrayLike,
    error: float,
    delta: float = 0.1,
    start: float | None = None,
) -> Guarantee:
    """Lowest threshold whose acts err at most at rate `error`, with proof.

    Each threshold t has the null hypothesis "among decisions with confidence >= t more
    than the share `error` is wrong". Given how many rows t accepts, the number of wrong
    ones is binomial, so that ``p(t) = P(Bin(accepted, error) <= wrong)`` is an exact
    p-value (Clopper & Pearson 1934). Thresholds are tested from the top down, at every
    distinct confidence, until the first ``p(t) > delta``: fixed-sequence testing, at
    the full `delta` each. Angelopoulos et al. (2025); `thm-gates-ltt`.

    Parameters
    ----------
    confidence : array (N,)
        Stated chances in [0, 1] of held-out rows that are independent of each other.
    correct : array (N,)
        Outcomes, 0 or 1; unresolved rows must be left out by the caller.
    error : float
        Largest error rate among acts, in (0, 1).
    delta : float
        Chance, over calibration draws, that the promise fails.
    start : float, optional
        Confidence at which testing begins, fixed before these rows were seen: the
        promise then needs no assumption on the confidences. By default testing begins
        where `START` of the rows, and at least `least_rows`, are accepted; this asks
        that below the oracle threshold no confidence level errs less than `error`
        (true if the error rate never falls as confidence falls).

    Returns
    -------
    Guarantee
        With ``gate.act`` None where nothing can be promised.

    Raises
    ------
    GateError
        For shapes, values that are no outcomes, or rates outside (0, 1).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> stated = 1 - 0.5 * rng.random(2000) ** 2
    >>> right = rng.random(2000) < stated
    >>> found = learn_then_test(stated, right, error=0.05)
    >>> found.accepted, int(found.loss), round(found.gate.act, 3)
    (994, 38, 0.884)
    """
    values, right = _rows(confidence, "correct", correct)
    if not np.isin(right, (0.0, 1.0)).all():
        raise GateError("correct: pass outcomes 0 or 1; a soft one has no binomial")
    level, least = _open("delta", delta), least_rows(error, delta)
    threshold, accepted, wrong = _path(values, 1 - right)
    if start is None:
        begin = int(np.searchsorted(accepted, max(least, math.ceil(START * values.size))))
    else:
        high = float(_unit("start", start, ()))
        begin = int((threshold > high).sum())
        if begin and (begin == len(threshold) or threshold[begin] != high):
            begin -= 1  # the start itself accepts what lies above it
            threshold = np.where(np.arange(len(threshold)) == begin, high, threshold)
    fails = bdtr(wrong[begin:], accepted[begin:], error) > level
    steps = int(np.argmax(fails)) if fails.any() else len(fails)
    return _found(begin + steps - 1 if steps else -1, "error", error, delta, threshold,
                  accepted, wrong)  # fmt: skip


def _found(
    last: int, promise: str, target: float, delta: float | None, threshold: Array,
    accepted: NDArray[np.intp], loss: Array,
) -> Guarantee:  # fmt: skip
    n = int(accepted[-1])
    if last < 0:
        return Guarantee(Gate(None), promise, target, delta, n, 0, 0.0)
    # Rounding may have put a stated chance above 1; a gate's threshold is not.
    gate = Gate(min(float(threshold[last]), 1.0))
    return Guarantee(
        gate, promise, target, delta, n, int(accepted[last]), float(loss[last])
    )


def share_at(
    confidence: ArrayLike,
    correct: ArrayLike,
    error: float = 0.02,
    delta: float = 0.1,
    level: float = 0.95,
) -> Interval:
    """How much can be automated with at most this error rate among what is automated.

    The share of decisions that the gate of `learn_then_test` acts on, with the interval
    of `Guarantee.share`; arguments as there.

    Examples
    --------
    >>> stated = np.linspace(0.5, 1, 2000)
    >>> f"{share_at(stated, stated > 0.7, error=0.05):.2f}"
    '0.63 [0.60, 0.66]'
    """
    return learn_then_test(confidence, correct, error, delta).share(level)


def conformal_risk_control(
    confidence: ArrayLike, loss: ArrayLike, target: float
) -> Guarantee:
    """Lowest threshold whose expected loss per decision is at most `target`.

    A row costs its `loss` if acted on and 0 else, which never grows with the threshold;
    that is all the proof needs, beside exchangeable rows. The threshold is the lowest
    distinct confidence with ``(summed loss + 1) / (n + 1) <= target``. Angelopoulos et
    al. (2024); `thm-gates-crc`. The mean is over calibration draws and over *all*
    decisions: with ``loss = 1 - correct`` it bounds wrong acts per decision, not the
    error among acts.

    Parameters
    ----------
    confidence : array (N,)
    loss : array (N,)
        Loss of acting, in [0, 1].
    target : float
        In (0, 1); below ``1 / (n + 1)`` nothing can be promised and the gate never acts.

    Raises
    ------
    GateError
        For shapes or values out of range.
    """
    values, costs = _rows(confidence, "loss", loss)
    _open("target", target)
    threshold, accepted, summed = _path(values, costs)
    passes = (summed + 1) <= target * (values.size + 1) + 1e-9
    return _found(int(passes.sum()) - 1, "loss", target, None, threshold, accepted, summed)


@dataclass(frozen=True)
class ConformalSets:
    """Sets of options that hold the right one with chance `1 - error` at least.

    An option belongs to the set if its probability reaches `least`; None takes all
    (too few calibration rows to leave any out).
    """

    least: float | None
    error: float
    n: int

    def sets(self, p: ArrayLike, mask: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Membership (..., K) for probabilities (..., K); masked options never."""
        array = _unit("p", p)
        inside = array >= (0.0 if self.least is None else self.least)
        return inside if mask is None else inside & np.asarray(mask, bool)


def split_conformal(p: ArrayLike, y: ArrayLike, error: float = 0.1) -> ConformalSets:
    """Split-conformal sets from held-out probabilities (N, K) and labels (N,).

    The least-ambiguous sets of Sadinle, Lei & Wasserman (2019), score ``1 - p_y``. The
    promise is an average over all rows: it says nothing of the rows whose set is
    small, nor of one option.

    Raises
    ------
    GateError
        For shapes, or a label outside 0..K-1.
    """
    array, labels = _unit("p", p), np.asarray(y)
    if array.ndim != 2 or not array.size or labels.shape != array.shape[:1]:
        raise GateError(f"p {array.shape}, y {labels.shape}; pass (N, K) and (N,)")
    if labels.dtype.kind not in "iu" or not np.isin(labels, range(array.shape[1])).all():
        raise GateError(f"y: pass integer labels in 0..{array.shape[1] - 1}")
    given = np.sort(array[np.arange(len(labels)), labels])
    out = math.floor((len(labels) + 1) * _open("error", error) + 1e-9)
    return ConformalSets(float(given[out - 1]) if out else None, error, len(labels))
