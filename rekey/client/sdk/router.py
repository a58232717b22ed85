"""A table of which several migrations move parts (ADR 0066), or which several fill (ADR 0068): a client of
each, and a router that gives every row to the client of its migration. To its migration each of them is a
client like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TypeAlias

from rekey.client.lease import Permit
from rekey.client.sdk.calls import Read
from rekey.client.sdk.core import ClientCore, rows_in
from rekey.client.sdk.guard import PartGuard
from rekey.client.sdk.leased import Leased
from rekey.client.sdk.options import ClientOptions
from rekey.client.send import send_alone
from rekey.core.key_space import KeySpace
from rekey.errors import ConfigurationError
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, key_of
from rekey.protocol.effects import side_by_side
from rekey.protocol.rules import OTHERS_ROW, View, refusal
from rekey.tables.base import Accounts, Operation


class PartRouter:
    """Writes, permits and shadow reads of a table, by the clients of its parts; used like a `ClientCore`."""

    def __init__(self, cores: Sequence[ClientCore], guards: Sequence[PartGuard] = ()) -> None:
        """Create the router. The parts are apart, as `carrier_of` checks: those that clients follow, at least
        one, and those that none has to follow."""
        self._cores = tuple(cores)
        self._parts: tuple[Leased, ...] = (*cores, *guards)
        self._compared = [core for core in cores if not core.options.is_index]
        self.options, self.table = cores[0].options, cores[0].table
        self._opening = asyncio.Lock()
        self._is_open = False
        for core in cores:
            core.beside = partial(self._passed_by_others, core)

    @property
    def is_open(self) -> bool:
        return self._is_open

    async def open(self) -> None:
        """Open all clients: before all have registered, nothing is written or read. Raises as
        `Leased.open`."""
        async with self._opening:
            if not self._is_open:
                await side_by_side(part.open() for part in self._parts)
                self._is_open = True

    async def close(self) -> None:
        """Close all clients. Idempotent."""
        await side_by_side(part.close() for part in self._parts)

    async def write(self, operations: Sequence[Operation]) -> list[str | None]:
        """Do one write, or a transaction; return the new ETags. Raises RekeyError, TimeoutError."""
        await self.open()
        owners = [self._owner(operation.key) for operation in operations]
        if None in owners and self.options.view is View.NEW:
            raise refusal(OTHERS_ROW, self.table)  # of none that is followed; perhaps of one that is not
        owner = owners[0] if owners else self._cores[0]
        if isinstance(owner, ClientCore) and all(each is owner for each in owners):
            return await owner.write(operations)
        return await self._write_unfollowed(operations, owners)

    @asynccontextmanager
    async def reading(
        self, key: EntityKey | None = None, asked: KeySpace | None = None
    ) -> AsyncIterator[None]:
        """Hold the permits of one read, of all clients; as `Leased.reading`."""
        await self.open()
        is_held = any(part.holds(key, asked) for part in self._parts)
        async with AsyncExitStack() as permits:
            for part in self._parts:
                await permits.enter_async_context(part.reading(key, asked, is_held=is_held))
            yield

    async def deleting_table(self) -> None:
        """Raise WritesRefused while one of the migrations works with the table."""
        await self.open()
        await side_by_side(part.deleting_table() for part in self._parts)

    def shadows(self) -> bool:
        """Draw whether a read is repeated on the other side."""
        working = next((core for core in self._compared if core.is_working), None)
        return working is not None and working.shadows()

    def shadow(self, read: Read, status: int, body: bytes) -> None:
        """Queue a comparison of a read with the other side, of each row by the client of its migration."""
        try:
            rows = rows_in(read, status, body)
        except ValueError:
            self._cores[0].counters.ignored += 1
            return
        named = [row for row in rows if {PARTITION_KEY, ROW_KEY} <= row.keys()]
        for core in self._compared:
            if read.key is None:
                core.compare(read, [row for row in named if core.covers(key_of(row))])
            elif core.covers(read.key):
                core.compare(read, rows)

    def _owner(self, key: EntityKey) -> Leased | None:
        return next((part for part in self._parts if part.covers(key)), None)

    @asynccontextmanager
    async def _passed_by_others(self, own: ClientCore) -> AsyncIterator[None]:
        """Hold the permits of the other clients while the own one sends what no replica follows: by their
        declarations the rows are of none of their parts."""
        async with AsyncExitStack() as permits:
            for part in self._parts:
                if part is not own:
                    await permits.enter_async_context(part.passing())
            yield

    async def _write_unfollowed(
        self, operations: Sequence[Operation], owners: Sequence[Leased | None]
    ) -> list[str | None]:
        """Write rows that no replica follows to the table alone: of no part, or of parts whose migrations
        follow nothing. Raises WritesRefused: replicas follow rows of a part among these, or it has moved on.
        """
        first = self._cores[0]
        settings = first.options.settings
        async with AsyncExitStack() as permits:
            permitted: list[tuple[Leased, Permit]] = []
            # The first one may wait in a freeze, before the permit of another is permitted.
            for part in sorted(self._parts, key=lambda part: part not in owners):
                waits = all(owner is part for owner in owners)
                permit = await permits.enter_async_context(part.passing(waits=waits))
                if part in owners and (code := part.unfollowed_refused(permit)):
                    raise part.write_refusal(code)
                permitted.append((part, permit))
            async with asyncio.timeout(settings.sending_s):
                wait = partial(asyncio.sleep, settings.max_in_flight_s)
                etags = await send_alone(first.whole_table(), operations, wait)
            first.counters.writes += len(operations)
            checks = []
            for part, permit in permitted:
                own = [each for each, owner in zip(operations, owners, strict=True) if owner is part]
                if own:
                    checks.append(part.before_answer(own, permit))
            await side_by_side(checks)  # an error of one part keeps no other from its intents
            return etags


# What carries the requests for a table.
Carrier: TypeAlias = ClientCore | PartRouter


def carrier_of(followed: Sequence[ClientOptions], connect: Callable[[ClientOptions], Accounts]) -> Carrier:
    """Return the client of a table: of one migration, or of several that move parts of it, or that fill it.

    Args:
        followed: the options of each migration's client of the table.
        connect: makes the connections of a client when they are first needed.

    Raises:
        ConfigurationError: the migrations are not all of the same view of the table, with rows that are
            provably apart.
    """
    if len(followed) == 1:
        return ClientCore(followed[0], partial(connect, followed[0]))
    _require_apart(followed)
    followed = sorted(followed, key=lambda options: not options.is_followed)
    ids = tuple(options.declared.script_id for options in followed)
    for number, options in enumerate(followed):
        options.is_routed = True
        if options.view is View.OLD:
            # The first one looks for parts that none of them knows: whatever is written past all of them is
            # written under its permit.
            part_of = options.facts.part_of if number == 0 else ""
            options.facts = replace(options.facts, parts=ids, part_of=part_of)
    cores = [ClientCore(options, partial(connect, options)) for options in followed if options.is_followed]
    guards = [
        PartGuard(options, partial(connect, options)) for options in followed if not options.is_followed
    ]
    return PartRouter(cores, guards)


def _require_apart(followed: Sequence[ClientOptions]) -> None:
    table, view = followed[0].table, followed[0].view
    if not any(options.is_followed for options in followed):
        raise ConfigurationError(
            f'no migration of {table} has capture "dual-write", so there is nothing to follow',
            hint="use the SDK's own TableClient",
        )
    spaces: dict[str, KeySpace] = {}
    for options in followed:
        script_id = options.declared.script_id
        if options.view is not view:
            raise ConfigurationError(
                f"{table} has old keys for one of {followed[0].declared.script_id} and {script_id}, and new"
                " keys for the other",
                hint="make a client for each of them; name its script alone",
            )
        if options.key_space is None:
            does, says = ("migrates", "where=") if view is View.OLD else ("fills", "shared=True")
            raise ConfigurationError(
                f"{script_id} {does} all of {table}, so no other migration has rows there",
                hint=f"name one migration, or those whose scripts say {says}",
            )
        if script_id in spaces:
            raise ConfigurationError(f"{script_id} is named twice", hint="name each script once")
        spaces[script_id] = options.key_space
    for first, second in combinations(spaces, 2):
        if not spaces[first].is_apart_from(spaces[second]):
            raise ConfigurationError(
                f"{first} and {second} may {'migrate' if view is View.OLD else 'fill'} the same rows",
                hint="give the client the scripts that `rekey apply` uses, unchanged",
            )
