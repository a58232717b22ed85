"""A P-256 key in Key Vault that signs evidence. Key Vault has no Ed25519; the private half never leaves it.

Rules kept here:

* The public half is asked for once, with the version that is current then: what one command signs is signed
  by one key.
* Key Vault signs the SHA-256 that is computed here and answers with the two numbers of the signature; they
  become DER, which openssl reads, too.
* Key Vault needs the extra `keyvault`; it is imported only when such a key is configured. What it answers is
  not copied into messages.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from rekey.errors import ConfigurationError, CredentialRefused, EndpointDown, RekeyError, Unavailable
from rekey.evidence.keys import PublicKey
from rekey.secrets_source import split_key_vault_url

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

_NUMBER_BYTES = 32
_FORBIDDEN = 403


class KeyVaultSigner:
    """Signs with a key in Key Vault."""

    def __init__(self, url: str, *, credential: TokenCredential | None = None, **client_options: Any) -> None:
        """Take the key's URL; nothing is asked of Key Vault yet.

        Args:
            url: `https://VAULT.vault.azure.net/keys/NAME`, with or without a version.
            credential: `DefaultAzureCredential` when None.
            client_options: passed to the clients (a `transport`, for example).

        Raises:
            ConfigurationError: the extra `keyvault` is not installed, or it is not such a URL.
        """
        try:
            from azure.keyvault.keys import KeyClient
        except ImportError:
            raise ConfigurationError(
                "the evidence key is in Key Vault, and the Key Vault client is not installed",
                hint="pip install 'rekey-tables[keyvault]'",
            ) from None
        try:
            vault, self._name, self._version = split_key_vault_url(url, "keys")
        except ValueError:
            raise ConfigurationError(
                "[evidence] key_vault is not the https URL of a Key Vault key",
                hint='write key_vault = "https://VAULT.vault.azure.net/keys/NAME"',
            ) from None
        if credential is None:
            from azure.identity import DefaultAzureCredential

            credential = DefaultAzureCredential()
        self._credential = credential
        self._options = client_options
        self._client = KeyClient(vault, credential, **client_options)

    @cached_property
    def _key(self) -> Any:
        try:
            return self._client.get_key(self._name, self._version)
        except AzureError as error:
            raise _failed(error) from None

    @cached_property
    def public(self) -> PublicKey:
        """The public half. Raises ConfigurationError when the key is not on P-256, and what `sign` raises."""
        jwk = self._key.key
        if jwk.kty not in ("EC", "EC-HSM") or jwk.crv != "P-256":
            raise ConfigurationError(
                "the evidence key in Key Vault is not an EC key on P-256",
                hint="make one: `az keyvault key create --kty EC --curve P-256`",
            )
        numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(jwk.x), int.from_bytes(jwk.y), ec.SECP256R1())
        return PublicKey(numbers.public_key())

    def sign(self, data: bytes) -> bytes:
        """Return the DER signature over the SHA-256 of some bytes.

        Raises:
            ConfigurationError: no such key.
            CredentialRefused, EndpointDown, Unavailable: Key Vault did not sign.
        """
        from azure.keyvault.keys.crypto import CryptographyClient, SignatureAlgorithm

        client = CryptographyClient(self._key, self._credential, **self._options)
        try:
            with client:
                answer = client.sign(SignatureAlgorithm.es256, hashlib.sha256(data).digest())
        except AzureError as error:
            raise _failed(error) from None
        raw = answer.signature
        return encode_dss_signature(int.from_bytes(raw[:_NUMBER_BYTES]), int.from_bytes(raw[_NUMBER_BYTES:]))


def _failed(error: AzureError) -> RekeyError:
    if isinstance(error, ResourceNotFoundError):
        return ConfigurationError(
            "Key Vault has no such evidence key or version", hint="check the URL in `[evidence] key_vault`"
        )
    status = (error.status_code or 0) if isinstance(error, HttpResponseError) else 0
    if isinstance(error, ClientAuthenticationError) or status == _FORBIDDEN:
        return CredentialRefused(
            "Key Vault refused to sign, or there is no credential",
            code="KeyVaultRefused",
            status=status,
            hint="sign in (`az login`), or give this identity the role Key Vault Crypto User",
        )
    if isinstance(error, ServiceRequestError):
        return EndpointDown(
            "the Key Vault of the evidence key could not be reached",
            code="KeyVaultUnreachable",
            hint="check the URL in `[evidence] key_vault` and the network",
        )
    return Unavailable(
        "the Key Vault of the evidence key answered with an error",
        code="KeyVaultFailed",
        status=status,
        hint="run the same command again",
    )
