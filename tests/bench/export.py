"""Measure how long exports take to load; writes ``results/export.json``.

``OMP_NUM_THREADS=1 python tests/bench/export.py`` exports an untrained decision head
on the packaged encoder and the packaged SmolLM2, then loads each several times. Imports
are done before; the time that hashing takes is measured apart and taken off, because it
grows with the bytes and is the price of trusting them. Processor time is given beside
wall time, which a busy machine stretches.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlcd_core import export as module
from rlcd_core.data import manifest
from rlcd_core.export import export, load_export
from rlcd_core.files import write_atomically
from rlcd_core.policy import DecisionHead, Encoder, LetterPolicy
from rlcd_core.policy import encoder as encoders
from rlcd_core.records import hardware, results_dir, versions
from rlcd_core.schema import Noul

REPEATS = 5
ITEM = ("The server is down.", Noul("Page someone?"))


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Wall and processor seconds of a call without its hashing, and of that."""
    spent = {"hash": 0.0, "hash cpu": 0.0}
    real = manifest.sha256_of

    def watched(path: Path) -> str:
        wall, cpu = time.perf_counter(), time.process_time()
        found = real(path)
        spent["hash"] += time.perf_counter() - wall
        spent["hash cpu"] += time.process_time() - cpu
        return found

    places = (manifest, module, encoders)
    for place in places:
        place.sha256_of = watched
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        result = work()
    finally:
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        for place in places:
            place.sha256_of = real
    spent |= {"load": wall - spent["hash"], "load cpu": cpu - spent["hash cpu"]}
    return spent, result


def measure(policy: Any, folder: Path, **options: Any) -> dict[str, Any]:
    """Export once, load `REPEATS` times, and compare the answers."""
    started = time.perf_counter()
    export(policy, folder, **options)
    wrote = time.perf_counter() - started
    rows = []
    for _ in range(REPEATS):
        row, found = timed(lambda: load_export(folder))
        rows.append(row)
    with torch.inference_mode():
        answers = [
            one.log_probs(one.prepare([ITEM]).take([0]))
            for one in (policy.eval(), found.policy)
        ]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    best = {name: round(min(row[name] for row in rows), 4) for name in rows[0]}
    return {
        "best of": REPEATS,
        "seconds": best,
        "export seconds": round(wrote, 3),
        "megabytes": round(size / 1e6, 2),
        "equal to the last bit": bool(torch.equal(*answers)),
    }


def main() -> None:
    """Measure the three kinds of export and write the results."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"versions": versions(), "hardware": hardware()}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        head = DecisionHead(Encoder.load())
        found["head"] = measure(head, place / "head")
        found["head with encoder"] = measure(head, place / "whole", copy_encoder=True)
        found["SmolLM2"] = measure(LetterPolicy.load(), place / "smol")
    for kind in ("head", "head with encoder", "SmolLM2"):
        print(kind, found[kind])
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    write_atomically(results_dir() / "export.json", text.encode())


if __name__ == "__main__":
    main()
