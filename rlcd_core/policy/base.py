"""What every policy is: a protocol, its batches, and the masked softmax.

A policy turns a (state, question) item into a distribution over the question's own
options. Training, evaluation and the decider know only the two methods of `Policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from rlcd_core.rewards import MASKED
from rlcd_core.schema import render_state

Item = tuple[Any, Any]
"""A state (text, dict or list of turns) and a question of `rlcd_core.schema`."""


class PolicyError(ValueError):
    """A policy cannot read these items or this model; the message says the mend."""


@dataclass(frozen=True)
class Batch:
    """Rows ready for `Policy.log_probs`.

    Attributes
    ----------
    mask : (B, K) bool tensor
        True where the row has an option; K is that of the whole `Prepared`.
    inputs : mapping of tensors
        What the policy's own `prepare` put there.
    """

    mask: Tensor
    inputs: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.mask)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device (itself if it is there already)."""
        if self.mask.device == torch.device(device):
            return self
        moved = {name: value.to(device) for name, value in self.inputs.items()}
        return Batch(self.mask.to(device), moved)


class Prepared:
    """Items that a policy has tokenised or embedded once, to be taken row by row.

    Parameters
    ----------
    counts : sequence of N int
        Number of options of each item.
    collate : callable
        Maps an (B,) int64 tensor of rows to the `inputs` of a `Batch`.
    """

    def __init__(
        self, counts: Sequence[int], collate: Callable[[Tensor], dict[str, Tensor]]
    ) -> None:
        self.mask = option_mask(counts)
        self._collate = collate

    def __len__(self) -> int:
        return len(self.mask)

    def take(self, rows: Any) -> Batch:
        """The batch of the given rows (sequence, array or tensor of ints).

        Raises
        ------
        PolicyError
            The rows are no integers: a mask would be read as rows 0 and 1.
        """
        index = torch.as_tensor(rows).reshape(-1)
        if index.numel() and (index.is_floating_point() or index.dtype == torch.bool):
            raise PolicyError(
                f"rows are {index.dtype}; pass row numbers, such as "
                "np.flatnonzero(mask)"
            )
        index = index.to(torch.int64)
        return Batch(self.mask[index], self._collate(index))


@runtime_checkable
class Policy(Protocol):
    """Anything that gives log-probabilities over declared options."""

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Tokenise or embed items once."""
        ...

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) log-probabilities, float32 or wider, `MASKED` where no option is."""
        ...


def masked_log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    r"""Log-softmax over the options that exist.

    .. math:: \log p_k = z_k - \log \sum_{j: m_j} e^{z_j}

    The sum runs in float32 or wider whatever the dtype of `logits`: a bf16 running
    sum of ones stops at 256, so that 300 equal options would not sum to 1.

    Parameters
    ----------
    logits : (B, K) tensor
    mask : (B, K) bool tensor

    Returns
    -------
    (B, K) tensor
        `MASKED`, a finite number whose exponential is exactly 0, at masked places.

    Raises
    ------
    PolicyError
        A logit of an option is NaN or infinite, or a row has no option.

    Examples
    --------
    >>> z = torch.zeros(1, 300, dtype=torch.bfloat16)
    >>> p = masked_log_softmax(z, torch.ones(1, 300, dtype=torch.bool)).exp()
    >>> round(float(p.sum()), 5)
    1.0
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    bad = (~torch.isfinite(wide) & mask).any(-1) | ~mask.any(-1)
    if bad.any():
        rows = bad.nonzero().flatten().tolist()
        raise PolicyError(
            f"NaN or infinite logits, or no option, in rows {rows[:5]} of the batch. "
            "Lower the learning rate, load the model in float32, or look at the "
            "weights: the model has diverged or its file is damaged."
        )
    held = wide.masked_fill(~mask, MASKED)
    return held.log_softmax(-1).masked_fill(~mask, MASKED)


def option_counts(items: Sequence[Item]) -> list[int]:
    """Number of options of each item; `PolicyError` if there is no item."""
    if not items:
        raise PolicyError("No items: pass at least one (state, question).")
    return [len(question.options) for _, question in items]


def option_mask(counts: Sequence[int]) -> Tensor:
    """(N, K) bool: whether each item has an option at each place."""
    return torch.arange(max(counts)) < torch.tensor(counts)[:, None]


def unique_index(texts: Iterable[str]) -> tuple[list[str], list[int]]:
    """Distinct texts in order of first use, and the place of each text among them.

    Examples
    --------
    >>> unique_index(["b", "a", "b"])
    (['b', 'a'], [0, 1, 0])
    """
    places: dict[str, int] = {}
    index = [places.setdefault(text, len(places)) for text in texts]
    return list(places), index


def batches(count: int, size: int) -> list[range]:
    """Rows 0 to count - 1 in runs of at most `size`."""
    return [range(i, min(i + size, count)) for i in range(0, count, size)]


@contextmanager
def evaluating(policy: Any) -> Iterator[None]:
    """Evaluation mode, and no gradients, within the block; the mode comes back."""
    training = getattr(policy, "training", False)
    if training:
        policy.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if training:
            policy.train()


def predict(
    policy: Any,
    prepared: Prepared,
    rows: Any = None,
    *,
    batch_size: int = 256,
    progress: bool = False,
) -> np.ndarray:
    """Probabilities of a policy, without gradients and in evaluation mode.

    Parameters
    ----------
    rows : sequence of int, optional
        Default: all rows of `prepared`.
    batch_size : int
        Rows a forward pass; changes results by float rounding only.

    Returns
    -------
    (N, K) float32 array
        Rows sum to 1; exactly 0 where a row has no option.
    """
    if batch_size < 1:
        raise PolicyError(f"batch_size={batch_size}: pass at least 1")
    chosen = np.arange(len(prepared)) if rows is None else np.asarray(rows)
    parts = []
    runs = batches(len(chosen), batch_size)
    with evaluating(policy):
        for run in tqdm(runs, "predict", disable=not progress, leave=False):
            batch = prepared.take(chosen[run])
            parts.append(policy.log_probs(batch).float().exp().cpu())
    width = prepared.mask.shape[1]
    return torch.cat(parts).numpy() if parts else np.zeros((0, width), np.float32)


class TabularPolicy(nn.Module):
    """One free logit per option of each distinct item: exact theory, no language.

    Parameters
    ----------
    items : sequence of (state, question)
        The items the table knows; duplicates share a row.
    dtype : torch.dtype
        float64 where a test compares with enumeration.

    Attributes
    ----------
    logits : (U, K) parameter
        Zero at the start (uniform), rows in order of first use.

    Examples
    --------
    >>> from rlcd_core.schema import Noul
    >>> item = ("All servers are down.", Noul("Page someone?"))
    >>> policy = TabularPolicy([item])
    >>> predict(policy, policy.prepare([item])).tolist()
    [[0.5, 0.5]]
    """

    def __init__(
        self, items: Sequence[Item], dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        width = max(option_counts(items))
        self._rows: dict[tuple[str, str, tuple[str, ...]], int] = {}
        for state, question in items:
            self._rows.setdefault(self._key(state, question), len(self._rows))
        self.logits = nn.Parameter(torch.zeros(len(self._rows), width, dtype=dtype))

    @staticmethod
    def _key(state: Any, question: Any) -> tuple[str, str, tuple[str, ...]]:
        return render_state(state), question.text, question.options

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Look the items up.

        Raises
        ------
        PolicyError
            An item is not in the table: it cannot generalise.
        """
        counts = option_counts(items)
        keys = [self._key(state, question) for state, question in items]
        unknown = [key for key in keys if key not in self._rows]
        if unknown:
            raise PolicyError(
                f"The table has no row for question {unknown[0][1]!r} on state "
                f"{unknown[0][0][:60]!r}: build it with these items, or use a head."
            )
        index = torch.tensor([self._rows[key] for key in keys])
        return Prepared(counts, lambda rows: {"index": index[rows]})

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) log-probabilities in the table's dtype."""
        batch = batch.to(self.logits.device)
        width = batch.mask.shape[1]
        return masked_log_softmax(
            self.logits[batch.inputs["index"], :width], batch.mask
        )
