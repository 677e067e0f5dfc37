"""Many prompts in one sequence: a token tree, its positions and its block mask.

Prompts that begin alike share their beginning: the state of all questions, the text of
a question asked in several orders, the question before each of its candidates. Each
common run of tokens stands in the sequence once, and a token sees exactly the tokens
before it in its own prompt, at the positions they have there. Attention then computes
for each prompt what it would compute for that prompt alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_TOKENS = 4096


@dataclass(frozen=True)
class TokenTree:
    r"""Prompts as paths of a radix tree over token ids.

    Attributes
    ----------
    nodes : list of N lists of int
        Runs of tokens, a parent before its children.
    parents : list of N int
        -1 for a run that starts a prompt.
    starts : list of N int
        Position of the first token of each run in its prompt.
    paths : list of m lists of int
        The nodes of each prompt, from the start to the end.

    Examples
    --------
    >>> tree = TokenTree.of([[1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6]])
    >>> tree.nodes, tree.parents
    ([[1, 2], [3], [4], [5], [6]], [-1, 0, 0, 2, 2])
    >>> len(tree), tree.visible().int().tolist()[-1]
    (6, [1, 1, 0, 1, 0, 1])
    """

    nodes: list[list[int]]
    parents: list[int]
    starts: list[int]
    paths: list[list[int]]

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]]) -> TokenTree:
        """Merge what prompts have in common from the start.

        Parameters
        ----------
        prompts : sequence of m non-empty sequences of int
        """
        tree = cls([], [], [], [[] for _ in prompts])
        waiting = [(list(range(len(prompts))), 0, -1)]
        while waiting:
            group, depth, parent = waiting.pop()
            branches: dict[int, list[int]] = {}
            for i in group:
                if depth < len(prompts[i]):
                    branches.setdefault(prompts[i][depth], []).append(i)
            # Taken from the end of the list: the last branch is put there first.
            grown = []
            for members in branches.values():
                columns = zip(*(prompts[i][depth:] for i in members), strict=False)
                run = [
                    column[0]
                    for column in itertools.takewhile(
                        lambda column: len({*column}) == 1, columns
                    )
                ]
                for i in members:
                    tree.paths[i].append(len(tree.nodes))
                grown.append((members, depth + len(run), len(tree.nodes)))
                tree.nodes.append(run)
                tree.parents.append(parent)
                tree.starts.append(depth)
            waiting.extend(reversed(grown))
        return tree

    @classmethod
    def branched(
        cls, root: Sequence[int], leaves: Sequence[Sequence[int]]
    ) -> TokenTree:
        """One root and its leaves as they are, nothing merged among them."""
        count = len(leaves)
        return cls(
            [list(root), *map(list, leaves)],
            [-1] + [0] * count,
            [0] + [len(root)] * count,
            [[0, i + 1] for i in range(count)],
        )

    def __len__(self) -> int:
        """Tokens of the packed sequence."""
        return sum(map(len, self.nodes))

    @functools.cached_property
    def node_of(self) -> Tensor:
        """(T,) node of each packed token."""
        lengths = torch.tensor([len(node) for node in self.nodes])
        return torch.arange(len(self.nodes)).repeat_interleave(lengths)

    def ids(self) -> Tensor:
        """(T,) packed tokens."""
        return torch.tensor(list(itertools.chain(*self.nodes)))

    def positions(self) -> Tensor:
        """(T,) position of each token in its own prompt: reset at each branch."""
        pairs = zip(self.starts, self.nodes, strict=True)
        return torch.tensor([start + i for start, n in pairs for i in range(len(n))])

    def visible(self, causal: bool = True) -> Tensor:
        """(T, T) bool: row t may attend to column s.

        Parameters
        ----------
        causal : bool
            False lets a token see the whole of its own run (never another branch, and
            never what hangs below it), as in a bidirectional encoder.
        """
        above = torch.eye(len(self.nodes), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                above[node] |= above[parent]
        seen = above[self.node_of][:, self.node_of]
        return seen.tril() if causal else seen

    def places(self) -> list[Tensor]:
        """Where the tokens of each prompt stand in the packed sequence."""
        lengths = [len(node) for node in self.nodes]
        first = list(itertools.accumulate(lengths, initial=0))
        return [
            torch.cat([torch.arange(first[n], first[n + 1]) for n in path])
            for path in self.paths
        ]


def grown_trees(
    prompts: Sequence[list[int]], max_tokens: int = MAX_TOKENS
) -> list[tuple[list[int], TokenTree]]:
    """Prompts packed in as few trees as the limit allows, in their order.

    Parameters
    ----------
    max_tokens : int
        Most packed tokens of a tree, since the mask grows with their square; a single
        prompt that is longer has a tree of its own.

    Returns
    -------
    list of (rows, tree)
        The prompts of each tree, as places in `prompts`.
    """
    parts: list[list[int]] = []
    trie: dict[int, Any] = {}
    room = 0
    for row, prompt in enumerate(prompts):
        new = len(prompt) - len(_known(trie, prompt)) + 1
        if not parts or new > room:
            parts.append([])
            trie, room, new = {}, max_tokens, len(prompt)  # nothing is known here
        node = trie
        for token in prompt:
            node = node.setdefault(token, {})
        parts[-1].append(row)
        room -= new
    return [(rows, TokenTree.of([prompts[row] for row in rows])) for rows in parts]


def _known(trie: dict[int, Any], prompt: Sequence[int]) -> list[dict[int, Any]]:
    """Nodes of a trie along the beginning of a prompt that it holds, the root first."""
    path = [trie]
    for token in prompt:
        below = path[-1].get(token)
        if below is None:
            break
        path.append(below)
    return path


def block_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, T, T) mask to add to attention scores: 0 where visible, else the lowest
    finite number, which no score survives."""
    lowest = torch.finfo(dtype).min
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, lowest)[:, None]


def packed_inputs(
    tree: TokenTree, dtype: torch.dtype, device: torch.device, causal: bool = True
) -> dict[str, Any]:
    """Keyword arguments of a transformers forward pass over one tree."""
    visible = tree.visible(causal)[None].to(device)
    return {
        "input_ids": tree.ids()[None].to(device),
        "position_ids": tree.positions()[None].to(device),
        "attention_mask": block_mask(visible, dtype),
    }


def packed_rows(trees: Sequence[TokenTree]) -> dict[str, Tensor]:
    """Several trees of a bidirectional encoder as one batch, filled up on the right.

    Returns
    -------
    dict
        "ids" and "positions" (B, T), "visible" (B, T, T), "lengths" (B,).
    """
    width = max(map(len, trees))
    ids = torch.zeros(len(trees), width, dtype=torch.long)
    positions = torch.zeros_like(ids)
    # Filler sees itself, so that its softmax is defined; nothing sees filler.
    visible = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1)
    for row, tree in enumerate(trees):
        size = len(tree)
        ids[row, :size] = tree.ids()
        positions[row, :size] = tree.positions()
        visible[row, :size, :size] = tree.visible(causal=False)
    lengths = torch.tensor([len(tree) for tree in trees])
    return {"ids": ids, "positions": positions, "visible": visible, "lengths": lengths}
