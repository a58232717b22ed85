"""`rekey WORDS` with a runner lease that a test can outwait: `python -m tests.worlds.late_command WORDS`.

The lease of a runner is 60 seconds, and the service refuses what was signed 15 minutes ago; here both are as
the environment says, which knows how long processes stand still. Nothing else is changed: what waits for a
lease reads its duration from the lease's row.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

DURATION = "LATE_RUNNER_LEASE_SECONDS"
RENEW = "LATE_RUNNER_RENEW_SECONDS"
SIGNED = "LATE_SIGNED_SECONDS"


def shorten() -> None:
    """Take it that the service refuses sooner what was signed."""
    from rekey.protocol import lease, registry
    from rekey.tables import credentials

    for module in (credentials, lease, registry):
        replaced(module, "SIGNED_S", float(os.environ[SIGNED]))


def replaced(module: ModuleType, name: str, value: float) -> None:
    """Replace a constant; fails where the module has none of that name."""
    assert hasattr(module, name), f"{module.__name__} has no {name} now"
    setattr(module, name, value)


def main() -> None:
    """Be `rekey` with the shorter lease."""
    from rekey.cli.main import run
    from rekey.protocol import lease

    replaced(lease, "DURATION_S", int(os.environ[DURATION]))
    replaced(lease, "RENEW_EVERY_S", float(os.environ[RENEW]))
    shorten()
    sys.argv = ["rekey", *sys.argv[1:]]
    sys.exit(run())


if __name__ == "__main__":
    main()
