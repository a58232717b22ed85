"""The application's queries, declared in a script so that a plan can rate keys by them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rekey.core.plain import json_field
from rekey.declaration.keys.base import need_int, need_text, refuse_if

QueryKind = Literal["point", "range", "latest"]
MAX_ROWS = 1_000_000_000


@dataclass(frozen=True)
class Query:
    """A query of the application. Make it with `point`, `range` or `latest`.

    Attributes:
        kind: `point`, `range` or `latest`.
        known: properties of the source (also the old `PartitionKey` and `RowKey`) whose values the
            application knows when it queries.
        by: of `range`, the property that lies between two values; of `latest`, the one that orders rows by
            age, None for any moment in a key.
        rows: rows returned.
    """

    kind: QueryKind = field(metadata=json_field("query"))
    known: tuple[str, ...]
    by: str | None = None
    rows: int = 1

    def describe(self) -> str:
        """Return a short form for people, e.g. `latest(20, by Published, within Category)`."""
        known = ", ".join(self.known)
        if self.kind == "point":
            return f"point({known})"
        within = f", within {known}" if known else ""
        if self.kind == "range":
            return f"range({self.by}{within})"
        return f"latest({self.rows}{f', by {self.by}' if self.by else ''}{within})"


def point(*known: str) -> Query:
    """Return the query for one row by properties whose values the application knows."""
    refuse_if(not known, "query.point", "nothing-known")
    return Query("point", _names("query.point", known))


def range(by: str, *, within: Iterable[str] = (), rows: int = 1000) -> Query:  # noqa: A001 - the natural name
    """Return the query for rows whose property lies between two values.

    Args:
        by: the property, e.g. a DateTime.
        within: properties whose values are known.
        rows: approximate number of rows returned.
    """
    need_int("query.range(rows)", rows, least=1, most=MAX_ROWS)
    return Query("range", _names("query.range(within)", within), need_text("query.range(by)", by), rows)


def latest(rows: int, *, by: str | None = None, within: Iterable[str] = ()) -> Query:
    """Return the query for the newest rows.

    Args:
        rows: how many.
        by: the property that orders rows by age; None: any moment in a key.
        within: properties whose values are known.
    """
    need_int("query.latest(rows)", rows, least=1, most=MAX_ROWS)
    if by is not None:
        need_text("query.latest(by)", by)
    return Query("latest", _names("query.latest(within)", within), by, rows)


def _names(field: str, names: Iterable[str]) -> tuple[str, ...]:
    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        need_text(field, name)
    return tuple(sorted(set(listed)))
