"""The control row: a migration's phase and epoch, shared by runner and clients, in the restricted table
`rekeycontrol`."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rekey.core import edm
from rekey.core.clock import ticks_of
from rekey.core.endpoints import are_other_accounts
from rekey.errors import (
    Ambiguous,
    ConditionFailed,
    Moved,
    Refused,
    RowExists,
    RowMissing,
    StateUnusable,
    TableMissing,
    Unavailable,
)
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, Row
from rekey.phases import FOLLOWED, ControlPhase, is_legal
from rekey.protocol.stored import INT64, MAPPING, MOMENT, ColumnCodec, column, read, written
from rekey.tables.base import Operation, TableService, Verb

CONTROL_ROW_KEY = "control"
# What the partition of a group's control rows begins with.
GROUP_PREFIX = "group:"
FORMAT = 1
# The format of a row in `complete` whose index tables clients maintain: a program that does not know of that
# would write the main target alone, so it must not be able to read the row.
FORMAT_MAINTAINED = 2


# What is read of control rows to know which parts of tables are migrated.
_PART_COLUMNS = ("Part", "Source", "Phase", "CameFrom", "TablesEndpoint", "Group")


class Maintainer(StrEnum):
    """Who writes index rows and secondary rows after `complete`."""

    # Clients and proxies of rekey, with the main row; the source and the mapping follow as before.
    CLIENTS = "clients"
    # The application itself, since the handover.
    APPLICATION = "application"


_PHASE = ColumnCodec(str, ControlPhase)
_FLAG = ColumnCodec(bool, lambda value: value is True)
_MAINTAINER = ColumnCodec(str, Maintainer)
_NAMES = ColumnCodec(lambda names: json.dumps(list(names)), lambda text: tuple(json.loads(text)))
_BYTES = ColumnCodec(
    lambda value: base64.b64encode(value).decode("ascii"),
    lambda text: base64.b64decode(text, validate=True),
    edm.BINARY,
)


@dataclass(frozen=True, slots=True)
class ControlRow:
    """The content of the control row. Times are the service's, never this machine's."""

    script_id: str
    # What clients act on, with `epoch`, which is 1 when the row is made.
    phase: ControlPhase = field(metadata=column("Phase", _PHASE))
    epoch: int = field(metadata=column("Epoch", INT64))
    # Random, of the run that made the row; ties state file and restricted store together.
    run_id: str = field(metadata=column("RunId"))
    # Of the declaration.
    digest: str = field(metadata=column("Digest"))
    # Table names; targets main first.
    source: str = field(metadata=column("Source"))
    targets: tuple[str, ...] = field(metadata=column("Targets", _NAMES))
    # Secret name to fingerprint.
    fingerprints: Mapping[str, str] = field(metadata=column("Fingerprints", MAPPING))
    # 32 random bytes: the key of the safe ids; if sealed, what that is derived from (`ids_key`).
    id_key: bytes = field(repr=False, metadata=column("IdKey", _BYTES))
    # The backfill is done, so every row of the source is in the targets; before that they must not be read.
    # Set without a move, as writes are done as before.
    copied: bool = field(default=False, metadata=column("Copied", _FLAG, may_be_absent=True))
    # During a freeze, the phase before it.
    came_from: ControlPhase | None = field(
        default=None, metadata=column("CameFrom", _PHASE, may_be_absent=True)
    )
    # Times of the last move from `dual_write` to `freeze`, of the move to `cutover` and of the move to
    # `complete`; None before, and the first two again after a return to `dual_write`. A freeze for a rollback
    # keeps both: everything written to the target since `cutover_at` must be written back to the source.
    # Older programs set `frozen_at` in such a freeze, too.
    frozen_at: str | None = field(default=None, metadata=column("FrozenAt", MOMENT, may_be_absent=True))
    cutover_at: str | None = field(default=None, metadata=column("CutoverAt", MOMENT, may_be_absent=True))
    completed_at: str | None = field(default=None, metadata=column("CompletedAt", MOMENT, may_be_absent=True))
    # Time of the last move, or of the insert.
    updated_at: str = field(default="", metadata=column("UpdatedAt", MOMENT, may_be_absent=True))
    # Random, of the last move: after a broken connection it shows whether the move was done. The same in all
    # rows of a group that were moved at once.
    move_id: str = field(default="", metadata=column("MoveId"))
    # The endpoint of `[tables]`; with the digest it tells whose migration this is, where several projects use
    # one restricted store. "" in rows of versions before 0.3.
    tables_endpoint: str = field(default="", metadata=column("TablesEndpoint", may_be_absent=True))
    # The endpoint of the target account, of tables whose names say `@targets`; "" for none.
    target_account: str = field(default="", metadata=column("TargetsEndpoint", may_be_absent=True))
    # The migration's group, "" where it has none.
    group: str = field(default="", metadata=column("Group", may_be_absent=True))
    # Random, of the last change of rows that no earlier verification covers: a write outside propagate (a
    # restored row, a repair, a copy made again), a rollback. A verification counts for cutover only if it
    # began under the same id. "" before the first.
    change_id: str = field(default="", metadata=column("ChangeId", may_be_absent=True))
    # Who writes index rows after `complete`; None where there are none, where no replica followed in
    # `cutover`, and where a version without a handover completed the migration.
    maintainer: Maintainer | None = field(
        default=None, metadata=column("Maintainer", _MAINTAINER, may_be_absent=True)
    )
    # Time of the handover; None before.
    handed_over_at: str | None = field(
        default=None, metadata=column("HandedOverAt", MOMENT, may_be_absent=True)
    )
    # The capture of a migration of a part of its source, "" for a whole table. Clients of other parts find by
    # it that they do not know whose rows they write.
    part: str = field(default="", metadata=column("Part", may_be_absent=True))
    # The source has its rows again, or those of its part, from the backup that it was retired with.
    restored: bool = field(default=False, metadata=column("Restored", _FLAG, may_be_absent=True))
    # As read; "" for a row that was not read.
    etag: str = ""

    @property
    def maintained(self) -> bool:
        """Whether the migration is complete and clients still maintain its index tables: until the handover
        the source and the mapping follow their writes, too."""
        return self.phase is ControlPhase.COMPLETE and self.maintainer is Maintainer.CLIENTS

    @property
    def unfrozen(self) -> ControlPhase:
        """The phase, and during a freeze the one before it, which says which side is the authority."""
        if self.phase is not ControlPhase.FREEZE:
            return self.phase
        return self.came_from or ControlPhase.DUAL_WRITE

    @property
    def freeze_began_at(self) -> str | None:
        """When the present freeze began; None if it is not known."""
        return self.updated_at if self.came_from is ControlPhase.CUTOVER else self.frozen_at

    @property
    def stopped_at(self) -> str | None:
        """A time from which on nothing was to write the source (capture "delta"), None before: the freeze
        before cutover or, where an older program froze since for a rollback, the cutover."""
        return min(filter(None, (self.frozen_at, self.cutover_at)), key=ticks_of, default=None)

    @property
    def is_followed(self) -> bool:
        """Whether replicas follow what clients write."""
        return self.phase in FOLLOWED or self.maintained

    @property
    def ended_at(self) -> str | None:
        """Since when no replica follows any more: the time of the handover, or of `complete` if none was
        needed; None before."""
        if self.phase not in (ControlPhase.COMPLETE, ControlPhase.RETIRED) or self.maintained:
            return None
        return self.handed_over_at or self.completed_at or self.updated_at

    def ended_before(self, other: ControlRow) -> bool:
        """Tell whether both have ended, this one first: the other may have got its rows from it."""
        mine, theirs = self.ended_at, other.ended_at
        return mine is not None and theirs is not None and ticks_of(mine) < ticks_of(theirs)

    def has_moved_on(self, filled: ControlRow) -> bool:
        """Tell whether the rows of its source are in its targets by now, since a migration that is over
        (`filled`) filled that source: the application works with them there."""
        # One that is retired may have moved rows of an earlier table of that name.
        is_later = self.phase is not ControlPhase.RETIRED or filled.ended_before(self)
        return is_later and self.unfrozen not in (ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)


@dataclass(frozen=True, slots=True)
class PartOfSource:
    """A migration of a part of a table, as its control row says."""

    script_id: str
    source: str
    # In a freeze, which changes no authority, the phase before it.
    phase: ControlPhase
    tables_endpoint: str

    @property
    def has_begun(self) -> bool:
        """Whether its replicas follow, or followed, what clients write."""
        return self.phase is not ControlPhase.SOURCE

    def is_of(self, source: str, tables_endpoint: str) -> bool:
        """Tell whether it is of this table. `tables_endpoint`: of the table's account; "" if not known."""
        is_other_account = are_other_accounts(self.tables_endpoint, tables_endpoint)
        return self.source.lower() == source.lower() and not is_other_account


def moved(row: ControlRow, then: ControlPhase, *, at: str, move_id: str) -> ControlRow:
    """Return the row after a move. Raises Refused when the move is not one of `phases.MOVES`."""
    now = row.phase
    if not is_legal(now, then):
        raise Refused(
            f"{row.script_id} cannot go from `{now}` to `{then}`",
            kept="Nothing was changed.",
            hint=f"`rekey status {row.script_id}` shows where it is and what comes next",
        )
    after = replace(row, phase=then, epoch=row.epoch + 1, updated_at=at, move_id=move_id, came_from=None)
    match then:
        case ControlPhase.SOURCE:
            # Replicas no longer follow, so the targets miss rows from now on.
            return replace(after, copied=False, change_id=move_id)
        case ControlPhase.FREEZE:
            # Only the freeze before cutover proves what the targets hold.
            since = row.frozen_at if now is ControlPhase.CUTOVER and row.frozen_at else at
            return replace(after, came_from=now, frozen_at=since)
        case ControlPhase.CUTOVER if row.came_from is not ControlPhase.CUTOVER:
            return replace(after, cutover_at=at)
        case ControlPhase.DUAL_WRITE:
            return replace(after, frozen_at=None, cutover_at=None, maintainer=None)
        case ControlPhase.COMPLETE:
            return replace(after, completed_at=at)
    return after


def control_key(script_id: str, group: str) -> EntityKey:
    """Return the key of a migration's control row; `group` is "" where it has none."""
    return EntityKey(f"{GROUP_PREFIX}{group}", script_id) if group else EntityKey(script_id, CONTROL_ROW_KEY)


def is_joint(now: ControlPhase, then: ControlPhase) -> bool:
    """Tell whether a group makes a move at once: each that leads to, or away from, writes on the target."""
    return not {now, then} & {ControlPhase.SOURCE, ControlPhase.RETIRED}


def to_row(control: ControlRow) -> Row:
    """Return the wire row."""
    key = control_key(control.script_id, control.group)
    made_as = FORMAT_MAINTAINED if control.maintained else FORMAT
    return {PARTITION_KEY: key.partition, ROW_KEY: key.row, "Format": made_as, **written(control)}


def from_row(row: Row) -> ControlRow:
    """Read a wire row. Raises StateUnusable for another format, and for an absent or invalid column."""
    try:
        if row["Format"] not in (FORMAT, FORMAT_MAINTAINED):
            raise ValueError("format")
        return ControlRow(_script_of(row), etag=row.get(ETAG, ""), **read(ControlRow, row))
    except (KeyError, ValueError, TypeError):
        raise _unreadable(row) from None


def _script_of(row: Row) -> str:
    script_id: str = row[ROW_KEY] if row.get("Group") else row[PARTITION_KEY]
    return script_id


def _part_of(row: Row) -> PartOfSource:
    try:
        phase = ControlPhase(row.get("CameFrom") or row["Phase"])
        return PartOfSource(_script_of(row), row["Source"], phase, row.get("TablesEndpoint") or "")
    except (KeyError, ValueError):
        raise _unreadable(row) from None


def _unreadable(row: Row) -> StateUnusable:
    return StateUnusable(
        f"the control row of {row.get(PARTITION_KEY)} in {CONTROL_TABLE} cannot be read by this program",
        kept="the row, unchanged",
        hint="install the rekey that wrote it; no other program may write to the restricted store",
    )


class ControlStore:
    """The control row of one migration, in the restricted store."""

    def __init__(self, restricted: TableService, script_id: str, group: str = "") -> None:
        self.restricted = restricted
        self._table = restricted.table(CONTROL_TABLE)
        self._key = control_key(script_id, group)
        self.script_id, self.group = script_id, group
        # The scripts whose rows a joint move moves: those of the whole group, as known to this command.
        self.group_ids = frozenset({script_id})

    async def read(self) -> ControlRow | None:
        """Return the control row as it is now, None when there is none (or no restricted table yet)."""
        try:
            row = await self._table.get(self._key)
        except TableMissing:
            return None
        return None if row is None else from_row(row)

    async def parts(self) -> list[PartOfSource]:
        """Return the migrations of parts of tables that have a control row, those that are over included: all
        of the restricted store. Raises StateUnusable: a row cannot be read by this program."""
        parts: list[PartOfSource] = []
        try:
            # Any id may be of one. Unfiltered, a beat of one client would read the rows of all.
            async for page in self._table.scan(select=_PART_COLUMNS, with_text_in="Part"):
                parts += [_part_of(row) for row in page.rows]
        except TableMissing:
            return []
        return parts

    async def members(self) -> list[ControlRow]:
        """Return the control rows of the group, in the order of script ids; without a group the own one."""
        if not self.group:
            own = await self.read()
            return [] if own is None else [own]
        control_rows: list[ControlRow] = []
        try:
            async for page in self._table.scan(KeyRange.of_rows(self._key.partition)):
                control_rows += [from_row(row) for row in page.rows]
        except TableMissing:
            return []
        return control_rows

    async def create(self, control: ControlRow) -> ControlRow:
        """Insert the control row if there is none; return the row in the store afterwards. A row that existed
        before is returned unchanged: the caller compares run and digest. Raises Refused: the others of the
        group have already left `dual_write`."""
        for other in await self.members() if self.group else ():
            if other.phase not in (ControlPhase.SOURCE, ControlPhase.DUAL_WRITE):
                there = await self.read()
                if there is not None:
                    return there
                raise Refused(
                    f"the group {self.group} is in `{other.phase}`: {self.script_id} can no longer join it",
                    kept="Nothing was written.",
                    hint=f"name another group in the script, or none; or first `rekey rollback --group"
                    f" {self.group}`",
                )
        await self.restricted.create_table(CONTROL_TABLE)
        at, move_id = await self.restricted.server_time(), secrets.token_hex(16)
        control_row = replace(control, group=self.group, updated_at=at, move_id=move_id, etag="")
        problem: Exception | None = None
        try:
            await self._table.insert(to_row(control_row))
        except RowExists:
            pass  # of an earlier run, this insert (answer lost), or another runner: read it
        except (Ambiguous, Unavailable) as error:
            problem = error
        there = await self.read()
        if there is not None:
            return there
        raise problem or self._gone()

    async def move(self, now: ControlPhase, then: ControlPhase) -> ControlRow:
        """Move the row from one phase to another and return it as moved; of a group all rows, if `is_joint`,
        in one transaction (ADR 0043). The move is conditional on the rows as read and adds one to the epoch:
        two runners that both believe to be alone cannot both move them.

        Raises:
            Refused: not a legal move.
            Moved: a row is gone, is not in `now`, is not one of `group_ids`, or changed while it was moved.
            Ambiguous, Unavailable: unknown outcome, and reading back did not show the move; run the same
                command again.
        """
        row = await self._present()
        rows = [row]
        if self.group and is_joint(now, then):
            rows += [member for member in await self.members() if member.script_id != row.script_id]
            # A freeze is left for the phase that it came from by all rows that are in it.
            if now is ControlPhase.FREEZE and row.phase is now and then is row.came_from:
                rows = [row for row in rows if row.phase is now]
            # Every other joint move is one of exactly `group_ids`: another runner may have added a row that
            # nothing was verified for.
            elif strange := sorted(self.group_ids ^ {row.script_id for row in rows}):
                raise Moved(
                    f"the group {self.group} changed since this command began: {', '.join(strange)}",
                    kept="Nothing was changed.",
                    hint=f"`rekey status --group {self.group}`, then the same command again; `rekey rollback"
                    f" {strange[0]} --to source --drop-targets` takes a script out of the group",
                )
        for control_row in rows:
            if control_row.phase is not now:
                raise Moved(
                    f"the control row of {control_row.script_id} says `{control_row.phase}`, not `{now}`",
                    kept="Nothing was changed.",
                    hint=f"`rekey status {control_row.script_id}` shows where the migration is",
                )
        at, move_id = await self.restricted.server_time(), secrets.token_hex(16)
        return await self._replace(rows, [moved(row, then, at=at, move_id=move_id) for row in rows])

    async def fence(self) -> ControlRow | None:
        """Make every earlier unanswered move fail, whenever it arrives. Return the row afterwards, which a
        delayed move may just have changed; None: there is none. Raises Ambiguous, Unavailable: it is unknown
        whether it was done."""
        # A move is conditional on a version of the row. This writes a new version of the same content.
        while (row := await self.read()) is not None:
            try:
                return await self._replace([row], [row])
            except Moved:
                continue
        return None

    async def mark_copied(self) -> ControlRow:
        """Set `copied`: the targets hold every row. Phase and epoch stay. Return the row afterwards.

        Raises:
            Refused: the row is not in `dual_write`, where rows are copied.
            Moved: it is gone, or was moved meanwhile.
            Ambiguous, Unavailable: unknown outcome, and reading back did not show `copied`; run the same
                command again.
        """
        row = await self._present()
        if row.copied:
            return row
        if row.phase is not ControlPhase.DUAL_WRITE:
            raise Refused(
                f"{self.script_id} is in `{row.phase}`, where nothing is copied",
                kept="Nothing was changed.",
                hint=f"`rekey status {self.script_id}` shows where it is and what comes next",
            )
        return await self._replace([row], [replace(row, copied=True)])

    async def mark_changed(self) -> ControlRow:
        """Set a new `change_id`, before rows are written that no earlier verification covers. Phase and epoch
        stay. Return the row afterwards.

        Raises:
            Moved: it is gone, or changed meanwhile.
            Ambiguous, Unavailable: it is not known to have been set.
        """
        row = await self._present()
        return await self._replace([row], [replace(row, change_id=secrets.token_hex(16))])

    async def keep_maintaining(self) -> ControlRow:
        """Record, before the move to `complete`, that clients keep maintaining index tables after it. Phase
        and epoch stay: until that move nothing changes for clients. Return the row afterwards.

        Raises:
            Refused: the row is not in `cutover`.
            Moved: it is gone, or was moved meanwhile.
            Ambiguous, Unavailable: as `mark_copied`.
        """
        row = await self._present()
        if row.maintainer is not None:
            return row
        self._require_phase(row, ControlPhase.CUTOVER)
        return await self._replace([row], [replace(row, maintainer=Maintainer.CLIENTS)])

    async def hand_over(self) -> ControlRow:
        """End the maintenance of index tables by clients: a new epoch of `complete`. Return the row
        afterwards, even if that was done before.

        Raises:
            Refused: clients do not maintain any.
            Moved: the row is gone, or was changed meanwhile.
            Ambiguous, Unavailable: as `mark_copied`.
        """
        row = await self._present()
        if row.maintainer is Maintainer.APPLICATION:
            return row
        if not row.maintained:
            raise Refused(
                f"clients of {self.script_id} maintain no index table in `{row.phase}`",
                kept="everything; nothing was changed",
                hint=f"`rekey status {self.script_id}` shows where it is and what comes next",
            )
        at, move_id = await self.restricted.server_time(), secrets.token_hex(16)
        after = replace(
            row,
            epoch=row.epoch + 1,
            maintainer=Maintainer.APPLICATION,
            handed_over_at=at,
            updated_at=at,
            move_id=move_id,
        )
        return await self._replace([row], [after])

    async def mark_restored(self) -> ControlRow:
        """Record, before rows of a retired source are restored, that it has them: a new epoch of
        `retired`. Return the row afterwards, even if that was done before.

        Raises:
            Refused: the row is not in `retired`.
            Moved: it is gone, or was changed meanwhile.
            Ambiguous, Unavailable: as `mark_copied`.
        """
        row = await self._present()
        if row.restored:
            return row
        self._require_phase(row, ControlPhase.RETIRED)
        after = replace(row, epoch=row.epoch + 1, restored=True, move_id=secrets.token_hex(16))
        return await self._replace([row], [after])

    async def delete(self, control: ControlRow) -> None:
        """Delete the control row, for a migration that is rolled back entirely. A missing row is no error.
        Raises Moved: the row changed since `control` was read."""
        try:
            await self._table.delete(self._key, etag=control.etag)
        except RowMissing:
            return
        except ConditionFailed:
            raise self._changed() from None

    async def _replace(self, rows: Sequence[ControlRow], afters: Sequence[ControlRow]) -> ControlRow:
        """Replace rows as they were read, the own one first, all or none; on an error, read back whether the
        store holds them."""
        problem: Exception
        after = afters[0]
        try:
            if len(rows) == 1:
                etag: str | None = await self._table.replace(to_row(after), etag=rows[0].etag)
            else:
                pairs = zip(rows, afters, strict=True)
                writes = [Operation(Verb.REPLACE, to_row(then), before.etag) for before, then in pairs]
                etag = (await self._table.transact(writes))[0]
        except (ConditionFailed, RowMissing):
            problem = self._changed()
        except (Ambiguous, Unavailable) as error:
            problem = error
        else:
            return replace(after, etag=etag or "")
        there = await self.read()
        # `copied` may have been set since: that keeps the move's id, and only a move resets it.
        if (
            there is not None
            and there.etag != rows[0].etag
            and there.move_id == after.move_id
            and there.copied >= after.copied
            and there.change_id == after.change_id
            and there.maintainer == after.maintainer
        ):
            return there
        raise problem

    def _changed(self) -> Moved:
        return Moved(
            f"another runner changed the control row of {self.script_id}",
            kept="This runner changed nothing.",
            hint=f"`rekey status {self.script_id}` shows where the migration is",
        )

    async def _present(self) -> ControlRow:
        """Return the row. Raises Moved: it is gone."""
        row = await self.read()
        if row is None:
            raise self._gone()
        return row

    def _require_phase(self, row: ControlRow, phase: ControlPhase) -> None:
        if row.phase is not phase:
            raise Refused(
                f"{self.script_id} is in `{row.phase}`, not in `{phase}`",
                kept="everything; nothing was changed",
                hint=f"`rekey status {self.script_id}` shows where it is and what comes next",
            )

    def _gone(self) -> Moved:
        return Moved(
            f"the control row of {self.script_id} is gone from the restricted store",
            kept="all tables of the migration",
            hint="find out who deleted it; the clients of the application cannot work without it",
        )
