"""The reference protocol on a tiny Qwen3: its own code path with the sizes shrunk."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer
from typer.testing import CliRunner

from rlcd_core import train as training
from rlcd_core.__main__ import app
from rlcd_core.data import build
from rlcd_core.data.items import Item
from rlcd_core.data.manifest import SourceError
from rlcd_core.data.nota import NOTA
from rlcd_core.extra import grid
from rlcd_core.extra.families import reference, smol
from rlcd_core.extra.letterjob import nota_rates
from rlcd_core.policy import PolicyError
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.records import Store, config_hash
from rlcd_core.schema import Choice, render_prefix, render_suffix
from rlcd_core.tasks import Task
from tests.tiny_models import tiny_model

torch.set_num_threads(1)

OPTIONS = ["billing", "infrastructure", "security", "sales", "delivery", "returns"]
ARMS = "warmup rlcd_loo rlvr_loo rlvr_low rlcd_low nll supervised labels_32k".split()


def items(source: str, count: int, first: int) -> list[Item]:
    question = Choice("Which team?", OPTIONS)
    return [
        Item(
            f"{first + i}",
            source,
            f"{first + i}",
            f"Ticket {first + i}: {OPTIONS[i % 6]} asked. " * (1 + i % 3),
            question,
            label=i % 6,
        )
        for i in range(count)
    ]


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 and a byte-level BPE of the class that Qwen3 has, trained here."""
    folder = tmp_path_factory.mktemp("qwen3")
    texts = [
        render_prefix(item.state) + render_suffix(item.question)
        for item in items("ag_news", 12, 0)
    ]
    texts = texts * 10 + [f"The answer is {c}" for c in map(chr, range(65, 91))] * 40
    start = Qwen2Tokenizer()
    backend = Tokenizer(models.BPE())
    backend.normalizer = start.backend_tokenizer.normalizer
    backend.pre_tokenizer = start.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.save(str(folder / "trained.json"))
    stored = Tokenizer.from_file(str(folder / "trained.json"))
    table = json.loads((folder / "trained.json").read_text())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=table["vocab"], merges=[tuple(pair) for pair in table["merges"]]
    )
    assert (
        tokenizer("The answer is B").input_ids == stored.encode("The answer is B").ids
    )
    tokenizer.save_pretrained(folder)
    made = tiny_model("qwen3", vocab_size=len(tokenizer), tie_word_embeddings=True)
    made.save_pretrained(folder)
    (folder / "trained.json").unlink()
    return folder


@pytest.fixture
def shrunk(
    tiny_qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> reference.Protocol:
    """The family with small sizes, two sources, and folders of its own."""

    def stored(name: str, **_) -> build.Built:
        splits = {
            "train": items(name, 80, 0),
            "val": items(name, 16, 100),
            "test": items(name, 16, 200),
        }
        return build.Built(name, splits, {}, 0)

    monkeypatch.setattr(build, "build_and_store", stored)
    monkeypatch.setitem(build.MIXTURES, "tiny", (["ag_news", "banking77"], 64))
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RLCD_RESULTS", str(tmp_path / "results"))
    protocol = reference.Protocol(
        model=str(tiny_qwen3),
        preset="tiny",
        max_tokens=400,
        warmup_rows=32,
        label_rows=64,
        rows=128,
        validation=12,
        test=16,
        supervised_prompts=8,
        prompts=4,
        steps=6,
        rate=3e-3,
        micro_batch=2,
        every=3,
        probe_rows=3,
    )
    jobs = partial(reference.reference_jobs, protocol, (0,))
    monkeypatch.setitem(grid.FAMILIES, "reference", jobs)
    monkeypatch.setattr(grid, "UNFINISHED", frozenset())
    return protocol


def test_the_protocol_is_the_published_one() -> None:
    p = reference.PROTOCOL
    jobs = {job.arm.name: job for job in reference.reference_jobs(p, (0,))}
    assert list(jobs) == ARMS
    for name, prompts, outcomes, rate in (
        ("rlcd_loo", 128, 4, 2e-5),
        ("rlvr_loo", 128, 4, 2e-5),
        ("rlvr_low", 128, 4, 4e-6),
        ("nll", 128, 1, 2e-5),
        ("supervised", 64, 1, 2e-5),
        ("labels_32k", 64, 1, 2e-5),
    ):
        arm, config = jobs[name].arm, jobs[name].config
        assert arm.group_size == outcomes and arm.shared_outcome
        assert config.prompts_per_step(arm.group_size) == prompts
        assert config.steps(arm.group_size) == 500
        assert config.learning_rate * arm.rate_scale == pytest.approx(rate)
        assert (config.betas, config.weight_decay) == ((0.9, 0.95), 0.1)
        assert (config.warmup_fraction, config.final_rate) == (0.05, 0.1)
        assert (config.eval_every, config.stop_drop, config.stop_patience) == (
            50,
            0.1,
            3,
        )
        assert jobs[name].max_tokens == 512 and jobs[name].model == "qwen3"
    start = jobs["rlcd_loo"].warmup
    assert (start.rows, start.batch, start.learning_rate) == (6400, 64, 2e-5)
    assert start.config().steps() == 100
    assert jobs["supervised"].on == "labelled"
    # 5 epochs of 6,400 rows, 2 epochs of 32,000, one of 32,000.
    assert 500 * 64 == 5 * p.warmup_rows == p.label_rows
    assert 500 * 128 == 2 * (p.rows - p.label_rows)
    names, per_source = build.MIXTURES["protocol"]
    assert len(names) * per_source == p.rows


def test_rows_of_the_arms_do_not_touch(shrunk: reference.Protocol) -> None:
    task = reference.reference_task(shrunk)
    labels = reference.reference_task(shrunk, labels=True)
    assert len(task.items) == 128 + 12 + 16
    assert task.splits["warmup"].tolist() == list(range(32))
    assert task.splits["train"].tolist() == list(range(64, 128))
    assert labels.splits["train"].tolist() == list(range(64))
    assert task.splits["validation"].tolist() == list(range(128, 140))
    assert task.splits["test"].tolist() == list(range(140, 156))
    offered = [NOTA in question.options for _, question in task.items]
    assert 0.2 < np.mean(offered) < 0.8
    assert task.counts.sum(1).tolist() == [1] * len(task.items)
    with pytest.raises(SourceError, match="arms train on rows from 128 on"):
        reference.reference_task(replace(shrunk, label_rows=128))


def test_every_arm_trains_and_one_command_trains_one(
    shrunk: reference.Protocol, tmp_path: Path
) -> None:
    command = CliRunner()
    done = command.invoke(app, ["runs", "reference", "--arm", "rlcd_loo"])
    assert done.exit_code == 0, done.output
    first = Store("reference").records()
    assert [r.arm for r in first] == ["rlcd_loo"]
    with pytest.raises(LookupError, match="7 of 8 runs"):
        grid.family_records("reference")
    refused = command.invoke(app, ["runs", "reference", "--arm", "rlcd_lo"])
    assert refused.exit_code == 2 and "labels_32k" in refused.output.replace("\n", "")
    done = command.invoke(app, ["runs", "reference"])
    assert done.exit_code == 0, done.output
    records = {r.arm: r for r in grid.family_records("reference")}
    assert list(records) == ARMS
    assert records["rlcd_loo"] == first[0], "a finished run is kept"
    for job, record in zip(grid.FAMILIES["reference"](), records.values(), strict=True):
        assert config_hash(job.full_config()) == record.key
        assert record.used["steps"] == (0 if record.arm == "warmup" else 6)
        assert 0 < record.signals[0]["label_mass"] < 1
        assert record.metrics["probe_two_cues"]["ideal_confidence"] == 0.5
        assert record.metrics["nota"]["right"] + record.metrics["nota"]["wrong"] > 0
        assert Store("reference").predictions(record).shape[0] == 16
    assert records["rlcd_loo"].used["outcomes"] == 6 * 4 * 4
    # They share the warm-up, and only the large-label reference goes without.
    before = {a: r.metrics["test_before"]["brier"] for a, r in records.items()}
    assert len({v for a, v in before.items() if a != "labels_32k"}) == 1
    assert before["labels_32k"] != before["warmup"]
    # Supervision moves the right way even here.
    nll = {a: r.metrics["test"]["nll"] for a, r in records.items()}
    assert nll["labels_32k"] < records["labels_32k"].metrics["test_before"]["nll"]
    # What is left are the warm-ups' checkpoints.
    left = sorted((tmp_path / "cache" / "checkpoints").glob("*.safetensors"))
    assert [path.name.split("-")[0] for path in left] == ["warmup"]


def test_a_lost_runtime_goes_on_from_its_checkpoint(
    shrunk: reference.Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = next(j for j in grid.FAMILIES["reference"]() if j.arm.name == "rlcd_loo")
    whole, p = job.train("reference")
    save, killed = training._save, []

    def save_then_die(path: Path, *rest) -> None:
        save(path, *rest)
        if path.name.startswith("rlcd_loo"):
            killed.append(path)
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_save", save_then_die)
    with pytest.raises(KeyboardInterrupt):
        job.train("reference")
    assert killed[0].is_file()
    monkeypatch.setattr(training, "_save", save)
    taken = []
    restored = training._restore

    def noted(*args):
        result = restored(*args)
        taken.append(result.steps)
        return result

    monkeypatch.setattr(training, "_restore", noted)
    again, q = job.train("reference")
    assert 3 in taken, "the arm went on from step 3"
    assert not killed[0].exists()
    assert np.array_equal(p, q) and again.metrics == whole.metrics
    assert again.used["outcomes"] == whole.used["outcomes"]


def test_labels_are_checked_as_for_the_real_tokenizer(tiny_qwen3: Path) -> None:
    policy = LetterPolicy.load(tiny_qwen3)
    assert type(policy.encoder.tokenizer).__name__ == "Qwen2Tokenizer"
    assert policy.labels[:26] == tuple(map(chr, range(65, 91)))
    letters = policy.encoder.tokenizer.convert_ids_to_tokens(policy.label_ids[:3])
    assert letters == ["\u0120A", "\u0120B", "\u0120C"]
    with pytest.raises(PolicyError, match="not single tokens"):
        LetterPolicy.load(tiny_qwen3, labels=["A", "perpendicular"])


def test_nota_rates_by_hand() -> None:
    with_nota = Choice("?", ["a", NOTA, "c"])
    without = Choice("?", ["a", "b", "c"])
    questions = [with_nota, with_nota, with_nota, without, with_nota]
    labels = [1, 1, 0, 1, 2]
    p = np.eye(3)[[1, 0, 1, 1, 2]]
    task = Task(
        "t",
        [("s", q) for q in questions],
        np.eye(3, dtype=int)[labels],
        {"test": np.arange(5)},
    )
    # Right twice, answered once; offered and wrong twice, answered once.
    assert nota_rates(p, task) == {
        "right": 2,
        "wrong": 2,
        "recall": 0.5,
        "false_alarm": 0.5,
    }


def test_two_families_wait_for_a_gpu() -> None:
    assert {"reference", "smol_trec_gpu"} <= grid.UNFINISHED & grid.ON_GPU


@pytest.mark.parametrize("family", sorted(grid.UNFINISHED))
def test_what_is_unfinished_says_so_and_is(family: str) -> None:
    runs = len(grid.FAMILIES[family]())
    assert len(Store(family).records()) < runs, f"take {family!r} out of UNFINISHED"
    with pytest.raises(LookupError, match=f"runs of '{family}' are not all recorded"):
        grid.family_records(family)


@pytest.mark.data
def test_the_untruncated_run_trains_every_layer_on_shuffled_options() -> None:
    jobs = smol.smol_trec_gpu()
    task = jobs[0].make_task()
    assert len({question.options for _, question in task.items}) > 100
    assert {job.arm.name for job in jobs} == {*smol.ARM_NAMES, "rlvr_low"}
    assert len({config_hash(job.full_config()) for job in jobs}) == len(jobs)
    assert not set(task.splits["train"]) & set(task.splits["test"])
