"""Hooks: a program of the operator's that is run when something happens to a migration."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rekey.core.progress import Work
from rekey.errors import reason_of
from rekey.present.text import duration
from rekey.project.config import Hooks


class HookEvent(StrEnum):
    """What a hook is run for."""

    PHASE_BEGUN = "phase-begun"
    PHASE_ENDED = "phase-ended"
    GATE_REFUSED = "gate-refused"
    STALLED = "stalled"
    DIVERGENCE = "divergence"
    FREEZE = "freeze"
    DONE = "done"


async def run_hook(hooks: Hooks, folder: Path, document: bytes) -> str:
    """Run the hook and return how it failed, "" when it did not. Without a shell, in the folder of
    `rekey.toml`, with the progress document on standard input; its output is discarded."""
    try:
        # In a session of its own: Ctrl-C stops the migration at a checkpoint, not a hook half way.
        process = await asyncio.create_subprocess_exec(
            *hooks.command, cwd=folder, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
        )
    except OSError as error:
        return f"cannot be run ({reason_of(error)})"
    try:
        async with asyncio.timeout(hooks.timeout_s):
            await process.communicate(document)
    except TimeoutError:
        return f"had not ended after {duration(hooks.timeout_s)}"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                if os.name == "posix":
                    # The hook and the processes it began.
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
            await process.wait()
    code = process.returncode
    return f"ended with exit code {code}" if code else ""


@dataclass(slots=True)
class Stalls:
    """Notices a pass whose rows have not grown for `after_s` seconds."""

    after_s: float
    _seen: tuple[str, int, int] | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)
    _reported: bool = field(default=False, init=False)

    def stalled(self, work: Work | None, now: float, *, paused: bool) -> bool:
        """Tell, once until it moves again, that a pass has stalled. `now`: monotonic seconds."""
        seen = None if work is None or paused else (work.label, work.began_at, work.rows)
        if seen != self._seen:
            self._seen, self._since, self._reported = seen, now, False
        if seen is None or self._reported or now - self._since < self.after_s:
            return False
        self._reported = True
        return True
