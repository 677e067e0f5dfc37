"""Proper scoring rules, their gradients and their decompositions, in NumPy.

Conventions. A forecast `p` is (..., K), rows summing to 1. The second argument is an
integer label per row, or a soft target (..., K) that enters the formula where the
one-hot label stands. `mask` (..., K) is False where a row has no such option; p must
be exactly 0 there. Every function returns a loss per row, lower is better, unless its
name ends in ``_score``. Bad input raises `ForecastError`.

`Rule.expected` averages a loss over labels drawn from q. On a soft target it differs
from the loss itself in Brier and RPS terms alone, and there by the entropy of q, which
no forecast changes. Gneiting & Raftery (2007), JASA 102, is the source throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class ForecastError(ValueError):
    """A forecast, target or mask that cannot be scored; the message says why."""


def _distribution(
    name: str, values: ArrayLike, mask: ArrayLike | None
) -> tuple[Array, Mask]:
    p = np.asarray(values, dtype=np.float64)
    if p.ndim < 1 or p.shape[-1] < 2:
        raise ForecastError(f"{name}: shape is {p.shape}; pass (..., K) with K >= 2")
    exists = np.ones(p.shape, bool) if mask is None else np.asarray(mask, bool)
    if exists.shape != p.shape or (exists.sum(-1) < 2).any():
        raise ForecastError("mask: pass the shape of p, with at least 2 options a row")
    # 1e-4 lets a float32 softmax over a thousand options pass.
    if not ((p >= 0).all() and (np.abs(p.sum(-1) - 1) < 1e-4).all()):
        raise ForecastError(
            f"{name}: rows must be finite, not negative and sum to 1; "
            "pass probabilities, not logits or counts"
        )
    if p[~exists].any():
        raise ForecastError(f"{name}: mass on a masked option; it must be exactly 0")
    return p, exists


def _inputs(p: ArrayLike, y: ArrayLike, mask: ArrayLike | None) -> tuple[Any, ...]:
    """Forecast, target as a distribution, and mask, all of the shape of p."""
    forecast, exists = _distribution("p", p, mask)
    target = np.asarray(y)
    shape = forecast.shape
    is_label = target.dtype.kind in "iu" and target.shape != shape
    # Labels written as floats would otherwise pass for one soft target when N = K.
    fits = is_label or target.ndim == len(shape)
    try:
        target = np.broadcast_to(target, shape[:-1] if is_label else shape)
    except ValueError:
        fits = False
    if not fits:
        raise ForecastError(
            f"y: shape is {np.shape(y)}, dtype {np.asarray(y).dtype}, for p of shape "
            f"{shape}; pass integer labels (...) or soft targets (..., K)"
        )
    if not is_label:
        return forecast, _distribution("y", target, exists)[0], exists
    one_hot = target[..., None] == np.arange(shape[-1])
    if not (one_hot & exists).any(-1).all():
        raise ForecastError("y: a label is not among its row's options; check K")
    return forecast, one_hot.astype(np.float64), exists


def _events(p: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    forecast, event = np.broadcast_arrays(np.asarray(p, float), np.asarray(y, float))
    for name, values in (("p", forecast), ("y", event)):
        if not ((values >= 0) & (values <= 1)).all():
            raise ForecastError(f"{name}: values must be in [0, 1], not NaN")
    return forecast, event


def _mix(p: Array, exists: Mask, eps: float) -> Array:
    if not 0 <= eps < 1:
        raise ForecastError(f"eps: {eps!r}; pass a weight in [0, 1)")
    return (1 - eps) * p + eps * exists / exists.sum(-1, keepdims=True)


# --- The rules -------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A proper scoring rule with what follows from it.

    `loss` is the public function, ``(p, y, *, mask=None) -> (...)``; `losses` gives
    ``L_k(p)``, the loss if option k is right, ``(p, mask) -> (..., K)``; `slopes` gives
    ``p_j d/dp_j sum_k q_k L_k(p)``, ``(p, q, mask) -> (..., K)``, which stays finite
    where the bare derivative does not.
    """

    name: str
    loss: Callable[..., Array]
    losses: Callable[[Array, Mask], Array]
    slopes: Callable[[Array, Array, Mask], Array]

    def expected(
        self, p: ArrayLike, q: ArrayLike, mask: ArrayLike | None = None
    ) -> Array:
        """Mean loss ``sum_k q_k L_k(p)`` when labels are drawn from q; shape (...)."""
        return self._expected(*_inputs(p, q, mask))

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
        forecast, target, exists = _inputs(p, q, mask)
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
        forecast, target, exists = _inputs(p, y, mask)
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


def _sum(name: str, loss: Callable[..., Array], *terms: tuple[float, Rule]) -> Rule:
    return Rule(
        name,
        loss,
        lambda p, m: sum((w * r.losses(p, m) for w, r in terms), np.zeros(())),
        lambda p, q, m: sum((w * r.slopes(p, q, m) for w, r in terms), np.zeros(())),
    )


def clamped(rule: Rule, eps: float) -> Rule:
    """Bound a rule and keep it strictly proper: mix the forecast AND the label.

    ``sum_k ((1 - eps) 1[k = y] + eps/K) L_k((1 - eps) p + eps/K)``, minimised at p = q
    on the whole simplex (`thm-clamp`), for eps in [0, 1). Mixing p alone, or flooring
    the log, is not.
    """

    def losses(p: Array, exists: Mask) -> Array:
        raw = np.where(exists, rule.losses(_mix(p, exists, eps), exists), 0.0)
        mean = raw.sum(-1, keepdims=True) / exists.sum(-1, keepdims=True)
        return (1 - eps) * raw + eps * mean

    def slopes(p: Array, q: Array, exists: Mask) -> Array:
        forecast = _mix(p, exists, eps)
        raw = rule.slopes(forecast, _mix(q, exists, eps), exists)
        ratio = np.divide(p, forecast, out=np.zeros_like(p), where=forecast > 0)
        return (1 - eps) * ratio * raw

    def loss(p: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None) -> Array:
        return built.expected(p, y, mask)

    built = Rule(f"{rule.name}_clamped", loss, losses, slopes)
    return built


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
    forecast, target, _ = _inputs(p, y, mask)
    loss = ((forecast - target) ** 2).sum(-1)
    return loss / 2 if half else loss


def binary_brier(p: ArrayLike, y: ArrayLike) -> Array:
    """Brier loss of an event ``(p - y)^2``, in [0, 1]: p its probability, y 0 or 1.

    It equals half of `brier` on (p, 1 - p).
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
        zero is the better report for a rare option.
    """
    forecast, target, exists = _inputs(p, y, mask)
    if floor is not None:
        if eps or not floor < 0:
            raise ForecastError("floor: pass a negative number, without eps")
        with np.errstate(divide="ignore"):
            return -(target * np.maximum(np.log(forecast), floor)).sum(-1)
    forecast, target = _mix(forecast, exists, eps), _mix(target, exists, eps)
    with np.errstate(divide="ignore"):
        return 0.0 - xlogy(target, forecast).sum(-1)


def spherical_loss(p: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """Spherical loss ``1 - sum_k y_k p_k / ||p||``, in [0, 1]."""
    return RULES["spherical"].expected(p, y, mask)


def rps(p: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """Ranked probability loss ``sum_j (P_j - Y_j)^2 / (K - 1)``, in [0, 1].

    P and Y are cumulative over the row's options in order; K counts the row's options.
    Epstein (1969). On a soft target it is the distance of the two distributions.
    """
    forecast, target, exists = _inputs(p, y, mask)
    gap = exists * (np.cumsum(forecast, -1) - np.cumsum(target, -1))
    return (gap**2).sum(-1) / (exists.sum(-1) - 1)


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
    forecast, target, exists = _inputs(p, y, mask)
    if floor is not None:
        log = log_loss(forecast, target, eps=eps, floor=floor, mask=exists)
        arguments = (forecast, target, exists)
        return (
            log
            + weight * RULES["spherical"].expected(*arguments)
            + rps_weight * RULES["rps"].expected(*arguments)
        )
    rule = log_spherical_rule(weight, rps_weight)
    return (clamped(rule, eps) if eps else rule).expected(forecast, target, exists)


def nll_brier(
    p: ArrayLike,
    y: ArrayLike,
    *,
    nll_weight: float = 1.0,
    brier_weight: float = 1.0,
    mask: ArrayLike | None = None,
) -> Array:
    """Weighted sum of `log_loss` and `brier`; its first term is unbounded."""
    log = log_loss(p, y, mask=mask)
    return nll_weight * log + brier_weight * brier(p, y, mask=mask)


def power_loss(
    p: ArrayLike, y: ArrayLike, *, alpha: float, mask: ArrayLike | None = None
) -> Array:
    """Power loss ``1 - alpha p_y^(alpha-1) + (alpha-1) sum_j p_j^alpha``, alpha > 1.

    alpha 2 is Brier; a larger alpha attends to large probabilities, a smaller one to
    small ones. Linear in a soft target.
    """
    return power_rule(alpha).expected(p, y, mask)


def power_rule(alpha: float) -> Rule:
    """Build the `Rule` of `power_loss`."""
    if not 1 < alpha < np.inf:
        raise ForecastError(f"alpha: {alpha!r}; pass a number above 1")
    c = alpha - 1
    return Rule(
        f"power_{alpha:g}",
        partial(power_loss, alpha=alpha),
        lambda p, m: 1 - alpha * p**c + c * (p**alpha).sum(-1, keepdims=True),
        lambda p, q, m: alpha * c * (p**alpha - q * p**c),
    )


def log_spherical_rule(weight: float = 0.5, rps_weight: float = 0.0) -> Rule:
    """Build the `Rule` of `log_spherical`."""
    if not min(weight, rps_weight) >= 0:
        raise ForecastError("weights: a negative weight makes the rule improper")
    return _sum(
        "log_spherical_rps" if rps_weight else "log_spherical",
        partial(log_spherical, weight=weight, rps_weight=rps_weight),
        (1.0, RULES["log"]),
        (weight, RULES["spherical"]),
        (rps_weight, RULES["rps"]),
    )


RULES: dict[str, Rule] = {
    "brier": Rule(
        "brier",
        brier,
        lambda p, m: 1 - 2 * p + (p * p).sum(-1, keepdims=True),
        lambda p, q, m: 2 * p * (p - q),
    ),
    "log": Rule("log", log_loss, _log_losses, lambda p, q, m: -q),
    "spherical": Rule(
        "spherical", spherical_loss, lambda p, m: 1 - p / _norm(p), _spherical_slopes
    ),
    "rps": Rule("rps", rps, _rps_losses, _rps_slopes),
    "power_3": power_rule(3.0),
}
"""Rules by name; `clamped` and the ``*_rule`` functions build more."""
RULES["log_clamped"] = clamped(RULES["log"], 0.01)
RULES["log_spherical"] = log_spherical_rule()
RULES["log_spherical_rps"] = log_spherical_rule(rps_weight=1.0)
RULES["nll_brier"] = _sum(
    "nll_brier", nll_brier, (1.0, RULES["log"]), (1.0, RULES["brier"])
)


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


def murphy(
    p: ArrayLike,
    y: ArrayLike,
    *,
    n_bins: int | None = None,
    groups: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> Murphy:
    """Decompose the mean Brier loss over groups of rows. Murphy (1973).

    Parameters
    ----------
    p : array (N,) or (N, K)
        Probabilities of an event (the loss is then `binary_brier`), or forecasts.
    y : array
        Events 0/1 (N,), or labels (N,) or soft targets (N, K) for forecasts.
    n_bins : int, optional
        Group by equal-width bins [k/n_bins, (k+1)/n_bins) of p, or of max p.
    groups : array (N,), optional
        Group by these values. By default each distinct forecast is a group.

    Examples
    --------
    >>> m = murphy([0.2, 0.2, 0.8, 0.8], [0, 0, 1, 1])
    >>> round(m.reliability, 12), round(m.resolution, 12), m.uncertainty
    (0.04, 0.25, 0.25)
    """
    if np.ndim(p) == 1:
        forecast, target = (a[:, None] for a in _events(p, y))
    else:
        forecast, target, _ = _inputs(p, y, mask)
    if forecast.ndim != 2 or not len(forecast):
        raise ForecastError(f"p: shape is {np.shape(p)}; pass (N,) or (N, K), N >= 1")
    if n_bins is not None:
        if groups is not None or n_bins < 1:
            raise ForecastError("murphy: pass n_bins >= 1, or groups, not both")
        edges = np.arange(1, n_bins) / n_bins
        groups = np.searchsorted(edges, forecast.max(1), side="right")
    keys = forecast if groups is None else np.asarray(groups)
    if len(keys) != len(forecast):
        raise ForecastError(f"groups: {len(keys)} for {len(forecast)} rows")
    _, code = np.unique(keys, axis=0, return_inverse=True)
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


def corp(p: ArrayLike, y: ArrayLike, rule: Literal["brier", "log"] = "brier") -> Corp:
    """Decompose the mean loss of event forecasts, without bins.

    Dimitriadis, Gneiting & Jordan (2021), PNAS 118(8). Forecasts are recalibrated by
    isotonic regression (tied forecasts pooled); miscalibration is the loss this takes
    away, discrimination what it gains on the constant base rate.

    Parameters
    ----------
    p, y : arrays (N,)
        Event probabilities and events 0/1, such as confidence and correctness.
    rule : {"brier", "log"}
        `binary_brier`, or the log loss of the event (which may be infinite).
    """
    forecast, event = _events(p, y)
    if forecast.ndim != 1 or not forecast.size:
        raise ForecastError(f"corp: shape is {forecast.shape}; pass (N,), N >= 1")
    if rule not in ("brier", "log"):
        raise ForecastError(f"rule: {rule!r}; pass 'brier' or 'log'")
    # Loaded here: it takes longer to import than the rest of the package together.
    from scipy.optimize import isotonic_regression

    _, code = np.unique(forecast, return_inverse=True)
    size = np.bincount(code)
    fitted = isotonic_regression(np.bincount(code, event) / size, weights=size).x
    recalibrated = np.clip(fitted, 0.0, 1.0)[code]

    def mean_loss(q: Array) -> float:
        if rule == "brier":
            return float(((q - event) ** 2).mean())
        with np.errstate(divide="ignore"):
            return float(-(xlogy(event, q) + xlogy(1 - event, 1 - q)).mean())

    loss, best = mean_loss(forecast), mean_loss(recalibrated)
    base = mean_loss(np.full_like(event, event.mean()))
    return Corp(loss, loss - best, base - best, base, recalibrated)
