"""Lowercase Crockford base32: short, case-proof, safe in keys, and it keeps byte order.

Standard base64 contains `/` and `+`, which keys refuse or URLs mangle; this alphabet contains neither,
and because its digits ascend in ASCII, encoded values sort as the bytes do (https://www.crockford.com/base32.html).
"""

from __future__ import annotations

from itertools import product

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(map("".join, product(ALPHABET, repeat=2)))
"""Every two digits: 10 bits at a time is several times faster than the standard library's base32, and three
ids are made for every row that is copied."""


def encode(data: bytes) -> str:
    """Return `data` in lowercase Crockford base32 without padding (5 bits a character)."""
    digits = -(-len(data) * 8 // 5)
    whole = digits + digits % 2
    number = int.from_bytes(data, "big") << (whole * 5 - len(data) * 8)
    pairs = _PAIRS
    return "".join([pairs[number >> shift & 1023] for shift in range(whole * 5 - 10, -1, -10)])[:digits]
