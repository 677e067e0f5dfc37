"""Training the top layers alone, or low-rank adapters, and getting a plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from rlcd_core.arms import ARMS
from rlcd_core.env import RaterEnv
from rlcd_core.policy import (
    LetterPolicy,
    MaskedPolicy,
    PermutationAverage,
    PolicyError,
    StatedChoice,
    StatedPolicy,
    TabularPolicy,
    VerbatimPolicy,
    predict,
)
from rlcd_core.policy.adapt import layers_of, lora, merge, top_layers, trained
from rlcd_core.train import TrainConfig, train
from tests.tiny_models import (
    KINDS,
    QUESTIONS,
    STATE,
    letter_policy,
    letter_tokenizer,
    tiny_bert,
    tiny_model,
    tiny_spans,
)

torch.set_num_threads(1)

ITEMS = [(f"{STATE} Ticket {i}.", q) for i in range(2) for q in QUESTIONS]
COUNTS = np.array([[9, 1, 0, 0], [1, 9, 0, 0], [0, 10, 0, 0]] * 2)


MAKE = {
    **{kind: lambda kind=kind: letter_policy(kind) for kind in KINDS},
    "verbatim": lambda: VerbatimPolicy(tiny_model("llama"), letter_tokenizer()),
    "masked": lambda: MaskedPolicy(*tiny_bert()),
    "spans": tiny_spans,
    "average": lambda: PermutationAverage(letter_policy(), 2),
    "stated": lambda: StatedChoice(StatedPolicy(letter_policy())),
}


def fit(policy: Any, steps: int = 6, **options: Any) -> Any:
    env = RaterEnv(COUNTS, 0)
    config = TrainConfig(
        1e-2, outcomes=12 * steps, outcomes_per_step=12, checkpoint_every=3
    )
    prepared = policy.prepare(ITEMS)
    rows = np.arange(len(ITEMS))
    return train(policy, prepared, rows, env, ARMS["rlcd"], config, 0, **options)


@pytest.mark.parametrize("name", MAKE)
def test_only_the_top_layers_move(name: str) -> None:
    policy = MAKE[name]()
    start = predict(policy, policy.prepare(ITEMS))
    assert top_layers(policy, 1) is policy
    assert (predict(policy, policy.prepare(ITEMS)) == start).all()
    before = {n: p.detach().clone() for n, p in policy.named_parameters()}
    allowed = {n for n, p in policy.named_parameters() if p.requires_grad}
    kept = ("query", "key", "norm.", "ln_f.")
    assert all(".1." in n or any(part in n for part in kept) for n in allowed), sorted(
        allowed
    )
    assert not any("embed" in n or ".0." in n or "wte" in n for n in allowed)
    fit(policy, 2)
    moved = {n for n, p in policy.named_parameters() if not torch.equal(p, before[n])}
    assert moved and moved <= allowed
    assert np.abs(predict(policy, policy.prepare(ITEMS)) - start).max() > 1e-4


@pytest.mark.parametrize("name", MAKE)
def test_adapters_start_as_nothing_train_and_merge(name: str) -> None:
    policy = MAKE[name]()
    prepared = policy.prepare(ITEMS)
    start = predict(policy, prepared)
    random = torch.get_rng_state()
    assert lora(policy, 4) is policy
    assert torch.equal(torch.get_rng_state(), random)
    assert predict(policy, prepared) == pytest.approx(start, abs=1e-6)
    allowed = {n for n, p in policy.named_parameters() if p.requires_grad}
    assert allowed and all("lora_" in n or n in ("query", "key") for n in allowed)
    before = {n: p.detach().clone() for n, p in policy.named_parameters()}
    fit(policy, 3)
    moved = {n for n, p in policy.named_parameters() if not torch.equal(p, before[n])}
    assert moved and moved <= allowed
    adapted = predict(policy, prepared)
    assert np.abs(adapted - start).max() > 1e-3
    assert merge(policy) is policy
    assert not any("lora" in n for n, _ in policy.named_parameters())
    assert predict(policy, prepared) == pytest.approx(adapted, abs=1e-5)


def test_a_merged_model_is_saved_and_loaded_as_a_plain_one(tmp_path: Path) -> None:
    policy = lora(letter_policy(), 4)
    fit(policy, 3)
    adapted = predict(policy, policy.prepare(ITEMS))
    merge(policy).model.save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    loaded = LetterPolicy.load(tmp_path)
    assert predict(loaded, loaded.prepare(ITEMS)) == pytest.approx(adapted, abs=1e-5)
    assert loaded.share(STATE, QUESTIONS) is not None


def test_the_shared_prefix_works_through_adapters() -> None:
    policy = lora(letter_policy(), 4)
    fit(policy, 3)
    shared = policy.share(STATE, QUESTIONS)
    with torch.inference_mode():
        once = policy.shared_log_probs(shared).exp().numpy()
    full = policy.prepare([(STATE, q) for q in QUESTIONS])
    assert once == pytest.approx(predict(policy, full), abs=1e-6)


@pytest.mark.parametrize("how", [lora, top_layers])
def test_checkpoints_hold_what_is_trained_and_resume_exactly(
    how: Any, tmp_path: Path
) -> None:
    whole = how(letter_policy(), 1)
    fit(whole)
    path = tmp_path / "run.safetensors"
    fit(how(letter_policy(), 1), checkpoint=path)
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        held = sum(file.get_tensor(n).numel() for n in names if n.startswith("p."))
    everything = sum(p.numel() for p in whole.parameters())
    assert held == trained(whole) < everything / 2

    class Killed(Exception):
        pass

    calls = []

    def die(_: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return {"accuracy": 1.0}

    path.unlink()
    env, rows = RaterEnv(COUNTS, 0), np.arange(len(ITEMS))
    config = TrainConfig(
        1e-2, outcomes=72, outcomes_per_step=12, checkpoint_every=3, eval_every=2
    )
    for attempt in (0, 1):
        policy = how(letter_policy(), 1)
        prepared = policy.prepare(ITEMS)
        arguments = (policy, prepared, rows, env, ARMS["rlcd"], config, 0)
        options = {"checkpoint": path, "evaluate": die}
        if attempt == 0:
            with pytest.raises(Killed):
                train(*arguments, **options)
            assert path.exists()
            env = RaterEnv(COUNTS, 0)
        else:
            train(*arguments, **options)
    for a, b in zip(whole.parameters(), policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_seed_fixes_the_adapters_and_targets_choose_layers() -> None:
    first, same, other = (lora(letter_policy(), 4, seed=s) for s in (1, 1, 2))

    def adapters(policy: Any) -> torch.Tensor:
        parts = [p.flatten() for n, p in policy.named_parameters() if "lora_A" in n]
        return torch.cat(parts)

    assert torch.equal(adapters(first), adapters(same))
    assert not torch.equal(adapters(first), adapters(other))
    few = lora(letter_policy(), 4, targets=["q_proj"])
    names = {n.split(".")[-4] for n, p in few.named_parameters() if p.requires_grad}
    assert names == {"q_proj"}
    assert len(layers_of(few.model)) == 2


def test_what_cannot_be_adapted_is_named() -> None:
    table = TabularPolicy(ITEMS)
    for act in (lambda: lora(table), lambda: top_layers(table, 1)):
        with pytest.raises(PolicyError, match="TabularPolicy holds no"):
            act()
    for n in (0, 3):
        with pytest.raises(PolicyError, match="has 2 layers"):
            top_layers(letter_policy(), n)
    with pytest.raises(PolicyError, match="rank=0"):
        lora(letter_policy(), 0)
    with pytest.raises(PolicyError, match="no adapters to merge"):
        merge(letter_policy())
    with pytest.raises(PolicyError, match="adapters already"):
        lora(lora(letter_policy(), 2), 2)
