"""The Merkle tree over the audit log (RFC 6962, section 2.1). It is hashed level by level, with a last odd
hash moved up unchanged, which gives the same root as the RFC's splits; `docs/guides/verify-by-hand.md` does
the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def leaf_hash(leaf: bytes) -> bytes:
    """Return SHA-256(0x00 ‖ leaf)."""
    return hashlib.sha256(b"\0" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return SHA-256(0x01 ‖ left ‖ right)."""
    return hashlib.sha256(b"\1" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaf hashes; SHA-256() without any."""
    return levels_of(leaves)[-1][0] if leaves else hashlib.sha256().digest()


def root_of_first(levels: Sequence[Sequence[bytes]], size: int) -> bytes:
    """Return the root over the first `size` leaf hashes (at least one) of a tree, in O(log size) hashes."""
    at, peaks = 0, list[bytes]()
    for height in reversed(range(size.bit_length())):
        if size >> height & 1:  # the next whole subtree of 2^height leaves
            peaks.append(levels[height][at >> height])
            at += 1 << height
    node = peaks.pop()
    while peaks:
        node = node_hash(peaks.pop(), node)
    return node


def inclusion_proofs(leaves: Sequence[bytes], indexes: Sequence[int]) -> list[list[bytes]]:
    """Return the inclusion proofs of some leaves: the sibling hashes from leaf to root, lowest first.

    Args:
        leaves: all leaf hashes.
        indexes: numbers of the leaves to prove, from 0.
    """
    levels, proofs = levels_of(leaves)[:-1], []
    for index in indexes:
        siblings = [(level, index >> height ^ 1) for height, level in enumerate(levels)]
        proofs.append([level[at] for level, at in siblings if at < len(level)])
    return proofs


def is_included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected_root: bytes) -> bool:
    """Tell whether a proof shows that a leaf hash is at `index` of a tree of `size` leaves."""
    if not 0 <= index < size:
        return False
    node, left = leaf, list(proof)
    while size > 1:
        if index % 2 == 1 or index + 1 < size:
            if not left:
                return False
            sibling = left.pop(0)
            node = node_hash(sibling, node) if index % 2 else node_hash(node, sibling)
        index, size = index // 2, (size + 1) // 2
    return not left and node == expected_root


def levels_of(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """Return the hashes of a tree by height, the leaf hashes first."""
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        above = [node_hash(below[at], below[at + 1]) for at in range(0, len(below) - 1, 2)]
        levels.append(above + below[len(above) * 2 :])
    return levels
