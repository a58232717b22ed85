"""How much a finding of a plan or of doctor weighs."""

from __future__ import annotations

from enum import StrEnum


class Severity(StrEnum):
    """How much a problem weighs: an error refuses `apply`, a warning costs, a note informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def place(self) -> int:
        """The rank among severities, 0 for the one that weighs most."""
        return tuple(Severity).index(self)
