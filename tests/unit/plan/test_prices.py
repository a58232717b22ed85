"""Prices: read from the configuration or named as missing, and what requests and bytes cost by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rekey.errors import ConfigurationError
from rekey.plan.estimate import Batches, Workload, estimate, money_of
from rekey.plan.result import Requests, Storage, TableFill
from rekey.project.config import Limits, default_config, load_config
from rekey.project.prices import GB, Prices, amount_text
from rekey.tables.sent import OPERATIONS, RequestKind

PRICES = Prices("EUR", scan=1.0, read=2.0, write=3.0, delete=4.0, storage=0.5)


def configured(tmp_path: Path, text: str) -> Prices:
    path = tmp_path / "rekey.toml"
    path.write_text(default_config() + text, "utf-8")
    return load_config(path).prices


def test_without_prices_all_keys_are_missing_and_there_is_no_money(tmp_path: Path) -> None:
    prices = configured(tmp_path, "")
    assert prices.missing == ("currency", "scan", "read", "write", "delete", "storage")
    assert prices.requests({RequestKind.SCAN: 5}, batch_each=False) is None
    assert prices.stored(5) is None
    cost = estimate(Workload(10, 1, Batches(1, 0, 20), [TableFill("T", 10, 1, 1, True, 10, 0.0)]), Limits())
    assert cost.money is None and cost.prices_missing == prices.missing


def test_prices_are_read_and_those_left_out_are_named(tmp_path: Path) -> None:
    prices = configured(tmp_path, '[prices]\ncurrency = "USD"\nscan = 0.004\nstorage = 1\n')
    assert prices.currency == "USD" and prices.scan == 0.004 and prices.storage == 1.0
    assert prices.missing == ("read", "write", "delete")


@pytest.mark.parametrize(
    "line",
    [
        'scan = "cheap"',
        "scan = -1",
        "scan = true",
        "scan = inf",
        "scan = nan",
        "euro = 1",
        'currency = " "',
        'currency = "a very long name"',
    ],
)
def test_what_is_no_price_is_refused_by_its_key(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configured(tmp_path, f"[prices]\n{line}\n")
    assert line.partition(" ")[0] in caught.value.what


def test_a_batch_is_billed_as_one_or_by_its_operations() -> None:
    counts = {
        RequestKind.SCAN: 10_000,
        RequestKind.READ: 10_000,
        RequestKind.DELETE: 5_000,
        RequestKind.TABLE: 1_000,
        RequestKind.WRITE: 9_000,
    }
    usual = 1.0 + 2.0 + 2.0 + 3.0
    assert PRICES.requests(counts, batch_each=False) == pytest.approx(usual)
    with_batches = {**counts, RequestKind.BATCH: 10_000, OPERATIONS: 1_000_000}
    assert PRICES.requests(with_batches, batch_each=False) == pytest.approx(usual + 3.0)
    assert PRICES.requests(with_batches, batch_each=True) == pytest.approx(usual + 300.0)


def test_storage_is_of_what_is_added_for_as_long_as_both_tables_exist() -> None:
    assert PRICES.stored(10 * GB, 60) == pytest.approx(10.0)
    requests = [Requests("backfill", "write", RequestKind.BATCH, 100, 10_000)]
    money = money_of(requests, Storage(99 * GB, 3 * GB, 1 * GB, 30), PRICES)
    assert money is not None and money.currency == "EUR"
    assert money.storage == pytest.approx(4 * 0.5)
    assert (money.batch_as_one, money.batch_each) == pytest.approx((0.03, 3.0))


@pytest.mark.parametrize(
    ("amount", "said"),
    [(0.0, "0.00 EUR"), (0.00001, "< 0.0001 EUR"), (0.0123, "0.0123 EUR"), (1234.5, "1,234.50 EUR")],
)
def test_amounts_are_never_rounded_to_nothing(amount: float, said: str) -> None:
    assert amount_text(amount, "EUR") == said
