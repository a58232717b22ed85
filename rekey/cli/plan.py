"""`rekey plan`: what `apply` would do.

Rules kept here:

* It reads only: no lock, no lease, no table and no state is written. The plan file, when asked for, is all.
* Of a migration that was begun it uses the safe ids, so that a plan and an error name a row alike.
* Keys are shown only when asked for, and never written to the plan file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rekey.cli.project import Project, open_project
from rekey.cli.shell import Shell, command
from rekey.cli.subjects import subject_of
from rekey.errors import ExitCode
from rekey.phases import Phase

if TYPE_CHECKING:
    from rekey.declaration import Declared
    from rekey.planner.result import Plan


@command(
    "plan", example="rekey plan\nrekey plan 0001 --exact --out plan.json\nrekey apply 0001 --plan plan.json"
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
def plan(shell: Shell, scripts: tuple[str, ...], exact: bool, show_keys: bool, out: Path | None) -> ExitCode:
    """Show what applying the scripts would do; writes nothing.

    For each migration: rows and bytes, example rows, collisions, batches, requests, durations, and what will
    be refused. A SCRIPT is an id, a beginning of it, or a path; without one all migrations are planned that
    are not complete. Exit code 1 when something would be refused.
    """
    from rekey.planner.as_json import plan_json
    from rekey.planner.planfile import write_plan
    from rekey.planner.render import plan_text

    project = open_project(shell)
    chosen = project.choose_all(scripts) if scripts else _unfinished(project)
    if not chosen:
        shell.emit(
            {"exit_code": int(ExitCode.DONE), "migrations": []},
            f"Nothing to plan: every migration is complete. `{shell.command('status')}` shows them.",
        )
        return ExitCode.DONE
    made = asyncio.run(_make(shell, project, chosen, exact, show_keys))
    text = plan_text(made)
    document = plan_json(made)
    if out is not None:
        write_plan(made, out)
        document["plan_file"] = str(out)
        text += f"\nThe plan is in {out}; `{shell.command(f'apply --plan {out}')}` holds to it.\n"
    shell.emit(document, text)
    return made.exit_code


def _unfinished(project: Project) -> list[Declared]:
    applied = project.applied()
    return [one for script_id, one in project.scripts.items() if Phase.COMPLETE not in applied[script_id]]


async def _make(
    shell: Shell, project: Project, chosen: Sequence[Declared], exact: bool, show_keys: bool
) -> Plan:
    from rekey.advice.service import is_cosmos
    from rekey.planner.plan import make_plan
    from rekey.planner.subject import PlanOptions
    from rekey.state.store import State

    config = project.config
    options = PlanOptions(
        exact=exact,
        show_keys=show_keys,
        limits=config.rates,
        is_cosmos=is_cosmos(config.tables.endpoint),
        gates=config.gates,
        prices=config.prices,
    )
    accounts = shell.connect(config)
    try:
        with State.open(config.state, read_only=True) as state:
            subjects = [await subject_of(config, declared, accounts, state) for declared in chosen]
        return await make_plan(
            subjects, accounts.tables, options, clock=shell.clock, progress=shell.progress()
        )
    finally:
        await accounts.close()
