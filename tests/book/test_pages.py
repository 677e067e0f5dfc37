"""The built pages, read as files: links, pictures, words, and no outside request."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
PAGES = sorted(
    path
    for folder in ("book", "notebooks")
    for path in (SITE / folder).glob("*.html")
    if SITE.exists()
)
#: Elements whose address the browser loads by itself, and the attribute that holds it.
LOADED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
#: Relations of <link> that nothing loads.
NOT_LOADED = {"canonical", "next", "prev", "search", "index", "author", "copyright"}
OUTSIDE = re.compile(r"(?:https?:)?//(?!www\.w3\.org/)[\w.-]+\.\w+")


@cache
def soup(path: Path) -> BeautifulSoup:
    """Parse a page once."""
    return BeautifulSoup(path.read_text(), "html.parser")


@cache
def ids(path: Path) -> frozenset[str]:
    """Return the anchors of a page."""
    return frozenset(tag["id"] for tag in soup(path).find_all(id=True))


def dead_links(path: Path) -> list[str]:
    """Return links, scripts and pictures of a page whose target does not exist."""
    dead = []
    for tag in soup(path).find_all(["a", *LOADED]):
        address = tag.get("href") or tag.get("src") or tag.get("data") or ""
        parts = urlsplit(address)
        if not address or parts.scheme or parts.netloc:
            continue
        target = path
        if parts.path:
            target = (path.parent / unquote(parts.path)).resolve()
        if not target.is_file():
            dead.append(address)
        elif parts.fragment and target.suffix == ".html":
            if unquote(parts.fragment) not in ids(target):
                dead.append(address)
    return dead


def outside_requests(html: BeautifulSoup) -> list[str]:
    """Return addresses on other hosts that a browser would load with the page."""
    found = []
    for tag in html.find_all(list(LOADED)):
        address = tag.get(LOADED[tag.name], "")
        relation = set(tag.get("rel") or [])
        if OUTSIDE.match(address) and not relation & NOT_LOADED:
            found.append(address)
    for tag in html.find_all(["style", "script"]):
        found += OUTSIDE.findall(tag.string or "")
    for tag in html.find_all(style=True):
        found += OUTSIDE.findall(tag["style"])
    return found


every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


@pytest.mark.built
def test_every_listed_page_was_built() -> None:
    """One page for each entry of the table of contents, and an index."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = [toc["root"]]
    for part in toc.get("parts", []):
        listed += [chapter["file"] for chapter in part["chapters"]]
    assert (SITE / "index.html").is_file(), "run `make html` first"
    assert sorted(listed) == sorted(
        path.relative_to(SITE).with_suffix("").as_posix() for path in PAGES
    )


@pytest.mark.built
@every_page
def test_links_anchors_and_pictures_exist(path: Path) -> None:
    """Every address inside the site leads somewhere, and ids are unique."""
    assert dead_links(path) == []
    counts = Counter(tag["id"] for tag in soup(path).find_all(id=True))
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.built
@every_page
def test_pictures_have_alt_text_and_headings_descend(path: Path) -> None:
    """Alt text on each picture of the article, one h1, and no level is skipped."""
    article = soup(path).find("article")
    assert article is not None
    for picture in article.find_all("img"):
        assert len(picture.get("alt", "")) >= 20, picture.get("src")
    levels = [int(tag.name[1]) for tag in article.find_all(re.compile(r"^h[1-6]$"))]
    assert levels[:1] == [1] and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False)), levels


@pytest.mark.built
@every_page
def test_no_page_asks_another_host(path: Path) -> None:
    """Scripts, styles, fonts and pictures all lie beside the page."""
    assert outside_requests(soup(path)) == []


@pytest.mark.built
def test_no_style_sheet_asks_another_host() -> None:
    """Fonts and pictures named in style sheets lie beside them."""
    for path in SITE.rglob("*.css"):
        for address in re.findall(r"url\(\s*['\"]?([^'\")]+)", path.read_text()):
            assert not OUTSIDE.match(address), f"{path.name}: {address}"


@pytest.mark.built
@every_page
def test_nothing_is_left_raw(path: Path) -> None:
    """No role, fence or escape of the source shows in the text of a page."""
    article = BeautifulSoup(path.read_text(), "html.parser").find("article")
    for tag in article.select("pre, code, script, .math, .highlight"):
        tag.extract()
    text = article.get_text()
    for raw in (":::", "{res}", "{ref}", "{eq}", "{cite", "{prf:", "{numref}", "```"):
        assert raw not in text


@pytest.mark.built
@every_page
def test_launch_buttons_follow_the_one_setting(path: Path) -> None:
    """Colab links of notebooks name the repository; none while it is not set."""
    url = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    links = [
        tag["href"]
        for tag in soup(path).find_all("a", href=True)
        if "colab.research" in tag["href"]
    ]
    if not url or path.parent.name != "notebooks":
        assert links == []
        assert soup(path).find(class_="dropdown-launch-buttons") is None
    else:
        repository = url.removeprefix("https://github.com/").strip("/")
        assert links and all(
            f"/github/{repository}/blob/" in link
            and link.endswith(f"notebooks/{path.stem}.ipynb")
            for link in links
        )


@pytest.mark.built
def test_only_the_used_part_of_mathjax_is_there() -> None:
    """The site stays small: one script, its fonts and its TeX extensions."""
    folder = SITE / "_static" / "mathjax"
    assert (folder / "tex-chtml.js").is_file()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < 4e6


def test_planted_faults_of_pages_are_seen(tmp_path: Path) -> None:
    """A dead link, a dead anchor, a missing picture and outside requests."""
    page = tmp_path / "page.html"
    page.write_text(
        '<a href="gone.html">a</a><a href="#gone">b</a><img src="gone.svg">'
        '<a href="#here" id="here">c</a><a href="https://example.org/">d</a>'
    )
    assert dead_links(page) == ["gone.html", "#gone", "gone.svg"]
    for html in (
        '<script src="https://cdn.example.org/x.js"></script>',
        '<script src="//cdn.example.org/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example.org/css">',
        '<img src="https://example.org/x.svg">',
        "<style>body { background: url(https://example.org/x.svg) }</style>",
        '<p style="background: url(//example.org/x.svg)">x</p>',
        '<script>const URL = "https://unpkg.com/thebe";</script>',
    ):
        assert outside_requests(BeautifulSoup(html, "html.parser")), html
    fine = (
        '<a href="https://example.org/">x</a><svg xmlns="http://www.w3.org/2000/svg"/>'
    )
    assert not outside_requests(BeautifulSoup(fine, "html.parser"))
