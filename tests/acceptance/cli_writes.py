"""Writes rows of its own with the commands of Azure CLI, one after the other in one process, until its input
ends, and reads each row back. It prints a line of JSON for each acknowledged write, as `proxy_writers.Writer`
reads it. A command that fails ends it. A line of input: from then on rows are neither inserted nor deleted.

    PYTHON_OF_THE_CLI cli_writes.py NAME TABLE VIEW    with AZURE_STORAGE_CONNECTION_STRING set
"""

from __future__ import annotations

import io
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from azure.cli.core import get_default_cli

OWN = 5
TIMES = (
    "2026-01-02",
    "2026-01-02T03:04",
    "2026-01-02T03:04Z",
    "2026-01-02T03:04:05+02:00",
    "2026-01-02T03:04:05.1234567Z",
)


def run(*words: str) -> Any:
    """Run a command of `az storage entity`; return what it prints. Raises SystemExit when it fails."""
    out, cli = io.StringIO(), get_default_cli()
    code = cli.invoke(["storage", "entity", *words, "--table-name", sys.argv[2], "-o", "json"], out_file=out)
    if code:
        refuse(f"{words}: {cli.result.error!r}")
    return json.loads(out.getvalue() or "null")


def say(**line: object) -> None:
    """Print a line of JSON."""
    print(json.dumps(line), flush=True)


def refuse(what: str) -> NoReturn:
    """Print what went wrong and end."""
    say(refused=what)
    raise SystemExit(1)


class Writer:
    """It knows what it wrote: nobody else writes its rows."""

    def __init__(self, name: str, view: str) -> None:
        self.view, self.prefix = view, f"{name}-{view}-"
        self.known = dict[str, int]()

    def step(self, number: int, *, only_updates: bool) -> None:
        """Make one write and read its row back."""
        name, turn = f"{self.prefix}{number % OWN}", number // OWN % 5
        keys = ("eu", name) if self.view == "old" else ("p:eu", f"r:{name}")
        entity = [
            f"PartitionKey={keys[0]}",
            f"RowKey={keys[1]}",
            f"Number={number}",
            "Number@odata.type=Edm.Int64",
        ]
        when = TIMES[number % len(TIMES)]
        entity += [f"When={when}", "When@odata.type=Edm.DateTime", "Text=a b"]
        entity += [] if only_updates else [f"Group=g{number % 3}"]
        entity += [] if self.view == "old" else ["OldPartition=eu", f"OldRow={name}"]
        is_there = name in self.known
        if only_updates and not is_there:
            return
        if only_updates or (is_there and turn == 1):
            verb = "merge"
            run("merge", "--entity", *entity)
        elif is_there and turn == 2:
            verb = "replace"
            run("replace", "--entity", *entity)
        elif is_there and turn == 3:
            verb = "remove"
            run("delete", "--partition-key", keys[0], "--row-key", keys[1])
        elif is_there:
            verb = "upsert"
            run("insert", "--if-exists", ("replace", "merge")[number % 2], "--entity", *entity)
        else:
            verb = "insert"
            run("insert", "--if-exists", "fail", "--entity", *entity)
        if verb == "remove":
            del self.known[name]
        else:
            self.known[name] = number
        say(row=name, number=self.known.get(name), when=when, verb=verb)
        self.look(name, keys)

    def look(self, name: str, keys: tuple[str, str]) -> None:
        """Read a row back, and all of them by a query. Times are left out: Azurite keeps any form, the CLI
        reads one."""
        low = keys[1].removesuffix(name) + self.prefix
        where = f"PartitionKey eq '{keys[0]}' and RowKey ge '{low}' and RowKey lt '{low}~'"
        by_key = ("--partition-key", keys[0], "--row-key", keys[1])

        def listed() -> dict[str, int]:
            rows = run("query", "--filter", where, "--select", "RowKey", "Number")["items"]
            return {row["RowKey"].removeprefix("r:"): row["Number"]["value"] for row in rows}

        until(listed, self.known)
        if name in self.known:
            until(lambda: run("show", *by_key, "--select", "Number")["Number"]["value"], self.known[name])


def until(read: Callable[[], object], expected: object) -> None:
    """Repeat a read until it shows what was written: no replica fails a write, so the side that follows is
    behind where one timed out."""
    ends, is_said = time.monotonic() + 60, False
    while (found := read()) != expected:
        if not is_said:
            is_said = True
            say(behind=f"{found} instead of {expected}")
        if time.monotonic() > ends:
            refuse(f"{found} instead of {expected}")
        time.sleep(0.2)


def main() -> None:
    """Write until the input ends."""
    updates, ending = threading.Event(), threading.Event()

    def follow() -> None:
        for _ in sys.stdin:
            updates.set()
        ending.set()

    threading.Thread(target=follow, daemon=True).start()
    writer, is_said = Writer(sys.argv[1], sys.argv[3]), False
    for number in itertools.count():
        if ending.is_set():
            return
        if updates.is_set() and not is_said:
            is_said = True
            say(updates=True)
        writer.step(number, only_updates=is_said)


if __name__ == "__main__":
    main()
