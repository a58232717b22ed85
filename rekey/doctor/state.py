"""The state file: closed to others, on a disk with room, usable by this program. Pure.

Rules kept here:

* It holds source keys (cursors), and the record of what was done: others must not read or change it.
* A lock that is held is no fault: somebody works.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Examined, Fact, Finding
from rekey.doctor.observed import Observed, StateSeen
from rekey.doctor.permissions import described, doors, others_who_write

LOW_BYTES = 1024**3
FULL_BYTES = 100 * 1024**2
NETWORK = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs"}
    | {"nfs", "nfs4", "smb2", "smb3", "smbfs", "virtiofs", "vboxsf"}
)
"""Types of file systems whose locks may not reach other machines. (A blobfuse mount says `fuse.blobfuse`.)"""
_WHY = "it holds old keys where a scan goes on, and the log of what was done"


def check(observed: Observed) -> Examined:
    """Judge the state file."""
    seen = observed.state
    findings = [*_doors(seen), *_disk(seen), *_content(seen)]
    return Examined("state", tuple(findings), tuple(_facts(seen)))


def _facts(seen: StateSeen) -> Iterator[Fact]:
    if seen.file is None:
        yield Fact("state file", f"{seen.path}: there is none yet; the first `apply` makes it")
    elif seen.trouble is None:
        yield Fact("state file", f"{seen.path}: schema {seen.schema}, {described(seen.file)}")
    if seen.free_bytes is not None:
        yield Fact(
            "disk", f"{seen.free_bytes / 1024**3:,.1f} GiB free, file system {seen.file_system or 'unknown'}"
        )


def _doors(seen: StateSeen) -> Iterator[Finding]:
    codes = (Code.STATE_OPEN, Code.STATE_FOREIGN)
    for file in (*((seen.file,) if seen.file is not None else ()), *seen.beside):
        yield from doors(file, "state file", why=_WHY, codes=codes)
    folder = seen.folder
    if folder is not None and folder.mode is not None and others_who_write(folder):
        yield Finding(
            Code.STATE_OPEN,
            Severity.WARNING,
            "state folder",
            f"others may put files into {folder.path} ({described(folder)})",
            "who may write the folder may put another state file in the place of this one",
            "let only its owner write it, or keep the state in a folder of its own",
            f"chmod go-w {folder.path}",
        )


def _disk(seen: StateSeen) -> Iterator[Finding]:
    free = seen.free_bytes
    if free is not None and free < LOW_BYTES:
        yield Finding(
            Code.DISK_LOW,
            Severity.ERROR if free < FULL_BYTES else Severity.WARNING,
            "disk",
            f"{free / 1024**2:,.0f} MiB are free where the state file is",
            "a full disk stops a run at its last checkpoint; verification spills to disk as well",
            "free space there, or move the state: [state] path",
        )
    if seen.file_system in NETWORK or seen.file_system.startswith("fuse.blobfuse"):
        yield Finding(
            Code.NETWORK_FILE_SYSTEM,
            Severity.WARNING,
            "disk",
            f"the state file is on a network file system ({seen.file_system})",
            "SQLite's write-ahead log needs memory shared by its users, and the lock may not reach other"
            " machines; the file can be damaged. Only progress would be lost, not data",
            "keep the state on a disk of this machine: [state] path",
        )


def _content(seen: StateSeen) -> Iterator[Finding]:
    if seen.trouble is not None:
        yield Finding(
            Code.STATE_UNUSABLE,
            Severity.ERROR,
            "state file",
            seen.trouble.what,
            "no command that works on a migration can begin",
            seen.trouble.cure,
        )
    if seen.held_by:
        yield Finding(
            Code.LOCK_HELD,
            Severity.NOTE,
            "state file",
            f"{seen.held_by} works with it now",
            "another runner is refused until it ends",
            "nothing; `rekey status` shows how far it is",
            "rekey status",
        )
    if 0 < seen.schema < seen.newest_schema:
        yield Finding(
            Code.SCHEMA_OLDER,
            Severity.NOTE,
            "state file",
            f"its schema is {seen.schema}; this program has {seen.newest_schema}",
            "the next command that writes brings it up to date, and an older rekey does not open it then",
            "nothing, unless you mean to go back to the older rekey: then keep a copy of the file",
        )
    if seen.broken_at is not None:
        yield Finding(
            Code.AUDIT_BROKEN,
            Severity.ERROR,
            "state file",
            f"the chain of audit events breaks at event {seen.broken_at}",
            "an event was changed or removed; evidence of these migrations proves nothing from there on",
            "find out who wrote to the file; compare with checkpoints that others keep",
        )
