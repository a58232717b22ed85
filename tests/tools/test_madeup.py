"""Made-up rows: repeatable, unique, accepted by the service's rules, and mapped by the worked examples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from rekey.core.edm import TYPES, edm_type
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import required_secrets
from rekey.declaration.scripts import load_scripts
from rekey.model import Row, key_of, property_names
from tests.asserts.every import every
from tests.fakes.service_limits import stored_form
from tests.worlds import example_rows as madeup
from tests.worlds.odd_rows import generic

ALL = [madeup.users, madeup.posts, madeup.telemetry, generic]
EXAMPLES = Path(__file__).parents[2] / "migrations"


@pytest.mark.parametrize("make", ALL)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(make: madeup.Generator) -> None:
    assert list(make(200, seed=7)) == list(make(200, seed=7))
    assert list(make(200, seed=7)) != list(make(200, seed=8))
    assert list(make(50, seed=7)) == list(islice(make(200, seed=7), 50))


@pytest.mark.parametrize("make", ALL)
def test_keys_are_unique_and_rows_are_what_the_service_takes(make: madeup.Generator) -> None:
    rows = list(make(3_000, seed=1))
    assert len({key_of(row) for row in rows}) == 3_000
    for row in rows:
        stored_form(row)


def test_generic_rows_have_every_type_and_keys_that_need_care() -> None:
    rows = list(generic(500))
    assert {edm_type(row, name) for row in rows for name in property_names(row)} == TYPES
    keys = "".join(row["RowKey"] for row in rows)
    assert every(sign in keys for sign in ("'", '"', " ", "%", "+", "🦊", "日", ";"))


def test_telemetry_has_readings_that_only_the_sequence_tells_apart() -> None:
    rows = list(madeup.telemetry(400, devices=4))
    moments = [(row["DeviceId"], row["RecordedAt"]) for row in rows]
    assert len(set(moments)) < len(moments)
    assert len({(*moment, row["Sequence"]) for moment, row in zip(moments, rows, strict=True)}) == len(rows)


@pytest.mark.parametrize("declared", load_scripts(EXAMPLES), ids=lambda declared: declared.script_id)
def test_every_worked_example_maps_its_made_up_rows_without_refusal_or_collision(declared) -> None:  # type: ignore[no-untyped-def]
    migration = declared.migration
    assert migration.source in madeup.GENERATORS
    mapper = Mapper(migration, dict.fromkeys(required_secrets(migration), b"s" * 32))
    seen = set()
    for row in rows_of(migration.source):
        for table, made in mapper.map(row):
            place = (table, key_of(made))
            assert place not in seen
            seen.add(place)


def rows_of(source: str) -> Iterator[Row]:
    return madeup.GENERATORS[source](2_000, seed=3)
