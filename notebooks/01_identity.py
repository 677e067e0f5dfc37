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
# # The Brier-gradient identity
#
# **Question.** A policy picks one option, and the world answers with one bit: right or
# wrong. Can that bit alone teach it to state honest probabilities?
#
# **Answer.** Yes: pay the bit minus the probability that was stated for the option
# taken, $r = c - p_a$, and the policy gradient of that reward is exactly minus half the
# gradient of the Brier score, although the right option is never shown.
#
# **After this page you can** derive the identity in four lines, check it in four ways, say
# what each half of the reward does, and name the changes, all of them common in practice,
# that silently break it.
#
# **Running time.** Seconds, on any machine (CPU, T4 or A100 make no difference); nothing
# is downloaded.

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

# %% mystnb={"figure": {"caption": "Each point is a distribution over three options; the star is the truth, {res}`01_identity:q_text`. Left: the expected direction of RLCD, over contours of the expected Brier score, which are circles about the truth. Right: the expected direction of RLVR ($r = c$), over contours of expected accuracy, which are straight lines. The truth is a place that RLVR passes on its way to a corner.", "name": "fig-identity-fields"}, "image": {"alt": "Two triangles of probability distributions over options A, B and C with a star at the true distribution. Left, RLCD: arrows from everywhere point to the star and cross circles centred on it. Right, RLVR: arrows from everywhere point to corner A, across parallel straight contours, past the star."}} tags=["hide-input"]
import numpy as np
import pandas as pd
import sympy
import torch

from rlcd_core import exact, plots
from rlcd_core.records import save_numbers
from rlcd_core.rewards import (
    OBJECTIVES,
    Feedback,
    mixed_reward,
    policy_gradient,
    rlcd_reward,
    rlvr_reward,
)

plots.use_style()
torch.set_default_dtype(torch.float64)
q_shown = np.array([0.5, 0.3, 0.2])


def velocity(objective, q):
    """How p moves along an objective's mean direction d: J d."""
    direction = exact.field(OBJECTIVES[objective], q)

    def at(p):
        d = direction(torch.tensor(p).log()).numpy()
        return p * (d - (p * d).sum(1, keepdims=True))

    return at


fig, axes = plots.figure(1, 2, height=2.9)
contours = {
    "rlcd": (lambda p: ((p - q_shown) ** 2).sum(1), (0.1 * np.arange(1, 12)) ** 2),
    "rlvr": (lambda p: p @ q_shown, np.linspace(0.2, 0.5, 10)),
}
titles = {"rlcd": "RLCD goes to the truth", "rlvr": "RLVR goes to a corner"}
for ax, arm in zip(axes, contours, strict=True):
    height, levels = contours[arm]
    plots.plot_simplex(ax, plots.prepare_simplex(height), levels=levels)
    arrows = plots.prepare_simplex(velocity(arm, q_shown), resolution=8, margin=0.1)
    plots.plot_field(ax, arrows, arm, power=0.2)
    ax.plot(*plots.to_xy(q_shown), marker="*", ms=16, color=plots.INK, mec="none")
    _ = ax.set(title=titles[arm])

save_numbers("01_identity", {"q_text": "(" + ", ".join(map(str, q_shown)) + ")"})

# %% [markdown]
# ## A ticket
#
# A customer writes: *"I was charged twice, and now the app crashes."* The policy routes
# tickets to **A** billing, **B** bug or **C** other. It states a probability for each,
# draws one option from what it stated, and routes the ticket there. Days later one bit
# comes back: the team kept the ticket ($c = 1$) or passed it on ($c = 0$). If it was
# passed on, nobody records where it should have gone.
#
# Say the policy stated .9 for billing and billing was taken. Two ways to pay for it:

# %%
stated = 0.9
payoff = pd.DataFrame(
    {"right": [1, 1 - stated], "wrong": [0, 0 - stated]},
    index=["RLVR: c", "RLCD: c − stated"],
)
for chance in (0.9, 0.7):
    mean = chance * payoff["right"] + (1 - chance) * payoff["wrong"]
    payoff[f"mean, right {chance:.0%}"] = mean
payoff.round(3) + 0.0

# %% [markdown]
# The plain outcome reward, called RLVR here for *reinforcement learning with verifiable
# rewards*, never charges for a claim: to state more for the likelier option always pays.
# RLCD, *reinforcement learning for calibrated decisions*, charges in advance exactly what
# the claim promises. A claim that is true on average earns nothing on average, a claim
# that is too high loses, and one that is too low gains. So the statement is pushed to the
# place where the surprise has mean zero, for every option at once.
#
# That is the intuition. What follows makes it exact: not "something like calibration",
# but the gradient of a named proper score, with the constant.
#
# ## The statement
#
# A *question* $x$ has $K$ options. The *policy* has logits $z$ and states
# $p = \operatorname{softmax}(z)$. The right option $y$ follows the true conditional
# distribution $q$ (given $x$), which nobody knows. The *action* $a \sim p$ is the option
# taken, the *outcome* is $c = 1[a = y]$, and $J = \operatorname{diag}(p) - p p^\top$ is
# the softmax Jacobian $\partial p / \partial z$. All symbols of the book are on the page
# {doc}`../book/notation`.
#
# :::{prf:definition} Brier score
# :label: def-brier
#
# The Brier score of a distribution $p$ when $y$ turns out to be right is
#
# $$
# \begin{aligned}
# \operatorname{Brier}&(p, y) \\
#   &= \textstyle\sum_k \bigl(p_k - 1[k = y]\bigr)^2 \\
#   &= \|p\|^2 - 2 p_y + 1 ,
# \end{aligned}
# $$ (eq-brier)
#
# a loss between 0 and 2 {cite:p}`brier1950`. Its expectation over $y \sim q$ is
# $\|p - q\|^2 + 1 - \|q\|^2$, so it is strictly proper: $p = q$ is its one minimum
# {cite:p}`gneiting2007`.
# :::
#
# :::{prf:definition} Two rewards
# :label: def-rewards
#
# RLVR pays $r = c$. RLCD pays
#
# $$ r = c - p_a , $$ (eq-rlcd)
#
# where $p_a$ is the probability that the policy stated, at the moment of acting, for the
# option it took; as a reward it is a number, and no gradient flows through it. Both are
# followed by the REINFORCE estimator of {cite:t}`williams1992`,
#
# $$ r \, \nabla \log p_a . $$ (eq-reinforce)
# :::
#
# :::{prf:theorem} The Brier-gradient identity
# :label: thm-identity
#
# For every $K \ge 2$, every label $y$ and every parameter $\theta$ on which
# the logits depend smoothly,
#
# $$
# \begin{aligned}
# \mathbb{E}&_{a \sim p}\bigl[(c - p_a)\, \nabla_\theta \log p_a\bigr] \\
#    &= -\tfrac12 \nabla_\theta \operatorname{Brier}(p, y) .
# \end{aligned}
# $$ (eq-identity)
#
# Averaged over $y \sim q$ and written in logit space, this is $J (q - p)$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# *The outcome half.* For a fixed $y$ the outcome $c$ is 1 for one action only, $a = y$:
#
# $$ \mathbb{E}_{a \sim p}[c \,\nabla \log p_a]
#    = \sum_a p_a\, 1[a = y]\, \nabla \log p_a
#    = p_y \nabla \log p_y = \nabla p_y . $$
#
# *The stated half.* Again by $p_a \nabla \log p_a = \nabla p_a$,
#
# $$ \mathbb{E}_{a \sim p}[p_a \,\nabla \log p_a]
#    = \sum_a p_a \cdot p_a \nabla \log p_a
#    = \sum_a p_a \nabla p_a
#    = \tfrac12 \nabla \sum_a p_a^2 = \tfrac12 \nabla \|p\|^2 . $$
#
# *Together.* By {eq}`eq-brier`, $-\tfrac12 \operatorname{Brier}(p, y) = p_y - \tfrac12
# \|p\|^2 - \tfrac12$, and the last term is constant. Its gradient is the difference of
# the two halves, which is {eq}`eq-identity`.
#
# *In logit space.* $\partial p_k / \partial z_j = p_k (1[j = k] - p_j) = J_{jk}$, so
# $\nabla_z p_y = J e_y$ and $\tfrac12 \nabla_z \|p\|^2 = J p$. The direction is
# $J(e_y - p)$; the mean of $e_y$ over $y \sim q$ is $q$. For other parameters multiply by
# $\partial z / \partial \theta$, on both sides alike. $\square$
# :::
#
# Nothing in the proof asks how many options there are, what the policy is made of, or
# which label was right: the sum over actions is the only expectation that is used.
# Two consequences follow at once.
#
# :::{prf:corollary} One resting place, and it is the truth
# :label: cor-rest
#
# Let every $p_k > 0$. Then $J(q - p) = 0$ only at $p = q$, and along the flow
# $\dot z = J(q - p)$ the expected Brier score falls at the rate $2 \|J(q - p)\|^2$.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# Write $v = q - p$, whose entries sum to 0. $(J v)_k = p_k (v_k - \sum_j p_j v_j)$
# vanishes for all $k$ only if all $v_k$ are equal, hence 0. For the rate, the
# gradient of the expected Brier score in the logits is $-2 J v$, so its derivative
# in time is $-2 (Jv)^\top \dot z = -2\|J v\|^2$. $\square$
# :::
#
# :::{prf:corollary} What plain outcome reward does instead
# :label: cor-rlvr
#
# RLVR's expected direction is the gradient of expected accuracy,
#
# $$
# \begin{aligned}
# \mathbb{E}&_{a \sim p, \, y \sim q}[c \,\nabla_z \log p_a] \\
#    &= J q = \nabla_z \, (p^\top q) ,
# \end{aligned}
# $$ (eq-rlvr)
#
# which has no resting place inside the simplex unless $q$ is uniform: $p^\top q$ is
# linear in $p$, and a linear function on a triangle is largest at a corner (or, where two
# options tie, along an edge).
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# The first equality is the outcome half of the proof of {prf:ref}`thm-identity`, averaged
# over $y \sim q$; the second is $\nabla_z p = J$. As above, $(Jq)_k = p_k (q_k - p^\top q)$
# vanishes for all $k$ with every $p_k > 0$ only if all $q_k$ are equal. $\square$
# :::
#
# These two corollaries are {numref}`fig-identity-fields`: circles about the truth on the
# left, straight lines on the right. RLVR does not fail by noise, by lack of data or by a bad
# learning rate. It does well what it was asked to do, which is to be right as often
# as possible, and the best way to be right is to put all mass on the likeliest option.
#
# ## The worked value
#
# Logits $z = (0, 1, 2)$; option A is right, and the policy gives it the least. Every
# action adds its chance times its reward times $\nabla_z \log p_a$, that is
# $p_a\,(c - p_a)\,(e_a - p)$. Nothing is sampled here: the three actions are all there are.

# %%
z = torch.tensor([0.0, 1.0, 2.0])
p, hit = torch.softmax(z, -1), torch.tensor([1.0, 0.0, 0.0])
reward = hit - p
steps = p[:, None] * reward[:, None] * (torch.eye(3) - p)

leaf = z.clone().requires_grad_(True)
brier = (torch.softmax(leaf, -1) - hit).square().sum()
(slope,) = torch.autograd.grad(-0.5 * brier, leaf)

table = pd.DataFrame(
    torch.cat([p[:, None], reward[:, None], steps], 1).numpy(),
    columns=["chance", "reward", "push on A", "push on B", "push on C"],
    index=["take A (right)", "take B (wrong)", "take C (wrong)"],
)
blank = [np.nan, np.nan]
table.loc["sum"] = blank + steps.sum(0).tolist()
table.loc["−½ ∇ Brier, by autograd"] = blank + slope.tolist()
worked = {"p": p, "worked": steps.sum(0), "reward": reward}
save_numbers("01_identity", {k: v.tolist() for k, v in worked.items()})
table.map(lambda v: "" if np.isnan(v) else f"{v:.4f}")

# %% mystnb={"figure": {"caption": "The worked value as a sum of arrows in the plane of logits; the compass says which option a direction raises. Each blue arrow is what one action contributes on average; laid head to tail they end where the Brier gradient points (grey).", "name": "fig-identity-sum"}, "image": {"alt": "Three blue arrows laid head to tail from a common origin. Taking A, which is right, points towards corner A. Taking B, wrong, points away from B. Taking C, wrong and stated at 0.665, is the longest and points away from C. Their end is the tip of one grey arrow, minus one half of the Brier gradient."}} tags=["hide-input"]
fig, ax = plots.figure(height=3.4)
line = {"angles": "xy", "scale_units": "xy", "scale": 1, "headwidth": 4.5}
moves = plots.to_xy(steps.numpy())
ends = np.vstack([[0.0, 0.0], np.cumsum(moves, axis=0)])
ax.quiver(*ends[:-1].T, *moves.T, color=plots.COLORS["rlcd"], width=0.007, **line)
total = plots.to_xy(slope.numpy())
ax.quiver(0, 0, *total, color=plots.INK, width=0.012, zorder=1, **line)
ax.plot(0, 0, "o", color=plots.INK)
plots.note(ax, "A is taken: right", 0, 0, xytext=(-10, 8), ha="right")
plots.note(ax, "B is taken: wrong", *ends[2], xytext=(-10, 0), ha="right")
middle = (ends[2] + ends[3]) / 2
plots.note(ax, "C is taken: wrong", *middle, xytext=(-12, 0), ha="right")
plots.note(ax, "−½ ∇ Brier,\ntheir sum", *(0.6 * total), xytext=(14, 0))
compass = plots.to_xy(np.eye(3)) - plots.to_xy(np.full(3, 1 / 3))
for towards, name in zip(0.035 * compass, "ABC", strict=True):
    centre = np.array([0.09, -0.03])
    ax.quiver(*centre, *towards, color=plots.INK, width=0.004, **line)
    plots.note(ax, name, *(centre + 1.45 * towards), xytext=(0, 0), ha="center")
ax.axis("off")
_ = ax.set(aspect="equal", xlim=(-0.17, 0.125), ylim=(-0.145, 0.02))

# %% [markdown]
# Look at the longest arrow. C was wrong, and because the policy had stated
# {res}`01_identity:p.2:.3f` for it, the reward is {res}`01_identity:reward.2:.3f`: a confident
# mistake is punished by what was claimed. RLVR would have paid 0 for it and learned
# nothing. The sum is ({res}`01_identity:worked.0:.7f`, {res}`01_identity:worked.1:.7f`,
# {res}`01_identity:worked.2:.7f`): B gains too, although it is wrong, because C was
# claimed even more wrongly.
#
# ## Four checks
#
# Proofs have errors and code has others, so the claim is checked by means that share
# little. The checks call the objectives that train the models of the later chapters
# (`rlcd_core.rewards`), not a copy of them.
#
# **Symbolic.** For $K = 2$ and $K = 3$, each action's chance, reward and $\nabla \log p_a$ are
# written out as functions of the logits, and SymPy simplifies the difference of the two
# sides for every label:

# %%
remainders = []
for size in (2, 3):
    logits = sympy.symbols(f"z1:{size + 1}", real=True)
    mass = sum(sympy.exp(u) for u in logits)
    prob = [sympy.exp(u) / mass for u in logits]
    for y in range(size):
        brier = sum((prob[k] - int(k == y)) ** 2 for k in range(size))
        for u in logits:
            left = sum(
                prob[a]
                * (int(a == y) - prob[a])  # the reward
                * sympy.diff(sympy.log(prob[a]), u)
                for a in range(size)
            )
            right = -sympy.diff(brier, u) / 2
            remainders.append(sympy.simplify(left - right))
print(len(remainders), "differences; not 0:", len(set(remainders) - {0}))

# %% [markdown]
# **Enumeration.** `exact.moments` runs through every group of actions and every label
# with its probability, and averages the gradient of the training loss itself, in double
# precision. Random policies and truths for two to six options; groups of one and of
# three actions, judged by one shared label or each by its own draw:

# %%
rng = np.random.default_rng(seed)
settings = [("rlcd", 1, True), ("rlcd", 3, True), ("rlcd", 3, False)]
settings += [("brier", 1, True)]  # the label in full view
gaps = []
for size in range(2, 7):
    for name, group, shared in 5 * settings:
        p_k, q_k = rng.dirichlet(np.ones(size), 2)
        formula = p_k * ((q_k - p_k) - p_k @ (q_k - p_k))
        m = exact.moments(OBJECTIVES[name], p_k, q_k, group, shared)
        gaps.append(np.abs(m.mean.numpy() - formula).max())
save_numbers("01_identity", {"cases": len(gaps)})
print(len(gaps), "cases, all within 1e-12:", max(gaps) < 1e-12)

# %% [markdown]
# A quarter of the cases train `brier`, the same score with the label in full view: in the
# mean, the one bit loses nothing against it.
#
# **Numerical differentiation.** The Brier score is differentiated by central differences,
# without any gradient formula, and compared with the enumerated direction of `rlcd`:

# %%
z_5, y, h = rng.normal(size=5), 3, 1e-5


def half_brier(logits):
    stated = np.exp(logits) / np.exp(logits).sum()
    return -0.5 * ((stated - np.eye(5)[y]) ** 2).sum()


numeric = np.array(
    [half_brier(z_5 + h * e) - half_brier(z_5 - h * e) for e in np.eye(5)]
) / (2 * h)
p_5 = torch.softmax(torch.tensor(z_5), -1)
m = exact.moments(OBJECTIVES["rlcd"], p_5, np.eye(5)[y])
print("numeric   ", numeric.round(4))
print("enumerated", m.mean.numpy().round(4))
print("within 1e-9:", np.abs(numeric - m.mean.numpy()).max() < 1e-9)

# %% [markdown]
# **Simulation.** Labels are drawn from $q$ and actions from $p$; each pair goes through
# the training loss as its own row, and the rows' gradients are averaged. What is left
# is noise, so the gap is measured in standard errors:

# %%
n = 200_000
p_true, q_true = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])
actions = rng.choice(3, size=(n, 1), p=p_true)
labels = rng.choice(3, size=(n, 1), p=q_true)
outcomes = (actions == labels).astype(float)
feedback = Feedback(torch.tensor(actions), torch.tensor(outcomes))


def row_directions(objective):
    """Minus the loss's gradient in each row's logits, (n, K)."""
    leaf = torch.tensor(np.log(p_true)).repeat(n, 1).requires_grad_(True)
    loss = OBJECTIVES[objective](torch.log_softmax(leaf, -1), feedback)
    loss.sum().backward()
    return -leaf.grad.numpy()


rows = row_directions("rlcd")
mean, error = rows.mean(0), rows.std(0, ddof=1) / np.sqrt(n)
formula = p_true * ((q_true - p_true) - p_true @ (q_true - p_true))
distance = (mean - formula) / error
worst = np.abs(distance).max()
save_numbers("01_identity", {"worst_z": worst, "n_sampled": n})
pd.DataFrame(
    {
        "J(q − p)": [f"{v:.4f}" for v in formula],
        "sampled mean": [f"{v:.4f}" for v in mean],
        "standard error": [f"{v:.4f}" for v in error],
        "gap in standard errors": [f"{v:.2f}" for v in distance],
    },
    index=["A", "B", "C"],
)

# %% [markdown]
# The largest gap is {res}`01_identity:worst_z:.2f` standard errors at
# {res}`01_identity:n_sampled:,` draws.
#
# ## What the subtraction is
#
# Read the proof from its last line: $-\tfrac12 \operatorname{Brier} = \mathbb{E}[c] -
# \tfrac12 \|p\|^2 - \tfrac12$. **RLCD is RLVR plus a bonus for spread**, the Gini
# entropy $1 - \|p\|^2$ (also the Tsallis entropy of order two, {cite:t}`tsallis1988`), at
# weight one half. Without the subtraction the bonus is gone and the policy runs to a
# corner. With another positive weight it may settle, but not on the truth:
#
# :::{prf:proposition} No other weight is proper
# :label: prp-weight
#
# Pay $c - \lambda p_a$ with $\lambda > 0$. The resting place inside the simplex, if
# there is one, is
#
# $$ p = \frac{q - (1 - \lambda)/K}{\lambda} , $$ (eq-weight)
#
# which is $q$ for $\lambda = 1$ and otherwise only where $q$ is uniform. (For $\lambda \le 0$
# what is climbed is convex in $p$, and largest at a corner.)
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# The two halves of the proof of {prf:ref}`thm-identity` give the direction $J(q - \lambda
# p)$. It vanishes only if $q - \lambda p$ has equal entries, say $u$. Summing,
# $1 - \lambda = K u$. Solve for $p$. The direction climbs $p^\top q - \tfrac\lambda2 \|p\|^2$,
# which is strictly concave; where an entry of {eq}`eq-weight` would be negative, its maximum
# and the end of the flow lie on the boundary. $\square$
# :::
#
# The spread half needs no sampling, since $\|p\|^2$ is known; adding its exact
# gradient to RLVR gives the same mean direction by another road, with another variance:

# %%
p_k, q_k = rng.dirichlet(np.ones(4), 2)
sampled = exact.moments(OBJECTIVES["rlcd"], p_k, q_k)
known = exact.moments(OBJECTIVES["rlvr_gini"], p_k, q_k)
gap = (sampled.mean - known.mean).abs().max().item()
print("same mean, within 1e-12:", gap < 1e-12)
print(f"variance (trace): {sampled.trace:.4f} against {known.trace:.4f}")

# %% [markdown]
# Which road is the steadier one depends on where the policy stands, and so does the worth
# of a baseline; {doc}`04_variance` works that out. At $p = q$ the RLCD reward has
# mean zero for every action, so there is nothing left for a baseline to remove.
#
# ## Read it as a regression
#
# Sample by sample,
#
# $$ (c - p_a)\,\nabla \log p_a = -\nabla\, \frac{(c - p_a)^2}{2\, \mathrm{sg}[p_a]} , $$
#
# where $\mathrm{sg}$ stops the gradient: RLCD's step *is* a weighted least-squares
# regression of the outcome on the probability that was stated for the option taken, the
# weight being one over the chance of taking it. The loss `rlcd_regression` is written
# that way. It gives the same gradient in each of the
# {res}`01_identity:n_sampled:,` rows:

# %%
same = np.abs(row_directions("rlcd_regression") - rows).max() < 1e-12
print("row by row the same:", bool(same))

# %% [markdown]
# So "one bit forces us to use policy gradients" is false: the unweighted regression
# $(c - p_a)^2$ and the log loss of the bit, later called *verdict Brier* and *verdict NLL*, are
# ordinary losses with the same resting place. {doc}`05_is_it_rl` proves it, and
# {doc}`20_rater_bandit` runs them all against one another on the verdicts of real people.
#
# ## What breaks it
#
# The identity is about the reward *as it reaches the gradient*. A change of reward that
# is harmless when only the best action matters is not harmless when the number itself is
# the product. The best known such change is in many training libraries: GRPO divides the
# advantages of a group by their standard deviation {cite:p}`shao2024`. At $p = q$ RLCD's
# direction must be zero; with the division it is not:

# %%
q_2 = [0.7, 0.3]
print("push on the likelier option at p = q, G = 4, shared label:")
for name in ("rlcd", "rlcd_loo", "rlcd_mean", "rlcd_std"):
    m = exact.moments(OBJECTIVES[name], q_2, q_2, group_size=4)
    push = m.mean[0].item()
    print(f"{name:10s} {abs(push):.4f}")
save_numbers("01_identity", {"std_pull": push})

# %% [markdown]
# A policy that is right about its .7 is pushed on by {res}`01_identity:std_pull:.3f`, towards
# 1, while baselines that only subtract leave it alone. {cite:t}`bereket2025` report
# the same overconfidence in language models trained by GRPO on chance outcomes, and its
# absence once the division is removed (there the probability is a prediction that a proper
# score pays, here it is the policy itself); {cite:t}`liu2025` remove it for another reason.
# The theory is in {doc}`06_one_bit`, the experiment in {doc}`20_rater_bandit`.
#
# :::{admonition} What would change my mind
# :class: warning
#
# *One counter-example to* {eq}`eq-identity` would do: a pair $(p, q)$ whose enumerated
# direction differs from $J(q - p)$ by more than rounding. {res}`01_identity:cases` random
# cases and the symbolic check found none. The identity itself is safe. What one may
# wrongly conclude from it is not:
#
# - **It is a statement about a mean.** It says nothing of variance, and a single
#   outcome is a very noisy view of a gradient. That a label is not *needed* does not make
#   it worthless: {doc}`20_rater_bandit` measures what it would have bought.
# - **The action must come from the $p$ in the reward.** Sampling at another temperature,
#   top-k, or from a log changes the expectation. The resting place
#   survives more of this than one would expect, the Brier gradient does not:
#   {doc}`05_is_it_rl`.
# - **Exactly one option is right.** If several can be, or none, $q$ does not sum to one and
#   the resting place moves ({ref}`ex-identity-3`).
# - **Parameters are shared.** A network cannot move one question without the others, so it
#   ends where its mean Brier score is stationary, which need not be at $q$. Clipping, momentum
#   and adaptive steps change the path, and with noise also where it hovers.
# - **Better than RLVR is not best.** The regression reading suggests that a plain log
#   loss on the verdict may do as well or better. We measure it rather than argue.
#
# Evidence on language models that bears on this: outcome-only training harms calibration
# and a Brier term in the reward mends it {cite:p}`damani2025`, as does a logarithmic one
# {cite:p}`baniharouni2025`; both reward a *stated* number, a different design with a
# trap of its own ({doc}`08_stated_confidence`).
# :::
#
# ## Exercises
#
# :::{exercise} Break even
# :label: ex-identity-1
#
# A policy states $v$ for an option that is right with chance $s$, and takes it. What does
# it earn on average, and for which $v$ is that largest? Why does it not state that $v$?
# :::
#
# :::{solution-start} ex-identity-1
# :label: sol-identity-1
# :class: dropdown
# :::
#
# It earns $s - v$ on average, which is largest at $v = 0$. But $p_a$ enters the reward as
# a number, without gradient, so the policy is not paid for *lowering its claim*. It is paid
# through $\nabla \log p_a$ for taking this option more often (if $s > v$) or less often
# (if $s < v$); and since the claim and the habit are the same number, the claim follows until
# $v = s$. Let the gradient flow through the reward, and
# $\mathbb{E}[c - p_a] = p^\top q - \|p\|^2$ is maximised instead, whose resting place is
# {eq}`eq-weight` with $\lambda = 2$: half way between $q$ and uniform. For $q = (.7, .3)$:

# %%
through = policy_gradient(
    "gradient through the reward",
    mixed_reward(2.0),
    equation="prp-weight",
    calibrates=False,
)
exact.fixed_point(through, q_2).p.numpy().round(4)

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Plus one, minus one
# :label: ex-identity-2
#
# A colleague codes outcomes as $+1$ and $-1$ and pays $r = \pm 1 - p_a$, "the same up to
# scale". What does the policy report for $q = (.7, .3)$? Derive it, then check it by
# `exact.fixed_point` with your own reward.
# :::
#
# :::{solution-start} ex-identity-2
# :label: sol-identity-2
# :class: dropdown
# :::
#
# $r = 2c - 1 - p_a = 2(c - \tfrac12 p_a) - 1$. The constant $-1$ does not depend on the
# action, so it drops out of the mean; the factor 2 changes the speed only. What is left is
# {prf:ref}`prp-weight` with $\lambda = \tfrac12$: $p = (.7 - .25)/.5 = .9$. In code,
# $r$ is the RLVR reward plus the RLCD reward minus one.


# %%
def signed(log_probs, feedback):
    outcome = rlvr_reward(log_probs, feedback)
    return outcome + rlcd_reward(log_probs, feedback) - 1


plus_minus = policy_gradient(
    "plus minus", signed, equation="prp-weight", calibrates=False
)
exact.fixed_point(plus_minus, q_2).p.numpy().round(4)

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} Two teams could both have solved it
# :label: ex-identity-3
#
# Suppose A is accepted with chance .6, B with .6, and C with .1, because some tickets
# would be kept by either team. Where does RLCD end? Is any option's number honest?
# :::
#
# :::{solution-start} ex-identity-3
# :label: sol-identity-3
# :class: dropdown
# :::
#
# The mean direction is still $J(q - p)$, now with entries of $q$ that sum to $1.3$. It
# vanishes where $q - p$ has equal entries, that is $p = q - .3/3 = (.5, .5, 0)$: every
# number is too low by the same amount, and C is at the edge. No distribution over
# exclusive options can say ".6 and .6"; ask two yes/no questions instead. Started from
# uniform, the flow creeps towards that edge and reaches it only in the limit:

# %%
overlap = torch.tensor([0.6, 0.6, 0.1])


def overlap_field(logits):
    stated = torch.softmax(logits, -1)
    gap = overlap - stated
    return stated * (gap - (stated * gap).sum(-1, keepdim=True))


end = exact.settle(overlap_field, [1 / 3] * 3, method="flow", steps=4000)
end.p.numpy().round(2)

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} A baseline that contains itself
# :label: ex-identity-4
#
# With $G$ actions a question, subtract the group's mean reward, one's own included. Show
# that the mean direction is $\frac{G-1}{G} J (q - p)$: a shorter step, not a different one.
# :::
#
# :::{solution-start} ex-identity-4
# :label: sol-identity-4
# :class: dropdown
# :::
#
# $r_i - \bar r = \frac{G-1}{G}\bigl(r_i - b_i\bigr)$ with $b_i = \frac{1}{G-1}\sum_{j \ne i}
# r_j$, the leave-one-out baseline {cite:p}`kool2019,ahmadian2024`. Given the label, $b_i$
# does not depend on $a_i$, and $\mathbb{E}[\nabla \log p_{a_i}] = \nabla \sum_a p_a = 0$,
# so it drops out of the mean. The ratio of the enumerated means, for $G$ = 2, 3, 4:

# %%
for group in (2, 3, 4):
    own = exact.moments(OBJECTIVES["rlcd_mean"], p_true, q_true, group)
    print(group, (own.mean.numpy() / formula).round(4))

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# {cite:t}`williams1992` for the estimator, {cite:t}`brier1950` for the score (three pages, about
# weather), {cite:t}`savage1971` and {cite:t}`gneiting2007` for what makes a score proper.
# The reward $c - p_a$ for decisions is that of {cite:t}`everlcd`, whose recipe is an arm of
# this book. {cite:t}`yang2023` use the letters RLCD for something else.
#
# Next: {doc}`02_calibration` on how to see whether a policy keeps its word, and
# {doc}`04_variance` on how many outcomes it takes.
