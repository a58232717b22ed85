"""A report as text for people. Pure.

Rules kept here:

* At most 100 columns; a command that is to be typed stands on a line of its own and is never wrapped.
* Errors come before warnings, warnings before notes, within each family; the last line counts them.
"""

from __future__ import annotations

import textwrap

from rekey.core.severity import Severity
from rekey.doctor.finding import Examined, Finding, Report

_WIDTH = 100


def report_text(report: Report) -> str:
    """Return the whole report."""
    lines: list[str] = []
    for one in report.examined:
        lines += [one.family, *_family(one), ""]
    counts = ", ".join(_counted(report.count(severity), severity) for severity in Severity)
    return "\n".join([*lines, counts]) + "\n"


def _family(one: Examined) -> list[str]:
    lines = [line for fact in one.facts for line in _wrapped(f"{fact.about}: {fact.seen}", "  ", "    ")]
    for finding in sorted(one.findings, key=lambda finding: finding.severity.place):
        lines += _finding(finding)
    return lines or ["  nothing to say"]


def _finding(finding: Finding) -> list[str]:
    head = f"{finding.severity.upper() if finding.severity is Severity.ERROR else finding.severity}"
    lines = _wrapped(f"{finding.code}: {finding.about}: {finding.seen}", f"  {head:<9}", " " * 11)
    lines += _wrapped(finding.why, " " * 11 + "why  ", " " * 16)
    if finding.remedy:
        lines += _wrapped(finding.remedy, " " * 11 + "do   ", " " * 16)
    return [*lines, " " * 16 + finding.command] if finding.command else lines


def _counted(number: int, severity: Severity) -> str:
    return f"{number} {severity}{'' if number == 1 else 's'}"


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
