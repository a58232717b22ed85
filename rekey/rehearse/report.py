"""The report of a rehearsal, as a value, as JSON and as text; and the narrators of its progress.

Rules kept here:

* A proof is a sentence with figures, made only after what it says was checked. Nothing is a proof because a
  command said so.
* What was left out and what was assumed is reported as plainly as what was proved.
* No key, secret or connection string is in a report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rekey.core.plain import UNTOLD, members, told
from rekey.present.text import wrapped
from rekey.rehearse.project import Result

Out = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    """The result of a rehearsal.

    Attributes:
        script_id: the migration.
        source, targets: its tables.
        rows: how many rows were loaded into the source.
        data: where they came from.
        assumptions: what was assumed about a data file.
        proofs: what was proved, in order.
        left_out: what was not rehearsed, and why.
        steps: the commands, in order.
        failure: the check that failed, with the output of the command; "" when none failed.
        kept: the folder that was kept, "" when it was removed.
        seconds: how long it took.
    """

    script_id: str = field(metadata=UNTOLD)
    source: str
    targets: tuple[str, ...]
    rows: int
    data: str
    assumptions: tuple[str, ...]
    proofs: tuple[str, ...]
    left_out: tuple[str, ...]
    steps: tuple[Result, ...]
    failure: str
    kept: str
    seconds: float = field(metadata=told(digits=1))

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failure

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"script": self.script_id, "passed": self.passed, **members(self)}

    def text(self) -> str:
        """Return the report for people, without a newline at its end."""
        lines = [
            f"Rehearsal of {self.script_id}: {self.source} → {', '.join(self.targets)}",
            f"{self.rows:,} rows {self.data}, {len(self.steps)} commands, {self.seconds:.0f} s",
        ]
        listed = {"Assumed": self.assumptions, "Proved": self.proofs, "Left out": self.left_out}
        for title, sentences in listed.items():
            if sentences:
                lines += ["", f"{title}:"]
                lines += [line for one in sentences for line in wrapped(one, first="  - ")]
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
    """Narrator of the progress in sentences, for `rekey rehearse`; `out` is called with each line."""

    out: Out

    def _tell(self, *lines: str) -> None:
        for line in lines:
            self.out(line)

    def say(self, sentence: str) -> None:
        """Say what comes next."""
        self._tell(*wrapped(sentence))

    def ran(self, result: Result) -> None:
        """Show a command that has ended, its exit code or signal, and how long it took."""
        ended = f"exit {result.code}" if result.code >= 0 else f"ended by signal {-result.code}"
        self._tell(f"  $ {result.line}  ({ended}, {result.seconds:.1f} s)")

    def proved(self, sentence: str) -> None:
        """Say what was proved."""
        self._tell(*wrapped(sentence, first="  ✓ "))

    def why(self, sentence: str) -> None:
        """Say nothing: operators know why the last command is run."""


class WithOutput(Briefly):
    """Narrator that shows the commands with their output and their purpose, for the demo."""

    def say(self, sentence: str) -> None:
        """Say what comes next, after an empty line."""
        self._tell("", f"── {sentence}")

    def ran(self, result: Result) -> None:
        """Show the command and what it printed."""
        self._tell("", f"$ {result.line}", *(f"  {line}".rstrip() for line in result.output.splitlines()))
        if result.code < 0:
            self._tell(f"  (ended by signal {-result.code})")
        elif result.code:
            self._tell(f"  (exit code {result.code})")

    def why(self, sentence: str) -> None:
        """Say why the last command is run."""
        self._tell(*wrapped(sentence, first="  → "))
