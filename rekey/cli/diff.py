"""`rekey diff`: compare two tables, or an export and a table, under unchanged keys. Needs a configuration,
and neither script nor state file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from rekey.backup.compare import ExportTable, compare
from rekey.backup.folder import MANIFEST, Export
from rekey.cli.backup import Work, check_name, opened, run
from rekey.cli.naming import shown_rows
from rekey.cli.shell import Shell, command, flag
from rekey.core.limits import table_name_problem
from rekey.errors import ExitCode, TableMissing
from rekey.present.text import KEYS_ARE_SHOWN, wrapped
from rekey.project.config import Config, load_config
from rekey.tables.base import Table
from rekey.verify.context import Keys
from rekey.verify.render import full_lines
from rekey.verify.report import FullReport, exit_code


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison, as it was typed."""

    # What it is called in the report.
    name: str
    typed: str
    # None: it is a table.
    export: Export | None = None

    def table(self, on: Work) -> Table:
        return on.table(self.name) if self.export is None else ExportTable(self.export, self.name)


@command(
    "diff",
    example="rekey diff Users UsersRestored\nrekey diff Users Users@targets --json"
    "\nrekey diff ./users.export Users --show-keys",
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@flag("--show-keys", help="Name rows that differ by their keys. For the operator's eyes only.")
def diff(shell: Shell, first: str, second: str, show_keys: bool) -> ExitCode:
    """Compare two tables, or an export and a table.

    A and B are names of tables, or folders of exports; a folder whose name could be a table's is written with
    its path, ./users. Every row and every property is compared under unchanged keys, by the engine of `rekey
    verify`: what differs counts when it still differs the same way a second later. Exit code 0 when all is
    equal, 1 when not. Writes nothing.
    """
    config = load_config(shell.config.path)
    sides = _sides(config, first, second)
    totals = [side.export.manifest.rows if side.export else None for side in sides]
    total = None if None in totals else sum(filter(None, totals))
    keys: Keys | None = {} if show_keys else None

    async def work(on: Work) -> FullReport:
        with shell.progress().task(f"diff {first} {second}", total=total) as advance:
            tables = [side.table(on) for side in sides]
            try:
                return await compare(*tables, reads=on.reads(advance), clock=shell.clock, keys=keys)
            except TableMissing:
                for side in sides:
                    if side.export is not None or await on.tables.table_exists(side.name):
                        continue
                    if (Path(side.name) / MANIFEST).exists():
                        problem = f"there is no table {side.name}; write ./{side.name} for the export"
                        raise click.UsageError(problem) from None
                    raise await on.missing(side.name) from None
                raise

    report = run(shell, config, work)
    text, rows = shown_rows(keys or {})
    names = [f"{side.name} is the export in {side.typed}" for side in sides if side.export]
    lines = [*wrapped(KEYS_ARE_SHOWN if keys else ""), *names, *full_lines(report)]
    document = {"first": first, "second": second, **report.as_json(), **({"keys": rows} if show_keys else {})}
    return shell.emit(document, "\n".join(lines) + text, exit_code(report))


def _sides(config: Config, first: str, second: str) -> tuple[Side, Side]:
    """Return the sides of a comparison. Raises click.UsageError, and what `opened` raises."""
    tables = {text.lower() for text in (first, second) if _is_table(text)}
    if _is_table(first) and len(tables) == 1 and _is_table(second):
        raise click.UsageError(f"{first} and {second} are one table")
    for text in (first, second):
        if _is_table(text):
            check_name(config, text)
        elif not Path(text).is_dir():
            raise click.UsageError(f"{text} is neither the name of a table nor the folder of an export")
    # No name in a report may stand for two things.
    free = (name for name in ("Export", "Export2", "Export3", "Export4") if name.lower() not in tables)
    sides = [
        Side(text, text) if _is_table(text) else Side(next(free), text, opened(lambda: config, Path(text)))
        for text in (first, second)
    ]
    return sides[0], sides[1]


def _is_table(text: str) -> bool:
    return table_name_problem(text, qualified=True) is None
