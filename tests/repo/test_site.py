"""The site of all documents is built strictly and loads nothing from elsewhere; each link leads somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

from tests.asserts.documents import ROOT, blocks, documents
from tests.asserts.every import every
from tests.repo.test_docs import cells_of, commands, options_of, outside_blocks

pytestmark = pytest.mark.xdist_group("site")  # built once
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
"""The elements that load something, and the attribute that says from where."""


@dataclass
class Built(HTMLParser):
    """A page: its links, what it loads, its anchors, its elements and its text."""

    path: Path
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    elements: list[str] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element."""
        given = {name: value or "" for name, value in attrs}
        self.elements.append(tag)
        self.anchors |= {given["id"]} if "id" in given else set()
        self.links += [given["href"]] if tag == "a" and "href" in given else []
        if LOADING.get(tag, "") in given and given.get("rel") != "canonical":
            self.loads.append(given[LOADING[tag]])
        if "style" in given:
            self.loads += re.findall(r"url\(([^)]*)\)", given["style"])

    def handle_data(self, data: str) -> None:
        """Take text."""
        self.text += data


def build(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make site` does."""
    [recipe] = re.findall(
        r"^site: .*\n\t\S+ (.*?) #", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE
    )
    words = [sys.executable, *recipe.split(), "--site-dir", str(folder)]
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the documents as they are."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Built]:
    """All pages, by their files."""
    return {path: Built(path) for path in sorted(site.rglob("*.html"))}


def page_of(site: Path, document: Path) -> Path:
    """Return the page of a document; README is that of its folder."""
    name = document.relative_to(ROOT).with_suffix(".html").as_posix()
    return site / re.sub(r"README\.html$", "index.html", name)


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    """In a site of a few pages."""
    for name in ("mkdocs.yml", "rekey", *(path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.py"))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs/theme", tmp_path / "docs/theme")
    texts = {name: f"# {name}\n" for name in ("README.md", "docs/README.md", "docs/guides/proxy.md")}
    texts["docs/guides/capture.md"] = "# c\n[a](nowhere.md) [b](proxy.md#nowhere) [c](../../no.py)\n"
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    warned = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warned) == 3
    assert [name for name in ("nowhere.md", "#nowhere", "../../no.py") if name not in "".join(warned)] == []


def test_every_document_is_a_page_that_the_navigation_has(site: Path, built: dict[Path, Built]) -> None:
    start = site / "index.html"
    listed = {(start.parent / link.partition("#")[0]).resolve() for link in built[start].links}
    assert {path.name for path in documents() if page_of(site, path).resolve() not in listed} == set()


def test_no_page_loads_anything_from_elsewhere(site: Path, built: dict[Path, Built]) -> None:
    """Neither scripts nor styles nor fonts nor pictures."""
    loads = [(path.name, one) for path, page in built.items() for one in page.loads]
    assert len(loads) > len(built)
    assert [one for one in loads if urlsplit(one[1]).netloc] == []
    styles = sorted(site.rglob("*.css"))
    assert styles
    for path in styles:
        text = path.read_text("utf-8")
        named = re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", text)
        assert [one for one in named if urlsplit(one).netloc] == [], path.name


def test_every_link_and_anchor_leads_to_something_in_the_site(site: Path, built: dict[Path, Built]) -> None:
    files = {str(path) for path in site.rglob("*") if path.is_file()}
    anchors = {str(path): page.anchors for path, page in built.items()}
    followed = 0
    for path, page in built.items():
        for link in {*page.links, *page.loads}:
            parts = urlsplit(link)
            if parts.scheme in ("https", "data") or parts.netloc or path.name == "404.html":
                continue
            target = os.path.normpath(path.parent / unquote(parts.path)) if parts.path else str(path)
            assert target in files, f"{path.name}: {link}"
            if parts.fragment and target in anchors:
                assert unquote(parts.fragment) in anchors[target], f"{path.name}: {link}"
                followed += 1
    assert followed > 100


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_github_shows_as_code_and_tables_is_that_in_the_site(
    site: Path, built: dict[Path, Built], path: Path
) -> None:
    """The two read Markdown a little differently."""
    page = built[page_of(site, path)]
    shown = blocks(path)
    assert page.elements.count("pre") == len(shown)
    assert [one.line for one in shown if one.text.strip() not in page.text] == []
    lines = outside_blocks(path).splitlines()
    rows = [line for line in lines if line.startswith("|") and set(line) - set("|-: ")]
    assert page.elements.count("tr") == len(rows)
    assert page.elements.count("td") + page.elements.count("th") == sum(len(cells_of(row)) for row in rows)
    _, _, article = page.path.read_text("utf-8").partition('itemprop="articleBody">')
    items = sum(bool(re.match(r"(- |\d+\. )", line)) for line in lines)
    assert len(re.findall(r"<li\b", article.partition("<footer")[0])) == items


@pytest.mark.parametrize(("name", "command"), commands())
def test_every_command_has_a_page_that_says_what_its_help_says(
    site: Path, built: dict[Path, Built], name: str, command: click.Command
) -> None:
    page = built[site / f"commands/rekey-{name.replace(' ', '-')}.html"]
    assert every(option in page.text for option in options_of(command))
    assert command.epilog and command.epilog.removeprefix("\b\n").strip() in page.text
    first = (command.help or "").partition("\n")[0]
    assert first.replace("`", "") in page.text
    all_of_them = built[site / "docs/reference/commands.html"]
    assert f"../../commands/rekey-{name.replace(' ', '-')}.html" in all_of_them.links
