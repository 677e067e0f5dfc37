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
# # How many outcomes before a stated .9 can be trusted?
#
# **Question.** A policy states .9 and you plan to act on it unchecked. How many outcomes must
# you have seen, and what must they show?
#
# **Answer.** About {res}`10_how_many_outcomes:detect` outcomes *of decisions stated near .9* to
# notice, four times in five, that .9 is really .85, and about
# {res}`10_how_many_outcomes:certify` to show that an honest .9 is more than .85, that is, to exclude .85 at the 5 % level,
# four times in five. For smaller gaps the
# number grows nearly as one over the gap squared. Twenty outcomes show almost nothing.
#
# **After this page you can** read a sample size off a table, say what a clean reliability diagram
# has *not* excluded, choose an interval, compare two policies on the same cases, and watch a live
# system without crying wolf.
#
# **Running time.** About fifteen seconds on any machine (CPU, T4 or A100 make no difference), once
# the film-review data are in the cache.

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

# %% mystnb={"figure": {"caption": "Chance of noticing that decisions stated at .9 are right less often, by the number of outcomes: exact binomial test at the 5 % level. Each line is one truth; the dotted line is four times in five. The teeth are real: outcomes are whole numbers.", "name": "fig-outcomes-power"}, "image": {"alt": "Power against number of outcomes from 10 to 3000 on a logarithmic axis, four saw-toothed curves. A true .7 is noticed with power .8 after about 25 outcomes, .8 after about 90, .85 after about 300, .88 after about 1,600."}} tags=["hide-input"]
import numpy as np
import pandas as pd
from scipy.special import betainc, betaln
from scipy.stats import binom, norm

from rlcd_core import plots
from rlcd_core.data.rater import expected_brier, load_rater
from rlcd_core.extra.grid import family_records
from rlcd_core.metrics import (
    bootstrap_interval,
    ece,
    ece_noise_floor,
    ece_statistic,
    paired_bootstrap,
    reliability,
    top_option,
    wilson_interval,
)
from rlcd_core.records import Store, save_numbers
from rlcd_core.tasks import rater_task

plots.use_style()
rng = np.random.default_rng(seed)
BLUE, OCHRE, INK = plots.COLORS["rlcd"], plots.COLORS["broken"], plots.INK


def alarm(n, stated, level=0.05):
    """Largest count of successes that is an alarm at this level; -1 if none."""
    k = binom.ppf(level, n, stated)
    return np.where(binom.cdf(k, n, stated) <= level, k, k - 1)


def power(n, stated, true, level=0.05):
    """Exact chance of an alarm when decisions are right with chance `true`."""
    return binom.cdf(alarm(n, stated, level), n, true)


def lasting(reached):
    """First n from which on the condition holds; n counts from 1."""
    return int(np.flatnonzero(~reached)[-1]) + 2


many = np.arange(1, 4001)
fig, ax = plots.figure(height=3.6)
truths = (0.7, 0.8, 0.85, 0.88)
ax.axhline(0.8, color=INK, lw=1, ls=":")
for true, x in zip(truths, (14, 38, 120, 540), strict=True):
    curve = power(many, 0.9, true)
    ax.plot(many, curve, color=BLUE, lw=1.2)
    at = curve[x - 3 : x + 4].mean()
    text = f"{true:g}".lstrip("0")
    plots.note(ax, text, x, at, xytext=(-12, 14), ha="right", color=BLUE)
ax.set(xscale="log", xlim=(8, 3000), ylim=(0, 1.02))
ax.set_xticks([10, 30, 100, 300, 1000, 3000], ["10", "30", "100", "300", "1,000", "3,000"])
ax.minorticks_off()
_ = ax.set(xlabel="outcomes of decisions stated at .9", ylabel="chance of an alarm")

# %% tags=["remove-cell"]
lowest = binom.ppf(0.95, many, 0.85) + 1  # this many successes exclude s <= .85
shows = binom.sf(lowest - 1, many, 0.9)
numbers = {
    "detect": lasting(power(many, 0.9, 0.85) >= 0.8),
    "first": int(np.argmax(power(many, 0.9, 0.85) >= 0.8)) + 1,
    "certify": lasting(shows >= 0.8),
    "at20": float(power(20, 0.9, 0.85)),
    "at20_70": float(power(20, 0.9, 0.7)),
}
save_numbers("10_how_many_outcomes", numbers)

# %% [markdown]
# ## A ticket
#
# Twenty tickets were routed with a stated .9; seventeen were right, a share of .85. What can be said?

# %%
low, high = wilson_interval(17, 20)
truths = (0.9, 0.85, 0.7)
chances = {f"right with {s}": binom.cdf(17, 20, s) for s in truths}
print(f"95 % Wilson interval: {low:.3f} to {high:.3f}")
pd.Series(chances, name="chance of 17 or fewer").round(4).to_frame()

# %% [markdown]
# The interval holds .9, .85 and .7: a policy that keeps its word and one that fails three times as often as it says
# are both at home in these data. At twenty outcomes the alarm of the next section would
# notice a true .85 with chance {res}`10_how_many_outcomes:at20:.2f` and a true .7 with chance
# {res}`10_how_many_outcomes:at20_70:.2f`.
#
# "No significant miscalibration" is therefore mostly a statement about $n$. There are two questions, and they need
# different tests. **Detect:** if .9 is a lie, shall I notice? **Certify:** if .9 is
# honest, can I show that it is good enough? Absence of an alarm never certifies.
#
# ## The exact test
#
# :::{prf:definition} Alarm
# :label: def-alarm
#
# Of $n$ independent decisions stated at $v$, $k$ were right. Let $F_s$ be the distribution function of
# the binomial with $n$ trials and chance $s$. The alarm at level $\alpha$ sounds if
# $k \le k^*$, where $k^*$ is the largest number with $F_v(k^*) \le \alpha$.
# :::
#
# :::{prf:theorem} Exact power
# :label: thm-exact-power
#
# 1. If the true chance is $s \ge v$, the alarm sounds with probability at most $\alpha$.
# 2. If it is $s$, the alarm sounds with probability $F_s(k^*)$, which rises as $s$ falls.
# 3. To first order, power $1 - \beta$ against $s < v$ needs
#
#    $$ n \approx \Bigl( \frac{z_{\alpha} \sqrt{v (1 - v)} + z_{\beta} \sqrt{s (1 - s)}}{v - s} \Bigr)^2 , $$ (eq-sample-size)
#
#    with $z_\alpha$ the upper $\alpha$ point of the standard normal distribution.
# 4. If the decisions of a bin have unequal chances with mean $s$, the variance of $k$ is
#    $n s (1 - s) - \sum_i (s_i - s)^2$, never more than the binomial's.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1 and 2.* Draw $U_i$ uniform and call decision $i$ right if $U_i < s$. Raising $s$ can only turn wrong into right, so
# $k$ grows and $F_s(k^*)$ falls in $s$. At $s = v$ it is at most $\alpha$ by definition.
#
# *3.* By the central limit theorem $k^* \approx nv - z_\alpha \sqrt{n v (1 - v)}$, and under $s$ the power is
# $\Phi\bigl((k^* - ns)/\sqrt{n s (1 - s)}\bigr)$. Set this equal to $1 - \beta = \Phi(z_\beta)$ and solve:
# $n (v - s) = \sqrt n \,(z_\alpha \sqrt{v(1-v)} + z_\beta \sqrt{s(1-s)})$.
#
# *4.* $\operatorname{Var} k = \sum_i s_i (1 - s_i) = n s - \sum_i s_i^2$, and
# $\sum_i s_i^2 = n s^2 + \sum_i (s_i - s)^2$. $\square$
# :::
#
# Part 4 suggests that a bin with mixed confidences may be tested as if all stated their mean: the spread
# makes $k$ steadier, and in the case checked here the false alarm rarer. Checks by enumeration (all $2^{12}$ outcomes of a mixed bin) and by simulation:

# %%
mixed = np.linspace(0.82, 0.98, 12)
table = ((np.arange(2**12)[:, None] >> np.arange(12)) & 1).astype(float)
weight = np.where(table == 1, mixed, 1 - mixed).prod(1)
right = table.sum(1)
mean, centre = weight @ right, mixed.mean()
variance = weight @ (right - mean) ** 2
claim = 12 * centre * (1 - centre) - ((mixed - centre) ** 2).sum()
print("variance as in part 4:", abs(variance - claim) < 1e-12)
k_12 = alarm(12, centre)
false_mixed = weight @ (right <= k_12)
false_equal = power(12, centre, centre)
print(f"false alarm, mixed {false_mixed:.4f}, equal {false_equal:.4f}")

exact = power(300, 0.9, 0.85)
sampled = rng.binomial(300, 0.85, 100_000) <= alarm(300, 0.9)
error = sampled.std() / np.sqrt(sampled.size)
found = sampled.mean()
print(f"power at 300: {exact:.4f}, sampled {found:.4f} ± {error:.4f}")
save_numbers("10_how_many_outcomes", {"z": (found - exact) / error})

# %% [markdown]
# (The sampled power lies {res}`10_how_many_outcomes:z:.1f` standard errors from the exact one.)
#
# ## A table to use
#
# How many outcomes *in the bin* to notice, with power .8 at the 5 % level, that the truth lies this far below
# the statement? Because of the teeth, the table gives the number from which on the power
# *stays* above .8.

# %%
stated_values = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
drops = (0.02, 0.05, 0.1, 0.2)


def needed(stated, true, target=0.8):
    """Outcomes from which on the exact power stays at the target."""
    spread = np.sqrt(stated * (1 - stated)) + np.sqrt(true * (1 - true))
    top = int(4 * (spread / (stated - true)) ** 2) + 200
    return lasting(power(np.arange(1, top), stated, true) >= target)


sizes = {
    f"stated {v:g}": {f"{d:g} lower": needed(v, v - d) for d in drops}
    for v in stated_values
}
pd.DataFrame(sizes).T

# %% tags=["remove-cell"]
z_alpha, z_beta = norm.ppf(0.95), norm.ppf(0.8)


def approximate(v, s):
    """The sample size of eq-sample-size."""
    top = z_alpha * np.sqrt(v * (1 - v)) + z_beta * np.sqrt(s * (1 - s))
    return float((top / (v - s)) ** 2)


save_numbers(
    "10_how_many_outcomes",
    {
        "approx": approximate(0.9, 0.85),
        "approx99": approximate(0.99, 0.98),
        "exact99": needed(0.99, 0.98),
        "small": sizes["stated 0.9"]["0.2 lower"],
        "fine": sizes["stated 0.9"]["0.02 lower"],
    },
)

# %% [markdown]
# The formula {eq}`eq-sample-size` gives {res}`10_how_many_outcomes:approx:.0f` where the exact answer is
# {res}`10_how_many_outcomes:detect` (power .8 is touched first at
# {res}`10_how_many_outcomes:first` and lost again). It is too kind near 1: for .99 against .98 it says
# {res}`10_how_many_outcomes:approx99:.0f`, the truth is {res}`10_how_many_outcomes:exact99`. Use it to plan, the table to promise.
#
# **By confidence.** Which statements are cheap to check? It depends on what counts as equally bad. A drop of
# .05 is noticed soonest near 1, where outcomes vary least. But a user who escalates errors counts *errors*, and to notice
# that they are twice as frequent as stated is cheapest in the middle:

# %% mystnb={"figure": {"caption": "Outcomes needed to notice (power .8, 5 % level), by the stated confidence: a true chance .05 lower, and an error rate twice as high as stated. They cross at .95, where the two are the same thing.", "name": "fig-outcomes-confidence"}, "image": {"alt": "Outcomes needed on a logarithmic axis against stated confidence from .6 to .995. The ochre curve, a drop of .05, falls from about 630 to below 100 near 1; the blue curve, doubled errors, rises from about 10 to 2,000. They cross at .95 at about 180."}} tags=["hide-input"]
levels = np.array([0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995])
fixed = [needed(v, v - 0.05) for v in levels]
double = [needed(v, 1 - 2 * (1 - v)) for v in levels]
fig, ax = plots.figure(height=3.4)
ax.plot(levels, fixed, color=OCHRE, marker="s")
ax.plot(levels, double, color=BLUE, marker="o")
ax.set(yscale="log", xlim=(0.59, 1), ylim=(4, 4000))
ax.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
ax.minorticks_off()
plots.note(ax, "true chance .05 lower", 0.62, 800, xytext=(0, 12), color=OCHRE)
plots.note(ax, "errors twice as frequent", 0.7, 20, xytext=(10, -14), color=BLUE)
_ = ax.set(xlabel="stated confidence", ylabel="outcomes needed")

# %% [markdown]
# ## By bin: what a real diagram can notice
#
# A diagram divides its rows among bins. RLCD's test part on the film reviews has
# {res}`10_how_many_outcomes:texts:,` texts; if each came with *one* rater's verdict, with which power would each
# bin notice that its texts are right .05 less often than stated?

# %% mystnb={"figure": {"caption": "Power of each of the 15 bins that hold at least 20 texts to notice a drop of .05 below what RLCD (seed 0) states, one verdict a text, 5 % level. Numbers: texts in the bin. Square: all texts stated at .8 or more, taken together. Of single bins only those near .9 reach four in five; pooling the high ones nearly always notices.", "name": "fig-outcomes-bins"}, "image": {"alt": "Power against stated confidence. The blue dots of single bins lie between about 0.4 and 0.9, highest near .9; the grey square for all texts above .8 lies close to 1."}} tags=["hide-input"]
movie, task = load_rater("movie", reading=3), rater_task("movie")
counts = movie.counts[task.splits["test"]]
share = counts / counts.sum(1, keepdims=True)
by_run = {(row.arm, row.seed): row for row in family_records("rater_bandit")}
store = Store("rater_bandit")
film = {
    name: store.predictions(by_run[name, 0]) for name in ("rlcd", "verdict_nll")
}
confidence, agree = top_option(film["rlcd"], share)
bins = reliability(confidence, agree)
full = bins.count >= 20
size, centre = bins.count[full], bins.confidence[full]
by_bin = power(size, centre, centre - 0.05)
high = confidence >= 0.8
pooled = float(power(high.sum(), confidence[high].mean(), confidence[high].mean() - 0.05))
fig, ax = plots.figure(height=3.4)
ax.axhline(0.8, color=INK, lw=1, ls=":")
ax.plot(centre, by_bin, **plots.ARM_STYLE["rlcd"].drawn)
for x, y, k in zip(centre, by_bin, size, strict=True):
    plots.note(ax, str(k), x, y, xytext=(5, -13), ha="center")
ax.plot(confidence[high].mean(), pooled, "s", color=INK, ms=9)
plots.note(ax, f"all {high.sum()} above .8", confidence[high].mean(), pooled, xytext=(-12, 0), ha="right")
_ = ax.set(ylim=(0, 1.05), xlabel="stated confidence", ylabel="chance of an alarm")

# %% tags=["remove-cell"]
nine = int(0.9 * 15)
save_numbers(
    "10_how_many_outcomes",
    {
        "texts": len(confidence),
        "best_bin": float(by_bin.max()),
        "worst_bin": float(by_bin.min()),
        "pooled": pooled,
        "nine_count": int(bins.count[nine]),
        "nine_share": float(bins.count[nine] / len(confidence)),
        "nine_total": int(np.ceil(numbers["detect"] * len(confidence) / bins.count[nine])),
    },
)

# %% [markdown]
# The bin that holds .9 has {res}`10_how_many_outcomes:nine_share:.0%` of the texts. So the
# {res}`10_how_many_outcomes:detect` outcomes at .9 cost {res}`10_how_many_outcomes:nine_total:,` texts in
# all, and a diagram on which every point lies inside its band has powers between
# {res}`10_how_many_outcomes:worst_bin:.2f` and {res}`10_how_many_outcomes:best_bin:.2f` behind it. Fewer
# questions buy more: all texts above .8 as one bin have {res}`10_how_many_outcomes:pooled:.2f`. If
# you will use one threshold, test that one.
#
# **And one number for all bins?** The ECE with its noise floor ({prf:ref}`thm-ece-bias`) is a test against every kind of
# miscalibration, and pays for it. Compare it with the plainest test, stated minus observed over all rows,
# on two lies: everything is stated .04 too high; or high statements are too high and low ones too low.

# %% mystnb={"figure": {"caption": "Power by number of rows, 5 % level; each point from {res}`10_how_many_outcomes:repeats` samples, so that it is known to about .04. Solid: ECE-15 above the .95 quantile of its noise floor; dashed: the one-sided test of mean stated against mean observed. Blue: everything stated .04 too high; ochre: too high above .75 and as much too low below.", "name": "fig-outcomes-ece"}, "image": {"alt": "Power against rows from 100 to 3,200. For the uniform lie the dashed mean test rises well ahead of the solid ECE test. For the two-sided lie the ECE test rises to about 1 while the mean test stays near .05."}} tags=["hide-input"]
rows_grid, repeats = (100, 200, 400, 800, 1600, 3200), 150
LIES = {
    "uniform": lambda v: np.clip(v - 0.04, 0, 1),
    "two-sided": lambda v: v - 0.06 * np.sign(v - 0.75),
}
tests = {name: {"ece": [], "mean": []} for name in LIES}
for rows in rows_grid:
    v = 0.5 + 0.5 * rng.beta(2, 2, (repeats, rows))
    # The floor of one sample stands for all samples of that size.
    limit = ece_noise_floor(v[0], rng=rng, n_draws=400, quantile=0.95)
    scale = np.sqrt((v * (1 - v)).sum(1))
    for name, lie in LIES.items():
        c = (rng.random((repeats, rows)) < lie(v)).astype(float)
        z = (v - c).sum(1) / scale
        tests[name]["mean"].append((z > z_alpha).mean())
        found = [ece(*pair) > limit for pair in zip(v, c, strict=True)]
        tests[name]["ece"].append(np.mean(found))
fig, ax = plots.figure(height=3.4)
ax.axhline(0.8, color=INK, lw=1, ls=":")
for name, color in (("uniform", BLUE), ("two-sided", OCHRE)):
    for kind, line in (("ece", "-"), ("mean", "--")):
        ax.plot(rows_grid, tests[name][kind], line, color=color, marker="o", ms=4)
ax.set(xscale="log", xlim=(95, 3400), ylim=(0, 1.03))
ax.set_xticks(rows_grid, [f"{r:,}" for r in rows_grid])
ax.minorticks_off()
plots.note(ax, "mean, two-sided lie", 420, 0.13, color=OCHRE)
plots.note(ax, "mean, uniform lie", 390, 0.74, xytext=(0, 0), ha="right", color=BLUE)
plots.note(ax, "ECE, uniform lie", 850, 0.5, color=BLUE)
plots.note(ax, "ECE, two-sided lie", 950, 0.93, xytext=(0, 0), ha="right", color=OCHRE)
_ = ax.set(xlabel="rows in all", ylabel="chance of an alarm")

# %% tags=["remove-cell"]
at = rows_grid.index(800)
save_numbers(
    "10_how_many_outcomes",
    {f"{k}_{t}".replace("-", "_"): float(tests[k][t][at]) for k in tests for t in tests[k]}
    | {"repeats": repeats},
)

# %% [markdown]
# At 800 rows the uniform lie is found by the mean with chance {res}`10_how_many_outcomes:uniform_mean:.2f` and by
# ECE with {res}`10_how_many_outcomes:uniform_ece:.2f`; the two-sided one with
# {res}`10_how_many_outcomes:two_sided_mean:.2f` and {res}`10_how_many_outcomes:two_sided_ece:.2f`. Neither
# wins; a test finds what it looks for. State what you fear, then test that.
#
# ## Which interval
#
# For a share of $n$ outcomes the textbook offers several intervals. Their coverage needs no simulation: go
# through all $k$, weight by the binomial. A percentile bootstrap of $k$ successes draws from a binomial with
# chance $k/n$, so that its ends are known exactly too.

# %% mystnb={"figure": {"caption": "Exact coverage of nominal 95 % intervals for a true .9, by number of outcomes. Wilson (blue) stays near the nominal level; the percentile bootstrap (ochre) is below it at most $n$, and far below in small bins.", "name": "fig-outcomes-coverage"}, "image": {"alt": "Coverage against number of outcomes from 8 to 200. The blue Wilson line oscillates about .95. The ochre bootstrap line starts near .57 at 8 outcomes and oscillates between .87 and .95 later."}} tags=["hide-input"]
def covers(n, true):
    """Exact coverage of the Wilson and the percentile bootstrap interval."""
    k = np.arange(n + 1)
    weight = binom.pmf(k, n, true)
    wilson = wilson_interval(k, np.full(n + 1, n))
    boot = [binom.ppf(tail, n, k / n) / n for tail in (0.025, 0.975)]
    inside = [(lo <= true + 1e-12) & (true - 1e-12 <= hi) for lo, hi in (wilson, boot)]
    return [float(weight @ one) for one in inside]


trials = np.arange(8, 201)
coverage = np.array([covers(int(m), 0.9) for m in trials])
fig, ax = plots.figure(height=3.3)
ax.axhline(0.95, color=INK, lw=1, ls=":")
for column, color in enumerate((BLUE, OCHRE)):
    ax.plot(trials, coverage[:, column], color=color, lw=1.3)
plots.note(ax, "Wilson", 30, 0.985, xytext=(0, 6), color=BLUE)
plots.note(ax, "percentile bootstrap", 24, 0.8, color=OCHRE)
_ = ax.set(xlim=(8, 200), ylim=(0.5, 1.01), xlabel="outcomes", ylabel="coverage")

# %% [markdown]
# Single $n$ flatter: at 30 the bootstrap covers {res}`10_how_many_outcomes:boot30:.3f`, at 20 only
# {res}`10_how_many_outcomes:boot20:.3f`, averaged over 8 to 50 it covers {res}`10_how_many_outcomes:boot_mean:.3f` against Wilson's
# {res}`10_how_many_outcomes:wilson_mean:.3f`. And it has no answer where it matters most: 20 right of 20 gives it the interval
# [1, 1]. For the ECE there is no formula. Its intervals are tried out through the code that
# the book uses, on policies that state everything too high by 0, .03 or .08:

# %%
def simulate(method, drop, n=400, repeats=120):
    """Share of 95 % intervals for ECE-15 that hold the true error."""
    held = 0
    for _ in range(repeats):
        v = 0.5 + 0.5 * rng.beta(2, 2, n)
        c = (rng.random(n) < v - drop).astype(float)
        found = bootstrap_interval(
            ece_statistic(v, c), rng=rng, n_resamples=200, method=method
        )
        held += found.low <= drop <= found.high
    return held / repeats


lies = (0.0, 0.03, 0.08)
held = {
    method: {f"true ECE {d:g}": simulate(method, d) for d in lies}
    for method in ("percentile", "basic")
}
twenty, thirty = covers(20, 0.9), covers(30, 0.9)
small = coverage[trials <= 50].mean(0)
save_numbers(
    "10_how_many_outcomes",
    {
        "held": {k: list(row.values()) for k, row in held.items()},
        "boot20": twenty[1],
        "boot30": thirty[1],
        "wilson_mean": small[0],
        "boot_mean": small[1],
    },
)
pd.DataFrame(held).T.round(2)

# %% [markdown]
# (400 rows; the standard error of an entry is at most .05.) The plain result: **neither interval keeps its promise for
# an ECE.** Resampling adds the plug-in bias a second time. So the percentile interval of a well calibrated policy lies wholly
# above the truth (it covers {res}`10_how_many_outcomes:held.percentile.0:.2f` at a true error of 0), while the basic one, which reflects it, is better for
# small errors and no better for large ones ({res}`10_how_many_outcomes:held.basic.2:.2f` against
# {res}`10_how_many_outcomes:held.percentile.2:.2f` at .08).
#
# **So:** Wilson {cite:p}`wilson1927` for shares of outcomes, one of the two that {cite:t}`brown2001` advise for small $n$; the
# bootstrap, by whole groups, for means and differences of many cases; for one ECE report the noise floor, and give an interval for the gap of a bin that was
# named beforehand instead.
#
# ## Two policies on the same cases
#
# To compare two policies, give both the same cases and look at differences case by case.
#
# :::{prf:proposition} Pairing
# :label: prp-pairing
#
# Let the losses of policies $A$ and $B$ on a random case have variances $\sigma_A^2, \sigma_B^2$ and correlation
# $\rho$. The mean difference over $n$ shared cases has variance
# $(\sigma_A^2 + \sigma_B^2 - 2 \rho \sigma_A \sigma_B)/n$; over separate cases it has
# $(\sigma_A^2 + \sigma_B^2)/n$. With equal variances pairing saves the factor $1/(1 - \rho)$ in cases.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# $\operatorname{Var}(A - B) = \sigma_A^2 + \sigma_B^2 - 2\operatorname{Cov}(A, B)$, and the covariance is 0 for separate
# cases. With $\sigma_A = \sigma_B$ the ratio is $2 / (2 - 2\rho)$. $\square$
# :::

# %%
loss = {name: expected_brier(p, counts) for name, p in film.items()}
first, second = loss["rlcd"], loss["verdict_nll"]
root = np.sqrt(len(first))
apart = np.hypot(first.std(ddof=1), second.std(ddof=1)) / root
paired_se = (first - second).std(ddof=1) / root
found = paired_bootstrap(first, second, rng=rng, n_resamples=4000)
saved = (apart / paired_se) ** 2
cases = ((z_alpha + z_beta) * paired_se * root / 0.002) ** 2
pairing = {
    "rho": np.corrcoef(first, second)[0, 1],
    "saved": saved,
    "cases": cases,
    "cases_apart": cases * saved,
}
save_numbers("10_how_many_outcomes", pairing)
print(f"RLCD − verdict NLL, Brier, seed 0: {found:.4f}")
print(f"standard error: paired {paired_se:.4f}, separate cases {apart:.4f}")

# %% [markdown]
# The losses correlate at {res}`10_how_many_outcomes:rho:.3f`, so pairing is worth
# {res}`10_how_many_outcomes:saved:.0f` times as many texts. To notice a difference of .002 in Brier score
# takes {res}`10_how_many_outcomes:cases:,.0f` shared texts, or {res}`10_how_many_outcomes:cases_apart:,.0f`
# for each policy if they see different ones. Mind what the interval is about: *these two trained policies* on new texts. Whether one
# *method* beats the other also varies with the seed, which only more runs can show
# ({doc}`20_rater_bandit` uses ten).
#
# ## Watching a live system
#
# Outcomes arrive one by one. To test after each and stop at the first alarm is not a 5 % test: every look is a new chance of a false alarm.
#
# :::{prf:theorem} An alarm for every look
# :label: thm-anytime
#
# Of the first $n$ decisions stated at $v$, $k_n$ were right. Let
#
# $$ M_n = \frac1v \int_0^v \Bigl(\frac{s}{v}\Bigr)^{k_n} \Bigl(\frac{1 - s}{1 - v}\Bigr)^{n - k_n} ds . $$ (eq-anytime)
#
# If every decision is right with chance at least $v$, given the past, then
# $\Pr(M_n \ge 1/\alpha \text{ for some } n) \le \alpha$. If all are right with one chance $s' < v$, independently, $M_n \to \infty$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# One decision multiplies the integrand at $s$ by $s/v$ (right) or $(1-s)/(1-v)$ (wrong). If it is right with chance
# $u \ge v$, the expected factor is $g(u) = u \frac{s}{v} + (1 - u)\frac{1-s}{1-v}$. $g(v) = s + 1 - s = 1$, and $g$ falls in $u$
# because $s \le v$. So the integrand, and its mean over $s$, is a non-negative supermartingale with $M_0 = 1$. Let $T$ be the first $n \le N$ with
# $M_n \ge 1/\alpha$, else $N$. Then $1 \ge \mathbb{E} M_T \ge \frac1\alpha \Pr(\text{crossed by } N)$; let $N \to \infty$ (Ville's
# inequality). For the last claim, near $s'$ the logarithm of the integrand grows as $n$ times the relative entropy
# of $s'$ from $v$, which is positive. $\square$
# :::
#
# The integral is an incomplete beta function. How often each alarm has sounded *by* outcome $n$ is computed exactly, by carrying the
# distribution of $k$ forward and removing what has crossed:

# %%
def limits(horizon, stated, level=0.05):
    """Largest k that sounds the any-time alarm at each n; -1 if none."""
    m = np.arange(1, horizon + 1)[:, None]
    k = np.minimum(np.arange(horizon + 1), m)
    log_m = betaln(k + 1, m - k + 1) - np.log(stated) - k * np.log(stated)
    with np.errstate(divide="ignore"):
        log_m += np.log(betainc(k + 1, m - k + 1, stated))
    log_m -= (m - k) * np.log(1 - stated)
    # M falls in k, so the number of k that cross gives the largest of them.
    crosses = (log_m >= -np.log(level)) & (k == np.arange(horizon + 1))
    return crosses.sum(1) - 1


def sounded(limit, true):
    """Chance that the alarm has sounded by n = 1..N, for limits (N,)."""
    mass, gone, out = np.array([1.0]), 0.0, []
    for k_max in limit.astype(int):
        mass = np.append(mass * (1 - true), 0) + np.append(0, mass * true)
        gone += mass[: k_max + 1].sum()
        mass[: k_max + 1] = 0
        out.append(gone)
    return np.array(out)


horizon = 1000
looks = np.arange(1, horizon + 1)
every = alarm(looks, 0.9)
fifty = np.where(looks % 50 == 0, every, -1)
anytime = limits(horizon, 0.9)
rules = {"look each time": every, "every 50": fifty}
rules["any-time alarm"] = anytime
watch = {
    name: {s: sounded(limit, s) for s in (0.9, 0.85, 0.8)}
    for name, limit in rules.items()
}
pd.DataFrame(
    {
        "true .9, by 1,000": {r: w[0.9][-1] for r, w in watch.items()},
        ".85, by 300": {r: w[0.85][299] for r, w in watch.items()},
        ".85, by 1,000": {r: w[0.85][-1] for r, w in watch.items()},
        ".8, by 300": {r: w[0.8][299] for r, w in watch.items()},
    }
).round(3)

# %% mystnb={"figure": {"caption": "Chance that an alarm at the 5 % level has sounded although .9 is honest, by the number of outcomes seen. Looking after each outcome or every 50; the any-time alarm stays below 5 % for ever.", "name": "fig-outcomes-peeking"}, "image": {"alt": "False alarm probability against outcomes up to 1,000. Looking each time climbs to about 0.3, every 50 to about 0.18, the any-time alarm stays flat near 0.03, below the dotted line at 0.05."}} tags=["hide-input"]
fig, ax = plots.figure(height=3.3)
ax.axhline(0.05, color=INK, lw=1, ls=":")
ends = []
for name, color in zip(rules, (OCHRE, INK, BLUE), strict=True):
    ax.plot(looks, watch[name][0.9], color=color)
    ends.append((horizon, watch[name][0.9][-1], name, color))
ax.set(xlim=(0, horizon), ylim=(0, 0.35), xlabel="outcomes seen")
plots.note_ends(ax, ends)
_ = ax.set(ylabel="chance of a false alarm")

# %% tags=["remove-cell"]
paths = (rng.random((2000, horizon)) < 0.9).cumsum(1)
crossed = {name: (paths <= limit).any(1) for name, limit in rules.items()}
worst = max(
    abs(c.mean() - watch[name][0.9][-1]) / (c.std() / np.sqrt(len(c)))
    for name, c in crossed.items()
)
long = sounded(limits(1500, 0.9), 0.85)
save_numbers(
    "10_how_many_outcomes",
    {
        "peek": {r.split()[0]: float(w[0.9][-1]) for r, w in watch.items()},
        "anytime80": int(np.argmax(long >= 0.8)) + 1,
        "watch_z": float(worst),
    },
)

# %% [markdown]
# Looking after each outcome cries wolf with chance {res}`10_how_many_outcomes:peek.look:.2f` within a thousand outcomes, every
# fifty {res}`10_how_many_outcomes:peek.every:.2f`; the any-time alarm {res}`10_how_many_outcomes:peek.any-time:.3f`, whatever the
# schedule. (Two thousand simulated streams agree within {res}`10_how_many_outcomes:watch_z:.1f` standard errors.)
# The price: it needs {res}`10_how_many_outcomes:anytime80` outcomes to notice a true .85 with power .8, where the single test
# planned beforehand needs {res}`10_how_many_outcomes:detect`. The idea goes back to {cite:t}`robbins1970` and his
# co-workers; {cite:t}`howard2021` give the modern theory. If you can fix $n$ beforehand, do; if you must watch, use this.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - **Independence.** Every number here assumes independent outcomes. Ten questions about one ticket, or a week
#   of one incident, are worth far fewer ({ref}`ex-outcomes-2`).
# - **Drift.** A .9 that was honest in spring says nothing about autumn; an interval covers the past's distribution.
#   The any-time alarm accumulates evidence and reacts late to a change that comes late.
# - **Choice of bin.** "The bin that looks worst" is not a bin that was named beforehand; its alarm must be divided among
#   all bins ({ref}`ex-calibration-4`).
# - **Unresolved outcomes.** If wrong decisions come back less often than right ones, no $n$ helps: the share converges, to the wrong
#   number ({prf:ref}`thm-noise`).
# - A prior would change the numbers: whoever has seen forty calibrated versions of a policy needs fewer outcomes for the
#   forty-first. We plan without one, since the first version is where harm is done.
# :::
#
# ## Exercises
#
# :::{exercise} No failure yet
# :label: ex-outcomes-1
#
# Every decision stated at .99 so far was right. After how many may one say, with 95 % confidence, that the true chance
# is at least .99? Compare with the rule of three, $3/n$.
# :::
#
# :::{solution-start} ex-outcomes-1
# :label: sol-outcomes-1
# :class: dropdown
# :::
#
# Exclude $s < .99$: $.99^n \le .05$, so $n \ge \ln .05/\ln .99$. Since $-\ln .05 \approx 3$ and $-\ln(1 - e) \approx e$, the error rate $e$ is
# bounded by about $3/n$. One failure among them and the count starts to grow: with one failure one needs
# $\Pr(\text{at most one}) \le .05$.

# %% tags=["hide-input"]
clean = int(np.ceil(np.log(0.05) / np.log(0.99)))
one_miss = int(np.argmax(binom.cdf(1, many, 0.01) <= 0.05)) + 1
print(f"no failure {clean}, rule of three {3 / 0.01:.0f}, one failure {one_miss}")
assert binom.pmf(0, clean, 0.01) <= 0.05 < binom.pmf(0, clean - 1, 0.01)
assert one_miss > clean

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Ten questions a ticket
# :label: ex-outcomes-2
#
# Each ticket brings $m = 10$ decisions stated at .9 whose outcomes have correlation $\rho = .2$ within the ticket. Show that
# the variance of the share is that of independent outcomes times $1 + (m - 1)\rho$. How many outcomes are
# 300 worth, and how often does a 5 % alarm that ignores this sound falsely?
# :::
#
# :::{solution-start} ex-outcomes-2
# :label: sol-outcomes-2
# :class: dropdown
# :::
#
# A ticket's sum has variance $m \sigma^2 + m(m-1)\rho\sigma^2 = m\sigma^2 (1 + (m-1)\rho)$; tickets are independent. The factor is
# 2.8, so 300 outcomes are worth about 107. For the simulation give each ticket its own chance from a beta
# distribution with mean .9 whose variance is $\rho \cdot .09$: within a ticket the correlation is then $\rho$. Resampling whole tickets (`groups=` in
# `bootstrap_interval`) sees this; resampling rows does not.

# %% tags=["hide-input"]
m, rho_in = 10, 0.2
spread = (1 - rho_in) / rho_in  # a + b of the beta distribution
ticket = rng.beta(0.9 * spread, 0.1 * spread, (20_000, 30))
total = rng.binomial(m, ticket).sum(1)
inflation = total.var() / (300 * 0.09)
false_alarms = (total <= alarm(300, 0.9)).mean()
print(f"variance factor {inflation:.2f}; false alarms {false_alarms:.3f}")
assert abs(inflation - 2.8) < 0.15 and false_alarms > 0.1
sample = rng.binomial(1, np.repeat(ticket[0], m)).astype(float)
by_row = bootstrap_interval(sample, rng=rng, n_resamples=2000)
tickets = np.repeat(np.arange(30), m)
by_ticket = bootstrap_interval(sample, groups=tickets, rng=rng, n_resamples=2000)
print(f"by rows {by_row:.3f}, by tickets {by_ticket:.3f}")
assert by_ticket.high - by_ticket.low > by_row.high - by_row.low

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} A stricter regulator
# :label: ex-outcomes-3
#
# A regulator wants power .9 at level .01 against a true .85, stated .9. How many outcomes? By which factor does the formula say the
# number grows over power .8 at level .05?
# :::
#
# :::{solution-start} ex-outcomes-3
# :label: sol-outcomes-3
# :class: dropdown
# :::
#
# Replace $z_\alpha$ and $z_\beta$ in {eq}`eq-sample-size`; for a test in both directions at 1 % use level .005 for the lower side.

# %% tags=["hide-input"]
strict = lasting(power(many, 0.9, 0.85, level=0.01) >= 0.9)
both = lasting(power(many, 0.9, 0.85, level=0.005) >= 0.9)
roots = np.sqrt([0.9 * 0.1, 0.85 * 0.15])
factor = (norm.ppf([0.99, 0.9]) @ roots / (norm.ppf([0.95, 0.8]) @ roots)) ** 2
print(f"one-sided {strict}, both sides {both}; the formula's factor {factor:.2f}")
assert abs(strict / numbers["detect"] - factor) < 0.25 < both / strict

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Mixed statements, one alarm
# :label: ex-outcomes-4
#
# Statements differ from case to case: decision $i$ states $v_i$. Replace the factors of {eq}`eq-anytime` by
# $1 + \lambda (v_i - c_i)$ with one $\lambda \in [0, 1]$. Show that the product is a supermartingale if no statement is too
# high, and check by simulation that it rarely exceeds 20.
# :::
#
# :::{solution-start} ex-outcomes-4
# :label: sol-outcomes-4
# :class: dropdown
# :::
#
# Given the past, $\mathbb{E}[1 + \lambda(v_i - c_i)] = 1 + \lambda (v_i - u_i) \le 1$ when the true chance $u_i \ge v_i$, and the
# factor is at least $1 - \lambda(1 - v_i) \ge 0$. Ville's inequality does the rest. Each factor is a fair bet of the share $\lambda$
# of one's capital that the statement is too high.

# %% tags=["hide-input"]
v_mixed = 0.5 + 0.5 * rng.beta(2, 2, (2000, 1000))
# 0.065 is the bound of .05 and three standard errors of 2,000 streams.
for shift, low_share, high_share in ((0.0, 0, 0.065), (0.08, 0.8, 1)):
    c = rng.random(v_mixed.shape) < v_mixed - shift
    capital = np.log1p(0.4 * (v_mixed - c)).cumsum(1)
    ever = (capital >= np.log(20)).any(1).mean()
    print(f"stated {shift:g} too high: capital above 20 in {ever:.1%} of streams")
    assert low_share <= ever <= high_share

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# {cite:t}`wilson1927` takes four pages; {cite:t}`brown2001` compare the intervals and say why the simplest fails.
# {cite:t}`robbins1970` and {cite:t}`howard2021` on looking at any time. {cite:t}`kumar2019` ask how many
# samples an estimate of the calibration error needs, and {cite:t}`dimitriadis2021` give bands for whole diagrams.
# What to do with a number once it can be trusted is the subject of {doc}`41_gates`.
