"""Lives that several tests of a process ask for, lived once."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


@functools.cache
def lived(life: Callable[[Path, str, int], Any], kind: str, seed: int) -> Any:
    """Return a life of a kind and seed after it was lived; raises what it found."""
    with tempfile.TemporaryDirectory() as folder:
        made = life(Path(folder), kind, seed)
        made.live()
    return made
