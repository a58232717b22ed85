"""Lowercase Crockford base32: short, case-proof, safe in keys, and it keeps byte order.

Standard base64 contains `/` and `+`, which keys refuse or URLs mangle; this alphabet contains neither,
and because its digits ascend in ASCII, encoded values sort as the bytes do (https://www.crockford.com/base32.html).
"""

from __future__ import annotations

import base64

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_FROM_RFC4648 = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", ALPHABET)


def encode(data: bytes) -> str:
    """Return `data` in lowercase Crockford base32 without padding (5 bits a character)."""
    return base64.b32encode(data).decode("ascii").rstrip("=").translate(_FROM_RFC4648)
