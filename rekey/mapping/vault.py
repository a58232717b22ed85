"""A wrapping key in Key Vault: data keys are wrapped and unwrapped there, and it never leaves.

Rules kept here:

* RSA-OAEP with SHA-256 (`RSA-OAEP-256`). Wrapping is by the version that is current; unwrapping by the one
  that wrapped, which stands beside the wrapped key: a rotation in Key Vault needs nothing of us.
* Only versions of the configured key are asked: a URL that somebody wrote into the restricted store is not.
* Key Vault needs the extra `keyvault`; it is imported only when such a key is configured. What it answers is
  not copied into messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
)

from rekey.errors import ConfigurationError, CredentialRefused, EndpointDown, RekeyError, Unavailable
from rekey.mapping.wrapping import Wrapped, not_unwrapped, wrong_key
from rekey.secrets_source import split_key_vault_url

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

KEY_BYTES = 32
_FORBIDDEN = 403
_BAD_REQUEST = 400


class KeyVaultWrappingKey:
    """Wraps with an RSA key in Key Vault."""

    is_remote = True

    def __init__(self, url: str, *, credential: TokenCredential | None = None, **client_options: Any) -> None:
        """Take the key's URL; nothing is asked of Key Vault yet.

        Args:
            url: `https://VAULT.vault.azure.net/keys/NAME`, with or without a version.
            credential: `DefaultAzureCredential` when None.
            client_options: passed to the clients (a `transport`, for example).

        Raises:
            ConfigurationError: the extra `keyvault` is not installed.
        """
        try:
            from azure.keyvault.keys import KeyClient
        except ImportError:
            raise ConfigurationError(
                "the wrapping key is in Key Vault, and the Key Vault client is not installed",
                hint="pip install 'rekey-tables[keyvault]'",
            ) from None
        self._vault, self._name, self._version = split_key_vault_url(url, "keys")
        if credential is None:
            from azure.identity import DefaultAzureCredential

            credential = DefaultAzureCredential()
        self._credential = credential
        self._options = client_options
        self._client = KeyClient(self._vault, credential, **client_options)

    @property
    def name(self) -> str:
        """The key's URL, without a version."""
        return f"{self._vault}/keys/{self._name}"

    def wraps(self, by: str) -> bool:
        """Tell whether a version of this key is the one that wrapped something."""
        return by.startswith(f"{self.name}/")

    def wrap(self, key: bytes) -> Wrapped:
        """Wrap 32 bytes with the present version.

        Raises:
            ConfigurationError: no such key, or not an RSA key.
            CredentialRefused, EndpointDown, Unavailable: Key Vault did not wrap.
        """
        from azure.keyvault.keys.crypto import KeyWrapAlgorithm

        try:
            found = self._client.get_key(self._name, self._version)
            jwk: Any = found.key
            if jwk.kty not in ("RSA", "RSA-HSM"):
                raise ConfigurationError(
                    "the wrapping key in Key Vault is not an RSA key",
                    hint="make one: `az keyvault key create --kty RSA --size 3072 --ops wrapKey unwrapKey`",
                )
            with self._crypto(str(found.id)) as crypto:
                answer = crypto.wrap_key(KeyWrapAlgorithm.rsa_oaep_256, key)
        except AzureError as error:
            raise _failed(error) from None
        return Wrapped(str(found.id), answer.encrypted_key)

    def unwrap(self, wrapped: Wrapped) -> bytes:
        """Return the 32 bytes, by the version that wrapped them.

        Raises:
            Moved: another key wrapped them, or they are not what this one wrapped.
            ConfigurationError, CredentialRefused, EndpointDown, Unavailable: Key Vault did not unwrap.
        """
        from azure.keyvault.keys.crypto import KeyWrapAlgorithm

        if not self.wraps(wrapped.by):
            raise wrong_key(wrapped.by, self.name)
        try:
            with self._crypto(wrapped.by) as crypto:
                key = crypto.unwrap_key(KeyWrapAlgorithm.rsa_oaep_256, wrapped.data).key
        except HttpResponseError as error:
            if error.status_code == _BAD_REQUEST:
                raise not_unwrapped(self.name) from None
            raise _failed(error) from None
        except AzureError as error:
            raise _failed(error) from None
        if len(key) != KEY_BYTES:
            raise not_unwrapped(self.name)
        return bytes(key)

    def _crypto(self, key_id: str) -> Any:
        from azure.keyvault.keys.crypto import CryptographyClient

        return CryptographyClient(key_id, self._credential, **self._options)


def _failed(error: AzureError) -> RekeyError:
    if isinstance(error, ResourceNotFoundError):
        return ConfigurationError(
            "Key Vault has no such wrapping key or version",
            kept="everything; nothing was opened",
            hint="check the URL in `[sealing] key_vault`; a deleted key can be recovered for as long as the"
            " vault keeps it: `az keyvault key recover`",
        )
    status = (error.status_code or 0) if isinstance(error, HttpResponseError) else 0
    if isinstance(error, ClientAuthenticationError) or status == _FORBIDDEN:
        return CredentialRefused(
            "Key Vault refused to wrap or unwrap, or there is no credential",
            code="KeyVaultRefused",
            status=status,
            hint="sign in (`az login`), or give this identity the role Key Vault Crypto User",
        )
    if isinstance(error, ServiceRequestError):
        return EndpointDown(
            "the Key Vault of the wrapping key could not be reached",
            code="KeyVaultUnreachable",
            hint="check the URL in `[sealing] key_vault` and the network",
        )
    return Unavailable(
        "the Key Vault of the wrapping key answered with an error",
        code="KeyVaultFailed",
        status=status,
        hint="run the same command again",
    )
