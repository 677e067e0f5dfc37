"""The quickstart of README.md, run word for word in a new environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
QUICKSTART = README.partition("## One minute")[2].partition("\n## ")[0]


def block(language: str) -> str:
    """Return the only code block of a language in the quickstart."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", QUICKSTART, re.DOTALL)
    return found


@pytest.mark.built
def test_quickstart_gives_what_it_says(tmp_path: Path) -> None:
    """Install into a fresh environment, run the lines, compare what they print."""
    copy = tmp_path / "clone"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-TEXT"):
        shutil.copy(ROOT / name, copy)
    leave = shutil.ignore_patterns("__pycache__")
    for name in ("rlcd_core", "results", "data_manifests"):
        shutil.copytree(ROOT / name, copy / name, ignore=leave)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RLCD_")}
    clean.pop("PYTHONPATH", None)
    shell = ["bash", "-euc", block("sh")]
    made = subprocess.run(shell, cwd=copy, env=clean, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    done = subprocess.run(
        [copy / ".quick" / "bin" / "python", "-c", block("python")],
        cwd=copy,
        env=clean,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # After the records were run again: put this output into README.md.
    assert done.stdout == block("text")
    packages = (copy / ".quick" / "lib").glob("python*/site-packages/torch")
    assert not list(packages), "the quickstart must stay small"


def test_readme_names_targets_that_exist() -> None:
    """Every `make` command of the README and the contributor notes is a target."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    text = README + (ROOT / "book" / "contributing.md").read_text()
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert {"book", "test"} <= named <= targets
