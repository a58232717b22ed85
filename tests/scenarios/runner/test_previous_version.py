"""What versions 0.1.0 and 0.2.0 began, this one ends: their migrations, plans and evidence are read.

They stand in `tests/fixtures/previous`, with the script that made them.

Soak: 2 of 4 lives under writes.
Reason, and what `make test` covers: one of each version, one at once and one a day later.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.declaration.mapper import Mapper
from rekey.errors import GateClosed
from rekey.model import TIMESTAMP, EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner.handover import hand_over
from rekey.tables.base import SIGNED_S, Operation, Verb
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTableService, StoredRows
from tests.soaking import others_in_soak
from tests.worlds.company import Company
from tests.worlds.evidence import handed_over
from tests.worlds.projects import Project
from tests.worlds.small import SECRET, contents, mapped

PREVIOUS = Path(__file__).parents[2] / "fixtures" / "previous"
SCRIPT = "0001_users"
DAY = 86_400
Begin = Callable[..., Commands]
STOPPED = "--writers-stopped"
SECRET_FILES = ("evidence.pem", "sealing.key", "users.secret", "state.sqlite")


def restore(service: MemoryTableService, tables: dict[str, list[Row]]) -> None:
    """Fill an account with rows as they were read, Timestamps (so ETags) included."""
    for name, rows in tables.items():
        stored = service._tables[name.lower()] = StoredRows()
        for row in rows:
            stored.put(key_of(row).order, content_of(row), ticks_of(row[TIMESTAMP]))


def left_by(version: str, name: str, folder: Path, later_s: float) -> Project:
    """Return a project as an earlier version left it, so many seconds later."""
    made = json.loads((PREVIOUS / version / name / "tables.json").read_text("utf-8"))
    clock = FakeClock(format_ticks(round((made["now"] + later_s) * TICKS_PER_SECOND)))
    project = Project(folder, clock)
    shutil.rmtree(folder / "migrations")
    shutil.copytree(PREVIOUS / version / name, folder, dirs_exist_ok=True)
    (folder / "state.sqlite").write_bytes(gzip.decompress((folder / "state.sqlite.gz").read_bytes()))
    for file in filter(Path.exists, (folder / file for file in SECRET_FILES)):
        file.chmod(0o600)
    restore(project.tables, made["tables"])
    restore(project.restricted, made["restricted"])
    return project


@pytest.fixture(params=["0.1.0", "0.2.0"])
def version(request: pytest.FixtureRequest) -> str:
    """The version that began the migration."""
    return str(request.param)


@pytest.fixture
def begin(version: str, tmp_path: Path, commands_on: CommandsOn) -> Begin:
    """Return what opens one of the folders for commands, so many seconds later."""

    def begun(name: str, later_s: float = DAY) -> Commands:
        return commands_on(left_by(version, name, tmp_path, later_s))

    return begun


def status(rekey: Commands) -> Any:
    [told] = rekey("status", "--json").json["migrations"]
    return told


def assert_in_step(project: Project) -> None:
    """The targets hold what the source says, and there is something to hold."""
    mapper = Mapper(project.scripts[SCRIPT].migration, {"users": SECRET})
    expected = mapped(mapper, project.rows("Users"))
    assert len(expected["UsersV2"]) >= 28
    assert {name: contents(project.rows(name)) for name in mapper.tables} == expected


def assert_looked_up(rekey: Commands) -> None:
    """The new keys of every row are found by its old ones, and the other way round."""
    rows = {row["ContactEmail"]: key_of(row) for row in rekey.project.rows("UsersV2")}
    asked = rekey.project.folder / "asked.csv"
    lines = ["old_partition_key,old_row_key", *(f"{key.partition},{old}" for old, key in rows.items())]
    asked.write_text("\n".join(lines) + "\n", "utf-8")
    said = rekey("lookup", "--bulk", str(asked), "--reason", "ticket 4711", "--json").json
    assert said["unknown"] == 0
    assert rows == {
        one["old"]["row_key"]: EntityKey(new["partition_key"], new["row_key"])
        for one in said["rows"]
        for new in one["new"]
        if new["table"] == "UsersV2"
    }
    old, key = next(iter(rows.items()))
    back = rekey("lookup", "--new", key.partition, key.row, "--reason", "ticket 4711").out
    assert old in back


def assert_vouched_for(rekey: Commands) -> None:
    """A bundle of now, with the log that the version before began, is right."""
    folder = str(rekey.project.folder / "bundle of now")
    rekey("evidence", "export", folder)
    assert rekey("evidence", "verify", folder, "--json").json["right"]


# --- capture "delta" --------------------------------------------------------------------------------------


def assert_goes_to_its_end(rekey: Commands) -> None:
    """Cut over, go back with a row that was written after it, cut over again, complete."""
    project = rekey.project
    rekey("apply", "--to", "cutover", STOPPED)
    row = project.rows("UsersV2")[0]
    asyncio.run(project.tables.table("UsersV2").replace({**content_of(row), "Name": "after cutover"}))
    rekey("rollback", STOPPED)
    assert [row["Nm"] for row in project.rows("Users")].count("after cutover") == 1
    assert_in_step(project)
    rekey("apply", "--to", "cutover", STOPPED)
    rekey("apply", "--to", "complete", "--yes", SCRIPT)
    assert status(rekey)["control"]["phase"] == "complete"
    assert_in_step(project)
    assert_looked_up(rekey)
    assert_vouched_for(rekey)


def test_a_sealed_migration_of_capture_delta_goes_on_to_its_end(begin: Begin) -> None:
    rekey = begin("delta")
    told = status(rekey)
    assert (told["stage"], told["control"]["phase"]) == ("reconcile done", "dual_write")
    assert told["verification"]["divergences"] == 0
    assert not told["verification"]["opens_cutover"], "it is a day old"
    assert told["safe"] and told["runner"] is None
    assert "verify" in told["next"]["command"]
    rekey("apply")
    names = {row["ContactEmail"]: row["Name"] for row in rekey.project.rows("UsersV2")}
    assert names["user003@example.com"] == "changed later", "the pass begins where the last one left off"
    assert "user004@example.com" not in names
    rekey("verify", "--mode", "full")
    assert_goes_to_its_end(rekey)


def test_a_copy_that_was_killed_goes_on_behind_its_checkpoints(begin: Begin) -> None:
    rekey = begin("killed")
    told = status(rekey)
    assert told["phases"] == ["prepare", "dual_write"]
    assert told["safe"] and told["next"]["command"].startswith("rekey apply")
    copied = told["backfill"]["rows"]
    assert 0 < copied < 30
    before = {row["ContactEmail"]: row[TIMESTAMP] for row in rekey.project.rows("UsersV2")}
    sent: list[Row] = []

    async def gate(call: Call) -> None:
        await asyncio.sleep(0)
        if call.table == "UsersV2":
            sent.extend(operation.row for operation in call.operations)

    rekey.project.tables.gate = gate
    rekey("apply")
    after = {row["ContactEmail"]: row[TIMESTAMP] for row in rekey.project.rows("UsersV2")}
    assert len(after) == 30 and before.items() <= after.items()
    assert len(sent) == 30 - copied, "what the checkpoints cover is not sent again"
    rekey("verify", "--mode", "full")
    assert_in_step(rekey.project)


# --- capture "dual-write" ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "later_s"),
    others_in_soak(product(["0.1.0", "0.2.0"], [2, DAY]), kept=[("0.1.0", DAY), ("0.2.0", 2)]),
    indirect=["version"],
)
def test_a_migration_of_capture_dual_write_goes_on_to_its_end(begin: Begin, later_s: int) -> None:
    """It was cut over and taken back before. At once, both clients that the version before left may still
    have something under way."""
    rekey = begin("dual-write", later_s)
    told = status(rekey)
    assert (told["stage"], told["control"]["phase"]) == ("reconcile done", "dual_write")
    standing = "over" if later_s == DAY else "live"
    assert {one["name"]: one["standing"] for one in told["clients"]} == {"lives": standing, "dies": standing}
    assert told["journal"]["depth"] == 1
    assert "since the rollback from cutover" in told["next"]["remark"]
    ours = Company(rekey.project, SCRIPT)
    try:
        assert_lives_on(ours)
    finally:
        ours.close()
    assert_looked_up(rekey)
    assert_vouched_for(rekey)


def assert_lives_on(ours: Company) -> None:
    project = ours.project
    rows = {row["RowKey"]: content_of(row) for row in project.rows("Users")}
    half, row = rows["user003@example.com"], rows["user005@example.com"]
    assert half["Nm"] == "half"
    old = ours.client()
    ours.live(1)
    ours.do(old.write(Operation(Verb.REPLACE, {**row, "Nm": "by a client of now"}, "*")))
    with pytest.raises(GateClosed, match="since the rollback"):
        ours.apply(Phase.CUTOVER)
    ours.live(60)
    ours.apply()
    assert not ours.verify().findings
    ours.apply(Phase.CUTOVER)
    assert ours.phase is ControlPhase.CUTOVER
    names = {row["ContactEmail"]: row["Name"] for row in project.rows("UsersV2")}
    assert names[half["RowKey"]] == "half", "its intent was settled"
    assert names[row["RowKey"]] == "by a client of now"
    ours.do(old.write(Operation(Verb.MERGE, {**row, "Nm": "after cutover"}, "*")))
    assert ours.rollback() == [Phase.CUTOVER]
    ours.live(5)
    assert "after cutover" in {row["Nm"] for row in project.rows("Users")}
    with pytest.raises(GateClosed, match="since the rollback"):
        ours.apply(Phase.CUTOVER)
    assert not ours.verify().findings
    ours.apply(Phase.CUTOVER)
    ours.do(old.close())
    new = ours.client(View.NEW)
    ours.live(1)
    target = content_of(project.rows("UsersV2")[0])
    ours.do(new.write(Operation(Verb.REPLACE, {**target, "Name": "new view"}, "*")))
    assert [row["Nm"] for row in project.rows("Users")].count("new view") == 1
    ours.settle()
    ours.assert_in_step()
    ours.apply(Phase.COMPLETE)
    assert ours.phase is ControlPhase.COMPLETE
    assert ours.unsettled == [], "what is kept for a suspended process is settled"
    ours.live(SIGNED_S)
    ours.apply()
    assert ours.intents == [], "the service refuses what the process has signed"
    assert not ours.verify().findings
    with ours.session() as session:
        hand_over(session, SCRIPT)
    ours.assert_in_step()


# --- plans and evidence -----------------------------------------------------------------------------------


@pytest.fixture
def planned(begin: Begin) -> Commands:
    """A project that was planned by the version before, and in which nothing is begun."""
    rekey = begin("delta")
    (rekey.project.folder / "state.sqlite").unlink()
    rekey.project.restricted._tables.clear()
    del rekey.project.tables._tables["usersv2"]
    return rekey


def apply_as_planned(rekey: Commands, code: int) -> str:
    plan = str(rekey.project.folder / "plan.json")
    return rekey("apply", "--plan", plan, "--to", "prepare", code=code).all


def test_a_plan_of_the_version_before_is_held_to(planned: Commands) -> None:
    apply_as_planned(planned, 0)
    assert status(planned)["phases"] == ["prepare"]


def test_a_plan_of_the_version_before_asks_nothing_of_a_migration_that_has_begun(begin: Begin) -> None:
    rekey = begin("delta")
    rekey("apply", "--plan", str(rekey.project.folder / "plan.json"))


def test_a_plan_of_the_version_before_is_refused_when_something_moved(planned: Commands) -> None:
    script = planned.project.folder / "migrations" / "0001_users.py"
    declared = script.read_text("utf-8")
    script.write_text(declared.replace('domain="user"', 'domain="person"'), "utf-8")
    assert "the script declares something else now" in apply_as_planned(planned, 3)
    script.write_text(declared, "utf-8")
    (planned.project.folder / "users.secret").write_text("another secret of more than 32 bytes", "utf-8")
    assert "the secret 'users' is another one now" in apply_as_planned(planned, 3)
    assert "rekeycontrol" not in planned.project.restricted._tables


def test_a_plan_of_the_version_before_is_refused_when_it_was_edited(planned: Commands) -> None:
    plan = planned.project.folder / "plan.json"
    plan.write_text(plan.read_text("utf-8").replace('"rows": 30', '"rows": 31', 1), "utf-8")
    assert "its digest differs" in apply_as_planned(planned, 2)


def test_evidence_of_the_version_before_is_right_for_whoever_has_the_key(
    begin: Begin, version: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rekey = begin("delta")
    folder = rekey.project.folder
    own = rekey("evidence", "verify", str(folder / "bundle"), "--json").json
    assert (own["right"], own["recorded"], own["about"]["rekey"]) == (True, True, version)
    auditor = tmp_path_factory.mktemp("auditors") / "auditor"
    handed_over(folder / "bundle", folder / "evidence.pub.pem", auditor, monkeypatch)
    said = rekey("evidence", "verify", "bundle", "--key", "evidence.pub.pem", "--json").json
    assert (said["right"], said["recorded"], said["signed"]) == (True, False, True)


@pytest.mark.parametrize("file", ["data/audit/events.jsonl", "data/state.json", "statement.dsse.json"])
def test_evidence_of_the_version_before_is_refused_with_a_changed_byte(begin: Begin, file: str) -> None:
    rekey = begin("delta")
    bundle = rekey.project.folder / "bundle"
    path = bundle / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    key = str(rekey.project.folder / "evidence.pub.pem")
    said = rekey("evidence", "verify", str(bundle), "--key", key, "--json", code=1).json
    assert not said["right"] and said["findings"]
