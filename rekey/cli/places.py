"""The places of tables as `rekey copy` takes them: ACCOUNT/TABLE; and the error for a table that is
not there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import click

from rekey.backup.refusals import refusal
from rekey.core.limits import TABLE_NAME_CURE, own_name, table_name_problem
from rekey.errors import RekeyError
from rekey.project.config import Account, Config
from rekey.project.connection_string import ConnectionString
from rekey.tables.base import TableService
from rekey.tables.similar import similar_tables

_PLACE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:/([^/]*))?")
_HOW = "write ACCOUNT/TABLE, where ACCOUNT is an environment variable or https://NAME.table.core.windows.net"


@dataclass(frozen=True, slots=True)
class Place:
    """An account, and a table in it or a pattern of tables."""

    # As it was typed; holds no secret.
    text: str
    endpoint: str
    # "": none was named.
    table: str
    # The environment variable that names the account; "": its endpoint was typed.
    variable: str = ""
    # Whether the variable holds a connection string.
    has_key: bool = False

    @property
    def account(self) -> Account:
        """The account, as a configuration names it."""
        return Account(self.endpoint, self.variable if self.has_key else None)

    @property
    def is_pattern(self) -> bool:
        return bool(set("*?[") & set(self.table))

    @classmethod
    def read(cls, text: str, *, may_lack_table: bool = False) -> Place:
        """Return the place that a text names. Raises click.UsageError and ConfigurationError; neither repeats
        a text that may hold a secret."""
        if text.startswith(("http://", "https://")):
            place = cls._of_url(text)
        elif (match := _PLACE.fullmatch(text)) is not None:
            place = cls._of_variable(text, match[1], match[2] or "")
        else:
            raise click.UsageError(f"a place could not be read; {_HOW}")
        if not place.table and may_lack_table:
            return place
        if not place.table:
            raise click.UsageError(f"{text} names no table; {_HOW}")
        if (not place.is_pattern or may_lack_table) and (problem := table_name_problem(place.table)):
            raise click.UsageError(f"{problem}; {TABLE_NAME_CURE}")
        return place

    @classmethod
    def _of_url(cls, text: str) -> Place:
        parts = urlsplit(text)
        if parts.query or parts.fragment or parts.username or parts.password or ";" in text:
            raise click.UsageError(
                "a URL holds a SAS, a query or a user, which are secrets; put a connection string into an"
                " environment variable and name that, or use the URL alone with your own identity (az login)"
            )
        # Of an emulator the first part of the path is the account.
        path = [part for part in parts.path.split("/") if part]
        is_emulator = ".table." not in (parts.hostname or "")
        account, rest = (path[:1], path[1:]) if is_emulator else ([], path)
        if len(rest) > 1:
            raise click.UsageError(f"a URL has more than an account and a table; {_HOW}")
        return cls(text, "/".join([f"{parts.scheme}://{parts.netloc}", *account]), "".join(rest))

    @classmethod
    def _of_variable(cls, text: str, variable: str, table: str) -> Place:
        value = os.environ.get(variable, "").strip()
        if not value:
            raise refusal("account-not-set", variable=variable)
        if (named := ConnectionString.read(value, variable)) is not None:
            return cls(text, named.endpoint, table, variable, has_key=bool(named.key))
        if not value.startswith(("http://", "https://")):
            raise refusal("no-account-in-variable", variable=variable)
        endpoint = cls._of_url(value)
        if endpoint.table:
            raise refusal("no-account-in-variable", variable=variable)
        return cls(text, endpoint.endpoint, table, variable)


async def no_such_table(config: Config, tables: TableService, name: str) -> RekeyError:
    """Return (do not raise) the error for a table of a configuration that does not exist."""
    section, account = config.holding(name)
    similar = await similar_tables(tables, name)
    return refusal("no-such-table", table=own_name(name), account=account, section=section, similar=similar)
