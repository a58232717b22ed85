"""Files that only their owner may read. An existing file is never overwritten in place."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkstemp

_MODE = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600.

    Raises:
        FileExistsError: the file exists already.
        OSError: it cannot be written.
    """
    # The mode is set on creation, so that no other user can open the file in between.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


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
