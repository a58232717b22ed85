"""What somebody with a list of addresses can find out: are their hashes among some bytes?

Whatever a hash is written as, 60 bits of it stand there as 15 hexadecimal digits, 12 of Crockford's or the
usual base32, 10 of base64, or as 8 bytes, from its beginning on. All such places are collected once; a word
of the dictionary is then one look into a set, so a million of them can be tried.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator

from rekey.core import crockford

BITS = 60
PLAIN: tuple[Callable[[bytes], bytes], ...] = (
    lambda text: hashlib.md5(text, usedforsecurity=False).digest(),
    lambda text: hashlib.sha1(text, usedforsecurity=False).digest(),
    lambda text: hashlib.sha256(text).digest(),
)
"""What people hash addresses with."""
MORE: tuple[Callable[[bytes], bytes], ...] = (
    *PLAIN,
    lambda text: hashlib.sha512(text).digest(),
    lambda text: hashlib.sha3_256(text).digest(),
    lambda text: hashlib.blake2b(text).digest(),
    lambda text: hashlib.blake2b(text, digest_size=16).digest(),
    lambda text: hashlib.blake2b(text, digest_size=20).digest(),
    lambda text: hashlib.blake2b(text, digest_size=32).digest(),
)
_STANDARD32 = "abcdefghijklmnopqrstuvwxyz234567"
_ALPHABETS = (
    ("0123456789abcdef", 15, True),
    (crockford.ALPHABET, 12, True),
    (_STANDARD32, 12, True),
    ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", 10, False),
    ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", 10, False),
)


class Held:
    """Every place of some bytes where a hash could begin."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        """Take the bytes, in pieces that no hash crosses."""
        self._places: set[int] = set()
        for piece in pieces:
            self._raw(piece)
            for alphabet, digits, folded in _ALPHABETS:
                self._text(piece.lower() if folded else piece, alphabet, digits)

    def __len__(self) -> int:
        return len(self._places)

    def has(self, digest: bytes) -> bool:
        """Tell whether a digest stands there, in any of the forms."""
        return int.from_bytes(digest[:8]) >> 64 - BITS in self._places

    def _raw(self, piece: bytes) -> None:
        for start in range(len(piece) - 7):
            self._places.add(int.from_bytes(piece[start : start + 8]) >> 64 - BITS)

    def _text(self, piece: bytes, alphabet: str, digits: int) -> None:
        values = {ord(sign): number for number, sign in enumerate(alphabet)}
        width = BITS // digits
        low = (1 << BITS) - 1
        signs = re.escape(alphabet).encode()
        for run in re.finditer(b"[" + signs + b"]{%d,}" % digits, piece):
            number = 0
            for place, sign in enumerate(run[0], start=1):
                number = number << width & low | values[sign]
                if place >= digits:
                    self._places.add(number)


def texts_of(partition: str, key: str) -> Iterator[bytes]:
    """Yield what people hash when they hash a key."""
    name = key.partition("@")[0]
    joined = (f"{partition}{sign}{key}" for sign in ("", "\0", "/", "|", ":"))
    for text in (key, name, partition, *joined):
        yield text.encode()
        yield base64.b64encode(text.encode())
