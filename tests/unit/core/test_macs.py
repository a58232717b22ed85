"""Ids are HMAC-SHA-256, whatever the key's length, and Crockford base32 of whole bits."""

from __future__ import annotations

import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from rekey.core.crockford import ALPHABET, encode
from rekey.core.macs import hmac_sha256


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=80), st.binary(max_size=300))
def test_it_is_the_hmac_of_the_standard_library(key: bytes, prefix: bytes, message: bytes) -> None:
    assert hmac_sha256(key, prefix)(message) == hmac.digest(key, prefix + message, hashlib.sha256)


def test_a_message_leaves_nothing_behind_for_the_next_one() -> None:
    mac = hmac_sha256(b"key", b"prefix")
    first = mac(b"one")
    mac(b"two")
    assert mac(b"one") == first


@given(st.binary(min_size=20, max_size=20))
def test_ids_of_twenty_bytes_are_their_bits_five_by_five(data: bytes) -> None:
    bits = f"{int.from_bytes(data):0160b}"
    assert encode(data) == "".join(ALPHABET[int(bits[at : at + 5], 2)] for at in range(0, 160, 5))
