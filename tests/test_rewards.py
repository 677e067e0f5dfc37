"""Rewards, baselines, losses and sampling: hand values, identities, bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcd_core import rewards as R
from rlcd_core.rewards import MASKED, OBJECTIVES, Feedback, sample_actions

NAN = float("nan")


def f64(values) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def batch(
    seed: int,
    rows: int = 6,
    size: int = 5,
    group: int = 3,
    dtype: torch.dtype = torch.float64,
    masked: bool = True,
    replacement: bool = True,
) -> tuple[Tensor, Feedback]:
    """Random logits with masked options, and feedback with everything in it."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    if masked:
        z[0, size - 1] = z[1, 0] = MASKED
    z = z.to(dtype)
    log_probs = torch.log_softmax(z, -1)
    actions, mu = sample_actions(log_probs, group, generator, replacement=replacement)
    live = (log_probs > MASKED / 2).to(dtype)
    labels = torch.multinomial(live, 1, generator=generator)[:, 0]
    told = Feedback(
        actions,
        (actions == labels[:, None]).to(dtype),
        mu,
        labels,
        reference_log_probs=torch.log_softmax(0.5 * z, -1),
        outcome_model=live / live.sum(-1, keepdim=True),
        rankings=torch.multinomial(live, 2, generator=generator),
    )
    return z, told


def ascent(loss, z: Tensor, told: Feedback) -> Tensor:
    """Direction (B, K) in logit space: minus the gradient of the loss."""
    z = z.clone().requires_grad_(True)
    loss(torch.log_softmax(z, -1), told).sum().backward()
    return -z.grad


def change(told: Feedback, **fields) -> Feedback:
    return Feedback(**(told.__dict__ | fields))


def different(name: str) -> bool:
    """Whether an objective wants different actions in a group."""
    return name in ("residual_ht", "exclusive_brier")


def case_for(name: str, seed: int, **options) -> tuple[Tensor, Feedback]:
    if different(name):
        options["replacement"] = False
    if name == "exclusive_brier":  # one option without a verdict
        options |= {"size": 4, "group": 3}
    return batch(seed, **options)


# --- Feedback and its check ---


def test_feedback_counts_unresolved():
    told = Feedback(torch.tensor([[0, 1], [1, 1]]), torch.tensor([[1, NAN], [NAN, 0]]))
    assert told.unresolved == 2
    assert told.resolved.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"actions": torch.tensor([0, 1])}, "shape"),
        ({"actions": torch.tensor([[0.0, 1.0]])}, "int64"),
        ({"outcomes": torch.tensor([[1, 0]])}, "float"),
        ({"outcomes": torch.zeros(2, 2)}, "outcomes must have shape"),
        ({"propensities": torch.ones(1, 3)}, "propensities must have shape"),
        ({"labels": torch.tensor([0, 1])}, "labels must have shape"),
    ],
)
def test_feedback_refuses_shapes(fields, message):
    good = {"actions": torch.tensor([[0, 1]]), "outcomes": torch.zeros(1, 2)}
    with pytest.raises(ValueError, match=message):
        Feedback(**(good | fields))


def test_objectives_refuse_bad_values():
    log_probs = torch.tensor([[0.5, 0.5, 0.0]]).log().clamp(min=MASKED)
    good = Feedback(torch.tensor([[0, 1]]), torch.tensor([[1.0, 0.0]]))
    rlcd = OBJECTIVES["rlcd"]
    assert rlcd(log_probs, good).shape == (1,)
    for fields, message in (
        ({"actions": torch.tensor([[0, 3]])}, "action outside 0..2"),
        ({"actions": torch.tensor([[-1, 0]])}, "action outside 0..2"),
        ({"actions": torch.tensor([[0, 2]])}, "action on a masked option"),
        ({"labels": torch.tensor([2])}, "label on a masked option"),
        ({"labels": torch.tensor([5])}, "label outside"),
        ({"outcomes": torch.tensor([[0.5, 0.0]])}, "outcomes must be 0, 1 or NaN"),
        ({"propensities": torch.tensor([[0.0, 0.5]])}, "propensities"),
        ({"propensities": torch.tensor([[1.2, 0.5]])}, "propensities"),
        ({"propensities": torch.tensor([[NAN, 0.5]])}, "propensities"),
        ({"soft_labels": torch.tensor([[0.5, 0.6, 0.0]])}, "soft_labels"),
        ({"soft_labels": torch.tensor([[0.5, 0.3, 0.2]])}, "soft_labels"),
        ({"soft_labels": torch.tensor([[0.5, 0.5]])}, "soft_labels"),
        ({"soft_labels": torch.tensor([[NAN, 1.0, 0.0]])}, "soft_labels"),
        # One row or one column would be spread over the batch without a word.
        ({"reference_log_probs": log_probs[0]}, "reference_log_probs"),
        ({"reference_log_probs": log_probs * NAN}, "reference_log_probs"),
        ({"outcome_model": torch.tensor([[0.5]])}, "outcome_model"),
    ):
        with pytest.raises(ValueError, match=message):
            rlcd(log_probs, change(good, **fields))
    with pytest.raises(ValueError, match="all options masked"):
        rlcd(torch.full((1, 3), MASKED), good)
    with pytest.raises(ValueError, match="NaN"):
        rlcd(torch.full((1, 3), NAN), good)
    with pytest.raises(ValueError, match="mask options with MASKED"):
        rlcd(torch.tensor([[0.5, 0.5, 0.0]]).log(), good)
    for logits in (torch.zeros(1, 3), torch.tensor([[1.0, 2.0, 3.0]])):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            with pytest.raises(ValueError, match="pass log_softmax"):
                rlcd(logits.to(dtype), good)
            assert rlcd(logits.to(dtype).log_softmax(-1), good).shape == (1,)
    with pytest.raises(ValueError, match="one row"):
        rlcd(log_probs.expand(2, -1), good)
    for name, message in (
        ("rlcd_ips", "needs feedback.propensities"),
        ("residual_ht", "needs feedback.propensities"),
        ("rlvr_kl_0.1", "reference_log_probs"),
        ("nll", "labels or soft_labels"),
        ("rlcd_ppo", "PPO clip needs|needs feedback.propensities"),
    ):
        with pytest.raises(ValueError, match=message):
            OBJECTIVES[name](log_probs, good)
    weighed = change(good, propensities=torch.tensor([[0.5, 0.5]]))
    with pytest.raises(ValueError, match="outcome_model"):
        OBJECTIVES["rlcd_dr"](log_probs, weighed)
    twice = change(weighed, actions=torch.tensor([[0, 0]]))
    with pytest.raises(ValueError, match="without repetition"):
        OBJECTIVES["residual_ht"](log_probs, twice)


# --- every objective: masks, precision, unresolved outcomes ---


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_on_masked_batches(name):
    z, told = case_for(name, 0)
    wide = ascent(OBJECTIVES[name], z, told)
    assert torch.isfinite(wide).all()
    assert (wide[z == MASKED] == 0).all()
    # A shift of the logits moves nothing, so no direction has a component along it.
    torch.testing.assert_close(wide.sum(-1), f64([0.0] * len(z)), rtol=0, atol=1e-12)
    z32, told32 = case_for(name, 0, dtype=torch.float32)
    assert (told32.actions == told.actions).all()
    narrow = ascent(OBJECTIVES[name], z32, told32)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-4, atol=1e-4)
    loss = OBJECTIVES[name](torch.log_softmax(z, -1), told)
    assert loss.shape == (len(z),)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_masking_equals_leaving_out(name):
    z, told = case_for(name, 1, masked=False)
    full = ascent(OBJECTIVES[name], z, told)
    padded = torch.cat([z, torch.full_like(z[:, :2], MASKED)], -1)
    wider = change(
        told,
        reference_log_probs=torch.cat(
            [told.reference_log_probs, torch.full_like(z[:, :2], MASKED)], -1
        ),
        outcome_model=torch.nn.functional.pad(told.outcome_model, (0, 2)),
    )
    got = ascent(OBJECTIVES[name], padded, wider)
    torch.testing.assert_close(got[:, : z.shape[1]], full, rtol=0, atol=1e-12)


OUTCOME = [
    name
    for name, objective in OBJECTIVES.items()
    if objective.needs == "outcome" and "_kl" not in name and "shannon" not in name
]


@pytest.mark.parametrize("name", OUTCOME)
def test_unresolved_rows_contribute_nothing(name):
    z, told = case_for(name, 2)
    silent = change(told, outcomes=told.outcomes.clone())
    silent.outcomes[2] = NAN
    moved = ascent(OBJECTIVES[name], z, silent)
    assert (moved[2] == 0).all()
    if not OBJECTIVES[name].couples_rows:
        others = torch.arange(len(z)) != 2
        before = ascent(OBJECTIVES[name], z, told)
        torch.testing.assert_close(moved[others], before[others], rtol=0, atol=0)


@pytest.mark.parametrize("name", [n for n in OUTCOME if not different(n)])
def test_unresolved_actions_equal_a_smaller_group(name):
    z, told = batch(3, group=4)
    holed = change(told, outcomes=told.outcomes.clone())
    holed.outcomes[:, 3] = NAN
    fewer = change(
        told,
        actions=told.actions[:, :3],
        outcomes=told.outcomes[:, :3],
        propensities=told.propensities[:, :3],
    )
    got = ascent(OBJECTIVES[name], z, holed)
    want = ascent(OBJECTIVES[name], z, fewer)
    torch.testing.assert_close(got, 0.75 * want, rtol=0, atol=1e-12)


def test_label_objectives_need_no_action():
    z, told = batch(4)
    empty = torch.empty(len(z), 0)
    bare = Feedback(empty.long(), empty, labels=told.labels)
    want = torch.nn.functional.cross_entropy(z, told.labels, reduction="none")
    got = OBJECTIVES["nll"](torch.log_softmax(z, -1), bare)
    torch.testing.assert_close(got, want)
    soft = change(bare, soft_labels=told.outcome_model)
    got = OBJECTIVES["nll"](torch.log_softmax(z, -1), soft)
    want = torch.nn.functional.cross_entropy(z, told.outcome_model, reduction="none")
    torch.testing.assert_close(got, want)


# --- the sample-by-sample identities of T2 and T4 ---


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_rlcd_is_a_regression_and_a_poisson_likelihood(seed, group):
    z, told = batch(seed, group=group)
    rlcd = ascent(OBJECTIVES["rlcd"], z, told)
    for name in ("rlcd_regression", "rlcd_poisson"):
        got = ascent(OBJECTIVES[name], z, told)
        torch.testing.assert_close(got, rlcd, rtol=0, atol=1e-14)
    # By hand: (c - p_a)(e_a - p), averaged.
    p = torch.softmax(z, -1)
    hand = torch.zeros_like(p)
    for i, g in itertools.product(range(len(z)), range(group)):
        a = told.actions[i, g]
        unit = torch.nn.functional.one_hot(a, p.shape[1])
        hand[i] += (told.outcomes[i, g] - p[i, a]) * (unit - p[i]) / group
    torch.testing.assert_close(rlcd, hand, rtol=0, atol=1e-14)


def test_the_regression_with_a_baseline_is_another_one():
    z, told = batch(5)
    shifted = R.lambda_mix("b", 1.0, constant=0.2)
    gap = ascent(shifted, z, told) - ascent(OBJECTIVES["rlcd_regression"], z, told)
    assert float(gap.abs().max()) > 1e-2


def test_ppo_clip_is_a_no_op_at_the_first_update_and_bites_at_the_second():
    z, told = batch(6)
    for kind in ("rlcd", "rlvr"):
        plain = ascent(OBJECTIVES[kind], z, told)
        clipped = ascent(OBJECTIVES[f"{kind}_ppo"], z, told)
        torch.testing.assert_close(clipped, plain, rtol=0, atol=1e-14)
    sure = Feedback(torch.tensor([[0]]), torch.ones(1, 1), f64([[0.4]]))
    z = f64([[0.7, 0.3]]).log()  # rho = 1.75 is over the clip, and the reward positive
    assert (ascent(OBJECTIVES["rlvr_ppo"], z, sure) == 0).all()
    wrong = change(sure, outcomes=torch.zeros(1, 1))
    assert (ascent(OBJECTIVES["rlcd_ppo"], z, wrong) != 0).all()


def test_self_normalised_weights():
    z, told = batch(7)
    log_probs = torch.log_softmax(z, -1)
    mu = f64(np.random.default_rng(0).uniform(0.05, 0.4, told.actions.shape))
    a = change(told, propensities=mu)
    weights = R.importance_weights(log_probs, a, "self_normalised")
    assert float(weights.mean()) == pytest.approx(1, abs=1e-12)
    b = change(told, propensities=mu / 2)  # a constant factor cancels
    same = ascent(OBJECTIVES["rlcd_snips"], z, b)
    torch.testing.assert_close(same, ascent(OBJECTIVES["rlcd_snips"], z, a))
    twice = ascent(OBJECTIVES["rlcd_ips"], z, b)
    torch.testing.assert_close(twice, 2 * ascent(OBJECTIVES["rlcd_ips"], z, a))


def test_doubly_robust_with_the_policy_as_model_is_weighted_rlcd():
    z, told = batch(8)
    own = change(
        told, outcome_model=torch.softmax(z, -1), propensities=told.propensities / 2
    )
    torch.testing.assert_close(
        ascent(OBJECTIVES["rlcd_dr"], z, own), ascent(OBJECTIVES["rlcd_ips"], z, own)
    )


# --- baselines ---


def test_leave_one_out_hand_values_and_unresolved():
    r = f64([[0.1, -0.9, 0.7, 0.1]])
    got = R.leave_one_out(r, r == r)
    want = f64([[0.4 / 3, -1.2, 2.8 / 3, 0.4 / 3]])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-15)
    resolved = torch.tensor([[True, False, True, False]])
    got = R.leave_one_out(r, resolved)[resolved]
    torch.testing.assert_close(got, f64([-0.6, 0.6]), rtol=0, atol=1e-15)
    lone = torch.tensor([[False, False, True, False]])
    assert R.leave_one_out(r, lone)[lone].tolist() == [0.7]
    with pytest.raises(ValueError, match="at least two"):
        R.leave_one_out(r[:, :1], r[:, :1] == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_std_of_one_distinct_reward_is_exactly_zero(dtype):
    for value in (0.0, 1.0, 0.1, -0.9, 1 / 3, 1e4):
        r = torch.full((1, 5), value, dtype=dtype)
        r[0, 2] = torch.nextafter(r[0, 2], torch.tensor(torch.inf, dtype=dtype))
        assert (R.group_std(r, r == r) == 0).all()
    r = torch.tensor([[0.1, -0.9, 0.7, 0.1]], dtype=dtype)
    want = (r - r.mean()) / r.std(correction=0)
    torch.testing.assert_close(R.group_std(r, r == r), want)
    want = (r - r.mean()) / (r.std(correction=0) + 0.1)
    torch.testing.assert_close(R.group_std(r, r == r, 0.1), want)
    silent = torch.zeros(1, 4, dtype=torch.bool)
    assert (R.group_std(r, silent) == 0).all()


def test_std_of_a_flat_group_moves_nothing():
    z = torch.zeros(1, 3)
    told = Feedback(torch.tensor([[0, 1, 2, 2]]), torch.zeros(1, 4))
    assert (ascent(OBJECTIVES["rlcd_std"], z, told) == 0).all()


# --- verdict losses at the edge ---


def test_verdict_nll_stays_finite_where_p_rounds_to_one():
    z = torch.tensor([[40.0, 0.0, -3.0]])
    assert float(torch.softmax(z, -1)[0, 0]) == 1
    wrong = Feedback(torch.tensor([[0]]), torch.zeros(1, 1))
    loss = OBJECTIVES["verdict_nll"](torch.log_softmax(z, -1), wrong)
    assert float(loss) == pytest.approx(40 - math.log1p(math.exp(-3)), rel=1e-6)
    move = ascent(OBJECTIVES["verdict_nll"], z, wrong)
    torch.testing.assert_close(
        move, torch.tensor([[-1.0, 0.9526, 0.0474]]), rtol=0, atol=1e-4
    )


def test_verdict_nll_is_binary_cross_entropy():
    z, told = batch(9)
    stated = told.taken(torch.softmax(z, -1))
    want = torch.nn.functional.binary_cross_entropy(
        stated, told.outcomes, reduction="none"
    ).mean(-1)
    got = OBJECTIVES["verdict_nll"](torch.log_softmax(z, -1), told)
    torch.testing.assert_close(got, want)


# --- scores ---


def test_scores_by_hand_and_by_peers():
    p = f64([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]])
    told = f64([[0, 1, 0], [0, 0, 1]])
    log_p = p.log()
    torch.testing.assert_close(
        R.brier_score(log_p, told), -f64([0.04 + 0.25 + 0.09, 0.49 + 0.01 + 0.64]) / 2
    )
    torch.testing.assert_close(R.log_score(log_p, told), f64([0.5, 0.2]).log())
    norms = f64([0.38, 0.54]).sqrt()
    torch.testing.assert_close(R.spherical_score(log_p, told), f64([0.5, 0.2]) / norms)
    want = -scoringrules.rps_score(np.array([2, 3]), p.numpy()) / 2
    torch.testing.assert_close(R.rps_score(log_p, told), f64(want))
    torch.testing.assert_close(
        R.power_score(2.0)(log_p, told), R.brier_score(log_p, told) + 0.5
    )
    got = R.composite_score(2.0, 0.5, 0.3, 0.1)(log_p, told)
    want = 2 * R.log_score(log_p, told) + 0.5 * R.spherical_score(log_p, told)
    want = want + 0.6 * R.brier_score(log_p, told) + 0.1 * R.rps_score(log_p, told)
    torch.testing.assert_close(got, want)
    masked = torch.nn.functional.pad(log_p, (0, 2), value=MASKED)
    padded = torch.nn.functional.pad(told, (0, 2))
    for score in (R.rps_score, R.spherical_score, R.bounded_score(R.log_score, 0.1)):
        torch.testing.assert_close(score(masked, padded), score(log_p, told))
    got = R.bounded_score(R.log_score, 0.1)(log_p, told)  # in full float64
    want = ((0.9 * told + 0.1 / 3) * (0.9 * p + 0.1 / 3).log()).sum(-1)
    torch.testing.assert_close(got, want, rtol=1e-15, atol=0)
    with pytest.raises(ValueError, match="eps"):
        R.bounded_score(R.log_score, 0.0)


def test_bounded_score_values_honesty_above_the_lie():
    """Target (1e-5, .99999): a floor at -9.21 scores the lie (0, 1) higher."""
    told = f64([[1e-5, 0.99999]])
    honest, lie = told.log(), f64([[0.0, 1.0]]).log().clamp(min=MASKED)
    sure = f64([[1e-9, 1 - 1e-9]]).log()

    def floored(log_p, target):
        return R.composite_score(1.0, 0.5)(log_p.clamp(min=-9.21), target)

    assert float(floored(lie, told)) == pytest.approx(0.4999029, abs=1e-7)
    assert float(floored(honest, told)) == pytest.approx(0.4998929, abs=1e-7)
    mended = R.bounded_score(R.composite_score(1.0, 0.5), 0.01)
    assert float(mended(honest, told)) > float(mended(sure, told))
    zero = R.bounded_score(R.log_score, 0.01)(sure, f64([[1.0, 0.0]]))
    assert float(zero) > math.log(0.005)


# --- exclusive options ---


def test_revealed_labels():
    log_probs = f64([[0.4, 0.3, 0.3]] * 4).log()
    actions = torch.tensor([[0, 1], [0, 1], [2, 1], [0, 2]])
    outcomes = torch.tensor([[0, 0], [0, 1], [1, 0], [NAN, 0]])
    got = R.revealed_labels(log_probs, Feedback(actions, outcomes))
    assert got.tolist() == [2, 1, 2, -1]
    with pytest.raises(ValueError, match="all options but one"):
        R.revealed_labels(log_probs, Feedback(actions[:, :1], outcomes[:, :1]))
    with pytest.raises(ValueError, match="do not exclude"):
        R.revealed_labels(log_probs, Feedback(actions, torch.ones(4, 2)))


# --- sampling ---


def brute_inclusion(p: list[float], group: int) -> Tensor:
    pi = torch.zeros(len(p), dtype=torch.float64)
    for order in itertools.permutations(range(len(p)), group):
        chance, left = 1.0, set(range(len(p)))
        for a in order:
            chance *= p[a] / math.fsum(p[j] for j in left)
            left.remove(a)
        pi[list(order)] += chance
    return pi


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 10**6), st.floats(0, 12))
def test_inclusion_probabilities_equal_enumeration(size, group, seed, spread):
    z = spread * np.random.default_rng(seed).standard_normal(size)
    log_mu = torch.log_softmax(f64(z), -1)
    group = min(group, size)
    want = brute_inclusion(log_mu.exp().tolist(), group)
    padded = torch.nn.functional.pad(log_mu[None], (0, 1), value=MASKED)
    got = R.inclusion_probabilities(padded, group)[0]
    torch.testing.assert_close(got[:size], want, rtol=1e-11, atol=0)
    assert got[size] == 0
    assert float(got.sum()) == pytest.approx(group, abs=1e-11)


def test_inclusion_by_closed_form_and_by_race_agree():
    log_mu = torch.log_softmax(3 * torch.randn(50, 7, dtype=torch.float64), -1)
    closed = R.inclusion_probabilities(log_mu, 2)
    torch.testing.assert_close(R._race(log_mu, 2), closed, rtol=1e-11, atol=0)
    with pytest.raises(ValueError, match="cannot draw 3"):
        R.inclusion_probabilities(f64([[0.5, 0.5, 0.0]]).log().clamp(min=MASKED), 3)


def test_inclusion_at_a_near_certain_policy():
    log_mu = torch.log_softmax(torch.tensor([[60.0, 0.0, 0.0, -5.0]]), -1)
    for group in (2, 3):
        pi = R.inclusion_probabilities(log_mu, group)[0]
        rest = brute_inclusion(torch.softmax(f64([0, 0, -5.0]), 0).tolist(), group - 1)
        torch.testing.assert_close(pi, torch.cat([f64([1.0]), rest]), rtol=1e-7, atol=0)


def test_sampler_follows_its_stated_propensities():
    log_probs = f64([[0.6, 0.3, 0.1, 0.0]]).log().clamp(min=MASKED)
    n = 40_000
    wide = log_probs.expand(n, -1)
    for options in (
        {},
        {"epsilon": 0.3},
        {"temperature": 2.0},
        {"epsilon": 1.0, "replacement": False},
        {"temperature": 3.0, "epsilon": 0.1, "replacement": False},
    ):
        generator = torch.Generator().manual_seed(1)
        actions, mu = sample_actions(wide, 2, generator, **options)
        tau, eps = options.get("temperature", 1.0), options.get("epsilon", 0.0)
        base = f64([0.6, 0.3, 0.1]) ** (1 / tau)
        want = (1 - eps) * base / base.sum() + eps / 3
        share = torch.bincount(actions.reshape(-1), minlength=4) / (2 * n)
        if not options.get("replacement", True):
            assert (actions[:, 0] != actions[:, 1]).all()
            want = R.inclusion_probabilities(want.log()[None], 2)[0] / 2
            mu = mu / 2
        assert share[3] == 0
        error = (want * (1 - want) / (2 * n)).sqrt()
        assert ((share[:3] - want).abs() < 4.5 * error).all()
        torch.testing.assert_close(mu, want[actions], rtol=1e-12, atol=0)


def test_sampler_is_fixed_by_its_generator_and_refuses_nonsense():
    log_probs = torch.log_softmax(torch.randn(5, 4), -1)

    def draw(seed):
        return sample_actions(log_probs, 3, torch.Generator().manual_seed(seed))[0]

    assert (draw(0) == draw(0)).all()
    assert (draw(0) != draw(1)).any()
    for options in ({"epsilon": 1.1}, {"temperature": 0.0}, {"epsilon": -0.1}):
        with pytest.raises(ValueError, match="need group_size"):
            sample_actions(log_probs, 1, **options)
    with pytest.raises(ValueError, match="need group_size"):
        sample_actions(log_probs, 0)
    with pytest.raises(ValueError, match="cannot draw 5"):
        sample_actions(log_probs, 5, replacement=False)
    with pytest.raises(ValueError, match="every option masked"):
        sample_actions(torch.full((1, 3), MASKED), 1)


# --- preferences (T12) ---


def test_bradley_terry_is_plackett_luce_at_two_options():
    u = torch.randn(6, 2, dtype=torch.float64)
    winners = torch.tensor([0, 1, 0, 1, 0, 0])
    pair = R.bradley_terry_loss(u, winners, 1 - winners)
    ranked = R.plackett_luce_loss(u, torch.stack([winners, 1 - winners], 1))
    torch.testing.assert_close(pair, ranked)
    torch.testing.assert_close(
        pair, torch.nn.functional.cross_entropy(u, winners, reduction="none")
    )
    with pytest.raises(ValueError, match="itself"):
        R.bradley_terry_loss(u, winners, winners)


def test_plackett_luce_is_a_distribution_over_rankings():
    u = torch.randn(1, 4, dtype=torch.float64)
    orders = torch.tensor(list(itertools.permutations(range(4))))
    chance = (-R.plackett_luce_loss(u.expand(24, -1), orders)).exp()
    assert float(chance.sum()) == pytest.approx(1, abs=1e-12)
    # A partial ranking has the chance of all its completions; -1 pads it.
    partial = torch.tensor([[2, 0, -1]])
    same = (orders[:, 0] == 2) & (orders[:, 1] == 0)
    got = float((-R.plackett_luce_loss(u, partial)).exp())
    assert got == pytest.approx(float(chance[same].sum()), rel=1e-12)
    assert got == pytest.approx(
        float((-R.plackett_luce_loss(u, partial[:, :2])).exp()), rel=1e-12
    )
    # The first stage is the Luce choice; a pair of the ranking is Bradley-Terry.
    top = R.plackett_luce_loss(u, torch.tensor([[3]]))
    torch.testing.assert_close(top, -torch.log_softmax(u, -1)[:, 3])
    ahead = [order.tolist().index(1) < order.tolist().index(3) for order in orders]
    pair = R.bradley_terry_loss(u, torch.tensor([1]), torch.tensor([3]))
    assert float(chance[ahead].sum()) == pytest.approx(float((-pair).exp()), rel=1e-12)


@pytest.mark.parametrize("name", ["bradley_terry", "plackett_luce"])
def test_ranking_objectives_have_the_gradient_of_finite_differences(name):
    z, told = batch(12)
    step, moved = 1e-6, ascent(OBJECTIVES[name], z, told)
    for k in range(z.shape[1]):
        up, down = z.clone(), z.clone()
        up[:, k] += step
        down[:, k] -= step
        losses = [OBJECTIVES[name](torch.log_softmax(v, -1), told) for v in (up, down)]
        got = (losses[1] - losses[0]) / (2 * step)
        live = z[:, k] > MASKED / 2
        torch.testing.assert_close(moved[live, k], got[live], rtol=0, atol=1e-8)
    if name == "bradley_terry":  # options outside the pair are left alone
        outside = torch.ones_like(z, dtype=torch.bool)
        outside = outside.scatter(1, told.rankings, False)
        assert moved[outside].abs().max() < 1e-12


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_drawn_rankings_are_stationary_at_the_truth_alone(length):
    # thm-prefs-drawn by enumeration: rankings of Plackett-Luce with weights q.
    q = f64([0.4, 0.3, 0.2, 0.1])
    orders = torch.tensor(list(itertools.permutations(range(4), length)))
    none = torch.zeros(len(orders), 0)
    told = Feedback(none.long(), none, rankings=orders)
    chance = (-R.plackett_luce_loss(q.log().expand(len(orders), -1), orders)).exp()
    assert float(chance.sum()) == pytest.approx(1, abs=1e-12)

    def mean_direction(z):
        wide = z.expand(len(orders), -1)
        return chance @ ascent(OBJECTIVES["plackett_luce"], wide, told)

    assert mean_direction(q.log()).abs().max() < 1e-12
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):  # convex: elsewhere it points towards the truth
        z = torch.randn(4, generator=generator, dtype=torch.float64)
        gap = q.log() - z
        assert float(mean_direction(z) @ (gap - gap.mean())) > 1e-3


def test_one_order_has_no_best_scale():
    # thm-prefs-drawn: the same order again and again; the loss falls for ever.
    z, order = f64([[0.3, 0.1, -0.4]]), torch.tensor([[0, 1, 2]])
    losses = [float(R.plackett_luce_loss(t * z, order)) for t in (1, 2, 8, 64, 512)]
    assert all(a > b for a, b in itertools.pairwise(losses))
    assert losses[-1] < 1e-12


def test_ranking_objectives_say_what_is_missing():
    z, told = batch(13)
    log_probs = torch.log_softmax(z, -1)
    for name in ("bradley_terry", "plackett_luce"):
        with pytest.raises(ValueError, match="needs rankings"):
            OBJECTIVES[name](log_probs, change(told, rankings=None))
    with pytest.raises(ValueError, match="two live options"):
        OBJECTIVES["bradley_terry"](
            log_probs, change(told, rankings=told.rankings[:, :1])
        )
    masked = told.rankings.clone()
    masked[0] = torch.tensor([0, z.shape[1] - 1])
    with pytest.raises(ValueError, match="two live options"):
        OBJECTIVES["bradley_terry"](log_probs, change(told, rankings=masked))


def test_plackett_luce_ignores_irrelevant_alternatives_and_masks():
    u = f64([[0.3, -0.2, 1.0]])
    hidden = u.clone()
    hidden[0, 1] = MASKED

    def odds(utilities):
        losses = [R.plackett_luce_loss(utilities, torch.tensor([[k]])) for k in (0, 2)]
        return float(losses[0] - losses[1])

    assert odds(u) == pytest.approx(odds(hidden), rel=1e-12)
    for ranking, message in (
        ([[0, 0]], "twice"),
        ([[1, 0]], "masked"),
        ([[3, 0]], "out of range"),
        ([[2, -1, 0]], "gap"),
    ):
        with pytest.raises(ValueError, match=message):
            R.plackett_luce_loss(hidden, torch.tensor(ranking))


def test_nota_violates_irrelevant_alternatives():
    q = {"A": 0.5, "B": 0.3, "C": 0.2}
    odds = [
        (1 - sum(q[k] for k in shown)) / q["A"] for shown in (("A", "B"), ("A", "C"))
    ]
    assert odds == pytest.approx([0.4, 0.6])


# --- distribution as action, stated confidence, time ---


def test_logit_noise_estimates_the_smoothed_gradient():
    z, told = batch(11, rows=1, size=3, masked=False)
    score = R.composite_score(1.0, spherical=0.5)
    target = f64([[0.2, 0.5, 0.3]])
    generator = torch.Generator().manual_seed(0)
    n, sigma = 40_000, 0.3
    many = z.expand(n, -1).clone().requires_grad_(True)
    wide = target.expand(n, -1)
    R.logit_noise_loss(many, wide, score, sigma, 4, generator).sum().backward()
    got, error = -many.grad.mean(0), many.grad.std(0) / n**0.5
    noise = sigma * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    base = z.clone().requires_grad_(True)
    score(torch.log_softmax(base + noise, -1), wide).mean().backward()
    assert ((got - base.grad[0]).abs() < 5 * error).all()
    assert float(many.grad.var(0).sum()) > 0.05  # where one backward pass has none


def expected(kind: str, v, s, weight: float = 1.0) -> Tensor:
    v = f64(v)
    hit = R.stated_reward(v, torch.ones_like(v), kind, weight)
    return s * hit + (1 - s) * R.stated_reward(v, torch.zeros_like(v), kind, weight)


def test_stated_confidence_and_the_trap():
    s = f64([0.0, 0.3, 0.5, 1.0])
    torch.testing.assert_close(expected("brier", s, s), -s * (1 - s))
    torch.testing.assert_close(expected("rlcr", s, s), s**2)
    torch.testing.assert_close(expected("binary", s, s), s)
    assert float(expected("brier", 0.0, 0.0)) == float(expected("brier", 1.0, 1.0))
    # Honesty is best under every kind that looks at v.
    grid = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    for kind in ("brier", "rlcr", "log"):
        for chance in (0.2, 0.7):
            best = grid[expected(kind, grid, chance).argmax()]
            assert float(best) == pytest.approx(chance, abs=1e-9)
    # Weight w: the slope in s is 1 - w + 2 w v, negative iff v < (w - 1)/(2 w).
    for w in (0.5, 1.0, 2.0):
        slope = expected("rlcr", grid, 1.0, w) - expected("rlcr", grid, 0.0, w)
        torch.testing.assert_close(slope, 1 - w + 2 * w * grid)
        assert bool((slope < 0).any()) == (w > 1)
    # Log term: slope 1 + w logit v, negative iff v < sigma(-1/w).
    for w in (0.5, 1.0, 2.0):
        slope = expected("log", grid, 1.0, w) - expected("log", grid, 0.0, w)
        torch.testing.assert_close(slope, 1 + w * torch.logit(grid))
        assert ((slope < 0) == (grid < 1 / (1 + math.exp(1 / w)))).all()
    assert 1 / (1 + math.e) == pytest.approx(0.2689, abs=5e-5)
    honest = torch.linspace(0.0001, 0.9999, 9999, dtype=torch.float64)
    pays = expected("log", honest, honest)
    assert float(R.stated_reward(f64(0.0), f64(0.0), "log")) == 0
    assert float(honest[pays < 0].max()) == pytest.approx(0.6484, abs=1.5e-4)
    assert float(expected("log", 0.0, 0.5)) == -math.inf
    with pytest.raises(ValueError, match="unknown kind"):
        R.stated_reward(f64(0.5), f64(1.0), "other")


@pytest.mark.parametrize(
    ("lam", "y", "want"),
    [
        (0.0, 0, (0.4, 0.9, 0)),
        (0.5, 0, (0.425, 0.45, 0)),
        (1.0, 0, (0, 0, 0)),
        (0.5, 1, (0.675, 0.95, 1)),
    ],
)
def test_td_lambda(lam, y, want):
    p = f64([[0.1, 0.4, 0.9]]).requires_grad_(True)
    got = R.td_lambda_targets(p, torch.tensor([y]), lam)
    torch.testing.assert_close(got, f64([want]), rtol=0, atol=1e-15)
    assert not got.requires_grad


def test_arguments_out_of_range_are_named():
    for call, reason in (
        (lambda: R.power_score(1.0), "alpha must be above 1"),
        (lambda: R.composite_score(1.0, spherical=-1.0), "weights"),
        (lambda: R.composite_score(0.0), "weights"),
        (lambda: R.stated_reward(f64(1.5), f64(1.0)), r"outside \[0, 1\]"),
        (lambda: R.stated_reward(f64(NAN), f64(1.0)), r"outside \[0, 1\]"),
        (lambda: R.td_lambda_targets(f64([0.1, 0.4]), f64(1.0), 3.0), "lam"),
        (
            lambda: R.plackett_luce_loss(f64([[0.0, 0.0]]), torch.tensor([[0, -5]])),
            "out of range",
        ),
    ):
        with pytest.raises(ValueError, match=reason):
            call()
