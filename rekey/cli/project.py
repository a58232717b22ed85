"""The project a command works on: configuration, scripts, and the choice of scripts by name: an id, an
unambiguous beginning of one, or the path of a file. A migration that has begun is known without its file, by
the script in the state file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rekey.cli import signals
from rekey.declaration.scripts import file_of, load_script, read_scripts
from rekey.errors import ConfigurationError, DeclarationError, StateUnusable
from rekey.phases import Phase
from rekey.project.config import load_config
from rekey.runner.refusals import refusal
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
    """A configuration and all its scripts, by id, dependencies first."""

    config: Config
    scripts: dict[str, Declared]
    # Begun migrations whose file is gone or unreadable, and of which no script was stored.
    lost: Sequence[MigrationRecord] = ()
    # What is wrong with scripts that cannot be used, by id.
    broken: Mapping[str, DeclarationError] = field(default_factory=dict)

    def choose(self, name: str) -> Declared:
        """Return the script of a name; one whose file exists comes before one whose file is gone.

        Raises:
            click.UsageError: none fits, or several.
            DeclarationError: it cannot be used.
            Refused: it is that of a migration in `lost`.
        """
        self._refuse_broken(name)
        if name in self.scripts:
            return self.scripts[name]
        if name.endswith(".py") or os.sep in name:
            path = Path(name).resolve()
            self._refuse_broken(path.stem)
            paths = {path, (self.config.migrations / name).resolve()}
            scripts = [script for script in self.scripts.values() if script.path.resolve() in paths]
            if not scripts:
                self._refuse_lost(path.stem)
                raise click.UsageError(f"{name} is no script of {self.config.migrations}")
            if len(scripts) > 1:
                raise click.UsageError(f"{name} makes several migrations: {_listed(scripts)}")
            return scripts[0]
        fitting = [script for script_id, script in self.scripts.items() if script_id.startswith(name)]
        scripts = [script for script in fitting if not script.is_kept] or fitting
        wrong = [script_id for script_id in self.broken if name and script_id.startswith(name)]
        if len(wrong) == 1 and not {script.script_id for script in scripts} - set(wrong):
            self._refuse_broken(wrong[0])
        if not scripts:
            self._refuse_lost(name)
        if len(scripts) != 1 or not name:
            what = f"{name!r} fits more than one script" if scripts else f"there is no script {name!r}"
            raise click.UsageError(f"{what}; there are: {_listed(scripts or self.scripts.values())}")
        return scripts[0]

    def _refuse_broken(self, name: str) -> None:
        if name in self.broken:
            raise self.broken[name]

    def _refuse_any_broken(self) -> None:
        """Raise DeclarationError when any script cannot be used: for what is about all of them."""
        for name in self.broken:
            self._refuse_broken(name)

    def _refuse_lost(self, name: str) -> None:
        for record in self.lost:
            if name and record.script_id.startswith(name):
                raise refusal("script-lost", record=record, folder=self.config.migrations)

    def choose_all(self, names: Sequence[str]) -> list[Declared]:
        """Return the scripts of these names, without names all, in the order in which they are applied; see
        `choose`."""
        wanted = {self.choose(name).script_id for name in names} or self.scripts
        return [script for script_id, script in self.scripts.items() if script_id in wanted]

    def choose_pending(self, names: Sequence[str], group: str | None) -> list[Declared]:
        """Return the scripts of a group or of these names, without either all that are not complete."""
        if group is not None:
            return self.choose_group(group, *names)
        return self.choose_all(names) if names else self.unfinished()

    def choose_group(self, name: str, *instead: str | None) -> list[Declared]:
        """Return the scripts of a group, in the order in which they are applied.

        Raises:
            click.UsageError: there is no such group, or something of `instead` was given as well.
            DeclarationError: a script cannot be used: it may be of the group.
        """
        self._refuse_any_broken()
        scripts = [script for script in self.scripts.values() if script.migration.group == name and name]
        if any(instead):
            raise click.UsageError("give SCRIPT or --group, not both")
        if not scripts:
            groups = sorted({script.migration.group for script in self.scripts.values()} - {""})
            there = f"there are: {', '.join(groups)}" if groups else 'no script says group="…"'
            raise click.UsageError(f"no script is of the group {name!r}; {there}")
        return scripts

    def the_one(self, name: str | None, since: Phase | None = None, before: Phase | None = None) -> Declared:
        """Return the named script; without a name the only script, or the only candidate.

        Args:
            name: None when it was left out.
            since: the phase that a candidate has applied; None: any.
            before: a phase that it has not applied; None: any.

        Raises:
            click.UsageError: no script fits the name, or several; without a name, no candidate, or several.
            DeclarationError: the script cannot be used; without a name, any cannot: it may be the one meant.
        """
        if name is not None:
            return self.choose(name)
        self._refuse_any_broken()
        if len(self.scripts) == 1:
            return next(iter(self.scripts.values()))
        applied = self.applied()
        if not self.scripts:
            self._refuse_lost(self.lost[0].script_id)
        scripts = [
            script
            for script_id, script in self.scripts.items()
            if (since is None or since in applied[script_id]) and before not in applied[script_id]
        ]
        if len(scripts) == 1:
            return scripts[0]
        raise click.UsageError(f"say which script: {_listed(scripts or self.scripts.values())}")

    def unfinished(self) -> list[Declared]:
        """Return the scripts that are not complete, in the order in which they are applied.

        Raises:
            DeclarationError: a script cannot be used.
            Refused: a migration in `lost` is not complete.
        """
        self._refuse_any_broken()
        applied = self.applied()
        for record in self.lost:
            if Phase.COMPLETE not in applied[record.script_id]:
                self._refuse_lost(record.script_id)
        return [
            script for script_id, script in self.scripts.items() if Phase.COMPLETE not in applied[script_id]
        ]

    def applied(self) -> dict[str, list[Phase]]:
        """Return the applied phases of every script, as the state file has them now."""
        with State.open(self.config.state, read_only=True) as state:
            ids = state.ledger_ids()
        known = [*self.scripts, *(record.script_id for record in self.lost)]
        return {script_id: applied_phases(ids, script_id) for script_id in known}


def _listed(scripts: Iterable[Declared]) -> str:
    return ", ".join(script.script_id for script in scripts)


def open_project(shell: Shell) -> Project:
    """Read configuration and scripts; warnings about the configuration go to standard error.

    Raises:
        ConfigurationError: see `load_config`; or there is no script.
        DeclarationError: a script is wrong.
    """
    config = load_config(shell.config.path)
    for doubt in config.warnings():
        shell.note(f"warning: {doubt}", "warning")
    project = _read(config)
    if not project.scripts and not project.lost:
        for error in project.broken.values():
            raise error
        what = f"there is no migration script in {config.migrations}"
        raise ConfigurationError(what, hint=f"`{shell.command('new NAME')}` makes one")
    for error in project.broken.values():
        shell.note(f"warning: {error.what}; it is left out ({error.hint})", "warning")
    return project


def _read(config: Config) -> Project:
    try:
        with State.open(config.state, read_only=True) as state:
            records = {migration.script_id: migration for migration in state.migrations()}
            contents = {kept_script.run_id: kept_script.content for kept_script in state.kept_scripts()}
    except StateUnusable:
        records, contents = {}, {}  # commands that need the state file report what is wrong with it
    lost: list[MigrationRecord] = []

    def kept(record: MigrationRecord, fault: str = "") -> list[Declared]:
        with suppress(DeclarationError, KeyError):
            path = config.migrations / f"{record.script_id}.py"
            declared = load_script(path, contents[record.run_id])
            if declared.digest == record.digest:
                return [replace(declared, fault=fault)]
        lost.append(record)
        return []

    def kept_of(path: Path, error: DeclarationError) -> list[Declared]:
        return [
            declared
            for script_id, record in records.items()
            if file_of(config.migrations / f"{script_id}.py") == path
            for declared in kept(record, error.what)
        ]

    gone = []
    for record in records.values():
        path = config.migrations / f"{record.script_id}.py"
        if not file_of(path).exists() or (file_of(path) != path and not _is_made(path)):
            gone += kept(record)
    scripts, broken = read_scripts(config.migrations, gone, records, kept_of)
    return Project(config, {script.script_id: script for script in scripts}, lost, broken)


def _is_made(path: Path) -> bool:
    """Tell whether a file of another name makes this migration, one of several, or cannot be read."""
    try:
        return bool(load_script(path))
    except DeclarationError as error:
        return error.script == file_of(path).stem


@contextmanager
def open_session(shell: Shell, project: Project, options: Options | None = None) -> Iterator[Session]:
    """Open a session that SIGINT and SIGTERM stop at a checkpoint."""
    from rekey.runner.run import Options, StopFlag
    from rekey.runner.session import Caller, Session

    stop = StopFlag()
    with (
        signals.stopping(stop, log_json=shell.options.log_json),
        Session(
            project.config,
            project.scripts,
            options=options or Options(),
            progress=shell.progress(),
            stop=stop,
            caller=Caller(shell.connect, shell.clock),
        ) as session,
    ):
        yield session


def status_of(session: Session, declared: Declared) -> Status:
    """Return the status of a migration as it will be when an open session has ended."""
    from rekey.runner.status import read_status

    return session.do(read_status(session.sources, declared, at_end=True))
