"""The options of an SDK client, checked when it is made: a mistake shows then and not at the first write."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.credentials_async import AsyncTokenCredential

from rekey.client.parts import Acknowledge
from rekey.client.reading import ON_THE_WAY_S, ClientFacts, LeaseSettings
from rekey.core.endpoints import COSMOS_REFUSED, endpoint_problem, is_cosmos
from rekey.core.joint import is_joint, names_in, prefix_of
from rekey.core.key_space import KeySpace
from rekey.core.limits import own_name
from rekey.declaration.migration import Declared, Migration
from rekey.declaration.scripts import load_script
from rekey.errors import ConfigurationError, SecretMissing
from rekey.mapping.sealing import LocalWrappingKey, WrappingKey
from rekey.protocol.opening import Prepared, joined
from rekey.protocol.rules import View
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts
from rekey.tables.credentials import Credential
from rekey.tables.requests import RetryPolicy
from rekey.tables.transport import Network, Timeouts
from rekey.tables.wire import API_VERSION

SyncCredential: TypeAlias = AzureNamedKeyCredential | AzureSasCredential | TokenCredential
AsyncCredential: TypeAlias = AzureNamedKeyCredential | AzureSasCredential | AsyncTokenCredential
AnyCredential: TypeAlias = SyncCredential | AsyncTokenCredential

DEFAULT_SHADOW_READS = 0.01
DEFAULT_NAME = "application"
# A write makes a dozen requests. With six attempts each, 1 write in 5 million fails where one request in
# twenty does; with five, 1 in 270,000.
RETRY = RetryPolicy(attempts=6, connect_attempts=4, min_wait=0.1, max_wait=3.0, max_retry_after=5.0)
_REFUSED = ("transport", "per_retry_policies", "connection_cert")
_HEEDED = ("proxies", "connection_verify")
# Keywords of a client that are rekey's own. The SDK ignores keywords that it does not know.
_OWN = (
    *("migration", "restricted_endpoint", "restricted_credential", "targets_endpoint", "targets_credential"),
    *("secrets", "wrapping_key", "credential", "table", "view", "name", "shadow_reads", "shadow_seed"),
    *("acknowledge", "settings"),
)
_NEAR = 0.8
_CONNECT_S = 5.0


class ArgumentRefused(ConfigurationError, ValueError):
    """An argument of the SDK's constructor that cannot apply to writes; a `ValueError`, as of the SDK."""


class CredentialMissing(ConfigurationError, ValueError):
    """There is no credential for the restricted account; a `ValueError`, as the SDK's own clients raise."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An account: its address and its credential."""

    address: str
    credential: Credential = field(repr=False)


class ClientOptions:
    """The checked arguments of a client, as its core needs them.

    Attributes:
        prepared: the migration, with its secrets and the wrapping key of its mapping.
        table: the client's table, in the declaration's spelling.
        is_index: whether that is an index table.
        facts: what the lease compares with the control row.
        settings: the lease's times.
        shadow_reads: share of reads that are repeated on the replica, 0 to 1.
        shadow_seed: the seed of that sampling; None for a different one each time.
        is_routed: whether the process follows other migrations of its table as well, and a router gives each
            row to its client.
    """

    def __init__(
        self,
        prepared: Prepared,
        table: str,
        view: View | str | None = None,
        *,
        name: str = DEFAULT_NAME,
        settings: LeaseSettings | None = None,
        shadow_reads: float = DEFAULT_SHADOW_READS,
        shadow_seed: int | None = None,
        acknowledge: Acknowledge | str = Acknowledge.BOTH,
        tables_endpoint: str = "",
    ) -> None:
        """Check the arguments of a client.

        Raises:
            ConfigurationError: the table, the view, the share of shadow reads or `acknowledge` is not valid.
            SecretMissing: a secret that the declaration names, or the wrapping key of a sealed mapping, is
                absent or too short.
        """
        if not 0 <= shadow_reads <= 1:
            raise ConfigurationError(
                f"shadow_reads is {shadow_reads}, and it is a share of all reads",
                hint="give a number from 0 to 1",
            )
        if acknowledge not in list(Acknowledge):
            raise ConfigurationError(
                f"acknowledge is {acknowledge!r}, and a write is answered by both sides or by the authority",
                hint=f"give one of {', '.join(Acknowledge)}",
            )
        self.acknowledge = Acknowledge(acknowledge)
        self.prepared, self.declared = prepared, prepared.declared
        self.view, self.table, self.is_index = view_of(self.declared.migration, table, view)
        is_one = (
            self.view is View.NEW and not self.is_index and is_joint(self.declared.migration.target.table)
        )
        # How PartitionKeys of its table begin in the joint table; "" if it is in none.
        self.prefix = prefix_of(self.table) if is_one else ""
        prepared.wrapping, prepared.mapper  # noqa: B018 - a missing or short secret is reported now
        self.facts = ClientFacts(
            self.declared.script_id,
            self.declared.digest,
            prepared.fingerprints,
            str(self.view),
            name,
            prepared.target_account,
            tables_endpoint,
        )
        migration = self.declared.migration
        if self.view is View.OLD and migration.where is not None:
            self.facts = replace(self.facts, part_of=migration.source, parts=(self.declared.script_id,))
        self.settings = settings or LeaseSettings()
        self.shadow_reads, self.shadow_seed = shadow_reads, shadow_seed
        self.is_routed = False

    @property
    def is_followed(self) -> bool:
        """Whether clients follow the migration: not one with capture "delta"."""
        return self.declared.migration.capture == "dual-write"

    @property
    def key_space(self) -> KeySpace | None:
        """The keys of the rows of its table that are the migration's; None for all."""
        return self.declared.migration.key_spaces.get(self.table)


def view_of(migration: Migration, table: str, view: View | str | None) -> tuple[View, str, bool]:
    """Return the view of a client, its table as declared, and whether that is an index table. Raises
    ConfigurationError: the migration has no such table, or the table is not of the view asked for."""
    names = migration.source, *migration.table_names
    # The first of a name counts: the old table, where the new one has the same name in the target account.
    spelled = {own_name(name).lower(): name for name in reversed(names)} | {
        name.lower(): name for name in names
    }
    name = spelled.get(table.lower())
    mains = names_in(migration.target.table)
    new = " or ".join(mains)
    if name is None:
        raise ConfigurationError(
            f"{table} is no table of this migration",
            hint=f"name {migration.source} for the old view or {new} for the new one, or"
            " use the SDK's own TableClient for other tables",
        )
    belongs = View.OLD if name == migration.source else View.NEW
    if view is not None and view_named(view) is not belongs:
        raise ConfigurationError(
            f"{name} belongs to the {belongs} view, and view={str(view)!r} was asked for",
            hint=f"the old view addresses {migration.source}, the new one {new};"
            " leave `view` away and the table's name decides",
        )
    return belongs, name, name not in (migration.source, *mains)


def view_named(view: View | str) -> View:
    """Return a view by its name. Raises ConfigurationError for another text."""
    try:
        return View(str(view))
    except ValueError:
        hint = 'say view="old" for the keys before the migration, view="new" for those after it'
        raise ConfigurationError(f"there is no view {str(view)!r}", hint=hint) from None


def prepared_with(
    migration: Declared | Path | str,
    secrets: Mapping[str, bytes],
    wrapping_key: bytes | WrappingKey | None,
    targets: Endpoint | None = None,
) -> Prepared:
    """Return a migration, loaded if a path is given, with the caller's secrets, wrapping key and target
    account.

    Raises:
        DeclarationError: the script cannot be used.
        ConfigurationError: it has a table in the target account, and none was given.
    """
    declared = migration if isinstance(migration, Declared) else load_script(Path(migration))
    if targets is None and declared.migration.uses_target_account:
        raise ConfigurationError(
            f"{declared.script_id} has a table in the account of [targets], and the client was given none",
            hint="give targets_endpoint= and targets_credential=, what [targets] in the runner's rekey.toml"
            " names; `from_config` reads it from there",
        )

    def wrapping() -> WrappingKey:
        if wrapping_key is None:
            raise SecretMissing(
                "the mapping is sealed, and the client was given no wrapping key",
                hint="give wrapping_key=, what [sealing] in the runner's rekey.toml names; `from_config`"
                " reads it from there",
            )
        return LocalWrappingKey(wrapping_key) if isinstance(wrapping_key, bytes) else wrapping_key

    place = "" if targets is None else targets.address
    return Prepared(declared, lambda name: secrets.get(name, b""), wrapping, place)


def sdk_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the SDK's constructor that apply to the core's own connections as well. Raises
    ArgumentRefused for one that could only apply to reads, or that is nearly one of rekey's own."""
    for name in options:
        if near := get_close_matches(name, _OWN, 1, _NEAR):
            raise ArgumentRefused(f"there is no argument {name}=", hint=f"write {near[0]}=")
    version = options.get("api_version")
    refused = [name for name in _REFUSED if options.get(name)]
    if options.get("location_mode", "primary") != "primary":  # where the service refuses writes
        refused.append("location_mode")
    if refused or version not in (None, API_VERSION):
        raise ArgumentRefused(
            f"{refused[0]}= would not hold for writes, which rekey sends by itself"
            if refused
            else f"api_version={version!r} would not hold for writes: they are sent with {API_VERSION}",
            hint=f"leave it out; {', '.join(_HEEDED)} and per_call_policies hold for reads and writes",
        )
    return {name: options[name] for name in _HEEDED if options.get(name) is not None}


# --- the accounts -----------------------------------------------------------------------------------------


class _Borrowed:
    """A token credential that the caller owns: used, never closed."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        if asyncio.iscoroutinefunction(self._credential.get_token):
            token: AccessToken = await self._credential.get_token(*scopes, **kwargs)
            return token
        # A synchronous credential must not block the loop.
        return await asyncio.to_thread(self._credential.get_token, *scopes, **kwargs)

    async def close(self) -> None:
        """Leave it open."""

    async def __aenter__(self) -> _Borrowed:
        return self

    async def __aexit__(self, *_args: object) -> None:
        pass


def _parts_of(endpoint: str) -> SplitResult:
    return urlsplit(endpoint if endpoint.lower().startswith("http") else f"https://{endpoint}")


def check_endpoint(endpoint: str, which: str) -> None:
    """Raise ConfigurationError for an impossible endpoint, its query aside. `which`: the account's name."""
    refused = endpoint_problem(_parts_of(endpoint)._replace(query="", fragment="").geturl())
    if refused is not None:
        problem, cure = refused
        raise ConfigurationError(f"the endpoint of the {which} account {problem}", hint=cure)


def check_connection_string(text: str) -> None:
    """Raise ConfigurationError for a connection string of Cosmos DB, which the SDK may accept."""
    if is_cosmos(text):
        problem, cure = COSMOS_REFUSED
        raise ConfigurationError(f"the account of the connection string {problem}", hint=cure)


def account_of(endpoint: str, credential: AnyCredential | None, which: str = "restricted") -> Endpoint:
    """Return an account's endpoint without its query, and the credential for it.

    Args:
        endpoint: as the SDK takes it.
        credential: None when the endpoint has a shared access signature.
        which: the account, for the error.

    Raises:
        ConfigurationError: no account can have this endpoint (`endpoint_problem`).
        CredentialMissing: there is no credential.
    """
    check_endpoint(endpoint, which)
    parts = _parts_of(endpoint)
    bare = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    if credential is None and "sig=" in parts.query:
        return Endpoint(bare, AzureSasCredential(parts.query))
    if isinstance(credential, AzureNamedKeyCredential | AzureSasCredential):
        # As the caller's object: a key or signature that its owner renews is used from then on.
        return Endpoint(bare, credential)
    if not hasattr(credential, "get_token"):
        raise CredentialMissing(
            f"there is no credential for the {which} account",
            hint="give an AzureNamedKeyCredential, an AzureSasCredential or a token credential",
        )
    return Endpoint(bare, _Borrowed(credential))


def timeouts_for(settings: LeaseSettings) -> Timeouts:
    """Return the timeouts of one request."""
    # The service is told its time as well, so that a request it accepted ends within it, or never takes
    # effect.
    service = settings.service_s
    return Timeouts(
        connect=min(_CONNECT_S, settings.longest_operation_s), read=service + ON_THE_WAY_S, service=service
    )


def connect(
    tables: Endpoint,
    restricted: Endpoint,
    settings: LeaseSettings,
    options: Mapping[str, Any],
    targets: Endpoint | None = None,
) -> Accounts:
    """Return the core's own connections to the accounts; the first request connects. `options`: as
    `sdk_options` returns them."""
    # An unanswered write to the application's tables is settled by the writer (`rekey.client.send`): sent
    # again here it could overwrite another client's later write, and content does not prove whose write it
    # was. In the restricted store both are safe: only this client writes its intents and beats, another
    # client's equal claim is as good as its own, and a write that lands twice is swept or replaced.
    shared = replace(RETRY, repeats_open_writes=False, content_settles=False)
    network = Network(
        timeouts_for(settings),
        proxies=options.get("proxies", {}),
        verify=options.get("connection_verify", True),
    )

    def opened(
        account: Endpoint, retry: RetryPolicy = shared, *, is_target_account: bool = False
    ) -> AzureTableService:
        return AzureTableService.open(
            account.address,
            account.credential,
            retry=retry,
            network=network,
            is_target_account=is_target_account,
        )

    return joined(
        tables=opened(tables),
        targets=None if targets is None else opened(targets, is_target_account=True),
        restricted=opened(restricted, RETRY),
    )
