"""Opens and makes the keys that sign and check evidence, in PEM files or in Key Vault. A private key is read
when a command begins, so that a missing one is reported before anything is done."""

from __future__ import annotations

import hashlib
import shlex
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from rekey.errors import reason_of
from rekey.evidence.keys import P256_ORDER, Ed25519Signer, PublicKey, Signer
from rekey.evidence.refusals import refusal
from rekey.project.config import Config
from rekey.project.keyvault import VaultKey, VaultObject
from rekey.project.privatefiles import write_new, write_private

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential


def open_signer(config: Config) -> Signer | None:
    """Return the signer of evidence, None when no key is configured.

    Raises:
        ConfigurationError: the key file cannot be read or holds no Ed25519 key; the Key Vault client is not
            installed.
    """
    key = config.evidence
    if key.key_vault is not None:
        return KeyVaultSigner(key.key_vault)
    return None if key.key_file is None else read_private(key.key_file)


def read_private(path: Path) -> Ed25519Signer:
    """Read an Ed25519 private key in PEM form.

    Raises:
        ConfigurationError: the file is absent or unreadable; the key is encrypted, or of another type.
    """
    # Overwrites nothing: the name helps only where there is no file yet.
    file = "" if path.exists() else f" {shlex.quote(str(path))}"
    make = f"make one with `rekey evidence keygen{file}`, or `openssl genpkey -algorithm ed25519`"
    try:
        key = serialization.load_pem_private_key(_read(path, "private", make), password=None)
    except TypeError:
        raise refusal("key-encrypted", path=path) from None
    except (ValueError, UnsupportedAlgorithm):
        raise refusal("not-private", path=path, hint=make) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise refusal("not-ed25519", path=path, hint=make)
    return Ed25519Signer(key)


def read_public(path: Path) -> PublicKey:
    """Read the public half of an Ed25519 or P-256 key in PEM form.

    Raises:
        ConfigurationError: the file is absent or unreadable, or the key is of another type.
    """
    cure = "give the file that was handed over as the public key, `-----BEGIN PUBLIC KEY-----`"
    content = _read(path, "public", cure)
    if b"PRIVATE KEY-----" in content:
        cure = f"give its public half, {public_path(path)} if it was made by `rekey evidence keygen`"
        raise refusal("key-private", path=path, hint=cure)
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise refusal("not-public", path=path, hint=cure) from None
    match key:
        case Ed25519PublicKey() | ec.EllipticCurvePublicKey(curve=ec.SECP256R1()):
            return PublicKey(key, f"the file {path}")
    raise refusal("other-public-key", path=path, hint=cure)


def make_key(path: Path) -> PublicKey:
    """Make an Ed25519 key: `path` holds the private half (0600), `public_path(path)` the public one. Nothing
    is overwritten: a key is needed as long as its signatures are.

    Raises:
        ConfigurationError: one of the files exists, or cannot be written.
    """
    private = Ed25519PrivateKey.generate()
    public = PublicKey(private.public_key())
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_file = public_path(path)
    try:
        if public_file.exists():
            raise FileExistsError
        write_private(path, pem)
        try:
            write_new(public_file, public.pem)  # fails if a file or link was created meanwhile
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError:
        raise refusal("key-there", path=path) from None
    except OSError as error:
        raise refusal("key-not-written", path=path, reason=reason_of(error)) from None
    return public


def public_path(path: Path) -> Path:
    """Return the path of a key's public half: `key.pub.pem` next to `key.pem`."""
    return path.with_name(f"{path.stem}.pub{path.suffix}")


def _read(path: Path, what: str, cure: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise refusal("key-not-read", which=what, path=path, reason=reason_of(error), hint=cure) from None


# --- in Key Vault --------------------------------------------------------------------------------------

_NUMBER_BYTES = 32
_KEY = VaultObject(
    what="the evidence key",
    kind="key",
    setting="`[evidence] key_vault`",
    purpose="to sign",
    role="Key Vault Crypto User",
)


class KeyVaultSigner:
    """Signs with a P-256 key in Key Vault (which has no Ed25519); the private half never leaves it."""

    def __init__(self, url: str, *, credential: TokenCredential | None = None, **client_options: Any) -> None:
        """Create the signer of the key at `url`, without a request. Arguments and errors are `VaultKey`'s."""
        self._vault_key = VaultKey(_KEY, url, credential, client_options)

    @cached_property
    def _key(self) -> Any:
        # Once, so that all signatures of a command are by the same version.
        return self._vault_key.get()

    @cached_property
    def public(self) -> PublicKey:
        """The public half. Raises ConfigurationError when the key is not on P-256, and what `sign` raises."""
        jwk = self._key.key
        if jwk.kty not in ("EC", "EC-HSM") or jwk.crv != "P-256":
            raise refusal("vault-key-unfit")
        numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(jwk.x), int.from_bytes(jwk.y), ec.SECP256R1())
        return PublicKey(numbers.public_key())

    def sign(self, data: bytes) -> bytes:
        """Return the DER signature over the SHA-256 of `data`.

        Raises:
            ConfigurationError: no such key.
            CredentialRefused, EndpointDown, Unavailable: Key Vault did not sign.
        """
        from azure.keyvault.keys.crypto import SignatureAlgorithm

        digest = hashlib.sha256(data).digest()
        key = self._key
        with _KEY.asked(), self._vault_key.client_for(key) as client:
            raw = client.sign(SignatureAlgorithm.es256, digest).signature
        r, s = int.from_bytes(raw[:_NUMBER_BYTES]), int.from_bytes(raw[_NUMBER_BYTES:])
        # The smaller s, which makes the signature unique; DER, which openssl reads too.
        return encode_dss_signature(r, min(s, P256_ORDER - s))
