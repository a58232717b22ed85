"""`rekey verify`: compare source and targets; `--repair` fixes what differs. Exit code 1 when anything
differed, also when it was repaired: the next run proves that."""

from __future__ import annotations

import secrets

import click

from rekey.cli.naming import check_reason, reason_option, record_look_up, shown_rows
from rekey.cli.project import open_project, open_session
from rekey.cli.shell import EXECUTOR, SCRIPT, Shell, command, flag
from rekey.errors import ExitCode
from rekey.phases import Phase
from rekey.runner import commands
from rekey.runner.run import Options
from rekey.verify.context import Keys
from rekey.verify.render import render
from rekey.verify.report import exit_code

SAMPLE_ROWS = 3000


@command(
    "verify",
    example="rekey verify 0001\nrekey verify 0001 --mode sample --rows 3000\nrekey verify 0001 --repair"
    '\nrekey verify 0001 --show-keys --reason "ticket 4711"',
)
@SCRIPT
@click.option(
    "--mode",
    type=click.Choice(["count", "sample", "full"]),
    default="full",
    show_default=True,
    help="Compare counts; random rows, or everything where that takes fewer requests; or every row and"
    " every property.",
)
@flag("--repair", help="Rewrite rows that differ from the authority's.")
@click.option(
    "--rows",
    type=click.IntRange(1, 100_000),
    help=f"How many rows a sample draws from each table.  [default: {SAMPLE_ROWS}]",
)
@click.option(
    "--seed",
    type=int,
    help="Draw the sample that an earlier report names by this seed, even if it takes more requests.",
)
@flag("--show-keys", help="Show the keys of rows that differ; recorded, like a look-up, with --reason.")
@reason_option("--reason", "Why keys are shown, or a repair may delete all rows; recorded. No name, no key.")
@EXECUTOR
def verify(
    shell: Shell,
    script: str | None,
    mode: str,
    repair: bool,
    rows: int | None,
    seed: int | None,
    show_keys: bool,
    reason: str | None,
    executor: str | None,
) -> ExitCode:
    """Compare the source of a migration with its targets.

    Exit code 0 when all is equal, 1 with findings. A full verification opens the gate before cutover; one
    with findings closes it.
    """
    if repair and mode != "full":
        raise click.UsageError("--repair goes with --mode full: only that looks at every row")
    if (show_keys and reason is None) or (reason is not None and not (show_keys or repair)):
        raise click.UsageError("--show-keys and --reason go together: that keys are shown is recorded")
    if show_keys and mode == "count":
        raise click.UsageError("--show-keys goes with --mode full or sample: a count looks at no single row")
    if executor and mode != "full":
        raise click.UsageError("--executor goes with --mode full: only that has workers")
    if mode != "sample" and (seed is not None or rows is not None):
        raise click.UsageError("--rows and --seed go with --mode sample")
    project = open_project(shell)
    declared = project.the_one(script, Phase.DUAL_WRITE, Phase.CUTOVER)
    keys: Keys | None = {} if show_keys else None
    drawn_by = secrets.randbits(32) if seed is None else seed
    draw = commands.Draw(rows or SAMPLE_ROWS, drawn_by, always=seed is not None)
    with open_session(
        shell, project, Options(executor=executor or "", reason=(reason or "") if repair else "")
    ) as session:
        report = commands.verify(
            session, declared.script_id, mode=commands.Mode(mode), repair=repair, draw=draw, keys=keys
        )
        document = {"script_id": declared.script_id, **report.as_json()}
        shown = render(report, declared.script_id, keeps_removed=project.config.gates.retention_s > 0)
        text = f"{declared.script_id}\n{shell.typed_here(shown)}"
        if keys:
            # What was found is reported also if its keys may not be shown. Showing them is recorded first, as
            # a look-up is.
            shell.tell_before_error(document, text)
            check_reason(reason or "", [key for _, key in keys.values()])
            details = {"by": "verify", "rows": sorted(keys), "found": True, "reason": reason}
            record_look_up(session.state, declared.script_id, details, most=project.config.lookup.per_minute)
            text, document["keys"] = shown_rows(keys)
    return shell.emit(document, text, exit_code(report))
