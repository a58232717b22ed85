"""The ledger: yoyo carries out the phases of the migration scripts in order, each once, and records them. It
follows the control row (`align`): they differ only when a run was killed between the two writes of a move, or
when the state file was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from yoyo.exceptions import BadMigration, LockTimeout
from yoyo.migrations import Migration as YoyoMigration
from yoyo.migrations import MigrationList, MigrationStep, Transactionless

from rekey.declaration.migration import Declared
from rekey.errors import GateClosed
from rekey.next_steps import apply_to
from rekey.phases import ORDER, REVERSIBLE, Phase, ledger_id
from rekey.state import backend as state_backend
from rekey.state import files
from rekey.state.applied import applied_phases, handover, ledger_ids
from rekey.state.backend import StateBackend
from rekey.state.filelock import FileLock
from rekey.state.refusals import refusal

# Carries out, or undoes, one phase of the script with this id; blocks until it is done.
Step = Callable[[str, Phase], None]


class _PhaseMigration(YoyoMigration):  # type: ignore[misc]
    """One phase of one script as a yoyo migration, without a file; its id is `<script>.<phase>`."""

    def __init__(
        self, script_id: str, phase: Phase, depends: list[_PhaseMigration], path: Path, run: Step, undo: Step
    ) -> None:
        super().__init__(ledger_id(script_id, phase), script_id, "")
        self.script_id = script_id
        self.phase = phase
        self.use_transactions = False
        self._depends = set(depends)

        # yoyo would roll earlier steps back for an error of SQLite, and go on after one of its own: both are
        # translated before it sees them. Other errors leave the phase unmarked and reach the caller
        # unchanged.
        def contained(step: Step) -> Callable[[object], None]:
            def carry_out(_connection: object) -> None:
                try:
                    with files.translating(path):
                        step(script_id, phase)
                except BadMigration as error:
                    raise refusal("step-failed", error=type(error).__name__) from error

            return carry_out

        self.steps = [Transactionless(MigrationStep(0, contained(run), contained(undo)))]


class Ledger:
    """The phases of all scripts in one state file, and which of them are applied."""

    def __init__(
        self, state_path: Path, scripts: Sequence[Declared], *, run: Step, undo: Step, lock: FileLock
    ) -> None:
        """Create the ledger, and the state file when there is none.

        Args:
            state_path: the state file.
            scripts: all scripts, dependencies first, as `load_scripts` returns them.
            run: carries out one phase.
            undo: takes one phase back.
            lock: the held file lock on the state file; the caller releases it.

        Raises:
            StateUnusable, MachineFailed: see `State.open`.
        """
        self._path = Path(state_path).absolute()
        self._lock = lock
        self._phases: dict[str, _PhaseMigration] = {}
        lock.require(self._path)
        by_id = {script.script_id: script for script in scripts}
        for script_id, script in by_id.items():
            depends = [
                self._phases[ledger_id(depend, handover(by_id[depend], script))] for depend in script.depends
            ]
            for phase in ORDER:
                migration = _PhaseMigration(script_id, phase, depends, self._path, run, undo)
                self._phases[migration.id] = migration
                depends = [migration]
        state_backend.prepare(self._path, lock).close()

    def applied(self, script_id: str) -> list[Phase]:
        """Return the applied phases of a script, in order. Raises StateUnusable when there is a gap."""
        with files.translating(self._path), StateBackend(self._path) as backend:
            return self._applied(backend, script_id)

    def apply(self, script_id: str, upto: Phase) -> list[Phase]:
        """Carry out the pending phases of a script up to and including `upto`; return them. A phase is marked
        only after its step has returned: after a kill in between it is entered again.

        Raises:
            GateClosed: a script that this one depends on has not reached the phase that is needed.
            RekeyError: the error of the step; its phase and later ones are not marked.
        """
        with self._exclusive() as backend:
            done = self._applied(backend, script_id)
            pending = [phase for phase in ORDER[: ORDER.index(upto) + 1] if phase not in done]
            wanted = self._listed(script_id, pending)
            there = {*ledger_ids(backend.connection), *(migration.id for migration in wanted)}
            for migration in wanted:
                missing = sorted(needed.id for needed in migration.depends if needed.id not in there)
                if missing:
                    waits_for = [self._phases[migration_id] for migration_id in missing]
                    first = waits_for[0]
                    raise GateClosed(
                        migration.phase,
                        [f"{script_id} waits for `{each.phase}` of {each.script_id}" for each in waits_for],
                        hint=f"`rekey {apply_to(first.script_id, first.phase)}` first",
                    )
            backend.apply_migrations(backend.to_apply(wanted))
        return pending

    def rollback(self, script_id: str, downto: Phase | None) -> list[Phase]:
        """Take phases back until `downto` is the last applied one (None: until none is left); return them,
        last first.

        Raises:
            Refused: a phase without rollback is applied, or another script builds on this one.
            RekeyError: the error of the step; its phase and earlier ones stay marked.
        """
        with self._exclusive() as backend:
            undone = self._undone(backend, script_id, downto)
            backend.rollback_migrations(backend.to_rollback(self._listed(script_id, undone)))
        return undone[::-1]

    def require_rollback(self, script_id: str, downto: Phase | None) -> None:
        """Raise Refused as `rollback` does; nothing is rolled back."""
        with self._exclusive() as backend:
            self._undone(backend, script_id, downto)

    def _undone(self, backend: StateBackend, script_id: str, downto: Phase | None) -> list[Phase]:
        kept = () if downto is None else ORDER[: ORDER.index(downto) + 1]
        undone = [phase for phase in self._applied(backend, script_id) if phase not in kept]
        final = [phase for phase in undone if phase not in REVERSIBLE]
        if final:
            raise refusal("no-way-back", script=script_id, phase=final[0])
        taken = {ledger_id(script_id, phase) for phase in undone}
        staying = set(ledger_ids(backend.connection)) & set(self._phases) - taken
        builds_on = {
            self._phases[entry].script_id
            for entry in staying
            if any(needed.id in taken for needed in self._phases[entry].depends)
        }
        if builds_on:
            raise refusal(
                "builds-on", others=", ".join(sorted(builds_on)), script=script_id, last=max(builds_on)
            )
        return undone

    def align(self, script_id: str, phases: Iterable[Phase]) -> None:
        """Mark exactly these phases as applied; none is carried out or rolled back."""
        wanted = set(phases)
        with self._exclusive() as backend:
            done = self._applied(backend, script_id)
            surplus = [phase for phase in reversed(done) if phase not in wanted]
            lacking = [phase for phase in ORDER if phase in wanted and phase not in done]
            backend.unmark_migrations(self._listed(script_id, surplus))
            backend.mark_migrations(self._listed(script_id, lacking))

    @contextmanager
    def _exclusive(self) -> Iterator[StateBackend]:
        self._lock.require(self._path)
        with files.translating(self._path), StateBackend(self._path) as backend:
            backend.begin_exclusive_use()
            try:
                with backend.lock():
                    yield backend
            except LockTimeout:
                raise refusal("ledger-locked", path=self._path) from None

    def _listed(self, script_id: str, phases: Iterable[Phase]) -> MigrationList:
        return MigrationList([self._phases[ledger_id(script_id, phase)] for phase in phases])

    def _applied(self, backend: StateBackend, script_id: str) -> list[Phase]:
        self._listed(script_id, ORDER)  # KeyError for an unknown script: a fault of the program
        done = applied_phases(ledger_ids(backend.connection), script_id)
        if done != list(ORDER[: len(done)]):
            raise refusal("ledger-gap", path=self._path, script=script_id, done=", ".join(done))
        return done
