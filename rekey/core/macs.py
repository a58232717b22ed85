"""HMAC-SHA-256 of many short messages under one key; every id is made with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

_BLOCK_BYTES = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


def hmac_sha256(key: bytes, prefix: bytes = b"") -> Callable[[bytes], bytes]:
    """Return a function that maps a message to HMAC-SHA-256(key, prefix ‖ message), 32 bytes."""
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha256(key).digest()
    padded = key.ljust(_BLOCK_BYTES, b"\0")
    # HMAC (RFC 2104) over hashlib's SHA-256: the two states that depend only on key and prefix are computed
    # once and copied. The standard library's `hmac` wraps each step in a Python call and takes more than
    # twice as long; three ids are made for every copied row.
    begin_inner = hashlib.sha256(padded.translate(_INNER) + prefix).copy
    begin_outer = hashlib.sha256(padded.translate(_OUTER)).copy

    def mac(message: bytes) -> bytes:
        inner, outer = begin_inner(), begin_outer()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()

    return mac
