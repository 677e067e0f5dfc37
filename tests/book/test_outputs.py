"""What the committed notebooks hold, against their one fresh execution.

``make validate`` has run each chapter once and kept its outputs in ``_build/fresh``.
Here every number that a notebook shows is changed in turn, in a copy, and each change
must be caught by the comparison that nbval made.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from comparison import (
    COORDINATE_TOLERANCE,
    SVG,
    Figure,
    compare_cell,
    same_figure,
    take_apart,
)
from corruption import corrupted
from execute import code_cells
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, IPyNbFile

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FRESH = ROOT / "_build" / "fresh"
NUMBERS = ROOT / "_build" / "numbers"
COMMITTED_NUMBERS = ROOT / "results" / "chapters"
#: Numbers that a chapter saves: sums of floats differ by 1e-7 between processors.
TOLERANCE = {"rel": 1e-6, "abs": 1e-9}
#: Tags of cells whose outputs nbval would not compare, and why; none is needed.
ALLOWED_TAGS: dict[str, str] = {}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def nbval_cells(path: Path, request: pytest.FixtureRequest) -> Iterator[IPyNbCell]:
    """Yield the code cells of a notebook as nbval sees them; no kernel is started."""
    yield from IPyNbFile.from_parent(request.session, path=path).collect()


def fresh_outputs(cell: IPyNbCell) -> list[NotebookNode]:
    """Return what the one execution of a cell gave."""
    kept = FRESH / Path(cell.parent.path).stem / f"{cell.cell_num:03d}.json"
    assert kept.exists(), f"{kept.parent.name} was not run: `make validate` comes first"
    return [nbformat.from_dict(output) for output in json.loads(kept.read_text())]


def faults(notebook: NotebookNode) -> list[str]:
    """Return what is wrong with a notebook as it is stored, without running it."""
    found = []
    for number, cell in enumerate(code_cells(notebook)):
        if cell.execution_count is None and cell.source.strip():
            found.append(f"cell {number} was never run")
        for tag in cell.metadata.get("tags", []):
            if re.search("nbval|exception", tag) and tag not in ALLOWED_TAGS:
                found.append(f"cell {number}: tag {tag}")
        if "NBVAL_" in cell.source:
            found.append(f"cell {number}: NBVAL comment")
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"cell {number}: error {output.ename}")
            if output.get("name") == "stderr":
                found.append(f"cell {number}: writes to stderr")
            kinds = set(output.get("data", {}))
            if kinds & {"image/png", "image/jpeg"}:
                found.append(f"cell {number}: picture that is not SVG")
            if SVG in kinds:
                looks = cell.metadata.get("mystnb", {})
                if not looks.get("figure", {}).get("caption"):
                    found.append(f"cell {number}: figure without a caption")
                if len(looks.get("image", {}).get("alt", "")) < 20:
                    found.append(f"cell {number}: figure without a telling alt text")
    return found


@pytest.mark.built
@every_notebook
def test_stored_notebook_has_no_fault(path: Path) -> None:
    """Each cell has run, nothing is exempt, figures have caption and alt text."""
    assert faults(nbformat.read(path, as_version=4)) == []


@pytest.mark.built
@every_notebook
def test_every_changed_number_is_caught(
    path: Path, request: pytest.FixtureRequest
) -> None:
    """Change each number of each output in turn: the comparison sees each."""
    changed = 0
    for cell in nbval_cells(path, request):
        fresh = fresh_outputs(cell)
        stored = cell.cell.outputs
        assert compare_cell(cell, copy.deepcopy(fresh), copy.deepcopy(stored))
        for what, wrong in corrupted(stored):
            caught = not compare_cell(cell, copy.deepcopy(fresh), wrong)
            assert caught, f"cell {cell.cell_num}: {what}"
            changed += 1
    assert changed, "a chapter shows no number at all"


@pytest.mark.built
@every_notebook
def test_every_moved_coordinate_is_caught(
    path: Path, request: pytest.FixtureRequest
) -> None:
    """Move each coordinate of each figure in turn by twice the tolerance."""
    for cell in nbval_cells(path, request):
        for output in fresh_outputs(cell):
            if SVG not in output.get("data", {}):
                continue
            figure = take_apart(output["data"][SVG])
            for i in range(len(figure.coordinates)):
                moved = figure.coordinates.copy()
                moved[i] += 2 * COORDINATE_TOLERANCE
                other = Figure(figure.skeleton, moved, figure.pixels)
                assert not same_figure(figure, other)


@pytest.mark.built
@every_notebook
def test_a_replaced_or_missing_output_is_caught(
    path: Path, request: pytest.FixtureRequest
) -> None:
    """Take each output away, and put another picture in place of each figure."""
    blank = '<svg xmlns="http://www.w3.org/2000/svg"><path d="M 0 0 L 9 9"/></svg>'
    for cell in nbval_cells(path, request):
        fresh, stored = fresh_outputs(cell), cell.cell.outputs
        for i, output in enumerate(stored):
            fewer = copy.deepcopy(stored[:i] + stored[i + 1 :])
            assert not compare_cell(cell, copy.deepcopy(fresh), fewer)
            if SVG in output.get("data", {}):
                other = copy.deepcopy(stored)
                other[i]["data"][SVG] = blank
                assert not compare_cell(cell, copy.deepcopy(fresh), other)


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each leaf of nested objects and lists."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{name}.{key}")
    elif isinstance(tree, list):
        for i, value in enumerate(tree):
            yield from leaves(value, f"{name}.{i}")
    else:
        yield name, tree


@pytest.mark.built
def test_saved_numbers_are_those_of_the_fresh_run() -> None:
    """Each number that prose can insert is what the chapters compute now."""
    files = sorted(path.name for path in COMMITTED_NUMBERS.glob("*.json"))
    assert files == sorted(path.name for path in NUMBERS.glob("*.json"))
    assert set(files) <= {f"{path.stem}.json" for path in NOTEBOOKS}
    for name in files:
        committed = dict(leaves(json.loads((COMMITTED_NUMBERS / name).read_text())))
        fresh = dict(leaves(json.loads((NUMBERS / name).read_text())))
        assert committed.keys() == fresh.keys(), name
        for key, value in committed.items():
            expected = fresh[key]
            if isinstance(expected, float):
                expected = pytest.approx(expected, **TOLERANCE, nan_ok=True)
            assert value == expected, f"{name}{key}"


def stored(**changes: Any) -> NotebookNode:
    """Return a notebook of one good cell, with changes of that cell."""
    output = nbformat.v4.new_output("stream", text="1.5\n")
    cell = nbformat.v4.new_code_cell("print(1.5)", execution_count=1, outputs=[output])
    cell.update(changes)
    return nbformat.v4.new_notebook(cells=[cell])


def test_planted_faults_of_stored_notebooks_are_seen() -> None:
    """An unrun cell, an error, stderr, an exemption, a bare figure: each is named."""
    assert faults(stored()) == []
    assert faults(stored(execution_count=None)) == ["cell 0 was never run"]
    error = nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[])
    assert faults(stored(outputs=[error])) == ["cell 0: error ValueError"]
    stderr = nbformat.v4.new_output("stream", name="stderr", text="50%|####")
    assert faults(stored(outputs=[stderr])) == ["cell 0: writes to stderr"]
    for tag in ("nbval-ignore-output", "nbval-skip", "raises-exception"):
        exempt = nbformat.from_dict({"tags": [tag]})
        assert faults(stored(metadata=exempt)) == [f"cell 0: tag {tag}"]
    comment = stored(source="# NBVAL_IGNORE_OUTPUT\nprint(1.5)")
    assert faults(comment) == ["cell 0: NBVAL comment"]
    figure = nbformat.v4.new_output("display_data", data={SVG: "<svg/>"})
    assert len(faults(stored(outputs=[figure]))) == 2
    picture = nbformat.v4.new_output("display_data", data={"image/png": "AAAA"})
    assert faults(stored(outputs=[picture])) == ["cell 0: picture that is not SVG"]


def test_the_one_execution_itself_goes_red(tmp_path: Path) -> None:
    """A wrong number and a replaced figure fail under `pytest --nbval`; others pass."""
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><path d="M 0 0 L 9 1"/></svg>'
    draw = f"from IPython.display import SVG\nSVG({svg!r})"
    right = [nbformat.v4.new_output("stream", text="1.5\n")]
    wrong = [nbformat.v4.new_output("stream", text="1.6\n")]
    shown = "<IPython.core.display.SVG object>"
    figures = [
        [
            nbformat.v4.new_output(
                "execute_result",
                data={"text/plain": shown, SVG: svg.replace("9 1", coordinates)},
            )
        ]
        for coordinates in ("9 1.001", "9 2")
    ]
    cells = [
        nbformat.v4.new_code_cell(source, execution_count=1, outputs=outputs)
        for source, outputs in (
            ("print(1.5)", right),
            ("print(1.5)", wrong),
            (draw, figures[0]),
            (draw, figures[1]),
        )
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "x.ipynb")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    options = ["--nbval", "--nbval-current-env", "-q", "--color=no", "-rfp"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "book" / "tools")},
        capture_output=True,
        text=True,
    )
    verdicts = re.findall(r"^(PASSED|FAILED) x.ipynb::Cell (\d)", done.stdout, re.M)
    assert sorted(verdicts, key=lambda pair: pair[1]) == [
        ("PASSED", "0"),
        ("FAILED", "1"),
        ("PASSED", "2"),
        ("FAILED", "3"),
    ], done.stdout
    assert len(list((tmp_path / "_build" / "fresh" / "x").glob("*.json"))) == 4


def test_each_number_of_an_output_is_corrupted_once() -> None:
    """Text and HTML: every number, last digit changed, the rest as it was."""
    outputs = [
        nbformat.v4.new_output("stream", text="ece 0.19 of 60000"),
        nbformat.v4.new_output(
            "execute_result", data={"text/html": "<td>2</td>", SVG: "<svg>7</svg>"}
        ),
    ]
    wrong = [changed for _, changed in corrupted(outputs)]
    assert len(wrong) == 3
    assert wrong[0][0]["text"] == "ece 0.10 of 60000"
    assert wrong[1][0]["text"] == "ece 0.19 of 60001"
    assert wrong[2][1]["data"]["text/html"] == "<td>3</td>"
    assert outputs[0]["text"] == "ece 0.19 of 60000"
