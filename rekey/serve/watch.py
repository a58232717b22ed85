"""Polls migrations while they are watched: the newest progress document, the last hour, and the changes.
There is one poll at a time, however many watch, so that watching costs the accounts the same."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, ClassVar

from rekey.core.clock import Clock, format_ticks
from rekey.errors import RekeyError
from rekey.phases import shown

# A progress document (`rekey/status/progress.schema.json`).
Document = Mapping[str, Any]
Read = Callable[[], Awaitable[Document]]

EVERY_S = 2.0
SAMPLE_EVERY_S = 10.0
MAX_EVENTS = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """A point of a migration's last hour: rows per second, and lag in seconds; None if unknown."""

    at: str
    rows_per_second: float | None
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """A change: when, in which migration, and what, in words."""

    at: str
    script_id: str
    text: str


@dataclass(eq=False, repr=False)
class Watch:
    """The newest document and its history, limited to an hour of samples and `MAX_EVENTS` changes."""

    read: Read
    # Tells the time and waits between polls.
    clock: Clock
    _: KW_ONLY
    # The newest one, None before the first. A failed poll keeps it, with its time.
    document: Document | None = None
    # Why the last poll failed, "" if it did not.
    problem: str = ""
    failures: int = 0
    # The last hour, by migration.
    samples: dict[str, deque[Sample]] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    _seen_at: float | None = None
    _sampled_at: float | None = None
    _updated: asyncio.Condition = field(default_factory=asyncio.Condition)
    _closed: bool = False
    HOUR: ClassVar = round(3600 / SAMPLE_EVERY_S)

    @property
    def age_s(self) -> float | None:
        """The age of the document in seconds, None without one."""
        return None if self._seen_at is None else self.clock.monotonic() - self._seen_at

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.update()
            await self.clock.sleep(EVERY_S)

    async def update(self) -> None:
        """Poll once, and wake the watchers."""
        try:
            document = await self.read()
        except RekeyError as error:
            self.problem, self.failures = error.what, self.failures + 1
        else:
            self.problem = ""
            self.events.extend(changes(self.document, document))
            self.document, self._seen_at = document, self.clock.monotonic()
            self._sample(document)
        async with self._updated:
            self._updated.notify_all()

    async def close(self) -> None:
        """End all `updates`."""
        async with self._updated:
            self._closed = True
            self._updated.notify_all()

    async def updates(self) -> AsyncIterator[tuple[Document | None, str]]:
        """Yield document and problem, now and after each poll."""
        while not self._closed:
            yield self.document, self.problem
            async with self._updated:
                if not self._closed:  # it may have been closed while the caller worked
                    await self._updated.wait()

    def history(self) -> dict[str, Any]:
        """Return samples and events as JSON-able data."""
        return {
            "sample_every_s": SAMPLE_EVERY_S,
            "samples": {script: [*map(asdict, samples)] for script, samples in self.samples.items()},
            "events": [asdict(event) for event in self.events],
        }

    def _sample(self, document: Document) -> None:
        now = self.clock.monotonic()
        if self._sampled_at is not None and now - self._sampled_at < SAMPLE_EVERY_S:
            return
        self._sampled_at = now
        for migration in document["migrations"]:
            rate = None if migration["work"] is None else migration["work"]["rows_per_second"]
            sample = Sample(format_ticks(self.clock.ticks()), rate, migration["lag_s"])
            self.samples.setdefault(migration["script_id"], deque(maxlen=self.HOUR)).append(sample)


def changes(before: Document | None, now: Document) -> Iterator[Event]:
    """Yield the changes from one document to the next, in words."""
    migrations = () if before is None else before["migrations"]
    known = {migration["script_id"]: migration for migration in migrations}
    for migration in now["migrations"]:
        old = known.get(migration["script_id"])
        if old is not None:
            for text in _changes(old, migration):
                yield Event(now["as_of"], migration["script_id"], text)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    phase = new["phase"]
    if (old["phase"]["name"], old["phase"]["state"]) != (phase["name"], phase["state"]):
        name = shown(phase["name"] or "not begun", new["capture"])
        yield f"{name}: {phase['state'].replace('-', ' ')}"
    if old["sentence"] != new["sentence"]:
        yield new["sentence"]
    had, is_held = ({limit["by"]: limit["text"] for limit in status["held_back"]} for status in (old, new))
    yield from (is_held[by] for by in sorted(is_held.keys() - had))
    yield from (f"over: {had[by]}" for by in sorted(had.keys() - is_held))
    standing, stands = (
        {client["name"]: client["standing"] for client in status["clients"]} for status in (old, new)
    )
    for name in sorted(standing.keys() | stands.keys()):
        if standing.get(name) != stands.get(name):
            yield f"client {name}: {stands.get(name, 'gone')}"
