"""Temperature: bounded, never worse, honest about its bounds."""

import numpy as np
import pytest
from scipy.special import log_softmax

from rlcd_core.calibrate import BOUNDS, fit_temperature


def draw(scale: float, n: int = 4000, k: int = 4, seed: int = 0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 1.5
    p = np.exp(log_softmax(logits, axis=-1))
    labels = (p.cumsum(-1) < rng.random((n, 1))).sum(-1)
    return log_softmax(logits * scale, axis=-1), labels


@pytest.mark.parametrize("objective", ["nll", "brier"])
@pytest.mark.parametrize("scale", [1.0, 3.0, 0.5])
def test_recovers_the_scale(scale: float, objective: str) -> None:
    fit = fit_temperature(*draw(scale), objective=objective)
    # 4,000 rows leave a standard error of about 3 % on T.
    assert fit.value == pytest.approx(scale, rel=0.1)
    assert fit.after <= fit.before
    assert not fit.at_bound


def test_separable_data_stay_inside_the_bounds_and_say_so() -> None:
    labels = np.arange(50) % 3
    logits = log_softmax(np.eye(3)[labels] * 2.0, axis=-1)
    fit = fit_temperature(logits, labels)
    assert fit.at_bound
    assert BOUNDS[0] <= fit.value <= BOUNDS[1]
    assert fit.after <= fit.before


def test_signal_free_logits_hit_the_upper_bound() -> None:
    rng = np.random.default_rng(1)
    logits = log_softmax(rng.normal(size=(5000, 3)) * 4, axis=-1)
    fit = fit_temperature(logits, rng.integers(0, 3, 5000))
    assert fit.value > 5
    assert fit.value <= BOUNDS[1]


def test_soft_targets_equal_repeated_labels() -> None:
    log_p = log_softmax(np.array([[1.0, 0, 0], [0.0, 2, 0]]), axis=-1)
    soft = np.array([[0.5, 0.5, 0], [0.25, 0.75, 0]])
    rows = [0, 0, 1, 1, 1, 1]
    labels = np.array([0, 1, 0, 1, 1, 1])
    weights = np.repeat([2, 1], [2, 4])
    a = fit_temperature(log_p, soft).value
    b = fit_temperature(
        np.repeat(log_p[rows], weights, axis=0), np.repeat(labels, weights)
    ).value
    assert a == pytest.approx(b, rel=1e-4)


def test_masked_options_stay_at_zero_and_order_is_kept() -> None:
    log_p, labels = draw(2.0, k=3)
    log_p = np.concatenate([log_p, np.full((len(log_p), 1), -1e9)], axis=1)
    fit = fit_temperature(log_p, labels)
    p = fit.apply(log_p)
    assert (p[:, 3] == 0).all()
    np.testing.assert_allclose(p.sum(-1), 1)
    assert (p.argmax(-1) == log_p.argmax(-1)).all()


@pytest.mark.parametrize(
    ("log_probs", "targets", "message"),
    [
        (np.zeros((0, 3)), np.zeros(0, int), "non-empty"),
        (np.array([[np.nan, 0]]), np.array([0]), "NaN"),
        (np.zeros((2, 2)), np.array([0, 2]), "not among"),
        (np.array([[0.0, -1e9]]), np.array([1]), "not among"),
        (np.full((2, 2), -1e9), np.full((2, 2), 0.5), "row 0: all options are masked"),
        (np.zeros((2, 2)), np.array([0.7, 1.0]), "pass integer labels"),
        (np.zeros((2, 2)), np.full((2, 2), np.nan), "y: rows must be"),
        (np.zeros((2, 2)), np.ones((2, 2)), "y: rows must be"),
        (np.zeros((2, 2)), np.ones((2, 1)), "soft targets"),
        (np.zeros((1, 2)), np.array([[2.0, -1.0]]), "y: rows must be"),
        (np.zeros((2, 2)), np.array([0, 1, 1]), "one for each of 2 rows"),
        (np.zeros((2, 2)), np.zeros(1, int), "one for each of 2 rows"),
    ],
)
def test_bad_input_is_named(log_probs, targets, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit_temperature(log_probs, targets)


@pytest.mark.parametrize("bounds", [(0, 2), (-1, 2), (5, 0.1), (2, 5), (1, 1)])
def test_bad_bounds_are_named(bounds) -> None:
    with pytest.raises(ValueError, match="positive, with 1 between"):
        fit_temperature(*draw(1.0, n=10), bounds=bounds)


def test_unknown_objective() -> None:
    with pytest.raises(ValueError, match="ece"):
        fit_temperature(np.zeros((1, 2)), np.array([0]), objective="ece")
