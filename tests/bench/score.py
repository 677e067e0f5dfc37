"""Measure the memory of scoring a large file; writes ``results/score.json``.

``OMP_NUM_THREADS=1 python tests/bench/score.py`` takes about ten minutes on one thread.
A hundred thousand short texts, all distinct, are answered by a decision head on the
packaged MiniLM encoder, none of whose embeddings are cached. The resident memory of the
process is read after each part is written. With a number of rows as its argument it
scores so many and only prints.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from rlcd_core.data.triage import DEPARTMENT, ESCALATE
from rlcd_core.decider import Decider
from rlcd_core.extra import bulk
from rlcd_core.extra.batching import leave_no_trace
from rlcd_core.files import write_atomically
from rlcd_core.policy import DecisionHead, Encoder
from rlcd_core.records import hardware, results_dir, versions

ROWS = 100_000
NAMED = {"department": DEPARTMENT, "escalate": ESCALATE}
THINGS = ("invoice", "login", "server", "export", "refund", "password", "report")
FAULTS = ("is late", "fails", "is wrong", "is gone", "was charged twice", "times out")


def resident() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def text(number: int) -> str:
    """A short text of its own for each number."""
    thing = THINGS[number % len(THINGS)]
    return f"{thing} {number} {FAULTS[number // len(THINGS) % len(FAULTS)]}"


def main(count: int = ROWS) -> None:
    """Score the file; write the record if it has all its rows."""
    head = DecisionHead(Encoder.load())
    # An untrained head says 1/K to everything; this one has something to say.
    torch.nn.init.normal_(head.query, std=0.02, generator=torch.manual_seed(0))
    decider = Decider(leave_no_trace(head))
    memory: dict[int, float] = {}
    writing = bulk._Work._write_part

    def watched(self: Any, number: int, table: Any) -> None:
        writing(self, number, table)
        memory[int(table.column("row")[-1].as_py()) + 1] = resident()

    bulk._Work._write_part = watched  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.jsonl"), Path(folder, "out.parquet")
        with source.open("w") as file:
            for number in range(count):
                file.write(json.dumps({"id": number, "state": text(number)}) + "\n")
        loaded, wall, begun = resident(), time.perf_counter(), time.process_time()
        report = bulk.score_file(decider, NAMED, source, target)
        spent, wall = time.process_time() - begun, time.perf_counter() - wall
        after = resident()
        assert (report.rows, report.errors) == (count, 0)
        seen = 0
        with pq.ParquetFile(target) as output:
            size = target.stat().st_size
            for batch in output.iter_batches(columns=["row", "id"]):
                rows = np.arange(seen, seen + len(batch))
                assert (batch.column("row").to_numpy() == rows).all()
                assert batch.column("id").to_pylist() == [str(n) for n in rows]
                seen += len(batch)
        assert seen == count
    encoded = head.encoder.inner._tokenizer([text(n) for n in range(0, count, 97)])
    # The first part that ends at or after a mark: a slow machine writes shorter ones.
    marks = [count // 10, count // 2, count]
    at = {m: memory[min(end for end in memory if end >= m)] for m in marks}
    found = {
        "setup": {
            "rows": count,
            "distinct_texts": count,
            "questions": len(NAMED),
            "tokens": round(float(np.mean([len(i) for i in encoded["input_ids"]])), 2),
            "policy": "decision head on all-MiniLM-L6-v2, no cached embedding",
        },
        "resident_mib": {
            "loaded": round(loaded, 1),
            **{str(mark): round(value, 1) for mark, value in at.items()},
            "merged": round(after, 1),
            "largest": round(max(memory.values()), 1),
            # At any moment, between parts and while loading too.
            "peak": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        },
        "growth_mib": round(at[marks[-1]] - at[marks[0]], 1),
        "bytes_a_row": round(size / count, 1),
        "cpu_ms_a_row": round(1000 * spent / count, 3),
        "wall_seconds": round(wall, 1),
        "hardware": hardware(),
        "versions": versions(),
    }
    data = json.dumps(found, sort_keys=True, indent=1) + "\n"
    if count == ROWS:
        write_atomically(results_dir() / "score.json", data.encode())
    print(data)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
