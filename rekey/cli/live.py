"""One command of a small migration of `rekey doctor --live`: the command line as it is, but for the names of
the restricted store's tables, which begin with the first word."""

from __future__ import annotations

import sys

from rekey.cli import signals


def main() -> int:
    """Run the words after the first as a command, and return its exit code."""
    signals.ending_at_once()
    from rekey.cli.main import run
    from rekey.cli.shell import Surroundings
    from rekey.doctor.live.life import apart
    from rekey.protocol.opening import connect

    prefix, *words = sys.argv[1:]
    return run(words, Surroundings(connect=lambda config: apart(connect(config), prefix)))


if __name__ == "__main__":
    sys.exit(main())
