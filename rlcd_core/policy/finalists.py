"""Questions with more options than a policy can take: choose in stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlcd_core.policy.base import (
    Batch,
    Item,
    PolicyError,
    Prepared,
    batches,
    option_counts,
)
from rlcd_core.policy.order import reordered
from rlcd_core.policy.passes import CostRule, state_log_probs
from rlcd_core.rewards import MASKED
from rlcd_core.schema import render_state

FLOOR = 60.0
"""Largest distance in log-probability from the best option: e^-60 is still positive in
float32, so that no declared option vanishes."""


@dataclass(frozen=True)
class Held:
    """Items of a batch, which travel with its tensors but live on no device."""

    items: list[Item]

    def to(self, _: Any) -> Held:
        """Itself."""
        return self


def option_limit(policy: Any) -> int | None:
    """Number of labels of the letter policy under the wrappers; None if there is none.

    Examples
    --------
    >>> from rlcd_core.policy.base import TabularPolicy
    >>> from rlcd_core.schema import Noul
    >>> option_limit(TabularPolicy([("down", Noul("Page?"))])) is None
    True
    """
    while policy is not None:
        labels = getattr(policy, "labels", None)
        if labels is not None:
            return len(labels)
        policy = getattr(policy, "policy", None)
    return None


class Finalists(nn.Module):
    r"""A policy over any number of options, from one that takes only a few at once.

    Up to `size` options go to the policy as they are. More go through stages. Either
    `first` scores all of them apart and the best `size` are the finalists; or, without
    `first`, they are split into groups of at most `size`, the policy chooses within
    each group, and the best of each group are the finalists (among whom, if they are
    still too many, the same is done again). The policy then chooses among the
    finalists.

    Let group g have the distribution :math:`p_g` and the finalists :math:`F_g`, and let
    f be the distribution over all finalists. Then

    .. math:: w_k = f_k \;\; (k \in F_g), \qquad
              w_k = p_g(k) \, \frac{\sum_{j \in F_g} f_j}{\sum_{j \in F_g} p_g(j)}
              \;\; (k \in g \setminus F_g), \qquad p \propto w

    so that those who leave keep their odds against the finalists of their group, and
    every option keeps a positive probability. For a policy that obeys Luce's axiom
    (odds of two options do not depend on the others) this is exactly its one-stage
    distribution, whatever the groups (`thm-plackett-luce`); for others the stages
    matter, and should be measured. With `first`, all options are one group.

    Parameters
    ----------
    policy : Policy
        Chooses among at most `size` options.
    first : Policy, optional
        Scores all options apart, such as a `DecisionHead` or a `VerbatimPolicy`.
    size : int, optional
        Most options that the policy is asked to choose among; default the number of
        its labels.
    batch_size : int
        Prompts a forward pass.
    rule : CostRule, optional
        How groups that share a state are read.

    Raises
    ------
    PolicyError
        `size` is under 2 or over the number of labels, or is missing where the policy
        has no labels.
    """

    def __init__(
        self,
        policy: Any,
        first: Any = None,
        *,
        size: int | None = None,
        batch_size: int = 16,
        rule: CostRule | None = None,
    ) -> None:
        super().__init__()
        limit = option_limit(policy)
        if size is None and limit is None:
            raise PolicyError(
                f"{type(policy).__name__} has no labels to count: pass size=, the "
                "number of options it shall choose among at once"
            )
        if size is not None and (size < 2 or size > (limit or size)):
            raise PolicyError(
                f"size={size}: pass 2 to {limit or 'any number of'} options"
            )
        self.policy = policy
        self.first = first
        self.size: int = size or limit or 0
        self.batch_size = batch_size
        self.rule = CostRule() if rule is None else rule
        self.train(getattr(policy, "training", False))

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Keep the items: who the finalists are is known only when they are read."""
        held = list(items)
        return Prepared(
            option_counts(held),
            lambda rows: {"items": Held([held[int(row)] for row in rows])},  # type: ignore[dict-item]
        )

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) masked log-probabilities over all options."""
        rows = self._stages(batch.inputs["items"].items)  # type: ignore[operator]
        width = batch.mask.shape[1]
        padded = [nn.functional.pad(r, (0, width - len(r)), value=MASKED) for r in rows]
        return torch.stack(padded)

    def finalists(self, state: Any, question: Any) -> list[int]:
        """Places, in the question's order, of the options that reach the last stage."""
        with torch.inference_mode():
            places = list(range(len(question.options)))
            while len(places) > self.size:
                asked = reordered(question, places)
                groups = self._groups(len(places))
                within = self._within([(state, asked)], [groups])[0]
                best = _best(within, groups, self.size)
                places = [places[i] for kept in best for i in kept]
        return places

    def _groups(self, count: int) -> list[list[int]]:
        if self.first is not None:
            return [list(range(count))]
        number = math.ceil(count / self.size)
        cuts = [count * i // number for i in range(number + 1)]
        return [list(range(*pair)) for pair in zip(cuts[:-1], cuts[1:], strict=True)]

    def _within(
        self, items: Sequence[Item], groups: Sequence[list[list[int]]]
    ) -> list[list[Tensor]]:
        """Log-probabilities within each group of each item."""
        asked: list[Item] = [
            (state, reordered(question, group) if len(parts) > 1 else question)
            for (state, question), parts in zip(items, groups, strict=True)
            for group in parts
            if len(group) > 1
        ]
        answers = iter(self._ask(self.first or self.policy, asked))
        # Who is alone in a group wins it.
        alone = torch.zeros(1)
        return [
            [next(answers) if len(group) > 1 else alone for group in parts]
            for parts in groups
        ]

    def _stages(self, items: Sequence[Item]) -> list[Tensor]:
        """One (K_i,) row of log-probabilities an item."""
        wide = [i for i, (_, q) in enumerate(items) if len(q.options) > self.size]
        groups = [self._groups(len(items[i][1].options)) for i in wide]
        within = self._within([items[i] for i in wide], groups)
        best = [
            _best(parts, of, self.size)
            for parts, of in zip(within, groups, strict=True)
        ]
        last = dict(enumerate(items))
        for i, kept in zip(wide, best, strict=True):
            state, question = items[i]
            last[i] = (state, reordered(question, [k for part in kept for k in part]))
        asked = [last[i] for i in range(len(items))]
        again = any(len(question.options) > self.size for _, question in asked)
        rows = self._stages(asked) if again else self._ask(self.policy, asked)
        for i, parts, of, kept in zip(wide, within, groups, best, strict=True):
            rows[i] = _combined(parts, of, kept, rows[i])
        return rows

    def _ask(self, policy: Any, items: Sequence[Item]) -> list[Tensor]:
        """One row an item; states with several questions are read once."""
        rows: dict[int, Tensor] = {}
        by_state: dict[str, list[int]] = {}
        for i, (state, _) in enumerate(items):
            by_state.setdefault(render_state(state), []).append(i)
        single = []
        for members in by_state.values():
            if torch.is_grad_enabled() or len(members) == 1:
                single += members
                continue
            questions = [items[i][1] for i in members]
            state = items[members[0]][0]
            found = state_log_probs(
                policy, state, questions, self.rule, self.batch_size
            )
            rows |= zip(members, found, strict=True)
        if single:
            prepared = policy.prepare([items[i] for i in single])
            for part in batches(len(single), self.batch_size):
                found = policy.log_probs(prepared.take(part))
                rows |= zip([single[i] for i in part], found, strict=True)
        return [
            rows[i][: len(question.options)] for i, (_, question) in enumerate(items)
        ]


def _best(
    within: Sequence[Tensor], groups: Sequence[list[int]], size: int
) -> list[list[int]]:
    """The options of each group that go on, in the given order; at least one each."""
    count = max(1, size // len(groups))
    return [
        [group[i] for i in sorted(row.topk(min(count, len(group))).indices.tolist())]
        for row, group in zip(within, groups, strict=True)
    ]


def _combined(
    within: Sequence[Tensor],
    groups: Sequence[list[int]],
    best: Sequence[list[int]],
    final: Tensor,
) -> Tensor:
    """(K,) log-probabilities of all options from their groups and the last stage."""
    parts = []
    start = 0
    for row, group, kept in zip(within, groups, best, strict=True):
        row = row.to(final)
        won = final[start : start + len(kept)]
        start += len(kept)
        place = torch.tensor([group.index(k) for k in kept], device=final.device)
        level = won.logsumexp(0) - row[place].logsumexp(0)
        parts.append((row + level).index_put((place,), won))
    # The groups are slices of the options, in their order.
    whole = torch.cat(parts)
    return whole.clamp_min(whole.max() - FLOOR).log_softmax(0)
