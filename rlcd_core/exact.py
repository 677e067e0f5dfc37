"""Exact mean, covariance and fixed point of any objective, by enumeration.

Every group of actions and outcomes that a question can meet becomes one row of a
`Feedback`; one backward pass through the objective that trains gives the direction of
each row, and probabilities weigh them. Nothing is sampled and all is float64, so what
is proven about an objective is proven about the code that trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import factorial, nan, prod
from typing import Literal

import torch
from torch import Tensor

from rlcd_core.rewards import MASKED, Feedback, Objective, inclusion_probabilities

Vector = Tensor | Sequence[float]
Behaviour = Vector | Callable[[Tensor], Tensor] | None
Field = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Channel:
    """How the bit that is seen comes from the bit that is true (thm-noise).

    Parameters
    ----------
    right, wrong : (float, float, float)
        Chances to see 0, 1, unresolved when the action is right, when it is wrong; a
        ValueError is raised unless each sums to 1.

    Examples
    --------
    >>> Channel.flip(0.1).wrong
    (0.9, 0.1, 0.0)
    """

    right: tuple[float, float, float] = (0.0, 1.0, 0.0)
    wrong: tuple[float, float, float] = (1.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        for chances in (self.right, self.wrong):
            if min(chances) < 0 or abs(sum(chances) - 1) > 1e-12:
                raise ValueError(f"channel chances must sum to 1, got {chances}")

    @classmethod
    def flip(cls, eps: float) -> Channel:
        """The bit is flipped with chance eps."""
        return cls((eps, 1 - eps, 0.0), (1 - eps, eps, 0.0))

    @classmethod
    def unresolved(cls, right: float, wrong: float) -> Channel:
        """Resolved with chance `right` when right, `wrong` when wrong; else NaN."""
        return cls((0.0, right, 1 - right), (wrong, 0.0, 1 - wrong))

    @classmethod
    def unresolved_as_wrong(cls, rho: float) -> Channel:
        """Resolved with chance rho; the rest is scored as wrong."""
        return cls((1 - rho, rho, 0.0), (1.0, 0.0, 0.0))


@dataclass(frozen=True)
class Moments:
    """Exact moments of one group's ascent direction in logit space.

    `mean` is float64 (K,), `covariance` (K, K), `group_size` the outcomes it took.
    """

    mean: Tensor
    covariance: Tensor
    group_size: int

    @property
    def trace(self) -> float:
        """Trace of the covariance of one group's direction."""
        return float(self.covariance.diagonal().sum())

    @property
    def trace_per_outcome(self) -> float:
        """Trace times G: the variance at a budget of one outcome."""
        return self.trace * self.group_size


@dataclass(frozen=True)
class _Groups:
    """Enumerated groups; `chance` (R,) is all of their weight but the actions' own."""

    actions: Tensor
    outcomes: Tensor
    labels: Tensor
    chance: Tensor


def _distribution(name: str, values: Vector) -> Tensor:
    p = torch.as_tensor(values, dtype=torch.float64)
    # Written so that NaN fails.
    if not (p.ndim == 1 and p.min() >= 0 and abs(float(p.sum()) - 1) <= 1e-9):
        raise ValueError(f"{name} must be a distribution, got {p.tolist()}")
    return p


def _enumerate(
    objective: Objective,
    q: Tensor,
    group_size: int,
    shared_outcome: bool,
    replacement: bool,
    channel: Channel | None,
    merge_orders: bool,
) -> _Groups:
    """All groups of draws (action, bit), for each label that may judge them.

    A shared label is drawn once; otherwise it is summed out of every bit.
    """
    if objective.couples_rows:
        raise ValueError(
            f"objective {objective.name!r} normalises over the batch: its rows cannot "
            "be enumerated one by one"
        )
    if objective.needs == "label" and not shared_outcome:
        raise ValueError("a label objective needs shared_outcome=True")
    if not 1 <= group_size <= (group_size if replacement else len(q)):
        raise ValueError(
            f"group_size {group_size} must be at least 1, and without replacement at "
            f"most {len(q)}"
        )
    channel = channel or Channel()
    seen = torch.tensor([channel.wrong, channel.right], dtype=torch.float64)
    if shared_outcome:
        hit = torch.eye(len(q), dtype=torch.int64)
        judges = [(y, float(q[y]), seen[hit[y]]) for y in range(len(q)) if q[y] > 0]
    else:
        judges = [(0, 1.0, q[:, None] * seen[1] + (1 - q[:, None]) * seen[0])]
    rows = []
    for label, weight, table in judges:
        draws = [(a, b) for a, b in product(range(len(q)), range(3)) if table[a, b] > 0]
        chance = {draw: float(table[draw]) for draw in draws}
        groups = (
            combinations_with_replacement(draws, group_size)
            if merge_orders
            else product(draws, repeat=group_size)
        )
        for group in groups:
            actions = [a for a, _ in group]
            if not replacement and len(set(actions)) < group_size:
                continue
            orders = 1.0
            if merge_orders:
                repeats = prod(factorial(group.count(draw)) for draw in set(group))
                orders = factorial(group_size) / repeats
            total = weight * orders * prod(chance[draw] for draw in group)
            rows.append((actions, [(0.0, 1.0, nan)[b] for _, b in group], label, total))
    actions, outcomes, labels, chances = zip(*rows, strict=True)
    return _Groups(
        torch.tensor(actions),
        torch.tensor(outcomes, dtype=torch.float64),
        torch.tensor(labels),
        torch.tensor(chances, dtype=torch.float64),
    )


def _log(p: Tensor) -> Tensor:
    return torch.where(p > 0, p, 1.0).log().masked_fill(p == 0, MASKED)


def _directions(
    objective: Objective,
    z: Tensor,
    groups: _Groups,
    behaviour: Behaviour,
    replacement: bool,
    extra: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Weights (P, R) and ascent directions (P, R, K) of all groups at z (P, K)."""
    mu = p = torch.softmax(z, -1)
    if callable(behaviour):
        mu = behaviour(p)
    elif behaviour is not None:
        mu = _distribution("behaviour", behaviour).expand_as(p)
    propensity = drawn = mu[:, groups.actions]
    if not replacement:
        drawn = drawn / (1 - (drawn.cumsum(-1) - drawn))
        pi = inclusion_probabilities(_log(mu), drawn.shape[-1])
        propensity = pi[:, groups.actions]
    weight = drawn.prod(-1) * groups.chance
    kept = weight > 0
    point, row = kept.nonzero(as_tuple=True)
    leaf = z[point].clone().requires_grad_(True)
    feedback = Feedback(
        actions=groups.actions[row],
        outcomes=groups.outcomes[row],
        propensities=propensity[kept].clamp(max=1.0),
        labels=groups.labels[row],
        **{name: value.expand(len(row), -1) for name, value in extra.items()},
    )
    objective(torch.log_softmax(leaf, -1), feedback).sum().backward()
    direction = torch.zeros(*weight.shape, z.shape[1], dtype=torch.float64)
    direction[kept] = -leaf.grad
    return weight, direction


def moments(
    objective: Objective,
    p: Vector,
    q: Vector,
    group_size: int = 1,
    shared_outcome: bool = True,
    behaviour: Behaviour = None,
    replacement: bool = True,
    channel: Channel | None = None,
    **extra: Tensor,
) -> Moments:
    """Exact mean and covariance of the ascent direction for one question.

    Parameters
    ----------
    objective : Objective
        Any that does not couple the rows of a batch.
    p, q : (K,)
        Policy and truth, both distributions.
    group_size : int
        Actions G per question.
    shared_outcome : bool
        True: one label judges the group. False: each action meets its own draw.
    behaviour : (K,), callable or None
        Where actions come from: a fixed mu, ``mu(p (P, K)) -> (P, K)``, or p itself.
    replacement : bool
        False: a sequential draw; propensities are then inclusion probabilities.
    channel : Channel, optional
        Noise or censoring of the bit; none by default.
    **extra : float64 (K,)
        Further `Feedback` fields, such as ``reference_log_probs``.

    Raises
    ------
    ValueError
        If p and q are not distributions of one length, if the group is empty or larger
        than replacement allows, if a label objective is asked for with independent
        outcomes, or if the objective couples rows.

    Examples
    --------
    >>> from rlcd_core.rewards import OBJECTIVES
    >>> m = moments(OBJECTIVES["rlcd"], [0.5, 0.5], [0.9, 0.1])
    >>> [round(v, 3) for v in m.mean.tolist()], round(m.trace, 3)
    ([0.2, -0.2], 0.045)
    """
    p, q = _distribution("p", p), _distribution("q", q)
    if p.shape != q.shape:
        raise ValueError("p and q must be vectors of one length")
    groups = _enumerate(
        objective, q, group_size, shared_outcome, replacement, channel, False
    )
    weight, direction = _directions(
        objective, _log(p)[None], groups, behaviour, replacement, extra
    )
    mean = weight[0] @ direction[0]
    centred = direction[0] - mean
    covariance = (weight[0][:, None] * centred).T @ centred
    return Moments(mean, covariance, group_size)


def group_trace(
    p: Tensor, q: Tensor, group_size: int, leave_one_out: bool = False
) -> Tensor:
    """Trace (N,) of RLCD's group covariance under a shared label, in closed form.

    For groups too large to enumerate (thm-own-baseline). Given the label, actions are
    independent, and leave-one-out is a U-statistic of order two: its variance is ``2
    (2 (G - 2) zeta_1 + zeta_2) / (G (G - 1))``. `p` and `q` are float64 (N, K).
    """
    size = p.shape[-1]
    eye = torch.eye(size, dtype=p.dtype)
    reward = eye - p[:, None, :]  # (N, label, action)
    square = p.square().sum(-1)
    # E[direction | label] = J (e_y - p) = p_y (e_y - p) - p o p + p ||p||^2.
    mean = p[:, :, None] * (eye - p[:, None, :]) - p.square()[:, None, :]
    mean = mean + p[:, None, :] * square[:, None, None]
    length = mean.square().sum(-1)  # (N, label)
    if leave_one_out:
        weighed = p[:, None, :] * reward
        centred = reward - weighed.sum(-1, keepdim=True)
        first = centred[..., None] * eye - reward[..., None] * p[:, None, None, :]
        first = (first + weighed[:, :, None, :]) / 2  # E[kernel | one action]
        zeta_1 = (p[:, None, :] * first.square().sum(-1)).sum(-1) - length
        gap = (reward[..., :, None] - reward[..., None, :]).square() / 2
        both = p[:, None, :, None] * p[:, None, None, :]
        zeta_2 = (both * gap).sum((-1, -2)) - length
        given = 2 * (2 * (group_size - 2) * zeta_1 + zeta_2)
        given = given / (group_size * (group_size - 1))
    else:
        score = 1 - 2 * p + square[:, None]  # ||e_a - p||^2
        second = (p[:, None, :] * reward.square() * score[:, None, :]).sum(-1)
        given = (second - length) / group_size
    total = (q[..., None] * mean).sum(-2).square().sum(-1)
    return (q * (given + length)).sum(-1) - total


def field(
    objective: Objective,
    q: Vector,
    group_size: int = 1,
    shared_outcome: bool = True,
    behaviour: Behaviour = None,
    replacement: bool = True,
    channel: Channel | None = None,
    **extra: Tensor,
) -> Field:
    """The mean direction as a function of logits, ``z (P, K) -> (P, K)``.

    Arguments and errors as in `moments`. The orders of a group are merged, which holds
    for every objective of `rewards` and is checked against `moments` in the tests.
    """
    groups = _enumerate(
        objective,
        _distribution("q", q),
        group_size,
        shared_outcome,
        replacement,
        channel,
        replacement,
    )

    def at(z: Tensor) -> Tensor:
        weight, direction = _directions(
            objective, z, groups, behaviour, replacement, extra
        )
        return torch.einsum("pr,prk->pk", weight, direction)

    return at


@dataclass(frozen=True)
class FixedPoint:
    """Where a flow ends, float64 (K,), and what kind of end it is.

    `kind` is ``interior`` for a stationary point with p > 0, ``boundary`` for a flow
    that left towards a face, ``flow`` for the uncertified end of a long explicit flow.
    `rate` is the largest real part of the linearised flow's spectrum across sum z = 0,
    negative if stable; NaN unless interior.
    """

    p: Tensor
    kind: Literal["interior", "boundary", "flow"]
    rate: float = nan


def settle(
    f: Field,
    start: Vector,
    method: Literal["newton", "flow"] = "newton",
    steps: int = 1000,
    edge: float = 1e-9,
) -> FixedPoint:
    """Follow ``dz/dt = f(z)`` from ``z = log start`` to its end.

    ``newton`` takes implicit Euler steps whose length grows as the field shrinks: it
    first follows the flow and ends as Newton's method (pseudo-transient continuation).
    ``flow`` takes explicit steps of shrinking length and averages the last half: for
    fields that jump, as with standard-deviation normalisation.

    Raises
    ------
    RuntimeError
        If ``newton`` does not settle within `steps`.
    """
    z = _log(torch.as_tensor(start, dtype=torch.float64))
    value = f(z[None])[0]
    if method == "flow":
        total = torch.zeros_like(z)
        for n in range(steps):
            z = z + 10.0 / (1 + n / 20) * value
            value = f(z[None])[0]
            total += torch.softmax(z, -1) * (n >= steps // 2)
        return FixedPoint(total / total.sum(), "flow")
    length, h = 1.0, 1e-5
    eye = torch.eye(len(z), dtype=torch.float64)
    for _ in range(steps):
        p, norm = torch.softmax(z, -1), float(value.norm())
        if p.min() < edge:
            return FixedPoint(p, "boundary")
        around = f(torch.cat([z + h * eye, z - h * eye]))
        slope = ((around[: len(z)] - around[len(z) :]) / (2 * h)).T
        if norm < 1e-13:
            spectrum = torch.linalg.eigvals(slope).real
            # A shift of all logits moves nothing: its eigenvalue 0 is left out.
            spectrum = spectrum[spectrum.abs().argsort()[1:]]
            return FixedPoint(p, "interior", float(spectrum.max()))
        step = torch.linalg.solve(eye / length - slope, value)
        z = z + step * min(1.0, 2.0 / float(step.abs().max()))
        z = z - z.mean()
        value = f(z[None])[0]
        length *= norm / max(float(value.norm()), 1e-300)
        length = min(max(length, 0.1), 1e12)
    raise RuntimeError(f"no fixed point within {steps} steps: |f| = {norm:g}")


def fixed_point(
    objective: Objective,
    q: Vector,
    group_size: int = 1,
    shared_outcome: bool = True,
    *,
    start: Vector | None = None,
    method: Literal["newton", "flow"] = "newton",
    steps: int = 1000,
    **setting,
) -> FixedPoint:
    """Where a tabular policy that follows the objective's mean direction ends.

    Starts from uniform unless told otherwise; `setting` goes to `field`, the method is
    explained at `settle`.

    Examples
    --------
    >>> from rlcd_core.rewards import OBJECTIVES
    >>> end = fixed_point(OBJECTIVES["rlcd"], [0.7, 0.3])
    >>> [round(v, 6) for v in end.p.tolist()], end.kind
    ([0.7, 0.3], 'interior')
    """
    start = [1 / len(q)] * len(q) if start is None else start
    f = field(objective, q, group_size, shared_outcome, **setting)
    return settle(f, start, method, steps)
