"""Measure what leaks through a split; writes ``results/leaks.json``.

``OMP_NUM_THREADS=1 python tests/bench/leaks.py`` takes about five minutes on one
thread. The packaged TREC file repeats most questions. Two policies, a decision head and
the nearest neighbour, are trained and tested twice per seed: on a split of rows, and on
a split of groups, in which no question stands on two sides. Then a head learns from
generated tickets and meets the probe in phrases that it has seen and in held-out ones.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from rlcd_core.arms import ARMS
from rlcd_core.calibrate import fit_temperature
from rlcd_core.data.convert import read_packaged
from rlcd_core.data.manifest import load_manifest
from rlcd_core.data.split import link_groups, near_duplicates, split_by_group
from rlcd_core.data.triage import probe, probe_summary, tickets
from rlcd_core.env import LabelledEnv
from rlcd_core.files import write_atomically
from rlcd_core.metrics import ece
from rlcd_core.policy import DecisionHead, Encoder, predict
from rlcd_core.records import hardware, results_dir, versions
from rlcd_core.scoring import brier
from rlcd_core.train import TrainConfig, train

SEEDS = 5
EPOCHS = 15
BATCH = 64
FRACTIONS = (0.6, 0.2, 0.2)
TICKETS, LEARNT, PROBES = 2400, 1600, 200


def scores(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Accuracy, Brier score and ECE, rounded for the record."""
    p = p.astype(np.float64)
    p /= p.sum(1, keepdims=True)
    right = p.argmax(1) == y
    found = {
        "accuracy": right.mean(),
        "brier": brier(p, y).mean(),
        "ece": ece(p.max(1), right),
    }
    return {name: round(float(value), 5) for name, value in found.items()}


def neighbour(vectors: np.ndarray, y: np.ndarray, known: Any, asked: Any) -> np.ndarray:
    """Label of the nearest known row of each asked row."""
    parts = np.array_split(asked, 8)
    close = [(vectors[part] @ vectors[known].T).argmax(1) for part in parts]
    return y[known][np.concatenate(close)]


def phrases() -> list[dict[str, Any]]:
    """Probe a head on phrases of its training tickets and on held-out ones."""
    pool = tickets(TICKETS, np.random.default_rng(0), "seen")
    probes = {
        (kind, wording): items
        for wording, seed in (("seen", 1), ("held_out", 2))
        for kind, items in probe(PROBES, np.random.default_rng(seed), wording).items()
    }
    encoder = Encoder.load()
    head = DecisionHead(encoder)
    asks = [(item.state, item.question) for item in pool]
    prepared = head.prepare(asks)
    counts = np.zeros((len(pool), 4), dtype=int)
    counts[np.arange(len(pool)), [item.label for item in pool]] = 1
    config = TrainConfig(learning_rate=1e-3, outcomes=5 * LEARNT, outcomes_per_step=20)
    runs = []
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        head = DecisionHead(encoder, generator=generator)
        drawn = np.random.default_rng(seed).permutation(len(pool))[:LEARNT]
        env = LabelledEnv(counts, seed)
        train(head, prepared, drawn, env, ARMS["nll"], config, seed)
        for (kind, wording), items in probes.items():
            shown = head.prepare([(item.state, item.question) for item in items])
            p = predict(head, shown, batch_size=1024).astype(np.float64)
            told = probe_summary(p / p.sum(1, keepdims=True), items)
            told = {name: round(value, 5) for name, value in told.items()}
            runs.append({"seed": seed, "kind": kind, "wording": wording} | told)
        print(seed, runs[-1], flush=True)
    return runs


def splits() -> tuple[list[dict[str, Any]], int]:
    """Train on both splits of TREC for every seed; the runs and the rows."""
    items = read_packaged(load_manifest("trec"))["all"]
    texts = [item.state for item in items]
    y = np.array([item.label for item in items])
    pairs = near_duplicates(texts)
    groups = np.array(link_groups([item.group for item in items], pairs))
    encoder = Encoder.load()
    vectors = encoder.embed(texts)
    asks = [(item.state, item.question) for item in items]
    prepared = DecisionHead(encoder).prepare(asks)
    keys = {"rows": np.array([item.id for item in items]), "groups": groups}
    runs = []
    for seed in range(SEEDS):
        for split, names in keys.items():
            part = split_by_group(names.tolist(), FRACTIONS, seed)
            known, held, asked = (np.flatnonzero(part == k) for k in range(3))
            leaked = np.isin(groups[asked], groups[known])
            near = neighbour(vectors, y, known, asked) == y[asked]
            generator = torch.Generator().manual_seed(seed)
            head = DecisionHead(encoder, generator=generator)
            curve: list[dict[str, Any]] = []

            def look(
                policy: Any,
                asked: Any = asked,
                leaked: Any = leaked,
                curve: Any = curve,
            ) -> dict[str, float]:
                p = predict(policy, prepared, asked, batch_size=4096)
                row: dict[str, Any] = {"all": scores(p, y[asked])}
                if leaked.any():
                    row["leaked"] = scores(p[leaked], y[asked][leaked])
                    row["new"] = scores(p[~leaked], y[asked][~leaked])
                curve.append(row)
                return row["all"]

            per_epoch = len(known) // BATCH
            config = TrainConfig(
                learning_rate=1e-3,
                outcomes=EPOCHS * per_epoch * BATCH,
                outcomes_per_step=BATCH,
                eval_every=per_epoch,
                stop_drop=1.0,
            )
            env = LabelledEnv(np.eye(6, dtype=int)[y], seed)
            train(head, prepared, known, env, ARMS["nll"], config, seed, evaluate=look)
            log_p = np.log(predict(head, prepared, held, batch_size=4096) + 1e-30)
            runs.append(
                {
                    "seed": seed,
                    "split": split,
                    "train": len(known),
                    "test": len(asked),
                    "leaked": round(float(leaked.mean()), 5),
                    "neighbour": {
                        "all": round(float(near.mean()), 5),
                        "leaked": round(float(near[leaked].mean()), 5)
                        if leaked.any()
                        else None,
                        "new": round(float(near[~leaked].mean()), 5),
                    },
                    "temperature": round(fit_temperature(log_p, y[held]).value, 4),
                    "curve": curve,
                }
            )
            print(seed, split, near.mean(), curve[-1]["all"], flush=True)
    return runs, len(y)


def main() -> None:
    """Measure both and write the record."""
    runs, rows = splits()
    found = {
        "setup": {
            "seeds": SEEDS,
            "epochs": EPOCHS,
            "batch": BATCH,
            "rows": rows,
            "tickets": LEARNT,
            "probes": PROBES,
        },
        "hardware": hardware(),
        "versions": versions(),
        "runs": runs,
        "phrases": phrases(),
    }
    text = json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n"
    write_atomically(results_dir() / "leaks.json", text.encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
