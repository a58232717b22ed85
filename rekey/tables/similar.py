"""The existing table that a user probably meant by another name."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches

from rekey.core.limits import is_in_target_account
from rekey.errors import ServiceError
from rekey.tables.base import TableService

_LISTED = 10


async def similar_tables(service: TableService, name: str) -> str:
    """Return the beginning of a hint about a table that does not exist: `write Users, which exists; else `,
    or a list of all tables where none has a similar name; "" where the account has no table, or does not let
    them be listed."""
    if is_in_target_account(name):
        return ""
    with suppress(ServiceError):
        plain = {table_name.lower(): table_name for table_name in sorted(await service.table_names())}
        if near := get_close_matches(name.lower(), plain, 1, 0.6):
            return f"write {plain[near[0]]}, which exists; else "
        if plain:
            more = ", …" if len(plain) > _LISTED else ""
            return f"the account has {', '.join([*plain.values()][:_LISTED])}{more}; "
    return ""
