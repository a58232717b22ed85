"""`rekey.toml`: read, checked, and turned into frozen values.

Rules kept here:

* An unknown section or key is an error that names it and what is allowed: a typing error never means
  "default".
* Relative paths are relative to the file, not to the working directory.
* `https` anywhere; `http` on the loopback addresses only. `localhost` is refused, because the Azure SDK takes
  it for another service (Cosmos DB) on most ports.
* The file holds no secret. A SAS, a key or a connection string that was pasted in is refused, and values of
  the file are not repeated in messages, so that it is not echoed either.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rekey.errors import ConfigurationError, SecretMissing
from rekey.project import secrets_source
from rekey.project.bounds import Gates, Limits
from rekey.project.prices import Prices, prices_of
from rekey.project.secret_sections import Sealing, is_variable, read_sealing, read_secrets
from rekey.project.secrets_source import SecretKind, SecretSource
from rekey.project.sections import Section
from rekey.project.settings import Executor, read_executor

DEFAULT_PATH = Path("rekey.toml")

AZURITE_ACCOUNT = "devstoreaccount1"
# Published in the documentation of Azurite; every installation has it, so it protects nothing.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_LOOPBACK = frozenset({"127.0.0.1", "::1"})
_SECTIONS = (
    *("tables", "restricted", "state", "migrations", "secrets", "sealing", "limits", "gates", "lookup"),
    *("evidence", "executor", "prices"),
)


@dataclass(frozen=True, slots=True)
class Account:
    """One storage account.

    Attributes:
        endpoint: `https://…` or, on loopback only, `http://…`, without a trailing slash.
        key_env: name of the environment variable that holds its shared key, or None.
    """

    endpoint: str
    key_env: str | None = None

    @property
    def is_https(self) -> bool:
        """Tell whether a token credential may be used (OAuth is refused on http)."""
        return self.endpoint.startswith("https:")

    @property
    def name(self) -> str:
        """Return the account's name: the path of a loopback endpoint, else the host's first label."""
        parts = urlsplit(self.endpoint)
        return parts.path.strip("/") or (parts.hostname or "").partition(".")[0]

    def is_same_as(self, other: Account) -> bool:
        """Tell whether another endpoint is of the same account, however it is written."""
        ours, theirs = urlsplit(self.endpoint.lower()), urlsplit(other.endpoint.lower())
        return (ours.netloc, ours.path.strip("/")) == (theirs.netloc, theirs.path.strip("/"))


@dataclass(frozen=True, slots=True)
class EvidenceKey:
    """Where the key is that signs evidence: an Ed25519 key in a PEM file, or a P-256 key in Key Vault."""

    key_file: Path | None = None
    key_vault: str | None = None


@dataclass(frozen=True, slots=True)
class LookupLimits:
    """How much may be looked up.

    Attributes:
        per_minute: look-ups in a minute, of all processes that share the state file.
        bulk_keys: keys that one file may ask for.
    """

    per_minute: int = 20
    bulk_keys: int = 1000


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration. All paths are absolute."""

    path: Path
    tables: Account
    restricted: Account
    state: Path
    migrations: Path
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    gates: Gates = field(default_factory=Gates)
    evidence: EvidenceKey = field(default_factory=EvidenceKey)
    sealing: Sealing = field(default_factory=Sealing)
    lookup: LookupLimits = field(default_factory=LookupLimits)
    executor: Executor = field(default_factory=Executor)

    @property
    def endpoints(self) -> str:
        """Which accounts these are, as state files and tasks record it."""
        return f"{self.tables.endpoint} {self.restricted.endpoint}"

    prices: Prices = field(default_factory=Prices)

    @property
    def rates(self) -> Limits:
        """The limits, with the service's own targets where none are given and it is the service."""
        return self.limits.with_targets() if self.tables.is_https else self.limits

    def warnings(self) -> list[str]:
        """Return what is doubtful though allowed, for people to read."""
        found = [
            text
            for name, source in sorted(self.secrets.items())
            for text in secrets_source.warnings_for(name, source)
        ]
        if self.evidence.key_file is not None:
            found += secrets_source.warnings_for_file("the evidence key", self.evidence.key_file)
        if self.sealing.key is not None and self.sealing.key.kind is SecretKind.FILE:
            found += secrets_source.warnings_for_file("the wrapping key", Path(self.sealing.key.where))
        if self.restricted.is_https and self.restricted.is_same_as(self.tables):
            found.append(
                "[restricted] is the same account as [tables]: whoever may read the migrated tables"
                " may also read the old keys"
            )
        return found


def load_config(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigurationError: absent, unreadable, not TOML, an unknown or missing key, a bad value. Names the
            key and the cure; never repeats a value.
    """
    path = Path(path).absolute()
    document = Section(path, "", _read(path))
    document.allow(*_SECTIONS)
    limits, gates, lookup = (document.section(name) for name in ("limits", "gates", "lookup"))
    lookup.allow("per_minute", "bulk_keys")
    limits.allow(*(one.name for one in fields(Limits)))
    gates.allow(
        "verification_max_age",
        "retention",
        "mapping_retention",
        "margin",
        "clients_timeout",
        "freeze_timeout",
    )
    bounds, usual, few = Limits(), Gates(), LookupLimits()
    return Config(
        path=path,
        tables=_account(document.section("tables", required=True)),
        restricted=_account(document.section("restricted", required=True)),
        state=_path(document.section("state"), ".rekey/state.sqlite"),
        migrations=_path(document.section("migrations"), "migrations"),
        secrets=read_secrets(document.section("secrets")),
        limits=Limits(
            concurrency=limits.count("concurrency") or bounds.concurrency,
            scans=limits.count("scans") or bounds.scans,
            window_rows=limits.count("window_rows") or bounds.window_rows,
            window_bytes=limits.size("window_bytes", bounds.window_bytes),
            entities_per_second=limits.count("entities_per_second"),
            partition_entities_per_second=limits.count("partition_entities_per_second"),
        ),
        gates=Gates(
            verification_max_age_s=gates.duration("verification_max_age", usual.verification_max_age_s),
            retention_s=gates.duration("retention", usual.retention_s),
            margin_s=gates.duration("margin", usual.margin_s),
            clients_timeout_s=gates.duration("clients_timeout", usual.clients_timeout_s),
            freeze_timeout_s=gates.duration("freeze_timeout", usual.freeze_timeout_s),
            mapping_retention_s=gates.duration("mapping_retention", usual.mapping_retention_s),
        ),
        evidence=_evidence(document.section("evidence")),
        sealing=read_sealing(document),
        lookup=LookupLimits(
            lookup.count("per_minute") or few.per_minute,
            lookup.count("bulk_keys") or few.bulk_keys,
        ),
        executor=read_executor(document.section("executor")),
        prices=prices_of(document.section("prices")),
    )


def reading(endpoint: str, key_env: str | None) -> Config:
    """Return a configuration that only tables can be read with. Raises ConfigurationError."""
    said = {"endpoint": endpoint, "key_env": key_env}
    account = _account(Section(Path("the command line"), "", said))
    return Config(Path(), account, account, state=Path(), migrations=Path())


def resolve_secret(config: Config, name: str, *, environ: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of the secret that a declaration calls `name`.

    Raises:
        SecretMissing: there is no `[secrets.NAME]`, or the secret is absent, empty or under 16 bytes.
        ConfigurationError, CredentialRefused, EndpointDown, Unavailable: see `secrets_source.read_secret`.
    """
    source = config.secrets.get(name)
    if source is None:
        raise SecretMissing(
            f"secret `{name}` is not configured",
            hint=f"add a section [secrets.{name}] with env, file or key_vault to {config.path}",
        )
    return secrets_source.read_secret(name, source, environ=environ)


def account_key(account: Account, *, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the account's shared key in base64, or None when a token credential is to be used.

    Raises:
        ConfigurationError: `key_env` is not set or holds no key, or an http endpoint has no key at all.
    """
    if account.key_env is None:
        if account.is_https:
            return None
        if account.name == AZURITE_ACCOUNT:
            return AZURITE_KEY
        raise ConfigurationError(
            f"the http endpoint of account {account.name} has no key",
            hint="name the environment variable that holds it: `key_env`; tokens are refused on http",
        )
    value = (os.environ if environ is None else environ).get(account.key_env, "").strip()
    if not value:
        raise ConfigurationError(
            f"the environment variable {account.key_env} (key_env) is not set or empty",
            hint="put the account's shared key there, or remove `key_env` to use your own identity",
        )
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(
            f"the environment variable {account.key_env} (key_env) does not hold a shared key",
            hint="it must be the key alone, in base64; not a connection string, not a SAS",
        ) from None
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no configuration file {path}",
            hint="`rekey init` writes one; or name another with --config",
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"the configuration file {path} cannot be read ({type(error).__name__})",
            hint="make it a file that this user can read, or name another with --config",
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8", hint="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # the parser's text may quote the file; only the position is taken from it
        position = re.search(r"\(at [^)]*\)", str(error))
        raise ConfigurationError(
            f"{path} is not valid TOML {position.group() if position else ''}".rstrip(),
            hint="mend that line; strings stand in double quotes",
        ) from None


def _account(section: Section) -> Account:
    section.allow("endpoint", "key_env")
    endpoint = section.text("endpoint")
    if endpoint is None:
        section.fail("endpoint", "is missing", 'write endpoint = "https://ACCOUNT.table.core.windows.net"')
    key_env = section.text("key_env")
    if key_env is not None and not is_variable(key_env):
        section.fail(
            "key_env",
            "is not the name of an environment variable",
            "put the key into an environment variable and write that variable's name here; if a key was"
            " pasted here, treat it as known to others and renew it",
        )
    return Account(_endpoint(section, endpoint.strip()), key_env)


def _endpoint(section: Section, text: str) -> str:
    """Check an endpoint and return it without trailing slashes. Its text is never repeated in an error."""
    cure = 'write endpoint = "https://ACCOUNT.table.core.windows.net"'
    renew = "; if it was a real secret, treat it as known to others and renew it"
    if any(
        mark in text.lower() for mark in ("accountkey=", "endpointsprotocol=", "sharedaccesssignature=", ";")
    ):
        section.fail("endpoint", "looks like a connection string, which holds a secret", cure + renew)
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname, parts.port
    except ValueError:
        section.fail("endpoint", "is not a URL", cure)
    if parts.query or parts.fragment or "?" in text or "#" in text or parts.username or parts.password:
        section.fail("endpoint", "holds a SAS, a query or a user", cure + ", without `?...`" + renew)
    if parts.scheme not in ("http", "https") or not host:
        section.fail("endpoint", "is not an https URL", cure)
    if host == "localhost" or host.endswith(".localhost"):
        section.fail(
            "endpoint",
            "`localhost` is taken for another service by the Azure SDK",
            "write 127.0.0.1 instead of localhost",
        )
    if parts.scheme == "http" and host not in _LOOPBACK:
        section.fail(
            "endpoint", "http is allowed on 127.0.0.1 and [::1] only", "write https://, which encrypts"
        )
    return text.rstrip("/")


def _path(section: Section, usual: str) -> Path:
    section.allow("path")
    # absolute, not resolved: a link that the operator set up stays one
    return Path(os.path.normpath(section.path.parent / Path(section.text("path") or usual).expanduser()))


def _evidence(section: Section) -> EvidenceKey:
    section.allow("key_file", "key_vault")
    file, vault = section.text("key_file"), section.text("key_vault")
    if file is not None and vault is not None:
        section.fail("", "has both key_file and key_vault", "keep one of them")
    path = None if file is None else section.path.parent / Path(file).expanduser()
    return EvidenceKey(None if path is None else Path(os.path.normpath(path)), vault)
