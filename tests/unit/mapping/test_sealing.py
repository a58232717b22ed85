"""Sealed rows open only where they were sealed, unaltered, with the right keys; their size tells little."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey.core.safe_ids import SafeIds
from rekey.errors import ConditionFailed, Moved, RowRefused, SealedUnreadable, SecretMissing, StateUnusable
from rekey.mapping.rows import MAPPING_TABLE, MappingRows, Reservation, TargetKey
from rekey.mapping.sealing import (
    DATA_KEY,
    FORWARD,
    INTENT,
    REVERSE,
    ROOT,
    DataKey,
    LocalWrappingKey,
    SealedKeys,
    Sealer,
    WrappingKeys,
    cohort_of,
    data_key_row,
    ids_key,
    new_data_key,
    padded,
    read_data_key,
    size_class,
    unpadded,
)
from rekey.mapping.store import Keyring
from rekey.model import ETAG, EntityKey, Row, content_of
from rekey.tables.base import Operation, Table
from tests.fakes.memory import MemoryTableService

OLD = EntityKey("eu", "ann@example.com")
OTHER = EntityKey("eu", "bob@example.com")
NEW = TargetKey(0, "eu", "3m9k2v7c0q1x")
WRAPPING = LocalWrappingKey(b"w" * 32)
KEY = new_data_key("2024-05")
AT = EntityKey("0001.f.3", "3m9k")

keys = st.builds(EntityKey, st.text(max_size=40), st.text(max_size=40))


def sealer(key: DataKey = KEY) -> Sealer:
    made = Sealer()
    made.use(key)
    return made


def rows(key: DataKey = KEY) -> MappingRows:
    return MappingRows("0001", "Users", ["UsersV2", "UsersByTag"], SafeIds(bytes(32)), sealer(key))


def sealed_row(plain: bytes = b"ann", purpose: str = INTENT) -> Row:
    return {"PartitionKey": AT.partition, "RowKey": AT.row} | sealer().seal(purpose, "t", AT, plain)


def read_back(row: Row) -> Row:
    return {**row, ETAG: "e"}


@given(keys, st.lists(st.builds(TargetKey, st.integers(0, 2), st.text(max_size=20), st.text(max_size=20))))
def test_what_is_sealed_is_read_back(source: EntityKey, targets: list[TargetKey]) -> None:
    mapping = rows()
    forward = mapping.read_forward(read_back(mapping.forward_row(source, targets)))
    assert (forward.source, forward.targets) == (source, frozenset(targets))
    assert mapping.read_owner(read_back(mapping.reverse_row(source, EntityKey("p", "r")))).source == source


def test_a_reservation_is_sealed_with_the_rest() -> None:
    mapping = rows()
    reserved = Reservation(EntityKey("2024-01", "ann@example.com"), frozenset({"w1", "w2"}), 30.0)
    row = mapping.forward_row(OLD, [NEW], reserved)
    assert mapping.read_forward(read_back(row)).reserved == reserved
    assert mapping.read_listing(row) == (OLD, frozenset([NEW]))
    assert not any(name.startswith("Reserved") for name in row)
    assert mapping.read_forward(read_back(mapping.forward_row(OLD, [NEW]))).reserved is None


def test_lone_surrogates_and_every_allowed_character_come_back() -> None:
    for odd in ("\ud800", "é", "𝔸", "'%+ .", ""):
        mapping = rows()
        source, target = EntityKey(odd, odd), TargetKey(1, odd, odd)
        assert mapping.read_listing(mapping.forward_row(source, [target])) == (source, frozenset([target]))


def test_nothing_of_a_key_is_in_a_sealed_row() -> None:
    for row in (rows().forward_row(OLD, [NEW]), rows().reverse_row(OLD, NEW.key)):
        text = str(row) + "".join(
            base64.b64decode(value).decode("latin-1") for name, value in row.items() if name == "Sealed0"
        )
        assert "example" not in text
        assert "OldRowKey" not in text
        assert set(row) == {"PartitionKey", "RowKey", DATA_KEY, "Sealed0", "Sealed0@odata.type"}


def test_two_seals_of_one_key_differ() -> None:
    assert rows().forward_row(OLD, [NEW])["Sealed0"] != rows().forward_row(OLD, [NEW])["Sealed0"]


def test_a_swapped_row_is_found() -> None:
    mapping = rows()
    ann, bob = mapping.forward_row(OLD, [NEW]), mapping.forward_row(OTHER, [NEW])
    swapped = {**bob, "Sealed0": ann["Sealed0"]}
    with pytest.raises(SealedUnreadable, match="altered, or belongs to another row") as caught:
        mapping.read_source(swapped)
    assert caught.value.row == bob["RowKey"]
    assert "example" not in str(caught.value)


def test_a_forward_row_is_none_that_reverses() -> None:
    mapping = rows()
    forward = mapping.forward_row(OLD, [NEW])
    reverse = mapping.reverse_row(OLD, NEW.key)
    with pytest.raises(SealedUnreadable):
        mapping.read_source({**reverse, "Sealed0": forward["Sealed0"]})


@pytest.mark.parametrize("position", [0, 11, 12, 40, -1])
def test_one_altered_byte_is_found(position: int) -> None:
    row = sealed_row()
    data = bytearray(base64.b64decode(row["Sealed0"]))
    data[position] ^= 1
    with pytest.raises(SealedUnreadable, match="altered"):
        sealer().unseal(INTENT, "t", {**row, "Sealed0": base64.b64encode(data).decode()})


@pytest.mark.parametrize(
    ("change", "table", "purpose"),
    [
        ({}, "other", INTENT),
        ({}, "t", REVERSE),
        ({"PartitionKey": "0001.f.4"}, "t", INTENT),
        ({"RowKey": "3m9l"}, "t", INTENT),
        ({"Sealed0": "%%"}, "t", INTENT),
        ({"Sealed0": ""}, "t", INTENT),
        ({"Sealed0": None}, "t", INTENT),
    ],
    ids=["table", "purpose", "partition", "row", "no base64", "empty", "none"],
)
def test_content_is_bound_to_where_it_stands(change: Row, table: str, purpose: str) -> None:
    row = sealed_row()
    assert sealer().unseal(INTENT, "t", row) == b"ann"
    with pytest.raises(SealedUnreadable):
        sealer().unseal(purpose, table, {**row, **change})


def test_lanes_have_keys_of_their_own() -> None:
    row = {"PartitionKey": AT.partition, "RowKey": AT.row}
    row |= sealer().seal(FORWARD, "t", AT, b"ann", lane="3")
    with pytest.raises(SealedUnreadable):
        sealer().unseal(FORWARD, "t", row, lane="4")


def test_another_data_key_does_not_open_although_it_has_the_name() -> None:
    with pytest.raises(SealedUnreadable, match="altered"):
        sealer(DataKey(KEY.name, KEY.cohort, bytes(32))).unseal(INTENT, "t", sealed_row())


def test_a_data_key_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(SealedUnreadable, match="data key is not in the restricted store"):
        sealer(new_data_key("2024-06")).unseal(INTENT, "t", sealed_row())


def test_a_row_in_the_clear_is_not_taken_for_a_sealed_one() -> None:
    """Else whoever may write to the restricted store could plant mappings of his own."""
    plain = MappingRows("0001", "Users", ["UsersV2"], SafeIds(bytes(32)))
    with pytest.raises(SealedUnreadable):
        rows().read_source(plain.forward_row(OLD, [NEW]))


def test_lengths_of_addresses_do_not_show() -> None:
    short, long = EntityKey("eu", "a@b.c"), EntityKey("eu", "somebody.with.a.name@mail.example")
    sizes = {len(rows().forward_row(key, [NEW])["Sealed0"]) for key in (short, long)}
    assert len(sizes) == 1


@given(st.binary(max_size=70_000))
def test_padding_comes_off_again_and_reaches_a_size_class(plain: bytes) -> None:
    assert unpadded(padded(plain)) == plain
    assert len(padded(plain)) == size_class(len(plain) + 4)


def test_size_classes() -> None:
    assert [size_class(size) for size in (1, 128, 129, 256, 65_536, 65_537, 131_073)] == [
        128, 128, 256, 256, 65_536, 131_072, 196_608,
    ]  # fmt: skip


def test_a_fan_out_that_fits_in_the_clear_fits_sealed_and_a_larger_one_is_refused() -> None:
    targets = [TargetKey(1, "tag", f"{number:050}") for number in range(6_500)]
    row = rows().forward_row(OLD, targets)
    assert rows().read_listing(row)[1] == frozenset(targets)
    properties = [value for name, value in row.items() if name.startswith("Sealed") and "@" not in name]
    assert max(len(base64.b64decode(value)) for value in properties) <= 65_535
    with pytest.raises(RowRefused, match="fans out"):
        rows().forward_row(OLD, [TargetKey(1, "tag", f"{number:050}") for number in range(8_000)])


# --- data keys -------------------------------------------------------------------------------------------


def test_a_wrapped_data_key_is_read_back_and_shows_nothing() -> None:
    row = data_key_row("0001", KEY, WRAPPING.wrap(KEY.key))
    assert read_data_key("0001", row, WRAPPING) == KEY
    assert KEY.key.hex() not in str(row)
    assert base64.b64encode(KEY.key).decode() not in str(row)
    assert KEY.key.hex() not in repr(KEY)


def test_another_wrapping_key_is_refused_by_name() -> None:
    row = data_key_row("0001", KEY, WRAPPING.wrap(KEY.key))
    other = WrappingKeys(LocalWrappingKey(b"x" * 32))
    with pytest.raises(Moved, match=WRAPPING.name) as caught:
        read_data_key("0001", row, other)
    assert other.name in caught.value.what
    assert "[sealing.previous]" in caught.value.hint


def test_a_previous_wrapping_key_still_unwraps_and_the_present_one_wraps() -> None:
    both = WrappingKeys(LocalWrappingKey(b"x" * 32), WRAPPING)
    row = data_key_row("0001", KEY, WRAPPING.wrap(KEY.key))
    assert read_data_key("0001", row, both) == KEY
    assert both.wraps(both.wrap(KEY.key).by)
    assert not both.wraps(row["WrappedBy"])


@pytest.mark.parametrize(
    "change",
    [
        {"RowKey": "2024-06"},
        {"Name": "2024-05-zzzzzzzz"},
        {"Wrapped": "AAAA"},
        {"Check": "AAAA"},
        {"Name": None},
    ],
    ids=["moved to another cohort", "renamed", "altered", "other check", "no name"],
)
def test_an_altered_or_moved_data_key_is_refused(change: Row) -> None:
    row = data_key_row("0001", KEY, WRAPPING.wrap(KEY.key))
    with pytest.raises(Moved, match="does not unwrap"):
        read_data_key("0001", {**row, **change}, WRAPPING)
    with pytest.raises(Moved, match="does not unwrap"):
        read_data_key("0002", row, WRAPPING)


@pytest.mark.parametrize("secret", [b"", b"s" * 31])
def test_a_short_wrapping_key_is_refused(secret: bytes) -> None:
    with pytest.raises(SecretMissing, match="at least 32"):
        LocalWrappingKey(secret)


def test_ids_of_a_sealed_migration_need_the_wrapping_key_not_the_store_alone() -> None:
    root, other, id_key = new_data_key(ROOT), new_data_key(ROOT), bytes(range(32))
    told = SafeIds(id_key).long("Users", OLD)
    assert SafeIds(ids_key(root, id_key)).long("Users", OLD) != told
    assert ids_key(root, id_key) != ids_key(other, id_key)
    assert ids_key(root, id_key) != ids_key(root, bytes(32))


class Clock:
    """A month that the test moves."""

    def __init__(self, month: int = 5) -> None:
        self.month = month

    def __call__(self) -> datetime:
        return datetime(2024, self.month, 1, tzinfo=UTC)


async def mapping_table(memory: MemoryTableService) -> Table:
    await memory.create_table(MAPPING_TABLE)
    return memory.table(MAPPING_TABLE)


async def test_each_month_has_one_data_key(memory: MemoryTableService) -> None:
    table, clock = await mapping_table(memory), Clock()
    first, second = (Keyring(table, "0001", WRAPPING, now=clock) for _ in range(2))
    await asyncio.gather(first.begin(), second.begin())
    await asyncio.gather(first.fresh(), second.fresh())
    assert first.root == second.root
    sealed = first.sealer.seal(INTENT, "t", AT, b"may")
    row = {"PartitionKey": AT.partition, "RowKey": AT.row} | sealed
    assert second.sealer.unseal(INTENT, "t", row) == b"may"
    clock.month = 6
    await first.fresh()
    june = {"PartitionKey": AT.partition, "RowKey": AT.row} | first.sealer.seal(INTENT, "t", AT, b"june")
    assert june[DATA_KEY].startswith("2024-06-")
    assert not second.sealer.knows(june[DATA_KEY])
    await second.learn([june, row, {"PartitionKey": "", "RowKey": ""}])
    assert [second.sealer.unseal(INTENT, "t", one) for one in (june, row)] == [b"june", b"may"]
    assert {one["RowKey"] for one in memory.dump(MAPPING_TABLE)} == {"root", "2024-05", "2024-06"}


class Counting(LocalWrappingKey):
    """Counts how often it is asked."""

    asked = 0

    def unwrap(self, wrapped: object) -> bytes:
        self.asked += 1
        return super().unwrap(wrapped)  # type: ignore[arg-type]


async def test_a_process_unwraps_each_data_key_once(memory: MemoryTableService) -> None:
    table = await mapping_table(memory)
    before = Keyring(table, "0001", WRAPPING)
    await before.begin()
    await before.fresh()
    wrapping = Counting(b"w" * 32)
    keyring = Keyring(table, "0001", wrapping)
    await keyring.open()
    await keyring.open()
    await asyncio.gather(*(keyring.fresh() for _ in range(20)))
    row = {"PartitionKey": AT.partition, "RowKey": AT.row} | keyring.sealer.seal(INTENT, "t", AT, b"x")
    await asyncio.gather(*(keyring.learn([row]) for _ in range(20)))
    assert wrapping.asked == 2


async def test_a_migration_without_its_root_key_is_not_given_another(memory: MemoryTableService) -> None:
    table = await mapping_table(memory)
    with pytest.raises(SealedUnreadable, match="root key of the migration is gone"):
        await Keyring(table, "0001", WRAPPING).open()
    assert memory.dump(MAPPING_TABLE) == []


async def test_late_delete_keeps_new_key(memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root key stands in the same place."""
    table = await mapping_table(memory)
    await Keyring(table, "0001", WRAPPING).begin()
    write, sent = table.write, []

    async def sending(operation: Operation) -> str | None:
        sent.append(operation)
        return await write(operation)

    monkeypatch.setattr(table, "write", sending)
    await Keyring(table, "0001", WRAPPING).forget()
    [deleted] = sent
    await Keyring(table, "0001", WRAPPING).begin()
    with pytest.raises(ConditionFailed):
        await write(deleted)
    await Keyring(table, "0001", WRAPPING).open()


async def test_deletion_beats_rewrapping(memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch) -> None:
    table = await mapping_table(memory)
    keyring = Keyring(table, "0001", WRAPPING)
    await keyring.begin()
    write, first = table.write, True

    async def meanwhile(operation: Operation) -> str | None:
        nonlocal first
        if first:
            first = False
            [row] = memory.dump(MAPPING_TABLE)
            await table.replace(content_of(row), etag="*")
        return await write(operation)

    monkeypatch.setattr(table, "write", meanwhile)
    await keyring.forget()
    assert memory.dump(MAPPING_TABLE) == []


async def test_a_changed_wrapping_key_rewraps_all_data_keys(memory: MemoryTableService) -> None:
    table = await mapping_table(memory)
    before = Keyring(table, "0001", WRAPPING)
    await before.begin()
    await before.fresh()
    present = LocalWrappingKey(b"x" * 32)
    keyring = Keyring(table, "0001", WrappingKeys(present, WRAPPING))
    await keyring.open()
    assert await keyring.rewrap() == 2
    assert await keyring.rewrap() == 0
    later = Keyring(table, "0001", WrappingKeys(present))
    await later.open()
    assert later.root == before.root


def test_cohorts_are_months() -> None:
    assert cohort_of(datetime(2024, 5, 31, tzinfo=UTC)) == "2024-05"


# --- cursors ---------------------------------------------------------------------------------------------


def test_cursors_are_sealed_bound_to_migration_and_column_and_refused_when_altered() -> None:
    texts = SealedKeys("0001", bytes(32))
    text = texts.to_text("cursor", OLD)
    assert text is not None
    assert "example" not in text
    assert texts.from_text("cursor", text) == OLD
    assert texts.to_text("cursor", None) is None
    assert texts.from_text("cursor", None) is None
    wrong = [
        (texts, "upto", text),
        (SealedKeys("0002", bytes(32)), "cursor", text),
        (SealedKeys("0001", b"x" * 32), "cursor", text),
        (texts, "cursor", text[:-4] + "AAA="),
        (texts, "cursor", '["eu","ann@example.com"]'),
    ]
    for reader, column, given_text in wrong:
        with pytest.raises(StateUnusable, match="altered, or sealed by another run"):
            reader.from_text(column, given_text)
