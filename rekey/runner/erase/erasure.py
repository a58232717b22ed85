"""Erases subjects from a completed migration: the mapping rows of given source rows, those source rows
themselves and, if asked, their target rows. A killed erasure is finished by the next one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from rekey import errors
from rekey.core.clock import format_ticks
from rekey.core.concurrency import for_each
from rekey.core.safe_ids import SHORT_CHARACTERS
from rekey.declaration.targets import MAIN_PARTITION_KEY, MAIN_ROW_KEY
from rekey.evidence.log import make_checkpoint
from rekey.mapping.computed import ComputedMapping
from rekey.mapping.lookup import Query, lookup_of
from rekey.mapping.removed import Kept, Removed, RemovedRows
from rekey.mapping.rows import TargetKey, day_of, pointer_of
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, Row, etag_of, key_of
from rekey.next_steps import apply_to, next_step
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlRow
from rekey.runner.clients import any_intent, heard_of_until, wait_for_present
from rekey.runner.erase.targets import (
    MAX_ROUNDS,
    Standing,
    counts_of,
    delete_rows,
    find_rows,
    listed_targets,
    usable,
)
from rekey.runner.phases.retire import delete_unchanged, is_changed, quiet_at
from rekey.runner.refusals import refusal
from rekey.runner.restore_source import restored_until
from rekey.runner.retired import require_unfollowed
from rekey.runner.run import Run
from rekey.runner.session import Session
from rekey.state.audit import ERASURE_BEGUN, ERASURE_ENDED, SUBJECTS, erasures
from rekey.status.notes import note


@dataclass(frozen=True, slots=True)
class Scope:
    """How much of a subject is erased. `asdict` is what the audit log records."""

    # Also search for reverse rows (`with_targets`: and index rows) that no forward row lists.
    searched: bool = True
    # Erase its target rows, too.
    with_targets: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A request to erase subjects."""

    # They name the subjects.
    queries: Sequence[Query] = field(repr=False)
    # How the queries name them, and why they are erased; recorded.
    by: str
    reason: str
    scope: Scope = Scope()


@dataclass(frozen=True, slots=True)
class Subjects:
    """The rows that queries name."""

    # Source keys to erase, by safe id.
    known: dict[str, EntityKey] = field(repr=False)
    # The day on which a row was erased before, by safe id.
    erased: dict[str, str]
    # Safe ids of rows that the mapping does not know.
    unknown: tuple[str, ...]
    # All keys of the subjects and all keys asked for: the recorded reason must hold none.
    keys: tuple[EntityKey, ...] = field(repr=False)
    # Their target rows, as read; `targets` counts them by table.
    target_rows: Standing = field(default_factory=dict, repr=False)
    targets: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Done:
    """What was erased. Rows are named by safe id."""

    on: str
    rows: list[str] = field(default_factory=list)
    # Subjects whose source row was written after the source was quiet: nothing of them was erased.
    changed: list[str] = field(default_factory=list)
    # Subjects with a target row that changed after it was read: it and the mapping rows leading to it stay.
    targets_changed: list[str] = field(default_factory=list)
    target_rows: Counter[str] = field(default_factory=Counter)
    source_rows: int = 0
    source_rows_gone: int = 0
    # Mapping rows replaced by tombstones.
    forward_rows: int = 0
    reverse_rows: int = 0
    # Rows of the subjects that a repair had removed and kept, now deleted for good.
    removed_rows: int = 0
    # Mapping rows that cannot be opened: it is not known which source row they name.
    unreadable: int = 0

    def as_json(self) -> dict[str, Any]:
        ordered = {name: sorted(getattr(self, name)) for name in ("rows", "changed", "targets_changed")}
        return {**asdict(self), **ordered, "target_rows": dict(sorted(self.target_rows.items()))}


async def require_complete(run: Run) -> ControlRow:
    """Return the control row of a complete migration, and remove its keys from the state file.

    Before that the protocol needs the mapping, and a client that still settles a write would bring back what
    is erased.

    Raises:
        Refused: not complete, a client has not acknowledged it, a client that was given up may still send
            requests, or the journal holds intents.
    """
    now = await run.control.read()
    if now is None or now.phase not in (ControlPhase.COMPLETE, ControlPhase.RETIRED):
        completes = apply_to(run.declared.cli_selector, Phase.COMPLETE)
        raise refusal("not-complete", script=run.script_id, completes=completes)
    if now.maintained:
        kept = ", ".join(run.declared.migration.index_labels)
        step = next_step("hand-over", script=run.script_id)
        raise refusal("not-handed-over", script=run.script_id, rows=kept, step=step)
    await wait_for_present(run)
    until = await heard_of_until(run)
    if until is not None:
        raise refusal("client-given-up", script=run.script_id, until=format_ticks(until))
    if not run.is_delta and await any_intent(run):  # `complete` has removed those that were only kept
        raise refusal("journal-not-empty", script=run.script_id)
    run.state.forget_keys(run.script_id)
    return now


def erase(
    session: Session,
    script_id: str,
    request: Request,
    *,
    refuse: Callable[[Sequence[EntityKey]], None],
    tell: Callable[[Mapping[str, int]], None] = lambda _targets: None,
) -> tuple[Subjects, Done]:
    """Erase what a completed migration knows of some subjects, and their source rows; return the subjects and
    what was erased.

    Args:
        session: the open session.
        script_id: the migration.
        request: what to erase.
        refuse: raises when the reason holds one of the given keys; called before anything is recorded.
        tell: called before anything is recorded or deleted, with the number of target rows by table, which
            nobody can look up afterwards; may raise to stop.

    Raises:
        Refused: see `require_complete`; another migration follows the source; with `with_targets`, also
            `usable`; without it, and where not all is searched, if the mapping is computed.
        SealedUnreadable: a mapping row of a subject cannot be opened.
    """
    is_computed = session.scripts[script_id].migration.inverse is not None
    if is_computed and not (request.scope.with_targets and request.scope.searched):
        raise refusal("erase-targets-too", script=script_id)
    run = session.resume(script_id)

    async def find_all(until: str | None, queries: Sequence[Query], scope: Scope) -> Subjects:
        subjects = await find(run, queries, reads_source=until is not None)
        tables = await usable(run, to_write=scope.with_targets)
        searched = scope.searched and scope.with_targets
        target_rows = await find_rows(run, subjects.known, tables, searched=searched)
        targets = sum((counts_of(run, rows) for rows in target_rows.values()), Counter[str]())
        return replace(subjects, target_rows=target_rows, targets=dict(sorted(targets.items())))

    async def work() -> tuple[Subjects, Done]:
        until = await _deletable_until(run, await require_complete(run))
        await require_unfollowed(run, () if until is None else run.of_same_rows)
        # Recorded erasures that were cut off are finished first, by safe id.
        for event in erasures(run.state.audit_events(script_id)).open:
            recorded = event.details
            if recorded["kind"] == SUBJECTS:
                scope = Scope(recorded["searched"], recorded.get("with_targets", False))
                again = await find_all(until, [Query(safe_id=row_id) for row_id in recorded["rows"]], scope)
                # Of these nothing stands any more, except the tombstones that it wrote before it was cut off.
                gone = () if run.mapping.is_stored else sorted({*recorded["rows"]} - {*again.known})
                await _carry_out(run, until, again, scope, event.seq, gone)
                note(run.progress, "erasure-finished", {"day": event.at[:10]})
        subjects = await find_all(until, request.queries, request.scope)
        refuse(subjects.keys)
        tell(subjects.targets)
        # Source rows by safe id and none of their target rows: the record must not link again what is erased.
        details = {
            "kind": SUBJECTS,
            "by": request.by,
            "rows": sorted(subjects.known),
            "erased_before": sorted(subjects.erased),
            "unknown": sorted(subjects.unknown),
            **asdict(request.scope),
            "targets": dict(subjects.targets),
            "reason": request.reason,
        }
        begun = run.state.audit(ERASURE_BEGUN, script_id, details)
        return subjects, await _carry_out(run, until, subjects, request.scope, begun.seq)

    erased = session.do(work())
    make_checkpoint(session.state, session.signer, f"{script_id}: erased", session.progress)
    return erased


async def _deletable_until(run: Run, now: ControlRow) -> str | None:
    """Return the time before which the rows of the source were written that may be deleted, as `retire` does;
    None: once the source is retired its name may be another table's, and it is not read."""
    return await restored_until(run, now) if now.phase is ControlPhase.RETIRED else quiet_at(run, now)


async def find(run: Run, queries: Sequence[Query], *, reads_source: bool) -> Subjects:
    """Return the subjects that queries name.

    Args:
        run: the migration.
        queries: what names them.
        reads_source: whether the source is still the migration's, so that its rows which no kind takes, and
            no mapping row names, are found there.

    Raises:
        Refused: several tables have a row under a new key, of different source rows.
        SealedUnreadable: a mapping row cannot be opened.
    """
    store = run.mapping
    lookup = lookup_of(store, run.tables)
    expired = await store.expired_on()
    known: dict[str, EntityKey] = {}
    before: dict[str, str] = {}
    keys: list[EntityKey] = []
    missing: dict[Query, tuple[str, ...]] = {}
    lost: dict[Query, tuple[str, ...]] = {}  # mapping rows that could have named them are erased
    for query, matches in zip(queries, await lookup.find_all(queries), strict=True):
        await store.learn(matches.rows)
        is_migrated = query.old is None or run.declared.migration.has(query.old)
        sources, on = set[EntityKey](), expired if is_migrated and not matches.rows else ""
        for row in matches.rows:
            try:
                sources.add(lookup.source_of(row))
            except errors.Erased as erased:
                on = erased.on
        if query.new is not None and len(sources) + bool(on) > 1:
            raise refusal("new-key-of-several", script=run.script_id, rows=", ".join(matches.row_ids))
        if on:
            before.update(dict.fromkeys(matches.row_ids, on))
        if query.old is not None and (on or sources):
            sources.add(query.old)  # no mapping row names it any more, but its source row may still exist
        if not sources:
            (lost if on else missing)[query] = matches.row_ids
        known.update((run.ids.short(run.source.name, key), key) for key in sources)
        keys += [key for key in (query.old, query.new) if key is not None]
    unmapped: dict[Query, EntityKey] = {}
    if reads_source and (run.mapper.drops or not store.is_stored):
        unmapped = await _unmapped(run, [*missing, *lost])
    if isinstance(store, ComputedMapping):
        left = [query for query in (*missing, *lost) if query not in unmapped]
        unmapped |= await _removed_only(run, store, left)
    for row_id in (row_id for query in unmapped for row_id in lost.get(query, ())):
        before.pop(row_id, None)
    known.update((run.ids.short(run.source.name, key), key) for key in unmapped.values())
    unknown = [row_id for query, ids in missing.items() if query not in unmapped for row_id in ids]
    for key in known.values():
        keys += [key, *(target.key for target in await listed_targets(run, key))]
    return Subjects(known, before, tuple(unknown), tuple(keys))


async def _unmapped(run: Run, queries: Sequence[Query]) -> dict[Query, EntityKey]:
    """Return the keys of source rows that are dropped, or, where no mapping row says so, of any, by the query
    that names one by its old key or id, or by the key that it would have in the target."""
    keys: dict[Query, EntityKey] = {}
    by_id = {query.safe_id.strip().lower(): query for query in queries if query.safe_id is not None}

    def keep(query: Query, row: Row | None) -> None:
        if row is not None and (run.mapper.is_dropped(row) or not run.mapping.is_stored):
            keys[query] = key_of(row)

    with suppress(errors.TableMissing, errors.TableBeingDeleted):
        for query in queries:
            if (old := _old_key(run, query)) is not None:
                keep(query, await run.source.get(old))
        if by_id:
            with run.progress.task("look through the source") as advance:
                async for page in run.source.scan():
                    run.check()
                    for row in page.rows:
                        if (named := by_id.get(run.ids.short(run.source.name, key_of(row)))) is not None:
                            keep(named, row)
                    advance(len(page.rows))
    return keys


def _old_key(run: Run, query: Query) -> EntityKey | None:
    if query.new is not None and isinstance(run.mapping, ComputedMapping):
        return run.mapping.source_of(query.new)
    return query.old


async def _removed_only(
    run: Run, mapping: ComputedMapping, queries: Sequence[Query]
) -> dict[Query, EntityKey]:
    """Return the source keys, by the query that names one, of rows of which only a removed row is kept."""
    removed, rows, keys = RemovedRows(mapping), mapping.rows, dict[Query, EntityKey]()
    for kept in await removed.all() if queries else ():
        source = (await removed.open(kept)).source
        if source is None:
            continue
        ids = [rows.ids.long(rows.source, source), kept.first.row]
        for query in queries:
            prefix = (query.safe_id or "").strip().lower()
            is_named = len(prefix) >= SHORT_CHARACTERS and any(each.startswith(prefix) for each in ids)
            if is_named or _old_key(run, query) == source:
                keys[query] = source
    return keys


async def _carry_out(
    run: Run, until: str | None, subjects: Subjects, scope: Scope, begun: int, gone: Sequence[str] = ()
) -> Done:
    """Erase the subjects, then record the end of the erasure that event number `begun` began. `until`: as
    `_deletable_until` returns it; `gone`: safe ids of subjects of which nothing stands any more."""
    done = Done(day_of(await run.restricted.server_time()))
    unlisted: dict[EntityKey, list[EntityKey]] = {}
    removed = RemovedRows(run.mapping)
    copies: list[tuple[Kept, Removed]] = []
    if subjects.known:
        if scope.searched and run.mapping.is_stored:
            unlisted = await _search(run, frozenset(subjects.known.values()), done)
        copies = await _removed_rows(removed, done)

    async def erase_one(subject: tuple[str, EntityKey]) -> None:
        run.check()
        row_id, source = subject
        # The source row first, on the same condition as `retire`.
        became: Literal["deleted", "gone", "changed"] = "gone"
        if until is not None:
            with suppress(errors.TableMissing, errors.TableBeingDeleted):
                row = await run.source.get(source)
                if row is not None:
                    if not run.mapping.is_stored and not is_changed(row, until):
                        await _bury_computed(run, source, done)
                    became = await delete_unchanged(run, row, until)
        if became == "changed":
            done.changed.append(row_id)
            return
        done.source_rows += became == "deleted"
        done.source_rows_gone += became == "gone"
        if not run.mapping.is_stored:
            # Before any row of it is deleted: after a kill the rows, or the tombstones, are found.
            await _bury_computed(run, source, done)
        if scope.with_targets:
            deleted, all_gone = await delete_rows(run, subjects.target_rows[row_id])
            done.target_rows += deleted
            if not all_gone:
                done.targets_changed.append(row_id)
                return
        targets = await listed_targets(run, source)
        # `x += await ...` would lose what other tasks count meanwhile: await first, then add.
        copies_gone = await _delete_copies(removed, copies, source, targets)
        done.removed_rows += copies_gone
        if run.mapping.is_stored:
            await _bury_all(run, source, targets, unlisted.get(source, ()), done, searched=scope.searched)
        done.rows.append(row_id)

    await for_each(subjects.known.items(), erase_one, limit=run.config.limits.concurrency)
    done.rows += gone
    run.state.audit(ERASURE_ENDED, run.script_id, {"kind": SUBJECTS, "begun": begun, **done.as_json()})
    return done


async def _delete_copies(
    removed: RemovedRows,
    copies: Sequence[tuple[Kept, Removed]],
    source: EntityKey,
    targets: Sequence[TargetKey],
) -> int:
    """Delete the removed rows of a subject for good; return how many."""
    gone, mains = 0, {target.key for target in targets if target.table == 0}
    for kept, copy in copies:
        key = pointer_of(copy.row) if copy.table else key_of(copy.row)
        if copy.source == source or key in mains:
            await removed.delete(kept)
            gone += 1
    return gone


async def _bury_all(
    run: Run,
    source: EntityKey,
    targets: Sequence[TargetKey],
    unlisted: Sequence[EntityKey],
    done: Done,
    *,
    searched: bool,
) -> None:
    """Replace the mapping rows of a subject by tombstones: those of its target keys, and `unlisted` ones."""
    rows = run.mapping.rows
    listed = [rows.reverse_key(target.key, target.table) for target in targets]
    # `x += await ...` would lose what other tasks count meanwhile: await first, then add.
    for at in dict.fromkeys([*listed, *unlisted]):
        try:
            buried = await _bury(run, at, source, done.on)
        except errors.SealedUnreadable:
            buried = False
            done.unreadable += not searched  # the search has counted it
        done.reverse_rows += buried
    # Last: it lists the reverse rows, so after a kill the next erasure still finds the rest.
    buried = await _bury(run, rows.forward_key(source), source, done.on)
    done.forward_rows += buried


async def _bury_computed(run: Run, source: EntityKey, done: Done) -> None:
    """Write the tombstones of a subject of which no mapping row is stored."""
    rows, table = run.mapping.rows, run.mapping.table
    for target in await listed_targets(run, source):
        with suppress(errors.RowExists):
            await table.insert(rows.tombstones.make(rows.reverse_key(target.key), done.on))
    with suppress(errors.RowExists):
        await table.insert(rows.tombstones.make(rows.forward_key(source), done.on))


async def _removed_rows(removed: RemovedRows, done: Done) -> list[tuple[Kept, Removed]]:
    copies = []
    for kept in await removed.all():
        try:
            copy = await removed.open(kept)
        except errors.Erased:
            continue
        except errors.SealedUnreadable:
            done.unreadable += 1
            continue
        names = (PARTITION_KEY, ROW_KEY, MAIN_PARTITION_KEY, MAIN_ROW_KEY)
        row = {name: copy.row[name] for name in names if name in copy.row}
        copies.append((kept, replace(copy, row=row)))
    return copies


async def _search(run: Run, wanted: frozenset[EntityKey], done: Done) -> dict[EntityKey, list[EntityKey]]:
    """Return the keys of the reverse rows that name a source key of `wanted`, by source key.

    Every reverse row is opened: a run that was cut off can leave one that no forward row lists.
    """
    reverse_keys: dict[EntityKey, list[EntityKey]] = {}
    mapping = run.mapping

    async def collect(partition: str) -> None:
        async for page in mapping.table.scan(KeyRange.of_rows(partition)):
            run.check()
            await mapping.learn(page.rows)
            for row in page.rows:
                try:
                    named = mapping.rows.named(row)
                except errors.Erased:
                    continue
                except errors.SealedUnreadable:
                    done.unreadable += 1
                    continue
                for source in wanted.intersection(named):
                    reverse_keys.setdefault(source, []).append(key_of(row))
            advance(len(page.rows))
            await asyncio.sleep(0)  # opening a page does not await: let other tasks run in between

    with run.progress.task("search the mapping") as advance:
        partitions = [*mapping.rows.partitions("i"), *mapping.rows.partitions("r")]
        await for_each(partitions, collect, limit=run.config.limits.scans)
    return reverse_keys


async def _bury(run: Run, at: EntityKey, source: EntityKey, on: str) -> bool:
    """Replace a mapping row by a tombstone, if it (still) names `source`; return False when it does not.

    Raises:
        SealedUnreadable: the row cannot be opened, so it is not known which source key it names.
        Unavailable: the row kept changing for `MAX_ROUNDS` attempts.
    """
    mapping = run.mapping
    for _ in range(MAX_ROUNDS):
        row = await mapping.row_at(at)
        try:
            if row is None or source not in mapping.rows.named(row):
                return False
        except errors.Erased:
            return False
        try:
            await mapping.table.replace(mapping.rows.tombstones.make(at, on), etag=etag_of(row))
        except (errors.ConditionFailed, errors.RowMissing, errors.Ambiguous):
            continue
        return True
    raise refusal("mapping-row-changing")
