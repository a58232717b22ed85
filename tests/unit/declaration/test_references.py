"""References to rows of other migrations: they are its own new keys, or the script is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rekey import props
from rekey.declaration.keys.base import InvalidDeclaration
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script, read_scripts
from rekey.errors import DeclarationError, RowRefused
from rekey.model import Row

SECRETS = {"s": b"a secret of this test"}
HEAD = "from rekey import Migration, RowKind, Target, keys, props, rows\n"
USERS = """
migration = Migration(
    source="Users",
    target=Target("UsersV2", partition_key={partition}, row_key={row},
        properties=[props.copy("PartitionKey", to="OldTenant"), props.copy("RowKey", to="Mail")]),
    capture="delta",
)
"""
ORDERS = """
migration = Migration(
    source="Orders",
    target=Target("OrdersV2", partition_key=keys.keep(), row_key=keys.keep(), properties=[{references}]),
    capture="delta",
)
"""
OPAQUE = 'keys.opaque("RowKey", domain="user", secret="s")'
BOTH = 'keys.opaque("PartitionKey", "RowKey", domain="user", secret="s")'
REFERENCE = 'props.reference("User", to="UserId", via="0001_users"{more})'


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    def written(
        references: str, row: str = OPAQUE, partition: str = "keys.keep()", users: str = USERS
    ) -> None:
        (tmp_path / "0001_users.py").write_text(HEAD + users.format(partition=partition, row=row))
        (tmp_path / "0002_orders.py").write_text(HEAD + ORDERS.format(references=references))

    return written


def mapper(folder: Path, script_id: str) -> Mapper:
    return Mapper(load_script(folder / f"{script_id}.py").migration, SECRETS)


def order(**properties: object) -> Row:
    return {"PartitionKey": "eu", "RowKey": "1", **properties}


@pytest.mark.parametrize(
    ("row", "partition", "more", "key"),
    [
        (OPAQUE, "keys.keep()", "", "RowKey"),
        ('keys.literal("U_") + keys.lower("RowKey")', "keys.keep()", "", "RowKey"),
        ('keys.join("_", keys.part("@", 1, "RowKey"), "RowKey")', "keys.keep()", "", "RowKey"),
        (BOTH, "keys.keep()", ', partition="PartitionKey"', "RowKey"),
        (BOTH, "keys.keep()", ', partition="Tenant"', "RowKey"),
        (BOTH, "keys.keep()", ', partition=keys.part("-", 0, "TenantAndMore")', "RowKey"),
        (OPAQUE, 'keys.bucket(8, "sha256", "RowKey")', ", to_partition=True", "PartitionKey"),
    ],
)
def test_a_reference_is_the_new_key_of_the_row_that_it_names(
    write: Callable[..., None], tmp_path: Path, row: str, partition: str, more: str, key: str
) -> None:
    write(REFERENCE.format(more=more), row, partition)
    user = mapper(tmp_path, "0001_users").map({"PartitionKey": "eu", "RowKey": "Ann@example.com"})[0].row
    made = mapper(tmp_path, "0002_orders")
    source = order(User="Ann@example.com", Tenant="eu", TenantAndMore="eu-west")
    target = made.map(source)[0].row
    assert target == {**source, "UserId": user[key]}
    assert made.reverse(target, made.source_key(target), source) == source


def test_a_row_without_a_reference_has_none(write: Callable[..., None], tmp_path: Path) -> None:
    write(REFERENCE.format(more=', partition="Tenant"'), BOTH)
    made = mapper(tmp_path, "0002_orders")
    for row in (order(), order(User="Ann@example.com"), order(Tenant="eu"), order(User=None, Tenant="eu")):
        assert "UserId" not in made.map(row)[0].row
    page = [order(User="a", Tenant="b", N=1), order(N=2), order(User="c", Tenant="d", N=3)]
    assert ["UserId" in target[0].row for _, target in made.map_all(page, print)] == [True, False, True]


def test_the_partition_of_a_reference_may_have_a_default(write: Callable[..., None], tmp_path: Path) -> None:
    write(REFERENCE.format(more=', partition=keys.prop("Tenant", default="eu")'), BOTH)
    made = mapper(tmp_path, "0002_orders")
    said, meant = (made.map(order(User="Ann@example.com", **more))[0].row for more in ({"Tenant": "eu"}, {}))
    assert said["UserId"] == meant["UserId"]
    assert "UserId" not in made.map(order(Tenant="eu"))[0].row


def test_another_reference_in_the_new_table_is_refused(write: Callable[..., None], tmp_path: Path) -> None:
    write(REFERENCE.format(more=""))
    made = mapper(tmp_path, "0002_orders")
    target = made.map(order(User="Ann@example.com"))[0].row
    with pytest.raises(RowRefused, match="UserId"):
        made.reverse({**target, "UserId": "other"}, made.source_key(target), None)


SHARED = 'keys.lower("RowKey")'
BUCKET = 'keys.bucket(8, "sha256", "RowKey")'
DROP = ', props.drop("User")'
PARTITION = 'props.reference("User", to="UserPartition", via="0001_users", to_partition=True)'


@pytest.mark.parametrize(
    ("references", "row", "partition"),
    [
        (REFERENCE.format(more="") + DROP, SHARED, "keys.keep()"),
        ('props.reference("User", to="User", via="0001_users")', SHARED, "keys.keep()"),
        (REFERENCE.format(more=', partition="Tenant"') + DROP, 'keys.prop("PartitionKey")', "keys.keep()"),
        (PARTITION + DROP, OPAQUE, BUCKET),
        (PARTITION + ', props.keep("Tenant")', OPAQUE, BUCKET),
        (PARTITION + ', props.set("User", "")', OPAQUE, BUCKET),
    ],
)
def test_a_rollback_needs_the_old_reference_where_the_new_one_does_not_tell_it(
    write: Callable[..., None], tmp_path: Path, references: str, row: str, partition: str
) -> None:
    write(references, row, partition)
    with pytest.raises(DeclarationError) as refused:
        mapper(tmp_path, "0002_orders")
    assert "a target row has no User, and User" in str(refused.value)
    assert "reverse=False" in str(refused.value)


@pytest.mark.parametrize(
    ("references", "partition"),
    [
        (REFERENCE.format(more="") + DROP, "keys.keep()"),
        ('props.reference("User", to="User", via="0001_users")', "keys.keep()"),
        (f"{REFERENCE.format(more='')}, {PARTITION}{DROP}", BUCKET),
    ],
)
def test_a_row_whose_reference_is_another_is_refused_where_only_the_source_has_the_old_one(
    write: Callable[..., None], tmp_path: Path, references: str, partition: str
) -> None:
    write(references, OPAQUE, partition)
    made = mapper(tmp_path, "0002_orders")
    target = made.map(order(User="Bob@example.com"))[0].row
    with pytest.raises(RowRefused, match="differs in User"):
        made.reverse(target, made.source_key(target), order(User="Ann@example.com"))


@pytest.mark.parametrize(
    "more", ["", ', props.rename("User", "Owner")', ', props.copy("User", to="Owner")' + DROP]
)
def test_an_old_reference_that_the_new_row_holds_comes_back(
    write: Callable[..., None], tmp_path: Path, more: str
) -> None:
    write(PARTITION + more, OPAQUE, BUCKET)
    made = mapper(tmp_path, "0002_orders")
    source = order(User="Bob@example.com")
    target = made.map(source)[0].row
    assert made.reverse(target, made.source_key(target), order(User="Ann@example.com")) == source


def test_a_reference_to_a_row_of_a_kind(write: Callable[..., None], tmp_path: Path) -> None:
    kinds = """
migration = Migration(source="Users", capture="delta", reverse=False, kinds=[
    RowKind("user", when=rows.row_key(prefix="U_"), target=Target("UsersV2", partition_key=keys.keep(),
        row_key=keys.literal("U_") + keys.opaque("RowKey", domain="user", secret="s"))),
    RowKind("rest", when=rows.every(), target=Target("UsersV2", partition_key=keys.keep(),
        row_key=keys.literal("R_") + keys.prop("RowKey"))),
])
"""
    write(REFERENCE.format(more=', kind="user"'), users=kinds)
    user = mapper(tmp_path, "0001_users").map({"PartitionKey": "eu", "RowKey": "U_ann"})[0].row
    assert mapper(tmp_path, "0002_orders").map(order(User="U_ann"))[0].row["UserId"] == user["RowKey"]


WRONG = {
    "a script that is not there": ("0009_none", OPAQUE, "", "no such script"),
    "itself": ("0002_orders", OPAQUE, "", "its own script"),
    "a key that comes from content": ("0001_users", 'keys.prop("Number")', "", "made of Number"),
    "a key that needs the PartitionKey": ("0001_users", BOTH, "", "the old PartitionKey as well"),
    "a kind of a migration without kinds": ("0001_users", OPAQUE, ', kind="user"', "has no kinds"),
    "a script that is broken": ("0001_users", "keys.nothing()", "", "which cannot be used"),
    "a script that refers back": ("0001_users", OPAQUE, "", "in a circle"),
}


@pytest.mark.parametrize(("via", "row", "more", "problem"), WRONG.values(), ids=WRONG)
def test_a_reference_that_cannot_be_computed_is_refused(
    write: Callable[..., None], tmp_path: Path, via: str, row: str, more: str, problem: str
) -> None:
    users = USERS
    if "circle" in problem:
        users = ORDERS.replace("Orders", "Users").replace(
            "{references}", 'props.reference("Last", to="LastId", via="0002_orders")'
        )
    write(REFERENCE.replace("0001_users", via).format(more=more), row, users=users)
    with pytest.raises(DeclarationError, match=problem) as refused:
        load_script(tmp_path / "0002_orders.py")
    assert refused.value.script == "0002_orders"
    assert refused.value.hint
    assert "0002_orders" in read_scripts(tmp_path)[1]


def test_what_a_plan_makes_of_missing_rows_is_in_the_digest_only_where_it_is_said(
    write: Callable[..., None], tmp_path: Path
) -> None:
    digests = []
    for more in ("", ', on_missing="compute"', ', on_missing="refuse"'):
        write(REFERENCE.format(more=more))
        digests.append(load_script(tmp_path / "0002_orders.py").migration.digest())
    assert digests[0] == digests[1] != digests[2]


def test_to_keep_the_old_value_of_missing_rows_is_refused(write: Callable[..., None], tmp_path: Path) -> None:
    write(REFERENCE.format(more=', on_missing="keep"'))
    with pytest.raises(DeclarationError) as refused:
        load_script(tmp_path / "0002_orders.py")
    assert refused.value.field == "props.reference(UserId)(on_missing)"
    assert "'keep' is not known" in str(refused.value) and "compute" in str(refused.value.hint)


def test_a_script_says_which_scripts_it_refers_to(write: Callable[..., None], tmp_path: Path) -> None:
    write(REFERENCE.format(more=""))
    assert load_script(tmp_path / "0002_orders.py").refers_to == {"0001_users"}
    assert load_script(tmp_path / "0001_users.py").refers_to == frozenset()


def test_a_reference_outside_of_a_script_is_refused() -> None:
    with pytest.raises(InvalidDeclaration, match="no script is being read"):
        props.reference("User", to="UserId", via="0001_users")


def test_an_edited_key_expression_changes_the_digest_of_the_script_that_refers_to_it(
    write: Callable[..., None], tmp_path: Path
) -> None:
    def digest() -> str:
        return load_script(tmp_path / "0002_orders.py").digest

    write(REFERENCE.format(more=""))
    before = digest()
    assert digest() == before
    write(REFERENCE.format(more=""), 'keys.opaque("RowKey", domain="member", secret="s")')
    assert digest() != before
