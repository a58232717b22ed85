"""Hashes and buckets, which use no secret, and opaque ids, which do. All hash the exact UTF-8 bytes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from rekey.core.crockford import ALPHABET, encode, encode_id, encode_ids
from rekey.core.macs import hmac_sha256
from rekey.declaration.keys.base import (
    Changed,
    Evaluator,
    Expression,
    PageEvaluator,
    Scope,
    need_int,
    need_one_of,
    need_text,
    operand,
    refuse_if,
)

# The digests of `hashed`. SHA-1 and MD5 are for keys that other systems have made with them.
DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "sha512": lambda data: hashlib.sha512(data).digest(),
    "blake2b-160": lambda data: hashlib.blake2b(data, digest_size=20).digest(),
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
}

ENCODINGS: dict[str, Callable[[bytes], str]] = {"hex": bytes.hex, "crockford": encode}

# The number that `bucket` takes modulo its count: the first 8 bytes of SHA-256, big-endian, or a CRC-32.
BUCKETS: dict[str, Callable[[bytes], int]] = {
    "sha256": lambda data: int.from_bytes(hashlib.sha256(data).digest()[:8], "big"),
    "crc32": zlib.crc32,
}

PREFIX = b"rekey/v1\0"
LENGTH_BYTES = 4
# 160 bits in base32.
ID_CHARACTERS = 32
MAX_BUCKETS = 1_000_000
MIN_DIGITS = 3


@dataclass(frozen=True)
class Hashed(Changed, op="hashed"):
    """An unkeyed digest. See `hashed`."""

    algorithm: str
    of: Expression
    encoding: str = "hex"

    def __post_init__(self) -> None:
        need_one_of("keys.hashed(algorithm)", self.algorithm, DIGESTS)
        need_one_of("keys.hashed(encoding)", self.encoding, ENCODINGS)

    def change(self, scope: Scope) -> Callable[[str], str]:  # noqa: ARG002 - it refuses nothing
        digest, encode = DIGESTS[self.algorithm], ENCODINGS[self.encoding]
        return lambda text: encode(digest(text.encode("utf-8", "surrogatepass")))

    def determines(self) -> frozenset[str]:
        """Return what the hashed text determines, unless collisions can be constructed."""
        return frozenset() if self.algorithm in ("md5", "sha1") else self.of.determines()


@dataclass(frozen=True)
class Bucket(Changed, op="bucket"):
    """One of a fixed number of partitions. See `bucket`."""

    count: int
    algorithm: str
    of: Expression
    prefix: str = "partition-"

    def __post_init__(self) -> None:
        need_int("keys.bucket(count)", self.count, least=1, most=MAX_BUCKETS)
        need_one_of("keys.bucket(algorithm)", self.algorithm, BUCKETS)
        need_text("keys.bucket(prefix)", self.prefix, empty=True)

    @property
    def length(self) -> int:
        """The number of characters of every result."""
        return len(self.prefix) + self._digits

    @property
    def _digits(self) -> int:
        return max(MIN_DIGITS, len(str(self.count - 1)))

    def change(self, scope: Scope) -> Callable[[str], str]:  # noqa: ARG002 - it refuses nothing
        number, count, prefix, width = BUCKETS[self.algorithm], self.count, self.prefix, self._digits
        return lambda text: f"{prefix}{number(text.encode('utf-8', 'surrogatepass')) % count:0{width}d}"


@dataclass(frozen=True)
class Opaque(Expression, op="opaque"):
    """A keyed id. See `opaque`.

    It is lowercase Crockford base32 of the first 160 bits of HMAC-SHA-256(secret, "rekey/v1" ‖ 0 ‖ domain ‖ 0
    ‖ value). `value` is the UTF-8 of the exact text; with several parts, for each part the length of its
    UTF-8 as 4 bytes big-endian and then the UTF-8, so that ("ab", "c") and ("a", "bc") differ. With 1e10 rows
    the collision probability is 3e-29.
    """

    parts: tuple[Expression, ...]
    domain: str
    secret: str
    alphabet = ALPHABET

    def __post_init__(self) -> None:
        refuse_if(not self.parts, "keys.opaque", "nothing-to-hide")
        # Without NUL no value can look like the end of a domain.
        nul = "\0" in need_text("keys.opaque(domain)", self.domain)
        refuse_if(nul, "keys.opaque(domain)", "nul-in-domain")
        need_text("keys.opaque(secret)", self.secret)

    def compile(self, scope: Scope) -> Evaluator:
        mac, parts = self._mac(scope), [part.compile(scope) for part in self.parts]
        return lambda row, item: encode_id(mac(*[part(row, item) for part in parts]))

    def compile_page(self, scope: Scope) -> PageEvaluator:
        mac, parts = self._mac(scope), [part.compile_page(scope) for part in self.parts]
        return lambda rows: encode_ids(list(map(mac, *[part(rows) for part in parts])))

    def _mac(self, scope: Scope) -> Callable[..., bytes]:
        """Return the function that returns the MAC of the parts' texts."""
        mac = hmac_sha256(scope.secret(self.secret), PREFIX + self.domain.encode("utf-8") + b"\0")
        if len(self.parts) == 1:
            return lambda text: mac(text.encode("utf-8", "surrogatepass"))

        def of_framed(*texts: str) -> bytes:
            values = [text.encode("utf-8", "surrogatepass") for text in texts]
            return mac(b"".join([len(value).to_bytes(LENGTH_BYTES, "big") + value for value in values]))

        return of_framed

    def determines(self) -> frozenset[str]:
        """Return what all parts determine: their lengths keep them apart."""
        return frozenset[str]().union(*(part.determines() for part in self.parts))

    @property
    def fixed_length(self) -> int:
        return ID_CHARACTERS

    def describe(self) -> str:
        return f"opaque({', '.join(part.describe() for part in self.parts)}, domain={self.domain})"


def hashed(algorithm: str, of: Expression | str, encoding: str = "hex") -> Expression:
    """Return the unkeyed digest of the text's UTF-8 bytes. It hides nothing: anyone with a list of candidates
    (e-mail addresses, numbers) recovers the text at more than a million guesses per second. For personal keys
    use `opaque`.

    Args:
        algorithm: `sha256`, `sha512`, `blake2b-160`, `sha1` or `md5`.
        of: a property's name or an expression.
        encoding: `hex` (lower case) or `crockford` (lowercase base32 without padding).
    """
    return Hashed(algorithm, operand("keys.hashed", of), encoding)


def bucket(count: int, algorithm: str, of: Expression | str, prefix: str = "partition-") -> Expression:
    """Return one of `count` names, `partition-000` …, chosen by a hash of the text.

    Args:
        count: how many, 1 to 1,000,000. The number has at least 3 digits, more when `count` needs them.
        algorithm: `sha256` or `crc32`; see `BUCKETS`.
        of: a property's name or an expression.
        prefix: text before the number.
    """
    return Bucket(count, algorithm, operand("keys.bucket", of), prefix)


def opaque(*parts: Expression | str, domain: str, secret: str) -> Expression:
    """Return a keyed id of 32 characters that tells nothing about its text: a guess cannot be tested without
    the secret.

    Args:
        parts: property names or expressions. Their exact text counts: `A@x.org` and `a@x.org` give different
            ids unless `keys.normalize` is put around them.
        domain: the kind of thing that the id names, e.g. `user`; keeps ids of different kinds apart under one
            secret.
        secret: the name of the secret, configured under `[secrets.NAME]`; at least 16 bytes. Without the same
            secret the id cannot be computed again.
    """
    return Opaque(tuple(operand("keys.opaque", part) for part in parts), domain, secret)
