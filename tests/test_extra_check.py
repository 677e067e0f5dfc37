"""``rlcd check``: what it passes, what it must find, and where models come from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from rlcd_core.__main__ import app
from rlcd_core.data.manifest import SourceError
from rlcd_core.extra import check
from rlcd_core.policy import LetterPolicy
from tests.tiny_models import (
    character_tokenizer,
    letter_tokenizer,
    tiny_bert,
    tiny_model,
)

torch.set_num_threads(1)


def saved(
    folder: Path, kind: str = "llama", tokenizer: Any = None, **fields: Any
) -> Path:
    tiny_model(kind, window=1024, **fields).save_pretrained(folder)
    (tokenizer or letter_tokenizer()).save_pretrained(folder)
    return folder


def table(folder: Path, **options: Any) -> dict[str, check.Row]:
    rows = check.examine(folder, questions=4, **options)
    return {row.name: row for row in rows}


MUST = {
    "load",
    "labels",
    "shared prefix",
    "left = right padding",
    "mask",
    "sum",
    "determinism",
    "batch",
    "bf16 against float32",
    "loss after one step",
}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_sound_model_passes_every_check(kind: str, tmp_path: Path) -> None:
    rows = table(saved(tmp_path, kind), outcomes=1000)
    assert {name for name, row in rows.items() if row.passed} == MUST
    assert {row.passed for row in rows.values()} == {True, None}
    told = {name for name, row in rows.items() if row.passed is None}
    assert told == {
        "order flip rate",
        "order distance",
        "label mass",
        "ms per question",
        "1,000 outcomes, trained",
        "peak memory",
    }
    assert float(rows["ms per question"].value) > 0
    assert re.match(r"about [\d.]+ (min|h)", rows["1,000 outcomes, trained"].value)
    assert float(rows["peak memory"].value.split()[0]) > 0.05


def test_a_masked_model_passes_too(tmp_path: Path) -> None:
    model, tokenizer = tiny_bert()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    rows = table(tmp_path, kind="masked")
    assert [name for name, row in rows.items() if row.passed is False] == []
    assert rows["shared prefix"].passed is None


def test_the_command_prints_a_table_and_its_status_tells(tmp_path: Path) -> None:
    folder = saved(tmp_path / "sound")
    done = CliRunner().invoke(app, ["check", str(folder), "--questions", "4"])
    assert done.exit_code == 0, done.output
    assert re.search(r"^ok +labels +\d+ from A", done.output, re.MULTILINE)
    assert "FAILED" not in done.output
    broken = saved(tmp_path / "broken", tokenizer=character_tokenizer())
    done = CliRunner().invoke(app, ["check", str(broken)])
    assert done.exit_code == 1
    assert re.search(r"^FAILED +labels .*'A'", done.output, re.MULTILINE)
    assert "1 failed: labels" in done.output
    done = CliRunner().invoke(app, ["check", str(tmp_path / "nowhere")])
    assert done.exit_code == 1 and "is no folder" in done.output


def test_damaged_weights_are_found(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    rows = table(folder)
    failed = [row for row in rows.values() if row.passed is False]
    assert failed and any("NaN" in row.value for row in failed)
    file.write_bytes(file.read_bytes()[:1000])
    rows = table(folder)
    assert list(rows) == ["load"] and rows["load"].passed is False
    assert "damaged" in rows["load"].value


FAULTS = {
    "shared prefix": ("shared_log_probs", lambda out, _: out.roll(1, -1)),
    "left = right padding": (
        "log_probs",
        lambda out, policy: (
            (out * 1.1).log_softmax(-1) if policy.padding == "left" else out
        ),
    ),
    "batch": (
        "log_probs",
        lambda out, _: (out + len(out) * 1e-3 * out.clamp_min(-9)).log_softmax(-1),
    ),
    "loss after one step": (
        "log_probs",
        lambda out, _: out - 2 * (out - out.detach()) if out.requires_grad else out,
    ),
    "bf16 against float32": (
        "log_probs",
        lambda out, _: (
            (3 * out.clamp_min(-99)).log_softmax(-1)
            if torch.is_autocast_enabled("cpu")
            else out
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, spoil = FAULTS[fault]
    sound = getattr(LetterPolicy, method)

    def broken(self: LetterPolicy, *args: Any, **kwargs: Any) -> torch.Tensor:
        return spoil(sound(self, *args, **kwargs), self)

    monkeypatch.setattr(LetterPolicy, method, broken)
    rows = table(saved(tmp_path))
    assert rows[fault].passed is False


def test_where_a_model_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check.model_folder(str(tmp_path)) == tmp_path
    for name in ("nowhere", "movie", "../owner/name"):
        with pytest.raises(SourceError, match="is no folder and no model"):
            check.model_folder(name)
    for name in ("owner/name", "owner/name@main", "owner/name@" + "g" * 40):
        with pytest.raises(SourceError, match="pin a revision of 40"):
            check.model_folder(name)
    import huggingface_hub

    asked = []

    def download(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        if name == "owner/away":
            raise ConnectionError("no route")
        assert not any(".bin" in p or ".py" in p for p in allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert check.model_folder("owner/name@" + "a" * 40) == tmp_path
    assert check.model_folder("qwen3") == tmp_path
    assert asked[0] == ("owner/name", "a" * 40)
    assert asked[1][0] == "Qwen/Qwen3-0.6B-Base" and len(asked[1][1]) == 40
    with pytest.raises(SourceError, match="could not be fetched.*ConnectionError"):
        check.model_folder("owner/away@" + "b" * 40)
    with pytest.raises(SourceError, match="causal or masked"):
        next(check.examine(tmp_path, "verbatim"))
    with pytest.raises(SourceError, match="at least 4"):
        next(check.examine(tmp_path, questions=2))
