"""Digests as keys: unkeyed hashes, buckets, and opaque ids, whose construction is fixed for ever."""

from __future__ import annotations

import hashlib
import hmac
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey import keys
from rekey.core import crockford
from rekey.declaration.keys import InvalidDeclaration
from rekey.declaration.keys.base import Scope
from rekey.errors import SecretMissing
from tests.asserts.expression_values import IDS_SECRET, evaluate

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
GOLDEN_ONE = "s6kk1whytk48s3z5fwgyf2b9nyp2mxa3"
GOLDEN_TWO = "mysstzcynnaw4p225rqdfe6eeeke367z"


def base32(data: bytes) -> str:
    """Crockford base32 of 20 bytes, by arithmetic."""
    number = int.from_bytes(data, "big")
    return "".join(ALPHABET[(number >> shift) & 31] for shift in range(155, -1, -5))


def expected_id(value: bytes, domain: bytes = b"user") -> str:
    """The id by RFC 2104 with plain SHA-256, without rekey's code or the hmac module."""
    block = IDS_SECRET.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(x ^ 0x36 for x in block) + b"rekey/v1\0" + domain + b"\0" + value).digest()
    return base32(hashlib.sha256(bytes(x ^ 0x5C for x in block) + inner).digest()[:20])


@pytest.mark.parametrize("text", ["alice@example.com", "", "Ä", "e\u0301", "\U0001f600", "a" * 512])
def test_an_opaque_id_is_the_hmac_of_exactly_the_stored_text(text: str) -> None:
    made = evaluate(keys.opaque("A", domain="user", secret="ids"), A=text)
    assert made == expected_id(text.encode("utf-8"))
    assert len(made) == 32
    by_module = hmac.digest(IDS_SECRET, b"rekey/v1\0user\0" + text.encode(), "sha256")[:20]
    assert made == base32(by_module)


def test_golden_ids() -> None:
    """Ids are keys of rows that exist: these must never change.

    printf 'rekey/v1\\0user\\0alice@example.com' | openssl dgst -sha256 -hmac 0123456789abcdef
    """
    assert evaluate(keys.opaque("A", domain="user", secret="ids"), A="alice@example.com") == GOLDEN_ONE
    assert evaluate(keys.opaque("A", "B", domain="user", secret="ids"), A="ab", B="c") == GOLDEN_TWO


def test_composites_are_framed_with_lengths() -> None:
    made = evaluate(keys.opaque("A", "B", domain="user", secret="ids"), A="é", B="c")
    assert made == expected_id(b"\0\0\0\x02\xc3\xa9\0\0\0\x01c")


@given(st.lists(st.text(), min_size=2, max_size=2), st.lists(st.text(), min_size=2, max_size=2))
def test_different_composites_give_different_ids(one: list[str], other: list[str]) -> None:
    expression = keys.opaque("A", "B", domain="user", secret="ids")
    ids = [evaluate(expression, A=pair[0], B=pair[1]) for pair in (one, other)]
    assert (one == other) == (ids[0] == ids[1])


def test_domain_and_secret_change_the_id() -> None:
    base = evaluate(keys.opaque("A", domain="user", secret="ids"), A="x")
    assert base != evaluate(keys.opaque("A", domain="post", secret="ids"), A="x")
    scope = Scope("target.row_key", {"ids": b"fedcba9876543210"})
    compiled = keys.opaque("A", domain="user", secret="ids").compile(scope)
    assert base != compiled({"PartitionKey": "", "RowKey": "", "A": "x"}, "")


def test_case_counts_unless_a_profile_is_declared() -> None:
    exact = keys.opaque("A", domain="user", secret="ids")
    folded = keys.opaque(keys.normalize("email", "A"), domain="user", secret="ids")
    assert evaluate(exact, A="A@x.org") != evaluate(exact, A="a@x.org")
    assert evaluate(folded, A=" A@x.org") == evaluate(folded, A="a@X.org")


@pytest.mark.parametrize("secrets", [{}, {"ids": b""}, {"ids": b"too short"}])
def test_a_missing_or_short_secret_is_named_but_never_shown(secrets: dict[str, bytes]) -> None:
    with pytest.raises(SecretMissing) as caught:
        keys.opaque("A", domain="user", secret="ids").compile(Scope("target.row_key", secrets))
    assert "'ids'" in str(caught.value)
    assert "[secrets.ids]" in str(caught.value)
    assert "too short" not in str(caught.value)


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "sha1", "md5"])
def test_hashed_is_the_plain_digest(algorithm: str) -> None:
    digest = hashlib.new(algorithm, "é".encode()).digest()
    assert evaluate(keys.hashed(algorithm, "A"), A="é") == digest.hex()
    assert evaluate(keys.hashed(algorithm, "A", encoding="crockford"), A="é") == crockford.encode(digest)


def test_hashed_blake2b_has_160_bits() -> None:
    expected = hashlib.blake2b("é".encode(), digest_size=20).digest()
    assert evaluate(keys.hashed("blake2b-160", "A", encoding="crockford"), A="é") == base32(expected)


def test_bucket_names_a_partition() -> None:
    number = int.from_bytes(hashlib.sha256(b"x").digest()[:8], "big") % 16
    assert evaluate(keys.bucket(16, "sha256", "A"), A="x") == f"partition-{number:03d}"
    crc = zlib.crc32(b"x") % 5000
    assert evaluate(keys.bucket(5000, "crc32", "A", prefix="p"), A="x") == f"p{crc:04d}"
    assert evaluate(keys.bucket(1, "crc32", "A"), A="x") == "partition-000"


@given(st.text())
def test_buckets_stay_within_their_count(text: str) -> None:
    made = evaluate(keys.bucket(7, "sha256", "A"), A=text)
    assert made in {f"partition-{number:03d}" for number in range(7)}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: keys.bucket(0, "sha256", "A"), "keys.bucket(count)"),
        (lambda: keys.bucket(1_000_001, "sha256", "A"), "keys.bucket(count)"),
        (lambda: keys.bucket(1, "md4", "A"), "keys.bucket(algorithm)"),
        (lambda: keys.hashed("md4", "A"), "keys.hashed(algorithm)"),
        (lambda: keys.hashed("md5", "A", encoding="base64"), "keys.hashed(encoding)"),
        (lambda: keys.opaque(domain="user", secret="ids"), "keys.opaque"),
        (lambda: keys.opaque("A", domain="", secret="ids"), "keys.opaque(domain)"),
        (lambda: keys.opaque("A", domain="a\0b", secret="ids"), "keys.opaque(domain)"),
        (lambda: keys.opaque("A", domain="user", secret=""), "keys.opaque(secret)"),
    ],
)
def test_impossible_digests_are_refused_when_they_are_made(make: object, field: str) -> None:
    with pytest.raises(InvalidDeclaration) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == field
