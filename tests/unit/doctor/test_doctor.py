"""`rekey doctor` judges observations: each finding is made where it is due, and not where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement

from rekey.core.clock import TICKS_PER_SECOND
from rekey.core.severity import Severity
from rekey.doctor.judge import ahead_s, examine, is_unmet
from rekey.doctor.observe import file_system_of
from rekey.doctor.observed import Crossing, Observed, Reading, SecretSeen, TenantSeen, Writing
from rekey.doctor.report import TEXTS, listed
from rekey.errors import RekeyError
from rekey.project.entra import TenantCheck
from rekey.tables.probe import ProbeResult
from tests.asserts.documents import ROOT
from tests.fakes.issuer import entra_of
from tests.worlds.observations import (
    DAY,
    NOW,
    SOUND,
    account,
    azurite,
    changed,
    file,
    findings,
    heard,
    keyed_account,
    migration,
    script,
    store,
)

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
NO = RekeyError("it is not there", hint="put it there")
NOT_ASKED = {"listing": None, "made_up": None}


class Case(NamedTuple):
    """Observations that give a finding, of this severity; and others that come near and do not."""

    severity: Severity
    fires: Observed
    quiet: Observed = SOUND


def secret(**more: object) -> Observed:
    return changed("configuration", secrets=(replace(SOUND.configuration.secrets[0], **more),))  # type: ignore[arg-type]


def keyed(section: str, **more: object) -> Observed:
    """An account that is opened with a shared key."""
    return changed(**{section: keyed_account(section, **more)})


def scripts(**more: object) -> Observed:
    return changed("migrations", scripts=(script(**more),))


def stored(**more: object) -> Observed:
    return changed(stored=(migration(**more),))


def tenant(check: TenantCheck, **more: Any) -> Observed:
    return changed("configuration", tenant=TenantSeen(entra_of(), heard(200, "", **more), check))


CASES: dict[str, Case] = {
    # configuration
    "same-account": Case(WARNING, changed("configuration", same_account="tables")),
    "key-unusable": Case(ERROR, changed("tables", trouble=NO)),
    "key-where-token": Case(WARNING, keyed("tables"), changed(tables=azurite("tables", name="own"))),
    "same-key": Case(
        WARNING,
        changed("configuration", same_key="tables"),
        changed("configuration", same_key="tables", same_account="tables"),
    ),
    "published-key": Case(
        NOTE, changed(tables=azurite("tables")), changed(tables=azurite("tables", name="own"))
    ),
    "config-writable": Case(WARNING, changed("configuration", file=file(mode=0o664))),
    "secret-unreadable": Case(
        WARNING, changed("configuration", secrets=(SecretSeen("spare", trouble=NO),)), secret(trouble=NO)
    ),
    "secret-short": Case(NOTE, secret(length=16), secret(length=32)),
    "secret-guessable": Case(WARNING, secret(distinct=7), secret(distinct=8)),
    "file-open": Case(
        WARNING, secret(file=file("users.secret", 0o640)), secret(file=file("users.secret", 0o400))
    ),
    "file-foreign": Case(WARNING, secret(file=file("users.secret", ours=False))),
    "evidence-key-unusable": Case(ERROR, changed("configuration", evidence_trouble=NO)),
    "evidence-unsigned": Case(NOTE, changed("configuration", evidence_configured=False)),
    "signing-keys-unreachable": Case(
        ERROR, tenant(TenantCheck(failure="ClientConnectorError")), tenant(TenantCheck(4))
    ),
    "own-token-refused": Case(
        WARNING, tenant(TenantCheck(4, own="The token is of another tenant.")), tenant(TenantCheck(4, own=""))
    ),
    # accounts
    "unreachable": Case(
        ERROR, changed("tables", anonymous=ProbeResult(failure="ClientConnectorDNSError"), **NOT_ASKED)
    ),
    "certificate-refused": Case(
        ERROR,
        changed("tables", anonymous=ProbeResult(failure="CertificateRefused"), **NOT_ASKED),
        changed("tables", anonymous=ProbeResult(failure="ClientConnectorError"), **NOT_ASKED),
    ),
    "certificate-ends": Case(
        WARNING,
        changed("tables", anonymous=heard(certificate_ends=NOW + 13 * DAY)),
        changed("tables", anonymous=heard(certificate_ends=NOW + 15 * DAY)),
    ),
    "tls-old": Case(
        WARNING,
        changed("tables", anonymous=heard(tls="TLSv1.1")),
        changed("tables", anonymous=heard(tls="TLSv1.2")),
    ),
    "account-unknown": Case(ERROR, changed("tables", listing=heard(404, "ResourceNotFound"))),
    "service-unknown": Case(
        WARNING,
        changed("tables", anonymous=heard(server="nginx")),
        changed("tables", anonymous=heard(server="Microsoft-HTTPAPI/2.0", code="AuthenticationFailed")),
    ),
    "anonymous-accepted": Case(ERROR, changed("tables", anonymous=heard(200, ""))),
    "credential-refused": Case(
        ERROR,
        changed("tables", listing=ProbeResult(failure="NoToken")),
        changed("tables", listing=heard(403, "AuthorizationPermissionMismatch")),
    ),
    "shared-key-accepted": Case(
        WARNING, keyed("restricted"), keyed("restricted", listing=heard(403, "AuthenticationFailed"))
    ),
    "shared-key-unknown": Case(NOTE, changed("restricted", made_up=heard(403, "AuthenticationFailed"))),
    "roles-not-visible": Case(
        NOTE, SOUND, changed(tables=azurite("tables"), restricted=azurite("restricted"))
    ),
    "account-wide": Case(
        NOTE, SOUND, changed("tables", listing=heard(403, "AuthorizationPermissionMismatch"))
    ),
    "azurite": Case(NOTE, changed(tables=azurite("tables"))),
    # access
    "source-unreadable": Case(ERROR, changed(sources={"Users": Reading.REFUSED}), changed(sources={})),
    "source-missing": Case(
        WARNING,
        changed(sources={"Users": Reading.MISSING}),
        changed(sources={"Users": Reading.MISSING}, stored=(migration(phase="retired"),)),
    ),
    "restricted-unreadable": Case(
        ERROR, changed(store=store(rekeymap=Reading.REFUSED)), changed(store=store(rekeymap=Reading.MISSING))
    ),
    "restricted-unwritable": Case(ERROR, changed(writing=Writing("rekeycontrol", NO))),
    "writing-not-tried": Case(NOTE, changed(writing=Writing())),
    "left-behind": Case(
        ERROR,
        changed(writing=Writing("rekeycontrol", NO, left="a row")),
        changed(writing=Writing("rekeycontrol", NO)),
    ),
    "targets-missing": Case(
        ERROR,
        scripts(in_target_account=True),
        replace(scripts(in_target_account=True), targets=account("targets"), crossings={}),
    ),
    "restricted-open": Case(ERROR, changed(crossings={"tables": Crossing(tried=True, read=("rekeymap",))})),
    "same-identity": Case(NOTE, changed(crossings={"tables": Crossing(same_identity=True)})),
    # clock
    "clock-off": Case(
        WARNING,
        changed("tables", anonymous=heard(date=NOW - 40 * TICKS_PER_SECOND)),
        changed("tables", anonymous=heard(date=NOW - 20 * TICKS_PER_SECOND)),
    ),
    # versions
    "python-untested": Case(
        WARNING, changed("versions", python=(3, 15, 0)), changed("versions", python=(3, 14, 9))
    ),
    "package-outside": Case(WARNING, changed("versions", packages={"yoyo-migrations": "10.0.1"})),
    "api-version-old": Case(
        ERROR,
        changed("tables", anonymous=heard(api_version="2019-02-02")),
        changed("tables", anonymous=heard(api_version="")),
    ),
    "azurite-untested": Case(
        NOTE, changed(tables=azurite("tables", "3.37.0")), changed(tables=azurite("tables", "3.35.1"))
    ),
    # state
    "state-unusable": Case(ERROR, changed("state", trouble=NO)),
    "state-not-writable": Case(ERROR, changed("state", not_writable="/srv/project")),
    "state-open": Case(
        WARNING, changed("state", file=file("state.sqlite", 0o604)), changed("state", file=None)
    ),
    "state-foreign": Case(WARNING, changed("state", file=file("state.sqlite", ours=False))),
    "disk-low": Case(WARNING, changed("state", free_bytes=200 * 1024**2), changed("state", free_bytes=None)),
    "network-file-system": Case(
        WARNING, changed("state", file_system="nfs4"), changed("state", file_system="")
    ),
    "lock-held": Case(NOTE, changed("state", held_by="process 7")),
    "schema-older": Case(NOTE, changed("state", schema=2), changed("state", schema=0, file=None)),
    "audit-broken": Case(ERROR, changed("state", broken_at=4)),
    # migrations
    "scripts-broken": Case(ERROR, changed("migrations", trouble=NO, scripts=())),
    "no-scripts": Case(
        NOTE, changed("migrations", scripts=()), changed("migrations", trouble=NO, scripts=())
    ),
    "scripts-writable": Case(WARNING, changed("migrations", folder=file("migrations", 0o777))),
    "secret-unresolved": Case(ERROR, scripts(unresolved={"users": NO})),
    "wrapping-key-missing": Case(ERROR, scripts(unsealed=NO)),
    # restricted store
    "store-incomplete": Case(
        ERROR,
        changed(store=store(rekeymap=Reading.MISSING)),
        changed(store=store(rekeymap=Reading.MISSING), stored=(migration(phase="source"),)),
    ),
    "control-unreadable": Case(ERROR, stored(trouble=NO)),
    "client-version": Case(WARNING, stored(versions=("0.1.0", "0.2.0"))),
    "clients-silent": Case(NOTE, stored(silent=1)),
    "intents-without-clients": Case(NOTE, stored(live=0), stored(live=0, silent=1)),
    "mapping-over": Case(WARNING, stored(due=("2024-04", "2024-05"))),
    "data-key-returned": Case(ERROR, stored(returned=("2024-04",))),
}


def test_every_finding_has_a_case() -> None:
    """Those of `--live` have theirs in `tests/unit/doctor/test_live.py`."""
    assert set(CASES) == {code for code in TEXTS if not code.startswith("live-")}


@pytest.mark.parametrize("code", CASES)
def test_a_finding_is_made_where_it_is_due(code: str) -> None:
    case = CASES[code]
    found = findings(case.fires, code)
    assert found[0].severity == case.severity
    for one in found:
        assert one.about and one.seen and one.why and one.remedy


@pytest.mark.parametrize("code", CASES)
def test_a_finding_is_not_made_where_it_is_not_due(code: str) -> None:
    assert findings(CASES[code].quiet, code) == []


def test_the_runbook_explains_every_finding() -> None:
    rows = [
        line for line in (ROOT / "runbooks/doctor.md").read_text("utf-8").splitlines() if line[:3] == "| `"
    ]
    assert {code for code in TEXTS if not any(f"`{code}`" in line.split("|")[1] for line in rows)} == set()


def test_a_sound_project_has_notes_only() -> None:
    report = examine(SOUND)
    assert {one.code for one in report.findings} == {"roles-not-visible", "account-wide"}
    assert not report.fails(strict=True)


def test_an_error_fails_a_warning_only_when_strict_a_note_never() -> None:
    reports = {
        severity: examine(CASES[code].fires)
        for code, severity in (("key-unusable", ERROR), ("same-account", WARNING), ("lock-held", NOTE))
    }
    assert [reports[one].fails(strict=False) for one in (ERROR, WARNING, NOTE)] == [True, False, False]
    assert [reports[one].fails(strict=True) for one in (ERROR, WARNING, NOTE)] == [True, True, False]


# --- severities that depend ------------------------------------------------------------------------------


def test_one_account_for_both_and_one_published_key_are_notes_on_azurite() -> None:
    both = {name: azurite(name) for name in ("tables", "restricted")}
    one = replace(changed("configuration", same_account="tables"), **both)
    assert [found.severity for found in findings(one, "same-account")] == [NOTE]
    two = replace(
        changed("configuration", same_key="tables"),
        **both,
        crossings={"tables": Crossing(True, ("rekeymap",))},
    )
    assert [found.severity for found in findings(two, "same-key")] == [NOTE]
    assert [found.severity for found in findings(two, "restricted-open")] == [NOTE]


def test_a_file_that_others_may_write_is_an_error() -> None:
    [found] = findings(secret(file=file("users.secret", 0o666)), "file-open")
    assert found.severity is ERROR
    assert "read by group staff and everybody and written by group staff and everybody" in found.seen
    assert found.command == "chmod 600 /srv/project/users.secret"


def test_a_file_without_a_mode_is_not_judged() -> None:
    nothing = file("users.secret", mode=None)  # type: ignore[arg-type]
    assert findings(secret(file=nothing), "file-open") == []
    assert nothing.writers == []


def test_a_disk_that_is_nearly_full_is_an_error() -> None:
    [found] = findings(changed("state", free_bytes=50 * 1024**2), "disk-low")
    assert found.severity is ERROR


def test_a_key_that_is_off_is_known_only_when_the_service_says_so() -> None:
    """A service may look at the signature first: "authentication failed" says neither on nor off."""
    assert findings(SOUND, "shared-key-unknown") == []
    assert "shared keys are switched off" in examine(SOUND).as_text()
    assert findings(changed("tables", made_up=heard(403, "AuthenticationFailed")), "shared-key-unknown")
    assert findings(changed("tables", made_up=ProbeResult(failure="TimeoutError")), "shared-key-unknown")


@pytest.mark.parametrize(
    ("heard_of", "refused"),
    [
        (heard(200, ""), False),
        (heard(403, "AuthorizationPermissionMismatch"), False),
        (heard(403, "AuthorizationFailure"), True),
        (heard(401, "InvalidAuthenticationInfo"), True),
        (ProbeResult(failure="NoToken"), True),
    ],
)
def test_a_token_that_may_not_list_tables_is_not_refused(heard_of: ProbeResult, refused: bool) -> None:
    assert bool(findings(changed("restricted", listing=heard_of), "credential-refused")) is refused


def test_a_key_is_refused_by_any_403_and_told_when_keys_are_off() -> None:
    refused = keyed("tables", listing=heard(403, "KeyBasedAuthenticationNotPermitted"))
    [found] = findings(refused, "credential-refused")
    assert "use a token" in found.remedy


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_service_that_only_fails_counts_as_not_there(status: int) -> None:
    [found] = findings(changed("tables", listing=heard(status, "ServerBusy")), "unreachable")
    assert str(status) in found.seen


# --- clock, versions, file systems ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("date", "sent", "received", "expected"),
    [
        (100, 100.4, 100.5, 0.0),  # within the second that the service tells
        (100, 95.0, 130.0, 0.0),  # an answer that took long says little
        (100, 141.0, 141.5, 40.0),  # ahead: sent after the service's second was over
        (100, 58.0, 60.0, -40.0),  # behind: received before it began
    ],
)
def test_clock_skew_uses_least_difference(date: float, sent: float, received: float, expected: float) -> None:
    """The service tells whole seconds, and an answer takes time."""
    ticks = [round(one * TICKS_PER_SECOND) for one in (date, sent, received)]
    said = heard(date=ticks[0], sent_at=ticks[1], received_at=ticks[2])
    assert ahead_s(said) == pytest.approx(expected)


def test_ten_minutes_are_an_error_because_signatures_are_refused_soon() -> None:
    [found] = findings(changed("tables", anonymous=heard(date=NOW + 700 * TICKS_PER_SECOND)), "clock-off")
    assert found.severity is ERROR
    assert "behind" in found.seen


def test_the_clock_is_also_compared_with_that_of_who_issues_tokens() -> None:
    [off] = findings(tenant(TenantCheck(4), date=NOW + 45 * TICKS_PER_SECOND), "clock-off")
    assert (off.about, off.severity) == ("[proxy.access.entra]", WARNING)


def test_without_a_date_nothing_is_said_of_the_clock() -> None:
    assert ahead_s(heard(date=None)) is None
    assert ahead_s(ProbeResult(failure="TimeoutError")) is None


@pytest.mark.parametrize(
    ("requirement", "outside"),
    [
        ("yoyo-migrations<10,>=9", False),
        ("yoyo-migrations<9,>=8", True),
        ("yoyo-migrations>=9.1", True),
        ("yoyo-migrations==9.0", False),
        ("yoyo-migrations!=9.0.0", True),
        ("yoyo-migrations<=8.9", True),
        ("yoyo-migrations>8", False),
        ("yoyo-migrations", False),
        ("not-installed>=1", False),
        ('yoyo-migrations>=10; extra == "dev"', False),
    ],
)
def test_packages_are_compared_with_the_requirements(requirement: str, outside: bool) -> None:
    assert is_unmet(Requirement(requirement), {"yoyo-migrations": "9.0.0"}) is outside


def test_versions_are_compared_as_numbers() -> None:
    wanted = Requirement("azure-data-tables<13,>=12.9.3")
    assert not is_unmet(wanted, {"azure-data-tables": "12.10.0b1"})
    assert is_unmet(wanted, {"azure-data-tables": "12.9.0"})
    assert is_unmet(wanted, {"azure-data-tables": "dev"})


def test_the_file_system_is_that_of_the_longest_mount_above_a_path(tmp_path: Path) -> None:
    """Fields as in proc(5): the fifth is the mount point, the type follows the dash; spaces are escaped."""
    place = tmp_path / "state of mine"
    place.mkdir()
    mounts = "\n".join(
        [
            "22 1 0:21 / / rw - ext4 /dev/root rw",
            f"23 22 0:22 / {tmp_path.resolve()} rw shared:1 - xfs /dev/data rw",
            f"24 23 0:23 / {tmp_path.resolve()}/state\\040of\\040mine rw - nfs4 server:/x rw",
            f"25 23 0:24 / {tmp_path.resolve()}/state rw - cifs //server/x rw",
            "broken line",
        ]
    )
    assert file_system_of(place, mounts) == "nfs4"
    assert file_system_of(tmp_path, mounts) == "xfs"
    assert file_system_of(Path("/"), mounts) == "ext4"
    assert file_system_of(place, "") == ""


# --- what is printed --------------------------------------------------------------------------------------


def test_text_has_at_most_100_columns_and_whole_commands() -> None:
    for case in CASES.values():
        report = examine(case.fires)
        commands = {one.command for one in report.findings}
        lines = report.as_text().splitlines()
        assert [line for line in lines if len(line) > 100 and line.strip() not in commands] == []
        assert commands - {""} <= {line.strip() for line in lines}


def test_errors_stand_before_notes_and_the_last_line_counts() -> None:
    text = examine(changed("state", held_by="process 7", broken_at=4)).as_text()
    assert text.index("audit-broken") < text.index("lock-held")
    assert text.rstrip().splitlines()[-1] == "1 error, 0 warnings, 4 notes"


def test_json_holds_every_finding_with_its_family() -> None:
    document = examine(changed("state", broken_at=4)).as_json()
    assert document["counts"] == {"errors": 1, "warnings": 0, "notes": 3}
    [broken] = [one for one in document["findings"] if one["code"] == "audit-broken"]
    assert (broken["family"], broken["severity"]) == ("state", "error")
    assert {"family": "migrations", "about": "scripts", "seen": "0001_users"} in document["facts"]


def test_names_are_listed_as_people_do() -> None:
    assert [listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
