"""`rekey WORDS` with a runner lease that a test can outwait: `python -m tests.acceptance.late_command WORDS`.

The lease of a runner is 60 seconds; here it is as the environment says. Nothing else is changed: what waits
for a lease reads its duration from the lease's row.
"""

from __future__ import annotations

import os
import sys

DURATION = "LATE_RUNNER_LEASE_SECONDS"
RENEW = "LATE_RUNNER_RENEW_SECONDS"


def main() -> None:
    """Be `rekey` with the shorter lease."""
    from rekey.cli.main import run
    from rekey.runner.lease import RunnerLease

    usual = RunnerLease.__init__.__kwdefaults__
    assert {"duration_s", "renew_every_s"} <= usual.keys(), "the runner lease is made otherwise now"
    usual["duration_s"] = int(os.environ[DURATION])
    usual["renew_every_s"] = float(os.environ[RENEW])
    sys.argv = ["rekey", *sys.argv[1:]]
    sys.exit(run())


if __name__ == "__main__":
    main()
