"""The worked example of two regions merged into one table, with capture "dual-write", through one proxy: the
SDK's own clients write both old tables and the new one while the group cuts over and rolls back.

Soak: all of it.
Reason, and what `make test` covers: half a minute of waiting for leases; the proxy's answers in each phase
(`tests/contract/test_merged_clients.py`), and whole lives in memory
(`tests/scenarios/runner/test_merged_at_once.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError
from azure.data.tables import TableClient

from rekey.rehearse.azurite import Azurite
from tests.acceptance.test_proxy import Proxy, proxies_of
from tests.fakes.given_account import MADE
from tests.worlds.azurite_projects import Key, Project, load
from tests.worlds.fleet import waited_for
from tests.worlds.scripts import under_writes

pytestmark = [pytest.mark.azurite, pytest.mark.soak]
EXAMPLE = Path(__file__).parents[2] / "migrations" / "0008_orders_of_regions.py"
REGIONS = ("DE", "FR")
CUSTOMERS = 5
OTHERS = {"PartitionKey": "US_c0", "RowKey": "0001", "Total": 7}


class Merging(Project):
    """A project whose script is the example's, with tables and a group of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group = f"orders{self.number}"
        begins = f"T{self.number}Orders"
        self.sources = {region: f"{begins}{region}" for region in REGIONS}
        self.merged = f"T{self.number}AllOrders"
        MADE.update((self.merged, *self.sources.values()))
        text = under_writes(EXAMPLE.read_text("utf-8"))
        for old, new in (
            ('["OrdersDE", "OrdersFR"]', repr(list(self.sources.values()))),
            ('removeprefix("Orders")', f'removeprefix("{begins}")'),
            ('"AllOrders"', f'"{self.merged}"'),
            ('group="orders"', f'group="{self.group}"'),
        ):
            assert old in text
            text = text.replace(old, new)
        self.script(text)
        for source in self.sources.values():
            rows = [{"PartitionKey": f"c{each}", "RowKey": "0000", "Total": 1} for each in range(CUSTOMERS)]
            load(self.azurite.tables, source, rows)
        load(self.azurite.tables, self.merged, [OTHERS])


@dataclass
class Writer:
    """Writes orders of one region in one view; nobody else writes the same ones."""

    client: TableClient
    region: str
    is_new: bool
    written: dict[Key, int] = field(default_factory=dict)
    refused: list[str | None] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        number = 0
        while not self.ended.wait(0.05):
            number += 1
            customer, order = f"c{number % CUSTOMERS}", f"{number % 7:03}{'n' if self.is_new else 'o'}"
            row = {"PartitionKey": customer, "RowKey": order, "Total": number}
            if self.is_new:
                row |= {"PartitionKey": f"{self.region}_{customer}", "Customer": customer}
            try:
                self.client.upsert_entity(row)
            except HttpResponseError as refused:
                self.refused.append(refused.error_code)
            else:
                self.written[customer, order] = number


@contextmanager
def writing(project: Merging, proxy: Proxy) -> Iterator[list[Writer]]:
    """Let a writer of each region and view write through a proxy."""
    key = AzureNamedKeyCredential(project.azurite.tables.name, project.azurite.tables.key)
    with ExitStack() as stack:
        writers = []
        for region, source in project.sources.items():
            for is_new in (False, True):
                table = project.merged if is_new else source
                client = stack.enter_context(TableClient(proxy.endpoint, table, credential=key))
                writers.append(Writer(client, region, is_new))
        threads = [threading.Thread(target=writer.run) for writer in writers]
        for thread in threads:
            thread.start()
        try:
            yield writers
        finally:
            for writer in writers:
                writer.ended.set()
            for thread in threads:
                thread.join()


def until_written(*writers: Writer) -> None:
    """Wait until each has written more."""
    before = [sum(writer.written.values()) for writer in writers]
    waited_for(
        "writes",
        lambda: (
            [sum(writer.written.values()) > was for writer, was in zip(writers, before, strict=True)]
            == [True] * len(writers)
        ),
    )


@pytest.mark.timeout(600)
def test_the_regions_of_the_example_merge_through_one_proxy(tmp_path: Path, azurite: Azurite) -> None:
    project = Merging(tmp_path / "project", azurite)
    group = ("--group", project.group)
    with ExitStack() as stack:
        [proxy] = stack.enter_context(proxies_of(project, Proxy(project)))
        writers = stack.enter_context(writing(project, proxy))
        old = [writer for writer in writers if not writer.is_new]
        until_written(*old)
        assert {code for writer in writers if writer.is_new for code in writer.refused} == {"new-view-closed"}
        project.run("apply", *group).ended(0)
        until_written(*writers)
        project.run("apply", *group, "--to", "cutover").ended(0)
        until_written(*writers)
        new = next(writer.client for writer in writers if writer.is_new)
        assert {row["PartitionKey"][:2] for row in new.list_entities()} == {"DE", "FR", "US"}
        with pytest.raises(HttpResponseError) as refused:
            new.upsert_entity(OTHERS)
        assert refused.value.error_code == "others-row"
        project.run("rollback", *group).ended(0)
        until_written(*writers)
    merged = {key: row["Total"] for key, row in project.wire.contents(project.merged).items()}
    assert merged.pop(("US_c0", "0001")) == 7
    for region, source in project.sources.items():
        wanted = {(f"c{each}", "0000"): 1 for each in range(CUSTOMERS)}
        for writer in writers:
            if writer.region == region:
                wanted |= writer.written
                assert set(writer.refused) <= {"new-view-closed"}
        held = {key: row["Total"] for key, row in project.wire.contents(source).items()}
        assert held == wanted
        assert {key: total for key, total in merged.items() if key[0].startswith(region)} == {
            (f"{region}_{customer}", order): total for (customer, order), total in wanted.items()
        }
