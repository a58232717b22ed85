"""A small process between the benchmarks and what they measure: starts a program, writes down what it took.

It is small on purpose, and imports next to nothing. The system's "maximum resident set" of a process counts
what it held between its start and its own program, which is its parent's memory: measured from a process that
has just made up 300,000 rows, `true` takes hundreds of megabytes.

    python -I -S account.py FIGURES PROGRAM [WORD]...
"""

from __future__ import annotations

import json
import os
import sys
import time


def main(figures: str, words: list[str]) -> int:
    """Run a program to its end, write its figures as JSON, and return its exit code."""
    began = time.monotonic()
    _, status, usage = os.wait4(os.posix_spawn(words[0], words, os.environ), 0)
    taken = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024 * 1024),
    }
    with open(figures, "w", encoding="ascii") as out:  # noqa: PTH123 - pathlib alone weighs some megabytes
        json.dump(taken, out)
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
