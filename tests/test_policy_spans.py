"""The decision head on trained encoder spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcd_core.arms import ARMS
from rlcd_core.env import LabelledEnv
from rlcd_core.policy import DecisionHead, Policy, PolicyError, SpanHead, predict
from rlcd_core.schema import Choice, Noul
from rlcd_core.train import TrainConfig, train
from tests.tiny_models import QUESTIONS, STATE, tiny_bert, tiny_spans

torch.set_num_threads(1)

LONG = STATE + " Load balancers answer 502 and the queue grows without end."
ITEMS = [(s, q) for s in (STATE, LONG, "Invoice sent twice.") for q in QUESTIONS]
MODEL, TOKENIZER = tiny_bert()


HEAD = tiny_spans().requires_grad_(False)


class ByHand:
    """Embeds one text at a time: the mean of the last hidden states, unit length."""

    dim = 32

    def embed(self, texts: Any) -> np.ndarray:
        rows = []
        for text in texts:
            ids = TOKENIZER(text, return_tensors="pt")["input_ids"]
            with torch.inference_mode():
                mean = MODEL.bert(input_ids=ids)[0][0].mean(0)
            rows.append((mean / mean.norm()).numpy())
        return np.array(rows)


def test_equals_a_frozen_head_on_the_same_encoder() -> None:
    head = tiny_spans()
    frozen = DecisionHead(ByHand(), 8)
    frozen.load_state_dict({"query": head.query, "key": head.key})
    assert isinstance(head, Policy)
    expected = predict(frozen, frozen.prepare(ITEMS))
    assert predict(head, head.prepare(ITEMS)) == pytest.approx(expected, abs=1e-5)
    assert np.ptp(expected[:, 0]) > 0.01


@settings(max_examples=15, deadline=None)
@given(
    st.permutations(range(4)),
    st.lists(
        st.text("abcdefgh ", min_size=3, max_size=9).filter(str.strip),
        min_size=1,
        max_size=3,
    ),
)
def test_order_and_company_cannot_matter(order: list[int], extra: list[str]) -> None:
    options = list(QUESTIONS[0].options)
    turned = [options[i] for i in order]
    more = [*options, *dict.fromkeys(f"other {text.strip()}" for text in extra)]
    sets = [options, turned, more, options[:2]]
    items = [(STATE, Choice("Which team?", chosen)) for chosen in sets]
    p = predict(HEAD, HEAD.prepare(items)).astype(np.float64)
    assert p[1][:4] == pytest.approx(p[0][order], abs=1e-6)
    odds = np.log(p[0][:4]) - np.log(p[0][0])
    assert np.log(p[2][:4]) - np.log(p[2][0]) == pytest.approx(odds, abs=1e-4)
    assert np.log(p[3][1] / p[3][0]) == pytest.approx(odds[1], abs=1e-4)


def test_they_still_cannot_after_training() -> None:
    head = tiny_spans()
    prepared = head.prepare(ITEMS[:6])
    env = LabelledEnv(np.eye(4, dtype=int)[[0, 1, 0, 2, 0, 1]], 0)
    config = TrainConfig(3e-3, outcomes=120, outcomes_per_step=6)
    before = {n: p.detach().clone() for n, p in head.named_parameters()}
    result = train(head, prepared, np.arange(6), env, ARMS["nll"], config, 0)
    assert result.history[-1]["loss"] < 0.5 * result.history[0]["loss"]
    moved = [n for n, p in head.named_parameters() if not torch.equal(p, before[n])]
    assert any(n.startswith("model.encoder.layer.0.") for n in moved)
    assert {"query", "key"} <= set(moved)
    options = list(QUESTIONS[0].options)
    items = [(STATE, Choice("Which team?", o)) for o in (options, options[::-1])]
    p = predict(head, head.prepare(items))
    assert p[0] == pytest.approx(p[1][::-1], abs=1e-6)


def test_each_text_of_a_batch_is_encoded_once() -> None:
    head = tiny_spans()
    prepared = head.prepare(ITEMS)
    texts = {s for s, _ in ITEMS} | {q.text for _, q in ITEMS}
    texts |= {option for _, q in ITEMS for option in q.options}
    batch = prepared.take(list(range(len(ITEMS))) * 3)
    assert len(batch.inputs["ids"]) == len(texts)
    assert len(prepared.take([2]).inputs["ids"]) == 4  # state, question, true, false
    seen, widths = [], []
    body = head.model.forward

    def counted(**inputs: Any) -> Any:
        seen.append(len(inputs["input_ids"]))
        widths.append((inputs["attention_mask"].sum(1), inputs["input_ids"].shape[1]))
        return body(**inputs)

    head.model.forward = counted
    head.log_probs(batch)
    assert sum(seen) == len(texts) and len(seen) < 6
    assert all(2 * int(lengths.min()) >= width for lengths, width in widths)


def test_frozen_encoder_and_the_seeded_start() -> None:
    frozen = tiny_spans(trainable=False)
    names = [n for n, p in frozen.named_parameters() if p.requires_grad]
    assert sorted(names) == ["key", "query"]
    assert not frozen.train().model.training and frozen.training
    model, tokenizer = tiny_bert()
    fresh = SpanHead(model.bert, tokenizer, 8)
    p = predict(fresh, fresh.prepare(ITEMS))
    assert p[0] == pytest.approx(0.25) and p[2, :2] == pytest.approx(0.5)


def test_dropout_is_off_also_in_training() -> None:
    head = tiny_spans().train()
    assert any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in head.modules())
    batch = head.prepare(ITEMS).take([0, 1])
    assert torch.equal(head.log_probs(batch), head.log_probs(batch))


def test_long_and_hostile_texts() -> None:
    long = "word " * 400
    with pytest.raises(PolicyError, match="max_tokens=0: pass at least 1"):
        tiny_spans(max_tokens=0)
    with pytest.raises(PolicyError, match="truncate=True"):
        tiny_spans(max_tokens=64).prepare([(long, QUESTIONS[0])])
    cut = tiny_spans(max_tokens=64, truncate=True)
    assert (
        int(cut.prepare([(long, QUESTIONS[2])]).take([0]).inputs["lengths"].max()) == 64
    )
    with pytest.raises(PolicyError, match="word word"):
        cut.prepare([("short", Choice("Which?", [long, "other"]))])
    with pytest.raises(PolicyError, match="No items"):
        cut.prepare([])
    special = set(TOKENIZER.all_special_ids)
    ids = cut.prepare([("a [MASK] b <pad>", Noul("[MASK]?"))]).take([0]).inputs
    rows = zip(ids["ids"], ids["lengths"], strict=True)
    assert not special & {int(i) for row, n in rows for i in row[:n]}


@pytest.mark.data
def test_the_packaged_encoder_gives_the_frozen_heads_answers() -> None:
    from rlcd_core.policy import Encoder

    spans, frozen = SpanHead.load(), DecisionHead(Encoder.load())
    with torch.no_grad():
        spans.query.normal_(std=0.02, generator=torch.manual_seed(0))
        frozen.query.copy_(spans.query)
    assert torch.equal(spans.key, frozen.key)
    expected = predict(frozen, frozen.prepare(ITEMS))
    assert predict(spans, spans.prepare(ITEMS)) == pytest.approx(expected, abs=1e-5)
    assert not any(p.requires_grad for p in spans.model.pooler.parameters())
