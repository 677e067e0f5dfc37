"""Prompts as token ids, and option labels that are verified tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlcd_core.policy.base import Item, PolicyError
from rlcd_core.schema import LETTERS, Noul, render_prefix, render_state, render_suffix

LABEL_CANDIDATES: tuple[str, ...] = (
    *LETTERS,
    *("".join(pair) for pair in itertools.product(LETTERS, LETTERS)),
)
"""A to Z, then AA to ZZ: the labels that a policy may choose from, in this order."""


class PromptEncoder:
    """Text to token ids, such that text never becomes a special token.

    What a tokenizer has as an added token that is not special, such as Qwen's
    ``<think>``, stays one token also where it stands in a text.

    Parameters
    ----------
    tokenizer
        A fast tokenizer of transformers.
    max_tokens : int or None
        Longest prompt.
    """

    def __init__(self, tokenizer: Any, max_tokens: int | None) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise PolicyError(
                f"{type(tokenizer).__name__} has no fast (Rust) form, which is needed "
                "to keep special tokens out of the text: save its tokenizer.json."
            )
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        # What the model expects around every text, such as <s> or [CLS] ... [SEP].
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        dressed = tokenizer("a")["input_ids"]
        first = dressed.index(bare[0])
        self.start: list[int] = dressed[:first]
        self.end: list[int] = dressed[first + len(bare) :]
        self.seam_is_clean = self._check_seam()

    def _check_seam(self) -> bool:
        """Whether prefix and suffix, tokenised apart, are the whole prompt's tokens."""
        starts = ("Which", "3 of", "(a)", "über", "\u4e2d", "'s", "\u2014", ":)", "a")
        for state in ("One line.", "Ends in spaces  \n", "tail:\t"):
            prefix = render_prefix(state)
            suffixes = [render_suffix(Noul(f"{s} is it?")) for s in starts]
            head, *tails = self.plain([prefix, *suffixes])
            whole = self.plain([prefix + suffix for suffix in suffixes])
            if whole != [head + tail for tail in tails]:
                return False
        return True

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, nothing added; "<|endoftext|>" is split like any word."""
        if not texts:
            return []
        return self.tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True
        )["input_ids"]

    def prompts(
        self, items: Sequence[Item], suffixes: Sequence[str], truncate: bool = False
    ) -> list[list[int]]:
        """Ids of ``render_prefix(state) + suffix``, within `max_tokens`.

        Parameters
        ----------
        truncate : bool
            Cut the end of a state, never its question or options, until it fits.

        Raises
        ------
        PolicyError
            A prompt is too long and `truncate` is off, or the options alone are.
        """
        prefixes = [render_prefix(state) for state, _ in items]
        texts = [p + s for p, s in zip(prefixes, suffixes, strict=True)]
        encoded = [self.start + ids for ids in self.plain(texts)]
        for row, ids in enumerate(encoded):
            if self.max_tokens is not None and len(ids) > self.max_tokens:
                state, question = items[row]
                if not truncate:
                    raise PolicyError(
                        f"The prompt of {question.name} has {len(ids)} tokens and the "
                        f"limit is {self.max_tokens}: shorten the state, or pass "
                        "truncate=True to cut its end (the options are never cut)."
                    )
                encoded[row] = self._shortened(
                    render_state(state), question, suffixes[row], len(ids)
                )
        return encoded

    def _shortened(
        self, state: str, question: Any, suffix: str, length: int
    ) -> list[int]:
        assert self.max_tokens is not None
        while True:
            offsets = self.tokenizer(
                state,
                add_special_tokens=False,
                split_special_tokens=True,
                return_offsets_mapping=True,
            )["offset_mapping"]
            keep = len(offsets) - (length - self.max_tokens)
            state = state[: offsets[keep][0]] if keep > 0 else ""
            if not state.strip():
                raise PolicyError(
                    f"{question.name}: question and options alone exceed the limit of "
                    f"{self.max_tokens} tokens: use fewer options or a longer limit."
                )
            ids = self.start + self.plain([render_prefix(state) + suffix])[0]
            if len(ids) <= self.max_tokens:
                return ids
            length = len(ids)

    def labels(self, candidates: Sequence[str], after: str) -> list[tuple[str, int]]:
        """Those candidates that are one token when they follow `after` and a space,
        with that token."""
        base, *encoded = self.plain([after, *(f"{after} {c}" for c in candidates)])
        return [
            (label, ids[-1])
            for label, ids in zip(candidates, encoded, strict=True)
            if ids[:-1] == base and ids[-1] != self.tokenizer.unk_token_id
        ]


def token_limit(model: Any, max_tokens: int | None) -> int | None:
    """The smaller of a model's context window and `max_tokens`; None if neither.

    Raises `PolicyError` if `max_tokens` is below 1.
    """
    if max_tokens is not None and max_tokens < 1:
        raise PolicyError(f"max_tokens={max_tokens}: pass at least 1")
    window = getattr(model.config, "max_position_embeddings", None)
    limits = [limit for limit in (window, max_tokens) if limit is not None]
    return min(limits, default=None)


def verified_labels(
    encoder: PromptEncoder, labels: Sequence[str] | None, after: str
) -> list[tuple[str, int]]:
    """Labels and their token ids, each checked to be one token of its own.

    Parameters
    ----------
    labels : sequence of str or None
        None takes A to Z, all of which must pass, and those of AA to ZZ that do.

    Raises
    ------
    PolicyError
        A label is not a single token, or two labels share one; it is named.
    """
    required = list(LETTERS if labels is None else labels)
    offered = list(LABEL_CANDIDATES if labels is None else labels)
    found = encoder.labels(offered, after)
    broken = sorted(set(required) - {label for label, _ in found})
    if broken:
        raise PolicyError(
            f"Labels {broken[:8]} are not single tokens for this tokenizer after "
            f"{after!r}: pass labels= that are, or score the options verbatim."
        )
    owner: dict[int, str] = {}
    for label, token in found:
        if token in owner:
            raise PolicyError(
                f"Labels {owner[token]!r} and {label!r} are the same token ({token}) "
                "for this tokenizer: pass labels= that differ."
            )
        owner[token] = label
    if len(found) < 2:
        raise PolicyError(f"labels={list(labels or ())!r}: pass at least 2")
    return found


def padded(rows: Sequence[list[int]], side: str = "right") -> dict[str, Tensor]:
    """Token rows as one tensor "ids" (B, T), and their "lengths" (B,).

    Any id will do as filler: no real position ever attends to it.
    """
    tensors = [torch.tensor(row) for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_side=side)
    return {"ids": ids, "lengths": torch.tensor([len(row) for row in rows])}
