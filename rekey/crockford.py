"""Lowercase Crockford base32: short, case-proof, safe in keys, and it keeps byte order.

Standard base64 contains `/` and `+`, which keys refuse or URLs mangle; this alphabet contains neither,
and because its digits ascend in ASCII, encoded values sort as the bytes do (https://www.crockford.com/base32.html).
"""

from __future__ import annotations

from itertools import product

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(map("".join, product(ALPHABET, repeat=2)))
_THREES = tuple(map("".join, product(ALPHABET, repeat=3)))
"""Every two and every three digits: 15 bits at a time is several times faster than the standard library's
base32, and three ids are made for every row that is copied."""
_ID_BYTES = 20
_LOW_60, _LOW_40 = (1 << 60) - 1, (1 << 40) - 1


def encode(data: bytes) -> str:
    """Return `data` in lowercase Crockford base32 without padding (5 bits a character)."""
    if len(data) == _ID_BYTES:
        return _encode_id(int.from_bytes(data, "big"))
    digits = -(-len(data) * 8 // 5)
    whole = digits + digits % 2
    number = int.from_bytes(data, "big") << (whole * 5 - len(data) * 8)
    pairs = _PAIRS
    return "".join([pairs[number >> shift & 1023] for shift in range(whole * 5 - 10, -1, -10)])[:digits]


def _encode_id(number: int) -> str:
    """Return the 32 digits of 160 bits, taken apart into numbers that the machine counts quickly."""
    a, b, c = number >> 100, number >> 40 & _LOW_60, number & _LOW_40
    three = _THREES
    return (
        f"{three[a >> 45]}{three[a >> 30 & 32767]}{three[a >> 15 & 32767]}{three[a & 32767]}"
        f"{three[b >> 45]}{three[b >> 30 & 32767]}{three[b >> 15 & 32767]}{three[b & 32767]}"
        f"{three[c >> 25]}{three[c >> 10 & 32767]}{_PAIRS[c & 1023]}"
    )
