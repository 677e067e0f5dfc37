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
# # Time: when the outcome comes later
#
# **Question.** A support conversation is forecast turn by turn, and only its end tells who was
# right. Should an early forecast learn from that end, or from the better forecast one turn
# later?
#
# **Answer.** From the end, unless you have few conversations or many that are still open: learning from later
# forecasts (TD(λ) with small λ) makes the targets much less noisy, but they are honest only
# if the policy sees all that matters, while the final outcome is honest whatever it sees.
#
# **After this page you can** compute TD(λ) targets by hand, say what λ does to their bias and
# variance, recognise the two ways in which open conversations spoil a forecast, and
# choose λ for reasons.
#
# **Running time.** About ten seconds on any machine (CPU, T4 or A100 make no
# difference); nothing is downloaded.

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

# %% mystnb={"figure": {"caption": "One simulated conversation that ends in an escalation. Grey: the true chance of that end, turn by turn. Purple: what each forecast is asked to become. With $\\lambda = 1$ every turn learns the end; with $\\lambda = 0$ it learns the next turn's forecast; $\\lambda = .5$ is between.", "name": "fig-time-targets"}, "image": {"alt": "Line plot over the turns of one conversation. The true probability wanders between about 0.3 and 0.6. Targets with lambda 1 are constant at one. Targets with lambda 0 are the same wandering line shifted one turn to the left, ending at one. Targets with lambda one half are smoother and rise to one."}} tags=["hide-input"]
import numpy as np
import pandas as pd
import sympy
import torch

from rlcd_core import plots
from rlcd_core.data.triage import (
    HAZARD,
    MAX_TURNS,
    MOOD_STEP,
    MOODS,
    START,
    conversations,
    escalation_probability,
)
from rlcd_core.records import save_numbers
from rlcd_core.rewards import OBJECTIVES, Feedback, td_lambda_targets

plots.use_style()
torch.set_default_dtype(torch.float64)
saved = {}
PURPLE = plots.COLORS["label"]  # targets take the place of labels
LOOKS = {0: ("o", "-"), 0.5: ("s", "--"), 1: ("^", ":")}

spoken = conversations(1500, np.random.default_rng(seed))
shown = next(c for c in spoken if len(c.items) == 6 and c.escalated)
honest = torch.tensor([item.posterior[0] for item in shown.items])
fig, ax = plots.figure(height=3.6)
turns = np.arange(1, len(honest) + 1)
ax.plot(turns, honest, color=plots.INK, marker="D", lw=2.5)
labels = [(turns[-1], float(honest[-1]), "true chance", plots.INK)]
for lam, (marker, line) in LOOKS.items():
    target = td_lambda_targets(honest, torch.tensor(1.0), lam)
    ax.plot(turns, target, color=PURPLE, marker=marker, ls=line)
    ax.set(ylim=(0, 1.08))
    spot = {0: (-4, -13), 0.5: (-34, 8), 1: (0, -13)}[lam]
    where = {0: 0, 0.5: 4, 1: 1}[lam]
    plots.note(ax, f"λ = {lam:g}", turns[where], target[where], xytext=spot)
plots.note_ends(ax, labels)
_ = ax.set(xlabel="customer turn", ylabel="chance of escalation")

# %% [markdown]
# ## A conversation
#
# Here are the customer's turns of the conversation in {numref}`fig-time-targets`. After each one the policy is
# asked: *will this conversation end in an escalation?* The conversations are synthetic, so
# the right answer at every turn is known:

# %%
pd.DataFrame(
    {
        "the customer's turn ends": [
            "…" + item.state[-1]["content"][-40:].strip()
            for item in shown.items
        ],
        "true chance": honest.numpy().round(3),
    },
    index=pd.Index(turns, name="turn"),
)

# %% [markdown]
# A mood (calm, annoyed, angry) moves at random from turn to turn, each mood has its own
# chance to escalate right away, the *hazard*, and after seven turns the conversation ends in peace.
# The chance $V_t$ follows by backward recursion (`escalation_probability`), and it depends on the
# turn and the mood only:

# %%
truth = escalation_probability()
pd.DataFrame(
    {mood: truth[:, m].round(3) for m, mood in enumerate(MOODS)},
    index=pd.Index(range(1, MAX_TURNS + 1), name="turn"),
).T.assign(hazard=HAZARD)

# %% [markdown]
# "Will it escalate" has two options, so the outcome *is* the label and nothing has to be
# explored: the question of this page is not which loss, but which **target**, and when it
# is known. (Whether the forecast then moves by log loss or Brier score is
# {doc}`03_proper_scoring`.)
#
# ## Targets
#
# :::{prf:definition} TD(λ) targets
# :label: def-td-lambda
#
# Let $p_1, \dots, p_T$ be the forecasts of one conversation and $y \in \{0, 1\}$ its outcome. For
# $0 \le \lambda \le 1$ the target of the last forecast is $G_T = y$, and going backwards
#
# $$
# \begin{aligned}
# G_t = {} & (1 - \lambda)\, p_{t+1} \\
#   & + \lambda\, G_{t+1} .
# \end{aligned}
# $$ (eq-td-lambda)
#
# Targets carry no gradient. $\lambda = 1$ gives every turn the outcome; $\lambda = 0$
# gives it the next forecast {cite:p}`sutton1988`.
# :::
#
# By hand, for forecasts .1, .4, .9. With $y = 0$ and $\lambda = \tfrac12$: the last target is
# 0; the one before, half of .9 and half of 0, is .45; the first, half of .4 and half of .45,
# is .425.

# %%
said = torch.tensor([0.1, 0.4, 0.9])
by_hand = {
    (0, 0.0): (0.4, 0.9, 0),
    (0, 0.5): (0.425, 0.45, 0),
    (0, 1.0): (0, 0, 0),
    (1, 0.5): (0.675, 0.95, 1),
}
computed = {}
for (y, lam), want in by_hand.items():
    target = td_lambda_targets(said, torch.tensor(float(y)), lam)
    assert (target - torch.tensor(want)).abs().max() < 1e-12
    computed[f"y = {y}, λ = {lam:g}"] = target.numpy()
pd.DataFrame(computed, index=["G1", "G2", "G3"]).T.round(3)

# %% [markdown]
# A soft target goes into the same objectives as a label. With the log loss the direction on
# the logit is target minus forecast, with half the Brier score the same times the slope of
# the sigmoid:

# %%
leaf = torch.stack([said.log(), (1 - said).log()], -1).requires_grad_(True)
target = td_lambda_targets(said, torch.tensor(0.0), 0.5)
none = torch.zeros(3, 0)
told = Feedback(
    none.long(), none, soft_labels=torch.stack([target, 1 - target], -1)
)
for name, slope in (("nll", 1.0), ("brier", 2 * said * (1 - said))):
    loss = OBJECTIVES[name](torch.log_softmax(leaf, -1), told)
    (grad,) = torch.autograd.grad(loss.sum(), leaf)
    same = (-grad[:, 0] - slope * (target - said)).abs().max() < 1e-12
    print(f"{name}: {bool(same)}")

# %% [markdown]
# ## What λ trades
#
# Write $\mathbb{E}_t$ for the mean given all that is known at turn $t$, $V_t = \mathbb{E}_t\, y$
# for the honest forecast, and set $p_s = V_s = y$ after the end, $s > T$, so that all
# conversations have one length. Let $D_s = p_s - p_{s-1}$ be the movement of the forecast.
#
# :::{prf:theorem} Bias and variance of TD(λ) targets
# :label: thm-td
#
# 1. *Sum of movements.* $\displaystyle G_t = p_t + \sum_{k \ge 1} \lambda^{k-1} D_{t+k}$.
# 2. *Honest forecasts.* If $p_t = V_t$ for all $t$, then $\mathbb{E}_t\, G_t = V_t$ for every
#    $\lambda$, and
#
#    $$
#    \begin{aligned}
#    \operatorname{Var}_t&(G_t) \\
#      &= \sum_k \lambda^{2k-2}\, \mathbb{E}_t D_{t+k}^2 ,
#    \end{aligned}
#    $$ (eq-td-variance)
#
#    which grows with $\lambda$ from $\mathbb{E}_t D_{t+1}^2$ to $V_t (1 - V_t)$.
# 3. *Wrong forecasts.* If $p_t = V_t + b_t$, with $b_s = 0$ after the end, the bias of the
#    target is
#
#    $$
#    \begin{aligned}
#    (1 - \lambda) & \sum_k \lambda^{k-1} \\
#      & \times \mathbb{E}_t b_{t+k} ,
#    \end{aligned}
#    $$ (eq-td-bias)
#
#    zero at $\lambda = 1$ whatever the forecasts are.
# 4. *Rest.* Let the policy see only $\phi_t$, and be free to state any number for each
#    value of it. Under the log loss or the Brier score, $\lambda = 1$ rests at
#    $\mathbb{E}[y \mid \phi_t]$, which is calibrated. Every $\lambda$ rests at $V_t$ if $V_t$
#    is a function of $\phi_t$, and at nothing else if from every $\phi$ the conversation
#    may end at once. Otherwise $\lambda < 1$ need not rest at a calibrated forecast.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *1.* True at the end, where $G_T = y = p_T + D_{T+1}$. If true for $t + 1$, then $G_t = p_{t+1} +
# \lambda (G_{t+1} - p_{t+1}) = p_t + D_{t+1} + \lambda \sum_{k \ge 1} \lambda^{k-1} D_{t+1+k}$.
#
# *2.* $V$ is a martingale: $\mathbb{E}_{t+k-1} D_{t+k} = 0$. So the sum has mean
# zero and its terms are uncorrelated. At $\lambda = 1$ it is $y - V_t$, of variance $V_t (1 -
# V_t)$.
#
# *3.* Unrolled, {eq}`eq-td-lambda` is the average $(1 - \lambda) \sum_{k \ge 1} \lambda^{k-1}
# p_{t+k}$ of all later values, those after the end included. (For $\lambda = 1$ read $y$.) It is linear, so the part
# from $V$ gives $V_t$ by 2, and the part from $b$ is the bias.
#
# *4.* For both scores the mean direction at $\phi$ vanishes iff $p(\phi) = \mathbb{E}[G_t
# \mid \phi_t = \phi]$. At $\lambda = 1$ that is $\mathbb{E}[y \mid \phi]$. If $V_t$ is a function
# of $\phi_t$, then $p = V$ satisfies it by 2. It is the only solution, as the right side is a
# contraction: two tables at distance $\delta$ give targets that differ by at most $(1 - \lambda)
# \sum_{k=1}^{T - t} \lambda^{k-1} \delta = (1 - \lambda^{T-t})\,\delta$ (with $0^0 = 1$), and this is
# 0 when the conversation ends at $t$, which has positive chance from every $\phi$. The
# counter-example for the last sentence is computed below. $\square$
# :::
#
# Part 2 is the case for small $\lambda$, part 3 the case against, and part 4 decides
# between them. Symbolically, part 1 for a conversation of three turns:

# %%
lam, y = sympy.symbols("lambda y")
p1, p2, p3 = sympy.symbols("p1:4")
g3 = y
g2 = (1 - lam) * p3 + lam * g3
g1 = (1 - lam) * p2 + lam * g2
moves = p1 + (p2 - p1) + lam * (p3 - p2) + lam**2 * (y - p3)
print("left over:", sympy.expand(g1 - moves))

# %% [markdown]
# By enumeration: every course that a conversation can take, with its probability.
# `fit` below is a table of forecasts that takes the mean of its targets, over and over until
# it rests; it serves the exact population and samples alike.

# %% tags=["hide-input"]
def courses():
    """Every course of moods, -1 after the end; its outcome and probability."""
    moods, outcomes, chances = [], [], []
    stack = [((m,), START[m]) for m in range(3)]
    while stack:
        course, chance = stack.pop()
        here = course[-1]
        ends = [(1.0, chance * HAZARD[here])]
        calm_on = chance * (1 - HAZARD[here])
        if len(course) == MAX_TURNS:
            ends.append((0.0, calm_on))
        else:
            stack += [((*course, m), calm_on * MOOD_STEP[here, m]) for m in range(3)]
        for outcome, weight in ends:
            moods.append(course + (-1,) * (MAX_TURNS - len(course)))
            outcomes.append(outcome)
            chances.append(weight)
    return np.array(moods), np.array(outcomes), np.array(chances)


ALL, ENDS, CHANCE = courses()
TURN = np.arange(MAX_TURNS)
FULL = 3 * TURN[:, None] + np.arange(3)  # cell of (turn, mood): sees both
MOOD = np.tile(np.arange(3), (MAX_TURNS, 1))  # sees the mood only
CLOCK = np.tile(TURN[:, None], (1, 3))  # sees the turn only


def look_up(tables, cells, moods, outcomes):
    """Forecasts (R, N, T) of R tables, padded with the outcome after the end."""
    cell = cells[TURN, moods]
    rows = np.arange(len(tables))[:, None, None]
    return np.where(moods >= 0, tables[rows, cell], outcomes[..., None]), cell


def targets(forecasts, outcomes, lam):
    return td_lambda_targets(
        torch.tensor(forecasts), torch.tensor(outcomes), lam
    ).numpy()


def average(values, cell, weight, size, prior=0.0):
    """Weighted mean (R, size) of values in each cell; prior counts of .5."""
    place = cell + size * np.arange(len(values))[:, None, None]
    total, mass = (
        np.bincount(place.ravel(), v.ravel(), size * len(values))
        for v in (weight * values, weight)
    )
    share = (total + 0.5 * prior) / np.maximum(mass + prior, 1e-300)
    return share.reshape(-1, size)


def fit(cells, moods, outcomes, weight, lam, rounds=300, prior=0.0, watched=None):
    """Tables (R, cells) at rest under their own targets.

    moods (R, N, T), outcomes and weight (R, N). With `watched` (R, N), only the
    first so many turns are seen: an open conversation ends in its last forecast.
    """
    tables = np.full((len(moods), cells.max() + 1), 0.5)
    used = weight[..., None] * (moods >= 0)
    if watched is not None:
        still = ((moods >= 0).sum(-1) >= watched)[..., None]
        last = np.minimum(watched, MAX_TURNS)[..., None] - 1
        used = used * (watched[..., None] - 1 > TURN)
    for _ in range(rounds):
        seen, cell = look_up(tables, cells, moods, outcomes)
        final = outcomes
        if watched is not None:
            stop = np.take_along_axis(seen, last, -1)
            seen = np.where(still & (last <= TURN), stop, seen)
            final = np.where(still, stop, outcomes[..., None])[..., 0]
        goal = targets(seen, final, lam)
        new = average(goal, cell, used, cells.max() + 1, prior)
        if np.abs(new - tables).max() < 1e-13:
            return new
        tables = new
    return tables


everything = (ALL[None], ENDS[None], CHANCE[None])
weights = CHANCE[None, :, None] * (ALL >= 0)
visits = average(np.ones_like(weights), FULL[TURN, ALL][None], weights, 21)
print(f"{len(ALL):,} courses, total probability {CHANCE.sum():.12f}")

# %% [markdown]
# Parts 2 and 3, for the honest table and for a random wrong one, in every cell:

# %%
rng = np.random.default_rng(seed)
wrong = rng.uniform(size=truth.shape)
gaps, noise = [], {}
for lam in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
    for table in (truth, wrong):
        seen, cell = look_up(table.reshape(1, -1), FULL, *everything[:2])
        goal = targets(seen, everything[1], lam)
        mean = average(goal, cell, weights, 21)
        off = np.where(ALL >= 0, (table - truth)[TURN, ALL], 0.0)
        bias = (1 - lam) * sum(
            lam ** (k - 1) * np.pad(off, ((0, 0), (0, k)))[:, k:]
            for k in range(1, MAX_TURNS)
        )
        formula = average(bias[None], cell, weights, 21)
        gaps.append(np.abs(mean[0] - truth.ravel() - formula[0]).max())
        if table is truth:
            spread = average((goal - mean[0, cell]) ** 2, cell, weights, 21)
            step = np.diff(seen[0], append=ENDS[:, None])
            sums = sum(
                lam ** (2 * k) * np.pad(step**2, ((0, 0), (0, k)))[:, k:]
                for k in range(MAX_TURNS)
            )
            by_steps = average(sums[None], cell, weights, 21)
            gaps.append(np.abs(spread - by_steps).max())
            noise[f"{lam:g}"] = spread[0, :3]
print("all within 1e-12:", max(gaps) < 1e-12)
saved["quieter"] = noise["1"][1] / noise["0"][1]
variance = pd.DataFrame(noise, index=MOODS).rename_axis(columns="λ")
variance.round(4)

# %% [markdown]
# The table is the variance of an honest target at turn 1. For an annoyed customer the final
# outcome is {res}`09_time:quieter:.1f` times as noisy as the next forecast. By simulation, on
# {res}`09_time:n_spoken:,` conversations from the simulator itself, with their true
# chances as forecasts: the mean error of the first turn's target, in standard errors,
# and its variance.

# %%
rows = []
for lam in (0.0, 0.5, 1.0):
    miss = []
    for c in spoken:
        v = torch.tensor([item.posterior[0] for item in c.items])
        end = torch.tensor(float(c.escalated))
        miss.append(float(td_lambda_targets(v, end, lam)[0] - v[0]))
    error = np.std(miss, ddof=1) / np.sqrt(len(miss))
    exactly = float(START @ noise[f"{lam:g}"])
    rows.append((np.mean(miss), error, np.var(miss, ddof=1), exactly))
saved["n_spoken"] = len(spoken)
assert all(abs(mean) < 4 * error for mean, error, _, _ in rows)
columns = ["mean error", "standard error", "variance", "exact variance"]
names = ["λ = 0", "λ = .5", "λ = 1"]
pd.DataFrame(rows, index=names, columns=columns).round(4)

# %% [markdown]
# ## What the policy does not see
#
# Now part 4. Let one policy see turn and mood, so that $V_t$ is a function of what it sees. Let
# another see only the mood, as a model does that reads the last message and not the
# history. Both are trained on infinitely many conversations, to the end:

# %% mystnb={"figure": {"caption": "A policy that sees the mood but not the turn, trained to rest on the exact population. Dotted: the calibrated answer given the mood. Only $\\lambda = 1$ gives it; $\\lambda = 0$ states {res}`09_time:calm.td:.2f` for calm customers of whom {res}`09_time:calm.honest:.2f` escalate.", "name": "fig-time-alias"}, "image": {"alt": "Three purple lines of the stated chance against lambda, for calm, annoyed and angry customers. Each lies far above its dotted honest level at lambda 0 and falls, ever more steeply, to meet it at lambda 1."}} tags=["hide-input"]
grid = np.array([0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1])
rest = np.array([fit(MOOD, *everything, lam)[0] for lam in grid])
for lam in (0.0, 0.5, 1.0):  # what sees everything rests at the truth
    assert np.abs(fit(FULL, *everything, lam)[0] - truth.ravel()).max() < 1e-12
fig, ax = plots.figure(height=3.6)
for m, marker in enumerate("os^"):
    ax.axhline(rest[-1, m], color=plots.INK, lw=1, ls=":")
    ax.plot(grid, rest[:, m], color=PURPLE, marker=marker)
    plots.note(ax, MOODS[m], grid[0], rest[0, m], xytext=(2, 11))
saved["calm"] = {"td": rest[0, 0], "honest": rest[-1, 0]}
_ = ax.set(xlabel="λ", ylabel="stated chance of escalation", ylim=(0.15, 0.85))

# %% [markdown]
# The reason is a loop. To TD(0) a calm turn is worth what calm, annoyed and angry turns are worth, plus
# the hazard, and nothing in what it sees says that the conversation is about to
# end. It believes in a conversation that never ends, in which everybody escalates sooner or later; only
# the outcomes of the last turn hold it down. The final outcome has no such belief.
#
# So the choice is between bias that no amount of data removes and variance that it does.
# Here is the exchange at finite sample size: the mean squared distance from the honest forecast
# *given what the policy sees*, over {res}`09_time:draws` samples of $n$ conversations. (Each cell starts
# with one imaginary visit at .5, so that an empty one says .5.)

# %% mystnb={"figure": {"caption": "Mean squared error of the fitted forecasts against $\\lambda$, after 30, 100 and 300 conversations. Above: the policy sees turn and mood. Below: it sees the mood only. Above, small $\\lambda$ is better after 100 and 300, a middle one after 30; below, only $\\lambda = 1$ escapes the bias.", "name": "fig-time-error"}, "image": {"alt": "Two panels, error on a log scale against lambda, lines for 30, 100 and 300 conversations. Above, with turn and mood seen, the lines rise gently with lambda, the one for 30 has its lowest point near one half. Below, with only the mood seen, all lines are high for small lambda and fall steeply to their lowest point at lambda 1."}} tags=["hide-input"]
draws = 300
aim = {"full": (FULL, truth.ravel()), "mood": (MOOD, rest[-1])}
occupied = np.bincount(FULL[TURN, ALL].ravel(), weights.ravel(), 21)
mass = {"full": occupied / weights.sum()}
mass["mood"] = mass["full"].reshape(-1, 3).sum(0)
ladder = (0, 0.25, 0.5, 0.75, 0.9, 1)
errors = {}
for n in (30, 100, 300):
    pick = rng.choice(len(CHANCE), size=(draws, n), p=CHANCE / CHANCE.sum())
    sample = (ALL[pick], ENDS[pick], np.ones((draws, n)))
    for sees, (cells, best) in aim.items():
        for lam in ladder:
            rounds = 8 if sees == "full" else 40
            found = fit(cells, *sample, lam, rounds=rounds, prior=1.0)
            square = ((found - best) ** 2) @ mass[sees]
            errors[sees, n, lam] = square.mean(), square.std() / np.sqrt(draws)
fig, axes = plots.figure(2, height=3.0, sharex=True)
for ax, sees in zip(axes, aim, strict=True):
    for n, marker in zip((30, 100, 300), "os^", strict=True):
        line = [errors[sees, n, lam][0] for lam in ladder]
        ax.plot(ladder, line, color=PURPLE, marker=marker)
        plots.note(ax, f"n = {n}", 1, line[-1], color=PURPLE, xytext=(8, 0))
    ax.set(yscale="log", ylabel="squared error")
    ticks = (0.002, 0.005, 0.01, 0.02) if sees == "full" else (0.001, 0.003, 0.01, 0.03)
    ax.set_yticks(ticks, [f"{v:g}" for v in ticks])
    ax.minorticks_off()
    ax.set_title("sees turn and mood" if sees == "full" else "sees the mood only")
saved["draws"] = draws
gain = {n: errors["full", n, 1][0] / errors["full", n, 0][0] for n in (30, 100, 300)}
loss = {n: errors["mood", n, 0][0] / errors["mood", n, 1][0] for n in (30, 100, 300)}
saved["gain"] = {f"n{n}": round(v, 4) for n, v in gain.items()}
saved["loss"] = {f"n{n}": round(v, 4) for n, v in loss.items()}
_ = axes[1].set(xlabel="λ", xlim=(-0.03, 1.02))

# %% [markdown]
# With everything seen, the error of $\lambda = 1$ is {res}`09_time:gain.n100:.2f` times that of
# $\lambda = 0$ at 100 conversations and {res}`09_time:gain.n300:.2f` times at 300: worth
# having, and far less than the {res}`09_time:quieter:.1f` times by which single targets are quieter,
# because the next forecast was learned from the same conversations. At 30 it has not yet
# forgotten its starting values, and a middle $\lambda$ is best. With only the mood seen,
# $\lambda = 0$ has {res}`09_time:loss.n30:.1f` times the error of $\lambda = 1$ at 30
# conversations and {res}`09_time:loss.n300:.0f` times at 300.
#
# ## Conversations that are still open
#
# Outcomes do not only come late; at any moment some have not come. Suppose that
# conversations begin all the time and that on the day of training each has been watched
# for 1 to 8 turns, any number alike, where 8 means to its end. Escalations end a
# conversation early, peace takes all seven turns, so *what is resolved is mostly
# escalated*. The exact forecasts at turn 1 under five ways to treat the open ones:

# %%
depth = np.repeat(np.arange(1, MAX_TURNS + 2), len(ALL))
moods = np.tile(ALL, (MAX_TURNS + 1, 1))
ended = np.tile(ENDS, MAX_TURNS + 1)
chance = np.tile(CHANCE, MAX_TURNS + 1) / (MAX_TURNS + 1)
closed = (moods >= 0).sum(-1) < depth
visible = np.where(depth[:, None] > TURN, moods, -1)


def stated(moods, outcomes, weight, lam, watched=None):
    batch = moods[None], outcomes[None], weight[None]
    watch = None if watched is None else watched[None]
    return fit(FULL, *batch, lam, rounds=10, watched=watch)[0, :3]


first = {
    "truth": truth[0],
    "open = not escalated": stated(visible, ended * closed, chance, 1.0),
    "open left out": stated(moods, ended, chance * closed, 1.0),
    "only begun long ago": stated(moods, ended, chance * (depth == 8), 1.0),
    "bootstrapped, λ = 0": stated(moods, ended, chance, 0.0, depth),
    "bootstrapped, λ = .5": stated(moods, ended, chance, 0.5, depth),
}
for name in list(first)[3:]:
    assert np.abs(first[name] - truth[0]).max() < 1e-12
saved["open"] = float(1 - (chance * closed).sum())
saved["calm_first"] = {
    "truth": truth[0, 0],
    "zero": first["open = not escalated"][0],
    "out": first["open left out"][0],
}
pd.DataFrame(first, index=MOODS).T.round(3)

# %% [markdown]
# {res}`09_time:open:.0%` of the conversations are open. To call them "not escalated" turns
# {res}`09_time:calm_first.truth:.2f` into {res}`09_time:calm_first.zero:.2f`; to leave them out,
# which looks like the careful thing to do, turns it into {res}`09_time:calm_first.out:.2f`. This is the
# situation of {prf:ref}`thm-noise`, part 4, with resolution that depends on the outcome; and since
# here it depends on the *time* of the outcome, there is more to work with:
#
# - **Wait.** Use conversations begun so long ago that all have ended. Unbiased, late, and
#   wasteful.
# - **Bootstrap.** End an open conversation in its own last forecast, which thereby serves as a
#   target and is not itself trained. Every step that was watched is used, and the honest table is at rest for
#   every $\lambda$, if what the policy sees suffices and if being watched does not depend on how
#   it goes. In code, `td_lambda_targets(seen, seen[-1], lam)[:-1]`.
#
# It is the idea of the product-limit estimator of {cite:t}`kaplan1958`: one who is
# still at risk tells about each step survived, not about the end. Watched for $w$ turns
# means here that turn $w$ was read and what followed it was not. Should a log show an escalation
# right after the last turn, leave that turn out all the same: to keep it only when it ended
# would count escalations and not their absence. {cite:t}`chapelle2014` meets the same
# problem with advertisements, and models the delay.
#
# ## A recommendation
#
# 1. **Start with $\lambda = 1$**: the final outcome as the label of every turn,
#    and the log loss. It is calibrated given whatever the policy sees, and it needs no code.
# 2. **Lower $\lambda$ only for a reason**: few conversations, or many open ones; and a
#    policy that reads the whole history. Choose it by the Brier score against *final outcomes* of
#    held-out conversations that have ended. The TD loss cannot choose it, for it is smallest where forecasts
#    merely agree with each other.
# 3. **Never score the open ones as no, and never leave them out** when ending early means
#    something. Wait, bootstrap, or weigh ({ref}`ex-time-3`).
# 4. **Count conversations, not turns**, in every interval ({ref}`ex-time-2`).
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *One small chain.* Three moods and seven turns. How much TD saves depends on how often
#   courses merge: {cite:t}`cheikhi2023` show that the reduction can be
#   enormous or nonexistent. In a chain with thousands of early states that funnel into a few late
#   ones, small $\lambda$ would win by more than here.
# - *A language model reads the history.* Then the upper panel of {numref}`fig-time-error`
#   applies and not the lower, if the model *uses* what it reads. A truncated
#   context or a frozen encoder is the lower panel. If on your data $\lambda = 0$ and
#   $\lambda = 1$ agree on held-out calibration, take the quieter one.
# - *Tables only.* With a network, bootstrapping on its own output can also chase a moving target. We ran
#   none here, so this page is no evidence on speed of training.
# - *The classic result goes the other way from the lower panel.* {cite:t}`sutton1988` found $\lambda < 1$
#   best on a random walk whose state was fully seen, which is our upper panel.
# - *Acting changes the course.* If the forecast triggers an escalation, the outcome is no longer
#   what would have happened; that is a matter of logs and propensities
#   ({doc}`05_is_it_rl`), not of $\lambda$.
# :::
#
# ## Exercises
#
# :::{exercise} Where does the weight go?
# :label: ex-time-1
#
# Write $G_t$ as a weighted average of the later forecasts and the outcome, for a conversation of $T$
# turns. What share of the first target comes from the outcome for $T = 7$ and $\lambda = .9$?
# :::
#
# :::{solution} ex-time-1
# :label: sol-time-1
# :class: dropdown
#
# Unroll {eq}`eq-td-lambda`: $G_t = (1 - \lambda) \sum_{k=1}^{T-t} \lambda^{k-1} p_{t+k} +
# \lambda^{T-t} y$. The outcome's share is $\lambda^{T - t}$; the others sum to the rest.
# Less than it sounds, for $\lambda = .9$:
# :::

# %% tags=["hide-cell"]
far = torch.tensor(rng.uniform(size=7))
ends_at = [td_lambda_targets(far, torch.tensor(v), 0.9)[0] for v in (0.0, 1.0)]
share = float(ends_at[1] - ends_at[0])
later = sum(0.1 * 0.9 ** (k - 1) * float(far[k]) for k in range(1, 7))
assert abs(share - 0.9**6) < 1e-12 and abs(float(ends_at[0]) - later) < 1e-12
print(f"share of the outcome: {share:.3f}")

# %% [markdown]
# :::{exercise} Seven turns are not seven outcomes
# :label: ex-time-2
#
# A colleague reports the mean of $y - V_t$ over all turns of the simulated conversations
# with a standard error computed as if turns were independent. How wrong is the error?
# :::
#
# :::{solution} ex-time-2
# :label: sol-time-2
# :class: dropdown
#
# Turns of one conversation share one outcome. Add up each conversation, take the spread over
# conversations, and compare:
# :::

# %% tags=["hide-cell"]
sums, single = [], []
for c in spoken:
    residual = [float(c.escalated) - item.posterior[0] for item in c.items]
    sums.append(sum(residual))
    single += residual
by_turn = np.std(single) * np.sqrt(len(single))
by_conversation = np.std(sums) * np.sqrt(len(sums))
assert by_conversation > 1.5 * by_turn
print(f"too small by a factor of {by_conversation / by_turn:.2f}")

# %% [markdown]
# :::{exercise} Weigh the early ones
# :label: ex-time-3
#
# Each conversation is watched for $w$ turns, $w$ uniform on 1 to 8 and independent of its course; one of $T$ turns has
# ended in view iff $w > T$. Keep only those that have ended, with $\lambda = 1$, and mend the
# bias by weights. Compare the error with waiting and with bootstrapping at 300 conversations.
# :::
#
# :::{solution} ex-time-3
# :label: sol-time-3
# :class: dropdown
#
# A conversation of $T$ turns is kept with chance $(8 - T)/8$; weigh it by the inverse
# {cite:p}`horvitz1952`. It is exactly unbiased. In a sample it does hardly better than waiting
# and far worse than bootstrapping, as it throws the open ones away:
# :::

# %% tags=["hide-cell"]
length = (moods >= 0).sum(-1)
mended = stated(moods, ended, chance * closed * 8 / (8 - length), 1.0)
assert np.abs(mended - truth[0]).max() < 1e-12
pick = rng.choice(len(CHANCE), size=(draws, 300), p=CHANCE / CHANCE.sum())
watch = rng.integers(1, 9, size=pick.shape)
long, final = (ALL[pick] >= 0).sum(-1), ENDS[pick]
schemes = {
    "wait": ((watch == 8) * 1.0, 1.0, None),
    "weigh": ((long < watch) * 8 / (8 - long), 1.0, None),
    "bootstrap, λ = .5": (np.ones(pick.shape), 0.5, watch),
}
result = {}
for name, (weight, lam, seen) in schemes.items():
    found = fit(
        FULL, ALL[pick], final, weight, lam, rounds=8, prior=1.0, watched=seen
    )
    square = (found - truth.ravel()) ** 2
    result[name] = float((square @ mass["full"]).mean())
assert result["bootstrap, λ = .5"] < 0.6 * result["weigh"]
pd.Series(result, name="mean squared error").round(4).to_frame()

# %% [markdown]
# :::{exercise} Seeing only the clock
# :label: ex-time-4
#
# Let the policy see the turn and not the mood. $V_t$ is no function of what it sees. Show
# that it is calibrated at every $\lambda$ all the same, and say why.
# :::
#
# :::{solution} ex-time-4
# :label: sol-time-4
# :class: dropdown
#
# What it sees is "open at turn $t$", and from there the next thing it can see is "escalated"
# or "open at turn $t + 1$". Given this, the past adds nothing *that it could have seen*: the reduced
# process is a Markov chain of its own, with its own honest forecast, and part 4 applies
# to that chain. Mood without turn has no such luck.
# :::

# %% tags=["hide-cell"]
clocks = np.array([fit(CLOCK, *everything, lam)[0] for lam in (0.0, 0.5, 1.0)])
assert np.abs(clocks - clocks[-1]).max() < 1e-12
print(clocks[0].round(3))

# %% tags=["remove-cell"]
save_numbers("09_time", saved)

# %% [markdown]
# ## Further reading
#
# {cite:t}`sutton1988` introduces TD(λ), with the example of forecasting a week's weather day by
# day. {cite:t}`cheikhi2023` say when it saves data. {cite:t}`kaplan1958` for open cases,
# {cite:t}`chapelle2014` for delayed outcomes in practice, and {prf:ref}`thm-noise` for
# outcomes that never come.
#
# Next: {doc}`10_how_many_outcomes` on how many of them it takes to trust a number.
