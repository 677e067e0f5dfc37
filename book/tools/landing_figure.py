"""Copy one figure of an executed chapter to where a page without code can show it.

``python book/tools/landing_figure.py`` writes ``book/_static/identity-fields.svg`` from
the cell ``fig-identity-fields`` of ``notebooks/01_identity.ipynb``. A test compares
both.
"""

from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "book" / "_static" / "identity-fields.svg"


def figure_of(notebook: Path, name: str) -> str:
    """Return the SVG of the cell whose figure has this name.

    Raises
    ------
    KeyError
        If no cell has the name, or the cell has no SVG output.
    """
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.metadata.get("mystnb", {}).get("figure", {}).get("name") != name:
            continue
        for output in cell.get("outputs", []):
            if "image/svg+xml" in output.get("data", {}):
                return output.data["image/svg+xml"]
    raise KeyError(f"{notebook.name} has no executed figure {name!r}")


def current() -> str:
    """Return the SVG that the landing page should show."""
    return figure_of(ROOT / "notebooks" / "01_identity.ipynb", "fig-identity-fields")


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(current())
    print(f"wrote {TARGET.relative_to(ROOT)}")
