"""Files that only their owner may read: new ones, and ones that are replaced whole.

Rules kept here:

* The mode is given when the file is made, not after: no other user can open it in between.
* An existing file is never overwritten in place: it is refused, or replaced whole.
"""

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
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(made, "wb") as file:
        file.write(content)


def write_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file with mode 0600, whole or not at all; replace an existing one.

    A link at `path` is replaced, not followed: what it points to stays as it is.

    Args:
        path: the file.
        content: what it holds from now on.
        durable: also after the machine fails; False saves the sync of the disk.

    Raises:
        OSError: it cannot be written; what was there is unchanged.
    """
    # In the same folder, so that it can be moved into place; under a random name, so that no link can be put
    # there before.
    made, name = mkstemp(prefix=".rekey-", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(made, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
