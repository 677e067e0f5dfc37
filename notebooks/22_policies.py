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
# # Policies: four ways to read a decision from a network
#
# **Question.** A network, a text, a question with declared options. What turns the network into
# one probability per option, and does the way of reading matter?
#
# **Answer.** It decides what the policy can and cannot do. Read by its letters, a 135M language model that was not
# trained for it gets {res}`22_policies:accuracy.letter:.0%` of {res}`22_policies:questions` six-way questions right;
# list the same options in another order, and {res}`22_policies:flips.letter:.0%` of its answers change. A
# decision head of {res}`22_policies:weights` weights on frozen sentence vectors gets
# {res}`22_policies:accuracy.head:.0%` after {res}`22_policies:head_labels` labels, cannot change its answer with the
# order, and is {res}`22_policies:ratio:.0f` times as fast. (The two differ in network and in labels too: order and
# cost are the readout's doing, the accuracy is not its alone.)
#
# **After this page you can** choose a readout by what it needs and what it cannot do, tell a
# preference for a letter from an opinion, correct for length and prior, and put any policy through
# the battery of checks before you train or trust it.
#
# **Running time.** About a quarter of a minute on a CPU with models and embeddings in the cache. The language
# model's answers and what was trained for longer come from a committed record (about a quarter of an hour of one thread);
# the chapter runs a few of them again.

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

# %% tags=["hide-input"]
import json
import textwrap
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from scipy.special import logsumexp, softmax

from rlcd_core import plots
from rlcd_core.arms import ARMS
from rlcd_core.calibrate import fit_temperature
from rlcd_core.data.build import load_items
from rlcd_core.data.triage import probe
from rlcd_core.env import LabelledEnv, RaterEnv
from rlcd_core.evaluate import order_sensitivity
from rlcd_core.metrics import (
    Interval,
    ece,
    ece_noise_floor,
    seed_interval,
    wilson_interval,
)
from rlcd_core.policy import (
    DecisionHead,
    Encoder,
    LetterPolicy,
    PermutationAverage,
    PolicyError,
    StatedPolicy,
    TabularPolicy,
    VerbatimPolicy,
    predict,
)
from rlcd_core.policy.adapt import lora, merge, trained
from rlcd_core.policy.stated import choice_log_probs, stated_confidence
from rlcd_core.records import results_dir, save_numbers
from rlcd_core.schema import render_prefix, render_suffix
from rlcd_core.scoring import brier
from rlcd_core.train import TrainConfig, train

plots.use_style()
record = json.loads((results_dir() / "policies.json").read_text())
asked = {item.id: item for item in load_items("trec", "test")}
asked = [asked[key] for key in record["ids"]]
items = [(item.state, item.question) for item in asked]
y = np.array(record["labels"])
assert [item.label for item in asked] == y.tolist()
options = items[0][1].options
orders = {
    name: [np.array(rows) for rows in answers]
    for name, answers in record["orders"].items()
}


def normal(p: np.ndarray) -> np.ndarray:
    """Rows that sum to 1 again after the rounding of the record."""
    return p / p.sum(-1, keepdims=True)


answers = {n: normal(np.array(p)) for n, p in record["answers"].items()}
letter_orders = normal(np.stack(orders["letter"]))  # (questions, orders, 6)
head_orders = normal(np.stack(orders["head"]))
colors = {"letter": plots.COLORS["broken"], "head": plots.INK}


def by_place(every_order: np.ndarray) -> np.ndarray:
    """Mean probability of each place in the list, over all rotations, (6,)."""
    n, turns, width = every_order.shape
    placed = np.empty_like(every_order)
    for turn in range(turns):
        step = width * turn // turns
        # In order `turn` place j shows option (j + step) mod 6.
        placed[:, turn] = np.roll(every_order[:, turn], -step, axis=1)
    return placed.mean((0, 1))


place = {"letter": by_place(letter_orders), "head": by_place(head_orders)}

# %% mystnb={"figure": {"caption": "Every option stands at every place once, so a policy to which places do not matter gives each of them one sixth. Mean probability by place over {res}`22_policies:questions` questions and six orders.", "name": "fig-policies-place"}, "image": {"alt": "Mean probability against place A to F. The head is flat at one sixth. The letter readout of the language model gives 0.44 to D, 0.28 to A and less than 0.1 to each of the others."}} tags=["hide-input"]
fig, ax = plots.figure(height=3.2)
x = np.arange(6)
for name, level in place.items():
    ax.plot(x, level, color=colors[name], marker="o")
ax.set_xticks(x, list("ABCDEF"))
ax.set(xlim=(-0.2, 5.2), ylim=(0, 0.5))
plots.note_ends(
    ax,
    [
        (5, place["letter"][5], "letter readout", colors["letter"]),
        (5, place["head"][5], "decision head", colors["head"]),
    ],
)
_ = ax.set(xlabel="place in the list", ylabel="mean probability")

# %% [markdown]
# ## One question, asked of a network
#
# The questions of this chapter are those of TREC, from the test part of the clean split
# ({doc}`21_data`): what kind of answer does a question ask for? A language model sees this text and
# must go on from its last word:

# %%
state, question = items[0]
print(render_prefix(state) + render_suffix(question))

# %% [markdown]
# A *policy* is whatever maps such a pair to probabilities over the question's own options. It has two
# methods: `prepare(items)` tokenises or embeds once, and `log_probs(batch)` gives a $(B, K)$ table. Where
# rows have fewer options than $K$, masked places carry exactly no mass:
#
# $$ \log p_k = z_k - \log \sum_{j \,:\, m_j} e^{z_j} , $$ (eq-masked-softmax)
#
# summed in 32 bits or more whatever type the network computes in. Training, evaluation and the decider know
# nothing else of a policy, so the four below are interchangeable:
#
# | policy | $z_k$ | needs | cannot |
# |---|---|---|---|
# | tabular | a free number per question and option | nothing | answer a question it was not built for |
# | letter readout | logit of the $k$-th label token at the last position | a causal language model | forget the order of the options |
# | verbatim | log-probability of the option's text | a causal language model | be cheap: one sequence an option |
# | decision head | $(W_q h_S + W_q h_Q)^\top W_k h_{C_k} / \sqrt r$ | a frozen encoder and labels or outcomes | compare options with each other |
#
# Three more are variations of these. The *masked readout* is the letter readout of an encoder with a language-model
# head: the label is what fills the gap at the end. It shares the letter policy's code and tests; no such model comes in
# a package that the book can ship, so there is no row of measurements for it. *Trained spans* are the decision head
# with an encoder that learns too, and the *stated confidence* lets a language model name a letter and then a digit for how sure it
# is. Both have their place below.
#
# ## Tabular: exact, and blind
#
# One free logit per option and question. It exists to check theory: nothing stands between an
# objective and its fixed point. Three tickets with a known posterior, one outcome at a time, reward $c - p_a$:

# %%
tickets = [
    group[0] for group in probe(1, np.random.default_rng(seed)).values()
]
known = [(t.state, t.question) for t in tickets]
table = TabularPolicy(known, dtype=torch.float64)
verdicts = np.zeros((3, 4), dtype=int)
for row, ticket in enumerate(tickets):
    # Ten imagined verdicts in the proportions of the posterior.
    share = np.round(10 * np.array(ticket.posterior)).astype(int)
    verdicts[row, : len(share)] = share
config = TrainConfig(
    learning_rate=0.05, outcomes=48_000, outcomes_per_step=48
)
env = RaterEnv(verdicts, seed)
train(
    table,
    table.prepare(known),
    np.arange(3),
    env,
    ARMS["rlcd"],
    config,
    seed,
)
p = predict(table, table.prepare(known))
far = max(
    np.abs(row[: len(t.posterior)] - t.posterior).max()
    for row, t in zip(p, tickets, strict=True)
)
print("largest distance from the posterior below .05:", bool(far < 0.05))

# %% [markdown]
# And a ticket that it has never seen is an error, not a guess:

# %%
try:
    table.prepare(items[:1])
except PolicyError as error:
    print(textwrap.fill(str(error), 70))

# %% [markdown]
# ## Letter readout: one token, read off
#
# Let $h$ be the last hidden state and $w_v$ the output matrix's row for token $v$. The letter readout multiplies $h$
# with the $K$ rows of the labels only:
#
# $$ p_k = \frac{e^{w_{\ell_k}^\top h}}{\sum_{j \le K} e^{w_{\ell_j}^\top h}} . $$ (eq-letter-readout)
#
# :::{prf:proposition} What the readout keeps and what it throws away
# :label: prp-label-mass
#
# Let $P$ be the model's next-token distribution and $M = \sum_{j \le K} P(\ell_j)$ the *label mass*. Then $p_k =
# P(\ell_k) / M = P(\ell_k \mid \text{a label comes next})$, and the Brier score of $p$ says nothing about $M$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# $P(\ell_k) = e^{w_{\ell_k}^\top h} / Z$ with the sum $Z$ over the vocabulary. In $P(\ell_k)/M$ it cancels and leaves
# {eq}`eq-letter-readout`. Multiplying all of the labels' probabilities by one factor changes $M$ and not $p$. $\square$
# :::
#
# So nothing is lost by skipping the rest of {res}`22_policies:vocabulary` rows of the output matrix, and a readout can look confident while the model
# means to say something else altogether. That is why label mass is reported. Three details decide whether
# the number means what it says, and all three are checked when a policy is built: each label must be *one* token
# where it will be read, no two labels the same token, and the model must not transform its logits afterwards.
#
# Below, the model runs now on all six orders of the first question, and once over its full vocabulary.

# %%
encoder = Encoder.load()  # of the decision head, below
letter = LetterPolicy.load()
average = PermutationAverage(letter, count=6)
first = items[:1]
now = predict(average, average.prepare(first), batch_size=1)[0]
batch = letter.prepare(first).take([0])
with torch.inference_mode():
    whole = (
        letter.model(input_ids=batch.inputs["ids"]).logits[0, -1].double()
    )
    rows_only = letter.log_probs(batch)[0].double()
labels = whole[letter.label_ids[:6]]
slow = labels - labels.logsumexp(0)
mass = float((labels.logsumexp(0) - whole.logsumexp(0)).exp())
pd.Series(
    {
        "label rows = full vocabulary, to 1e-5": bool(
            (slow - rows_only).abs().max() < 1e-5
        ),
        "mean over orders = record, to 1e-3": bool(
            np.abs(now - letter_orders[0].mean(0)).max() < 1e-3
        ),
        "label mass = record, to 1e-3": abs(mass - record["label_mass"][0])
        < 1e-3,
    },
    name="checked now",
).to_frame()

# %% [markdown]
# The model is SmolLM2-135M-Instruct {cite:p}`allal2025`, as a package ships it, in 32 bits and not trained
# further. Its label mass on these prompts is {res}`22_policies:label_mass:.2f` on average: it does answer with a letter.
# {numref}`fig-policies-place` shows which. Its answer to the first question, in each of the six orders
# (columns are options, wherever they stood):

# %%
short = [
    "abbreviation",
    "thing",
    "description",
    "person",
    "place",
    "number",
]
pd.DataFrame(
    letter_orders[0].round(3),
    columns=short,
    index=pd.Index([f"rotated by {k}" for k in range(6)], name="order"),
)

# %% [markdown]
# Follow the largest number from row to row: it stays at the fourth place, whatever stands there. Over all questions
# and orders {res}`22_policies:favourite:.0%` of the answers are "D". {cite:t}`zheng2024` find a milder form in twenty larger
# models and trace it to a prior for the letters themselves (here place and letter cannot be told apart). Larger models bind letters to options far better {cite:p}`robinson2023`; that binding is what
# a small model lacks, and no readout can supply it.
#
# ### Averaging over orders
#
# The obvious remedy is to ask in several orders and to average. Let $p^\sigma$ be the answer to order
# $\sigma$, brought back to the given order.
#
# :::{prf:proposition} Two averages
# :label: prp-order-average
#
# 1. *Arithmetic.* With $\bar p$ the mean of $p^\sigma$ over the orders asked, for every label $y$
#
#    $$ \frac1n \sum_\sigma \|p^\sigma - y\|^2 = \|\bar p - y\|^2 + \frac1n \sum_\sigma \|p^\sigma - \bar p\|^2 . $$ (eq-order-average)
#
#    So averaging lowers the Brier score by exactly the spread over orders, whatever is right.
# 2. *Logarithmic.* If place and option act separately, $\log p^\sigma_k = u_k + b_{\sigma(k)} + c_\sigma$ with
#    $\sigma(k)$ the place of option $k$, then the mean of $\log p^\sigma$ over all $K$ rotations is $u_k$ plus a constant:
#    the preference for places is gone.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1.* Write $p^\sigma - y = (p^\sigma - \bar p) + (\bar p - y)$ and expand the square; the cross terms sum to
# $2 (\bar p - y)^\top \sum_\sigma (p^\sigma - \bar p) = 0$. *2.* Over all rotations each option stands at each place
# once, so the mean of $b_{\sigma(k)}$ is the mean of $b$, for every $k$; the $c_\sigma$ are constants. $\square$
# :::

# %%
target = np.eye(6)[y]
each = ((letter_orders - target[:, None]) ** 2).sum(2)
mean = letter_orders.mean(1)
log_mean = softmax(np.log(letter_orders + 1e-12).mean(1), axis=1)
spread = ((letter_orders - mean[:, None]) ** 2).sum(2).mean(1)
gap = each.mean(1) - ((mean - target) ** 2).sum(1) - spread
assert np.abs(gap).max() < 1e-12
answers["letter_mean"], answers["letter_log_mean"] = mean, log_mean
pd.Series(
    {
        "one order, mean": each.mean(),
        "arithmetic mean": brier(mean, y).mean(),
        "log mean": brier(log_mean, y).mean(),
        "always 1/6": 1 - 1 / 6,
    },
    name="Brier",
).round(3).to_frame()

# %% [markdown]
# Averaging removes the confidence that was only a preference. What remains shows how much the model
# knew about the options, and it is little; the price is six times the work.
#
# ## Verbatim: how likely is each answer, written out
#
# The options need no letters if the model is asked how likely it is to *write* each. With tokens
# $t_1 \dots t_n$ of option $k$ after prompt $x$,
#
# $$ \begin{aligned} s_k &= \frac{1}{n^\alpha} \sum_i \left[ \log P(t_i \mid x, t_{<i})
#    - \lambda \log P(t_i \mid d, t_{<i}) \right] , \\ p &= \operatorname{softmax}(s) . \end{aligned} $$ (eq-verbatim)
#
# The options are not in the prompt, so their order cannot matter. What matters instead is what they look like. With
# $\alpha = 0$ a long option pays for each token; $\alpha = 1$ takes the mean. With $\lambda = 1$ the option's probability after
# the bare prompt $d$ ("Assistant: The answer is") is taken off, so that an option that is likely anywhere gains
# nothing from it {cite:p}`holtzman2021`. How often each variant chooses each option, next to how
# often it is right:

# %%
names = {
    "verbatim_sum": "sum",
    "verbatim_tokens": "per token",
    "verbatim_sum_prior": "sum − prior",
    "verbatim_tokens_prior": "per token − prior",
}
verbatim = VerbatimPolicy(letter.model, letter.encoder.tokenizer)
base, *long = verbatim.encoder.plain(["is", *(f"is {o}" for o in options)])
chosen = pd.DataFrame(
    {
        "tokens": [len(ids) - len(base) for ids in long],
        "right": np.bincount(y, minlength=6),
        **{
            text: np.bincount(answers[name].argmax(1), minlength=6)
            for name, text in names.items()
        },
    },
    index=options,
)
chosen

# %% tags=["hide-input"]
p_now = predict(verbatim, verbatim.prepare(first))[0]
p_then = answers["verbatim_tokens"][0]
print(
    "run now = record, to 1e-3:", bool(np.abs(p_now - p_then).max() < 1e-3)
)

# %% [markdown]
# Read the columns downwards. Each variant has favourites that hardly depend on the question, and the
# corrections exchange one set of favourites for another.
#
# ## Decision head: the network as a lens
#
# The fourth way does not ask the network to answer at all. A frozen encoder (MiniLM, 22.7M parameters,
# {cite:t}`wang2020`, trained for sentence similarity as in {cite:t}`reimers2019`) turns state, question and each
# option into a vector, and two small matrices compare them:
#
# $$ u_k = \frac{(W_q h_S + W_q h_Q)^\top (W_k h_{C_k})}{\sqrt r} , \qquad
#    p = \operatorname{softmax}(u) . $$ (eq-decision-head)
#
# $u_k$ sees no other option. So permuting the options permutes the answer, and adding one leaves the
# odds of the rest alone; that is item 4 of {prf:ref}`thm-plackett-luce`, by construction and not by training. The price
# stands in item 5 there: such a head cannot state the truth about "None of the above".
#
# Untrained it says $1/K$ everywhere. How many labels does it take?

# %% mystnb={"figure": {"caption": "Accuracy of the head on all {res}`22_policies:test_rows` test questions against the number of labels, mean and 95 % band over {res}`22_policies:seeds` seeds. Horizontal: the language model's readouts on their {res}`22_policies:questions` questions; they need no labels.", "name": "fig-policies-labels"}, "image": {"alt": "Accuracy rises from about 0.6 with 100 labels to about 0.81 with 2,000 and 0.85 with 4,000. Horizontal dashed lines for the readouts of the language model lie far below, between about 0.1 and 0.4."}} tags=["hide-input"]
counts = np.array([int(n) for n in record["learning"]])
counts.sort()
runs = {
    metric: np.array([record["learning"][str(n)][metric] for n in counts]).T
    for metric in ("accuracy", "brier", "ece")
}


def right(name: str) -> np.ndarray:
    """Whether each question is answered right, (questions,)."""
    return answers[name].argmax(1) == y


best_verbatim = max(names, key=lambda name: right(name).mean())
data = plots.prepare_curves(counts, {"nll": runs["accuracy"]})["nll"]
fig, ax = plots.figure(height=3.4)
ax.set(xscale="log", xlim=(100, 4000), ylim=(0, 1))
ax.fill_between(
    data.x, data.low, data.high, color=plots.INK, alpha=0.2, lw=0
)
ax.plot(data.x, data.mean, color=plots.INK, marker="o")
ends = [(4000, data.mean[-1], "decision head", plots.INK)]
for name, text in (
    ("letter", "letter"),
    ("letter_mean", "letter, mean"),
    (best_verbatim, "best verbatim"),
):
    level = right(name).mean()
    ax.axhline(level, color=colors["letter"], ls="--", lw=1.2)
    ends.append((4000, level, text, colors["letter"]))
ax.set_xticks(counts, [f"{n:,}" for n in counts], minor=False)
ax.set_xticks([], minor=True)
plots.note_ends(ax, ends)
_ = ax.set(xlabel="labels", ylabel="accuracy")


# %%
def cell(found: Interval) -> str:
    """An estimate with its 95 % interval, as tables print it."""
    return f"{found:.3f}"


cells = {
    f"{n:,}": {
        {"brier": "Brier", "ece": "ECE-15"}.get(metric, metric): cell(
            seed_interval(values[:, column])
        )
        for metric, values in runs.items()
    }
    for column, n in enumerate(counts)
}
pd.DataFrame(cells).T.rename_axis("labels")

# %% [markdown]
# Accuracy is not the whole story: the ECE has its own path, since a head with {res}`22_policies:weights` weights and a few hundred
# labels can be fitted to confidence before it is fitted to truth. The number of epochs was the same for all sizes
# and not tuned.
#
# ### Letting the encoder learn
#
# In `SpanHead` the same formula reads spans of an encoder that takes part in the training. State, question and
# each option still pass through it by themselves, so the two symmetries hold whatever it learns, and each distinct text of a batch is
# encoded once. Here the frozen head with its {res}`22_policies:head_labels` labels was the start, and two more passes over the same labels trained
# both, {res}`22_policies:spans.trained` weights. On all {res}`22_policies:test_rows` test questions, one seed, 95 % intervals by Wilson for the accuracy:


# %%
def out_of(right: int, n: int) -> str:
    """A share with its Wilson interval."""
    low, high = wilson_interval(right, n)
    return f"{right / n:.3f} [{low:.3f}, {high:.3f}]"


spans = record["spans"]
pd.DataFrame(
    {
        text: {
            "accuracy": out_of(spans[key]["right"], spans[key]["n"]),
            "Brier": f"{spans[key]['brier']:.3f}",
            "ECE-15": f"{spans[key]['ece']:.3f}",
        }
        for key, text in (("frozen", "encoder frozen"), ("both", "both trained"))
    }
).T

# %% [markdown]
# From the same labels accuracy rises from {res}`22_policies:spans.frozen:.2f` to {res}`22_policies:spans.both:.2f`: much of
# what the frozen head lacked was in the encoder, as far as one seed tells, and a part of the gain may be the two more
# passes, which the frozen head was not given. The price is that nothing can be embedded once and kept:
# every text costs a pass through the encoder each time it is asked about, in training also backwards.
#
# ### Saying how sure it is
#
# `StatedPolicy` reads two tokens: the letter, and after a line that asks for the confidence a digit $l$ from 0 to 9, which states $(l + \tfrac12)/10$.
# Its actions are pairs,
#
# $$ P(k, l) = p(k \mid x)\, p(l \mid x, \text{letter}_k, \text{cue}) , $$ (eq-stated-pairs)
#
# so the training loop needs nothing new for the rewards of {doc}`08_stated_confidence`. The sum over digits is
# the letter readout itself, which the first question shows live:

# %%
stated = StatedPolicy(letter)
with torch.inference_mode():
    pairs = stated.log_probs(stated.prepare(first).take([0]))
    alone = letter.log_probs(letter.prepare(first).take([0]))
said = stated_confidence(pairs)[0].numpy()
stated_record = record["stated"]
assert stated_record["choice"] == answers["letter"].argmax(1).tolist()
pd.Series(
    {
        "pairs sum to 1": abs(float(pairs.exp().sum()) - 1) < 1e-5,
        "summed over digits = letters": bool(
            (choice_log_probs(pairs) - alone).abs().max() < 1e-4
        ),
        "stated confidence = record, to 1e-3": abs(
            said[stated_record["choice"][0]] - stated_record["confidence"][0]
        )
        < 1e-3,
    },
    name="checked now",
).to_frame()

# %% [markdown]
# Untrained, the model states between {res}`22_policies:stated.low:.2f` and {res}`22_policies:stated.high:.2f` on all
# {res}`22_policies:questions` questions. Such a number can lie close to the accuracy by luck and have a small ECE; it still
# cannot tell right answers from wrong ones. What makes it honest, and what lures it into a trap, is the reward.
#
# ### Training a part
#
# A language model need not be trained as a whole. `top_layers(policy, n)` leaves only the last layers trainable,
# `lora(policy, rank)` puts a low-rank change beside each matrix {cite:p}`hu2022` and trains nothing else; checkpoints hold only what is trained, and `merge`
# adds the change into the matrices for export.

# %%
every = sum(w.numel() for w in letter.parameters())
before = predict(letter, letter.prepare(first))
lora(letter, rank=8)
share = trained(letter) / every
after = predict(letter, letter.prepare(first))
merge(letter)
print(f"trained: {share:.2%} of the weights")
print("answers before training unchanged:", bool(np.allclose(before, after)))

# %% [markdown]
# What such a change learns when it *is* trained stands in the table below: one pass over
# {res}`22_policies:lora.labels` labelled questions, {res}`22_policies:lora.trained` weights, and the options of each
# question in an order of its own, since a model that always meets the same order has no reason to read them. One rate,
# nothing tuned, one seed.
#
# ## The table
#
# All policies on the same {res}`22_policies:questions` questions. *Flips*: share of answers that change with the order of the
# options; *TV*: mean total variation between the orders. *CPU ms*: processor time of one question, alone, on one thread of
# {res}`22_policies:processor`, from text to probabilities; a shared machine, so read ratios and not digits.


# %%
def row_of(name: str, order_name: str, ms: float, label_mass: str) -> dict:
    """One row of the table."""
    p = answers[name]
    hits = right(name)
    low, high = wilson_interval(hits.sum(), len(hits))
    flips, moved = order_sensitivity(orders[order_name])
    rng = np.random.default_rng(seed)
    return {
        "accuracy": f"{hits.mean():.2f} [{low:.2f}, {high:.2f}]",
        "Brier": f"{brier(p, y).mean():.3f}",
        "ECE-15": f"{ece(p.max(1), hits):.3f}",
        "ECE by chance": f"{ece_noise_floor(p.max(1), rng=rng):.3f}",
        "flips": f"{flips.mean():.2f}",
        "TV": f"{moved.mean():.2f}",
        "label mass": label_mass,
        "CPU ms": f"{ms:.0f}" if ms >= 10 else f"{ms:.1f}",
    }


ms = record["ms"]
told = f"{np.mean(record['label_mass']):.2f}"
rows = {"letter": row_of("letter", "letter", ms["letter"], told)}
for name, text in (
    ("letter_mean", "mean"),
    ("letter_log_mean", "log mean"),
):
    rows[f"letter, {text} of 6 orders"] = row_of(
        name, "letter", 6 * ms["letter"], told
    ) | {"flips": "0.00", "TV": "0.00"}
for name, text in names.items():
    rows[f"verbatim, {text}"] = row_of(name, name, ms[name], "")
head_labels = f"{record['setup']['head_labels']:,}"
lora_labels = f"{record['lora']['labels']:,}"
rows[f"head, {head_labels} labels"] = row_of("head", "head", ms["head"], "")
rows["head, text embedded before"] = rows[f"head, {head_labels} labels"] | {
    "CPU ms": f"{ms['head_cached']:.1f}"
}
rows["head, spans trained too"] = row_of("spans", "spans", ms["spans"], "")
confidence = np.array(stated_record["confidence"])
by_chance = ece_noise_floor(confidence, rng=np.random.default_rng(seed))
rows[f"letter, LoRA, {lora_labels} labels"] = row_of(
    "lora", "lora", ms["letter"], f"{record['lora']['label_mass']:.2f}"
)
rows["letter, stated confidence"] = rows["letter"] | {
    "Brier": "",
    "ECE-15": f"{ece(confidence, right('letter')):.3f}",
    "ECE by chance": f"{by_chance:.3f}",
    "CPU ms": f"{ms['stated']:.0f}",
}
pd.DataFrame(rows).T

# %% [markdown]
# (The averages over all six rotations give the same answer to each rotation, so their flips are 0 by
# construction. The order columns of the verbatim rows come from four questions in two orders, those of the trained spans from eight. A stated confidence
# speaks about the chosen option alone, so it has no Brier score over options. The table of free logits has no row: it refuses new questions.)
#
# With {res}`22_policies:questions` questions the intervals are wide (on all {res}`22_policies:test_rows` test questions the
# head has {res}`22_policies:head_all:.2f`), and the ECE of a perfectly honest policy with the same
# confidences would be the number under "by chance". What they do settle: the head is far ahead of every readout of
# the language model, and none of those is clearly better than always giving the commonest answer,
# {res}`22_policies:commonest:.2f`. Taking the prior off did not help here: with the sum the policy grew surer and its
# Brier score worse.
#
# The row of the trained change is a null result and stays here as one. One pass over {res}`22_policies:lora.labels` questions took
# the false confidence away (Brier {res}`22_policies:lora.brier:.3f`, next to $5/6$ for always saying one sixth) and taught no reading: accuracy
# {res}`22_policies:lora.accuracy:.2f`, and {res}`22_policies:lora.flips:.0%` of the answers still change with the order. That is the plateau of
# {doc}`28_letters_from_scratch`: with shuffled options a model must learn to find and to know before either pays.
#
# This is a starting point for training and no verdict on language models: the head has seen labels
# and they, but for that row, have not.
#
# ## More options than letters
#
# After Z the labels go on with AA, AB and so on, as far as they are single tokens: {res}`22_policies:label_count` labels for this model. Two
# tasks with many options, each list in random order so that no place is better than another: the {res}`22_policies:many.trec_fine.options` fine kinds of
# the TREC questions, and {res}`22_policies:many.wordnet.options` nouns of which one fits a WordNet definition {cite:p}`fellbaum1998` (single words
# that do not occur in the definition; the nouns asked about are none of those that the head learnt from). Prompts hold up to
# {res}`22_policies:many.wordnet.tokens` tokens, so the limit of 512 that training runs keep does not apply here. The head
# had {res}`22_policies:many.labels` labels of the same task.

# %% tags=["hide-input"]
many = {}
for name, text in (
    ("trec_fine", "TREC, fine"),
    ("wordnet", "WordNet nouns"),
):
    found = record["many"][name]
    label, by_letter, by_head = (
        np.array(found[key]) for key in ("label", "letter", "head")
    )
    whole_test = found["head_all"]
    many[f"{text}, {found['options']} options"] = {
        "chance": f"{1 / found['options']:.3f}",
        "letters": out_of(int((by_letter == label).sum()), found["n"]),
        "commonest place": out_of(
            int(np.bincount(by_letter).max()), found["n"]
        ),
        "head": out_of(int((by_head == label).sum()), found["n"]),
        "head, all test rows": out_of(whole_test["right"], whole_test["n"]),
    }
pd.DataFrame(many)

# %% [markdown]
# Read the second and the third row together: in shuffled lists a policy that always takes one place is right as often as
# chance. The head sees neither letters nor places, and its answer costs one product more per option; a prompt that lists
# all options grows with every one of them, and so does the work of reading it.
#
# ## A posterior that is known
#
# The synthetic tickets of {doc}`21_data` have right probabilities by construction. `known_posterior` asks any policy fresh ones of three kinds: the
# cues of one department (the right answer has probability 1), of two departments that are equally likely (.5), and a ticket
# that is escalated with probability .9. Below: mean largest probability and mean total variation from the true
# posterior, with 95 % bootstrap intervals; {res}`22_policies:known_n.letter` tickets of each kind for the letters of the untrained language model,
# {res}`22_policies:known_n.head` for a head that saw {res}`22_policies:tickets` labelled tickets.

# %% tags=["hide-input"]
kinds = {
    "one_cue": "one cue",
    "two_cues": "two equal cues",
    "escalate": "escalate",
}
known_rows = {}
for row in zip(*record["known"].values(), strict=True):
    named = dict(zip(record["known"], row, strict=True))
    told_about = {"ideal": f"{row[0]['ideal']:.2f}"}
    for name, check in named.items():
        for key, text in (("confidence", "max p"), ("distance", "TV")):
            told_about[f"{name}, {text}"] = cell(Interval(**check[key]))
    known_rows[kinds[row[0]["kind"]]] = told_about
pd.DataFrame(known_rows)

# %% [markdown]
# Accuracy alone cannot pass here. Whoever is always sure is right as often as anybody on two equal cues, and half of
# the way from the truth. Any policy goes through this probe in one call, trained or not, before and after a run.
#
# ## The battery
#
# `rlcd_core.evaluate.battery` puts any policy through the same checks. Four have a limit and must pass. The rest
# measure, among them the five predictions of the Plackett–Luce view: order does not matter; a yes/no question about a
# pair agrees with the choice between the two (*binary equivalence*, asked both as "a rather than b" and as "b rather than a";
# *wordings* is how far the two are apart, since a policy that likes to say "true" cannot agree with both); the share of a in a and b is the same in the full
# list as in the pair (*pairwise consistency*) and with one option more (*irrelevant alternatives*), each as the mean difference of
# $p_a / (p_a + p_b)$; and calibration. 0 means that a prediction holds exactly. On {res}`22_policies:battery_n` questions:

# %%
columns = {}
for name in ("head", "spans", "letter", "lora"):
    for check in record["battery"][name]:
        value = f"{check['value']:.2g}" if check["value"] else "0"
        if check["limit"] is not None:
            value += ", passed" if check["passed"] else ", FAILED"
        elif check["interval"]:
            found = check["interval"]
            # No check can be negative; a reflected percentile of a few rows can.
            value += f" [{max(found['low'], 0):.2g}, {found['high']:.2g}]"
        columns.setdefault(name, {})[check["name"]] = value
pd.DataFrame(columns).rename_axis("check")

# %% [markdown]
# The head holds order, pairs and irrelevant alternatives to rounding, as it must. Binary equivalence it misses by
# more than the letter readout does: "true" and "false" are options that it never saw in training, nothing
# ties them to the choice, and a head that is to answer yes/no questions has to be trained on some. The letter readout
# holds none of these four. Its small gaps in the middle rows are no virtue: a policy that hardly reads the options hardly
# changes when they change. That options influence each other is no defect of code; for NOTA they must. The defect of the
# untrained model is that they do so by *place*.
#
# (Accuracy and calibration rows rest on {res}`22_policies:battery_n` questions here and say next to nothing; ask for more
# items before reading them.)
#
# For a model that is not yet a policy, `rlcd check MODEL` does the same from the command line before hours are spent: labels that are
# single distinct tokens, both paddings and the shared prefix against the plain path, the four checks with a limit, bf16 against 32
# bits, one training step that has to lower the loss, and how long a run would take. It ends with status 1 if a check fails.

# %% tags=["remove-cell"]
turned = [np.roll(letter_orders[:, t], -t, axis=1) for t in range(6)]
favourite = float((np.stack(turned).argmax(2) == 3).mean())
flips = {
    n: float(order_sensitivity(o)[0].mean()) for n, o in orders.items()
}
save_numbers(
    "22_policies",
    {
        "questions": len(y),
        "battery_n": record["battery"]["head"][0]["n"],
        "seeds": record["setup"]["seeds"],
        "test_rows": record["setup"]["test_rows"],
        "head_labels": head_labels,
        "accuracy": {name: float(right(name).mean()) for name in answers},
        "brier": {
            name: float(brier(p, y).mean()) for name, p in answers.items()
        },
        "flips": flips,
        "label_mass": float(np.mean(record["label_mass"])),
        "ms": ms,
        "ratio": ms["letter"] / ms["head"],
        "ratio_verbatim": ms["verbatim_tokens"] / ms["letter"],
        "weights": f"{sum(w.numel() for w in DecisionHead(encoder).parameters()):,}",
        "vocabulary": f"{letter.model.config.vocab_size:,}",
        "favourite": favourite,
        "head_all": float(runs["accuracy"][:, counts == 2000].mean()),
        "best_verbatim": float(right(best_verbatim).mean()),
        "commonest": float(np.bincount(y).max() / len(y)),
        "processor": record["hardware"]["processor"],
        "place": {name: float(p.max()) for name, p in place.items()},
        "spans": {
            "trained": f"{spans['trained']:,}",
            "frozen": spans["frozen"]["accuracy"],
            "both": spans["both"]["accuracy"],
        },
        "lora": {
            "labels": lora_labels,
            "trained": f"{record['lora']['trained']:,}",
            "accuracy": float(right("lora").mean()),
            "brier": float(brier(answers["lora"], y).mean()),
            "flips": float(order_sensitivity(orders["lora"])[0].mean()),
        },
        "stated": {
            "low": float(confidence.min()),
            "high": float(confidence.max()),
        },
        "label_count": len(letter.labels),
        "many": {
            "labels": f"{record['many']['wordnet']['head_labels']:,}",
            **{
                name: {
                    "options": told_many["options"],
                    "tokens": told_many["tokens"],
                    "place": float(
                        np.bincount(told_many["letter"]).max() / told_many["n"]
                    ),
                    "head": told_many["head_all"]["accuracy"],
                }
                for name, told_many in record["many"].items()
            },
        },
        "known_n": {
            name: rows[0]["confidence"]["n"]
            for name, rows in record["known"].items()
        },
        "tickets": f"{record['tickets']:,}",
    },
)

# %% [markdown]
# ## Which one to take
#
# - **Options fixed, labels or outcomes to learn from**: the head. It trains on the decision itself, which does not
#   make it calibrated by itself (its ECE above), and is cheap enough to train by the hundred, which is why the
#   results chapters use it.
# - **Options that change with each question, a large model at hand**: letters, with permutation averaging while you
#   measure flips, and trained with shuffled options before it is trusted.
# - **Options that are whole sentences**: verbatim, with length and prior correction chosen on held-out rows.
# - **A proof**: the table.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *A larger model.* {cite:t}`robinson2023` report that letters beat verbatim scoring once a model binds symbols well;
#   135M parameters are below that. These measurements say what a *small untrained* model does.
# - *Another prompt.* One wording, no examples. {cite:t}`zhao2021` show how much a prompt's bias can move and that subtracting it
#   helps; {ref}`ex-policies-2` tries it.
# - *Another task.* Kinds of question are close to what a sentence encoder measures. A question whose answer needs
#   reasoning across the text has no reason to be linear in a sentence vector.
# - *Few questions.* Differences among the untrained readouts are within their intervals.
# :::
#
# ## Exercises
#
# :::{exercise} Does label mass warn?
# :label: ex-policies-1
#
# If low label mass marked bad answers, the questions with the most label mass would be answered right more often.
# Compare the upper and the lower half.
# :::
#
# :::{solution} ex-policies-1
# :label: sol-policies-1
# :class: dropdown
#
# They were: all right answers lie in the upper half. But look at what the policy answers. In the given order it says "a person or group"
# to nearly every question, and questions about persons happen to have the higher mass; so the mass tells something
# about the question, and nothing about the answer, as {prf:ref}`prp-label-mass` allows. A correlation found on one
# task is no licence to use label mass as confidence.
# :::

# %% tags=["hide-cell"]
mass = np.array(record["label_mass"])
upper = mass >= np.median(mass)
halves = pd.DataFrame(
    {
        half: {
            "mean label mass": mass[rows].mean(),
            "accuracy": right("letter")[rows].mean(),
        }
        for half, rows in (("upper half", upper), ("lower half", ~upper))
    }
).T
person = options.index("a person or group")
for text, rows in (("persons", y == person), ("others", y != person)):
    halves.loc[f"about {text}"] = [
        mass[rows].mean(),
        right("letter")[rows].mean(),
    ]
said = (answers["letter"].argmax(1) == person).mean()
print(f'"a person or group" in {said:.0%} of the answers')
halves.round(3)

# %% [markdown]
# :::{exercise} Take the letters' prior off
# :label: ex-policies-2
#
# Estimate the preference for places as the mean of $\log p$ at each place over the first half of the questions (given
# order only), subtract it on the second half, and renormalise. Compare accuracy and Brier score there.
# :::
#
# :::{solution} ex-policies-2
# :label: sol-policies-2
# :class: dropdown
#
# The options always stand in the same order here, so place and option cannot be told apart: the subtraction also
# removes how common each kind of answer is. On these few questions it does as much as averaging six orders, at no
# extra forward pass; it needs questions like those to come, and six orders do not.
# :::

# %% tags=["hide-cell"]
log_p = np.log(answers["letter"])
half = len(y) // 2
prior = log_p[:half].mean(0)
corrected = softmax(log_p[half:] - prior, axis=1)
compared = {}
for text, p in (
    ("as read", answers["letter"][half:]),
    ("prior off", corrected),
):
    compared[text] = {
        "accuracy": (p.argmax(1) == y[half:]).mean(),
        "Brier": brier(p, y[half:]).mean(),
    }
assert np.abs(logsumexp(log_p, axis=1)).max() < 1e-9
pd.DataFrame(compared).T.round(3)

# %% [markdown]
# :::{exercise} Can a temperature save it?
# :label: ex-policies-3
#
# Fit a temperature for the letter readout on the first half, by Brier score, and apply it to the second. Which
# temperature comes out, and what does it mean when the Brier score ends near that of "always 1/6"?
# :::
#
# :::{solution} ex-policies-3
# :label: sol-policies-3
# :class: dropdown
#
# The search ends at its upper bound. A temperature keeps the order of the options, so accuracy stays. Driven to flatten everything, it says
# that confidence carried no information: the honest answer of such a policy is "I do not know". Calibration can be
# had without knowledge, and {doc}`02_calibration` is about that.
# :::

# %% tags=["hide-cell"]
fitted = fit_temperature(log_p[:half], y[:half], "brier")
cooled = fitted.apply(log_p[half:])
assert fitted.at_bound
print(f"T = {fitted.value:.3g}, the upper bound of the search")
print(
    f"Brier as read {brier(answers['letter'][half:], y[half:]).mean():.3f}"
)
print(f"Brier at T    {brier(cooled, y[half:]).mean():.3f}")
print(f"always 1/6    {5 / 6:.3f}")
assert (cooled.argmax(1) == log_p[half:].argmax(1)).all()

# %% [markdown]
# :::{exercise} Train a head and break its symmetry
# :label: ex-policies-4
#
# Train a head on 500 labels and ask it the test questions in reversed order. Do its answers change by more than
# rounding? Now replace each option by its letter, "A" to "F", in both orders. What has become of the symmetry, and of
# the accuracy?
# :::
#
# :::{solution} ex-policies-4
# :label: sol-policies-4
# :class: dropdown
#
# Not at all; the symmetry is in the architecture. A head that is shown letters for options is just as symmetric in
# *letters*, so it follows the letter and not what it stands for: with the order reversed, "A" means another option
# and the head is wrong where it was right.
# :::

# %% tags=["hide-cell"]
learn, test = load_items("trec", "train")[:500], load_items("trec", "test")
letters = tuple("ABCDEF")


def asks(
    rows: list, names: tuple[str, ...] = options, turn: int = 1
) -> list:
    """Items with options called `names`, listed forwards or backwards."""
    shown = tuple(names[::turn])
    return [(i.state, replace(i.question, options=shown)) for i in rows]


labels_500 = np.array([i.label for i in learn])
truth = np.array([i.label for i in test])
outcome = {}
for text, names_shown in (("names", options), ("letters", letters)):
    head = DecisionHead(encoder)
    prepared = head.prepare(asks(learn, names_shown))
    env = LabelledEnv(np.eye(6, dtype=int)[labels_500], seed)
    config = TrainConfig(1e-3, outcomes=2500, outcomes_per_step=20)
    train(head, prepared, np.arange(500), env, ARMS["nll"], config, seed)
    given = predict(head, head.prepare(asks(test, names_shown)))
    # Letters keep their places when what they stand for is reversed.
    turned = names_shown if text == "letters" else options[::-1]
    back = predict(head, head.prepare(asks(test, turned)))[:, ::-1]
    outcome[text] = {
        "right": (given.argmax(1) == truth).mean(),
        "right, reversed": (back.argmax(1) == truth).mean(),
        "moved": np.abs(given - back).max(),
    }
assert outcome["names"]["moved"] < 1e-5
assert (
    outcome["names"]["right"] > 0.65 and outcome["letters"]["right"] > 0.65
)
assert outcome["letters"]["right, reversed"] < 0.35
print("names: symmetric; letters: right in one order, wrong in the other")

# %% [markdown]
# ## Further reading
#
# {cite:t}`zheng2024` on letters and their prior, with a remedy that needs few permutations; {cite:t}`robinson2023`
# for letters over verbatim scoring in large models; {cite:t}`holtzman2021` on why the likeliest string is not the best answer;
# {cite:t}`zhao2021` on calibrating a prompt before use. The theory of symmetric heads is {doc}`07_plackett_luce`. The same
# policies answer several questions about one text in {doc}`40_ask`.
