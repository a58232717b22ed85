"""The command `rekey`, also as `python -m rekey`."""

from __future__ import annotations

import gc
import sys

from rekey.cli import signals


def main() -> int:
    """Run the command line of this process and return the exit code."""
    signals.ending_at_once()
    from rekey.cli.main import run  # takes a while, in which Ctrl-C must not show a traceback

    code = run()
    gc.freeze()  # what is left goes with the process: looking for cycles in it takes a tenth of a second
    return code


if __name__ == "__main__":
    sys.exit(main())
