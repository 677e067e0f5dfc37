"""Tests of the whole project: the one execution of the notebooks is kept.

``pytest --nbval notebooks`` runs each chapter once. The fresh outputs of each cell go
to ``_build/fresh/CHAPTER/CELL.json`` and the numbers that the chapter saves to
``_build/numbers/``, so that later tests compare with them without running it again.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from comparison import compare_cell
from execute import ENVIRONMENT
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell

ROOT = Path(__file__).parent
FRESH = ROOT / "_build" / "fresh"
NUMBERS = ROOT / "_build" / "numbers"


def compare_and_keep(
    cell: IPyNbCell,
    fresh: list[NotebookNode],
    committed: list[NotebookNode],
    skip_compare: tuple[str, ...] | None = None,
) -> bool:
    """Stand in for nbval's comparison: keep the fresh outputs, then compare."""
    folder = FRESH / Path(cell.parent.path).stem
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{cell.cell_num:03d}.json").write_text(json.dumps(fresh))
    return compare_cell(cell, fresh, committed)


def pytest_configure(config: pytest.Config) -> None:
    """Before any kernel starts: where numbers go, one thread, no progress bars."""
    if not config.option.nbval:
        return
    IPyNbCell.compare_outputs = compare_and_keep
    if not hasattr(config, "workerinput"):  # once, not in each pytest-xdist worker
        for folder in (FRESH, NUMBERS):
            shutil.rmtree(folder, ignore_errors=True)
    os.environ.update(ENVIRONMENT, RLCD_NUMBERS_DIR=str(NUMBERS))
