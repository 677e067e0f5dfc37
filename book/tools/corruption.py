"""Ways in which the stored outputs of a notebook can be wrong, one number at a time."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

from comparison import SVG
from nbformat import NotebookNode

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def other_number(found: re.Match[str]) -> str:
    """Return the number with its last digit changed."""
    text = found.group()
    return text[:-1] + str((int(text[-1]) + 1) % 10)


def texts(output: NotebookNode) -> Iterator[tuple[NotebookNode, str]]:
    """Yield each place of an output that holds text: the node and its key."""
    if "text" in output:
        yield output, "text"
    for kind, value in output.get("data", {}).items():
        if isinstance(value, str) and kind != SVG:
            yield output["data"], kind


def corrupted(
    outputs: list[NotebookNode],
) -> Iterator[tuple[str, list[NotebookNode]]]:
    """Yield a copy of the outputs for each number in them, with that number changed.

    Numbers in text, tables and HTML count; those in figures are coordinates, which the
    comparison of figures covers. The first item tells what was changed.
    """
    for i, output in enumerate(outputs):
        for j, (node, key) in enumerate(texts(output)):
            for found in NUMBER.finditer(node[key]):
                changed = copy.deepcopy(outputs)
                target, _ = list(texts(changed[i]))[j]
                text = target[key]
                start, end = found.span()
                target[key] = text[:start] + other_number(found) + text[end:]
                yield f"output {i}, {key}, {found.group()} at {start}", changed
