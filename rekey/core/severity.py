"""The severities of findings in a plan or by doctor."""

from __future__ import annotations

from enum import StrEnum


class Severity(StrEnum):
    """An error refuses `apply`, a warning costs, a note informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def place(self) -> int:
        """The rank, 0 for the most severe."""
        return tuple(Severity).index(self)
