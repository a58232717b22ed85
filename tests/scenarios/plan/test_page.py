"""The page of a plan: plots that are really drawn, nothing loaded, no key; and two designs side by side.

Soak: pages of users and telemetry in a browser.
Reason, and what `make test` covers: a browser for each; the page of posts, which has most plots, in a
browser, all pages without.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from rekey.model import Row
from rekey.present.plots import AFTER, BEFORE, Series, lines
from tests.asserts.browser import complaints, drawn, laid_out, needs_browser, opened
from tests.asserts.command_line import Commands
from tests.asserts.every import every
from tests.worlds.example_rows import posts, telemetry, users
from tests.worlds.plans import fill
from tests.worlds.projects import USERS_SCRIPT

MIGRATIONS = Path(__file__).parents[3] / "migrations"
EXAMPLES = [
    pytest.param("0001_users_opaque_ids", "Users", users, id="users"),
    pytest.param("0002_posts_by_month", "Posts", posts, id="posts"),
    pytest.param("0003_telemetry_by_device_day", "Telemetry", telemetry, id="telemetry"),
]
PRICES = '[prices]\ncurrency = "EUR"\nscan = 4\nread = 4\nwrite = 4\ndelete = 4\nstorage = 0.5\n'
NASTY = '<script>alert("x")</script> & <b>'
Make = Callable[[int], Iterable[Row]]


def example(rekey: Commands, script: str, table: str, rows: Iterable[Row], more: str = "") -> str:
    """A project with one worked example; returns its script."""
    text = (MIGRATIONS / f"{script}.py").read_text("utf-8")
    rekey.project.script(text, f"{script}.py")
    with (rekey.project.folder / "rekey.toml").open("a", encoding="utf-8") as file:
        file.write(more)
    asyncio.run(fill(rekey.project.tables, table, rows))
    return text


def page_of(rekey: Commands, *words: str) -> Path:
    path = rekey.project.folder / "plan.html"
    assert f"The page is {path}." in rekey("plan", *words, "--html", str(path)).out
    return path


@pytest.mark.parametrize(("script", "table", "make"), EXAMPLES)
def test_the_page_and_its_document_hold_no_key(rekey: Commands, script: str, table: str, make: Make) -> None:
    """Neither old keys nor new ones, even when they were to be shown."""
    rows = [{**row, "PartitionKey": f"canary-{row['PartitionKey']}"} for row in make(200)]
    example(rekey, script, table, rows)
    text = page_of(rekey, "--exact", "--show-keys").read_text("utf-8")
    plan = json.dumps(rekey("plan", "--exact", "--json").json)
    for told in (text, plan):
        assert "canary" not in told
        assert not [row["RowKey"] for row in rows if row["RowKey"] in told]


@pytest.mark.parametrize(("script", "table", "make"), EXAMPLES)
def test_it_shows_designs_before_and_after(rekey: Commands, script: str, table: str, make: Make) -> None:
    example(rekey, script, table, make(300), PRICES)
    text = page_of(rekey, "--exact").read_text("utf-8")
    titles = re.findall(r"<svg [^>]*><title>([^<]*)</title><desc>([^<]+)</desc>", text)
    assert len(titles) == text.count("<svg"), "each plot is told in words, too"
    said = " ".join(title for title, _ in titles)
    for what in (
        "Partitions by their number of rows",
        "Largest partitions",
        "Lengths of the RowKey",
        "Batches to",
    ):
        assert what in said
    assert ("over time" in said) == (table != "Users"), "load over time where keys hold a moment"
    assert f"{table} today" in text and "planned" in text
    assert "EUR" in text and "billed by its rows" in text
    assert "prefers-color-scheme:dark" in text and "@media print" in text
    assert not re.search(r"<script|<link|<img|https?://(?!www\.w3\.org/2000/svg)|url\(|@import", text)


def test_what_a_script_says_is_escaped(rekey: Commands) -> None:
    rekey.project.script(USERS_SCRIPT.replace("E-mail RowKeys", NASTY.replace('"', "'")))
    asyncio.run(fill(rekey.project.tables, "Users", users(50)))
    text = page_of(rekey).read_text("utf-8")
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_errors_open_the_page(rekey: Commands) -> None:
    rekey.project.script(USERS_SCRIPT)
    path = rekey.project.folder / "plan.html"
    rekey("plan", "--html", str(path), code=1)
    text = path.read_text("utf-8")
    assert "would refuse" in text and "source-missing" in text


def test_a_path_that_cannot_be_written_is_refused_by_its_option(rekey: Commands) -> None:
    rekey.project.script(USERS_SCRIPT)
    asyncio.run(fill(rekey.project.tables, "Users", users(5)))
    said = rekey("plan", "--html", str(rekey.project.folder / "no" / "plan.html"), code=2)
    assert "choose another path for --html" in said.err


@needs_browser
@pytest.mark.parametrize(
    ("script", "table", "make"),
    [
        pytest.param(*one.values, id=one.id, marks=() if one.id == "posts" else pytest.mark.soak)
        for one in EXAMPLES
    ],
)
def test_chromium_draws_plots(rekey: Commands, tmp_path: Path, script: str, table: str, make: Make) -> None:
    example(rekey, script, table, make(600))
    page = page_of(rekey, "--exact")
    shown = opened(page, tmp_path)
    assert complaints(shown) == []
    assert "Nothing stands in the way." in shown.dom
    plots = drawn(page, tmp_path)
    assert len(plots) == page.read_text("utf-8").count("<svg") >= 6
    for plot in plots:
        assert plot["width"] > 250 and plot["height"] > 30 and plot["shapes"] >= 1


@needs_browser
@pytest.mark.parametrize(("width", "height"), [(400, 844), (1280, 900)])
def test_nothing_scrolls_sideways(rekey: Commands, tmp_path: Path, width: int, height: int) -> None:
    """On a phone and on a desk; the first plot also without scrolling down."""
    example(rekey, "0002_posts_by_month", "Posts", posts(600), PRICES)
    found = laid_out(page_of(rekey, "--exact"), tmp_path, width)
    left, top, right, bottom = found.plot
    assert 0 <= left < right <= width and 0 < top < bottom <= height
    assert found.width <= width
    assert len(found.tables) == 4 and every(needs <= has for needs, has in found.tables)


def test_lines_that_coincide_are_both_seen() -> None:
    """One is broad, the other thin and dashed."""
    same = [Series("before", [50, 20], BEFORE), Series("after", [50, 20], AFTER)]
    broad, thin = re.findall(r"<polyline [^>]*>", lines(same, ("2024-01", "2024-02"), "Shares"))
    points = re.compile(r'points="([^"]*)"')
    assert points.findall(broad) == points.findall(thin)
    assert 'stroke-width="5"' in broad and "dasharray" not in broad
    assert 'stroke-width="2.5"' in thin and "stroke-dasharray" in thin


# --- two designs --------------------------------------------------------------------------------------------


def designs(rekey: Commands, rows: Iterable[Row] | None = None, more: str = "") -> tuple[str, str]:
    """Posts by month, and in a file outside the folder the same by author."""
    text = example(rekey, "0002_posts_by_month", "Posts", posts(400) if rows is None else rows, more)
    other = rekey.project.folder / "by_author.py"
    text = text.replace('keys.date("yyyy-MM", "Published")', 'keys.slug("Author")')
    other.write_text(text.replace('"PostsByMonth"', '"PostsByWriter"'), "utf-8")
    return "0002", str(other)


def test_two_designs_are_put_side_by_side_on_the_same_rows(rekey: Commands) -> None:
    first, second = designs(rekey, posts(1_100), PRICES)
    before = rekey.project.tables.sent.counts["scan"]
    said = rekey("plan", "--compare", first, second, "--exact", "--json").json
    # Two pages of the source, and whether each of the five target tables exists, for each design.
    assert rekey.project.tables.sent.counts["scan"] - before == 2 + 8, "the source is read once for both"
    assert said["designs"] == ["0002_posts_by_month", "by_author"]
    lines = {(line["section"], line["what"]): line["values"] for line in said["lines"]}
    [alone] = rekey("plan", "0002", "--exact", "--json").json["migrations"]
    assert lines["Tables", "partitions"][0] == f"{alone['targets'][0]['partitions']:,}"
    # Safe ids are drawn for each plan, and with them how mapping rows fall into partitions.
    counted, by_itself = int(lines["Cost", "requests"][0].replace(",", "")), alone["estimate"]
    assert counted == pytest.approx(by_itself["requests_total"], rel=0.03)
    rows_in_a_batch = [float(one) for one in lines["Tables", "rows in a batch"]]
    assert rows_in_a_batch[0] > 3 * rows_in_a_batch[1]
    advice = {what: values for (section, what), values in lines.items() if section == "Advice"}
    for number, one in enumerate(said["plans"]):
        given = {problem["code"]: problem["severity"] for problem in one["problems"]}
        assert {what: values[number] for what, values in advice.items() if values[number] != "–"} == given
    assert "warning" in [values[1] for values in advice.values()], "rows by author stand alone"
    assert every("EUR" in value for value in lines["Cost", "cost, batch billed by its rows"])
    assert [one["script_id"] for one in said["plans"]] == said["designs"]


def test_advice_and_queries_stand_side_by_side(rekey: Commands) -> None:
    first, second = designs(rekey)
    for path in (Path(second), rekey.project.folder / "migrations" / "0002_posts_by_month.py"):
        text = path.read_text("utf-8").replace("from rekey import", "from rekey import query,", 1)
        known = 'queries=[query.range("Published", within=["Author"], rows=20)], capture="delta"'
        path.write_text(text.replace('capture="delta"', known), "utf-8")
    lines = rekey("plan", "--compare", first, second, "--json").json["lines"]
    [queries] = [line["values"] for line in lines if line["section"] == "Queries"]
    assert len(queries) == 2 and all("request" in value for value in queries)
    text = rekey("plan", "--compare", first, second).out
    assert "PostsByMonth" in text and "PostsByWriter" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_page_of_a_comparison_holds_no_key(rekey: Commands) -> None:
    rows = [
        {**row, "RowKey": f"canary-{row['RowKey']}", "Author": f"Canary {row['Author']}"}
        for row in posts(300)
    ]
    first, second = designs(rekey, rows)
    path = rekey.project.folder / "compare.html"
    rekey("plan", "--compare", first, second, "--exact", "--html", str(path))
    text = path.read_text("utf-8")
    assert "canary" not in text.lower()
    assert text.count("<svg") == 1 and "by_author" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--compare", "0002"), "takes two scripts"),
        (("--compare", "0002", "0002", "--show-keys"), "goes with --exact, --rate and --html alone"),
        (("--compare", "0002", "0002", "--out", "plan.json"), "goes with --exact, --rate and --html alone"),
        (("--compare", "0002", "0001"), "of two tables: Posts and Users"),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(rekey: Commands, words: tuple[str, ...], said: str) -> None:
    designs(rekey)
    rekey.project.script(USERS_SCRIPT)
    assert said in rekey("plan", *words, code=2).err


def test_designs_of_two_parts_are_not_compared(rekey: Commands) -> None:
    """They would be put side by side on the rows of the first."""
    first, second = designs(rekey)
    part = Path(second).read_text("utf-8").replace("rekey import ", "rekey import rows, ")
    part = part.replace("capture=", 'where=rows.partition_key(prefix="a"), capture=')
    Path(second).write_text(part, "utf-8")
    assert "of two parts of Posts" in rekey("plan", "--compare", first, second, code=2).err


# --- rates --------------------------------------------------------------------------------------------------


def test_a_rate_that_was_said_bounds_the_expected_time(rekey: Commands) -> None:
    example(rekey, "0001_users_opaque_ids", "Users", users(1_000))
    [usual] = rekey("plan", "--json").json["migrations"]
    [slow] = rekey("plan", "--rate", "10", "--json").json["migrations"]
    [before], [after] = (
        [one for one in plan["estimate"]["durations"] if one["phase"] == "backfill"] for plan in (usual, slow)
    )
    assert before["at_limits_s"] < 60
    assert 204 <= after["at_limits_s"] <= 206, "1,000 rows read and 1,000 written"
    assert after["at_limits_bound"] == "10 entities/s configured"
