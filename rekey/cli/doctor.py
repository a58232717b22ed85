"""`rekey doctor`: what can be checked before a migration, with the remedy for each finding.

Rules kept here:

* What is wrong is a finding, not a failure: the exit code is 0 or 1 once the configuration can be read.
* Nothing is written that is not removed again; with `--read-only` nothing is written.
"""

from __future__ import annotations

import functools

import click

from rekey.cli.shell import Shell, command
from rekey.errors import ExitCode


@command("doctor", example="rekey doctor\nrekey doctor --strict --json\nrekey doctor --read-only")
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings, too.")
@click.option(
    "--read-only",
    is_flag=True,
    help="Write nothing; do not try whether the restricted account takes writes.",
)
def doctor(shell: Shell, strict: bool, read_only: bool) -> ExitCode:
    """Check accounts, clock, versions, files and restricted store.

    Each finding says what was seen, why it matters and what to do. Writes one row to the restricted account
    and removes it. The exit code is 1 when there is an error.
    """
    from rekey.doctor.judge import examine
    from rekey.doctor.observe import observe
    from rekey.project.config import load_config
    from rekey.tables.probe import ask

    config = load_config(shell.config_path)
    asking = shell.surroundings.ask or functools.partial(ask, clock=shell.clock)
    observed = shell.do(observe(config, connect=shell.connect, ask=asking, writes=not read_only))
    report = examine(observed)
    code = ExitCode.FINDINGS if report.fails(strict=strict) else ExitCode.DONE
    return shell.emit({"strict": strict, **report.as_json()}, report.as_text(), code)
