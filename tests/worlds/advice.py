"""What tests of advice share: facts counted over a few rows, as a plan counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rekey import Index, Migration, Target, keys, props
from rekey.declaration.keys import Expression
from rekey.declaration.mapper import Mapper
from rekey.inspect.inventory import Inventory
from rekey.inspect.sampling import RowEstimate
from rekey.model import Row, key_of
from rekey.plan.advice.advise import advise
from rekey.plan.advice.facts import Facts
from rekey.plan.advice.gather import Gatherer
from rekey.plan.result import Advice, TableFill
from tests.worlds.small import SECRET

OLD_KEYS = [props.copy("PartitionKey", to="OldPartitionKey"), props.copy("RowKey", to="OldRowKey")]


def migration(
    partition_key: Expression | None = None, row_key: Expression | None = None, **more: Any
) -> Migration:
    """A migration that keeps the keys, but for those given."""
    target = Target(
        more.pop("table", "TableV2"),
        partition_key=partition_key or keys.prop("PartitionKey"),
        row_key=row_key or keys.prop("RowKey"),
        properties=more.pop("properties", OLD_KEYS),
    )
    return Migration("Table", target, capture="delta", **{"reverse": True, **more})


def facts(rows: Sequence[Row], what: Migration, *, scale: int = 1) -> Facts:
    """Count facts over rows; `scale`: as if there were so many times more rows in the same partitions."""
    mapper = Mapper(what, dict.fromkeys(("users", "posts"), SECRET))
    gatherer = Gatherer(what, mapper.map)
    targets: list[Counter[tuple[str, str]]] = [Counter() for _ in what.tables]
    for row in rows:
        mapped = mapper.map(row)
        gatherer.take(row, mapped)
        for number, target in mapped:
            targets[number][key_of(target)] += 1
    source = Counter(row["PartitionKey"] for row in rows)
    inventory = Inventory(
        "Table",
        RowEstimate(scale * len(rows), len(rows), exact=True, settled=True),
        100 * len(rows),
        1,
        len(source),
        scale * max(source.values()),
        None,
    )
    colliding = {
        table: sum(times for times in met.values() if times > 1)
        for table, met in zip(what.labels, targets, strict=True)
    }
    fills = [_fill(table, met, scale) for table, met in zip(what.labels, targets, strict=True)]
    together = [
        inventory.rows.rows / inventory.partitions,
        *(one.rows / max(1, one.partitions) for one in fills),
    ]
    return gatherer.facts(inventory, fills, colliding, together)


def _fill(table: str, met: Counter[tuple[str, str]], scale: int) -> TableFill:
    partitions = Counter[str]()
    for (partition, _), times in met.items():
        partitions[partition] += times
    largest = scale * max(partitions.values(), default=0)
    return TableFill(table, scale * met.total(), met.total(), len(partitions), True, largest, 0.0)


def planned(found: Sequence[Advice] | Facts) -> set[str]:
    """The codes of advice on planned keys."""
    listed = advise(found) if isinstance(found, Facts) else found
    return {one.code for one in listed if not one.today}


def index(table: str, **more: Any) -> Index:
    """An index table."""
    return Index(table, **more)


def shaky(text: str) -> str:
    """A custom function that returns something else each time."""
    import uuid

    return f"{text}-{uuid.uuid4()}"


def steady(text: str) -> str:
    """A custom function that returns the same each time."""
    return f"{text}-same"
