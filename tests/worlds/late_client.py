"""One process of an application whose processes write the same few rows at once, with its ledger.

Rules kept here:

* It writes through the dual-write client, or, in capture "delta", through the SDK alone. What an exception
  says decides what the ledger says: refused or answered with 4xx is failed, all else is open.
* Its own SDK repeats nothing: a repetition can be told that its own first sending is in the way.
* Every write has content that no other has. Rows are drawn at random, so several processes and several tasks
  of each write one row at once.
* It stands still while there is a file `pause` in its folder, ends when there is a file `stop-NAME`, and ends
  with the exit code RESTART when a refusal says that it must be restarted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, HttpResponseError
from azure.data.tables import UpdateMode

from tests.worlds.application_clients import Where, mapper_of, open_client
from tests.worlds.applications import MONTHS, WORLDS, View, World
from tests.worlds.late_ledger import READ, Content, Ledger, State

RESTART = 7
_RESTART_CODES = ("other-run", "control-gone", "control-moved-back")
_IDLE_SECONDS = 0.02
_REFUSED_PAUSE_SECONDS = 0.15
_MOST_OF_BATCH = 3


@dataclass(frozen=True)
class Job:
    """What one client process is to do.

    Attributes:
        name: of the process, and of its ledger.
        world, view: how it addresses its rows.
        where: endpoints and settings.
        folder: where its ledger and the control files are.
        rows: what it writes.
        seed: of its choices.
        tasks: how many at once.
        sync: through the client without async, one task only.
        pause: the longest pause between two operations of a task, in seconds.
    """

    name: str
    world: str
    view: View
    where: Where = field(repr=False)
    folder: str
    rows: list[str]
    seed: str
    tasks: int = 2
    sync: bool = False
    pause: float = 0.3

    @property
    def ledger(self) -> Path:
        """Its ledger's file."""
        return Path(self.folder) / f"{self.name}.jsonl"


class _Restart(Exception):
    """The client says that its process must be restarted."""


async def run(job: Job) -> int:
    """Do the job; return the exit code."""
    with Ledger(job.ledger, job.name) as ledger:
        world = WORLDS[job.world](mapper_of(job.where))
        async with open_client(job.where, job.view, sync=job.sync, name=job.name) as client:
            ledger.note("opened")
            gate = _Gate(Path(job.folder), job.name, ledger, job.tasks)
            hands = [_Hand(job, world, client, ledger, number).work(gate) for number in range(job.tasks)]
            tasks = [asyncio.create_task(hand) for hand in hands]
            ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            failed = [error for task in ended if (error := task.exception()) is not None]
            for error in failed:
                if not isinstance(error, _Restart):
                    raise error
        ledger.note("restart" if failed else "closed")
    return RESTART if failed else 0


@dataclass
class _Gate:
    """Lets tasks through, stops them while there is a file `pause`, and says so once all stand still."""

    folder: Path
    name: str
    ledger: Ledger
    tasks: int
    _standing: int = field(default=0)

    async def __call__(self) -> bool:
        """Return when the task may go on; False when it is to end."""
        if (self.folder / "pause").exists():
            self._standing += 1
            if self._standing == self.tasks:
                self.ledger.note("paused")
            while (self.folder / "pause").exists() and not (self.folder / f"stop-{self.name}").exists():
                await asyncio.sleep(_IDLE_SECONDS)
            self._standing -= 1
        return not (self.folder / f"stop-{self.name}").exists()


class _Numbers:
    """Of all tasks of a process."""

    last = 0

    @classmethod
    def next(cls) -> int:
        cls.last += 1
        return cls.last


class _Hand:
    """One task."""

    def __init__(self, job: Job, world: World, client: Any, ledger: Ledger, number: int) -> None:
        self._job, self._world, self._client, self._ledger = job, world, client, ledger
        self._view: View = job.view
        self._lot = random.Random(f"{job.seed}/{job.name}/{number}")
        self._known: dict[str, tuple[State, str]] = {}
        """What was read last, and its ETag."""

    async def work(self, gate: _Gate) -> None:
        """Read and write until told to end."""
        while await gate():
            row = self._lot.choice(self._job.rows)
            what = self._lot.random()
            if what < 0.3 or row not in self._known:
                await self._read(row)
            elif what < 0.4:
                await self._transact(row)
            else:
                await self._write(row)
            await asyncio.sleep(self._lot.uniform(0, self._job.pause))

    # --- reading -----------------------------------------------------------------------------------------

    async def _read(self, row: str) -> None:
        """Read a row under one of the keys that it can have."""
        known = self._known.get(row, (None, ""))[0]
        months: tuple[str | None, ...] = (None,)
        if self._keys_have_months:
            months = tuple(self._lot.sample(MONTHS, len(MONTHS)))
            if known is not None:
                months = (known["month"], *(month for month in months if month != known["month"]))
        for month in months:
            number = self._began(READ, row, {}, month)
            key = self._world.key(row, self._view, {"month": month} if month else {})
            answer = await self._send([number], lambda key=key: self._client.get_entity(*key), reads=True)
            if answer is None:
                return
            if answer:
                self._known[row] = self._world.content(self._view, answer), answer.metadata["etag"]
                return
        self._known[row] = None, ""

    @property
    def _keys_have_months(self) -> bool:
        return self._view == "new" and self._world.name == "posts"

    # --- writing -----------------------------------------------------------------------------------------

    async def _write(self, row: str) -> None:
        state, etag = self._known.pop(row)
        if state is None:
            verb = self._lot.choice(("create", "create", "put", "put-merge", "delete"))
        else:
            verb = self._lot.choice(
                ("replace", "merge", "merge", "put", "put-merge", "delete", "delete", "create")
            )
        conditional = bool(etag) and verb in ("replace", "merge", "delete") and self._lot.random() < 0.5
        content, at = self._content(row, verb, state)
        entity = self._entity(row, verb, content, at)
        number = self._began(verb, row, content, at, state if conditional else None)
        await self._send([number], lambda: self._call(verb, entity, etag if conditional else ""))

    async def _transact(self, first: str) -> None:
        """Write some rows of one partition in one transaction."""
        partition = self._world.old_key(first)[0]
        rows = [
            row for row in self._job.rows if self._world.old_key(row)[0] == partition and row in self._known
        ]
        chosen = self._lot.sample(rows, min(len(rows), _MOST_OF_BATCH))
        operations, numbers = [], []
        batch = f"{self._job.name}.{_Numbers.last + 1}"
        for row in chosen:
            state, _ = self._known.pop(row)
            verb = self._lot.choice(("put", "put", "replace", "delete")) if state else "create"
            content, at = self._content(row, verb, state)
            entity = self._entity(row, verb, content, at)
            operations.append(_in_transaction(verb, entity))
            numbers.append(self._began(verb, row, content, at, None, batch))
        await self._send(numbers, lambda: self._client.submit_transaction(operations))

    def _content(self, row: str, verb: str, state: State) -> tuple[Content, str | None]:
        """Return what to write, and the month that the key has."""
        value = f"{self._job.name} {_Numbers.last + 1:06d}"
        month = (state or {}).get("month") or self._lot.choice(MONTHS)
        at = month if self._keys_have_months else None
        if verb == "delete":
            return {}, at
        if verb == "merge":
            content = self._world.some(value, self._lot, self._view)
        else:
            content = self._world.whole(value, self._lot)
            if at:
                content["month"] = at
        if "tags" in content and "title" not in content:
            content["title"] = value
        return content, at

    def _entity(self, row: str, verb: str, content: Content, at: str | None) -> dict[str, Any]:
        keyed = {"month": at} if at else {}
        if verb in ("merge", "delete"):
            return self._world.partial(row, self._view, content, keyed)
        return self._world.entity(row, self._view, content)

    async def _call(self, verb: str, entity: dict[str, Any], etag: str) -> Any:
        condition = {"etag": etag, "match_condition": MatchConditions.IfNotModified} if etag else {}
        match verb:
            case "create":
                return await self._client.create_entity(entity)
            case "replace":
                return await self._client.update_entity(entity, mode=UpdateMode.REPLACE, **condition)
            case "merge":
                return await self._client.update_entity(entity, mode=UpdateMode.MERGE, **condition)
            case "put":
                return await self._client.upsert_entity(entity, mode=UpdateMode.REPLACE)
            case "put-merge":
                return await self._client.upsert_entity(entity, mode=UpdateMode.MERGE)
            case "delete":
                return await self._client.delete_entity(entity["PartitionKey"], entity["RowKey"], **condition)
        raise AssertionError(verb)

    # --- asking ------------------------------------------------------------------------------------------

    def _began(
        self,
        verb: str,
        row: str,
        content: Content,
        month: str | None,
        expected: State = None,
        batch: str = "",
    ) -> int:
        number = _Numbers.next()
        self._ledger.note(
            "began",
            number=number,
            verb=verb,
            row=row,
            view=self._view,
            content=content,
            month=month,
            expected=expected,
            batch=batch,
        )
        return number

    async def _send(
        self, numbers: list[int], send: Callable[[], Awaitable[Any]], *, reads: bool = False
    ) -> Any:
        """Send what began and write down what came of it; return what was read ({} for no row), else None."""
        answer: Any = None
        more: dict[str, Any] = {}
        try:
            answer = await send()
            outcome = "acknowledged"
            if reads:
                more["saw"] = self._world.content(self._view, answer)
        except HttpResponseError as error:
            # A refusal of the client itself has a code of its own; the service's 4xx were not applied.
            why = _why(error)
            refused = getattr(error, "refusal", None) is not None or 400 <= (error.status_code or 0) < 500
            outcome, more["why"] = "failed" if refused else "open", why
            if reads and error.status_code == 404 and why in ("ResourceNotFound", "EntityNotFound"):
                answer, outcome, more = {}, "acknowledged", {"saw": None}
            for number in numbers:
                self._ledger.note(outcome, number=number, **more)
            if why in _RESTART_CODES:
                raise _Restart from None
            if refused and error.status_code in (None, 403, 503):
                await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
            return answer
        except AzureError as error:
            outcome, more["why"] = "open", _why(error)
        for number in numbers:
            self._ledger.note(outcome, number=number, **more)
        return answer if outcome == "acknowledged" and reads else None


def _in_transaction(verb: str, entity: dict[str, Any]) -> tuple[Any, ...]:
    match verb:
        case "put":
            return "upsert", entity, {"mode": "replace"}
        case "replace":
            return "update", entity, {"mode": "replace"}
    return verb, entity


def _why(error: AzureError) -> str:
    code = getattr(error, "error_code", None) or getattr(error, "status_code", None)
    return str(getattr(code, "value", code) or type(error).__name__)
