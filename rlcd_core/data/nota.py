"""How options are shown: subsets, order, and "None of the above".

Items are stored with their full, fixed options; what a policy is shown is drawn from
them by these functions, with a stream per item, so that it does not depend on which
other items are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from rlcd_core.data.items import Item

NOTA = "None of the above"


def inject_nota(
    item: Item, rng: np.random.Generator, right: float = 0.15, distractor: float = 0.35
) -> Item:
    """Put NOTA in the place of one option; the number of options never changes.

    With probability `right` it replaces the right option, and is then right itself;
    with probability `distractor` it replaces a wrong one drawn uniformly. Neither the
    number of options nor the mere presence of NOTA tells which option is right.

    Raises
    ------
    ValueError
        The item is no Choice with a label (a Noul or a Score has no "none"; a
        posterior would no longer hold), or the rates are not probabilities.
    """
    question = item.question
    if question.kind != "choice" or item.label is None or item.posterior or item.counts:
        raise ValueError(
            f"{item.source} {item.id}: NOTA goes into a labelled Choice only, and this "
            f"is a {question.kind} with label {item.label}."
        )
    if right < 0 or distractor < 0 or right + distractor > 1:
        raise ValueError(f"rates {right} and {distractor} are not probabilities")
    if NOTA in question.options:
        raise ValueError(f"{item.source} {item.id}: {NOTA!r} is an option already.")
    draw = rng.random()
    if draw < right:
        place = item.label
    elif draw < right + distractor:
        wrong = [k for k in range(len(question.options)) if k != item.label]
        place = wrong[int(rng.random() * len(wrong))]
    else:
        return item
    options = tuple(NOTA if k == place else o for k, o in enumerate(question.options))
    return replace(item, question=replace(question, options=options))


def random_subset(item: Item, rng: np.random.Generator, low: int, high: int) -> Item:
    """Keep the right option and random others, `low` to `high` options in all.

    The number kept is uniform over ``low .. min(high, K)`` and independent of the
    label; the kept options stay in their order.

    Raises
    ------
    ValueError
        `low` is below 2 or above `high`, or the item has no label.
    """
    size = len(item.question.options)
    if not 2 <= low <= high or item.label is None:
        raise ValueError(f"{item.source} {item.id}: cannot keep {low} to {high}")
    top = min(high, size)
    keep = min(low, top) + int(rng.random() * (top - min(low, top) + 1))
    wrong = [k for k in range(size) if k != item.label]
    others = [wrong[k] for k in np.argsort(rng.random(size - 1))[: keep - 1]]
    return item.pick(sorted([item.label, *others]))


def shuffle_options(item: Item, rng: np.random.Generator) -> Item:
    """Put the options in random order; a Score or a Noul comes back unchanged."""
    if item.question.kind != "choice":
        return item
    return item.pick(np.argsort(rng.random(len(item.question.options))).tolist())


def present(
    items: Iterable[Item],
    seed: int,
    *,
    nota: bool = False,
    subset: tuple[int, int] | None = None,
    shuffle: bool = False,
) -> list[Item]:
    """Show items as the protocol does: subset first, then NOTA, then order.

    Parameters
    ----------
    items
        Stored items with full options.
    seed
        Fixes all draws. Each item has its own stream, keyed by source and id.
    nota, subset, shuffle
        What to do to labelled Choices; a Score, a Noul and an item with a posterior
        or counts are at most shuffled.
    """
    shown = []
    for item in items:
        key = hashlib.sha256(f"{seed}:{item.source}:{item.id}".encode()).digest()
        rng = np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "little")))
        if item.question.kind == "choice" and item.label is not None:
            if not (item.posterior or item.counts):
                if subset and len(item.question.options) > subset[0]:
                    item = random_subset(item, rng, *subset)
                if nota:
                    item = inject_nota(item, rng)
        if shuffle:
            item = shuffle_options(item, rng)
        shown.append(item)
    return shown
