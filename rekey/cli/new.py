"""`rekey new`: write the next migration script from a template, itself a valid declaration."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import click

from rekey.cli.inspect import inspected
from rekey.cli.new_kinds import kinds_of
from rekey.cli.shell import Shell, command
from rekey.core.limits import TABLE_NAME_CURE, own_name, table_name_problem
from rekey.declaration.scripts import load_scripts
from rekey.errors import DeclarationError, ExitCode, reason_of
from rekey.inspect.report import Inspection
from rekey.present.text import counted
from rekey.project.config import Config, load_config
from rekey.project.privatefiles import write_new
from rekey.runner.refusals import refusal

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
_NUMBER = re.compile(r"(\d+)_")
_DIGITS = 4


@command(
    "new",
    example="rekey new users_opaque_ids --source Users --target UsersV2\nrekey new orders --each 'Orders*'\n"
    "rekey new accounts --from-inspect AspNetUsers",
)
@click.argument("name")
@click.option("--source", metavar="TABLE", help="The source table; by default it is named after NAME.")
@click.option("--target", metavar="TABLE", help="The table to fill; by default the source's name with V2.")
@click.option("--depends", metavar="SCRIPT", multiple=True, help="A script that must be cut over first.")
@click.option(
    "--each",
    metavar="PATTERN",
    help="One script for all tables there are now with such a name, as a group; * stands for any characters.",
)
@click.option(
    "--from-inspect",
    metavar="TABLE",
    help="The source table: the script has the kinds of rows that `rekey inspect` sees in it.",
)
def new(
    shell: Shell,
    name: str,
    source: str | None,
    target: str | None,
    depends: tuple[str, ...],
    each: str | None,
    from_inspect: str | None,
) -> ExitCode:
    """Write the next migration script from a template.

    NAME is letters, digits, _ and -, and begins with a letter; the next number is put before it.
    """
    if _NAME.fullmatch(name) is None:
        form = "a letter, then letters, digits, _ and - (the number comes by itself)"
        raise click.UsageError(f"{name!r} is no name for a script: {form}")
    if each is not None and (source or target):
        raise click.UsageError("--each names sources and targets: leave --source and --target out")
    if from_inspect is not None and (source or each is not None):
        raise click.UsageError("--from-inspect names the source: leave --source and --each out")
    source = from_inspect or source
    # `user_mails` gives `UserMails`.
    words = "".join(word[:1].upper() + word[1:] for word in re.split(r"[_-]+", name))
    from_table = source or (words if len(words) > 2 else f"{words}Table")[:61]
    to_table = target or f"{own_name(from_table)[:61]}V2"
    for option, table in (("--source", from_table), ("--target", to_table)):
        if problem := table_name_problem(table, qualified=True):
            raise click.UsageError(f"{option}: {problem}; {TABLE_NAME_CURE}")
    if from_table.lower() == to_table.lower():
        raise click.UsageError("--target: a table cannot be its own target; it needs another name")
    config = load_config(shell.config.path)
    folder, parts = config.migrations, _ONE
    template = Path(__file__).with_name("new_script.txt")
    inspection = None if from_inspect is None else inspected(shell, from_inspect)[0]
    if inspection is not None and inspection.kinds:
        template, parts = template.with_name("new_kinds.txt"), _parts_of(inspection)
    if each is not None:
        tables = shell.do(_matching_tables(shell, config, each))
        from_table, listed = "these tables", "".join(f'    "{table}",\n' for table in tables)
        begin, end = f"TABLES = [\n{listed}]\n\n{_MANY['begin']}", f'    group="{name}",\n))\n'
        parts = _MANY | {"begin": begin, "end": end}
    try:
        before = sorted(path.stem for path in folder.glob("*.py") if not path.name.startswith("_"))
        needed = sorted({_resolve(depend, before) for depend in depends})
        last = max((int(match[1]) for script_id in before if (match := _NUMBER.match(script_id))), default=0)
        script_id = f"{last + 1:0{_DIGITS}}_{name}"
        path = folder / f"{script_id}.py"
        folder.mkdir(parents=True, exist_ok=True)
        listed = "{" + ", ".join(f'"{needed_id}"' for needed_id in needed) + "}" if needed else "set()"
        names = {"source": from_table, "from_table": f'"{from_table}"', "to_table": f'"{to_table}"'}
        text = template.read_text("utf-8").format(depends=listed, **{**names, **parts})
        write_new(path, text.encode("utf-8"))
    except OSError as error:
        raise refusal("new-not-written", folder=folder, reason=reason_of(error)) from None
    try:
        load_scripts(folder)
    except DeclarationError as error:
        if error.script == script_id:
            path.unlink()
            raise
        # Another script is wrong, independently of this one: `plan` reports it.
    following = shell.command(f"plan {script_id}" if each is None else f"plan --group {name}")
    kinds = [kind.name for kind in inspection.kinds] if inspection is not None else []
    seen = f"It has {counted(len(kinds), 'kind')} of rows: {', '.join(kinds)}.\n\n" if kinds else ""
    text = f"{path}\n\n{seen}Next: say in it what the keys become, then see what would happen:\n  {following}"
    document = {"script_id": script_id, "path": str(path), "next": following}
    return shell.emit(document | ({} if inspection is None else {"kinds": kinds}), text)


_ONE = {"imported": "", "begin": "migration = ", "end": ")\n"}
# Parts of the template for one table, and for several.
_MANY = {
    "imported": "for_each_table, ",
    "begin": "# A migration for each; a table that is not listed is left as it is.\n"
    "migrations = for_each_table(TABLES, lambda name: ",
    "from_table": "name",
    "to_table": 'f"{name}V2"',
}


def _parts_of(inspection: Inspection) -> dict[str, str]:
    """Return the parts of the template for a table with several kinds of rows."""
    read = counted(inspection.rows_read, "row")
    basis = f"all {read}" if inspection.exact else f"a sample of {read}"
    return {"kinds": kinds_of(inspection), "basis": basis}


async def _matching_tables(shell: Shell, config: Config, pattern: str) -> list[str]:
    async with shell.connect(config) as accounts:
        there = await accounts.tables.table_names()
    fitting = sorted(table for table in there if fnmatchcase(table.lower(), pattern.lower()))
    if not fitting:
        raise refusal("no-such-tables", pattern=pattern, tables=counted(len(there), "table"))
    return fitting


def _resolve(name: str, ids: list[str]) -> str:
    exact = [name] if name in ids else []
    matches = exact or [script_id for script_id in ids if name and script_id.startswith(name)]
    if len(matches) != 1:
        there = f"there are: {', '.join(ids)}"
        raise click.UsageError(f"--depends: {name!r} names {len(matches)} scripts; {there}")
    return matches[0]
