"""`rekey.toml`: read, checked, and turned into frozen values.

Rules kept here:

* An unknown section or key is an error that names it and what is allowed: a typing error never means
  "default".
* Relative paths are relative to the file, not to the working directory.
* `https` anywhere; `http` on the loopback addresses, and elsewhere for Azurite's published account with its
  published key, which protect nothing: an Azurite in another container. `localhost` is refused, because the
  Azure SDK takes it for another service (Cosmos DB) on most ports.
* The file holds no secret, but says in exactly one place where each one is. A SAS, a key or a connection
  string that was pasted in is refused, and values of the file are not repeated in messages, so that it is
  not echoed either.
* Without a configured rate, the service's own targets (`rekey.core.limits`) apply where `[tables]` or
  `[targets]` is https.
  Rates that follow the service (`"auto"`) begin at them, and plans reckon with them (ADR 0038).
"""

from __future__ import annotations

import base64
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from rekey.core.endpoints import COSMOS_REFUSED, endpoint_problem, is_cosmos
from rekey.core.limits import ACCOUNT_TARGET, PARTITION_TARGET, is_elsewhere, table_name_problem
from rekey.errors import ConfigurationError, reason_of
from rekey.project.keyvault import split_url
from rekey.project.prices import Prices
from rekey.project.refusals import refusal
from rekey.project.secrets_source import SecretKind, SecretSource, read_secret
from rekey.project.sections import AUTO, Bytes, Rate, Reader, Seconds, Section
from rekey.project.window import Window

AZURITE_ACCOUNT = "devstoreaccount1"
# Published in the documentation of Azurite; every installation has it, so it protects nothing.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_LOOPBACK = frozenset({"127.0.0.1", "::1"})
_OTHER_SERVICES = frozenset({"blob", "queue", "file", "dfs", "web"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that stand for a user's own: those of the template and of the documents, or in angle brackets.
_PLACEHOLDER = re.compile(r"https://(ACCOUNT|OTHER|RESTRICTED|NAME|VAULT|<[^>]*>)(?![A-Za-z0-9-])")
_PASTED_CHARACTERS = 24
# Seconds within which the service carries out a request that it received, or never does
# (docs/reference/assumptions.md).
_SERVICE_S = 30
_SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_CURRENCY_CHARACTERS = 12
_LEAST_SLICE_S = 1.0
_LEAST_LEASE_S = 2.0
S = TypeVar("S", bound="Serve")


@dataclass(frozen=True, slots=True)
class Account:
    """One storage account.

    Attributes:
        endpoint: `https://…` or, on loopback and of Azurite's account, `http://…`, without a trailing slash.
        key_env: name of the environment variable that holds its shared key, or None.
    """

    endpoint: str
    key_env: str | None = None

    @property
    def is_https(self) -> bool:
        """Tell whether a token credential may be used (OAuth is refused on http)."""
        return self.endpoint.startswith("https:")

    @property
    def is_on_loopback(self) -> bool:
        """Tell whether requests do not leave this machine."""
        return urlsplit(self.endpoint).hostname in _LOOPBACK

    @property
    def name(self) -> str:
        """Return the account's name: the path of an emulator's endpoint, else the host's first label."""
        parts = urlsplit(self.endpoint)
        return parts.path.strip("/") or (parts.hostname or "").partition(".")[0]

    def is_same_as(self, other: Account) -> bool:
        """Tell whether another endpoint is of the same account, however it is written."""
        return is_same_account(self.endpoint, other.endpoint)


@dataclass(frozen=True, slots=True)
class Sealing:
    """Where the wrapping key of sealed mappings is, and the previous one; None where none is configured."""

    key: SecretSource | None = None
    previous: SecretSource | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what runs at a time. Rates in entities a second, None for no limit."""

    concurrency: int = 32
    window_rows: int = 8192
    window_bytes: Bytes = 16 * 1024**2
    entities_per_second: Rate = None
    scans: int = 8
    partition_entities_per_second: int | None = None

    @property
    def follows(self) -> bool:
        """Whether rates follow the service."""
        return self.entities_per_second == AUTO

    @property
    def account_rate(self) -> int | None:
        """The configured number; None where there is none."""
        return None if self.entities_per_second == AUTO else self.entities_per_second

    def with_targets(self) -> Limits:
        """Return these limits with the service's documented targets where no number is given."""
        return replace(
            self,
            entities_per_second=self.account_rate or ACCOUNT_TARGET,
            partition_entities_per_second=self.partition_entities_per_second or PARTITION_TARGET,
        )


@dataclass(frozen=True, slots=True)
class Gates:
    """Times that the gates ask for, in seconds."""

    verification_max_age_s: Seconds = 24 * 3600
    retention_s: Seconds = 30 * 86400
    margin_s: Seconds = 60
    clients_timeout_s: Seconds = 120
    freeze_timeout_s: Seconds = 60
    mapping_retention_s: Seconds = 400 * 86400


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
class EvidenceKey:
    """Where the key that signs evidence is: an Ed25519 key in a PEM file, or a P-256 key in Key Vault."""

    key_file: Path | None = None
    key_vault: str | None = None


@dataclass(frozen=True, slots=True)
class Executor:
    """The executor that copies and compares for the runner.

    Attributes:
        factory: `module:callable` that returns a `concurrent.futures.Executor`; None: the runner works alone.
        tasks: how many at a time; None: as many as the executor says, or this machine has processors.
        slice_s: seconds after which a task begins nothing new: the work that a lost worker costs, and how
            long a pause or another rate takes to reach workers.
    """

    factory: str | None = None
    tasks: int | None = None
    slice_s: Seconds = 15.0


# A field that is written as a section with one of `env` and `file`.
Token: TypeAlias = Annotated[SecretSource | None, "a secret on this machine"]


@dataclass(frozen=True, slots=True)
class Serve:
    """Who may watch progress over HTTP from elsewhere, see `rekey.serve.server.Access`; None: nobody."""

    token: Token = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Follow:
    """How `apply --follow` keeps targets up to date.

    Attributes:
        share: the part of the rates in force within which everything is compared.
        every_s: seconds between two passes over what has changed.
        compare_every_s: seconds from the beginning of one comparison of everything to that of the next.
        window: when it cuts over by itself; None: when told to.
    """

    share: float = 0.1
    every_s: Seconds = 60
    compare_every_s: Seconds = 3600
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Hooks:
    """What is run when something happens to a migration.

    Attributes:
        command: program and arguments; () for none.
        timeout_s: seconds after which it is ended, and has failed.
        stalled_after_s: seconds without progress of a pass after which it has stalled.
    """

    command: tuple[str, ...] = ()
    timeout_s: Seconds = 30
    stalled_after_s: Seconds = 600


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Where a proxy listens, and how much it takes.

    Attributes:
        listen: HOST:PORT for applications.
        admin: HOST:PORT for health and metrics; further processes take the ports after it.
        name: what its clients are called in `rekey status`.
        body: the largest body of a request.
        line: the longest request line, and the longest header.
        connections: of applications, for each process.
        upstream: connections to the account that pass requests on, for each process.
        request_s: how long a request may take.
        idle_s: how long a connection may be idle, or take to send its first request.
        drain_s: for how long requests are still taken after SIGTERM.
        lease_s, longest_operation_s, freeze_wait_s: of its clients, as `rekey.client.reading.LeaseSettings`.
    """

    listen: str = "127.0.0.1:10102"
    admin: str = "127.0.0.1:9461"
    name: str = "proxy"
    body: Bytes = 4 * 1024**2
    line: Bytes = 32 * 1024
    connections: int = 2000
    upstream: int = 256
    request_s: Seconds = 60
    idle_s: Seconds = 75
    drain_s: Seconds = 5
    lease_s: Seconds = 15
    longest_operation_s: Seconds = 30
    freeze_wait_s: Seconds = 10


@dataclass(frozen=True, slots=True)
class ProxyAccess(Serve):
    """Who may use a proxy, see `rekey.proxy.access.Access`; and its certificate.

    Attributes:
        keys: where the keys are that applications sign with, by the names they have here.
        bearer_tokens: whether bearer tokens are passed on to the account.
        key_ranges: whether applications use shared access signatures with a key range. `rekey plan` warns.
        token: where the token is for which new keys are told at the admin address; None: they are not told.
    """

    keys: Mapping[str, SecretSource] = field(default_factory=dict)
    bearer_tokens: bool = False
    key_ranges: bool = False


@dataclass(frozen=True, slots=True)
class Proxy:
    """The proxy: its limits, who may use it; `[proxy.views]`, the table that a name means, and
    `[proxy.views.NAME]`, what it means for callers with the key NAME."""

    limits: ProxyLimits = field(default_factory=ProxyLimits)
    views: Mapping[str, str] = field(default_factory=dict)
    own_views: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    access: ProxyAccess = field(default_factory=ProxyAccess)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration, a field for each section. All paths are absolute."""

    path: Path
    tables: Account
    restricted: Account
    state: Path
    migrations: Path
    targets: Account | None = None
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    sealing: Sealing = field(default_factory=Sealing)
    limits: Limits = field(default_factory=Limits)
    gates: Gates = field(default_factory=Gates)
    lookup: LookupLimits = field(default_factory=LookupLimits)
    evidence: EvidenceKey = field(default_factory=EvidenceKey)
    executor: Executor = field(default_factory=Executor)
    prices: Prices = field(default_factory=Prices)
    serve: Serve = field(default_factory=Serve)
    follow: Follow = field(default_factory=Follow)
    hooks: Hooks = field(default_factory=Hooks)
    proxy: Proxy = field(default_factory=Proxy)

    @property
    def endpoints(self) -> str:
        """The endpoints of tables and restricted store, as state files and tasks record them; that of the
        targets is in the control row of a migration that has tables there."""
        return f"{self.tables.endpoint} {self.restricted.endpoint}"

    @property
    def accounts(self) -> dict[str, Account]:
        """The accounts, by the section that names each."""
        elsewhere = {} if self.targets is None else {"targets": self.targets}
        return {"tables": self.tables, **elsewhere, "restricted": self.restricted}

    def holding(self, table: str) -> tuple[str, Account]:
        """Return the section and the account of a table. Raises ConfigurationError: there is none."""
        if not is_elsewhere(table):
            return "tables", self.tables
        if self.targets is None:
            raise refusal("no-targets", table=table, config=self.path)
        return "targets", self.targets

    @property
    def rates(self) -> Limits:
        """The limits that plans reckon with: where `[tables]` or `[targets]` is https, or rates follow the
        service, with the service's own targets for rates not given."""
        is_https = self.tables.is_https or (self.targets is not None and self.targets.is_https)
        return self.limits.with_targets() if is_https or self.limits.follows else self.limits

    def warnings(self) -> list[str]:
        """Return warnings about settings that are allowed but doubtful, as text for people."""
        sources = [(f"secret `{name}`", source) for name, source in sorted(self.secrets.items())]
        sources += [(f"key `{name}`", source) for name, source in sorted(self.proxy.access.keys.items())]
        if self.evidence.key_file is not None:
            key_file = SecretSource(SecretKind.FILE, str(self.evidence.key_file))
            sources.append(("the evidence key", key_file))
        if self.sealing.key is not None:
            sources.append(("the wrapping key", self.sealing.key))
        found = []
        for what, source in sources:
            if os.name != "posix" or source.kind is not SecretKind.FILE:
                continue
            try:
                mode = stat.S_IMODE(Path(source.where).stat().st_mode)
            except OSError:
                continue  # reading it will say so, with the cure
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                problem = f"the file of {what} is open to other users (mode {mode:04o})"
                found.append(f"{problem}; `chmod 600 {source.where}` closes it")
        found += [
            f"[restricted] is the same account as [{section}]: who may read the migrated tables"
            " may also read the old keys"
            for section, account in self.accounts.items()
            if account is not self.restricted and account.is_https and self.restricted.is_same_as(account)
        ]
        found += [
            f"[{section}] endpoint is https on this machine: an Azurite without a certificate is http"
            for section, account in self.accounts.items()
            if account.is_https and urlsplit(account.endpoint).hostname in _LOOPBACK
        ]
        return found


def default_config() -> str:
    """Return the configuration that `rekey init` writes: every default, explained.

    It can be loaded unchanged, and every setting in its comments is accepted, too. It holds no secret, and
    names the file of the wrapping key that `rekey init` makes next to it.
    """
    return Path(__file__).with_name("default.toml").read_text("utf-8")


def load_config(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigurationError: absent, unreadable, not TOML, an unknown or missing key, a bad value. Names the
            key and the cure; never repeats a value.
    """
    path = Path(path).absolute()
    document = read_toml(path, absent="`rekey init` writes one; or name another with --config")
    document.allow(*(one.name for one in fields(Config) if one.name != "path"))
    config = Config(
        path=path,
        tables=(tables := _account(document.section("tables", required=True))),
        targets=_targets(document.section("targets"), tables),
        restricted=_account(document.section("restricted", required=True)),
        state=_path(document.section("state"), ".rekey/state.sqlite"),
        migrations=_path(document.section("migrations"), "migrations"),
        secrets=_secrets(document.section("secrets")),
        sealing=_sealing(document.section("sealing")),
        limits=document.section("limits").read(Limits),
        gates=document.section("gates").read(Gates),
        lookup=document.section("lookup").read(LookupLimits),
        evidence=_evidence(document.section("evidence")),
        executor=read_executor(document.section("executor")),
        prices=_prices(document.section("prices")),
        serve=_serve(document.section("serve"), Serve),
        follow=_follow(document.section("follow")),
        hooks=_hooks(document.section("hooks")),
        proxy=_proxy(document.section("proxy")),
    )
    if config.gates.margin_s < _SERVICE_S and any(one.is_https for one in config.accounts.values()):
        problem = f"is shorter than the {_SERVICE_S} s within which a request may still take effect"
        document.section("gates").fail("margin", problem, f'write at least margin = "{_SERVICE_S}s"')
    return config


def reading(
    endpoint: str, key_env: str | None, targets: tuple[str | None, str | None] = (None, None)
) -> Config:
    """Return a configuration for work that only reads tables: of one account, or with one of `targets` (its
    endpoint and the variable of its key). Raises ConfigurationError."""

    def account(endpoint: str, key_env: str | None) -> Account:
        return _account(Section(Path("the command line"), "", {"endpoint": endpoint, "key_env": key_env}))

    tables, (elsewhere, elsewhere_key) = account(endpoint, key_env), targets
    other = None if elsewhere is None else account(elsewhere, elsewhere_key)
    return Config(Path(), tables, tables, state=Path(), migrations=Path(), targets=other)


def resolve_secret(config: Config, name: str) -> bytes:
    """Return the bytes of the secret that a declaration calls `name`.

    Raises:
        SecretMissing: there is no `[secrets.NAME]`, or the secret is absent, empty or under 16 bytes.
        ConfigurationError, CredentialRefused, EndpointDown, Unavailable: see `read_secret`.
    """
    source = config.secrets.get(name)
    if source is None:
        raise refusal("no-such-secret", name=name, config=config.path)
    return read_secret(name, source)


def account_key(account: Account) -> str | None:
    """Return the account's shared key in base64, or None when a token credential is to be used.

    Raises:
        ConfigurationError: `key_env` is not set or holds no key, or an http endpoint has no key at all.
    """
    if account.key_env is None:
        if account.is_https:
            return None
        if account.name == AZURITE_ACCOUNT:
            return AZURITE_KEY
        raise refusal("http-without-key", account=account.name)
    value = os.environ.get(account.key_env, "").strip()
    if not value:
        raise refusal("key-not-set", variable=account.key_env)
    try:
        base64.b64decode(value, validate=True)
    except ValueError:
        raise refusal("no-key-in-variable", variable=account.key_env) from None
    if not account.is_https and not account.is_on_loopback and value != AZURITE_KEY:
        raise refusal("http-with-own-key", variable=account.key_env)
    return value


def read_toml(path: Path, *, absent: str) -> Section:
    """Read a file of configuration, unchecked.

    Args:
        path: the file.
        absent: what to do where there is none.

    Raises:
        ConfigurationError: absent, unreadable, not UTF-8, not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return Section(path, "", tomllib.loads(text), text)
    except FileNotFoundError:
        raise ConfigurationError(f"there is no configuration file {path}", hint=absent) from None
    except OSError as error:
        raise refusal("not-read", path=path, reason=reason_of(error)) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8", hint="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # the parser's text may quote the file; only the position is taken from it
        position = re.search(r"\(at [^)]*\)", str(error))
        said = f"{path} is not valid TOML {position.group() if position else ''}".rstrip()
        hint = "fix that line; strings stand in double quotes"
        if re.match("Cannot (declare|overwrite|mutate)", str(error)):
            said, hint = f"{said}: the same section or key stands there twice", "keep one of the two"
        raise ConfigurationError(said, hint=hint) from None


def _account(section: Section) -> Account:
    endpoint = section.text("endpoint")
    if endpoint is not None:  # before the other keys: those of another service would be called unknown
        endpoint = _endpoint(section, endpoint.strip())
    section.allow("endpoint", "key_env")
    if endpoint is None:
        section.fail("endpoint", "is missing", 'write endpoint = "https://ACCOUNT.table.core.windows.net"')
    key_env = section.text("key_env")
    if key_env is not None and not _is_variable(key_env):
        cure = "put the key into an environment variable and write that variable's name here; if a key was"
        cure += " pasted here, treat it as known to others and renew it"
        section.fail("key_env", "is not the name of an environment variable", cure)
    return Account(endpoint, key_env)


def _targets(section: Section, tables: Account) -> Account | None:
    if not section.content:
        return None
    account = _account(section)
    if account.is_same_as(tables):
        # `Users` and `Users@targets` would be one table, copied onto itself and retired.
        section.fail("endpoint", "is the account of [tables]", "name the other account, or remove [targets]")
    return account


def is_same_account(one: str, other: str) -> bool:
    """Tell whether two endpoints are of the same account, however they are written."""
    return _place(one) == _place(other)


def _place(endpoint: str) -> tuple[str, str]:
    """Return what is the same for all spellings of an account's endpoint: its host and its path."""
    parts = urlsplit(endpoint.lower())
    host = parts.netloc.removesuffix({"https": ":443", "http": ":80"}.get(parts.scheme, ""))
    name, dot, domain = host.partition(".")
    if "table." in domain:  # a private link is of the same account
        host = name + dot + domain.removeprefix("privatelink.")
    return host, parts.path.strip("/")


def _endpoint(section: Section, text: str) -> str:
    """Check an endpoint and return it without trailing slashes. Its text is never repeated in an error."""
    cure = 'write endpoint = "https://ACCOUNT.table.core.windows.net"'
    renew = "; if it was a real secret, treat it as known to others and renew it"
    marks = ("accountkey=", "endpointsprotocol=", "sharedaccesssignature=", ";")
    is_connection_string = any(mark in text.lower() for mark in marks)
    if is_cosmos(text):
        problem, other = COSMOS_REFUSED
        section.fail("endpoint", problem, other + renew * is_connection_string)
    if is_connection_string:
        section.fail("endpoint", "looks like a connection string, which holds a secret", cure + renew)
    if (placeholder := _PLACEHOLDER.match(text)) is not None:
        section.fail(
            "endpoint", f"{placeholder[1]} stands for a name", "write the name of your storage account there"
        )
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
        problem = "`localhost` is taken for another service by the Azure SDK"
        section.fail("endpoint", problem, "write 127.0.0.1 instead of localhost")
    if (refused := endpoint_problem(text)) is not None:
        section.fail("endpoint", *refused)
    if host in _LOOPBACK and not parts.path.strip("/"):
        azurite = f"http://127.0.0.1:10002/{AZURITE_ACCOUNT}"
        named = f'add its name as the path; for Azurite write endpoint = "{azurite}"'
        section.fail("endpoint", "names no account", named)
    service = host.partition(".")[2].partition(".")[0]
    if service in _OTHER_SERVICES and host.endswith(f".{service}.core.windows.net"):
        section.fail("endpoint", f"is of the {service} service; rekey works on Table Storage", cure)
    if parts.scheme == "http" and host not in _LOOPBACK and parts.path.strip("/") != AZURITE_ACCOUNT:
        problem = f"http is allowed on 127.0.0.1 and [::1], and for Azurite's account {AZURITE_ACCOUNT}, only"
        section.fail("endpoint", problem, "write https://, which encrypts")
    return text.rstrip("/")


def _path(section: Section, usual: str) -> Path:
    section.allow("path")
    return _absolute(section, section.text("path") or usual)


def _absolute(section: Section, path: str) -> Path:
    # absolute, not resolved: a link that the operator set up stays one
    return Path(os.path.normpath(section.path.parent / Path(path).expanduser()))


def _evidence(section: Section) -> EvidenceKey:
    key = section.read(EvidenceKey, _READERS)
    if key.key_file is not None and key.key_vault is not None:
        section.fail("", "has both key_file and key_vault", "keep one of them")
    return key


def _secrets(section: Section, *kinds: str) -> dict[str, SecretSource]:
    """Read sections that say where a secret is, by name; each says one of `kinds`, by default of all."""
    for name in section.content:
        if not _SECRET_NAME.fullmatch(name):
            section.fail(name, "is not a name", "use letters, digits, `_` and `-`")
        section.section(name).allow(*(kinds or SecretKind))
    return {name: _where(section.section(name), vault_holds="secret") for name in section.content}


def _sealing(section: Section) -> Sealing:
    if not section.content:
        return Sealing()
    key, previous = section.without("previous"), section.section("previous")
    before = _where(previous, vault_holds="key") if previous.content else None
    return Sealing(_where(key, vault_holds="key"), before)


def _serve(section: Section, kind: type[S]) -> S:
    served = section.read(kind, _READERS)
    if (served.certificate is None) is not (served.key is None):
        section.fail("", "has one of certificate and key", "name both PEM files")
    return served


def _token(section: Section, key: str) -> Token:
    token = section.section(key)
    token.allow("env", "file")
    return _where(token, vault_holds="secret") if token.content else None


def _follow(section: Section) -> Follow:
    follow = section.read(Follow)
    if not 0 < follow.share <= 1:
        section.fail("share", "is not a part of the whole", "write for example share = 0.1")
    if not (follow.every_s and follow.compare_every_s):
        key = "compare_every" if follow.every_s else "every"
        section.fail(key, "is no time", f'write for example {key} = "5m"')
    return follow


def _hooks(section: Section) -> Hooks:
    hooks = section.read(Hooks)
    if not (hooks.timeout_s and hooks.stalled_after_s):
        key = "stalled_after" if hooks.timeout_s else "timeout"
        section.fail(key, "is no time", f'write for example {key} = "10m"')
    return hooks


def _proxy(section: Section) -> Proxy:
    access, given = _serve(section.section("access"), ProxyAccess), section.section("views")
    own = {name: given.section(name) for name, value in given.content.items() if isinstance(value, dict)}
    for name in own:
        if name not in access.keys:
            given.fail(name, "is no key of [proxy.access.keys]", "write [proxy.views.NAME] for the key NAME")
    views, own_views = _aliases(given.without(*own)), {name: _aliases(one) for name, one in own.items()}
    limits = section.without("views", "access").read(ProxyLimits)
    if limits.lease_s < _LEAST_LEASE_S or limits.longest_operation_s < _LEAST_LEASE_S:
        section.fail("lease", "or longest_operation is too short to be kept", 'write at least "2s"')
    if limits.request_s < limits.longest_operation_s + limits.freeze_wait_s:
        cure = "give it longest_operation and freeze_wait"
        section.fail("request", "is shorter than a write may take", cure)
    return Proxy(limits, views, own_views, access)


def _aliases(section: Section) -> dict[str, str]:
    for alias in section.content:
        if table_name_problem(alias) or table_name_problem(section.text(alias) or "", qualified=True):
            section.fail(alias, "is not the name of a table", 'write for example Users = "UsersV2"')
    return dict(section.content)


def _where(section: Section, *, vault_holds: str) -> SecretSource:
    """Read where a secret or a key is. `vault_holds`: what a Key Vault URL must name, `secret` or `key`."""
    section.allow(*SecretKind)
    given = [kind for kind in SecretKind if kind in section.content]
    if len(given) != 1:
        section.fail("", "must have exactly one of env, file, key_vault", 'write for example env = "NAME"')
    [kind] = given
    where = section.text(kind) or ""
    if kind is SecretKind.ENV and not _is_variable(where):
        cure = "write the variable's name, not the secret; a secret that was pasted here is no longer one"
        section.fail("env", "is not the name of an environment variable", cure)
    if kind is SecretKind.FILE:
        where = str(_absolute(section, where))
    if kind is SecretKind.KEY_VAULT:
        if (named := _PLACEHOLDER.match(where)) is not None:
            section.fail(
                "key_vault", f"{named[1]} stands for a name", "write the name of your key vault there"
            )
        try:
            split_url(where, f"{vault_holds}s")
        except ValueError:
            cure = f'write key_vault = "https://VAULT.vault.azure.net/{vault_holds}s/NAME"'
            section.fail("key_vault", f"is not the https URL of a Key Vault {vault_holds}", cure)
    return SecretSource(kind, where)


# How fields are written that only sections of this file have.
_READERS: dict[Any, Reader] = {
    Path | None: lambda section, key: _absolute(section, section.text(key) or ""),
    Token: _token,
    Mapping[str, SecretSource]: lambda section, key: _secrets(section.section(key), "env", "file"),
    bool: Section.flag,
}


def _is_variable(text: str) -> bool:
    """Tell whether this can be a variable's name. A long text without `_` is taken for a pasted secret (hex,
    say), which a later message would echo as a name."""
    return _VARIABLE.fullmatch(text) is not None and (len(text) < _PASTED_CHARACTERS or "_" in text)


def read_executor(section: Section) -> Executor:
    """Read [executor]. Raises ConfigurationError."""
    executor = section.read(Executor)
    if executor.factory is not None and not is_factory(executor.factory):
        section.fail("factory", "does not name a callable", 'write "rekey.executors:processes", say')
    if executor.slice_s < _LEAST_SLICE_S:
        section.fail("slice", "is too short for anything to be done", 'write for example "15s"')
    return executor


def is_factory(text: str) -> bool:
    """Tell whether a text has the form `module:callable`."""
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _prices(section: Section) -> Prices:
    prices = section.read(Prices)
    currency = prices.currency or ""
    if len(currency) > _CURRENCY_CHARACTERS or not currency.isprintable():
        section.fail("currency", "is not a short name", 'write currency = "USD"')
    return prices
