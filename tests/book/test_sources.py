"""Pairs, heads, contents, versions: what can be checked without running a chapter."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
import pytest
import yaml
from execute import code_cells, normalise
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pairs import pair_difference
from setup_cell import CELL_LINE, setup_cell, with_head

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
CHAPTERS = sorted(path.stem for path in NOTEBOOKS.glob("*.py"))


@pytest.mark.parametrize("name", CHAPTERS)
def test_pair_agrees(name: str) -> None:
    """The text file and the notebook hold the same cells."""
    text, notebook = NOTEBOOKS / f"{name}.py", NOTEBOOKS / f"{name}.ipynb"
    assert pair_difference(text, notebook) == ""


def test_every_notebook_has_its_text_file() -> None:
    """No notebook without a source."""
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == CHAPTERS


def test_a_mismatched_pair_names_both_files_and_changes_neither(tmp_path: Path) -> None:
    """Planted fault: one digit differs between the two files."""
    text, notebook = tmp_path / "x.py", tmp_path / "x.ipynb"
    text.write_text(with_head(f"\n{CELL_LINE}{setup_cell()}\n\n# %%\nrate = 0.5\n"))
    shutil.copy(NOTEBOOKS / "jupytext.toml", tmp_path)
    cells = jupytext.read(text)
    cells.metadata.jupytext.pop("text_representation")
    nbformat.write(normalise(cells), notebook)
    assert pair_difference(text, notebook) == ""

    notebook.write_text(notebook.read_text().replace("rate = 0.5", "rate = 0.6"))
    before = text.read_bytes(), notebook.read_bytes()
    message = pair_difference(text, notebook)
    assert "x.py" in message and "x.ipynb" in message
    assert "-rate = 0.5" in message and "+rate = 0.6" in message
    assert (text.read_bytes(), notebook.read_bytes()) == before


@pytest.mark.parametrize("name", CHAPTERS)
def test_head_is_the_common_one(name: str) -> None:
    """jupytext's header and the set-up cell are the same in every chapter."""
    text = (NOTEBOOKS / f"{name}.py").read_text()
    assert with_head(text) == text, "run `make setup-cell`"
    code = code_cells(jupytext.reads(text, "py"))
    assert code[0].source == setup_cell()
    assert code[1].source == 'profile = "auto"\nseed = 0'
    assert code[1].metadata["tags"] == ["parameters"]


def test_contents_list_exactly_what_exists() -> None:
    """Each chapter and page is in the table of contents, and nothing else is."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = [toc["root"]]
    for part in toc.get("parts", []):
        listed += [chapter["file"] for chapter in part["chapters"]]
    assert len(listed) == len(set(listed))
    there = [f"notebooks/{name}" for name in CHAPTERS]
    there += [f"book/{path.stem}" for path in (ROOT / "book").glob("*.md")]
    assert sorted(listed) == sorted(there)


def locked() -> dict[str, set[str]]:
    """Return the versions of each package in the lock; more than one where it forks."""
    versions: dict[str, set[str]] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        requirement = Requirement(line)
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        name = canonicalize_name(requirement.name)
        versions.setdefault(name, set()).add(pin.version)
    return versions


def declared() -> list[Requirement]:
    """Return all requirements of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    return [Requirement(line) for line in lines]


def test_environment_pyproject_and_lock_name_the_same_versions() -> None:
    """environment.yml pins what pyproject names, the lock has those very versions."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    lines = environment["dependencies"][-1]["pip"]
    pins = dict(line.split("==") for line in lines if not line.startswith("-"))
    lock = locked()
    assert {canonicalize_name(r.name) for r in declared()} == set(pins)
    for name, version in pins.items():
        assert lock[name] == {version}, name
    for requirement in declared():
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement


def test_lock_leaves_the_build_of_torch_to_the_platform() -> None:
    """No local version and no CUDA library is locked."""
    text = (ROOT / "requirements.lock").read_text()
    assert re.search(r"^torch==[\d.]+$", text, re.MULTILINE)
    assert "+cpu" not in text and "nvidia-" not in text


def test_the_running_environment_is_the_locked_one() -> None:
    """What the tests run with is what the lock names."""
    lock = locked()
    for requirement in declared():
        name = canonicalize_name(requirement.name)
        running = importlib.metadata.version(name).split("+")[0]
        assert running in lock[name], f"{name} {running}: run `make env`"


def imported(path: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


# Rivals that a benchmark script is run against; they would bring their own pins, so
# whoever runs the script installs them beside the project, as its docstring says.
RIVALS = {"tests/bench/decider.py": "outlines", "tests/bench/training.py": "trl"}


def test_rivals_are_named_by_the_scripts_that_need_them() -> None:
    for file, module in RIVALS.items():
        tree = ast.parse((ROOT / file).read_text())
        assert module in set(imported(ROOT / file)), f"{file} no longer needs {module}"
        assert module in (ast.get_docstring(tree) or ""), f"{file}: say how to get it"


def test_every_import_is_declared() -> None:
    """A package that any file imports is named in pyproject.toml."""
    folders = ("rlcd_core", "tests", "notebooks", "book")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    own = {path.stem for path in files} | {"rlcd_core", "tests", "google"}
    names = {canonicalize_name(requirement.name) for requirement in declared()}
    providers = importlib.metadata.packages_distributions()
    missing = set()
    for path in files:
        for module in imported(path):
            if module in own or module in sys.stdlib_module_names:
                continue
            if RIVALS.get(str(path.relative_to(ROOT))) == module:
                continue
            found = {canonicalize_name(name) for name in providers.get(module, [])}
            if not found & names:
                missing.add(f"{path.relative_to(ROOT)}: {module}")
    assert not missing


def test_the_wheel_holds_every_package() -> None:
    """Each folder of modules is listed as a package, and so are the manifests."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    folders = {path.parent for path in (ROOT / "rlcd_core").rglob("__init__.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    listed = set(tools["setuptools"]["packages"])
    assert listed == names | {"rlcd_core.data_manifests"}


def test_set_up_does_nothing_elsewhere() -> None:
    """Outside Colab the cell prints nothing and loads nothing."""
    code = setup_cell() + "\nprint('torch' in sys.modules, 'os' in dir())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr


def test_set_up_on_colab_clones_and_leaves_torch_alone(tmp_path: Path) -> None:
    """A pretended Colab: a real clone, pip recorded, and what it prints."""
    origin, folder = tmp_path / "origin", tmp_path / "content"
    (origin / "notebooks").mkdir(parents=True)
    (origin / "notebooks" / "here").touch()
    git = ["git", "-C", str(origin), "-c", "user.name=x", "-c", "user.email=x@y"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    cell = setup_cell()
    cell = re.sub(r'REPOSITORY = ".*?"', f'REPOSITORY = "file://{origin}"', cell)
    cell = cell.replace("/content/rlcd", str(folder))
    assert str(folder) in cell and str(origin) in cell
    pretend = """
import subprocess, sys, types
sys.modules["google.colab"] = types.ModuleType("google.colab")
real, calls = subprocess.run, []
def run(command, **options):
    calls.append(command)
    return real(command, **options) if command[0] == "git" else None
subprocess.run = run
"""
    end = "\nimport os\nprint(os.listdir('.'), calls[1][1:])"
    done = subprocess.run(
        [sys.executable, "-c", pretend + cell + end], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *found, last = done.stdout.splitlines()
    assert last.startswith("['here'] ['-m', 'pip', 'install', '--quiet', '--no-deps'")
    assert "torch" not in last and "numpy" not in last
    said = "\n".join(found)
    assert all(word in said for word in ("Python 3.", "torch 2.", "GPU", "profile"))


def test_set_up_on_colab_says_that_the_repository_is_not_set() -> None:
    """While `repository.url` is empty the cell stops with the mend."""
    cell = re.sub(r'REPOSITORY = ".*?"', 'REPOSITORY = ""', setup_cell())
    pretend = "import sys; sys.modules['google.colab'] = sys\n"
    done = subprocess.run(
        [sys.executable, "-c", pretend + cell], capture_output=True, text=True
    )
    assert "RuntimeError: This copy names no repository" in done.stderr
