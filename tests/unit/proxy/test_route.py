"""Which client carries the requests for a table of several migrations."""

from __future__ import annotations

from typing import Any

import pytest

from rekey import Migration, Target, keys
from rekey.client.sdk.options import ClientOptions
from rekey.errors import ConfigurationError
from rekey.protocol.opening import Prepared
from rekey.proxy import route
from tests.worlds.begun_migrations import declared_as
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
