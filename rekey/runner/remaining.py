"""Proves that the side which is kept exists and holds the rows, before the other side is given up. Nothing
here writes tables. What cannot be proved is refused, unless the operator gives a reason (`Options.reason`),
which is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from rekey.copy.sweep import DigestParts
from rekey.core.clock import ticks_of
from rekey.core.concurrency import for_each
from rekey.core.joint import joint_name, names_in, spoken
from rekey.core.limits import GATE_SAMPLE
from rekey.declaration.mapper import Mapper
from rekey.errors import RowRefused, TableBeingDeleted, TableMissing
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, Row, key_of
from rekey.next_steps import next_step
from rekey.present.text import counted
from rekey.protocol.reverse import ReversePropagator
from rekey.runner.clients import announced_keys
from rekey.runner.probe_tables import require_two_accounts
from rekey.runner.references import require_droppable_mapping
from rekey.runner.refusals import refusal
from rekey.runner.run import Run
from rekey.state.models import WATERMARK
from rekey.status.reasons import reason
from rekey.tables.base import MAX_PAGE_ROWS, Table
from rekey.tables.joint import apart, existing
from rekey.tables.kinds import whole
from rekey.tables.part import PartOfTable

# From so many rows on, their deletion because the authority is empty is refused: a table that was deleted and
# created again looks as if the application had deleted every row.
MANY = 20
# Where more rows are in the target only, not all are reread one by one.
LISTED = 1000
# The event of the counts before the source is deleted, and its count of rows that are dropped.
COUNTED = "retire-counted"
NOT_MIGRATED = "rows_not_migrated"
_KEYS = (PARTITION_KEY, ROW_KEY)
# A row counts as missing after so many reads, a second apart: a write of it may be in flight.
_ROUNDS = 4
_PAUSE_S = 1.0
_REPAIR = "verify {} --mode full --repair --reason TEXT"


async def rows_up_to(table: Table, most: int, without: Mapper | None = None) -> int | None:
    """Return how many rows a table holds, counted up to `most`; None: no such table. `without`: the mapper of
    a source whose dropped rows are left out."""
    rows: int | None = None
    for each in apart(whole(table)):
        if (more := await _rows_up_to(each, most, without)) is not None:
            rows = min((rows or 0) + more, most)
    return rows


async def _rows_up_to(every: Table, most: int, without: Mapper | None) -> int | None:
    rows = 0
    # Of a part, and of a table of dropped rows, all pages may be read: they are of full size then.
    reads_all = without is not None or isinstance(every, PartOfTable)
    page_rows = MAX_PAGE_ROWS if reads_all else min(most, MAX_PAGE_ROWS)
    try:
        select = _KEYS if without is None else without.kind_inputs
        async for page in every.scan(select=select, page_rows=page_rows, ahead=False):
            rows += len(page.rows) - (0 if without is None else sum(map(without.is_dropped, page.rows)))
            if rows >= most:
                return most
    except (TableMissing, TableBeingDeleted):
        return None
    return rows


def _dropping(run: Run, table: Table) -> Mapper | None:
    """Return the mapper that tells which rows of a table are dropped; None: none are."""
    return run.mapper if run.mapper.drops and table.name == run.source.name else None


async def closed_by_tables(run: Run, *, authority: Table) -> list[str]:
    """Return the reasons against moving the authority to the target: a table does not exist, or the main
    target is empty. `authority`: the source, or the main target where that is the authority already."""
    source, target = run.source.name, run.targets[0].name
    tables = {table.name: table for each in (authority, *run.targets) for table in apart(whole(each))}
    rows = {name: await rows_up_to(table, 1) for name, table in tables.items()}
    if gone := [name for name, number in rows.items() if number is None]:
        return [reason("table-missing", table=name) for name in gone]
    if (
        any(rows[name] for name in names_in(target))
        or await rows_up_to(run.source, MANY, _dropping(run, run.source)) != MANY
    ):
        return []
    return [reason("target-empty", target=target, source=source)]


async def closed_by_emptied(run: Run) -> list[str]:
    """Return the reasons against moving the authority to a joint target of capture "dual-write", or leaving
    it there: one of its tables was emptied (`emptied_tables`). The source must be current. May read all of
    it: call it last."""
    source = run.source.name
    return [reason("target-empty", target=name, source=source) for name in await emptied_tables(run)]


async def emptied_tables(run: Run) -> list[str]:
    """Return the names of the tables of a joint main target that are empty although the source holds `MANY`
    rows for them: somebody deleted such a table and created it again. None for any other main target."""
    parts = apart(whole(run.targets[0]))
    empty = [part.name for part in parts if len(parts) > 1 and await rows_up_to(part, 1) == 0]
    return await _with_source_rows(run, empty) if empty else []


async def _with_source_rows(run: Run, names: Collection[str]) -> list[str]:
    """Return those of some tables of a joint main target for which the source holds `MANY` rows or more."""
    rows = dict.fromkeys(names, 0)
    with run.progress.task("look for the rows of empty tables") as advance:
        async for page in run.source.scan(select=run.mapper.kind_inputs):
            run.check()
            for row in page.rows:
                kind = run.mapper.kind_of(row)
                if kind is not None and kind.target.table in rows:
                    rows[kind.target.table] += 1
            if min(rows.values()) >= MANY:
                break
            advance(len(page.rows))
    return [name for name, number in rows.items() if number >= MANY]


async def closed_by_mapping(run: Run) -> list[str]:
    """Return why the authority cannot move to the target: rows of a sample of the source are not in the
    mapping, in which clients and rollback look keys up. A full verification does not read it."""
    watermark = run.state.get_fact(run.script_id, WATERMARK) if run.is_delta else None
    if not run.mapping.is_stored or (run.is_delta and watermark is None):
        return []
    before = None if watermark is None else ticks_of(watermark)
    # Mapping rows lie by digests under a secret key: neighbors in the source are a random sample of them.
    sample: dict[EntityKey, list[EntityKey]] = {}
    # Rows are left out, so several pages may be read: they are of full size.
    async for page in run.source.scan(page_rows=MAX_PAGE_ROWS, ahead=False):
        run.check()
        sample |= _mapping_keys(run, page.rows, before)
        if len(sample) >= GATE_SAMPLE:
            break
    sample = dict(islice(sample.items(), GATE_SAMPLE))
    left = await _unmapped(run, sample)
    for _ in range(_ROUNDS - 1):
        if left and not run.is_delta:  # a client's write may be in flight
            await run.clock.sleep(_PAUSE_S)
            left = await _unmapped(run, _mapping_keys(run, await _read_again(run, left), before))
    if left and not run.is_delta:
        with suppress(TableMissing):
            announced, _ = await announced_keys(run)
            left = [key for key in left if key not in announced]
        # The intent of a write that ended since its rows were read is gone, and the mapping has them.
        left = await _unmapped(run, _mapping_keys(run, await _read_again(run, left), before))
    if not left:
        return []
    rows, script = counted(len(sample), "row"), run.declared.cli_selector
    return [reason("mapping-lacks-rows", missing=len(left), rows=rows, source=run.source, script=script)]


def _mapping_keys(
    run: Run, source_rows: Sequence[Row], before: int | None
) -> dict[EntityKey, list[EntityKey]]:
    """Return, by source key, the keys of the mapping rows of those source rows that were copied. `before`:
    when the last pass of capture "delta" began, in ticks; None where clients follow."""
    rows, keys = run.mapping.rows, dict[EntityKey, list[EntityKey]]()
    for row in source_rows:
        is_newer = before is not None and ticks_of(row[TIMESTAMP]) >= before
        if not is_newer and (mains := _mains_of(run, row)):
            keys[key_of(row)] = [rows.forward_key(key_of(row)), *map(rows.reverse_key, mains)]
    return keys


async def _read_again(run: Run, source_keys: Sequence[EntityKey]) -> list[Row]:
    rows = [await run.source.get(key) for key in source_keys]
    return [row for row in rows if row is not None]


async def _unmapped(run: Run, copied: Mapping[EntityKey, Sequence[EntityKey]]) -> list[EntityKey]:
    """Return the source keys of which a mapping row is missing. `copied`: the keys of their mapping rows."""
    table, left = run.mapping.table, list[EntityKey]()

    async def check(source_key: EntityKey) -> None:
        run.check()
        with suppress(TableMissing, TableBeingDeleted):
            if None not in [await table.get(key, select=_KEYS) for key in copied[source_key]]:
                return
        left.append(source_key)

    await for_each(copied, check, limit=run.config.limits.concurrency)
    return sorted(left)


def _mains_of(run: Run, row: Row) -> list[EntityKey]:
    """Return the main target key that a source row maps to; none if it is refused or not migrated."""
    try:
        return [key_of(main.row) for main in run.mapper.map(row)[:1]]
    except RowRefused:
        return []


# --- before targets are dropped ----------------------------------------------------------------------------


async def require_source(run: Run) -> None:
    """Refuse to drop targets while the source does not exist, without a reason. Raises Refused."""
    if not run.options.reason and not await run.tables.table_exists(run.source.name):
        script = run.declared.cli_selector
        raise refusal("source-gone", source=run.source, targets=_targets(run), script=script)


async def tables_with_rows(run: Run) -> list[str]:
    """Return the names of the target tables that hold rows."""
    return [table.name for table in run.targets if await rows_up_to(table, 1)]


async def require_droppable(run: Run) -> None:
    """Refuse to drop targets unless the source has a row for every row of the main target, or the operator
    gave a reason; record what was found. Raises Refused."""
    await require_two_accounts(run)
    await require_droppable_mapping(run)
    if not await tables_with_rows(run):
        return  # nothing would be lost
    await require_source(run)
    proof: dict[str, Any] = {"reason": run.options.reason}
    only = await _proved_in_source(run)
    if only is None:
        proof["source"] = "does not exist" if await rows_up_to(run.source, 1) is None else "exists"
    else:
        proof["only_in_target"] = len(only)
        if only and not run.options.reason:
            target, rows = run.targets[0], counted(len(only), "row")
            if not run.is_delta and not await _unannounced(run, only):
                raise refusal("rows-unsettled", rows=rows, target=target, script=run.script_id)
            if len(only) > LISTED:
                rows = f"{LISTED:,} rows or more"
            listed, source, script = run.listed(target, only), run.source, run.declared.cli_selector
            # `apply` takes them out where it can: with one of several tables gone it has to begin again.
            gone = [name for name in names_in(target.name) if not await run.tables.table_exists(name)]
            if gone:
                raise refusal(
                    "rows-only-in-tables-left",
                    gone=joint_name(gone),
                    rows=rows,
                    listed=listed,
                    target=target,
                    source=source,
                    script=script,
                )
            raise refusal(
                "rows-only-in-target", rows=rows, listed=listed, target=target, source=source, script=script
            )
    run.state.audit("drop-proved", run.script_id, proof)


async def _proved_in_source(run: Run) -> list[EntityKey] | None:
    """Return the keys of the main target's rows that no source row maps to; None where the source does not
    exist, or nothing of the main target, whose index tables hold copies of its rows."""
    for _ in apart(whole(run.targets[0])):
        with suppress(TableMissing, TableBeingDeleted):
            return await rows_only_in_target(run)
        if await rows_up_to(run.source, 1) is None or await existing(run.tables, run.targets[0]) is None:
            return None
        # Of a joint target one table went meanwhile: look at those that are left.
    return await rows_only_in_target(run)


async def rows_only_in_target(run: Run) -> list[EntityKey]:
    """Return the keys of the main target's rows that no source row maps to (of very many only some); rows of
    writes in flight do not count. Raises TableMissing when the source, or all of the main target, is gone."""
    target, digest_of = await existing(run.tables, run.targets[0]) or run.targets[0], run.ids.long
    # The mapping table is not relied on: it may be gone, too.
    with DigestParts() as theirs, DigestParts() as ours:
        # The target first: a row that is written meanwhile is then in the source's keys, if in any.
        with run.progress.task("read the target's keys") as advance:
            async for page in target.scan(select=_KEYS):
                run.check()
                for row in page.rows:
                    theirs.add(digest_of(target.name, key_of(row)))
                advance(len(page.rows))
        with run.progress.task("map the source's rows") as advance:
            async for page in run.source.scan():
                run.check()
                for row in page.rows:
                    for main in _mains_of(run, row):
                        ours.add(digest_of(target.name, main))
                advance(len(page.rows))
        only = set[str]()
        for prefix in theirs.prefixes():
            only |= theirs.read(prefix) - ours.read(prefix)
            if len(only) > LISTED:
                break  # enough to know
    if not only:
        return []
    candidates = []
    async for page in target.scan(select=_KEYS):
        run.check()
        candidates += [key for row in page.rows if digest_of(target.name, key := key_of(row)) in only]
    return await _without_source(run, candidates)


async def _without_source(
    run: Run, candidates: Sequence[EntityKey], *, rounds: int = _ROUNDS
) -> list[EntityKey]:
    """Return the main target keys whose row exists and whose source row does not."""
    left = list(candidates)
    for number in range(rounds):
        if number and left:
            await run.clock.sleep(_PAUSE_S)
        still: list[EntityKey] = []

        async def check(key: EntityKey, still: list[EntityKey] = still) -> None:
            run.check()
            owner = await _owner(run, key)
            if owner is not None and await has_migrated_row(run, owner):
                return
            if await run.targets[0].get(key, select=_KEYS) is None:
                return
            still.append(key)

        await for_each(left, check, limit=run.config.limits.concurrency)
        left = still
        if run.is_delta:
            break  # replicas do not follow at once: waiting changes nothing
    return sorted(left)


async def _unannounced(run: Run, missing: Sequence[EntityKey]) -> list[EntityKey]:
    """Return those main target keys without a source row for which the journal announces no write. A write in
    flight, or one that a dead client left, has reached one side, and is settled."""
    sources, targets = set[EntityKey](), set[EntityKey]()
    with suppress(TableMissing):
        sources, targets = await announced_keys(run)
    owners = {key: await _owner(run, key) for key in missing}
    left = [key for key, owner in owners.items() if key not in targets and owner not in sources]
    # The intent of a write that ended since the source was read is gone, and the row is there.
    return await _without_source(run, left, rounds=1)


async def has_migrated_row(run: Run, key: EntityKey) -> bool:
    """Tell whether the source has a row under a key that the migration does not drop."""
    row = await run.source.get(key, select=None if run.mapper.drops else _KEYS)
    return row is not None and not run.mapper.is_dropped(row)


async def _owner(run: Run, key: EntityKey) -> EntityKey | None:
    try:
        return await run.propagator.owner_of(key)
    except (TableMissing, TableBeingDeleted):
        return None


def _targets(run: Run) -> str:
    return ", ".join(run.declared.migration.table_names)


# --- before authority moves back, and before the source is deleted -----------------------------------------


async def closed_by_source(run: Run) -> list[str]:
    """Return why the authority cannot move back to the source: it does not exist or, in capture "dual-write",
    lacks rows of a sample of the target."""
    source, target = run.source, await existing(run.tables, run.targets[0])
    if not await run.tables.table_exists(source.name):
        return [reason("source-missing", source=source)]
    if run.is_delta or target is None:
        return []
    sample: list[EntityKey] = []
    async for page in target.scan(select=_KEYS, page_rows=GATE_SAMPLE, ahead=False):
        sample += map(key_of, page.rows)
        if len(sample) >= GATE_SAMPLE:
            break
    missing = await _without_source(run, sample[:GATE_SAMPLE])
    # What the journal announces is settled before authority moves, or keeps it from moving.
    missing = missing and await _unannounced(run, missing)
    if not missing:
        return []
    # A repair follows claims: a row written past the clients has none, and stays without a source row.
    claimed = [key for key in missing if await _owner(run, key) is not None]
    step = next_step("mend" if claimed else "fix-new-rows", script=run.script_id)
    rows = counted(min(len(sample), GATE_SAMPLE), "row")
    return [
        reason("source-lacks-rows", missing=len(missing), rows=rows, target=target, source=source, step=step)
    ]


async def closed_by_count(run: Run, tables: Sequence[Table]) -> list[str]:
    """Return why the source may not be deleted: the tables with the migration's rows (`tables_with_its_rows`)
    hold fewer than were migrated, and no reason was given. The counts are recorded."""
    if not await run.tables.table_exists(run.source.name):
        return []
    source_rows, dropped = await _count(run, run.source)
    target_rows = sum([(await _count(run, table))[0] for table in tables])
    counts = {"source_rows": source_rows, "target_rows": target_rows}
    if run.mapper.drops:
        counts[NOT_MIGRATED] = dropped
    run.state.audit(COUNTED, run.script_id, {**counts, "reason": run.options.reason})
    source_rows -= dropped
    if run.options.reason:
        return []
    source = run.source
    if target_rows < source_rows:
        left, target = counted(target_rows, "row"), " and ".join(spoken(table.name) for table in tables)
        return [reason("fewer-rows", target=target, left=left, source=source, source_rows=source_rows)]
    # Rows that were written to the other tables since would hide it.
    return [reason("table-emptied", table=name, source=source) for name in await emptied_tables(run)]


async def require_few_deletes(run: Run, gone: Sequence[EntityKey], target_rows: int) -> None:
    """Refuse, without a reason, to delete more rows of the source than the target holds; of a joint target,
    more rows of one of its tables than that table holds.

    Args:
        run: the migration.
        gone: source keys whose rows are not in the main target; some have no source row either, and some
            moved to another key.
        target_rows: how many rows the main target holds.

    Raises:
        Refused: more of them exist in the source than the target holds, and `MANY` or more. Rows that are
            dropped are not deleted, and do not count.
    """
    parts = apart(whole(run.targets[0]))
    keys = dict.fromkeys(gone)
    if len(keys) < (MANY if len(parts) > 1 else max(MANY, target_rows + 1)):
        return
    reverse, standing = ReversePropagator(run.propagator), Counter[str]()

    async def count(key: EntityKey) -> None:
        run.check()
        row = await run.source.get(key)
        if row is None or run.mapper.is_dropped(row):
            return
        if run.mapper.content_derived and await reverse.authority(await run.mapping.forward(key)) is not None:
            return  # it moved
        kind = run.mapper.kind_of(row) if len(parts) > 1 else None
        standing[run.targets[0].name if kind is None else kind.target.table] += 1

    await for_each(keys, count, limit=run.config.limits.concurrency)
    for table in parts:
        if (number := standing[table.name]) < MANY:
            continue
        left = target_rows if len(parts) == 1 else await rows_up_to(table, number) or 0
        if number <= left:
            continue
        if not run.options.reason:
            raise refusal("back-would-delete", target=table, source=run.source, gone=number, left=left)
        details = {"gone": number, "left": left, "reason": run.options.reason}
        run.state.audit("deletes-most", run.script_id, details)


async def _count(run: Run, table: Table) -> tuple[int, int]:
    """Return how many rows a table holds, and how many of them are source rows that are dropped."""
    rows, dropped, mapper = 0, 0, _dropping(run, table)
    with run.progress.task(f"count {table.name}") as advance:
        async for page in table.scan(select=_KEYS if mapper is None else mapper.kind_inputs):
            run.check()
            rows += len(page.rows)
            dropped += 0 if mapper is None else sum(map(mapper.is_dropped, page.rows))
            advance(len(page.rows))
    return rows, dropped


# --- before rows are deleted because the authority has none ------------------------------------------------


async def require_rows(run: Run, authority: Table, replica: Table) -> None:
    """Refuse, without a reason, to delete all rows of a replica because the authority is empty, or one of the
    tables of an authority that is joint. Raises Refused for a replica of `MANY` rows or more."""
    if await rows_up_to(authority, 1):
        emptied = await emptied_tables(run) if authority.name == run.targets[0].name else []
        if not emptied:
            return
        empty = joint_name(emptied)
    elif await rows_up_to(replica, MANY, _dropping(run, replica)) != MANY:
        return
    else:
        empty = authority.name
    instead = f"rollback {run.declared.cli_selector} --to source --drop-targets --reason TEXT"
    _require_reason(run, empty, replica, _REPAIR.format(run.script_id) if not run.is_delta else instead)


async def require_main_rows(run: Run, index: Table) -> None:
    """Refuse, without a reason, to delete all rows of an index table because the main target, of which they
    are made once nothing follows the source, is empty. Raises Refused as `require_rows`."""
    main = run.targets[0]
    if index.name != main.name and await rows_up_to(main, 1) == 0 and await rows_up_to(index, MANY) == MANY:
        _require_reason(run, main.name, index, _REPAIR.format(run.script_id))


def _require_reason(run: Run, empty: str, replica: Table, instead: str) -> None:
    if not run.options.reason:
        raise refusal("authority-empty", authority=empty, replica=replica, instead=instead)
    details = {"empty": empty, "rows_of": replica.name, "reason": run.options.reason}
    run.state.audit("deletes-all", run.script_id, details)
