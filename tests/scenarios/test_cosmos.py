"""Targets in Cosmos DB for Table: whole lives on tables in its mood (never on the service); refusals."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from rekey.errors import ExitCode, Interrupted, RekeyError
from rekey.model import content_of, key_of
from rekey.phases import Phase
from rekey.protocol.opening import Prepared
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.runner.run import Options, StopFlag
from rekey.tables.sent import charged
from rekey.verify.report import FullReport, exit_code
from tests.commands import Commands
from tests.declared import MOVE, POSTS, SECONDARY_FROM_KEYS, named
from tests.faults import Call, NoFaults, SeededFaults
from tests.projects import (
    COSMOS_ELSEWHERE,
    MOVE_SCRIPT,
    POSTS_ELSEWHERE_SCRIPT,
    USERS_ELSEWHERE_SCRIPT,
    Project,
)
from tests.scenarios.test_verify_resumed import small_pages
from tests.soaking import others_in_soak
from tests.spreading import NAME, inline
from tests.worlds import Killed, contents, mapped, post, user

SCRIPT = "0001_users"
STOPPED = Options(writers_stopped=True)
ROWS = 260
INDEX_THERE = named(POSTS, "Posts", "PostsV2", "PostsByTag@targets")
ALL_THERE = named(POSTS, "Posts", "PostsV2@targets", "PostsByTag@targets")
SCRIPTS = {
    "moved": MOVE_SCRIPT,
    "users": USERS_ELSEWHERE_SCRIPT,
    "main": POSTS_ELSEWHERE_SCRIPT,
    "index": INDEX_THERE,
    "both": ALL_THERE,
}


def scripts(*kept: str) -> pytest.MarkDecorator:
    """Return what lets a test have the projects of some scripts; in the soak those of all."""
    return pytest.mark.parametrize("project", others_in_soak(SCRIPTS, kept=kept), indirect=True)


@pytest.fixture(params=SCRIPTS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """A project whose targets, or some of them, are in Cosmos DB."""
    return cosmos(tmp_path, SCRIPTS[request.param])


def cosmos(folder: Path, script: str = MOVE_SCRIPT, rows: int = ROWS) -> Project:
    made = Project(folder)
    made.move_elsewhere(COSMOS_ELSEWHERE)
    made.script(script)
    users = [user(f"user{number:04}@example.com", f"p{number % 3}") for number in range(rows)]
    posts = [
        post(f"post-{number:04}", f"2024-{1 + number % 12:02}", f"t{number % 5},x") for number in range(rows)
    ]
    asyncio.run(made.fill("Users", users) if '"Users"' in script else made.fill("Posts", posts))
    return made


def source_of(project: Project) -> str:
    return project.scripts[SCRIPT].migration.source


def in_step(project: Project) -> bool:
    """Whether every target holds what the source says."""
    mapper = Prepared.of(project.config, project.scripts[SCRIPT]).mapper
    expected = mapped(mapper, project.rows(source_of(project)))
    return all(contents(project.rows(name)) == rows for name, rows in expected.items())


def apply(project: Project, to: Phase | None = None) -> None:
    with project.session(STOPPED) as session:
        commands.apply(session, SCRIPT, to=to)


def verify(project: Project, *, repair: bool = False, options: Options | None = None) -> FullReport:
    with project.session(options) as session:
        report = commands.verify(session, SCRIPT, mode=Mode.FULL, repair=repair)
    assert isinstance(report, FullReport)
    return report


def roll_back(project: Project) -> None:
    with project.session(STOPPED) as session:
        commands.rollback(session, SCRIPT, to=None, drop=None)


async def calm(_call: Call) -> None:
    await asyncio.sleep(0)


def killed(project: Project, at: int) -> None:
    """Run `apply` and kill it before its effect number `at`, on any account."""
    left = at

    async def kill(_call: Call) -> None:
        nonlocal left
        await asyncio.sleep(0)
        left -= 1
        if left < 0:
            raise Killed

    accounts = project.tables, project.targets, project.restricted
    for account in accounts:
        account.gate = kill
    with suppress(Killed):
        apply(project)
    for account in accounts:
        account.gate = calm
    project.clock.advance(70)  # until its lease is over


# --- whole lives -------------------------------------------------------------------------------------------


@scripts("moved", "index")
def test_a_life_with_kills_on_every_side_of_it(project: Project) -> None:
    """Copied, killed, resumed, compared, cut over, written to, and taken back: nothing is lost."""
    for at in (9, 40, 75, 110):
        killed(project, at)
    apply(project)
    assert in_step(project)
    assert not verify(project).findings
    source = project.tables.table(source_of(project))
    [first, second, *_] = project.rows(source.name)
    asyncio.run(source.delete(key_of(first)))
    asyncio.run(source.replace({**content_of(second), "Nm": "changed meanwhile", "Title": "changed"}))
    apply(project, Phase.CUTOVER)
    assert in_step(project)
    [main, *_] = project.scripts[SCRIPT].migration.tables
    there = (project.targets if main.endswith("@targets") else project.tables).table(main)
    [third, fourth, *_] = project.rows(main)
    asyncio.run(there.delete(key_of(third)))
    asyncio.run(there.merge({"PartitionKey": fourth["PartitionKey"], "RowKey": fourth["RowKey"], "After": 1}))
    project.clock.advance(600)
    before = len(project.rows(source.name))
    roll_back(project)
    assert in_step(project)
    rows = project.rows(source.name)
    assert len(rows) == before - 1
    assert [row["After"] for row in rows if "After" in row] == [1]


def test_rows_of_which_a_hundred_are_too_much_for_one_transaction_are_copied(tmp_path: Path) -> None:
    """Two MiB are the most there: these are six, in one partition."""
    project = cosmos(tmp_path, rows=0)
    rows = [{**user(f"user{n:03}@example.com", "p"), "Text": f"{n % 10}" * 30_000} for n in range(100)]
    rows = [{**row, "More": row["Text"]} for row in rows]
    asyncio.run(project.fill("Users", rows))
    apply(project)
    assert in_step(project)
    assert project.targets.sent.counts["batch"] == 3


def test_whatever_its_clock_tells_what_was_written_after_cutover_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How Timestamps there go with the service's time was never seen: the way back compares every row."""
    project = cosmos(tmp_path)

    async def ahead() -> str:
        return "2999-01-01T00:00:00.0000000Z"

    monkeypatch.setattr(project.targets, "server_time", ahead)
    apply(project, Phase.CUTOVER)
    asyncio.run(project.targets.table("Users@targets").insert(user("new@example.com", "p1")))
    roll_back(project)
    assert in_step(project)
    assert "new@example.com" in {key_of(row).row for row in project.rows("Users")}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_refused_for_being_too_much_is_done_in_the_end(tmp_path: Path, seed: int) -> None:
    """Every hundredth call on Cosmos DB fails for good, as after all attempts that 429 leaves."""
    project = cosmos(tmp_path, ALL_THERE)
    project.targets.faults = SeededFaults(seed, rate=0.01)
    for _ in range(60):
        with suppress(RekeyError):
            apply(project, Phase.CUTOVER)
            break
        project.clock.advance(70)
    else:
        pytest.fail("not done after 60 attempts")
    project.targets.faults = NoFaults()
    assert in_step(project)


# --- comparing ---------------------------------------------------------------------------------------------


@scripts("moved", "both")
def test_planted_differences_are_found_and_mended(project: Project) -> None:
    apply(project)
    for number, name in enumerate(project.scripts[SCRIPT].migration.tables):
        table = (project.targets if name.endswith("@targets") else project.tables).table(name)
        missing, altered, *_ = project.rows(name)
        asyncio.run(table.delete(key_of(missing)))
        asyncio.run(table.replace({**content_of(altered), "Planted": number}))
        asyncio.run(table.insert({**content_of(altered), "RowKey": "planted", "Planted": 9}))
    tables = len(project.scripts[SCRIPT].migration.tables)
    report = verify(project)
    kinds = sorted(str(one.kind) for one in report.found.listed)
    assert kinds == sorted(["missing", "altered", "extra"] * tables)
    mended = verify(project, repair=True)
    assert mended.repair is not None
    assert not verify(project).findings
    assert in_step(project)


@scripts("index", "both")
@pytest.mark.parametrize("mode", [Mode.COUNT, Mode.SAMPLE])
def test_counts_and_samples_rely_on_no_order(project: Project, mode: Mode) -> None:
    apply(project)
    [*_, name] = project.scripts[SCRIPT].migration.tables
    table = (project.targets if name.endswith("@targets") else project.tables).table(name)
    for planted in (False, True):
        if planted:
            asyncio.run(table.insert({**content_of(project.rows(name)[0]), "RowKey": "planted"}))
        with project.session() as session:
            report = commands.verify(session, SCRIPT, mode=mode, always=True)
        assert (exit_code(report) == ExitCode.FINDINGS) is planted


def test_a_comparison_that_was_cut_off_counts_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source goes on behind its cursor; the target, which has none, is read from its beginning."""
    project = cosmos(tmp_path)
    apply(project)
    undisturbed = verify(project)
    small_pages(monkeypatch)
    for pages in (2, 4, 7, 9):
        stop, left = StopFlag(), pages

        async def gate(call: Call, stop: StopFlag = stop) -> None:
            nonlocal left
            left -= call.action == "page" and call.table.startswith("Users")
            if left < 0:
                stop.request()

        project.tables.gate = project.targets.gate = gate
        with project.session(stop=stop) as session, pytest.raises(Interrupted):
            commands.verify(session, SCRIPT, mode=Mode.FULL, repair=False)
        project.tables.gate = project.targets.gate = calm
        again = verify(project)
        assert not again.findings
        assert again.as_json()["tables"] == undisturbed.as_json()["tables"]
        assert sum(one.rows for one in again.read if one.table != "Users") == ROWS


def test_workers_copy_and_the_runner_compares(tmp_path: Path) -> None:
    project = cosmos(tmp_path)
    options = Options(executor=NAME, writers_stopped=True)
    with inline(project) as executor, project.session(options) as session:
        commands.apply(session, SCRIPT, to=Phase.CUTOVER)
    assert in_step(project)
    assert {one["kind"] for one in executor.given} == {"copy"}


# --- what is refused ---------------------------------------------------------------------------------------


TOO_LONG = MOVE_SCRIPT.replace(
    "row_key=keys.keep()",
    'row_key=keys.join("", keys.literal("x" * 250), keys.prop("RowKey")),'
    ' properties=[props.copy("RowKey", to="Old")]',
).replace("Target, keys", "Target, keys, props")
EMPTY = MOVE_SCRIPT.replace("row_key=keys.keep()", "row_key=keys.keep(), allow_empty=True")


@pytest.mark.parametrize(
    ("script", "row", "code"),
    [
        (TOO_LONG, user("ann@example.com"), "key-too-long"),
        (EMPTY, user("", "p1"), "empty-key"),
        (MOVE_SCRIPT, {**user("ann@example.com"), "Id": 7}, "bad-property-name"),
    ],
    ids=["too long", "empty", "reserved"],
)
def test_a_row_that_cosmos_db_cannot_hold_is_foretold_and_refused_before_the_first_write(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    row: dict[str, object],
    code: str,
) -> None:
    project = cosmos(tmp_path, script, rows=0)
    asyncio.run(project.fill("Users", [row]))
    rekey = Commands(project, capsys, monkeypatch)
    told = json.loads(rekey("plan", "--json", code=ExitCode.FINDINGS).out)
    [migration] = told["migrations"]
    [refused] = migration["refused"]
    assert refused["code"] == code
    assert "Cosmos DB for Table refuses" in refused["problem"]
    said = rekey("apply", code=ExitCode.FINDINGS).err
    assert "Nothing was written." in said
    assert "ann@example.com" not in said
    assert not project.targets.sent.counts["table"]
    assert not asyncio.run(project.restricted.table_exists("rekeymap"))


@pytest.mark.parametrize(
    ("script", "change", "said", "cure"),
    [
        (
            MOVE_SCRIPT,
            ("[tables]\nendpoint = ", '[tables]\nendpoint = "https://acme.table.cosmos.azure.com" #'),
            "[tables] is Cosmos DB for Table, which can hold targets alone",
            "and Cosmos DB in [targets]",
        ),
        (
            MOVE_SCRIPT,
            ("[restricted]\nendpoint = ", '[restricted]\nendpoint = "https://acme.table.cosmos.azure.com" #'),
            "[restricted] is Cosmos DB for Table, which can hold targets alone",
            "name an account of Azure Table Storage",
        ),
        (
            named(MOVE, "Users@targets", "UsersV2"),
            ("", ""),
            "its source is in Cosmos DB for Table",
            "move from an account of Azure Table Storage",
        ),
        (
            MOVE_SCRIPT.replace('"delta"', '"dual-write"'),
            ("", ""),
            "takes no dual writes",
            'say capture="delta"',
        ),
        (
            named(SECONDARY_FROM_KEYS, "Races", "RacesV2@targets"),
            ("", ""),
            "takes no secondary rows",
            "of its own",
        ),
        (MOVE_SCRIPT, ("key_env", "# key_env"), "names no key", "key_env"),
        (MOVE_SCRIPT, ("consistency", "# consistency"), "which rekey cannot see", 'consistency = "strong"'),
        (MOVE_SCRIPT, ('"strong"', '"session"'), "which rekey cannot see", "default consistency to Strong"),
    ],
    ids=["tables", "restricted", "source", "dual-write", "secondary", "identity", "unsaid", "session"],
)
def test_what_is_not_known_to_be_safe_there_is_refused_with_its_cure(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    change: tuple[str, str],
    said: str,
    cure: str,
) -> None:
    project = cosmos(tmp_path, script, rows=0)
    config = tmp_path / "rekey.toml"
    config.write_text(config.read_text().replace(*change), "utf-8")
    rekey = Commands(project, capsys, monkeypatch)
    for command in ("plan", "apply"):
        err = " ".join(rekey(command, code=ExitCode.USAGE).err.split())
        assert said in err
        assert cure in err
    assert not project.restricted.sent.counts.total()
    assert not project.targets.sent.counts.total()


def test_what_requests_were_charged_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = cosmos(tmp_path)
    rekey = Commands(project, capsys, monkeypatch)
    [migration] = rekey("plan", "--json").json["migrations"]
    assert ("cosmos-limits", "note") in [(one["code"], one["severity"]) for one in migration["advice"]]
    rekey("plan")
    rekey("apply", code=None)
    units = charged(project.targets.sent.counts)
    assert units > ROWS
    [migration] = json.loads(rekey("status", SCRIPT, "--json", code=None).out)["migrations"]
    assert ROWS < migration["requests"]["request_units"] <= units
    assert "request units charged, as Cosmos DB told" in rekey("status", SCRIPT, "--requests", code=None).out


def test_a_table_there_is_not_inspected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inspection samples by ranges of keys."""
    rekey = Commands(cosmos(tmp_path), capsys, monkeypatch)
    assert "no range of keys can be read" in rekey("inspect", "Users@targets", code=ExitCode.USAGE).err
    assert rekey("inspect", "Users").out
