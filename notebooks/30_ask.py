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
# # Ask a question
#
# **The question.** What does it look like to ask a language model for a *decision* instead of a
# text, and what are its probabilities worth before anyone has trained them?
#
# **The answer.** One call, one forward pass, a typed answer with a probability for every
# declared option; and before training those probabilities are worth nothing:
# the model below is right on {res}`30_ask:accuracy:.0%` of tickets where guessing gives
# {res}`30_ask:chance:.0%`, while it claims {res}`30_ask:confidence:.0%`.
#
# **After this chapter you can** put typed questions to a small language model, read the answer
# as an object or as JSON, verify that questions do not influence each other, and run the two
# checks, chance and order, that any model must pass before its probabilities mean anything.
#
# **Running time.** About half a minute on two CPU cores, seconds on a T4 or A100. The first
# run converts the packaged SmolLM2-135M once.

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

import numpy as np
import pandas as pd

from rlcd_core import plots
from rlcd_core.data.triage import tickets
from rlcd_core.decider import Decider
from rlcd_core.evaluate import answers_by_order, order_sensitivity
from rlcd_core.policy.order import orders
from rlcd_core.records import save_numbers
from rlcd_core.schema import (
    Choice,
    Noul,
    SchemaError,
    Score,
    render_prefix,
    render_suffix,
)

plots.use_style()
decider = Decider.load()
model = decider.policy

# %% mystnb={"figure": {"caption": "Mean probability that the untrained model puts on each letter, over synthetic tickets of which every one is asked in all four rotations of its options. Over the four rotations the right option stands at every letter equally often, so an honest model's bars would be level at the dotted line.", "name": "fig-ask-letters"}, "image": {"alt": "Bar chart of the mean probability of the letters A to D. The bars are far from level, although each letter carries the right option equally often."}} tags=["hide-input"]
drawn = [
    item
    for item in tickets(40, np.random.default_rng(7))
    if isinstance(item.question, Choice)
][:16]
asked = [(item.state, item.question) for item in drawn]
answered = answers_by_order(model, asked, count=4)
# Back to what the model saw: column j is the probability of letter j.
seen = [
    (answer[order], order.index(item.label))
    for item, answers in zip(drawn, answered, strict=True)
    for answer, order in zip(answers, orders(item.question, 4), strict=True)
]
rows = np.stack([row for row, _ in seen])
right = np.array([place for _, place in seen])
letters = rows.mean(0)
fig, ax = plots.figure(height=3.0)
names = [f"letter {label}" for label in "ABCD"]
plots.plot_bars(ax, dict(zip(names, letters, strict=True)), "mean probability")
ax.axvline(0.25, color=plots.INK, lw=1, ls=":")
_ = ax.set(xlim=(0, None))

# %% [markdown]
# ## One ticket, three questions
#
# A support desk asks three things of every ticket: who gets it, how urgent is it, must somebody
# be woken. They are of three types. A `Choice` has unordered options, a `Score` ordered levels,
# a `Noul` is a yes/no question that answers with the probability of *true*.

# %%
ticket = {
    "from": "enterprise customer, tier 1",
    "report": "API latency is at 4 seconds; the load balancer returns 502.",
    "note": "All customers are affected.",
}
questions = {
    "department": Choice(
        "Which department should handle this ticket?",
        ["billing", "infrastructure", "security", "product support"],
    ),
    "priority": Score(
        "What is the priority of this ticket?",
        ["low", "normal", "high", "critical"],
    ),
    "page": Noul("Should an on-call engineer be paged immediately?"),
}
answers = decider.ask(ticket, questions)
for name, answer in answers.items():
    print(f"{name:11} {str(answer.value):16} at {answer.confidence:.2f}")

# %% [markdown]
# Each answer is an immutable object. It knows its whole distribution, two readings of
# confidence (the largest probability, and $1 - H(p)/\ln K$), and for a score the mean level on
# a scale from 0 to 1; `to_dict` is always valid JSON:

# %%
def short(value):
    """Round every number for the page."""
    text = json.dumps(value)
    return json.loads(text, parse_float=lambda t: round(float(t), 3))


print(json.dumps(short(answers["priority"].to_dict()), indent=1))

# %% [markdown]
# What the model read is an ordinary prompt. Nothing is generated: the next-token logits at its
# last position are read at the letters only, divided among the declared options, and done.

# %%
prompt = render_prefix(ticket) + render_suffix(questions["department"])
print("\n".join(textwrap.fill(line, 76) for line in prompt.splitlines()))

# %% [markdown]
# ## The answers are those of three separate prompts
#
# `ask` reads the ticket once and lets every question look at it. If questions could see each
# other, adding a fourth would move the first three. Check both claims:

# %%


def largest_gap(one, other):
    """Largest difference of a probability over the common names."""
    return max(
        np.abs(np.subtract(one[n].p, other[n].p)).max() for n in one if n in other
    )


alone = {n: decider.ask(ticket, [q])[0] for n, q in questions.items()}
fewer = decider.ask(ticket, {n: questions[n] for n in ("page", "department")})
shared_gap = largest_gap(answers, alone)
company_gap = largest_gap(answers, fewer)
print("equals three single prompts to 1e-5:", shared_gap < 1e-5)
print("unmoved by order and company, 1e-5: ", company_gap < 1e-5)
assert max(shared_gap, company_gap) < 1e-5

# %% [markdown]
# ## What the numbers are worth
#
# SmolLM2-135M was trained to chat, not to decide. To see what its probabilities mean, ask it
# about tickets whose right department is known, because a generator wrote them with one
# unmistakable cue each. Every ticket is asked four times, with the options rotated, so that each
# option stands at each letter once.

# %%
best = rows.argmax(1)
correct = best == right
mass = model.label_mass(model.prepare(asked[:4]).take(range(4)))
flips, distances = order_sensitivity(answered)
level = np.stack([answers.mean(0) for answers in answered])
level_correct = level.argmax(1) == [item.label for item in drawn]
summary = {
    "prompts": len(rows),
    "tickets": len(drawn),
    "chance": 0.25,
    "accuracy": float(correct.mean()),
    "confidence": float(rows.max(1).mean()),
    "commonest": float(np.bincount(best, minlength=4).max() / len(best)),
    "commonest_letter": "ABCD"[np.bincount(best, minlength=4).argmax()],
    "flips": float(flips.mean()),
    "distance": float(distances.mean()),
    "mass": float(mass.mean()),
    "averaged_accuracy": float(level_correct.mean()),
    "averaged_confidence": float(level.max(1).mean()),
    "three_best": max(answers.values(), key=lambda a: a.confidence).confidence,
}
save_numbers("30_ask", summary)
shown = {
    "accuracy": summary["accuracy"],
    "chance": summary["chance"],
    "mean confidence": summary["confidence"],
    "share of its favourite letter": summary["commonest"],
    "decision flips when options rotate": summary["flips"],
    "mean total variation": summary["distance"],
    "probability of all letters together": summary["mass"],
}
pd.DataFrame({"untrained SmolLM2-135M": shown}).round(2)

# %% [markdown]
# Read the table as a warning label:
#
# - Over {res}`30_ask:prompts` prompts the accuracy is {res}`30_ask:accuracy:.2f`; guessing
#   gives {res}`30_ask:chance:.2f`. The claimed confidence is {res}`30_ask:confidence:.2f`.
# - {res}`30_ask:commonest:.0%` of all decisions are the letter
#   {res}`30_ask:commonest_letter`, wherever the right option stands
#   ({numref}`fig-ask-letters`). The model reads the letter list, not the options.
# - Rotating the options changes the decision in {res}`30_ask:flips:.0%` of cases, and moves
#   {res}`30_ask:distance:.2f` of the probability on average. A probability that depends on the
#   order of a list is not a probability about the ticket.
# - Averaging over the four rotations removes the preference for a letter by construction: the
#   mean confidence falls to {res}`30_ask:averaged_confidence:.2f`, which is nearly honest about
#   knowing nothing, and the accuracy is {res}`30_ask:averaged_accuracy:.2f` on
#   {res}`30_ask:tickets` tickets. Averaging mends the bias, not the ignorance.
#
# Other letter readouts behave alike: on Qwen2.5-0.5B-Instruct the decision is reported to flip
# on about half of the BoolQ and MMLU items when options are reshuffled (published figures of
# the repository compared in the chapter on the sources). So a letter readout is a *starting
# point for training*, never a skill to claim.
#
# The decider averages over orders by itself when its policy is wrapped in
# `rlcd_core.policy.order.PermutationAverage`.
#
# ## What it refuses
#
# A wrong question should fail at once and say how to mend it:

# %%
faults = {
    "one option": lambda: Choice("Which queue?", ["billing"]),
    "the same option twice": lambda: Choice("Urgent?", ["Yes", "no", "yes "]),
    "an option of two lines": lambda: Choice("Which?", ["a\nb", "c"]),
    "no question": lambda: decider.ask(ticket, []),
    "an empty state": lambda: decider.ask("  ", questions),
}
for name, fault in faults.items():
    try:
        fault()
    except SchemaError as error:
        print(textwrap.fill(f"{name}: {error}", 76, subsequent_indent="  "))

# %% [markdown]
# :::{admonition} What would change my mind
# :class: warning
#
# - *{res}`30_ask:tickets` tickets are few.* They are enough to tell chance from competence and a
#   favourite letter from none; they are not enough to rank two models.
# - *Larger models read options better.* The published warm-ups of Qwen3-0.6B-Base pick the right
#   letter on most questions after a hundred supervised steps. Whether they are calibrated is
#   another matter, and the subject of this book.
# - *The prompt could be better.* A bias to letters can be reduced by wording. It should be
#   measured for every wording, which is what the table above is for.
# :::
#
# ## Exercises
#
# :::{exercise} The questions as a schema
# :label: ex-ask-1
#
# A service would rather send JSON. Ask for `department` and `page` with a JSON schema and show
# that the probabilities are those of the objects above.
# :::
#
# :::{solution} ex-ask-1
# :label: sol-ask-1
# :class: dropdown
#
# A string with an `enum` is a choice, a boolean is a yes/no question, and the description is
# the question:
# :::

# %% tags=["hide-input"]
schema = {
    "type": "object",
    "properties": {
        "department": {
            "type": "string",
            "description": questions["department"].text,
            "enum": list(questions["department"].options),
        },
        "page": {"type": "boolean", "description": questions["page"].text},
    },
}
by_schema = decider.ask(ticket, schema)
assert largest_gap(by_schema, answers) < 1e-5
print({name: answer.value for name, answer in by_schema.items()})

# %% [markdown]
# :::{exercise} How large must a sample be to call it chance?
# :label: ex-ask-2
#
# Rotations of one ticket are not independent. Give a 95 % interval for the accuracy that
# resamples whole tickets, and say whether it holds {res}`30_ask:chance:.2f`.
# :::
#
# :::{solution} ex-ask-2
# :label: sol-ask-2
# :class: dropdown
#
# Bootstrap over tickets, four prompts each:
# :::

# %% tags=["hide-input"]
from rlcd_core.metrics import bootstrap_interval, mean_statistic

ticket_of = np.repeat(np.arange(len(drawn)), 4)
found = bootstrap_interval(
    mean_statistic(correct.astype(float)),
    groups=ticket_of,
    rng=np.random.default_rng(0),
)
print(f"accuracy {found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]")

# %% [markdown]
# :::{exercise} A favourite letter is worth nothing on average
# :label: ex-ask-3
#
# Show that a policy which ignores the options and answers by letter alone has accuracy exactly
# $1/K$ over all $K$ rotations, whatever its letters' probabilities, and that its expected Brier
# score is smallest when the letters are level.
# :::
#
# :::{solution} ex-ask-3
# :label: sol-ask-3
# :class: dropdown
#
# Let $\ell$ be its distribution over letters. Over the rotations the right option stands at
# each letter once, so the mean probability of the right option is $\frac1K \sum_j \ell_j = 1/K$,
# and the favourite letter is right once in $K$. The expected Brier score is
# $\|\ell\|^2 - 2/K + 1$, which by Cauchy and Schwarz is smallest at $\ell_j = 1/K$, where it
# is $1 - 1/K$. Any favourite costs $\|\ell - 1/K\|^2$.
# :::

# %% tags=["hide-input"]
rng = np.random.default_rng(1)
letter = rng.dirichlet(np.ones(4))
truth = np.eye(4)
brier = np.mean([((letter - y) ** 2).sum() for y in truth])
assert np.isclose(np.mean([letter @ y for y in truth]), 1 / 4)
assert np.isclose(brier, 1 - 1 / 4 + ((letter - 1 / 4) ** 2).sum())
print(f"Brier {brier:.3f}, level letters {1 - 1 / 4:.3f}")

# %% [markdown]
# ## Further reading
#
# Why the probability of a string misleads about options is the subject of
# {cite:t}`holtzman2021`. What training with one bit of feedback makes of such a readout is
# shown, on a policy small enough for ten seeds, in {doc}`20_rater_bandit`.
