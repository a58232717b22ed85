"""New files that only their owner may read.

Rules kept here:

* The mode is given when the file is made, not after: nobody can open it in between.
* A file that is there is never written over.
"""

from __future__ import annotations

import os
from pathlib import Path

_MODE = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600.

    Raises:
        FileExistsError: there is one.
        OSError: it cannot be written.
    """
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(made, "wb") as file:
        file.write(content)
