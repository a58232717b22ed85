"""`rekey stress`: at which rate a partition, and the distribution of a table or a design, saturate, with
inserts or with the application's own mix of operations. The application's tables are only read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from rekey.cli.places import no_such_table
from rekey.cli.project import open_project
from rekey.cli.shell import HTML, Shell, command, file_option, flag
from rekey.core.limits import TABLE_NAME_CURE, table_name_problem
from rekey.declaration.migration import Migration
from rekey.doctor.observed import AccountSeen, ServiceKind
from rekey.errors import ExitCode, Locked, RekeyError, TableMissing
from rekey.plan.planfile import write_output
from rekey.project.config import Config, load_config, read_toml
from rekey.runner.refusals import refusal
from rekey.state.filelock import FileLock
from rekey.stress.load import Generator, InProcess, LoadProcesses, open_loaded
from rekey.stress.mix import Mix, inserts, read_mix
from rekey.stress.report import StressReport, stress_page
from rekey.stress.run import Bounds, Notes, StressTest
from rekey.stress.shares import spread_of_rows
from rekey.stress.spread import Spread
from rekey.tables.base import TableService

_DEFAULT = Bounds()
_BATCH, _MOST_BATCH = 10, 100
_BATCH_SHOWN = f"{_BATCH}, or what the script says in load="
_MOST_SHOWN = "twice what the targets allow"


def _bound(
    name: str, kind: click.FloatRange | click.IntRange, default: float | None, text: str, shown: str = ""
) -> Callable[[Any], Any]:
    return click.option(name, type=kind, default=default, show_default=shown or True, help=text)


@command(
    "stress",
    example="rekey stress Users\nrekey stress --design 0001 --seconds 120 --rows 100000"
    "\nrekey stress Users --i-own-this-account --json"
    "\nrekey stress --mix mix.toml --seconds 900 --html stress.html",
)
@click.argument("table", metavar="[TABLE]", required=False)
@click.option(
    "--design", metavar="SCRIPT", help="Spread rows as this script would, instead of as TABLE has them."
)
@file_option("--mix", help="Send the mix of operations that this file declares, instead of inserts.")
@HTML
@flag("--exact", help="Read every row for the distribution, instead of a sample.")
@_bound("--seconds", click.FloatRange(1), _DEFAULT.seconds, "Length of the whole test, at most.")
@_bound("--rows", click.IntRange(1), _DEFAULT.rows, "Rows sent in the whole test, at most.")
@_bound("--step-seconds", click.FloatRange(1, 600), _DEFAULT.step_seconds, "How long each rate is offered.")
@_bound("--batch", click.IntRange(1, _MOST_BATCH), None, "Rows in a request.", _BATCH_SHOWN)
@_bound("--most", click.FloatRange(1), _DEFAULT.most, "Rows a second to offer at most.", _MOST_SHOWN)
@flag(
    "--i-own-this-account",
    "owned",
    help="Load an account that is not Azurite. It costs money, and slows down other users of the account.",
)
def stress(
    shell: Shell,
    table: str | None,
    design: str | None,
    mix: Path | None,
    html: Path | None,
    exact: bool,
    owned: bool,
    batch: int | None,
    **bounds: float | None,
) -> ExitCode:
    """Find the rate at which a partition, and a design, saturate.

    Makes a test table, aims at one partition, then spreads rows as TABLE or the script's targets do, ramps
    up, and tells throughput against 2,000 rows/s, latencies, refusals, and where each saturates. Rows are
    made up; nothing of the application's tables is copied or written. The test table is removed, also after
    Ctrl-C; what a killed test left is removed by the next. Exit code 1: a design carries less than its load=.

    With --mix the file gives shares of point reads, range queries, inserts, updates, deletes and batches;
    each kind is judged by itself, and partitions that take less than 2,000 entities/s are named. TABLE and
    --design are optional then.
    """
    source = table or ""
    migration: Migration | None = None
    load: Mapping[str, float] = {}
    if table is not None and design is None:
        if problem := table_name_problem(table):
            raise click.UsageError(f"{problem}; {TABLE_NAME_CURE}")
    elif design is not None and table is None:
        migration = open_project(shell).choose(design).migration
        source, load = migration.source, migration.load
    elif mix is None or table is not None:
        raise click.UsageError("give either TABLE or --design SCRIPT, or --mix FILE")
    if mix is not None and batch is not None:
        raise click.UsageError("--batch does not go with --mix: write [batch] rows in the file")
    if exact and table is None and design is None:
        raise click.UsageError("--exact goes with TABLE or --design: the file of --mix gives the partitions")
    config = load_config(shell.config.path)
    if mix is None:
        operations = inserts(batch or min(_MOST_BATCH, round(load.get("rows_per_batch", _BATCH))))
    else:
        absent = "write one: `rekey runbook stress` has an example; or name another one"
        operations = read_mix(read_toml(mix.absolute(), absent=absent), spread_given=bool(source))
        # load= of a script declares written rows, which are no rate of the mix.
        load, source = {}, source or mix.name
    if not owned:
        shell.do(_refuse_others(shell, config))
    notes = Notes(config.state)
    spreads = partial(_spreads, shell, config, source, migration, operations, exact)
    wanted = replace(_DEFAULT, **bounds)  # type: ignore[arg-type]  # click's
    try:
        # One test of a project at a time: a table that is noted as left over belongs to no running test.
        with FileLock(notes.path):
            report = shell.do(_stress(shell, config, spreads, operations, wanted, notes))
    except Locked:
        raise refusal("stress-running") from None
    report = replace(report, declared=load.get("writes_per_second"))
    document, text = report.as_json(), report.as_text()
    if html is not None:
        try:
            write_output(stress_page(report), html, option="--html")
        except RekeyError:
            shell.tell_before_error(document, text)  # it took minutes to find out
            raise
        document["page"] = str(html)
        text += f"The page is {html}.\n"
    return shell.emit(document, text, ExitCode.FINDINGS if report.too_little else ExitCode.DONE)


# Returns the distributions to try, and the number of rows that the script refuses.
_Find = Callable[[TableService], Awaitable[tuple[tuple[Spread, ...], int]]]


async def _stress(
    shell: Shell, config: Config, find: _Find, mix: Mix, bounds: Bounds, notes: Notes
) -> StressReport:
    @asynccontextmanager
    async def generators(name: str) -> AsyncIterator[Generator]:
        if mix.processes > 1:
            async with LoadProcesses(mix.processes, config.tables, name) as started:
                yield started
            return
        connect = shell.surroundings.connect  # a test's own tables, where it has some
        loaded = open_loaded(config.tables) if connect is None else shell.connect(config).tables
        try:
            yield InProcess(loaded.table(name), shell.clock)
        finally:
            await loaded.close()

    async with shell.connect(config) as accounts:
        spreads, refused = await find(accounts.tables)
        test = StressTest(
            accounts.tables,
            generators,
            mix,
            bounds,
            notes=notes,
            endpoint=config.tables.endpoint,
            clock=shell.clock,
            progress=shell.progress(),
        )
        return replace(await test.run(spreads), refused_rows=refused)


async def _spreads(
    shell: Shell,
    config: Config,
    source: str,
    migration: Migration | None,
    mix: Mix,
    exact: bool,
    tables: TableService,
) -> tuple[tuple[Spread, ...], int]:
    """Return the distributions to try, and the rows that the script refuses. `source`: a table or a file."""
    if mix.partitions is not None:
        return (Spread(source, (mix.rows // mix.partitions,) * mix.partitions),), 0
    table, progress = tables.table(source), shell.progress()
    try:
        spreads, refused = await spread_of_rows(table, migration, exact=exact, progress=progress)
    except TableMissing:
        raise await no_such_table(config, tables, source) from None
    spreads = tuple(spread for spread in spreads if spread.rows)
    if not spreads:
        raise refusal("no-distribution", table=source)
    return spreads, refused


async def _refuse_others(shell: Shell, config: Config) -> None:
    """Refuse an account that does not say it is Azurite."""
    account = config.tables
    answer = await shell.ask(account.endpoint, "Tables?$top=1", None)
    kind = AccountSeen("tables", account, answer).kind
    if kind is not ServiceKind.AZURITE:
        raise refusal("not-azurite", account=account.name, kind=kind)
