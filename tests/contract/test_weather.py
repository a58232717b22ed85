"""In bad weather the client behaves like the SDK's: requests fail with 500, 408 and 503, connections are cut,
answers are lost, and the application sees no error; nothing is lost or doubled, and what it was told is true.

Soak: 10,000 writes in each view and phase; a hundred in the old view.
Reason, and what `make test` covers: minutes; two runs of a hundred writes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import ResourceExistsError, ResourceModifiedError, ResourceNotFoundError
from azure.data.tables import UpdateMode

from rekey import Migration, Target, keys, props
from rekey.client.reading import LeaseSettings
from rekey.declaration.mapper import Mapper
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import Row
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.asserts.client_pairs import Driver, ours
from tests.fakes.weather import CALM, Message, Weather, WeatherProxy
from tests.worlds.begun_migrations import SECRETS, Begun, declared_as

SHARE = 0.01
"""Of all requests, for each thing that goes wrong."""
ALL_AT_ONCE = Weather(failed=SHARE, timed_out=SHARE, busy=SHARE, drop=SHARE, repeat=SHARE)
SETTINGS = LeaseSettings(poll_s=0.5, lease_s=15.0, longest_operation_s=60.0, freeze_wait_s=10.0)
"""After each lost answer a write waits until nothing can land any more. Four of them in a row, which one of
some thousand writes meets here, come close to the 30 s that are usual."""
WRITERS = 16


Content = dict[str, Any]


class Application:
    """Writes rows of its own, one after the other, and holds the client to what it told.

    Attributes:
        told: what must be there, by name.
        failed: errors that the weather alone explains.
    """

    def __init__(self, users: Driver, rows: Callable[[str], Content], number: int, seed: int) -> None:
        self.users, self.rows = users, rows
        self.names = [f"u{number}x{one}" for one in range(3)]
        self.lot = random.Random(f"{seed} {number}")
        self.told: dict[str, str] = {}
        self.etags: dict[str, str] = {}
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []

    async def work(self, writes: int) -> None:
        """Write so many times."""
        for number in range(writes):
            name, said = self.lot.choice(self.names), f"{self.names[0]} {number}"
            calls = [self._create, self._upsert, self._update, self._merge, self._delete, self._transact]
            call = self.lot.choice(calls)
            self.done[call.__name__] += 1
            try:
                await call(name, said)
            except (ResourceExistsError, ResourceNotFoundError, ResourceModifiedError) as error:
                self.failed.append(f"{call.__name__} {name}: not true: {error}")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told at the end
                self.failed.append(f"{call.__name__} {name}: {type(error).__name__} {error}")
                self.told.pop(name, None)
                self.etags.pop(name, None)
                return  # what is there is unknown from here on

    def _row(self, name: str, said: str) -> Content:
        return {**self.rows(name), "Said": said}

    async def _create(self, name: str, said: str) -> None:
        try:
            done = await self.users.raw("create_entity", self._row(name, said))
        except ResourceExistsError:
            if name not in self.told:
                raise
            return
        assert name not in self.told, "a row was created that was there"
        self._is(name, said, done)

    async def _upsert(self, name: str, said: str) -> None:
        done = await self.users.raw("upsert_entity", self._row(name, said), mode=UpdateMode.REPLACE)
        self._is(name, said, done)

    async def _update(self, name: str, said: str) -> None:
        more = {}
        if self.lot.random() < 0.5 and name in self.etags:
            more = {"etag": self.etags[name], "match_condition": MatchConditions.IfNotModified}
        await self._change(name, said, UpdateMode.REPLACE, **more)

    async def _merge(self, name: str, said: str) -> None:
        await self._change(name, said, UpdateMode.MERGE)

    async def _change(self, name: str, said: str, mode: UpdateMode, **more: Any) -> None:
        try:
            done = await self.users.raw("update_entity", self._row(name, said), mode=mode, **more)
        except ResourceNotFoundError:
            if name in self.told:
                raise
            return
        assert name in self.told, "a row was changed that was not there"
        self._is(name, said, done)

    async def _delete(self, name: str, _said: str) -> None:
        row, more = self.rows(name), {}
        if self.lot.random() < 0.5 and name in self.etags:
            more = {"etag": self.etags[name], "match_condition": MatchConditions.IfNotModified}
        await self.users.raw("delete_entity", row["PartitionKey"], row["RowKey"], **more)
        self.told.pop(name, None)
        self.etags.pop(name, None)

    async def _transact(self, name: str, said: str) -> None:
        other = next(one for one in self.names if one != name)
        operations = [("upsert", self._row(name, said)), ("upsert", self._row(other, said))]
        for one, done in zip(
            (name, other), await self.users.raw("submit_transaction", operations), strict=True
        ):
            self._is(one, said, done)

    def _is(self, name: str, said: str, done: Any) -> None:
        self.told[name], self.etags[name] = said, done["etag"]


@pytest.fixture
async def scene(
    azurite: Azurite,
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
    table_name: Callable[[str], str],
) -> AsyncIterator[Scene]:
    """A migration in `dual_write`, and a line to both accounts on which the weather is fine."""
    migration = Migration(
        table_name("Users"),
        Target(
            table_name("UsersV2"),
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.opaque("RowKey", domain="user", secret="users"),
            properties=[props.copy("RowKey", to="Name")],
        ),
        capture="dual-write",
    )
    begun = Begun(declared_as(table_name("s"), migration), tables_service, restricted_service)
    await begun.create_tables()
    await begun.begin()
    await begun.move(ControlPhase.DUAL_WRITE, copied=True)
    parts = urlsplit(azurite.tables.endpoint)
    proxy = WeatherProxy((str(parts.hostname), parts.port or 0), {"all": CALM}, 0)
    ports = await proxy.start()
    yield Scene(azurite, begun, proxy, ports["all"])
    await proxy.stop()


class Scene:
    """Users whose rows are written through the weather, and the migration that re-keys them."""

    def __init__(self, azurite: Azurite, begun: Begun, proxy: WeatherProxy, port: int) -> None:
        self.azurite, self.begun, self.proxy, self.port = azurite, begun, proxy, port
        self.migration = begun.declared.migration
        self.mapper = Mapper(self.migration, SECRETS)

    def client(self, view: View, *, sync: bool = False) -> Any:
        """Return a client of a view, behind the weather."""
        return ours(
            self.azurite,
            self.migration.source if view is View.OLD else self.migration.target.table,
            self.begun.declared,
            SECRETS,
            sync=sync,
            endpoint=self._behind(self.azurite.tables.endpoint),
            restricted_endpoint=self._behind(self.azurite.restricted.endpoint),
            settings=SETTINGS,
        )

    def row(self, view: View, name: str) -> Content:
        """Return a row's key, and what leads back to its old key, as a view shows it."""
        row = {"PartitionKey": "p", "RowKey": name}
        return row if view is View.OLD else dict(self.mapper.map(row)[0].row)

    async def said(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return what the rows of both tables say, by name, when nothing is open any more."""
        for _ in range(120):
            if not [row async for page in self._scan(JOURNAL_TABLE, restricted=True) for row in page]:
                break
            await asyncio.sleep(0.5)
        found = []
        for table, name in ((self.migration.source, "RowKey"), (self.migration.target.table, "Name")):
            rows = [row async for page in self._scan(table) for row in page]
            assert len({row[name] for row in rows}) == len(rows), "a row is there twice"
            found.append({row[name]: row["Said"] for row in rows})
        return found[0], found[1]

    async def _scan(self, table: str, *, restricted: bool = False) -> AsyncIterator[list[Row]]:
        service, script = (self.begun.restricted if restricted else self.begun.tables), self.begun.declared
        async for page in service.table(table).scan():
            rows = page.rows
            yield [row for row in rows if script.script_id in row["PartitionKey"]] if restricted else rows

    def _behind(self, endpoint: str) -> str:
        return f"http://127.0.0.1:{self.port}{urlsplit(endpoint).path}"


VIEWS = {
    "the old view in dual_write": ((), View.OLD),
    "the new view in dual_write": ((), View.NEW),
    "the new view after cutover": ((ControlPhase.FREEZE, ControlPhase.CUTOVER), View.NEW),
    "the old view after cutover": ((ControlPhase.FREEZE, ControlPhase.CUTOVER), View.OLD),
}


@pytest.mark.parametrize(
    ("where", "sync", "writes"),
    [
        pytest.param("the old view in dual_write", False, 112, marks=pytest.mark.soak),
        ("the new view after cutover", False, 112),
        ("the new view in dual_write", True, 112),
        *(
            pytest.param(where, False, 10_000, marks=[pytest.mark.soak, pytest.mark.timeout(0)])
            for where in VIEWS
        ),
    ],
)
async def test_no_write_fails_and_what_was_told_is_true(
    scene: Scene, where: str, sync: bool, writes: int
) -> None:
    moves, view = VIEWS[where]
    await scene.begun.move(*moves)
    async with scene.client(view, sync=sync) as users:
        await users.raw("query_entities", "PartitionKey eq 'p'")  # registers, while the weather is fine
        people = [
            Application(users, partial(scene.row, view), number, seed=writes) for number in range(WRITERS)
        ]
        scene.proxy.change("all", ALL_AT_ONCE)
        await asyncio.gather(*(one.work(writes // WRITERS) for one in people))
        scene.proxy.change("all", CALM)
        print(scene.proxy.dealt)
        assert [failed for one in people for failed in one.failed] == []
        old, new = await scene.said()
    told = {name: said for one in people for name, said in one.told.items()}
    assert old == told
    assert new == told
    assert min(scene.proxy.dealt[kind] for kind in ("failed", "timed_out", "busy", "drop", "repeat")) > 2


class _Unlucky(WeatherProxy):
    """Fails the first five attempts to announce a write in the journal."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(upstream, {"all": CALM}, 0)
        self.announced = 0

    async def _serve_one(self, party: Any, asked: Message, *line: Any) -> bool:
        announces = asked.first.startswith("POST") and f"/{JOURNAL_TABLE}?" in asked.first
        self.announced += announces
        self.change("all", Weather(failed=1.0 if announces and self.announced <= 5 else 0.0))
        return await super()._serve_one(party, asked, *line)


async def test_a_write_of_which_one_request_fails_five_times_is_written(scene: Scene) -> None:
    unlucky = _Unlucky(scene.proxy._upstream)
    scene.port = (await unlucky.start())["all"]
    try:
        async with scene.client(View.OLD) as users:
            await users.raw("upsert_entity", scene.row(View.OLD, "u") | {"Said": "x"})
        assert unlucky.announced == 6
        assert await scene.said() == ({"u": "x"}, {"u": "x"})
    finally:
        await unlucky.stop()
