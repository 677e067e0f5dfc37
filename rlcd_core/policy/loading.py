"""Loading models: quietly, offline, safetensors only; SmolLM2 converted once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from rlcd_core.data.manifest import cache_dir, fetch, load_manifest


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Switch the weight-loading progress bars of transformers off, and back on.

    They would make notebook outputs differ between runs.
    """
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def load_model(
    directory: Path | str, kind: str = "causal", dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder.

    Only safetensors files are read, no remote code is run, and no host is asked. The
    type of the weights is what `dtype` says: transformers 5 would otherwise take the
    type that the file was stored in.

    Parameters
    ----------
    kind : {"causal", "masked", "encoder"}

    Returns
    -------
    (model, tokenizer)
        The model in evaluation mode.

    Raises
    ------
    ValueError
        Another kind.
    OSError
        There is no such folder (a name is never looked up on a hub), it lacks a file,
        or its safetensors file is damaged or lacks a tensor: transformers would fill
        that with random numbers. A tokenizer that cannot be read or code that came
        with the folder is a ValueError of transformers.
    """
    import transformers
    from safetensors import SafetensorError

    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(
            f"no folder {directory}: pass a folder with config.json, safetensors and "
            "tokenizer.json; nothing is loaded from a hub by name"
        )

    loaders = {
        "causal": transformers.AutoModelForCausalLM,
        "masked": transformers.AutoModelForMaskedLM,
        "encoder": transformers.AutoModel,
    }
    if kind not in loaders:
        raise ValueError(f"kind={kind!r}: pass one of {', '.join(loaders)}")
    with quiet_transformers():
        # Said outright: left open, transformers asks at the terminal.
        safe = {"local_files_only": True, "trust_remote_code": False}
        try:
            model, report = loaders[kind].from_pretrained(
                directory,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                **safe,
            )
        except SafetensorError as error:
            raise OSError(
                f"the safetensors file in {directory} is damaged ({error}): delete the "
                "folder, so that it is fetched or converted again"
            ) from error
        # An encoder is read before its pooler, which many files leave out.
        missing = sorted(
            name
            for name in report["missing_keys"]
            if kind != "encoder" or not name.startswith("pooler.")
        )
        if missing:
            raise OSError(
                f"{directory} lacks {len(missing)} of the model's tensors, such as "
                f"{missing[0]}: it would answer with random weights; use the whole file"
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **safe)
    return model.eval(), tokenizer


def body_of(model: Any) -> Any:
    """The transformer under a language model's output layer, through a peft wrapper."""
    return getattr(model, "get_base_model", lambda: model)().base_model


def smollm2_directory() -> Path:
    """Folder of SmolLM2-135M-Instruct as float32 safetensors, converted once.

    The packaged file is a 4-bit GGUF. The first call dequantises it (about 20 s, 540
    MB of disk) into a folder of the cache named by the hash of the packaged file;
    later calls return that folder at once. The folder appears complete or not at all.
    """
    member = load_manifest("smollm2").members[0]
    target = cache_dir() / "converted" / f"smollm2-{member.sha256[:32]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.is_dir():
            # One name, so that the next call removes what a kill has left.
            building = target.with_name(f".{target.name}.part")
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            try:
                convert_gguf(fetch("smollm2") / member.to, building)
                os.replace(building, target)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return target


def convert_gguf(source: Path, target: Path) -> None:
    """Dequantise a GGUF file and save model and tokenizer as safetensors.

    Parameters
    ----------
    source : Path
        The `.gguf` file of a causal language model.
    target : Path
        An existing folder.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.float32,
            local_files_only=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(
            source.parent, gguf_file=source.name, local_files_only=True
        )
    # The weights are plain floats now, but the model still says it is quantised and
    # would refuse to be saved.
    for holder, name in (
        (model, "hf_quantizer"),
        (model, "is_quantized"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if hasattr(holder, name):
            delattr(holder, name)
    with quiet_transformers():
        model.save_pretrained(target)
    tokenizer.save_pretrained(target)
