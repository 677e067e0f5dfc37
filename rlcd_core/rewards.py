"""Rewards, baselines, estimators and losses that train a decision policy (torch).

A policy gives ``log_probs (B, K)``: one row a question, one column an option, a masked
option at `MASKED`. What came back from the world is a `Feedback`. An objective turns
both into a loss ``(B,)`` whose negative gradient in the logits is the estimator of the
ascent direction, averaged over the G actions of a question. Rewards are detached,
``log p`` carries the gradient. Everything works in float32 and float64.

Formulas write p for the policy, q for the true distribution of the right option, a for
an action, c for its outcome bit, mu for the behaviour policy, sg[.] for stop-gradient,
J = diag(p) - p p^T for the softmax Jacobian, e_k for a unit vector. Labels in round
brackets name the equation or theorem of the book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad, softplus

MASKED = -1e9
"""Log-probability of a masked option: finite, and its ``exp`` is exactly zero."""


@dataclass(frozen=True)
class Feedback:
    """What the world returned for one batch of questions.

    Parameters
    ----------
    actions : int64 (B, G)
        Options taken; G may be 0 when only labels are used.
    outcomes : float (B, G)
        1 right, 0 wrong, NaN unresolved (contributes nothing, and is counted).
    propensities : float (B, G), optional
        Chance in (0, 1] that the behaviour policy takes each action; for actions drawn
        without replacement, the inclusion probability.
    labels : int64 (B,), optional
        The right option.
    soft_labels : float (B, K), optional
        A distribution over options, in place of `labels`.
    rankings : int64 (B, L), optional
        Options from best to worst, -1 pads a shorter one (`plackett_luce_loss`).
    reference_log_probs : float (B, K), optional
        Reference policy of a KL term.
    outcome_model : float (B, K), optional
        A model's chance that each option is right, for doubly robust estimates.

    Raises
    ------
    ValueError
        If shapes or types disagree.

    Examples
    --------
    >>> Feedback(torch.tensor([[0, 2]]), torch.tensor([[1.0, float("nan")]])).unresolved
    1
    """

    actions: Tensor
    outcomes: Tensor
    propensities: Tensor | None = None
    labels: Tensor | None = None
    soft_labels: Tensor | None = None
    reference_log_probs: Tensor | None = None
    outcome_model: Tensor | None = None
    rankings: Tensor | None = None

    def __post_init__(self) -> None:
        if self.actions.ndim != 2 or self.actions.dtype != torch.int64:
            raise ValueError("actions must be an int64 tensor of shape (B, G)")
        if not self.outcomes.is_floating_point():
            raise ValueError("outcomes must be float: 1 right, 0 wrong, NaN unresolved")
        shape = self.actions.shape
        wanted = {"outcomes": shape, "propensities": shape, "labels": shape[:1]}
        for name, want in wanted.items():
            value = getattr(self, name)
            if value is not None and value.shape != want:
                raise ValueError(f"{name} must have shape {tuple(want)} like actions")

    @property
    def resolved(self) -> Tensor:
        """Bool (B, G): which actions have an outcome."""
        return ~torch.isnan(self.outcomes)

    @property
    def unresolved(self) -> int:
        """How many actions have no outcome."""
        return int((~self.resolved).sum())

    def taken(self, values: Tensor) -> Tensor:
        """Entries (B, G) of `values` (B, K) at the actions taken."""
        return values.gather(1, self.actions)

    def average(self, values: Tensor) -> Tensor:
        """Sum of `values` (B, G) over resolved actions divided by G, (B,).

        An unresolved action adds nothing, and the others keep their weight.
        """
        kept = torch.where(self.resolved, values, torch.zeros_like(values))
        return kept.sum(-1) / max(self.actions.shape[1], 1)


Loss = Callable[[Tensor, Feedback], Tensor]
Reward = Callable[[Tensor, Feedback], Tensor]


@dataclass(frozen=True)
class Objective:
    """A named loss ``(log_probs (B, K), Feedback) -> (B,)`` and what it stands for.

    Parameters
    ----------
    name : str
        Key in `OBJECTIVES`.
    loss : callable
        The loss; calling the objective checks its input first.
    equation : str
        Label of its statement in the book.
    needs : {"outcome", "label", "ranking"}
        What must be observed.
    baseline : str
        Key of `BASELINES`; empty where the objective is no policy gradient.
    calibrates : bool
        True if a tabular policy that acts for itself ends at p = q.
    propensities : bool
        True if `Feedback.propensities` is required.
    couples_rows : bool
        True if a row's gradient depends on other rows of the batch.
    """

    name: str
    loss: Loss = field(repr=False)
    equation: str
    needs: Literal["outcome", "label", "ranking"] = "outcome"
    baseline: str = ""
    calibrates: bool = True
    propensities: bool = False
    couples_rows: bool = False

    def __call__(self, log_probs: Tensor, feedback: Feedback) -> Tensor:
        check(log_probs, feedback)
        if self.propensities and feedback.propensities is None:
            raise ValueError(f"objective {self.name!r} needs feedback.propensities")
        return self.loss(log_probs, feedback)


@torch.no_grad()
def check(log_probs: Tensor, feedback: Feedback) -> None:
    """Refuse feedback that cannot belong to these log-probabilities (B, K).

    Raises
    ------
    ValueError
        A row with every option masked, NaN or infinite log-probabilities, rows that do
        not sum to 1 (logits, where log-probabilities belong), an action or label out of
        range or masked, an outcome other than 0, 1 or NaN, a propensity outside (0, 1],
        soft labels that are no distribution over live options, another (B, K) field of
        another shape or not finite.
    """
    if log_probs.ndim != 2 or len(log_probs) != len(feedback.actions):
        raise ValueError("log_probs must have shape (B, K) with one row an action row")
    if not torch.isfinite(log_probs).all():
        raise ValueError("log_probs hold NaN or infinity; mask options with MASKED")
    live = log_probs > MASKED / 2
    if not live.any(-1).all():
        raise ValueError(f"row {int(live.any(-1).int().argmin())}: all options masked")
    # Half precision rounds a log-probability of -11 by .03; logits are off by far more.
    slack = 1e-3 if torch.finfo(log_probs.dtype).eps < 1e-6 else 0.1
    if (log_probs.logsumexp(-1).abs() > slack).any():
        raise ValueError(
            "log_probs do not sum to 1 in each row: pass log_softmax(logits, -1)"
        )
    labels = feedback.labels
    for name, index in (
        ("action", feedback.actions),
        ("label", feedback.actions[:, :0] if labels is None else labels[:, None]),
    ):
        if ((index < 0) | (index >= log_probs.shape[1])).any():
            raise ValueError(f"{name} outside 0..{log_probs.shape[1] - 1}")
        if not live.gather(1, index).all():
            raise ValueError(f"{name} on a masked option")
    c, mu, soft = feedback.outcomes, feedback.propensities, feedback.soft_labels
    if not ((c == 0) | (c == 1) | torch.isnan(c)).all():
        raise ValueError("outcomes must be 0, 1 or NaN (unresolved)")
    if mu is not None and not ((mu > 0) & (mu <= 1)).all():
        raise ValueError("propensities must lie in (0, 1]")
    for name in ("soft_labels", "reference_log_probs", "outcome_model"):
        value = getattr(feedback, name)
        if value is None:
            continue
        if value.shape != log_probs.shape or not torch.isfinite(value).all():
            raise ValueError(
                f"{name} must be finite and have the shape of log_probs, (B, K)"
            )
    if soft is not None:
        off = (soft.sum(-1) - 1).abs() > 1e-4
        if (soft < 0).any() or off.any() or (soft[~live] > 0).any():
            raise ValueError("soft_labels must be distributions over live options")


# --- rewards: (log_probs (B, K), Feedback) -> (B, G), detached ---


def rlvr_reward(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """``r = c`` (eq-rlvr): right is paid, whatever was stated. 0 where unresolved."""
    return torch.nan_to_num(feedback.outcomes, nan=0.0).to(log_probs.dtype)


def mixed_reward(lam: float, constant: float = 0.0) -> Reward:
    """``r = c - lam p_a - constant`` (thm-gini); proper by itself at lam = 1, b = 0."""

    def reward(log_probs: Tensor, feedback: Feedback) -> Tensor:
        stated = feedback.taken(log_probs.detach()).exp()
        return rlvr_reward(log_probs, feedback) - lam * stated - constant

    return reward


def rlcd_reward(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """``r = c - p_a``: outcome minus stated probability (thm-identity).

    ``E_{a~p}[(c - p_a) grad log p_a] = -1/2 grad Brier(p, y)``.

    Examples
    --------
    >>> told = Feedback(torch.tensor([[1]]), torch.ones(1, 1))
    >>> rlcd_reward(torch.tensor([[0.25, 0.75]]).log(), told)
    tensor([[0.2500]])
    """
    return mixed_reward(1.0)(log_probs, feedback)


def scaled_reward(g: Callable[[Tensor, Tensor], Tensor]) -> Reward:
    """``r = (c - p_a) g`` with a positive ``g(p_a (B, G), p (B, K)) -> (B, G)``.

    p = q is its only interior stationary point (thm-one-bit): g = 1 is Brier, 1/p the
    log score, p verdict Brier, 1/(1 - p) verdict NLL.
    """

    def reward(log_probs: Tensor, feedback: Feedback) -> Tensor:
        p = log_probs.detach().exp()
        return rlcd_reward(log_probs, feedback) * g(feedback.taken(p), p)

    return reward


def log_reward(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """``r = c / p_a``: the log score from one bit, unbounded variance (thm-one-bit)."""
    return rlvr_reward(log_probs, feedback) / feedback.taken(log_probs.detach()).exp()


# --- baselines: (rewards (B, G), resolved (B, G)) -> advantages (B, G) ---


def no_baseline(rewards: Tensor, resolved: Tensor) -> Tensor:
    """The rewards themselves: RLCD is its own baseline (thm-own-baseline)."""
    return rewards


def leave_one_out(rewards: Tensor, resolved: Tensor) -> Tensor:
    """``r_i - (sum r - r_i)/(n - 1)`` over the n resolved actions (thm-own-baseline).

    A lone resolved action of a larger group has baseline 0. A ValueError is raised for
    groups of one: there is no other action to take a baseline from.

    Examples
    --------
    >>> r = torch.tensor([[0.1, -0.9, 0.7, 0.1]])
    >>> [round(v, 5) for v in leave_one_out(r, r == r)[0].tolist()]
    [0.13333, -1.2, 0.93333, 0.13333]
    """
    if rewards.shape[1] < 2:
        raise ValueError("leave_one_out needs at least two actions a question")
    kept = torch.where(resolved, rewards, torch.zeros_like(rewards))
    others = resolved.sum(-1, keepdim=True) - 1
    mean = (kept.sum(-1, keepdim=True) - kept) / others.clamp(min=1)
    return torch.where(others > 0, rewards - mean, rewards)


def group_mean(rewards: Tensor, resolved: Tensor) -> Tensor:
    """``r - mean(r)``: leave-one-out times (n - 1)/n, a shorter step (thm-gini)."""
    kept = torch.where(resolved, rewards, torch.zeros_like(rewards))
    n = resolved.sum(-1, keepdim=True).clamp(min=1)
    return rewards - kept.sum(-1, keepdim=True) / n


def group_std(rewards: Tensor, resolved: Tensor, eps: float = 0.0) -> Tensor:
    """``(r - mean(r)) / (std(r) + eps)`` with the population std (thm-std).

    A group whose rewards agree up to rounding gets exactly zero: float residue divided
    by itself would turn noise of 1e-8 into advantages of 1.
    """
    high = rewards.masked_fill(~resolved, -torch.inf).amax(-1, keepdim=True)
    low = rewards.masked_fill(~resolved, torch.inf).amin(-1, keepdim=True)
    scale = torch.maximum(high.abs(), low.abs()).clamp(min=1)
    flat = ~(high - low > 8 * torch.finfo(rewards.dtype).eps * scale)
    centred = group_mean(rewards, resolved).masked_fill(~resolved, 0.0)
    n = resolved.sum(-1, keepdim=True).clamp(min=1)
    std = (centred.square().sum(-1, keepdim=True) / n).sqrt() + eps
    return torch.where(flat, 0.0, centred / torch.where(flat, 1.0, std))


BASELINES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": no_baseline,
    "leave_one_out": leave_one_out,
    "group_mean": group_mean,
    "group_std": group_std,
}


# --- REINFORCE and what can be added to it ---

Weighting = Literal["none", "importance", "self_normalised"]


def importance_weights(
    log_probs: Tensor, feedback: Feedback, weighting: Weighting
) -> Tensor:
    """Weights (B, G) that turn logged actions into on-policy ones (thm-behaviour).

    ``importance``: ``p_a / mu_a``, unbiased. ``self_normalised``: the same over its
    mean across the batch's resolved actions, biased by O(1/n), and coupling its rows.
    A ValueError says if propensities are missing.
    """
    if weighting == "none":
        return torch.ones_like(feedback.outcomes, dtype=log_probs.dtype)
    if feedback.propensities is None:
        raise ValueError(f"weighting {weighting!r} needs feedback.propensities")
    weights = feedback.taken(log_probs.detach()).exp() / feedback.propensities
    kept = weights[feedback.resolved]
    return weights / kept.mean() if weighting != "importance" and len(kept) else weights


def reinforce(
    log_probs: Tensor,
    feedback: Feedback,
    advantages: Tensor,
    clip: float | None = None,
) -> Tensor:
    """Loss (B,) ``-1/G sum_i sg[A_i] log p_{a_i}`` (eq-reinforce).

    With `clip`, PPO's ``-min(rho A, clip(rho, 1 - clip, 1 + clip) A)``, ``rho =
    p_a/mu_a`` from the propensities (eq-ppo): with one update a batch rho = 1, and the
    gradient is the same.
    """
    advantages, log_p = advantages.detach(), feedback.taken(log_probs)
    if clip is None:
        return -feedback.average(advantages * log_p)
    if feedback.propensities is None:
        raise ValueError("the PPO clip needs feedback.propensities")
    rho = (log_p - feedback.propensities.log()).exp()
    bounded = rho.clamp(1 - clip, 1 + clip)
    return -feedback.average(torch.minimum(rho * advantages, bounded * advantages))


def policy_gradient(
    name: str,
    reward: Reward,
    baseline: str = "none",
    *,
    equation: str,
    calibrates: bool,
    weighting: Weighting = "none",
    clip: float | None = None,
    std_eps: float = 0.0,
    terms: tuple[Loss, ...] = (),
) -> Objective:
    """Objective from a reward, a key of `BASELINES`, weights and extra terms.

    A term is a loss ``(log_probs, feedback) -> (B,)`` that is added: `gini_term`,
    `shannon_term`, `kl_term`. `std_eps` is the eps of `group_std`.
    """
    advantage = BASELINES[baseline]
    options = {"eps": std_eps} if baseline == "group_std" else {}

    def loss(log_probs: Tensor, feedback: Feedback) -> Tensor:
        rewards = reward(log_probs, feedback)
        weights = importance_weights(log_probs, feedback, weighting)
        advantages = weights * advantage(rewards, feedback.resolved, **options)
        total = reinforce(log_probs, feedback, advantages, clip)
        for term in terms:
            total = total + term(log_probs, feedback)
        return total

    return Objective(
        name,
        loss,
        equation,
        baseline=baseline,
        calibrates=calibrates,
        propensities=weighting != "none" or clip is not None,
        couples_rows=weighting == "self_normalised",
    )


def gini_term(weight: float) -> Loss:
    """``weight ||p||^2``: an exact Gini (Tsallis-2) bonus (thm-gini).

    Weighed by the resolved share: a question without an outcome is left alone.
    """

    def loss(log_probs: Tensor, feedback: Feedback) -> Tensor:
        share = feedback.average(torch.ones_like(feedback.outcomes))
        return weight * log_probs.exp().square().sum(-1) * share

    return loss


def shannon_term(beta: float) -> Loss:
    """``-beta H(p)``: RLVR then ends at p prop. to ``exp(q/beta)`` (thm-rescues)."""

    def loss(log_probs: Tensor, feedback: Feedback) -> Tensor:
        return beta * (log_probs.exp() * log_probs).sum(-1)

    return loss


def kl_term(beta: float) -> Loss:
    """``beta KL(p || p0)``: RLVR then ends at ``p0 exp(q/beta)`` (thm-rescues).

    p0 is `Feedback.reference_log_probs`; a ValueError says if it is missing.
    """

    def loss(log_probs: Tensor, feedback: Feedback) -> Tensor:
        if feedback.reference_log_probs is None:
            raise ValueError("the KL term needs feedback.reference_log_probs")
        gap = log_probs - feedback.reference_log_probs.detach()
        return beta * (log_probs.exp() * gap).sum(-1)

    return loss


# --- verdict losses: (B,), from the taken action's outcome and stated probability ---


def log_complement(log_probs: Tensor, actions: Tensor) -> Tensor:
    """``log(1 - p_a)`` (B, G) as a log-sum-exp over the other options.

    Finite, with a finite gradient, even where p_a rounds to 1.
    """
    own = one_hot(actions, log_probs.shape[1]).bool()
    others = log_probs[:, None, :].expand(own.shape).masked_fill(own, MASKED)
    return torch.logsumexp(others, -1)


def verdict_nll(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """``-[c log p_a + (1-c) log(1-p_a)]`` (thm-regression): g = 1/(1-p)."""
    miss = log_complement(log_probs, feedback.actions)
    hit = rlvr_reward(log_probs, feedback) == 1
    return -feedback.average(torch.where(hit, feedback.taken(log_probs), miss))


def verdict_brier(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """``(c - p_a)^2 / 2`` (thm-regression): the half makes it g = p exactly."""
    gap = rlvr_reward(log_probs, feedback) - feedback.taken(log_probs).exp()
    return feedback.average(gap.square() / 2)


def weighted_regression(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """``(c - p_a)^2 / (2 sg[p_a])`` (thm-regression): RLCD's gradient, each sample."""
    stated = feedback.taken(log_probs).exp()
    gap = rlvr_reward(log_probs, feedback) - stated
    return feedback.average(gap.square() / (2 * stated.detach()))


def poisson_loss(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """``-(c log p_a - p_a)`` (thm-gini): RLCD's gradient, sample by sample."""
    log_p = feedback.taken(log_probs)
    return -feedback.average(rlvr_reward(log_probs, feedback) * log_p - log_p.exp())


# --- proper scores: (log_probs, target) both (..., K) -> (...), higher is better ---

Score = Callable[[Tensor, Tensor], Tensor]


def brier_score(log_probs: Tensor, target: Tensor) -> Tensor:
    """``-1/2 sum_k (p_k - t_k)^2``, in [-1, 0]: half the Brier loss (thm-identity)."""
    return -(log_probs.exp() - target).square().sum(-1) / 2


def log_score(log_probs: Tensor, target: Tensor) -> Tensor:
    """``sum_k t_k log p_k``, in (-inf, 0] (eq-log-score)."""
    return (target * log_probs).sum(-1)


def spherical_score(log_probs: Tensor, target: Tensor) -> Tensor:
    """``sum_k t_k p_k / ||p||``, in [0, 1] (eq-spherical)."""
    p = log_probs.exp()
    return (target * p).sum(-1) / p.square().sum(-1).sqrt()


def rps_score(log_probs: Tensor, target: Tensor) -> Tensor:
    """``-sum_j (P_j - T_j)^2 / (K - 1)`` over live options, in [-1, 0] (eq-rps)."""
    live = log_probs > MASKED / 2
    gap = (log_probs.exp().cumsum(-1) - target.cumsum(-1)).square()
    return -(gap * live).sum(-1) / (live.sum(-1) - 1).clamp(min=1)


def power_score(alpha: float) -> Score:
    """``sum_k t_k p_k^{alpha-1}/(alpha-1) - sum_k p_k^alpha/alpha``, alpha > 1."""
    if not alpha > 1:
        raise ValueError(f"alpha must be above 1, got {alpha}")

    def score(log_probs: Tensor, target: Tensor) -> Tensor:
        paid = (target * ((alpha - 1) * log_probs).exp()).sum(-1) / (alpha - 1)
        return paid - (alpha * log_probs).exp().sum(-1) / alpha

    return score


def composite_score(
    log: float = 1.0, spherical: float = 0.0, brier: float = 0.0, rps: float = 0.0
) -> Score:
    """``log * log p_y + spherical * p_y/||p|| - brier * Brier - rps * RPS``.

    Brier lies in [0, 2] here. ``log_spherical`` is (1, .5), ``nll_brier`` is (1, 0, 1).
    The log part is unbounded as a value: one confident error can dominate a batch's
    mean, though not its gradient, at most sqrt(2) in the logits (thm-clamp). A
    ValueError is raised unless the weights are >= 0 and one is above 0.
    """
    parts = ((log, log_score), (spherical, spherical_score))
    parts += ((2 * brier, brier_score), (rps, rps_score))
    weights = (log, spherical, brier, rps)
    if not (min(weights) >= 0 and max(weights) > 0):
        raise ValueError(f"weights {weights}: pass numbers >= 0, one of them above 0")

    def score(log_probs: Tensor, target: Tensor) -> Tensor:
        used = [w * part(log_probs, target) for w, part in parts if w]
        return torch.stack(used).sum(0)

    return score


def bounded_score(score: Score, eps: float) -> Score:
    """``S(p', t')`` with p' and t' both mixed as ``(1-eps) . + eps/K`` (thm-clamp).

    Bounded and strictly proper on the whole simplex, where a floor under log p pays for
    the lie p_k = 0. A ValueError is raised unless 0 < eps < 1.
    """
    if not 0 < eps < 1:
        raise ValueError(f"eps must lie in (0, 1), got {eps}")

    def mixed(log_probs: Tensor, target: Tensor) -> Tensor:
        live = log_probs > MASKED / 2
        share = eps * live.to(log_probs.dtype) / live.sum(-1, keepdim=True)
        p = torch.where(live, (1 - eps) * log_probs.exp() + share, 1.0)
        log_p = p.log().masked_fill(~live, MASKED)
        return score(log_p, (1 - eps) * target + share)

    return mixed


def label_objective(name: str, score: Score, equation: str) -> Objective:
    """``-S(p, t)``, t the soft label if given, else the one-hot label."""

    def loss(log_probs: Tensor, feedback: Feedback) -> Tensor:
        target = feedback.soft_labels
        if target is None:
            if feedback.labels is None:
                raise ValueError(f"objective {name!r} needs labels or soft_labels")
            target = one_hot(feedback.labels, log_probs.shape[1])
        return -score(log_probs, target.to(log_probs.dtype))

    return Objective(name, loss, equation, needs="label")


def one_bit_objective(
    name: str, score: Score, weighting: Weighting = "none"
) -> Objective:
    """One-bit form ``(c - p_a)/p_a grad S(p, a)`` of a proper score (thm-one-bit).

    Unbiased for the gradient of the expected score of any differentiable proper S: the
    subtracted part has mean ``sum_a p_a grad S(p, a) = 0``. With importance weights the
    divisor becomes mu_a.
    """

    def loss(log_probs: Tensor, feedback: Feedback) -> Tensor:
        factor = rlcd_reward(log_probs, feedback)
        factor = factor / feedback.taken(log_probs.detach()).exp()
        factor = factor * importance_weights(log_probs, feedback, weighting)
        told = one_hot(feedback.actions, log_probs.shape[1]).to(log_probs.dtype)
        wide = log_probs[:, None, :].expand(told.shape)
        return -feedback.average(factor * score(wide, told))

    return Objective(
        name,
        loss,
        "thm-one-bit",
        propensities=weighting != "none",
        couples_rows=weighting == "self_normalised",
    )


def spherical_pathwise(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """Spherical score as reward ``c/||p||`` plus ``-c J p/||p||^3`` (thm-one-bit)."""
    norm = log_probs.exp().square().sum(-1, keepdim=True).sqrt()
    surrogate = feedback.taken(log_probs) / norm.detach() + 1 / norm
    return -feedback.average(rlvr_reward(log_probs, feedback) * surrogate)


# --- different actions, exclusive options, outcome models ---


def inclusion_probabilities(log_mu: Tensor, group_size: int) -> Tensor:
    """Chance (B, K), float64, that each option is among G drawn one after another.

    G = 2: ``mu_k (1 + sum_{j != k} mu_j/(1 - mu_j))``. G > 2: a race of exponential
    clocks, ``int mu_k e^{-mu_k t} P(fewer than G others rang by t) dt``
    (thm-residual-ht), by the trapezoid rule in log t, which converges exponentially.

    Parameters
    ----------
    log_mu : float (B, K)
        Log-probabilities of the draw; `MASKED` for absent options.
    group_size : int
        Options drawn. A ValueError is raised if a row has fewer live ones.

    Examples
    --------
    >>> p = torch.tensor([[0.5, 0.3, 0.2]])
    >>> [round(v, 4) for v in inclusion_probabilities(p.log(), 2)[0].tolist()]
    [0.8393, 0.675, 0.4857]
    """
    live = log_mu > MASKED / 2
    log_mu = torch.log_softmax(log_mu.detach().double(), -1)
    count, size = live.sum(-1), log_mu.shape[1]
    if group_size < 1 or (count < group_size).any():
        raise ValueError(
            f"cannot draw {group_size} different options: a row has {int(count.min())}"
        )
    if group_size == 1:
        return log_mu.exp()
    if group_size == 2:
        every = torch.arange(size, device=log_mu.device).expand_as(log_mu)
        odds = pad(log_mu - log_complement(log_mu, every), (1, 0))  # log 1 in front
        own = pad(torch.eye(size, dtype=torch.bool, device=log_mu.device), (1, 0))
        table = odds[:, None, :].expand(-1, size, -1).masked_fill(own, MASKED)
        pi = (log_mu + torch.logsumexp(table, -1)).exp()
    else:
        rows = max(1, 20_000 // (size * group_size))  # bounds the memory of a block
        pi = torch.cat([_race(part, group_size) for part in log_mu.split(rows)])
    return pi.clamp(max=1.0)


def _race(log_mu: Tensor, group_size: int) -> Tensor:
    """The race integral of `inclusion_probabilities`, (B, K)."""
    rate = log_mu.exp()
    # Once the (G+1)-th fastest clock has surely rung, nobody is admitted any more; with
    # just G live options, once the slowest has.
    ranked = log_mu.sort(-1, descending=True).values
    last = ((log_mu > MASKED / 2).sum(-1, keepdim=True) - 1).clamp(max=group_size)
    high = 4.0 - ranked.gather(1, last)[:, 0].clamp(min=-700.0)
    low = -37.0  # e^-37 is below float64 resolution
    nodes = int(torch.ceil((high.max() - low) / 0.2)) + 1
    grid = torch.linspace(0, 1, nodes, dtype=rate.dtype, device=rate.device)
    time = (low + (high[:, None] - low) * grid).exp()
    load = rate[:, :, None] * time[:, None, :]  # (B, K, nodes)
    rung, silent = -torch.expm1(-load), torch.exp(-load)

    def admit(tally: Tensor, j: int) -> Tensor:
        """tally[m]: chance that exactly m clocks have rung, m < G; add clock j."""
        return tally * silent[:, j] + pad(tally[:-1], (0, 0, 0, 0, 1, 0)) * rung[:, j]

    before = torch.zeros(group_size, *time.shape, dtype=rate.dtype, device=rate.device)
    before[0] = 1.0
    after = [before]
    for j in range(rate.shape[1] - 1, 0, -1):
        after.append(admit(after[-1], j))
    pi = torch.empty_like(rate)
    for k in range(rate.shape[1]):
        fewer = (before * after.pop().cumsum(0).flip(0)).sum(0)  # than G of the others
        density = load[:, k] * silent[:, k] * fewer
        pi[:, k] = density.sum(-1) * (high - low) / (nodes - 1)
        before = admit(before, k)
    return pi


def residual_ht(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """``sum_{a in S} (c_a - p_a)/pi_a J e_a`` over different options (thm-residual-ht).

    The propensities are inclusion probabilities. The sum (not a mean over G) is
    unbiased for J(q - p), exclusive options or not. A ValueError is raised if a group
    repeats an action.
    """
    ordered = feedback.actions.sort(-1).values
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise ValueError("residual Horvitz-Thompson needs actions without repetition")
    factor = rlcd_reward(log_probs, feedback) / feedback.propensities
    value = factor * feedback.taken(log_probs).exp()
    return -feedback.average(value) * feedback.actions.shape[1]


def revealed_labels(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """The right option (B,) of exclusive options, from verdicts on all but one.

    -1 where a verdict is unresolved. A ValueError is raised if more than one option
    went without a verdict, or if two are right.
    """
    right = torch.zeros_like(log_probs)
    right = right.scatter(1, feedback.actions, rlvr_reward(log_probs, feedback))
    left = (log_probs > MASKED / 2).scatter(1, feedback.actions, False)
    if (left.sum(-1) > 1).any():
        raise ValueError("revealing the label takes verdicts on all options but one")
    if (right.sum(-1) > 1).any():
        raise ValueError("two options of one question are right: they do not exclude")
    told = right.any(-1)
    label = torch.where(told, right.argmax(-1), left.int().argmax(-1))
    known = feedback.resolved.all(-1) & (told | left.any(-1))
    return torch.where(known, label, -1)


def exclusive_brier(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """Direction ``J(e_y - p)``, y revealed by K - 1 verdicts (thm-residual-ht)."""
    label = revealed_labels(log_probs, feedback)
    told = one_hot(label.clamp(min=0), log_probs.shape[1]).to(log_probs.dtype)
    return -brier_score(log_probs, told) * (label >= 0)


def exclusive_control(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """RLCD plus the control variate ``(c - p_a)/p_a J p/(K-1)`` (thm-residual-ht).

    For exclusive options. Of minimum variance at p = q among unbiased estimators from
    one outcome; unbounded away from it.
    """
    reward = rlcd_reward(log_probs, feedback)
    ratio = feedback.average(reward / feedback.taken(log_probs.detach()).exp())
    rivals = ((log_probs > MASKED / 2).sum(-1) - 1).clamp(min=1)
    half_square = log_probs.exp().square().sum(-1) / 2  # its gradient is J p
    return reinforce(log_probs, feedback, reward) - ratio * half_square / rivals


def doubly_robust(log_probs: Tensor, feedback: Feedback) -> Tensor:
    """``p_a/mu_a (c - m_a) grad log p_a + J(m - p)`` (thm-behaviour).

    m is `Feedback.outcome_model`; a ValueError says if it is missing. Unbiased for
    J(q - p) if the propensities or the model are right; m = p gives importance-weighted
    RLCD, which thus is doubly robust already.
    """
    if feedback.outcome_model is None:
        raise ValueError("doubly robust estimates need feedback.outcome_model")
    model, p = feedback.outcome_model.detach().to(log_probs.dtype), log_probs.exp()
    residual = rlvr_reward(log_probs, feedback) - feedback.taken(model)
    weights = importance_weights(log_probs, feedback, "importance")
    direct = (model * p).sum(-1) - p.square().sum(-1) / 2
    share = feedback.average(torch.ones_like(residual))
    return reinforce(log_probs, feedback, weights * residual) - share * direct


def sample_actions(
    log_probs: Tensor,
    group_size: int,
    generator: torch.Generator | None = None,
    *,
    replacement: bool = True,
    epsilon: float = 0.0,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Draw G actions a question and say how likely each was (thm-behaviour).

    Actions come from ``mu = (1 - epsilon) softmax(log p / temperature) + epsilon/K``
    over live options.

    Parameters
    ----------
    log_probs : float (B, K)
        Masked log-probabilities; no gradient flows.
    replacement : bool
        False draws G different options, one after another.

    Returns
    -------
    actions, propensities : int64 and float (B, G)
        Propensity: mu at the action, or without replacement its inclusion probability.

    Raises
    ------
    ValueError
        If an argument is out of range or a row has too few live options.

    Examples
    --------
    >>> log_probs = torch.tensor([[0.0, MASKED]])
    >>> sample_actions(log_probs, 2, torch.Generator().manual_seed(0))
    (tensor([[0, 0]]), tensor([[1., 1.]]))
    """
    if group_size < 1 or not 0 <= epsilon <= 1 or not temperature > 0:
        raise ValueError(
            "need group_size >= 1, epsilon in [0, 1] and temperature > 0, got "
            f"{group_size}, {epsilon}, {temperature}"
        )
    live = log_probs > MASKED / 2
    if not live.any(-1).all():
        raise ValueError("a row has every option masked")
    scaled = log_probs.detach().double() / temperature
    mu = torch.softmax(scaled.masked_fill(~live, -torch.inf), dim=-1)
    mu = (1 - epsilon) * mu + epsilon * live.to(mu.dtype) / live.sum(-1, keepdim=True)
    chance = mu
    if not replacement:
        log_mu = mu.log().masked_fill(mu == 0, MASKED)
        chance = inclusion_probabilities(log_mu, group_size)
    actions = torch.multinomial(mu, group_size, replacement, generator=generator)
    return actions, chance.gather(1, actions).to(log_probs.dtype)


# --- preferences, distributions as actions, stated confidence, time ---


def bradley_terry_loss(utilities: Tensor, winners: Tensor, losers: Tensor) -> Tensor:
    """Loss (B,) ``-log sigma(u_winner - u_loser)`` (eq-bradley-terry).

    `utilities` (B, K) are logits or log-probabilities; `winners`, `losers` int64 (B,).
    A ValueError is raised if an option is preferred to itself.
    """
    if (winners == losers).any():
        raise ValueError("an option cannot be preferred to itself")
    pair = utilities.gather(1, torch.stack([winners, losers], 1))
    return softplus(pair[:, 1] - pair[:, 0])


def plackett_luce_loss(utilities: Tensor, rankings: Tensor) -> Tensor:
    """Loss (B,) ``-sum_s log softmax over the remaining`` (thm-plackett-luce).

    Parameters
    ----------
    utilities : float (B, K)
        Logits or log-probabilities, `MASKED` for absent options.
    rankings : int64 (B, L)
        Options from best to worst; -1 pads a shorter one. Unranked options stay in
        every denominator: L = 1 is the top-one (Luce) loss, L = K the full ranking.

    Raises
    ------
    ValueError
        If a ranking has a gap, or names an option twice, masked or out of range.

    Examples
    --------
    >>> u = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> round(plackett_luce_loss(u, torch.tensor([[0, 1, 2]])).exp().item(), 4)
    3.3333
    """
    if ((rankings < -1) | (rankings >= utilities.shape[1])).any():
        raise ValueError("a ranking names an option out of range")
    if ((rankings[:, :-1] < 0) & (rankings[:, 1:] >= 0)).any():
        raise ValueError("a ranking has a gap: -1 may only pad its end")
    remaining = utilities > MASKED / 2
    total = torch.zeros_like(utilities[:, 0])
    for stage in rankings.T:
        used, pick = stage >= 0, stage.clamp(min=0)[:, None]
        if (used & ~remaining.gather(1, pick)[:, 0]).any():
            raise ValueError("a ranking names an option twice, or a masked one")
        rest = torch.logsumexp(utilities.masked_fill(~remaining, MASKED), -1)
        total = total + torch.where(used, rest - utilities.gather(1, pick)[:, 0], 0.0)
        remaining = remaining.scatter(1, pick, False)
    return total


def ranking_objective(name: str, *, pairs: bool) -> Objective:
    """Objective on `Feedback.rankings` (thm-prefs-drawn): pairs by Bradley-Terry, where
    other options play no part, or rankings by Plackett-Luce, where they do.

    A ValueError says if rankings are missing, or if pairs are no pairs.
    """

    def loss(log_probs: Tensor, feedback: Feedback) -> Tensor:
        order = feedback.rankings
        if order is None or order.shape[:1] != log_probs.shape[:1]:
            raise ValueError(f"objective {name!r} needs rankings, one row a question")
        if not pairs:
            return plackett_luce_loss(log_probs, order)
        if order.shape[1] != 2 or (log_probs.gather(1, order) < MASKED / 2).any():
            raise ValueError(f"objective {name!r} needs two live options a question")
        return bradley_terry_loss(log_probs, order[:, 0], order[:, 1])

    return Objective(name, loss, "thm-prefs-drawn", needs="ranking")


def logit_noise_loss(
    logits: Tensor,
    target: Tensor,
    score: Score,
    sigma: float,
    draws: int,
    generator: torch.Generator,
) -> Tensor:
    """Loss (B,) of REINFORCE with a distribution as the action (prp-proper-smoothing).

    Each of `draws` actions is ``softmax(z + sigma noise)``, rewarded by its score with
    a leave-one-out baseline: a noisy estimate of the smoothed score's gradient, where
    one backward pass through S gives the score's own exactly. `logits` (B, K) may be
    log-probabilities, `target` is (B, K).
    """
    shape = (len(logits), draws, logits.shape[1])
    noise = torch.randn(shape, generator=generator, dtype=logits.dtype)
    noise = sigma * noise.to(logits.device)
    tried = torch.log_softmax(logits.detach()[:, None, :] + noise, -1)
    rewards = score(tried, target[:, None, :].expand(shape))
    advantages = leave_one_out(rewards, rewards == rewards)
    log_density = (logits[:, None, :] * noise).sum(-1) / sigma**2  # gradient only
    return -(advantages * log_density).mean(-1)


def stated_reward(
    stated: Tensor,
    outcomes: Tensor,
    kind: Literal["binary", "brier", "rlcr", "log"] = "rlcr",
    weight: float = 1.0,
) -> Tensor:
    """Reward for an answer with a stated confidence v in [0, 1] (thm-stated).

    ``binary``: c. ``brier``: ``-(v - c)^2``, which pays certain failure as well as
    certain success. ``rlcr``: ``c - weight (v - c)^2``; the trap returns if weight > 1.
    ``log``: ``c + weight [c log v + (1-c) log(1-v)]``, -inf for a certain error.
    Decoupled: ``binary`` for the answer token, ``brier`` for the confidence token.
    A ValueError is raised for another kind, or a confidence outside [0, 1].

    Examples
    --------
    >>> float(stated_reward(torch.tensor(0.5), torch.tensor(1.0)))
    0.75
    """
    if not ((stated >= 0) & (stated <= 1)).all():
        raise ValueError("a stated confidence lies outside [0, 1]")
    match kind:
        case "binary":
            return outcomes.expand(torch.broadcast_shapes(stated.shape, outcomes.shape))
        case "brier":
            return -(stated - outcomes).square()
        case "rlcr":
            return outcomes - weight * (stated - outcomes).square()
        case "log":
            miss = torch.special.xlog1py(1 - outcomes, -stated)
            return outcomes + weight * (torch.xlogy(outcomes, stated) + miss)
    raise ValueError(f"unknown kind {kind!r}: use binary, brier, rlcr or log")


LEVELS = 10
"""Levels of a stated confidence; an action that states one is k * LEVELS + level."""


def stated_levels(levels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Confidence in (0, 1) that each level 0..LEVELS - 1 states: its bin's middle.

    Examples
    --------
    >>> [round(float(v), 2) for v in stated_levels(torch.tensor([0, 9]))]
    [0.05, 0.95]
    """
    return (levels.to(dtype) + 0.5) / LEVELS


def stated_objective(
    name: str,
    kind: Literal["binary", "brier", "rlcr", "log", "decoupled"],
    baseline: str = "none",
) -> Objective:
    """REINFORCE on pairs of option and level with a `stated_reward` (thm-stated).

    The policy gives ``log_probs (B, K * LEVELS)``, its actions are pairs, and an
    outcome is that of the pair's option. ``decoupled``: the option's log-probability
    carries the advantage of the outcome, the level's that of the reward ``brier``.
    """

    def loss(log_probs: Tensor, feedback: Feedback) -> Tensor:
        if log_probs.shape[1] % LEVELS:
            raise ValueError(
                f"objective {name!r} needs pairs of option and level: "
                f"{log_probs.shape[1]} columns are no multiple of {LEVELS}"
            )
        actions, kept = feedback.actions, feedback.resolved
        stated = stated_levels(actions % LEVELS, log_probs.dtype)
        outcomes = rlvr_reward(log_probs, feedback)
        decoupled = kind == "decoupled"
        rewards = stated_reward(stated, outcomes, "brier" if decoupled else kind)
        advantages = BASELINES[baseline](rewards, kept).detach()
        if not decoupled:
            return reinforce(log_probs, feedback, advantages)
        options = log_probs.unflatten(1, (-1, LEVELS)).logsumexp(-1)
        named = options.gather(1, actions // LEVELS)
        told = feedback.taken(log_probs) - named
        right = BASELINES[baseline](outcomes, kept).detach()
        return -feedback.average(right * named + advantages * told)

    return Objective(name, loss, "thm-stated", baseline=baseline, calibrates=False)


def td_lambda_targets(forecasts: Tensor, outcomes: Tensor, lam: float) -> Tensor:
    """TD(lambda) targets (..., T) for forecasts (..., T) of a final outcome (...).

    From last to first: ``G <- y``; if not last, ``G <- (1-lam) p_{j+1} + lam G``;
    ``target_j = G`` (eq-td-lambda). Detached. A ValueError is raised unless lam lies
    in [0, 1].

    Examples
    --------
    >>> td_lambda_targets(torch.tensor([0.1, 0.4, 0.9]), torch.tensor(1.0), 0.5)
    tensor([0.6750, 0.9500, 1.0000])
    """
    if not 0 <= lam <= 1:
        raise ValueError(f"lam must lie in [0, 1], got {lam}")
    forecasts = forecasts.detach()
    targets = [outcomes.to(forecasts.dtype)]
    for following in forecasts.unbind(-1)[:0:-1]:
        targets.append((1 - lam) * following + lam * targets[-1])
    return torch.stack(targets[::-1], -1)


# --- the registry ---


def lambda_mix(
    name: str, lam: float, baseline: str = "none", constant: float = 0.0
) -> Objective:
    """``(c - lam p_a - b) grad log p_a - (1 - lam)/2 grad ||p||^2`` (thm-gini).

    On-policy its mean is J(q - p) at every lam and constant b; lam = 1 is RLCD, lam = 0
    RLVR plus exact Gini.
    """
    return policy_gradient(
        name,
        mixed_reward(lam, constant),
        baseline,
        equation="thm-gini",
        calibrates=True,
        terms=(gini_term((1 - lam) / 2),) if lam != 1 else (),
    )


def _objectives() -> Iterator[Objective]:
    variants: list[tuple[str, str, str, Weighting, float | None]] = [
        ("", "none", "thm-identity", "none", None),
        ("_loo", "leave_one_out", "thm-own-baseline", "none", None),
        ("_mean", "group_mean", "thm-own-baseline", "none", None),
        ("_std", "group_std", "thm-std", "none", None),
        ("_ips", "none", "thm-behaviour", "importance", None),
        ("_snips", "none", "thm-behaviour", "self_normalised", None),
        ("_ppo", "none", "eq-ppo", "none", 0.2),
    ]
    for kind, reward in (("rlcd", rlcd_reward), ("rlvr", rlvr_reward)):
        for suffix, baseline, equation, weighting, clip in variants:
            yield policy_gradient(
                kind + suffix,
                reward,
                baseline,
                equation=equation,
                calibrates=kind == "rlcd" and baseline != "group_std",
                weighting=weighting,
                clip=clip,
            )
    yield policy_gradient(
        "one_bit_log", log_reward, equation="thm-one-bit", calibrates=True
    )
    yield lambda_mix("rlcd_half", 0.5)
    yield lambda_mix("rlvr_gini", 0.0)
    yield lambda_mix("rlvr_gini_loo", 0.0, "leave_one_out")
    log_spherical = composite_score(1.0, spherical=0.5)
    bounded = bounded_score(log_spherical, 0.01)
    yield label_objective("nll", log_score, "eq-log-score")
    yield label_objective("brier", brier_score, "thm-identity")
    yield label_objective("spherical", spherical_score, "eq-spherical")
    yield label_objective("log_spherical", log_spherical, "thm-clamp")
    yield label_objective("log_spherical_bounded", bounded, "thm-clamp")
    yield label_objective("nll_brier", composite_score(1.0, brier=1.0), "eq-nll-brier")
    yield one_bit_objective("one_bit_log_residual", log_score)
    yield one_bit_objective("one_bit_spherical", spherical_score)
    yield one_bit_objective("one_bit_log_spherical", log_spherical)
    yield Objective("one_bit_spherical_pathwise", spherical_pathwise, "thm-one-bit")
    yield Objective("verdict_nll", verdict_nll, "thm-regression")
    yield Objective("verdict_brier", verdict_brier, "thm-regression")
    yield Objective("rlcd_regression", weighted_regression, "thm-regression")
    yield Objective("rlcd_poisson", poisson_loss, "thm-gini")
    yield Objective("residual_ht", residual_ht, "thm-residual-ht", propensities=True)
    yield Objective("exclusive_brier", exclusive_brier, "thm-residual-ht")
    yield Objective("exclusive_control", exclusive_control, "thm-residual-ht")
    yield Objective("rlcd_dr", doubly_robust, "thm-behaviour", propensities=True)
    yield ranking_objective("bradley_terry", pairs=True)
    yield ranking_objective("plackett_luce", pairs=False)
    for beta in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5):
        for kind, term in (("shannon", shannon_term), ("kl", kl_term)):
            yield policy_gradient(
                f"rlvr_{kind}_{beta:g}",
                rlvr_reward,
                equation="thm-rescues",
                calibrates=False,
                terms=(term(beta),),
            )


OBJECTIVES: dict[str, Objective] = {each.name: each for each in _objectives()}
"""Every named objective. `brier` is half the Brier loss, so that its expected direction
is that of `rlcd`, J(q - p)."""

STATED: dict[str, Objective] = {
    each.name: each
    for kind in ("binary", "brier", "rlcr", "log", "decoupled")
    for suffix, baseline in (("", "none"), ("_loo", "leave_one_out"))
    for each in [stated_objective(f"stated_{kind}{suffix}", kind, baseline)]
}
"""Objectives on pairs of option and stated level; apart from `OBJECTIVES`, which work
on options."""
