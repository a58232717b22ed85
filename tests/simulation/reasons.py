"""What operators of simulated lives do when a step is refused because it would delete many rows, or rows of
which it finds no other copy: in a life only the application deletes rows, so they repeat it with a reason.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rekey.errors import Refused
from rekey.runner.run import Options

_ASKS = re.compile("copying back would delete them$|dropping would delete their last copy$")
"""Not what a table that was deleted is refused with: nobody deletes tables here but the runner."""


def asks_for_reason(error: Exception | None, options: Options | None) -> bool:
    """Tell whether a command was refused for want of a reason."""
    given = options is not None and options.reason
    return isinstance(error, Refused) and not given and _ASKS.search(error.what) is not None


def with_reason(options: Options | None) -> Options:
    """Return what `--reason TEXT` makes of a command's options."""
    return replace(options or Options(), reason="the application deleted these rows")
