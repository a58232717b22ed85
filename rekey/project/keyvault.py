"""Access to keys and secrets in Key Vault (extra `keyvault`, imported only when used). Its answers may quote
the request, so messages do not repeat them."""

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
    """A key or secret in Key Vault, as messages describe it."""

    what: str  # its name in messages: "the wrapping key"
    kind: str  # `key` or `secret`
    setting: str  # the setting that names it: "`[sealing] key_vault`"
    purpose: str  # the operation asked of Key Vault: "to sign"
    role: str  # the role that permits the operation
    absent: type[RekeyError] = ConfigurationError  # class of the error when it does not exist
    if_deleted: str = ""  # what to do when it was deleted; appended to the hint

    def not_installed(self) -> RekeyError:
        """Return the error for missing client packages."""
        return refusal("vault-not-installed", secret=self.what)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Turn errors of Key Vault within the context into errors of rekey.

        Raises:
            RekeyError: of the class `absent`: Key Vault has no such key or secret.
            CredentialRefused, EndpointDown, Unavailable: Key Vault did not perform the operation.
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
        """Return Key Vault's description of the key, with its public half: of `version`, else of the version
        in the URL, else of the current one. Raises as `VaultObject.asked`."""
        with self.described.asked():
            return self._client.get_key(self.name, version or self._version)

    def client_for(self, key: Any) -> Any:
        """Return a client for a key that `get` returned, or for a key version by its URL."""
        from azure.keyvault.keys.crypto import CryptographyClient

        return CryptographyClient(key, self._credential, **self._options)


def default_credential() -> Any:
    """Return a new `DefaultAzureCredential`; imported here because the import is slow."""
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def split_url(url: str, kind: str) -> tuple[str, str, str | None]:
    """Split the URL of a key or secret in Key Vault into vault URL, name and version (or None).

    Args:
        url: of a key or secret.
        kind: `keys` or `secrets`, as in the URL's path.

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
