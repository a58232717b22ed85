"""Microsoft's two packages for Go, its package for Java, and Azure CLI, unmodified, write through proxies
over a whole migration, in both views, from before it begins until after the handover of its index table:
with the account's key, and with tokens over TLS. No call fails, no write that was acknowledged is lost or
doubled, no deleted row comes back.

Soak: clients for Go and Java, and Azure CLI, through a whole migration.
Reason, and what `make test` covers: minutes each, Go, Java, and their packages; the SDK for Python in
`test_proxy.py`, its tokens in `tests/contract/test_proxy_tokens.py`.
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
from tests.worlds.issued_tokens import IssuedToken, issued_token

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
    _built(go, "build", "-o", str(program), ".", folder=Path(__file__).with_name("go"))
    return program


@pytest.fixture(scope="module")
def java_writer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the writer in Java, compiled, with its packages from Maven's registry."""
    missing = [name for name in ("mvn", "javac", "keytool") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs Java 17 and Maven: {', '.join(missing)} not found")
    folder, sources = tmp_path_factory.mktemp("java"), Path(__file__).with_name("java")
    classpath = folder / "classpath"
    _built(
        "mvn",
        "-q",
        "-B",
        "-f",
        str(sources / "pom.xml"),
        "dependency:build-classpath",
        f"-Dmdep.outputFile={classpath}",
    )
    packages = classpath.read_text("utf-8").strip()
    _built("javac", "-encoding", "UTF-8", "-cp", packages, "-d", str(folder), str(sources / "Writer.java"))
    return ["java", "-Dfile.encoding=UTF-8", "-cp", f"{folder}:{packages}"]


def _built(*words: str, folder: Path | None = None) -> None:
    built = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.fixture(params=["key", "token"])
def issued(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IssuedToken | None]:
    """A token that the proxies take; None: applications sign with the account's key."""
    if request.param == "key":
        yield None
    else:
        with issued_token(tmp_path / "issued") as token:
            yield token


def test_clients_for_go_lose_nothing_through_a_migration(
    tmp_path: Path, emulator: Azurite, go_writer: Path, issued: IssuedToken | None
) -> None:
    def start(project: Project, proxy: Proxy, package: str, view: str) -> Writer:
        words = [str(go_writer), package, proxy.endpoint, table_of(project, view), view]
        if issued is not None:
            return Writer(words, tmp_path, {"PROXY_TOKEN": issued.token, "SSL_CERT_FILE": str(issued.ca)})
        return Writer(words, tmp_path, {"PROXY_KEY": project.azurite.tables.key})

    packages = ("storage", "aztables") if issued is None else ("aztables",)  # `storage` takes no tokens
    writers = live(tmp_path, emulator, packages, start, issued)
    for writer in writers:
        assert writer.verbs == {"insert", "replace", "merge", "update", "batch", "remove"}


def test_clients_for_java_lose_nothing_through_a_migration(
    tmp_path: Path, azurite: Azurite, java_writer: list[str], issued: IssuedToken | None
) -> None:
    [java, *options] = java_writer
    if issued is not None:
        store = tmp_path / "trust.p12"
        _built(
            *("keytool", "-importcert", "-noprompt", "-alias", "rekey", "-file", str(issued.ca)),
            *("-keystore", str(store), "-storepass", "changeit"),
        )
        options += [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit"]

    def start(project: Project, proxy: Proxy, _package: str, view: str) -> Writer:
        words = [java, *options, "Writer", proxy.endpoint, table_of(project, view), view]
        secret = (
            {"PROXY_KEY": project.azurite.tables.key} if issued is None else {"PROXY_TOKEN": issued.token}
        )
        return Writer(words, tmp_path, secret)

    writers = live(tmp_path, azurite, ("azure-data-tables",), start, issued)
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


def live(
    folder: Path, azurite: Azurite, clients: Sequence[str], start: Start, issued: IssuedToken | None = None
) -> list[Writer]:
    """Take a migration from before its first phase to after its handover, while clients of both views write;
    compare what they were told with the tables. Return the writers. `issued`: they come with this token."""
    project = Project(folder / "project", azurite)
    project.script(SCRIPT)
    project.wire.create(project.source)
    with ExitStack() as stack:
        both = [Proxy(project, is_secure=issued is not None) for _ in range(2)]
        settings = SETTINGS + (issued.settings if issued is not None else "")
        for_old, for_new = stack.enter_context(proxies_of(project, *both, settings=settings))
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
        for name in writer.times.keys() & target.keys():
            sent = writer.times[name]
            assert sent is not None
            assert edm.edm_type(target[name], "When") == edm.DATETIME
            assert moment_of(target[name]["When"]) == moment_of(sent)
    late = [what for writer in [*old, *new] for what in writer.behind]
    print(f"{sum(writer.count for writer in [*old, *new])} writes were acknowledged; reads behind: {late}")


def moment_of(text: str) -> datetime:
    """Return the moment that a DateTime means, in microseconds."""
    return datetime.fromisoformat(edm.utc_text(text) or text)
