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
# # The identity and its variance
#
# **Question.** {prf:ref}`thm-identity` is a statement about a mean. How noisy is one
# step of RLCD, and what lowers the noise: a baseline, more actions per question, or
# different actions?
#
# **Answer.** RLCD is its own baseline. At calibration, $p = q$, nothing computed from the actions
# alone can lower its variance, leave-one-out usually raises it, and one action per
# question, with nothing subtracted but $p_a$, is close to the cheapest way to spend an
# outcome.
#
# **After this page you can** read a variance per outcome, choose a group size, say in which
# corner a leave-one-out baseline does help, and correct for actions that are forced to
# differ.
#
# **Running time.** Half a minute on any machine (CPU, T4 or A100 make no
# difference); nothing is downloaded.

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

# %% mystnb={"figure": {"caption": "Variance of RLCD with a leave-one-out baseline over its variance without, four actions judged by one shared label, for every policy over three options. Left: a calibrated policy, $p = q$. Right: the truth is fixed at the star, mostly C. Blue: the baseline adds noise; ochre: it removes some. The grey line is a draw; the cross is the policy (.49, .49, .02).", "name": "fig-variance-map"}, "image": {"alt": "Two triangles of policies over options A, B and C. Left, calibrated policies: the whole triangle is blue, leave-one-out is noisier everywhere. Right, truth near corner C: almost everything is blue, but a small ochre lens lies at the middle of the edge between A and B, opposite the truth, where leave-one-out is less noisy."}} tags=["hide-input"]
from itertools import permutations

import numpy as np
import pandas as pd
import sympy
import torch
from matplotlib.colors import LinearSegmentedColormap, to_rgb

from rlcd_core import exact, plots
from rlcd_core.records import save_numbers
from rlcd_core.rewards import (
    OBJECTIVES,
    Feedback,
    inclusion_probabilities,
    lambda_mix,
)

plots.use_style()
torch.set_default_dtype(torch.float64)
rng = np.random.default_rng(seed)
corner_p, corner_q = np.array([0.49, 0.49, 0.02]), np.array([0.05, 0.05, 0.9])


def loo_ratio(p, q, group):
    """Variance with leave-one-out over variance without, (N,); shared label."""
    p, q = torch.tensor(np.atleast_2d(p)), torch.tensor(np.atleast_2d(q))
    with_it, without = (exact.group_trace(p, q, group, b) for b in (True, False))
    return (with_it / without).numpy()


blue, ochre = (to_rgb(plots.COLORS[family]) for family in ("rlcd", "broken"))
shades = [(*ochre, 0.95), (*ochre, 0.0), (*blue, 0.0), (*blue, 0.95)]
stops = list(zip((0, 0.5, 0.5, 1), shades, strict=True))
two_sided = LinearSegmentedColormap.from_list("two_sided", stops)
fig, axes = plots.figure(1, 2, height=4.1)
truths = {"calibrated, p = q": None, "truth at the star": corner_q}
for ax, (title, q) in zip(axes, truths.items(), strict=True):
    data = plots.prepare_simplex(
        lambda p, q=q: np.log2(loo_ratio(p, p if q is None else 0 * p + q, 4)),
        resolution=90,
        margin=0.004,
    )
    shown = plots.SimplexData(data.p, data.value.clip(-1.999, 1.999))
    plots.plot_simplex(ax, shown, levels=np.linspace(-2, 2, 17), fill=True)
    heat = ax.collections[0]
    heat.set_cmap(two_sided)
    if q is not None:
        even = {"levels": [0], "colors": plots.INK, "linewidths": 1.5}
        ax.tricontour(*plots.to_xy(data.p).T, data.value, **even)
        ax.plot(*plots.to_xy(q), marker="*", ms=15, color=plots.INK, mec="none")
        ax.plot(*plots.to_xy(corner_p), marker="x", ms=8, mew=2, color=plots.INK)
    _ = ax.set_title(title, pad=14)
bar = fig.colorbar(heat, ax=list(axes), location="bottom", aspect=36, shrink=0.7)
bar.outline.set_visible(False)
bar.set_ticks([-2, -1, 0, 1, 2], labels=["¼", "½", "1", "2", "4 or more"])
bar.set_label("variance with leave-one-out ÷ without")

# %% [markdown]
# ## A ticket, and four looks at it
#
# A ticket can go to four teams, and the policy is honest about it: it states
# $p = q = (.5, .3, .15, .05)$. You can afford four outcomes. You may act four times on this ticket
# (if its label is known, that one label judges all four actions) and subtract from each reward the
# mean of the other three: the leave-one-out baseline {cite:p}`kool2019,ahmadian2024`. Or you take four
# tickets, act once on each, and subtract nothing.
#
# An honest policy should not move, so whatever it moves is noise. Suppose the four actions
# were A, A, B, C and the label is A:

# %%
case = np.array([0.5, 0.3, 0.15, 0.05])
bits = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
told = Feedback(torch.tensor([[0, 0, 1, 2]]), bits)


def push(objective):
    """Direction in logit space of this one group."""
    leaf = torch.tensor(np.log(case))[None].requires_grad_(True)
    log_p = torch.log_softmax(leaf, -1)
    OBJECTIVES[objective](log_p, told).sum().backward()
    return -leaf.grad[0].numpy()


pushes = {"nothing subtracted": "rlcd", "leave-one-out": "rlcd_loo"}
pushes = {label: push(name) for label, name in pushes.items()}
pd.DataFrame(pushes, index=["A", "B", "C", "D"]).T.round(3)

# %% [markdown]
# One group proves nothing. To compare, average over all groups, and charge each estimator
# for the outcomes that it used.
#
# :::{prf:definition} Variance per outcome
# :label: def-variance-outcome
#
# Let $D$ be the direction in logit space that one group of $G$ actions gives (the mean
# over the group). Its *variance* is the trace of its covariance, $\mathbb{E}\|D -
# \mathbb{E}D\|^2$. Its **variance per outcome** is $G$ times that: $n$ outcomes, spent on $n/G$
# independent questions, leave the mean direction with this variance divided by $n$.
# :::
#
# `exact.moments` computes it by running every group and every label through the training
# loss, with its probability. *Shared label* means that one $y$ judges the whole
# group, *independent outcomes* that each action meets its own draw.
#
# ## What the subtraction is
#
# :::{prf:theorem} RLCD is RLVR plus half a Gini bonus, sampled
# :label: thm-gini
#
# Let $a \sim p$, $g_a = \nabla \log p_a$, and let $b$ be any number that does not depend
# on $a$.
#
# (a) $-\tfrac12 \operatorname{Brier}(p, y)$ is, for $a \sim p$, the expected outcome
# $\mathbb{E}[c]$ plus the Gini entropy $1 - \|p\|^2$ at weight exactly $\tfrac12$, minus 1.
#
# (b) For every $\lambda$ the estimator
#
# $$
# D_{\lambda, b} = (c - \lambda p_a - b)\, g_a - \tfrac{1 - \lambda}{2} \nabla \|p\|^2
# $$ (eq-lambda-mix)
#
# has mean $-\tfrac12 \nabla \operatorname{Brier}(p, y)$. $\lambda = 1, b = 0$ is RLCD;
# $\lambda = 0$ is RLVR plus the exact gradient of the bonus.
#
# (c) Sample by sample, $(c - p_a)\, g_a = \nabla [c \log p_a - p_a]$: RLCD's step is that of
# a Poisson log-likelihood of the outcome with mean $p_a$.
#
# (d) The mean of the whole group, one's own reward included, is no such $b$: subtracting
# it gives $\frac{G-1}{G}$ times the leave-one-out step, in every sample.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# (a) By {eq}`eq-brier`, $-\tfrac12 \operatorname{Brier} = p_y - \tfrac12\|p\|^2 - \tfrac12
# = \mathbb{E}_{a \sim p}[c] + \tfrac12 (1 - \|p\|^2) - 1$.
#
# (b) $\mathbb{E}[g_a] = \sum_a \nabla p_a = \nabla 1 = 0$, so $b$ drops out.
# $\mathbb{E}[c\, g_a] = \nabla p_y$ and $\mathbb{E}[p_a g_a] = \sum_a p_a \nabla p_a =
# \tfrac12 \nabla \|p\|^2$. Together $\nabla p_y - \tfrac{\lambda}{2} \nabla \|p\|^2 -
# \tfrac{1 - \lambda}{2} \nabla \|p\|^2$, in which $\lambda$ cancels.
#
# (c) $\nabla [c \log p_a - p_a] = c\, g_a - \nabla p_a$, and $\nabla p_a = p_a g_a$.
#
# (d) With $b_i = \frac{1}{G - 1}\sum_{j \ne i} r_j$ the group mean is $\bar r = \frac{1}{G}
# r_i + \frac{G - 1}{G} b_i$, so $r_i - \bar r = \frac{G-1}{G}(r_i - b_i)$. $\square$
# :::
#
# That no other weight of the bonus is proper is {prf:ref}`prp-weight`. The claim (b),
# symbolically for two and three options, with $\lambda$ and $b$ left as letters; the
# outcome enters linearly, so its chance $q_a$ stands for it:

# %%
lam, b = sympy.symbols("lambda b")
left_over = set()
for size in (2, 3):
    p_s, q_s = sympy.symbols(f"p1:{size}"), sympy.symbols(f"q1:{size}")
    p_s = sympy.Matrix([*p_s, 1 - sum(p_s)])
    q_s = sympy.Matrix([*q_s, 1 - sum(q_s)])
    jacobian = sympy.diag(*p_s) - p_s * p_s.T
    total = -(1 - lam) * jacobian * p_s
    for a in range(size):
        score = sympy.eye(size)[:, a] - p_s
        total += p_s[a] * (q_s[a] - lam * p_s[a] - b) * score
    left_over |= set((total - jacobian * (q_s - p_s)).expand())
print("what is left:", left_over)

# %% [markdown]
# And by enumeration through the objectives that train, for random policies, truths, weights and
# constants, two to six options, one and two actions, both ways of judging:

# %%
gaps = []
for size in range(2, 7):
    for group, shared in ((1, True), (2, True), (2, False)):
        p, q = rng.dirichlet(np.ones(size), 2)
        mix = lambda_mix("mix", rng.uniform(-1, 2), constant=rng.normal())
        wanted = p * ((q - p) - p @ (q - p))
        names = ("rlcd", "rlvr_gini", "rlcd_poisson")
        for objective in (mix, *(OBJECTIVES[n] for n in names)):
            got = exact.moments(objective, p, q, group, shared).mean.numpy()
            gaps.append(np.abs(got - wanted).max())
save_numbers("04_variance", {"cases": len(gaps)})
print(len(gaps), "cases, all within 1e-12:", max(gaps) < 1e-12)

# %% [markdown]
# All of {eq}`eq-lambda-mix` has one mean, so only the variance can choose. One would expect
# the exact penalty ($\lambda = 0$) to win, since it is not sampled. It is the other way round.
#
# ## Its own baseline
#
# :::{prf:theorem} RLCD is its own baseline
# :label: thm-own-baseline
#
# Let $p = q$ with every $p_k > 0$.
#
# (a) The reward $c - p_a$ has mean 0 given the action, for every action. Hence adding
# any term $N(a)$ of mean zero that looks at the action only (a baseline, another
# $\lambda$) raises the variance by exactly $\mathbb{E}\|N(a)\|^2$.
#
# (b) Within {eq}`eq-lambda-mix`, $\lambda = 1, b = 0$ has the least variance. It is the
# only one that does, if and only if $K \ge 3$ and $p$ is not uniform. For $K = 2$ every
# $\lambda$ with $b = 2(1 - \lambda) p_1 p_2$ ties, and for uniform $p$ every $\lambda$ with
# $b = (1 - \lambda)/K$.
#
# (c) With independent outcomes, a baseline computed from the other actions of the group
# and their outcomes, leave-one-out among them, only adds variance.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# (a) $\mathbb{E}[c - p_a \mid a] = q_a - p_a = 0$. So for $M = (c - p_a) g_a$,
# $\mathbb{E}[M^\top N(a)] = \mathbb{E}\bigl[\mathbb{E}[c - p_a \mid a]\, g_a^\top
# N(a)\bigr] = 0$, and $\mathbb{E}\|M + N\|^2 = \mathbb{E}\|M\|^2 + \mathbb{E}\|N\|^2$; both
# means are zero.
#
# (b) In logits $g_a = e_a - p$ and $\tfrac12 \nabla\|p\|^2 = Jp$. With $s = 1 - \lambda$,
# $D_{\lambda, b} = M + N$ for $N(a) = (s p_a - b) g_a - s J p$, of mean zero. By (a) the
# variance is least where $N(a) = 0$ for all $a$. If $s = 0$ this needs $b = 0$, as $g_a \ne
# 0$. If $s \ne 0$, put $\beta = b/s$: $(p_a - \beta) g_a = Jp$ for all $a$. The only linear
# relation among $g_1, \dots, g_K$ is $\sum_a p_a g_a = 0$, so for $K \ge 3$ any two of
# them are independent, and two multiples of them can agree only if both are zero: $p_a =
# \beta$ for all $a$. Then $p$ is uniform, $\beta = 1/K$, and indeed $J p = 0$. For $K = 2$,
# $g_1 = p_2 d$, $g_2 = -p_1 d$ and $Jp = p_1 p_2 (p_1 - p_2) d$ with $d = (1, -1)$. The two
# conditions $(p_1 - \beta) p_2 = -(p_2 - \beta) p_1 = p_1 p_2 (p_1 - p_2)$ have the common
# solution $\beta = 2 p_1 p_2$.
#
# (c) Let $M_i = (c_i - p_{a_i}) g_{a_i}$ and $N_i = b_i g_{a_i}$, $b_i$ a function of the
# other actions and outcomes. $\mathbb{E}[M_i^\top N_i] = 0$: given $a_i$ and $b_i$ the
# factor $c_i - p_{a_i}$ has mean 0. For $i \ne j$, $g_{a_j}$ is independent of $M_i$ and
# $b_j$ and has mean 0, so $\mathbb{E}[M_i^\top N_j] = 0$. The sums are uncorrelated, and
# the variance of $\sum_i (M_i - N_i)$ is that of $\sum_i M_i$ plus that of $\sum_i N_i$.
# $\square$
# :::
#
# Part (a) is the reason for the chapter's answer. A baseline subtracts from the reward what was
# to be expected of it {cite:p}`williams1992,greensmith2004`, but must not depend on the action,
# since that changes the mean. RLCD subtracts the stated probability *of the very action taken*.
# The change of the mean is the point, since it supplies the Gini term, and at $p = q$ the same
# subtraction is the perfect baseline. The map of (b) for the ticket:

# %% mystnb={"figure": {"caption": "Variance of one outcome's step in the family {eq}`eq-lambda-mix` for the honest four-team policy. All points have the same mean. The dot is RLCD, {res}`04_variance:table.rlcd_1:.3f`; RLVR plus exact Gini without baseline has {res}`04_variance:table.gini_1:.3f`.", "name": "fig-variance-family"}, "image": {"alt": "Contours over the weight lambda from -0.5 to 2.5 and the constant b from -0.4 to 0.4 are tilted ellipses around one lowest point, lambda 1 and b 0, which is RLCD. A triangle at lambda 0, b 0 marks RLVR plus exact Gini, several contours higher."}} tags=["hide-input"]
lams, consts = np.linspace(-0.5, 2.5, 25), np.linspace(-0.4, 0.4, 17)
surface = [
    [exact.moments(lambda_mix("m", w, constant=k), case, case).trace for w in lams]
    for k in consts
]
fig, ax = plots.figure(height=3.0)
rings = ax.contour(
    lams,
    consts,
    surface,
    levels=[0.12, 0.13, 0.15, 0.18, 0.22, 0.27, 0.33, 0.4],
    colors=plots.INK,
    linewidths=0.9,
)
ax.clabel(rings, fmt="%.2f", fontsize=9)
dots = {"rlcd": (1, "RLCD"), "rlvr_gini": (0, "RLVR +\nexact Gini")}
for arm, (x, name) in dots.items():
    look = plots.arm_style(arm)
    ax.plot(x, 0, marker=look.marker, ms=9, color=look.color)
    plots.note(ax, name, x, 0, xytext=(9, 0), color=look.color)
_ = ax.set(xlabel="λ, sampled share of the penalty", ylabel="b, constant baseline")

# %% [markdown]
# ## The price of leave-one-out
#
# Part (c) leaves out the shared label, which ties the baseline to the reward: if an action
# is right, so is every other that took the same option. There the balance can be written down for
# any $p$ and $q$.
#
# :::{prf:proposition} What leave-one-out costs under a shared label
# :label: prp-loo-price
#
# Given $y$, let $r_a = 1[a = y] - p_a$, $m$ and $s^2$ its mean and variance over $a \sim p$,
# $V = \mathbb{E}\|g_a\|^2 = 1 - \|p\|^2$ and $W = \mathbb{E}[r_a \|g_a\|^2]$, and let
# $\bar D = J(e_y - p)$. Leave-one-out changes the variance of the group's direction by
# $1/G$ times the average over $y \sim q$ of
#
# $$
# V \Bigl(m^2 + \frac{s^2}{G - 1}\Bigr) + \frac{\|\bar D\|^2}{G - 1} - 2\, m W .
# $$ (eq-loo-price)
#
# For $K = 2$ every term is non-negative: leave-one-out never wins.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# Fix $y$; then actions are independent. With $M_i = r_i g_i$ and $N_i = b_i g_i$, $b_i =
# \frac{1}{G-1} \sum_{j \ne i} r_j$, the second moments of $\frac1G\sum (M_i - N_i)$ and
# $\frac1G\sum M_i$ differ by $\frac{1}{G^2}\sum_{ij} \mathbb{E}[N_i^\top N_j - 2 M_i^\top
# N_j]$; the means agree. *Same index:* $b_i$ is independent of $a_i$ with mean $m$ and second
# moment $m^2 + s^2/(G - 1)$, which gives $V(m^2 + s^2/(G-1)) - 2 m W$. *Different indices:*
# $\mathbb{E}[M_i^\top N_j] = 0$, since $g_j$ is independent of $M_i$ and $b_j$ and has mean
# 0. In $\mathbb{E}[b_i b_j\, g_i^\top g_j]$ only the product of $r_j$ in $b_i$ and $r_i$ in
# $b_j$ survives, for the same reason: $(G-1)^{-2}\, \mathbb{E}[r_i g_i]^\top
# \mathbb{E}[r_j g_j] = (G-1)^{-2} \|\bar D\|^2$. There are $G$ pairs of the first kind and
# $G(G-1)$ of the second; divide by $G^2$.
#
# For $K = 2$ and $y = 1$: $r = (p_2, -p_2)$, so $m = p_2 (p_1 - p_2)$, and $\|g_1\|^2 = 2
# p_2^2$, $\|g_2\|^2 = 2 p_1^2$ give $W = 2 p_1 p_2^2 (p_2 - p_1)$. Hence $-2mW = 4 p_1 p_2^3
# (p_1 - p_2)^2 \ge 0$, and likewise for $y = 2$. $\square$
# :::
#
# Read it for large groups, where it becomes $V m^2 - 2 m W$. The best constant baseline given
# $y$ is $W/V$, the mean reward weighted by the squared lengths $\|g_a\|^2$
# {cite:p}`greensmith2004`; leave-one-out offers $m$, the plain mean. Given $y$ it helps if $m$
# is nearer to $W/V$ than zero is. Rare actions have a long $g_a$ and common ones a short one, so
# plain mean and weighted mean often disagree, even in sign.
#
# The formula against enumeration, and the four-option ticket with it:


# %%
def loo_price(p, q, group):
    """The proposition's formula, divided by G."""
    square, total = p @ p, 0.0
    for y, chance in enumerate(q):
        r = np.eye(len(p))[y] - p
        long = 1 - 2 * p + square  # squared score lengths
        m, weighted = p @ r, p @ (r * long)
        spread, mean = p @ r**2 - m**2, p * (r - m)
        extra = ((1 - square) * spread + mean @ mean) / (group - 1)
        total += chance * ((1 - square) * m**2 - 2 * m * weighted + extra)
    return total / group


gaps = []
for size in (2, 3, 4):
    for group in (2, 3, 4):
        p, q = rng.dirichlet(np.ones(size), 2)
        pair = [OBJECTIVES[name] for name in ("rlcd_loo", "rlcd")]
        loo, plain = (exact.moments(o, p, q, group).trace for o in pair)
        gaps.append(abs(loo - plain - loo_price(p, q, group)))
print(len(gaps), "cases, all within 1e-12:", max(gaps) < 1e-12)

# %% [markdown]
# How often does it help? Policies and truths drawn uniformly from the simplex, three actions,
# shared label, {res}`04_variance:draws:,` draws for each $K$ (by the closed form
# `exact.group_trace`, which the tests compare with enumeration):

# %%
draws, rows = 10_000, {}
for size in (2, 3, 4, 5):
    p, q = rng.dirichlet(np.ones(size), (2, draws))
    ratio, honest = loo_ratio(p, q, 3), loo_ratio(p, p, 3)
    rows[f"K = {size}"] = {
        "leave-one-out is noisier, % of draws": 100 * (ratio > 1).mean(),
        "median ratio": np.median(ratio),
        "least": ratio.min(),
        "least at p = q": honest.min(),
    }
corners = {
    "split": loo_ratio(corner_p, corner_q, 4)[0],
    "single": loo_ratio([0.8, 0.1, 0.1], [0, 0.5, 0.5], 4)[0],
}
save_numbers("04_variance", {"draws": draws, "corners": corners})
pd.DataFrame(rows).T.round(2)

# %% [markdown]
# **Where it does help.** The mass must be split over *several wrong* options: at the cross in
# {numref}`fig-variance-map`, $p = (.49, .49, .02)$ and $q = (.05, .05, .9)$, the ratio is
# {res}`04_variance:corners.split:.2f`. Whichever wrong option is taken, the reward is about
# $-.49$, and subtracting it removes a common push. Over-confidence in a *single* wrong option
# is not such a case: $p = (.8, .1, .1)$, $q = (0, .5, .5)$ gives
# {res}`04_variance:corners.single:.1f`, because the common action has a short $g_a$ and there
# is little to remove.
#
# **At $p = q$** leave-one-out under a shared label only added noise in every draw above, but that
# is no theorem. With many rare options and a large group it wins by a hair:

# %%
crowds = {
    "3 of .2, 16 of .025": np.r_[[0.2] * 3, [0.025] * 16],
    "1 of .2, 100 of .008": np.r_[[0.2], [0.008] * 100],
}
sizes = (4, 8, 16, 24, 64)
crowd = {
    name: {f"G = {g}": loo_ratio(p, p, g)[0] for g in sizes}
    for name, p in crowds.items()
}
save_numbers(
    "04_variance",
    {
        "crowd": crowd["3 of .2, 16 of .025"]["G = 64"],
        "crowd_24": crowd["1 of .2, 100 of .008"]["G = 24"],
    },
)
pd.DataFrame(crowd).T.round(3)

# %% [markdown]
# ({res}`04_variance:crowd:.3f` and {res}`04_variance:crowd_24:.3f`: true, and of no
# practical use.)
#
# ## Variance per outcome
#
# Everything so far, and three estimators to come, for the honest ticket. All have mean zero
# here, so all of it is noise:

# %% mystnb={"figure": {"caption": "Variance per outcome at $p = q = (.5, .3, .15, .05)$, by exact enumeration. Blue: RLCD's reward; red: RLVR plus the exact Gini gradient; purple: the label is revealed. G is the number of actions on one question. LOO: leave-one-out baseline; HT: Horvitz-Thompson. Only the minimum-variance control lies below one action without a baseline, and hardly.", "name": "fig-variance-bars"}, "image": {"alt": "Horizontal bars of variance per outcome. Lowest, about 0.115 to 0.117: minimum-variance control, RLCD with one action, and RLCD with independent outcomes. Then 0.159 residual Horvitz-Thompson, about 0.16 to 0.19 for leave-one-out with independent outcomes, RLVR plus Gini and three exclusive verdicts. Highest, 0.31 to 0.40: four actions under a shared label, without baseline, with leave-one-out, and RLVR plus Gini with leave-one-out."}} tags=["hide-input"]
entries = [
    ("control", "G=1, exclusive control", "exclusive_control", 1, True, "rlcd"),
    ("rlcd_1", "G=1, RLCD", "rlcd", 1, True, "rlcd"),
    ("gini_1", "G=1, RLVR + Gini", "rlvr_gini", 1, True, "rlvr"),
    ("ht_free_2", "G=2, different, indep.", "residual_ht", 2, False, "rlcd"),
    ("ht_2", "G=2, different, shared", "residual_ht", 2, True, "rlcd"),
    ("rlcd_2", "G=2, shared", "rlcd", 2, True, "rlcd"),
    ("reveal", "G=3, label revealed", "exclusive_brier", 3, True, "label"),
    ("free_4", "G=4, independent", "rlcd", 4, False, "rlcd"),
    ("loo_free_4", "G=4, indep., LOO", "rlcd_loo", 4, False, "rlcd"),
    ("rlcd_4", "G=4, shared", "rlcd", 4, True, "rlcd"),
    ("loo_4", "G=4, shared, LOO", "rlcd_loo", 4, True, "rlcd"),
    ("gini_loo_4", "G=4, RLVR + Gini, LOO", "rlvr_gini_loo", 4, True, "rlvr"),
]
table, bars, paint = {}, {}, []
for key, label, name, group, shared, family in entries:
    apart = name in ("residual_ht", "exclusive_brier")
    m = exact.moments(
        OBJECTIVES[name], case, case, group, shared, replacement=not apart
    )
    assert m.mean.abs().max() < 1e-14
    table[key] = bars[label] = m.trace_per_outcome
    paint.append(plots.COLORS[family])
save_numbers("04_variance", {"table": table})
fig, ax = plots.figure(height=4.6)
plots.plot_bars(ax, bars, "variance per outcome", paint)
_ = ax.set(xlim=(0, 0.46))

# %% [markdown]
# Three things stand out.
#
# - **One action, no baseline: {res}`04_variance:table.rlcd_1:.3f`.** Four actions under a
#   shared label cost {res}`04_variance:table.rlcd_4:.3f` per outcome, since the label is drawn
#   once and its noise is not averaged; with leave-one-out
#   {res}`04_variance:table.loo_4:.3f`. With independent outcomes a group of four costs the same
#   as four questions, {res}`04_variance:table.free_4:.3f`, and the baseline spoils that too,
#   {res}`04_variance:table.loo_free_4:.3f`.
# - **The exact penalty is the noisier road.** RLVR plus exact Gini:
#   {res}`04_variance:table.gini_1:.3f` for one action, against {res}`04_variance:table.rlcd_1:.3f`.
#   (Two RLCD actions under a shared label cost just as much, and this is exact: both exceed one RLCD
#   action by the variance of the full-label gradient, $B$ in {ref}`ex-variance-3`.) A leave-one-out
#   baseline does not bring it level ({res}`04_variance:table.gini_loo_4:.3f` against
#   {res}`04_variance:table.rlcd_4:.3f` at $G = 4$).
# - **Little is left to gain.** Only two entries are lower, and both by a hair: the control of
#   the next section, {res}`04_variance:table.control:.4f`, and two different actions with
#   independent outcomes, {res}`04_variance:table.ht_free_2:.4f`, against
#   {res}`04_variance:table.rlcd_1:.4f`.
#
# A real log of decisions has one outcome per case. It needs no baseline at all.
#
# **Simulation.** The same traces from sampled groups, run through the training losses:

# %%
n, sampled = 40_000, {}
settings = {
    "RLCD, G = 1": ("rlcd", 1, True),
    "RLCD, G = 4, shared": ("rlcd", 4, True),
    "with leave-one-out": ("rlcd_loo", 4, True),
    "the same, independent": ("rlcd_loo", 4, False),
}
for label, (name, group, shared) in settings.items():
    actions = rng.choice(4, size=(n, group), p=case)
    right = rng.choice(4, size=(n, 1 if shared else group), p=case)
    outcomes = torch.tensor(1.0 * (actions == right))
    seen = Feedback(torch.tensor(actions), outcomes)
    leaf = torch.tensor(np.log(case)).repeat(n, 1).requires_grad_(True)
    OBJECTIVES[name](torch.log_softmax(leaf, -1), seen).sum().backward()
    squares = group * leaf.grad.square().sum(1).numpy()  # the mean is 0
    m = exact.moments(OBJECTIVES[name], case, case, group, shared)
    known, error = m.trace_per_outcome, squares.std(ddof=1) / np.sqrt(n)
    sampled[label] = {
        "enumerated": known,
        "sampled": squares.mean(),
        "standard error": error,
        "gap in standard errors": (squares.mean() - known) / error,
    }
worst = max(abs(row["gap in standard errors"]) for row in sampled.values())
save_numbers("04_variance", {"worst_z": worst, "n_sampled": n})
pd.DataFrame(sampled).T.round(4)

# %% [markdown]
# The largest of the four gaps is {res}`04_variance:worst_z:.1f` standard errors at
# {res}`04_variance:n_sampled:,` groups.
#
# ## Different actions, and options that exclude each other
#
# To take the same option twice under one label teaches nothing new, so draw the group
# *without* replacement. Then the chances change. We correct by the weights of {cite:t}`horvitz1952`,
# applied to the residual $c - p_a$; {cite:t}`kool2020` derive another correction for policy gradients.
#
# :::{prf:theorem} Residual Horvitz–Thompson, and the most one outcome can do
# :label: thm-residual-ht
#
# Draw a set $S$ of $G$ different options, one after another in proportion to $p$, and let $\pi_k$ be
# the chance that $k \in S$; outcomes do not influence the draw.
#
# (a) For any joint law of the outcomes with $\mathbb{E}[c_a] = q_a$, options exclusive or not,
#
# $$
# \mathbb{E} \sum_{a \in S} \frac{c_a - p_a}{\pi_a}\, J e_a = J (q - p) .
# $$ (eq-residual-ht)
#
# (b) $\pi_k = p_k \bigl(1 + \sum_{j \ne k} \frac{p_j}{1 - p_j}\bigr)$ for $G = 2$. For any $G$,
# $\pi_k = \int_0^\infty p_k e^{-p_k t}\, P_k(t)\, dt$, where $P_k(t)$ is the chance that fewer
# than $G$ of the clocks $j \ne k$ have rung by $t$, clock $j$ ringing at rate $p_j$.
#
# (c) If exactly one option is right, $K - 1$ verdicts reveal $y$, and $J(e_y - p)$ may be used.
#
# (d) If exactly one option is right and one outcome is seen, $a \sim p$, then among all
# estimators $f(a, c)$ that are unbiased for $J(q - p)$ for every $q$,
#
# $$
# f^*(a, c) = (c - p_a) \Bigl[ g_a + \frac{J p}{(K - 1)\, p_a} \Bigr]
# $$ (eq-min-variance)
#
# alone has the least variance at $p = q$. RLCD's is larger by exactly $\|Jp\|^2 / (K - 1)$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# (a) The sum is $\sum_k 1[k \in S] \frac{c_k - p_k}{\pi_k} J e_k$, and $1[k \in S]$ is
# independent of $c_k$ with mean $\pi_k$. So its mean is $\sum_k (q_k - p_k) J e_k$.
#
# (b) For $G = 2$: $k$ comes first with chance $p_k$, or after $j$ with chance $p_j \cdot
# p_k/(1 - p_j)$. In general let clock $k$ ring at an exponential time of rate $p_k$. The first
# to ring is $k$ with chance $p_k$, and since exponential clocks have no memory, the rest race on
# by the same rule: the order of ringing is the sequential draw. Option $k$ is among the first
# $G$ exactly if fewer than $G$ others ring before it; condition on its time $t$.
#
# (c) If one of the $K - 1$ is right it is $y$; if none is, the remaining option is.
#
# (d) Write $u_a = f(a, 0)$, $h_a = p_a (f(a, 1) - u_a)$ and $F = \sum_a p_a u_a$. For $q = e_y$
# the mean of $f$ is $p_y f(y, 1) + \sum_{a \ne y} p_a u_a = h_y + F$; it is linear in $q$, so $f$
# is unbiased for all $q$ iff $h_a = J(e_a - p) - F$ for every $a$. At $p = q$ the mean of $f$
# given $a$ is $\bar u_a = u_a + h_a$ and, $c$ having variance $p_a (1 - p_a)$,
#
# $$ \mathbb{E}\|f\|^2 = \sum_a p_a \|\bar u_a\|^2 + \sum_a (1 - p_a) \|h_a\|^2 . $$
#
# The only tie between $\bar u$ and $F$ is $\sum_a p_a \bar u_a = F + \sum_a p_a h_a = \sum_a p_a
# J(e_a - p) = 0$, so $\bar u = 0$ is allowed and best. The rest is strictly convex in $F$, with
# weights that sum to $K - 1$; its minimum is the weighted mean $F^* = \frac{1}{K-1} \sum_a (1 -
# p_a) J(e_a - p) = -\frac{K}{K - 1} J p$, using $J \mathbf{1} = 0$ and $\sum_a p_a J(e_a - p) = 0$.
# Then $h_a = J e_a + Jp/(K-1)$ and $f = (c - p_a) h_a / p_a$ is {eq}`eq-min-variance`, since $J e_a
# = p_a g_a$. RLCD has $\bar u = 0$ and $F = -Jp$, so it exceeds the minimum by $(K - 1) \|F -
# F^*\|^2 = \|Jp\|^2/(K-1)$. $\square$
# :::
#
# Why does (d) not contradict {prf:ref}`thm-own-baseline`? Its extra term looks at the outcome:
# $(c - p_a)/p_a$ has mean $\sum_a (q_a - p_a) = 0$ *because* exactly one option is right. By
# enumeration: (b) against all orders of drawing, (a) for the shared and the independent case, (d) with
# the exact gap.

# %%
gaps = []
for size in range(2, 7):
    p, q = rng.dirichlet(np.ones(size), 2)
    wanted = p * ((q - p) - p @ (q - p))
    for group in range(1, min(size, 3) + 1):
        included = np.zeros(size)
        for order in permutations(range(size), group):
            drawn = p[list(order)]
            gone = np.cumsum(drawn) - drawn
            included[list(order)] += np.prod(drawn / (1 - gone))
        race = inclusion_probabilities(torch.tensor(np.log(p))[None], group)
        gaps.append(np.abs(race[0].numpy() - included).max())
        for shared in (True, False):
            ht = OBJECTIVES["residual_ht"]
            m = exact.moments(ht, p, q, group, shared, replacement=False)
            gaps.append(np.abs(m.mean.numpy() - wanted).max())
    best, plain = OBJECTIVES["exclusive_control"], OBJECTIVES["rlcd"]
    m = exact.moments(best, p, q)
    gaps.append(np.abs(m.mean.numpy() - wanted).max())
    low, high = (exact.moments(o, p, p).trace for o in (best, plain))
    flat = p * (p - p @ p)  # J p
    gaps.append(abs(high - low - flat @ flat / (size - 1)))
print(len(gaps), "checks, all within 1e-12:", max(gaps) < 1e-12)

# %% [markdown]
# For the ticket, different actions cost {res}`04_variance:table.ht_2:.3f` per outcome at $G = 2$
# against {res}`04_variance:table.rlcd_2:.3f` with replacement, but still more than
# {res}`04_variance:table.rlcd_1:.3f` for one action. The control saves
# {res}`04_variance:table.rlcd_1:.4f` − {res}`04_variance:table.control:.4f`: by (d), no unbiased use of one
# outcome can save more at calibration.
#
# Away from calibration no estimator wins throughout. Random policies and truths, shared label, per outcome:

# %%
trials, rows, beats = 80, {}, {}


def cost(name, p, q, group):
    apart = name == "residual_ht"
    m = exact.moments(OBJECTIVES[name], p, q, group, replacement=not apart)
    return m.trace_per_outcome


for size in (3, 4, 5):
    pairs = rng.dirichlet(np.ones(size), (trials, 2))
    one = np.array([cost("rlcd", p, q, 1) for p, q in pairs])
    two = np.array([cost("rlcd", p, q, 2) for p, q in pairs])
    apart = np.array([cost("residual_ht", p, q, 2) for p, q in pairs])
    name = "exclusive_control"
    control = np.array([cost(name, p, q, 1) for p, q in pairs])
    compared = {
        "HT ÷ with replacement, G = 2": apart / two,
        "HT, G = 2 ÷ RLCD, G = 1": apart / one,
        "control ÷ RLCD, G = 1": control / one,
    }
    for name, ratio in compared.items():
        rows[f"K = {size}: {name}"] = {
            "smaller, %": 100 * (ratio < 1).mean(),
            "median": np.median(ratio),
            "largest": ratio.max(),
        }
    beats[f"k{size}"] = 100 * (apart < one).mean()
bad_p, bad_q = [0.02, 0.49, 0.49], [0.0, 1.0, 0.0]
bad = cost("residual_ht", bad_p, bad_q, 2) / cost("rlcd", bad_p, bad_q, 2)
save_numbers("04_variance", {"ht_corner": bad, "ht_beats_one": beats})
pd.DataFrame(rows).T.round(2)

# %% [markdown]
# Different actions beat equal ones in every draw, though not in every corner: $p = (.02, .49, .49)$
# with $q = (0, 1, 0)$ gives a ratio of {res}`04_variance:ht_corner:.2f`. And against *one* action the
# answer is open: at $K = 4$ two different actions were cheaper per outcome in
# {res}`04_variance:ht_beats_one.k4:.0f` % of draws. "One outcome per question" is a good rule
# near calibration, not a law.
#
# The control helps on most draws and is far worse on some: for $K \ge 3$ it divides by $p_a$, and
# where the policy gives the truth almost no mass its variance has no bound. On the road from a wrong
# policy to an honest one the order changes too:

# %% mystnb={"figure": {"caption": "Variance per outcome on the straight road from a policy that is wrong and sure, (.01, .05, .27, .67), to the truth (.5, .3, .15, .05); groups have a shared label. Different actions and RLVR + Gini start below RLCD and end above it.", "name": "fig-variance-road"}, "image": {"alt": "Five curves of variance per outcome against the way covered from a wrong policy to the truth. Leave-one-out with four actions is highest throughout and rises to 0.38. Residual Horvitz-Thompson starts lowest at 0.05 and ends at 0.16. RLVR plus Gini starts below RLCD at 0.07 and ends above it at 0.18. RLCD with one action stays between 0.09 and 0.13. The exclusive control starts above RLCD at 0.16, falls below it at once and ends just under it at 0.115."}} tags=["hide-input"]
start = np.array([0.01, 0.05, 0.27, 0.67])
way = np.linspace(0, 1, 21)
lines = {
    "RLCD, G = 1": ("rlcd", 1, "rlcd"),
    "LOO, G = 4": ("rlcd_loo", 4, "rlcd_loo"),
    "RLVR + Gini, G = 1": ("rlvr_gini", 1, "rlvr_gini"),
    "HT, G = 2": ("residual_ht", 2, "residual_ht"),
    "control, G = 1": ("exclusive_control", 1, None),
}
fig, ax = plots.figure(height=3.8)
ends, road = [], {}
for label, (name, group, arm) in lines.items():
    y = np.array([cost(name, (1 - t) * start + t * case, case, group) for t in way])
    road[name] = {"start": y[0], "end": y[-1]}
    look = plots.arm_style(arm).drawn if arm else {"color": plots.INK, "ls": ":"}
    ax.plot(way, y, markevery=4, **look)
    ends.append((1, y[-1], label, look["color"]))
save_numbers("04_variance", {"road": road})
ax.set(xlim=(0, 1), ylim=(0, 0.42), ylabel="variance per outcome")
plots.note_ends(ax, ends)
_ = ax.set(xlabel="way covered, from wrong and sure to the truth")

# %% [markdown]
# At the start of this road two different actions are the cheapest
# ({res}`04_variance:road.residual_ht.start:.3f`, RLCD {res}`04_variance:road.rlcd.start:.3f`), and even
# RLVR plus exact Gini is below RLCD ({res}`04_variance:road.rlvr_gini.start:.3f`). At the truth both
# are above it.
#
# ## What to do with this
#
# 1. One action per question, no baseline, as many different questions as the budget allows.
# 2. If a group per question is forced on you, ask for independent outcomes; if the label is
#    shared, draw different actions and use {eq}`eq-residual-ht`; if $K - 1$ verdicts come
#    anyway, use the label.
# 3. Keep leave-one-out for plain RLVR, whose reward is not centred. If your training library
#    insists on a group baseline, on-policy it costs you noise but not the target. Never divide by
#    the group's standard deviation ({prf:ref}`thm-std`).
#
# :::{admonition} What would change my mind
# :class: warning
#
# - **Variance is not learning speed.** {cite:t}`mei2022` show for natural policy gradient that
#   variance reduction cannot explain what a baseline does there; it makes updates less
#   aggressive. An arm with more variance could still learn faster. That is an experiment, and
#   {doc}`20_rater_bandit` runs it: there, RLCD with $G = 4$ and leave-one-out ends behind one
#   outcome per text, by {res}`20_rater_bandit:brier_gap.rlcd_loo-rlcd:.4f` in Brier score at equal outcomes.
# - **The price may be another.** We charge for outcomes. If outcomes are free and questions are dear,
#   count per question: a group of four then has the smaller variance ({ref}`ex-variance-3`).
# - **Logit space.** Traces are taken in the logits of one question. A network weighs
#   directions by its Jacobian and correlates questions; only exactness of the mean carries over.
# - **Far from calibration** some orders are reversed, as the road shows and the ochre lens.
# :::
#
# ## Exercises
#
# :::{exercise} The ties
# :label: ex-variance-1
#
# {prf:ref}`thm-own-baseline` (b) says that at $K = 2$ RLCD is not the only best. Which constant makes
# RLVR plus exact Gini exactly as good, and what does its step look like then?
# :::
#
# :::{solution-start} ex-variance-1
# :label: sol-variance-1
# :class: dropdown
# :::
#
# $\lambda = 0$ and $b = 2 p_1 p_2$. Then $N(a) = 0$ for both actions, so the step is not merely as
# good: it is RLCD's, sample by sample. The two covariances agree at $p = (.7, .3)$, and a third
# option breaks the tie:

# %%
tied = lambda_mix("tied", 0.0, constant=2 * 0.7 * 0.3)
rlcd = OBJECTIVES["rlcd"]
one, two = (exact.moments(o, [0.7, 0.3], [0.7, 0.3]) for o in (tied, rlcd))
assert torch.allclose(one.covariance, two.covariance, rtol=0, atol=1e-15)
three = [0.6, 0.3, 0.1]
best = min(
    exact.moments(lambda_mix("m", 0.0, constant=k), three, three).trace
    for k in np.linspace(-1, 1, 201)
)
assert best > exact.moments(rlcd, three, three).trace
print(f"K = 3: best constant {best:.4f}", end=", ")
print(f"RLCD {exact.moments(rlcd, three, three).trace:.4f}")

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} A better baseline for the corner
# :label: ex-variance-2
#
# At $p = (.49, .49, .02)$, $q = (.05, .05, .9)$, find the constant $b$ that minimises the variance of
# one outcome's step $(c - p_a - b) g_a$, and the ratio it reaches. Why not always use it?
# :::
#
# :::{solution-start} ex-variance-2
# :label: sol-variance-2
# :class: dropdown
# :::
#
# $\mathbb{E}\|(r - b) g\|^2$ is a parabola in $b$ with minimum at $b = \mathbb{E}[r \|g\|^2] /
# \mathbb{E}\|g\|^2$. It needs $q$, which nobody knows; and at $p = q$ it is zero, which is
# {prf:ref}`thm-own-baseline` again.

# %%
p, q = corner_p, corner_q
long = 1 - 2 * p + p @ p
optimum = (p * (q - p) * long).sum() / (p * long).sum()
plain = exact.moments(rlcd, p, q).trace
tuned = exact.moments(lambda_mix("b", 1.0, constant=optimum), p, q).trace
grid = [
    exact.moments(lambda_mix("b", 1.0, constant=k), p, q).trace
    for k in np.linspace(-1, 1, 81)
]
assert min(grid) >= tuned
print(f"b = {optimum:.3f}, variance ratio {tuned / plain:.2f}")

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Per question instead of per outcome
# :label: ex-variance-3
#
# Under a shared label, show that the variance of a group is $A/G + B$ and find $A$ and $B$ for the
# ticket. What is the least variance per question that any $G$ can reach?
# :::
#
# :::{solution-start} ex-variance-3
# :label: sol-variance-3
# :class: dropdown
# :::
#
# Given $y$ the actions are independent: $A = \mathbb{E}_y \operatorname{tr} \operatorname{Cov}(D \mid
# y)$ for one action, and $B$ is the variance of $\mathbb{E}[D \mid y] = J(e_y - p)$, which is the
# variance of the full-label Brier gradient. No number of actions gets below what the label itself
# leaves open.

# %%
floor = exact.moments(OBJECTIVES["brier"], case, case).trace
spread = exact.moments(rlcd, case, case).trace - floor
for group in (1, 2, 3, 4):
    got = exact.moments(rlcd, case, case, group).trace
    assert abs(got - (spread / group + floor)) < 1e-12
assert abs(table["gini_1"] - (spread + 2 * floor)) < 1e-12
print(f"A = {spread:.4f}, B = {floor:.4f}")

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Two options, one outcome
# :label: ex-variance-4
#
# At $K = 2$ one outcome is the label. Show that {eq}`eq-min-variance` then *is* the full-label
# gradient $J(e_y - p)$, for every $p$, and so stays bounded. Check that a third option ends that.
# :::
#
# :::{solution-start} ex-variance-4
# :label: sol-variance-4
# :class: dropdown
# :::
#
# With $d = (1, -1)$: $J e_1 + J p = p_1 p_2 d + p_1 p_2 (p_1 - p_2) d = 2 p_1^2 p_2 d$. Times $(c -
# p_1)/p_1$ this is $2 p_1 p_2^2 d$ for $c = 1$ and $-2 p_1^2 p_2 d$ for $c = 0$, which are $J(e_1 - p)$ and $J(e_2 -
# p)$. The other action is the same by symmetry.

# %%
control, label = OBJECTIVES["exclusive_control"], OBJECTIVES["brier"]
for p1 in (0.3, 0.01):
    p = [p1, 1 - p1]
    one, two = (exact.moments(o, p, [0.6, 0.4]) for o in (control, label))
    assert torch.allclose(one.covariance, two.covariance, atol=1e-12)
bad = [
    exact.moments(control, [eps, 0.7 - eps, 0.3], [0.6, 0.2, 0.2]).trace
    for eps in (1e-2, 1e-3, 1e-4)
]
assert bad[2] > 9 * bad[1] > 50 * bad[0]
print("K = 3, variance as p_1 shrinks:", *(f"{v:.3g}" for v in bad))

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# {cite:t}`williams1992` shows that a baseline leaves the mean alone; {cite:t}`greensmith2004` derive the best one and show
# that the mean reward need not be it. {cite:t}`kool2019` and {cite:t}`ahmadian2024` argue for
# leave-one-out, for rewards that are not centred as RLCD's is; {cite:t}`kool2020` sample without
# replacement.
#
# Next: {doc}`05_is_it_rl` asks whether any of this needed a policy gradient.
