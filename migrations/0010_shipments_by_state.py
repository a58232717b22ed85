"""Split a table of shipments: those on their way, and a table for each year of those that have arrived.

Before: `Shipments` has a partition for each customer, in which a few open shipments stand among thousands of
old ones. Old years cannot be deleted but row by row.

After: `ShipmentsOpen` holds the shipments that are on their way, under the same keys. Those that have arrived
are in `Shipments2023`, `Shipments2024` and `Shipments2025`, with a partition for each month. An old year is
dropped as a whole table.

Things to notice:

* Each kind has a table of its own, and together they are one migration: one plan, one verification, one
  cutover. Kinds are told apart by properties, so no `where=` could make several migrations of them.
* A shipment that arrives changes its kind: an update in the old table moves its row to another new table, as
  a row moves whose key depends on its content. After cutover the old view refuses such an update, and the
  application deletes the row in one new table and writes it in the other: in this order, because one old key
  has one row.
* No row needs a constant that says its kind: the table says it.
* Rows of two tables cannot be written in one transaction. What one transaction of the old view changes is
  changed in each new table by a transaction of its own.
* A shipment that arrived in another year is of no kind, and stops the plan with its row id.
"""

from datetime import UTC, datetime

from rekey import Migration, RowKind, Target, keys, props, rows

__depends__ = set()

OLD_KEYS = [props.copy("PartitionKey", to="Customer"), props.copy("RowKey", to="Number")]
ARRIVED = rows.prop("State", equals="arrived")


def arrived_in(year: int) -> RowKind:
    begins, ends = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    return RowKind(
        f"arrived-{year}",
        when=rows.all_of(ARRIVED, rows.prop("ArrivedAt", at_least=begins, below=ends)),
        target=Target(
            f"Shipments{year}",
            partition_key=keys.date("yyyy-MM", "ArrivedAt"),
            row_key=keys.join("_", "PartitionKey", "RowKey"),
            properties=OLD_KEYS,
        ),
    )


migration = Migration(
    source="Shipments",
    kinds=[
        *[arrived_in(year) for year in (2023, 2024, 2025)],
        RowKind(
            "open",
            when=rows.none_of(ARRIVED),
            target=Target(
                "ShipmentsOpen", partition_key=keys.keep(), row_key=keys.keep(), properties=OLD_KEYS
            ),
        ),
    ],
    capture="dual-write",
    waive={"mutable-key": "a shipment arrives once: ArrivedAt is written with the state, and never again"},
)
