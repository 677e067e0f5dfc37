"""Files that survive a kill or a full disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def opened_atomically(path: Path, folder: Path | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that is renamed over ``path`` once it is whole.

    Parameters
    ----------
    path : Path
        Its folder is made if missing.
    folder : Path, optional
        Where the temporary file lies, on the same disk; default beside ``path``.

    Raises
    ------
    OSError
        As the system reports it, with ``path`` named; ``path`` is then unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        dir=folder or path.parent, prefix=path.name, suffix=".part"
    )
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say of which file
        raise


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
    with opened_atomically(path) as file:
        file.write(data)
