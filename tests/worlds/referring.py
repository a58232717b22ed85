"""Orders that refer to users, whose old keys only the mapping of the users holds (`keep_old=False`), on
tables in memory: `ann` is mapped, `zed` can be created, and nobody ever maps `ghost`."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

from rekey import Migration, Target, keys, props
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared
from rekey.declaration.references import Referred, reading
from rekey.mapping.rows import MAPPING_TABLE, MappingRows, TargetKey
from rekey.mapping.store import MappingStore
from rekey.model import EntityKey, Row, key_of
from rekey.protocol.control import ControlStore
from rekey.protocol.references import OldReferences, ReferredMapping
from rekey.tables.base import TableService
from tests.worlds.small import SECRET, USERS

USERS_ID, ORDERS_ID = "0000_users", "0002_orders"
ANN, ZED, GHOST = "ann@example.com", "zed@example.com", "ghost@example.com"
USERS_MAPPER = Mapper(USERS, {"users": SECRET})


def orders_of(users: Declared, source: str = "Orders") -> Migration:
    """Return a migration of orders whose property `Mail` is the old RowKey of a row of `users`."""
    to = users.migration.target
    new_keys = {None: {"PartitionKey": to.partition_key, "RowKey": to.row_key}}
    referred = Referred(new_keys, users.migration.source, {None: to.table}, None, "", to.table, users)
    with reading(ORDERS_ID, lambda _via: referred):
        reference = props.reference(
            "Mail", to="UserId", via=users.script_id, partition="PartitionKey", keep_old=False
        )
        target = Target(f"{source}V2", partition_key=keys.keep(), row_key=keys.keep(), properties=[reference])
        return Migration(source=source, target=target, capture="dual-write")


ORDERS = orders_of(Declared(USERS_ID, Path("0000_users.py"), "", frozenset(), USERS, USERS.digest()))


def order(version: int, mail: str | None, number: str = "1") -> Row:
    named = {} if mail is None else {"Mail": mail}
    return {"PartitionKey": "eu", "RowKey": number, "Version": version, **named}


def user(mail: str) -> Row:
    return {"PartitionKey": "eu", "RowKey": mail, "Nm": "A"}


def user_row(mail: str) -> Row:
    """Return the row of a user in the new table."""
    return USERS_MAPPER.map(user(mail))[0].row


def users_in(service: TableService) -> MappingStore:
    """Return the mapping of the users."""
    rows = MappingRows(USERS_ID, USERS.source, USERS_MAPPER.tables, SafeIds(bytes(32)))
    return MappingStore(service.table(MAPPING_TABLE), rows)


def old_references_in(service: TableService) -> OldReferences:
    """Return the look-ups of one process."""
    users = users_in(service)

    async def opened(_control: Any) -> MappingStore:
        return users

    referred = ReferredMapping(
        USERS.source,
        ControlStore(service, USERS_ID),
        opened,
        lambda: USERS_MAPPER,
        lambda: service.table("UsersV2"),
    )
    referred._opened = inf, users
    return OldReferences({USERS_ID: referred})


async def map_user(service: TableService, mail: str) -> None:
    """Claim the new key of a user, as clients do before they write the row."""

    async def nobody(_source_key: EntityKey, _target: TargetKey) -> bool:
        return False

    target = TargetKey(0, *key_of(user_row(mail)))
    await users_in(service).claim(key_of(user(mail)), None, [target], nobody)


class KnowingMapper(Mapper):
    """A mapper of ORDERS that needs no look-up."""

    def reverse(self, target_row: Row, old_key: EntityKey, source_row: Row | None, *_: Any) -> Row:
        mails = {user_row(mail)["RowKey"]: mail for mail in (ANN, ZED, GHOST)}
        named = target_row.get("UserId")
        values = {} if named is None else {"Mail": mails[named]}
        return super().reverse(target_row, old_key, source_row, values)
