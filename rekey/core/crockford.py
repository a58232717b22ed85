"""Lowercase Crockford base32: short, case-proof, safe in keys, and it keeps byte order.

Rules kept here:

* Standard base64 contains `/` and `+`, which keys refuse or URLs mangle; this alphabet contains neither, and
  because its digits ascend in ASCII, encoded values sort as the bytes do
  (https://www.crockford.com/base32.html).
* An id of 20 bytes is encoded without a large table. Three are made for every row that is copied, and between
  two of them rows and requests push such a table out of the processor's cache: it costs more than it saves.
"""

from __future__ import annotations

import base64

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_FROM_STANDARD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", ALPHABET.encode())
ID_BYTES, _ID_DIGITS = 20, 32
_DIGIT_OF = (ALPHABET * 8).encode()
"""Table for `bytes.translate`: the digit of each number below 32."""


def _lower(digits: int) -> int:
    """Return the mask of lower halves for one step of `encode_id`.

    Before the step every `2 * digits` bytes hold `2 * digits` digits of 5 bits at their lower end; after it
    every `digits` bytes hold `digits` of them: upper halves move up by `3 * digits` bits.
    """
    return sum((1 << 5 * digits) - 1 << 8 * begin for begin in range(0, _ID_DIGITS, 2 * digits))


_LOWER_16, _LOWER_8, _LOWER_4, _LOWER_2, _LOWER_1 = map(_lower, (16, 8, 4, 2, 1))


def encode(data: bytes) -> str:
    """Return `data` in lowercase Crockford base32 without padding (5 bits a character)."""
    if len(data) == ID_BYTES:
        return encode_id(data)
    return base64.b32encode(data).rstrip(b"=").translate(_FROM_STANDARD).decode("ascii")


def encode_id(digest: bytes) -> str:
    """Return the 32 digits of a digest's first 20 bytes. Halves of the number are moved apart, step by step,
    until every digit has a byte of its own."""
    number = int.from_bytes(digest[:ID_BYTES], "big")
    # Not a loop: that takes twice as long, and three ids are made for every row.
    stays = number & _LOWER_16
    number = (number ^ stays) << 48 | stays
    stays = number & _LOWER_8
    number = (number ^ stays) << 24 | stays
    stays = number & _LOWER_4
    number = (number ^ stays) << 12 | stays
    stays = number & _LOWER_2
    number = (number ^ stays) << 6 | stays
    stays = number & _LOWER_1
    number = (number ^ stays) << 3 | stays
    return number.to_bytes(_ID_DIGITS, "big").translate(_DIGIT_OF).decode("ascii")
