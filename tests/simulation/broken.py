"""The implementation with one of its rules switched off, to see the search find what the rule is there for.

Rules kept here:

* Exactly one rule is off in each; everything else is the implementation's own code, not a copy of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from rekey.copy.delta import PassResult, delta_pass
from rekey.copy.map import target_writes
from rekey.copy.write import BatchWriter, Copier
from rekey.mapping.rows import TargetKey
from rekey.model import EntityKey, Row
from rekey.protocol import propagate
from rekey.protocol.propagate import Propagator
from rekey.protocol.replicas import Writes
from rekey.tables import base
from rekey.tables.base import Table
from rekey.tables.bulk import insert_absent


class AuthorityFirst(Propagator):
    """Reads the authority before the replicas."""

    _key: EntityKey
    _early: list[Row | None]

    async def propagate(self, source_key: EntityKey, **more: Any) -> Any:
        self._key, self._early = source_key, []
        return await super().propagate(source_key, **more)

    async def _read_replicas(
        self, source_key: EntityKey, listed: frozenset[TargetKey]
    ) -> dict[TargetKey, Row]:
        self._early = [await super()._authority(self._key)]
        return await super()._read_replicas(source_key, listed)

    async def _authority(self, source_key: EntityKey) -> Row | None:
        return self._early.pop() if self._early else await super()._authority(source_key)


class WriteFirst(Propagator):
    """Writes under new target keys first and claims them afterwards."""

    _first: bool

    async def propagate(self, source_key: EntityKey, **more: Any) -> Any:
        self._first = True
        return await super().propagate(source_key, **more)

    async def _unlisted(self, *given: Any) -> set[TargetKey]:
        first, self._first = self._first, False
        return set() if first else await super()._unlisted(*given)


class ClaimAfterReading(Propagator):
    """Goes on after a claim with what it read before it, instead of beginning the round again."""

    async def _unlisted(self, source_key: EntityKey, *known: Any) -> set[TargetKey]:
        unlisted = await super()._unlisted(source_key, *known)
        if unlisted:
            forward = await self.mapping.forward(source_key)
            await self.mapping.claim(source_key, forward, unlisted, self.still_owns)
        return set()


class AnyOwner(Propagator):
    """Takes every row under its old target keys for its own, whoever owns them now."""

    async def _owned(
        self, _key: EntityKey, _expected: Any, found: dict[TargetKey, Row], *_known: Any
    ) -> dict[TargetKey, Row]:
        return found


def unconditional() -> Any:
    """Replace and delete whatever is there, not what was read."""

    def difference(*given: Any) -> Writes:
        return [
            (place, write if write.etag is None else replace(write, etag="*"))
            for place, write in _difference(*given)
        ]

    return mock.patch.object(propagate, "difference", difference)


def no_look_after_writing() -> Any:
    """End after a round that wrote, without looking at the authority again."""

    async def is_last(*_: Any) -> bool:
        return True

    return mock.patch.object(Propagator, "_is_last", is_last)


def addresses_trusted() -> Any:
    """Read and write every row at its address, whatever characters its key has."""
    return mock.patch.object(base, "is_addressable", lambda _key: True)


_difference = propagate.difference


class UpsertingCopier(Copier):
    """Writes target rows by upsert: what was scanned overwrites what is there."""

    def writer(self, advance: Callable[[int], None] = lambda _rows: None) -> BatchWriter:
        return _Upserts(self, advance)


class TargetFirst(Copier):
    """Writes target rows before their mapping rows."""

    def writer(self, advance: Callable[[int], None] = lambda _rows: None) -> BatchWriter:
        return _TargetsFirst(self, advance)


class Blind(Copier):
    """Takes any row that stands in the way for copied already."""

    def writer(self, advance: Callable[[int], None] = lambda _rows: None) -> BatchWriter:
        return _Blind(self, advance)


class _Upserts(BatchWriter):
    async def _write(self, held: Any, batch: list[Any]) -> None:
        if held is self._mapping:
            await super()._write(held, batch)
            return
        for write in batch:
            await held.table.upsert(write.row)
        _all_wrote(batch)


class _TargetsFirst(BatchWriter):
    _put_off: list[Any]

    async def _hand_over(self, window: Any, held: Any, writes: Any) -> None:
        if held is self._mapping:
            self._put_off = list(writes)
            for target in self._targets:
                await super()._hand_over(window, target, target_writes(window, target.numbers))
                for batch in target.release_all():
                    self._start(target, batch)
        elif held is self._targets[0]:
            await super()._hand_over(window, self._mapping, iter(self._put_off))


class _Blind(BatchWriter):
    async def _write(self, held: Any, batch: list[Any]) -> None:
        await insert_absent(held.table, batch)
        _all_wrote(batch)


def _all_wrote(batch: list[Any]) -> None:
    for write in batch:
        write.window.wrote(1)


async def late_watermark(source: Table, copier: Copier, **given: Any) -> PassResult:
    """Take the time after the pass for its watermark, not the time before it."""
    result = await delta_pass(source, copier, **given)
    server_time: Callable[[], Awaitable[str]] = given["server_time"]
    return replace(result, started_at=await server_time())


async def no_sweep(*_: Any, **_more: Any) -> int:
    """Do not look for what is gone."""
    return 0
