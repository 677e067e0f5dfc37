"""The battery: what it must find, and what it must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcd_core.evaluate import (
    Check,
    answers_by_order,
    battery,
    order_sensitivity,
    probes,
    total_variation,
)
from rlcd_core.metrics import MetricError, accuracy
from rlcd_core.policy import (
    DecisionHead,
    LetterPolicy,
    MaskedPolicy,
    PermutationAverage,
    VerbatimPolicy,
    predict,
)
from rlcd_core.schema import Choice, Noul
from rlcd_core.scoring import brier
from tests.tiny_models import (
    QUESTIONS,
    HashEncoder,
    letter_tokenizer,
    tiny_bert,
    tiny_model,
)

torch.set_num_threads(1)

ITEMS = [
    (f"Ticket {i}: the server is down.", question)
    for i in range(3)
    for question in QUESTIONS
]


def head() -> DecisionHead:
    policy = DecisionHead(HashEncoder(), 4)
    with torch.no_grad():
        policy.query.normal_(generator=torch.manual_seed(0))
    return policy


def run(policy: Any, **options: Any) -> dict[str, Check]:
    rng = np.random.default_rng(0)
    checks = battery(policy, ITEMS, rng=rng, n_resamples=200, **options)
    return {check.name: check for check in checks}


POLICIES = {
    "head": head,
    "letter": lambda: LetterPolicy(tiny_model("llama"), letter_tokenizer()),
    "verbatim": lambda: VerbatimPolicy(tiny_model("gpt2"), letter_tokenizer()),
    "masked": lambda: MaskedPolicy(*tiny_bert()),
    "average": lambda: PermutationAverage(
        LetterPolicy(tiny_model("qwen3"), letter_tokenizer()), 4, "log"
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_passes_what_has_a_limit(name: str) -> None:
    checks = run(POLICIES[name]())
    assert [c.name for c in checks.values() if not c.passed] == []
    assert {c.name for c in checks.values() if c.limit is not None} == {
        "mask",
        "sum",
        "determinism",
        "batch",
    }
    predictions = ("binary equivalence", "irrelevant alternatives", "order distance")
    for prediction in predictions:
        interval = checks[prediction].interval
        assert interval is not None and interval.low <= checks[prediction].value
    exact = name in ("head", "verbatim")
    for prediction in ("pairwise consistency", "irrelevant alternatives"):
        assert (checks[prediction].value < 1e-5) == exact
    assert (checks["order flip rate"].value == 0) == (exact or name == "average")


class Broken(torch.nn.Module):
    """A head with one planted fault."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.head, self.fault, self.calls = head(), fault, 0

    def prepare(self, items: Any) -> Any:
        return self.head.prepare(items)

    def log_probs(self, batch: Any) -> torch.Tensor:
        self.calls += 1
        log_p = self.head.log_probs(batch)
        match self.fault:
            case "mask":
                return torch.where(batch.mask, log_p, -8.0)
            case "sum":
                return log_p - 0.01
            case "determinism":
                return (log_p + 1e-3 * self.calls).log_softmax(-1) + self.calls * 1e-4
            case "batch":
                return (log_p + len(batch) * log_p.clamp_min(-9)).log_softmax(-1)
        raise AssertionError


@pytest.mark.parametrize("fault", ["mask", "sum", "determinism", "batch"])
def test_each_planted_fault_is_found(fault: str) -> None:
    failed = [c.name for c in run(Broken(fault)).values() if not c.passed]
    assert fault in failed


def test_calibration_agrees_with_the_metrics() -> None:
    policy = POLICIES["letter"]()
    labels = [i % len(q.options) for i, (_, q) in enumerate(ITEMS)]
    checks = run(policy, labels=labels)
    prepared = policy.prepare(ITEMS)
    p = predict(policy, prepared).astype(np.float64)
    p /= p.sum(1, keepdims=True)
    assert checks["accuracy"].value == pytest.approx(accuracy(p, labels))
    expected = np.mean(brier(p, labels, mask=prepared.mask.numpy()))
    assert checks["Brier"].value == pytest.approx(expected)
    assert checks["ECE"].interval is not None and checks["ECE"].n == len(ITEMS)


def test_one_label_does_not_stand_for_all_items() -> None:
    with pytest.raises(MetricError, match="one label per row"):
        run(head(), labels=[0])


@pytest.mark.parametrize("fault", ["mask", "sum"])
def test_a_faulty_policy_with_labels_is_reported_and_no_crash(fault: str) -> None:
    labels = [0] * len(ITEMS)
    checks = run(Broken(fault), labels=labels)
    assert not checks[fault].passed
    # What is left after the fault is that of the whole policy.
    assert checks["Brier"].value == pytest.approx(
        run(head(), labels=labels)["Brier"].value
    )


def test_order_sensitivity_by_hand() -> None:
    class First(torch.nn.Module):
        """Says .7 for whatever stands first."""

        def prepare(self, items: Any) -> Any:
            return head().prepare(items)

        def log_probs(self, batch: Any) -> torch.Tensor:
            count = batch.mask.sum(1, keepdim=True)
            p = (0.3 / (count - 1)).repeat(1, batch.mask.shape[1])
            p[:, 0] = 0.7
            return torch.where(batch.mask, p.log(), -1e9)

    items = [("s", Choice("?", ["a", "b", "c", "d"])), ("s", Noul("?"))]
    answers = answers_by_order(First(), items, count=4)
    assert answers[0].shape == (4, 4)
    assert answers[0][1] == pytest.approx([0.1, 0.7, 0.1, 0.1])
    flips, distances = order_sensitivity(answers)
    assert flips.tolist() == [1, 1]
    assert distances == pytest.approx([0.6, 0.4])
    still = order_sensitivity(answers_by_order(head(), items))
    assert still[0].tolist() == [0, 0]
    assert total_variation([1, 0, 0], [0, 0.5, 0.5]) == 1


def test_probes_concern_the_first_two_options() -> None:
    made = probes(ITEMS[:3], "none")
    assert [len(asked) for asked in made.values()] == [2, 2, 2, 2, 2]
    assert made["pair"][0][1].options == ("billing", "infrastructure")
    assert made["more"][0][1].options == (*QUESTIONS[0].options, "none")
    text = made["noul"][0][1].text
    assert text == "Which team? Is the answer 'billing' rather than 'infrastructure'?"
    text = made["turned"][0][1].text
    assert text == "Which team? Is the answer 'infrastructure' rather than 'billing'?"
