"""Hostile text: it stays text, what is read stays where it is, movement by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcd_core.decider import Decider
from rlcd_core.extra.hostile import (
    FAMILIES,
    NEUTRAL,
    audit,
    hostile_items,
    movement,
    neutral_text,
    with_text,
)
from rlcd_core.policy import DecisionHead
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.policy.verbatim import VerbatimPolicy
from rlcd_core.records import results_dir
from rlcd_core.schema import Choice, render_prefix, render_state, render_suffix
from tests.tiny_models import (
    QUESTIONS,
    STATE,
    HashEncoder,
    letter_tokenizer,
    tiny_model,
)

torch.set_num_threads(1)
QUESTION = QUESTIONS[0]
ITEM = (STATE, QUESTION)
TARGET = 2
HOSTILE = {name: hostile_items([ITEM], [TARGET], name)[0] for name in FAMILIES}


def letter(**options: Any) -> LetterPolicy:
    return LetterPolicy(tiny_model("llama"), letter_tokenizer(), **options)


def read_ids(policy: Any, item: Any) -> list[int]:
    """The token ids that the model sees, without filler."""
    inputs = policy.prepare([item]).take([0]).inputs
    return inputs["ids"][0, : int(inputs["lengths"][0])].tolist()


# --- Text stays text -------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_question_options_and_place_read_are_those_of_the_question(
    family: str,
) -> None:
    policy = letter()
    special = set(policy.encoder.tokenizer.all_special_ids)
    bare, hit = read_ids(policy, ITEM), read_ids(policy, HOSTILE[family])
    # The suffix, which holds question, options and the place that is read, is the
    # same token for token; only tokens of the state came between.
    (suffix,) = policy.encoder.plain([render_suffix(QUESTION)])
    assert bare[-len(suffix) :] == hit[-len(suffix) :] == suffix
    assert len(hit) > len(bare) and special.isdisjoint(hit)
    state = HOSTILE[family][0]
    (prefix,) = policy.encoder.plain([render_prefix(state)])
    assert hit == prefix + suffix
    assert policy.encoder.tokenizer.decode(hit) == (
        render_prefix(state) + render_suffix(QUESTION)
    )
    one, other = (policy.prepare([i]).take([0]) for i in (ITEM, HOSTILE[family]))
    assert one.mask.tolist() == other.mask.tolist() == [[True] * 4]


def test_the_check_would_see_a_special_token() -> None:
    """Planted fault: a tokenizer that reads special tokens in text."""
    tokenizer = letter_tokenizer()
    (state, _) = HOSTILE["special tokens"]
    read = tokenizer(state, add_special_tokens=False)["input_ids"]
    assert not set(tokenizer.all_special_ids).isdisjoint(read)


def test_the_hidden_state_that_is_read_is_that_of_the_last_token() -> None:
    policy = letter()
    ends = []
    for item in (ITEM, *HOSTILE.values()):
        ids = torch.tensor([read_ids(policy, item)])
        with torch.inference_mode():
            last = policy.model(input_ids=ids).logits[0, -1]
            expected = last[policy.label_ids[:4]].log_softmax(-1)
            found = policy.log_probs(policy.prepare([item]).take([0]))[0]
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
        ends.append(int(ids[0, -1]))
    assert len(set(ends)) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_verbatim_options_are_read_after_the_prompt(family: str) -> None:
    policy = VerbatimPolicy(tiny_model("llama"), letter_tokenizer())

    def tails(item: Any) -> list[list[int]]:
        inputs = policy.prepare([item]).take([0]).inputs
        return [
            ids[start:length].tolist()
            for ids, start, length in zip(
                inputs["ids"], inputs["start"], inputs["lengths"], strict=True
            )
        ]

    assert tails(ITEM) == tails(HOSTILE[family]) and len(tails(ITEM)) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_sees_the_text_in_the_state_alone(family: str) -> None:
    head = DecisionHead(HashEncoder(), 4)
    bare, hit = (
        head.prepare([item]).take([0]).inputs for item in (ITEM, HOSTILE[family])
    )
    assert torch.equal(bare["options"], hit["options"])
    assert torch.equal(bare["index"], hit["index"])
    assert not torch.equal(bare["query"], hit["query"])


def test_answers_have_the_declared_options_and_no_other() -> None:
    for policy in (letter(), DecisionHead(HashEncoder(), 4)):
        decider = Decider(policy, least_mass=0)
        for state, question in HOSTILE.values():
            (answer,) = decider.ask(state, [question])
            assert list(answer.probabilities) == list(QUESTION.options)
            assert sum(answer.p) == pytest.approx(1, abs=1e-5)


@settings(deadline=None)
@given(st.text(min_size=1).filter(str.strip))
def test_no_later_line_of_a_field_stands_at_the_margin(text: str) -> None:
    try:
        shown = render_state({"ticket": text})
    except ValueError:
        return  # half a character is refused
    first, *later = shown.splitlines()
    assert first.startswith("ticket: ")
    assert all(line.startswith("  ") for line in later)


# --- The texts -------------------------------------------------------------------


def test_every_family_argues_for_the_target_and_changes_with_it() -> None:
    for name, write in FAMILIES.items():
        texts = [write(QUESTION, k) for k in range(4)]
        assert len(set(texts)) == 4, name
        for k, text in enumerate(texts):
            goal = "ABCD"[k] if name == "repeated label" else QUESTION.options[k]
            assert goal in text, name
    with pytest.raises(ValueError, match="repeated label"):
        hostile_items([ITEM], [0], "flattery")


def test_hostile_items_keep_the_question_and_the_state_before_the_text() -> None:
    for state, question in HOSTILE.values():
        assert question is QUESTION and state.startswith(STATE + "\n")
    state, _ = with_text(({"b": 1, "a": "x"}, QUESTION), "more")
    assert state == "a: x\nb: 1\nmore"


def test_neutral_text_argues_for_nothing() -> None:
    rng = np.random.default_rng(0)
    texts = {neutral_text(rng) for _ in range(50)}
    assert len(texts) > 40
    assert all(text.count(".") >= 4 for text in texts)
    departments = "billing infrastructure security product support".split()
    assert not any(word in " ".join(NEUTRAL).lower() for word in departments)


# --- Movement --------------------------------------------------------------------


def test_movement_by_hand() -> None:
    before = [[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1]]
    after = [[0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.1, 0.2, 0.7]]
    found = movement(before, after, [1, 1, 1])
    assert found.distance == pytest.approx([0.4, 0.1, 0.6])
    # Moved to the target; there already; moved, but elsewhere.
    assert found.flipped.tolist() == [1, 0, 0]
    assert found.push == pytest.approx([0.4, 0.1, -0.2])


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_push_never_exceeds_the_distance(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.dirichlet(np.ones(width), (2, 5))
    targets = rng.integers(0, width, 5)
    found = movement(before, after, targets)
    assert (np.abs(found.push) <= found.distance + 1e-12).all()
    assert (found.distance <= 1).all() and set(found.flipped) <= {0.0, 1.0}
    still = movement(before, before, targets)
    assert not still.distance.any() and not still.flipped.any()


def test_audit_measures_every_family_and_the_control() -> None:
    items = [(f"{STATE} {i}", QUESTION) for i in range(4)]
    targets = [0, 1, 2, 3]
    found = audit(letter(), items, targets, np.random.default_rng(0))
    assert list(found) == [*FAMILIES, "neutral"]
    assert all(m.distance.shape == (4,) for m in found.values())
    assert all(m.distance.min() > 0 for m in found.values())

    class Deaf(HashEncoder):
        def embed(self, texts: list[str]) -> np.ndarray:
            return super().embed([t.split("\n")[0] for t in texts])

    head = DecisionHead(Deaf(), 4)
    torch.nn.init.normal_(head.query, generator=torch.Generator().manual_seed(0))
    deaf = audit(head, items, targets, np.random.default_rng(0))
    assert all(m.distance.max() < 1e-6 for m in deaf.values())


# --- The record ------------------------------------------------------------------


@pytest.mark.skipif(
    not (results_dir() / "hostile.json").exists(), reason="no record of the audit"
)
def test_the_record_says_what_its_answers_say() -> None:
    record = json.loads((results_dir() / "hostile.json").read_text())
    targets, labels = record["targets"], np.array(record["labels"])
    assert len(targets) == len(labels) == record["setup"]["states"] == 200
    assert not (np.array(targets) == labels).any()
    assert set(record["answers"]) == {
        "averaged",
        "fenced",
        "hardened",
        "head",
        "letter",
        "verbatim",
    }
    for name, of in record["answers"].items():
        assert set(of) == {"bare", *FAMILIES, "neutral"}
        told = record["policies"][name]
        for condition, rows in of.items():
            p = np.array(rows)
            assert p.shape == (200, 4)
            # Rows hold four digits: where the first two are that close, and level
            # answers are, either may have been the best.
            others = np.where(np.eye(4, dtype=bool)[labels], -1, p).max(1)
            lead = p[np.arange(200), labels] - others
            assert (lead > 1.5e-4).mean() <= told["accuracy"][condition][0] + 1e-9
            assert told["accuracy"][condition][0] <= (lead > -1.5e-4).mean() + 1e-9
            if condition == "bare":
                continue
            found = movement(of["bare"], rows, targets)
            for field in ("distance", "flipped", "push"):
                estimate, low, high = told["moved"][condition][field]["value"]
                mean = getattr(found, field).mean()
                assert estimate == pytest.approx(mean, abs=0.01)
                assert low <= estimate <= high


@pytest.mark.skipif(
    not (results_dir() / "hostile.json").exists(), reason="no record of the audit"
)
@pytest.mark.data
def test_a_row_of_the_record_is_reproduced() -> None:
    from rlcd_core.data.triage import probe

    record = json.loads((results_dir() / "hostile.json").read_text())
    rng = np.random.default_rng(34)
    item = probe(200, rng, "seen")["one_cue"][0]
    turned = item.pick(rng.permutation(4).tolist())
    assert turned.label == record["labels"][0]
    asked = (turned.state, Choice(turned.question.text, turned.question.options))
    target = record["targets"][0]
    decider = Decider.load()
    hit = hostile_items([asked], [target], "fake answer")[0]
    for condition, (state, question) in (("bare", asked), ("fake answer", hit)):
        (answer,) = decider.ask(state, [question])
        then = record["answers"]["letter"][condition][0]
        assert answer.p == pytest.approx(then, abs=2e-3)
