"""Averaging over the order in which options are listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlcd_core.policy.base import (
    Batch,
    Item,
    Prepared,
    masked_log_softmax,
    option_counts,
    option_mask,
)
from rlcd_core.policy.passes import Work
from rlcd_core.schema import Choice, Score


def orders(question: Any, count: int) -> list[list[int]]:
    """Orders in which to list the options of a question, the given one first.

    A `Score` keeps its levels in line and has two orders, up and down. Other options
    are rotated, in steps as even as can be: with K orders each option stands at each
    place once.

    Examples
    --------
    >>> orders(Choice("?", ["a", "b", "c", "d"]), 2)
    [[0, 1, 2, 3], [2, 3, 0, 1]]
    """
    width = len(question.options)
    natural = list(range(width))
    if isinstance(question, Score):
        return [natural, natural[::-1]][:count]
    number = min(count, width)
    steps = [width * i // number for i in range(number)]
    return [natural[step:] + natural[:step] for step in steps]


def reordered(question: Any, order: Sequence[int]) -> Choice | Score:
    """The question with its options listed in another order; a `Noul` as a `Choice`."""
    kind = Score if isinstance(question, Score) else Choice
    return kind(question.text, [question.options[i] for i in order])


@dataclass(frozen=True)
class SharedOrders:
    """What `PermutationAverage.share` gives: the inner policy's prompts and the way
    back from its rows to questions and options."""

    inner: Any
    owner: Tensor
    back: Tensor
    counts: list[int]


class PermutationAverage(nn.Module):
    r"""A policy averaged over orders of the options.

    With :math:`p^\sigma` the answer to order sigma, brought back to the given order,

    .. math:: \bar p = \frac1n \sum_\sigma p^\sigma \quad\text{(arithmetic)},\qquad
              \bar p \propto \exp \frac1n \sum_\sigma \log p^\sigma \quad\text{(log)}

    Over all K rotations a bias that depends on the place alone cancels in the log
    mean; the arithmetic mean has the lower expected Brier and log loss than a single
    order picked at random, by convexity.

    Parameters
    ----------
    policy : Policy
    count : int
        Orders per question, at most; a question with fewer has all of its own.
    mean : {"arithmetic", "log"}
    """

    def __init__(
        self,
        policy: Any,
        count: int = 4,
        mean: Literal["arithmetic", "log"] = "arithmetic",
    ) -> None:
        super().__init__()
        if mean not in ("arithmetic", "log") or count < 1:
            raise ValueError(f"mean={mean!r}, count={count}: pass a known mean, >= 1.")
        self.policy = policy
        self.count = count
        self.mean = mean
        self.train(getattr(policy, "training", False))

    def _spread(self, questions: Sequence[Any]) -> tuple[list[Any], Tensor, Tensor]:
        """All reordered questions, the row each belongs to, and where options went."""
        asked, row, back = [], [], []
        width = max((len(q.options) for q in questions), default=0)
        for index, question in enumerate(questions):
            for order in orders(question, self.count):
                asked.append(reordered(question, order))
                row.append(index)
                place = sorted(range(len(order)), key=order.__getitem__)
                back.append(place + list(range(len(order), width)))
        return asked, torch.tensor(row), torch.tensor(back)

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Prepare every order of every item."""
        counts = option_counts(items)
        asked, row_of, back = self._spread([question for _, question in items])
        inner = self.policy.prepare(
            [(items[r][0], q) for r, q in zip(row_of.tolist(), asked, strict=True)]
        )
        first = torch.searchsorted(row_of, torch.arange(len(items) + 1))

        def collate(rows: Tensor) -> dict[str, Tensor]:
            spans = [torch.arange(int(first[r]), int(first[r + 1])) for r in rows]
            chosen = torch.cat(spans)
            batch = inner.take(chosen)
            owner = torch.arange(len(rows)).repeat_interleave(
                torch.tensor([len(span) for span in spans])
            )
            return {
                **{f"inner.{name}": value for name, value in batch.inputs.items()},
                "mask": batch.mask,
                "owner": owner,
                "back": back[chosen],
            }

        return Prepared(counts, collate)

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) masked log-probabilities of the mean."""
        inner = {
            name.removeprefix("inner."): value
            for name, value in batch.inputs.items()
            if name.startswith("inner.")
        }
        each = self.policy.log_probs(Batch(batch.inputs["mask"], inner))
        owner, back = batch.inputs["owner"], batch.inputs["back"]
        return self._mean(each, owner, back, batch.mask)

    def _mean(self, each: Tensor, owner: Tensor, back: Tensor, mask: Tensor) -> Tensor:
        owner, mask = owner.to(each.device), mask.to(each.device)
        each = each.gather(1, back.to(each.device))
        if self.mean == "arithmetic":
            # Exponentials of log-probabilities are at most 1: no overflow.
            each = each.exp()
        total = each.new_zeros(mask.shape).index_add(0, owner, each)
        count = torch.bincount(owner, minlength=len(mask))[:, None]
        mean = total / count
        if self.mean == "arithmetic":
            mean = mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
        return masked_log_softmax(mean, mask)

    def share(self, state: Any, questions: Sequence[Any]) -> SharedOrders | None:
        """As `LetterPolicy.share`, for all orders of all questions at once."""
        if not hasattr(self.policy, "share"):
            return None
        asked, owner, back = self._spread(questions)
        shared = self.policy.share(state, asked)
        if shared is None:
            return None
        counts = [len(q.options) for q in questions]
        return SharedOrders(shared, owner, back, counts)

    def branches(self, questions: Sequence[Any]) -> int:
        """Prompts that these questions are: one for each order."""
        inner = getattr(self.policy, "branches", len)
        return inner(self._spread(questions)[0])

    def works(self, shared: SharedOrders, batch_size: int) -> dict[str, Work]:
        """As the inner policy's, over all orders."""
        # The plain path takes `batch_size` questions at a time, with all orders.
        return self.policy.works(shared.inner, batch_size * self.count)

    def shared_log_probs(self, shared: SharedOrders) -> Tensor:
        """(m, K) log-probabilities of the mean, the state read once."""
        return self._of_state(self.policy.shared_log_probs(shared.inner), shared)

    def tree_log_probs(self, shared: SharedOrders) -> Tensor:
        """(m, K) log-probabilities of the mean, all orders in one packed sequence."""
        return self._of_state(self.policy.tree_log_probs(shared.inner), shared)

    def _of_state(self, each: Tensor, shared: SharedOrders) -> Tensor:
        return self._mean(each, shared.owner, shared.back, option_mask(shared.counts))
