"""A table moves from one Azurite to another under its own name, as installed, while clients of both views
write: the new Azurite is away for a while, twice. And a whole rehearsal of such a move.

Soak: whole rehearsals of a move.
Reason, and what `make test` covers: a minute and a half; a move under writes, in which the new account is
away twice.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from azure.core.exceptions import AzureError

from rekey import LeaseSettings, aio
from rekey.rehearse import project as rehearsing
from rekey.rehearse.azurite import Azurite, _end, _wait_until_ready, find_azurite, find_node
from rekey.rehearse.rehearsal import rehearse
from rekey.rehearse.report import Briefly
from tests.worlds.azurite_projects import Project, Ran, users
from tests.worlds.forking import ForkedInstead
from tests.worlds.scripts import MOVE, named, under_writes

pytestmark = pytest.mark.azurite
QUICK = LeaseSettings(poll_s=0.1, lease_s=4.0, longest_operation_s=4.0, freeze_wait_s=10.0)
AWAY_S = 1.5


class KeptAzurite(Azurite):
    """An Azurite that keeps its tables on disk: it can end, and come back on the same port."""

    persistence = ()

    def end(self) -> None:
        """End it: its connections are refused from now on."""
        assert self._process is not None
        _end(self._process)

    def come_back(self) -> None:
        """Start it again, with what it had."""
        assert self._folder is not None
        node, home = find_node(), Path(self._folder.name)
        self._process = self._launch(node, find_azurite(node), home)
        assert _wait_until_ready(self._process, home / "azurite.log") == ""


class Writer:
    """Writes rows of its own through a client, and notes what was acknowledged; what was not is doubtful."""

    def __init__(self, name: str, client: aio.DualWriteTableClient) -> None:
        self.name, self.client = name, client
        self.told: dict[str, int] = {}
        self.doubtful: set[str] = set()
        self.ends = False

    async def write(self) -> None:
        """Write until it is to end."""
        number = 0
        while not self.ends:
            number += 1
            key = f"{self.name}-{number % 5}-{len(self.doubtful)}"
            row = {"PartitionKey": "tenant-0", "RowKey": key, "Logins": number}
            try:
                await self.client.upsert_entity(row, mode="replace")
            except AzureError:
                self.doubtful.add(key)
                self.told.pop(key, None)
            else:
                self.told[key] = number
            await asyncio.sleep(0.1)


async def away_for_a_while(azurite: KeptAzurite) -> None:
    """Let an Azurite end, and come back."""
    await asyncio.to_thread(azurite.end)
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(azurite.come_back)


async def until_done(project: Project, *words: str) -> Ran:
    """Run a command again and again until it is done: it may be told that an account does not answer."""
    for _ in range(12):
        ran = await asyncio.to_thread(project.run, *words)
        if ran.code == 0:
            return ran
        ran.ended(ran.code)  # no crash
        if "verify" in ran.said and words[0] == "apply":
            await asyncio.to_thread(project.run, "verify", project.script_id, "--mode", "full")
        await asyncio.sleep(0.5)
    raise AssertionError(ran.said)


def test_nothing_is_lost_while_the_new_account_is_away_for_a_while(tmp_path: Path, azurite: Azurite) -> None:
    """In the middle of copying, and after cutover, when it is the authority."""
    with KeptAzurite() as other:
        project = Project(tmp_path, azurite, elsewhere=other.tables)
        project.configure(window_rows=20, entities_per_second=150)
        project.script(under_writes(MOVE))
        project.fill(users(200))
        config, script_id = tmp_path / "rekey.toml", project.script_id
        with pytest.MonkeyPatch.context() as patch:
            for name, value in project.environment.items():
                patch.setenv(name, value)
            asyncio.run(live(project, other, config, script_id))
        assert project.wire.contents(project.source) == project.wire.contents(project.target)


async def live(project: Project, other: KeptAzurite, config: Path, script_id: str) -> None:
    """Move the table, under writes."""

    def client(view: str) -> aio.DualWriteTableClient:
        return aio.DualWriteTableClient.from_config(config, script_id, view=view, name=view, settings=QUICK)

    async with client("old") as old, client("new") as new:
        assert (old.table_name, new.table_name) == (project.source, project.source)
        writers = [Writer("old", old)]
        tasks = [asyncio.create_task(writers[0].write())]
        running = await asyncio.to_thread(project.start, "apply", script_id)
        deadline = time.monotonic() + 60
        while not await asyncio.to_thread(project.wire.rows, project.target):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        await away_for_a_while(other)
        ran = await asyncio.to_thread(running.wait)
        ran.ended(ran.code)
        await until_done(project, "apply", script_id)
        await until_done(project, "verify", script_id, "--mode", "full")
        await until_done(project, "apply", script_id, "--to", "cutover")
        writers.append(Writer("new", new))
        tasks.append(asyncio.create_task(writers[1].write()))
        await asyncio.sleep(0.5)
        await away_for_a_while(other)
        await asyncio.sleep(QUICK.longest_operation_s)
        for writer in writers:
            writer.ends = True
        await asyncio.gather(*tasks)
        await until_done(project, "apply", script_id, "--to", "cutover")
        await until_done(project, "verify", script_id, "--mode", "full")
        there = {key[1]: row["Logins"] for key, row in project.wire.contents(project.target).items()}
        for writer in writers:
            assert writer.told and writer.told.items() <= there.items()


@pytest.mark.soak
@pytest.mark.parametrize("capture", ["delta", "dual-write"])
def test_a_rehearsal_of_a_move_proves_all_of_it(
    capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty seconds each: kill, resume, planted row, cutover, way back, cutover, complete, retire."""
    monkeypatch.setattr(rehearsing, "subprocess", ForkedInstead)
    script = tmp_path / "0001_move.py"
    text = MOVE if capture == "delta" else under_writes(MOVE)
    script.write_text(named(text, "Users", "Users@targets"), "utf-8")
    report = rehearse(script, rows=120, narrator=Briefly(lambda _line: None), folder=tmp_path)
    assert report.passed, report.text()


@pytest.mark.soak
def test_a_move_of_many_rows_sends_hardly_more_requests_than_the_least(
    tmp_path: Path, azurite: Azurite
) -> None:
    """100,000 rows from one Azurite to another, keys unchanged: three minutes. The least is what the plan
    says: full pages and batches; rows are tried, copied, and compared twice, and have two mapping rows."""
    count = 100_000
    with Azurite() as other:
        project = Project(tmp_path, azurite, elsewhere=other.tables)
        project.configure(window_rows=8192)
        project.script(MOVE)
        project.fill(
            {**row, "PartitionKey": f"tenant-{number % 40}"} for number, row in enumerate(users(count))
        )
        stopped = "--writers-stopped"
        for words in (("apply",), ("apply", "--to", "cutover", stopped)):
            project.start(*words).wait(600).ended(0)
        [status] = project.run("status", "--json").ended(0).document["migrations"]
        assert project.wire.contents(project.source) == project.wire.contents(project.target)
    requests = status["requests"]
    sent, least = requests["sent_in_phases_done"], requests["estimated_of_phases_done"]
    # A batch whose answer is lost on a busy machine is looked at row by row.
    sent -= 100 * requests["on_top"].get("retries", 0)
    print(f"{sent:,} requests, the least are {least:,}: {sent / least:.3f}")
    assert sent <= 1.05 * least
