"""Run the chapters with papermill and keep what each run wrote.

``python book/tools/execute.py [--force] [NAME ...]`` turns ``notebooks/NAME.py`` into
the executed ``notebooks/NAME.ipynb``. A chapter runs in a temporary file and replaces
the committed notebook only when every cell has passed. It runs only when something that
its outputs depend on has changed: its code cells, the package, the data manifests, the
results that it may read, the lock or the Python version. When only prose has changed,
the prose is copied over and the outputs stay.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import jupytext
import nbformat
from comparison import SVG, same_figure, take_apart
from nbformat import NotebookNode
from nbval.plugin import coalesce_streams

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
STATES = ROOT / "_build" / "executed"
NUMBERS = ROOT / "results" / "chapters"
#: Two at a time: each uses one thread, and two kernels with a model fit into 6 GiB.
JOBS = min(2, os.cpu_count() or 1)
#: Same for the runs that are validated: see conftest.py.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # sums of floats depend on the number of threads
    "TQDM_DISABLE": "1",
    "PYTHONHASHSEED": "0",
    # tqdm.auto, which a library imports, wants widgets that the book does not use.
    "PYTHONWARNINGS": "ignore:IProgress not found",
}


def shared_inputs() -> Iterable[Path]:
    """Yield every file besides the chapter itself that outputs may depend on."""
    yield ROOT / "requirements.lock"
    for folder in ("rlcd_core", "data_manifests", "results"):
        for path in sorted((ROOT / folder).rglob("*")):
            generated = "__pycache__" in path.parts or NUMBERS in path.parents
            if path.is_file() and not generated:
                yield path


def digest(parts: Iterable[bytes]) -> str:
    """Hash parts with their lengths, so that no two lists collide by joining."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def shared_key() -> str:
    """Return the hash of all shared inputs and of the Python version."""
    parts = [f"{sys.version_info[:2]}".encode()]
    for path in shared_inputs():
        parts += [path.relative_to(ROOT).as_posix().encode(), path.read_bytes()]
    return digest(parts)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def sources(notebook: NotebookNode) -> list[str]:
    """Return the sources of the code cells."""
    return [cell.source for cell in code_cells(notebook)]


def outputs_digest(notebook: NotebookNode) -> str:
    """Hash the code cells with their outputs."""
    cells = [[cell.source, cell.outputs] for cell in code_cells(notebook)]
    return digest([json.dumps(cells, sort_keys=True).encode()])


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Take out of an executed notebook what differs from run to run."""
    notebook.metadata.pop("papermill", None)
    notebook.metadata.get("language_info", {}).pop("version", None)
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        for key in ("papermill", "execution", "collapsed"):
            cell.metadata.pop(key, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
        # Cell ids would be random: take them from the source, counted where it repeats.
        name = digest([cell.cell_type.encode(), cell.source.encode()])[:8]
        seen[name] = seen.get(name, 0) + 1
        cell.id = name if seen[name] == 1 else f"{name}-{seen[name]}"
        if cell.cell_type == "code":
            cell.outputs = coalesce_streams(cell.outputs)
    return notebook


def leave_out_stderr(notebook: NotebookNode, say: Callable[[str], None]) -> None:
    """Take progress bars and warnings out of the outputs and show them in the log.

    They depend on the machine: a first run embeds texts that a second finds cached.
    """
    for number, cell in enumerate(code_cells(notebook)):
        for output in cell.outputs:
            if output.get("name") == "stderr":
                last = output.text.rstrip().rpartition("\r")[2]
                say(f"cell {number} wrote to stderr: {last[-300:]}")
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]


def keep_same_figures(new: NotebookNode, old: NotebookNode) -> None:
    """Keep the stored bytes of figures that show the same as the new ones.

    Another processor changes the last digits of coordinates; without this each run on
    another machine would rewrite the notebooks.
    """
    for cell, past in zip(code_cells(new), code_cells(old), strict=False):
        for out, stored in zip(cell.outputs, past.outputs, strict=False):
            one, two = out.get("data", {}), stored.get("data", {})
            if SVG in one and SVG in two:
                if same_figure(take_apart(one[SVG]), take_apart(two[SVG])):
                    one[SVG] = two[SVG]


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook as a whole or not at all; leave an equal file alone."""
    text = nbformat.writes(notebook) + "\n"
    if not path.exists() or path.read_text() != text:
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)


def cells_done(path: Path) -> str:
    """Tell how far papermill's temporary notebook has come."""
    try:
        cells = code_cells(nbformat.read(path, as_version=4))
    except (OSError, ValueError):  # not there yet, or being written just now
        return "starting"
    return f"cell {sum(c.execution_count is not None for c in cells)} of {len(cells)}"


def papermill(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Execute a notebook in ``folder``; raise with the traceback if a cell fails."""
    source, target = folder / "in.ipynb", folder / "out.ipynb"
    nbformat.write(notebook, source)
    command = [sys.executable, "-m", "papermill", source, target, "--cwd", NOTEBOOKS]
    done = subprocess.run(
        [*command, "--kernel", "python3", "--no-progress-bar"],
        env={**os.environ, **ENVIRONMENT, "RLCD_NUMBERS_DIR": str(folder / "numbers")},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        cell = done.stderr.rfind("Exception encountered at")
        raise RuntimeError(done.stderr[cell:] if cell >= 0 else done.stderr[-4000:])
    return nbformat.read(target, as_version=4)


def run_chapter(
    name: str, shared: str, force: bool, folder: Path, say: Callable[[str], None]
) -> None:
    """Bring one notebook up to date with its text file and its inputs."""
    target, state_file = NOTEBOOKS / f"{name}.ipynb", STATES / f"{name}.json"
    chapter = jupytext.read(NOTEBOOKS / f"{name}.py")
    chapter.metadata.jupytext.pop("text_representation", None)
    old = nbformat.read(target, as_version=4) if target.exists() else None
    key = digest([shared.encode(), json.dumps(sources(chapter)).encode()])
    state = json.loads(state_file.read_text()) if state_file.exists() else {}
    fresh = old is not None and state == {"key": key, "outputs": outputs_digest(old)}
    if fresh and not force:
        for cell, past in zip(code_cells(chapter), code_cells(old), strict=True):
            cell.outputs, cell.execution_count = past.outputs, past.execution_count
        new = chapter
        new.metadata = {**old.metadata, **chapter.metadata}
        say("unchanged, outputs kept")
    else:
        say("running")
        began = time.monotonic()
        new = papermill(chapter, folder)
        leave_out_stderr(new, say)
        if old is not None:
            keep_same_figures(new, old)
        say(f"done in {time.monotonic() - began:.1f} s")
    write(normalise(new), target)
    for path in (folder / "numbers").glob("*.json"):
        NUMBERS.mkdir(parents=True, exist_ok=True)
        shutil.move(path, NUMBERS / path.name)
    STATES.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: half a state would stop every later run.
    part = state_file.with_suffix(".part")
    part.write_text(json.dumps({"key": key, "outputs": outputs_digest(new)}))
    part.replace(state_file)


def main() -> int:
    """Run the named chapters, or all; return the number that failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", help="such as 01_identity; all if none"
    )
    parser.add_argument("--force", action="store_true", help="run although unchanged")
    chosen = parser.parse_args()
    names = chosen.names or sorted(path.stem for path in NOTEBOOKS.glob("*.py"))
    shared, failed = shared_key(), 0
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(JOBS) as pool:
        jobs = {}
        for name in names:
            folder = Path(scratch) / name
            folder.mkdir()

            def say(text: str, name: str = name) -> None:
                print(f"  {name}: {text}", flush=True)

            job = pool.submit(run_chapter, name, shared, chosen.force, folder, say)
            jobs[job] = name, folder
        waiting = set(jobs)
        while waiting:
            finished, waiting = wait(waiting, 15, FIRST_COMPLETED)
            for job in finished:
                if error := job.exception():
                    failed += 1
                    print(f"  {jobs[job][0]}: FAILED\n{error}", flush=True)
            for name, folder in (jobs[job] for job in waiting if job.running()):
                if not finished:
                    print(f"  {name}: {cells_done(folder / 'out.ipynb')}", flush=True)
    print(f"{len(names) - failed} of {len(names)} chapters up to date", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
