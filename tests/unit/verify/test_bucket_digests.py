"""Bucket digests: additive, resumable, and one content digest per table."""

import base64
import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekey.errors import StateUnusable
from rekey.model import EntityKey, KeyRange, Row
from rekey.verify.bucket_digests import SOURCE, BucketDigests, Part, Partial
from rekey.verify.digest import BUCKETS, Digester, bucket_of

ROWS = st.lists(
    st.tuples(st.sampled_from([0, 1, BUCKETS - 1]), st.binary(min_size=16, max_size=16)), max_size=6
)


def summed(rows: list[tuple[int, bytes]]) -> BucketDigests:
    digests = BucketDigests()
    for bucket, digest in rows:
        digests.digests[bucket] += int.from_bytes(digest)
        digests.counts[bucket] += 1
    return digests


@settings(max_examples=30)
@given(ROWS, ROWS)
def test_parts_add_up_in_any_order(one: list[tuple[int, bytes]], other: list[tuple[int, bytes]]) -> None:
    whole = summed(one + other)
    first, second = summed(one), summed(other)
    first.merge(summed(other))
    second.merge(summed(one))
    assert first.content_digest() == second.content_digest() == whole.content_digest()
    assert not first.differing(whole)
    assert first.rows == len(one) + len(other)


@given(
    st.lists(st.tuples(st.sampled_from(["", "p", "\ud800", "pé"]), st.text(max_size=4), st.integers(0, 3))),
    st.integers(0, 3),
)
def test_adding_rows_is_what_buckets_and_digests_say(keys: list[tuple[str, str, int]], at: int) -> None:
    """Whatever partitions come in which order; also when another part was merged in between."""
    digester = Digester("T")
    rows: list[Row] = [{"PartitionKey": p, "RowKey": r, "Number": number} for p, r, number in keys]
    digests = BucketDigests()
    add = digests.adder(digester)
    buckets = [bucket_of(row["PartitionKey"], row["RowKey"]) for row in rows]
    wanted = summed(list(zip(buckets, digester.digests(rows), strict=True)))
    other = summed([(7, b"\1" * 16)])
    wanted.merge(other)
    add(rows[:at])
    digests.merge(other)
    add(rows[at:])
    assert digests.packed() == wanted.packed()


def test_differing_buckets_are_named() -> None:
    """Another digest, one row more, and rows whose digests add up to 2^128 all show."""
    base = [(5, b"\1" * 16)]
    assert summed(base).differing(summed([(5, b"\2" * 16)])) == {5}
    assert summed(base).differing(summed([*base, (7, b"\0" * 16)])) == {7}
    half = b"\x80" + b"\0" * 15
    assert summed([(1, half), (1, half)]).differing(summed([])) == {1}


def test_the_content_digest_is_the_documented_one() -> None:
    """SHA-256 over a header and, per bucket, 16 bytes of sum and 8 bytes of count."""
    digests = summed([(0, b"\xff" * 16), (0, b"\xff" * 16)])
    packed = ((2 * (2**128 - 1)) % 2**128).to_bytes(16) + (2).to_bytes(8) + bytes(24 * (BUCKETS - 1))
    assert digests.content_digest() == hashlib.sha256(b"rekey/table/v1\0" + packed).hexdigest()


@settings(max_examples=30)
@given(ROWS)
def test_digests_survive_storage(rows: list[tuple[int, bytes]]) -> None:
    stored, packed = summed(rows).as_json(), summed(rows).packed()
    assert BucketDigests.from_json(stored).packed() == packed
    assert len(stored) < 20_000, "what a small table leaves empty takes no place"
    assert BucketDigests.from_json(base64.b64encode(packed).decode()).packed() == packed, (
        "as version 0.2 stored"
    )


def partial() -> Partial:
    work = Partial.fresh(2)
    first, rest = KeyRange(None, EntityKey("m", "")), KeyRange(EntityKey("m", ""), None)
    work.parts = [Part(SOURCE, first), Part(SOURCE, rest), *work.parts[1:]]
    work.expected[1] = summed([(3, b"\7" * 16)])
    work.actual[0] = summed([(4, b"\7" * 16)])
    work.parts[0].cursor = EntityKey("c", "\ud800")
    work.parts[1].done = True
    work.source_rows, work.refused = 12, 1
    return work


def test_partial_digests_survive_storage_as_json() -> None:
    """What was stored goes on exactly where it stopped."""
    work = partial()
    again = Partial.from_state(json.loads(json.dumps(work.as_state())), targets=2)
    assert again.parts == work.parts
    assert again.parts[0].rest == KeyRange(EntityKey("c", "\ud800"), EntityKey("m", ""))
    assert [digests.packed() for digests in again.expected] == [digests.packed() for digests in work.expected]
    assert [digests.packed() for digests in again.actual] == [digests.packed() for digests in work.actual]
    assert (again.source_rows, again.refused) == (12, 1)


@pytest.mark.parametrize("damage", ["targets", "buckets", "sums", "parts", "base64"])
def test_digests_of_another_comparison_are_refused(damage: str) -> None:
    """Only proof that stored digests fit lets a verification go on from them."""
    state = partial().as_state()
    targets = 3 if damage == "targets" else 2
    if damage == "buckets":
        state["buckets"] = 7
    elif damage == "sums":
        state["actual"][0] = state["actual"][0][:-8]
    elif damage == "parts":
        state["parts"] = [[1, 2]]
    elif damage == "base64":
        state["expected"][0] = "§"
    with pytest.raises(StateUnusable, match="stored digests"):
        Partial.from_state(state, targets=targets)


def test_no_key_in_a_repr() -> None:
    """Values that hold keys do not show them when they are printed."""
    assert "secret" not in repr(Part(0, KeyRange(EntityKey("secret", "")), EntityKey("secret", "")))
    work = Partial([Part(SOURCE, KeyRange(EntityKey("secret", "")))], [], [])
    assert "secret" not in repr(work)
