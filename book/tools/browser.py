"""A headless Chromium that may talk to the local page server and to nobody else.

Shared by the browser tests and ``make screenshots``.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Chromium's own traffic (updates, safe browsing) would look like requests of a page.
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


def find_chromium() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class SilentHandler(http.server.SimpleHTTPRequestHandler):
    """Serve files without a log line per request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on a free local port; yield its address."""
    handler = functools.partial(SilentHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless Chromium; it closes with the context.

    Raises
    ------
    FileNotFoundError
        If no Chromium is installed.
    """
    path = find_chromium()
    if path is None:
        raise FileNotFoundError(f"none of {', '.join(NAMES)} is installed")
    # The sandbox refuses to run as root, which is what containers do.
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*QUIET, *root])
        yield browser
        browser.close()
