"""Comparing what checks saw with what must be seen. Pure.

Rules kept here:

* What `checks.toml` does not know of is a deviation, and so is what was not seen: nothing passes by default.
* On Azurite a deviation that is known of it is told as that; on any other service it is one like any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rekey.core.texts import table

CATALOGUE = Path(__file__).with_name("checks.toml")
_READ = table(CATALOGUE)
PROMISES: Mapping[str, str] = _READ["promises"]
CHECKS: Mapping[str, Mapping[str, Any]] = _READ["checks"]
VALUES: Mapping[str, Any] = _READ["values"]
"""Properties with their annotations, as they are written."""
ERROR = "error"
"""The word under which a check that could not be carried out says why."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """Something that was not as rekey takes it for granted.

    Attributes:
        check: the check's id.
        word: which of its words.
        wanted: what should have been seen.
        seen: what was seen.
        known: whether Azurite is known for it, and it is Azurite.
    """

    check: str
    word: str
    wanted: str
    seen: str
    known: bool = False

    @property
    def promise(self) -> str:
        """The promise that rests on it, as docs/promises.md has it."""
        return PROMISES[CHECKS[self.check]["promise"]]

    @property
    def what(self) -> str:
        """What is taken for granted."""
        return str(CHECKS[self.check]["what"])


def deviations(check: str, seen: Mapping[str, object], *, azurite: bool) -> list[Deviation]:
    """Return what deviates in the words of a check. `azurite`: the service says that it is Azurite."""
    if ERROR in seen:
        return [Deviation(check, ERROR, "an answer to every request", str(seen[ERROR]))]
    holds, known = CHECKS[check]["holds"], CHECKS[check].get("azurite", {}) if azurite else {}
    found = []
    for word in dict.fromkeys([*holds, *seen]):
        there, wanted = str(seen.get(word, "nothing")), holds.get(word, [])
        patterns = [wanted] if isinstance(wanted, str) else wanted
        if not any(fnmatchcase(there, one) for one in patterns):
            is_known = word in known and fnmatchcase(there, known[word])
            found.append(Deviation(check, word, " or ".join(patterns) or "nothing", there, is_known))
    return found
