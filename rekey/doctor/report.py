"""The results of the checks: findings, each with its reason and remedy, and facts that need no action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rekey.core.severity import Severity
from rekey.core.texts import catalogue, filled
from rekey.present.text import counted, wrapped

# The entries `severity`, `seen`, `why`, `do` and `command` of every possible finding, by code.
TEXTS = catalogue(Path(__file__).with_name("findings.toml"))
_INDENT = " " * 11


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the operator should know or do."""

    # A key of `TEXTS`.
    code: str
    # An error will stop a migration or gives access to others; a warning is a risk; a note informs.
    severity: Severity
    # The subject: a section of the configuration, a file, a script.
    about: str
    seen: str
    why: str
    remedy: str
    # A command that does it or shows more, or ""; printed on a line of its own, unwrapped.
    command: str = ""


def finding(code: str, about: str, severity: Severity | None = None, /, **values: object) -> Finding:
    """Return a finding.

    Args:
        code: a key of `TEXTS`.
        about: the subject.
        severity: replaces the severity of `TEXTS`.
        values: for the names in braces in its texts; one named `seen`, `why`, `do` or `command` replaces that
            text.
    """
    texts = TEXTS[code]
    words = filled(texts, values, "seen", "why", "do", "command")
    return Finding(code, severity or Severity(texts["severity"]), about, *words)


@dataclass(frozen=True, slots=True)
class Fact:
    """An observation that needs no action."""

    about: str
    seen: str


Result: TypeAlias = Finding | Fact


@dataclass(frozen=True, slots=True)
class Report:
    """All findings and facts, by family of checks."""

    families: Mapping[str, Sequence[Result]]

    @property
    def findings(self) -> list[Finding]:
        """All findings, in the order of the families."""
        return [entry for family in self.families.values() for entry in family if isinstance(entry, Finding)]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def fails(self, *, strict: bool) -> bool:
        """Tell whether there is an error; with `strict`, an error or a warning."""
        return bool(self.count(Severity.ERROR) or (strict and self.count(Severity.WARNING)))

    def as_json(self) -> dict[str, Any]:
        results = [(family, result) for family, members in self.families.items() for result in members]
        return {
            "counts": {f"{severity}s": self.count(severity) for severity in Severity},
            "findings": [
                {"family": name, **asdict(result)} for name, result in results if isinstance(result, Finding)
            ],
            "facts": [
                {"family": name, **asdict(result)} for name, result in results if isinstance(result, Fact)
            ],
        }

    def as_text(self) -> str:
        lines: list[str] = []
        for family, results in self.families.items():
            lines.append(family)
            for fact in (entry for entry in results if isinstance(entry, Fact)):
                lines += wrapped(f"{fact.about}: {fact.seen}", first="  ", rest="    ")
            findings = [entry for entry in results if isinstance(entry, Finding)]
            for finding in sorted(findings, key=lambda finding: finding.severity.place):
                head = finding.severity.upper() if finding.severity is Severity.ERROR else finding.severity
                lines += wrapped(f"{finding.code}: {finding.about}: {finding.seen}", first=f"  {head:<9}")
                lines += wrapped(finding.why, first=f"{_INDENT}why  ")
                if finding.remedy:
                    lines += wrapped(finding.remedy, first=f"{_INDENT}do   ")
                if finding.command:
                    lines.append(f"{_INDENT}     {finding.command}")
            lines += [] if results else ["  nothing to report"]
            lines.append("")
        return "\n".join([*lines, ", ".join(counted(self.count(each), each) for each in Severity)]) + "\n"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence: `a, b and c`."""
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
