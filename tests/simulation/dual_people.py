"""Who writes in lives of dual-write migrations: application processes, what they do, and what they were told.

Rules kept here:

* A client is the program's own (`rekey.client.sdk.core`): lease, writer, journal. Only time,
  randomness and the way to the tables are the simulation's.
* Every operation is about source keys that are known when it is drawn. Each key has a witness of its own:
  what clients saw of it fits one row that changes at once.
* A read, and a condition, is held against the authority when the authority was on the view's side throughout;
  otherwise it may be behind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.options import ClientOptions
from rekey.declaration.mapper import Mapper
from rekey.declaration.row_makers import TargetRow
from rekey.errors import (
    Collision,
    ConditionFailed,
    RekeyError,
    RequestRejected,
    RowExists,
    RowMissing,
    RowRefused,
    ServiceError,
    WritesRefused,
)
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, etag_of, key_of
from rekey.protocol.opening import Prepared
from rekey.protocol.rules import View
from rekey.tables.base import Table
from tests.simulation.linearizable import (
    CONDITION,
    DONE,
    EXISTS,
    MISSING,
    OPEN,
    Content,
    History,
    Refuses,
)
from tests.simulation.linearizable import Operation as Seen
from tests.simulation.storm import Process, Storm
from tests.simulation.witness import (
    DELETE,
    INSERT,
    MERGE,
    READ,
    REFUSED,
    REPLACE,
    UPSERT,
    UPSERT_MERGE,
    Do,
    Frozen,
    Noted,
    Witness,
    frozen,
)
from tests.worlds.small import post, racer, user

VERBS = (READ, READ, INSERT, INSERT, REPLACE, REPLACE, MERGE, UPSERT, UPSERT, UPSERT_MERGE, DELETE, DELETE)
_WORDS = {RowExists: EXISTS, RowMissing: MISSING, ConditionFailed: CONDITION}


@dataclass(frozen=True)
class Doing:
    """One operation of a step: the source key it is about, and what is done in the client's view."""

    about: EntityKey
    do: Do


@dataclass
class Application:
    """Draws what clients do.

    Attributes:
        fixed: properties that new-view rows have from now on, by old key.
        in_keys: properties that main target keys are made of.
    """

    mapper: Mapper
    written: int = 0
    fixed: dict[EntityKey, Row] = field(default_factory=dict)
    keys: ClassVar[tuple[EntityKey, ...]] = ()
    in_keys: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[bool] = False
    """Whether two of its rows can have a target key in common."""

    def group(self, key: EntityKey) -> tuple[EntityKey, ...]:
        """Return the source keys, this one included, that one main target key can stand for."""
        return (key,)

    def settle(self, _rows: Mapping[EntityKey, Row], _draw: random.Random) -> None:
        """Create no row from now on whose target key another row may have. `_rows`: the source rows."""

    def share(self) -> None:
        """Create such rows from now on."""

    def may_create(self, _key: EntityKey) -> bool:
        """Tell whether a client may create the row of a source key now."""
        return True

    def row(self, _draw: random.Random, _key: EntityKey) -> Row:
        """Return content for a source row."""
        raise NotImplementedError

    def part(self, draw: random.Random, row: Row) -> Row:
        """Return some of a row's properties, for a merge."""
        names = [name for name in row if name not in (PARTITION_KEY, ROW_KEY)]
        kept = draw.sample(names, draw.randint(1, len(names)))
        return {name: row[name] for name in (PARTITION_KEY, ROW_KEY, *kept)}

    def step(self, draw: random.Random, view: View) -> list[Doing]:
        """Return one call: an operation, or a transaction of several."""
        verb = draw.choice(VERBS)
        count = draw.randint(2, 3) if verb != READ and draw.random() < 0.12 else 1
        found: dict[EntityKey, Doing] = {}
        partition = None
        for key in draw.sample(self.keys, min(len(self.keys), 8 * count)):
            self.written += 1
            row = self.row(draw, key)
            row = self.in_view(row, view)
            if partition in (None, row[PARTITION_KEY]) and len(found) < count:
                partition = row[PARTITION_KEY]
                found[key] = Doing(key, self._do(draw, verb, row, alone=count == 1))
                verb = draw.choice(VERBS[2:])
        return list(found.values())

    def in_view(self, row: Row, view: View) -> Row:
        """Return a source row as a view shows it."""
        if view is View.OLD:
            return row
        return self.mapper.map({**row, **self.fixed.get(key_of(row), {})})[0].row

    def _do(self, draw: random.Random, verb: str, row: Row, *, alone: bool) -> Do:
        if verb in (READ, DELETE):
            row = {name: row[name] for name in (PARTITION_KEY, ROW_KEY)}
        elif verb == MERGE:
            row = self.part(draw, row)
        conditional = alone and verb in (REPLACE, MERGE, DELETE) and draw.random() < 0.4
        return Do(verb, row, conditional)


@dataclass
class Users(Application):
    """Keys from keys alone."""

    keys = tuple(EntityKey(f"p{number % 2}", f"u{number:02}@example.com") for number in range(9))

    def row(self, _draw: random.Random, key: EntityKey) -> Row:
        row = user(key.row, key.partition, Age=self.written)
        del row["Ssn"]
        return {**row, "Nm": f"n{self.written}"}


@dataclass
class Posts(Application):
    """Keys from content, which changes, and an index table by tag."""

    keys = tuple(EntityKey("blog", f"p{number:02}") for number in range(9))
    in_keys = ("Month",)

    def row(self, draw: random.Random, key: EntityKey) -> Row:
        tags = draw.sample("abc", draw.randrange(4))
        row = post(key.row, f"2024-{draw.randint(1, 2):02}", ",".join(tags) or "none")
        return {**row, "Title": f"t{self.written}"}


@dataclass
class Races(Application):
    """Secondary rows in the table of the main rows; both may move to another partition."""

    keys = tuple(EntityKey("nyc", f"{number:02}") for number in range(9))
    in_keys = ("Club", "Name")

    def row(self, draw: random.Random, key: EntityKey) -> Row:
        row = racer(
            key.row, draw.randint(20, 21), draw.choice(("Ann", "Bob")), key.partition, No=self.written
        )
        teams = draw.sample("xyz", draw.randrange(3))
        return {**row, "Club": draw.choice("cd"), "Teams": ",".join(teams) or "w"}


@dataclass
class KeyWitness(Witness):
    """What clients did to one key, or to the keys that one main target key can stand for: of two rows with a
    target key in common, the second one is refused.

    What a read saw of the table that follows is not held against anything here. A condition that such a read
    gave says that the content was the same when it held; when it did not, it says nothing.
    """

    _mapped: dict[Frozen, list[TargetRow]] = field(default_factory=dict)

    def history(self, before: Iterable[Row], after: Iterable[Row]) -> History:
        found: list[Seen] = []
        numbers: dict[int, int] = {}
        for one in self.noted:
            reads = one.step[0].verb == READ
            if (
                one.outcome == REFUSED
                or one.began is None
                or (reads and (one.replica or one.outcome == OPEN))
            ):
                continue
            seen = self._seen(replace_basis(one, None), {})
            if one.basis is not None and one.basis in numbers and not one.replica:
                seen = replace(seen, basis=numbers[one.basis])
            elif one.basis is not None:
                if one.outcome == CONDITION:
                    continue
                seen = replace(seen, act=self._if_it_shows(one, self.noted[one.basis].saw))
            numbers[one.number] = len(found)
            found.append(seen)
        return History(self._all(before), found, [self._all(after)])

    def _act(self, content: Content, one: Noted) -> Content | Refuses:
        result = super()._act(content, one)
        if len(self.keys) == 1 or isinstance(result, Refuses):
            return result
        targets = [target for row in result if row is not None for target in self._targets(row)]  # type: ignore[attr-defined]
        return Refuses(REFUSED) if len({*targets}) < len(targets) else result

    def _view_row(self, source_row: Row) -> Row:
        frozen_row = frozen(source_row) or ()
        if frozen_row not in self._mapped:
            self._mapped[frozen_row] = self.mapper.map(source_row)
        return self._mapped[frozen_row][0].row

    def _targets(self, row: Frozen) -> list[tuple[int, EntityKey]]:
        self._view_row(dict(row))
        return [(made.table, key_of(made.row)) for made in self._mapped[row]]

    def _if_it_shows(self, one: Noted, saw: Frozen | None) -> Callable[[Content], Content | Refuses]:
        def act(content: Content) -> Content | Refuses:
            same = self._shown(content, one.view, key_of(one.step[0].row)) == saw
            result = self._act(content, one)
            return result if same or isinstance(result, Refuses) else Refuses(CONDITION)

        return act


def replace_basis(one: Noted, basis: int | None) -> Noted:
    """Return a note that names another read as its basis."""
    other = copy(one)
    other.basis = basis
    return other


@dataclass
class Notes:
    """The witnesses of all keys. `plain`: rows are told apart by their main target keys (after the end)."""

    mapper: Mapper
    plain: bool = False
    group: Callable[[EntityKey], tuple[EntityKey, ...]] = lambda key: (key,)
    """The source keys that are judged together with one."""
    by_keys: dict[tuple[EntityKey, ...], KeyWitness] = field(default_factory=dict)

    def keys_of(self, key: EntityKey) -> tuple[EntityKey, ...]:
        """Return the keys that are judged together with one."""
        return (key,) if self.plain else self.group(key)

    def of(self, doing: Doing) -> KeyWitness:
        """Return the witness of what an operation is about."""
        return self.of_keys(self.keys_of(key_of(doing.do.row) if self.plain else doing.about))

    def of_keys(self, keys: tuple[EntityKey, ...]) -> KeyWitness:
        """Return the witness of keys."""
        if keys not in self.by_keys:
            # After the end the application writes main rows alone; intents of killed clients are still swept.
            mended = self.plain and bool(self.mapper.co_located)
            self.by_keys[keys] = KeyWitness(self.mapper, keys, mended=mended)
        return self.by_keys[keys]

    @property
    def pause_s(self) -> float:
        """How long clients pause between two calls: longer when there is much to be judged already."""
        noted = sum(len(witness.noted) for witness in self.by_keys.values())
        return max(1.0, noted / 150)

    def view(self, view: View) -> View:
        """Return which view a note is of: without the mapping there is one only."""
        return View.OLD if self.plain else view


@dataclass(frozen=True)
class Standing:
    """Where the authority is: on which side, and since which epoch."""

    side: str
    epoch: int


@dataclass(eq=False)
class Client:
    """One process of the application."""

    process: Process
    view: View
    core: ClientCore
    table: Table
    application: Application
    storm: Storm
    notes: Callable[[], Notes]
    standing: Callable[[], Standing]
    quiet: Callable[[], bool]
    random: random.Random
    refused: Callable[[Process, list[Doing], View, float], None] = lambda *_: None
    """Judges a refusal as a collision of a call that began then."""
    busy: int = 0
    ending: bool = False
    ended: bool = False
    faults: list[BaseException] = field(default_factory=list)
    _number: int = 0

    @property
    def live(self) -> bool:
        """Whether it goes on."""
        return not (self.process.dead or self.ending or self.ended)

    def start(self) -> None:
        """Begin to work, with a few users at a time."""
        self.storm.start(self.process, self._open())
        for number in range(self.random.randint(1, 3)):
            self.storm.start(self.process, self._work(random.Random(f"{self.random.random()} {number}")))

    def close(self) -> None:
        """End as a process ends that is stopped in good order."""
        self.ending = True
        self.storm.start(self.process, self._close())

    async def _open(self) -> None:
        await self._guarded(self.core.open)

    async def _close(self) -> None:
        await self._guarded(self.core.close)
        self.ended = True

    async def _guarded(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except (RekeyError, TimeoutError):
            return
        except Exception as error:  # noqa: BLE001 - told by the life
            self.faults.append(error)

    async def _work(self, draw: random.Random) -> None:
        while self.live:
            await asyncio.sleep(draw.expovariate(1 / self.notes().pause_s))
            if not self.live or self.quiet():
                continue
            step = self.application.step(draw, self.view)
            self.busy += 1
            await self._guarded(lambda step=step: self._do(step))
            self.busy -= 1

    # --- one call ------------------------------------------------------------------------------------------

    async def _do(self, step: list[Doing]) -> None:
        self._number += 1
        first = step[0]
        etag, read = None, None
        if first.do.verb == READ or first.do.conditional:
            row, read = await self._read(first)
            if first.do.verb == READ or row is None:
                return
            etag = etag_of(row)
        began, since = self.standing(), asyncio.get_running_loop().time()
        parts = self._by_witness(step)
        noted = [self._begin(part, None if read is None else read.number) for part in parts]
        outcomes = [OPEN] * len(parts)
        try:
            await self.core.write([one.do.operation(etag) for one in step])
            outcomes = [DONE] * len(parts)
        except (RowExists, RowMissing, ConditionFailed) as error:
            # Of a transaction nothing was done; whose fault it was is known of one operation at most.
            index = 0 if len(step) == 1 else error.index
            at_fault = None if index is None else [step[index]]
            outcomes = [_WORDS[type(error)] if part == at_fault else REFUSED for part in parts]
        except (RowRefused, Collision, WritesRefused, RequestRejected) as error:
            if isinstance(error, Collision):
                self.storm.happened["collision"] += 1
                self.refused(self.process, step, self.view, since)
            outcomes = [REFUSED] * len(parts)
        except (ServiceError, TimeoutError):
            pass
        finally:
            follows = not self._decides(began)
            if follows and read is not None:
                read.replica = True  # what follows may be written anew with the same content
            for part, note, outcome in zip(parts, noted, outcomes, strict=True):
                note.replica = follows
                self._end(part[0], note, outcome)

    def _by_witness(self, step: list[Doing]) -> list[list[Doing]]:
        """Return the operations of a call, those together that are judged together."""
        parts: dict[int, list[Doing]] = {}
        for one in step:
            parts.setdefault(id(self.notes().of(one)), []).append(one)
        return list(parts.values())

    async def _read(self, doing: Doing) -> tuple[Row | None, Noted]:
        began = self.standing()
        only_key = {name: doing.do.row[name] for name in (PARTITION_KEY, ROW_KEY)}
        doing = replace(doing, do=Do(READ, only_key))
        noted = self._begin([doing], None)
        try:
            async with self.core.reading():
                row = await self.table.get(key_of(doing.do.row))
        except BaseException:
            self._end(doing, noted, OPEN)
            raise
        noted.replica = not self._decides(began)
        noted.saw = frozen(row)
        self._end(doing, noted, DONE)
        return row, noted

    def _begin(self, part: Sequence[Doing], basis: int | None) -> Noted:
        notes = self.notes()
        actor = f"{self.process.name}.{self._number}"
        witness = notes.of(part[0])
        step = tuple(one.do for one in part)
        noted = witness.begin(actor, notes.view(self.view), step, basis, replica=True)
        witness.released(actor)
        return noted

    def _end(self, doing: Doing, noted: Noted, outcome: str) -> None:
        witness = self.notes().of(doing)
        if noted in witness.noted:
            witness.end(noted, outcome)

    def _decides(self, began: Standing) -> bool:
        """Tell whether the authority was on the view's side since then."""
        now = self.standing()
        return self.view.side == began.side == now.side and now.epoch - began.epoch <= 2


def options_for(prepared: Prepared, facts: Any, settings: Any, share: float) -> ClientOptions:
    """Return the options of a client."""
    old = View(facts.view) is View.OLD
    return ClientOptions(
        prepared,
        prepared.declared.migration.source if old else prepared.mapper.tables[0],
        name=facts.name,
        settings=settings,
        shadow_reads=share,
        shadow_seed=1,
    )
