"""Post-hoc temperature: one number that rescales every logit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from rlcd_core.metrics import as_target

# A temperature outside this range says that the logits carry nothing (or everything);
# the fit stops there and reports it.
BOUNDS = (0.05, 20.0)
# Anything this small is a masked option, not a probability.
_MASKED = -1e8


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature.

    ``value`` divides the logits, ``softmax(z / value)``; ``before`` and ``after`` are
    the fitted objective at 1 and at ``value``; ``at_bound`` says that the optimum lies
    at or beyond the search range.
    """

    value: float
    objective: str
    before: float
    after: float
    at_bound: bool

    def apply(self, log_probs: np.ndarray) -> np.ndarray:
        """Probabilities ``(..., K)`` of ``softmax(z / T)``; masked options stay 0."""
        log_probs = np.asarray(log_probs, dtype=np.float64)
        scaled = np.where(log_probs <= _MASKED, -np.inf, log_probs / self.value)
        return np.exp(log_softmax(scaled, axis=-1))


def fit_temperature(
    log_probs: np.ndarray,
    targets: np.ndarray,
    objective: str = "nll",
    bounds: tuple[float, float] = BOUNDS,
) -> Temperature:
    """Fit a temperature on held-out data by bounded search on ``log T``.

    Parameters
    ----------
    log_probs : (n, K) array
        Log-probabilities or logits, of rows that no model was trained on and no
        result is reported on. Masked options at -1e9 or below.
    targets : (n,) int labels or (n, K) soft targets
    objective : {"nll", "brier"}
    bounds : (low, high)
        Range of T, positive.

    Returns
    -------
    Temperature
        Its objective never exceeds the one at T = 1.

    Raises
    ------
    ValueError
        For an unknown objective, empty or non-finite input, labels that are no option
        of their row, soft targets that are no distributions, a row with every option
        masked, or bounds that are not positive with 1 between them.

    Notes
    -----
    Guo et al. (2017), section 4.2. The objective may have several minima for Brier, so
    a grid brackets the search.
    """
    log_probs, allowed, q = _checked(log_probs, targets)
    measure = {"nll": _nll, "brier": _brier}.get(objective)
    if measure is None:
        raise ValueError(f"objective {objective!r} is not 'nll' or 'brier'")
    return _search(log_probs, allowed, objective, lambda p: measure(p, q), bounds)


def fit_verdict_temperature(
    log_probs: np.ndarray,
    actions: np.ndarray,
    outcomes: np.ndarray,
    bounds: tuple[float, float] = BOUNDS,
) -> Temperature:
    """Fit a temperature where only the outcomes of the actions taken are known.

    The objective is the verdict NLL, ``-[c log p_a + (1 - c) log(1 - p_a)]`` in the
    mean (`thm-regression`). With outcome 1 everywhere, actions are labels, and it is
    the NLL of `fit_temperature`.

    Parameters
    ----------
    log_probs : (n, K) array
        As for `fit_temperature`.
    actions : (n,) int array
    outcomes : (n,) array of 0 and 1
    bounds : (low, high)

    Raises
    ------
    ValueError
        As `fit_temperature`, and for outcomes other than 0 and 1.
    """
    log_probs, allowed, taken = _checked(log_probs, actions)
    right = np.asarray(outcomes)
    if right.shape != log_probs.shape[:1] or not np.isin(right, (0, 1)).all():
        raise ValueError(f"outcomes must be {len(log_probs)} values 0 or 1")
    # A wrong action says that one of the others is right.
    told = np.where(right[:, None] == 1, taken, 1 - taken) > 0

    def cost(log_p: np.ndarray) -> float:
        return float(-logsumexp(np.where(told, log_p, -np.inf), axis=-1).mean())

    return _search(log_probs, allowed, "verdict nll", cost, bounds)


def _search(
    log_probs: np.ndarray,
    allowed: np.ndarray,
    objective: str,
    measure: Callable[[np.ndarray], float],
    bounds: tuple[float, float],
) -> Temperature:
    """The temperature that is best by ``measure(log-probabilities (n, K))``."""
    if not (0 < bounds[0] <= 1 <= bounds[1] < np.inf and bounds[0] < bounds[1]):
        raise ValueError(f"bounds {bounds} must be positive, with 1 between them")

    def cost(log_t: float) -> float:
        scaled = np.where(allowed, log_probs / np.exp(log_t), -np.inf)
        return measure(log_softmax(scaled, axis=-1))

    low, high = np.log(bounds[0]), np.log(bounds[1])
    grid = np.linspace(low, high, 25)
    best = int(np.argmin([cost(t) for t in grid]))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(
        cost, bounds=around, method="bounded", options={"xatol": 1e-6}
    )
    before = cost(0.0)
    log_t, after = min(
        [(float(found.x), float(found.fun)), (0.0, before)], key=lambda pair: pair[1]
    )
    # Flat objectives (separable data underflow to 0) never reach the edge themselves:
    # a bound that does as well as the optimum means that the range decided.
    edge = min(cost(low), cost(high)) <= after + 1e-9
    return Temperature(float(np.exp(log_t)), objective, before, after, bool(edge))


def _checked(
    log_probs: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probabilities, which of them are options, and targets, each (n, K)."""
    log_probs = np.asarray(log_probs, dtype=np.float64)
    if log_probs.ndim != 2 or not len(log_probs):
        raise ValueError(
            f"log_probs must be a non-empty (n, K) array, got shape {log_probs.shape}"
        )
    if not np.isfinite(log_probs).all():
        raise ValueError("log_probs hold NaN or infinity; mask options with -1e9")
    if np.shape(targets)[:1] != log_probs.shape[:1]:
        raise ValueError(
            f"targets of shape {np.shape(targets)} are not one for each of "
            f"{len(log_probs)} rows"
        )
    allowed = log_probs > _MASKED
    if not allowed.any(-1).all():
        raise ValueError(f"row {int(allowed.any(-1).argmin())}: all options are masked")
    return log_probs, allowed, as_target(targets, allowed)


def _nll(log_p: np.ndarray, q: np.ndarray) -> float:
    return float((q * np.where(q > 0, -log_p, 0.0)).sum(-1).mean())


def _brier(log_p: np.ndarray, q: np.ndarray) -> float:
    p = np.exp(log_p)
    return float(((p**2).sum(-1) - 2 * (p * q).sum(-1) + 1).mean())
