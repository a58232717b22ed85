"""Runs commands in a storm: whoever operates them waits for one, and everybody else goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.storm import Process, Storm
from tests.worlds.small import Killed


class Driver:
    """Runs the work of one command of the runner, and everybody else meanwhile (as an `asyncio.Runner`)."""

    LONGEST_S = 3_600.0

    def __init__(self, storm: Storm, process: Process, beside: Callable[[], None] | None = None) -> None:
        """Take the process, and what somebody else does as soon as it stands still, once."""
        self._storm = storm
        self._process = process
        self._beside = beside

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end. Raises Killed when the process is killed meanwhile."""
        loop, process = self._storm.loop, self._process
        if process.dead:
            work.close()
            raise Killed
        task = self._storm.start(process, work)
        loop.drain()
        try:
            self._wait_for(task)
        except BaseException:
            loop.kill(process)
            loop.drain()
            raise
        if process.dead:
            loop.drain()
            raise Killed
        return task.result()

    def _wait_for(self, task: asyncio.Task[Any]) -> None:
        loop, process = self._storm.loop, self._process
        until = loop.now + self.LONGEST_S
        while not task.done() and not process.dead:
            if process.stopped and self._beside is not None:
                beside, self._beside = self._beside, None
                beside()
                until = loop.now + self.LONGEST_S
                continue
            pause = loop.next_timer()
            if pause is None or loop.now > until:
                raise AssertionError("a command of the runner waits for what never comes")
            loop.pass_time(pause + 1e-6)
