"""`rekey stress`: at which rate a partition, and the distribution of a table or a design, saturate.

Rules kept here:

* An endpoint that does not say it is Azurite is loaded only with `--i-own-this-account`.
* The application's tables are read, never written; the test has a table of its own, which it removes.
* One stress test of a project at a time: what is noted as left over is of no test that still runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click

from rekey.cli.project import open_project
from rekey.cli.shell import Shell, command, flag, no_such_table
from rekey.core.limits import TABLE_NAME_CURE, table_name_problem
from rekey.declaration.migration import Declared
from rekey.doctor.observed import AccountSeen, Kind
from rekey.errors import ConfigurationError, ExitCode, Locked, Refused, TableMissing
from rekey.migration.opening import credential_for
from rekey.project.config import Config, load_config
from rekey.state.filelock import FileLock
from rekey.stress.load import MOST_WAITING
from rekey.stress.report import StressReport
from rekey.stress.run import Notes, spread_of_design, spread_of_table
from rekey.stress.run import stress as run
from rekey.stress.steps import Bounds
from rekey.tables.azure import AzureTableService
from rekey.tables.base import TableService
from rekey.tables.requests import RetryPolicy
from rekey.tables.transport import Timeouts

_DEFAULT = Bounds()
_MOST_BATCH = 100
_ANSWER_SECONDS = 10


def _bound(
    name: str, kind: click.FloatRange | click.IntRange, default: float, text: str
) -> Callable[[Any], Any]:
    return click.option(name, type=kind, default=default, show_default=True, help=text)


@command(
    "stress",
    example="rekey stress Users\nrekey stress --design 0001 --seconds 120 --rows 100000"
    "\nrekey stress Users --i-own-this-account --json",
)
@click.argument("table", metavar="[TABLE]", required=False)
@click.option(
    "--design", metavar="SCRIPT", help="Spread rows as this script would, instead of as TABLE has them."
)
@flag("--exact", help="Read every row for the distribution, instead of a sample.")
@_bound("--seconds", click.FloatRange(1), _DEFAULT.seconds, "Length of the whole test, at most.")
@_bound("--rows", click.IntRange(1), _DEFAULT.rows, "Rows sent in the whole test, at most.")
@_bound("--step-seconds", click.FloatRange(1, 600), _DEFAULT.step_seconds, "How long each rate is offered.")
@click.option(
    "--batch",
    type=click.IntRange(1, _MOST_BATCH),
    show_default=f"{_DEFAULT.batch}, or what the script says in load=",
    help="Rows in a request.",
)
@click.option(
    "--most",
    type=click.FloatRange(1),
    show_default="twice what the targets allow",
    help="Rows a second to offer at most.",
)
@flag(
    "--i-own-this-account",
    "owned",
    help="Load an account that is not Azurite. It costs money, and slows down other users of the account.",
)
def stress(
    shell: Shell,
    table: str | None,
    design: str | None,
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
    """
    subject: str | Declared
    load: Mapping[str, float] = {}
    if table is not None and design is None:
        problem = table_name_problem(table)
        if problem is not None:
            raise click.UsageError(f"{problem}; {TABLE_NAME_CURE}")
        subject = table
    elif design is not None and table is None:
        subject = open_project(shell).choose(design)
        load = subject.migration.load
    else:
        raise click.UsageError("give either TABLE or --design SCRIPT")
    config = load_config(shell.config_path)
    rows_together = min(_MOST_BATCH, round(load.get("rows_per_batch", _DEFAULT.batch)))
    wanted = replace(_DEFAULT, batch=batch or rows_together, **bounds)  # type: ignore[arg-type]  # click's
    if not owned:
        shell.do(_refuse_others(shell, config))
    notes = Notes(config.state)
    try:
        with FileLock(notes.path):
            report = shell.do(_stress(shell, config, subject, wanted, notes, exact))
    except Locked:
        raise Locked(
            "another stress test of this project is running",
            kept="everything: this command did nothing",
            hint="wait until it ends, or stop it with Ctrl-C: it removes its table",
        ) from None
    report = replace(report, declared=load.get("writes_per_second"))
    code = ExitCode.FINDINGS if report.too_little else ExitCode.DONE
    return shell.emit(report.as_json(), report.as_text(), code)


async def _stress(
    shell: Shell, config: Config, subject: str | Declared, bounds: Bounds, notes: Notes, exact: bool
) -> StressReport:
    """Read the distribution, and run the test."""
    progress = shell.progress()
    name = subject if isinstance(subject, str) else subject.migration.source
    async with shell.connect(config) as accounts:
        loaded, table, refused = _loaded(shell, config), accounts.tables.table(name), 0
        try:
            try:
                if isinstance(subject, str):
                    spreads = await spread_of_table(table, exact=exact, progress=progress)
                else:
                    declared = subject.migration
                    spreads, refused = await spread_of_design(table, declared, exact=exact, progress=progress)
            except TableMissing:
                raise no_such_table(name, config) from None
            spreads = tuple(spread for spread in spreads if spread.rows)
            if not spreads:
                raise ConfigurationError(
                    f"the table {name} gives no rows to take a distribution from",
                    hint="name a table with rows, or fill it with some that are like those to come",
                )
            report = await run(
                accounts.tables,
                loaded,
                spreads,
                bounds,
                notes=notes,
                endpoint=config.tables.endpoint,
                clock=shell.clock,
                progress=progress,
            )
        finally:
            await loaded.close()
    return replace(report, refused_rows=refused)


def _loaded(shell: Shell, config: Config) -> TableService:
    """Return the account as it is loaded: nothing is tried again, and many requests wait side by side."""
    if shell.surroundings.connect is not None:
        return shell.connect(config).tables
    return AzureTableService.open(
        config.tables.endpoint,
        credential_for(config.tables),
        retry=RetryPolicy(attempts=1, connect_attempts=1),
        timeouts=Timeouts(read=_ANSWER_SECONDS, service=_ANSWER_SECONDS),
        connections=MOST_WAITING,
    )


async def _refuse_others(shell: Shell, config: Config) -> None:
    """Refuse an account that does not say it is Azurite."""
    account = config.tables
    answer = await shell.ask(account.endpoint, "Tables?$top=1", None)
    kind = AccountSeen("tables", account, answer).kind
    if kind is not Kind.AZURITE:
        raise Refused(
            f"the account {account.name} does not say that it is Azurite ({kind}); a stress test costs money"
            " there and slows down its other users",
            kept="everything: nothing was read or written",
            hint="give --i-own-this-account if it is yours and is not in use now; better, use an account of"
            " its own",
        )
