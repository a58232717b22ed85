"""Keys that say what they were made of: inverting a target key without reading a row or a secret. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rekey.declaration.keys.base import Concat, Expression, InvalidDeclaration, Join, Literal, Prop, invalid
from rekey.declaration.keys.escape import Custom
from rekey.declaration.keys.hashes import Bucket, Opaque
from rekey.declaration.keys.text import ZeroPad
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey

_KEYS = (PARTITION_KEY, ROW_KEY)


@dataclass(frozen=True)
class _Piece:
    """A part of a key, and what its text says."""

    # Its characters; None: unknown.
    length: int | None
    # The key of the source that it holds; "" for a text that says nothing that must be known.
    holds: str = ""
    # Whether that key is padded with zeros.
    padded: bool = False

    def read(self, text: str) -> str:
        return (text.lstrip("0") or "0") if self.padded else text


class KeyInverse:
    """Inverts target keys that hold both keys of the source row."""

    def __init__(self, partition_key: Expression, row_key: Expression, where: str) -> None:
        """Prove that both keys of the source can be read from the new keys.

        Args:
            partition_key: the expression of the new PartitionKey.
            row_key: the expression of the new RowKey.
            where: the target's name in errors.

        Raises:
            InvalidDeclaration: they cannot, as far as the expressions prove.
        """
        self._pieces = [
            list(_pieces(expression, f"{where}.{name}"))
            for name, expression in (("partition_key", partition_key), ("row_key", row_key))
        ]
        for name, pieces in zip(("partition_key", "row_key"), self._pieces, strict=True):
            if sum(piece.length is None for piece in pieces) > 1:
                problem = "it has several parts of unknown length, so where each ends is not known"
                raise _unproven(f"{where}.{name}", problem)
        keys_read = {piece.holds for pieces in self._pieces for piece in pieces}
        for key in _KEYS:
            if key not in keys_read:
                raise _unproven(where, f"no new key holds the old {key}")

    def read(self, target_key: EntityKey) -> EntityKey | None:
        """Return the one source key that may map to a target key; None if there is none. That it does is for
        the caller to see: parts that are computed are not compared here."""
        old: dict[str, str] = {}
        for text, pieces in zip(target_key, self._pieces, strict=True):
            known = sum(piece.length or 0 for piece in pieces)
            if len(text) < known:
                return None
            lengths = [len(text) - known if piece.length is None else piece.length for piece in pieces]
            for piece, start, length in zip(pieces, accumulate(lengths, initial=0), lengths, strict=False):
                if piece.holds:
                    old.setdefault(piece.holds, piece.read(text[start : start + length]))
        return EntityKey(old[PARTITION_KEY], old[ROW_KEY])


def _pieces(expression: Expression, where: str) -> Iterator[_Piece]:
    match expression:
        case Prop(name=name, default=None) if name in _KEYS:
            yield _Piece(None, name)
        case ZeroPad(width=width, of=Prop(name=name)) if name in _KEYS:
            yield _Piece(width, name, padded=True)
        case Literal(text=text):
            yield _Piece(len(text))
        case Join(separator=separator, parts=parts):
            yield from _joined(parts, len(separator), where)
        case Concat(parts=parts):
            yield from _joined(parts, 0, where)
        case Bucket() if expression.inputs() <= {*_KEYS} and not expression.contains(Custom, Opaque):
            yield _Piece(expression.length)
        case _:
            read = sorted(expression.inputs() - {*_KEYS})
            problem = f"{expression.describe()} cannot be inverted"
            if expression.contains(Opaque):
                problem = "keys.opaque needs a secret, and nothing of the old key can be read from it"
            elif read:
                problem = f"it reads {', '.join(read)}, so the old key alone does not say the new one"
            raise _unproven(where, problem)


def _joined(parts: Sequence[Expression], between: int, where: str) -> Iterator[_Piece]:
    for number, part in enumerate(parts):
        if number and between:
            yield _Piece(between)
        yield from _pieces(part, where)


def _unproven(where: str, problem: str) -> InvalidDeclaration:
    return invalid(where, "not-inverted", reason=problem)
