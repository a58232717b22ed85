"""The rows of one key in all its tables, and the writes that make the replicas what they should be. Every
write is conditional: replace and delete on the ETag as read, insert on absence. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from rekey.core.edm import canonical, canonical_content
from rekey.declaration.mapper import Mapper
from rekey.declaration.old_references import NOTHING_LOOKED_UP, OldValues
from rekey.declaration.targets import MAIN_ROW_KEY
from rekey.errors import RowRefused
from rekey.mapping.rows import TargetKey, pointer_of
from rekey.model import TIMESTAMP, EntityKey, Row, content_of, etag_of, key_of
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, Verb

# The table number of the source, where it is a replica; 0 is the main target, 1 and up the index tables.
SOURCE_TABLE = -1
# The Timestamp of rows that were not written yet, where a mapping reads it.
STAND_IN = "2000-01-01T00:00:00.0000000Z"

CURE = (
    "fix the row in the target so that it can be expressed in the source, or keep the target and"
    " go on to `complete` (with index tables: to `rekey handover`)"
)

_DROPPED_THERE = "the source has a row under its old key that no kind takes"
_DROPPED_CURE = (
    "give this row another old key, or delete that one from the source: in the old view, or, where that is"
    " over after `complete`, with the SDK's own client"
)

Rows = dict[TargetKey, Row]
# Conditional writes of replicas, each with its place.
Writes = list[tuple[TargetKey, Operation]]
# Replica rows as read; None where there was no row.
Seen = Mapping[TargetKey, Row | None]


def source_place(source_key: EntityKey) -> TargetKey:
    """Return the place of a source row as a replica: `SOURCE_TABLE` and its key."""
    return TargetKey(SOURCE_TABLE, *source_key)


def follow(
    expected: Rows, before_write: Seen, during_write: Seen, before: Rows, ours: Collection[TargetKey]
) -> tuple[Writes, bool] | None:
    """Return the writes of the replicas that follow a write of the authority, and whether to reread: a row
    was absent, or not ours, and nothing is written in its place. None when only propagate can decide.

    Args:
        expected: the rows as they should be now.
        before_write: rows read before the authority was written.
        during_write: rows read while the authority was being written.
        before: the rows as they should have been before the write, as far as known.
        ours: rows of `before_write` and `during_write` that belong to this key. Others are left alone.
    """
    writes: Writes = []
    reread = False
    for target, row in expected.items():
        if target not in before_write and target not in during_write:
            return None
        present = before_write.get(target) or during_write.get(target)
        if present is None:
            writes.append((target, Operation(Verb.INSERT, row)))
        elif target not in ours or not _is_older(target, present, before_write, before):
            return None
        else:
            # Even if it is as it should be: its new ETag stops a writer that read it before and would
            # overwrite it.
            writes.append((target, Operation(Verb.REPLACE, row, etag_of(present))))
    for target, present in {**during_write, **before_write}.items():
        if target in expected:
            continue
        if present is None or target not in ours:
            reread = True
        elif not _is_older(target, present, before_write, before):
            return None
        else:
            writes.append((target, Operation(Verb.DELETE, present, etag_of(present))))
    return writes, reread


def _is_older(target: TargetKey, present: Row, before_write: Seen, before: Rows) -> bool:
    """Tell whether a row that was read is certainly no newer than the authority's write."""
    # A row read during the write may be another writer's newer one, unless it holds what was expected before.
    return target in before_write or (target in before and same_content(before[target], present))


def same_content(row: Row, other: Row, ignoring: frozenset[str] = frozenset()) -> bool:
    """Tell whether two rows have the same custom properties, as (name, EDM type, canonical text); names in
    `ignoring` are not compared."""
    ours, theirs = canonical_content(row), canonical_content(other)
    if ours == theirs or not ignoring:
        return ours == theirs
    return all(name in ignoring for name, *_ in set(ours) ^ set(theirs))


def difference(expected: Rows, current: Rows, ignoring: Mapping[int, frozenset[str]]) -> Writes:
    """Return the conditional writes that turn `current` into `expected`. `ignoring`: by table number, the
    properties that are not compared."""
    writes: Writes = []
    for target, row in expected.items():
        present = current.get(target)
        if present is None:
            writes.append((target, Operation(Verb.INSERT, row)))
        elif not same_content(row, present, ignoring.get(target.table, frozenset())):
            writes.append((target, Operation(Verb.REPLACE, row, etag_of(present))))
    for target, present in current.items():
        if target not in expected:
            writes.append((target, Operation(Verb.DELETE, present, etag_of(present))))
    return writes


def with_main(writes: Writes, main: Row | None, co_located: Collection[int]) -> Writes:
    """Return writes of one source key, with one of its unchanged main row added where they change secondary
    rows of its partition.

    Args:
        main: its main target row as read, None when there is none.
        co_located: numbers of the tables whose rows share the main target's table.
    """
    if main is None:
        return writes
    place = TargetKey(0, *key_of(main))
    beside = [
        target for target, _ in writes if target.table in co_located and target.partition == place.partition
    ]
    if not beside or place in beside:
        return writes
    # So the main row's ETag is the version of all of them; hence main rows are read before their secondary
    # rows.
    return [(place, Operation(Verb.REPLACE, content_of(main), etag_of(main))), *writes]


def lacks_main(group: Writes, seen: Seen, co_located: Collection[int]) -> bool:
    """Tell whether a transaction writes a secondary row without a main row of its partition that it points
    to, as it was read or as it will be."""
    written = {place for place, _ in group}
    rows = [
        row
        for place, operation in group
        if place.table in co_located and place.table > 0
        for row in (operation.row, seen.get(place))
    ]
    return any(TargetKey(0, *main) not in written for main in pointed(rows, group[0][0].partition))


def pointed(rows: Iterable[Row | None], partition: str) -> set[EntityKey]:
    """Return the main keys of a partition that secondary rows point to."""
    pointers = {pointer_of(row) for row in rows if row is not None and MAIN_ROW_KEY in row}
    return {pointer for pointer in pointers if pointer.partition == partition}


def transactions(writes: Writes, co_located: Collection[int]) -> list[Writes]:
    """Return writes as they are sent: main and secondary rows of one partition together, all others alone."""
    groups: defaultdict[object, Writes] = defaultdict(list)
    for place, operation in writes:
        groups[place.partition if place.table in co_located else place].append((place, operation))
    most = MAX_BATCH_OPERATIONS  # more only with leftovers of several changes
    return [group[at : at + most] for group in groups.values() for at in range(0, len(group), most)]


def inverse(
    mapper: Mapper,
    source_key: EntityKey,
    target_row: Row,
    source_row: Row | None,
    *,
    cure: str = CURE,
    old_values: OldValues = NOTHING_LOOKED_UP,
) -> Row:
    """Return the source row that a main target row stands for: `source_row` itself when that already maps to
    it, otherwise a new row, with a Timestamp for mapping it again. Only its `content_of` is written.

    Args:
        source_row: the source row as it is now, None when there is none.
        cure: what to do about a row that cannot be expressed.
        old_values: what was looked up of `Mapper.to_look_up`.

    Raises:
        RowRefused: `not-reversible`; `no-old-reference` if an old value is needed and not known; `key-taken`
            by a source row that is not migrated; without the row's safe id.
    """
    if source_row is not None and mapper.is_dropped(source_row):
        # It has no row in the target that could say so: only here is it seen, and never overwritten.
        raise RowRefused("key-taken", "otherwise", _DROPPED_THERE, cure=_DROPPED_CURE)
    if source_row is not None and stands_for(mapper, source_row, target_row):
        return source_row
    desired = mapper.reverse(target_row, source_key, source_row, old_values)
    # The service's new Timestamp is unknown until the write: use the old one, where there is one.
    desired[TIMESTAMP] = (source_row or target_row).get(TIMESTAMP, STAND_IN)
    if problem := lost(mapper, desired, target_row):
        raise RowRefused("not-reversible", "target", problem, cure=cure)
    return desired


def lost(mapper: Mapper, source_row: Row, target_row: Row) -> str | None:
    """Map a source row forward and return, as text, what of the main target row it does not reproduce (key or
    content); None if it reproduces all of it. Raises RowRefused: the source row cannot be mapped."""
    mapped = mapper.map(source_row)
    if not mapped:
        return "mapping it forward again gives no row: no kind takes it"
    main = mapped[0].row
    if key_of(main) != key_of(target_row):
        return "mapping it forward again gives another key"
    now, then = canonical_content(target_row), canonical_content(main)
    # Copies of the source's Timestamp do not count: the service sets it.
    timed = mapper.timestamp_copies[0]
    if names := {name for name, *_ in set(now) ^ set(then) if name not in timed}:
        return f"rollback would lose or change these properties: {', '.join(sorted(names))}"
    return None


def copies_timestamp(mapper: Mapper, source_row: Row, target_row: Row) -> bool:
    """Tell whether a main target row holds the Timestamp of the source row that it stands for, wherever the
    declaration copies it."""
    timed = mapper.timestamp_copies[0]
    if not timed:
        return True
    mapped = mapper.map(source_row)[0].row
    return all(
        name in target_row and canonical(target_row, name) == canonical(mapped, name) for name in timed
    )


def stands_for(mapper: Mapper, source_row: Row, target_row: Row) -> bool:
    """Tell whether a source row maps to the main target row (`lost`); False when it cannot be mapped."""
    try:
        return lost(mapper, source_row, target_row) is None
    except RowRefused:
        return False
