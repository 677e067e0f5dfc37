"""A decider as a folder: all that it takes to decide, hashed, and loaded strictly.

``decision.json`` holds what is no weight: the kind of policy, prompt pieces, questions,
temperature and gates. Weights are safetensors, ``README.md`` is a generated model card,
and ``manifest.json`` the SHA-256 of every file. The folder appears complete or not at
all, and one that lacks a file, has one more, or holds a changed one is refused.
The hashes find damage; they are no signature and prove no author.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlcd_core.calibrate import Temperature
from rlcd_core.data.manifest import cache_dir, sha256_of
from rlcd_core.gates import Gate, Guarantee
from rlcd_core.policy.base import (
    Batch,
    PolicyError,
    Prepared,
    evaluating,
    masked_log_softmax,
)
from rlcd_core.policy.encoder import Encoder
from rlcd_core.policy.head import DecisionHead
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.policy.loading import body_of, load_model, quiet_transformers
from rlcd_core.policy.masked import MaskedPolicy
from rlcd_core.policy.order import PermutationAverage
from rlcd_core.policy.passes import Work
from rlcd_core.policy.spans import SpanHead
from rlcd_core.policy.verbatim import VerbatimPolicy
from rlcd_core.rewards import MASKED
from rlcd_core.schema import (
    Noul,
    is_schema,
    questions_of,
    render_prefix,
    render_state,
)

FORMAT = 1
MANIFEST, DECISION, CARD = "manifest.json", "decision.json", "README.md"
# What an export may hold. A pickle can run code when it is read, whatever its name.
_PAGES = {".html", ".json", ".md", ".txt"}
_SUFFIXES = {".safetensors", ".jinja", ".model"} | _PAGES
_ENCODER_FILES = (
    "config.json model.safetensors tokenizer.json tokenizer_config.json "
    "special_tokens_map.json vocab.txt"
).split()
# States of the three kinds: their rendering, and its tokens, must not have changed.
_PROBES = (
    'Refund due? \u00fcber \u4e2d "quoted"\n<|endoftext|>\tend',
    {"tier": 1, "note": "down\nsince noon"},
    [{"role": "Customer", "content": "It is down."}, {"role": "Agent", "content": "?"}],
)
_ASKED = Noul("Is it urgent?")


class ExportError(ValueError):
    """An export that cannot be written or trusted; names the file and the mend."""


@dataclass(frozen=True)
class Card:
    """What the model card says beyond what the export itself knows.

    `evidence` maps a measure to its value, in words that hold its n; `limits` are
    sentences.
    """

    decides: str = "not stated"
    trained_on: str = "not stated"
    evidence: Mapping[str, str] = field(default_factory=dict)
    limits: Sequence[str] = ()


@dataclass(frozen=True)
class Export:
    """What `load_export` found.

    Attributes
    ----------
    policy
        Calibrated, if the export has a temperature.
    questions
        Names to questions, a JSON schema, or None, as given to `export`.
    temperature : Temperature or None
    gates : dict of str to Gate or Guarantee
    manifest : dict
        Format, versions, and the hash of each file.
    """

    policy: Any
    questions: Mapping[str, Any] | None
    temperature: Temperature | None
    gates: Mapping[str, Gate | Guarantee]
    manifest: Mapping[str, Any]


class Calibrated(nn.Module):
    """A policy whose logits are divided by a temperature, ``softmax(z / T)``."""

    def __init__(self, policy: Any, temperature: Temperature) -> None:
        super().__init__()
        self.policy = policy
        self.temperature = temperature
        self.train(getattr(policy, "training", False))

    def _cooled(self, log_p: Tensor) -> Tensor:
        return masked_log_softmax(log_p / self.temperature.value, log_p > MASKED / 2)

    def prepare(self, items: Sequence[Any]) -> Prepared:
        """As the policy prepares them."""
        return self.policy.prepare(items)

    def log_probs(self, batch: Batch) -> Tensor:
        """(B, K) masked log-probabilities at the temperature."""
        return self._cooled(self.policy.log_probs(batch))

    # Where the policy reads a state once for several questions, so does this one.

    def share(self, state: Any, questions: Sequence[Any]) -> Any:
        """As the policy shares a state; None if it cannot."""
        share = getattr(self.policy, "share", None)
        return None if share is None else share(state, questions)

    def branches(self, questions: Sequence[Any]) -> int:
        """Prompts that these questions are."""
        return getattr(self.policy, "branches", len)(questions)

    def works(self, shared: Any, batch_size: int) -> dict[str, Work]:
        """As the policy's."""
        return self.policy.works(shared, batch_size)

    def shared_log_probs(self, shared: Any) -> Tensor:
        """(m, K) log-probabilities at the temperature, the state read once."""
        return self._cooled(self.policy.shared_log_probs(shared))

    def tree_log_probs(self, shared: Any) -> Tensor:
        """(m, K) log-probabilities at the temperature, in one packed sequence."""
        return self._cooled(self.policy.tree_log_probs(shared))


class _Readout(nn.Module):
    """A language model's body, with the output rows of its labels alone."""

    def __init__(self, body: Any, rows: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.base_model = body
        self.config = body.config
        self.rows = nn.Linear(rows.shape[1], rows.shape[0], bias is not None, "meta")
        self.rows.weight = nn.Parameter(rows)
        self.rows.bias = None if bias is None else nn.Parameter(bias)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.base_model.dtype

    def get_output_embeddings(self) -> nn.Linear:
        """The label rows, in the order of the labels."""
        return self.rows

    def set_attn_implementation(self, name: str) -> None:
        """Pass on to the body."""
        self.base_model.set_attn_implementation(name)


class LabelRowsPolicy(LetterPolicy):
    """A `LetterPolicy` of which the output matrix is gone but for the label rows."""

    def _check_output(self, prompt: str) -> None:
        # The rows were checked against the whole matrix when it was there.
        self.tokens: list[int] = self.label_ids.tolist()
        self.label_ids = torch.arange(len(self.tokens))

    def _mass(self, *_: Any) -> Tensor:
        raise PolicyError(
            "label mass needs the whole output matrix, which a decision-only export "
            "leaves out: ask the policy that was exported, and build a Decider over "
            "this one with least_mass=0"
        )


# --- Policies to files and back --------------------------------------------------


def _save_model(model: Any, tokenizer: Any, folder: Path) -> str:
    """Write model and tokenizer; the name of the weights' type."""
    if hasattr(model, "get_base_model"):
        raise ExportError(
            f"the model is wrapped by {type(model).__name__}: call merge_and_unload() "
            "and build the policy from what it returns"
        )
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(model.dtype).removeprefix("torch.")


def _read_model(folder: Path, kind: str, told: Mapping[str, Any]) -> tuple[Any, Any]:
    return load_model(folder, kind, getattr(torch, told["dtype"]))


def _write_head(policy: DecisionHead, folder: Path, copy: bool) -> dict[str, Any]:
    encoder = policy.encoder
    if not isinstance(encoder, Encoder):
        raise ExportError(
            f"the encoder is a {type(encoder).__name__}: only an `Encoder`, which "
            "reads a folder of safetensors, can be exported"
        )
    packaged = cache_dir() / "sources" / "minilm"
    if copy:
        (folder / "encoder").mkdir()
        for name in _ENCODER_FILES:
            if (encoder.directory / name).is_file():
                shutil.copyfile(encoder.directory / name, folder / "encoder" / name)
    elif encoder.directory.resolve() != packaged.resolve():
        raise ExportError(
            f"the encoder in {encoder.directory} is not the packaged one, to which an "
            "export can refer: pass copy_encoder=True"
        )
    _save_tensors(policy.state_dict(), folder / "head.safetensors")
    return {
        "rank": policy.rank,
        "encoder": "encoder" if copy else "packaged minilm",
        "fingerprint": encoder.fingerprint,
        "max_tokens": encoder.max_tokens,
        "truncate": encoder.truncate,
    }


def _read_head(told: Mapping[str, Any], folder: Path) -> DecisionHead:
    options = {name: told[name] for name in ("max_tokens", "truncate")}
    if told["encoder"] == "encoder":
        encoder = Encoder(folder / "encoder", **options)
    else:
        encoder = Encoder.load(**options)
    if encoder.fingerprint != told["fingerprint"]:
        raise ExportError(
            f"{folder}: the encoder in {encoder.directory} has fingerprint "
            f"{encoder.fingerprint[:16]}, the head was trained on "
            f"{told['fingerprint'][:16]}: install the version of rlcd-core that the "
            "manifest names, or export with copy_encoder=True"
        )
    head = DecisionHead(encoder, told["rank"])
    head.load_state_dict(load_file(folder / "head.safetensors"))
    return head


def _prompt_options(policy: Any, tail: int = 0) -> dict[str, Any]:
    limit = policy.encoder.max_tokens
    limit = None if limit is None else limit + tail
    return {"max_tokens": limit, "truncate": policy.truncate}


def _label_options(policy: LetterPolicy) -> dict[str, Any]:
    options = {"labels": list(policy.labels), "padding": policy.padding}
    return options | _prompt_options(policy, len(policy._tail))


def _write_letter(policy: LetterPolicy, folder: Path, copy: bool) -> dict[str, Any]:
    head = policy.model.get_output_embeddings()
    ids = policy.label_ids.to(head.weight.device)
    rows = {"weight": head.weight[ids]}
    if head.bias is not None:
        rows["bias"] = head.bias[ids]
    _save_tensors(rows, folder / "labels.safetensors")
    model = policy.model
    if not hasattr(model, "get_base_model"):  # else `_save_model` says what to do
        model = body_of(model)
    # Any text may come, so every input embedding stays. Where the output matrix is
    # the same tensor (tied), leaving the output out therefore saves nothing.
    dtype = _save_model(model, policy.encoder.tokenizer, folder / "body")
    tokens = getattr(policy, "tokens", ids.tolist())
    return {"dtype": dtype, "tokens": tokens, "options": _label_options(policy)}


def _read_letter(told: Mapping[str, Any], folder: Path) -> LabelRowsPolicy:
    body, tokenizer = _read_model(folder / "body", "encoder", told)
    rows = load_file(folder / "labels.safetensors")
    model = _Readout(body, rows["weight"], rows.get("bias")).eval()
    policy = LabelRowsPolicy(model, tokenizer, **told["options"])
    if policy.tokens != told["tokens"]:
        raise ExportError(
            f"{folder}: with this version of tokenizers the labels are other tokens "
            "than the exported rows: install the versions that the manifest names"
        )
    return policy


def _write_whole(policy: Any, folder: Path, copy: bool) -> dict[str, Any]:
    dtype = _save_model(policy.model, policy.encoder.tokenizer, folder / "model")
    match policy:
        case VerbatimPolicy():
            options = {"length": policy.length, "prior": policy.prior}
            options |= _prompt_options(policy)
        case MaskedPolicy():
            options = _label_options(policy) | {"apart": policy.apart}
        case SpanHead():
            options = {"rank": policy.rank} | _prompt_options(policy)
            rows = {"query": policy.query, "key": policy.key}
            _save_tensors(rows, folder / "head.safetensors")
    return {"dtype": dtype, "options": options}


def _read_whole(told: Mapping[str, Any], folder: Path) -> Any:
    make, model = {
        "verbatim": (VerbatimPolicy, "causal"),
        "masked": (MaskedPolicy, "masked"),
        "spans": (SpanHead, "encoder"),
    }[told["kind"]]
    policy = make(*_read_model(folder / "model", model, told), **told["options"])
    if make is SpanHead:  # the rows beside its model
        policy.load_state_dict(load_file(folder / "head.safetensors"), strict=False)
    return policy


def _write_order(policy: PermutationAverage, folder: Path, copy: bool) -> Any:
    inner = _write_policy(policy.policy, folder, copy)
    return {"count": policy.count, "mean": policy.mean, "inner": inner}


def _read_order(told: Mapping[str, Any], folder: Path) -> PermutationAverage:
    inner = _read_policy(told["inner"], folder)
    return PermutationAverage(inner, told["count"], told["mean"])


# By exact type: a subclass may decide in another way. A masked model is kept whole,
# since its label rows sit behind a layer of its own and are usually tied.
_KINDS: dict[str, tuple[tuple[type, ...], Any, Any]] = {
    "head": ((DecisionHead,), _write_head, _read_head),
    "spans": ((SpanHead,), _write_whole, _read_whole),
    "letter": ((LetterPolicy, LabelRowsPolicy), _write_letter, _read_letter),
    "masked": ((MaskedPolicy,), _write_whole, _read_whole),
    "verbatim": ((VerbatimPolicy,), _write_whole, _read_whole),
    "order": ((PermutationAverage,), _write_order, _read_order),
}


def _write_policy(policy: Any, folder: Path, copy: bool) -> dict[str, Any]:
    for kind, (types, write, _) in _KINDS.items():
        if type(policy) in types:
            return {"kind": kind, **write(policy, folder, copy)}
    known = ", ".join(t.__name__ for types, *_ in _KINDS.values() for t in types)
    raise ExportError(f"a {type(policy).__name__} cannot be exported; {known} can")


def _read_policy(told: Mapping[str, Any], folder: Path) -> Any:
    if told["kind"] not in _KINDS:
        raise ExportError(
            f"{folder / DECISION}: policy kind {told['kind']!r} is unknown to this "
            "version of rlcd-core: install the one that the manifest names"
        )
    return _KINDS[told["kind"]][2](told, folder)


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({n: v.detach().cpu().contiguous() for n, v in tensors.items()}, path)


def _prompts(policy: Any) -> list[dict[str, Any]]:
    """How the probes are written, and their tokens where the policy has a tokenizer."""
    while hasattr(policy, "policy"):
        policy = policy.policy
    found = []
    for state in _PROBES:
        text = render_state(state)
        if not isinstance(policy, DecisionHead):
            text = render_prefix(state)
        if isinstance(policy, LetterPolicy):
            text += policy._suffixes([(state, _ASKED)])[0]
        plain = getattr(policy.encoder, "plain", None)  # an `Encoder` has hashes
        found.append({"text": text, "ids": plain([text])[0] if plain else None})
    return found


# --- Writing ---------------------------------------------------------------------


def export(
    policy: Any,
    folder: Path | str,
    *,
    questions: Mapping[str, Any] | None = None,
    temperature: Temperature | None = None,
    gates: Mapping[str, Gate | Guarantee] | None = None,
    card: Card = Card(),
    copy_encoder: bool = False,
    pages: Mapping[str, str] | None = None,
) -> Path:
    """Write a policy and all that belongs to it into a new folder.

    A causal letter policy keeps its body and the output rows of its labels, not the
    output matrix of the whole vocabulary.

    Parameters
    ----------
    policy : DecisionHead, SpanHead, LetterPolicy, MaskedPolicy, VerbatimPolicy
        Or a `PermutationAverage` of one. Uncalibrated: the temperature is apart.
    folder : path
        Must not exist: an export is never written over.
    questions : mapping, optional
        Names to questions, or a JSON schema.
    temperature : Temperature, optional
        Applied to every answer of the loaded policy.
    gates : mapping of str to Gate or Guarantee, optional
    card : Card
        For the generated ``README.md``.
    copy_encoder : bool
        Of a decision head: copy the encoder in (91 MB for the packaged one) instead of
        referring to the packaged one by its hashes.
    pages : mapping of str to str, optional
        Further text files, such as an audit page; names end in .html, .json, .md or
        .txt.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ExportError
        The folder exists, a page has the name of another file, or the policy cannot
        be exported; the message tells why.
    SchemaError
        The questions are invalid.
    OSError
        The disk is full or cannot be written; nothing is left behind.
    """
    folder = Path(folder)
    if folder.exists():
        raise ExportError(
            f"{folder} exists, and an export is never written over: choose another "
            "folder, or delete this one"
        )
    if isinstance(policy, Calibrated):
        raise ExportError("pass the policy itself, and its temperature as temperature=")
    schema = is_schema(questions)
    named = {} if questions is None else questions_of(questions)  # also checks a schema
    told = {name: question.to_dict() for name, question in named.items()}
    decision: dict[str, Any] = {
        "questions": questions if schema else told or None,
        "schema": schema,
        "temperature": None if temperature is None else asdict(temperature),
        "gates": {name: asdict(gate) for name, gate in (gates or {}).items()},
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(
        tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-", suffix=".part")
    )
    try:
        decision["policy"] = _write_policy(policy, building, copy_encoder)
        decision["prompts"] = _prompts(policy)
        _compare(policy, _read_policy(decision["policy"], building))
        for name, text in (pages or {}).items():
            taken = (building / name).exists() or name in (MANIFEST, DECISION, CARD)
            plain = Path(name).name == name and Path(name).suffix in _PAGES
            if taken or not plain:
                raise ExportError(
                    f"page {name!r}: use a plain name such as audit.html, other than "
                    "those of the export's own files"
                )
            _write(building / name, text)
        _write(building / DECISION, _json(decision))
        _write(building / CARD, render_card(decision, card))
        _write(building / MANIFEST, _json(_manifest(building)))
        for path in [*building.rglob("*"), building]:
            path.chmod(0o755 if path.is_dir() else 0o644)
            _sync(path)
        os.rename(building, folder)  # on one disk: all of it at once
        _sync(folder.parent)
    except SafetensorError as error:
        raise OSError(
            f"{folder} could not be written: {error}; free the disk"
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _compare(policy: Any, back: Any) -> None:
    """Refuse an export whose answers are not the policy's to the last bit."""
    items = [(state, _ASKED) for state in _PROBES]
    rows = []
    for one in (policy, back.to(next(policy.parameters()).device)):
        with evaluating(one):
            rows.append(one.log_probs(one.prepare(items).take(range(len(items)))))
    if not torch.equal(*rows):
        raise ExportError(
            "the loaded policy does not answer as this one does (largest change "
            f"{float((rows[0] - rows[1]).abs().max()):.2g}): something of it is in no "
            "weight, such as buffers cast by model.to(...); load the model in the type "
            "that it shall have, dtype="
        )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _sync(path: Path) -> None:
    """Have the system write a file or folder out before it is called finished."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _json(value: Any) -> str:
    # In the order given: questions are asked, and answered, in theirs.
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _files(folder: Path) -> list[Path]:
    # A link to a folder counts as a file, so that nothing comes in through it.
    paths = folder.rglob("*")
    return sorted(path for path in paths if path.is_symlink() or not path.is_dir())


def _digest(manifest: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(_json(rest).encode()).hexdigest()


def _manifest(folder: Path) -> dict[str, Any]:
    packages = ("rlcd-core", "numpy", "torch", "transformers", "tokenizers")
    versions = {"python": platform.python_version()}
    for name in (*packages, "safetensors"):
        versions[name] = importlib.metadata.version(name)
    files = {p.relative_to(folder).as_posix(): sha256_of(p) for p in _files(folder)}
    manifest = {"format": FORMAT, "versions": versions, "files": files}
    return {**manifest, "sha256": _digest(manifest)}


def render_card(decision: Mapping[str, Any], card: Card) -> str:
    """The model card, Markdown, from what is exported and what `Card` adds."""
    questions = decision["questions"]
    named = {} if questions is None else questions_of(questions)
    asked = [
        f"- `{name}` ({q.kind}): {' '.join(q.text.split())} "
        f"Options: {', '.join(q.options)}."
        for name, q in named.items()
    ]
    cooled = decision["temperature"]
    calibration = "No temperature was fitted: the probabilities are the policy's own."
    if cooled is not None:
        calibration = (
            f"Temperature {cooled['value']:.3f}: it took {cooled['objective']} on "
            f"held-out rows from {cooled['before']:.4f} to {cooled['after']:.4f}."
            + (" It lies at the edge of its range." if cooled["at_bound"] else "")
        )
    gates = []
    for name, gate in decision["gates"].items():
        rule = gate.get("gate", gate)
        act = "never acts" if rule["act"] is None else f"acts from {rule['act']:.4f}"
        line = f"- `{name}`: {act}, abstains below {rule['abstain']:.4f}."
        if "promise" in gate:
            chance = "" if gate["delta"] is None else f", delta {gate['delta']:g}"
            line += (
                f" Promise: {gate['promise']} at most {gate['target']:g}{chance}; "
                f"n = {gate['n']:,}, of which {gate['accepted']:,} were accepted."
            )
        gates.append(line)
    parts = {
        "What it decides": [card.decides, "", *asked],
        "How": [f"Policy: {decision['policy']['kind']}."],
        "Trained on": [card.trained_on],
        "Calibration": [
            calibration,
            "",
            *[f"- {name}: {value}" for name, value in card.evidence.items()],
        ],
        "Gates": gates or ["None: every answer is left to the reader."],
        "Limits": [
            "- All of this is about new cases like those it was measured on.",
            "- The hashes in `manifest.json` find damage; they are no signature.",
            *[f"- {limit}" for limit in card.limits],
        ],
    }
    text = "# Model card\n\nWritten by `rlcd_core.export`; not edited by hand.\n"
    for title, lines in parts.items():
        text += f"\n## {title}\n\n" + "\n".join(lines).strip() + "\n"
    return text + (
        '\n## Use\n\n    Decider.load("this folder").ask(state, questions)\n'
    )


# --- Loading ---------------------------------------------------------------------


def is_export(folder: Path | str) -> bool:
    """Whether a folder holds, or held, an export."""
    return any((Path(folder) / name).is_file() for name in (MANIFEST, DECISION))


def load_export(folder: Path | str) -> Export:
    """Load an export after checking every byte of it.

    Raises
    ------
    ExportError
        A file is missing, extra, changed or of a kind that is never loaded (pickles);
        the format is unknown; prompts or labels come out differently with the versions
        installed here. The message names the file and the mend.
    OSError, ValueError
        As `rlcd_core.policy.loading.load_model` raises them.
    """
    folder = Path(folder)
    manifest = _checked(folder)
    decision = json.loads((folder / DECISION).read_text("utf-8"))
    policy = _read_policy(decision["policy"], folder).eval()
    for then, now in zip(decision["prompts"], _prompts(policy), strict=True):
        if then != now:
            versions = ", ".join(f"{n} {v}" for n, v in manifest["versions"].items())
            raise ExportError(
                f"{folder / DECISION}: this version writes the prompt {now['text']!r} "
                f"(or its tokens) otherwise than {then['text']!r}, which the policy "
                f"was trained on: install {versions}"
            )
    temperature = decision["temperature"]
    if temperature is not None:
        temperature = Temperature(**temperature)
        policy = Calibrated(policy, temperature)
    questions = decision["questions"]
    if questions is not None and not decision["schema"]:
        questions = questions_of(questions)
    gates = {name: _gate(gate) for name, gate in decision["gates"].items()}
    return Export(policy, questions, temperature, gates, manifest)


def _gate(told: Mapping[str, Any]) -> Gate | Guarantee:
    if "gate" in told:
        return Guarantee(**{**told, "gate": Gate(**told["gate"])})
    return Gate(**told)


def _checked(folder: Path) -> dict[str, Any]:
    """The manifest, once every file is there, no other is, and each has its hash."""
    mend = "export again, or copy the whole folder anew"
    path = folder / MANIFEST
    if not path.is_file():
        raise ExportError(f"{path} is missing: this is no whole export; {mend}")
    try:
        manifest = json.loads(path.read_text("utf-8"))
        known = manifest["format"], manifest["files"], manifest["sha256"]
    except (ValueError, TypeError, KeyError) as error:
        raise ExportError(f"{path} cannot be read ({error!r}): {mend}") from error
    if known[0] != FORMAT:
        raise ExportError(
            f"{path}: format {known[0]!r}, and this version of rlcd-core reads "
            f"{FORMAT}: install the version that wrote it, or export again"
        )
    if known[2] != _digest(manifest):
        raise ExportError(f"{path} was changed after it was written: {mend}")
    found = {p.relative_to(folder).as_posix(): p for p in _files(folder) if p != path}
    for name in sorted({*found, *known[1]}):
        if Path(name).suffix not in _SUFFIXES:
            raise ExportError(
                f"{folder / name}: files of this kind are never loaded, since a pickle "
                "can run code; remove it, and save weights as safetensors"
            )
        if name not in known[1]:
            raise ExportError(f"{found[name]} is not in {MANIFEST}: remove it")
        if name not in found:
            raise ExportError(f"{folder / name} is missing: {mend}")
        told, now = known[1][name], sha256_of(found[name])
        if told != now:
            raise ExportError(
                f"{found[name]} was changed: {MANIFEST} says sha256 {told}, found "
                f"{now}; {mend}"
            )
    return manifest
