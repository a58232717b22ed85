"""References that take the place of old ones: what a row gives back, what has to be looked up for that, and
what is refused when the script is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rekey.declaration.mapper import Mapper
from rekey.declaration.old_references import ReferredKey
from rekey.declaration.scripts import load_script
from rekey.errors import DeclarationError, RowRefused
from rekey.model import EntityKey, Row, key_of
from tests.unit.declaration.test_references import BOTH, BUCKET, HEAD, OPAQUE, ORDERS, SECRETS, USERS

ANN, BOB = "Ann@example.com", "Bob@example.com"
REFERENCE = (
    'props.reference("User", to="UserId", via="0001_users", partition="{partition}", keep_old=False{more})'
)
SAME_PARTITION = REFERENCE.format(partition="PartitionKey", more="")
BY_TENANT = REFERENCE.format(partition="Tenant", more="")
OLD_KEY = EntityKey("eu", "1")

Write = Callable[..., Mapper]


@pytest.fixture
def mapper(tmp_path: Path) -> Write:
    """Return a mapper of orders that refer to users."""

    def written(
        references: str, row: str = OPAQUE, partition: str = "keys.keep()", orders: str = ORDERS
    ) -> Mapper:
        (tmp_path / "0001_users.py").write_text(HEAD + USERS.format(partition=partition, row=row))
        (tmp_path / "0002_orders.py").write_text(HEAD + orders.format(references=references))
        return Mapper(load_script(tmp_path / "0002_orders.py").migration, SECRETS)

    return written


def order(user: str | None, **more: object) -> Row:
    named = {} if user is None else {"User": user}
    return {"PartitionKey": "eu", "RowKey": "1", "Tenant": "eu", "Total": 7, **named, **more}


def new(mapper: Mapper, row: Row) -> Row:
    return mapper.map(row)[0].row


def test_the_new_row_holds_the_reference_alone(mapper: Write) -> None:
    orders = mapper(SAME_PARTITION)
    row = new(orders, order(ANN))
    assert sorted(row) == ["PartitionKey", "RowKey", "Tenant", "Total", "UserId"]
    assert ANN not in map(str, row.values())
    assert "UserId" not in new(orders, order(None))


def test_the_digest_tells_where_old_references_are_looked_up(mapper: Write) -> None:
    kept = mapper(SAME_PARTITION.replace(", keep_old=False", ""))
    assert mapper(SAME_PARTITION.replace("keep_old=False", "keep_old=True")).migration == kept.migration
    removed = mapper(SAME_PARTITION)
    assert removed.migration.digest() != kept.migration.digest()
    text = removed.migration.canonical_json()
    assert '"removes":"User"' in text and '"via":"0001_users"' in text
    assert "removes" not in kept.migration.canonical_json()


def test_an_unchanged_reference_is_kept_from_the_source_row(mapper: Write) -> None:
    orders = mapper(SAME_PARTITION)
    source = order(ANN)
    target = {**new(orders, source), "Total": 8}
    assert orders.to_look_up(target, OLD_KEY, source) == {}
    assert orders.reverse(target, OLD_KEY, source) == {**source, "Total": 8}


@pytest.mark.parametrize("source", [None, order(ANN), order(None)], ids=["no row", "another", "none"])
@pytest.mark.parametrize("reference", [SAME_PARTITION, BY_TENANT], ids=["by key", "by property"])
def test_a_new_reference_is_looked_up_by_the_other_rows_new_key(
    mapper: Write, reference: str, source: Row | None
) -> None:
    orders = mapper(reference, BOTH)
    target = new(orders, order(BOB))
    needed = orders.to_look_up(target, OLD_KEY, source)
    assert needed == {"User": ReferredKey("0001_users", EntityKey("eu", target["UserId"]))}
    assert orders.reverse(target, OLD_KEY, source, {"User": BOB}) == order(BOB)


def test_the_key_of_the_other_row_may_be_in_two_references(mapper: Write) -> None:
    partition = 'props.reference("User", to="UserPartition", via="0001_users", to_partition=True)'
    by_both = 'props.reference("User", to="UserId", via="0001_users", keep_old=False)'
    orders = mapper(f"{by_both}, {partition}", OPAQUE, BUCKET)
    target = new(orders, order(BOB))
    [referred] = orders.to_look_up(target, OLD_KEY, None).values()
    assert referred.key == EntityKey(target["UserPartition"], target["UserId"])
    assert orders.reverse(target, OLD_KEY, order(ANN), {"User": BOB}) == order(BOB)
    alone = {name: value for name, value in target.items() if name != "UserPartition"}
    assert orders.to_look_up(alone, OLD_KEY, None) == {}
    with pytest.raises(RowRefused, match="differs in UserId"):
        orders.reverse(alone, OLD_KEY, None)


def test_a_reference_to_a_row_of_another_kind_does_not_say_the_key(tmp_path: Path) -> None:
    kinds = ", ".join(
        f'''RowKind("{kind}", when=rows.row_key(prefix="{kind}:"), target=Target("UsersV2",
            partition_key=keys.literal("{kind}-") + keys.prop("PartitionKey"), row_key={OPAQUE}, properties=[
                props.copy("PartitionKey", to="OldTenant"), props.copy("RowKey", to="Mail")]))'''
        for kind in ("person", "bot")
    )
    bot = 'props.reference("User", to="Bot", via="0001_users", partition="PartitionKey", to_partition=True'
    person = REFERENCE.format(partition="PartitionKey", more=', kind="person"')
    references = f"{person}, {bot}, kind='bot')"
    (tmp_path / "0001_users.py").write_text(
        f'{HEAD}migration = Migration(source="Users", kinds=[{kinds}], capture="delta")'
    )
    (tmp_path / "0002_orders.py").write_text(HEAD + ORDERS.format(references=references))
    orders = Mapper(load_script(tmp_path / "0002_orders.py").migration, SECRETS)
    target = new(orders, order("person:ann"))
    assert target["Bot"] == "bot-eu"
    [referred] = orders.to_look_up(target, OLD_KEY, None).values()
    assert referred.key == EntityKey("person-eu", target["UserId"])


def test_a_reference_in_the_place_of_the_old_one_comes_back(mapper: Write) -> None:
    orders = mapper(SAME_PARTITION.replace('to="UserId"', 'to="User"'))
    source = order(ANN)
    assert new(orders, source)["User"] != ANN
    assert orders.reverse(new(orders, source), OLD_KEY, source) == source
    assert orders.reverse(new(orders, order(BOB)), OLD_KEY, source, {"User": BOB}) == order(BOB)


def test_a_reference_that_was_removed_is_removed_in_the_source(mapper: Write) -> None:
    orders = mapper(SAME_PARTITION)
    target = new(orders, order(None))
    assert orders.to_look_up(target, OLD_KEY, order(ANN)) == {}
    assert orders.reverse(target, OLD_KEY, order(ANN)) == order(None)


def test_what_cannot_be_looked_up_is_refused(mapper: Write) -> None:
    orders = mapper(SAME_PARTITION)
    with pytest.raises(RowRefused) as refused:
        orders.reverse(new(orders, order(BOB)), OLD_KEY, order(ANN))
    assert refused.value.code == "no-old-reference"
    assert "0001_users does not know the row that UserId names" in refused.value.problem


@pytest.mark.parametrize("value", [ANN, "bob@example.com", ""])
def test_an_old_key_that_does_not_give_the_reference_is_refused(mapper: Write, value: str) -> None:
    orders = mapper(SAME_PARTITION)
    with pytest.raises(RowRefused) as refused:
        orders.reverse(new(orders, order(BOB)), OLD_KEY, None, {"User": value})
    assert refused.value.code == "not-reversible"


def test_a_row_with_other_properties_made_of_the_old_reference_comes_back(mapper: Write) -> None:
    orders = mapper(SAME_PARTITION + ', props.compute("Domain", keys.part("@", 1, "User"), needed=("User",))')
    target = new(orders, order(BOB))
    assert orders.reverse(target, OLD_KEY, None, {"User": BOB}) == order(BOB)
    with pytest.raises(RowRefused, match="Domain"):
        orders.reverse({**target, "Domain": "other.example"}, OLD_KEY, None, {"User": BOB})


def test_a_reference_of_another_type_is_refused_before_it_is_copied(mapper: Write) -> None:
    with pytest.raises(RowRefused) as refused:
        new(mapper(SAME_PARTITION), order(None, User=12))
    assert refused.value.code == "bad-reference"


def test_a_row_that_would_say_neither_the_old_nor_the_new_reference_is_refused(mapper: Write) -> None:
    row = order(ANN)
    del row["Tenant"]
    with pytest.raises(RowRefused) as refused:
        new(mapper(BY_TENANT, BOTH), row)
    assert refused.value.code == "bad-reference"
    assert "has User but not Tenant" in refused.value.problem and ANN not in str(refused.value)
    assert new(mapper(BY_TENANT.replace(", keep_old=False", ""), BOTH), row) == row
    del row["User"]
    assert new(mapper(BY_TENANT, BOTH), row) == row


def test_changes_are_told_by_the_reference_alone(mapper: Write) -> None:
    orders = mapper(SAME_PARTITION)
    ann, bob, nobody = (new(orders, order(each)) for each in (ANN, BOB, None))
    assert orders.changes_reference(ann, None) and orders.changes_reference(ann, bob)
    assert not orders.changes_reference({**ann, "Total": 1}, ann)
    assert not orders.changes_reference(nobody, ann) and not orders.changes_reference(nobody, None)
    assert key_of(orders.without_old_references(order(ANN))) == OLD_KEY
    assert "User" not in orders.without_old_references(order(ANN))


@pytest.mark.parametrize(
    ("reference", "row", "partition", "problem"),
    [
        (SAME_PARTITION, 'keys.lower("RowKey")', "keys.keep()", "UserId can be the same for another User"),
        (SAME_PARTITION, OPAQUE, BUCKET, "is made of User, which the new row does not say"),
        (
            'props.reference("User", to="UserId", via="0001_users", keep_old=False)',
            OPAQUE,
            "keys.keep()",
            "the new PartitionKey of 0001_users is made of the old PartitionKey, which is not declared",
        ),
        (f'{BY_TENANT}, props.drop("Tenant")', OPAQUE, "keys.keep()", "is made of Tenant, which the new row"),
        (f'{SAME_PARTITION}, props.drop("User")', OPAQUE, "keys.keep()", "User is dropped, and a reference"),
        (f'{SAME_PARTITION}, props.copy("User", to="M")', OPAQUE, "keys.keep()", "User is copied, and a"),
        (f'{SAME_PARTITION}, props.rename("User", "M")', OPAQUE, "keys.keep()", "User is renamed, and a"),
        (f'{SAME_PARTITION}, props.keep("User")', OPAQUE, "keys.keep()", "User is kept, and a reference"),
        (f'{SAME_PARTITION}, props.cast("UserId", "guid")', OPAQUE, "keys.keep()", "cast"),
        (SAME_PARTITION.replace("=False", "=0"), OPAQUE, "keys.keep()", "not True or False"),
    ],
)
def test_what_could_not_be_looked_up_is_refused_when_the_script_is_read(
    mapper: Write, reference: str, row: str, partition: str, problem: str
) -> None:
    with pytest.raises(DeclarationError) as refused:
        mapper(reference, row, partition)
    assert problem in str(refused.value)


def test_without_a_rollback_nothing_has_to_be_looked_up(mapper: Write) -> None:
    forward_only = ORDERS.replace('capture="delta"', 'capture="delta", reverse=False')
    orders = mapper(SAME_PARTITION, 'keys.lower("RowKey")', orders=forward_only)
    assert not orders.looks_up and not orders.migration.looked_up_in
    assert new(orders, order(ANN))["UserId"] == ANN.lower()


def test_an_index_row_keeps_what_it_is_given(mapper: Write) -> None:
    with_index = ORDERS.replace(
        'capture="delta"',
        'capture="delta", indexes=[__import__("rekey").Index("ByTotal", partition_key=keys.prop("Total"),'
        ' row_key=keys.prop("RowKey"), properties=[{references}])]',
    )
    with pytest.raises(DeclarationError, match="keep_old=False in an index row"):
        mapper(SAME_PARTITION, orders=with_index)
