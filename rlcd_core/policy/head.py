"""Decision head: the Luce choice among separately encoded candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rlcd_core.policy.base import (
    Batch,
    Item,
    Prepared,
    masked_log_softmax,
    option_counts,
    unique_index,
)
from rlcd_core.schema import render_state


class Embeds(Protocol):
    """What the head asks of an encoder."""

    dim: int

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(N, dim) float array of unit rows."""
        ...


class DecisionHead(nn.Module):
    r"""Utilities of candidates from pooled state, question and candidate spans.

    .. math:: u_k = \frac{(W_q h_S + W_q h_Q)^\top (W_k h_{C_k})}{\sqrt r}, \qquad
              p = \mathrm{softmax}(u)

    One utility per candidate that sees no other candidate: the first stage of
    Plackett-Luce. Permuting the options permutes the probabilities, and adding an
    option leaves the odds of the others alone, by construction (`thm-plackett-luce`).

    Parameters
    ----------
    encoder : Embeds
        Frozen; held outside the module's parameters and state dict.
    rank : int
        Dimension r of the interaction space; parameters: 2 * r * dim.
    generator : torch.Generator, optional
        Fixes the initial keys. Default: seed 0.

    Notes
    -----
    Unit embeddings are multiplied by sqrt(dim), so that each coordinate is of order
    one and a learning rate near 1e-3 suits AdamW. The query weights start at zero, so
    that an untrained head says 1/K everywhere.
    """

    def __init__(
        self,
        encoder: Embeds,
        rank: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self._weights(encoder.dim, rank, generator)

    def _weights(self, dim: int, rank: int, generator: torch.Generator | None) -> None:
        if generator is None:
            generator = torch.Generator().manual_seed(0)
        self.rank = rank
        keys = torch.randn((rank, dim), generator=generator) / math.sqrt(dim)
        self.query = nn.Parameter(torch.zeros(rank, dim))
        self.key = nn.Parameter(keys)

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Embed each distinct state, question and option text once.

        States are embedded as `rlcd_core.schema.render_state` writes them, without
        the prompt's frame.
        """
        counts = option_counts(items)
        states, state_of = unique_index(render_state(state) for state, _ in items)
        questions, question_of = unique_index(q.text for _, q in items)
        flat, place = unique_index(o for _, q in items for o in q.options)
        embedded = self.encoder.embed([*states, *questions, *flat])
        table = torch.from_numpy(embedded * math.sqrt(self.encoder.dim)).float()
        h_s, h_q, h_c = table.split([len(states), len(questions), len(flat)])
        s_of, q_of = torch.tensor(state_of), torch.tensor(question_of)
        # Masked places point at option 0; the mask removes them.
        c_of = torch.nn.utils.rnn.pad_sequence(
            torch.tensor(place).split(counts), batch_first=True
        )

        def collate(rows: Tensor) -> dict[str, Tensor]:
            index = c_of[rows]
            options = h_c
            if len(h_c) > index.numel():  # many options in all, few in this batch
                used, index = index.unique(return_inverse=True)
                options = h_c[used]
            return {
                "query": h_s[s_of[rows]] + h_q[q_of[rows]],
                "options": options,
                "index": index,
            }

        return Prepared(counts, collate)

    def utilities(self, batch: Batch) -> Tensor:
        """(B, K) utilities before the softmax; meaningless at masked places."""
        batch = batch.to(self.query.device)
        inputs = batch.inputs
        return self._scores(inputs["query"], inputs["options"], inputs["index"])

    def _scores(self, query: Tensor, options: Tensor, index: Tensor) -> Tensor:
        """(B, K) utilities from (B, d) queries, (C, d) options and who has which."""
        # All candidates of the batch at once, then each row picks its own.
        keys = options @ self.key.T
        scores = (query @ self.query.T) @ keys.T / math.sqrt(self.rank)
        return scores.gather(1, index)

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) masked float32 log-probabilities."""
        batch = batch.to(self.query.device)
        return masked_log_softmax(self.utilities(batch), batch.mask)
