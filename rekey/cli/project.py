"""The project a command works on: configuration, scripts, and the choice of scripts by name.

Rules kept here:

* A script is named by its id, a beginning of it that fits no other, or the path of its file.
* A migration that has begun is known without its file, too: its script was kept in the state file then.
* Where the name may be left out, a script is chosen only when it is the only one that can be meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rekey.cli import signals
from rekey.declaration.scripts import file_of, load_script, load_scripts
from rekey.errors import ConfigurationError, DeclarationError, Refused, StateUnusable
from rekey.phases import Phase
from rekey.project.config import load_config
from rekey.state.applied import applied_phases
from rekey.state.store import State

if TYPE_CHECKING:
    from rekey.cli.shell import Shell
    from rekey.declaration.migration import Declared
    from rekey.project.config import Config
    from rekey.runner.run import Options
    from rekey.runner.session import Session
    from rekey.state.models import MigrationRecord
    from rekey.status.judge import Status


@dataclass(frozen=True, slots=True)
class Project:
    """A configuration and all its scripts, by id, dependencies first.

    Attributes:
        lost: migrations that have begun, whose file is gone and of which no script was kept.
    """

    config: Config
    scripts: dict[str, Declared]
    lost: Sequence[MigrationRecord] = ()

    def choose(self, name: str) -> Declared:
        """Return the script of a name; one whose file is there comes before one whose file is gone.

        Raises:
            click.UsageError: none fits, or several.
            Refused: it is that of a migration in `lost`.
        """
        if name in self.scripts:
            return self.scripts[name]
        if name.endswith(".py") or os.sep in name:
            path = Path(name).resolve()
            found = [one for one in self.scripts.values() if one.path.resolve() == path]
            if not found:
                self._refuse_lost(path.stem)
                raise click.UsageError(f"{name} is no script of {self.config.migrations}")
            if len(found) > 1:
                raise click.UsageError(f"{name} makes several migrations: {_listed(found)}")
            return found[0]
        fitting = [one for script_id, one in self.scripts.items() if script_id.startswith(name)]
        found = [one for one in fitting if not one.is_kept] or fitting
        if not found:
            self._refuse_lost(name)
        if len(found) != 1 or not name:
            what = f"{name!r} fits more than one script" if found else f"there is no script {name!r}"
            raise click.UsageError(f"{what}; there are: {_listed(found or self.scripts.values())}")
        return found[0]

    def _refuse_lost(self, name: str) -> None:
        """Raise Refused when a migration that has begun, and whose script is lost, has a name."""
        for one in self.lost:
            if name and one.script_id.startswith(name):
                raise Refused(
                    f"{one.script_id} was begun at {one.registered_at}, and its script is not in"
                    f" {self.config.migrations}",
                    kept="Nothing was changed.",
                    hint=f"put {one.script_id}.py back there, as it was, from version control: the version of"
                    " rekey that began it kept no script",
                )

    def choose_all(self, names: Sequence[str]) -> list[Declared]:
        """Return the scripts of these names, in the order in which they are applied; see `choose`."""
        wanted = {self.choose(name).script_id for name in names}
        return [one for script_id, one in self.scripts.items() if script_id in wanted]

    def choose_group(self, name: str, *given: str | None) -> list[Declared]:
        """Return the scripts of a group, in the order in which they are applied.

        Args:
            name: the group.
            given: scripts that were named next to it.

        Raises:
            click.UsageError: there is no such group, or a script was named as well.
        """
        found = [one for one in self.scripts.values() if one.migration.group == name and name]
        if any(given):
            raise click.UsageError("give SCRIPT or --group, not both")
        if not found:
            groups = sorted({one.migration.group for one in self.scripts.values()} - {""})
            there = f"there are: {', '.join(groups)}" if groups else 'no script says group="…"'
            raise click.UsageError(f"no script is of the group {name!r}; {there}")
        return found

    def the_one(self, name: str | None, candidate: Callable[[Sequence[Phase]], bool]) -> Declared:
        """Return the named script; without a name the only script, or the only candidate.

        Args:
            name: as given, None when it was left out.
            candidate: tells from the applied phases whether the command can mean such a script.

        Raises:
            click.UsageError: no script fits the name, or several; without a name, no candidate, or several.
        """
        if name is not None:
            return self.choose(name)
        if len(self.scripts) == 1:
            return next(iter(self.scripts.values()))
        applied = self.applied()
        if not self.scripts:
            self._refuse_lost(self.lost[0].script_id)
        found = [one for script_id, one in self.scripts.items() if candidate(applied[script_id])]
        if len(found) == 1:
            return found[0]
        raise click.UsageError(f"say which script: {_listed(found or self.scripts.values())}")

    def unfinished(self) -> list[Declared]:
        """Return the scripts that are not complete, in the order in which they are applied.

        Raises:
            Refused: a migration in `lost` is not complete.
        """
        applied = self.applied()
        for one in self.lost:
            if Phase.COMPLETE not in applied[one.script_id]:
                self._refuse_lost(one.script_id)
        return [one for script_id, one in self.scripts.items() if Phase.COMPLETE not in applied[script_id]]

    def applied(self) -> dict[str, list[Phase]]:
        """Return the applied phases of every script, as the state file has them now. Changes nothing."""
        with State.open(self.config.state, read_only=True) as state:
            ids = state.ledger_ids()
        known = [*self.scripts, *(one.script_id for one in self.lost)]
        return {script_id: applied_phases(ids, script_id) for script_id in known}


def _listed(scripts: Iterable[Declared]) -> str:
    return ", ".join(one.script_id for one in scripts)


def open_project(shell: Shell) -> Project:
    """Read configuration and scripts; warnings about the configuration go to standard error.

    Raises:
        ConfigurationError: see `load_config`; or there is no script.
        DeclarationError: a script is wrong.
    """
    config = load_config(shell.config_path)
    for doubt in config.warnings():
        shell.note(f"warning: {doubt}", "warning")
    kept, lost = _without_files(config)
    scripts = {one.script_id: one for one in load_scripts(config.migrations, kept)}
    if not scripts and not lost:
        what = f"there is no migration script in {config.migrations}"
        raise ConfigurationError(what, hint=f"`{shell.command('new NAME')}` makes one")
    return Project(config, scripts, lost)


def _without_files(config: Config) -> tuple[list[Declared], list[MigrationRecord]]:
    """Return the migrations that have begun and whose files are gone: their scripts as kept, and the records
    of those of which none was kept, or none that can still be read."""
    try:
        with State.open(config.state, read_only=True) as state:
            paths = [(one, config.migrations / f"{one.script_id}.py") for one in state.migrations()]
            gone = [(record, path) for record, path in paths if not path.exists() and not _is_made(path)]
            contents = {one.run_id: one.content for one in state.kept_scripts()} if gone else {}
    except StateUnusable:
        return [], []  # what needs the state file says what is wrong with it
    kept, lost = [], []
    for record, path in gone:
        with suppress(DeclarationError, KeyError):
            declared = load_script(path, contents[record.run_id])
            if declared.digest == record.digest:
                kept.append(declared)
                continue
        lost.append(record)
    return kept, lost


def _is_made(path: Path) -> bool:
    """Tell whether a file of another name makes this migration, one of several."""
    with suppress(DeclarationError):
        return file_of(path) != path and bool(load_script(path))
    return False


@contextmanager
def open_session(shell: Shell, project: Project, options: Options | None = None) -> Iterator[Session]:
    """Open a session that SIGINT and SIGTERM stop at a checkpoint."""
    from rekey.runner.run import Options, StopFlag
    from rekey.runner.session import Session

    stop = StopFlag()
    with (
        signals.stopping(stop, log_json=shell.log_json),
        Session(
            project.config,
            project.scripts,
            options=options or Options(),
            progress=shell.progress(),
            stop=stop,
            connect_to=shell.connect,
            clock=shell.clock,
        ) as session,
    ):
        yield session


def status_of(session: Session, declared: Declared) -> Status:
    """Return the status of a migration as it will be when an open session has ended."""
    from rekey.runner.look import look

    parts = session.config, session.scripts, declared, session.state, session.accounts, session.clock
    return session.do(look(*parts, at_end=True))
