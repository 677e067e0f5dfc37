"""Metrics: the stated conventions, peers, properties, coverage of the intervals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_calibration_error,
)

from rlcd_core import metrics
from rlcd_core.metrics import MetricError, ece, reliability

# Confidences on the edges, with ties, and in between.
rows = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 1), st.sampled_from([k / 10 for k in range(11)])),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=60,
)


def sample(n=400, seed=0, gap=0.0):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(3, 1.5, n)
    return confidence, (rng.random(n) < confidence - gap).astype(float)


# --- Bins ------------------------------------------------------------------------


def test_the_stated_edge_cases():
    assert ece([0.6, 0.55], [1, 0], n_bins=10) == pytest.approx(0.475, abs=1e-15)
    # 1.0 shares the last bin with what lies below it; 0.0 is in bin 0, not bin -1.
    assert metrics.bin_index([1.0, 0.95, 0.0], 15).tolist() == [14, 14, 0]
    assert ece([1.0, 0.5], [1, 0]) == pytest.approx(0.25)
    assert ece([0.0], [0]) == 0.0
    assert reliability([1.0, 0.99], [1, 0]).count[-1] == 2


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("n_bins", [5, 10, 15, 20, 100])
def test_every_edge_opens_its_upper_bin(n_bins, dtype):
    edges = np.array([k / n_bins for k in range(n_bins)], dtype=dtype)
    assert metrics.bin_index(edges, n_bins).tolist() == list(range(n_bins))
    below = np.nextafter(edges[1:], dtype(0))
    assert metrics.bin_index(below, n_bins).tolist() == list(range(n_bins - 1))


def test_empty_bins_keep_their_place_as_nan():
    r = reliability([0.05, 0.95, 0.97], [0, 1, 0], n_bins=10)
    assert r.count.tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert np.isnan(r.accuracy[1:9]).all() and np.isnan(r.confidence[1:9]).all()
    assert r.accuracy[9] == 0.5 and r.n == 3
    assert r.lower[6] == 0.6 and r.upper[-1] == 1.0
    assert r.ece == pytest.approx((0.05 + 2 * 0.46) / 3)


@given(rows, st.integers(1, 20))
def test_mass_bins_never_split_a_tie(pairs, n_bins):
    confidence = np.array([c for c, _ in pairs])
    index = metrics.bin_index(confidence, n_bins, "mass")
    assert index.min() == 0 and index.max() < n_bins
    for value in np.unique(confidence):
        assert len(set(index[confidence == value])) == 1
    assert (np.diff(index[np.argsort(confidence, kind="stable")]) >= 0).all()


def test_mass_bins_are_equal_where_nothing_ties():
    confidence = np.random.default_rng(0).random(150)
    r = reliability(confidence, np.ones(150), 15, "mass")
    assert (r.count == 10).all()
    assert (r.lower[1:] > r.upper[:-1]).all()
    assert np.array_equal(np.sort(confidence)[::10], r.lower)


def test_all_predictions_equal_do_not_report_zero():
    for binning in ("width", "mass"):
        r = reliability([0.9] * 20, [1, 0] * 10, 15, binning)
        assert sorted(r.count)[-1] == 20
        assert r.ece == pytest.approx(0.4)


@given(rows, st.sampled_from(["width", "mass"]), st.randoms())
def test_nothing_depends_on_the_order_of_rows(pairs, binning, random):
    shuffled = pairs.copy()
    random.shuffle(shuffled)
    (c, y), (c2, y2) = zip(*pairs, strict=True), zip(*shuffled, strict=True)
    for function in (
        lambda a, b: ece(a, b, 10, binning),
        lambda a, b: metrics.ece_debiased(a, b, 10, binning),
        metrics.aurc,
        lambda a, b: metrics.coverage_error(a, b, 0.7),
        lambda a, b: metrics.coverage_at_error(a, b, 0.2),
    ):
        assert function(c, y) == pytest.approx(function(c2, y2), abs=1e-12)


# --- Calibration error -----------------------------------------------------------


@pytest.mark.parametrize("n_bins", [5, 10, 15])
def test_ece_agrees_with_torchmetrics_off_the_edges(n_bins):
    # On the edges the peer's bins are (lo, hi], ours [lo, hi).
    c, y = sample()
    theirs = binary_calibration_error(
        torch.tensor(c), torch.tensor(y).int(), n_bins=n_bins
    )
    assert ece(c, y, n_bins) == pytest.approx(float(theirs), abs=1e-6)
    rng = np.random.default_rng(1)
    p, label = rng.dirichlet(np.ones(4), 300), rng.integers(0, 4, 300)
    theirs = multiclass_calibration_error(
        torch.tensor(p), torch.tensor(label), num_classes=4, n_bins=n_bins
    )
    ours = ece(*metrics.top_option(p, label), n_bins)
    assert ours == pytest.approx(float(theirs), abs=1e-6)


def test_reliability_agrees_with_scikit_learn():
    c, y = sample()
    accuracy, confidence = calibration_curve(y, c, n_bins=10)
    r = reliability(c, y, 10)
    np.testing.assert_allclose(r.accuracy[r.count > 0], accuracy, atol=1e-12)
    np.testing.assert_allclose(r.confidence[r.count > 0], confidence, atol=1e-12)


def test_debiased_and_plug_in_bracket_the_truth():
    # 12 rows a bin: the plug-in value of a perfect forecaster is far from 0.
    rng = np.random.default_rng(2)
    confidence = np.repeat((np.arange(15) + 0.5) / 15, 12)
    for gap in (0.0, 0.15):
        chance = np.clip(confidence - gap, 0, 1)
        truth = np.abs(confidence - chance).mean()
        y = (rng.random((3000, confidence.size)) < chance).astype(float)
        plug = np.array([ece(confidence, row) for row in y])
        loo = np.array([metrics.ece_debiased(confidence, row) for row in y])
        error = loo.std() / np.sqrt(len(loo))
        assert plug.mean() > truth + 8 * error
        assert loo.mean() < truth + 4 * error
        if gap == 0:
            assert abs(loo.mean()) < 4 * error, "unbiased for a perfect forecaster"


def test_debiased_by_hand():
    # One bin, residuals .3, .3, -.7: leaving one out gives signs -, -, +.
    assert metrics.ece_debiased([0.7] * 3, [1, 1, 0], 10) == pytest.approx(-1.3 / 3)
    # A bin of one row, or of one group, has nothing left when it is left out.
    assert metrics.ece_debiased([0.7], [1], 10) == 0.0
    assert metrics.ece_debiased([0.7] * 2, [1, 1], 10, groups=["a", "a"]) == 0.0
    # Leaving out groups {0, 1} and {2}: signs - and +.
    grouped = metrics.ece_debiased([0.7] * 3, [1, 1, 0], 10, groups=[5, 5, 6])
    assert grouped == pytest.approx((-0.6 - 0.7) / 3)


def test_groups_keep_the_debiased_value_honest():
    # Outcomes repeated within a group look like signal unless the group is left out.
    rng = np.random.default_rng(4)
    confidence, groups = np.full(120, 0.62), np.repeat(np.arange(30), 4)
    y = np.repeat(rng.random((2000, 30)) < 0.62, 4, axis=1).astype(float)
    naive = np.mean([metrics.ece_debiased(confidence, row) for row in y])
    honest = [metrics.ece_debiased(confidence, row, groups=groups) for row in y]
    assert naive > 0.02
    assert abs(np.mean(honest)) < 4 * np.std(honest) / np.sqrt(len(honest))


def test_noise_floor_is_the_expected_ece_of_a_perfect_forecaster():
    confidence, _ = sample(300)
    rng = np.random.default_rng(5)
    direct = [
        ece(confidence, rng.random(300) < confidence, binning="mass")
        for _ in range(2000)
    ]
    floor = metrics.ece_noise_floor(confidence, binning="mass", rng=rng, n_draws=4000)
    error = np.std(direct) * np.sqrt(1 / 2000 + 1 / 4000)
    assert abs(floor - np.mean(direct)) < 4 * error
    upper = metrics.ece_noise_floor(confidence, rng=rng, quantile=0.95)
    assert upper > floor
    # One bin of n rows at .5: E|mean - .5| by the binomial.
    k = np.arange(11)
    exact = (stats.binom.pmf(k, 10, 0.5) * np.abs(k / 10 - 0.5)).sum()
    floor = metrics.ece_noise_floor([0.5] * 10, rng=rng, n_draws=20000)
    assert floor == pytest.approx(exact, abs=4 * 0.1 / np.sqrt(20000))


def test_soft_labels_count_as_expected_correctness():
    p = np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    q = np.array([[0.5, 0.5], [0.1, 0.9], [1.0, 0.0]])
    confidence, correct = metrics.top_option(p, q)
    assert confidence.tolist() == [0.8, 0.7, 0.6]
    assert correct.tolist() == [0.5, 0.9, 1.0]
    assert ece(confidence, correct, 10) == pytest.approx((0.3 + 0.2 + 0.4) / 3)
    assert metrics.accuracy(p, q) == pytest.approx(2.4 / 3)
    assert metrics.accuracy(p, [0, 0, 0]) == pytest.approx(2 / 3)


def test_classwise():
    rng = np.random.default_rng(6)
    p, y = rng.dirichlet(np.ones(3), 200), rng.integers(0, 3, 200)
    for k, r in enumerate(metrics.classwise_reliability(p, y, 10)):
        assert r.ece == pytest.approx(ece(p[:, k], y == k, 10))
    mask = np.ones((200, 4), bool)
    mask[:, 3] = False
    mask[:50, 3] = True
    wide = np.concatenate([p, np.zeros((200, 1))], 1)
    r = metrics.classwise_reliability(wide, y, 10, mask=mask)
    assert [x.n for x in r] == [200, 200, 200, 50]
    mask[:, 3] = False
    with pytest.raises(MetricError, match="no row has option 3"):
        metrics.classwise_reliability(wide, y, 10, mask=mask)


def test_three_to_ten_options_in_one_batch():
    rng = np.random.default_rng(7)
    k = rng.integers(3, 11, 500)
    mask = np.arange(10) < k[:, None]
    uniform = mask / k[:, None]
    np.testing.assert_allclose(metrics.entropy_confidence(uniform, mask), 0, atol=1e-12)
    confidence, _ = metrics.top_option(uniform, np.zeros(500, int), mask)
    np.testing.assert_allclose(confidence, 1 / k)
    with pytest.raises(MetricError, match="not among"):
        metrics.top_option(uniform, np.full(500, 9), mask)


def test_entropy_confidence_by_hand():
    values = metrics.entropy_confidence([[0, 0.95, 0.05], [1, 0, 0], [1 / 3] * 3])
    np.testing.assert_allclose(values, [0.8193036, 1, 0], atol=5e-8)
    five = metrics.entropy_confidence([0.01, 0.02, 0.07, 0.3, 0.6])
    assert five == pytest.approx(0.3922551640207, abs=1e-12)


# --- Selective prediction --------------------------------------------------------


def test_aurc_by_hand():
    # Risks 0, 1/2, 1/3, 1/2 at coverages 1/4 .. 1.
    assert metrics.aurc([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0]) == pytest.approx(
        (0 + 1 / 2 + 1 / 3 + 1 / 2) / 4
    )
    # The middle two tie: both are answered at risk 1/3.
    assert metrics.aurc([0.9, 0.7, 0.7, 0.6], [1, 0, 1, 0]) == pytest.approx(
        (0 + 2 / 3 + 1 / 2) / 4
    )
    assert metrics.aurc([0.5] * 10, [1, 1, 1, 0, 0] * 2) == pytest.approx(0.4)


def test_risk_coverage_and_its_two_questions():
    c, y = [0.9, 0.7, 0.7, 0.6, 0.5], [1, 0, 1, 1, 0]
    curve = metrics.risk_coverage(c, y)
    np.testing.assert_allclose(curve.threshold, [0.9, 0.7, 0.6, 0.5])
    np.testing.assert_allclose(curve.coverage, [0.2, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 1 / 3, 1 / 4, 2 / 5])
    assert metrics.coverage_error(c, y, 0.2) == 0
    assert metrics.coverage_error(c, y, 0.3) == pytest.approx(1 / 3)
    assert metrics.coverage_error(c, y, 1.0) == pytest.approx(0.4)
    assert metrics.coverage_at_error(c, y, 0.25) == 0.8
    assert metrics.coverage_at_error(c, y, 0.3) == 0.8
    assert metrics.coverage_at_error(c, y, 0.1) == 0.2
    assert metrics.coverage_at_error([0.9], [0], 0.1) == 0.0
    # The share asked for is met exactly where k / n is that share.
    assert metrics.coverage_at_error(np.linspace(1, 0, 50), [1] * 49 + [0], 0.02) == 1


def test_auroc_agrees_with_scikit_learn_and_counts_soft_rows():
    c, y = sample()
    for score in (c, c.round(1), -c * 100):
        assert metrics.auroc(score, y) == pytest.approx(
            roc_auc_score(y, score), abs=1e-12
        )
    soft = np.random.default_rng(8).random(400)
    theirs = roc_auc_score(
        np.repeat([1, 0], 400), np.tile(c, 2), sample_weight=np.r_[soft, 1 - soft]
    )
    assert metrics.auroc(c, soft) == pytest.approx(theirs, abs=1e-12)
    for outcome in (0, 1):
        with pytest.raises(MetricError, match="right and wrong"):
            metrics.auroc([0.1, 0.2], [outcome] * 2)


def test_one_outcome_only_still_answers():
    for y in ([1, 1, 1], [0, 0, 0]):
        c = [0.9, 0.8, 0.9]
        assert metrics.aurc(c, y) == 1 - y[0]
        assert ece(c, y) == pytest.approx(abs(y[0] - np.mean(c)))
        assert metrics.coverage_at_error(c, y, 0.5) == y[0]


# --- Intervals -------------------------------------------------------------------


def test_bootstrap_of_a_mean_matches_theory_and_scipy():
    x = np.random.default_rng(9).normal(1.0, 2.0, 500)
    rng = np.random.default_rng(0)
    ours = metrics.bootstrap_interval(x, rng=rng)
    half = stats.norm.ppf(0.975) * x.std() / np.sqrt(500)
    # 10,000 resamples leave about 1.5 % of noise in a half-width.
    assert ours.estimate == pytest.approx(x.mean(), abs=1e-12)
    assert ours.high - x.mean() == pytest.approx(half, rel=0.06)
    assert x.mean() - ours.low == pytest.approx(half, rel=0.06)
    theirs = stats.bootstrap((x,), np.mean, method="percentile", rng=1)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.02)
    again = metrics.bootstrap_interval(x, rng=np.random.default_rng(0))
    assert again == ours and again.n == 500


def test_whole_groups_are_resampled():
    rng = np.random.default_rng(10)
    effect = rng.normal(size=40)
    groups = np.repeat([f"review {g}" for g in range(40)], 25)
    x = np.repeat(effect, 25)
    wide = metrics.bootstrap_interval(x, groups=groups, rng=rng)
    narrow = metrics.bootstrap_interval(x, rng=rng)
    ratio = (wide.high - wide.low) / (narrow.high - narrow.low)
    assert ratio == pytest.approx(5, rel=0.1), "sqrt(25) for fully dependent rows"
    assert wide.n == 40
    # The order of rows does not matter, and unequal groups are kept whole: a mean
    # over rows is a ratio of two resampled sums.
    order = rng.permutation(1000)
    a = metrics.bootstrap_interval(
        x[order], groups=groups[order], rng=np.random.default_rng(0)
    )
    b = metrics.bootstrap_interval(x, groups=groups, rng=np.random.default_rng(0))
    assert (a.low, a.high) == pytest.approx((b.low, b.high), abs=1e-12)


def test_additive_and_row_statistics_agree():
    c, y = sample(120)
    groups = np.arange(120) % 17
    fast = metrics.ece_statistic(c, y, 10)
    index = metrics.bin_index(c, 10)

    def slow(r):
        sums = np.bincount(r[:, 2].astype(int), r[:, 1] - r[:, 0], 10)
        return np.abs(sums).sum() / len(r)

    rowwise = metrics.Statistic(np.stack([c, y, index], 1), slow, additive=False)
    assert fast.value() == pytest.approx(ece(c, y, 10), abs=1e-12)
    options = {"groups": groups, "n_resamples": 200}
    a = metrics.bootstrap_interval(fast, rng=np.random.default_rng(3), **options)
    b = metrics.bootstrap_interval(rowwise, rng=np.random.default_rng(3), **options)
    assert (a.estimate, a.low, a.high) == pytest.approx((b.estimate, b.low, b.high))
    mass = metrics.ece_statistic(c, y, 10, "mass")
    assert mass.value() == pytest.approx(ece(c, y, 10, "mass"), abs=1e-12)


def test_pairs_share_their_resamples():
    x = np.random.default_rng(11).normal(size=300)
    same = metrics.paired_bootstrap(x + 0.25, x, rng=np.random.default_rng(0))
    assert (same.low, same.high) == pytest.approx((0.25, 0.25), abs=1e-12)
    c, y = sample(300)
    first = metrics.ece_statistic(c, y)
    zero = metrics.paired_bootstrap(first, first, rng=np.random.default_rng(0))
    assert (zero.estimate, zero.low, zero.high) == (0, 0, 0)
    aurc = metrics.Statistic(
        np.stack([c, y], 1), lambda r: metrics.aurc(r[:, 0], r[:, 1]), additive=False
    )
    flat = metrics.Statistic(aurc.features, lambda r: 1 - r[:, 1].mean(), False)
    gain = metrics.paired_bootstrap(
        flat, aurc, rng=np.random.default_rng(0), n_resamples=300
    )
    assert gain.low > 0
    assert gain.estimate == pytest.approx(1 - y.mean() - metrics.aurc(c, y))


@pytest.mark.parametrize("kind", ["mean", "paired"])
def test_intervals_cover_as_often_as_they_say(kind):
    rng = np.random.default_rng(12)
    hits = 0
    for _ in range(400):
        groups = np.repeat(np.arange(60), rng.integers(1, 6, 60))
        shared = rng.normal(size=60)[groups]
        x, z = shared + rng.normal(size=(2, groups.size))
        options = {"groups": groups, "rng": rng, "n_resamples": 500}
        if kind == "mean":
            interval = metrics.bootstrap_interval(x, **options)
        else:
            interval = metrics.paired_bootstrap(x + 0.3, z, **options)
        truth = 0.0 if kind == "mean" else 0.3
        hits += interval.low <= truth <= interval.high
    # 95 % nominal; percentile intervals of 60 groups lose about 1 %, noise is 1.1 %.
    assert 0.90 <= hits / 400 <= 0.98


def test_basic_reflects_the_percentiles():
    c, y = sample(200)
    statistic = metrics.ece_statistic(c, y)
    options = {"n_resamples": 2000}
    a = metrics.bootstrap_interval(statistic, rng=np.random.default_rng(1), **options)
    b = metrics.bootstrap_interval(
        statistic, rng=np.random.default_rng(1), method="basic", **options
    )
    assert b.low == pytest.approx(2 * a.estimate - a.high)
    assert b.high == pytest.approx(2 * a.estimate - a.low)


def test_seed_interval_is_students():
    x = [0.31, 0.28, 0.35, 0.30, 0.29]
    ours = metrics.seed_interval(x, 0.9)
    low, high = stats.t.interval(0.9, 4, np.mean(x), stats.sem(x))
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=1e-12)
    assert (ours.n, ours.level) == (5, 0.9)
    assert f"{ours:.3f}" == f"0.306 [{low:.3f}, {high:.3f}]"


def test_iqm():
    x = np.random.default_rng(13).normal(size=(10, 3))
    assert metrics.iqm(x) == pytest.approx(stats.trim_mean(x, 0.25, axis=None))
    assert metrics.iqm([1, 2, 3, 100]) == 2.5
    rng = np.random.default_rng(0)
    interval = metrics.iqm_interval(x, rng=rng)
    assert interval.low < interval.estimate < interval.high and interval.n == 10
    # Stratified: a task whose runs agree keeps its value in every resample.
    fixed = np.broadcast_to([0.0, 5.0], (6, 2))
    flat = metrics.iqm_interval(fixed, rng=rng, n_resamples=50)
    assert flat.low == flat.high == flat.estimate == 2.5
    # Runs are drawn anew for each task: shared draws would cancel here.
    mirrored = metrics.iqm_interval(np.stack([x[:, 0], -x[:, 0]], 1), rng=rng)
    assert mirrored.high - mirrored.low > 0.1


def test_wilson_agrees_with_scipy():
    k, n = np.array([0, 3, 10, 50]), np.array([10, 10, 10, 80])
    low, high = metrics.wilson_interval(k, n, 0.9)
    for i in range(4):
        ci = stats.binomtest(int(k[i]), int(n[i])).proportion_ci(0.9, "wilson")
        assert (low[i], high[i]) == pytest.approx((ci.low, ci.high), abs=1e-12)
    assert np.isnan(metrics.wilson_interval([0], [0])).all()
    for bad in ((3, 2), (-1, 2), (np.nan, 2), (1, np.inf)):
        with pytest.raises(MetricError, match="wilson"):
            metrics.wilson_interval(*bad)


# --- Bad input -------------------------------------------------------------------

PAIRED = [
    ece,
    metrics.ece_debiased,
    metrics.ece_statistic,
    metrics.aurc,
    metrics.risk_coverage,
    metrics.auroc,
    lambda c, y: metrics.coverage_error(c, y, 0.5),
    lambda c, y: metrics.coverage_at_error(c, y, 0.5),
]


@pytest.mark.parametrize(
    ("confidence", "correct"),
    [
        ([0.5, np.nan], [1, 0]),
        ([0.5, np.inf], [1, 0]),
        ([0.5, 0.6], [1, np.nan]),
        ([0.5, 0.6], [1, 2]),
        ([0.5, 0.6], [1]),
        ([[0.5, 0.6]], [[1, 0]]),
        ([], []),
        (["a", "b"], [1, 0]),
    ],
)
def test_bad_rows_are_named(confidence, correct):
    for function in PAIRED:
        with pytest.raises(MetricError, match="confidence|correct|score"):
            function(confidence, correct)


def test_bad_arguments_are_named():
    rng = np.random.default_rng(0)
    c, y = [0.5, 0.6], [1, 0]
    for call, reason in [
        (lambda: ece([-0.1], [1]), "in \\[0, 1\\]"),
        (lambda: ece([1.1], [1]), "in \\[0, 1\\]"),
        (lambda: ece(c, y, 0), "n_bins"),
        (lambda: ece(c, y, 2.5), "n_bins"),
        (lambda: ece(c, y, 5, "equal"), "'width' or 'mass'"),
        (lambda: metrics.coverage_error(c, y, 0.0), "coverage"),
        (lambda: metrics.coverage_at_error(c, y, 2), "error"),
        (lambda: metrics.top_option([[0.5, 0.5]], [0.0]), "integer labels"),
        (lambda: metrics.top_option([[0.5, 0.5]], [2]), "not among"),
        (lambda: metrics.top_option([[0.5, 0.5]], [0, 1]), "one label per row"),
        (lambda: metrics.top_option([[0.5, 0.5]], 0), "one label per row"),
        (lambda: metrics.top_option([[0.5, 0.5]] * 2, [0]), "one label per row"),
        (lambda: metrics.top_option([[0.5, 0.5]] * 2, [[1, 0]]), "one label per row"),
        (lambda: metrics.top_option([[0.5, 0.6]], [0]), "sum to 1"),
        (lambda: metrics.top_option([[np.nan, 0.5]], [0]), "finite"),
        (lambda: metrics.entropy_confidence([1.0]), "at least 2 options"),
        (lambda: metrics.bootstrap_interval([1.0], rng=rng), "at least 2"),
        (lambda: metrics.bootstrap_interval(c, groups=[1, 1], rng=rng), "at least 2"),
        (lambda: metrics.bootstrap_interval(c, groups=[1], rng=rng), "groups: shape"),
        (lambda: metrics.bootstrap_interval([1, np.nan], rng=rng), "values"),
        (lambda: metrics.bootstrap_interval(c, rng=rng, level=95), "level"),
        (lambda: metrics.bootstrap_interval(c, rng=rng, n_resamples=0), "n_resamples"),
        (lambda: metrics.ece_noise_floor(c, rng=rng, n_draws=0), "n_draws"),
        (lambda: metrics.bootstrap_interval(c, rng=rng, method="bca"), "method"),
        (lambda: metrics.paired_bootstrap(c, [1.0], rng=rng), "same rows"),
        (lambda: metrics.seed_interval([0.5]), "at least 2"),
        (lambda: metrics.seed_interval([0.5, np.nan]), "values"),
        (lambda: metrics.iqm([np.nan, 1]), "scores"),
        (lambda: metrics.iqm_interval([[1.0]], rng=rng), "runs >= 2"),
    ]:
        with pytest.raises(MetricError, match=reason):
            call()


@settings(max_examples=200)
@given(rows, st.integers(1, 20), st.sampled_from(["width", "mass"]))
def test_ranges(pairs, n_bins, binning):
    c, y = (np.array(v, float) for v in zip(*pairs, strict=True))
    value = ece(c, y, n_bins, binning)
    assert abs(c.mean() - y.mean()) - 1e-12 <= value <= 1
    assert metrics.ece_debiased(c, y, n_bins, binning) <= value + 1e-12
    assert 0 <= metrics.aurc(c, y) <= 1
    r = reliability(c, y, n_bins, binning)
    assert r.count.sum() == c.size and len(r.lower) == len(r.accuracy) == n_bins
    full = r.count > 0
    assert (r.confidence[full] >= r.lower[full] - 1e-12).all()
    assert (r.confidence[full] <= r.upper[full] + 1e-12).all()


def test_budget_to_reach_by_hand() -> None:
    budgets, scores = [1, 10, 100, 1000], [0.5, 0.4, 0.3, 0.35]
    assert metrics.budget_to_reach(budgets, scores, 0.4) == pytest.approx(10)
    assert metrics.budget_to_reach(budgets, scores, 0.35) == pytest.approx(10**1.5)
    assert np.isinf(metrics.budget_to_reach(budgets, scores, 0.2))
    # Outside the data: no number is made up.
    assert np.isnan(metrics.budget_to_reach(budgets, scores, 0.6))
    with pytest.raises(ValueError, match="increasing"):
        metrics.budget_to_reach([10, 1], [0.5, 0.4], 0.45)
    with pytest.raises(MetricError, match="scores: shape"):
        metrics.budget_to_reach([1, 10], [0.5], 0.45)
    # NaN would be read as "the smallest budget is already there".
    for hole in (np.nan, np.inf):
        with pytest.raises(MetricError, match="scores: pass finite"):
            metrics.budget_to_reach([1, 10, 100], [0.4, hole, 0.2], 0.3)
    with pytest.raises(MetricError, match="target"):
        metrics.budget_to_reach([1, 10], [0.5, 0.4], np.nan)
