"""A sealed migration lives as one in the clear does, on tables in memory, and leaves no legacy key behind.

Every row that is written to the restricted account, whoever writes it, and every byte of the state file are
searched.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.options import ClientOptions, prepared_with
from rekey.errors import (
    Findings,
    Interrupted,
    Moved,
    SealedUnreadable,
    SecretMissing,
    StateUnusable,
    WritesRefused,
)
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.mapping.sealing import DATA_KEY, key_partition
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.project.config import resolve_secret
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.run import Options, StopFlag
from rekey.state.store import State
from rekey.tables.base import Operation, Verb
from tests.asserts.canaries import Canaries
from tests.fakes.faults import Call
from tests.fakes.memory import open_gate
from tests.worlds.application_rows import new_post, old_post, own_keys
from tests.worlds.company import Company, Ledger, as_application, company, traffic
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT, WRAPPING_KEY, Project, lived
from tests.worlds.small import post, user

SCRIPT = "0001_users"
STOPPED = Options(writers_stopped=True)
DROPPED = Options(writers_stopped=True, drop_targets=True)


class Searched:
    """Old keys that must not be found, and everything that is written where they must not be."""

    def __init__(self, project: Project, canaries: Canaries | None = None) -> None:
        lot = Canaries.of(random.Random(11)).texts
        self.canaries = canaries or Canaries({name: lot[name] for name in ("partition key", "row key")})
        self.project = project
        self.written = 0
        self.found: set[str] = set()
        project.restricted.gate = self.gate

    def row(self, number: int) -> Row:
        texts = self.canaries.texts
        return user(
            f"{number:03}.{texts['row key']}@mail.example", f"{texts['partition key']}-{number % 3}", Nm="A"
        )

    async def gate(self, call: Call) -> None:
        """Search what is written to the restricted account; binary properties also as the bytes they are."""
        for operation in call.operations:
            self.written += 1
            self._search(f"{call.table} {call.action}", operation.row)
        await asyncio.sleep(0)

    def _search(self, where: str, row: Row) -> None:
        data = [json.dumps(row).encode()]
        for name, value in row.items():
            if row.get(f"{name}@odata.type") == "Edm.Binary":
                data.append(base64.b64decode(value))
        self.found |= {f"{where}: {name}" for one in data for name in self.canaries.found_in(one)}

    def nothing(self) -> None:
        """Search what is there now, too: rows of the restricted account and files of the state."""
        for table in ("rekeycontrol", JOURNAL_TABLE, MAPPING_TABLE):
            if table in self.project.restricted._tables:
                for row in self.project.restricted.dump(table):
                    self._search(table, row)
        state = self.project.config.state
        for path in state.parent.glob(f"{state.name}*"):
            self.found |= {f"{path.name}: {name}" for name in self.canaries.found_in(path.read_bytes())}
        assert self.found == set()
        assert self.written > 0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.script(USERS_SCRIPT)
    return made


def filled(project: Project, count: int = 230) -> Searched:
    searched = Searched(project)
    asyncio.run(project.fill("Users", map(searched.row, range(count))))
    return searched


@pytest.fixture
def at_gate(tmp_path: Path) -> Project:
    """A project of 60 rows at the gate of cutover."""

    def live(project: Project) -> None:
        project.script(USERS_SCRIPT)
        filled(project, 60)
        apply(project)
        project.restricted.gate = open_gate

    return lived(__name__, tmp_path, live)


def apply(project: Project, to: Phase | None = None, options: Options | None = None) -> commands.Applied:
    with project.session(options) as session:
        return commands.apply(session, SCRIPT, to=to)


def rollback(project: Project, to: ControlPhase | None, options: Options) -> list[Phase]:
    with project.session(options) as session:
        return commands.rollback(session, SCRIPT, to=to, drop=options.drop_targets or None)


def mapped(project: Project) -> dict[EntityKey, Row]:
    with project.session() as session:
        mapper = session.begin(SCRIPT).mapper
        return {key_of(row): row for one in project.rows("Users") for _, row in mapper.map(one)}


def in_step(project: Project) -> bool:
    return {key_of(row): content_of(row) for row in project.rows("UsersV2")} == mapped(project)


# --- whole lives -----------------------------------------------------------------------------------------


def test_a_life_with_delta_passes_a_kill_and_a_way_back_leaves_no_key(project: Project) -> None:
    searched = filled(project)
    stop = StopFlag()

    async def stop_in_the_middle(call: Call) -> None:
        if call.table == "UsersV2" and call.writes:
            stop.request()

    project.tables.gate = stop_in_the_middle
    with project.session(stop=stop) as session, pytest.raises(Interrupted):
        commands.apply(session, SCRIPT)
    project.tables.gate = open_gate
    with State.open(project.config.state, read_only=True) as state:
        assert 0 < sum(one.rows for one in state.segments(SCRIPT, "backfill", keys=False)) < 230
        with pytest.raises(StateUnusable, match="sealed"):
            state.segments(SCRIPT, "backfill")
    searched.nothing()
    apply(project)
    asyncio.run(project.fill("Users", [searched.row(500)]))
    asyncio.run(project.tables.table("Users").delete(key_of(searched.row(3)), etag="*"))
    apply(project)
    assert in_step(project)
    apply(project, Phase.CUTOVER, STOPPED)
    target = project.rows("UsersV2")[0]
    asyncio.run(project.tables.table("UsersV2").replace({**content_of(target), "Name": "B"}, etag="*"))
    assert rollback(project, None, STOPPED) == [Phase.CUTOVER]
    assert in_step(project)
    assert [row["Nm"] for row in project.rows("Users")].count("B") == 1
    apply(project, Phase.COMPLETE, STOPPED)
    searched.nothing()


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Company]:
    with company(tmp_path, USERS_SCRIPT, []) as made:
        yield made


def test_a_life_under_writes_of_clients_and_a_way_back_leaves_no_key(ours: Company) -> None:
    searched = Searched(ours.project)
    table = ours.project.tables.table("Users")
    for number in range(60):
        ours.do(table.insert(searched.row(number)))
    ledger = Ledger()
    for number in range(2):
        keys = [key_of(searched.row(600 + 10 * number + one)) for one in range(8)]
        ours.writes(traffic(ours.client(), keys, lambda rng, _: {"Nm": f"{rng.random()}"}, ledger, number))
    ours.live(5)
    ours.apply()
    ours.live(10)
    assert not ours.verify().findings
    ours.apply(Phase.CUTOVER)
    ours.live(10)
    ours.rollback()
    ours.live(10)
    assert not ours.verify().findings
    ours.apply(Phase.CUTOVER)
    ours.live(5)
    ours.settle()
    assert ledger.writes > 20
    ours.assert_in_step()
    searched.nothing()


def test_rows_whose_keys_come_from_content_move_under_writes_of_both_views(tmp_path: Path) -> None:
    """And what writers reserve in forward rows is sealed with them."""
    sealed = POSTS_SCRIPT.replace("capture=", 'mapping="sealed", capture=')
    posts = company(tmp_path, sealed, [post(f"post-{number:03}") for number in range(40)])
    searched = Searched(posts.project, Canaries({"row key": "post-0", "own key": "qzxvkw"}))
    ledger = Ledger()
    posts.writes(traffic(posts.client(), own_keys("qzxvkwa", "blog"), old_post, ledger, seed=1))
    posts.live(5)
    posts.apply()
    new_keys = own_keys("qzxvkwb", "2024-01")
    posts.writes(traffic(posts.client(View.NEW), new_keys, new_post, Ledger(), seed=2))
    posts.live(10)
    assert not posts.verify().findings
    posts.apply(Phase.CUTOVER)
    posts.live(10)
    assert not posts.verify().findings
    posts.rollback()
    posts.live(5)
    posts.settle()
    assert ledger.writes > 20
    posts.assert_in_step()
    searched.nothing()
    posts.close()


def test_what_a_client_left_that_died_is_settled_by_the_runner(ours: Company) -> None:
    searched = Searched(ours.project)
    row = searched.row(1)
    ours.do(ours.project.tables.table("Users").insert(row))
    ours.client()
    ours.apply()

    async def half_a_write() -> None:
        with as_application("0dead"):
            journal = await ours.project.journal(ours.script_id)
            await journal.begin("0dead", 2, "source", [key_of(row)])
            await ours.project.tables.table("Users").merge({**row, "Nm": "new"})

    ours.do(half_a_write())
    [intent] = ours.intents
    assert DATA_KEY in intent and "KeyRow" not in intent
    searched.nothing()
    ours.live(300)
    assert ours.apply().caught_up == 1
    assert ours.intents == []
    ours.assert_in_step()


def test_a_migration_that_was_rolled_back_whole_leaves_no_data_key_and_begins_again(project: Project) -> None:
    searched = filled(project, 60)
    apply(project)
    before = {row["PartitionKey"] for row in project.restricted.dump(MAPPING_TABLE)}
    assert key_partition(SCRIPT) in before
    rollback(project, ControlPhase.SOURCE, DROPPED)
    assert project.restricted.dump(MAPPING_TABLE) == []
    project.clock.advance(60)
    apply(project)
    assert in_step(project)
    searched.nothing()


# --- what is wrong is said, and nothing is damaged ---------------------------------------------------------


def replaced(project: Project, row: Row) -> None:
    asyncio.run(project.restricted.table(MAPPING_TABLE).replace(content_of(row), etag="*"))


def of_direction(project: Project, direction: str) -> list[Row]:
    wanted = f"{SCRIPT}.{direction}."
    return [row for row in project.restricted.dump(MAPPING_TABLE) if row["PartitionKey"].startswith(wanted)]


def everything(project: Project) -> object:
    tables = [project.tables.dump(name) for name in ("Users", "UsersV2")]
    return tables, of_direction(project, "f"), of_direction(project, "r")


@pytest.mark.parametrize("direction", ["f", "r"])
def test_swapped_rows_are_found_and_not_taken_for_real(at_gate: Project, direction: str) -> None:
    one, other = of_direction(at_gate, direction)[:2]
    sealed = {name: value for name, value in other.items() if name.startswith("Sealed")}
    replaced(at_gate, {**one, **sealed})
    target = at_gate.rows("UsersV2")
    asyncio.run(at_gate.tables.table("Users").merge({**searched_row(at_gate, one), "Nm": "C"}))
    before = at_gate.rows("UsersV2")
    with pytest.raises(SealedUnreadable, match="altered, or belongs to another row") as caught:
        if direction == "f":
            apply(at_gate)
        else:
            with at_gate.session() as session:
                run = session.begin(SCRIPT)
                for row in target:
                    session.do(run.mapping.owner(key_of(row)))
    assert one["RowKey"] in str(caught.value)
    assert at_gate.rows("UsersV2") == before


def searched_row(project: Project, mapping_row: Row) -> Row:
    """The source row that a forward row is about; any row for a reverse row."""
    with project.session() as session:
        rows = session.begin(SCRIPT).mapping.rows
    for row in project.rows("Users"):
        if rows.forward_key(key_of(row)) == key_of(mapping_row):
            return {name: row[name] for name in ("PartitionKey", "RowKey")}
    return {name: project.rows("Users")[0][name] for name in ("PartitionKey", "RowKey")}


def test_a_planted_row_in_the_clear_is_refused(at_gate: Project) -> None:
    row = of_direction(at_gate, "r")[0]
    plain = {name: row[name] for name in ("PartitionKey", "RowKey")}
    replaced(at_gate, {**plain, "OldPartitionKey": "eu", "OldRowKey": "mine"})
    with at_gate.session() as session, pytest.raises(SealedUnreadable, match="not sealed"):
        run = session.begin(SCRIPT)
        for target in at_gate.rows("UsersV2"):
            session.do(run.mapping.owner(key_of(target)))


def with_key(project: Project, text: str | None) -> None:
    path = project.folder / "sealing.key"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (None, SecretMissing, "the wrapping key: the file"),
        ("short", SecretMissing, "too short"),
        ("another wrapping key of more than 32 bytes", Moved, "is sealed with the wrapping key local:"),
    ],
    ids=["lost", "cut off", "another"],
)
def test_a_wrapping_key_that_is_lost_or_another_one_is_told_and_harms_nothing(
    at_gate: Project, text: str | None, error: type[Exception], said: str
) -> None:
    before = everything(at_gate)
    with_key(at_gate, text)
    for move in (
        lambda: apply(at_gate),
        lambda: apply(at_gate, Phase.CUTOVER, STOPPED),
        lambda: rollback(at_gate, ControlPhase.SOURCE, DROPPED),
    ):
        with pytest.raises(error, match=said) as caught:
            move()
        assert caught.value.hint  # type: ignore[attr-defined]
        assert "another wrapping" not in str(caught.value)
    assert everything(at_gate) == before
    with_key(at_gate, f"{WRAPPING_KEY}\n")
    apply(at_gate)
    assert in_step(at_gate)


def test_before_it_begins_a_missing_wrapping_key_is_told_and_nothing_is_written(project: Project) -> None:
    filled(project, 5)
    with_key(project, None)
    with pytest.raises(SecretMissing):
        apply(project)
    assert project.restricted._tables == {}
    config = project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8").replace('[sealing]\nfile = "sealing.key"\n', ""), "utf-8")
    with pytest.raises(SecretMissing, match="no wrapping key is configured") as caught:
        apply(project)
    assert "openssl rand -hex 32" in caught.value.hint
    assert 'mapping="plain"' in caught.value.hint


def test_a_replaced_wrapping_key_rewraps_and_is_needed_no_longer(at_gate: Project) -> None:
    shutil.copy(at_gate.folder / "sealing.key", at_gate.folder / "old.key")
    with_key(at_gate, "n" * 40)
    config = at_gate.folder / "rekey.toml"
    text = config.read_text("utf-8")
    config.write_text(text + '[sealing.previous]\nfile = "old.key"\n', "utf-8")
    apply(at_gate)
    config.write_text(text, "utf-8")
    (at_gate.folder / "old.key").unlink()
    apply(at_gate, Phase.CUTOVER, STOPPED)
    with State.open(at_gate.config.state, read_only=True) as state:
        [event] = [one for one in state.audit_events(SCRIPT) if one.event == "data-keys-rewrapped"]
    assert event.details == {"keys": 2}


def test_a_data_key_that_was_deleted_is_told_and_harms_nothing(at_gate: Project) -> None:
    data_keys = [row for row in at_gate.restricted.dump(MAPPING_TABLE) if row["PartitionKey"].endswith(".k")]
    [month] = [row for row in data_keys if row["RowKey"].startswith("20")]
    asyncio.run(at_gate.restricted.table(MAPPING_TABLE).delete(key_of(month), etag="*"))
    asyncio.run(at_gate.tables.table("Users").delete(key_of(at_gate.rows("Users")[0]), etag="*"))
    before = everything(at_gate)
    with pytest.raises(SealedUnreadable, match="data key is not in the restricted store"):
        apply(at_gate)
    assert everything(at_gate) == before


def test_a_client_without_the_wrapping_key_writes_nothing(ours: Company) -> None:
    """It is told before anything is written: an application does not lose a write by it."""
    ours.do(ours.project.tables.table("Users").insert(user("a@b.example")))
    client = ours.client()
    ours.apply()
    with_key(ours.project, "another wrapping key of more than 32 bytes")
    before = ours.project.rows("Users")
    with pytest.raises(Moved, match="is sealed with the wrapping key"):
        ours.do(client.write(Operation(Verb.MERGE, user("a@b.example", Nm="B"), "*")))
    assert ours.project.rows("Users") == before
    assert ours.intents == []


def core(ours: Company, wrapping_key: bytes) -> ClientCore:
    """The core of the SDK's clients, on the tables in memory."""
    project = ours.project
    secrets = {"users": resolve_secret(project.config, "users")}
    prepared = prepared_with(project.scripts[ours.script_id], secrets, wrapping_key)
    return ClientCore(
        ClientOptions(prepared, "Users", shadow_reads=0.0), lambda: project.connect(project.config)
    )


def test_the_core_of_the_clients_writes_with_the_wrapping_key_and_refuses_with_another(ours: Company) -> None:
    searched = Searched(ours.project)
    ours.do(ours.project.tables.table("Users").insert(searched.row(1)))
    ours.client()
    ours.apply()

    async def write(wrapping_key: bytes) -> None:
        client = core(ours, wrapping_key)
        try:
            await client.write([Operation(Verb.INSERT, searched.row(2))])
        finally:
            await client.close()

    with pytest.raises(WritesRefused, match="is sealed with the wrapping key") as refused:
        ours.do(write(b"x" * 40))
    assert refused.value.code == "wrapping-key-moved"
    assert len(ours.project.rows("Users")) == 1
    ours.do(write(WRAPPING_KEY.encode()))
    assert len(ours.project.rows("Users")) == 2
    ours.assert_in_step()
    searched.nothing()


def test_an_altered_intent_is_not_settled_and_keeps_the_authority_where_it_is(ours: Company) -> None:
    row = user("a@b.example")
    ours.do(ours.project.tables.table("Users").insert(row))
    ours.client()
    ours.apply()

    async def plant() -> None:
        journal = await ours.project.journal(ours.script_id)
        with as_application("0dead"):
            first, second = await journal.begin("0dead", 2, "source", [key_of(row), EntityKey("eu", "b")])
            table = ours.project.restricted.table(JOURNAL_TABLE)
            there = await table.get(second.id)
            assert there is not None
            await table.replace(
                {**content_of(there), "PartitionKey": first.id.partition, "RowKey": first.id.row}, etag="*"
            )

    ours.do(plant())
    ours.live(300)
    with pytest.raises(Findings, match="altered, or belongs to another row"):
        ours.apply(Phase.CUTOVER)
    assert ours.phase is ControlPhase.DUAL_WRITE
    assert len(ours.intents) == 2
