"""Files that survive a kill or a full disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to a temporary neighbour and rename it over ``path``.

    A kill or a full disk leaves the old file whole.

    Parameters
    ----------
    path : Path
        Its folder is made if missing.
    data : bytes

    Raises
    ------
    OSError
        As the system reports it; ``path`` is then unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
