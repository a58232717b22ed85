"""The project folder of a rehearsal, and the installed command run in it as an operator runs it: as a
process, so that a kill ends a real one. Endpoints, keys and secrets are the rehearsal's own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared, required_secrets
from rekey.declaration.scripts import file_of, load_script, load_scripts
from rekey.errors import reason_of
from rekey.evidence.signing import make_key
from rekey.project.config import Account
from rekey.rehearse.azurite import Azurite
from rekey.rehearse.refusals import refusal
from rekey.state.models import KeyTexts, Segment
from rekey.state.store import State

# The shortest configurable retention.
RETENTION_SECONDS = 1
EVIDENCE_KEY = "evidence.pem"
_WRAPPING_KEY = "REHEARSAL_WRAPPING_KEY"
_COMMAND_SECONDS = 3600
_ON_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Result:
    """A command that has ended."""

    # The command without the program, e.g. `("plan", "0001_users", "--exact")`.
    words: tuple[str, ...]
    # Its exit code; negative when a signal ended it.
    code: int
    # Its standard output and standard error, interleaved.
    output: str = field(repr=False)
    seconds: float

    @property
    def line(self) -> str:
        return " ".join(("rekey", *self.words))

    def as_json(self) -> dict[str, Any]:
        return {"command": self.line, "exit_code": self.code, "seconds": round(self.seconds, 3)}


@dataclass
class Running:
    """A command that `Project.start` has started; end it by `finish` or `kill`."""

    _process: subprocess.Popen[bytes]
    _words: tuple[str, ...]
    _output: Path
    _began: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> Result:
        """End it by SIGKILL and return its result."""
        self._process.kill()
        return self.finish()

    def stop(self) -> Result:
        """End it by SIGTERM, at its next checkpoint, and return its result."""
        self._process.terminate()
        return self.finish()

    def finish(self) -> Result:
        """Wait for its end and return its result. Raises MachineFailed after `_COMMAND_SECONDS`."""
        try:
            code = self._process.wait(_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise refusal(
                "command-too-long", command=" ".join(self._words), seconds=_COMMAND_SECONDS
            ) from None
        seconds = time.monotonic() - self._began
        return Result(self._words, code, self._output.read_text("utf-8", "replace"), seconds)


class Project:
    """The folder of a rehearsal: configuration, scripts, state file, and the output of the commands."""

    def __init__(self, folder: Path, script: Path, program: Sequence[str] = ("rekey",)) -> None:
        """Create it in a new, empty folder, and load the script with all scripts that it depends on. Raises
        DeclarationError. `program` is the module to run for each command, with the words before the command's
        own."""
        self.folder, self._program = folder, program
        self.state_path = folder / ".rekey" / "state.sqlite"
        self.scripts = _needed_scripts(script)
        names = sorted({name for script in self.scripts for name in required_secrets(script.migration)})
        self._variables = {name: f"REHEARSAL_SECRET_{number}" for number, name in enumerate(names, start=1)}
        self._environment = {variable: secrets.token_hex(32) for variable in self._variables.values()}
        self._environment[_WRAPPING_KEY] = secrets.token_hex(32)
        self._started: list[Running] = []

    @property
    def declared(self) -> Declared:
        """The rehearsed migration."""
        return self.scripts[-1]

    @cached_property
    def mapper(self) -> Mapper:
        return Mapper(self.declared.migration, self.secrets)

    def write_for(self, azurite: Azurite, **limits: int) -> None:
        """Write the project for an Azurite, whose keys are only in the environment of the commands."""
        accounts = {
            "REHEARSAL_TABLES_KEY": azurite.tables,
            "REHEARSAL_TARGETS_KEY": azurite.targets,
            "REHEARSAL_RESTRICTED_KEY": azurite.restricted,
        }
        self._environment |= {variable: account.key for variable, account in accounts.items()}
        tables, targets, restricted = (Account(account.endpoint, name) for name, account in accounts.items())
        self.write(tables, restricted, targets if self.uses_target_account else None, **limits)

    @property
    def uses_target_account(self) -> bool:
        """Whether a script has a table in the target account."""
        return any(script.migration.uses_target_account for script in self.scripts)

    def write(
        self,
        tables: Account,
        restricted: Account,
        targets: Account | None = None,
        *,
        window_rows: int,
        entities_per_second: int,
    ) -> None:
        """Write configuration, evidence key, and scripts with what they need. Raises ConfigurationError."""
        self.folder.chmod(0o700)
        # The only key in a file, and it protects nothing but this rehearsal. Other keys and secrets are only
        # in the environment of the commands.
        make_key(self.folder / EVIDENCE_KEY)
        (self.folder / "output").mkdir()
        secrets_of_scripts = "".join(
            f'\n[secrets.{name}]\nenv = "{variable}"\n' for name, variable in self._variables.items()
        )
        template = Path(__file__).with_name("configuration.txt").read_text("utf-8")
        configuration = template.format(
            tables=_section(tables) + ("" if targets is None else f"\n\n[targets]\n{_section(targets)}"),
            restricted=_section(restricted),
            secrets=secrets_of_scripts,
            wrapping_key=_WRAPPING_KEY,
            window_rows=window_rows,
            entities_per_second=entities_per_second,
            retention=RETENTION_SECONDS,
            evidence_key=EVIDENCE_KEY,
        )
        (self.folder / "rekey.toml").write_text(configuration, "utf-8")
        to = self.folder / "migrations"
        to.mkdir()
        referred = _referred(self.scripts)
        looked_up_in = self.declared.migration.looked_up_in
        alone = {script.path.name for script in self.scripts if script.script_id in looked_up_in}
        wanted = {script.path.name for script in self.scripts} | referred
        try:
            for path in self.declared.path.parent.iterdir():
                is_script = path.is_file() and path.suffix == ".py"
                if is_script and (path.name in wanted or path.name.startswith("_")):
                    shutil.copy(path, to / path.name)
                    self._keep_needed(path.stem, to / path.name)
                    if path.name in referred | alone:
                        _take_out_of_group(to / path.name)
                elif (path / "__init__.py").is_file():
                    shutil.copytree(path, to / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        except OSError as error:
            raise refusal("scripts-not-copied", reason=reason_of(error)) from error

    def _keep_needed(self, stem: str, copy: Path) -> None:
        """Reduce a script that declares several migrations to the rehearsed ones."""
        if kept := [
            script.migration.source for script in self.scripts if script.path.stem == stem != script.script_id
        ]:
            with copy.open("a", encoding="utf-8") as file:
                file.write(f"\nmigrations = {{name: migrations[name] for name in {kept!r}}}\n")

    @property
    def secrets(self) -> dict[str, bytes]:
        """The secrets that the scripts name, made for this rehearsal."""
        return {name: self._environment[where].encode("ascii") for name, where in self._variables.items()}

    @property
    def wrapping_key(self) -> bytes:
        """The wrapping key of sealed mappings, made for this rehearsal."""
        return self._environment[_WRAPPING_KEY].encode("ascii")

    @property
    def confidential(self) -> tuple[str, ...]:
        """The keys and secrets that no command may print."""
        return tuple(self._environment.values())

    def start(self, *words: str) -> Running:
        """Start `rekey` with these words; its output goes to a file of the folder."""
        output = self.folder / "output" / f"{len(self._started) + 1:02d}-{words[0]}.txt"
        # A proxy configured on this machine cannot reach the Azurite on its loopback address. urllib prefers
        # the lowercase name.
        exceptions = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        unproxied = ",".join(filter(None, (exceptions, _ON_LOOPBACK)))
        own = {"NO_PROXY": unproxied, "no_proxy": unproxied, "PYTHONUNBUFFERED": "1", "COLUMNS": "110"}
        # REKEY_CONFIG may name a real project.
        inherited = {name: value for name, value in os.environ.items() if name != "REKEY_CONFIG"}
        with output.open("wb") as file:
            process = subprocess.Popen(  # noqa: S603 - this program itself, with words made here
                [sys.executable, "-m", *self._program, *words],
                cwd=self.folder,
                env={**inherited, **self._environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._started.append(Running(process, words, output))
        return self._started[-1]

    def stop(self) -> None:
        """Kill all running commands."""
        for running in self._started:
            if not running.ended:
                running.kill()

    def segments(self, purpose: str, keys: KeyTexts | None = None) -> list[Segment]:
        """Return the rehearsed migration's current segments for a purpose. `keys`: their form in the state
        file; None: without keys, for counts alone."""
        if not self.state_path.exists():
            return []
        script_id = self.declared.script_id
        with State.open(self.state_path, read_only=True) as state:
            if keys is not None:
                state.use_keys(script_id, keys)
            return state.segments(script_id, purpose, keys=keys is not None)


def _section(account: Account) -> str:
    key = "" if account.key_env is None else f'\nkey_env = "{account.key_env}"'
    return f'endpoint = "{account.endpoint}"{key}'


def _referred(scripts: Iterable[Declared]) -> set[str]:
    """Return the names of the files that scripts refer to, and that are not among them: they are read, and
    not applied."""
    own = {script.path.name for script in scripts}
    names: set[str] = set()
    waiting = [script.path.parent / f"{name}.py" for script in scripts for name in script.refers_to]
    while waiting:
        path = file_of(waiting.pop())
        if path.name not in own | names:
            names.add(path.name)
            waiting += [path.parent / f"{name}.py" for name in load_script(path).refers_to]
    return names


def _take_out_of_group(copy: Path) -> None:
    """Let what moves a group leave a script alone that is not rehearsed."""
    with copy.open("a", encoding="utf-8") as file:
        file.write('\nobject.__setattr__(migration, "group", "")\n')


def _needed_scripts(script: Path) -> tuple[Declared, ...]:
    """Return the script and all that it depends on or looks old references up in, the script last."""
    wanted = load_script(script)
    # Decide from their text whether another script may fill the source table: loading all of them would let
    # any broken script prevent this rehearsal.
    source = f'"{wanted.migration.source.lower()}"'
    others = (path for path in wanted.path.parent.glob("*.py") if path.stem != wanted.path.stem)
    known = [wanted]
    looks_up = bool(wanted.migration.looked_up_in)
    if (
        wanted.depends
        or looks_up
        or any(source in path.read_text("utf-8", "replace").lower() for path in others)
    ):
        known = load_scripts(wanted.path.parent)
    by_id = {declared.script_id: declared for declared in known}
    needed, waiting = {wanted.script_id}, [wanted.script_id]
    while waiting:
        declared = by_id[waiting.pop()]
        more = (declared.depends | declared.migration.looked_up_in.keys()) - needed
        needed |= more
        waiting += more
    before = [declared for declared in known if declared.script_id in needed - {wanted.script_id}]
    return (*(_alone(declared, wanted) for declared in before), by_id[wanted.script_id])


def _alone(declared: Declared, wanted: Declared) -> Declared:
    """Return a script that is taken through before the rehearsed one, out of that one's group."""
    if not declared.migration.group or declared.migration.group != wanted.migration.group:
        return declared
    return replace(declared, migration=replace(declared.migration, group=""))
