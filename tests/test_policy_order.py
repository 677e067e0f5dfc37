"""Verbatim scoring, the masked readout and averaging over orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from rlcd_core.decider import Decider
from rlcd_core.policy import (
    MaskedPolicy,
    PermutationAverage,
    PolicyError,
    TabularPolicy,
    VerbatimPolicy,
    predict,
)
from rlcd_core.policy.order import orders, reordered
from rlcd_core.schema import Choice, Score, render_prefix, render_suffix
from tests.tiny_models import (
    KINDS,
    QUESTIONS,
    STATE,
    letter_policy,
    letter_tokenizer,
    tiny_bert,
    tiny_head,
    tiny_model,
)

torch.set_num_threads(1)

ITEMS = [(STATE, q) for q in QUESTIONS] + [("Invoice sent twice.", QUESTIONS[0])]


def verbatim(kind: str = "llama", **options: Any) -> VerbatimPolicy:
    return VerbatimPolicy(tiny_model(kind), letter_tokenizer(), **options)


def written_out(policy: VerbatimPolicy, prompt: str, option: str) -> float:
    """Sum of log-probabilities of the option's tokens, one token at a time."""
    start, whole = policy.encoder.plain([prompt, f"{prompt} {option}"])
    total = 0.0
    for length in range(len(start), len(whole)):
        with torch.inference_mode():
            ids = torch.tensor([whole[:length]])
            log_p = policy.model(input_ids=ids).logits[0, -1].log_softmax(-1)
        total += float(log_p[whole[length]])
    return total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", ["sum", "tokens", "bytes"])
@pytest.mark.parametrize("prior", [False, True])
def test_verbatim_scores_by_hand(kind: str, length: str, prior: bool) -> None:
    policy = verbatim(kind, length=length, prior=prior)
    state, question = ITEMS[0]
    ask = "Assistant: The answer is"
    prompt = f"{render_prefix(state)} {question.text}\n{ask}"
    scores = []
    for option in question.options:
        score = written_out(policy, prompt, option)
        if prior:
            score -= written_out(policy, ask, option)
        start, whole = policy.encoder.plain([ask, f"{ask} {option}"])
        units = {"sum": 1, "tokens": len(whole) - len(start), "bytes": len(option)}
        scores.append(score / units[length])
    expected = np.exp(scores) / np.exp(scores).sum()
    p = predict(policy, policy.prepare(ITEMS))
    assert p[0] == pytest.approx(expected, abs=1e-5)
    assert p.sum(1) == pytest.approx(1, abs=1e-6) and (p[2, 2:] == 0).all()


def test_verbatim_knows_no_order_and_no_company() -> None:
    policy = verbatim()
    options = list(QUESTIONS[0].options)
    sets = [options, options[::-1], options[:2]]
    items = [(STATE, Choice("Which team?", chosen)) for chosen in sets]
    p = predict(policy, policy.prepare(items))
    assert p[0] == pytest.approx(p[1][::-1], abs=1e-6)
    assert p[0, 0] / p[0, 1] == pytest.approx(p[2, 0] / p[2, 1], rel=1e-4)


def test_length_sums_favour_short_options_and_shares_do_not() -> None:
    short, long = "sales", "infrastructure sales billing security infrastructure"
    items = [(STATE, Choice("Which team?", [short, long]))]
    p_sum, p_mean = (
        predict(policy, policy.prepare(items))[0, 0]
        for policy in (verbatim(length="sum"), verbatim(length="tokens"))
    )
    assert p_sum > 0.99 and p_mean < 0.9


@pytest.mark.parametrize("pair", [(" sales", ""), ("is sales", "was sales")])
def test_an_option_without_tokens_of_its_own_is_refused(pair: tuple[str, str]) -> None:
    clone = Tokenizer.from_str(letter_tokenizer().backend_tokenizer.to_str())
    clone.normalizer = normalizers.Replace(*pair)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=clone, eos_token="<pad>")
    policy = VerbatimPolicy(tiny_model("llama"), tokenizer)
    with pytest.raises(PolicyError, match="Option 'sales' has no tokens of its own"):
        policy.prepare([(STATE, QUESTIONS[0])])


def test_verbatim_window_counts_the_option() -> None:
    state = "word " * 400
    with pytest.raises(PolicyError, match="truncate=True"):
        verbatim().prepare([(state, QUESTIONS[0])])
    policy = verbatim(truncate=True, max_tokens=128)
    inputs = policy.prepare([(state, QUESTIONS[0])]).take([0]).inputs
    assert 100 < int(inputs["lengths"].max()) <= 128
    assert np.isfinite(predict(policy, policy.prepare([(state, QUESTIONS[0])]))).all()
    with pytest.raises(ValueError, match="length"):
        verbatim(length="words")
    endless = Choice("Which team?", ["word " * 5000, "sales"])
    with pytest.raises(PolicyError, match="Option 'word word.*alone has"):
        verbatim().prepare([("word", endless)])
    with pytest.raises(PolicyError, match="No items"):
        verbatim().prepare([])


def test_verbatim_can_be_trained() -> None:
    policy = verbatim(prior=True).train()
    prepared = policy.prepare(ITEMS)
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(15):
        loss = -policy.log_probs(prepared.take([0, 3]))[[0, 1], [1, 0]].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert predict(policy, prepared, [0, 3]).argmax(1).tolist() == [1, 0]


@pytest.mark.parametrize("padding", ["right", "left"])
def test_masked_readout_is_the_models_own(padding: str) -> None:
    model, tokenizer = tiny_bert()
    policy = MaskedPolicy(model, tokenizer, padding=padding)
    p = predict(policy, policy.prepare(ITEMS))
    for row, (state, question) in zip(p, ITEMS, strict=True):
        text = render_prefix(state) + render_suffix(question) + "[MASK]"
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        assert ids[0, -1] == tokenizer.mask_token_id
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, -1]
        count = len(question.options)
        expected = logits[policy.label_ids[:count]].softmax(-1).numpy()
        assert row[:count] == pytest.approx(expected, abs=1e-6)
        assert (row[count:] == 0).all()
    assert policy.share(STATE, QUESTIONS) is None
    with pytest.warns(UserWarning, match="does not answer with a label"):
        mass = policy.label_mass(policy.prepare(ITEMS).take([len(ITEMS) - 1]))
    expected = float(logits.softmax(-1)[policy.label_ids[:count]].sum())
    assert float(mass) == pytest.approx(expected, rel=1e-4)


def test_masked_readout_around_a_separator_and_without_a_mask() -> None:
    from tokenizers import processors

    model, tokenizer = tiny_bert()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <|endoftext|>",
        special_tokens=[("<s>", 2), ("<|endoftext|>", 0)],
    )
    policy = MaskedPolicy(model, tokenizer)
    batch = policy.prepare(ITEMS).take(range(len(ITEMS)))
    ids, lengths = batch.inputs["ids"], batch.inputs["lengths"]
    mask = tokenizer.mask_token_id
    for row, length in zip(ids, lengths, strict=True):
        assert row[0] == 2 and row[length - 2 : length].tolist() == [mask, 0]
    hostile = policy.prepare([("a [MASK] b", QUESTIONS[0])]).take([0]).inputs["ids"]
    assert (hostile == mask).sum() == 1
    with pytest.raises(PolicyError, match="mask token"):
        MaskedPolicy(model, letter_tokenizer())


def test_orders_are_balanced_rotations() -> None:
    question = Choice("?", list("abcd"))
    assert sorted(map(tuple, np.array(orders(question, 4)).T.tolist())) == [
        (0, 1, 2, 3),
        (1, 2, 3, 0),
        (2, 3, 0, 1),
        (3, 0, 1, 2),
    ]
    assert orders(question, 9) == orders(question, 4)
    assert orders(question, 1) == [[0, 1, 2, 3]]
    score = Score("?", list("abc"))
    assert orders(score, 4) == [[0, 1, 2], [2, 1, 0]]
    assert reordered(question, [2, 3, 0, 1]).options == tuple("cdab")


class PlaceBias(torch.nn.Module):
    """Prefers options by name, and places by number."""

    def __init__(self) -> None:
        super().__init__()
        self.place = torch.tensor([1.5, 0.0, -0.5, 0.3])

    def prepare(self, items: Any) -> Any:
        table = TabularPolicy(items)
        with torch.no_grad():
            for (_, _, options), row in table._rows.items():
                worth = torch.tensor([float(ord(o[0]) % 5) / 3 for o in options])
                table.logits[row, : len(options)] = worth + self.place[: len(options)]
        self.table = table
        return table.prepare(items)

    def log_probs(self, batch: Any) -> torch.Tensor:
        return self.table.log_probs(batch)


def test_log_mean_over_all_rotations_removes_a_place_bias() -> None:
    question = Choice("Which?", ["a", "b", "c", "d"])
    worth = torch.tensor([float(ord(o) % 5) / 3 for o in "abcd"])
    policy = PermutationAverage(PlaceBias(), 4, "log")
    p = predict(policy, policy.prepare([("s", question)]))[0]
    assert p == pytest.approx(worth.softmax(-1).numpy(), abs=1e-6)


@pytest.mark.parametrize("mean", ["arithmetic", "log"])
def test_average_by_hand_and_through_the_shared_prefix(mean: str) -> None:
    inner = letter_policy()
    policy = PermutationAverage(inner, 3, mean)
    p = predict(policy, policy.prepare(ITEMS))
    for row, (state, question) in zip(p, ITEMS, strict=True):
        each = []
        for order in orders(question, 3):
            item = (state, reordered(question, order))
            one = predict(inner, inner.prepare([item]))[0]
            each.append([one[order.index(i)] for i in range(len(order))])
        rows = np.array(each)
        by_hand = rows.mean(0) if mean == "arithmetic" else np.exp(np.log(rows).mean(0))
        assert row[: len(by_hand)] == pytest.approx(by_hand / by_hand.sum(), abs=1e-6)
        assert (row[len(by_hand) :] == 0).all()
    some = predict(policy, policy.prepare(ITEMS), [3, 1])
    assert some == pytest.approx(p[[3, 1]], abs=1e-6)
    decider = Decider(policy)
    assert policy.share(STATE, QUESTIONS) is not None
    for answer, row in zip(decider.ask(STATE, QUESTIONS), p, strict=False):
        assert answer.p == pytest.approx(row[: len(answer.p)].tolist(), abs=1e-6)


def test_average_of_a_symmetric_policy_changes_nothing() -> None:
    head = tiny_head()
    plain = predict(head, head.prepare(ITEMS))
    policy = PermutationAverage(head, 4)
    assert predict(policy, policy.prepare(ITEMS)) == pytest.approx(plain, abs=1e-6)
    assert policy.share(STATE, QUESTIONS) is None
    with pytest.raises(ValueError, match="mean"):
        PermutationAverage(head, 0)
