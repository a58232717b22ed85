"""Where the client's processor time goes: `python -m benchmarks.profile copy|copy-targets|verify [ROWS]`.

Runs the work against the stub under cProfile and prints the functions that take most themselves. The
profiler's own cost weighs on small functions; shares are what to read, not seconds.
"""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import re
import sys
import tempfile

from benchmarks import stub_work
from benchmarks.stub import StubProcess

_LINES = 30


def main(work: str, rows: int = 50_000) -> None:
    """Print the profile of one kind of work."""
    options = ["--target"] if work == "verify" else []
    with StubProcess(rows, *options) as stub, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        profiler = cProfile.Profile()
        profiler.runcall(stub_work.rekey, work, stub.endpoint)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(_LINES)
    print(f"{work}, {rows:,} rows, stub\n")
    print(re.sub(r"\S*/(site-packages|rekey|lib/python[\d.]+)/", r"\1/", text.getvalue()).strip())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
