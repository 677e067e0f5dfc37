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
# **Question.** The chapters so far train the last layer of something that could already read.
# Take nothing instead: a transformer of random weights that sees a ticket and four options and must
# put its probability on a letter. How many examples does it need before it reads the *options* at all?
# And do the arms, started from such a reader, come out in the order that they had on film reviews?
#
# **Answer.** If the options always stand in the same order, fewer than
# {res}`28_letters_from_scratch:first:,.0f` labelled examples do: at this first evaluation it is right nearly always. If they are shuffled, half of its answers are right only after
# {res}`28_letters_from_scratch:needed.shuffled:,.0f` examples (mean of the
# {res}`28_letters_from_scratch:reached` of {res}`28_letters_from_scratch:shuffled_runs` runs that got there).
# After {res}`28_letters_from_scratch:outcomes` outcomes no arm has finished learning, and the divide shows all the
# same: RLVR ends with an ECE of {res}`28_letters_from_scratch:means.ECE.rlvr_loo:.3f`, RLCD with
# {res}`28_letters_from_scratch:means.ECE.rlcd_loo:.3f` (seed recipes). Of {res}`28_letters_from_scratch:compared` pairs of arms
# {res}`28_letters_from_scratch:same` get the verdict of the film reviews (one of them "undecided" on both), and none the opposite. The contrary result:
# going on with the *old labels* of the warm-up beats every arm that hears new outcomes (Brier
# {res}`28_letters_from_scratch:means.Brier.supervised:.3f`; the best of them
# {res}`28_letters_from_scratch:best_outcome:.3f`).
#
# **After this page you can** train a language model that answers with a letter on one CPU core, say
# why its learning curve is flat and then falls off a cliff, tell a reader of options from a
# classifier whose classes have letters for names, and check an arm against probabilities that are known exactly.
#
# **Running time.** About half a minute on one core, of which a third is training. The longer runs come
# from the records (`make records FAMILY=triage_examples`, then `triage_tuning` and `triage_arms`):
# {res}`28_letters_from_scratch:runs` and {res}`28_letters_from_scratch:arm_runs` runs,
# {res}`28_letters_from_scratch:minutes` and {res}`28_letters_from_scratch:arm_minutes` minutes of a crowded core.

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
import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from scipy.stats import kendalltau

from rlcd_core import plots
from rlcd_core.calibrate import fit_temperature
from rlcd_core.data.nota import NOTA
from rlcd_core.env import LabelledEnv, RaterEnv
from rlcd_core.extra.families import triage
from rlcd_core.extra.grid import family_records
from rlcd_core.metrics import seed_interval
from rlcd_core.policy import predict
from rlcd_core.records import Store, metric_values, save_numbers
from rlcd_core.schema import render_prefix, render_suffix
from rlcd_core.tasks import score
from rlcd_core.train import train

torch.set_num_threads(1)
plots.use_style()
reading = {
    order: triage.triage_task(f"triage-reading-{order}")
    for order in ("fixed", "shuffled")
}
deciding = triage.triage_task("triage-deciding")
examples = family_records("triage_examples")
tuning = family_records("triage_tuning")
fresh = family_records("triage_arms")
seeds = triage.FRESH_SEEDS
shown = tuple(dict.fromkeys(row.arm for row in fresh))
labels = {name: plots.arm_style(name).label for name in shown}
truth = triage.posteriors(deciding)
probe = triage.probe_rows(deciding)
store = Store("triage_arms")
said = {(row.arm, row.seed): store.predictions(row) for row in fresh}
SHORT_LABELS, SHORT_OUTCOMES = 1280, 6400


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


# %% mystnb={"figure": {"caption": "Accuracy on one-cue tickets against labelled examples seen, mean and 95 % interval over seeds (logarithmic axis). Chance and the commonest position coincide at a quarter. The crosses mark where each shuffled run passes one half.", "name": "fig-letters-plateau"}, "image": {"alt": "Two curves of accuracy against examples. With options in fixed order accuracy is near 1 from the first evaluation on. With shuffled options it stays at a quarter over many thousand examples and then rises, on average to about three quarters when the budget ends."}} tags=["hide-input"]
fig, ax = plots.figure(height=3.8)
for order, look in (("fixed", "label"), ("shuffled", "rlcd")):
    rows = runs_of(order)
    seen = (
        np.array([e["step"] for e in rows[0].curve]) * triage.READING.outcomes_per_step
    )
    accuracy = np.array([[e["accuracy"] for e in r.curve] for r in rows])
    color = plots.COLORS[look]
    data = plots.prepare_curves(seen[1:], {order: accuracy[:, 1:]})[order]
    ax.fill_between(
        data.x, data.low.clip(0), data.high.clip(None, 1), color=color, alpha=0.2, lw=0
    )
    ax.plot(data.x, data.mean, color=color)
    middle = np.abs(data.mean - 0.62).argmin() if order == "shuffled" else -1
    side = {"ha": "right", "xytext": (-6, 0) if order == "shuffled" else (0, -10)}
    plots.note(
        ax, f"{order} order", data.x[middle], data.mean[middle], color=color, **side
    )
ax.plot(
    ends["shuffled"], np.full(len(ends["shuffled"]), 0.5), "x", color=plots.INK, ms=6
)
ax.axhline(0.25, color=plots.INK, lw=1, ls=":")
plots.note(ax, "chance", seen[1], 0.25, color=plots.INK, va="bottom", xytext=(0, 3))
_ = ax.set(
    xscale="log", ylim=(0, 1.02), xlabel="labelled examples seen", ylabel="accuracy"
)

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
print(
    len(ids), "tokens:", " | ".join(words.decode([i]).replace("\n", "\\n") for i in ids)
)

# %% [markdown]
# ## Nothing, then something: train one now
#
# In *fixed* order the letter belongs to the department:
# A is always billing. This cell trains a reader of random weights on
# {res}`28_letters_from_scratch:live_rows` labelled tickets and asks it about tickets that it has not seen.

# %%
task = reading["fixed"]
some = np.concatenate([task.splits["train"][:1280], task.splits["validation"]])
prepared = policy.prepare([task.items[row] for row in some])
counts = task.counts[some]
rows, unseen = np.arange(1280), np.arange(1280, len(some))
before = score(predict(policy, prepared, unseen), counts[unseen])
live = replace(triage.READING, outcomes=1280, eval_every=0)
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
    order: np.array([r.metrics["test"]["accuracy"] for r in runs_of(order)])
    for order in reading
}
# Between evaluations a straight line is drawn; before the first one there is nothing to see.
first = int(runs_of("fixed")[0].curve[1]["step"] * triage.READING.outcomes_per_step)
pd.DataFrame(
    {
        order: {
            "runs that reached .5": f"{np.isfinite(ends[order]).sum()} of {len(ends[order])}",
            "examples until then": (
                f"{np.nanmin(ends[order]):,.0f} to {np.nanmax(ends[order]):,.0f}"
                if np.nanmax(ends[order]) > first
                else f"fewer than {first:,}"
            ),
            "mean of these": (
                cell(ends[order][np.isfinite(ends[order])], 0)
                if np.nanmax(ends[order]) > first
                else "not seen"
            ),
            "runs that reached .9": f"{np.isfinite(rise[order]).sum()} of {len(rise[order])}",
            "chance": "0.25",
            "commonest position": f"{majority(order):.2f}",
            "accuracy at the end": "{:.3f} to {:.3f}".format(
                *np.sort(last[order])[[0, -1]]
            ),
        }
        for order in ("fixed", "shuffled")
    }
)

# %% [markdown]
# With fixed order every run is near 1 at its first evaluation, after {res}`28_letters_from_scratch:first:,.0f` examples.
# So shuffling costs a factor of at least {res}`28_letters_from_scratch:factor:.0f` in examples, even without the
# run that never got there (mean over seeds against that first evaluation). Yet the information in a label is the same.
# Why is the curve flat and then steep?
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
# $e^z \ge 1$ it is at least $\frac{K}{2(K-1)} \log(z_1/z_0)$; put $z_0 = \varepsilon^2$ and $z_1 = \log(K-1)$. $\square$
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
until = {
    spread: examples_until(0.5, "shuffled", spread)
    for spread in sorted(spreads, reverse=True)
}
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

# %% [markdown]
# What can be read off:
#
# - **Letters are learned in two stages.** With shuffled options
#   {res}`28_letters_from_scratch:reached` of {res}`28_letters_from_scratch:shuffled_runs` readers of random
#   weights pass one half within {res}`28_letters_from_scratch:budget` examples, after
#   {res}`28_letters_from_scratch:range.shuffled:,.0f` (least and most), and
#   {res}`28_letters_from_scratch:finished` pass .9. The seeds differ widely; one is still at chance when the
#   budget ends. Until the climb begins, accuracy says that nothing is happening.
# - **Smaller first weights, fewer readers that get there**, and later, as the theorem says. The runs are few: this
#   is a check that did not fail, not a measurement of the logarithm.
# - **A bandit should wait longer still.** At chance an outcome is right one time in four, and a wrong one says
#   little; whoever starts an arm from such a reader measures the plateau and not the arm. That is why the arms
#   below start from a reader that has left the plateau, and from a warm-up on labels. (No bandit was run from
#   random weights.)
# - **Fixed order is another task.** A test with options in a fixed order cannot tell a reader of options from
#   a classifier whose classes happen to be called A to D.
#
# ## Tickets whose probabilities are known
#
# Now the arms. They start from one reader of the first part (shuffled options, seed
# {res}`28_letters_from_scratch:base_seed`): it can find an option and say its letter, and it has met one-cue
# tickets in a fifth of the generator's wording. The tickets below use the other four fifths. They are of three kinds:
# one cue, two equal cues, and a yes-or-no question, escalate? Options are shuffled, and "None of the above" (NOTA) stands in half of the department questions: with
# probability .15 it replaces the right option, with .35 a wrong one. Here is one of them.

# %%
nota = next(i for i in deciding.splits["test"] if NOTA in deciding.items[i][1].options)
print(render_prefix(deciding.items[nota][0]) + render_suffix(deciding.items[nota][1]))
pd.Series(
    deciding.counts[nota] / deciding.counts[nota].sum(),
    index=deciding.items[nota][1].options,
    name="what should be believed",
)

# %% [markdown]
# The generator fixes what should be believed:
#
# | kind of ticket | ideal |
# |---|---|
# | one cue | 1 for its department; if that is not among the options, 1 for NOTA |
# | cues of two departments | 1/2 each; if NOTA stands in the place of one, 9/16 for NOTA and 7/16 for the other |
# | pressing or calm: escalate? | .9 / .1 |
#
# The 9/16 is Bayes' rule, $.5 \cdot .15$ against $.5 \cdot .35/3$ (third exercise). Rows that are scored hold
# {res}`28_letters_from_scratch:verdicts` verdicts in exactly these proportions, so accuracy, Brier score and ECE are
# expectations, without the noise of sampled labels. Rows that train hold one label, drawn once.
#
# A run warms up on {res}`28_letters_from_scratch:warmup_rows` labels and then spends
# {res}`28_letters_from_scratch:outcomes` outcomes on other rows. An outcome says whether the sampled letter is the
# label. The seed recipes of RLCD and RLVR sample four letters a question and so meet
# {res}`28_letters_from_scratch:asked.rlcd_loo` questions; an arm with one outcome a question meets
# {res}`28_letters_from_scratch:asked.rlcd`, most of them twice. Residual HT draws two different letters a question
# ({doc}`04_variance`), and the log score from one bit pays by the weight $1/p_a$ ({doc}`06_one_bit`). Two controls see labels instead: the *full label* of
# the bandit questions, and *supervised continuation*, which goes on with the labels of the warm-up.
#
# ## How each rate was chosen
#
# Each arm had the same {res}`28_letters_from_scratch:rates` learning rates on
# {res}`28_letters_from_scratch:tuning_seeds` seeds that no result uses. RLVR was chosen by validation accuracy, every
# other arm by validation Brier score; the chosen cell is marked. The low-rate RLVR arm takes a fifth of the rate
# that the RLCD recipe chose, as was published.


# %%
def grid_of(name: str) -> dict[float, float]:
    """Mean validation score of an arm at each rate, over the tuning seeds."""
    key = "accuracy" if name == "rlvr_loo" else "brier"
    return {
        rate: float(
            np.mean(
                [
                    r.metrics["validation"][key]
                    for r in tuning
                    if r.arm == name and r.config["train"]["learning_rate"] == rate
                ]
            )
        )
        for rate in triage.RATES
    }


chosen = {name: triage.tuned(name).learning_rate for name in triage.ARM_NAMES}
edge = {n: rate in (min(triage.RATES), max(triage.RATES)) for n, rate in chosen.items()}
pd.DataFrame(
    {
        labels[name]: {
            "by": "accuracy" if name == "rlvr_loo" else "Brier",
            **{
                f"{rate:g}": f"{score:.3f}" + " *" * (rate == chosen[name])
                for rate, score in grid_of(name).items()
            },
            "on an edge": "yes" if edge[name] else "no",
        }
        for name in triage.ARM_NAMES
    }
).T

# %% [markdown]
# ## Two arms, trained while you read
#
# A short run of both seed recipes from the same start: the base reader,
# {res}`28_letters_from_scratch:short_labels` labels of warm-up, then
# {res}`28_letters_from_scratch:short_outcomes` outcomes at the rate that RLCD chose. Afterwards each is asked about
# test tickets with two equal cues, where nothing above one half can be justified.

# %%
two = deciding.splits["test"][probe["two_cues"]][:200]
questions = SHORT_OUTCOMES // triage._arm("rlcd_loo").group_size
train_rows = deciding.splits["train"][: SHORT_LABELS + questions]
some = np.concatenate([train_rows, two])
labelled, asked, unseen = np.split(
    np.arange(len(some)), [SHORT_LABELS, len(train_rows)]
)
counts = deciding.counts[some]
start = replace(triage.WARMUP, rows=SHORT_LABELS).config()
short = replace(triage.tuned("rlcd_loo"), outcomes=SHORT_OUTCOMES)
reader = triage.READER.build(torch.Generator().manual_seed(seed))
prepared = reader.prepare([deciding.items[row] for row in some])
triage.load_base(reader)
train(
    reader,
    prepared,
    labelled,
    LabelledEnv(counts, seed=seed),
    triage._arm("nll"),
    start,
    seed,
)
sure = {}
for name in ("rlcd_loo", "rlvr_loo"):
    trained, env = copy.deepcopy(reader), RaterEnv(counts, seed, shared_outcome=True)
    train(trained, prepared, asked, env, triage._arm(name), short, seed)
    sure[name] = predict(trained, prepared, unseen).max(1).mean()
pd.Series(
    {
        "RLVR is surer than RLCD by more than .1": sure["rlvr_loo"] - sure["rlcd_loo"]
        > 0.1
    }
)

# %% [markdown]
# ## Every arm against the truth
#
# {res}`28_letters_from_scratch:seeds` fresh seeds, mean and 95 % interval. {numref}`fig-letters-arms` has the two scores,
# the table all of them. *Distance* is the mean total variation between the stated and the true distribution: half the
# sum of the absolute differences. Two rows are no arm: the truth itself, the best that any reader could do, and equal
# odds on the options shown, which takes no reading.


# %%
def by_seed(name: str, measure) -> np.ndarray:
    """A measure of the test predictions of each seed, (seeds,)."""
    return np.array([measure(said[name, s]) for s in seeds])


def tested(key: str):
    """A test metric as a function of predictions."""
    return lambda p: score(p, deciding.counts[deciding.splits["test"]])[key]


columns = {
    "accuracy": tested("accuracy"),
    "Brier": tested("brier"),
    "ECE-15": tested("ece"),
    "mean confidence": tested("confidence"),
    "distance": lambda p: triage.total_variation(p, truth).mean(),
    "NOTA recall": lambda p: triage.nota_rates(p, deciding)["recall"],
    "NOTA false alarm": lambda p: triage.nota_rates(p, deciding)["false_alarm"],
}
found = {
    title: {name: by_seed(name, measure) for name in shown}
    for title, measure in columns.items()
}
options_shown = [len(deciding.items[row][1].options) for row in deciding.splits["test"]]
absent = np.arange(truth.shape[1]) >= np.array(options_shown)[:, None]
equal = ~absent / np.array(options_shown)[:, None]

# %% mystnb={"figure": {"caption": "Test Brier score and ECE of each arm at its own rate, mean and 95 % interval over five seeds, 2,400 tickets. Dotted, above: the truth itself, and equal odds on the options shown.", "name": "fig-letters-arms"}, "image": {"alt": "Two stacked dot plots by arm. Brier score: the two arms that see labels lie near 0.37, the other proper arms between 0.46 and 0.55, the warm-up at 0.61 and both RLVR arms to the right of it, around equal odds. ECE: every arm lies below 0.08 except the two RLVR arms at 0.14 and 0.20."}} tags=["hide-input"]


def step_aside(ax, dots: dict, at: float, width: float) -> None:
    """Write a mean left of its interval where a line at `at` would cross it."""
    for dot, text in zip(dots.values(), list(ax.texts), strict=True):
        if dot.high[0] < at < dot.high[0] + width:
            text.xy, text.xyann = (dot.low[0], text.xy[1]), (-6, 0)
            text.set_ha("right")


fig, axes = plots.figure(2, height=4.0)
for ax, title in zip(axes, ("Brier", "ECE-15"), strict=True):
    plots.plot_dots(ax, plots.prepare_dots(found[title]), f"test {title}")
step_aside(axes[0], plots.prepare_dots(found["Brier"]), columns["Brier"](equal), 0.14)
for p, name in ((truth, "truth"), (equal, "equal odds")):
    axes[0].axvline(columns["Brier"](p), color=plots.INK, lw=1, ls=(0, (1, 4)))
    plots.note(
        axes[0],
        name,
        columns["Brier"](p),
        -0.5,
        xytext=(0, 6),
        ha="center",
        color=plots.INK,
    )
_ = axes[0].set(xlim=(0.1, 0.8))
_ = axes[1].set(xlim=(0, None))

# %%
pd.DataFrame(
    {
        title: {"the truth": f"{columns[title](truth):.3f}"}
        | {"equal odds": "" if "NOTA" in title else f"{columns[title](equal):.3f}"}
        | {labels[name]: cell(values[name]) for name in shown}
        for title, values in found.items()
    }
)

# %% [markdown]
# Differences are paired by seed: arms of one seed share their warm-up. Positive means that the first arm is worse.

# %%
pairs = [
    ("rlvr_loo", "rlcd_loo"),
    ("rlvr_low", "rlcd_loo"),
    ("supervised", "warmup"),
    ("rlcd_loo", "rlcd"),
    ("residual_ht", "rlcd"),
    ("one_bit_log", "rlcd"),
    ("rlcd", "verdict_nll"),
    ("verdict_nll", "nll"),
]


def gap(title: str, a: str, b: str) -> np.ndarray:
    """Seed-by-seed difference, (seeds,)."""
    return found[title][a] - found[title][b]


pd.DataFrame(
    {
        title: {f"{labels[a]} - {labels[b]}": cell(gap(title, a, b)) for a, b in pairs}
        for title in ("Brier", "ECE-15", "distance")
    }
)

# %% [markdown]
# ## The probe
#
# The published probe asked a language model of 600 million weights about the same three kinds of tickets
# {cite:p}`everlcd`. Its figures stand beside ours in {numref}`fig-letters-probe` and in the table below it. They are
# not comparable in level (another model, another amount of training, other wording); what can be compared is which
# arm errs and on which side of the ideal.

# %% mystnb={"figure": {"caption": "Known-posterior probe: mean largest probability on test tickets that do not show NOTA, n of each kind in the title. Filled: ours, mean and 95 % interval over seeds. Open: as published for Qwen3-0.6B. Dotted: ideal.", "name": "fig-letters-probe"}, "image": {"alt": "Three stacked dot plots of the mean largest probability by arm. One cue: every arm lies far below 1, between 0.37 and 0.76; the published marks lie at or near 1. Two equal cues: the RLCD arms lie near one half, RLVR above it, and the two arms on labels furthest to the right, near 0.7; the published mark of RLVR is at 0.99. Escalate: the arms on labels and the one-outcome arms lie near 0.9, the seed recipes below."}} tags=["hide-input"]
# As published (docs/results.md at 3605014): one cue, two equal cues, escalation. The full
# label stands for its oracle, which minimises NLL with the label revealed.
published = {
    "warmup": (0.984, 0.798, 0.821),
    "nll": (1.000, 0.630, 0.880),
    "rlcd_loo": (0.973, 0.593, 0.932),
    "rlvr_low": (0.999, 0.990, 1.000),
}
kinds = {
    "one_cue": (1.0, "one cue"),
    "two_cues": (0.5, "two equal cues"),
    "escalate": (0.9, "escalate?"),
}


def on_kind(kind: str, measure) -> dict[str, np.ndarray]:
    """A measure (p, truth) on the tickets of one kind, by arm and seed."""
    rows = probe[kind]
    return {
        name: by_seed(name, lambda p: float(np.mean(measure(p[rows], truth[rows]))))
        for name in shown
    }


stated = {kind: on_kind(kind, lambda p, q: p.max(1)) for kind in kinds}
fig, axes = plots.figure(3, height=3.9)
for i, (ax, (kind, (ideal, title))) in enumerate(zip(axes, kinds.items(), strict=True)):
    dots = plots.prepare_dots(stated[kind])
    plots.plot_dots(ax, dots, "")
    step_aside(ax, dots, ideal, 0.18)
    for name, values in published.items():
        ax.plot(
            values[i], shown.index(name) + 0.32, "o", mfc="none", color=plots.INK, ms=5
        )
    ax.axvline(ideal, color=plots.INK, lw=1, ls=(0, (1, 4)))
    _ = ax.set(xlim=(0.2, 1.12), title=f"{title}, n = {len(probe[kind])}")
_ = axes[-1].set(xlabel="mean largest probability")

# %%
pd.DataFrame(
    {
        f"{title}, {whose}": {
            labels[name]: f"{stated[kind][name].mean():.3f}"
            if whose == "here"
            else f"{values[i]:.3f}"
            for name, values in published.items()
        }
        for i, (kind, (_, title)) in enumerate(kinds.items())
        for whose in ("here", "as published")
    }
)

# %% [markdown]
# A mean largest probability can be right for a wrong reason: a reader that hesitates between two *wrong* departments also
# says one half. So here is the distance to the truth by kind of ticket, and in the last two columns how often the most probable
# option is one that the truth favours.


# %%
def top_is_ideal(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Whether the most probable option has the largest true probability, (n,)."""
    return q[np.arange(len(q)), p.argmax(1)] == q.max(1)


far = {kind: on_kind(kind, triage.total_variation) for kind in probe}
top = {kind: on_kind(kind, top_is_ideal) for kind in ("one_cue", "two_cues")}
pd.DataFrame(
    {
        **{
            f"distance, {kinds[kind][1] if kind in kinds else 'NOTA shown'}": {
                labels[n]: cell(v) for n, v in by_arm.items()
            }
            for kind, by_arm in far.items()
        },
        **{
            f"top is ideal, {kinds[kind][1]}": {
                labels[n]: cell(v) for n, v in by_arm.items()
            }
            for kind, by_arm in top.items()
        },
    }
)

# %% [markdown]
# ## Is it the order of the film reviews?
#
# An order of arms found on one small policy may be an accident of that policy. The arms of {doc}`24_what_happened` trained a linear
# head on frozen sentence vectors, judged by people; here every weight of a transformer moves, judged by a formula.
# The objectives, the actions per question and the rules of choice are the same. The rest is not:

# %%
rater = family_records("rater_arms")
rater_tuning = family_records("rater_tuning")
common = [n for n in shown if any(r.arm == n for r in rater)]


def sizes(
    runs: list, cells: list, policy: str, judge: str, options: str
) -> dict[str, str]:
    """What a family of runs spent and how it was tuned; the RLCD arm speaks for all."""
    mine = [r for r in runs if r.arm == "rlcd"]
    grid = [r.config["train"] for r in cells if r.arm == "rlcd"]
    tried = {(c["outcomes_per_step"], c["learning_rate"]) for c in grid}
    warm = mine[0].config["warmup"]
    return {
        "policy": policy,
        "judged by": judge,
        "options": options,
        "fresh seeds": f"{len(mine)}",
        "labels of the warm-up": f"{warm['rows']:,}",
        "outcomes": f"{mine[0].used['outcomes']:,.0f}",
        "questions behind them": f"{mine[0].used['prompts']:,.0f}",
        "cells tried": f"{len(tried)}",
        "batch sizes among them": f"{len({batch for batch, _ in tried})}",
        "tuning seeds": f"{len({r.seed for r in cells})}",
    }


def defined(runs: list) -> list[dict]:
    """The arms that both have, as their records define them."""
    return [next(r for r in runs if r.arm == n).config["arm"] for n in common]


print("arms defined alike:", defined(rater) == defined(fresh))
pd.DataFrame(
    {
        "film reviews": sizes(
            rater,
            rater_tuning,
            "linear head on fixed vectors",
            "a person, drawn afresh",
            "3",
        ),
        "letters": sizes(
            fresh,
            tuning,
            "transformer, all weights",
            "one label, drawn once",
            "4, or 2",
        ),
    }
)

# %% [markdown]
# The comparison is fair between arms, which share a task and a budget, and not between tasks. So only signs can be
# compared. For each pair of arms that both have, tuned in both, the difference in Brier score (what no reader could
# avoid is the same for both arms and drops out):


# %%
def verdict(values: np.ndarray) -> str:
    """What an interval says of the first arm."""
    interval = seed_interval(values)
    return (
        "worse" if interval.low > 0 else "better" if interval.high < 0 else "undecided"
    )


there = {
    (a, b): metric_values(rater, a, "brier") - metric_values(rater, b, "brier")
    for a, b in pairs
    if a in common and b in common
}
both = {
    pair: (verdict(values), verdict(gap("Brier", *pair)))
    for pair, values in there.items()
}
pd.DataFrame(
    {
        f"{labels[a]} - {labels[b]}": {
            "film reviews": cell(there[a, b], 4),
            "letters": cell(gap("Brier", a, b), 4),
            "first arm is": " / ".join(both[a, b]),
        }
        for a, b in there
    }
).T

# %%
means = {
    "film reviews": [metric_values(rater, n, "brier").mean() for n in common],
    "letters": [found["Brier"][n].mean() for n in common],
}
tau = kendalltau(*means.values())
pd.DataFrame(means, index=[labels[n] for n in common]).rank().astype(int)


# %% tags=["remove-cell"]
def ends_of(values: np.ndarray) -> list[float]:
    """Both ends of the 95 % interval."""
    interval = seed_interval(values)
    return [interval.low, interval.high]


def by_name(name: str):
    """One record of an arm."""
    return next(r for r in fresh if r.arm == name)


save_numbers(
    "28_letters_from_scratch",
    {
        "needed": {"shuffled": float(np.nanmean(ends["shuffled"]))},
        "first": first,
        "range": {
            order: [float(np.nanmin(values)), float(np.nanmax(values))]
            for order, values in ends.items()
        },
        "factor": float(np.nanmean(ends["shuffled"]) / first),
        "reached": int(np.isfinite(ends["shuffled"]).sum()),
        "finished": int(np.isfinite(rise["shuffled"]).sum()),
        "budget": f"{triage.READING_ROWS['shuffled']:,}",
        "shuffled_runs": len(rise["shuffled"]),
        "runs": len(examples),
        "minutes": round(sum(r.used["seconds"] for r in examples) / 60),
        "weights": f"{sum(p.numel() for p in policy.parameters()):,}",
        "layers": triage.READER.layers,
        "live_rows": f"{live.outcomes:,}",
        "base_seed": triage.BASE_SEED,
        "verdicts": triage.VERDICTS,
        "warmup_rows": f"{triage.WARMUP.rows:,}",
        "outcomes": f"{triage.DECIDING.outcomes:,}",
        "asked": {
            n: f"{by_name(n).used['prompts']:,.0f}" for n in ("rlcd_loo", "rlcd")
        },
        "rates": len(triage.RATES),
        "tuning_seeds": len(triage.TUNING_SEEDS),
        "seeds": len(seeds),
        "short_labels": f"{SHORT_LABELS:,}",
        "short_outcomes": f"{SHORT_OUTCOMES:,}",
        "arm_runs": len(tuning) + len(fresh),
        "arm_minutes": round(sum(r.used["seconds"] for r in (*tuning, *fresh)) / 60),
        "edges": sum(edge.values()),
        "tuned_arms": len(edge),
        "best_outcome": min(
            float(found["Brier"][n].mean())
            for n in shown
            if n not in ("warmup", "nll", "supervised")
        ),
        "probe": {
            kind: {name: float(v.mean()) for name, v in by_arm.items()}
            for kind, by_arm in stated.items()
        },
        "far": {
            kind: {name: float(v.mean()) for name, v in by_arm.items()}
            for kind, by_arm in far.items()
        },
        "means": {
            title.replace("-15", "").replace(" ", "_"): {
                name: float(v.mean()) for name, v in by_arm.items()
            }
            for title, by_arm in found.items()
        },
        "gaps": {
            title.replace("-15", ""): {
                f"{a}-{b}": ends_of(gap(title, a, b)) for a, b in pairs
            }
            for title in ("Brier", "ECE-15", "distance")
        },
        "truth": {
            title.replace("-15", "").replace(" ", "_"): float(measure(truth))
            for title, measure in columns.items()
        },
        "equal": {"Brier": float(columns["Brier"](equal))},
        "surer": {
            f"{kind}-{a}": ends_of(by_arm[a] - by_arm["rlcd_loo"])
            for kind, by_arm in stated.items()
            for a in ("rlvr_loo", "rlvr_low")
        },
        "farther": {
            f"{kind}-{a}-{b}": ends_of(by_arm[a] - by_arm[b])
            for kind, by_arm in far.items()
            for a, b in (("rlvr_loo", "rlcd_loo"), ("rlcd", "nll"))
        },
        "top": {n: float(v.mean()) for n, v in top["one_cue"].items()},
        "labels_apart": ends_of(gap("Brier", "nll", "supervised")),
        "chosen": {n: f"{rate:g}" for n, rate in chosen.items()},
        "films": {f"{a}-{b}": float(v.mean()) for (a, b), v in there.items()},
        "compared": len(both),
        "same": sum(a == b for a, b in both.values()),
        "opposite": sum({a, b} == {"worse", "better"} for a, b in both.values()),
        "tau": float(tau.statistic),
        "tau_p": float(tau.pvalue),
        "last": float(last["shuffled"].mean()),
    },
)

# %% [markdown]
# What can be read off about the arms:
#
# - **No arm has finished.** The arm on full labels is the best, with a Brier score of
#   {res}`28_letters_from_scratch:means.Brier.nll:.3f`; the truth itself has
#   {res}`28_letters_from_scratch:truth.Brier:.3f`, equal odds {res}`28_letters_from_scratch:equal.Brier:.3f` and the
#   warm-up {res}`28_letters_from_scratch:means.Brier.warmup:.3f`. What is compared here is how fast the arms learn and what
#   they state on the way, not where they come to rest.
# - **The divide, seen in calibration.** RLVR minus RLCD, seed recipes: ECE
#   {res}`28_letters_from_scratch:gaps.ECE.rlvr_loo-rlcd_loo:.3f`, Brier
#   {res}`28_letters_from_scratch:gaps.Brier.rlvr_loo-rlcd_loo:.3f`. At a fifth of RLCD's rate it is
#   {res}`28_letters_from_scratch:gaps.ECE.rlvr_low-rlcd_loo:.3f` and
#   {res}`28_letters_from_scratch:gaps.Brier.rlvr_low-rlcd_loo:.3f`. RLVR chose its rate by accuracy, and its Brier score
#   ({res}`28_letters_from_scratch:means.Brier.rlvr_loo:.3f`) is no better than that of equal odds.
# - **By distance to the truth the same difference is undecided:**
#   {res}`28_letters_from_scratch:gaps.distance.rlvr_loo-rlcd_loo:.3f`; at a fifth of RLCD's rate RLVR is farther, by
#   {res}`28_letters_from_scratch:gaps.distance.rlvr_low-rlcd_loo:.3f`. On tickets with one cue certainty is due, and RLVR is
#   *nearer* to the truth than RLCD ({res}`28_letters_from_scratch:farther.one_cue-rlvr_loo-rlcd_loo:.3f`), although its most
#   probable option is no more often the right one ({res}`28_letters_from_scratch:top.rlvr_loo:.3f` against
#   {res}`28_letters_from_scratch:top.rlcd_loo:.3f`). It is farther away on two equal cues
#   ({res}`28_letters_from_scratch:farther.two_cues-rlvr_loo-rlcd_loo:.3f`) and on escalation
#   ({res}`28_letters_from_scratch:farther.escalate-rlvr_loo-rlcd_loo:.3f`).
# - **The published probe is not repeated in level.** Low-rate RLVR stated .990 on two equal cues there and states
#   {res}`28_letters_from_scratch:probe.two_cues.rlvr_low:.3f` here, where RLCD states
#   {res}`28_letters_from_scratch:probe.two_cues.rlcd_loo:.3f`. The direction is the same: low-rate RLVR is surer than RLCD by
#   {res}`28_letters_from_scratch:surer.two_cues-rlvr_low:.3f`, and on one cue by
#   {res}`28_letters_from_scratch:surer.one_cue-rlvr_low:.3f`; on escalation it is undecided
#   ({res}`28_letters_from_scratch:surer.escalate-rlvr_low:.3f`).
# - **The probe's one number misleads where a reader is half trained.** On two equal cues the arms on labels state the most,
#   {res}`28_letters_from_scratch:probe.two_cues.nll:.3f` and {res}`28_letters_from_scratch:probe.two_cues.supervised:.3f`
#   where .5 is ideal, and are nearest to the truth ({res}`28_letters_from_scratch:far.two_cues.nll:.3f` and
#   {res}`28_letters_from_scratch:far.two_cues.supervised:.3f`). RLCD with one
#   outcome looks ideal ({res}`28_letters_from_scratch:probe.two_cues.rlcd:.3f`) and is hardly nearer than equal odds are
#   ({res}`28_letters_from_scratch:far.two_cues.rlcd:.3f` against .5): it often does not know yet which two departments are meant.
# - **Old labels beat new outcomes.** Supervised continuation changes the warm-up's Brier score by
#   {res}`28_letters_from_scratch:gaps.Brier.supervised-warmup:.3f` and ends level with the full label of
#   new questions ({res}`28_letters_from_scratch:labels_apart:.3f`, full label minus continuation). As published it made the
#   warm-up worse (Brier .407 after .339). The likely reason: that warm-up could read already and was repeated five more times; this one
#   has far to go and is repeated two and a half times. (The match is one label for one outcome, and a label says more.) A reader
#   at such a start should spend its labels before it asks for outcomes.
# - **More questions, or more outcomes a question?** Four outcomes a question with a leave-one-out baseline are worse than one on more
#   than twice as many questions, by {res}`28_letters_from_scratch:gaps.Brier.rlcd_loo-rlcd:.3f`; two without replacement:
#   {res}`28_letters_from_scratch:gaps.Brier.residual_ht-rlcd:.3f`, undecided.
# - **Policy gradient or verdict loss.** RLCD with one outcome against verdict NLL:
#   {res}`28_letters_from_scratch:gaps.Brier.rlcd-verdict_nll:.3f`, undecided and wide. The log score from one bit is worse than
#   RLCD by {res}`28_letters_from_scratch:gaps.Brier.one_bit_log-rlcd:.3f`.
# - **What a bit costs.** Verdict NLL against the full label: {res}`28_letters_from_scratch:gaps.Brier.verdict_nll-nll:.3f`. Nearly all
#   of it where there are four options. With two, an outcome tells the label, and on escalation RLCD with one outcome is as near to the
#   truth as the full label ({res}`28_letters_from_scratch:farther.escalate-rlcd-nll:.3f`).
# - **"None of the above" is hardly learned from outcomes** at this budget. RLCD with one outcome finds
#   {res}`28_letters_from_scratch:means.NOTA_recall.rlcd:.3f` of the cases and raises a false alarm in
#   {res}`28_letters_from_scratch:means.NOTA_false_alarm.rlcd:.3f`; the full label
#   {res}`28_letters_from_scratch:means.NOTA_recall.nll:.3f` and {res}`28_letters_from_scratch:means.NOTA_false_alarm.nll:.3f`; the
#   warm-up {res}`28_letters_from_scratch:means.NOTA_recall.warmup:.3f` and
#   {res}`28_letters_from_scratch:means.NOTA_false_alarm.warmup:.3f`; a guess among four, .25 and .25.
# - **The order of the film reviews holds in sign.** {res}`28_letters_from_scratch:same` of
#   {res}`28_letters_from_scratch:compared` pairs get the same verdict, the pair that is undecided on both among them; the other one, RLCD
#   against verdict NLL, is undecided here and differs by less than a thousandth there. Kendall's $\tau$ of the mean Brier scores of the eight rows is
#   {res}`28_letters_from_scratch:tau:.2f` (p = {res}`28_letters_from_scratch:tau_p:.3f`). The sizes do not carry over: the seed recipe
#   trails RLCD with one outcome by {res}`28_letters_from_scratch:films.rlcd_loo-rlcd:.3f` on films and by more than ten times
#   as much here.
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
# - *The budget.* {res}`28_letters_from_scratch:outcomes` outcomes leave every arm unfinished. A slow arm is not a wrong one: with more
#   outcomes the seed recipe's and the bit's deficit may shrink. RLVR's would not, if the theory is right; this page cannot show it.
# - *One base reader.* The {res}`28_letters_from_scratch:seeds` seeds redraw warm-up rows, order and actions, but all start from the same
#   reader. The intervals do not cover another one.
# - *A small grid.* {res}`28_letters_from_scratch:rates` rates a factor of three apart, one batch size,
#   {res}`28_letters_from_scratch:tuning_seeds` seeds; {res}`28_letters_from_scratch:edges` of the
#   {res}`28_letters_from_scratch:tuned_arms` choices lie on its edge. The film arms had more cells and more seeds.
# - *Many comparisons.* The intervals are at 95 % each and not corrected for their number.
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
# Fixed order teaches to know and not to find: $a$ grows and $b$ does not. Afterwards $b$ does not creep away
# from $\varepsilon$ at a rate that is itself small, but grows at rate $(1 - p)\, a$ at once. Since
# $\dot z = (1 - p)(a^2 + b^2) \ge (1 - p)\, a(0)^2$, one half is reached by time
# $(\log(K - 1) + 1) / a(0)^2$, whatever $\varepsilon$ is: the plateau is gone. What the picture does not contain:
# the reader must first unlearn that billing is A. The flow of the theorem in small steps, with four options:
# :::


# %% tags=["hide-cell"]
def time_to_half(a: float, b: float, options: int = 4, step: float = 1e-3) -> float:
    """Time until p = 1/2 when z = a b follows the gradient of -log p (Euler)."""
    time = 0.0
    while np.exp(a * b) < options - 1:
        wrong = 1 - np.exp(a * b) / (np.exp(a * b) + options - 1)
        a, b, time = a + step * wrong * b, b + step * wrong * a, time + step
    return time


pd.DataFrame(
    {
        f"the other at {small:g}": {
            "both weights small": f"{time_to_half(small, small):.2f}",
            "one already at 1": f"{time_to_half(1.0, small):.2f}",
        }
        for small in (0.1, 0.01, 0.001)
    }
).T

# %% [markdown]
# :::{exercise} Two options, and ten
# :label: ex-letters-2
#
# Part 2 of the theorem asks for $K \ge 3$. What is special about $K = 2$? And by how much does the lower bound
# change from four options to ten, for first weights $\varepsilon = .01$?
# :::
#
# :::{solution} ex-letters-2
# :label: sol-letters-2
# :class: dropdown
#
# With two options chance is 1/2, so "until $p = 1/2$" takes no time at all: $\log(K - 1) = 0$. Ask for
# $p_1 > 1/2$ and the bound is $\log(z_1/\varepsilon^2)$ again, with $z_1 = \log \frac{p_1}{1 - p_1}$. From four
# options to ten it falls a little: with more options the gradient at chance, $1 - 1/K$, is larger. The time of
# the flow itself lies a little above the bound and falls as well.
# :::

# %% tags=["hide-cell"]
for options in (4, 10):
    share = options / (options - 1)
    bound = share * np.log(100) + share / 2 * np.log(np.log(options - 1))
    flow = time_to_half(0.01, 0.01, options)
    print(f"K = {options}: at least {bound:.2f}, flow {flow:.2f}")

# %% [markdown]
# :::{exercise} Nine sixteenths
# :label: ex-letters-3
#
# A ticket has cues of two departments, and NOTA stands where one of them stood. Why is NOTA then *more* probable than the
# department that is left? And what if NOTA stands where neither of them stood?
# :::
#
# :::{solution} ex-letters-3
# :label: sol-letters-3
# :class: dropdown
#
# NOTA came there in one of two ways: the department was right and was replaced, $.5 \cdot .15$, or it was wrong and was the
# one of three wrong options to go, $.5 \cdot .35 / 3$. The ratio is 9 to 7. In the place of a third department NOTA
# has the same chance whichever of the two is right, so they stay at one half each, and NOTA is certainly wrong. By
# simulation:
# :::

# %% tags=["hide-cell"]
rng = np.random.default_rng(seed)
right = rng.integers(2, size=200_000)  # options 0 and 1 are cued, 2 and 3 are not
fate = rng.random(len(right))
wrong = (right + rng.integers(1, 4, size=len(right))) % 4
place = np.where(fate < 0.15, right, np.where(fate < 0.5, wrong, -1))
print(f"NOTA where 0 stood: right in {(right[place == 0] == 0).mean():.2f} (9/16)")
print(f"NOTA where 2 stood: option 0 right in {(right[place == 2] == 0).mean():.2f}")

# %% [markdown]
# :::{exercise} One temperature for RLVR
# :label: ex-letters-4
#
# Divide the logits of the RLVR arm by one temperature, fitted on half of the test tickets. What does it repair on
# the other half, and what not?
# :::
#
# :::{solution} ex-letters-4
# :label: sol-letters-4
# :class: dropdown
#
# The calibration error comes down to that of RLCD, since one number is enough to bring mean confidence to mean accuracy.
# The Brier score stays behind RLCD's: what RLVR did not learn, a temperature does not teach. And the distance to the
# truth grows, because the temperature also takes back the certainty that was due.
# :::

# %% tags=["hide-cell"]
half = len(truth) // 2


def cooled(p: np.ndarray) -> np.ndarray:
    """Second half of the rows at the temperature that fits the first, (n, K)."""
    log_p = np.where(absent, -1e9, np.log(np.maximum(p, 1e-8)))
    return fit_temperature(log_p[:half], truth[:half]).apply(log_p[half:])


looks = {
    "RLVR": lambda s: said["rlvr_loo", s][half:],
    "RLVR at one temperature": lambda s: cooled(said["rlvr_loo", s]),
    "RLCD": lambda s: said["rlcd_loo", s][half:],
}
scored = deciding.counts[deciding.splits["test"]][half:]
both_cues = probe["two_cues"][probe["two_cues"] >= half] - half
held = {name: [of(s) for s in seeds] for name, of in looks.items()}
measures = {
    "ECE-15": lambda p: score(p, scored)["ece"],
    "Brier": lambda p: score(p, scored)["brier"],
    "distance": lambda p: triage.total_variation(p, truth[half:]).mean(),
    "two equal cues, largest": lambda p: p[both_cues].max(1).mean(),
}
repaired = {
    title: {name: np.array([of(p) for p in runs]) for name, runs in held.items()}
    for title, of in measures.items()
}
pd.DataFrame(
    {
        title: {name: cell(values) for name, values in by_look.items()}
        for title, by_look in repaired.items()
    }
)

# %% [markdown]
# ## Further reading
#
# {cite:t}`saxe2014` on plateaus of deep linear networks, {cite:t}`olsson2022` on the attention heads that find
# and copy. The probe and the recipes of the two seed arms are {cite:t}`everlcd`'s. {doc}`22_policies` has the
# other ways to read a decision from a network.
