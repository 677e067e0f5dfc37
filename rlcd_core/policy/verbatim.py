"""Verbatim scoring: how likely a language model writes each option out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlcd_core.policy.base import (
    Batch,
    Item,
    PolicyError,
    Prepared,
    masked_log_softmax,
    option_counts,
    unique_index,
)
from rlcd_core.policy.loading import body_of
from rlcd_core.policy.passes import Work, plain_work, tree_work
from rlcd_core.policy.prefix import attends_to_all
from rlcd_core.policy.prompts import PromptEncoder, padded, token_limit
from rlcd_core.policy.tree import TokenTree, grown_trees, packed_inputs

ASK = "Assistant: The answer is"


@dataclass(frozen=True)
class Texts:
    """Tokens of questions and their options, each text once.

    Attributes
    ----------
    prompts : list of N lists of int
        State and question, up to where the option begins.
    tokens : list of lists of int
        Each distinct option.
    units : list of float
        What the sum over each option's tokens is divided by.
    of : (N, K) tensor
        Which option stands where; -1 where there is none.
    bare : list of int
        The domain prompt.
    """

    prompts: list[list[int]]
    tokens: list[list[int]]
    units: list[int]
    of: Tensor
    bare: list[int]

    def pairs(
        self, rows: Tensor, prior: bool
    ) -> tuple[list[tuple[list[int], list[int]]], dict[str, Tensor]]:
        """The (prompt, option) texts to be scored for some rows, and their places:
        "row", "column", "units", and "prior", the text that each is corrected by."""
        chosen = self.of[rows]
        row, column = (chosen >= 0).nonzero(as_tuple=True)
        used = chosen[row, column]
        pairs = [
            (self.prompts[int(rows[r])], self.tokens[k])
            for r, k in zip(row.tolist(), used.tolist(), strict=True)
        ]
        prior_of = used
        if prior:
            distinct, prior_of = used.unique(return_inverse=True)
            pairs += [(self.bare, self.tokens[k]) for k in distinct.tolist()]
        return pairs, {
            "row": row,
            "column": column,
            "units": torch.tensor(self.units)[used],
            "prior": prior_of + len(row),
        }


@dataclass(frozen=True)
class SharedTexts:
    """What `VerbatimPolicy.share` gives: every text to score, as token trees."""

    texts: Texts
    pairs: list[tuple[list[int], list[int]]]
    places: dict[str, Tensor]
    trees: list[tuple[list[int], TokenTree]]


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
        Prompt and option exceed the window and `truncate` is off, or the tokenizer
        merges an option with what stands before it.
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
        texts = self._texts(items)

        def collate(rows: Tensor) -> dict[str, Tensor]:
            pairs, places = texts.pairs(rows, self.prior)
            return {
                **padded([prompt + option for prompt, option in pairs]),
                "start": torch.tensor([len(prompt) for prompt, _ in pairs]),
                **places,
            }

        return Prepared(option_counts(items), collate)

    def _texts(self, items: Sequence[Item]) -> Texts:
        counts = option_counts(items)
        options, place = unique_index(o.strip() for _, q in items for o in q.options)
        base, *whole = self.encoder.plain([ASK, *(f"{ASK} {o}" for o in options)])
        tokens = [ids[len(base) :] for ids in whole]
        for option, ids, own in zip(options, whole, tokens, strict=True):
            if not own or ids != base + own:
                raise PolicyError(
                    f"Option {option[:60]!r} has no tokens of its own after {ASK!r} "
                    "for this tokenizer, so that it cannot be scored: write it in "
                    "other words."
                )
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
        of = torch.nn.utils.rnn.pad_sequence(
            torch.tensor(place).split(counts), batch_first=True, padding_value=-1
        )
        return Texts(prompts, tokens, units, of, self.encoder.start + base)

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) masked float32 log-probabilities."""
        batch = batch.to(self.device)
        inputs = batch.inputs
        ids = inputs["ids"]
        columns = torch.arange(ids.shape[1], device=ids.device)[None]
        # The hidden state before a token says how likely that token is.
        read = (columns >= inputs["start"][:, None] - 1) & (
            columns < inputs["lengths"][:, None] - 1
        )
        hidden = body_of(self.model)(input_ids=ids, use_cache=False)[0][read]
        said = self._said(hidden, ids.roll(-1, 1)[read])
        sums = said.new_zeros(len(ids)).index_add(0, read.nonzero()[:, 0], said)
        return self._table(sums, inputs, batch.mask)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.get_output_embeddings().weight.device

    def _said(self, hidden: Tensor, following: Tensor) -> Tensor:
        """Log-probability of each following token, from the hidden state before it."""
        logits = self.model.get_output_embeddings()(hidden).float()
        return logits.gather(1, following[:, None])[:, 0] - logits.logsumexp(-1)

    def _table(
        self, sums: Tensor, places: Mapping[str, Tensor], mask: Tensor
    ) -> Tensor:
        """(B, K) log-probabilities from the summed scores of the texts."""
        score = sums[: len(places["row"])]
        if self.prior:
            score = score - sums[places["prior"]]
        table = sums.new_zeros(mask.shape)
        where = (places["row"], places["column"])
        table = table.index_put(where, score / places["units"])
        return masked_log_softmax(table, mask)

    def branches(self, questions: Sequence[Any]) -> int:
        """Texts that these questions are: one for each option."""
        return sum(len(question.options) for question in questions)

    def share(self, state: Any, questions: Sequence[Any]) -> SharedTexts | None:
        """Every text to score as a tree: state, question, candidate.

        Returns
        -------
        SharedTexts or None
            None for a model whose attention the block mask does not fit.
        """
        if not attends_to_all(self.model):
            return None
        texts = self._texts([(state, question) for question in questions])
        pairs, places = texts.pairs(torch.arange(len(questions)), self.prior)
        # The last token of an option is only ever predicted, never read.
        trees = grown_trees([prompt + option[:-1] for prompt, option in pairs])
        return SharedTexts(texts, pairs, places, trees)

    def works(self, shared: SharedTexts, batch_size: int) -> dict[str, Work]:
        """What each way of reading computes; the plain path repeats each prompt for
        each of its options."""
        lengths = [len(prompt) + len(option) for prompt, option in shared.pairs]
        width = shared.texts.of.shape[1]
        return {
            "plain": plain_work(lengths, batch_size * width),
            "tree": tree_work(shared.trees),
        }

    def tree_log_probs(self, shared: SharedTexts) -> Tensor:
        """(m, K) log-probabilities, each state and question read once.

        The candidates branch off their question, which branches off the state
        (`rlcd_core.policy.tree`).
        """
        device = self.device
        parts = []
        for rows, tree in shared.trees:
            inputs = packed_inputs(tree, self.model.dtype, device)
            body = body_of(self.model)
            hidden = body(**inputs, use_cache=False).last_hidden_state[0]
            for row, place in zip(rows, tree.places(), strict=True):
                prompt, option = shared.pairs[row]
                following = torch.tensor(option, device=device)
                parts.append(
                    self._said(hidden[place[len(prompt) - 1 :]], following).sum()
                )
        places = {name: value.to(device) for name, value in shared.places.items()}
        mask = (shared.texts.of >= 0).to(device)
        return self._table(torch.stack(parts), places, mask)
