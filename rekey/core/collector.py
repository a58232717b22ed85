"""Python's collector of reference cycles, set to run rarely while a command runs, or rows stream through.

Rules kept here:

* Rows are plain dicts that hold nothing but text and numbers: they make no cycles, so counting references
  frees them at once. Looking for cycles among them every 700 allocations costs a quarter of all the work.
* The former setting is restored when the last stream ends: streams may overlap.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Thresholds of `gc`: the first is the allocations between two looks at young objects; a look at 100,000 of
# them takes milliseconds.
_PATIENT = (100_000, 20, 20)
_streams = 0
_before = gc.get_threshold()


@contextmanager
def patient_collector() -> Iterator[None]:
    """Collect cycles rarely, as long as any such context is open in this process."""
    global _streams, _before
    if not _streams:
        _before = gc.get_threshold()
        gc.set_threshold(*_PATIENT)
    _streams += 1
    try:
        yield
    finally:
        _streams -= 1
        if not _streams:
            gc.set_threshold(*_before)
