"""The witness of a rehearsal sees everything that can be wrong; the application's book says what must be."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import pytest
from azure.data.tables import UpdateMode

from rekey import Index, Migration, Target, keys, props
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import EntityKey, KeyRange, Row, content_of, key_of
from rekey.rehearse.application import Application, to_entity
from rekey.rehearse.azurite import Azurite
from rekey.rehearse.stock import Stock, load
from rekey.rehearse.witness import Witness, open_service
from tests.worlds.odd_rows import generic

pytestmark = pytest.mark.azurite
ID_KEY = b"k" * 32


class Stage:
    """A source with odd keys and every EDM type, copied by hand into its targets."""

    def __init__(self, azurite: Azurite, source: str) -> None:
        tables, restricted = open_service(azurite.tables), open_service(azurite.restricted)
        script_id = f"0001_{secrets.token_hex(6)}"
        control = restricted.create_table_if_not_exists(CONTROL_TABLE)
        control.create_entity({"PartitionKey": script_id, "RowKey": "control", "IdKey": ID_KEY})
        self.mapper = Mapper(_migration(source), {"s": b"0123456789abcdef"})
        self.witness = Witness(tables, restricted, script_id, self.mapper)
        self.application = Application(self.witness, seed=1)
        self.stock = Stock(80, lambda: generic(80, seed=2), "made up from seed 2")
        asyncio.run(load(azurite.tables, self.stock, self.application))
        for name in self.mapper.tables:
            tables.create_table_if_not_exists(name)
        for row in self.source_rows():
            for table, made in self.mapper.map(row):
                self.target(table).create_entity(to_entity(made))

    def target(self, table: int):  # type: ignore[no-untyped-def]
        return self.witness.client(self.mapper.tables[table])

    def source_rows(self) -> list[Row]:
        return list(self.witness.rows(self.witness.source_name))

    def wrong(self) -> tuple[str, ...]:
        return self.witness.compare(self.application.must_hold).wrong

    def id_of(self, table: int, key: EntityKey) -> str:
        return SafeIds(ID_KEY).short(self.mapper.tables[table], key)


def _migration(source: str) -> Migration:
    return Migration(
        source=source,
        target=Target(
            f"{source}V2",
            partition_key=keys.bucket(3, "sha256", "RowKey"),
            row_key=keys.opaque("PartitionKey", "RowKey", domain="d", secret="s"),
            properties=[props.copy("PartitionKey", to="OldP"), props.copy("RowKey", to="OldR")],
        ),
        indexes=[
            Index(
                f"{source}ByText",
                partition_key=keys.hashed("sha256", "Number"),
                row_key=keys.opaque("PartitionKey", "RowKey", domain="i", secret="s"),
            )
        ],
        capture="delta",
    )


@pytest.fixture
def stage(azurite: Azurite, table_name: Callable[[str], str]) -> Stage:
    return Stage(azurite, table_name("Witnessed"))


def test_equal_sides_are_equal_with_every_type_and_odd_keys(stage: Stage) -> None:
    finding = stage.witness.compare(stage.application.must_hold)
    assert finding.wrong == ()
    assert (finding.source_rows, finding.target_rows) == (76, 152)
    assert stage.stock.kept_back == 4
    row = stage.source_rows()[5]
    alone = stage.witness.get(stage.witness.source_name, key_of(row))
    assert alone is not None
    assert content_of(alone) == content_of(row)


def test_each_wrong_row_is_found_and_named_by_safe_id(stage: Stage) -> None:
    made = stage.mapper.map(stage.source_rows()[0])[0].row
    row_id = stage.id_of(0, key_of(made))
    pk, rk = key_of(made)

    altered = {**made, "Flag": not made["Flag"]}
    stage.target(0).update_entity(to_entity(altered), mode=UpdateMode.REPLACE)
    assert stage.wrong() == (f"row {row_id} of {stage.mapper.tables[0]} is not what its source row gives",)

    retyped = {**made, "Number": str(made["Number"]), "Number@odata.type": "Edm.Int64"}
    stage.target(0).update_entity(to_entity(retyped), mode=UpdateMode.REPLACE)
    assert len(stage.wrong()) == 1, "Int64 in place of Int32"

    stage.target(0).delete_entity(pk, rk)
    assert stage.wrong() == ("1 target rows are missing",)

    stage.target(0).create_entity(to_entity({**made, "RowKey": "elsewhere"}))
    stray = stage.id_of(0, EntityKey(pk, "elsewhere"))
    assert stage.wrong()[0] == f"row {stray} of {stage.mapper.tables[0]} has no source row"


def test_a_source_that_lost_kept_or_changed_a_row_is_found(stage: Stage) -> None:
    row = stage.source_rows()[0]
    client = stage.witness.client(stage.witness.source_name)
    client.delete_entity(*key_of(row))
    assert any("must hold 76" in sentence for sentence in stage.wrong())
    client.create_entity(to_entity({**row, "Text": "another"}))
    assert any("is altered" in sentence for sentence in stage.wrong())
    client.create_entity({"PartitionKey": "p", "RowKey": "of nobody", "Number": 1})
    assert any("must not be there" in sentence for sentence in stage.wrong())


def test_rows_that_may_linger_are_counted_and_no_others(stage: Stage) -> None:
    row = stage.source_rows()[0]
    places = frozenset((table, key_of(made)) for table, made in stage.mapper.map(row))
    stage.witness.client(stage.witness.source_name).delete_entity(*key_of(row))
    del stage.application.must_hold[key_of(row)]
    allowed = stage.witness.compare(stage.application.must_hold, may_linger=places)
    assert (allowed.wrong, allowed.lingering) == ((), 2)
    assert len(stage.wrong()) == 2


def test_a_checkpoint_ahead_of_the_copied_rows_is_found(stage: Stage) -> None:
    rows = stage.source_rows()
    cursor = key_of(rows[9])
    assert stage.witness.missing_within([KeyRange(None, cursor)]) == (10, 0)
    made = stage.mapper.map(rows[3])[0].row
    stage.target(0).delete_entity(*key_of(made))
    assert stage.witness.missing_within([KeyRange(None, cursor)]) == (10, 1)
    assert stage.witness.missing_within([KeyRange(None, key_of(rows[2]))]) == (3, 0)


def test_the_application_writes_both_views_and_its_book_follows(stage: Stage) -> None:
    """After writes to the source its book holds; after writes to the targets the book says what must come
    back: every target row is there and maps from a row of the book."""
    for _ in range(40):
        stage.application.write_source()
    assert {"inserts", "updates", "deletes"} <= stage.application.done.keys()
    assert not any(stage.witness.source_name in sentence.split() for sentence in stage.wrong())
    stage.application.begin_counting()
    before = len(stage.application.must_hold)
    stage.application.kept_back = [row for row in generic(90, seed=2) if row["RowKey"].endswith(("85", "86"))]
    for _ in range(40):
        stage.application.write_target()
    done = stage.application.done
    assert {"inserts", "updates", "deletes"} <= done.keys()
    assert len(stage.application.must_hold) == before + done["inserts"] - done["deletes"]
