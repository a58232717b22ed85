"""Creators that race for one target key: which races there are, how they are run, and what must be left.

A race is of two to five creators, whose old keys differ (but for twins), so that at most one of them may be
acknowledged: its row is in the source and in all replicas, and every other one was refused.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from itertools import count, product
from typing import Any, Literal

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceResponseError,
)
from azure.data.tables.aio import TableClient

from rekey import aio
from rekey.client.reading import LeaseSettings
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.model import EntityKey, Row, key_of
from tests.fakes.given_account import MADE
from tests.simulation.linearizable import DONE, EXISTS, OPEN, Content, History, Operation, Refuses
from tests.worlds.azurite_projects import Project, load
from tests.worlds.fleet import differences

View = Literal["old", "new"]
Before = Literal["absent", "gone", "copied and gone", "held", "moved"]
VIEWS: tuple[View, ...] = ("old", "new")
SETTINGS = LeaseSettings(poll_s=1.0, lease_s=30.0, longest_operation_s=60.0, freeze_wait_s=60.0)
"""Nobody is killed here, so nothing waits for these times; a slow machine must not run out of them."""
MOST_CREATORS = 5
WIDTH = 8
"""Races that are run at the same time."""
_SETTLED_S = 90.0
_PARTITIONS = 5

_SCRIPT = '''\
"""Keys that rows of two old keys can have: {name}."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="{source}",
    target=Target("{target}", partition_key=keys.prop("PartitionKey"), row_key={row_key},
                  properties=[props.copy("RowKey", to="OldRowKey")]),
    indexes=[{index}],
    capture="dual-write",{group}
)
'''
_SEAT = """Index("{table}", partition_key=keys.prop("PartitionKey"),
                   row_key=keys.literal("S:") + keys.prop("Seat"), properties=[{properties}])"""


@dataclass(frozen=True)
class World:
    """A declaration under which rows of several old keys have one target key.

    Attributes:
        name: of the world.
        row_key: the expression of the main RowKey.
        shared: the property that gives the contested key; "" where the old RowKey does.
        index: properties of the index whose key is contested; None where it is the main key.
        beside: whether the index rows stand in the main target.
    """

    name: str
    row_key: str
    shared: str = ""
    index: str | None = None
    beside: bool = False

    def script(self, source: str, target: str, index: str, group: str) -> str:
        """Return the script. `group`: of its migration, "" for none."""
        table = target if self.beside else index
        return _SCRIPT.format(
            name=self.name,
            source=source,
            target=target,
            row_key=self.row_key,
            index="" if self.index is None else _SEAT.format(table=table, properties=self.index),
            group=f' group="{group}",' if group else "",
        )

    def old_key(self, race: int, contender: int) -> str:
        """Return the old RowKey of one who wants the key of a race."""
        if self.shared:
            return f"r{race:05}-{contender}"
        letters = (letter.upper() if contender >> bit & 1 else letter for bit, letter in enumerate("key"))
        return f"r{race:05}{''.join(letters)}"

    def row(self, race: int, old_key: str, content: Mapping[str, str], wants: str = "") -> Row:
        """Return a source row. `wants`: a key of its own instead of the contested one."""
        shared = {self.shared: wants or f"k{race:05}"} if self.shared else {}
        return {"PartitionKey": f"p{race % _PARTITIONS}", "RowKey": old_key, **content, **shared}


WORLDS = (
    World("folded", 'keys.lower("RowKey")'),
    World("content", 'keys.prop("Handle")', "Handle"),
    World("index", 'keys.literal("U:") + keys.prop("RowKey")', "Seat", 'props.keep("Tok")'),
    World("secondary", 'keys.literal("U:") + keys.prop("RowKey")', "Seat", "props.keep_all()", beside=True),
)


@dataclass(frozen=True)
class Creator:
    """One who creates a row.

    Attributes:
        number: within the race.
        old_key: the old RowKey of the row.
        view: through which it is written.
        way: the number of the client of that view.
        verb: how.
        companion: whether another row is upserted in the same transaction.
        moves: whether the same transaction deletes the row that holds the key.
        delay_s: after the beginning of the race.
    """

    number: int
    old_key: str
    view: View
    way: int
    verb: Literal["insert", "replace", "merge"]
    companion: bool
    moves: bool
    delay_s: float

    @property
    def companion_key(self) -> str:
        """The old RowKey of its companion."""
        return f"c{self.old_key.lower()}-{self.number}"


@dataclass(frozen=True)
class Race:
    """One race, drawn from a seed and its number.

    Attributes:
        number: of the race.
        world: whose keys they are.
        before: what became of the former owner of the key.
        former: its old RowKey; "" if there was none.
        former_way: view and client that write the former owner.
        creators: who wants the key.
    """

    number: int
    world: World
    before: Before
    former: str
    former_way: tuple[View, int]
    creators: tuple[Creator, ...]

    @classmethod
    def drawn(cls, seed: int, number: int, ways: int) -> Race:
        """Draw a race. `ways`: how many clients each view has."""
        lot, world = random.Random(f"{seed}/{number}"), WORLDS[number % len(WORLDS)]
        before: Before = lot.choices(
            ("absent", "gone", "copied and gone", "held", "moved"), (25, 30, 20, 10, 15)
        )[0]
        creators = lot.randint(2, MOST_CREATORS)
        views: Sequence[View] = lot.choice((("old",), ("new",), VIEWS, VIEWS))
        contenders = list(range(creators))
        if creators > 2 and lot.random() < 0.15:
            contenders[1] = contenders[0]  # twins: two writes of one row
        spread_s = lot.choice((0.0, 0.002, 0.01, 0.04))
        drawn = []
        for each, contender in enumerate(contenders):
            view = lot.choice(views)
            # Two operations of one transaction cannot be about one row, the main row in the new view.
            moves = before == "moved" and (view == "old" or world.index is not None) and lot.random() < 0.8
            drawn.append(
                Creator(
                    each,
                    world.old_key(number, contender),
                    view,
                    lot.randrange(ways),
                    "insert" if moves else lot.choice(("insert", "replace", "merge")),
                    companion=lot.random() < 0.2,
                    moves=moves,
                    delay_s=lot.uniform(0, spread_s),
                )
            )
        own = before in ("gone", "copied and gone") and lot.random() < 0.3
        former = drawn[0].old_key if own else world.old_key(number, MOST_CREATORS)
        way = lot.choice(VIEWS), lot.randrange(ways)
        return cls(number, world, before, "" if before == "absent" else former, way, tuple(drawn))

    @property
    def former_row(self) -> Row:
        """The former owner's source row."""
        return self.world.row(self.number, self.former, {"Tok": f"{self.number} former"})

    @property
    def is_copied(self) -> bool:
        """Whether the former owner is in the source before the backfill."""
        return self.before in ("copied and gone", "held", "moved")

    def content(self, creator: Creator) -> dict[str, str]:
        """Return what a creator writes besides keys."""
        token = f"{self.number} {creator.number}"
        return {"Tok": token, f"By{creator.number}": token}

    def rows(self, creator: Creator) -> list[Row]:
        """Return the source rows that a creator makes: its own, and its companion's if there is one."""
        rows = [self.world.row(self.number, creator.old_key, self.content(creator))]
        if creator.companion:
            key = creator.companion_key
            rows.append(self.world.row(self.number, key, {"Tok": key}, wants=key))
        return rows

    @property
    def mix(self) -> str:
        """The views of its creators."""
        views = {one.view for one in self.creators}
        return "both" if len(views) > 1 else views.pop()


ACKNOWLEDGED, UNKNOWN = "acknowledged", "unknown outcome"
COLLISION, EXISTS_ALREADY, OLD_KEY, MISSING_HOLDER = "collision", "exists", "its old key", "holder missing"
BUSY = "busy"


@dataclass(frozen=True)
class Answer:
    """What a creator was told, and when: moments of one counter."""

    began: int
    ended: int
    outcome: str


def outcome_of(error: AzureError) -> str:
    """Return what an error says of a write, in one of the words above; anything else in its own words."""
    response = getattr(error, "response", None)
    code = getattr(error, "error_code", None) or (response and response.headers.get("x-ms-error-code"))
    code, text = str(getattr(code, "value", code) or ""), str(error)
    if isinstance(error, ServiceResponseError) or code == "OperationTimedOut":
        return UNKNOWN
    if isinstance(error, HttpResponseError):
        if code == "collision":
            return COLLISION
        if code == "EntityAlreadyExists" or isinstance(error, ResourceExistsError):
            return EXISTS_ALREADY
        if code == "not-reversible" and re.search("its old key would change|it differs in OldRowKey", text):
            return OLD_KEY
        if code in ("ResourceNotFound", "EntityNotFound"):
            return MISSING_HOLDER
        if error.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            return f"{BUSY}: {code} {text[:200]}"
    return f"{type(error).__name__} {code}: {text[:300]}"


# --- what must be left ------------------------------------------------------------------------------------


@dataclass
class Judged:
    """What a race left, compared with what its creators were told.

    Attributes:
        race, phase, answers: the race, when it was run, and what came of it.
    """

    race: Race
    phase: str
    answers: Sequence[Answer]

    def wrong(self, source: Mapping[EntityKey, Row], *, moving: bool) -> Iterator[str]:
        """Yield what is wrong. `moving`: whether the phase may have changed meanwhile."""
        race, creators = self.race, self.race.creators
        told = list(zip(creators, self.answers, strict=True))
        partition = race.rows(creators[0])[0]["PartitionKey"]
        wanted = {one.old_key for one in creators} | ({race.former} if race.former else set())
        present = {key for key in sorted(wanted) if EntityKey(partition, key) in source}
        acknowledged = {one.old_key for one, answer in told if answer.outcome == ACKNOWLEDGED}
        unknown = {one.old_key for one, answer in told if answer.outcome == UNKNOWN}
        for one, answer in told:
            if not self._is_right(one, answer.outcome, moving=moving):
                yield f"creator {one.number} was told {answer.outcome}"
        holder = {race.former} if race.before in ("held", "moved") else set()
        if len(acknowledged) > 1:
            yield f"{len(acknowledged)} old keys were acknowledged"
        elif acknowledged and present != acknowledged:
            yield f"acknowledged {sorted(acknowledged)}, present {sorted(present)}"
        elif not acknowledged and (not present <= unknown | holder or (holder and not present)):
            yield f"nobody was acknowledged, present {sorted(present)}"
        if len(present) > 1:
            yield f"{len(present)} rows want one key"
        movers = {one.old_key for one in creators if one.moves}
        if holder and not acknowledged <= movers:
            yield "the key of a row that is there was acknowledged to another one"
        for key in sorted(present & (acknowledged | unknown)):
            history = self._history(key, source[EntityKey(partition, key)])
            if not history.is_linearizable():
                yield f"no order explains its row:\n{history}"
        for one, answer in told:
            there = EntityKey(partition, one.companion_key) in source
            if answer.outcome != UNKNOWN and there != (one.companion and answer.outcome == ACKNOWLEDGED):
                yield f"creator {one.number} was told {answer.outcome}, its companion is there: {there}"

    def _is_right(self, creator: Creator, outcome: str, *, moving: bool) -> bool:
        """Tell whether a creator can have been told this."""
        if outcome == UNKNOWN or outcome.startswith(BUSY):
            return moving
        right = {ACKNOWLEDGED, COLLISION}
        if creator.view == "new" and self.race.world.index is None:  # another row is there, under its own key
            right |= {EXISTS_ALREADY, OLD_KEY}
        if [one.old_key for one in self.race.creators].count(creator.old_key) > 1:
            right.add(EXISTS_ALREADY)
        if creator.moves:
            right.add(MISSING_HOLDER)
        return outcome in right

    def _history(self, key: str, row: Row) -> History:
        """Return what was done to the row of an old key: its creators may be twins."""
        operations = [
            Operation(
                answer.began,
                answer.ended if answer.outcome == ACKNOWLEDGED else None,
                f"{one.verb} {one.view}",
                DONE if answer.outcome == ACKNOWLEDGED else OPEN,
                partial(_act, one.verb, frozenset(self.race.content(one).items())),
            )
            for one, answer in zip(self.race.creators, self.answers, strict=True)
            if one.old_key == key and answer.outcome in (ACKNOWLEDGED, UNKNOWN)
        ]
        left = frozenset((name, value) for name, value in row.items() if name == "Tok" or name[:2] == "By")
        return History(None, operations, [left])

    def __str__(self) -> str:
        race = self.race
        lines = [
            f"race {race.number} ({race.world.name}, {self.phase}), {race.before}, former {race.former}:"
        ]
        lines += [
            f"  {answer.began}-{answer.ended} {one.verb} {one.old_key} view {one.view} client {one.way}"
            f"{' with companion' if one.companion else ''}{' moves' if one.moves else ''}"
            f" after {one.delay_s * 1000:.1f} ms: {answer.outcome}"
            for one, answer in zip(race.creators, self.answers, strict=True)
        ]
        return "\n".join(lines)


def _act(verb: str, written: frozenset[tuple[str, str]], content: Content) -> Content | Refuses:
    assert content is None or isinstance(content, frozenset)
    if verb == "insert":
        return written if content is None else Refuses(EXISTS)
    if verb == "replace" or content is None:
        return written
    return frozenset({**dict(content), **dict(written)}.items())


def unlike(
    mapper: Mapper, source: Iterable[Row], tables: Mapping[str, Mapping[EntityKey, Row]]
) -> Iterator[str]:
    """Yield where the replicas differ from what the source rows give, and rows that want one key."""
    wanted: dict[str, dict[EntityKey, Row]] = {name: {} for name in tables}
    for row in source:
        for number, made in mapper.map(row):
            rows = wanted[mapper.tables[number]]
            if key_of(made) in rows:
                yield f"two source rows map to {key_of(made)}, one is {row['RowKey']}"
            rows[key_of(made)] = made
    for name, found in tables.items():
        yield from differences(name, wanted[name], found)


# --- a life -----------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What came of the races of some lives."""

    races: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    without_winner: int = 0
    seconds: float = 0.0

    def add(self, judged: Judged) -> None:
        """Count one race."""
        self.races[judged.race.world.name, judged.phase, judged.race.mix] += 1
        outcomes = [answer.outcome for answer in judged.answers]
        self.answers.update(one.partition(":")[0] for one in outcomes)
        held = judged.race.before in ("held", "moved")
        self.without_winner += not held and ACKNOWLEDGED not in outcomes

    def __iadd__(self, other: Report) -> Report:
        self.races += other.races
        self.answers += other.answers
        self.without_winner += other.without_winner
        self.seconds += other.seconds
        return self

    def __str__(self) -> str:
        whole = self.races.total()
        lines = [f"{whole} races in {self.seconds:.0f} s: {whole / max(self.seconds, 0.1):.1f} a second"]
        lines += [f"  told {outcome}: {times}" for outcome, times in self.answers.most_common()]
        lines.append(f"  races for a free key that nobody won: {self.without_winner}")
        for what, place in (("world", 0), ("phase", 1), ("view", 2)):
            totals: Counter[str] = Counter()
            for key, times in self.races.items():
                totals[key[place]] += times
            lines.append(f"  by {what}: " + ", ".join(f"{name} {times}" for name, times in totals.items()))
        lines += [f"  {', '.join(key)}: {times}" for key, times in sorted(self.races.items())]
        return "\n".join(lines)


class Life:
    """One migration for each world, from backfill to cutover and back, with races all the way.

    Several clients of each view are in this process, and one is the SDK's own at a proxy, if there is one.
    """

    def __init__(
        self, project: Project, seed: int, races: int, *, grouped: bool = True, proxied: bool = True
    ) -> None:
        """Write scripts and sources. `races`: how many to run."""
        self.project, self.seed, self.races, self.proxied = project, seed, races, proxied
        self._group = f"races{project.number}" if grouped else ""
        self._ways = 3 if proxied else 2
        self.scripts = {world.name: f"{project.number:04d}_{world.name}" for world in WORLDS}
        self._begun, self._moments = 0, count()
        self._clients: dict[tuple[str, View], list[Any]] = {}
        self.judged: list[Judged] = []
        self.report = Report()
        drawn = [Race.drawn(seed, number, self._ways) for number in range(races)]
        self.mappers = {}
        for world in WORLDS:
            source, target, index = self.tables(world)
            MADE.update((source, target, index))
            path = project.migrations / f"{self.scripts[world.name]}.py"
            path.write_text(world.script(source, target, index, self._group), "utf-8")
            self.mappers[world.name] = Mapper(load_script(path).migration, {})
            load(
                project.azurite.tables,
                source,
                [race.former_row for race in drawn if race.world == world and race.is_copied],
            )

    def tables(self, world: World) -> tuple[str, str, str]:
        """Return the names of a world's source, main target and index table."""
        names = (f"T{self.project.number}{world.name.title()}{base}" for base in ("Old", "New", "Seats"))
        source, target, index = names
        return source, target, index

    # --- races --------------------------------------------------------------------------------------------

    async def live(self, endpoint: str) -> None:
        """Live it: races before, during and after cutover and rollback. `endpoint`: of the proxy."""
        began = time.monotonic()
        async with self._open(endpoint):
            await self._run("apply")
            await self._opened_new_view()
            await self._race("dual_write", 0.15)
            await self._race_during("while cutting over", 0.45, "apply", "--to", "cutover")
            await self._race("cutover", 0.6)
            await self._judge()
            await self._race_during("while rolling back", 0.85, "rollback", "--to", "dual_write")
            await self._race("after rollback", 1)
            await self._judge()
        self.report.seconds = time.monotonic() - began

    async def race_in(self, phase: Literal["dual_write", "cutover"]) -> list[str]:
        """Run all races in one phase; return what is wrong, also if something is left unsettled."""
        async with self._open(""):
            await self._run("apply", *(("--to", phase) if phase == "cutover" else ()))
            await self._opened_new_view()
            await self._race(phase, 1)
            with suppress(AssertionError):
                await self._settled(10.0)
            return self._wrong()

    @asynccontextmanager
    async def _open(self, endpoint: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for world, view in product(WORLDS, VIEWS):
                opened = self._opened(world, view, endpoint)
                self._clients[world.name, view] = [await stack.enter_async_context(one) for one in opened]
            yield

    def _opened(self, world: World, view: View, endpoint: str) -> Iterator[Any]:
        config, script_id = self.project.folder / "rekey.toml", self.scripts[world.name]
        for number, acknowledge in enumerate(("both", "authority")):
            yield aio.DualWriteTableClient.from_config(
                config,
                script_id,
                view=view,
                name=f"{view}-{number}",
                settings=SETTINGS,
                acknowledge=acknowledge,
                shadow_reads=0.0,
            )
        if self.proxied:
            account = self.project.azurite.tables
            credential = AzureNamedKeyCredential(account.name, account.key)
            table = self.tables(world)[VIEWS.index(view)]
            yield TableClient(endpoint, table, credential=credential, retry_total=0)

    async def _run(self, *words: str) -> None:
        """Run a command for all migrations: at once as a group, else one after the other."""
        chosen = [("--group", self._group)] if self._group else [(one,) for one in self.scripts.values()]
        for one in chosen:
            (await asyncio.to_thread(self.project.run, *words, *one)).ended(0)

    async def _opened_new_view(self) -> None:
        """Wait until all clients of the new view know that all rows are copied."""
        for world in WORLDS:
            for client in self._clients[world.name, "new"]:
                with suppress(ResourceNotFoundError):
                    await _insisting(partial(client.get_entity, "no", "row"), HTTPStatus.FORBIDDEN)

    async def _race_during(self, phase: str, until: float, *words: str) -> None:
        """Run races while a command runs, until such a share of all has been run."""
        command = asyncio.create_task(self._run(*words))
        await self._race(phase, until, WIDTH // 2, goes_on=lambda: not command.done())
        await command

    async def _race(
        self, phase: str, until: float, width: int = WIDTH, goes_on: Callable[[], bool] = lambda: True
    ) -> None:
        async def work() -> None:
            while goes_on() and self._begun < self.races * until:
                race, self._begun = Race.drawn(self.seed, self._begun, self._ways), self._begun + 1
                self.judged.append(Judged(race, phase, await self._run_race(race)))
                self.report.add(self.judged[-1])

        await asyncio.gather(*(work() for _ in range(width)))

    async def _run_race(self, race: Race) -> list[Answer]:
        if race.before in ("gone", "copied and gone"):
            view, way = race.former_way
            client, row = self._clients[race.world.name, view][way], self._seen(race, view, race.former_row)
            if race.before == "gone":
                await _insisting(lambda: client.upsert_entity(row))
            await _insisting(lambda: client.delete_entity(row["PartitionKey"], row["RowKey"]))
        return list(await asyncio.gather(*(self._create(race, one) for one in race.creators)))

    def _seen(self, race: Race, view: View, row: Row) -> Row:
        """Return a source row as a view has it."""
        return row if view == "old" else self.mappers[race.world.name].map(row)[0].row

    async def _create(self, race: Race, creator: Creator) -> Answer:
        client = self._clients[race.world.name, creator.view][creator.way]
        rows = [self._seen(race, creator.view, row) for row in race.rows(creator)]
        await asyncio.sleep(creator.delay_s)
        began = next(self._moments)
        try:
            if creator.companion or creator.moves:
                await client.submit_transaction(self._operations(race, creator, rows))
            elif creator.verb == "insert":
                await client.create_entity(rows[0])
            else:
                await client.upsert_entity(rows[0], mode=creator.verb)
        except AzureError as error:
            outcome = outcome_of(error)
        else:
            outcome = ACKNOWLEDGED
        return Answer(began, next(self._moments), outcome)

    def _operations(self, race: Race, creator: Creator, rows: Sequence[Row]) -> list[Any]:
        keys = {}
        if creator.moves:
            holder = self._seen(race, creator.view, race.former_row)
            keys = {name: holder[name] for name in ("PartitionKey", "RowKey")}
        how = ("create", rows[0]) if creator.verb == "insert" else ("upsert", rows[0], {"mode": creator.verb})
        return [*([("delete", keys)] if keys else []), how, *(("upsert", one) for one in rows[1:])]

    # --- what is left -------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        """Compare all tables with all answers, once nothing is in flight."""
        await self._settled(_SETTLED_S)
        wrong = await asyncio.to_thread(self._wrong)
        for script_id in self.scripts.values():
            ran = await asyncio.to_thread(self.project.run, "verify", script_id, "--mode", "full")
            if ran.code:
                wrong.append(f"verify: {ran.said[:1500]}")
        status = (await asyncio.to_thread(self.project.run, "status", "--json")).ended(0).document
        wrong += [f"status: {one}" for one in status["migrations"] if not one["safe"]]
        assert not wrong, f"seed {self.seed}, {len(wrong)} in all:\n" + "\n".join(wrong[:20])

    def _wrong(self) -> list[str]:
        return [line for world in WORLDS for line in self._wrong_in(world)]

    def _wrong_in(self, world: World) -> list[str]:
        source, *replicas = self.tables(world)
        rows = self.project.wire.contents(source)
        by_key = {EntityKey(*key): row for key, row in rows.items()}
        mapper = self.mappers[world.name]
        filled = {name: self.project.wire.contents(name) for name in replicas if name in mapper.tables}
        tables = {
            name: {EntityKey(*key): row for key, row in found.items()} for name, found in filled.items()
        }
        wrong = [f"{world.name}: {line}" for line in unlike(mapper, by_key.values(), tables)]
        for one in self.judged:
            if one.race.world == world:
                moving = one.phase.startswith("while")
                wrong += [f"{line}\n{one}" for line in one.wrong(by_key, moving=moving)]
        return wrong

    async def _settled(self, within_s: float) -> None:
        """Wait until the journal holds no unsettled intent."""
        ends = time.monotonic() + within_s
        while unsettled := await asyncio.to_thread(self._unsettled):
            assert time.monotonic() < ends, f"seed {self.seed}: {unsettled} intents are not settled"
            await asyncio.sleep(0.2)

    def _unsettled(self) -> int:
        journal = self.project.restricted
        return sum(
            "Settled" not in row
            for script_id in self.scripts.values()
            for row in journal.rows("rekeyjournal", (script_id, f"{script_id}~"))
        )


async def _insisting(
    call: Callable[[], Awaitable[object]], refused: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE
) -> None:
    """Make a call, again while it is refused with a status because the phase changes."""
    for _ in range(50):
        try:
            await call()
        except HttpResponseError as error:
            if error.status_code != refused:
                raise
            await asyncio.sleep(0.2)
        else:
            return
    raise AssertionError("a call was refused again and again")
