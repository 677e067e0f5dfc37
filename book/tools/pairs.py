"""Check that the two files of each chapter say the same; change neither."""

from __future__ import annotations

import difflib
import tempfile
from pathlib import Path

from jupytext.cli import jupytext


def text_of(notebook: Path) -> str:
    """Return the text file that a notebook would be written as."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"{notebook.stem}.py"
        jupytext(
            ["--quiet", "--to", "py:percent", "--output", str(target), str(notebook)]
        )
        return target.read_text()


def pair_difference(text: Path, notebook: Path) -> str:
    """Return a message that names both files and shows where they differ, or ``""``.

    File times play no part: neither file is taken to be the newer one.
    """
    lines = difflib.unified_diff(
        text.read_text().splitlines(),
        text_of(notebook).splitlines(),
        str(text),
        str(notebook),
        lineterm="",
    )
    difference = "\n".join(lines)
    if not difference:
        return ""
    return (
        f"{text.name} and {notebook.name} disagree. Keep the change you want in "
        f"{text.name}, then run `make nb NAME={text.stem}`.\n{difference}"
    )
