"""Measure the policies of the chapter on policies; writes ``results/policies.json``.

``OMP_NUM_THREADS=1 python tests/bench/policies.py [PART ...]`` with parts of `PARTS`;
one that is not named keeps its numbers. All of them take about a quarter of an hour on
one thread. Every policy answers the same questions: the first of the TREC test split;
the many-label part has two tasks of its own. Times are processor time of one thread, so
that other work on the machine hardly enters them.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from rlcd_core.arms import ARMS
from rlcd_core.data.build import load_items
from rlcd_core.data.manifest import fetch
from rlcd_core.data.nota import shuffle_options
from rlcd_core.data.triage import tickets
from rlcd_core.env import LabelledEnv
from rlcd_core.evaluate import answers_by_order, battery, known_posterior
from rlcd_core.files import write_atomically
from rlcd_core.metrics import ece
from rlcd_core.policy import (
    DecisionHead,
    Encoder,
    LetterPolicy,
    SpanHead,
    StatedPolicy,
    VerbatimPolicy,
    predict,
)
from rlcd_core.policy.adapt import lora, merge, trained
from rlcd_core.policy.stated import stated_confidence
from rlcd_core.records import hardware, results_dir, versions
from rlcd_core.schema import Choice
from rlcd_core.scoring import brier
from rlcd_core.train import TrainConfig, train

QUESTIONS = 40  # answered by every policy
BATTERY = 8  # of them go through the battery
ORDERS = 6  # one rotation per option
TIMED = 5
LABELS = (100, 200, 500, 1000, 2000, 4000)
SHOWN = 2000  # labels of the head that is compared with the language model
SEEDS = 5
MANY = 40  # questions with many options
MANY_TRAIN, MANY_TEST = 1000, 300
TICKETS = 1000  # of which a head learns the known posterior
KNOWN = 20  # tickets of each kind that the language model is asked
# One pass, nothing tuned: a usual rate for such a change.
LORA_LABELS, LORA_RANK, LORA_RATE, LORA_BATCH = 960, 8, 5e-4, 8
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
    return {
        "learning": learning,
        "answers": {"head": rounded(predict(shown, shown.prepare(items)))},
        "orders": {"head": rounded(answers_by_order(shown, items, count=ORDERS))},
    }


def measure_letter(items: list[Any], labels: np.ndarray) -> dict[str, Any]:
    """The letter readout in every order, its label mass, time and battery."""
    letter = LetterPolicy.load()
    orders = np.stack(answers_by_order(letter, items, count=ORDERS))
    return {
        "orders": {"letter": rounded(orders)},
        "answers": {"letter": rounded(orders[:, 0])},
        "label_mass": rounded(label_mass(letter, items)),
    }


def label_mass(letter: LetterPolicy, items: list[Any]) -> np.ndarray:
    """What the vocabulary gives to the labels, (N,)."""
    whole = letter.prepare(items)
    mass = [letter.label_mass(whole.take([row])) for row in range(len(items))]
    return torch.cat(mass).numpy()


def measure_verbatim(items: list[Any], _: np.ndarray) -> dict[str, Any]:
    """Verbatim scoring with and without the two corrections."""
    letter = LetterPolicy.load()
    found: dict[str, Any] = {"answers": {}, "orders": {}}
    for name, how in VERBATIM.items():
        policy = VerbatimPolicy(letter.model, letter.encoder.tokenizer, **how)
        p = predict(policy, policy.prepare(items), batch_size=8)
        found["answers"][name] = rounded(p)
        # Two orders of a few questions: the prompt does not list the options.
        turned = answers_by_order(policy, items[:4], count=2, batch_size=8)
        found["orders"][name] = rounded(turned)
    return found


def trec(count: int) -> tuple[list[Any], np.ndarray, list[Any], np.ndarray]:
    """TREC: the labelled items of `SHOWN`'s first seed, and all test items."""
    train_items, test_items = load_items("trec", "train"), load_items("trec", "test")
    drawn = np.random.default_rng(0).permutation(len(train_items))[:count]
    rows = [train_items[row] for row in drawn]
    return (
        [(i.state, i.question) for i in rows],
        np.array([i.label for i in rows]),
        [(i.state, i.question) for i in test_items],
        np.array([i.label for i in test_items]),
    )


def fit(
    policy: Any,
    items: list[Any],
    labels: np.ndarray,
    rate: float,
    steps: int,
    size: int,
) -> Any:
    """Train a policy on the labels of all items by NLL; returns it."""
    env = LabelledEnv(np.eye(labels.max() + 1, dtype=int)[labels], 0)
    config = TrainConfig(
        learning_rate=rate, outcomes=steps * size, outcomes_per_step=size
    )
    rows = np.arange(len(items))
    train(policy, policy.prepare(items), rows, env, ARMS["nll"], config, 0)
    return policy


def scores(policy: Any, items: list[Any], labels: np.ndarray) -> dict[str, Any]:
    """Accuracy, Brier score and ECE on all items, and how many they are."""
    p = predict(policy, policy.prepare(items), batch_size=64).astype(np.float64)
    p /= p.sum(1, keepdims=True)
    right = p.argmax(1) == labels
    found = [right.mean(), brier(p, labels).mean(), ece(p.max(1), right)]
    return dict(zip(("accuracy", "brier", "ece"), rounded(found), strict=True)) | {
        "right": int(right.sum()),
        "n": len(labels),
    }


def measure_spans(items: list[Any], labels: np.ndarray) -> dict[str, Any]:
    """The head on trained spans: a frozen head first, then two epochs of both."""
    known, truth, test, test_truth = trec(SHOWN)
    head = fit(DecisionHead(Encoder.load()), known, truth, 1e-3, SHOWN // 4, 20)
    spans = SpanHead.load()
    spans.load_state_dict(head.state_dict(), strict=False)
    fit(spans, known, truth, 1e-4, SHOWN // 10, 20)
    return {
        "answers": {"spans": rounded(predict(spans, spans.prepare(items)))},
        "orders": {"spans": rounded(answers_by_order(spans, items[:8], count=2))},
        "battery": {"spans": checks(spans, items[:BATTERY], labels[:BATTERY])},
        "spans": {
            "trained": trained(spans),
            "frozen": scores(head, test, test_truth),
            "both": scores(spans, test, test_truth),
        },
    }


def measure_lora(items: list[Any], labels: np.ndarray) -> dict[str, Any]:
    """Letters after one pass over labels with a low-rank change; orders drawn anew."""
    rows = load_items("trec", "train")
    drawn = np.random.default_rng(0).permutation(len(rows))[:LORA_LABELS]
    rng = np.random.default_rng(1)
    shown = [shuffle_options(rows[row], rng) for row in drawn]
    letter = lora(LetterPolicy.load(), LORA_RANK)
    share = trained(letter)
    fit(
        letter,
        [(item.state, item.question) for item in shown],
        np.array([item.label for item in shown]),
        LORA_RATE,
        LORA_LABELS // LORA_BATCH,
        LORA_BATCH,
    )
    merge(letter)
    every_order = np.stack(answers_by_order(letter, items, count=ORDERS))
    return {
        "answers": {"lora": rounded(every_order[:, 0])},
        "orders": {"lora": rounded(every_order)},
        "battery": {"lora": checks(letter, items[:BATTERY], labels[:BATTERY])},
        "lora": {
            "labels": LORA_LABELS,
            "rank": LORA_RANK,
            "rate": LORA_RATE,
            "batch": LORA_BATCH,
            "trained": share,
            "label_mass": rounded(label_mass(letter, items).mean()),
        },
    }


def measure_stated(items: list[Any], _: np.ndarray) -> dict[str, Any]:
    """Choice and stated confidence of the untrained language model."""
    stated = StatedPolicy(LetterPolicy.load())
    prepared = stated.prepare(items)
    said, choices = [], []
    for row in range(len(items)):
        with torch.inference_mode():
            pairs = stated.log_probs(prepared.take([row]))
        choice = pairs.unflatten(-1, (-1, 10)).logsumexp(-1).argmax(-1)
        said.append(float(stated_confidence(pairs)[0, choice[0]]))
        choices.append(int(choice[0]))
    return {
        "stated": {"choice": choices, "confidence": rounded(said)},
    }


def nouns(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Nouns of WordNet with the definition of the first sense listed under them."""
    found: dict[str, str] = {}
    for line in (fetch("wordnet") / "data.noun").read_text("utf-8").split("\n"):
        if not line or line.startswith("  "):
            continue
        word = line.split(" ", 5)[4]
        gloss = line.split(" | ", 1)[1].split('; "')[0].strip()
        if re.fullmatch("[a-z]{4,10}", word) and word not in gloss and len(gloss) > 30:
            found.setdefault(word, gloss)
    words = sorted(found)
    drawn = np.random.default_rng(seed).permutation(len(words))[:count]
    return [(words[i], found[words[i]]) for i in drawn]


def definitions(
    pairs: list[tuple[str, str]], seed: int, shown: int = 151
) -> tuple[list[Any], np.ndarray]:
    """Each definition with its word among others of the same list, in random order."""
    rng = np.random.default_rng(seed)
    items, labels = [], []
    for row, (_, gloss) in enumerate(pairs):
        others = rng.permutation(np.delete(np.arange(len(pairs)), row))[: shown - 1]
        place = int(rng.integers(shown))
        listed = [pairs[i][0] for i in np.insert(others, place, row)]
        items.append((gloss, Choice("Which word is defined?", listed)))
        labels.append(place)
    return items, np.array(labels)


def shuffled(rows: list[Any], seed: int) -> tuple[list[Any], np.ndarray]:
    """Items with their options in random order, so that a place tells nothing."""
    rng = np.random.default_rng(seed)
    items, labels = [], []
    for item in rows:
        order = rng.permutation(len(item.question.options)).tolist()
        options = [item.question.options[i] for i in order]
        items.append((item.state, Choice(item.question.text, options)))
        labels.append(order.index(item.label))
    return items, np.array(labels)


def measure_many(*_: Any) -> dict[str, Any]:
    """More options than letters of the alphabet, for the letters and for the head."""
    fine, fine_test = load_items("trec_fine", "train"), load_items("trec_fine", "test")
    words = nouns(MANY_TRAIN + MANY_TEST)
    tasks = {
        "trec_fine": (shuffled(fine[:MANY_TRAIN], 1), shuffled(fine_test, 2)),
        "wordnet": (
            definitions(words[:MANY_TRAIN], 1),
            definitions(words[MANY_TRAIN:], 2),
        ),
    }
    letter, encoder = LetterPolicy.load(), Encoder.load()
    found = {}
    for name, ((known, truth), (test, test_truth)) in tasks.items():
        head = fit(DecisionHead(encoder), known, truth, 1e-3, MANY_TRAIN // 4, 20)
        asked, right = test[:MANY], test_truth[:MANY]
        rows = letter.prepare(asked)
        p = predict(letter, rows, batch_size=1)
        by_head = predict(head, head.prepare(asked))
        found[name] = {
            "options": len(asked[0][1].options),
            "tokens": int(rows.take(range(MANY)).inputs["lengths"].max()),
            "n": MANY,
            "label": right.tolist(),
            "letter": p.argmax(1).tolist(),
            "letter_p": rounded(p[np.arange(MANY), right]),
            "letter_confidence": rounded(p.max(1)),
            "head": by_head.argmax(1).tolist(),
            "head_all": scores(head, test, test_truth),
            "head_labels": len(known),
            "ms": {
                "letter": milliseconds(letter, asked),
                "head_cached": milliseconds(head, asked),
            },
        }
    return {"many": found}


def measure_known(*_: Any) -> dict[str, Any]:
    """The known posterior: the untrained letters, and a head trained on tickets."""
    drawn = tickets(TICKETS, np.random.default_rng(7))
    items = [(ticket.state, ticket.question) for ticket in drawn]
    truth = np.array([ticket.label for ticket in drawn])
    head = fit(DecisionHead(Encoder.load()), items, truth, 1e-3, TICKETS // 4, 20)
    letter = known_posterior(LetterPolicy.load(), KNOWN, batch_size=8)
    found = {"head": known_posterior(head, 100), "letter": letter}
    known = {n: [asdict(c) for c in told] for n, told in found.items()}
    return {"known": known, "tickets": TICKETS}


def measure_battery(items: list[Any], labels: np.ndarray) -> dict[str, Any]:
    """The battery on a few questions: the head with `SHOWN` labels, and the letters."""
    known, truth, _, _ = trec(SHOWN)
    head = fit(DecisionHead(Encoder.load()), known, truth, 1e-3, SHOWN // 4, 20)
    told = {
        name: checks(policy, items[:BATTERY], labels[:BATTERY])
        for name, policy in (("head", head), ("letter", LetterPolicy.load()))
    }
    return {"battery": told}


def measure_times(items: list[Any], _: np.ndarray) -> dict[str, Any]:
    """Processor time of each policy, one after the other in one sitting.

    Weights do not matter for it, so that nothing here is trained.
    """
    letter = LetterPolicy.load()
    found = {"letter": milliseconds(letter, items)}
    found["stated"] = milliseconds(StatedPolicy(letter), items)
    for name, how in VERBATIM.items():
        policy = VerbatimPolicy(letter.model, letter.encoder.tokenizer, **how)
        found[name] = milliseconds(policy, items)
    found["spans"] = milliseconds(SpanHead.load(), items)
    head = DecisionHead(Encoder.load())
    head.prepare(items)  # now every text is in the cache
    found["head_cached"] = milliseconds(head, items)
    head.encoder = NewStates.load()
    head.encoder.keep([items[0][1].text, *items[0][1].options])
    found["head"] = milliseconds(head, items)
    return {"ms": found}


PARTS = {
    "head": measure_head,
    "letter": measure_letter,
    "verbatim": measure_verbatim,
    "many": measure_many,
    "stated": measure_stated,
    "spans": measure_spans,
    "lora": measure_lora,
    "known": measure_known,
    "battery": measure_battery,
    "times": measure_times,
}


def main(parts: list[str]) -> None:
    """Measure the parts; each is written into the record when it is done."""
    asked = load_items("trec", "test")[:QUESTIONS]
    items = [(item.state, item.question) for item in asked]
    labels = np.array([item.label for item in asked])
    path = results_dir() / "policies.json"
    for part in parts:
        measured = PARTS[part](items, labels)
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
        for key, value in measured.items():
            if isinstance(value, dict):
                found[key] = found.get(key, {}) | value
            else:
                found[key] = value
        text = json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n"
        write_atomically(path, text.encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or list(PARTS))
