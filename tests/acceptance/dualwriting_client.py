"""One process of an application that writes through the dual-write client, at full speed, with its ledger.

Rules kept here:

* It uses the client as an application does: the SDK's methods, arguments, ETags and exceptions. What an
  exception says decides what the ledger says: refused or answered with 4xx is failed, all else is open.
* Several tasks at once, each with rows of its own, one write of a row after the other; rows named `s...` are
  everybody's.
* It stops writing while there is a file `pause` in the control folder, and ends when there is a file
  `stop-NAME`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.data.tables import UpdateMode

from tests.acceptance.dualwriting_clients import Where, mapper_of, open_client
from tests.acceptance.dualwriting_ledger import COUNTER, Content, Entry, Ledger, State, Verb
from tests.acceptance.dualwriting_worlds import SLOT, WORLDS, Key, View, World, is_shared

_IDLE_SECONDS = 0.02
_REFUSED_PAUSE_SECONDS = 0.1
_TRANSACTION_OPERATIONS = 3


@dataclass(frozen=True)
class Task:
    """What one client process is to do.

    Attributes:
        name: of the process; also the name of its ledger and of its properties of shared rows.
        world: `users` or `posts`.
        view: how it addresses its rows.
        where: endpoints, configuration, settings.
        folder: the control folder, which holds the ledgers, too.
        rows: the rows that are its own while it lives, by task.
        shared: rows that others write at the same time.
        seed: of its choices.
        sync: through the client without async, one task only.
        pause: seconds between two writes of a task.
    """

    name: str
    world: str
    view: View
    where: Where
    folder: Path
    rows: tuple[tuple[str, ...], ...]
    shared: tuple[str, ...] = ()
    seed: int = 0
    sync: bool = False
    pause: float = 0.0

    @property
    def ledger(self) -> Path:
        """Its ledger's file."""
        return self.folder / f"{self.name}.jsonl"


def main(task: Task) -> None:
    """Run one client process to its end: what a process is started with."""
    asyncio.run(_run(task))


async def _run(task: Task) -> None:
    with Ledger(task.ledger, task.name) as ledger:
        world = WORLDS[task.world](mapper_of(task.where))
        ledger.note("opening")
        async with open_client(task.where, task.view, sync=task.sync, name=task.name) as client:
            ledger.note("opened")
            gate = _Gate(task.folder, task.name, ledger, len(task.rows) + bool(task.shared))
            await asyncio.gather(
                *(
                    _Writer(task, world, client, ledger, rows, f"{task.seed}/{number}").work(gate)
                    for number, rows in enumerate((*task.rows, *filter(None, [task.shared])))
                )
            )
        ledger.note("closed")


@dataclass
class _Gate:
    """Lets the tasks through, stops them while there is a file `pause`, and says so once all stand still."""

    folder: Path
    name: str
    ledger: Ledger
    tasks: int
    _standing: int = field(default=0)

    async def __call__(self) -> bool:
        """Return when the task may write; False when it is to end."""
        if (self.folder / "pause").exists():
            self._standing += 1
            if self._standing == self.tasks:
                self.ledger.note("paused")
            while (self.folder / "pause").exists():
                await asyncio.sleep(_IDLE_SECONDS)
            self._standing -= 1
        return not (self.folder / f"stop-{self.name}").exists()


Send = Callable[[], Awaitable[Any]]


class _Writer:
    """One task: writes its rows, one after the other."""

    def __init__(
        self, task: Task, world: World, client: Any, ledger: Ledger, rows: tuple[str, ...], seed: str
    ) -> None:
        self._task, self._world, self._client, self._ledger, self._rows = task, world, client, ledger, rows
        self._view = task.view
        self._lot = random.Random(seed)
        self._known: dict[str, tuple[State, str]] = {}
        """Content and ETag by row; the ETag is "" when there is none to use."""
        self._slots: dict[str, int] = {}
        self._written = 0

    async def work(self, gate: _Gate) -> None:
        """Write until told to end."""
        while await gate():
            row = self._lot.choice(self._rows)
            if is_shared(row):
                await self._write_shared(row)
            elif self._lot.random() < 0.1:
                await self._transact(row)
            else:
                await self._write(row)
            if self._task.pause:
                await asyncio.sleep(self._task.pause)

    # --- rows of its own ---------------------------------------------------------------------------------

    async def _write(self, row: str) -> None:
        verb, content, etag = await self._choose(row)
        state, _ = self._known[row]
        expected = state if etag else None
        entity = self._entity(row, verb, content, state)
        number = self._ledger.tried(verb, row, content, expected)
        answer = await self._send(number, lambda: self._call(verb, entity, etag))
        if answer is None:
            del self._known[row]
        else:
            self._known[row] = self._then(verb, row, content, state), answer

    async def _choose(self, row: str) -> tuple[Verb, Content, str]:
        """Return what to do to a row: verb, content, and an ETag for a conditional write."""
        if row not in self._known:
            self._known[row] = await self._look(row)
        state, etag = self._known[row]
        verb: Verb
        if state is None:
            verb = self._lot.choice(("create", "create", "put", "put-merge"))
        else:
            verb = self._lot.choice(("replace", "replace", "merge", "merge", "put", "put-merge", "delete"))
        conditional = bool(etag) and verb in ("replace", "merge", "delete") and self._lot.random() < 0.5
        return verb, self._content(row, verb, state), etag if conditional else ""

    def _content(self, row: str, verb: Verb, state: State) -> Content:
        if verb == "delete":
            return {}
        if verb == "merge":
            return self._world.some(self._value(), self._lot, self._view)
        content = self._world.whole(self._value(), self._lot)
        if state is not None and self._view == "new" and "month" in content:
            # What a key is made of cannot be changed under that key: the new version deletes and creates.
            content["month"] = state["month"]
        return content

    def _value(self) -> str:
        self._written += 1
        return f"{self._task.name} {self._written:06d}"

    def _entity(self, row: str, verb: Verb, content: Content, state: State) -> dict[str, Any]:
        if verb == "merge":
            return self._world.partial(row, self._view, content, state or {})
        return self._world.entity(row, self._view, (state or {}) if verb == "delete" else content)

    def _then(self, verb: Verb, row: str, content: Content, state: State) -> State:
        written = Entry(self._task.name, row, verb, content, None, 0, 0, "acknowledged")
        return written.after(state)[1]

    async def _call(self, verb: Verb, entity: dict[str, Any], etag: str) -> Any:
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
                await self._client.delete_entity(entity["PartitionKey"], entity["RowKey"], **condition)
                return {}

    # --- transactions ------------------------------------------------------------------------------------

    async def _transact(self, first: str) -> None:
        """Put or delete some rows of one partition in one transaction."""
        partition = self._world.old_key(first)[0]
        rows = [row for row in self._rows if self._world.old_key(row)[0] == partition]
        chosen = self._lot.sample(rows, min(len(rows), _TRANSACTION_OPERATIONS))
        operations, numbers = [], []
        for row in chosen:
            if row not in self._known:
                self._known[row] = await self._look(row)
            state, _ = self._known[row]
            verb: Verb = self._lot.choice(("put", "put", "replace", "delete")) if state else "create"
            content = self._content(row, verb, state)
            entity = self._entity(row, verb, content, state)
            operations.append(_in_transaction(verb, entity))
            numbers.append((row, verb, content))
        tried = [self._ledger.tried(verb, row, content) for row, verb, content in numbers]
        answer = await self._send(tried[0], lambda: self._client.submit_transaction(operations), *tried[1:])
        for row, verb, content in numbers:
            if answer is None:
                del self._known[row]
            else:
                self._known[row] = self._then(verb, row, content, self._known[row][0]), ""

    # --- shared rows -------------------------------------------------------------------------------------

    async def _write_shared(self, row: str) -> None:
        """Set the property of this process, or raise the counter, conditionally on what is read."""
        read = await self._read(self._world.key(row, self._view, {}))
        if read is None:
            return
        slot = f"{SLOT}_{self._task.name}".replace("-", "_")
        keys = {name: read[name] for name in ("PartitionKey", "RowKey")}
        if self._lot.random() < 0.5:
            value = self._slots.get(row, 0) + 1
            self._slots[row] = value
            number = self._ledger.tried("put-merge", f"{row}#{slot}", {slot: value})
            await self._send(
                number, lambda: self._client.update_entity({**keys, slot: value}, mode=UpdateMode.MERGE)
            )
            return
        raised = int(read.get(COUNTER, 0)) + 1
        number = self._ledger.tried("merge", f"{row}#{COUNTER}", {COUNTER: raised})
        whole = self._lot.random() < 0.5
        entity = {**(read if whole else keys), COUNTER: raised}
        mode = UpdateMode.REPLACE if whole else UpdateMode.MERGE
        await self._send(
            number,
            lambda: self._client.update_entity(
                entity, mode=mode, etag=read.metadata["etag"], match_condition=MatchConditions.IfNotModified
            ),
        )

    # --- asking ------------------------------------------------------------------------------------------

    async def _send(self, number: int, send: Send, *more: int) -> str | None:
        """Send what was tried and write down what came of it; return the new ETag ("" for none), None for a
        write that was not acknowledged."""
        try:
            answer = await send()
        except HttpResponseError as error:
            # A refusal of the client itself has a code of its own; the service's 4xx were not applied.
            refused = getattr(error, "refusal", None) is not None or 400 <= (error.status_code or 0) < 500
            self._note(number, more, "failed" if refused else "open", _why(error))
            if refused and error.status_code in (None, 403, 503):
                await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
        except AzureError as error:
            self._note(number, more, "open", _why(error))
        else:
            self._note(number, more, "acknowledged", "")
            return str(answer.get("etag") or "") if isinstance(answer, dict) else ""
        return None

    def _note(self, number: int, more: tuple[int, ...], outcome: Any, why: str) -> None:
        for each in (number, *more):
            self._ledger.ended(each, outcome, why)

    async def _look(self, row: str) -> tuple[State, str]:
        """Return content and ETag of a row as this view shows it; absent when it cannot be read."""
        keys = self._world.new_keys(row) if self._view == "new" else [self._world.old_key(row)]
        for key in keys:
            read = await self._read(key)
            if read is not None:
                return self._world.content(self._view, read), read.metadata["etag"]
        return None, ""

    async def _read(self, key: Key) -> Any:
        try:
            return await self._client.get_entity(*key)
        except ResourceNotFoundError:
            return None
        except AzureError as error:
            self._ledger.note("not read", why=_why(error))
            await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
            return None


def _in_transaction(verb: Verb, entity: dict[str, Any]) -> tuple[Any, ...]:
    match verb:
        case "put":
            return "upsert", entity, {"mode": "replace"}
        case "replace":
            return "update", entity, {"mode": "replace"}
    return verb, entity


def _why(error: AzureError) -> str:
    code = getattr(error, "error_code", None) or getattr(error, "status_code", None)
    return str(getattr(code, "value", code) or type(error).__name__)
