"""Comparing what checks saw with what must be seen. Pure.

Rules kept here:

* What `checks.toml` does not know of is a deviation, and so is what was not seen: nothing passes by default.
* On Azurite a deviation that is known of it is told as that; on any other service it is one like any.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from rekey.core.texts import table

CATALOGUE = Path(__file__).with_name("checks.toml")
_READ = table(CATALOGUE)
PROMISES: Mapping[str, str] = _READ["promises"]
CHECKS: Mapping[str, Mapping[str, Any]] = _READ["checks"]
# Properties with their annotations, as they are written.
VALUES: Mapping[str, Any] = _READ["values"]
# The word under which a check that could not be carried out says why.
ERROR = "error"


# What was not as rekey takes it for granted, as a report has it: under `word`, `wanted` and `seen`, whether
# Azurite is `known` for it (and it is Azurite), and the `promise` that rests on it.
Deviation: TypeAlias = dict[str, Any]


def deviations(check: str, seen: Mapping[str, object], *, azurite: bool) -> list[Deviation]:
    """Return what deviates in the words of a check. `azurite`: the service says that it is Azurite."""
    holds, known = CHECKS[check]["holds"], CHECKS[check].get("azurite", {}) if azurite else {}
    if ERROR in seen:
        holds, seen = {ERROR: "none"}, {ERROR: seen[ERROR]}
    found = []
    for word in dict.fromkeys([*holds, *seen]):
        there, wanted = str(seen.get(word, "nothing")), holds.get(word, "nothing")
        patterns = [wanted] if isinstance(wanted, str) else wanted
        if word not in holds or not any(fnmatchcase(there, one) for one in patterns):
            is_known = word in known and fnmatchcase(there, known[word])
            told = {"word": word, "wanted": " or ".join(patterns), "seen": there, "known": is_known}
            found.append({**told, "promise": PROMISES[CHECKS[check]["promise"]]})
    return found
