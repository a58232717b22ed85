"""No old key, no value, no secret and no account key is printed, logged, or left in a file, at any verbosity.

Canaries stand for them: random letters that nothing else in the world holds. Every byte that the commands
write is searched for them, in the forms in which they could have been written: plain, in any case, backwards,
percent-encoded, base64, hexadecimal, UTF-16.

The state file and the restricted account are searched, too: the mapping is sealed. `--show-keys` and `lookup`
are the only ways to see keys; that they do shows that the search finds. What is written on the way and gone
at the end is searched in test_traced.py.

Soak: an endpoint that goes down; answers that echo keys, without `--json`.
Reason, and what `make test` covers: minutes of waiting; the same answers with `--json`.
"""

from __future__ import annotations

import asyncio
import base64
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from rekey.model import Row
from rekey.rehearse.azurite import Azurite
from tests.asserts.canaries import Canaries
from tests.fakes.fault_proxy import Fault, FaultProxy, error_answer
from tests.worlds.azurite_projects import RESTRICTED, Project

pytestmark = pytest.mark.azurite
PARTS = {f"Sealed{number}" for number in range(9)}
LOUD = ("-vv", "--debug")

SCRIPT = '''\
"""E-mail RowKeys to opaque ids, with an index by team."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque(keys.ROW_KEY, domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail"), props.drop("Ssn")],
    ),
    indexes=[
        Index("INDEX", each=keys.split("Teams", ","), partition_key=keys.item(), row_key=keys.prop("RowKey")),
    ],
    capture="delta",
    waive={"personal-data": "made-up addresses, to be looked for in output"},
)
'''
USUAL = SCRIPT.replace("keys.ROW_KEY", 'keys.prop("RowKey")')


def test_the_search_finds_every_form() -> None:
    """Else the other tests show nothing."""
    canaries = Canaries.of(random.Random(1))
    text = canaries.texts["row key"]
    written = [
        text.encode(),
        text.upper().encode(),
        text[::-1].encode(),
        b"user='" + quote(f"<{text}@>").encode(),
        base64.b64encode(b"ab" + text.encode() + b"@mail.example"),
        base64.urlsafe_b64encode(b"a" + text.encode() + b"@mail.example"),
        base64.b64encode(text.encode("utf-16-le") + b"more"),
        text.encode("utf-16"),
        b"0x" + text.encode().hex().upper().encode(),
    ]
    for data in written:
        assert canaries.found_in(b"before " + data + b" after") == {"row key"}, data
    assert canaries.found_in(b"nothing of the kind") == set()


class Watched:
    """A project whose keys, values and secrets are canaries."""

    def __init__(self, folder: Path, azurite: Azurite) -> None:
        self.canaries = Canaries.of(random.SystemRandom())
        self.project = Project(folder, azurite)
        texts = self.canaries.texts
        self.project.environment["ACCEPTANCE_SECRET"] = texts["secret"] + "0123456789"
        texts["tables key"], texts["restricted key"] = azurite.tables.key, azurite.restricted.key
        self.project.script(USUAL)
        self.project.fill(self.row(number) for number in range(150))

    def row(self, number: int, **more: object) -> Row:
        texts = self.canaries.texts
        return {
            "PartitionKey": f"{texts['partition key']}-{number % 3}",
            "RowKey": f"{texts['row key']}.{number:04d}@mail.example",
            "Ssn": texts["value"],
            "Teams": "red,blue",
            **more,
        }

    def check(self) -> None:
        """Look through everything that was printed, every file that was left (the state file, too), and every
        row of the restricted account."""
        project = self.project
        for ran in project.ran:
            for stream, text in (("output", ran.out), ("error", ran.err)):
                found = self.canaries.found_in(text.encode())
                assert not found, f"`{' '.join(ran.words)}` wrote {found} to standard {stream}:\n{text}"
            assert "Traceback" not in ran.err + ran.out, ran
        for path in sorted(project.folder.rglob("*")):
            if path.is_file():
                assert not self.canaries.found_in(path.read_bytes()), f"{path} was left with a canary in it"
        assert not list((project.folder / "tmp").iterdir()), "temporary files are left"
        for table in set(RESTRICTED) & set(project.restricted.names()):
            for row in project.restricted_rows(table):
                sealed = [base64.b64decode(text) for name, text in row.items() if name in PARTS]
                for data in (str(row).encode(), *sealed):
                    assert not self.canaries.found_in(data), f"a row of {table} holds a canary"


@pytest.fixture
def watched(tmp_path: Path, azurite: Azurite) -> Watched:
    return Watched(tmp_path, azurite)


def test_a_whole_life_says_nothing(watched: Watched) -> None:
    """Plan, apply, verify with findings, repair, cutover, rollback, complete, retire: as loud as can be."""
    project, wire = watched.project, watched.project.wire
    run = project.run
    run("plan", "--exact", "--out", "plan.json", *LOUD).ended(0)
    run("plan", "--json", *LOUD).ended(0)
    run("apply", "--plan", "plan.json", *LOUD).ended(0)
    gone, altered, *_ = wire.rows(project.target)
    wire.delete(project.target, (gone["PartitionKey"], gone["RowKey"]))
    wire.replace(project.target, {**altered, "ContactEmail": "other"})
    wire.insert(project.target, watched.row(999))
    wire.delete(project.index, ("red", watched.row(0)["RowKey"]))
    for how in (("--mode", "count"), ("--mode", "sample"), ("--json",), ("--repair",)):
        run("verify", *how, *LOUD).ended(1)
    run("verify", *LOUD).ended(0)
    run("apply", "--to", "cutover", "--writers-stopped", "--json", *LOUD).ended(0)
    wire.replace(project.target, {**altered, "More": watched.canaries.texts["value"]})
    run("rollback", "--writers-stopped", *LOUD).ended(0)
    run("status", "--json", *LOUD).ended(0)
    run("apply", "--to", "complete", "--writers-stopped", "--yes", project.script_id, *LOUD).ended(0)
    run("evidence", "keygen", *LOUD).ended(0)
    with (project.folder / "rekey.toml").open("a", encoding="utf-8") as file:
        file.write('[evidence]\nkey_file = "evidence.pem"\n')
    run("evidence", "export", "evidence", *LOUD).ended(0)
    run("evidence", "verify", "evidence", *LOUD).ended(0)
    run("evidence", "recompute", "evidence", "--json", *LOUD)
    time.sleep(2)  # a retention of one second, by a clock that tells whole seconds
    run("retire", "--table", project.source, "--no-backup", "a test", *LOUD).ended(0)
    run("status", *LOUD).ended(0)
    watched.check()


def test_what_is_refused_and_what_fails_says_nothing(watched: Watched) -> None:
    """Collisions, rows that cannot be mapped, functions that raise with a key in their text, wrong keys."""
    project, run = watched.project, watched.project.run
    (project.migrations / "_own.py").write_text(
        "def key(row):\n    raise ValueError('cannot do ' + row['RowKey'] + repr(row))\n", "utf-8"
    )
    for expression in (
        'keys.part(keys.prop("RowKey"), "@", 1)',
        'keys.prop("RowKey") + keys.prop("Ssn") + keys.prop("NoSuch")',
        'keys.join("", *[keys.prop("RowKey")] * 50)',
        'keys.prop("RowKey") + keys.literal("/")',
        'keys.date("RowKey", "yyyy-MM")',
        'keys.custom("_own:key", version="1")',
    ):
        project.script(SCRIPT.replace('keys.opaque(keys.ROW_KEY, domain="user", secret="users")', expression))
        run("plan", "--exact", "--json", *LOUD)
        ran = run("apply", *LOUD)
        assert ran.code in (1, 2), (expression, ran)
    project.script(f"import os\nraise ValueError(os.environ['ACCEPTANCE_SECRET'])\n{USUAL}")
    run("apply", *LOUD).ended(2)
    project.script(USUAL)
    secret = watched.canaries.texts["secret"]
    run("apply", *LOUD, ACCEPTANCE_SECRET=secret[:10]).ended(2)
    run("apply", *LOUD, ACCEPTANCE_TABLES_KEY=secret + "-no-base64").ended(2)
    run("apply", *LOUD, ACCEPTANCE_TABLES_KEY=base64.b64encode(secret.encode()).decode()).ended(4)
    watched.check()


@contextmanager
def _proxied(azurite: Azurite) -> Iterator[FaultProxy]:
    """Run a proxy before Azurite in a thread of its own."""
    started, stop = threading.Event(), asyncio.Event()
    running: list[tuple[FaultProxy, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        async with FaultProxy(f"http://127.0.0.1:{azurite.port}") as proxy:
            running.append((proxy, asyncio.get_running_loop()))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait(30)
    proxy, loop = running[0]
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@pytest.mark.parametrize(
    "words", [("apply", "--json"), pytest.param(("apply",), marks=pytest.mark.soak)], ids=" ".join
)
def test_a_service_that_echoes_keys_in_its_errors_is_not_repeated(
    watched: Watched, azurite: Azurite, words: tuple[str, ...]
) -> None:
    """Answers in the middle of a backfill: busy, forbidden, malformed; their texts are not ours to show."""
    project = watched.project
    echoing = error_answer(403, "AuthorizationFailure")
    key = watched.row(7)["RowKey"].encode()
    echoing.body = echoing.body.replace(b"ada@example.org", key)
    busy = error_answer(503, "ServerBusy")
    busy.body = busy.body.replace(b"ada@example.org", key)
    broken = error_answer(200)
    broken.body = b'{"value": [' + key
    project.configure(window_rows=50)
    with _proxied(azurite) as proxy:
        project.configure(window_rows=50, tables=f"{proxy.address}/tables")
        proxy.faults += [
            Fault(method="POST", target="$batch", answer=busy, times=2, skip=1),
            Fault(method="GET", target="Source()", answer=broken, times=1, skip=2),
            Fault(method="POST", target="$batch", applied=True, answer=None, times=1, skip=2),
            Fault(method="POST", target="$batch", answer=echoing, times=1000, skip=4),
        ]
        project.run(*words, *LOUD).ended(4, "AuthorizationFailure")
        proxy.faults.clear()
        project.run(*words, *LOUD).ended(0)
    watched.check()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_endpoint_that_goes_down_in_the_middle_is_told_without_a_key(
    watched: Watched, azurite: Azurite
) -> None:
    """It is waited for as long as for a busy one, some minutes in all; then the command ends with 4."""
    project = watched.project
    with _proxied(azurite) as proxy:
        project.configure(window_rows=50, tables=f"{proxy.address}/tables")

        async def goes_down() -> None:
            await proxy.stop_listening()

        proxy.faults.append(Fault(method="POST", target="$batch", meanwhile=goes_down, skip=5))
        project.start("apply", *LOUD).wait(500).ended(4, "no connection to http", "Next:")
        assert project.segments()
    watched.check()


def test_only_show_keys_and_lookup_show_keys(watched: Watched) -> None:
    """And neither shows a secret, nor a value."""
    project, run = watched.project, watched.project.run
    for how in ((), ("--json", "--out", "plan.json")):
        shown = run("plan", "--show-keys", *how).ended(0)
        assert watched.canaries.found_in(shown.out.encode()) == {"partition key", "row key"}
    run("apply").ended(0)
    row = watched.row(5)
    ran = run("lookup", "--old", row["PartitionKey"], row["RowKey"], "--reason", "ticket 4711", *LOUD).ended(
        0
    )
    assert watched.canaries.found_in(ran.out.encode()) == {"partition key", "row key"}
    assert watched.canaries.found_in(ran.err.encode()) == set()
    run("lookup", "--old", row["PartitionKey"], row["RowKey"], "--reason", f"of {row['RowKey']}").ended(2)
    # The plan file never holds keys, and nobody learns from the log what was looked up.
    project.ran[:] = [
        ran for ran in project.ran if "--show-keys" not in ran.words and ran.words[0] != "lookup"
    ]
    watched.check()
