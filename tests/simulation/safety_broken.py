"""Verification and the drop of targets with one rule switched off, to see the search find the loss."""

from __future__ import annotations

from typing import Any
from unittest import mock

from rekey.protocol.control import ControlRow, ControlStore
from rekey.runner import remaining, verification
from rekey.runner.phases import prepare


def not_marked() -> Any:
    """Write a row outside propagate without a mark that verifications so far do not cover it."""

    async def mark_changed(self: ControlStore) -> ControlRow | None:
        return await self.read()

    return mock.patch.object(ControlStore, "mark_changed", mark_changed)


def not_quiet() -> Any:
    """Verify while what a killed command had sent may still land."""

    async def until_quiet(_run: object) -> None:
        return

    return mock.patch.object(verification, "until_quiet", until_quiet)


def not_proved() -> Any:
    """Drop the targets without a look at the source."""

    async def nothing(_run: object) -> None:
        return

    return mock.patch.multiple(prepare, require_source=nothing), mock.patch.multiple(
        remaining, require_droppable=nothing
    )


def proved_once() -> Any:
    """Do not look at the source again right before the targets are dropped."""

    async def nothing(_run: object) -> None:
        return

    return mock.patch.object(prepare, "require_source", nothing)
