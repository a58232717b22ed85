"""Made-up rows are spread like the rows they stand for, and hold nothing of them."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from rekey.core.limits import entity_bytes
from rekey.stress import spread as spread_module
from rekey.stress.mix import OperationKind, inserts
from rekey.stress.requests import Population
from rekey.stress.spread import ONE_PARTITION, Spread, SpreadCount, turns
from tests.asserts.every import every


def test_each_partition_gets_its_share_in_every_stretch() -> None:
    sequence = turns(Spread("Users", (50, 30, 15, 5)))
    for _ in range(5):
        met = Counter(islice(sequence, 200))
        assert [round(met[number] / 2) for number in range(4)] == pytest.approx([50, 30, 15, 5], abs=1)


def test_made_up_partitions_stand_in_the_order_in_which_real_ones_were_met() -> None:
    count = SpreadCount("Users")
    for partition in ("b", "a", "a", "c", "a"):
        count.add(partition)
    assert count.spread == Spread("Users", (1, 3, 1))


def test_rows_are_new_and_of_the_size_of_the_targets() -> None:
    _, requests = Population(Spread("Users", (1, 1)), 2, inserts(10)).plan({OperationKind.BATCH: 20}, 1.0)
    batches = [request.rows for request in requests]
    assert len(batches) == 20
    assert every(len({row["PartitionKey"] for row in batch}) == 1 for batch in batches)
    keys = [(row["PartitionKey"], row["RowKey"]) for batch in batches for row in batch]
    assert len(set(keys)) == len(keys)
    assert {partition for partition, _ in keys} == {"2.0000000", "2.0000001"}
    assert every(960 <= entity_bytes(row) <= 1024 for batch in batches for row in batch)


def test_what_the_targets_allow_follows_from_the_largest_partition() -> None:
    assert ONE_PARTITION.expected == 2_000
    assert Spread("Users", (50, 50)).expected == 4_000
    assert Spread("Users", (1,) * 1000).expected == 20_000
    assert Spread("Users", ()).expected == 0.0


def test_partitions_beyond_the_bound_are_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_module, "MOST_PARTITIONS", 2)
    count = SpreadCount("Users")
    for partition in ("a", "b", "c", "d", "a"):
        count.add(partition)
    found = count.spread
    assert found == Spread("Users", (2, 1), others=2)
    assert (found.rows, found.partitions, found.largest_share) == (5, 4, 0.4)
    assert len({*islice(turns(found), 100)}) == 4


def test_a_distribution_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        next(turns(Spread("Users", ())))
