"""The installed distribution of rekey: its name and its version."""

from __future__ import annotations

from functools import cache

DISTRIBUTION = "rekey-tables"


@cache
def installed_version() -> str:
    """Return the installed version. It is cached, because looking it up reads a file."""
    from importlib.metadata import version  # with `email` and more: slow to import

    return version(DISTRIBUTION)
