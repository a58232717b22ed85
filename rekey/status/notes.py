"""The notes of the runner: code and figures in, one sentence of `notes.toml` out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rekey.core.progress import Progress
from rekey.core.texts import catalogue, filled

NO_VALUES: Mapping[str, object] = MappingProxyType({})
_TEXTS = Path(__file__).with_name("notes.toml")


def note(
    progress: Progress, code: str, values: Mapping[str, object] = NO_VALUES, /, **figures: object
) -> None:
    """Show a note to the operator.

    Args:
        progress: shows it.
        code: a key of `notes.toml`.
        values: by the names in braces in the text; they hold no key.
        figures: further members of the event in logs.
    """
    texts = catalogue(_TEXTS)[code]
    [text] = filled(texts, values, "text")
    progress.note(text, texts.get("event", code), **figures)
