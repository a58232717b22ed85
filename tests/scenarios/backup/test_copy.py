"""`rekey copy`: one command copies tables between accounts, proves every row, and continues after a kill.

Soak: requests for 40 partitions.
Reason, and what `make test` covers: seconds; three partitions.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from rekey.backup import copying
from rekey.cli import copy
from rekey.errors import RowExists
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.project.config import Config
from rekey.runner.refusals import refusal
from rekey.tables.base import MAX_BATCH_OPERATIONS, MAX_PAGE_ROWS, Verb
from rekey.tables.sent import requests_in
from tests.asserts.command_line import Commands
from tests.fakes.faults import Call
from tests.fakes.interference import before
from tests.soaking import others_in_soak
from tests.worlds.backups import contents, every_value, filled
from tests.worlds.odd_rows import generic
from tests.worlds.projects import Project
from tests.worlds.small import user

ROWS = 600
OLD, NEW = "http://127.0.0.1:10002/devstoreaccount1", "http://127.0.0.1:10003/devstoreaccount1"
COPY = ("copy", "OLD/Users", "NEW/Users")


@pytest.fixture
def accounts(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Two accounts that variables name, and a folder to copy in."""
    monkeypatch.setenv("OLD", OLD)
    monkeypatch.setenv("NEW", NEW)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    project.move_elsewhere()
    return project


@pytest.fixture
def world(accounts: Project) -> Project:
    return filled(accounts, generic(ROWS))


def state_folder() -> Path:
    [folder] = Path().glob("rekey-copy-*")
    return folder


def killed(
    project: Project,
    rekey: Commands,
    number: int,
    *words: str,
    table: str = "Users",
    action: str = "transact",
) -> None:
    """Run a copy that ends before its batch, or page, with a number in a table of the new account."""
    calls, before = 0, project.targets.gate

    async def gate(call: Call) -> None:
        nonlocal calls
        calls += call.action == action and call.table.startswith(table)
        if calls == number:
            raise refusal("stopped")

    project.targets.gate = gate
    rekey(*words, code=130)
    project.targets.gate = before


# --- copied and verified -----------------------------------------------------------------------------------


def test_a_table_is_copied_to_another_account_and_verified(world: Project, rekey: Commands) -> None:
    said = rekey(*COPY)
    assert f"Users -> Users@targets: {ROWS:,} rows copied; every row of both sides is equal" in said.out
    assert contents(world, "Users@targets") == contents(world, "Users")
    assert str(state_folder()) in said.out


def test_every_value_and_key_survives(accounts: Project, rekey: Commands) -> None:
    filled(accounts, every_value())
    rekey(*COPY)
    assert contents(accounts, "Users@targets") == contents(accounts, "Users")


def test_within_one_account_under_another_name(world: Project, rekey: Commands) -> None:
    rekey("copy", f"{OLD}/Users", f"{OLD}/UsersCopy")
    assert contents(world, "UsersCopy") == contents(world, "Users")


def test_an_empty_table_is_created(accounts: Project, rekey: Commands) -> None:
    filled(accounts, [])
    assert "0 rows copied" in rekey(*COPY).out
    assert contents(accounts, "Users@targets") == []


def test_the_tables_that_fit_a_pattern_are_copied(world: Project, rekey: Commands) -> None:
    for table in ("Orders2023", "Orders2024", "Other"):
        filled(world, [user(f"{table}@example.com")], table)
    done = rekey("copy", "OLD/Orders*", "NEW/", "--json").json["tables"]
    assert [(table["source"], table["inserted"]) for table in done] == [("Orders2023", 1), ("Orders2024", 1)]
    assert contents(world, "Orders2024@targets") == contents(world, "Orders2024")
    assert not {"other", "users"} & world.targets._tables.keys()


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["PartitionKey=p1"], {"p1a", "p1b"}),
        (["PartitionKey=p1*"], {"p1a", "p1b", "p11a"}),
        (["PartitionKey=p1*", "RowKey=b"], {"p1b"}),
    ],
    ids=["whole key", "beginning", "both keys"],
)
def test_a_part_is_copied_and_compared_beside_rows_that_stay(
    accounts: Project, rekey: Commands, conditions: list[str], expected: set[str]
) -> None:
    keys = [("p1", "a"), ("p1", "b"), ("p11", "a"), ("p2", "a")]
    filled(accounts, [{"PartitionKey": partition, "RowKey": row} for partition, row in keys])
    beside = {"PartitionKey": "p9", "RowKey": "z"}
    asyncio.run(accounts.targets.create_table("Users@targets"))
    asyncio.run(accounts.targets.table("Users@targets").insert(beside))
    rekey(*COPY, *(word for condition in conditions for word in ("--where", condition)))
    rows = {row["PartitionKey"] + row["RowKey"] for row in contents(accounts, "Users@targets")}
    assert rows == expected | {"p9z"}


def test_a_dry_run_counts_and_writes_no_table(world: Project, rekey: Commands) -> None:
    said = rekey(*COPY, "--dry-run")
    assert f"{ROWS:,} rows to copy; Users@targets is to be created" in said.out
    assert not world.targets._tables


@pytest.mark.parametrize("partitions", others_in_soak([3, 40], kept=[3]))
def test_no_more_requests_than_the_least(accounts: Project, rekey: Commands, partitions: int) -> None:
    """Pages of the source for the copy, full batches, and pages of both sides for the verification."""
    rows = 12_000
    filled(accounts, generic(rows, partitions=partitions))
    sizes = Counter(row["PartitionKey"] for row in accounts.rows("Users"))
    before = accounts.tables.sent.counts + accounts.targets.sent.counts
    rekey(*COPY)
    sent = requests_in(accounts.tables.sent.counts + accounts.targets.sent.counts - before)
    pages = 3 * ceil(rows / MAX_PAGE_ROWS)
    least = pages + sum(ceil(size / MAX_BATCH_OPERATIONS) for size in sizes.values())
    print(f"{sent} requests, least {least}: {sent / least:.3f}")
    assert sent <= 1.05 * least


# --- a project instead -------------------------------------------------------------------------------------


def test_tables_that_stay_online_are_moved_by_the_project_that_it_writes(
    world: Project, rekey: Commands
) -> None:
    said = rekey("copy", "OLD/Users", "NEW/UsersMoved", "--online", "--state", "move")
    assert {path.name for path in Path("move").rglob("*") if path.is_file()} == {"rekey.toml", "0001_move.py"}
    assert not world.targets._tables, "nothing was copied"
    assert 'from_config("move/rekey.toml", "0001_move", view="old")' in said.out
    assert "`rekey proxy --config move/rekey.toml`" in said.out
    at = ("--config", "move/rekey.toml")
    rekey("plan", *at)  # code 0: no error, nothing to be waived
    rekey("apply", *at, "--writers-stopped")
    rekey("apply", *at, "--to", "cutover", "--writers-stopped")
    assert contents(world, "UsersMoved@targets") == contents(world, "Users")


def test_the_script_for_several_tables_has_a_migration_for_each(accounts: Project, rekey: Commands) -> None:
    for name in ("Orders", "OrdersOld", "Users"):
        asyncio.run(accounts.fill(name, generic(5)))
    said = rekey("copy", "OLD/Orders*", "NEW/", "--online", "--state", "move", "--json").json
    assert said["tables"] == {"Orders": "Orders@targets", "OrdersOld": "OrdersOld@targets"}
    at = ("--config", "move/rekey.toml")
    plan = rekey("plan", *at, "--json").json
    assert [one["script_id"] for one in plan["migrations"]] == said["script_ids"]
    assert said["script_ids"] == ["0001_move-Orders", "0001_move-OrdersOld"]
    again = rekey("copy", "OLD/Orders*", "NEW/", "--online", "--state", "move", "--json").json
    assert again == said
    other = rekey("copy", "OLD/Users", "NEW/", "--online", "--state", "move", code=3)
    assert "--state" in other.err


@pytest.mark.parametrize("option", [["--replace"], ["--dry-run"], ["--where", "RowKey=a"], ["--rate", "5"]])
def test_options_of_a_copy_are_refused_where_nothing_is_copied(
    world: Project, rekey: Commands, option: list[str]
) -> None:
    assert "--online copies nothing" in rekey(*COPY, "--online", *option, code=2).err
    assert not list(Path().iterdir())


# --- what is there already ---------------------------------------------------------------------------------


def spoiled(world: Project, rekey: Commands) -> Row:
    """Copy a table, and change a row of the copy; return the row as it should be."""
    rekey(*COPY)
    row = contents(world, "Users")[7]
    asyncio.run(world.targets.table("Users@targets").upsert({**row, "Number": 4711}))
    return row


def test_a_row_that_differs_is_left_and_reported(world: Project, rekey: Commands) -> None:
    spoiled(world, rekey)
    said = rekey(*COPY, code=1)
    assert "the sides differ" in said.out and "rekey copy OLD/Users NEW/Users --replace" in said.out
    [table] = rekey(*COPY, "--json", code=1).json["tables"]
    assert (table["unchanged"], table["differing"]) == (ROWS - 1, 1)
    assert table["verification"]["by_kind"] == {"altered": 1}
    assert contents(world, "Users@targets")[7]["Number"] == 4711


def test_replace_overwrites_a_row_that_differs(world: Project, rekey: Commands) -> None:
    spoiled(world, rekey)
    [table] = rekey(*COPY, "--replace", "--json").json["tables"]
    assert (table["replaced"], table["differing"]) == (1, 0)
    assert contents(world, "Users@targets") == contents(world, "Users")


def test_a_row_of_the_target_alone_is_reported_and_stays(world: Project, rekey: Commands) -> None:
    rekey(*COPY)
    stray = {"PartitionKey": "p", "RowKey": "stray"}
    asyncio.run(world.targets.table("Users@targets").insert(stray))
    [table] = rekey(*COPY, "--replace", "--json", code=1).json["tables"]
    assert table["verification"]["by_kind"] == {"extra": 1}
    assert EntityKey("p", "stray") in map(key_of, contents(world, "Users@targets"))


# --- while the source is written ---------------------------------------------------------------------------


def test_a_row_that_was_written_after_it_was_copied_is_found(world: Project, rekey: Commands) -> None:
    """The copy reads one page; the second is the first of the verification."""
    rows = contents(world, "Users")

    async def gate(call: Call) -> None:
        pages.append(call.action)
        if pages.count("page") == 2 and not written:
            written.append(1)
            await world.tables.table("Users").upsert({**rows[0], "Number": 4711})
            await world.tables.table("Users").insert({"PartitionKey": "p", "RowKey": "later"})
            await world.tables.table("Users").delete(key_of(rows[1]))

    pages, written = list[str](), list[int]()
    before, world.tables.gate = world.tables.gate, gate
    said = rekey(*COPY, "--json", code=1).json
    [table] = said["tables"]
    assert table["verification"]["by_kind"] == {"altered": 1, "extra": 1, "missing": 1}
    assert table["changed"] == 2
    world.tables.gate = before
    rekey(*COPY, "--replace", code=1)  # a row that was deleted stays in the target
    asyncio.run(world.targets.table("Users@targets").delete(key_of(rows[1])))
    assert "every row of both sides is equal" in rekey(*COPY).out


def test_rows_written_before_they_are_read_are_copied_and_told(world: Project, rekey: Commands) -> None:
    row = {"PartitionKey": "zz", "RowKey": "later"}
    before(world.tables, "page", "", lambda: world.tables.table("Users").insert(row))
    said = rekey(*COPY).out
    assert "changed     1 row of the source written since the copy began" in said
    assert "NOTE        the source is being written" in said


# --- interrupted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 5, 17])
def test_after_an_interruption_the_same_command_copies_the_rest(
    world: Project, rekey: Commands, number: int
) -> None:
    killed(world, rekey, number, *COPY)
    pages = world.tables.sent.counts["scan"]
    [table] = rekey(*COPY, "--json").json["tables"]
    assert (table["rows"], table["differing"]) == (ROWS, 0)
    assert contents(world, "Users@targets") == contents(world, "Users")
    assert pages


def test_what_was_copied_is_not_read_again(accounts: Project, rekey: Commands) -> None:
    filled(accounts, generic(6_000, partitions=3))
    killed(accounts, rekey, 50, *COPY)
    before = accounts.tables.sent.counts["scan"]
    rekey(*COPY)
    pages = accounts.tables.sent.counts["scan"] - before
    assert pages <= 1 + 4 + 7, "the control rows, the rest, and all to verify; all of both is twice seven"


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, accounts: Project, rekey: Commands) -> Callable[..., Path]:
    """Return a function that fills the source and ends a copy before a page of its comparison is read; it
    returns the file of the comparison."""

    def compare(rows: int, pages: int) -> Path:
        monkeypatch.setattr("rekey.verify.first_pass.CHECKPOINT_ROWS", 1_000)
        filled(accounts, generic(rows, partitions=3))
        asyncio.run(accounts.targets.create_table("Users@targets"))
        killed(accounts, rekey, pages, *COPY, action="page")
        return state_folder() / "Users-Users@targets.compared"

    return compare


def test_a_comparison_that_was_cut_off_continues(
    accounts: Project, rekey: Commands, compared: Callable[..., Path]
) -> None:
    kept = compared(rows=6_000, pages=5)
    assert kept.stat().st_mode & 0o077 == 0
    before = accounts.targets.sent.counts["scan"]
    said = rekey(*COPY)
    assert "every row of both sides is equal" in said.out
    assert "compared    since" in said.out
    assert accounts.targets.sent.counts["scan"] - before < 6, "all of it is 7 pages"
    assert not kept.exists()


def test_a_row_that_both_commands_read_counts_once_as_changed(
    accounts: Project, rekey: Commands, compared: Callable[..., Path]
) -> None:
    """The second command reads it again because it differs."""
    pages: list[int] = []

    async def gate(call: Call) -> None:
        if call.action == "page" and call.table == "Users":
            pages.append(call.number)
            if len(pages) == 6:  # the first rows are copied
                await accounts.tables.table("Users").upsert(
                    {**contents(accounts, "Users")[0], "Number": 4711}
                )

    accounts.tables.gate = gate
    compared(rows=6_000, pages=5)
    [table] = rekey(*COPY, "--json", code=1).json["tables"]
    assert (table["verification"]["by_kind"], table["changed"]) == ({"altered": 1}, 1)


@pytest.mark.parametrize("what", ["old", "changed"])
def test_a_comparison_that_is_old_or_unreadable_begins_anew(
    accounts: Project, rekey: Commands, compared: Callable[..., Path], what: str
) -> None:
    kept = compared(rows=3_000, pages=3)
    assert kept.exists()
    if what == "old":
        accounts.clock.advance(25 * 3600)
    else:
        kept.write_text('{"began_at": 1}')
    said = rekey(*COPY).out
    assert "every row of both sides is equal" in said and "compared    since" not in said


@pytest.mark.parametrize("is_late", ["insert", "replace"])
def test_a_late_request_of_a_killed_copy_takes_effect_before_the_rows_are_compared(
    world: Project, rekey: Commands, is_late: str
) -> None:
    """An insert of a row that was deleted since would be a row too many, a replacement an older content."""
    words = (*COPY, "--replace")
    if is_late == "replace":
        rekey(*words)
        rows = contents(world, "Users")
        for row in rows[:50]:
            asyncio.run(world.targets.table("Users@targets").upsert({**row, "Number": -1}))
    sent: list[Call] = []

    async def lost(call: Call) -> None:
        if call.action == "transact" and (is_late == "insert" or call.operations[0].verb is not Verb.INSERT):
            sent.append(call)
            raise refusal("stopped")

    world.targets.gate = lost
    rekey(*words, code=130)
    [late, *_] = sent
    changed = late.operations[0].row
    source = world.tables.table("Users")
    if is_late == "insert":
        asyncio.run(source.delete(key_of(changed)))
    else:
        asyncio.run(source.upsert({**content_of(changed), "Number": 4711}))
    arrives_at = world.clock.monotonic() + 40

    async def arrives(_call: Call) -> None:
        if sent and world.clock.monotonic() >= arrives_at:
            sent.clear()
            with suppress(RowExists):
                await world.targets.table("Users@targets").transact(late.operations)

    world.targets.gate = arrives
    code = 1 if is_late == "insert" else 0
    said = rekey(*words, code=code).out
    assert not sent, "it was waited for"
    assert ("the sides differ" in said) is bool(code)
    if not code:
        assert contents(world, "Users@targets") == contents(world, "Users")


def test_a_table_that_is_verified_is_not_copied_again_after_an_interruption(
    world: Project, rekey: Commands
) -> None:
    filled(world, generic(500, partitions=2), "Orders1")
    filled(world, generic(500, partitions=2), "Orders2")
    words = ("copy", "OLD/Orders*", "NEW/")
    killed(world, rekey, 2, *words, table="Orders2")
    assert {path.name for path in state_folder().glob("*.json")} >= {"Orders1-Orders1@targets.json"}
    done = rekey(*words, "--json").json["tables"]
    assert [table["rows"] for table in done] == [500, 500]
    assert contents(world, "Orders2@targets") == contents(world, "Orders2")


def test_nothing_that_holds_keys_stays_when_it_has_ended(world: Project, rekey: Commands) -> None:
    killed(world, rekey, 9, *COPY)
    journal = state_folder() / "Users-Users@targets.journal"
    assert (state_folder().stat().st_mode & 0o077, journal.stat().st_mode & 0o077) == (0, 0)
    rekey(*COPY)
    left = {path.name for path in state_folder().iterdir()}
    assert left <= {"rekey.toml", "report.json", "report.json.lock"}


def test_a_full_disk_leaves_no_journal_that_cannot_be_read(
    world: Project, rekey: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = copying.write_whole

    def full(path: Path, content: bytes, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copying, "write_whole", full)
    rekey(*COPY, code=4)
    monkeypatch.setattr(copying, "write_whole", write)
    assert f"{ROWS:,} rows copied; every row of both sides is equal" in rekey(*COPY).out


def test_a_line_of_the_journal_that_was_cut_off_costs_its_own_rows_alone(
    accounts: Project, rekey: Commands
) -> None:
    filled(accounts, generic(6_000, partitions=3))
    killed(accounts, rekey, 30, *COPY)
    journal = state_folder() / "Users-Users@targets.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) > 1
    journal.write_bytes(b"".join(lines)[:-7])
    killed(accounts, rekey, 30, *COPY)
    cut, *added = journal.read_bytes().splitlines()[len(lines) - 1 :]
    assert added and not cut.endswith(b"}}")
    assert json.loads(added[0])["range"]
    assert "every row of both sides is equal" in rekey(*COPY).out


def test_a_journal_that_was_changed_is_refused(world: Project, rekey: Commands) -> None:
    killed(world, rekey, 9, *COPY)
    journal = state_folder() / "Users-Users@targets.journal"
    journal.write_bytes(b"changed\n" + journal.read_bytes())
    assert "how far the copy was cannot be read" in rekey(*COPY, code=3).err
    journal.unlink()
    rekey(*COPY)
    assert contents(world, "Users@targets") == contents(world, "Users")


# --- accounts, and mistakes --------------------------------------------------------------------------------


def test_a_connection_string_names_an_account_and_stays_a_secret(
    world: Project, rekey: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "c2VjcmV0c2VjcmV0c2VjcmV0"
    text = f"DefaultEndpointsProtocol=http;AccountName=new;AccountKey={key};TableEndpoint=http://127.0.0.1:9/new;"
    monkeypatch.setenv("NEW", text)
    said = rekey(*COPY)
    config = (state_folder() / "rekey.toml").read_text("utf-8")
    assert 'endpoint = "http://127.0.0.1:9/new"\nkey_env = "NEW"' in config
    assert key not in said.all + config + (state_folder() / "report.json").read_text("utf-8")


def test_a_variable_may_hold_an_endpoint_after_it_held_a_connection_string(
    world: Project, rekey: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str | None] = []
    run = copy.run

    def seen(shell: Any, config: Config, work: Any) -> Any:
        named.append(config.targets and config.targets.key_env)
        return run(shell, config, work)

    monkeypatch.setattr(copy, "run", seen)
    monkeypatch.setenv("NEW", f"AccountName=devstoreaccount1;AccountKey=a2V5;TableEndpoint={NEW}")
    rekey(*COPY)
    monkeypatch.setenv("NEW", NEW)
    rekey(*COPY)
    assert named == ["NEW", None]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("NONE/Users", "NEW/Users"), "the environment variable NONE is not set"),
        (("OLD/Users", "OLD/Users"), "FROM and TO are one table"),
        (("OLD/Users", "OLD/"), "FROM and TO are one table"),
        (("OLD", "NEW/Users"), "OLD names no table"),
        (("OLD/Orders*", "NEW/Orders"), "leave the table out in TO"),
        (("OLD/Nothing*", "NEW/"), "no table in"),
        (("OLD/Nobody", "NEW/"), "there is no table Nobody"),
        (("OLD/x", "NEW/"), "'x' is not a table name"),
        (("https://a.table.core.windows.net/Users?sv=1&sig=hidden", "NEW/"), "a URL holds a SAS"),
        (("AccountKey=hidden;/Users", "NEW/"), "a place could not be read"),
        (("OLD/Users", "NEW/", "--where", "Name=x"), "--where takes PartitionKey=TEXT"),
        (("OLD/Users", "NEW/", "--where", "RowKey=*"), "leaves no row out"),
    ],
)
def test_a_mistake_is_answered_and_nothing_is_copied(
    accounts: Project, rekey: Commands, words: tuple[str, ...], message: str
) -> None:
    filled(accounts, [user("ann@example.com")])
    said = rekey("copy", *words, code=2).err
    assert message in " ".join(said.split())
    assert "hidden" not in said
    assert not accounts.targets._tables


def test_a_sas_is_refused_with_the_cure(
    world: Project, rekey: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "NEW", "TableEndpoint=https://a.table.core.windows.net;SharedAccessSignature=sig=hidden"
    )
    said = rekey(*COPY, code=2).err
    assert "holds no account key" in said and "hidden" not in said


def test_a_folder_of_something_else_is_refused(world: Project, rekey: Commands, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    assert "holds no copy" in rekey(*COPY, "--state", str(tmp_path / "taken"), code=3).err
    rekey(*COPY, "--state", str(tmp_path / "own"))
    words = ("copy", "NEW/Users", "OLD/Users", "--state", str(tmp_path / "own"))
    assert "between other accounts" in rekey(*words, code=3).err
