"""Evaluating one key expression over one row."""

from __future__ import annotations

import pytest

from rekey.declaration.keys import Expression
from rekey.declaration.keys.base import Scope
from rekey.errors import RowRefused
from rekey.model import Row

IDS_SECRET = b"0123456789abcdef"


def evaluate(expression: Expression, row: Row | None = None, item: str = "", **properties: object) -> str:
    """Evaluate an expression over a row with the given properties."""
    full: Row = {"PartitionKey": "p", "RowKey": "r", **properties, **(row or {})}
    return expression.compile(Scope("target.row_key", {"ids": IDS_SECRET}))(full, item)


def refused(expression: Expression, row: Row | None = None, **properties: object) -> RowRefused:
    """Return the refusal that an expression meets; it must not show any property's value."""
    with pytest.raises(RowRefused) as caught:
        evaluate(expression, row, **properties)
    assert caught.value.field == "target.row_key"
    for value in properties.values():
        assert not value or str(value) not in str(caught.value)
    return caught.value
