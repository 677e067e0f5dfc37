"""Packed sequences: the mask, the positions, and equality with single prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcd_core.policy import (
    LetterPolicy,
    MaskedPolicy,
    PermutationAverage,
    PolicyError,
    VerbatimPolicy,
    predict,
)
from rlcd_core.policy.passes import CostRule, Work, plain_work, plan
from rlcd_core.policy.prompts import PromptEncoder
from rlcd_core.policy.tree import TokenTree, grown_trees
from rlcd_core.schema import Choice, Noul, render_prefix
from tests.tiny_models import (
    KINDS,
    QUESTIONS,
    STATE,
    letter_policy,
    letter_tokenizer,
    tiny_bert,
    tiny_model,
)

torch.set_num_threads(1)

PROMPTS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=6
)


@settings(max_examples=80, deadline=None)
@given(PROMPTS)
def test_every_prompt_is_a_path_that_sees_itself_alone(prompts: list[Any]) -> None:
    tree = TokenTree.of(prompts)
    ids, positions, visible = tree.ids(), tree.positions(), tree.visible()
    distinct = {tuple(p[:end]) for p in prompts for end in range(1, len(p) + 1)}
    assert len(tree) == len(ids) == len(distinct), "each beginning stands once"
    for prompt, place in zip(prompts, tree.places(), strict=True):
        assert ids[place].tolist() == prompt
        assert positions[place].tolist() == list(range(len(prompt)))
        for i, row in enumerate(place.tolist()):
            assert visible[row].nonzero().flatten().tolist() == place[: i + 1].tolist()


@settings(max_examples=40, deadline=None)
@given(PROMPTS, st.integers(1, 12))
def test_chunks_hold_every_prompt_once(prompts: list[Any], limit: int) -> None:
    parts = grown_trees(prompts, limit)
    assert [row for rows, _ in parts for row in rows] == list(range(len(prompts)))
    for rows, tree in parts:
        assert len(tree) <= limit or len(rows) == 1
        for row, place in zip(rows, tree.places(), strict=True):
            assert tree.ids()[place].tolist() == prompts[row]


def test_bidirectional_branches_see_the_state_and_themselves() -> None:
    tree = TokenTree.branched([1, 2], [[3], [4, 5]])
    seen = tree.visible(causal=False).int().tolist()
    assert seen == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
    ]
    assert tree.positions().tolist() == [0, 1, 2, 2, 3]


def three_ways(policy: Any, questions: Any) -> dict[str, np.ndarray]:
    """Probabilities of the plain path, one prompt at a time, and of the others."""
    shared = policy.share(STATE, questions)
    assert shared is not None
    with torch.inference_mode():
        found = {
            way: getattr(policy, f"{way}_log_probs")(shared).exp().numpy()
            for way in policy.works(shared, 16)
            if way != "plain"
        }
    prepared = policy.prepare([(STATE, q) for q in questions])
    found["plain"] = predict(policy, prepared, batch_size=1)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seam", ["clean", "merged"])
def test_letter_tree_equals_single_full_prompts(kind: str, seam: str) -> None:
    tokenizer = letter_tokenizer(start="<s>", seam=seam)
    policy = LetterPolicy(tiny_model(kind, vocab_size=len(tokenizer)), tokenizer)
    twice = [*QUESTIONS, QUESTIONS[0], Noul("Page the engineer on duty?")]
    ways = three_ways(policy, twice)
    assert set(ways) == {"plain", "tree", "shared"}
    for way in ("tree", "shared"):
        assert ways[way] == pytest.approx(ways["plain"], abs=1e-5)
    # Order and company: any part, in any order.
    for some in ([4, 0], [2, 1, 0]):
        shared = policy.share(STATE, [twice[i] for i in some])
        with torch.inference_mode():
            p = policy.tree_log_probs(shared).exp().numpy()
        width = p.shape[1]
        assert p == pytest.approx(ways["plain"][some][:, :width], abs=1e-5)


def test_a_tree_without_its_mask_or_its_positions_is_another_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = letter_policy()
    plain = three_ways(policy, QUESTIONS)["plain"]

    def off() -> float:
        return float(np.abs(three_ways(policy, QUESTIONS)["tree"] - plain).max())

    assert off() < 1e-5
    with monkeypatch.context() as patch:
        patch.setattr(
            TokenTree,
            "visible",
            lambda self, causal=True: torch.ones(len(self), len(self)).tril().bool(),
        )
        assert off() > 1e-3
    with monkeypatch.context() as patch:
        patch.setattr(TokenTree, "positions", lambda self: torch.arange(len(self)))
        assert off() > 1e-3


def test_tree_gradients_are_those_of_the_single_prompts() -> None:
    policy = letter_policy()
    shared = policy.share(STATE, QUESTIONS)
    assert shared is not None
    weight = next(policy.model.parameters())
    tree = policy.tree_log_probs(shared)
    (first,) = torch.autograd.grad(tree[:, 0].sum(), weight)
    batch = policy.prepare([(STATE, q) for q in QUESTIONS]).take(range(3))
    (second,) = torch.autograd.grad(policy.log_probs(batch)[:, 0].sum(), weight)
    assert torch.allclose(first, second, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prior", [False, True])
def test_candidates_branch_off_their_question(kind: str, prior: bool) -> None:
    policy = VerbatimPolicy(
        tiny_model(kind), letter_tokenizer(), length="sum", prior=prior
    )
    ways = three_ways(policy, QUESTIONS)
    assert ways["tree"] == pytest.approx(ways["plain"], abs=1e-5)
    shared = policy.share(STATE, QUESTIONS)
    assert shared is not None
    works = policy.works(shared, 16)
    # The state is read once for nine options, not nine times.
    assert works["tree"].tokens < works["plain"].tokens / 4


def test_encoder_reads_the_state_apart() -> None:
    model, tokenizer = tiny_bert()
    policy = MaskedPolicy(model, tokenizer, apart=True)
    ways = three_ways(policy, QUESTIONS)
    assert ways["tree"] == pytest.approx(ways["plain"], abs=1e-5)
    # The reference is the one-question tree, alone or padded in a batch ...
    prepared = policy.prepare([(STATE, q) for q in QUESTIONS] + [("Up.", QUESTIONS[0])])
    together = predict(policy, prepared, batch_size=8)
    assert together[:3] == pytest.approx(ways["plain"], abs=1e-5)
    # ... and not the prompt in which the state sees the question.
    whole = MaskedPolicy(model, tokenizer)
    p = predict(whole, whole.prepare([(STATE, q) for q in QUESTIONS]))
    assert np.abs(p - ways["plain"]).max() > 1e-3
    assert whole.share(STATE, QUESTIONS) is None
    # By hand: state tokens see the state, question tokens see everything.
    batch = prepared.take([1])
    size = int(batch.inputs["lengths"][0])
    cut = len(policy.encoder.plain([render_prefix(STATE)])[0])
    seen = torch.ones(size, size, dtype=torch.bool)
    seen[:cut, cut:] = False
    assert torch.equal(batch.inputs["visible"][0, :size, :size], seen)
    over = MaskedPolicy(model, tokenizer, apart=True, max_tokens=90, truncate=True)
    assert over.share("word " * 200, QUESTIONS) is None
    cut_ids = over.prepare([("word " * 200, QUESTIONS[0])]).take([0]).inputs["ids"]
    assert cut_ids.shape[1] <= 90


def test_reading_apart_needs_a_clean_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny_bert()
    monkeypatch.setattr(PromptEncoder, "_check_seam", lambda self: False)
    MaskedPolicy(model, tokenizer)
    with pytest.raises(PolicyError, match="apart=True"):
        MaskedPolicy(model, tokenizer, apart=True)


@pytest.mark.parametrize("mean", ["arithmetic", "log"])
def test_orders_are_packed_in_one_tree(mean: str) -> None:
    inner = letter_policy()
    policy = PermutationAverage(inner, 4, mean)
    ways = three_ways(policy, [QUESTIONS[0], QUESTIONS[1]])
    for way in ("tree", "shared"):
        assert ways[way] == pytest.approx(ways["plain"], abs=1e-5)
    assert policy.branches([QUESTIONS[0]]) == 4
    assert policy.branches([QUESTIONS[1]]) == 2  # a score has two orders


def test_work_by_hand_and_the_rule() -> None:
    assert plain_work([10, 20, 30], 2) == Work(2 * 20 + 30, 2, 2 * 200 + 450)
    rule = CostRule(pass_tokens=100, pair_tokens=0.01)
    assert rule.cost(Work(50, 2, 1000)) == pytest.approx(50 + 200 + 10)
    short = {"plain": Work(150, 1, 3000), "tree": Work(90, 1, 8100)}
    short["shared"] = Work(95, 2, 3000)
    assert rule.choose(short) == "tree"
    # The mask of a long tree costs more than another pass.
    long = {"tree": Work(1000, 1, 1_000_000), "shared": Work(1010, 2, 500_000)}
    assert rule.choose(long) == "shared"
    assert CostRule(1e9, 0.01).choose(long) == "tree"
    same = {"plain": Work(10, 1, 5), "tree": Work(10, 1, 5)}
    assert rule.choose(same) == "plain"


def test_counted_work_is_what_is_computed() -> None:
    policy = letter_policy()
    shared = policy.share(STATE, QUESTIONS)
    assert shared is not None
    works = policy.works(shared, 2)
    seen: list[tuple[int, ...]] = []
    handle = policy.model.model.embed_tokens.register_forward_hook(
        lambda _, inputs, output: seen.append(tuple(inputs[0].shape))
    )
    prepared = policy.prepare([(STATE, q) for q in QUESTIONS])
    for way, call in {
        "plain": lambda: predict(policy, prepared, batch_size=2),
        "shared": lambda: policy.shared_log_probs(shared),
        "tree": lambda: policy.tree_log_probs(shared),
    }.items():
        seen.clear()
        with torch.inference_mode():
            call()
        assert works[way].passes == len(seen), way
        assert works[way].tokens == sum(rows * width for rows, width in seen), way
    handle.remove()


def test_plan_of_one_prompt_tokenises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = letter_policy()
    monkeypatch.setattr(policy, "share", None)
    assert plan(policy, STATE, QUESTIONS[:1], CostRule(), 16).way == "plain"
    with pytest.raises(TypeError):
        plan(policy, STATE, QUESTIONS, CostRule(), 16)


def test_a_large_set_of_candidates_goes_in_several_trees() -> None:
    policy = VerbatimPolicy(tiny_model("llama"), letter_tokenizer())
    question = Choice("Which?", [f"server of customer {i} is down" for i in range(12)])
    shared = policy.share(STATE, [question])
    assert shared is not None and len(shared.trees) == 1
    pairs = [prompt + option[:-1] for prompt, option in shared.pairs]
    parts = grown_trees(pairs, len(shared.trees[0][1]) // 2)
    assert len(parts) > 1
    with torch.inference_mode():
        whole = policy.tree_log_probs(shared)
        split = policy.tree_log_probs(replace(shared, trees=parts))
    assert torch.allclose(whole, split, atol=1e-5)
