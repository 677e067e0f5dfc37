"""Write the common head into every chapter: jupytext's header and the set-up cell.

The set-up cell is the first code cell of each notebook. On Colab it clones the
repository that ``_config.yml`` names and installs ``rlcd-core`` without its
dependencies, so that the torch and numpy that are there stay as they are; anywhere else
it does nothing.

Run ``python book/tools/setup_cell.py`` after a change of ``repository.url``; the tests
compare each chapter with :func:`with_head`.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
HEADER = """\
# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,mystnb,-all
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---
"""  # noqa: E501
CELL_LINE = '# %% tags=["remove-cell"]\n'
FIRST_LINE = "# Set-up: on Colab this fetches the book; elsewhere it does nothing."

TEMPLATE = (
    FIRST_LINE
    + """
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    REPOSITORY = "{url}"  # repository.url of _config.yml
    FOLDER = "/content/rlcd"
    if not REPOSITORY:
        raise RuntimeError("This copy names no repository; open it from the book.")
    if not os.path.isdir(FOLDER):
        subprocess.run(["git", "clone", "--depth=1", REPOSITORY, FOLDER], check=True)
        # Without dependencies: torch and numpy stay as Colab has them.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "gguf=={gguf}", "--editable", FOLDER], check=True)
    sys.path.insert(0, FOLDER)
    os.chdir(FOLDER + "/notebooks")

    import torch

    cuda = torch.cuda.is_available()
    print("Python", sys.version.split()[0], "| torch", torch.__version__)
    print("GPU", torch.cuda.get_device_name() if cuda else "none", end=" | ")
    print("profile auto means", "gpu" if cuda else "records")
"""
)


def repository_url() -> str:
    """Return the one repository setting of the book; empty while it is unset."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    return config["repository"]["url"]


def locked_version(name: str) -> str:
    """Return the version of a package in the lock."""
    lock = (ROOT / "requirements.lock").read_text()
    found = re.search(rf"^{re.escape(name)}==([^\s;]+)", lock, re.MULTILINE)
    if found is None:
        raise LookupError(f"{name} is not in requirements.lock: run `make lock`")
    return found.group(1)


def setup_cell() -> str:
    """Return the source of the set-up cell, as the notebooks must hold it."""
    filled = TEMPLATE.format(url=repository_url(), gguf=locked_version("gguf"))
    return filled.rstrip("\n")


def with_head(chapter: str) -> str:
    """Return the text of a chapter with header and set-up cell as they must be."""
    body = re.sub(r"\A# ---\n.*?^# ---\n", "", chapter, flags=re.DOTALL | re.MULTILINE)
    pattern = re.escape(CELL_LINE + FIRST_LINE) + r".*?(?=\n\n# %%)"
    body, count = re.subn(
        pattern, lambda _: CELL_LINE + setup_cell(), body, count=1, flags=re.DOTALL
    )
    if count == 0:
        raise LookupError(f"no set-up cell, which begins\n{CELL_LINE}{FIRST_LINE}")
    return HEADER + body


if __name__ == "__main__":
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        old = path.read_text()
        new = with_head(old)
        if new != old:
            path.write_text(new)
        print(path.name, "changed" if new != old else "as it was")
