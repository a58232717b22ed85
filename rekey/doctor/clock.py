"""This machine's clock against each service's. Pure.

Rules kept here:

* The service tells whole seconds, and an answer takes time: what is claimed is the least difference that
  fits, so that a slow network is no wrong clock.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.clock import TICKS_PER_SECOND
from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Examined, Fact, Finding
from rekey.doctor.observed import AccountSeen, Observed
from rekey.tables.probe import Heard

WARNING_S = 30.0
ERROR_S = 600.0
"""The service refuses signatures that are 15 minutes off."""


def check(observed: Observed) -> Examined:
    """Judge the clock by both accounts."""
    findings: list[Finding] = []
    facts: list[Fact] = []
    for account in observed.accounts:
        off = ahead_s(account.anonymous)
        if off is None:
            continue
        findings += _off(account, off)
        facts.append(Fact(f"[{account.section}]", _told(off)))
    return Examined("clock", tuple(findings), tuple(facts))


def ahead_s(heard: Heard) -> float | None:
    """Return how many seconds this machine is ahead of the service, 0.0 when both can be right.

    Negative when it is behind. The service's clock stood in [date, date + 1 s) at some moment
    between sending and receiving.
    """
    if heard.date is None or not heard.answered:
        return None
    least = heard.sent_at - (heard.date + TICKS_PER_SECOND)
    most = heard.received_at - heard.date
    nearest = 0 if least <= 0 <= most else min(least, most, key=abs)
    return nearest / TICKS_PER_SECOND


def _told(off: float) -> str:
    if off == 0:
        return "this machine's clock is right to the second"
    return f"this machine's clock is {abs(off):,.1f} s {'ahead' if off > 0 else 'behind'}, at least"


def _off(account: AccountSeen, off: float) -> Iterator[Finding]:
    if abs(off) < WARNING_S:
        return
    yield Finding(
        Code.CLOCK_OFF,
        Severity.ERROR if abs(off) >= ERROR_S else Severity.WARNING,
        f"[{account.section}]",
        _told(off),
        "the service refuses signatures that are 15 minutes off, and tokens seem expired or not yet valid;"
        " audit events, checkpoints and verifications carry this machine's time. Phases, leases, delta passes"
        " and retention go by the service's clock and are not touched",
        "have this machine's time kept (NTP), then look again",
    )
