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
# # Is it reinforcement learning?
#
# **Question.** The world answers only for the option that was taken. Does that force us to
# use policy gradients, and must the policy act by itself to learn honest probabilities?
#
# **Answer.** No, twice. RLCD's step is a weighted regression of the outcome on the stated
# probability; ordinary losses on the same bit have the same resting place; and it stays the same
# for any behaviour policy that reaches all options, an old log included. Plain outcome reward ends
# somewhere else for every log but a uniform one.
#
# **After this page you can** train on a log without propensities and say when that is
# sound, recognise where RLVR ends under any way of acting, and tell when the choice of
# actions does change the answer.
#
# **Running time.** Half a minute on any machine (CPU, T4 or A100 make no difference);
# nothing is downloaded.

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

# %% mystnb={"figure": {"caption": "Where the mean direction leads when the policy acts by itself (left) and when it learns from a log that took A, B, C with chances (.1, .3, .6) (right). Star: the truth (.5, .3, .2); diamond: where the flow ends. RLCD (top) ends at the truth either way, by another road; RLVR (bottom) ends in a corner, or at the normalised product of truth and log. Contours: the function that each flow descends.", "name": "fig-rl-portrait"}, "image": {"alt": "Four triangles of policies over options A, B, C. Top, RLCD: on-policy and from a log, all arrows lead to the star at the truth; the contours are circles on the left and stretched ovals on the right, both centred on the star. Bottom, RLVR: on-policy, arrows lead past the star to corner A; from a log, arrows lead to a diamond nearer to C, away from the star."}} tags=["hide-input"]
import numpy as np
import pandas as pd
import sympy
import torch
from scipy.optimize import brentq

from rlcd_core import exact, plots
from rlcd_core.records import save_numbers
from rlcd_core.rewards import OBJECTIVES, Feedback, lambda_mix, sample_actions

plots.use_style()
torch.set_default_dtype(torch.float64)
rng = np.random.default_rng(seed)
q_3, log_3 = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])


def velocity(objective, q, behaviour):
    """How p moves under an objective's exact mean direction d: dp/dt = J d."""
    direction = exact.field(OBJECTIVES[objective], q, behaviour=behaviour)

    def at(p):
        d = direction(torch.tensor(p).log()).numpy()
        return p * (d - (p * d).sum(1, keepdims=True))

    return at


descends = {
    ("rlcd", "acts itself"): lambda p: ((p - q_3) ** 2).sum(1),
    ("rlcd", "from a log"): lambda p: (p - q_3 * np.log(p)) @ log_3,
    ("rlvr", "acts itself"): lambda p: 1 - p @ q_3,
    ("rlvr", "from a log"): lambda p: -np.log(p) @ (log_3 * q_3),
}
logged_end = log_3 * q_3 / (log_3 @ q_3)
ends = dict(zip(descends, (q_3, q_3, np.eye(3)[0], logged_end), strict=True))
fig, axes = plots.figure(2, 2, height=3.1)
for ax, (key, potential) in zip(axes.flat, descends.items(), strict=True):
    arm, acting = key
    height = plots.prepare_simplex(potential, margin=0.01)
    levels = np.quantile(height.value, np.linspace(0, 1, 12)[1:-1] ** 1.5)
    plots.plot_simplex(ax, height, levels=levels)
    mu = log_3 if acting == "from a log" else None
    field = plots.prepare_simplex(velocity(arm, q_3, mu), resolution=8, margin=0.1)
    plots.plot_field(ax, field, arm, power=0.2)
    ax.plot(*plots.to_xy(q_3), marker="*", ms=15, color=plots.INK, mec="none")
    color = plots.arm_style(arm).color
    if arm == "rlvr":
        ax.plot(*plots.to_xy(ends[key]), marker="D", ms=9, color=color)
    ax.set_title(f"{arm.upper()}, {acting}", pad=12)
_ = axes[0, 0].set(aspect="equal")

# %% [markdown]
# ## A log of tickets
#
# Last year a rule routed the tickets: mostly to the team with free hands, now and then to the
# likely one. For each ticket you have the text, the team, and whether the team kept it. Nobody
# wrote down with what chance the rule chose (the *propensity*), and the policy you want to train did
# not exist.
#
# Two things are often said about such data. *First*: it is bandit feedback, so supervised
# learning does not apply and you need a policy gradient. *Second*: policy gradients need
# on-policy data, so you need importance weights or a new experiment. For the task of this
# book, honest probabilities over options that exclude each other, both are wrong, and both
# for the same reason.
#
# ## It is a regression
#
# :::{prf:theorem} RLCD as regression, and its supervised sisters
# :label: thm-regression
#
# Let $a$ be any action with $0 < p_a < 1$, drawn from whatever $\mu$, and $c$ its outcome.
#
# (a) Sample by sample
#
# $$
# (c - p_a)\, \nabla \log p_a = -\nabla\, \frac{(c - p_a)^2}{2\, \mathrm{sg}[p_a]} .
# $$ (eq-regression)
#
# With a baseline the regressed quantity is $c - b$ instead of $c$.
#
# (b) *Verdict Brier* $\tfrac12 (c - p_a)^2$ and *verdict NLL* $-[c \log p_a + (1 - c) \log(1 -
# p_a)]$ have the negative gradient $(c - p_a)\, h(p_a)\, \nabla \log p_a$ with $h = p$ and $h
# = 1/(1 - p)$. RLCD is $h = 1$.
#
# (c) Let $\mu$ be fixed and leave at most one option unreached. Then the expected verdict
# loss, for any strictly proper score of a yes/no event, has $p = q$ as its one minimum on the
# simplex. If two or more options are unreached, the stated probabilities of the reached
# ones are right and the rest of the mass may lie anywhere.
#
# (d) At $K = 2$ the verdict is the label: up to a constant factor both verdict losses are the
# full-label losses, whatever $\mu$ was.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# (a) The right side is $\frac{(c - p_a) \nabla p_a}{\mathrm{sg}[p_a]} = (c - p_a) \nabla \log
# p_a$. With $c - b$ for $c$ on both sides the same line holds.
#
# (b) $-\nabla \tfrac12 (c - p_a)^2 = (c - p_a) \nabla p_a = (c - p_a)\, p_a \nabla \log p_a$.
# And $\nabla [c \log p_a + (1 - c) \log (1 - p_a)] = \bigl(\frac{c}{p_a} - \frac{1 - c}{1 -
# p_a}\bigr) \nabla p_a = \frac{c - p_a}{p_a (1 - p_a)}\, p_a \nabla \log p_a$.
#
# (c) Given $a$, $c$ is 1 with chance $q_a$. With $\ell$ the strictly proper loss of an event
# the expected loss is $\sum_a \mu_a [q_a \ell(p_a, 1) + (1 - q_a) \ell(p_a, 0)]$. Each bracket
# is least at $p_a = q_a$ and only there, and $p = q$ makes all least at once. So at a
# minimum $p_a = q_a$ wherever $\mu_a > 0$. One missing entry follows from the sum; two do not.
#
# (d) $c$ and $a$ together say which of two options is right, and $1 - p_a$ is the stated
# probability of the other one. $\square$
# :::
#
# The heart of (c) is that a softmax head states a probability for *each* option, so each
# logged outcome is an honest yes/no example about one of them. Nothing is missing from the
# data except examples about options that were never tried.
#
# Symbolically, for two and three options; the stop-gradient is a letter that is not
# differentiated:

# %%
c, held = sympy.symbols("c held")
remainders = set()
for size in (2, 3):
    z = sympy.symbols(f"z1:{size + 1}", real=True)
    mass = sum(sympy.exp(u) for u in z)
    for u in z:
        p_a = sympy.exp(z[0]) / mass
        step = (c - p_a) * sympy.diff(sympy.log(p_a), u)
        regression = (c - p_a) ** 2 / (2 * held)
        hit, miss = sympy.log(p_a), sympy.log(1 - p_a)
        for loss, h in (
            (regression, 1),
            ((c - p_a) ** 2 / 2, p_a),
            (-(c * hit + (1 - c) * miss), 1 / (1 - p_a)),
        ):
            slope = sympy.diff(loss, u).subs(held, p_a)
            remainders.add(sympy.simplify(slope + h * step))
print("what is left:", remainders)

# %% [markdown]
# And in the code that trains, row by row, on actions from an arbitrary log over four
# options: each row's gradient against RLCD's times $h$.

# %%
truth = np.array([0.6, 0.25, 0.1, 0.05])
log = np.array([0.1, 0.2, 0.3, 0.4])
n, stated = 20_000, np.array([0.2, 0.4, 0.3, 0.1])
actions = rng.choice(4, size=(n, 1), p=log)
outcomes = 1.0 * (rng.random((n, 1)) < truth[actions])
seen = Feedback(torch.tensor(actions), torch.tensor(outcomes))


def row_directions(name):
    """Minus the gradient of the training loss in each row's logits."""
    leaf = torch.tensor(np.log(stated)).repeat(n, 1).requires_grad_(True)
    OBJECTIVES[name](torch.log_softmax(leaf, -1), seen).sum().backward()
    return -leaf.grad.numpy()


base, own = row_directions("rlcd"), stated[actions]
forms = {
    "rlcd_regression": np.ones_like(own),
    "verdict_brier": own,
    "verdict_nll": 1 / (1 - own),
}
for name, h in forms.items():
    gap = np.abs(row_directions(name) - h * base).max()
    print(f"{name:16s} equal in all {n:,} rows: {gap < 1e-12}")

# %% [markdown]
# ## Any way of acting, the same resting place
#
# Part (c) holds $\mu$ fixed. What if the actions come from the policy itself, or from the policy
# sharpened, flattened, or mixed with random choices? Then the data move with $p$, and the
# direction need not be the gradient of any loss. The resting place survives even that.
#
# :::{prf:theorem} Any behaviour policy, the same calibrated end
# :label: thm-behaviour
#
# Let a question have logits of its own (the tabular case), $q_k > 0$, $a \sim \mu$ where $\mu$
# may depend on $p$, and let the direction be $f = \sum_a \mu_a\, h_a (q_a - p_a)\, g_a$ with
# $g_a = e_a - p$ and any $h_a > 0$ (RLCD $h = 1$; the verdict losses as above), $\mu$ and $h$
# smooth in $p$. Let at most one option be unreached.
#
# (a) Inside the simplex, $f = 0$ if and only if $p = q$.
#
# (b) There, $f$ has the derivative $-\sum_a \mu_a h_a p_a\, g_a g_a^\top$ in the logits:
# symmetric, with negative eigenvalues but for the shift of all logits, which moves nothing. So
# $q$ is stable, and near it the approach does not oscillate.
#
# (c) For fixed $\mu$ and $h = 1$, $f = -\nabla_z L$ with the Lyapunov function
#
# $$ L(p) = \sum_a \mu_a\, (p_a - q_a \log p_a) , $$ (eq-lyapunov)
#
# and if $\mu$ reaches every option the flow $\dot z = f$ ends at $q$ from every start.
#
# (d) With $h = 1$, a leave-one-out baseline or the group mean keeps the end $q$ if $\mu$ reaches
# *every* option. A constant $b \ne 0$ keeps it only if $\mu = p$ there.
#
# (e) With the weights $p_a / \mu_a$ the direction is the Brier gradient $J(q - p)$ again.
# So it is for $\frac{p_a}{\hat\mu_a} (c - m_a)\, g_a + J(m - p)$, with a model $m$ of the outcome
# rates, if the propensities $\hat\mu$ *or* the model are right; $m = p$ is weighted RLCD.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# (a) Put $w_a = \mu_a h_a (q_a - p_a)$ and $W = \sum_a w_a$. Then $f = w - W p$, so $f = 0$ means
# $w_a = W p_a$ for all $a$. If $W > 0$, every $w_a > 0$, so $q_a > p_a$ for all $a$, which two
# distributions cannot do. If $W < 0$, likewise $q_a < p_a$ for all. So $W = 0$, every $w_a = 0$,
# and $p_a = q_a$ wherever $\mu_a > 0$; the last entry follows from the sum.
#
# (b) At $p = q$ the derivatives of $\mu_a$, $h_a$ and $g_a$ are multiplied by $q_a - p_a = 0$. What
# is left comes from $\partial p_a/\partial z = p_a g_a$. For a vector $v$, $v^\top (\sum_a
# \mu_a h_a p_a g_a g_a^\top) v = \sum_a \mu_a h_a p_a (v_a - p^\top v)^2$ is zero only if $v_a = p^\top
# v$ for all reached $a$, and then for an unreached one too, since $p^\top v$ is the mean of
# $v$. Such a $v$ is a shift.
#
# (c) $\nabla_z p_a = p_a g_a$, so $\nabla_z L = \sum_a \mu_a (1 - q_a / p_a)\, p_a g_a = -f$. Hence
# $\dot L = -\|f\|^2$. If all $\mu_a q_a > 0$, $L$ grows without bound towards the boundary, so the path
# stays in a compact part of the inside, where $f = 0$ only at $q$; by LaSalle's principle it
# ends there.
#
# (d) The baseline of action $i$ is independent of $a_i$ (given $y$, if the label is shared) and
# has the mean $W$ over the others and $y$. As $\mathbb{E}_\mu[g_a] = \mu - p$, the direction is $w -
# Wp - W(\mu - p) = w - W \mu$ with $w_a = \mu_a (q_a - p_a)$, times $(G - 1)/G$ for the group mean. It is 0
# iff $q_a - p_a = W$ wherever $\mu_a > 0$. If that is everywhere, the sum gives $W = 0$; if an option
# is unreached, a line of solutions is left. Its derivative at $q$ is $-(\operatorname{diag} \mu - \mu
# \mu^\top) J$, a product of two matrices that are positive definite across the shifts, so its
# spectrum there is real and negative. A constant subtracts $b (\mu - p)$, which
# vanishes at $q$ only if $b = 0$ or $\mu = q$.
#
# (e) $\sum_a \mu_a \frac{p_a}{\mu_a} (q_a - p_a) g_a = J(q - p)$ as in {prf:ref}`thm-identity`. In
# general the mean is $\sum_a \mu_a \frac{p_a}{\hat\mu_a} (q_a - m_a) g_a + J(m - p)$: for $\hat\mu =
# \mu$ it is $J(q - m) + J(m - p)$, for $m = q$ the first term is 0. $\square$
# :::
#
# The proof of (a) uses only that $q$ and $p$ are both distributions. The data may be lopsided, as
# long as they are lopsided by option and not by outcome. Only (c) is global: where $\mu$ moves
# with $p$, the theorem gives a single resting place that is locally stable.
#
# The exact ends for the truth {res}`05_is_it_rl:truth_text` over five ways of acting, starting from
# uniform; RLVR is taken along for contrast.

# %%
behaviours = {
    "on-policy": None,
    "30 % random": lambda p: 0.7 * p + 0.3 / 4,
    "temperature 2": lambda p: torch.softmax(p.log() / 2, -1),
    "logged": log,
    "uniform log": np.full(4, 0.25),
}
arms = ("rlcd", "verdict_nll", "verdict_brier", "rlvr")
found = {
    arm: {
        way: exact.fixed_point(OBJECTIVES[arm], truth, behaviour=mu)
        for way, mu in behaviours.items()
    }
    for arm in arms
}
off = [
    np.abs(end.p.numpy() - truth).max()
    for arm in arms[:3]
    for end in found[arm].values()
]
print("RLCD and verdict losses, within 1e-9:", max(off) < 1e-9)
rlvr_ends = {way: end.p.numpy() for way, end in found["rlvr"].items()}
pd.DataFrame(rlvr_ends, index=["A", "B", "C", "D"]).T.round(3)

# %% [markdown]
# All three calibrated objectives end within $10^{-9}$ of the truth under all five; the table is where
# *RLVR* ends. It is honest under the uniform log and nowhere else. Random truths and
# logs, two to six options, a hole in the log where (a) allows one, and the spectrum
# against (b):

# %%
distance, spectrum = [], []
for size in range(2, 7):
    for hole in (False, True):
        q, mu = rng.dirichlet(2 * np.ones(size), 2)
        if hole and size > 2:
            mu[-1] = 0
            mu /= mu.sum()
        for arm, h in (
            ("rlcd", np.ones(size)),
            ("verdict_nll", 1 / (1 - q)),
            ("verdict_brier", q),
        ):
            objective = OBJECTIVES[arm]
            start = q[::-1].copy()
            end = exact.fixed_point(objective, q, start=start, behaviour=mu)
            distance.append(np.abs(end.p.numpy() - q).max())
            g = np.eye(size) - q  # row a is g_a
            slope = -(g.T * (mu * h * q)) @ g
            rate = np.sort(np.linalg.eigvalsh(slope))[-2]
            spectrum.append(abs(rate - end.rate))
save_numbers("05_is_it_rl", {"ends": len(distance)})
print(len(distance), "ends, within 1e-8:", max(distance) < 1e-8)
print("slowest rates, within 1e-6:", max(spectrum) < 1e-6)

# %% [markdown]
# **By simulation.** Now with sampled actions and bits, through the objectives that train: tabular
# policies start from uniform and take {res}`05_is_it_rl:steps` steps of {res}`05_is_it_rl:group`
# outcomes each, with shrinking steps; {res}`05_is_it_rl:copies` copies give the standard error.

# %%
generator = torch.Generator().manual_seed(seed)
copies, group, steps = 24, 32, 300
ways = {
    "on-policy": {},
    "30 % random": {"epsilon": 0.3},
    "temperature 2": {"temperature": 2.0},
    "logged": {"log_mu": torch.tensor(log).log().expand(copies, 4)},
}


def train(arm, log_mu=None, **acting):
    """Final policies (copies, 4) of sampled training."""
    z, chance = torch.zeros(copies, 4), torch.tensor(truth)
    for t in range(steps):
        leaf = z.clone().requires_grad_(True)
        log_p = torch.log_softmax(leaf, -1)
        source = log_p.detach() if log_mu is None else log_mu
        a, mu = sample_actions(source, group, generator, **acting)
        coin = torch.rand(a.shape, generator=generator)
        told = Feedback(a, (coin < chance[a]).double(), mu)
        OBJECTIVES[arm](log_p, told).sum().backward()
        z = z - 6 / (1 + t / 50) * leaf.grad
    return torch.softmax(z, -1).numpy()


ran = {
    (way, arm): train(arm, **acting)
    for way, acting in ways.items()
    for arm in ("rlcd", "verdict_nll", "rlvr")
}
first = {key: p[:, 0] for key, p in ran.items()}
summary = pd.DataFrame(
    {
        arm: {
            way: f"{first[way, arm].mean():.3f} ± "
            f"{first[way, arm].std(ddof=1) / copies**0.5:.3f}"
            for way in ways
        }
        for arm in ("rlcd", "verdict_nll", "rlvr")
    }
)
save_numbers(
    "05_is_it_rl",
    {
        "steps": steps,
        "group": group,
        "copies": copies,
        "truth_text": "(" + ", ".join(map(str, truth)) + ")",
        "rlvr": {
            "random": rlvr_ends["30 % random"][0],
            "tempered": rlvr_ends["temperature 2"][0],
            "logged": rlvr_ends["logged"][0],
        },
    },
)
for way in ways:
    for arm in ("rlcd", "verdict_nll"):
        assert abs(first[way, arm].mean() - truth[0]) < 0.03
summary.rename(columns=lambda arm: plots.arm_style(arm).label)

# %% mystnb={"figure": {"caption": "Sampled training, what the policy states for option A, whose chance is .6 (dotted line): mean of the copies with two standard errors. RLCD and verdict NLL say .6 however the actions were chosen. RLVR reports the way of acting; short grey bars: where the theory says it ends.", "name": "fig-rl-ends"}, "image": {"alt": "Dot plot with four rows: on-policy, 30 percent random, temperature 2, logged. In every row the RLCD circle and the verdict NLL circle lie on the line at 0.6. RLVR triangles lie near 1, 0.91, 0.83 and 0.38, each on the grey bar of its predicted end."}} tags=["hide-input"]
fig, ax = plots.figure(height=3.4)
ax.axvline(truth[0], color=plots.INK, lw=1, ls=":")
for row, way in enumerate(ways):
    ax.plot([rlvr_ends[way][0]] * 2, [row + 0.05, row + 0.4], color=plots.INK, lw=4)
    shifts = {"rlcd": -0.22, "verdict_nll": 0.0, "rlvr": 0.22}
    for arm, shift in shifts.items():
        p, look = first[way, arm], plots.arm_style(arm).drawn
        wide = 2 * p.std(ddof=1) / copies**0.5
        at = row + shift
        ax.plot([p.mean() - wide, p.mean() + wide], [at, at], color=look["color"])
        ax.plot(p.mean(), at, **look)
        if row == 3:
            side = {"xytext": (12, 0)} if p.mean() > 0.5 else {"xytext": (10, 0)}
            name = plots.arm_style(arm).label.split(",")[0]
            plots.note(ax, name, p.mean(), at, color=look["color"], **side)
ax.set_yticks(range(4), list(ways))
_ = ax.set(xlim=(0.3, 1.02), ylim=(3.5, -0.5), xlabel="stated for option A")

# %% [markdown]
# ## Where RLVR ends
#
# :::{prf:proposition} RLVR reports the way of acting
# :label: prp-rlvr-log
#
# Let $q_k > 0$ and follow RLVR, unweighted and without baseline, in the tabular case.
#
# (a) From a fixed log that reaches every option it ends at $p \propto \mu_k q_k$, which is $q$
# exactly if the log is uniform.
#
# (b) Acting from $\mu \propto p^{1/\tau}$ with $\tau > 1$ it ends at $p \propto q^{\tau/(\tau - 1)}$. At
# $\tau = 2$ the distribution it *samples* from is $q$. For $\tau \le 1$ there is no stable end inside
# (unless $q$ is uniform and $\tau = 1$).
#
# (c) With a share $\varepsilon$ of uniformly random actions it ends at $p_k = \frac{\varepsilon}{K}
# \frac{q_k}{\Lambda - (1 - \varepsilon) q_k}$, $\Lambda$ chosen so that they sum to 1.
# :::
#
# :::{prf:proof}
# :class: dropdown
#
# The direction is $\sum_a \mu_a q_a g_a = w - (\sum w) p$ with $w_a = \mu_a q_a$; it vanishes iff $p \propto
# w$. In each case it is, up to a positive factor, the logit gradient of a potential
# $\Phi(p) = \sum_a \phi_a(p_a)$, because $\nabla_z \Phi = \sum_a \phi_a'(p_a)\, p_a g_a$, so $\phi_a' = w_a/p_a$:
# (a) $\Phi = \sum_a \mu_a q_a \log p_a$; (b) $\Phi = \tau \sum_a q_a p_a^{1/\tau}$ (factor: the normaliser of
# $\mu$); (c) $\Phi = \sum_a q_a [(1 - \varepsilon) p_a + \frac{\varepsilon}{K} \log p_a]$. In (a), (c), and (b) with
# $\tau > 1$, $\Phi$ is strictly concave with infinite slope at the boundary, so it has one maximum, inside,
# and it is the stable end. Solving $p \propto w$: (b) $p_a \propto p_a^{1/\tau} q_a$ gives $p_a^{1 -
# 1/\tau} \propto q_a$; then $\mu \propto q^{1/(\tau - 1)}$. (c) $\Lambda p_a = ((1 - \varepsilon) p_a + \varepsilon/K)
# q_a$ with $\Lambda = \sum w$. In (b) with $\tau < 1$, $\Phi$ is strictly convex and with $\tau = 1$ linear: no
# maximum inside. $\square$
# :::
#
# In the picture, (a) is imitation of the successes in the log, {res}`05_is_it_rl:rlvr.logged:.3f` for a truth of
# .6; (b) and (c) are over-confident, at {res}`05_is_it_rl:rlvr.tempered:.3f` and
# {res}`05_is_it_rl:rlvr.random:.3f`. Exploration does not make RLVR honest; it moves where it lies.
#
# ## The same place, not the same road
#
# What the way of acting changes is the road and the speed. The function that falls is
# {eq}`eq-lyapunov`, not the Brier score: from a lopsided log, honesty about the options
# that were tried often is bought first, and the distance to the truth may grow for a while.

# %%
lopsided, start = [0.05, 0.05, 0.9], np.array([0.01, 0.59, 0.4])
move = exact.field(OBJECTIVES["rlcd"], q_3, behaviour=lopsided)
z, path = torch.tensor(np.log(start))[None], []
for _ in range(600):
    path.append(torch.softmax(z, -1)[0].numpy())
    z = z + move(z)
path = np.array(path)
gap = ((path - q_3) ** 2).sum(1)
height = (path - q_3 * np.log(path)) @ np.array(lopsided)
bump = gap.max() / gap[0]
save_numbers("05_is_it_rl", {"bump": bump})
falls = bool((np.diff(height) < 0).all())
print("Lyapunov function falls at every step:", falls)
print(f"squared distance to the truth, most over first: {bump:.2f}")

# %% [markdown]
# The speed near the end is the slowest rate in part (b). Its inverse is how many steps of
# unit length the mean direction takes to shrink the last error by a factor $e$:

# %%
slow = {
    arm: {way: round(-1 / end.rate) for way, end in found[arm].items()}
    for arm in arms[:3]
}
chosen = ("on-policy", "logged")
told = {arm: [row[way] for way in chosen] for arm, row in slow.items()}
save_numbers("05_is_it_rl", {"slow": told})
pd.DataFrame(slow).rename(columns=lambda arm: plots.arm_style(arm).label)

# %% [markdown]
# Two readings. A policy that acts by itself learns slowest about what it believes to be rare,
# since it hardly tries it: RLCD takes {res}`05_is_it_rl:slow.rlcd.0` steps on-policy and
# {res}`05_is_it_rl:slow.rlcd.1` from this log, which tries D often. And *proper* is not
# *practical*: verdict Brier, whose step carries another factor $p_a$, needs
# {res}`05_is_it_rl:slow.verdict_brier.0`. Between RLCD and verdict NLL there is little to
# choose here.
#
# ## When parameters are shared
#
# "Tabular" was an assumption. Let *one* logit serve two questions, equally frequent, for
# which A is right with chance .9 and .2. No honest answer is in reach; the best Brier score and
# the best log loss are both at the average, .55. Now the data decide what is compromised:

# %%
logs = {"on-policy": (None, None), "A logged .9, .1": (0.9, 0.1)}
logs["A logged .1, .9"] = (0.1, 0.9)


def compromise(name, first):
    """Stated chance of A where the summed mean direction is zero."""
    parts = []
    for chance, mu in zip((0.9, 0.2), first, strict=True):
        mu = None if mu is None else [mu, 1 - mu]
        q = [chance, 1 - chance]
        parts.append(exact.field(OBJECTIVES[name], q, behaviour=mu))

    def total(u):
        return sum(float(f(torch.tensor([[u, 0.0]]))[0, 0]) for f in parts)

    u = brentq(total, -5, 5, xtol=1e-14)
    return 1 / (1 + np.exp(-u))


shared = {
    title: {name: compromise(arm, first) for name, first in logs.items()}
    for title, arm in {
        "RLCD": "rlcd",
        "RLCD, weights p/μ": "rlcd_ips",
        "verdict Brier": "verdict_brier",
        "verdict NLL": "verdict_nll",
    }.items()
}
save_numbers(
    "05_is_it_rl",
    {
        "shared": list(shared["RLCD"].values()),
        "weighted": list(shared["RLCD, weights p/μ"].values()),
    },
)
pd.DataFrame(shared).T.round(3)

# %% [markdown]
# RLCD's answer moves with the log: {res}`05_is_it_rl:shared.0:.3f` on-policy, then
# {res}`05_is_it_rl:shared.1:.3f` and {res}`05_is_it_rl:shared.2:.3f`. Weights restore
# {res}`05_is_it_rl:weighted.1:.3f`. The two verdict losses stand still, because at $K = 2$ a verdict
# is a label ({prf:ref}`thm-regression` d). With three options they move as well:

# %%
pair = ([0.7, 0.2, 0.1], [0.2, 0.2, 0.6])
logged = {
    "uniform": ([1 / 3] * 3, [1 / 3] * 3),
    "the likely one": ([0.8, 0.1, 0.1], [0.1, 0.1, 0.8]),
    "an unlikely one": ([0.1, 0.1, 0.8], [0.8, 0.1, 0.1]),
}


def shared_end(name, behaviours):
    parts = [
        exact.field(OBJECTIVES[name], q, behaviour=mu)
        for q, mu in zip(pair, behaviours, strict=True)
    ]
    end = exact.settle(lambda z: sum(f(z) for f in parts), [1 / 3] * 3)
    return end.p[0].item()


moved = {
    name: {way: shared_end(arm, mus) for way, mus in logged.items()}
    for name, arm in {
        "RLCD": "rlcd",
        "verdict NLL": "verdict_nll",
        "verdict Brier": "verdict_brier",
        "RLCD, weights p/μ": "rlcd_ips",
    }.items()
}
save_numbers("05_is_it_rl", {"moved": list(moved["verdict NLL"].values())})
pd.DataFrame(moved).T.round(3)

# %% [markdown]
# (Stated chance of A, one softmax for two questions with truths (.7, .2, .1) and (.2, .2, .6), whose
# average is .45; verdict NLL gives {res}`05_is_it_rl:moved.1:.3f` or
# {res}`05_is_it_rl:moved.2:.3f`.) So the rule is: *a policy that can express the truth gets it from any
# log; one that cannot gets a compromise, weighted by what was tried.*
#
# ## So is it?
#
# The step of RLCD is supervised: a regression on one bit, {eq}`eq-regression`. What is left of
# reinforcement learning is that the policy may choose the data. That matters for speed, for
# shared parameters, and for what the decisions cost meanwhile; it is not needed for honesty.
# What an engineer should do:
#
# 1. **A log without propensities:** train verdict NLL on it. First count, per kind of question,
#    which options were tried: one that was never tried gets what the others leave over, and
#    between two such options the split is arbitrary.
# 2. **A log with propensities:** train verdict NLL as well, and weighted RLCD as a check. If
#    they disagree by more than noise, parameters are shared in a way that matters; the weighted
#    answer is the one for actions drawn from your policy, at a price in variance.
# 3. **You can act:** act on-policy if decisions must be good meanwhile, and add some random choices
#    if rare options matter; the loss stays the same.
# 4. **Subtract nothing.** No constant baseline off-policy; no group baseline unless every
#    option is reached.
# 5. **Never read RLVR's $p$ as a probability** unless the actions were uniform.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - **A log with secrets.** All of this needs $\mathbb{E}[c \mid x, a] = q_a$: whoever chose the action knew no
#   more about $y$ than $x$ says. A clerk who saw the attachment breaks it for every
#   objective on this page ({ref}`ex-rl-4`).
# - **Exclusive options.** Part (a) lives on both vectors summing to one. If two teams would have
#   kept the ticket, the end depends on $\mu$.
# - **Deep networks.** {cite:t}`byrd2019` find that importance weights lose their effect in networks that
#   can separate the data; "weights restore" is a statement about the optimum of a small
#   class. {cite:t}`swaminathan2015` show the opposite trouble: unnormalised weights let a rich class
#   overfit the propensities.
# - **Decisions, not probabilities.** If the goal is reward under misspecification, optimising it
#   directly may beat a regression. {cite:t}`foster2020` show that regression suffices for optimal contextual bandits,
#   but assume that the class holds the truth.
# - **Noise.** A flipped outcome bit makes the end depend on $\mu$ again ({prf:ref}`thm-noise`).
# - **A task on which RLCD beats verdict NLL by a margin that matters.** On the rater bandit its Brier
#   score minus verdict NLL's is {res}`20_rater_bandit:brier_gap.rlcd-verdict_nll:.4f` at one common
#   rate and {res}`24_what_happened:gaps.rlcd-verdict_nll:.4f` with each tuned
#   ({doc}`24_what_happened`): told apart, in both directions, and too small to notice.
# :::
#
# ## Exercises
#
# :::{exercise} A small constant
# :label: ex-rl-1
#
# With the log (.1, .2, .3, .4) and the truth (.6, .25, .1, .05), subtract the constant .1 from RLCD's
# reward, "to reduce variance". What is stated for option A at the end? Does it matter on-policy?
# :::
#
# :::{solution-start} ex-rl-1
# :label: sol-rl-1
# :class: dropdown
# :::
#
# The direction gains $-b (\mu - p)$, by the proof of {prf:ref}`thm-behaviour` (d): it pushes away from what
# the log tried. On-policy $\mu = p$ and it vanishes.

# %%
constant = lambda_mix("constant", 1.0, constant=0.1)
for name, mu in (("logged", log), ("on-policy", None)):
    end = exact.fixed_point(constant, truth, behaviour=mu)
    print(f"{name:10s} {end.p[0].item():.3f}")
    assert (abs(end.p[0].item() - 0.6) > 0.2) == (mu is not None)

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} A hole in the log
# :label: ex-rl-2
#
# The log never tried D. Show that verdict NLL still finds $q$, but leave-one-out RLCD (two actions per
# question) stands still at a wrong $p$.
# :::
#
# :::{solution-start} ex-rl-2
# :label: sol-rl-2
# :class: dropdown
# :::
#
# Without a baseline, $p_D$ follows from the sum. With leave-one-out any $p$ with $q_a - p_a$ equal over A, B, C is
# at rest, for example $q - p = (.01, .01, .01, -.03)$: the group says only who is better than whom.

# %%
hole = [0.5, 0.2, 0.3, 0.0]
end = exact.fixed_point(OBJECTIVES["verdict_nll"], truth, behaviour=hole)
assert np.abs(end.p.numpy() - truth).max() < 1e-8
wrong = torch.tensor(truth - [0.01, 0.01, 0.01, -0.03]).log()[None]
for name in ("rlcd", "rlcd_loo"):
    f = exact.field(OBJECTIVES[name], truth, group_size=2, behaviour=hole)
    still = f(wrong).abs().max().item() < 1e-15
    print(f"{name:9s} at rest at the wrong p: {still}")

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} A free lunch at temperature two?
# :label: ex-rl-3
#
# RLVR trained while sampling at temperature 2 samples, at the end, from $q$. Could one train RLVR so
# and *report* the sampling distribution? Check it, then find what noise in the temperature does: train
# at 1.8 and report at 1.8.
# :::
#
# :::{solution-start} ex-rl-3
# :label: sol-rl-3
# :class: dropdown
# :::
#
# In the tabular case yes: $\mu \propto q^{1/(\tau - 1)}$ by {prf:ref}`prp-rlvr-log`, which is $q$ at $\tau = 2$. At 1.8 it is
# $q^{1.25}$, over-confident. It is a coincidence of one temperature, with RLVR's variance; RLCD needs no such luck.

# %%
reported = {}
for tau in (2.0, 1.8):
    end = exact.fixed_point(
        OBJECTIVES["rlvr"],
        truth,
        behaviour=lambda p, tau=tau: torch.softmax(p.log() / tau, -1),
    )
    reported[tau] = torch.softmax(end.p.log() / tau, -1).numpy()
    theory = truth ** (1 / (tau - 1))
    assert np.abs(reported[tau] - theory / theory.sum()).max() < 1e-8
pd.DataFrame(reported, index=["A", "B", "C", "D"]).T.round(3)

# %% [markdown]
# :::{solution-end}
# :::
#
# :::{exercise} A log with a secret
# :label: ex-rl-4
#
# Two options, $q = (.6, .4)$ given the text. A clerk who reads the attachment picks the right one with chance .9,
# whichever it is. What do RLCD and verdict NLL state at the end? Why do they differ?
# :::
#
# :::{solution-start} ex-rl-4
# :label: sol-rl-4
# :class: dropdown
# :::
#
# $\mu_A = .6 \cdot .9 + .4 \cdot .1 = .58$, and the logged success rates are $\tilde q = (.54/.58,\ .36/.42)$, which sum to far more
# than 1. RLCD rests where $\mu_A (\tilde q_A - p)(1 - p) = \mu_B (\tilde q_B - 1 + p)\, p$. Verdict NLL is saved by $K = 2$:
# verdict plus action is the label, and labels have frequency .6. With more options nothing saves it.

# %%
mu_a, hits = 0.58, np.array([0.54, 0.36])
rates = hits / [mu_a, 1 - mu_a]


def push(p):
    """RLCD's mean direction on A, per unit of logit."""
    right, wrong = mu_a * (rates[0] - p), (1 - mu_a) * (rates[1] - 1 + p)
    return right * (1 - p) - wrong * p


rest = brentq(push, 0.01, 0.99)
label_share = hits[0] + (1 - mu_a) - hits[1]
assert abs(label_share - 0.6) < 1e-12 and abs(rest - 0.6) > 0.02
print(f"RLCD states {rest:.3f}, verdict NLL {label_share:.3f}")

# %% [markdown]
# :::{solution-end}
# :::
#
# ## Further reading
#
# {cite:t}`williams1992` for the estimator that one can do without; {cite:t}`gneiting2007` for proper scores, on which part
# (c) rests. {cite:t}`foster2020` reduce contextual bandits to regression. {cite:t}`swaminathan2015` and
# {cite:t}`byrd2019` on what importance weights do and do not mend. Language models: {cite:t}`damani2025` and {cite:t}`bereket2025` train on-policy
# with policy gradients.
#
# Next: {doc}`06_one_bit` finds every objective that one bit can carry.
