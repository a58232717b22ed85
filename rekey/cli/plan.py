"""`rekey plan`: what `apply` would do. Reads only; keys are shown only on request, and never in the plan file
or the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rekey.cli.project import open_project
from rekey.cli.shell import GROUP, HTML, SCRIPTS, Shell, command, file_option, flag
from rekey.core.spill import free_bytes
from rekey.declaration.migration import Declared
from rekey.declaration.scripts import load_script
from rekey.errors import ExitCode
from rekey.plan.compare import comparison_json, comparison_page, comparison_text
from rekey.plan.page import plan_page
from rekey.plan.plan import make_plan, plan_offline
from rekey.plan.planfile import write_output, write_plan
from rekey.plan.render import plan_text
from rekey.plan.result import Plan
from rekey.plan.subject import PlanOptions, Subject, subject_of
from rekey.project.config import Config, load_config
from rekey.protocol.opening import Prepared, open_migration
from rekey.state.store import State


@command(
    "plan",
    example="rekey plan\nrekey plan 0001 --exact --out plan.json --html plan.html\n"
    "rekey apply 0001 --plan plan.json\nrekey plan --compare by_month.py by_author.py\nrekey plan --offline",
)
@SCRIPTS
@flag("--exact", help="Read every row instead of a sample; finds every collision.")
@flag("--show-keys", help="Show old and new keys. For the operator's eyes only.")
@file_option("--out", help="Write a plan file, for `apply --plan`. It never holds keys.")
@HTML
@click.option(
    "--rate",
    metavar="N",
    type=click.IntRange(min=1),
    help="Estimate with N entities/s read and written, instead of [limits] entities_per_second.",
)
@flag("--requests", help="List the requests and the duration of each phase.")
@GROUP
@flag("--compare", help="Put the designs of two scripts side by side, on the same rows.")
@flag("--offline", help="Look at declarations alone, without asking any account; for checks before a commit.")
def plan(
    shell: Shell,
    scripts: tuple[str, ...],
    exact: bool,
    show_keys: bool,
    out: Path | None,
    html: Path | None,
    rate: int | None,
    requests: bool,
    group: str | None,
    compare: bool,
    offline: bool,
) -> ExitCode:
    """Show what `apply` would do, without writing anything.

    For each migration: what would be refused, rows and bytes, batches, duration, requests, costs, collisions,
    and advice. SCRIPT is an id, the beginning of one, or a path; without it all migrations are
    planned that are not complete. Exit code 1 when something would be refused.
    """
    if offline and (exact or show_keys or requests or compare or (out or rate) is not None):
        raise click.UsageError("--offline looks at no row: it goes with --html alone")
    if compare:
        if out is not None or show_keys or requests or group is not None:
            raise click.UsageError("--compare goes with --exact, --rate and --html alone: it is for choosing")
        return _compare(shell, scripts, html, exact=exact, rate=rate)
    project = open_project(shell)
    chosen = project.choose_pending(scripts, group)
    if not chosen:
        shows = f"`{shell.command('status')}` shows them"
        return shell.emit({"migrations": []}, f"Nothing to plan: every migration is complete. {shows}.")
    if offline:
        # Only what is on this machine: scripts, configuration, and the state file if any.
        with State.open(project.config.state, read_only=True) as state:
            subjects = [Subject.offline(script, state.migration(script.script_id)) for script in chosen]
        result = plan_offline(subjects, PlanOptions.of(project.config), shell.clock)
    else:
        result = shell.do(_make(shell, project.config, chosen, exact=exact, show_keys=show_keys, rate=rate))
    text = plan_text(result, requests=requests)
    document = result.as_json()
    if out is not None:
        write_plan(result, out)
        document["plan_file"] = str(out)
        text += f"\nThe plan is in {out}; `{shell.command(f'apply --plan {out}')}` holds to it.\n"
    if html is not None:
        write_output(plan_page(result), html, option="--html")
        document["page"] = str(html)
        text += f"\nThe page is {html}.\n"
    return shell.emit(document, text, result.exit_code)


def _compare(shell: Shell, scripts: Sequence[str], html: Path | None, **how: Any) -> ExitCode:
    """Compare the designs of two scripts, which need not be in the folder of migrations."""
    if len(scripts) != 2:
        raise click.UsageError("--compare takes two scripts")
    config = load_config(shell.config.path)
    designs = [
        load_script(Path(name)) if Path(name).is_file() else open_project(shell).choose(name)
        for name in scripts
    ]
    first, second = (design.migration.source for design in designs)
    if first != second:
        raise click.UsageError(f"the designs are of two tables: {first} and {second}")
    if designs[0].migration.where != designs[1].migration.where:
        raise click.UsageError(f"the designs are of two parts of {first}: write the same where= in both")
    result = shell.do(_make(shell, config, designs, same_source=True, **how))
    text = comparison_text(result)
    document = {**comparison_json(result), "plans": result.as_json(keys=False)["migrations"]}
    if html is not None:
        write_output(comparison_page(result), html, option="--html")
        document["page"] = str(html)
        text += f"\nThe page is {html}.\n"
    return shell.emit(document, text)


async def _make(
    shell: Shell,
    config: Config,
    chosen: Sequence[Declared],
    *,
    exact: bool,
    rate: int | None,
    show_keys: bool = False,
    same_source: bool = False,
) -> Plan:
    limits = config.rates if rate is None else replace(config.rates, entities_per_second=rate)
    options = PlanOptions.of(config, exact=exact, show_keys=show_keys, limits=limits, free_disk=free_bytes())
    async with shell.connect(config) as accounts:
        with State.open(config.state, read_only=True) as state:
            opened = [
                (open_migration(Prepared.of(config, script), accounts), script.script_id) for script in chosen
            ]
            # With the safe ids of a migration that has begun, so that plan and errors name a row alike.
            subjects = [await subject_of(each, state.migration(script_id)) for each, script_id in opened]
        clock, progress = shell.clock, shell.progress()
        return await make_plan(
            subjects, accounts.tables, options, one_reading=same_source, clock=clock, progress=progress
        )
