"""The distribution of rekey: its name and its version."""

from __future__ import annotations

DISTRIBUTION = "rekey-tables"
# The build reads it from here. Asking for the installed version would take 11 ms of each command's start.
VERSION = "0.2.0"
