"""How several questions on one state are read: one by one, shared, or as a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlcd_core.policy.base import batches


@dataclass(frozen=True)
class Work:
    """What a way of reading has to compute.

    Attributes
    ----------
    tokens : int
        Tokens that go through the layers, padding included.
    passes : int
        Forward passes.
    pairs : int
        Attention scores of one head in one layer.
    """

    tokens: int
    passes: int
    pairs: int


@dataclass(frozen=True)
class CostRule:
    r"""Chooses the cheapest way to read the prompts of several questions.

    .. math:: cost = tokens + \text{pass\_tokens} \cdot passes
              + \text{pair\_tokens} \cdot pairs

    The three ways differ as follows, for m prompts of a state of S and questions of q
    tokens (exact numbers are counted, padding and chunks included):

    ======  ============  ==========  ==============================
    way     tokens        passes      attention scores
    ======  ============  ==========  ==============================
    plain   m (S + q)     m / batch   m (S + q)^2 / 2
    shared  S + m q       2           S^2 / 2 + m q (S + q / 2)
    tree    S + m q       1           (S + m q)^2
    ======  ============  ==========  ==============================

    So the tree wins while the sequence is short, because it saves a pass and the
    padding of the questions; the shared prefix wins once the mask of the tree, most of
    which hides something, costs more than that; plain prompts win where there is
    hardly a state to share. Ties go to the way named first.

    Parameters
    ----------
    pass_tokens : float
        What one more forward pass costs, in tokens. The default was fitted to a model
        of 30 layers on one CPU thread (``tests/bench/decider.py``); on a GPU, where a
        short pass is all launches, a few hundred.
    pair_tokens : float
        What one attention score, over all heads and layers, costs, in tokens; fitted
        likewise.
    """

    pass_tokens: float = 28.0
    pair_tokens: float = 1 / 2800

    def cost(self, work: Work) -> float:
        """Cost in tokens."""
        return (
            work.tokens + self.pass_tokens * work.passes + self.pair_tokens * work.pairs
        )

    def choose(self, works: Mapping[str, Work]) -> str:
        """Name of the cheapest way."""
        return min(works, key=lambda name: self.cost(works[name]))


@dataclass(frozen=True)
class Plan:
    """Which way a call takes, and what each way would have to compute.

    Attributes
    ----------
    way : {"plain", "shared", "tree"}
    works : mapping of str to Work
        Empty where nothing can be shared, or where there is one prompt only.
    shared : object or None
        The tokens, as the policy's `share` gave them.
    """

    way: str
    works: Mapping[str, Work]
    shared: Any = None


def plan(
    policy: Any, state: Any, questions: Sequence[Any], rule: CostRule, batch_size: int
) -> Plan:
    """Decide how to read these questions.

    One prompt always takes the plain path and is not even tokenised for another.
    """
    if not hasattr(policy, "share") or policy.branches(questions) < 2:
        return Plan("plain", {})
    shared = policy.share(state, questions)
    if shared is None:
        return Plan("plain", {})
    works = policy.works(shared, batch_size)
    return Plan(rule.choose(works), works, shared)


def state_log_probs(
    policy: Any,
    state: Any,
    questions: Sequence[Any],
    rule: CostRule,
    batch_size: int = 16,
) -> Tensor:
    """(m, K) log-probabilities of questions on one state, read the cheapest way."""
    chosen = plan(policy, state, questions, rule, batch_size)
    if chosen.way == "tree":
        return policy.tree_log_probs(chosen.shared)
    if chosen.way == "shared":
        return policy.shared_log_probs(chosen.shared)
    prepared = policy.prepare([(state, question) for question in questions])
    parts = batches(len(prepared), batch_size)
    return torch.cat([policy.log_probs(prepared.take(part)) for part in parts])


def tree_work(trees: Sequence[tuple[Any, Any]]) -> Work:
    """Work of packed sequences, each with a mask of which nothing is skipped."""
    sizes = [len(tree) for _, tree in trees]
    return Work(sum(sizes), len(sizes), sum(size**2 for size in sizes))


def plain_work(lengths: Sequence[int], batch_size: int) -> Work:
    """Work of causal prompts of these lengths, padded in batches as they come."""
    parts = [[lengths[i] for i in part] for part in batches(len(lengths), batch_size)]
    return Work(
        tokens=sum(len(part) * max(part) for part in parts),
        passes=len(parts),
        pairs=sum(len(part) * max(part) ** 2 // 2 for part in parts),
    )
