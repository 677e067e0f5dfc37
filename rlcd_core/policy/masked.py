"""Letter readout of a masked language model: the label is what fills the gap."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlcd_core.policy.base import Item, PolicyError, Prepared, option_counts
from rlcd_core.policy.letter import LetterPolicy, SharedPrompt
from rlcd_core.policy.passes import Work, plain_work, tree_work
from rlcd_core.policy.prefix import attends_to_all
from rlcd_core.policy.tree import (
    MAX_TOKENS,
    TokenTree,
    block_mask,
    packed_inputs,
    packed_rows,
)
from rlcd_core.schema import render_prefix


class SharedBranches(SharedPrompt):
    """As `SharedPrompt` for an encoder: a question sees the whole of itself, so that
    what two questions have in common is not common to their readings."""

    @functools.cached_property
    def trees(self) -> list[tuple[list[int], TokenTree]]:
        """State and whole questions as packed sequences (usually one)."""
        done: list[tuple[list[int], TokenTree]] = []
        rows: list[int] = []
        room = MAX_TOKENS - len(self.prefix)
        for row, suffix in enumerate(self.suffixes):
            if rows and room < len(suffix):
                done.append((rows, self._tree(rows)))
                rows, room = [], MAX_TOKENS - len(self.prefix)
            rows.append(row)
            room -= len(suffix)
        return [*done, (rows, self._tree(rows))]

    def _tree(self, rows: list[int]) -> TokenTree:
        return TokenTree.branched(self.prefix, [self.suffixes[row] for row in rows])


class _Read(Exception):
    """Carries the input of the output layer out of a forward pass."""


class MaskedPolicy(LetterPolicy):
    """Reads the label off an encoder with a language-model head, at its mask token.

    The prompt of `LetterPolicy` is followed by the mask token. The forward pass is
    stopped before the output matrix, of which again only the label rows are used.

    Parameters
    ----------
    model, tokenizer, labels, max_tokens, truncate
        As for `LetterPolicy`; the tokenizer needs a mask token.
    apart : bool
        Read the state without looking at the question, so that one reading serves all
        questions: the question sees the state and itself, the state itself alone.
        This is another readout than the default, in which the state sees the question
        too, and one to train with as well; in it a question alone and in company get
        the same answer.

    Raises
    ------
    PolicyError
        The tokenizer has no mask token; or, with `apart`, merges text over the border
        of state and question, or the model attends in windows.
    """

    kind: ClassVar[str] = "masked"

    def __init__(
        self, model: Any, tokenizer: Any, *, apart: bool = False, **options: Any
    ) -> None:
        super().__init__(model, tokenizer, **options)
        if apart and not (attends_to_all(model) and self.encoder.seam_is_clean):
            raise PolicyError(
                f"apart=True needs a tokenizer that keeps state and question apart "
                f"(clean seam: {self.encoder.seam_is_clean}) and a model that attends "
                f"to all positions by sdpa ({attends_to_all(model)}): leave it out."
            )
        self.apart = apart

    def _tail_ids(self) -> list[int]:
        mask = self.encoder.tokenizer.mask_token_id
        if mask is None:
            raise PolicyError(
                "This tokenizer has no mask token: use LetterPolicy for causal models."
            )
        return [mask, *self.encoder.end]

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """As `LetterPolicy.prepare`; with `apart`, one-question trees."""
        if not self.apart:
            return super().prepare(items)
        suffixes = self._suffixes(items)
        prompts = self.encoder.prompts(items, suffixes, self.truncate)
        cuts = [len(ids) for ids in self.encoder.plain(suffixes)]
        trees = [
            TokenTree.branched(ids[:-cut], [ids[-cut:] + self._tail])
            for ids, cut in zip(prompts, cuts, strict=True)
        ]

        def collate(rows: Tensor) -> dict[str, Tensor]:
            return packed_rows([trees[int(row)] for row in rows])

        return Prepared(option_counts(items), collate)

    def _hidden(self, inputs: Mapping[str, Tensor], *_: Any) -> Tensor:
        """(B, D) input of the output layer at the mask token of each row."""
        ids, lengths = inputs["ids"].to(self.device), inputs["lengths"].to(self.device)
        rows = torch.arange(len(ids), device=ids.device)
        if "visible" in inputs:
            positions = inputs["positions"].to(self.device)
            visible = inputs["visible"].to(self.device)
            hidden = self._before_output(
                input_ids=ids,
                attention_mask=block_mask(visible, self.model.dtype),
                position_ids=positions,
            )
            return hidden[rows, lengths - len(self._tail)]
        columns = torch.arange(ids.shape[1], device=ids.device)[None]
        gap = (ids.shape[1] - lengths)[:, None] * (self.padding == "left")
        real = (columns >= gap) & (columns < gap + lengths[:, None])
        hidden = self._before_output(
            input_ids=ids,
            attention_mask=real.long(),
            position_ids=(columns - gap).clamp_min(0),
        )
        return hidden[rows, gap[:, 0] + lengths - len(self._tail)]

    def _before_output(self, **inputs: Tensor) -> Tensor:
        """(B, T, D) input of the output layer, where the forward pass is stopped."""

        def stop(_: Any, arguments: tuple[Tensor, ...]) -> None:
            raise _Read(arguments[0])

        handle = self.model.get_output_embeddings().register_forward_pre_hook(stop)
        try:
            self.model(**inputs)
        except _Read as read:
            return read.args[0]
        finally:
            handle.remove()
        raise AssertionError("the forward pass never reached its output layer")

    def share(self, state: Any, questions: Sequence[Any]) -> SharedPrompt | None:
        """Tokens of several questions on one state; None unless read apart."""
        if not self.apart:
            return None
        suffixes = self._suffixes([(state, question) for question in questions])
        prefix, *tails = self.encoder.plain([render_prefix(state), *suffixes])
        prefix = self.encoder.start + prefix
        limit = self.encoder.max_tokens
        if limit is not None and len(prefix) + max(map(len, tails)) > limit:
            return None
        tails = [tail + self._tail for tail in tails]
        return SharedBranches(prefix, tails, [len(q.options) for q in questions])

    def works(self, shared: SharedPrompt, batch_size: int) -> dict[str, Work]:
        """What the plain path and the tree compute."""
        lengths = [len(shared.prefix) + len(tail) for tail in shared.suffixes]
        plain = plain_work(lengths, batch_size)
        return {
            # One-question trees have a mask, of which nothing is skipped.
            "plain": Work(plain.tokens, plain.passes, 2 * plain.pairs),
            "tree": tree_work(shared.trees),
        }

    def _packed(self, tree: TokenTree) -> Tensor:
        """(T, D) input of the output layer for each token of a packed tree."""
        inputs = packed_inputs(tree, self.model.dtype, self.device, causal=False)
        return self._before_output(**inputs)[0]
