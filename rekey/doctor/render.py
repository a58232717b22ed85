"""A report as text for people. Pure.

Rules kept here:

* A command that is to be typed stands on a line of its own and is never wrapped.
* Errors come before warnings, warnings before notes, within each family; the last line counts them.
"""

from __future__ import annotations

from rekey.core.severity import Severity
from rekey.doctor.finding import Examined, Finding, Report
from rekey.present.text import counted, wrapped

_INDENT = " " * 11


def report_text(report: Report) -> str:
    """Return the whole report."""
    lines: list[str] = []
    for one in report.examined:
        lines += [one.family, *_family(one), ""]
    return "\n".join([*lines, ", ".join(counted(report.count(each), each) for each in Severity)]) + "\n"


def _family(one: Examined) -> list[str]:
    lines = []
    for fact in one.facts:
        lines += wrapped(f"{fact.about}: {fact.seen}", first="  ", rest="    ")
    for finding in sorted(one.findings, key=lambda finding: finding.severity.place):
        lines += _finding(finding)
    return lines or ["  nothing to say"]


def _finding(finding: Finding) -> list[str]:
    head = finding.severity.upper() if finding.severity is Severity.ERROR else finding.severity
    lines = wrapped(f"{finding.code}: {finding.about}: {finding.seen}", first=f"  {head:<9}")
    lines += wrapped(finding.why, first=f"{_INDENT}why  ")
    if finding.remedy:
        lines += wrapped(finding.remedy, first=f"{_INDENT}do   ")
    return [*lines, f"{_INDENT}     {finding.command}"] if finding.command else lines
