"""`apply --follow`: keeps targets up to date before the gate of cutover until `rekey proceed` or the window
calls for the cutover."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict, dataclass, replace

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.concurrency import cancel, first_of
from rekey.core.progress import Progress
from rekey.errors import Findings, GateClosed, Interrupted, RekeyError, WriterAtWork
from rekey.next_steps import after_findings, next_step
from rekey.phases import Phase
from rekey.present.text import differing, duration, moment
from rekey.protocol.rules import SOURCE
from rekey.runner import steering
from rekey.runner.clients import sweep_journal, unfrozen
from rekey.runner.phases.cutover import gate
from rekey.runner.phases.reconcile import bring_changes, follow
from rekey.runner.run import Options, Run, StopFlag, asks_again
from rekey.runner.steering import Proceed
from rekey.runner.stop import expected_stop_s, keep, measured
from rekey.runner.verification import verify_full, wrong
from rekey.state.models import WATERMARK
from rekey.status.facts import FOLLOWING, took_s
from rekey.status.notes import note
from rekey.status.reasons import reason
from rekey.tables.allowance import while_allowed

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Call:
    """What calls for the cutover: a `rekey proceed`, or a window; `opened` and `closes` in ticks."""

    proceed: Proceed | None = None
    opened: int = 0
    closes: int = 0


class Follower:
    """Follows one migration that is before the gate of cutover."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # A `proceed` before this process began does not count: what the operator confirmed may be true no
        # longer.
        self._heard = (steering.read(run.config.state) or steering.Steering()).proceed
        self._asked: float | None = None
        self._asked_in = self._tried = 0  # the windows in which the gate was asked, and the cutover begun
        self._failed = False
        self._refusal: tuple[str, ...] = ()
        kept = run.state.get_fact(run.script_id, FOLLOWING)
        # Followed since, UTC.
        self.since = json.loads(kept)["since"] if kept else format_ticks(run.clock.ticks())
        self._keep()
        step = next_step("proceed-stopped" if run.is_delta else "proceed", script=run.script_id)
        code, values = "following", {"script": run.script_id, "since": moment(self.since), "step": step}
        if (window := run.config.follow.window) is not None:
            opens, closes = (moment(format_ticks(at)) for at in window.next(run.clock.ticks()))
            code, values = "following-with-window", {**values, "opens": opens, "closes": closes}
        note(run.progress, code, values, script_id=run.script_id, since=self.since)
        if kept and self._heard is not None and self._heard.script_id == run.script_id:
            note(
                run.progress, "proceed-too-old", {"script": run.script_id, "at": moment(self._heard.said_at)}
            )
        if window is not None and run.is_delta and not run.options.writers_stopped:
            note(run.progress, "window-refuses", {"script": run.script_id})

    def _keep(self) -> None:
        kept = json.dumps({"since": self.since, "refused": self._refusal})
        self._run.state.set_fact(self._run.script_id, FOLLOWING, kept)

    def ended(self) -> None:
        """Record that it is no longer followed: cut over, or stopped on request."""
        self._run.state.set_fact(self._run.script_id, FOLLOWING, None)

    # --- until cutover is called for -----------------------------------------------------------------------

    async def until_called(self) -> Call:
        """Keep the targets up to date until cutover is called for.

        Raises:
            Interrupted, Locked: on request; the runner lease was lost.
            RekeyError: what passes and comparisons raise.
        """
        run, over = self._run, asyncio.Event()
        # A failed cutover may have left its freeze behind, in which writes wait.
        await unfrozen(run)
        ours = replace(run, stop=StopFlag(), pool=None, share=run.config.follow.share)
        # Only one thing at a time is shown: not the pass next to a comparison.
        unshown = replace(ours, progress=Progress(run.clock))
        with while_allowed(run.still_alone):
            comparing = _compare(ours, over, at_once=self._failed)
            tasks = [asyncio.ensure_future(work) for work in (_bring(unshown, over), comparing)]
        self._failed = False
        try:
            while (call := await self._called()) is None and not any(task.done() for task in tasks):
                run.check()
                await run.clock.sleep(_POLL_S)
            over.set()
            # Ends pass and comparison at their next page, so that no request is left unanswered that the
            # cutover would wait for. If the gate refuses, the comparison goes on from its stored digests.
            ours.stop.request()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await cancel(tasks)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, Interrupted):
                raise end
        if call is None:
            raise AssertionError("a task ends with an error, or when it is told to")
        return call

    async def _called(self) -> Call | None:
        """Return what calls for the cutover now: a new `proceed`, or a window whose gate is open or refuses
        for new reasons."""
        run, now = self._run, self._run.clock.monotonic()
        setting = steering.read(run.config.state)
        if setting is None or setting.paused:
            return None  # nothing is sent before `rekey resume`
        if setting.proceed != self._heard:
            self._heard = setting.proceed
            if setting.proceed is not None and setting.proceed.script_id == run.script_id:
                run.state.audit("proceed", run.script_id, asdict(setting.proceed))
                values = {"script": run.script_id, "at": moment(setting.proceed.said_at)}
                note(run.progress, "proceed-heard", values, script_id=run.script_id)
                return Call(setting.proceed)
        window, ticks = run.config.follow.window, run.clock.ticks()
        if window is None:
            return None
        opened, closes = window.next(ticks)
        waited = self._asked is None or now - self._asked >= run.config.follow.every_s
        # One attempt per window: each freeze makes writes wait.
        if opened > ticks or opened == self._tried or not waited:
            return None
        self._asked, before, self._asked_in = now, self._asked_in, opened
        call = Call(None, opened, closes)
        reasons = await gate(replace(run, options=self.options(call))) + self.outlasts(call)
        same = before == opened and [*map(_plain, reasons)] == [*map(_plain, self._refusal)]
        return None if reasons and same else call

    # --- the cutover ---------------------------------------------------------------------------------------

    def options(self, call: Call) -> Options:
        """Return the options that the gate is asked with."""
        options = self._run.options
        if call.proceed is None:
            return replace(options, freeze_by=call.closes)
        return replace(options, writers_stopped=call.proceed.writers_stopped)

    def outlasts(self, call: Call) -> list[str]:
        """Return, as a list, the reason that the expected downtime outlasts the window; then it is not tried
        again in it."""
        left_s = (call.closes - self._run.clock.ticks()) / TICKS_PER_SECOND
        stop_s = expected_stop_s(self._run) if self._run.is_delta else None
        if call.proceed is not None or stop_s is None or stop_s <= left_s:
            return []
        self._tried = call.opened
        closes = moment(format_ticks(call.closes))
        return [reason("window-too-short", closes=closes, expected=duration(stop_s))]

    def enters(self, call: Call) -> None:
        """Record that the cutover was begun in this window."""
        self._tried = call.opened or self._tried

    def refused(self, problem: RekeyError) -> None:
        """Report that the cutover was refused, and why."""
        run, hint = self._run, problem.hint
        # Then everything is compared at once: what differed under the freeze is repaired by that, or was
        # written by somebody who had not stopped.
        self._failed = isinstance(problem, WriterAtWork | Findings)
        last = run.state.latest_verification(run.script_id)
        if isinstance(problem, WriterAtWork):
            hint = asks_again(run, Phase.CUTOVER)
        elif isinstance(problem, Findings) and last is not None:
            hint = str(after_findings(run.script_id, run.source.name, last.report, following=True))
        self._refusal = tuple(problem.reasons if isinstance(problem, GateClosed) else [problem.what])
        self._keep()
        values = {"script": run.script_id, "what": problem.what, "step": hint}
        reasons = list(self._refusal)
        note(run.progress, "cutover-refused", values, script_id=run.script_id, reasons=reasons)


def _plain(text: str) -> str:
    return re.sub(r"\d[\d.,:]*", "0", text)


async def _bring(run: Run, over: asyncio.Event) -> None:
    """Make a pass (capture "delta") or settle dead clients' intents, every `[follow] every`."""
    sweeper = None if run.is_delta else run.sweeper
    while True:
        await first_of(over, run.clock.sleep(run.config.follow.every_s))
        if over.is_set():
            return
        if sweeper is not None:
            await sweep_journal(run, SOURCE, sweeper)
            continue
        await bring_changes(run)
        since, last = run.state.get_fact(run.script_id, WATERMARK), measured(run)
        if since is not None and last is not None:
            keep(run, replace(last, at=since, waiting=0))


async def _compare(run: Run, over: asyncio.Event, *, at_once: bool) -> None:
    """Compare everything again and again, first one that was cut off. `at_once`: without waiting. Differences
    close the gate and are reported; they do not end the following. Rows deleted in the source go with it, as
    passes do not see them."""
    config = run.config
    while True:
        last = run.state.latest_verification(run.script_id)
        if last is not None and not at_once and run.state.stored_digests(run.script_id) is None:
            every_s = min(config.follow.compare_every_s, config.gates.max_age_s(took_s(last)) / 2)
            since_s = (run.clock.ticks() - ticks_of(last.started_at)) / TICKS_PER_SECOND
            await first_of(over, run.clock.sleep(max(0.0, every_s - since_s)))
        if over.is_set():
            return
        at_once = False
        report = (await follow(run, passes=False))[1] if run.is_delta else await verify_full(run)
        if report.findings:
            step = after_findings(run.script_id, run.source.name, report.as_json(), following=True)
            values = {"script": run.script_id, "differing": differing(wrong(report), " that "), "step": step}
            note(run.progress, "gate-closed-by-differences", values)
