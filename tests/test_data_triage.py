"""Synthetic tickets: the posterior is the generator's, and nothing else tells."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from rlcd_core.data import triage as T
from rlcd_core.data.items import from_jsonl, to_jsonl


def sentences(node: object) -> list[str]:
    if isinstance(node, str):
        return [node]
    values = node.values() if isinstance(node, dict) else node
    return [s for value in values for s in sentences(value)]  # type: ignore[union-attr]


def test_bank_has_hundreds_of_forms_and_no_dangling_slot() -> None:
    bank = {key: value for key, value in T._bank().items() if key != "slots"}
    forms = sentences(bank)
    assert len(forms) == len(set(forms)) >= 370
    used = {slot for form in forms for slot in re.findall(r"\{(\w+)\}", form)}
    assert used == set(T._bank()["slots"])
    assert all(isinstance(s, str) for s in sentences(T._bank()["slots"]))
    cues = T._bank()["cues"]
    # Equal numbers of forms, so that no department's cues are rarer than another's.
    assert {len(found) for found in cues.values()} == {38}
    assert list(cues) == [name.replace(" ", "_") for name in T.DEPARTMENTS]


def test_tickets_are_varied_english() -> None:
    items = T.tickets(2000, np.random.default_rng(0))
    texts = [str(item.state) for item in items]
    assert len(set(texts)) > 1990
    assert not any("{" in text or "  " in text for text in texts)
    lengths = [len(text) for text in texts]
    assert 40 < min(lengths) and max(lengths) < 700
    assert from_jsonl(to_jsonl(items)) == items
    assert from_jsonl(to_jsonl(items).rstrip(b"\n")) == items, "an editor's last line"


def test_labels_follow_the_posterior() -> None:
    items = T.tickets(8000, np.random.default_rng(1))
    hits: dict[tuple[float, ...], list[np.ndarray]] = {}
    for item in items:
        # Rows of one posterior, sorted, to pool symmetric cases.
        order = np.argsort(item.posterior)[::-1]
        key = tuple(np.array(item.posterior)[order])
        hits.setdefault(key, []).append(np.eye(len(order))[item.label][order])
    assert set(hits) == {(1.0, 0.0, 0.0, 0.0), (0.5, 0.5, 0.0, 0.0), (0.9, 0.1)}
    for posterior, rows in hits.items():
        error = 5 * 0.5 / np.sqrt(len(rows))
        assert np.allclose(np.mean(rows, axis=0), posterior, atol=error)


def test_order_of_two_cues_tells_nothing() -> None:
    rng = np.random.default_rng(2)
    writer = T._Writer(rng)
    first = []
    for k in range(1200):
        item = T.department_item(str(k), writer, cues=2)
        pair = [d for d in range(4) if item.posterior[d] == 0.5]
        # The cue that comes first in the text, found by its fixed words.
        where = [_place(str(item.state), d) for d in pair]
        first.append(item.label == pair[int(np.argmin(where))])
    assert abs(np.mean(first) - 0.5) < 5 * 0.5 / np.sqrt(1200)


def _place(text: str, department: int) -> int:
    forms = T._bank()["cues"][T.DEPARTMENTS[department].replace(" ", "_")]
    for form in forms:
        pattern = "".join(
            ".{1,30}?" if part.startswith("{") else re.escape(part)
            for part in re.split(r"(\{\w+\})", form)
        )
        if match := re.search(pattern, text, re.IGNORECASE):
            return match.start()
    raise AssertionError(f"no cue of {department} in {text!r}")


def test_a_cue_tells_its_department_only() -> None:
    writer = T._Writer(np.random.default_rng(3))
    for k in range(300):
        item = T.department_item(str(k), writer)
        _place(str(item.state), int(np.argmax(item.posterior)))
    # Neutral sentences and mood are independent of the department.
    items = T.tickets(4000, np.random.default_rng(4))
    urgent = [re.escape(s.split("{")[0][:20]) for s in T._bank()["urgent"]]
    pressing = re.compile("|".join(urgent))
    share = {
        d: np.mean(
            [
                bool(pressing.search(str(i.state)))
                for i in items
                if i.question == T.DEPARTMENT and i.label == d
            ]
        )
        for d in range(4)
    }
    assert all(abs(value - 0.5) < 0.1 for value in share.values())


def test_held_out_forms_never_occur_in_seen_tickets() -> None:
    seen = T.tickets(1500, np.random.default_rng(5), "seen")
    text = "\n".join(str(item.state) for item in seen)
    for forms in T._bank()["cues"].values():
        held = [s for s in forms[4::5] if "{" not in s]
        assert held and not any(form in text for form in held)
    held_out = T.tickets(200, np.random.default_rng(5), "held_out")
    assert {i.state for i in held_out}.isdisjoint({i.state for i in seen})
    with pytest.raises(ValueError, match="held_out"):
        T.tickets(1, np.random.default_rng(0), "none")


def test_probe_and_its_summary() -> None:
    probe = T.probe(50, np.random.default_rng(6))
    ideal = {"one_cue": 1.0, "two_cues": 0.5, "escalate": 0.9}
    assert list(probe) == list(ideal)
    for kind, items in probe.items():
        q = np.array([item.posterior for item in items])
        exact = T.probe_summary(q, items)
        assert exact["ideal_confidence"] == pytest.approx(ideal[kind])
        assert exact["mean_confidence"] == pytest.approx(ideal[kind])
        assert exact["squared_distance"] == 0 and exact["top_is_ideal"] == 1
        flat = T.probe_summary(np.full_like(q, 1 / q.shape[1]), items)
        k = q.shape[1]
        want = (q[0] ** 2).sum() - 1 / k
        assert flat["squared_distance"] == pytest.approx(want)
    with pytest.raises(ValueError, match="shape"):
        T.probe_summary(np.ones((1, 4)), probe["one_cue"])


def test_three_fields_keep_the_rule_and_the_joint() -> None:
    tickets = T.joint_tickets(2500, np.random.default_rng(7))
    critical = T.SEVERITIES.index("critical")
    cells: Counter[tuple[int, ...]] = Counter()
    expected = np.zeros((4, 4, 2))
    for ticket in tickets:
        assert ticket.joint.sum() == pytest.approx(1.0, abs=1e-12)
        assert np.all(ticket.joint[:, critical, 1] == 0)  # critical => a human
        fields = ticket.items
        assert len({item.state for item in fields.values()}) == 1
        labels = tuple(int(item.label or 0) for item in fields.values())
        assert ticket.joint[labels] > 0
        cells[labels] += 1
        expected += ticket.joint
        for axis, item in enumerate(fields.values()):
            other = tuple(a for a in range(3) if a != axis)
            assert np.allclose(item.posterior, ticket.joint.sum(axis=other))
    counted = np.zeros((4, 4, 2))
    for cell, n in cells.items():
        counted[cell] = n
    # Each cell is a sum of independent bits: five standard errors.
    assert np.all(np.abs(counted - expected) <= 5 * np.sqrt(expected) + 1)


def test_conversation_hazard_by_simulation() -> None:
    value = T.escalation_probability()
    assert value.shape == (T.MAX_TURNS, 3)
    assert np.allclose(value[-1], T.HAZARD)  # the last turn has its own hazard only
    by_turn: dict[int, list[tuple[float, bool]]] = {}
    talks = T.conversations(2500, np.random.default_rng(8))
    for talk in talks:
        assert len(talk.items) <= T.MAX_TURNS
        for t, item in enumerate(talk.items):
            assert isinstance(item.state, list) and len(item.state) == 2 * t + 1
            assert item.state == talk.items[-1].state[: 2 * t + 1]
            assert item.label == (0 if talk.escalated else 1)
            by_turn.setdefault(t, []).append((item.posterior[0], talk.escalated))
    for pairs in by_turn.values():
        told, came = np.array(pairs, dtype=float).T
        # Calibrated at every turn, overall and in the upper half of told values.
        for mask in (told >= 0, told > np.median(told)):
            if mask.sum() > 100:
                error = 5 * 0.5 / np.sqrt(mask.sum())
                assert abs(told[mask].mean() - came[mask].mean()) < error


def test_seed_fixes_everything() -> None:
    def run(seed: int) -> list[object]:
        rng = np.random.default_rng(seed)
        return [*T.tickets(30, rng), *T.conversations(3, rng), T.probe(2, rng)]

    assert run(0) == run(0)
    assert run(0) != run(1)
