"""A whole life of a table of ten million rows, by the installed command, over HTTP.

    python -m benchmarks.large_life ROWS URL   serves both tables in front of an Azurite; prints its port

Source and target are made from the numbers of their rows: nothing of them is stored, and the target has its
rows once some were written. All other tables are an Azurite's, to which their requests are passed on;
transactions on the mapping table are counted and dropped. So requests, processor and memory of the command
are those of a real table, and the answers come from a service that takes no time.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import project
from benchmarks.asked import figure
from benchmarks.measure import Measured, run
from benchmarks.scale import MOST_MIB, MOST_STATE_MB
from benchmarks.shape import Shape
from benchmarks.stub import Stub, StubProcess, parser, serve
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import Row
from rekey.rehearse.azurite import Azurite

_SCRIPT = '''\
"""A constant prefix."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.literal("u:") + keys.prop("RowKey"),
        properties={properties},
    ),
    capture="delta",
    mapping={mapping!r},
)
'''
_STEPS = {
    "plan": ["plan"],
    "apply": ["apply", project.SCRIPT_ID],
    "cutover": ["apply", project.SCRIPT_ID, "--to", "cutover", "--writers-stopped"],
    "complete": [
        "apply",
        project.SCRIPT_ID,
        "--to",
        "complete",
        "--writers-stopped",
        "--yes",
        project.SCRIPT_ID,
    ],
}
_KEEPS_OLD_KEYS = ('[props.copy("RowKey", to="OldRowKey")]', ("--keeps-old-keys",))
_SOURCE, _TARGET = "Users", "UsersV2"
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Numbered(Shape):
    """A table whose RowKeys are numbers behind a prefix."""

    prefix = "n-"

    def key(self, number: int) -> tuple[str, str]:
        """Return PartitionKey and RowKey of a row by its number."""
        return super().key(number)[0], f"{self.prefix}{number:09}"


class Prefixed(Numbered):
    """What the script makes of such a table."""

    prefix = "u:n-"

    def __init__(self, rows: int, *, keeps_old_keys: bool) -> None:
        super().__init__(rows)
        self._keeps_old_keys = keeps_old_keys

    def row(self, number: int) -> Row:
        """Return a whole row as a scan gives it."""
        old = {"OldRowKey": Numbered.key(self, number)[1].removeprefix("u:")} if self._keeps_old_keys else {}
        return {**super().row(number), **old}


class LargeStub(Stub):
    """Source and target by number; everything else is the Azurite's."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.shape = Numbered(options.rows)
        self._behind = urlsplit(options.url)

    def answer(self, head: bytes, body: bytes) -> tuple[bytes, bytes, bytes]:
        """Return status, headers and body for a request."""
        _, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        path = target.partition("?")[0]
        if path.endswith("/$batch"):
            is_virtual = any(
                f"/{name}(".encode() in body or f"/{name} ".encode() in body for name in _DROPPED
            )
        else:
            is_virtual = path.rpartition("/")[2].partition("(")[0] in (_SOURCE, _TARGET)
        if not is_virtual and target != "/stats":
            return self._passed_on(head, body)
        if self.written[_TARGET] and not self.target.rows:
            old = self.options.keeps_old_keys
            self.target = Prefixed(self.shape.rows, keeps_old_keys=old)
        return super().answer(head, body)

    def _passed_on(self, head: bytes, body: bytes) -> tuple[bytes, bytes, bytes]:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = dict(line.split(": ", 1) for line in lines)
        # They are few and far between: a connection of its own for each.
        connection = http.client.HTTPConnection(self._behind.hostname or "", self._behind.port, timeout=60)
        with closing(connection):
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
        text = "".join(f"{name}: {value}\r\n" for name, value in kept)
        return f"{answer.status} {answer.reason}".encode(), text.encode("latin-1"), content


_DROPPED = (_TARGET, MAPPING_TABLE)


class _LargeStubProcess(StubProcess):
    module = "benchmarks.large_life"


def measure(rows: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the figures of a life without a mapping, and of one with a sealed one."""
    lives = {mapping: _life(rows, mapping, say) for mapping in ("none", "sealed")}
    state_mb = max(life["state_bytes"] for life in lives.values()) / 1e6
    memory = max(life["peak_rss_mib"] for life in lives.values())
    return {
        "state_file": figure(f"at most {MOST_STATE_MB} MB", state_mb, state_mb <= MOST_STATE_MB),
        "peak_rss": figure(f"at most {MOST_MIB} MiB", memory, memory <= MOST_MIB),
        "lives": lives,
    }


def _life(rows: int, mapping: str, say: Callable[[str], None]) -> dict[str, Any]:
    taken: dict[str, Measured] = {}
    properties, options = _KEEPS_OLD_KEYS if mapping == "sealed" else ("[]", ())
    with (
        Azurite() as azurite,
        tempfile.TemporaryDirectory() as name,
        _LargeStubProcess(rows, azurite.tables.endpoint, *options) as stub,
    ):
        folder = Path(name) / "project"
        environ = project.make(folder, azurite)
        project.fill(azurite, 0)
        script = folder / "migrations" / f"{project.SCRIPT_ID}.py"
        script.write_text(_SCRIPT.format(mapping=mapping, properties=properties), "utf-8")
        config = folder / "rekey.toml"
        text = config.read_text("utf-8")
        config.write_text(text.replace(f":{azurite.port}/", f":{stub.port}/"), "utf-8")
        for step, words in _STEPS.items():
            say(f"{rows:,} rows, mapping={mapping!r}: rekey {' '.join(words)}")
            taken[step] = run(["rekey", *words], folder=folder, environ=environ)
        written = stub.stats()["tables"]
        state = sum(path.stat().st_size for path in folder.rglob("*.sqlite*"))
    return {
        "rows": rows,
        "rows_written": written,
        "steps": {step: measured.as_json(rows) for step, measured in taken.items()},
        "state_bytes": state,
        "peak_rss_mib": round(max(measured.peak_mib for measured in taken.values()), 1),
    }


def main(words: Sequence[str]) -> None:
    """Serve until the input ends."""
    options = parser()
    options.add_argument("url", help="of the Azurite behind it")
    options.add_argument("--keeps-old-keys", action="store_true", help="target rows have them as a property")
    asyncio.run(serve(LargeStub(options.parse_args(words))))


if __name__ == "__main__":
    main(sys.argv[1:])
