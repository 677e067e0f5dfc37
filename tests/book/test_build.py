"""A tiny book built with the real configuration and extensions, and with faults."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from results_role import look_up, show

ROOT = Path(__file__).resolve().parents[2]

INTRO = """\
# A tiny book

ECE {res}`x:arms.rlcd.ece:.3f`, interval {res}`x:interval:.2f`, n = {res}`x:n:,d`.

:::{prf:theorem} One
:label: thm-one

$1 = 1$.
:::

:::{prf:proof}
:class: dropdown

Clear from {prf:ref}`thm-one`.
:::

:::{exercise} Two
:label: ex-two

Show it.
:::

:::{solution} ex-two
:label: sol-two
:class: dropdown

So.
:::
"""
NUMBERS = {"arms": {"rlcd": {"ece": -0.0314}}, "interval": [0.1, 0.25], "n": 60000}


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Lay out a book of one page and one notebook."""
    shutil.copytree(ROOT / "book" / "_ext", tmp_path / "book" / "_ext")
    shutil.copytree(ROOT / "book" / "_static", tmp_path / "book" / "_static")
    (tmp_path / "book" / "references.bib").touch()
    (tmp_path / "book" / "intro.md").write_text(INTRO)
    shutil.copy(ROOT / "_config.yml", tmp_path)
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\nchapters:\n- file: notebooks/x\n"
    )
    (tmp_path / "notebooks").mkdir()
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# A notebook")],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, tmp_path / "notebooks" / "x.ipynb")
    (tmp_path / "results" / "chapters").mkdir(parents=True)
    (tmp_path / "results" / "chapters" / "x.json").write_text(json.dumps(NUMBERS))
    return tmp_path


def build(book: Path) -> subprocess.CompletedProcess[str]:
    """Build it as `make html` does."""
    options = ["--all", "-W", "--keep-going", "-n", "-q", "."]
    command = [Path(sys.executable).with_name("jupyter-book"), "build", *options]
    return subprocess.run(command, cwd=book, capture_output=True, text=True)


def page(book: Path, name: str) -> BeautifulSoup:
    """Parse one built page."""
    path = book / "_build" / "html" / f"{name}.html"
    return BeautifulSoup(path.read_text(), "html.parser")


def test_roles_proofs_and_launch_buttons(book: Path) -> None:
    """Numbers are inserted, the proof folds, a set repository gives Colab links."""
    config = (book / "_config.yml").read_text()
    (book / "_config.yml").write_text(
        config.replace('  url: ""', '  url: "https://github.com/OWNER/NAME"', 1)
    )
    done = build(book)
    assert done.returncode == 0, done.stderr
    intro = page(book, "book/intro")
    text = intro.get_text(" ", strip=True)
    assert "ECE \N{MINUS SIGN}0.031 , interval [0.10, 0.25] , n = 60,000" in text
    proof = intro.find("details", class_="proof")
    assert proof.summary.get_text() == "Proof" and not proof.has_attr("open")
    assert intro.find(id="proof-content") is None
    links = [tag["href"] for tag in page(book, "notebooks/x").find_all("a", href=True)]
    colab = "https://colab.research.google.com/github/OWNER/NAME/blob/main/"
    assert f"{colab}notebooks/x.ipynb" in links


FAULTS = {
    "{res}`x:arms.rlvr.ece`": "KeyError: 'rlvr'",
    "{res}`x:n:.3q`": "ValueError: Unknown format code 'q'",
    "{res}`x:arms`": "TypeError: the key names a group",
    "{res}`gone:n`": "FileNotFoundError",
    "{prf:ref}`thm-gone`": "thm-gone",
    "{doc}`page-gone`": "page-gone",
    "{eq}`eq-gone`": "eq-gone",
    "{numref}`fig-gone`": "fig-gone",
    "{cite}`gone1999`": "gone1999",
    "[link](link-gone.md)": "link-gone.md",
    "[anchor](#anchor-gone)": "anchor-gone",
    "![A picture that is not there.](picture-gone.svg)": "picture-gone.svg",
}


def test_planted_faults_fail_the_build(book: Path) -> None:
    """An unknown number, reference, page, citation or picture is an error."""
    path = book / "book" / "intro.md"
    path.write_text("\n\n".join([path.read_text(), *FAULTS]))
    done = build(book)
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    for fault, message in FAULTS.items():
        assert any(message in line for line in warnings), f"{fault}\n{done.stderr}"


def test_look_up_and_show() -> None:
    """Dots step into objects and lists; a group or a missing key is an error."""
    assert look_up({"a.b": 1, "a": {"b": [2, 3]}}, "a.b") == 1
    assert look_up({"a": {"b": [2, 3]}}, "a.b.1") == 3
    assert show(-0.5, ".2f") == "\N{MINUS SIGN}0.50"
    assert show([-1.0, 2.0], ".0f") == "[\N{MINUS SIGN}1, 2]"
    assert show("rlcd-std", "") == "rlcd-std"
    with pytest.raises(TypeError):
        show({"b": 1}, "")
    with pytest.raises(KeyError):
        look_up({"a": 1}, "b")
