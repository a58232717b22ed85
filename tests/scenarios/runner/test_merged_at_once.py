"""Two tables merged into one that has rows of its own, under the writes of one process that uses both old
tables and the new one; each migration moves by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from unittest import mock

import pytest

from rekey import DualWriteTableClient
from rekey.client.lease import ClientLease
from rekey.client.sdk import core as core_module
from rekey.client.sdk import guard as guard_module
from rekey.client.sdk.filters import keys_asked
from rekey.client.sdk.options import ClientOptions
from rekey.client.sdk.router import Carrier, PartRouter, carrier_of
from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import ConfigurationError, GateClosed, RowMissing, WritesRefused
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.opening import Prepared
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.tables.base import Accounts, Operation, Verb
from tests.scenarios.runner.test_shared_target import (
    DE,
    FR,
    compare,
    independently,
    order,
    others,
    script,
)
from tests.scenarios.runner.test_shared_target import project as project
from tests.worlds.company import QUICK, Company, as_application
from tests.worlds.projects import Project
from tests.worlds.scripts import under_writes

SCRIPTS = {"DE": DE, "FR": FR}


@pytest.fixture
def companies(project: Project) -> Iterator[dict[str, Company]]:
    for region, name in SCRIPTS.items():
        project.script(under_writes(script(region)), f"{name}.py")
    clock = project.clock
    by_its_clock = partial(ClientLease, monotonic=lambda: clock.ticks() / TICKS_PER_SECOND, sleep=clock.sleep)
    with (
        mock.patch.object(core_module, "ClientLease", by_its_clock),
        mock.patch.object(guard_module, "ClientLease", by_its_clock),
    ):
        first = Company(project, DE)
        yield {"DE": first, "FR": Company(project, FR, first.loop)}
        first.close()


def client(project: Project, table: str, *scripts: str) -> Carrier:
    """Return what carries the requests of a process for a table."""
    return carrier_of(
        [
            ClientOptions(
                Prepared.of(project.config, project.scripts[name]),
                table,
                name="shop",
                settings=QUICK,
                shadow_reads=0.0,
                tables_endpoint=project.config.tables.endpoint,
            )
            for name in scripts
        ],
        lambda _options: Accounts(project.tables, project.restricted),
    )


class Shop:
    """A process that writes the orders of both regions in both views, and remembers what was acknowledged."""

    def __init__(self, companies: dict[str, Company]) -> None:
        self.companies, self.company = companies, companies["DE"]
        project = self.company.project
        self.project = project
        self.old = {region: client(project, f"Orders{region}", name) for region, name in SCRIPTS.items()}
        self.new = client(project, "Orders", *SCRIPTS.values())
        self.wanted: dict[str, dict[EntityKey, Row]] = {
            region: {key_of(row): row for row in project.rows(f"Orders{region}")} for region in SCRIPTS
        }
        self.written: dict[tuple[str, View], int] = {}

    async def write(self, carrier: Carrier, operation: Operation) -> None:
        with as_application("shop"):
            await carrier.write([operation])

    async def traffic(self, region: str, view: View, seed: int) -> None:
        """Write orders of a region in a view; no other traffic writes the same ones."""
        draw, clock = random.Random(seed), self.project.clock
        while not self.company.stopping:
            number = 2 * draw.randrange(20) + (view is View.NEW)
            row = order(f"c{number % 4}", number, 1 + draw.randrange(5), Sum=draw.randrange(99))
            verb = draw.choice([Verb.INSERT_OR_REPLACE, Verb.INSERT_OR_REPLACE, Verb.DELETE])
            sent = row if view is View.OLD else independently(region, row)
            carrier = self.old[region] if view is View.OLD else self.new
            try:
                with suppress(RowMissing):
                    await self.write(carrier, Operation(verb, sent, "*" if verb is Verb.DELETE else None))
                self.wanted[region].pop(key_of(row), None)
                if verb is not Verb.DELETE:
                    self.wanted[region][key_of(row)] = row
                self.written[region, view] = self.written.get((region, view), 0) + 1
            except WritesRefused as refused:
                if not refused.retryable:
                    assert (refused.code, view) == ("new-view-closed", View.NEW)
            await clock.sleep(draw.random())

    def go_on(self, *regions_in_new_view_alone: str, seconds: float = 10) -> None:
        """Let traffic write, begun unless it is under way, and count what it writes."""
        self.written.clear()
        for number, region in enumerate(SCRIPTS if not self.company.traffic else ()):
            for view in View:
                if view is View.NEW or region not in regions_in_new_view_alone:
                    self.company.writes(self.traffic(region, view, 10 * number + (view is View.NEW)))
        self.company.live(seconds)

    def look(self, *copied: str) -> None:
        """Compare the tables with what was acknowledged."""
        self.company.quiet()
        for region in copied:
            assert self.written.get((region, View.NEW))
            compare(self.project, region, list(self.wanted[region].values()))

    def in_source(self, region: str) -> bool:
        rows = {key_of(row): row.get("Sum") for row in self.project.rows(f"Orders{region}")}
        return rows == {key: row.get("Sum") for key, row in self.wanted[region].items()}

    def reads(self, condition: str = "") -> str:
        async def read() -> str:
            try:
                async with self.new.reading(None, keys_asked(condition)):
                    return ""
            except WritesRefused as refused:
                return refused.code

        return self.company.do(read())

    def close(self) -> None:
        for carrier in (*self.old.values(), self.new):
            self.company.do(carrier.close())


def test_two_tables_merge_under_the_writes_of_one_process(
    companies: dict[str, Company], project: Project
) -> None:
    german, french = companies.values()
    untouched, shop = others(project), Shop(companies)
    shop.go_on()
    german.apply()
    shop.go_on()
    german.apply(Phase.CUTOVER)
    shop.go_on()
    shop.look("DE")
    assert (shop.in_source("DE"), shop.in_source("FR")) == (True, True)
    # FR has not begun: its rows are refused in the new view, and so is what might show them.
    assert ("FR", View.NEW) not in shop.written
    assert [shop.reads(), shop.reads("PartitionKey eq 'DE_c1'")] == ["new-view-closed", ""]
    shop.go_on()
    french.apply()
    shop.go_on()
    french.apply(Phase.CUTOVER)
    shop.go_on()
    shop.look("DE", "FR")
    assert shop.reads() == ""
    shop.go_on()
    french.rollback()
    shop.go_on()
    shop.look("DE", "FR")
    assert (shop.in_source("DE"), shop.in_source("FR")) == (True, True)
    german.do(shop.old["DE"].close())
    shop.go_on("DE")
    assert not french.verify(Mode.FULL).findings
    french.apply(Phase.CUTOVER)
    with german.little_traffic(), french.little_traffic():
        german.apply(Phase.COMPLETE)
    shop.look("DE", "FR")
    for company in (german, french):
        assert not company.verify(Mode.FULL).findings
    german.hand_over()
    german.retire()
    shop.go_on("DE")
    shop.company.quiet()
    assert shop.written["DE", View.NEW]
    assert shop.in_source("FR")
    assert others(project) == untouched
    shop.close()


def test_a_group_cuts_over_under_the_writes_of_one_process(
    companies: dict[str, Company], project: Project
) -> None:
    """A write that waits in the freeze of one migration keeps no permit of the other."""
    for region, name in SCRIPTS.items():
        text = under_writes(script(region)).replace("    capture=", '    group="orders",\n    capture=')
        project.script(text, f"{name}.py")
    german, untouched, shop = companies["DE"], others(project), Shop(companies)
    for to in (None, Phase.CUTOVER):
        shop.go_on(seconds=5)
        with german.session() as session:
            commands.apply_group(session, "orders", to=to)
        shop.go_on(seconds=5)
        shop.look("DE", "FR")
        assert (shop.in_source("DE"), shop.in_source("FR")) == (True, True)
    assert others(project) == untouched
    shop.close()


def test_a_migration_that_is_rolled_back_and_begun_again_is_followed_by_the_same_process(
    companies: dict[str, Company], project: Project
) -> None:
    german, french = companies.values()
    shop = Shop(companies)

    def answers() -> list[str]:
        codes = []
        for region in SCRIPTS:
            row = independently(region, order("c1", 1, Sum=len(codes)))
            try:
                german.do(shop.write(shop.new, Operation(Verb.INSERT_OR_REPLACE, row)))
                codes.append("")
            except WritesRefused as refused:
                codes.append(refused.code)
        return [*codes, shop.reads(), shop.reads("PartitionKey eq 'DE_c1'")]

    german.do(shop.new.open())
    german.apply(Phase.CUTOVER)
    french.apply()
    assert answers() == ["", "", "", ""]
    french.rollback(ControlPhase.SOURCE, drop=True)
    assert french.phase is None
    german.live(10)
    assert answers() == ["", "new-view-closed", "new-view-closed", ""]
    french.apply()
    german.live(10)
    assert answers() == ["", "", "", ""]
    assert compare(project, "FR") == 30
    shop.close()


def test_a_process_with_another_script_of_one_migration_writes_no_row_that_nothing_follows(
    companies: dict[str, Company], project: Project
) -> None:
    german, french = companies.values()
    new = client(project, "Orders", *SCRIPTS.values())
    german.do(new.open())
    german.apply()
    french.apply()
    french.apply(Phase.CUTOVER)
    with french.little_traffic():
        french.apply(Phase.COMPLETE)
    french.hand_over()
    german.do(new.close())
    wrong = script("DE").replace('"Customer"', '"Client"')
    right = (project.folder / "migrations" / f"{DE}.py").read_text("utf-8")
    project.script(under_writes(wrong), f"{DE}.py")
    new = client(project, "Orders", *SCRIPTS.values())
    german.do(new.open())
    project.script(right, f"{DE}.py")
    with pytest.raises(GateClosed) as closed:
        german.apply(Phase.CUTOVER)
    assert "shop" in str(closed.value)
    with pytest.raises(WritesRefused) as refused:
        german.do(new.write([Operation(Verb.INSERT_OR_REPLACE, independently("FR", order("c1", 99)))]))
    assert refused.value.code == "digest-moved"
    german.do(new.close())


def test_a_client_from_the_configuration_follows_the_scripts_that_are_named(
    companies: dict[str, Company], project: Project
) -> None:
    assert companies
    client = DualWriteTableClient.from_config(project.config.path, [DE, FR], view="new")
    assert isinstance(client._core, PartRouter)
    client.close()
    client = DualWriteTableClient.from_config(project.config.path, [DE, FR], table="ByDay")
    assert isinstance(client._core, PartRouter)
    client.close()
    client = DualWriteTableClient.from_config(project.config.path, FR, view="new")
    assert not isinstance(client._core, PartRouter)
    client.close()
    for named, view, problem in (
        ([DE, FR], "old", "no table of this migration"),
        ([DE, DE], "new", "named twice"),
        ([], "new", "no migration"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            DualWriteTableClient.from_config(project.config.path, named, view=view)
