"""What clients of dual writes do in simulations, what each was told, and whether all of that fits together.

Rules kept here:

* A row's content, whichever view addresses it, is its source row: a write in the new view means what the
  mapping's inverse makes of it. The world of a history is a handful of source keys.
* An operation begins when its first call takes effect, and ends when its client has the answer: earlier, it
  could not have met anything else. So two operations overlap only if their calls do.
* What was refused before anything was written did not happen; what was cut off, timed out or lost its
  connection is open: it happened, will happen, or never does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rekey.declaration.mapper import Mapper
from rekey.errors import (
    Collision,
    ConditionFailed,
    RekeyError,
    RequestRejected,
    RowExists,
    RowMissing,
    RowRefused,
    ServiceError,
    WritesRefused,
)
from rekey.model import EntityKey, Row, content_of, etag_of, key_of
from rekey.protocol.rules import View
from rekey.tables.base import Operation, Table, Verb
from tests.simulation.linearizable import (
    CONDITION,
    DONE,
    EXISTS,
    MISSING,
    OPEN,
    Content,
    History,
    Refuses,
)
from tests.simulation.linearizable import Operation as Seen

READ = "read"
INSERT, REPLACE, MERGE, DELETE = Verb.INSERT, Verb.REPLACE, Verb.MERGE, Verb.DELETE
UPSERT, UPSERT_MERGE = Verb.INSERT_OR_REPLACE, Verb.INSERT_OR_MERGE
REFUSED = "refused"

Frozen = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class Do:
    """One operation on one row, in a client's view. `conditional`: on the ETag that the client read first."""

    verb: str
    row: Row
    conditional: bool = False

    def operation(self, etag: str | None) -> Operation:
        """Return it as tables take it."""
        if self.verb in (REPLACE, MERGE, DELETE):
            return Operation(Verb(self.verb), self.row, etag or "*")
        return Operation(Verb(self.verb), self.row)

    def __str__(self) -> str:
        return f"{self.verb}{' on its ETag' if self.conditional else ''} {key_of(self.row)}"


Step = tuple[Do, ...]
"""One call of a client: one operation, or a transaction of several."""


@dataclass(eq=False)
class Noted:
    """One call as it is noted while it happens."""

    number: int
    actor: str
    view: View
    step: Step
    basis: int | None = None
    began: int | None = None
    ended: int | None = None
    outcome: str = OPEN
    saw: Frozen | None = None
    replica: bool = False
    """Whether it is about the table that follows, by what the client knew."""
    after: frozenset[int] = frozenset()
    """What had ended before it began."""


def frozen(row: Row | None) -> Frozen | None:
    """Return a row's content as a value."""
    return None if row is None else tuple(sorted(content_of(row).items()))


@dataclass
class Witness:
    """Notes what clients do and are told."""

    mapper: Mapper
    keys: Sequence[EntityKey]
    failures: Callable[[], int] = int
    """How many calls failed: of a table that follows, that fails nobody, and it may lag."""
    mended: bool = False
    """Whether a row may get a new ETag though it is the same, because a secondary row is mended with it."""
    noted: list[Noted] = field(default_factory=list)
    _moment: int = 0
    _current: dict[str, Noted] = field(default_factory=dict)

    # --- while it happens ----------------------------------------------------------------------------------

    def released(self, actor: str) -> None:
        """A call of an actor is about to take effect."""
        one = self._current.get(actor)
        if one is not None and one.began is None:
            self._begins(one)

    def is_beginning(self, actor: str) -> bool:
        """Tell whether an actor's next call is the first of an operation."""
        one = self._current.get(actor)
        return one is not None and one.began is None

    def marks(self) -> Hashable:
        """Return what there is to remember: outcomes, and what had ended before what began."""
        return tuple((one.actor, one.outcome, one.began is None, one.after, one.saw) for one in self.noted)

    def told(self) -> Hashable:
        """Return what clients were told, whenever that was."""
        return frozenset((one.actor, str(one.step), one.outcome, one.saw) for one in self.noted)

    def begin(self, actor: str, view: View, step: Step, basis: int | None, *, replica: bool) -> Noted:
        """An actor begins an operation."""
        one = Noted(len(self.noted), actor, view, step, basis, replica=replica)
        self.noted.append(one)
        self._current[actor] = one
        return one

    def end(self, one: Noted, outcome: str) -> None:
        """It has its answer."""
        if one.began is None:
            self._begins(one)  # whatever it called commutes with all that others did
        one.outcome = outcome
        self._current.pop(one.actor, None)
        if outcome != OPEN:
            one.ended = self._next()

    def _begins(self, one: Noted) -> None:
        one.began = self._next()
        one.after = frozenset(other.number for other in self.noted if other.ended is not None)

    def _next(self) -> int:
        self._moment += 1
        return self._moment

    # --- afterwards ----------------------------------------------------------------------------------------

    def history(self, before: Iterable[Row], after: Iterable[Row]) -> History:
        """Return the history of the source keys; `before` and `after` are all source rows then."""
        operations = []
        numbers: dict[int, int] = {}
        for one in self.noted:
            if (
                one.outcome == REFUSED
                or one.began is None
                or (one.outcome == OPEN and one.step[0].verb == READ)
            ):
                continue
            numbers[one.number] = len(operations)
            operations.append(self._seen(one, numbers))
        return History(self._all(before), operations, [self._all(after)])

    def _all(self, rows: Iterable[Row]) -> Content:
        found = {key_of(row): frozen(row) for row in rows}
        return tuple(found.get(key) for key in self.keys)

    def _seen(self, one: Noted, numbers: dict[int, int]) -> Seen:
        text = f"{one.actor} ({one.view} view): {', '.join(map(str, one.step))}"
        seen = Seen(
            began=one.began or 0,
            ended=one.ended,
            text=text,
            outcome=one.outcome,
            basis=None if one.basis is None else numbers[one.basis],
            replica=one.replica,
            lags=self.failures() > 0,
            spurious=one.replica or self.mended,
        )
        if one.step[0].verb == READ:
            key = key_of(one.step[0].row)
            return replace(seen, saw=one.saw, shows=lambda content: self._shown(content, one.view, key))
        return replace(seen, act=lambda content: self._act(content, one))

    def _shown(self, content: Content, view: View, key: EntityKey) -> Frozen | None:
        """Return what a view shows under a key when the source rows are `content`."""
        rows = self._rows(content)
        if view is View.OLD:
            return frozen(rows.get(key))
        found = self._owner(rows, key)
        return None if found is None else frozen(self._view_row(rows[found]))

    def _act(self, content: Content, one: Noted) -> Content | Refuses:
        rows = self._rows(content)
        for do in one.step:
            refused = self._do(rows, one.view, do)
            if refused == MISSING and one.outcome == DONE and do.verb == DELETE and not do.conditional:
                continue  # whose answer was lost: that the row is gone is the answer, whoever deleted it
            if refused is not None:
                return refused
        return tuple(frozen(rows.get(key)) for key in self.keys)

    def _do(self, rows: dict[EntityKey, Row], view: View, do: Do) -> Refuses | None:
        key = key_of(do.row)
        source_key = key if view is View.OLD else self._owner(rows, key)
        there = None if source_key is None else rows.get(source_key)
        if there is None and do.verb in (REPLACE, MERGE, DELETE):
            return Refuses(MISSING)
        if there is not None and do.verb == INSERT:
            return Refuses(EXISTS)
        if do.verb == DELETE:
            del rows[source_key]  # type: ignore[arg-type]
            return None
        seen = there if view is View.OLD or there is None else self._view_row(there)
        merges = do.verb in (MERGE, UPSERT_MERGE) and seen is not None
        wanted = {**seen, **do.row} if merges and seen is not None else do.row
        if view is View.NEW:
            named = self.mapper.source_key(wanted)
            if there is None and named in rows:
                return Refuses(EXISTS)
            if there is not None and named != source_key:
                return Refuses(EXISTS)  # the row of another old key, to which the target key has passed on
            source_key = named
            wanted = content_of(self.mapper.reverse(wanted, source_key, there))
        rows[key_of(wanted)] = wanted
        return None

    def _rows(self, content: Content) -> dict[EntityKey, Row]:
        rows = zip(self.keys, content, strict=True)  # type: ignore[call-overload]
        return {key: dict(row) for key, row in rows if row is not None}

    def _owner(self, rows: dict[EntityKey, Row], target_key: EntityKey) -> EntityKey | None:
        kept = {key: row for key, row in rows.items() if not self.mapper.is_dropped(row)}
        return next((key for key, row in kept.items() if key_of(self._view_row(row)) == target_key), None)

    def _view_row(self, source_row: Row) -> Row:
        return self.mapper.map(source_row)[0].row


class Client:
    """A client of dual writes: does its steps one after the other and tells the witness."""

    def __init__(
        self,
        name: str,
        view: View,
        witness: Witness,
        *,
        table: Table,
        write: Callable[[Sequence[Operation]], Awaitable[list[str | None]]],
        is_replica: Callable[[], bool],
    ) -> None:
        """Take the table that its view reads, what writes, and whether that table follows just now."""
        self.name = name
        self.view = view
        self.witness = witness
        self._table = table
        self._write = write
        self._is_replica = is_replica

    async def do(self, step: Step) -> None:
        """Do one step; a condition reads first, and what is not there is left alone."""
        etag, basis = None, None
        if step[0].verb == READ or step[0].conditional:
            try:
                row, basis = await self._read(key_of(step[0].row))
            except (RekeyError, TimeoutError):
                return
            if step[0].verb == READ or row is None:
                return
            etag = etag_of(row)
        one = self.witness.begin(self.name, self.view, step, basis, replica=self._is_replica())
        try:
            await self._write([do.operation(etag) for do in step])
        except (RowExists, RowMissing, ConditionFailed) as error:
            self.witness.end(one, _WORDS[type(error)])
        except (RowRefused, Collision, WritesRefused, RequestRejected):
            self.witness.end(one, REFUSED)
        except (ServiceError, TimeoutError, asyncio.CancelledError) as error:
            self.witness.end(one, OPEN)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            self.witness.end(one, DONE)

    async def _read(self, key: EntityKey) -> tuple[Row | None, int]:
        step = (Do(READ, dict(zip(("PartitionKey", "RowKey"), key, strict=True))),)
        one = self.witness.begin(self.name, self.view, step, None, replica=self._is_replica())
        try:
            row = await self._table.get(key)
        except BaseException:
            self.witness.end(one, OPEN)
            raise
        one.saw = frozen(row)
        self.witness.end(one, DONE)
        return row, one.number


_WORDS = {RowExists: EXISTS, RowMissing: MISSING, ConditionFailed: CONDITION}
