"""Microsoft's SDK for Node.js and the package `azure-storage`, unmodified, write in both views through two
proxies while keys change: apply, cutover, rollback, cutover, with kills; with the account's key, and with
tokens over TLS. Nothing that was acknowledged is lost, and no write is refused.

Soak: clients for Node.js through a whole migration.
Reason, and what `make test` covers: two minutes, and their packages; the SDK for Python in `test_proxy.py`.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.peers import node_script
from rekey.rehearse.azurite import Azurite
from tests.acceptance.proxy_writers import Writer, ended, expected_of
from tests.acceptance.test_proxy import PROXY, Proxy, proxies_of
from tests.worlds.azurite_projects import Project
from tests.worlds.issued_tokens import IssuedToken, issued_token

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


def start(package: str, proxies: tuple[Proxy, ...], view: str, issued: IssuedToken | None) -> Writer:
    """Start a client of a view that writes through either proxy, with a token or the account's key."""
    [program, beside] = node_script()
    project = proxies[0].project
    table = project.source if view == "old" else project.target
    words = (package, ",".join(proxy.endpoint for proxy in proxies), table, view)
    program_words = (program, "--input-type=module", "--eval", WRITES.read_text("utf-8"), *words)
    secret = {"PROXY_KEY": project.azurite.tables.key}
    if issued is not None:
        secret = {"PROXY_TOKEN": issued.token, "NODE_EXTRA_CA_CERTS": str(issued.ca)}
    return Writer(program_words, Path(beside).parent, secret)


@pytest.mark.parametrize("with_token", [False, True])
def test_clients_in_another_language_lose_nothing_through_a_migration(
    tmp_path: Path, azurite: Azurite, with_token: bool
) -> None:
    project = Project(tmp_path / "project", azurite)
    project.script(SCRIPT)
    project.wire.create(project.source)
    with ExitStack() as stack:
        issued = stack.enter_context(issued_token(tmp_path / "issued")) if with_token else None
        packages = PACKAGES if issued is None else PACKAGES[-1:]  # `azure-storage` takes no tokens
        settings = PROXY + (issued.settings if issued is not None else "")
        proxies = [Proxy(project, is_secure=with_token) for _ in range(2)]
        both = stack.enter_context(proxies_of(project, *proxies, settings=settings))
        old = [start(package, both, "old", issued) for package in packages]
        stack.enter_context(ended(*old))
        for writer in old:
            writer.until_writing()

        def again(proxy: Proxy) -> None:
            assert proxy.end(signal.SIGKILL) == -signal.SIGKILL
            proxy.start()

        running = project.start("apply")
        again(both[1])
        running.wait().ended(0)
        new = [start(package, both, "new", issued) for package in packages]
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
        expected = expected_of(everyone)
        source = {row["RowKey"]: row["Number"] for row in project.wire.rows(project.source)}
        target = {row["PartitionKey"]: row["Number"] for row in project.wire.rows(project.target)}
        assert target == expected
        assert source == expected
        print(f"{sum(writer.count for writer in everyone)} writes were acknowledged")
