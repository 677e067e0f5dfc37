"""Asking: the shared prefix, its equality with single prompts, typed answers."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch

from rlcd_core.decider import Decider
from rlcd_core.policy import DecisionHead, PolicyError, TabularPolicy, predict
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.schema import (
    ChoiceAnswer,
    Noul,
    NoulAnswer,
    SchemaError,
    ScoreAnswer,
    instance_from_answers,
)
from tests.test_policy_base import HashEncoder
from tests.tiny_models import KINDS, QUESTIONS, STATE, letter_tokenizer, tiny_model

torch.set_num_threads(1)


def letter_decider(kind: str = "llama", **options: Any) -> Decider:
    return Decider(LetterPolicy(tiny_model(kind), letter_tokenizer(), **options))


def shared_calls(decider: Decider, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the questions of each call that shares the prefix."""
    calls: list[int] = []
    original = decider.policy.shared_log_probs

    def counted(shared: Any) -> torch.Tensor:
        calls.append(len(shared.suffixes))
        return original(shared)

    monkeypatch.setattr(decider.policy, "shared_log_probs", counted)
    return calls


@pytest.mark.parametrize("kind", KINDS)
def test_three_questions_equal_three_single_full_prompts(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider = letter_decider(kind)
    calls = shared_calls(decider, monkeypatch)
    answers = decider.ask(STATE, QUESTIONS)
    assert calls == [3]
    assert [type(a) for a in answers] == [ChoiceAnswer, ScoreAnswer, NoulAnswer]
    prepared = decider.policy.prepare([(STATE, q) for q in QUESTIONS])
    for row, answer in enumerate(answers):
        alone = predict(decider.policy, prepared, [row])[0][: len(answer.p)]
        assert answer.p == pytest.approx(alone.tolist(), abs=1e-6)
    json.dumps([answer.to_dict() for answer in answers], allow_nan=False)


def test_order_and_company_do_not_matter() -> None:
    decider = letter_decider()
    alone = {q: decider.ask(STATE, [q])[0].p for q in QUESTIONS}
    for size in (2, 3):
        for chosen in itertools.permutations(QUESTIONS, size):
            for question, answer in zip(
                chosen, decider.ask(STATE, chosen), strict=True
            ):
                assert answer.p == pytest.approx(alone[question], abs=1e-6)
    twice = decider.ask(STATE, [QUESTIONS[0]] * 5)
    assert all(a.p == pytest.approx(alone[QUESTIONS[0]], abs=1e-6) for a in twice)


def test_a_second_call_does_not_see_the_first() -> None:
    decider = letter_decider()
    first = decider.ask(STATE, QUESTIONS)
    decider.ask("Another state entirely.", QUESTIONS[::-1])
    assert [a.p for a in decider.ask(STATE, QUESTIONS)] == [a.p for a in first]


def test_one_question_takes_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    decider = letter_decider()
    calls = shared_calls(decider, monkeypatch)
    plain = predict(
        decider.policy, decider.policy.prepare([(STATE, QUESTIONS[0])])
    ).tolist()
    assert list(decider.ask(STATE, [QUESTIONS[0]])[0].p) == plain[0]
    assert calls == []
    decider.pass_tokens = 10**6
    decider.ask(STATE, QUESTIONS)
    assert calls == []
    # One question is not even tokenised for sharing.
    monkeypatch.setattr(decider.policy, "share", None)
    decider.ask(STATE, [QUESTIONS[0]])


def test_names_json_schema_and_one_question() -> None:
    decider = letter_decider()
    plain = decider.ask(STATE, QUESTIONS)
    named = decider.ask(
        STATE, {"team": QUESTIONS[0], "page": {"kind": "noul", "text": "Urgent?"}}
    )
    assert list(named) == ["team", "page"]
    assert named["team"].p == pytest.approx(plain[0].p, abs=1e-6)
    schema = {
        "type": "object",
        "properties": {
            "team": {
                "enum": list(QUESTIONS[0].options),
                "description": QUESTIONS[0].text,
            },
            "page": {"type": "boolean", "description": QUESTIONS[2].text},
            "level": {"type": "integer", "minimum": 1, "maximum": 3},
        },
    }
    answers = decider.ask(STATE, schema)
    assert answers["page"].p == pytest.approx(plain[2].p, abs=1e-6)
    instance = json.loads(json.dumps(instance_from_answers(schema, answers)))
    assert instance["team"] in QUESTIONS[0].options
    assert isinstance(instance["page"], bool) and instance["level"] in (1, 2, 3)
    assert decider.ask(STATE, QUESTIONS[2])[0].p == pytest.approx(plain[2].p, abs=1e-6)


def test_states_as_mapping_and_turns() -> None:
    decider = letter_decider()
    assert decider.ask({"b": 1, "a": "x"}, QUESTIONS) == decider.ask(
        {"a": "x", "b": 1}, QUESTIONS
    )
    turns = [{"role": "user", "content": "Down!"}, ("agent", "Since when?")]
    assert len(decider.ask(turns, QUESTIONS)) == 3


def test_ask_many_is_lazy_and_in_order() -> None:
    decider = letter_decider()
    taken: list[int] = []

    def requests() -> Any:
        for i in range(3):
            taken.append(i)
            yield f"state {i}", QUESTIONS

    stream = decider.ask_many(requests())
    assert taken == []
    assert next(stream) == decider.ask("state 0", QUESTIONS)
    assert taken == [0]
    assert len(list(stream)) == 2


def test_over_the_window() -> None:
    state = "word " * 300
    with pytest.raises(PolicyError, match="truncate=True"):
        letter_decider(max_tokens=256).ask(state, QUESTIONS)
    cut = letter_decider(max_tokens=256, truncate=True)
    answers = cut.ask(state, QUESTIONS)
    assert answers[0].p == pytest.approx(cut.ask(state, QUESTIONS[:1])[0].p, abs=1e-6)


def test_bad_input_is_named() -> None:
    decider = letter_decider()
    for state in ("", "  \n", {}, []):
        with pytest.raises(SchemaError, match="empty"):
            decider.ask(state, QUESTIONS)
    with pytest.raises(SchemaError, match="at least one"):
        decider.ask(STATE, [])
    with pytest.raises(SchemaError, match="at least one"):
        decider.ask(STATE, {})
    with pytest.raises(SchemaError, match="at least one"):
        decider.ask(STATE, None)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="no question"):
        decider.ask(STATE, ["Which team?"])  # type: ignore[list-item]
    with pytest.raises(SchemaError, match="team"):
        decider.ask(STATE, {"team": {"kind": "choice", "text": "?", "options": ["a"]}})


def test_any_policy_can_be_asked() -> None:
    head = Decider(DecisionHead(HashEncoder(), 4))
    assert [a.confidence for a in head.ask(STATE, QUESTIONS)] == pytest.approx(
        [1 / 4, 1 / 3, 1 / 2]
    )
    table = Decider(TabularPolicy([(STATE, q) for q in QUESTIONS]))
    assert table.ask(STATE, [QUESTIONS[2]])[0].p == (0.5, 0.5)


def test_bfloat16_shared_path_is_as_close_as_the_plain_one() -> None:
    exact = letter_decider()
    half = Decider(
        LetterPolicy(tiny_model("llama").to(torch.bfloat16), letter_tokenizer())
    )
    errors = {"shared": 0.0, "plain": 0.0}
    questions = [Noul(f"Is it case {i}?") for i in range(12)]
    for i in range(4):
        state = f"{STATE} Case {i}."
        for j, answer in enumerate(half.ask(state, questions)):
            truth = exact.ask(state, [questions[j]])[0].p[0]
            plain = half.ask(state, [questions[j]])[0].p[0]
            errors["shared"] += abs(answer.p[0] - truth)
            errors["plain"] += abs(plain - truth)
    assert errors["plain"] > 0
    # The rounding of so small a model is noisy: 1.1 holds over many more prompts.
    assert errors["shared"] <= 1.3 * errors["plain"]


@pytest.mark.data
def test_smollm2_equals_single_full_prompts() -> None:
    decider = Decider.load()
    prepared = decider.policy.prepare([(STATE, q) for q in QUESTIONS])
    for row, answer in enumerate(decider.ask(STATE, QUESTIONS)):
        alone = predict(decider.policy, prepared, [row])[0][: len(answer.p)]
        assert answer.p == pytest.approx(alone.tolist(), abs=1e-5)
