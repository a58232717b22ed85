"""A migration that a worker opened, by its own configuration, scripts and secrets, and keeps open."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from rekey.copy.throttle import Rates, Throttle, listen, restricted_throttle
from rekey.copy.workers.refusals import refusal
from rekey.copy.workers.tasks import Basis, Task
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.errors import StateUnusable
from rekey.mapping.sealing import SealedKeys, tasks_key
from rekey.mapping.store import MappingStore
from rekey.model import EntityKey, KeyRange
from rekey.project.config import Config, load_config
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.opening import Prepared, open_migration
from rekey.tables.base import Accounts, Table
from rekey.tables.kinds import by_number
from rekey.tables.part import parts_of
from rekey.verify.bucket_digests import SOURCE

# Names the worker's configuration file; without it, the runner's path is used. The file itself does not
# travel: a task has only its path, the endpoints of both accounts, and its own rates and seconds.
CONFIG_VARIABLE = "REKEY_WORKER_CONFIG"


@dataclass(slots=True, eq=False)
class Opened:
    """One migration, opened by a worker."""

    # The configuration, migration and run that it was opened for (`identity_of`); a task of another one needs
    # another opening.
    identity: tuple[str, ...]
    config: Config
    mapper: Mapper
    accounts: Accounts
    control: ControlStore
    mapping: MappingStore
    # Seals and opens the keys in tasks and results.
    keys: SealedKeys
    # By id, the tasks that use it now.
    at_work: dict[str, Task] = field(default_factory=dict)
    throttle: Throttle = field(init=False)
    restricted: Throttle = field(init=False)

    def __post_init__(self) -> None:
        self.throttle = Throttle(steering=lambda _configured: self.rates)
        if self.config.targets is not None:
            self.throttle.begin_target_account()
        self.restricted = restricted_throttle(self.throttle, self.config)
        listen(self.accounts, self.throttle, self.restricted)

    @property
    def rates(self) -> Rates:
        """The summed rates of all tasks at work; None where a task has no limit, or there are no tasks."""
        account = [task.entities_per_second for task in self.at_work.values()]
        partition = [task.partition_entities_per_second for task in self.at_work.values()]
        return Rates(
            sum(account) if account and all(account) else None,
            sum(partition) if partition and all(partition) else None,
            begins=sum(task.begins for task in self.at_work.values()) or None,
        )

    def table(self, number: int = SOURCE) -> Table:
        """Return the source or, by its number, a target."""
        migration = self.mapper.migration
        table = parts_of(migration.key_spaces, self.accounts.tables.table)
        if number == SOURCE:
            return table(migration.source)
        return by_number(migration.tables, migration.beginnings, table)[number]

    def within(self, task: Task) -> KeyRange:
        """Return the key range of a task. Raises Moved when its keys cannot be opened."""
        try:
            after = self.keys.from_text("after", task.after or None)
            return KeyRange(after, self.keys.from_text("upto", task.upto or None))
        except StateUnusable:
            raise refusal("task-not-opened") from None

    def cursor(self, key: EntityKey | None) -> str:
        """Return a cursor sealed as text, "" for None."""
        return self.keys.to_text("cursor", key) or ""

    @contextmanager
    def working_on(self, task: Task) -> Iterator[None]:
        self.at_work[task.id] = task
        try:
            yield
        finally:
            del self.at_work[task.id]


def config_path(basis: Basis, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of this worker's configuration."""
    return Path(environ.get(CONFIG_VARIABLE) or basis.config)


def identity_of(basis: Basis) -> tuple[str, ...]:
    """Return what tells openings apart: migration, run and endpoints of a basis, path and digest of the file.
    Raises ConfigurationError: this machine has no such file, or it cannot be read."""
    path = config_path(basis)
    try:
        text = path.read_bytes()
    except OSError:
        raise refusal("worker-without-configuration", file=path, variable=CONFIG_VARIABLE) from None
    return (str(path), sha256(text).hexdigest(), basis.script_id, basis.digest, basis.run_id, basis.endpoints)


async def open_for(basis: Basis, identity: tuple[str, ...], connect: Any) -> Opened:
    """Open a migration for a worker.

    Args:
        basis: the state of the migration that the tasks were made under.
        identity: that of the basis (`identity_of`).
        connect: connects the accounts of a configuration.

    Raises:
        ConfigurationError, DeclarationError, SecretMissing: the worker's project is not usable.
        Moved: accounts, script or secrets are not the runner's, or the control row is of another run.
        ServiceError: the restricted store could not be read.
    """
    config = load_config(config_path(basis))
    if config.endpoints != basis.endpoints:
        raise refusal("another-project", what="a worker has other accounts than the runner")
    declared = load_script(config.migrations / f"{basis.script_id}.py")
    if declared.digest != basis.digest:
        raise refusal("another-project", what="a worker has another script than the runner")
    prepared = Prepared.of(config, declared)
    prepared.require()
    accounts: Accounts = connect(config)
    try:
        migration = open_migration(prepared, accounts)
        row = await migration.control.read()
        if row is None or row.run_id != basis.run_id:
            raise refusal("another-project", what="the control row is of another run than the task")
        if dict(row.fingerprints) != prepared.fingerprints:
            raise refusal("another-project", what="a worker has other secrets than the runner")
        mapping = await migration.mapping(row)
    except BaseException:
        await accounts.close()
        raise
    return Opened(
        identity=identity,
        config=config,
        mapper=prepared.mapper,
        accounts=accounts,
        control=migration.control,
        mapping=mapping,
        keys=SealedKeys(basis.script_id, travel_key(mapping, row)),
    )


def travel_key(mapping: MappingStore, row: ControlRow) -> bytes:
    """Return the key that seals old keys in tasks and results."""
    return tasks_key(None if mapping.keyring is None else mapping.keyring.root, row.id_key)
