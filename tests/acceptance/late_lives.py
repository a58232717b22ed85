"""Lives of migrations in which requests arrive late and processes are killed and stopped.

    python -m tests.acceptance.late_lives SEED FOLDER     lives one of them

Rules kept here:

* Everything is drawn from the life's seed: capture, application, the way through the phases, the weather,
  and when who is killed or stopped. (What happens in between is up to the machine: a seed gives the same
  plan, not the same microseconds.)
* The operator does what messages say, again and again, for a bounded time. A command may refuse; it must not
  crash, and it must get there in the end.
* At rest (nobody writes, nothing is held any more) the ledgers are held against the authority's table over
  the raw wire, past the proxy, and every replica against what the authority's rows give. Settling takes a
  while, so replicas are looked at again until they are right or the time is over.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rekey.rehearse.azurite import Azurite
from tests.acceptance.late_stage import USUAL, Outcome, Scale, Stand, Stuck
from tests.worlds.applications import View
from tests.worlds.late_ledger import Did, Verdict, always, did, judge, steady
from tests.worlds.late_machines import Client, Runner

COMMAND_SECONDS = 200.0
ATTEMPTS = 30
SECOND_SECONDS = 180.0
"""For so long a second runner begins again while the first one is at work."""
_SETTLE_SECONDS = 45.0
_PROCESSES = ("--executor", "rekey.executors:processes")


class Life(Stand):
    """One migration with its operator, who is disturbed, and the judge."""

    # --- the life ----------------------------------------------------------------------------------------

    def live(self) -> Outcome:
        """Live it; return what came of it."""
        try:
            self._join_writers("old")
            self._until_opened()
            self._weather(on=True)
            self._blows = True
            for step in self.route:
                self.outcome.notes.append(f"{self._now():7.1f} {step}")
                getattr(self, "_" + step.replace(" ", "_"))()
                if self.outcome.wrong:
                    return self.outcome
            self._rest("at the end", last=True)
        except Stuck as stuck:
            self.outcome.wrong.append(f"stuck: {stuck}")
        return self.outcome

    @property
    def authority(self) -> View:
        """The view whose table is the authority."""
        return "new" if self.stage.phase() in ("cutover", "complete", "retired") else "old"

    @property
    def _what(self) -> tuple[str, ...]:
        """What a command that moves the authority is told to move."""
        return (self.project.script_id,) if self.group is None else ("--group", self.group.name)

    @property
    def _stopped(self) -> tuple[str, ...]:
        """What confirms that nobody writes: of the group's other source that is always so."""
        return () if self.capture == "dual-write" and self.group is None else ("--writers-stopped",)

    def _apply(self) -> None:
        executor = _PROCESSES if self.workers else ()
        self._command("apply", *self._what, *executor)
        if self.capture == "dual-write":
            self._let_write(2.0)

    def _cutover(self) -> None:
        if self.capture == "delta":
            self._stop_writers()
        self._command("apply", *self._what, "--to", "cutover", *self._stopped)
        if self.capture == "delta":
            # Nobody writes yet, and nothing follows from here on: the copy is the authority now.
            self._rest("after cutover", replicas="old")
            if self.world_name == "users":
                self._join_writers("new")
                self._until_opened()
        self._let_write(3.0)

    def _back(self) -> None:
        if self.lot.random() < 0.4 and self.capture == "dual-write":
            self._rest("before the way back")
        if self.capture == "delta":
            self._stop_writers()
        self._command("rollback", *self._what, "--to", "dual_write", *self._stopped)
        if self.capture == "delta":
            self._rest("after the way back")
            self._join_writers("old")
        self._let_write(2.0)
        self._command("verify", self.project.script_id, "--mode", "full")

    def _drop(self) -> None:
        # Clients of capture "delta" delete rows of the source all the time: the copy never has fewer.
        reason = ("--reason", "the application deletes rows") if self.capture == "delta" else ()
        words = ("rollback", *self._what, "--to", "source", "--drop-targets", *reason)
        self._command(*words, done="has not begun")

    def _drop_and_look(self) -> None:
        self._drop()
        self._calm_down()
        self._check_nothing_left()
        self._weather(on=True)

    def _complete(self) -> None:
        for name in [name for name, one in self.clients.items() if one.job.view == "old"]:
            self._end_client(name)
        self._command("apply", *self._what, "--to", "complete", "--yes", self._what[-1])
        self._let_write(2.0)

    # --- the operator ------------------------------------------------------------------------------------

    def _command(self, *words: str, done: str = "") -> None:
        """Run a command until it is done, disturbed for a while, doing what its messages say."""
        disturbances = self.lot.randint(0, self.scale.kills) if self._blows else 0
        said: list[str] = []
        while len(said) < ATTEMPTS:
            runner = self._start(words)
            plan = self._draw_blow() if disturbances > 0 else None
            disturbances -= plan is not None
            code, told = self._attend(runner, plan)
            if "another runner works" in told and len(self._runners) > 0:
                self._let_write(1.0)  # it is alive, and works: it is waited for as long as that takes
                continue
            said.append(f"exit {code}: {told[-400:]}")
            if code == 0 or (done and done in told):
                return
            if code < 0 or plan == "kill":
                continue
            if code == 2 and plan == "second":
                continue  # the other runner was done, and this one's state file is of the past
            self._follow(words, code, told)
        raise Stuck(f"`rekey {' '.join(words)}` after {ATTEMPTS} attempts: {said[-3:]}")

    def _start(self, words: Sequence[str], home: int | None = None) -> Runner:
        self.figures["commands"] += 1
        chosen = self.homes[self._home if home is None else home]
        printed = self.folder / "printed" / f"{self.figures['commands']}"
        over = self.homes[0] if self.contained else None
        runner = Runner(words, chosen, printed, self.environment, over=over)
        self._runners.append(runner)
        return runner

    def _attend(self, runner: Runner, blow: str | None) -> tuple[int, str]:
        """Wait for a command's end, with one blow at it; return exit code and what it said.

        Many blows come as soon as a write of the runner is held: it arrives when the runner is gone.
        """
        at = runner.started + self.lot.uniform(0.8, self.lot.choice((2.0, 4.0, 9.0, 16.0)))
        once_held = self.lot.random() < 0.6
        while runner.alive:
            self._tick()
            if blow is None:
                pass
            elif time.monotonic() >= at or (once_held and self.proxy.held("runner")):
                self._strike(runner, blow)
                blow = None
            if runner.seconds > COMMAND_SECONDS:
                runner.kill()
                told = runner.said()[-600:]
                raise Stuck(f"{runner} did not end in {COMMAND_SECONDS:.0f} s: {told}")
        code, told = runner.code, runner.said()
        assert code is not None
        code = code - 256 if code > 128 and code != 130 else code
        self.outcome.notes.append(f"{self._now():7.1f} {runner}: {code} {told[-1500:]}")
        if "Traceback" in told or "fault of rekey" in told:
            self.outcome.wrong.append(f"{runner} crashed: {told[-1500:]}")
            raise Stuck("a command crashed")
        if code >= 0:
            self.figures["exits 0" if code == 0 else "refusals"] += 1
        runner.end()
        self._runners.remove(runner)
        return code, told

    def _draw_blow(self) -> str | None:
        blows = ["kill", "kill", "stop", "stop", "short stop"]
        if self.two:
            blows += ["second", "second", "second"]
        if self.workers:
            blows += ["kill worker", "stop worker"]
        return self.lot.choice(blows)

    def _strike(self, runner: Runner, blow: str) -> None:
        """Kill or stop a runner, or a worker of it; begin a second one beside one that stands still."""
        self.outcome.notes.append(f"{self._now():7.1f} {blow}")
        workers = runner.workers() if "worker" in blow else []
        if "worker" in blow and not workers:
            return
        if blow == "kill worker":
            self.figures["kills of workers"] += 1
            self.lot.choice(workers).kill()
        elif blow == "stop worker":
            self.figures["stops of workers"] += 1
            runner.stop([self.lot.choice(workers)])
            self._later(self.lot.uniform(1.0, self.scale.stop), runner)
        elif blow == "kill":
            self.figures["kills of runners"] += 1
            runner.kill()
        else:
            self.figures["stops of runners"] += 1
            runner.stop(runner.itself() if self.lot.random() < 0.5 else None)
            longest = 2.0 if blow == "short stop" else self.scale.stop
            self._later(self.lot.uniform(0.3, longest), runner)
            if blow == "second":
                self._begin_second(runner)

    def _begin_second(self, first: Runner) -> None:
        """Run the same command from the other home, while the first one stands still or goes on."""
        other = 1 - self.homes.index(first.home)
        state = self.homes[other] / "state"
        shutil.rmtree(state, ignore_errors=True)
        if self.lot.random() < 0.5 and (first.home / "state").is_dir():
            shutil.copytree(first.home / "state", state)
        self.figures["second runners"] += 1
        # The first one may wait for clients that were killed, and then stand in a freeze.
        give_up_at = self._now() + SECOND_SECONDS
        while self._now() < give_up_at:
            code, told = self._attend(self._start(first.words, other), None)
            if code == 2:
                # A copy of a state file that was being written.
                shutil.rmtree(state, ignore_errors=True)
            if code == 0 or (first.words[0] == "rollback" and "has not begun" in told):
                self._home = other
                return
            if not first.alive and not first.stopped:
                return
            self._pause(0.5)
        raise Stuck(f"the second runner: {told[-600:]}")

    def _follow(self, words: Sequence[str], code: int, told: str) -> None:
        """Do what a message says before the same command is run again."""
        script_ids = (self.project.script_id,) if self.group is None else self.group.script_ids
        if code == 1:
            self.figures["findings"] += 1
            if self.stage.phase() == "dual_write":
                for one in script_ids:
                    self._attend(self._start(("verify", one, "--mode", "full", "--repair")), None)
        elif (
            code == 3
            and words[0] != "verify"
            and "verif" in told
            and self.stage.phase() in ("dual_write", "cutover")
        ):
            for one in script_ids:
                self._attend(self._start(("verify", one, "--mode", "full")), None)
        elif code == 2:
            raise Stuck(f"`rekey {' '.join(words)}`: {told[-600:]}")
        self._pause(1.0)

    # --- looking -----------------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """Let everybody stand still and everything arrive that is held."""
        self._blows = False
        for _, stopped in self._to_go_on:
            stopped.go_on()
        self._to_go_on = []
        self._weather(on=False)
        before = {client.job.name: self._paused(client) for client in self.clients.values()}
        (self.control_folder / "pause").touch()
        deadline = time.monotonic() + 60
        while moving := [
            client
            for client in self.clients.values()
            if self._paused(client) <= before.get(client.job.name, 0)
        ]:
            self._tick()
            if time.monotonic() > deadline:
                raise Stuck(f"{moving[0].job.name} does not stand still: {moving[0].said()[-600:]}")
        while self.proxy.held():
            self._tick()
        time.sleep(0.3)

    def _paused(self, client: Client) -> int:
        return self._noted(client).count("paused")

    def _rest(self, when: str, replicas: View | None = None, *, last: bool = False) -> None:
        """Compare ledgers and tables while everybody stands still.

        Args:
            when: for the verdict.
            replicas: which view's table the replicas are compared with; by default the authority's.
            last: writers stay as they are, standing still.
        """
        self._calm_down()
        self.figures["rests"] += 1
        authority = self.authority
        unlike = self._settled(replicas or authority)
        if unlike:
            self.outcome.wrong.append(f"{when}: {len(unlike)} rows of replicas are wrong: {unlike[:4]}")
        if self.group is not None:
            self.outcome.wrong += [f"{when}: {one}" for one in self.group.wrong()]
        verdict = self.judged(authority)
        for name in ("acknowledged", "open", "failed"):
            self.figures[name] = verdict.writes[name]
        self.figures["reads"] = verdict.reads
        self.outcome.wrong += [f"{when}: {one}" for one in verdict.wrong]
        if self.outcome.wrong or last:
            return
        (self.control_folder / "pause").unlink()
        self._weather(on=True)
        self._blows = True

    def _settled(self, authority: View) -> list[str]:
        """Return how replicas differ, once that does not change any more."""
        phase = self.stage.phase()
        if phase in ("", "complete") or (
            self.capture == "delta" and phase == "cutover" and authority == "new"
        ):
            return []
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            if phase == "dual_write" or self.capture == "dual-write":
                code, _ = self._attend(self._start(("apply", *self._what)), None)
                if code == 1:
                    self.figures["findings"] += 1
            unlike = self.stage.unlike(authority) + self.stage.unmapped()
            if not unlike or time.monotonic() > deadline:
                return unlike
            self._pause(3.0)

    def judged(self, authority: View) -> Verdict:
        """Hold the ledgers against the authority's table."""
        self._look()
        table = self.project.source if authority == "old" else self.project.target
        found, twice = self.world.states(authority, self.project.wire.rows(table))
        counts: Callable[[Did], bool] = always if self.capture == "delta" else steady(self._looks)
        verdict = judge(self.initial, did(job.ledger for job in self._jobs()), found, counts)
        verdict.wrong += twice
        return verdict

    def _check_nothing_left(self) -> None:
        """After `rollback --drop-targets` there is nothing of the dropped run, whatever arrived since."""
        self.figures["rests"] += 1
        project = self.project
        names = project.wire.names() & {project.target, project.index}
        left = [f"table {name}: {len(project.wire.rows(name))} rows" for name in sorted(names)]
        for table in ("rekeymap", "rekeyjournal"):
            rows = project.restricted_rows(table)
            if rows:
                left.append(f"{table}: {len(rows)} rows, one in {rows[0]['PartitionKey']}")
        if self.stage.control():
            left.append("the control row")
        left += [] if self.group is None else self.group.wrong()
        if left:
            self.outcome.wrong.append(f"left by a run whose targets were dropped: {left}")
        (self.control_folder / "pause").unlink()
        self._blows = True


def live_one(
    folder: Path, azurite: Azurite, seed: int, *, scale: Scale = USUAL, route: Sequence[str] = ()
) -> Outcome:
    """Live one life; its notes stand in its folder."""
    with Life(folder, azurite, seed, scale=scale, route=route) as life:
        outcome = life.live()
    (folder / "notes").write_text("\n".join([*outcome.notes, str(outcome)]), "utf-8")
    return outcome


if __name__ == "__main__":
    with Azurite() as _azurite:
        _outcome = live_one(Path(sys.argv[2]), _azurite, int(sys.argv[1]))
    print(_outcome)
    print(json.dumps({**vars(_outcome), "notes": []}))
