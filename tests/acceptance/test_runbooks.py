"""The README's example, the tutorial and the commands of every runbook, typed as they are there, on Azurite.

What a reader types is a process: of the README the installed command from nothing, of the tutorial and the
runbooks a forked one (see `forking`). What a runbook presumes is prepared here, with the same commands called
in this process, which is quicker still.

Soak: README and tutorial from a whole clone; the runbook of `stress`.
Reason, and what `make test` covers: all packages from their index; the same with rekey installed already.
Five stress tests at full load; that each command is one in `tests/repo/test_docs.py`, and what it does in
`test_stress.py` and `test_stress_mix.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest
from azure.data.tables import TableServiceClient

from rekey.cli.main import run as rekey
from rekey.copy.batches import pack
from rekey.model import Row, content_of, key_of
from rekey.rehearse.azurite import AZURITE_DIR, USUAL_PORT, stop_in_background
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Operation, Verb
from rekey.tables.credentials import SharedKey
from tests.acceptance.test_installed import NOT_IN_A_CLONE
from tests.asserts import documents
from tests.asserts.documents import ROOT, USUAL_FOLDER, Command, UsualAzurite
from tests.soaking import others_in_soak
from tests.worlds.azurite_projects import unused_port
from tests.worlds.example_rows import users
from tests.worlds.forking import Forked, rekey_for_a_shell

pytestmark = pytest.mark.azurite

RUNBOOKS = sorted(path.stem for path in (ROOT / "runbooks").glob("*.md") if path.stem != "README")
SCRIPT = "0001_users_opaque_ids"
ROWS = 120
TUTORIAL = ROOT / "docs/tutorial/first-migration.md"
MAX_BY_HAND = 2
"""`tests/scenarios/runner/test_follow.py` covers following; the doctor's migration has tests of its own."""
_REPORT = "@@"
_MEMBER = """from rekey import Migration, Target, keys, props

__depends__ = set()
migration = Migration(
    source="{source}",
    target=Target(
        "{source}V2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque("RowKey", domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail")],
    ),
    capture="delta",
    group="billing",
)
"""
"""A script of the group that the runbooks name."""


@pytest.fixture(scope="module")
def running() -> Iterator[UsualAzurite]:
    """An Azurite of the usual account: the documents name no other."""
    with UsualAzurite() as running:
        yield running


@pytest.fixture
def azurite(running: UsualAzurite) -> Iterator[UsualAzurite]:
    """The same, without a table: the documents name those, too."""
    with TableServiceClient.from_connection_string(running.connection_string) as account:
        assert not list(account.list_tables())
        yield running
        for table in list(account.list_tables()):
            account.delete_table(table.name)


@dataclass
class Project:
    """A project as a runbook presumes it: the worked example, its table, and a secret."""

    folder: Path
    azurite: UsualAzurite

    def __post_init__(self) -> None:
        migrations = self.folder / "migrations"
        migrations.mkdir()
        example = (ROOT / "migrations" / f"{SCRIPT}.py").read_text("utf-8")
        (migrations / f"{SCRIPT}.py").write_text(example, "utf-8")
        (self.folder / "users.secret").write_text("0123456789abcdef0123456789abcdef\n", "utf-8")
        (self.folder / "users.secret").chmod(0o600)
        (self.folder / "sealing.key").write_text(
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" + "\n", "utf-8"
        )
        (self.folder / "sealing.key").chmod(0o600)
        self.configure()
        asyncio.run(self.fill("Users", ROWS))

    def configure(self, *, limits: str = "", gates: str = "") -> None:
        """Write the configuration."""
        endpoint = self.azurite.endpoint
        (self.folder / "rekey.toml").write_text(
            f'[tables]\nendpoint = "{endpoint}"\n[restricted]\nendpoint = "{endpoint}"\n'
            f'[secrets.users]\nfile = "users.secret"\n[sealing]\nfile = "sealing.key"\n'
            f"[limits]\n{limits}\n[gates]\n{gates}\n",
            "utf-8",
        )

    def do(self, *words: str) -> None:
        """Run a command of rekey in this process; it must be done without findings."""
        assert rekey([*words, "--config", str(self.folder / "rekey.toml")]) == 0, words

    def open(self) -> AzureTableService:
        """Open the tables of the account."""
        [(account, key)] = self.azurite._keys.items()
        return AzureTableService.open(self.azurite.endpoint, SharedKey.of(account, key))

    async def fill(self, name: str, count: int) -> None:
        """Create a table of users."""
        async with self.open() as service:
            await service.create_table(name)
            table = service.table(name)
            for batch in pack([Operation(Verb.INSERT, row) for row in users(count)], table.encoded_size):
                await table.transact(batch)

    async def rows(self, name: str) -> list[Row]:
        """Return the rows of a table."""
        async with self.open() as service:
            return [row async for page in service.table(name).scan() for row in page.rows]

    async def plant(self) -> None:
        """Delete a row of the target, and change another one."""
        async with self.open() as service:
            table = service.table("UsersV2")
            rows = await self.rows("UsersV2")
            await table.delete(key_of(rows[0]), etag="*")
            await table.replace({**content_of(rows[1]), "Name": "somebody else"}, etag="*")

    @property
    def safe_id(self) -> str:
        """The safe id of a row that differs or, if none does, of any row that `lookup` knows."""
        source = asyncio.run(self.rows("Users"))[0]
        words = [
            "lookup",
            "0001",
            "--old",
            source["PartitionKey"],
            source["RowKey"],
            "--reason",
            "t",
            "--json",
        ]
        with redirect_stdout(StringIO()) as said:
            self.do(*words)
        found: str = json.loads(said.getvalue())["rows"][0]["row_id"]
        return found

    def killed_while_copying(self) -> None:
        """Run `apply` slowly and end it by SIGKILL when it has copied a part."""
        self.configure(limits="window_rows = 20\nentities_per_second = 60")
        process = Forked(("apply", "0001"), self.folder, documents.environment())
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not self._is_half_copied():
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.05)
        finally:
            process.kill()
            process.communicate()
        self.configure(gates='margin = "1s"')  # nothing holds back what it had sent

    def _is_half_copied(self) -> bool:
        async def look() -> bool:
            async with self.open() as service:
                return await service.table_exists("UsersV2") and len(await self.rows("UsersV2")) > 40

        return asyncio.run(look())


def at_the_gate(project: Project) -> None:
    project.do("apply", "0001")


def with_a_group(project: Project) -> None:
    """Two scripts of other tables cut over together."""
    at_the_gate(project)
    for number, name in enumerate(("Orders", "Invoices"), 2):
        asyncio.run(project.fill(name, 10))
        script = _MEMBER.format(source=name)
        (project.folder / "migrations" / f"000{number}_{name.lower()}.py").write_text(script, "utf-8")


def with_divergences(project: Project) -> None:
    at_the_gate(project)
    asyncio.run(project.plant())


def without_target(project: Project) -> None:
    """Somebody has deleted the target before the cutover."""
    at_the_gate(project)

    async def delete() -> None:
        async with project.open() as service:
            await service.delete_table("UsersV2")

    asyncio.run(delete())


def cut_over(project: Project) -> None:
    at_the_gate(project)
    project.do("apply", "0001", "--to", "cutover", "--writers-stopped")


def ended(project: Project) -> None:
    cut_over(project)
    project.do("apply", "0001", "--to", "complete", "--yes", SCRIPT)


def complete(project: Project) -> None:
    ended(project)
    project.configure(gates='retention = "0s"\n[evidence]\nkey_file = "evidence.pem"')
    project.do("evidence", "keygen", str(project.folder / "evidence.pem"))


def with_an_index(project: Project) -> None:
    """The same table, with an index, while the application writes; complete."""
    path = project.folder / "migrations" / f"{SCRIPT}.py"
    index = """
    indexes=[Index("UsersByMail", partition_key=keys.literal("all"), row_key=keys.prop("RowKey"))],
    waive={"personal-data": "made-up addresses"},
    capture="dual-write","""
    text = path.read_text("utf-8").replace('\n    capture="delta",', index)
    path.write_text(text.replace("import Migration", "import Index, Migration"), "utf-8")
    ended(project)


def with_a_proxy(project: Project) -> None:
    """The configuration names a key for an application."""
    project.configure(gates='[proxy.access.keys.orders]\nfile = "orders.key"')


def not_begun(_project: Project) -> None:
    """Nothing is presumed."""


PRESUMED: dict[str, Callable[[Project], None]] = {
    "application-teams": not_begun,
    "backfill": not_begun,
    "cutover": with_a_group,
    "divergences": with_divergences,
    "doctor": not_begun,
    "erasure": complete,
    "evidence": at_the_gate,
    "handover": with_an_index,
    "id-secret": ended,
    "lookup": at_the_gate,
    "lost-table": without_target,
    "plan": not_begun,
    "proxy": with_a_proxy,
    "resume": Project.killed_while_copying,
    "retire": complete,
    "rollback": cut_over,
    "stress": not_begun,
    "wrapping-key": at_the_gate,
}


def with_keys_of(project: Project, words: str) -> str:
    """Put a row that is there in the place of the one that a runbook makes up."""
    if words.startswith("ROW="):
        return f"ROW={project.safe_id}"
    for variable, table in (("OLD", "Users"), ("NEW", "UsersV2")):
        for part, name in (("PK", "PartitionKey"), ("RK", "RowKey")):
            if words.startswith(f"{variable}_{part}="):
                return f"{variable}_{part}='{asyncio.run(project.rows(table))[-1][name]}'"
    return words


def typed(commands: list[Command], folder: Path, *programs: Path) -> list[tuple[int, str]]:
    """Type commands into one shell, `programs` first in its PATH; return exit code and output of each."""
    lines = ["exec 2>&1"]
    for command in commands:
        lines += [command.words, f'echo "{_REPORT} $?"']
    script = folder.parent / "typed.sh"
    script.write_text("\n".join(lines) + "\n", "utf-8")
    usual = documents.environment()
    done = subprocess.run(
        ["sh", str(script)],
        cwd=folder,
        env={**usual, "PATH": os.pathsep.join([*map(str, programs), usual["PATH"]])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    parts = re.split(rf"^{_REPORT} (\d+)$\n?", done.stdout, flags=re.MULTILINE)
    return [(int(code), said) for said, code in zip(parts[::2], parts[1::2], strict=False)]


def test_every_runbook_is_prepared_for() -> None:
    """A new runbook is not left out of this test, and none is listed that is gone."""
    assert sorted(PRESUMED) == RUNBOOKS


@pytest.mark.parametrize(
    "name", others_in_soak(RUNBOOKS, kept=[name for name in RUNBOOKS if name != "stress"])
)
def test_commands_of_a_runbook_do_what_it_says(name: str, tmp_path: Path, azurite: UsualAzurite) -> None:
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project", azurite)
    PRESUMED[name](project)
    blocks = [block for block in documents.blocks(ROOT / "runbooks" / f"{name}.md") if block.language == "sh"]
    commands = [
        Command(with_keys_of(project, command.words), exit_code=command.exit_code)
        for block in blocks
        if block.info != "by hand"
        for command in documents.shell_commands(block)
    ]
    assert any("rekey" in command.words for command in commands)
    with rekey_for_a_shell(tmp_path) as programs:
        results = typed(commands, project.folder, programs)
    for command, (code, said) in zip(commands, results, strict=True):
        assert code == command.exit_code, f"{command.words}\n{said}"
        assert "Traceback" not in said


@pytest.mark.parametrize("name", RUNBOOKS)
def test_few_commands_are_left_to_be_typed_by_hand(name: str) -> None:
    blocks = documents.blocks(ROOT / "runbooks" / f"{name}.md")
    assert sum(block.info == "by hand" for block in blocks) <= MAX_BY_HAND


@pytest.mark.parametrize("name", RUNBOOKS)
def test_every_runbook_answers_the_same_questions(name: str) -> None:
    """When, before you begin, what to type, what one sees, and what cannot be had back."""
    text = (ROOT / "runbooks" / f"{name}.md").read_text("utf-8")
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    for wanted in ("When", "Before you begin", "Do", "What you see", "Not recoverable"):
        assert any(heading.startswith(wanted) for heading in headings), wanted


@pytest.fixture
def port() -> Iterator[int]:
    """A port for the Azurite that a reader starts, which is ended in any case."""
    port = unused_port()
    yield port
    stop_in_background(port)


@pytest.fixture(params=["used", pytest.param("whole", marks=pytest.mark.soak)])  # all packages are installed
def clone(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What a reader cloned: as far as it is used, with rekey installed already; or all, and nothing is."""
    clone = tmp_path / "clone"
    if request.param == "whole":
        return shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*NOT_IN_A_CLONE), symlinks=True)
    clone.mkdir()
    (clone / "migrations").symlink_to(ROOT / "migrations")
    for name, text in INSTALLED.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nset -e\n{text}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    return clone


INSTALLED = {
    "python3": 'test "$*" = "-m venv .venv"; mkdir -p .venv/bin; echo "activated=1" > .venv/bin/activate',
    "pip": 'case "$*" in "install ." | "install --quiet .") ;; *) exit 1 ;; esac',
}
"""Stands for the package index and a second environment; all else that is typed is the reader's."""


def test_the_example_of_the_readme_goes_from_a_clone_to_a_plan_and_further(
    monkeypatch: pytest.MonkeyPatch, clone: Path, port: int
) -> None:
    """All `sh` blocks are typed into one shell. A `text` block is what the last command above it prints; in
    it `…` stands for lines that are left out."""
    readme = ROOT / "README.md"
    shown = [*documents.blocks(readme, "Install"), *documents.blocks(readme, "Example")]
    apart = documents.azurites_apart(clone.parent)
    monkeypatch.setenv(AZURITE_DIR, str(apart))  # where `port` looks for what is to be stopped
    commands = [Command(f"export {AZURITE_DIR}={apart}")]
    for block in shown:
        if block.language == "sh":
            text = documents.at_port(port, block.text)
            commands += documents.shell_commands(replace(block, text=text))
        elif block.language == "text":
            commands[-1] = replace(commands[-1], output=block.text)
    results = typed(commands, clone, clone.parent)
    for command, (code, said) in zip(commands, results, strict=True):
        assert code == command.exit_code, f"{command.words}\n{said}"
        rest = documents.normal(said)
        for lines in filter(None, map(documents.normal, command.output.split("…\n"))):
            _, found, rest = rest.partition(lines)
            assert found == lines, f"{lines}\n{said}"
    assert {block.language for block in shown} == {"python", "sh", "text"}
    assert sum(command.words.startswith("rekey ") for command in commands) == 5
    assert sum(command.output != "" for command in commands) == 2


def test_the_tutorial_is_what_one_really_sees(clone: Path, port: int) -> None:
    """Files are saved and commands typed as they stand, into one shell; what is printed is what is shown, but
    for moments, durations and ids."""
    commands: list[Command] = []
    for block in documents.blocks(TUTORIAL):
        if block.language == "python":
            commands.append(Command(f"cat > {block.info} <<'END'\n{block.text}END"))
            continue
        assert block.language == "console", f"{TUTORIAL.name}:{block.line}"
        commands += documents.console_commands(block)
    here = [replace(command, words=documents.at_port(port, command.words)) for command in commands]
    with rekey_for_a_shell(clone.parent) as programs:
        results = typed(here, clone, programs)
    for command, (code, said) in zip(commands, results, strict=True):
        assert code == command.exit_code, f"{command.words}\n{said}"
        shown = said.replace(str(clone.resolve() / "first"), USUAL_FOLDER)
        shown = shown.replace(f" --port {port}", "").replace(str(port), str(USUAL_PORT))
        if not command.words.startswith("pip "):  # it may have something to say of its own
            assert documents.normal(shown) == documents.normal(command.output), command.words
    assert commands[-1].words == "rekey azurite --stop"
