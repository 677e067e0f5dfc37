"""Environments: outcomes only, exact frequencies, streams, save and restore."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from rlcd_core.env import (
    Flip,
    LabelEnv,
    LabelledEnv,
    LoggedEnv,
    RaterEnv,
    Redraw,
    Unresolved,
    record_log,
    spawn_rng,
)

COUNTS = np.array([[1, 2, 7], [0, 10, 0]])
ROWS = np.zeros(40_000, dtype=int)


def every_action(n: int) -> np.ndarray:
    return np.tile([0, 1, 2], (n, 1))


def test_outcome_frequencies_are_the_raters_shares() -> None:
    seen = RaterEnv(COUNTS, seed=1).outcomes(ROWS, every_action(len(ROWS)))
    # Five standard errors of a mean of 40,000 bits.
    assert np.allclose(seen.mean(axis=0), [0.1, 0.2, 0.7], atol=5 * 0.5 / 200)


def test_shared_outcome_judges_a_group_by_one_verdict() -> None:
    shared = RaterEnv(COUNTS, seed=1, shared_outcome=True)
    assert np.all(shared.outcomes(ROWS, every_action(len(ROWS))).sum(axis=1) == 1)
    own = RaterEnv(COUNTS, seed=1).outcomes(ROWS, every_action(len(ROWS)))
    assert set(own.sum(axis=1)) == {0.0, 1.0, 2.0, 3.0}
    # Independent draws: the chance that all three actions are right is the product.
    assert abs((own.sum(axis=1) == 3).mean() - 0.1 * 0.2 * 0.7) < 0.004


def test_certain_row_and_zero_count_options() -> None:
    seen = RaterEnv(COUNTS, seed=0).outcomes(np.ones(500, int), every_action(500))
    assert np.array_equal(seen, np.tile([0.0, 1.0, 0.0], (500, 1)))


def every_attribute(env: object) -> list[object]:
    names = {n for n in dir(env) if not n.startswith("__")}
    for kind in type(env).__mro__:
        names |= set(getattr(kind, "__slots__", ()))
    return [getattr(env, n) for n in names if hasattr(env, n)]


@pytest.mark.parametrize(
    "env",
    [RaterEnv(COUNTS, seed=0), LabelEnv(np.array([2, 1]), 3)],
    ids=["rater", "label"],
)
def test_no_attribute_holds_labels(env: RaterEnv | LabelEnv) -> None:
    assert not hasattr(env, "labels")
    with pytest.raises((AttributeError, TypeError)):
        vars(env)
    for value in every_attribute(env):
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, [3, 3])  # the numbers of options
    # Even the private callable gives outcomes only.
    judged = env._judge(np.array([0]), np.array([[0, 0]]), np.random.default_rng(0))
    assert judged.shape == (1, 2) and set(judged.ravel()) <= {0.0, 1.0}
    state = json.dumps(env.state_dict())
    assert "count" not in state and "label" not in state


def test_the_caller_cannot_change_the_verdicts_later() -> None:
    counts = np.array([[0, 5]])
    env = RaterEnv(counts, seed=0)
    counts[:] = [5, 0]
    assert env.outcomes(np.array([0]), np.array([[1]]))[0, 0] == 1.0


def test_label_env() -> None:
    env = LabelEnv(np.array([2, 0]), np.array([3, 2]))
    seen = env.outcomes(np.array([0, 1]), np.array([[2, 1], [1, 0]]))
    assert np.array_equal(seen, [[1, 0], [0, 1]])
    with pytest.raises(ValueError, match="outside its row's options"):
        env.outcomes(np.array([1]), np.array([[2]]))
    with pytest.raises(ValueError, match="label is outside"):
        LabelEnv(np.array([3]), 3)


def test_labelled_env_draws_raters() -> None:
    labels = LabelledEnv(COUNTS, seed=3).labels(ROWS)
    share = np.bincount(labels, minlength=3) / len(ROWS)
    assert np.allclose(share, [0.1, 0.2, 0.7], atol=0.0125)
    assert not hasattr(Flip(LabelledEnv(COUNTS, seed=3), 0.1, seed=0), "labels")


def test_flip_frequency() -> None:
    env = Flip(LabelEnv(np.array([1]), 3), 0.2, seed=0)
    seen = env.outcomes(ROWS, every_action(len(ROWS))).mean(axis=0)
    assert np.allclose(seen, [0.2, 0.8, 0.2], atol=0.0125)


@pytest.mark.parametrize("shared", [True, False])
def test_redraw_frequency(shared: bool) -> None:
    env = Redraw(RaterEnv(np.array([[0, 1, 0]]), 0, shared), 0.3, seed=0)
    bits = env.outcomes(ROWS, every_action(len(ROWS)))
    assert np.allclose(bits.mean(axis=0), [0.1, 0.8, 0.1], atol=0.0125)
    # One redrawn label judges the whole group exactly when the outcome is shared.
    assert (set(bits.sum(axis=1)) == {1.0}) is shared
    labels = Redraw(LabelledEnv(np.array([[0, 1, 0]]), 0), 0.3, seed=0).labels(ROWS)
    assert np.allclose(np.bincount(labels) / len(ROWS), [0.1, 0.8, 0.1], atol=0.0125)


def test_unresolved_kinds() -> None:
    label = LabelEnv(np.array([1]), 3)
    even = Unresolved(label, 0.6, seed=0).outcomes(ROWS, every_action(len(ROWS)))
    assert np.allclose(np.isnan(even).mean(axis=0), 0.4, atol=0.0125)
    biased = Unresolved(label, 0.9, seed=0, rate_wrong=0.5)
    seen = biased.outcomes(ROWS, every_action(len(ROWS)))
    assert np.allclose(np.isnan(seen).mean(axis=0), [0.5, 0.1, 0.5], atol=0.0125)
    assert set(np.unique(seen[~np.isnan(seen)])) == {0.0, 1.0}
    # Noise around unresolved outcomes leaves them unresolved.
    both = Flip(Unresolved(label, 0.0, seed=0), 1.0, seed=0)
    assert np.isnan(both.outcomes(ROWS[:9], every_action(9))).all()
    redrawn = Redraw(Unresolved(label, 0.0, seed=0), 1.0, seed=0)
    assert np.isnan(redrawn.outcomes(ROWS[:9], every_action(9))).all()


def make(seed: int) -> Flip:
    inner = Unresolved(RaterEnv(COUNTS, seed), 0.7, seed, rate_wrong=0.4)
    return Flip(Redraw(inner, 0.2, seed), 0.1, seed)


def test_state_round_trip_is_bit_exact_through_json() -> None:
    env, actions = make(5), every_action(64)
    env.outcomes(ROWS[:64], actions)
    state = json.loads(json.dumps(env.state_dict()))
    expected = [env.outcomes(ROWS[:64], actions) for _ in range(3)]
    other = make(99)
    other.load_state_dict(state)
    for want in expected:
        assert np.array_equal(other.outcomes(ROWS[:64], actions), want, equal_nan=True)


def test_seed_fixes_and_changes_the_run() -> None:
    def run(seed: int) -> bytes:
        return make(seed).outcomes(ROWS[:64], every_action(64)).tobytes()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_two_processes_do_not_share_a_stream() -> None:
    code = (
        "import sys, numpy as np; from rlcd_core.env import RaterEnv;"
        "env = RaterEnv(np.ones((1, 1000), int), int(sys.argv[1]));"
        "print(env.outcomes([0] * 50, np.arange(1000)[None].repeat(50, 0)).argmax(1))"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code, seed], stdout=subprocess.PIPE)
        for seed in ("0", "1")
    ]
    first, second = (run.communicate(timeout=60)[0].decode() for run in runs)
    here = RaterEnv(np.ones((1, 1000), int), 0).outcomes(
        np.zeros(50, int), np.arange(1000)[None].repeat(50, 0)
    )
    assert first.strip() == str(here.argmax(1))
    assert first != second


def test_streams_of_neighbouring_seeds_and_keys_differ() -> None:
    keys = [(seed, key) for seed in range(20) for key in range(5)]
    assert len({spawn_rng(s, k).random() for s, k in keys}) == len(keys)
    # An environment and its wrapper with one seed draw from different streams.
    env = RaterEnv(COUNTS, 7)
    assert env._rng.random() != Flip(env, 0.1, 7)._rng.random()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="a verdict in every row"):
        RaterEnv(np.array([[0, 0]]), 0)
    env = RaterEnv(COUNTS, 0)
    with pytest.raises(ValueError, match=r"actions \(B, G\)"):
        env.outcomes(np.array([0]), np.array([1]))
    with pytest.raises(ValueError, match="outside its row's options"):
        env.outcomes(np.array([0]), np.array([[3]]))
    with pytest.raises(ValueError, match="outside its row's options"):
        env.outcomes(np.array([0]), np.array([[-1]]))
    with pytest.raises(IndexError, match="rows must be"):
        env.outcomes(np.array([-1]), np.array([[0]]))
    with pytest.raises(ValueError, match="rate must be"):
        Flip(env, 1.2, 0)
    with pytest.raises(ValueError, match="rate_wrong"):
        Unresolved(env, 0.5, 0, rate_wrong=-0.1)


def test_numbers_that_a_cast_would_change_are_refused() -> None:
    assert RaterEnv(np.array([[3.0, 1.0]]), 0).n_options.tolist() == [2]
    for counts in ([[1.5, 0.5]], [[np.nan, 2]], [[True, False]]):
        with pytest.raises(ValueError, match="counts must be whole numbers"):
            RaterEnv(np.array(counts), 0)
    with pytest.raises(ValueError, match="labels must be whole numbers"):
        LabelEnv(np.array([0.7]), 3)
    with pytest.raises(ValueError, match="actions must be whole numbers"):
        LoggedEnv([0.6], [1.0], 2)
    env = RaterEnv(COUNTS, 0)
    for rows, actions in (
        (np.array([0]), np.array([[0.5]])),
        (np.array([0]), np.array([[np.nan]])),
        (np.array([True]), np.array([[0]])),
        (np.array([0.0]), np.array([[0]])),
    ):
        with pytest.raises(ValueError, match="must be integers"):
            env.outcomes(rows, actions)


def test_numpy_seeds_give_the_same_stream() -> None:
    rows, actions = np.zeros(50, int), np.zeros((50, 1), int)
    one, other = RaterEnv(COUNTS, np.int64(3)), RaterEnv(COUNTS, 3)
    assert np.array_equal(one.outcomes(rows, actions), other.outcomes(rows, actions))


def test_logged_env_reveals_the_logged_action_only() -> None:
    env = LoggedEnv([1, 0], [1.0, np.nan], 2, [0.5, 1.0])
    seen = env.outcomes(np.array([0, 1]), np.array([[0, 1], [0, 1]]))
    assert np.array_equal(seen, [[np.nan, 1], [np.nan, np.nan]], equal_nan=True)
    actions, outcomes, propensities = env.logged(np.array([1, 0]))
    assert actions.tolist() == [[0], [1]] and outcomes[1, 0] == 1.0
    assert propensities is not None and propensities.tolist() == [[1.0], [0.5]]
    assert env.state_dict() == {}


@pytest.mark.parametrize("propensity", [0.0, 1.2, -0.1, np.nan, 1e-300])
def test_bad_propensities_are_refused(propensity: float) -> None:
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        LoggedEnv([0], [1.0], 2, [propensity])


def test_bad_outcomes_are_refused() -> None:
    with pytest.raises(ValueError, match="each 0, 1 or NaN"):
        LoggedEnv([0], [0.5], 2)


def test_record_log_has_the_behaviour_policys_propensities() -> None:
    n = 20_000
    p = np.tile([0.25, 0.0, 0.75], (n, 1))
    log = record_log(LabelEnv(np.full(n, 2), 3), p, seed=0)
    actions, outcomes, propensities = log.logged(np.arange(n))
    assert propensities is not None
    share = np.bincount(actions[:, 0], minlength=3) / n
    assert share[1] == 0 and abs(share[2] - 0.75) < 0.02
    assert np.array_equal(outcomes, (actions == 2).astype(float))
    assert np.array_equal(propensities[:, 0], p[np.arange(n), actions[:, 0]])
    # Importance weights recover the reward of another policy without bias.
    weight = np.array([0.5, 0.0, 0.5])[actions[:, 0]] / propensities[:, 0]
    assert abs((weight * outcomes[:, 0]).mean() - 0.5) < 0.02
