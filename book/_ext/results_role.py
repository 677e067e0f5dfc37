"""The role ``{res}`FILE:KEY[:FORMAT]``` puts a computed number into prose.

``FILE`` is a chapter's name (``results/chapters/FILE.json``) or, with a slash, a path
below ``results/`` without its ending. ``KEY`` is a key of that file, dots step into
nested objects and lists. ``FORMAT`` is a Python format specification; a list of numbers
is printed as an interval, ``[low, high]``. An unknown file, key or format is a warning,
which fails the build under ``-W``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole


def results_path(root: Path, name: str) -> Path:
    """Return the JSON file that ``name`` stands for."""
    below = name if "/" in name else f"chapters/{name}"
    return root / "results" / f"{below}.json"


def look_up(tree: Any, key: str) -> Any:
    """Return ``tree[key]``, or follow the dots of ``key`` into ``tree``."""
    if isinstance(tree, dict) and key in tree:
        return tree[key]
    for step in key.split("."):
        tree = tree[int(step)] if isinstance(tree, list) else tree[step]
    return tree


def show(value: Any, spec: str) -> str:
    """Format a number, a text or an interval."""
    if isinstance(value, list):
        return "[" + ", ".join(show(item, spec) for item in value) + "]"
    if isinstance(value, dict):
        raise TypeError("the key names a group, not a value")
    text = format(value, spec)
    # A true minus sign, as in the formulas; names keep their hyphens.
    return text if isinstance(value, str) else text.replace("-", "\N{MINUS SIGN}", 1)


class ResultsRole(SphinxRole):
    """Insert one value of a results file and rebuild the page when it changes."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        name, key, spec = (self.text.split(":", 2) + ["", ""])[:3]
        path = results_path(Path(self.env.srcdir), name)
        self.env.note_dependency(str(path))
        try:
            text = show(look_up(json.loads(path.read_text()), key), spec)
        except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
            message = self.inliner.reporter.warning(
                f"res role {self.text!r}: {type(error).__name__}: {error}",
                line=self.lineno,
            )
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [
                message
            ]
        return [nodes.inline(text, text, classes=["result"])], []


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the role."""
    app.add_role("res", ResultsRole())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
