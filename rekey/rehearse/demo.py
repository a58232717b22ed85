"""`make demo`: a whole migration of `migrations/0001_users_opaque_ids.py`, with what every command prints.

Rules kept here:

* It is a rehearsal and nothing else: same engine, same checks, but the commands are shown with their output,
  and each is followed by the reason why it is there.
* It needs no configuration, leaves nothing behind, and its exit code tells whether all was as it must be.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rekey.errors import ExitCode, RekeyError
from rekey.rehearse.rehearsal import rehearse
from rekey.rehearse.report import WithOutput

ROWS = 4000
SCRIPT = Path("migrations/0001_users_opaque_ids.py")
_INTRODUCTION = """\
A whole migration, on a local Azurite: e-mail addresses in the RowKeys of `Users` become opaque ids in
`UsersV2`, while an application goes on writing. Every command below is run for real; lines with ✓ are what
was read back from the tables afterwards and compared row by row."""


def main() -> int:
    """Run the demo and return the exit code."""
    _say(_INTRODUCTION)
    try:
        report = rehearse(SCRIPT, rows=ROWS, out=_say, narrate=WithOutput)
    except RekeyError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    _say("")
    _say(report.text())
    if report.passed:
        _say("\nNext: README.md for a first migration of your own, or `rekey rehearse YOUR_SCRIPT.py`.")
    return int(ExitCode.DONE if report.passed else ExitCode.FINDINGS)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
