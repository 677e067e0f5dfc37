"""Compare a fresh execution of a notebook cell with what the notebook holds.

Text, tables and results must be equal: nbval does that. Figures are SVG, in which the
last digits of coordinates differ between processors, so nbval's exact comparison would
be flaky and skipping them would let a replaced figure pass. Here a figure is the same
when its elements, colours, styles and texts are equal and each coordinate lies within
``COORDINATE_TOLERANCE``.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, coalesce_streams
from PIL import Image

#: Points, 1/72 inch. A screen pixel is .75 points, so nobody sees .02; sums of floats
#: in another order move a coordinate by less than .001.
COORDINATE_TOLERANCE = 0.02
#: Grey levels of 255 in pictures inside an SVG (heat maps): one step of rounding.
PIXEL_TOLERANCE = 1

SVG = "image/svg+xml"
COORDINATES = frozenset(
    "d x y x1 y1 x2 y2 cx cy r rx ry width height points transform viewBox".split()
)
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# Matplotlib names markers and clip paths by a hash of their coordinates.
HASHED_NAME = re.compile(r"\b[a-z][0-9a-f]{10}\b")
PICTURE = "data:image/png;base64,"


@dataclass(frozen=True)
class Figure:
    """An SVG taken apart: what must be equal, and what may differ by the tolerance.

    Attributes
    ----------
    skeleton
        One line per element, attribute and text, coordinates replaced by ``#``.
    coordinates
        All coordinates in order, in points.
    pixels
        The pictures inside, decoded to arrays of bytes.
    """

    skeleton: tuple[str, ...]
    coordinates: np.ndarray
    pixels: tuple[np.ndarray, ...]


def take_apart(svg: str) -> Figure:
    """Take an SVG apart for comparison.

    Examples
    --------
    >>> take_apart('<svg><path d="M 0.5 2"/>one</svg>').coordinates
    array([0.5, 2. ])
    """
    names: dict[str, str] = {}

    def stable_name(found: re.Match[str]) -> str:
        return names.setdefault(found.group(), f"name{len(names)}")

    skeleton: list[str] = []
    coordinates: list[float] = []
    pixels: list[np.ndarray] = []
    for element in ElementTree.fromstring(svg).iter():
        tag = element.tag.rpartition("}")[2]
        if tag == "metadata":  # names the library and its version, draws nothing
            element.clear()
            continue
        skeleton.append(tag)
        for key, value in element.attrib.items():
            key = key.rpartition("}")[2]
            if key in COORDINATES:
                coordinates += map(float, NUMBER.findall(value))
                value = NUMBER.sub("#", value)
            elif value.startswith(PICTURE):
                data = base64.b64decode(value.removeprefix(PICTURE))
                pixels.append(np.asarray(Image.open(io.BytesIO(data))).astype(int))
                value = PICTURE
            elif key == "id" or "#" in value:
                value = HASHED_NAME.sub(stable_name, value)
            skeleton.append(f"{key}={value}")
        skeleton += [f"'{text}'" for text in (element.text, element.tail) if text]
    return Figure(tuple(skeleton), np.array(coordinates), tuple(pixels))


def same_figure(one: Figure, other: Figure) -> bool:
    """Say whether two figures show the same, to the stated tolerances."""
    return (
        one.skeleton == other.skeleton
        and one.coordinates.shape == other.coordinates.shape
        and bool(
            (abs(one.coordinates - other.coordinates) <= COORDINATE_TOLERANCE).all()
        )
        and [p.shape for p in one.pixels] == [p.shape for p in other.pixels]
        and all(
            bool((abs(p - q) <= PIXEL_TOLERANCE).all())
            for p, q in zip(one.pixels, other.pixels, strict=True)
        )
    )


def figures(outputs: Iterable[NotebookNode]) -> list[str]:
    """Return the SVG texts among the outputs of a cell."""
    return [out.data[SVG] for out in outputs if SVG in out.get("data", {})]


def compare_cell(
    cell: IPyNbCell, fresh: list[NotebookNode], committed: list[NotebookNode]
) -> bool:
    """Compare outputs by nbval's rule, figures by ours.

    Used at the one execution, and again offline by the test that corrupts outputs.
    ``cell.comparison_traceback`` then tells what differs.
    """
    # The class's own method: the running one is replaced by this function.
    same = NBVAL_COMPARE(
        cell,
        coalesce_streams(fresh),
        coalesce_streams(committed),
        (*cell.parent.skip_compare, SVG, "stderr"),
    )
    new, old = figures(fresh), figures(committed)
    if len(new) != len(old):
        cell.comparison_traceback.append(f"{len(old)} figures stored, {len(new)} drawn")
        return False
    for number, (one, other) in enumerate(zip(new, old, strict=True)):
        if not same_figure(take_apart(one), take_apart(other)):
            cell.comparison_traceback.append(f"figure {number} shows something else")
            same = False
    return same


NBVAL_COMPARE = IPyNbCell.compare_outputs
