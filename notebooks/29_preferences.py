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
# # Learning from preferences
#
# **Question.** People say more readily which of two things is better than what is right. If a
# policy learns from comparisons and rankings, can one act on the probabilities it states?
#
# **Answer.** Only if the comparison was the decision. The *first choice* of a person drawn at
# random teaches honest probabilities (stated minus actual {res}`29_preferences:gap.nll:.3f` on
# film reviews); whole rankings from the same people leave the policy timid
# ({res}`29_preferences:gap.pl_drawn:.3f`), because the middle is everybody's second choice; and
# orders made by counting votes teach who wins, not how often
# ({res}`29_preferences:gap.top_counts:.3f` for the winner alone).
#
# **After this page you can** say what a preference data set identifies and what it cannot,
# predict whether a policy trained on it will be too sure or too timid, compare answers by
# comparisons, bits and people asked, and mend what one temperature can mend.
#
# **Running time.** A quarter of a minute on any machine (a GPU changes nothing), once the film-review data and the sentence
# encoder are in the cache; the {res}`29_preferences:runs` runs are read from their records.

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

# %% mystnb={"figure": {"caption": "Film reviews, three options: mean stated confidence minus the share of raters who agree, test texts, mean and 95 % interval over ten seeds. Left of zero a policy is timid, right of zero too sure. All eight spent the same number of bits; *drawn*: people answered one by one; *counted*: the order of all votes was told.", "name": "fig-prefs-gap"}, "image": {"alt": "Eight dots with intervals. RLCD, verdict NLL and full label lie within 0.005 of zero. Drawn pairs lie at minus 0.02 and drawn rankings at minus 0.04. The counted favourite lies at plus 0.03; counted pairs are near zero and counted rankings at minus 0.04."}} tags=["hide-input"]
import itertools

import numpy as np
import pandas as pd
import torch

from rlcd_core import plots
from rlcd_core.calibrate import fit_temperature
from rlcd_core.data.rater import load_rater
from rlcd_core.data.split import split_by_group
from rlcd_core.extra.families.preferences import (
    BITS_PER_STEP,
    FEW,
    FEW_TEXTS,
    FORMS,
    FORMS_OF,
    OPTIONS,
    RATES,
    STEPS,
    TEXTS,
    chosen_by,
    tuned,
)
from rlcd_core.extra.grid import family_records
from rlcd_core.extra.preferences import PAIRS, RankingEnv, wins
from rlcd_core.metrics import ece, seed_interval
from rlcd_core.records import Store, metric_values, save_numbers
from rlcd_core.rewards import OBJECTIVES, Feedback, plackett_luce_loss
from rlcd_core.tasks import rater_task

plots.use_style()
CHAPTER = "29_preferences"
store = Store("preferences")
runs = family_records("preferences")
on = {task: [r for r in runs if r.config["task"] == task] for task in FORMS_OF}
labels = {name: plots.ARM_STYLE[name].label for name in FORMS}
gaps = {name: metric_values(on[OPTIONS], name, "gap") for name in FORMS}
fig, ax = plots.figure(height=4.6)
ax.axvline(0, color=plots.INK, lw=1, ls=":")
plots.plot_dots(ax, plots.prepare_dots(gaps), "stated minus actual")
save_numbers(
    CHAPTER,
    {"gap": {k: float(v.mean()) for k, v in gaps.items()}, "runs": len(runs)},
)

# %% [markdown]
# ## A ticket and five ways to ask
#
# *"The refund came, though it took a while."* Twenty colleagues read this message. Eleven call it
# positive, seven neutral, two negative. The same opinions can be collected in five ways:

# %%
ticket = np.array([[2, 7, 11]])
options, short = ["negative", "neutral", "positive"], "-0+"
ways = {
    "label: what would you say?": RankingEnv(ticket, 8, "drawn", size=1),
    "pair: this rather than that?": RankingEnv(ticket, 8, "drawn", pairs=True),
    "ranking of first voices": RankingEnv(ticket, 8, "drawn"),
    "the favourite of all": RankingEnv(ticket, 8, "counts", size=1),
    "ranking by number of votes": RankingEnv(ticket, 8, "counts"),
}


def say(env):
    """One answer in words."""
    return " > ".join(short[k] for k in env.rankings(np.zeros(1, int))[0])


pd.DataFrame(
    {name: [say(env) for _ in range(3)] for name, env in ways.items()},
    index=["first time", "second", "third"],
).T

# %% [markdown]
# (+ positive, 0 neutral, - negative.) The upper three vary from person to person. The lower two say the same for ever: *positive* won.
# (In the fourth way and the fifth, ties are broken by a coin; options that nobody named are last
# there, and stay unranked in the third.) A verdict, "I call it positive: right or wrong?", is the
# sixth way and that of the other chapters.
#
# ## What preferences identify
#
# The losses are those of {doc}`07_plackett_luce`: Bradley–Terry for pairs, Plackett–Luce for
# rankings, where only the first $L$ places may be known.
#
# :::{prf:theorem} Drawn preferences identify, counted ones do not
# :label: thm-prefs-drawn
#
# On one text let a share $q_k > 0$ of the people say option $k$. A policy states
# $p = \operatorname{softmax}(u)$.
#
# 1. *Drawn.* Ask people at random, one after another, and rank the options in the order in which
#    they are first named. These rankings follow Plackett–Luce with weights $q$. For every $L \ge 1$
#    the expected loss of the first $L$ places is least at $p = q$ and nowhere else.
# 2. *Pairs.* Let the first person who names $i$ or $j$ decide between them. The expected
#    Bradley–Terry loss over compared pairs is least exactly where $p_i / p_j = q_i / q_j$ for each
#    of them; if the pairs connect all options, only at $p = q$.
# 3. *Counted.* Rank by the shares $q$, all different. For every $u$ in the right order the loss of
#    $\lambda u$ falls to 0 as $\lambda \to \infty$: no minimum exists, and $p$ runs to certainty on
#    the favourite. All $q$ of one order give the same data, so no method can recover $q$ from them.
# 4. *Ranking texts.* Give each text a reward $u(t)$ and learn it from "which of two texts is more
#    positive". Adding a constant to $u$ changes no such probability. Whether a text is positive *at
#    all* is not in the data, however many comparisons there are.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1.* Given the options named so far, the next new one is $k$ with chance $q_k$ over the shares
# that remain: persons who repeat a named option change nothing. That is Plackett–Luce with weights
# $q$. The expected loss is the entropy of the first $L$ places plus the KL divergence of their law
# under $p$ from their law under $q$, hence least where the laws agree. Their first places have the
# laws $p$ and $q$.
#
# *2.* The first who names one of two says $i$ with chance $q_i / (q_i + q_j)$. Each pair's expected
# loss is a constant plus a KL divergence between two coins, zero only at equal odds. Along a path
# of compared pairs the odds of all options follow.
#
# *3.* Each factor of the loss is $\log (1 + \sum_j e^{-\lambda d_j})$ with all $d_j > 0$, which
# falls strictly to 0. The data are a function of the order.
#
# *4.* $\sigma(u(t) - u(t'))$ does not change. $\square$
# :::
#
# Item 1 is the reason why the first choice of a drawn person is worth so much: a label *is* the
# first place. Item 3 in motion, without sampling: three losses follow their exact expected
# gradient on the ticket above.

# %% mystnb={"figure": {"caption": "Stated probability of the favourite while a free softmax follows the exact expected gradient on the ticket. Drawn answers, first places or whole rankings, stop at the share of people who say so (dotted). The counted order never stops.", "name": "fig-prefs-scale"}, "image": {"alt": "Three curves against steps on a logarithmic axis. Two of them rise from one third to 0.55 and stay there, the ranking a little earlier. The third, from the counted order, passes 0.55 and climbs past 0.98 towards 1."}} tags=["hide-input"]
q = ticket[0] / ticket.sum()
orders = torch.tensor(list(itertools.permutations(range(3))))


def law(weights):
    """Plackett-Luce probability of every order of three options."""
    u = torch.tensor(weights, dtype=torch.float64).log()
    return (-plackett_luce_loss(u.expand(len(orders), -1), orders)).exp()


def flow(chance, places, steps=1000, rate=1.0):
    """Probabilities (steps, 3) along the expected gradient from the uniform start."""
    u, path = torch.zeros(3, dtype=torch.float64), []
    for _ in range(steps):
        path.append(torch.softmax(u, 0).numpy())
        leaf = u.clone().requires_grad_(True)
        losses = plackett_luce_loss(leaf.expand(len(orders), -1), orders[:, :places])
        (chance @ losses).backward()
        u = u - rate * leaf.grad
    return np.array(path)


favourite = int(q.argmax())
by_votes = torch.tensor([float(o == (-q).argsort().tolist()) for o in orders.tolist()])
paths = {
    "nll": ("first place, drawn (full line)", flow(law(q), 1)),
    "pl_drawn": ("ranking, drawn (dots)", flow(law(q), 3)),
    "pl_counts": ("ranking, counted", flow(by_votes.double(), 3)),
}
fig, ax = plots.figure(height=3.4)
ax.axhline(q[favourite], color=plots.INK, lw=1, ls=":")
spots = {"nll": (3.5, 0.42), "pl_drawn": (14, 0.61), "pl_counts": (60, 0.86)}
for name, (text, path) in paths.items():
    look = plots.ARM_STYLE[name]
    x = np.arange(1, len(path) + 1)
    ax.plot(x, path[:, favourite], color=look.color, ls=look.line)
    plots.note(ax, text, *spots[name], color=look.color)
ends = {name: path[-1, favourite] for name, (_, path) in paths.items()}
assert abs(ends["nll"] - q[favourite]) < 1e-6 > abs(ends["pl_drawn"] - q[favourite])
assert ends["pl_counts"] > 0.98
_ = ax.set(xscale="log", xlabel="steps", ylabel="stated, favourite", ylim=(0.3, 1.02))

# %% [markdown]
# So far a policy could say anything about each text. A real one cannot: what it does not see, it
# must average over. Then drawn rankings lose their innocence too.
#
# :::{prf:theorem} A policy that cannot tell texts apart
# :label: thm-prefs-mixture
#
# Let the policy see $x$ only, behind which stand texts with different shares $q$; it states $p(x)$.
#
# 1. *First place, drawn*: the best $p(x)$ is $\operatorname{E}[q \mid x]$, the chance that a random
#    person says $k$ about a random such text.
# 2. *Favourite, counted*: the best $p_k(x)$ is the share of texts whose favourite is $k$. This
#    is a probability too, of another event.
# 3. *Rankings, drawn*: let $R_s$ be the options not yet named before place $s$. The best $p(x)$ gives
#    each option as much chance over the $L$ places as it really has,
#
#    $$ \operatorname{E}\Big[\sum_{s \le L} \frac{p_k \, [k \in R_s]}{p(R_s)}\Big]
#       = P(k \text{ comes within } L) \quad \text{for all } k , $$ (eq-prefs-moment)
#
#    with the mean over the true rankings. This is $\operatorname{E}[q \mid x]$ if all texts behind $x$
#    share one $q$, and in general it is not: a mixture of Plackett–Luce laws is no Plackett–Luce law.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1, 2.* The expected log loss of a single place given $x$ is least at that place's law given $x$.
# *3.* The derivative of the log-likelihood of a ranking in $u_k$ is the number of places at which
# $k$ is chosen minus the sum of its chances at each place; the loss is convex in $u$, so a zero of
# the mean is the optimum. With one $q$, {prf:ref}`thm-prefs-drawn` applies. The next cell gives a
# mixture where it differs. $\square$
# :::
#
# Two kinds of review look alike to a policy. People are sure about each, in opposite ways:

# %%
kinds = np.array([[0.80, 0.15, 0.05], [0.05, 0.15, 0.80]])
mixed = (law(kinds[0]) + law(kinds[1])) / 2
rows = {
    "what people say": kinds.mean(0),
    "first place, drawn": flow(mixed, 1)[-1],
    "ranking, drawn": flow(mixed, 3)[-1],
}
leaf = torch.tensor(np.log(rows["ranking, drawn"])).requires_grad_(True)
(mixed @ plackett_luce_loss(leaf.expand(6, -1), orders)).backward()
assert leaf.grad.abs().max() < 1e-9
middle = {name: float(p[1]) for name, p in rows.items()}
assert abs(middle["first place, drawn"] - middle["what people say"]) < 1e-6
assert middle["ranking, drawn"] > middle["what people say"] + 0.05
save_numbers(
    CHAPTER,
    {"mix": {"said": middle["what people say"], "pl": middle["ranking, drawn"]}},
)
pd.DataFrame(rows, index=options).T.round(3)

# %% [markdown]
# *Neutral* is said by {res}`29_preferences:mix.said:.0%` about either kind, and the ranking loss makes
# it {res}`29_preferences:mix.pl:.0%`: on both kinds it is the usual *second* choice, and one
# utility cannot be low for first places and high for second ones. Where options have
# an order, the middle tends to be everybody's second choice, and rankings push probability there.
#
# ## What an answer is worth
#
# How much does one answer tell? At $q$ uniform over three options everything can be enumerated: the
# Fisher information is the variance of the gradient, the same in every direction.

# %% tags=["hide-input"]
u = torch.zeros(3, dtype=torch.float64)
pairs = torch.tensor(list(itertools.permutations(range(3), 2)))
cases = list(itertools.product(range(3), (0.0, 1.0)))
act = torch.tensor([[a] for a, _ in cases])
bit = torch.tensor([[c] for _, c in cases], dtype=torch.float64)
none = torch.zeros(len(pairs), 0)
asked = {
    "verdict": (
        "verdict_nll",
        Feedback(act, bit),
        [1 / 9 if c else 2 / 9 for _, c in cases],
    ),
    "pair": (
        "bradley_terry",
        Feedback(none.long(), none, rankings=pairs),
        [1 / 6] * 6,
    ),
    "label": (
        "plackett_luce",
        Feedback(none.long(), none, rankings=orders[:, :1]),
        [1 / 6] * 6,
    ),
    "ranking": (
        "plackett_luce",
        Feedback(none.long(), none, rankings=orders),
        [1 / 6] * 6,
    ),
}
forms_of = {
    "verdict": "rlcd",
    "pair": "bt_drawn",
    "label": "nll",
    "ranking": "pl_drawn",
}
# People awaited at uniform shares: one for the first, 3/2 for the next, 3 for the last.
awaited = {"verdict": 1, "pair": 1.5, "label": 1, "ranking": 1 + 1.5 + 3}
worth = {}
for name, (objective, told, chance) in asked.items():
    leaf = u.repeat(6, 1).requires_grad_(True)
    OBJECTIVES[objective](torch.log_softmax(leaf, -1), told).sum().backward()
    trace = (
        torch.tensor(chance, dtype=torch.float64) * leaf.grad.square().sum(1)
    ).sum()
    value, form = float(trace) / 2, FORMS[forms_of[name]]
    worth[name] = {
        "comparisons": form.comparisons(3),
        "bits": form.bits(3),
        "people": awaited[name],
        "information": value,
        "a bit": value / form.bits(3),
        "a person": value / awaited[name],
    }
exact = {"verdict": 1 / 6, "pair": 1 / 4, "label": 1 / 3, "ranking": 7 / 12}
assert all(abs(worth[k]["information"] - v) < 1e-12 for k, v in exact.items())
pd.DataFrame(worth).T.round(3)

# %% [markdown]
# Per *bit* a pair is the best buy and a ranking beats a label. Per *person* the label wins by far:
# to hear who comes third one must wait for the few who say so. What is scarce decides, and
# the model must be true: {prf:ref}`thm-prefs-mixture` can cost more than all of this.
#
# ## Films: eight ways to spend the same bits
#
# The head of {doc}`20_rater_bandit` starts from scratch, without warm-up, on the film reviews. Each
# optimiser step spends {res}`29_preferences:bits_step` bits in whatever form, and there are
# {res}`29_preferences:steps` steps. Each form has its own rate out of
# {res}`29_preferences:rates`, chosen on three seeds that appear in no result: by validation Brier score,
# and counted forms, whose probabilities are of another event, by validation accuracy.
# *People* are those who must be heard one by one for a drawn answer; for counted answers the
# crowd of a text is added up each time the text comes by.


# %%
def cell(values, digits=3):
    """Mean and 95 % interval over seeds."""
    return f"{seed_interval(values):.{digits}f}"


def table(task):
    """Accuracy and signed gap in the mean, Brier and ECE with intervals."""
    rows = {}
    for n in FORMS_OF[task]:
        found = {
            m: metric_values(on[task], n, m)
            for m in ("accuracy", "brier", "ece", "gap")
        }
        rows[labels[n]] = {
            "acc.": f"{found['accuracy'].mean():.3f}",
            "Brier": cell(found["brier"], 4),
            "ECE": cell(found["ece"]),
            "gap": f"{found['gap'].mean():.3f}",
        }
    return pd.DataFrame(rows).T


spent = {
    labels[name]: {
        "answers": f"{r.used['outcomes']:,.0f}",
        "comparisons": f"{r.used['comparisons']:,.0f}",
        "bits": f"{r.used['bits']:,.0f}",
        "people": f"{np.mean([x.used['people'] for x in on[OPTIONS] if x.arm == name]):,.0f}",
        "rate": f"{tuned(OPTIONS, name).learning_rate:g}",
    }
    for name in FORMS
    for r in [next(x for x in on[OPTIONS] if x.arm == name)]
}
pd.DataFrame(spent).T

# %%
table(OPTIONS)


# %% tags=["remove-cell"]
def means(task, metric):
    """Mean of a metric over seeds, by arm."""
    return {n: float(metric_values(on[task], n, metric).mean()) for n in FORMS_OF[task]}


def difference(task, a, b, metric):
    """Paired difference of two arms over seeds: estimate and bounds."""
    first, second = (metric_values(on[task], n, metric) for n in (a, b))
    found = seed_interval(first - second)
    return {"mean": found.estimate, "bounds": [found.low, found.high]}


ends_of = [
    tuned(task, n).learning_rate in (RATES[task][0], RATES[task][-1])
    for task, names in FORMS_OF.items()
    for n in names
]
numbers = {
    "edges": sum(ends_of),
    "cells": len(ends_of),
    "early": chosen_by(OPTIONS, "top_counts", "brier").learning_rate,
    "rankings": next(
        f"{r.used['outcomes']:,.0f}" for r in on[OPTIONS] if r.arm == "pl_drawn"
    ),
    "bits_step": BITS_PER_STEP,
    "steps": STEPS,
    "rates": len(RATES[OPTIONS]),
    "ece": means(OPTIONS, "ece"),
    "brier": means(OPTIONS, "brier"),
    "accuracy": means(OPTIONS, "accuracy"),
    "people": {
        n: float(np.mean([x.used["people"] for x in on[OPTIONS] if x.arm == n]))
        for n in FORMS
    },
    "minus_nll": {
        n: {m: difference(OPTIONS, n, "nll", m) for m in ("brier", "ece")}
        for n in FORMS
        if n != "nll"
    },
    "texts": {m: means(TEXTS, m) for m in ("ece", "gap", "brier", "accuracy")},
    "texts_counts": difference(TEXTS, "bt_counts", "bt_drawn", "ece"),
    "pairs": {k: f"{v:,}" for k, v in PAIRS.items()},
}
save_numbers(CHAPTER, numbers)

# %% [markdown]
# Read the last column first.
#
# - *First choices are honest.* A drawn label, and the two one-bit forms that ask about the policy's
#   own choice, state what comes true to within half a percentage point on average.
# - *At equal bits RLCD and labels tie*: the Brier score of RLCD minus that of labels is
#   {res}`29_preferences:minus_nll.rlcd.brier.bounds:.4f` (95 %). The verdict NLL is a little worse than labels, by
#   {res}`29_preferences:minus_nll.verdict_nll.brier.bounds:.4f`.
# - *Drawn rankings are timid*, by {res}`29_preferences:gap.pl_drawn:.3f`, and drawn pairs by
#   {res}`29_preferences:gap.bt_drawn:.3f`, although every answer came from an honestly drawn person.
#   Against labels of as many bits the ranking's Brier score is worse by
#   {res}`29_preferences:minus_nll.pl_drawn.brier.bounds:.4f` (95 %), and it took
#   {res}`29_preferences:people.pl_drawn:,.0f` people instead of
#   {res}`29_preferences:people.nll:,.0f`.
# - *The counted favourite is too sure*, by {res}`29_preferences:gap.top_counts:.3f`.
# - *Counted pairs look well* ({res}`29_preferences:ece.bt_counts:.3f`) *for a bad reason*: pairs
#   make timid, counting makes sure, and here the two cancel. Their Brier score is still worse than a
#   label's by {res}`29_preferences:minus_nll.bt_counts.brier.bounds:.4f`. In counted rankings timidity
#   wins: they are as far off as drawn ones.
# - *Accuracy hardly tells them apart*: from {res}`29_preferences:acc_low:.3f` to
#   {res}`29_preferences:acc_high:.3f`. Who is chosen, every form teaches.
#
# ### Where the probability went
#
# {prf:ref}`thm-prefs-mixture` says where to look: at the middle.

# %%
data, films = load_rater("movie", 3), rater_task("movie").splits["test"]
counts = data.counts[films]
share = counts / counts.sum(1, keepdims=True)
stated = {}
for record in on[OPTIONS]:
    stated.setdefault(record.arm, []).append(store.predictions(record))
mean_stated = {"raters": share.mean(0)}
mean_stated |= {labels[n]: np.mean([p.mean(0) for p in stated[n]], 0) for n in FORMS}
neutral = {n: float(np.mean([p[:, 1].mean() for p in stated[n]])) for n in FORMS}
assert neutral["pl_drawn"] > neutral["bt_drawn"] > neutral["nll"]
accuracies = means(OPTIONS, "accuracy").values()
save_numbers(
    CHAPTER,
    {
        "neutral": neutral | {"raters": float(share[:, 1].mean())},
        "acc_low": min(accuracies),
        "acc_high": max(accuracies),
    },
)
pd.DataFrame(mean_stated, index=data.options).T.round(3)

# %% [markdown]
# Raters say *neutral* in {res}`29_preferences:neutral.raters:.1%` of cases. Labels teach
# {res}`29_preferences:neutral.nll:.1%`, rankings by the same people
# {res}`29_preferences:neutral.pl_drawn:.1%`.
#
# ### Two meanings of being right
#
# The counted favourite teaches a probability as well, that of another event
# ({prf:ref}`thm-prefs-mixture`, 2). So each policy should be judged twice: does a random
# rater agree, and is its choice the favourite of most raters?

# %%
best = counts == counts.max(1, keepdims=True)
best = best / best.sum(1, keepdims=True)  # ties count in part


def judged(name, truth):
    """ECE of an arm's choices over seeds where `truth` (n, K) says what is right."""
    found = []
    for p in stated[name]:
        pick = p.argmax(1)
        at = np.arange(len(p)), pick
        found.append(ece(p[at], truth[at]))
    return np.array(found)


twice = {
    name: {"a random rater": judged(name, share), "the favourite": judged(name, best)}
    for name in ("nll", "pl_drawn", "top_counts", "pl_counts")
}
for name, closer in (("nll", "a random rater"), ("top_counts", "the favourite")):
    other = {"a random rater": "the favourite", "the favourite": "a random rater"}[
        closer
    ]
    assert twice[name][closer].mean() < twice[name][other].mean()
save_numbers(
    CHAPTER,
    {
        "twice": {
            n: {k.split()[-1]: float(v.mean()) for k, v in row.items()}
            for n, row in twice.items()
        }
    },
)
pd.DataFrame(
    {labels[n]: {k: cell(v) for k, v in row.items()} for n, row in twice.items()}
).T

# %% [markdown]
# A policy trained on favourites is off by {res}`29_preferences:twice.top_counts.rater:.3f` for the
# person who meets it and by {res}`29_preferences:twice.top_counts.favourite:.3f` for the
# leaderboard; one trained on labels the other way round
# ({res}`29_preferences:twice.nll.rater:.3f` and {res}`29_preferences:twice.nll.favourite:.3f`). Neither is wrong. A user must know which question was asked.
#
# ### Learned by heart
#
# On all films the head cannot sort each text rightly, so the flight to certainty of
# {prf:ref}`thm-prefs-drawn` does not show. With {res}`29_preferences:few_texts` texts it can.
# Same bits, one rate for all, judged on the training texts themselves:

# %%
few = family_records("preferences_few")
by_heart = {
    labels[name]: {
        "stated": cell(metric_values(few, name, "confidence", "train")),
        "raters agree": cell(metric_values(few, name, "accuracy", "train")),
        "Brier": f"{metric_values(few, name, 'brier', 'train').mean():.3f}",
        "Brier, test": f"{metric_values(few, name, 'brier', 'test').mean():.3f}",
    }
    for name in FEW
}
heart = {
    n: {
        k: float(metric_values(few, n, k, "train").mean())
        for k in ("confidence", "accuracy")
    }
    for n in FEW
}
assert heart["top_counts"]["confidence"] > 0.99 > 0.95 > heart["nll"]["confidence"]
save_numbers(CHAPTER, {"few_texts": FEW_TEXTS, "heart": heart})
pd.DataFrame(by_heart).T

# %% [markdown]
# Counted favourites drive the policy to {res}`29_preferences:heart.top_counts.confidence:.3f` where
# {res}`29_preferences:heart.top_counts.accuracy:.3f` of the raters agree; drawn labels stop at
# {res}`29_preferences:heart.nll.confidence:.3f` where {res}`29_preferences:heart.nll.accuracy:.3f` do.
# (On *new* texts all four fail: three hundred texts are too few for any form of answer.)
#
# ## Which of two texts is more positive?
#
# Now texts are ranked, not options. A comparison asks one rater of each text who is higher on the
# five-level scale; if they tie, two others are asked, so that all probabilities are those of raters
# who differ. ({res}`29_preferences:pairs.train` pairs for training and {res}`29_preferences:pairs.test`
# for the test, both texts of a pair from one split.) *Drawn*: their answer. *Counted*: the text that
# wins more of all these duels. With two options a label is one bit, and a pair and a ranking are
# the same thing.

# %%
table(TEXTS)

# %% [markdown]
# Here the comparison *is* the decision, and Bradley–Terry on drawn answers does what the verdicts do,
# at the same bits: all three are a little too sure on new texts, by
# {res}`29_preferences:texts.gap.bt_drawn:.3f`, {res}`29_preferences:texts.gap.verdict_nll:.3f` and
# {res}`29_preferences:texts.gap.rlcd:.3f`, although real raters need not follow the model. The counted
# winner doubles that; its ECE is larger than that of drawn pairs by
# {res}`29_preferences:texts_counts.bounds:.3f` (95 %). It chooses no worse: counting removes luck from
# the answer, and with it the share. What none of them can say is whether a text is positive at all
# ({prf:ref}`thm-prefs-drawn`, 4): the head has a reward for each text and no zero on its scale.
#
# ## What one temperature mends
#
# A policy that is timid or too sure by a common factor is mended by one number. Fit a temperature on half
# of the test texts, with one drawn verdict each, by log loss or by Brier score, and look at the other half.

# %% tags=["hide-input"]
groups = [data.groups[i] for i in films]
half = split_by_group(groups, (0.5, 0.5), seed=0)
cal, new = half == 0, half == 1
luck = np.random.default_rng(26).random((len(films), 1))
verdict = (share.cumsum(1) < luck).sum(1)


def warmed(p):
    """Temperatures by two scores; ECE and Brier on the other half, before and after."""
    log_p = np.log(np.maximum(p, 1e-12))
    by_log = fit_temperature(log_p[cal], verdict[cal])
    by_brier = fit_temperature(log_p[cal], verdict[cal], "brier")
    found = [by_log.value, by_brier.value]
    for q in (p[new], by_log.apply(log_p[new]), by_brier.apply(log_p[new])):
        at = np.arange(len(q)), q.argmax(1)
        lost = ((q**2).sum(1) - 2 * (q * share[new]).sum(1) + 1).mean()
        found += [ece(q[at], share[new][at]), lost]
    return found


heads = ["T, log loss", "T, Brier", "ECE", "Brier"]
heads += ["ECE, log loss", "Brier, log loss", "ECE, Brier", "Brier, Brier"]
mended = {n: np.array([warmed(p) for p in stated[n]]) for n in FORMS}
heat = {n: dict(zip(heads, v.mean(0), strict=True)) for n, v in mended.items()}
for name in ("pl_drawn", "pl_counts"):
    assert heat[name]["ECE, log loss"] < 0.8 * heat[name]["ECE"]
    assert heat[name]["T, log loss"] < 1
assert heat["top_counts"]["T, log loss"] > 1.2
assert heat["top_counts"]["ECE, log loss"] > heat["top_counts"]["ECE"]
left = seed_interval(mended["pl_drawn"][:, 5] - mended["nll"][:, 5])
save_numbers(
    CHAPTER,
    {
        "heat": {
            n: {
                "t": heat[n]["T, log loss"],
                "before": heat[n]["ECE"],
                "after": heat[n]["ECE, log loss"],
                "brier": heat[n]["ECE, Brier"],
            }
            for n in ("pl_drawn", "pl_counts", "top_counts")
        },
        "never": float((stated["top_counts"][0][:, 1] < 0.02).mean()),
        "left": [left.low, left.high],
        "verdicts": int(cal.sum()),
    },
)
display = {
    "T, log loss": "T, log loss",
    "T, Brier": "T, Brier",
    "ECE": "ECE before",
    "ECE, log loss": "after, log loss",
    "ECE, Brier": "after, Brier",
}
pd.DataFrame(
    {
        labels[n]: {
            title: f"{row[h]:.{2 if h[0] == 'T' else 3}f}"
            for h, title in display.items()
        }
        for n, row in heat.items()
    }
).T

# %% [markdown]
# {res}`29_preferences:verdicts` verdicts help the rankings: sharpened by $T < 1$, their ECE falls from
# {res}`29_preferences:heat.pl_drawn.before:.3f` to {res}`29_preferences:heat.pl_drawn.after:.3f`.
# The probability in the wrong place stays there: they still pay {res}`29_preferences:left:.4f` more
# Brier than labels (95 %).
#
# *For the counted favourite it matters how the temperature is fitted.* By log loss its ECE gets worse, from
# {res}`29_preferences:heat.top_counts.before:.3f` to {res}`29_preferences:heat.top_counts.after:.3f`:
# neutral is seldom a favourite, so on {res}`29_preferences:never:.0%` of the texts (first seed) it is stated
# under .02, while one rater in twenty says it. Log loss makes these surprises dear, one number has to pay for
# them, and it cools the honest part as well ($T$ = {res}`29_preferences:heat.top_counts.t:.2f`). Fitted by
# Brier score it ends at {res}`29_preferences:heat.top_counts.brier:.3f`. Counting loses more than a scale, and
# we had not expected that.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *One source, ordered options.* The middle is everybody's second choice because feelings have an
#   order. Options without one (departments, topics) may suffer less from rankings; that is not shown.
# - *Rankings made from ratings.* Nobody here ranked anything. "Order of first voices" makes
#   Plackett–Luce true by construction for each text, which is kind to the ranking loss; real people
#   who rank three options are one person with one mind, and their second places may say something else.
# - *A richer policy* tells more texts apart, so that the mixtures shrink and rankings become
#   better. The three hundred texts show that limit, and its price.
# - *The rate moves the sizes.* In the tuning records drawn and counted rankings are timid and the counted favourite
#   too sure at every rate of the grid, but a higher rate than the chosen one makes drawn rankings less timid. At
#   {res}`29_preferences:edges` of {res}`29_preferences:cells` choices the best rate lies at the end of its
#   grid. Judged by Brier, counted favourites would choose {res}`29_preferences:early:g` instead, and be no less
#   sure.
# - *Bits are an upper bound* on what an answer tells. Per person, labels beat everything.
# :::
#
# ## Exercises
#
# :::{exercise} Throw away data
# :label: ex-prefs-1
#
# You have bought {res}`29_preferences:rankings` drawn rankings. Which loss do you train with, if the policy has to
# state how often a random person agrees with its choice? What do you lose?
# :::
#
# :::{solution} ex-prefs-1
# :label: sol-prefs-1
# :class: dropdown
#
# With the first place alone ({prf:ref}`thm-prefs-mixture`, 1): it is a label. By the table of what
# an answer is worth, seven twelfths shrink to one third where the model is true, a
# factor of 1.75 in information; where it is not, what you lose is a bias. A check: in the mixture above, train the
# first place of the same rankings.
# :::

# %% tags=["hide-cell"]
first_only = flow(mixed, 1)[-1]
print(
    "first place alone states what people say:", np.allclose(first_only, kinds.mean(0))
)
print("loses this factor of information:", round(exact["ranking"] / exact["label"], 2))

# %% [markdown]
# :::{exercise} Ties by coin
# :label: ex-prefs-2
#
# Where two raters tie on two texts, a data set often throws a coin instead of asking again. Let ties
# have chance $t$ and let the first text win with chance $w$ otherwise. What does
# Bradley–Terry learn then? Is that calibrated?
# :::
#
# :::{solution} ex-prefs-2
# :label: sol-prefs-2
# :class: dropdown
#
# It learns $(1 - t) w + t/2$, which is nearer to one half: calibrated for "wins, coin included", and
# timid for raters who differ. Neither is wrong; it is another event once more. On the film pairs:
# :::

# %% tags=["hide-cell"]
levels = load_rater("movie", 5).counts
draw = np.random.default_rng(0).integers(0, len(levels), (4000, 2))
draw = draw[draw[:, 0] != draw[:, 1]]
won = wins(levels[draw[:, 0]], levels[draw[:, 1]])
every = levels[draw[:, 0]].sum(1) * levels[draw[:, 1]].sum(1)
tied = 1 - won.sum(1) / every
up = won[:, 0] / every
able = won.sum(1) > 0
apart = np.abs(up[able] / (1 - tied[able]) - 0.5).mean()
coin = np.abs(up[able] + tied[able] / 2 - 0.5).mean()
print(
    f"ties {tied.mean():.2f}; distance from a half {apart:.2f}, with coins {coin:.2f}"
)
assert coin < apart

# %% [markdown]
# :::{exercise} Which pairs to ask
# :label: ex-prefs-3
#
# On one text with $q = (.2, .3, .5)$ you may ask the pairs (A, B) and (A, C) only. Is $q$ identified? And
# if C is nobody's choice?
# :::
#
# :::{solution} ex-prefs-3
# :label: sol-prefs-3
# :class: dropdown
#
# Yes: both pairs connect all three options, $q_A : q_B = 2 : 3$ and $q_A : q_C = 2 : 5$
# ({prf:ref}`thm-prefs-drawn`, 2). If $q_C = 0$, every answer on (A, C) is A, and the loss has no minimum:
# $u_C$ runs to $-\infty$, rightly, and the odds of A and B are learned as before. The theorem
# asks for $q_k > 0$ only so that a minimum exists.
# :::
#
# ## Further reading
#
# The models are those of {cite:t}`bradley1952`, {cite:t}`luce1959` and {cite:t}`plackett1975`;
# {doc}`07_plackett_luce` holds their theory. How rankings may be broken into pairs without losing
# consistency, if Plackett–Luce is true, is worked out by {cite:t}`azari2013`. That mixtures of
# Plackett–Luce are a different and often unidentifiable family is shown by {cite:t}`zhao2016`.
# The ratings are those of {cite:t}`hutto2014`.
