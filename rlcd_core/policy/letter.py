"""Letter readout: a causal language model's distribution over option labels."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rlcd_core.policy.base import (
    Batch,
    Item,
    PolicyError,
    Prepared,
    evaluating,
    masked_log_softmax,
    option_counts,
    option_mask,
)
from rlcd_core.policy.loading import body_of, load_model, smollm2_directory
from rlcd_core.policy.passes import Work, plain_work, tree_work
from rlcd_core.policy.prefix import PrefixAttention, use_prefix_attention
from rlcd_core.policy.prompts import PromptEncoder, padded, token_limit, verified_labels
from rlcd_core.policy.tree import TokenTree, grown_trees, packed_inputs
from rlcd_core.schema import Noul, SchemaError, render_prefix, render_suffix

MAX_SCORES = 32_000_000
"""Most attention scores of suffixes held at once."""


@dataclass(frozen=True)
class SharedPrompt:
    """One state and several questions as tokens, the common part once.

    Attributes
    ----------
    prefix : list of S int
    suffixes : list of m lists of int
        ``prefix + suffixes[i]`` is the single full prompt of question i.
    counts : list of m int
        Number of options of each question.
    """

    prefix: list[int]
    suffixes: list[list[int]]
    counts: list[int]

    @functools.cached_property
    def trees(self) -> list[tuple[list[int], TokenTree]]:
        """The same prompts as packed sequences (usually one), with their rows."""
        return grown_trees([self.prefix + suffix for suffix in self.suffixes])


class LetterPolicy(nn.Module):
    r"""Reads a decision off a causal language model in one forward pass.

    The prompt lists the options under labels and ends where the label must come next.
    With h the last hidden state and W the output matrix,

    .. math:: p_k = \exp(w_{label_k}^\top h) / \sum_{j \le K} \exp(w_{label_j}^\top h)

    over the K declared options: policy and answer are the same distribution. Only the
    last position and only K rows of W are multiplied, never the whole vocabulary.

    Parameters
    ----------
    model
        A causal language model of transformers with a linear output layer.
    tokenizer
        Its fast tokenizer.
    labels : sequence of str, optional
        Default: A to Z, and as many of AA to ZZ as are single tokens.
    padding : {"right", "left"}
        Where shorter prompts of a batch are filled up. Right needs no mask in a
        causal model; both give the same probabilities to rounding.
    max_tokens : int, optional
        Longest prompt; at most, and by default, the model's context window.
    truncate : bool
        Cut the end of states that are too long instead of raising.

    Raises
    ------
    PolicyError
        A label is not one token of its own, or the model transforms its logits after
        the output matrix (soft-capping, scaling) or does not number its positions from
        0, so that reading rows would be wrong.
    """

    kind: ClassVar[str] = "causal"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        labels: Sequence[str] | None = None,
        padding: Literal["right", "left"] = "right",
        max_tokens: int | None = None,
        truncate: bool = False,
    ) -> None:
        super().__init__()
        if padding not in ("right", "left"):
            raise PolicyError(f"padding={padding!r}: pass 'right' or 'left'")
        self.model = model
        self.padding = padding
        self.truncate = truncate
        self.encoder = PromptEncoder(tokenizer, token_limit(model, max_tokens))
        self._tail = self._tail_ids()
        if self.encoder.max_tokens is not None:
            self.encoder.max_tokens -= len(self._tail)
        prompt = render_prefix("The server is down.") + render_suffix(Noul("Urgent?"))
        # The label must be one token where it will be read: after the last line.
        found = verified_labels(self.encoder, labels, prompt.splitlines()[-1])
        self.labels: tuple[str, ...] = tuple(label for label, _ in found)
        ids = torch.tensor([token for _, token in found])
        self.register_buffer("label_ids", ids, persistent=False)
        self.masses: list[Tensor] | None = None
        self.noticed: dict[str, float] = {}
        self._can_share = self.kind == "causal" and use_prefix_attention(model)
        self._check_output(prompt)
        self.train(model.training)

    @classmethod
    def load(
        cls,
        directory: Path | str | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> LetterPolicy:
        """Load from a folder of safetensors; by default the packaged SmolLM2-135M.

        Parameters
        ----------
        dtype : torch.dtype
            Type of the weights in memory, whatever the file holds.
        **options
            As for `LetterPolicy`.
        """
        directory = smollm2_directory() if directory is None else directory
        return cls(*load_model(directory, cls.kind, dtype), **options)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.get_output_embeddings().weight.device

    def _tail_ids(self) -> list[int]:
        """What follows the prompt: nothing, the next token is read."""
        return []

    def _check_output(self, prompt: str) -> None:
        head = self.model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise PolicyError(
                f"The output layer is {type(head).__name__}, not a linear layer: its "
                "rows cannot be read; score the options verbatim."
            )
        ids = self.encoder.start + self.encoder.plain([prompt])[0] + self._tail
        inputs = padded([ids])
        with evaluating(self.model):
            hidden = self._hidden(inputs)
            rows = self._label_logits(hidden, len(self.labels))
            masked_log_softmax(rows, torch.ones_like(rows).bool())  # refuses NaN
            # Grown to hundreds, so that a cap on the logits shows however small they
            # are; by a power of two, so that nothing is rounded.
            grow = 2.0 ** math.ceil(math.log2(300 / max(float(rows.abs().max()), 1e-3)))
            with head.register_forward_pre_hook(lambda _, given: (given[0] * grow,)):
                whole = self.model(input_ids=inputs["ids"].to(self.device)).logits[0]
            # One place before the end of what follows the prompt, if anything does.
            whole = whole[-max(1, len(self._tail)), self.label_ids].float()
            rows = self._label_logits(hidden * grow, len(self.labels))[0]
        if (whole - rows).abs().max() > 0.02 * rows.abs().max():
            raise PolicyError(
                f"{type(self.model).__name__} transforms its logits after the output "
                "matrix, or does not number its positions from 0, so that label rows "
                "at the last token are not its logits: score verbatim."
            )

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Tokenise the prompts once.

        Raises
        ------
        PolicyError
            More options than verified labels, or a prompt over the limit.
        """
        counts = option_counts(items)
        prompts = self.encoder.prompts(items, self._suffixes(items), self.truncate)
        rows = [ids + self._tail for ids in prompts]
        return Prepared(
            counts, lambda index: padded([rows[i] for i in index], self.padding)
        )

    def _suffixes(self, items: Sequence[Item]) -> list[str]:
        try:
            return [render_suffix(question, self.labels) for _, question in items]
        except SchemaError as error:
            raise PolicyError(str(error)) from error

    def _hidden(
        self,
        inputs: Mapping[str, Tensor],
        kernel: PrefixAttention | None = None,
        start: int = 0,
    ) -> Tensor:
        """(B, D) last hidden state of each row, with a kernel right-padded ones."""
        ids, lengths = inputs["ids"].to(self.device), inputs["lengths"].to(self.device)
        columns = torch.arange(ids.shape[1], device=ids.device)
        if self.padding == "right" or kernel is not None:
            # Causal attention: the filler comes after all that is read.
            mask, positions, last = None, columns[None] + start, lengths - 1
        else:
            gap = ids.shape[1] - lengths
            mask = (columns[None] >= gap[:, None]).long()
            positions = (columns[None] - gap[:, None]).clamp_min(0)
            last = torch.full_like(lengths, ids.shape[1] - 1)
        output = body_of(self.model)(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions.expand(len(ids), -1),
            use_cache=False,
            **({} if kernel is None else {"prefix_attention": kernel}),
        )
        rows = torch.arange(len(ids), device=ids.device)
        return output.last_hidden_state[rows, last]

    def _label_logits(self, hidden: Tensor, count: int) -> Tensor:
        """(B, count) logits of the first labels."""
        return row_logits(self.model, self.label_ids[:count], hidden)

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) masked log-probabilities; the softmax runs in float32.

        In training mode ``noticed["label_mass"]`` becomes the batch's mean label mass.
        """
        batch = batch.to(self.device)
        hidden = self._hidden(batch.inputs)
        logits = self._label_logits(hidden, batch.mask.shape[1])
        self._weigh(hidden, logits, batch.mask)
        if self.training:
            self._notice(hidden, logits, batch.mask)
        return masked_log_softmax(logits, batch.mask)

    @contextmanager
    def weighing(self) -> Iterator[list[Tensor]]:
        """Within the block, keep the label mass of every prompt that is read.

        The hidden states are there anyway, so that this costs one product with the
        output matrix and no further pass.

        Yields
        ------
        list of tensors
            One (B,) tensor a batch, filled as the prompts are read.
        """
        self.masses = []
        try:
            yield self.masses
        finally:
            self.masses = None

    def _weigh(self, hidden: Tensor, logits: Tensor, mask: Tensor) -> None:
        if self.masses is not None:
            self.masses.append(self._mass(hidden, logits, mask))

    def _notice(self, hidden: Tensor, logits: Tensor, mask: Tensor) -> None:
        with torch.no_grad():
            mass = self._mass(hidden.detach(), logits.detach(), mask)
        self.noticed = {"label_mass": float(mass.mean())}

    def _mass(self, hidden: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
        """(B,) share of the vocabulary's probability that the labels have."""
        every = self.model.get_output_embeddings()(hidden).float()
        own = logits.float().masked_fill(~mask, -torch.inf)
        return (own.logsumexp(-1) - every.logsumexp(-1)).exp().clamp_max(1.0)

    def label_mass(self, batch: Batch) -> Tensor:
        """Probability that the full vocabulary gives to the labels of each row.

        Computed apart, since it needs the whole output matrix. Warns when the mean
        is under 1 %: the model then hardly means to answer with a label, and what the
        readout renormalises is noise.

        Returns
        -------
        (B,) float32 tensor in [0, 1]
        """
        with torch.inference_mode(), self.weighing() as kept:
            self.log_probs(batch)
        (mass,) = kept
        warn_of_mass(float(mass.mean()), stacklevel=3)
        return mass

    def branches(self, questions: Sequence[Any]) -> int:
        """Prompts that these questions are: one each."""
        return len(questions)

    def share(self, state: Any, questions: Sequence[Any]) -> SharedPrompt | None:
        """Tokens of several questions on one state, the common part once.

        Returns
        -------
        SharedPrompt or None
            None where one pass over the state cannot serve all questions: attention
            that the prefix kernel does not know (sliding windows, other kernels), or
            a prompt over the limit, which the plain path refuses or cuts.
        """
        if not self._can_share:
            return None
        suffixes = self._suffixes([(state, q) for q in questions])
        text = render_prefix(state)
        if self.encoder.seam_is_clean:
            prefix, *tails = self.encoder.plain([text, *suffixes])
        else:
            # Sharing the longest common run of whole prompts needs no clean seam.
            whole = self.encoder.plain([text + suffix for suffix in suffixes])
            shortest = min(len(ids) - 1 for ids in whole)
            same = (len({*column}) == 1 for column in zip(*whole, strict=False))
            common = sum(1 for _ in itertools.takewhile(bool, same))
            cut = min(shortest, common)
            prefix, tails = whole[0][:cut], [ids[cut:] for ids in whole]
        prefix = self.encoder.start + prefix
        limit = self.encoder.max_tokens
        if limit is not None and len(prefix) + max(map(len, tails)) > limit:
            return None
        return SharedPrompt(prefix, tails, [len(q.options) for q in questions])

    def shared_log_probs(self, shared: SharedPrompt) -> Tensor:
        """Log-probabilities of several questions with one pass over their state.

        The keys and values of the prefix are computed once and only read afterwards;
        every suffix attends to them and to itself, at the positions it has in its
        single full prompt, so the order and company of questions do not matter.

        Returns
        -------
        (m, K) tensor
            Equal to the single full prompts' to rounding.
        """
        kernel = PrefixAttention()
        self._hidden(padded([shared.prefix]), kernel)
        kernel.frozen = True
        parts = self._parts(shared)
        read = []
        for part in parts:
            inputs = padded([shared.suffixes[i] for i in part])
            read.append(self._hidden(inputs, kernel, len(shared.prefix)))
        return self._rows(torch.cat(read), list(itertools.chain(*parts)), shared.counts)

    def _parts(self, shared: SharedPrompt) -> list[list[int]]:
        """Suffixes of each pass, long ones together, so that little is padded."""
        lengths = [len(suffix) for suffix in shared.suffixes]
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        heads = self.model.config.num_attention_heads
        parts = []
        while order:
            longest = lengths[order[0]]
            cost = heads * longest * (len(shared.prefix) + longest)
            take = max(1, MAX_SCORES // cost)
            parts.append(order[:take])
            order = order[take:]
        return parts

    def _rows(self, hidden: Tensor, rows: list[int], counts: list[int]) -> Tensor:
        """(m, K) log-probabilities from hidden states that stand in order `rows`."""
        back = torch.tensor(rows, device=hidden.device).argsort()
        hidden = hidden[back]
        logits = self._label_logits(hidden, max(counts))
        mask = option_mask(counts).to(hidden.device)
        self._weigh(hidden, logits, mask)
        return masked_log_softmax(logits, mask)

    def tree_log_probs(self, shared: SharedPrompt) -> Tensor:
        """Log-probabilities of several questions in one pass over a packed sequence.

        The state, then what the questions have in common, then their own tokens; the
        positions are reset at each branch, and a block mask hides every branch from
        the others (`rlcd_core.policy.tree`).

        Returns
        -------
        (m, K) tensor
            Equal to the single full prompts' to rounding.
        """
        read, order = [], []
        for rows, tree in shared.trees:
            hidden = self._packed(tree)
            at = -max(1, len(self._tail))
            read.append(hidden[[int(place[at]) for place in tree.places()]])
            order += rows
        return self._rows(torch.cat(read), order, shared.counts)

    def _packed(self, tree: TokenTree) -> Tensor:
        """(T, D) last hidden state of each token of a packed tree."""
        wide = torch.promote_types(self.model.dtype, torch.float32)
        inputs = packed_inputs(tree, wide, self.device)
        body = body_of(self.model)
        return body(**inputs, use_cache=False, wide_attention=True).last_hidden_state[0]

    def works(self, shared: SharedPrompt, batch_size: int) -> dict[str, Work]:
        """What each way of reading these prompts computes."""
        start = len(shared.prefix)
        lengths = [len(suffix) for suffix in shared.suffixes]
        parts = self._parts(shared)
        padded_to = [(len(part), lengths[part[0]]) for part in parts]
        return {
            "plain": plain_work([start + length for length in lengths], batch_size),
            "tree": tree_work(shared.trees),
            "shared": Work(
                start + sum(rows * width for rows, width in padded_to),
                1 + len(parts),
                start**2 // 2
                + sum(rows * width * (start + width // 2) for rows, width in padded_to),
            ),
        }


def row_logits(model: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    """(..., n) logits of n tokens, in float32 or wider: so few rows that half-precision
    weights need not round the result."""
    head = model.get_output_embeddings()
    wide = torch.promote_types(hidden.dtype, torch.float32)
    bias = None if head.bias is None else head.bias[ids].to(wide)
    with torch.autocast(hidden.device.type, enabled=False):
        return nn.functional.linear(hidden.to(wide), head.weight[ids].to(wide), bias)


def warn_of_mass(mass: float, least: float = 0.01, stacklevel: int = 2) -> None:
    """Warn when the labels have less than `least` of the vocabulary's probability."""
    if mass < least:
        warnings.warn(
            f"The labels get {mass:.2g} of the vocabulary's probability: this model "
            "does not answer with a label here; train it, or score the options "
            "verbatim.",
            stacklevel=stacklevel,
        )
