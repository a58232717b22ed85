"""How a command is told whose row is meant, by old key, new key, safe id or a file of many; and why.

Rules kept here:

* Exactly one of the four.
* A reason is recorded, so it is refused where it is empty, or holds a part of a key or an address.
* The content of a file is never repeated in a message.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rekey.errors import ConfigurationError

if TYPE_CHECKING:
    from rekey.mapping.lookup import Query
    from rekey.model import EntityKey
    from rekey.project.config import Config

_TELLING = 6
"""A part of a key that is at least so long must not stand in a reason."""
_ADDRESS = re.compile(r"[^\s@]+@[^\s@]+")
_COLUMNS = {
    ("old_partition_key", "old_row_key"): "old",
    ("new_partition_key", "new_row_key"): "new",
    ("id",): "safe_id",
}
FILE = click.Path(dir_okay=False, path_type=Path)


def naming(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options `--old`, `--new`, `--id` and `--bulk`."""
    for option in reversed(
        (
            click.option("--old", nargs=2, metavar="PK RK", help="A key of the source."),
            click.option("--new", nargs=2, metavar="PK RK", help="A key of a target."),
            click.option(
                "--id",
                "safe_id",
                metavar="SAFEID",
                help="A safe id of a row, as plans, reports and errors show it.",
            ),
            click.option(
                "--bulk",
                type=FILE,
                metavar="FILE",
                help="Many at once: CSV with the columns old_partition_key,old_row_key or"
                " new_partition_key,new_row_key or id.",
            ),
        )
    ):
        function = option(function)
    return function


def require_one(*named: object) -> None:
    """Refuse anything but exactly one of the four ways to name a row. Raises click.UsageError."""
    if sum(one is not None for one in named) != 1:
        raise click.UsageError("give one of --old PK RK, --new PK RK, --id SAFEID, --bulk FILE")


def queries_of(
    config: Config,
    old: tuple[str, str] | None,
    new: tuple[str, str] | None,
    safe_id: str | None,
    bulk: Path | None,
) -> list[Query]:
    """Return what is asked for.

    Raises:
        ConfigurationError: the file cannot be read, is not as expected, or asks for too many.
    """
    from rekey.mapping.lookup import Query
    from rekey.model import EntityKey

    if bulk is not None:
        return _read_bulk(bulk, config.lookup.bulk_keys)
    return [Query(EntityKey(*old) if old else None, EntityKey(*new) if new else None, safe_id)]


def require_reason(reason: str | None) -> str:
    """Return a reason that says something. Raises click.UsageError."""
    if reason is None or not reason.strip():
        raise click.UsageError("--reason is empty; say why, a ticket's number for example")
    return reason


def keys_in(queries: Sequence[Query]) -> list[EntityKey]:
    """Return the keys that were asked for."""
    return [key for one in queries for key in (one.old, one.new) if key is not None]


def refuse_telling(reason: str, keys: Sequence[EntityKey]) -> None:
    """Refuse a reason that holds a part of a key, or an address. Raises click.UsageError."""
    parts = {part.lower() for key in keys for part in key if len(part) >= _TELLING}
    if _ADDRESS.search(reason) or any(part in reason.lower() for part in parts):
        raise click.UsageError("--reason holds a part of the key, and it is recorded; say why, not whose")


def _read_bulk(path: Path, most: int) -> list[Query]:
    """Read what a file asks for. Its content is never repeated in a message."""
    from rekey.mapping.lookup import Query
    from rekey.model import EntityKey

    try:
        rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(
            f"the file {path} cannot be read ({type(error).__name__})",
            hint="give CSV in UTF-8 with a line of column names",
        ) from None
    header = tuple(rows[0]) if rows else ()
    asked = [row for row in rows[1:] if row]
    if header not in _COLUMNS or any(len(row) != len(header) for row in asked):
        wanted = "; ".join(",".join(columns) for columns in _COLUMNS)
        raise ConfigurationError(
            f"the file {path} has not the columns that are expected", hint=f"begin it with one of: {wanted}"
        )
    if not 0 < len(asked) <= most:
        raise ConfigurationError(
            f"the file {path} asks for {len(asked)} keys, and 1 to {most} may be asked for",
            hint="split it, or raise [lookup] bulk_keys",
        )
    kind = _COLUMNS[header]
    if kind == "safe_id":
        return [Query(safe_id=row[0]) for row in asked]
    keys = [EntityKey(*row) for row in asked]
    return [Query(old=key) if kind == "old" else Query(new=key) for key in keys]
