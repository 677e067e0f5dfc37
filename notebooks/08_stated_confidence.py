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
# # Stated confidence and the trap
#
# **Question.** Let a model answer and then *say* how sure it is. If the stated number is
# paid by a proper score, does the pair become right and honest?
#
# **Answer.** Honest, yes; right, not by that reward alone. The Brier score pays a certain
# failure exactly as much as a certain success, so a policy that chooses what it is scored
# on may learn to fail reliably. Paying for being right, at least as much as a
# confident denial can cost, closes the trap; so does training the answer on correctness
# alone.
#
# **After this page you can** tell from a reward's formula whether it has the trap and where,
# recognise the trap in a published table, and see why a stated confidence can be calibrated
# and still worth nothing.
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

# %% mystnb={"figure": {"caption": "A policy with two parameters: how often it takes its good answer (across: the chance $s$ of being right that results) and the confidence $v$ it states (up). Lines follow the expected update; on the dotted diagonal the statement is honest. Shaded: starts that end at the bad answer. Blue: {res}`08_stated_confidence:n_paths` simulated runs from a start like the published one ({res}`08_stated_confidence:start_s` right, {res}`08_stated_confidence:start_v` stated). Brier alone leads them into the trap; the reward RLCR, $c - (v - c)^2$, and decoupled advantages lead them out; with four times the Brier weight the trap is back, the start lies near its edge, and chance decides (fallen in: {res}`08_stated_confidence:fell.2` of {res}`08_stated_confidence:n_paths`).", "name": "fig-stated-portrait"}, "image": {"alt": "Four phase portraits, chance right across and stated confidence up. Brier alone: streamlines part at the middle; starts in the lower left half-plane are shaded, and blue runs from (0.31, 0.69) turn down and end at the lower left. RLCR: all lines end at the upper right, no shading, and the runs do too. Four times the Brier weight: a shaded region at the lower left again; the runs part, some to each side. Decoupled: all lines sweep to the upper right."}} tags=["hide-input"]
import numpy as np
import pandas as pd
import sympy
import torch
from scipy.optimize import brentq
from scipy.special import expit, logit
from torch.nn.functional import logsigmoid

from rlcd_core import plots
from rlcd_core.metrics import aurc, ece
from rlcd_core.records import save_numbers
from rlcd_core.rewards import leave_one_out, stated_reward
from rlcd_core.scoring import RULES, murphy

CHAPTER = "08_stated_confidence"
plots.use_style()
torch.set_default_dtype(torch.float64)
GOOD, BAD = 0.9, 0.1  # how often the two answers are right
START_S, START_V = 0.31, 0.69
BLUE, OCHRE = plots.COLORS["rlcd"], plots.COLORS["broken"]
ARMS = {
    "Brier alone": {"kind": "brier"},
    "RLCR": {"kind": "rlcr"},
    "4 × Brier weight": {"kind": "rlcr", "weight": 4.0},
    "decoupled": {"kind": "brier", "decoupled": True},
}


def chance(u):
    """Chance of being right if the good answer has logit u."""
    return BAD + (GOOD - BAD) * torch.sigmoid(u)


def surrogate(u, w, took_good, outcome, kind, weight=1.0, decoupled=False):
    """What a step ascends; parameters (R, 1), draws (R, G), result (R, G).

    The answer is trained by REINFORCE, the confidence through the reward itself.
    """
    stated = torch.sigmoid(w).expand(outcome.shape)
    reward = stated_reward(stated, outcome, kind, weight)
    answer = (
        stated_reward(stated, outcome, "binary") if decoupled else reward
    )
    answer = answer.detach()
    if answer.shape[1] > 1:
        answer = leave_one_out(answer, torch.ones_like(took_good))
    return answer * logsigmoid(torch.where(took_good, u, -u)) + reward


def train(u, w, steps, generator, group=32, rate=1.0, **arm):
    """Runs (R,) from logits u, w; returns ends and paths (steps, 2, R)."""
    path = []
    for _ in range(steps):
        path.append(torch.stack([chance(u), torch.sigmoid(w)]))
        took_good = torch.rand(len(u), group, generator=generator)
        took_good = took_good < torch.sigmoid(u)[:, None]
        luck = torch.rand(len(u), group, generator=generator)
        outcome = (luck < torch.where(took_good, GOOD, BAD)).to(u.dtype)
        leaves = [x.clone().requires_grad_(True) for x in (u, w)]
        columns = [x[:, None] for x in leaves]
        gain = surrogate(*columns, took_good, outcome, **arm).mean(1).sum()
        du, dw = torch.autograd.grad(gain, leaves)
        u, w = u + rate * du, w + rate * dw
    return u, w, torch.stack(path).numpy()


def flow(s, v, kind, weight=1.0, decoupled=False):
    """Expected update of (u, w) where the chance is s and v is stated."""
    share = (s - BAD) / (GOOD - BAD)
    slope = 2 * v - 1 if kind == "brier" else 1 + weight * (2 * v - 1)
    slope = 1.0 if decoupled else slope
    du = share * (1 - share) * (GOOD - BAD) * slope
    return du, 2 * weight * (s - v) * v * (1 - v)


def ends_well(s, v, **arm):
    """Follow the flow at unit speed; does it end at the good answer?"""
    u, w = logit((s - BAD) / (GOOD - BAD)), logit(v)
    for _ in range(900):
        s_now = BAD + (GOOD - BAD) * expit(u)
        du, dw = flow(s_now, expit(w), **arm)
        speed = np.hypot(du, dw) + 1e-12
        u = np.clip(u + 0.04 * du / speed, -9, 9)
        w = np.clip(w + 0.04 * dw / speed, -9, 9)
    return u > 0


n_paths = 6
start = [logit((START_S - BAD) / (GOOD - BAD)), logit(START_V)]
begin = [torch.full((n_paths,), x) for x in start]
s_axis = np.linspace(BAD + 0.004, GOOD - 0.004, 49)
v_axis = np.linspace(0.02, 0.98, 49)
s_grid, v_grid = np.meshgrid(s_axis, v_axis)
generator = torch.Generator().manual_seed(seed)
fell = []  # runs that end in the trap, by panel

fig, axes = plots.figure(2, 2, height=2.9, sharex=True, sharey=True)
for ax, (name, arm) in zip(axes.flat, ARMS.items(), strict=True):
    du, dw = flow(s_grid, v_grid, **arm)
    share = (s_grid - BAD) / (GOOD - BAD)
    ds = (GOOD - BAD) * share * (1 - share) * du
    dv = v_grid * (1 - v_grid) * dw
    look = {"color": plots.INK, "linewidth": 0.8, "arrowsize": 0.8}
    ax.streamplot(s_axis, v_axis, ds, dv, density=0.62, **look)
    trapped = ~ends_well(s_grid, v_grid, **arm)
    if trapped.any():
        shade = {"colors": [OCHRE], "alpha": 0.3}
        ax.contourf(s_axis, v_axis, trapped, levels=[0.5, 1], **shade)
    ax.plot([0, 1], [0, 1], color=plots.INK, lw=1, ls=":")
    _, _, path = train(*begin, 500, generator, **arm)
    fell.append(int((path[-1, 0] < 0.5).sum()))
    ax.plot(path[::4, 0], path[::4, 1], color=BLUE, lw=1.1)
    ax.plot(START_S, START_V, "o", color=BLUE, ms=5)
    ax.plot(*path[-1], "*", color=BLUE, ms=9, mec="none")
    _ = ax.set(title=name, xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1])
fig.supxlabel("chance of being right", fontsize=11)
fig.supylabel("stated confidence", fontsize=11)
save_numbers(
    CHAPTER, {"n_paths": n_paths, "start_s": START_S, "start_v": START_V}
)
save_numbers(CHAPTER, {"fell": fell})

# %% [markdown]
# ## A ticket
#
# *"I was charged twice, and now the app crashes."* The policy names a team and adds a
# number: "billing, .7". Later one bit comes back. Pay the number by the binary Brier score,
# $-(v - c)^2$ (Brier for short on this page), and it has every reason to be honest. Now look at the
# pay of four answers, each stated with perfect honesty:

# %%
policies = {
    "billing": 0.5,
    "bug": 0.3,
    "other": 0.2,
    "a team long gone": 0.0,
}
bill = {}
for team, right in policies.items():
    s = torch.tensor(right)
    pays = {}
    for label, kind in (
        ("Brier alone", "brier"),
        ("RLCR", "rlcr"),
        ("c + log score", "log"),
    ):
        hit = stated_reward(s, torch.tensor(1.0), kind)
        miss = stated_reward(s, torch.tensor(0.0), kind)
        paid = [v for v in (s * hit, (1 - s) * miss) if not v.isnan()]
        pays[label] = float(sum(paid))
    bill[f"{team}, {right:g} stated"] = pays
pd.DataFrame(bill).T.round(3)

# %% [markdown]
# Under Brier alone the likeliest answer is paid worst, and the best answer is one that
# cannot be right, with confidence zero. Nothing is gamed about the *number*: it is honest in
# every row. The proper score did its work. But propriety compares reports about one
# fixed event, and here the policy also picks the event.
#
# ## What each reward pays
#
# Let $s$ be the chance that the answer is right, $v$ the stated confidence, $c$ the outcome,
# and $R(s, v) = s\, r(v, 1) + (1 - s)\, r(v, 0)$ the mean reward. The number $v$ is drawn to
# where $R$ is largest in $v$; the *answer* is drawn to larger or smaller $s$ by the slope
# $\partial R / \partial s = r(v, 1) - r(v, 0)$ at the confidence that is stated *now*.
#
# :::{prf:theorem} When being right pays
# :label: thm-stated
#
# (a) *Brier alone*, $r = -(v - c)^2$: honest $v = s$ is best and pays $-s(1 - s)$, the same
# for $s$ as for $1 - s$. The slope is $2v - 1$: whoever states less than one half is taught
# to fail.
#
# (b) *RLCR*, $r = c - w (v - c)^2$ with $w > 0$: honest $v$ is best and pays
#
# $$ s - w\, s (1 - s) , $$ (eq-rlcr)
#
# which is $s^2$ at $w = 1$. The slope is $1 - w + 2 w v$, negative iff $w > 1$ and
# $v < (w - 1)/(2w)$. For $w > 1$ certain failure beats every honest answer with $0 < s < 1 - 1/w$.
#
# (c) *With a log term*, $r = c + w \,[\,c \log v + (1 - c) \log (1 - v)]$: honest $v$ is
# best, the slope is $1 + w \operatorname{logit} v$, negative iff $v < \sigma(-1/w)$, and this for
# *every* $w > 0$.
#
# (d) *In general* let $r = c - w L(v, c)$ with a proper, differentiable $L$ of entropy $H$,
# $L(0, 0) = 0$. Honesty pays $s - w H(s)$, the slope is $1 - w H'(v)$, and it is nowhere
# negative if and only if
#
# $$ w \, L(0, 1) \le 1 : $$ (eq-trap-free)
#
# a flat denial of what turns out right may cost no more than being right earns.
#
# (e) *Decoupled*: with the advantage of the answer computed from $c$ and that of the
# confidence from $-(v - c)^2$, the slope is 1 for every $v$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *(d)* By {eq}`eq-savage` for two options, written with $v$ as the one free coordinate,
# $L(v, 1) = H(v) + H'(v)(1 - v)$ and $L(v, 0) = H(v) - H'(v) v$. So $L(v, 1) - L(v, 0) =
# H'(v)$ and the slope is $1 - w H'(v)$. As $c$ does not involve $v$, the best $v$ for given $s$
# is that of the proper $L$, $v = s$, and $R(s, s) = s - w H(s)$. $H$ is concave, so $H'$
# is largest as $v \to 0$, where by the first formula $L(v, 1) \to H(0) + H'(0) = H'(0)$,
# since $H(0) = L(0, 0) = 0$. So the slope is $\ge 0$ everywhere iff $w L(0, 1) \le 1$.
#
# *(a), (b)* $L = (v - c)^2$ has $H(v) = v(1 - v)$, $H' = 1 - 2v$ and $L(0, 1) = 1$. In (a)
# the first term $c$ is missing, and the slope is $-H'(v)$. In (b) $1 - w(1 - 2v) < 0$ iff $v <
# (w - 1)/(2w)$, which is positive iff $w > 1$. Certain failure, $s = v = 0$, pays 0, and
# $s - w s (1 - s) < 0$ iff $1 - s > 1/w$.
#
# *(c)* $H(v) = -v \log v - (1 - v) \log (1 - v)$, $H' = -\operatorname{logit} v$, $L(0, 1) =
# \infty$. $1 + w \operatorname{logit} v < 0$ iff $\operatorname{logit} v < -1/w$.
#
# *(e)* $r(v, 1) - r(v, 0) = 1$ for $r = c$. $\square$
# :::
#
# Condition {eq}`eq-trap-free` is the point of contact with {cite:t}`damani2025`, who
# introduced RLCR and prove their result for *bounded* proper scores. Boundedness
# is what makes a small enough $w$ exist; the weight must still be that small.
#
# :::{prf:proposition} Brier alone prefers the worst answer
# :label: prp-stated-worst
#
# Let exactly one of $K \ge 3$ options be right, with chances $q_k < 1$, and let the policy
# state an honest confidence for whichever option it names. Under Brier alone the best
# option to name is the *least* likely one, whatever $q$. At $K = 2$ both tie.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# Naming $k$ pays $-q_k (1 - q_k)$, which grows with $|q_k - \tfrac12|$. Let $m$ be the least
# and $M$ the largest entry. If $M \le \tfrac12$ all entries are at most one half and the least
# is the farthest. If $M > \tfrac12$, only $M$ lies above, and $m$ is at least as far from
# one half iff $\tfrac12 - m \ge M - \tfrac12$, that is $M + m \le 1$. This holds, as the
# two are different options of one distribution; strictly if another option has mass. If
# none has, $m = 0$ for $K \ge 3$ (the others have no mass and $m$ is the least), so $M = 1$,
# excluded. For $K = 2$, $m = 1 - M$: a tie. $\square$
# :::
#
# ## Three checks
#
# **Symbolic:** honest optimum, honest pay and slope, from the formulas of the rewards.

# %%
s, v, w = sympy.symbols("s v w", positive=True)
square, log_term = -((v - 1) ** 2), sympy.log(v)
square_0, log_0 = -(v**2), sympy.log(1 - v)
claims = {  # r(v, 1), r(v, 0), honest pay, slope
    "brier": (square, square_0, -s * (1 - s), 2 * v - 1),
    "rlcr": (
        1 + w * square,
        w * square_0,
        s - w * s * (1 - s),
        1 - w + 2 * w * v,
    ),
    "log": (
        1 + w * log_term,
        w * log_0,
        s + w * (s * sympy.log(s) + (1 - s) * sympy.log(1 - s)),
        1 + w * (sympy.log(v) - sympy.log(1 - v)),
    ),
}
remainders = []
for hit, miss, honest_pay, slope in claims.values():
    mean = s * hit + (1 - s) * miss
    remainders += [
        sympy.simplify(sympy.diff(mean, v).subs(v, s)),
        sympy.simplify(mean.subs(v, s) - honest_pay),
        sympy.simplify(sympy.diff(mean, s) - slope),
    ]
print(len(remainders), "differences; not 0:", len(set(remainders) - {0}))

# %% [markdown]
# **Enumeration.** The update that trains the simulated policy, averaged over both answers
# and both outcomes with their probabilities, against the formulas: the answer's logit moves
# by $\pi (1 - \pi) \Delta$ times the slope, where $\pi$ is the chance of the good answer
# and $\Delta$ the gap between the two success chances; the confidence's by
# $v (1 - v)\, \partial R / \partial v$. And {prf:ref}`prp-stated-worst` over random $q$:

# %%
rng = np.random.default_rng(seed)


def exact_update(u, w, **arm):
    """Mean update of (u, w) over answers and outcomes."""
    leaves = [torch.tensor([[x]], requires_grad=True) for x in (u, w)]
    rows = [x.expand(4, 1) for x in leaves]
    took_good = torch.tensor([[True], [True], [False], [False]])
    outcome = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
    right = torch.where(took_good, GOOD, BAD)
    share = torch.sigmoid(torch.tensor(u))
    odds = torch.where(took_good, share, 1 - share)
    odds = odds * torch.where(outcome == 1, right, 1 - right)
    total = (odds * surrogate(*rows, took_good, outcome, **arm)).sum()
    return [float(g) for g in torch.autograd.grad(total, leaves)]


gap = 0.0
for arm in ARMS.values():
    for u, w in rng.normal(0, 1.5, (50, 2)):
        at = BAD + (GOOD - BAD) * expit(u)
        found = exact_update(u, w, **arm)
        gap = max(
            gap, np.abs(np.subtract(found, flow(at, expit(w), **arm))).max()
        )
print("200 updates within 1e-12:", gap < 1e-12)

worst_named = []
for size in range(3, 7):
    q = torch.tensor(rng.dirichlet(np.ones(size), 500))
    pay = q * stated_reward(q, torch.ones_like(q), "brier")
    pay = pay + (1 - q) * stated_reward(q, torch.zeros_like(q), "brier")
    worst_named.append(bool((pay.argmax(1) == q.argmin(1)).all()))
print(
    "K = 3..6, least likely option paid best in every draw:",
    all(worst_named),
)

# %% [markdown]
# **Simulation.** One large batch at the start of the runs of {numref}`fig-stated-portrait`,
# against the enumerated update, in standard errors:

# %%
n = 500_000
share = torch.sigmoid(torch.tensor(start[0]))
rows = {}
for name, arm in ARMS.items():
    leaves = [torch.full((n, 1), x, requires_grad=True) for x in start]
    took_good = torch.rand(n, 1, generator=generator) < share
    luck = torch.rand(n, 1, generator=generator)
    outcome = (luck < torch.where(took_good, GOOD, BAD)).to(share.dtype)
    total = surrogate(*leaves, took_good, outcome, **arm).sum()
    drawn = torch.autograd.grad(total, leaves)
    exact_step = exact_update(*start, **arm)
    rows[name] = {}
    for what, g, e in zip(
        ("answer", "stated"), drawn, exact_step, strict=True
    ):
        error = float(g.std()) / np.sqrt(n)
        rows[name][f"{what}: exact"] = e
        rows[name][f"{what}: gap / SE"] = (float(g.mean()) - e) / error
checked = pd.DataFrame(rows).T
worst = checked[["answer: gap / SE", "stated: gap / SE"]].abs().max().max()
save_numbers(CHAPTER, {"worst_z": worst})
checked.round(3)

# %% [markdown]
# The largest gap is {res}`08_stated_confidence:worst_z:.1f` standard errors.
#
# ## Where the trap is
#
# The thresholds of {prf:ref}`thm-stated`, from the reward function itself:


# %%
def pay(right, stated, kind, weight=1.0):
    """Mean reward R(s, v), by the package."""
    right, stated = torch.tensor(right), torch.tensor(stated)
    ones, zeros = torch.ones_like(stated), torch.zeros_like(stated)
    hit = right * stated_reward(stated, ones, kind, weight)
    return float(
        hit + (1 - right) * stated_reward(stated, zeros, kind, weight)
    )


def slope(stated, kind, weight):
    return pay(1.0, stated, kind, weight) - pay(0.0, stated, kind, weight)


rows = {}
for kind, weight in (
    ("rlcr", 0.5),
    ("rlcr", 1.0),
    ("rlcr", 2.0),
    ("rlcr", 4.0),
    ("log", 0.1),
    ("log", 0.5),
    ("log", 1.0),
    ("log", 2.0),
):
    edge = honest = 0.0
    if slope(1e-6, kind, weight) < -1e-5:
        edge = brentq(slope, 1e-6, 0.99, args=(kind, weight))
        if pay(1e-4, 1e-4, kind, weight) < 0:
            honest = brentq(
                lambda t, k, w: pay(t, t, k, w),
                1e-4,
                0.9999,
                args=(kind, weight),
            )
    term = "Brier" if kind == "rlcr" else "log"
    rows[f"c + {weight:g} {term}"] = {
        "answer taught to fail if v <": edge,
        "certain failure beats s <": honest,
    }
where = pd.DataFrame(rows).T
log_row = where.loc["c + 1 log"].tolist()
save_numbers(CHAPTER, {"log_edge": log_row[0], "log_honest": log_row[1]})
save_numbers(CHAPTER, {"log_tenth": where.loc["c + 0.1 log"].iloc[0]})
save_numbers(CHAPTER, {"log_two": where.loc["c + 2 log"].iloc[1]})
where.map(lambda x: f"{x:.4g}")

# %% [markdown]
# With the log term at weight one an answer that is right six times in ten and says so is
# paid less than a certain failure: the break-even is {res}`08_stated_confidence:log_honest:.4f`,
# and below a stated {res}`08_stated_confidence:log_edge:.4f` each step makes the answer
# worse. A smaller weight shrinks that region quickly (to
# {res}`08_stated_confidence:log_tenth:.1e` at a tenth) but never removes it. That is a fact about
# the optimum, not a prediction that training falls in: a model that starts out right
# most of the time and states high numbers never comes near.

# %% mystnb={"figure": {"caption": "What an honest answer is paid, by its chance of being right. Brier alone (ochre) is symmetric. The two dots are *published* results of another group: their arm trained on Brier alone and their RLCR arm, by accuracy and mean Brier score of the stated confidence. One is right {res}`08_stated_confidence:acc_brier:.0%` of the time, the other {res}`08_stated_confidence:acc_rlcr:.0%`, and the score cannot tell them apart.", "name": "fig-stated-pay"}, "image": {"alt": "Curves of honest pay over success chance. Brier alone: a valley from 0 at both ends to minus 0.25 in the middle, with two dots of equal height near 0.21 and 0.78, slightly below the curve. RLCR: s squared, rising throughout. Weight 2: dips below zero until one half. Log term: dips deepest, to about minus 0.31, and crosses zero at 0.65."}} tags=["hide-input"]
# Published in the readme of rlcd-lite, stated-confidence rows of its full table.
PUBLISHED = {
    "base": (0.490, 0.77, 0.395, 0.393, 0.166, 0.023, 1.112, 0.568),
    "RLCR": (0.784, 0.70, 0.084, 0.176, 0.007, 0.000, 0.539, 0.208),
    "Brier alone": (0.214, 0.30, 0.086, 0.176, 0.007, 0.000, 0.538, 0.793),
    "Brier, decoupled": (
        0.763,
        0.66,
        0.105,
        0.208,
        0.030,
        0.003,
        0.607,
        0.249,
    ),
    "binary": (0.758, 0.62, 0.352, 0.402, 0.241, 0.022, 1.167, 0.329),
}
COLUMNS = ["accuracy", "stated", "ECE", "Brier", "REL"]
COLUMNS += ["RES", "log loss", "AURC"]
published = pd.DataFrame(PUBLISHED, COLUMNS).T

x = np.linspace(0.0005, 0.9995, 400)
fig, ax = plots.figure()
ax.axhline(0, color=plots.INK, lw=1, ls=":")
ends = []
for label, kind, weight, colour, line in (
    ("RLCR", "rlcr", 1.0, BLUE, "-"),
    ("c + 2 Brier", "rlcr", 2.0, plots.COLORS["label"], "--"),
    ("c + log", "log", 1.0, plots.COLORS["verdict"], "-."),
    ("Brier alone", "brier", 1.0, OCHRE, "-"),
):
    y = [pay(t, t, kind, weight) for t in x]
    ax.plot(x, y, color=colour, ls=line)
    ends.append((x[-1], y[-1], label, colour))
for arm in ("RLCR", "Brier alone"):
    at, score = published.loc[arm, ["accuracy", "Brier"]]
    ax.plot(at, -score, "o", color=OCHRE)
    plots.note(
        ax, f"{arm},\npublished", at, -0.5, xytext=(0, 0), ha="center"
    )
accuracies = published.loc[["Brier alone", "RLCR"], "accuracy"].tolist()
save_numbers(
    CHAPTER, dict(zip(("acc_brier", "acc_rlcr"), accuracies, strict=True))
)
ax.set(xlim=(0, 1), ylim=(-0.65, 1.05))
plots.note_ends(ax, ends)
_ = ax.set(xlabel="chance of being right", ylabel="pay if honest")

# %% [markdown]
# ## In and out again
#
# Now the two-parameter policy: its good answer is right nine times in ten, its bad answer
# once. It starts where the published run's training log does at its first step {cite:p}`rlcdlite`,
# right {res}`08_stated_confidence:start_s` of the time and stating
# {res}`08_stated_confidence:start_v`. (The table below is of held-out tickets.)
# One hundred steps of Brier alone, then each of four continuations:

# %%
runs, first, after = 16, 100, 500
begin = [torch.full((runs,), x) for x in start]
u, w, fall = train(*begin, first, generator, kind="brier")
branches = {
    "decoupled": {"kind": "brier", "decoupled": True},
    "c + ½ Brier": {"kind": "rlcr", "weight": 0.5},
    "RLCR": {"kind": "rlcr"},
    "Brier alone": {"kind": "brier"},
}
paths = {
    name: np.concatenate([fall, train(u, w, after, generator, **arm)[2]])
    for name, arm in branches.items()
}
rows = {}
for name, path in paths.items():
    climbed = (path[:, 0] > 0.5) & (np.arange(len(path)) >= first)[:, None]
    steps = np.where(climbed.any(0), climbed.argmax(0) - first, np.inf)
    rows[name] = {
        "median steps to s > ½": f"{np.median(steps):.0f}".replace(
            "inf", "never"
        ),
        "right at the end": f"{path[-1, 0].mean():.2f}",
        "stated at the end": f"{path[-1, 1].mean():.2f}",
        "escaped runs": f"{int((path[-1, 0] > 0.5).sum())} of {runs}",
    }
    key = {
        "decoupled": "out_dec",
        "RLCR": "out_rlcr",
        "c + ½ Brier": "out_half",
    }
    if name in key:
        save_numbers(CHAPTER, {key[name]: int(np.median(steps))})
bottom = [float(fall[-1, i].mean()) for i in (0, 1)]
save_numbers(CHAPTER, {"bottom_s": bottom[0], "bottom_v": bottom[1]})
pd.DataFrame(rows).T

# %% mystnb={"figure": {"caption": "In and out of the trap: mean over sixteen runs, band from least to largest. Until the vertical line all runs are paid by Brier alone: the statement becomes honest while the answers become wrong. Then the reward is changed, or not.", "name": "fig-stated-climb"}, "image": {"alt": "Two panels over 600 steps. Upper, chance of being right: falls from 0.31 to about 0.13 by step 100, then decoupled rises first, c plus half Brier second, RLCR last, all to 0.9; Brier alone stays near 0.1. Lower, stated confidence: falls from 0.69 to 0.16, then follows the chance of being right in each arm."}} tags=["hide-input"]
look = {
    "decoupled": (BLUE, "-"),
    "c + ½ Brier": (plots.COLORS["verdict"], "--"),
    "RLCR": (plots.COLORS["label"], "-."),
    "Brier alone": (OCHRE, "-"),
}
fig, axes = plots.figure(2, height=2.5, sharex=True)
for row, (ax, what) in enumerate(
    zip(axes, ("chance right", "stated"), strict=True)
):
    ax.axvline(first, color=plots.INK, lw=1, ls=":")
    for name, path in paths.items():
        colour, line = look[name]
        track = path[::4, row]
        x = np.arange(len(path))[::4]
        band = {"color": colour, "alpha": 0.2, "lw": 0}
        ax.fill_between(x, track.min(1), track.max(1), **band)
        ax.plot(x, track.mean(1), color=colour, ls=line)
    ax.set(ylim=(0, 1.05), ylabel=what)
places = {"decoupled": 160, "c + ½ Brier": 282, "RLCR": 386}
for name, x in places.items():
    plots.note(axes[0], name, x, 0.99, xytext=(0, 0), ha="center")
plots.note(axes[0], "Brier alone", 470, 0.2)
_ = axes[1].set(xlabel="step", xlim=(0, first + after))

# %% [markdown]
# At the bottom the policy is right {res}`08_stated_confidence:bottom_s:.2f` of the time and
# says {res}`08_stated_confidence:bottom_v:.2f`: mostly wrong, and nearly honest about it. All three
# mends climb out, but not alike. Decoupled advantages pass one half after
# {res}`08_stated_confidence:out_dec` steps, RLCR after {res}`08_stated_confidence:out_rlcr`.
# {prf:ref}`thm-stated` says why: at a stated $v$ RLCR's slope is $2v$, and in the trap $v$ is
# small. At $w = 1$ RLCR is *just* free of the trap; at the very bottom, $v = 0$, it is
# flat. Half the weight keeps a slope of at least one half and needs
# {res}`08_stated_confidence:out_half` steps, at the same honest optimum. And the longer
# Brier alone has run, the less the policy explores, and the slower every mend.
#
# ## Calibrated and uninformative
#
# The published table, for the stated confidence of five arms:

# %%
published.round(3)

# %% [markdown]
# *Published* by {cite:t}`rlcdlite`: Qwen2.5-0.5B-Instruct with LoRA on synthetic ticket
# triage, 200 steps, 300 held-out tickets, one run an arm; confidence is one of five
# buckets. Reliability (REL) and resolution (RES) are Murphy's ({prf:ref}`thm-murphy`; low and high are good).
#
# The theorem is in the second and third row: accuracy
# {res}`08_stated_confidence:acc_rlcr:.3f` and {res}`08_stated_confidence:acc_brier:.3f`, and the
# same Brier score, reliability and resolution. And there is more. Suppose the five buckets
# stand for .1, .3, .5, .7 and .9, which is our reading of its text, and suppose the policy says
# *one and the same* bucket on every ticket, the one nearest to its accuracy. Then the
# rest of each row can be computed without seeing a single ticket:

# %%
buckets = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
columns = ["stated", "ECE", "Brier", "REL", "RES"]
columns += ["log loss", "AURC"]
rows = {}
for arm in ("RLCR", "Brier alone"):
    right = published.loc[arm, "accuracy"]
    n_right = round(1000 * right)
    correct = np.r_[np.ones(n_right), np.zeros(1000 - n_right)]
    said = np.full(1000, buckets[np.abs(buckets - right).argmin()])
    parts = murphy(said, correct)
    log_loss = RULES["log"].expected(
        [said[0], 1 - said[0]], [right, 1 - right]
    )
    values = (said[0], ece(said, correct), parts.loss, parts.reliability)
    values += (parts.resolution, float(log_loss), aurc(said, correct))
    rows[f"{arm}: published"] = published.loc[arm, columns].to_dict()
    rows[f"{arm}: one constant"] = dict(zip(columns, values, strict=True))
rebuilt = pd.DataFrame(rows).T
gaps = {
    arm: (
        rebuilt.loc[f"{arm}: published"]
        - rebuilt.loc[f"{arm}: one constant"]
    )
    for arm in ("RLCR", "Brier alone")
}
off = max(float(g[columns[:-1]].abs().max()) for g in gaps.values())
aurc_gap = [float(g["AURC"]) for g in gaps.values()]
save_numbers(
    CHAPTER, {"rebuilt_off": off, "aurc_gap": max(map(abs, aurc_gap))}
)
save_numbers(
    CHAPTER, {"bucket_gap": rebuilt.loc["RLCR: one constant", "ECE"]}
)
rebuilt.round(3)

# %% [markdown]
# All but AURC agree to {res}`08_stated_confidence:rebuilt_off:.4f`, the last printed digit or
# so. The published reliability is the squared distance from the accuracy to the
# nearest bucket; the published ECE is that distance. Both measure the grid, not the model. The
# resolution, zero, says what matters: the number is the same for tickets that the policy gets
# right and for those it gets wrong. AURC of a constant is the error rate, and the published
# one is within {res}`08_stated_confidence:aurc_gap:.3f` of it. (The same table lists an AURC of
# .067 and a resolution of .058 for the *softmax* of that RLCR model after temperature scaling:
# the knowledge was there, and the confidence token did not read it.) The authors draw the
# same conclusion; that one constant rebuilds the row is ours.
#
# Calibration is cheap, then. How much is informativeness worth, for a policy of the same
# accuracy that *knows* which tickets are hard?

# %%
n = 20_000
hard = rng.beta(1.6, 1.6 * (1 - 0.784) / 0.784, n)
came_right = (rng.random(n) < hard).astype(float)
sayings = {
    "nearest bucket": np.full(n, 0.7),
    "base rate": np.full(n, 0.784),
    "each ticket's chance": hard,
}
rows = {}
for name, said in sayings.items():
    parts = murphy(said, came_right, n_bins=20)
    reward = stated_reward(
        torch.tensor(said), torch.tensor(came_right), "rlcr"
    )
    rows[name] = {
        "ECE": ece(said, came_right),
        "reliability": parts.reliability,
        "resolution": parts.resolution,
        "Brier": parts.loss,
        "AURC": aurc(said, came_right),
        "RLCR reward": float(reward.mean()),
    }
worth = pd.DataFrame(rows).T
rlcr = worth["RLCR reward"]
save_numbers(CHAPTER, {"worth_grid": rlcr.iloc[1] - rlcr.iloc[0]})
save_numbers(CHAPTER, {"worth_info": rlcr.iloc[2] - rlcr.iloc[1]})
worth.round(3)

# %% [markdown]
# Telling tickets apart is worth {res}`08_stated_confidence:worth_info:.3f` of reward, against
# {res}`08_stated_confidence:worth_grid:.3f` for leaving the grid. The reward does ask for it; but it
# asks faintly, through one extra token, after the base rate has already been learned. RLCD
# asks differently: it pays $c - p_a$ on the probability of the *answer*, so the number that
# decides and the number that is stated are the same, and there is nothing to decouple and no
# trap ({prf:ref}`thm-identity`).
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *A reward with* $w L(0, 1) > 1$ *whose expected update never lowers* $s$ would refute
#   {prf:ref}`thm-stated` (d). Enumeration found none; the portrait shows where to look.
# - **The trap needs a policy that can fail on purpose.** If the answer is fixed, as in
#   post-hoc calibration, or changes slowly beside the statement, Brier alone is just a proper
#   score. {cite:t}`baniharouni2025` train on a logarithmic reward and report good
#   results; in their released code the answer is part of the prompt when the update is made and
#   only the confidence is trained, so nothing pulls it into failing.
# - **Decoupling is not the gradient of any one reward.** It is right in a table. In a network
#   whose answer and confidence share parameters, each of the two updates disturbs the other.
# - **RLCR may be better than a toy with two parameters shows.** {cite:t}`damani2025` report
#   improved calibration with accuracy maintained at 7 billion parameters, with
#   reasoning before the number; our "asks faintly" rests on one small published run.
# - **The buckets are our reading.** If they stand elsewhere, the agreement of the rebuilt
#   rows is a coincidence in six columns of two rows.
# - **RLCR and decoupling train the answer towards one option.** They buy a number beside the
#   answer, not a distribution over the options; whoever needs the second-best team's chance
#   needs $p$.
# :::
#
# ## Exercises
#
# :::{exercise} Two answers only
# :label: ex-stated-1
#
# A yes/no question with $q = (.8, .2)$, and a confidence that is honest for whichever
# answer is given. What does Brier alone teach the answer? And RLCR?
# :::
#
# :::{solution-start} ex-stated-1
# :label: sol-stated-1
# :class: dropdown
# :::
#
# Both answers pay $-.8 \times .2$ under Brier: a tie, and no gradient, so noise decides.
# RLCR pays $s^2$: $.64$ against $.04$.

# %%
pays = {
    kind: [round(pay(t, t, kind), 4) for t in (0.8, 0.2)]
    for kind in ("brier", "rlcr")
}
assert pays["brier"][0] == pays["brier"][1] == -0.16
assert pays["rlcr"] == [0.64, 0.04]
pays

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} The spherical score on a stated number
# :label: ex-stated-2
#
# For which weights is $c - w L_{\mathrm{sph}}$, applied to $(v, 1 - v)$, free of the trap?
# Check with the package.
# :::
#
# :::{solution-start} ex-stated-2
# :label: sol-stated-2
# :class: dropdown
# :::
#
# $L(0, 1) = 1$ and $L(0, 0) = 0$, so by {eq}`eq-trap-free` exactly for $w \le 1$, as for
# Brier:

# %%
v_fine = np.linspace(0, 1, 2001)
two = np.stack([v_fine, 1 - v_fine], 1)
hit = RULES["spherical"].loss(two, np.zeros(2001, int))
miss = RULES["spherical"].loss(two, np.ones(2001, int))
lowest = {w: (1 - w * (hit - miss)).min() for w in (0.9, 1.0, 1.1)}
assert lowest[0.9] > 0 and abs(lowest[1.0]) < 1e-12 and lowest[1.1] < 0
{w: round(float(x), 4) + 0.0 for w, x in lowest.items()}

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} What a grid of five costs
# :label: ex-stated-3
#
# The confidence may only be .1, .3, .5, .7 or .9. What is the largest ECE that a
# perfectly informed policy of this kind can have? Find the success chances at which RLCR is
# indifferent between two buckets.
# :::
#
# :::{solution-start} ex-stated-3
# :label: sol-stated-3
# :class: dropdown
# :::
#
# For given $s$ the bucket $b$ costs $(b - s)^2 + s(1 - s)$, so the nearest is best and the
# policy changes at .2, .4, .6 and .8. The distance to the nearest is at most .1, and that is
# the ECE if every ticket sits at the same edge:

# %%
fine = np.linspace(0, 1, 1001)
table = np.array([[pay(t, b, "rlcr") for b in buckets] for t in fine])
chosen = buckets[table.argmax(1)]
changes = fine[1:][np.diff(chosen) != 0]
assert np.abs(changes - [0.2, 0.4, 0.6, 0.8]).max() < 2e-3
largest = np.abs(chosen - fine).max()
assert abs(largest - 0.1) < 1e-9
print(
    "changes near", changes.round(2), "largest distance", round(largest, 3)
)

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} How long is the way out?
# :label: ex-stated-4
#
# From the bottom of the trap, let the confidence be honest at every moment ($v = s$). For
# small shares $\pi$ of the good answer, show that the escape time of RLCR with weight $w$
# grows like $1/(1 - w + 2 w b)$ times that of decoupling, $b$ being the success chance of
# the bad answer. What is the ratio here at $w = 1$ and at $w = \tfrac12$?
# :::
#
# :::{solution-start} ex-stated-4
# :label: sol-stated-4
# :class: dropdown
# :::
#
# $\dot u = \pi (1 - \pi) \Delta \times$ slope, and while $\pi$ is small, $s \approx b$, so
# the slope is the constant $1 - w + 2 w b$; decoupling has 1. The time to any small $\pi$
# scales with its inverse:

# %%
ratio = {w: 1 / slope(BAD, "rlcr", w) for w in (1.0, 0.5)}
assert abs(ratio[1.0] - 5) < 1e-9 and abs(ratio[0.5] - 1 / 0.6) < 1e-9
{w: round(r, 3) for w, r in ratio.items()}

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# {cite:t}`damani2025` for RLCR and its proof; {cite:t}`baniharouni2025` for the logarithmic
# reward; {cite:t}`rlcdlite` for the run that fell in and told; {cite:t}`murphy1973` for reliability
# and resolution. {doc}`03_proper_scoring` has the theorem behind (d), {doc}`02_calibration`
# why calibration alone is not worth much.
#
# Next: {doc}`09_time`, when the outcome is late and the confidence is stated many times.
