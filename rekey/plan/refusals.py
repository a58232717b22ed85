"""The errors of plan files, by code; their texts are in `refusals.toml`."""

from __future__ import annotations

from pathlib import Path

from rekey.core.texts import errors_of

refusal = errors_of(Path(__file__).with_name("refusals.toml"))
