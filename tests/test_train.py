"""The loop: it learns, it resumes bit for bit, it stops, it says what went wrong."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save

from rlcd_core.arms import ARMS
from rlcd_core.env import Flip, LabelledEnv, LoggedEnv, RaterEnv
from rlcd_core.policy import TabularPolicy, predict
from rlcd_core.rewards import OBJECTIVES, Feedback
from rlcd_core.schema import Choice
from rlcd_core.train import (
    _KNOWN,
    SAVING_SHARE,
    Arm,
    TrainConfig,
    action_generator,
    autocast,
    batch_rows,
    feedback,
    signals,
    train,
)

Q = np.array([[600, 250, 150], [100, 100, 800], [340, 330, 330]])
ITEMS = [(f"ticket {i}", Choice("Which queue?", ("a", "b", "c"))) for i in range(3)]
ROWS = np.arange(3)
CONFIG = TrainConfig(learning_rate=0.05, outcomes=24_000, outcomes_per_step=24)


def environment(arm: Arm, seed: int):
    kind = LabelledEnv if arm.needs == "label" else RaterEnv
    return kind(Q, seed, arm.shared_outcome)


def trained(arm: Arm, config: TrainConfig = CONFIG, seed: int = 0, **more):
    policy = TabularPolicy(ITEMS)
    env = environment(arm, seed)
    result = train(policy, policy.prepare(ITEMS), ROWS, env, arm, config, seed, **more)
    return policy, result


@pytest.mark.parametrize(
    "name",
    ["nll", "brier", "rlcd", "rlcd_loo", "rlcd_g4", "residual_ht", "rlvr_gini"]
    + ["verdict_nll", "verdict_brier", "one_bit_spherical"],
)
def test_proper_arms_find_the_posterior(name: str) -> None:
    policy, result = trained(ARMS[name])
    p = predict(policy, policy.prepare(ITEMS))
    # 8,000 outcomes a question at a falling rate: residual noise of about .02.
    np.testing.assert_allclose(p, Q / 1000, atol=0.06)
    assert result.outcomes == 24_000


@pytest.mark.parametrize("name", ["rlvr", "rlcd_std", "rlvr_std"])
def test_improper_arms_do_not(name: str) -> None:
    policy, _ = trained(ARMS[name])
    p = predict(policy, policy.prepare(ITEMS))
    # thm-std, thm-rescues: an option with q > 1/2 takes everything.
    assert p[0, 0] > 0.9
    assert p[1, 2] > 0.9


def test_kl_to_the_start_and_low_rate_hold_the_policy_back() -> None:
    free = predict(*_policy(trained(ARMS["rlvr"])))
    held = predict(*_policy(trained(ARMS["rlvr_kl_0.5"])))
    # Optimum p0 exp(q / beta) with p0 uniform.
    expected = np.exp(Q / 1000 / 0.5)
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(held, expected, atol=0.06)
    assert held[0, 0] < free[0, 0]


def _policy(pair):
    policy = pair[0]
    return policy, policy.prepare(ITEMS)


def test_seed_changes_and_fixes_the_run() -> None:
    short = replace(CONFIG, outcomes=2400)
    a, b, c = (trained(ARMS["rlcd"], short, seed=s)[0].logits for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_batches_visit_every_row_each_epoch_and_depend_on_nothing_else() -> None:
    rows = np.arange(10, 17)
    taken = np.concatenate([batch_rows(rows, 3, 5, step) for step in range(7)])
    for epoch in range(3):
        assert sorted(taken[epoch * 7 : epoch * 7 + 7]) == sorted(rows)
    assert len(batch_rows(rows, 20, 5, 2)) == 20
    assert batch_rows(rows, 3, 5, 4).tolist() == taken[12:15].tolist()


def test_gradient_accumulation_equals_the_whole_batch() -> None:
    short = replace(CONFIG, outcomes=2400)
    whole = trained(ARMS["nll"], short)[0].logits
    parts = trained(ARMS["nll"], replace(short, micro_batch=5))[0].logits
    # Labels are drawn in the same order either way.
    torch.testing.assert_close(whole, parts, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("replays", [0, 4])
@pytest.mark.parametrize("name", ["rlcd", "rlcd_loo", "nll", "residual_ht"])
def test_resumes_bit_for_bit(tmp_path: Path, name: str, replays: int) -> None:
    config = replace(CONFIG, outcomes=1200, checkpoint_every=1, weight_average=0.9)
    if replays:
        config = replace(config, outcomes=240, replays=replays, micro_batch=2)
    whole, _ = trained(ARMS[name], config)

    class Killed(Exception):
        pass

    rng = np.random.default_rng(3)
    parts = len(range(0, config.prompts_per_step(ARMS[name].group_size), 2))
    for kill in rng.integers(1, 50 * (parts if replays else 1), 3):
        path = tmp_path / f"{name}-{kill}.safetensors"
        policy = TabularPolicy(ITEMS)
        prepared = policy.prepare(ITEMS)
        inner, calls = policy.log_probs, 0

        def dying(batch, inner=inner, kill=kill):
            nonlocal calls
            calls += 1
            if calls > kill:
                raise Killed
            return inner(batch)

        policy.log_probs = dying
        env = environment(ARMS[name], 0)
        with pytest.raises(Killed):
            train(policy, prepared, ROWS, env, ARMS[name], config, 0, checkpoint=path)
        again, result = trained(ARMS[name], config, checkpoint=path)
        assert torch.equal(whole.logits, again.logits)
        assert result.steps == len(result.history) == 50
        assert result.prompts == 3


def test_replays_spend_no_outcome_and_repeat_what_was_heard() -> None:
    class Counting(RaterEnv):
        asked = 0

        def outcomes(self, rows, actions):
            Counting.asked += actions.size
            return super().outcomes(rows, actions)

    config = replace(CONFIG, outcomes=240, replays=4)
    policy = TabularPolicy(ITEMS)
    env = Counting(Q, 0, True)
    result = train(policy, policy.prepare(ITEMS), ROWS, env, ARMS["rlcd"], config, 0)
    assert Counting.asked == result.outcomes == 240
    assert result.steps == len(result.history) == 50
    assert result.forward_passes == 5 * 240
    # A replay's outcomes are those of a fresh step that came before it.
    fresh = [row["outcome"] for row in result.history[::5]]
    for step, row in enumerate(result.history):
        assert row["outcome"] in fresh[: step // 5 + 1]


@pytest.mark.parametrize("name", ["rlcd", "verdict_nll", "verdict_brier"])
def test_replayed_outcomes_keep_the_fixed_point(name: str) -> None:
    # thm-behaviour: the actions come from earlier policies, p = q stays the end.
    config = replace(CONFIG, outcomes=12_000, replays=3, learning_rate=0.02)
    p = predict(*_policy(trained(ARMS[name], config)))
    np.testing.assert_allclose(p, Q / 1000, atol=0.07)


SCRIPT = """
import sys
from pathlib import Path
from dataclasses import replace
sys.path.insert(0, {tests!r})
from test_train import ARMS, CONFIG, trained
config = replace(CONFIG, outcomes=9_600, checkpoint_every=1)
print("go", flush=True)
trained(ARMS["rlcd"], config, checkpoint=Path({path!r}))
"""


def test_sigkill_loses_at_most_one_step(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    script = SCRIPT.format(tests=str(Path(__file__).parent), path=str(path))
    single = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=single
    )
    assert child.stdout is not None
    child.stdout.readline()
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    config = replace(CONFIG, outcomes=9_600, checkpoint_every=1)
    again, result = trained(ARMS["rlcd"], config, checkpoint=path)
    whole, _ = trained(ARMS["rlcd"], config)
    assert torch.equal(whole.logits, again.logits)
    assert result.steps == 400


@pytest.mark.parametrize(
    ("step_cost", "save_cost", "saves"),
    # Save number j > 1 at the first step n with n step_cost >= 19 j save_cost.
    [(1.0, 0.04, 50), (1.0, 1.0, 3), (1.0, 0.1, 26), (0.001, 10.0, 2)],
)
def test_automatic_checkpoints_cost_a_twentieth_of_the_time(
    tmp_path: Path, monkeypatch, step_cost: float, save_cost: float, saves: int
) -> None:
    now, written = 0.0, []

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    def write(path: Path, data: bytes) -> None:
        work(save_cost)
        written.append(now)
        path.write_bytes(data)

    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("rlcd_core.train.time", clock)
    monkeypatch.setattr("rlcd_core.train.write_atomically", write)

    class Slow(RaterEnv):
        def outcomes(self, rows, actions):
            work(step_cost)
            return super().outcomes(rows, actions)

    config = replace(CONFIG, outcomes=1200)
    path, policy = tmp_path / "run.safetensors", TabularPolicy(ITEMS)
    arm, env = ARMS["rlcd"], Slow(Q, 0, True)
    train(policy, policy.prepare(ITEMS), ROWS, env, arm, config, 0, checkpoint=path)
    assert len(written) == saves
    # The first save tells the cost and the last is the result; between them the share
    # holds at every moment.
    for i, at in enumerate(written[1:-1], 2):
        assert i * save_cost <= SAVING_SHARE * at + 1e-9
    # No moment is further from a save than its cost allows, and a step.
    gaps = np.diff([0.0, *written])
    assert gaps.max() <= 2 * save_cost / SAVING_SHARE + 2 * step_cost + save_cost


def test_a_run_saved_by_the_clock_resumes_bit_for_bit(tmp_path: Path) -> None:
    config = replace(CONFIG, outcomes=1200, weight_average=0.9)
    whole, _ = trained(ARMS["rlcd"], config)
    for kill in (1, 7, 49):
        path = tmp_path / f"{kill}.safetensors"

        class Dying(RaterEnv):
            left = kill

            def outcomes(self, rows, actions):
                if not self.left:
                    raise KeyboardInterrupt
                Dying.left -= 1
                return super().outcomes(rows, actions)

        policy = TabularPolicy(ITEMS)
        env = Dying(Q, 0, True)
        with pytest.raises(KeyboardInterrupt):
            train(
                policy,
                policy.prepare(ITEMS),
                ROWS,
                env,
                ARMS["rlcd"],
                config,
                0,
                checkpoint=path,
            )
        assert path.exists()
        # The environment's class is part of a checkpoint's identity.
        Dying.left, again = -1, TabularPolicy(ITEMS)
        train(
            again,
            again.prepare(ITEMS),
            ROWS,
            Dying(Q, 0, True),
            ARMS["rlcd"],
            config,
            0,
            checkpoint=path,
        )
        assert torch.equal(whole.logits, again.logits)


def test_full_disk_leaves_the_old_checkpoint_whole(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "run.safetensors"
    config = replace(CONFIG, outcomes=480, checkpoint_every=5)
    real, calls = os.fsync, 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr("rlcd_core.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        trained(ARMS["rlcd"], config, checkpoint=path)
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]
    again, result = trained(ARMS["rlcd"], config, checkpoint=path)
    assert torch.equal(again.logits, trained(ARMS["rlcd"], config)[0].logits)
    assert result.steps == 20


def test_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    config = replace(CONFIG, outcomes=240, checkpoint_every=5)
    trained(ARMS["rlcd"], config, checkpoint=path)
    with pytest.raises(ValueError, match="another run"):
        trained(ARMS["rlvr"], config, checkpoint=path)
    with pytest.raises(ValueError, match="another run"):
        trained(ARMS["rlcd"], replace(config, clip=2.0), checkpoint=path)
    for items, rows, env in (
        (ITEMS, np.arange(2), RaterEnv(Q, 0)),  # other rows
        (ITEMS[:2], np.arange(2), RaterEnv(Q[:2], 0)),  # another shape
        (ITEMS, ROWS, Flip(RaterEnv(Q, 0), 0.1, 0)),  # another environment
    ):
        policy = TabularPolicy(items)
        with pytest.raises(ValueError, match="another run"):
            train(
                policy,
                policy.prepare(items),
                rows,
                env,
                ARMS["rlcd"],
                config,
                0,
                checkpoint=path,
            )
        assert not policy.logits.any()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[: len(data) // 2], "no whole checkpoint"),
        (lambda data: b"", "no whole checkpoint"),
        (lambda data: save({"w": torch.zeros(2)}), "another run"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "changed after it was saved"),
    ],
)
def test_damaged_checkpoint_is_named(tmp_path: Path, damage, message: str) -> None:
    path = tmp_path / "run.safetensors"
    config = replace(CONFIG, outcomes=240, checkpoint_every=5)
    trained(ARMS["rlcd"], config, checkpoint=path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"run.safetensors.*{message}"):
        trained(ARMS["rlcd"], config, checkpoint=path)


def test_numpy_seeds_are_seeds_and_no_row_is_an_error() -> None:
    config = replace(CONFIG, outcomes=240)
    one, _ = trained(ARMS["rlcd"], config, seed=np.int64(1))
    assert torch.equal(one.logits, trained(ARMS["rlcd"], config, seed=1)[0].logits)
    policy = TabularPolicy(ITEMS)
    none = np.array([], dtype=int)
    with pytest.raises(ValueError, match="no row to train on"):
        train(
            policy,
            policy.prepare(ITEMS),
            none,
            RaterEnv(Q, 0),
            ARMS["rlcd"],
            config,
            0,
        )


def test_bf16_goes_by_capability_and_not_by_report(monkeypatch) -> None:
    # A T4 (7.5) says that it supports bf16, and emulates it.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    for capability, dtype in (
        ((7, 5), torch.float16),
        ((8, 0), torch.bfloat16),
        ((9, 0), torch.bfloat16),
    ):
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda *_, known=capability: known
        )
        monkeypatch.setattr(torch, "autocast", lambda *given, **_: given)
        assert autocast(torch.device("cuda")) == ("cuda", dtype)
    monkeypatch.undo()
    assert not autocast(torch.device("cpu"))._enabled


def test_behaviour_policy_must_be_one() -> None:
    for odd in ({"epsilon": 2.0}, {"epsilon": -0.1}, {"temperature": 0.0}):
        with pytest.raises(ValueError, match="arm 'odd': epsilon"):
            Arm("odd", "Odd", "rlcd", **odd)


def test_stop_rule_needs_three_bad_evaluations_in_a_row() -> None:
    answers = iter([0.8, 0.6, 0.75, 0.6, 0.6, 0.6, 0.6])
    config = replace(CONFIG, outcomes=24 * 60, eval_every=10)
    _, result = trained(
        ARMS["rlcd"], config, evaluate=lambda _: {"accuracy": next(answers)}
    )
    assert result.stopped
    assert result.steps == 50


def test_divergence_names_arm_and_step(monkeypatch) -> None:
    broken = replace(OBJECTIVES["rlcd"], loss=lambda lp, told: lp.sum(-1) * torch.nan)
    monkeypatch.setitem(_KNOWN, "rlcd", broken)
    with pytest.raises(FloatingPointError, match="'rlcd', step 0"):
        trained(ARMS["rlcd"])


def test_a_gradient_that_is_not_finite_spoils_no_checkpoint(
    tmp_path: Path, monkeypatch
) -> None:
    # The square root of nothing: finite loss, gradient NaN.
    broken = replace(OBJECTIVES["rlcd"], loss=lambda lp, told: (lp * 0).sum(-1).sqrt())
    monkeypatch.setitem(_KNOWN, "rlcd", broken)
    path = tmp_path / "run.safetensors"
    with pytest.raises(FloatingPointError, match="'rlcd', step 0: the loss is 0.0"):
        trained(ARMS["rlcd"], checkpoint=path)
    assert not path.exists()


def test_a_batch_that_is_normalised_as_a_whole_is_not_split() -> None:
    log = LoggedEnv(np.zeros(3, int), np.ones(3), 3, np.full(3, 0.5))
    policy, arm = TabularPolicy(ITEMS), Arm("snips", "Snips", "rlcd_snips")
    short = replace(CONFIG, outcomes=240)
    for micro, reason in ((5, "would change what it learns"), (0, "at least 1")):
        config = replace(short, micro_batch=micro)
        with pytest.raises(ValueError, match=reason):
            train(policy, policy.prepare(ITEMS), ROWS, log, arm, config, 0)
    assert not policy.logits.any()
    train(policy, policy.prepare(ITEMS), ROWS, log, arm, short, 0)
    assert policy.logits.any()


def test_a_log_holds_one_action_a_question() -> None:
    log = LoggedEnv(np.zeros(3, int), np.ones(3), 3)
    with pytest.raises(ValueError, match="'rlcd_g4' takes 4 actions"):
        feedback(ARMS["rlcd_g4"], log, ROWS, torch.zeros(3, 3), action_generator(0, 0))


def test_budget_and_group_must_fit() -> None:
    with pytest.raises(ValueError, match="multiple of the group size 4"):
        TrainConfig(outcomes_per_step=6).steps(4)
    with pytest.raises(ValueError, match="pays for no step"):
        TrainConfig(outcomes=10).steps()
    assert TrainConfig(outcomes=60_000, outcomes_per_step=64).steps(4) == 937
    with pytest.raises(ValueError, match="unknown objective"):
        Arm("x", "X", "no_such")
    # Four actions a label would count every label four times.
    for objective in ("nll", "plackett_luce"):
        with pytest.raises(ValueError, match="group_size 4 must be at least 1, and 1"):
            Arm("x", "X", objective, group_size=4)


def test_rate_warms_up_and_ends_at_a_tenth() -> None:
    config = TrainConfig()
    rates = [config.rate(step, 200) for step in range(200)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))


def test_feedback_hides_the_label_from_bandit_arms() -> None:
    class Counting(LabelledEnv):
        asked = 0

        def labels(self, rows):
            type(self).asked += 1
            return super().labels(rows)

    env = Counting(Q, seed=0)
    log_probs = torch.full((3, 3), 1 / 3).log()
    told = feedback(ARMS["rlcd_loo"], env, ROWS, log_probs, action_generator(0, 0))
    assert told.labels is None and Counting.asked == 0
    assert told.actions.shape == told.outcomes.shape == (3, 4)


def test_signals_by_hand() -> None:
    log_probs = torch.tensor([[0.5, 0.5], [0.8, 0.2]]).log()
    told = Feedback(
        torch.tensor([[0, 1], [0, 0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    )
    row = signals(log_probs, told)
    assert row["confidence"] == pytest.approx(0.65)
    assert row["outcome"] == pytest.approx(0.75)
    assert row["gap"] == pytest.approx((0.5 + 0.5 + 0.8 + 0.8) / 4 - 0.75)
    assert row["zero_variance"] == pytest.approx(0.5)
    entropy = (np.log(2) - 0.8 * np.log(0.8) - 0.2 * np.log(0.2)) / 2
    assert row["entropy"] == pytest.approx(entropy)
