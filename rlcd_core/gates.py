"""From probability to action: act, escalate or abstain, with or without a guarantee.

A `Gate` reads the stated confidence that the proposed action is right. Its threshold is
set by hand, by costs (`Costs.gate`), or on held-out outcomes so that a promise holds:
`learn_then_test`, `conformal_risk_control`, `split_conformal`. A promise is about new
rows drawn like the calibration rows, on which nothing was trained. Rows must be
independent: of several decisions about one state, pass one. Invalid input raises
`GateError`.
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
# further up dies of the first error, one further down overlooks small shares.
START = 0.1


class GateError(ValueError):
    """Input on which no gate can be set; the message says what to pass."""


def _unit(name: str, values: ArrayLike, shape: tuple[int, ...] | None = None) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "iubf" or shape not in (None, array.shape):
        raise GateError(
            f"{name}: shape is {array.shape}, type {array.dtype}; pass numbers of "
            f"shape {'(...)' if shape is None else shape}"
        )
    # An average of probabilities may pass 1 by rounding.
    if not ((array >= 0) & (array <= 1 + 1e-6)).all():
        raise GateError(f"{name}: pass values in [0, 1]; leave out unresolved rows")
    return np.minimum(array.astype(np.float64), 1.0)


def _rate(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise GateError(f"{name}: {value!r}; pass a rate strictly between 0 and 1")
    return float(value)


@dataclass(frozen=True)
class Gate:
    """Act from confidence `act` up (None: never), abstain below `abstain`.

    Escalate between. Both in [0, 1], ``abstain <= act``; `abstain` 0 never abstains.

    Examples
    --------
    >>> Gate(act=0.9, abstain=0.2).decide([0.95, 0.9, 0.5, 0.1]).tolist()
    ['act', 'act', 'escalate', 'abstain']
    """

    act: float | None
    abstain: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.abstain <= (1 if self.act is None else self.act) <= 1:
            raise GateError(
                f"act={self.act!r}, abstain={self.abstain!r}; pass 0 <= abstain <= act "
                "<= 1, or act=None for a gate that never acts"
            )

    def acts(self, confidence: ArrayLike) -> NDArray[np.bool_]:
        """True (...) where the gate acts; tied confidences are treated alike."""
        lowest = np.inf if self.act is None else self.act
        return _unit("confidence", confidence) >= lowest

    def decide(self, confidence: ArrayLike) -> NDArray[np.str_]:
        """One of `ACT`, `ESCALATE`, `ABSTAIN` for each confidence (...) in [0, 1]."""
        below = np.where(np.less(confidence, self.abstain), ABSTAIN, ESCALATE)
        return np.where(self.acts(confidence), ACT, below)


@dataclass(frozen=True)
class Costs:
    """Costs of a wrong act, of asking a person, of abstaining from a right act.

    In one unit, not negative; all else is free. `wrong` is finite and positive; an
    infinite `escalate` or `missed` takes that answer away.

    Examples
    --------
    >>> Costs(wrong=20, escalate=2, missed=8).gate()
    Gate(act=0.9, abstain=0.25)
    """

    wrong: float
    escalate: float
    missed: float = math.inf

    def __post_init__(self) -> None:
        costs = (self.wrong, self.escalate, self.missed)
        if not all(c >= 0 for c in costs) or not 0 < self.wrong < math.inf:
            raise GateError(f"costs {costs}: pass numbers >= 0, `wrong` finite and > 0")
        if math.isinf(self.escalate) and math.isinf(self.missed):
            raise GateError("escalate and missed are both infinite; give one a price")

    def gate(self) -> Gate:
        """The gate of least expected cost if the confidences are honest.

        At confidence p: ``wrong (1 - p)``, `escalate` or ``missed p``. Chow (1970) with
        a price for silence; `thm-gates-costs`.
        """
        even = self.wrong / (self.wrong + self.missed)  # to act or to abstain is equal
        person = self.escalate / self.missed if self.missed else math.inf
        return Gate(max(1 - self.escalate / self.wrong, even), min(person, even))

    def mean(self, answers: ArrayLike, correct: ArrayLike) -> float:
        """Mean cost of answers (N,) whose act would be right in `correct` (N,)."""
        given = np.asarray(answers)
        right = _unit("correct", correct, given.shape)
        if given.size == 0 or not np.isin(given, (ACT, ESCALATE, ABSTAIN)).all():
            raise GateError(f"answers: pass one or more {ACT}, {ESCALATE} or {ABSTAIN}")
        lost, asked = right[given == ABSTAIN].sum(), (given == ESCALATE).sum()
        total = self.wrong * (1 - right)[given == ACT].sum()
        for count, price in ((lost, self.missed), (asked, self.escalate)):
            total += count * price if count else 0.0  # 0 times infinity costs nothing
        return float(total / given.size)


@dataclass(frozen=True)
class Guarantee:
    """A gate and what is promised of it.

    `promise` "error": with probability ``1 - delta`` over calibration draws, at most
    the share `target` of the acts is wrong. "loss": the expected loss per decision is
    at most `target` (`delta` is None). On the `n` calibration rows the gate acts on
    `accepted`, with `loss` summed over them ("error": so many were wrong).
    """

    gate: Gate
    promise: str
    target: float
    delta: float | None
    n: int
    accepted: int
    loss: float

    def share(self, level: float = 0.95) -> Interval:
        """Share of new decisions that the gate will act on, in [0, 1], with interval.

        It holds for all thresholds at once, since this one was chosen on the same rows:
        half width ``sqrt(ln(2 / (1 - level)) / (2 n))``, DKW as by Massart (1990).
        """
        found, tail = self.accepted / self.n, 1 - _rate("level", level)
        half = math.sqrt(math.log(2 / tail) / (2 * self.n))
        half = 0.0 if self.gate.act is None else half  # never acts: known exactly
        low, high = max(found - half, 0.0), min(found + half, 1.0)
        return Interval(found, low, high, level, self.n, "DKW")


def _path(
    confidence: ArrayLike, name: str, values: ArrayLike
) -> tuple[Array, NDArray[np.intp], Array]:
    """Distinct confidences (T,) from the top; rows at or above each, their loss."""
    stated = _unit("confidence", confidence)
    if stated.ndim != 1 or stated.size == 0:
        raise GateError(f"confidence: shape is {stated.shape}; pass (N,), N >= 1")
    loss = _unit(name, values, stated.shape)
    if name == "correct":
        if not np.isin(loss, (0.0, 1.0)).all():
            raise GateError("correct: pass outcomes 0 or 1; a soft one is no count")
        loss = 1 - loss
    distinct, code, count = np.unique(-stated, return_inverse=True, return_counts=True)
    return -distinct, np.cumsum(count), np.cumsum(np.bincount(code, loss))


def least_rows(error: float, delta: float = 0.1) -> int:
    """Fewest rows, all right, that show an error rate of at most `error`.

    >>> least_rows(error=0.02), least_rows(error=0.1)
    (114, 22)
    """
    steps = math.log(_rate("delta", delta)) / math.log1p(-_rate("error", error))
    return math.ceil(steps - 1e-9)


def learn_then_test(
    confidence: ArrayLike, correct: ArrayLike, error: float, delta: float = 0.1,
    start: float | None = None,
) -> Guarantee:  # fmt: skip
    """Lowest threshold shown to err at most at rate `error` among its acts.

    Given the number accepted, the number wrong is binomial, so that
    ``P(Bin(accepted, error) <= wrong)`` is an exact p-value. Every distinct confidence
    is tested from the top down, each at the full `delta`, until the first that fails
    (fixed-sequence testing). Angelopoulos et al. (2025); `thm-gates-ltt`.

    Parameters
    ----------
    confidence, correct : array (N,)
        Stated chances in [0, 1] of held-out independent rows; their outcomes, 0 or 1.
    error, delta : float
        Largest error rate among acts; chance over calibration draws that it is passed.
    start : float, optional
        Confidence at which testing begins, fixed before these rows were seen: no
        further assumption is needed. By default where the share `START` of the rows,
        and `least_rows`, are accepted; this assumes that below the highest threshold
        that breaks the promise no confidence errs less than `error`, as when errors
        never get rarer as confidence falls. ``gate.act`` is None if nothing is shown.

    Examples
    --------
    >>> stated = np.linspace(0.5, 1, 1000)
    >>> learn_then_test(stated, stated > 0.7, error=0.05).accepted
    623
    """
    least = least_rows(error, delta)
    threshold, accepted, wrong = _path(confidence, "correct", correct)
    if start is None:
        rows = max(least, math.ceil(START * accepted[-1]))
        begin = int(np.searchsorted(accepted, rows))
    else:
        first = float(_unit("start", start, ()))
        above = int((threshold >= first).sum())
        # The start accepts the rows of the last threshold that is not below it.
        begin = above - 1 if above else len(threshold)
        threshold[above - 1 : above] = first
    fails = bdtr(wrong[begin:], accepted[begin:], error) > delta
    passed = int(np.argmax(fails)) if fails.any() else len(fails)
    best = begin + passed - 1 if passed else None
    return _promise("error", error, delta, best, threshold, accepted, wrong)


def _promise(
    name: str, target: float, delta: float | None, best: int | None, threshold: Array,
    accepted: NDArray[np.intp], loss: Array,
) -> Guarantee:  # fmt: skip
    n = int(accepted[-1])
    if best is None:
        return Guarantee(Gate(None), name, target, delta, n, 0, 0.0)
    rows, gate = int(accepted[best]), Gate(float(threshold[best]))
    return Guarantee(gate, name, target, delta, n, rows, float(loss[best]))


def share_at(
    confidence: ArrayLike, correct: ArrayLike, error: float = 0.02, delta: float = 0.1,
    level: float = 0.95,
) -> Interval:  # fmt: skip
    """How much `learn_then_test` can automate at this error; see `Guarantee.share`.

    >>> stated = np.linspace(0.5, 1, 2000)
    >>> f"{share_at(stated, stated > 0.7, error=0.05):.2f}"
    '0.63 [0.60, 0.66]'
    """
    return learn_then_test(confidence, correct, error, delta).share(level)


def conformal_risk_control(
    confidence: ArrayLike, loss: ArrayLike, target: float
) -> Guarantee:
    """Lowest threshold whose expected loss per decision is at most `target`.

    A row costs its `loss` (N,), in [0, 1], if acted on, else 0. Lowest distinct
    confidence with ``(summed loss + 1) / (n + 1) <= target``. The mean is over
    calibration draws and *all* decisions: ``loss = 1 - correct`` bounds wrong acts per
    decision, not the error among acts. Angelopoulos et al. (2024); `thm-gates-crc`.
    """
    threshold, accepted, summed = _path(confidence, "loss", loss)
    budget = _rate("target", target) * (accepted[-1] + 1) + 1e-9
    best = int((summed + 1 <= budget).sum()) - 1
    known = best if best >= 0 else None
    return _promise("loss", target, None, known, threshold, accepted, summed)


def split_conformal(p: ArrayLike, y: ArrayLike, error: float = 0.1) -> float:
    """Least probability of an option that belongs to a split-conformal set.

    From held-out probabilities (N, K) and labels (N,). The set ``p >= least`` of a new
    row misses the right option with chance `error` at most: on average over all rows,
    not over those whose set is small. 0, every option, where the rows are too few.
    Least ambiguous sets, Sadinle, Lei & Wasserman (2019).

    Examples
    --------
    >>> split_conformal([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8]], [0, 0, 1], error=0.3)
    0.6
    """
    array, labels = _unit("p", p), np.asarray(y)
    if array.ndim != 2 or not array.size or labels.shape != array.shape[:1]:
        raise GateError(f"p {array.shape}, y {labels.shape}: pass (N, K) and (N,)")
    options = np.arange(array.shape[1])
    if labels.dtype.kind not in "iu" or not np.isin(labels, options).all():
        raise GateError(f"y: pass integer labels in 0..{options[-1]}")
    given = np.sort(array[np.arange(len(labels)), labels])
    missed = math.floor((len(labels) + 1) * _rate("error", error) + 1e-9)
    return float(given[missed - 1]) if missed else 0.0
