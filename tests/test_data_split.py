"""Splits by group, near duplicates, options as shown."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcd_core.data.items import Item, from_jsonl, to_jsonl
from rlcd_core.data.nota import (
    NOTA,
    inject_nota,
    present,
    random_subset,
    shuffle_options,
)
from rlcd_core.data.split import (
    LeakError,
    check_no_leak,
    link_groups,
    near_duplicates,
    normalise,
    split_by_group,
    stable_order,
)
from rlcd_core.schema import Choice, Noul, Score

groups_strategy = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=60)


@given(groups_strategy, st.integers(0, 9))
def test_no_group_straddles(groups: list[str], seed: int) -> None:
    part = split_by_group(groups, [0.6, 0.2, 0.2], seed)
    homes = {
        group: {p for g, p in zip(groups, part, strict=True) if g == group}
        for group in groups
    }
    assert all(len(home) == 1 for home in homes.values())
    assert set(part) <= {0, 1, 2}


def test_sizes_and_seeds() -> None:
    groups = [str(k) for k in range(1000)]
    part = split_by_group(groups, [0.8, 0.1, 0.1], 0)
    assert Counter(part.tolist()) == {0: 800, 1: 100, 2: 100}
    assert np.array_equal(part, split_by_group(groups, [0.8, 0.1, 0.1], 0))
    assert not np.array_equal(part, split_by_group(groups, [0.8, 0.1, 0.1], 1))
    # A row's split does not depend on the order of the rows.
    turned = split_by_group(groups[::-1], [0.8, 0.1, 0.1], 0)
    assert np.array_equal(turned[::-1], part)
    with pytest.raises(ValueError, match="sum to 1"):
        split_by_group(groups, [0.8, 0.1], 0)


def test_stable_order_is_pinned() -> None:
    assert stable_order("abcdef", 0) == ["f", "d", "a", "c", "b", "e"]


def test_normalise() -> None:
    assert normalise("  Ｇreat,\tGREAT_film!") == "great great film"
    assert normalise(" :-) ") == ":-)"


def brute_force(texts: list[str], threshold: float) -> set[tuple[int, int]]:
    sets = [set(normalise(t).split()) for t in texts]
    found = set()
    for i in range(len(texts)):
        for j in range(i + 1, len(texts)):
            both, either = len(sets[i] & sets[j]), len(sets[i] | sets[j])
            long = min(len(sets[i]), len(sets[j])) >= 4
            if normalise(texts[i]) == normalise(texts[j]) or (
                long and both >= threshold * either
            ):
                found.add((i, j))
    return found


@given(
    st.lists(
        st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8).map(" ".join),
        max_size=14,
    ),
    st.sampled_from([0.5, 0.6, 0.75, 0.8]),
)
def test_near_duplicates_link_what_brute_force_links(
    texts: list[str], threshold: float
) -> None:
    names = [str(k) for k in range(len(texts))]
    fast = link_groups(names, near_duplicates(texts, threshold))
    slow = link_groups(names, brute_force(texts, threshold))
    assert fast == slow


def test_link_groups() -> None:
    chained = link_groups(["d", "c", "b", "a", "e"], [(0, 1), (2, 1)])
    assert chained == ["b", "b", "b", "a", "e"]
    assert link_groups(["b", "b", "a"], [(0, 2)]) == ["a", "a", "a"]


def test_leaks_are_named() -> None:
    texts = ["call 555 now to win a prize", "Call 777 now to win a PRIZE", "hello"]
    check_no_leak(texts, ["a", "b", "c"], [0, 0, 1])
    with pytest.raises(LeakError, match="rows 0 and 1"):
        check_no_leak(texts, ["a", "b", "c"], [0, 1, 1])
    with pytest.raises(LeakError, match="group 'a'"):
        check_no_leak(["x", "y"], ["a", "a"], [0, 1])


def choice(label: int = 1, size: int = 4, key: str = "1") -> Item:
    options = tuple(f"option {k}" for k in range(size))
    return Item(key, "s", "g", "state", Choice("Which?", options), label)


def test_items_round_trip_and_refuse() -> None:
    items = [
        choice(),
        Item("2", "s", "g", "x\u2028y", Noul("Is it?"), 0, posterior=(0.9, 0.1)),
        Item("3", "s", "g", [{"role": "a", "content": "b"}], Noul("?"), counts=(1, 2)),
    ]
    assert from_jsonl(to_jsonl(items)) == items
    with pytest.raises(ValueError, match="label 4 is outside"):
        choice(label=4)
    with pytest.raises(ValueError, match="state is empty"):
        Item("1", "s", "g", "  ", Noul("?"), 0)
    with pytest.raises(ValueError, match="posterior needs 2"):
        Item("1", "s", "g", "x", Noul("?"), 0, posterior=(1.0,))


def test_pick_moves_everything() -> None:
    item = Item(
        "1", "s", "g", "x", Choice("?", ("a", "b", "c")), 2, (5, 1, 0), (0.5, 0.3, 0.2)
    )
    turned = item.pick([2, 0, 1])
    assert turned.question.options == ("c", "a", "b") and turned.label == 0
    assert turned.counts == (0, 5, 1) and turned.posterior == (0.2, 0.5, 0.3)
    with pytest.raises(ValueError, match="lose mass"):
        item.pick([2, 0])
    with pytest.raises(ValueError, match="right option was left out"):
        choice().pick([0, 2])


@given(st.integers(2, 9), st.integers(0, 8), st.integers(0, 10**6))
def test_nota_keeps_count_and_truth(size: int, label: int, seed: int) -> None:
    item = choice(label % size, size)
    shown = inject_nota(item, np.random.default_rng(seed))
    assert len(shown.question.options) == size
    assert shown.label == item.label
    changed = [
        k for k in range(size) if shown.question.options[k] != item.question.options[k]
    ]
    assert len(changed) <= 1
    assert all(shown.question.options[k] == NOTA for k in changed)


def test_nota_rates_and_count_tell_nothing() -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    shown = [inject_nota(choice(), rng) for _ in range(n)]
    right = sum(i.question.options[1] == NOTA for i in shown) / n
    wrong = sum(NOTA in i.question.options for i in shown) / n - right
    # Five standard errors.
    assert abs(right - 0.15) < 0.013 and abs(wrong - 0.35) < 0.017
    assert {len(i.question.options) for i in shown} == {4}


@pytest.mark.parametrize(
    "item",
    [
        Item("1", "s", "g", "x", Noul("?"), 0),
        Item("1", "s", "g", "x", Score("?", ("low", "high")), 0),
        Item("1", "s", "g", "x", Choice("?", ("a", "b")), 0, posterior=(0.5, 0.5)),
        Item("1", "s", "g", "x", Choice("?", ("a", "b")), counts=(1, 1)),
    ],
)
def test_nota_is_refused_where_it_makes_no_sense(item: Item) -> None:
    with pytest.raises(ValueError, match="labelled Choice only"):
        inject_nota(item, np.random.default_rng(0))
    assert NOTA not in present([item], 0, nota=True, subset=(2, 2))[0].question.options


def test_nota_twice_is_refused() -> None:
    item = Item("1", "s", "g", "x", Choice("?", ("a", NOTA)), 0)
    with pytest.raises(ValueError, match="is an option already"):
        inject_nota(item, np.random.default_rng(0))


def test_subset_size_is_uniform_and_tells_nothing() -> None:
    rng = np.random.default_rng(0)
    sizes: dict[int, list[int]] = {0: [], 9: []}
    for label, found in sizes.items():
        for _ in range(4000):
            shown = random_subset(choice(label, 10), rng, 4, 26)
            assert shown.question.options[shown.label or 0] == f"option {label}"
            found.append(len(shown.question.options))
    for found in sizes.values():
        share = np.bincount(found, minlength=11)[4:] / 4000
        assert np.allclose(share, 1 / 7, atol=0.03)
    with pytest.raises(ValueError, match="cannot keep"):
        random_subset(choice(), rng, 1, 3)


def test_every_distractor_is_kept_equally_often() -> None:
    rng = np.random.default_rng(0)
    kept: Counter[str] = Counter()
    for _ in range(4000):
        kept.update(random_subset(choice(0, 6), rng, 3, 3).question.options)
    assert kept["option 0"] == 4000
    others = np.array([kept[f"option {k}"] for k in range(1, 6)]) / 4000
    assert np.allclose(others, 0.4, atol=0.04)


def test_shuffle_is_uniform_and_leaves_ordered_options() -> None:
    rng = np.random.default_rng(0)
    places = [shuffle_options(choice(1, 4), rng).label for _ in range(4000)]
    assert np.allclose(np.bincount(places) / 4000, 0.25, atol=0.035)
    score = Item("1", "s", "g", "x", Score("?", ("low", "high")), 0)
    assert shuffle_options(score, rng) is score


def test_present_has_a_stream_per_item() -> None:
    items = [choice(k % 4, 30, str(k)) for k in range(20)]

    def ask(rows: list[Item], seed: int = 0) -> list[Item]:
        return present(rows, seed, nota=True, subset=(4, 26), shuffle=True)

    assert ask(items[5:]) == ask(items)[5:]
    assert ask(items) != ask(items, seed=1)
    assert all(4 <= len(i.question.options) <= 26 for i in ask(items))
    assert present(items, 0) == items  # nothing happens unless it is asked for
