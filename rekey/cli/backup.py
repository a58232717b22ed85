"""`rekey export` and `rekey import`: a table as a folder of files, and back. They need a configuration, and
neither script nor state file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from rekey.backup.begun import Guard, control_rows, require_ended
from rekey.backup.erased import Unerased, erased_from, recorded_in
from rekey.backup.export import export_table
from rekey.backup.folder import Export, open_export
from rekey.backup.manifest import NOT_A_SNAPSHOT
from rekey.backup.refusals import refusal
from rekey.backup.restore import Imported, Writes, check_export, import_rows
from rekey.cli import signals
from rekey.cli.places import no_such_table
from rekey.cli.shell import FOLDER, Shell, command, flag
from rekey.copy.throttle import Throttle, listen, throttle_of
from rekey.core.limits import TABLE_NAME_CURE, own_name, table_name_problem
from rekey.core.progress import Advance
from rekey.errors import CredentialRefused, ExitCode, TableMissing
from rekey.mapping.rows import CONTROL_TABLE, MAPPING_TABLE
from rekey.mapping.sealing import WrappingKey
from rekey.present.text import counted, wrapped
from rekey.project.config import Config, load_config
from rekey.protocol.opening import open_wrapping
from rekey.runner.remaining import rows_up_to
from rekey.runner.run import StopFlag
from rekey.state.audit import erasures
from rekey.state.store import State
from rekey.tables.base import Table, TableService, holding
from rekey.verify.bucket_digests import FEW
from rekey.verify.context import RowReads

T = TypeVar("T")

_UNSEEN = (
    "NOT CHECKED {store} may not be read: whether a migration is in progress for the table, and which rows"
    " were erased, is not known"
)
IN_THE_CLEAR = "no: whoever can read the folder can read it, and nothing proves who wrote it"


@dataclass(frozen=True)
class Work:
    """The accounts of a configuration, at its rates, for a command that a signal stops."""

    config: Config
    tables: TableService
    restricted: TableService
    throttle: Throttle
    stop: StopFlag
    # From when on no request that was sent before the command began takes effect; of the monotonic clock.
    quiet_at: float

    def table(self, name: str) -> Table:
        return self.tables.table(name)

    def reads(self, advance: Advance) -> RowReads:
        """Return how tables are read."""
        return RowReads(
            concurrency=self.config.limits.concurrency,
            scans=self.config.limits.scans,
            prefetch=not self.throttle.has_rates,
            wait=self.throttle.arrived_from,
            advance=advance,
            stop=self.stop.check,
        )

    async def missing(self, name: str) -> Exception:
        """Return the error for a table that does not exist."""
        return await no_such_table(self.config, self.tables, name)


def run(shell: Shell, config: Config, work: Callable[[Work], Coroutine[Any, Any, T]]) -> T:
    """Do work that SIGINT and SIGTERM stop at a checkpoint."""
    stop = StopFlag()

    async def connected() -> T:
        async with shell.connect(config) as accounts:
            throttle = throttle_of(config, shell.clock, stopping=stop.requested)
            listen(accounts, throttle, Throttle(clock=shell.clock))
            quiet_at = shell.clock.monotonic() + config.gates.margin_s
            return await work(Work(config, accounts.tables, accounts.restricted, throttle, stop, quiet_at))

    with signals.stopping(stop, log_json=shell.options.log_json):
        return shell.do(connected())


def check_name(config: Config, table: str) -> None:
    """Raise click.UsageError or ConfigurationError for what cannot be a table of the configuration."""
    if problem := table_name_problem(table, qualified=True):
        raise click.UsageError(f"{problem}; {TABLE_NAME_CURE}")
    config.holding(table)


def opened(read_config: Callable[[], Config], folder: Path) -> Export:
    """Open an export with the wrapping key of the configuration, which is read if the export is sealed.
    Raises as `open_export` and `load_config`."""

    def wrapping() -> WrappingKey:
        config = read_config()
        if config.sealing.key is None:
            raise refusal("no-key-for-export", folder=folder, config=config.path)
        return open_wrapping(config)

    return open_export(folder, wrapping)


@command("export", example="rekey export Users users.export\nrekey export Users@targets users.export --plain")
@click.argument("table", metavar="TABLE")
@click.argument("folder", type=FOLDER)
@flag("--plain", help="Do not encrypt: keys and values stand in the files in the clear.")
def export(shell: Shell, table: str, folder: Path, plain: bool) -> ExitCode:
    """Write all rows of TABLE to files in FOLDER, encrypted.

    The key is wrapped by the wrapping key of [sealing]. FOLDER gets compressed parts, and a manifest with
    their SHA-256 and with the content digest that a full verification computes. After an interruption the
    same command continues: parts that are complete stay. Every EDM type is kept; ETag and Timestamp are not.
    A table that is written meanwhile is not exported as of one moment. Writes no table.
    """
    config = load_config(shell.config.path)
    check_name(config, table)
    if not plain and config.sealing.key is None:
        raise refusal("no-wrapping-key", config=config.path)
    wrapping = None if plain else open_wrapping(config)
    _, account = config.holding(table)

    async def work(on: Work) -> Export:
        with shell.progress().task(f"export {table}") as advance:
            try:
                return await export_table(
                    on.table(table),
                    account.endpoint,
                    folder,
                    wrapping=wrapping,
                    now=holding(on.tables, table).server_time,
                    reads=on.reads(advance),
                )
            except TableMissing:
                raise await on.missing(table) from None

    done = run(shell, config, work)
    manifest = done.manifest
    plainly = "" if done.cover.is_sealed else " --plain"
    began_at = manifest.header.began_at
    follow_up = f"import {shlex.quote(str(folder))} {own_name(table)}Restored{plainly}"
    document = {
        "table": table,
        "folder": str(folder),
        "encrypted": done.cover.is_sealed,
        "rows": manifest.rows,
        "parts": len(manifest.parts),
        "bytes": sum(part.stored for part in manifest.parts),
        "changed": manifest.changed,
        "snapshot": False,
        "began_at": began_at,
        "ended_at": manifest.ended_at,
        "digest": _shown_digest(done),
    }
    text = [
        f"{table}: {counted(manifest.rows, 'row')} in {counted(len(manifest.parts), 'part')}, {folder}",
        f"  encrypted   {f'to the wrapping key {wrapping.name}' if wrapping else IN_THE_CLEAR}",
        f"  digest      {document['digest'] or 'not shown: it could be guessed from so few rows'}",
        f"  changed     {counted(manifest.changed, 'row')} read with a Timestamp since it began, {began_at}",
        *wrapped(NOT_A_SNAPSHOT, first="  "),
        f"  next        {shell.command(follow_up)}",
    ]
    return shell.emit(document, "\n".join(text))


async def _unerased(on: Work, export: Export, table: str) -> Unerased:
    """Return which rows of an export may be written to a table.

    Raises:
        Refused: the table is the source or a target of a migration in progress.
        SealedUnreadable: a tombstone in the mapping is not by rekey.
        Moved, SecretMissing: rows were erased, and the wrapping key of the mapping is not there.
        CredentialRefused: the restricted store may not be read.
    """
    _, account = on.config.holding(table)
    name, header = own_name(table), export.manifest.header
    controls = await control_rows(on.restricted.table(CONTROL_TABLE))
    require_ended(controls, name, account.endpoint)
    # The keys of the export are those of its table, wherever they are written to.
    places = (name, account.endpoint), (own_name(header.table), header.account)
    return Unerased(
        await erased_from(
            on.restricted.table(MAPPING_TABLE),
            controls,
            places,
            wrapping=partial(open_wrapping, on.config),
            recorded=partial(_recorded, on.config),
        )
    )


def _recorded(config: Config, script_id: str) -> frozenset[str]:
    """Return the safe ids of the rows that the project's audit log, if it is here, says were erased."""
    if not config.state.exists():
        return frozenset()
    with State.open(config.state, read_only=True) as state:
        return recorded_in(erasures(state.audit_events(script_id)))


def _shown_digest(export: Export) -> str:
    """Return the content digest; "" where keys are sealed and few rows would let it be guessed."""
    is_guessable = export.cover.is_sealed and export.manifest.rows < FEW
    return "" if is_guessable else export.manifest.digest


@command(
    "import", example="rekey import users.export UsersRestored\nrekey import users.export Users --replace"
)
@click.argument("folder", type=FOLDER)
@click.argument("table", metavar="TABLE")
@flag("--plain", help="Take an export in the clear, of which nothing proves who wrote it.")
@flag("--replace", help="Overwrite rows whose content differs from the export.")
@flag("--only-empty", help="Refuse unless the table has no row.")
def import_(shell: Shell, folder: Path, table: str, plain: bool, replace: bool, only_empty: bool) -> ExitCode:
    """Write the rows of the export in FOLDER to TABLE.

    Manifest and all parts are checked before the first row is written. TABLE is created if it does not exist.
    Rows that are absent are inserted; rows that are there are left as they are, and those that differ are
    counted: then the exit code is 1. Rows of TABLE that are not in the export stay. The same command
    continues after an interruption.
    """
    config = load_config(shell.config.path)
    check_name(config, table)
    export = opened(lambda: config, folder)
    if not (plain or export.cover.is_sealed):
        raise refusal("export-in-the-clear", folder=folder)
    rows = export.manifest.rows

    unseen: list[str] = []

    async def work(on: Work) -> tuple[Imported, int]:
        stores = [on.restricted.table(CONTROL_TABLE)]
        try:
            unerased = await _unerased(on, export, table)
        except CredentialRefused:
            unerased, stores = Unerased(()), []
            unseen.append(config.restricted.endpoint)
        with shell.progress().task(f"check {folder.name}", total=rows) as advance:
            await check_export(export, advance, on.stop.check)
        present = await rows_up_to(on.table(table), 1)
        if present is None:
            await on.tables.create_table(table)
        elif present and only_empty:
            raise refusal("table-holds-rows", table=table)
        guard = Guard(stores, own_name(table), config.holding(table)[1].endpoint, shell.clock)
        with shell.progress().task(f"import {table}", total=rows) as advance:
            limit = config.limits.concurrency
            writes = Writes(replace, limit, on.throttle, advance, on.stop.check, guard.check)
            target = on.tables.multi_writer_table(table)
            async with guard:
                done = await import_rows(export, target, writes, takes=unerased.takes)
        return done, unerased.erased

    done, erased = run(shell, config, work)
    document = {"folder": str(folder), "table": table, "rows": rows, **done.as_json(), "erased": erased}
    document["not_checked"] = unseen
    text = [
        f"{table}: {counted(rows, 'row')} of {folder}, exported at {export.manifest.header.began_at}",
        *([] if export.cover.is_sealed else [f"  encrypted   {IN_THE_CLEAR}"]),
        f"  inserted    {done.inserted:,}",
        f"  unchanged   {done.unchanged:,}",
        f"  replaced    {done.replaced:,}",
        f"  differing   {done.differing:,}",
        *([f"  erased      {erased:,}, not written: they were erased after the export"] if erased else []),
        *(line for store in unseen for line in wrapped(_UNSEEN.format(store=store), first="  ")),
    ]
    if done.differing:
        shell.tell_before_error(document, "\n".join(text))
        differing = counted(done.differing, "row")
        raise refusal("rows-differ", rows=differing, table=table, folder=folder, inserted=done.inserted)
    return shell.emit(document, "\n".join(text))
