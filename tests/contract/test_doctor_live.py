"""The checks of `rekey doctor --live` see what rekey takes for granted, and find what does not hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from email.utils import formatdate, parsedate_to_datetime

import pytest

from rekey.doctor.live.checks import ALIKE, CHECKS, ERROR, WIRE, Check, Deviation, Seen, deviations
from rekey.doctor.live.run import checked
from rekey.doctor.live.stage import Stage, leftovers, new_prefix, opened
from rekey.project.config import Account
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from rekey.tables.base import SIGNED_S
from tests.asserts.documents import ROOT
from tests.asserts.every import every
from tests.fakes.clock import FakeClock
from tests.fakes.deviations import DEVIATIONS, Deviate, DeviatingProxy, Forward, header
from tests.fakes.fault_proxy import Answered, Asked, error_answer
from tests.fakes.memory import MemoryTableService, Mood

PROMISED = (ROOT / "docs/reference/promises.md").read_text("utf-8")
EVERY = {**ALIKE, **WIRE}


async def seen_through(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch, deviate: Deviate | None, checks: Mapping[str, Check]
) -> dict[str, Seen]:
    """Make checks on Azurite behind a deviation; nothing is left there."""
    monkeypatch.setenv("LIVE_KEY", azurite.tables.key)
    async with DeviatingProxy(f"http://127.0.0.1:{azurite.port}", deviate) as proxy:
        account = Account(f"{proxy.address}/{azurite.tables.name}", "LIVE_KEY")
        direct = Account(azurite.tables.endpoint, "LIVE_KEY")
        async with opened(account) as service, opened(direct) as clearing:
            stage = Stage(service, new_prefix(await clearing.server_time()), account)
            try:
                return await checked(stage, checks, asyncio.get_running_loop().time() + 60)
            finally:
                stage.service = clearing
                await stage.clear()
                assert not stage.left


def unknown(seen: Mapping[str, Seen]) -> list[Deviation]:
    """Return what deviates from the service and from what is known of Azurite."""
    found = [one for name, each in seen.items() for one in deviations(name, each, azurite=True)]
    return [one for one in found if not one["known"]]


@pytest.mark.parametrize("mood", Mood)
async def test_tables_in_memory_do_what_is_taken_for_granted(mood: Mood) -> None:
    """They are stricter than Azurite: nothing is excused."""
    memory, account = MemoryTableService(mood=mood), Account("http://127.0.0.1:1/memory")
    stage = Stage(memory, new_prefix(await memory.server_time()), account, clock=FakeClock())
    seen = await checked(stage, ALIKE, asyncio.get_running_loop().time() + 60)
    found = {name for name, each in seen.items() if deviations(name, each, azurite=False)}
    assert found == ({"addresses"} if mood is Mood.DECODES_TWICE else set())
    if mood is Mood.DECODES_TWICE:
        assert seen["addresses"] == {"misread": "%25, %2F"}


@pytest.mark.azurite
async def test_azurite_deviates_only_where_it_is_known_to(
    azurite: Azurite, tables_service: AzureTableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it does deviate there: what it does right by now must not be excused any longer."""
    seen = await seen_through(azurite, monkeypatch, None, EVERY)
    assert unknown(seen) == []
    excused = {(one, word) for one, each in CHECKS.items() for word in each.get("azurite", ())}
    found = {
        (name, one["word"]) for name, each in seen.items() for one in deviations(name, each, azurite=True)
    }
    assert found == excused


@pytest.mark.azurite
@pytest.mark.parametrize("planted", DEVIATIONS)
async def test_a_planted_deviation_is_found_with_the_promise_that_it_breaks(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    where, deviate = DEVIATIONS[planted]
    name, word = where.split("/")
    seen = await seen_through(azurite, monkeypatch, deviate, {name: EVERY[name]})
    found = unknown(seen)
    assert word in [one["word"] for one in found]
    assert every(f"| {one['promise']} " in PROMISED for one in found)


@pytest.mark.azurite
async def test_a_clock_that_is_some_minutes_ahead_makes_no_deviation(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service counts a quarter of an hour from its own time."""

    async def behind(asked: Asked, forward: Forward) -> Answered:
        service = time.time() - 180
        signed = parsedate_to_datetime(asked.headers.get("x-ms-date", formatdate(service))).timestamp()
        late = signed < service - SIGNED_S
        answer = error_answer(403, "AuthenticationFailed") if late else await forward(asked)
        return replace(answer, headers={**answer.headers, "Date": formatdate(service, usegmt=True)})

    seen = await seen_through(azurite, monkeypatch, behind, {"credentials": EVERY["credentials"]})
    assert seen["credentials"] == {"none": "refused", "another": "refused", "signed_long_ago": "refused"}


@pytest.mark.azurite
async def test_a_list_of_tables_without_end_is_given_up(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVE_KEY", azurite.tables.key)
    monkeypatch.setattr("rekey.doctor.live.stage._LIST_S", 0.5)
    endless = header("x-ms-continuation-NextTableName", "again", lambda _asked: True)
    async with DeviatingProxy(f"http://127.0.0.1:{azurite.port}", endless) as proxy, asyncio.timeout(20):
        account = Account(f"{proxy.address}/{azurite.tables.name}", "LIVE_KEY")
        assert await leftovers(account, "2026-01-31T12:00:00.0000000Z") == []


async def test_tables_are_deleted_at_once() -> None:
    """An account that does not answer any more is waited for once, not for each table."""
    memory = MemoryTableService()
    stage = Stage(memory, new_prefix(await memory.server_time()), Account("http://127.0.0.1:1/memory"))
    for _ in range(3):
        await stage.new_table()
    together = asyncio.Barrier(3)

    async def delete(name: str) -> bool:
        await together.wait()
        return await MemoryTableService.delete_table(memory, name)

    memory.delete_table = delete  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        await stage.clear()
    assert not stage.left


def test_every_check_has_a_planted_deviation_and_there_are_many() -> None:
    assert len(DEVIATIONS) >= 25
    assert {where.partition("/")[0] for where, _ in DEVIATIONS.values()} == set(EVERY)


async def test_a_check_that_fails_or_does_not_end_is_told() -> None:
    async def failing(_on: object) -> Seen:
        raise KeyError("Timestamp")

    async def endless(_on: object) -> Seen:
        await asyncio.sleep(3600)
        return {}

    memory = MemoryTableService()
    stage = Stage(memory, new_prefix(await memory.server_time()), Account("http://127.0.0.1:1/memory"))
    checks = {"order": failing, "clock": endless}
    seen = await checked(stage, checks, asyncio.get_running_loop().time() + 0.2)
    assert seen == {"order": {ERROR: "KeyError"}, "clock": {ERROR: "no end in time"}}
