"""Which test tables were made and not removed yet: a file beside the state file.

Rules kept here:

* A table is noted, durably, before it is made, and the note goes after the table: what a killed stress test
  left behind is found by the next one. Only what is noted is ever removed.
* A note names the endpoint, too: a table of another account is left alone.
* Whoever uses the file holds its lock, so that what is noted is of nobody who still runs.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from rekey.errors import MachineFailed
from rekey.project.privatefiles import write_whole

PREFIX = "rekeystress"
_SUFFIX = ".stress"
_NOTE = re.compile(rf"({PREFIX}[0-9a-f]{{16}}) (\S+)")


def new_name() -> str:
    """Return a name for a test table, which nobody else has."""
    return PREFIX + secrets.token_hex(8)


class Notes:
    """The notes of one project."""

    def __init__(self, state: Path) -> None:
        """Take the path of the state file."""
        self.path = state.with_name(state.name + _SUFFIX)

    def tables(self, endpoint: str) -> list[str]:
        """Return the noted tables of an account. Raises MachineFailed."""
        return [name for name, where in self._read() if where == endpoint]

    def add(self, name: str, endpoint: str) -> None:
        """Note a table that is about to be made. Raises MachineFailed."""
        self._write([*self._read(), (name, endpoint)])

    def drop(self, name: str) -> None:
        """Forget a table that is gone. Raises MachineFailed."""
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
        # A line that was cut off stands for a table that was not made.
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
            f"{self.path} cannot be {what} ({type(error).__name__})",
            kept="everything; no test table was made",
            hint="make the state file's folder writable: test tables are noted there before they are made",
        )
