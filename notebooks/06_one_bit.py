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
# # What one bit can carry
#
# **Question.** The world answers with one bit. Which payments for that bit make a policy
# honest, and which popular repairs of the plain outcome reward cannot?
#
# **Answer.** Only those of the form $r = (c - p_a)\,g + h$ with an $h$ that is the same for every
# action leave the truth alone, and every positive weight $g$ leads to it: at one $g$ sits
# the Brier score, at others the log score and the verdict losses. A Shannon entropy bonus, a KL
# penalty, a temperature or a division by the group's standard deviation all leave this form.
#
# **After this page you can** test a reward for honesty on the back of an envelope,
# learn any proper score from one bit, read off what an entropy bonus will
# report, and say where noisy or missing outcomes take each objective.
#
# **Running time.** About twenty seconds on any machine (CPU, T4 or A100 make no
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

# %% mystnb={"figure": {"caption": "What a policy reports in the end for an option that is right with chance $q$, two options. Only the members of the one-bit family, here RLCD, report $q$ everywhere. RLVR and both std-normalised arms report 1 as soon as $q > .5$; an entropy bonus bends that step into a sigmoid that is right at one $q > .5$ at most.", "name": "fig-oneb-map"}, "image": {"alt": "Line plot of the reported probability against the true chance from one half to one. RLCD is the diagonal. RLVR is flat at one. RLVR with entropy bonus 0.2 lies above the diagonal nearly everywhere, with 0.3 it lies above and crosses it at about 0.95, with 0.5 it lies below the diagonal throughout."}} tags=["hide-input"]
import numpy as np
import pandas as pd
import sympy
import torch

from rlcd_core import exact, plots
from rlcd_core.exact import Channel
from rlcd_core.records import save_numbers
from rlcd_core.rewards import (
    OBJECTIVES,
    Feedback,
    brier_score,
    label_objective,
    log_score,
    one_bit_objective,
    policy_gradient,
    power_score,
    rlcd_reward,
    rlvr_reward,
    rps_score,
    scaled_reward,
    spherical_score,
)

plots.use_style()
torch.set_default_dtype(torch.float64)
saved = {}


def ends(name, chances, **setting):
    """What a two-option policy reports in the end for each chance."""
    objective = OBJECTIVES[name]
    stops = [exact.fixed_point(objective, [q, 1 - q], **setting) for q in chances]
    return np.array([float(end.p[0]) for end in stops])


chances = np.linspace(0.5, 0.98, 9)
reported = {"rlvr": np.ones_like(chances)}
for q in (0.6, 0.9):  # the flat lines: the flow leaves for the corner
    for name, group in (("rlvr", 1), ("rlvr_std", 4), ("rlcd_std", 4)):
        end = exact.fixed_point(OBJECTIVES[name], [q, 1 - q], group)
        assert end.kind == "boundary" and end.p[0] > 0.999
for name in ("rlvr_shannon_0.2", "rlcd", "rlvr_shannon_0.3", "rlvr_shannon_0.5"):
    reported[name] = ends(name, chances)

fig, ax = plots.figure(height=4.0)
tips = []
for name, line in reported.items():
    look = plots.ARM_STYLE[name]
    ax.plot(chances, line, **look.drawn, markevery=2)
    text = "RLVR; both ÷ std" if name == "rlvr" else look.label
    tips.append((chances[-1], line[-1], text, look.color))
_ = ax.set(xlim=(0.5, 0.99), ylim=(0.49, 1.03), xlabel="chance to be right, q")
_ = ax.set(ylabel="reported in the end, p")
plots.note_ends(ax, tips)

# %% [markdown]
# ## A ticket and six bills
#
# A ticket is about **A** billing with chance .6, **B** a bug with .3, **C** something else with .1.
# Suppose that the policy states just these numbers. Nothing should move it. A policy gradient
# leaves it alone exactly if every option earns the same on average, for it pushes
# towards whatever earns more than the rest. Six plausible ways to pay for the one bit $c$:

# %%
q = p = np.array([0.6, 0.3, 0.1])
ones, zeros = np.ones(3), np.zeros(3)
bills = {  # paid if right, paid if wrong
    "c": (ones, zeros),
    "+1 right, −1 wrong": (ones, -ones),
    "c − p_a": (1 - p, -p),
    "c / p_a − 1": (1 / p - 1, -ones),
    "−(c − p_a)²": (-((1 - p) ** 2), -(p**2)),
    "log p_a or log(1 − p_a)": (np.log(p), np.log(1 - p)),
}
earned = pd.DataFrame(
    {
        name: q * right + (1 - q) * wrong
        for name, (right, wrong) in bills.items()
    },
    index=["earned by A", "by B", "by C"],
).T
earned = earned.round(12) + 0.0
earned["leaves the truth alone"] = np.ptp(earned.to_numpy(), axis=1) < 1e-9
earned.round(3)

# %% [markdown]
# Two of six pass. In the last two rows the Brier score and the log score of the verdict, proper
# *losses* in {doc}`05_is_it_rl`, are used as *rewards*. Under REINFORCE they pay most for the
# option about which there is least doubt, here C, which is almost surely wrong. A proper loss
# sends its gradient through $p_a$; a reward is a number, and its only message is how often to
# repeat the action. (The temptation to be surely wrong returns in {doc}`08_stated_confidence`.)
#
# ## All payments that leave the truth alone
#
# As in {doc}`01_identity`, $p = \operatorname{softmax}(z)$, $a \sim p$, $c = 1[a = y]$ with $y \sim
# q$, all $q_a > 0$, and $J = \operatorname{diag}(p) - p p^\top$. A reward $r(c, a, p)$ is a number,
# without gradient. On this page $g$ is a weight, the $h$ of {doc}`05_is_it_rl`, and $\nabla_z \log
# p_a = e_a - p$ is written out.
#
# :::{prf:theorem} The one-bit family
# :label: thm-one-bit
#
# 1. *Sufficient.* Let $g_a = g_a(p) > 0$ be continuous, $h = h(p)$ and
#
#    $$ r = (c - p_a)\, g_a + h , $$ (eq-one-bit)
#
#    that is $(1 - p_a) g_a + h$ if right and $-p_a\, g_a + h$ if wrong. The mean direction
#    of $r \nabla_z \log p_a$ is
#
#    $$ d = J v, \quad v_a = g_a (q_a - p_a) . $$ (eq-one-bit-direction)
#
#    Its only zero with every $p_a > 0$ is $p = q$, and there it is stable, with real
#    eigenvalues.
# 2. *Necessary.* If $r(c, a, p)$ leaves every truth alone, it has the form
#    {eq}`eq-one-bit` with some $g$, not necessarily positive, and some $h$. If $r$ sees only $c$
#    and $p_a$, then $h$ is a constant for $K \ge 3$, and for $K = 2$ any $h(p_a)$ with
#    $h(t) = h(1 - t)$.
# 3. *Separable weights are proper scores.* If $g_a(p) = g(p_a)$, then $d$ is the gradient
#    of
#
#    $$ \Phi(p) = \sum_a \int^{p_a} \! g(t) (q_a - t)\, dt , $$
#
#    which is largest at $q$ alone. It is the mean over $y \sim q$ of the strictly proper
#    score
#
#    $$
#    \begin{aligned}
#    S(p, y) = & \int^{p_y} \! g(t)\, dt \\
#      & - \sum_a \int^{p_a} \! t\, g(t)\, dt .
#    \end{aligned}
#    $$ (eq-one-bit-score)
# 4. *Every proper score fits.* Let $S$ be a differentiable proper score. Then
#
#    $$ \frac{c - p_a}{p_a}\, \nabla S(p, a) $$ (eq-one-bit-any)
#
#    has mean $\nabla\, \mathbb{E}_{y \sim q} S(p, y)$, although $y$ is seen only when the
#    action was right.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1.* Given $a$, the reward has mean $\rho_a = g_a (q_a - p_a) + h$, and
# $\nabla_z \log p_a = e_a - p$. Since $\sum_a p_a (e_a - p) = 0$, the $h$ drops out, and
# $d = \sum_a p_a v_a (e_a - p)$, with entries $p_a (v_a - \sum_j p_j v_j)$, which is $Jv$.
# If $d = 0$ with $p > 0$, all $v_a$ equal one number $s$. As $g_a > 0$, every $q_a - p_a$
# has the sign of $s$; but they sum to 0, so all are 0.
#
# Near $p = q$ only the factor $q_a - p_a$ varies to first order, and $\delta p = J \delta z$:
# $\delta d = -J \Gamma J\, \delta z$ with $\Gamma = \operatorname{diag}(g(q))$, $J$ taken at
# $q$. The matrix $J \Gamma J$ is symmetric, and $u^\top J \Gamma J u = \sum_a g_a (Ju)_a^2$
# is positive unless $Ju = 0$, that is, unless $u$ is a shift of all logits, which changes
# nothing.
#
# *2.* Left alone at $p = q$ means $\sum_a q_a \rho_a (e_a - q) = 0$, hence $\rho_a = q_a\,
# r(1, a, q) + (1 - q_a)\, r(0, a, q)$ is one number $h(q)$ for all $a$. Put $g_a = r(1, a,
# q) - r(0, a, q)$. Then $r(0, a, q) = h - q_a g_a$ and $r(1, a, q) = h + (1 - q_a) g_a$,
# and $q$ was any interior point. If $r$ sees only $c$ and $p_a$, so does $h = \varphi(p_a)$,
# and the same for all $a$: $\varphi(s) = \varphi(t)$ whenever $s$ and $t$ can be two
# entries of one $p$. For $K \ge 3$ that is whenever $s + t < 1$; take $t$ small, and
# $\varphi$ is constant. For $K = 2$ it is $t = 1 - s$ only.
#
# *3.* $\partial \Phi / \partial p_a = g(p_a)(q_a - p_a) = v_a$, and $\nabla_z = J \nabla_p$.
# $\Phi(q) - \Phi(p) = \sum_a \int_{p_a}^{q_a} g(t) (q_a - t)\, dt$, where each integral is
# positive unless $p_a = q_a$. $\Phi$ is linear in $q$, so it is the mean of its values at
# the unit vectors, which is {eq}`eq-one-bit-score`.
#
# *4.* $\mathbb{E}[\frac{c}{p_a} \nabla S(p, a)] = \sum_a p_a \frac{q_a}{p_a} \nabla S(p, a)
# = \nabla \sum_a q_a S(p, a)$. The subtracted part has mean $\sum_a p_a \nabla S(p, a)$:
# the gradient of $\sum_a q_a S(\cdot, a)$ at its own maximum $\cdot = q$, with $q$ renamed
# $p$, hence 0 {cite:p}`savage1971`. $\square$
# :::
#
# The stability in part 1 is local; for separable weights part 3 adds that the divergence
# $\Phi(q) - \Phi(p)$ falls all along the flow. By part 2, equal earnings at the truth test the
# form, but not the sign of $g$: at $K = 2$ the payment $-(c - p_a)^2$ passes and teaches nothing
# ({ref}`ex-oneb-2`).
#
# Symbolically, with unknown $g_a$ and $h$, for two and three options; and the vanishing
# mean in part 4 for the spherical score:

# %%
left_over = set()
for size in (2, 3):
    ps = list(sympy.symbols(f"p1:{size}", positive=True))
    qs = list(sympy.symbols(f"q1:{size}", positive=True))
    gs = sympy.symbols(f"g1:{size + 1}", positive=True)
    h = sympy.Symbol("h")
    ps, qs = ps + [1 - sum(ps)], qs + [1 - sum(qs)]
    rho = [
        qa * ((1 - pa) * ga + h) + (1 - qa) * (-pa * ga + h)
        for pa, qa, ga in zip(ps, qs, gs, strict=True)
    ]
    v = [ga * (qa - pa) for pa, qa, ga in zip(ps, qs, gs, strict=True)]
    for k in range(size):
        d = sum(ps[a] * rho[a] * (int(a == k) - ps[k]) for a in range(size))
        jv = ps[k] * (v[k] - sum(a * b for a, b in zip(ps, v, strict=True)))
        left_over.add(sympy.expand(d - jv))
    free = sympy.symbols(f"x1:{size + 1}", positive=True)
    norm = sympy.sqrt(sum(x**2 for x in free))
    for k in free:
        slope = sum(x * sympy.diff(x / norm, k) for x in free)
        left_over.add(sympy.simplify(slope))
print("left over:", left_over)

# %% [markdown]
# By enumeration, through the objectives that train, for two to six options and random
# $(p, q)$: every one-bit form against the same score with the label in full view, and
# part 3 for the verdict losses. There $g = p$ gives the power score of order three and
# $g = 1/(1 - p)$ gives $\sum_{k \ne y} \log(1 - p_k)$, a proper score without a common name:

# %%
SCORES = {
    "Brier": brier_score,
    "log": log_score,
    "spherical": spherical_score,
    "ranked probability": rps_score,
    "power, order 3": power_score(3.0),
}


def log_complements(log_probs, target):
    """Weight 1/(1 - p) follows it: log(1 - p_k) over the wrong options."""
    return ((1 - target) * torch.log1p(-log_probs.exp())).sum(-1)


twins = [
    (one_bit_objective(name, s), label_objective(name, s, "thm-one-bit"))
    for name, s in SCORES.items()
]
followed = {"verdict_brier": power_score(3.0)}
followed |= {"verdict_nll": log_complements}
for name, s in followed.items():
    full = label_objective(name, s, "thm-one-bit")
    twins.append((OBJECTIVES[name], full))
pathwise = OBJECTIVES["one_bit_spherical_pathwise"]
twins.append((pathwise, OBJECTIVES["spherical"]))

rng = np.random.default_rng(seed)
gaps = []
for size in range(2, 7):
    for one_bit, full in 3 * twins:
        p_k, q_k = rng.dirichlet(np.ones(size) + 1, 2)
        seen = exact.moments(one_bit, p_k, q_k)
        told = exact.moments(full, p_k, q_k)
        gaps.append(float((seen.mean - told.mean).abs().max()))
saved["cases"] = len(gaps)
print(len(gaps), "cases, all within 1e-12:", max(gaps) < 1e-12)

# %% [markdown]
# And by simulation, the one-bit spherical form on {res}`06_one_bit:n_sampled:,` sampled
# outcomes (largest gap {res}`06_one_bit:worst_z:.1f` standard errors):

# %%
n = 100_000
p_true, q_true = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])
actions = rng.choice(3, size=(n, 1), p=p_true)
labels = rng.choice(3, size=(n, 1), p=q_true)
told = Feedback(
    torch.tensor(actions), torch.tensor((actions == labels).astype(float))
)
leaf = torch.tensor(np.log(p_true)).repeat(n, 1).requires_grad_(True)
loss = OBJECTIVES["one_bit_spherical"](torch.log_softmax(leaf, -1), told)
loss.sum().backward()
rows = -leaf.grad.numpy()
mean, error = rows.mean(0), rows.std(0, ddof=1) / np.sqrt(n)
spherical = exact.moments(OBJECTIVES["spherical"], p_true, q_true)
exactly = spherical.mean.numpy()
saved |= {"n_sampled": n, "worst_z": np.abs((mean - exactly) / error).max()}
pd.DataFrame(
    {
        "exact, label seen": [f"{v:.4f}" for v in exactly],
        "sampled, one bit": [f"{v:.4f}" for v in mean],
        "standard error": [f"{v:.4f}" for v in error],
    },
    index=["A", "B", "C"],
)

# %% [markdown]
# ## The price of each form
#
# Many payments are honest. Which is cheap? The trace of the gradient covariance cannot compare
# scores: one that is twice as large has four times the variance and needs half the step. So let
# each objective take its own best step. If at the truth the mean direction has slope $M$ and one
# outcome's direction has covariance $\Sigma$, then solving for zero with $n$ outcomes leaves an
# error with
#
# $$
# n\, \mathbb{E} \|\hat p - q\|^2 \to \operatorname{tr}(J M^+ \Sigma M^{+\top} J) ,
# $$ (eq-one-bit-price)
#
# which does not change with the scale of the score. Call it the *price*.
#
# :::{prf:proposition} The cheapest use of a bit
# :label: prp-one-bit-price
#
# Let actions be drawn at $p = q$. No regular estimator that sees $(a, c)$ has a lower price
# than $\operatorname{tr} (J I^+ J)$ with
# $I = J \operatorname{diag}(\tfrac{1}{1 - q_a}) J$, and **verdict NLL**, the weight
# $g = 1/(1 - p_a)$, attains it. In the form {eq}`eq-one-bit-any` the price is
# the same for every score whose slope $M$ at $q$ has rank $K - 1$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# Given $a$, the bit is Bernoulli with mean $q_a$, whose logit gradient is $J e_a$. Its
# Fisher information is $J e_a e_a^\top J / (q_a (1 - q_a))$, and the mean over $a \sim q$ is
# $I$. The bound is that of Cramér and Rao for $q$, mapped by $\delta p = J \delta z$. For a
# weight $g$, the direction at the truth is $g_a (c - q_a) (e_a - q)$, so $\Sigma = \sum_a q_a
# g_a^2\, q_a (1 - q_a) (e_a - q)(e_a - q)^\top = J \operatorname{diag}(g_a^2 (1 - q_a))
# J$, because $q_a (e_a - q) = J e_a$. With $g_a = 1/(1 - q_a)$ this is $I$, as is $-M = J \Gamma J$.
# Hence $M^+ \Sigma M^+ = I^+$.
#
# For {eq}`eq-one-bit-any`: let $s_a = \nabla_z S(q, a)$. By part 4 the mean direction
# near $q$, seen as a function of the truth $q'$ at fixed $p = q$, is $\sum_a q'_a s_a$; and since
# it vanishes where $q' = p$, its slope in $z$ is $M = -\sum_a s_a (J e_a)^\top$. The direction itself
# is $s_a\, w$ with $w = (c - q_a)/q_a$. As $M$ has rank $K - 1$, $M^+ s_a$ solves $\sum_a
# (M^+ s_a)(J e_a)^\top = -\Pi$, $\Pi$ the projection off the shift, together with $\sum_a q_a M^+ s_a
# = 0$; these equations determine every $M^+ s_a$ and do not mention $S$. $\square$
# :::

# %%
q_4 = np.array([0.5, 0.3, 0.15, 0.05])


def price(objective):
    """Trace of the covariance at the truth, and the price."""
    z, h, eye = torch.tensor(q_4).log(), 1e-5, torch.eye(4)
    direction = exact.field(objective, q_4)
    around = direction(torch.cat([z + h * eye, z - h * eye]))
    slope = ((around[:4] - around[4:]) / (2 * h)).T
    spread = exact.moments(objective, q_4, q_4)
    at = torch.tensor(q_4)
    jacobian = torch.diag(at) - torch.outer(at, at)
    solve = jacobian @ torch.linalg.pinv(slope)
    cost = (solve @ spread.covariance @ solve.T).trace()
    return spread.trace, float(cost)


forms = {
    "verdict NLL, g = 1/(1 − p)": OBJECTIVES["verdict_nll"],
    "RLCD, g = 1": OBJECTIVES["rlcd"],
    "verdict Brier, g = p": OBJECTIVES["verdict_brier"],
    "log: c / p_a": OBJECTIVES["one_bit_log"],
    "spherical, pathwise": pathwise,
}
for name, s in SCORES.items():
    forms[f"{name}, by (c − p)/p"] = one_bit_objective(name, s)
forms |= {"label seen: log": OBJECTIVES["nll"]}
forms |= {"label seen: Brier": OBJECTIVES["brier"]}
costs = {name: price(objective) for name, objective in forms.items()}
rate = {name: round(cost, 6) for name, (_, cost) in costs.items()}
bit, label = rate["verdict NLL, g = 1/(1 − p)"], rate["label seen: log"]
saved["price"] = {
    "rlcd": rate["RLCD, g = 1"],
    "ratio": rate["log: c / p_a"] / rate["RLCD, g = 1"],
    "any": rate["log, by (c − p)/p"],
    "bit": bit / label,
    "over": 100 * (rate["RLCD, g = 1"] / bit - 1),
}
pd.DataFrame(costs, index=["trace of covariance", "price"]).T.round(3)

# %% [markdown]
# Read the last column ($q$ = .5, .3, .15, .05, one outcome a question):
#
# - One label is worth {res}`06_one_bit:price.bit:.2f` outcomes here, each used in the best way.
# - **Verdict NLL, an ordinary loss, is the cheapest.** RLCD costs
#   {res}`06_one_bit:price.over:.1f` % more, verdict Brier more again.
# - The five scores by $(c - p_a)/p_a$ all cost {res}`06_one_bit:price.any:.3f`, and the log score by
#   $c/p_a$ costs {res}`06_one_bit:price.ratio:.2f` times what RLCD does; its reward has no upper bound
#   as $p_a \to 0$. The *weight* that a bit receives matters, not the score that is named.
#
# This price is asymptotic, at the truth and with the best step. Far away, with one
# step size for all, the trace counts as well ({doc}`04_variance`).
#
# ## Why the usual rescues do not calibrate
#
# RLVR pays $c$ and goes to a corner ({prf:ref}`cor-rlvr`). A common repair is to hold it
# back: an entropy bonus, a KL penalty towards the model it started from, a softer
# temperature when it answers.
#
# :::{prf:theorem} Rescues of RLVR
# :label: thm-rescues
#
# Let $\beta > 0$ and $H(p) = -\sum_a p_a \log p_a$.
#
# 1. $p^\top q + \beta H(p)$ is largest at $p \propto \exp(q / \beta)$ alone;
#    $p^\top q - \beta \operatorname{KL}(p \,\|\, p_0)$ at $p \propto p_0 \exp(q / \beta)$
#    alone.
# 2. Answering at temperature $\tau$, $p^{1/\tau}$ normalised, replaces $\beta$ by
#    $\beta \tau$ (and $p_0$ by $p_0^{1/\tau}$).
# 3. $K = 2$: the entropy bonus reports $q_1 > \tfrac12$ truly at exactly one $q_1$ if
#    $\beta < \tfrac12$ and at none if $\beta \ge \tfrac12$. $K \ge 3$: if $q$ has three
#    different entries, no $\beta$ reports it truly, not even one chosen for this question.
# 4. The KL penalty reports $q$ truly iff $p_0 \propto q\, e^{-q/\beta}$. In particular it
#    spoils a reference that was calibrated, unless $q$ is uniform.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1.* Let $\pi = p_0 e^{q/\beta} / Z$. Then $p^\top q - \beta \operatorname{KL}(p \| p_0) =
# \beta \sum_a p_a \log (e^{q_a/\beta} p_{0,a} / p_a) = \beta \log Z - \beta
# \operatorname{KL}(p \| \pi)$, largest at $p = \pi$ alone. Entropy is the case of a uniform
# $p_0$, up to a constant.
#
# *2.* $(p_0 e^{q/\beta})^{1/\tau} = p_0^{1/\tau} e^{q/(\beta\tau)}$.
#
# *3.* $K = 2$: with $q = q_1$ the report is true iff $f(q) = \log\frac{q}{1-q} -
# \frac{2q - 1}{\beta} = 0$. $f(\tfrac12) = 0$, $f'(\tfrac12) = 4 - 2/\beta$, and $f''(q) =
# \frac{2q - 1}{q^2 (1 - q)^2} > 0$ on $(\tfrac12, 1)$, where $f \to \infty$. A convex
# function that starts at 0 and ends at $\infty$ has one further zero if it starts downwards,
# $\beta < \tfrac12$, and none otherwise. $K \ge 3$: a true report needs $q_a/\beta - \log
# q_a$ to be the same for all $a$, and $x/\beta - \log x$ is strictly convex: it takes no
# value more than twice.
#
# *4.* Set $p = q$ in 1. $\square$
# :::
#
# The exact table at $K = 2$, from the objectives by enumeration. The last column is the
# one chance that the bonus reports truly:

# %%
rescued = {}
for beta in (0.2, 0.3, 0.4, 0.5):
    found = ends(f"rlvr_shannon_{beta:g}", (0.7, 0.97))
    formula = 1 / (1 + np.exp((1 - 2 * np.array([0.7, 0.97])) / beta))
    assert np.abs(found - formula).max() < 1e-9
    row = {"q = .7 reads": found[0], "q = .97 reads": found[1]}
    row["right at"] = np.nan
    if beta < 0.5:  # the zero of f above 1/2, by bisection
        low, high = 0.5 + 1e-4, 1 - 1e-12
        for _ in range(60):
            middle = (low + high) / 2
            f = np.log(middle / (1 - middle)) - (2 * middle - 1) / beta
            low, high = (middle, high) if f < 0 else (low, middle)
        row["right at"] = low
        check = ends(f"rlvr_shannon_{beta:g}", [low])[0]
        assert abs(check - low) < 1e-8
    rescued[beta] = row
    saved[f"b{10 * beta:.0f}"] = {"at7": found[0], "at97": found[1]}
table = pd.DataFrame(rescued).T.rename_axis("β")
table.map(lambda v: "nowhere" if np.isnan(v) else f"{v:.4f}")

# %% [markdown]
# At $\beta = .2$ the policy still claims {res}`06_one_bit:b2.at7:.3f` for a .7; at .5 the
# .7 is nearly right, and a .97 is reported as {res}`06_one_bit:b5.at97:.3f`. With four
# options, $q$ = (.6, .25, .1, .05), even the best $\beta$ for this very question leaves an
# error, and a KL penalty towards the truth itself sharpens it:

# %%
q_4b = torch.tensor([0.6, 0.25, 0.1, 0.05])
betas = torch.linspace(0.05, 1, 2000)
family = torch.softmax(q_4b / betas[:, None], -1)
miss = (family - q_4b).abs().amax(-1)
best = float(betas[miss.argmin()])
kl = exact.fixed_point(
    OBJECTIVES["rlvr_kl_0.3"],
    q_4b.tolist(),
    reference_log_probs=q_4b.log(),
)
held = exact.fixed_point(OBJECTIVES["rlvr_shannon_0.3"], q_4b.tolist())
assert (held.p - torch.softmax(q_4b / 0.3, 0)).abs().max() < 1e-8
pd.DataFrame(
    {
        "truth": q_4b,
        f"entropy, best β = {best:.2f}": family[miss.argmin()],
        "KL .3 to the truth": kl.p,
    },
    index=list("ABCD"),
).T.round(3)

# %% [markdown]
# The bonus that does work is not Shannon's but Gini's, at weight one half
# ({prf:ref}`thm-gini`), which is RLCD again. (*Sampling* at a temperature while training is
# something else, a change of behaviour policy: {doc}`05_is_it_rl`.)
#
# ## Dividing by the standard deviation
#
# GRPO {cite:p}`shao2024` takes $G$ actions a question and uses $(r_i - \bar r)/
# \operatorname{std}(r)$ as the advantage. Subtracting the mean is harmless. Dividing is not:
# the standard deviation depends on all the actions and on the label, so it reweighs the
# cases over which the mean is taken.
#
# :::{prf:theorem} Standard-deviation normalisation
# :label: thm-std
#
# Let the advantages be $(r_i - \bar r)/\operatorname{std}(r)$, the standard deviation taken over $G$
# (over $G - 1$ all directions shrink by one constant), and zero in groups whose rewards agree.
#
# 1. *Shared label, $K = 2$.* For RLCD as for RLVR the mean direction on the first logit
#    is
#
#    $$ \frac{q_1 - q_2}{G}\; \mathbb{E} \sqrt{m (G - m)} $$ (eq-std-field)
#
#    with $m \sim \operatorname{Bin}(G, p_1)$, and its negative on the second: $p_1 \to 1$ for $q_1 > \tfrac12$, to 0 for
#    $q_1 < \tfrac12$.
# 2. *Shared label, $K \ge 3$, any $G \ge 2$.* For RLCD the vertex $k$ attracts if $q_k >
#    \tfrac12$ and repels if $q_k < \tfrac12$. For RLVR it attracts if $q_k$ is the single largest entry, and
#    does not if another entry is larger.
# 3. *Independent outcomes, RLCD, $K = 2$, $G = 2$.* The flow ends at $p_1 = \tfrac12$ as long as
#    $q_1^2 < \tfrac12$ and $q_2^2 < \tfrac12$. Beyond, it ends at the vertex of the likelier option.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *Two values.* If $m$ actions of a group earn $u$ and $G - m$ earn $w < u$, the
# normalised advantages are $\sqrt{(G - m)/m}$ and $-\sqrt{m/(G - m)}$, whatever $u$ and
# $w$ are. Advantages sum to 0, so the direction is $\frac1G \sum_i A_i e_{a_i}$.
#
# *1.* With label 1 the actions 1 earn more: for RLCD $1 - p_1 > -p_2$. The direction
# is $\frac1G \bigl[m \sqrt{(G-m)/m}\; e_1 - (G - m) \sqrt{m/(G-m)}\; e_2\bigr] =
# \frac{\sqrt{m(G - m)}}{G} (e_1 - e_2)$. With label 2 it is the negative.
#
# *2.* Near vertex $k$, to first order in the other probabilities, a group holds $G - 1$
# actions $k$ and one other, $j$, with chance $G p_j$; pure groups give 0. The direction
# is $\pm \frac{\sqrt{G-1}}{G} (e_k - e_j)$, with plus if $k$ earns more. *RLCD*: if $k$
# is right, it does, $1 - p_k > -p_j$. If $j$ is right, it does not. If neither is, $k$ earns
# $-p_k$, close to $-1$, and $j$ earns $-p_j$, close to 0: again it does not. Sum: $\sqrt{G - 1}
# \sum_j p_j (2 q_k - 1)(e_k - e_j)$, so every $z_k - z_j$ grows if $q_k > \tfrac12$ and
# falls if $q_k < \tfrac12$. *RLVR*: if neither is right both earn 0, the group is flat, and the sum is
# $\sqrt{G - 1} \sum_j p_j (q_k - q_j)(e_k - e_j)$. If $q_k$ is the largest, every $z_k - z_j$
# grows; if $q_j > q_k$, it falls wherever $p_j$ outweighs the other small entries.
#
# *3.* Two equal actions cancel. A mixed pair has advantages $\pm 1$ by the sign of $r_1 -
# r_2$, where $c_1$ and $c_2$ are independent with means $q_1$ and $q_2 = 1 - q_1$. The
# outcomes differ in favour of 1 with chance $q_1^2$, of 2 with $q_2^2$, and agree with $2
# q_1 q_2$; then the action of smaller probability earns more. For $p_1 > \tfrac12$ the push
# on $z_1$ has the sign of $q_1^2 - q_2^2 - 2 q_1 q_2 = 2 q_1^2 - 1$; for $p_1 < \tfrac12$, of
# $1 - 2 q_2^2$. If $q_1^2 < \tfrac12$ and $q_2^2 < \tfrac12$ both push towards $\tfrac12$, where the field
# jumps. $\square$
# :::
#
# Part 2 separates the two rewards: "a vertex attracts iff its $q$ exceeds one half" is true of
# normalised RLCD and false of normalised RLVR. The counter-example is $q$ = (.45, .3, .25). Below
# is the growth of $z_k - z_j$ (the least over $j$) very near each vertex, per unit of probability
# off the vertex, by enumeration with $G = 4$; {numref}`fig-oneb-std` draws the fields for $G = 2$.

# %%
q_3 = [0.45, 0.3, 0.25]
pull = {}
for name in ("rlcd_std", "rlvr_std"):
    for k in range(3):
        near = torch.tensor([1e-5 * (1 + 0.2 * j) for j in range(3)])
        near[k] = 0
        off = float(near.sum())
        near[k] = 1 - near.sum()
        move = exact.moments(OBJECTIVES[name], near, q_3, 4).mean
        growth = [float(move[k] - move[j]) for j in range(3) if j != k]
        label = plots.ARM_STYLE[name].label
        pull.setdefault(label, {})["ABC"[k]] = f"{min(growth) / off:.3f}"
pd.DataFrame(pull).T.rename(columns=lambda v: f"near vertex {v}")

# %% mystnb={"figure": {"caption": "Standard-deviation normalised fields for the truth at the star, {res}`06_one_bit:q_text`, two actions with a shared label. Left, RLCD: all corners repel, and the flow ends (ring) in the middle, on lines across which the field jumps. Right, RLVR: it ends in the corner of the likeliest option.", "name": "fig-oneb-std"}, "image": {"alt": "Two triangles of distributions over options A, B, C with a star at the truth. Left, std-normalised RLCD: arrows leave all three corners and run together at a ring in the centre of the triangle, away from the star. Right, std-normalised RLVR: arrows run past the star into corner A, where the ring is."}} tags=["hide-input"]
def velocity(name):
    """How p moves along an objective's mean direction d: J d."""
    direction = exact.field(OBJECTIVES[name], q_3, 2)

    def at(points):
        d = direction(torch.tensor(points).log()).numpy()
        return points * (d - (points * d).sum(1, keepdims=True))

    return at


slid = {
    group: exact.fixed_point(
        OBJECTIVES["rlcd_std"], q_3, group, method="flow", steps=900
    ).p.numpy()
    for group in (2, 4, 8)
}
fig, axes = plots.figure(1, 2, height=2.9)
titles = {"rlcd_std": "RLCD / std: elsewhere", "rlvr_std": "RLVR / std: a corner"}
stops = {"rlcd_std": slid[2], "rlvr_std": np.array([1.0, 0, 0])}
for ax, name in zip(axes, titles, strict=True):
    plots.plot_simplex(ax)
    arrows = plots.prepare_simplex(velocity(name), resolution=9, margin=0.1)
    plots.plot_field(ax, arrows, name, power=0.2)
    ax.plot(*plots.to_xy(q_3), marker="*", ms=15, color=plots.INK, mec="none")
    spot = {"marker": "o", "ms": 8, "mfc": "none", "mec": plots.INK, "mew": 2}
    ax.plot(*plots.to_xy(stops[name]), **spot)
    _ = ax.set(title=titles[name])
saved["q_text"] = "(" + ", ".join(map(str, q_3)) + ")"

# %% [markdown]
# Where normalised RLCD ends depends on $G$, which has nothing to do with the truth. For $G
# = 2$ and 4 the end is a *sliding point*: the field points at a line from both sides and
# jumps across it, so it has no zero there, and `exact.fixed_point` must be asked to follow the
# flow (`method="flow"`) and not to solve an equation.

# %%
want = {2: [1 / 3] * 3, 4: [0.442, 0.279, 0.279], 8: [0.551, 0.246, 0.203]}
for group, stop in want.items():
    assert np.abs(slid[group] - stop).max() < 6e-3
corner = exact.fixed_point(
    OBJECTIVES["rlvr_std"], q_3, 4, method="flow", steps=300
)
assert corner.p[0] > 0.98
shown = {f"RLCD / std, G = {g}": slid[g] for g in want}
shown |= {"RLVR / std, G = 4": corner.p.numpy(), "without std": q_3}
pd.DataFrame(shown, index=["A", "B", "C"]).T.map(lambda v: f"{v:.2f}")

# %% [markdown]
# So division by the standard deviation can make a policy *under*-confident: at $G = 2$ the
# likeliest option's .45 is reported as one third. That $G = 4$ ends close to this truth is
# a coincidence; at $G = 8$ the same .45 is overstated. The better known failure is over-confidence,
# and with a shared label at $K = 2$ it is the only one. A small constant in the denominator does
# not mend it:

# %%
def std_plus(reward, eps):
    return policy_gradient(
        "std + eps",
        reward,
        "group_std",
        equation="thm-std",
        calibrates=False,
        std_eps=eps,
    )


softened = {}
for title, reward in (("RLCD", rlcd_reward), ("RLVR", rlvr_reward)):
    for eps in (1e-4, 0.1):
        end = exact.fixed_point(std_plus(reward, eps), [0.7, 0.3], 4)
        held = end.kind == "interior"
        text = f"1 − {float(end.p[1]):.2g}" if held else "1 (vertex)"
        row = softened.setdefault(f"{title}, q = .7, G = 4", {})
        row[f"eps = {eps:g}"] = text
pd.DataFrame(softened).T

# %% [markdown]
# The constant stops RLCD short: near the corner, when the likely label comes true, its two rewards
# differ by little and the constant outweighs their spread. RLVR's rewards differ by 1 everywhere, and
# it goes to the corner all the same. With independent outcomes (part 3), two actions report
# one half for every $q_1$ between {res}`06_one_bit:band_low:.3f` and
# {res}`06_one_bit:band_high:.3f`; four actions report .7 as
# {res}`06_one_bit:independent.p:.3f`. The field on both sides of one half, just below and just
# above the critical $q_1 = 1/\sqrt 2$, and far out:

# %%
sides = {}
for chance in (0.6, 0.706, 0.708, 0.8):
    f = exact.field(OBJECTIVES["rlcd_std"], [chance, 1 - chance], 2, False)
    points = torch.tensor([0.4, 0.6, 0.99])
    push = f(torch.stack([points, 1 - points], -1).log())[:, 0].numpy()
    sides[f"q = {chance}"] = [f"{v:+.4f}" for v in push]
    assert (push[1] > 0) == (chance**2 > 0.5) and push[0] > 0
four = exact.fixed_point(
    OBJECTIVES["rlcd_std"], [0.7, 0.3], 4, False, start=[0.76, 0.24]
)
saved |= {"band_low": 1 - np.sqrt(0.5), "band_high": np.sqrt(0.5)}
saved["independent"] = {"p": float(four.p[0])}
pd.DataFrame(sides, index=["push at p = .4", "at p = .6", "at p = .99"]).T

# %% [markdown]
# {cite:t}`bereket2025` saw the over-confident case in language models trained on chance outcomes: GRPO
# had it, PPO and RLOO had not, and removing the division cured it. (Their probability is a
# prediction paid by a proper score, ours the policy itself.) {doc}`20_rater_bandit` measures it on
# real verdicts.
#
# ## When the bit itself is wrong or late
#
# RLCD's direction depends on the world only through the mean of the bit that is shown.
#
# :::{prf:theorem} Noise and missing outcomes
# :label: thm-noise
#
# Let the bit that is seen have mean $\tilde q_a$ after action $a$. On its own actions
# RLCD rests at
#
# $$ p = \tilde q + \frac{1 - \sum_k \tilde q_k}{K} $$ (eq-noise)
#
# if all entries are positive. Hence, on-policy:
#
# 1. *Bit flipped with chance* $\varepsilon$: $(1 - 2\varepsilon)\, q + 2 \varepsilon / K$.
# 2. *Label redrawn uniformly with chance* $\varepsilon$: $(1 - \varepsilon)\, q +
#    \varepsilon / K$, for **every** weight $g > 0$ and, by {prf:ref}`thm-behaviour`, every
#    behaviour policy that reaches all options.
# 3. *Unresolved scored as wrong*, resolution rate $\rho$: $\rho\, q + (1 - \rho)/K$;
#    but $q$ exactly if actions are logged uniformly.
# 4. *Unresolved left out*: $q$ exactly if, given question and action, resolution does not
#    depend on being right; its rate may differ between actions. If right answers
#    resolve at rate $\rho_1$ and wrong ones at $\rho_0 \ne \rho_1$, the end is not $q$ for
#    $K \ge 3$ unless $q$ is uniform. For $K = 2$ it is still $q$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# The mean direction is $\sum_a \mu_a (\tilde q_a - p_a)(e_a - p)$. On-policy, $\mu = p$, it
# is $J(\tilde q - p)$, which vanishes iff all $\tilde q_a - p_a$ are equal; they sum to
# $\sum \tilde q - 1$. *1.* $\tilde q = (1 - 2\varepsilon) q + \varepsilon$ sums to $1 + (K -
# 2)\varepsilon$. *2.* $\tilde q = (1 - \varepsilon) q + \varepsilon/K$ is a distribution, and the seen
# bit is that of a label drawn from it, so it takes the place of $q$ everywhere. *3.* $\tilde q =
# \rho q$. Uniformly logged, $\sum_a (\rho q_a - p_a)(e_a - p) = 0$ reads $\rho q_a - p_a = p_a
# (\rho - 1)$, so $p = q$. *4.* With rate $\rho_a$, the mean direction is that of the weight $g_a
# = \rho_a$. With unequal rates the mean of $(c - p_a)$ over resolved outcomes is $w_a
# (\tilde q_a - p_a)$ with $w_a = \rho_1 q_a + \rho_0 (1 - q_a)$, $\tilde q_a = \rho_1 q_a / w_a$. At $p = q$ it is
# $(\rho_1 - \rho_0)\, q_a (1 - q_a)$, which must be the same for all $a$: $q_a$ takes at most two
# values $t$ and $1 - t$, and three positive entries that sum to 1 cannot hold both. For $K = 2$
# the two means differ by $(\rho_1 + \rho_0)(q_1 - p_1)$. $\square$
# :::
#
# Part 4 holds a surprise: with two options RLCD, on its own actions, *survives* resolution rates
# that depend on being right. All of it by enumeration, with $q$ = (.6, .25, .1, .05):

# %%
flip, censored = Channel.flip(0.1), Channel.unresolved(0.9, 0.5)
lost = Channel.unresolved_as_wrong(0.7)
skewed, uniform = [0.1, 0.2, 0.3, 0.4], [0.25] * 4
half = Channel.unresolved(0.6, 0.6)
plan = {
    "clean": ("rlcd", {}),
    "flip .1, RLCD": ("rlcd", {"channel": flip}),
    "flip .1, RLCD, skewed log": (
        "rlcd",
        {"channel": flip, "behaviour": skewed},
    ),
    "flip .1, verdict NLL": ("verdict_nll", {"channel": flip}),
    "flip .1, verdict Brier": ("verdict_brier", {"channel": flip}),
    "30 % lost as wrong": ("rlcd", {"channel": lost}),
    "the same, uniform log": (
        "rlcd",
        {"channel": lost, "behaviour": uniform},
    ),
    "40 % left out at random": ("rlcd", {"channel": half}),
    "left out, .9 right, .5 wrong": ("rlcd", {"channel": censored}),
}
truth = q_4b.tolist()
stops = {
    name: exact.fixed_point(OBJECTIVES[key], truth, **setting).p
    for name, (key, setting) in plan.items()
}
redrawn = [0.9 * v + 0.025 for v in truth]
stops["redraw .1, any of these"] = torch.tensor(redrawn)
for key in ("rlcd", "verdict_nll", "verdict_brier"):
    end = exact.fixed_point(OBJECTIVES[key], redrawn)
    assert (end.p - torch.tensor(redrawn)).abs().max() < 1e-8
pair = exact.fixed_point(OBJECTIVES["rlcd"], [0.7, 0.3], channel=censored).p
assert abs(float(pair[0]) - 0.7) < 1e-8  # two options survive
assert (stops["flip .1, RLCD"] - (0.8 * q_4b + 0.05)).abs().max() < 1e-8
shrunk = 0.7 * q_4b + 0.075
assert (stops["30 % lost as wrong"] - shrunk).abs().max() < 1e-8
for name in ("clean", "the same, uniform log", "40 % left out at random"):
    assert (stops[name] - q_4b).abs().max() < 1e-8
noisy = pd.DataFrame(
    {name: stop.numpy() for name, stop in stops.items()}, index=list("ABCD")
).T
noisy.round(3).map(lambda v: f"{abs(v):.3f}")

# %% [markdown]
# Three lessons. *Flipped bits are not redrawn labels*: their means no longer sum to one, so the
# objectives disagree, and the verdict Brier loss drives the rarest option to zero. *Scoring the
# unresolved as wrong* shrinks towards uniform: it understates likely options and overstates rare
# ones. *Leaving them out* is right only if being right does not decide what is resolved.
# {doc}`09_time` follows outcomes that are not lost but late.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *These are resting places of a table in the mean.* A network with shared weights ends
#   where its parameters allow, and a short run may stop long before an objective has
#   shown its character. An RLVR policy stopped early can beat an honest one that is trained badly.
# - *The cheapest bit is not RLCD.* By {prf:ref}`prp-one-bit-price` verdict NLL is at least
#   as good at the truth, on its own actions; in the table above it bears flipped bits better too. A
#   case for RLCD has to rest on something that this page does not show, such as the road from far
#   away.
# - *A temperature may be enough.* If all questions had nearly the same confidence, one
#   number fitted on labelled data would mend most of the damage, and for classifiers it often does
#   {cite:p}`guo2017`. It cannot tell apart what a corner has merged: two questions that both read 1
#   stay equal at every temperature.
# - *Entropy and KL bonuses are not made for this.* They keep exploration alive and a language model
#   near its reference. That they do not calibrate is no reason to drop them.
# - *Certain labels.* Where the label is certain given the question, GRPO's corner is the right answer;
#   {cite:t}`bereket2025` find the harm where outcomes are a matter of chance. If a trained model with
#   chance outcomes, $K \ge 3$ and the division were found calibrated, part 2 of {prf:ref}`thm-std`
#   would say nothing about practice.
# :::
#
# ## Exercises
#
# :::{exercise} The bookmaker
# :label: ex-oneb-1
#
# A bookmaker takes a unit stake on the option taken and pays fair odds by the
# stated probability: the gain is $1/p_a - 1$ if right, $-1$ if wrong. Which $g$ is this,
# which score does it train, and what does it cost against RLCD for $q$ = (.5, .3, .15, .05)?
# :::
#
# :::{solution} ex-oneb-1
# :label: sol-oneb-1
# :class: dropdown
#
# $-p_a\, g = -1$ gives $g = 1/p_a$, and then $(1 - p_a)\, g = 1/p_a - 1$: it is in the
# family with $h = 0$. By {eq}`eq-one-bit-score` the score is $\log p_y - 1$, the log
# score of {cite:t}`good1952`. Its price is that of the $(c - p_a)/p_a$ forms:
# :::

# %% tags=["hide-cell"]
bookmaker = policy_gradient(
    "bookmaker",
    scaled_reward(lambda own, p: 1 / own),
    equation="thm-one-bit",
    calibrates=True,
)
end = exact.fixed_point(bookmaker, q_4.tolist())
assert (end.p - torch.tensor(q_4)).abs().max() < 1e-8
paid = price(bookmaker)[1]
assert abs(paid - saved["price"]["any"]) < 1e-5
print(f"price {paid:.3f}; RLCD {saved['price']['rlcd']:.3f}")

# %% [markdown]
# :::{exercise} A proper loss as a reward
# :label: ex-oneb-2
#
# Pay $-(c - p_a)^2$. Write it in the form $(c - p_a)\,g + h$ as far as it goes. What is
# the mean direction at $K = 2$? Where does it lead at $K = 3$ from $p = q$ = (.6, .3, .1)?
# :::
#
# :::{solution} ex-oneb-2
# :label: sol-oneb-2
# :class: dropdown
#
# $g = r(1) - r(0) = p_a^2 - (1 - p_a)^2 = 2 p_a - 1$ and $h = r(0) + p_a g = -p_a (1 -
# p_a)$. At $K = 2$ that $h$ is the same for both options, so the payment passes the test of
# part 2; but $g$ has opposite signs at the two options, $v_1 = (2 p_1 - 1)(q_1 - p_1) =
# v_2$, and $Jv = 0$ everywhere: nothing is ever learned. At $K = 3$ the $h$ depends on the
# option, and the option that is almost surely wrong is pushed up, because there the
# verdict can be foreseen:
# :::

# %% tags=["hide-cell"]
def minus_square(log_probs, feedback):
    return -rlcd_reward(log_probs, feedback).square()


square = policy_gradient(
    "square", minus_square, equation="thm-one-bit", calibrates=False
)
for p_1, q_1 in ((0.2, 0.7), (0.9, 0.6)):
    still = exact.moments(square, [p_1, 1 - p_1], [q_1, 1 - q_1]).mean
    assert still.abs().max() < 1e-15
push = exact.moments(square, p, q).mean
assert push[2] > push[1] > 0 > push[0]
print("push at K = 3:", push.numpy().round(4))

# %% [markdown]
# :::{exercise} Choose β for one question
# :label: ex-oneb-3
#
# You know that most of your questions have $q = .9$, $K = 2$. Which entropy bonus reports
# them truly? What does it then say for .6 and for .99?
# :::
#
# :::{solution} ex-oneb-3
# :label: sol-oneb-3
# :class: dropdown
#
# $\beta = (2q - 1)/\log\frac{q}{1-q} = .8/\log 9$. Between one half and .9 it overstates, and above .9,
# where a threshold would sit, it understates:
# :::

# %% tags=["hide-cell"]
beta = 0.8 / np.log(9)
says = {c: 1 / (1 + np.exp((1 - 2 * c) / beta)) for c in (0.6, 0.9, 0.99)}
assert abs(says[0.9] - 0.9) < 1e-12 and says[0.6] > 0.6 and says[0.99] < 0.99
print(f"beta {beta:.4f};", {c: round(float(v), 4) for c, v in says.items()})

# %% [markdown]
# :::{exercise} Undo the flips
# :label: ex-oneb-4
#
# Suppose that bits are flipped with a known chance $\varepsilon = .1$. Find a reward that is linear in
# the seen bit, whose resting place on its own actions is $q$. Check it by
# enumeration, and give its price in variance.
# :::
#
# :::{solution} ex-oneb-4
# :label: sol-oneb-4
# :class: dropdown
#
# With $\tilde c$ the seen bit, $\hat c = (\tilde c - \varepsilon)/(1 - 2\varepsilon)$ has mean $q_a$, so pay
# $\hat c - p_a$: the unbiased correction of {cite:t}`natarajan2013`. The constant $\varepsilon$ matters only
# off-policy. The variance of the bit grows at least by the factor $1/(1 - 2\varepsilon)^2$, and by more where
# $q_a$ is near 0 or 1:
# :::

# %% tags=["hide-cell"]
def unflipped(log_probs, feedback):
    seen = (rlvr_reward(log_probs, feedback) - 0.1) / 0.8
    return seen - feedback.taken(log_probs.detach()).exp()


mended = policy_gradient(
    "unflipped", unflipped, equation="thm-noise", calibrates=True
)
for behaviour in (None, skewed):
    end = exact.fixed_point(mended, truth, channel=flip, behaviour=behaviour)
    assert (end.p - q_4b).abs().max() < 1e-8
loud = exact.moments(mended, truth, truth, channel=flip).trace
quiet = exact.moments(OBJECTIVES["rlcd"], truth, truth).trace
print(f"trace {loud:.3f} against {quiet:.3f} without flips")

# %% [markdown]
# :::{exercise} Who answers?
# :label: ex-oneb-5
#
# Right decisions are confirmed nine times in ten, wrong ones reported one time in two.
# Both rates are known. Mend RLCD without scoring anything as wrong.
# :::
#
# :::{solution} ex-oneb-5
# :label: sol-oneb-5
# :class: dropdown
#
# Divide each resolved reward by the chance that it would be resolved, $1/.9$ for right
# and $1/.5$ for wrong ones: a Horvitz-Thompson weight {cite:p}`horvitz1952`. The mean
# given the action is $q_a (1 - p_a) - (1 - q_a)\, p_a = q_a - p_a$ again. If the rates are only
# guessed, so is the calibration:
# :::

# %% tags=["hide-cell"]
def weighed(log_probs, feedback):
    right = rlvr_reward(log_probs, feedback) == 1
    chance = torch.where(right, 0.9, 0.5)
    return rlcd_reward(log_probs, feedback) / chance


answered = policy_gradient(
    "answered", weighed, equation="thm-noise", calibrates=True
)
end = exact.fixed_point(answered, truth, channel=censored)
assert (end.p - q_4b).abs().max() < 1e-8
end.p.numpy().round(4)

# %% tags=["remove-cell"]
save_numbers("06_one_bit", saved)

# %% [markdown]
# ## Further reading
#
# {cite:t}`savage1971` and {cite:t}`gneiting2007` on what makes a score proper; {cite:t}`good1952` for
# the log score as a fair bet. {cite:t}`shao2024` introduce the normalised advantage,
# {cite:t}`bereket2025` and {cite:t}`liu2025` argue against it, for different reasons.
# {cite:t}`natarajan2013` on learning under flipped labels, {cite:t}`tsallis1988` for the entropy that
# does calibrate.
#
# Next: {doc}`07_plackett_luce` on preferences in place of outcomes, and {doc}`09_time` on
# outcomes that come late.
