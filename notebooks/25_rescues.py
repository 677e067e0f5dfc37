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
# # Can RLVR be rescued?
#
# **Question.** A team already trains with the plain outcome reward. Its probabilities are
# useless, but it would rather add a knob than change the reward: an entropy bonus, a KL penalty
# towards the model it began with, a temperature afterwards, a lower rate, an earlier stop. Does one
# of them give the probabilities back?
#
# **Answer.** Two give most of them back. A bonus of exactly the right weight has an
# ECE of {res}`25_rescues:best_ece:.3f` (RLCD {res}`25_rescues:rlcd_ece:.3f`, plain RLVR
# {res}`25_rescues:rlvr_ece:.3f`), but its neighbours have {res}`25_rescues:neighbour_low:.2f` and more,
# and the accuracy by which RLVR is tuned hardly sees the difference. A temperature fitted on verdicts set
# aside brings the ECE down to RLCD's, and the Brier score not all the way. A low rate or an early stop only
# trade accuracy for honesty.
#
# **After this page you can** say for each knob which questions it can make right, read an
# accuracy-calibration path, and tell a repair from a slower failure.
#
# **Running time.** Seconds: the page reads committed runs (`make records FAMILY=rater_arms`, and
# `rater_controls`, `rater_bandit`).

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

# %% mystnb={"figure": {"caption": "Test ECE of RLVR with each rescue, ten fresh seeds, mean and 95 % interval, between plain RLVR and RLCD. Every weight had the whole grid of rates and batches to itself.", "name": "fig-rescues-ece"}, "image": {"alt": "Dot plot of ECE. Plain RLVR is worst. Among the entropy bonuses one weight, 0.3, comes close to RLCD, and both of its neighbours lie far above it. The KL penalties lie high except for the strongest. RLCD is lowest."}} tags=["hide-input"]
import numpy as np
import pandas as pd

from rlcd_core import plots
from rlcd_core.arms import ARMS, RESCUE_WEIGHTS
from rlcd_core.calibrate import fit_temperature
from rlcd_core.data.rater import load_rater
from rlcd_core.data.split import split_by_group
from rlcd_core.extra.families.rater import tuned
from rlcd_core.extra.grid import family_records
from rlcd_core.metrics import seed_interval
from rlcd_core.records import Store, metric_values, save_numbers
from rlcd_core.tasks import rater_task, score

plots.use_style()
fresh = family_records("rater_arms")
tuning = family_records("rater_tuning")
rescues = [f"rlvr_{kind}_{w:g}" for kind in ("shannon", "kl") for w in RESCUE_WEIGHTS]
bonuses = [name for name in rescues if "shannon" in name]
labels = {n: plots.arm_style(n).label for n in (*ARMS, "warmup", "supervised")}
fig, ax = plots.figure(height=4.4)
values = {name: metric_values(fresh, name, "ece") for name in ("rlvr", *rescues, "rlcd")}
plots.plot_dots(ax, plots.prepare_dots(values), "test ECE, 15 equal-width bins")
_ = ax.set(xlim=(0, None))

# %% [markdown]
# ## Two tickets
#
# Ticket one: *"The invoice is wrong again."* Seven of ten agents would send it to billing, three to
# support. Ticket two: *"Please cancel my contract."* Ninety-seven of a hundred would send it to
# cancellations. A router that has learned from outcomes alone should say .7 and .97.
#
# Trained on the plain outcome it says 1 and 1 ({prf:ref}`cor-rlvr`). An entropy bonus of weight
# $\beta$ holds it back, and {prf:ref}`thm-rescues` says exactly how far: with $K = 2$ it comes to rest
# at $\sigma((2q - 1)/\beta)$, whatever the text, the model or the learning rate. So each $\beta$ draws
# one curve of stated against true probability, the same for all tickets:

# %% mystnb={"figure": {"caption": "Where RLVR with an entropy bonus comes to rest, two options, against the true chance. Honest is the dotted diagonal. Every curve crosses it at one half and at most once above; RLCD, whose expected gradient is that of the Brier score, lies on the diagonal. The number at a curve is its weight.", "name": "fig-rescues-curves"}, "image": {"alt": "Curves of stated against true probability for bonus weights 0.1, 0.2, 0.3 and 0.5. Small weights give steep steps that overstate nearly everywhere; 0.5 understates everything above one half. Each crosses the diagonal at one point above one half at most."}} tags=["hide-input"]
truth = np.linspace(0.5, 0.999, 400)
fig, ax = plots.figure(height=3.4)
ax.plot([0.5, 1], [0.5, 1], color=plots.INK, lw=1, ls=":")
ends = []
for weight in RESCUE_WEIGHTS:
    stated = 1 / (1 + np.exp(-(2 * truth - 1) / weight))
    ax.plot(truth, stated, color=plots.COLORS["rlvr"], lw=1.6)
    ends.append((truth[-1], stated[-1], f"{weight:g}", plots.COLORS["rlvr"]))
_ = ax.set(xlim=(0.5, 1), ylim=(0.5, 1.005), xlabel="true chance of the better option")
_ = ax.set(ylabel="stated")
plots.note_ends(ax, ends)

# %% [markdown]
# At $\beta = .3$ the first ticket reads {res}`25_rescues:at7:.2f` and the second
# {res}`25_rescues:at97:.2f`. What a bonus can do is therefore fit the *average* certainty of a data
# set, if somebody knows it. How well that works depends on how much certainties differ. The raters
# of the film reviews agree to very different degrees:

# %% mystnb={"figure": {"caption": "Share of raters who chose the most frequent reading, over the test texts (bars, on a scale of their own), and how far each bonus is off at that degree of agreement if there were two options (lines, with their weights).", "name": "fig-rescues-spread"}, "image": {"alt": "A histogram of rater agreement, low and broad between 0.4 and 0.95, with by far the highest bar at 1. Lines of stated minus true probability: for small weights large and positive in the middle, for 0.5 negative at the right end; 0.3 stays within about plus or minus 0.1."}} tags=["hide-input"]
task = rater_task("movie")
counts = task.counts[task.splits["test"]]
share = counts / counts.sum(1, keepdims=True)
agreement = share.max(1)
fig, ax = plots.figure(height=3.4)
# Shares such as 3/5 and 1 lie in the middle of a bar, not on an edge.
heights, edges_ = np.histogram(agreement, bins=np.linspace(0.325, 1.025, 15))
assert heights.sum() == len(agreement)
ax.bar(edges_[:-1], 0.3 * heights / heights.max(), 0.05, align="edge", color=plots.INK, alpha=0.3)
ax.axhline(0, color=plots.INK, lw=1, ls=":")
ends = []
for weight in RESCUE_WEIGHTS:
    off = 1 / (1 + np.exp(-(2 * truth - 1) / weight)) - truth
    ax.plot(truth, off, color=plots.COLORS["rlvr"], lw=1.6)
    ends.append((truth[-1], off[-1], f"{weight:g}", plots.COLORS["rlvr"]))
_ = ax.set(xlabel="share of the most frequent reading", ylabel="stated minus true")
plots.note_ends(ax, ends)

# %% [markdown]
# A weight of .3 is off by less than .1 at every degree of agreement: too sure in the middle, a little too modest
# near full agreement. Smaller weights are nearer to honest where all raters agree and far too sure elsewhere; .5 is too
# modest throughout. This fits the order in {numref}`fig-rescues-ece`, as far as two options can stand for three. Which
# weight balances depends on how often each degree of agreement occurs, so it has to be found anew for other texts: on
# the sources of {doc}`27_out_of_distribution` .3 stays near RLCD on some and not on others.
#
# ## Entropy and KL, tuned
#
# Each weight had the grid of {doc}`24_what_happened` to itself and chose its rate and batch by
# validation accuracy, as RLVR did.

# %%


def cell(values: np.ndarray, digits: int = 3) -> str:
    """Mean and 95 % interval over seeds, as the tables print them."""
    return f"{seed_interval(values):.{digits}f}"


def at_choice(name: str, metric: str = "accuracy") -> np.ndarray:
    """Validation metric of an arm's chosen cell, one value a tuning seed."""
    wanted = tuned(name)
    return np.array(
        [
            r.metrics["validation"][metric]
            for r in tuning
            if r.arm == name
            and r.config["train"]["learning_rate"] == wanted.learning_rate
            and r.config["train"]["outcomes_per_step"] == wanted.outcomes_per_step
        ]
    )


pd.DataFrame(
    {
        labels[name]: {
            "validation accuracy": f"{at_choice(name).mean():.4f}",
            "test ECE": cell(metric_values(fresh, name, "ece")),
            "test Brier": cell(metric_values(fresh, name, "brier")),
            "confidence - accuracy": cell(metric_values(fresh, name, "gap")),
        }
        for name in ("rlvr", *rescues, "rlcd")
    }
).T

# %% [markdown]
# Here is the contrary result, and its price. RLVR with an entropy bonus of .3 reaches an ECE of
# {res}`25_rescues:best_ece:.3f`. Its neighbours, .2 and .5, are off by
# {res}`25_rescues:shannon_02:.2f` and {res}`25_rescues:shannon_05:.2f`. By validation accuracy one
# would take *{res}`25_rescues:by_accuracy`*, with an ECE of {res}`25_rescues:by_accuracy_ece:.3f`; it
# leads the next by {res}`25_rescues:accuracy_margin:.4f`, while between seeds the accuracy of one
# setting varies by {res}`25_rescues:accuracy_deviation:.4f` (standard deviation). So accuracy does not
# choose the weight. Somebody who measures calibration on held-out outcomes can; and that somebody can
# also subtract $p_a$ and have no weight to choose. At its best the bonus is behind RLCD with one outcome,
# its Brier score worse by {res}`25_rescues:best_gap:.4f`, and level with RLCD's seed recipe, which ends at
# {res}`24_what_happened:mark:.3f`.
#
# The KL penalty depends on where it starts: it rests at the warm-up $p_0$ times $e^{q/\beta}$, normalised
# ({prf:ref}`thm-rescues`, part 1). The strongest, .5, has an ECE of
# {res}`24_what_happened:rescues.kl_05:.3f`, and its seeds differ more than those of any other rescue. It ends
# with a Brier score of
# {res}`25_rescues:kl_05_brier:.3f`, RLCD with {res}`25_rescues:rlcd_brier:.3f`, the warm-up with
# {res}`25_rescues:warmup_brier:.3f`. A stronger one was not tried.
#
# ## A temperature afterwards
#
# One number, fitted on data that nothing else has used. The test texts are halved by group; the
# temperature is fitted on one half and judged on the other, for each fresh seed. It is fitted to all the
# raters' verdicts on a text, more than any arm was told.

# %%
store = Store("rater_arms")
movie = load_rater("movie", reading=3)
groups = [movie.groups[i] for i in task.splits["test"]]
half = split_by_group(groups, (0.5, 0.5), seed=0) == 0


def tempered(name: str) -> dict[str, np.ndarray]:
    """Scores on the second half, before and after a temperature, one value a seed."""
    found: dict[str, list[float]] = {}
    for record in fresh:
        if record.arm != name:
            continue
        log_p = np.log(np.clip(store.predictions(record), 1e-6, None))
        fit = fit_temperature(log_p[half], share[half])
        before = score(np.exp(log_p[~half]), counts[~half])
        after = score(fit.apply(log_p[~half]), counts[~half])
        for key, value in (
            ("T", fit.value),
            ("ECE before", before["ece"]),
            ("ECE after", after["ece"]),
            ("Brier before", before["brier"]),
            ("Brier after", after["brier"]),
        ):
            found.setdefault(key, []).append(value)
    return {key: np.array(values) for key, values in found.items()}


heated = {
    name: tempered(name) for name in ("rlvr", "rlvr_loo", "rlcd_std", "rlcd", "verdict_nll")
}
pd.DataFrame(
    {
        key: {labels[n]: cell(rows[key]) for n, rows in heated.items()}
        for key in heated["rlvr"]
    }
)

# %% [markdown]
# The temperature brings RLVR's ECE from {res}`25_rescues:tempered_before:.3f` to
# {res}`25_rescues:tempered_after:.3f`, where RLCD is on this half with or without one. After both are tempered,
# RLVR's Brier score is still worse than RLCD's by {res}`25_rescues:tempered_gap:.4f`. One number undoes the
# over-confidence that all texts share; it cannot give back what was never learned: where training has driven a ticket of
# .7 and one of .97 to nearly the same 1.00, no temperature tells them apart again.
#
# ## A lower rate, an earlier stop
#
# The published low-rate arm runs at a fifth of the shared rate. Both are held here at the setting that
# the seed recipe of RLCD chose.

# %%
controls = family_records("rater_controls")
slow = {
    "RLVR, shared rate": [r for r in controls if r.arm == "rlvr_loo"],
    "RLVR, a fifth of it": [r for r in controls if r.arm == "rlvr_low"],
    "RLCD, a fifth of it": [r for r in controls if r.arm == "rlcd_low"],
    "RLCD, shared rate": [r for r in fresh if r.arm == "rlcd_loo"],
    "warm-up": [r for r in fresh if r.arm == "warmup"],
}
metrics_shown = ("accuracy", "brier", "ece", "confidence")


def seeds_of(rows: list, metric: str) -> np.ndarray:
    """Test metric of each record, in order of seed."""
    return np.array([r.metrics["test"][metric] for r in sorted(rows, key=lambda r: r.seed)])


pd.DataFrame(
    {m: {name: cell(seeds_of(rows, m)) for name, rows in slow.items()} for m in metrics_shown}
)

# %% [markdown]
# An early stop is the same bargain along time. {numref}`fig-rescues-path` follows both policies of the
# comparison at one rate ({doc}`20_rater_bandit`) over their validation texts.

# %% mystnb={"figure": {"caption": "The path of training, mean of ten seeds: validation accuracy against ECE at equal steps. RLCD gains accuracy and stays honest; after its first evaluation RLVR pays for each gain with calibration, so that wherever it stops, RLCD has a point that is better in both.", "name": "fig-rescues-path"}, "image": {"alt": "Two paths from the same start at low accuracy. RLCD moves right along a low ECE. RLVR moves right and up: ECE grows with accuracy and ends above 0.2."}} tags=["hide-input"]
bandit = family_records("rater_bandit")


def path(name: str, metric: str) -> np.ndarray:
    """Mean over seeds of a validation metric at each evaluation."""
    runs = [[row[metric] for row in r.curve] for r in bandit if r.arm == name]
    return np.mean(runs, axis=0)


fig, ax = plots.figure(height=3.4)
paths = {name: (path(name, "accuracy"), path(name, "ece")) for name in ("rlcd", "rlvr")}
for name, (x, y) in paths.items():
    look = plots.arm_style(name)
    ax.plot(x, y, **look.drawn)
    beside = (-8, 9 if name == "rlvr" else -14)
    plots.note(ax, look.label, x[-1], y[-1], color=look.color, ha="right", xytext=beside)
_ = ax.set(xlabel="validation accuracy", ylabel="validation ECE", ylim=(0, None))

# %% tags=["remove-cell"]
eces = {n: float(metric_values(fresh, n, "ece").mean()) for n in (*ARMS, "warmup") if n in {r.arm for r in fresh}}
briers = {n: float(metric_values(fresh, n, "brier").mean()) for n in eces}
best = min(rescues, key=eces.get)
ranked = sorted(bonuses, key=lambda n: at_choice(n).mean(), reverse=True)


def interval(values: np.ndarray) -> list[float]:
    """Both ends of the 95 % interval."""
    found = seed_interval(values)
    return [found.low, found.high]


# RLVR's stops: is there one that RLCD does not beat in both measures?
dominated = all(
    any(a > x and e < y for a, e in zip(*paths["rlcd"], strict=True))
    for x, y in list(zip(*paths["rlvr"], strict=True))[1:]
)
save_numbers(
    "25_rescues",
    {
        "best_ece": eces[best],
        "best": labels[best],
        "rlcd_ece": eces["rlcd"],
        "rlvr_ece": eces["rlvr"],
        "rlcd_brier": briers["rlcd"],
        "warmup_brier": briers["warmup"],
        "kl_05_brier": briers["rlvr_kl_0.5"],
        "shannon_02": eces["rlvr_shannon_0.2"],
        "shannon_05": eces["rlvr_shannon_0.5"],
        "neighbour_low": min(eces["rlvr_shannon_0.2"], eces["rlvr_shannon_0.5"]),
        "by_accuracy": labels[ranked[0]],
        "by_accuracy_ece": eces[ranked[0]],
        "accuracy_margin": float(at_choice(ranked[0]).mean() - at_choice(ranked[1]).mean()),
        "accuracy_deviation": float(at_choice(ranked[0]).std(ddof=1)),
        "best_gap": interval(
            metric_values(fresh, best, "brier") - metric_values(fresh, "rlcd", "brier")
        ),
        "tempered_before": float(heated["rlvr"]["ECE before"].mean()),
        "tempered_after": float(heated["rlvr"]["ECE after"].mean()),
        "tempered_gap": interval(
            heated["rlvr"]["Brier after"] - heated["rlcd"]["Brier after"]
        ),
        "at7": 1 / (1 + np.exp(-0.4 / 0.3)),
        "at97": 1 / (1 + np.exp(-0.94 / 0.3)),
        "dominated": "all" if dominated else "not all",
        "low_ece": float(seeds_of(slow["RLVR, a fifth of it"], "ece").mean()),
        "low_accuracy": float(seeds_of(slow["RLVR, a fifth of it"], "accuracy").mean()),
        "shared_ece": float(seeds_of(slow["RLVR, shared rate"], "ece").mean()),
        "shared_accuracy": float(seeds_of(slow["RLVR, shared rate"], "accuracy").mean()),
    },
)

# %% [markdown]
# RLCD at some step is strictly better in both measures than {res}`25_rescues:dominated` of RLVR's possible stopping
# points (means over seeds; the common start is left out). At a fifth
# of the rate RLVR ends at an ECE of {res}`25_rescues:low_ece:.3f` and an accuracy of
# {res}`25_rescues:low_accuracy:.3f`, at the shared rate at {res}`25_rescues:shared_ece:.3f` and
# {res}`25_rescues:shared_accuracy:.3f`.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *The bonus works here.* With $\beta = .3$, chosen by calibration on held-out verdicts, RLVR is a
#   usable policy, about as good as the published recipe of RLCD. On a source whose certainties are bunched, it
#   may be as good as any.
# - *Two knobs together* (a bonus, then a temperature) were not tuned jointly. They have the same one
#   family of resting points ({prf:ref}`thm-rescues`, part 2), so theory expects nothing; it was not
#   measured.
# - *A weight that depends on the text* could calibrate questions with two options, if it knew their answers.
#   With three different chances no weight does ({prf:ref}`thm-rescues`, part 3).
# - *Vector scaling or isotonic regression* afterwards have more freedom than a temperature. They
#   still map equal probabilities to equal ones.
# :::
#
# ## Exercises
#
# :::{exercise} The right weight for one ticket
# :label: ex-rescues-1
#
# With two options and a true chance of .8, which $\beta$ makes RLVR with an entropy bonus honest?
# What does it then state for a .6?
# :::
#
# :::{solution} ex-rescues-1
# :label: sol-rescues-1
# :class: dropdown
#
# $\log(q/(1-q)) = (2q - 1)/\beta$, so $\beta = .6 / \log 4$.
# :::

# %% tags=["hide-cell"]
beta = 0.6 / np.log(4)
print(f"beta {beta:.3f}; a .6 reads {1 / (1 + np.exp(-0.2 / beta)):.3f}")

# %% [markdown]
# :::{exercise} Equal stays equal
# :label: ex-rescues-2
#
# RLVR gives many texts the same probability of nearly 1. How many test texts have a stated confidence
# above .99 under RLVR and under RLCD, and how much do the raters' true shares vary among RLVR's?
# :::
#
# :::{solution} ex-rescues-2
# :label: sol-rescues-2
# :class: dropdown
#
# Among the texts that RLVR calls certain, the raters' agreement varies widely. No map of the stated
# probability can tell these texts apart:
# :::

# %% tags=["hide-cell"]
p_of = {
    name: store.predictions(next(r for r in fresh if r.arm == name and r.seed == 200))
    for name in ("rlvr", "rlcd")
}
sure = {name: p.max(1) > 0.99 for name, p in p_of.items()}
chosen_share = share[np.arange(len(share)), p_of["rlvr"].argmax(1)][sure["rlvr"]]
print(f"above .99: RLVR {sure['rlvr'].mean():.2f}, RLCD {sure['rlcd'].mean():.2f} of texts")
low, high = np.quantile(chosen_share, (0.1, 0.9))
print(f"rater share, 10th to 90th percentile: {low:.2f} to {high:.2f}")

# %% [markdown]
# :::{exercise} A bonus and a temperature
# :label: ex-rescues-3
#
# Show that an entropy bonus of $\beta$ and an answer at temperature $\tau$ have the resting point of a
# bonus $\beta\tau$ answered at 1. Which of the two would you rather tune?
# :::
#
# :::{solution} ex-rescues-3
# :label: sol-rescues-3
# :class: dropdown
#
# $(e^{q/\beta})^{1/\tau} = e^{q/(\beta\tau)}$. The temperature: it needs no training run, and a small
# $\beta$ leaves gradients small where the policy is sure, so training at the larger one is the safer
# start.
# :::
#
# ## Further reading
#
# Temperature scaling is studied in {cite:t}`guo2017`. {doc}`06_one_bit` proves the theorem used here,
# {doc}`04_variance` why the bonus that does work is the Gini entropy.
