"""Looks up old keys in the mappings of other migrations: a new row that holds a reference in their place
(`props.reference(…, keep_old=False)`) is written back with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared
from rekey.declaration.old_references import NOTHING_LOOKED_UP, OldValues, ReferredKey
from rekey.errors import Erased, RowRefused, TableBeingDeleted, TableMissing
from rekey.mapping.store import MappingStore
from rekey.model import EntityKey, Row
from rekey.protocol.control import ControlRow, ControlStore
from rekey.tables.base import Table, TableService

# Seconds for which an old key that was looked up is remembered: for the steps of a write, and no longer, so
# that nothing erased is written. What is remembered is never wrong: the mapper proves it by mapping it again.
REMEMBERED_S = 60.0
_MOST = 10_000


class ReferredMapping:
    """The mapping of a migration whose rows others refer to; opened when it is first needed."""

    def __init__(
        self,
        source: str,
        control: ControlStore,
        open_mapping: Callable[[ControlRow], Coroutine[Any, Any, MappingStore]],
        mapper: Callable[[], Mapper],
        target: Callable[[], Table | None],
    ) -> None:
        """Create it; no request is sent yet.

        Args:
            source: the name of its source.
            control: reads its control row.
            open_mapping: returns the mapping of a control row.
            mapper: returns its mapper. Raises SecretMissing.
            target: returns its main target; None where that cannot be read.
        """
        self._source, self._control, self._open_mapping = source, control, open_mapping
        self._mapper, self._target = mapper, target
        self._opened: tuple[float, MappingStore] | None = None

    async def old_key(self, key: EntityKey) -> EntityKey | None:
        """Return the old key of the row under a main target key; None where none is known, or it was erased.
        Raises ServiceError, SecretMissing, Moved, SealedUnreadable."""
        mapping = await self._mapping()
        if mapping is None:
            return None
        try:
            owner = await mapping.owner(key)
            if owner is not None:
                return owner.source
            # A row that no client wrote (capture "delta", or after `complete`) has no mapping row yet.
            if not await mapping.expired_on():
                return await self._named_by_row(key)
        except (Erased, TableMissing, TableBeingDeleted):
            pass
        return None

    async def _mapping(self) -> MappingStore | None:
        now = asyncio.get_running_loop().time()
        if self._opened is None or now >= self._opened[0] + REMEMBERED_S:
            row = await self._control.read()
            if row is None or row.source.lower() != self._source.lower():
                return None
            self._opened = now, await self._open_mapping(row)
        return self._opened[1]

    async def _named_by_row(self, key: EntityKey) -> EntityKey | None:
        target = self._target()
        row = None if target is None else await target.get(key)
        with suppress(RowRefused):
            return None if row is None else self._mapper().source_key(row)
        return None


class OldReferences:
    """Looks up what new rows do not hold of their source rows."""

    def __init__(self, mappings: Mapping[str, ReferredMapping]) -> None:
        """Create it with the mappings of the migrations that are referred to, by the ids of their scripts."""
        self._mappings = mappings
        self._known: dict[ReferredKey, tuple[float, str]] = {}

    async def of(
        self, mapper: Mapper, target_row: Row, old_key: EntityKey, source_row: Row | None
    ) -> OldValues:
        """Return the old values that `Mapper.reverse` needs for a main target row, as far as they are known.
        Arguments as for that. Raises RowRefused, and as `ReferredMapping.old_key`."""
        if not mapper.looks_up:
            return NOTHING_LOOKED_UP
        needed = mapper.to_look_up(target_row, old_key, source_row)
        values = {name: await self._old_value(referred) for name, referred in sorted(needed.items())}
        return {name: value for name, value in values.items() if value is not None}

    async def _old_value(self, referred: ReferredKey) -> str | None:
        now = asyncio.get_running_loop().time()
        since, value = self._known.get(referred, (float("-inf"), ""))
        if now < since + REMEMBERED_S:
            return value
        mapping = self._mappings.get(referred.via)
        key = None if mapping is None else await mapping.old_key(referred.key)
        if key is None:
            return None
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[referred] = now, key.row
        return key.row


async def referring_controls(
    restricted: TableService, scripts: Iterable[Declared], script_id: str
) -> dict[str, ControlRow]:
    """Return the control rows of the migrations among `scripts` that look old keys up in the mapping of one,
    by their ids: it stays as long as one of them may need it."""
    referring = [script for script in scripts if script_id in script.migration.looked_up_in]
    controls = {script.script_id: await own_control(restricted, script) for script in referring}
    return {other: control for other, control in controls.items() if control is not None}


async def own_control(restricted: TableService, declared: Declared) -> ControlRow | None:
    """Return the control row of a migration; None when there is none, or it is another project's."""
    control = await ControlStore(restricted, declared.script_id, declared.migration.group).read()
    is_other = control is None or control.source.lower() != declared.migration.source.lower()
    return None if is_other else control
