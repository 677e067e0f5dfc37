"""Many requests at once: answers in batches, one failure at a time, and whose."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rlcd_core.decider import Decider
from rlcd_core.gates import Gate, Guarantee
from rlcd_core.policy.base import PolicyError, predict
from rlcd_core.policy.encoder import Encoder
from rlcd_core.schema import (
    Answer,
    Question,
    SchemaError,
    make_answer,
    questions_of,
    render_state,
)

Request = tuple[Any, Sequence[Question]]
"""A state and the questions on it."""


def answer_batch(
    decider: Decider, requests: Sequence[Request]
) -> list[list[Answer] | SchemaError | PolicyError]:
    """Answer several requests in as few passes as the policy allows.

    A request that is cheapest read in a way of its own, its state once for several
    questions (`Decider.plan`), goes by itself; all others are predicted together.

    Parameters
    ----------
    decider : Decider
    requests : sequence of N (state, questions)

    Returns
    -------
    list of N
        The answers to a request, or what is wrong with it: a request that cannot be
        answered leaves the others alone. Equal to `Decider.ask` to rounding.
    """
    found: list[Any] = [None] * len(requests)
    together: list[int] = []
    for place, (state, questions) in enumerate(requests):
        try:
            render_state(state)
            if decider.plan(state, questions).way != "plain":
                found[place] = decider.ask(state, list(questions))
            else:
                together.append(place)
        except (SchemaError, PolicyError) as error:
            found[place] = error
    if not together:
        return found
    try:
        pairs = [(requests[i][0], q) for i in together for q in requests[i][1]]
        rows = iter(
            predict(
                decider.policy,
                decider.policy.prepare(pairs),
                batch_size=decider.batch_size,
            ).tolist()
        )
        for place in together:
            found[place] = [
                make_answer(question, next(rows)[: len(question.options)])
                for question in requests[place][1]
            ]
    except (SchemaError, PolicyError) as error:
        if len(together) == 1:
            found[together[0]] = error
            return found
        # One of them is at fault: halves find it in a few passes.
        for half in (together[::2], together[1::2]):
            answers = answer_batch(decider, [requests[i] for i in half])
            for place, answer in zip(half, answers, strict=True):
                found[place] = answer
    return found


def gates_for(
    decider: Decider, named: Mapping[str, Question]
) -> dict[str, dict[str, Gate]]:
    """The gates of an export that were made for these very questions.

    A gate holds for the question it was calibrated on: of the export's questions, the
    one with its name, or the only one. Any other question has none.

    Returns
    -------
    dict
        Names of questions to names of gates to gates; questions without are left out.
    """
    exported = decider.exported
    if exported is None or not exported.questions:
        return {}
    known = questions_of(exported.questions)
    found: dict[str, dict[str, Gate]] = {}
    for name, question in named.items():
        for its_name, its_question in known.items():
            gates = {
                gate: held.gate if isinstance(held, Guarantee) else held
                for gate, held in exported.gates.items()
                if question == its_question and (len(known) == 1 or gate == its_name)
            }
            if gates:
                found[name] = gates
    return found


def answer_dict(answer: Answer, gates: Mapping[str, Gate] | None) -> dict[str, Any]:
    """`Answer.to_dict`, and under ``gates`` what each gate says: act, escalate or
    abstain."""
    told = answer.to_dict()
    if gates:
        told["gates"] = {
            name: str(gate.decide(answer.confidence)) for name, gate in gates.items()
        }
    return told


def fingerprint(policy: Any) -> str:
    """First 16 hex digits over a policy's kind, weights and frozen encoder.

    Settings that are no tensors do not enter; `rlcd_core.extra.bulk` also compares
    answers before it goes on with a file.
    """
    digest = hashlib.sha256(type(policy).__name__.encode())
    modules = policy.modules() if isinstance(policy, torch.nn.Module) else ()
    for module in modules:
        encoder = getattr(module, "encoder", None)
        digest.update(f"{type(module).__name__} ".encode())
        digest.update(str(getattr(encoder, "fingerprint", "")).encode())
    state = policy.state_dict() if isinstance(policy, torch.nn.Module) else {}
    for name, tensor in sorted(state.items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


class Forgetful:
    """An encoder that writes no embedding to disk and remembers only the last texts.

    States that pass by once, of a service or a large file, would fill the cache with
    traces of what strangers wrote; question and option texts come back every time.

    Parameters
    ----------
    encoder : Encoder
    remember : int
        Texts whose embeddings stay in memory.
    """

    def __init__(self, encoder: Encoder, remember: int = 2048) -> None:
        self.inner = encoder
        self.dim = encoder.dim
        self.fingerprint = encoder.fingerprint
        self.remember = remember
        self._known: OrderedDict[str, np.ndarray] = OrderedDict()

    def embed(self, texts: Sequence[str], **_: Any) -> np.ndarray:
        """(N, dim) float32 unit rows; errors as `Encoder.embed`."""
        new = [t for t in dict.fromkeys(texts) if t not in self._known]
        here = {t: self._known[t] for t in texts if t in self._known}
        if new:
            rows = self.inner.embed(new, progress=False, keep=False)
            here |= dict(zip(new, rows, strict=True))
        for text in texts:
            self._known[text] = here[text]
            self._known.move_to_end(text)
        while len(self._known) > self.remember:
            self._known.popitem(last=False)
        return np.stack([here[text] for text in texts])


def leave_no_trace(policy: Any) -> Any:
    """Put a `Forgetful` encoder into every part of a policy that has an `Encoder`."""
    if isinstance(policy, torch.nn.Module):
        for module in policy.modules():
            if isinstance(getattr(module, "encoder", None), Encoder):
                module.encoder = Forgetful(module.encoder)
    return policy
