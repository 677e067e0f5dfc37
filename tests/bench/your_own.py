"""Measure what a log without labels costs; writes ``results/your_own.json``.

``OMP_NUM_THREADS=1 python tests/bench/your_own.py`` takes about a minute once the texts
are embedded. The questions of TREC and the mails of SpamAssassin (an optional source:
``rlcd data build spam_assassin``) are decided by an old policy, a head that learned
from a few labels and explores a little. From the same decisions a new one learns

- from the labels, which the old policy's users never wrote down,
- from the outcomes and their propensities,
- from the outcomes alone,

exactly as ``rlcd fit`` does, with its split, temperature and gate; the labels, which a
log does not hold, then judge all of them on the same test rows.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from rlcd_core.calibrate import fit_verdict_temperature
from rlcd_core.data.build import load_items
from rlcd_core.data.split import link_groups, near_duplicates, normalise, stable_order
from rlcd_core.env import LabelEnv, record_log
from rlcd_core.extra.fit import (
    PARTS,
    Cases,
    FitConfig,
    judge,
    learn,
    log_probabilities,
    split_cases,
)
from rlcd_core.extra.fit_page import reliability_bins
from rlcd_core.files import write_atomically
from rlcd_core.gates import learn_then_test
from rlcd_core.metrics import ece
from rlcd_core.policy import DecisionHead, Encoder
from rlcd_core.records import hardware, results_dir, versions
from rlcd_core.scoring import brier

SEEDS = 8
SOURCES = {"trec": ("train", 3000, 0.1), "spam_assassin": ("test", 1000, 0.05)}
OLD_LABELS, OLD_EPOCHS, EXPLORE = 100, 20, 0.2
ARMS = {
    "labels": ("labels", "verdict_nll"),
    "propensities, SNIPS": ("propensities", "rlcd_snips"),
    "propensities, IPS": ("propensities", "rlcd_ips"),
    "outcomes, verdict NLL": ("outcomes", "verdict_nll"),
    "outcomes, RLCD": ("outcomes", "rlcd"),
}


def as_cases(items: list[Any], groups: list[str], log: Any, kind: str) -> Cases:
    """The decisions as a log of one kind would hold them."""
    truth = np.array([item.label for item in items])
    rows = np.arange(len(items))
    actions, outcomes, chances = (column[:, 0] for column in log.logged(rows))
    two = np.array([len(item.question.options) == 2 for item in items])
    told = np.full(len(items), kind == "labels")
    return Cases(
        items=[(item.state, item.question) for item in items],
        actions=truth if kind == "labels" else actions,
        outcomes=np.ones(len(items)) if kind == "labels" else outcomes,
        labelled=told,
        # Of two options the outcome of either tells the right one.
        truth=np.where(told | two, truth, -1),
        groups=groups,
        sources=["log"] * len(items),
        propensities=chances if kind == "propensities" else None,
        times=None,
        parts=None,
    )


def old_policy(encoder: Encoder, items: list[Any], seed: int) -> DecisionHead:
    """A head that learned from a few labels."""
    truth = np.array([item.label for item in items])
    log = record_log(LabelEnv(truth, len(items[0].question.options)), _one(truth), 0)
    cases = as_cases(items, [item.id for item in items], log, "labels")
    head = DecisionHead(encoder, generator=torch.Generator().manual_seed(seed))
    config = FitConfig(epochs=OLD_EPOCHS, batch=20, seed=seed)
    every = np.arange(len(items))
    learn(head, head.prepare(cases.items), every, cases, config)
    return head.eval()


def _one(truth: np.ndarray) -> np.ndarray:
    return np.eye(truth.max() + 1)[truth]


def runs(source: str) -> list[dict[str, Any]]:
    """Every arm of one source, seed by seed."""
    split, size, error = SOURCES[source]
    # Mails are cut: their first 128 tokens take a third of the time of 256.
    encoder = Encoder.load(max_tokens=128, truncate=True)
    by_id = {item.id: item for item in load_items(source, split)}
    found = []
    for seed in range(SEEDS):
        first = stable_order(by_id, 0)[:size]
        ids = stable_order(first, seed)
        known = [by_id[key] for key in ids[:OLD_LABELS]]
        items = [by_id[key] for key in ids[OLD_LABELS:]]
        texts = [item.state for item in items]
        groups = link_groups([normalise(t) for t in texts], near_duplicates(texts))
        truth = np.array([item.label for item in items])
        old = old_policy(encoder, known, seed)
        prepared = old.prepare([(item.state, item.question) for item in items])
        every = np.arange(len(items))
        width = len(items[0].question.options)
        mu = np.exp(log_probabilities(old, prepared, every))
        mu = (1 - EXPLORE) * mu / mu.sum(1, keepdims=True) + EXPLORE / width
        log = record_log(LabelEnv(truth, width), mu, seed)
        for arm, (kind, objective) in ARMS.items():
            cases = as_cases(items, groups, log, kind)
            part, _ = split_cases(cases, seed)
            rows = {name: np.flatnonzero(part == k) for k, name in enumerate(PARTS)}
            head = DecisionHead(encoder, generator=torch.Generator().manual_seed(seed))
            config = FitConfig(objective=objective, error=error, seed=seed)
            learn(head, prepared, rows["train"], cases, config)
            head.eval()
            at = rows["temperature"]
            cooled = fit_verdict_temperature(
                log_probabilities(head, prepared, at),
                cases.actions[at],
                cases.outcomes[at],
            )
            p = {
                name: cooled.apply(log_probabilities(head, prepared, rows[name]))
                for name in ("gate", "test")
            }
            gate = judge(p["gate"], rows["gate"], cases)
            gate = learn_then_test(gate.confidence, gate.right, error)
            y, stated = truth[rows["test"]], p["test"].max(1)
            right = (p["test"].argmax(1) == y).astype(float)
            acts = gate.gate.acts(stated)
            row = {
                "accuracy": right.mean(),
                "brier": brier(p["test"], y).mean(),
                "ece": ece(stated, right),
                "gap": (stated - right).mean(),
                "share": acts.mean(),
                "wrong": (1 - right[acts]).sum(),
                "acts": acts.sum(),
                "judged": gate.n,
                "temperature": cooled.value,
            }
            rounded = {name: round(float(value), 5) for name, value in row.items()}
            if seed == 0:
                rounded["bins"] = [
                    {name: round(value, 4) for name, value in b.items()}
                    for b in reliability_bins(stated, right)
                ]
            found.append({"arm": arm, "seed": seed, **rounded})
        old_p = mu[rows["test"]]
        found.append(
            {
                "arm": "old policy",
                "seed": seed,
                "accuracy": round(float((old_p.argmax(1) == y).mean()), 5),
                "outcomes right": round(float(cases.outcomes.mean()), 5),
                "least propensity": round(float(log.logged(every)[2].min()), 5),
            }
        )
        print(source, seed, flush=True)
    return found


def main() -> None:
    """Run both sources and write the results."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "sizes": {
            "seeds": SEEDS,
            "old labels": OLD_LABELS,
            "explore": EXPLORE,
            "rows": {name: size - OLD_LABELS for name, (_, size, _) in SOURCES.items()},
            "error": {name: error for name, (*_, error) in SOURCES.items()},
        },
        "runs": {source: runs(source) for source in SOURCES},
        "versions": versions(),
        "hardware": hardware(),
    }
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    write_atomically(results_dir() / "your_own.json", text.encode())


if __name__ == "__main__":
    main()
