# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,mystnb,-all
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Larger models
#
# **Question.** Everything so far ran on small policies. Does the ordering of the arms hold when
# a language model with {res}`30_larger_models:parameters` or
# {res}`30_larger_models:qwen_parameters` million weights reads the options and states the
# probabilities itself?
#
# **Answer.** On the smaller one only in part. Where each arm has the learning rate that its pilot chose, the order is the one of the
# small policies: after {res}`30_larger_models:outcomes` outcomes the plain outcome reward has a worse Brier score than the warm-up it
# began with ({res}`30_larger_models:brier.rlvr_loo:.3f` against {res}`30_larger_models:brier.warmup:.3f`), its counterpart with the
# subtraction a better one ({res}`30_larger_models:brier.rlcd_loo:.3f`), RLCD with one outcome a still better one
# ({res}`30_larger_models:brier.rlcd:.3f`). But a control contradicts the first half: at RLCD's smaller rate the plain reward does no harm
# in so few steps ({res}`30_larger_models:slow.brier:.3f`). Every arm is still too sure, the full label included. For the larger
# model the question is open: no run of it is recorded. One run of its published protocol would take an estimated
# {res}`30_larger_models:t4.low:.1f` to {res}`30_larger_models:t4.high:.1f` hours on the smallest GPU
# considered here (T4, {res}`30_larger_models:typical` tokens a prompt).
#
# **After this page you can** train the top of a language model on one processor core at a
# third of the cost and know that it is the same gradient, say what a full fine-tune needs in memory
# and time before you rent a machine, and start every missing run.
#
# **Running time.** About a quarter of a minute on one CPU core; nothing is trained.

# %% tags=["remove-cell"]
# Set-up: on Colab this fetches the book; elsewhere it does nothing.
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    REPOSITORY = ""  # repository.url of _config.yml
    FOLDER = "/content/rlcd"
    if not REPOSITORY:
        raise RuntimeError("This copy names no repository; open it from the book.")
    if not os.path.isdir(FOLDER):
        subprocess.run(["git", "clone", "--depth=1", REPOSITORY, FOLDER], check=True)
        # Without dependencies: torch and numpy stay as Colab has them.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "gguf==0.19.0", "--editable", FOLDER], check=True)
    sys.path.insert(0, FOLDER)
    os.chdir(FOLDER + "/notebooks")

    import torch

    cuda = torch.cuda.is_available()
    print("Python", sys.version.split()[0], "| torch", torch.__version__)
    print("GPU", torch.cuda.get_device_name() if cuda else "none", end=" | ")
    print("profile auto means", "gpu" if cuda else "records")

# %% tags=["parameters"]
profile = "auto"
seed = 0

# %% tags=["hide-input"]
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rlcd_core import plots
from rlcd_core.arms import ARMS
from rlcd_core.extra import cost, grid
from rlcd_core.extra.families import reference, smol
from rlcd_core.extra.grid import family_records
from rlcd_core.metrics import Interval, paired_bootstrap, seed_interval
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.policy.loading import smollm2_directory
from rlcd_core.policy.top import TopPolicy
from rlcd_core.records import Store, metric_values, results_dir, save_numbers
from rlcd_core.schema import render_prefix, render_suffix
from rlcd_core.scoring import brier

torch.set_num_threads(1)
plots.use_style()
names = smol.ARM_NAMES
labels = {name: plots.arm_style(name).label for name in names}
records = family_records("smol_trec")
by_run = {(row.arm, row.seed): row for row in records}
control = family_records("smol_trec_control")
slow = {row.seed: row for row in control}
protocol = reference.PROTOCOL
shape = cost.QWEN3_06B
need = shape.training_bytes(protocol.micro_batch * protocol.max_tokens, half=True)
LENGTHS = (128, 256, 512)
REACHED = (0.4, 0.15)  # assumed shares of the peak


def values(name: str, metric: str) -> np.ndarray:
    """One test metric of an arm, (seeds,)."""
    return metric_values(records, name, metric)


def hours(machine: cost.Machine, tokens: int, utilisation: float) -> float:
    """Of one run of an outcome arm: steps, evaluations on the way, final scoring."""
    evaluations = protocol.steps // protocol.every + 1
    seconds = cost.run_seconds(
        shape,
        machine,
        steps=protocol.steps,
        prompts=protocol.prompts,
        tokens=tokens,
        micro_batch=protocol.micro_batch,
        read=evaluations * protocol.validation + protocol.validation + protocol.test,
        utilisation=utilisation,
    )
    return seconds / 3600


def span(machine: cost.Machine, tokens: int) -> str:
    """Hours at the higher and the lower share of the peak; once where they agree."""
    return " to ".join(
        dict.fromkeys(f"{hours(machine, tokens, share):.1f}" for share in REACHED)
    )


# %% mystnb={"figure": {"caption": "SmolLM2-135M on TREC, top third of the layers trained: test Brier score and ECE by arm after {res}`30_larger_models:outcomes` outcomes, each at the learning rate that its pilot chose. Mean over {res}`30_larger_models:seeds` seeds and 95 % Student t interval, which so few seeds make wide.", "name": "fig-larger-main"}, "image": {"alt": "Two dot plots by arm. Brier score from low to high: full label at about 0.15, verdict NLL and RLCD with one outcome just below 0.2, the RLCD seed recipe at 0.24, the warm-up at 0.27, the RLVR seed recipe at 0.33. ECE: RLCD with one outcome lowest at 0.05, the RLVR seed recipe highest at 0.14, the others between 0.06 and 0.08 with wide intervals."}} tags=["hide-input"]
fig, axes = plots.figure(2, height=3.6)
for ax, metric, title in (
    (axes[0], "brier", "test Brier score"),
    (axes[1], "ece", "test ECE, 15 equal-width bins"),
):
    dots = plots.prepare_dots({name: values(name, metric) for name in names})
    plots.plot_dots(ax, dots, title)
_ = axes[1].set(xlim=(0, None))

# %% [markdown]
# ## One question, read by a language model
#
# A help desk that routes by text needs to know what is being asked for: a name, a place, a number?
# The TREC questions {cite}`li2002` carry six such labels. Here is a test question as the model
# reads it.

# %%
task = smol.trec_task()
items = [task.items[row] for row in task.splits["test"][:4]]
state, question = items[0]
print(render_prefix(state) + render_suffix(question))

# %% [markdown]
# For the family `smol_trec` the policy is SmolLM2-135M-Instruct {cite}`allal2025`. Its next-token distribution
# over the six labels, renormalised, *is* the answer: no text is generated, and there is no second
# head ({doc}`22_policies`).
#
# ## Training the top on stored states
#
# What does one step cost? Measured on one core, training all of SmolLM2 in float32
# (`tests/bench/cost.py`, processor time, the smallest of
# a few repetitions):

# %%
measured = json.loads((results_dir() / "cost.json").read_text())
predicted = cost.predicted(measured)
pd.DataFrame(
    {
        f"{row['prompts']} prompts of {row['tokens']} tokens": {
            "seconds a step": f"{row['seconds']:.1f}",
            "memory, GB": f"{row['bytes'] / 1e9:.2f}",
        }
        for row in measured["measured"].values()
    }
).T

# %% [markdown]
# That is {res}`30_larger_models:step_seconds:.1f` seconds for {res}`30_larger_models:base_prompts`
# short questions. So the family trains only the top {res}`30_larger_models:top` of
# {res}`30_larger_models:layers` layers; the others stay as they are, and what they hand on is computed
# once per prompt and kept on disk.
#
# :::{prf:proposition} Frozen below, exact above
# :label: prop-larger-frozen
#
# Let a model be $f_\theta = g_\theta \circ h$ with $h$ frozen. For every loss $\ell$,
# $\nabla_\theta\, \ell(g_\theta(h(x)))$ depends on $x$ only through $h(x)$. With $L$ layers of equal
# cost $F$ for a forward pass, of which the top $k$ are trained, a step costs $3kF$ from stored states,
# $(L + 2k)F$ without a store, and $3LF$ if all layers are trained.
# :::
#
# :::{prf:proof}
# :class: dropdown
# By the chain rule $\nabla_\theta\, \ell = (\partial g_\theta / \partial \theta)^\top \ell'$,
# evaluated at the point $h(x)$; no derivative of $h$ occurs. A backward pass through a layer multiplies
# once for the gradient of its input and once for that of its weights, which is twice the
# forward pass; frozen layers under the first trained one need neither.
# :::
#
# The equality can be seen rather than believed. Here is a random Llama of six layers, in SmolLM2's proportions and
# with its tokenizer. It exists three times with the same weights: trained as a whole, with the lower four layers frozen,
# and as a `TopPolicy` that reads their output from files.

# %%
tokenizer = AutoTokenizer.from_pretrained(smollm2_directory())
config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=36,
    intermediate_size=96,
    num_hidden_layers=6,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=512,
    initializer_range=0.2,
    tie_word_embeddings=True,
)
TOP = 2


def tiny() -> LetterPolicy:
    """The same random model at each call."""
    torch.manual_seed(seed)
    return LetterPolicy(LlamaForCausalLM(config).eval(), tokenizer)


whole, frozen = tiny(), tiny()
frozen.requires_grad_(False)
for part in (*frozen.model.model.layers[-TOP:], frozen.model.model.norm):
    part.requires_grad_(True)
with tempfile.TemporaryDirectory() as folder:
    top = TopPolicy(tiny(), TOP, store=Path(folder))
    read = {"whole": whole.prepare(items), "top": top.prepare(items)}

log_p, products = {}, {}
for name, policy in {"whole": whole, "frozen": frozen, "top": top}.items():
    batch = read["top" if name == "top" else "whole"].take(np.arange(len(items)))
    with FlopCounterMode(display=False) as counter:
        log_p[name] = policy.log_probs(batch)
        # RLCD's loss for an action of each row that turned out right and wrong in turn.
        right = torch.tensor([1.0, 0.0, 1.0, 0.0])
        stated = log_p[name][torch.arange(4), torch.arange(4)]
        (-(right - stated.exp()).detach() * stated).mean().backward()
    products[name] = counter.get_total_flops()

gradient = {n: p.grad for n, p in whole.model.named_parameters()}
off, untouched = [], []
for name, weight in top.letter.model.named_parameters():
    if weight.requires_grad:
        scale = gradient[name].abs().max()
        off.append(float((weight.grad - gradient[name]).abs().max() / scale))
    else:
        untouched.append(weight.grad is None)
p = {name: found.detach().exp() for name, found in log_p.items()}
print("answers depend on the question:", bool(p["whole"].std(0).max() > 0.02))
print(
    "probabilities equal to 1e-5:   ", bool((p["whole"] - p["top"]).abs().max() < 1e-5)
)
print("gradients compared:            ", len(off))
print("each equal to 1e-4 of its max: ", bool(np.max(off) < 1e-4))
print("frozen weights without one:    ", all(untouched), f"({len(untouched)})")

# %% [markdown]
# And the products, as torch counts them (matrices only, attention's own kernel is not counted):

# %%
L, k = config.num_hidden_layers, TOP
expected = {"whole": 1.0, "frozen": (L + 2 * k) / (3 * L), "top": k / L}
says = {
    "whole": "all layers trained",
    "frozen": "top trained, no store",
    "top": "top trained from stored states",
}
pd.DataFrame(
    {
        says[name]: {
            "share of the products": f"{products[name] / products['whole']:.3f}",
            "by the proposition": f"{expected[name]:.3f}",
        }
        for name in says
    }
).T

# %% [markdown]
# The store does better than the proposition says: of the last layer only the last position is read, so its
# MLP, three quarters of its products, runs for that position alone. The tests repeat the
# comparison for two kinds of models, tied and untied, and let ten optimiser steps end at the same policy
# (`tests/test_policy_top.py`).
#
# On SmolLM2 a third of the products would make an estimated {res}`30_larger_models:top_seconds:.1f` seconds a step of
# the measured {res}`30_larger_models:step_seconds:.1f`, and the
# {res}`30_larger_models:smol_runs` runs of `smol_trec` an estimated
# {res}`30_larger_models:smol_hours:.1f` hours of one core there, warm-ups and scoring included. Their steps alone took
# {res}`30_larger_models:taken_hours:.1f` hours on the slower core that recorded them. They run in float32: a processor without
# products in bfloat16 imitates them, tens of times slower.
#
# ## How the rates were chosen
#
# Every run warms up on {res}`30_larger_models:warmup_rows` labelled questions, {res}`30_larger_models:warmup_epochs`
# times, and then takes steps of {res}`30_larger_models:per_step` outcomes on others. An outcome costs the same whoever
# asks for it: an arm with one action reads {res}`30_larger_models:per_step` questions a step, the seed recipe, which
# spends four outcomes on a question, reads one. The warm-up had four learning rates to choose from, and the arms three:
# {res}`30_larger_models:pilot_steps` steps each, on a seed that no result uses, judged on
# {res}`30_larger_models:pilot_rows` validation questions, RLVR by accuracy and the others by Brier score. The star marks the choice.
# The arms' rates were not all fixed beforehand: the grid was moved down twice when validation scores showed that its
# upper end only forgets, once during the warm-up's runs and once during the arms'. Every arm got the same grid.

# %%
pilot = family_records("smol_trec_start") + family_records("smol_trec_pilot")


def piloted(name: str) -> dict[str, str]:
    """What the choice of an arm's rate looked at, the chosen cell marked."""
    key = "accuracy" if name.startswith("rlvr") else "brier"
    chosen = smol.chosen_rate(name)
    scores = {
        r.config["warmup" if name == "warmup" else "train"]["learning_rate"]: (
            r.metrics["validation"][key]
        )
        for r in pilot
        if r.arm == name
    }
    cells = {
        f"{rate:g}": f"{scores[rate]:.3f}" + " *" * (rate == chosen)
        for rate in sorted(scores)
    }
    edge = "yes" if chosen in (min(scores), max(scores)) else "no"
    return {"by": key.replace("brier", "Brier")} | cells | {"on an edge": edge}


rates = [f"{rate:g}" for rate in sorted({*smol.START_RATES, *smol.PILOT_RATES})]
pd.DataFrame(
    {plots.arm_style(name).label: piloted(name) for name in smol.ARM_NAMES}
).T.reindex(columns=["by", *rates, "on an edge"]).fillna("")

# %% [markdown]
# The pilot chooses rates; it compares nothing, because it is one seed and a tenth of the steps. But it says what to
# expect. The chosen warm-up is right on {res}`30_larger_models:start.accuracy:.2f` of the validation questions and a little too
# sure (confidence minus accuracy {res}`30_larger_models:start.gap:.3f`, Brier score
# {res}`30_larger_models:start.brier:.3f`). A choice on the lower edge says that a still lower rate might serve better. And the
# seed recipes, which see a quarter as many questions a step, lose much of what the warm-up taught at the highest rate,
# whatever the reward.
#
# ## What happened


# %%
def cell(found: np.ndarray, digits: int = 3) -> str:
    """Mean and 95 % interval over seeds, as the tables print them."""
    return f"{seed_interval(found):.{digits}f}"


columns = {
    "accuracy": "accuracy",
    "Brier": "brier",
    "ECE": "ece",
    "mean confidence": "confidence",
}
SLOW = "RLVR, seed recipe, RLCD's rate"
pd.DataFrame(
    {
        title: {labels[name]: cell(values(name, key)) for name in names}
        | {SLOW: cell(metric_values(control, "rlvr_loo", key))}
        for title, key in columns.items()
    }
)

# %% [markdown]
# RLVR's last row answers an objection: its pilot chose a rate of {res}`30_larger_models:rlvr_rate`, RLCD's seed recipe one of
# {res}`30_larger_models:rlcd_rate`, so that a part of RLVR's damage may be its larger steps. The row runs it again at RLCD's rate.
#
# The intervals over {res}`30_larger_models:seeds` seeds are wide. The other source of chance is the choice of test questions. Here each arm's Brier score on a
# question is first averaged over its seeds, and the difference of two arms is resampled over the
# {res}`30_larger_models:test` questions that both answered. This interval says nothing about other seeds; the
# differences seed by seed stand beside it. Positive: the first arm is worse.

# %%
pairs = [
    ("rlvr_loo", "rlcd_loo"),
    ("rlvr_loo", "rlcd"),
    ("rlcd_loo", "rlcd"),
    ("rlcd", "verdict_nll"),
    ("verdict_nll", "nll"),
    ("warmup", "rlcd_loo"),
    ("rlvr_loo", "warmup"),
]
store = Store("smol_trec")
test = task.splits["test"]
truth = task.counts[test].argmax(1)


def scores(source: Store, runs: list) -> np.ndarray:
    """Brier score of each test question, mean over the seeds."""
    return np.mean([brier(source.predictions(run), truth) for run in runs], axis=0)


score_of = {n: scores(store, [by_run[n, s] for s in smol.SEEDS]) for n in names}
slow_score = scores(Store("smol_trec_control"), list(slow.values()))


def difference(first: np.ndarray, second: np.ndarray) -> Interval:
    """Interval of a paired difference over the test questions."""
    rng = np.random.default_rng(seed)
    return paired_bootstrap(first, second, rng=rng, n_resamples=4000)


def seed_by_seed(differences: np.ndarray) -> str:
    """Each seed's difference, as the tables print it."""
    return ", ".join(f"{d:+.3f}" for d in differences)


gaps = {(a, b): difference(score_of[a], score_of[b]) for a, b in pairs}
by_seed = {(a, b): values(a, "brier") - values(b, "brier") for a, b in pairs}
slow_gap = difference(slow_score, score_of["rlcd_loo"])
slow_seeds = metric_values(control, "rlvr_loo", "brier") - values("rlcd_loo", "brier")
pd.DataFrame(
    {
        f"{labels[a]} − {labels[b]}": {
            "Brier, over questions": f"{gaps[a, b]:.3f}",
            "seed by seed": seed_by_seed(by_seed[a, b]),
        }
        for a, b in pairs
    }
    | {
        f"{SLOW} − {labels['rlcd_loo']}": {
            "Brier, over questions": f"{slow_gap:.3f}",
            "seed by seed": seed_by_seed(slow_seeds),
        }
    }
).T

# %% [markdown]
# The last row changes what the first ones mean. The reward that spoils the probabilities at a rate of {res}`30_larger_models:rlvr_rate` leaves
# them at {res}`30_larger_models:rlcd_rate` as good as RLCD's: RLVR minus RLCD is {res}`30_larger_models:slow_gap:.3f` in Brier score. It even is
# more accurate there ({res}`30_larger_models:slow.accuracy:.3f` against {res}`30_larger_models:accuracy.rlvr_loo:.3f`), so that the pilot, whose
# choice for RLVR hung on one question of {res}`30_larger_models:pilot_rows`, chose badly. What these runs show is therefore that
# RLVR does harm at the rate that its pilot chose, not that its reward does harm at every rate. Whether RLCD's seed recipe would bear the
# higher rate better was not tried, and {res}`30_larger_models:steps` steps of one question are few: at the lower rate neither policy has come near the
# place where its reward would lead it, the truth or a corner ({prf:ref}`cor-rlvr`). On films, with fifty times the outcomes, a lower rate
# slows the damage and does not end it ({doc}`25_rescues`).

# %% mystnb={"figure": {"caption": "Reliability on the TREC test questions, all seeds together, each arm at the rate of its pilot: RLCD with one outcome above, the RLVR seed recipe below. Band: 95 % Wilson, each prediction counted once, so that it is too narrow where the seeds agree; grey bars: the share of predictions in each bin.", "name": "fig-larger-reliability"}, "image": {"alt": "Two reliability diagrams. For RLCD with one outcome the line runs a little below the diagonal and most predictions lie in the last bin. For the RLVR seed recipe the last bin holds still more predictions, and its accuracy is more than a tenth below what is stated."}} tags=["hide-input"]


def pooled(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and correctness of all seeds' test predictions."""
    p = np.concatenate([store.predictions(by_run[name, s]) for s in smol.SEEDS])
    right = p.argmax(1) == np.tile(truth, len(smol.SEEDS))
    return p.max(1), right.astype(float)


fig, axes = plots.figure(2, height=4.2)
for ax, name in zip(axes, ("rlcd", "rlvr_loo"), strict=True):
    plots.plot_reliability(ax, plots.prepare_reliability(*pooled(name)), name)
_ = axes[0].set(xlabel="")

# %% [markdown]
# What did the training runs themselves show? Three signals, mean over the first and the last sixth of the steps and over the
# seeds. *Label mass* is the probability that the whole vocabulary leaves to the six labels; the answer is what is left
# after dividing by it ({prf:ref}`prp-label-mass`).

# %%
watched = ("rlcd", "rlcd_loo", "rlvr_loo", "verdict_nll")
SIGNALS = {"stated − actual": "gap", "entropy": "entropy", "label mass": "label_mass"}


def watch(name: str, signal: str) -> list[float]:
    """A training signal in the first and in the last sixth of the steps."""
    rows = [[row[signal] for row in by_run[name, s].signals] for s in smol.SEEDS]
    parts = np.array_split(np.mean(rows, 0), 6)
    return [float(parts[0].mean()), float(parts[-1].mean())]


signals = {name: {key: watch(name, key) for key in SIGNALS.values()} for name in watched}
pd.DataFrame(
    {
        labels[name]: {
            what: " → ".join(f"{value:.2f}" for value in signals[name][key])
            for what, key in SIGNALS.items()
        }
        for name in watched
    }
).T

# %% [markdown]
# The label mass is worth a second look. The untrained model gives the labels {res}`30_larger_models:warmup_mass.start:.2f`; by the end
# of the warm-up it is {res}`30_larger_models:warmup_mass.end:.2f`. No loss here sees it, since all of them read the renormalised answer,
# so it drifts, and the arms happen to push it up again. Nothing that this page measures suffers, but such a model should not be asked to
# *write* its answer.
#
# ## Does the ordering hold?
#
# {doc}`27_out_of_distribution` trains the same six arms on the same source with a decision head on frozen
# sentence vectors: ten seeds, a larger grid of rates, {res}`30_larger_models:head_outcomes` outcomes. For each
# pair: the difference in Brier score there (over seeds), here (over questions), and whether the two agree. "Undecided"
# means that one of the intervals includes zero, or that the three seeds here do not all have the sign of theirs.

# %%
head = [r for r in family_records("text_arms") if r.config["task"] == "label-trec"]


def sign(interval: Interval) -> int:
    """Of a difference; 0 where its interval includes zero."""
    return int(interval.low > 0) - int(interval.high < 0)


def verdict(there: Interval, here: Interval, seeds: np.ndarray) -> str:
    """Whether two intervals tell the same story, and the seeds here with them."""
    agree = sign(here) * seeds.min() > 0 and sign(here) * seeds.max() > 0
    if not sign(there) or not agree:
        return "undecided"
    return "same order" if sign(there) == sign(here) else "opposite"


there = {
    (a, b): seed_interval(metric_values(head, a, "brier") - metric_values(head, b, "brier"))
    for a, b in pairs
}
verdicts = {pair: verdict(there[pair], gaps[pair], by_seed[pair]) for pair in pairs}
pd.DataFrame(
    {
        f"{labels[a]} − {labels[b]}": {
            "decision head": f"{there[a, b]:.3f}",
            "language model": f"{gaps[a, b]:.3f}",
            "verdict": verdicts[a, b],
        }
        for a, b in pairs
    }
).T

# %% [markdown]
# Of {res}`30_larger_models:pairs` pairs {res}`30_larger_models:same_order` have the same order, and
# {res}`30_larger_models:opposite` the opposite one: on the head the plain outcome reward still improves on its warm-up, on the
# language model it ends behind it. The head's warm-up knew less and its run was longer; whether the size of the model has a part in it,
# this comparison cannot say. And each row with RLVR holds for the rate of its pilot only (see above). RLCD with one outcome and the verdict loss are undecided once more.
#
# ## What has been recorded, and what has not
#
# The comparison on SmolLM2 is complete. What wants a GPU is not: no run of `smol_trec_gpu` or `reference` exists, and this
# page shows no result of one. `rlcd runs FAMILY` records a family of the table. Whoever has finished one takes its name out of
# `UNFINISHED` in `rlcd_core/extra/families`; until then the package refuses to hand out its records.
#
# The three `smol_trec` families train the top layers of SmolLM2 on one source of questions, on a CPU: the
# first two choose rates on a seed and on validation questions that no result uses, the third is the comparison. `smol_trec_gpu`
# trains all layers and shuffles the options; `reference` is the published protocol on Qwen3. The table counts the
# records that came with this page.

# %%
planned = {
    "smol_trec_start": len(smol.START_RATES),
    "smol_trec_pilot": len(smol.PILOT_RATES) * (len(smol.ARM_NAMES) - 1),
    "smol_trec": len(smol.SEEDS) * len(smol.ARM_NAMES),
    "smol_trec_control": len(smol.SEEDS),
    "smol_trec_gpu": len(smol.SEEDS) * len(smol.GPU_ARMS),
    "reference": len(reference.reference()),
}
recorded = {family: len(Store(family).records()) for family in planned}
pd.DataFrame(
    {
        f"rlcd runs {family}": {
            "wants": "a GPU" if family in grid.ON_GPU else "a CPU",
            "runs": runs,
            "recorded": recorded[family],
        }
        for family, runs in planned.items()
    }
).T

# %% [markdown]
# ## The reference protocol, ready to run
#
# The published results that started this book fine-tuned every weight of Qwen3-0.6B-Base
# ({res}`30_larger_models:qwen_parameters` million) on eight sources {cite}`everlcd`. That needs a
# GPU and a dataset hub. What this book has is the whole protocol as a family of runs:

# %%
pd.Series(asdict(protocol)).rename("reference protocol").to_frame()

# %% [markdown]
# The warm-up learns from the first `warmup_rows` rows, once. Outcome arms and the full-label oracle train on the rows from
# `label_rows` on; the supervised controls on labels of the rows before. Training stops when validation accuracy has
# fallen by a tenth at three evaluations running, the model is loaded at a pinned revision, and each arm has
# three seeds. One command an arm:

# %%
pd.DataFrame(
    {
        f"rlcd runs reference --arm {job.arm.name}": {
            "arm": job.arm.label,
            "questions a step": job.config.prompts_per_step(job.arm.group_size),
            "actions a question": job.arm.group_size,
            "learning rate": f"{job.config.learning_rate * job.arm.rate_scale:.0e}",
        }
        for job in reference.reference_jobs(seeds=(0,))
    }
).T

# %% [markdown]
# The warm-up takes no steps after its own, and the actions of arms that see labels are not used. All
# of them, and what comes before:
#
# ```text
# rlcd data mix --preset protocol mixture   # the eight sources, checked against their manifests
# rlcd check qwen3                          # labels, readout, a trial step: before any hour is spent
# rlcd runs reference                       # every arm and seed that has no record yet
# rlcd runs smol_trec_gpu                   # SmolLM2, all layers, shuffled options
# ```
#
# Each finished run is kept. A run that is killed goes on from its last checkpoint, at most
# {res}`30_larger_models:every` steps back; on a rented runtime let `RLCD_CACHE` and `RLCD_RESULTS` name
# folders that outlive it. The same code path, with the sizes shrunk, trains every arm on a tiny Qwen3 with a
# tokenizer of the same class in `tests/test_extra_reference.py`; that is all of it that has
# run here. {doc}`23_train_the_arms` starts it with `profile = "gpu"`.
#
# ## What it would cost
#
# Parameters, products and the bytes that a backward pass needs can be counted without running
# anything. With $P$ weights in float32, AdamW holds $4P$ bytes each of weights and gradients and
# $8P$ of moments; to these come the values kept for the backward pass. A layer with width $h$,
# $q$ query and $v$ key channels, $H$ heads and MLP width $m$ keeps, per token,
#
# $$ 26 h + 8 + 2(2q + 2v) + 4H + 8m \;\text{bytes} $$
#
# in 16-bit autocast (and $6(q+v)$ and a little more for Qwen3's head norms). The count equals what
# autograd keeps, to 2 % (`tests/test_extra_cost.py`). A step multiplies six times for each
# weight of a layer and each token. Time is products over peak and utilisation, or the time to launch
# the operations if that is longer.
#
# How good is that? Of the measurements above, one size set the utilisation (the first
# row), and the times of the others were predicted from it; memory is predicted outright.

# %%
pd.DataFrame(
    {
        f"{row['prompts']} prompts of {row['tokens']} tokens": {
            "time, predicted / measured − 1": (
                "sets the utilisation"
                if name == "base"
                else f"{predicted[name]['time']:+.1%}"
            ),
            "memory, predicted / measured − 1": f"{predicted[name]['memory']:+.1%}",
        }
        for name, row in measured["measured"].items()
    }
).T

# %% [markdown]
# The largest errors are {res}`30_larger_models:time_error:.0%` in time and
# {res}`30_larger_models:memory_error:.0%` in memory. That validates the counting, on one
# processor, in float32, for one model. It does not validate a GPU: the peaks below are the maker's,
# the share of it that is reached is assumed to lie between {res}`30_larger_models:assumed.low:.0%` and
# {res}`30_larger_models:assumed.high:.0%`, and a launch is assumed to take
# {res}`30_larger_models:assumed.launch:.0f` microseconds. **Every number of the next table is an estimate; nobody has run it here.** Memory is
# for the longest prompts, {res}`30_larger_models:micro_batch` at a time.

# %%
pd.DataFrame(
    {
        machine.name: {
            "memory sold, GB": f"{machine.memory / 1e9:.0f}",
            "memory needed, GB (estimate)": f"{need['total'] / 1e9:.1f}",
            **{
                f"hours a run, {tokens} tokens a prompt (estimate)": span(
                    machine, tokens
                )
                for tokens in LENGTHS
            },
        }
        for machine in cost.MACHINES
    }
)

# %% mystnb={"figure": {"caption": "Estimates, not measurements: one run (one outcome arm, one seed) of the reference protocol, Qwen3-0.6B-Base, every weight. Above: the memory of each machine, and what training needs (dotted). Below: hours a run for prompts of 128, 256 and 512 tokens, from {res}`30_larger_models:assumed.high:.0%` (left) to {res}`30_larger_models:assumed.low:.0%` (right) of the maker's peak. Logarithmic axes.", "name": "fig-larger-cost"}, "image": {"alt": "Two panels with a row for each of T4, A100 and H200. Above, bars of memory; all three end right of the dotted line of what training needs, the T4 only just. Below, three ranges of hours a row; they grow with the length of prompts, the T4 takes several times as long as the A100, and on the H200 the ranges of short prompts shrink to a point because launching operations sets the time."}} tags=["hide-input"]
fig, axes = plots.figure(2, height=3.6, height_ratios=(2, 3))
rows = np.arange(len(cost.MACHINES))
axes[0].barh(
    rows, [m.memory / 1e9 for m in cost.MACHINES], 0.5, color=plots.INK, alpha=0.5
)
for row, machine in enumerate(cost.MACHINES):
    plots.note(axes[0], f"{machine.memory / 1e9:.0f} GB", machine.memory / 1e9, row)
axes[0].axvline(need["total"] / 1e9, color=plots.INK, ls=":")
plots.note(axes[0], f"needed: {need['total'] / 1e9:.1f} GB", need["total"] / 1e9, -0.62)
axes[0].set(xscale="log", xlim=(5, 400), xlabel="memory, GB (estimate)")
for row, machine in enumerate(cost.MACHINES):
    for place, tokens in zip((-0.28, 0, 0.28), LENGTHS, strict=True):
        ends = [hours(machine, tokens, share) for share in REACHED]
        axes[1].plot(ends, [row + place] * 2, color=plots.INK, lw=3, marker="|", ms=7)
        text = f"{tokens} tokens" if row == 0 else f"{tokens}"
        plots.note(axes[1], text, ends[1], row + place)
axes[1].set(xscale="log", xlim=(0.3, 12), xlabel="hours a run (estimate)")
for ax in axes:
    ax.set_yticks(rows, [machine.name for machine in cost.MACHINES])
    ax.set_ylim(len(rows) - 0.5, -0.9)
    ax.xaxis.set_major_formatter("{x:g}")

# %% [markdown]
# A T4 is tight: if the formula fell as short there as in the worst row above, the longest prompts would need
# {res}`30_larger_models:worst_memory:.1f` GB. Halve the micro-batch if it fails; that changes memory and time,
# not what is learned. On the A100 and the H200 two prompts at a time leave the processor waiting for the next
# operation: there the estimate is mostly the time of launches, and a larger micro-batch shortens it.

# %% tags=["remove-cell"]
base = measured["measured"]["base"]
small = cost.SMOLLM2_135M
reached = predicted["base"]["utilisation"] * measured["peak"]
tokens = int(base["tokens"])


def smol_seconds() -> float:
    """One core's estimate for `smol_trec`: warm-up, steps, scoring before and after."""
    total = 0.0
    for name in smol.ARM_NAMES:
        group = ARMS[name].group_size if name != "warmup" else 1
        steps = 0 if name == "warmup" else smol.STEPS
        prompts = smol.WARMUP_EPOCHS * smol.WARMUP_ROWS + steps * smol.OUTCOMES_PER_STEP // group
        scored = 2 * (smol.ROWS["validation"] + smol.ROWS["test"])
        total += small.step_flops(prompts, tokens, smol.TOP_LAYERS)
        total += small.forward_flops(scored, tokens, smol.TOP_LAYERS)
    lower = small.layers - smol.TOP_LAYERS
    stored = small.forward_flops(sum(smol.ROWS.values()), tokens, lower)
    return (len(smol.SEEDS) * total + stored) / reached


start = next(
    r
    for r in pilot
    if r.arm == "warmup"
    and r.config["warmup"]["learning_rate"] == smol.chosen_rate("warmup")
)
worst = {
    what: max(abs(row[what]) for row in predicted.values())
    for what in ("time", "memory")
}
shortfall = min(row["memory"] for row in predicted.values())
typical = 256
t4 = cost.MACHINES[0]
save_numbers(
    "30_larger_models",
    {
        "parameters": round(small.parameters / 1e6),
        "qwen_parameters": round(shape.parameters / 1e6),
        "warmup_rows": smol.WARMUP_ROWS,
        "warmup_epochs": smol.WARMUP_EPOCHS,
        "per_step": smol.OUTCOMES_PER_STEP,
        "pilot_steps": smol.PILOT_STEPS,
        "pilot_rows": smol.ROWS["validation"],
        "start": {
            key: start.metrics["validation"][key] for key in ("accuracy", "gap", "brier")
        },
        "typical": typical,
        "t4": {
            end: hours(t4, typical, share)
            for end, share in zip(("low", "high"), REACHED, strict=True)
        },
        "assumed": {
            "low": min(REACHED),
            "high": max(REACHED),
            "launch": 1e6 * t4.launch,
        },
        "step_seconds": base["seconds"],
        "base_prompts": base["prompts"],
        "seeds": len(smol.SEEDS),
        "outcomes": smol.STEPS * smol.OUTCOMES_PER_STEP,
        "steps": smol.STEPS,
        "bandit_rows": smol.ROWS["train"] - smol.WARMUP_ROWS,
        "test": len(test),
        "head_outcomes": f"{head[0].config['train']['outcomes']:,}",
        "accuracy": {name: float(values(name, "accuracy").mean()) for name in names},
        "brier": {name: float(values(name, "brier").mean()) for name in names},
        "ece": {name: float(values(name, "ece").mean()) for name in names},
        "gap": {f"{a}-{b}": [g.low, g.high] for (a, b), g in gaps.items()},
        "signals": signals,
        "warmup_mass": {
            end: float(np.mean([by_run["warmup", s].signals[i]["label_mass"] for s in smol.SEEDS]))
            for end, i in (("start", 0), ("end", -1))
        },
        "slow": {
            key: float(metric_values(control, "rlvr_loo", key).mean())
            for key in ("accuracy", "brier", "ece")
        },
        "slow_gap": [slow_gap.low, slow_gap.high],
        "rlvr_rate": f"{smol.chosen_rate('rlvr_loo'):g}",
        "rlcd_rate": f"{smol.chosen_rate('rlcd_loo'):g}",
        "same_order": sum(found == "same order" for found in verdicts.values()),
        "opposite": sum(found == "opposite" for found in verdicts.values()),
        "pairs": len(pairs),
        "top": smol.TOP_LAYERS,
        "layers": small.layers,
        "top_seconds": base["seconds"] * smol.TOP_LAYERS / small.layers,
        "smol_runs": planned["smol_trec"],
        "taken_hours": sum(r.used["seconds"] for r in records) / 3600,
        "smol_hours": smol_seconds() / 3600,
        "time_error": worst["time"],
        "memory_error": worst["memory"],
        "worst_memory": need["total"] / (1 + shortfall) / 1e9,
        "micro_batch": protocol.micro_batch,
        "every": protocol.every,
    },
)

# %% [markdown]
# ## What others published
#
# The figures of the reference protocol, *as published* {cite}`everlcd`: 8,000 test rows, temperature
# 1, mean over that many runs. None of them was reproduced here.
#
# | arm (published) | runs | accuracy | ECE-15 | Brier | mean confidence | NOTA recall | NOTA false alarm |
# |---|---|---|---|---|---|---|---|
# | warm-up | 2 | .748 | .022 | .339 | .763 | .531 | .072 |
# | supervised continuation | 1 | .778 | .192 | .407 | .969 | .739 | .099 |
# | RLCD | 3 | .808 | .023 | .267 | .830 | .793 | .075 |
# | RLVR, shared rate (stopped at step 150) | 1 | .576 | .415 | .835 | .991 | .599 | .406 |
# | RLVR, low rate | 3 | .778 | .213 | .432 | .991 | .715 | .090 |
# | oracle | 3 | .819 | .059 | .256 | .878 | .830 | .076 |
# | 32k-label reference | 1 | .817 | .014 | .251 | .829 | .843 | .089 |
#
# By direction they agree with the small policies: the outcome reward ends with a worse Brier score
# and a far larger ECE than RLCD, at either rate. They cannot stand in for the missing runs. The table has no arm with
# one outcome a question and no verdict loss, the arms that matter most beside RLCD in
# {doc}`20_rater_bandit`; several rows rest on one run; and no interval is given.
#
# ## What would change my mind
#
# :::{admonition} Limits
# :class: warning
# - **A recorded run on Qwen3.** That the divide holds there too is a guess of this book, because its reason is an identity in $p$ and
#   not a property of the model ({doc}`01_identity`). If in `reference` the interval over questions of RLVR minus RLCD
#   (Brier) lies below zero at RLVR's own best rate, the guess is wrong.
# - **The rates.** RLVR against RLCD was decided by the rate as much as by the reward. A pilot with more validation questions and
#   seeds, or both arms over the whole grid, would say more; nothing here shows that RLVR at its *best* rate is worse.
# - **Few outcomes.** {res}`30_larger_models:outcomes` outcomes are a fiftieth of what the head had. The seed recipe saw
#   {res}`30_larger_models:steps` questions, once each; RLCD with one outcome saw every training question about twice. A part of their
#   difference is that.
# - **The published control.** At the shared rate RLVR was stopped early and collapsed; at a fifth of it, it kept
#   most of its accuracy. A part of what looks like a wrong objective is a rate that is too high, and a still lower one
#   was not published.
# - **A verdict loss does as well** here as RLCD with one outcome. Nobody has published that comparison for the larger model;
#   if it holds there, RLCD is not needed there.
# - **The runs are limited.** `smol_trec` has three seeds, options in fixed order, a third of the layers and a
#   short pilot, in which three arms chose the lower edge of their rates. A policy may also
#   learn "C for such questions" instead of reading the options.
# - **The outcome is a label.** TREC gives one label per question, so there is no disagreement to
#   state; confidence can only be right on average over questions.
# - **The hours are estimates.** A GPU that reaches less than {res}`30_larger_models:assumed.low:.0%` of its peak takes longer than the table says.
# :::
#
# ## Exercises
#
# :::{exercise}
# :label: ex-larger-store
# Storing the lower layers' output costs one forward pass through 20 of 30 layers per prompt. After how
# many uses of a prompt is the store cheaper than running the frozen layers each time?
# :::
#
# :::{solution} ex-larger-store
# :class: dropdown
# In units of one layer's forward pass: each use costs $3 \cdot 10 = 30$ from the store and
# $20 + 30 = 50$ without; the store costs 20 once. After one use both have spent 50; from the second
# on the store is ahead.
# :::
#
# :::{exercise}
# :label: ex-larger-group
# At equal outcomes the seed recipe reads a quarter of the prompts of a one-outcome arm and so
# takes about a quarter of the time. Which arm would you compare it with at equal *time*, and is that the
# comparison a company with an outcome log cares about?
# :::
#
# :::{solution} ex-larger-group
# :class: dropdown
# With an arm of one action and a quarter of its outcomes. Where outcomes arrive by themselves and
# processors cost money, equal time is the right question; where each outcome is a customer who was
# sent somewhere, equal outcomes is. No log holds four outcomes for one case.
# :::
#
# :::{exercise}
# :label: ex-larger-micro
# Use `cost.QWEN3_06B.training_bytes` to find the largest micro-batch of 512-token prompts that fits 90 %
# of each machine's memory. Why does a larger one not help the T4 much?
# :::
#
# :::{solution} ex-larger-micro
# :class: dropdown
# Try 1, 2, 4, ... in `cost.QWEN3_06B.training_bytes(512 * micro, half=True)["total"]`. Weights, gradients and
# moments take $16P$, most of what a T4 has, whatever the micro-batch; and its time is bound by
# products, not by launches, so that fewer passes save nothing.
# :::
#
# :::{exercise}
# :label: ex-larger-mass
# The label mass needs the whole output matrix. What share of a step's products is it on SmolLM2 with
# ten trained layers and 84 tokens?
# :::
#
# :::{solution} ex-larger-mass
# :class: dropdown
# $2 \cdot 49152 \cdot 576$ per prompt, for its last position only, against
# `cost.SMOLLM2_135M.step_flops(1, 84, layers=10)`: about a third of a percent.
# :::
#
# ## Further reading
#
# SmolLM2 is described by {cite:t}`allal2025`, the questions by {cite:t}`li2002`, the reference
# protocol in the repository of {cite:t}`everlcd`. {cite:t}`bereket2025` see the same
# overconfidence of an outcome reward in language models trained with GRPO. {cite:t}`hu2022` train a low-rank part of every layer
# instead of all of the top ones. The arms themselves: {doc}`20_rater_bandit` and
# {doc}`24_what_happened`; the policies: {doc}`22_policies`.
