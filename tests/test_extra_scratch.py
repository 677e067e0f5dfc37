"""A letter reader from nothing, and the tasks and jobs it is trained with."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlcd_core.data.nota import NOTA
from rlcd_core.data.triage import DEPARTMENT, ESCALATE, tickets
from rlcd_core.extra import scratch
from rlcd_core.extra.families import triage
from rlcd_core.extra.scratch import Reader, tokenizer, train_tokenizer
from rlcd_core.schema import Choice, render_prefix, render_suffix
from rlcd_core.tasks import Task, Warmup

SMALL = Reader(width=16, layers=1, heads=2, inner=16)


def bare(n: int, seed: int = 0, **options):
    return tickets(n, np.random.default_rng(seed), bare=True, **options)


def prompt(item) -> str:
    return render_prefix(item.state) + render_suffix(item.question)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_prompt_is_encoded_byte_for_byte() -> None:
    words = tokenizer()
    strange = Choice("Überhaupt?\t Really?", ["yes", "\u4e2d\u6587 maybe", NOTA])
    texts = [prompt(item) for item in bare(50)]
    texts.append(render_prefix("  odd\n\nQuestion: x") + render_suffix(strange))
    for text in texts:
        assert words.decode(words(text)["input_ids"]) == text


def test_frame_questions_markers_and_labels_are_single_tokens() -> None:
    words = tokenizer()
    ids = words(render_suffix(DEPARTMENT))["input_ids"]
    shown = [words.decode([i]) for i in ids]
    assert shown[:2] == [" " + DEPARTMENT.text, "\nOptions:"]
    assert shown[-1] == "\nAnswer with the letter only.\nAssistant: The answer is"
    assert [s for s in shown if s.endswith(")")] == ["\nA)", "\nB)", "\nC)", "\nD)"]
    assert len(words(render_suffix(ESCALATE))["input_ids"]) == 7
    assert (
        len({words(f"is {x}")["input_ids"][-1] for x in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"})
        == 26
    )


def test_the_tokenizer_is_the_same_each_time_it_is_trained() -> None:
    texts = [prompt(item) for item in bare(300)]
    found = {
        train_tokenizer(texts, (DEPARTMENT,), 900).backend_tokenizer.to_str()
        for _ in range(3)
    }
    assert len(found) == 1


def test_prompts_are_short() -> None:
    lengths = [
        len(ids) for ids in tokenizer()([prompt(i) for i in bare(300)])["input_ids"]
    ]
    assert np.mean(lengths) < 40 and max(lengths) < Reader().window
    # Planted fault: without its frame the tokenizer needs far more.
    plain = scratch.train_tokenizer([prompt(i) for i in bare(300)], (), 400)
    assert len(plain(prompt(bare(1)[0]))["input_ids"]) > lengths[0]


def test_weights_follow_the_generator_and_nothing_else() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two, other = (SMALL.build(generator(s)) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b, c in zip(
        one.parameters(), two.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b)
        assert a.dim() == 1 or not torch.equal(a, c)


def test_the_letters_are_read_where_the_model_says_them() -> None:
    policy = SMALL.build(generator(0))
    items = [(i.state, i.question) for i in bare(6, seed=3)]
    found = policy.log_probs(policy.prepare(items).take(range(6))).exp()
    words = tokenizer()
    for row, item in enumerate(bare(6, seed=3)):
        ids = torch.tensor([words(prompt(item))["input_ids"]])
        logits = policy.model(input_ids=ids).logits[0, -1]
        size = len(item.question.options)
        letters = [words(f"is {x}")["input_ids"][-1] for x in "ABCD"[:size]]
        wanted = logits[letters].softmax(0)
        assert torch.allclose(found[row, :size], wanted, atol=1e-5)
        assert float(found[row, size:].sum()) == 0


def test_a_bare_ticket_keeps_its_posterior_and_loses_its_wrapping() -> None:
    for item in bare(200, seed=4):
        assert "\n" not in item.state and not item.state.startswith(("Ticket", "From:"))
        assert sum(item.posterior) == pytest.approx(1)
    words = [
        np.mean([len(i.state.split()) for i in x])
        for x in (bare(400), tickets(400, np.random.default_rng(0)))
    ]
    assert words[0] < 0.7 * words[1]


def test_shares_of_the_kinds() -> None:
    kinds = Counter(max(i.posterior) for i in bare(300, shares=(0.0, 1.0, 0.0)))
    assert kinds == {0.5: 300}
    with pytest.raises(ValueError, match="sum to 1"):
        bare(1, shares=(0.5, 0.1, 0.1))


@pytest.mark.parametrize("prior", [(0.0, 1.0, 0.0, 0.0), (0.5, 0.0, 0.5, 0.0)])
def test_the_posterior_with_nota_is_bayes_rule(prior) -> None:
    """Enumerate label and place; compare with what the injected items carry."""
    right, distractor = triage.NOTA_RIGHT, triage.NOTA_DISTRACTOR
    joint = np.zeros((5, 4))  # shown: NOTA in place 0..3, or not at all; label
    for label, chance in enumerate(prior):
        for place in range(4):
            rate = right if place == label else distractor / 3
            joint[place, label] = chance * rate
        joint[4, label] = chance * (1 - right - distractor)
    assert joint.sum() == pytest.approx(1)
    start = next(
        i for i in bare(50) if len(i.posterior) == 4 and max(i.posterior) == max(prior)
    )
    rng, seen = np.random.default_rng(0), Counter()
    for _ in range(400):
        label = int(rng.choice(4, p=prior))
        shown = triage.with_nota(replace(start, posterior=prior, label=label), rng)
        options = shown.question.options
        place = options.index(NOTA) if NOTA in options else 4
        wanted = joint[place] / joint[place].sum()
        assert shown.posterior == pytest.approx(tuple(wanted))
        assert shown.posterior[label] > 0 and len(options) == 4
        assert triage.verdicts(shown.posterior).sum() == triage.VERDICTS
        seen[place] += 1
    assert set(seen) == set(range(5))


def test_two_cues_with_nota_in_the_place_of_one() -> None:
    assert triage.verdicts((9 / 16, 7 / 16, 0, 0)).tolist() == [45, 35, 0, 0]
    assert triage.verdicts((0.9, 0.1)).tolist() == [72, 8]
    with pytest.raises(ValueError, match="multiple"):
        triage.verdicts((1 / 3, 2 / 3))


@pytest.fixture(scope="module")
def task() -> Task:
    return triage._task("small", bare(1500, seed=8), (0.6, 0.2, 0.2), True, True)


def test_rows_that_train_hold_a_label_and_rows_that_score_the_truth(task) -> None:
    train = task.splits["train"]
    scored = np.concatenate([task.splits["validation"], task.splits["test"]])
    assert (task.counts[train].sum(1) == 1).all()
    assert (task.counts[scored].sum(1) == triage.VERDICTS).all()
    for row, (_, question) in enumerate(task.items):
        assert task.counts[row, len(question.options) :].sum() == 0


def test_no_wording_is_in_two_splits(task) -> None:
    where: dict[str, set[str]] = {}
    for name, rows in task.splits.items():
        for row in rows:
            where.setdefault(task.items[row][0].lower(), set()).add(name)
    assert max(map(len, where.values())) == 1


def test_the_place_of_an_option_tells_nothing(task) -> None:
    rows = [r for r in task.splits["train"] if len(task.items[r][1].options) == 4]
    places = task.counts[rows].sum(0) / len(rows)
    assert np.abs(places - 0.25).max() < 0.06
    orders = {task.items[r][1].options for r in rows}
    assert len(orders) > 24


def test_unknown_tasks_say_what_there_is() -> None:
    with pytest.raises(KeyError, match="triage-deciding"):
        triage.triage_task("triage")


def test_a_start_without_labels_is_the_policy_as_it_was_made(task, monkeypatch) -> None:
    monkeypatch.setattr(triage, "triage_task", lambda name: task)
    triage._prepared.cache_clear()
    config = replace(triage.READING, outcomes=128, eval_every=0)
    job = triage.TriageJob(
        "small",
        triage._arm("nll"),
        config,
        0,
        Warmup(rows=0),
        SMALL,
        from_base=False,
    )
    record, p = job.train("live")
    assert record.config == job.full_config()
    assert record.used["labels"] == 0 and record.used["steps"] == 2
    policy = SMALL.build(generator(0))
    from rlcd_core.policy import predict
    from rlcd_core.tasks import score

    test = task.splits["test"]
    fresh = score(predict(policy, policy.prepare(task.items), test), task.counts[test])
    assert record.metrics["test_before"]["brier"] == pytest.approx(fresh["brier"])
    assert record.metrics["test"]["brier"] != pytest.approx(fresh["brier"], abs=1e-6)
    triage._prepared.cache_clear()


def test_supervised_continuation_meets_no_new_row(task, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(triage, "triage_task", lambda name: task)
    monkeypatch.setattr(triage, "cache_dir", lambda: tmp_path)
    triage._prepared.cache_clear()
    config = replace(triage.DECIDING, outcomes=640)
    start = Warmup(rows=64, epochs=1, batch=64)
    used = {}
    for one in (triage.SUPERVISED, triage._arm("nll")):
        job = triage.TriageJob("small", one, config, 0, start, SMALL, from_base=False)
        record, _ = job.train("live")
        assert record.config == job.full_config()
        used[one.name] = record.used["prompts"]
    assert used == {"supervised": 64, "nll": 640}
    # Both began from one warm-up, which was trained once.
    kept = list((tmp_path / "checkpoints").glob("warmup-*.safetensors"))
    assert len(kept) == 1
    triage._prepared.cache_clear()


def test_the_probe_knows_its_rows(task) -> None:
    rows, truth = triage.probe_rows(task), triage.posteriors(task)
    assert sum(map(len, rows.values())) == len(truth)
    for kind, ideal in (("one_cue", 1.0), ("two_cues", 0.5), ("escalate", 0.9)):
        assert len(rows[kind]) > 5
        assert truth[rows[kind]].max(1) == pytest.approx(ideal)


def test_nota_rates_by_hand_and_by_simulation(task) -> None:
    truth = triage.posteriors(task)
    # Who takes the most probable option finds NOTA wherever it is certain.
    best = triage.nota_rates(truth, task)
    rows = triage.probe_rows(task)["nota"]
    test = task.splits["test"]
    places = [task.items[test[row]][1].options.index(NOTA) for row in rows]
    rng = np.random.default_rng(0)
    found, wrong = [], []
    for _ in range(400):
        for row, place in zip(rows, places, strict=True):
            right = rng.choice(4, p=truth[row]) == place
            (found if right else wrong).append(truth[row].argmax() == place)
    assert best["recall"] == pytest.approx(np.mean(found), abs=0.02)
    assert best["false_alarm"] == pytest.approx(np.mean(wrong), abs=0.02)
    never = np.array(truth)
    never[rows, places] = 0
    assert triage.nota_rates(never, task)["recall"] < best["recall"]
    always = np.eye(4)[
        [dict(zip(rows, places, strict=True)).get(r, 0) for r in range(len(truth))]
    ]
    assert triage.nota_rates(always, task) == {"recall": 1.0, "false_alarm": 1.0}


def test_total_variation_and_the_end_of_a_plateau_by_hand() -> None:
    p, truth = np.array([[0.7, 0.3, 0.0]]), np.array([[0.5, 0.3, 0.2]])
    assert triage.total_variation(p, truth) == pytest.approx([0.2])
    steps, values = (0, 10, 20, 30), (0.2, 0.3, 0.7, 0.9)
    curve = [{"step": s, "accuracy": a} for s, a in zip(steps, values, strict=True)]
    assert triage.end_of_plateau(curve) == pytest.approx(15)
    assert triage.end_of_plateau(curve, 0.1) == 0
    assert np.isnan(triage.end_of_plateau(curve, 0.95))


def test_a_base_is_kept_and_loaded(task, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(triage, "results_dir", lambda: tmp_path)
    triage.base_hash.cache_clear()
    with pytest.raises(FileNotFoundError, match="rlcd runs triage_examples"):
        triage.base_hash()
    one = SMALL.build(generator(0))
    triage.save_base(one)
    other = SMALL.build(generator(1))
    triage.load_base(other)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.half().float(), b)
    with pytest.raises(ValueError, match="other sizes"):
        triage.load_base(replace(SMALL, width=32).build(generator(0)))
    triage.base_hash.cache_clear()


def test_seeds_of_tuning_appear_in_no_result() -> None:
    assert set(triage.TUNING_SEEDS).isdisjoint(triage.FRESH_SEEDS)
    assert triage.READING_WORDING != triage.DECIDING_WORDING


def test_an_unfinished_grid_is_no_choice(monkeypatch) -> None:
    monkeypatch.setattr(triage, "_tuning_records", list)
    with pytest.raises(LookupError, match="0 of"):
        triage.tuned("rlcd")
