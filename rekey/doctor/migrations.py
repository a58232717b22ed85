"""The scripts: they load, nobody else can change them, and their secrets are there. Pure.

Rules kept here:

* What a script declares is not judged; `rekey plan` does that.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Examined, Fact, Finding, listed
from rekey.doctor.observed import FileSeen, MigrationsSeen, Observed
from rekey.doctor.permissions import described, others_who_write


def check(observed: Observed) -> Examined:
    """Judge the migration scripts."""
    seen = observed.migrations
    findings = [*_loading(seen), *_writers(seen), *_secrets(seen), *_sealing(seen)]
    loaded = [one.script_id for one in seen.scripts]
    facts = (Fact("scripts", listed(loaded)),) if loaded else ()
    return Examined("migrations", tuple(findings), facts)


def _loading(seen: MigrationsSeen) -> Iterator[Finding]:
    if seen.trouble is not None:
        yield Finding(
            Code.SCRIPTS_BROKEN,
            Severity.ERROR,
            "scripts",
            seen.trouble.what,
            "no command that works on a migration can begin; their sources and secrets were not looked at",
            seen.trouble.cure,
        )
    elif not seen.scripts:
        yield Finding(
            Code.NO_SCRIPTS,
            Severity.NOTE,
            "scripts",
            "there is no migration script",
            "sources and secrets could not be looked at",
            "write one, then look again",
            "rekey new NAME --source TABLE --target TABLE",
        )


def _writers(seen: MigrationsSeen) -> Iterator[Finding]:
    open_ones: list[FileSeen] = [
        file
        for file in (*((seen.folder,) if seen.folder is not None else ()), *seen.files)
        if others_who_write(file)
    ]
    if open_ones:
        first = open_ones[0]
        more = f", and {len(open_ones) - 1} more" if len(open_ones) > 1 else ""
        yield Finding(
            Code.SCRIPTS_WRITABLE,
            Severity.WARNING,
            "scripts",
            f"others may change {first.path} ({described(first)}){more}",
            "scripts are Python: who changes one runs what he likes, with both credentials",
            "let only their owner write the folder and the scripts",
            f"chmod -R go-w {seen.folder.path if seen.folder is not None else first.path}",
        )


def _secrets(seen: MigrationsSeen) -> Iterator[Finding]:
    for script in seen.scripts:
        for name, trouble in script.unresolved.items():
            yield Finding(
                Code.SECRET_UNRESOLVED,
                Severity.ERROR,
                script.script_id,
                trouble.what,
                f"the script makes keys with `{name}`; without it nothing can be planned or copied",
                trouble.cure,
            )


def _sealing(seen: MigrationsSeen) -> Iterator[Finding]:
    for script in seen.scripts:
        if script.unsealed is not None:
            yield Finding(
                Code.WRAPPING_KEY_MISSING,
                Severity.ERROR,
                script.script_id,
                script.unsealed.what,
                "the script's mapping is sealed; without the wrapping key nothing can be copied or looked up",
                script.unsealed.cure,
            )
