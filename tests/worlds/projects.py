"""A project on disk with tables in memory: what the commands work on, without processes and sockets."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rekey.core.clock import Clock
from rekey.core.limits import TARGET_ACCOUNT_SUFFIX, is_in_target_account
from rekey.declaration.migration import Declared
from rekey.declaration.scripts import load_scripts
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.mapping.store import MappingStore
from rekey.model import Row
from rekey.phases import Phase
from rekey.project.config import Config, load_config
from rekey.protocol.control import ControlStore
from rekey.protocol.journal import Journal
from rekey.protocol.opening import Prepared, joined, open_migration
from rekey.protocol.references import OldReferences
from rekey.runner import commands
from rekey.runner.run import Options, StopFlag
from rekey.runner.session import Caller, Session
from rekey.tables.base import Accounts
from tests.fakes.clock import FakeClock, Skewed
from tests.fakes.memory import MemoryTableService
from tests.worlds.scripts import FOLDED, INVERTED, MOVE, POSTS, SECONDARY, SECONDARY_FROM_KEYS, USERS, named

CONFIG = """\
[tables]
endpoint = "http://127.0.0.1:10002/devstoreaccount1"
[restricted]
endpoint = "http://127.0.0.1:10002/devstoreaccount1"
[state]
path = "state.sqlite"
[secrets.users]
file = "users.secret"
[sealing]
file = "sealing.key"
[limits]
window_rows = 50
[gates]
retention = "0s"
"""

ELSEWHERE = """
[targets]
endpoint = "http://127.0.0.1:10003/devstoreaccount1"
"""
SKEW_S = 40.0

WRAPPING_KEY = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

USERS_SCRIPT = named(USERS, "Users", "UsersV2")
INVERTED_SCRIPT = named(INVERTED, "Users", "UsersV2")
FOLDED_SCRIPT = named(FOLDED, "Users", "UsersV2")
MOVE_SCRIPT = named(MOVE, "Users", "Users@targets")
USERS_ELSEWHERE_SCRIPT = named(USERS, "Users", "Users@targets")
POSTS_ELSEWHERE_SCRIPT = named(POSTS, "Posts", "PostsV2@targets", "PostsByTag")
"""The main target in the account of targets, and the index next to the source."""
POSTS_SCRIPT = named(POSTS, "Posts", "PostsV2", "PostsByTag")
SECONDARY_SCRIPT = named(SECONDARY, "Races", "RacesV2")
SECONDARY_FROM_KEYS_SCRIPT = named(SECONDARY_FROM_KEYS, "Races", "RacesV2")


@dataclass
class Project:
    """A folder with configuration and scripts, and the accounts in memory.

    With `ELSEWHERE` in its configuration there is an account of targets, too, whose clock is `SKEW_S` behind.
    """

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    machine: Clock | None = None
    """The clock of the machine that the commands run on; as the service's if nobody says otherwise."""
    tables: MemoryTableService = field(init=False)
    restricted: MemoryTableService = field(init=False)
    targets: MemoryTableService = field(init=False)
    _loaded: tuple[dict[Path, bytes], list[Declared]] | None = None
    """The scripts as they were loaded last, and from what: loading takes longer than reading them."""

    def __post_init__(self) -> None:
        self.targets = MemoryTableService(clock=Skewed(self.clock, -SKEW_S), is_target_account=True)
        self.tables = MemoryTableService(clock=self.clock)
        self.restricted = MemoryTableService(clock=self.clock)
        (self.folder / "migrations").mkdir(parents=True, exist_ok=True)
        (self.folder / "rekey.toml").write_text(CONFIG, "utf-8")
        (self.folder / "users.secret").write_text("0123456789abcdef0123456789abcdef\n", "utf-8")
        (self.folder / "sealing.key").write_text(f"{WRAPPING_KEY}\n", "utf-8")
        (self.folder / "sealing.key").chmod(0o600)

    def script(self, text: str, name: str = "0001_users.py") -> str:
        """Write a script; return its id."""
        (self.folder / "migrations" / name).write_text(text, "utf-8")
        return Path(name).stem

    async def fill(self, table: str, rows: Iterable[Row]) -> None:
        """Create a table and insert rows."""
        await self.tables.create_table(table)
        for row in rows:
            await self.tables.table(table).insert(row)

    @property
    def config(self) -> Config:
        """The configuration as it is on disk now."""
        return load_config(self.folder / "rekey.toml")

    @property
    def scripts(self) -> dict[str, Declared]:
        """The scripts as they are on disk now."""
        folder = self.config.migrations
        files = {path: path.read_bytes() for path in sorted(folder.rglob("*.py"))}
        if self._loaded is None or self._loaded[0] != files:
            self._loaded = files, load_scripts(folder)
        return {script.script_id: script for script in self._loaded[1]}

    def connect(self, config: Config) -> Accounts:
        """Connect to the tables in memory."""
        return joined(
            tables=self.tables,
            targets=None if config.targets is None else self.targets,
            restricted=self.restricted,
        )

    def move_elsewhere(self, text: str = ELSEWHERE) -> None:
        """Give the project an account of targets: what its configuration says of it."""
        with (self.folder / "rekey.toml").open("a", encoding="utf-8") as file:
            file.write(text)

    @contextmanager
    def session(
        self,
        options: Options | None = None,
        stop: StopFlag | None = None,
        loop: asyncio.Runner | None = None,
    ) -> Iterator[Session]:
        """Open a session as one command does; on a loop that outlives it if one is given."""
        config = self.config
        opened = Session(
            config,
            self.scripts,
            options=options or Options(),
            stop=stop or StopFlag(),
            caller=Caller(self.connect, self.machine or self.clock, loop),
        )
        with opened as session:
            yield session

    def store(self, script_id: str) -> ControlStore:
        """Return the control row of a migration."""
        return ControlStore(self.restricted, script_id, self.scripts[script_id].migration.group)

    async def mapping(self, script_id: str) -> MappingStore:
        """Return the mapping of a migration that has begun, as the runner opens it."""
        control = await self.store(script_id).read()
        assert control is not None
        prepared = Prepared.of(self.config, self.scripts[script_id])
        return await open_migration(prepared, self.connect(self.config)).mapping(control)

    def old_references(self, script_id: str) -> OldReferences:
        """Return the look-ups of old references, as a client opens them."""
        prepared = Prepared.of(self.config, self.scripts[script_id])
        return open_migration(prepared, self.connect(self.config)).old_references

    async def journal(self, script_id: str) -> Journal:
        """Return the journal of a migration that has begun, as a client opens it."""
        keyring = (await self.mapping(script_id)).keyring
        return Journal(self.restricted.table(JOURNAL_TABLE), script_id, keyring)

    def rows(self, table: str) -> Sequence[Row]:
        """Return what a table holds."""
        return (self.targets if is_in_target_account(table) else self.tables).dump(table)


_LIVED: dict[Hashable, tuple[Project, dict[Path, tuple[int, bytes]]]] = {}
"""Projects as they were when their life so far had been lived, and what was in their folders."""


def project_of(folder: Path, script: str, rows: Iterable[Row], *, name: str = "0001_users.py") -> Project:
    """Return a project of one script, whose source holds some rows."""
    project = Project(folder)
    script_id = project.script(script, name)
    asyncio.run(project.fill(project.scripts[script_id].migration.source, rows))
    return project


def applied(
    folder: Path, script: str, rows: Sequence[Row], to: Phase | None = None, *, name: str = "0001_users.py"
) -> Project:
    """Return a project like that of `project_of`, applied up to a phase; None: up to the gate of cutover."""

    def apply(project: Project) -> None:
        if TARGET_ACCOUNT_SUFFIX in script:
            project.move_elsewhere()
        script_id = project.script(script, name)
        asyncio.run(project.fill(project.scripts[script_id].migration.source, rows))
        with project.session(Options(writers_stopped=True)) as session:
            commands.apply(session, script_id, to=to)

    return lived(("applied", script, repr(rows), to, name), folder, apply)


def lived(name: Hashable, folder: Path, live: Callable[[Project], None]) -> Project:
    """Return a project of one's own that has lived so far: the first of a name lives, all others are copies.

    Args:
        name: the same for what lives the same.
        folder: where its files are to be.
        live: lives so far in a new project. It reads no other state, and leaves nothing running.
    """
    project = Project(folder)
    if name not in _LIVED:
        live(project)
        files = [path for path in folder.rglob("*") if path.is_file()]
        kept = {path.relative_to(folder): (path.stat().st_mode, path.read_bytes()) for path in files}
        project._loaded = None
        _LIVED[name] = copy.deepcopy(project), kept
        return project
    before, kept = _LIVED[name]
    before = copy.deepcopy(before)
    project.clock, project.tables, project.restricted = before.clock, before.tables, before.restricted
    project.targets = before.targets
    for path, (mode, data) in kept.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        (folder / path).chmod(mode)
    return project
