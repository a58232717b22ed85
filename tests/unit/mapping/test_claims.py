"""Claims of target keys that two source keys can have: they are reserved while a row is created."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from rekey.core.safe_ids import SafeIds
from rekey.errors import Collision
from rekey.mapping.rows import MAPPING_TABLE, MappingRows, Owner, Reservation, TargetKey
from rekey.mapping.store import MARGIN_S, MappingStore
from rekey.model import EntityKey
from tests.fakes.faults import Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.memory import MemoryTableService

MAIN, INDEX = TargetKey(0, "p", "ann"), TargetKey(1, "p", "ann")
UPPER, LOWER, OTHER = EntityKey("p", "Ann"), EntityKey("p", "ann"), EntityKey("p", "ANN")
SECONDS = 30.0


def reserved(source_key: EntityKey, *writers: str) -> Reservation:
    return Reservation(source_key, frozenset(writers or {"w"}), SECONDS)


class Owners:
    """The source keys whose rows exist and map to any target key."""

    def __init__(self, *keys: EntityKey) -> None:
        self.keys = keys

    async def still_own(self, source_key: EntityKey, _target: TargetKey) -> bool:
        return source_key in self.keys


@pytest.fixture
async def store(memory: MemoryTableService) -> MappingStore:
    await memory.create_table(MAPPING_TABLE)
    rows = MappingRows("0001_users", "Users", ("UsersV2", "UsersByMail"), SafeIds(bytes(32)))
    return MappingStore(memory.table(MAPPING_TABLE), rows)


async def claimed(store: MappingStore, owner: EntityKey, reservation: Reservation | None = None) -> Owner:
    made = await store.take(owner, MAIN, None, reservation)
    assert made is not None
    return made


@pytest.mark.parametrize("target", [MAIN, INDEX], ids=["main", "index"])
async def test_a_claim_is_read_as_it_was_written(store: MappingStore, target: TargetKey) -> None:
    made = await store.take(UPPER, target, None, reserved(UPPER, "a", "b"))
    assert made is not None
    assert await store.owner(target.key, target.table) == made
    assert made.reserved == reserved(UPPER, "a", "b")


async def test_a_main_key_and_an_index_key_of_equal_text_have_separate_claims(store: MappingStore) -> None:
    assert await store.take(UPPER, MAIN, None) is not None
    assert await store.take(LOWER, INDEX, None) is not None
    assert await store.take(LOWER, MAIN, None) is None


async def test_a_claim_that_changed_meanwhile_is_not_taken(store: MappingStore) -> None:
    before = await claimed(store, UPPER)
    assert await store.take(UPPER, MAIN, before, reserved(UPPER)) is not None
    assert await store.take(LOWER, MAIN, before) is None


async def test_a_reserved_claim_does_not_pass_on_though_its_row_is_not_there(store: MappingStore) -> None:
    await claimed(store, UPPER, reserved(UPPER))
    with pytest.raises(Collision):
        await store.claim_main(LOWER, MAIN, Owners().still_own)
    owner = await store.owner(MAIN.key)
    assert owner.source == UPPER


async def test_a_claim_without_a_reservation_passes_on_when_its_row_is_gone(store: MappingStore) -> None:
    await claimed(store, UPPER)
    await store.claim_main(LOWER, MAIN, Owners().still_own)
    owner = await store.owner(MAIN.key)
    assert owner.source == LOWER


async def test_a_claim_of_a_row_that_is_there_is_a_collision(store: MappingStore) -> None:
    await claimed(store, UPPER)
    with pytest.raises(Collision):
        await store.claim_main(LOWER, MAIN, Owners(UPPER).still_own)


async def test_an_unchanged_reservation_expires(store: MappingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await claimed(store, UPPER, reserved(UPPER))
    loop = asyncio.get_running_loop()
    first_seen = loop.time()
    for passed in (0.0, SECONDS, SECONDS + MARGIN_S):
        monkeypatch.setattr(loop, "time", lambda passed=passed: first_seen + passed)
        with pytest.raises(Collision):
            await store.claim_main(LOWER, MAIN, Owners().still_own)
    monkeypatch.setattr(loop, "time", lambda: first_seen + SECONDS + MARGIN_S + 0.1)
    await store.claim_main(LOWER, MAIN, Owners().still_own)
    owner = await store.owner(MAIN.key)
    assert owner.source == LOWER


async def test_a_write_that_joins_a_reservation_does_not_prolong_it(
    store: MappingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed write's reservation is joined by another write of the same row, which then ends."""
    made = await claimed(store, UPPER, reserved(UPPER))
    loop = asyncio.get_running_loop()
    first_seen = loop.time()
    monkeypatch.setattr(loop, "time", lambda: first_seen)
    with pytest.raises(Collision):
        await store.claim_main(LOWER, MAIN, Owners().still_own)
    monkeypatch.setattr(loop, "time", lambda: first_seen + SECONDS)
    joined = reserved(UPPER)._replace(writers=reserved(UPPER).writers | {"another"})
    made = await store.take(UPPER, MAIN, made, joined)
    monkeypatch.setattr(loop, "time", lambda: first_seen + SECONDS + MARGIN_S + 0.1)
    with pytest.raises(Collision):
        await store.claim_main(LOWER, MAIN, Owners().still_own)
    assert await store.take(UPPER, MAIN, made, reserved(UPPER)) is not None
    await store.claim_main(LOWER, MAIN, Owners().still_own)
    owner = await store.owner(MAIN.key)
    assert owner.source == LOWER


async def test_a_replacement_row_keeps_its_key(store: MappingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction deleted the owner's row and created the other, and the claim was never passed on."""
    await claimed(store, UPPER, reserved(LOWER))
    loop = asyncio.get_running_loop()
    first_seen = loop.time()
    monkeypatch.setattr(loop, "time", lambda: first_seen)
    with pytest.raises(Collision):
        await store.claim_main(OTHER, MAIN, Owners(LOWER).still_own)
    monkeypatch.setattr(loop, "time", lambda: first_seen + SECONDS + MARGIN_S + 0.1)
    with pytest.raises(Collision):
        await store.claim_main(OTHER, MAIN, Owners(LOWER).still_own)
    await store.claim_main(LOWER, MAIN, Owners(LOWER).still_own)
    owner = await store.owner(MAIN.key)
    assert owner.source == LOWER


async def test_a_reservation_that_ends_in_time_is_waited_for(store: MappingStore) -> None:
    made = await claimed(store, UPPER, reserved(UPPER))
    store.patience_s = 30.0

    async def release() -> None:
        await asyncio.sleep(0.01)
        assert await store.take(UPPER, MAIN, made) is not None

    releasing = asyncio.ensure_future(release())
    await store.claim_main(LOWER, MAIN, Owners().still_own)
    await releasing


async def test_a_runner_awaits_dead_reservation(store: MappingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await claimed(store, UPPER, reserved(UPPER))
    store.patience_s = inf
    loop = asyncio.get_running_loop()
    first_seen, slept = loop.time(), list[float]()

    async def sleep(_seconds: float) -> None:
        slept.append(10.0)
        monkeypatch.setattr(loop, "time", lambda: first_seen + sum(slept))

    monkeypatch.setattr("rekey.mapping.store.asyncio.sleep", sleep)
    await store.claim_main(LOWER, MAIN, Owners().still_own)
    assert sum(slept) > SECONDS + MARGIN_S
    owner = await store.owner(MAIN.key)
    assert owner.source == LOWER


async def test_a_claim_that_passes_on_is_recorded_with_both_source_keys(store: MappingStore) -> None:
    await claimed(store, UPPER)
    await store.extend(UPPER, None, {MAIN})
    await store.claim_main(LOWER, MAIN, Owners().still_own)
    found = [one async for one in store.passed("2000-01-01T00:00:00Z")]
    assert found == [(MAIN, UPPER, LOWER)]
    assert [one async for one in store.passed("9999-01-01T00:00:00Z")] == []


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_claim_passes_on_whichever_answer_is_lost(
    store: MappingStore, memory: MemoryTableService, kind: FaultKind, nth: int
) -> None:
    """Found by the search of every order: the answer to the record was not waited for once more."""
    await claimed(store, UPPER)
    await store.extend(UPPER, None, {MAIN})
    writes = [
        Planned(Fault(kind), action=verb, table=MAPPING_TABLE, nth=nth)
        for verb in ("insert_or_replace", "replace")
    ]
    memory.faults = PlannedFaults(*writes)
    await store.claim_main(LOWER, MAIN, Owners().still_own)
    owner = await store.owner(MAIN.key)
    assert owner is not None
    assert owner.source == LOWER
    assert [one async for one in store.passed("2000-01-01T00:00:00Z")] == [(MAIN, UPPER, LOWER)]
