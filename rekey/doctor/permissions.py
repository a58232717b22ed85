"""Who may read and write a file, from its mode. Pure.

Rules kept here:

* Only what lets in somebody else than the owner is said. Root reads everything and is never mentioned.
* With an access control list the group's bits are its mask, so that a list that lets somebody in shows.
"""

from __future__ import annotations

import stat

from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Finding, listed
from rekey.doctor.observed import FileSeen


def others_who_read(file: FileSeen) -> list[str]:
    """Return who besides the owner may read: `group staff`, `everybody`."""
    return _others(file, stat.S_IRGRP, stat.S_IROTH)


def others_who_write(file: FileSeen) -> list[str]:
    """Return who besides the owner may write."""
    return _others(file, stat.S_IWGRP, stat.S_IWOTH)


def described(file: FileSeen) -> str:
    """Return mode and owner as one looks at them: `mode 0640, of alice:staff`."""
    return f"mode {file.mode or 0:04o}, of {file.owner}:{file.group}"


def doors(
    file: FileSeen, what: str, *, why: str, codes: tuple[Code, Code], closed: str = "600"
) -> list[Finding]:
    """Return what is to be said of a file that only its owner may read.

    Args:
        file: as seen.
        what: what it is, e.g. "the file of secret `users`".
        why: why it matters who reads it.
        codes: for a file that others may open, and for one that belongs to somebody else.
        closed: the mode that it should have.
    """
    if file.mode is None:
        return []
    found: list[Finding] = []
    readers, writers = others_who_read(file), others_who_write(file)
    if readers or writers:
        said = [f"read by {listed(readers)}"] * bool(readers) + [f"written by {listed(writers)}"] * bool(
            writers
        )
        found.append(
            Finding(
                codes[0],
                Severity.ERROR if writers else Severity.WARNING,
                what,
                f"{file.path} may be {' and '.join(said)} ({described(file)})",
                why,
                "close it; if others had access to the machine, treat what it holds as known",
                f"chmod {closed} {file.path}",
            )
        )
    if not file.ours:
        found.append(
            Finding(
                codes[1],
                Severity.WARNING,
                what,
                f"{file.path} belongs to somebody else ({described(file)})",
                why,
                "run rekey as its owner, or give it to the user who runs rekey",
            )
        )
    return found


def _others(file: FileSeen, group: int, everybody: int) -> list[str]:
    mode = file.mode or 0
    return [f"group {file.group}"] * bool(mode & group) + ["everybody"] * bool(mode & everybody)
