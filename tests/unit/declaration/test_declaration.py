"""Declarations: what contradicts itself is refused with field and cure; the digest is stable."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest

from rekey import Index, Migration, Target, keys, props
from rekey.declaration.keys import InvalidDeclaration
from rekey.declaration.keys.base import Scope, constant_prefix
from rekey.declaration.migration import required_secrets
from rekey.declaration.props import Operation

PARTITION, ROW = keys.prop("PartitionKey"), keys.prop("RowKey")


def target(table: str = "New", **changes: Any) -> Target:
    arguments = {"partition_key": PARTITION, "row_key": ROW, **changes}
    return Target(table, **arguments)


def migration(**changes: Any) -> Migration:
    arguments: dict[str, Any] = {"source": "Old", "target": target(), "capture": "delta", **changes}
    return Migration(**arguments)


def index(table: str = "Further", **changes: Any) -> Index:
    return Index(table, **{"partition_key": ROW, "row_key": PARTITION, **changes})


def secondary(begins: str = "AGE:", **changes: Any) -> Index:
    """An index of secondary rows in the table of `target()`."""
    return index("New", **{"partition_key": PARTITION, "row_key": keys.literal(begins) + ROW, **changes})


def shared(*indexes: Index, main: str = "BIB:") -> Migration:
    old_key = props.copy("RowKey", to="OldRowKey")
    return migration(target=target(row_key=keys.literal(main) + ROW, properties=[old_key]), indexes=indexes)


def properties(*operations: Any) -> Migration:
    return migration(target=target(properties=operations))


class Wrong(NamedTuple):
    make: Callable[[], Any]
    field: str
    cure: str


WRONG = {
    "bad source": Wrong(lambda: migration(source="a-b"), "source", "letter"),
    "bad target": Wrong(lambda: target("1a"), "target.table", "letter"),
    "shared by any key": Wrong(
        lambda: migration(target=target(shared=True)), "target.shared", "keys.literal"
    ),
    "shared, not a bool": Wrong(lambda: target(shared="yes"), "target.shared", "shared=True"),
    "bad index": Wrong(lambda: index(""), "index.table", "letter"),
    "reserved table": Wrong(lambda: target("tables"), "target.table", "letter"),
    "target is source": Wrong(lambda: migration(target=target("OLD")), "target.table", "new name"),
    "index is source": Wrong(lambda: migration(indexes=[index("old")]), "index[old].table", "new name"),
    "index is target": Wrong(lambda: migration(indexes=[index("NEW")]), "index[NEW].table", "spell it New"),
    "index twice": Wrong(
        lambda: migration(indexes=[index("Aaa"), index("aaa")]), "index[aaa].table", "new name"
    ),
    "secondary rows, main rows without a beginning": Wrong(
        lambda: migration(indexes=[secondary()]), "index[New AGE:].row_key", "constant text of its own"
    ),
    "secondary rows without a beginning": Wrong(
        lambda: shared(secondary("")), "index[New].row_key", "constant text of its own"
    ),
    "secondary rows with the main rows' beginning": Wrong(
        lambda: shared(secondary("BIB:")), "index[New BIB:].row_key", "give the index a table of its own"
    ),
    "a beginning that begins another": Wrong(
        lambda: shared(secondary("BIB")), "index[New BIB].row_key", "constant text of its own"
    ),
    "two kinds of secondary rows with one beginning": Wrong(
        lambda: shared(secondary("AGE:"), secondary("AGE:1")),
        "index[New AGE:1].row_key",
        "constant text of its own",
    ),
    "keep_all and keep": Wrong(
        lambda: secondary(properties=[props.keep_all(), props.keep("A")]),
        "index[New AGE:].properties",
        "leave one out",
    ),
    "unknown capture": Wrong(lambda: migration(capture="snapshot"), "capture", "dual-write"),
    "unknown mapping": Wrong(lambda: migration(mapping="open"), "mapping", 'write mapping="plain"'),
    "reverse not bool": Wrong(lambda: migration(reverse="no"), "reverse", "True or"),
    "no target": Wrong(lambda: migration(target="New"), "target", "Target(…)"),
    "no index": Wrong(lambda: migration(indexes=["Further"]), "indexes", "Index(…)"),
    "key is text": Wrong(lambda: target(row_key="RowKey"), "target.row_key", "keys.prop"),
    "key is a number": Wrong(lambda: index(row_key=3), "index[Further].row_key", "keys.prop"),
    "key is items": Wrong(lambda: target(row_key=keys.split("A", ",")), "target.row_key", "keys.prop"),
    "item in target": Wrong(lambda: target(row_key=ROW + keys.item()), "target.row_key", "Index"),
    "item without each": Wrong(lambda: index(row_key=keys.item()), "index[Further].row_key", "each="),
    "each without item": Wrong(
        lambda: index(each=keys.split("A", ",")), "index[Further].each", "keys.item()"
    ),
    "each is no split": Wrong(
        lambda: index(each=keys.prop("A"), row_key=keys.item()), "index[Further].each", "keys.split"
    ),
    "item in each": Wrong(
        lambda: index(each=keys.split(keys.item(), ","), row_key=keys.item()),
        "index[Further].each",
        "split a property",
    ),
    "pointer kept": Wrong(
        lambda: index(properties=[props.keep("MainRowKey")]), "index[Further].properties", "another name"
    ),
    "pointer made": Wrong(
        lambda: index(properties=[props.copy("A", to="MainPartitionKey")]),
        "index[Further].properties",
        "another name",
    ),
    "properties are no list": Wrong(
        lambda: target(properties=props.drop("A")), "target.properties", "properties=["
    ),
    "drop in an index": Wrong(
        lambda: index(properties=[props.drop("A")]), "index[Further].properties", "leave"
    ),
    "cast in an index of what it has not": Wrong(
        lambda: index(properties=[props.cast("A", "int64")]), "index[Further].properties", "props.keep"
    ),
    "no way back to the row key": Wrong(
        lambda: migration(target=target(row_key=keys.lower("RowKey"))), "reverse", 'props.copy("RowKey", to='
    ),
    "no way back to the partition key": Wrong(
        lambda: migration(target=target(partition_key=keys.prop("Month"))), "reverse", "reverse=False"
    ),
    "copied key that is cast": Wrong(
        lambda: migration(
            target=target(
                row_key=keys.ticks("At"),
                properties=[props.copy("RowKey", to="Number"), props.cast("Number", "int64", was="string")],
            )
        ),
        "reverse",
        "props.copy",
    ),
    "cast without inverse": Wrong(lambda: properties(props.cast("A", "int64")), "reverse", "was="),
    "computed from what only the source holds": Wrong(
        lambda: properties(props.drop("A"), props.compute("B", keys.lower("A"))), "reverse", "leave A in"
    ),
    "computed with a default from what only the source holds": Wrong(
        lambda: properties(props.drop("A"), props.compute("B", keys.prop("A", default="-"))), "reverse", "A"
    ),
    "part of a key kept": Wrong(
        lambda: target(row_key=keys.keep() + keys.literal("x")), "target.row_key", 'keys.prop("RowKey")'
    ),
    "no such account": Wrong(
        lambda: migration(target=target(table="New@elsewhere")), "target.table", '"@targets" after it'
    ),
    "key of Timestamp": Wrong(
        lambda: migration(
            target=target(
                partition_key=keys.date("yyyy", "Timestamp"),
                properties=[props.copy("PartitionKey", to="Old")],
            )
        ),
        "target.partition_key",
        "reverse=False",
    ),
    "index key of Timestamp": Wrong(
        lambda: migration(indexes=[index(partition_key=keys.date("yyyy", "Timestamp"))]),
        "index[Further].partition_key",
        "reverse=False",
    ),
}
WRONG_PROPERTIES: dict[str, tuple[list[Any], str]] = {
    "keep_all in a main target": ([props.keep_all()], "leave props.keep_all out"),
    "no operation": (["Ssn"], "props."),
    "one name twice": ([props.copy("A", to="C"), props.rename("B", "C")], "different names"),
    "set and copy": ([props.copy("A", to="C"), props.set("C", 1)], "different names"),
    "two keeps": ([props.keep("A"), props.keep("B")], "one props.keep"),
    "keep and drop": ([props.keep("A"), props.drop("B")], "leave"),
    "dropped twice": ([props.drop("A"), props.drop("A")], "once"),
    "renamed twice": ([props.rename("A", "B"), props.rename("A", "C")], "one"),
    "rename of dropped": ([props.drop("A"), props.rename("A", "B")], "props.drop"),
    "rename of kept": ([props.keep("A"), props.rename("A", "B")], "props.keep"),
    "computed and set": ([props.compute("A", "B"), props.set("A", 1)], "different names"),
    "computed and kept": ([props.keep("A"), props.compute("A", "B")], "props.compute"),
    "set of dropped": ([props.drop("A"), props.set("A", 1)], "props.set"),
    "copy onto kept": ([props.keep("A"), props.copy("B", to="A")], "another name"),
    "cast of dropped": ([props.drop("A"), props.cast("A", "int64", was="int32")], "new row"),
    "cast of renamed": ([props.rename("A", "B"), props.cast("A", "int64", was="int32")], "new row"),
    "cast of set": ([props.set("A", 1), props.cast("A", "int64", was="int32")], "props.set"),
    "cast twice": ([props.cast("A", "int64", was="int32"), props.cast("A", "string", was="int32")], "one"),
}


@pytest.mark.parametrize("case", [*WRONG, *WRONG_PROPERTIES])
def test_a_contradiction_is_refused_with_field_and_cure(case: str) -> None:
    if case in WRONG:
        make, field, cure = WRONG[case]
    else:
        operations, cure = WRONG_PROPERTIES[case]
        make, field = partial(properties, *operations), "target.properties"
    with pytest.raises(InvalidDeclaration) as caught:
        make()
    assert caught.value.field == field
    assert cure in caught.value.cure
    assert caught.value.problem


@pytest.mark.parametrize(
    ("row_key", "operations"),
    [
        ("keep", [props.compute("A", keys.lower("A"))]),
        ("keep", [props.drop("A"), props.compute("B", keys.literal("x") + keys.prop("A"))]),
        ("A", [props.drop("A"), props.copy("RowKey", to="Old"), props.compute("B", keys.lower("A"))]),
        ("keep", [props.drop("A"), props.compute("B", keys.lower("RowKey"))]),
    ],
    ids=["in place", "text that tells it", "told by a key", "of a key"],
)
def test_a_computed_property_has_a_way_back(row_key: str, operations: list[Operation]) -> None:
    key = keys.keep() if row_key == "keep" else keys.prop(row_key)
    assert migration(target=target(row_key=key, properties=operations)).reverse


@pytest.mark.parametrize(
    "changes",
    [
        {"target": target(row_key=keys.lower("RowKey"))},
        {"target": target(properties=[props.cast("A", "int64")])},
        {"target": target(properties=[props.drop("A"), props.compute("B", keys.lower("A"))])},
        {"target": target(partition_key=keys.date("yyyy", "Timestamp"))},
    ],
)
def test_what_has_no_way_back_is_accepted_with_reverse_false(changes: dict[str, Any]) -> None:
    assert not migration(reverse=False, **changes).reverse


def test_old_keys_are_found_in_copies_and_in_keys_used_as_they_were() -> None:
    copied = target(
        partition_key=keys.literal("x"),
        row_key=keys.ticks("At"),
        properties=[props.copy("PartitionKey", to="OldPk"), props.copy("RowKey", to="OldRk")],
    )
    assert copied.old_key_fields() == ("OldPk", "OldRk")
    swapped = target(partition_key=ROW, row_key=PARTITION)
    assert swapped.old_key_fields() == ("RowKey", "PartitionKey")
    assert target(row_key=keys.lower("RowKey")).old_key_fields() == ("PartitionKey", None)


def test_a_key_that_is_kept_is_the_property_itself_and_a_table_may_keep_its_name_in_another_account() -> None:
    said = target(table="Old@targets", partition_key=keys.keep(), row_key=keys.keep())
    meant = target(table="Old@targets", partition_key=keys.prop("PartitionKey"), row_key=keys.prop("RowKey"))
    assert said == meant
    moves = migration(target=said)
    assert moves.uses_target_account
    assert moves.tables == ("Old@targets",)
    assert moves.digest() == migration(target=meant).digest()
    assert not migration().uses_target_account


def test_capture_is_required_by_keyword() -> None:
    with pytest.raises(TypeError, match="capture"):
        Migration(source="Old", target=target())  # type: ignore[call-arg]


def test_secrets_are_listed_once_from_wherever_they_are_needed() -> None:
    one = keys.opaque("RowKey", domain="d", secret="one")
    made = migration(
        target=target(row_key=one + keys.literal("x"), properties=[props.copy("RowKey", to="Old")]),
        indexes=[
            index(
                each=keys.split(keys.opaque("A", domain="d", secret="three"), ","),
                partition_key=keys.join(
                    "_", keys.item(), keys.hashed("md5", keys.opaque("B", domain="d", secret="two"))
                ),
                row_key=one,
            )
        ],
    )
    assert required_secrets(made) == ["one", "three", "two"]
    assert required_secrets(migration()) == []


def test_key_inputs_are_what_keys_read_not_what_properties_carry() -> None:
    made = migration(
        target=target(properties=[props.rename("A", "B")]),
        indexes=[index(each=keys.split("Tags", ","), partition_key=keys.item(), row_key=keys.slug("Author"))],
    )
    assert made.key_inputs == {"PartitionKey", "RowKey", "Tags", "Author"}


FULL = Migration(
    source="Old",
    target=Target(
        "New",
        partition_key=keys.join("_", keys.prop("A", default="é"), keys.date("yyyy-MM", "At")),
        row_key=keys.opaque("RowKey", domain="user", secret="s"),
        properties=[
            props.copy("PartitionKey", to="OldPk"),
            props.copy("RowKey", to="OldRk"),
            props.rename("Nm", "Name"),
            props.drop("Ssn"),
            props.set("Version", 2),
            props.set("Ratio", float("nan")),
            props.cast("N", "int64", was="int32"),
        ],
    ),
    indexes=[
        Index(
            "ByTag",
            each=keys.split("Tags", ",", default=""),
            partition_key=keys.item(),
            row_key=keys.bucket(16, "crc32", keys.regex("(.)", 1, keys.part("-", -1, "RowKey"))),
            properties=[props.keep("Title")],
            allow_empty=True,
        )
    ],
    capture="dual-write",
)


FULL_JSON = """
{"capture":"dual-write","format":"rekey/declaration/v1","indexes":[{"allow_empty":true,
"each":{"of":{"default":"","name":"Tags","op":"prop"},"op":"split","separator":","},
"partition_key":{"op":"item"},"properties":[{"names":["Title"],"op":"keep"}],
"row_key":{"algorithm":"crc32","count":16,"of":{"group":1,"of":{"index":-1,"of":{"default":null,
"name":"RowKey","op":"prop"},"op":"part","separator":"-"},"op":"regex","pattern":"(.)"},
"op":"bucket","prefix":"partition-"},"table":"ByTag"}],"reverse":true,"source":"Old",
"target":{"allow_empty":false,"partition_key":{"op":"join","parts":[{"default":"é","name":"A",
"op":"prop"},{"format":"yyyy-MM","of":{"default":null,"name":"At","op":"prop"},"op":"date"}],
"separator":"_"},"properties":[{"op":"copy","source":"PartitionKey","to":"OldPk"},{"op":"copy",
"source":"RowKey","to":"OldRk"},{"new":"Name","old":"Nm","op":"rename"},{"names":["Ssn"],
"op":"drop"},{"name":"Version","op":"set","type":"Edm.Int32","value":"2"},{"name":"Ratio",
"op":"set","type":"Edm.Double","value":"NaN"},{"name":"N","op":"cast","to":"Edm.Int64",
"was":"Edm.Int32"}],"row_key":{"domain":"user","op":"opaque","parts":[{"default":null,
"name":"RowKey","op":"prop"}],"secret":"s"},"table":"New"}}
"""
FULL_DIGEST = "bf328519975de78099111e20988c89efa1f5bbdf73df5f04a02355713c31af5a"


def test_the_canonical_form_and_its_digest_never_change() -> None:
    """A digest is recorded when a migration starts: another one later would stop it.

    The JSON is written out here; if this test fails, the change breaks migrations that are under way.
    """
    expected = json.dumps(json.loads(FULL_JSON), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    plain = replace(FULL, mapping="plain")
    assert plain.canonical_json() == expected
    assert plain.digest() == hashlib.sha256(expected.encode("utf-8")).hexdigest()
    assert plain.digest() == FULL_DIGEST


def test_the_mapping_is_sealed_where_a_key_is_opaque_unless_it_is_said_to_be_plain() -> None:
    assert (migration().mapping, migration(mapping="sealed").mapping) == ("plain", "sealed")
    opaque = migration(target=target(row_key=keys.opaque("RowKey", domain="d", secret="s")), reverse=False)
    assert (opaque.mapping, opaque.is_sealed) == ("sealed", True)
    assert replace(opaque, mapping="plain").is_sealed is False
    assert opaque.canonical() == replace(opaque, mapping="plain").canonical() | {"mapping": "sealed"}
    assert "mapping" not in migration().canonical()
    assert migration().digest() == migration(mapping="plain").digest() != migration(mapping="sealed").digest()
    below = [index(row_key=keys.join("_", keys.opaque("RowKey", domain="d", secret="s"), keys.literal("x")))]
    assert migration(indexes=below).is_sealed


def test_equal_declarations_are_equal_and_pickle() -> None:
    assert migration() == migration()
    assert migration().digest() == migration().digest()
    copied = pickle.loads(pickle.dumps(FULL))  # noqa: S301 - our own bytes
    assert copied == FULL
    assert copied.digest() == FULL.digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "Older"},
        {"capture": "dual-write"},
        {"reverse": False},
        {"target": target("Newer")},
        {"target": target(allow_empty=True)},
        {"target": target(partition_key=ROW, row_key=PARTITION)},
        {"target": target(properties=[props.drop("A")])},
        {"indexes": [index()]},
    ],
)
def test_every_change_changes_the_digest(changes: dict[str, Any]) -> None:
    assert migration(**changes).digest() != migration().digest()


@pytest.mark.parametrize(
    ("indexes", "main", "said"),
    [
        ([secondary()], "", "of target they begin with no constant text"),
        ([secondary("")], "BIB:", "of index[New] they begin with no constant text"),
        ([secondary("BIB")], "BIB:", "'BIB' and 'BIB:' do not tell them apart"),
    ],
)
def test_the_refusal_names_the_ambiguous_prefixes(indexes: list[Index], main: str, said: str) -> None:
    with pytest.raises(InvalidDeclaration, match="RowKeys of rows that share New") as caught:
        shared(*indexes, main=main)
    assert said in caught.value.problem


def test_an_index_shares_the_main_table_where_beginnings_tell_its_rows_apart() -> None:
    made = shared(secondary("AGE:"), index("Further"), secondary("CITY:"))
    assert made.tables == ("New", "New", "Further", "New")
    assert made.secondary == {1: "AGE:", 3: "CITY:"}
    assert migration(indexes=[index("Further")]).secondary == {}


@pytest.mark.parametrize(
    ("expression", "begins"),
    [
        (ROW, ""),
        (keys.literal("A"), "A"),
        (keys.literal("A") + ROW, "A"),
        (keys.join("__", keys.literal("A"), ROW), "A__"),
        (
            keys.join("__", keys.literal("A") + keys.literal(":"), keys.literal("B"), ROW, keys.literal("C")),
            "A:__B__",
        ),
        (keys.join("__", keys.literal("A:") + ROW, keys.literal("B")), "A:"),
        (keys.join("__", ROW, keys.literal("A")), ""),
        (keys.upper(keys.literal("a")), ""),
    ],
)
def test_the_constant_prefix_of_an_expression(expression: keys.Expression, begins: str) -> None:
    assert constant_prefix(expression) == begins
    evaluate = expression.compile(Scope("target.row_key", {}))
    for text in ("", "x", "__"):
        assert evaluate({"PartitionKey": "p", "RowKey": text}, "").startswith(begins)
