"""Splits by context group, and the check that nothing leaks across them."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

_MARKS = re.compile(r"[\W_]+")
_DIGITS = re.compile(r"\d+")


class LeakError(ValueError):
    """Two splits share a context group or a near-duplicate text."""


def normalise(text: str) -> str:
    """Case-folded words only, one space apart; the bare text if it has no word.

    Examples
    --------
    >>> normalise("  Great,  GREAT film! ")
    'great great film'
    >>> normalise(":-)")
    ':-)'
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return _MARKS.sub(" ", folded).strip() or text.strip()


def stable_order(names: Iterable[str], seed: int) -> list[str]:
    """Distinct names in an order drawn by `seed`, the same with any NumPy version.

    The order is that of SHA-256 of ``seed:name``; a NumPy stream may change between
    versions, and a split must not.
    """

    def key(name: str) -> tuple[bytes, str]:
        return hashlib.sha256(f"{seed}:{name}".encode()).digest(), name

    return sorted(set(names), key=key)


def split_by_group(
    groups: Sequence[str], fractions: Sequence[float], seed: int
) -> np.ndarray:
    """Assign whole groups to splits.

    Parameters
    ----------
    groups
        Context group of each of N rows.
    fractions
        Share of rows of each split; they sum to 1.
    seed
        Draws the order in which groups fill the splits.

    Returns
    -------
    ndarray of int, shape (N,)
        Index of the split of each row. A split's size differs from its share by at
        most one group at each end.

    Raises
    ------
    ValueError
        Fractions that are negative or do not sum to 1.

    Examples
    --------
    >>> split_by_group(["a", "a", "b", "c"], [0.5, 0.5], seed=0)
    array([0, 0, 1, 1])
    """
    if min(fractions) < 0 or not math.isclose(sum(fractions), 1.0):
        raise ValueError(f"fractions must be >= 0 and sum to 1, not {list(fractions)}")
    sizes = Counter(groups)
    edges = np.cumsum(fractions)[:-1] * len(groups)
    where: dict[str, int] = {}
    filled = 0
    for group in stable_order(groups, seed):
        # The middle of a group decides, so that rounding favours no split.
        where[group] = int(np.searchsorted(edges, filled + sizes[group] / 2, "right"))
        filled += sizes[group]
    return np.array([where[group] for group in groups], dtype=np.int64)


def near_duplicates(
    texts: Sequence[str], threshold: float = 0.8
) -> list[tuple[int, int]]:
    """Pairs of rows whose texts say nearly the same.

    Two texts are near duplicates when their sets of normalised words, digits masked,
    have a Jaccard similarity of at least `threshold`; texts below four distinct words
    must be equal once normalised. The search is exact: two sets as similar as that
    must share a word among the ``n - ceil(t n) + 1`` rarest of each (prefix filter,
    Chaudhuri, Ganti & Kaushik 2006). Equal texts are chained, not paired all to all.

    Returns
    -------
    list of (i, j) with i < j
        Row indices; linking the pairs gives the clusters.

    Examples
    --------
    >>> near_duplicates(["Call 555 now to win a prize", "call 777 NOW to win a prize!"])
    [(0, 1)]
    """
    pairs: list[tuple[int, int]] = []
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        key = normalise(text)
        if key in first:
            pairs.append((first[key], row))
        else:
            first[key] = row
    words = {r: set(_DIGITS.sub("0", key).split()) for key, r in first.items()}
    words = {row: found for row, found in words.items() if len(found) >= 4}
    rarity = Counter(word for found in words.values() for word in found)
    posted: dict[str, list[int]] = defaultdict(list)
    for row in sorted(words, key=lambda r: (len(words[r]), r)):
        mine = words[row]
        ranked = sorted(mine, key=lambda word: (rarity[word], word))
        least = math.ceil(threshold * len(mine) - 1e-9)
        seen: set[int] = set()
        for word in ranked[: len(mine) - least + 1]:
            for other in posted[word]:
                # Rows come in by size: a set below `least` words cannot be similar.
                if other not in seen and len(words[other]) >= least:
                    seen.add(other)
                    shared = len(mine & words[other])
                    if shared >= threshold * (len(mine) + len(words[other]) - shared):
                        pairs.append((min(row, other), max(row, other)))
            posted[word].append(row)
    return sorted(pairs)


def link_groups(groups: Sequence[str], pairs: Iterable[tuple[int, int]]) -> list[str]:
    """Merge the groups of linked rows; a merged group takes its smallest name.

    Examples
    --------
    >>> link_groups(["a", "b", "c"], [(1, 2)])
    ['a', 'b', 'b']
    """
    parent = {group: group for group in groups}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for i, j in pairs:
        low, high = sorted((root(groups[i]), root(groups[j])))
        parent[high] = low
    return [root(group) for group in groups]


def check_no_leak(
    texts: Sequence[str], groups: Sequence[str], split: Sequence[int] | np.ndarray
) -> None:
    """Raise `LeakError` if a group or a near-duplicate pair straddles splits.

    Parameters
    ----------
    texts, groups, split
        Text, context group and split of each of N rows.
    """
    home: dict[str, int] = {}
    for row, (group, where) in enumerate(zip(groups, split, strict=True)):
        if home.setdefault(group, where) != where:
            raise LeakError(f"group {group!r} is in two splits (row {row})")
    for i, j in near_duplicates(texts):
        if split[i] != split[j]:
            raise LeakError(
                f"rows {i} and {j} nearly repeat each other across splits: "
                f"{texts[i][:80]!r} / {texts[j][:80]!r}. Link their groups first."
            )
