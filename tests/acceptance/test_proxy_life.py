"""Microsoft's two packages for Go, and Azure CLI, unmodified, write through proxies over a whole migration,
in both views, from before it begins until after the handover of its index table. No call fails, no write that
was acknowledged is lost or doubled, no deleted row comes back.

Soak: clients for Go, and Azure CLI, through a whole migration.
Reason, and what `make test` covers: minutes each, Go, and their packages; the SDK for Python in
`test_proxy.py`.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest

from rekey.core import edm
from rekey.project.config import AZURITE_ACCOUNT
from rekey.rehearse.azurite import Azurite
from tests.acceptance.proxy_writers import Writer, ended, expected_of
from tests.acceptance.test_proxy import Proxy, proxies_of
from tests.acceptance.test_proxy_cli import az
from tests.worlds.azurite_projects import Project
from tests.worlds.fleet import waited_for

pytestmark = [pytest.mark.azurite, pytest.mark.soak, pytest.mark.timeout(1800)]
__all__ = ["az"]
SCRIPT = '''\
"""Keys get prefixes; an index by group."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.literal("p:") + keys.prop("PartitionKey"),
        row_key=keys.literal("r:") + keys.prop("RowKey"),
        properties=[props.copy("PartitionKey", to="OldPartition"), props.copy("RowKey", to="OldRow")],
    ),
    indexes=[Index("INDEX", partition_key=keys.prop("Group"), row_key=keys.prop("RowKey"))],
    capture="dual-write",
)
'''
# The usual times, but for the drain: nothing is killed here, and a busy machine takes seconds for a request.
SETTINGS = """
[proxy]
drain = "0s"
[proxy.access.keys.application]
env = "ACCEPTANCE_TABLES_KEY"
"""
Start = Callable[[Project, Proxy, str, str], Writer]


class EmulatorAzurite(Azurite):
    """An Azurite whose account for tables has the name of the emulator's, with a key of its own: the package
    `storage` for Go puts the account into the path for that name alone."""

    def __init__(self) -> None:
        super().__init__()
        self._keys = {AZURITE_ACCOUNT if name == "tables" else name: key for name, key in self._keys.items()}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Azurite]:
    with EmulatorAzurite() as running:
        yield running


@pytest.fixture(scope="module")
def go_writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The writer in Go, built."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("needs Go: https://go.dev/dl")
    program = tmp_path_factory.mktemp("go") / "writer"
    built = subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=Path(__file__).with_name("go"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return program


def test_clients_for_go_lose_nothing_through_a_migration(
    tmp_path: Path, emulator: Azurite, go_writer: Path
) -> None:
    def start(project: Project, proxy: Proxy, package: str, view: str) -> Writer:
        words = [str(go_writer), package, proxy.endpoint, table_of(project, view), view]
        return Writer(words, tmp_path, {"PROXY_KEY": project.azurite.tables.key})

    writers = live(tmp_path, emulator, ("storage", "aztables"), start)
    for writer in writers:
        assert writer.verbs == {"insert", "replace", "merge", "update", "batch", "remove"}


def test_azure_cli_loses_nothing_through_a_migration(tmp_path: Path, azurite: Azurite, az: Path) -> None:
    settings = {"AZURE_CONFIG_DIR": str(tmp_path / "config"), "AZURE_CORE_COLLECT_TELEMETRY": "false"}

    def start(project: Project, proxy: Proxy, client: str, view: str) -> Writer:
        account = project.azurite.tables
        where = (
            f"DefaultEndpointsProtocol=http;AccountName={account.name};AccountKey={account.key};"
            f"TableEndpoint={proxy.endpoint};"
        )
        words = [
            str(az),
            str(Path(__file__).with_name("cli_writes.py")),
            client,
            table_of(project, view),
            view,
        ]
        return Writer(words, tmp_path, {**settings, "AZURE_STORAGE_CONNECTION_STRING": where})

    writers = live(tmp_path, azurite, ("azure-cli",), start)
    for writer in writers:
        assert writer.verbs == {"insert", "upsert", "replace", "merge", "remove"}


def table_of(project: Project, view: str) -> str:
    """Return the table that a view's application names."""
    return project.source if view == "old" else project.target


def live(folder: Path, azurite: Azurite, clients: Sequence[str], start: Start) -> list[Writer]:
    """Take a migration from before its first phase to after its handover, while clients of both views write;
    compare what they were told with the tables. Return the writers."""
    project = Project(folder / "project", azurite)
    project.script(SCRIPT)
    project.wire.create(project.source)
    with ExitStack() as stack:
        both = Proxy(project), Proxy(project)
        for_old, for_new = stack.enter_context(proxies_of(project, *both, settings=SETTINGS))
        old = [start(project, for_old, client, "old") for client in clients]
        stack.enter_context(ended(*old))
        until_writing(old)
        project.run("apply").ended(0)
        new = [start(project, for_new, client, "new") for client in clients]
        stack.enter_context(ended(*new))
        until_writing([*old, *new])
        for phase in (("apply", "--to", "cutover"), ("rollback",), ("verify", "--mode", "full")):
            project.run(*phase).ended(0)
            until_writing([*old, *new])
        project.run("apply", "--to", "cutover").ended(0)
        until_writing([*old, *new])
        for writer in old:
            writer.end()
        assert for_old.end(signal.SIGTERM) == 0
        complete = ("apply", "--to", "complete", "--yes", project.script_id)
        waited_for("the end of the old view", lambda: project.run(*complete).code == 0)
        until_writing(new)
        project.run("verify", "--mode", "full").ended(0)
        for writer in new:
            writer.update_only()
        project.run("handover", "--yes", project.script_id).ended(0)
        until_writing(new)
        for writer in new:
            writer.end()
        project.run("verify").ended(0)
        compare(project, old, new)
    return [*old, *new]


def until_writing(writers: Sequence[Writer]) -> None:
    """Wait until each writer has made further writes."""
    for writer in writers:
        writer.until_writing()


def compare(project: Project, old: Sequence[Writer], new: Sequence[Writer]) -> None:
    """Check the tables: the source is as at the handover, when the last row was inserted or deleted."""
    source = {row["RowKey"]: row for row in project.wire.rows(project.source)}
    target = {row["RowKey"].removeprefix("r:"): row for row in project.wire.rows(project.target)}
    index = {(row["PartitionKey"], row["RowKey"]) for row in project.wire.rows(project.index)}
    expected = expected_of([*old, *new])
    assert {name: int(row["Number"]) for name, row in target.items()} == expected
    assert source.keys() == target.keys()
    for name, number in expected_of(old).items():
        assert int(source[name]["Number"]) == number
    assert index == {(row["Group"], name) for name, row in target.items()}
    for writer in [*old, *new]:
        for name, sent in writer.times.items():
            assert sent is not None
            if name in target:
                assert edm.edm_type(target[name], "When") == edm.DATETIME
                assert moment_of(target[name]["When"]) == moment_of(sent)
    late = [what for writer in [*old, *new] for what in writer.behind]
    print(f"{sum(writer.count for writer in [*old, *new])} writes were acknowledged; reads behind: {late}")


def moment_of(text: str) -> datetime:
    """Return the moment that a DateTime means, in microseconds."""
    return datetime.fromisoformat(edm.utc_text(text) or text)
