"""Packing for a plan: windows, what is held back, what a sample leaves open; tallies in bounded memory."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256

import pytest

from rekey.copy.scan import WindowSize
from rekey.inspect.partitions import Crowding, PartitionSizes, PartitionTally
from rekey.plan.packing import STEADY_WINDOWS, Filled, Packing, Sends
from rekey.tables.base import MAX_BATCH_BYTES


def packed(
    partitions: list[str], *, window: int = 100, size: int = 100, unit: float = 1.0, whole: bool = True
) -> Packing:
    """Pack rows of these partitions, a window after the other."""
    packing = Packing(1, WindowSize(window, 1 << 30))
    for start in range(0, len(partitions), packing.page_rows):
        page = partitions[start : start + packing.page_rows]
        numbers = range(start, start + len(page))
        mapping = Counter(sha256(b"%d" % number).digest()[0] >> 2 for number in numbers)
        packing.page(len(page), 100 * len(page), [Filled(Counter(page), size, unit)], Filled(mapping))
    packing.end(whole=whole)
    return packing


def rows_of(sends: Sends) -> int:
    """The rows in all batches."""
    return sum(rows * batches for rows, batches in sends.fills.items())


def test_full_batches_of_one_partition() -> None:
    [sends] = packed(["p"] * 1_000).sends
    assert rows_of(sends) == sends.added == 1_000
    assert sends.fills == Counter({100: 10})


def test_a_batch_ends_at_four_mebibytes() -> None:
    [sends] = packed(["p"] * 10, size=MAX_BATCH_BYTES // 3).sends
    assert sends.fills == Counter({3: 3, 1: 1})


def test_rows_of_one_source_row_stay_together() -> None:
    [sends] = packed(["p"] * 300, unit=3.0).sends
    assert sends.fills == Counter({99: 3, 3: 1})


def test_a_rare_partition_is_filled_across_windows() -> None:
    """Ten rows of it in each window: they wait for those of a few windows, not for ever."""
    rare = (["rare"] * 10 + ["p"] * 90) * 40
    fills = packed(rare).sends[0].fills
    waited = [fill for fill in fills if fill < 100]
    assert waited and max(fills.items(), key=lambda one: one[1])[0] == 100
    assert sum(number for fill, number in fills.items() if 30 <= fill <= 70) >= 5
    assert fills[10] <= 5, "a window alone would have given forty of ten"


def test_a_stretch_that_ends_early_leaves_out_what_would_have_been_filled() -> None:
    rows = [f"p{number % 20}" for number in range(100 * (STEADY_WINDOWS + 3))]
    cut_off, whole = packed(rows, whole=False), packed(rows)
    assert cut_off.steady
    assert rows_of(cut_off.sends[0]) < cut_off.sends[0].added < rows_of(whole.sends[0]) == len(rows)
    [short], [all_of_it], [long] = cut_off.sends, whole.sends, packed(rows * 20).sends
    left_out = (rows_of(all_of_it) - rows_of(short)) / (all_of_it.fills.total() - short.fills.total())
    assert left_out < rows_of(long) / long.fills.total()


def test_a_short_stretch_is_packed_to_its_end() -> None:
    packing = packed(["p"] * 250, whole=False)
    assert not packing.steady
    assert rows_of(packing.sends[0]) == 250 and rows_of(packing.mapping_sends) == 250


def test_the_mapping_is_packed_by_its_partitions() -> None:
    sends = packed(["p"] * 6_400, window=3_200).mapping_sends
    assert rows_of(sends) == 6_400
    assert 64 <= sends.fills.total() <= 128


def test_sizes_of_partitions_are_told_from_a_share_of_them() -> None:
    few, many = PartitionSizes(), PartitionSizes(capacity=500)
    for number in range(20_000):
        for sizes in (few, many):
            sizes.add({f"p{number}": 1 + number % 3})
    assert few.by_class == {"1": 6_667, "2 to 9": 13_333}
    for name, count in few.by_class.items():
        assert many.by_class[name] == pytest.approx(count, rel=0.25)


def test_the_largest_partitions_are_found_among_very_many() -> None:
    tally = PartitionTally(capacity=100)
    for number in range(5_000):
        tally.add({f"p{number}": 1, "large": 1})
    assert tally.top(1)[0][0] == "large" and not tally.exact
    assert tally.largest <= 5_000


def test_the_busiest_partition_is_that_of_the_places_read_at_a_time() -> None:
    """A partition that fills one page after another has one reader of eight; one of all pages has all."""
    in_order, shared, few, one = Crowding(), Crowding(), Crowding(), Crowding()
    for number in range(1_000):
        place = f"p{number // 20}"
        in_order.add({place: 1000}, {place: 1000})
        shared.add({f"p{number}": 1000}, {"today": 900, f"p{number}": 100})
        one.add({"huge": 1000}, {f"p{number % 4}": 500, "others": 500})
    for number in range(3):
        few.add({f"p{number}": 10}, {f"p{number}": 10})
    assert in_order.share(8) == pytest.approx(1 / 8, rel=0.2)
    assert in_order.share(1) == 1.0
    assert shared.share(8) == pytest.approx(0.9)
    assert few.share(8) == pytest.approx(1 / 3)
    assert one.share(8) == 0.5
    assert Crowding().share(8) == 0.0


def test_a_partition_that_was_read_oftener_than_its_rows_has_no_more_readers_than_one() -> None:
    crowding = Crowding()
    for number in range(100):
        crowding.add({"huge": 1000}, {"huge": 1000})
        crowding.add({f"p{number}": 1000}, {f"p{number}": 1000})
    assert crowding.share(8) == pytest.approx(1 / 8, rel=0.2)
