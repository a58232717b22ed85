"""Versions: of Python, of packages, of what the services speak. Pure.

Rules kept here:

* What is wanted of packages comes from the installed distribution itself, so that it is said once.
* Dates and versions are compared as numbers, part by part; what is no number counts as 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Examined, Fact, Finding
from rekey.doctor.observed import Observed, VersionsSeen
from rekey.doctor.service import Kind, azurite_version, kind_of
from rekey.tables.wire import API_VERSION

TESTED_PYTHON = ((3, 11), (3, 14))
TESTED_AZURITE = (3, 35)
_SHOWN = ("azure-data-tables", "azure-core", "aiohttp", "yoyo-migrations", "sqlalchemy")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(.*)")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\w.]+)")


def check(observed: Observed) -> Examined:
    """Judge the versions."""
    seen = observed.versions
    findings = [*_python(seen), *_packages(seen), *_services(observed)]
    python = ".".join(map(str, seen.python))
    shown = ", ".join(f"{name} {seen.packages[name]}" for name in _SHOWN if name in seen.packages)
    facts = [
        Fact("rekey", f"{seen.rekey or 'unknown'} on Python {python}"),
        Fact("packages", f"{shown}, SQLite {seen.sqlite}"),
    ]
    return Examined("versions", tuple(findings), tuple(facts))


def numbers(version: str) -> tuple[int, ...]:
    """Return a version, or a date, as numbers: `12.7.0b1` is (12, 7, 0), `2020-12-06` is (2020, 12, 6)."""
    parts = re.split(r"[.-]", version)
    return tuple(int(found[0]) if (found := re.match(r"\d+", part)) else 0 for part in parts)


def unmet(requirement: str, packages: dict[str, str]) -> tuple[str, str, str] | None:
    """Return name, version and bounds when an installed package is outside what is wanted, else None.

    Args:
        requirement: as metadata states it: `yoyo-migrations<10,>=9`. One for an extra never counts.
        packages: what is installed, by name.
    """
    stated, _, marker = requirement.partition(";")
    found = _REQUIREMENT.match(stated.strip())
    if found is None or "extra" in marker or found[1] not in packages:
        return None
    have = numbers(packages[found[1]])
    for bound, text in _BOUND.findall(found[2]):
        if not _holds(have, bound, numbers(text)):
            return found[1], packages[found[1]], found[2].strip()
    return None


def _holds(have: tuple[int, ...], bound: str, limit: tuple[int, ...]) -> bool:
    width = max(len(have), len(limit))
    left, right = (one + (0,) * (width - len(one)) for one in (have, limit))
    match bound:
        case ">=":
            return left >= right
        case "<=":
            return left <= right
        case "<":
            return left < right
        case ">":
            return left > right
        case "==":
            return left == right
    return left != right


def _python(seen: VersionsSeen) -> Iterator[Finding]:
    oldest, newest = TESTED_PYTHON
    if not oldest <= seen.python[:2] <= newest:
        yield Finding(
            Code.PYTHON_UNTESTED,
            Severity.WARNING,
            "Python",
            f"this is Python {'.'.join(map(str, seen.python))}",
            f"rekey is tested on {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}",
            "use one of those for a migration of real tables",
        )


def _packages(seen: VersionsSeen) -> Iterator[Finding]:
    for requirement in seen.wanted:
        outside = unmet(requirement, dict(seen.packages))
        if outside is not None:
            name, version, bounds = outside
            yield Finding(
                Code.PACKAGE_OUTSIDE,
                Severity.WARNING,
                name,
                f"{name} {version} is installed; rekey asks for {bounds}",
                "rekey is not tested with it, and rests on how it behaves",
                "install rekey again in an environment of its own",
            )


def _services(observed: Observed) -> Iterator[Finding]:
    for account in observed.accounts:
        heard, section = account.anonymous, f"[{account.section}]"
        if heard.api_version and numbers(heard.api_version) < numbers(API_VERSION):
            yield Finding(
                Code.API_VERSION_OLD,
                Severity.ERROR,
                section,
                f"the service answers with API version {heard.api_version}",
                f"rekey speaks {API_VERSION}, the first that takes tokens",
                "renew it: `npx azurite@3.35.0 --skipApiVersionCheck`"
                if kind_of(account) is Kind.AZURITE
                else "find out what answers there; Azure speaks newer versions",
            )
        tested = ".".join(map(str, TESTED_AZURITE))
        if kind_of(account) is Kind.AZURITE and numbers(azurite_version(account))[:2] != TESTED_AZURITE:
            yield Finding(
                Code.AZURITE_UNTESTED,
                Severity.NOTE,
                section,
                f"this is Azurite {azurite_version(account)}",
                f"rekey is tested on {tested}; others differ in what they check and how they answer",
                f"use {tested} for rehearsals, as `rekey rehearse` does",
            )
