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
# # Out of distribution
#
# **Question.** A policy learned its probabilities on film reviews. Now it reads product reviews,
# newspaper editorials, tweets and sentences of short reviews (UCI). Are its probabilities still worth a threshold? And was the divide
# between RLCD and RLVR a property of film reviews?
#
# **Answer.** The divide is no property of film reviews: it holds on all four other sources, for
# policies trained on product reviews, and on another kind of question (TREC). It does not hold on spam
# messages, where nearly every answer is right: there RLVR is even a little ahead. Calibration itself does not
# travel. RLCD's ECE rises from {res}`27_out_of_distribution:home:.3f` at home to between
# {res}`27_out_of_distribution:away_low:.3f` and {res}`27_out_of_distribution:away_high:.3f` elsewhere,
# RLVR's lies between {res}`27_out_of_distribution:rlvr_low:.3f` and
# {res}`27_out_of_distribution:rlvr_high:.3f`. A threshold that was tested on film reviews breaks its promise
# on three of the four, by about the same amount for both.
#
# **After this page you can** say what calibration under one distribution does and does not promise
# under another, measure the damage, and decide when a gate must be tested again.
#
# **Running time.** Seconds; the runs are committed (`make records FAMILY=rater_out`, `amazon_arms`,
# `text_arms`).

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

# %% mystnb={"figure": {"caption": "ECE of policies trained on film reviews, by the source they are asked about; ten fresh seeds, mean and 95 % interval, 15 equal-width bins. First panel: film reviews they have not seen.", "name": "fig-out-ece"}, "image": {"alt": "Five dot plots, one a source. On film reviews RLCD, the verdict loss and the full label lie near 0.02 and RLVR near 0.2. On the other sources all move to the right, and RLVR and the std-normalised arm stay the worst."}} tags=["hide-input"]
import numpy as np
import pandas as pd

from rlcd_core import plots
from rlcd_core.data.rater import load_rater
from rlcd_core.data.split import split_by_group
from rlcd_core.extra.families.elsewhere import OUT_ARMS, OUT_SOURCES, TEXT_SOURCES
from rlcd_core.extra.families.rater import FRESH_SEEDS
from rlcd_core.extra.grid import family_records
from rlcd_core.extra.jobs import source_counts
from rlcd_core.gates import learn_then_test
from rlcd_core.metrics import seed_interval
from rlcd_core.records import Store, save_numbers
from rlcd_core.tasks import rater_task, score

plots.use_style()
out = family_records("rater_out")
arms = (*OUT_ARMS, "warmup")
named = {
    "test": "film reviews (home)",
    "amazon": "product reviews",
    "nyt": "editorials",
    "tweets": "tweets",
    "uci_sentences": "UCI sentences",
}


def values(rows: list, arm: str, metric: str, split: str = "test") -> np.ndarray:
    """One value a seed, in order of seed."""
    found = {r.seed: r.metrics[split][metric] for r in rows if r.arm == arm}
    return np.array([found[seed] for seed in sorted(found)])


fig, axes = plots.figure(len(named), height=2.5, sharex=True)
for ax, (split, title) in zip(axes, named.items(), strict=True):
    dots = plots.prepare_dots({arm: values(out, arm, "ece", split) for arm in arms})
    plots.plot_dots(ax, dots, "")
    _ = ax.set(title=title)
    ax.tick_params(axis="y", labelsize=8)
_ = axes[-1].set(xlabel="ECE, 15 equal-width bins", xlim=(0, None))

# %% [markdown]
# ## A ticket from another shop
#
# *"Battery died after two days, otherwise a lovely phone."* The policy that reads this has only ever
# seen verdicts about films. Words of praise and blame are much the same there; how often people agree about a
# sentence need not be.
#
# Calibration is a statement about an average: among the cases where the policy states .8, eight of ten
# are right. Change the mix of cases and the average changes, even if nothing about any single case does.
#
# :::{prf:theorem} What a shift does to calibration
# :label: thm-out-shift
#
# Let $f(x)$ be the stated probability of an event with conditional probability $q(x)$, calibrated
# under $P$: $E_P[q \mid f] = f$. Let $Q$ have density ratio $w = dQ/dP$ on $x$ with the same $q$
# (covariate shift), and $E_P[w \mid f] > 0$. Then
#
# $$ E_Q[q \mid f = v] - v = \frac{\operatorname{Cov}_P(w,\; q - f \mid f = v)}{E_P[w \mid f = v]}. $$ (eq-out-shift)
#
# So calibration survives *every* such shift iff $f = q$ almost surely: a policy that knows each case
# travels, a policy that is right on average does not.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# By Bayes, $E_Q[q \mid f = v] = E_P[w q \mid f = v] / E_P[w \mid f = v]$. Subtract $v = E_P[w v \mid f = v] /
# E_P[w \mid f = v]$: the numerator is $E_P[w (q - v) \mid f = v]$, and since $E_P[q - v \mid f = v] = 0$ this
# is the conditional covariance. If $f = q$ it is 0. If not, there is a set $A = \{q > f\}$ of positive
# probability; $w \propto 1 + \mathbf 1_A$ makes the covariance positive on a set of $v$ of positive
# probability. $\square$
# :::
#
# The theorem gives the size of the damage only in terms of $q$, which nobody knows, and editorials differ
# from film reviews in more than their mix: people may read the same sentence differently there. So it is
# measured.
#
# ## Trained on films, asked elsewhere

# %%


def cell(found: np.ndarray, digits: int = 3) -> str:
    """Mean and 95 % interval over seeds, as the tables print them."""
    return f"{seed_interval(found):.{digits}f}"


def table(metric: str) -> pd.DataFrame:
    """Sources by arms."""
    return pd.DataFrame(
        {
            title: {
                plots.arm_style(a).label: cell(values(out, a, metric, split)) for a in arms
            }
            for split, title in named.items()
        }
    )


table("accuracy")

# %%
table("brier")

# %%
table("gap")

# %% [markdown]
# A positive gap (confidence minus accuracy) means too sure. (Each other source is asked about all its texts;
# the {doc}`../book/data_card` counts them.) Differences of the Brier score against RLCD, paired by seed; positive
# means that RLCD is better:

# %%
pairs = ("rlvr", "rlcd_std", "rlvr_shannon_0.3", "verdict_nll", "nll")
pd.DataFrame(
    {
        title: {
            f"{plots.arm_style(a).label} - RLCD": cell(
                values(out, a, "brier", s) - values(out, "rlcd", "brier", s), 4
            )
            for a in pairs
        }
        for s, title in named.items()
    }
)

# %% [markdown]
# ## A promise that does not travel
#
# {doc}`41_gates` tests a threshold so that, with probability .9 over the draw of the calibration rows, at most
# a fifth of the acts is wrong. Here the threshold is tested on half of the film test texts, once a seed
# (one verdict a text). The table holds the error among the acts and the share acted on: at home on the other
# half, elsewhere on all texts of a source, where nothing was tested.

# %%
store = Store("rater_out")
task = rater_task("movie")
home = task.counts[task.splits["test"]]
movie = load_rater("movie", reading=3)
half = split_by_group([movie.groups[i] for i in task.splits["test"]], (0.5, 0.5), seed=0) == 0
# Predictions elsewhere follow those at home, source by source in the order of the record.
verdicts = {"test": home} | {name: source_counts(name) for name in OUT_SOURCES}
ends = np.cumsum([len(part) for part in verdicts.values()])
rows_of = {
    name: slice(end - len(part), end)
    for (name, part), end in zip(verdicts.items(), ends, strict=True)
}


def gate_abroad(arm: str) -> dict[str, dict[str, np.ndarray]]:
    """Share acted on and true error among the acts, by source, a value a seed."""
    found: dict[str, dict[str, list[float]]] = {
        what: {name: [] for name in verdicts} for what in ("error", "share")
    }
    for seed in FRESH_SEEDS:
        record = next(r for r in out if r.arm == arm and r.seed == seed)
        p = store.predictions(record)
        for name, counts in verdicts.items():
            part = p[rows_of[name], : counts.shape[1]]
            # The rows are those that the record was scored on (float16: 2e-3 at most).
            stored = record.metrics[name]["brier"]
            assert abs(score(part, counts)["brier"] - stored) < 2e-3
            share = counts / counts.sum(1, keepdims=True)
            best = part.argmax(1)
            stated, wrong = part.max(1), 1 - share[np.arange(len(part)), best]
            if name == "test":
                luck = np.random.default_rng([27, seed]).random((len(share), 1))
                right = ((share.cumsum(1) < luck).sum(1) == best).astype(float)
                gate = learn_then_test(stated[half], right[half], error=0.2).gate
                stated, wrong = stated[~half], wrong[~half]
            acts = gate.acts(stated)
            found["share"][name].append(acts.mean())
            found["error"][name].append(wrong[acts].mean() if acts.any() else 0.0)
    return {w: {n: np.array(v) for n, v in part.items()} for w, part in found.items()}


gates = {arm: gate_abroad(arm) for arm in ("rlcd", "verdict_nll", "rlvr")}
pd.concat(
    {
        heading: pd.DataFrame(
            {
                plots.arm_style(arm).label: {
                    title: cell(found[what][name]) for name, title in named.items()
                }
                for arm, found in gates.items()
            }
        )
        for what, heading in (("error", "error among acts"), ("share", "share acted on"))
    }
)

# %% [markdown]
# ## Trained there
#
# Is the divide a matter of film reviews? The product reviews get policies of their own, with the
# settings that were chosen on film reviews; nothing was tuned on them.

# %% mystnb={"figure": {"caption": "Policies trained on product reviews with the settings chosen on film reviews, test Brier score and ECE, ten fresh seeds, mean and 95 % interval.", "name": "fig-out-amazon"}, "image": {"alt": "Two dot plots. In Brier score and ECE the proper arms lie together at the left, RLVR and the std-normalised arm to the right."}} tags=["hide-input"]
amazon = family_records("amazon_arms")
shown = list(dict.fromkeys(r.arm for r in amazon))
order = sorted(shown, key=lambda a: values(amazon, a, "brier").mean())
fig, axes = plots.figure(2, height=4.4)
for ax, metric in zip(axes, ("brier", "ece"), strict=True):
    dots = plots.prepare_dots({a: values(amazon, a, metric) for a in order})
    plots.plot_dots(ax, dots, f"test {metric.replace('ece', 'ECE').replace('brier', 'Brier score')}")
    ax.tick_params(axis="y", labelsize=8)
_ = axes[1].set(xlim=(0, None))

# %% [markdown]
# ## Other kinds of question
#
# What kind of answer does a question ask for (TREC, six options)? Is a message spam (SMS, yes or no)?
# Here a text has one label, so an outcome is no longer a matter of chance given the text, and each arm
# is tuned afresh on a smaller grid.

# %%
text = family_records("text_arms")
for_source = {s: [r for r in text if r.config["task"] == f"label-{s}"] for s in TEXT_SOURCES}
text_arms = sorted(
    {r.arm for r in text}, key=lambda a: values(for_source["trec"], a, "brier").mean()
)
pd.concat(
    {
        {"trec": "TREC", "sms_spam": "SMS"}[s]: pd.DataFrame(
            {
                m: {plots.arm_style(a).label: cell(values(rows, a, m)) for a in text_arms}
                for m in ("accuracy", "brier", "ece")
            }
        )
        for s, rows in for_source.items()
    },
    axis=1,
)

# %% tags=["remove-cell"]


def interval(found: np.ndarray) -> list[float]:
    """Both ends of the 95 % interval."""
    bounds = seed_interval(found)
    return [bounds.low, bounds.high]


away = {a: [values(out, a, "ece", s).mean() for s in OUT_SOURCES] for a in ("rlcd", "rlvr")}
home_ece = float(values(out, "rlcd", "ece").mean())
divide = {
    s: interval(values(out, "rlvr", "ece", s) - values(out, "rlcd", "ece", s)) for s in named
}
save_numbers(
    "27_out_of_distribution",
    {
        "home": home_ece,
        "away_low": min(away["rlcd"]),
        "away_high": max(away["rlcd"]),
        "rlvr_low": min(away["rlvr"]),
        "rlvr_high": max(away["rlvr"]),
        "divide": divide,
        "nyt_best": min(
            float(values(out, name, "brier", "nyt").mean()) for name in arms
        ),
        "gate": {
            arm: {name: float(v.mean()) for name, v in found["error"].items()}
            for arm, found in gates.items()
        },
        "amazon": {
            a: float(values(amazon, a, "ece").mean()) for a in ("rlcd", "rlvr", "verdict_nll")
        },
        "amazon_gap": interval(values(amazon, "rlcd", "brier") - values(amazon, "verdict_nll", "brier")),
        "text": {
            s: {
                a: float(values(rows, a, "ece").mean())
                for a in ("rlcd", "rlvr", "verdict_nll", "nll")
            }
            for s, rows in for_source.items()
        },
        "text_gap": {
            s: interval(values(rows, "rlcd", "brier") - values(rows, "verdict_nll", "brier"))
            for s, rows in for_source.items()
        },
        "text_divide": {
            s: interval(values(rows, "rlvr", "brier") - values(rows, "rlcd", "brier"))
            for s, rows in for_source.items()
        },
    },
)

# %% [markdown]
# What can be read off:
#
# - **The divide travels.** RLVR's ECE exceeds RLCD's by (95 % intervals)
#   {res}`27_out_of_distribution:divide.amazon:.3f` on product reviews,
#   {res}`27_out_of_distribution:divide.nyt:.3f` on editorials,
#   {res}`27_out_of_distribution:divide.tweets:.3f` on tweets and
#   {res}`27_out_of_distribution:divide.uci_sentences:.3f` on the UCI sentences.
# - **Calibration does not.** At home the tested threshold of RLCD has an error of
#   {res}`27_out_of_distribution:gate.rlcd.test:.3f` among its acts, at a promise of at most .2. It is
#   {res}`27_out_of_distribution:gate.rlcd.amazon:.3f` on product reviews,
#   {res}`27_out_of_distribution:gate.rlcd.tweets:.3f` on tweets and
#   {res}`27_out_of_distribution:gate.rlcd.nyt:.3f` on editorials; only on the UCI sentences, at
#   {res}`27_out_of_distribution:gate.rlcd.uci_sentences:.3f`, is the promise kept. RLVR's gate errs as much, since a
#   tested threshold does not ask what the number under it means. Test again before acting on another source.
# - **On editorials no policy is better than none.** The best arm there has a Brier score of
#   {res}`27_out_of_distribution:nyt_best:.3f`; a third for each reading scores 2/3, whatever the truth.
# - **Training at home can cost calibration elsewhere.** On product reviews and editorials RLCD's ECE is
#   *larger* than that of the warm-up it started from ({numref}`fig-out-ece`), and every trained arm is too sure.
#   On product reviews it buys a better Brier score all the same. On editorials it buys none: the outcomes about
#   films add a little accuracy and more confidence than that, and leave RLVR's Brier score far worse than the
#   warm-up's.
# - **Trained on product reviews**, RLCD ends at an ECE of {res}`27_out_of_distribution:amazon.rlcd:.3f`,
#   RLVR at {res}`27_out_of_distribution:amazon.rlvr:.3f`; RLCD minus verdict NLL in Brier score is
#   {res}`27_out_of_distribution:amazon_gap:.4f`: with settings from elsewhere the verdict loss is the
#   better one.
# - **Where nearly every answer is right, the plain outcome may do.** RLVR minus RLCD in Brier score is
#   {res}`27_out_of_distribution:text_divide.trec:.4f` on TREC, but
#   {res}`27_out_of_distribution:text_divide.sms_spam:.4f` on SMS: there about 99 of 100 answers are right, and a
#   policy that says 1 is right to. RLCD minus verdict NLL: {res}`27_out_of_distribution:text_gap.trec:.4f` on TREC,
#   {res}`27_out_of_distribution:text_gap.sms_spam:.4f` on SMS, both undecided. (With two options an outcome tells
#   the label, so that on SMS verdict NLL and full label are one loss.)
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *A linear head on frozen embeddings* was asked. A larger model may know more of each case, and by
#   {prf:ref}`thm-out-shift` that is what travels.
# - *Sentiment only* for the shift: all four sources ask how positive a text is.
# - *UCI sentences are asked with two options* and other words than the policy was trained with, and each has
#   one label; part of what is measured there is the wording.
# - *A broken promise is no law.* Where the policy is no surer than it should be, as on the UCI sentences, a gate
#   from elsewhere keeps its promise; nobody knows this before testing there.
# - *Settings on product reviews were not tuned there*; an arm may lose by its rate.
# :::
#
# ## Exercises
#
# :::{exercise} A shift that calibration survives
# :label: ex-out-1
#
# Let $f$ be calibrated under $P$. Give a shift with $w \ne 1$ under which it stays calibrated, although
# $f \ne q$.
# :::
#
# :::{solution} ex-out-1
# :label: sol-out-1
# :class: dropdown
#
# Any $w$ that depends on $x$ through $f(x)$ alone: the covariance given $f$ is 0. More tickets on which the
# policy *states* that it is unsure do no harm; more tickets on which it is surer than it should be do.
# :::
#
# :::{exercise} Would a temperature help?
# :label: ex-out-2
#
# The gap of RLCD on editorials has one sign. If a temperature were fitted on a few labelled editorials,
# which of the numbers in the tables could change, and which could not?
# :::
#
# :::{solution} ex-out-2
# :label: sol-out-2
# :class: dropdown
#
# Confidence, gap, ECE and Brier score; not the accuracy, because the largest of $p_k^{1/T}$ stays the largest. With
# two options the order of texts by confidence stays as well, and with it the risk-coverage curve: a gate tested on
# the same labelled editorials would act on the same texts. With three options it may change a little: of
# $(.5, .5, 0)$ and $(.48, .26, .26)$ the first has the larger top at $T = 1$, the second at $T = \frac12$.
# :::
#
# :::{exercise} Which source is furthest?
# :label: ex-out-3
#
# Rank the sources by RLCD's Brier score minus that of the warm-up on the same source. What does the sign say?
# :::
#
# :::{solution} ex-out-3
# :label: sol-out-3
# :class: dropdown
#
# Negative means that the outcomes about films helped there too. Editorials alone are not negative, and their
# interval includes zero: ten seeds show neither help nor harm there.
# :::

# %% tags=["hide-cell"]
pd.Series(
    {
        title: cell(values(out, "rlcd", "brier", s) - values(out, "warmup", "brier", s), 4)
        for s, title in named.items()
    }
).to_frame("RLCD minus warm-up, Brier")

# %% [markdown]
# ## Further reading
#
# {doc}`02_calibration` defines what is measured here; {doc}`41_gates` the promise that is broken;
# {cite:t}`guo2017` temperature scaling.
