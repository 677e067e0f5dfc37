"""Items: one question about one state, with what is known of the right answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlcd_core.schema import Question, make_question


@dataclass(frozen=True)
class Item:
    """One question about one state.

    Parameters
    ----------
    id
        Unique within its source.
    source
        Name of its manifest.
    group
        Context group: items of one group never straddle splits, and intervals
        resample whole groups.
    state
        Text, or a list of ``{"role", "content"}`` turns.
    question
        A `Choice`, `Score` or `Noul`.
    label
        Index of the right option, or None where only `counts` are known.
    counts
        Verdicts of several raters per option, (K,), or ().
    posterior
        Probability of each option given the state, fixed by a generator, or ().

    Raises
    ------
    ValueError
        Empty state, a label outside the options, or a length other than K.
    """

    id: str
    source: str
    group: str
    state: str | list[dict[str, str]]
    question: Question
    label: int | None = None
    counts: tuple[int, ...] = ()
    posterior: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.question.options)
        if not (self.state.strip() if isinstance(self.state, str) else self.state):
            raise ValueError(f"{self.source} {self.id}: the state is empty; drop it.")
        if self.label is not None and not 0 <= self.label < size:
            raise ValueError(
                f"{self.source} {self.id}: label {self.label} is outside the {size} "
                "options; labels are option indices from 0."
            )
        for name in ("counts", "posterior"):
            if getattr(self, name) and len(getattr(self, name)) != size:
                raise ValueError(f"{self.source} {self.id}: {name} needs {size} values")

    def pick(self, order: Sequence[int]) -> Item:
        """The same item with the options at `order`, label and masses moved along.

        Raises
        ------
        ValueError
            `order` leaves out the right option, or any option of an item that has
            counts or a posterior (their mass would be lost).
        """
        if self.label is not None and self.label not in order:
            raise ValueError(f"{self.source} {self.id}: the right option was left out")
        if (self.counts or self.posterior) and len(order) != len(self.question.options):
            raise ValueError(f"{self.source} {self.id}: a subset would lose mass")
        return replace(
            self,
            question=replace(
                self.question, options=tuple(self.question.options[k] for k in order)
            ),
            label=None if self.label is None else list(order).index(self.label),
            counts=tuple(self.counts[k] for k in order) if self.counts else (),
            posterior=tuple(self.posterior[k] for k in order) if self.posterior else (),
        )


def to_jsonl(items: Iterable[Item]) -> bytes:
    """Write items as UTF-8 lines of JSON with fixed key order: bytes fit to hash."""
    lines = []
    for item in items:
        row: dict[str, Any] = {
            "id": item.id,
            "source": item.source,
            "group": item.group,
            "state": item.state,
            "question": item.question.to_dict(),
            "label": item.label,
        }
        for name in ("counts", "posterior"):
            if getattr(item, name):
                row[name] = list(getattr(item, name))
        lines.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    return "".join(line + "\n" for line in lines).encode()


def from_jsonl(data: bytes) -> list[Item]:
    """Read what `to_jsonl` wrote."""
    items = []
    # Split at "\n" alone: a state may hold other characters that end a line.
    for line in filter(None, data.decode().split("\n")):
        row = json.loads(line)
        row["question"] = make_question(row["question"])
        for name in ("counts", "posterior"):
            row[name] = tuple(row.get(name, ()))
        items.append(Item(**row))
    return items
