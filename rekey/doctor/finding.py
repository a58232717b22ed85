"""What a check returns: findings, each with its reason and its remedy, and facts that are simply told. Pure.

Rules kept here:

* A code is stable, for scripts and for the runbook; every code is listed here and explained there.
* A finding says what was seen, why it matters and what to do. None of it holds a key, a secret, a SAS or a
  connection string: what was observed holds none (`rekey.doctor.observed`).
* What needs no action is a fact, not a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias

from rekey.core.severity import Severity
from rekey.doctor.observed import Trouble


class Code(StrEnum):
    """All findings that there are."""

    # configuration
    SAME_ACCOUNT = "same-account"
    KEY_UNUSABLE = "key-unusable"
    KEY_WHERE_TOKEN = "key-where-token"  # noqa: S105 - a code
    SAME_KEY = "same-key"
    PUBLISHED_KEY = "published-key"
    CONFIG_WRITABLE = "config-writable"
    SECRET_UNREADABLE = "secret-unreadable"  # noqa: S105 - a code
    SECRET_SHORT = "secret-short"  # noqa: S105 - a code
    SECRET_GUESSABLE = "secret-guessable"  # noqa: S105 - a code
    FILE_OPEN = "file-open"
    FILE_FOREIGN = "file-foreign"
    EVIDENCE_KEY_UNUSABLE = "evidence-key-unusable"
    EVIDENCE_UNSIGNED = "evidence-unsigned"
    # accounts
    UNREACHABLE = "unreachable"
    CERTIFICATE_REFUSED = "certificate-refused"
    CERTIFICATE_ENDS = "certificate-ends"
    TLS_OLD = "tls-old"
    ACCOUNT_UNKNOWN = "account-unknown"
    SERVICE_UNKNOWN = "service-unknown"
    ANONYMOUS_ACCEPTED = "anonymous-accepted"
    CREDENTIAL_REFUSED = "credential-refused"
    SHARED_KEY_ACCEPTED = "shared-key-accepted"
    SHARED_KEY_UNKNOWN = "shared-key-unknown"
    ROLES_NOT_VISIBLE = "roles-not-visible"
    ACCOUNT_WIDE = "account-wide"
    AZURITE = "azurite"
    COSMOS = "cosmos"
    # access
    SOURCE_UNREADABLE = "source-unreadable"
    SOURCE_MISSING = "source-missing"
    RESTRICTED_UNREADABLE = "restricted-unreadable"
    RESTRICTED_UNWRITABLE = "restricted-unwritable"
    WRITING_NOT_TRIED = "writing-not-tried"
    LEFT_BEHIND = "left-behind"
    RESTRICTED_OPEN = "restricted-open"
    SAME_IDENTITY = "same-identity"
    # clock
    CLOCK_OFF = "clock-off"
    # versions
    PYTHON_UNTESTED = "python-untested"
    PACKAGE_OUTSIDE = "package-outside"
    API_VERSION_OLD = "api-version-old"
    AZURITE_UNTESTED = "azurite-untested"
    # state
    STATE_UNUSABLE = "state-unusable"
    STATE_OPEN = "state-open"
    STATE_FOREIGN = "state-foreign"
    DISK_LOW = "disk-low"
    NETWORK_FILE_SYSTEM = "network-file-system"
    LOCK_HELD = "lock-held"
    SCHEMA_OLDER = "schema-older"
    AUDIT_BROKEN = "audit-broken"
    # migrations
    SCRIPTS_BROKEN = "scripts-broken"
    NO_SCRIPTS = "no-scripts"
    SCRIPTS_WRITABLE = "scripts-writable"
    SECRET_UNRESOLVED = "secret-unresolved"  # noqa: S105 - a code
    WRAPPING_KEY_MISSING = "wrapping-key-missing"
    # restricted store
    STORE_INCOMPLETE = "store-incomplete"
    CONTROL_UNREADABLE = "control-unreadable"
    CLIENT_VERSION = "client-version"
    CLIENTS_SILENT = "clients-silent"
    INTENTS_WITHOUT_CLIENTS = "intents-without-clients"
    MAPPING_OVER = "mapping-over"
    DATA_KEY_RETURNED = "data-key-returned"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the operator should know or do.

    Attributes:
        severity: an error will stop a migration or has opened a door; a warning is a risk; a note informs.
        code: which it is.
        about: what it is about: a section of the configuration, a file, a script.
        seen: what was observed.
        why: why it matters.
        remedy: what to do.
        command: a command that does it or shows more, "" when there is none. Stands on a line of its own.
    """

    severity: Severity
    code: Code
    about: str
    seen: str
    why: str
    remedy: str
    command: str = ""


error = partial(Finding, Severity.ERROR)
warning = partial(Finding, Severity.WARNING)
note = partial(Finding, Severity.NOTE)


def unusable(code: Code, about: str, trouble: Trouble | None, why: str) -> Iterator[Finding]:
    """Yield the error for what cannot be used, with the cure that came with it; nothing without a trouble."""
    if trouble is not None:
        yield error(code, about, trouble.what, why, trouble.cure)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was observed and is as it should be."""

    about: str
    seen: str


Told: TypeAlias = Finding | Fact


@dataclass(frozen=True, slots=True)
class Examined:
    """What the checks of one family found."""

    family: str
    findings: tuple[Finding, ...]
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found, by family."""

    examined: tuple[Examined, ...]

    @property
    def findings(self) -> list[Finding]:
        """All findings, in the order of the families."""
        return [finding for one in self.examined for finding in one.findings]

    def count(self, severity: Severity) -> int:
        """Return how many findings are of a severity."""
        return Counter(finding.severity for finding in self.findings)[severity]

    def fails(self, *, strict: bool) -> bool:
        """Tell whether there is an error; with `strict`, whether there is an error or a warning."""
        counted = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
        return any(self.count(severity) for severity in counted)

    def as_json(self) -> dict[str, Any]:
        """Return the report as `--json` prints it."""
        return {
            "counts": {f"{severity}s": self.count(severity) for severity in Severity},
            "findings": [
                {"family": one.family, "code": str(finding.code), **asdict(finding)}
                for one in self.examined
                for finding in one.findings
            ],
            "facts": [{"family": one.family, **asdict(fact)} for one in self.examined for fact in one.facts],
        }


def listed(names: Sequence[str]) -> str:
    """Return names as people list them: `a, b and c`."""
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
