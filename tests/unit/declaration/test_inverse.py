"""Target keys are inverted without a row where the declaration proves it; other declarations are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey import Index, Migration, RowKind, Target, keys, rows
from rekey.declaration.keys.base import Expression, InvalidDeclaration
from rekey.declaration.mapper import Mapper
from rekey.errors import RowRefused
from rekey.model import EntityKey, Row, key_of
from tests.worlds.small import INVERTED

PARTITION, ROW = keys.prop("PartitionKey"), keys.prop("RowKey")
PADDED = keys.zero_pad(6, "RowKey")
BUCKET = keys.bucket(1_000, "crc32", ROW, prefix="p")
PROVEN: dict[str, tuple[Expression, Expression]] = {
    "kept": (keys.keep(), keys.keep()),
    "exchanged": (ROW, PARTITION),
    "prefix": (keys.literal("DE_") + PARTITION, keys.literal("U:") + ROW + keys.literal("!")),
    "both in one": (keys.literal("all"), PADDED + keys.literal("_") + PARTITION),
    "joined": (keys.join(",", BUCKET, PARTITION), keys.join("-", keys.literal("x"), ROW)),
    "held twice": (PARTITION, PADDED + ROW),
    "padded": (PARTITION, PADDED),
}
UNPROVEN: dict[str, tuple[Expression, Expression, str]] = {
    "content": (PARTITION, keys.inverted_ticks("Created") + keys.literal("_") + ROW, "it reads Created"),
    "two of unknown length": (keys.literal("all"), keys.join("_", PARTITION, ROW), "unknown length"),
    "folded": (PARTITION, keys.lower(ROW), "cannot be inverted"),
    "hashed": (PARTITION, keys.hashed("sha256", ROW), "cannot be inverted"),
    "lost": (PARTITION, keys.literal("one"), "no new key holds the old RowKey"),
    "secret": (PARTITION, keys.opaque(ROW, domain="user", secret="users"), "needs a secret"),
    "secret in a bucket": (
        keys.bucket(9, "crc32", keys.opaque(ROW, domain="user", secret="users")) + PARTITION,
        ROW,
        "needs a secret",
    ),
    "default": (PARTITION, ROW + keys.zero_pad(3, keys.prop("Age", default="0")), "it reads Age"),
}
TEXTS = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/\\#?"), min_size=1, max_size=9
)
NUMBERS = st.integers(0, 1_200_000).map(str) | st.from_regex("[0-9]{1,7}", fullmatch=True)


def migration(partition_key: Expression, row_key: Expression, **more: Any) -> Migration:
    target = Target("New", partition_key=partition_key, row_key=row_key)
    return Migration(source="Old", target=target, **{"capture": "delta", "mapping": "none", **more})


@pytest.mark.parametrize("name", PROVEN)
@given(data=st.data())
def test_the_inverse_of_a_target_key_is_its_one_source_key(name: str, data: st.DataObject) -> None:
    mapper = Mapper(migration(*PROVEN[name]), {})
    row_keys = NUMBERS if PADDED in [*PROVEN[name]] or name in ("both in one", "held twice") else TEXTS
    row: Row = {"PartitionKey": data.draw(TEXTS), "RowKey": data.draw(row_keys)}
    try:
        [(_, target)] = mapper.map(row)
    except RowRefused as refused:
        assert refused.code in ("leading-zero", "out-of-range", "key-too-long")
        return
    assert mapper.source_key(target) == key_of(row)
    assert mapper.target_keys(key_of(row)) == [(0, key_of(target))]


@pytest.mark.parametrize("name", PROVEN)
@given(partition=TEXTS, row=TEXTS)
def test_a_key_that_no_source_key_maps_to_is_nobodys(name: str, partition: str, row: str) -> None:
    mapper, target = Mapper(migration(*PROVEN[name]), {}), EntityKey(partition, row)
    try:
        source = mapper.source_key({"PartitionKey": partition, "RowKey": row})
    except RowRefused as refused:
        assert refused.code == "no-old-key"
        return
    assert mapper.target_keys(source) == [(0, target)]


@pytest.mark.parametrize("name", UNPROVEN)
def test_keys_that_cannot_be_inverted_are_refused_on_load(name: str) -> None:
    *expressions, problem = UNPROVEN[name]
    with pytest.raises(InvalidDeclaration) as refused:
        migration(*expressions)
    assert problem in refused.value.problem
    assert refused.value.field.startswith("target")
    assert 'take mapping="none" out' in refused.value.cure


INDEX = Index("ByName", partition_key=keys.prop("Name"), row_key=ROW)
KIND = RowKind("all", when=rows.every(), target=replace(INVERTED.target, properties=()))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"indexes": [INDEX]}, "there are indexes"),
        ({"kinds": [KIND], "target": None}, "there are kinds"),
    ],
    ids=["index", "kinds"],
)
def test_what_a_computed_mapping_cannot_do_is_refused_on_load(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidDeclaration, match=problem) as refused:
        replace(INVERTED, **more)
    assert refused.value.field == "mapping"


def test_rollback_needs_no_copy_of_the_old_keys() -> None:
    """The keys of the new row say them."""
    plain = replace(INVERTED, mapping=None, reverse=False)
    with pytest.raises(InvalidDeclaration, match="could not be rolled back"):
        replace(plain, reverse=True)
    assert INVERTED.reverse


def test_the_digest_covers_it_and_scripts_without_it_keep_theirs() -> None:
    plain = replace(INVERTED, mapping="plain", reverse=False)
    assert "mapping" not in plain.canonical()
    assert plain.digest() == replace(plain, mapping=None).digest() != replace(plain, mapping="none").digest()


def test_a_number_that_begins_with_a_zero_is_refused_only_where_it_is_read_back() -> None:
    row: Row = {"PartitionKey": "p", "RowKey": "07"}
    stored = migration(PARTITION, PADDED, mapping="plain", reverse=False)
    assert Mapper(stored, {}).map(row)[0].row["RowKey"] == "000007"
    with pytest.raises(RowRefused) as refused:
        Mapper(migration(PARTITION, PADDED), {}).map(row)
    assert refused.value.code == "leading-zero"


def test_rows_outside_the_part_are_nobodys() -> None:
    part = Mapper(replace(INVERTED, where=rows.partition_key(prefix="eu")), {})
    whole = Mapper(INVERTED, {})
    [(_, target)] = whole.map({"PartitionKey": "us", "RowKey": "ann", "Nm": "Ann"})
    assert whole.source_key(target) == EntityKey("us", "ann")
    with pytest.raises(RowRefused, match="outside the part"):
        part.source_key(target)
