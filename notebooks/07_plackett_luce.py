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
# # From reward modelling to Plackett–Luce
#
# **Question.** A reward model learns from "this answer is better than that one". Stretch it from
# two answers to $K$ and read its softmax: is that a calibrated decision?
#
# **Answer.** It is the same formula, and no more: the first stage of Plackett–Luce is the log
# loss of {doc}`03_proper_scoring`, but its probabilities are honest about *outcomes* only if the
# choices it learned from were outcomes, and because it scores each option alone it cannot state
# the truth about "None of the above".
#
# **After this page you can** go from Bradley–Terry to full rankings in three lines, put any policy
# through the five predictions of the Plackett–Luce view, say which of them a decision head has by
# construction, and tell a preference model from a calibrated one.
#
# **Running time.** A quarter of a minute on a CPU; a T4 or A100 changes nothing. The sentence
# encoder embeds about a hundred short texts on the first run.

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

# %% mystnb={"figure": {"caption": "The price of independence. A form lists two of three queues and \"None of the above\"; each corner is a truth in which one queue is certain. Colour: how much log loss (in nats, mean over the three forms) the best possible policy that scores each option alone must pay above the truth. It is free where one queue is certain and where all are alike, and dearest, {res}`07_plackett_luce:price_peak:.3f`, where two queues are torn and the third is out. The star is the ticket of this page.", "name": "fig-pl-price"}, "image": {"alt": "Triangle of distributions over queues A, B and C as a heat map. The centre is clear and the very corners are too: price zero. Dark bands run along the three edges and are darkest at their middles, where two queues are equally likely and the third is impossible. A star at 0.5, 0.3, 0.2 lies in a pale region near the centre."}} tags=["hide-input"]
from itertools import combinations, permutations

import numpy as np
import pandas as pd
import sympy
import torch
from matplotlib.colors import LinearSegmentedColormap

from rlcd_core import plots
from rlcd_core.calibrate import fit_temperature
from rlcd_core.data.nota import NOTA
from rlcd_core.data.triage import DEPARTMENT, DEPARTMENTS, probe
from rlcd_core.evaluate import battery, probabilities, probes
from rlcd_core.metrics import ece, reliability
from rlcd_core.policy import (
    DecisionHead,
    Encoder,
    PermutationAverage,
    masked_log_softmax,
)
from rlcd_core.records import save_numbers
from rlcd_core.rewards import (
    MASKED,
    OBJECTIVES,
    Feedback,
    bradley_terry_loss,
    plackett_luce_loss,
)
from rlcd_core.schema import Choice
from rlcd_core.scoring import brier, log_loss

plots.use_style()
torch.set_default_dtype(torch.float64)
rng = np.random.default_rng(seed)


def minimise(loss, shape):
    """The utilities (shape) at which a smooth total loss is least."""
    u = torch.zeros(shape, requires_grad=True)
    method = torch.optim.LBFGS(
        [u],
        max_iter=500,
        history_size=20,
        tolerance_grad=1e-10,
        tolerance_change=1e-15,
        line_search_fn="strong_wolfe",
    )

    def closure():
        method.zero_grad()
        total = loss(u)
        total.backward()
        return total

    method.step(closure)
    return u.detach()


def forms(q, size):
    """Forms of `size` options and NOTA: mask and truth (S, K + 1)."""
    shown, truth = [], []
    for listed in combinations(range(len(q)), size):
        here = np.isin(np.arange(len(q)), listed)
        kept = np.where(here, q, 0.0)
        shown.append([*here, True])
        truth.append([*kept, 1 - kept.sum()])
    return np.array(shown), np.array(truth)


def best_fit(shown, truth, rule="nll"):
    """What the best policy of one utility an option states, (..., S, K)."""
    size = truth.shape[-1]
    soft = torch.tensor(truth.reshape(-1, size))
    mask = torch.tensor(
        np.broadcast_to(shown, truth.shape).reshape(-1, size)
    )
    none = torch.zeros(len(soft), 0)
    feedback = Feedback(none.long(), none, soft_labels=soft)

    def stated(u):
        wide = u.expand(truth.shape).reshape(-1, size)
        return masked_log_softmax(wide, mask)

    u = minimise(
        lambda u: OBJECTIVES[rule](stated(u), feedback).sum(),
        (*truth.shape[:-2], 1, size),
    )
    return stated(u).exp().numpy().reshape(truth.shape)


def kl(truth, p):
    """KL divergence of p from the truth along the last axis, in nats."""
    inside = truth > 0
    ratio = np.where(inside, truth, 1) / np.where(inside, p, 1)
    return (truth * np.log(ratio)).sum(-1)


q_ticket = np.array([0.5, 0.3, 0.2])
grid = plots.simplex_grid(36, margin=1e-6)
all_truth = np.stack([forms(q, 2)[1] for q in grid])
price = kl(all_truth, best_fit(forms(q_ticket, 2)[0], all_truth)).mean(-1)

fig, ax = plots.figure(height=4.4)
blues = LinearSegmentedColormap.from_list(
    "price", ["#0c60fc00", "#0c60fcff"]
)
xy = plots.to_xy(grid).T
drawn = ax.tricontourf(
    *xy, price, levels=np.linspace(0, 0.112, 15), cmap=blues
)
plots.plot_simplex(ax, labels=("A certain", "B certain", "C certain"))
ax.plot(
    *plots.to_xy(q_ticket), marker="*", ms=15, color=plots.INK, mec="none"
)
centre = plots.to_xy(np.ones(3) / 3)
plots.note(ax, "all alike: free", *centre, xytext=(0, 16), ha="center")
torn = plots.to_xy(np.array([0.0, 0.5, 0.5]))
plots.note(ax, "B or C,\nnot A: dear", *torn, xytext=(8, 10))
bar = fig.colorbar(
    drawn, ax=ax, ticks=[0, 0.05, 0.1], fraction=0.04, pad=0.02
)
bar.set_label("price, nats")
bar.outline.set_visible(False)
save_numbers("07_plackett_luce", {"price_peak": round(price.max(), 6)})
_ = ax.set(xlim=(-0.12, 1.2))

# %% [markdown]
# ## A ticket and two forms
#
# *"I was charged twice, and now the app crashes."* Three queues could be right: **A** billing with
# chance .5, **B** bug .3, **C** account .2. The routing form is short: it lists two queues and "None
# of the above" (NOTA). Which two, is a matter of the form, not of the ticket.

# %%
shown, truth = (part[:2] for part in forms(q_ticket, 2))
columns = ["A", "B", "C", "NOTA"]
names = ["form A, B", "form A, C"]
table = pd.DataFrame(truth, names, columns).map("{:.1f}".format)
table[~shown] = "–"
odds = truth[:, 3] / truth[:, 0]
save_numbers("07_plackett_luce", {"odds": odds.round(12).tolist()})
table["NOTA : A"] = [f"{v:.1f}" for v in odds]
table

# %% [markdown]
# A is as likely on both forms. NOTA is not: on the first form it means "account", on the second it
# means "bug". Its odds against A are {res}`07_plackett_luce:odds.0:.1f` and
# {res}`07_plackett_luce:odds.1:.1f`.
#
# Now give each option one number, computed from the ticket and the option's own words, and take a
# softmax over those listed. The number of A and that of NOTA are the same on both forms, hence
# so are their odds. Whatever the training, one of the two rows will be wrong. That is what
# {numref}`fig-pl-price` prices, and it comes straight from the model behind reward modelling.
#
# ## From reward to choice
#
# An essay on this subject, "What is RLCD? The secret behind Jev", argues for a lineage: scalar
# reward, pairwise preference, multiway preference, calibrated decision. LLaMA-Berry's pairwise
# reward model {cite:p}`llamaberry2024` is its first step; its core equation is that RLCD is a
# Plackett–Luce loss plus a proper score. Facts first; the claims are then tested.
#
# :::{prf:definition} Luce choice and Plackett–Luce ranking
# :label: def-plackett-luce
#
# Give every option $i$ a utility $u_i$. From a set $S$ of options, $i$ is *chosen* with probability
#
# $$ P(i \mid S) = \frac{e^{u_i}}{\sum_{j \in S} e^{u_j}} , $$ (eq-luce)
#
# and a *ranking* $\pi_1 \succ \pi_2 \succ \dots \succ \pi_K$ chooses again and again among those
# that remain {cite:p}`luce1959,plackett1975`:
#
# $$ P(\pi) = \prod_{s=1}^{K}
#    \frac{e^{u_{\pi_s}}}{\sum_{t \ge s} e^{u_{\pi_t}}} . $$ (eq-plackett-luce)
#
# For two options, with $\sigma(v) = 1/(1 + e^{-v})$, this is the model of {cite:t}`bradley1952`,
#
# $$ P(i \succ j) = \sigma(u_i - u_j) . $$ (eq-bradley-terry)
# :::
#
# A policy has *independence of irrelevant alternatives* (IIA) if the odds
# $P(i \mid S) / P(j \mid S)$ are the same for every set $S$ that contains both.
#
# :::{prf:theorem} What Plackett–Luce is, and what it cannot say
# :label: thm-plackett-luce
#
# 1. *One family.* $K = 2$ is Bradley–Terry; the first factor of {eq}`eq-plackett-luce` is the Luce
#    choice. Given one label $y$, its loss is $-\log p_y$ with $p = \operatorname{softmax}(u)$: the
#    log loss, whose mean over $y \sim q$ is least only at $p = q$.
# 2. *Consistent.* Under {eq}`eq-plackett-luce`, the order of any subset is Plackett–Luce with
#    the same utilities. In particular $i$ stands before $j$ with probability
#    $\sigma(u_i - u_j)$, whatever else is ranked.
# 3. *IIA is the whole content.* The Luce choice has IIA. Conversely, positive choice probabilities on
#    all finite sets that have IIA come from utilities, unique up to one constant.
# 4. *By construction.* If $u_i$ is a function of the state, the question and option $i$ alone, the
#    policy has IIA, agrees with its own pairwise answers, and permuting the options permutes its
#    probabilities. Nothing follows about calibration, nor about a yes/no wording.
# 5. *None of the above.* Let option $i$ be right with probability $q_i$, and let a form list a
#    set $S$ and NOTA, which is right with probability $1 - q(S)$. A policy with IIA can state
#    the truth on two forms $S, S'$ that share an option $a$ with $q_a > 0$ only if $q(S) = q(S')$.
#    So a head as in 4 cannot calibrate NOTA given the ticket and the form, unless forms that share
#    a possible option leave out equal mass.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1.* $e^{u_i}/(e^{u_i} + e^{u_j}) = \sigma(u_i - u_j)$. The mean of $-\log p_y$ over $y \sim q$ is
# $H(q) + \operatorname{KL}(q \,\|\, p)$, and the second term is zero only at $p = q$.
#
# *2.* Let $w_i = e^{u_i}$ and let $E_i$ be independent exponential times with rates $w_i$. The first of
# the clocks in a set $R$ to ring is $i$ with probability
# $\int_0^\infty w_i e^{-w_i t} \prod_{j \in R, j \ne i} e^{-w_j t} dt = w_i / \sum_{j \in R} w_j$. Exponential
# times forget: given that $i$ rang first at time $t$, the remaining waits of the others are again
# independent exponentials with the same rates. So the order in which the clocks ring has the
# law {eq}`eq-plackett-luce`. The order within a subset is the order of its own clocks; the others can be
# taken off the wall without effect.
#
# *3.* The odds are $e^{u_i - u_j}$, without $S$. Conversely, fix an option $o$ and put $u_i = \log
# P(i \mid \{i, o\}) - \log P(o \mid \{i, o\})$, $u_o = 0$. For $i, j \in S$, IIA lets us add $o$ and then
# remove all but a pair: $P(i|S)/P(j|S) = P(i|S \cup o)/P(j|S \cup o)$, which is the ratio of the odds $i : o$
# and $j : o$ in $S \cup o$, hence $e^{u_i}/e^{u_j}$ by IIA again. Probabilities sum to one, which gives
# {eq}`eq-luce`. Other utilities with the same odds differ by a constant.
#
# *4.* The first two are items 3 and 2. A permutation permutes the $u_i$ and leaves the sum alone.
#
# *5.* IIA gives NOTA and $a$ the same odds on both forms. The truth gives them $(1 - q(S))/q_a$ and
# $(1 - q(S'))/q_a$. $\square$
# :::
#
# Item 3 is the axiom of {cite:t}`luce1959`. The theorem is checked three ways, through the losses
# of `rlcd_core.rewards`. **Symbolic**, for three options with weights $w_i = e^{u_i}$: all rankings sum
# to one, and A stands before B with the two-option probability.

# %%
w = sympy.symbols("w1:4", positive=True)


def ranked(order):
    """Plackett-Luce probability of a ranking, as a formula."""
    stages = [
        w[i] / sum(w[j] for j in order[s:]) for s, i in enumerate(order)
    ]
    return sympy.prod(stages)


orders_3 = list(permutations(range(3)))
before = [o for o in orders_3 if o.index(0) < o.index(1)]
u1, u2 = sympy.symbols("u1 u2", real=True)
pair = sympy.exp(u1) / (sympy.exp(u1) + sympy.exp(u2))
zeros = [
    sum(ranked(o) for o in orders_3) - 1,
    sum(ranked(o) for o in before) - w[0] / (w[0] + w[1]),
    pair - 1 / (1 + sympy.exp(u2 - u1)),
]
print("differences:", [sympy.simplify(z) for z in zeros])

# %% [markdown]
# **Enumeration.** For random utilities of two to six options, every ranking is weighed by the loss that
# trains. What must hold: they sum to one; summing out one option leaves the loss with this
# option masked; every pair has its Bradley–Terry probability; top-one is the log loss, row by row and
# gradient by gradient.

# %%
gaps = []
for size in [k for k in range(2, 7) for _ in range(3)]:
    u = torch.tensor(rng.normal(0, 1.5, size))
    every = torch.tensor(list(permutations(range(size))))
    chance = (-plackett_luce_loss(u.expand(len(every), -1), every)).exp()
    gaps.append(chance.sum() - 1)
    place = every.argsort(1)
    for i, j in combinations(range(size), 2):
        loss = bradley_terry_loss(
            u[None], torch.tensor([i]), torch.tensor([j])
        )
        gaps.append(
            chance[place[:, i] < place[:, j]].sum() - (-loss).exp()[0]
        )
    if size > 2:  # drop the last option: its mask against its sum
        rest = every[every != size - 1].reshape(len(every), -1)
        masked = u.clone()
        masked[-1] = MASKED
        kept = (rest == rest[0]).all(1)
        alone = plackett_luce_loss(masked[None], rest[:1])
        gaps.append(chance[kept].sum() - (-alone).exp()[0])
    leaf = u.repeat(size, 1).requires_grad_(True)
    y, none = torch.arange(size), torch.zeros(size, 0)
    label = Feedback(none.long(), none, labels=y)
    difference = plackett_luce_loss(leaf, y[:, None]) - OBJECTIVES["nll"](
        torch.log_softmax(leaf, -1), label
    )
    (slope,) = torch.autograd.grad(difference.sum(), leaf)
    gaps += [difference.detach().abs().max(), slope.abs().max()]
worst = max(abs(float(g)) for g in gaps)
save_numbers("07_plackett_luce", {"identities": len(gaps)})
print(len(gaps), "identities, all within 1e-12:", worst < 1e-12)

# %% [markdown]
# **Simulation.** The proof says that rankings are the order in which exponential clocks ring. Ring
# them, and compare with the loss:

# %%
n = 100_000
weights = np.array([0.5, 0.3, 0.2])
rung = (rng.exponential(size=(n, 3)) / weights).argsort(1)
every = np.array(orders_3)
share = (rung[:, None] == every).all(-1).mean(0)
u = torch.tensor(weights).log().expand(6, -1)
chance = (-plackett_luce_loss(u, torch.tensor(every))).exp().numpy()
error = np.sqrt(chance * (1 - chance) / n)
worst_z = np.abs((share - chance) / error).max()
save_numbers("07_plackett_luce", {"clock_z": worst_z, "clock_n": n})
pd.DataFrame(
    {
        "formula": chance.round(4),
        "clocks": share.round(4),
        "gap in standard errors": ((share - chance) / error).round(2),
    },
    index=[" > ".join("ABC"[k] for k in o) for o in every],
)

# %% [markdown]
# The largest of six gaps is {res}`07_plackett_luce:clock_z:.2f` standard errors at
# {res}`07_plackett_luce:clock_n:,` rankings.
#
# Item 1 settles half of the essay's equation. For one label per question the
# "Plackett–Luce loss" *is* the log loss, strictly proper already. A Brier term changes how errors are
# weighed, not where a model that can state the truth ends ({doc}`03_proper_scoring`). What is new in
# Plackett–Luce is IIA, and IIA is not always true.
#
# ## IIA has a price
#
# Back to the two forms, each used equally often. What is the best that one utility per
# option can do, and what does it cost? We minimise the exact expected loss; nothing is sampled.

# %%
level = np.array([[0.5, 0.25, 0, 0.25], [0.5, 0, 0.25, 0.25]])
answers = {
    "the truth": truth,
    "best IIA, log loss": best_fit(shown, truth, "nll"),
    "best IIA, Brier": best_fit(shown, truth, "brier"),
    "IIA, level": level,
}
rows = {}
for name, p in answers.items():
    rows[name] = {
        "A on form A, B": p[0, 0],
        "A on form A, C": p[1, 0],
        "NOTA on form A, B": p[0, 3],
        "NOTA on form A, C": p[1, 3],
        "NOTA : A": " and ".join(
            sorted({f"{v:.2f}" for v in p[:, 3] / p[:, 0]})
        ),
        "log loss above truth": kl(truth, p).mean(),
        "Brier above truth": ((p - truth) ** 2).sum(-1).mean(),
    }
table = pd.DataFrame(rows)
fit = answers["best IIA, log loss"]
save_numbers(
    "07_plackett_luce",
    {
        "fit_a": fit[:, 0].round(6).tolist(),
        "fit_nota": fit[:, 3].round(6).tolist(),
        "cost_log": round(kl(truth, fit).mean(), 7),
        "cost_level": round(kl(truth, level).mean(), 7),
        "cost_brier": round(
            ((answers["best IIA, Brier"] - truth) ** 2).sum(-1).mean(), 7
        ),
    },
)
excess = log_loss(fit, truth).mean() - log_loss(truth, truth).mean()
assert abs(excess - kl(truth, fit).mean()) < 1e-12
excess = brier(fit, truth).mean() - brier(truth, truth).mean()
assert (
    abs(excess - table.loc["Brier above truth", "best IIA, log loss"])
    < 1e-12
)
table.map(lambda v: v if isinstance(v, str) else f"{v:.4f}")

# %% [markdown]
# The best head says {res}`07_plackett_luce:fit_nota.0:.3f` and {res}`07_plackett_luce:fit_nota.1:.3f`
# for NOTA where .2 and .3 are true, and pays for it by bending A, which is .5 on both forms, to
# {res}`07_plackett_luce:fit_a.0:.3f` and {res}`07_plackett_luce:fit_a.1:.3f`. **The
# error leaks into options that were easy.** In size it is small: {res}`07_plackett_luce:cost_log:.4f`
# nats (and {res}`07_plackett_luce:cost_brier:.4f` of Brier for the head that is best by Brier). {numref}`fig-pl-price` shows where it is not:
# a ticket torn between two queues with the third ruled out costs
# {res}`07_plackett_luce:price_peak:.3f` nats, while a certain ticket costs nothing, because
# a large utility for the right queue and a middling one for NOTA fit every form. So a benchmark whose
# items are all certain cannot see the defect, and accuracy hardly can.
#
# :::{prf:remark} The condition in item 5 matters
# :label: rem-nota-weak
#
# "Cannot calibrate" is meant *given the ticket and the form*. In the weaker sense of
# {doc}`02_calibration`, among all cases with the same stated number, an IIA policy can: the last column of
# the table states .5 for A and .25 for NOTA on both forms, A is right half the time, and NOTA is right in
# .2 and .3 of cases, .25 on average, as are B and C together. Its reliability diagram is perfect. It pays
# {res}`07_plackett_luce:cost_level:.4f` nats, about three times the price of the best fit: what is lost
# is resolution. A flat reliability diagram is therefore no proof that IIA did no harm.
# :::
#
# The failure is old. Discrete choice knows it as the red bus and the blue bus; here the culprit is a name.
# "None of the above" names a different event on each form, and a head that reads the name alone
# cannot know which. What mends it is to let NOTA's number see the list, or to keep scores for
# the whole catalogue and add up what is not listed ({ref}`ex-pl-4`).
#
# ## A real head, given every advantage
#
# Does a trained model do what the algebra says? Take a decision head on frozen sentence
# embeddings and a few dozen synthetic tickets whose true posterior is known: one cue makes a
# department certain, two cues make two of them .5 / .5. Train it on *all* forms of two departments plus NOTA
# and on the full list of four, with the true posterior as target, and test it on the same tickets. No noise, no
# generalisation: what it cannot state here, it cannot state at all.

# %%
made = probe(20, np.random.default_rng(7))
made = made["one_cue"] + made["two_cues"]
posterior = np.array([ticket.posterior for ticket in made])
certain = posterior.max(1) == 1
cases, targets, of_ticket = [], [], []
for row, (ticket, q) in enumerate(zip(made, posterior, strict=True)):
    cases.append((ticket.state, DEPARTMENT))
    targets.append([*q, 0.0])  # a form of four has no NOTA: padded
    of_ticket.append(row)
    for listed in combinations(range(4), 2):
        options = [DEPARTMENTS[k] for k in listed]
        cases.append(
            (ticket.state, Choice(DEPARTMENT.text, [*options, NOTA]))
        )
        kept = q[list(listed)]
        targets.append([*kept, 1 - kept.sum(), 0.0, 0.0])
        of_ticket.append(row)
targets, of_ticket = np.array(targets)[:, :4], np.array(of_ticket)
nota_form = np.array([NOTA in question.options for _, question in cases])


def train(items, soft, steps=400):
    """A decision head fitted to soft labels by the top-one loss."""
    policy = DecisionHead(encoder, rank=64)
    batch = policy.prepare(items).take(range(len(items)))
    soft = torch.tensor(soft, dtype=torch.float32)
    none = torch.zeros(len(items), 0, dtype=torch.float32)
    feedback = Feedback(none.long(), none, soft_labels=soft)
    optimiser = torch.optim.Adam(policy.parameters(), lr=2e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        OBJECTIVES["nll"](
            policy.log_probs(batch), feedback
        ).mean().backward()
        optimiser.step()
    return policy


torch.set_default_dtype(torch.float32)
encoder = Encoder.load()
head = train(cases, targets)
answered = probabilities(head, cases, batch_size=512)
stated_nota = np.array(
    [p[2] for p, on in zip(answered, nota_form, strict=True) if on]
)
true_nota = targets[nota_form, 2]
torn_ticket = ~certain[of_ticket[nota_form]]

# %% mystnb={"figure": {"caption": "NOTA as a trained decision head states it, over the true probability, for all {res}`07_plackett_luce:head_forms` forms of {res}`07_plackett_luce:head_tickets` tickets it was trained on. Certain tickets (squares) sit on the diagonal, at 0 and 1. Tickets torn between two departments (dots) sit there only where neither is listed: where both are, NOTA is impossible and the head says {res}`07_plackett_luce:head_zero:.2f`. Rings: the best that IIA allows, computed without any head.", "name": "fig-pl-head"}, "image": {"alt": "Stated against true probability of None of the above. Squares at 0 and 1 lie on the diagonal. Dots of torn tickets lie at about 0.28 where the truth is 0, at about 0.43 where it is 0.5, and at 1 where it is 1. Rings of the theoretical best cover the dots."}} tags=["hide-input"]
torch.set_default_dtype(torch.float64)
torn_shown, torn_truth = forms(np.array([0.5, 0.5, 0.0, 0.0]), 2)
torn_best = best_fit(torn_shown, torn_truth)
ring_x, first = np.unique(torn_truth[:, -1].round(6), return_index=True)
ring_y = torn_best[first, -1]

fig, ax = plots.figure(height=3.9)
ax.plot([0, 1], [0, 1], color=plots.INK, lw=1, ls=":")
jitter = np.random.default_rng(0).uniform(-0.025, 0.025, len(true_nota))
looks = {
    False: ("certain", plots.COLORS["verdict"], "s"),
    True: ("torn", plots.COLORS["rlcd"], "o"),
}
for torn_kind, (_, color, marker) in looks.items():
    on = torn_ticket == torn_kind
    x = true_nota[on] + jitter[on]
    ax.plot(
        x, stated_nota[on], marker, ms=4, color=color, alpha=0.5, mec="none"
    )
ax.plot(ring_x, ring_y, "o", ms=15, mfc="none", mec=plots.INK, mew=1.5)
blue, green = plots.COLORS["rlcd"], plots.COLORS["verdict"]
plots.note(
    ax, "torn, both listed", 0.0, ring_y[0], color=blue, xytext=(-8, 22)
)
plots.note(
    ax, "torn, one listed", 0.54, ring_y[1], color=blue, xytext=(8, -2)
)
plots.note(ax, "certain, listed", 0.04, 0.0, color=green, xytext=(10, 4))
plots.note(ax, "ring: best with IIA", 0.0, 0.62, xytext=(0, 0))
by_truth = [
    stated_nota[torn_ticket & np.isclose(true_nota, v)].mean()
    for v in ring_x
]
sure = np.abs(stated_nota - true_nota)[~torn_ticket].max()
save_numbers(
    "07_plackett_luce",
    {
        "head_forms": len(true_nota),
        "head_tickets": len(made),
        "head_zero": round(float(by_truth[0]), 2),
        "head_half": round(float(by_truth[1]), 2),
        "best_zero": round(float(ring_y[0]), 4),
        "best_half": round(float(ring_y[1]), 4),
        "torn_price": round(float(kl(torn_truth, torn_best).mean()), 5),
    },
)
assert np.abs(np.array(by_truth) - ring_y).max() < 0.03
assert sure < 0.02
_ = ax.set(
    xlabel="true probability of NOTA", ylabel="stated", ylim=(-0.05, 1.06)
)

# %% [markdown]
# The head lands where the algebra puts it: {res}`07_plackett_luce:head_zero:.2f` and
# {res}`07_plackett_luce:head_half:.2f`, against a computed best of {res}`07_plackett_luce:best_zero:.3f`
# and {res}`07_plackett_luce:best_half:.3f`, where 0 and .5 are true. Tickets with one cue are answered
# rightly on every form. It is precisely for the undecided ticket, for whose sake one wants probabilities, that
# the head cannot say what it was shown.
#
# ## Five predictions, as code
#
# The essay turns its thesis into five predictions. `rlcd_core.evaluate.battery` asks them of any
# policy; 0 means that a prediction holds exactly.
#
# | prediction | probe | for a head that scores options alone |
# |---|---|---|
# | binary equivalence | "a or b?" as `Choice` and as yes/no | must be measured, see below |
# | pairwise consistency | all options against the first two | holds by construction |
# | irrelevant alternatives | one unrelated option more | holds by construction |
# | empirical calibration | labels | must be measured |
# | order symmetry | options rotated | holds by construction |
#
# A readout of letters has none of the three by construction. A battery that everything passes is
# worthless, so the trained head is bent in three ways, each of which should break its own columns
# *and no others*: a liking for the first places of the list, as letter readouts have ({doc}`40_ask`
# measures one that flips {res}`40_ask:flips:.0%` of its answers); a temperature that grows with the
# number of options; and plain timidity. The first is also averaged over orders, which should mend it:


# %%
class Bent:
    """A policy whose log-probabilities are bent before the softmax."""

    def __init__(self, policy, bend):
        self.policy, self.bend = policy, bend

    def prepare(self, items):
        return self.policy.prepare(items)

    def log_probs(self, batch):
        straight = self.policy.log_probs(batch)
        return masked_log_softmax(
            self.bend(straight, batch.mask), batch.mask
        )


policies = {
    "head": head,
    "likes first places": Bent(
        head, lambda z, on: z - torch.arange(z.shape[1])
    ),
    "the same, averaged": PermutationAverage(
        Bent(head, lambda z, on: z - torch.arange(z.shape[1])), 8, mean="log"
    ),
    "crowd-shy": Bent(head, lambda z, on: 3 * z / on.sum(1, keepdim=True)),
    "timid": Bent(head, lambda z, on: z / 10),
}

# %% tags=["hide-input"]
items = [(ticket.state, ticket.question) for ticket in made]
labels = [ticket.label for ticket in made]
kept = {
    "binary equivalence": "binary",
    "pairwise consistency": "pairwise",
    "irrelevant alternatives": "IIA",
    "order distance": "order",
    "ECE": "ECE",
}
results = {}
for name, policy in policies.items():
    checks = battery(
        policy,
        items,
        labels,
        rng=np.random.default_rng(0),
        batch_size=256,
        n_resamples=200,
    )
    assert all(check.passed for check in checks)
    found = {check.name: check.value for check in checks}
    results[name] = {kept[key]: found[key] for key in kept}
held = pd.DataFrame(results).T.drop(columns="binary")
# Float32 keeps an exact property to 1e-7; 40 labels an ECE to about 0.1.
fails = held > [1e-4, 1e-4, 1e-4, 0.1]
save_numbers(
    "07_plackett_luce",
    {
        "battery_items": len(items),
        "head_ece": round(float(held["ECE"]["head"]), 2),
        "head_binary": round(
            float(results["head"]["binary"]), 2
        ),
    },
)
expected = {
    "head": [],
    "likes first places": ["order", "ECE"],
    "the same, averaged": [],
    "crowd-shy": ["pairwise", "IIA"],
    "timid": ["ECE"],
}
for name, names in expected.items():
    assert list(held.columns[fails.loc[name]]) == names
shown_table = pd.DataFrame(results).T
shown_table.where(shown_table > 1e-4, 0.0).map("{:.2f}".format)

# %% [markdown]
# The head's three structural zeros are exact up to rounding. Each planted fault shows in its own
# columns only, which the cell asserts (of the yes/no column, which is bad for all, see below): the liking for places breaks order symmetry and, because places know
# nothing of tickets, calibration, and averaging over orders removes both; crowd-shyness breaks the two
# columns about sets, but neither order nor, visibly, calibration; timidity breaks calibration alone and
# keeps the other three as they were. **Four of five predictions say nothing about honesty.**
#
# ### Yes or no?
#
# One column is bad for all: asked "a rather than b?" as a yes/no question, the head disagrees
# with its own choice by {res}`07_plackett_luce:head_binary:.2f` on average. It was never trained on
# yes/no questions; but training cannot mend it either.
#
# :::{prf:proposition} A sum of embeddings cannot say yes
# :label: prp-pl-noul
#
# Let a policy's yes/no log-odds be $s(x) + t(w)$, a part from the state and a part from the
# wording. If they equal $u_a(x) - u_b(x)$ for the wording "a rather than b?" and $u_b(x) - u_a(x)$ for "b
# rather than a?", in every state $x$, then $u_a(x) - u_b(x)$ is the same in all states.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# Write $t_{ab}$ and $t_{ba}$ for the two wordings. Adding the two equations, $2 s(x) + t_{ab} + t_{ba} = 0$, so
# $s$ is constant. Subtracting them, $u_a(x) - u_b(x) = \tfrac12 (t_{ab} - t_{ba})$. $\square$
#
# The decision head is such a policy: its query is $W_q h_S + W_q h_Q$, a sum, so the log-odds of *true* are
# $(W_q h_S)^\top W_k (h_{\text{true}} - h_{\text{false}})/\sqrt r$ plus the same with $h_Q$.
# :::
#
# Train the head on yes/no questions too, in one wording and then in both, with true targets:

# %%
torch.set_default_dtype(torch.float32)
a, b = posterior[:, 0], posterior[:, 1]
share = np.where(a + b > 0, a / np.where(a + b > 0, a + b, 1), 0.5)
swap = [1, 0, 2, 3]
swapped = [
    (state, Choice(question.text, [question.options[k] for k in swap]))
    for state, question in items
]
asked = {"a rather than b?": (probes(items, "-"), share)}
asked["b rather than a?"] = (probes(swapped, "-"), 1 - share)
extra_cases, extra_targets, rows = list(cases), list(targets), {}
for trained, new in (
    ("choices", None),
    ("+ one wording", 0),
    ("+ both", 1),
):
    policy = head
    if new is not None:
        made_of, p_true = list(asked.values())[new]
        for kind in ("noul", "pair"):
            extra_cases += made_of[kind]
            extra_targets += [[v, 1 - v, 0, 0] for v in p_true]
        policy = train(extra_cases, np.array(extra_targets))
    rows[trained] = {}
    for wording, (made_of, _) in asked.items():
        yes = np.array(
            [p[0] for p in probabilities(policy, made_of["noul"], 256)]
        )
        one = np.array(
            [p[0] for p in probabilities(policy, made_of["pair"], 256)]
        )
        rows[trained][wording] = np.abs(yes - one).mean()
grid_items = [
    (items[k][0], asked[wording][0]["noul"][0][1])
    for k in (0, 1)
    for wording in asked
]
logit = np.array(
    [np.log(p[0] / p[1]) for p in probabilities(policy, grid_items)]
)
contrast = abs(logit[0] - logit[1] - logit[2] + logit[3])
print("state and wording add up in the log-odds:", bool(contrast < 1e-4))
wording_gap = pd.DataFrame(rows).T
save_numbers(
    "07_plackett_luce",
    {
        "yes_one": round(
            float(wording_gap.loc["+ one wording"].iloc[0]), 2
        ),
        "yes_both": round(float(wording_gap.loc["+ both"].mean()), 2),
    },
)
wording_gap.round(2)

# %% [markdown]
# One wording alone can be learned (gap {res}`07_plackett_luce:yes_one:.2f`), and a battery that asks in one
# direction only would report a success. Both cannot ({res}`07_plackett_luce:yes_both:.2f`). So for this head
# binary equivalence is not merely "to be measured": it is impossible, unless the question is encoded
# *together with* the state, as in the essay's packed encoder, where $h_Q$ depends on $x$.
#
# ## Preferences are not outcomes
#
# The lineage starts with preferences, so take it at its word: learn utilities from what people prefer, and
# read the softmax. Two truths with three options. In the first, rankings *are* Plackett–Luce. In the
# second, half of the staff loves A and finds B acceptable, half loves C and finds B acceptable; each half is
# Plackett–Luce, the mixture is not. The exact expected losses are minimised, for three kinds of question:
# *which is best*, *which of these two*, *rank all*.

# %%
torch.set_default_dtype(torch.float64)
orders = torch.tensor(orders_3)
halves = torch.tensor([[0.80, 0.18, 0.02], [0.02, 0.18, 0.80]])


def ranking_law(p):
    """Probabilities of the six rankings under Plackett-Luce, (6,)."""
    return (-plackett_luce_loss(p.log().expand(6, -1), orders)).exp()


laws = {
    "Plackett–Luce": ranking_law(torch.tensor([0.5, 0.3, 0.2])),
    "two camps": (ranking_law(halves[0]) + ranking_law(halves[1])) / 2,
}


def learn(law, ask):
    """Softmax of the best-fitting utilities for a law of rankings (R, 6)."""

    def loss(u):
        wide, ranked = u.repeat_interleave(6, 0), orders.repeat(len(u), 1)
        if ask == "rank all":
            value = plackett_luce_loss(wide, ranked)
        elif ask == "which is best":
            value = plackett_luce_loss(wide, ranked[:, :1])
        else:  # every pair of the ranking, equally often
            value = sum(
                bradley_terry_loss(wide, ranked[:, i], ranked[:, j]) / 3
                for i, j in ((0, 1), (0, 2), (1, 2))
            )
        return (law.reshape(-1) * value).sum()

    return torch.softmax(minimise(loss, (len(law), 3)), -1).numpy()


questions = ("which is best", "which of these two", "rank all")
first = {}
for name, law in laws.items():
    best = [float(law[orders[:, 0] == k].sum()) for k in range(3)]
    first[name, "first choices, true"] = best
    for ask in questions:
        first[name, ask] = learn(law[None], ask)[0]
fits = pd.DataFrame(first, index=list("ABC")).T
camps = fits.loc["two camps"]
honest = fits.loc["Plackett–Luce"].to_numpy()
assert np.abs(honest - [0.5, 0.3, 0.2]).max() < 1e-6
save_numbers(
    "07_plackett_luce",
    {
        "camp_true": round(camps.loc["first choices, true", "B"], 6),
        "camp_pair": round(camps.loc["which of these two", "B"], 5),
        "camp_rank": round(camps.loc["rank all", "B"], 5),
    },
)
fits.map("{:.3f}".format)

# %% [markdown]
# If rankings are Plackett–Luce, all three questions teach the same probabilities. If they are not, each kind of
# question teaches its own. Pairs make B the *most* probable option at {res}`07_plackett_luce:camp_pair:.3f`, although
# it is the first choice of {res}`07_plackett_luce:camp_true:.2f`; full rankings overstate it more,
# {res}`07_plackett_luce:camp_rank:.3f`. Only "which is best" is right by itself, because only its loss is the proper
# score of the thing asked. {cite:t}`siththaranjan2024` prove the general fact behind the pairs: with hidden
# differences among people, pairwise fitting ranks by Borda count ({ref}`ex-pl-2`).
#
# Where the model does hold, richer questions are worth having. The same number of people, asked three
# ways; the error is that of the fitted probabilities, over repeated samples:

# %%
people, repeats = 200, 300
law = laws["Plackett–Luce"].numpy()
counts = rng.multinomial(people, law / law.sum(), size=repeats)
rmse = {}
for ask in questions:
    p = learn(torch.tensor(counts / people), ask)
    squared = ((p - [0.5, 0.3, 0.2]) ** 2).sum(1)
    error = squared.std(ddof=1) / np.sqrt(repeats)
    rmse[ask] = {
        "mean squared error": squared.mean(),
        "standard error": error,
    }
ratio = rmse["which is best"]["mean squared error"]
ratio /= rmse["rank all"]["mean squared error"]
save_numbers(
    "07_plackett_luce",
    {"people": people, "rank_gain": round(ratio, 3)},
)
pd.DataFrame(rmse).T.map("{:.5f}".format)

# %% [markdown]
# A full ranking is worth about {res}`07_plackett_luce:rank_gain:.1f` single choices here. (The middle row uses all pairs of
# each ranking, so it saw as much.) That is the bargain of Plackett–Luce: efficiency if it holds, bias if it
# does not.
#
# ### A perfect preference model that lies about outcomes
#
# Last and most important: let Bradley–Terry fit the preferences (almost) exactly, and still ask whether its
# softmax is honest about what happens. A thousand tickets have known $q$. Three kinds of annotator compare
# options in pairs. The *single* one imagines a case in which one of the two is right, and names that one: it
# prefers $i$ to $j$ with probability $q_i/(q_i + q_j)$. The *panel* takes the majority of three such votes. The
# third has the same judgement and a *taste*: a bonus for the option listed first, a penalty for the last.

# %% mystnb={"figure": {"caption": "Utilities learned from unlimited pairwise preferences of three kinds of annotator, read as probabilities: the true chance that the top option is right, over the stated one. All three kinds of preference are reproduced almost exactly; only the single annotator's are honest about outcomes.", "name": "fig-pl-preferences"}, "image": {"alt": "Reliability curves. The single annotator lies on the diagonal. The majority of three lies below it: at stated 0.94 the truth is about 0.80. The annotator with a taste lies below too, most of all in the middle."}} tags=["hide-input"]
n, size = 1000, 4
q_many = 0.98 * rng.dirichlet(np.ones(size), n) + 0.02 / size
match = q_many[:, :, None] / (q_many[:, :, None] + q_many[:, None, :])
taste = np.array([1.2, 0.0, 0.0, -1.2])
tilted = q_many * np.exp(taste)
annotators = {
    "single": match,
    "majority of 3": match**2 * (3 - 2 * match),
    "with a taste": tilted[:, :, None]
    / (tilted[:, :, None] + tilted[:, None, :]),
}


def preference_loss(u, prefer):
    """Exact mean Bradley-Terry loss of all pairs, summed over tickets."""
    total = 0.0
    for i, j in permutations(range(size), 2):
        won, lost = torch.full((len(u),), i), torch.full((len(u),), j)
        weight = torch.tensor(prefer[:, i, j])
        total = total + (weight * bradley_terry_loss(u, won, lost)).sum()
    return total


utilities, misfit = {}, {}
for name, prefer in annotators.items():
    u = minimise(lambda u, p=prefer: preference_loss(u, p), (n, size))
    fitted = torch.sigmoid(u[:, :, None] - u[:, None, :]).numpy()
    utilities[name] = torch.log_softmax(u, -1).numpy()
    misfit[name] = np.abs(fitted - prefer).mean()

fig, ax = plots.figure(height=4.2)
ax.plot([0, 1], [0, 1], color=plots.INK, lw=1, ls=":")
paint = [plots.COLORS[k] for k in ("verdict", "broken", "rlvr")]
ends = []
for (name, log_p), color, marker in zip(
    utilities.items(), paint, "o^s", strict=True
):
    top = log_p.argmax(1)
    row = np.arange(n)
    bins = reliability(np.exp(log_p[row, top]), q_many[row, top], n_bins=10)
    full = bins.count > 10
    x, y = bins.confidence[full], bins.accuracy[full]
    ax.plot(x, y, color=color, marker=marker)
    ends.append((x[-1], y[-1], name, color))
ax.set(xlim=(0.25, 1), ylim=(0.25, 1))
plots.note_ends(ax, ends)
_ = ax.set(xlabel="stated for the top option", ylabel="true chance")

# %% [markdown]
# Can a temperature mend them? Fit one on the outcomes of half of the tickets, look at the other half:

# %%
half = np.arange(n) < n // 2
drawn = np.array([rng.choice(size, p=q) for q in q_many[half]])
rows = {}
for name, log_p in utilities.items():
    row, top = np.arange(n)[~half], log_p[~half].argmax(1)
    fit = fit_temperature(log_p[half], drawn)
    after = fit.apply(log_p[~half])
    before = np.exp(log_p[~half])
    rows[name] = {
        "misfit to preferences": misfit[name],
        "ECE": ece(before[np.arange(len(row)), top], q_many[row, top]),
        "KL to truth": kl(q_many[row], before).mean(),
        "temperature": fit.value,
        "ECE after": ece(after[np.arange(len(row)), top], q_many[row, top]),
        "KL after": kl(q_many[row], after).mean(),
    }
repair = pd.DataFrame(rows).T
save_numbers(
    "07_plackett_luce",
    {
        name.split()[0]: {
            "misfit": round(v["misfit to preferences"], 4),
            "ece": round(v["ECE"], 4),
            "kl": round(v["KL to truth"], 4),
            "temperature": round(v["temperature"], 3),
            "after": round(v["ECE after"], 3),
            "kl_after": round(v["KL after"], 4),
        }
        for name, v in rows.items()
    },
)
repair.where(repair > 1e-6, 0.0).map("{:.3f}".format)

# %% [markdown]
# All three preference models are excellent as preference models: the single annotator and the taster are reproduced exactly, the
# panel to {res}`07_plackett_luce:majority.misfit:.3f` on average. As statements about outcomes:
#
# - *Single*: honest, because each preference was a draw from the outcome distribution restricted to a pair.
# - *Majority of three*, a common way to clean preference data: ECE {res}`07_plackett_luce:majority.ece:.3f`, overconfident.
#   Cleaning the votes removed the very disagreement that carried the probability. A temperature of
#   {res}`07_plackett_luce:majority.temperature:.2f` nearly undoes it (KL {res}`07_plackett_luce:majority.kl:.3f` to
#   {res}`07_plackett_luce:majority.kl_after:.4f`).
# - *With a taste*: ECE {res}`07_plackett_luce:with.ece:.3f`, and after temperature {res}`07_plackett_luce:with.after:.3f` of ECE but
#   still {res}`07_plackett_luce:with.kl_after:.3f` of KL. One number cannot remove a preference for an option.
#
# A temperature is not free either: fitted on {res}`07_plackett_luce:half` outcomes, it moved the honest model from an ECE of zero to
# {res}`07_plackett_luce:single.after:.3f`.
#
# So the arrow "choice probability → automation threshold" is not a consequence of the model. It is one more
# measurement, on outcomes. And once outcomes are at hand, they can be trained on directly: with labels by the log
# loss, with one bit by RLCD or a verdict loss ({doc}`06_one_bit`).
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *A head with IIA that states the truth* on two forms whose NOTA odds differ. Item 5 says that there is none; the trained head
#   is within .03 of the computed limit. If you have one, its options see each other.
# - *The price may not matter.* On the ticket of this page it is {res}`07_plackett_luce:cost_log:.4f` nats, less
#   than most heads lose by finite data. It matters where doubt and NOTA meet. Mix your own forms into `best_fit` before you
#   change an architecture.
# - *IIA also buys something*: one number an option, new options without retraining, no order bias. A joint encoder gives these up for
#   what it gains, and the essay's third prediction should be read with care: a *violation* of IIA with NOTA in the list can
#   be competence, not noise.
# - *The losses are fine.* Nothing here speaks against preference data for ranking answers, where only the order of utilities is used.
#   And hidden differences among annotators can be modelled instead of averaged {cite:p}`siththaranjan2024`.
# - *The battery is a sample.* It looks at the first two options, one added option, a few rotations. The bent policies show that it
#   can fail; they do not show that it catches everything, and one-way yes/no wording is a hole we found above.
# - *The annotators are invented.* How far real preferences are from outcome draws is an empirical question per task. The way to
#   know is a reliability diagram on outcomes ({doc}`02_calibration`, {doc}`10_how_many_outcomes`).
# :::
#
# ## Exercises
#
# :::{exercise} The same queue twice
# :label: ex-pl-1
#
# A form lists "billing", "invoices" (the same team) and "bug"; billing and bug are equally likely. What does a head with IIA, right on
# {billing, bug}, say for the billing team? With $m$ names for it?
# :::
#
# :::{solution} ex-pl-1
# :label: sol-pl-1
# :class: dropdown
#
# Names of one meaning get about the same utility, so each has the same odds against "bug", 1 : 1, and together they have
# $m : 1$, that is $m/(m+1)$: 2/3 for two names where 1/2 is true. Options must be exclusive *and* listed once; merging synonyms is the
# caller's duty.
# :::

# %% tags=["hide-cell"]
for m in (1, 2, 5):
    same = torch.zeros(m + 1)  # m names of billing, then bug
    each = torch.arange(m)[:, None]
    team = (-plackett_luce_loss(same.expand(m, -1), each)).exp().sum()
    assert abs(team - m / (m + 1)) < 1e-12
    print(m, "names:", round(float(team), 3))

# %% [markdown]
# :::{exercise} Pairs count like Borda
# :label: ex-pl-2
#
# Every pair is asked equally often and $i$ beats $j$ with probability $P_{ij}$, Bradley–Terry or not. Show that the best fit
# satisfies $\sum_{j \ne i} \sigma(u_i - u_j) = \sum_{j \ne i} P_{ij}$ for each $i$, and that it therefore ranks the options by their mean win rate.
# :::
#
# :::{solution} ex-pl-2
# :label: sol-pl-2
# :class: dropdown
#
# The loss is $-\sum_{i \ne j} P_{ij} \log \sigma(u_i - u_j)$. Its derivative in $u_i$ is
# $\sum_{j \ne i} [\sigma(u_i - u_j) - P_{ij}]$, since $P_{ij} + P_{ji} = 1$. At the minimum it is zero. If $u_i > u_k$, then
# $\sigma(u_i - u_j) > \sigma(u_k - u_j)$ for every $j$, and adding $\sigma(0) = \tfrac12$ on both sides, so the left-hand side is larger for $i$:
# the order of the utilities is that of the win rates, the Borda count. In the two camps B wins most:
# :::

# %% tags=["hide-cell"]
law = laws["two camps"].numpy()
place = orders.numpy().argsort(1)
beats = np.array(
    [
        [law[place[:, i] < place[:, j]].sum() for j in range(3)]
        for i in range(3)
    ]
)
wins = beats.sum(1)
u = np.log(camps.loc["which of these two"].to_numpy())
fitted = 1 / (1 + np.exp(u[None, :] - u[:, None]))
assert np.abs(fitted.sum(1) - 0.5 - wins).max() < 1e-6
assert (u.argsort() == wins.argsort()).all() and wins.argmax() == 1
pd.DataFrame({"mean win rate": (wins / 2).round(3)}, index=list("ABC"))

# %% [markdown]
# :::{exercise} Long and short forms
# :label: ex-pl-3
#
# A catalogue has $m$ equally likely queues and a form lists $k$ of them and NOTA. What utility must NOTA have, relative to a queue, for
# each $k$? Is there an IIA policy that is right on the forms of one length? Of two?
# :::
#
# :::{solution} ex-pl-3
# :label: sol-pl-3
# :class: dropdown
#
# NOTA is right with probability $(m - k)/m$ and a listed queue with $1/m$: the odds are $m - k$, so $u_N - u = \log(m - k)$. One length: yes,
# for all forms at once (the centre of {numref}`fig-pl-price`, free). Two lengths: no, since $m - k$ differs; a single number
# understates NOTA on short forms and overstates it on long ones. The best fit for $m = 4$ and all
# forms of one to three queues:
# :::

# %% tags=["hide-cell"]
even = np.full(4, 0.25)
parts = [forms(even, k) for k in (1, 2, 3)]
alone = [kl(t, best_fit(s, t)).max() for s, t in parts]
assert max(alone) < 1e-9
mask, true = (np.concatenate(part) for part in zip(*parts, strict=True))
said = best_fit(mask, true)
lengths = mask.sum(1) - 1
table = {
    k: {
        "NOTA, true": true[lengths == k, -1].mean(),
        "NOTA, best IIA": said[lengths == k, -1].mean(),
    }
    for k in (1, 2, 3)
}
assert (
    table[1]["NOTA, best IIA"] < 0.75 and table[3]["NOTA, best IIA"] > 0.25
)
pd.DataFrame(table).T.rename_axis("queues listed").round(3)

# %% [markdown]
# :::{exercise} Mend it with the catalogue
# :label: ex-pl-4
#
# The trained head knows all four departments. Without new training, answer every form of two departments and NOTA rightly.
# :::
#
# :::{solution} ex-pl-4
# :label: sol-pl-4
# :class: dropdown
#
# Ask for all four, report the listed ones as they are, and give NOTA the sum of the rest. Each atom keeps one utility, so the
# *catalogue* has IIA in peace; NOTA is an event in it, and its probability is a sum, not a softmax entry. It works when the catalogue is
# known and complete. Otherwise NOTA needs a number that sees the list.
# :::

# %% tags=["hide-cell"]
full = np.array(probabilities(head, items, 256))
summed = []
for p in full:
    for listed in combinations(range(4), 2):
        summed.append(1 - p[list(listed)].sum())
by_sum = np.abs(np.array(summed) - true_nota)
by_head = np.abs(stated_nota - true_nota)
assert by_sum.max() < 0.05 and by_head.max() > 0.2
save_numbers("07_plackett_luce", {"half": int(half.sum())})
print(
    f"largest error of NOTA: head {by_head.max():.2f}, sum {by_sum.max():.2f}"
)

# %% [markdown]
# ## Further reading
#
# {cite:t}`bradley1952` and {cite:t}`plackett1975` for the two models, {cite:t}`luce1959` for the axiom and what it implies, {cite:t}`hunter2004` for
# fitting them with proofs of convergence. {cite:t}`llamaberry2024` for the pairwise reward model with which the essay's lineage starts. Against a
# single utility: {cite:t}`siththaranjan2024`.
#
# Next: {doc}`08_stated_confidence`, where the probability is no longer read from the policy but said by it.
