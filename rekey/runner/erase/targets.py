"""The target rows of an erasure's subjects: found before it begins, and deleted by it if requested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from rekey import errors
from rekey.core.concurrency import for_each
from rekey.core.joint import place_of
from rekey.declaration.targets import MAIN_PARTITION_KEY, MAIN_ROW_KEY
from rekey.mapping.rows import TargetKey, pointer_of, target_key
from rekey.model import EntityKey, Row, etag_of
from rekey.protocol.effects import apply_for_etags, in_turns
from rekey.protocol.replicas import Rows, transactions
from rekey.runner.refusals import refusal
from rekey.runner.retired import require_unfollowed, retired_since
from rekey.runner.run import Run
from rekey.tables.base import Operation, Verb

# How often at most a row that keeps changing is read.
MAX_ROUNDS = 20

_POINTER = (MAIN_PARTITION_KEY, MAIN_ROW_KEY)
# Target rows of subjects, as read, by safe id.
Standing = dict[str, Rows]


async def usable(run: Run, *, to_write: bool) -> frozenset[str]:
    """Return the names of the targets that exist and are this migration's. Raises Refused, with `to_write`,
    when another migration copies or follows rows of a target: nothing may be deleted past its clients."""
    await require_unfollowed(run, run.built_on_by if to_write else ())
    # What another migration retired may be another table of the same name by now: it is not read.
    gone = await retired_since(run, run.declared)
    names = [name for name in run.declared.migration.table_names if name.lower() not in gone]
    return frozenset([name for name in names if await run.tables.table_exists(name)])


def table_of(run: Run, target: TargetKey) -> str:
    """Return the name of the table that holds a target row."""
    return place_of(run.mapper.tables[target.table], target.key)[0]


async def find_rows(
    run: Run, subjects: Mapping[str, EntityKey], within: frozenset[str], *, searched: bool
) -> Standing:
    """Return the target rows of subjects (source keys by safe id), in the targets `within`.

    A main row belongs to a subject if the forward row lists its key and the reverse row of that key names the
    subject; an index row if it points to such a key. `searched`: also read all index tables for rows that no
    forward row lists, as the application writes them after `complete`.
    """
    rows: Standing = {row_id: {} for row_id in subjects}
    owners: dict[EntityKey, str] = {}

    async def read(subject: tuple[str, EntityKey]) -> None:
        run.check()
        row_id, source = subject
        listed = await listed_targets(run, source)
        mains = {
            target.key for target in listed if target.table == 0 and await _is_owner(run, source, target.key)
        }
        owners.update(dict.fromkeys(mains, row_id))
        there = await _read(run, [place for place in listed if table_of(run, place) in within])
        for place, row in there.items():
            if row is not None and (place.key if place.table == 0 else pointer_of(row)) in mains:
                rows[row_id][place] = row

    async def search(number: int) -> None:
        async for page in run.targets[number].scan(select=_POINTER):
            run.check()
            for row in page.rows:
                if MAIN_ROW_KEY in row and (row_id := owners.get(pointer_of(row))) is not None:
                    rows[row_id].setdefault(target_key(number, row), row)
            advance(len(page.rows))

    await for_each(subjects.items(), read, limit=run.config.limits.concurrency)
    indexes = [number for number, name in enumerate(run.mapper.tables) if number and name in within]
    if searched and owners and indexes:
        with run.progress.task("search the index tables") as advance:
            await for_each(indexes, search, limit=run.config.limits.scans)
    return rows


async def _read(run: Run, places: Sequence[TargetKey]) -> dict[TargetKey, Row | None]:
    """Return target rows with their pointers only: a subject can have many large rows."""
    gets = [partial(run.targets[place.table].get, place.key, select=_POINTER) for place in places]
    return dict(zip(places, await in_turns(gets, run.config.limits.concurrency), strict=True))


async def listed_targets(run: Run, source: EntityKey) -> list[TargetKey]:
    """Return the target keys that the forward row of a source key lists; none when it is absent or erased."""
    try:
        forward = await run.mapping.forward(source)
    except errors.Erased:
        return []
    return [] if forward is None else sorted(forward.targets)


async def _is_owner(run: Run, source: EntityKey, main: EntityKey) -> bool:
    try:
        return await run.propagator.is_owner(source, main)
    except errors.Erased:
        return False


def counts_of(run: Run, rows: Mapping[TargetKey, object]) -> Counter[str]:
    """Return how many rows there are of each table, by the table's label in reports."""
    return Counter(run.mapper.label_of(place.table, place.key) for place in rows)


async def delete_rows(run: Run, rows: Rows) -> tuple[Counter[str], bool]:
    """Delete the target rows of one subject, each by the ETag that was read; return how many by table, and
    whether all are gone (False: one changed, and it and those after it stay).

    Raises:
        Unavailable: the outcome of a delete stayed unknown for `MAX_ROUNDS` attempts.
    """
    deleted = Counter[str]()
    writes = [(place, Operation(Verb.DELETE, row, etag_of(row))) for place, row in sorted(rows.items())]
    # Main and secondary rows of one partition go in one transaction, before index rows.
    for group in transactions(writes, run.mapper.co_located):
        left = group
        for _ in range(MAX_ROUNDS):
            operations = [operation for _, operation in left]
            outcome, _ = await apply_for_etags(run.targets[left[0][0].table], operations)
            if outcome:
                break
            # No answer: a row that still has its ETag may be deleted again. A delayed delete finds that row
            # or none.
            now = await _read(run, [place for place, _ in left])
            changed = [
                operation
                for place, operation in left
                if (row := now[place]) and etag_of(row) != operation.etag
            ]
            if changed:
                return deleted, False
            left = [(place, operation) for place, operation in left if now[place] is not None]
            if not left:
                break
        else:
            raise refusal("delete-open")
        deleted += counts_of(run, dict(group))
    return deleted, True
