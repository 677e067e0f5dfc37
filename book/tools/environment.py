"""Create ``.venv`` with the locked packages and this one.

Run by the system's Python, so it uses the standard library only. uv installs five
times faster than pip; where it cannot be had, pip does the work and says so. The wheel
folders and the index that the reader's pip is set to use are handed on to uv, which
does not read pip's settings: without them uv would take the CUDA build of torch (5 GB
on Linux) even where a CPU wheel lies in such a folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
UV = "uv>=0.8,<1"
SUPPORTED = ((3, 11), (3, 12), (3, 13))
#: pip's setting, uv's variable, and what uv wants between several values.
HANDED_ON = (
    ("find-links", "UV_FIND_LINKS", ","),
    ("index-url", "UV_DEFAULT_INDEX", ""),
)


def pip_setting(name: str) -> list[str]:
    """Return a setting of pip: from the environment, else from its files."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"), "")
    for section in ("install", "global"):
        if not value:
            command = [PYTHON, "-m", "pip", "config", "get", f"{section}.{name}"]
            value = subprocess.run(command, capture_output=True, text=True).stdout
    return value.split()


def uv_environment() -> dict[str, str]:
    """Return the environment for uv, with pip's wheel folders and index handed on."""
    given = dict(os.environ)
    for name, variable, between in HANDED_ON:
        values = pip_setting(name)
        if values and variable not in given:
            given[variable] = between.join(values) if between else values[0]
    return given


def run(*command: object, env: dict[str, str] | None = None) -> None:
    """Run a command with its output shown; stop with its status if it fails."""
    status = subprocess.run([str(part) for part in command], env=env).returncode
    if status:
        raise SystemExit(status)


def main() -> None:
    """Create the environment, or bring it up to date with the lock."""
    if sys.version_info[:2] not in SUPPORTED:
        wanted = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
        raise SystemExit(
            f"Python {sys.version.split()[0]} found, one of {wanted} wanted: "
            "run make with PYTHON=python3.11"
        )
    if not PYTHON.exists():
        print(f"creating .venv with Python {sys.version.split()[0]}", flush=True)
        run(sys.executable, "-m", "venv", VENV)
    quiet = ("--quiet", "--disable-pip-version-check")
    pip = (PYTHON, "-m", "pip", "install", *quiet)
    itself = ("--no-deps", "--editable", ROOT)
    if subprocess.run([*pip, UV]).returncode == 0:
        print("installing the locked packages with uv", flush=True)
        uv = (VENV / "bin" / "uv", "pip", "install", "--python", PYTHON)
        run(*uv, "-r", LOCK, env=uv_environment())
        run(*uv, *itself, env=uv_environment())
    else:
        print(f"{UV} cannot be installed: pip does it, in some minutes", flush=True)
        pip = (PYTHON, "-m", "pip", "install", "--disable-pip-version-check")
        run(*pip, "-r", LOCK)
        run(*pip, *itself)


if __name__ == "__main__":
    main()
