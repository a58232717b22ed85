"""Secondary rows that an application writes itself while clients still maintain them (ADR 0046): they are
compared with what their main rows give, and not written a second time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from rekey.client.intent import SameView
from rekey.client.parts import ClientParts
from rekey.client.steps import Prepared
from rekey.mapping.rows import TargetKey
from rekey.model import Row, etag_of
from rekey.protocol.operations import as_stored, row_after
from rekey.protocol.replicas import same_content
from rekey.protocol.rules import SECONDARY_DIFFERS, refusal
from rekey.tables.base import Operation


@dataclass(slots=True)
class WithSecondary(SameView):
    """A write of main rows together with their secondary rows. `asked`: the operations on secondary rows, as
    the caller gave them."""

    _: KW_ONLY
    asked: Sequence[Operation] = ()

    async def prepare(self) -> list[Prepared] | None:
        writes = await super(WithSecondary, self).prepare()
        for operation in self.asked if writes is not None else ():
            self._compare(operation, writes or [])
        return writes

    def _compare(self, operation: Operation, writes: Sequence[Prepared]) -> None:
        """Raise what the service would answer, or WritesRefused where the main rows give something else."""
        number = self.authority.mapper.number_by_row_key(operation.key.row)
        place = TargetKey(number, *operation.key)
        before = next((row for write in writes if (row := write.replicas.read.get(place))), None)
        wanted = next((row for write in writes if (row := write.expected.get(place))), None)
        _require_same(self.client, row_after(as_stored(operation)[0], before), wanted)


async def confirmed(client: ClientParts, operation: Operation) -> str | None:
    """Return the ETag of the secondary row that an operation asks for, already written with its main row.
    Raises WritesRefused where the main row gives something else; ServiceError as the service would."""
    there = await client.table.get(operation.key)
    after = row_after(as_stored(operation)[0], there)
    _require_same(client, after, there)
    return None if there is None else etag_of(there)


def _require_same(client: ClientParts, asked: Row | None, from_main: Row | None) -> None:
    if asked is None and from_main is None:
        return
    # Refused before anything is written: an acknowledged write must not be lost.
    if asked is None or from_main is None or not same_content(asked, from_main):
        raise refusal(SECONDARY_DIFFERS, client.table.name)
