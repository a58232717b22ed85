"""The life of a migration, command by command. After each one a witness reads both sides and compares row by
row; the first failed check ends the rehearsal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from azure.data.tables import UpdateMode

from rekey.core.joint import place_of
from rekey.core.limits import own_name
from rekey.core.texts import catalogue, filled
from rekey.errors import ExitCode
from rekey.model import PARTITION_KEY, content_of, key_of, property_names
from rekey.next_steps import apply_to, next_step
from rekey.phases import Phase
from rekey.rehearse.application import Application, LiveApplication, changed_by_one, to_entity
from rekey.rehearse.project import RETENTION_SECONDS, Project, Result, Running
from rekey.rehearse.report import Briefly
from rekey.rehearse.witness import Finding, Witness
from rekey.state.models import BACKFILL, Segment

# The entries `say`, `why`, `proof`, `wrong` and `left_out` of the steps.
TEXTS = catalogue(Path(__file__).with_name("steps.toml"))
_POLL_SECONDS = 0.01
_PAUSE_SECONDS = 0.02
_LOOK_EVERY = 5
# Writes after cutover, before the rollback.
_TARGET_WRITES = 24
# Writes before the first command.
_WRITES_BEFORE = 3
_BUNDLE, _BACKUP = "evidence", "backup"
_NOT_THIS_TABLE = (ExitCode.USAGE, ExitCode.REFUSED)
_OUTPUT_LINES = 60
_LEGACY_KEYS_LOOKED_FOR = 20_000
# A shorter key may occur in a text by chance.
_TELLING_CHARACTERS = 12


def hand_over(script_id: str) -> list[str]:
    """Return the words after `rekey` that hand over the index tables of a completed migration."""
    return next_step("hand-over", script=script_id).command.split()


class NotAsItMustBe(Exception):
    """A check failed; the text says which, with the last lines of the command's output."""


def _rows(segments: Iterable[Segment]) -> int:
    return sum(segment.rows for segment in segments)


@dataclass
class Life:
    """The life of one migration. `kill_after`: how many checkpointed rows the kill waits for; `writes`:
    maximum writes of the application during one command."""

    project: Project
    witness: Witness
    application: Application
    tell: Briefly
    writes: int
    kill_after: int
    steps: list[Result] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    # The step that says why the source could be deleted.
    why_retired: ClassVar = "retire"

    def __post_init__(self) -> None:
        declared = self.project.declared
        self._script_id, self._migration = declared.script_id, declared.migration
        # The migration, or its group, which has no other member here.
        self._cli_selector = declared.cli_selector.split()
        self._to_complete = apply_to(declared.cli_selector, Phase.COMPLETE).split()

    def live(self) -> None:
        """Go through the whole life, once the rows are loaded. Raises NotAsItMustBe."""
        self._plan()
        killed_at = self._kill()
        self._resume(killed_at)
        self._verify()
        self._plant_and_mend()
        self._cut_over()
        if self._migration.reverse:
            self._there_and_back()
        else:
            self._leave_out("no-rollback")
        expected = self._complete()
        self._retire(expected)
        self._no_key_shown()

    def take_dependencies_through(self) -> None:
        """Take the scripts that this one depends on to `complete`, on empty tables. Raises NotAsItMustBe."""
        for script in self.project.scripts[:-1]:
            self._say("dependency", script=self._script_id, needed=script.script_id)
            source = script.migration.source
            self.witness.service(source).create_table_if_not_exists(own_name(source))
            self._run("apply", script.script_id)
            self._run("verify", script.script_id, "--mode", "full")
            self._run(*apply_to(script.cli_selector, Phase.COMPLETE).split(), "--writers-stopped")
            if script.script_id in self._migration.looked_up_in:
                self._leave_out("old-references", needed=script.script_id)
            if script.migration.is_maintained:
                self._run("verify", script.script_id, "--mode", "full")
                self._run(*hand_over(script.script_id))
            self._leave_out("dependency", needed=script.script_id)

    # --- steps -------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._say("plan")
        self._run("plan", self._script_id, "--exact", why="plan")
        untouched = not any(self.witness.exists(name) for name in self._migration.table_names)
        self._prove("plan", untouched, targets=self._named_targets())

    def _kill(self) -> list[Segment]:
        """SIGKILL the first `apply` between its first and last checkpoint; return the segments then."""
        self._say("kill")
        running = self.project.start("apply", self._script_id)
        while not running.ended and _rows(self.project.segments(BACKFILL)) < self.kill_after:
            time.sleep(_POLL_SECONDS)
        result = self._keep(running.kill())
        segments = self.project.segments(BACKFILL)
        if result.code > 0:
            raise self._wrong(f"`{result.line}` ended with {result.code} before it could be killed", result)
        rows = _rows(segments)
        if result.code == 0 or not rows or all(segment.done for segment in segments):
            raise self._wrong("the kill did not land in the middle of copying; use more rows", result)
        self._why("kill", rows=rows)
        self._run("status", self._script_id, why="status")
        stood = self.project.segments(BACKFILL, self.witness.cursor_keys())
        claimed = [segment.claimed for segment in stood if segment.claimed is not None]
        if not claimed:
            raise self._wrong("a checkpoint counts rows and has no cursor", result)
        looked_at, missing = self.witness.missing_within(claimed)
        self._prove("kill", missing == 0, rows=rows, looked_at=looked_at, missing=missing)
        return segments

    def _resume(self, killed_at: list[Segment]) -> None:
        self._say("resume")
        self.application.begin_counting()
        observations: list[bool] = []

        def observe() -> None:
            if now := {segment.id: segment.rows for segment in self.project.segments(BACKFILL)}:
                observations.append(all(now.get(segment.id, -1) >= segment.rows for segment in killed_at))

        self._run_live("apply", self._script_id, why="resume", during=observe)
        ended = self.project.segments(BACKFILL)
        observe()
        whole, before = all(observations) and all(segment.done for segment in ended), _rows(killed_at)
        self._prove("resume", whole, before=before, after=_rows(ended), looks=len(observations) - 1)
        self._catch_up(why="catch-up")
        self._same(f"After {self.application.summary()} by the application")

    def _verify(self) -> None:
        self._say("verify")
        self.application.begin_counting()
        self._run_live("verify", self._script_id, "--mode", "full", why="verify")
        self._prove("verify", True, told=self.application.summary())
        # Copy the rows just written: what is planted next must be the only difference.
        self._catch_up()

    def _catch_up(self, why: str = "") -> None:
        """Copy what the application changed: run `apply` again, which stops at the cutover gate."""
        self._run("apply", self._script_id, why=why)

    def _plant_and_mend(self) -> None:
        self._say("plant")
        source_key = min(self.application.untouched, key=lambda key: key.order)
        source_row = self.witness.get(self.witness.source_name, source_key)
        if source_row is None:
            raise NotAsItMustBe("a source row is missing that was not deleted")
        target_row = self.witness.mapper.map(source_row)[0].row
        mapped = [name for name in property_names(target_row) if name in source_row]
        altered = next(changed_by_one(content_of(target_row), mapped))
        table, key = self._migration.target.table, key_of(target_row)
        own, own_key = place_of(table, key)
        self.witness.client(own).update_entity(
            to_entity({**altered, PARTITION_KEY: own_key.partition}), mode=UpdateMode.REPLACE
        )
        row_id = self.witness.safe_ids().short(table, key)
        verify = ("verify", self._script_id, "--mode", "full")
        result = self._run(*verify, expect=(ExitCode.FINDINGS,), why="plant")
        self._prove("plant", row_id in result.output, rows=len(self.application.must_hold), row_id=row_id)
        self._run(*verify, "--repair", expect=(ExitCode.DONE, ExitCode.FINDINGS), why="repair")
        self._run(*verify, why="repaired")
        self._same("After the repair")

    def _cut_over(self) -> None:
        self._say("cutover-refused")
        cutover = ("apply", *self._cli_selector, "--to", "cutover")
        self._run(*cutover, expect=(ExitCode.REFUSED,), why="cutover-refused")
        self._to_cutover()
        self._why("cutover")
        self._same("After cutover, nothing lingering", after_cutover=True)

    def _there_and_back(self) -> None:
        self._say("rollback")
        self.application.begin_counting()
        for _ in range(_TARGET_WRITES):
            self.application.write_target()
        text = self.application.summary()
        self._run("rollback", *self._cli_selector, "--writers-stopped", why="rollback")
        self._same(f"After the rollback, with {text} made in the target", after_cutover=True)
        self._say("again")
        self._cut_over_again()

    def _cut_over_again(self) -> None:
        self._to_cutover()
        self._why("again")
        self._same("After the second cutover", after_cutover=True)

    def _complete(self) -> Finding:
        self._say("complete")
        self._run(*self._to_complete, why="complete")
        return self._same("After completion", after_cutover=True)

    def _retire(self, expected: Finding) -> None:
        self._say("retire-refused")
        source, targets = self._migration.source, self._named_targets()
        time.sleep(RETENTION_SECONDS)
        wrong_name = ("retire", self._script_id, "--table", self._migration.table_names[0])
        self._run(*wrong_name, expect=_NOT_THIS_TABLE, why="retire-refused")
        self._prove("retire-refused", self.witness.exists(source), source=source)
        self._run("evidence", "export", _BUNDLE, self._script_id)
        self._run("evidence", "verify", _BUNDLE, why="evidence")
        self._run("export", source, _BACKUP, why="backup")
        is_part = self._migration.where is not None
        why = "retire-part" if is_part else self.why_retired
        self._run("retire", self._script_id, "--table", source, "--backup", _BACKUP, why=why)
        after = self.witness.compare_targets(expected.expected)
        figures = {"source": source, "rows": after.target_rows, "targets": targets}
        if is_part:
            wrong = (*after.wrong, *self.witness.rows_beside())
            figures["beside"] = len(self.witness.beside)
            self._prove("retire-part", not wrong, **figures, wrong="; ".join(wrong))
        else:
            gone, wrong_now = not self.witness.exists(source), "; ".join(after.wrong)
            wrong_now = wrong_now or f"{source} is still there"
            self._prove("retire", gone and not after.wrong, **figures, wrong=wrong_now)
        self._run("status", why="end")

    def _no_key_shown(self) -> None:
        printed = "\n".join(result.output for result in self.steps)
        secret = sum(text in printed for text in self.project.confidential)
        keys = [key.row for key in list(self.application.must_hold)[:_LEGACY_KEYS_LOOKED_FOR]]
        telling = [key for key in keys if len(key) >= _TELLING_CHARACTERS and any(map(str.isdigit, key))]
        shown = sum(key in printed for key in telling)
        figures = {
            "lines": len(printed.splitlines()),
            "telling": len(telling),
            "secret": secret,
            "shown": shown,
        }
        self._prove("nothing-told", secret == 0 and shown == 0, **figures)

    # --- parts of steps ----------------------------------------------------------------------------------

    def _to_cutover(self) -> None:
        self._run("apply", *self._cli_selector, "--to", "cutover", "--writers-stopped")

    def _same(self, when: str, *, after_cutover: bool = False) -> Finding:
        """Prove that both sides hold what they must; until cutover target rows of deleted rows may remain."""
        may_linger = frozenset(() if after_cutover else self.application.deleted)
        must_hold = self.application.must_hold
        finding = self.witness.compare(must_hold, may_linger=may_linger, after_cutover=after_cutover)
        lingering, problems = finding.lingering, "; ".join(finding.wrong)
        awaiting = f" ({lingering:,} rows of deleted ones await the sweep)" if lingering else ""
        figures = {"source": finding.source_rows, "target": finding.target_rows - lingering}
        self._prove("same", not finding.wrong, when=when, problems=problems, awaiting=awaiting, **figures)
        return finding

    def _run(self, *words: str, expect: tuple[int, ...] = (ExitCode.DONE,), why: str = "") -> Result:
        """Run a command, explained by the text of the step `why`."""
        return self._expecting(self.project.start(*words), expect, why)

    def _run_live(
        self,
        *words: str,
        why: str = "",
        during: Callable[[], None] = lambda: None,
        write: Callable[[], None] | None = None,
    ) -> Result:
        """Run a command, explained by the text of the step `why`, while the application writes (by default to
        the source). `during` is called repeatedly. Raises NotAsItMustBe."""
        write = write or self.application.write_source
        running = self.project.start(*words)
        rounds = 0
        while not running.ended:
            if rounds < self.writes:
                write()
            if rounds % _LOOK_EVERY == 0:
                during()
            rounds += 1
            time.sleep(_PAUSE_SECONDS)
        return self._expecting(running, (ExitCode.DONE,), why)

    def _expecting(self, running: Running, expect: tuple[int, ...], why: str) -> Result:
        result = self._keep(running.finish())
        if result.code not in expect:
            wanted = " or ".join(str(int(code)) for code in expect)
            raise self._wrong(f"`{result.line}` ended with {result.code}, not {wanted}", result)
        if why:
            self._why(why)
        return result

    def _keep(self, result: Result) -> Result:
        self.steps.append(result)
        self.tell.ran(result)
        return result

    def _say(self, step: str, **values: object) -> None:
        self.tell.say(*filled(TEXTS[step], values, "say"))

    def _why(self, step: str, **values: object) -> None:
        self.tell.why(*filled(TEXTS[step], values, "why"))

    def _leave_out(self, step: str, **values: object) -> None:
        self.left_out += filled(TEXTS[step], values, "left_out")

    def _prove(self, step: str, holds: bool, **values: object) -> None:
        proof, wrong = filled(TEXTS[step], values, "proof", "wrong")
        if not holds:
            raise self._wrong(wrong or f"this does not hold: {proof}", self.steps[-1])
        self.proofs.append(proof)
        self.tell.proved(proof)

    def _wrong(self, what: str, result: Result) -> NotAsItMustBe:
        printed = result.output.splitlines()[-_OUTPUT_LINES:]
        return NotAsItMustBe("\n".join([what, f"$ {result.line}", *printed]))

    def _named_targets(self) -> str:
        return ", ".join(self._migration.table_names)


class LifeUnderWrites(Life):
    """The life in capture "dual-write": no delta pass, and the application never stops. The longest duration
    of a write is reported; no figure is a condition."""

    application: LiveApplication
    why_retired = "retire-under-writes"

    def live(self) -> None:
        self._say("writes")
        for _ in range(_WRITES_BEFORE):
            self.application.write_source()
        super().live()

    def _catch_up(self, why: str = "") -> None:
        """Do nothing: the targets followed every write before it was acknowledged."""

    def _cut_over(self) -> None:
        self._say("cutover-under-writes")
        self._to_cutover()
        self._why("cutover-under-writes")
        self._same("After cutover, under writes", after_cutover=True)

    def _to_cutover(self) -> None:
        self.application.begin_counting()
        self._run_live("apply", *self._cli_selector, "--to", "cutover")
        self._waited("the cutover")

    def _there_and_back(self) -> None:
        self._say("rollback-under-writes")
        self.application.begin_counting()
        for _ in range(_TARGET_WRITES):
            self.application.write_both()
        self._same(f"After {self.application.summary()} in both views", after_cutover=True)
        self.application.begin_counting()
        back = "rollback-under-writes"
        self._run_live("rollback", *self._cli_selector, why=back, write=self.application.write_both)
        self._waited("the rollback")
        self._same("After the rollback, under writes in both views", after_cutover=True)
        self._say("again-under-writes")
        self._run("verify", self._script_id, "--mode", "full")
        self._cut_over_again()

    def _complete(self) -> Finding:
        step = "complete-under-writes"
        self._say(step)
        if self._migration.where is None:  # clients of the old view go on with the rows beside a part
            refused = self._run(*self._to_complete, expect=(ExitCode.REFUSED,))
            self._prove(step, "application-old" in refused.output)
        self.application.old.close()
        self._run(*self._to_complete, why=step)
        completed = self._same("After completion", after_cutover=True)
        return self._hand_over() if self._migration.is_maintained else completed

    def _hand_over(self) -> Finding:
        """Verify while the application still writes only main rows, then hand over the index tables."""
        rows = ", ".join(self._migration.index_labels)
        self._say("handover", rows=rows)
        self._run(*hand_over(self._script_id), expect=(ExitCode.REFUSED,), why="handover-refused")
        self.application.begin_counting()
        verify = ("verify", self._script_id, "--mode", "full")
        self._run_live(*verify, why="verify-completed", write=self.application.write_target)
        self._same(f"After {self.application.summary()} in the new view", after_cutover=True)
        self._run(*hand_over(self._script_id), why="handover")
        return self._same("After the handover", after_cutover=True)

    def _waited(self, during: str) -> None:
        longest = self.application.longest_seconds
        self._prove("waited", True, told=self.application.summary(), during=during, longest=longest)
