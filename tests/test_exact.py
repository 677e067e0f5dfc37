"""Theory, held by exact enumeration through the objectives that train."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import Tensor

from rlcd_core import rewards as R
from rlcd_core.exact import (
    Channel,
    field,
    fixed_point,
    group_trace,
    moments,
    settle,
)
from rlcd_core.rewards import OBJECTIVES, Objective

CASE = [0.5, 0.3, 0.15, 0.05]
TRUTH = [0.6, 0.25, 0.1, 0.05]
LOGGED = [0.1, 0.2, 0.3, 0.4]


def f64(values) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def brier_direction(p, q) -> Tensor:
    """J (q - p)."""
    p, q = f64(p), f64(q)
    return p * (q - p) - p * (p @ (q - p))


def distribution(size: int) -> st.SearchStrategy[list[float]]:
    parts = st.lists(st.floats(0.02, 1.0), min_size=size, max_size=size)
    return parts.map(lambda w: (np.array(w) / np.sum(w)).tolist())


def problem(parts: int = 2, low: int = 2) -> st.SearchStrategy[list[list[float]]]:
    """`parts` distributions of one length K in low..6."""
    return st.integers(low, 6).flatmap(
        lambda k: st.lists(distribution(k), min_size=parts, max_size=parts)
    )


def assert_unbiased(objective: Objective, p, q, *args, **setting) -> None:
    got = moments(objective, p, q, *args, **setting).mean
    torch.testing.assert_close(got, brier_direction(p, q), rtol=0, atol=1e-12)


def constant_baseline(b: float) -> Objective:
    return R.lambda_mix("constant", 1.0, constant=b)


# --- T1, T2: the identity, unbiasedness, the lambda family ---


def test_worked_value_of_the_identity():
    p = torch.softmax(f64([0, 1, 2]), 0)
    torch.testing.assert_close(
        p, f64([0.0900306, 0.2447285, 0.6652410]), rtol=0, atol=5e-8
    )
    got = moments(OBJECTIVES["rlcd"], p, [1, 0, 0]).mean
    want = f64([0.1197841, 0.0430194, -0.1628034])
    torch.testing.assert_close(got, want, rtol=0, atol=6e-8)
    z = f64([0, 1, 2]).requires_grad_(True)
    (torch.softmax(z, 0) - f64([1, 0, 0])).square().sum().backward()
    torch.testing.assert_close(got, -z.grad / 2, rtol=0, atol=1e-15)


@settings(max_examples=20, deadline=None)
@given(problem(4), st.integers(1, 3), st.booleans(), st.floats(-1, 2))
def test_unbiased_for_the_brier_gradient(vectors, group, shared, lam):
    p, q, mu, model = vectors
    for name in ("rlcd", "rlcd_half", "rlvr_gini", "rlcd_regression", "rlcd_poisson"):
        assert_unbiased(OBJECTIVES[name], p, q, group, shared)
    assert_unbiased(R.lambda_mix("any", lam, constant=0.3), p, q, group, shared)
    if group > 1:
        for name in ("rlcd_loo", "rlvr_gini_loo"):
            assert_unbiased(OBJECTIVES[name], p, q, group, shared)
    for name in ("rlcd_ips", "rlcd_dr"):
        assert_unbiased(
            OBJECTIVES[name],
            p,
            q,
            min(group, 2),
            shared,
            behaviour=mu,
            outcome_model=f64(model),
        )
    assert_unbiased(OBJECTIVES["brier"], p, q)
    assert_unbiased(OBJECTIVES["exclusive_control"], p, q, group)


@settings(max_examples=12, deadline=None)
@given(problem(3), st.integers(1, 4), st.booleans())
def test_unbiased_without_replacement(vectors, group, shared):
    p, q, mu = vectors
    group = min(group, len(p))
    for behaviour in (None, mu):
        assert_unbiased(
            OBJECTIVES["residual_ht"], p, q, group, shared, behaviour, False
        )
    if len(p) <= 5:
        for drawn in {len(p) - 1, len(p)}:
            assert_unbiased(
                OBJECTIVES["exclusive_brier"], p, q, drawn, True, mu, replacement=False
            )


def test_doubly_robust_forgives_wrong_propensities_if_the_model_is_right():
    p, q = CASE, TRUTH
    fault = Objective(
        "wrong propensities",
        lambda lp, told: R.doubly_robust(
            lp,
            R.Feedback(
                told.actions,
                told.outcomes,
                torch.full_like(told.propensities, 0.7),
                outcome_model=told.outcome_model,
            ),
        ),
        "",
    )
    assert_unbiased(fault, p, q, 2, behaviour=LOGGED, outcome_model=f64(q))
    with pytest.raises(AssertionError):
        assert_unbiased(fault, p, q, 2, behaviour=LOGGED, outcome_model=f64(p))


@pytest.mark.parametrize("group", [2, 3, 4])
def test_group_mean_is_a_shorter_leave_one_out(group):
    for shared in (True, False):
        loo = moments(OBJECTIVES["rlcd_loo"], CASE, TRUTH, group, shared)
        mean = moments(OBJECTIVES["rlcd_mean"], CASE, TRUTH, group, shared)
        shrink = (group - 1) / group
        torch.testing.assert_close(mean.mean, shrink * loo.mean, rtol=0, atol=1e-14)
        assert mean.trace == pytest.approx(shrink**2 * loo.trace, rel=1e-12)


def test_only_lambda_one_is_proper_without_the_gini_term():
    for lam in (0.0, 0.5, 0.9, 1.1):
        bare = R.policy_gradient(
            "bare", R.mixed_reward(lam), equation="", calibrates=False
        )
        end = fixed_point(bare, [0.6, 0.4])
        assert abs(float(end.p[0]) - 0.6) > 5e-3, lam


FAULTS = {
    "no subtraction": R.policy_gradient(
        "f", R.rlvr_reward, equation="", calibrates=True
    ),
    "reward not detached": Objective(
        "f",
        lambda lp, t: (
            -t.average((R.rlvr_reward(lp, t) - t.taken(lp).exp()) * t.taken(lp))
        ),
        "",
    ),
    "half the subtraction": R.policy_gradient(
        "f", R.mixed_reward(0.5), equation="", calibrates=True
    ),
    "group mean": OBJECTIVES["rlcd_mean"],
    "std": OBJECTIVES["rlcd_std"],
    "sign": Objective("f", lambda lp, t: -OBJECTIVES["rlcd"].loss(lp, t), ""),
    "sum over actions": Objective(
        "f", lambda lp, t: 2 * OBJECTIVES["rlcd"].loss(lp, t), ""
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_caught(name):
    with pytest.raises(AssertionError):
        assert_unbiased(FAULTS[name], CASE, TRUTH, 2)


# --- T3, T7: variance ---


@pytest.mark.parametrize(
    ("name", "group", "shared", "replacement", "per_outcome", "digits"),
    [
        ("rlcd", 1, True, True, 0.117, 3),
        ("rlcd", 4, True, True, 0.309, 3),
        ("rlcd_loo", 4, True, True, 0.380, 3),
        ("rlcd", 4, False, True, 0.117, 3),
        ("rlcd_loo", 4, False, True, 0.162, 3),
        ("rlcd", 2, True, True, 0.181, 3),
        ("residual_ht", 2, True, False, 0.159, 3),
        ("residual_ht", 1, True, False, 0.117, 3),
        ("exclusive_control", 1, True, True, 0.1151, 4),
        ("rlvr_gini_loo", 4, True, True, 4 * 0.0997, 3),
    ],
)
def test_variance_table(name, group, shared, replacement, per_outcome, digits):
    got = moments(OBJECTIVES[name], CASE, CASE, group, shared, replacement=replacement)
    assert got.trace_per_outcome == pytest.approx(per_outcome, abs=0.51 * 10**-digits)
    assert float(got.mean.abs().max()) < 1e-14


def test_traces_per_group():
    def trace(name):
        return moments(OBJECTIVES[name], CASE, CASE, 4).trace

    assert trace("rlcd") == pytest.approx(0.0772, abs=5e-5)
    assert trace("rlcd_loo") == pytest.approx(0.0951, abs=5e-5)
    assert trace("rlvr_gini_loo") == pytest.approx(0.0997, abs=5e-5)


def loo_ratio(p, q, group: int) -> Tensor:
    """Variance of leave-one-out over that of no baseline, for rows of p and q."""
    p, q = torch.atleast_2d(f64(p)), torch.atleast_2d(f64(q))
    return group_trace(p, q, group, True) / group_trace(p, q, group, False)


@settings(max_examples=15, deadline=None)
@given(problem(2), st.integers(2, 3))
def test_closed_form_traces_equal_enumeration(vectors, group):
    p, q = f64(vectors)
    for name, loo in (("rlcd", False), ("rlcd_loo", True)):
        want = moments(OBJECTIVES[name], p, q, group).trace
        got = float(group_trace(p[None], q[None], group, loo))
        assert got == pytest.approx(want, rel=1e-10)


def test_leave_one_out_cases():
    assert float(loo_ratio([0.49, 0.49, 0.02], [0.05, 0.05, 0.9], 4)) == pytest.approx(
        0.66, abs=0.005
    )
    assert float(loo_ratio([0.8, 0.1, 0.1], [0, 0.5, 0.5], 4)) == pytest.approx(
        3.2, abs=0.05
    )
    spread = [0.2] * 3 + [0.025] * 16
    assert float(loo_ratio(spread, spread, 64)) == pytest.approx(0.998, abs=5e-4)


@pytest.mark.parametrize(
    ("size", "wins", "median"),
    [(2, 100, 2.10), (3, 99.1, 1.59), (4, 99.2, 1.48), (5, 99.4, 1.44)],
)
def test_no_baseline_usually_wins(size, wins, median):
    rng = np.random.default_rng(size)
    p, q = rng.dirichlet(np.ones(size), (2, 20_000))
    ratio = loo_ratio(p, q, 3)
    # 20,000 draws: the share has a standard error of .07 points, the median .006.
    assert 100 * float((ratio > 1).double().mean()) == pytest.approx(wins, abs=0.35)
    assert float(ratio.median()) == pytest.approx(median, abs=0.03)


def test_leave_one_out_never_wins_at_two_options_nor_in_draws_at_the_truth():
    rng = np.random.default_rng(0)
    for group in (2, 3, 8, 64):
        p, q = rng.dirichlet(np.ones(2), (2, 3000))
        assert float(loo_ratio(p, q, group).min()) > 1
    for size in (3, 4, 6, 10):
        p = rng.dirichlet(np.ones(size), 1000)
        for group in (2, 4, 16):
            assert float(loo_ratio(p, p, group).min()) > 1


@settings(max_examples=10, deadline=None)
@given(problem(1, low=3), st.integers(2, 3))
def test_independent_leave_one_out_only_adds_noise_at_the_truth(vectors, group):
    (p,) = vectors
    loo = moments(OBJECTIVES["rlcd_loo"], p, p, group, False).trace
    plain = moments(OBJECTIVES["rlcd"], p, p, group, False).trace
    assert loo > plain


def test_no_other_weight_or_constant_has_a_smaller_second_moment_at_the_truth():
    def second_moment(p, lam, b):
        return moments(R.lambda_mix("m", lam, constant=b), p, p).trace

    grid = [(1 + i / 4, j / 8) for i, j in itertools.product(range(-6, 7), repeat=2)]
    rng = np.random.default_rng(1)
    for p in [CASE, *rng.dirichlet(np.ones(3), 3)]:
        best = second_moment(p, 1.0, 0.0)
        for lam, b in grid:
            gap = second_moment(p, lam, b) - best
            assert gap > 1e-9 if (lam, b) != (1.0, 0.0) else gap == 0
    # Not unique at K = 2, b = 2 (1 - lam) p_1 p_2, nor at uniform p, b = (1 - lam)/K.
    for p, b in (([0.7, 0.3], 0.21), ([1 / 3] * 3, 1 / 6)):
        tie = second_moment(p, 0.5, b)
        assert tie == pytest.approx(second_moment(p, 1.0, 0.0), rel=1e-12)


def test_without_replacement_wins_in_draws_and_loses_in_a_corner():
    def ratio(p, q):
        residual = moments(OBJECTIVES["residual_ht"], p, q, 2, replacement=False)
        return residual.trace / moments(OBJECTIVES["rlcd"], p, q, 2).trace

    rng = np.random.default_rng(2)
    for size in (3, 4, 5):
        for p, q in rng.dirichlet(np.ones(size), (40, 2)):
            assert ratio(p, q) < 1
    assert ratio([0.02, 0.49, 0.49], [0, 1, 0]) == pytest.approx(1.32, abs=0.005)


@pytest.mark.parametrize("p", [CASE, [0.7, 0.2, 0.1], [0.6, 0.4]])
def test_exclusive_control_has_minimum_variance_at_the_truth(p):
    """Against every unbiased one-outcome estimator, by constrained least squares."""
    p = np.array(p)
    size = len(p)
    jacobian = np.diag(p) - np.outer(p, p)
    # Unknowns f(a, c) in R^K; column layout (a, c). E_{a~p, y~q} f = J(q - p) must hold
    # for q = each vertex, hence for all q.
    rows = np.zeros((size, 2 * size))
    for y in range(size):
        for a in range(size):
            rows[y, 2 * a + (a == y)] += p[a]
    target = np.stack([jacobian @ (np.eye(size)[y] - p) for y in range(size)])
    weight = np.empty(2 * size)
    weight[0::2], weight[1::2] = p * (1 - p), p * p
    scaled = rows / np.sqrt(weight)
    best, *_ = np.linalg.lstsq(scaled, target, rcond=None)
    floor = np.square(best).sum()
    got = moments(OBJECTIVES["exclusive_control"], p.tolist(), p.tolist()).trace
    assert got == pytest.approx(floor, rel=1e-10)
    assert moments(OBJECTIVES["rlcd"], p.tolist(), p.tolist()).trace > floor + 1e-6


# --- T4, T5: verdict losses, any behaviour policy ---

CALIBRATED = ("rlcd", "rlcd_loo", "rlcd_mean", "verdict_nll", "verdict_brier")


@pytest.mark.parametrize("name", CALIBRATED)
@pytest.mark.parametrize("behaviour", ["policy", "log", "hole", "epsilon"])
def test_any_behaviour_policy_ends_at_the_truth(name, behaviour):
    # A group baseline must reach every option, see the next test.
    baseline = name in ("rlcd_loo", "rlcd_mean")
    mu = {
        "policy": None,
        "log": LOGGED,
        "hole": [0.5, 0.2, 0.25, 0.05] if baseline else [0.5, 0.2, 0.3, 0.0],
        "epsilon": lambda p: 0.7 * p + 0.075,
    }[behaviour]
    end = fixed_point(OBJECTIVES[name], TRUTH, 2, behaviour=mu)
    assert end.kind == "interior"
    assert end.rate < 0
    torch.testing.assert_close(end.p, f64(TRUTH), rtol=0, atol=1e-8)


def test_a_group_baseline_must_reach_every_option():
    """With one option unreached, q - p = const over the others is a line of ends."""
    mu = [0.5, 0.2, 0.3, 0.0]
    other = f64([0.55, 0.2, 0.05, 0.2])
    for name, still in (("rlcd", False), ("rlcd_loo", True), ("rlcd_mean", True)):
        move = field(OBJECTIVES[name], TRUTH, 2, behaviour=mu)(other.log()[None])
        assert (float(move.abs().max()) < 1e-15) == still


def test_two_unreached_options_leave_their_shares_open():
    start = [0.25, 0.25, 0.4, 0.1]
    f = field(OBJECTIVES["verdict_nll"], TRUTH, behaviour=[0.5, 0.5, 0, 0])
    other = f64([0.6, 0.25, 0.12, 0.03])
    assert float(f(other.log()[None]).abs().max()) < 1e-15
    assert float(f(f64(start).log()[None]).abs().max()) > 1e-3


@settings(max_examples=20, deadline=None)
@given(problem(3))
def test_lyapunov_function_of_a_fixed_log(vectors):
    p, q, mu = (f64(v) for v in vectors)
    z = p.log().requires_grad_(True)
    stated = torch.softmax(z, 0)
    (mu * (stated - q * stated.log())).sum().backward()
    direction = field(OBJECTIVES["rlcd"], q, behaviour=mu)(p.log()[None])[0]
    torch.testing.assert_close(direction, -z.grad, rtol=0, atol=1e-13)


def test_constant_baseline_biases_off_policy_only():
    end = fixed_point(constant_baseline(0.1), TRUTH, behaviour=LOGGED)
    assert float(end.p[0]) == pytest.approx(0.863, abs=5e-4)
    end = fixed_point(constant_baseline(0.1), TRUTH)
    torch.testing.assert_close(end.p, f64(TRUTH), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("first", "want"), [(None, 0.55), ((0.9, 0.1), 0.532), ((0.1, 0.9), 0.614)]
)
def test_one_logit_for_two_questions_depends_on_the_log(first, want):
    """`first`: how often each of the two questions logs option 1."""

    def solve(name):
        parts = []
        for q, mu in zip((0.9, 0.2), first or (None, None), strict=True):
            mu = None if mu is None else [mu, 1 - mu]
            parts.append(field(OBJECTIVES[name], [q, 1 - q], behaviour=mu))
        z = brentq(lambda z: sum(float(f(f64([[z, 0.0]]))[0, 0]) for f in parts), -5, 5)
        return 1 / (1 + np.exp(-z))

    assert solve("rlcd") == pytest.approx(want, abs=5e-4)
    assert solve("rlcd_ips") == pytest.approx(0.55, abs=1e-9)


def test_rlvr_off_policy():
    uniform = fixed_point(OBJECTIVES["rlvr"], TRUTH, behaviour=[0.25] * 4)
    torch.testing.assert_close(uniform.p, f64(TRUTH), rtol=0, atol=1e-8)
    logged = fixed_point(OBJECTIVES["rlvr"], TRUTH, behaviour=LOGGED)
    want = f64(LOGGED) * f64(TRUTH)
    torch.testing.assert_close(logged.p, want / want.sum(), rtol=0, atol=1e-8)
    for tau in (1.5, 2.0, 3.0):

        def tempered(p, tau=tau):
            return torch.softmax(p.log() / tau, -1)

        end = fixed_point(OBJECTIVES["rlvr"], TRUTH, behaviour=tempered)
        want = f64(TRUTH) ** (tau / (tau - 1))
        torch.testing.assert_close(end.p, want / want.sum(), rtol=0, atol=1e-8)
        if tau == 2:
            torch.testing.assert_close(tempered(end.p), f64(TRUTH), rtol=0, atol=1e-8)


# --- T6: what one bit can carry ---

SCORES = {
    "brier": R.brier_score,
    "log": R.log_score,
    "spherical": R.spherical_score,
    "rps": R.rps_score,
    "power 1.5": R.power_score(1.5),
    "power 3": R.power_score(3.0),
    "composite": R.composite_score(1.0, spherical=0.5, brier=0.3, rps=1.0),
    "bounded": R.bounded_score(R.log_score, 0.1),
}
PROPER = [name for name in SCORES if name != "bounded"]


@settings(max_examples=8, deadline=None)
@given(problem(3), st.integers(1, 2), st.booleans())
def test_one_bit_forms_are_unbiased_for_any_proper_score(vectors, group, shared):
    p, q, mu = vectors
    for name in PROPER:
        full = moments(R.label_objective("full", SCORES[name], ""), p, q).mean
        one_bit = R.one_bit_objective(name, SCORES[name])
        got = moments(one_bit, p, q, group, shared).mean
        torch.testing.assert_close(got, full, rtol=0, atol=1e-11)
        weighed = R.one_bit_objective(name, SCORES[name], "importance")
        got = moments(weighed, p, q, group, shared, behaviour=mu).mean
        torch.testing.assert_close(got, full, rtol=0, atol=1e-11)
    spherical = moments(OBJECTIVES["spherical"], p, q).mean
    got = moments(OBJECTIVES["one_bit_spherical_pathwise"], p, q, group, shared).mean
    torch.testing.assert_close(got, spherical, rtol=0, atol=1e-12)
    got = moments(OBJECTIVES["one_bit_log"], p, q, group, shared).mean
    torch.testing.assert_close(got, f64(q) - f64(p), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "g",
    [
        lambda own, p: 1 / own,
        lambda own, p: own,
        lambda own, p: 1 / (1 - own),
        lambda own, p: 1 / p.norm(dim=-1, keepdim=True) + own**2,
    ],
)
def test_every_positive_g_ends_at_the_truth(g):
    objective = R.policy_gradient("g", R.scaled_reward(g), equation="", calibrates=True)
    end = fixed_point(objective, TRUTH)
    assert end.rate < 0
    torch.testing.assert_close(end.p, f64(TRUTH), rtol=0, atol=1e-8)


@settings(max_examples=10, deadline=None)
@given(problem(2))
def test_verdict_losses_are_the_g_forms_sample_by_sample(vectors):
    p, q = vectors
    for name, g in (
        ("verdict_brier", lambda own, p: own),
        ("verdict_nll", lambda own, p: 1 / (1 - own)),
    ):
        objective = R.policy_gradient(
            "g", R.scaled_reward(g), equation="", calibrates=True
        )
        a, b = moments(OBJECTIVES[name], p, q), moments(objective, p, q)
        torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(a.covariance, b.covariance, rtol=0, atol=1e-12)


def test_at_two_options_verdict_nll_is_the_full_nll():
    for q in (0.5, 0.9):
        verdict = moments(OBJECTIVES["verdict_nll"], [0.3, 0.7], [q, 1 - q])
        full = moments(OBJECTIVES["nll"], [0.3, 0.7], [q, 1 - q])
        torch.testing.assert_close(verdict.mean, full.mean, rtol=0, atol=1e-14)
        assert verdict.trace == pytest.approx(full.trace, rel=1e-12)


# --- T8: standard-deviation normalisation ---


def std_objective(kind: str, eps: float) -> Objective:
    reward = R.rlcd_reward if kind == "rlcd" else R.rlvr_reward
    return R.policy_gradient(
        "s", reward, "group_std", equation="", calibrates=False, std_eps=eps
    )


@pytest.mark.parametrize("kind", ["rlcd", "rlvr"])
@pytest.mark.parametrize("group", [2, 4])
def test_std_field_at_two_options_ignores_the_reward(kind, group):
    for p1, q1 in ((0.2, 0.7), (0.6, 0.9), (0.9, 0.4)):
        got = moments(OBJECTIVES[f"{kind}_std"], [p1, 1 - p1], [q1, 1 - q1], group).mean
        m = np.arange(group + 1)
        counts = np.array(
            [len(list(itertools.combinations(range(group), i))) for i in m]
        )
        chance = counts * p1**m * (1 - p1) ** (group - m)
        want = (2 * q1 - 1) * (chance * np.sqrt(m * (group - m))).sum() / group
        torch.testing.assert_close(got, f64([want, -want]), rtol=0, atol=1e-12)


def test_std_with_eps_stops_short():
    for eps, want, digits in ((1e-4, 0.99991, 5), (0.1, 0.930, 3)):
        end = fixed_point(std_objective("rlcd", eps), [0.7, 0.3], 4)
        assert float(end.p[0]) == pytest.approx(want, abs=0.6 * 10**-digits)
        assert end.rate < 0


@pytest.mark.parametrize(
    ("group", "want"),
    [
        (2, (1 / 3, 1 / 3, 1 / 3)),
        (4, (0.442, 0.279, 0.279)),
        (8, (0.551, 0.246, 0.203)),
    ],
)
def test_std_at_three_options_ends_elsewhere(group, want):
    end = fixed_point(
        OBJECTIVES["rlcd_std"], [0.45, 0.3, 0.25], group, method="flow", steps=1200
    )
    # The flow slides along a jump and chatters by its last step length.
    torch.testing.assert_close(end.p, f64(want), rtol=0, atol=2.5e-3)


def vertex_pull(name: str, q, k: int, group: int) -> float:
    """Least growth of z_k - z_j close to vertex k: positive if k attracts."""
    p = f64([1e-4 * (1 + 0.2 * j) for j in range(len(q))])
    p[k] = 0
    p[k] = 1 - p.sum()
    move = moments(OBJECTIVES[name], p, q, group).mean
    others = [j for j in range(len(q)) if j != k]
    return min(float(move[k] - move[j]) for j in others)


@pytest.mark.parametrize("group", [2, 3, 4])
def test_std_vertices_attract(group):
    for q in ([0.55, 0.3, 0.15], [0.45, 0.3, 0.25], [0.1, 0.52, 0.38]):
        for k in range(3):
            assert (vertex_pull("rlcd_std", q, k, group) > 0) == (q[k] > 0.5)
            # RLVR ties in groups that are all wrong: there the mode is enough.
            best = all(q[k] > q[j] for j in range(3) if j != k)
            assert (vertex_pull("rlvr_std", q, k, group) > 0) == best


def test_std_with_independent_outcomes():
    f = field(OBJECTIVES["rlcd_std"], [0.7, 0.3], 2, False)
    either_side = f(f64([[0.499, 0.501], [0.501, 0.499]]).log())[:, 0]
    assert either_side[0] > 0 > either_side[1]
    # Two actions: beyond q^2 = 1/2 the certain answer attracts here too.
    for q in (0.706, 0.708):
        f = field(OBJECTIVES["rlcd_std"], [q, 1 - q], 2, False)
        assert bool((f(f64([[0.6, 0.4], [0.99, 0.01]]).log())[:, 0] > 0).all()) == (
            q**2 > 0.5
        )
    end = fixed_point(OBJECTIVES["rlcd_std"], [0.7, 0.3], 4, False, start=[0.76, 0.24])
    assert float(end.p[0]) == pytest.approx(0.756, abs=5e-4)
    assert end.rate < 0


# --- T9, T13: rescues, noise ---


@pytest.mark.parametrize(
    ("beta", "at_7", "at_97"),
    [
        (0.2, 0.881, 0.991),
        (0.3, 0.791, 0.958),
        (0.4, 0.731, 0.913),
        (0.5, 0.690, 0.868),
    ],
)
def test_shannon_bonus_table(beta, at_7, at_97):
    objective = OBJECTIVES[f"rlvr_shannon_{beta}"]
    for q, want in ((0.7, at_7), (0.97, at_97)):
        end = fixed_point(objective, [q, 1 - q])
        assert float(end.p[0]) == pytest.approx(want, abs=5.1e-4)
        assert end.rate < 0
    end = fixed_point(objective, TRUTH)
    want = torch.softmax(f64(TRUTH) / beta, 0)
    torch.testing.assert_close(end.p, want, rtol=0, atol=1e-8)


def test_shannon_bonus_is_right_at_most_at_one_confidence():
    right = brentq(lambda q: 1 / (1 + np.exp((1 - 2 * q) / 0.3)) - q, 0.6, 0.999)
    assert right == pytest.approx(0.9537, abs=5e-5)
    end = fixed_point(OBJECTIVES["rlvr_shannon_0.3"], [right, 1 - right])
    assert float(end.p[0]) == pytest.approx(right, abs=1e-8)


def test_kl_to_a_reference():
    reference = f64([0.4, 0.3, 0.2, 0.1])
    end = fixed_point(
        OBJECTIVES["rlvr_kl_0.3"], TRUTH, reference_log_probs=reference.log()
    )
    want = reference * (f64(TRUTH) / 0.3).exp()
    torch.testing.assert_close(end.p, want / want.sum(), rtol=0, atol=1e-8)


def test_flipped_bits():
    flip = Channel.flip(0.1)
    rlcd = fixed_point(OBJECTIVES["rlcd"], TRUTH, channel=flip)
    torch.testing.assert_close(rlcd.p, 0.8 * f64(TRUTH) + 0.05, rtol=0, atol=1e-8)
    assert float(rlcd.p[0]) == pytest.approx(0.53, abs=1e-8)
    nll = fixed_point(OBJECTIVES["verdict_nll"], TRUTH, channel=flip)
    assert float(nll.p[0]) == pytest.approx(0.55, abs=1e-8)
    square = fixed_point(OBJECTIVES["verdict_brier"], TRUTH, channel=flip)
    assert square.kind == "boundary"
    assert float(square.p[3]) < 1e-8
    logged = fixed_point(OBJECTIVES["rlcd"], TRUTH, channel=flip, behaviour=LOGGED)
    assert float((logged.p - rlcd.p).abs().max()) > 0.05
    for name in ("rlcd", "verdict_nll"):  # at K = 2 the log does not matter
        two = fixed_point(
            OBJECTIVES[name], [0.8, 0.2], channel=flip, behaviour=[0.1, 0.9]
        )
        assert float(two.p[0]) == pytest.approx(0.74, abs=1e-8)


def test_redrawn_labels():
    mixed = 0.9 * f64(TRUTH) + 0.025
    for name in ("rlcd", "verdict_nll", "verdict_brier"):
        end = fixed_point(OBJECTIVES[name], mixed, 2)
        torch.testing.assert_close(end.p, mixed, rtol=0, atol=1e-8)


def test_unresolved():
    as_wrong = Channel.unresolved_as_wrong(0.7)
    end = fixed_point(OBJECTIVES["rlcd"], TRUTH, channel=as_wrong)
    torch.testing.assert_close(end.p, 0.7 * f64(TRUTH) + 0.075, rtol=0, atol=1e-8)
    end = fixed_point(OBJECTIVES["rlcd"], TRUTH, channel=as_wrong, behaviour=[0.25] * 4)
    torch.testing.assert_close(end.p, f64(TRUTH), rtol=0, atol=1e-8)
    for name in ("rlcd", "rlcd_loo", "rlvr_gini", "verdict_nll"):
        end = fixed_point(
            OBJECTIVES[name], TRUTH, 2, channel=Channel.unresolved(0.6, 0.6)
        )
        torch.testing.assert_close(end.p, f64(TRUTH), rtol=0, atol=1e-8)
    end = fixed_point(OBJECTIVES["rlcd"], TRUTH, channel=Channel.unresolved(0.9, 0.5))
    assert end.kind == "boundary"
    want = f64([0.654, 0.282, 0.063, 0.0])
    torch.testing.assert_close(end.p, want, rtol=0, atol=6e-4)


@pytest.mark.parametrize("name", ["rlcd", "rlvr_gini", "rlcd_dr", "residual_ht"])
def test_unresolved_outcomes_scale_the_step_and_nothing_else(name):
    setting = {"outcome_model": f64([0.3, 0.3, 0.2, 0.2])}
    setting["replacement"] = name != "residual_ht"
    got = moments(
        OBJECTIVES[name],
        CASE,
        TRUTH,
        2,
        channel=Channel.unresolved(0.4, 0.4),
        **setting,
    ).mean
    want = 0.4 * brier_direction(CASE, TRUTH)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-13)


# --- T11: the mended clamp ---


def test_bounded_composite_is_proper_where_the_clamp_lies():
    honest = fixed_point(
        R.label_objective("b", R.bounded_score(R.composite_score(1, 0.5), 0.01), ""),
        [0.001, 0.999],
    )
    assert float(honest.p[0]) == pytest.approx(0.001, rel=1e-6)


@pytest.mark.parametrize(
    ("sigma", "q", "want"),
    [(0.5, 0.7, 0.729), (0.5, 0.9, 0.919), (1.0, 0.7, 0.778), (1.0, 0.9, 0.952)],
)
def test_smoothed_score_is_overconfident(sigma, q, want):
    score = R.composite_score(1.0, spherical=0.5)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    gap = f64(np.sqrt(2) * sigma * nodes)  # both logits are noisy
    weights = f64(weights / weights.sum())

    def slope(z):
        z = f64([z]).requires_grad_(True)
        logits = torch.stack([z + gap, torch.zeros_like(gap)], -1)
        told = f64([q, 1 - q]).expand(len(gap), 2)
        (weights * score(torch.log_softmax(logits, -1), told)).sum().backward()
        return float(z.grad)

    best = 1 / (1 + np.exp(-brentq(slope, 0, 12)))
    assert best == pytest.approx(want, abs=6e-4)


# --- the registry, the harness ---


def test_registry_flags_are_true():
    skip = {"rlcd_snips", "rlvr_snips"}  # couple rows
    q = [0.45, 0.3, 0.25]
    for name, objective in OBJECTIVES.items():
        assert objective.name == name
        assert objective.equation
        if name in skip or objective.baseline == "group_std":
            continue
        if objective.needs == "ranking":  # enumerated in test_rewards
            continue
        setting = {"replacement": name not in ("residual_ht", "exclusive_brier")}
        if name == "rlcd_dr":
            setting["outcome_model"] = f64([0.2, 0.5, 0.3])
        if "_kl_" in name:
            setting["reference_log_probs"] = f64([0.3, 0.4, 0.3]).log()
        end = fixed_point(objective, q, 2, **setting)
        honest = end.kind == "interior" and float((end.p - f64(q)).abs().max()) < 1e-7
        assert honest == objective.calibrates, name
        assert honest <= (end.rate < 0), name


@settings(max_examples=8, deadline=None)
@given(problem(2), st.integers(1, 3), st.booleans())
def test_merged_orders_equal_the_full_enumeration(vectors, group, shared):
    p, q = vectors
    names = ["rlcd", "rlvr_gini", "rlcd_std", "verdict_nll", "one_bit_spherical"]
    names += ["rlcd_loo"] if group > 1 else []
    for name in names:
        merged = field(OBJECTIVES[name], q, group, shared)(f64(p).log()[None])[0]
        full = moments(OBJECTIVES[name], p, q, group, shared).mean
        torch.testing.assert_close(merged, full, rtol=0, atol=1e-12)


@pytest.mark.parametrize("replacement", [True, False])
def test_sampling_agrees_with_enumeration(replacement):
    name = "rlcd_loo" if replacement else "residual_ht"
    generator = torch.Generator().manual_seed(0)
    n, group = 40_000, 3
    p, q = f64(CASE), f64(TRUTH)
    z = p.log().expand(n, -1).clone().requires_grad_(True)
    log_probs = torch.log_softmax(z, -1)
    actions, mu = R.sample_actions(log_probs, group, generator, replacement=replacement)
    y = torch.multinomial(q, n, True, generator=generator)
    told = R.Feedback(actions, (actions == y[:, None]).double(), mu)
    OBJECTIVES[name](log_probs, told).sum().backward()
    want = moments(OBJECTIVES[name], p, q, group, replacement=replacement)
    error = want.covariance.diagonal().sqrt() / n**0.5
    assert ((-z.grad.mean(0) - want.mean).abs() < 4.5 * error).all()
    assert float(z.grad.var(0).sum()) == pytest.approx(want.trace, rel=0.03)


def test_bad_input_is_refused():
    rlcd = OBJECTIVES["rlcd"]
    with pytest.raises(ValueError, match="one length"):
        moments(rlcd, [0.5, 0.5], [0.2, 0.3, 0.5])
    with pytest.raises(ValueError, match="q must be a distribution"):
        moments(rlcd, [0.5, 0.5], [0.5, 0.6])
    with pytest.raises(ValueError, match="p must be a distribution"):
        moments(rlcd, [0.5, float("nan")], [0.5, 0.5])
    with pytest.raises(ValueError, match="group_size 0"):
        moments(rlcd, [0.5, 0.5], [0.5, 0.5], 0)
    with pytest.raises(ValueError, match="shared_outcome"):
        moments(OBJECTIVES["nll"], [0.5, 0.5], [0.5, 0.5], 2, False)
    with pytest.raises(ValueError, match="normalises over the batch"):
        moments(OBJECTIVES["rlcd_snips"], [0.5, 0.5], [0.5, 0.5])
    with pytest.raises(ValueError, match="behaviour must be a distribution"):
        moments(OBJECTIVES["rlcd_ips"], [0.5, 0.5], [0.5, 0.5], behaviour=[0.9, 0.9])
    with pytest.raises(ValueError, match="at most 2"):
        moments(OBJECTIVES["residual_ht"], [0.5, 0.5], [0.5, 0.5], 3, replacement=False)
    # A field is as strict; it took every label of the first for option 0.
    for name, q, setting, reason in (
        ("nll", [0.3, 0.7], {"shared_outcome": False}, "shared_outcome"),
        ("rlcd", [0.7, 0.7], {}, "q must be a distribution"),
        ("rlcd", [0.3, 0.7], {"group_size": 0}, "group_size 0"),
    ):
        with pytest.raises(ValueError, match=reason):
            field(OBJECTIVES[name], q, **setting)
    with pytest.raises(ValueError, match="sum to 1"):
        Channel((0.5, 0.4, 0.0), (1.0, 0.0, 0.0))
    with pytest.raises(RuntimeError, match="no fixed point"):
        settle(
            lambda z: torch.tensor([[1.0, 0.0]]).double().expand_as(z),
            [0.5, 0.5],
            steps=3,
        )
