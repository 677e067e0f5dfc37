"""The runner of chapters, on a tiny project with real kernels."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import execute
import nbformat
import pytest
from setup_cell import HEADER

CHAPTER = (
    HEADER
    + """
# %% [markdown]
# # A chapter

# %% tags=["parameters"]
seed = 0

# %%
import json, os, pathlib
folder = pathlib.Path(os.environ["RLCD_NUMBERS_DIR"])
folder.mkdir(parents=True, exist_ok=True)
_ = (folder / "x.json").write_text(json.dumps({"two": 2 + seed}))
print("half way", file=__import__("sys").stderr)
print(2 + seed)
"""
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build a project of one chapter, one module and one lock, and point there."""
    for folder in ("notebooks", "rlcd_core", "data_manifests", "results"):
        (tmp_path / folder).mkdir()
    (tmp_path / "requirements.lock").write_text("numpy==2.4.6\n")
    (tmp_path / "rlcd_core" / "module.py").write_text("A = 1\n")
    (tmp_path / "notebooks" / "x.py").write_text(CHAPTER)
    monkeypatch.setattr(execute, "ROOT", tmp_path)
    monkeypatch.setattr(execute, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(execute, "STATES", tmp_path / "_build" / "executed")
    monkeypatch.setattr(execute, "NUMBERS", tmp_path / "results" / "chapters")
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Call the command as make does."""
    monkeypatch.setattr(sys, "argv", ["execute.py", *arguments])
    return execute.main()


def test_a_chapter_runs_once_and_prose_changes_keep_its_outputs(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """First run executes; a second changes no byte; new prose needs no kernel."""
    text = project / "notebooks" / "x.py"
    # Case 19: the notebook names a kernel that does not exist here.
    text.write_text(CHAPTER.replace("name: python3", "name: my-own-kernel"))
    assert run(monkeypatch) == 0
    log = capsys.readouterr().out
    assert "running" in log and "cell 1 wrote to stderr: half way" in log
    notebook = project / "notebooks" / "x.ipynb"
    first = notebook.read_bytes()
    cells = execute.code_cells(nbformat.read(notebook, as_version=4))
    assert [cell.execution_count for cell in cells] == [1, 2]
    assert [output.text for output in cells[1].outputs] == ["2\n"]
    numbers = project / "results" / "chapters" / "x.json"
    assert json.loads(numbers.read_text()) == {"two": 2}

    assert run(monkeypatch) == 0
    assert "running" not in capsys.readouterr().out
    assert notebook.read_bytes() == first

    text.write_text(text.read_text().replace("# # A chapter", "# # Another title"))
    assert run(monkeypatch) == 0
    assert "running" not in capsys.readouterr().out
    changed = nbformat.read(notebook, as_version=4)
    assert changed.cells[0].source == "# Another title"
    assert execute.code_cells(changed)[1].outputs[0].text == "2\n"


def test_a_failing_chapter_leaves_the_committed_notebook_alone(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The traceback is shown, the status counts failures, no file is touched."""
    notebook = project / "notebooks" / "x.ipynb"
    numbers = project / "results" / "chapters" / "x.json"
    notebook.write_text(nbformat.writes(nbformat.v4.new_notebook()))
    before = notebook.read_bytes()
    (project / "notebooks" / "x.py").write_text(CHAPTER + "1 / 0\n")
    assert run(monkeypatch) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert notebook.read_bytes() == before
    assert not numbers.exists()


def test_the_key_covers_package_data_results_and_lock(project: Path) -> None:
    """Each of them changes the key; the chapters' own numbers do not."""
    keys = {execute.shared_key()}
    for name in (
        "rlcd_core/module.py",
        "rlcd_core/new.py",
        "data_manifests/movie.yaml",
        "results/records.json",
        "requirements.lock",
    ):
        (project / name).write_text("changed\n")
        keys.add(execute.shared_key())
    assert len(keys) == 6
    (project / "results" / "chapters").mkdir()
    (project / "results" / "chapters" / "x.json").write_text("{}")
    assert execute.shared_key() in keys


def test_an_edited_output_is_made_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook whose outputs were changed by hand does not count as up to date."""
    ran = []

    def pretend(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
        ran.append(folder)
        for cell in execute.code_cells(notebook):
            cell.execution_count = len(ran)
        return notebook

    monkeypatch.setattr(execute, "papermill", pretend)
    assert run(monkeypatch) == 0 and run(monkeypatch) == 0
    assert len(ran) == 1
    notebook = project / "notebooks" / "x.ipynb"
    edited = nbformat.read(notebook, as_version=4)
    edited.cells[-1].outputs = [nbformat.v4.new_output("stream", text="3\n")]
    nbformat.write(edited, notebook)
    assert run(monkeypatch) == 0
    assert len(ran) == 2


def test_normalise_is_idempotent_and_ids_are_stable() -> None:
    """Two conversions of one text give the same bytes, repeated cells included."""
    texts = [
        nbformat.writes(
            execute.normalise(execute.jupytext.reads(CHAPTER + "\n# %%\n1\n" * 2, "py"))
        )
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
