"""The one training loop.

An arm is a frozen record, not a branch: it names an objective of
:mod:`rlcd_core.rewards`, how many actions a question gets and how they are drawn.
The loop below reads top to bottom and never asks which arm it runs.

Every random choice is a function of ``(seed, step)`` or lives in the environment's
saved state, so a run that is killed and resumed takes the same steps, bit for bit,
on the same machine.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from rlcd_core.env import Env, LoggedEnv
from rlcd_core.files import write_atomically
from rlcd_core.rewards import OBJECTIVES, STATED, Feedback, sample_actions

# One independent stream per purpose: the order of rows never shifts because an arm
# draws more actions.
_ROWS, _ACTIONS, _REPLAYS = 1, 2, 3
_KNOWN = OBJECTIVES | STATED
# What a replay needs of the feedback it repeats.
_HEARD = ("actions", "outcomes", "propensities", "labels", "rankings")


@dataclass(frozen=True)
class Arm:
    """What is compared: an objective and how its actions are drawn.

    Parameters
    ----------
    name : str
        Identifier, used for files, colours and tables.
    label : str
        The name in running text.
    objective : str
        Key of ``rewards.OBJECTIVES``, or of ``rewards.STATED`` for pairs.
    group_size : int
        Actions ``G`` per question; 1 for arms that see labels or rankings.
    shared_outcome : bool
        True: one label judges the whole group. False: each action meets its own draw.
    replacement : bool
        Whether the actions of a group may repeat.
    epsilon, temperature : float
        Behaviour policy: ``(1 - epsilon) softmax(z / temperature) + epsilon / K``.
    rate_scale : float
        Multiplies the configuration's learning rate (the low-rate RLVR arm: 0.2).
    reference : bool
        Whether the objective compares with the policy as it was at the start.
    """

    name: str
    label: str
    objective: str
    group_size: int = 1
    shared_outcome: bool = True
    replacement: bool = True
    epsilon: float = 0.0
    temperature: float = 1.0
    rate_scale: float = 1.0
    reference: bool = False

    def __post_init__(self) -> None:
        if self.objective not in _KNOWN:
            raise ValueError(
                f"arm {self.name!r}: unknown objective {self.objective!r}; "
                f"choose one of {', '.join(sorted(_KNOWN))}"
            )
        if self.group_size < 1 or (self.needs != "outcome" and self.group_size > 1):
            raise ValueError(
                f"arm {self.name!r}: group_size {self.group_size} must be at least 1, "
                "and 1 where a label or a ranking is told"
            )
        if not (0 <= self.epsilon <= 1 and 0 < self.temperature < math.inf):
            raise ValueError(
                f"arm {self.name!r}: epsilon {self.epsilon} must be in [0, 1] and "
                f"temperature {self.temperature} positive"
            )

    @property
    def needs(self) -> str:
        """``"outcome"`` (bandit feedback), ``"label"`` or ``"ranking"``."""
        return _KNOWN[self.objective].needs


@dataclass(frozen=True)
class TrainConfig:
    """Sizes and optimiser settings of one run, the same for every arm compared.

    ``outcomes`` is the budget in revealed bits (for label arms: labels), and
    ``outcomes_per_step`` the batch, so that arms with groups take the same number of
    optimiser steps on the same number of outcomes and differ in distinct questions.
    ``checkpoint_every`` is the number of steps between checkpoints, 0 leaves it to the
    measured time (`Saving`).

    Each batch of fresh outcomes may be followed by ``replays`` further steps on batches
    that were heard before, drawn at random, with the actions and outcomes of then. They
    cost computing but no outcome. What is learned from another policy's actions stays
    honest only for objectives that end at p = q under any behaviour policy
    (`thm-behaviour`).
    """

    learning_rate: float = 2e-3
    outcomes: int = 60_000
    outcomes_per_step: int = 64
    warmup_fraction: float = 0.05
    final_rate: float = 0.1
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    micro_batch: int | None = None
    weight_average: float = 0.0
    eval_every: int = 0
    stop_drop: float = 0.10
    stop_patience: int = 3
    checkpoint_every: int = 0
    replays: int = 0

    def steps(self, group_size: int = 1) -> int:
        """Optimiser steps in all, replays included; errors if there are none."""
        return self.fresh_steps(group_size) * (1 + self.replays)

    def fresh_steps(self, group_size: int = 1) -> int:
        """Batches of fresh outcomes that the budget pays for; errors if none."""
        prompts = self.prompts_per_step(group_size)
        steps = self.outcomes // (prompts * group_size)
        if steps < 1:
            raise ValueError(
                f"a budget of {self.outcomes} outcomes pays for no step of "
                f"{prompts * group_size}; raise outcomes or lower outcomes_per_step"
            )
        return steps

    def prompts_per_step(self, group_size: int = 1) -> int:
        """Questions per step: ``outcomes_per_step / group_size``, which must divide."""
        prompts, rest = divmod(self.outcomes_per_step, group_size)
        if rest or prompts < 1:
            raise ValueError(
                f"outcomes_per_step={self.outcomes_per_step} is not a multiple of "
                f"the group size {group_size}"
            )
        return prompts

    def rate(self, step: int, total: int) -> float:
        """Learning-rate factor: linear warm-up, then cosine to ``final_rate``."""
        warm = max(1, round(self.warmup_fraction * total))
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / max(1, total - warm)
        cosine = 0.5 * (1.0 + math.cos(math.pi * done))
        return self.final_rate + (1.0 - self.final_rate) * cosine


SAVING_SHARE = 0.05
"""Most of a run's time that automatic checkpoints may cost."""


@dataclass
class Saving:
    """When the next checkpoint is due, and what saving has cost in this process.

    Parameters
    ----------
    every : int
        Steps between checkpoints. 0 decides by measured time: save as soon as that
        keeps all saving within ``SAVING_SHARE`` of the time, if it costs what the last
        save cost. The first step is saved at once, which tells the cost, and where
        saving is that cheap, every step is.
    """

    every: int = 0
    spent: float = 0.0
    cost: float = 0.0

    def due(self, steps: int, elapsed: float) -> bool:
        """Whether to save after ``steps`` steps, ``elapsed`` seconds into the loop."""
        if self.every:
            return steps % self.every == 0
        return self.spent + self.cost <= SAVING_SHARE * (elapsed + self.cost)

    def paid(self, seconds: float) -> None:
        """Note what a checkpoint cost."""
        self.cost = seconds
        self.spent += seconds


@dataclass
class TrainResult:
    """What a run did: its signals and what it used up."""

    history: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    steps: int = 0
    outcomes: int = 0
    prompts: int = 0
    forward_passes: int = 0
    seconds: float = 0.0
    stopped: bool = False


def batch_rows(rows: np.ndarray, size: int, seed: int, step: int) -> np.ndarray:
    """Rows of batch ``step``: endless shuffled epochs, a pure function of its inputs.

    Parameters
    ----------
    rows : (N,) int array
        The training rows.
    size : int
        Batch size ``B``; may exceed ``N``.
    seed, step : int

    Returns
    -------
    (B,) int array
    """
    start, stop = step * size, (step + 1) * size
    epochs = range(start // len(rows), (stop - 1) // len(rows) + 1)
    flat = np.ascontiguousarray(rows, np.int64).tobytes()
    order = [_epoch(flat, seed, epoch) for epoch in epochs]
    offset = start - epochs[0] * len(rows)
    return np.concatenate(order)[offset : offset + size]


@lru_cache(maxsize=8)
def _epoch(rows: bytes, seed: int, epoch: int) -> np.ndarray:
    # Kept, because every step of an epoch asks for the same order.
    order = np.random.default_rng([seed, _ROWS, epoch])
    return order.permutation(np.frombuffer(rows, np.int64))


def replayed_step(seed: int, step: int, heard: int) -> int:
    """Which of the first ``heard`` fresh batches optimiser step ``step`` repeats."""
    return int(np.random.default_rng([seed, _REPLAYS, step]).integers(heard))


def action_generator(seed: int, step: int) -> torch.Generator:
    """The generator that draws the actions of one step."""
    word = np.random.SeedSequence([seed, _ACTIONS, step]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(word[0]) >> 1)


def feedback(
    arm: Arm,
    env: Env,
    rows: np.ndarray,
    log_probs: torch.Tensor,
    generator: torch.Generator,
) -> Feedback:
    """Act and listen: draw the arm's actions and ask the environment how they fared.

    A label arm asks ``env.labels(rows)``, which only a labelled environment has, and a
    ranking arm ``env.rankings(rows)``. A `LoggedEnv` gives the actions of its log.

    Parameters
    ----------
    log_probs : (B, K) tensor
        The policy's log-probabilities; no gradient flows through the draw.

    Raises
    ------
    ValueError
        The arm wants several actions a question of a log, which holds one.
    """
    device = log_probs.device
    none = torch.zeros((len(rows), 0), device=device)
    if arm.needs == "label":
        labels = torch.as_tensor(env.labels(rows), device=device)  # type: ignore[attr-defined]
        return Feedback(none.long(), none, labels=labels.long())
    if arm.needs == "ranking":
        order = torch.as_tensor(env.rankings(rows), device=device)  # type: ignore[attr-defined]
        return Feedback(none.long(), none, rankings=order.long())
    if isinstance(env, LoggedEnv):  # decisions already taken: nothing is drawn
        if arm.group_size > 1:
            raise ValueError(
                f"arm {arm.name!r} takes {arm.group_size} actions a question and a log "
                "holds one; pass an arm with group_size 1"
            )
        taken, heard, chance = env.logged(rows)
        told = Feedback(
            torch.as_tensor(taken, device=device),
            torch.as_tensor(heard, dtype=torch.float32, device=device),
        )
        if chance is None:
            return told
        chance = torch.as_tensor(chance, dtype=torch.float32, device=device)
        return replace(told, propensities=chance)
    actions, propensities = sample_actions(
        log_probs.detach().float().cpu(),
        arm.group_size,
        generator,
        replacement=arm.replacement,
        epsilon=arm.epsilon,
        temperature=arm.temperature,
    )
    outcomes = torch.as_tensor(
        env.outcomes(rows, actions.numpy()), dtype=torch.float32, device=device
    )
    return Feedback(
        actions=actions.to(device),
        outcomes=outcomes,
        propensities=propensities.to(device),
    )


def signals(log_probs: torch.Tensor, told: Feedback) -> dict[str, float]:
    """Health signals of one batch.

    ``entropy`` in nats; ``confidence`` mean max p; ``outcome`` mean outcome of the
    actions taken; ``gap`` mean stated probability of the taken action minus mean
    outcome (0 when honest); ``zero_variance`` share of groups whose outcomes agree,
    which carry no signal under a group baseline.
    """
    with torch.no_grad():
        p = log_probs.exp()
        row = {
            "entropy": float(-(p * log_probs.clamp_min(-1e4)).sum(-1).mean()),
            "confidence": float(p.max(-1).values.mean()),
        }
        if told.actions.shape[-1]:
            heard = ~torch.isnan(told.outcomes)
            taken = p.gather(-1, told.actions)
            outcomes = told.outcomes.nan_to_num()
            count = heard.sum().clamp_min(1)
            row["outcome"] = float((outcomes * heard).sum() / count)
            row["gap"] = float(((taken - outcomes) * heard).sum() / count)
            spread = told.outcomes.amax(-1) - told.outcomes.amin(-1)
            row["zero_variance"] = float((spread == 0).float().mean())
    return row


def autocast(device: torch.device) -> torch.autocast:
    """bf16 from compute capability 8.0, fp16 below, off on the CPU.

    A T4 (7.5) reports bf16 as supported although it emulates it, so the capability
    decides and not the report.
    """
    if device.type != "cuda":
        return torch.autocast(device.type, enabled=False)
    half = torch.bfloat16 if _has_bf16(device) else torch.float16
    return torch.autocast("cuda", half)


def train(
    policy: torch.nn.Module,
    prepared: Any,
    rows: np.ndarray,
    env: Env,
    arm: Arm,
    config: TrainConfig,
    seed: int,
    *,
    evaluate: Callable[[torch.nn.Module], dict[str, float]] | None = None,
    checkpoint: Path | None = None,
    progress: bool = False,
) -> TrainResult:
    """Train ``policy`` in place with one arm.

    Parameters
    ----------
    policy : torch module with ``log_probs(batch) -> (B, K)``
    prepared : object with ``take(rows) -> batch``
        The questions, as the policy prepared them.
    rows : (N,) int array
        Rows of ``prepared`` to train on.
    env : Env
        Answers what the arm may ask.
    evaluate : callable, optional
        Called every ``config.eval_every`` steps, at step 0 and at the end; its
        ``accuracy`` feeds the stop rule (more than ``stop_drop`` below step 0,
        ``stop_patience`` times in a row). It sees the weights as they are, before
        ``weight_average`` puts their mean in place.
    checkpoint : Path, optional
        A safetensors file, written atomically every ``config.checkpoint_every`` steps,
        or as `Saving` decides where that is 0, and at the end; resumed from if it is
        there. Its name must tell the data: of them only row numbers are compared.

    Returns
    -------
    TrainResult

    Raises
    ------
    FloatingPointError
        If the loss or its gradient stops being finite; names the arm and step.
    ValueError
        If there is no row to train on, the objective needs whole batches and
        ``micro_batch`` splits them, or a checkpoint is damaged or belongs to another
        run (arm, configuration, seed, rows, shapes or kind of environment).
    """
    if not len(rows):
        raise ValueError(f"arm {arm.name!r}: no row to train on; pass at least one")
    total = config.steps(arm.group_size)
    size = config.prompts_per_step(arm.group_size)
    objective = _KNOWN[arm.objective]
    micro = size if config.micro_batch is None else config.micro_batch
    if micro < 1:
        raise ValueError(f"micro_batch {micro}: pass at least 1, or leave it out")
    if objective.couples_rows and micro < size:
        raise ValueError(
            f"arm {arm.name!r} normalises over its batch of {size}: micro_batch "
            f"{micro} would change what it learns; leave it out"
        )
    parameters = [p for p in policy.parameters() if p.requires_grad]
    device = parameters[0].device
    peak = config.learning_rate * arm.rate_scale
    optimiser = torch.optim.AdamW(
        parameters,
        lr=peak,
        betas=config.betas,
        weight_decay=config.weight_decay,
        foreach=True,
    )
    scaler = torch.amp.GradScaler(
        device.type, enabled=device.type == "cuda" and not _has_bf16(device)
    )
    averaged = [p.detach().clone() for p in parameters] if config.weight_average else []
    reference = copy.deepcopy(policy).eval() if arm.reference else None
    result = TrainResult()
    memory: list[Feedback] = []
    identity = _identity(arm, config, seed, rows, parameters, env)
    run = _Run(identity, parameters, averaged, optimiser, scaler, env, memory)
    if checkpoint is not None and checkpoint.exists():
        result = _restore(checkpoint, run)
    elif evaluate is not None:
        result.evaluations.append({"step": 0.0, **evaluate(policy)})

    seen: set[int] = set()
    cycle = 1 + config.replays
    for past in range(-(-result.steps // cycle)):
        seen.update(batch_rows(rows, size, seed, past).tolist())
    entered = time.perf_counter()
    began = entered - result.seconds
    saving = Saving(config.checkpoint_every)
    steps = range(result.steps, total)
    policy.train()
    for step in tqdm(steps, arm.name, leave=False, disable=not progress):
        if result.stopped:
            break
        for group in optimiser.param_groups:
            group["lr"] = peak * config.rate(step, total)
        fresh = step // cycle
        again = replayed_step(seed, step, fresh + 1) if step % cycle else None
        chosen = batch_rows(rows, size, seed, fresh if again is None else again)
        generator = action_generator(seed, fresh)
        optimiser.zero_grad(set_to_none=True)
        row: dict[str, float] = {"step": float(step + 1), "loss": 0.0}
        parts = [chosen[start : start + micro] for start in range(0, size, micro)]
        for i, part in enumerate(parts):
            share = len(part) / size
            batch = prepared.take(part)
            with autocast(device):
                log_probs = policy.log_probs(batch)
            if again is None:
                told = feedback(arm, env, part, log_probs, generator)
            else:
                told = memory[again * len(parts) + i]
            if config.replays and again is None:
                memory.append(told)
            if reference is not None:
                with torch.no_grad(), autocast(device):
                    start = reference.log_probs(batch).float()
                told = replace(told, reference_log_probs=start)
            loss = objective(log_probs.float(), told).mean() * share
            scaler.scale(loss).backward()
            row["loss"] += float(loss.detach())
            # A policy may tell what it noticed on the way, such as its label mass.
            noticed = getattr(policy, "noticed", {})
            for name, value in (signals(log_probs.float(), told) | noticed).items():
                row[name] = row.get(name, 0.0) + value * share
            result.forward_passes += len(part)
        scaler.unscale_(optimiser)
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.clip, foreach=True)
        row["grad_norm"] = float(norm)
        # A scaler skips steps whose gradient overflows; without one, one such step
        # would spoil every weight, and the next checkpoint with them.
        skips = scaler.is_enabled()
        if not (math.isfinite(row["loss"]) and (skips or norm.isfinite())):
            raise FloatingPointError(
                f"arm {arm.name!r}, step {step}: the loss is {row['loss']}, the norm "
                f"of its gradient {float(norm)}; lower the learning rate ({peak:g}) or "
                f"look at the inputs of rows {chosen[:4]}"
            )
        scaler.step(optimiser)
        scaler.update()
        if averaged:
            # Early averages forget the start quickly: the decay grows to its value.
            decay = min(config.weight_average, (step + 1) / (step + 10))
            torch._foreach_lerp_(averaged, [p.detach() for p in parameters], 1 - decay)
        seen.update(chosen.tolist())
        result.history.append(row)
        result.steps = step + 1
        result.outcomes = (fresh + 1) * size * arm.group_size
        result.prompts = len(seen)
        due = config.eval_every and result.steps % config.eval_every == 0
        if evaluate is not None and (due or result.steps == total):
            policy.eval()
            result.evaluations.append({"step": float(step + 1), **evaluate(policy)})
            policy.train()
            result.stopped = _should_stop(result.evaluations, config)
        now = time.perf_counter()
        result.seconds = now - began
        due = result.steps == total or result.stopped
        if checkpoint is not None and (due or saving.due(result.steps, now - entered)):
            _save(checkpoint, run, result)
            saving.paid(time.perf_counter() - now)
    if averaged:
        with torch.no_grad():
            for parameter, mean in zip(parameters, averaged, strict=True):
                parameter.copy_(mean)
    policy.eval()
    return result


def _has_bf16(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _should_stop(evaluations: list[dict[str, float]], config: TrainConfig) -> bool:
    if len(evaluations) <= config.stop_patience:
        return False
    floor = evaluations[0]["accuracy"] - config.stop_drop
    recent = evaluations[-config.stop_patience :]
    return all(row["accuracy"] < floor for row in recent)


def _identity(
    arm: Arm,
    config: TrainConfig,
    seed: int,
    rows: np.ndarray,
    parameters: list[torch.Tensor],
    env: Env,
) -> str:
    order = hashlib.sha256(np.ascontiguousarray(rows, np.int64).tobytes()).hexdigest()
    shapes = [list(p.shape) for p in parameters]
    told = [int(seed), order, shapes, type(env).__name__]
    return json.dumps([asdict(arm), asdict(config), *told], sort_keys=True)


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names and bytes: safetensors itself notices no changed value."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        flat = tensors[name].reshape(-1).view(torch.uint8)
        total.update(name.encode() + flat.numpy().tobytes())
    return total.hexdigest()


@dataclass(frozen=True)
class _Run:
    """What a checkpoint holds of a run, and whose it is."""

    identity: str
    parameters: list[torch.Tensor]
    averaged: list[torch.Tensor]
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    env: Env
    memory: list[Feedback]


def _save(path: Path, run: _Run, result: TrainResult) -> None:
    from safetensors.torch import save

    tensors = {f"p.{i}": p.detach() for i, p in enumerate(run.parameters)}
    tensors |= {f"a.{i}": p for i, p in enumerate(run.averaged)}
    for i, parameter in enumerate(run.parameters):
        for name, value in run.optimiser.state[parameter].items():
            tensors[f"s.{i}.{name}"] = value
    for i, told in enumerate(run.memory):
        for name in _HEARD:
            if (value := getattr(told, name)) is not None:
                tensors[f"m.{i}.{name}"] = value
    note = {
        "identity": run.identity,
        "env": json.dumps(run.env.state_dict()),
        "scaler": json.dumps(run.scaler.state_dict()),
        "result": json.dumps(asdict(result)),
    }
    copies = {name: value.contiguous().cpu() for name, value in tensors.items()}
    note["sha256"] = _digest(copies)
    write_atomically(path, save(copies, metadata=note))


def _restore(path: Path, run: _Run) -> TrainResult:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            note = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} is no whole checkpoint ({error}); delete it and run again"
        ) from error
    if note.get("identity") != run.identity:
        raise ValueError(
            f"{path} is a checkpoint of another run (arm, configuration, seed, rows, "
            "shapes or environment differ); delete it or choose another path"
        )
    found = _digest(tensors)
    if note.get("sha256") != found:
        raise ValueError(
            f"{path} was changed after it was saved (sha256 {note.get('sha256')} "
            f"stated, {found} found); delete it and run again"
        )
    with torch.no_grad():
        for i, parameter in enumerate(run.parameters):
            parameter.copy_(tensors[f"p.{i}"])
        for i, mean in enumerate(run.averaged):
            mean.copy_(tensors[f"a.{i}"])
    for i, parameter in enumerate(run.parameters):
        prefix = f"s.{i}."
        run.optimiser.state[parameter] = {
            name.removeprefix(prefix): (
                value if name.endswith(".step") else value.to(parameter.device)
            )
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
    device = run.parameters[0].device
    count = sum(name.endswith(".actions") for name in tensors)
    for i in range(count):
        found_here = {n: tensors.get(f"m.{i}.{n}") for n in _HEARD}
        run.memory.append(
            Feedback(
                **{n: v if v is None else v.to(device) for n, v in found_here.items()}
            )
        )
    run.scaler.load_state_dict(json.loads(note["scaler"]))
    run.env.load_state_dict(json.loads(note["env"]))
    return TrainResult(**json.loads(note["result"]))
