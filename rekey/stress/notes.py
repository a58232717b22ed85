"""Test tables of a project's stress tests, noted until they are removed.

Rules kept here:

* A test table is noted, durably, before it is made, and the note is removed after the table, however the
  test ends: the next test finds what a killed one left.
* Only noted tables are ever removed. A note names the endpoint, too: a table of another account stays.
* The caller holds the lock of the notes, so that no noted table is of a test that still runs.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rekey.errors import MachineFailed, RekeyError, ServiceError, reason_of
from rekey.project.privatefiles import write_whole
from rekey.tables.base import TableService

PREFIX = "rekeystress"
_SUFFIX = ".stress"
_NOTE = re.compile(rf"({PREFIX}[0-9a-f]{{16}}) (\S+)")


def new_name() -> str:
    """Return a name for a test table, that no other test has."""
    return PREFIX + secrets.token_hex(8)


class Notes:
    """The notes of one project."""

    def __init__(self, state: Path) -> None:
        """Create them next to the state file `state`."""
        self.path = state.with_name(state.name + _SUFFIX)

    @asynccontextmanager
    async def table(self, service: TableService, endpoint: str) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
        """Make a test table, and remove it at the end; tables that an earlier test left are removed before.

        Yields:
            The table's name, and the names of the tables that were left.

        Raises:
            ServiceError: the account cannot be used.
            MachineFailed: the notes cannot be written.
            RekeyError: the table could not be removed at the end.
        """
        removed = []
        for left in self.tables(endpoint):
            if await service.delete_table(left):
                removed.append(left)
            self.drop(left)
        name = new_name()
        self.add(name, endpoint)
        try:
            await service.create_table(name)
            yield name, tuple(removed)
        finally:
            try:
                await service.delete_table(name)
            except ServiceError as error:
                raise RekeyError(
                    f"the test table could not be removed ({error.code or error.status})",
                    kept=f"the test table {name}, which holds made-up rows only",
                    hint="repeat the command, which removes it first; or delete it by hand",
                ) from error
            self.drop(name)

    def tables(self, endpoint: str) -> list[str]:
        """Return the noted tables of an account. Raises MachineFailed."""
        return [name for name, where in self._read() if where == endpoint]

    def add(self, name: str, endpoint: str) -> None:
        """Note a table that is about to be made. Raises MachineFailed."""
        self._write([*self._read(), (name, endpoint)])

    def drop(self, name: str) -> None:
        """Remove the note of a table that is gone. Raises MachineFailed."""
        left = [one for one in self._read() if one[0] != name]
        if left:
            self._write(left)
        else:
            self.path.unlink(missing_ok=True)

    def _read(self) -> list[tuple[str, str]]:
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise self._failed("read", error) from None
        # A line that was cut off is of a table that was not made.
        found = [_NOTE.fullmatch(line) for line in text.split("\n")[:-1]]
        return [(one[1], one[2]) for one in found if one]

    def _write(self, notes: list[tuple[str, str]]) -> None:
        text = "".join(f"{name} {endpoint}\n" for name, endpoint in notes)
        try:
            write_whole(self.path, text.encode("utf-8"))
        except OSError as error:
            raise self._failed("written", error) from None

    def _failed(self, what: str, error: Exception) -> MachineFailed:
        return MachineFailed(
            f"{self.path} cannot be {what} ({reason_of(error)})",
            kept="everything; no test table was made",
            hint="make the state file's folder writable: test tables are noted there before they are made",
        )
