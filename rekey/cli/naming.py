"""The options by which `lookup` and `erase` name rows, the reason that both require, and the record that keys
are shown. The content of a file is never repeated in a message."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from rekey.cli.shell import file_option
from rekey.core.joint import place_of
from rekey.errors import reason_of
from rekey.mapping.lookup import Query
from rekey.model import EntityKey
from rekey.project.config import Config
from rekey.runner.refusals import refusal
from rekey.state.store import State
from rekey.verify.context import Keys

_MINUTE_S = 60.0
# A PartitionKey or RowKey of at least this many characters must not be in a reason.
_TELLING = 6
_ADDRESS = re.compile(r"[^\s@]+@[^\s@]+")
_COLUMNS = {
    ("old_partition_key", "old_row_key"): "old",
    ("new_partition_key", "new_row_key"): "new",
    ("id",): "safe_id",
}
_OPTIONS = (
    click.option("--old", nargs=2, metavar="PK RK", help="A key of the source."),
    click.option("--new", nargs=2, metavar="PK RK", help="A key of a target."),
    click.option("--id", "safe_id", metavar="SAFEID", help="A row's safe id, as plans and errors show it."),
    file_option(
        "--bulk",
        help="Many rows: CSV with the columns old_partition_key,old_row_key or"
        " new_partition_key,new_row_key or id.",
    ),
    click.option(
        "--reason", required=True, metavar="TEXT", help="Why; it is recorded. It must not hold the key."
    ),
)


class Named(NamedTuple):
    """The rows as named on the command line; exactly one of the four is not None."""

    old: tuple[str, str] | None
    new: tuple[str, str] | None
    safe_id: str | None
    bulk: Path | None

    def queries(self, config: Config, reason: str) -> list[Query]:
        """Return the queries for these rows.

        Raises:
            click.UsageError: the reason holds a part of a key that is asked for, or an address.
            ConfigurationError: the file cannot be read, is not as expected, or asks for too many.
        """
        if self.bulk is None:
            old, new = (EntityKey(*key) if key else None for key in (self.old, self.new))
            queries = [Query(old, new, self.safe_id)]
        else:
            kind, asked = _read_bulk(self.bulk, config.lookup.bulk_keys)
            keys = [row[0] if kind == "safe_id" else EntityKey(*row) for row in asked]
            queries = [Query(**{kind: key}) for key in keys]  # type: ignore[arg-type]  # the field's own type
        check_reason(reason, [key for query in queries for key in (query.old, query.new) if key is not None])
        return queries


def _read_bulk(path: Path, most: int) -> tuple[str, list[list[str]]]:
    """Return the field of `Query` by which a file names rows, and its lines. Raises ConfigurationError."""
    try:
        rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise refusal("bulk-not-read", file=path, reason=reason_of(error)) from None
    header = tuple(rows[0]) if rows else ()
    asked = [row for row in rows[1:] if row]
    if header not in _COLUMNS or any(len(row) != len(header) for row in asked):
        raise refusal("bulk-columns", file=path, wanted="; ".join(map(",".join, _COLUMNS)))
    if not 0 < len(asked) <= most:
        raise refusal("bulk-too-many", file=path, count=len(asked), most=most)
    return _COLUMNS[header], asked


def naming(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name rows, and `--reason`; it is called with `named` and `reason`."""

    @functools.wraps(function)
    def with_named(*shell: Any, reason: str, **arguments: Any) -> Any:
        named = Named(*(arguments.pop(field) for field in Named._fields))
        if sum(option is not None for option in named) != 1:
            raise click.UsageError("give one of --old PK RK, --new PK RK, --id SAFEID, --bulk FILE")
        check_reason(reason)
        return function(*shell, named=named, reason=reason, **arguments)

    for option in reversed(_OPTIONS):
        with_named = option(with_named)
    return with_named


def reason_option(name: str, text: str) -> Callable[[Any], Any]:
    """Return the option for a reason that holds no key; `text`: its help."""
    return click.option(name, metavar="TEXT", callback=_checked_reason, help=text)


def _checked_reason(_context: click.Context, parameter: click.Parameter, reason: str | None) -> str | None:
    if reason is not None:
        check_reason(reason, option=parameter.opts[0])
    return reason


def check_reason(reason: str, keys: Sequence[EntityKey] = (), option: str = "--reason") -> None:
    """Refuse a reason (it is recorded) that is empty, or holds an address or a part of a key:
    click.UsageError."""
    if not reason.strip():
        raise click.UsageError(f"{option} is empty; say why, a ticket's number for example")
    parts = {part.lower() for key in keys for part in key if len(part) >= _TELLING}
    if _ADDRESS.search(reason) or any(part in reason.lower() for part in parts):
        raise click.UsageError(f"{option} holds a part of the key, and it is recorded; say why, not whose")


def record_look_up(state: State, script_id: str, details: Mapping[str, Any], *, most: int) -> None:
    """Record that keys are about to be shown. Raises Refused after `most` in a minute, over all processes."""
    if state.audit_within("lookup", script_id, details, most=most, seconds=_MINUTE_S) is None:
        raise refusal("look-ups-too-many", most=most)


def shown_rows(keys: Keys) -> tuple[str, list[dict[str, str]]]:
    """Return the rows that a report names with their keys: as text, and as JSON."""
    places = {row_id: place_of(*place) for row_id, place in keys.items()}
    text = "".join(
        f"\nrow {row_id} of {table}\n  PartitionKey  {key.partition!r}\n  RowKey        {key.row!r}"
        for row_id, (table, key) in places.items()
    )
    rows = [
        {"row": row_id, "table": table, "partition_key": key.partition, "row_key": key.row}
        for row_id, (table, key) in places.items()
    ]
    return text, rows
