"""The report of a bundle: one page that loads nothing, escapes all, says first what was not proved, prints.

Where a Chromium is on the machine it is opened in it, without a window; where there is none, that test says
so and the others check the page's text.

Soak: the tests' own browser finds a bad page.
Reason, and what `make test` covers: shows the test, not the program.
"""

from __future__ import annotations

import asyncio
import html.parser
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rekey.evidence import contents
from rekey.model import content_of
from rekey.present.page import POLICY
from rekey.present.plots import Pair, pairs, timeline
from tests.asserts.browser import complaints, drawn, laid_out, needs_browser, opened, run
from tests.asserts.command_line import Commands, CommandsOn
from tests.asserts.every import every
from tests.worlds.evidence import TO_CUTOVER, exported, rows, with_key
from tests.worlds.projects import USERS_SCRIPT, Project, lived

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>alert("x")</script> & <b>'


@pytest.fixture
def rekey(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    project = Project(tmp_path)
    project.script(USERS_SCRIPT.replace("E-mail RowKeys", NASTY))
    asyncio.run(project.fill("Users", rows(40)))
    return commands_on(project)


@pytest.fixture
def at_gate(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """The commands of such a project with a key, at the gate of cutover."""

    def live(project: Project) -> None:
        project.script(USERS_SCRIPT.replace("E-mail RowKeys", NASTY))
        asyncio.run(project.fill("Users", rows(40)))
        with_key(project.folder)
        commands_on(project)("apply", "0001")

    return commands_on(lived(__name__, tmp_path, live))


def report(rekey: Commands, name: str = "bundle") -> str:
    return (exported(rekey, name) / "data" / contents.REPORT).read_text("utf-8")


def parsed(plot: str) -> ElementTree.Element:
    return ElementTree.fromstring(plot)  # noqa: S314 - made here


class Reader(html.parser.HTMLParser):
    """Collects what a page would load, whether its tags are closed, and its text."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_needs_nothing_from_outside_and_runs_nothing(at_gate: Commands) -> None:
    page = report(at_gate)
    found = read(page)
    assert found.loads == []
    assert not found.tags & {"script", "img", "link", "iframe", "object", "embed", "form"}
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import|\son\w+=", page)
    assert set(re.findall(r"https?://[^\"'<\s]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://127.0.0.1:10002/devstoreaccount1",
    }


def test_it_tells_what_the_bundle_holds(at_gate: Commands) -> None:
    at_gate("apply", "0001", "--to", "cutover", code=3)
    at_gate(*TO_CUTOVER)
    page = report(at_gate)
    text = " ".join(" ".join(read(page).text).split())
    assert "Every row and every property was compared" in text
    assert "UsersV2 held 40 rows, as its source rows give." in text
    for word in ("cutover", "closed", "open", "rekey apply --to=cutover --writers-stopped"):
        assert word in text
    declared = at_gate.project.scripts["0001_users"]
    assert declared.digest in text
    digests = re.findall(r"<code>([0-9a-f]{64})</code>", page)
    assert len(digests) == 3
    assert digests[1] == digests[2], "expected and found"


def test_what_was_not_proved_is_said_first(rekey: Commands) -> None:
    """Not signed, and the last verification found a row."""
    rekey("apply", "0001")
    row = rekey.project.rows("UsersV2")[0]
    table = rekey.project.tables.table("UsersV2")
    asyncio.run(table.replace({**content_of(row), "Name": "x"}, etag="*"))
    rekey("verify", "0001", code=1)
    page = report(rekey)
    beginning = page[: page.index("<h2>")]
    assert "found 1 row that differs." in beginning
    assert "This is not signed." in beginning
    assert beginning.count('class="verdict bad"') == 2
    assert "none differed" not in page


def test_without_a_verification_nothing_is_claimed(rekey: Commands) -> None:
    with_key(rekey.project.folder)
    rekey("apply", "0001", "--to", "backfill")
    page = report(rekey)
    assert "Nothing was verified in full." in page
    assert "none differed" not in page


def test_texts_are_escaped() -> None:
    plot = pairs([Pair(NASTY, 3, 4)], NASTY, (NASTY, "b"))
    assert "<script>" not in plot
    tree = parsed(plot)
    assert tree.findtext(f"{SVG}title") == NASTY
    assert f"{NASTY}, b: 4" in (tree.findtext(f"{SVG}desc") or "")


def test_plots_are_drawn_to_scale_and_told_in_words(at_gate: Commands) -> None:
    page = report(at_gate)
    drawn = [parsed(text) for text in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]
    assert len(drawn) == 2
    for plot in drawn:
        width, height = map(float, plot.attrib["viewBox"].split()[2:])
        assert plot.findtext(f"{SVG}title")
        assert plot.findtext(f"{SVG}desc")
        for box in plot.iter(f"{SVG}rect"):
            assert 0 <= float(box.attrib["x"]) <= float(box.attrib["x"]) + float(box.attrib["width"]) <= width
            assert 0 <= float(box.attrib["y"]) <= height
    one, two = (
        float(box.attrib["width"])
        for box in parsed(pairs([Pair("t", 10, 5)], "x", ("a", "b"))).iter(f"{SVG}rect")
        if box.attrib["height"] == "14"
    )
    assert one == pytest.approx(2 * two, abs=0.1)
    long = "T" * 63
    named = parsed(pairs([Pair(long, 1, 1)], "x", ("a", "b")))
    assert f"{long}, a: 1" in (named.findtext(f"{SVG}desc") or "")
    assert max(len(text.text or "") for text in named.iter(f"{SVG}text")) <= 20, "within its column"
    assert timeline([], "x") == pairs([], "x", ("a", "b")) == ""


def test_ways_back_stand_in_the_chart_and_in_the_table_of_phases(at_gate: Commands) -> None:
    at_gate(*TO_CUTOVER)
    at_gate("rollback", "0001", "--writers-stopped")
    at_gate(*TO_CUTOVER)
    page = report(at_gate)
    [told] = re.findall(r"<title>Phases over time</title><desc>([^<]*)</desc>", page)
    names = [one.rpartition(":")[0].strip() for one in told.split(";")]
    expected = ["prepare", "following", "backfill", "reconcile", "cutover", "back from cutover", "cutover"]
    assert names == expected
    shown = re.findall(r"<tr><td>([^<]+)</td><td><time", page)
    assert shown[: len(expected)] == expected and "taken back" in page


def test_times_are_those_that_people_read(at_gate: Commands) -> None:
    """To the second, and the whole one in the markup."""
    page = report(at_gate)
    text = " ".join(read(page).text)
    assert re.search(r"compared on \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", text)
    assert re.search(r'<time class="when" datetime="\d{4}-\d\d-\d\dT[^"]+Z">\d{4}-\d\d-\d\d \d\d:', page)
    assert not re.search(r"\d\dT\d\d:\d\d:\d\d", text)


@needs_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_all_tables_are_seen_without_scrolling_sideways(
    at_gate: Commands, tmp_path: Path, width: int
) -> None:
    at_gate(*TO_CUTOVER)
    path = tmp_path / "report.html"
    path.write_text(report(at_gate), "utf-8")
    found = laid_out(path, tmp_path, width)
    assert found.width <= width
    assert len(found.tables) == 5 and every(needs <= has for needs, has in found.tables)


def test_it_is_made_to_be_printed(at_gate: Commands) -> None:
    page = report(at_gate)
    assert "@media print" in page
    assert "@page{size:A4" in page
    assert "thead{display:table-header-group}" in page


@needs_browser
def test_chromium_opens_it_and_prints_it(at_gate: Commands, tmp_path: Path) -> None:
    page = exported(at_gate) / "data" / contents.REPORT
    pdf = tmp_path / "report.pdf"
    run(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.as_uri())
    assert pdf.read_bytes().startswith(b"%PDF-")
    shown = opened(page, tmp_path)
    assert complaints(shown) == []
    assert "Every row and every property was compared" in shown.dom
    plots = drawn(page, tmp_path)
    assert len(plots) == 2
    for plot in plots:
        assert plot["width"] > 300 and plot["height"] > 50 and plot["shapes"] >= 2


@pytest.mark.soak  # of the tests' own browser, which is what the test above needs: once a release is enough
@needs_browser
def test_the_browser_would_tell_of_a_page_that_complains_or_loads(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        f'<html><head><meta http-equiv="Content-Security-Policy" content="{POLICY}"></head><body>'
        '<img src="https://pictures.example/one.png"><svg width="9" height="0"></svg></body></html>',
        "utf-8",
    )
    assert complaints(opened(page, tmp_path))
    assert drawn(page, tmp_path)[0]["height"] == 0
