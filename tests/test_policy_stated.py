"""Option and stated confidence in one distribution, and what trains it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcd_core.env import RaterEnv
from rlcd_core.policy import (
    LetterPolicy,
    MaskedPolicy,
    Policy,
    PolicyError,
    StatedChoice,
    StatedPolicy,
    predict,
)
from rlcd_core.policy.stated import CUE, OnOption, choice_log_probs, stated_confidence
from rlcd_core.rewards import (
    LEVELS,
    MASKED,
    STATED,
    Feedback,
    stated_levels,
    stated_reward,
)
from rlcd_core.schema import render_prefix, render_suffix
from rlcd_core.train import Arm, TrainConfig, train
from tests.tiny_models import (
    KINDS,
    QUESTIONS,
    STATE,
    letter_tokenizer,
    tiny_bert,
    tiny_model,
)

torch.set_num_threads(1)

LONG = STATE + " Load balancers answer 502 and the queue grows without end."
ITEMS = [(s, q) for s in (STATE, LONG) for q in QUESTIONS]


def stated(kind: str = "llama", window: int = 512, **options: Any) -> StatedPolicy:
    model = tiny_model(kind, window=window)
    return StatedPolicy(LetterPolicy(model, letter_tokenizer(), **options))


def by_hand(policy: StatedPolicy, state: str, question: Any) -> np.ndarray:
    """(K, LEVELS) from one pass for the letter and one for each confidence."""
    tokenizer, model = policy.policy.encoder.tokenizer, policy.policy.model
    prompt = render_prefix(state) + render_suffix(question)

    def following(text: str, tokens: list[int]) -> np.ndarray:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            return model(input_ids=ids).logits[0, -1, tokens].softmax(-1).numpy()

    letters = "ABCD"[: len(question.options)]
    options = following(prompt, [tokenizer(f" {x}")["input_ids"][0] for x in letters])
    digits = [tokenizer(f"{CUE} {d}")["input_ids"] for d in range(10)]
    # Where a space and a digit are two tokens, the space belongs to the cue.
    space = " " if tokenizer.decode(digits[0][-1]) == "0" else ""
    levels = [
        following(f"{prompt} {x}{CUE}{space}", [ids[-1] for ids in digits])
        for x in letters
    ]
    return options[:, None] * np.array(levels)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_equal_two_passes_by_hand(kind: str) -> None:
    policy = stated(kind)
    assert isinstance(policy, Policy) and isinstance(StatedChoice(policy), Policy)
    p = predict(policy, policy.prepare(ITEMS))
    assert p.shape == (len(ITEMS), 4 * LEVELS)
    for row, (state, question) in zip(p, ITEMS, strict=True):
        expected = by_hand(policy, state, question)
        assert row[: expected.size] == pytest.approx(expected.ravel(), abs=1e-6)
        assert (row[expected.size :] == 0).all()
    assert p.sum(1) == pytest.approx(1, abs=1e-6)
    letters = predict(policy.policy, policy.policy.prepare(ITEMS))
    choices = p.reshape(len(p), 4, LEVELS).sum(2)
    assert choices == pytest.approx(letters, abs=1e-6)
    view = StatedChoice(policy)
    assert predict(view, view.prepare(ITEMS)) == pytest.approx(letters, abs=1e-6)
    # The levels do depend on the option that was named.
    told = p[0].reshape(4, LEVELS) / letters[0][:, None]
    assert np.abs(told[0] - told[1]).max() > 1e-4


def test_alone_and_in_a_batch_are_the_same() -> None:
    policy = stated()
    prepared = policy.prepare(ITEMS)
    whole = predict(policy, prepared)
    alone = np.concatenate([predict(policy, prepared, [i]) for i in range(len(ITEMS))])
    assert alone == pytest.approx(whole, abs=1e-6)
    assert (predict(policy, prepared) == whole).all()


def test_mean_confidence_and_masked_places() -> None:
    pairs = torch.full((1, 3, LEVELS), MASKED)
    pairs[0, 0] = torch.linspace(-20, 0, LEVELS).log_softmax(0) + np.log(0.5)
    pairs[0, 1] = np.log(0.5 / LEVELS)
    flat = pairs.flatten(1)
    assert choice_log_probs(flat).exp()[0].tolist() == pytest.approx([0.5, 0.5, 0])
    told = stated_confidence(flat)[0]
    levels = stated_levels(torch.arange(LEVELS))
    expected = float(torch.linspace(-20, 0, LEVELS).softmax(0) @ levels)
    assert told.tolist() == pytest.approx([expected, 0.5, 0])


def test_what_it_cannot_read_is_named() -> None:
    with pytest.raises(PolicyError, match="no causal model"):
        StatedPolicy(MaskedPolicy(*tiny_bert()))
    eager = LetterPolicy(
        tiny_model("llama", attn_implementation="eager"), letter_tokenizer()
    )
    with pytest.raises(PolicyError, match="sdpa"):
        StatedPolicy(eager)
    from tokenizers import Tokenizer, normalizers
    from transformers import PreTrainedTokenizerFast

    clone = Tokenizer.from_str(letter_tokenizer().backend_tokenizer.to_str())
    clone.normalizer = normalizers.Replace("7", "8")
    confused = PreTrainedTokenizerFast(
        tokenizer_object=clone, eos_token="<|endoftext|>"
    )
    with pytest.raises(PolicyError, match="not single tokens"):
        StatedPolicy(LetterPolicy(tiny_model("llama"), confused))


def test_the_continuation_counts_towards_the_window() -> None:
    letters = stated().policy
    length = int(letters.prepare(ITEMS[:1]).take([0]).inputs["lengths"][0])
    fits = LetterPolicy(letters.model, letter_tokenizer(), max_tokens=length + 4)
    fits.prepare(ITEMS[:1])
    with pytest.raises(PolicyError, match="the limit is"):
        StatedPolicy(fits).prepare(ITEMS[:1])


def expected_gradient(name: str, z: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Mean of the loss's gradient over actions and outcomes, by enumeration."""
    total = torch.zeros_like(z)
    p = z.softmax(-1)
    for action in range(z.shape[1]):
        chance = right[action // LEVELS]
        for outcome, weight in ((1.0, chance), (0.0, 1 - chance)):
            leaf = z.clone().requires_grad_(True)
            told = Feedback(
                torch.tensor([[action]]), torch.tensor([[outcome]], dtype=z.dtype)
            )
            loss = STATED[name](leaf.log_softmax(-1), told).sum()
            (slope,) = torch.autograd.grad(loss, leaf)
            total += p[0, action] * weight * slope
    return total


RIGHT = torch.tensor([0.9, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["binary", "brier", "rlcr", "log"])
def test_the_mean_step_ascends_the_mean_reward(kind: str) -> None:
    z = torch.randn(1, 2 * LEVELS, dtype=torch.float64, generator=torch.manual_seed(1))
    leaf = z.clone().requires_grad_(True)
    v = stated_levels(torch.arange(2 * LEVELS) % LEVELS, z.dtype)
    s = RIGHT.repeat_interleave(LEVELS)
    one, zero = torch.ones_like(v), torch.zeros_like(v)
    mean = s * stated_reward(v, one, kind) + (1 - s) * stated_reward(v, zero, kind)
    (slope,) = torch.autograd.grad(-(leaf.softmax(-1) * mean).sum(), leaf)
    found = expected_gradient(f"stated_{kind}", z, RIGHT)
    assert torch.allclose(found, slope, atol=1e-12)


def test_decoupled_trains_each_token_on_its_own_reward() -> None:
    z = torch.randn(1, 2 * LEVELS, dtype=torch.float64, generator=torch.manual_seed(1))
    leaf = z.clone().requires_grad_(True)
    log_p = leaf.log_softmax(-1).reshape(2, LEVELS)
    choice = log_p.logsumexp(-1)
    told = (log_p - choice[:, None]).exp()
    v = stated_levels(torch.arange(LEVELS), z.dtype)
    honest = -(RIGHT[:, None] * (v - 1) ** 2 + (1 - RIGHT[:, None]) * v**2)
    share = choice.exp()
    gain = (share * RIGHT).sum() + (share.detach() * (told * honest).sum(1)).sum()
    (slope,) = torch.autograd.grad(-gain, leaf)
    found = expected_gradient("stated_decoupled", z, RIGHT)
    assert torch.allclose(found, slope, atol=1e-12)


def test_unresolved_outcomes_and_wrong_widths() -> None:
    z = torch.zeros(1, 2 * LEVELS, requires_grad=True)
    told = Feedback(torch.tensor([[3, 12]]), torch.tensor([[float("nan"), 1.0]]))
    for name, objective in STATED.items():
        (slope,) = torch.autograd.grad(objective(z.log_softmax(-1), told).sum(), z)
        assert torch.isfinite(slope).all(), name
    with pytest.raises(ValueError, match="pairs of option and level"):
        few = Feedback(torch.tensor([[3]]), torch.tensor([[1.0]]))
        STATED["stated_rlcr"](torch.zeros(1, 7).log_softmax(-1), few)


def test_outcomes_belong_to_the_option_and_the_stream_is_kept() -> None:
    env = OnOption(RaterEnv(np.array([[0, 9], [9, 0]]), seed=0))
    assert env.n_options.tolist() == [2 * LEVELS] * 2
    actions = np.array([[3, 19], [0, 10]])
    assert env.outcomes(np.array([0, 1]), actions).tolist() == [[0, 1], [1, 0]]
    before = env.state_dict()
    env.outcomes(np.array([0]), np.array([[1]]))
    env.load_state_dict(before)
    assert env.state_dict() == before
    with pytest.raises(ValueError, match="outside"):
        env.outcomes(np.array([0]), np.array([[20]]))


def test_the_one_loop_makes_the_stated_confidence_honest() -> None:
    """Three of four verdicts agree with the first option, whatever is asked."""
    policy = stated("gpt2")
    items = [(f"Ticket {i}: {STATE}", QUESTIONS[2]) for i in range(4)]
    prepared = policy.prepare(items)
    env = OnOption(RaterEnv(np.array([[3, 1]] * 4), seed=0))
    arm = Arm("stated", "RLCR", "stated_rlcr_loo", group_size=8, shared_outcome=False)
    config = TrainConfig(3e-3, outcomes=100 * 32, outcomes_per_step=32)
    result = train(policy, prepared, np.arange(4), env, arm, config, 0)
    with torch.no_grad():
        pairs = policy.log_probs(prepared.take(range(4)))
    assert choice_log_probs(pairs).exp()[:, 0].min() > 0.9
    assert abs(float(stated_confidence(pairs)[:, 0].mean()) - 0.75) < 0.12
    assert result.outcomes == config.outcomes


@pytest.mark.data
def test_smollm2_states_a_confidence() -> None:
    policy = StatedPolicy(LetterPolicy.load())
    p = predict(policy, policy.prepare(ITEMS[:1]))[0]
    assert p == pytest.approx(by_hand(policy, *ITEMS[0]).ravel(), abs=1e-5)
