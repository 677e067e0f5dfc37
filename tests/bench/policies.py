"""Measure the policies of the chapter on policies; writes ``results/policies.json``.

``OMP_NUM_THREADS=1 python tests/bench/policies.py`` takes about ten minutes on one
thread. Every policy answers the same questions: the first of the TREC test split. Times
are processor time of one thread, so that other work on the machine hardly enters them.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from rlcd_core.arms import ARMS
from rlcd_core.data.build import load_items
from rlcd_core.env import LabelledEnv
from rlcd_core.evaluate import answers_by_order, battery
from rlcd_core.files import write_atomically
from rlcd_core.metrics import ece
from rlcd_core.policy import (
    DecisionHead,
    Encoder,
    LetterPolicy,
    VerbatimPolicy,
    predict,
)
from rlcd_core.records import hardware, results_dir, versions
from rlcd_core.scoring import brier
from rlcd_core.train import TrainConfig, train

QUESTIONS = 60  # answered by every policy
BATTERY = 12  # of them go through the battery
ORDERS = 6  # one rotation per option
TIMED = 10
LABELS = (100, 200, 500, 1000, 2000, 4000)
SHOWN = 2000  # labels of the head that is compared with the language model
SEEDS = 5
VERBATIM = {
    "verbatim_sum": {"length": "sum"},
    "verbatim_tokens": {"length": "tokens"},
    "verbatim_sum_prior": {"length": "sum", "prior": True},
    "verbatim_tokens_prior": {"length": "tokens", "prior": True},
}


def fit_head(
    encoder: Encoder, prepared: Any, labels: np.ndarray, rows: np.ndarray, seed: int
) -> DecisionHead:
    """Train a decision head on the labels of ``rows``: NLL, five epochs."""
    head = DecisionHead(encoder, generator=torch.Generator().manual_seed(seed))
    env = LabelledEnv(np.eye(labels.max() + 1, dtype=int)[labels], seed)
    config = TrainConfig(
        learning_rate=1e-3, outcomes=5 * len(rows), outcomes_per_step=20
    )
    train(head, prepared, rows, env, ARMS["nll"], config, seed)
    return head


def milliseconds(policy: Any, items: list[Any]) -> float:
    """Median processor time of one question, from text to probabilities."""
    predict(policy, policy.prepare(items[:1]))
    taken = []
    for item in items[:TIMED]:
        start = time.process_time()
        predict(policy, policy.prepare([item]))
        taken.append(1000 * (time.process_time() - start))
    return round(statistics.median(taken), 2)


def rounded(values: Any, digits: int = 5) -> Any:
    """Nested lists of rounded numbers."""
    return np.round(np.asarray(values, float), digits).tolist()


def checks(policy: Any, items: list[Any], labels: np.ndarray) -> list[dict[str, Any]]:
    """The battery of a policy as plain records."""
    rng = np.random.default_rng(0)
    found = battery(policy, items, labels, rng=rng, order_count=ORDERS)
    return [asdict(check) | {"passed": check.passed} for check in found]


class Uncached(Encoder):
    """Embeds every text anew: what a question costs that was never seen."""

    def embed(self, texts: Any, **_: Any) -> np.ndarray:
        """(N, dim) embeddings without the cache."""
        table = np.empty((len(texts), self.dim), np.float32)
        ids = self._tokenizer(list(texts), split_special_tokens=True)["input_ids"]
        with torch.inference_mode():
            for row, tokens in enumerate(ids):
                hidden = self._model(torch.tensor([tokens])).last_hidden_state[0]
                table[row] = torch.nn.functional.normalize(hidden.mean(0), dim=0)
        return table


def main() -> None:
    """Measure everything and write the record."""
    train_items, test_items = load_items("trec", "train"), load_items("trec", "test")
    asked = test_items[:QUESTIONS]
    items = [(item.state, item.question) for item in asked]
    labels = np.array([item.label for item in asked])
    few, few_labels = items[:BATTERY], labels[:BATTERY]
    found: dict[str, Any] = {
        "setup": {
            "source": "trec, first rows of the test split",
            "questions": QUESTIONS,
            "orders": ORDERS,
            "timed": TIMED,
            "seeds": SEEDS,
            "head_labels": SHOWN,
            "test_rows": len(test_items),
            "clock": "processor time of one thread, one question at a time",
        },
        "hardware": hardware(),
        "versions": versions(),
        "ids": [item.id for item in asked],
        "labels": labels.tolist(),
        "answers": {},
        "orders": {},
        "ms": {},
        "battery": {},
        "learning": {},
    }

    encoder = Encoder.load()
    every = train_items + test_items
    truth = np.array([item.label for item in every])
    prepared = DecisionHead(encoder).prepare([(i.state, i.question) for i in every])
    test = np.arange(len(train_items), len(every))
    for count in LABELS:
        runs = []
        for seed in range(SEEDS):
            drawn = np.random.default_rng(seed).permutation(len(train_items))[:count]
            head = fit_head(encoder, prepared, truth, drawn, seed)
            p = predict(head, prepared, test, batch_size=1024).astype(np.float64)
            p /= p.sum(1, keepdims=True)
            right = p.argmax(1) == truth[test]
            runs.append(
                {
                    "accuracy": float(right.mean()),
                    "brier": float(brier(p, truth[test]).mean()),
                    "ece": float(ece(p.max(1), right)),
                }
            )
            if count == SHOWN and seed == 0:
                shown = head
        found["learning"][str(count)] = {
            name: rounded([run[name] for run in runs]) for name in runs[0]
        }
        print("head", count, found["learning"][str(count)]["accuracy"], flush=True)
    found["answers"]["head"] = rounded(predict(shown, shown.prepare(items)))
    found["orders"]["head"] = rounded(answers_by_order(shown, items, count=ORDERS))
    found["battery"]["head"] = checks(shown, few, few_labels)
    found["ms"]["head_cached"] = milliseconds(shown, items)
    shown.encoder = Uncached.load()
    found["ms"]["head"] = milliseconds(shown, items)

    letter = LetterPolicy.load()
    orders = np.stack(answers_by_order(letter, items, count=ORDERS))
    found["orders"]["letter"] = rounded(orders)
    found["answers"]["letter"] = rounded(orders[:, 0])
    whole = letter.prepare(items)
    mass = [letter.label_mass(whole.take([row])) for row in range(len(items))]
    found["label_mass"] = rounded(torch.cat(mass))
    found["ms"]["letter"] = milliseconds(letter, items)
    print("letter", found["ms"]["letter"], flush=True)
    found["battery"]["letter"] = checks(letter, few, few_labels)
    for name, how in VERBATIM.items():
        policy = VerbatimPolicy(letter.model, letter.encoder.tokenizer, **how)
        p = predict(policy, policy.prepare(items), batch_size=12)
        found["answers"][name] = rounded(p)
        turned = answers_by_order(policy, few, count=2, batch_size=12)
        found["orders"][name] = rounded(turned)
        found["ms"][name] = milliseconds(policy, items)
        print(name, found["ms"][name], flush=True)

    text = json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n"
    write_atomically(results_dir() / "policies.json", text.encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
