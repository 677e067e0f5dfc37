"""Rater data: hand values, exact enumeration of the corrections, exact row counts."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlcd_core.data import rater
from rlcd_core.data.manifest import SourceError, load_manifest
from rlcd_core.data.rater import (
    RATER_SOURCES,
    expected_brier,
    label_entropy,
    load_rater,
    rater_floor,
    read_verdicts,
    squared_distance,
)


def test_readings_of_every_rating() -> None:
    scale = [[r] for r in range(-4, 5)]
    assert read_verdicts(scale, 3).argmax(1).tolist() == [0, 0, 0, 0, 1, 2, 2, 2, 2]
    assert read_verdicts(scale, 5).argmax(1).tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4]
    with pytest.raises(ValueError, match="3 or 5"):
        read_verdicts([[0]], 4)


def test_expected_brier_is_the_mean_over_raters() -> None:
    p, counts = np.array([[0.2, 0.3, 0.5]]), np.array([[1, 0, 3]])
    by_hand = [((p[0] - np.eye(3)[k]) ** 2).sum() for k in (0, 2, 2, 2)]
    assert expected_brier(p, counts)[0] == pytest.approx(np.mean(by_hand), abs=1e-12)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_corrections_are_unbiased_by_enumeration(n: int) -> None:
    q, p = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])
    distance = floor = plug_in = 0.0
    for drawn in itertools.product(range(3), repeat=n):
        counts = np.bincount(drawn, minlength=3)[None]
        weight = math.prod(q[k] for k in drawn)
        distance += weight * squared_distance(p[None], counts)[0]
        floor += weight * rater_floor(counts)[0]
        plug_in += weight * ((p - counts[0] / n) ** 2).sum()
    assert distance == pytest.approx(((p - q) ** 2).sum(), abs=1e-12)
    assert floor == pytest.approx(1 - (q**2).sum(), abs=1e-12)
    # The correction matters: without it the distance is too large.
    assert plug_in - distance == pytest.approx((q * (1 - q)).sum() / n, abs=1e-12)


def test_brier_is_floor_plus_distance() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (50, 4)) + np.eye(4, dtype=int)[0] * 2
    p = rng.dirichlet(np.ones(4), 50)
    total = rater_floor(counts) + squared_distance(p, counts)
    assert np.allclose(expected_brier(p, counts), total, atol=1e-12)


def test_entropy_and_single_raters() -> None:
    entropy = label_entropy(np.array([[4, 0], [2, 2]]))
    assert entropy == pytest.approx([0.0, math.log(2)])
    with pytest.raises(ValueError, match="at least 2 raters"):
        squared_distance(np.array([[1.0, 0.0]]), np.array([[1, 0]]))


def fake(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    texts: str,
    ratings: str,
    rows: dict[str, int],
    name: str = "amazon",
) -> None:
    (folder / "texts.tsv").write_bytes(texts.encode())
    (folder / "ratings.tsv").write_bytes(ratings.encode())
    manifest = replace(load_manifest(name), rows=rows)
    monkeypatch.setattr(rater, "fetch", lambda _: folder)
    monkeypatch.setattr(rater, "load_manifest", lambda _: manifest)


TEXTS = (
    "id\tsentiment\ttext\r\n1_1\t0.5\tfine, I guess\r\n1_2\t-2\tbroke in a day\r\n"
    "2_1\t3\tlovely\r\n"
)
RATINGS = (
    "\ufeff1_1\t0.5\t0.5\t[0, 1]\r\n1_2\t-2.0\t1.0\t[-1, -3]\r\n\r\n"
    "2_1\t0.0\t0.0\t[0, 0]\r\n"
)


def test_join_by_id_mark_groups_and_mismatch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(monkeypatch, tmp_path, TEXTS, RATINGS, {"source": 3, "all": 2})
    data = load_rater("amazon")
    # The byte-order mark hides no id; 2_1 says mean 3 and its ratings say 0.
    assert data.ids == ("1_1", "1_2") and data.excluded == ("2_1",)
    assert data.counts.tolist() == [[0, 1, 1], [2, 0, 0]]
    assert data.groups == ("amazon:1", "amazon:1")
    assert data.question.options == ("negative", "neutral", "positive")
    assert load_rater("amazon", 5).counts.tolist() == [[0, 0, 1, 1, 0], [1, 1, 0, 0, 0]]


def test_unexpected_rows_and_ids_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(monkeypatch, tmp_path, TEXTS, RATINGS, {"source": 3, "all": 3})
    with pytest.raises(SourceError, match="2 rows .*manifest says 3"):
        load_rater("amazon")
    lost = RATINGS.replace("1_2", "9_9")
    fake(monkeypatch, tmp_path, TEXTS, lost, {"source": 3, "all": 2})
    with pytest.raises(SourceError, match="'1_2'"):
        load_rater("amazon")
    with pytest.raises(SourceError, match="no rater source"):
        load_rater("trec")


# Rows, raters per text, and measured means: three-way entropy, plug-in and corrected
# floor of the Brier score.
FACTS = {
    "movie": (10605, (15, 29), 0.2576, 0.1462, 0.1549),
    "amazon": (3708, (20, 20), 0.3098, 0.1838, 0.1934),
    "nyt": (5190, (20, 20), 0.6227, 0.3887, 0.4092),
    "tweets": (4004, (20, 99), 0.4287, 0.2567, 0.2681),
}


@pytest.mark.data
@pytest.mark.parametrize("name", RATER_SOURCES)
def test_real_sources(name: str) -> None:
    data = load_rater(name)
    rows, raters, entropy, plug_in, floor = FACTS[name]
    n = data.counts.sum(axis=1)
    assert (len(data.ids), len(set(data.ids))) == (rows, rows)
    assert (n.min(), n.max()) == raters
    assert len(data.excluded) == (196 if name == "tweets" else 0)
    assert label_entropy(data.counts).mean() == pytest.approx(entropy, abs=5e-5)
    assert (1 - (data.q**2).sum(1)).mean() == pytest.approx(plug_in, abs=5e-5)
    assert rater_floor(data.counts).mean() == pytest.approx(floor, abs=5e-5)
    five = load_rater(name, 5).counts
    folded = np.stack([five[:, :2].sum(1), five[:, 2], five[:, 3:].sum(1)], axis=1)
    assert np.array_equal(folded, data.counts)


@pytest.mark.data
def test_real_groups() -> None:
    # 300 reviews and 498 editorials, fewer once shared sentences are linked.
    assert len(set(load_rater("amazon").groups)) == 282
    assert len(set(load_rater("nyt").groups)) == 497
    first = load_rater("amazon").ids[0]
    assert first == "1_1"  # a byte-order mark hides it from a careless reader
    assert (
        json.dumps(load_rater("movie").texts[2]) == '"Effective but too tepid biopic"'
    )
