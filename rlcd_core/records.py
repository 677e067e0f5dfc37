"""Run records: what ran, where, and what came out.

A record is trusted while its configuration hash matches what a caller asks for. Its
per-row predictions stand beside it, so every figure can be drawn without training.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from rlcd_core.files import write_atomically

# Modules whose source decides what a run learns.
_LEARNING = ("rewards.py", "env.py", "train.py", "policy", "tasks.py")


def results_dir() -> Path:
    """Folder of the committed results: ``$RLCD_RESULTS``, else beside the package."""
    chosen = os.environ.get("RLCD_RESULTS")
    return Path(chosen) if chosen else Path(__file__).resolve().parents[1] / "results"


def config_hash(config: dict[str, Any]) -> str:
    """First 16 hex digits of the SHA-256 of a configuration's canonical JSON."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_hash() -> str:
    """First 16 hex digits over the sources that decide what a run learns."""
    root = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for name in _LEARNING:
        place = root / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a run's numbers depend on."""
    found = {"python": platform.python_version()}
    for name in ("numpy", "scipy", "scikit-learn", "torch", "transformers"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Processor, cores, torch threads, and the accelerator if there is one."""
    import torch

    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": (
            torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
        ),
    }


@dataclass(frozen=True)
class RunRecord:
    """One finished run.

    ``metrics`` maps a split to its metrics; ``curve`` holds the evaluations during
    training; ``signals`` the health signals, thinned; ``used`` what the run consumed:
    outcomes, distinct prompts, forward passes, optimiser steps, seconds.
    """

    family: str
    arm: str
    seed: int
    config: dict[str, Any]
    metrics: dict[str, dict[str, float]]
    used: dict[str, float]
    curve: list[dict[str, float]] = field(default_factory=list)
    signals: list[dict[str, float]] = field(default_factory=list)
    stopped: bool = False
    data_hash: str = ""
    code: str = field(default_factory=code_hash)
    versions: dict[str, str] = field(default_factory=versions)
    hardware: dict[str, Any] = field(default_factory=hardware)

    @property
    def key(self) -> str:
        """Identity of the run: the hash of its configuration."""
        return config_hash(self.config)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with ``key``."""
        return {"key": self.key, **asdict(self)}


class Store:
    """The records of one family: ``results/<family>.jsonl`` and ``.npz``.

    Finished runs first land one by one in a scratch folder, so a kill loses only the
    run in progress; :meth:`gather` merges them into the two committed files.

    Parameters
    ----------
    family : str
    root : Path, optional
        Default :func:`results_dir`.
    """

    def __init__(self, family: str, root: Path | None = None) -> None:
        self.family = family
        self.root = root or results_dir()
        self.path = self.root / f"{family}.jsonl"
        self.scratch = self.root.parent / "_build" / "runs" / family

    def records(self) -> list[RunRecord]:
        """All records, committed and finished, sorted by arm, seed and key.

        Raises
        ------
        ValueError
            A record is cut short or lacks a field; names the file and the line.
        """
        # Split at "\n" alone: a name may hold other characters that end a line.
        lines = self.path.read_text().split("\n") if self.path.exists() else []
        texts = [(f"{self.path}, line {i}", t) for i, t in enumerate(lines, 1) if t]
        texts += [(str(p), p.read_text()) for p in sorted(self.scratch.glob("*.json"))]
        found = {row.key: row for row in (_parse(text, at) for at, text in texts)}
        return sorted(found.values(), key=lambda r: (r.arm, r.seed, r.key))

    def find(self, config: dict[str, Any]) -> RunRecord | None:
        """The record of exactly this configuration, or None if it never ran."""
        wanted = config_hash(config)
        return next((row for row in self.records() if row.key == wanted), None)

    def add(self, record: RunRecord, predictions: np.ndarray | None = None) -> None:
        """Keep a finished run; predictions ``(n, K)`` are stored as float16."""
        if predictions is not None:
            buffer = io.BytesIO()
            np.save(buffer, predictions.astype(np.float16))
            write_atomically(self.scratch / f"{record.key}.npy", buffer.getvalue())
        text = json.dumps(record.to_dict(), sort_keys=True)
        write_atomically(self.scratch / f"{record.key}.json", text.encode())

    def predictions(self, record: RunRecord) -> np.ndarray:
        """Test predictions ``(n, K)`` of a record, as float64 rows that sum to 1.

        Raises
        ------
        KeyError
            If the record was stored without predictions.
        """
        wide = self._stored(record).astype(np.float64)
        return wide / wide.sum(-1, keepdims=True)

    def _stored(self, record: RunRecord) -> np.ndarray:
        """The float16 values as they are kept."""
        loose = self.scratch / f"{record.key}.npy"
        if loose.exists():
            return np.load(loose)
        path = self.root / f"{self.family}.npz"
        if path.exists():
            with np.load(path) as archive:
                if record.key in archive:
                    return archive[record.key]
        raise KeyError(
            f"no predictions of arm {record.arm!r}, seed {record.seed} in {path}: "
            "they were not kept, or the file is missing"
        )

    def gather(self, keep: Iterable[str] | None = None) -> int:
        """Merge the scratch folder into the committed files; returns the record count.

        A second merge of the family waits: it would write back what it read before
        the first one's records were there.

        Parameters
        ----------
        keep : iterable of keys, optional
            Records with other keys are dropped (a family that was re-configured).
        """
        self.scratch.mkdir(parents=True, exist_ok=True)
        with FileLock(self.scratch.with_name(f"{self.family}.lock")):
            return self._merge(keep)

    def _merge(self, keep: Iterable[str] | None) -> int:
        loose = list(self.scratch.glob("*.json"))
        rows = self.records()
        if keep is not None:
            kept = set(keep)
            rows = [row for row in rows if row.key in kept]
        arrays = {}
        for row in rows:
            try:
                # As stored: normalised again and rounded again, they would drift.
                arrays[row.key] = self._stored(row)
            except KeyError:
                continue
        text = "".join(json.dumps(r.to_dict(), sort_keys=True) + "\n" for r in rows)
        if arrays:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays)
            write_atomically(self.root / f"{self.family}.npz", buffer.getvalue())
        write_atomically(self.path, text.encode())
        for path in loose:  # not what another process has finished meanwhile
            path.unlink(missing_ok=True)
            path.with_suffix(".npy").unlink(missing_ok=True)
        return len(rows)


def metric_values(
    records: Iterable[RunRecord], arm: str, metric: str, split: str = "test"
) -> np.ndarray:
    """One metric of one arm, ``(seeds,)`` in order of seed.

    Raises
    ------
    KeyError
        If the arm has no record, two records for one seed (another configuration
        is mixed in), or a record lacks the metric.
    """
    found = {}
    for record in records:
        if record.arm == arm:
            if record.seed in found:
                raise KeyError(
                    f"arm {arm!r} has two records of seed {record.seed}; select one "
                    "configuration before comparing"
                )
            known = record.metrics.get(split, {})
            if metric not in known:
                raise KeyError(
                    f"arm {arm!r}, seed {record.seed}: no metric {metric!r} of split "
                    f"{split!r}; splits are {sorted(record.metrics)}, metrics there "
                    f"{sorted(known)}"
                )
            found[record.seed] = known[metric]
    if not found:
        raise KeyError(f"no record of arm {arm!r}; run its family first")
    return np.array([found[seed] for seed in sorted(found)])


def thin(rows: list[dict[str, float]], most: int = 60) -> list[dict[str, float]]:
    """At most ``most`` block means of per-step signals, rounded to 5 digits."""
    if not rows:
        return []
    blocks = np.array_split(np.arange(len(rows)), min(most, len(rows)))
    names = rows[0].keys()
    return [
        {n: float(f"{np.mean([rows[i][n] for i in b]):.5g}") for n in names}
        for b in blocks
    ]


def save_numbers(chapter: str, numbers: dict[str, Any]) -> None:
    """Write the numbers that a chapter's prose inserts.

    Parameters
    ----------
    chapter : str
        Notebook name, such as ``"01_identity"``.
    numbers : dict
        Keys to numbers or strings; NumPy scalars are converted. Merged with what the
        same run of the chapter wrote before.

    Raises
    ------
    ValueError
        If a number is not finite.
    """
    root = os.environ.get("RLCD_NUMBERS_DIR")
    path = (Path(root) if root else results_dir() / "chapters") / f"{chapter}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for key, value in numbers.items():
        plain = value.item() if hasattr(value, "item") else value
        if isinstance(plain, float) and not np.isfinite(plain):
            raise ValueError(f"{chapter}: {key} is {plain}, which no page can show")
        known[key] = plain
    text = json.dumps(known, indent=1, sort_keys=True) + "\n"
    write_atomically(path, text.encode())


def _parse(text: str, where: str) -> RunRecord:
    try:
        row = json.loads(text)
        stated = row.pop("key")
        # A default would tell this machine's versions and hardware as the run's.
        missing = {f.name for f in fields(RunRecord)} - row.keys()
        if missing:
            raise ValueError(f"no {', '.join(sorted(missing))}")
        record = RunRecord(**row)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{where}: not a whole run record ({type(error).__name__}: {error}); "
            "restore the file, or delete that record and run its family again"
        ) from error
    if stated != record.key:
        raise ValueError(
            f"{where}: the configuration was changed after the run (key {stated}, "
            f"hash {record.key}); restore the file, or run the family again"
        )
    return record


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
