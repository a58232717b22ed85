"""A project on disk, the Azurite of the test run, and the installed command `rekey` as a process.

Rules kept here:

* What a command did is read back over the raw wire (`Wire`: HTTP and JSON, nothing of rekey), so that the
  table layer that copied does not vouch for itself.
* Table names and script ids are those of one project alone: tests share an Azurite, never a row.
* Temporary files of the command go to a folder of the project, where a test can look at them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.client
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from rekey.copy.batches import pack
from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.mapping.sealing import (
    FORWARD,
    REVERSE,
    ROOT,
    SEALED,
    DataKey,
    LocalWrappingKey,
    SealedKeys,
    Sealer,
    cursors_key,
    read_data_key,
)
from rekey.model import Row, content_of
from rekey.rehearse.azurite import Azurite, AzuriteAccount
from rekey.state.models import Segment
from rekey.state.store import State
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Operation, Verb
from rekey.tables.credentials import SharedKey
from tests.fakes.given_account import IS_GIVEN, MADE, RUN
from tests.worlds.forking import Forked
from tests.worlds.scripts import named

_NUMBERS = itertools.count(RUN * 1000 if IS_GIVEN else 1)
_SECONDS = 120
RESTRICTED = ("rekeycontrol", "rekeyjournal", "rekeymap")
Key = tuple[str, str]


def command() -> str:
    """Return the path of the command as it was installed with the package."""
    path = Path(sys.executable).with_name("rekey")
    assert path.exists(), "the package must be installed: its command is what is tested"
    return str(path)


# --- the wire -------------------------------------------------------------------------------------------


class Wire:
    """The tables of one account over plain HTTP: wire rows as they are, pages put together.

    Tables whose names end with `@targets` are those of the account `elsewhere`.
    """

    def __init__(self, account: AzuriteAccount, elsewhere: AzuriteAccount | None = None) -> None:
        self._elsewhere = None if elsewhere is None else Wire(elsewhere)
        parts = urlsplit(account.endpoint)
        self._connect = http.client.HTTPConnection if parts.scheme == "http" else http.client.HTTPSConnection
        if not account.key:
            pytest.skip("needs the account's key: what a command did is read back with it")
        self._account, self._key = account.name, base64.b64decode(account.key)
        self._base = parts.path
        self._host, self._port = parts.hostname or "", parts.port

    def ask(
        self, method: str, path: str, body: Row | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request; return status, headers (lower case) and body."""
        if self._elsewhere is not None and TARGET_ACCOUNT_SUFFIX in path:
            return self._elsewhere.ask(method, path.replace(TARGET_ACCOUNT_SUFFIX, ""), body, headers)
        target = f"{self._base}/{path}"
        date = formatdate(usegmt=True)
        to_sign = f"{date}\n/{self._account}{target.partition('?')[0]}"
        signed = base64.b64encode(hmac.new(self._key, to_sign.encode(), hashlib.sha256).digest()).decode()
        all_headers = {
            "x-ms-date": date,
            "Date": date,
            "x-ms-version": "2019-02-02",
            "Authorization": f"SharedKeyLite {self._account}:{signed}",
            "Accept": "application/json;odata=minimalmetadata",
            "Content-Type": "application/json",
            **(headers or {}),
        }
        data = None if body is None else json.dumps(body).encode()
        with closing(self._connect(self._host, self._port, timeout=60)) as connection:
            connection.request(method, target, data, all_headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def _done(self, what: str, status: int, body: bytes) -> None:
        assert status in (200, 201, 202, 204), (what, status, body[:300])

    def create(self, table: str) -> None:
        """Create a table."""
        status, _, body = self.ask("POST", "Tables", {"TableName": table})
        self._done("create", status, body)

    def names(self) -> set[str]:
        """Return the names of all tables."""
        status, _, body = self.ask("GET", "Tables")
        self._done("names", status, body)
        others = () if self._elsewhere is None else self._elsewhere.names()
        return {one["TableName"] for one in json.loads(body)["value"]} | {
            f"{one}{TARGET_ACCOUNT_SUFFIX}" for one in others
        }

    def drop(self, table: str) -> None:
        """Delete a table with all its rows."""
        status, _, body = self.ask("DELETE", f"Tables('{table}')")
        self._done("drop", status, body)

    def insert(self, table: str, row: Row) -> None:
        """Insert one wire row."""
        status, _, body = self.ask("POST", table, row)
        self._done("insert", status, body)

    def replace(self, table: str, row: Row) -> None:
        """Replace one row, or insert it."""
        status, _, body = self.ask("PUT", self._address(table, _key(row)), row)
        self._done("replace", status, body)

    def merge(self, table: str, row: Row) -> None:
        """Set properties of one row that is there."""
        status, _, body = self.ask("MERGE", self._address(table, _key(row)), row, {"If-Match": "*"})
        self._done("merge", status, body)

    def delete(self, table: str, key: Key) -> None:
        """Delete one row."""
        status, _, body = self.ask("DELETE", self._address(table, key), headers={"If-Match": "*"})
        self._done("delete", status, body)

    def rows(self, table: str, partitions: Key | None = None) -> list[Row]:
        """Return all rows of a table as the service sends them; [] when there is no such table.

        Args:
            table: its name.
            partitions: lowest PartitionKey, and the first that is too high.
        """
        found: list[Row] = []
        query = ""
        if partitions is not None:
            low, high = (part.replace("'", "''") for part in partitions)
            query = "$filter=" + quote(f"PartitionKey ge '{low}' and PartitionKey lt '{high}'")
        token = ""
        while True:
            status, headers, body = self.ask("GET", f"{table}()?{'&'.join(filter(None, (query, token)))}")
            if status == 404:
                return []
            self._done("rows", status, body)
            found += json.loads(body)["value"]
            if "x-ms-continuation-nextpartitionkey" not in headers:
                return found
            token = "&".join(
                f"{name}={quote(headers[header], safe='')}"
                for name, header in (
                    ("NextPartitionKey", "x-ms-continuation-nextpartitionkey"),
                    ("NextRowKey", "x-ms-continuation-nextrowkey"),
                )
                if header in headers
            )

    def contents(self, table: str) -> dict[Key, Row]:
        """Return the rows of a table by key, without ETag and Timestamp."""
        rows = self.rows(table)
        found = {_key(row): content_of(row) for row in rows}
        assert len(found) == len(rows), "the service gave a key twice"
        return found

    @staticmethod
    def _address(table: str, key: Key) -> str:
        partition, row = (quote(part.replace("'", "''"), safe="") for part in key)
        return f"{table}(PartitionKey='{partition}',RowKey='{row}')"


def _key(row: Row) -> Key:
    return row["PartitionKey"], row["RowKey"]


def load(account: AzuriteAccount, table: str, rows: Iterable[Row]) -> None:
    """Create a table and insert rows quickly, through the package's own batches."""

    async def write() -> None:
        async with AzureTableService.open(
            account.endpoint, SharedKey.of(account.name, account.key)
        ) as tables:
            await tables.create_table(table)
            opened = tables.table(table)
            for batch in pack([Operation(Verb.INSERT, row) for row in rows], opened.encoded_size):
                await opened.transact(batch)

    asyncio.run(write())


# --- the command ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """One command that has ended: words, exit code (negative: a signal), what it printed."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document that `--json` prints."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def said(self) -> str:
        """Both streams, spaces evened out, so that wrapped text can be searched."""
        return re.sub(r"\s+", " ", self.out + "\n" + self.err)

    def ended(self, code: int, *parts: str) -> Ran:
        """Check exit code and words of the message, and that nothing looks like a crash."""
        told = f"rekey {' '.join(self.words)} ended with {self.code}\n{self.out}\n{self.err}"
        assert self.code == code, told
        assert "Traceback" not in self.out + self.err, told
        assert "fault of rekey" not in self.out + self.err, told
        for part in parts:
            assert part in self.said, f"{part!r} is not in what it said; {told}"
        return self


class Running:
    """A command under way."""

    def __init__(
        self, project: Project, words: tuple[str, ...], process: subprocess.Popen[bytes] | Forked
    ) -> None:
        self._project, self._words, self.process = project, words, process

    def wait(self, seconds: float = _SECONDS) -> Ran:
        """Wait for its end, not longer than some seconds."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"{self._words} did not end: {out!r} {err!r}") from None
        ran = Ran(
            self._words,
            self.process.returncode,
            out.decode("utf-8", "replace"),
            err.decode("utf-8", "replace"),
        )
        self._project.ran.append(ran)
        return ran

    def until_it_works(self) -> bool:
        """Wait until it holds the lock of the state file; False when it ended before."""
        return self.until(lambda: str(self.process.pid) in self._project.lock_text())

    def until(self, happened: Callable[[], bool]) -> bool:
        """Wait until something has happened; False when the command ended before."""
        deadline = time.monotonic() + _SECONDS
        while not happened():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"{self._words}: what was waited for did not happen"
            time.sleep(0.01)
        return True

    def signal(self, number: int) -> Ran:
        """Send a signal and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def kill(self) -> Ran:
        """End it by SIGKILL."""
        return self.signal(signal.SIGKILL)


@dataclass
class Project:
    """A folder with configuration and one script, whose tables and script id no other project has.

    Attributes:
        from_nothing: run the installed command, instead of what is forked.
        elsewhere: the account of targets; then the target there has the name of the source. None: there is
            no such account.
    """

    folder: Path
    azurite: Azurite
    from_nothing: bool = False
    number: int = field(default_factory=lambda: next(_NUMBERS))
    environment: dict[str, str] = field(default_factory=dict)
    ran: list[Ran] = field(default_factory=list)
    elsewhere: AzuriteAccount | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.migrations.mkdir(exist_ok=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        self.source, self.target, self.index = (
            f"T{self.number}{base}" for base in ("Source", "Target", "Index")
        )
        if self.elsewhere is not None:
            self.target = f"{self.source}{TARGET_ACCOUNT_SUFFIX}"
            self.environment["ACCEPTANCE_TARGETS_KEY"] = self.elsewhere.key
        MADE.update((self.source, self.target, self.index))
        self.script_id = f"{self.number:04d}_subject"
        self.state = self.folder / "state" / "state.sqlite"
        self.wire = Wire(self.azurite.tables, self.elsewhere)
        self.restricted = Wire(self.azurite.restricted)
        self.environment |= {
            "ACCEPTANCE_TABLES_KEY": self.azurite.tables.key,
            "ACCEPTANCE_RESTRICTED_KEY": self.azurite.restricted.key,
            "ACCEPTANCE_SECRET": "0123456789abcdef0123456789abcdef",
            "ACCEPTANCE_WRAPPING_KEY": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        }
        self.configure()

    @property
    def migrations(self) -> Path:
        """The folder of the scripts."""
        return self.folder / "migrations"

    def configure(
        self,
        *,
        window_rows: int = 500,
        entities_per_second: int | None = None,
        tables: str | None = None,
        restricted: str | None = None,
        state: Path | None = None,
        more: str = "",
    ) -> None:
        """Write the configuration."""
        self.state = state or self.state
        if self.elsewhere is not None:
            more += f'\n[targets]\nendpoint = "{self.elsewhere.endpoint}"\nkey_env = "ACCEPTANCE_TARGETS_KEY"'
        rate = f"entities_per_second = {entities_per_second}" if entities_per_second else ""
        (self.folder / "rekey.toml").write_text(
            f"""\
[tables]
endpoint = "{tables or self.azurite.tables.endpoint}"
key_env = "ACCEPTANCE_TABLES_KEY"
[restricted]
endpoint = "{restricted or self.azurite.restricted.endpoint}"
key_env = "ACCEPTANCE_RESTRICTED_KEY"
[state]
path = "{self.state}"
[secrets.users]
env = "ACCEPTANCE_SECRET"
[sealing]
env = "ACCEPTANCE_WRAPPING_KEY"
[limits]
window_rows = {window_rows}
{rate}
[gates]
retention = "1s"
margin = "1s"
{more}
""",
            "utf-8",
        )

    def script(self, text: str, name: str | None = None) -> Path:
        """Write a script in which SOURCE, TARGET and INDEX stand for this project's tables."""
        path = self.migrations / f"{name or self.script_id}.py"
        path.write_text(named(text, self.source, self.target, self.index), "utf-8")
        return path

    def fill(self, rows: Iterable[Row]) -> None:
        """Make the source table with rows."""
        load(self.azurite.tables, self.source, rows)

    def start(self, *words: str, within: tuple[str, ...] = (), **environment: str | None) -> Running:
        """Start `rekey WORDS`; `within` is a program (with words) that runs it, None unsets a variable.

        It is forked, unless it is to be the installed command from nothing (see `forking`).
        """
        variables = {
            **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
            "COLUMNS": "100",
            "TMPDIR": str(self.folder / "tmp"),
            **self.environment,
            **environment,
        }
        given = {name: value for name, value in variables.items() if value is not None}
        if not (within or self.from_nothing):
            return Running(self, words, Forked(words, self.folder, given))
        process = subprocess.Popen(
            [*within, command(), *words],
            cwd=self.folder,
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return Running(self, words, process)

    def run(self, *words: str, within: tuple[str, ...] = (), **environment: str | None) -> Ran:
        """Run `rekey WORDS` to its end."""
        return self.start(*words, within=within, **environment).wait()

    def lock_text(self) -> str:
        """Return what the holder of the file lock wrote."""
        path = self.state.with_name(self.state.name + ".lock")
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def segments(self, purpose: str = "backfill") -> list[Segment]:
        """Return the checkpoints as they are in the state file."""
        keys = self.data_keys()
        with State.open(self.state, read_only=True) as state:
            if ROOT in keys:
                found = [row for row in self.restricted_rows("rekeycontrol") if row["RowKey"] == "control"]
                key = cursors_key(keys[ROOT], base64.b64decode(found[0]["IdKey"])) if found else bytes(32)
                state.use_keys(self.script_id, SealedKeys(self.script_id, key))
            return state.segments(self.script_id, purpose)

    def data_keys(self) -> dict[str, DataKey]:
        """Return the data keys of a sealed migration by cohort; none of one in the clear."""
        wrapping = LocalWrappingKey(self.environment["ACCEPTANCE_WRAPPING_KEY"].encode())
        rows = self.restricted.rows("rekeymap", (f"{self.script_id}.k", f"{self.script_id}.l"))
        return {row["RowKey"]: read_data_key(self.script_id, row, wrapping) for row in rows}

    # --- what is there -----------------------------------------------------------------------------------

    def restricted_rows(self, table: str) -> list[Row]:
        """Return this migration's rows of a table of the restricted store."""
        return self.restricted.rows(table, (self.script_id, self.script_id + "~"))

    def mapping(self) -> list[tuple[Any, ...]]:
        """Return what the mapping table says, sorted, without its row keys (they are keyed per migration)."""
        found: list[tuple[Any, ...]] = []
        sealer = Sealer()
        for key in self.data_keys().values():
            sealer.add(key)
        for row in self.restricted_rows("rekeymap"):
            direction = row["PartitionKey"].removeprefix(self.script_id)[1]
            if direction == "k":
                continue
            if SEALED not in "".join(row):
                old, rest = [row["OldPartitionKey"], row["OldRowKey"]], json.loads(row.get("Targets0", "[]"))
                rest = rest or [row["NewPartitionKey"], row["NewRowKey"]]
            else:
                purpose = FORWARD if direction == "f" else REVERSE
                old, rest = json.loads(sealer.unseal(purpose, "rekeymap", row, lane=row["RowKey"][0]))
            if direction == "r":
                found.append(("reverse", tuple(old), tuple(rest)))
            else:
                found.append(("forward", tuple(old), tuple(tuple(target) for target in rest)))
        return sorted(found)

    def everything(self) -> dict[str, Any]:
        """Return all there is of this project in both accounts, ETags included, and what tables there are."""
        return {
            "tables": self.wire.names(),
            "restricted tables": self.restricted.names(),
            **{name: self.wire.rows(name) for name in (self.source, self.target, self.index)},
            **{name: self.restricted_rows(name) for name in RESTRICTED},
        }

    def remembered(self) -> dict[str, list[Any]]:
        """Return what the state file says of migrations: {} when it does not exist or knows none."""
        if not self.state.is_file():
            return {}
        found = {}
        with closing(sqlite3.connect(f"file:{quote(str(self.state))}?mode=ro", uri=True)) as connection:
            for table in ("migration", "segment", "fact", "verification"):
                rows = connection.execute(f"select * from {table}").fetchall()
                if rows:
                    found[table] = rows
        return found


def keys_of(rows: Iterable[Row]) -> Iterator[Key]:
    """Yield the keys of rows."""
    return (_key(row) for row in rows)


def users(count: int) -> list[Row]:
    """Return rows whose RowKey is an e-mail address, in five partitions."""
    return [
        {
            "PartitionKey": f"tenant-{number % 5}",
            "RowKey": f"user{number:05d}@mail.example",
            "Nm": f"User {number}",
            "Ssn": f"{number:09d}",
            "Logins": number,
        }
        for number in range(count)
    ]


def posts(count: int) -> list[Row]:
    """Return rows with a month and some tags."""
    tags = ("azure", "cloud", "keys", "news", "ops")
    return [
        {
            "PartitionKey": f"blog-{number % 3}",
            "RowKey": f"slug-{number * 7919 % 100_003:06d}",
            "Month": f"2024-{number % 12 + 1:02d}",
            "Title": f"Post {number}",
            "Tags": ",".join(tags[: number % 4]),
        }
        for number in range(count)
    ]


def unused_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
