"""The errors of commands and of the runner, by code: class, what happened, what was kept, what to do next.

Rules kept here:

* The texts stand together in `refusals.toml`, where they are read and corrected as an operator reads them; a
  test compares its codes, and the names in its texts, with those that the program uses.
* Values come from where the error is raised. They hold no old key and no secret (`rekey.errors`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rekey import errors
from rekey.core.texts import Catalogue, catalogue, filled


def refusal(code: str, **values: object) -> errors.RekeyError:
    """Return (not raise) an error.

    Args:
        code: its entry in `refusals.toml`.
        values: by the names in its texts; `hint=` stands in for the whole text of what to do next.
    """
    texts = _texts()[code]
    what, kept, hint = filled(texts, values, "what", "kept", "hint")
    kind: type[errors.RekeyError] = getattr(errors, texts["error"])
    return kind(what, kept=kept, hint=hint)


@cache
def _texts() -> Catalogue:
    return catalogue(Path(__file__).with_name("refusals.toml"))
