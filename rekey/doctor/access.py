"""What the credentials may do: as much as a migration needs, and no more. Pure.

Rules kept here:

* Only what was tried is claimed. A test that could not be made is told as not made.
* "More than it should": the credential of `[tables]` must open nothing of the restricted account.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Examined, Fact, Finding, listed
from rekey.doctor.observed import MigrationSeen, Observed, Reading
from rekey.phases import ControlPhase

_ROLE = "the role Storage Table Data Contributor on the account (new roles take up to 30 minutes)"


def check(observed: Observed) -> Examined:
    """Judge what may be read and written."""
    findings = [*_sources(observed), *_store(observed), *_writing(observed), *_crossing(observed)]
    return Examined("access", tuple(findings), tuple(_facts(observed)))


def _facts(observed: Observed) -> Iterator[Fact]:
    read = [one.source for one in observed.migrations.scripts if one.reading is Reading.READ]
    if read:
        yield Fact("[tables]", f"read: {listed(read)}")
    if observed.writing.where and observed.writing.trouble is None:
        yield Fact("[restricted]", f"a row was written to {observed.writing.where} and removed")
    if observed.crossing.tried and not observed.crossing.read:
        yield Fact("[restricted]", "the credential of [tables] reads nothing here")


def _sources(observed: Observed) -> Iterator[Finding]:
    known: dict[str, MigrationSeen] = {one.script_id: one for one in observed.store.migrations}
    for script in observed.migrations.scripts:
        begun = known.get(script.script_id)
        if script.reading in (Reading.REFUSED, Reading.FAILED):
            yield Finding(
                Code.SOURCE_UNREADABLE,
                Severity.ERROR,
                script.script_id,
                f"its source {script.source} cannot be read ({script.reading})",
                "neither `plan` nor `apply` can begin",
                f"give whoever runs rekey {_ROLE}; Reader is enough for `plan`",
            )
        if script.reading is Reading.MISSING and (begun is None or begun.phase != ControlPhase.RETIRED):
            yield Finding(
                Code.SOURCE_MISSING,
                Severity.WARNING,
                script.script_id,
                f"its source {script.source} is not in this account",
                "there is nothing to migrate; a new table made under this name would be migrated instead",
                "check the name in the script, and [tables] endpoint",
            )


def _store(observed: Observed) -> Iterator[Finding]:
    closed = [
        name
        for name, reading in observed.store.tables.items()
        if reading in (Reading.REFUSED, Reading.FAILED)
    ]
    if closed:
        yield Finding(
            Code.RESTRICTED_UNREADABLE,
            Severity.ERROR,
            "[restricted]",
            f"{listed(closed)} cannot be read",
            "no command knows where a migration stands, and clients of the application refuse to write",
            f"give whoever runs rekey, and the application's clients, {_ROLE}",
        )


def _writing(observed: Observed) -> Iterator[Finding]:
    writing = observed.writing
    if writing.trouble is not None:
        yield Finding(
            Code.RESTRICTED_UNWRITABLE,
            Severity.ERROR,
            "[restricted]",
            f"a row could not be written and removed in {writing.where}: {writing.trouble.what}",
            "`apply` keeps phase, mapping and leases there, and cannot begin",
            writing.trouble.cure or f"give whoever runs rekey {_ROLE}",
        )
    elif not writing.where and observed.restricted.listing is not None:
        yield Finding(
            Code.WRITING_NOT_TRIED,
            Severity.NOTE,
            "[restricted]",
            "whether it can be written was not tried",
            "`apply` needs to make tables and to write rows there",
            "run `rekey doctor` without `--read-only`, with the identity that will run `apply`",
        )
    if writing.left:
        yield Finding(
            Code.LEFT_BEHIND,
            Severity.ERROR,
            "[restricted]",
            f"{writing.left} was written by this check and could not be removed",
            "it is in nobody's way, but nothing of a check should stay",
            "delete it by hand",
        )


def _crossing(observed: Observed) -> Iterator[Finding]:
    crossing = observed.crossing
    if crossing.read:
        azurite = observed.tables.published_key and observed.restricted.published_key
        yield Finding(
            Code.RESTRICTED_OPEN,
            Severity.NOTE if azurite else Severity.ERROR,
            "[restricted]",
            f"the credential of [tables] reads {listed(crossing.read)} of the restricted account",
            "whoever may open the application's tables reads which old key became which id",
            "renew the keys of the restricted account, give it none in common, and take the role of the"
            " application's identity away",
        )
    elif crossing.same_identity:
        yield Finding(
            Code.SAME_IDENTITY,
            Severity.NOTE,
            "[restricted]",
            "one identity opens both accounts: what the application's own identity may read is not known",
            'the runner needs both; an application in capture "delta" needs nothing of this account',
            "run `rekey doctor --read-only` as the application's identity: `restricted-unreadable` is then"
            " what you want to see",
        )
