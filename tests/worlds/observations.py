"""Observations as `rekey doctor` judges them: those of a sound project in Azure, and changes to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.doctor.judge import examine
from rekey.doctor.observed import (
    AccountSeen,
    ConfigurationSeen,
    Crossing,
    FileSeen,
    MigrationSeen,
    MigrationsSeen,
    Observed,
    Reading,
    ScriptSeen,
    SecretSeen,
    StateSeen,
    VersionsSeen,
    Writing,
)
from rekey.doctor.report import Finding
from rekey.project.config import AZURITE_ACCOUNT, Account
from rekey.tables.probe import ProbeResult

NOW = ticks_of("2024-06-01T12:00:00Z")
DAY = 86_400 * TICKS_PER_SECOND
STORE = ("rekeycontrol", "rekeyjournal", "rekeymap")


def file(path: str = "rekey.toml", mode: int = 0o600, **more: Any) -> FileSeen:
    """A file of the user's own."""
    return FileSeen(f"/srv/project/{path}", **{"mode": mode, "owner": "op", "group": "staff", **more})


def heard(status: int = 401, code: str = "NoAuthenticationInformation", **more: Any) -> ProbeResult:
    """An answer of Azure Storage."""
    usual = {
        "server": "Windows-Azure-Table/1.0 Microsoft-HTTPAPI/2.0",
        "api_version": "2020-12-06",
        "date": NOW,
        "sent_at": NOW,
        "received_at": NOW + TICKS_PER_SECOND // 10,
        "tls": "TLSv1.3",
        "certificate_ends": NOW + 90 * DAY,
    }
    return ProbeResult(status=status, code=code, **{**usual, **more})


def account(section: str, **more: Any) -> AccountSeen:
    """An account in Azure, opened with a token; it takes no shared keys."""
    usual = {
        "account": Account(f"https://contoso{section}.table.core.windows.net"),
        "anonymous": heard(),
        "listing": heard(200, ""),
        "made_up": heard(403, "KeyBasedAuthenticationNotPermitted"),
    }
    return AccountSeen(section, **{**usual, **more})


def keyed_account(section: str, **more: Any) -> AccountSeen:
    """An account in Azure, opened with a shared key."""
    seen = account(section, made_up=None, **more)
    return replace(seen, account=replace(seen.account, key_env="KEY"))


def azurite(section: str, version: str = "3.35.0", name: str = AZURITE_ACCOUNT) -> AccountSeen:
    """An account of an Azurite, by default the one whose key is published."""
    said = {"server": f"Azurite-Table/{version}", "tls": "", "certificate_ends": None}
    key_env = None if name == AZURITE_ACCOUNT else "KEY"
    here = Account(f"http://127.0.0.1:10002/{name}", key_env)
    return account(section, account=here, anonymous=heard(403, "AuthorizationFailure", **said), made_up=None)


def script(**more: Any) -> ScriptSeen:
    """A script."""
    return replace(ScriptSeen("0001_users", "Users"), **more)


def migration(**more: Any) -> MigrationSeen:
    """A migration under way, with two clients."""
    return replace(
        MigrationSeen("0001_users", "dual_write", 2, live=2, versions=("0.1.0",), intents=3), **more
    )


def store(**readings: Reading) -> dict[str, Reading]:
    """Tables of a restricted store, which are there but for these."""
    return {**dict.fromkeys(STORE, Reading.READ), **readings}


SOUND = Observed(
    configuration=ConfigurationSeen(
        file=file(mode=0o644),
        secrets=(SecretSeen("users", file("users.secret"), length=64, distinct=16),),
        evidence_file=file("evidence.pem"),
    ),
    tables=account("tables"),
    restricted=account("restricted"),
    versions=VersionsSeen(
        python=(3, 12, 4),
        rekey="0.1.0",
        packages={"yoyo-migrations": "9.0.0", "azure-data-tables": "12.7.0"},
        wanted=("yoyo-migrations<10,>=9", "azure-data-tables<13,>=12.6", 'ruff>=0.8; extra == "dev"'),
        sqlite="3.45.0",
    ),
    state=StateSeen(
        path="/srv/project/.rekey/state.sqlite",
        file=file(".rekey/state.sqlite"),
        siblings=(file(".rekey/state.sqlite.lock"),),
        folder=file(".rekey", mode=0o755),
        free_bytes=50 * 1024**3,
        file_system="ext4",
        schema=3,
        newest_schema=3,
    ),
    migrations=MigrationsSeen(
        folder=file("migrations", mode=0o755),
        files=(file("migrations/0001_users.py", mode=0o644),),
        scripts=(script(),),
        named_secrets=frozenset({"users"}),
    ),
    sources={"Users": Reading.READ},
    store=store(),
    stored=(migration(),),
    writing=Writing("rekeycontrol"),
    crossings={"tables": Crossing(tried=True)},
)
"""Nothing to say but what the data plane cannot show."""


def changed(part: str = "", **changes: Any) -> Observed:
    """SOUND with changes to one of its parts, or to itself."""
    if not part:
        return replace(SOUND, **changes)
    return replace(SOUND, **{part: replace(getattr(SOUND, part), **changes)})


def findings(observed: Observed, code: str) -> list[Finding]:
    """Return the findings of one code."""
    return [one for one in examine(observed).findings if one.code == code]
