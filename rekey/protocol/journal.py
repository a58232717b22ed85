"""The journal: one durable intent for every key that a write is about to change, in the restricted table
`rekeyjournal`. If a process dies before the replicas are current, others finish from its intents."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import count

from rekey.core.clock import SystemClock, ticks_of
from rekey.core.edm import INT64
from rekey.errors import ConditionFailed, RowMissing
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.mapping.sealing import INTENT
from rekey.mapping.store import Keyring
from rekey.model import (
    PARTITION_KEY,
    ROW_KEY,
    TIMESTAMP,
    TYPE_SUFFIX,
    EntityKey,
    KeyRange,
    Row,
    etag_of,
    key_of,
)
from rekey.protocol.effects import apply_operation, apply_operations
from rekey.protocol.rules import SOURCE, TARGET, Side
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, Table, Verb

_LAST = "\uffff"
_system = SystemClock()


@dataclass(frozen=True, slots=True)
class Intent:
    """One intent as read from the journal."""

    # Its key in the journal table.
    id: EntityKey
    # Which table `key` is a key of.
    side: Side
    # The source key or main target key that a write is about.
    key: EntityKey
    client_id: str
    # The epoch of the permit it was made under.
    epoch: int
    # When it was made, last touched or marked as settled, in ticks by the service's clock.
    at: int
    # For how many seconds after that the announced write may be in flight; None if it does not say.
    open_s: float | None
    # Its key was settled since, and it is kept because its process may still send requests.
    settled: bool
    etag: str
    # Other clients that have worked on its key since, first one first.
    claimed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IntentRef:
    """An intent as this process wrote it last; fields as in `Intent`."""

    id: EntityKey
    side: Side
    key: EntityKey
    etag: str


@dataclass(frozen=True, slots=True)
class IntentAge:
    """What is known of an intent without its key; fields as in `Intent`."""

    client_id: str
    at: int
    # Since when its replicas may be behind, in ticks, for people: when it was made by its client's clock, or
    # `at` if that is earlier.
    since: int
    open_s: float | None
    settled: bool


@dataclass(eq=False, repr=False)
class Journal:
    """The intents of one migration."""

    # `rekeyjournal` of the restricted account.
    table: Table
    script_id: str
    # Seals the keys in intents; None for a migration whose mapping is not sealed.
    keyring: Keyring | None = None
    _: KW_ONLY
    # For how many seconds a write that this process announces may be in flight, requests that are sent at its
    # end included.
    open_s: float | None = None
    # This machine's time in ticks: it orders the row keys of one client and means nothing else.
    now: Callable[[], int] = _system.ticks
    # Random; distinguishes this journal's row keys from those of another `Journal` of the same client.
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    _numbers: Iterator[int] = field(default_factory=lambda: count(1), init=False)

    def write_id(self) -> str:
        """Return an id that no other write has."""
        return f"{self.token}-{next(self._numbers)}"

    async def begin(
        self, client_id: str, epoch: int, side: Side, keys: Sequence[EntityKey]
    ) -> list[IntentRef]:
        """Write one intent for each of 1 to 100 keys, durable on return. Returns the intents, in the keys'
        order. `epoch`: of the client's permit; `side`: which table the keys are keys of."""
        await self._fresh()
        rows = [self._row(client_id, epoch, side, key) for key in keys]
        etags = await apply_operations(self.table, [Operation(Verb.INSERT, row) for row in rows])
        return [
            IntentRef(key_of(row), side, key, etag or "")
            for row, key, etag in zip(rows, keys, etags, strict=True)
        ]

    async def touch(self, intent: IntentRef, epoch: int) -> IntentRef:
        """Rewrite an intent, even if it is gone, so that its age restarts before its key is worked on.
        Returns it as it is now."""
        await self._fresh()
        client_id = intent.id.partition.removeprefix(_partition(self.script_id, ""))
        row = self._intent_row(intent.id, client_id, epoch, intent.side, intent.key)
        # If the answer is lost, content tells whether it was applied: no two touches have the same.
        row["Touch"] = self.write_id()
        return replace(intent, etag=await self.table.upsert(row))

    async def claim(self, intent: Intent, client_id: str, epoch: int, open_s: float) -> str | None:
        """Rewrite an intent for a client that is about to settle it for another one, unless it changed since
        it was read: of several claims one succeeds. Return the new ETag; None when the intent is gone or has
        changed.

        Args:
            client_id: the client that is about to settle it; the intent names it from now on.
            epoch: the epoch of that client's permit.
            open_s: for how many seconds that client's requests may be in flight.
        """
        await self._fresh()
        row = self._intent_row(intent.id, intent.client_id, epoch, intent.side, intent.key)
        others = [claimant for claimant in intent.claimed_by if claimant != client_id]
        row |= {"OpenMs": math.ceil(open_s * 1000), "ClaimedBy": ",".join([*others, client_id])}
        try:
            return await self.table.replace(row, etag=intent.etag)
        except (RowMissing, ConditionFailed):
            return None

    async def end(self, intents: Sequence[IntentRef | Intent]) -> None:
        """Remove intents of one client unless they changed since they were written or read: then whoever
        changed them removes them. Missing ones are no error."""
        # On their versions: an unanswered removal may take effect after the intent was written again, when it
        # may be all that leads to a write in flight.
        await self._remove([_removal(intent.id, intent.etag) for intent in intents])

    async def end_if(self, intent: IntentRef | Intent) -> bool:
        """Remove an intent unless it changed since it was written or read; False when it did, True when it is
        gone."""
        try:
            await apply_operation(self.table, _removal(intent.id, intent.etag))
        except RowMissing:
            return True
        except ConditionFailed:
            return False
        return True

    async def scan(self) -> AsyncIterator[list[Intent]]:
        """Iterate over the intents of the migration, oldest first within a client.

        Raises:
            SealedUnreadable: an intent was altered, or its data key is gone.
            Erased: the data key of an intent was shredded.
        """
        async for page in self.table.scan(intents_of(self.script_id)):
            if self.keyring is not None:
                await self.keyring.learn(page.rows)
            yield [self._read(row) for row in page.rows]

    async def keep(self, intent_id: EntityKey, etag: str) -> None:
        """Mark an intent as settled, unless it changed since it had `etag`."""
        change: Row = {PARTITION_KEY: intent_id.partition, ROW_KEY: intent_id.row, "Settled": True}
        with suppress(RowMissing, ConditionFailed):
            await self.table.merge(change, etag=etag)

    async def ages(self) -> AsyncIterator[list[IntentAge]]:
        """Iterate over the intents without opening their keys."""
        async for page in self.table.scan(intents_of(self.script_id)):
            yield [_age(row) for row in page.rows]

    async def clear(self) -> None:
        """Remove all intents of the migration, settled or not; used when the targets are dropped or nothing
        follows any more: no client writes one again."""
        async for page in self.table.scan(intents_of(self.script_id)):
            by_client: dict[str, list[Operation]] = {}
            for row in page.rows:
                by_client.setdefault(row[PARTITION_KEY], []).append(_removal(key_of(row), "*"))
            for removals in by_client.values():
                await self._remove(removals)

    async def _remove(self, removals: Sequence[Operation]) -> None:
        for start in range(0, len(removals), MAX_BATCH_OPERATIONS):
            batch = removals[start : start + MAX_BATCH_OPERATIONS]
            try:
                await apply_operations(self.table, batch)
            except (RowMissing, ConditionFailed):
                if len(batch) == 1:
                    continue
                # Some were removed or changed meanwhile, which failed the transaction: one by one.
                for removal in batch:
                    await self._remove([removal])

    def _row(self, client_id: str, epoch: int, side: Side, key: EntityKey) -> Row:
        # In a partition of the client: the intents of one transaction are written in one transaction.
        row_key = f"{self.now():020d}-{next(self._numbers):08d}-{self.token}"
        intent_id = EntityKey(_partition(self.script_id, client_id), row_key)
        return self._intent_row(intent_id, client_id, epoch, side, key)

    async def _fresh(self) -> None:
        if self.keyring is not None:
            await self.keyring.fresh()

    def _intent_row(
        self, intent_id: EntityKey, client_id: str, epoch: int, side: Side, key: EntityKey
    ) -> Row:
        row: Row = {
            PARTITION_KEY: intent_id.partition,
            ROW_KEY: intent_id.row,
            "Client": client_id,
            "Epoch": str(epoch),
            "Epoch" + TYPE_SUFFIX: INT64,
            "Side": side,
        }
        if self.open_s is not None:
            row["OpenMs"] = math.ceil(self.open_s * 1000)
        if self.keyring is not None:
            plain = json.dumps([side, *key]).encode("ascii")
            return row | self.keyring.sealer.seal(INTENT, JOURNAL_TABLE, intent_id, plain)
        return row | {"KeyPartition": key.partition, "KeyRow": key.row}

    def _read(self, row: Row) -> Intent:
        if self.keyring is not None:
            side, *key = json.loads(self.keyring.sealer.unseal(INTENT, JOURNAL_TABLE, row))
        else:
            side, key = row["Side"], [row["KeyPartition"], row["KeyRow"]]
        return Intent(
            id=key_of(row),
            side=TARGET if side == TARGET else SOURCE,
            key=EntityKey(*key),
            client_id=row["Client"],
            epoch=int(row["Epoch"]),
            at=ticks_of(row[TIMESTAMP]),
            open_s=_open_s(row),
            settled="Settled" in row,
            etag=etag_of(row),
            claimed_by=tuple(filter(None, row.get("ClaimedBy", "").split(","))),
        )


def _removal(intent_id: EntityKey, etag: str) -> Operation:
    return Operation(Verb.DELETE, {PARTITION_KEY: intent_id.partition, ROW_KEY: intent_id.row}, etag)


def _age(row: Row) -> IntentAge:
    at = ticks_of(row[TIMESTAMP])
    created = row[ROW_KEY].partition("-")[0]
    since = min(at, int(created)) if created.isdecimal() else at
    return IntentAge(row["Client"], at, since, _open_s(row), "Settled" in row)


def _open_s(row: Row) -> float | None:
    return row["OpenMs"] / 1000 if "OpenMs" in row else None


def intents_of(script_id: str) -> KeyRange:
    """Return the key range of a migration's intents in the journal table."""
    prefix = _partition(script_id, "")
    return KeyRange(EntityKey(prefix, ""), EntityKey(prefix + _LAST, ""))


def _partition(script_id: str, client_id: str) -> str:
    return f"{script_id}.j.{client_id}"
