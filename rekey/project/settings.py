"""The section [executor] of rekey.toml: who carries out slices of work, how many at a time, and for how long.

Rules kept here:

* Without a factory the runner does all the work itself.
* A slice is short: it is what a lost worker costs, and how long a pause or another rate takes to reach
  workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from rekey.project.sections import Section

LEAST_SLICE_S = 1.0


@dataclass(frozen=True, slots=True)
class Executor:
    """Who else works.

    Attributes:
        factory: `module:callable` that returns a `concurrent.futures.Executor`, None for nobody.
        tasks: how many at a time; None: as many as the executor says, or this machine has processors.
        slice_s: seconds after which a task begins nothing new.
    """

    factory: str | None = None
    tasks: int | None = None
    slice_s: float = 15.0


def read_executor(section: Section) -> Executor:
    """Read [executor]. Raises ConfigurationError."""
    section.allow("factory", "tasks", "slice")
    factory, slice_s = section.text("factory"), section.duration("slice", Executor().slice_s)
    if factory is not None and not is_factory(factory):
        section.fail("factory", "does not name a callable", 'write "rekey.executors:processes", say')
    if slice_s < LEAST_SLICE_S:
        section.fail("slice", "is too short for anything to be done", 'write for example "15s"')
    return Executor(factory, section.count("tasks"), slice_s)


def is_factory(text: str) -> bool:
    """Tell whether a text has the form `module:callable`."""
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))
