"""Training only the top layers of a letter policy, on stored hidden states.

Where the lower layers are frozen their output for a prompt never changes: it is
computed once and kept on disk, and a training step runs the top layers alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor, nn

from rlcd_core.data.manifest import cache_dir
from rlcd_core.files import write_atomically
from rlcd_core.policy.base import (
    Batch,
    Item,
    PolicyError,
    Prepared,
    masked_log_softmax,
    option_counts,
)
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.policy.loading import body_of
from rlcd_core.policy.prefix import attends_to_all
from rlcd_core.policy.prompts import padded

# Prompts whose hidden states share a file: a kill while they are computed loses one.
BLOCK = 64


class TopPolicy(nn.Module):
    """A letter policy whose lower layers are frozen and read from a store.

    The same distribution, and the same gradients of the layers that it trains, as the
    `LetterPolicy` it wraps. Embedding and output rows stay as they are, also where
    the model ties the two.

    Parameters
    ----------
    letter : LetterPolicy
        Over a model built of decoder layers (Llama, Qwen and their like), padded on
        the right. Its parameters are frozen but for the top layers' and the last
        norm's.
    layers : int
        How many top layers to train, at least 1 and fewer than the model has.
    store : Path, optional
        Folder of the hidden states; default ``hidden`` in the cache. Files are named
        by the hash of the frozen weights and of the prompts' tokens.
    half : bool
        Run all layers in bfloat16 autocast (master weights and stored states stay
        float32). On a processor `train` itself switches autocast off.

    Raises
    ------
    PolicyError
        The model has no such layers, attends in windows, or running it in two parts
        gives other hidden states than the whole.
    """

    def __init__(
        self,
        letter: LetterPolicy,
        layers: int,
        *,
        store: Path | None = None,
        half: bool = False,
    ) -> None:
        super().__init__()
        body = body_of(letter.model)
        if not all(hasattr(body, part) for part in ("layers", "norm", "rotary_emb")):
            raise PolicyError(
                f"{type(body).__name__} is not a stack of decoder layers with rotary "
                "positions and a last norm: train a LetterPolicy on all of it"
            )
        if not attends_to_all(letter.model):
            raise PolicyError(
                f"{type(body).__name__} attends in windows, or by another kernel than "
                "sdpa, which its layers do not know when they run in two parts: train "
                "a LetterPolicy on all of it"
            )
        if letter.padding != "right":
            raise PolicyError(
                "the letter policy pads on the left: pass padding='right'"
            )
        if not 1 <= layers < len(body.layers):
            raise PolicyError(
                f"layers={layers}: the model has {len(body.layers)}; train at least 1 "
                "and leave at least 1 frozen"
            )
        self.letter = letter
        self.half = False
        self._store = cache_dir() / "hidden" if store is None else store
        self._cut = len(body.layers) - layers
        letter.requires_grad_(False)
        for part in (*body.layers[self._cut :], body.norm):
            part.requires_grad_(True)
        self.train(letter.training)
        self._check_parts()
        self.half = half

    @property
    def noticed(self) -> dict[str, float]:
        """What the last batch in training mode told: ``label_mass``."""
        return self.letter.noticed

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.letter.device

    def prepare(self, items: Sequence[Item]) -> Prepared:
        """Tokenise the prompts and compute, or read, their hidden states.

        Raises
        ------
        PolicyError
            As `LetterPolicy.prepare`; or a stored file was damaged.
        """
        counts = option_counts(items)
        rows = self.letter.encoder.prompts(
            items, self.letter._suffixes(items), self.letter.truncate
        )
        below = self._below()
        blocks = [rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK)]
        states = torch.cat([self._stored(block, below) for block in blocks])
        lengths = torch.tensor([len(row) for row in rows])
        ends = lengths.cumsum(0)

        def collate(index: Tensor) -> dict[str, Tensor]:
            parts = [states[ends[i] - lengths[i] : ends[i]] for i in index]
            hidden = nn.utils.rnn.pad_sequence(parts, batch_first=True)
            return {"hidden": hidden, "lengths": lengths[index]}

        return Prepared(counts, collate)

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) masked log-probabilities; the softmax runs in float32.

        In training mode ``noticed["label_mass"]`` becomes the batch's mean probability
        of its labels under the full vocabulary.
        """
        batch = batch.to(self.device)
        with self._cast():
            last = self._top(batch.inputs["hidden"], batch.inputs["lengths"])
        logits = self.letter._label_logits(last, batch.mask.shape[1])
        if self.training:
            self.letter._notice(last, logits, batch.mask)
        return masked_log_softmax(logits, batch.mask)

    def _cast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

    def _below(self) -> str:
        """Hash of all that decides the stored states, but for the tokens."""
        body = body_of(self.letter.model)
        digest = hashlib.sha256(body.config.to_json_string(use_diff=False).encode())
        digest.update(f"{self._cut} {self.half}".encode())
        for part in (body.embed_tokens, *body.layers[: self._cut]):
            for name, value in part.state_dict().items():
                raw = value.detach().cpu().contiguous().view(torch.uint8)
                digest.update(f"{name} {value.dtype}".encode() + raw.numpy().tobytes())
        return digest.hexdigest()[:32]

    def _stored(self, rows: list[list[int]], below: str) -> Tensor:
        """(sum of lengths, D) hidden states of some prompts, one after the other."""
        from safetensors.torch import load, save

        name = hashlib.sha256(repr(rows).encode()).hexdigest()[:32]
        path = self._store / below / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.exists():
                hidden = self._lower(padded(rows)["ids"].to(self.device)).cpu()
                kept = [hidden[i, : len(row)] for i, row in enumerate(rows)]
                states = torch.cat(kept).contiguous()
                raw = save({"hidden": states})
                head = hashlib.sha256(raw).digest()
                write_atomically(path, head + raw)
        data = path.read_bytes()
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            raise PolicyError(f"{path} was damaged after it was written: delete it")
        return load(data[32:])["hidden"]

    def _lower(self, ids: Tensor) -> Tensor:
        """(B, T, D) what the frozen layers hand to the first trained one."""
        body = body_of(self.letter.model)
        with torch.no_grad(), self._cast():
            hidden = body.embed_tokens(ids)
            turned = body.rotary_emb(hidden, self._positions(hidden))
            for layer in body.layers[: self._cut]:
                hidden = layer(hidden, attention_mask=None, position_embeddings=turned)
        return hidden

    def _top(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(B, D) last hidden state; filler on the right is never attended to."""
        body = body_of(self.letter.model)
        turned = body.rotary_emb(hidden, self._positions(hidden))
        for layer in body.layers[self._cut : -1]:
            hidden = layer(hidden, attention_mask=None, position_embeddings=turned)
        # Of the last layer only the last position is read: three quarters of its
        # products are those of the MLP, and run for that position alone.
        layer = body.layers[-1]
        seen, _ = layer.self_attn(
            hidden_states=layer.input_layernorm(hidden),
            attention_mask=None,
            position_embeddings=turned,
        )
        rows = torch.arange(len(hidden), device=hidden.device)
        last = hidden[rows, lengths - 1] + seen[rows, lengths - 1]
        last = last + layer.mlp(layer.post_attention_layernorm(last))
        return body.norm(last)

    def _positions(self, hidden: Tensor) -> Tensor:
        return torch.arange(hidden.shape[1], device=hidden.device)[None]

    def _check_parts(self) -> None:
        """The two parts, one after the other, are the whole."""
        inputs = padded([[1, 2, 3, 4, 5], [5, 4, 3]])
        with torch.inference_mode():
            whole = self.letter._hidden(inputs)
            hidden = self._lower(inputs["ids"].to(self.device))
            parts = self._top(hidden, inputs["lengths"].to(self.device))
        if (whole - parts).abs().max() > 1e-3 * whole.abs().max().clamp_min(1.0):
            raise PolicyError(
                f"{type(self.letter.model).__name__} is more than its layers one after "
                "another: train a LetterPolicy on all of it"
            )
