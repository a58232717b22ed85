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
        """Return where it stands among severities, 0 for what weighs most."""
        return tuple(Severity).index(self)
