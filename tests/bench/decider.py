"""Measure the decider: ways of reading, precision, many options, orders, two rivals.

``OMP_NUM_THREADS=1 python tests/bench/decider.py [part ...]`` writes
``results/decider.json``; a part that is not named keeps its numbers, and "judge"
applies a changed cost rule to the times of "rule". All ratios are
taken within one run, with the repetitions of all contestants interleaved; times are
processor time of one thread, so that other work on the machine hardly enters them. The
load average at the start and end of each part is recorded.

``outlines`` is no dependency of the project. Where it can be imported it takes part in
"ratios"; the record says whether it did.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from rlcd_core.arms import ARMS
from rlcd_core.data.build import load_items
from rlcd_core.decider import Decider
from rlcd_core.env import LabelledEnv
from rlcd_core.evaluate import order_sensitivity
from rlcd_core.files import write_atomically
from rlcd_core.policy import (
    DecisionHead,
    Encoder,
    Finalists,
    LetterPolicy,
    PermutationAverage,
    VerbatimPolicy,
    predict,
)
from rlcd_core.policy.passes import CostRule, Work
from rlcd_core.records import hardware, results_dir, versions
from rlcd_core.schema import Choice, Noul, render_prefix, render_suffix
from rlcd_core.train import TrainConfig, train

RULE_STATES = (20, 120, 400, 800)
RULE_QUESTIONS = (2, 8, 24)
RULE_REPEATS = 2
RATIO_STATE = 800
RATIO_REPEATS = 3
BF16_STATES, BF16_QUESTIONS = 20, 10  # 200 prompts
FINE_FINALISTS = 8
WORDS = (151, 1000)
GLOSSES = 1000  # the head is trained on
GLOSS_TESTS = 200
STAGED = 30  # test rows that a language model sees

TEAMS = ["billing", "infrastructure", "security", "product support"]
LETTERS4 = ("A", "B", "C", "D")
TOPICS = (
    "the invoice",
    "the load balancer",
    "a password reset",
    "the mobile application",
    "a refund",
    "the data export",
    "single sign-on",
    "the weekly report",
)


def sentence_state(policy: LetterPolicy, tokens: int, seed: int = 0) -> str:
    """A state of ordinary words whose prompt prefix has about this many tokens."""
    words = (
        "the customer reports that api latency has grown since noon and the load "
        "balancer returns errors while all other services answer as they should"
    ).split()
    rng = np.random.default_rng(seed)
    text = f"Ticket {seed}."
    while True:
        longer = f"{text} {rng.choice(words)}"
        if len(policy.encoder.plain([render_prefix(longer)])[0]) > tokens:
            return text
        text = longer


def ask_about(count: int) -> list[Choice | Noul]:
    """Distinct questions of two kinds, as a user mixes them."""
    made: list[Choice | Noul] = []
    for i in range(count):
        topic, round_ = TOPICS[i // 2 % len(TOPICS)], i // (2 * len(TOPICS))
        again = f" (check {round_ + 1})" if round_ else ""
        if i % 2:
            made.append(Noul(f"Does this ticket concern {topic}{again}?"))
        else:
            text = f"Which team should look at {topic}{again}?"
            made.append(Choice(text, TEAMS))
    return made


def seconds(call: Callable[[], Any]) -> float:
    """Processor time of one call."""
    gc.collect()
    start = time.process_time()
    call()
    return time.process_time() - start


def interleaved(
    contestants: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
    """Times of each contestant, one repetition of all after the other."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, call in contestants.items():
            taken[name].append(seconds(call))
    return taken


def measure_rule() -> dict[str, Any]:
    """Time the three ways on a grid, fit the rule's constants, judge its choices."""
    policy = LetterPolicy.load()
    rows = []
    for size in RULE_STATES:
        state = sentence_state(policy, size)
        for count in RULE_QUESTIONS:
            questions = ask_about(count)
            shared = policy.share(state, questions)
            works = policy.works(shared, 16)
            prepared = policy.prepare([(state, q) for q in questions])
            ways = {
                "plain": lambda p=prepared: policy.log_probs(p.take(range(len(p)))),
                "tree": lambda s=shared: policy.tree_log_probs(s),
                "shared": lambda s=shared: policy.shared_log_probs(s),
            }
            # The plain path of large cases is no candidate and takes minutes.
            if works["plain"].tokens > 2 * works["tree"].tokens:
                del ways["plain"]
            with torch.inference_mode():
                times = interleaved(ways, RULE_REPEATS)
            row = {"state": size, "questions": count, "ways": {}}
            for way, taken in times.items():
                work = works[way]
                row["ways"][way] = {
                    "tokens": work.tokens,
                    "passes": work.passes,
                    "pairs": work.pairs,
                    "seconds": round(min(taken), 4),
                }
            rows.append(row)
            print(row, flush=True)
    return {"rule": judged(rows)}


def judged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Constants of the rule by least squares on relative errors, and its regret."""
    cells = [cell for row in rows for cell in row["ways"].values()]
    design = np.array([[c["tokens"], c["passes"], c["pairs"]] for c in cells], float)
    taken = np.array([c["seconds"] for c in cells])
    fit, *_ = np.linalg.lstsq(design / taken[:, None], np.ones(len(taken)), rcond=None)
    rule = CostRule()
    for row in rows:
        ways = row["ways"]
        works = {
            way: Work(c["tokens"], c["passes"], c["pairs"]) for way, c in ways.items()
        }
        row["chosen"] = rule.choose(works)
        best = min(c["seconds"] for c in ways.values())
        row["regret"] = round(ways[row["chosen"]]["seconds"] / best - 1, 4)
    return {
        "rows": list(rows),
        "fitted": {
            "ms_per_token": round(1000 * float(fit[0]), 4),
            "pass_tokens": round(float(fit[1] / fit[0]), 2),
            "tokens_per_1000_pairs": round(1000 * float(fit[2] / fit[0]), 4),
        },
        "used": {
            "pass_tokens": rule.pass_tokens,
            "tokens_per_1000_pairs": 1000 * rule.pair_tokens,
        },
        "mean_regret": round(float(np.mean([row["regret"] for row in rows])), 4),
        "largest_regret": max(row["regret"] for row in rows),
    }


def judge_again() -> dict[str, Any]:
    """Judge the rule as it is now by the times that were measured before."""
    stored = json.loads((results_dir() / "decider.json").read_text())
    return {"rule": judged(stored["rule"]["rows"])}


def rivals(policy: LetterPolicy, state: str) -> dict[str, Callable[[], Any]]:
    """Two questions, one after the other, as a user would ask them today."""
    model, tokenizer = policy.model, policy.encoder.tokenizer
    prompts = [render_prefix(state) + render_suffix(q) for q in ask_about(2)]
    counts = [len(q.options) for q in ask_about(2)]

    def full_prompts() -> None:
        with torch.inference_mode():
            for prompt, count in zip(prompts, counts, strict=True):
                inputs = tokenizer(prompt, return_tensors="pt")
                logits = model(**inputs).logits[0, -1]
                logits[policy.label_ids[:count]].softmax(-1).tolist()

    def constrained() -> None:
        for prompt, count in zip(prompts, counts, strict=True):
            inputs = tokenizer(prompt, return_tensors="pt")
            allowed = policy.label_ids[:count].tolist()
            model.generate(
                **inputs,
                max_new_tokens=1,
                do_sample=False,
                pad_token_id=tokenizer.eos_token_id,
                prefix_allowed_tokens_fn=lambda *_, ids=allowed: ids,
            )

    found = {"transformers": full_prompts, "constrained": constrained}
    try:
        import outlines
    except ImportError:
        return found
    wrapped = outlines.from_transformers(model, tokenizer)
    generators = [
        outlines.Generator(wrapped, Literal[LETTERS4[:count]])  # type: ignore[valid-type]
        for count in counts
    ]

    def by_outlines() -> None:
        for generator, prompt in zip(generators, prompts, strict=True):
            generator(prompt + " ", max_new_tokens=1)

    return found | {"outlines": by_outlines}


def measure_ratios() -> dict[str, Any]:
    """8 and 64 questions, 4 orders, and the rivals, on one long state."""
    policy = LetterPolicy.load()
    decider = Decider(policy)
    state = sentence_state(policy, RATIO_STATE)
    pair = ask_about(2)
    orders = Decider(PermutationAverage(policy, 4))
    contestants = {
        "one_choice": lambda: decider.ask(state, [pair[0]]),
        "one_noul": lambda: decider.ask(state, [pair[1]]),
        "ask_8": lambda: decider.ask(state, ask_about(8)),
        "ask_64": lambda: decider.ask(state, ask_about(64)),
        "orders_4": lambda: orders.ask(state, [pair[0]]),
        **rivals(policy, state),
    }
    decider.ask(state[:100], pair)  # warm up
    taken = interleaved(contestants, RATIO_REPEATS)
    time_of = {name: statistics.median(values) for name, values in taken.items()}
    one = (time_of["one_choice"] + time_of["one_noul"]) / 2
    found: dict[str, Any] = {
        "seconds": {k: [round(v, 3) for v in values] for k, values in taken.items()},
        "orders_4_over_one": round(time_of["orders_4"] / time_of["one_choice"], 4),
        "orders_4_way": orders.plan(state, [pair[0]]).way,
        "outlines": (
            importlib.metadata.version("outlines") if "outlines" in taken else None
        ),
    }
    for count in (8, 64):
        plan = decider.plan(state, ask_about(count))
        length = len(plan.shared.prefix)
        mean = np.mean([len(suffix) for suffix in plan.shared.suffixes])
        limit = count * (length + mean) / (length + count * mean)
        speed = count * one / time_of[f"ask_{count}"]
        found[f"ask_{count}"] = {
            "way": plan.way,
            "state_tokens": length,
            "question_tokens": round(float(mean), 2),
            "limit": round(float(limit), 4),
            "over_one_by_one": round(speed, 4),
            "share_of_limit": round(float(speed / limit), 4),
            **{
                f"over_{name}": round(
                    count / 2 * time_of[name] / time_of[f"ask_{count}"], 4
                )
                for name in ("transformers", "constrained", "outlines")
                if name in time_of
            },
        }
    return {"ratios": found}


def measure_bf16() -> dict[str, Any]:
    """Errors of bfloat16 against float32 over 200 prompts, for each way of reading.

    The float32 probabilities are read as a tree; how far that is from the plain
    float32 path is measured on the first state.
    """
    exact = LetterPolicy.load()
    half = LetterPolicy.load(dtype=torch.bfloat16)
    errors: dict[str, list[float]] = {"plain": [], "shared": [], "tree": []}
    questions = ask_about(BF16_QUESTIONS)
    mask = exact.prepare([("s", q) for q in questions]).mask
    with torch.inference_mode():
        for seed in range(BF16_STATES):
            state = sentence_state(exact, 30 + 2 * seed, seed)
            truth = exact.tree_log_probs(exact.share(state, questions)).exp()
            prepared = half.prepare([(state, q) for q in questions])
            shared = half.share(state, questions)
            # One prompt a pass, as a single question is read.
            rows = [half.log_probs(prepared.take([i])) for i in range(len(prepared))]
            found = {
                "plain": torch.cat(rows),
                "shared": half.shared_log_probs(shared),
                "tree": half.tree_log_probs(shared),
            }
            if seed == 0:
                again = exact.prepare([(state, q) for q in questions])
                one = torch.cat([exact.log_probs(again.take([i])) for i in range(4)])
                gap = float((one.exp() - truth[:4]).abs().max())
            for way, log_p in found.items():
                error = (log_p.exp() - truth).abs() * mask
                errors[way] += (error.sum(1) / mask.sum(1)).tolist()
    mean = {way: float(np.mean(values)) for way, values in errors.items()}
    by_state = {w: np.reshape(v, (BF16_STATES, -1)).mean(1) for w, v in errors.items()}

    def spread(way: str) -> float:
        """Jackknife standard error of the ratio over states."""
        left = [
            np.delete(by_state[way], i).sum() / np.delete(by_state["plain"], i).sum()
            for i in range(BF16_STATES)
        ]
        return float(np.std(left) * (BF16_STATES - 1) ** 0.5)

    return {
        "bf16": {
            "prompts": len(errors["plain"]),
            "mean_error": {way: round(value, 7) for way, value in mean.items()},
            "over_plain": {
                way: round(mean[way] / mean["plain"], 4) for way in ("shared", "tree")
            },
            "over_plain_standard_error": {
                way: round(spread(way), 4) for way in ("shared", "tree")
            },
            "float32_gap": gap,
        }
    }


def fitted_head(
    encoder: Encoder,
    items: Sequence[Any],
    labels: Sequence[int],
    passes: int,
    cosine: bool = False,
) -> DecisionHead:
    """A decision head trained on labels with NLL.

    With ``cosine`` it starts as the scaled cosine of state and option, which is the
    sensible start where the options of each question are others.
    """
    rank = encoder.dim if cosine else 64
    head = DecisionHead(encoder, rank, torch.Generator().manual_seed(0))
    if cosine:
        with torch.no_grad():
            head.query.copy_(torch.eye(rank))
            head.key.copy_(torch.eye(rank))
    truth = np.array(labels)
    width = max(len(question.options) for _, question in items)
    env = LabelledEnv(np.eye(width, dtype=int)[truth], 0)
    config = TrainConfig(
        learning_rate=1e-4 if cosine else 1e-3,
        outcomes=passes * len(items),
        outcomes_per_step=20,
    )
    train(head, head.prepare(items), np.arange(len(items)), env, ARMS["nll"], config, 0)
    return head


def accuracy(
    policy: Any, items: Sequence[Any], labels: Sequence[int]
) -> dict[str, Any]:
    """Share right with its standard error, and the least probability of an option."""
    p = predict(policy, policy.prepare(items), batch_size=32)
    right = p.argmax(1) == np.array(labels)
    count = len(right)
    mean = float(right.mean())
    return {
        "n": count,
        "accuracy": round(mean, 4),
        "standard_error": round((mean * (1 - mean) / count) ** 0.5, 4),
        "log_loss": round(float(-np.log(p[np.arange(count), labels]).mean()), 4),
        "least": float(
            min(p[i, : len(q.options)].min() for i, (_, q) in enumerate(items))
        ),
    }


def reaches(staged: Finalists, items: Sequence[Any], labels: Sequence[int]) -> float:
    """Share of items whose right option is among the finalists."""
    kept = [
        label in staged.finalists(*item)
        for item, label in zip(items, labels, strict=True)
    ]
    return round(float(np.mean(kept)), 4)


def measure_fine() -> dict[str, Any]:
    """50 kinds of answer: a head alone, and two stages, on the TREC questions."""
    encoder = Encoder.load()
    train_items, test_items = (load_items("trec_fine", s) for s in ("train", "test"))
    known = [(i.state, i.question) for i in train_items]
    known_labels = [i.label for i in train_items]
    items = [(i.state, i.question) for i in test_items]
    labels = [i.label for i in test_items]
    head = fitted_head(encoder, known, known_labels, 5)
    staged = Finalists(head, head, size=FINE_FINALISTS)
    # A second head, trained on the finalists alone: the case it will meet.
    p = predict(head, head.prepare(known), batch_size=512)
    close, close_labels = [], []
    for (state, question), label, row in zip(known, known_labels, p, strict=True):
        kept = sorted(np.argsort(-row)[:FINE_FINALISTS].tolist())
        if label in kept:
            options = [question.options[k] for k in kept]
            close.append((state, Choice(question.text, options)))
            close_labels.append(kept.index(label))
    second = fitted_head(encoder, close, close_labels, 5)
    letter = LetterPolicy.load()
    few, few_labels = items[:STAGED], labels[:STAGED]
    by_letters = Finalists(letter, head, size=FINE_FINALISTS)
    by_groups = Finalists(letter, size=10)
    counts = np.bincount(known_labels, minlength=50)
    return {
        "fine": {
            "source": "trec_fine, test split",
            "options": 50,
            "finalists": FINE_FINALISTS,
            "chance": 0.02,
            "commonest": round(float(np.mean(np.array(labels) == counts.argmax())), 4),
            "reach_last_stage": reaches(staged, items, labels),
            "head": accuracy(head, items, labels),
            "head_then_second_head": accuracy(
                Finalists(second, head, size=FINE_FINALISTS), items, labels
            ),
            "few": {
                "head": accuracy(head, few, few_labels),
                "head_then_letters": accuracy(by_letters, few, few_labels),
                "letters_in_groups": accuracy(by_groups, few, few_labels),
            },
        }
    }


def glosses() -> list[tuple[str, str]]:
    """(definition, noun) of WordNet, one sense a noun, in a fixed random order."""
    from rlcd_core.data.manifest import fetch

    lines = (fetch("wordnet") / "data.noun").read_text("utf-8").split("\n")
    found: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith("  "):
            word = line.split(" ")[4].replace("_", " ")
            definition = line.split(" | ", 1)[1].split('; "')[0].strip()
            if word.isalpha() and word.islower() and word not in definition.lower():
                found.setdefault(word, definition)
    pairs = [(definition, word) for word, definition in found.items()]
    order = np.random.default_rng(0).permutation(len(pairs))
    return [pairs[i] for i in order]


def measure_words() -> dict[str, Any]:
    """Which noun has this definition, out of 151 and out of 1,000."""
    encoder = Encoder.load(truncate=True)
    text = "Which noun does this definition define?"
    pairs = glosses()
    known, tests = pairs[:GLOSSES], pairs[GLOSSES:][:GLOSS_TESTS]
    spare = [word for _, word in pairs[GLOSSES + GLOSS_TESTS :]]
    rng = np.random.default_rng(1)
    words = np.array([word for _, word in known])
    items, labels = [], []
    for row, (definition, word) in enumerate(known):
        others = rng.choice(np.delete(np.arange(len(words)), row), 49, replace=False)
        place = int(rng.integers(50))
        options = [*words[others][:place], word, *words[others][place:]]
        options = [str(option) for option in options]
        items.append((definition, Choice(text, options)))
        labels.append(place)
    head = fitted_head(encoder, items, labels, 5, cosine=True)
    letter = LetterPolicy.load()
    seconds_stages = {
        "letters": letter,
        "letters_4_orders": PermutationAverage(letter, 4),
        "verbatim": VerbatimPolicy(
            letter.model, letter.encoder.tokenizer, length="sum", prior=True
        ),
    }
    found: dict[str, Any] = {"source": "wordnet nouns", "train": GLOSSES}
    for count in WORDS:
        options = [word for _, word in tests] + spare
        # The nouns of the tests and as many spare ones as are needed, in a fixed order.
        chosen = options[:count]
        order = np.random.default_rng(2).permutation(count)
        listed = [chosen[i] for i in order]
        asked = [
            (definition, Choice(text, listed))
            for definition, word in tests
            if word in chosen
        ]
        right = [listed.index(word) for _, word in tests if word in chosen]
        few, few_right = asked[:STAGED], right[:STAGED]
        staged = Finalists(head, head, size=FINE_FINALISTS)
        found[str(count)] = {
            "chance": 1 / count,
            "head": accuracy(head, asked, right),
            "reach_last_stage": reaches(staged, asked, right),
            "few": {
                "head": accuracy(head, few, few_right),
                "reach_last_stage": reaches(staged, few, few_right),
                **{
                    f"head_then_{name}": accuracy(
                        Finalists(policy, head, size=FINE_FINALISTS), few, few_right
                    )
                    for name, policy in seconds_stages.items()
                },
            },
        }
        print(found[str(count)], flush=True)
    return {"words": found}


def measure_orders() -> dict[str, Any]:
    """How much the answers move with the order, before and after averaging.

    The letter readout's answers to all six rotations of the first TREC test questions
    stand in ``results/policies.json``; averages over 2, 3 and 6 of them are means of
    those. A question that is itself asked in rotation r is averaged over r and the
    rotations after it.
    """
    stored = json.loads((results_dir() / "policies.json").read_text())
    every = np.array(stored["orders"]["letter"])  # (items, rotation, option)
    labels = np.array(stored["labels"])
    width = every.shape[1]
    found: dict[str, Any] = {"source": "trec, letters", "questions": len(every)}
    for mean in ("arithmetic", "log"):
        for count in (1, 2, 3, 6):
            steps = [width * i // count for i in range(count)]
            turned = np.stack([np.roll(every, -step, axis=1) for step in steps])
            if mean == "arithmetic":
                averaged = turned.mean(0)
            else:
                averaged = np.exp(np.log(np.maximum(turned, 1e-6)).mean(0))
            averaged /= averaged.sum(-1, keepdims=True)
            flips, distances = order_sensitivity(list(averaged))
            found[f"{mean}_{count}"] = {
                "flips": round(float(flips.mean()), 4),
                "distance": round(float(distances.mean()), 4),
                "accuracy": round(
                    float((averaged.argmax(-1) == labels[:, None]).mean()), 4
                ),
                "confidence": round(float(averaged.max(-1).mean()), 4),
            }
    return {"orders": found}


PARTS = {
    "orders": measure_orders,
    "ratios": measure_ratios,
    "rule": measure_rule,
    "judge": judge_again,
    "bf16": measure_bf16,
    "fine": measure_fine,
    "words": measure_words,
}


def main(parts: list[str]) -> None:
    """Measure the parts and write each into the record as it is done."""
    path = results_dir() / "decider.json"
    for part in parts:
        before = os.getloadavg()[0]
        measured = PARTS[part]()
        load = [round(before, 1), round(os.getloadavg()[0], 1)]
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        found |= measured
        found["load"] = found.get("load", {}) | {part: load}
        found |= {
            "clock": "processor time of one thread",
            "model": "SmolLM2-135M-Instruct, float32",
            "hardware": hardware(),
            "versions": versions(),
        }
        text = json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n"
        write_atomically(path, text.encode())
        print(part, json.dumps(measured)[:2000], flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or [part for part in PARTS if part != "judge"])
