"""`make demo`: a whole migration of `migrations/0001_users_opaque_ids.py`, with what every command prints.

Rules kept here:

* It is a rehearsal and nothing else: same engine, same checks, but the commands are shown with their output,
  and each is followed by the reason why it is run.
* It needs no configuration, leaves nothing behind, and its exit code tells whether every check held.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rekey.cli.shell import Shell
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
    shell = Shell()
    shell.say(_INTRODUCTION)
    try:
        report = rehearse(SCRIPT, rows=ROWS, out=shell.say, narrate=WithOutput)
    except RekeyError as error:
        shell.note(str(error))
        return int(error.exit_code)
    shell.say("")
    shell.say(report.text())
    if report.passed:
        shell.say("\nNext: README.md for a first migration of your own, or `rekey rehearse YOUR_SCRIPT.py`.")
    return int(ExitCode.DONE if report.passed else ExitCode.FINDINGS)


if __name__ == "__main__":
    sys.exit(main())
