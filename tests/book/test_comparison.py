"""The comparison of figures, on real SVG: noise passes, another picture does not."""

from __future__ import annotations

import io

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from comparison import COORDINATE_TOLERANCE, same_figure, take_apart


def draw(
    heights: tuple[float, ...] = (1.0, 2.0, 1.5),
    label: str = "ECE",
    color: str = "#0c60fc",
    shift: float = 0.0,
    picture: np.ndarray | None = None,
    salt: str = "rlcd",
) -> str:
    """Draw a small figure as the book does and return its SVG."""
    style = {"svg.hashsalt": salt, "svg.fonttype": "path"}
    with matplotlib.rc_context(style):
        figure, axes = plt.subplots(figsize=(3, 2))
        axes.plot(np.array(heights) + shift, color=color, marker="o")
        axes.set(ylabel=label, ylim=(0, 3))
        if picture is not None:
            axes.imshow(picture, extent=(0, 1, 0, 1), vmin=0, vmax=255)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        plt.close(figure)
    return buffer.getvalue()


def same(one: str, other: str) -> bool:
    """Compare two SVG texts."""
    return same_figure(take_apart(one), take_apart(other))


def test_last_digits_and_hashed_names_do_not_matter() -> None:
    """Noise of 1e-6 in the data changes bytes and ids, not the figure."""
    noisy = draw(shift=1e-6, salt="other")
    assert noisy != draw()
    assert same(draw(), noisy)


@pytest.mark.parametrize(
    "change",
    [
        {"heights": (1.0, 2.0, 1.55)},
        {"heights": (1.0, 2.0)},
        {"label": "ECF"},
        {"label": "ECE 0.2"},
        {"color": "#0c60fd"},
    ],
    ids=["a height", "a point fewer", "a letter", "more text", "a colour"],
)
def test_a_replaced_figure_is_seen(change: dict[str, object]) -> None:
    """Each visible change alone is enough."""
    assert not same(draw(), draw(**change))


def test_digits_of_tick_labels_are_compared_exactly() -> None:
    """Glyphs are outlines: 0.21 for 0.22 is another glyph, however close."""
    assert not same(draw(label="0.21"), draw(label="0.22"))


def test_each_coordinate_counts() -> None:
    """A shift of any one coordinate by twice the tolerance is seen, half is not."""
    figure = take_apart(draw())
    for i in range(len(figure.coordinates)):
        for factor, expected in ((2.0, False), (0.5, True)):
            moved = figure.coordinates.copy()
            moved[i] += factor * COORDINATE_TOLERANCE
            other = type(figure)(figure.skeleton, moved, figure.pixels)
            assert same_figure(figure, other) is expected


def test_pictures_inside_are_decoded() -> None:
    """A heat map one grey level apart is the same, forty levels is another."""
    grey = np.full((4, 4), 100.0)
    other = grey.copy()
    other[1, 2] = 140.0
    assert same(draw(picture=grey), draw(picture=grey + 0.4))
    assert not same(draw(picture=grey), draw(picture=other))
