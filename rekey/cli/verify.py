"""`rekey verify`: compare source and targets; `--repair` mends what differs.

Rules kept here:

* Exit code 1 when anything differed, also when it was repaired just now: the next run proves that it was.
"""

from __future__ import annotations

import secrets

import click

from rekey.cli.project import open_project, open_session
from rekey.cli.shell import EXECUTOR, Shell, command, flag
from rekey.errors import ExitCode
from rekey.phases import Phase
from rekey.runner import commands
from rekey.runner.run import Options
from rekey.verify.render import render
from rekey.verify.report import exit_code

SAMPLE_ROWS = 3000


@command(
    "verify",
    example="rekey verify 0001\nrekey verify 0001 --mode sample --rows 3000\nrekey verify 0001 --repair",
)
@click.argument("script", required=False)
@click.option(
    "--mode",
    type=click.Choice(["count", "sample", "full"]),
    default="full",
    show_default=True,
    help="Compare counts; random rows; or every row and every property.",
)
@flag("--repair", help="Rewrite rows that differ from the authority's.")
@click.option(
    "--rows",
    type=click.IntRange(1, 100_000),
    help=f"How many rows a sample draws from each table.  [default: {SAMPLE_ROWS}]",
)
@click.option("--seed", type=int, help="Seed of the sample, as an earlier report names it.")
@EXECUTOR
def verify(
    shell: Shell,
    script: str | None,
    mode: str,
    repair: bool,
    rows: int | None,
    seed: int | None,
    executor: str | None,
) -> ExitCode:
    """Compare the source of a migration with its targets.

    Exit code 0 when all is equal, 1 with findings. A full verification opens the gate before cutover; one
    with findings closes it.
    """
    if repair and mode != "full":
        raise click.UsageError("--repair goes with --mode full: only that looks at every row")
    if executor and mode != "full":
        raise click.UsageError("--executor goes with --mode full: only that has workers")
    if mode != "sample" and (seed is not None or rows is not None):
        raise click.UsageError("--rows and --seed go with --mode sample")
    project = open_project(shell)
    declared = project.the_one(
        script, lambda applied: Phase.DUAL_WRITE in applied and Phase.CUTOVER not in applied
    )
    with open_session(shell, project, Options(executor=executor or "")) as session:
        report = commands.verify(
            session,
            declared.script_id,
            mode=commands.Mode(mode),
            repair=repair,
            rows=rows or SAMPLE_ROWS,
            seed=secrets.randbits(32) if seed is None else seed,
        )
    document = {"script_id": declared.script_id, **report.as_json()}
    text = shell.typed_here(render(report, declared.script_id))
    return shell.emit(document, f"{declared.script_id}\n{text}", exit_code(report))
