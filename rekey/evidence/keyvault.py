"""A P-256 key in Key Vault that signs evidence. Key Vault has no Ed25519; the private half never leaves it.

Rules kept here:

* The public half is asked for once, with the version that is current then: what one command signs is signed
  by one key.
* Key Vault signs the SHA-256 that is computed here and answers with the two numbers of the signature; they
  become DER, which openssl reads, too.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from rekey.errors import ConfigurationError
from rekey.evidence.keys import PublicKey
from rekey.project.keyvault import VaultKey, VaultObject

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

_NUMBER_BYTES = 32
_KEY = VaultObject(
    what="the evidence key",
    kind="key",
    setting="`[evidence] key_vault`",
    purpose="to sign",
    role="Key Vault Crypto User",
)


class KeyVaultSigner:
    """Signs with a key in Key Vault."""

    def __init__(self, url: str, *, credential: TokenCredential | None = None, **client_options: Any) -> None:
        """Take the key's URL; nothing is asked of Key Vault yet. Arguments and errors are `VaultKey`'s."""
        self._vault_key = VaultKey(_KEY, url, credential, client_options)

    @cached_property
    def _key(self) -> Any:
        return self._vault_key.get()

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
        from azure.keyvault.keys.crypto import SignatureAlgorithm

        digest = hashlib.sha256(data).digest()
        key = self._key
        with _KEY.asked(), self._vault_key.client_for(key) as client:
            raw = client.sign(SignatureAlgorithm.es256, digest).signature
        return encode_dss_signature(int.from_bytes(raw[:_NUMBER_BYTES]), int.from_bytes(raw[_NUMBER_BYTES:]))
