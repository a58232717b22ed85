"""Migrations that have begun, on Azurite, as the runner would leave them: for tests of clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rekey import Migration
from rekey.core.safe_ids import new_key
from rekey.declaration.migration import Declared, required_secrets
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.mapping.sealing import LocalWrappingKey
from rekey.mapping.store import Keyring
from rekey.phases import ControlPhase
from rekey.project.secrets_source import fingerprint
from rekey.protocol.control import ControlRow, ControlStore
from rekey.tables.base import TableService

WRAPPING_KEY = b"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
SECRETS = {"users": b"0123456789abcdef0123456789abcdef"}


def declared_as(script_id: str, migration: Migration) -> Declared:
    """Return a migration as it would be loaded from a script."""
    return Declared(
        script_id=script_id,
        path=Path(f"{script_id}.py"),
        doc="",
        depends=frozenset(),
        migration=migration,
        digest=migration.digest(),
    )


@dataclass
class Begun:
    """A migration with its tables; `begin` gives it a control row."""

    declared: Declared
    tables: TableService
    restricted: TableService
    target_account: str = ""
    """The endpoint of the account of targets, where a table is there."""
    store: ControlStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = ControlStore(self.restricted, self.declared.script_id)

    async def create_tables(self) -> Begun:
        """Create source, targets and the restricted tables."""
        migration = self.declared.migration
        for name in (migration.source, *migration.table_names):
            await self.tables.create_table(name)
        for name in (JOURNAL_TABLE, MAPPING_TABLE):
            await self.restricted.create_table(name)
        return self

    async def begin(self, run_id: str = "1" * 32) -> None:
        """Make the control row of a run, in `source`."""
        migration = self.declared.migration
        if migration.is_sealed:
            table = self.restricted.table(MAPPING_TABLE)
            await Keyring(table, self.declared.script_id, LocalWrappingKey(WRAPPING_KEY)).begin()
        await self.store.create(
            ControlRow(
                script_id=self.declared.script_id,
                phase=ControlPhase.SOURCE,
                epoch=1,
                run_id=run_id,
                digest=self.declared.digest,
                source=migration.source,
                targets=migration.table_names,
                fingerprints={name: fingerprint(SECRETS[name]) for name in required_secrets(migration)},
                id_key=new_key(),
                target_account=self.target_account,
                part="" if migration.where is None else migration.capture,
            )
        )

    async def move(self, *phases: ControlPhase, copied: bool = False) -> None:
        """Move the control row through phases; then say that the backfill is done."""
        for phase in phases:
            now = await self.store.read()
            assert now is not None
            await self.store.move(now.phase, phase)
        if copied:
            await self.store.mark_copied()
