"""Time one optimiser step of ours beside TRL's; writes ``results/training_speed.json``.

TRL is no dependency of the project. Put it beside the project's own packages::

    pip install --no-deps --target _build/trl trl==1.14.2
    PYTHONPATH=_build/trl OMP_NUM_THREADS=1 python tests/bench/training.py small smollm2

1.14.2 is the last release whose trainer multiplies only the last places by the output
matrix; later ones take all places on a CPU and are slower at this. Each release has an
entry of its own in the record.

Both sides train the same weights on the same prompts, all of them in one batch, with
AdamW, the same clipping and the same group size, in one process and on one thread. The
clock is processor time (so that other work on the machine hardly enters), read when the
reward is asked for: between two readings lies one whole step, whatever it consists of.

*Ours*: one forward pass a prompt, the options' rows of the output matrix, G actions
drawn from them, one backward pass, clip, AdamW.
*TRL* (`GRPOTrainer`, completions of one token, no KL term, no reference model, one
update a batch, nothing logged or saved, no gradient checkpointing, float32): G copies
of each prompt are generated from, then passed through the model again for their
log-probabilities, then backward, clip, AdamW. This is what the trainer does for any
task; it cannot know that all G completions share one distribution.

Beside it: the same prompts through plain transformers (forward, logits of the last
place, cross-entropy, backward; with and without the optimiser), so that what our loop
adds can be read off, and the machine's matrix products, so that the fraction of its
peak can.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from rlcd_core.data.build import load_items
from rlcd_core.env import LabelEnv
from rlcd_core.files import write_atomically
from rlcd_core.metrics import seed_interval
from rlcd_core.policy import LetterPolicy
from rlcd_core.policy.loading import smollm2_directory
from rlcd_core.records import hardware, results_dir, versions
from rlcd_core.schema import render_prefix, render_suffix
from rlcd_core.train import Arm, TrainConfig, train

RATE, CLIP, BETAS, DECAY = 1e-6, 1.0, (0.9, 0.95), 0.01
# Prompts a step, timed steps a repetition, repetitions, group sizes.
SIZES = {"small": (8, 1, 5, (2, 4, 8)), "smollm2": (4, 1, 3, (4,))}
PEAK_SIDE = 1536


def fresh_model(kind: str) -> tuple[Any, Any]:
    """Model and tokenizer: packaged SmolLM2, or a random Llama with its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    folder = smollm2_directory()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if kind == "smollm2":
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return model, tokenizer
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return AutoModelForCausalLM.from_config(config), tokenizer


class Clock:
    """Processor time at each reading; the gaps after the first are whole steps."""

    def __init__(self) -> None:
        self.readings: list[float] = []

    def read(self) -> None:
        """Note the time."""
        self.readings.append(time.process_time())

    def seconds(self) -> float:
        """Median of the gaps; the first step, which warms up, is left out."""
        return statistics.median(np.diff(self.readings[1:]).tolist())


class ClockedEnv(LabelEnv):
    """Reads the clock when it is asked for outcomes, once a step."""

    __slots__ = ("clock",)

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Outcomes of the actions taken."""
        self.clock.read()
        return super().outcomes(rows, actions)


def time_ours(
    policy: LetterPolicy, items: list[Any], labels: np.ndarray, group: int, steps: int
) -> float:
    """Processor seconds of one step of :func:`rlcd_core.train.train`."""
    arm = Arm("rlcd_loo", "RLCD", "rlcd_loo", group_size=group)
    batch = len(items) * group
    config = TrainConfig(
        learning_rate=RATE,
        outcomes=batch * (steps + 2),
        outcomes_per_step=batch,
        betas=BETAS,
        weight_decay=DECAY,
        clip=CLIP,
    )
    env = ClockedEnv(labels, len(items[0][1].options))
    env.clock = Clock()
    train(policy, policy.prepare(items), np.arange(len(items)), env, arm, config, 0)
    return env.clock.seconds()


def time_trl(
    model: Any,
    tokenizer: Any,
    prompts: list[str],
    answers: list[str],
    group: int,
    steps: int,
) -> float:
    """Processor seconds of one step of `trl.GRPOTrainer`, one-token completions."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    clock = Clock()

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        clock.read()
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,  # on by default in TRL
            per_device_train_batch_size=len(prompts) * group,
            gradient_accumulation_steps=1,
            num_generations=group,
            max_completion_length=1,
            num_iterations=1,
            beta=0.0,
            temperature=1.0,
            scale_rewards="none",
            use_vllm=False,
            shuffle_dataset=False,
            max_steps=steps + 2,
            learning_rate=RATE,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            weight_decay=DECAY,
            max_grad_norm=CLIP,
            optim="adamw_torch",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_num_workers=0,
            seed=0,
        )
        data = Dataset.from_dict({"prompt": prompts, "answer": answers})
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=data,
            processing_class=tokenizer,
        )
        trainer.train()
    return clock.seconds()


def time_plain(
    model: Any, tokenizer: Any, prompts: list[str], labels: list[int], steps: int
) -> dict[str, float]:
    """The same prompts through transformers alone: with and without the optimiser."""
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=BETAS, weight_decay=DECAY, foreach=True
    )
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    target = torch.tensor(labels)
    model.train()
    passes, wholes = [], []
    for _ in range(steps + 1):
        start = time.process_time()
        optimiser.zero_grad(set_to_none=True)
        logits = model(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1]
        torch.nn.functional.cross_entropy(logits, target).backward()
        passes.append(time.process_time() - start)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
        optimiser.step()
        wholes.append(time.process_time() - start)
    return {
        "passes": statistics.median(passes[1:]),
        "with_optimiser": statistics.median(wholes[1:]),
    }


def peak(side: int = PEAK_SIDE) -> float:
    """Float32 operations a second of a large matrix product, the best of four."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    taken = []
    for _ in range(4):
        start = time.process_time()
        a @ b
        taken.append(time.process_time() - start)
    return 2 * side**3 / min(taken)


def operations(policy: LetterPolicy, items: list[Any]) -> float:
    """Floating-point operations of the products in one forward and backward pass."""
    batch = policy.prepare(items).take(range(len(items)))
    with FlopCounterMode(display=False) as counter:
        policy.log_probs(batch)[:, 0].sum().backward()
    policy.zero_grad(set_to_none=True)
    return float(counter.get_total_flops())


def interval(values: list[float], digits: int = 4) -> dict[str, Any]:
    """Geometric mean and its 95 % t interval over repetitions, with the values."""
    found = seed_interval([math.log(v) for v in values])
    return {
        "mean": round(math.exp(found.estimate), digits),
        "low": round(math.exp(found.low), digits),
        "high": round(math.exp(found.high), digits),
        "values": [round(v, digits) for v in values],
    }


def measure(kind: str) -> dict[str, Any]:
    """All pairs of one model, repetitions interleaved."""
    import trl

    size, steps, repetitions, groups = SIZES[kind]
    rows = load_items("trec", "train")[:size]
    items = [(row.state, row.question) for row in rows]
    labels = np.array([row.label for row in rows])
    model, tokenizer = fresh_model(kind)
    models = {"trl": model, "plain": copy.deepcopy(model)}
    policy = LetterPolicy(copy.deepcopy(model), tokenizer)
    prompts = [render_prefix(s) + render_suffix(q, policy.labels) for s, q in items]
    answers = [f" {policy.labels[y]}" for y in labels]
    tokens = [len(ids) for ids in tokenizer(prompts)["input_ids"]]
    mine = policy.prepare(items).take(range(size)).inputs["lengths"].tolist()
    if tokens != mine:
        raise ValueError(f"the two sides read different prompts: {tokens} and {mine}")
    work = operations(policy, items)

    calls: dict[str, Callable[[], Any]] = {"peak": peak}
    for group in groups:
        calls[f"ours_{group}"] = lambda g=group: time_ours(
            policy, items, labels, g, steps
        )
        calls[f"trl_{group}"] = lambda g=group: time_trl(
            models["trl"], tokenizer, prompts, answers, g, steps
        )
    targets = [tokenizer(a)["input_ids"][-1] for a in answers]
    calls["plain"] = lambda: time_plain(
        models["plain"], tokenizer, prompts, targets, steps
    )
    taken: dict[str, list[Any]] = {name: [] for name in calls}
    for repetition in range(repetitions):
        # Each repetition in the other direction: slow drifts cancel.
        for name in list(calls)[:: 1 if repetition % 2 == 0 else -1]:
            taken[name].append(calls[name]())
        print(kind, repetition, {k: v[-1] for k, v in taken.items()}, flush=True)

    pairs = {}
    for group in groups:
        ours, theirs = taken[f"ours_{group}"], taken[f"trl_{group}"]
        pairs[str(group)] = {
            "ours_seconds": interval(ours),
            "trl_seconds": interval(theirs),
            "ours_prompts_per_second": interval([size / s for s in ours]),
            "trl_prompts_per_second": interval([size / s for s in theirs]),
            "ratio": interval([b / a for a, b in zip(ours, theirs, strict=True)]),
        }
    plain = {
        key: [run[key] for run in taken["plain"]]
        for key in ("passes", "with_optimiser")
    }
    step = taken["ours_4"]
    return {
        "model": {
            "class": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters()),
            "weights": "packaged" if kind == "smollm2" else "random",
        },
        "setup": {
            "prompts": size,
            "tokens": tokens,
            "options": len(items[0][1].options),
            "timed_steps": steps,
            "repetitions": repetitions,
            "clock": "processor time of one thread, whole steps",
            "trl": trl.__version__,
        },
        "pairs": pairs,
        "plain_seconds": {key: interval(values) for key, values in plain.items()},
        "over_plain": {
            key: interval([a / b for a, b in zip(step, values, strict=True)])
            for key, values in plain.items()
        },
        "operations_per_step": work,
        "peak_operations_per_second": interval(taken["peak"], 0),
        "fraction_of_peak": interval(
            [work / s / top for s, top in zip(step, taken["peak"], strict=True)]
        ),
    }


def main(kinds: list[str]) -> None:
    """Measure the models named and write them into the record."""
    path = results_dir() / "training_speed.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for kind in kinds:
        run = measure(kind) | {"hardware": hardware(), "versions": versions()}
        found[f"{kind}_trl_{run['setup']['trl']}"] = run
        text = json.dumps(found, indent=1, sort_keys=True) + "\n"
        write_atomically(path, text.encode())
        print(json.dumps(run["pairs"]["4"]["ratio"]), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or list(SIZES))
