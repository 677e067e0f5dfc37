"""Exports: whole or not at all, loaded strictly, and the same to the last bit."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlcd_core import export as module
from rlcd_core.calibrate import Temperature
from rlcd_core.decider import Decider
from rlcd_core.export import (
    Calibrated,
    Card,
    ExportError,
    export,
    is_export,
    load_export,
)
from rlcd_core.gates import Gate, Guarantee
from rlcd_core.policy import (
    DecisionHead,
    Encoder,
    LetterPolicy,
    MaskedPolicy,
    PermutationAverage,
    PolicyError,
    TabularPolicy,
    VerbatimPolicy,
)
from rlcd_core.policy.spans import SpanHead
from rlcd_core.schema import Noul, SchemaError
from tests.tiny_models import (
    KINDS,
    QUESTIONS,
    STATE,
    HashEncoder,
    letter_policy,
    letter_tokenizer,
    tiny_bert,
    tiny_encoder,
    tiny_model,
)

torch.set_num_threads(1)
ITEMS = [(STATE, question) for question in QUESTIONS]
COOL = Temperature(1.7, "nll", 0.9, 0.8, False)
GATE = Guarantee(Gate(0.8, 0.1), "error", 0.05, 0.1, 400, 120, 3.0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path / "cache"))


def head(folder: Path, **options: Any) -> DecisionHead:
    encoder = Encoder(tiny_encoder(folder), max_tokens=64, truncate=True)
    policy = DecisionHead(encoder, 8, **options)
    torch.nn.init.normal_(policy.query, generator=torch.Generator().manual_seed(3))
    return policy


def rows(policy: Any) -> torch.Tensor:
    with torch.inference_mode():
        return policy.log_probs(policy.prepare(ITEMS).take(range(len(ITEMS))))


def made(name: str, tmp_path: Path) -> Any:
    """A policy of each kind that can be exported."""
    tokens = letter_tokenizer()
    match name:
        case "untied" | "tied":
            model = tiny_model("llama", tie_word_embeddings=name == "tied")
            return LetterPolicy(
                model,
                tokens,
                labels=["A", "B", "C", "D"],
                max_tokens=300,
                truncate=True,
            )
        case "left":
            return letter_policy(padding="left")
        case "start":
            return LetterPolicy(tiny_model("llama"), letter_tokenizer(start="<s>"))
        case "masked" | "apart":
            return MaskedPolicy(*tiny_bert(), apart=name == "apart")
        case "verbatim":
            return VerbatimPolicy(
                tiny_model("qwen3"), tokens, length="bytes", prior=True
            )
        case "order":
            return PermutationAverage(letter_policy("qwen3"), 2, "log")
        case "head":
            return head(tmp_path / "encoder")
        case "spans":
            return SpanHead.load(tiny_encoder(tmp_path / "spans"), rank=4)
    return letter_policy(name)


NAMES = (
    *KINDS,
    *"untied tied left start masked apart verbatim order head spans".split(),
)


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_is_equal_to_the_last_bit(tmp_path: Path, name: str) -> None:
    policy = made(name, tmp_path)
    folder = export(
        policy,
        tmp_path / "out",
        questions={"team": QUESTIONS[0], "page": QUESTIONS[2]},
        gates={"act": GATE, "by hand": Gate(0.9)},
        copy_encoder=True,
    )
    found = load_export(folder)
    assert torch.equal(rows(found.policy), rows(policy))
    assert not found.policy.training and found.temperature is None
    assert found.questions == {"team": QUESTIONS[0], "page": QUESTIONS[2]}
    assert found.gates == {"act": GATE, "by hand": Gate(0.9)}
    assert not list(tmp_path.glob(".out*")), "nothing temporary is left"
    if name not in ("verbatim", "head", "spans"):  # an export can be exported again
        again = export(found.policy, tmp_path / "again")
        assert torch.equal(rows(load_export(again).policy), rows(policy))
    assert all(p.suffix in module._SUFFIXES for p in module._files(folder))


@pytest.mark.parametrize("name", ["llama", "order", "head"])
def test_the_decider_answers_with_the_temperature(tmp_path: Path, name: str) -> None:
    policy = made(name, tmp_path)
    folder = export(policy, tmp_path / "x", temperature=COOL, copy_encoder=True)
    decider = Decider.load(folder)
    assert decider.exported is not None and decider.exported.temperature == COOL
    assert torch.equal(rows(decider.policy), rows(Calibrated(policy, COOL)))
    wanted = COOL.apply(rows(policy).double().numpy())
    for answer, row in zip(decider.ask(STATE, QUESTIONS), wanted, strict=True):
        assert answer.p == pytest.approx(row[: len(answer.p)], abs=2e-6)


def test_a_json_schema_comes_back_as_it_was(tmp_path: Path) -> None:
    page = {"type": "boolean", "description": "Page?"}
    schema = {"type": "object", "properties": {"page": page}}
    folder = export(letter_policy(), tmp_path / "x", questions=schema)
    decider = Decider.load(folder)
    assert decider.exported.questions == schema
    assert list(decider.ask(STATE, decider.exported.questions)) == ["page"]


def test_questions_are_checked_before_they_are_kept(tmp_path: Path) -> None:
    boolean = {"type": "boolean"}
    for questions in (
        {"properties": {"page": boolean}},  # `Decider.ask` would take it for names
        {"type": "object", "properties": {"page": {"type": "string"}}},
        {"page": "Page?"},
    ):
        with pytest.raises(SchemaError):
            export(letter_policy(), tmp_path / "x", questions=questions)
    named = {"type": QUESTIONS[0], "properties": QUESTIONS[2]}
    folder = export(letter_policy(), tmp_path / "x", questions=named)
    assert list(load_export(folder).questions.items()) == list(named.items())


def test_only_label_rows_of_the_output_matrix_are_kept(tmp_path: Path) -> None:
    policy = letter_policy(labels=["A", "B", "C", "D"])
    folder = export(policy, tmp_path / "x")
    assert load_file(folder / "labels.safetensors")["weight"].shape == (4, 32)
    names = load_file(folder / "body" / "model.safetensors")
    assert not any("lm_head" in name for name in names)
    # Any text may come, so the input embeddings stay whole.
    vocabulary = len(letter_tokenizer())
    assert names["embed_tokens.weight"].shape == (vocabulary, 32)
    back = load_export(folder).policy
    with pytest.raises(PolicyError, match="whole output matrix"):
        back.label_mass(back.prepare(ITEMS).take([0]))
    with pytest.raises(PolicyError, match="whole output matrix"):
        Decider.load(folder).label_mass(STATE, QUESTIONS)


def damage(folder: Path, name: str) -> str:
    """Damage an export; what the refusal must say."""
    manifest = folder / "manifest.json"
    weights = folder / "labels.safetensors"
    told = json.loads(manifest.read_text())
    match name:
        case "missing":
            (folder / "decision.json").unlink()
            return r"decision\.json is missing: export again"
        case "no manifest":
            manifest.unlink()
            return r"manifest\.json is missing: this is no whole export"
        case "changed bit":
            data = bytearray(weights.read_bytes())
            data[-1] ^= 1
            weights.write_bytes(data)
            return r"labels\.safetensors was changed: .* sha256 "
        case "cut":
            weights.write_bytes(weights.read_bytes()[:100])
            return r"labels\.safetensors was changed"
        case "card":
            (folder / "README.md").write_text("better")
            return r"README\.md was changed"
        case "extra":
            (folder / "body" / "more.json").write_text("{}")
            return r"more\.json is not in manifest\.json: remove it"
        case "linked folder":
            (folder / "more.json").symlink_to(folder.parent)
            return r"more\.json is not in manifest\.json: remove it"
        case "body elsewhere":
            (folder / "body").rename(folder.parent / "body")
            (folder / "body").symlink_to(folder.parent / "body")
            return r"body"
        case "pickle":
            torch.save({}, folder / "body" / "pytorch_model.bin")
            return r"pytorch_model\.bin: files of this kind are never loaded"
        case "listed pickle":
            torch.save({}, folder / "w.pt")
            told["files"]["w.pt"] = module.sha256_of(folder / "w.pt")
            told["sha256"] = module._digest(told)
        case "format":
            told["format"] = 99
        case "manifest":
            told["versions"]["torch"] = "0"
        case "no json":
            manifest.write_text("{")
            return r"manifest\.json cannot be read"
        case "unknown kind" | "prompt" | "tokens":
            decision = json.loads((folder / "decision.json").read_text())
            if name == "unknown kind":
                decision["policy"]["kind"] = "oracle"
            elif name == "prompt":
                decision["prompts"][1]["text"] += " "
            else:
                decision["policy"]["tokens"][0] += 1
            (folder / "decision.json").write_text(json.dumps(decision))
            told["files"]["decision.json"] = module.sha256_of(folder / "decision.json")
            told["sha256"] = module._digest(told)
    manifest.write_text(json.dumps(told))
    return {
        "listed pickle": r"w\.pt: files of this kind are never loaded",
        "format": r"manifest\.json: format 99, .* reads 1: install",
        "manifest": r"manifest\.json was changed after it was written",
        "unknown kind": "kind 'oracle' is unknown",
        "prompt": "this version writes the prompt",
        "tokens": "the labels are other tokens",
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        *["missing", "no manifest", "changed bit", "cut", "card", "extra", "pickle"],
        *["listed pickle", "format", "manifest", "no json", "unknown kind"],
        *["prompt", "tokens", "linked folder", "body elsewhere"],
    ],
)
def test_a_damaged_export_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = export(letter_policy(), tmp_path / "x")
    load_export(folder)
    message = damage(folder, name)
    for load in (load_export, Decider.load):
        with pytest.raises(ExportError, match=message):
            load(folder)


def test_every_file_is_watched(tmp_path: Path) -> None:
    folder = export(letter_policy(), tmp_path / "x", pages={"audit.html": "<p>x"})
    for path in module._files(folder):
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"', b"'", 1) if b'"' in data else data + b" ")
        with pytest.raises(ExportError, match=path.name.replace(".", r"\.")):
            load_export(folder)
        path.write_bytes(data)
    load_export(folder)


def test_what_cannot_be_exported_says_why(tmp_path: Path) -> None:
    out = tmp_path / "x"
    for policy, message in (
        (TabularPolicy(ITEMS), "a TabularPolicy cannot be exported"),
        (DecisionHead(HashEncoder()), "the encoder is a HashEncoder"),
        (head(tmp_path / "e"), "not the packaged one.*copy_encoder=True"),
        (Calibrated(letter_policy(), COOL), "pass the policy itself"),
        (LetterPolicy(tiny_model("llama").bfloat16(), letter_tokenizer()), "cast by"),
    ):
        with pytest.raises(ExportError, match=message):
            export(policy, out)
        assert not out.exists() and not list(tmp_path.glob(".x*"))
    with pytest.raises(ExportError, match="plain name"):
        export(letter_policy(), out, pages={"../audit.html": ""})
    for name in (
        *("audit.py", "..", "labels.safetensors", "README.md", "decision.json"),
        "manifest.json",
    ):
        with pytest.raises(ExportError, match="plain name"):
            export(letter_policy(), out, pages={name: ""})
    export(letter_policy(), out)
    with pytest.raises(ExportError, match="never written over"):
        export(letter_policy(), out)
    with pytest.raises(TypeError, match="leave out \\['labels'\\]"):
        Decider.load(out, labels=["A", "B"])
    assert is_export(out) and not is_export(tmp_path)


def test_a_subclass_is_not_taken_for_its_parent(tmp_path: Path) -> None:
    class Loud(LetterPolicy):
        pass

    policy = Loud(tiny_model("llama"), letter_tokenizer())
    with pytest.raises(ExportError, match="a Loud cannot be exported"):
        export(policy, tmp_path / "x")


def test_the_packaged_encoder_is_referred_to_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = tmp_path / "cache" / "sources" / "minilm"
    policy = head(packaged)
    monkeypatch.setattr("rlcd_core.policy.encoder.fetch", lambda name: packaged)
    folder = export(policy, tmp_path / "x")
    assert not (folder / "encoder").exists()
    assert torch.equal(rows(load_export(folder).policy), rows(policy))
    tiny_encoder(packaged, seed=1)
    with pytest.raises(ExportError, match="the head was trained on"):
        load_export(folder)


def test_the_card_says_what_is_there(tmp_path: Path) -> None:
    card = Card("Routes tickets.", "3 tickets.", {"ECE": ".01, n = 3"}, ["Young."])
    folder = export(
        letter_policy(),
        tmp_path / "x",
        questions={"team": QUESTIONS[0]},
        temperature=COOL,
        gates={"act": GATE, "never": Gate(None)},
        card=card,
    )
    text = (folder / "README.md").read_text()
    for part in (
        *("Routes tickets.", "3 tickets.", "- ECE: .01, n = 3", "- Young."),
        "`team` (choice): Which team? Options: billing, infrastructure",
        "Temperature 1.700: it took nll on held-out rows from 0.9000 to 0.8000.",
        "acts from 0.8000, abstains below 0.1000. Promise: error at most 0.05, delta "
        "0.1; n = 400, of which 120 were accepted.",
        "`never`: never acts",
    ):
        assert part in text


def test_a_question_cannot_write_a_heading_into_the_card(tmp_path: Path) -> None:
    asked = {"page": Noul("Page?\n## Limits\nNone.")}
    folder = export(letter_policy(), tmp_path / "x", questions=asked)
    text = (folder / "README.md").read_text()
    assert text.count("\n## Limits") == 1 and "Page? ## Limits None." in text


def test_folders_within_are_readable_and_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(module, "_sync", lambda path: synced.append(path.name))
    mask = os.umask(0o077)
    try:
        folder = export(letter_policy(), tmp_path / "x")
    finally:
        os.umask(mask)
    assert "body" in synced and "labels.safetensors" in synced
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Run ``work(pipe)`` in a forked child; its id, and the pipe to read from."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(write)
        finally:
            os._exit(0)
    os.close(write)
    return child, read


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["_save_model", "_sync"])
def test_a_kill_leaves_no_half_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out, policy = tmp_path / "x", letter_policy()
    write = getattr(module, name)

    def work(pipe: int) -> None:
        def slow(*arguments: Any) -> Any:
            done = write(*arguments)
            os.write(pipe, b"half way")
            time.sleep(60)
            return done

        monkeypatch.setattr(module, name, slow)
        export(policy, out)

    child, pipe = forked(work)
    assert os.read(pipe, 8) == b"half way"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not out.exists()
    (part,) = tmp_path.glob(".x-*.part")  # named as what it is
    if name == "_save_model":
        assert any(part.rglob("*.safetensors"))
        assert not is_export(part)
    load_export(export(policy, out))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("limit", [1_000, 60_000, 150_000])
def test_a_full_disk_leaves_nothing(tmp_path: Path, limit: int) -> None:
    # The system itself refuses to let a file grow beyond the limit: labels, tokenizer
    # and weights are cut in turn.
    import resource

    out, policy = tmp_path / "x", letter_policy()

    def work(pipe: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            export(policy, out)
        except OSError as error:
            os.write(pipe, f"refused: {error}".encode())

    child, pipe = forked(work)
    said = os.read(pipe, 1000)
    os.waitpid(child, 0)
    assert said.startswith(b"refused: ")
    assert not out.exists() and not list(tmp_path.glob(".x*"))


def test_an_error_while_writing_is_raised_and_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_sync", full)
    with pytest.raises(OSError, match="No space left"):
        export(letter_policy(), tmp_path / "x")
    assert os.listdir(tmp_path) in ([], ["cache"])
