"""Rows are not written past the clients of a migration: not into its source, and not into its targets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.errors import CredentialRefused, Unavailable
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import content_of, key_of
from rekey.phases import ControlPhase, Phase
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.faults import Call
from tests.scenarios.runner.test_joint import EXAMPLE, TABLES, shipment, stock
from tests.scenarios.runner.test_part_life import PART, TENANT, invoice
from tests.worlds.backups import contents
from tests.worlds.evidence import prove
from tests.worlds.projects import MOVE_SCRIPT, POSTS_SCRIPT, USERS_SCRIPT, Project, project_of
from tests.worlds.small import post, user

ENDPOINT = "http://127.0.0.1:10002/devstoreaccount1"
ELSEWHERE = "http://127.0.0.1:10003/devstoreaccount1"


def applied_to(rekey: Commands, phase: Phase | None) -> None:
    """Apply a migration up to a phase; None: not at all."""
    if phase is Phase.COMPLETE:
        rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_users")
    elif phase is not None:
        rekey("apply", "--to", str(phase), "--writers-stopped")


@pytest.fixture
def users(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    rows = [user(f"user{number}@example.com") for number in range(20)]
    return commands_on(project_of(tmp_path / "project", USERS_SCRIPT, rows))


@pytest.mark.parametrize("table", ["Users", "usersv2"])
@pytest.mark.parametrize("phase", [Phase.DUAL_WRITE, Phase.RECONCILE, Phase.CUTOVER])
def test_an_import_into_a_table_of_a_migration_under_way_is_refused(
    users: Commands, tmp_path: Path, phase: Phase, table: str
) -> None:
    users("export", "Users", str(tmp_path / "out"))
    applied_to(users, phase)
    before = {name: contents(users.project, name) for name in ("Users", "UsersV2")}
    said = users("import", str(tmp_path / "out"), table, "--replace", "--json", code=3).json
    role = "a target" if table == "usersv2" else "the source"
    assert f"{table} is {role} of 0001_users, a migration that is in progress" in said["what"]
    assert {name: contents(users.project, name) for name in before} == before


@pytest.mark.parametrize("phase", [None, Phase.PREPARE, Phase.COMPLETE], ids=["none", "prepare", "complete"])
def test_an_import_into_the_source_before_the_migration_and_after_it_is_not(
    users: Commands, tmp_path: Path, phase: Phase | None
) -> None:
    users("export", "Users", str(tmp_path / "out"))
    applied_to(users, phase)
    assert users("import", str(tmp_path / "out"), "Users", "--json").json["unchanged"] == 20


def test_an_import_into_a_target_that_waits_for_its_rows_is_refused(users: Commands, tmp_path: Path) -> None:
    users("export", "Users", str(tmp_path / "out"))
    applied_to(users, Phase.PREPARE)
    assert "a target" in users("import", str(tmp_path / "out"), "UsersV2", code=3).err
    assert contents(users.project, "UsersV2") == []


@pytest.mark.parametrize("table", ["shipmentsopen", "Shipments2023", "SHIPMENTS"])
@pytest.mark.parametrize("phase", [Phase.RECONCILE, Phase.CUTOVER])
def test_nothing_is_written_to_one_of_the_tables_of_kinds(
    tmp_path: Path, commands_on: CommandsOn, monkeypatch: pytest.MonkeyPatch, phase: Phase, table: str
) -> None:
    """Together they are one joint table; each is named by itself where rows are imported or copied."""
    monkeypatch.setenv("OLD", ENDPOINT)
    monkeypatch.chdir(tmp_path)
    text = EXAMPLE.read_text("utf-8").replace('"dual-write"', '"delta"')
    rekey = commands_on(project_of(tmp_path / "project", text, stock(), name=EXAMPLE.name))
    asyncio.run(rekey.project.fill("Other", [shipment("c1", 900, "2023-01-01")]))
    rekey("export", "Other", str(tmp_path / "out"))
    rekey("apply", "--to", str(phase), "--writers-stopped")
    before = {name: contents(rekey.project, name) for name in ("Shipments", *TABLES)}
    role = "the source" if table == "SHIPMENTS" else "a target"
    for words in (("import", "out", table), ("copy", "OLD/Other", f"OLD/{table}")):
        said = " ".join(rekey(*words, code=3).err.split())
        assert f"{table} is {role} of {EXAMPLE.stem}, a migration that is in progress" in said
    assert {name: contents(rekey.project, name) for name in before} == before


def test_an_import_while_clients_maintain_indexes_is_refused(
    tmp_path: Path, commands_on: CommandsOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = POSTS_SCRIPT.replace('capture="delta",', 'capture="dual-write",')
    rekey = commands_on(project_of(tmp_path / "project", script, [post("a", tags="x,y")]))
    rekey("export", "Posts", str(tmp_path / "out"))
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_users")
    monkeypatch.chdir(tmp_path)
    assert "PostsByTag is a target" in rekey("import", "out", "PostsByTag", code=3).err
    rekey("verify", "0001_users", "--mode", "full")
    rekey("handover", "0001_users", "--yes", "0001_users")
    rekey("import", "out", "PostsByTag")


def test_a_restricted_store_that_may_not_be_read_is_told(users: Commands, tmp_path: Path) -> None:
    users("export", "Users", str(tmp_path / "out"))
    refuse_control_rows(users.project)
    said = users("import", str(tmp_path / "out"), "Back").out
    assert f"NOT CHECKED {ENDPOINT} may not be read" in " ".join(said.split())
    assert users("import", str(tmp_path / "out"), "Back", "--json").json["not_checked"] == [ENDPOINT]


def refuse_control_rows(project: Project) -> None:
    async def gate(call: Call) -> None:
        if call.table.startswith("rekeycontrol"):
            raise CredentialRefused("403", status=403)

    project.tables.gate = project.restricted.gate = project.targets.gate = gate


# --- a migration that begins while rows are written ---------------------------------------------------------

OTHERS = [user(f"other{number}@example.com", f"part{number}") for number in range(300)]


@pytest.fixture
def prepared(users: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A migration that has copied nothing yet, and 300 rows of 300 batches that its source lacks."""
    monkeypatch.setenv("OLD", ENDPOINT)
    monkeypatch.chdir(tmp_path)
    asyncio.run(users.project.fill("Other", OTHERS))
    users("export", "Other", "out")
    applied_to(users, Phase.PREPARE)
    return users


def begins_at(project: Project, batch: int, *, batch_s: float = 0.0) -> None:
    """Let another machine begin the migration before a batch; each batch takes some seconds."""
    batches, opened = 0, project.tables.gate

    async def gate(call: Call) -> None:
        nonlocal batches
        batches += call.table == "Users" and call.writes
        if call.writes and batches == batch:
            await project.store("0001_users").move(ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
        project.clock.advance(batch_s if call.writes else 0)
        await opened(call)

    project.tables.gate = gate


@pytest.mark.parametrize(
    "words", [("import", "out", "Users"), ("copy", "OLD/Other", "OLD/Users")], ids=" ".join
)
@pytest.mark.parametrize(("batch", "batch_s"), [(10, 6.0), (300, 0.0)], ids=["in the middle", "at the end"])
def test_a_migration_that_begins_while_rows_are_written_ends_that_and_is_marked(
    prepared: Commands, words: tuple[str, ...], batch: int, batch_s: float
) -> None:
    project = prepared.project
    begins_at(project, batch, batch_s=batch_s)
    said = prepared(*words, "--json", code=3).json
    assert (
        "Users is the source of 0001_users, a migration that has begun meanwhile (`dual_write`)"
        in said["what"]
    )
    control = asyncio.run(project.store("0001_users").read())
    assert control is not None
    assert control.change_id
    written = len(project.rows("Users")) - 20
    assert (written == len(OTHERS)) is (batch == len(OTHERS))


def test_an_import_tells_of_a_migration_that_began_and_ended_meanwhile(
    users: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = users.project
    users("export", "Users", str(tmp_path / "out"))
    applied_to(users, Phase.COMPLETE)
    complete = project.restricted.dump(CONTROL_TABLE)
    opened, control_table = project.tables.gate, project.restricted.table(CONTROL_TABLE)
    for row in complete:
        asyncio.run(control_table.delete(key_of(row)))

    async def gate(call: Call) -> None:
        if call.table == "Back" and call.writes and call.action != "create_table":
            for row in complete:
                await control_table.upsert({**content_of(row), "Source": "Back"})
        await opened(call)

    project.tables.gate = gate
    said = users("import", str(tmp_path / "out"), "Back", "--json", code=3).json
    assert "a migration that has begun meanwhile (`complete`)" in said["what"]


def test_a_copy_at_a_rate_is_refused_without_a_warning_of_requests_that_wait(prepared: Commands) -> None:
    begins_at(prepared.project, 10)
    said = prepared("copy", "OLD/Other", "OLD/Users", "--rate", "20", "--json", code=3).json
    assert "begun meanwhile" in said["what"]
    assert len(prepared.project.rows("Users")) < 20 + len(OTHERS)


def test_what_was_written_before_an_import_was_interrupted_is_marked_too(prepared: Commands) -> None:
    project = prepared.project
    begins_at(project, 10)
    opened = project.tables.gate

    async def gate(call: Call) -> None:
        await opened(call)
        if len(project.rows("Users")) > 60:
            raise Unavailable("503", code="ServerBusy")

    project.tables.gate = gate
    prepared("import", "out", "Users", code=4)
    control = asyncio.run(project.store("0001_users").read())
    assert control is not None
    assert control.change_id


# --- copied ------------------------------------------------------------------------------------------------


@pytest.fixture
def moving(tmp_path: Path, commands_on: CommandsOn, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A table that is on its way to another account, and variables that name both."""
    monkeypatch.setenv("OLD", ENDPOINT)
    monkeypatch.setenv("NEW", ELSEWHERE)
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path / "project")
    project.move_elsewhere()
    project.script(MOVE_SCRIPT)
    for table in ("Users", "Other"):
        asyncio.run(project.fill(table, [user(f"user{number}@example.com") for number in range(20)]))
    rekey = commands_on(project)
    rekey("apply", "--to", "backfill")
    return rekey


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["copy", "dry run"])
@pytest.mark.parametrize("words", [("OLD/Users", "NEW/Users"), ("OLD/Other", "OLD/users")], ids=" to ".join)
def test_a_copy_into_a_table_of_a_migration_under_way_is_refused(
    moving: Commands, words: tuple[str, str], options: tuple[str, ...]
) -> None:
    project = moving.project
    before = contents(project, "Users"), contents(project, "Users" + TARGET_ACCOUNT_SUFFIX)
    said = moving("copy", *words, *options, "--json", code=3).json
    assert "of 0001_users, a migration that is in progress (`dual_write`)" in said["what"]
    assert (contents(project, "Users"), contents(project, "Users" + TARGET_ACCOUNT_SUFFIX)) == before


def test_one_of_a_migration_under_way_keeps_all_tables_of_a_pattern(moving: Commands) -> None:
    moving("copy", "OLD/*", "NEW/", code=3)
    assert "other" not in moving.project.targets._tables


def test_a_copy_of_the_source_to_a_third_table_is_not_refused(moving: Commands) -> None:
    moving("copy", "OLD/Users", "OLD/UsersCopy")
    assert contents(moving.project, "UsersCopy") == contents(moving.project, "Users")


def test_where_a_copy_could_not_look_is_told(moving: Commands) -> None:
    refuse_control_rows(moving.project)
    said = moving("copy", "OLD/Other", "NEW/Other", "--json").json
    assert said["not_checked"] == [ENDPOINT, ELSEWHERE]


# --- restored ----------------------------------------------------------------------------------------------

BESIDE = (
    PART.replace(TENANT, "other").replace("InvoicesV2", "OtherInvoices").replace("ByPayer", "OtherByPayer")
)


@pytest.mark.parametrize("is_part", [True, False], ids=["another part", "the whole table"])
def test_a_source_that_another_migration_moves_is_restored_beside_it_only(
    tmp_path: Path, commands_on: CommandsOn, is_part: bool
) -> None:
    """Another part of the table holds none of the rows; a migration of all of it would miss them."""
    rows = [invoice(number, tenant) for tenant in (TENANT, "other") for number in range(30)]
    rekey = commands_on(project_of(tmp_path / "project", PART, rows, name="0001_invoices.py"))
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_invoices")
    with rekey.project.session() as session:
        [declared] = session.scripts.values()
        prove(session.config, declared, session.state)
    rekey.project.clock.advance(60)
    folder = str(tmp_path / "backup")
    rekey("export", "Invoices", folder)
    rekey("retire", "--table", "Invoices", "--backup", folder)
    before = contents(rekey.project, "Invoices")
    other = Project(tmp_path / "other") if not is_part else rekey.project
    other.tables, other.restricted = rekey.project.tables, rekey.project.restricted
    text = BESIDE if is_part else BESIDE.replace('where=rows.partition_key(equals="other"),', "")
    other.script(text, "0002_other.py")
    commands_on(other)("apply", "--to", "backfill", "0002_other")
    commands_on(rekey.project)("restore", folder, "0001", code=0 if is_part else 3)
    assert (contents(rekey.project, "Invoices") == before) is not is_part
