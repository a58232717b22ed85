"""Values in texts for people."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rekey.core.joint import joint_name
from rekey.core.texts import filled

NAMES = ("OrdersClosed", "OrdersOpen")


def text(value: object, template: str = "{value}") -> str:
    [filled_text] = filled({"what": template}, {"value": value}, "what")
    return filled_text


def test_a_joint_table_is_named_as_people_read_it() -> None:
    assert text(joint_name(NAMES)) == "OrdersClosed and OrdersOpen"
    table = SimpleNamespace(name=joint_name(NAMES))
    assert text(table, "{value.name}") == "OrdersClosed and OrdersOpen"


@pytest.mark.parametrize("name", ["OrdersClosed+OrdersOpen", "backup+old", "/data/backup+old"])
def test_what_is_only_called_like_one_stays_as_it_is(name: str) -> None:
    assert text(name) == name
    assert text(Path(name)) == name
