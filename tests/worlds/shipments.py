"""The worked example of kinds with tables of their own, with an index table."""

from __future__ import annotations

from pathlib import Path

from rekey.model import Row

SHIPMENTS = Path(__file__).parents[2] / "migrations" / "0010_shipments_by_state.py"
INDEX = "ShipmentsByCustomer"
BY_CUSTOMER = {
    "from rekey import Migration": "from rekey import Index, Migration",
    "def arrived_in": """def by_customer(begins: str, kept: str) -> Index:
    return Index(
        "ShipmentsByCustomer",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.literal(begins) + keys.prop("RowKey"),
        properties=[props.keep(kept)],
    )


def arrived_in""",
    "            properties=OLD_KEYS,\n        ),\n": """            properties=OLD_KEYS,
        ),
        indexes=[by_customer(f"{year}:", "Weight")],
""",
    "properties=OLD_KEYS\n            ),\n": """properties=OLD_KEYS
            ),
            indexes=[by_customer("open:", "State")],
""",
}
"""What is replaced in the script so that each kind has an index, all in one table."""


def _indexed() -> str:
    text = SHIPMENTS.read_text("utf-8")
    for old, new in BY_CUSTOMER.items():
        text = text.replace(old, new)
    return text


SHIPMENTS_BY_CUSTOMER = _indexed()


def by_customer(table: str, row: Row) -> list[tuple[str, Row]]:
    """Return the index row of a main row and its table, without the mapper."""
    begins, kept = (table[-4:], "Weight") if table != "ShipmentsOpen" else ("open", "State")
    index_row = {
        "PartitionKey": row["Customer"],
        "RowKey": f"{begins}:{row['Number']}",
        "MainPartitionKey": f"{table}:{row['PartitionKey']}",
        "MainRowKey": row["RowKey"],
    }
    return [(INDEX, index_row | ({kept: row[kept]} if kept in row else {}))]
