"""The command `rekey`, also as `python -m rekey`."""

from __future__ import annotations

import sys

from rekey.cli import signals


def main() -> int:
    """Run the command line of this process and return the exit code."""
    signals.ending_at_once()
    from rekey.cli.main import run  # takes a while, in which Ctrl-C must not show a traceback

    return run()


if __name__ == "__main__":
    sys.exit(main())
