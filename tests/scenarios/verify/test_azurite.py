"""Verification over the wire: the same plants, found and mended on Azurite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import EntityKey, key_of
from rekey.tables.azure import AzureTableService
from rekey.verify.count import count
from rekey.verify.full import full
from rekey.verify.report import Change, DifferenceKind
from tests.worlds.small import USERS, World, user
from tests.worlds.verification import context, sampled

TYPED: dict[str, Any] = {
    "Age": 5,
    "Big@odata.type": "Edm.Int64",
    "Big": "9223372036854775807",
    "Seen@odata.type": "Edm.DateTime",
    "Seen": "2024-05-06T07:08:09.1234567Z",
    "Whole@odata.type": "Edm.DateTime",
    "Whole": "2024-05-06T07:08:09Z",
    "Score": 3.0,
    "Odd@odata.type": "Edm.Double",
    "Odd": "NaN",
    "Id@odata.type": "Edm.Guid",
    "Id": "0A9B8C7D-0000-4000-8000-0123456789AB",
    "Raw@odata.type": "Edm.Binary",
    "Raw": "AAEC/w==",
    "Ok": True,
    "Empty": "",
}
NAMES = ["missing", "wrong", "wider", "tick", "fine", "it's 100 % + fine 😀"]


@pytest.mark.azurite
async def test_planted_divergences_are_found_and_mended_on_azurite(
    tables_service: AzureTableService, table_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Every EDM type comes back as it was written, so nothing but the plants is found."""
    target = replace(USERS.target, table=table_name("UsersV2"))
    world = World(tables_service, replace(USERS, source=table_name("Users"), target=target))  # type: ignore[arg-type]
    for name in (world.source.name, target.table, MAPPING_TABLE):
        await tables_service.create_table(name)
    where = {}
    for name in NAMES:
        row = user(name, **TYPED)
        await world.source.insert(row)
        await world.propagator.propagate(key_of(row))
        where[name] = world.mapper.map(row)[0].row
    ctx = context(world, tmp_path)
    assert not (await full(ctx)).findings

    table = world.targets[0]
    await table.delete(key_of(where["missing"]))
    await table.delete(key_of(where["wrong"]))
    await table.insert({**where["wrong"], "RowKey": "elsewhere"})
    await table.replace({**where["wider"], "Age@odata.type": "Edm.Int64", "Age": "5"})
    await table.replace({**where["tick"], "Seen": "2024-05-06T07:08:09.1234568Z"})
    await table.insert({"PartitionKey": "eu", "RowKey": "foreign", "Name": "x"})

    report = await full(ctx, repair=True)
    ids = world.mapping.rows.ids
    found = {
        each.source_id: (each.kind, [(how.name, how.change) for how in each.properties])
        for each in report.differences.listed
    }
    assert found == {
        ids.short(world.source.name, EntityKey("eu", "missing")): (DifferenceKind.MISSING, []),
        ids.short(world.source.name, EntityKey("eu", "wrong")): (DifferenceKind.WRONG_KEY, []),
        ids.short(world.source.name, EntityKey("eu", "wider")): (
            DifferenceKind.ALTERED,
            [("Age", Change.TYPE)],
        ),
        ids.short(world.source.name, EntityKey("eu", "tick")): (
            DifferenceKind.ALTERED,
            [("Seen", Change.VALUE)],
        ),
        "": (DifferenceKind.EXTRA, []),
    }
    again = await full(ctx)
    assert not again.findings
    assert again.tables[0].expected_digest == again.tables[0].actual_digest
    assert not (await count(ctx)).findings
    assert not (await sampled(ctx, 10, seed=1)).findings
