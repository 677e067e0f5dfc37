"""The masked softmax, batches, the table, the encoder and the decision head."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcd_core.policy import (
    DecisionHead,
    Encoder,
    Policy,
    PolicyError,
    TabularPolicy,
    masked_log_softmax,
    predict,
)
from rlcd_core.rewards import MASKED
from rlcd_core.schema import Choice, Noul
from tests.tiny_models import HashEncoder

torch.set_num_threads(1)

ITEMS = [
    ("The server is down.", Choice("Team?", ["billing", "network", "sales"])),
    ("Invoice sent twice.", Choice("Team?", ["billing", "network", "sales"])),
    ("The server is down.", Noul("Urgent?")),
]


def trained_head(seed: int = 0, rank: int = 8) -> DecisionHead:
    head = DecisionHead(HashEncoder(), rank, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        head.query.copy_(torch.randn(head.query.shape, generator=torch.manual_seed(5)))
    return head


@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=6),
    st.integers(0, 3),
)
def test_mask_removes_padding_exactly(values: list[float], extra: int) -> None:
    z = torch.tensor([values + [1e4] * extra])
    mask = torch.tensor([[True] * len(values) + [False] * extra])
    log_p = masked_log_softmax(z, mask)
    alone = torch.tensor([values]).log_softmax(-1)
    assert torch.allclose(log_p[:, : len(values)], alone, atol=1e-6)
    assert (log_p[:, len(values) :] == MASKED).all()
    assert (log_p.exp()[:, len(values) :] == 0).all()


def test_masked_places_are_exact_in_float64() -> None:
    z = torch.tensor([[3.0, 1.0, 9.0]], dtype=torch.float64)
    log_p = masked_log_softmax(z, torch.tensor([[True, True, False]]))
    assert log_p.dtype == torch.float64 and log_p[0, 2] == MASKED


def test_gradient_through_masked_places_is_zero_and_finite() -> None:
    z = torch.tensor([[0.3, -0.2, 7.0]], requires_grad=True)
    log_p = masked_log_softmax(z, torch.tensor([[True, True, False]]))
    log_p[0, 0].backward()
    assert z.grad is not None
    assert z.grad[0, 2] == 0 and torch.isfinite(z.grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_300_equal_options_sum_to_one_in_half_precision(dtype: torch.dtype) -> None:
    # In bf16 a running sum of ones saturates at 256.
    z = torch.zeros(2, 300, dtype=dtype)
    log_p = masked_log_softmax(z, torch.ones(2, 300, dtype=torch.bool))
    assert log_p.dtype == torch.float32
    assert torch.allclose(log_p.exp().sum(-1), torch.ones(2), atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinite_logits_are_named(bad: float) -> None:
    mask = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(PolicyError, match=r"rows \[1\]"):
        masked_log_softmax(torch.tensor([[0.0, 0.0], [bad, 0.0]]), mask)
    hidden = torch.tensor([[True, True], [False, True]])
    masked_log_softmax(torch.tensor([[0.0, 0.0], [bad, 0.0]]), hidden)


def test_three_to_ten_options_in_one_batch() -> None:
    items = [
        (f"case {k}", Choice("Which?", [f"option {i}" for i in range(k)]))
        for k in range(3, 11)
    ]
    policy = TabularPolicy(items)
    p = predict(policy, policy.prepare(items))
    for row, k in zip(p, range(3, 11), strict=True):
        assert row[:k] == pytest.approx(1 / k)
        assert (row[k:] == 0).all()


def test_table_shares_rows_and_refuses_strangers() -> None:
    policy = TabularPolicy([ITEMS[0], ITEMS[2], ITEMS[0]], dtype=torch.float64)
    assert policy.logits.shape == (2, 3)
    with torch.no_grad():
        policy.logits[0] = torch.tensor([0.0, 1.0, 2.0])
    prepared = policy.prepare([ITEMS[2], ITEMS[0]])
    log_p = policy.log_probs(prepared.take([1]))
    assert log_p.dtype == torch.float64
    expected = [0.0900306, 0.2447285, 0.6652410]
    assert log_p.exp()[0].tolist() == pytest.approx(expected, abs=1e-7)
    with pytest.raises(PolicyError, match="no row"):
        policy.prepare([ITEMS[1]])
    with pytest.raises(PolicyError, match="No items"):
        TabularPolicy([])


def test_both_are_policies_with_a_state_dict() -> None:
    for policy in (TabularPolicy(ITEMS), trained_head()):
        assert isinstance(policy, Policy)
        before = predict(policy, policy.prepare(ITEMS))
        saved = {k: v.clone() for k, v in policy.state_dict().items()}
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape))
        assert np.abs(predict(policy, policy.prepare(ITEMS)) - before).max() > 1e-3
        policy.load_state_dict(saved)
        assert (predict(policy, policy.prepare(ITEMS)) == before).all()


def test_predict_keeps_the_training_mode_and_the_rows() -> None:
    head = trained_head().train()
    prepared = head.prepare(ITEMS)
    whole = predict(head, prepared)
    assert head.training
    assert np.allclose(predict(head, prepared, [2, 0]), whole[[2, 0]], atol=1e-7)
    assert np.allclose(predict(head, prepared, batch_size=1), whole, atol=1e-6)
    assert predict(head, prepared, []).shape == (0, 3)


def test_a_mask_is_not_taken_for_row_numbers() -> None:
    question = Choice("Which?", ["a", "b"])
    items = [(f"state {i}", question) for i in range(3)]
    policy = TabularPolicy(items)
    prepared = policy.prepare(items)
    assert predict(policy, prepared, []).shape == (0, 2)
    assert predict(policy, prepared, [2]).shape == (1, 2)
    for rows in (np.array([True, False, True]), [0.7], torch.tensor([True])):
        with pytest.raises(PolicyError, match="pass row numbers"):
            predict(policy, prepared, rows)
    for size in (0, -1):
        with pytest.raises(PolicyError, match="at least 1"):
            predict(policy, prepared, batch_size=size)


def test_head_computes_the_stated_equation() -> None:
    head = trained_head()
    encoder = HashEncoder()
    state, question = ITEMS[0]
    h_s, h_q, *h_c = encoder.embed([state, question.text, *question.options]) * 12**0.5
    w_q, w_k = head.query.detach().numpy(), head.key.detach().numpy()
    u = [(w_q @ h_s + w_q @ h_q) @ (w_k @ h) / 8**0.5 for h in h_c]
    expected = np.exp(u) / np.exp(u).sum()
    p = predict(head, head.prepare(ITEMS))
    assert p[0] == pytest.approx(expected, abs=1e-5)
    assert p[2, 2] == 0


def test_head_is_order_symmetric_and_independent_of_alternatives() -> None:
    head = trained_head()
    state, options = "The server is down.", ["billing", "network", "sales", "legal"]
    sets = [options, options[::-1], options[:2]]
    items = [(state, Choice("Team?", chosen)) for chosen in sets]
    p = predict(head, head.prepare(items))
    assert p[0] == pytest.approx(p[1][::-1], abs=1e-6)
    assert p[0, 0] / p[0, 1] == pytest.approx(p[2, 0] / p[2, 1], rel=1e-5)


def test_head_starts_uniform_and_the_seed_fixes_it() -> None:
    first, same, other = (
        DecisionHead(HashEncoder(), 4, torch.Generator().manual_seed(s))
        for s in (1, 1, 2)
    )
    assert torch.equal(first.key, same.key) and not torch.equal(first.key, other.key)
    p = predict(first, first.prepare(ITEMS))
    assert p[0] == pytest.approx(1 / 3) and p[2, :2] == pytest.approx(0.5)
    assert sum(q.numel() for q in first.parameters()) == 2 * 4 * 12


def test_many_options_in_all_but_few_in_the_batch() -> None:
    head = trained_head()
    items = [
        ("state", Choice("Which?", [f"option {10 * i + j}" for j in range(10)]))
        for i in range(20)
    ]
    prepared = head.prepare(items)
    batch = prepared.take([7])
    assert len(batch.inputs["options"]) == 10
    alone = head.prepare([items[7]])
    assert np.allclose(predict(head, prepared, [7]), predict(head, alone), atol=1e-6)


def test_head_embeds_each_text_once() -> None:
    seen: list[str] = []

    class Counting(HashEncoder):
        def embed(self, texts: list[str]) -> np.ndarray:
            seen.extend(texts)
            return super().embed(texts)

    head = DecisionHead(Counting(), 4)
    head.prepare(ITEMS * 3)
    assert len(seen) == len(set(seen)) == 9
    with pytest.raises(PolicyError, match="No items"):
        head.prepare([])


@pytest.fixture(scope="module")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random BERT and a word-piece tokenizer, like MiniLM's."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    words = ["the", "server", "is", "down", "invoice", "sent", "twice", "[", "]", "sep"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = special + words + list("abcdefghijklmnopqrstuvwxyz.")
    vocabulary += [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    return folder


TEXTS = ["the server is down", "invoice", "the invoice is sent twice the", "invoice"]


def test_embeddings_are_unit_mean_pooled_and_cached(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path))
    encoder = Encoder(tiny_encoder, max_tokens=32)
    first = encoder.embed(TEXTS)
    assert first.shape == (4, 16) and first.dtype == np.float32
    assert np.linalg.norm(first, axis=1) == pytest.approx(1, abs=1e-6)
    assert (first[1] == first[3]).all()
    ids = encoder._tokenizer([TEXTS[2]], return_tensors="pt")
    with torch.inference_mode():
        mean = encoder._model(**ids)[0][0].mean(0)
    assert first[2] == pytest.approx((mean / mean.norm()).numpy(), abs=1e-6)
    # A second encoder reads the cache: with its model broken, nothing is recomputed.
    again = Encoder(tiny_encoder, max_tokens=32)
    again._model = None
    assert (again.embed(TEXTS[::-1]) == first[::-1]).all()
    # Other limits are another encoder, with another file.
    assert Encoder(tiny_encoder, max_tokens=16).cache_file != encoder.cache_file


def test_changed_weights_are_another_cache(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertModel

    monkeypatch.setenv("RLCD_CACHE", str(tmp_path / "cache"))
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tiny_encoder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    before = Encoder(copy).fingerprint
    assert before == Encoder(tiny_encoder).fingerprint
    model = BertModel.from_pretrained(copy)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[7, 0] += 1e-3
    model.save_pretrained(copy)
    assert Encoder(copy).fingerprint != before


def test_long_texts_and_special_tokens(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path))
    text = "the server is down the invoice is sent twice"
    with pytest.raises(PolicyError, match="truncate=True"):
        Encoder(tiny_encoder, max_tokens=6).embed([text])
    cut = Encoder(tiny_encoder, max_tokens=6, truncate=True).embed([text])
    exact = Encoder(tiny_encoder, max_tokens=6).embed(["the server is down"])
    assert cut == pytest.approx(exact, abs=1e-6)
    # "[SEP]" as text must not be the separator token.
    encoder = Encoder(tiny_encoder)
    plain, hostile = encoder.embed(["the [sep] is", "the [SEP] is"])
    assert plain == pytest.approx(hostile, abs=1e-6)


def test_interrupted_embedding_keeps_what_it_had(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path))
    encoder = Encoder(tiny_encoder)
    assert encoder.max_tokens == 64, "the window of the model, not the default"
    with pytest.raises(PolicyError, match="the encoder reads 64"):
        encoder.embed(["the server is down " * 20])
    model, calls = encoder._model, []

    def dies_at_second(**inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(len(inputs["input_ids"]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return model(**inputs)

    encoder._model = dies_at_second
    with pytest.raises(KeyboardInterrupt):
        encoder.embed(TEXTS, batch_size=2)
    done = encoder.embed(TEXTS, batch_size=2)
    assert calls == [2, 1, 1]
    assert np.isfinite(done).all()


def test_damaged_cache_is_named(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path))
    encoder = Encoder(tiny_encoder)
    encoder.embed(TEXTS)
    with sqlite3.connect(encoder.cache_file) as store:
        store.execute("UPDATE embedding SET vector = x'00'")
    with pytest.raises(PolicyError, match="damaged"):
        encoder.embed(TEXTS)
    encoder.cache_file.write_bytes(b"no database" * 100)
    with pytest.raises(PolicyError, match="Delete it"):
        encoder.embed(TEXTS)
