"""The installed `rekey proxy` with the SDK's own, unmodified clients: a whole migration while they write, old
and new versions at once, through kills; and the command itself: processes, health, the end.

Soak: a second kill and cutover, and the end.
Reason, and what `make test` covers: minutes of waiting for leases; the same way with one kill, to rollback.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from rekey.rehearse.azurite import Azurite
from tests.worlds.azurite_projects import Project, Running
from tests.worlds.fleet import Fleet, Stage, waited_for
from tests.worlds.issued_tokens import issued_token

pytestmark = pytest.mark.azurite
ROWS = 240
WRITTEN = [f"r{number}" for number in (*range(10), *range(ROWS, ROWS + 10))]
"""Half of what clients write is in the source from the beginning."""
PROXY = """
[proxy]
drain = "0s"
lease = "2s"
longest_operation = "2s"
request = "30s"
[proxy.access.keys.application]
env = "ACCEPTANCE_TABLES_KEY"
"""


def free_port() -> int:
    """Return a port that nobody listens on, nor on the one after it. Connections of other tests do not take
    it while its proxy is away: theirs are higher (`net.ipv4.ip_local_port_range`)."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, socket.socket() as next_one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            next_one.bind(("127.0.0.1", port + 1))
            return port


@dataclass
class Proxy:
    """One `rekey proxy`, which may be killed and started again at the same address."""

    project: Project
    words: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    admin: int = field(default_factory=free_port)
    running: Running | None = None
    is_secure: bool = False

    def start(self) -> Proxy:
        """Start it and wait until it is ready."""
        listen, admin = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.admin}"
        self.running = self.project.start("proxy", "--listen", listen, "--admin", admin, *self.words)
        assert self.running.until(lambda: self.ask("/health/readiness") == 200), self.running.wait()
        return self

    def ask(self, path: str, port: int = 0) -> int:
        """Return the status of an answer at the admin address, 0 for none."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.admin, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0  # also where nobody listens and TCP connects the socket to itself
        finally:
            connection.close()

    @property
    def endpoint(self) -> str:
        """What an application is given."""
        scheme = "https" if self.is_secure else "http"
        return f"{scheme}://127.0.0.1:{self.port}/{self.project.azurite.tables.name}"

    def end(self, number: int) -> int:
        """End it by a signal; return its exit code."""
        assert self.running is not None
        ran = self.running.signal(number)
        assert "Traceback" not in ran.err
        self.running = None
        return ran.code


@contextmanager
def proxies_of(project: Project, *proxies: Proxy, settings: str = PROXY) -> Iterator[tuple[Proxy, ...]]:
    """Configure and start proxies of a project; whatever still runs is killed at the end."""
    path = project.folder / "rekey.toml"
    path.write_text(path.read_text("utf-8") + settings, "utf-8")
    try:
        yield tuple(proxy.start() for proxy in proxies)
    finally:
        for proxy in proxies:
            if proxy.running is not None:
                proxy.running.kill()


def followed(stage: Stage) -> bool:
    """Tell whether all clients have acknowledged what the control row says."""
    epoch = int(stage.control()["Epoch"])
    return all(int(client["epoch"]) >= epoch for client in stage.clients())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("whole", "with_token"),
    [
        (False, False),
        pytest.param(True, False, marks=pytest.mark.soak),
        pytest.param(True, True, marks=pytest.mark.soak),
    ],
)
def test_unmodified_clients_lose_nothing_through_a_migration(
    tmp_path: Path, azurite: Azurite, whole: bool, with_token: bool
) -> None:
    """Through two proxies, one of which is killed in the backfill: apply, cutover, rollback. All acknowledged
    writes are in the tables, and replicas are alike. The whole one has another kill, cutover and the end."""
    world = "users" if whole else "posts"  # completed, rows under two keys are two rows from then on
    with ExitStack() as stack:
        stage = Stage(Project(tmp_path / "project", azurite), world)
        stage.load([f"r{number}" for number in range(ROWS)])
        issued = stack.enter_context(issued_token(tmp_path / "issued")) if with_token else None
        proxies = [Proxy(stage.project, is_secure=with_token) for _ in range(2)]
        settings = PROXY + (issued.settings if issued is not None else "")
        one, other = stack.enter_context(proxies_of(stage.project, *proxies, settings=settings))
        where = replace(stage.where, proxies=(one.endpoint, other.endpoint))
        if issued is not None:
            where = replace(where, token=issued.token, ca=str(issued.ca))
        fleet = stack.enter_context(Fleet(tmp_path / "clients", where, world, WRITTEN))
        pause = 0.05 if whole else 1.0
        for name, view in (("old-a", "old"), ("old-b", "old"), ("new-a", "new"), ("new-b", "new")):
            fleet.start(name, view, pause=pause, tasks=2 if whole else 1)
        fleet.until_writing("old-a", "old-b", more=2)
        running = stage.project.start("apply")
        running.until(lambda: stage.phase() == "dual_write" and followed(stage))
        assert other.end(signal.SIGKILL) == -signal.SIGKILL
        other.start()
        running.wait().ended(0)
        fleet.until_writing(more=2)
        assert {client["name"] for client in stage.clients()} == {"proxy"}
        stage.project.run("apply", "--to", "cutover").ended(0)
        fleet.until_writing(more=2)
        stage.compare(fleet, "new")
        if whole:
            other.end(signal.SIGKILL)
            other.start()
        stage.project.run("rollback").ended(0)
        fleet.until_writing(more=2)
        stage.compare(fleet, "old")
        if not whole:
            fleet.stop()
            return
        stage.project.run("verify", "--mode", "full").ended(0)
        stage.project.run("apply", "--to", "cutover").ended(0)
        fleet.until_writing(more=2)
        complete = ("apply", "--to", "complete", "--yes", stage.project.script_id)
        stage.project.run(*complete).ended(3, "clients still use the old view", "proxy")
        fleet.end("old-a", "old-b")
        for proxy in (one, other):  # which nobody asks for the old view any more
            assert proxy.end(signal.SIGTERM) == 0
            proxy.start()
        waited_for("the end of the old view", lambda: not stage.living("old"))
        stage.project.run(*complete).ended(0)
        fleet.until_writing(more=2)
        print(stage.compare(fleet, "new"))
        fleet.stop()


def test_processes_share_a_port_and_one_that_ends_is_started_again(tmp_path: Path, azurite: Azurite) -> None:
    """The installed command: also where its port is taken for a moment. All of its processes end with it, in
    order, and also when it is killed."""
    project = Project(tmp_path / "project", azurite, from_nothing=True)
    project.script(SCRIPT)
    with proxies_of(project, Proxy(project, ("--processes", "2"))) as (proxy,):
        assert proxy.running is not None
        parent = psutil.Process(proxy.running.process.pid)
        waited_for("the second process", lambda: proxy.ask("/health/readiness", proxy.admin + 1) == 200)
        first, second = parent.children()
        with socket.socket() as taking:
            os.kill(second.pid, signal.SIGKILL)
            waited_for("its end", lambda: parent.children() == [first])
            taking.bind(("127.0.0.1", proxy.admin + 1))
            taking.listen()
            waited_for("another one", lambda: len(parent.children()) == 2)
            waited_for("its end", lambda: parent.children() == [first])
            assert proxy.ask("/health/readiness") == 200
        waited_for("its health", lambda: proxy.ask("/health/readiness", proxy.admin + 1) == 200)
        children = parent.children()
        assert proxy.end(signal.SIGTERM) == 0
        assert not any(one.is_running() for one in children)
        proxy.start()
        assert proxy.running is not None
        children = psutil.Process(proxy.running.process.pid).children()
        assert proxy.end(signal.SIGKILL) == -signal.SIGKILL
        waited_for("the end of the children", lambda: not psutil.wait_procs(children, 0.1)[1])


SCRIPT = '''\
"""Users by id."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
        properties=[props.copy("RowKey", to="Mail")],
    ),
    capture="dual-write",
)
'''


def test_the_end_is_told_before_it_comes(tmp_path: Path, azurite: Azurite) -> None:
    """From SIGTERM on readiness says no, while requests are still answered."""
    project = Project(tmp_path / "project", azurite)
    project.script(SCRIPT)
    with proxies_of(project, Proxy(project)) as (proxy,):
        assert proxy.running is not None
        assert proxy.end(signal.SIGTERM) == 0
        path = project.folder / "rekey.toml"
        path.write_text(path.read_text("utf-8").replace('drain = "0s"', 'drain = "3s"'), "utf-8")
        proxy.start()
        assert proxy.running is not None
        process = proxy.running.process
        process.send_signal(signal.SIGTERM)
        waited_for("no more readiness", lambda: proxy.ask("/health/readiness") == 503)
        assert proxy.ask("/health/liveness") == 200
        assert proxy.ask("/", proxy.port) == 403, "it answers: who asks shows no credential"
        assert proxy.running.wait().code == 0
        proxy.running = None
