"""Did an ambiguous write land? Decided from what is there."""

from __future__ import annotations

from typing import Any

import pytest

from rekey.model import Row
from rekey.tables.base import Operation, Verb
from rekey.tables.requests import WriteApplied, all_applied, write_applied

YES, NO, UNKNOWN = WriteApplied.YES, WriteApplied.NO, WriteApplied.UNKNOWN


def row(**properties: Any) -> Row:
    return {"PartitionKey": "p", "RowKey": "r", **properties}


def there(etag: str = "new", **properties: Any) -> Row:
    return {**row(**properties), "odata.etag": etag, "Timestamp": "2024-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("operation", "now", "verdict"),
    [
        (Operation(Verb.INSERT, row(A=1)), None, NO),
        (Operation(Verb.INSERT, row(A=1)), there(A=1), YES),
        (Operation(Verb.INSERT, row(A=1)), there(A=1, B=1), UNKNOWN),
        (Operation(Verb.INSERT, row(A=1)), there(A=1.0), UNKNOWN),
        (Operation(Verb.INSERT, row(A=1.0, **{"A@odata.type": "Edm.Double"})), there(A=1.0), YES),
        (Operation(Verb.INSERT, row(A=1, Gone=None)), there(A=1), YES),
        (Operation(Verb.REPLACE, row(A=1), "old"), there("old", A=1), NO),
        (Operation(Verb.REPLACE, row(A=1), "old"), there(A=1), YES),
        (Operation(Verb.REPLACE, row(A=1), "old"), there(A=1, B=1), UNKNOWN),
        (Operation(Verb.REPLACE, row(A=1), "old"), None, NO),
        (Operation(Verb.MERGE, row(A=1), "old"), there(A=1, B=1), YES),
        (Operation(Verb.MERGE, row(A=1), "old"), there(B=1), UNKNOWN),
        (Operation(Verb.MERGE, row(A=1), "old"), there(A=2), UNKNOWN),
        (Operation(Verb.INSERT_OR_MERGE, row(A=1)), there(A=1, B=1), YES),
        (Operation(Verb.INSERT_OR_REPLACE, row(A=1)), there(A=2), UNKNOWN),
        (Operation(Verb.DELETE, row(), "old"), None, YES),
        (Operation(Verb.DELETE, row(), "old"), there("old"), NO),
        (Operation(Verb.DELETE, row(), "old"), there(), UNKNOWN),
        (Operation(Verb.DELETE, row(), "*"), None, YES),
    ],
)
def test_what_is_there_tells(operation: Operation, now: Row | None, verdict: WriteApplied) -> None:
    assert write_applied(operation, now) is verdict


def test_a_transaction_was_applied_whole_or_not_at_all() -> None:
    inserts = [Operation(Verb.INSERT, row(A=1)), Operation(Verb.INSERT, row(A=2))]
    assert all_applied(inserts, [there(A=1), there(A=2)]) is YES
    assert all_applied(inserts, [there(A=1), None]) is NO
    assert all_applied(inserts, [there(A=1), there(A=3)]) is UNKNOWN
    assert all_applied(inserts, [there(A=9), None]) is NO


@pytest.mark.parametrize(
    ("operation", "now", "verdict"),
    [
        (Operation(Verb.INSERT, row(A=1)), there(A=1), UNKNOWN),
        (Operation(Verb.REPLACE, row(A=1), "old"), there(A=1), UNKNOWN),
        (Operation(Verb.MERGE, row(A=1), "old"), there(A=1, B=1), UNKNOWN),
        (Operation(Verb.DELETE, row(), "old"), None, UNKNOWN),
        (Operation(Verb.REPLACE, row(A=1), "old"), there("old", A=1), NO),
        (Operation(Verb.REPLACE, row(A=1), "*"), there(A=1), UNKNOWN),
        (Operation(Verb.INSERT_OR_REPLACE, row(A=1)), there(A=1), UNKNOWN),
        (Operation(Verb.DELETE, row(), "*"), None, UNKNOWN),
    ],
)
def test_content_proves_no_ownership(operation: Operation, now: Row | None, verdict: WriteApplied) -> None:
    """Two that raise a counter from the same number write the same: only one of them was the one. And what
    another one has deleted as well may be deleted again, when it is back."""
    assert write_applied(operation, now, by_content=False) is verdict
    assert all_applied([operation], [now], by_content=False) is verdict
