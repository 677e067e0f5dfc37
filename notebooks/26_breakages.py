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
# # What breaks it
#
# **Question.** A policy is trained to be calibrated in a world that is not as clean as the proof: a
# trainer divides advantages by their standard deviation, one outcome in ten is recorded wrongly, three
# cases in ten are never resolved, and somebody counts those as failures. What is left of the
# probabilities?
#
# **Answer.** Division by the standard deviation destroys them (ECE
# {res}`26_breakages:std_ece:.3f` against {res}`26_breakages:loo_ece:.3f`). Wrong bits make the policy
# modest, nearly by as much as theory says, and almost leave its choices alone: with a fifth of the bits
# flipped RLCD's ECE is {res}`26_breakages:flip_2_ece:.3f`, its accuracy falls by
# {res}`26_breakages:flip_2_loss:.4f`. Outcomes that are missing at random cost about what a smaller budget costs.
# If wrong answers go missing more often, leaving them out makes RLCD with one outcome and the verdict loss too sure, and
# the seed recipe too modest; counting them as wrong makes all of them too modest. Neither is right.
#
# **After this page you can** predict where each kind of noise moves the probabilities, tell
# shrinkage from over-confidence, and say which question to ask about the cases in a log that never got
# an outcome.
#
# **Running time.** Seconds; the runs are committed (`make records FAMILY=rater_noise`).

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

# %% mystnb={"figure": {"caption": "Confidence minus accuracy on clean test verdicts after training on damaged outcomes, ten fresh seeds, mean and 95 % interval. Zero is honest; left is too modest, right too sure.", "name": "fig-breakages-gap"}, "image": {"alt": "Dot plots by kind of damage. For RLCD and verdict NLL the dots move left of zero as more bits are flipped or redrawn or unresolved outcomes are counted as wrong, and stay at zero when outcomes are lost at random; when more right than wrong outcomes are known, RLCD with one outcome and verdict NLL move right, the seed recipe left. RLVR stays far to the right in every row."}} tags=["hide-input"]
import numpy as np
import pandas as pd

from rlcd_core import exact, plots
from rlcd_core.arms import ARMS
from rlcd_core.extra.families.elsewhere import NOISE_ARMS, NOISES
from rlcd_core.extra.grid import family_records
from rlcd_core.metrics import seed_interval
from rlcd_core.records import metric_values, save_numbers
from rlcd_core.rewards import OBJECTIVES

plots.use_style()
fresh, damaged = family_records("rater_arms"), family_records("rater_noise")
words = {
    "clean": "clean",
    "flip_1": "flipped, .1",
    "flip_2": "flipped, .2",
    "redraw_1": "label redrawn, .1",
    "redraw_2": "label redrawn, .2",
    "lost": "30 % lost at random",
    "lost_more_when_wrong": "lost: .1 if right, .5 if wrong",
    "lost_as_wrong": "the same, counted as wrong",
}


def values(kind: str, arm: str, metric: str) -> np.ndarray:
    """Test metric on clean verdicts, one value a seed, in order of seed."""
    if kind == "clean":
        return metric_values(fresh, arm, metric)
    noise = NOISES[kind].__dict__
    return metric_values([r for r in damaged if r.config["noise"] == noise], arm, metric)


fig, axes = plots.figure(len(NOISE_ARMS), height=2.3, sharex=True)
for ax, arm in zip(axes, NOISE_ARMS, strict=True):
    look = plots.arm_style(arm)
    for row, kind in enumerate(words):
        found = seed_interval(values(kind, arm, "gap"))
        ax.plot([found.low, found.high], [row, row], color=look.color, lw=3, alpha=0.6)
        ax.plot(found.estimate, row, color=look.color, marker=look.marker)
    ax.axvline(0, color=plots.INK, lw=1, ls=":")
    ax.set_yticks(range(len(words)), list(words.values()), fontsize=8)
    _ = ax.set(title=look.label, ylim=(len(words) - 0.5, -0.5))
    ax.tick_params(axis="y", length=0)
_ = axes[-1].set(xlabel="confidence minus accuracy")

# %% [markdown]
# ## A ticket with a wrong ending
#
# *"I was charged twice."* The router sends it to billing, and billing solves it. In the log, though,
# the case carries the code of the agent's lunch break, and the outcome reads 0. Nobody lied, and one
# bit is flipped. Another ticket is never closed at all: the customer gave up. Is that a failure of the
# router?
#
# RLCD sees the world only through the mean of the bit it is shown after an action, $\tilde q_a$, and on
# its own actions rests at $p = \tilde q + (1 - \sum_k \tilde q_k)/K$ ({prf:ref}`thm-noise`). For three
# options and a true distribution of (.7, .2, .1), the exact resting places by enumeration:

# %%
truth = [0.7, 0.2, 0.1]
channel = exact.Channel
plan = {
    "clean": None,
    "flipped, .1": channel.flip(0.1),
    "flipped, .2": channel.flip(0.2),
    "30 % lost at random": channel.unresolved(0.7, 0.7),
    "lost: .1 if right, .5 if wrong": channel.unresolved(0.9, 0.5),
}
proper = ("rlcd", "rlcd_loo", "verdict_nll")
ends = {
    (word, name): exact.fixed_point(
        OBJECTIVES[ARMS[name].objective],
        truth,
        ARMS[name].group_size,
        **({"channel": way} if way else {}),
    ).p.numpy()
    for word, way in plan.items()
    for name in proper
}
pd.DataFrame(
    {
        plots.arm_style(name).label: {
            word: " ".join(f"{v:.3f}" for v in ends[word, name]) for word in plan
        }
        for name in proper
    }
)

# %% [markdown]
# The last row parts RLCD from its seed recipe. With one action, right answers are heard more often and the policy
# becomes too sure. With four actions and one verdict, the baseline is the mean reward of the other actions. It cancels
# on average only while every action is heard equally often. Here the action that agrees with the verdict is heard
# more often, just where the others do well too, so the baseline takes more from right answers than from wrong ones, and the
# policy ends too modest.
#
# ## Does a trained policy land there?
#
# The resting place is that of a table that acts forever. The decision head shares its weights among
# all texts and stops after 60,000 outcomes. If theory carries over, the mean confidence after damage
# follows from the mean confidence without it: flips of rate $\varepsilon$ turn $p$ into
# $(1 - 2\varepsilon)\,p + 2\varepsilon/3$, redrawn labels into $(1 - \varepsilon)\,p + \varepsilon/3$.

# %%
shrink = {"flip_1": 0.8, "flip_2": 0.6, "redraw_1": 0.9, "redraw_2": 0.8, "lost": 1.0}
clean = values("clean", "rlcd", "confidence")
rows = {}
for kind, factor in shrink.items():
    expected = factor * clean + (1 - factor) / 3
    found = values(kind, "rlcd", "confidence")
    rows[words[kind]] = {
        "predicted": f"{expected.mean():.3f}",
        "found": f"{seed_interval(found):.3f}",
        "found - predicted": f"{seed_interval(found - expected):.3f}",
    }
landed = {
    kind: values(kind, "rlcd", "confidence") - (f * clean + (1 - f) / 3)
    for kind, f in shrink.items()
}
pd.DataFrame(rows).T

# %% [markdown]
# The largest miss is {res}`26_breakages:landed:.3f`, small against the shifts themselves. In three of the five
# rows, though, it is more than chance, and always towards too modest: the resting place has not quite been
# reached, or the head cannot hold it.
#
# ## The table

# %%


def cell(found: np.ndarray) -> str:
    """Mean and 95 % interval over seeds, as the tables print them."""
    return f"{seed_interval(found):.3f}"


tables = {
    metric: pd.DataFrame(
        {
            plots.arm_style(arm).label: {
                words[kind]: cell(values(kind, arm, metric)) for kind in words
            }
            for arm in NOISE_ARMS
        }
    )
    for metric in ("accuracy", "brier", "ece")
}
tables["accuracy"]

# %%
tables["brier"]

# %%
tables["ece"]

# %% [markdown]
# What can be read off:
#
# - **Wrong bits make modest policies.** RLCD and the verdict loss shrink towards uniform, and
#   their choices hardly change: at a fifth of flipped bits RLCD's accuracy falls by
#   {res}`26_breakages:flip_2_loss:.4f`. A known noise rate can be undone afterwards by inverting the line
#   above; an unknown one cannot be told from honest doubt without clean verdicts.
# - **RLVR does not notice.** It goes to the corner in every row, since the best option stays best.
#   Noise that flattens $q$ does not slow it enough to matter: its ECE with a fifth flipped is
#   {res}`26_breakages:rlvr_flip_2_ece:.3f`.
# - **Lost at random leaves the gap at zero** and costs a little: with 30 % of the outcomes gone RLCD's Brier score
#   rises by {res}`26_breakages:lost_cost:.4f`, about what fewer outcomes explain ({ref}`ex-breakages-3`).
# - **Losing wrong outcomes more often biases**, whatever is done about it. Left out, RLCD's gap is
#   {res}`26_breakages:left_out_gap:.3f`: too sure; the seed recipe's is {res}`26_breakages:loo_left_out_gap:.3f`, too modest,
#   as enumerated above. Counted as wrong, RLCD's is
#   {res}`26_breakages:as_wrong_gap:.3f`: too modest. For RLCD counting errs more in ECE, and the Brier scores are
#   about equal; the verdict
#   loss suffers more from counting (ECE {res}`26_breakages:verdict_as_wrong_ece:.3f` against
#   {res}`26_breakages:verdict_left_out_ece:.3f`). Before choosing, find out whether resolution depends on
#   being right: a sample of the unresolved, resolved by hand, tells.
# - **Between RLCD and the verdict loss** many flips favour the latter (Brier score at a fifth flipped,
#   RLCD minus verdict NLL: {res}`26_breakages:flip_2_pair:.4f`; at a tenth the two hardly differ), redrawn labels
#   and outcomes lost when wrong the former (counted as wrong: {res}`26_breakages:as_wrong_pair:.4f`).
#
# ## Dividing by the standard deviation
#
# Many libraries for group-relative training divide a group's advantages by their standard deviation.
# For RLCD this is not a matter of scale: {prf:ref}`thm-std` says that each question is then weighed by
# the spread that its outcomes happened to have, and an option with $q > 1/2$ takes everything. Tuned on
# the same grid as all other arms:

# %%
pd.DataFrame(
    {
        plots.arm_style(arm).label: {
            m: cell(metric_values(fresh, arm, m)) for m in ("accuracy", "brier", "ece", "gap")
        }
        for arm in ("rlcd_loo", "rlcd_std", "rlvr_loo", "rlvr_std")
    }
).T

# %% tags=["remove-cell"]


def interval(found: np.ndarray) -> list[float]:
    """Both ends of the 95 % interval."""
    bounds = seed_interval(found)
    return [bounds.low, bounds.high]


save_numbers(
    "26_breakages",
    {
        "std_ece": float(metric_values(fresh, "rlcd_std", "ece").mean()),
        "loo_ece": float(metric_values(fresh, "rlcd_loo", "ece").mean()),
        "flip_2_ece": float(values("flip_2", "rlcd", "ece").mean()),
        "flip_2_loss": float(
            (values("clean", "rlcd", "accuracy") - values("flip_2", "rlcd", "accuracy")).mean()
        ),
        "rlvr_flip_2_ece": float(values("flip_2", "rlvr", "ece").mean()),
        "verdict_as_wrong_ece": float(values("lost_as_wrong", "verdict_nll", "ece").mean()),
        "verdict_left_out_ece": float(
            values("lost_more_when_wrong", "verdict_nll", "ece").mean()
        ),
        "flip_2_pair": interval(
            values("flip_2", "rlcd", "brier") - values("flip_2", "verdict_nll", "brier")
        ),
        "as_wrong_pair": interval(
            values("lost_as_wrong", "rlcd", "brier")
            - values("lost_as_wrong", "verdict_nll", "brier")
        ),
        "landed": float(max(abs(v.mean()) for v in landed.values())),
        "lost_cost": interval(values("lost", "rlcd", "brier") - values("clean", "rlcd", "brier")),
        "as_wrong_gap": interval(values("lost_as_wrong", "rlcd", "gap")),
        "left_out_gap": interval(values("lost_more_when_wrong", "rlcd", "gap")),
        "loo_left_out_gap": interval(values("lost_more_when_wrong", "rlcd_loo", "gap")),
    },
)

# %% [markdown]
# :::{admonition} What would change my mind
# :class: warning
#
# - *The noise here is independent of the text.* Real logs are wrong in places: one agent, one queue,
#   one month. Then shrinkage differs by text and no single line undoes it.
# - *Settings were those tuned on clean outcomes.* Somebody who tunes on damaged ones may choose
#   smaller steps and lose less.
# - *Ten seeds, one data set, three options.* With two options part 4 of {prf:ref}`thm-noise` makes RLCD
#   indifferent to outcome-dependent resolution; with fifty, flips would pull a likely option further down, since
#   the constant $2\varepsilon/K$ shrinks.
# - *Std-normalisation* is harmless where outcomes are certain given the text; film raters are not.
# :::
#
# ## Exercises
#
# :::{exercise} Undo a known noise
# :label: ex-breakages-1
#
# Outcomes are flipped with chance .1 and somebody tells you so. A policy states .62 for an option of
# three. What should it have stated?
# :::
#
# :::{solution} ex-breakages-1
# :label: sol-breakages-1
# :class: dropdown
#
# Invert $.8\,p + .2/3$:
# :::

# %% tags=["hide-cell"]
print(f"{(0.62 - 0.2 / 3) / 0.8:.3f}")

# %% [markdown]
# :::{exercise} Which noise was it?
# :label: ex-breakages-2
#
# Two policies are too modest by the same amount at the top. One learned from redrawn labels, one from
# unresolved outcomes counted as wrong (rate $\rho$, independent of being right). Can a reliability
# diagram tell them apart?
# :::
#
# :::{solution} ex-breakages-2
# :label: sol-breakages-2
# :class: dropdown
#
# No: $(1 - \varepsilon)\,q + \varepsilon/K$ and $\rho\,q + (1 - \rho)/K$ are the same line with
# $\varepsilon = 1 - \rho$. On logs of uniform actions they differ: there the second leaves $q$ alone.
# :::
#
# :::{exercise} The price of 30 %
# :label: ex-breakages-3
#
# If lost outcomes only make the budget smaller, training with 30 % lost should cost what training on
# 70 % of the outcomes costs. From {doc}`24_what_happened`, what would that be?
# :::
#
# :::{solution} ex-breakages-3
# :label: sol-breakages-3
# :class: dropdown
#
# Take the fall of RLCD's Brier score between the last two points of its efficiency curve as linear in the
# logarithm of the outcomes. Then .7 of the budget costs about $\log(1/.7)/\log(60/24)$ of that fall, which lies
# within the interval found, {res}`26_breakages:lost_cost:.4f`:
# :::

# %% tags=["hide-cell"]
runs = family_records("efficiency_arms")
earlier = np.mean(
    [
        r.metrics["test"]["brier"]
        for r in runs
        if r.arm == "rlcd"
        and r.config["train"]["outcomes"] == 24_000
        and not r.config["train"].get("replays", 0)
    ]
)
fall = earlier - values("clean", "rlcd", "brier").mean()
print(f"expected {fall * np.log(1 / 0.7) / np.log(60 / 24):.4f}")

# %% [markdown]
# ## Further reading
#
# {cite:t}`bereket2025` on division by the standard deviation in language models,
# {cite:t}`liu2025` on the same division for another reason. The theorems used here are proved in
# {doc}`06_one_bit`; outcomes that come late are the subject of {doc}`09_time`.
