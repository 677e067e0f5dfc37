"""The built pages in a headless Chromium: errors, requests, width, formulas, schemes.

Skipped with a loud line where no Chromium is found. ``RLCD_REQUIRE_BROWSER=1`` forbids
the skip; CI sets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import NAMES, chromium, find_chromium, serve
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
PAGES = sorted(
    path.relative_to(SITE)
    for folder in ("book", "notebooks")
    for path in (SITE / folder).glob("*.html")
)
MISSING = (
    f"NO CHROMIUM FOUND ({', '.join(NAMES)}): THE PAGES WERE NOT CHECKED IN A BROWSER. "
    "Install one, for instance with `apt-get install chromium`."
)
PHONE, DESK = 360, 1280

pytestmark = [pytest.mark.browser]
every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start one browser for all pages, or skip, or fail where a skip is forbidden."""
    if find_chromium() is None:
        if os.environ.get("RLCD_REQUIRE_BROWSER"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve the site."""
    with serve(SITE) as where:
        yield where


def watch(page: Page) -> list[str]:
    """Record what goes wrong while a page loads: errors and requests to other hosts."""
    seen: list[str] = []

    def on_request(url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            seen.append(f"request: {url}")

    page.on("request", lambda request: on_request(request.url))
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))
    page.on(
        "console",
        lambda message: message.type == "error" and seen.append(message.text),
    )
    page.on(
        "response",
        lambda response: (
            response.status >= 400 and seen.append(f"{response.status}: {response.url}")
        ),
    )
    return seen


def too_wide(page: Page) -> list[str]:
    """Return the elements that make the page wider than the screen."""
    return page.evaluate(
        """() => {
          const width = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= width) return [];
          return [...document.querySelectorAll("article *")]
            .filter((e) => e.getBoundingClientRect().right > width + 1)
            .map((e) => e.tagName + " " + e.textContent.slice(0, 60))
            .slice(0, 5).concat("page: " + document.documentElement.scrollWidth);
        }"""
    )


def settle(page: Page) -> None:
    """Wait until all formulas are set and each folded part has its button.

    A busy machine is told of an idle network before its scripts have run.
    """
    page.wait_for_function(
        """() => {
            const count = (what) => document.querySelectorAll(what).length;
            return count("mjx-container") >= count("span.math, div.math")
                && count("article .toggle-button") === count("article .toggle-hidden");
        }""",
        timeout=30_000,
    )


@pytest.mark.built
@every_page
def test_page_loads_quietly_and_fits(
    browser: Browser, address: str, path: Path
) -> None:
    """No error, no other host, all formulas set, no overflow at 360 and 1280 px."""
    page = browser.new_page(viewport={"width": PHONE, "height": 740})
    seen = watch(page)
    page.goto(f"{address}/{path}", wait_until="networkidle")
    settle(page)
    assert page.locator("mjx-merror").count() == 0
    assert too_wide(page) == []
    page.set_viewport_size({"width": DESK, "height": 800})
    assert too_wide(page) == []
    assert seen == []
    page.close()


@pytest.mark.built
@every_page
def test_folded_parts_open(browser: Browser, address: str, path: Path) -> None:
    """Every folded proof and solution opens by a click, and still fits at 360 px."""
    page = browser.new_page(viewport={"width": PHONE, "height": 740})
    seen = watch(page)
    page.goto(f"{address}/{path}", wait_until="networkidle")
    settle(page)
    for button in page.locator("article .toggle-button").all():
        button.click()
    assert page.locator("article .toggle-hidden").count() == 0
    page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    page.wait_for_timeout(100)
    assert too_wide(page) == []
    assert seen == []
    page.close()


@pytest.mark.built
@every_page
def test_both_schemes_keep_figures_transparent(
    browser: Browser, address: str, path: Path
) -> None:
    """The dark page is dark, and no figure is put on white or recoloured."""
    grounds = {}
    ground = "getComputedStyle(document.body).backgroundColor"
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(f"{address}/{path}", wait_until="load")
        grounds[scheme] = page.evaluate(ground)
        for figure in page.locator("article img").all():
            style = figure.evaluate(
                "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).filter]"
            )
            assert style == ["rgba(0, 0, 0, 0)", "none"], scheme
        page.close()
    assert grounds["light"] != grounds["dark"]


def test_planted_faults_are_seen(browser: Browser, tmp_path: Path) -> None:
    """A script error, a missing file, a request elsewhere, a page that is too wide."""
    (tmp_path / "bad.html").write_text(
        "<article><div style='width: 900px'>wide</div></article>"
        "<img src='gone.svg'><img src='http://localhost:9/x.svg'>"
        "<script>undefinedFunction()</script>"
    )
    with serve(tmp_path) as where:
        page = browser.new_page(viewport={"width": PHONE, "height": 740})
        seen = watch(page)
        page.goto(f"{where}/bad.html", wait_until="networkidle")
        wide = too_wide(page)
        page.close()
    assert any("undefinedFunction" in line for line in seen)
    assert any(line.startswith("404") for line in seen)
    assert any(line.startswith("request: http://localhost:9/") for line in seen)
    assert any("wide" in line for line in wide)
