"""Lives that several tests of a process ask for, lived once. As a program, one life under dual writes, which
tells what happened: `python -m tests.simulation.living "keys from keys" 2`."""

from __future__ import annotations

import functools
import json
import sys
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


if __name__ == "__main__":
    from tests.simulation.dual_life import Life

    storm = lived(Life, sys.argv[1], int(sys.argv[2])).storm
    print(json.dumps([storm.trace, str(sorted(storm.happened.items()))]))
