"""Preferences from ratings: who is asked, what is answered, and what it costs."""

import itertools
from collections import Counter

import numpy as np
import pytest

from rlcd_core.extra import preferences
from rlcd_core.extra.families import preferences as family
from rlcd_core.extra.preferences import RankingEnv, pair_task, wins

COUNTS = np.array([[5, 3, 2, 0], [4, 4, 1, 1], [0, 7, 0, 0]])
N = 20_000


def shares(env: RankingEnv, row: int) -> dict[tuple[int, ...], float]:
    drawn = env.rankings(np.full(N, row))
    return {tuple(k): v / N for k, v in Counter(map(tuple, drawn.tolist())).items()}


def luce(weights: list[float], ranking: tuple[int, ...]) -> float:
    chance, left = 1.0, dict(enumerate(weights))
    for k in ranking:
        chance *= left[k] / sum(left.values())
        del left[k]
    return chance


def test_drawn_rankings_follow_plackett_luce_and_leave_out_who_was_not_named() -> None:
    found = shares(RankingEnv(COUNTS, 0, "drawn"), 0)
    want = {
        (*order, -1): luce([5, 3, 2], order)
        for order in itertools.permutations(range(3))
    }
    assert found.keys() == want.keys()
    for order, chance in want.items():
        error = np.sqrt(chance * (1 - chance) / N)
        assert abs(found[order] - chance) < 5 * error
    assert shares(RankingEnv(COUNTS, 0, "drawn"), 2) == {(1, -1, -1, -1): 1.0}


def test_counted_rankings_are_the_order_of_counts_with_even_ties() -> None:
    assert shares(RankingEnv(COUNTS, 0, "counts"), 0) == {(0, 1, 2, 3): 1.0}
    found = shares(RankingEnv(COUNTS, 0, "counts"), 1)
    want = {(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2)}
    assert found.keys() == want
    assert max(abs(v - 0.25) for v in found.values()) < 0.02
    best = shares(RankingEnv(COUNTS, 0, "counts", size=1), 1)
    assert best.keys() == {(0,), (1,)}


def test_pairs_are_even_among_those_that_somebody_can_judge() -> None:
    found = shares(RankingEnv(COUNTS, 0, "drawn", pairs=True), 0)
    # Six pairs, all of which somebody can judge; an option nobody chose never wins.
    for i, j in itertools.combinations(range(4), 2):
        c = COUNTS[0]
        for winner, loser in ((i, j), (j, i)):
            chance = c[winner] / (c[i] + c[j]) / 6
            got = found.get((winner, loser), 0.0)
            assert abs(got - chance) < 5 * np.sqrt(chance * (1 - chance) / N) + 1e-12
    # Of row 2 only the three pairs with option 1.
    lone = shares(RankingEnv(COUNTS, 1, "counts", pairs=True), 2)
    assert lone.keys() == {(1, 0), (1, 2), (1, 3)}
    assert max(abs(v - 1 / 3) for v in lone.values()) < 0.02
    tied = shares(RankingEnv(COUNTS, 1, "counts", pairs=True), 1)
    assert tied[0, 1] == pytest.approx(tied[1, 0], abs=0.02)
    assert (2, 0) not in tied


def test_people_are_counted_as_they_are_awaited() -> None:
    counts = np.array([[6, 3, 1]])
    top = RankingEnv(counts, 0, "drawn", size=1)
    top.rankings(np.zeros(100, int))
    assert top.people == pytest.approx(100)
    # By hand: one for the first, 10/(10 - first) for the second, 10/last for the third.
    full = RankingEnv(counts, 0, "drawn")
    order = full.rankings(np.zeros(1, int))[0]
    c = counts[0][order]
    assert full.people == pytest.approx(1 + 10 / (10 - c[0]) + 10 / c[2])
    pair = RankingEnv(counts, 0, "drawn", pairs=True)
    i, j = pair.rankings(np.zeros(1, int))[0]
    assert pair.people == pytest.approx(10 / (counts[0, i] + counts[0, j]))
    counted = RankingEnv(counts, 0, "counts")
    counted.rankings(np.zeros(7, int))
    assert counted.people == 70


@pytest.mark.parametrize("options", [{}, {"pairs": True}, {"size": 2}])
@pytest.mark.parametrize("source", preferences.SOURCES)
def test_the_stream_continues_where_it_was(source: str, options: dict) -> None:
    rows = np.arange(3).repeat(5)
    whole = RankingEnv(COUNTS, 4, source, **options)
    whole.rankings(rows)
    again = RankingEnv(COUNTS, 9, source, **options)
    again.load_state_dict(whole.state_dict())
    assert np.array_equal(whole.rankings(rows), again.rankings(rows))
    assert whole.people == again.people


def test_what_cannot_be_asked_is_refused() -> None:
    for counts in ([[0, 0]], [[-1, 2]], [[0.5, 1.0]], [3]):
        with pytest.raises(ValueError, match="counts must be"):
            RankingEnv(np.array(counts), 0, "drawn")
    with pytest.raises(ValueError, match="'noisy' is not one of drawn, counts"):
        RankingEnv(COUNTS, 0, "noisy")
    with pytest.raises(ValueError, match="size 5 is outside 1..4"):
        RankingEnv(COUNTS, 0, "drawn", size=5)
    with pytest.raises(ValueError, match="two options"):
        RankingEnv(np.array([[3]]), 0, "drawn", pairs=True)


def test_wins_by_asking_every_pair_of_people() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 4, (2, 20, 5))
    for a, b, found in zip(first, second, wins(first, second), strict=True):
        levels = [np.repeat(np.arange(5), c) for c in (a, b)]
        pairs = list(itertools.product(*levels))
        want = [sum(x > y for x, y in pairs), sum(x < y for x, y in pairs)]
        assert found.tolist() == want


def test_bits_and_comparisons_of_every_form() -> None:
    forms = family.FORMS
    assert forms["rlcd"].bits(3) == forms["bt_drawn"].bits(3) == 1
    assert forms["nll"].bits(3) == forms["top_counts"].bits(3) == np.log2(3)
    assert forms["pl_drawn"].bits(3) == np.log2(6)
    assert [forms[n].comparisons(3) for n in ("rlcd", "bt_drawn")] == [1, 1]
    assert [forms[n].comparisons(3) for n in ("nll", "pl_drawn")] == [2, 3]
    assert forms["pl_counts"].comparisons(4) == 6
    # The same bits a step and the same steps: within one answer of the budget.
    for task, names in family.FORMS_OF.items():
        options = 2 if task == family.TEXTS else 3
        for name in names:
            sizes = family.sizes(task, name, 1e-3)
            assert sizes.steps() == family.STEPS
            bits = sizes.outcomes_per_step * forms[name].bits(options)
            assert abs(bits - family.BITS_PER_STEP) < forms[name].bits(options)


def test_tuning_seeds_are_in_no_result_and_an_unfinished_grid_is_no_choice(
    monkeypatch,
) -> None:
    assert set(family.TUNING_SEEDS).isdisjoint(family.FRESH_SEEDS)
    monkeypatch.setattr(family, "_tuning_records", list)
    monkeypatch.setattr(family, "_task", lambda name: type("T", (), {"name": name}))
    with pytest.raises(LookupError, match="0 of 7 cells"):
        family.tuned(family.OPTIONS, "nll")


@pytest.mark.data
def test_pairs_of_texts_stay_in_their_split_and_are_never_all_ties() -> None:
    task = pair_task("movie")
    assert {k: len(v) for k, v in task.splits.items()} == preferences.PAIRS
    assert (task.counts.sum(1) > 0).all()
    texts = {
        split: {o for i in rows for o in task.items[i][1].options}
        for split, rows in task.splits.items()
    }
    assert texts["train"].isdisjoint(texts["test"] | texts["validation"])
    assert texts["test"].isdisjoint(texts["validation"])


@pytest.mark.data
def test_no_rate_chosen_by_brier_lies_on_an_edge() -> None:
    # Accuracy is flat along the grid; the chapter counts which of its choices do.
    for task, names in family.FORMS_OF.items():
        for name in names:
            if family.FORMS[name].source != "counts":
                rate, rates = family.tuned(task, name).learning_rate, family.RATES[task]
                assert rates[0] < rate < rates[-1], (task, name)
