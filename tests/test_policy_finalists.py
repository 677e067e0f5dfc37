"""Choosing in stages: Luce policies come out exactly, and no option vanishes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlcd_core.arms import ARMS
from rlcd_core.decider import Decider
from rlcd_core.env import LabelledEnv
from rlcd_core.evaluate import battery
from rlcd_core.policy import (
    DecisionHead,
    Finalists,
    LetterPolicy,
    PermutationAverage,
    PolicyError,
    TabularPolicy,
    VerbatimPolicy,
    predict,
)
from rlcd_core.policy.finalists import FLOOR, _combined, option_limit
from rlcd_core.schema import Choice, Noul, Score
from rlcd_core.train import TrainConfig, train
from tests.tiny_models import (
    QUESTIONS,
    STATE,
    HashEncoder,
    letter_policy,
    letter_tokenizer,
)

torch.set_num_threads(1)


def intents(count: int) -> Choice:
    return Choice("Which intent?", [f"intent {i}" for i in range(count)])


def luce_head() -> DecisionHead:
    """A decision head with utilities of order one: it obeys Luce's axiom exactly."""
    head = DecisionHead(HashEncoder(), 8)
    with torch.no_grad():
        head.query.normal_(generator=torch.manual_seed(0)).mul_(0.3)
    return head.eval()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("count", "size"), [(3, 2), (27, 2), (27, 26), (151, 5), (151, 26), (1000, 26)]
)
def test_a_luce_policy_in_stages_is_itself(count: int, size: int, apart: bool) -> None:
    head = luce_head()
    items = [(STATE, intents(count)), ("Another.", intents(count)), (STATE, Noul("Q"))]
    direct = predict(head, head.prepare(items))
    staged = Finalists(head, head if apart else None, size=size)
    p = predict(staged, staged.prepare(items))
    assert p == pytest.approx(direct, rel=1e-3, abs=1e-7)
    assert (p[:2] > 0).all() and (p[2, 2:] == 0).all()
    assert p.sum(1) == pytest.approx(1, abs=1e-5)


def test_two_groups_by_hand() -> None:
    # Groups (a, b) and (c, d, e); b, d and e go on.
    within = [torch.tensor([0.2, 0.8]).log(), torch.tensor([0.1, 0.6, 0.3]).log()]
    final = torch.tensor([0.5, 0.2, 0.3]).log()
    p = _combined(within, [[0, 1], [2, 3, 4]], [[1], [3, 4]], final).exp()
    # a keeps 1 : 4 to b, c keeps 1 : 9 to d and e together.
    w = np.array([0.125, 0.5, 0.5 / 9, 0.2, 0.3])
    assert p.tolist() == pytest.approx((w / w.sum()).tolist(), abs=1e-6)


def test_scored_apart_keeps_the_first_stage_for_those_who_leave() -> None:
    question = intents(10)
    first = TabularPolicy([(STATE, question)])
    with torch.no_grad():
        first.logits[0] = torch.linspace(0, 3, 10)
    last = Choice("Which intent?", question.options[-3:])
    second = TabularPolicy([(STATE, last)])
    with torch.no_grad():
        second.logits[0] = torch.tensor([2.0, 0.0, -1.0])
    policy = Finalists(second, first, size=3)
    assert policy.finalists(STATE, question) == [7, 8, 9]
    p = predict(policy, policy.prepare([(STATE, question)]))[0]
    one = torch.linspace(0, 3, 10).softmax(0).numpy()
    two = torch.tensor([2.0, 0.0, -1.0]).softmax(0).numpy()
    assert p[:7] == pytest.approx(one[:7], rel=1e-5)
    assert p[7:] == pytest.approx(one[7:].sum() * two, rel=1e-5)


def test_no_option_vanishes_under_certainty() -> None:
    question = intents(40)
    first = TabularPolicy([(STATE, question)])
    with torch.no_grad():
        first.logits[0, 7], first.logits[0, 27] = 1e4, 1.0
    kept = Choice("Which intent?", [question.options[i] for i in (7, 27)])
    last = TabularPolicy([(STATE, kept)])
    policy = Finalists(last, first, size=2)
    p = predict(policy, policy.prepare([(STATE, question)]))[0]
    assert (p > 0).all() and p.sum() == pytest.approx(1, abs=1e-5)
    # The finalists are level; whoever left is at the floor under them.
    assert p.min() == pytest.approx(math.exp(-FLOOR) / 2, rel=1e-3)


@pytest.mark.parametrize("count", [151, 1000])
def test_letters_take_any_number_of_options(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = letter_policy(window=1024)
    question = intents(count)
    with pytest.raises(PolicyError, match="options but only"):
        Decider(LetterPolicy(letter.model, letter_tokenizer(), labels="ABCD")).ask(
            STATE, [question]
        )
    policy = Finalists(letter, size=26)
    ways: list[str] = []
    for way in ("shared_log_probs", "tree_log_probs"):
        original = getattr(letter, way)

        def noted(shared: Any, way: str = way, original: Any = original) -> Any:
            ways.append(way)
            return original(shared)

        monkeypatch.setattr(letter, way, noted)
    decider = Decider(policy, least_mass=0)
    (answer,) = decider.ask(STATE, [question])
    assert len(answer.p) == count and min(answer.p) > 0
    assert ways  # the groups of one state are read together
    # Within a group the odds of two who left are those the policy gave.
    cuts = [count * i // math.ceil(count / 26) for i in (0, 1)]
    group = Choice("Which intent?", question.options[cuts[0] : cuts[1]])
    (own,) = decider.ask(STATE, [group])
    low = np.argsort(own.p)[:2]
    ratio = answer.p[low[0]] / answer.p[low[1]]
    assert ratio == pytest.approx(own.p[low[0]] / own.p[low[1]], rel=1e-3)
    # With gradients the groups are read one by one, to the same numbers.
    batch = policy.prepare([(STATE, question)]).take([0])
    slow = policy.log_probs(batch)
    assert slow.requires_grad
    assert slow.detach().exp()[0].tolist() == pytest.approx(answer.p, abs=1e-6)


def test_few_options_go_to_the_policy_as_they_are() -> None:
    letter = letter_policy()
    items = [(STATE, q) for q in QUESTIONS]
    policy = Finalists(letter)
    assert policy.size == option_limit(PermutationAverage(letter)) == len(letter.labels)
    p = predict(policy, policy.prepare(items))
    assert p == pytest.approx(predict(letter, letter.prepare(items)), abs=1e-6)


def test_wrappers_and_the_battery_work_over_it() -> None:
    letter = letter_policy()
    verbatim = VerbatimPolicy(letter.model, letter_tokenizer())
    question, levels = intents(12), Score("How many?", [f"{i}" for i in range(9)])
    items = [(STATE, question), (STATE, levels), ("Other.", question)]
    for policy in (
        Finalists(PermutationAverage(letter, 2), verbatim, size=5),
        PermutationAverage(Finalists(letter, size=5), 2),
    ):
        checks = battery(
            policy, items, [0, 1, 2], rng=np.random.default_rng(0), n_resamples=50
        )
        assert all(check.passed for check in checks)
    kept = Finalists(letter, size=5).finalists(STATE, levels)
    assert kept == sorted(kept) and 2 <= len(kept) <= 5


def test_it_can_be_trained() -> None:
    head = DecisionHead(HashEncoder(), 8)
    policy = Finalists(head, size=6)
    question = intents(30)
    items = [(f"state {i}", question) for i in range(8)]
    labels = np.arange(8) * 3
    prepared = policy.prepare(items)
    config = TrainConfig(learning_rate=5e-2, outcomes=160, outcomes_per_step=8)
    env = LabelledEnv(np.eye(30, dtype=int)[labels], 0)
    train(policy, prepared, np.arange(8), env, ARMS["nll"], config, 0)
    assert (predict(policy, prepared).argmax(1) == labels).mean() >= 7 / 8


def test_sizes_are_checked() -> None:
    letter = letter_policy(labels="ABCD")
    with pytest.raises(PolicyError, match="2 to 4"):
        Finalists(letter, size=5)
    with pytest.raises(PolicyError, match="size=1"):
        Finalists(letter, size=1)
    with pytest.raises(PolicyError, match="pass size="):
        Finalists(luce_head())
