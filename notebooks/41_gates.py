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
# # From probability to action
#
# **Question.** A policy states .93. Should anything be *done* about it, without a person
# looking? And how much of the work can be handed over if at most one act in twenty may be
# wrong?
#
# **Answer.** Act where the expected cost of acting is the lowest, which takes honest
# probabilities; or choose the threshold by testing it on held-out outcomes, which takes
# none: on the film reviews, with a promise of at most .2 wrong that holds with
# probability .9, RLCD may act on {res}`41_gates:again.rlcd.0_2.share:.0%` of the texts and
# RLVR on {res}`41_gates:again.rlvr.0_2.share:.0%` (means over ten calibrations).
#
# **After this page you can** turn costs into thresholds, say what a threshold on confidence
# does and does not bound, answer "how much can I automate?" with one call, and name the
# three things that break every such promise.
#
# **Running time.** About ten seconds on any machine (CPU, T4 or A100 make no difference),
# once the film-review data are in the cache.

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

# %% mystnb={"figure": {"caption": "Film reviews, test half, seed 0: the more texts a policy acts on, the more often a random rater disagrees. Open marks: what comes of the threshold .8, meant to keep errors below .2 (dotted). Filled marks: thresholds that were tested on the other half.", "name": "fig-gates-movie"}, "image": {"alt": "Error among acts against share acted on. The RLCD and RLVR curves rise from about 0.05 to 0.26, RLVR slightly above. At the threshold 0.8 RLCD acts on 0.4 of the texts with an error near 0.10, while RLVR acts on nearly 0.9 of them with an error near 0.23, above the dotted line at 0.2. The tested thresholds of both lie a little below that line, at shares near 0.7."}} tags=["hide-input"]
import itertools
import math

import numpy as np
import pandas as pd
import sympy
from scipy.special import gammaln

from rlcd_core import plots
from rlcd_core.data.rater import load_rater
from rlcd_core.data.split import split_by_group
from rlcd_core.extra.families.rater import BANDIT_ARMS
from rlcd_core.extra.grid import family_records
from rlcd_core.gates import (
    Costs,
    conformal_risk_control,
    learn_then_test,
    least_rows,
    share_at,
    split_conformal,
)
from rlcd_core.metrics import coverage_at_error, risk_coverage, seed_interval
from rlcd_core.records import Store, save_numbers
from rlcd_core.tasks import rater_task

plots.use_style()
BLUE, RED, GREEN = (plots.COLORS[k] for k in ("rlcd", "rlvr", "verdict"))
movie, films = load_rater("movie", reading=3), rater_task("movie").splits["test"]
counts = movie.counts[films]
raters = counts / counts.sum(1, keepdims=True)
# One rater's verdict a text, drawn once: all that a user of the policy would hear.
luck = np.random.default_rng(31).random((len(films), 1))
verdict = (raters.cumsum(1) < luck).sum(1)
half = split_by_group([movie.groups[i] for i in films], (0.5, 0.5), seed=0)
cal, new = half == 0, half == 1
by_run = {(row.arm, row.seed): row for row in family_records("rater_bandit")}
store, rows = Store("rater_bandit"), np.arange(len(films))


def read(arm, which=0):
    """Confidence, one verdict's outcome and true error rate, each (n,)."""
    p = store.predictions(by_run[arm, which])
    best = p.argmax(1)
    outcome = (verdict == best).astype(float)
    return p[rows, best], outcome, 1 - raters[rows, best]


fig, ax = plots.figure(height=3.8)
ax.axhline(0.2, color=plots.INK, lw=1, ls=":")
first = {}
for arm in ("rlcd", "rlvr"):
    look = plots.ARM_STYLE[arm]
    stated, right, wrong = read(arm)
    curve = risk_coverage(stated[new], 1 - wrong[new])
    far = curve.coverage > 0.02
    ax.plot(curve.coverage[far], curve.risk[far], color=look.color, ls=look.line)
    tested = learn_then_test(stated[cal], right[cal], error=0.2)
    for name, acts in (("naive", stated >= 0.8), ("tested", tested.gate.acts(stated))):
        share, error = acts[new].mean(), wrong[new & acts].mean()
        first.setdefault(arm, {})[name] = {"share": share, "error": error}
        face = "none" if name == "naive" else look.color
        ax.plot(share, error, look.marker, color=look.color, mfc=face, ms=10, mew=2)
    first[arm]["act"] = tested.gate.act
naive = {arm: first[arm]["naive"] for arm in first}
for arm, shift in (("rlcd", (4, -16)), ("rlvr", (-4, 16))):
    at = naive[arm]["share"], naive[arm]["error"]
    side = "left" if arm == "rlcd" else "right"
    name = plots.ARM_STYLE[arm].label.split(",")[0]
    plots.note(ax, f"{name}: act from .8", *at, xytext=shift, ha=side, color=plots.ARM_STYLE[arm].color)
at = first["rlcd"]["tested"]
plots.note(ax, "both, tested", at["share"], at["error"], xytext=(6, -16))
ax.set(xlim=(0, 1.02), ylim=(0, 0.32))
_ = ax.set(xlabel="share acted on", ylabel="error among acts")

# %% tags=["remove-cell"]
save_numbers(
    "41_gates",
    {
        "first": {
            a: {
                "act": float(v["act"]),
                **{
                    k: {n: float(x) for n, x in v[k].items()}
                    for k in ("naive", "tested")
                },
            }
            for a, v in first.items()
        },
        "half": int(cal.sum()),
    },
)

# %% [markdown]
# ## A ticket with costs
#
# *"I was charged twice; please return one payment."* The policy proposes a refund and states .93
# that this is right. Three answers are possible:
#
# - **act**: refund. If it was wrong, {res}`41_gates:cost.wrong` euros are gone;
# - **escalate**: a person looks, who is right, for {res}`41_gates:cost.escalate` euros;
# - **abstain**: do nothing. If the refund was due, an angry customer costs
#   {res}`41_gates:cost.missed` euros; if it was not, nothing is lost.

# %%
costs = Costs(wrong=20, escalate=2, missed=8)
gate = costs.gate()
print(gate)
for stated in (0.93, 0.6, 0.1):
    print(f"{stated:.2f} {gate.decide(stated)}")

# %% tags=["remove-cell"]
save_numbers(
    "41_gates",
    {
        "cost": {
            "wrong": costs.wrong,
            "escalate": costs.escalate,
            "missed": costs.missed,
            "act": gate.act,
            "abstain": gate.abstain,
        }
    },
)

# %% [markdown]
# At .93 the act costs .07 of twenty euros on average, less than the two of a person. Abstaining
# is an answer and no failure: where the act is very likely wrong, silence is cheapest.
#
# :::{prf:theorem} The gate of least expected cost
# :label: thm-gates-costs
#
# A wrong act costs $w > 0$, escalation $e \ge 0$, a missed right act $m \ge 0$. If the act is right
# with chance $p$ given what is known, the least expected cost is reached by: act if
#
# $$ p \ge \max\bigl(1 - \tfrac ew, \tfrac{w}{w + m}\bigr) , $$ (eq-gates-act)
#
# abstain if $p < \min\bigl(\frac em, \frac{w}{w + m}\bigr)$ (with $\frac em = \infty$ for $m = 0$), and escalate between. Escalation is used at
# all if and only if $e < wm/(w + m)$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# The expected costs are $w(1 - p)$, $e$ and $mp$: three lines in $p$, falling, level and rising. The
# least of them is the lower envelope. The act is no dearer than escalation iff $p \ge 1 - e/w$, and no dearer
# than abstaining iff $w - wp \le mp$, that is $p \ge w/(w + m)$; it is best iff both hold. Abstaining is cheaper than
# escalation iff $p < e/m$ and than the act iff $p < w/(w + m)$. Between the two thresholds escalation is left.
# The falling and the rising line cross at height $wm/(w + m)$; the level line is below the crossing iff
# $e$ is less. $\square$
# :::

# %% mystnb={"figure": {"caption": "Expected cost of the three answers by the chance that the act is right. The cheapest answer changes at {res}`41_gates:cost.abstain` and at {res}`41_gates:cost.act`.", "name": "fig-gates-costs"}, "image": {"alt": "Three straight lines of expected cost against chance: abstain rises from 0 to 8, escalate is level at 2, act falls from 20 to 0. The lower envelope is abstain up to 0.25, escalate up to 0.9, act above."}} tags=["hide-input"]
fig, ax = plots.figure(height=3.3)
chance = np.linspace(0, 1, 201)
lines = {
    "act": (costs.wrong * (1 - chance), BLUE, 0.72),
    "escalate": (np.full(201, float(costs.escalate)), plots.COLORS["broken"], 0.76),
    "abstain": (costs.missed * chance, plots.INK, 0.44),
}
for name, (line, color, x) in lines.items():
    ax.plot(chance, line, color=color, lw=1.2)
    best = gate.decide(chance) == name
    ax.plot(chance[best], line[best], color=color, lw=5, alpha=0.6)
    plots.note(ax, name, x, np.interp(x, chance, line), xytext=(10, 0) if name == "act" else (0, 10), ha="left" if name == "act" else "right", color=color)
_ = ax.set(xlim=(0, 1), ylim=(0, 9), xlabel="chance that the act is right", ylabel="expected cost")

# %% [markdown]
# Three checks: the crossings by algebra, the cheapest answer on a grid, and the mean cost in a
# simulated world. The *world* of this chapter is simple enough to know everything about it: $u$ is
# uniform and the policy states $v = 1 - u^2/2$. It is honest if it is right with chance $v$. The share
# $s$ of most confident decisions is wrong at the rate $R = s^2/6$, so the *oracle*, who knows this, can act on the
# share $\sqrt{6\alpha}$ at error $\alpha$.

# %%
w, e, m, p = sympy.symbols("w e m p", positive=True)
crossing = sympy.solve(sympy.Eq(w * (1 - p), m * p), p)[0]
height = sympy.simplify(m * crossing - w * m / (w + m))
print("height of the crossing as stated:", height == 0)

prices = np.stack([line for line, *_ in lines.values()])
chosen = [list(lines).index(a) for a in gate.decide(chance)]
paid = prices[chosen, np.arange(201)]
print("cheapest on the grid:", np.allclose(paid, prices.min(0)))


def world(rng, n):
    """Honest confidences (n,) and outcomes (n,)."""
    v = 1 - rng.random(n) ** 2 / 2
    return v, (rng.random(n) < v).astype(float)


rng = np.random.default_rng(seed)
v, c = world(rng, 200_000)
boast = v**0.1  # the same order, inflated
person = costs.escalate
exact = np.minimum(costs.wrong * (1 - v), person).mean()
for name, stated in (("honest", v), ("inflated", boast)):
    mean = costs.mean(gate.decide(stated), c)
    print(f"{name:8} {mean:.3f} a decision")
print(f"expected {exact:.3f}")

# %% tags=["remove-cell"]
decided = gate.decide(v)
paid = np.where(decided == "act", costs.wrong * (1 - c), person)
spread = paid.std() / math.sqrt(len(v))
save_numbers(
    "41_gates",
    {
        "cost_z": float((paid.mean() - exact) / spread),
        "cost_honest": float(paid.mean()),
        "cost_boast": costs.mean(gate.decide(boast), c),
    },
)

# %% [markdown]
# (The simulated mean lies {res}`41_gates:cost_z:.1f` standard errors from the expected one.) A policy that knows
# just as much but inflates its confidence pays {res}`41_gates:cost_boast:.2f` instead of
# {res}`41_gates:cost_honest:.2f`, more than the {res}`41_gates:cost.escalate` of asking a person every time. This is the
# case for training honest probabilities: costs may differ from case to case and change tomorrow, and honest numbers
# can be used with all of them.
#
# ## What a threshold on confidence bounds
#
# Often there are no costs but a rule: *at most the share $\alpha$ of what is done automatically may be wrong*. The naive gate
# acts from $1 - \alpha$. That is too strict for an honest policy, and no protection at all against another.
#
# :::{prf:proposition} The marginal case and the accepted set
# :label: prp-gates-naive
#
# Let $v$ be the stated confidence, $c$ the outcome and $R(t) = \Pr(c = 0 \mid v \ge t)$. If the policy is honest,
# $\Pr(c = 1 \mid v) = v$, then
#
# $$ R(t) = 1 - \mathbb{E}[v \mid v \ge t] \le 1 - t , $$ (eq-gates-naive)
#
# with equality only if every accepted decision states exactly $t$. Without honesty nothing follows from $t$: for any
# policy there is another with the same order of confidences, hence the same sets of acts, all of whose statements exceed $t$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# $\Pr(c = 0 \mid v \ge t) = \mathbb{E}[1 - v \mid v \ge t]$ by conditioning on $v$, and $1 - v \le 1 - t$ there; the mean of
# $v - t \ge 0$ is 0 only if it vanishes almost surely. For the last part replace $v$ by $t' + (1 - t') v$ with $t < t' < 1$. $\square$
# :::
#
# $1 - t$ is the error of the *marginal* decision, the last one let in; what the rule asks for is the mean over all that
# were let in. In the world above $R(t) = (1 - t)/3$: the naive gate at .95 errs at a third of what it may.

# %%
u, s = sympy.symbols("u s", positive=True)
risk = sympy.integrate(u**2 / 2, (u, 0, s)) / s
print("R as a function of the share:", risk)

alpha = 0.05
levels, weight = np.array([0.95, 0.97, 1.0]), np.array([0.2, 0.3, 0.5])
enumerated = (weight * (1 - levels)).sum()
print(f"three levels from .95 up, exact: {enumerated:.3f}")

oracle = math.sqrt(6 * alpha)
for name, stated in (("honest", v), ("inflated", boast)):
    acts = stated >= 1 - alpha
    found = (1 - c[acts]).mean()
    error = math.sqrt(found * (1 - found) / acts.sum())
    line = f"act on {acts.mean():.2f}, wrong {found:.4f} ± {error:.4f}"
    print(f"{name:8} {line}")
print(f"oracle   act on {oracle:.2f}, wrong {alpha:.4f}")

# %% tags=["remove-cell"]
shares = {
    n: float((x >= 1 - alpha).mean()) for n, x in (("honest", v), ("boast", boast))
}
wrongs = {
    n: float((1 - c[x >= 1 - alpha]).mean()) for n, x in (("honest", v), ("boast", boast))
}
save_numbers(
    "41_gates",
    {"world": {"alpha": alpha, "oracle": oracle, "share": shares, "wrong": wrongs}},
)

# %% [markdown]
# Honest: {res}`41_gates:world.wrong.honest:.3f` wrong where {res}`41_gates:world.alpha` was allowed, and
# {res}`41_gates:world.share.honest:.2f` of the work done where {res}`41_gates:world.oracle:.2f` was possible. Inflated:
# {res}`41_gates:world.wrong.boast:.3f` wrong. {numref}`fig-gates-movie` shows both on real text: from .8 up RLCD is wrong in
# {res}`41_gates:first.rlcd.naive.error:.2f` of its acts, RLVR, which states .8 or more for
# {res}`41_gates:first.rlvr.naive.share:.0%` of all texts, in {res}`41_gates:first.rlvr.naive.error:.2f`.
#
# ## Learn, then test
#
# The threshold should come from outcomes. The obvious way, the lowest threshold whose error *on the calibration rows* is at
# most $\alpha$, picks the luckiest of many and exceeds $\alpha$ about every other time. A threshold should rather be *shown* to
# be good: start with a null hypothesis that it is bad, and use it only if the data reject that {cite:p}`angelopoulos2025ltt`.
#
# :::{prf:algorithm} A tested threshold
# :label: alg-gates-ltt
#
# From $n$ independent held-out decisions with confidences $v_i$ and outcomes $c_i$, for each threshold $t$ let $n_t$ be the number
# of rows with $v_i \ge t$, $k_t$ the number of these that are wrong, $\delta$ the chance with which the promise may fail, and
#
# $$ p_t = \Pr\bigl(\operatorname{Bin}(n_t, \alpha) \le k_t\bigr) . $$ (eq-gates-p)
#
# Begin at a start and lower $t$ through the distinct confidences. While $p_t \le \delta$, go on; at the first failure stop. Act from
# the last threshold that passed; never, if there is none.
# :::
#
# Ties need no care: equal confidences enter together. The start may be a threshold fixed beforehand. By default it is where a tenth
# of the rows is accepted, and at least as many as could pass at all: with no error among $n_t$ rows $p_t = (1 - \alpha)^{n_t}$.
#
# :::{prf:theorem} The promise of a tested threshold
# :label: thm-gates-ltt
#
# Let the rows be independent and identically distributed, and $\hat t$ the threshold of {prf:ref}`alg-gates-ltt`. Then
#
# $$ \Pr\bigl(R(\hat t) > \alpha\bigr) \le \delta $$ (eq-gates-ltt)
#
# over draws of the calibration rows, where a gate that never acts counts as keeping the promise, if (a) the start is fixed
# beforehand, or (b) the start is the first distinct confidence that at least $m$ rows reach, $m$ fixed, and no confidence below
# $t^\circ = \sup\{t : R(t) > \alpha\}$ is wrong with chance less than $\alpha$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1. One threshold.* Given $n_t = j$, the accepted rows are independent draws from the law given $v \ge t$, so $k_t$ is binomial with $j$
# trials and chance $R(t)$. Let $R(t) \ge \alpha$. Then $k_t$ is stochastically at least as large as $K \sim \operatorname{Bin}(j, \alpha)$, and with
# $F$ the distribution function of $K$, $\Pr(p_t \le \delta \mid j) \le \Pr(F(K) \le \delta) \le \delta$.
#
# *2. All thresholds.* Between neighbouring observed confidences neither $n_t$ nor $k_t$ changes. So the algorithm tests *every* real $t$ from
# the start down until the first failure: the thresholds are fixed, and data decide only where the walk ends.
#
# *3. The first bad threshold.* Under (a), restrict all thresholds to those not above the start. If none is bad nothing can go wrong. Else
# $R(t^\circ) \ge \alpha$: if $t^\circ$ is itself bad this is clear, and else there are bad $t_j \uparrow t^\circ$, whose events $\{v \ge t_j\}$ shrink to
# $\{v \ge t^\circ\}$, so that $R(t_j) \to R(t^\circ)$. (If $\Pr(v \ge t^\circ) = 0$ no row is accepted there and the walk has stopped.) Every bad
# threshold is at or below $t^\circ$. To use one, the walk must pass $t^\circ$, which has chance at most $\delta$ by step 1. No correction for many
# tests is needed.
#
# *4. A start that depends on the rows.* Under (b) let $M = n_{t^\circ}$. If $M \ge m$ the start is at or above $t^\circ$ and, given $M$, step 1 and step 3
# apply. If $M < m$ the start $s$ is below $t^\circ$. Given $M$ and the confidences below $t^\circ$, the outcomes are independent; the $M$ rows above are
# wrong with chance $R(t^\circ) \ge \alpha$, those below with chance at least $\alpha$ each. So $k_s$ is stochastically at least
# $\operatorname{Bin}(n_s, \alpha)$, and $s$ passes with chance at most $\delta$. Average over $M$. $\square$
# :::
#
# Condition (b) holds if errors never get rarer as confidence falls, honest or not. A policy whose *most* confident answers are its worst (a
# pocket of confident nonsense) can violate it; then fix the start from older data. What is *not* assumed is calibration: only the order of
# the confidences enters.
#
# **By enumeration.** Three confidence levels and ten rows leave 3,003 distinct data sets. Each goes through the real
# function, and the chance that the promise fails is summed exactly:

# %%
stated = np.array([0.9, 0.8, 0.6])
mass, bad = np.array([0.3, 0.4, 0.3]), np.array([0.1, 0.35, 0.6])
cells = np.stack([mass * (1 - bad), mass * bad], 1).ravel()
true_risk = (mass * bad).cumsum() / mass.cumsum()
n_rows, target, delta = 10, 0.3, 0.25
total = fails = 0.0
for bars in itertools.combinations(range(n_rows + 5), 5):
    edges = np.array([-1, *bars, n_rows + 5])
    number = np.diff(edges) - 1
    log_p = gammaln(n_rows + 1) - gammaln(number + 1).sum()
    chance_of = math.exp(log_p + number @ np.log(cells))
    data = np.repeat(stated, 2).repeat(number)
    right = np.tile([1, 0], 3).repeat(number)
    act = learn_then_test(data, right, target, delta).gate.act
    total += chance_of
    if act is not None:
        fails += chance_of * (true_risk[stated >= act][-1] > target)
print("true error by level:", true_risk.round(3))
print(f"mass {total:.6f}, chance to fail {fails:.4f}, allowed {delta}")
assert abs(total - 1) < 1e-12 and fails <= delta

# %% [markdown]
# **By simulation,** at a size one might have: {res}`41_gates:sim.n:,` resolved decisions, $\alpha = .05$, $\delta = .1$, and
# {res}`41_gates:sim.draws:,` calibration sets from the honest world.

# %%
n_cal, draws = 2000, 1000
rng = np.random.default_rng(seed + 1)
sets = [world(rng, n_cal) for _ in range(draws)]


def act_on(gate):
    """True share of the world that a gate acts on."""
    return 0.0 if gate.act is None else math.sqrt(2 * (1 - gate.act))


tested = np.array([act_on(learn_then_test(*x, alpha).gate) for x in sets])
lucky = np.array([coverage_at_error(*x, alpha) for x in sets])
cut = [np.sort(x[0])[::-1] for x in sets]
last = [max(round(k * n_cal) - 1, 0) for k in lucky]
lucky = np.sqrt([2 * (1 - a[i]) for a, i in zip(cut, last, strict=True)])
strict_share = math.sqrt(2 * alpha)
rules = {
    "act from .95": np.full(draws, strict_share),
    "lowest that looks good": lucky,
    "tested": tested,
}
pd.DataFrame(
    {
        "exceeds": {k: (x**2 / 6 > alpha).mean() for k, x in rules.items()},
        "share acted on": {k: x.mean() for k, x in rules.items()},
        "of oracle's": {k: x.mean() / oracle for k, x in rules.items()},
    }
).round(3)

# %% mystnb={"figure": {"caption": "True error among acts over {res}`41_gates:sim.draws:,` calibration sets of {res}`41_gates:sim.n:,` rows. The lowest threshold that looks good breaks the rule (dotted) about every other time, the tested one in {res}`41_gates:sim.exceed_share:.1%`; .95 never, and leaves the work undone.", "name": "fig-gates-promise"}, "image": {"alt": "Two histograms of true error. The red one, lowest threshold that looks good, is centred on the dotted line at 0.05. The blue one, tested thresholds, lies mostly between 0.03 and 0.05 with about a twelfth beyond. A grey line at 0.017 marks the threshold 0.95."}} tags=["hide-input"]
fig, ax = plots.figure(height=3.4)
edges = np.linspace(0.01, 0.075, 53)
for shares_, color in ((lucky, RED), (tested, BLUE)):
    ax.hist(shares_**2 / 6, edges, color=color, alpha=0.55)
ax.axvline(alpha, color=plots.INK, lw=1, ls=":")
ax.axvline(alpha / 3, color=plots.INK, lw=2)
top = ax.get_ylim()[1]
plots.note(ax, "act from .95", alpha / 3, 0.9 * top)
plots.note(ax, "tested", 0.0345, 0.62 * top, xytext=(0, 0), ha="right", color=BLUE)
plots.note(ax, "lowest that\nlooks good", 0.056, 0.8 * top, color=RED)
_ = ax.set(xlabel="true error among acts", ylabel="calibration sets")

# %% tags=["remove-cell"]
by_size = {}
for level in (0.02, 0.05, 0.1):
    for size in (200, 500, 1000, 2000, 4000):
        got = [act_on(learn_then_test(*world(rng, size), level).gate) for _ in range(100)]
        by_size[level, size] = np.mean(got) / math.sqrt(6 * level), np.mean(np.equal(got, 0))
save_numbers(
    "41_gates",
    {
        "sim": {
            "n": n_cal,
            "draws": draws,
            "exceed": int((tested**2 / 6 > alpha).sum()),
            "exceed_share": float((tested**2 / 6 > alpha).mean()),
            "lucky": float((lucky**2 / 6 > alpha).mean()),
            "of_oracle": float(tested.mean() / oracle),
            "strict_of_oracle": strict_share / oracle,
        },
        "small": {
            f"{a:g}".replace(".", "_") + f"_{k}": float(x[0])
            for (a, k), x in by_size.items()
        },
        "small_none": {
            f"{a:g}".replace(".", "_") + f"_{k}": float(x[1])
            for (a, k), x in by_size.items()
        },
        "least": {"0_02": least_rows(0.02), "0_05": least_rows(0.05)},
    },
)

# %% [markdown]
# {res}`41_gates:sim.exceed` of {res}`41_gates:sim.draws:,` sets broke the rule (130 is the 99.9 % quantile if the chance were exactly
# $\delta$), and the tested gate did {res}`41_gates:sim.of_oracle:.0%` of what the oracle could. The naive one, in the one case where
# it is safe, did {res}`41_gates:sim.strict_of_oracle:.0%`. What does a promise cost at other sizes? Share of the oracle's, mean over
# 100 calibration sets:

# %%
sizes = sorted({k for _, k in by_size})
pd.DataFrame(
    {
        f"error {a:g}": [by_size[a, k][0] for k in sizes]
        for a in (0.02, 0.05, 0.1)
    },
    index=pd.Index([f"{k:,}" for k in sizes], name="rows"),
).round(2)

# %% [markdown]
# **Where it falls short.** With few rows the tested gate often never acts. At error .02 even {res}`41_gates:least.0_02` flawless acts are the
# least that can show anything; with 500 rows {res}`41_gates:small_none.0_02_500:.0%` of the gates stay shut, and .8 of the oracle's share takes
# about 4,000 rows at .02, 1,000 at .05 and 500 at .1. That is a limit of the data more than of the method: {doc}`10_how_many_outcomes` counts
# the same way.
#
# ## How much can each arm automate?
#
# Back to the films. The calibration half holds {res}`41_gates:half:,` texts, each with *one* rater's verdict; the other half, with all its
# raters, tells what is true. One call answers the manager:

# %%
for arm in ("rlcd", "rlvr"):
    stated, right, _ = read(arm)
    answer = share_at(stated[cal], right[cal], error=0.2)
    print(f"{plots.ARM_STYLE[arm].label:18} {answer:.2f}")

# %% [markdown]
# The interval (95 %) is for the share of new texts that *this* gate will act on. Since the threshold was chosen on the same rows, it is a band that holds
# for all thresholds at once, half width $\sqrt{\ln(2/.05)/(2n)}$ {cite:p}`massart1990`. All arms, ten seeds, error among acts promised with
# $\delta = .1$: mean share with its interval over seeds (cut at 0), then the true error on the other half, over the gates that act:

# %%
allowed = (0.2, 0.15, 0.1)
result = {}
for arm, which in itertools.product(BANDIT_ARMS, range(10)):
    stated, right, wrong = read(arm, which)
    for level in allowed:
        found = learn_then_test(stated[cal], right[cal], level)
        acts = found.gate.acts(stated) & new
        error = wrong[acts].mean() if acts.any() else np.nan
        row = found.accepted / found.n, error
        result.setdefault((arm, level), []).append(row)
result = {key: np.array(value) for key, value in result.items()}


def shown(key):
    """Mean share with interval; mean true error of the gates that act."""
    share, error = result[key].T
    mean = seed_interval(share)
    line = f"{mean.estimate:.2f} [{max(mean.low, 0):.2f}, {mean.high:.2f}]"
    acting = np.isfinite(error)
    return f"{line}; {error[acting].mean():.3f}" if acting.any() else line


pd.DataFrame(
    {
        f"at most {a:g}": {
            plots.ARM_STYLE[k].label: shown((k, a)) for k in BANDIT_ARMS
        }
        for a in allowed
    }
)

# %% mystnb={"figure": {"caption": "Share of the texts that may be automated with at most .15 wrong among the acts ($\\delta = .1$), mean and 95 % interval over ten seeds.", "name": "fig-gates-arms"}, "image": {"alt": "Dots with intervals by arm. Verdict NLL, full label NLL and RLCD with one outcome between 0.50 and 0.53, the RLCD seed recipe at 0.45, RLVR and std-normalised arms between 0.40 and 0.42, the warm-up at 0.07."}} tags=["hide-input"]
fig, ax = plots.figure(height=3.8)
dots = {arm: result[arm, 0.15][:, 0] for arm in BANDIT_ARMS}
plots.plot_dots(ax, plots.prepare_dots(dots), "share acted on at error .15")
_ = ax.set(xlim=(-0.02, 0.65))

# %% tags=["remove-cell"]
key = {0.2: "0_2", 0.15: "0_15", 0.1: "0_1"}
table = {
    arm: {
        key[a]: {
            "share": float(result[arm, a][:, 0].mean()),
            "never": int((result[arm, a][:, 0] == 0).sum()),
        }
        for a in allowed
    }
    for arm in BANDIT_ARMS
}
gain = {
    key[a]: seed_interval(result["rlcd", a][:, 0] - result["rlvr", a][:, 0]) for a in allowed
}
every = np.concatenate([np.c_[result[k, a], np.full(10, a)] for k, a in result])
acting = np.isfinite(every[:, 1])
save_numbers(
    "41_gates",
    {
        "table": table,
        "gain": {k: x.estimate for k, x in gain.items()},
        "gain_interval": {k: [x.low, x.high] for k, x in gain.items()},
        "gates_acting": int(acting.sum()),
        "gates_over": int((every[acting, 1] > every[acting, 2]).sum()),
    },
)

# Another draw of halves and verdicts moves all arms at once: ten more.
stated_ = {a: [store.predictions(by_run[a, k]) for k in range(10)] for a in ("rlcd", "rlvr")}
again = {(a, level): [] for a in stated_ for level in allowed}
broken: list[list[float]] = []
for draw in range(10):
    rng_ = np.random.default_rng(100 + draw)
    broken.append([])
    part = rng_.permutation(len(films)) < len(films) // 2
    heard = (raters.cumsum(1) < rng_.random((len(films), 1))).sum(1)
    for a, predictions in stated_.items():
        got = {level: [] for level in allowed}
        for p_ in predictions:
            best = p_.argmax(1)
            top = p_[rows, best]
            ok = (heard == best).astype(float)
            for level in allowed:
                found = learn_then_test(top[part], ok[part], level)
                got[level].append(found.accepted / found.n)
                acts = found.gate.acts(top) & ~part
                if acts.any():
                    broken[-1].append(1 - raters[rows, best][acts].mean() > level)
        for level in allowed:
            again[a, level].append(np.mean(got[level]))
again = {k: np.array(x) for k, x in again.items()}
rate = seed_interval([np.mean(x) for x in broken])
save_numbers(
    "41_gates",
    {
        "again": {
            a: {
                key[level]: {
                    "share": float(again[a, level].mean()),
                    "range": [float(again[a, level].min()), float(again[a, level].max())],
                }
                for level in allowed
            }
            for a in stated_
        },
        "again_wins": {
            key[level]: int((again["rlcd", level] > again["rlvr", level]).sum())
            for level in allowed
        },
        "again_broken": rate.estimate,
        "again_broken_interval": [max(rate.low, 0.0), rate.high],
    },
)

# %% [markdown]
# - **The promise asks no arm to be calibrated.** Of {res}`41_gates:gates_acting` gates that act,
#   {res}`41_gates:gates_over` err more than promised on the other half. (They share one calibration draw, so this is closer to one
#   trial than to {res}`41_gates:gates_acting`; and the other half is itself a sample.)
# - **What honest training buys is not safety but work done.** RLCD may automate {res}`41_gates:gain.0_2:.2f`
#   {res}`41_gates:gain_interval.0_2:.2f` more of all texts than RLVR at .2 and {res}`41_gates:gain.0_15:.2f` {res}`41_gates:gain_interval.0_15:.2f`
#   more at .15 (95 % over seeds), because it *orders* them better. Verdict NLL does as well as RLCD or better, once more.
# - **At .1 no arm has much to offer.** RLCD may act on {res}`41_gates:table.rlcd.0_1.share:.2f`; for RLVR
#   {res}`41_gates:table.rlvr.0_1.never` of ten gates stay shut. People disagree about films, and a thousand verdicts show no more.
# - **One calibration draw is one draw.** The intervals above are over training seeds. Ten other halves with other verdicts give RLCD a mean
#   share of {res}`41_gates:again.rlcd.0_2.share:.2f` (draws from {res}`41_gates:again.rlcd.0_2.range:.2f`) at .2 and
#   {res}`41_gates:again.rlcd.0_1.share:.2f` ({res}`41_gates:again.rlcd.0_1.range:.2f`) at .1; RLVR
#   {res}`41_gates:again.rlvr.0_2.share:.2f` and {res}`41_gates:again.rlvr.0_1.share:.2f`. RLCD is ahead in
#   {res}`41_gates:again_wins.0_2`, {res}`41_gates:again_wins.0_15` and {res}`41_gates:again_wins.0_1` of the ten at .2, .15 and .1, and
#   of the gates that act the share {res}`41_gates:again_broken:.2f` {res}`41_gates:again_broken_interval:.2f` errs more than promised on the other
#   half: about $\delta$, as it should be, but ten draws cannot tell it from twice that. The exact check is the world above.
# - **RLVR's threshold tells a reader nothing.** To err at most .2 (seed 0) RLVR acts from {res}`41_gates:first.rlvr.act:.3f`, RLCD from
#   {res}`41_gates:first.rlcd.act:.3f`, below the naive .8, as the proposition says of honest policies.
#
# ## A loss per decision instead
#
# Sometimes the budget is for *all* decisions: "at most two wrong acts per hundred tickets", whoever handled them; or errors differ in
# price. Then the loss of a decision never grows with the threshold, and its *mean* can be held.
#
# :::{prf:theorem} Conformal risk control
# :label: thm-gates-crc
#
# Let rows $1, \dots, n + 1$ be exchangeable with losses $L_i(t) = \ell_i \, 1[v_i \ge t]$, $0 \le \ell_i \le 1$, and let $\hat t$ be the lowest
# distinct calibration confidence with
#
# $$ \frac{1}{n + 1} \Bigl( \sum_{i \le n} L_i(t) + 1 \Bigr) \le \alpha $$ (eq-gates-crc)
#
# (never act if there is none). Then $\mathbb{E}\, L_{n+1}(\hat t) \le \alpha$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# Let $A$ be the set of thresholds with $\sum_{i \le n+1} L_i(t) \le \alpha (n + 1)$. It does not depend on the order of the rows, and since losses fall with
# $t$ it contains every $t$ above each of its members ("never" belongs to it). As $L_{n+1} \le 1$, {eq}`eq-gates-crc` implies $\hat t \in A$. Let $t'$ be a member of $A$ so
# low that no row has its confidence below $t'$ and at or above another member; such a member exists, because confidences are finitely many, and it can
# be chosen without regard to the order of rows. Then $L_{n+1}(\hat t) \le L_{n+1}(t')$. By exchangeability
# $\mathbb{E} L_{n+1}(t') = \mathbb{E} \frac{1}{n+1} \sum_{i \le n+1} L_i(t') \le \alpha$. $\square$
# :::
#
# The theorem is a case of {cite:t}`angelopoulos2024crc`. Its promise differs from {prf:ref}`thm-gates-ltt` twice: it is a mean over
# calibration draws, and over all decisions. In the world, acting on the share $s$ costs $s^3/6$ wrong acts a decision:

# %%
budget = 0.02
held = [conformal_risk_control(x, 1 - y, budget) for x, y in sets]
losses = np.array([act_on(g.gate) ** 3 / 6 for g in held])
per_act = np.array([act_on(g.gate) ** 2 / 6 for g in held])
error = losses.std(ddof=1) / math.sqrt(draws)
print(f"wrong acts a decision: {losses.mean():.5f} ± {error:.5f}")
print(f"single draws above {budget}: {(losses > budget).mean():.2f}")
print(f"error among the acts: {per_act.mean():.3f}")

# %% tags=["remove-cell"]
save_numbers(
    "41_gates",
    {
        "crc": {
            "target": budget,
            "mean": float(losses.mean()),
            "error": float(error),
            "above": float((losses > budget).mean()),
            "per_act": float(per_act.mean()),
        }
    },
)

# %% [markdown]
# The mean is {res}`41_gates:crc.mean:.4f`, as promised; {res}`41_gates:crc.above:.0%` of single draws are above, which the promise
# allows; and among the acts {res}`41_gates:crc.per_act:.3f` are wrong, of which it says nothing. Use it for budgets, and the tested threshold where each
# act must be trustworthy.
#
# **Sets of options** follow the same idea: include every option whose probability reaches a level, chosen so that the right one is left out
# with chance at most $\alpha$ on average. Sets of one are tempting to act on. But:

# %%
p = store.predictions(by_run["rlcd", 0])
inside = p >= split_conformal(p[cal], verdict[cal], error=0.2)
left_out = 1 - (raters * inside).sum(1)
single = inside.sum(1) == 1
assert left_out[new & single].mean() > left_out[new].mean()
summary = {"all": new, "one option": new & single, "several": new & ~single}
pd.DataFrame(
    {
        "share": {k: m[new].mean() for k, m in summary.items()},
        "left out": {k: left_out[m].mean() for k, m in summary.items()},
    }
).round(3)

# %% tags=["remove-cell"]
save_numbers(
    "41_gates",
    {"sets": {"all": float(left_out[new].mean()), "single": float(left_out[new & single].mean())}},
)

# %% [markdown]
# The promise, {res}`41_gates:sets.all:.3f` for .2, is an average. Where the set is a single option the raters' option is left out in
# {res}`41_gates:sets.single:.3f` of cases, more than promised for the average. (These are the least ambiguous sets of
# {cite:t}`sadinle2019`; the tests compare them, set by set, with those of the library MAPIE.)
#
# ## What no gate can do
#
# Each promise is about new rows *drawn like the calibration rows*. Three ways to lose that, each from the honest world at $\alpha = .05$:

# %%
# Shift: later, one right act in thirty turns wrong.
drifted = tested**2 / 6 + (1 - tested**2 / 6) / 30
# Time: right acts are known soon, wrong ones surface half as often.
late = []
for x, y in sets[:300]:
    seen = rng.random(n_cal) < np.where(y == 1, 0.9, 0.45)
    late.append(act_on(learn_then_test(x[seen], y[seen], alpha).gate))
late = np.array(late)
# Peeks: calibrate twenty times on fresh rows, keep the boldest gate.
boldest = tested.reshape(-1, 20).max(1)
trouble = {"as promised": tested**2 / 6, "shift": drifted}
trouble["wrong ones surface late"] = late**2 / 6
trouble["boldest of 20"] = boldest**2 / 6
pd.DataFrame(
    {
        "true error": {k: x.mean() for k, x in trouble.items()},
        "exceeds .05": {k: (x > alpha).mean() for k, x in trouble.items()},
    }
).round(3)

# %% tags=["remove-cell"]
save_numbers(
    "41_gates",
    {
        "trouble": {
            k.split()[0]: {"error": float(x.mean()), "exceeds": float((x > alpha).mean())}
            for k, x in trouble.items()
        }
    },
)

# %% [markdown]
# - **Shift.** The gate sees confidences, not the world. A drift that spares them goes unseen until outcomes are watched; the any-time alarm
#   ({prf:ref}`thm-anytime`) does that. If only the mix of cases changes, and it is known how, rows can be weighted {cite:p}`tibshirani2019`.
#   Text in a ticket that argues for an option is a shift made on purpose; {doc}`44_hostile_text` measures what it does to a gate.
# - **Selection by time.** Calibrating on "what has come back so far" is calibrating on the cases that come back early. If those are the right
#   ones, the promise fails in {res}`41_gates:trouble.wrong.exceeds:.1%` of sets. Take whole weeks, long enough ago for everything to have resolved.
#   The gate makes its own selection, too: what it acts on is no longer seen by a person, so keep a random share escalated, for outcomes.
# - **Many peeks.** $\delta$ is for one calibration. The boldest of twenty breaks the rule in {res}`41_gates:trouble.boldest.exceeds:.0%` of cases. Whoever
#   tries $j$ policies or dates must test each at $\delta / j$.
# - **Groups.** "At most .05 wrong" is an average over all acts. {cite:t}`jones2021` show that raising the threshold can *lower* the accuracy of
#   some groups while it raises the mean. Test each group that matters.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *A person is right.* The costs above say so. If people err at ten per cent, escalation has a risk as well, and the thresholds move.
# - *Costs are known.* If they are not, no gate settles what a wrong act may cost; the tested threshold only says how often.
# - *The plainer rule may do.* With tens of thousands of rows the lowest threshold that looks good still breaks the rule every other time, but
#   by very little. What testing adds then is small.
# - *The order of confidences is all that a tested gate needs.* If the error among acts is the only use of a policy, the case for calibration is weak: RLVR with a tested gate
#   lost {res}`41_gates:gain.0_2:.2f` of share at .2, not its safety. The case rests on costs, on joint decisions, and on numbers that people read.
# - *Another start.* Testing from the first tenth on is a choice made in the honest world above; where errors are rare, a lower start would pass more often.
# :::
#
# ## Exercises
#
# :::{exercise} No person to ask
# :label: ex-gates-1
#
# At night nobody can be asked. With the same costs, what is the gate, and what does a night cost more per ticket in the honest world?
# :::
#
# :::{solution-start} ex-gates-1
# :label: sol-gates-1
# :class: dropdown
# :::
#
# An infinite price takes the answer away; both thresholds fall on $w/(w + m)$.

# %% tags=["hide-input"]
night = Costs(wrong=20, escalate=math.inf, missed=8).gate()
assert night.act == night.abstain == 20 / 28
by_day = costs.mean(gate.decide(v), c)
by_night = costs.mean(night.decide(v), c)
print(f"act from {night.act:.3f}; {by_night:.2f} instead of {by_day:.2f}")
assert by_night > by_day

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} The fewest rows
# :label: ex-gates-2
#
# How many acts without a single error show an error of at most .01 ($\delta = .1$)? And if one is wrong? Compare with the rule of
# three of {ref}`ex-outcomes-1`.
# :::
#
# :::{solution-start} ex-gates-2
# :label: sol-gates-2
# :class: dropdown
# :::
#
# $(1 - \alpha)^n \le \delta$ gives about $2.3/\alpha$ (three is for $\delta = .05$). One error asks for
# $\Pr(\operatorname{Bin}(n, \alpha) \le 1) \le \delta$, about $3.9/\alpha$.

# %% tags=["hide-input"]
from scipy.stats import binom

clean = least_rows(0.01)
one = next(n for n in range(clean, 1000) if binom.cdf(1, n, 0.01) <= 0.1)
print(clean, one)
right = np.ones(one)
right[0] = 0
flat = np.full(one, 0.9)
assert learn_then_test(flat, right, 0.01).gate.act == 0.9
assert learn_then_test(flat[1:], right[:-1], 0.01).gate.act is None
assert abs(clean * 0.01 - 2.3) < 0.02 and abs(one * 0.01 - 3.9) < 0.05

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Ten copies of each ticket
# :label: ex-gates-3
#
# A careless export holds each resolved ticket ten times. How often does the tested gate break its promise?
# :::
#
# :::{solution-start} ex-gates-3
# :label: sol-gates-3
# :class: dropdown
# :::
#
# The test believes in ten times the evidence, and the gate becomes nearly the lowest threshold that looks good. Independence is a condition, not a
# formality: of several decisions about one state, keep one.

# %% tags=["hide-input"]
copied = [act_on(learn_then_test(x.repeat(10), y.repeat(10), alpha).gate) for x, y in sets[:100]]
broken = (np.square(copied) / 6 > alpha).mean()
print(f"with ten copies of each row: {broken:.0%} of 100 sets")
assert broken > 0.2

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Five policies, one gate
# :label: ex-gates-4
#
# You calibrate five policies of equal quality on their own rows and deploy the one whose gate acts most. Show that testing each at $\delta/5$ keeps the promise, and what it costs.
# :::
#
# :::{solution-start} ex-gates-4
# :label: sol-gates-4
# :class: dropdown
# :::
#
# The chosen gate is bad only if at least one of five is, which has chance at most $5 \cdot \delta/5$.

# %% tags=["hide-input"]
fair = np.array([act_on(learn_then_test(*x, alpha, delta=0.02).gate) for x in sets[:500]])
picked = {"each at δ": tested[:500], "each at δ/5": fair}
picked = {k: x.reshape(-1, 5).max(1) for k, x in picked.items()}
for name, x in picked.items():
    print(f"{name:12} breaks {(x**2 / 6 > alpha).mean():.2f}, acts on {x.mean():.2f}")
assert (picked["each at δ"] ** 2 / 6 > alpha).mean() > 0.2
assert (picked["each at δ/5"] ** 2 / 6 > alpha).mean() < 0.2

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# {cite:t}`chow1970` describes the optimum rejection rule and its tradeoff of error against rejects; {cite:t}`geifman2017` give a bound for the error among acts of neural networks by a search over thresholds with a union bound.
# {cite:t}`angelopoulos2025ltt` and {cite:t}`angelopoulos2024crc` are the two frameworks used here. {cite:t}`jones2021` is the contrary evidence to read before a gate meets people.
# How many outcomes it takes to trust the number itself is the subject of {doc}`10_how_many_outcomes`; the policy of the films is trained in {doc}`20_rater_bandit`.
