"""Letter readout of a masked language model: the label is what fills the gap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlcd_core.policy.base import PolicyError
from rlcd_core.policy.letter import LetterPolicy


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
    """

    kind: ClassVar[str] = "masked"

    def _tail_ids(self) -> list[int]:
        mask = self.encoder.tokenizer.mask_token_id
        if mask is None:
            raise PolicyError(
                "This tokenizer has no mask token: use LetterPolicy for causal models."
            )
        return [mask, *self.encoder.end]

    def _hidden(self, inputs: Mapping[str, Tensor], *_: Any) -> Tensor:
        """(B, D) input of the output layer at the mask token of each row."""
        ids, lengths = inputs["ids"].to(self.device), inputs["lengths"].to(self.device)
        columns = torch.arange(ids.shape[1], device=ids.device)[None]
        gap = (ids.shape[1] - lengths)[:, None] * (self.padding == "left")
        real = (columns >= gap) & (columns < gap + lengths[:, None])

        def stop(_: Any, arguments: tuple[Tensor, ...]) -> None:
            raise _Read(arguments[0])

        handle = self.model.get_output_embeddings().register_forward_pre_hook(stop)
        try:
            self.model(
                input_ids=ids,
                attention_mask=real.long(),
                position_ids=(columns - gap).clamp_min(0),
            )
        except _Read as read:
            hidden = read.args[0]
        finally:
            handle.remove()
        rows = torch.arange(len(ids), device=ids.device)
        return hidden[rows, gap[:, 0] + lengths - len(self._tail)]
