"""`rekey stress`: at which rate a partition, and the distribution of a table or a design, saturate.

Rules kept here:

* An endpoint that does not say it is Azurite is loaded only with `--i-own-this-account`.
* The application's tables are read, never written; the test has a table of its own, which it removes.
* One stress test of a project at a time: what is noted as left over is of no test that still runs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rekey.cli.project import no_such_table, open_project
from rekey.cli.shell import Shell, command
from rekey.core.limits import TABLE_NAME_CURE, table_name_problem
from rekey.errors import ConfigurationError, ExitCode, Locked, Refused, TableMissing
from rekey.stress.steps import Bounds

if TYPE_CHECKING:
    from rekey.declaration.migration import Declared
    from rekey.project.config import Config
    from rekey.stress.report import StressReport
    from rekey.stress.run import Notes
    from rekey.tables.base import TableService

_DEFAULT = Bounds()
_MOST_BATCH = 100
_ANSWER_SECONDS = 10


@command(
    "stress",
    example="rekey stress Users\nrekey stress --design 0001 --seconds 120 --rows 100000"
    "\nrekey stress Users --i-own-this-account --json",
)
@click.argument("table", metavar="[TABLE]", required=False)
@click.option(
    "--design", metavar="SCRIPT", help="Spread rows as this script would, instead of as TABLE has them."
)
@click.option("--exact", is_flag=True, help="Read every row for the distribution, instead of a sample.")
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=_DEFAULT.seconds,
    show_default=True,
    help="Length of the whole test, at most.",
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=_DEFAULT.rows,
    show_default=True,
    help="Rows sent in the whole test, at most.",
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(1, 600),
    default=_DEFAULT.step_seconds,
    show_default=True,
    help="How long each rate is offered.",
)
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
@click.option(
    "--i-own-this-account",
    "owned",
    is_flag=True,
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
    from rekey.project.config import load_config
    from rekey.state.filelock import FileLock
    from rekey.stress.run import Notes

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
    notes = Notes(config.state)
    try:
        with FileLock(notes.path):
            report = shell.do(_stress(shell, config, subject, wanted, notes, exact, owned))
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
    shell: Shell,
    config: Config,
    subject: str | Declared,
    bounds: Bounds,
    notes: Notes,
    exact: bool,
    owned: bool,
) -> StressReport:
    """Look what answers, read the distribution, and run the test."""
    from rekey.stress.run import spread_of_design, spread_of_table
    from rekey.stress.run import stress as run

    if not owned:
        await _refuse_others(shell, config)
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
    from rekey.migration.opening import credential_for
    from rekey.stress.load import MOST_WAITING
    from rekey.tables.azure import AzureTableService
    from rekey.tables.requests import RetryPolicy
    from rekey.tables.transport import Timeouts

    return AzureTableService.open(
        config.tables.endpoint,
        credential_for(config.tables),
        retry=RetryPolicy(attempts=1, connect_attempts=1),
        timeouts=Timeouts(read=_ANSWER_SECONDS, service=_ANSWER_SECONDS),
        connections=MOST_WAITING,
    )


async def _refuse_others(shell: Shell, config: Config) -> None:
    """Refuse an account that does not say it is Azurite."""
    from rekey.doctor.observed import AccountSeen, Kind
    from rekey.tables.probe import ask

    account = config.tables
    asking = shell.surroundings.ask or functools.partial(ask, clock=shell.clock)
    answer = await asking(account.endpoint, "Tables?$top=1", None)
    kind = AccountSeen("tables", account, answer).kind
    if kind is not Kind.AZURITE:
        raise Refused(
            f"the account {account.name} does not say that it is Azurite ({kind}); a stress test costs money"
            " there and slows down its other users",
            kept="everything: nothing was read or written",
            hint="give --i-own-this-account if it is yours and is not in use now; better, use an account of"
            " its own",
        )
