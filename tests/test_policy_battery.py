"""Every kind of policy through the same battery, on tiny random models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcd_core.data.triage import probe
from rlcd_core.evaluate import Check, battery, known_posterior, probes
from rlcd_core.policy import (
    LetterPolicy,
    MaskedPolicy,
    PermutationAverage,
    StatedChoice,
    StatedPolicy,
    TabularPolicy,
    VerbatimPolicy,
)
from rlcd_core.policy.adapt import holder, lora, top_layers
from rlcd_core.policy.order import orders, reordered
from tests.tiny_models import (
    QUESTIONS,
    letter_policy,
    letter_tokenizer,
    tiny_bert,
    tiny_head,
    tiny_model,
    tiny_spans,
)

torch.set_num_threads(1)

ITEMS = [
    (f"Ticket {i}: the server is down.", question)
    for i in range(2)
    for question in QUESTIONS
]
LABELS = [i % len(q.options) for i, (_, q) in enumerate(ITEMS)]
EXTRA = "something unrelated"


def table() -> TabularPolicy:
    """Free logits for every item that the battery will ask."""
    turned = [(s, reordered(q, o)) for s, q in ITEMS for o in orders(q, 4)]
    asked = [item for made in probes(ITEMS, EXTRA).values() for item in made]
    policy = TabularPolicy([*ITEMS, *turned, *asked])
    with torch.no_grad():
        policy.logits.normal_(generator=torch.manual_seed(0))
    return policy


def adapted() -> LetterPolicy:
    """Adapters that have left zero."""
    policy = lora(letter_policy(), 4)
    with torch.no_grad():
        for name, parameter in holder(policy).model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.manual_seed(0))
    return policy


POLICIES = {
    "tabular": table,
    "letter": letter_policy,
    "letter, left": lambda: letter_policy("gpt2", padding="left"),
    "letter, top layer": lambda: top_layers(letter_policy("qwen3"), 1),
    "LoRA": adapted,
    "masked": lambda: MaskedPolicy(*tiny_bert()),
    "verbatim": lambda: VerbatimPolicy(tiny_model("gpt2"), letter_tokenizer()),
    "head": tiny_head,
    "spans": lambda: tiny_spans(4),
    "stated": lambda: StatedChoice(StatedPolicy(letter_policy("qwen3"))),
    "average": lambda: PermutationAverage(letter_policy("qwen3"), 4, "log"),
}
# Order and company cannot matter to these, by construction.
SYMMETRIC = {"head", "spans", "verbatim"}
MUST = {"mask", "sum", "determinism", "batch"}
PREDICTIONS = {
    "order distance",
    "binary equivalence",
    "wordings",
    "pairwise consistency",
    "irrelevant alternatives",
}


def run(policy: Any, **options: Any) -> dict[str, Check]:
    rng = np.random.default_rng(0)
    checks = battery(
        policy, ITEMS, LABELS, rng=rng, extra=EXTRA, n_resamples=100, **options
    )
    return {check.name: check for check in checks}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_goes_through_the_same_battery(name: str) -> None:
    checks = run(POLICIES[name]())
    assert {c.name for c in checks.values() if c.limit is not None} == MUST
    assert [c.name for c in checks.values() if not c.passed] == []
    assert checks["rescoring noise"].value <= 1e-6
    measured = {"rescoring noise", "order flip rate", "accuracy", "Brier", "ECE"}
    assert set(checks) == MUST | PREDICTIONS | measured
    for prediction in PREDICTIONS:
        check = checks[prediction]
        assert check.interval is not None
        assert 0 <= check.interval.low <= check.value <= check.interval.high <= 1
    exact = name in SYMMETRIC
    for prediction in ("order distance", "irrelevant alternatives"):
        assert (checks[prediction].value < 1e-5) == (
            exact or (prediction == "order distance" and name == "average")
        )
    assert (checks["pairwise consistency"].value < 1e-5) == exact
    assert checks["binary equivalence"].value > 1e-5


def test_averaging_over_all_orders_removes_the_order() -> None:
    """The arithmetic mean too; and with it nothing else has to hold."""
    plain = run(letter_policy("qwen3"))
    mean = run(PermutationAverage(letter_policy("qwen3"), 4, "arithmetic"))
    assert plain["order distance"].value > 0.01
    assert mean["order distance"].value < 1e-6 and mean["order flip rate"].value == 0


class SaysTrue(torch.nn.Module):
    """Two to one for what stands first, whatever it is."""

    def prepare(self, items: Any) -> Any:
        return tiny_head().prepare(items)

    def log_probs(self, batch: Any) -> torch.Tensor:
        p = batch.mask.float()
        p[:, 0] = 2.0
        return torch.where(batch.mask, (p / p.sum(1, keepdim=True)).log(), -1e9)


def test_both_wordings_catch_a_policy_that_likes_to_say_true() -> None:
    checks = run(SaysTrue())
    # p(a) / (p(a) + p(b)) is 2/3 in the pair, 2/3 in "a rather than b", 1/3 turned.
    assert checks["binary equivalence"].value == pytest.approx(1 / 6, abs=1e-6)
    assert checks["wordings"].value == pytest.approx(1 / 3, abs=1e-6)


class Knows(torch.nn.Module):
    """Answers with given probabilities, by ticket; `sure` moves them to the top."""

    def __init__(self, sure: float = 0.0, n: int = 30, seed: int = 0) -> None:
        super().__init__()
        drawn = probe(n, np.random.default_rng(seed))
        self.sure = sure
        self.told = {i.state: i.posterior for items in drawn.values() for i in items}

    def prepare(self, items: Any) -> Any:
        policy = TabularPolicy(items)
        with torch.no_grad():
            for (state, _, options), row in policy._rows.items():
                q = torch.tensor(self.told[state])
                top = torch.nn.functional.one_hot(q.argmax(), len(options))
                mixed = (1 - self.sure) * q + self.sure * top
                policy.logits[row, : len(options)] = mixed.clamp_min(1e-12).log()
        self.table = policy
        return policy.prepare(items)

    def log_probs(self, batch: Any) -> torch.Tensor:
        return self.table.log_probs(batch)


def test_known_posterior_by_hand() -> None:
    found = {check.kind: check for check in known_posterior(Knows(), 30)}
    ideals = {"one_cue": 1.0, "two_cues": 0.5, "escalate": 0.9}
    assert {kind: check.ideal for kind, check in found.items()} == pytest.approx(ideals)
    for kind, check in found.items():
        assert check.confidence.estimate == pytest.approx(ideals[kind], abs=1e-6)
        assert check.distance.estimate == pytest.approx(0, abs=1e-6)
        assert check.distance.n == 30 and check.top == 1
    sure = {c.kind: c for c in known_posterior(Knows(0.5), 30)}
    # Halfway to certainty: .5 becomes .75 and .9 becomes .95, as far from the truth.
    for kind, said, away in (("two_cues", 0.75, 0.25), ("escalate", 0.95, 0.05)):
        assert sure[kind].confidence.estimate == pytest.approx(said, abs=1e-6)
        assert sure[kind].distance.estimate == pytest.approx(away, abs=1e-6)
    with pytest.raises(ValueError, match="at least 2"):
        known_posterior(Knows(), 1)


@pytest.mark.parametrize("name", ["letter", "spans", "stated", "masked"])
def test_known_posterior_takes_any_policy(name: str) -> None:
    make = {
        "letter": lambda: letter_policy("gpt2"),
        "stated": lambda: StatedChoice(StatedPolicy(letter_policy(window=1024))),
    }
    found = known_posterior(make.get(name, POLICIES[name])(), 3, n_resamples=50)
    assert [check.kind for check in found] == ["one_cue", "two_cues", "escalate"]
    for check in found:
        assert 0 <= check.distance.low <= check.distance.high <= 1
        assert check.confidence.low >= 0.25 - 1e-6


TOKENIZER = letter_tokenizer()
