"""The command `rekey`, also as `python -m rekey`."""

from __future__ import annotations

import gc
import sys

from rekey.cli import signals


def main() -> int:
    """Run the command line and return the exit code."""
    signals.ending_at_once()
    from rekey.cli.main import run  # slow, and Ctrl-C must not show a traceback meanwhile

    code = run()
    gc.freeze()  # skip the final collection of cycles, which takes a tenth of a second
    return code


if __name__ == "__main__":
    sys.exit(main())
