"""Opaque ids: keyed, so that a guess of the old key cannot be tested without the secret.

Rules kept here:

* An id is lower-case Crockford base32 of the first 160 bits of
  HMAC-SHA-256(secret, "rekey/v1" ‖ 0 ‖ domain ‖ 0 ‖ value): 32 characters. With 1e10 rows the chance of any
  collision is 3e-29.
* `value` is the UTF-8 of exactly the text that is there. With several parts it is, for each part in order,
  the length of its UTF-8 as 4 bytes big-endian and then the UTF-8: ("ab", "c") and ("a", "bc") differ.
* The domain keeps ids of different kinds apart under one secret. It holds no NUL, so that nothing in a value
  can look like the end of a domain.
"""

from __future__ import annotations

from dataclasses import dataclass

from rekey.core.crockford import encode_id
from rekey.core.macs import hmac_sha256
from rekey.declaration.keys.base import Evaluator, Expression, InvalidDeclaration, Scope, need_text, operand
from rekey.model import Row

PREFIX = b"rekey/v1\0"
LENGTH_BYTES = 4


@dataclass(frozen=True)
class Opaque(Expression, op="opaque"):
    """A keyed id. See `opaque`."""

    parts: tuple[Expression, ...]
    domain: str
    secret: str

    def __post_init__(self) -> None:
        if not self.parts:
            raise InvalidDeclaration(
                "keys.opaque", "there is nothing to hide", cure="name what the id is made of"
            )
        if "\0" in need_text("keys.opaque(domain)", self.domain):
            raise InvalidDeclaration(
                "keys.opaque(domain)", "the domain holds a NUL", cure='use a plain word, e.g. domain="user"'
            )
        need_text("keys.opaque(secret)", self.secret)

    def compile(self, scope: Scope) -> Evaluator:
        """Return the closure. Raises SecretMissing."""
        message = PREFIX + self.domain.encode("utf-8") + b"\0"
        mac = hmac_sha256(scope.secret(self.secret), message)
        parts = [part.compile(scope) for part in self.parts]
        if len(parts) == 1:
            (only,) = parts

            def evaluate_one(row: Row, item: str) -> str:
                return encode_id(mac(only(row, item).encode("utf-8", "surrogatepass")))

            return evaluate_one

        def evaluate(row: Row, item: str) -> str:
            values = [part(row, item).encode("utf-8", "surrogatepass") for part in parts]
            framed = [len(value).to_bytes(LENGTH_BYTES, "big") + value for value in values]
            return encode_id(mac(b"".join(framed)))

        return evaluate

    def describe(self) -> str:
        """Return `opaque(A, domain=user)`."""
        return f"opaque({', '.join(part.describe() for part in self.parts)}, domain={self.domain})"


def opaque(*parts: Expression | str, domain: str, secret: str) -> Expression:
    """Return a keyed id of 32 characters that tells nothing about the text it was made of.

    Args:
        parts: what the id is made of: property names or expressions. It is the exact text: `A@x.org` and
            `a@x.org` give different ids unless `keys.normalize` is put around it.
        domain: what kind of thing the id names, e.g. `user`.
        secret: the name of the secret, configured under `[secrets.NAME]`; at least 16 bytes. The id can only
            be computed again with the same secret.
    """
    return Opaque(tuple(operand("keys.opaque", part) for part in parts), domain, secret)
