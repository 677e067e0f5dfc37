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
# # Calibration, and the traps of ECE
#
# **Question.** A policy states .9. How does one see whether it keeps its word, and what does
# the usual summary, the expected calibration error (ECE), fail to see?
#
# **Answer.** Compare what was stated with how often it came true, in groups of like
# statements. But ECE is zero for a forecaster who knows nothing, positive for one who is
# perfect, and depends on where the bins are cut: read it with a noise floor, and beside a
# proper score that is split into miscalibration and discrimination.
#
# **After this page you can** name three meanings of "calibrated", compute ECE without the
# six usual mistakes, say how large it would be by chance, and choose between two policies
# by numbers that cannot be gamed.
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

# %% mystnb={"figure": {"caption": "Four forecasters of the same {res}`02_calibration:n_tickets:,` decisions. Above: their ECE; the dotted line is what the informed and honest one would get by luck alone. Below: the same four by miscalibration (lower is better) and discrimination (higher is better), the two parts of the Brier score; along a dotted diagonal the score is the same. ECE ranks last the forecaster that a user should prefer to two of the others.", "name": "fig-calibration-plane"}, "image": {"alt": "Upper panel: ECE of four forecasters as dots. The base rate, the one blind to the team and the honest one lie near or below the noise floor of about 0.02, the overconfident one near 0.08. Lower panel, a plane of miscalibration and discrimination: base rate at the origin, blind to the team at low miscalibration and discrimination near 0.015, honest at low miscalibration and 0.043, overconfident at the same 0.043 and miscalibration near 0.009, on a better diagonal than the blind one."}} tags=["hide-input"]
import itertools
from math import comb

import numpy as np
import pandas as pd
import sympy
from scipy.special import expit, logit

from rlcd_core import plots
from rlcd_core.data.rater import load_rater
from rlcd_core.extra.grid import family_records
from rlcd_core.metrics import (
    bootstrap_interval,
    classwise_reliability,
    ece,
    ece_debiased,
    ece_noise_floor,
    reliability,
    top_option,
)
from rlcd_core.records import Store, save_numbers
from rlcd_core.scoring import corp, murphy
from rlcd_core.tasks import rater_task

plots.use_style()
rng = np.random.default_rng(seed)
BLUE, OCHRE, INK = plots.COLORS["rlcd"], plots.COLORS["broken"], plots.INK

# A ticket's text gives its chance t; the team it goes to moves that up or down.
n = 4000
text_chance = 0.5 + 0.5 * rng.beta(2, 2, n)
team = rng.integers(0, 2, n)
chance = text_chance + 0.6 * (2 * team - 1) * (1 - text_chance)
came_true = (rng.random(n) < chance).astype(float)
FORECASTS = {
    "base rate": np.full(n, 0.75),
    "blind to the team": text_chance,
    "honest": chance,
    "overconfident": expit(1.8 * logit(chance)),
}
four = {}
for name, stated in FORECASTS.items():
    parts = corp(stated, came_true)
    four[name] = {
        "ECE-15": ece(stated, came_true),
        "Brier": parts.loss,
        "miscalibration": parts.miscalibration,
        "discrimination": parts.discrimination,
        "uncertainty": parts.uncertainty,
    }
four = pd.DataFrame(four).T
floor = ece_noise_floor(chance, rng=rng)

fig, axes = plots.figure(2, height=3.1, height_ratios=[0.7, 1.5])
look = dict(zip(FORECASTS, "svoD", strict=True))
paint = {name: BLUE for name in FORECASTS} | {"overconfident": OCHRE}
for row, (name, value) in enumerate(four["ECE-15"].items()):
    axes[0].plot(value, row, look[name], color=paint[name], ms=9)
    # Past the dotted line, so that it crosses no number.
    plots.note(axes[0], f"{value:.3f}", max(value, floor), row, xytext=(9, 0))
axes[0].axvline(floor, color=INK, lw=1, ls=":")
axes[0].set_yticks(range(4), list(FORECASTS))
axes[0].set(ylim=(3.5, -0.5), xlim=(0, 0.1), xlabel="ECE, 15 equal-width bins")
ax, flat = axes[1], np.array([0, 0.02])
for level in np.arange(-0.01, 0.07, 0.01):
    ax.plot(flat, flat + level, color=INK, lw=0.8, ls=":", alpha=0.6)
for name, row in four.iterrows():
    at = row["miscalibration"], row["discrimination"]
    ax.plot(*at, look[name], color=paint[name], ms=9, clip_on=False)
    text, shift = f"{name}\nBrier {row['Brier']:.3f}", (9, 18)
    plots.note(ax, text, *at, xytext=shift, color=paint[name])
ax.set(xlim=(-0.0004, 0.014), ylim=(-0.001, 0.056))
ax.set_xticks([0, 0.004, 0.008, 0.012])
ax.set(xlabel="miscalibration (CORP)")
_ = ax.set(ylabel="discrimination (CORP)")

# %% tags=["remove-cell"]
save_numbers(
    "02_calibration",
    {
        "n_tickets": n,
        "floor": round(floor, 5),
        "four": {k.replace(" ", "_"): r.to_dict() for k, r in four.iterrows()},
    },
)

# %% [markdown]
# ## A ticket
#
# Ten support tickets were routed, each with a stated chance of .9 of being right. Seven were.
# Has the policy lied? If it was honest, seven or fewer of ten happen with this chance:

# %%
honest = sum(comb(10, k) * 0.9**k * 0.1 ** (10 - k) for k in range(8))
print(f"{honest:.4f}")

# %% [markdown]
# So one cannot tell. Calibration is not a property of a decision, nor of ten; it is one of the
# long run of decisions *about which the same thing was said*. Everything difficult on this
# page comes from that clause: which decisions belong together, and how many of them there are.
#
# ## Three definitions
#
# :::{prf:definition} Calibrated
# :label: def-calibration
#
# Let $p$ be the stated distribution over the $K$ options of a random question, and $y$ its
# right option. The policy is
#
# - **fully calibrated** if $\Pr(y = k \mid p) = p_k$ for every $k$, given the *whole* vector;
# - **classwise calibrated** if $\Pr(y = k \mid p_k = v) = v$ for every $k$ and $v$;
# - **top-label calibrated** if $\Pr(y = \hat k \mid p_{\hat k} = v) = v$ for every $v$, where
#   $\hat k$ is the most probable option and $p_{\hat k}$ the confidence.
# :::
#
# The last is what a threshold on confidence needs, and what this book means by "calibrated" unless
# it says otherwise. {cite:t}`guo2017` study it as confidence calibration; {cite:t}`gupta2022` keep the name
# top-label for a stricter form that also conditions on *which* option it was.
# {cite:t}`kull2019` measure the classwise form. Where a page follows one question with a known truth $q$, as
# {doc}`01_identity` does, calibrated means $p = q$. If that holds for every question, so do all three;
# the converse is false, as trap 5 below shows.
#
# :::{prf:proposition} Which implies which
# :label: prp-calibration-order
#
# Full calibration implies the other two. Neither of these implies full calibration. Classwise
# calibration implies top-label calibration at every confidence above one half, but not below.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *Full implies the rest.* Averaging $\Pr(y = k \mid p) = p_k$ over all $p$ with $p_k = v$
# gives $v$; averaging $\Pr(y = \hat k \mid p) = p_{\hat k}$ over all $p$ with
# $p_{\hat k} = v$ gives $v$.
#
# *Above one half.* If $v > \tfrac12$, an option with $p_k = v$ is the only most probable one, so the event
# $\{p_{\hat k} = v\}$ is the disjoint union over $k$ of $\{p_k = v\}$, and
# $\Pr(y = \hat k, p_{\hat k} = v) = \sum_k \Pr(y = k, p_k = v) = v \sum_k \Pr(p_k = v) =
# v \Pr(p_{\hat k} = v)$.
#
# *Counter-examples.* The next cell gives three finite policies with their truths, and computes
# all three errors exactly. In the third, A is stated at .4 in two questions that balance each
# other, but is the top option in only one of them. $\square$
# :::

# %%
rings = list(itertools.permutations([0.6, 0.3, 0.1]))
turn = {0.6: 0.1, 0.3: -0.1, 0.1: 0.0}
sign = [1, -1, -1, 1, 1, -1]  # even and odd permutations
signed = zip(rings, sign, strict=True)
shifted = [[v + s * turn[v] for v in ring] for ring, s in signed]
d = 0.05
examples = {
    "B and C swapped": ([[0.6, 0.3, 0.1]], [[0.6, 0.1, 0.3]]),
    "six permutations": (rings, shifted),
    "four questions below .5": (
        [
            [0.4, 0.35, 0.25],
            [0.4, 0.5, 0.1],
            [0.1, 0.35, 0.55],
            [0.1, 0.5, 0.4],
        ],
        [
            [0.4 + d, 0.35 - d, 0.25],
            [0.4 - d, 0.5 + d, 0.1],
            [0.1 - d, 0.35 + d, 0.55],
            [0.1 + d, 0.5 - d, 0.4],
        ],
    ),
}
errors = {}
for name, (p, q) in examples.items():
    p, q = np.array(p), np.array(q)
    # 1,000 bins: each holds one stated value. Soft labels q: exact.
    by_class = [part.ece for part in classwise_reliability(p, q, 1000)]
    errors[name] = {
        "full": np.abs(p - q).sum(1).mean() / 2,
        "classwise": np.mean(by_class),
        "top-label": ece(*top_option(p, q), n_bins=1000),
    }
pd.DataFrame(errors).T.round(4) + 0.0

# %% [markdown]
# (The "full" error is the mean total variation distance; a zero in a column means calibrated
# in that sense.) The second example passes both usual tests and is wrong about every single question.
#
# ## The reliability diagram
#
# Sort decisions by confidence into bins; in each, plot how often they were right against what
# was stated. Here is a trained policy, RLCD on the film reviews of {doc}`20_rater_bandit`, where
# "right" for a text is the share of its raters who agree with the chosen option.

# %% mystnb={"figure": {"caption": "Reliability of RLCD (seed 0) on the movie test texts. Line: share of raters who agree; band: 95 % Wilson; grey bars: how many texts are in each bin; dotted: honest. The line keeps to the diagonal except in one bin near .46 that holds few texts.", "name": "fig-calibration-diagram"}, "image": {"alt": "Reliability diagram with fifteen bins. The line of observed agreement follows the diagonal from 0.5 to 0.97 with small departures; one bin at 0.46, which holds very few texts, lies below with a wide band. Bars show texts spread over all confidences above 0.47."}} tags=["hide-input"]
movie, task = load_rater("movie", reading=3), rater_task("movie")
counts = movie.counts[task.splits["test"]]
share = counts / counts.sum(1, keepdims=True)
by_run = {(row.arm, row.seed): row for row in family_records("rater_bandit")}
p_film = Store("rater_bandit").predictions(by_run["rlcd", 0])
film, agree = top_option(p_film, share)
fig, ax = plots.figure(height=4.2)
plots.plot_reliability(ax, plots.prepare_reliability(film, agree), "rlcd")
_ = ax.set(title="RLCD on film reviews")

# %% [markdown]
# A diagram without counts and a band is not evidence: the eye follows the line into bins
# that hold three cases. {cite:t}`broecker2007` make the point for weather forecasts. To get one
# number, average the vertical distances:
#
# :::{prf:definition} Expected calibration error
# :label: def-ece
#
# Let $v_i$ be the confidence of row $i$, $c_i$ its outcome, and let bins $b = 1..B$ hold
# $n_b$ of the $n$ rows. The plug-in ECE {cite:p}`naeini2015` is
#
# $$
# \begin{aligned}
# \widehat{\mathrm{ECE}} &= \sum_b \frac{n_b}{n} \,\bigl| \bar c_b - \bar v_b \bigr| \\
#   &= \frac1n \sum_b \Bigl| \sum_{i \in b} r_i \Bigr|, \\
#   r_i &= c_i - v_i .
# \end{aligned}
# $$ (eq-ece)
#
# For rows drawn independently from one population, its target with these bins is
# $\mathrm{ECE}_B = \sum_b \bigl|\mathbb{E}[r\,1_b]\bigr|$, where $1_b$ says that the row falls in
# bin $b$; without bins the target is
# $\mathrm{ECE} = \mathbb{E}\,\bigl|\mathbb{E}[c \mid v] - v\bigr|$.
# :::
#
# :::{prf:theorem} Bins hide, samples add
# :label: thm-ece-bias
#
# With independent, identically distributed rows and fixed bins:
#
# 1. $\mathrm{ECE}_B \le \mathrm{ECE}$, and splitting a bin never lowers $\mathrm{ECE}_B$.
# 2. $\mathbb{E}\,\widehat{\mathrm{ECE}} \ge \mathrm{ECE}_B$.
# 3. Given the confidences, a calibrated forecaster has
#    $\mathbb{E}\,\widehat{\mathrm{ECE}} \le \frac1n \sum_b \bigl( \sum_{i \in b} v_i (1 - v_i)
#    \bigr)^{1/2} \le \tfrac12 \sqrt{B / n}$. If the $m$ rows of a bin all state $v$, the bin's
#    part is, with $j = \lfloor m v \rfloor + 1$,
#
#    $$ \tfrac1n\, \mathbb{E}\Bigl|\sum_{i \in b} r_i\Bigr| = \tfrac{2 j}{n} \tbinom{m}{j}\, v^j (1 - v)^{m - j + 1} . $$ (eq-ece-floor)
#
# 4. Let $S_{-i}$ be the sum of the other residuals in the bin of row $i$. The debiased value
#    $\frac1n \sum_i \operatorname{sign}(S_{-i})\, r_i$ has expectation 0 for a calibrated
#    forecaster, and at most $\mathrm{ECE}_B$ for any.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1.* $\mathbb{E}[r\,1_b] = \mathbb{E}\bigl[(\mathbb{E}[c \mid v] - v) 1_b\bigr]$, because $v$ decides the bin. The
# absolute value of a mean is at most the mean of absolute values; sum over $b$. For two parts
# $b = b' \cup b''$, $|\mathbb{E}[r 1_b]| \le |\mathbb{E}[r 1_{b'}]| + |\mathbb{E}[r 1_{b''}]|$.
#
# *2.* $\mathbb{E}|\frac1n\sum_i r_i 1_b| \ge |\mathbb{E}\,\frac1n \sum_i r_i 1_b| =
# |\mathbb{E}[r 1_b]|$ (Jensen); sum over $b$.
#
# *3.* Given the confidences, $\sum_{i \in b} r_i$ has mean 0 and variance
# $\sum_{i \in b} v_i (1 - v_i) \le n_b / 4$, and $\mathbb{E}|X| \le (\mathbb{E} X^2)^{1/2}$.
# By Cauchy and Schwarz, $\sum_b \sqrt{n_b}\,/(2n) \le \sqrt{B \sum_b n_b}\,/(2n) = \tfrac12 \sqrt{B/n}$. For
# the exact value (De Moivre), let $S$ be binomial with probabilities $f(k)$. Its mean is
# $mv$, so $\mathbb{E}|S - mv| = 2 \sum_{k \ge j} (k - mv) f(k)$. With
# $T_k = k (1 - v) f(k)$ one has $T_{k+1} = (k+1)(1-v) f(k+1) = (m - k)\, v f(k)$, so
# $T_k - T_{k+1} = (k - kv - mv + kv) f(k) = (k - mv) f(k)$: the sum telescopes to $T_j$.
#
# *4.* Write the bin $b$ of row $i$, and let $M = \mathbb{E}[\operatorname{sign}(S_{-i}) \mid i \in b]$,
# the same for all rows, which are exchangeable. $S_{-i}$ depends on the other rows only, so
# $\mathbb{E}[\operatorname{sign}(S_{-i}) r_i 1_b] = M\, \mathbb{E}[r 1_b]$, at most
# $|\mathbb{E}[r 1_b]|$ since $|M| \le 1$, and 0 if the forecaster is calibrated. $\square$
# :::
#
# So on average $\mathrm{ECE}_B$ lies between the debiased value and the plug-in one, and
# neither sees what happens inside a bin. The checks: the telescoping step symbolically; parts 3
# and 4 by running through all $2^{10}$ outcomes of ten decisions; and by simulation.

# %%
v = sympy.symbols("v")
gaps = []
for m, k in itertools.product(range(1, 6), range(6)):
    mass = sympy.binomial(m, k) * v**k * (1 - v) ** (m - k)
    after = sympy.binomial(m, k + 1) * v ** (k + 1) * (1 - v) ** (m - k - 1)
    step = k * (1 - v) * mass - (k + 1) * (1 - v) * after
    gaps.append(sympy.simplify(step - (k - m * v) * mass))
print("symbolic, not 0:", len(set(gaps) - {0}))


def de_moivre(size, stated):
    """Mean |sum of residuals| of `size` honest rows, all stated alike."""
    j = int(size * stated) + 1
    miss = (1 - stated) ** (size - j + 1)
    return 2 * j * comb(size, j) * stated**j * miss


stated_10 = np.repeat([0.9, 0.62], 5)
plug, fair = 0.0, 0.0
for outcome in itertools.product([0, 1], repeat=10):
    c = np.array(outcome)
    weight = np.where(c == 1, stated_10, 1 - stated_10).prod()
    plug += weight * ece(stated_10, c, n_bins=10)
    fair += weight * ece_debiased(stated_10, c, n_bins=10)
formula = (de_moivre(5, 0.9) + de_moivre(5, 0.62)) / 10
print("enumerated plug-in = De Moivre:", abs(plug - formula) < 1e-12)
print("enumerated debiased = 0:", abs(fair) < 1e-12)
draws_10 = rng.random((4000, 10)) < stated_10
sampled = [ece(stated_10, c, n_bins=10) for c in draws_10]
error = np.std(sampled, ddof=1) / np.sqrt(len(sampled))
average = np.mean(sampled)
print(f"mean plug-in {plug:.4f}, sampled {average:.4f} ± {error:.4f}")
ten = {"ten": plug, "ten_z": (average - plug) / error}
save_numbers("02_calibration", ten)

# %% [markdown]
# A *perfect* forecaster judged on these ten decisions has an ECE of
# {res}`02_calibration:ten:.3f` on average (the sampled mean is
# {res}`02_calibration:ten_z:.1f` standard errors away). How the two estimates close in as rows
# become many, for a forecaster with a known error and for one without:

# %% mystnb={"figure": {"caption": "Mean of the plug-in ECE (solid) and of the debiased one (dashed) over repeated samples, 15 bins; dotted: the true binned error. Ochre: the overconfident forecaster; blue: the honest one, whose truth is 0. With few rows the honest one looks as bad as the overconfident one is.", "name": "fig-calibration-bracket"}, "image": {"alt": "Calibration error against number of rows from 50 to 3200 on a logarithmic axis. For each of two forecasters a solid plug-in line falls and a dashed debiased line rises towards a dotted horizontal truth: about 0.08 for the overconfident one, 0 for the honest one. At 50 rows the honest plug-in value is above 0.1."}} tags=["hide-input"]
sizes, draws = np.array([50, 100, 200, 400, 800, 1600, 3200]), 250
bracket, spread = {}, {}
for name in ("overconfident", "honest"):
    # The rows of the first figure, with known chances, are now the population.
    whole = ece(FORECASTS[name], chance)
    means = []
    for size in sizes:
        found = []
        for _ in range(draws):
            rows = rng.integers(0, n, size)
            v_rows = FORECASTS[name][rows]
            c_rows = (rng.random(size) < chance[rows]).astype(float)
            found.append((ece(v_rows, c_rows), ece_debiased(v_rows, c_rows)))
        means.append(np.mean(found, 0))
    spread[name] = np.std(found, 0)
    bracket[name] = whole, np.array(means)
fig, ax = plots.figure(height=3.6)
ends = []
for name, (whole, means) in bracket.items():
    ax.axhline(whole, color=INK, lw=1, ls=":")
    for column, line in ((0, "-"), (1, "--")):
        ax.plot(sizes, means[:, column], line, color=paint[name], marker=look[name])
    ends.append((sizes[-1], means[-1].mean(), name, paint[name]))
ax.set(xscale="log", xlim=(45, 3400), ylim=(-0.01, 0.16))
ax.set_xticks([50, 200, 800, 3200], ["50", "200", "800", "3,200"])
ax.minorticks_off()
plots.note_ends(ax, ends)
_ = ax.set(xlabel="rows", ylabel="mean of the estimate")

# %% tags=["remove-cell"]
save_numbers(
    "02_calibration",
    {
        "bracket": {
            name: {
                "true": float(whole),
                "plug50": float(means[0, 0]),
                "debiased50": float(means[0, 1]),
                "plug3200": float(means[-1, 0]),
            }
            for name, (whole, means) in bracket.items()
        },
        "spread": {k: two.tolist() for k, two in spread.items()},
        "bound50": float(0.5 * np.sqrt(15 / 50)),
    },
)

# %% [markdown]
# At 50 rows the honest forecaster scores {res}`02_calibration:bracket.honest.plug50:.3f`,
# more than the overconfident one's true {res}`02_calibration:bracket.overconfident.true:.3f`.
# Two remedies follow. `ece_debiased` is part 4; what it gains in
# bias it pays for in noise: over samples of 3,200 honest rows its standard deviation is
# {res}`02_calibration:spread.honest.1:.3f`, that of the plug-in value
# {res}`02_calibration:spread.honest.0:.3f`. A single debiased value near or below 0 is no certificate.
# `ece_noise_floor` keeps the confidences, draws honest outcomes, and reports what luck alone
# yields: an ECE below its .95 quantile is no evidence against honesty. {cite:t}`kumar2019` debias the squared
# error; {cite:t}`roelofs2022` compare such estimators.
#
# A condition that is easily lost: part 4's "at most" needs rows drawn *at random*. For fixed rows of
# unlike confidence in one wide bin it can fail ({ref}`ex-calibration-2`).
#
# ## The traps
#
# **1. Edges.** Confidences .6 and .55, the first right, the second wrong, ten bins. Whether .6
# opens a bin or closes one decides the answer, and so does the way in which the edge .6 is computed:

# %%
pair, hit = np.array([0.6, 0.55]), np.array([1.0, 0.0])


def from_edges(edges, side):
    """ECE with bins closed on the left (side="right") or on the right."""
    index = np.searchsorted(edges[1:-1], pair, side=side)
    gaps = [abs((hit - pair)[index == b].sum()) for b in np.unique(index)]
    return sum(gaps) / len(pair)


line, exact = np.linspace(0, 1, 11), np.arange(11) / 10
table = pd.DataFrame(
    {
        "[lo, hi), edges k/10": from_edges(exact, "right"),
        "[lo, hi), edges linspace": from_edges(line, "right"),
        "(lo, hi], edges k/10": from_edges(exact, "left"),
        "rlcd_core.metrics.ece": ece(pair, hit, n_bins=10),
    },
    index=["ECE"],
)
print("linspace edges that are not k/10:", line[line != exact].round(1))
save_numbers("02_calibration", {"edges": table.iloc[0].tolist()})
table.T.round(4)

# %% [markdown]
# The same two decisions score {res}`02_calibration:edges.0:.3f` or
# {res}`02_calibration:edges.2:.3f`. The book's bins are $[k/B, (k+1)/B)$, and 1 lies in the
# last. `np.linspace` computes $k$ times a rounded step, which misses some edges by one bit, so a
# stated .6 falls into the bin below. Rounded confidences (.6, .7, .9), which people and
# language models prefer, sit exactly on edges.
#
# **2. Ties.** Equal-mass bins are often made by sorting and slicing. Where confidences tie, the
# slice follows the order of the file:

# %%
tied = np.full(600, 0.75)
in_order = np.sort(rng.random(600) < 0.75).astype(float)  # wrong first
slices = np.array_split(np.argsort(tied, kind="stable"), 15)
sliced = sum(abs((in_order - tied)[rows].sum()) for rows in slices) / 600
whole_ties = ece(tied, in_order, binning="mass")
print(f"sliced {sliced:.3f}, ties kept together {whole_ties:.3f}")
save_numbers("02_calibration", {"sliced": sliced, "whole_ties": whole_ties})

# %% [markdown]
# **3. How many bins.** Part 1 says that few bins hide and part 2 that many add. A forecaster
# that errs in waves, up and down eight times along the scale, makes both visible:

# %% mystnb={"figure": {"caption": "ECE of the same 3,000 decisions by the number of bins. The wavy forecaster is invisible at 8 bins and plain at 16; the honest one looks worse the more bins there are. Dotted: the true errors.", "name": "fig-calibration-bins"}, "image": {"alt": "ECE against number of bins from 1 to 60. The ochre line of the wavy forecaster is near its floor for 1, 2, 4 and 8 bins and jumps to about 0.1 beyond ten; the blue line of the honest forecaster climbs slowly from 0 to about 0.05. Dotted lines mark the true values 0.095 and 0."}} tags=["hide-input"]
grid = (np.arange(3000) + 0.5) / 3000
wavy_chance = np.clip(grid + 0.15 * np.sin(2 * np.pi * 8 * grid), 0, 1)
waves = {
    "wavy": (grid, (rng.random(3000) < wavy_chance).astype(float), OCHRE),
    "honest": (grid, (rng.random(3000) < grid).astype(float), BLUE),
}
bins = np.arange(1, 61)
fig, ax = plots.figure(height=3.4)
by_bins = {}
for name, (stated, c, color) in waves.items():
    by_bins[name] = [ece(stated, c, n_bins=int(b)) for b in bins]
    ax.plot(bins, by_bins[name], color=color, lw=1.6)
true_wave = float(np.abs(wavy_chance - grid).mean())
for level in (0, true_wave):
    ax.axhline(level, color=INK, lw=1, ls=":")
ax.set(xlim=(1, 60), ylim=(-0.004, 0.12))
plots.note_ends(ax, [(60, by_bins[k][-1], k, waves[k][2]) for k in waves])
_ = ax.set(xlabel="number of equal-width bins", ylabel="ECE")

# %% tags=["remove-cell"]
save_numbers(
    "02_calibration",
    {
        "waves": {str(b): by_bins["wavy"][b - 1] for b in (8, 15, 16)},
        "true_wave": true_wave,
        "honest60": by_bins["honest"][-1],
    },
)

# %% [markdown]
# With 8 bins its ECE is {res}`02_calibration:waves.8:.3f`, with 16 it is
# {res}`02_calibration:waves.16:.3f`; the truth is {res}`02_calibration:true_wave:.3f`. So "ECE"
# without a number of bins is not a quantity, and two papers' values compare only if bins, $n$ and the
# distribution of confidences agree.
#
# **4. Soft labels.** Some twenty people judged each text. Which of them is the truth? Three answers
# for the same policy:

# %%
one = np.array([rng.choice(3, p=row) for row in share])
truths = {
    "one rater, drawn": top_option(p_film, one),
    "share of raters": (film, agree),
    "majority vote": top_option(p_film, share.argmax(1)),
}
soft = pd.DataFrame(
    {
        name: {
            "ECE-15": ece(conf, right),
            "debiased": ece_debiased(conf, right),
            "mean right − stated": (right - conf).mean(),
        }
        for name, (conf, right) in truths.items()
    }
).T
floor_film = ece_noise_floor(film, rng=rng)
keys = {"one": 0, "share": 1, "majority": 2}
save_numbers(
    "02_calibration",
    {
        "soft": {k: float(soft["ECE-15"].iloc[i]) for k, i in keys.items()},
        "majority_gap": float(soft.iloc[2, 2]),
        "floor_film": round(floor_film, 5),
    },
)
soft.round(4)

# %% [markdown]
# One rater and the share of raters ask the same question, with more noise and with less: by
# Jensen's inequality the ECE of single draws is on average at least that of the shares. The noise
# floor for one draw a text, {res}`02_calibration:floor_film:.3f`, is therefore too high a bar for
# shares. (Debiased values below 0 are that estimator's noise.) The majority vote asks *another*
# question. Judged by it, a policy that is honest about the next person states
# {res}`02_calibration:majority_gap:.2f` too little, and training on that verdict would teach it
# to overstate.
#
# **5. A forecaster who knows nothing.** Say the base rate .75 of every ticket. Then
# $\mathbb{E}[c \mid v] = v$, exactly: calibration in the long run is free. Here ECE ranks it first:

# %%
four.round(4)

# %% [markdown]
# ECE is no proper score: its optimum is not unique, and a policy selected by it is drawn to
# statements that are safe and empty. It must never be the only number, nor the one that is
# optimised.
#
# **6. Groups.** The second forecaster in that table is calibrated *and* wrong about every
# ticket: it does not know the team.
#
# :::{prf:proposition} Pooling hides
# :label: prp-calibration-groups
#
# Let groups $g$ partition the rows, $\mathrm{ECE}_g$ being the plug-in ECE within group $g$ with the
# same bins. Then $\widehat{\mathrm{ECE}} \le \sum_g \frac{n_g}{n}\, \mathrm{ECE}_g$, and the left side can
# be 0 while every $\mathrm{ECE}_g$ is positive.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# In each bin $|\sum_{i} r_i| \le \sum_g |\sum_{i \in g} r_i|$; sum over bins and divide by $n$.
# For the second part let two groups of equal size state .9, one being right with .8 and the
# other always. $\square$
# :::

# %% mystnb={"figure": {"caption": "The forecaster that is blind to the team. Pooled (grey) it lies on the diagonal; in one team (circles) it understates, in the other (triangles) it overstates, at every confidence.", "name": "fig-calibration-groups"}, "image": {"alt": "Observed accuracy against stated confidence from 0.5 to 1. The pooled grey line follows the dotted diagonal. The line of one team lies above it, by 0.2 at a stated 0.65; the line of the other team as far below."}} tags=["hide-input"]
stated = FORECASTS["blind to the team"]
fig, ax = plots.figure(height=3.6)
ax.plot([0.5, 1], [0.5, 1], color=INK, lw=1, ls=":")
everyone = np.ones(n, bool)
ends, per_group = [], {}
for name, rows, color, marker in (
    ("pooled", everyone, INK, "s"),
    ("team 1", team == 1, BLUE, "o"),
    ("team 0", team == 0, OCHRE, "v"),
):
    part = reliability(stated[rows], came_true[rows], 20)
    full = part.count >= 30
    x, height = part.confidence[full], part.accuracy[full]
    ax.plot(x, height, marker=marker, color=color)
    ends.append((0.62, np.interp(0.62, x, height), name, color))
    per_group[name.replace(" ", "")] = ece(stated[rows], came_true[rows])
for (x, y, name, color), shift in zip(ends, (-16, 14, -16), strict=True):
    plots.note(ax, name, x, y, xytext=(8, shift), color=color)
save_numbers("02_calibration", {"groups": per_group})
_ = ax.set(xlim=(0.5, 1), xlabel="stated confidence", ylabel="observed accuracy")

# %% [markdown]
# Its ECE is {res}`02_calibration:groups.pooled:.3f` pooled, but {res}`02_calibration:groups.team1:.3f`
# and {res}`02_calibration:groups.team0:.3f` by team. Calibration for all of a rich family of groups
# is *multicalibration* {cite:p}`hebertjohnson2018`. For a real policy, the groups to try first are the options it
# chooses, and the length of the text:

# %%
chosen = p_film.argmax(1)
texts = [movie.texts[i] for i in task.splits["test"]]
length = np.array([len(text.split()) for text in texts])
options = np.unique(chosen)
groups = {f"chose {movie.options[k]}": chosen == k for k in options}
groups["shorter texts"] = length <= np.median(length)
groups["longer texts"] = length > np.median(length)
rows = {}
for name, inside in groups.items():
    gap = bootstrap_interval((agree - film)[inside], rng=rng)
    rows[name] = {
        "texts": str(inside.sum()),
        "stated": f"{film[inside].mean():.3f}",
        "agree": f"{agree[inside].mean():.3f}",
        "agree − stated, 95 %": f"{gap:.3f}",
    }
pd.DataFrame(rows).T

# %% [markdown]
# An interval that leaves out zero marks a group in which the number is not kept, although
# the pooled diagram is fair. But look at many groups and some will fail by luck
# ({ref}`ex-calibration-4`).
#
# ## The mend: split a proper score
#
# A proper score cannot be gamed, but it mixes two virtues: to keep one's word, and to say
# something. It can be split exactly.
#
# :::{prf:theorem} Murphy's decomposition
# :label: thm-murphy
#
# Group the rows by the value $v$ they state: $n_v$ rows, of which the share $\bar c_v$ came true;
# $\bar c$ is the overall share. Then
#
# $$
# \begin{aligned}
# \tfrac1n \sum_i (v_i - c_i)^2
#  =\; &\underbrace{\tfrac1n \textstyle\sum_v n_v (v - \bar c_v)^2}_{\text{reliability}} \\
#    - &\underbrace{\tfrac1n \textstyle\sum_v n_v (\bar c_v - \bar c)^2}_{\text{resolution}}
#    + \underbrace{\bar c (1 - \bar c)}_{\text{uncertainty}} .
# \end{aligned}
# $$ (eq-murphy)
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# In the group of $v$, write $v - c_i = (v - \bar c_v) + (\bar c_v - c_i)$. The cross term sums to 0,
# and $\sum_i (\bar c_v - c_i)^2 = n_v \bar c_v (1 - \bar c_v)$ because $c_i^2 = c_i$. Next,
# $\frac1n \sum_v n_v \bar c_v (1 - \bar c_v) = \bar c - \frac1n \sum_v n_v \bar c_v^2
# = \bar c (1 - \bar c) - \frac1n \sum_v n_v (\bar c_v - \bar c)^2$. $\square$
# :::
#
# This is {cite:t}`murphy1973`'s partition of the binary Brier score, which is what Brier means on this
# page; the multi-option form is the same, with squared norms.
# Where confidences are continuous every group has one row, reliability becomes the whole
# score, and binning leaves a rest that `murphy` reports as `within`. The CORP
# decomposition of {cite:t}`dimitriadis2021` avoids bins: replace the statements by the best
# *non-decreasing* function of them.
#
# :::{prf:theorem} CORP
# :label: thm-corp
#
# Let $\hat v_i$ be the isotonic regression of $c$ on $v$, and let $S(\cdot)$ be the mean Brier score.
# In $S(v) = \mathrm{MCB} - \mathrm{DSC} + \mathrm{UNC}$, with $\mathrm{MCB} = S(v) - S(\hat v)$,
# $\mathrm{DSC} = S(\bar c) - S(\hat v)$ and $\mathrm{UNC} = S(\bar c)$, both MCB and DSC are at
# least 0; DSC does not change when $v$ passes through a strictly increasing map. In the
# population, $\mathrm{MCB} = 0$ if and only if the forecaster is calibrated.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# $\hat v$ minimises $S$ among all non-decreasing functions of $v$. The identity and every constant are such
# functions, hence $S(\hat v) \le S(v)$ and $S(\hat v) \le S(\bar c)$. A strictly increasing map leaves
# the set of non-decreasing functions of $v$, hence $\hat v$, as it was. In the population
# $S(f) = \mathbb{E}(f(v) - m(v))^2 + \text{const}$ with $m(v) = \mathbb{E}[c \mid v]$. If $m(v) = v$, the identity is
# the minimiser and MCB is 0. Conversely let MCB be 0, so that the identity is a minimiser. Take any bounded
# $h$ with bounded slope; for small $|\epsilon|$ the function $v + \epsilon h(v)$ is still increasing, so
# $\mathbb{E}(v + \epsilon h - m)^2$ has its minimum at $\epsilon = 0$, that is $\mathbb{E}[(v - m(v)) h(v)] = 0$. This holds for
# all such $h$, so $m(v) = v$. $\square$
# :::

# %%
checks = []
for _ in range(50):
    stated = rng.choice([0.2, 0.5, 0.7, 0.9], 40)
    c = (rng.random(40) < rng.random(40)).astype(float)
    m, k = murphy(stated, c), corp(stated, c)
    split = k.miscalibration - k.discrimination + k.uncertainty
    score = ((stated - c) ** 2).mean()
    checks += [abs(m.reliability - m.resolution + m.uncertainty - score)]
    checks += [abs(split - score)]
    checks += [max(0, -k.miscalibration, -k.discrimination)]
    checks += [abs(corp(stated**3, c).discrimination - k.discrimination)]
print(len(checks), "checks within 1e-12:", max(checks) < 1e-12)

small = []
for _ in range(200):
    rows = rng.integers(0, n, 200)
    c = (rng.random(200) < chance[rows]).astype(float)
    small.append(corp(chance[rows], c).miscalibration)
save_numbers("02_calibration", {"mcb200": float(np.mean(small))})

# %% [markdown]
# {numref}`fig-calibration-plane` is drawn in these two parts. The base rate sits at the
# origin: its ECE of {res}`02_calibration:four.base_rate.ECE-15:.3f` is paid for with no discrimination at all.
# The overconfident forecaster has the worst ECE,
# {res}`02_calibration:four.overconfident.ECE-15:.3f`, and the second-best Brier score; what it does
# wrong, a monotone map of its numbers mends; what the blind one does not know, no map can add.
#
# The plain result the other way: leaving bins out does not leave the bias out. On 200 rows the honest
# forecaster's CORP miscalibration is {res}`02_calibration:mcb200:.4f` on average, not 0: more
# than the overconfident one's {res}`02_calibration:four.overconfident.miscalibration:.4f` on all
# {res}`02_calibration:n_tickets:,`.
#
# :::{admonition} What to report
# :class: tip
#
# 1. Diagram with counts and band; $n$, bins and their rule; which sense of "calibrated".
# 2. ECE *with* its noise floor or the debiased value.
# 3. A proper score, and its miscalibration and discrimination.
# 4. The same for the groups that matter, with intervals.
# 5. What "right" means: one outcome, a share, or a vote.
# :::
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *ECE is enough* is defensible where all forecasters that are compared discriminate alike, as when one
#   temperature is tuned on fixed binary logits: by {prf:ref}`thm-corp` only miscalibration is left to differ.
# - *The debiased value is better* is not always so: it trades bias for variance, and for choosing
#   between two policies on the same rows the plug-in bias partly cancels. {cite:t}`roelofs2022` find that equal-mass bins
#   lower the bias too, and recommend the debiased estimator or a number of bins chosen by monotonicity.
# - *Independence.* All floors here assume that rows are independent. Several questions about one ticket are
#   not; then the floor is higher ({doc}`10_how_many_outcomes`).
# - *Calibration for all groups* cannot be verified with finite data, and a policy that is
#   calibrated for every group one can name knows the truth.
# :::
#
# ## Exercises
#
# :::{exercise} Invisible at fifteen bins
# :label: ex-calibration-1
#
# Construct a forecaster whose true error is .1 at every statement and whose binned error at 15
# equal-width bins is 0. Check it with soft outcomes.
# :::
#
# :::{solution-start} ex-calibration-1
# :label: sol-calibration-1
# :class: dropdown
# :::
#
# Let it overstate by .1 in the left half of every bin and understate by .1 in the right half, with
# equal mass in both. The residuals of a bin sum to 0; 30 bins reveal it.

# %% tags=["hide-input"]
fine = (np.arange(3000) + 0.5) / 3000
right_half = (np.floor(fine * 30) % 2) * 2 - 1
inner = (fine > 2 / 15) & (fine < 13 / 15)  # keeps the chances inside [0, 1]
truth = fine + 0.1 * right_half
hidden = [ece(fine[inner], truth[inner], n_bins=b) for b in (15, 30)]
print(f"15 bins {hidden[0]:.4f}, 30 bins {hidden[1]:.4f}")
assert hidden[0] < 1e-9 and abs(hidden[1] - 0.1) < 1e-9

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} A condition that matters
# :label: ex-calibration-2
#
# Two *fixed* decisions lie in one bin: stated .01, true chance .45; stated .99, true chance .55. Show
# that the mean residual of the bin is 0 and that the debiased value has a positive expectation.
# Why does part 4 of {prf:ref}`thm-ece-bias` not forbid it?
# :::
#
# :::{solution-start} ex-calibration-2
# :label: sol-calibration-2
# :class: dropdown
# :::
#
# The expected residuals are .44 and −.44. The sign that row 1 receives is that of row 2's residual:
# $+1$ with chance .55, so $2(.55) - 1 = .1$ on average; row 2 receives $2(.45) - 1 = -.1$. The expectation is
# $\frac12(.1 \cdot .44 + .1 \cdot .44) = .044 > 0$. Rows that are fixed and unlike are not exchangeable: the sign
# that a row receives then goes with its own residual. Drawn at random from the two, each row receives the same mean sign. Narrow bins
# keep confidences alike, and then the condition hardly matters.

# %% tags=["hide-input"]
two, true_two = np.array([0.01, 0.99]), np.array([0.45, 0.55])
mean = 0.0
for c in itertools.product([0, 1], repeat=2):
    weight = np.where(np.array(c) == 1, true_two, 1 - true_two).prod()
    mean += weight * ece_debiased(two, c, n_bins=1)
print(f"{mean:.4f}")
assert abs(mean - 0.044) < 1e-12 and abs((true_two - two).sum()) < 1e-12

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} How many rows for a floor of .01?
# :label: ex-calibration-3
#
# With 15 bins and confidences like those of the honest forecaster, how many rows bring the noise floor
# down to .01? Use the bound of part 3, then `ece_noise_floor`. Why is the bound generous?
# :::
#
# :::{solution-start} ex-calibration-3
# :label: sol-calibration-3
# :class: dropdown
# :::
#
# $\frac12\sqrt{15/n} = .01$ gives $n = 37{,}500$. The floor falls as $1/\sqrt n$, so one value fixes the rest:
# multiply $n$ by the square of floor over .01. The bound takes every variance as $\frac14$, fills all bins
# alike, and uses the root mean square for the mean absolute value, which is smaller by a factor of
# about $\sqrt{2/\pi}$.

# %% tags=["hide-input"]
needed = n * (floor / 0.01) ** 2
again = ece_noise_floor(rng.choice(chance, int(needed)), rng=rng, n_draws=200)
print(f"about {needed:,.0f} rows; floor there {again:.4f}")
assert needed < 37_500 and abs(again - 0.01) < 0.001

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Twenty groups of a hundred
# :label: ex-calibration-4
#
# An honest policy states .8 everywhere. You look at twenty groups of a hundred decisions. How large is
# the *worst* gap between stated and observed, on average, and how often does at least one group fall outside its
# own two-sided 95 % range?
# :::
#
# :::{solution-start} ex-calibration-4
# :label: sol-calibration-4
# :class: dropdown
# :::
#
# One gap has standard error $\sqrt{.8 \cdot .2/100} = .04$. The worst of twenty is more than twice that, and
# with twenty looks some group fails in more than half of the cases. Divide the level by the number of groups,
# or name the groups beforehand.

# %% tags=["hide-input"]
shares = rng.binomial(100, 0.8, (20_000, 20)) / 100
worst = np.abs(shares - 0.8).max(1)
outside = (worst > 1.96 * 0.04).mean()
print(f"worst gap {worst.mean():.3f}; some group outside in {outside:.0%}")
assert worst.mean() > 0.08 and outside > 0.5

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# {cite:t}`murphy1973` and {cite:t}`broecker2007` for what meteorologists knew; {cite:t}`guo2017`
# brought ECE to neural networks, {cite:t}`kumar2019` and {cite:t}`roelofs2022` measured its bias, and
# {cite:t}`dimitriadis2021` replaced its bins. {cite:t}`gneiting2007` for scores that cannot be gamed, which are
# the subject of {doc}`03_proper_scoring`. How many outcomes it takes to trust a stated .9 is {doc}`10_how_many_outcomes`.
