"""A migration with capture "delta", for a process that follows other migrations of the same table. In the old
view the rows of its part are written as if there were no migration, until they move on; in the new view, from
then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rekey.client.lease import ClientLease, Permit
from rekey.client.route import took_too_long
from rekey.client.sdk.leased import Leased
from rekey.errors import RekeyError
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlStore
from rekey.protocol.registry import ClientRow, Registry
from rekey.protocol.rules import FROZEN, NEW_VIEW_CLOSED, PART_MOVED, View, reads_refused
from rekey.tables.base import Accounts, Operation

# From these phases a migration never goes back.
_OVER = (ControlPhase.COMPLETE, ControlPhase.RETIRED)
# The epoch of `dual_write` before the first freeze: `source` is 1.
_FOLLOWING_EPOCH = 2


class _NoRegistry(Registry):
    """The registry of a migration whose runner asks for no clients: its operator stops the writers."""

    async def beat(self, client: ClientRow) -> None:
        """Do nothing."""

    async def delete(self, client_id: str, counters: Mapping[str, int], etag: str = "*") -> bool:  # noqa: ARG002
        """Do nothing."""
        return False


class PartGuard(Leased):
    """The lease of a migration with capture "delta", and what follows from its phase for rows of its part."""

    def _leased(self, accounts: Accounts) -> ClientLease:
        declared, restricted = self.options.declared, accounts.restricted
        control = ControlStore(restricted, declared.script_id, declared.migration.group)
        registry = _NoRegistry(restricted, declared.script_id)
        return ClientLease(control, registry, self.options.facts, settings=self.options.settings)

    def _reads_refused(self, permit: Permit) -> str:
        # What the new table gets after cutover is not written to the source: not in the freeze of a rollback
        # either, until the rows are copied back. Before cutover the new table lacks what has changed since
        # the last pass.
        phase = permit.came_from or permit.phase
        return reads_refused(phase, self.options.view, copied=False, reverse=False)

    def unfollowed_refused(self, permit: Permit) -> str:
        is_old = self.options.view is View.OLD
        match permit.phase:
            case None | ControlPhase.SOURCE | ControlPhase.DUAL_WRITE:
                return "" if is_old else NEW_VIEW_CLOSED
            case ControlPhase.FREEZE:
                return FROZEN
        return PART_MOVED if is_old else ""

    async def before_answer(self, operations: Sequence[Operation], permit: Permit) -> None:  # noqa: ARG002
        # A runner asks no guard whether it knows of a freeze, so a lease proves nothing. A write is done when
        # the control row, read after it, says that none has begun: the runner copies it then.
        if permit.phase in _OVER:
            return
        lease = await self.open()
        try:
            now = await lease.reread()
            if self.unfollowed_refused(now) == "" and _is_without_freeze(permit, now):
                return
        except RekeyError:
            pass  # as little is known
        raise took_too_long(self.table, sent=True)


def _is_without_freeze(before: Permit, now: Permit) -> bool:
    """Tell whether no freeze lay between two readings, in both of which writes pass."""
    # Into a freeze and out of it are two moves. A control row that was not there yet has made one at most.
    if before.phase is None:
        return now.epoch <= _FOLLOWING_EPOCH
    return now.run_id == before.run_id and now.epoch <= before.epoch + 1
