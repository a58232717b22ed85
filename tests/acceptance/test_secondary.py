"""Secondary rows on real tables: a reader with the plain SDK who reads all the time never finds half a pair,
while the runner and, after cutover, clients are killed at random moments; and nothing is lost in the end.

Soak: keys from keys; ten lives, each with a rollback.
Reason, and what `make test` covers: minutes; one life with keys from content up to cutover, and rollbacks in
`tests/scenarios/runner/test_secondary_life.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError
from azure.data.tables import TableClient

from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.model import Row, key_of
from rekey.rehearse.azurite import Azurite
from tests.acceptance.secondary_client import application
from tests.worlds.azurite_projects import Project
from tests.worlds.forking import forked
from tests.worlds.scripts import RACES, under_writes
from tests.worlds.small import contents, racer

pytestmark = pytest.mark.azurite

KEYS_FROM_CONTENT = under_writes(RACES)
KEYS_FROM_KEYS = KEYS_FROM_CONTENT.replace(
    'keys.join("__", keys.literal("BIB:") + keys.prop("RowKey"), keys.prop("Name"))',
    'keys.literal("BIB:") + keys.prop("RowKey")',
).replace('keys.zero_pad(3, "Age")', 'keys.prop("RowKey")')
LONG = (pytest.mark.soak, pytest.mark.timeout(0))
RACE = "r0"
_LONGEST_END_S = 300.0
_LONGEST_COMMAND_S = 900.0
"""A command that waits for six processes, on a machine that runs several such lives, may take its time."""


class Reader(Thread):
    """Reads the partition in one request, again and again, and notes rows without the row they go with."""

    def __init__(self, project: Project, pause_s: float) -> None:
        super().__init__(daemon=True)
        account = project.azurite.tables
        credential = AzureNamedKeyCredential(account.name, account.key)
        self._table = TableClient(account.endpoint, project.target, credential=credential)
        self._ended, self._pause_s = Event(), pause_s
        self.halves: list[tuple[str, str]] = []
        self.looks = self.most = 0

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                rows = list(self._table.query_entities(f"PartitionKey eq '{RACE}'", results_per_page=1000))
            except HttpResponseError:  # the table is not there yet
                time.sleep(0.05)
                continue
            mains = {one["RowKey"] for one in rows if one["RowKey"].startswith("BIB:")}
            pointers = Counter(one["MainRowKey"] for one in rows if one["RowKey"].startswith("AGE:"))
            self.halves += [("alone", one) for one in pointers.keys() - mains]
            self.halves += [("without", one) for one in mains - pointers.keys()]
            self.halves += [("twice", one) for one, count in pointers.items() if count > 1]
            self.looks, self.most = self.looks + 1, max(self.most, len(rows))
            time.sleep(self._pause_s)

    def end(self) -> None:
        """Stop reading."""
        self._ended.set()
        self.join()


@contextmanager
def applications(
    project: Project, views: list[str], draw: random.Random, pause_s: float
) -> Iterator[list[BaseProcess]]:
    """Run an application in each view, in a process of its own; those that were not killed end in order."""
    given = str(project.folder / "rekey.toml"), project.script_id
    running, ends = list[BaseProcess](), multiprocessing.get_context("forkserver").Event()
    for number, view in enumerate(views):
        words = (*given, view, number, draw.randrange(2**32), RACE, project.environment, ends, pause_s)
        running.append(forked(application, *words))
    try:
        yield running
    finally:
        ends.set()
        for one in running:
            # One that is killed before a cutover keeps its gate closed for a quarter of an hour: it may take
            # its time to end, as it does on a busy machine.
            one.join(_LONGEST_END_S)
            one.kill()
            one.join()


@pytest.mark.parametrize(
    ("script", "lives"),
    [
        pytest.param(KEYS_FROM_CONTENT, 1, id="keys from content"),
        pytest.param(KEYS_FROM_KEYS, 1, id="keys from keys", marks=pytest.mark.soak),
        pytest.param(KEYS_FROM_CONTENT, 10, id="keys from content, ten lives", marks=LONG),
        pytest.param(KEYS_FROM_KEYS, 10, id="keys from keys, ten lives", marks=LONG),
    ],
)
def test_a_reader_who_reads_all_the_time_never_finds_half_a_pair(
    tmp_path: Path, azurite: Azurite, script: str, lives: int
) -> None:
    seed = int(os.environ.get("REKEY_SEED", random.SystemRandom().randrange(2**32)))
    for life in range(lives):
        # At full speed the reader takes most of what Azurite can do, and the writers a machine's cores.
        one_life(Project(tmp_path / f"{life}", azurite), script, seed + life, whole=lives > 1)


def one_life(project: Project, script: str, seed: int, *, whole: bool) -> None:
    """Copy under writes with kills and cut over, clients dying on the way. A whole life has a rollback and a
    second cutover, and pauses nowhere."""
    pause_s = 0.0 if whole else 0.2
    draw, told = random.Random(seed), f"seed {seed}"
    project.script(script)
    project.configure(window_rows=8)
    others: list[Row] = [racer(f"9{n:03}", 20 + n % 60, race=RACE) for n in range(80)]
    project.fill(others)
    reader = Reader(project, pause_s)
    reader.start()
    try:
        # A client that is killed before a cutover keeps its gate closed for a quarter of an hour: only the
        # runner is killed there.
        with applications(project, ["old", "old", "old"], draw, pause_s):
            _killed(project, draw, 3 if whole else 2, "apply")
            _until_done(project, "apply")
        with applications(project, ["old", "new", "new"], draw, pause_s):
            time.sleep(2)
            _killed(project, draw, 1, "apply", "--to", "cutover")
            _until_done(project, "apply", "--to", "cutover")
            time.sleep(2)
            if whole:
                _back_and_forth(project, draw)
        with applications(project, ["old", "new", "new"], draw, pause_s) as running:
            time.sleep(draw.uniform(3, 5) if whole else draw.uniform(1, 2))
            for one in running:
                one.kill()
        _until_done(project, "verify", "--mode", "full")
    finally:
        reader.end()
    print(f"{told}: {reader.looks} looks, {reader.most} rows at most")
    assert not reader.halves, (told, reader.halves[:5])
    assert reader.looks > (50 if whole else 25)
    mapper = Mapper(load_script(project.migrations / f"{project.script_id}.py").migration, {})
    source = project.wire.rows(project.source)
    expected = {key_of(one.row): one.row for row in source for one in mapper.map(row)}
    assert contents(project.wire.rows(project.target)) == expected, told
    assert {row["RowKey"] for row in others} <= {row["RowKey"] for row in source}, told


def _back_and_forth(project: Project, draw: random.Random) -> None:
    """Roll back, killed on the way, and cut over again."""
    _killed(project, draw, 1, "rollback")
    if project.run("status", "--json").document["migrations"][0]["control"]["phase"] != "dual_write":
        _until_done(project, "rollback", "--to", "dual_write")
    _until_done(project, "verify", "--mode", "full")
    _until_done(project, "apply", "--to", "cutover")


def _killed(project: Project, draw: random.Random, times: int, *words: str) -> None:
    """Run a command and kill it, so many times."""
    for _ in range(times):
        running = project.start(*words)
        running.until_it_works()
        time.sleep(draw.uniform(0, 1))
        running.kill()


def _until_done(project: Project, *words: str) -> None:
    """Run a command until it is done: clients that died keep gates closed until their time is over."""
    for _ in range(60):
        ran = project.start(*words).wait(_LONGEST_COMMAND_S)
        if ran.code == 0:
            return
        time.sleep(1)
    ran.ended(0)
