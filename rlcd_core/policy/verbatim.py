"""Verbatim scoring: how likely a language model writes each option out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlcd_core.policy.base import (
    Batch,
    Item,
    PolicyError,
    Prepared,
    masked_log_softmax,
    unique_index,
)
from rlcd_core.policy.loading import body_of
from rlcd_core.policy.prompts import PromptEncoder, padded, token_limit

ASK = "Assistant: The answer is"


class VerbatimPolicy(nn.Module):
    r"""Scores the text of each option as a continuation of the question.

    The options are not listed in the prompt, so that their order and their company
    cannot matter. With tokens :math:`t_1 \dots t_n` of option k after prompt x,

    .. math:: s_k = \frac{1}{n^\alpha} \sum_i [\log P(t_i \mid x, t_{<i})
              - \lambda \log P(t_i \mid d, t_{<i})], \qquad p = \mathrm{softmax}(s)

    Parameters
    ----------
    model, tokenizer
        A causal language model and its fast tokenizer.
    length : {"sum", "tokens", "bytes"}
        The sum as it is, or divided by the option's tokens or UTF-8 bytes: sums
        favour short options.
    prior : bool
        Subtract the score after the bare domain prompt d ("Assistant: The answer
        is"): the domain-conditional correction for options that are likely anywhere
        (Holtzman et al. 2021, surface form competition).
    max_tokens, truncate
        As for `LetterPolicy`.

    Raises
    ------
    PolicyError
        Prompt and option exceed the window and `truncate` is off.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        length: Literal["sum", "tokens", "bytes"] = "tokens",
        prior: bool = False,
        max_tokens: int | None = None,
        truncate: bool = False,
    ) -> None:
        super().__init__()
        if length not in ("sum", "tokens", "bytes"):
            raise ValueError(f"length={length!r}: pass 'sum', 'tokens' or 'bytes'.")
        self.model = model
        self.length = length
        self.prior = prior
        self.truncate = truncate
        self.encoder = PromptEncoder(tokenizer, token_limit(model, max_tokens))
        self.train(model.training)

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Tokenise prompts and options once; an option is tokenised after ASK."""
        if not items:
            raise PolicyError("No items: pass at least one (state, question).")
        counts = [len(question.options) for _, question in items]
        options, place = unique_index(o.strip() for _, q in items for o in q.options)
        base, *whole = self.encoder.plain([ASK, *(f"{ASK} {o}" for o in options)])
        tokens = [ids[len(base) :] for ids in whole]
        units = {
            "sum": [1] * len(options),
            "tokens": [len(ids) for ids in tokens],
            "bytes": [len(option.encode()) for option in options],
        }[self.length]
        limit = self.encoder.max_tokens
        longest = max(map(len, tokens))
        if limit is not None and longest >= limit:
            option = options[[len(ids) for ids in tokens].index(longest)]
            raise PolicyError(
                f"Option {option[:60]!r} alone has {longest} tokens and the limit for "
                f"prompt and option is {limit}: shorten it."
            )
        room = PromptEncoder(
            self.encoder.tokenizer, None if limit is None else limit - longest
        )
        suffixes = [f" {q.text.strip()}\n{ASK}" for _, q in items]
        prompts = room.prompts(items, suffixes, self.truncate)
        bare = self.encoder.start + base
        of = torch.nn.utils.rnn.pad_sequence(
            torch.tensor(place).split(counts), batch_first=True, padding_value=-1
        )

        def collate(rows: Tensor) -> dict[str, Tensor]:
            chosen = of[rows]
            row, column = (chosen >= 0).nonzero(as_tuple=True)
            used = chosen[row, column]
            pairs = [
                (prompts[int(rows[r])], tokens[k])
                for r, k in zip(row.tolist(), used.tolist(), strict=True)
            ]
            prior_of = used
            if self.prior:
                distinct, prior_of = used.unique(return_inverse=True)
                pairs += [(bare, tokens[k]) for k in distinct.tolist()]
            return {
                **padded([prompt + option for prompt, option in pairs]),
                "start": torch.tensor([len(prompt) for prompt, _ in pairs]),
                "row": row,
                "column": column,
                "units": torch.tensor(units)[used],
                "prior": prior_of + len(row),
            }

        return Prepared(counts, collate)

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) masked float32 log-probabilities."""
        head = self.model.get_output_embeddings()
        batch = batch.to(head.weight.device)
        inputs = batch.inputs
        ids = inputs["ids"]
        columns = torch.arange(ids.shape[1], device=ids.device)[None]
        # The hidden state before a token says how likely that token is.
        read = (columns >= inputs["start"][:, None] - 1) & (
            columns < inputs["lengths"][:, None] - 1
        )
        hidden = body_of(self.model)(input_ids=ids, use_cache=False)[0][read]
        following = ids.roll(-1, 1)[read]
        logits = head(hidden).float()
        said = logits.gather(1, following[:, None])[:, 0] - logits.logsumexp(-1)
        sums = said.new_zeros(len(ids)).index_add(0, read.nonzero()[:, 0], said)
        count = len(inputs["row"])
        score = sums[:count]
        if self.prior:
            score = score - sums[inputs["prior"]]
        table = said.new_zeros(batch.mask.shape)
        places = (inputs["row"], inputs["column"])
        table = table.index_put(places, score / inputs["units"])
        return masked_log_softmax(table, batch.mask)
