"""The checks of `rekey doctor --live` see what rekey takes for granted, and find what does not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from rekey.doctor.live.checks import ALIKE, WIRE, Check, Seen
from rekey.doctor.live.judge import CHECKS, ERROR, Deviation, deviations
from rekey.doctor.live.run import checked
from rekey.doctor.live.stage import Stage, new_prefix, opened
from rekey.project.config import Account
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.deviating import DEVIATIONS, Deviate, DeviatingProxy
from tests.documents import ROOT
from tests.every import every
from tests.memory import MemoryTableService, Mood

PROMISED = (ROOT / "docs/promises.md").read_text("utf-8")
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
    memory = MemoryTableService(mood=mood)
    stage = Stage(memory, new_prefix(await memory.server_time()), Account("http://127.0.0.1:1/memory"))
    seen = await checked(stage, ALIKE, asyncio.get_running_loop().time() + 60)
    assert [one for name, each in seen.items() for one in deviations(name, each, azurite=False)] == []


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
