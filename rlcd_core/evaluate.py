"""The battery that every policy goes through before anyone trusts or trains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcd_core.data.triage import probe, probe_summary
from rlcd_core.metrics import (
    Interval,
    Statistic,
    bootstrap_interval,
    ece_statistic,
    mean_statistic,
    top_option,
)
from rlcd_core.policy.base import Item, predict
from rlcd_core.policy.order import orders, reordered
from rlcd_core.schema import Choice, Noul, render_state
from rlcd_core.scoring import brier

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One measured property.

    Attributes
    ----------
    name, about : str
        What was measured, and the meaning of the number.
    value : float
    n : int
        Items behind it.
    limit : float or None
        Largest value that passes; None where there is nothing to pass, only to know.
    interval : Interval or None
        Bootstrap over states; None for a maximum, or with fewer than 2 states.
    """

    name: str
    about: str
    value: float
    n: int
    limit: float | None = None
    interval: Interval | None = None

    @property
    def passed(self) -> bool:
        """False only if there is a limit and the value is over it."""
        return self.limit is None or self.value <= self.limit


def probabilities(
    policy: Any, items: Sequence[Item], batch_size: int = 16
) -> list[Array]:
    """One float64 array of its own length per item."""
    if not items:
        return []
    rows = predict(policy, policy.prepare(items), batch_size=batch_size)
    return [
        row[: len(question.options)].astype(np.float64)
        for row, (_, question) in zip(rows, items, strict=True)
    ]


def total_variation(p: Any, q: Any) -> float:
    """Half the absolute difference of two distributions, in [0, 1].

    Examples
    --------
    >>> total_variation([0.5, 0.5], [1.0, 0.0])
    0.5
    """
    return 0.5 * float(np.abs(np.asarray(p, float) - np.asarray(q, float)).sum())


def answers_by_order(
    policy: Any, items: Sequence[Item], *, count: int = 4, batch_size: int = 16
) -> list[Array]:
    """Answers to every order of the options, brought back to the given order.

    Returns
    -------
    list of N (n_orders, K_i) arrays
        Row j answers order j of `rlcd_core.policy.order.orders`; row 0 the given one.
    """
    probes, owner, order_of = [], [], []
    for index, (state, question) in enumerate(items):
        for order in orders(question, count):
            probes.append((state, reordered(question, order)))
            owner.append(index)
            order_of.append(order)
    back: list[list[Array]] = [[] for _ in items]
    answers = probabilities(policy, probes, batch_size)
    for index, order, p in zip(owner, order_of, answers, strict=True):
        given = np.empty_like(p)
        given[order] = p
        back[index].append(given)
    return [np.stack(rows) for rows in back]


def order_sensitivity(answers: Sequence[Array]) -> tuple[Array, Array]:
    """How far the answers move when only the order of the options changes.

    Parameters
    ----------
    answers : list of N (n_orders, K_i) arrays
        As :func:`answers_by_order` returns them, at least two orders each.

    Returns
    -------
    (flips, distances) : two (N,) arrays in [0, 1]
        Share of the other orders whose chosen option differs from that of the given
        order, and mean total variation from it.

    Examples
    --------
    >>> first_listed = np.array([[0.8, 0.2], [0.2, 0.8]])
    >>> [round(float(x[0]), 12) for x in order_sensitivity([first_listed])]
    [1.0, 0.6]
    """
    flips, distances = np.zeros(len(answers)), np.zeros(len(answers))
    for index, (first, *others) in enumerate(answers):
        flips[index] = np.mean([o.argmax() != first.argmax() for o in others])
        distances[index] = np.mean([total_variation(first, o) for o in others])
    return flips, distances


def probes(items: Sequence[Item], extra: str) -> dict[str, list[Item]]:
    """The items that test the Plackett-Luce predictions, from the given ones.

    Each probe concerns the first two options a and b of an item that is no `Noul`:
    "pair" asks for a or b alone, "noul" whether it is a rather than b, "turned" whether
    it is b rather than a (a policy that likes to say true cannot agree with both),
    "more" adds the option `extra` to all.
    """
    told = [(s, q) for s, q in items if not isinstance(q, Noul)]
    names = ("given", "pair", "noul", "turned", "more")
    made: dict[str, list[Item]] = {name: [] for name in names} | {"given": told}
    for state, question in told:
        a, b = question.options[:2]
        made["pair"].append((state, Choice(question.text, [a, b])))
        for name, one, other in (("noul", a, b), ("turned", b, a)):
            wording = f"{question.text} Is the answer {one!r} rather than {other!r}?"
            made[name].append((state, Noul(wording)))
        more = [*question.options, extra]
        made["more"].append((state, Choice(question.text, more)))
    return made


def battery(
    policy: Any,
    items: Sequence[Item],
    labels: Sequence[int] | None = None,
    *,
    rng: np.random.Generator,
    extra: str = "something unrelated",
    order_count: int = 4,
    batch_size: int = 16,
    tolerance: float = 1e-5,
    n_resamples: int = 2000,
) -> list[Check]:
    """Check what every policy must hold, and measure what it may or may not.

    Four checks have a limit: the mass on options that do not exist, the sum of each
    row, the same call twice, the same item alone and in a batch. The rest are the five
    predictions of the Plackett-Luce view (`thm-plackett-luce`), which a policy may
    fail without being broken: 0 means that a prediction holds exactly. A pair is asked
    as a yes/no question in both wordings; binary equivalence is the mean over the two,
    and "wordings" how far they are apart.

    Parameters
    ----------
    policy : Policy
    items : sequence of (state, question)
    labels : sequence of int, optional
        Index of the right option of each item; without it calibration is left out.
    rng : numpy Generator
        Of the bootstrap.
    extra : str
        An option that answers none of the questions.
    tolerance : float
        Of the comparison alone against batch: 1e-5 for float32, 2e-2 for bfloat16.

    Returns
    -------
    list of Check
        A prediction that no item can test is left out.
    """
    n = len(items)
    states = np.array([render_state(state) for state, _ in items])
    prepared = policy.prepare(items)
    p = predict(policy, prepared, batch_size=batch_size)
    again = predict(policy, prepared, batch_size=batch_size)
    alone = predict(policy, prepared, batch_size=1)
    mask = prepared.mask.numpy()

    def measured(
        name: str, about: str, of: Statistic | Array, group: Any = states, **how: Any
    ) -> Check:
        statistic = of if isinstance(of, Statistic) else mean_statistic(of)
        interval = None
        if len(set(group.tolist())) > 1:
            interval = bootstrap_interval(
                statistic, groups=group, rng=rng, n_resamples=n_resamples, **how
            )
        return Check(name, about, statistic.value(), len(group), None, interval)

    change = np.abs(p - alone)
    flips, distances = order_sensitivity(
        answers_by_order(policy, items, count=order_count, batch_size=batch_size)
    )
    checks = [
        Check("mask", "mass on missing options", float(p[~mask].sum()), n, 0.0),
        Check("sum", "largest |sum - 1|", float(np.abs(p.sum(1) - 1).max()), n, 1e-5),
        Check("determinism", "largest change", float(np.abs(p - again).max()), n, 0.0),
        Check("batch", "largest change, alone", float(change.max()), n, tolerance),
        measured("rescoring noise", "mean change, alone", change.sum(1) / mask.sum(1)),
        measured("order flip rate", "share of answers that change", flips),
        measured("order distance", "mean total variation", distances),
    ]
    made = probes(items, extra)
    share = {}
    for name, asked in made.items():
        first_two = [a[:2] for a in probabilities(policy, asked, batch_size)]
        # The first option's share of the first two: 1/2 if both vanished.
        share[name] = np.array([(a[0] + 1e-30) / (a.sum() + 2e-30) for a in first_two])
    share["turned"] = 1 - share["turned"]  # "b rather than a": true speaks for b
    group = np.array([render_state(state) for state, _ in made["given"]])
    wide = np.array([len(q.options) > 2 for _, q in made["given"]], dtype=bool)
    of = "mean difference of p(a) / (p(a) + p(b))"
    both = ("noul", "turned")
    for name, about, one, others, kept in (
        ("binary equivalence", "Choice against Noul", "pair", both, wide | True),
        ("wordings", "yes/no asked for a and for b", "noul", ("turned",), wide | True),
        ("pairwise consistency", "all options against two", "given", ("pair",), wide),
        ("irrelevant alternatives", "one option more", "given", ("more",), wide | True),
    ):
        if kept.any():
            gaps = [np.abs(share[one] - share[other]) for other in others]
            gap = np.mean(gaps, axis=0)[kept]
            checks.append(measured(name, f"{of}, {about}", gap, group[kept]))
    if labels is not None:
        exact = np.where(mask, p.astype(np.float64), 0.0)
        exact /= exact.sum(1, keepdims=True)
        confidence, right = top_option(exact, labels, mask)
        error = ece_statistic(confidence, right)
        checks += [
            measured("accuracy", "share right", right),
            measured("Brier", "mean, in [0, 2]", brier(exact, labels, mask=mask)),
            measured("ECE", "15 bins, plug-in: biased up", error, method="basic"),
        ]
    return checks


@dataclass(frozen=True)
class PosteriorCheck:
    """How a policy answers questions whose right probabilities are known.

    Attributes
    ----------
    kind : str
        "one_cue", "two_cues" or "escalate".
    ideal : float
        Mean largest probability of the true posterior: 1, .5 or .9.
    confidence : Interval
        Mean largest probability of the policy, in [1/K, 1].
    distance : Interval
        Mean total variation from the true posterior, in [0, 1]; 0 is perfect.
    top : float
        Share of items whose largest probability is on an option of largest posterior.
    """

    kind: str
    ideal: float
    confidence: Interval
    distance: Interval
    top: float


def known_posterior(
    policy: Any,
    n: int = 200,
    *,
    seed: int = 0,
    phrases: str = "all",
    batch_size: int = 64,
    n_resamples: int = 2000,
) -> list[PosteriorCheck]:
    """Ask any policy n fresh triage tickets of each kind with a known posterior.

    Right answers alone cannot pass: on two equal cues an honest policy says .5 and .5,
    on a pressing ticket .9.

    Parameters
    ----------
    policy : Policy
    n : int
        Tickets of each kind, at least 2.
    seed : int
        Fixes the tickets and the bootstrap.
    phrases : {"all", "seen", "held_out"}
        Surface forms of the cues, as `rlcd_core.data.triage.probe` takes them.

    Returns
    -------
    list of PosteriorCheck
        For "one_cue", "two_cues" and "escalate"; bootstrap over tickets.

    Raises
    ------
    ValueError
        Fewer than 2 tickets.
    """
    if n < 2:
        raise ValueError(f"n={n}: an interval needs at least 2 tickets of each kind")
    found = []
    for kind, items in probe(n, np.random.default_rng(seed), phrases).items():
        asked = [(item.state, item.question) for item in items]
        p = np.stack(probabilities(policy, asked, batch_size))
        q = np.array([item.posterior for item in items])
        told = probe_summary(p, items)
        rng = np.random.default_rng(seed)
        confidence, distance = (
            bootstrap_interval(mean_statistic(x), rng=rng, n_resamples=n_resamples)
            for x in (p.max(1), 0.5 * np.abs(p - q).sum(1))
        )
        top = told["top_is_ideal"]
        check = PosteriorCheck(
            kind, told["ideal_confidence"], confidence, distance, top
        )
        found.append(check)
    return found
