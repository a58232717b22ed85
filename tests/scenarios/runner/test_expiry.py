"""What the mapping knows is erased by month when its keeping time is over: recorded, resumed where it was cut
off, told by look-ups, status and doctor, and shown in the evidence.

Soak: 8 of 10 moments of a kill; a mapping in the clear without an index table.
Reason, and what `make test` covers: two moments; one with an index table.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rekey.errors import Refused, SealedUnreadable
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.sealing import LocalWrappingKey, key_partition
from rekey.mapping.store import Keyring
from rekey.model import EntityKey, Row, content_of
from tests.asserts.command_line import Commands
from tests.fakes.faults import Call
from tests.fakes.memory import instant_gate
from tests.soaking import others_in_soak
from tests.worlds.erasure import (
    PLAIN_USERS,
    SCRIPT,
    SEALED_POSTS,
    WHY,
    Lives,
    begin,
    by_id,
    by_new,
    by_old,
    complete,
    configured,
    erasures,
    many_look_ups,
    mapping,
    put,
    rows_of,
    subject,
    tombstones,
)
from tests.worlds.evidence import checked, exported, prove, with_key
from tests.worlds.kills import LEASE_S, killed, replaces_mapping
from tests.worlds.observations import changed
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT, WRAPPING_KEY
from tests.worlds.small import user

DAY = 86_400
CONFIRMED = ("--confirm", SCRIPT)


@pytest.fixture
def rekey(lives: Lives) -> Commands:
    """A sealed migration with rows of January and of February 2024, complete on the first of January."""
    return two_months(lives, USERS_SCRIPT)


@pytest.fixture(
    params=others_in_soak([PLAIN_USERS, POSTS_SCRIPT], kept=[POSTS_SCRIPT]), ids=["users", "with an index"]
)
def plain(request: pytest.FixtureRequest, lives: Lives) -> Commands:
    return two_months(lives, request.param)


def late(script: str) -> Row:
    """A row that is copied in February."""
    if script in (POSTS_SCRIPT, SEALED_POSTS):
        return {**rows_of(script)[0], "RowKey": "of-february"}
    return user("of-february@mail.example", "part0")


def two_months(lives: Lives, script: str) -> Commands:
    def live(rekey: Commands, script: str) -> None:
        begin(rekey, script)
        lives.seal_in("2024-02")
        source = rekey.project.scripts[SCRIPT].migration.source
        asyncio.run(rekey.project.tables.table(source).insert(late(script)))
        rekey("apply")
        complete(rekey)
        configured(rekey.project, mapping_retention="100d")

    rekey = lives.lived(("two months", script), live)
    lives.seal_in("2024-02")
    return rekey


def data_keys(rekey: Commands) -> dict[str, Row]:
    """Return the rows of the data keys, by cohort."""
    return {key.row: row for key, row in mapping(rekey.project, "k").items()}


def expire(rekey: Commands, *words: str, code: int = 0) -> Any:
    return rekey("expire", *(words or CONFIRMED), "--json", code=code).json


# --- cohorts of a sealed mapping ----------------------------------------------------------------------------


def test_a_cohort_is_shredded_when_its_keeping_time_is_over_and_not_before(rekey: Commands) -> None:
    """Counted from the end of its month, which is later than `complete` here."""
    before = data_keys(rekey)
    assert set(before) == {"root", "2024-01", "2024-02"}
    rekey.project.clock.advance((31 + 100) * DAY - 3600)
    said = expire(rekey)
    assert said["cohorts"] == [] and data_keys(rekey) == before
    assert [one["cohort"] for one in said["left"]] == ["2024-01", "2024-02"]
    assert said["left"][0]["over_at"] == "2024-05-11T00:00:00.0000000Z"
    assert erasures(rekey.project) == []
    rekey.project.clock.advance(3600)
    said = expire(rekey)
    assert said["cohorts"] == ["2024-01"]
    after = data_keys(rekey)
    assert after["root"] == before["root"] and after["2024-02"] == before["2024-02"]
    assert set(after["2024-01"]) == {
        *("PartitionKey", "RowKey", "ErasedOn"),
        *("Proof", "Proof@odata.type"),
    }, "neither the key, nor its name, nor its check"
    rekey.project.clock.advance(29 * DAY)
    assert expire(rekey)["cohorts"] == ["2024-02"]
    assert expire(rekey) | {"on": ""} == {
        "exit_code": 0,
        "script_id": SCRIPT,
        "on": "",
        "cohorts": [],
        "deleted_rows": 0,
        "kept_rows": 0,
        "left": [],
        "removed_rows": 0,
    }


def test_retention_begins_with_complete_when_later(lives: Lives) -> None:
    rekey = lives.begun(USERS_SCRIPT)
    rekey.project.clock.advance(60 * DAY)
    rekey("verify")
    complete(rekey)
    configured(rekey.project, mapping_retention="100d")
    rekey.project.clock.advance(99 * DAY)
    assert expire(rekey)["cohorts"] == []
    rekey.project.clock.advance(DAY)
    assert expire(rekey)["cohorts"] == ["2024-01"]


def test_look_ups_say_when_a_cohort_was_shredded_and_others_go_on(rekey: Commands) -> None:
    row, other = subject(rekey), late(USERS_SCRIPT)
    ways = (by_old(row), by_new(rekey, row), by_id(rekey, row))
    rekey.project.clock.advance(131 * DAY)
    expire(rekey)
    for named in ways:
        said = rekey("lookup", *named, *WHY, "--json", code=1)
        assert said.json["erased_on"] == "2024-05-11"
        assert "was erased on 2024-05-11" in said.err and "cannot be opened" not in said.err
    assert rekey("lookup", *by_old(other), *WHY, "--json").json["erased"] == []


def test_nothing_expires_before_complete(lives: Lives) -> None:
    rekey = lives.begun(USERS_SCRIPT)
    rekey.project.clock.advance(5000 * DAY)
    for words in (CONFIRMED, ("--cohort", "2024-01", *WHY)):
        said = rekey("expire", *words, code=3)
        assert "is not complete" in said.err
    assert set(data_keys(rekey)) == {"root", "2024-01"} and tombstones(rekey.project) == {}
    assert "mapping" not in rekey("status").out.replace("mapping_retention", "")


def test_one_cohort_is_shredded_by_name_before_its_time_with_a_reason_only(rekey: Commands) -> None:
    said = rekey("expire", "--cohort", "2024-02", code=3)
    assert "is over at 2024-06-09" in said.err and "--reason" in said.err
    assert tombstones(rekey.project) == {} and erasures(rekey.project) == []
    rekey("expire", "--cohort", "2024-02", "--reason", "asked by anna@mail.example", code=2)
    assert expire(rekey, "--cohort", "2024-02", *WHY)["cohorts"] == ["2024-02"]
    assert list(tombstones(rekey.project)) == [EntityKey(key_partition(SCRIPT), "2024-02")]
    assert erasures(rekey.project)[0].details["reason"] == "ticket 4711"
    assert expire(rekey, "--cohort", "2024-02")["cohorts"] == [], "done already"
    said = rekey("expire", "--cohort", "2023-12", *WHY, code=1)
    assert "there are: 2024-01, 2024-02" in said.err


def test_one_that_is_over_needs_no_reason(rekey: Commands) -> None:
    rekey.project.clock.advance(131 * DAY)
    assert expire(rekey, "--cohort", "2024-01")["cohorts"] == ["2024-01"]
    assert erasures(rekey.project)[0].details["reason"] == "its keeping time is over"


def test_the_root_key_is_not_a_cohort(rekey: Commands) -> None:
    rekey("expire", "--cohort", "root", *WHY, code=1)

    async def shred() -> None:
        keyring = (await rekey.project.mapping(SCRIPT)).keyring
        with pytest.raises(ValueError, match="root key"):
            await keyring.shred("root", "2024-01-01")

    asyncio.run(shred())
    assert "Wrapped" in data_keys(rekey)["root"]


@pytest.mark.parametrize("typed", [(), ("--confirm", "0001"), ("--confirm", "Users")])
def test_the_migrations_id_is_typed(rekey: Commands, typed: tuple[str, ...]) -> None:
    rekey.project.clock.advance(200 * DAY)
    rekey("expire", *typed, code=2)
    assert tombstones(rekey.project) == {} and erasures(rekey.project) == []


def test_on_a_terminal_the_id_is_asked_for(rekey: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    rekey.project.clock.advance(131 * DAY)
    asked = []

    def prompt(question: str, **_: object) -> str:
        asked.append(question)
        return SCRIPT if len(asked) > 1 else "yes"

    monkeypatch.setattr("click.prompt", prompt)
    monkeypatch.setattr("rekey.cli.shell.Shell.is_terminal", True)
    rekey("expire", code=2)
    assert tombstones(rekey.project) == {}
    rekey("expire")
    assert len(tombstones(rekey.project)) == 1
    assert ["for good" in question for question in asked] == [True, True]


def test_it_is_on_record_before_the_first_key_goes_and_once_more_after_the_last(rekey: Commands) -> None:
    rekey.project.clock.advance(200 * DAY)
    seen = []

    async def watch(call: Call) -> None:
        if call.action == "replace" and call.table == MAPPING_TABLE:
            seen.append(len(erasures(rekey.project)))

    rekey.project.restricted.gate = watch
    expire(rekey)
    assert seen == [1, 1]
    first, second = erasures(rekey.project)
    assert first.details == {
        "kind": "cohorts",
        "cohorts": ["2024-01", "2024-02"],
        "reason": "its keeping time is over",
    }
    assert second.details == {
        "kind": "cohorts",
        "begun": first.seq,
        "on": "2024-07-19",
        "cohorts": ["2024-01", "2024-02"],
    }


def test_cut_off_between_two_keys_the_same_command_ends_it(rekey: Commands) -> None:
    """Also one that was named before its time: it was decided, and is on record."""
    expire(rekey, "--cohort", "2024-01", *WHY)
    put_back = data_keys(rekey)
    assert "ErasedOn" in put_back["2024-01"]

    with killed(rekey.project, when=replaces_mapping):
        rekey("expire", "--cohort", "2024-02", *WHY)
    assert "ErasedOn" not in data_keys(rekey)["2024-02"]
    expire(rekey)
    assert "ErasedOn" in data_keys(rekey)["2024-02"]
    events = erasures(rekey.project)
    assert [one.details.get("begun") for one in events] == [None, events[0].seq, None, events[2].seq]


def test_a_data_key_is_not_wrapped_anew_over_its_tombstone(rekey: Commands) -> None:
    """Neither by a change of the wrapping key, which reads all keys before it writes the first."""
    expire(rekey, "--cohort", "2024-01", *WHY)
    stones = tombstones(rekey.project)
    folder = rekey.project.folder
    (folder / "old.key").write_text(f"{WRAPPING_KEY}\n", "utf-8")
    (folder / "sealing.key").write_text("another wrapping key of more than 32 bytes\n", "utf-8")
    with (folder / "rekey.toml").open("a", encoding="utf-8") as file:
        file.write('[sealing.previous]\nfile = "old.key"\n')
    assert "2 data keys are wrapped" in rekey("apply", SCRIPT).err
    assert tombstones(rekey.project) == stones
    assert "was erased on" in rekey("lookup", *by_old(subject(rekey)), *WHY, code=1).err


def test_nothing_is_sealed_in_a_month_that_was_shredded(rekey: Commands) -> None:
    """A client that would begin to: it gets no new key of that month, and writes nothing."""
    expire(rekey, "--cohort", "2024-02", *WHY)
    before = mapping(rekey.project)

    async def seal() -> None:
        table = rekey.project.restricted.table(MAPPING_TABLE)
        keyring = Keyring(table, SCRIPT, LocalWrappingKey(WRAPPING_KEY.encode()))
        await keyring.open()
        with pytest.raises(Refused, match=r"2024-02 was shredded on 2024-01-01"):
            await keyring.fresh()

    asyncio.run(seal())
    assert mapping(rekey.project) == before


def test_a_data_key_that_was_put_back_opens_nothing_and_is_found(rekey: Commands) -> None:
    row, before = subject(rekey), data_keys(rekey)
    expire(rekey, "--cohort", "2024-01", *WHY)
    put(rekey.project, before["2024-01"])
    said = rekey("lookup", *by_old(row), *WHY, code=1)
    assert "was shredded on 2024-01-01, and it was put back" in said.err
    assert row["RowKey"] not in said.all
    assert [one["code"] for one in doctor(rekey)] == ["data-key-returned"]
    expire(rekey, "--cohort", "2024-01", *WHY)
    assert "was erased on" in rekey("lookup", *by_old(row), *WHY, code=1).err
    assert doctor(rekey) == []


def test_a_tombstone_of_a_data_key_that_somebody_put_in_is_told_and_replaced(rekey: Commands) -> None:
    """He has destroyed the key all the same: what it sealed is told to be unreadable, not to be erased."""
    at = EntityKey(key_partition(SCRIPT), "2024-01")
    put(rekey.project, {"PartitionKey": at.partition, "RowKey": at.row, "ErasedOn": "2024-01-01"})
    said = rekey("lookup", *by_old(subject(rekey)), *WHY, code=1)
    assert "it says that it was erased, and that is not by rekey" in said.err

    async def shred() -> None:
        store = await rekey.project.mapping(SCRIPT)
        with pytest.raises(SealedUnreadable):
            await store.keyring.learn([{"DataKey": "2024-01-xxxxxxxx"}])
        assert await store.keyring.shred("2024-01", "2024-01-02")
        assert not await store.keyring.shred("2024-01", "2024-01-03")

    asyncio.run(shred())
    assert tombstones(rekey.project)[at]["ErasedOn"] == "2024-01-02"


def test_a_subject_with_a_shredded_forward_row_is_erased(rekey: Commands) -> None:
    """Its reverse row is of a month kept longer: the search finds it, and the source row goes, too."""
    project, row = rekey.project, subject(rekey)

    async def reseal() -> EntityKey:
        store = await project.mapping(SCRIPT)
        forward = await store.forward(EntityKey(row["PartitionKey"], row["RowKey"]))
        assert forward is not None
        await store.fresh()
        [main] = forward.targets
        made = store.rows.reverse_row(forward.source, main.key)
        await store.table.upsert(made)
        return EntityKey(made["PartitionKey"], made["RowKey"])

    at = asyncio.run(reseal())
    expire(rekey, "--cohort", "2024-01", *WHY)
    said = rekey("erase", *by_old(row), *WHY, "--json").json
    assert (said["forward_rows"], said["reverse_rows"], said["source_rows"]) == (0, 1, 1)
    assert at in tombstones(project, "r.")


# --- a mapping in the clear ---------------------------------------------------------------------------------


def test_a_mapping_in_the_clear_is_emptied_as_a_whole(plain: Commands) -> None:
    project, row = plain.project, subject(plain)
    ways = (by_old(row), by_new(plain, row), by_id(plain, row))
    count = len(mapping(project))
    assert count == 26
    project.clock.advance(99 * DAY)
    assert expire(plain)["cohorts"] == [] and len(mapping(project)) == count
    rekey_status = plain("status").out
    assert "mapping       kept until 2024-04-10" in rekey_status
    project.clock.advance(2 * DAY)
    plain("erase", *by_old(subject(plain)), *WHY)
    said = expire(plain)
    assert (said["deleted_rows"], said["kept_rows"], said["left"]) == (count, 0, [])
    left = mapping(project)
    assert list(left) == [EntityKey(key_partition(SCRIPT), "all")]
    for named in (*ways, ("--old", "never", "was there")):
        document = plain("lookup", *named, *WHY, "--json", code=1).json
        if named != ways[2]:
            assert document["erased_on"] == "2024-04-11"
    assert "mapping       erased; last on 2024-04-11" in plain("status").out
    assert expire(plain)["cohorts"] == []
    assert [one.event for one in erasures(project)][-2:] == ["erasure-begun", "erasure-ended"]


def test_rows_that_are_younger_than_the_keeping_time_stay_and_are_told(plain: Commands) -> None:
    project = plain.project
    [at, stood] = next(iter(mapping(project, "f.").items()))
    project.clock.advance(120 * DAY)
    put(project, stood)
    said = plain("expire", *CONFIRMED, code=1)
    assert "1 mapping rows" in said.err
    assert set(mapping(project)) == {at, EntityKey(key_partition(SCRIPT), "all")}
    assert "mapping       over" in plain("status").out
    project.clock.advance(100 * DAY)
    assert expire(plain)["deleted_rows"] == 1
    assert list(mapping(project)) == [EntityKey(key_partition(SCRIPT), "all")]
    assert plain("status", "--json").json["migrations"][0]["mapping"][0]["erased_on"] == "2024-04-30"


def test_a_row_that_changes_while_it_is_deleted_stays(plain: Commands) -> None:
    project = plain.project
    project.clock.advance(120 * DAY)
    table = project.restricted.table(MAPPING_TABLE)

    async def write(call: Call) -> None:
        if call.action == "delete" and call.table == MAPPING_TABLE:
            project.restricted.gate = instant_gate
            await table.merge(content_of(call.operations[0].row))

    project.restricted.gate = write
    assert expire(plain, code=1)["kept_rows"] == 1


@pytest.mark.parametrize("at", others_in_soak(range(20, 60, 4), kept=[24, 44]))
def test_cut_off_anywhere_the_command_empties_the_rest(lives: Lives, at: int) -> None:
    """A look-up meanwhile says that it was erased, whether its own row is gone already or not known."""
    plain = two_months(lives, PLAIN_USERS)
    project = plain.project
    project.clock.advance(120 * DAY)
    with killed(project, at):
        expire(plain)
    assert len(mapping(project, "f.")) > 0, "forward rows go last"
    if tombstones(project, "k"):
        plain("lookup", "--old", "never", "was there", *WHY, code=1)
    expire(plain)
    assert list(mapping(project)) == [EntityKey(key_partition(SCRIPT), "all")]
    first, second = erasures(project)
    assert second.details["begun"] == first.seq


def test_half_emptied_nothing_known_becomes_unknown(lives: Lives) -> None:
    """A reverse row without its forward row would lead to nothing: reverse rows go first."""
    plain = two_months(lives, PLAIN_USERS)
    project = plain.project
    many_look_ups(project)
    rows = rows_of(PLAIN_USERS)
    ways = [named for row in rows for named in (by_old(row), by_new(plain, row))]
    project.clock.advance(120 * DAY)
    with killed(project, when=lambda _: len(mapping(project, "f.")) == len(rows) // 2):
        expire(plain)
    assert len(mapping(project, "f.")) == len(rows) // 2
    for named in ways:
        told = plain("lookup", *named, *WHY, "--json", code=None).json
        assert told["unknown"] == 0


def test_rows_put_back_into_a_mapping_that_expired_are_told_and_not_shown(plain: Commands) -> None:
    project, row = plain.project, subject(plain)
    before = mapping(project)
    project.clock.advance(120 * DAY)
    expire(plain)
    for kept in before.values():
        put(project, kept)
    said = plain("lookup", *by_old(row), *WHY, code=1)
    assert "stands there again" in said.err and said.out == ""


def test_a_mapping_in_the_clear_has_no_cohorts(plain: Commands) -> None:
    said = plain("expire", "--cohort", "2024-01", *WHY, code=2)
    assert f"rekey expire {SCRIPT}" in said.err


# --- status, doctor, evidence -------------------------------------------------------------------------------


def doctor(rekey: Commands) -> list[dict[str, Any]]:
    """Return what the doctor finds in the restricted store, as if both accounts answered."""
    from rekey.doctor.judge import examine
    from rekey.doctor.observe import see_configuration, see_migration, see_migrations

    config = rekey.project.config
    [script] = see_migrations(config, see_configuration(config).secrets).scripts
    stored = asyncio.run(see_migration(rekey.project.restricted, script, gates=config.gates))
    return [
        {"code": one.code, "command": one.command, "seen": one.seen}
        for one in examine(changed(stored=(stored,))).findings
        if one.code in ("mapping-over", "data-key-returned")
    ]


def test_status_and_doctor_say_what_is_over_and_the_command_that_erases_it(rekey: Commands) -> None:
    assert "mapping       kept until 2024-05-11 00:00:00Z; cohort 2024-01 is the first of 2" in (
        rekey("status").out
    )
    assert doctor(rekey) == []
    with rekey.project.session() as session:
        prove(session.config, session.scripts[SCRIPT], session.state)
    rekey("retire", "--table", "Users", "--no-backup", "a test")
    rekey.project.clock.advance(LEASE_S + 131 * DAY)
    told = rekey("status").out
    assert f"mapping       over: 2024-01; `rekey expire {SCRIPT}` erases it" in told
    assert f"next          rekey expire {SCRIPT} --confirm {SCRIPT}" in told
    [found] = doctor(rekey)
    assert (found["code"], "2024-01" in found["seen"]) == ("mapping-over", True)
    command = found["command"].split()[1:]
    rekey(*command)
    assert doctor(rekey) == []
    assert "mapping       kept until 2024-06-09" in rekey("status").out
    seen = rekey("status", "--json").json["migrations"][0]["mapping"]
    assert [(one["cohort"], one["over"], one["erased_on"]) for one in seen] == [
        ("2024-01", False, "2024-05-11"),
        ("2024-02", False, ""),
    ]


def test_the_evidence_shows_what_was_erased_and_holds(rekey: Commands) -> None:
    public = with_key(rekey.project.folder)
    row = subject(rekey)
    row_id = by_id(rekey, row)[1]
    rekey("erase", *by_old(row), "--reason", "request <17>")
    rekey.project.clock.advance(200 * DAY)
    rekey("expire", *CONFIRMED)
    folder = exported(rekey)
    assert checked(folder, public).is_right
    report = (folder / "data" / "report.html").read_text("utf-8")
    section = report[report.index("<h2>Erasures</h2>") : report.index("<h2>Audit log</h2>")]
    for said in (row_id, "request &lt;17&gt;", "forward rows 1, reverse rows 1", "2024-01, 2024-02"):
        assert said in section.replace("source rows 1, ", "")
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"somebody" not in everything


def test_an_erasure_that_was_not_ended_is_shown_as_such(rekey: Commands) -> None:
    with killed(rekey.project, when=replaces_mapping):
        rekey("expire", "--cohort", "2024-02", *WHY)
    report = (exported(rekey) / "data" / "report.html").read_text("utf-8")
    assert '<span class="bad">not ended</span>' in report


def test_retiring_the_source_asks_for_no_other_evidence_than_before(rekey: Commands) -> None:
    """What was proved since `complete` counts, whatever was erased behind it."""
    with rekey.project.session() as session:
        prove(session.config, session.scripts[SCRIPT], session.state)
    rekey("erase", *by_old(subject(rekey)), *WHY)
    rekey("retire", "--table", "Users", "--no-backup", "a test")
    assert not asyncio.run(rekey.project.tables.table_exists("Users"))
