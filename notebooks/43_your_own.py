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
# # Bring your own decisions
#
# **Question.** You have no labels, only a table of what was decided and how it turned out. Can
# it become a decider whose probabilities mean something, and what is lost because the other
# options were never tried?
#
# **Answer.** Yes: from {res}`43_your_own:rows.trec:,` past decisions with six options each, of which only the
# outcome is known, `rlcd fit` makes a decider with a Brier score of
# {res}`43_your_own:trec.brier.outcomes_verdict_NLL:.3f`, where labels for the same rows give
# {res}`43_your_own:trec.brier.labels:.3f`. Its first choice is right in
# {res}`43_your_own:trec.accuracy.outcomes_verdict_NLL:.0%` of test cases, that of the old policy in
# {res}`43_your_own:trec.old:.0%` (the log itself, with its random actions, in {res}`43_your_own:trec.right:.0%`).
# The dearer loss is another one: the outcome of an option that the log did not take is not known,
# so that fewer rows can prove that the decider may act alone.
#
# **After this page you can** write the file, run one command, read its audit page, tell which of
# its promises hold for your log and which do not, and load the result somewhere else.
#
# **Running time.** About twenty seconds on any machine once the questions are embedded (a first run
# embeds 1,200 short texts, some ten seconds more). No GPU is used.

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

# %% mystnb={"figure": {"caption": "Brier score on the same test rows after learning from the same decisions, told in three ways; mean and 95 % interval over {res}`43_your_own:seeds` logs. Above: questions with six options. Below: mails, spam or not; there an outcome tells the label, and the verdict NLL is the full-label NLL to the last digit.", "name": "fig-own-brier"}, "image": {"alt": "Two panels of dots with intervals. Above, six options: labels have the lowest Brier score, outcomes come next, and the spread among the four outcome arms is smaller than their distance to labels. Below, two options: labels and verdict NLL coincide."}} tags=["hide-input"]
import csv
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from rlcd_core import plots
from rlcd_core.data.build import load_items
from rlcd_core.data.log import LogError, read_log
from rlcd_core.data.split import stable_order
from rlcd_core.decider import Decider
from rlcd_core.env import LabelEnv, record_log
from rlcd_core.export import ExportError, load_export
from rlcd_core.extra.fit import FitConfig, fit
from rlcd_core.metrics import seed_interval
from rlcd_core.records import results_dir, save_numbers

plots.use_style()
stored = json.loads((results_dir() / "your_own.json").read_text())
SOURCES = {"trec": "TREC questions, 6 options", "spam_assassin": "mails, 2 options"}
LOOKS = {
    "labels": ("label", "o"),
    "propensities, SNIPS": ("rlcd", "s"),
    "propensities, IPS": ("rlcd", "D"),
    "outcomes, RLCD": ("rlcd", "o"),
    "outcomes, verdict NLL": ("verdict", "o"),
}


def values(source, arm, key):
    """One measure of one arm, (seeds,)."""
    rows = [r for r in stored["runs"][source] if r["arm"] == arm]
    return np.array([r[key] for r in sorted(rows, key=lambda r: r["seed"])])


fig, axes = plots.figure(2, height=2.9)
for ax, (source, title) in zip(axes, SOURCES.items(), strict=True):
    for row, (arm, (family, marker)) in enumerate(LOOKS.items()):
        found, color = seed_interval(values(source, arm, "brier")), plots.COLORS[family]
        ax.plot([found.low, found.high], [row, row], color=color, lw=3, alpha=0.6)
        ax.plot(found.estimate, row, marker, color=color)
        plots.note(ax, f"{found.estimate:.3f}", found.high, row)
    ax.set_yticks(range(len(LOOKS)), list(LOOKS))
    ax.set(ylim=(len(LOOKS) - 0.5, -0.5), title=title)
    ax.margins(x=0.2)
    ax.tick_params(axis="y", length=0)
_ = axes[1].set(xlabel="Brier score, in [0, 2]")

# %% tags=["remove-cell"]
def plain(arm):
    """A name that a key may hold."""
    return arm.replace(", ", "_").replace(" ", "_")


sizes = stored["sizes"]
numbers = {
    "seeds": sizes["seeds"],
    "rows": sizes["rows"],
    "explore": sizes["explore"],
    "old_labels": sizes["old labels"],
}
for source in SOURCES:
    numbers[source] = {
        key: {plain(arm): float(values(source, arm, key).mean()) for arm in LOOKS}
        for key in ("brier", "accuracy", "ece", "gap", "share", "judged")
    }
    numbers[source]["old"] = float(values(source, "old policy", "accuracy").mean())
    numbers[source]["right"] = float(
        values(source, "old policy", "outcomes right").mean()
    )
    numbers[source]["least"] = float(
        values(source, "old policy", "least propensity").min()
    )
    numbers[source]["error"] = sizes["error"][source]
save_numbers("43_your_own", numbers)

# %% [markdown]
# ## A question that somebody answered
#
# *"How far is it from Denver to Aspen?"* A help desk has sorted such questions for years, with a
# handful of rules and a little chance. Each line of its table says what was asked, where it was sent,
# and whether that was the right place. Nobody wrote down where it should have gone.
#
# We have no help desk, so the next cell plays one. The questions are those of TREC
# {cite:p}`li2002`, and the rules look at the first word. In three cases of ten the desk takes an option at random,
# which is what makes the rest of this page possible; we come back to it.

# %%
known = {item.id: item for item in load_items("trec", "train")}
items = [known[key] for key in stable_order(known, 0)[:1200]]
options = items[0].question.options
labels = np.array([item.label for item in items])
rules = {"who": "a person or group", "where": "a place", "when": "a number or date"}
rules |= {"how": "a number or date", "what": "a thing"}


def desk(text, explore=0.3):
    """Chance that the old desk sends a question to each option, (6,)."""
    place = rules.get(text.split()[0].lower(), "a description or explanation")
    chosen = np.array([option == place for option in options])
    return (1 - explore) * chosen + explore / len(options)


mu = np.stack([desk(item.state) for item in items])
log = record_log(LabelEnv(labels, len(options)), mu, seed)
action, outcome, propensity = (v[:, 0] for v in log.logged(np.arange(len(items))))
folder = Path(tempfile.mkdtemp())
rows = [
    {
        "id": item.id,
        "state": item.state,
        "question": item.question.text,
        "options": json.dumps(options),
        "action": options[a],
        "outcome": int(c),
        "propensity": round(m, 4),
        "source": item.state.split()[0].lower() if item.state.split()[0].lower() in rules else "other",
    }
    for item, a, c, m in zip(items, action, outcome, propensity, strict=True)
]


def write(name, rows):
    """The rows as a CSV file."""
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder / name


path = write("decisions.csv", rows)
pd.DataFrame(rows[:4])[["state", "action", "outcome", "propensity"]]

# %% [markdown]
# These are all the columns that matter. A file of your own needs `id`, `state`, `question`, `options` and `type`
# (left out: a choice), and of each row either `action` with `outcome`, or a `label`. `propensity`, the chance with which the old
# policy took that action, times and `source` are welcome where they exist. CSV, JSONL and Parquet are read row by row; only what
# is learned from is kept, at most `limit` rows.
#
# The reading is strict, because a table that was exported by hand is wrong somewhere. Each fault names the row and the mend:

# %%
faults = {
    "unknown option": {"action": "a plant"},
    "propensity 0": {"propensity": 0},
    "outcome of both kinds": {"label": "a place", "action": "a thing", "outcome": 1},
    "the same id again": {"id": rows[0]["id"]},
}
for name, change in faults.items():
    wrong = [*rows[:2], {**rows[2], "label": "", **change}]
    wrong = [{"label": "", **row} for row in wrong]
    try:
        list(read_log(write("wrong.csv", wrong)))
    except LogError as error:
        print(f"{name}: {str(error).split(': ', 1)[1]}")
blank = [{**row, "outcome": ""} for row in rows[:2]]
print("blank outcome:", [d.outcome for d in read_log(write("blank.csv", blank))])

# %% [markdown]
# A blank outcome is no fault: that decision has not resolved. It is left out of the learning and counted in the audit.
#
# ## One command
#
# ```bash
# rlcd fit decisions.csv --out desk --error .2
# ```
#
# Here it is called from Python. It does eight things in a row: it reads and checks the log; splits it by time where there are times, else by
# state, into rows to learn from (six of ten), rows for the temperature, rows for the gate and rows for the audit; warms up on labels
# where there are any; learns from outcomes; fits a temperature; tests a gate; exports; and writes the audit page.

# %%
config = FitConfig(error=0.2)
made = fit(path, folder / "desk", config)
report = made.report
print("mode:", report["mode"], "| split by", report["split_by"])
print("parts:", report["parts"])
print("trained:", report["trained"])
print("left out:", report["left_out_of_parts"])
sorted(p.name for p in (folder / "desk").iterdir())

# %% [markdown]
# The training loss is the verdict NLL of {doc}`05_is_it_rl`: $-\log p_a$ where the action was right, $-\log(1 - p_a)$ where it was wrong.
# A label is an action that is known to be right, so that a log of labels, of outcomes, or of both is learned by one loss. No reinforcement learning is needed
# for that, as {prf:ref}`thm-behaviour` says; `--objective rlcd_snips` takes the weighted RLCD estimator instead.
#
# ## What a log permits
#
# :::{prf:proposition} What an outcome tells
# :label: prp-own-known
#
# Let exactly one of $K$ options be right, and let $a$ be taken with a chance $\mu_a > 0$ that depends on the state alone.
#
# (a) If $K = 2$, action and outcome tell the right option.
#
# (b) If $K > 2$, the rows with $a$ equal to the new policy's proposal $\hat k$ are an unbiased sample of *cases weighted by* $\mu_{\hat k}(x)$, and their
# outcomes say whether $\hat k$ is right. Adding the rows in which another option was taken and was right would add wrong proposals only.
#
# (c) $\frac{1[a = \hat k]}{\mu_a} c$ and $\|p\|^2 + 1 - 2 p_a \frac{c}{\mu_a}$ have the expectations of the accuracy and of the Brier score of the
# new policy over *all* cases.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# (a) $c = 1$ says $y = a$, and $c = 0$ leaves the other option. (b) A case $x$ is kept with chance $\mu_{\hat k(x)}(x)$, and given $x$ the action is drawn without
# regard to $y$. If $a \ne \hat k$ and $c = 1$, then $y = a \ne \hat k$. (c) $\mathbb{E}[1[a = \hat k]\, c / \mu_a] = \sum_a \mu_a 1[a = \hat k]\, q_a/\mu_a =
# q_{\hat k}$, and $\mathbb{E}[p_a c/\mu_a] = \sum_a p_a q_a$; the Brier score is $\|p\|^2 - 2 p_y + 1$. $\square$
# :::
#
# So three kinds of log permit three kinds of statement, and the audit says on its first line which one it has:

# %%
pd.DataFrame(
    {
        "labels, or two options": ["all", "yes", "all cases"],
        "outcomes with propensities": ["weighted or not", "estimated", "cases like the log's"],
        "outcomes alone": ["unweighted", "no", "cases like the log's"],
    },
    index=["ways to learn", "Brier score of all cases", "the gate's promise is about"],
)

# %% [markdown]
# "Cases like the log's" is (b): cases in which the old desk would have done what the decider proposes. Where the two disagree, no outcome was ever seen.
# Exploration decides how many such cases there are: an option with propensity 0 cannot be learned about from any number of rows, and the audit names options that were never taken.
#
# How many rows does that leave? Here are the judged rows of the gate's part, and what is known of the test part:

# %%
few = report["gate"]["n"] < report["parts"]["gate"] / 2
print("fewer than half of the gate's rows are judged:", few)
print("measures:", *report["scores"], sep="\n  ")
print("limit:", report["limits"][1])
assert few

# %% [markdown]
# ## What is lost, measured
#
# A single log proves nothing. The figure on top rests on {res}`43_your_own:seeds` logs of each source, made by an old policy that is a small head trained on
# {res}`43_your_own:old_labels` labels and explores with {res}`43_your_own:explore:.0%` of its actions
# (`tests/bench/your_own.py`, {res}`43_your_own:rows.trec` questions and {res}`43_your_own:rows.spam_assassin` mails a log). The labels, which a log does not hold, judge every arm on the same test rows.
# (The mails are an optional source, so that their logs are read from the records here; the questions of this page come with the default data.)

# %%
def cell(source, arm, key, digits=3):
    """Mean and 95 % interval over logs."""
    return f"{seed_interval(values(source, arm, key)):.{digits}f}"


columns = {"accuracy": "accuracy", "Brier": "brier", "ECE-15": "ece"}
pd.DataFrame(
    {
        title: {arm: cell("trec", arm, key) for arm in LOOKS}
        for title, key in columns.items()
    }
)

# %%
paired = {}
for arm in list(LOOKS)[1:]:
    base = values("trec", "outcomes, verdict NLL", "brier")
    lost = values("trec", arm, "brier") - values("trec", "labels", "brier")
    against = values("trec", arm, "brier") - base
    paired[arm] = {
        "minus labels": f"{seed_interval(lost):.3f}",
        "minus verdict NLL": "" if not against.any() else f"{seed_interval(against):.3f}",
    }
pd.DataFrame(paired).T

# %% tags=["remove-cell"]
more = {}
for arm in list(LOOKS)[1:]:
    lost = seed_interval(
        values("trec", arm, "brier") - values("trec", "labels", "brier")
    )
    gain = seed_interval(
        values("trec", arm, "brier") - values("trec", "outcomes, verdict NLL", "brier")
    )
    more[plain(arm)] = {"lost": lost.estimate, "low": lost.low, "high": lost.high}
    more[plain(arm)] |= {"gain": gain.estimate}
same = np.array_equal(
    values("spam_assassin", "labels", "brier"),
    values("spam_assassin", "outcomes, verdict NLL", "brier"),
)
assert same
assert more["propensities_SNIPS"]["gain"] > 0.01 > abs(more["outcomes_RLCD"]["gain"])
acted = [values("trec", arm, "share").mean() for arm in LOOKS]
assert max(acted) == acted[0]
save_numbers("43_your_own", {"lost": more})

# %% [markdown]
# Differences are paired: the same log, the same split, the same start. An outcome in place of a label costs
# {res}`43_your_own:lost.outcomes_verdict_NLL.lost:.3f` Brier points with six options. With two options it costs nothing, by (a): the rows of mails in
# {numref}`fig-own-brier` for labels and for verdict NLL are equal bit for bit.
#
# **Weights did not help to learn.** The two arms that weigh by $p_a/\mu_a$ (IPS as it is, SNIPS divided by its mean) end {res}`43_your_own:lost.propensities_SNIPS.gain:.3f` Brier points *above* the verdict NLL on the same
# outcomes, and RLCD without weights does not. The smallest propensity is {res}`43_your_own:trec.least:.3f`, so that a few rows carry a step, and a head that sees the text
# has little bias for weights to remove. (One rate and five passes for every arm, none tuned; with a larger budget the gap may close.) What propensities are worth is the measurement in (c): without them
# a log cannot say how good the new policy would be over all cases.
#
# Calibration survives in every arm, because the temperature is fitted on outcomes too: the ECE of the outcome arms lies between
# {res}`43_your_own:eces.low:.3f` and {res}`43_your_own:eces.high:.3f`, that of labels at {res}`43_your_own:trec.ece.labels:.3f`, part of which is chance
# on so few rows ({doc}`02_calibration`).

# %% tags=["remove-cell"]
eces = [numbers["trec"]["ece"][plain(arm)] for arm in list(LOOKS)[1:]]
save_numbers("43_your_own", {"eces": {"low": min(eces), "high": max(eces)}})

# %% mystnb={"figure": {"caption": "What the audit page draws, here for one log of TREC and its labels: stated confidence of the proposal against how often it was right; bars are 95 % Wilson bands, columns along the foot the number of rows. Learned from outcomes alone (verdict NLL).", "name": "fig-own-reliability"}, "image": {"alt": "Reliability diagram with ten bins. The points rise along the diagonal from about 0.3 to 1; most bands cover the dotted line; the columns grow towards high confidence."}} tags=["hide-input"]
(bins,) = [
    row["bins"]
    for row in stored["runs"]["trec"]
    if row["arm"] == "outcomes, verdict NLL" and "bins" in row
]
fig, ax = plots.figure(height=4.2)
most, green = max(b["n"] for b in bins), plots.COLORS["verdict"]
ax.plot([0, 1], [0, 1], color=plots.INK, lw=1, ls=":")
for b in bins:
    wide, tall = b["upper"] - b["lower"], 0.16 * b["n"] / most
    ax.bar(b["lower"], tall, wide, align="edge", color=plots.INK, alpha=0.4)
    ax.plot([b["stated"]] * 2, [b["low"], b["high"]], color=green, lw=4, alpha=0.5)
    ax.plot(b["stated"], b["right"], "o", color=green)
    plots.note(ax, f"{b['n']:.0f}", b["lower"] + wide / 2, tall + 0.03, xytext=(0, 0), ha="center")
ax.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
_ = ax.set(xlabel="stated confidence", ylabel="share right")

# %% [markdown]
# ## How much can be automated
#
# The gate of {doc}`41_gates` is tested on the judged rows of its own part. Here is what each kind of log lets it promise, and what came of it on the test
# rows, over *all* cases and not only those the promise is about:

# %%
table, over = {}, {}
for source in SOURCES:
    allowed = sizes["error"][source]
    for arm in ("labels", "propensities, SNIPS", "outcomes, verdict NLL"):
        wrong, acts = (values(source, arm, key) for key in ("wrong", "acts"))
        rate = wrong[acts > 0] / acts[acts > 0]
        over[source, arm] = int((rate > allowed).sum())
        table[source, arm] = {
            "rows judged": f"{values(source, arm, 'judged').mean():.0f}",
            "share acted on": cell(source, arm, "share", 2),
            "allowed": allowed,
            "wrong among acts": f"{seed_interval(rate):.3f}",
            "logs over it": f"{over[source, arm]} of {len(rate)}",
        }
pd.DataFrame(table).T

# %% [markdown]
# With six options the outcome log can judge half of the gate's rows, and the decider itself is less sure: it may act on {res}`43_your_own:trec.share.outcomes_verdict_NLL:.0%`
# of the questions where labels would let it act on {res}`43_your_own:trec.share.labels:.0%`. The error is counted over *all* test cases, while the promise was made for
# cases like the log's: where it holds here, that is luck of these logs and not guaranteed. (A promise with $\delta = .1$ may fail in one log of ten; few test rows make single rates noisy, too.)
# A few labels on cases in which decider and log disagree would settle it; {ref}`ex-own-4` adds some.
#
# ## Take it elsewhere
#
# The folder is the decider. It holds the head, the temperature, the gate, the question, a model card and the audit, each with its SHA-256; the packaged
# encoder is referred to by hash (`--copy-encoder` puts it in). Weights are safetensors; a pickle is refused, whatever its name.

# %%
decider = Decider.load(folder / "desk")
asked, gate = decider.exported.questions, decider.exported.gates["act"].gate
answer = decider.ask("How far is it from Denver to Aspen?", asked)["question"]
print(answer.value)
print("sums to 1:", abs(sum(answer.p) - 1) < 1e-5)
print("the gate:", gate.decide(answer.confidence) in ("act", "escalate"))

again = load_export(folder / "desk").policy
same = [(item.state, item.question) for item in items[:50]]
one, two = (p.log_probs(p.prepare(same).take(range(50))) for p in (decider.policy, again))
print("loaded twice, equal to the last bit:", bool((one == two).all()))

copy = shutil.copytree(folder / "desk", folder / "copy")
weights = bytearray((copy / "head.safetensors").read_bytes())
weights[-1] ^= 1  # one bit, somewhere in the last number
(copy / "head.safetensors").write_bytes(weights)
try:
    Decider.load(copy)
except ExportError as error:
    print("one bit changed:", "head.safetensors was changed" in str(error))

# %% [markdown]
# Loading checks every file, that nothing was added, and that prompts are written as they were in training.
# `rlcd ask`, `rlcd score` and the service of {doc}`40_ask` take the same folder.
#
# Those who live in scikit-learn find the same losses behind `BanditClassifier` (numbers) and `TextBanditClassifier` (texts) in
# `rlcd_core.extra.estimator`: `fit(X, y)` learns from labels, `fit(X, y, outcomes, propensities)` from the actions in `y`.

# %%
from rlcd_core.extra.estimator import TextBanditClassifier

texts = [item.state for item in items]
taken = np.array(options)[action]
model = TextBanditClassifier(items[0].question.text)
model.fit(texts[:900], taken[:900], outcome[:900])
truth = np.array(options)[labels]
learned = (model.predict(texts[900:]) == truth[900:]).mean()
guess = max((truth[:900] == option).mean() for option in options)
print("better than the commonest option by .2 or more:", bool(learned > guess + 0.2))

# %% [markdown]
# :::{admonition} What would change my mind
# :class: warning
#
# - *An outcome is not a label when options do not exclude each other.* If two desks could both have been right, $c = 0$ rules out one option only, as it does here, but (a) fails and
#   the softmax is the wrong model.
# - *The old policy saw more than the state.* If a person decided and knew what the text does not say, the action depends on $y$ given $x$, and neither weights nor the
#   verdict losses are protected. Propensities from a log of a machine are facts; those estimated afterwards are guesses.
# - *Unresolved is not random.* Rows that have not resolved are left out. If wrong decisions surface late, the log flatters ({doc}`41_gates` shows by how much).
# - *The worlds here are small and clean.* One head, two data sets, an old policy that explores by design. With the exploration of a real desk, often none, the rows that can be judged may be
#   far fewer, and the options that it avoids are judged by nobody.
# - *Test rows from a later time would be harder.* Neither source has times; where yours has, `rlcd fit` judges on the latest rows.
# :::
#
# ## Exercises
#
# :::{exercise} A desk that never explores
# :label: ex-own-1
#
# Let the desk follow its rules always (`explore=0`). For which options is nothing learned, and what does the audit say of them?
# :::
#
# :::{solution-start} ex-own-1
# :label: sol-own-1
# :class: dropdown
# :::
#
# Every propensity is 1, so weights change nothing. An option that no rule names is never taken: no outcome speaks of it.

# %% tags=["hide-input"]
strict = np.stack([desk(item.state, explore=0.0) for item in items])
silent = record_log(LabelEnv(labels, len(options)), strict, seed)
a, c, m = (v[:, 0] for v in silent.logged(np.arange(len(items))))
never = [{**row, "action": options[k], "outcome": int(o), "propensity": 1} for row, k, o in zip(rows, a, c, strict=True)]
lone = fit(write("never.csv", never), folder / "never", config)
print(lone.report["untried"])
assert [x.split(": ")[1] for x in lone.report["untried"]] == ["an abbreviation"]
assert (m == 1).all()

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} The price of weights
# :label: ex-own-2
#
# For the log of this page, how many rows is the weighted accuracy of a policy worth that always proposes the right option? Compute $(\sum w)^2 / \sum w^2$ with $w = 1[a = y]/\mu_a$.
# :::
#
# :::{solution-start} ex-own-2
# :label: sol-own-2
# :class: dropdown
# :::
#
# Where the rules are wrong the right option has propensity .05 and a weight of 20. A few such rows carry the estimate.

# %% tags=["hide-input"]
w = (action == labels) / propensity
worth = w.sum() ** 2 / (w**2).sum()
print(f"{worth:.0f} of {len(w):,} rows")
assert worth < len(w) / 4

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Rows that must not be kept
# :label: ex-own-3
#
# Show (b) by counting: among rows in which the desk took another option than the rules propose, how often is the rules' proposal right if the outcome was 1, and how often if it was 0?
# :::
#
# :::{solution-start} ex-own-3
# :label: sol-own-3
# :class: dropdown
# :::
#
# Never, and sometimes. Who keeps the rows that "tell" keeps only proposals that were wrong.

# %% tags=["hide-input"]
proposed = mu.argmax(1)
other = action != proposed
right = proposed == labels
print(f"outcome 1: {right[other & (outcome == 1)].mean():.2f}")
print(f"outcome 0: {right[other & (outcome == 0)].mean():.2f}")
assert right[other & (outcome == 1)].sum() == 0 < right[other & (outcome == 0)].sum()

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Labels for a few
# :label: ex-own-4
#
# A colleague labels 100 rows of the log. Put a `label` on them and fit again. Are more rows of the gate's part judged now, and why is labelling the *gate's* rows worth more than labelling others?
# :::
#
# :::{solution-start} ex-own-4
# :label: sol-own-4
# :class: dropdown
# :::
#
# Yes: a labelled row is judged whatever was taken (the cell asserts it). In training an outcome already tells much of what a label does; for the gate an outcome of another option tells nothing.

# %% tags=["hide-input"]
some = [{**row, "label": options[y] if k % 12 == 0 else ""} for k, (row, y) in enumerate(zip(rows, labels, strict=True))]
mixed = fit(write("mixed.csv", some), folder / "mixed", config)
print(mixed.report["trained"])
print("rows that judge the gate:", report["gate"]["n"], "before,", mixed.report["gate"]["n"], "now")
assert mixed.report["gate"]["n"] > report["gate"]["n"]

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# Learning from logged decisions by weights, and the danger of weights that grow, is the subject of {cite:t}`swaminathan2015`; that weights may matter little to a model with
# enough capacity is shown by {cite:t}`byrd2019`. The survey weights behind (c) are those of {cite:t}`horvitz1952`. Why the verdict losses need no propensities is
# {prf:ref}`thm-behaviour`; how many outcomes a statement needs is {doc}`10_how_many_outcomes`; the mails are described in {doc}`21_data`.
