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
# # Train the arms
#
# **Question.** How is an arm trained, and how does one see, while it runs and without a test
# set, that it goes well?
#
# **Answer.** One loop trains every arm: state probabilities, draw an option, hear one bit, take one
# step. One number tells first whether it goes well, the stated probability of what was done minus how
# often it was right. Under the plain outcome reward it leaves ±{res}`23_train_the_arms:worry:.2f` after
# {res}`23_train_the_arms:warned.rlvr:,.0f` of {res}`23_train_the_arms:budget:,.0f` outcomes, while
# validation accuracy still rises from {res}`23_train_the_arms:accuracy.early:.3f` to
# {res}`23_train_the_arms:accuracy.end:.3f` and warns of nothing.
#
# **After this page you can** check one step of training by hand, find or re-run any arm of the book
# with one function, resume a killed run without losing a bit, and say of six signals what a healthy
# run shows.
#
# **Running time.** Half a minute on one CPU core; two small runs are trained live, the others are found in
# the records. With `profile = "cpu"` the page trains them all again, with `profile = "gpu"` it
# fine-tunes Qwen3-0.6B-Base ({doc}`30_larger_models` estimates for how long).

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
import tempfile
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from rlcd_core import plots
from rlcd_core.arms import ARMS
from rlcd_core.data.manifest import cache_dir
from rlcd_core.env import LoggedEnv, RaterEnv
from rlcd_core.extra.families import reference
from rlcd_core.extra.families.elsewhere import CONTINUED_RATES
from rlcd_core.extra.families.rater import ONE_RATE
from rlcd_core.extra.grid import FAMILIES, ON_GPU, family_records
from rlcd_core.extra.jobs import AnyJob, Job
from rlcd_core.metrics import seed_interval
from rlcd_core.policy import TabularPolicy
from rlcd_core.records import RunRecord, Store, code_hash, config_hash, save_numbers
from rlcd_core.rewards import OBJECTIVES, Feedback
from rlcd_core.schema import Choice
from rlcd_core.tasks import rater_task
from rlcd_core.train import Arm, Saving, TrainConfig, train

plots.use_style()
if profile == "auto":
    profile = "gpu" if torch.cuda.is_available() else "records"
bandit = family_records("rater_bandit")
by_run = {(row.arm, row.seed): row for row in bandit}
seeds = sorted({row.seed for row in bandit})


def heard(name: str) -> list[list[dict[str, float]]]:
    """The signals of an arm, seed by seed."""
    return [by_run[name, s].signals for s in seeds]


# %% mystnb={"figure": {"caption": "What to watch while an arm trains: film reviews, one rate for all, ten seeds, mean and 95 % band; each point is a mean over about a thousand outcomes. Shaded: worth a closer look. Only arms with groups have groups that agree.", "name": "fig-train-signals"}, "image": {"alt": "Five stacked panels over training steps. The share right rises highest for RLVR and for RLCD with normalised advantages. Stated minus actual stays at zero for both plain RLCD arms and climbs far into the shaded range for the other two. Entropy falls a little for plain RLCD and to a fraction for the other two. The share of groups that agree rises from a quarter to two fifths for the RLCD seed recipe and to nearly four fifths for the std-normalised one. Gradient norms rise slowly everywhere."}} tags=["hide-input"]
watched = ("rlcd", "rlcd_loo", "rlvr", "rlcd_std")
panels = plots.prepare_signals({name: heard(name) for name in watched})
fig, axes = plots.figure(len(panels), height=1.9, sharex=True)
plots.plot_signals(axes, panels)

# %% [markdown]
# Nobody needs labels for this panel: every curve in {numref}`fig-train-signals` is made of what the arm
# hears anyway. Note the first panel. The two arms that go wrong *collect more* than the two that
# do not; a team that watches its reward sees its best runs there.
#
# ## One ticket, one step, by hand
#
# *"The export button does nothing since the update."* A router states .5 for the bug queue, .3 for
# how-to questions, .2 for billing. It draws *how-to*, somebody there solves it, and the outcome is
# $c = 1$. The reward is what happened minus what was stated,
#
# $$ r = c - p_a, \qquad \text{loss} = -\,r \log p_a, \qquad
#    \frac{\partial\,\text{loss}}{\partial z_k} = -\,r\,\bigl(\mathbb 1[k = a] - p_k\bigr), $$
#
# with $r$ held fixed (no gradient flows through it), $z$ the logits and the last step the derivative
# of a softmax. An optimiser then moves against that gradient. Adam's very first step has seen one
# gradient only and divides it by its own size: it moves each logit by the learning rate $\eta$, by
# the sign alone.

# %%
p, action, outcome, eta = np.array([0.5, 0.3, 0.2]), 1, 1.0, 0.1
reward = outcome - p[action]
by_hand = {
    "loss": -reward * np.log(p[action]),
    "gradient": -reward * (np.eye(3)[action] - p),
}
moved = np.log(p) - eta * np.sign(by_hand["gradient"])
by_hand["p after"] = np.exp(moved) / np.exp(moved).sum()

# %% [markdown]
# Now the same through the book's own code: the loss of `rlcd_core.rewards`, differentiated by
# autograd, and one step of `train`, which meets this one decision as a log of length one.

# %%
ticket = (
    "The export button does nothing since the update.",
    Choice("Which queue?", ["bug", "how-to", "billing"]),
)
table = TabularPolicy([ticket], dtype=torch.float64)
with torch.no_grad():
    table.logits.copy_(torch.tensor(np.log(p))[None])
prepared = table.prepare([ticket])
row = np.array([0])
told = Feedback(torch.tensor([[action]]), torch.tensor([[outcome]]))
loss = OBJECTIVES["rlcd"](table.log_probs(prepared.take(row)), told)
loss.sum().backward()
by_autograd = {"loss": loss.item(), "gradient": table.logits.grad[0].numpy().copy()}

once = TrainConfig(learning_rate=eta, outcomes=1, outcomes_per_step=1, weight_decay=0.0)
world = LoggedEnv(np.array([action]), np.array([outcome]), n_options=3)
step = train(table, prepared, row, world, ARMS["rlcd"], once, seed)
after = table.log_probs(prepared.take(row)).exp()[0].detach().numpy()

assert np.isclose(by_autograd["loss"], by_hand["loss"], atol=1e-12)
assert np.allclose(by_autograd["gradient"], by_hand["gradient"], atol=1e-12)
assert np.isclose(step.history[0]["loss"], by_hand["loss"], atol=1e-6)
norm = np.linalg.norm(by_hand["gradient"])
assert np.isclose(step.history[0]["grad_norm"], norm, atol=1e-6)
assert np.allclose(after, by_hand["p after"], atol=1e-6)
pd.DataFrame(
    {
        "stated": p,
        "gradient": by_hand["gradient"],
        "autograd": by_autograd["gradient"],
        "after": by_hand["p after"],
        "train": after,
    },
    index=ticket[1].options,
).round(4)

# %% [markdown]
# "Autograd" and "train" repeat the hand-made column to their left. The gradient pushes the option that was taken
# and was right up and the others down, each in proportion to what was stated for it; Adam's first step keeps the
# signs only. Had the outcome been 0, the reward would be $-p_a$ and everything would turn round
# ({ref}`ex-train-1`): a confident mistake costs much, a timid one little. Averaged over draws this is
# half the gradient of the Brier score, {prf:ref}`thm-identity`. The rest of training is this step, a batch at a
# time, with a learning rate that rises for a twentieth of the run and then falls along a cosine,
# gradients clipped at norm 1, and AdamW.
#
# ## An arm is a record
#
# The loop has no branch for an arm. An arm names an objective, says how many actions a
# question gets and how they are judged, and that is all. Here is every arm of `rlcd_core.arms`. The objective is
# given where it has another name than the arm; $G$ is the number of actions a question gets; outcomes are those of
# one question:

# %%
PUBLISHED = ("rlcd_loo", "rlvr_loo", "rlvr_low", "nll")  # arms of the published study
kinds = {"outcome": "one bit", "label": "label"}


def told_of(arm: Arm) -> dict[str, object]:
    """What the table says of an arm."""
    objective = OBJECTIVES[arm.objective]
    needs = [kinds[arm.needs]]
    needs += ["start policy"] * arm.reference + ["propensity"] * objective.propensities
    return {
        "name": arm.name,
        "published": "yes" if arm.name in PUBLISHED else "",
        "objective": "" if arm.objective == arm.name else arm.objective,
        "G": arm.group_size,
        "outcomes": arm.group_size if arm.needs == "outcome" else "-",
        "needs": ", ".join(needs),
        "p = q": "yes" if objective.calibrates else "no",
        "equation": objective.equation,
    }


pd.DataFrame({arm.label: told_of(arm) for arm in ARMS.values()}).T

# %% [markdown]
# Four of them were published before this book {cite}`everlcd`. The *seed recipe* is the published way to
# train RLCD: four actions a question ($G = 4$), all judged by one label, and the leave-one-out
# mean of the other three rewards as a baseline. Its RLVR differs in the reward only, and has a variant
# at a fifth of the rate; the oracle is told the label. The column $p = q$ says whether a table that acts for
# itself ends there ({prf:ref}`thm-identity`, {prf:ref}`thm-own-baseline`, {prf:ref}`thm-gini`,
# {prf:ref}`thm-one-bit`, {prf:ref}`thm-regression`, {prf:ref}`thm-residual-ht`; who does not:
# {prf:ref}`thm-std`, {prf:ref}`thm-rescues`). An arm with groups counts
# each action as an outcome although one label judges the group. That is the budget all arms share.
#
# ## One function for every run
#
# A run is a *job*: a task, an arm, sizes, a seed. Its configuration has a hash, and the hash is the name
# of its record. `obtain` therefore needs nothing else to find it, or to know that it never ran:
#
# | profile | what `obtain` does |
# |---|---|
# | `records` (default without a GPU) | finds the committed record of exactly this configuration, or says that there is none |
# | `cpu` | trains the job again and keeps it beside the records, so that an interrupted page goes on where it was |
# | `gpu` | trains the arm's counterpart of the reference protocol on Qwen3-0.6B-Base; finished runs are kept, a lost one goes on from its last checkpoint |

# %%
HOMES = ("reference",) if profile == "gpu" else ("rater_arms", "rater_controls")
home = {job: family for family in HOMES for job in FAMILIES[family]()}
AGAIN = cache_dir() / "again" / "results"  # a repeat never overwrites a record


@cache
def kept(family: str) -> dict[str, RunRecord]:
    """Committed records by key: `Store.find`, with the file read once."""
    return {record.key: record for record in Store(family).records()}


def obtain(job: AnyJob) -> RunRecord | None:
    """The run of a job: found in profile `records`, else trained and kept."""
    config, family = job.full_config(), home[job]
    if profile == "records":
        return kept(family).get(config_hash(config))
    store = Store(family) if profile == "gpu" else Store(family, AGAIN)
    done = store.find(config)
    if done is None or (profile == "cpu" and done.code != code_hash()):
        done, predictions = job.train(family)
        store.add(done, predictions)
    return done


def trained(*names: str) -> pd.DataFrame:
    """One line an arm and setting: how many runs there are, and what they show."""
    lines = {}
    for name in names:
        jobs = [job for job in home if job.arm.name == name]
        if not jobs:
            lines[name, "-"] = {"runs": "no part of this profile"}
        settings: dict[str, list[AnyJob]] = {}
        for job in jobs:
            sizes = job.warmup if name == "warmup" else job.config
            batch = job.warmup.batch if name == "warmup" else sizes.outcomes_per_step
            rate = sizes.learning_rate * job.arm.rate_scale
            settings.setdefault(f"{rate:g} / {batch}", []).append(job)
        for setting, wanted in settings.items():
            found = [run for run in map(obtain, wanted) if run is not None]
            line = {"runs": f"{len(found)} of {len(wanted)}"}
            if len(found) == len(wanted):  # a part of the seeds is not the arm
                for metric in ("accuracy", "brier", "ece", "gap"):
                    cell = seed_interval([run.metrics["test"][metric] for run in found])
                    line[metric] = (
                        f"{cell.estimate:.3f} ± {cell.high - cell.estimate:.3f}"
                    )
            lines[wanted[0].arm.label, setting] = line
    return (
        pd.DataFrame(lines)
        .T.rename_axis(["arm", "rate / batch"])
        .fillna("not recorded")
    )


# %% [markdown]
# The task is that of {doc}`20_rater_bandit`: film reviews, one rater's verdict an outcome, each seed with
# a warm-up of its own. Rates and batches are those each arm chose on validation rows
# ({doc}`24_what_happened`); seeds are fresh. After ± stands half a 95 % interval
# (Student's, over seeds); `gap` is confidence minus accuracy.
#
# **Before any outcome.** The warm-up learns from {res}`23_train_the_arms:labels` labels, and every arm starts where it
# ends. The supervised continuation stays with those labels and takes as many further steps as an arm with 64
# outcomes a step does: what would more training have done without more data? It is run at two rates.

# %%
trained("warmup", "supervised")

# %% [markdown]
# Learning the same verdicts by heart teaches confidence and nothing else: the ECE goes from
# {res}`23_train_the_arms:ece.warmup:.3f` to {res}`23_train_the_arms:ece.continued_low:.3f` and, at the higher rate,
# {res}`23_train_the_arms:ece.continued_high:.3f`. More steps are not more evidence.
#
# **With the label.** The oracle is told the verdict after each question, which no log of decisions can
# do. On these texts it is also the large-label reference: it learns from as many labels as the others
# have outcomes. (The reference protocol keeps the two apart, as `labels_32k`.)

# %%
trained("nll", "brier", *(["labels_32k"] if profile == "gpu" else []))

# %% [markdown]
# **RLCD**: the published recipe; one action, one outcome and no baseline; two different actions
# with Horvitz-Thompson weights ({doc}`04_variance`).

# %%
trained("rlcd_loo", "rlcd", "residual_ht")

# %% [markdown]
# **RLVR**: the published recipe at the setting that its own accuracy chose and, where that is another one, at
# that of RLCD's seed recipe; the same at a fifth of the latter's rate; and RLVR with the exact Gini term, which has RLCD's
# mean direction.

# %%
trained("rlvr_loo", "rlvr_low", "rlvr_gini")

# %% [markdown]
# **Without policy gradient**: the verdict NLL is a classifier's loss on the one bit; the log score from
# one bit pays $c / p_a$.

# %%
trained("verdict_nll", "one_bit_log")

# %% [markdown]
# **A trap**: the RLCD reward in a trainer that divides advantages by the group's standard deviation.

# %%
trained("rlcd_std")

# %% [markdown]
# `trained` takes any name of the table of arms. What these numbers say about the arms is the subject of
# {doc}`24_what_happened`.
#
# **The larger models** have families of their own ({doc}`30_larger_models`). This is their state in the
# records that came with this page:

# %%
state = {}
for family in ("smol_trec", "smol_trec_gpu", "reference"):
    try:
        state[family] = f"{len(family_records(family))} runs recorded"
    except LookupError:
        wants = ", wants a GPU" * (family in ON_GPU)
        state[family] = f"not finished{wants}: no result"
pd.DataFrame({"state": state})

# %% [markdown]
# No number is shown for a run that is not recorded. To make one: set `profile = "gpu"` on this page, or run
#
# ```text
# rlcd runs reference --arm rlcd_loo     # one arm, three seeds
# rlcd runs reference                    # all that have no record yet
# ```
#
# with `RLCD_CACHE` (checkpoints) and `RLCD_RESULTS` (records) on a disk that outlives the runtime. Either
# way a runtime that is lost costs at most {res}`23_train_the_arms:every` steps, and what is finished is not run again.
#
# ## A run, now
#
# Here two arms really train, in every profile: the decision head on film reviews, from a fresh warm-up, on
# {res}`23_train_the_arms:live_outcomes:,.0f` outcomes, where a record has {res}`23_train_the_arms:budget:,.0f`. A short run
# is not a record, and another processor rounds otherwise, so what is asked of it is an order with
# wide margins. It must have learned; it must not yet be where the full budget leads; and the divide must
# be visible already.

# %%
LIVE = TrainConfig(learning_rate=4e-4, outcomes=3_000)
live = {
    name: Job("rater-movie-3", ARMS[name], LIVE, seed).train("live")[0]
    for name in ("rlcd", "rlvr")
}
if seed not in seeds:
    raise ValueError(f"seed {seed} has no record; choose one of {seeds}")
now = {name: run.metrics["test"] for name, run in live.items()}
start, full = live["rlcd"].metrics["test_before"], by_run["rlcd", seed].metrics["test"]
far = by_run["rlvr", seed].metrics["test"]
checks = {
    "RLCD learned: Brier below its warm-up's": start["brier"] - now["rlcd"]["brier"]
    > 0.015,
    "more would help: its record is below": now["rlcd"]["brier"] - full["brier"]
    > 0.008,
    "RLVR is surer than RLCD": now["rlvr"]["gap"] - now["rlcd"]["gap"] > 0.05,
    "and its record surer still": far["gap"] - now["rlvr"]["gap"] > 0.02,
}
if not all(checks.values()):
    raise AssertionError(f"the live run does not fit its records: {checks}")
pd.DataFrame({"holds": checks})

# %% [markdown]
# ## Killed, and resumed
#
# Machines stop. A run with a checkpoint writes its weights, Adam's moments, the world's random state, its
# signals and a SHA-256 over all of it into one safetensors file, atomically; order of rows and draws of
# actions are functions of seed and step, so there is no other state. Here a table over {res}`23_train_the_arms:table_rows` film reviews is
# trained by the seed recipe three times: in one go; with a fault half way; and again from the file
# that the fault left.

# %%
task = rater_task("movie")
texts = task.items[:200]
sizes = TrainConfig(learning_rate=0.05, outcomes=60 * 64, checkpoint_every=1)


class Lost(RuntimeError):
    """What a runtime does at night."""


def go(checkpoint: Path | None, dies_at: int | None = None, rate: float = 0.05):
    """Train a fresh table; with `dies_at`, its forward pass fails at that step."""
    policy = TabularPolicy(texts)
    prepared = policy.prepare(texts)
    forward, calls = policy.log_probs, count()

    def failing(batch):
        if next(calls) == dies_at:
            raise Lost
        return forward(batch)

    policy.log_probs = failing
    env = RaterEnv(task.counts[: len(texts)], seed=seed, shared_outcome=True)
    config = replace(sizes, learning_rate=rate)
    result = train(
        policy,
        prepared,
        np.arange(len(texts)),
        env,
        ARMS["rlcd_loo"],
        config,
        seed,
        checkpoint=checkpoint,
    )
    return policy, env, result


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "run.safetensors"
    whole, env, told = go(None)
    try:
        go(file, dies_at=30)
    except Lost:
        pass
    else:
        raise AssertionError("the fault did not happen")
    left = file.read_bytes()
    again, env_again, told_again = go(file)
    file.write_bytes(left)
    try:
        go(file, rate=0.06)
        refused = False
    except ValueError as error:
        refused = "checkpoint of another run" in str(error)
same = {
    "steps taken in all": told.steps == told_again.steps == 60,
    "weights, every bit": torch.equal(whole.logits, again.logits),
    "signals of every step": told.history == told_again.history,
    "state of the world": env.state_dict() == env_again.state_dict(),
    "a checkpoint of another rate is refused": refused,
}
if not all(same.values()):
    raise AssertionError(f"resuming changed the run: {same}")
pd.DataFrame({"holds": same})

# %% [markdown]
# The tests do the same at random points for several kinds of policy, and once with a real SIGKILL. Here
# each step was saved. Left alone, `train` measures what a checkpoint costs and saves as often as keeps all
# saving within a twentieth of the time ({ref}`ex-train-3`).
#
# ## What to watch
#
# Means over the first and the last tenth of the recorded runs of {numref}`fig-train-signals`, and of the
# RLVR seed recipe:

# %% tags=["hide-input"]
TENTH = 6  # of 60 stored blocks
compared = ("rlcd", "rlcd_loo", "rlvr", "rlvr_loo", "rlcd_std")


def ends(name: str, signal: str) -> dict[str, float]:
    """Mean over seeds of a signal's first and last tenth."""
    values = np.array([[row[signal] for row in rows] for rows in heard(name)])
    return {"start": values[:, :TENTH].mean(), "end": values[:, -TENTH:].mean()}


signals = {
    name: {
        signal: ends(name, signal)
        for signal in plots.SIGNALS
        if signal in heard(name)[0][0]
        and (signal != "zero_variance" or ARMS[name].group_size > 1)
    }
    for name in compared
}
pd.DataFrame(
    {
        plots.arm_style(name).label: {
            plots.SIGNALS[s]: f"{v['start']:.2f} → {v['end']:.2f}"
            for s, v in found.items()
        }
        for name, found in signals.items()
    }
).fillna("-").T

# %% tags=["remove-cell"]


def first_warning(name: str) -> float:
    """Outcomes after which the mean of stated minus actual leaves its range."""
    curve = panels["gap"].curves[name]
    outside = np.abs(curve.mean) > plots.GAP_WORRY
    return float(curve.x[outside.argmax()] * ONE_RATE.outcomes_per_step)


def validation(name: str, metric: str) -> np.ndarray:
    """Mean over seeds of the evaluations during training, (T,)."""
    return np.mean(
        [[row[metric] for row in by_run[name, s].curve] for s in seeds], axis=0
    )


def mean_ece(name: str, rate: float | None = None) -> float:
    """Mean test ECE of an arm that has a record for each seed, at one rate if given."""
    home_of = "rater_controls" if name == "supervised" else "rater_arms"
    found = [
        run.metrics["test"]["ece"]
        for run in family_records(home_of)
        if run.arm == name and rate in (None, run.config["train"]["learning_rate"])
    ]
    return float(np.mean(found))


evaluated = np.array([row["step"] for row in by_run["rlvr", 0].curve]) * 64
warned = {name: first_warning(name) for name in ("rlvr", "rlcd_std")}
early = int(np.searchsorted(evaluated, warned["rlvr"]))
larger = [r for r in family_records("smol_trec") if r.arm == "rlcd"]
shares = np.array([[row["label_mass"] for row in r.signals] for r in larger])
mass = f"{shares[:, :TENTH].mean():.2f} → {shares[:, -TENTH:].mean():.2f}"
never_outside = {n: panels["gap"].inside[n] for n in ("rlcd", "rlcd_loo")}
save_numbers(
    "23_train_the_arms",
    {
        "worry": plots.GAP_WORRY,
        "agree": plots.AGREE_WORRY,
        "warned": warned,
        "budget": float(evaluated[-1]),
        "accuracy": {
            "early": float(validation("rlvr", "accuracy")[early]),
            "end": float(validation("rlvr", "accuracy")[-1]),
        },
        "live_outcomes": float(LIVE.outcomes),
        "signals": {
            n: {s: {k: float(x) for k, x in v.items()} for s, v in found.items()}
            for n, found in signals.items()
        },
        "label_mass": mass,
        "labels": next(iter(live.values())).config["warmup"]["rows"],
        "every": reference.PROTOCOL.every,
        "table_rows": len(texts),
        "ece": {
            "warmup": mean_ece("warmup"),
            "continued_low": mean_ece("supervised", min(CONTINUED_RATES)),
            "continued_high": mean_ece("supervised", max(CONTINUED_RATES)),
        },
        "outside": max(never_outside.values()),
        "inside": panels["gap"].inside["rlvr"],
        "entropy_inside": panels["entropy"].inside["rlvr"],
        "entropy_inside_std": panels["entropy"].inside["rlcd_std"],
    },
)

# %% [markdown]
# :::{list-table}
# :header-rows: 1
#
# * - signal
#   - what it is
#   - healthy
#   - not healthy
#   - what to do
# * - stated minus actual
#   - mean stated probability of the options taken, minus the mean outcome
#   - near 0: RLCD ends at {res}`23_train_the_arms:signals.rlcd.gap.end:.3f`
#   - a drift to one side: RLVR ends at {res}`23_train_the_arms:signals.rlvr.gap.end:.3f`
#   - check the reward first, then whether advantages are normalised, then the pipeline of outcomes
# * - outcome (reward)
#   - share of the actions taken that were right
#   - rises and levels off: {res}`23_train_the_arms:signals.rlcd.outcome.start:.2f` to
#     {res}`23_train_the_arms:signals.rlcd.outcome.end:.2f`
#   - flat, or falls. A *higher* end ({res}`23_train_the_arms:signals.rlvr.outcome.end:.2f`
#     under RLVR) only says that the policy stopped drawing its second choice
#   - never choose a run by it; compare validation Brier scores
# * - entropy
#   - of the stated distribution, in nats, mean over the batch
#   - falls a little: RLCD {res}`23_train_the_arms:signals.rlcd.entropy.start:.2f` to
#     {res}`23_train_the_arms:signals.rlcd.entropy.end:.2f`
#   - collapses: RLVR to {res}`23_train_the_arms:signals.rlvr.entropy.end:.2f`
#   - read it with stated minus actual: certainty is no fault where the policy is right
# * - groups that agree
#   - share of questions whose $G$ actions had one and the same outcome; with a group baseline such a
#     question teaches RLVR nothing
#   - grows with confidence: RLCD seed recipe
#     {res}`23_train_the_arms:signals.rlcd_loo.zero_variance.start:.2f` to
#     {res}`23_train_the_arms:signals.rlcd_loo.zero_variance.end:.2f`
#   - above {res}`23_train_the_arms:agree:g`; RLVR seed recipe ({res}`23_train_the_arms:signals.rlvr_loo.zero_variance.end:.2f`)
#     and RLCD divided by std ({res}`23_train_the_arms:signals.rlcd_std.zero_variance.end:.2f`) come close
#   - ask more questions with fewer actions each; $G = 1$ needs no group
# * - label mass
#   - for language models: probability of all option labels together among all tokens
#   - does not fall: {res}`23_train_the_arms:label_mass` (SmolLM2 under RLCD, after a warm-up; {doc}`30_larger_models`)
#   - falling, or a few hundredths: the readout renormalises crumbs ({prf:ref}`prp-label-mass`)
#   - repair the prompt, or run `rlcd check MODEL` before training
# * - gradient norm
#   - before clipping
#   - same order of magnitude throughout: RLCD seed recipe
#     {res}`23_train_the_arms:signals.rlcd_loo.grad_norm.start:.1f` to
#     {res}`23_train_the_arms:signals.rlcd_loo.grad_norm.end:.1f`
#   - ten times the start, or single spikes. Larger by a constant is no illness: divided by std
#     it ends at {res}`23_train_the_arms:signals.rlcd_std.grad_norm.end:.1f`
#   - halve the rate; look at rows with tiny propensities or $p_a$ under a $1/p_a$ reward
# :::
#
# Which signal would have stopped the bad runs? Stated minus actual does: under RLVR it is out of range for
# {res}`23_train_the_arms:inside:.0%` of the run, under plain RLCD for
# {res}`23_train_the_arms:outside:.0%`. Entropy comes later: RLVR spends
# {res}`23_train_the_arms:entropy_inside:.0%` of its run in the shaded range and the std-normalised arm
# {res}`23_train_the_arms:entropy_inside_std:.0%`, although the latter is hardly more honest. Agreeing groups and gradient norm
# raise no alarm at all in the figure. And none of them replaces an evaluation: stated minus actual is a mean over
# all questions, and a policy can be too sure on one half and too modest on the other
# ({doc}`02_calibration`).
#
# ## What a run costs
#
# Outcomes are what a user pays for; questions are what must exist; forward passes are what the machine
# does; steps are what the optimiser gets. Means over the runs of an arm:

# %%
USED = ("labels", "outcomes", "prompts", "forward_passes", "steps")
spent = {}
for family in ("rater_arms", "rater_controls"):
    for run in family_records(family):
        label = ARMS[run.arm].label if run.arm in ARMS else run.config["arm"]["label"]
        sizes = run.config["train"]
        spent.setdefault(
            (label, sizes["outcomes_per_step"], sizes["learning_rate"]), []
        ).append([run.used[unit] for unit in USED])
headline = [
    ARMS[name].label
    for name in (
        "nll",
        "rlcd_loo",
        "rlcd",
        "residual_ht",
        "rlvr_loo",
        "rlvr_gini",
        "verdict_nll",
        "rlcd_std",
    )
] + ["Supervised continuation"]
pd.DataFrame(
    {
        (label, batch, f"{rate:g}"): dict(zip(USED, np.mean(rows, axis=0), strict=True))
        for (label, batch, rate), rows in spent.items()
        if label in headline
    }
).T.rename_axis(["arm", "batch", "rate"]).rename(
    columns={"prompts": "questions", "forward_passes": "passes"}
).map("{:,.0f}".format)

# %% [markdown]
# "Labels" are the warm-up's; an arm that is told labels counts its own as outcomes. At equal outcomes a group of
# four costs a quarter of the forward passes, since one serves four actions; that is its advantage, and the reason
# why {doc}`24_what_happened` draws both axes. A question counts once, however often it comes again: with this budget
# every outcome arm gets through all of them. The protocol of the reference family asks for far more. These are sizes, not
# results:

# %%
planned = reference.PROTOCOL
plan = {}
for name, prompts in (
    ("rlcd_loo", planned.prompts),
    ("nll", planned.prompts),
    ("supervised", planned.supervised_prompts),
):
    group = ARMS[name].group_size if name in ARMS else 1
    config = planned.config(prompts, group)
    plan[plots.arm_style(name).label] = {
        "outcomes or labels heard": f"{config.outcomes:,}",
        "questions passed forward": f"{config.steps(group) * config.prompts_per_step(group):,}",
        "steps": config.steps(group),
        "questions a pass": config.micro_batch,
        "longest prompt, tokens": planned.max_tokens,
    }
pd.DataFrame(plan).T

# %% [markdown]
# :::{admonition} What would change my mind
# :class: warning
#
# - *A run that stays at zero and is wrong.* Stated minus actual sees the mean over the policy's own actions. If
#   runs turn up whose curve stays in range while ECE on fresh rows grows, the panel needs a signal
#   that looks at confident actions alone.
# - *One table of signals for small policies.* The healthy numbers are those of a head with frozen features on
#   three options. With a hundred options outcomes are rare, every range widens, and groups agree because
#   all four actions are wrong.
# - *Ranges chosen with the curves in sight.* ±{res}`23_train_the_arms:worry:.2f` is three standard errors of a block of a
#   thousand outcomes, but {res}`23_train_the_arms:agree:.1f` for groups is a judgement, and it did not catch the
#   std-normalised arm.
# - *Bit-exact on one machine* says nothing about two: another processor, or another number of threads, adds in another
#   order. Resuming elsewhere gives a run like it, not the same one.
# :::
#
# ## Exercises
#
# :::{exercise} The same ticket, the other ending
# :label: ex-train-1
#
# The how-to queue sends the ticket back: $c = 0$. Compute reward, loss and gradient, check them against
# `OBJECTIVES["rlcd"]`, and compare the sizes of the two gradients. When does a failure teach more than
# a success?
# :::
#
# :::{solution} ex-train-1
# :label: sol-train-1
# :class: dropdown
#
# The direction $e_a - p$ is the same; the factor is $-p_a$ instead of $1 - p_a$. So a failure teaches more exactly when
# $p_a > 1/2$: whoever was confident is corrected, whoever was not is encouraged.
# :::

# %% tags=["hide-cell"]
wrong = -p[action]
logits = torch.tensor(np.log(p)[None], requires_grad=True)
told_wrong = Feedback(torch.tensor([[action]]), torch.tensor([[0.0]]))
OBJECTIVES["rlcd"](logits.log_softmax(-1), told_wrong).sum().backward()
expected = -wrong * (np.eye(3)[action] - p)
assert np.allclose(logits.grad[0].numpy(), expected, atol=1e-12)
print("gradient", expected.round(3), "| size against c = 1:", round(-wrong / reward, 3))

# %% [markdown]
# :::{exercise} When do groups agree?
# :label: ex-train-2
#
# Four actions are drawn from $p$ and judged by one label drawn from $q$. Find the chance that all four
# outcomes are equal, for the ticket above with $q = p$, and for a policy that states .98, .01, .01 while
# $q$ is the same. How much of each batch is lost on RLVR with a group baseline?
# :::
#
# :::{solution} ex-train-2
# :label: sol-train-2
# :class: dropdown
#
# Given the label $k$, all are right with chance $p_k^4$ and all wrong with $(1 - p_k)^4$, so the answer is
# $\sum_k q_k\,[p_k^4 + (1 - p_k)^4]$. That share of each batch is lost on RLVR. RLCD loses less: where outcomes
# agree and options differ, its rewards still differ by what was stated. Four equal actions teach neither.
# :::

# %% tags=["hide-cell"]
sure = np.array([0.98, 0.01, 0.01])
for name, stated in (("honest", p), ("too sure", sure)):
    print(f"{name}: {(p * (stated**4 + (1 - stated) ** 4)).sum():.3f}")

# %% [markdown]
# :::{exercise} How often to save
# :label: ex-train-3
#
# A step takes .5 s and a checkpoint 2 s. `Saving` saves as soon as that keeps all saving within a twentieth of
# the time. After how many steps does it save, once it has settled? Work it out, then let `Saving` decide.
# :::
#
# :::{solution} ex-train-3
# :label: sol-train-3
# :class: dropdown
#
# Saving may be $1/20$ of all time, so each 2 s of it need 38 s of steps: 76 of them. A kill then costs at most those 38
# seconds.
# :::

# %% tags=["hide-cell"]
saving, elapsed, saved = Saving(), 0.0, []
for number in range(1, 1000):
    elapsed += 0.5
    if saving.due(number, elapsed):
        saved.append(number)
        elapsed += 2.0
        saving.paid(2.0)
print("steps between checkpoints:", sorted(set(np.diff(saved[2:]).tolist())))

# %% [markdown]
# :::{exercise} Would accuracy have warned?
# :label: ex-train-4
#
# From the records: after how many outcomes does stated minus actual leave its range under RLVR and under the
# std-normalised arm, and at which evaluation is the validation Brier score of each at its best? Does validation accuracy
# ever fall by more than .01 from one evaluation to the next?
# :::
#
# :::{solution} ex-train-4
# :label: sol-train-4
# :class: dropdown
#
# The panel warns before the first evaluation. The Brier score says the same, but it needs labelled rows and, for one of the
# two, three times as long. Accuracy says nothing:
# :::

# %% tags=["hide-cell"]
pd.DataFrame(
    {
        plots.arm_style(name).label: {
            "out of range after, outcomes": f"{warned[name]:,.0f}",
            "best Brier score after, outcomes": f"{evaluated[validation(name, 'brier').argmin()]:,.0f}",
            "accuracy ever falls by .01": bool(
                (np.diff(validation(name, "accuracy")) < -0.01).any()
            ),
        }
        for name in warned
    }
).T

# %% [markdown]
# ## Further reading
#
# The published recipe and its figures are {cite:t}`everlcd`'s. Policy gradients with a score function go back to
# {cite:t}`williams1992`; the leave-one-out baseline for groups of samples is {cite:t}`kool2019`'s, and
# {cite:t}`ahmadian2024` bring it to language models. Groups normalised by their standard deviation come from
# {cite:t}`shao2024`; what the division does to probabilities is shown by {cite:t}`bereket2025` and proved in
# {prf:ref}`thm-std`. What the arms did is {doc}`24_what_happened`; what breaks them, {doc}`26_breakages`.
