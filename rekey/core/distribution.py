"""This program as it is installed: the name of its distribution, and its version."""

from __future__ import annotations

from functools import cache

DISTRIBUTION = "rekey-tables"


@cache
def installed_version() -> str:
    """Return the version that is installed; looked up once, which takes reading a file."""
    from importlib.metadata import version  # with `email` and more: slow to import

    return version(DISTRIBUTION)
