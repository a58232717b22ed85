"""`python -m rekey.cli.node`: finds Node.js, and finds or installs Azurite, for the Makefile.

With `--check-node` it only tells whether there is a usable Node.js with npm, also by its exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rekey.cli.shell import Shell
from rekey.errors import ExitCode, RekeyError
from rekey.rehearse.azurite import find_azurite, find_node, pinned_version


def main(arguments: Sequence[str]) -> int:
    """Find Node.js, find or install Azurite, print where they are, and return the exit code.

    With `--check-node`: 0 when there is a usable Node.js with npm, else 1; nothing is installed.
    """
    shell = Shell()
    check_only = list(arguments) == ["--check-node"]
    if arguments and not check_only:
        shell.note("usage: python -m rekey.cli.node [--check-node]")
        return int(ExitCode.USAGE)
    try:
        node = find_node()
        if check_only:
            shell.say(f"Node.js: {node.program}")
            return int(ExitCode.DONE if node.npm else ExitCode.FINDINGS)
        azurite = find_azurite(node)
    except RekeyError as error:
        shell.note(str(error))
        return int(ExitCode.FINDINGS if check_only else error.exit_code)
    shell.say(f"Node.js: {node.program}\nAzurite {pinned_version()}: {azurite}")
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
