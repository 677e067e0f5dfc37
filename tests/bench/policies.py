"""Measure the policies of the chapter on policies; writes ``results/policies.json``.

``OMP_NUM_THREADS=1 python tests/bench/policies.py [head] [letter] [verbatim]`` takes
about five minutes on one thread; a part that is not named keeps its numbers. Every
policy answers the same questions: the first of the TREC test split. Times are processor
time of one thread, so that other work on the machine hardly enters them.
"""

from __future__ import annotations

import json
import statistics
import sys
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

QUESTIONS = 40  # answered by every policy
BATTERY = 8  # of them go through the battery
ORDERS = 6  # one rotation per option
TIMED = 5
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


class NewStates(Encoder):
    """Embeds states anew each time: what a text costs that was never seen.

    Question and options are the same for all texts and are embedded once.
    """

    def keep(self, texts: list[str]) -> None:
        """Embed the texts that come back with every state."""
        self._kept = dict(zip(texts, super().embed(texts), strict=True))

    def embed(self, texts: Any, **_: Any) -> np.ndarray:
        """(N, dim) embeddings; only kept texts come from memory."""
        return np.stack(
            [self._kept[t] if t in self._kept else self._fresh(t) for t in texts]
        )

    def _fresh(self, text: str) -> np.ndarray:
        tokens = self._tokenizer([text], split_special_tokens=True)["input_ids"]
        with torch.inference_mode():
            hidden = self._model(torch.tensor(tokens)).last_hidden_state[0]
        return torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy()


def measure_head(items: list[Any], labels: np.ndarray) -> dict[str, Any]:
    """Learning curve on the whole test split, and one head on the common questions."""
    train_items, test_items = load_items("trec", "train"), load_items("trec", "test")
    encoder = Encoder.load()
    every = train_items + test_items
    truth = np.array([item.label for item in every])
    prepared = DecisionHead(encoder).prepare([(i.state, i.question) for i in every])
    test = np.arange(len(train_items), len(every))
    learning = {}
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
        learning[str(count)] = {
            name: rounded([run[name] for run in runs]) for name in runs[0]
        }
    found = {
        "learning": learning,
        "answers": {"head": rounded(predict(shown, shown.prepare(items)))},
        "orders": {"head": rounded(answers_by_order(shown, items, count=ORDERS))},
        "battery": {"head": checks(shown, items[:BATTERY], labels[:BATTERY])},
        "ms": {"head_cached": milliseconds(shown, items)},
    }
    shown.encoder = NewStates.load()
    question = items[0][1]
    shown.encoder.keep([question.text, *question.options])
    found["ms"]["head"] = milliseconds(shown, items)
    return found


def measure_letter(items: list[Any], labels: np.ndarray) -> dict[str, Any]:
    """The letter readout in every order, its label mass, time and battery."""
    letter = LetterPolicy.load()
    orders = np.stack(answers_by_order(letter, items, count=ORDERS))
    whole = letter.prepare(items)
    mass = [letter.label_mass(whole.take([row])) for row in range(len(items))]
    return {
        "orders": {"letter": rounded(orders)},
        "answers": {"letter": rounded(orders[:, 0])},
        "label_mass": rounded(torch.cat(mass)),
        "ms": {"letter": milliseconds(letter, items)},
        "battery": {"letter": checks(letter, items[:BATTERY], labels[:BATTERY])},
    }


def measure_verbatim(items: list[Any], _: np.ndarray) -> dict[str, Any]:
    """Verbatim scoring with and without the two corrections."""
    letter = LetterPolicy.load()
    found: dict[str, Any] = {"answers": {}, "orders": {}, "ms": {}}
    for name, how in VERBATIM.items():
        policy = VerbatimPolicy(letter.model, letter.encoder.tokenizer, **how)
        p = predict(policy, policy.prepare(items), batch_size=8)
        found["answers"][name] = rounded(p)
        # Two orders of a few questions: the prompt does not list the options.
        turned = answers_by_order(policy, items[:4], count=2, batch_size=8)
        found["orders"][name] = rounded(turned)
        found["ms"][name] = milliseconds(policy, items)
    return found


PARTS = {
    "head": measure_head,
    "letter": measure_letter,
    "verbatim": measure_verbatim,
}


def main(parts: list[str]) -> None:
    """Measure the parts and write them into the record."""
    asked = load_items("trec", "test")[:QUESTIONS]
    items = [(item.state, item.question) for item in asked]
    labels = np.array([item.label for item in asked])
    measured = [PARTS[part](items, labels) for part in parts]
    path = results_dir() / "policies.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found |= {
        "setup": {
            "source": "trec, first rows of the test split",
            "questions": QUESTIONS,
            "orders": ORDERS,
            "timed": TIMED,
            "seeds": SEEDS,
            "head_labels": SHOWN,
            "test_rows": len(load_items("trec", "test")),
            "clock": "processor time of one thread, one question at a time",
        },
        "hardware": hardware(),
        "versions": versions(),
        "ids": [item.id for item in asked],
        "labels": labels.tolist(),
    }
    for part in measured:
        for key, value in part.items():
            if isinstance(value, dict):
                found[key] = found.get(key, {}) | value
            else:
                found[key] = value
    text = json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n"
    write_atomically(path, text.encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or list(PARTS))
