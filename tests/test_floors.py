"""The floors: a module imports only from floors below it; floor 1 never needs torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rlcd_core"
# Bottom first. A floor of the design takes two rows where one of its modules builds on
# a neighbour (scoring on metrics, exact on rewards, decider on export, tasks on
# records, extra on tasks).
FLOORS = [
    {"files"},
    {"schema", "metrics"},
    {"scoring"},
    {"rewards", "env", "data", "joint"},
    {"exact"},
    {"policy"},
    {"train", "calibrate", "gates"},
    {"export"},
    {"arms", "evaluate", "records", "decider", "plots"},
    {"tasks"},
    {"extra"},
    {"__main__"},
]
FLOOR = {module: n for n, modules in enumerate(FLOORS, 1) for module in modules}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported_modules(tree: ast.AST, package: list[str]) -> set[str]:
    """Names of this package's modules that a syntax tree imports, at any depth.

    `package` is the package of the file, such as ["rlcd_core", "policy"].
    """
    full: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            if source == "rlcd_core":
                full |= {f"{source}.{alias.name}" for alias in node.names}
            else:
                full.add(source)
    parts = [name.split(".") for name in full]
    return {p[1] for p in parts if p[0] == "rlcd_core" and len(p) > 1}


def violations(module: str, imports: set[str]) -> set[str]:
    own = FLOOR[module]
    return {i for i in imports - {module} if i in FLOOR and FLOOR[i] >= own}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    imports = imported_modules(
        ast.parse(path.read_text("utf-8")), ["rlcd_core", *parts[:-1]]
    )
    if parts == ("__init__",):
        assert imports == {"schema"}
        return
    assert parts[0] in FLOOR, f"{parts[0]} stands on no floor; add it to FLOORS"
    assert violations(parts[0], imports) == set()


def test_the_check_sees_every_way_to_write_an_import():
    lines = [
        "from rlcd_core.train import train",
        "from rlcd_core import train",
        "import rlcd_core.train",
        "from . import train",
        "from .train import Arm",
        "def f():\n    from rlcd_core.train import train",
    ]
    for line in lines:
        found = imported_modules(ast.parse(line), ["rlcd_core"])
        assert violations("scoring", found) == {"train"}, line
    deep = imported_modules(ast.parse("from ..train import x"), ["rlcd_core", "policy"])
    assert violations("policy", deep) == {"train"}
    assert violations("schema", {"metrics"}) == {"metrics"}, "same floor"
    assert violations("train", {"policy", "scoring"}) == set()


@pytest.mark.parametrize("module", ["", ".schema", ".scoring", ".metrics"])
def test_floor_one_never_loads_torch(module):
    heavy = "{'torch', 'transformers', 'sklearn', 'pandas', 'matplotlib'}"
    code = (
        f"import sys, rlcd_core{module}\n"
        f"print(sorted({heavy} & set(sys.modules)), 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    needs_numpy = module in (".scoring", ".metrics")
    assert done.stdout.strip() == f"[] {needs_numpy}"
