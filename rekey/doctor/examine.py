"""All checks over everything that was observed. Pure."""

from __future__ import annotations

from rekey.doctor import access, accounts, clock, configuration, migrations, state, store, versions
from rekey.doctor.finding import Report
from rekey.doctor.observed import Observed

FAMILIES = (configuration, accounts, access, clock, versions, state, migrations, store)


def examine(observed: Observed) -> Report:
    """Return what all checks say, in the order in which one would mend it."""
    return Report(tuple(family.check(observed) for family in FAMILIES))
