"""`rekey inspect`: what is in a table, what its keys look like, and what may become a problem. Reads neither
scripts nor state; keys are shown only on request."""

from __future__ import annotations

import click

from rekey.cli.places import no_such_table
from rekey.cli.shell import Shell, command, flag
from rekey.core.limits import TABLE_NAME_CURE, table_name_problem
from rekey.errors import ExitCode, TableMissing
from rekey.inspect.inspect import inspect_table
from rekey.inspect.render import inspection_text
from rekey.inspect.report import Inspection
from rekey.plan.advice.advise import advise
from rekey.plan.advice.facts import Facts
from rekey.plan.advice.gather import facts_of_profile
from rekey.plan.render import advice_lines
from rekey.project.config import load_config


@command("inspect", example="rekey inspect Users\nrekey inspect Users --exact --json")
@click.argument("table", metavar="TABLE")
@flag("--exact", help="Read every row instead of a sample of at most 60 requests.")
@flag("--show-keys", help="Name partitions by their keys. For the operator's eyes only.")
def inspect(shell: Shell, table: str, exact: bool, show_keys: bool) -> ExitCode:
    """Show what is in a table and what its keys look like.

    Rows and bytes, partitions and their sizes, lengths, characters and shapes of keys (e-mail addresses,
    dates, card numbers and the like), whether new rows go to one end, properties and their types, and advice
    on what may become a problem. Reads only. Advice does not change the exit code.
    """
    if problem := table_name_problem(table, qualified=True):
        raise click.UsageError(f"{problem}; {TABLE_NAME_CURE}")
    inspection, facts = inspected(shell, table, exact=exact, show_keys=show_keys)
    advice = advise(facts)
    document = {**inspection.as_json(), "advice": [item.as_json() for item in advice]}
    text = inspection_text(inspection)
    if advice:
        text += "\n" + "\n".join(advice_lines(advice, with_today=True)) + "\n"
    return shell.emit(document, text)


def inspected(
    shell: Shell, table: str, *, exact: bool = False, show_keys: bool = False
) -> tuple[Inspection, Facts]:
    """Inspect a table of the project. A table that is not there is refused (`no-such-table`)."""
    return shell.do(_inspect(shell, table, exact, show_keys))


async def _inspect(shell: Shell, table: str, exact: bool, show_keys: bool) -> tuple[Inspection, Facts]:
    config = load_config(shell.config.path)
    config.holding(table)  # raises where no account has it
    async with shell.connect(config) as accounts:
        try:
            inspection, profile = await inspect_table(
                accounts.tables.table(table), exact=exact, show_keys=show_keys, progress=shell.progress()
            )
        except TableMissing:
            raise await no_such_table(config, accounts.tables, table) from None
    return inspection, facts_of_profile(profile, inspection.inventory)
