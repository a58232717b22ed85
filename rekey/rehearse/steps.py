"""The life of a migration, step by step, each followed by a check of the tables.

Rules kept here:

* Every step is a command in its own process; after it a witness reads both sides and compares row by row.
* The kill is SIGKILL and lands while copying is under way: after the first checkpoint, before the last.
* The first check that fails ends the rehearsal; the failure holds the output of the command.
* A step with a precondition in the declaration (the way back) is left out when that is not met; the report
  says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from azure.data.tables import UpdateMode

from rekey.declaration.migration import Migration
from rekey.errors import ExitCode
from rekey.model import content_of, key_of, property_names
from rekey.rehearse.application import Application, LiveApplication, changed_by_one, to_entity
from rekey.rehearse.project import RETENTION_SECONDS, Project, Result, Running
from rekey.rehearse.report import Briefly
from rekey.rehearse.witness import Finding, Witness
from rekey.state.models import BACKFILL, Segment

_POLL_SECONDS = 0.01
_PAUSE_SECONDS = 0.02
_LOOK_EVERY = 5
_TARGET_WRITES = 24
"""Writes of the application after cutover, before the rollback."""
_WRITES_BEFORE = 3
"""Writes of a live application before the first command."""
_BUNDLE = "evidence"
_NOT_THIS_TABLE = (ExitCode.USAGE, ExitCode.REFUSED)
_OUTPUT_LINES = 60
_LEGACY_KEYS_LOOKED_FOR = 20_000
_TELLING_CHARACTERS = 12
"""A shorter key may occur in a text by accident."""


class NotAsItMustBe(Exception):
    """A check of a rehearsal failed; the text says which, with the last lines that the command printed."""


def _rows(segments: Iterable[Segment]) -> int:
    """Return how many rows the checkpoints of segments count."""
    return sum(segment.rows for segment in segments)


@dataclass
class Life:
    """The life of one migration, run command by command.

    Attributes:
        project, witness, application: the parts of the rehearsal.
        tell: narrates the progress.
        writes: how many writes at most the application makes during one command.
        kill_after: how many checkpointed rows the kill waits for.
        steps: the commands so far.
        proofs: what was proved so far.
        left_out: what was not rehearsed, and why.
    """

    project: Project
    witness: Witness
    application: Application
    tell: Briefly
    writes: int
    kill_after: int
    steps: list[Result] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def _script_id(self) -> str:
        return self.project.declared.script_id

    @property
    def _migration(self) -> Migration:
        return self.project.declared.migration

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
            self.left_out.append(
                "the way back after cutover: the declaration says reverse=False, so there is none"
            )
        expected = self._complete()
        self._retire(expected)
        self._nothing_told()

    def take_dependencies_through(self) -> None:
        """Take the scripts that this one depends on to `complete`, on empty tables. Raises NotAsItMustBe."""
        for one in self.project.scripts[:-1]:
            self.tell.say(f"{self._script_id} depends on {one.script_id}: taking that through, on no rows.")
            self.witness.tables.create_table_if_not_exists(one.migration.source)
            self._run("apply", one.script_id)
            self._run("verify", one.script_id, "--mode", "full")
            self._run("apply", one.script_id, "--to", "complete", "--writers-stopped")
            self.left_out.append(f"the rows of {one.script_id}, which was taken through with an empty table")

    # --- steps -------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self.tell.say("Planning: what will be done, at what cost, and what would refuse.")
        self._run("plan", self._script_id, "--exact")
        self.tell.why(
            "A plan reads every row and writes none: it finds rows that cannot be keyed, and rows that would"
            " share a new key, before anything is touched."
        )
        self._prove(
            not any(self.witness.exists(name) for name in self._migration.tables),
            f"The plan wrote nothing: none of {self._named_targets()} exists after it.",
        )

    def _kill(self) -> list[Segment]:
        """Kill the first `apply` in the middle of copying; return its segments as checkpointed then."""
        self.tell.say("Applying, and killing it in the middle of copying.")
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
        self.tell.why(
            f"That was SIGKILL, which no handler catches, after {rows:,} rows had been checkpointed. What"
            " is durable is durable, and nothing else was claimed."
        )
        self._run("status", self._script_id)
        self.tell.why("What is done, and what comes next, is in the state file: `status` reads it.")
        stood = self.project.segments(BACKFILL, self.witness.cursor_keys())
        claimed = [segment.claimed for segment in stood if segment.claimed is not None]
        if not claimed:
            raise self._wrong("a checkpoint counts rows and has no cursor", result)
        looked_at, missing = self.witness.missing_within(claimed)
        self._prove(
            missing == 0,
            f"Killed after {rows:,} checkpointed rows; no checkpoint ran ahead: all {looked_at:,} source"
            " rows up to the cursors are in the target.",
            f"{missing:,} of {looked_at:,} rows before the checkpoint are not in the target",
        )
        return segments

    def _resume(self, killed_at: list[Segment]) -> None:
        self.tell.say("Applying again, while the application goes on inserting, updating and deleting.")
        self.application.begin_counting()
        looks: list[bool] = []

        def look() -> None:
            now = {segment.id: segment.rows for segment in self.project.segments(BACKFILL)}
            if now:
                looks.append(all(now.get(one.id, -1) >= one.rows for one in killed_at))

        self._run_live("apply", self._script_id, during=look)
        self.tell.why(
            "The same command again is all a resume takes: it went on after the last checkpoint, then"
            " stopped at the gate before cutover and said what the gate asks for."
        )
        ended = self.project.segments(BACKFILL)
        look()
        self._prove(
            all(looks) and all(segment.done for segment in ended),
            f"The resumed run went on from {_rows(killed_at):,} rows to {_rows(ended):,} and"
            f" never stood behind the kill (seen {len(looks) - 1} times under way).",
            "the resumed run started over instead of going on from its checkpoint",
        )
        self._catch_up("With everything copied, `apply` brings over what changed since.")
        self._same(f"After {self.application.told()} by the application")

    def _verify(self) -> None:
        self.tell.say("Verifying every row and every property, while the application writes.")
        self.application.begin_counting()
        self._run_live("verify", self._script_id, "--mode", "full")
        self.tell.why(
            "Full verification compares digests of both sides, looks again at what differs, and calls only"
            " what stands still a divergence."
        )
        self._proved(f"No false alarm: verified clean during {self.application.told()}.")
        # The rows just written are not in the target yet; what is planted next must be the only difference.
        self._catch_up()

    def _catch_up(self, why: str = "") -> None:
        """Copy what the application changed: run `apply` again, which stops at the gate before cutover."""
        self._run("apply", self._script_id)
        if why:
            self.tell.why(why)

    def _plant_and_mend(self) -> None:
        self.tell.say("Altering one row of the target by hand: verification must find it and name it.")
        source_key = min(self.application.untouched, key=lambda key: key.order)
        source_row = self.witness.get(self.witness.source_name, source_key)
        if source_row is None:
            raise NotAsItMustBe("a source row is missing that was not deleted")
        made = self.witness.mapper.map(source_row)[0].row
        mapped = [name for name in property_names(made) if name in source_row]
        altered = next(changed_by_one(content_of(made), mapped))
        table = self._migration.target.table
        self.witness.client(table).update_entity(to_entity(altered), mode=UpdateMode.REPLACE)
        row_id = self.witness.safe_ids().short(table, key_of(made))
        result = self._run("verify", self._script_id, "--mode", "full", expect=(ExitCode.FINDINGS,))
        self.tell.why("One character of one property differs: exit code 1, and the row's safe id, no key.")
        self._prove(
            row_id in result.output,
            f"Verification found the one altered row of {len(self.application.must_hold):,} and named it"
            f" {row_id}.",
            f"verification did not name row {row_id}",
        )
        self._run(
            "verify", self._script_id, "--mode", "full", "--repair", expect=(ExitCode.DONE, ExitCode.FINDINGS)
        )
        self.tell.why("Repair makes the target's row equal to what the source says.")
        self._run("verify", self._script_id, "--mode", "full")
        self.tell.why("A failed verification had closed the gate; this one opens it again.")
        self._same("After the repair")

    def _cut_over(self) -> None:
        self.tell.say("Cutting over: refused until the operator says that writers have stopped, then done.")
        self._run("apply", self._script_id, "--to", "cutover", expect=(ExitCode.REFUSED,))
        self.tell.why(
            'Capture "delta" cannot see writers: the operator stops them, and says so. Without that: exit 3.'
        )
        self._to_cutover()
        self.tell.why(
            "Under freeze: a last pass, the sweep of deleted rows, a last full verification, and only then"
            " the target has the authority."
        )
        self._same("After cutover, nothing lingering", after_cutover=True)

    def _there_and_back(self) -> None:
        self.tell.say("The application writes to the target through the new keys; then all is rolled back.")
        self.application.begin_counting()
        for _ in range(_TARGET_WRITES):
            self.application.write_target()
        told = self.application.told()
        self._run("rollback", self._script_id, "--writers-stopped")
        self.tell.why("What was written to the target since cutover was copied back before anything else.")
        self._same(f"After the rollback, with {told} made in the target", after_cutover=True)
        self.tell.say("Cutting over again.")
        self._cut_over_again()

    def _cut_over_again(self) -> None:
        self._to_cutover()
        self.tell.why("A rollback costs nothing but time; the way forward is the same as before.")
        self._same("After the second cutover", after_cutover=True)

    def _complete(self) -> Finding:
        self.tell.say("Completing: from here the source is not written, and there is no way back.")
        self._run("apply", self._script_id, "--to", "complete")
        self.tell.why("The source stays as it is until the retention period is over.")
        return self._same("After completion", after_cutover=True)

    def _retire(self, expected: Finding) -> None:
        self.tell.say("Retiring: the source is deleted, after its name was typed.")
        source = self._migration.source
        time.sleep(RETENTION_SECONDS)
        self._run("retire", self._script_id, "--table", self._migration.target.table, expect=_NOT_THIS_TABLE)
        self.tell.why("The typed name was not the source's: refused, nothing deleted.")
        self._prove(self.witness.exists(source), f"A wrong name deleted nothing: {source} is there.")
        self._run("evidence", "export", _BUNDLE, self._script_id)
        self._run("evidence", "verify", _BUNDLE)
        self.tell.why(
            "With that folder and the public key anyone can check what was done; `retire` asks for it."
        )
        self._run("retire", self._script_id, "--table", source)
        self.tell.why("Nothing in it had changed since the freeze, so the whole table went.")
        after = self.witness.compare_targets(expected.expected)
        self._prove(
            not self.witness.exists(source) and not after.wrong,
            f"{source} is gone; all {after.target_rows:,} rows of {self._named_targets()} are unchanged.",
            "; ".join(after.wrong) or f"{source} is still there",
        )
        self._run("status")
        self.tell.why("The end: the ledger has every phase.")

    def _nothing_told(self) -> None:
        printed = "\n".join(result.output for result in self.steps)
        secret = sum(text in printed for text in self.project.confidential)
        keys = [key.row for key in list(self.application.must_hold)[:_LEGACY_KEYS_LOOKED_FOR]]
        telling = [key for key in keys if len(key) >= _TELLING_CHARACTERS and any(map(str.isdigit, key))]
        shown = sum(key in printed for key in telling)
        self._prove(
            secret == 0 and shown == 0,
            f"In {len(printed.splitlines()):,} lines that the commands printed there is no account key, no"
            f" secret and none of {len(telling):,} old RowKeys.",
            f"the commands printed {secret} secrets and {shown} old RowKeys",
        )

    # --- parts of steps ----------------------------------------------------------------------------------

    def _to_cutover(self) -> None:
        self._run("apply", self._script_id, "--to", "cutover", "--writers-stopped")

    def _same(self, when: str, *, after_cutover: bool = False) -> Finding:
        """Prove that both sides hold what they must; until cutover target rows of deleted rows may linger."""
        may_linger = frozenset(() if after_cutover else self.application.deleted)
        finding = self.witness.compare(
            self.application.must_hold, may_linger=may_linger, after_cutover=after_cutover
        )
        awaiting = (
            f" ({finding.lingering:,} rows of deleted ones await the sweep)" if finding.lingering else ""
        )
        self._prove(
            not finding.wrong,
            f"{when}: {finding.source_rows:,} source rows are what the application wrote, and"
            f" {finding.target_rows - finding.lingering:,} target rows are what they give, row by row"
            f"{awaiting}.",
            f"{when}: {'; '.join(finding.wrong)}",
        )
        return finding

    def _run(self, *words: str, expect: tuple[int, ...] = (ExitCode.DONE,)) -> Result:
        return self._expecting(self.project.start(*words), expect)

    def _run_live(
        self,
        *words: str,
        during: Callable[[], None] = lambda: None,
        write: Callable[[], None] | None = None,
    ) -> Result:
        """Run a command while the application writes; return its result. Raises NotAsItMustBe.

        Args:
            words: the command.
            during: called again and again while the command runs.
            write: makes one write; by default to the source.
        """
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
        return self._expecting(running, (ExitCode.DONE,))

    def _expecting(self, running: Running, expect: tuple[int, ...]) -> Result:
        result = self._keep(running.finish())
        if result.code not in expect:
            wanted = " or ".join(str(int(code)) for code in expect)
            raise self._wrong(f"`{result.line}` ended with {result.code}, not {wanted}", result)
        return result

    def _keep(self, result: Result) -> Result:
        self.steps.append(result)
        self.tell.ran(result)
        return result

    def _prove(self, holds: bool, proof: str, otherwise: str = "") -> None:
        if not holds:
            raise self._wrong(otherwise or f"this does not hold: {proof}", self.steps[-1])
        self._proved(proof)

    def _proved(self, proof: str) -> None:
        self.proofs.append(proof)
        self.tell.proved(proof)

    def _wrong(self, what: str, result: Result) -> NotAsItMustBe:
        printed = result.output.splitlines()[-_OUTPUT_LINES:]
        return NotAsItMustBe("\n".join([what, f"$ {result.line}", *printed]))

    def _named_targets(self) -> str:
        return ", ".join(self._migration.table_names)


class LifeUnderWrites(Life):
    """The life in capture "dual-write": there is no delta pass, and the application never stops.

    The longest time of a write is reported as measured; no figure is a condition.
    """

    application: LiveApplication

    def live(self) -> None:
        """Go through the whole life. Raises NotAsItMustBe."""
        self.tell.say("The application writes through rekey's client from now on, and will not stop.")
        for _ in range(_WRITES_BEFORE):
            self.application.write_source()
        super().live()

    def _catch_up(self, why: str = "") -> None:
        """Do nothing: the targets followed every write before it was acknowledged."""

    def _cut_over(self) -> None:
        self.tell.say("Cutting over, while the application goes on writing.")
        self._to_cutover()
        self.tell.why(
            "A freeze of seconds: clients let their writes wait, everything announced is settled, and the"
            " target has the authority. No writer was stopped."
        )
        self._same("After cutover, under writes", after_cutover=True)

    def _to_cutover(self) -> None:
        self.application.begin_counting()
        self._run_live("apply", self._script_id, "--to", "cutover", write=self.application.write_source)
        self._waited("the cutover")

    def _there_and_back(self) -> None:
        self.tell.say("Both versions of the application write, in both views; then all is rolled back.")
        self.application.begin_counting()
        for _ in range(_TARGET_WRITES):
            self.application.write_both()
        self._same(f"After {self.application.told()} in both views", after_cutover=True)
        self.application.begin_counting()
        self._run_live("rollback", self._script_id, write=self.application.write_both)
        self.tell.why("The authority went back to the source, which had followed the target all along.")
        self._waited("the rollback")
        self._same("After the rollback, under writes in both views", after_cutover=True)
        self.tell.say("Verifying what came back, and cutting over again.")
        self._run("verify", self._script_id, "--mode", "full")
        self._cut_over_again()

    def _complete(self) -> Finding:
        self.tell.say("Completing: refused while the old version of the application runs, then done.")
        refused = self._run("apply", self._script_id, "--to", "complete", expect=(ExitCode.REFUSED,))
        self._prove(
            "application-old" in refused.output,
            "Completion was refused by name of the client that still uses old keys.",
            "the refusal did not name the client of the old view",
        )
        self.application.old.close()
        self._run("apply", self._script_id, "--to", "complete")
        self.tell.why("Nothing follows the target from here on. The source stays until retention is over.")
        return self._same("After completion", after_cutover=True)

    def _waited(self, during: str) -> None:
        self._proved(
            f"{self.application.told()} during {during}, none lost; the longest write took"
            f" {self.application.longest_seconds:.1f} s, the freeze included."
        )
