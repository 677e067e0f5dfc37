"""Scoring rules: hand values, peers, properness, gradients, decompositions."""

import numpy as np
import pytest
import scoringrules
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss
from sklearn.metrics import log_loss as sklearn_log_loss

from rlcd_core import scoring
from rlcd_core.metrics import MetricError
from rlcd_core.scoring import RULES, clamped, log_spherical_rule, power_rule

EXTRA = {
    "power_1.5": power_rule(1.5),
    "power_3": power_rule(3.0),
    "log_clamped": clamped(RULES["log"], 0.01),
    "spherical_clamped": clamped(RULES["spherical"], 0.05),
    "log_spherical_rps": log_spherical_rule(rps_weight=1.0),
    "log_spherical_rps_clamped": clamped(log_spherical_rule(rps_weight=1.0), 0.02),
}
ALL = {**RULES, **EXTRA}
rules = pytest.mark.parametrize("rule", ALL.values(), ids=ALL.keys())


def forecasts(k, n=40, seed=0, concentration=1.0):
    rng = np.random.default_rng([k, n, seed])
    return rng.dirichlet(np.full(k, concentration), n), rng.integers(0, k, n)


# --- Values ----------------------------------------------------------------------


def test_hand_values():
    p = [0.7, 0.2, 0.1]
    assert scoring.brier(p, 0) == pytest.approx(0.09 + 0.04 + 0.01, abs=1e-15)
    assert scoring.brier(p, 0, half=True) == pytest.approx(0.07, abs=1e-15)
    assert scoring.brier([0.0, 1.0], 0) == 2.0
    assert scoring.log_loss(p, 1) == pytest.approx(-np.log(0.2), abs=1e-15)
    spherical = RULES["spherical"].loss
    assert spherical([3 / 7, 4 / 7], 1) == pytest.approx(0.2, abs=1e-15)
    assert scoring.rps(p, 2) == pytest.approx((0.49 + 0.81) / 2, abs=1e-15)
    assert scoring.rps([0.0, 0.0, 1.0], 0) == 1.0
    assert scoring.binary_brier(0.3, 1) == pytest.approx(0.49, abs=1e-15)
    composite = -np.log(0.2) + 0.5 * (1 - 0.2 / np.sqrt(0.54)) + (0.49 + 0.01) / 2
    assert scoring.log_spherical(p, 1, rps_weight=1.0) == pytest.approx(composite)
    assert scoring.nll_brier(p, 0, nll_weight=2.0, brier_weight=3.0) == pytest.approx(
        -2 * np.log(0.7) + 3 * 0.14
    )
    assert power_rule(2.0).loss(p, 0) == pytest.approx(0.14, abs=1e-15)


def test_the_identity_by_hand():
    # z = (0, 1, 2), y = 0: -1/2 of the Brier gradient.
    p = softmax([0.0, 1.0, 2.0])
    np.testing.assert_allclose(
        -RULES["brier"].grad_logits(p, 0) / 2,
        [0.1197841, 0.0430194, -0.1628034],
        atol=5e-8,
    )


def test_zero_for_the_right_option_is_infinite_not_nan():
    assert scoring.log_loss([0.0, 1.0], 0) == np.inf
    assert scoring.log_loss([0.0, 1.0], 1) == 0.0
    assert scoring.log_loss([0.0, 1.0], [0.0, 1.0]) == 0.0
    assert RULES["log"].divergence([0.0, 1.0], [0.5, 0.5]) == np.inf
    assert scoring.log_loss([0.0, 1.0], 0, eps=0.01) == pytest.approx(
        -0.995 * np.log(0.005) - 0.005 * np.log(0.995)
    )
    assert scoring.log_loss([0.0, 1.0], 0, floor=-9.21) == 9.21


# --- Peers -----------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 7])
def test_agrees_with_scikit_learn(k):
    p, y = forecasts(k)
    labels = np.arange(k)
    for half in (False, True):
        theirs = brier_score_loss(y, p, labels=labels, scale_by_half=half)
        assert scoring.brier(p, y, half=half).mean() == pytest.approx(theirs, abs=1e-12)
    ours = scoring.log_loss(p, y).mean()
    assert ours == pytest.approx(sklearn_log_loss(y, p, labels=labels), abs=1e-12)
    soft = forecasts(k, seed=1)[0]
    weights, rows = soft.ravel(), np.repeat(p, k, axis=0)
    theirs = sklearn_log_loss(
        np.tile(labels, len(p)), rows, labels=labels, sample_weight=weights
    )
    assert scoring.log_loss(p, soft).mean() == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("k", [2, 3, 7])
def test_agrees_with_scoringrules(k):
    p, y = forecasts(k)
    theirs = scoringrules.rps_score(y + 1, p) / (k - 1)
    np.testing.assert_allclose(scoring.rps(p, y), theirs, atol=1e-12)
    event, chance = y == 0, p[:, 0]
    two = np.stack([chance, 1 - chance], axis=1)
    theirs = scoringrules.brier_score(event.astype(float), chance)
    np.testing.assert_allclose(scoring.binary_brier(chance, event), theirs, atol=1e-12)
    half = scoring.brier(two, 1 - event.astype(int), half=True)
    np.testing.assert_allclose(half, theirs, atol=1e-12)
    theirs = scoringrules.log_score(event.astype(float), chance)
    np.testing.assert_allclose(
        scoring.log_loss(two, 1 - event.astype(int)), theirs, atol=1e-12
    )


# --- What makes a rule a rule ----------------------------------------------------


@rules
@pytest.mark.parametrize("k", [2, 3, 5])
def test_expected_loss_averages_the_public_function(rule, k):
    p, q = forecasts(k)[0], forecasts(k, seed=1)[0]
    each = [rule.loss(p, np.full(len(p), label)) for label in range(k)]
    np.testing.assert_allclose(
        rule.expected(p, q), (np.stack(each, -1) * q).sum(-1), rtol=1e-12, atol=1e-12
    )


@rules
@pytest.mark.parametrize("k", [2, 3, 5])
def test_rules_are_strictly_proper(rule, k):
    q, p = forecasts(k, n=300)[0], forecasts(k, n=300, seed=1)[0]
    near = 0.99 * q + 0.01 * p
    corner = np.eye(k)[np.arange(300) % k]
    for lie in (p, near, corner, 1.0 * (q == q.max(-1, keepdims=True))):
        assert (rule.divergence(lie, q) > 0).all()
    np.testing.assert_allclose(rule.divergence(q, q), 0, atol=1e-12)
    np.testing.assert_allclose(rule.expected(q, q), rule.entropy(q), atol=1e-12)
    # On the boundary too: targets with a zero, and the corners themselves.
    assert (rule.divergence(q, corner) > 0).all()
    np.testing.assert_allclose(rule.divergence(corner, corner), 0, atol=1e-12)


@rules
@pytest.mark.parametrize("k", [2, 3, 6])
def test_gradient_is_the_derivative_in_logits(rule, k):
    rng = np.random.default_rng(k)
    z, h = rng.normal(size=(20, k)), 1e-5
    q, y = forecasts(k, n=20)
    for target in (q, y):
        steps = h * np.eye(k)[:, None]
        up, down = softmax(z + steps, -1), softmax(z - steps, -1)
        target_up = np.broadcast_to(target, (k, *np.shape(target)))
        slope = (rule.loss(up, target_up) - rule.loss(down, target_up)) / (2 * h)
        # Central differences: error of order h^2 plus rounding of order 1e-16 / h.
        np.testing.assert_allclose(
            rule.grad_logits(softmax(z, -1), target), slope.T, atol=2e-8
        )


@rules
def test_gradients_stay_finite_on_the_boundary(rule):
    for p in ([0.0, 1.0, 0.0], [0.0, 0.4, 0.6]):
        for y in (0, 1, 2):
            gradient = rule.grad_logits(p, y)
            assert np.isfinite(gradient).all()
            assert gradient.sum() == pytest.approx(0, abs=1e-12)


@rules
def test_masked_options_change_nothing(rule):
    p, y = forecasts(3)
    q = forecasts(3, seed=1)[0]
    for places in ([0, 1, 2], [1, 3, 4], [0, 2, 4]):
        wide_p, wide_q = np.zeros((2, len(p), 5))
        wide_p[:, places], wide_q[:, places] = p, q
        mask = np.zeros(wide_p.shape, bool)
        mask[:, places] = True
        label = np.array(places)[y]
        np.testing.assert_allclose(
            rule.loss(wide_p, label, mask=mask), rule.loss(p, y), atol=1e-12
        )
        np.testing.assert_allclose(
            rule.divergence(wide_p, wide_q, mask), rule.divergence(p, q), atol=1e-12
        )
        np.testing.assert_allclose(rule.entropy(wide_q, mask), rule.entropy(q))
        gradient = rule.grad_logits(wide_p, wide_q, mask)
        assert (gradient[~mask] == 0).all()
        np.testing.assert_allclose(
            gradient[:, places], rule.grad_logits(p, q), atol=1e-12
        )


def test_soft_targets_enter_the_formula():
    p, q = forecasts(4)[0], forecasts(4, seed=1)[0]
    np.testing.assert_allclose(scoring.brier(p, q), ((p - q) ** 2).sum(-1), atol=1e-15)
    for name in ("brier", "rps"):
        rule = RULES[name]
        np.testing.assert_allclose(rule.loss(p, q), rule.divergence(p, q), atol=1e-12)
    for name in set(ALL) - {"brier", "rps"}:
        np.testing.assert_allclose(ALL[name].loss(p, q), ALL[name].expected(p, q))
    # One-hot targets, as integers or not, are labels.
    y = q.argmax(-1)
    hot = (y[:, None] == np.arange(4)).astype(int)
    for rule in ALL.values():
        np.testing.assert_allclose(rule.loss(p, hot), rule.loss(p, y), atol=1e-12)
        np.testing.assert_allclose(rule.loss(p, hot * 1.0), rule.loss(p, y), atol=1e-12)


# --- The clamp that lies, and its mend -------------------------------------------


def test_the_floor_pays_for_a_lie():
    q = np.array([1e-5, 1 - 1e-5])

    def score(p):
        return 0.5 - scoring.log_spherical(p, q, floor=-9.21)

    assert score([0.0, 1.0]) == pytest.approx(0.4999029, abs=5e-8)
    assert score(q) == pytest.approx(0.4998929, abs=5e-8)
    # Zero is the better report below e^-8.21, by the log term alone.
    for chance, lie_wins in ((np.exp(-8.21) * 0.99, True), (np.exp(-8.21) * 1.01, 0)):
        # At the report q the tangent condition: compare 0 with the best p >= e^-9.21.
        grid = np.linspace(np.exp(-9.21), 0.01, 20001)
        reports = np.stack([grid, 1 - grid], -1)
        target = np.array([[chance, 1 - chance]])
        best = scoring.log_loss(reports, target, floor=-9.21).min()
        zero = scoring.log_loss([0.0, 1.0], target[0], floor=-9.21)
        assert (zero < best) == bool(lie_wins)


def test_mixing_the_forecast_alone_is_no_mend():
    grid = np.linspace(0.5, 1, 500001)
    for q, best in ((0.9, 0.90404), (0.999, 1.0)):
        mixed = 0.99 * grid + 0.005
        loss = -q * np.log(mixed) - (1 - q) * np.log(1 - mixed)
        assert grid[loss.argmin()] == pytest.approx(best, abs=5e-6)
        reports = np.stack([grid, 1 - grid], -1)
        proper = scoring.log_loss(reports, np.array([[q, 1 - q]]), eps=0.01)
        assert grid[proper.argmin()] == pytest.approx(q, abs=2e-6)


def test_the_mend_is_the_stated_formula():
    p, y = forecasts(4)
    eps = 0.02
    mixed = (1 - eps) * p + eps / 4
    target = (1 - eps) * np.eye(4)[y] + eps / 4
    stated = -(target * np.log(mixed)).sum(-1)
    np.testing.assert_allclose(scoring.log_loss(p, y, eps=eps), stated, atol=1e-13)
    np.testing.assert_allclose(
        clamped(RULES["log"], eps).loss(p, y), stated, atol=1e-13
    )
    stated = sum(
        target[:, k] * scoring.log_spherical(mixed, np.full(40, k), rps_weight=1.0)
        for k in range(4)
    )
    np.testing.assert_allclose(
        scoring.log_spherical(p, y, rps_weight=1.0, eps=eps), stated, atol=1e-12
    )
    bound = scoring.log_loss(np.eye(4), np.array([1, 2, 3, 0]), eps=eps)
    assert np.isfinite(bound).all() and bound.max() < -np.log(eps / 4)


# --- Bad input -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "y", "mask", "reason"),
    [
        ([0.5, np.nan], 0, None, "finite"),
        ([np.inf, 0.0], 0, None, "finite"),
        ([1.5, -0.5], 0, None, "not negative"),
        ([0.5, 0.4], 0, None, "sum to 1"),
        ([1.0], 0, None, "K >= 2"),
        (0.5, 0, None, "K >= 2"),
        ([0.5, 0.5], 2, None, "not among"),
        ([0.5, 0.5], -1, None, "not among"),
        ([[0.5, 0.5]] * 3, [0, 1], None, "shape is"),
        ([[0.5, 0.5]] * 2, [0.0, 1.0], None, "shape is"),
        ([0.5, 0.5], 0.0, None, "shape is"),
        ([0.5, 0.5], [0.5, 0.6], None, "y: rows"),
        ([[0.5, 0.5]] * 2, [[0.5]] * 2, None, "shape is"),
        ([0.5, 0.5, 0.0], 2, [True, True, False], "not among"),
        ([0.5, 0.4, 0.1], 0, [True, True, False], "masked option"),
        ([1.0, 0.0], 0, [True, False], "at least 2"),
        ([0.5, 0.5], 0, [True, True, True], "shape of p"),
    ],
)
def test_bad_input_is_named(p, y, mask, reason):
    for rule in ALL.values():
        with pytest.raises(MetricError, match=reason):
            rule.loss(p, y, mask=mask)
        with pytest.raises(MetricError, match=reason):
            rule.grad_logits(p, y, mask)


def test_bad_parameters_are_named():
    with pytest.raises(MetricError, match="alpha"):
        power_rule(1.0)
    for weights in ({"weight": -1.0}, {"weight": -1.0, "floor": -9.21}):
        with pytest.raises(MetricError, match="improper"):
            scoring.log_spherical([0.5, 0.5], 0, **weights)
    for weights in ({"brier_weight": -3.0}, {"nll_weight": 0.0, "brier_weight": 0.0}):
        with pytest.raises(MetricError, match="weights"):
            scoring.nll_brier([0.5, 0.5], 0, **weights)
    for eps in (1.0, -0.1):
        with pytest.raises(MetricError, match="eps"):
            scoring.log_loss([0.5, 0.5], 0, eps=eps)
    with pytest.raises(MetricError, match="eps"):  # 0 times an infinite loss is NaN
        clamped(RULES["log"], 0.0)
    for bad in ({"floor": 1.0}, {"floor": -9.21, "eps": 0.1}):
        with pytest.raises(MetricError, match="floor"):
            scoring.log_loss([0.5, 0.5], 0, **bad)
    for p, y in (([0.5, np.nan], [0, 1]), ([0.5, 1.1], [0, 1]), ([0.5, 0.5], [0, 2])):
        for function in (scoring.binary_brier, scoring.murphy, scoring.corp):
            with pytest.raises(MetricError, match="in \\[0, 1\\]"):
                function(p, y)
    for function in (scoring.murphy, scoring.corp):
        with pytest.raises(MetricError, match="N >= 1"):
            function([], [])
    with pytest.raises(MetricError, match="n_bins"):
        scoring.murphy([0.3, 0.9], [1, 0], n_bins=2.5)
    # A column against a row would be read as every pair of them.
    with pytest.raises(MetricError, match="one event a forecast"):
        scoring.binary_brier([[0.1], [0.2]], [1, 0])


def test_a_term_without_weight_adds_nothing_even_where_it_is_infinite():
    assert scoring.nll_brier([1.0, 0.0], 1, nll_weight=0.0) == 2.0


# --- Decompositions --------------------------------------------------------------


def test_murphy_by_hand():
    # Two forecasts, .2 with outcomes 0,0,1,0 and .8 with outcomes 1,1,1,0.
    p, y = np.repeat([0.2, 0.8], 4), np.array([0, 0, 1, 0, 1, 1, 1, 0])
    m = scoring.murphy(p, y)
    assert m.reliability == pytest.approx(0.05**2, abs=1e-15)
    assert m.resolution == pytest.approx(0.25**2, abs=1e-15)
    assert m.uncertainty == pytest.approx(0.25, abs=1e-15)
    assert m.within == pytest.approx(0, abs=1e-15)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(float, st.integers(1, 60), elements=st.floats(0, 1)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 20),
)
def test_murphy_is_an_identity(p, seed, n_bins):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, p.size)
    for options in ({"n_bins": n_bins}, {}):
        m = scoring.murphy(p, y, **options)
        total = m.reliability - m.resolution + m.uncertainty + m.within
        assert m.loss == pytest.approx(scoring.binary_brier(p, y).mean(), abs=1e-12)
        assert total == pytest.approx(m.loss, abs=1e-12)
        if not options:
            assert abs(m.within) < 1e-12


@pytest.mark.parametrize("options", [{"n_bins": 15}, {}])
def test_murphy_of_many_options(options):
    p, y = forecasts(5)
    p[20:] = p[:20]
    m = scoring.murphy(p, y, **options)
    assert m.loss == pytest.approx(scoring.brier(p, y).mean(), abs=1e-12)
    total = m.reliability - m.resolution + m.uncertainty + m.within
    assert total == pytest.approx(m.loss, abs=1e-12)
    if not options:
        assert abs(m.within) < 1e-12
    two = scoring.murphy(np.stack([p[:, 0], 1 - p[:, 0]], 1), (y > 0) * 1)
    one = scoring.murphy(p[:, 0], y == 0)
    assert one.reliability == pytest.approx(two.reliability / 2, abs=1e-12)


def test_murphy_bins_compare_edges():
    # .3 belongs to bin 3 of 10 although int(.3 / .1) is 2.
    m = scoring.murphy([0.3, 0.35], [0, 1], n_bins=10)
    assert m.resolution == pytest.approx(0, abs=1e-15)
    # A float32 .7 lies below the float64 edge 7/10; it shares the bin of .75.
    m = scoring.murphy(np.array([0.7, 0.75], np.float32), [0, 1], n_bins=10)
    assert m.resolution == pytest.approx(0, abs=1e-15)


def test_corp_against_isotonic_regression():
    rng = np.random.default_rng(3)
    p = rng.beta(2, 2, 400).round(2)
    y = (rng.random(400) < p**1.5).astype(float)
    c = scoring.corp(p, y)
    fitted = IsotonicRegression(y_min=0, y_max=1).fit_transform(p, y)
    np.testing.assert_allclose(c.recalibrated, fitted, atol=1e-12)
    assert c.miscalibration - c.discrimination + c.uncertainty == pytest.approx(
        c.loss, abs=1e-12
    )
    base = y.mean()
    assert c.loss == pytest.approx(brier_score_loss(y, p), abs=1e-12)
    assert c.uncertainty == pytest.approx(base * (1 - base), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(float, st.integers(1, 50), elements=st.sampled_from([0, 0.2, 0.5, 1])),
    st.integers(0, 2**32 - 1),
)
def test_corp_terms_are_not_negative_and_keep_their_order(p, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, p.size)
    c = scoring.corp(p, y)
    assert c.miscalibration >= -1e-12 and c.discrimination >= -1e-12
    again = scoring.corp(c.recalibrated, y)
    assert again.miscalibration == pytest.approx(0, abs=1e-12)
    order = rng.permutation(p.size)
    assert scoring.corp(p[order], y[order]).miscalibration == pytest.approx(
        c.miscalibration, abs=1e-12
    )
    assert (np.diff(c.recalibrated[np.argsort(p, kind="stable")]) >= -1e-12).all()
