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


def found(code: str, about: str, severity: Severity | None = None, /, **values: object) -> Finding:
    """Return a finding.

    Args:
        code: a key of `TEXTS`.
        about: the subject.
        severity: replaces the severity of `TEXTS`.
        values: for the names in braces in its texts; one named `seen`, `why`, `do` or `command` replaces that
            text.
    """
    texts = TEXTS[code]
    told = filled(texts, values, "seen", "why", "do", "command")
    return Finding(code, severity or Severity(texts["severity"]), about, *told)


@dataclass(frozen=True, slots=True)
class Fact:
    """An observation that needs no action."""

    about: str
    seen: str


Told: TypeAlias = Finding | Fact


@dataclass(frozen=True, slots=True)
class Report:
    """All findings and facts, by family of checks."""

    families: Mapping[str, Sequence[Told]]

    @property
    def findings(self) -> list[Finding]:
        """All findings, in the order of the families."""
        return [one for family in self.families.values() for one in family if isinstance(one, Finding)]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def fails(self, *, strict: bool) -> bool:
        """Tell whether there is an error; with `strict`, an error or a warning."""
        return bool(self.count(Severity.ERROR) or (strict and self.count(Severity.WARNING)))

    def as_json(self) -> dict[str, Any]:
        told = [(family, one) for family, of_family in self.families.items() for one in of_family]
        return {
            "counts": {f"{severity}s": self.count(severity) for severity in Severity},
            "findings": [{"family": name, **asdict(one)} for name, one in told if isinstance(one, Finding)],
            "facts": [{"family": name, **asdict(one)} for name, one in told if isinstance(one, Fact)],
        }

    def as_text(self) -> str:
        lines: list[str] = []
        for family, told in self.families.items():
            lines.append(family)
            for fact in (one for one in told if isinstance(one, Fact)):
                lines += wrapped(f"{fact.about}: {fact.seen}", first="  ", rest="    ")
            findings = [one for one in told if isinstance(one, Finding)]
            for one in sorted(findings, key=lambda finding: finding.severity.place):
                head = one.severity.upper() if one.severity is Severity.ERROR else one.severity
                lines += wrapped(f"{one.code}: {one.about}: {one.seen}", first=f"  {head:<9}")
                lines += wrapped(one.why, first=f"{_INDENT}why  ")
                if one.remedy:
                    lines += wrapped(one.remedy, first=f"{_INDENT}do   ")
                if one.command:
                    lines.append(f"{_INDENT}     {one.command}")
            lines += [] if told else ["  nothing to say"]
            lines.append("")
        return "\n".join([*lines, ", ".join(counted(self.count(each), each) for each in Severity)]) + "\n"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence: `a, b and c`."""
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
