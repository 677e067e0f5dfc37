"""What the pages need beyond the theme.

* MathJax comes from the installed package ``sphinx-mathjax-offline`` (Apache-2.0), so
  that no page asks another host for it; only the files that pages load are copied.
* Without ``repository.url`` in ``_config.yml`` there are no launch buttons at all.
* A proof of class ``dropdown`` becomes a ``<details>`` element. The toggle button that
  the theme would add needs a title, which a proof has not, and would stop every script
  of the page.
* The theorem blocks of one page all carry the same inner id; it is dropped.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.fileutil import copy_asset
from sphinx_proof.nodes import proof_node

MATHJAX_PARTS = ("tex-chtml.js", "output/chtml/fonts", "input/tex/extensions")


def mathjax_folder() -> Path:
    """Return the folder of MathJax inside the installed package."""
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("sphinx-mathjax-offline is missing: run `make env`")
    return Path(spec.origin).parent / "static" / "mathjax"


def copy_mathjax(app: Sphinx, error: Exception | None) -> None:
    """Copy the used part of MathJax beside the pages after a good build."""
    if error is not None or app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "mathjax"
    for part in MATHJAX_PARTS:
        source = mathjax_folder() / part
        copy_asset(source, target / part if source.is_dir() else target)


def drop_launch_buttons(app: Sphinx, config: Config) -> None:
    """Leave the launch buttons out while the repository is not set."""
    options = config.html_theme_options
    if not options.get("repository_url"):
        options["launch_buttons"] = {}


def fold_proofs(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn each proof of class ``dropdown`` into a ``<details>`` element."""
    if app.builder.format != "html":
        return
    for proof in list(doctree.findall(proof_node)):
        (block,) = proof.children
        block["ids"].clear()  # "proof", the same for all
        if "dropdown" in block["classes"]:
            opening = '<details class="proof"><summary>Proof</summary>'
            first = block[0]
            if first.children and isinstance(first[0], nodes.Text):
                first[0] = nodes.Text(first[0].removeprefix("Proof. "))
            proof.children = [
                nodes.raw("", opening, format="html"),
                *block.children,
                nodes.raw("", "</details>", format="html"),
            ]


def drop_inner_ids(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Drop the id that all theorem blocks of a page share."""
    if "body" in context:
        for inner in ("proof-content", "exercise-content", "solution-content"):
            context["body"] = context["body"].replace(f' id="{inner}"', "")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the steps."""
    app.config.mathjax_path = "mathjax/tex-chtml.js"
    app.connect("config-inited", drop_launch_buttons, priority=100)
    app.connect("doctree-resolved", fold_proofs)
    app.connect("html-page-context", drop_inner_ids)
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
