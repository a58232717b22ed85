"""Reads and judges the status of a migration for `rekey status`, `apply`, the progress server and hooks."""

from __future__ import annotations

from typing import Any

from rekey.core.clock import Clock
from rekey.core.plain import plain
from rekey.declaration.migration import Declared
from rekey.project.config import Config
from rekey.runner import steering
from rekey.status.facts import Sources, read_facts
from rekey.status.judge import Status, judge
from rekey.status.tell import document


async def read_status(sources: Sources, declared: Declared, *, at_end: bool = False) -> Status:
    """Return the status of a migration; `at_end` and errors as of `read_facts`."""
    paused = steering.is_paused(sources.config.state)
    return judge(await read_facts(sources, declared, paused=paused, at_end=at_end))


def progress_document(config: Config, status: Status, clock: Clock) -> dict[str, Any]:
    """Return the progress document of one migration."""
    setting = steering.read(config.state) or steering.Steering()
    return document([status], plain(setting), clock.ticks())
