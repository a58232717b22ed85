"""`rekey plan`: what `apply` would do.

Rules kept here:

* It reads only: no lock, no lease, no table and no state is written. The plan file and the page, when asked
  for, are all.
* Of a migration that was begun it uses the safe ids, so that a plan and an error name a row alike.
* Keys are shown only when asked for, and never written to the plan file or the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rekey.cli.project import Project, open_project
from rekey.cli.shell import Shell, command
from rekey.errors import ExitCode
from rekey.phases import Phase

if TYPE_CHECKING:
    from rekey.declaration.migration import Declared
    from rekey.plan.result import Plan
    from rekey.project.config import Config


@command(
    "plan",
    example="rekey plan\nrekey plan 0001 --exact --out plan.json --html plan.html\n"
    "rekey apply 0001 --plan plan.json\nrekey plan --compare by_month.py by_author.py",
)
@click.argument("scripts", nargs=-1, metavar="[SCRIPT]...")
@click.option("--exact", is_flag=True, help="Read every row instead of a sample; finds every collision.")
@click.option("--show-keys", is_flag=True, help="Show old and new keys. For the operator's eyes only.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a plan file, for `apply --plan`. It never holds keys.",
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page with plots that loads nothing. It never holds keys.",
)
@click.option(
    "--rate",
    metavar="N",
    type=click.IntRange(min=1),
    help="Reckon with N entities/s read and written, in place of [limits] entities_per_second.",
)
@click.option(
    "--compare", is_flag=True, help="Put the designs of two scripts side by side, on the same rows."
)
def plan(
    shell: Shell,
    scripts: tuple[str, ...],
    exact: bool,
    show_keys: bool,
    out: Path | None,
    html: Path | None,
    rate: int | None,
    compare: bool,
) -> ExitCode:
    """Show what applying the scripts would do; writes nothing.

    For each migration: rows and bytes, example rows, collisions, batches, requests, durations, money, and
    what will be refused. A SCRIPT is an id, a beginning of it, or a path; without one all migrations are
    planned that are not complete. Exit code 1 when something would be refused.
    """
    from rekey.plan.as_json import plan_json
    from rekey.plan.page import plan_page
    from rekey.plan.planfile import write_output, write_plan
    from rekey.plan.render import plan_text

    how = _How(exact, show_keys, rate)
    if compare:
        return _compare(shell, scripts, how, out=out, html=html)
    project = open_project(shell)
    chosen = project.choose_all(scripts) if scripts else _unfinished(project)
    if not chosen:
        shell.emit(
            {"exit_code": int(ExitCode.DONE), "migrations": []},
            f"Nothing to plan: every migration is complete. `{shell.command('status')}` shows them.",
        )
        return ExitCode.DONE
    made = asyncio.run(_make(shell, project.config, chosen, how))
    text = plan_text(made)
    document = plan_json(made)
    if out is not None:
        write_plan(made, out)
        document["plan_file"] = str(out)
        text += f"\nThe plan is in {out}; `{shell.command(f'apply --plan {out}')}` holds to it.\n"
    if html is not None:
        write_output(plan_page(made), html, option="--html")
        document["page"] = str(html)
        text += f"\nThe page is {html}.\n"
    shell.emit(document, text)
    return made.exit_code


@dataclass(frozen=True)
class _How:
    """How to plan, as typed."""

    exact: bool
    show_keys: bool
    rate: int | None


def _compare(
    shell: Shell, scripts: Sequence[str], how: _How, *, out: Path | None, html: Path | None
) -> ExitCode:
    """Put two designs side by side. They need not lie in the folder of migrations."""
    from rekey.plan.compare import comparison_json, comparison_page, comparison_text
    from rekey.plan.planfile import write_output
    from rekey.project.config import load_config

    if len(scripts) != 2:
        raise click.UsageError("--compare takes two scripts")
    if out is not None or how.show_keys:
        raise click.UsageError("--compare goes with neither --out nor --show-keys: it is for choosing")
    config = load_config(shell.config_path)
    designs = [_design(shell, name) for name in scripts]
    first, second = (one.migration.source for one in designs)
    if first != second:
        raise click.UsageError(f"the designs are of two tables: {first} and {second}")
    made = asyncio.run(_make(shell, config, designs, how, together=True))
    text = comparison_text(made)
    document = {"exit_code": int(ExitCode.DONE), **comparison_json(made), "plans": _plans_json(made)}
    if html is not None:
        write_output(comparison_page(made), html, option="--html")
        document["page"] = str(html)
        text += f"\nThe page is {html}.\n"
    shell.emit(document, text)
    return ExitCode.DONE


def _design(shell: Shell, name: str) -> Declared:
    from rekey.declaration.scripts import load_script

    path = Path(name)
    return load_script(path) if path.is_file() else open_project(shell).choose(name)


def _plans_json(made: Plan) -> list[dict[str, Any]]:
    from rekey.plan.as_json import plan_json

    migrations: list[dict[str, Any]] = plan_json(made, keys=False)["migrations"]
    return migrations


def _unfinished(project: Project) -> list[Declared]:
    applied = project.applied()
    return [one for script_id, one in project.scripts.items() if Phase.COMPLETE not in applied[script_id]]


async def _make(
    shell: Shell, config: Config, chosen: Sequence[Declared], how: _How, *, together: bool = False
) -> Plan:
    from rekey.migration.opening import Prepared, open_migration
    from rekey.plan.advice.service import is_cosmos
    from rekey.plan.plan import compare_designs, make_plan
    from rekey.plan.subject import PlanOptions, subject_of
    from rekey.state.store import State

    limits = config.rates
    if how.rate is not None:
        limits = replace(limits, entities_per_second=how.rate)
    options = PlanOptions(
        exact=how.exact,
        show_keys=how.show_keys,
        limits=limits,
        is_cosmos=is_cosmos(config.tables.endpoint),
        gates=config.gates,
        prices=config.prices,
    )
    accounts = shell.connect(config)
    try:
        with State.open(config.state, read_only=True) as state:
            opened = [open_migration(Prepared.of(config, one), accounts) for one in chosen]
            subjects = [await subject_of(one, state.migration(one.declared.script_id)) for one in opened]
        work = compare_designs if together else make_plan
        return await work(subjects, accounts.tables, options, clock=shell.clock, progress=shell.progress())
    finally:
        await accounts.close()
