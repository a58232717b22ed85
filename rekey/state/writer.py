"""Statements that write to the state file, by SQLAlchemy Core. Imported only when a file is opened for
writing: the import takes nearly as long as a whole `rekey status`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import Insert, insert

from rekey.state import files
from rekey.state.audit import canonical_json

_OPENED = ContextVar[sqlite3.Connection]("opened")
# One for all files: it caches compiled statements, and compiling takes longer than running them.
_ENGINE = sa.create_engine(
    "sqlite://",
    creator=_OPENED.get,
    poolclass=sa.NullPool,
    hide_parameters=True,
    # Canonical, so that an event has the same hash after it was read back.
    json_serializer=canonical_json,
)

# Of the columns of a statement: the name, and the type where SQLAlchemy has to convert values.
_Columns: TypeAlias = tuple[tuple[str, type[sa.JSON] | None], ...]


class Writer:
    """Writes to one open state file. A list or a mapping is written as canonical JSON."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        opened = _OPENED.set(connection)
        self._connection = _ENGINE.connect()
        _OPENED.reset(opened)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction; commit it, or roll it back after an error. Raises as `files.translated`.
        Nested calls join the outer one."""
        if self._connection.in_transaction():
            yield
            return
        try:
            with self._connection.begin():
                # Takes the write lock first: rows read in this transaction cannot change before it commits.
                self._connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield
        except sa.exc.DBAPIError as error:
            # SQLAlchemy's text quotes statement and parameters, which may hold keys: it must not leave this
            # module.
            cause = cast(sqlite3.Error, error.orig)
            raise files.translated(cause, self._path) from cause

    def insert(self, table: str, values: Mapping[str, Any], *, unless_there: bool = False) -> int:
        """Insert a row and return its number. `unless_there`: a row of the same primary key stays."""
        adding = _insert(table, _columns(values), unless_there)
        return self._connection.execute(adding, dict(values)).lastrowid

    def update(self, table: str, values: Mapping[str, Any], **where: Any) -> None:
        """Update the rows that have these values."""
        same = {f"same_{name}": value for name, value in where.items()}
        self._connection.execute(_update(table, tuple(where), _columns(values)), {**same, **values})

    def delete(self, table: str, **where: Any) -> int:
        """Delete the rows that have these values; return how many there were."""
        return self._connection.execute(sa.delete(_table(table, _columns(where))).filter_by(**where)).rowcount


def _columns(values: Mapping[str, Any]) -> _Columns:
    return tuple(
        (name, sa.JSON if isinstance(value, list | Mapping) else None) for name, value in values.items()
    )


def _table(name: str, columns: _Columns) -> sa.TableClause:
    """Return a table as one statement needs it; `schema/` creates the tables."""
    return sa.table(name, *(sa.column(*typed) for typed in columns))


@cache
def _insert(table: str, columns: _Columns, unless_there: bool) -> Insert:
    """Return the statement of an insert; to build it takes longer than to run it."""
    adding = insert(_table(table, columns))
    return adding.on_conflict_do_nothing() if unless_there else adding


@cache
def _update(table: str, where: tuple[str, ...], columns: _Columns) -> sa.Update:
    """Return the statement of an update, likewise: each window has one."""
    known = _table(table, (*((name, None) for name in where), *columns))
    # The values are the parameters named as columns.
    return sa.update(known).where(*(known.c[name] == sa.bindparam(f"same_{name}") for name in where))
