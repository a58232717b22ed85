"""Common code for keys and secrets in Key Vault: connecting, and its errors as errors of rekey.

Rules kept here:

* Key Vault needs the extra `keyvault`; it is imported only when a key or secret is configured to be there.
* Its answers are not copied into messages, since they may quote the request. Messages say in rekey's words
  what happened, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rekey.errors import ConfigurationError, CredentialRefused, EndpointDown, RekeyError, Unavailable
from rekey.project.refusals import refusal

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class VaultObject:
    """A key or secret in Key Vault, as messages describe it.

    Attributes:
        what: its name in messages: "the wrapping key".
        kind: `key` or `secret`.
        setting: the setting that names it in the configuration: "`[sealing] key_vault`".
        purpose: what Key Vault is asked to do with it: "to sign".
        role: the role that lets an identity do so.
        absent: class of the error when it does not exist.
        if_deleted: what to do when it was deleted; put after the hint.
    """

    what: str
    kind: str
    setting: str
    purpose: str
    role: str
    absent: type[RekeyError] = ConfigurationError
    if_deleted: str = ""

    def not_installed(self) -> RekeyError:
        """Return the error for client packages that are not installed."""
        return refusal("vault-not-installed", secret=self.what)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Turn errors of Key Vault within the context into errors of rekey.

        Raises:
            RekeyError: of the class `absent`: Key Vault has no such key or secret.
            CredentialRefused, EndpointDown, Unavailable: Key Vault did not do what it was asked to.
        """
        from azure.core import exceptions as azure

        try:
            yield
        except azure.ResourceNotFoundError:
            what = f"{self.what}: Key Vault has no such {self.kind} or version"
            raise self.absent(what, hint=f"check the URL in {self.setting}{self.if_deleted}") from None
        except azure.ServiceRequestError:
            what = f"{self.what}: the Key Vault could not be reached"
            hint = f"check the URL in {self.setting} and the network"
            raise EndpointDown(what, code="KeyVaultUnreachable", hint=hint) from None
        except azure.AzureError as error:
            status = (error.status_code or 0) if isinstance(error, azure.HttpResponseError) else 0
            if isinstance(error, azure.ClientAuthenticationError) or status == _FORBIDDEN:
                what = f"{self.what}: Key Vault refused {self.purpose}, or there is no credential"
                hint = f"sign in (`az login`), or give this identity the role {self.role}"
                raise CredentialRefused(what, code="KeyVaultRefused", status=status, hint=hint) from None
            what, hint = f"{self.what}: Key Vault answered with an error", "run the same command again"
            raise Unavailable(what, code="KeyVaultFailed", status=status, hint=hint) from None


class VaultKey:
    """A key that stays in Key Vault."""

    def __init__(
        self,
        described: VaultObject,
        url: str,
        credential: TokenCredential | None,
        client_options: dict[str, Any],
    ) -> None:
        """Create the client of a key; sends no request.

        Args:
            described: the key as messages describe it.
            url: `https://VAULT.vault.azure.net/keys/NAME`, with or without a version.
            credential: `DefaultAzureCredential` when None.
            client_options: passed to the clients (a `transport`, for example).

        Raises:
            ConfigurationError: the extra `keyvault` is not installed, or `url` is not such a URL.
        """
        try:
            from azure.keyvault.keys import KeyClient
        except ImportError:
            raise described.not_installed() from None
        try:
            self.vault, self.name, self._version = split_url(url, "keys")
        except ValueError:
            raise refusal("no-vault-key", setting=described.setting) from None
        self.described = described
        self._credential = credential or default_credential()
        self._options = client_options
        self._client = KeyClient(self.vault, self._credential, **client_options)

    def get(self, version: str | None = None) -> Any:
        """Return Key Vault's description of the key, with its public half. Raises as `VaultObject.asked`.

        Args:
            version: the version; None: the one of the URL, or the current one.
        """
        with self.described.asked():
            return self._client.get_key(self.name, version or self._version)

    def client_for(self, key: Any) -> Any:
        """Return a client that works with a key that `get` returned, or with a key version by its URL."""
        from azure.keyvault.keys.crypto import CryptographyClient

        return CryptographyClient(key, self._credential, **self._options)


def default_credential() -> Any:
    """Return a new `DefaultAzureCredential`; it is imported here, since the import is slow."""
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def split_url(url: str, kind: str) -> tuple[str, str, str | None]:
    """Split the URL of a key or secret in Key Vault into vault URL, name and version (or None).

    Args:
        url: of a key or secret.
        kind: which of them it must be, as in the URL's path: `keys` or `secrets`.

    Raises:
        ValueError: it is not such a URL. The message does not repeat it.
    """
    parts = urlsplit(url)
    path = [piece for piece in parts.path.split("/") if piece]
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    right = parts.scheme == "https" and parts.hostname and plain
    if not right or len(path) not in (2, 3) or path[0] != kind:
        raise ValueError(f"not the https URL of one of Key Vault's {kind}")
    return f"https://{parts.netloc}", path[1], path[2] if len(path) > 2 else None
