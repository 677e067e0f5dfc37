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
# # A letter reader from nothing
#
# **The question.** The other chapters train the last layer of something that could already read.
# Take nothing instead: a transformer of random weights that sees a ticket and four options and must
# put its probability on a letter. How many examples does it need before it reads the *options* at all?
#
# **The answer.** If the options always stand in the same order,
# {res}`28_letters_from_scratch:needed.fixed:,.0f` labelled examples bring it to one half right; if they are
# shuffled, it takes {res}`28_letters_from_scratch:needed.shuffled:,.0f` (mean of the
# {res}`28_letters_from_scratch:reached` of {res}`28_letters_from_scratch:shuffled_runs` runs that got there).
#
# **After this chapter you can** train a language model that answers with a letter on one CPU core, say
# why its learning curve is flat and then falls off a cliff, and tell a reader of options from a
# classifier whose classes have letters for names.
#
# **Running time.** About fifteen seconds on one core, of which most is training. The longer runs come
# from the records (`make records FAMILY=triage_examples`): {res}`28_letters_from_scratch:runs` runs,
# {res}`28_letters_from_scratch:minutes` minutes of one busy core.

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
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from rlcd_core import plots
from rlcd_core.env import LabelledEnv
from rlcd_core.extra.families import triage
from rlcd_core.extra.grid import family_records
from rlcd_core.metrics import seed_interval
from rlcd_core.policy import predict
from rlcd_core.records import save_numbers
from rlcd_core.schema import render_prefix, render_suffix
from rlcd_core.tasks import score
from rlcd_core.train import train

torch.set_num_threads(1)
plots.use_style()
reading = {order: triage.triage_task(f"triage-reading-{order}") for order in ("fixed", "shuffled")}
examples = family_records("triage_examples")


def runs_of(order: str, spread: float = triage.READER.spread) -> list:
    """Reading runs of one order and one spread of the first weights, by seed."""
    return [
        r
        for r in examples
        if r.config["task"] == reading[order].name
        and r.config["policy"]["reader"]["spread"] == spread
    ]


def examples_until(level: float, order: str, *spread: float) -> np.ndarray:
    """Examples seen when the accuracy first reaches a level, by seed; NaN if never."""
    ends = [triage.end_of_plateau(r.curve, level) for r in runs_of(order, *spread)]
    return np.array(ends) * triage.READING.outcomes_per_step


ends = {order: examples_until(0.5, order) for order in reading}
rise = {o: examples_until(0.9, o) - examples_until(0.3, o) for o in reading}


# %% mystnb={"figure": {"caption": "Accuracy on one-cue tickets against labelled examples seen, mean and 95 % interval over seeds (logarithmic axis). Chance and the commonest position coincide at a quarter. The crosses mark where each shuffled run passes one half.", "name": "fig-letters-plateau"}, "image": {"alt": "Two curves of accuracy against examples. With options in fixed order accuracy climbs at once. With shuffled options it stays at a quarter over many thousand examples and then rises, on average to about three quarters when the budget ends."}} tags=["hide-input"]
fig, ax = plots.figure(height=3.8)
for order, look in (("fixed", "label"), ("shuffled", "rlcd")):
    rows = runs_of(order)
    seen = np.array([e["step"] for e in rows[0].curve]) * triage.READING.outcomes_per_step
    accuracy = np.array([[e["accuracy"] for e in r.curve] for r in rows])
    color = plots.COLORS[look]
    data = plots.prepare_curves(seen[1:], {order: accuracy[:, 1:]})[order]
    ax.fill_between(data.x, data.low.clip(0), data.high.clip(None, 1), color=color, alpha=0.2, lw=0)
    ax.plot(data.x, data.mean, color=color)
    middle = np.abs(data.mean - 0.62).argmin()
    side = {"ha": "right", "xytext": (-6, 0)}
    plots.note(ax, f"{order} order", data.x[middle], data.mean[middle], color=color, **side)
ax.plot(ends["shuffled"], np.full(len(ends["shuffled"]), 0.5), "x", color=plots.INK, ms=6)
ax.axhline(0.25, color=plots.INK, lw=1, ls=":")
plots.note(ax, "chance", seen[1], 0.25, color=plots.INK, va="bottom", xytext=(0, 3))
_ = ax.set(xscale="log", ylim=(0, 1.02), xlabel="labelled examples seen", ylabel="accuracy")

# %% [markdown]
# ## A ticket, as the machine meets it
#
# Here is one ticket of the generator. Its text fixes the department for certain; the sentence about
# urgency has nothing to say about it. The neutral sentences that the generator can put around a ticket
# are left out here, because a core is scarce and they carry nothing.

# %%
state, question = reading["shuffled"].items[0]
text = render_prefix(state) + render_suffix(question)
print(text)

# %% [markdown]
# The prompt is the one that every letter policy of this book gets, byte for byte. What is made here is
# the rest: a tokenizer, trained on the generator's own sentences, in which the lines that all prompts
# share are single tokens, and a Llama of {res}`28_letters_from_scratch:weights` random weights in
# {res}`28_letters_from_scratch:layers` layers. The distribution is read by the ordinary
# `LetterPolicy`: softmax over the label rows of the output matrix at the last position.

# %%
policy = triage.READER.build(torch.Generator().manual_seed(seed))
words = policy.encoder.tokenizer
ids = policy.encoder.plain([text])[0]
print(len(ids), "tokens:", " | ".join(words.decode([i]).replace("\n", "\\n") for i in ids))

# %% [markdown]
# ## Nothing, then something: train one now
#
# Thirty seconds of patience are not needed. In *fixed* order the letter belongs to the department:
# A is always billing. This cell trains a reader of random weights on
# {res}`28_letters_from_scratch:live_rows` labelled tickets and asks it about tickets that it has not seen.

# %%
task = reading["fixed"]
some = np.concatenate([task.splits["train"][:4096], task.splits["validation"]])
prepared = policy.prepare([task.items[row] for row in some])
counts = task.counts[some]
rows, unseen = np.arange(4096), np.arange(4096, len(some))
before = score(predict(policy, prepared, unseen), counts[unseen])
live = replace(triage.READING, outcomes=4096, eval_every=0)
env = LabelledEnv(counts, seed=seed)
train(policy, prepared, rows, env, triage._arm("nll"), live, seed)
after = score(predict(policy, prepared, unseen), counts[unseen])
pd.Series(
    {
        "near chance before": before["accuracy"] < 0.4,
        "well above chance after": after["accuracy"] > 0.6,
    }
)

# %% [markdown]
# ## How many examples until it reads?
#
# In *shuffled* order the same department has another letter each time, and a reader must do two things:
# *know* which department the words mean, and *find* that department among the options and say the
# letter in front of it. {numref}`fig-letters-plateau` is the outcome. Both tasks have the same tickets,
# the same labels and the same network.

# %%
def cell(values: np.ndarray, digits: int = 3) -> str:
    """Mean and 95 % interval over seeds, as the tables print them."""
    return f"{seed_interval(values):.{digits}f}"


def majority(order: str) -> float:
    """Accuracy of always taking the position that is right most often in training."""
    task = reading[order]
    best = task.counts[task.splits["train"]].sum(0).argmax()
    return float(triage.posteriors(task)[:, best].mean())


last = {
    order: np.array(
        [r.metrics["test"]["accuracy"] for r in runs_of(order)]
    )
    for order in reading
}
pd.DataFrame(
    {
        order: {
            "runs that reached .5": f"{np.isfinite(ends[order]).sum()} of {len(ends[order])}",
            "examples until then": f"{np.nanmin(ends[order]):.0f} to {np.nanmax(ends[order]):.0f}",
            "mean of these": cell(ends[order][np.isfinite(ends[order])], 0),
            "runs that reached .9": f"{np.isfinite(rise[order]).sum()} of {len(rise[order])}",
            "chance": "0.25",
            "commonest position": f"{majority(order):.2f}",
            "accuracy at the end": cell(last[order]),
        }
        for order in ("fixed", "shuffled")
    }
)

# %% [markdown]
# Shuffling costs a factor of {res}`28_letters_from_scratch:factor:.0f` in examples, even without the run that
# never got there (ratio of the means over seeds). Yet the information in a label is the same. Why is the curve flat and then steep?
#
# :::{prf:theorem} Two things to learn make a plateau
# :label: thm-letters-plateau
#
# Let the logit of the right option exceed the $K - 1$ others by $z$, let
# $p = e^z / (e^z + K - 1)$, and let $-\log p$ be minimised by gradient flow from small weights
# $\varepsilon > 0$.
#
# 1. *One thing to learn*, $z = a$ with $a(0) = \varepsilon$: $p = 1/2$ is reached by time
#    $\log(K - 1) + 1$, however small $\varepsilon$ is.
# 2. *Two things that are of use only together*, $z = a b$ with $a(0) = b(0) = \varepsilon$: the time to
#    $p = 1/2$ is at least $\frac{K}{K-1} \log \frac1\varepsilon + \frac{K}{2(K-1)} \log\log(K-1)$ for
#    $K \ge 3$, and so grows without bound as $\varepsilon \to 0$, while the time from one value
#    $p_0 > 1/K$ to another $p_1 > p_0$ does not depend on $\varepsilon$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# The loss falls with $z$ at rate $1 - p$, and $1/(1-p) = 1 + e^z/(K-1)$. (1) $\dot a = 1 - p$, so the time to
# $z = \log(K-1)$ is $\int_\varepsilon^{\log(K-1)} (1 + e^z/(K-1))\,dz \le \log(K-1) + 1$.
# (2) $\dot a = (1-p) b$ and $\dot b = (1-p) a$, so $a = b$ throughout and
# $\dot z = 2 (1-p) z$. The time from $z_0$ to $z_1$ is $\int_{z_0}^{z_1} \frac{1 + e^z/(K-1)}{2z}\,dz$. It depends on
# $\varepsilon$ only if $z_0 = \varepsilon^2$ does, which is the last claim. With
# $e^z \ge 1$ it is at least $\frac{K}{2(K-1)} \log(z_1/z_0)$; put $z_0 = \varepsilon^2$ and $z_1 = \log(K-1)$. ∎
# :::
#
# The origin $a = b = 0$ is a saddle: as long as the reader cannot find, knowing does not pay, and as long
# as it does not know, neither does finding. Deep linear networks show the same plateaus
# {cite:p}`saxe2014`; in language models the sudden step has been traced to pairs of attention heads,
# one of which looks at the token before, which *find* a token and copy what stands beside it
# {cite:p}`olsson2022`. Our options are such a case: the letter stands before the option.
#
# The theorem is about two numbers and not about a transformer trained with Adam, so it deserves a check that
# could have failed. It says that *smaller* weights at the start lengthen the plateau, although they are no
# less random; a reader who blames the optimiser, the data or bad luck would not expect that. The same
# runs with weights of a half and a quarter of the spread:

# %%
spreads = {r.config["policy"]["reader"]["spread"] for r in examples}
until = {spread: examples_until(0.5, "shuffled", spread) for spread in sorted(spreads, reverse=True)}
pd.DataFrame(
    {
        f"{spread:g}": {
            "seeds": f"{len(values)}",
            "that reached .5": f"{np.isfinite(values).sum()}",
            "examples until then, mean": (
                f"{np.nanmean(values):.0f}" if np.isfinite(values).any() else "none did"
            ),
        }
        for spread, values in until.items()
    }
)

# %% tags=["remove-cell"]
save_numbers(
    "28_letters_from_scratch",
    {
        "needed": {order: float(np.nanmean(values)) for order, values in ends.items()},
        "range": {
            order: [float(np.nanmin(values)), float(np.nanmax(values))]
            for order, values in ends.items()
        },
        "factor": float(np.nanmean(ends["shuffled"]) / np.nanmean(ends["fixed"])),
        "reached": int(np.isfinite(ends["shuffled"]).sum()),
        "finished": int(np.isfinite(rise["shuffled"]).sum()),
        "budget": f"{triage.READING_ROWS['shuffled']:,}",
        "shuffled_runs": len(rise["shuffled"]),
        "runs": len(examples),
        "minutes": round(sum(r.used["seconds"] for r in examples) / 60),
        "weights": f"{sum(p.numel() for p in policy.parameters()):,}",
        "layers": triage.READER.layers,
        "live_rows": f"{live.outcomes:,}",
        "last": float(last["shuffled"].mean()),
    },
)

# %% [markdown]
# What can be read off:
#
# - **Letters are learned in two stages.** With shuffled options
#   {res}`28_letters_from_scratch:reached` of {res}`28_letters_from_scratch:shuffled_runs` readers of random
#   weights pass one half within {res}`28_letters_from_scratch:budget` examples, after
#   {res}`28_letters_from_scratch:range.shuffled:,.0f` (least and most), and
#   {res}`28_letters_from_scratch:finished` pass .9. The seeds differ widely; one is still at chance when the
#   budget ends. Until the climb begins, accuracy says that nothing is happening.
# - **A bandit would wait longer still.** At chance an outcome is right one time in four; whoever starts
#   an arm from such a reader measures the plateau and not the arm. That is why every arm of this book
#   starts from a warm-up on labels.
# - **Fixed order is another task.** A test with options in a fixed order cannot tell a reader of options from
#   a classifier whose classes happen to be called A to D.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *A made-up world.* The generator's sentences are few and short. Natural language may make the plateau
#   longer, or give so many partial hints that it vanishes.
# - *One small network, one optimiser, one constant rate.* The length of the plateau depends on all three; that
#   there is one is what the theorem explains.
# - *The theorem's network has two weights.* It shares the saddle with the reader and nothing else. The check by
#   smaller first weights could have failed and did not; it supports the sign of what the theorem says, not its
#   logarithm.
# - *The arms on these tickets*, with posteriors known exactly, have no records yet: their families
#   `triage_tuning` and `triage_arms` are defined and wait to be run. So this page says nothing about whether
#   the ordering of {doc}`24_what_happened` holds for letter readers.
# :::
#
# ## Exercises
#
# :::{exercise} A curriculum
# :label: ex-letters-1
#
# Would it help to begin with fixed order and shuffle later? Say what the theorem's picture predicts
# before you try.
# :::
#
# :::{solution} ex-letters-1
# :label: sol-letters-1
# :class: dropdown
#
# Fixed order teaches to know and not to find: $a$ grows, $b$ does not. Afterwards the product starts at
# $a\varepsilon$ in place of $\varepsilon^2$, so the plateau should shorten by about half its logarithm; but
# the reader must first unlearn that billing is A, which the two-weight picture does not contain.
# :::
#
# :::{exercise} Two options
# :label: ex-letters-2
#
# In the theorem $K \ge 3$ is asked for in part 2. What is special about $K = 2$?
# :::
#
# :::{solution} ex-letters-2
# :label: sol-letters-2
# :class: dropdown
#
# Chance is 1/2, so "until $p = 1/2$" takes no time at all: $\log(K - 1) = 0$. Ask for $p_1 > 1/2$ and the
# bound is $\log(z_1/\varepsilon^2)$ again, with $z_1 = \log \frac{p_1}{1 - p_1}$.
# :::
#
# :::{exercise} How long at ten options?
# :label: ex-letters-3
#
# For first weights $\varepsilon = .01$, by how much does the theorem's lower bound change from four options
# to ten?
# :::
#
# :::{solution} ex-letters-3
# :label: sol-letters-3
# :class: dropdown
#
# It falls a little: with more options the gradient at chance, $1 - 1/K$, is larger.
# :::

# %% tags=["hide-input"]
for options in (4, 10):
    share = options / (options - 1)
    bound = share * np.log(100) + share / 2 * np.log(np.log(options - 1))
    print(f"K = {options}: at least {bound:.2f}")

# %% [markdown]
# ## Further reading
#
# {cite:t}`saxe2014` on plateaus of deep linear networks, {cite:t}`olsson2022` on the attention heads that find
# and copy. {doc}`22_policies` has the other ways to read a decision from a network.
