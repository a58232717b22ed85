"""Several scripts, one cutover: the whole life of a group, its refusals and its kills, in memory.

Soak: a kill at every write.
Reason, and what `make test` covers: a third of a minute in each capture; at every fifth write of three
tables in capture "dual-write", and every order of requests in `tests/simulation/test_group.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

from rekey.declaration.scripts import load_script, load_scripts
from rekey.errors import ConfigurationError, DeclarationError, GateClosed, Moved, Refused, WriterAtWork
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.project.config import Account
from rekey.protocol import lease
from rekey.protocol.control import ControlStore
from rekey.protocol.rules import authority
from rekey.rehearse.project import Project as Rehearsal
from rekey.runner import commands
from rekey.runner.phases import cutover
from rekey.runner.run import Options
from tests.asserts.command_line import CommandsOn
from tests.fakes.faults import Call
from tests.fakes.memory import instant_gate
from tests.soaking import others_in_soak
from tests.worlds.company import Company, Ledger, traffic
from tests.worlds.evidence import prove
from tests.worlds.kills import killed
from tests.worlds.projects import USERS_SCRIPT, Project, lived
from tests.worlds.small import user

STOPPED = Options(writers_stopped=True)
GROUP = "billing"


def script_of(source: str, target: str, group: str = GROUP, capture: str = "delta") -> str:
    """Return a script of the group for one table."""
    made = USERS_SCRIPT.replace('capture="delta"', f'capture="{capture}"')
    made = made.replace('"Users"', f'"{source}"').replace('"UsersV2"', f'"{target}"')
    return made.replace("    capture=", f'    group="{group}",\n    capture=')


def grouped(folder: Path, members: int = 3, rows: int = 12, capture: str = "delta") -> Project:
    """Return a project whose scripts are one group, with filled sources."""
    made = Project(folder)
    fill(made, members, rows, capture)
    return made


def grouped_at(folder: Path, to: Phase, members: int = 3, rows: int = 12, capture: str = "delta") -> Project:
    """Return such a project, applied up to a phase."""

    def live(made: Project) -> None:
        fill(made, members, rows, capture)
        apply(made, to)

    return lived(("group", to, members, rows, capture), folder, live)


def fill(made: Project, members: int, rows: int, capture: str = "delta") -> None:
    """Write the scripts of a group into a project, and fill their sources."""
    for number in range(members):
        script = script_of(f"Users{number}", f"Users{number}V2", capture=capture)
        made.script(script, f"000{number}_users.py")
        asyncio.run(made.fill(f"Users{number}", [user(f"a{row}@{number}.com") for row in range(rows)]))


def phases(project: Project) -> list[ControlPhase]:
    """Return what the control rows of the group say."""
    store = ControlStore(project.restricted, "0000_users", GROUP)
    return [row.phase for row in asyncio.run(store.members())]


def apply(
    project: Project, to: Phase | None = Phase.CUTOVER, options: Options = STOPPED
) -> list[commands.Applied]:
    with project.session(options) as session:
        return commands.apply_group(session, GROUP, to=to)


def rollback(project: Project) -> dict[str, list[Phase]]:
    with project.session(STOPPED) as session:
        return commands.rollback_group(session, GROUP, to=None, drop=None)


@pytest.mark.parametrize("capture", ["delta", "dual-write"])
def test_a_group_cuts_over_goes_back_and_completes_as_one(tmp_path: Path, capture: str) -> None:
    project = grouped(tmp_path, capture=capture)
    done = apply(project)
    assert [one.next_phase for one in done] == [Phase.COMPLETE] * 3
    assert phases(project) == [ControlPhase.CUTOVER] * 3
    rows = [row for row in project.restricted.dump(CONTROL_TABLE) if "MoveId" in row]
    assert len({row["MoveId"] for row in rows}) == 1
    undone = rollback(project)
    assert set(map(tuple, undone.values())) == {(Phase.CUTOVER,)}
    assert phases(project) == [ControlPhase.DUAL_WRITE] * 3
    apply(project, Phase.COMPLETE)
    assert phases(project) == [ControlPhase.COMPLETE] * 3
    with project.session(Options(typed_table="Users0", no_backup="a test")) as session:
        prove(session.config, session.scripts["0000_users"], session.state)
        commands.retire(session, "0000_users")
    assert phases(project) == [ControlPhase.RETIRED, *[ControlPhase.COMPLETE] * 2]
    assert [one.next_phase for one in apply(project, None)] == [None, Phase.RETIRE, Phase.RETIRE]
    assert asyncio.run(project.tables.table_exists("Users1")), "each table is named when it is deleted"


def test_a_group_goes_on_after_the_state_file_was_lost_and_a_member_retired(tmp_path: Path) -> None:
    project = grouped(tmp_path)
    apply(project, Phase.COMPLETE)
    with project.session(Options(typed_table="Users0", no_backup="a test")) as session:
        prove(session.config, session.scripts["0000_users"], session.state)
        commands.retire(session, "0000_users")
    project.config.state.unlink()
    project.clock.advance(120)
    assert [done.next_phase for done in apply(project, None)] == [None, Phase.RETIRE, Phase.RETIRE]


def killed_at(project: Project, effect: int, words: Callable[[], object]) -> bool:
    """Carry out a command whose process is killed before one of its effects; return whether that happened."""
    with (
        mock.patch.object(lease, "_PROCESS", "killed"),
        killed(project, effect, lambda call: call.writes) as kill,
    ):
        words()
    return kill.happened


def one_authority(project: Project) -> bool:
    """Tell whether all members have the same side as the authority: of a mixed group they have not."""
    sides = {authority(one) for one in phases(project)}
    return len(sides) == 1


def equal(project: Project, members: int) -> bool:
    """Tell whether every target holds as many rows as its source."""
    return all(
        len(project.rows(f"Users{number}")) == len(project.rows(f"Users{number}V2"))
        for number in range(members)
    )


@pytest.mark.parametrize(
    ("capture", "members", "every"),
    others_in_soak(
        [("delta", 5, 1), ("dual-write", 5, 1), ("dual-write", 3, 5)], kept=[("dual-write", 3, 5)]
    ),
)
def test_a_group_killed_at_any_write_is_never_mixed(
    tmp_path: Path, capture: str, members: int, every: int
) -> None:
    """Neither at the kill nor behind the next command: all tables, there and back. `every`: how many writes
    it is further to the next kill."""
    kills = 0
    for back in (False, True):

        def command() -> object:
            return rollback(project) if back else apply(project)  # noqa: B023 - called in this turn

        effect, was_killed = 1 - every, True
        while was_killed:
            effect += every
            begun = Phase.CUTOVER if back else Phase.RECONCILE
            project = grouped_at(tmp_path / f"{back}-{effect}", begun, members, rows=2, capture=capture)
            was_killed = killed_at(project, effect, command)
            kills += was_killed
            assert one_authority(project), effect
            with suppress(
                ConfigurationError
            ):  # it was done before the kill: no further without --drop-targets
                command()
            assert phases(project) == [ControlPhase.DUAL_WRITE if back else ControlPhase.CUTOVER] * members
            assert equal(project, members)
    assert kills * every >= 4 * members


@pytest.mark.parametrize("single", ["apply", "verify"])
def test_a_freeze_of_a_killed_runner_is_left_by_all(tmp_path: Path, single: str) -> None:
    project = grouped_at(tmp_path, Phase.RECONCILE)
    frozen = ControlStore(project.restricted, "0001_users", GROUP)
    frozen.group_ids = frozenset(project.scripts)
    asyncio.run(frozen.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE))
    assert phases(project) == [ControlPhase.FREEZE] * 3
    with project.session() as session:
        if single == "apply":
            commands.apply(session, "0002_users")
        else:
            commands.verify(session, "0002_users", mode=commands.Mode.FULL)
    assert phases(project) == [ControlPhase.DUAL_WRITE] * 3


def test_a_stray_writer_of_one_member_takes_all_back(tmp_path: Path) -> None:
    """It writes while another member is compared, behind its own comparison: it is looked for at the end."""
    project = grouped_at(tmp_path, Phase.RECONCILE)

    async def write(call: Call) -> None:
        if call.table == "Users2V2" and phases_now(project) == {"freeze"} and not written:
            written.append(True)
            project.clock.advance(2)
            await project.tables.table("Users0").upsert(user("a0@0.com", Age=7))

    written: list[bool] = []
    project.tables.gate = write
    with pytest.raises(
        WriterAtWork, match=r"^0000_users: .*1 source rows were written after the freeze"
    ) as told:
        apply(project)
    project.tables.gate = instant_gate
    assert "`rekey apply --group billing`" in told.value.hint
    assert written and phases(project) == [ControlPhase.DUAL_WRITE] * 3
    apply(project)
    assert phases(project) == [ControlPhase.CUTOVER] * 3


def phases_now(project: Project) -> set[str]:
    """Return what control rows say, without a request."""
    return {row["Phase"] for row in project.restricted.dump(CONTROL_TABLE) if "Phase" in row}


@pytest.mark.parametrize("capture", ["delta", "dual-write"])
def test_a_difference_rolls_back_all_members(tmp_path: Path, capture: str, commands_on: CommandsOn) -> None:
    project = grouped_at(tmp_path, Phase.RECONCILE, capture=capture)
    foreign = {"PartitionKey": "p", "RowKey": "f" * 26, "Name": "of nobody"}
    asyncio.run(project.tables.table("Users1V2").insert(foreign))
    rekey = commands_on(project)
    told = rekey("apply", "--group", GROUP, "--to", "cutover", "--writers-stopped", code=1).err
    assert "0001_users: full verification under freeze found 1 rows that differ" in told
    assert "rekey verify 0001_users --mode full" in " ".join(told.split())
    assert phases(project) == [ControlPhase.DUAL_WRITE] * 3


def test_a_member_that_refuses_its_way_back_keeps_all_where_they_are(tmp_path: Path) -> None:
    project = grouped_at(tmp_path, Phase.CUTOVER)
    stranger = {"PartitionKey": "p0", "RowKey": "0" * 32, "Name": "no old key"}
    asyncio.run(project.tables.table("Users2V2").insert(stranger))
    before = project.rows("Users0")
    with pytest.raises(GateClosed, match=r"0002_users: .*1 target row cannot go back"):
        rollback(project)
    assert phases(project) == [ControlPhase.CUTOVER] * 3
    assert project.rows("Users0") == before


def test_moving_one_member_names_the_groups_command(tmp_path: Path, commands_on: CommandsOn) -> None:
    project = grouped_at(tmp_path, Phase.RECONCILE)
    rekey = commands_on(project)
    for words in (["apply", "0001", "--to", "cutover", "--writers-stopped"], ["apply", "0001", "--follow"]):
        said = rekey(*words, code=3)
        assert "0001_users is of the group billing" in said.err
        assert "Next: `rekey apply --group billing --to cutover`" in said.err
    rekey("apply", "--group", GROUP, "--to", "cutover", "--writers-stopped")
    said = rekey("rollback", "0001", "--writers-stopped", code=3)
    assert "0001_users is of the group billing" in said.err
    assert "Next: `rekey rollback --group billing --writers-stopped`" in said.err
    assert phases(project) == [ControlPhase.CUTOVER] * 3
    refused = rekey("apply", "--group", GROUP, "--to", "complete", code=2)
    assert "apply --group billing --to complete --yes billing" in refused.err
    rekey("apply", "--group", GROUP, "--to", "complete", "--yes", GROUP)
    assert "rollback is not possible" in rekey("rollback", "--group", GROUP, "--writers-stopped", code=3).err
    assert phases(project) == [ControlPhase.COMPLETE] * 3


def test_all_gates_come_before_the_first_cutover(tmp_path: Path, commands_on: CommandsOn) -> None:
    rekey = commands_on(grouped(tmp_path))
    applied = rekey("apply", "--group", GROUP, "--json").json
    stops = {one["stop_seconds"] for one in applied["migrations"]}
    assert len(stops) == 1 and stops.pop() >= 2
    closed = rekey("apply", "--group", GROUP, "--to", "cutover", code=3).err
    assert "0000_users, 0001_users, 0002_users: --writers-stopped was not given" in " ".join(closed.split())
    words = ("apply", "--group", GROUP, "--to", "cutover", "--writers-stopped", "--stop-at-most", "1s")
    assert "the estimated write downtime, about" in rekey(*words, code=3).err
    assert phases(rekey.project) == [ControlPhase.DUAL_WRITE] * 3


def test_status_shows_a_group(tmp_path: Path, commands_on: CommandsOn) -> None:
    rekey = commands_on(grouped(tmp_path))
    rekey("apply", "0001")
    said = rekey("status", "--group", GROUP)
    assert "group billing: 0000_users, 0001_users, 0002_users" in said.out
    assert "rekey apply --group billing" in said.out
    assert "not begun: 2 of 3, reconcile done: 1 of 3" in said.out
    rekey("apply", "--group", GROUP, "--to", "cutover", "--writers-stopped")
    [group] = rekey("status", "--json").json["groups"]
    assert group["safe"] and group["stage"] == "cutover done: 3 of 3"
    assert group["next"]["command"] == "rekey apply --group billing --to complete --yes billing"
    assert "writers of all targets of the group have stopped" in group["next"]["remark"]
    assert "rollback --group billing" in group["next"]["remark"]
    assert group["sentence"].startswith("The targets are the authority of all of them")
    assert rekey("status", "0001", "--json").json["groups"] == []


def test_a_group_that_is_not_whole_is_refused_before_the_first_write(tmp_path: Path) -> None:
    project = grouped_at(tmp_path, Phase.CUTOVER)
    project.script(script_of("Users0", "Later", GROUP).replace("Users0", "More"), "0009_more.py")
    asyncio.run(project.fill("More", [user("a@more.com")]))
    before = project.restricted.dump(CONTROL_TABLE)
    with pytest.raises(Refused, match="the group billing is in `cutover`: 0009_more can no longer join it"):
        apply(project, None)
    with project.session() as session, pytest.raises(Refused, match="0009_more can no longer join it"):
        commands.apply(session, "0009_more")
    (project.folder / "migrations" / "0009_more.py").unlink()
    (project.folder / "migrations" / "0001_users.py").unlink()
    with pytest.raises(Refused, match="not in this project: 0001_users"):
        rollback(project)
    assert [row for row in project.restricted.dump(CONTROL_TABLE) if "Phase" in row] == [
        row for row in before if "Phase" in row
    ]


WRONG = {
    "capture": (
        lambda text: text.replace('"Users0"', '"Users9"').replace('capture="delta"', 'capture="dual-write"'),
        "0009_more: group: 0000_users of the group billing has capture='delta' (line 12)",
    ),
    "source": (lambda text: text, "0000_users of the group billing has the source Users0 too (line 12)"),
    "chain": (
        lambda text: text.replace('"Users0"', '"Users0V2"'),
        "it waits for 0000_users of the same group, so they cannot cut over at once (line 12)",
    ),
    "target": (
        lambda text: text.replace('"Users0"', '"Users9"').replace('"More"', '"Users1V2"'),
        "fills the table Users1V2 too",
    ),
    "name": (
        lambda text: text.replace('"billing"', '"bill ing"'),
        "group: it is not a name of at most 120 characters",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_scripts_that_conflict_in_a_group_are_refused(
    tmp_path: Path, fault: str, commands_on: CommandsOn
) -> None:
    project = grouped(tmp_path, 2, rows=1)
    change, said = WRONG[fault]
    project.script(change(script_of("Users0", "More")), "0009_more.py")
    told = commands_on(project)("apply", "--group", GROUP, code=2).err
    assert said in " ".join(told.split()) and "Next:" in told
    assert not asyncio.run(project.restricted.table_exists(CONTROL_TABLE))


def test_an_unknown_group_and_an_extra_script_are_refused(tmp_path: Path, commands_on: CommandsOn) -> None:
    rekey = commands_on(grouped(tmp_path, 2, rows=1))
    assert (
        "no script is of the group 'bil'; there are: billing" in rekey("status", "--group", "bil", code=2).err
    )
    both = rekey("apply", "0001", "--group", GROUP, code=2).err
    assert "give SCRIPT or --group, not both" in both


def test_a_script_without_a_group_has_the_digest_that_it_always_had(tmp_path: Path) -> None:
    made = Project(tmp_path)
    made.script(USERS_SCRIPT)
    [declared] = made.scripts.values()
    assert declared.digest == "9e38bd3b146ea55e5a229deb5f351e099443319d4ff1a044677c3e376c3979f0"
    assert "group" not in declared.migration.canonical()


def test_a_plan_adds_up_a_group_and_estimates_one_stop(tmp_path: Path, commands_on: CommandsOn) -> None:
    rekey = commands_on(grouped(tmp_path))
    planned = rekey("plan", "--group", GROUP, "--json").json
    [group] = planned["groups"]
    estimates = [one["estimate"] for one in planned["migrations"]]
    assert group["members"] == ["0000_users", "0001_users", "0002_users"]
    assert group["requests"] == sum(one["requests_total"] for one in estimates)
    cutovers = [d["at_limits_s"] for one in estimates for d in one["durations"] if d["phase"] == "cutover"]
    assert len(cutovers) == 3 and group["stop_s"] == pytest.approx(sum(cutovers), abs=0.01)
    assert "writers stop once" in " ".join(rekey("plan", "--group", GROUP).out.split())
    assert "groups" not in rekey("plan", "0001", "--json").json
    rekey("plan", "--group", GROUP, "--exact", "--out", str(tmp_path / "plan.json"))
    rekey("apply", "--group", GROUP, "--plan", str(tmp_path / "plan.json"))


def test_a_bundle_names_the_group_and_its_members(tmp_path: Path, commands_on: CommandsOn) -> None:
    project = grouped_at(tmp_path, Phase.CUTOVER, 2)
    rekey = commands_on(project)
    rekey("evidence", "export", str(tmp_path / "bundle"), "0001")
    rekey("evidence", "verify", str(tmp_path / "bundle"), code=None)
    stated = b64decode(json.loads((tmp_path / "bundle" / "statement.dsse.json").read_text())["payload"])
    digests = {one.script_id: one.digest for one in project.scripts.values()}
    assert json.loads(stated)["predicate"]["group"] == {"name": GROUP, "declarations_sha256": digests}


def test_one_script_gets_its_tables_from_a_pattern(tmp_path: Path, commands_on: CommandsOn) -> None:
    """A table that appears later changes nothing; clients and workers find the migration by its id."""
    project = Project(tmp_path)
    for name in ("OrdersDE", "OrdersFR", "People"):
        asyncio.run(project.fill(name, [user("a@b.com"), user("c@b.com")]))
    rekey = commands_on(project)
    nothing = rekey("new", "orders", "--each", "Nope*", code=2).err
    assert "no table of the account has a name like Nope*; it has 3 tables" in nothing
    made = Path(rekey("new", "orders", "--each", "orders*", "--json").json["path"])
    text = made.read_text("utf-8").replace('keys.prop("PartitionKey")', 'keys.literal("x")', 1)
    made.write_text(text, "utf-8")
    ids = ["0001_orders-OrdersDE", "0001_orders-OrdersFR"]
    assert [*project.scripts] == ids
    digests = [one.digest for one in project.scripts.values()]
    asyncio.run(project.fill("OrdersIT", [user("a@b.com")]))
    rekey("apply", "--group", "orders", "--to", "cutover", "--writers-stopped")
    assert len(project.rows("OrdersFRV2")) == 2
    assert not asyncio.run(project.tables.table_exists("OrdersITV2"))
    assert [one.digest for one in project.scripts.values()] == digests
    assert load_script(made.with_name(f"{ids[1]}.py")).migration.source == "OrdersFR"
    assert "makes several migrations" in rekey("status", str(made), code=2).err
    begun = rekey("history", "--json").json["migrations"]
    assert [(one["script_id"], one["group"]) for one in begun] == [(one, "orders") for one in ids]

    # A table that is taken out of the list has begun: it is known as it was kept, and can be put back.
    made.write_text(text.replace('    "OrdersDE",\n', ""), "utf-8")
    refused = rekey("apply", "--group", "orders", code=3).err
    assert f"{ids[0]} has begun, and its script 0001_orders.py is gone" in " ".join(refused.split())
    made.unlink()
    rekey("show", ids[0], "--script", "--out", str(made))
    assert made.read_text("utf-8") == text
    rekey("rollback", "--group", "orders", "--writers-stopped")
    assert {row["Phase"] for row in project.restricted.dump(CONTROL_TABLE) if "Phase" in row} == {
        "dual_write"
    }


MANY = """from rekey import Migration, Target, for_each_table, keys, props
migrations = for_each_table(TABLES, lambda name: Migration(
    source=SOURCE, target=Target(f"{name}V2", partition_key=keys.literal("x"), row_key=keys.prop("RowKey"),
    properties=[props.copy("PartitionKey", to="Old")]), capture="delta",
))
"""


@pytest.mark.parametrize(
    ("tables", "source", "said"),
    [
        ('"Orders*"', "name", "it is not a list of table names"),
        ("[]", "name", "no table is named (line 2)"),
        ('["A2b", "A2B"]', "name", "A2B is named twice"),
        ('["Abc"]', '"Def"', "the migration for Abc has the source Def"),
    ],
)
def test_an_invalid_list_of_tables_is_refused(tmp_path: Path, tables: str, source: str, said: str) -> None:
    project = Project(tmp_path)
    project.script(MANY.replace("TABLES", tables).replace("SOURCE", source), "0001_many.py")
    with pytest.raises(DeclarationError) as told:
        _ = project.scripts
    assert said in str(told.value) and "Next:" in str(told.value)


def test_clients_of_all_members_write_on_while_their_group_cuts_over_and_goes_back(tmp_path: Path) -> None:
    """In capture "dual-write": what they were told is in the tables, on both sides, all the time."""
    project = grouped(tmp_path, 2, capture="dual-write")
    first = Company(project, "0000_users")
    second = Company(project, "0001_users", loop=first.loop)
    both = first, second
    ledgers = Ledger(), Ledger()

    def change(rng: random.Random, _key: EntityKey) -> Row:
        return {"Nm": f"name {rng.random()}"}

    for number, one in enumerate(both):
        keys = [EntityKey("p", f"own{row}@{number}.com") for row in range(6)]
        one.writes(traffic(one.client(), keys, change, ledgers[number], seed=number))
    with first.session() as session:
        commands.apply_group(session, GROUP)
    first.live(5)
    with first.session() as session:
        done = commands.apply_group(session, GROUP, to=Phase.CUTOVER)
    assert [one.next_phase for one in done] == [Phase.COMPLETE] * 2
    assert {one.phase for one in both} == {ControlPhase.CUTOVER}
    first.live(5)
    with first.session() as session:
        commands.rollback_group(session, GROUP, to=None, drop=None)
    assert {one.phase for one in both} == {ControlPhase.DUAL_WRITE}
    first.live(5)
    for one, ledger in zip(both, ledgers, strict=True):
        one.settle()
        rows = {key_of(row): row for row in project.rows(one.mapper.migration.source)}
        assert ledger.writes > 20
        for key, told in ledger.rows.items():
            assert (rows.get(key) or {}).get("Nm") == (told or {}).get("Nm")
        one.assert_in_step()

    # A client of one member that was made with another declaration keeps the gate of all closed.
    second.client(name="stranger", digest="0" * 64)
    with first.session() as session, pytest.raises(GateClosed, match=r"0001_users: .*another declaration"):
        commands.apply_group(session, GROUP, to=Phase.CUTOVER)
    assert {one.phase for one in both} == {ControlPhase.DUAL_WRITE}
    second.do(cancel_all(second))
    first.close()


async def cancel_all(company: Company) -> None:
    """End the clients of a company whose loop is another one's."""
    for client in company.clients:
        await client.close()


def test_a_rehearsal_of_one_of_many_tables_has_that_one_alone(tmp_path: Path) -> None:
    made = Project(tmp_path / "real")
    text = MANY.replace("TABLES", '["Abc", "Def"]').replace("SOURCE", "name")
    made.script(text.replace("capture=", 'group="billing", capture='), "0001_many.py")
    (tmp_path / "rehearsed").mkdir()
    path = made.folder / "migrations" / "0001_many-Def.py"
    rehearsed = Rehearsal(tmp_path / "rehearsed", path)
    account = Account("http://127.0.0.1:1/a", "KEY")
    rehearsed.write(account, account, window_rows=1, entities_per_second=1)
    [alone] = load_scripts(tmp_path / "rehearsed" / "migrations")
    assert (alone.script_id, alone.cli_selector) == ("0001_many-Def", "--group billing")
    assert alone.digest == rehearsed.declared.digest


def test_what_keeps_one_member_from_completing_keeps_all(tmp_path: Path) -> None:
    """In capture "dual-write" its source follows until then: nothing of it is given up unsettled."""
    project = grouped_at(tmp_path, Phase.CUTOVER, capture="dual-write")
    foreign = {"PartitionKey": "p", "RowKey": "f" * 26, "Name": "of nobody", "ContactEmail": "x@y.com"}
    asyncio.run(project.tables.table("Users2V2").insert(foreign))
    with project.session(STOPPED) as session:
        assert commands.verify(session, "0002_users", mode=commands.Mode.FULL).findings
    with pytest.raises(GateClosed, match=r"0002_users: .*the last full verification found 1 rows?"):
        apply(project, Phase.COMPLETE)
    assert phases(project) == [ControlPhase.CUTOVER] * 3


def test_a_group_has_at_most_a_hundred_members(tmp_path: Path) -> None:
    """Their control rows move in one transaction, which takes no more."""
    project = Project(tmp_path)
    names = [f"Table{number}" for number in range(101)]
    text = MANY.replace("TABLES", repr(names)).replace("SOURCE", "name")
    project.script(text.replace("capture=", 'group="billing", capture='), "0001_many.py")
    with pytest.raises(DeclarationError, match="the group billing has 101 scripts; at most 100"):
        _ = project.scripts


def test_what_another_runner_adds_to_a_group_meanwhile_is_never_moved_unproved(tmp_path: Path) -> None:
    """Its project has one script more; the group's runner, which has not, is before its freeze."""
    project, other = grouped(tmp_path / "one", 2), Project(tmp_path / "other")
    other.tables, other.restricted, other.clock = project.tables, project.restricted, project.clock
    other.script(script_of("More", "MoreV2"), "0009_more.py")
    asyncio.run(project.fill("More", [user("a@more.com")]))
    apply(project, Phase.RECONCILE)
    with project.session(STOPPED) as session:
        runs = commands._begun([*project.scripts], session.begin)
        with other.session() as others:
            commands.apply(others, "0009_more")
        with pytest.raises(Moved, match="changed since this command began: 0009_more"):
            session.do(cutover.run(runs[0]))
    assert phases(project) == [ControlPhase.DUAL_WRITE] * 3
    with pytest.raises(Refused, match="not in this project: 0009_more"):
        apply(project)
    with other.session(Options(drop_targets=True)) as others:
        commands.rollback(others, "0009_more", to=ControlPhase.SOURCE, drop=True)
    apply(project)
    assert phases(project) == [ControlPhase.CUTOVER] * 2


def test_a_control_row_of_a_group_cannot_be_moved_alone(tmp_path: Path) -> None:
    project = grouped_at(tmp_path, Phase.RECONCILE, 2)
    alone = project.store("0001_users")
    with pytest.raises(Moved, match="changed since this command began: 0000_users"):
        asyncio.run(alone.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE))
    assert phases(project) == [ControlPhase.DUAL_WRITE] * 2


def test_what_is_sent_for_a_member_behind_its_phase_is_not_counted_with_that(tmp_path: Path) -> None:
    """Its tables are compared in the cutover that another member's run makes for all."""
    with grouped(tmp_path, 2, rows=3).session(STOPPED) as session:
        commands.apply_group(session, GROUP)
        before = session.state.phase_runs("0001_users")
        session.runs["0001_users"].keep_count()
        assert session.state.phase_runs("0001_users") == before
