"""A stated confidence: the model names an option, then says how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlcd_core.policy.base import (
    Batch,
    Item,
    PolicyError,
    Prepared,
    masked_log_softmax,
    option_counts,
)
from rlcd_core.policy.letter import LetterPolicy, row_logits
from rlcd_core.policy.loading import body_of
from rlcd_core.policy.prompts import PromptEncoder, padded
from rlcd_core.rewards import LEVELS, MASKED, stated_levels

CUE = "\nConfidence that this is right, from 0 to 9:"


class StatedPolicy(nn.Module):
    r"""Answers with an option's letter and then with a digit for its confidence.

    After the prompt x of `LetterPolicy` the letter of option k is read; the letter and
    a line that asks for the confidence follow, and the digit l is read there:

    .. math:: P(k, l) = p(k \mid x) \; p(l \mid x, \text{letter}_k, \text{cue}) .

    An action is the pair ``k * LEVELS + l``, so that the one training loop, with a
    ``stated_...`` objective (`rlcd_core.rewards.stated_objective`) and the environment
    in `OnOption`, trains what chapter "Stated confidence and the trap" describes.
    Digit l states the confidence (l + 1/2) / LEVELS. Where options alone are wanted (a
    decider, the battery), pass `StatedChoice`.

    Parameters
    ----------
    policy : LetterPolicy
        Over a causal model with full attention by sdpa. Its parameters are shared: its
        own answers are this policy's p(k).

    Notes
    -----
    One forward pass: the K continuations follow the prompt in one sequence, each at
    the positions it would have alone, and a mask keeps them from seeing each other.

    Raises
    ------
    PolicyError
        A digit is not one token of its own after the cue, or the model's attention
        cannot be masked so (sliding windows, other kernels).
    """

    def __init__(self, policy: LetterPolicy) -> None:
        super().__init__()
        if policy.kind != "causal" or not policy._can_share:
            raise PolicyError(
                f"{type(policy.model).__name__} is no causal model with full attention "
                "by sdpa, which the packed continuations need: load it with "
                "attn_implementation='sdpa', or take another model."
            )
        self.policy = policy
        written = policy.encoder.plain([f"{CUE} {digit}" for digit in range(LEVELS)])
        self._cue: list[int] = written[0][:-1]
        tokens = [ids[-1] for ids in written]
        alike = all(ids[:-1] == self._cue for ids in written)
        unknown = policy.encoder.tokenizer.unk_token_id
        if not alike or len(set(tokens)) < LEVELS or unknown in tokens:
            raise PolicyError(
                f"The digits 0 to {LEVELS - 1} are not single tokens of their own "
                f"after {CUE!r} for this tokenizer: it cannot state a confidence so."
            )
        self.register_buffer("level_ids", torch.tensor(tokens), persistent=False)
        limit = policy.encoder.max_tokens
        room = None if limit is None else limit - self._step
        self._encoder = PromptEncoder(policy.encoder.tokenizer, room)
        self.train(policy.training)

    @property
    def _step(self) -> int:
        """Tokens of one continuation: the letter and the cue."""
        return 1 + len(self._cue)

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Tokenise the prompts; each row has LEVELS pairs an option.

        Raises
        ------
        PolicyError
            As `LetterPolicy.prepare`; the continuation counts towards the limit.
        """
        counts = option_counts(items)
        suffixes = self.policy._suffixes(items)
        prompts = self._encoder.prompts(items, suffixes, self.policy.truncate)
        labels = self.policy.label_ids.tolist()

        def collate(rows: Tensor) -> dict[str, Tensor]:
            chosen = rows.tolist()
            packed = [
                prompts[i] + [t for k in labels[: counts[i]] for t in (k, *self._cue)]
                for i in chosen
            ]
            lengths = torch.tensor([len(prompts[i]) for i in chosen])
            return {"ids": padded(packed)["ids"], "prompt": lengths}

        return Prepared([count * LEVELS for count in counts], collate)

    def _hidden(self, ids: Tensor, prompt: Tensor) -> Tensor:
        """(B, T, D) hidden states of prompts and their continuations."""
        columns = torch.arange(ids.shape[1], device=ids.device)[None]
        past = columns - prompt[:, None]
        branch = torch.where(past < 0, -1, past // self._step)
        positions = torch.where(past < 0, columns, prompt[:, None] + past % self._step)
        seen = (branch[:, None] == -1) | (branch[:, None] == branch[:, :, None])
        seen = seen & (columns[:, None] <= columns[:, :, None])
        return body_of(self.policy.model)(
            input_ids=ids,
            attention_mask=seen[:, None],
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K * LEVELS) masked log-probabilities of pairs, float32 or wider."""
        batch = batch.to(self.policy.device)
        prompt = batch.inputs["prompt"]
        hidden = self._hidden(batch.inputs["ids"], prompt)
        options = batch.mask[:, ::LEVELS]
        rows = torch.arange(len(prompt), device=prompt.device)[:, None]
        first = self.policy._label_logits(
            hidden[rows[:, 0], prompt - 1], len(options.T)
        )
        choice = masked_log_softmax(first, options)
        # Where an option is missing, any place will do: the mask removes it.
        last = (
            torch.arange(1, len(options.T) + 1, device=prompt.device) * self._step - 1
        )
        last = (prompt[:, None] + last).clamp_max(hidden.shape[1] - 1)
        levels = row_logits(self.policy.model, self.level_ids, hidden[rows, last])
        told = masked_log_softmax(levels, torch.ones_like(levels).bool())
        pairs = (choice[..., None] + told).flatten(1)
        return pairs.masked_fill(~batch.mask, MASKED)


def choice_log_probs(pairs: Tensor) -> Tensor:
    """(B, K) log-probabilities of options from those of pairs, (B, K * LEVELS).

    Examples
    --------
    >>> pairs = torch.full((1, 20), 1 / 20).log()
    >>> choice_log_probs(pairs).exp()
    tensor([[0.5000, 0.5000]])
    """
    return pairs.unflatten(-1, (-1, LEVELS)).logsumexp(-1).clamp_min(MASKED)


def stated_confidence(pairs: Tensor) -> Tensor:
    """(B, K) mean stated confidence after each option, in (0, 1).

    0 where a row has no such option.
    """
    each = pairs.unflatten(-1, (-1, LEVELS))
    known = each[..., 0] > MASKED / 2
    levels = stated_levels(torch.arange(LEVELS, device=pairs.device), pairs.dtype)
    return (each.softmax(-1) @ levels).where(known, 0.0)


class StatedChoice(nn.Module):
    """The options of a `StatedPolicy` without their confidence, as a policy."""

    def __init__(self, policy: StatedPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.train(policy.training)

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Prepare the pairs; the mask is that of the options."""
        inner = self.policy.prepare(items)

        def collate(rows: Tensor) -> dict[str, Tensor]:
            batch = inner.take(rows)
            return {**batch.inputs, "pairs": batch.mask}

        return Prepared(option_counts(items), collate)

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) log-probabilities: the sum over levels of the pairs'."""
        inputs = dict(batch.inputs)
        pairs = self.policy.log_probs(Batch(inputs.pop("pairs"), inputs))
        return choice_log_probs(pairs).masked_fill(~batch.mask.to(pairs.device), MASKED)


class OnOption:
    """An environment for pairs: the outcome is that of the option, whatever is said.

    Parameters
    ----------
    env
        Any environment of `rlcd_core.env` over options.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.n_options = np.asarray(env.n_options) * LEVELS

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Outcomes (B, G) of pairs ``option * LEVELS + level``."""
        return self._env.outcomes(rows, np.asarray(actions) // LEVELS)

    def state_dict(self) -> dict[str, Any]:
        """State of the wrapped environment."""
        return self._env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the wrapped environment."""
        self._env.load_state_dict(state)
