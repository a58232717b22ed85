"""`python -m rekey`."""

from __future__ import annotations

import sys

from rekey.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
