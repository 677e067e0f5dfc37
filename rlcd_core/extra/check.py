"""``rlcd check``: what can be wrong with a model, before hours are spent on it."""

from __future__ import annotations

import re
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlcd_core.data.manifest import SourceError, load_manifest, manifest_names
from rlcd_core.data.triage import tickets
from rlcd_core.evaluate import battery
from rlcd_core.policy import LetterPolicy, MaskedPolicy, PolicyError, predict
from rlcd_core.policy.base import Item, Prepared
from rlcd_core.policy.loading import load_model, smollm2_directory

EXACT = 1e-5
"""Largest difference of probabilities that float32 rounding may explain."""
HALF = 0.05
"""Largest mean total variation between bf16 autocast and float32."""
RATE = 1e-5
"""Learning rate of the one trial step (AdamW)."""
FILES = ["*.safetensors", "*.json", "*.txt", "*.model"]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    name, value, wanted : str
    passed : bool or None
        None where there is nothing to pass, only to know.
    """

    name: str
    value: str
    wanted: str = ""
    passed: bool | None = None


def model_folder(model: str) -> Path:
    """The folder of a model: a path, a manifest's name, or ``owner/name@revision``.

    Parameters
    ----------
    model : str
        A hub model needs a revision of 40 hexadecimal digits: a branch's content can
        change under the same name.

    Raises
    ------
    SourceError
        No such folder or name, a revision that is no commit, or a hub that cannot be
        reached.
    """
    if Path(model).is_dir():
        return Path(model)
    if model == "smollm2":
        return smollm2_directory()
    name, _, revision = model.partition("@")
    if model in manifest_names() and load_manifest(model).registry == "hub":
        manifest = load_manifest(model)
        name, revision = manifest.package, manifest.version
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise SourceError(
            f"{model!r} is no folder and no model of a manifest; pass a folder with "
            "config.json, safetensors and tokenizer.json, or owner/name@revision"
        )
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise SourceError(
            f"{model!r}: pin a revision of 40 hexadecimal digits, {name}@<commit>"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
    except Exception as error:  # of many kinds, by what is unreachable
        raise SourceError(
            f"{name} at {revision} could not be fetched ({type(error).__name__}): "
            "connect this machine, or pass a folder that was fetched elsewhere"
        ) from error


def examine(
    folder: Path,
    kind: str = "causal",
    *,
    questions: int = 12,
    outcomes: int = 64_000,
    seed: int = 0,
) -> Iterator[Row]:
    """Check a model as a policy on synthetic tickets, row by row.

    Parameters
    ----------
    folder : Path
        Loaded in float32, onto the GPU where there is one. Its files are only read;
        the trial step changes the model in memory.
    kind : {"causal", "masked"}
    questions : int
        Tickets asked, at least 4.
    outcomes : int
        Size of the run whose time is predicted, in questions.

    Yields
    ------
    Row
        Of what passed, failed or was measured. After a failure that leaves no policy
        to go on with, nothing more comes.
    """
    if kind not in ("causal", "masked"):
        raise SourceError(f"kind {kind!r}: use causal or masked")
    if questions < 4:
        raise SourceError(f"questions={questions}: ask at least 4")
    try:
        model, tokenizer = load_model(folder, kind)
    except (OSError, ValueError) as error:
        yield Row("load", str(error), "a whole model", False)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    parameters = sum(p.numel() for p in model.parameters())
    kind_name = type(model).__name__
    yield Row("load", f"{kind_name}, {parameters:,} parameters", "a whole model", True)
    make = LetterPolicy if kind == "causal" else MaskedPolicy
    wanted = "single distinct tokens, plain logits"
    try:
        policy = make(model, tokenizer).to(device)
    except PolicyError as error:
        yield Row("labels", str(error), wanted, False)
        return
    yield Row("labels", f"{len(policy.labels)} from A", wanted, True)
    drawn = tickets(questions, np.random.default_rng(seed))
    items: list[Item] = [(ticket.state, ticket.question) for ticket in drawn]
    labels = np.array([ticket.label for ticket in drawn])
    rows = _measured(policy, items, labels, outcomes, seed)
    for name, measure in rows.items():
        try:
            yield from measure()
        except (PolicyError, FloatingPointError) as error:
            yield Row(name, str(error), "an answer", False)


def _measured(
    policy: Any, items: list[Item], labels: np.ndarray, outcomes: int, seed: int
) -> dict[str, Callable[[], Iterator[Row]]]:
    """The measurements by name, in order; the trial step comes last."""
    held: dict[str, Any] = {}

    def prepared() -> Prepared:
        if "prepared" not in held:
            held["prepared"] = policy.prepare(items)
        return held["prepared"]

    def whole() -> np.ndarray:
        if "p" not in held:
            held["p"] = predict(policy, prepared(), batch_size=8)
        return held["p"]

    def seam() -> Iterator[Row]:
        clean = policy.encoder.seam_is_clean
        shared = policy.share(items[0][0], [question for _, question in items[:4]])
        if shared is None:
            yield Row("shared prefix", "each prompt by itself: attention not shareable")
            return
        asked = [(items[0][0], question) for _, question in items[:4]]
        alone = predict(policy, policy.prepare(asked), batch_size=1)
        with torch.inference_mode():
            once = policy.shared_log_probs(shared).exp().cpu().numpy()
        note = "" if clean else " (seam not clean: longest common run of tokens)"
        yield _within("shared prefix", np.abs(once - alone).max(), EXACT, note)

    def padding() -> Iterator[Row]:
        right = whole()
        side = policy.padding
        policy.padding = "left"
        try:
            left = predict(policy, policy.prepare(items), batch_size=8)
        finally:
            policy.padding = side
        yield _within("left = right padding", np.abs(left - right).max(), EXACT)

    def common() -> Iterator[Row]:
        rng = np.random.default_rng(seed)
        found = battery(
            policy, items, rng=rng, batch_size=8, tolerance=EXACT, n_resamples=500
        )
        for check in found:
            if check.limit is not None:
                yield _within(check.name, check.value, check.limit)
            elif check.name in ("order flip rate", "order distance"):
                yield Row(check.name, f"{check.value:.3f}")

    def half() -> Iterator[Row]:
        device = policy.device.type
        with torch.autocast(device, torch.bfloat16):
            p = predict(policy, prepared(), batch_size=8)
        moved = 0.5 * np.abs(p - whole()).sum(1).mean()
        yield _within("bf16 against float32", moved, HALF, " mean total variation")

    def mass() -> Iterator[Row]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the number is in the table
            told = policy.label_mass(prepared().take(range(len(items))))
        share = float(told.mean())
        note = "" if share >= 0.01 else ": does not answer with a label yet"
        yield Row("label mass", f"{share:.3g}{note}")

    def cost() -> Iterator[Row]:
        taken = []
        for item in items[:6]:
            began = time.perf_counter()
            predict(policy, policy.prepare([item]))
            taken.append(1000 * (time.perf_counter() - began))
        # The first call also pays for what is set up once.
        yield Row("ms per question", f"{statistics.median(taken[1:]):.1f}")

    def step() -> Iterator[Row]:
        size = min(8, len(items))
        batch = prepared().take(range(size))
        right = torch.from_numpy(labels[:size])[:, None].to(policy.device)

        def loss() -> torch.Tensor:
            return -policy.log_probs(batch).gather(1, right).mean()

        trainable = [p for p in policy.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(trainable, lr=RATE, weight_decay=0.0)
        with _training_seconds(policy) as spent:
            before = loss()
            before.backward()
            optimiser.step()
        with torch.no_grad():
            change = float(loss() - before)
        value = f"{before.item():.4f} changes by {change:+.2g}"
        yield Row("loss after one step", value, "falls", change < 0)
        hours = spent[0] / size * outcomes / 3600
        told = f"{hours:.1f} h" if hours >= 0.1 else f"{60 * hours:.1f} min"
        yield Row(f"{outcomes:,} outcomes, trained", f"about {told} at this speed")
        yield Row("peak memory", f"{_peak_bytes(policy.device) / 2**30:.2f} GiB")

    measures = [("shared prefix", seam), ("padding", padding), ("battery", common)]
    measures += [("bf16", half), ("label mass", mass), ("time", cost), ("step", step)]
    return dict(measures)


def _within(name: str, value: float, limit: float, note: str = "") -> Row:
    shown = f"{value:.2g}{note}"
    return Row(name, shown, f"at most {limit:g}", bool(value <= limit))


@contextmanager
def _training_seconds(policy: Any) -> Iterator[list[float]]:
    """Measure what happens inside; the result holds the seconds afterwards."""
    spent: list[float] = []
    cuda = policy.device.type == "cuda"
    began = time.perf_counter()
    yield spent
    if cuda:
        torch.cuda.synchronize(policy.device)
    spent.append(time.perf_counter() - began)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def line(row: Row) -> str:
    """One row as text: verdict, name, value, what was wanted."""
    verdict = {True: "ok", False: "FAILED", None: ""}[row.passed]
    wanted = f"  ({row.wanted})" if row.wanted else ""
    return f"{verdict:7}{row.name:26}{row.value}{wanted}"
