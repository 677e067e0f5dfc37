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
# # Four things called RLCD
#
# **Question.** Five public documents explain "RLCD". Do they mean the same thing, where do
# they contradict each other, and which objective should *you* use?
#
# **Answer.** They mean four different objectives that share one aim, a probability that can
# carry a threshold. What you can observe decides between them, and the plainest choice, a log
# loss on the bit you hear, is often the right one.
#
# **After this page you can** read any text on RLCD and say which of the four it is about, name
# six claims that look contradictory and which of them really are, and pick an objective from a table.
#
# **Running time.** Seconds, on any machine.

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

# %% mystnb={"figure": {"caption": "One question with three options, the truth gives option A a chance of {res}`11_four_things:q_a`. Each row is a recipe from the documents; the mark is the probability of A at which a tabular policy trained with it comes to rest, computed exactly. Dotted: the truth. Four recipes rest there, three at certainty.", "name": "fig-four-ends"}, "image": {"alt": "Dot plot. Bandit RLCD, verdict log loss, composite score on the label, and log loss plus Brier on the label all end at the true 0.6. Outcome reward alone, and the answer of a stated-confidence model, end at 1. Standard-deviation-normalised RLCD ends at 1 as well."}} tags=["hide-input"]
import numpy as np
import pandas as pd
import torch

from rlcd_core import exact, plots
from rlcd_core.records import save_numbers
from rlcd_core.rewards import OBJECTIVES, stated_reward

plots.use_style()
truth = [0.6, 0.3, 0.1]
recipes = {
    "bandit, outcome minus p": ("rlcd", "rlcd", {}),
    "bandit, log loss on the bit": ("verdict_nll", "verdict_nll", {}),
    "label, log + spherical": ("log_spherical", "brier", {}),
    "label, log + Brier": ("nll_brier", "nll", {}),
    "bandit, outcome alone": ("rlvr", "rlvr", {}),
    "answer of a stated-confidence model": ("rlvr", "rlvr_loo", {}),
    "bandit, divided by the group's std": (
        "rlcd_std",
        "rlcd_std",
        {"group_size": 4, "method": "flow"},
    ),
}
ends = {
    name: exact.fixed_point(OBJECTIVES[objective], truth, **setting)
    for name, (objective, _, setting) in recipes.items()
}
fig, ax = plots.figure(height=3.6)
for row, (name, (_, arm, _)) in enumerate(recipes.items()):
    look = plots.arm_style(arm)
    ax.plot(float(ends[name].p[0]), row, marker=look.marker, color=look.color, ls="")
ax.axvline(truth[0], color=plots.INK, lw=1, ls=":")
ax.set_yticks(range(len(recipes)), list(recipes))
ax.tick_params(axis="y", length=0)
_ = ax.set(
    xlim=(0.4, 1.03), ylim=(len(recipes) - 0.5, -0.5), xlabel="final probability of A"
)

# %% tags=["remove-cell"]
save_numbers(
    "11_four_things",
    {"q_a": f"{truth[0]:g}"}
    | {
        f"end_{objective}": float(ends[name].p[0])
        for name, (objective, _, _) in recipes.items()
    },
)

# %% [markdown]
# ## The same word on one ticket
#
# A ticket says *"I was charged twice, and now the app crashes."* Billing keeps six of ten such
# tickets, bugs three, other teams one. Watch what each document would have a model learn from it.
#
# 1. **The bandit.** The model routes the ticket, hears whether the team kept it, and is paid
#    $c - p_a$. The reported distribution *is* the policy. This is the meaning of the repository
#    eve-rlcd {cite:p}`everlcd` and of this book ({prf:ref}`thm-identity`).
# 2. **The spoken confidence.** The model answers *billing* and *says* a confidence, one of a few
#    tokens; the reward scores the spoken number, for instance
#    $c - (v - c)^2$ {cite:p}`damani2025`. This is the meaning of the repository
#    rlcd-lite {cite:p}`rlcdlite`.
# 3. **The distribution as the action.** The whole distribution is the report, the label is
#    revealed, and a proper score of the report is the reward: log plus half the spherical score,
#    minus the ranked probability score for ordered options. Convai's documentation of its model
#    Laya means this, with Gaussian noise on the logits for exploration.
# 4. **The calibrated preference model.** Utilities of separately read candidates, a softmax
#    among them, a likelihood of the choices that were preferred, and a calibration term. The
#    essay "What is RLCD? The secret behind Jev" means this: Plackett–Luce plus a proper score.
#
# The fifth document, a practitioner's guide to outcome-based rewards, describes no fifth thing:
# it recommends (3) or (4) as log loss plus Brier score with recorded weights, followed by a
# temperature. None of the four is known to be the method of the vendor who coined the word:
# TypeSafe has not published it. And all four are unrelated to an older RLCD, reinforcement
# learning from *contrastive distillation* {cite:p}`yang2023`.

# %% tags=["hide-input"]
pd.DataFrame(
    {
        "what is reported": [
            "the policy itself",
            "a spoken number",
            "the policy itself",
            "the policy itself",
        ],
        "what must be observed": [
            "right or wrong",
            "right or wrong",
            "the label",
            "the label or a ranking",
        ],
        "objective": [
            "c − p_a",
            "c − (v − c)²",
            "log + ½ spherical (− RPS)",
            "log likelihood + Brier",
        ],
        "is RL needed": ["no", "if text is generated", "no", "no"],
    },
    index=["1 bandit", "2 spoken", "3 distribution", "4 preference"],
)

# %% [markdown]
# The last column is this book's judgement and not the documents'. For (1), a plain regression on
# the same bit has the same resting place ({prf:ref}`thm-regression`). For (3) and (4) the score
# is a differentiable function of the report, so its exact gradient costs one backward pass. Only
# in (2) is the number that is scored a *sampled token*. If a chain of text leads up to it, a policy
# gradient is unavoidable; if it is a single token, its expectation can even be summed exactly,
# because once the answer's bit is known the reward of every possible $v$ is known.
#
# ## Where they agree
#
# All five want a number on which software can act; all five reach for a strictly proper scoring
# rule; all five warn against checking only whether the best option was right; and all that
# mention it fit a temperature on data that no training has seen. None claims that a proper
# objective is *sufficient*, and two say from experience that it is not.
#
# ## Where they seem to contradict each other
#
# **Is reinforcement learning essential?** The bandit repository says that its feedback is what
# makes it RL, because with the outcome of one action there is no loss to differentiate. The essay
# says that the statistical heart is preference estimation and RL is not needed. The guide builds
# on policy gradients although its label is known. *Verdict:* the first argument is mistaken as
# stated. Sample by sample the policy gradient of $c - p_a$ is the gradient of a squared error that
# can be written down ({doc}`05_is_it_rl`).
#
# **Does the softmax survive RL?** rlcd-lite reports that every arm ends with a softmax confidence
# of .99 to 1.00 and concludes that probabilities after RL need a temperature. eve-rlcd reports an
# ECE of .023 after RL where its warm-up had .022. *Verdict:* both are right about different
# rewards. In (2) the answer is paid by $c$ alone, and its softmax goes to a corner while the spoken
# number stays honest; the picture above shows the same two ends. Nothing in (2) ever prices the
# softmax.

# %%
s = torch.tensor([0.3, 0.6, 0.9])  # chance that the chosen answer is right
honest = [
    float(
        chance * stated_reward(chance, torch.tensor(1.0), "rlcr")
        + (1 - chance) * stated_reward(chance, torch.tensor(0.0), "rlcr")
    )
    for chance in s
]
pd.DataFrame({"chance": s, "RLCR, honest v": honest}).round(3)

# %% [markdown]
# The honest reward grows with the chance of being right, so the *answer* is driven to its most
# probable option with all its mass, exactly as with the plain outcome reward.
#
# **Normalise the advantages?** The guide advises to normalise or baseline the reward to keep the
# variance down; GRPO divides by the group's standard deviation as a matter of course
# {cite:p}`shao2024`. *Verdict:* a baseline does not move the end, and where $p = q$ it has nothing to
# remove ({prf:ref}`thm-own-baseline`); dividing by the standard deviation destroys calibration, here a
# final {res}`11_four_things:end_rlcd_std:.2f` for a truth of {res}`11_four_things:q_a`
# ({prf:ref}`thm-std`). {cite:t}`bereket2025` report the same of reasoning models whose
# predicted probability is paid by a proper score.
#
# **Clamp the log?** Laya's reward floors the log at −9.21 to bound the damage of one example, and
# still calls the sum strictly proper. *Verdict:* the floor breaks propriety for rare options, and
# there is a bounded mend that does not ({prf:ref}`thm-clamp`).
#
# **Should irrelevant options be irrelevant?** The essay predicts independence of irrelevant
# alternatives and reads violations as a sign of joint encoding. eve-rlcd trains with "None of the
# above", for which the *truth* violates it. *Verdict:* a head with that property by construction
# cannot calibrate "None of the above" form by form ({prf:ref}`thm-plackett-luce`).
#
# **One Brier score or two?** The essay halves the sum over options so that two options give the
# binary formula; eve-rlcd and this book do not. *Verdict:* a convention, but .27 and .13 are then
# the same result, and every table must say which.
#
# ## What each has shown
#
# Facts as published by their authors, on data that are not comparable with each other:
#
# | meaning | evidence, as published | missing |
# |---|---|---|
# | 1 bandit {cite:p}`everlcd` | ECE .023 [.020, .029] at accuracy .808, three runs; outcome reward at a fifth of the rate .213 [.209, .216] | verdict losses, one outcome a case, other data |
# | 2 spoken {cite:p}`rlcdlite` | spoken ECE .084 with RLCR, .352 with the outcome reward; resolution of the spoken number .000; one run an arm, 300 tickets | more seeds; a softmax that is priced too |
# | 3 distribution | "ships over-confident" by its own card; act head AUROC .30, confidence .77 on 396 decisions | the comparison with a plain log loss |
# | 4 preference | an argument and five testable predictions | every measurement |
#
# ## Which objective should you use?
#
# Start from what your system observes after it has acted, not from the name of a method.
#
# | you observe | use | why, and what to watch |
# |---|---|---|
# | the right option, every time | log loss or Brier on the label, then a temperature | no sampling, no variance; RL has nothing to add |
# | whether the taken option was right | verdict NLL first; RLCD where a policy-gradient trainer already runs | same resting place ({doc}`05_is_it_rl`); compare both on held-out outcomes ({doc}`20_rater_bandit`) |
# | the same, from an old log with propensities | verdict losses, or RLCD with weights $p_a/\mu_a$ | calibrated for every logging policy that tries the options ({prf:ref}`thm-behaviour`) |
# | the same, without propensities | verdict losses or RLCD without weights | fine if the model can express the truth; otherwise it fits where the log looked |
# | outcomes that sometimes never come | leave them out only if that has nothing to do with being right; otherwise wait, weigh or bootstrap | left out or counted as wrong, they bias ({prf:ref}`thm-noise`, {doc}`09_time`) |
# | which of two options somebody preferred | Bradley–Terry, Plackett–Luce ({doc}`07_plackett_luce`) | choice probabilities are not yet outcome probabilities: measure calibration |
# | a teacher's probabilities | log loss with soft targets | the teacher's own calibration is the ceiling |
# | only generated text with a spoken confidence | RLCR, or separate advantages for answer and confidence | never Brier alone ({prf:ref}`thm-stated`) |
#
# The second row is this book's subject, and it says: *verdict NLL may simply win*. On the rater
# bandit at one common rate it does, by {res}`20_rater_bandit:brier_gap.rlcd-verdict_nll:.4f` in
# Brier score; with each tuned for itself, RLCD minus verdict NLL is
# {res}`24_what_happened:gaps.rlcd-verdict_nll:.4f` ({doc}`24_what_happened`). No user would notice
# either. RLCD's claim is narrower than its name: it is the simplest correction
# that keeps the policy gradient of an outcome reward honest. If you already train with policy
# gradients, subtract $p_a$. If you do not, you may not need to start.
#
# :::{admonition} What would change my mind
# :class: warning
#
# - *A publication of the vendor's method.* Everything here about the word's origin is inference
#   from public descriptions.
# - *A task on which the policy gradient beats the verdict losses* at equal outcomes, with an
#   interval. The theory allows it: their gradients differ in variance away from the truth and in
#   what a misspecified model fits.
# - *A spoken confidence that carries more than the softmax.* One run found no resolution in it;
#   longer training may.
# :::
#
# ## Exercises
#
# :::{exercise} Which of the four?
# :label: ex-four-1
#
# A moderation team logs each decision, the probability with which it was taken, and whether an
# appeal overturned it. Only some decisions are appealed, wrong ones more often. Which row of the
# table applies, and what is the trap?
# :::
#
# :::{solution} ex-four-1
# :label: sol-four-1
# :class: dropdown
#
# A log with propensities, but the outcome is missing depending on whether it was right. Leaving
# missing outcomes out is then biased (wrong decisions resolve more often, so the model learns to
# think itself worse than it is), and counting "no appeal" as right is biased the other way. The
# resolution rates must be modelled, or a random sample of decisions reviewed. The cell shows the
# size for .2 resolved when right and .6 when wrong, on-policy:
# :::

# %% tags=["hide-cell"]
censored = exact.Channel.unresolved(right=0.2, wrong=0.6)
end = exact.fixed_point(OBJECTIVES["rlcd"], truth, channel=censored)
print("truth", truth, "left out", [round(v, 3) for v in end.p.tolist()])

# %% [markdown]
# :::{exercise} Two meanings, one model
# :label: ex-four-2
#
# A model is trained with RLCR until its spoken confidence is honest and its answer always the most
# probable option. On the ticket above, what does its softmax say, what does it speak, and which of
# the two should a threshold read?
# :::
#
# :::{solution} ex-four-2
# :label: sol-four-2
# :class: dropdown
#
# The softmax says 1 for billing and the spoken number says .6. A threshold must read the spoken
# number; but if the spoken number is the same for every ticket (resolution zero), a threshold on
# it accepts all or nothing, and the tempered softmax may rank better.
# :::

# %% tags=["hide-cell"]
softmax = float(ends["answer of a stated-confidence model"].p[0])
grid = torch.linspace(0, 1, 1001)
pay = truth[0] * stated_reward(grid, torch.tensor(1.0), "rlcr") + (
    1 - truth[0]
) * stated_reward(grid, torch.tensor(0.0), "rlcr")
spoken = float(grid[pay.argmax()])
assert softmax > 0.999 and abs(spoken - truth[0]) < 1e-3
print(f"softmax {softmax:.2f}, spoken {spoken:.2f}")

# %% [markdown]
# :::{exercise} A weight of one project
# :label: ex-four-3
#
# The guide adds log loss and Brier score with equal weights and calls the weight tunable. Show
# that every positive pair of weights has the same resting place, and that the weight can therefore
# only be chosen by variance and by what a misspecified model should fit.
# :::
#
# :::{solution} ex-four-3
# :label: sol-four-3
# :class: dropdown
#
# Both directions vanish exactly at $p = q$: the label's log loss moves the logits by $q - p$, the
# Brier score by $J(q - p)$ up to a factor, and $q - p = 0$ is the only common zero in the
# interior. A positive combination $(w_1 I + w_2 J)(q - p)$ is zero only where $q = p$ because
# $w_1 I + w_2 J$ is positive definite ($J$ is positive semidefinite).
# :::

# %% tags=["hide-cell"]
rng = np.random.default_rng(0)
for _ in range(100):
    p = rng.dirichlet(np.ones(4))
    weights = rng.uniform(0.01, 5, 2)
    matrix = weights[0] * np.eye(4) + weights[1] * (np.diag(p) - np.outer(p, p))
    assert np.linalg.eigvalsh(matrix).min() > 0
end = float(ends["label, log + Brier"].p[0])
print(f"equal weights end at {end:.3f}")

# %% [markdown]
# ## Further reading
#
# {cite:t}`gneiting2007` for what proper means; {cite:t}`damani2025` and
# {cite:t}`baniharouni2025` for spoken confidence; {cite:t}`bereket2025` for what group
# normalisation does; {cite:t}`luce1959` and {cite:t}`plackett1975` for the choice models behind
# (4).
