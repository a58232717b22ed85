"""The life of a migration in capture "dual-write": the same steps, and the application never stops.

Rules kept here:

* What differs from capture "delta" is here: no pass brings anything over, nobody confirms that writers have
  stopped, cutover and the way back happen while both versions of the application write.
* How long a write waited is told with the figure that was measured; no figure is a condition.
"""

from __future__ import annotations

from rekey.errors import ExitCode
from rekey.rehearse.live import LiveApplication
from rekey.rehearse.project import Project
from rekey.rehearse.report import Briefly
from rekey.rehearse.steps import TARGET_WRITES, Life
from rekey.rehearse.witness import Finding, Witness

_WRITES_BEFORE = 3


class LifeUnderWrites(Life):
    """Takes one migration through its life while an application writes through the clients."""

    def __init__(
        self,
        project: Project,
        witness: Witness,
        application: LiveApplication,
        narrator: Briefly,
        *,
        writes: int,
        kill_after: int,
    ) -> None:
        """Take the parts, as any life does."""
        super().__init__(project, witness, application, narrator, writes=writes, kill_after=kill_after)
        self._live = application

    def live(self) -> None:
        """Go through the whole life. Raises NotAsItMustBe."""
        self._tell.say("The application writes through rekey's client from now on, and will not stop.")
        for _ in range(_WRITES_BEFORE):
            self._live.write_source()
        super().live()

    def _catch_up(self, why: str = "") -> None:
        """Nothing is due: every write was followed before it was acknowledged."""

    def _cut_over(self) -> None:
        self._tell.say("Cutting over, while the application goes on writing.")
        self._to_cutover()
        self._tell.why(
            "A freeze of seconds: clients let their writes wait, everything announced is settled, and the"
            " target has the authority. Nobody was stopped."
        )
        self._same("After cutover, under writes", after_cutover=True)

    def _to_cutover(self) -> None:
        self._live.begin_counting()
        self._run_beside("apply", self._script_id, "--to", "cutover", write=self._live.write_source)
        self._waited("the cutover")

    def _there_and_back(self) -> None:
        self._tell.say("Both versions of the application write, in both views; then all is rolled back.")
        self._live.begin_counting()
        for _ in range(TARGET_WRITES):
            self._live.write_both()
        self._same(f"After {self._live.told()} in both views", after_cutover=True)
        self._live.begin_counting()
        self._run_beside("rollback", self._script_id, write=self._live.write_both)
        self._tell.why("The authority went back to the source, which had followed the target all along.")
        self._waited("the rollback")
        self._same("After the rollback, under writes in both views", after_cutover=True)
        self._tell.say("Verifying what came back, and cutting over again.")
        self._run("verify", self._script_id, "--mode", "full")
        self._to_cutover()
        self._tell.why("A rollback costs nothing but time; the way forward is the same as before.")
        self._same("After the second cutover", after_cutover=True)

    def _complete(self) -> Finding:
        self._tell.say("Completing: refused while the old version of the application runs, then done.")
        refused = self._run("apply", self._script_id, "--to", "complete", expect=(ExitCode.REFUSED,))
        self._prove(
            "application-old" in refused.output,
            "Completion was refused by name of the client that still uses old keys.",
            "the refusal did not name the client of the old view",
        )
        self._live.clients.close_old()
        self._run("apply", self._script_id, "--to", "complete")
        self._tell.why("Nothing follows the target from here on. The source stays until retention is over.")
        return self._same("After completion", after_cutover=True)

    def _waited(self, during: str) -> None:
        self._proved(
            f"{self._live.told()} during {during}, none lost; the longest write took"
            f" {self._live.longest_seconds:.1f} s, the freeze included."
        )
