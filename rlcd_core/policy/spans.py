"""Decision head on the spans of an encoder that is trained with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlcd_core.data.manifest import fetch
from rlcd_core.policy.base import (
    Batch,
    Item,
    PolicyError,
    Prepared,
    option_counts,
    unique_index,
)
from rlcd_core.policy.head import DecisionHead
from rlcd_core.policy.loading import load_model
from rlcd_core.policy.prompts import PromptEncoder, padded, token_limit
from rlcd_core.schema import render_state


class SpanHead(DecisionHead):
    r"""The head of `DecisionHead` on spans whose encoder learns too.

    State, question and each candidate pass through the encoder by themselves; a span
    is the mean of its last hidden states, brought to length :math:`\sqrt d`, and

    .. math:: u_k = \frac{(W_q h_S + W_q h_Q)^\top (W_k h_{C_k})}{\sqrt r}, \qquad
              p = \mathrm{softmax}(u) .

    No span sees another, so permuting the options permutes the answer and adding one
    leaves the odds of the rest alone, whatever the encoder has learnt.

    Parameters
    ----------
    model
        A bidirectional encoder of transformers.
    tokenizer
        Its fast tokenizer.
    rank, generator
        As for `DecisionHead`.
    trainable : bool
        False freezes the encoder: the answers are those of a `DecisionHead` on the
        same encoder, embedded anew in each batch.
    max_tokens : int
        Longest span, special tokens included; at most the encoder's window.
    truncate : bool
        Cut longer states at their end instead of raising; questions and options are
        never cut.

    Notes
    -----
    Each text of a batch is encoded once, whatever number of rows use it; texts whose
    lengths differ by a factor of more than two go through the encoder apart, so that
    less than half of what is computed is filler. The encoder runs without dropout
    also in training, so that a resumed run takes the same steps.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        rank: int = 64,
        generator: torch.Generator | None = None,
        *,
        trainable: bool = True,
        max_tokens: int = 256,
        truncate: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        self.dim: int = model.config.hidden_size
        self._weights(self.dim, rank, generator)
        self.model = model
        self.truncate = truncate
        self.encoder = PromptEncoder(tokenizer, token_limit(model, max_tokens))
        model.requires_grad_(trainable)
        # A pooler would be trained by weight decay alone: no span passes through it.
        pooler = getattr(model, "pooler", None)
        if pooler is not None:
            pooler.requires_grad_(False)
        self.train(model.training)

    @classmethod
    def load(cls, directory: Path | str | None = None, **options: Any) -> SpanHead:
        """Start from a folder of safetensors; by default the packaged MiniLM."""
        directory = fetch("minilm") if directory is None else directory
        return cls(*load_model(directory, "encoder"), **options)

    def train(self, mode: bool = True) -> SpanHead:
        """Set the mode of the head; the encoder stays in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    def _spans(self, texts: Sequence[str], cut: bool) -> list[list[int]]:
        around = len(self.encoder.start) + len(self.encoder.end)
        room = (self.encoder.max_tokens or 1 << 30) - around
        spans = []
        for text, ids in zip(texts, self.encoder.plain(texts), strict=True):
            if len(ids) > room and not cut:
                raise PolicyError(
                    f"A span has {len(ids) + around} tokens and the encoder reads "
                    f"{room + around}: {text[:60]!r}... Shorten it, or if it is a "
                    "state pass truncate=True to cut its end."
                )
            spans.append([*self.encoder.start, *ids[:room], *self.encoder.end])
        return spans

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Tokenise each distinct text once.

        Raises
        ------
        PolicyError
            No items, or a text over the limit.
        """
        counts = option_counts(items)
        states, state_of = unique_index(render_state(state) for state, _ in items)
        others, place = unique_index(
            text for _, q in items for text in (q.text, *q.options)
        )
        spans = self._spans(states, self.truncate) + self._spans(others, False)
        parts = torch.tensor(place).split([count + 1 for count in counts])
        # Columns: state, question, options; what a short row lacks points at its
        # question, and the mask removes it.
        table = torch.empty(len(items), max(counts) + 2, dtype=torch.int64)
        for row, part in enumerate(parts):
            table[row] = part[0] + len(states)
            table[row, 0] = state_of[row]
            table[row, 1 : len(part) + 1] = part + len(states)

        def collate(rows: Tensor) -> dict[str, Tensor]:
            used, index = table[rows].unique(return_inverse=True)
            chosen = padded([spans[i] for i in used.tolist()])
            return {**chosen, "index": index}

        return Prepared(counts, collate)

    def encode(self, ids: Tensor, lengths: Tensor) -> Tensor:
        r"""(U, d) spans of length :math:`\sqrt d` from right-padded ids (U, T)."""
        order = lengths.argsort().tolist()
        sizes = lengths.tolist()
        groups: list[list[int]] = [[]]
        for i in order:
            if groups[-1] and sizes[i] > 2 * sizes[groups[-1][0]]:
                groups.append([])
            groups[-1].append(i)
        parts = []
        for group in groups:
            width = sizes[group[-1]]
            here, length = ids[group, :width], lengths[group][:, None]
            real = torch.arange(width, device=ids.device)[None] < length
            hidden = self.model(input_ids=here, attention_mask=real.long())[0]
            wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
            parts.append((wide * real[..., None]).sum(1) / length)
        place = torch.empty(len(sizes), dtype=torch.int64, device=ids.device)
        place[[i for group in groups for i in group]] = torch.arange(
            len(sizes), device=ids.device
        )
        mean = torch.cat(parts)[place]
        return nn.functional.normalize(mean, dim=-1) * math.sqrt(self.dim)

    def utilities(self, batch: Batch) -> Tensor:
        """(B, K) utilities before the softmax; meaningless at masked places."""
        batch = batch.to(self.query.device)
        spans = self.encode(batch.inputs["ids"], batch.inputs["lengths"])
        index = batch.inputs["index"]
        query = spans[index[:, 0]] + spans[index[:, 1]]
        return self._scores(query, spans, index[:, 2:])
