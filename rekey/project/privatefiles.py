"""Files that are written whole, or not at all. An existing file is never overwritten in place."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkstemp

_MODE = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600; raises as `write_new`."""
    # The mode is set on creation, so that no other user can open the file in between.
    write_new(path, content, mode=_MODE)


def write_new(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a new file. `mode`: its permissions, less the umask.

    Raises:
        FileExistsError: the file exists already.
        OSError: it cannot be written; none is left, which the next attempt would take for a whole one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file with mode 0600 atomically. An existing file, or a link itself, is replaced.

    Args:
        path: the file.
        content: its new content.
        durable: sync the disk, so that it survives a machine failure.

    Raises:
        OSError: it cannot be written; the former file is unchanged.
    """
    # In the same folder, so that it can be renamed; with a random name, so that no link can be put there
    # before.
    descriptor, name = mkstemp(prefix=".rekey-", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
