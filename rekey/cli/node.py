"""`python -m rekey.cli.node`: finds or installs Node.js and Azurite, for the Makefile."""

from __future__ import annotations

import sys

from rekey.cli.shell import Shell
from rekey.errors import ExitCode, RekeyError
from rekey.rehearse.azurite import find_azurite, find_node, pinned_version


def main() -> int:
    """Find or install Node.js and Azurite, print where they are, and return the exit code."""
    shell = Shell()
    try:
        node = find_node()
        azurite = find_azurite(node)
    except RekeyError as error:
        shell.note(str(error))
        return int(error.exit_code)
    shell.say(f"Node.js: {node.program}\nAzurite {pinned_version()}: {azurite}")
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main())
