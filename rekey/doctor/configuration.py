"""The configuration: accounts kept apart, keys and secrets where only their owner reads them. Pure.

Rules kept here:

* One account for both sections keeps nobody from the old keys. On Azurite it costs nothing and is a note.
* A secret that a script needs is judged with the scripts; here it is one that nobody names.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Examined, Fact, Finding
from rekey.doctor.observed import AccountSeen, ConfigurationSeen, Observed, SecretSeen
from rekey.doctor.permissions import described, doors, others_who_write
from rekey.doctor.service import Kind, kind_of

GOOD_BYTES = 32
FEW_DISTINCT = 8
"""32 hexadecimal digits drawn by chance have about 14 different ones, and practically never fewer than 8."""
_MAKE_SECRET = "openssl rand -hex 32"  # noqa: S105 - a command
_WHY_WRAPPING = "whoever has this key and reads the restricted store finds every old key"
_WHY_SECRET = "whoever has the secret can compute the id of every old key that he can guess"  # noqa: S105


def check(observed: Observed) -> Examined:
    """Judge the configuration."""
    seen = observed.configuration
    findings = [
        *_accounts_apart(observed),
        *(one for account in observed.accounts for one in _key_of(account)),
        *_config_file(seen),
        *(
            one
            for secret in seen.secrets
            for one in _secret(secret, named=secret.name in observed.migrations.named_secrets)
        ),
        *_wrapping(seen.wrapping),
        *_evidence(seen),
    ]
    return Examined("configuration", tuple(findings), (Fact("file", seen.file.path),))


def _accounts_apart(observed: Observed) -> Iterator[Finding]:
    seen = observed.configuration
    if seen.same_account:
        azurite = kind_of(observed.restricted) is Kind.AZURITE
        yield Finding(
            Code.SAME_ACCOUNT,
            Severity.NOTE if azurite else Severity.WARNING,
            "[restricted]",
            "it is the same account as [tables]",
            "whoever may read the tables of the application may also read which old key became which id",
            "an account of its own for the restricted store, which only the runner and the application's"
            " clients may open" + ("; on Azurite it does not matter" if azurite else ""),
        )
    if seen.same_key and not seen.same_account:
        azurite = observed.tables.published_key
        yield Finding(
            Code.SAME_KEY,
            Severity.NOTE if azurite else Severity.WARNING,
            "[restricted]",
            "both accounts have the same shared key",
            "whoever has the key of the application's tables opens the restricted store with it",
            "give each account a key of its own, or no key at all: tokens",
        )


def _key_of(account: AccountSeen) -> Iterator[Finding]:
    section = f"[{account.section}]"
    if account.trouble is not None:
        yield Finding(
            Code.KEY_UNUSABLE,
            Severity.ERROR,
            section,
            account.trouble.what,
            "no request can be signed; every command that reads the account fails",
            account.trouble.cure,
        )
    elif account.is_https and account.key_env is not None:
        yield Finding(
            Code.KEY_WHERE_TOKEN,
            Severity.WARNING,
            section,
            f"a shared key out of {account.key_env} is used where a token would do",
            "a shared key opens the whole account, names nobody in its logs, and bypasses every role",
            f"remove `key_env` from {section}, run `az login` or use a managed identity, and give it the role"
            " Storage Table Data Contributor",
        )
    elif account.published_key:
        yield Finding(
            Code.PUBLISHED_KEY,
            Severity.NOTE,
            section,
            "the key of this account is the one that every Azurite has",
            "it protects nothing: any process on this machine reads these tables",
            "nothing, for rehearsals on made-up rows; for an export of real rows use `rekey rehearse`, whose"
            " Azurite has random keys",
        )


def _config_file(seen: ConfigurationSeen) -> Iterator[Finding]:
    if others_who_write(seen.file):
        yield Finding(
            Code.CONFIG_WRITABLE,
            Severity.WARNING,
            "rekey.toml",
            f"others may change {seen.file.path} ({described(seen.file)})",
            "who changes an endpoint in it sends the old keys where he likes",
            "let only its owner write it",
            f"chmod go-w {seen.file.path}",
        )


def _secret(secret: SecretSeen, *, named: bool) -> Iterator[Finding]:
    about = f"[secrets.{secret.name}]"
    if secret.trouble is not None and not named:
        yield Finding(
            Code.SECRET_UNREADABLE,
            Severity.WARNING,
            about,
            secret.trouble.what,
            "no script names it today; one that does would be refused",
            secret.trouble.cure or "mend it, or remove the section",
        )
    if secret.trouble is None and secret.length < GOOD_BYTES:
        yield Finding(
            Code.SECRET_SHORT,
            Severity.NOTE,
            about,
            f"it has {secret.length} bytes; 16 is the least that is taken",
            _WHY_SECRET,
            "make the next one longer; the secret of a migration that has begun must stay",
            _MAKE_SECRET,
        )
    if secret.trouble is None and secret.distinct < FEW_DISTINCT:
        yield Finding(
            Code.SECRET_GUESSABLE,
            Severity.WARNING,
            about,
            f"it has {secret.distinct} different bytes: a pattern, not chance",
            _WHY_SECRET + "; a pattern is tried first",
            "make one by chance before the migration begins; one that has begun must keep its secret, and its"
            " ids count as guessable",
            _MAKE_SECRET,
        )
    if secret.file is not None:
        yield from doors(
            secret.file,
            about,
            why=_WHY_SECRET,
            codes=(Code.FILE_OPEN, Code.FILE_FOREIGN),
        )


def _wrapping(key: SecretSeen | None) -> Iterator[Finding]:
    if key is None:
        return
    if key.trouble is None and key.distinct < FEW_DISTINCT:
        yield Finding(
            Code.SECRET_GUESSABLE,
            Severity.WARNING,
            "[sealing]",
            f"it has {key.distinct} different bytes: a pattern, not chance",
            _WHY_WRAPPING + "; a pattern is tried first",
            "make one by chance, name this one under [sealing.previous], and run `rekey apply`",
            _MAKE_SECRET,
        )
    if key.file is not None:
        yield from doors(key.file, "[sealing]", why=_WHY_WRAPPING, codes=(Code.FILE_OPEN, Code.FILE_FOREIGN))


def _evidence(seen: ConfigurationSeen) -> Iterator[Finding]:
    if seen.evidence_trouble is not None:
        yield Finding(
            Code.EVIDENCE_KEY_UNUSABLE,
            Severity.ERROR,
            "[evidence]",
            seen.evidence_trouble.what,
            "`apply` begins nothing without the key that is to sign its checkpoints",
            seen.evidence_trouble.cure,
        )
    if not seen.evidence_configured:
        yield Finding(
            Code.EVIDENCE_UNSIGNED,
            Severity.NOTE,
            "[evidence]",
            "no key is configured: checkpoints and evidence are not signed",
            "without a signature nobody can tell afterwards that the log was not written again; `retire` asks"
            " for signed evidence",
            "make a key before the migration begins",
            "rekey evidence keygen",
        )
    if seen.evidence_file is not None:
        yield from doors(
            seen.evidence_file,
            "[evidence]",
            why="whoever has this key can sign another history",
            codes=(Code.FILE_OPEN, Code.FILE_FOREIGN),
        )
