"""A chain: commands of the first migration, while a later one works with its target or has moved the rows on.
What they wrote there would be where nobody reads, or past the clients of the later one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.errors import GateClosed, Refused
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import TARGET, View
from rekey.runner.handover import hand_over
from tests.asserts.command_line import Commands
from tests.scenarios.runner.test_chain import SECOND, next_of, prove_and_retire
from tests.scenarios.runner.test_chain_clients import OVER_S, end
from tests.worlds.company import Company, company_at
from tests.worlds.erasure import PLAIN_USERS, SCRIPT, WHY, Lives, by_old, rows_of
from tests.worlds.kills import killed
from tests.worlds.projects import POSTS_SCRIPT, SECONDARY_FROM_KEYS_SCRIPT, Project, applied
from tests.worlds.scripts import RACES, named, under_writes
from tests.worlds.small import racer

STRAY: Row = {"PartitionKey": "part0", "RowKey": "stray", "Name": "who-knows"}
MOVE_ON = '''\
"""The rows of one table to the next, under keys with a prefix."""
from rekey import Migration, Target, keys, props, rows

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.literal("m:") + keys.prop("RowKey"),
        properties=[props.copy("RowKey", to="OldRowKey")],
    ),
    capture="delta",
    waive={"personal-data": "made-up rows"},
)
'''
PART = 'where=rows.partition_key(equals="PART"),\n    capture'


def begin(rekey: Commands, script: str, to: Phase) -> None:
    """Bring a later migration to a phase."""
    rekey.project.script(script, f"{SECOND}.py")
    confirmed = ("--yes", SECOND) if to is Phase.COMPLETE else ()
    rekey("apply", SECOND, "--to", str(to), "--writers-stopped", *confirmed)
    rekey.project.clock.advance(60)


# --- restored rows -----------------------------------------------------------------------------------------


def removed_before(lives: Lives) -> tuple[Commands, str]:
    """Complete the first migration, after a repair; return the safe id of the row that it removed."""
    rekey = lives.begun(PLAIN_USERS)
    path = rekey.project.folder / "rekey.toml"
    kept = 'retention = "3d"\nverification_max_age = "900d"'
    path.write_text(path.read_text("utf-8").replace('retention = "0s"', kept), "utf-8")
    asyncio.run(rekey.project.tables.table("UsersV2").insert(STRAY))
    [repair] = rekey("verify", "--repair", "--json", code=1).json["repair"]["repairs"]
    rekey("verify")
    rekey("apply", SCRIPT, "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
    rekey.project.clock.advance(60)
    return rekey, repair["row"]


def test_a_removed_row_is_put_where_nobody_reads_only_with_a_reason(lives: Lives) -> None:
    rekey, row_id = removed_before(lives)
    begin(rekey, next_of(2), Phase.COMPLETE)
    said = " ".join(rekey("restore-row", row_id, SCRIPT, code=3).err.split())
    assert f"{SECOND} has moved the rows of UsersV2 on to UsersV3: the application does not read row" in said
    assert len(rekey.project.rows("UsersV2")) == len(rows_of(PLAIN_USERS))
    done = rekey("restore-row", row_id, SCRIPT, *WHY, "--json").json
    assert (done["moved_by"], done["table"]) == (SECOND, "UsersV2")
    assert STRAY in map(content_of, rekey.project.rows("UsersV2"))


@pytest.mark.parametrize(("part", "code"), [("part0", 3), ("part1", 0)], ids=["of the part", "beside it"])
def test_a_removed_row_beside_a_part_that_was_moved_on_is_restored(
    lives: Lives, part: str, code: int
) -> None:
    rekey, row_id = removed_before(lives)
    script = named(MOVE_ON, "UsersV2", "UsersV3").replace("capture", PART.replace("PART", part))
    begin(rekey, script, Phase.COMPLETE)
    rekey("restore-row", row_id, SCRIPT, code=code)
    assert (STRAY in map(content_of, rekey.project.rows("UsersV2"))) is (code == 0)


# --- index rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [Phase.RECONCILE, Phase.CUTOVER, Phase.COMPLETE])
@pytest.mark.parametrize("part", ["", "2024-01"], ids=["all rows", "a part"])
def test_a_repair_takes_out_no_index_row_of_a_main_row_that_is_in_the_next_table(
    lives: Lives, to: Phase, part: str
) -> None:
    """The application writes posts to PostsV3 alone since the later migration has cut over."""
    rekey = lives.completed(POSTS_SCRIPT)
    script = named(MOVE_ON, "PostsV2", "PostsV3")
    begin(rekey, script.replace("capture", PART.replace("PART", part)) if part else script, to)
    index_row = content_of(rekey.project.rows("PostsByTag")[0])
    new = {name: "new-post" if value == index_row["RowKey"] else value for name, value in index_row.items()}
    asyncio.run(rekey.project.tables.table("PostsByTag").insert(new))
    if to is Phase.RECONCILE:
        rekey("verify", SCRIPT, "--mode", "full", "--repair", code=1)
    else:
        for repair in ((), ("--repair",)):
            said = " ".join(rekey("verify", SCRIPT, "--mode", "full", *repair, code=3).err.split())
            assert f"{SECOND} has moved the rows of PostsV2 on (`{to}`)" in said
    assert (new in map(content_of, rekey.project.rows("PostsByTag"))) is (to is not Phase.RECONCILE)


def test_status_asks_for_no_repair_of_index_rows_once_their_main_rows_are_moved_on(lives: Lives) -> None:
    rekey = lives.completed(POSTS_SCRIPT)
    asyncio.run(rekey.project.tables.table("PostsByTag").delete(key_of(rekey.project.rows("PostsByTag")[0])))
    rekey("verify", SCRIPT, "--mode", "full", code=1)
    assert "--repair" in rekey("status", SCRIPT).out
    begin(rekey, named(MOVE_ON, "PostsV2", "PostsV3"), Phase.CUTOVER)
    assert "--repair" not in rekey("status", SCRIPT).out


@pytest.fixture
def races(tmp_path: Path) -> Iterator[Company]:
    """RacesV2 → RacesV3, in capture "dual-write": all rows are copied and verified, and a client is at work.
    RacesV2 has a secondary row too many, which the first migration would take out."""
    rows = [racer(f"{number:04}", 20 + number, race=f"r{number % 3}") for number in range(20)]
    project = applied(tmp_path, SECONDARY_FROM_KEYS_SCRIPT, rows, Phase.COMPLETE, name=f"{SCRIPT}.py")
    row = next(row for row in project.rows("RacesV2") if row["RowKey"].startswith("CALL:"))
    stray = content_of(row) | {"RowKey": "CALL:9999", "MainRowKey": "BIB:9999"}
    asyncio.run(project.tables.table("RacesV2").insert(stray))
    project.clock.advance(60)
    project.script(under_writes(named(MOVE_ON, "RacesV2", "RacesV3")), f"{SECOND}.py")
    with Company(project, SECOND) as second:
        second.client(View.OLD)
        second.apply()
        yield second


def test_secondary_rows_are_not_repaired_past_the_clients_of_the_next_migration(races: Company) -> None:
    first = Company(races.project, SCRIPT, races.loop)
    with pytest.raises(Refused, match=f"RacesV2 is the source of {SECOND}, which is in `dual_write`"):
        first.verify(repair=True)
    assert first.verify().differences.stable
    races.apply(Phase.CUTOVER)
    races.assert_in_step()


# --- migrations of the same rows ---------------------------------------------------------------------------


@pytest.fixture
def alike(lives: Lives) -> Iterator[tuple[Commands, Company]]:
    """Users → UsersV2, complete, and Users → UsersFlat, verified."""
    rekey = lives.begun(PLAIN_USERS)
    rekey.project.script(under_writes(PLAIN_USERS.replace("UsersV2", "UsersFlat")), f"{SECOND}.py")
    with Company(rekey.project, SECOND) as second:
        second.apply(Phase.DUAL_WRITE)
        rekey("verify", SCRIPT)
        rekey("apply", SCRIPT, "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
        rekey.project.clock.advance(60)
        second.client(View.OLD)
        second.apply()
        yield rekey, second


def test_no_source_row_is_erased_past_the_clients_of_another_migration_of_it(
    alike: tuple[Commands, Company],
) -> None:
    rekey, second = alike
    words = ("erase", SCRIPT, *by_old(rows_of(PLAIN_USERS)[0]), *WHY, "--with-targets")
    said = " ".join(rekey(*words, code=3).err.split())
    assert f"Users is the source of {SECOND}, which is in `dual_write`" in said
    second.apply(Phase.CUTOVER)
    second.assert_in_step()
    rekey(*words, code=3)
    end(second.clients[0])
    second.apply(Phase.COMPLETE)
    assert rekey(*words, "--json").json["target_rows"] == {"UsersV2": 1}


@pytest.mark.parametrize("to", [ControlPhase.SOURCE, ControlPhase.DUAL_WRITE])
def test_a_source_is_not_deleted_while_another_migration_of_it_is_not_over(
    alike: tuple[Commands, Company], to: ControlPhase
) -> None:
    rekey, second = alike
    if to is ControlPhase.SOURCE:
        second.rollback(to, drop=False)
    said = prove_and_retire(rekey, SCRIPT, code=3)
    assert f"Users is the source of {SECOND}, too, which is in `{to}`" in said
    assert len(rekey.project.rows("Users")) == len(rows_of(PLAIN_USERS))
    second.rollback(ControlPhase.SOURCE, drop=True)
    prove_and_retire(rekey, SCRIPT)


# --- an end that was cut off -------------------------------------------------------------------------------


def test_a_migration_waits_for_the_end_of_a_handover_that_was_cut_off(tmp_path: Path) -> None:
    """What that settles then are secondary rows in the source of the next one."""
    rows = [racer(f"{number:04}", 20 + number) for number in range(4)]
    with company_at(tmp_path, named(RACES, "Races", "RacesV2"), rows, Phase.CUTOVER) as first:
        project = first.project
        first.apply(Phase.COMPLETE)
        assert not first.verify().findings
        with killed(project, when=lambda _: is_handed_over(project)), first.session() as session:
            hand_over(session, SCRIPT)
        assert is_handed_over(project)
        main = next(key_of(row) for row in project.rows("RacesV2") if row["RowKey"].startswith("BIB:"))
        first.do(first.do(project.journal(SCRIPT)).begin("a-client", 1, TARGET, [main]))
        first.live(OVER_S)
        project.script(under_writes(named(MOVE_ON, "RacesV2", "RacesV3")), f"{SECOND}.py")
        second = Company(project, SECOND, first.loop)
        with pytest.raises(GateClosed, match=f"the handover of {SCRIPT} was cut off"):
            second.apply()
        first.apply()
        second.apply()
        assert second.phase is ControlPhase.DUAL_WRITE


def is_handed_over(project: Project) -> bool:
    return any("HandedOverAt" in row for row in project.restricted.dump(CONTROL_TABLE))
