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
# **Question.** What does it look like to ask a language model for a *decision* instead of a
# text, and what are its probabilities worth before anyone has trained them?
#
# **Answer.** One call, one reading of the ticket, a typed answer with a probability for every
# declared option; and before training those probabilities are worth nothing. The model below
# names the same letter whatever stands beside it, so it is right on {res}`40_ask:accuracy:.0%` of
# prompts, where guessing gives {res}`40_ask:chance:.0%`, while it claims {res}`40_ask:confidence:.0%`.
#
# **After this page you can** put typed questions to a small language model, read the answer
# as an object or as JSON, verify that questions do not influence each other, say what one
# reading of the state saves, ask with a thousand options, and run the two checks, chance and
# order, that any model must pass before its probabilities mean anything.
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
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd

from rlcd_core import plots
from rlcd_core.data.triage import tickets
from rlcd_core.decider import Decider
from rlcd_core.evaluate import answers_by_order, order_sensitivity
from rlcd_core.extra.bulk import score_file
from rlcd_core.policy import Finalists, PermutationAverage
from rlcd_core.policy.order import orders
from rlcd_core.records import results_dir, save_numbers
from rlcd_core.schema import (
    Choice,
    Noul,
    SchemaError,
    Score,
    render_prefix,
    render_suffix,
)

plots.use_style()
measured = json.loads((results_dir() / "decider.json").read_text())
bulk = json.loads((results_dir() / "score.json").read_text())
served = json.loads((results_dir() / "service.json").read_text())
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
# ## One reading of the state
#
# Three prompts that begin with the same ticket need not read it three times. The decider knows
# three ways, and each gives every question the probabilities of its own full prompt:
#
# - **plain**: one prompt after the other, or in a batch;
# - **shared prefix**: one pass over the state keeps its keys and values; a second pass lets all
#   questions attend to them and to themselves. Nothing is ever written to what was kept;
# - **tree**: one pass over one sequence, the state and then the questions. Where prompts begin
#   alike they share tokens, positions start again at each branch, and a mask hides every branch
#   from the others ({numref}`fig-ask-tree`).

# %% mystnb={"figure": {"caption": "The packed sequence of the ticket and its three questions, and what each token may see: rows look at the coloured columns. All questions see the ticket, none sees another question.", "name": "fig-ask-tree"}, "image": {"alt": "A square mask. A triangle on top left is the state. Below it three bands, one for each question, cover the columns of the state; each band ends in a triangle of its own, and the squares between the questions are empty."}} tags=["hide-input"]
shared = model.share(ticket, list(questions.values()))
(_, tree), *_ = shared.trees
sizes = [len(node) for node in tree.nodes]
begins = np.cumsum([0, *sizes])
owners = {
    n: [i for i, path in enumerate(tree.paths) if n in path] for n in range(len(sizes))
}
paint = [plots.COLORS[name] for name in ("rlcd", "verdict", "label")]
fig, ax = plots.figure(height=4.4)
for node in range(len(sizes)):
    low, high = begins[node], begins[node + 1]
    common = len(owners[node]) > 1
    color = plots.COLORS["control"] if common else paint[owners[node][0]]
    ax.fill([low, low, high], [low, high, high], color=color, alpha=0.85, lw=0)
    above = tree.parents[node]
    while above >= 0:
        first, last = begins[above], begins[above + 1]
        ax.fill(
            [first, last, last, first],
            [low, low, high, high],
            color=color,
            alpha=0.35,
            lw=0,
        )
        above = tree.parents[above]
for name, path, color in zip(questions, tree.paths, paint, strict=True):
    middle = (begins[path[-1]] + begins[path[-1] + 1]) / 2
    plots.note(ax, name, middle + 3, middle - 5, color=color)
plots.note(ax, "ticket", begins[1] / 2 + 3, begins[1] / 2 - 5)
ax.set(xlim=(0, begins[-1] * 1.2), ylim=(begins[-1], 0), aspect="equal")
_ = ax.set(xlabel="token that is seen", ylabel="token that looks")

# %% [markdown]
# Which way is cheapest is a question of counting. A pass costs as much as some tens of tokens, an
# attention score very little, but the mask of a tree has one for every pair of tokens, hidden or
# not. The rule of `CostRule` adds the three up and takes the least; one question in one order
# always takes the plain path. Its two constants are measured, not guessed. On the
# {res}`40_ask:rule_cases` cases from which they come the chosen way was {res}`40_ask:rule_regret:.1%` slower than
# the best one on average, {res}`40_ask:rule_worst:.1%` at worst ({numref}`fig-ask-rule`); other cases
# were not timed.

# %%
plan = decider.plan(ticket, list(questions.values()))
for way, work in plan.works.items():
    cost = decider.rule.cost(work)
    print(f"{way:7} tokens {work.tokens:4}  passes {work.passes}", end="  ")
    print(f"cost {cost:.0f}", "<- chosen" if way == plan.way else "")

# %% mystnb={"figure": {"caption": "Measured time of the shared prefix over that of the tree. Above the dotted line the tree is faster. Filled: the rule takes the tree; open: it takes the shared prefix.", "name": "fig-ask-rule"}, "image": {"alt": "Three curves, for 2, 8 and 24 questions, over the length of the state. They start above 1 and fall as the state grows."}} tags=["hide-input"]
cells = pd.DataFrame(measured["rule"]["rows"])
fig, ax = plots.figure(height=3.2)
ends = []
for (count, rows_of), color in zip(cells.groupby("questions"), paint, strict=True):
    ways = [row["ways"] for _, row in rows_of.iterrows()]
    ratio = [way["shared"]["seconds"] / way["tree"]["seconds"] for way in ways]
    ax.plot(rows_of["state"], ratio, color=color)
    fill = [color if chosen == "tree" else "none" for chosen in rows_of["chosen"]]
    ax.scatter(rows_of["state"], ratio, c=fill, edgecolors=color, zorder=3)
    ends.append((rows_of["state"].iloc[-1], ratio[-1], f"{count} questions", color))
plots.note_ends(ax, ends)
ax.axhline(1, color=plots.INK, lw=1, ls=":")
ax.set(xlabel="tokens of the state", ylabel="shared / tree", xscale="log")
states = sorted(set(cells["state"]))
ax.set_xticks(states, [str(size) for size in states])
_ = ax.set_xticks([], minor=True)

# %% tags=["hide-input"]
ratios = measured["ratios"]
half = measured["bf16"]
from_record = {
    "speed_state": ratios["ask_8"]["state_tokens"],
    "speed_8": ratios["ask_8"]["over_one_by_one"],
    "speed_64": ratios["ask_64"]["over_one_by_one"],
    "speed_share_8": ratios["ask_8"]["share_of_limit"],
    "speed_share_64": ratios["ask_64"]["share_of_limit"],
    "rule_cases": len(measured["rule"]["rows"]),
    "rule_regret": measured["rule"]["mean_regret"],
    "rule_worst": measured["rule"]["largest_regret"],
    "half_prompts": half["prompts"],
    "half_shared": half["over_plain"]["shared"],
    "half_tree": half["over_plain"]["tree"],
    "half_error": max(half["over_plain_standard_error"].values()),
    "order_questions": measured["orders"]["questions"],
    "order_time": ratios["orders_4_over_one"],
    "fine_options": measured["fine"]["options"],
    "fine_chance": measured["fine"]["chance"],
    "fine_n": measured["fine"]["head"]["n"],
    "fine_head": measured["fine"]["head"]["accuracy"],
    "fine_second": measured["fine"]["head_then_second_head"]["accuracy"],
    "fine_reach": measured["fine"]["reach_last_stage"],
    "fine_error": measured["fine"]["head"]["standard_error"],
    "staged_rows": measured["fine"]["few"]["head"]["n"],
}
speed = pd.DataFrame(
    {
        f"{n} questions": {
            "one by one": ratios[f"ask_{n}"]["over_one_by_one"],
            "plain transformers": ratios[f"ask_{n}"]["over_transformers"],
            "constrained generation": ratios[f"ask_{n}"]["over_constrained"],
            "outlines": ratios[f"ask_{n}"]["over_outlines"],
            "limit by counting tokens": ratios[f"ask_{n}"]["limit"],
            "share of that limit": ratios[f"ask_{n}"]["share_of_limit"],
        }
        for n in (8, 64)
    }
)
speed.rename_axis("times faster than").round(2)

# %% [markdown]
# On a state of {res}`40_ask:speed_state` tokens and one CPU core, eight questions are answered
# {res}`40_ask:speed_8:.1f` times faster than one by one, {res}`40_ask:speed_share_8:.0%` of
# what counting tokens allows: $m(S + q)/(S + mq)$ for $m$ questions of $q$ tokens on a state of $S$.
# 64 questions are {res}`40_ask:speed_64:.0f` times faster ({res}`40_ask:speed_share_64:.0%`). The rows
# between are other ways to ask one question after the other: the bare model read at its letters, its
# constrained generation, and the library outlines, each of which reads every prompt anew; the last two
# return an option without its probability. In bfloat16, over
# {res}`40_ask:half_prompts` prompts, the mean error against float32 is
# {res}`40_ask:half_shared:.2f` times (shared) and {res}`40_ask:half_tree:.2f` times (tree) that
# of the plain path, give or take {res}`40_ask:half_error:.2f`.
#
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
save_numbers("40_ask", summary | from_record)
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
# - {res}`40_ask:commonest:.0%` of all decisions are the letter
#   {res}`40_ask:commonest_letter`, wherever the right option stands
#   ({numref}`fig-ask-letters`). The decision comes from the letter list, not from the options.
# - So over {res}`40_ask:prompts` prompts the accuracy is {res}`40_ask:accuracy:.2f`, exactly what guessing
#   gives ({ref}`ex-ask-3`). The claimed confidence is {res}`40_ask:confidence:.2f`.
# - Rotating the options changes the decision in {res}`40_ask:flips:.0%` of cases, and moves
#   {res}`40_ask:distance:.2f` of the probability on average. A probability that depends on the
#   order of a list is not a probability about the ticket.
# - Averaging over the four rotations removes the preference for a letter by construction: the
#   mean confidence falls to {res}`40_ask:averaged_confidence:.2f`, which is nearly honest about
#   knowing nothing, and the accuracy is {res}`40_ask:averaged_accuracy:.2f` on
#   {res}`40_ask:tickets` tickets. Averaging mends the bias, not the ignorance.
#
# Another untrained letter readout, Qwen2.5-0.5B-Instruct, is reported to flip on about half of the
# BoolQ and MMLU items when options are reshuffled (as published by rlcd-lite, one of the sources of
# {doc}`11_four_things`). So take a letter readout as a *starting point for training*, not as a skill.
#
# Averaging is one wrapper, `PermutationAverage(policy, 4)`, and reads the state once for all
# orders. What it buys, on {res}`40_ask:order_questions` questions with six options (TREC), each
# asked in all six rotations:

# %% tags=["hide-input"]
by_count = {
    count: measured["orders"][f"arithmetic_{count}"]
    | {"flips, log mean": measured["orders"][f"log_{count}"]["flips"]}
    for count in (1, 2, 3, 6)
}
pd.DataFrame(by_count).T.rename_axis("orders").rename(
    columns={"distance": "total variation"}
).round(2)

# %% [markdown]
# With all six rotations a decision cannot depend on where the list began, by construction; with
# fewer, decisions still flip, though over less probability. Four orders of one question on a state of
# {res}`40_ask:speed_state` tokens cost {res}`40_ask:order_time:.2f` times one order.
#
# ## More options than letters
#
# A model has a few hundred labels that are single tokens, and a list of a thousand options would
# not fit its window. `Finalists` chooses in stages: either another policy scores all options
# apart and the best go to the final, or the options are split into groups and the best of each
# group go there. Those who leave keep their odds against the finalists of their group, so that
# no declared option vanishes.
#
# :::{prf:theorem} Stages change nothing for a policy that obeys Luce's axiom
# :label: thm-ask-stages
#
# Let $p_S(k) \propto e^{u_k}$ on every set $S$ of options. Split the options into groups $g$, take
# any non-empty finalists $F_g \subseteq g$, and let $f = p_F$ on $F = \bigcup_g F_g$. Then the
# distribution proportional to $w_k = f_k$ for $k \in F$ and
# $w_k = p_g(k) \sum_{j \in F_g} f_j / \sum_{j \in F_g} p_g(j)$ for the other $k \in g$ is
# the one-stage distribution.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# Write $Z_A = \sum_{j \in A} e^{u_j}$. Then $f_k = e^{u_k}/Z_F$, and for $k \in g \setminus F_g$
#
# $$w_k = \frac{e^{u_k}}{Z_g} \cdot \frac{Z_{F_g}/Z_F}{Z_{F_g}/Z_g} = \frac{e^{u_k}}{Z_F}.$$
#
# So $w_k = e^{u_k}/Z_F$ for every $k$, which is proportional to $e^{u_k}$. $\square$
# :::
#
# A decision head obeys the axiom, so that stages cost it nothing ({prf:ref}`thm-plackett-luce`);
# a letter readout does not, and whether a second stage helps has to be measured. The first table
# has the {res}`40_ask:fine_options` kinds of answer of TREC (chance
# {res}`40_ask:fine_chance:.2f`), the second asks which of 151 or
# 1,000 nouns a WordNet definition defines.

# %% tags=["hide-input"]
fine, words = measured["fine"], measured["words"]
shown = {}
for name, row in (
    ("head alone", fine["head"]),
    ("head, then a second head", fine["head_then_second_head"]),
    ("head alone, few rows", fine["few"]["head"]),
    ("head, then letters, few rows", fine["few"]["head_then_letters"]),
    ("letters in groups, few rows", fine["few"]["letters_in_groups"]),
):
    shown[name] = {
        "questions": row["n"],
        "accuracy": f"{row['accuracy']:.3f}",
        "log loss": f"{row['log_loss']:.3f}",
    }
pd.DataFrame(shown).T

# %% tags=["hide-input"]
table = {}
for count in ("151", "1000"):
    few = words[count]["few"]
    table[f"{count} nouns"] = {
        "chance": words[count]["chance"],
        "head alone, every row": words[count]["head"]["accuracy"],
        "reaches the final, every row": words[count]["reach_last_stage"],
        "head alone, few rows": few["head"]["accuracy"],
        "head, then letters, few rows": few["head_then_letters"]["accuracy"],
        "head, then letters in 4 orders, few rows": few["head_then_letters_4_orders"][
            "accuracy"
        ],
        "head, then options written out, few rows": few["head_then_verbatim"][
            "accuracy"
        ],
    }
pd.DataFrame(table).round(3)

# %% [markdown]
# Read both tables by their last stage. The right option nearly always reaches the final of the
# TREC kinds ({res}`40_ask:fine_reach:.0%` with eight finalists), so that the final decides. A
# second head that was trained on finalists takes the accuracy from {res}`40_ask:fine_head:.3f`
# to {res}`40_ask:fine_second:.3f`, less than the standard error of
# {res}`40_ask:fine_error:.3f`. The untrained letters, given a good list, throw it away: they
# choose by letter, and averaging over orders brings them to about chance among the finalists, no
# further. *A final is worth having only with a policy that is better than the first stage on
# the close calls.* The rows that the language model saw are few
# ({res}`40_ask:staged_rows` of each task), which is enough to see this and not more.
#
# In code, with groups of four, so that nine desks need a final:

# %%
desks = [
    *questions["department"].options,
    "sales",
    "legal",
    "press",
    "hiring",
    "facilities",
]
desk = Choice("Which desk should handle this ticket?", desks)
staged = Decider(Finalists(PermutationAverage(model, 2), size=4))
(chosen,) = staged.ask(ticket, [desk])
print(len(chosen.p), "options, none lost:", min(chosen.p) > 0)

# %% [markdown]
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
# ## From the shell, over a file, over HTTP
#
# The same call without Python:
#
# ```text
# rlcd ask "API latency is at 4 seconds." --noul "page=Page an engineer?"
# rlcd score tickets.jsonl answers.parquet --questions questions.json --policy desk
# rlcd serve desk --port 8000        # POST /ask, GET /health, loopback unless told otherwise
# curl localhost:8000/ask -H 'content-type: application/json' -d '{"state": "API latency is at 4 seconds.",
#   "questions": {"page": {"kind": "noul", "text": "Page an engineer?"}}}'
# ```
#
# `desk` is a folder as {doc}`43_your_own` makes it, `questions.json` holds what stands behind `"questions"` in the
# request. Without a folder the packaged SmolLM2 answers.
#
# A file is read row by row. Answers are written in parts, and a run that was killed goes on behind the last one:
# no row is lost and none is there twice. A row that cannot be read is named, and kept with its error if asked:

# %%
with tempfile.TemporaryDirectory() as folder:
    source, target = Path(folder) / "tickets.jsonl", Path(folder) / "answers.parquet"
    lines = [
        json.dumps({"id": "t1", "state": ticket}),
        '{"id": "t2", "state": "The invoice is wrong.",',
        json.dumps({"id": "t3", "state": "Somebody logged in as me."}),
    ]
    source.write_text("\n".join(lines))
    report = score_file(
        decider, questions, source, target, on_error="keep", progress=False
    )
    written = pd.read_parquet(target)
print(report.rows, "rows,", report.errors, "that could not be answered")
print(textwrap.fill(written["error"].dropna().item(), 76))
print("t1 as above:", written["department.value"][0] == answers["department"].value)

# %% [markdown]
# The service puts what waits together into batches, refuses with 503 when its queue is full instead of growing it,
# limits bodies, states, questions, options and time, and logs no state. What both cost, on one core
# (`tests/bench/score.py`, `tests/bench/service.py`; *offline* is the library called on the same texts in
# batches of eight, and a ratio above 1 is no gain to rely on: both are wall times on a shared machine):

# %%
pd.Series(
    {
        "memory after 10,000 rows, MiB": f"{bulk['resident_mib']['10000']:.0f}",
        "memory after 100,000 rows, MiB": f"{bulk['resident_mib']['100000']:.0f}",
        "eight clients: slowest 1 % of answers / time of a batch of 8": (
            f"{served['p99_over_batch']:.2f}"
        ),
        "eight clients: throughput / offline": (
            f"{served['throughput_over_offline']:.2f}"
        ),
        f"crowd of {served['setup']['crowd']}: answered, refused with 503, else": (
            "{answered}, {refused}, {other}".format(**served["overload"])
        ),
    },
    name="measured",
).to_frame()

# %% [markdown]
# What the text of a state can do to an answer, and what it cannot, is {doc}`44_hostile_text`.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *{res}`40_ask:tickets` tickets are few.* They are enough to tell chance from competence and a
#   favourite letter from none; they are not enough to rank two models.
# - *Larger models read options better, or learn to quickly.* Qwen3-0.6B-Base picks the right letter on most questions
#   after a hundred supervised steps, at a published ECE of .022 {cite:p}`everlcd`. What this page shows is one small
#   model before any such step.
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

# %% tags=["hide-cell"]
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
# :::{exercise} An interval for "chance"
# :label: ex-ask-2
#
# Rotations of one ticket are not independent. Give a 95 % interval for the accuracy that
# resamples whole tickets. Why has it no width here, and what does that *not* show?
# :::
#
# :::{solution} ex-ask-2
# :label: sol-ask-2
# :class: dropdown
#
# The model says the same letter in all four rotations of every ticket, so every ticket is right exactly once
# in four, and resampling tickets moves nothing. The interval is about this design, in which a favourite letter
# has accuracy $1/K$ by construction; it does not show that a policy that reads would be measured so exactly:
# :::

# %% tags=["hide-cell"]
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

# %% tags=["hide-cell"]
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
