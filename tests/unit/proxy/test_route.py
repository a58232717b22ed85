"""Which client carries the requests for a table of several migrations."""

from __future__ import annotations

from typing import Any

import pytest

from rekey import Migration, Target, keys, rows
from rekey.client.sdk.options import ClientOptions
from rekey.errors import ConfigurationError
from rekey.protocol.opening import Prepared
from rekey.proxy import route
from tests.worlds.begun_migrations import declared_as
from tests.worlds.merged_tables import DE, FR, merging
from tests.worlds.parts_of_a_table import NORTH, SOUTH, part


def prepared(script_id: str, migration: Migration) -> Prepared:
    return Prepared(declared_as(script_id, migration), lambda _name: b"", lambda: None)


FILLING = prepared(
    "0001_merge",
    Migration("Old", Target("Orders", partition_key=keys.keep(), row_key=keys.keep()), capture="dual-write"),
)
PARTS = [
    prepared("0002_north", part("Orders", NORTH, "NorthOrders")),
    prepared("0003_south", part("Orders", SOUTH, "SouthOrders")),
]

MERGED = [
    prepared("0004_de", merging(DE, "OrdersDE", "AllOrders", index="ByNumber")),
    prepared("0005_fr", merging(FR, "OrdersFR", "allorders", index="ByNumber")),
    prepared("0006_it", merging("IT", "OrdersIT", "AllOrders", capture="delta")),
]


def carried(followed: list[Prepared], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return whose scripts the client of each table has."""
    monkeypatch.setattr(route, "carrier_of", lambda options, _connect: options)

    def options_of(of: Prepared, _table: str) -> ClientOptions:
        name: Any = of.declared.script_id
        return name

    config: Any = None
    cores: Any = route.cores_of(config, followed, options_of)
    return dict(cores)


def test_one_client_of_a_table_has_the_scripts_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert carried(PARTS, monkeypatch) == {
        "Orders": ["0002_north", "0003_south"],
        "NorthOrders": ["0002_north"],
        "SouthOrders": ["0003_south"],
    }


@pytest.mark.parametrize("followed", [[FILLING, *PARTS], [*PARTS, FILLING]], ids=["filled first", "last"])
def test_parts_of_a_table_that_is_the_target_of_another_migration_are_not_passed_over(
    followed: list[Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client writes to the table alone, so the parts would not follow."""
    with pytest.raises(ConfigurationError, match="two migrations name the table Orders"):
        carried(followed, monkeypatch)


def test_one_client_of_a_table_has_the_scripts_of_all_that_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one with capture "delta" as well, and its own source is nobody's."""
    assert carried(MERGED, monkeypatch) == {
        "OrdersDE": ["0004_de"],
        "AllOrders": ["0004_de", "0005_fr", "0006_it"],
        "ByNumber": ["0004_de", "0005_fr"],
        "OrdersFR": ["0005_fr"],
    }


def test_parts_of_one_table_that_move_into_one_have_one_client_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tenants = [
        prepared(f"000{number}_{tenant}", merging(tenant, "Orders", "AllOrders", where=where))
        for number, tenant, where in (
            (7, DE, rows.partition_key(equals="a")),
            (8, FR, rows.partition_key(equals="b")),
        )
    ]
    both = ["0007_DE", "0008_FR"]
    assert carried(tenants, monkeypatch) == {"Orders": both, "AllOrders": both}


@pytest.mark.parametrize("is_last", [True, False])
def test_a_table_that_several_fill_and_another_migration_moves_on_is_refused(
    is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = prepared("0009_on", part("AllOrders", NORTH, "NorthOrders"))
    with pytest.raises(ConfigurationError, match="two migrations name the table AllOrders"):
        carried([*MERGED, on] if is_last else [on, *MERGED], monkeypatch)
