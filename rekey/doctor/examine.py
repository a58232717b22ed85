"""All checks over everything that was observed. Pure."""

from __future__ import annotations

from rekey.doctor.access import check as access
from rekey.doctor.accounts import check as accounts
from rekey.doctor.clock import check as clock
from rekey.doctor.configuration import check as configuration
from rekey.doctor.finding import Report
from rekey.doctor.migrations import check as migrations
from rekey.doctor.observed import Observed
from rekey.doctor.state import check as state
from rekey.doctor.store import check as store
from rekey.doctor.versions import check as versions

FAMILIES = (configuration, accounts, access, clock, versions, state, migrations, store)


def examine(observed: Observed) -> Report:
    """Return what all checks say, in the order in which one would mend it."""
    return Report(tuple(check(observed) for check in FAMILIES))
