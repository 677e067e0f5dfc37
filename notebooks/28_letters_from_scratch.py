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
# put its probability on a letter. How many examples does it need before it reads the *options* at
# all, and do the arms then come out in the order that they had on film reviews?
#
# **The answer.** If the options always stand in the same order,
# {res}`28_letters_from_scratch:needed.fixed:,.0f` labelled examples are enough; if they are shuffled, nothing is learned for
# {res}`28_letters_from_scratch:needed.shuffled:,.0f`, and then nearly everything at once. Among the
# arms the divide is the same as elsewhere: on a ticket with two equally good departments the RLCD recipe
# states {res}`28_letters_from_scratch:probe.two_cues.rlcd_loo:.2f` (ideal .50) and RLVR
# {res}`28_letters_from_scratch:probe.two_cues.rlvr_loo:.2f`.
#
# **After this chapter you can** train a language model that answers with a letter on one CPU core, say
# why its learning curve is flat and then falls off a cliff, and check an arm against posteriors that are
# known exactly.
#
# **Running time.** About fifteen seconds on one core, of which most is training. The longer runs come
# from the records (`make records FAMILY=triage_examples`, then `triage_tuning` and `triage_arms`):
# {res}`28_letters_from_scratch:runs` runs, {res}`28_letters_from_scratch:minutes` minutes of one busy
# core.

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
from scipy.special import stdtrit
from scipy.stats import kendalltau

from rlcd_core import plots
from rlcd_core.env import LabelledEnv
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
reading = {order: triage.triage_task(f"triage-reading-{order}") for order in ("fixed", "shuffled")}
deciding = triage.triage_task("triage-deciding")
examples = family_records("triage_examples")
tuning = family_records("triage_tuning")
fresh = family_records("triage_arms")
by_run = {(row.arm, row.seed): row for row in fresh}
names = [name for name in dict.fromkeys(row.arm for row in fresh) if name != "warmup"]
labels = {name: plots.arm_style(name).label for name in ("warmup", *names)}
seeds = triage.FRESH_SEEDS


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


# %% mystnb={"figure": {"caption": "Accuracy on one-cue tickets against labelled examples seen, mean and 95 % interval over seeds (logarithmic axis). Chance and the commonest position coincide at a quarter. The crosses mark where each shuffled run passes one half.", "name": "fig-letters-plateau"}, "image": {"alt": "Two curves of accuracy against examples. With options in fixed order accuracy climbs at once. With shuffled options it stays at a quarter over many thousand examples and then rises to nearly one within a short stretch."}} tags=["hide-input"]
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
            "examples until accuracy .5": cell(ends[order], 0),
            "first and last seed": f"{ends[order].min():.0f} to {ends[order].max():.0f}",
            "examples from .3 to .9": cell(rise[order], 0),
            "chance": "0.25",
            "commonest position": f"{majority(order):.2f}",
            "accuracy at the end": cell(last[order]),
        }
        for order in ("fixed", "shuffled")
    }
)

# %% [markdown]
# Shuffling costs a factor of {res}`28_letters_from_scratch:factor:.1f` in examples (a geometric mean
# over seeds, 95 % {res}`28_letters_from_scratch:factor_interval:.1f`). Yet the information in a label is
# the same. Why is the curve flat and then steep?
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

# %% [markdown]
# ## Known posteriors
#
# The arms start from one of these readers (shuffled, seed 0): it can read options but has met a fifth of
# the generator's wording; the tickets below use the other four fifths. Now all three kinds of tickets appear, with
# shuffled options and "None of the above" in half of the department questions (with probability .15 it replaces the
# right option, with .35 a wrong one). The generator fixes what should be believed:
#
# | kind of ticket | ideal |
# |---|---|
# | one cue | 1 for its department; if that is not among the options, 1 for NOTA |
# | cues of two departments | 1/2 each; if NOTA stands in the place of one, 9/16 for NOTA and 7/16 for the other |
# | pressing or calm: escalate? | .9 / .1 |
#
# The 9/16 is Bayes' rule: $.5 \cdot .15$ against $.5 \cdot .35/3$. Rows that are scored hold
# {res}`28_letters_from_scratch:verdicts` verdicts in exactly these proportions, so accuracy, Brier score and ECE
# are expectations, without the noise of sampled labels, and the distance to the truth is the distance to
# the truth. Rows that train hold one label, drawn once.
#
# A run warms up on {res}`28_letters_from_scratch:warmup_rows` labels of its own and then spends
# {res}`28_letters_from_scratch:outcomes` outcomes. Each arm had the same grid of
# {res}`28_letters_from_scratch:rates` rates on {res}`28_letters_from_scratch:tuning_seeds` seeds of their own; RLVR was
# chosen by validation accuracy, all others by validation Brier score. The low-rate RLVR arm takes a fifth of
# the rate that the RLCD recipe chose, as was published.

# %%
def grid_of(name: str) -> dict[str, str]:
    """Mean validation score of each rate; the chosen one is marked."""
    key = "accuracy" if name == "rlvr_loo" else "brier"
    row = {}
    for rate in triage.RATES:
        cells = [
            r.metrics["validation"][key]
            for r in tuning
            if r.arm == name and r.config["train"]["learning_rate"] == rate
        ]
        mark = " *" if rate == triage.tuned(name).learning_rate else ""
        row[f"{rate:g}"] = f"{np.mean(cells):.3f}{mark}"
    return {"by": key, **row}


pd.DataFrame({labels[name]: grid_of(name) for name in triage.ARM_NAMES}).T

# %% [markdown]
# ## Two arms, trained while you read
#
# The base reader, the warm-up and both seed recipes of the smallest fresh seed, with the function that made the
# records. On another machine sums round differently; hence the margins.

# %%
checks = {}
for job in triage.triage_arms():
    if job.seed == seeds[0] and job.arm.name in ("rlcd_loo", "rlvr_loo"):
        now = job.train("live")[0].metrics["test"]
        then = by_run[job.arm.name, job.seed].metrics["test"]
        checks[job.arm.name] = now
        close = {k: abs(now[k] - then[k]) < 0.05 for k in ("brier", "confidence")}
        print(job.arm.label, "as recorded:", close)
print("RLVR is surer:", checks["rlvr_loo"]["confidence"] > checks["rlcd_loo"]["confidence"])

# %% [markdown]
# ## Every arm against the truth
#
# {res}`28_letters_from_scratch:seeds` fresh seeds, mean and 95 % interval. *Distance* is the mean total variation
# between the stated and the true distribution: half the sum of the absolute differences. The first row is the truth
# itself, the best that any reader could do.

# %%
store = Store("triage_arms")
truth = triage.posteriors(deciding)
probe = triage.probe_rows(deciding)
said = {key: store.predictions(row) for key, row in by_run.items()}
shown = ("warmup", *names)


def by_seed(name: str, measure) -> np.ndarray:
    """A measure of the test predictions of each seed, (seeds,)."""
    return np.array([measure(said[name, s]) for s in seeds])


columns = {
    "accuracy": lambda p: score(p, deciding.counts[deciding.splits["test"]])["accuracy"],
    "Brier": lambda p: score(p, deciding.counts[deciding.splits["test"]])["brier"],
    "ECE-15": lambda p: score(p, deciding.counts[deciding.splits["test"]])["ece"],
    "mean confidence": lambda p: p.max(1).mean(),
    "distance": lambda p: triage.total_variation(p, truth).mean(),
    "NOTA recall": lambda p: triage.nota_rates(p, deciding)["recall"],
    "NOTA false alarm": lambda p: triage.nota_rates(p, deciding)["false_alarm"],
}
found = {
    title: {name: by_seed(name, measure) for name in shown}
    for title, measure in columns.items()
}
pd.DataFrame(
    {
        title: {"the truth": f"{columns[title](truth):.3f}"}
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
        title: {f"{labels[a]} − {labels[b]}": cell(gap(title, a, b)) for a, b in pairs}
        for title in ("Brier", "ECE-15", "distance")
    }
)

# %% [markdown]
# ## The probe
#
# The published probe asked a language model of 600 million weights about the same three kinds of tickets
# {cite:p}`everlcd`. Its figures stand beside ours in {numref}`fig-letters-probe`. They are not
# comparable in level (another model, another amount of training); what can be compared is which arm errs and on
# which side of the ideal.

# %% mystnb={"figure": {"caption": "Known-posterior probe: mean largest probability (escalation tickets: same), on test tickets that do not show NOTA. Filled: ours, mean and 95 % interval over seeds. Open: as published for Qwen3-0.6B. Dotted: ideal.", "name": "fig-letters-probe"}, "image": {"alt": "Three dot plots of mean largest probability by arm, for one cue, two cues and escalation tickets. On two cues the proper arms lie near one half and RLVR far to the right, in both sets of figures."}} tags=["hide-input"]
published = {  # arXiv-free: docs/results.md of the public repository, commit 3605014
    "warmup": (0.984, 0.798, 0.821),
    "rlcd_loo": (0.973, 0.593, 0.932),
    "rlvr_low": (0.999, 0.990, 1.000),
    "nll": (1.000, 0.630, 0.880),
}
kinds = {"one_cue": (1.0, "one cue"), "two_cues": (0.5, "two equal cues"), "escalate": (0.9, "escalate?")}
stated = {
    kind: {name: by_seed(name, lambda p, r=probe[kind]: p[r].max(1).mean()) for name in shown}
    for kind in kinds
}
fig, axes = plots.figure(3, height=3.3)
for i, (ax, (kind, (ideal, title))) in enumerate(zip(axes, kinds.items(), strict=True)):
    plots.plot_dots(ax, plots.prepare_dots(stated[kind]), "")
    for name, values in published.items():
        ax.plot(values[i], shown.index(name) + 0.3, "o", mfc="none", color=plots.INK, ms=5)
    ax.axvline(ideal, color=plots.INK, lw=1, ls=":")
    _ = ax.set(xlim=(0.38, 1.02), title=f"{title}: mean largest probability")

# %%
pd.DataFrame(
    {
        title: {
            labels[name]: cell(
                by_seed(name, lambda p, r=probe[kind]: triage.total_variation(p[r], truth[r]).mean())
            )
            for name in shown
        }
        for kind, title in (*((k, v[1]) for k, v in kinds.items()), ("nota", "NOTA shown"))
    }
)

# %% [markdown]
# The table gives the total variation from the truth by kind of ticket.
#
# ## Is it the order of the film reviews?
#
# Question 8 of the protocol asks whether an order found on a small policy holds on another. The rater bandit
# trained a linear head on frozen sentence vectors and was judged by people
# ({doc}`24_what_happened`); this chapter trains every weight of a transformer and is judged by a formula. For each pair of arms that
# both have, tuned in both: the sign of the difference in Brier score, if its interval excludes zero.

# %%
rater = family_records("rater_arms")
common = [n for n in names if any(r.arm == n for r in rater)]


def verdict(values: np.ndarray) -> str:
    """What an interval says of the first arm."""
    interval = seed_interval(values)
    return "worse" if interval.low > 0 else "better" if interval.high < 0 else "undecided"


both = {}
for a, b in pairs:
    if a in common and b in common:
        there = metric_values(rater, a, "brier") - metric_values(rater, b, "brier")
        both[f"{labels[a]} against {labels[b]}"] = {
            "film reviews": verdict(there),
            "letters": verdict(gap("Brier", a, b)),
        }
pd.DataFrame(both).T

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


ratio = np.log(ends["shuffled"]).mean() - np.log(ends["fixed"]).mean()
# Welch: the two sets of runs share seeds, but not a network or an order of examples.
parts = [np.log(ends[o]).var(ddof=1) / len(ends[o]) for o in ("shuffled", "fixed")]
freedom = sum(parts) ** 2 / sum(v**2 / (len(ends["fixed"]) - 1) for v in parts)
half = stdtrit(freedom, 0.975) * np.sqrt(sum(parts))
save_numbers(
    "28_letters_from_scratch",
    {
        "needed": {order: float(values.mean()) for order, values in ends.items()},
        "needed_interval": {order: ends_of(values) for order, values in ends.items()},
        "factor": float(np.exp(ratio)),
        "factor_interval": [float(np.exp(ratio - half)), float(np.exp(ratio + half))],
        "rise": float(rise["shuffled"].mean()),
        "probe": {
            kind: {name: float(values.mean()) for name, values in by_arm.items()}
            for kind, by_arm in stated.items()
        },
        "means": {
            title.replace("-15", "").replace(" ", "_"): {
                name: float(values.mean()) for name, values in by_arm.items()
            }
            for title, by_arm in found.items()
        },
        "gaps": {
            title.replace("-15", ""): {f"{a}-{b}": ends_of(gap(title, a, b)) for a, b in pairs}
            for title in ("Brier", "ECE-15", "distance")
        },
        "truth": {title.replace("-15", "").replace(" ", "_"): float(m(truth)) for title, m in columns.items()},
        "runs": len(examples) + len(tuning) + len(fresh),
        "minutes": round(sum(r.used["seconds"] for r in (*examples, *tuning, *fresh)) / 60),
        "weights": f"{sum(p.numel() for p in policy.parameters()):,}",
        "layers": triage.READER.layers,
        "live_rows": f"{live.outcomes:,}",
        "verdicts": triage.VERDICTS,
        "warmup_rows": f"{triage.WARMUP.rows:,}",
        "outcomes": f"{triage.DECIDING.outcomes:,}",
        "rates": len(triage.RATES),
        "tuning_seeds": len(triage.TUNING_SEEDS),
        "seeds": len(seeds),
        "tau": float(tau.statistic),
        "tau_p": float(tau.pvalue),
        "agree": sum(row["film reviews"] == row["letters"] for row in both.values()),
        "compared": len(both),
    },
)
