"""A wrapping key that never leaves Key Vault: data keys are wrapped and unwrapped there (RSA-OAEP-256)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from rekey.mapping.refusals import refusal
from rekey.mapping.sealing import KEY_BYTES, Wrapped
from rekey.project.keyvault import VaultKey, VaultObject

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

_BAD_REQUEST = 400
_KEY = VaultObject(
    what="the wrapping key",
    kind="key",
    setting="`[sealing] key_vault`",
    purpose="to wrap or unwrap",
    role="Key Vault Crypto User",
    if_deleted="; a deleted key can be had back while the vault keeps it: `az keyvault key recover`",
)
_SIGNING = replace(
    _KEY,
    purpose="to sign",
    role=f"{_KEY.role}, and the key the operation sign: `az keyvault key set-attributes --vault-name VAULT"
    " --name NAME --ops wrapKey unwrapKey sign`",
)
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), hashes.SHA256.digest_size)
_LEAST_BITS = 2048


class KeyVaultWrappingKey:
    """Wraps with an RSA key in Key Vault. The version that wrapped is stored with the data key, and unwraps
    it: a rotation in Key Vault needs no action in rekey."""

    is_remote = True

    def __init__(self, url: str, *, credential: TokenCredential | None = None, **client_options: Any) -> None:
        """Create it from the key's URL; no request is sent yet. Arguments and errors are `VaultKey`'s."""
        self._key = VaultKey(_KEY, url, credential, client_options)

    @property
    def name(self) -> str:
        return f"{self._key.vault}/keys/{self._key.name}"

    def wraps(self, by: str) -> bool:
        # A version of this key, never another URL from the restricted store.
        return re.fullmatch(rf"{re.escape(self.name)}/[0-9A-Za-z-]+", by) is not None

    def wrap(self, key: bytes) -> Wrapped:
        """Wrap a data key of 32 bytes with the present version.

        Raises:
            ConfigurationError: no such key, or not an RSA key.
            CredentialRefused, EndpointDown, Unavailable: Key Vault did not wrap.
        """
        from azure.keyvault.keys.crypto import KeyWrapAlgorithm

        vault_key = self._key.get()
        _public_half(vault_key)
        with _KEY.asked(), self._key.client_for(str(vault_key.id)) as client:
            answer = client.wrap_key(KeyWrapAlgorithm.rsa_oaep_256, key)
        return Wrapped(str(vault_key.id), answer.encrypted_key)

    def unwrap(self, wrapped: Wrapped) -> bytes:
        """Return the 32 bytes of the data key, unwrapped by the version that wrapped them.

        Raises:
            Moved: another key wrapped them, or they are not what this one wrapped.
            ConfigurationError, CredentialRefused, EndpointDown, Unavailable: Key Vault did not unwrap.
        """
        if not self.wraps(wrapped.by):
            raise refusal("other-wrapping-key", by=wrapped.by, configured=self.name)
        from azure.core.exceptions import HttpResponseError
        from azure.keyvault.keys.crypto import KeyWrapAlgorithm

        with _KEY.asked():
            try:
                with self._key.client_for(wrapped.by) as client:
                    key = bytes(client.unwrap_key(KeyWrapAlgorithm.rsa_oaep_256, wrapped.data).key)
            except HttpResponseError as error:
                if error.status_code == _BAD_REQUEST:
                    raise refusal("not-unwrapped", by=self.name) from None
                raise
        if len(key) != KEY_BYTES:
            raise refusal("not-unwrapped", by=self.name)
        return key

    def is_public(self, by: str) -> bool:
        """Return True: the public half wraps. Raises Moved when another key wrapped."""
        if not self.wraps(by):
            raise refusal("other-wrapping-key", by=by, configured=self.name)
        return True

    def sign(self, by: str, message: bytes) -> bytes:
        """Return a signature (PS256) by the version that `by` names. Raises as `wrap`."""
        from azure.keyvault.keys.crypto import SignatureAlgorithm

        with _SIGNING.asked(), self._key.client_for(by) as client:
            answer = client.sign(SignatureAlgorithm.ps256, hashlib.sha256(message).digest())
        return bytes(answer.signature)

    def verifies(self, by: str, signature: bytes, message: bytes) -> bool:
        """Tell whether the version that `by` names signed. Raises as `wrap`, also if it is disabled."""
        # The public half from Key Vault, never one from the restricted store.
        vault_key = self._key.get(by.removeprefix(f"{self.name}/"))
        if vault_key.id != by:
            return False
        # Whoever disabled it may have had a reason not to believe it.
        if vault_key.properties.enabled is False:
            raise refusal("version-disabled")
        try:
            _public_half(vault_key).verify(signature, message, _PSS, hashes.SHA256())
        except InvalidSignature:
            return False
        return True


def _public_half(vault_key: Any) -> rsa.RSAPublicKey:
    """Return the public half of a key. Raises ConfigurationError when it is not an RSA key, or too short."""
    key = vault_key.key
    if key.kty not in ("RSA", "RSA-HSM") or int.from_bytes(key.n).bit_length() < _LEAST_BITS:
        raise refusal("vault-key-unfit", bits=_LEAST_BITS)
    return rsa.RSAPublicNumbers(int.from_bytes(key.e), int.from_bytes(key.n)).public_key()
