"""The keys that sign evidence: Ed25519 or P-256. No repr holds a private key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

# Bytes of the hash that identifies a key in a signed note.
NOTE_ID_BYTES = 4
# The order of P-256 (FIPS 186-4, D.1.2.3).
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_ED25519_TYPE = b"\1"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of a key that signs evidence. The auditor supplies it; no bundle contains it."""

    key: Ed25519PublicKey | ec.EllipticCurvePublicKey = field(repr=False)
    # Where it came from, for the verdict; "" if unknown.
    origin: str = field(default="", compare=False)

    @property
    def algorithm(self) -> str:
        """`ed25519` or `es256`."""
        return "ed25519" if isinstance(self.key, Ed25519PublicKey) else "es256"

    @property
    def spki(self) -> bytes:
        """The key in SPKI form, DER."""
        return self._public(serialization.Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self._public(serialization.Encoding.PEM)

    def _public(self, encoding: serialization.Encoding) -> bytes:
        return self.key.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)

    @property
    def key_id(self) -> str:
        """The SHA-256 of the SPKI form, hex."""
        return hashlib.sha256(self.spki).hexdigest()

    @property
    def named(self) -> dict[str, str]:
        """The key in statements: algorithm and id."""
        return {"algorithm": self.algorithm, "key_id": self.key_id}

    def note_id(self, name: str) -> bytes:
        """Return the four bytes that identify this key in a signed note of the log `name`."""
        if isinstance(self.key, Ed25519PublicKey):
            raw = self.key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
            return hashlib.sha256(name.encode() + b"\n" + _ED25519_TYPE + raw).digest()[:NOTE_ID_BYTES]
        return hashlib.sha256(self.spki).digest()[:NOTE_ID_BYTES]

    def verifies(self, signature: bytes, data: bytes, *, high_s: bool = False) -> bool:
        """Tell whether a signature over `data` is by this key.

        Args:
            signature: the signature.
            data: what was signed. Ed25519 signs it as it is, P-256 its SHA-256.
            high_s: also accept the larger s of an ECDSA signature. Anyone can compute it from the smaller
                one, so only the smaller is accepted, but versions before 0.3 kept the one from Key Vault.
        """
        try:
            if isinstance(self.key, Ed25519PublicKey):
                self.key.verify(signature, data)
            else:
                self.key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
                return high_s or decode_dss_signature(signature)[1] <= P256_ORDER // 2
        except InvalidSignature:
            return False
        return True


class Signer(Protocol):
    """Signs with one key."""

    @property
    def public(self) -> PublicKey:
        """The public half."""

    def sign(self, data: bytes) -> bytes:
        """Return the signature over `data`."""


@dataclass(frozen=True, slots=True)
class Ed25519Signer:
    """Signs with an Ed25519 key in this process."""

    private: Ed25519PrivateKey = field(repr=False)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.private.public_key())

    def sign(self, data: bytes) -> bytes:
        return self.private.sign(data)
