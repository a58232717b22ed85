"""The report of a rehearsal, as a value, as JSON and as text; and the narrators of its progress. No key,
secret or connection string is in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rekey.core.plain import exclude, json_field, members
from rekey.present.text import wrapped
from rekey.rehearse.project import Result

Out = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    """The result of a rehearsal."""

    script_id: str = field(metadata=exclude)
    source: str
    targets: tuple[str, ...]
    # Number of rows loaded into the source, and where they came from.
    rows: int
    data: str
    assumptions: tuple[str, ...]
    # What was checked and holds, in order.
    proofs: tuple[str, ...]
    # What was not rehearsed, and why.
    left_out: tuple[str, ...]
    steps: tuple[Result, ...]
    # The failed check, with the command's output; "" if none.
    failure: str
    # The folder that was kept, "" if removed.
    kept: str
    seconds: float = field(metadata=json_field(digits=1))

    @property
    def passed(self) -> bool:
        return not self.failure

    def as_json(self) -> dict[str, Any]:
        return {"script": self.script_id, "passed": self.passed, **members(self)}

    def text(self) -> str:
        lines = [
            f"Rehearsal of {self.script_id}: {self.source} → {', '.join(self.targets)}",
            f"{self.rows:,} rows {self.data}, {len(self.steps)} commands, {self.seconds:.0f} s",
        ]
        listed = {"Assumed": self.assumptions, "Proved": self.proofs, "Left out": self.left_out}
        for title, sentences in listed.items():
            if sentences:
                lines += ["", f"{title}:"]
                lines += [line for sentence in sentences for line in wrapped(sentence, first="  - ")]
        if self.kept:
            lines += ["", f"Kept: {self.kept}"]
            lines += ["  (configuration, state file, what the commands printed, and the tables' rows)"]
        if self.passed:
            lines += ["", "Passed: everything was as it must be, after every step."]
        else:
            lines += ["", "Failed:", *(f"  {line}" for line in self.failure.splitlines())]
        return "\n".join(lines)


@dataclass
class Briefly:
    """Narrates the progress in sentences, for `rekey rehearse`; `out` is called with each line."""

    out: Out

    def _tell(self, *lines: str) -> None:
        for line in lines:
            self.out(line)

    def say(self, sentence: str) -> None:
        self._tell(*wrapped(sentence))

    def ran(self, result: Result) -> None:
        ended = f"exit {result.code}" if result.code >= 0 else f"ended by signal {-result.code}"
        self._tell(f"  $ {result.line}  ({ended}, {result.seconds:.1f} s)")

    def proved(self, sentence: str) -> None:
        self._tell(*wrapped(sentence, first="  ✓ "))

    def why(self, sentence: str) -> None:
        """Say nothing: operators know why the last command was run."""


class WithOutput(Briefly):
    """Shows the commands with their output and purpose, for the demo."""

    def say(self, sentence: str) -> None:
        self._tell("", f"── {sentence}")

    def ran(self, result: Result) -> None:
        self._tell("", f"$ {result.line}", *(f"  {line}".rstrip() for line in result.output.splitlines()))
        if result.code < 0:
            self._tell(f"  (ended by signal {-result.code})")
        elif result.code:
            self._tell(f"  (exit code {result.code})")

    def why(self, sentence: str) -> None:
        self._tell(*wrapped(sentence, first="  → "))
