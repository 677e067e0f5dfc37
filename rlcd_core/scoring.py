"""Proper scoring rules, their gradients and their decompositions, in NumPy.

Conventions. Forecasts p (..., K), labels or soft targets y, and masks are those of
`metrics.scored`; a soft target enters the formula where the one-hot label stands. Every
function returns a loss per row, lower is better. Bad input raises `MetricError`.

`Rule.expected` averages a loss over labels drawn from q. On a soft target it differs
from the loss itself in `brier` and `rps` alone, and there by the entropy of q, which
no forecast changes. Gneiting & Raftery (2007), JASA 102, is the source throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlcd_core.metrics import Array, Mask, MetricError, bin_index, scored


def _events(p: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    forecast, event = np.asarray(p, np.float64), np.asarray(y, np.float64)
    if forecast.shape != event.shape:
        raise MetricError(
            f"p has shape {forecast.shape}, y {event.shape}; pass one event a forecast"
        )
    for name, values in (("p", forecast), ("y", event)):
        # An average of probabilities may pass 1 by rounding.
        if not ((values >= 0) & (values <= 1 + 1e-6)).all():
            raise MetricError(f"{name}: values must be in [0, 1], not NaN")
    return forecast, event


def _mix(p: Array, exists: Mask, eps: float) -> Array:
    return (1 - eps) * p + eps * exists / exists.sum(-1, keepdims=True)


# --- The rules -------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A proper scoring rule with what follows from it.

    `losses` gives ``L_k(p)``, the loss if option k is right, ``(p, mask) -> (..., K)``;
    `slopes` gives ``p_j d/dp_j sum_k q_k L_k(p)``, ``(p, q, mask) -> (..., K)``, which
    stays finite where the bare derivative does not; `soft` the loss on a soft target,
    ``(p, q, mask) -> (...)``, where that is not the mean of ``L_k`` over the target.
    """

    losses: Callable[[Array, Mask], Array]
    slopes: Callable[[Array, Array, Mask], Array]
    soft: Callable[[Array, Array, Mask], Array] | None = None

    def loss(self, p: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None) -> Array:
        """Loss of p under labels or soft targets y; shape (...)."""
        return (self.soft or self._expected)(*scored(p, y, mask))

    def expected(
        self, p: ArrayLike, q: ArrayLike, mask: ArrayLike | None = None
    ) -> Array:
        """Mean loss ``sum_k q_k L_k(p)`` when labels are drawn from q; shape (...)."""
        return self._expected(*scored(p, q, mask))

    def _expected(self, p: Array, q: Array, exists: Mask) -> Array:
        with np.errstate(invalid="ignore"):
            terms = q * self.losses(p, exists)
        return np.where(q > 0, terms, 0.0).sum(-1)  # 0 * inf counts as 0

    def entropy(self, q: ArrayLike, mask: ArrayLike | None = None) -> Array:
        """Least expected loss, that of the honest forecast p = q; shape (...)."""
        return self.expected(q, np.asarray(q, dtype=np.float64), mask)

    def divergence(
        self, p: ArrayLike, q: ArrayLike, mask: ArrayLike | None = None
    ) -> Array:
        """Expected loss above the entropy: 0 at p = q, positive elsewhere."""
        forecast, target, exists = scored(p, q, mask)
        least = self._expected(target, target, exists)
        return self._expected(forecast, target, exists) - least

    def grad_logits(
        self, p: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None
    ) -> Array:
        """Gradient of the (expected) loss in z, where p = softmax(z); (..., K).

        ``s - p sum(s)`` with s the slopes: the softmax Jacobian ``diag(p) - p p^T``
        applied to the derivative in p. For Brier it is ``-2 J (y - p)``
        (`thm-identity`).
        """
        forecast, target, exists = scored(p, y, mask)
        slopes = self.slopes(forecast, target, exists)
        return slopes - forecast * slopes.sum(-1, keepdims=True)


def _norm(p: Array) -> Array:
    return np.sqrt((p * p).sum(-1, keepdims=True))


def _log_losses(p: Array, exists: Mask) -> Array:
    with np.errstate(divide="ignore"):
        return -np.log(p)


def _spherical_slopes(p: Array, q: Array, exists: Mask) -> Array:
    norm = _norm(p)
    return p * (p * (p * q).sum(-1, keepdims=True) / norm**3 - q / norm)


def _above(x: Array) -> Array:
    """Sums over j >= k."""
    return np.cumsum(x[..., ::-1], -1)[..., ::-1]


def _rps_losses(p: Array, exists: Mask) -> Array:
    steps, below = exists.sum(-1, keepdims=True) - 1, np.cumsum(p, -1)
    squares = exists * below**2
    losses = squares.sum(-1, keepdims=True) + _above(exists * (1 - 2 * below))
    return losses / steps


def _rps_slopes(p: Array, q: Array, exists: Mask) -> Array:
    steps = exists.sum(-1, keepdims=True) - 1
    gap = exists * (np.cumsum(p, -1) - np.cumsum(q, -1))
    return 2 * p * _above(gap) / steps


def _brier_soft(p: Array, q: Array, exists: Mask) -> Array:
    return ((p - q) ** 2).sum(-1)


def _rps_soft(p: Array, q: Array, exists: Mask) -> Array:
    gap = exists * (np.cumsum(p, -1) - np.cumsum(q, -1))
    return (gap**2).sum(-1) / (exists.sum(-1) - 1)


def _floored_log(floor: float) -> Rule:
    """The improper log loss whose log is no lower than `floor`."""
    if not floor < 0:
        raise MetricError(f"floor: {floor!r}; pass a negative number")
    return Rule(
        lambda p, m: np.minimum(_log_losses(p, m), -floor),
        lambda p, q, m: np.where(p > np.exp(floor), -q, 0.0),
    )


def _sum(*terms: tuple[float, Rule]) -> Rule:
    """Weighted sum of rules; on a soft target the mean over labels."""
    weights = [w for w, _ in terms]
    if not (min(weights) >= 0 and max(weights) > 0):
        raise MetricError(
            f"weights {weights}: a negative weight makes the rule improper; pass "
            "numbers >= 0, one of them above 0"
        )
    # A term without weight is left out, since its loss may be infinite.
    used = [(w, rule) for w, rule in terms if w]
    return Rule(
        lambda p, m: np.sum([w * rule.losses(p, m) for w, rule in used], axis=0),
        lambda p, q, m: np.sum([w * rule.slopes(p, q, m) for w, rule in used], axis=0),
    )


def clamped(rule: Rule, eps: float) -> Rule:
    """Bound a rule and keep it strictly proper: mix the forecast AND the label.

    ``sum_k ((1 - eps) 1[k = y] + eps/K) L_k((1 - eps) p + eps/K)``, minimised at p = q
    on the whole simplex (`thm-clamp`), for eps in (0, 1). Mixing p alone, or flooring
    the log, is not.
    """
    if not 0 < eps < 1:
        raise MetricError(f"eps: {eps!r}; pass a weight strictly between 0 and 1")

    def losses(p: Array, exists: Mask) -> Array:
        raw = np.where(exists, rule.losses(_mix(p, exists, eps), exists), 0.0)
        mean = raw.sum(-1, keepdims=True) / exists.sum(-1, keepdims=True)
        return (1 - eps) * raw + eps * mean

    def slopes(p: Array, q: Array, exists: Mask) -> Array:
        forecast = _mix(p, exists, eps)
        raw = rule.slopes(forecast, _mix(q, exists, eps), exists)
        ratio = np.divide(p, forecast, out=np.zeros_like(p), where=forecast > 0)
        return (1 - eps) * ratio * raw

    return Rule(losses, slopes)


def power_rule(alpha: float) -> Rule:
    """Power loss ``1 - alpha p_y^(alpha-1) + (alpha-1) sum_j p_j^alpha``, alpha > 1.

    alpha 2 is Brier; a larger alpha attends to large probabilities, a smaller one to
    small ones.
    """
    if not 1 < alpha < np.inf:
        raise MetricError(f"alpha: {alpha!r}; pass a number above 1")
    c = alpha - 1
    return Rule(
        lambda p, m: 1 - alpha * p**c + c * (p**alpha).sum(-1, keepdims=True),
        lambda p, q, m: alpha * c * (p**alpha - q * p**c),
    )


def log_spherical_rule(weight: float = 0.5, rps_weight: float = 0.0) -> Rule:
    """Build the `Rule` of `log_spherical`."""
    return _log_spherical(RULES["log"], weight, rps_weight)


def _log_spherical(log: Rule, weight: float, rps_weight: float) -> Rule:
    return _sum((1.0, log), (weight, RULES["spherical"]), (rps_weight, RULES["rps"]))


RULES: dict[str, Rule] = {
    "brier": Rule(
        lambda p, m: 1 - 2 * p + (p * p).sum(-1, keepdims=True),
        lambda p, q, m: 2 * p * (p - q),
        _brier_soft,
    ),
    "log": Rule(_log_losses, lambda p, q, m: -q),
    # Spherical loss 1 - p_y / ||p||, in [0, 1].
    "spherical": Rule(lambda p, m: 1 - p / _norm(p), _spherical_slopes),
    "rps": Rule(_rps_losses, _rps_slopes, _rps_soft),
}
"""Rules by name; `clamped` and the ``*_rule`` functions build more."""
RULES["log_spherical"] = log_spherical_rule()
RULES["nll_brier"] = _sum((1.0, RULES["log"]), (1.0, RULES["brier"]))


# --- Losses by their own names ---------------------------------------------------


def brier(
    p: ArrayLike, y: ArrayLike, *, half: bool = False, mask: ArrayLike | None = None
) -> Array:
    """Brier loss ``sum_k (p_k - y_k)^2``, in [0, 2]; ``half=True`` halves it.

    On a soft target this is the squared distance. Brier (1950).

    Examples
    --------
    >>> round(float(brier([0.7, 0.2, 0.1], 0)), 12)
    0.14
    """
    loss = RULES["brier"].loss(p, y, mask)
    return loss / 2 if half else loss


def binary_brier(p: ArrayLike, y: ArrayLike) -> Array:
    """Brier loss of an event ``(p - y)^2``, in [0, 1]: p its probability, y 0 or 1.

    Both have one shape, (...). It equals half of `brier` on (p, 1 - p).
    """
    forecast, event = _events(p, y)
    return (forecast - event) ** 2


def log_loss(
    p: ArrayLike,
    y: ArrayLike,
    *,
    eps: float = 0.0,
    floor: float | None = None,
    mask: ArrayLike | None = None,
) -> Array:
    """Log loss ``-sum_k y_k log p_k`` in nats; infinite where the right p is 0.

    Parameters
    ----------
    eps : float in [0, 1)
        Above 0, the bounded and strictly proper `clamped` loss.
    floor : float, negative
        For teaching: the improper ``-max(log p, floor)`` (`thm-clamp`), under which
        zero is the better report for a rare option. Not together with eps.
    """
    return log_spherical(p, y, weight=0.0, eps=eps, floor=floor, mask=mask)


def rps(p: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """Ranked probability loss ``sum_j (P_j - Y_j)^2 / (K - 1)``, in [0, 1].

    P and Y are cumulative over the row's options in order; K counts the row's options.
    Epstein (1969). On a soft target it is the distance of the two distributions.
    """
    return RULES["rps"].loss(p, y, mask)


def log_spherical(
    p: ArrayLike,
    y: ArrayLike,
    *,
    weight: float = 0.5,
    rps_weight: float = 0.0,
    eps: float = 0.0,
    floor: float | None = None,
    mask: ArrayLike | None = None,
) -> Array:
    """Composite ``-log p_y + weight (1 - p_y/||p||) + rps_weight RPS``.

    Minus this loss plus `weight` is the reward "log + weight * spherical - RPS". On a
    soft target it is the mean over labels, its RPS term too.

    Parameters
    ----------
    weight, rps_weight : float
        Not negative; rps_weight 1 for ordered options.
    eps, floor, mask
        As `log_loss`; eps mixes forecast and label of the whole composite.
    """
    if floor is not None and eps:
        raise MetricError("floor: pass it without eps")
    log = RULES["log"] if floor is None else _floored_log(floor)
    rule = _log_spherical(log, weight, rps_weight)
    return (clamped(rule, eps) if eps else rule).loss(p, y, mask)


def nll_brier(
    p: ArrayLike,
    y: ArrayLike,
    *,
    nll_weight: float = 1.0,
    brier_weight: float = 1.0,
    mask: ArrayLike | None = None,
) -> Array:
    """Weighted sum of `log_loss` and Brier loss; its first term is unbounded.

    Weights are not negative. On a soft target it is the mean over labels.
    """
    terms = (nll_weight, RULES["log"]), (brier_weight, RULES["brier"])
    return _sum(*terms).loss(p, y, mask)


# --- Decompositions --------------------------------------------------------------


@dataclass(frozen=True)
class Murphy:
    """``loss = reliability - resolution + uncertainty + within``, to rounding.

    `within` gathers what binning hides, the variance of forecasts inside the groups
    minus twice their covariance with the outcomes (Stephenson, Coelho & Jolliffe 2008);
    it is 0 where all forecasts of a group are equal.
    """

    loss: float
    reliability: float
    resolution: float
    uncertainty: float
    within: float


def murphy(p: ArrayLike, y: ArrayLike, *, n_bins: int | None = None) -> Murphy:
    """Decompose the mean Brier loss over groups of rows. Murphy (1973).

    Parameters
    ----------
    p : array (N,) or (N, K)
        Probabilities of an event (the loss is then `binary_brier`), or forecasts; 0
        where a row has no such option.
    y : array
        Events 0/1 (N,), or labels (N,) or soft targets (N, K) for forecasts.
    n_bins : int, optional
        Group by the equal-width bins of p, or of max p, as `metrics.bin_index`. By
        default each distinct forecast is a group.

    Examples
    --------
    >>> m = murphy([0.2, 0.2, 0.8, 0.8], [0, 0, 1, 1])
    >>> round(m.reliability, 12), round(m.resolution, 12), m.uncertainty
    (0.04, 0.25, 0.25)
    """
    if np.ndim(p) == 1:
        forecast, target = (a[:, None] for a in _events(p, y))
    else:
        forecast, target, _ = scored(p, y)
    if forecast.ndim != 2 or not len(forecast):
        raise MetricError(f"p: shape is {np.shape(p)}; pass (N,) or (N, K), N >= 1")
    keys = forecast
    if n_bins is not None:
        keys = bin_index(np.reshape(p, (len(forecast), -1)).max(1), n_bins)
    _, code = np.unique(keys, axis=0, return_inverse=True)
    code = code.ravel()  # NumPy 2.0 keeps the axis
    size = np.bincount(code)

    def means(x: Array) -> Array:
        sums = np.stack([np.bincount(code, column) for column in x.T], 1)
        return (sums / size[:, None])[code]

    def square(x: Array) -> float:
        return float((x * x).sum(1).mean())

    p_bar, y_bar, base = means(forecast), means(target), target.mean(0)
    spread = forecast - p_bar
    return Murphy(
        loss=square(forecast - target),
        reliability=square(p_bar - y_bar),
        resolution=square(y_bar - base),
        uncertainty=square(target - base),
        within=square(spread) - 2 * float((spread * target).sum(1).mean()),
    )


@dataclass(frozen=True)
class Corp:
    """``loss = miscalibration - discrimination + uncertainty``; both first are >= 0.

    `recalibrated` (N,) is the isotonic regression of the outcomes on the forecasts,
    which is also the curve of the CORP reliability diagram.
    """

    loss: float
    miscalibration: float
    discrimination: float
    uncertainty: float
    recalibrated: Array


def corp(p: ArrayLike, y: ArrayLike) -> Corp:
    """Decompose the mean `binary_brier` of event forecasts, without bins.

    Dimitriadis, Gneiting & Jordan (2021), PNAS 118(8). Forecasts are recalibrated by
    isotonic regression (tied forecasts pooled); miscalibration is the loss this takes
    away, discrimination what it gains on the constant base rate.

    Parameters
    ----------
    p, y : arrays (N,)
        Event probabilities and events 0/1, such as confidence and correctness.
    """
    forecast, event = _events(p, y)
    if forecast.ndim != 1 or not forecast.size:
        raise MetricError(f"corp: shape is {forecast.shape}; pass (N,), N >= 1")
    # Loaded here: it takes longer to import than the rest of the package together.
    from scipy.optimize import isotonic_regression

    _, code = np.unique(forecast, return_inverse=True)
    size = np.bincount(code)
    fitted = isotonic_regression(np.bincount(code, event) / size, weights=size).x
    recalibrated = np.clip(fitted, 0.0, 1.0)[code]

    def mean_loss(q: Array) -> float:
        return float(((q - event) ** 2).mean())

    loss, best = mean_loss(forecast), mean_loss(recalibrated)
    base = mean_loss(np.full_like(event, event.mean()))
    return Corp(loss, loss - best, base - best, base, recalibrated)
