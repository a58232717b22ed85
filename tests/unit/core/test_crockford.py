"""Ids are RFC 4648 base32 in another alphabet, whatever the length: the standard library is the witness."""

from __future__ import annotations

import base64
import random

import pytest

from rekey.core.crockford import ALPHABET, encode, encode_ids

_FROM_RFC4648 = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", ALPHABET)


@pytest.mark.parametrize("length", range(42))
def test_every_length_is_encoded_as_the_standard_says(length: int) -> None:
    source = random.Random(length)
    for data in (bytes(length), b"\xff" * length, source.randbytes(length)):
        witness = base64.b32encode(data).decode("ascii").rstrip("=").translate(_FROM_RFC4648)
        assert encode(data) == witness


def test_it_keeps_byte_order() -> None:
    source = random.Random(1)
    values = [source.randbytes(20) for _ in range(1_000)]
    assert sorted(values, key=encode) == sorted(values)


@pytest.mark.parametrize("count", [0, 1, 2, 99, 100, 101, 250])
def test_many_ids_are_encoded_as_one_by_one(count: int) -> None:
    source = random.Random(count)
    digests = [b"\xff" * 32, bytes(32), *(source.randbytes(32) for _ in range(count))][:count]
    assert encode_ids(digests) == [encode(digest[:20]) for digest in digests]
