"""The restricted store at a glance: its tables, and of each migration phase, clients and journal. Pure.

Rules kept here:

* Numbers only: no key, no name of a client's rows.
* Whether a migration is safe and what comes next is said by `rekey status`, not here.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Examined, Fact, Finding, listed
from rekey.doctor.observed import MigrationSeen, Observed, Reading, StoreSeen
from rekey.mapping.retention import WHOLE
from rekey.phases import ControlPhase


def check(observed: Observed) -> Examined:
    """Judge the restricted store."""
    seen = observed.store
    findings = [
        *_tables(seen),
        *(one for migration in seen.migrations for one in _migration(migration, observed.versions.rekey)),
    ]
    return Examined("restricted store", tuple(findings), tuple(_facts(seen)))


def _facts(seen: StoreSeen) -> Iterator[Fact]:
    there = [name for name, reading in seen.tables.items() if reading is Reading.READ]
    if seen.tables:
        yield Fact("tables", f"{listed(there)} are there" if there else "none yet; `apply` makes them")
    for one in seen.migrations:
        if one.trouble is None and one.phase:
            clients = f"{one.live} live, {one.silent} silent, {one.over} over"
            yield Fact(
                one.script_id,
                f"`{one.phase}`, epoch {one.epoch}; clients: {clients}; {one.intents:,} intents",
            )
        elif one.trouble is None:
            yield Fact(one.script_id, "not begun")


def _tables(seen: StoreSeen) -> Iterator[Finding]:
    begun = [one.script_id for one in seen.migrations if one.phase not in ("", ControlPhase.SOURCE)]
    gone = [name for name, reading in seen.tables.items() if reading is Reading.MISSING]
    if begun and gone:
        yield Finding(
            Code.STORE_INCOMPLETE,
            Severity.ERROR,
            "tables",
            f"{listed(gone)} gone, although {listed(begun)} is under way",
            "the mapping says which old key became which new one, the journal which writes are open; neither"
            " can be made again from the tables alone",
            "find out who deleted it; do not apply before. The runbook on resuming says what can be had back",
            f"rekey status {begun[0]}",
        )


def _migration(one: MigrationSeen, version: str) -> Iterator[Finding]:
    if one.trouble is not None:
        yield Finding(
            Code.CONTROL_UNREADABLE,
            Severity.ERROR,
            one.script_id,
            one.trouble.what,
            "neither the runner nor the application's clients know what to do",
            one.trouble.cure,
        )
        return
    others = sorted({other for other in one.versions if version and other != version})
    if others:
        yield Finding(
            Code.CLIENT_VERSION,
            Severity.WARNING,
            one.script_id,
            f"clients of the application run rekey {listed(others)}; here it is {version}",
            "runner and clients follow one protocol together; only one version of it is tested at a time",
            "bring the application and this machine to one version before the next move",
        )
    if one.silent:
        yield Finding(
            Code.CLIENTS_SILENT,
            Severity.NOTE,
            one.script_id,
            f"{one.silent} client{'s are' if one.silent > 1 else ' is'} silent",
            "a move waits until nothing of it can take effect any more",
            "nothing, if it was stopped on purpose; otherwise look after its process",
            f"rekey status {one.script_id}",
        )
    if one.intents and not one.live + one.silent:
        yield Finding(
            Code.INTENTS_WITHOUT_CLIENTS,
            Severity.NOTE,
            one.script_id,
            f"{one.intents:,} intents are in the journal, and no client is there",
            "writes were cut off before their replicas were brought up to date",
            "let the runner settle them",
            f"rekey apply {one.script_id}",
        )
    yield from _kept(one)


def _kept(one: MigrationSeen) -> Iterator[Finding]:
    """Judge how long the mapping is kept, and whether what was shredded stays so."""
    if one.due:
        months = "" if one.due == (WHOLE,) else f" of {listed(one.due)}"
        yield Finding(
            Code.MAPPING_OVER,
            Severity.WARNING,
            one.script_id,
            f"the mapping{months} is kept longer than [gates] mapping_retention says",
            "whoever may open it can still find out who became whom",
            "erase what is over",
            f"rekey expire {one.script_id} --confirm {one.script_id}",
        )
    if one.returned:
        yield Finding(
            Code.DATA_KEY_RETURNED,
            Severity.ERROR,
            one.script_id,
            f"the data key of {listed(one.returned)} was shredded, as the audit log says, and stands there",
            "somebody put an old copy into the restricted store: what was erased can be opened again",
            "find out who, and shred it again",
            f"rekey expire {one.script_id} --cohort {one.returned[0]} --reason 'put back'",
        )
