"""Synthetic support tickets whose right probabilities are fixed by the generator.

One cue: the department is certain. Cues of two departments, in random order: a fair
coin decides which is right, so .5 / .5 is right. A pressing or a calm sentence: the
ticket is escalated with probability .9 or .1. Every other sentence is drawn
independently of the labels, so these posteriors hold given the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import yaml

from rlcd_core.data.items import Item
from rlcd_core.data.split import normalise
from rlcd_core.schema import Choice, Noul, Question, Score

DEPARTMENTS = ("billing", "infrastructure", "security", "product support")
SEVERITIES = ("low", "medium", "high", "critical")
MOODS = ("calm", "annoyed", "angry")
ESCALATE_RATE = 0.9
DEPARTMENT = Choice("Which department should handle this ticket?", DEPARTMENTS)
ESCALATE = Noul("Should this ticket be escalated to the person on call now?")
SEVERITY = Score("How severe is the problem?", SEVERITIES)
NEEDS_HUMAN = Noul("Does this ticket need a human?")
WILL_ESCALATE = Noul("Will this conversation end in an escalation?")
# The multi-turn chain: chance to escalate right after a customer turn in each mood,
# mood of the first turn, and mood of the next turn given this one. Seven turns at most.
HAZARD = np.array([0.01, 0.08, 0.35])
START = np.array([0.6, 0.3, 0.1])
MOOD_STEP = np.array([[0.75, 0.20, 0.05], [0.25, 0.45, 0.30], [0.05, 0.25, 0.70]])
MAX_TURNS = 7


@cache
def _bank() -> dict[str, Any]:
    text = files("rlcd_core.data").joinpath("triage.yaml").read_text("utf-8")
    return yaml.safe_load(text)


class _Writer:
    """Draws sentences; `phrases` restricts cues to a part of the surface forms, and a
    `bare` ticket holds its telling sentences alone."""

    def __init__(
        self, rng: np.random.Generator, phrases: str = "all", bare: bool = False
    ) -> None:
        if phrases not in ("all", "seen", "held_out"):
            raise ValueError(f"phrases is all, seen or held_out, not {phrases!r}")
        self.rng, self.phrases, self.bare = rng, phrases, bare
        self.author: dict[str, str] = {}

    def choose(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def fill(self, sentence: str) -> str:
        def value(match: re.Match[str]) -> str:
            slot = match[1]
            drawn: str = self.choose(_bank()["slots"][slot])
            if slot in ("name", "surname", "company", "city"):
                return self.author.setdefault(slot, drawn)
            return drawn

        filled = re.sub(r"\{(\w+)\}", value, sentence)
        return filled[0].upper() + filled[1:]

    def say(self, *path: str) -> str:
        options = _bank()
        for key in path:
            options = options[key]
        if path[0] in ("openings", "contexts", "closings", "joiners"):
            return self.fill(self.choose(options))
        # Every fifth form of each kind is held out.
        keep = {
            "all": options,
            "seen": [s for k, s in enumerate(options) if k % 5 != 4],
            "held_out": options[4::5],
        }[self.phrases]
        return self.fill(self.choose(keep))

    def cue(self, department: int) -> str:
        return self.say("cues", DEPARTMENTS[department].replace(" ", "_"))

    def ticket(self, core: list[str]) -> str:
        """Wrap the telling sentences in one of four layouts of neutral ones."""
        if self.bare:
            return " ".join(core)
        body = list(core)
        self.author = {}  # what core says of a company or a city is another one's
        for _ in range(int(self.rng.integers(3))):
            body.insert(int(self.rng.integers(len(body) + 1)), self.say("contexts"))
        text = " ".join(body)
        match int(self.rng.integers(4)):
            case 0:
                return f"{self.say('openings')}\n{text}\n{self.say('closings')}"
            case 1:
                return f"{self.say('openings')} {text}"
            case 2:
                who = self.fill("{name} {surname}, {company}")
                return f"Ticket {self.fill('{number}')} from {who}. {text}"
            case _:
                return self.fill("From: {name} {surname} ({city})\nMessage: ") + text


def department_item(key: str, writer: _Writer, cues: int = 1) -> Item:
    """A ticket with the cues of one department, or of two that are equally likely."""
    first, second = writer.rng.permutation(len(DEPARTMENTS))[:2].tolist()
    core, posterior, label = [writer.cue(first)], np.zeros(len(DEPARTMENTS)), first
    posterior[first] = 1.0
    if cues == 2:
        joiner, cue = writer.say("joiners"), writer.cue(second)
        if not joiner.endswith(".") and (cue[1].islower() or cue[:2] == "A "):
            cue = cue[0].lower() + cue[1:]
        core.append(f"{joiner} {cue}")
        posterior[[first, second]] = 0.5
        label = (first, second)[int(writer.rng.integers(2))]
    mood = "urgent" if writer.rng.random() < 0.5 else "calm"
    core.insert(int(writer.rng.integers(2)) * len(core), writer.say(mood))
    return _item(key, writer.ticket(core), DEPARTMENT, label, posterior)


def escalate_item(key: str, writer: _Writer) -> Item:
    """A ticket that is pressing or calm; the label follows with probability .9."""
    pressing = writer.rng.random() < 0.5
    core = [writer.cue(int(writer.rng.integers(len(DEPARTMENTS))))]
    place = int(writer.rng.integers(2))
    core.insert(place, writer.say("urgent" if pressing else "calm"))
    rate = ESCALATE_RATE if pressing else 1 - ESCALATE_RATE
    label = 0 if writer.rng.random() < rate else 1
    return _item(key, writer.ticket(core), ESCALATE, label, np.array([rate, 1 - rate]))


def _item(
    key: str, state: Any, question: Question, label: int, posterior: np.ndarray
) -> Item:
    text = state if isinstance(state, str) else state[-1]["content"]
    return Item(
        id=key,
        source="triage",
        group=normalise(text),
        state=state,
        question=question,
        label=label,
        posterior=tuple(float(round(p, 12)) for p in posterior),
    )


def tickets(
    n: int,
    rng: np.random.Generator,
    phrases: str = "all",
    bare: bool = False,
    shares: tuple[float, float, float] = (0.4, 0.2, 0.4),
) -> list[Item]:
    """Draw n items: by default 40 % one cue, 20 % two equal cues, 40 % escalation.

    Parameters
    ----------
    n
        Number of items.
    rng
        Fixes them.
    phrases
        "all" surface forms of the cues; "seen" leaves out every fifth; "held_out" has
        only those, to test on wording that training on "seen" never met.
    bare
        Leave out the neutral sentences: half the words, the same posteriors.
    shares
        Probability of each kind of item, in the order above.

    Returns
    -------
    list of Item
        With label and posterior, (4,) or (2,).
    """
    if len(shares) != 3 or min(shares) < 0 or not np.isclose(sum(shares), 1.0):
        raise ValueError(f"shares must be 3 probabilities that sum to 1, not {shares}")
    writer, items = _Writer(rng, phrases, bare), []
    for k in range(n):
        kind = writer.rng.random()
        if kind < shares[0] + shares[1]:
            cues = 1 if kind < shares[0] else 2
            items.append(department_item(f"t{k}", writer, cues))
        else:
            items.append(escalate_item(f"t{k}", writer))
    return items


def probe(
    n: int, rng: np.random.Generator, phrases: str = "all", bare: bool = False
) -> dict[str, list[Item]]:
    """The known-posterior probe: n fresh items of each kind, drawn as `tickets`.

    Returns
    -------
    dict
        "one_cue" (ideal largest probability 1), "two_cues" (.5), "escalate" (.9).
    """
    writer = _Writer(rng, phrases, bare)
    return {
        "one_cue": [department_item(f"p1-{k}", writer, 1) for k in range(n)],
        "two_cues": [department_item(f"p2-{k}", writer, 2) for k in range(n)],
        "escalate": [escalate_item(f"pe-{k}", writer) for k in range(n)],
    }


def probe_summary(p: np.ndarray, items: Sequence[Item]) -> dict[str, float]:
    """Compare probabilities with the known posterior of one kind of probe item.

    Parameters
    ----------
    p : ndarray, shape (N, K)
    items
        N items with a posterior.

    Returns
    -------
    dict of float
        ``mean_confidence`` (mean of max p), ``ideal_confidence``,
        ``squared_distance`` (mean of ``sum_k (p_k - q_k)^2``, 0 at best, 2 at worst)
        and ``top_is_ideal`` (share of rows whose largest p is on an option of largest
        posterior).
    """
    p, q = np.asarray(p, float), np.array([item.posterior for item in items])
    if p.shape != q.shape:
        raise ValueError(f"p has shape {p.shape}, the items' posteriors {q.shape}")
    best = np.take_along_axis(q, p.argmax(axis=1)[:, None], axis=1)[:, 0]
    return {
        "mean_confidence": float(p.max(axis=1).mean()),
        "ideal_confidence": float(q.max(axis=1).mean()),
        "squared_distance": float(((p - q) ** 2).sum(axis=1).mean()),
        "top_is_ideal": float((best == q.max(axis=1)).mean()),
    }


@dataclass(frozen=True)
class JointTicket:
    """One ticket with three fields under the rule: critical implies needs_human.

    Attributes
    ----------
    items
        Field name -> `Item`, with label and marginal posterior.
    joint : ndarray, shape (4, 4, 2)
        Posterior of (department, severity, needs_human); zero where the rule is
        broken.
    """

    items: Mapping[str, Item]
    joint: np.ndarray


def joint_tickets(n: int, rng: np.random.Generator) -> list[JointTicket]:
    """Draw n three-field tickets.

    The department is certain. One sentence fixes the severity, or leaves high and
    critical equally likely. A critical ticket always needs a human; any other does
    with probability .9 if the writer asks for a person and .1 if not.
    """
    writer, found = _Writer(rng), []
    for k in range(n):
        department = int(rng.integers(len(DEPARTMENTS)))
        level = int(rng.integers(len(SEVERITIES) + 1))
        severity = np.eye(5)[level, :4] if level < 4 else np.array([0, 0, 0.5, 0.5])
        wants = rng.random() < 0.5
        human = np.full(4, ESCALATE_RATE if wants else 1 - ESCALATE_RATE)
        human[SEVERITIES.index("critical")] = 1.0
        joint = np.zeros((4, 4, 2))
        joint[department] = np.stack([severity * human, severity * (1 - human)], axis=1)
        draw = int(np.searchsorted(joint.reshape(-1).cumsum(), rng.random(), "right"))
        labels = np.unravel_index(draw, joint.shape)
        core = [
            writer.cue(department),
            writer.say("severity", (*SEVERITIES, "high_or_critical")[level]),
            writer.say("person_wanted" if wants else "self_service"),
        ]
        state = writer.ticket([core[j] for j in rng.permutation(3)])
        fields = {
            "department": (DEPARTMENT, joint.sum((1, 2))),
            "severity": (SEVERITY, joint.sum((0, 2))),
            "needs_human": (NEEDS_HUMAN, joint.sum((0, 1))),
        }
        items = {
            name: _item(f"j{k}-{name}", state, question, int(label), posterior)
            for (name, (question, posterior)), label in zip(
                fields.items(), labels, strict=True
            )
        }
        found.append(JointTicket(items, joint))
    return found


def escalation_probability() -> np.ndarray:
    """Chance that a conversation still open at a turn ends in escalation.

    Backward recursion over turns t and moods m:
    ``V_t(m) = h(m) + (1 - h(m)) sum_m' P(m, m') V_{t+1}(m')``, with V = 0 after the
    last turn.

    Returns
    -------
    ndarray, shape (MAX_TURNS, 3)
        Given the mood of the customer's turn t, before it is known whether that turn
        leads to escalation.
    """
    value = np.zeros((MAX_TURNS + 1, len(MOODS)))
    for t in range(MAX_TURNS - 1, -1, -1):
        value[t] = HAZARD + (1 - HAZARD) * (MOOD_STEP @ value[t + 1])
    return value[:-1]


@dataclass(frozen=True)
class Conversation:
    """A conversation seen turn by turn, for targets that grow along it.

    Attributes
    ----------
    items
        One per customer turn t: its state is the list of turns up to t, its label the
        final outcome (0 = escalated), its posterior (V_t, 1 - V_t).
    escalated
        The final outcome.
    """

    items: tuple[Item, ...]
    escalated: bool


def conversations(n: int, rng: np.random.Generator) -> list[Conversation]:
    """Draw n conversations of at most seven customer turns with a known hazard.

    After each customer turn the conversation is escalated with the hazard of the
    turn's mood, and then stops; otherwise the mood moves on and an agent answers.
    """
    writer, value, found = _Writer(rng), escalation_probability(), []
    for k in range(n):
        moods = [int(rng.choice(3, p=START))]
        over = rng.random() < HAZARD[moods[-1]]
        while not over and len(moods) < MAX_TURNS:
            moods.append(int(rng.choice(3, p=MOOD_STEP[moods[-1]])))
            over = rng.random() < HAZARD[moods[-1]]
        turns: list[dict[str, str]] = []
        items, writer.author = [], {}
        for t, mood in enumerate(moods):
            said = writer.say("moods", MOODS[mood])
            if t == 0:
                said = f"{writer.cue(int(rng.integers(4)))} {said}"
            else:
                turns.append({"role": "Agent", "content": writer.say("agent")})
            turns.append({"role": "Customer", "content": said})
            p = np.array([value[t, mood], 1 - value[t, mood]])
            label = 0 if over else 1
            item = _item(f"c{k}-{t}", list(turns), WILL_ESCALATE, label, p)
            items.append(item)
        found.append(Conversation(tuple(items), bool(over)))
    return found
