"""The control row, by the runner's name for it: it lives with the clients, who are below and share it."""

from __future__ import annotations

from rekey.dualwrite.control import (
    CONTROL_ROW_KEY,
    FORMAT,
    ControlRow,
    ControlStore,
    from_row,
    moved,
    to_row,
)

__all__ = ["CONTROL_ROW_KEY", "FORMAT", "ControlRow", "ControlStore", "from_row", "moved", "to_row"]
