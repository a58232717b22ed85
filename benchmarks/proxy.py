"""What `rekey proxy` costs: point reads of a table that passes, dual-written inserts, memory of connections.

Rules kept here:

* The proxy is the command with processes of its own. Point reads go to a stub that answers at once, so that
  the proxy is what is measured; requests are signed once, and answers only counted.
* Added latency is that of the same request, one at a time over one connection, in turns through the proxy and
  to the stub itself: median against median, 99th percentile against 99th percentile.
* Reads a second "on one core" are those for each second of a processor: stub and asker need cores.
  Several processes are the sum over them. The wall clock says as much only where there
  are cores for all.
* A token is sent over TLS, so its point read is compared with that of a shared key over TLS, in turns; the
  added latency is over the stub itself, TLS included. The token is verified once and remembered.
* Inserts are timed through the SDK's own client, 30 ms from the accounts, against the same without a proxy.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import selectors
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import psutil

from benchmarks import dualwrite, project
from benchmarks.asked import figure
from benchmarks.issuer import SECTION, issuing
from benchmarks.latency import Latency
from benchmarks.stub import ACCOUNT, KEY, POINTS, StubProcess
from rekey.proxy.trial import trial_files
from rekey.rehearse.azurite import Azurite

CONNECTIONS = 32
MOST_ADDED_MS = {"median": 0.5, "p99": 3.0}
MOST_ADDED_BY_TOKEN_MS = 0.6
LEAST_READS, LEAST_TIMES_TWO = 4_000, 1.8
MOST_TIMES_INSERT = 3.2
OPEN_CONNECTIONS, MOST_MIB = 2_000, 300
_WARM_S = 1.0
_APPLICATION_KEY = base64.b64encode(b"a key of the application, 32 bytes and more").decode()
_ON_STUB = """\
[tables]
endpoint = "{endpoint}"
key_env = "BENCH_STUB_KEY"
[restricted]
endpoint = "{endpoint}"
key_env = "BENCH_STUB_KEY"
"""
_PROXY = """\
[proxy]
drain = "0s"
connections = 4000
[proxy.access.keys.application]
env = "{key}"
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Requests one at a time, seconds under load, open connections, dual-written inserts."""

    turns: int = 4_000
    seconds: float = 8.0
    connections: int = OPEN_CONNECTIONS
    calls: int = dualwrite.CALLS


FULL = Sizes()
QUICK = Sizes(50, 0.5, 50, 2)


def measure(sizes: Sizes, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the figures, each beside what is asked for."""
    with ExitStack() as stack:
        stub = stack.enter_context(StubProcess(0))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "migrations").mkdir()
        script = dualwrite.KINDS[1]  # which needs no secret; nobody asks for its tables
        (folder / "migrations" / f"{script.script_id}.py").write_text(script.script, "utf-8")
        (folder / "rekey.toml").write_text(
            _ON_STUB.format(endpoint=stub.endpoint) + _PROXY.format(key="BENCH_PROXY_KEY"), "utf-8"
        )
        environ = {
            **os.environ,
            "BENCH_STUB_KEY": KEY,
            "BENCH_PROXY_KEY": _APPLICATION_KEY,
            "PYTHONPATH": project.python_path(),
        }
        with _proxy(folder, environ) as one:
            say(f"{sizes.turns:,} point reads in turns, through a proxy and without")
            added = _added(stub.port, one.port, sizes.turns)
            say(f"point reads over {CONNECTIONS} connections, one process")
            alone = _load(one, sizes.seconds)
        token = _token(stack, folder, stub.port, environ, sizes.turns, say)
        with _proxy(folder, environ) as one:
            say(f"{sizes.connections:,} open connections")
            mib = _memory(one, sizes.connections)
        with _proxy(folder, environ, processes=2) as both:
            say(f"point reads over {CONNECTIONS} connections, two processes")
            two = _load(both, sizes.seconds)
    times = two["reads_per_cpu_second"] / alone["reads_per_cpu_second"]
    return {
        **{
            f"added_{name}_ms": figure(f"at most {most} ms", added[name], added[name] <= most)
            for name, most in MOST_ADDED_MS.items()
        },
        "latencies_ms": added["latencies_ms"],
        "added_token_median_ms": token,
        "one_core": figure(
            f"at least {LEAST_READS:,} reads for each second of a processor, {CONNECTIONS} connections",
            alone["reads_per_cpu_second"],
            alone["reads_per_cpu_second"] >= LEAST_READS,
            **alone,
        ),
        "two_processes": figure(
            f"at least {LEAST_TIMES_TWO} times the reads of one", times, times >= LEAST_TIMES_TWO, **two
        ),
        "memory": figure(f"at most {MOST_MIB} MiB", mib, mib <= MOST_MIB, connections=sizes.connections),
        "inserts": _inserts(sizes.calls, say),
    }


# --- the proxy -------------------------------------------------------------------------------------------


class _Proxy:
    """A `rekey proxy` that is ready."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, admin: int, processes: int) -> None:
        self.port, self._admin, self._count = port, admin, processes
        self._process = psutil.Process(process.pid)

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes that answer."""
        return self._process.children() if self._count > 1 else [self._process]

    def is_ready(self) -> bool:
        """Tell whether all of them answer."""
        try:
            for number in range(self._count):
                self._get(number, "health/readiness")
        except OSError:
            return False
        return True

    def reads(self) -> list[float]:
        """Return the requests that each has answered."""
        found = []
        for number in range(self._count):
            lines = self._get(number, "metrics").splitlines()
            told = (line for line in lines if line.startswith("rekey_proxy_requests_total"))
            found.append(sum(float(line.rpartition(" ")[2]) for line in told))
        return found

    def _get(self, number: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._admin + number}/{path}", timeout=5) as answer:
            return str(answer.read().decode())


@contextmanager
def _proxy(
    folder: Path, environ: dict[str, str], processes: int = 1, config: str = "rekey.toml"
) -> Iterator[_Proxy]:
    port = _free_port(1)
    admin = _free_port(processes)
    words = [sys.executable, "-m", "rekey", "proxy", "--config", config, "--processes", str(processes)]
    words += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    with subprocess.Popen(words, cwd=folder, env=environ, stderr=subprocess.PIPE) as process:
        found = _Proxy(process, port, admin, processes)
        while not found.is_ready():
            if process.poll() is not None:
                raise RuntimeError(f"the proxy ended with {process.returncode}: {process.communicate()[1]!r}")
            time.sleep(0.1)
        yield found
        process.terminate()


def _free_port(count: int) -> int:
    """Return a port from which on so many are free."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return int(first)


# --- point reads -----------------------------------------------------------------------------------------


def _read_of(port: int) -> bytes:
    """Return the request for a row, as an SDK sends it."""
    path, date = f"/{ACCOUNT}/{POINTS}(PartitionKey='p',RowKey='r')", formatdate(usegmt=True)
    text = f"{date}\n/{ACCOUNT}{path}".encode()
    mac = base64.b64encode(hmac.digest(base64.b64decode(_APPLICATION_KEY), text, hashlib.sha256)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nx-ms-version: 2019-02-02\r\n"
        "DataServiceVersion: 3.0\r\nAccept: application/json;odata=minimalmetadata\r\n"
        "x-ms-client-request-id: 0f2a7b1e-52c4-11ef-8f3b-00155d8a4c11\r\nUser-Agent: benchmark\r\n"
        f"x-ms-date: {date}\r\nDate: {date}\r\nAuthorization: SharedKeyLite {ACCOUNT}:{mac}\r\n\r\n"
    ).encode()


def _answered(got: bytes) -> bool:
    """Tell whether an answer is whole. Raises RuntimeError for one that is no row."""
    head, blank, body = got.partition(b"\r\n\r\n")
    if blank and not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"no row came: {got!r}")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(blank) and len(body) >= int(length)


def _ask(connection: socket.socket, request: bytes) -> float:
    """Send a request and wait for its answer; return the milliseconds."""
    began, got = time.perf_counter(), b""
    connection.sendall(request)
    while not _answered(got):
        came = connection.recv(65_536)
        if not came:
            raise RuntimeError("the connection was closed")
        got += came
    return 1000 * (time.perf_counter() - began)


def _added(direct: int, through: int, turns: int) -> dict[str, Any]:
    """Return the latency that a proxy adds, in milliseconds."""
    taken: dict[int, list[float]] = {direct: [], through: []}
    with ExitStack() as stack:
        ways = {
            port: (stack.enter_context(socket.create_connection(("127.0.0.1", port))), _read_of(port))
            for port in taken
        }
        for connection, _ in ways.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(turns // 10):
            for way in ways.values():
                _ask(*way)
        for _ in range(turns):
            for port, way in ways.items():
                taken[port].append(_ask(*way))
    told = {
        port: {"median": statistics.median(one), "p99": statistics.quantiles(one, n=100)[98]}
        for port, one in taken.items()
    }
    return {
        **{name: told[through][name] - told[direct][name] for name in MOST_ADDED_MS},
        "latencies_ms": {
            name: {key: round(value, 3) for key, value in told[port].items()}
            for name, port in (("direct", direct), ("through_the_proxy", through))
        },
    }


def _token(
    stack: ExitStack,
    folder: Path,
    direct: int,
    environ: dict[str, str],
    turns: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return the latency that a proxy adds to a point read with a token, beside that with a shared key."""
    issued, files = stack.enter_context(issuing()), trial_files(folder / "trial")
    section = SECTION.format(certificate=files.certificate, key=files.key, authority=issued.authority)
    config = (folder / "rekey.toml").read_text("utf-8") + section
    (folder / "tokens.toml").write_text(config, "utf-8")
    with _proxy(folder, environ, config="tokens.toml") as proxy, ExitStack() as connections:
        say(f"{turns:,} point reads in turns over TLS, with a token and with a shared key")
        trusted = ssl.create_default_context(cafile=str(files.ca))
        with_key = _read_of(proxy.port)
        head, _, rest = with_key.partition(b"Authorization: ")
        with_token = head + f"Authorization: Bearer {issued.token}".encode() + rest[rest.index(b"\r\n") :]

        def connected(port: int, *, encrypted: bool) -> socket.socket:
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not encrypted:
                return connection
            return connections.enter_context(trusted.wrap_socket(connection, server_hostname="127.0.0.1"))

        ways = {
            "direct": (connected(direct, encrypted=False), _read_of(direct)),
            "shared_key": (connected(proxy.port, encrypted=True), with_key),
            "token": (connected(proxy.port, encrypted=True), with_token),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(turns // 10 + turns):
            for name, way in ways.items():
                ms = _ask(*way)
                if turn >= turns // 10:
                    taken[name].append(ms)
    medians = {name: statistics.median(all_ms) for name, all_ms in taken.items()}
    added = medians["token"] - medians["direct"]
    return figure(
        f"at most {MOST_ADDED_BY_TOKEN_MS} ms",
        added,
        added <= MOST_ADDED_BY_TOKEN_MS,
        times_shared_key=round(medians["token"] / medians["shared_key"], 2),
        latencies_ms={name: round(median, 3) for name, median in medians.items()},
    )


def _load(proxy: _Proxy, seconds: float) -> dict[str, Any]:
    """Read over many connections at once, each one read after the other."""
    with ExitStack() as stack:
        request, chosen = _read_of(proxy.port), stack.enter_context(selectors.DefaultSelector())
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            chosen.register(connection, selectors.EVENT_READ, bytearray())
            connection.sendall(request)
        _answer_for(chosen, request, _WARM_S)
        before, cpu, began = proxy.reads(), [_cpu(one) for one in proxy.workers], time.monotonic()
        done = _answer_for(chosen, request, seconds)
        took = time.monotonic() - began
        reads = [after - first for after, first in zip(proxy.reads(), before, strict=True)]
        cpu = [_cpu(one) - first for one, first in zip(proxy.workers, cpu, strict=True)]
    rates = [number / spent for number, spent in zip(reads, cpu, strict=True) if spent]
    return {
        "reads_per_cpu_second": round(sum(rates)),
        "reads_per_second": round(done / took),
        "cores_used": round(sum(cpu) / took, 2),
        "share_of_each": [round(number / sum(reads), 2) for number in reads],
    }


def _answer_for(chosen: selectors.BaseSelector, request: bytes, seconds: float) -> int:
    """Follow each answer by the next request for so long; return how many came."""
    until, done = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for key, _ in chosen.select(0.1):
            assert isinstance(key.fileobj, socket.socket)
            key.data.extend(key.fileobj.recv(65_536))
            if _answered(bytes(key.data)):
                key.data.clear()
                key.fileobj.sendall(request)
                done += 1
    return done


def _cpu(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


def _memory(proxy: _Proxy, connections: int) -> float:
    """Return the resident MiB while so many connections are open, each of which was used."""
    with ExitStack() as stack:
        request = _read_of(proxy.port)
        for _ in range(connections):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
            _ask(connection, request)
        [worker] = proxy.workers
        return float(worker.memory_info().rss / 2**20)


# --- inserts ---------------------------------------------------------------------------------------------


def _inserts(calls: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time inserts of a table whose writes are carried, and plain ones; both 30 ms from the accounts."""
    kind = dualwrite.KINDS[0]
    with (
        Azurite() as azurite,
        tempfile.TemporaryDirectory() as name,
        Latency(azurite.port, dualwrite.LATENCY_SECONDS) as line,
    ):
        bench = dualwrite.Bench(Path(name) / "project", azurite, line.port, calls, say)
        bench.tables.create_table(kind.source)
        bench.rekey("apply", kind.script_id)
        far = bench.folder / "far.toml"
        far.write_text(far.read_text("utf-8") + _PROXY.format(key="BENCH_TABLES_KEY"), "utf-8")
        plain = bench.calls("plain", "", "")
        with _proxy(bench.folder, bench.environ, config="far.toml") as proxy:
            bench.environ["BENCH_PROXY"] = f"http://127.0.0.1:{proxy.port}/{azurite.tables.name}"
            carried = bench.calls("proxied", kind.source, "old")
    times = carried["insert"] / plain["insert"]
    return figure(
        f"at most {MOST_TIMES_INSERT} times a direct one",
        times,
        times <= MOST_TIMES_INSERT,
        ms={"direct": round(1000 * plain["insert"], 1), "carried": round(1000 * carried["insert"], 1)},
        times_plain={verb: round(carried[verb] / plain[verb], 2) for verb in plain},
    )
