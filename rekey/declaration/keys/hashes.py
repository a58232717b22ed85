"""Unkeyed digests: hashes and buckets.

Rules kept here:

* Text is hashed as the UTF-8 bytes of exactly the text that is there.
* An unkeyed hash hides nothing: who has the list of candidates (e-mail addresses, numbers) finds the
  text again at more than a million guesses a second. Use `keys.opaque` where the old key is personal.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from rekey.core import crockford
from rekey.declaration.keys.base import Changed, Expression, Scope, need_int, need_one_of, need_text, operand

DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "sha512": lambda data: hashlib.sha512(data).digest(),
    "blake2b-160": lambda data: hashlib.blake2b(data, digest_size=20).digest(),
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
}
"""What `hashed` can compute. SHA-1 and MD5 are there for keys that other systems already made with them."""

ENCODINGS: dict[str, Callable[[bytes], str]] = {"hex": bytes.hex, "crockford": crockford.encode}

BUCKETS: dict[str, Callable[[bytes], int]] = {
    "sha256": lambda data: int.from_bytes(hashlib.sha256(data).digest()[:8], "big"),
    "crc32": zlib.crc32,
}
"""Numbers `bucket` takes modulo its count: the first 8 bytes of SHA-256, big-endian, or zlib's CRC-32."""

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
        """Return the function."""
        digest, encode = DIGESTS[self.algorithm], ENCODINGS[self.encoding]
        return lambda text: encode(digest(text.encode("utf-8", "surrogatepass")))


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

    def change(self, scope: Scope) -> Callable[[str], str]:  # noqa: ARG002 - it refuses nothing
        """Return the function."""
        number, count, prefix = BUCKETS[self.algorithm], self.count, self.prefix
        width = max(MIN_DIGITS, len(str(count - 1)))
        return lambda text: f"{prefix}{number(text.encode('utf-8', 'surrogatepass')) % count:0{width}d}"


def hashed(algorithm: str, of: Expression | str, encoding: str = "hex") -> Expression:
    """Return the unkeyed digest of the text's UTF-8 bytes.

    Args:
        algorithm: `sha256`, `sha512`, `blake2b-160`, `sha1` or `md5`.
        of: a property's name or an expression.
        encoding: `hex` (lower case) or `crockford` (lower-case base32 without padding).
    """
    return Hashed(algorithm, operand("keys.hashed", of), encoding)


def bucket(count: int, algorithm: str, of: Expression | str, prefix: str = "partition-") -> Expression:
    """Return one of `count` names, `partition-000` …, chosen by a hash of the text.

    Args:
        count: how many, 1 to 1,000,000. The number has at least 3 digits, more when `count` needs them.
        algorithm: `sha256` or `crc32`; see `BUCKETS`.
        of: a property's name or an expression.
        prefix: what stands before the number.
    """
    return Bucket(count, algorithm, operand("keys.bucket", of), prefix)
