"""Loading: dtype, formats, and the one conversion of SmolLM2."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlcd_core.policy import Encoder, LetterPolicy, MaskedPolicy, loading
from tests.tiny_models import letter_tokenizer, tiny_bert, tiny_model

torch.set_num_threads(1)


def test_float32_whatever_the_file_holds(tmp_path: Path) -> None:
    # transformers 5 loads the stored type unless it is told otherwise.
    tiny_model("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    assert LetterPolicy.load(tmp_path).model.dtype == torch.float32
    half = LetterPolicy.load(tmp_path, dtype=torch.bfloat16, padding="left")
    assert half.model.dtype == torch.bfloat16 and not half.training


def test_a_masked_model_loads_as_one(tmp_path: Path) -> None:
    model, tokenizer = tiny_bert()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert isinstance(MaskedPolicy.load(tmp_path), MaskedPolicy)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        LetterPolicy.load(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "empty", "tensor", "code", "folder"])
def test_damaged_folders_are_named(tmp_path: Path, damage: str) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    weights, place = tmp_path / "model.safetensors", tmp_path
    if damage in ("cut", "empty"):
        weights.write_bytes(weights.read_bytes()[: 1000 if damage == "cut" else 0])
        message = "is damaged"
    elif damage == "tensor":
        tensors = load_file(weights)
        del tensors["model.layers.0.mlp.down_proj.weight"]
        save_file(tensors, weights, metadata={"format": "pt"})
        message = "lacks 1 of .*down_proj"
    elif damage == "code":
        config = json.loads((tmp_path / "config.json").read_text())
        config["model_type"] = "of_its_own"
        config["auto_map"] = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}
        (tmp_path / "config.json").write_text(json.dumps(config))
        message = "custom code"
    else:
        place, message = Path("gpt2"), "nothing is loaded from a hub"
    with pytest.raises((OSError, ValueError), match=message):
        LetterPolicy.load(place)
    with pytest.raises(ValueError, match="kind='Causal': pass one of causal, masked"):
        loading.load_model(tmp_path, "Causal")


def test_conversion_happens_once_and_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path))
    member = SimpleNamespace(sha256="ab" * 32, to="model.gguf")
    manifest = SimpleNamespace(members=(member,))
    monkeypatch.setattr(loading, "load_manifest", lambda name: manifest)
    monkeypatch.setattr(loading, "fetch", lambda name: tmp_path)
    calls = []

    def convert(source: Path, target: Path) -> None:
        calls.append(source.name)
        (target / "config.json").write_text("{}")
        if len(calls) == 1:
            raise OSError("disk full")
        (target / "model.safetensors").write_text("weights")

    monkeypatch.setattr(loading, "convert_gguf", convert)
    with pytest.raises(OSError, match="disk full"):
        loading.smollm2_directory()
    assert not [p for p in (tmp_path / "converted").iterdir() if p.is_dir()]
    part = tmp_path / "converted" / f".smollm2-{member.sha256[:32]}.part"
    (part / "of a killed run").mkdir(parents=True)
    first = loading.smollm2_directory()
    assert loading.smollm2_directory() == first and calls == ["model.gguf"] * 2
    assert (first / "model.safetensors").read_text() == "weights"
    assert not part.exists() and not (first / "of a killed run").exists()
    assert member.sha256[:32] in first.name


@pytest.mark.data
def test_packaged_encoder_knows_what_is_alike() -> None:
    encoder = Encoder.load()
    texts = ["The server is down.", "The machine has crashed.", "I love this film."]
    vectors = encoder.embed(texts)
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert vectors[0] @ vectors[1] > 2 * abs(vectors[0] @ vectors[2])
