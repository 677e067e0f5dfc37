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
# # Fields that must agree
#
# **Question.** A policy answers each field of a ticket by itself. It calls a ticket critical and
# says that no human is needed, although everybody knows that a critical ticket needs one. What
# should be done with a rule that the policy does not know?
#
# **Answer.** Declare it, multiply the fields, strike out what the rule forbids and renormalise.
# No contradictory document is left, and where the rule holds in the world the joint log loss cannot
# rise: for RLCD it falls from {res}`42_fields:loss.rlcd.alone:.3f` to
# {res}`42_fields:loss.rlcd.rules:.3f`. The price is paid by the single fields, whose
# probabilities are moved. A second way to decode keeps them where they are and still keeps the rule: it gives
# {res}`42_fields:loss.rlcd.matched:.3f`. An overconfident policy is not mended by a rule.
#
# **After this page you can** declare rules between named fields, read off marginals, the
# best assignment and a number that says how much the policy contradicted the rules, and
# say when a rule helps, whom it harms, and what to do with a rule that has exceptions.
#
# **Running time.** About twenty seconds on one CPU core; a T4 or A100 makes no difference.

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

# %% mystnb={"figure": {"caption": "A test ticket on which the trained policy contradicts itself. Open: what its three answers, multiplied, say about severity and need of a human. Filled: after the rule. The struck cell is forbidden; the others grow in proportion.", "name": "fig-fields-ticket"}, "image": {"alt": "Dots for eight combinations of severity and needs-human, before and after the rule. The forbidden combination, critical without a human, has the largest probability of the product; after the rule it has none and the other seven are larger."}} tags=["hide-input"]
import itertools
import math
import textwrap
from fractions import Fraction

import numpy as np
import pandas as pd
import torch

from rlcd_core import plots
from rlcd_core.decider import Decider
from rlcd_core.extra.families.joint import FIELDS, SEEDS, joint_rows, joint_task
from rlcd_core.extra.grid import family_records
from rlcd_core.joint import (
    AtMostOne,
    Excludes,
    Implies,
    Joint,
    JointError,
    fit_weight,
)
from rlcd_core.metrics import auroc, paired_bootstrap
from rlcd_core.policy import TabularPolicy
from rlcd_core.records import Store, save_numbers
from rlcd_core.schema import Choice, Noul

plots.use_style()
BLUE, RED, GREEN = (plots.COLORS[k] for k in ("rlcd", "rlvr", "verdict"))
task, rows, store = joint_task(), joint_rows(), Store("joint_fields")
test = task.splits["test"]
assert (test.reshape(-1, 3) % 3 == [0, 1, 2]).all()  # a ticket is never split
tickets = [rows[i] for i in test[::3] // 3]
n = len(tickets)
questions = {name: tickets[0].items[name].question for name in FIELDS}
labels = {f: np.array([t.items[f].label for t in tickets]) for f in FIELDS}
truth = np.stack([t.joint for t in tickets]).reshape(n, -1)
rule = Implies(("severity", "critical"), ("needs_human", True))
joint = Joint(questions, [rule])
by_run = {(r.arm, r.seed): r for r in family_records("joint_fields")}


def read(arm, which=0):
    """Stated probabilities of a record on the test tickets, by field, (n, K)."""
    p = store.predictions(by_run[arm, which]).reshape(n, 3, -1)
    cut = {f: p[:, j, : len(questions[f].options)] for j, f in enumerate(FIELDS)}
    return {f: x / x.sum(1, keepdims=True) for f, x in cut.items()}


stated = read("rlcd")
alone = {f: x.argmax(1) for f, x in stated.items()}
first = joint.decode(stated)
contradicts = joint.broken(alone)[:, 0]
hardest = int(np.argmin(np.where(contradicts, first.log_kept, 1.0)))
one = {f: x[hardest] for f, x in stated.items()}

severities = questions["severity"].options
cells = [(s, h) for s in range(3, -1, -1) for h in (1, 0)]
product = np.array([one["severity"][s] * one["needs_human"][h] for s, h in cells])
kept = product * [(s, h) != (3, 1) for s, h in cells]
kept = kept / kept.sum()
fig, ax = plots.figure(height=3.9)
place = np.arange(len(cells))[::-1]
ax.hlines(place, product, kept, color=plots.INK, lw=1)
ax.plot(product, place, "o", color=BLUE, mfc="none", ms=8)
ax.plot(kept, place, "o", color=BLUE, ms=8)
names = [f"{severities[s]}, {'no human' if h else 'human'}" for s, h in cells]
ax.set_yticks(place, names)
ax.get_yticklabels()[0].set_color(RED)
plots.note(ax, "forbidden", product[0], place[0], xytext=(8, 0), color=RED)
_ = ax.set(xlim=(-0.02, 1.35 * product[0]), xlabel="probability of the combination")

# %% tags=["remove-cell"]
save_numbers(
    "42_fields",
    {
        "tickets": n,
        "train": len(task.splits["train"]) // 3,
        "seeds": len(SEEDS),
        "contradicts": int(contradicts.sum()),
        "ticket": {
            "critical": float(one["severity"][3]),
            "human": float(one["needs_human"][0]),
            "kept": float(np.exp(first.log_kept[hardest])),
        },
    },
)

# %% [markdown]
# ## A ticket that contradicts itself
#
# The tickets are synthetic, so that everything about them is known: a department, a severity, and
# whether a person is needed. *A critical ticket always needs a human*; any other needs one with
# probability .9 if the writer asks for a person and .1 if not. A decision head on a frozen
# sentence encoder was trained on {res}`42_fields:train` tickets with RLCD, one field at a time: it heard whether
# *one* answer about *one* field was right and never saw two fields together. Of the
# {res}`42_fields:tickets` test tickets its best answers contradict the rule on
# {res}`42_fields:contradicts`. Here is the one on which it contradicts it most.

# %%
state = tickets[hardest].items["severity"].state
print(textwrap.fill(state, 76))
for f, x in one.items():
    best = int(x.argmax())
    says, right = (questions[f].options[k] for k in (best, labels[f][hardest]))
    print(f"{f:12} {says:16} at {x[best]:.2f}; right: {right}")

# %% [markdown]
# Each answer may be defensible. Together they are not: critical with
# {res}`42_fields:ticket.critical:.2f` and a human with only {res}`42_fields:ticket.human:.2f`. A program that reads
# this document will page nobody for a ticket that it calls critical. The rule is one line, and `ask` takes it
# beside the questions. (The table below stands for the trained head: it repeats what the head said of
# this ticket.)

# %%
policy = TabularPolicy([(state, question) for question in questions.values()])
with torch.no_grad():
    for row, x in zip(policy.logits, one.values(), strict=True):
        row[: len(x)] = torch.tensor(np.log(x))
decider = Decider(policy)
answers = decider.ask(state, questions, rules=[rule])
for f, answer in answers.items():
    print(f"{f:12} {answer.confidence:.2f} {answer.value}")
print("together:", answers.assignment)
print(f"all right with {answers.confidence:.2f}, kept {math.exp(answers.log_kept):.2f}")

# %% [markdown]
# The answers come back under their names, as marginals that respect the rule. `assignment` is the most
# probable *combination*; it keeps every rule and need not consist of the best values of the marginals, which can break one
# ({ref}`ex-fields-1`). `confidence` is the chance that the whole document is right, the number for a gate.
# The last number is the share of the product's mass that the rule kept: the policy put the rest on
# what cannot be. The document now agrees with itself. It is not right for that: a rule does not know
# which of two contradicting answers was the mistake.
#
# ## What striking out means
#
# Let $p_f(y_f)$ be the answers and $Q(y) = \prod_f p_f(y_f)$ their product. The rules say which assignments
# are possible: a set $A$.
#
# :::{prf:theorem} The closest distribution that keeps the rules
# :label: thm-fields-projection
#
# If $Q(A) > 0$, then among all distributions $P$ with $P(A) = 1$ the divergence $\mathrm{KL}(P \,\|\, Q)$ is least for
#
# $$ Q_A(y) = \frac{Q(y)\, 1[y \in A]}{Q(A)} , $$ (eq-fields-condition)
#
# and only for it; the least value is $-\log Q(A)$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# On $A$, $Q = Q(A)\, Q_A$. So $\mathrm{KL}(P \,\|\, Q) = \sum_{y \in A} P(y) \log \frac{P(y)}{Q(A)\,Q_A(y)} = \mathrm{KL}(P \,\|\, Q_A) - \log Q(A)$
# for every such $P$ (both sides are infinite together), and the first term is least, 0, only for $P = Q_A$. $\square$
# :::
#
# :::{prf:theorem} What a true rule buys
# :label: thm-fields-loss
#
# If the truth $y$ keeps the rules, the joint log loss of $Q_A$ is that of $Q$ plus $\log Q(A)$: lower by exactly
# $-\log Q(A) \ge 0$, on every ticket, for every policy.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# $-\log Q_A(y) = -\log Q(y) + \log Q(A)$ for $y \in A$. $\square$
# :::
#
# Nothing is assumed of the policy. It may be honest, boastful or untrained; a rule that holds with
# certainty cannot make its joint log loss worse. And $-\log Q(A)$ needs no label: `log_kept` can be
# logged on live traffic, and says how many nats the declared rule was worth there. ({cite:t}`xu2018` train
# with it, as the *semantic loss*.)
#
# Exactness is cheap where rules touch few fields: `Joint` sums fields out one at a time,
# so that a table is only as large as the fields that a rule ties together. A chain of
# implications or "at most one of 200" is summed in small steps; where that takes too large
# a table it refuses. Rules that contradict each other are refused as well, by name:

# %%
flags = {f"flag {i:03}": Noul(f"Does it show sign {i}?") for i in range(200)}
many = Joint(flags, [AtMostOne([(name, True) for name in flags])])
rare = {name: [[0.02, 0.98]] for name in flags}
odds = 0.02 / 0.98
by_hand = 200 * math.log(0.98) + math.log1p(200 * odds)
print("2^200 assignments, log kept:", f"{many.decode(rare).log_kept[0]:.4f}")
print("by hand:                    ", f"{by_hand:.4f}")

wide = {f"f{i}": Choice(f"Field {i}?", [f"o{k}" for k in range(30)]) for i in range(6)}
tied = [Excludes((a, "o1"), (b, "o2")) for a, b in itertools.combinations(wide, 2)]
never = Excludes(("severity", "critical"), ("needs_human", True))
for fields, rules in ((wide, tied), (questions, [rule, never])):
    try:
        Joint(fields, rules)
    except JointError as error:
        print(textwrap.fill(str(error), 76))

# %% [markdown]
# ## What it does not buy
#
# The log loss of the *joint* cannot rise. Three things can get worse, and the reason is the same for all:
# {eq}`eq-fields-condition` treats the answers as independent witnesses and the rule as news. But a policy that was
# trained on outcomes in which the rule always held has *already* seen its effect, field by field.
# If it says "critical: .5" and means it, half of such tickets are critical, rule or no rule.
#
# :::{prf:proposition} Whom conditioning harms
# :label: prp-fields-harm
#
# Let the truth keep the rules.
#
# 1. If the marginal $p_f$ is honest, no change of it lowers the expected log loss or Brier score of field $f$, and every
#    real change raises both.
# 2. The Brier score of the joint can rise in expectation, even if all marginals are honest.
# 3. If a marginal is not honest, its error spreads: the log loss of an honest field can rise without bound.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# 1. Both scores are strictly proper ({prf:ref}`def-proper`).
#
# 2. Two yes-or-no fields, "first implies second", honest marginals $c \le h$. The truth is $(c, h - c, 1 - h)$ on (both, second alone,
#    neither). Let $v = c(1 - h)$ be the mass that the rule removes. The product differs from the truth by $\mp v$ on four cells: squared distance
#    $4 v^2$. The conditioned product differs by $-v(1 - c)$, $v(1 + h - c)$ and $-vh$, each over $1 - v$. At $c = \frac1{10}$, $h = \frac9{10}$
#    its squared distance is $\frac{486}{99^2 \cdot 100} \approx .000496$ against $.0004$, and expected Brier scores differ by the squared
#    distances.
#
# 3. "Critical" has probability $\frac12$ and says so; a human is stated with $\varepsilon$ where 1 is true. Conditioning states critical with
#    $\varepsilon / (1 + \varepsilon)$, and half the time that is what happens. $\square$
# :::
#
# Here is case 1 in the generator, and case 2 in fractions. The ticket is *high or critical*, a fair coin, and its writer does not ask for a
# person. So a human is needed with probability $.5 \cdot 1 + .5 \cdot .1 = .55$. A policy that knows all this states
# .5 and .55, and is honest in both.

# %%
coin = next(
    t
    for t in tickets
    if t.items["severity"].posterior[3] == 0.5
    and t.items["needs_human"].posterior[0] == 0.55
)
honest = {f: np.array([item.posterior]) for f, item in coin.items.items()}
told = joint.decode(honest)
for f in ("severity", "needs_human"):
    print(f"{f:12} {honest[f][0].round(3)} -> {told.marginals[f][0].round(3)}")

c, h = Fraction(1, 10), Fraction(9, 10)
world = np.array([[c, 0], [h - c, 1 - h]])  # [first is true, is false][second]
independent = np.outer([c, 1 - c], [h, 1 - h])
conditioned = independent * [[1, 0], [1, 1]]
conditioned = conditioned / conditioned.sum()
for name, x in (("product", independent), ("conditioned", conditioned)):
    distance = ((x - world) ** 2).sum()
    print(f"{name:12} squared distance from the truth {distance}")

# %% [markdown]
# Nobody who says "critical: .5" and is right should be corrected to {res}`42_fields:coin.critical:.2f`. But the joint is
# better all the same, because half a contradiction was worse. Can the rule be kept without moving the marginals?
#
# ## Keep the marginals instead
#
# Ask for the distribution closest to independence that keeps the rules *and* has the stated marginals. It has the form of
# {eq}`eq-fields-condition` with other factors, and is found by multiplying each field by the ratio of wanted to present
# marginal, over and over: iterative proportional fitting {cite:p}`deming1940`.
#
# :::{prf:theorem} Honest marginals should be kept
# :label: thm-fields-matched
#
# Let $P$ be the truth, $P(A) = 1$, with marginals $m_f$, let $Q = \prod_f m_f$ and let $R$ minimise $\mathrm{KL}(\cdot \,\|\, Q)$ over
# the distributions on $A$ that have the marginals $m$. Then the expected joint log loss of $R$ lies below that of $Q$ by
#
# $$ \mathrm{KL}(R \,\|\, Q) \ \ge\ -\log Q(A) , $$ (eq-fields-matched)
#
# at least as much as conditioning gains, and the scores of the single fields do not change.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# The set $E$ of distributions on $A$ with marginals $m$ is convex and compact, and not empty, since $P \in E$; $\mathrm{KL}(P \,\|\, Q) < \infty$, because where $P > 0$ all
# $m_f > 0$. So $R$ exists. Put $R_t = R + t(P - R)$, which has the right marginals for every $t$. If $P$ had mass where $R$ has none, the slope of
# $\mathrm{KL}(R_t \,\|\, Q)$ at $t = 0^+$ would be $-\infty$, against the choice of $R$. Hence $R_t$ is in $E$ for small negative $t$ too, the slope at 0 is 0, and it equals
# $\sum_y (P - R) \log (R / Q)$. So $\mathrm{KL}(P \,\|\, Q) - \mathrm{KL}(P \,\|\, R) = \sum_y P \log (R/Q) = \sum_y R \log (R/Q) = \mathrm{KL}(R \,\|\, Q)$, and the left side
# is the difference of the expected log losses. The bound is {prf:ref}`thm-fields-projection` for $R$. $\square$
# :::
#
# The equality is the Pythagorean theorem of {cite:t}`csiszar1975`. In the example it gives the truth itself:

# %% mystnb={"figure": {"caption": "The high-or-critical ticket, with exact answers in every field. Bars: the true joint probabilities. The product puts mass on the forbidden cell; conditioning moves it to the others in proportion; keeping the marginals puts it where it belongs.", "name": "fig-fields-coin"}, "image": {"alt": "Four combinations of severity and human. True values .5, 0, .05, .45. The product shows .275, .225, .275, .225; conditioning shows .355, 0, .355, .29; the matched joint lies on the true values."}} tags=["hide-input"]
fields, reached = joint.matched(honest)
assert reached.all()
spots = [(3, 0), (3, 1), (2, 0), (2, 1)]


def cell(p, conditioned=True):
    """Probabilities of the four combinations, (4,)."""
    s, k = (np.array(x) for x in zip(*spots, strict=True))
    if not conditioned:
        return p["severity"][0, s] * p["needs_human"][0, k]
    here = {f: np.repeat(x, 4, 0) for f, x in p.items()}
    there = np.full(4, honest["department"][0].argmax())
    with np.errstate(divide="ignore"):
        return np.exp(joint.log_prob(here, {"department": there, "severity": s, "needs_human": k}))


exact = np.array([coin.joint.sum(0)[s, k] for s, k in spots])
shown = {
    "product": (cell(honest, False), "o", plots.INK),
    "conditioned": (cell(honest), "s", plots.COLORS["broken"]),
    "marginals kept": (cell(fields), "D", GREEN),
}
assert np.allclose(shown["marginals kept"][0], exact, atol=1e-6)
fig, ax = plots.figure(height=3.6)
at = np.arange(4)[::-1]
ax.barh(at, exact, height=0.8, color=plots.INK, alpha=0.2)
for (name, (value, marker, color)), shift in zip(shown.items(), (0.25, 0, -0.25), strict=True):
    ax.plot(value, at + shift, marker, color=color, ms=7)
    plots.note(ax, name, value[3], at[3] + shift, color=color, xytext=(8, 0))
ax.set_yticks(at, [f"{severities[s]}, {'no human' if k else 'human'}" for s, k in spots])
_ = ax.set(xlim=(-0.01, 0.72), xlabel="probability of the combination")

# %% tags=["remove-cell"]
def nats(x):
    """Expected joint log loss above the entropy of the truth, in nats."""
    inside = exact > 0
    return float((exact[inside] * np.log(exact[inside] / x[inside])).sum())


save_numbers(
    "42_fields",
    {
        "coin": {
            "critical": float(told.marginals["severity"][0, 3]),
            "product": nats(shown["product"][0]),
            "conditioned": nats(shown["conditioned"][0]),
        }
    },
)

# %% [markdown]
# The product is {res}`42_fields:coin.product:.3f` nats above the best possible log loss, the conditioned one
# {res}`42_fields:coin.conditioned:.3f`, the matched one nothing. (With one implication between two fields the marginals leave no choice, so
# *every* correct method agrees; with more fields $R$ is a guess, the one that adds nothing.) `Joint.matched` also says where it cannot
# work: no joint has "critical: .6" and "human: .1" under the rule. There the policy is not honest, and conditioning is what is left.
#
# ## On held-out tickets
#
# Five ways to train the same head, {res}`42_fields:seeds` seeds each, one learning rate. For comparison: exact answers in every field, and RLCD's own answers made overconfident, with
# all logits times four. Three ways to decode. All is judged on
# the {res}`42_fields:tickets` test tickets with their drawn labels; intervals are 95 % from a bootstrap that resamples whole tickets, with all seeds of a ticket
# together.

# %%
options = [len(questions[f].options) for f in FIELDS]
every = dict(zip(FIELDS, np.indices(options).reshape(3, -1), strict=True))
allowed = ~joint.broken(every)[:, 0]
right = np.ravel_multi_index([labels[f] for f in FIELDS], options)
line = np.arange(n)
assert allowed[right].all()  # in this world the rule has no exception


def table(p):
    """The product over all 32 assignments, (n, 32)."""
    return np.prod([p[f][:, every[f]] for f in FIELDS], axis=0)


def strike(q):
    """What the rule leaves of it, renormalised."""
    return q * allowed / (q * allowed).sum(1, keepdims=True)


def judge(p, match=True):
    """Per ticket: log loss, Brier, and the top assignment's success, by way."""
    q = table(p)
    ways = {"alone": q, "rules": strike(q)}
    if match:
        fields, found = joint.matched(p, tolerance=1e-6, sweeps=300)
        ways["matched"] = strike(table(fields))
    result = {}
    for way, x in ways.items():
        top = x.argmax(1)
        result[way] = {
            "loss": -np.log(x[line, right]),
            "brier": (x**2).sum(1) - 2 * x[line, right] + 1,
            "exact": (top == right).astype(float),
            "broken": 1.0 - allowed[top],
        }
    return result, (1 - found.mean() if match else np.nan)


exactly = {f: np.array([t.items[f].posterior for t in tickets]) for f in FIELDS}
ARMS = ("warmup", "nll", "rlcd", "rlvr", "rlvr_loo")
runs = {"exact": [exactly]} | {arm: [read(arm, s) for s in SEEDS] for arm in ARMS}
# RLCD's own answers, inflated: logits times four.
loud = [{f: x**4 / (x**4).sum(1, keepdims=True) for f, x in p.items()} for p in runs["rlcd"]]
runs["loud"] = loud
label = {arm: plots.ARM_STYLE[arm].label for arm in ARMS}
label |= {"exact": "Exact answers", "loud": "RLCD, logits times 4"}
judged, unreached = {}, {}
for arm, ps in runs.items():
    found = [judge(p) for p in ps]
    unreached[arm] = float(np.mean([x for _, x in found]))
    judged[arm] = {
        way: {
            key: np.stack([r[way][key] for r, _ in found]) for key in found[0][0][way]
        }
        for way in found[0][0]
    }


def mean(arm, way, key):
    return float(judged[arm][way][key].mean())


def gap(arm, way, key, base="alone"):
    """Change against decoding alone, with its interval; whole tickets resampled."""
    first, second = (judged[arm][w][key] for w in (way, base))
    groups = np.tile(line, len(first))
    return paired_bootstrap(
        first.ravel(), second.ravel(), groups=groups, n_resamples=2000,
        rng=np.random.default_rng(seed),
    )  # fmt: skip


pd.DataFrame(
    {
        (name, way): {label[arm]: mean(arm, way, key) for arm in runs}
        for name, key in (("joint log loss", "loss"), ("joint Brier", "brier"))
        for way in ("alone", "rules", "matched")
    }
).round(3)

# %% mystnb={"figure": {"caption": "Change against decoding alone, with 95 % intervals: joint log loss above, joint Brier score below; to the left is better. Squares: the rule conditions the product. Diamonds: the marginals are kept.", "name": "fig-fields-gain"}, "image": {"alt": "Two panels of dots with intervals. For exact answers, the full-label, RLCD and warm-up heads both changes are negative, diamonds further left than squares. For the two RLVR heads conditioning changes nothing. For RLCD with logits times four conditioning lowers the log loss a little and raises the Brier score."}} tags=["hide-input"]
look = {"rules": ("s", plots.COLORS["broken"], 0.16), "matched": ("D", GREEN, -0.16)}
gaps = {
    (arm, way, key): gap(arm, way, key)
    for arm in runs
    for way in look
    for key in ("loss", "brier")
}
fig, axes = plots.figure(2, height=3.4)
at = np.arange(len(runs))[::-1]
for ax, key, name in zip(axes, ("loss", "brier"), ("joint log loss (nats)", "joint Brier score"), strict=True):
    ax.axvline(0, color=plots.INK, lw=1, ls=":")
    for way, (marker, color, shift) in look.items():
        for y, arm in zip(at, runs, strict=True):
            x = gaps[arm, way, key]
            ax.plot([x.low, x.high], [y + shift] * 2, color=color, lw=2)
            ax.plot(x.estimate, y + shift, marker, color=color, ms=6)
    ax.set_yticks(at, [label[arm] for arm in runs])
    ax.set(xlabel=f"change of {name}")

# %% [markdown]
# **The log loss** falls on every ticket where the product gave mass to what the rule forbids, as {prf:ref}`thm-fields-loss` says it must. That it falls *further* with kept
# marginals is not a theorem for a policy that is only nearly honest; here it does, for RLCD by
# {res}`42_fields:more.rlcd.loss:.4f` (matched minus conditioned). For the single fields the proposition's first case is at work:

# %%
def single(p, f):
    """Log loss of one field, (n,)."""
    return -np.log(p[f][line, labels[f]])


moved = {}
for arm in ("nll", "rlcd", "loud"):
    pairs = [(p, joint.decode(p).marginals) for p in runs[arm]]
    for f in ("severity", "needs_human"):
        before, after = (np.concatenate([single(p[i], f) for p in pairs]) for i in (0, 1))
        moved[arm, f] = before.mean(), after.mean(), paired_bootstrap(
            after, before, groups=np.tile(line, len(pairs)), n_resamples=2000,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
pd.DataFrame(
    {
        "alone": {(label[a], f): x[0] for (a, f), x in moved.items()},
        "with the rule": {(label[a], f): x[1] for (a, f), x in moved.items()},
        "change": {(label[a], f): f"{x[2]:.4f}" for (a, f), x in moved.items()},
    }
).round(3)

# %% [markdown]
# **Documents.** How often does the most probable document break the rule, and how often is it right in all three fields?

# %%
pd.DataFrame(
    {
        "contradicts": {label[a]: mean(a, "alone", "broken") for a in runs},
        "all right, alone": {label[a]: mean(a, "alone", "exact") for a in runs},
        "with the rule": {label[a]: mean(a, "rules", "exact") for a in runs},
        "marginals kept": {label[a]: mean(a, "matched", "exact") for a in runs},
        "not reached": {label[a]: unreached[a] for a in runs},
    }
).round(3)

# %% tags=["remove-cell"]
ways = ("alone", "rules", "matched")
wins = {
    way: int(
        sum(
            (judged[arm][way]["loss"].mean(1) < judged[arm]["alone"]["loss"].mean(1)).sum()
            for arm in ("nll", "rlcd")
        )
    )
    for way in ("rules", "matched")
}


def pair(x):
    return [float(x.low), float(x.high)]


more = {
    arm: {k: pair(gap(arm, "matched", k, "rules")) for k in ("loss", "brier")}
    for arm in ("nll", "rlcd", "loud", "warmup")
}
save_numbers(
    "42_fields",
    {
        **{
            name: {a: {w: mean(a, w, key) for w in ways} for a in runs}
            for name, key in (
                ("loss", "loss"), ("brier", "brier"), ("right", "exact"), ("broken", "broken")
            )
        },
        "gap": {
            key: {a: {w: pair(gaps[a, w, key]) for w in look} for a in runs}
            for key in ("loss", "brier")
        },
        "right_gap": {
            a: {w: pair(gap(a, w, "exact")) for w in look} for a in ("nll", "rlcd", "loud")
        },
        "more": more,
        "wins": wins,
        "wins_of": 2 * len(SEEDS),
        "moved": {
            a: {f: pair(moved[a, f][2]) for f in ("severity", "needs_human")}
            for a in ("nll", "rlcd", "loud")
        },
        "unreached": unreached,
        "human_true": float((labels["needs_human"] == 0).mean()),
        # Against the entropy of the truth, on the drawn labels.
        "price": mean("exact", "rules", "loss") + float(np.log(truth[line, right]).mean()),
        "price_matched": mean("exact", "matched", "loss")
        + float(np.log(truth[line, right]).mean()),
        "kept": {
            a: float(np.mean([joint.decode(p).log_kept.mean() for p in runs[a]])) for a in runs
        },
        "human": {
            a: float(np.mean([(p["needs_human"][:, 0] > 0.5).mean() for p in runs[a]]))
            for a in runs
        },
        "critical": {
            a: float(np.mean([(p["severity"].argmax(1) == 3).mean() for p in runs[a]]))
            for a in runs
        },
    },
)  # fmt: skip

# %% [markdown]
# - **The heads of the proper objectives gain, in every seed.** Conditioning changes RLCD's joint log loss by {res}`42_fields:gap.loss.rlcd.rules:.3f` and its joint Brier score by
#   {res}`42_fields:gap.brier.rlcd.rules:.3f`; keeping the marginals by {res}`42_fields:gap.loss.rlcd.matched:.3f` and {res}`42_fields:gap.brier.rlcd.matched:.3f`.
#   Of the {res}`42_fields:wins_of` runs of RLCD and of the full label {res}`42_fields:wins.rules` gain log loss by conditioning, as they must
#   ({prf:ref}`thm-fields-loss`), and {res}`42_fields:wins.matched` by keeping, which no theorem promises them.
# - **The single fields pay for conditioning.** RLCD's log loss of the severity changes by {res}`42_fields:moved.rlcd.severity:.3f`, of the need of a human by
#   {res}`42_fields:moved.rlcd.needs_human:.3f`. With kept marginals both changes are zero, wherever
#   a joint with these marginals exists.
# - **Overconfidence turns the rule into a bet.** With logits times four the joint log loss still falls, as it must, by little ({res}`42_fields:gap.loss.loud.rules:.3f`), and the joint
#   Brier score *rises* by {res}`42_fields:gap.brier.loud.rules:.4f`: of two contradicting fields the louder wins, right or wrong, and the
#   log loss of the need of a human changes by {res}`42_fields:moved.loud.needs_human:.2f`.
# - **RLVR does not contradict the rule, for a bad reason.** Both recipes answer "needs a human" on {res}`42_fields:human.rlvr:.0%` of the tickets, where
#   {res}`42_fields:human_true:.0%` do. Such a policy cannot break the rule, so the rule finds nothing to strike out: the joint log loss stays at {res}`42_fields:loss.rlvr.rules:.2f`.
#   A rule repairs contradictions between fields, not confidence within one.
# - **Documents.** Conditioning leaves the share that is right in all fields where it was (RLCD: {res}`42_fields:right_gap.rlcd.rules:.3f`); what it removes are the documents that are certainly wrong
#   somewhere, {res}`42_fields:broken.rlcd.alone:.1%` here. Keeping the marginals chooses better combinations: {res}`42_fields:right.exact.alone:.3f` becomes
#   {res}`42_fields:right.exact.matched:.3f` for exact answers, and RLCD changes by {res}`42_fields:right_gap.rlcd.matched:.3f`.
#
# ## A rule with exceptions
#
# Suppose one critical ticket in twenty turns out to need nobody. A hard rule gives such a ticket probability 0, and its log loss is infinite: one exception
# costs more than all that the rule ever earned. So let a broken rule cost a factor $e^{-w}$ instead. With $m = 1 - Q(A)$, the mass that breaks it,
#
# $$ Q_w(y) = \frac{Q(y)\, e^{-w\, 1[y \notin A]}}{1 - m + m e^{-w}} . $$ (eq-fields-soft)
#
# :::{prf:proposition} The weight that fits
# :label: prp-fields-soft
#
# Let the rule be broken at rate $v$, $0 < v < 1$, and let $m < 1$ on every ticket, as a softmax has it. The expected joint log loss of $Q_w$ minus that of $Q$ is $\mathbb{E} \log(1 - m + m e^{-w}) + w v$. It is convex
# in $w$, 0 at $w = 0$ and infinite for the hard rule. Its minimum is where the stated rate of violations is the true one,
# $\mathbb{E} \frac{m e^{-w}}{1 - m + m e^{-w}} = v$, and lies at some $w > 0$ with a negative value if and only if $\mathbb{E}\, m > v$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# The difference is read off {eq}`eq-fields-soft`. Write $s(w) = m e^{-w} / (1 - m + m e^{-w})$: the derivative is $v - \mathbb{E} s(w)$ and, since $s' = -s(1 - s)$, the
# second derivative is $\mathbb{E} s (1 - s) \ge 0$. At $w = 0$ the slope is $v - \mathbb{E} m$. As $w \to \infty$, $s \to 0$ and
# the slope tends to $v > 0$. If it is negative at 0, the function falls below 0 first and has its minimum at the $w > 0$ where the slope vanishes; if not, it never
# falls for $w > 0$. $\square$
# :::
#
# So the best weight cannot lose in expectation, and it solves one equation: `fit_weight`. We let exceptions happen to the labels
# of one critical test ticket in twenty, fit the weight of each RLCD run on half of the tickets and judge on the other half.

# %%
rng = np.random.default_rng([seed, 32])
human = labels["needs_human"].copy()
critical = labels["severity"] == 3
human[critical & (rng.random(n) < 0.05)] = 1
heard = {**labels, "needs_human": human}
breaks = joint.broken(heard)[:, 0]
half = rng.permutation(n) < n // 2


def softened(weight):
    return Joint(questions, [Implies(rule.given, rule.then, weight=weight)])


fit, soft_loss = [], {"alone": [], "soft": []}
for p in runs["rlcd"]:
    log_kept = joint.decode(p).log_kept
    fit.append(fit_weight(log_kept[half], breaks[half]))
    plain = Joint(questions, [])
    for name, how in (("alone", plain), ("soft", softened(fit[-1]))):
        soft_loss[name].append(-how.log_prob(p, heard)[~half])
groups = np.tile(np.flatnonzero(~half), len(fit))
won = paired_bootstrap(
    np.concatenate(soft_loss["soft"]), np.concatenate(soft_loss["alone"]),
    groups=groups, n_resamples=2000, rng=np.random.default_rng(seed),
)  # fmt: skip
hard = -joint.log_prob(runs["rlcd"][0], heard)[~half]
print(f"broken by {breaks.sum()} of {n} tickets")
print(f"fitted weights {min(fit):.2f} to {max(fit):.2f}")
print(f"joint log loss, soft minus alone: {won:.3f}")
print("hard rule:", hard.mean())

# %% mystnb={"figure": {"caption": "Joint log loss of RLCD against the weight of the rule, mean over the runs and the judged half, minus the loss without a rule. Blue: one critical ticket in twenty is an exception. Grey: no exceptions; the curve falls to the hard rule's gain. Dot: the mean fitted weight.", "name": "fig-fields-soft"}, "image": {"alt": "Two curves over the weight from 0 to 8. Without exceptions the change falls and levels off. With exceptions it falls at first, has a minimum near the fitted weight, and then rises in a straight line."}} tags=["hide-input"]
weights = np.linspace(0, 8, 33)
masses = [1 - np.exp(joint.decode(p).log_kept)[~half] for p in runs["rlcd"]]


def change(weight, rate):
    """Mean change of log loss at a weight, for a rate of exceptions."""
    log = [np.log1p(m * np.expm1(-weight)).mean() for m in masses]
    return float(np.mean(log) + weight * rate)


rate = breaks[~half].mean()
curves = {
    "with exceptions": (BLUE, [change(w, rate) for w in weights]),
    "without": (plots.INK, [change(w, 0) for w in weights]),
}
fig, ax = plots.figure(height=3.3)
ax.axhline(0, color=plots.INK, lw=1, ls=":")
for name, (color, curve) in curves.items():
    ax.plot(weights, curve, color=color)
    plots.note(ax, name, 3.6, np.interp(3.6, weights, curve), xytext=(-6, 18), ha="right", color=color)
ax.plot(np.mean(fit), change(np.mean(fit), rate), "o", color=BLUE, ms=8)
_ = ax.set(xlim=(0, 8), xlabel="weight of the rule", ylabel="change of joint log loss")

# %% tags=["remove-cell"]
save_numbers(
    "42_fields",
    {
        "soft": {
            "weight": float(np.mean(fit)),
            "odds": float(np.exp(np.mean(fit))),
            "gain": pair(won),
            "breaks": int(breaks.sum()),
        }
    },
)

# %% [markdown]
# The fitted weight is about {res}`42_fields:soft.weight:.1f`: a broken rule counts {res}`42_fields:soft.odds:.0f` times less. It changes the joint log loss by
# {res}`42_fields:soft.gain:.3f` against no rule at all, while the hard rule's mean is infinite because of a handful of tickets. Declare a rule hard only if you
# would call a counter-example a mistake in the data.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *`ask` conditions, and for honest policies the evidence is against it.* Conditioning is always defined and never loses joint log loss under a true rule; kept marginals did better
#   on log loss, Brier score and right documents, and do not exist (or were not reached) on {res}`42_fields:unreached.rlcd:.1%` of RLCD's tickets. Whoever acts on single fields (a gate on
#   "needs a human") should take the policy's own marginals, and leave `rules` to those who act on documents.
# - *A policy that sees its own earlier answers* would learn the rule from data, and more than the rule: every dependence, not only the certain ones. Here the fields are asked apart, so
#   that any order and any company of questions gives the same answer; that is a choice, and its price is {res}`42_fields:price:.3f` nats a ticket even with exact answers and conditioning.
# - *One rule, one generator.* The rule here holds by construction, and the posteriors are simple. With many rules conditioning moves marginals more; the theorems hold, the sizes do not carry over.
# - *Joint Brier.* In these data it falls with the log loss. {prf:ref}`prp-fields-harm` gives a case where it rises, and nothing but measuring tells which case one is in.
# - *Rules hide errors.* After decoding no document contradicts itself, so that a broken policy looks tidy. Log `log_kept`, and look when it moves.
# :::
#
# ## Exercises
#
# :::{exercise} Best one by one, best together
# :label: ex-fields-1
#
# Three services may be restarted, at most one at a time. The policy says yes with .6 for each. What are the marginals after the rule, what is the best assignment, and
# what does a program do that reads the marginals one by one? And if it says .75?
# :::
#
# :::{solution-start} ex-fields-1
# :label: sol-fields-1
# :class: dropdown
# :::
#
# None has weight $.4^3$, exactly one $.6 \cdot .4^2$ each. The marginals fall below one half, so reading them one by one restarts nothing; the best assignment restarts one. At .75
# the odds are 3, each marginal is $3/10$, and nothing changes but the confidence. Two answers, both keep the rule: which to take depends on whether the document or the field is acted on.

# %% tags=["hide-input"]
services = {name: Noul(f"Restart {name}?") for name in ("api", "web", "queue")}
one_of = Joint(services, [AtMostOne([(name, True) for name in services])])
for yes in (0.6, 0.75):
    found = one_of.decode({name: [[yes, 1 - yes]] for name in services})
    each = found.marginals["api"][0, 0]
    chosen = [name for name, pick in found.assignment.items() if pick[0] == 0]
    print(f"{yes}: each {each:.3f}; together: restart {len(chosen)}")
    ratio = yes / (1 - yes)
    assert abs(each - ratio / (1 + 3 * ratio)) < 1e-12 and len(chosen) == 1

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Is the kept mass an alarm?
# :label: ex-fields-2
#
# `log_kept` needs no label. For RLCD, does a low value point to tickets whose document (decoded alone) is wrong in one of the two fields of the rule? Compare with the plain
# confidence of the document.
# :::
#
# :::{solution-start} ex-fields-2
# :label: sol-fields-2
# :class: dropdown
# :::
#
# The area under the ROC curve says how well a number orders wrong before right. The kept mass carries some information, less than the confidence: it knows one kind of doubt only.

# %% tags=["hide-input"]
areas = []
for p in runs["rlcd"]:
    ok = np.all([p[f].argmax(1) == labels[f] for f in ("severity", "needs_human")], 0)
    sure = np.prod([p[f].max(1) for f in ("severity", "needs_human")], 0)
    areas.append([auroc(joint.decode(p).log_kept, ok), auroc(sure, ok)])
areas = np.array(areas)
print(f"kept mass {areas[:, 0].mean():.2f}, confidence {areas[:, 1].mean():.2f}")
assert (areas[:, 0] < areas[:, 1]).all()

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} No exception yet
# :label: ex-fields-3
#
# A rule was never broken on 200 held-out tickets, and the policy put .1 on breaking it each time. Should the weight be infinite? What does `fit_weight` say, and what is the stated rate of
# exceptions?
# :::
#
# :::{solution-start} ex-fields-3
# :label: sol-fields-3
# :class: dropdown
# :::
#
# Two hundred cases without a break are compatible with a rate of one in a hundred or so. `fit_weight` counts half a break among 201, a rate of about .0025. With equal masses the equation is
# solved by hand: $e^{-w} = \frac{.0025}{.9975} \cdot \frac{.9}{.1}$.

# %% tags=["hide-input"]
fitted = fit_weight(np.full(200, math.log(0.9)), np.zeros(200, bool))
few = 0.5 / 201
by_hand = -math.log(few / (1 - few) * 9)
print(f"weight {fitted:.3f}, by hand {by_hand:.3f}")
assert abs(fitted - by_hand) < 1e-9

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} The same rule in three dresses
# :label: ex-fields-4
#
# "Critical implies a human" can be written with `Implies`, `Excludes` or `AtMostOne`. Write all three, check that they decode alike, and say why `Joint` refuses two of them together.
# :::
#
# :::{solution-start} ex-fields-4
# :label: sol-fields-4
# :class: dropdown
# :::
#
# Each forbids the one pair (critical, no human). Hard, a second copy changes nothing; soft, it would double the weight in silence, so a rule is declared once.

# %% tags=["hide-input"]
dressed = [
    rule,
    Excludes(("needs_human", False), ("severity", "critical")),
    AtMostOne([("severity", "critical"), ("needs_human", False)]),
]
kept_by = [Joint(questions, [r]).decode(stated) for r in dressed]
for other in kept_by[1:]:
    assert np.array_equal(other.log_kept, kept_by[0].log_kept)
try:
    Joint(questions, dressed[:2])
except JointError as error:
    print(textwrap.fill(str(error), 76))

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# {cite:t}`csiszar1975` is the geometry of both theorems. {cite:t}`lauritzen1988` sum out connected fields locally, as `Joint` does.
# {cite:t}`deming1940` fitted tables to known margins in this way. {cite:t}`xu2018` use the kept mass as a training loss, where the rule
# teaches the fields instead of correcting them. What to do with the confidence of a document is the subject of {doc}`41_gates`.
