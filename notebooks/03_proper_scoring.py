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
# # Proper scoring rules
#
# **Question.** How must a stated distribution be priced so that honesty is the cheapest
# report, and which of the many prices with this property should one train on?
#
# **Answer.** A price is honest exactly if it is the tangent to a concave curve. Brier, log,
# spherical and ranked scores come from four such curves, and they differ in what they
# charge for a confident error. A floor under the logarithm, the usual guard against
# infinity, breaks the property; mixing a little uniform into report *and* label keeps it.
#
# **After this page you can** prove a rule proper or catch it lying, read its entropy,
# divergence and gradient off one function, bound the log score without spoiling it, and say
# why noise on the logits is a poor substitute for one backward pass.
#
# **Running time.** A few seconds on any machine (CPU, T4 or A100 make no difference);
# nothing is downloaded.

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

# %% mystnb={"figure": {"caption": "What each rule charges for a report, when the truth is {res}`03_proper_scoring:q_text` (star). The colour is the excess of the expected loss over that of the honest report, in units of what the uniform report pays; each band doubles. All four have their one hollow at the truth. They differ in how they price the rest: Brier by distance, the log score by ratios, with a wall along every edge, the spherical score by angle, and the ranked score (RPS) by order, so that mass moved from A to its neighbour B costs less than mass moved to C.", "name": "fig-proper-landscapes"}, "image": {"alt": "Four triangles of reports over options A, B and C with a star at the truth and bands of deepening purple around it. Brier: circles. Log: rounded bands that crowd against all three edges, darkest there. Spherical: slightly stretched ovals. RPS: long narrow ellipses tilted along the direction that moves mass between neighbouring options."}} tags=["hide-input"]
import numpy as np
import pandas as pd
import sympy
import torch
from matplotlib.colors import to_rgba
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit

from rlcd_core import exact, plots, scoring
from rlcd_core.records import save_numbers
from rlcd_core.rewards import (
    OBJECTIVES,
    bounded_score,
    composite_score,
    logit_noise_loss,
)
from rlcd_core.scoring import RULES, clamped, log_spherical_rule

CHAPTER = "03_proper_scoring"
plots.use_style()
torch.set_default_dtype(torch.float64)
rng = np.random.default_rng(seed)
q_shown = np.array([0.5, 0.3, 0.2])
uniform = np.full(3, 1 / 3)

titles = {
    "brier": "Brier: distance",
    "log": "Log: ratios",
    "spherical": "Spherical: angle",
    "rps": "RPS: order",
}
levels = np.array([0.0, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16])
paint = [to_rgba(plots.COLORS["label"], a) for a in np.linspace(0, 0.95, 9)]
fig, axes = plots.figure(2, 2, height=2.75)
for ax, (name, title) in zip(axes.flat, titles.items(), strict=True):
    rule = RULES[name]
    unit = rule.divergence(uniform, q_shown)

    def excess(p, rule=rule, unit=unit):
        return rule.divergence(p, np.broadcast_to(q_shown, p.shape)) / unit

    data = plots.prepare_simplex(excess, resolution=90, margin=2e-4)
    x, y = plots.to_xy(data.p).T
    ax.tricontourf(
        x, y, data.value, levels=levels, colors=paint, extend="max"
    )
    plots.plot_simplex(ax)
    ax.plot(
        *plots.to_xy(q_shown),
        marker="*",
        ms=13,
        color=plots.INK,
        mec="none",
    )
    _ = ax.set(title=title)

save_numbers(CHAPTER, {"q_text": "(" + ", ".join(map(str, q_shown)) + ")"})

# %% [markdown]
# ## A ticket
#
# *"I was charged twice, and now the app crashes."* Of a hundred tickets like this one,
# fifty belong to **A** billing, thirty to **B** bugs and twenty to **C** other. A policy
# has to state three numbers, and is charged when the right team becomes known. Four
# policies, and what each pays on average under several prices:

# %%
reports = {
    "honest": q_shown,
    "sharpened": np.array([0.7, 0.2, 0.1]),
    "sure": np.array([0.998, 0.001, 0.001]),
    "uniform": uniform,
}
names = ["brier", "log", "spherical", "rps"]
table = pd.DataFrame(
    {
        n: {k: RULES[n].expected(p, q_shown) for k, p in reports.items()}
        for n in names
    }
)
table["1 − stated"] = [1 - p @ q_shown for p in reports.values()]
save_numbers(CHAPTER, {"ticket": table.loc["sure"].tolist()})
table.astype(float).round(3)

# %% [markdown]
# In the first four columns the honest row is the cheapest. The last column charges one
# minus what was stated for the right team. It looks just as reasonable, and it is the loss
# behind RLVR ({prf:ref}`cor-rlvr`): certainty is the cheapest report. The proper columns agree that
# the sure policy is the worst, but not by how much: it pays {res}`03_proper_scoring:ticket.1:.2f`
# nats under the log score, more than three times what honesty pays, and under the spherical score
# {res}`03_proper_scoring:ticket.2:.2f`, less than a third more.
#
# ## Definition, and the rules of this book
#
# Throughout, $p$ is the report, $q$ the truth, $y \sim q$ the right option. A rule is a
# *loss* $L(p, y)$, lower is better; its mean is written $L(p; q) = \sum_k q_k L(p, k)$.
#
# :::{prf:definition} Proper
# :label: def-proper
#
# A loss is *proper* if honesty is never beaten,
#
# $$ L(q; q) \le L(p; q) \quad \text{for all } p, q , $$ (eq-proper)
#
# and *strictly proper* if it is only tied by itself: equality forces $p = q$. The least
# mean loss $H(q) = L(q; q)$ is the *entropy* of the rule, the excess
# $D(p, q) = L(p; q) - H(q)$ its *divergence*.
# :::
#
# The Brier score is {eq}`eq-brier`. The others, for $\|p\| = (\sum_k p_k^2)^{1/2}$ and
# cumulative sums $P_j = \sum_{k \le j} p_k$, $Y_j = 1[y \le j]$:
#
# $$ L_{\log}(p, y) = -\log p_y $$ (eq-log-score)
#
# $$ L_{\mathrm{sph}}(p, y) = 1 - p_y / \|p\| $$ (eq-spherical)
#
# $$
# \begin{aligned}
# &L_{\mathrm{rps}}(p, y) \\
# &\;= \tfrac{1}{K - 1} \textstyle\sum_{j<K} (P_j - Y_j)^2
# \end{aligned}
# $$ (eq-rps)
#
# $$
# \begin{aligned}
# &L_{\mathrm{comp}}(p, y) \\
# &\; = L_{\log} + w L_{\mathrm{sph}} + w' L_{\mathrm{rps}}
# \end{aligned}
# $$ (eq-composite)
#
# $$ L_{\mathrm{nb}}(p, y) = L_{\log} + \operatorname{Brier} $$ (eq-nll-brier)
#
# The log score is that of {cite:t}`good1952`; the ranked score, for options that have an
# order, is due to {cite:t}`epstein1969`. `rlcd_core.scoring` holds the losses in NumPy,
# `rlcd_core.rewards` trains on them as scores, with the sign turned.
#
# ## One function behind each rule
#
# :::{prf:theorem} Savage; Gneiting and Raftery
# :label: thm-proper
#
# A loss is proper if and only if there are a concave function $H$ on the simplex and, at
# every $p$, a supergradient $h(p)$ of $H$ such that
#
# $$ L(p, k) = H(p) + h(p)^\top (e_k - p) . $$ (eq-savage)
#
# It is strictly proper if and only if $H$ is strictly concave. $H$ is then its entropy,
# and its divergence is the Bregman divergence
#
# $$ D(p, q) = H(p) + h(p)^\top (q - p) - H(q) . $$ (eq-bregman)
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# A supergradient at $p$ is a vector with $H(q) \le H(p) + h(p)^\top(q - p)$ for all $q$.
# (On the boundary entries may be $+\infty$, as for the log score, with $0 \cdot \infty =
# 0$.)
#
# *If.* Average {eq}`eq-savage` over $k \sim q$: $L(p; q) = H(p) + h(p)^\top(q - p)$. At
# $p = q$ this is $H(q)$; elsewhere it is at least $H(q)$ by the inequality. So $L$ is
# proper, $H$ is its entropy, and the excess is {eq}`eq-bregman`. *Strictly:* suppose
# $L(p; q) = H(q)$ with $p \ne q$, and let $m = (p + q)/2$. Strict concavity gives
# $H(m) > \tfrac12 H(p) + \tfrac12 H(q) = H(p) + \tfrac12 h(p)^\top (q - p)
# = H(p) + h(p)^\top (m - p) \ge H(m)$, a contradiction.
#
# *Only if.* Let $L$ be proper and $H(q) = L(q; q) = \min_p L(p; q)$. For each $p$ the map
# $q \mapsto L(p; q)$ is linear, and a minimum of linear functions is concave. Let $h(p)$
# be the vector of the $L(p, k)$. Then $H(p) + h(p)^\top(q - p) = L(p; p) + L(p; q) - L(p;
# p) = L(p; q) \ge H(q)$, so $h(p)$ is a supergradient, and $q = e_k$ gives
# {eq}`eq-savage`. *Strictly:* for $q_0 \ne q_1$ and $m = \lambda q_0 + (1 - \lambda)
# q_1$ with $0 < \lambda < 1$, $H(m) = \lambda L(m; q_0) + (1 - \lambda) L(m; q_1) >
# \lambda H(q_0) + (1 - \lambda) H(q_1)$, as $m$ differs from both. $\square$
# :::
#
# The theorem is {cite:t}`savage1971` in the form of {cite:t}`gneiting2007`. In a picture
# it says that a report buys a tangent:

# %% mystnb={"figure": {"caption": "Log score, two options. The curve is the entropy: what honesty pays if the truth is $q$. Stating {res}`03_proper_scoring:tangent.stated` buys the straight line that touches the curve there. Its two ends are the charges for being right and for being wrong; at a truth of {res}`03_proper_scoring:tangent.truth` the line is {res}`03_proper_scoring:tangent.gap:.3f` above the curve, and that gap is the divergence. No line that touches can be below a concave curve, which is the whole theorem.", "name": "fig-proper-tangent"}, "image": {"alt": "A concave arch of entropy over the truth from 0 to 1, and a falling straight line that touches it at 0.9. The line's left end, at 2.30, is marked as the charge if wrong, its right end at 0.11 as the charge if right. A vertical bar at truth 0.6 between arch and line is marked as the price of the lie."}} tags=["hide-input"]
stated, truth = 0.9, 0.6
grid = np.linspace(0, 1, 201)
pairs = np.stack([grid, 1 - grid], 1)
tangent = RULES["log"].expected(
    np.tile([stated, 1 - stated], (201, 1)), pairs
)
arch = RULES["log"].entropy(pairs)
gap = float(
    RULES["log"].divergence([stated, 1 - stated], [truth, 1 - truth])
)

fig, ax = plots.figure()
ax.plot(grid, arch, color=plots.COLORS["label"])
ax.plot(grid, tangent, color=plots.INK)
ax.plot(stated, np.interp(stated, grid, arch), "o", color=plots.INK)
low, high = (np.interp(truth, grid, line) for line in (arch, tangent))
ax.plot([truth, truth], [low, high], color=plots.COLORS["broken"], lw=4)
plots.note(ax, "charge if wrong", 0, tangent[0], xytext=(12, 2))
plots.note(ax, "charge\nif right", 1, tangent[-1], xytext=(9, 4))
plots.note(ax, f"price of the lie: {gap:.3f}", truth, high, xytext=(4, 12))
plots.note(ax, "honest", 0.2, np.interp(0.2, grid, arch), xytext=(2, -14))
save_numbers(
    CHAPTER, {"tangent": {"stated": stated, "truth": truth, "gap": gap}}
)
_ = ax.set(
    xlabel="truth q", ylabel="mean log loss", ylim=(0, 2.5), xlim=(0, 1.02)
)

# %% [markdown]
# | rule | entropy $H(q)$ | divergence $D(p, q)$ |
# |---|---|---|
# | Brier | $1 - \lVert q \rVert^2$ | $\lVert p - q \rVert^2$ |
# | log | $-\sum q_k \log q_k$ | $\sum q_k \log (q_k / p_k)$ |
# | spherical | $1 - \lVert q \rVert$ | $\lVert q \rVert (1 - \cos \angle(p, q))$ |
# | RPS | $\sum Q_j (1 - Q_j) / (K - 1)$ | $\sum (P_j - Q_j)^2 / (K - 1)$ |
#
# :::{prf:corollary} Sums
# :label: cor-proper-sums
#
# A sum of proper losses with weights $\ge 0$ is proper, and strictly proper as soon as one
# with positive weight is. Entropies and divergences add with the same weights.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# {eq}`eq-proper` is linear in $L$; a sum of nonnegative divergences vanishes only if each
# of positive weight does. $\square$
# :::
#
# A negative weight can destroy this. (In "log + spherical − RPS" log and spherical are
# scores and RPS is a loss, so no weight is negative.)
#
# **Symbolic check.** SymPy differentiates each entropy of the table, forms the tangent
# {eq}`eq-savage` at a symbolic $p$ and subtracts the formula of the rule; the tangent at a
# random report is compared with the package:


# %%
def entropies(t):
    """The four entropies, written once, for symbols t (K)."""
    square = sum(u**2 for u in t)
    steps = [sum(t[: j + 1]) for j in range(len(t) - 1)]
    return {
        "brier": 1 - square,
        "log": -sum(u * sympy.log(u) for u in t),
        "spherical": 1 - sympy.sqrt(square),
        "rps": sum(u * (1 - u) for u in steps) / (len(t) - 1),
    }


def formulas(t, k):
    """The four losses, if option k is right."""
    square = sum(u**2 for u in t)
    gaps = [sum(t[: j + 1]) - int(k <= j) for j in range(len(t) - 1)]
    return {
        "brier": sum((u - int(i == k)) ** 2 for i, u in enumerate(t)),
        "log": -sympy.log(t[k]),
        "spherical": 1 - t[k] / sympy.sqrt(square),
        "rps": sum(g**2 for g in gaps) / (len(t) - 1),
    }


remainders, worst = [], 0.0
for size in (2, 3):
    free = sympy.symbols(f"p1:{size}", positive=True)
    full = [*free, 1 - sum(free)]
    point = rng.dirichlet(np.ones(size))
    for name, entropy in entropies(full).items():
        for k in range(size):
            plane = entropy + sum(
                sympy.diff(entropy, u) * (int(i == k) - u)
                for i, u in enumerate(free)
            )
            remainders.append(
                sympy.simplify(plane - formulas(full, k)[name])
            )
            value = float(
                plane.subs(dict(zip(free, point[:-1], strict=True)))
            )
            worst = max(
                worst, abs(value - float(RULES[name].loss(point, k)))
            )
print(
    len(remainders), "tangents; not the rule:", len(set(remainders) - {0})
)
print("package and tangent within 1e-12:", worst < 1e-12)

# %% [markdown]
# **Enumeration and simulation.** For two to six options and random $(p, q)$: the
# divergences of the package against the closed forms of the table; and for one pair the mean
# loss over drawn labels against $L(p; q)$, in standard errors (the four rules see the same labels,
# so their gaps go together).


# %%
def closed_form(name, p, q):
    if name == "brier":
        return ((p - q) ** 2).sum(-1)
    if name == "log":
        return (q * np.log(q / p)).sum(-1)
    if name == "spherical":
        norm_p, norm_q = (np.sqrt((v * v).sum(-1)) for v in (p, q))
        return norm_q - (p * q).sum(-1) / norm_p
    gaps = np.cumsum(p - q, -1)[:, :-1]
    return (gaps**2).sum(-1) / (p.shape[-1] - 1)


worst, least = 0.0, np.inf
for size in range(2, 7):
    p, q = rng.dirichlet(np.ones(size), (2, 400))
    for name in names:
        found = RULES[name].divergence(p, q)
        worst = max(worst, np.abs(found - closed_form(name, p, q)).max())
        least = min(least, found.min())
n = 400_000
labels = rng.choice(3, n, p=q_shown)
sharp = np.broadcast_to(reports["sharpened"], (n, 3))
distance = {}
for name in names:
    drawn = RULES[name].loss(sharp, labels)
    error = drawn.std(ddof=1) / np.sqrt(n)
    mean = RULES[name].expected(reports["sharpened"], q_shown)
    distance[name] = float((drawn.mean() - mean) / error)
save_numbers(
    CHAPTER, {"worst_z": max(map(abs, distance.values())), "n_drawn": n}
)
print("8,000 divergences within 1e-12:", worst < 1e-12)
print("all positive:", least > 0)
for name, gap in distance.items():
    print(f"{name:9s} off by {gap:5.2f} standard errors")

# %% [markdown]
# ## Gradients in logits
#
# A policy moves its logits $z$, so what trains it is the gradient in $z$.
#
# :::{prf:proposition} Four pushes
# :label: prp-proper-gradients
#
# With $p = \operatorname{softmax}(z)$ and $J = \operatorname{diag}(p) - p p^\top$, the
# gradient of $L(p; q)$ in $z$ is $J g$ with
#
# | rule | $g$ | $J g$ |
# |---|---|---|
# | Brier | $2 (p - q)$ | $2 J (p - q)$ |
# | log | $-q / p$ | $p - q$ |
# | spherical | $(p \, p^\top q / \lVert p \rVert^2 - q) / \lVert p \rVert$ | |
# | RPS | $g_k = \frac{2}{K-1} \sum_{j \ge k} (P_j - Q_j)$ | |
#
# For a strictly proper, differentiable rule on the open simplex it vanishes at $p = q$;
# for the four rules above, nowhere else.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# $\partial p / \partial z = J$ is symmetric, so the chain rule gives $J g$ with $g_k =
# \partial L(p; q) / \partial p_k$, up to a constant vector, which $J$ annihilates
# ($J \mathbf 1 = p - p = 0$). *Brier:* $L = \|p\|^2 - 2 p^\top q + 1$. *Log:* $g = -q/p$
# and $(J g)_k = -q_k + p_k \sum_j q_j$. *Spherical:* differentiate $-p^\top q (p^\top
# p)^{-1/2}$. *RPS:* $P_j$ contains $p_k$ for $j \ge k$, and $L(p; q) = \sum_j (P_j -
# Q_j)^2/(K - 1)$ plus a term without $p$.
#
# At $p = q$ the gradient vanishes because $L(\cdot\,; q)$ is least there. *Nowhere else:* $J g = 0$
# with all $p_k > 0$ means $g = u \mathbf 1$. Brier: $p - q$ is constant with entries of sum 0,
# hence 0. Log: $p - q = 0$. RPS: $g_k - g_{k+1} = 2(P_k - Q_k)/(K-1) = 0$ for all $k < K$.
# Spherical: $q = t\,p - u \|p\| \mathbf 1$ with $t = p^\top q/\|p\|^2$; the inner product with $p$
# gives $p^\top q = p^\top q - u \|p\|$, so $u = 0$ and $q = t p = p$. $\square$
# :::
#
# The training objectives are checked against these formulas by `exact.moments`, which
# enumerates labels and averages the gradient of the loss that trains:

# %%
bounded = clamped(log_spherical_rule(), 0.01)
matches = [
    ("brier", RULES["brier"], 0.5),  # the objective is half the Brier loss
    ("nll", RULES["log"], 1.0),
    ("spherical", RULES["spherical"], 1.0),
    ("log_spherical", RULES["log_spherical"], 1.0),
    ("log_spherical_bounded", bounded, 1.0),
    ("nll_brier", RULES["nll_brier"], 1.0),
    ("rlcd", RULES["brier"], 0.5),  # from one bit a question
    ("one_bit_log_residual", RULES["log"], 1.0),
    ("one_bit_spherical", RULES["spherical"], 1.0),
]
gaps = {}
for objective, rule, scale in matches:
    for size in range(2, 7):
        p, q = rng.dirichlet(np.ones(size), 2)
        m = exact.moments(OBJECTIVES[objective], p, q)
        gap = np.abs(m.mean.numpy() + scale * rule.grad_logits(p, q)).max()
        gaps[objective] = max(gaps.get(objective, 0.0), gap)
print(
    len(gaps),
    "objectives, K = 2..6, within 1e-12:",
    max(gaps.values()) < 1e-12,
)

# %% [markdown]
# The last three see no label, only one bit on the option taken. That every differentiable
# rule of this page can be learned so is a theorem of {doc}`06_one_bit`.
#
# ## What a confident error costs
#
# Two options, and the policy was wrong: it gave the right one only $p_y$.

# %% mystnb={"figure": {"caption": "A confident error, more confident to the right. Above, its price: bounded for Brier and the spherical score; the log score charges another {res}`03_proper_scoring:per_nine:.2f` nats for each nine. Below, the push in the logits that it causes. A bounded price has a vanishing push: the surer the mistake, the less is learned from it. The floored log learns nothing at all beyond its floor; the mended one, bounded too, fades below $\\varepsilon/K$.", "name": "fig-proper-errors"}, "image": {"alt": "Two panels against the probability stated for the right option, from 0.5 down to one in a million. Upper: loss. Log rises steadily to 13.8, floored log stops at 9.2, mended log levels off near 5.3, Brier stops at 2 and spherical at 1. Lower, logarithmic: size of the gradient. Log approaches 1; Brier and spherical fall in proportion to the probability; the mended log falls below 0.005; the floored log drops to nothing at one in ten thousand."}} tags=["hide-input"]
FLOOR, EPS = -9.21, 0.01
right = np.logspace(np.log10(0.5), -6, 300)
two = np.stack([right, 1 - right], 1)
told = np.zeros(len(right), int)
price = {
    name: RULES[name].loss(two, told)
    for name in ("log", "brier", "spherical")
}
price["log, floored"] = scoring.log_loss(two, told, floor=FLOOR)
price["log, mended"] = scoring.log_loss(two, told, eps=EPS)
mended_log = clamped(RULES["log"], EPS)
push = {
    name: np.abs(RULES[name].grad_logits(two, told)[:, 0])
    for name in ("log", "brier", "spherical")
}
push["log, floored"] = np.where(np.log(right) > FLOOR, push["log"], np.nan)
push["log, mended"] = np.abs(mended_log.grad_logits(two, told)[:, 0])

look = {
    "log": (plots.COLORS["label"], "-"),
    "log, floored": (plots.COLORS["broken"], "--"),
    "log, mended": (plots.COLORS["verdict"], "-"),
    "brier": (plots.COLORS["rlcd"], "-"),
    "spherical": (plots.COLORS["rlvr"], "-."),
}
fig, axes = plots.figure(2, height=2.9)
for ax, curves in zip(axes, (price, push), strict=True):
    ax.set(xscale="log", xlim=(0.5, 1e-6))
    for name, values in curves.items():
        ax.plot(right, values, color=look[name][0], ls=look[name][1])
axes[1].set(
    yscale="log", ylim=(3e-7, 3), xlabel="stated for the right option"
)
axes[1].set_ylabel("push in its logit")
axes[0].set(ylabel="loss", ylim=(0, 14.5))
for ax, curves in zip(axes, (price, push), strict=True):
    ends = [
        (1e-6, values[-1], name, look[name][0])
        for name, values in curves.items()
        if np.isfinite(values[-1])
    ]
    if ax is axes[0]:
        plots.note_ends(ax, ends)
    else:
        stop = np.flatnonzero(np.isfinite(push["log, floored"]))[-1]
        colour = look["log, floored"][0]
        ax.plot(
            [right[stop]] * 2,
            [push["log"][stop], 3e-7],
            color=colour,
            ls="--",
        )
        for x, y, text, _ in ends:
            plots.note(ax, text, x, y, color=plots.INK)
save_numbers(CHAPTER, {"per_nine": np.log(10), "floor": FLOOR, "eps": EPS})
_ = axes[0].set(title="price"), axes[1].set(title="push")

# %% [markdown]
# This is the real choice between proper rules: all have the same optimum, and they differ in
# how hard they pull from where. The log score's price has no bound, but its push in the logits,
# $\lVert p - e_y \rVert$, never exceeds $\sqrt 2$. It does not fade either: a mislabelled ticket
# pulls with full force however sure the policy is. With Brier a policy that is *confidently wrong* gets
# almost no gradient back. The composite of the log and half the spherical score is a
# compromise on paper: at confident errors it is the log score.
#
# ## The floor that lies
#
# Against an unbounded loss a floor is common: replace $\log p_y$ by $\max(\log p_y, \ell)$, often
# with $\ell = \log 10^{-4} \approx$ {res}`03_proper_scoring:floor`. Take an option whose true chance
# is one in a hundred thousand, and the composite score (higher is better) with that floor:

# %%
target = np.array([1e-5, 1 - 1e-5])
lie = np.array([0.0, 1.0])


def composite(p, q, **options):
    """Score of log + spherical / 2: higher is better."""
    return 0.5 - scoring.log_spherical(p, q, weight=0.5, **options)


scores = pd.DataFrame(
    {
        "floor at −9.21": [
            composite(p, target, floor=FLOOR) for p in (target, lie)
        ],
        "mixed p and label": [
            composite(p, target, eps=EPS) for p in (target, lie)
        ],
    },
    index=["honest: (1e-5, .99999)", "lie: (0, 1)"],
)
numbers = {"honest": scores.iloc[0, 0], "lie": scores.iloc[1, 0]}
gap = scores.iloc[0] - scores.iloc[1]
numbers |= {"floor_gap": gap.iloc[0], "mended_gap": gap.iloc[1]}
save_numbers(CHAPTER, {k: float(v) for k, v in numbers.items()})
shown = scores.map(lambda v: f"{v:.7f}")
shown.loc["honest − lie"] = [f"{v:.1e}" for v in gap]
shown

# %% [markdown]
# The lie scores {res}`03_proper_scoring:lie:.7f`, honesty {res}`03_proper_scoring:honest:.7f`.
# The gap is small and has the wrong sign: the rule pays for calling a rare thing impossible.
# With report and label both mixed, honesty is ahead, if only by
# {res}`03_proper_scoring:mended_gap:.0e`: a bounded rule can be strict, but not steep.
#
# :::{prf:theorem} Floors lie, mixing both is strictly proper
# :label: thm-clamp
#
# (a) *Floor.* Under $-\max(\log p_y, \ell)$ with $\ell < 0$ an option of true chance
# $q_k > 0$ is better reported as 0, the rest in proportion, if and only if
#
# $$ q_k (\log q_k - \ell) < -(1 - q_k) \log(1 - q_k) , $$ (eq-floor)
#
# that is below a threshold $q^*$ with $\log q^* = \ell + 1 - q^*/2 + O(q^{*2})$, a hair
# under $e^{\ell + 1}$ (other options above the floor). The rule is not proper.
#
# (b) *Mixing the report alone.* Let $m(p) = (1 - \varepsilon) p + \varepsilon / K$. For a
# strictly proper $L$ the loss $L(m(p), y)$ is minimised where $m(p) = q$ if there is such
# a $p$, that is at $p = (q - \varepsilon/K)/(1 - \varepsilon)$, which is $q$ only if $q$ is
# uniform. It is strictly proper for $m(p)$ as the report, for truths with all
# $q_k \ge \varepsilon / K$.
#
# (c) *Mixing both.* For $0 < \varepsilon < 1$ and any strictly proper $L$, finite inside
# the simplex, the loss
#
# $$
# \begin{aligned}
# &L_\varepsilon(p, y) = \\
# &\;\textstyle\sum_k \bigl((1 - \varepsilon) 1[k = y] + \tfrac{\varepsilon}{K}\bigr)
#   L(m(p), k)
# \end{aligned}
# $$ (eq-clamp)
#
# is strictly proper on the whole simplex, and it is bounded if $L$ is continuous there.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *(a)* The lie pays $-q_k \ell - \sum_{j \ne k} q_j \log \frac{q_j}{1 - q_k} =
# -q_k \ell - \sum_{j \ne k} q_j \log q_j + (1 - q_k) \log (1 - q_k)$. If $\log q_k >
# \ell$, honesty pays $-q_k \log q_k - \sum_{j \ne k} q_j \log q_j$. The difference, honest
# minus lie, is positive iff {eq}`eq-floor`. If $\log q_k \le \ell$, honesty pays
# $-q_k \ell - \dots$ and the lie is better by $-(1 - q_k) \log (1 - q_k) > 0$, and
# {eq}`eq-floor` holds, its left side being $\le 0$. Divide {eq}`eq-floor` by $q_k$:
# $\log q_k - \ell < -\frac{1 - q_k}{q_k} \log (1 - q_k) = 1 - q_k/2 - O(q_k^2)$. The left
# side increases in $q_k$ from $-\infty$, the right side decreases from 1 to 0, so there is
# one threshold, and it is above $e^\ell$.
#
# *(b)* $L(m(p); q)$ depends on $p$ through $m(p)$ alone and is least at $m(p) = q$. $m$
# maps the simplex one to one onto the part where all entries are $\ge \varepsilon/K$.
# $p = q$ solves $m(p) = q$ iff $\varepsilon q = \varepsilon/K$.
#
# *(c)* Average {eq}`eq-clamp` over $y \sim q$: the weights become $(1 - \varepsilon) q_k +
# \varepsilon/K = m(q)_k$, so $L_\varepsilon(p; q) = L(m(p); m(q))$. It is least where
# $m(p) = m(q)$, and there only, and $m$ is one to one: $p = q$. All entries of $m(p)$
# are in $[\varepsilon/K, 1]$, a compact set. $\square$
# :::
#
# What each of the three does to the report, by brute force on the functions of the package:

# %% mystnb={"figure": {"caption": "The best report for a rare option against its true chance (two options, log + half spherical). Honest is the diagonal. The floor at {res}`03_proper_scoring:floor` makes 0 the best report for every truth below {res}`03_proper_scoring:threshold:.2e`; mixing the report alone, at $\\varepsilon$ = {res}`03_proper_scoring:eps`, makes it 0 below {res}`03_proper_scoring:alone_zero` and too small above. Mixing report and label stays on the diagonal. Reports of exactly 0 are drawn along the foot.", "name": "fig-proper-clamp"}, "image": {"alt": "Log-log plot of best report against true chance from one in a million to 0.3. Green circles, mixing both, lie on the diagonal throughout. The ochre dashed line, floor, follows the diagonal down to 0.00027 and then falls to the line at the foot marked zero. The red dash-dotted line, mixing the report alone, bends below the diagonal from about 0.05 and falls to zero at 0.005."}}
truths = np.logspace(-6, np.log10(0.3), 90)
candidates = np.r_[0.0, np.logspace(-6.5, np.log10(0.5), 4000)]
p = np.stack([candidates, 1 - candidates], 1)
tried = np.broadcast_to(p, (len(truths), *p.shape))
q = np.stack([truths, 1 - truths], 1)[:, None, :] + np.zeros_like(tried)
mixed = (1 - EPS) * tried + EPS / 2
ways = {
    "floor": scoring.log_spherical(tried, q, floor=FLOOR),
    "mix p alone": scoring.log_spherical(mixed, q),
    "mix both": scoring.log_spherical(tried, q, eps=EPS),
}
best = {name: candidates[loss.argmin(1)] for name, loss in ways.items()}


def temptation(r):
    """What zero gains over honesty under the floored composite."""
    honest, told = [r, 1 - r], [r, 1 - r]
    loss = scoring.log_spherical(honest, told, floor=FLOOR)
    return float(loss - scoring.log_spherical(lie, told, floor=FLOOR))


threshold = brentq(temptation, 1e-4, 1e-3)
save_numbers(CHAPTER, {"threshold": threshold, "alone_zero": EPS / 2})
save_numbers(CHAPTER, {"rule_of_thumb": np.exp(FLOOR + 1)})
at_stake = max(temptation(r) for r in np.logspace(-6, -3, 301))
save_numbers(CHAPTER, {"temptation": at_stake})
fig, ax = plots.figure()
foot = 3e-7
ax.plot(truths, truths, color=plots.INK, lw=1, ls=":")
for name, colour, line in (
    ("mix p alone", plots.COLORS["rlvr"], "-."),
    ("floor", plots.COLORS["broken"], "--"),
):
    ax.plot(truths, np.maximum(best[name], foot), color=colour, ls=line)
ax.plot(
    truths[::6], best["mix both"][::6], "o", color=plots.COLORS["verdict"]
)
plots.note(ax, "mix both", 3e-5, 3e-5, xytext=(-6, 12), ha="right")
plots.note(ax, "floor", threshold, 4e-6)
plots.note(ax, "mix p alone", 5e-3, 4e-6)
ax.set(xscale="log", yscale="log", ylim=(2e-7, 0.5))
ax.set_yticks(
    [foot, 1e-6, 1e-4, 1e-2], ["0", "$10^{-6}$", "$10^{-4}$", "$10^{-2}$"]
)
_ = ax.set(xlabel="true chance of the option", ylabel="best report")

# %% [markdown]
# A rule of thumb is $e^{\ell + 1}$, here {res}`03_proper_scoring:rule_of_thumb:.4e`; the exact
# threshold is {res}`03_proper_scoring:threshold:.4e`, lower in the fourth digit, since both
# $q^*/2$ and the spherical half count a little against the lie. At stake is at
# most {res}`03_proper_scoring:temptation:.1e` of score for each rare option. With three
# options and noisy labels nobody will notice. With a hundred options, most of them rare,
# the temptation adds up, and what goes first are the small probabilities that
# a threshold for rare events reads.
#
# Mixing the report alone is the mend that suggests itself, and it moves the lie to larger
# probabilities:


# %%
def best_report(q_right, loss):
    """Best probability for the first of two options, by bounded search."""
    found = minimize_scalar(
        lambda r: float(
            loss(np.array([r, 1 - r]), np.array([q_right, 1 - q_right]))
        ),
        bounds=(0.5, 1.0),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return found.x


rows = {}
for q_right in (0.7, 0.9, 0.99, 0.999):
    alone = best_report(
        q_right,
        lambda p, t: scoring.log_spherical((1 - EPS) * p + EPS / 2, t),
    )
    both = best_report(
        q_right, lambda p, t: scoring.log_spherical(p, t, eps=EPS)
    )
    rows[f"{q_right:g}"] = {"mix p alone": alone, "mix both": both}
save_numbers(CHAPTER, {"alone_90": rows["0.9"]["mix p alone"]})
pd.DataFrame(rows).T.rename_axis("truth").map(lambda v: f"{v:.5f}")

# %% [markdown]
# For a truth of .9 it reports {res}`03_proper_scoring:alone_90:.5f`, from .995 on certainty.
# Either the mixed $m(p)$ is what is trained, logged, thresholded *and* deployed, by {prf:ref}`thm-clamp`
# (b), or the label is mixed too. The objective `log_spherical_bounded` and
# `scoring.clamped` do the latter; they are separate implementations of {eq}`eq-clamp` and must agree:

# %%
p, q = rng.dirichlet(np.ones(4), (2, 500))
training = bounded_score(composite_score(1.0, spherical=0.5), EPS)
score = training(torch.tensor(p).log(), torch.tensor(q)).numpy()
same = np.abs(score + bounded.expected(p, q) - 0.5).max() < 1e-12
grid = plots.simplex_grid(40)
truth_rows = rng.dirichlet(np.ones(3), 200)
truth_rows[:100] = np.eye(3)[rng.integers(0, 3, 100)]  # certain truths too
positive = all(
    bounded.divergence(grid, np.broadcast_to(t, grid.shape))[
        np.abs(grid - t).max(1) > 1e-9
    ].min()
    > 0
    for t in truth_rows
)
print("training and scorer agree within 1e-12:", same)
print("excess > 0 away from the truth, corners included:", positive)

# %% [markdown]
# ## A distribution as the action
#
# Some recipes treat the whole distribution as a continuous action: add Gaussian noise to
# the logits, score each noisy softmax, and apply REINFORCE with a leave-one-out baseline
# (`rewards.logit_noise_loss`). The score needs the label, and then it is a differentiable function
# of $z$, whose gradient one backward pass gives exactly. What does the noise add? Variance, and a
# bias:
#
# :::{prf:proposition} The smoothed optimum
# :label: prp-proper-smoothing
#
# REINFORCE with $\tilde z = z + \sigma \xi$ estimates the gradient of the *smoothed* loss
# $\mathbb{E}_\xi L(\operatorname{softmax}(z + \sigma \xi); q)$. For the log score that
# loss is convex in $z$ and least where
#
# $$ \mathbb{E}_\xi \operatorname{softmax}(z + \sigma \xi) = q . $$ (eq-smoothed)
#
# So for $K = 2$, symmetric noise and $q \ne \tfrac12$ the noise-free report
# $\operatorname{softmax}(z)$ is more extreme than $q$: over-confident, for every $\sigma > 0$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# The density of $\tilde z$ is Gaussian about $z$ and its score function is $(\tilde z -
# z)/\sigma^2$; $\nabla_z \mathbb{E} f(\tilde z) = \mathbb{E}[f(\tilde z) (\tilde z -
# z)/\sigma^2]$, and an independent baseline changes nothing. For the log score
# $L(\operatorname{softmax}(u); q) = \log \sum_j e^{u_j} - q^\top u$ is convex in $u$, and
# so is its average over shifts; the gradient is $\mathbb{E}\operatorname{softmax}(z +
# \sigma\xi) - q$. For $K = 2$ let $q_1 > \tfrac12$, $d = z_1 - z_2$, and $e$ the symmetric
# noise of the difference. Write $\psi(d) = (1 + \tanh(d/2))/2$ for the report of option 1. At the
# optimum $\mathbb{E}\,\psi(d + e) = q_1$, hence $d > 0$. With
#
# $$ \tanh\tfrac{d + e}{2} + \tanh\tfrac{d - e}{2} = \frac{2 \sinh d}{\cosh d + \cosh e}
#    < \frac{2 \sinh d}{\cosh d + 1} = 2 \tanh\tfrac d2 \quad (e \ne 0), $$
#
# pairing $e$ with $-e$ gives $q_1 = \mathbb{E}\,\psi(d + e) < \psi(d)$. $\square$
# :::
#
# The four rules of the table, by Gauss–Hermite quadrature, $K = 2$, noise of the given size on both
# logits:

# %%
nodes, weights = np.polynomial.hermite_e.hermegauss(80)
weights = weights / weights.sum()


def smoothed_best(name, q_right, sigma):
    """Logit difference that minimises the smoothed loss."""

    def loss(d):
        stated = expit(d + np.sqrt(2) * sigma * nodes)
        rows = np.stack([stated, 1 - stated], 1)
        told = np.tile([q_right, 1 - q_right], (len(rows), 1))
        return weights @ RULES[name].expected(rows, told)

    options = {"xatol": 1e-10}
    return minimize_scalar(
        loss, bounds=(0, 8), method="bounded", options=options
    ).x


rows = {
    f"truth {q_right}, noise {sigma}": {
        name: expit(smoothed_best(name, q_right, sigma))
        for name in ("log", "log_spherical", "brier", "spherical")
    }
    for q_right in (0.7, 0.9)
    for sigma in (0.5, 1.0)
}
smooth = pd.DataFrame(rows).T
keys = {"s70": "truth 0.7, noise 0.5", "s90": "truth 0.9, noise 0.5"}
keys |= {"b70": "truth 0.7, noise 1.0", "b90": "truth 0.9, noise 1.0"}
save_numbers(
    CHAPTER, {k: smooth.loc[v, "log_spherical"] for k, v in keys.items()}
)
save_numbers(CHAPTER, {"brier_b70": smooth.loc[keys["b70"], "brier"]})
smooth.round(3)

# %% [markdown]
# Under the composite a truth of .7 is reported as {res}`03_proper_scoring:s70:.3f` at
# $\sigma = .5$ and as {res}`03_proper_scoring:b70:.3f` at $\sigma = 1$; .9 becomes
# {res}`03_proper_scoring:s90:.3f` and {res}`03_proper_scoring:b90:.3f`. Brier is bent further
# ({res}`03_proper_scoring:brier_b70:.3f` for .7 at $\sigma = 1$): a bounded price hardly punishes noisy
# reports that are too extreme. Now the estimator itself, at the honest logits, where the exact
# gradient is zero, and at the smoothed optimum:

# %%
n, q_right, sigma = 40_000, 0.7, 1.0
target = torch.tensor([[q_right, 1 - q_right]]).expand(n, 2)
generator = torch.Generator().manual_seed(seed)
score = composite_score(1.0, spherical=0.5)


def noisy_gradients(logits, told, draws, size=sigma):
    """Ascent directions (n, 2) with a whole distribution as action."""
    leaf = logits.clone().requires_grad_(True)
    logit_noise_loss(
        leaf, told, score, size, draws, generator
    ).sum().backward()
    return -leaf.grad.numpy()


rows = {}
ends = {
    "honest .7": np.log(q_right / (1 - q_right)),
    "smoothed optimum": smoothed_best("log_spherical", q_right, sigma),
}
for place, d in ends.items():
    at = torch.tensor([[d / 2, -d / 2]]).expand(n, 2)
    pushes = noisy_gradients(at, target, 8)[:, 0]
    error = pushes.std(ddof=1) / np.sqrt(n)
    rows[place] = {"mean push": pushes.mean(), "standard error": error}
bias = pd.DataFrame(rows).T
bias["in standard errors"] = bias["mean push"] / bias["standard error"]
save_numbers(
    CHAPTER, {"honest_z": bias.iloc[0, 2], "optimum_z": bias.iloc[1, 2]}
)
bias.round(4)

# %% [markdown]
# At honesty it pushes on by {res}`03_proper_scoring:honest_z:.0f` standard errors; at the
# smoothed optimum it rests ({res}`03_proper_scoring:optimum_z:.1f`). And the variance? For one drawn
# label a question and a policy that states one half, the mean push and the trace of the covariance
# of one question's gradient, in all and from the noise alone, with the label held fixed:

# %%
start = torch.zeros(n, 2)
drawn = (torch.rand(n, generator=generator) < q_right).long()
told = torch.stack([drawn, 1 - drawn], 1).to(start.dtype)
fixed = torch.tensor([[1.0, 0.0]]).expand(n, 2)
direct = exact.moments(
    OBJECTIVES["log_spherical"], [0.5, 0.5], [q_right, 1 - q_right]
)
cost = {
    "one backward pass": {
        "mean push": float(direct.mean.norm()),
        "variance": direct.trace,
        "label fixed": 0.0,
    }
}
small = 0.05
for draws, size in ((2, 1.0), (8, 1.0), (32, 1.0), (8, small)):
    sampled = noisy_gradients(start, told, draws, size)
    alone = noisy_gradients(start, fixed, draws, size)
    cost[f"{draws} draws, noise {size:g}"] = {
        "mean push": float(np.linalg.norm(sampled.mean(0))),
        "variance": float(sampled.var(0, ddof=1).sum()),
        "label fixed": float(alone.var(0, ddof=1).sum()),
    }
cost = pd.DataFrame(cost).T
cost["variance / push²"] = cost["variance"] / cost["mean push"] ** 2
relative = cost["variance / push²"] / cost["variance / push²"].iloc[0]
for draws in (2, 8, 32):
    ratio = float(relative[f"{draws} draws, noise 1"])
    save_numbers(CHAPTER, {f"relative_{draws}": ratio})
ratio = float(relative[f"8 draws, noise {small:g}"])
save_numbers(CHAPTER, {"relative_small": ratio, "small": small})
at_small = expit(smoothed_best("log_spherical", q_right, small))
save_numbers(CHAPTER, {"best_small": at_small})
cost.round(3)

# %% [markdown]
# Read the last column, since the smoothed loss is flatter and its steps are shorter.
# Two draws need {res}`03_proper_scoring:relative_2:.1f` times as many questions as the
# backward pass for a push of the same precision, eight need
# {res}`03_proper_scoring:relative_8:.1f` times as many; at thirty-two
# ({res}`03_proper_scoring:relative_32:.2f` times) the luck of the label is nearly all that
# is left. The bias can be made small: at a noise of {res}`03_proper_scoring:small` the
# best report for .7 is {res}`03_proper_scoring:best_small:.4f`, and thanks to the baseline the variance
# does not blow up ({res}`03_proper_scoring:relative_small:.1f` times at eight draws; without one it
# would grow as $1/\sigma^2$). So the method is not broken but pointless: with small noise and many
# draws it becomes, at some expense, the derivative that one backward pass gives exactly. Sampling is
# the right tool when the reward cannot be differentiated.
#
# ## Which one?
#
# - **Clean labels or verdicts, in plenty:** the log score. Its push does not fade.
# - **Noisy labels, or a mean loss that one row must not dominate:** Brier, or the mended composite.
# - **Ordered options:** add the RPS, so that a near miss is cheaper.
# - **Never:** a floor or a clip inside the log of a loss whose numbers somebody will
#   threshold; `p.clamp(min=1e-4)` is such a floor.
# - **Report at least two.** One rule ranks policies by one taste ({ref}`ex-proper-2`).
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *A truth at which a mended rule is beaten by another report* would refute
#   {prf:ref}`thm-clamp` (c). The grid search found none, corners included.
# - **Propriety is about the optimum, and nobody reaches it.** With finite data and a
#   network that cannot fit every $q$, rules end at different places. {cite:t}`merkle2013`
#   find on forecasts of world events that conclusions vary greatly between proper rules:
#   "any proper score will do" is false in practice.
# - **A fading push is not always bad.** It makes Brier robust to labels that are simply wrong.
#   {cite:t}`selten1998` derives the quadratic rule from four axioms
#   and holds the log score's sensitivity to tiny probabilities against it; for $K \ge 3$ the log
#   score is the only one of our rules that looks at $p_y$ alone.
# - **Does the floor matter in training?** For three options hardly, by the sizes above.
#   {cite:t}`baniharouni2025` train language models on a logarithmic reward with success. We
#   fix it because the fix is free, not because the harm is always large.
# - **Noise as exploration.** If the reward were no known function of $p$ (a downstream
#   cost, a person's reaction to the numbers), noise on the logits would be one of few ways to
#   learn at all.
# :::
#
# ## Exercises
#
# :::{exercise} Absolute error
# :label: ex-proper-1
#
# A colleague trains on $\sum_k |p_k - 1[k = y]|$, "like Brier, but robust". What does
# the policy report for $q = (.5, .3, .2)$? For which $q$ is it honest?
# :::
#
# :::{solution-start} ex-proper-1
# :label: sol-proper-1
# :class: dropdown
# :::
#
# $\sum_k |p_k - 1[k = y]| = (1 - p_y) + \sum_{k \ne y} p_k = 2 (1 - p_y)$: twice the
# last column of the table above. Its mean $2(1 - p^\top q)$ is linear in $p$ and least at the
# corner of the likeliest option. Honesty is the one best report only if $q$ is a corner, and ties
# with others if all positive entries of $q$ are equal. In the language of {prf:ref}`thm-proper`, the
# minimum over $p$ is $2(1 - \max_k q_k)$, concave but not strictly:

# %%
mean = np.abs(grid[:, None, :] - np.eye(3)).sum(-1) @ q_shown
corner = grid[mean.argmin()]
assert np.allclose(mean, 2 * (1 - grid @ q_shown))
assert corner.tolist() == [1, 0, 0]
corner

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Two honest judges who disagree
# :label: ex-proper-2
#
# Find a truth and two reports that Brier and the log score rank in opposite order.
# Which of the two would you rather use, if a rare option is the expensive one?
# :::
#
# :::{solution-start} ex-proper-2
# :label: sol-proper-2
# :class: dropdown
# :::
#
# Make the first report nearly right but for one option that it all but denies. Brier
# sees a small distance, the log score a large ratio. If that option is the expensive
# one, the second report is the one to have:

# %%
first, second = np.array([0.5, 0.499, 0.001]), np.array([0.25, 0.4, 0.35])
excess = {
    name: [
        float(RULES[name].divergence(p, q_shown)) for p in (first, second)
    ]
    for name in ("brier", "log")
}
assert excess["brier"][0] < excess["brier"][1]
assert excess["log"][0] > excess["log"][1]
pd.DataFrame(excess, index=["denies C", "blurred"]).round(3)

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Label smoothing
# :label: ex-proper-3
#
# Label smoothing trains the log score on $m(y) = (1 - \varepsilon) e_y + \varepsilon/K$
# but leaves $p$ alone. What is reported? Repair it after training.
# :::
#
# :::{solution-start} ex-proper-3
# :label: sol-proper-3
# :class: dropdown
# :::
#
# The mean loss is $L_{\log}(p; m(q))$, least at $p = m(q)$: under-confident, by the same
# shrinkage everywhere. Invert the mixture after training, $q = (p - \varepsilon/K)/(1 -
# \varepsilon)$; where a network did not reach the optimum this may leave the simplex.
# Mixing both sides builds the inverse into the loss instead:

# %%
eps, truth_3 = 0.1, np.array([0.9, 0.07, 0.03])
smoothed_truth = (1 - eps) * truth_3 + eps / 3
fine = np.vstack([plots.simplex_grid(100), truth_3, smoothed_truth])
fine = fine[(fine > 0).all(1)]
reported = fine[scoring.log_loss(fine, smoothed_truth + 0 * fine).argmin()]
repaired = (reported - eps / 3) / (1 - eps)
both = fine[scoring.log_loss(fine, truth_3 + 0 * fine, eps=eps).argmin()]
assert np.allclose(repaired, truth_3) and np.allclose(both, truth_3)
pd.DataFrame(
    [reported, repaired, both], ["reported", "repaired", "mix both"]
).round(3)

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} A floor deep enough
# :label: ex-proper-4
#
# You route among options of which the rarest that matters comes once in a million.
# How deep must the floor be so that it does not pay to deny it?
# :::
#
# :::{solution-start} ex-proper-4
# :label: sol-proper-4
# :class: dropdown
# :::
#
# By {eq}`eq-floor` the threshold is $e^{\ell + 1}$ to first order, so $\ell < \log 10^{-6}
# - 1$. Any floor lies somewhere, and one this deep bounds little:

# %%
rare = 1e-6


def gain(floor):
    told = [rare, 1 - rare]
    honest = scoring.log_loss(told, told, floor=floor)
    return float(honest - scoring.log_loss(lie, told, floor=floor))


needed = brentq(gain, -20, -14.0)
assert abs(needed - (np.log(rare) - 1)) < 1e-5
print(f"floor below {needed:.2f}, against -9.21")

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# {cite:t}`gneiting2007` is the reference, with the theorem in full generality and many more
# rules; {cite:t}`savage1971` the source; {cite:t}`good1952` and {cite:t}`brier1950` the first
# log and quadratic scores. {cite:t}`merkle2013` on how to choose.
#
# Next: {doc}`04_variance`, what it costs to learn a proper score from one bit, and
# {doc}`08_stated_confidence`, a proper score that is fooled because the policy also
# chooses what is scored.
