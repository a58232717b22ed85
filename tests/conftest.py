"""What all tests share: one Azurite per test process, tables of one's own in it, temporary files in memory.

State files are synced to the disk with every commit, thousands of times in a run: where there is a roomy file
system in memory (Linux), temporary files are there, unless `TMPDIR` says where. It is a file system like any.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import yoyo.migrations
from hypothesis import settings

from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.fakes.clock import FakeClock
from tests.fakes.given_account import IS_GIVEN, MADE, RUN, GivenAccount, open_account
from tests.fakes.memory import MemoryTableService

# No timing is asserted anywhere, so not by hypothesis either: a busy machine is no failure.
settings.register_profile("rekey", deadline=None)
settings.load_profile("rekey")

_parsed = functools.cache(yoyo.migrations.read_sql_migration)


def _parsed_once(path: str) -> tuple[dict[str, str], str, list[str]]:
    """Return what a file of SQL says, in lists of one's own: yoyo reverses them in place."""
    directives, comment, statements = _parsed(path)
    return dict(directives), comment, list(statements)


# State files are made by the thousand, all from the same few files of SQL.
yoyo.migrations.read_sql_migration = _parsed_once

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - folders in it are made as safely as those in /tmp
_ROOM_BYTES = 4 << 30
if (
    "TMPDIR" not in os.environ
    and os.access(_IN_MEMORY, os.W_OK | os.X_OK)
    and shutil.disk_usage(_IN_MEMORY).free >= _ROOM_BYTES
):
    os.environ["TMPDIR"] = str(_IN_MEMORY)
    tempfile.tempdir = None

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Let tests begin in the order of `pytest_collection_modifyitems`. Else xdist begins with the groups of
    most tests, which all compute, and ends with all tests that wait."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, let files of tests that mostly wait, on Azurite and for leases, take turns with
    files of tests that compute: one after the other, all would wait at once. What takes longest comes first,
    what is quickest last."""
    if not hasattr(config, "workerinput"):
        return
    files = [list(of_file) for _, of_file in itertools.groupby(items, key=lambda item: item.path)]
    files.sort(key=lambda of_file: of_file[0].path not in _LONGEST)
    tiers = {tier: [file for file in files if _tier_of(file[0].path) == tier] for tier in _TIERS}
    turns = [
        ((number + 0.5) / len(tier), file)
        for tier in (tiers["acceptance"] + tiers["contract"], tiers["simulation"] + tiers["scenarios"])
        for number, file in enumerate(tier)
    ]
    turns.sort(key=lambda turn: turn[0])
    rest = [file for file in files if _tier_of(file[0].path) not in _TIERS]
    items[:] = itertools.chain.from_iterable([*(file for _, file in turns), *rest])


_TIERS = ("acceptance", "contract", "scenarios", "simulation")
_LONGEST = frozenset(
    Path(__file__).parent / name
    for name in (
        "acceptance/test_rehearse.py",
        "acceptance/test_proxy.py",
        "acceptance/test_races.py",
        "contract/test_weather.py",
        "simulation/test_dual_lives.py",
    )
)
"""Files with tests of a minute: begun last, they would run alone."""


def _tier_of(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).parts[0]


def pytest_collection_finish() -> None:
    """Let Python's collector leave alone what collecting 8,000 tests has made, and look less often at what
    tests make: a tenth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """An Azurite of this test process (with xdist: of this worker): own port, own folder, own keys. Or the
    account that `REKEY_TEST_ENDPOINT` names (`tests.fakes.given_account`)."""
    if IS_GIVEN:
        account = GivenAccount()
        yield cast(Azurite, account)
        account.remove_tables()
        return
    with Azurite() as running:
        yield running


@pytest.fixture
def table_name() -> Callable[[str], str]:
    """Return a function that makes a base name a table name that no other test has."""
    number = next(_numbers)

    def named(base: str) -> str:
        name = f"{base}{RUN}x{number}"
        MADE.add(name)
        return name

    return named


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until somebody waits."""
    return FakeClock()


@pytest.fixture
def memory(clock: FakeClock) -> MemoryTableService:
    """Tables in memory on the fake clock, without faults."""
    return MemoryTableService(clock=clock)


@pytest.fixture
async def tables_service(azurite: Azurite) -> AsyncIterator[AzureTableService]:
    """The account for source and target tables, on Azurite."""
    async with open_account(azurite.tables) as service:
        yield service


@pytest.fixture
async def restricted_service(azurite: Azurite) -> AsyncIterator[AzureTableService]:
    """The account for the restricted store, on Azurite."""
    async with open_account(azurite.restricted) as service:
        yield service
