"""Measure the cost formula on SmolLM2-135M; writes ``results/cost.json``.

``OMP_NUM_THREADS=1 python tests/bench/cost.py [time] [memory]`` takes some minutes on
one thread; a part that is not named keeps its numbers. One size sets the share of the
matrix peak that training reaches; the others are predicted from it. Times are processor
time of one thread, so that other work on the machine hardly enters them; the smallest
of some repetitions is taken. Memory is the largest anonymous resident size of a process
that does nothing else, minus what it had before the model: files that are mapped, such
as libraries, do not count, because the system drops and reads their pages as it likes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from rlcd_core.data.build import load_items
from rlcd_core.env import RaterEnv
from rlcd_core.extra.cost import SMOLLM2_135M, Shape
from rlcd_core.files import write_atomically
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.records import hardware, results_dir, versions
from rlcd_core.tasks import one_hot_counts
from rlcd_core.train import Arm, TrainConfig, train

# Prompts a step and times that the state is repeated: more prompts, longer prompts.
SIZES = {"base": (4, 1), "more": (8, 1), "longer": (4, 8), "both": (6, 4)}
REPEATS = 3


def resident() -> int:
    """Anonymous resident bytes of this process now."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Highest(threading.Thread):
    """Looks at `resident` every two milliseconds and keeps the largest."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes, self.done = 0, threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        while not self.done.wait(0.002):
            self.bytes = max(self.bytes, resident())


def matrix_peak() -> float:
    """Operations a second of float32 products as a layer has them."""
    a, b = torch.randn(512, 1024), torch.randn(1024, 1024)
    best = np.inf
    for _ in range(8):
        start = time.process_time()
        for _ in range(20):
            a @ b
        best = min(best, time.process_time() - start)
    return 20 * 2 * 512 * 1024 * 1024 / best


def copy_rate() -> float:
    """Bytes a second that an addition in place moves, reads and writes together."""
    a, b = torch.zeros(2**26), torch.ones(2**26)
    best = np.inf
    for _ in range(5):
        start = time.process_time()
        a.add_(b)
        best = min(best, time.process_time() - start)
    return 3 * 4 * 2**26 / best


def steps(prompts: int, times: int, repeats: int, count: int = 1) -> dict[str, Any]:
    """Train `repeats` runs of `count` steps of one size in this process."""
    torch.set_num_threads(1)
    rows = load_items("trec", "val")[:prompts]
    items = [(" ".join([item.state] * times), item.question) for item in rows]
    before, highest = resident(), Highest()
    policy = LetterPolicy.load()
    shape = Shape.of(policy.model.config)
    assert shape == SMOLLM2_135M
    assert shape.parameters == sum(p.numel() for p in policy.parameters())
    prepared = policy.prepare(items)
    tokens = prepared.take(np.arange(prompts)).inputs["ids"].shape[1]
    highest.start()
    seconds = []
    for repeat in range(repeats):
        start = time.process_time()
        train(
            policy,
            prepared,
            np.arange(prompts),
            RaterEnv(one_hot_counts(rows), repeat),
            Arm("rlcd", "RLCD", "rlcd"),
            TrainConfig(
                learning_rate=1e-6, outcomes=count * prompts, outcomes_per_step=prompts
            ),
            seed=repeat,
        )
        seconds.append(time.process_time() - start)
    highest.done.set()
    highest.join()
    return {
        "prompts": prompts,
        "tokens": tokens,
        "seconds": min(seconds),
        "bytes": highest.bytes - before,
    }


def measure(part: str, prompts: int, times: int) -> dict[str, Any]:
    """One part of one size, in this process."""
    if part == "memory":
        # Two steps, so that the moments are there while a backward pass runs.
        found = steps(prompts, times, 1, 2)
        del found["seconds"]
        return found
    peak, copy = matrix_peak(), copy_rate()
    found = steps(prompts, times, REPEATS)
    del found["bytes"]
    return found | {"peak": peak, "copy": copy}


def main(parts: list[str]) -> None:
    """Measure every size in a process of its own, and write the result."""
    path = results_dir() / "cost.json"
    known = json.loads(path.read_text())["measured"] if path.exists() else {}
    for name, (prompts, times) in SIZES.items():
        for part in parts:
            command = [sys.executable, __file__, part, str(prompts), str(times)]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            print(name, part, found, flush=True)
            known[name] = known.get(name, {}) | found
            result = {
                "peak": max(row.get("peak", 0.0) for row in known.values()),
                "copy": max(row.get("copy", 0.0) for row in known.values()),
                "measured": known,
                "hardware": hardware(),
                "versions": versions(),
                "shape": asdict(SMOLLM2_135M),
            }
            text = json.dumps(result, indent=1, sort_keys=True) + "\n"
            write_atomically(path, text.encode())


if __name__ == "__main__":
    if len(sys.argv) == 4:
        chosen, *sizes = sys.argv[1:]
        print(json.dumps(measure(chosen, *map(int, sizes))))
    else:
        main(sys.argv[1:] or ["time", "memory"])
