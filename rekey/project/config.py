"""Reads and checks `rekey.toml`. Unknown sections and keys are errors, so that a typo never means "default";
relative paths are relative to the file. The file holds no secret but says where each one is, and messages
never repeat its values, in case a secret was pasted in."""

from __future__ import annotations

import base64
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from rekey.core.endpoints import COSMOS_REFUSED, endpoint_problem, is_cosmos
from rekey.core.limits import ACCOUNT_TARGET, PARTITION_TARGET, is_in_target_account, table_name_problem
from rekey.errors import ConfigurationError, reason_of
from rekey.project.connection_string import ConnectionString
from rekey.project.entra import Entra, read_entra
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
# Placeholders of the template and the documents, or anything in angle brackets.
_PLACEHOLDER = re.compile(r"https://(ACCOUNT|OTHER|RESTRICTED|NAME|VAULT|<[^>]*>)(?![A-Za-z0-9-])")
_PASTED_CHARACTERS = 24
# Seconds within which the service applies a request that it has received, or never
# (docs/reference/assumptions.md).
_SERVICE_S = 30
_SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_CURRENCY_CHARACTERS = 12
# How old a full verification may be at cutover, at least, where the project does not say.
LEAST_MAX_AGE_S = 24 * 3600.0
_LEAST_SLICE_S = 1.0
_LEAST_LEASE_S = 2.0
S = TypeVar("S", bound="Serve")


@dataclass(frozen=True, slots=True)
class Account:
    """A storage account."""

    # `https://…` or, on loopback and for Azurite's account, `http://…`, without a trailing slash.
    endpoint: str
    # Name of the environment variable that holds its shared key, or None.
    key_env: str | None = None

    @property
    def is_https(self) -> bool:
        """Whether a token credential may be used (OAuth is refused on http)."""
        return self.endpoint.startswith("https:")

    @property
    def name(self) -> str:
        """The account's name: the path of an emulator's endpoint, else the host's first label."""
        parts = urlsplit(self.endpoint)
        return parts.path.strip("/") or (parts.hostname or "").partition(".")[0]

    def is_same_as(self, other: Account) -> bool:
        """Tell whether another endpoint is of the same account, in whatever spelling."""
        return is_same_account(self.endpoint, other.endpoint)


@dataclass(frozen=True, slots=True)
class Sealing:
    """Where the wrapping key of sealed mappings and the previous one are; None if not configured."""

    key: SecretSource | None = None
    previous: SecretSource | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on concurrency and memory. Rates in entities per second, None for no limit."""

    concurrency: int = 32
    window_rows: int = 8192
    window_bytes: Bytes = 16 * 1024**2
    entities_per_second: Rate = None
    scans: int = 8
    partition_entities_per_second: int | None = None

    @property
    def follows(self) -> bool:
        """Whether the rate limit is adaptive."""
        return self.entities_per_second == AUTO

    @property
    def account_rate(self) -> int | None:
        """The configured number, None without one."""
        return None if self.entities_per_second == AUTO else self.entities_per_second

    def with_targets(self) -> Limits:
        """Return these limits with the service's documented targets where no number is given."""
        return replace(
            self,
            entities_per_second=self.account_rate or ACCOUNT_TARGET,
            partition_entities_per_second=self.partition_entities_per_second or PARTITION_TARGET,
        )


class RowCheck(StrEnum):
    """Which rows `apply` tries before the first write."""

    # All of them while the temporary files that takes fit, else a sample.
    AUTO = "auto"
    FULL = "full"
    SAMPLE = "sample"


@dataclass(frozen=True, slots=True)
class Planning:
    """How `apply` tries rows before the first write."""

    row_check: RowCheck = RowCheck.AUTO
    # Most bytes of temporary files that `AUTO` takes.
    row_check_disk: Bytes = 20 * 1024**3


@dataclass(frozen=True, slots=True)
class Gates:
    """Times that the gates use, in seconds."""

    # None: `max_age_s` follows what the verification took.
    verification_max_age_s: Seconds | None = None
    retention_s: Seconds = 30 * 86400
    margin_s: Seconds = 60
    clients_timeout_s: Seconds = 120
    freeze_timeout_s: Seconds = 60
    mapping_retention_s: Seconds = 400 * 86400

    def max_age_s(self, took_s: float) -> float:
        """Return until how many seconds after its first row was read a full verification that took `took_s`
        opens the gate of cutover."""
        if self.verification_max_age_s is not None:
            return self.verification_max_age_s
        return max(LEAST_MAX_AGE_S, 2 * took_s)


@dataclass(frozen=True, slots=True)
class LookupLimits:
    """Limits of look-ups."""

    per_minute: int = 20  # look-ups per minute, of all processes that share the state file
    bulk_keys: int = 1000  # keys in one file


@dataclass(frozen=True, slots=True)
class EvidenceKey:
    """Where the key that signs evidence is: an Ed25519 key in a PEM file, or a P-256 key in Key Vault."""

    key_file: Path | None = None
    key_vault: str | None = None


@dataclass(frozen=True, slots=True)
class Executor:
    """The executor that copies and compares for the runner."""

    # `module:callable` that returns a `concurrent.futures.Executor`; None: the runner works alone.
    factory: str | None = None
    # Concurrent tasks; None: as many as the executor says, or this machine's processors.
    tasks: int | None = None
    # Seconds after which a task starts nothing new: the work lost with a worker, and the delay until a pause
    # or another rate reaches workers.
    slice_s: Seconds = 15.0


# A field written as a section with `env` or `file`.
Token: TypeAlias = Annotated[SecretSource | None, "a secret on this machine"]


@dataclass(frozen=True, slots=True)
class Serve:
    """Who may watch progress over HTTP from other machines, see `rekey.serve.server.Access`; None: nobody."""

    token: Token = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Follow:
    """How `apply --follow` keeps targets up to date."""

    share: float = 0.1  # the fraction of the rate limits used for full comparisons
    every_s: Seconds = 60  # seconds between passes over changed rows
    compare_every_s: Seconds = 3600  # seconds from the start of one full comparison to the next
    window: Window | None = None  # when it cuts over by itself; None: only on request


@dataclass(frozen=True, slots=True)
class Hooks:
    """The command to run on events of a migration."""

    command: tuple[str, ...] = ()  # program and arguments; () for none
    timeout_s: Seconds = 30  # seconds after which it is killed and counts as failed
    stalled_after_s: Seconds = 600  # seconds without progress after which a pass counts as stalled


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Where a proxy listens, and its limits."""

    # HOST:PORT for applications.
    listen: str = "127.0.0.1:10102"
    # HOST:PORT for health and metrics; further processes use the ports after it.
    admin: str = "127.0.0.1:9461"
    # Its clients' name in `rekey status`.
    name: str = "proxy"
    # Largest request body, in bytes.
    body: Bytes = 4 * 1024**2
    # Longest request line and longest header, in bytes.
    line: Bytes = 32 * 1024
    # Connections of applications, per process.
    connections: int = 2000
    # Connections to the account for forwarded requests, per process.
    upstream: int = 256
    # Timeout of a request.
    request_s: Seconds = 60
    # How long a connection may be idle, or take to send its first request.
    idle_s: Seconds = 75
    # How long requests are still accepted after SIGTERM.
    drain_s: Seconds = 5
    # Of its clients, as in `rekey.client.reading.LeaseSettings`.
    lease_s: Seconds = 15
    longest_operation_s: Seconds = 30
    freeze_wait_s: Seconds = 10


@dataclass(frozen=True, slots=True)
class ProxyAccess(Serve):
    """Who may use a proxy, see `rekey.proxy.access.Access`; and its certificate.

    Attributes:
        token: where the token is that protects new keys at the admin address; None: they are not served.
    """

    # Where the keys are that applications sign with, by their names here.
    keys: Mapping[str, SecretSource] = field(default_factory=dict)
    # Whether bearer tokens are forwarded to the account.
    bearer_tokens: bool = False
    # Whether applications use shared access signatures with a key range; `rekey plan` warns.
    key_ranges: bool = False
    # Whose tokens are verified here; None: nobody's.
    entra: Entra | None = None


@dataclass(frozen=True, slots=True)
class Proxy:
    """The proxy: its limits and access; `[proxy.views]`, the table that a name means, and
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
    plan: Planning = field(default_factory=Planning)
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
        """The endpoints of tables and restricted store, as state files and tasks record them. The target
        account's is in the control row of a migration that uses it."""
        return f"{self.tables.endpoint} {self.restricted.endpoint}"

    @property
    def accounts(self) -> dict[str, Account]:
        """The accounts, by the section that names each."""
        target_account = {} if self.targets is None else {"targets": self.targets}
        return {"tables": self.tables, **target_account, "restricted": self.restricted}

    def holding(self, table: str) -> tuple[str, Account]:
        """Return the section and account of a table. Raises ConfigurationError when there is none."""
        if not is_in_target_account(table):
            return "tables", self.tables
        if self.targets is None:
            raise refusal("no-targets", table=table, config=self.path)
        return "targets", self.targets

    @property
    def rates(self) -> Limits:
        """The limits for plans. On https or with adaptive limits, rates that are not given are the service's
        own targets, where adaptive limits start (ADR 0038)."""
        is_https = self.tables.is_https or (self.targets is not None and self.targets.is_https)
        return self.limits.with_targets() if is_https or self.limits.follows else self.limits

    def warnings(self) -> list[str]:
        """Return warnings about allowed but doubtful settings, as text for people."""
        sources = [(f"secret `{name}`", source) for name, source in sorted(self.secrets.items())]
        sources += [(f"key `{name}`", source) for name, source in sorted(self.proxy.access.keys.items())]
        if self.evidence.key_file is not None:
            key_file = SecretSource(SecretKind.FILE, str(self.evidence.key_file))
            sources.append(("the evidence key", key_file))
        if self.sealing.key is not None:
            sources.append(("the wrapping key", self.sealing.key))
        problems = []
        for what, source in sources:
            if os.name != "posix" or source.kind is not SecretKind.FILE:
                continue
            try:
                mode = stat.S_IMODE(Path(source.where).stat().st_mode)
            except OSError:
                continue  # reading it will report that, with the cure
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                problem = f"the file of {what} is open to other users (mode {mode:04o})"
                problems.append(f"{problem}; `chmod 600 {source.where}` closes it")
        problems += [
            f"[restricted] is the same account as [{section}]: who may read the migrated tables"
            " may also read the old keys"
            for section, account in self.accounts.items()
            if account is not self.restricted and account.is_https and self.restricted.is_same_as(account)
        ]
        problems += [
            f"[{section}] endpoint is https on this machine: an Azurite without a certificate is http"
            for section, account in self.accounts.items()
            if account.is_https and urlsplit(account.endpoint).hostname in _LOOPBACK
        ]
        return problems


def default_config() -> str:
    """Return the configuration that `rekey init` writes: every default, explained. It holds no secret, can be
    loaded unchanged, and every setting in its comments is accepted; it names the wrapping key's file that
    `rekey init` makes."""
    return Path(__file__).with_name("default.toml").read_text("utf-8")


def load_config(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigurationError: absent, unreadable, not TOML, an unknown or missing key, a bad value. Names the
            key and the cure; never repeats a value.
    """
    path = Path(path).absolute()
    document = read_toml(path, absent="`rekey init` writes one; or name another with --config")
    document.allow(*(key.name for key in fields(Config) if key.name != "path"))
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
        plan=document.section("plan").read(Planning, {RowCheck: _row_check}),
        lookup=document.section("lookup").read(LookupLimits),
        evidence=_evidence(document.section("evidence")),
        executor=read_executor(document.section("executor")),
        prices=_prices(document.section("prices")),
        serve=_serve(document.section("serve"), Serve),
        follow=_follow(document.section("follow")),
        hooks=_hooks(document.section("hooks")),
        proxy=_proxy(document.section("proxy")),
    )
    if config.gates.margin_s < _SERVICE_S and any(account.is_https for account in config.accounts.values()):
        problem = f"is shorter than the {_SERVICE_S} s within which a request may still take effect"
        document.section("gates").fail("margin", problem, f'write at least margin = "{_SERVICE_S}s"')
    return config


def reading(
    endpoint: str, key_env: str | None, targets: tuple[str | None, str | None] = (None, None)
) -> Config:
    """Return a configuration for commands that only read tables of one account, or also of `targets` (its
    endpoint and the variable of its key). Raises ConfigurationError."""

    def account(endpoint: str, key_env: str | None) -> Account:
        return _account(Section(Path("the command line"), "", {"endpoint": endpoint, "key_env": key_env}))

    tables, (target_endpoint, target_key_env) = account(endpoint, key_env), targets
    other = None if target_endpoint is None else account(target_endpoint, target_key_env)
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
    """Return the account's shared key in base64, or None to use a token credential.

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
    if (named := ConnectionString.read(value, account.key_env)) is not None:
        value = named.key or AZURITE_KEY
    try:
        base64.b64decode(value, validate=True)
    except ValueError:
        raise refusal("no-key-in-variable", variable=account.key_env) from None
    if not account.is_https and urlsplit(account.endpoint).hostname not in _LOOPBACK and value != AZURITE_KEY:
        raise refusal("http-with-own-key", variable=account.key_env)
    return value


def read_toml(path: Path, *, absent: str) -> Section:
    """Read a configuration file, unchecked. `absent` is the hint if there is none.

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
        # The parser's text may quote the file: take only the position from it.
        position = re.search(r"\(at [^)]*\)", str(error))
        text = f"{path} is not valid TOML {position.group() if position else ''}".rstrip()
        hint = "fix that line; strings stand in double quotes"
        if re.match("Cannot (declare|overwrite|mutate)", str(error)):
            text, hint = f"{text}: the same section or key stands there twice", "keep one of the two"
        raise ConfigurationError(text, hint=hint) from None


def _account(section: Section) -> Account:
    endpoint = section.text("endpoint")
    if endpoint is not None:  # first: another service's keys would only be called unknown
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
        # `Users` and `Users@targets` would be one table, copied onto itself and then retired.
        section.fail("endpoint", "is the account of [tables]", "name the other account, or remove [targets]")
    return account


def is_same_account(endpoint: str, other: str) -> bool:
    """Tell whether two endpoints are of the same account, in whatever spelling."""
    return _place(endpoint) == _place(other)


def _place(endpoint: str) -> tuple[str, str]:
    """Return host and path of an account's endpoint, the same for all its spellings."""
    parts = urlsplit(endpoint.lower())
    host = parts.netloc.removesuffix({"https": ":443", "http": ":80"}.get(parts.scheme, ""))
    name, dot, domain = host.partition(".")
    if "table." in domain:  # a private link leads to the same account
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
    # On most ports the Azure SDK takes it for Cosmos DB.
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
    # Azurite's published account and key protect nothing, so http is fine for an Azurite in another
    # container.
    if parts.scheme == "http" and host not in _LOOPBACK and parts.path.strip("/") != AZURITE_ACCOUNT:
        problem = f"http is allowed on 127.0.0.1 and [::1], and for Azurite's account {AZURITE_ACCOUNT}, only"
        section.fail("endpoint", problem, "write https://, which encrypts")
    return text.rstrip("/")


def _path(section: Section, usual: str) -> Path:
    section.allow("path")
    return _absolute(section, section.text("path") or usual)


def _absolute(section: Section, path: str) -> Path:
    # Absolute, not resolved: keep the operator's links.
    return Path(os.path.normpath(section.path.parent / Path(path).expanduser()))


def _evidence(section: Section) -> EvidenceKey:
    key = section.read(EvidenceKey, _READERS)
    if key.key_file is not None and key.key_vault is not None:
        section.fail("", "has both key_file and key_vault", "keep one of them")
    return key


def _secrets(section: Section, *kinds: str) -> dict[str, SecretSource]:
    """Read sections that say where a secret is, by name; each uses one of `kinds`, by default any."""
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


def _row_check(section: Section, key: str) -> RowCheck:
    value = section.content[key]
    if value not in [*RowCheck]:
        section.fail(key, "is none of these: auto, full, sample", f'write for example {key} = "auto"')
    return RowCheck(value)


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
    access, views = _serve(section.section("access"), ProxyAccess), section.section("views")
    own = {name: views.section(name) for name, value in views.content.items() if isinstance(value, dict)}
    principals = frozenset() if access.entra is None else access.entra.names
    for name in own:
        if name not in access.keys and name not in principals:
            cure = "write [proxy.views.NAME] for the key NAME, or for the name of a principal"
            views.fail(
                name, "is no key of [proxy.access.keys], and no name in [proxy.access.entra] allow", cure
            )
    if access.entra is not None:
        entra = section.section("access").section("entra")
        if shared_names := sorted(principals & access.keys.keys()):
            entra.fail(
                "allow",
                f"has the name of a key of [proxy.access.keys]: {shared_names[0]}",
                "rename one of them",
            )
        if access.bearer_tokens:
            # Else a token that the list refuses would be passed on to the account.
            cure = "remove bearer_tokens: with [proxy.access.entra] a token is for those whom `allow` names"
            section.section("access").fail(
                "bearer_tokens", "and [proxy.access.entra] exclude each other", cure
            )
    shared, own_views = _aliases(views.without(*own)), {name: _aliases(of) for name, of in own.items()}
    limits = section.without("views", "access").read(ProxyLimits)
    if limits.lease_s < _LEAST_LEASE_S or limits.longest_operation_s < _LEAST_LEASE_S:
        section.fail("lease", "or longest_operation is too short to be kept", 'write at least "2s"')
    if limits.request_s < limits.longest_operation_s + limits.freeze_wait_s:
        cure = "give it longest_operation and freeze_wait"
        section.fail("request", "is shorter than a write may take", cure)
    return Proxy(limits, shared, own_views, access)


def _aliases(section: Section) -> dict[str, str]:
    for alias in section.content:
        if table_name_problem(alias) or table_name_problem(section.text(alias) or "", qualified=True):
            section.fail(alias, "is not the name of a table", 'write for example Users = "UsersV2"')
    return dict(section.content)


def _where(section: Section, *, vault_holds: str) -> SecretSource:
    """Read where a secret or a key is. `vault_holds`: what a Key Vault URL must name, `secret` or `key`."""
    section.allow(*SecretKind)
    secret_kinds = [kind for kind in SecretKind if kind in section.content]
    if len(secret_kinds) != 1:
        section.fail("", "must have exactly one of env, file, key_vault", 'write for example env = "NAME"')
    [kind] = secret_kinds
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


# Readers of field types that only this file's sections have.
_READERS: dict[Any, Reader] = {
    Path | None: lambda section, key: _absolute(section, section.text(key) or ""),
    Token: _token,
    Mapping[str, SecretSource]: lambda section, key: _secrets(section.section(key), "env", "file"),
    bool: Section.flag,
    Entra | None: lambda section, key: read_entra(section.section(key)),
}


def _is_variable(text: str) -> bool:
    """Tell whether this can be a variable's name. A long text without `_` is probably a pasted secret (hex,
    say), which a later message would show as a name."""
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
