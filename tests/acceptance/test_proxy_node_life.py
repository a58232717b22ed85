"""Microsoft's SDK for Node.js and the package `azure-storage`, unmodified, write in both views through two
proxies while keys change: apply, cutover, rollback, cutover, with kills. Nothing that was acknowledged is
lost, and no write is refused.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.peers import node_script
from rekey.rehearse.azurite import Azurite
from tests.acceptance.dualwriting import waited_for
from tests.acceptance.support import Project
from tests.acceptance.test_proxy import Proxy, proxies_of

pytestmark = [pytest.mark.azurite, pytest.mark.soak, pytest.mark.timeout(900)]
WRITES = Path(__file__).with_name("proxy_writes.mjs")
PACKAGES = ("azure-storage", "@azure/data-tables")
SCRIPT = '''\
"""Keys are exchanged."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("RowKey"),
        row_key=keys.prop("PartitionKey"),
        properties=[props.copy("PartitionKey", to="OldPartition"), props.copy("RowKey", to="OldRow")],
    ),
    capture="dual-write",
)
'''


class Writer:
    """A process that writes, and what it was told of its writes."""

    def __init__(self, package: str, proxies: tuple[Proxy, ...], view: str) -> None:
        [program, beside] = node_script()
        project, self.known = proxies[0].project, dict[str, int | None]()
        self.count, self.refused = 0, list[object]()
        table = project.source if view == "old" else project.target
        words = (package, ",".join(proxy.endpoint for proxy in proxies), table, view)
        self.process = subprocess.Popen(
            [program, "--input-type=module", "--eval", WRITES.read_text("utf-8"), *words],
            cwd=Path(beside).parent,
            env={**os.environ, "PROXY_KEY": project.azurite.tables.key},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.follows = threading.Thread(target=self._follow, daemon=True)
        self.follows.start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            if "refused" in told:
                self.refused.append(told)
            else:
                self.known[told["row"]] = told["number"]
                self.count += 1

    def until_writing(self) -> None:
        """Wait until it was told of further writes."""
        before = self.count
        waited_for("further writes", lambda: self.count >= before + 25 or bool(self.refused))
        assert not self.refused

    def end(self) -> None:
        """Let it finish the write that it is at."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0, self.refused
        self.follows.join(10)


@contextmanager
def ended(*writers: Writer) -> Iterator[None]:
    """Kill writers that still run at the end."""
    try:
        yield
    finally:
        for one in writers:
            with one.process:  # which is waited for, and its pipes are closed
                one.process.kill()


def test_clients_in_another_language_lose_nothing_through_a_migration(
    tmp_path: Path, azurite: Azurite
) -> None:
    project = Project(tmp_path / "project", azurite)
    project.script(SCRIPT)
    project.wire.create(project.source)
    with ExitStack() as stack:
        both = stack.enter_context(proxies_of(project, Proxy(project), Proxy(project)))
        old = [Writer(package, both, "old") for package in PACKAGES]
        stack.enter_context(ended(*old))
        for writer in old:
            writer.until_writing()

        def again(proxy: Proxy) -> None:
            assert proxy.end(signal.SIGKILL) == -signal.SIGKILL
            proxy.start()

        running = project.start("apply")
        again(both[1])
        running.wait().ended(0)
        new = [Writer(package, both, "new") for package in PACKAGES]
        stack.enter_context(ended(*new))
        everyone = [*old, *new]
        for writer in everyone:
            writer.until_writing()
        project.run("apply", "--to", "cutover").ended(0)
        again(both[0])
        for writer in everyone:
            writer.until_writing()
        project.run("rollback").ended(0)
        for writer in everyone:
            writer.until_writing()
        project.run("verify", "--mode", "full").ended(0)
        project.run("apply", "--to", "cutover").ended(0)
        for writer in everyone:
            writer.until_writing()
        for writer in everyone:
            writer.end()
        expected = {
            row: number for writer in everyone for row, number in writer.known.items() if number is not None
        }
        source = {row["RowKey"]: row["Number"] for row in project.wire.rows(project.source)}
        target = {row["PartitionKey"]: row["Number"] for row in project.wire.rows(project.target)}
        assert target == expected
        assert source == expected
        print(f"{sum(writer.count for writer in everyone)} writes were acknowledged")
