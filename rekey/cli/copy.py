"""`rekey copy`: copy tables to another account or name under unchanged keys, and verify every row. Needs no
project: what it needs it writes into a folder of its own."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from rekey import errors
from rekey.backup.begun import Guard, control_rows, require_ended
from rekey.backup.compare import compare
from rekey.backup.comparing import KeptComparison
from rekey.backup.copying import Journal, Watched, copy_rows
from rekey.backup.refusals import refusal
from rekey.backup.restore import Writer, Writes
from rekey.cli.backup import Work, run
from rekey.cli.copy_online import instructions, script_ids, script_of, write_script
from rekey.cli.places import Place
from rekey.cli.shell import FOLDER, Shell, command, flag
from rekey.core.key_space import KeySpace
from rekey.core.limits import TARGET_ACCOUNT_SUFFIX, own_name, table_name_problem
from rekey.declaration.key_space import space_of
from rekey.declaration.rows import AllOf, Condition, partition_key, row_key
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import PARTITION_KEY, ROW_KEY
from rekey.present.text import counted, wrapped
from rekey.project.config import Config, is_same_account, load_config
from rekey.project.privatefiles import write_whole
from rekey.protocol.control import ControlRow
from rekey.runner.remaining import rows_up_to
from rekey.state.filelock import FileLock
from rekey.status.facts import seconds_read
from rekey.tables.base import Table, holding
from rekey.tables.part import part_of
from rekey.verify.bucket_digests import Partial, readings, rows_in
from rekey.verify.render import full_lines
from rekey.verify.report import exit_code

_WRITTEN = "the source is being written: what is written after a row was compared is not copied"
_UNSEEN = "NOT CHECKED {store}: whether a migration is in progress for the target cannot be read there"
_POLL_S = 1.0
_CONFIG, _REPORT = "rekey.toml", "report.json"
_ABOVE_COPY = "# Written by `rekey copy`, which sends nothing to [restricted]. [limits] may be added.\n"
_ABOVE_PROJECT = """\
# Written by `rekey copy --online`. [restricted] may be another account until the first `rekey apply`. What
# else may be said here is shown by the file that `rekey init` writes.
"""
_BY_KEY = {PARTITION_KEY: partition_key, ROW_KEY: row_key}
_CONDITION = re.compile(rf"({PARTITION_KEY}|{ROW_KEY})=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Pair:
    """A table that is copied, and what to."""

    source: str
    # `NAME@targets` in another account.
    target: str


@dataclass(frozen=True, slots=True)
class How:
    """How tables are copied."""

    folder: Path
    # The rows that are copied; None: all.
    part: KeySpace | None
    # Rows of the target whose content differs are overwritten.
    overwrite: bool


@command(
    "copy",
    example="rekey copy OLD/Users NEW/Users\nrekey copy 'OLD/Orders*' NEW/\n"
    "rekey copy https://old.table.core.windows.net/Users https://new.table.core.windows.net/UsersCopy",
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--where",
    "conditions",
    metavar="KEY=TEXT",
    multiple=True,
    help="Only rows with PartitionKey=TEXT or RowKey=TEXT; TEXT* for all that begin so. May be repeated: all"
    " must hold.",
)
@flag("--replace", "overwrite", help="Overwrite rows of the target whose content differs.")
@click.option(
    "--rate", metavar="N", type=click.IntRange(1), help="Read and write at most N rows a second, per account."
)
@click.option(
    "--state",
    "folder",
    metavar="FOLDER",
    type=FOLDER,
    help="Where the copy keeps how far it is.  [default: rekey-copy-ID; ID follows from what is copied]",
)
@flag("--dry-run", help="Tell what would be copied, and write no table.")
@flag("--online", help="Copy nothing; write a project that moves the tables while they are written.")
def copy(
    shell: Shell,
    source: str,
    target: str,
    conditions: tuple[str, ...],
    overwrite: bool,
    rate: int | None,
    folder: Path | None,
    dry_run: bool,
    online: bool,
) -> errors.ExitCode:
    """Copy tables under unchanged keys, and verify every row.

    FROM and TO are ACCOUNT/TABLE. ACCOUNT is the URL of a table endpoint, or an environment variable that
    holds one or a connection string; TABLE may be a pattern in FROM, and is left out in TO for the same
    names. Tables are created if need be. Rows that are absent are inserted; rows that differ are left, and
    reported. At the end every row of both sides is compared: exit code 1 when anything differs. The same
    command continues after an interruption. This copies once: tables that are written meanwhile are moved by
    a migration, and --online writes one: configuration and script in the folder of --state.
    """
    if online and (conditions or overwrite or rate or dry_run):
        raise click.UsageError("--online copies nothing: leave out --where, --replace, --rate and --dry-run")
    places = Place.read(source), Place.read(target, may_lack_table=True)
    part = _part(conditions)
    kind = "move" if online else "copy"
    folder = folder or Path(f"rekey-{kind}-{_digest(places, conditions, overwrite)}")
    config = _configured(folder, *places, online=online)
    if rate is not None:
        config = replace(config, limits=replace(config.limits, entities_per_second=rate))
    how, seen = How(folder, part, overwrite), _Seen.of_project(shell)
    if online:
        return _to_be_moved(shell, config, folder, seen, places)

    async def work(on: Work) -> list[dict[str, Any]]:
        pairs = await _pairs(on, *places)
        await _refuse_migrating(on, seen, pairs, places)
        if dry_run:
            return [await _foreseen(shell, on, how, pair) for pair in pairs]
        async with seen.readable(shell) as stores:
            endpoint = places[1].endpoint
            guards = [Guard(stores, own_name(pair.target), endpoint, shell.clock) for pair in pairs]
            return [
                await _copied(shell, on, how, pair, guard) for pair, guard in zip(pairs, guards, strict=True)
            ]

    with FileLock(folder / _REPORT):
        done = run(shell, config, work)
        if not dry_run:
            _finish(folder, done)
    code = max((errors.ExitCode(table["exit_code"]) for table in done), default=errors.ExitCode.DONE)
    text = [line for table in done for line in table["text"]]
    document = {
        "state": str(folder),
        "dry_run": dry_run,
        "not_checked": seen.unseen,
        "tables": [{name: member for name, member in table.items() if name != "text"} for table in done],
        "exit_code": int(code),
    }
    if any(table.get("differing") for table in done):
        again = shell.command(_again(source, target, conditions, "--replace"))
        text.append(f"  next        {again} (overwrites what differs)")
    text += [line for store in seen.unseen for line in wrapped(_UNSEEN.format(store=store), first="  ")]
    return shell.emit(document, "\n".join([*text, f"  state       {folder}"]), code)


# --- what is copied ----------------------------------------------------------------------------------------


def _part(conditions: Iterable[str]) -> KeySpace | None:
    """Return the keys of the rows that are copied; None: all. Raises click.UsageError."""
    parts: list[Condition] = []
    for text in conditions:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise click.UsageError("--where takes PartitionKey=TEXT or RowKey=TEXT; TEXT* is a beginning")
        name, value = match.groups()
        by = {"prefix": value[:-1]} if value.endswith("*") else {"equals": value}
        if by.get("prefix") == "":
            raise click.UsageError(f"--where {name}=* leaves no row out")
        parts.append(_BY_KEY[name](**by))
    return space_of(AllOf(tuple(parts))) if parts else None


def _digest(places: Iterable[Place], conditions: Iterable[str], overwrite: bool) -> str:
    """Return the same for the same copy, so that the same command finds its folder."""
    parts = [*(place.text for place in places), *sorted(conditions), overwrite]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def _again(source: str, target: str, conditions: Iterable[str], *more: str) -> str:
    wheres = [word for condition in conditions for word in ("--where", condition)]
    return shlex.join(["copy", source, target, *wheres, *more])


def _configured(folder: Path, source: Place, target: Place, *, online: bool) -> Config:
    """Return the configuration in the folder of a copy, which is written if there is none. `online`: it is
    that of a project.

    Raises:
        ConfigurationError: it cannot be written, or an endpoint is none.
        Refused: it is that of another copy.
    """
    path = folder / _CONFIG
    is_one_account = is_same_account(source.endpoint, target.endpoint)
    sections = [("tables", source), *([] if is_one_account else [("targets", target)])]
    # Of a copy nothing is read or written there; every configuration names it.
    sections.append(("restricted", target if online else source))
    if not path.exists():
        text = _ABOVE_PROJECT if online else _ABOVE_COPY
        for name, place in sections:
            key = f'key_env = "{place.variable}"\n' if place.has_key else ""
            text += f"\n[{name}]\nendpoint = {json.dumps(place.endpoint)}\n{key}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise refusal("state-in-use", folder=folder)
            write_whole(path, text.encode())
        except OSError as error:
            raise refusal("folder-not-written", folder=folder, reason=errors.reason_of(error)) from None
    config = load_config(path)
    accounts = [config.tables, config.tables if config.targets is None else config.targets]
    for account, place in zip(accounts, (source, target), strict=True):
        if not is_same_account(account.endpoint, place.endpoint):
            raise refusal("state-of-another", folder=folder)
    # A variable may hold an endpoint now, and have held a connection string then.
    targets = None if is_one_account else target.account
    restricted = config.restricted if online else source.account
    return replace(config, tables=source.account, targets=targets, restricted=restricted)


async def _pairs(on: Work, source: Place, target: Place) -> list[Pair]:
    """Return the tables to copy. Raises click.UsageError, and ConfigurationError when there are none."""
    suffix = "" if on.config.targets is None else TARGET_ACCOUNT_SUFFIX
    names = [source.table]
    if source.is_pattern:
        if target.table:
            raise click.UsageError("for a pattern leave the table out in TO: the names stay as they are")
        every = sorted(await on.tables.table_names())
        names = [
            name for name in every if fnmatchcase(name, source.table) and table_name_problem(name) is None
        ]
        if not names:
            raise refusal("no-table-fits", pattern=source.table, endpoint=source.endpoint)
    pairs = [Pair(name, (target.table or name) + suffix) for name in names]
    if same := [pair.source for pair in pairs if pair.source.lower() == pair.target.lower()]:
        raise click.UsageError(f"FROM and TO are one table: {', '.join(same)}")
    return pairs


async def _refuse_migrating(on: Work, seen: _Seen, pairs: Iterable[Pair], places: Sequence[Place]) -> None:
    """Refuse targets of which a migration is in progress, as far as both accounts tell. Raises Refused."""
    stores = {CONTROL_TABLE: places[0]}
    if on.config.targets is not None:
        stores[CONTROL_TABLE + TARGET_ACCOUNT_SUFFIX] = places[1]
    for name, place in stores.items():
        if await seen.look(on.table(name), place.endpoint):
            seen.tables.append(on.table(name))
    for pair in pairs:
        require_ended(seen.controls, own_name(pair.target), places[1].endpoint)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The migrations that can be seen from here."""

    controls: list[ControlRow] = field(default_factory=list)
    # The stores that were asked, and those of them that may not be read.
    stores: set[str] = field(default_factory=set)
    unseen: list[str] = field(default_factory=list)
    # The control tables that may be read through the copy's own connections.
    tables: list[Table] = field(default_factory=list)
    # The configuration of a project whose restricted store may be read.
    project: list[Config] = field(default_factory=list)

    async def look(self, table: Table, store: str) -> bool:
        """Read the control rows of a store, once. Return whether it was read now."""
        if store in self.stores:
            return False
        self.stores.add(store)
        try:
            self.controls.extend(await control_rows(table))
        except errors.CredentialRefused:
            self.unseen.append(store)
            return False
        return True

    @asynccontextmanager
    async def readable(self, shell: Shell) -> AsyncIterator[list[Table]]:
        """Return the control tables of all stores that could be read."""
        async with AsyncExitStack() as connections:
            stores = list(self.tables)
            for config in self.project:
                accounts = await connections.enter_async_context(shell.connect(config))
                stores.append(accounts.restricted.table(CONTROL_TABLE))
            yield stores

    @classmethod
    def of_project(cls, shell: Shell) -> _Seen:
        """Look in the restricted store of the configuration, if there is one: a copy needs none."""
        seen = cls()

        async def look(config: Config) -> None:
            async with shell.connect(config) as accounts:
                if await seen.look(accounts.restricted.table(CONTROL_TABLE), config.restricted.endpoint):
                    seen.project.append(config)

        if shell.has_project:
            try:
                shell.do(look(load_config(shell.config.path)))
            except (errors.ConfigurationError, errors.EndpointDown, errors.Unavailable):
                seen.unseen.append(str(shell.config.path))
        return seen


# --- a project instead -------------------------------------------------------------------------------------


def _to_be_moved(
    shell: Shell, config: Config, folder: Path, seen: _Seen, places: tuple[Place, Place]
) -> errors.ExitCode:
    """Write the script of a project that moves the tables, and say what is to be done with it."""

    async def work(on: Work) -> list[Pair]:
        pairs = await _pairs(on, *places)
        await _refuse_migrating(on, seen, pairs, places)
        for pair in pairs:
            if not await on.tables.table_exists(pair.source):
                raise await on.missing(pair.source)
        return pairs

    tables = {pair.source: pair.target for pair in run(shell, config, work)}
    script, ids, path = write_script(folder, script_of(tables)), script_ids(list(tables)), folder / _CONFIG
    lines = [f"wrote  {path}", f"wrote  {script}"]
    lines += [line for store in seen.unseen for line in wrapped(_UNSEEN.format(store=store))]
    document = {
        "config": str(path),
        "script": str(script),
        "script_ids": ids,
        "tables": tables,
        "not_checked": seen.unseen,
    }
    return shell.emit(document, "\n".join([*lines, "", *instructions(path, ids, tables)]))


# --- copying -----------------------------------------------------------------------------------------------


async def _foreseen(shell: Shell, on: Work, how: How, pair: Pair) -> dict[str, Any]:
    """Return what would be copied: the rows of the source, counted by their keys."""
    rows = 0
    with shell.progress().task(f"count {pair.source}") as advance:
        try:
            async for page in part_of(on.table(pair.source), how.part).scan(select=[PARTITION_KEY, ROW_KEY]):
                on.stop.check()
                rows += len(page.rows)
                advance(len(page.rows))
        except errors.TableMissing:
            raise await on.missing(pair.source) from None
    present = await rows_up_to(part_of(on.table(pair.target), how.part), 1)
    state = "is to be created" if present is None else "holds rows" if present else "is empty"
    return {
        "source": pair.source,
        "target": pair.target,
        "rows": rows,
        "target_state": state,
        "exit_code": errors.ExitCode.DONE,
        "text": [f"{pair.source} -> {pair.target}: {counted(rows, 'row')} to copy; {pair.target} {state}"],
    }


async def _copied(shell: Shell, on: Work, how: How, pair: Pair, guard: Guard) -> dict[str, Any]:
    """Copy a table and compare it with its source, unless an interrupted command has done so."""
    name = f"{pair.source}-{pair.target}"
    finished = how.folder / f"{name}.json"
    if finished.exists():
        document: dict[str, Any] = json.loads(finished.read_bytes())
        return document
    source, target = (part_of(on.table(name), how.part) for name in (pair.source, pair.target))
    if not await on.tables.table_exists(pair.source):
        raise await on.missing(pair.source)
    began_at = await holding(on.tables, pair.source).server_time()
    journal = Journal(how.folder / f"{name}.journal", began_at)
    if not await on.tables.table_exists(pair.target):
        await on.tables.create_table(pair.target)
    # Of a command that was cut off while it copied, requests may still be on their way.
    quiet_at = on.quiet_at if journal.is_continued and journal.rest else 0.0
    if how.overwrite:
        await _until(shell, on, quiet_at)
    with shell.progress().task(f"copy {pair.source}", done=journal.done.rows) as advance:
        limit = on.config.limits.concurrency
        writes = Writes(how.overwrite, limit, on.throttle, advance, on.stop.check, guard.check)
        writer = Writer(on.tables.multi_writer_table(pair.target), writes)
        async with guard:
            await copy_rows(source, writer, journal, reads=on.reads(lambda _rows: None))
    await _until(shell, on, quiet_at)
    watched = Watched(source, journal.began_at)
    kept = KeptComparison(how.folder / f"{name}.compared", journal.began_at, watched)
    document = await _verified(shell, on, (watched, target), journal, kept)
    document = {"source": pair.source, "target": pair.target, **document}
    write_whole(finished, json.dumps(document).encode())
    return document


async def _until(shell: Shell, on: Work, quiet_at: float) -> None:
    """Wait until a time of the monotonic clock, by when requests of an earlier command have taken effect, or
    never do: a late one would overwrite what was copied since, or bring a row past the comparison."""
    left = quiet_at - shell.clock.monotonic()
    with shell.progress().waiting("unanswered requests, which may still take effect", max(0.0, left)) as wait:
        if left > 0:
            wait.report()
        while (left := quiet_at - shell.clock.monotonic()) > 0:
            on.stop.check()
            await shell.clock.sleep(min(_POLL_S, left))


async def _verified(
    shell: Shell, on: Work, sides: tuple[Table, Table], journal: Journal, kept: KeptComparison
) -> dict[str, Any]:
    """Compare every row of both sides, and return what is told of the copy."""
    done, (source, target) = journal.done, sides

    def max_age_s(work: Partial) -> float:
        return on.config.gates.max_age_s(seconds_read(readings(work.reads)))

    partial = kept.left(shell.clock.ticks(), max_age_s)
    before = 0 if partial is None else rows_in(partial.reads)
    with shell.progress().task(f"verify {source.name}", total=2 * done.rows, done=before) as advance:
        report = await compare(
            source,
            target,
            reads=on.reads(advance),
            clock=shell.clock,
            keys=None,
            partial=partial,
            checkpoint=kept.keep,
        )
    code, changed = exit_code(report), counted(kept.changed, "row")
    text = [
        f"{source.name} -> {target.name}: {counted(done.rows, 'row')} copied; "
        + ("every row of both sides is equal" if code is errors.ExitCode.DONE else "the sides differ"),
        *(f"  {name:<11} {rows:,}" for name, rows in done.as_json().items()),
        f"  changed     {changed} of the source written since the copy began, {journal.began_at}",
    ]
    if partial is not None:
        text.append(f"  compared    since {report.started_at}, in more than one run")
    if kept.changed:
        text.append(f"  NOTE        {_WRITTEN}")
    if code is not errors.ExitCode.DONE:
        text += full_lines(report)
    figures = {"rows": done.rows, **done.as_json(), "changed": kept.changed, "began_at": journal.began_at}
    return {**figures, "verification": report.as_json(), "exit_code": code, "text": text}


def _finish(folder: Path, done: list[dict[str, Any]]) -> None:
    """Keep the report of a copy that ended, and forget how far it was: journals hold keys. The same command
    then copies anew."""
    write_whole(folder / _REPORT, json.dumps(done, indent=1).encode() + b"\n")
    for table in done:
        for suffix in ("journal", "compared", "json"):
            (folder / f"{table['source']}-{table['target']}.{suffix}").unlink(missing_ok=True)
