"""The application of a rehearsal in capture "dual-write": writes through rekey's clients, and never stops.

Rules kept here:

* The old version of the application and the new one write side by side from cutover on, the old one alone
  before it. Both use the clients as an application does; one process may hold both.
* Every write is followed at once, so every source row can be written at any time, in either view.
* What a freeze makes wait is waited for; the longest wait of one write is told, and never asserted.
* What cannot be said in a view (a row that would move to another new key) is left out: it is refused, which
  is not what a rehearsal is about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import UpdateMode

from rekey.client.sdk.client_sync import DualWriteTableClient
from rekey.client.sdk.errors import DualWriteRefused
from rekey.declaration.mapper import TargetRow
from rekey.model import PARTITION_KEY, ROW_KEY, key_of
from rekey.rehearse.application import Application, to_entity
from rekey.rehearse.azurite import Azurite, AzuriteAccount
from rekey.rehearse.project import Project
from rekey.rehearse.witness import Witness


class Clients:
    """The application's two clients: its old version's and its new one's. Closing is idempotent."""

    def __init__(self, project: Project, azurite: Azurite) -> None:
        """Make them; each registers with its first call."""
        self.old = _client(project, azurite, "old")
        self.new = _client(project, azurite, "new")

    def close_old(self) -> None:
        """End the old version of the application."""
        self.old.close()

    def __enter__(self) -> Clients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.old.close()
        self.new.close()


def _client(project: Project, azurite: Azurite, view: str) -> DualWriteTableClient:
    migration = project.declared.migration
    return DualWriteTableClient(
        azurite.tables.endpoint,
        migration.source if view == "old" else migration.target.table,
        credential=_key(azurite.tables),
        migration=project.declared,
        restricted_endpoint=azurite.restricted.endpoint,
        restricted_credential=_key(azurite.restricted),
        secrets=project.secrets,
        wrapping_key=project.wrapping_key,
        name=f"application-{view}",
        use_env_settings=False,
    )


def _key(account: AzuriteAccount) -> AzureNamedKeyCredential:
    return AzureNamedKeyCredential(account.name, account.key)


class LiveApplication(Application):
    """Writes in both views through the clients, and remembers."""

    def __init__(self, witness: Witness, seed: int, clients: Clients) -> None:
        """Take the clients; the rest is as for any application."""
        super().__init__(witness, seed)
        self.clients = clients
        self._source = clients.old
        self._target = clients.new
        self.longest_seconds = 0.0
        """The longest that one write took since `begin_counting`."""

    def begin_counting(self) -> None:
        """Start `done` and `longest_seconds` again."""
        super().begin_counting()
        self.longest_seconds = 0.0

    def write_source(self) -> None:
        """Do one thing in the old view."""
        self._timed(super().write_source)
        # The write was followed before it was acknowledged: nothing lingers.
        self.deleted.clear()

    def write_both(self) -> None:
        """Do one thing in the old view or in the new one."""
        if self._lot.random() < 0.5:
            self._timed(self._update_in_place)
        else:
            self.write_target()

    def write_target(self) -> None:
        """Do one thing in the new view; index rows and the source follow by themselves."""
        what = self._lot.randrange(4)
        if what == 0 and self._kept_back and not self._mapper.needs_timestamp:
            self._timed(self._insert_in_target)
        elif what == 1 and len(self._order) > 1:
            self._timed(self._delete_in_target)
        else:
            self._timed(self._update_in_target)

    def _timed(self, write: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            write()
        except DualWriteRefused as refused:
            if not refused.retryable:
                raise
            self.done["refused for the length of the freeze"] += 1
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)

    def _update_in_place(self) -> None:
        """Change a row in the old view so that it keeps its new key."""
        key = self._choose()
        row = self._witness.get(self.source_name, key)
        if row is None:
            return
        place = self._places(row)[:1]
        for changed in self._changes(row):
            if self._places(changed)[:1] == place and not self._taken(changed, owner=key):
                self._source.update_entity(to_entity(changed), mode=UpdateMode.REPLACE)
                self._release(self._places(row), key)
                self._enter(changed)
                self.done["updates"] += 1
                return

    def _create(self, made: Sequence[TargetRow]) -> None:
        self._target.create_entity(to_entity(made[0].row))

    def _delete_in_target(self) -> None:
        key = self._choose()
        row = self._witness.get(self.source_name, key)
        if row is None:
            return
        main = self._mapper.map(row)[0].row
        self._target.delete_entity(main[PARTITION_KEY], main[ROW_KEY])
        self._leave(key, self._places(row))
        self.done["deletes"] += 1

    def _update_in_target(self) -> None:
        key = self._choose()
        row = self._witness.get(self.source_name, key)
        if row is None:
            return
        before = self._mapper.map(row)[0].row
        for changed in self._changes(row):
            if self._taken(changed, owner=key):
                continue
            after = self._mapper.map(changed)[0].row
            if key_of(before) == key_of(after) and self._comes_back(row, changed, before, after):
                self._target.update_entity(to_entity(after), mode=UpdateMode.REPLACE)
                self._release(self._places(row), key)
                self._enter(changed)
                self.done["updates"] += 1
                return
