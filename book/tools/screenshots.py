"""Take pictures of the built pages, light and dark, wide and as on a telephone.

``python book/tools/screenshots.py [--site FOLDER] [PAGE ...]`` writes
``_build/screenshots/PAGE-SCHEME-WIDTH.png`` for each page, or for those whose path
contains one of the given words.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from browser import chromium, serve

ROOT = Path(__file__).resolve().parents[2]
SCHEMES = ("light", "dark")
WIDTHS = (1280, 360)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help="words of page paths; all if none")
    parser.add_argument("--site", type=Path, default=ROOT / "_build" / "html")
    chosen = parser.parse_args()
    target = ROOT / "_build" / "screenshots"
    target.mkdir(parents=True, exist_ok=True)
    pages = sorted(
        path.relative_to(chosen.site)
        for folder in ("book", "notebooks")
        for path in (chosen.site / folder).glob("*.html")
    )
    with serve(chosen.site) as address, chromium() as browser:
        for path in pages:
            if chosen.pages and not any(word in str(path) for word in chosen.pages):
                continue
            for scheme in SCHEMES:
                for width in WIDTHS:
                    page = browser.new_page(
                        viewport={"width": width, "height": 800}, color_scheme=scheme
                    )
                    page.goto(f"{address}/{path}", wait_until="networkidle")
                    picture = target / f"{path.stem}-{scheme}-{width}.png"
                    page.screenshot(path=picture, full_page=True)
                    page.close()
                    print(picture.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
