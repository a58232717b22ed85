"""References whose old keys a proxy looks up in another migration's sealed mapping (`keep_old=False`), before
and after cutover."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.test_proxy import IF_ANY, NO_ECHO, STATES, World, followed, migration_of, row, world
from tests.worlds.begun_migrations import declared_as
from tests.worlds.referring import orders_of

__all__ = ["world"]
pytestmark = [pytest.mark.azurite]


async def test_the_old_table_gets_old_references_and_unknown_ones_are_refused(world: World) -> None:
    users = migration_of(world.table_name)
    orders = declared_as(f"{users.script_id}orders", orders_of(users, world.table_name("Orders")))
    source, target = orders.migration.source, orders.migration.target.table
    await world.begun(STATES["dual_write"], users)
    begun = await world.begun(STATES["dual_write"], orders)
    async with world.between(users, orders) as (direct, behind):

        async def mails() -> dict[str, str | None]:
            rows = (await direct.ask("GET", f"{source}()")).json["value"]
            return {each["RowKey"]: each.get("Mail") for each in rows}

        async def write(table: str, key: str, **more: Any) -> tuple[int, str]:
            answer = await behind.ask("POST", table, row(key, **more), NO_ECHO)
            return answer.status, answer.code if answer.status >= 400 else ""

        for mail in ("ann", "zed"):
            assert await write(users.migration.source, mail) == (204, "")
        known = (await direct.ask("GET", f"{users.migration.target.table}()")).json["value"]
        ids = {each["Mail"]: each["RowKey"] for each in known}
        assert await write(source, "1", Mail="ann") == (204, "")
        assert await write(source, "2", Mail="ghost") == (204, "")  # the source is the authority
        for number in (3, 5):
            assert await write(target, str(number), UserId=ids["zed"]) == (204, "")
            assert await write(target, str(number + 1), UserId="nobody") == (400, "no-old-reference")
            changed = {"UserId": ids["zed" if number == 3 else "ann"]}
            first = f"{target}(PartitionKey='eu',RowKey='1')"
            assert (await behind.ask("MERGE", first, changed, IF_ANY)).status == 204
            assert (await mails())["1"] == ("zed" if number == 3 else "ann")
            for phase in STATES["cutover"][1:] if number == 3 else ():
                await begun.move(phase)
                await followed(begun)
        assert await write(source, "7", Mail="ghost") == (400, "no-old-reference")
        second = f"{target}(PartitionKey='eu',RowKey='2')"
        assert (await behind.ask("MERGE", second, {"Note": "still of nobody"}, IF_ANY)).status == 204
        assert await mails() == {"1": "ann", "2": "ghost", "3": "zed", "5": "zed"}
        new_rows = (await direct.ask("GET", f"{target}()")).json["value"]
        assert not [each for each in new_rows if "Mail" in each]
