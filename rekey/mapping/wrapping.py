"""The key that data keys are wrapped with: how it wraps, and how it is recognised. Pure.

Rules kept here:

* Wrapping is AES-256 key wrap (RFC 3394) under a key derived from the configured secret: unwrapping with
  another secret is refused.
* What was wrapped says by whom (`by`), so that a wrong key is refused by its name before anything is tried.
* A previous key is still good for unwrapping; everything new is wrapped with the present one.
* No repr and no message holds a secret or a key.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives import keywrap

from rekey.core import crockford
from rekey.errors import Moved, SecretMissing

MINIMUM_BYTES = 32
"""Of a wrapping secret: it protects every legacy key at once, and is never typed."""
_LABEL = b"rekey/wrapping/v1"
_NAME_BYTES = 20
KEY_BYTES = 32
"""Of a data key, which is what is wrapped."""


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A wrapped data key.

    Attributes:
        by: which wrapping key did it.
        data: the wrapped key.
    """

    by: str
    data: bytes = field(repr=False)


class WrappingKey(Protocol):
    """Something that wraps data keys, in this process or far away."""

    @property
    def name(self) -> str:
        """How messages name it; tells nothing of it."""

    @property
    def is_remote(self) -> bool:
        """Tell whether it is asked over the network, so that wrapping blocks."""

    def wraps(self, by: str) -> bool:
        """Tell whether this key is the one that wrapped something."""

    def wrap(self, key: bytes) -> Wrapped:
        """Wrap 32 bytes."""

    def unwrap(self, wrapped: Wrapped) -> bytes:
        """Return the 32 bytes. Raises Moved when it is not what this key wrapped."""


class LocalWrappingKey:
    """A wrapping key made of a secret that this process holds."""

    is_remote = False

    def __init__(self, secret: bytes) -> None:
        """Take the secret. Raises SecretMissing when it is shorter than 32 bytes."""
        if len(secret) < MINIMUM_BYTES:
            raise SecretMissing(
                f"the wrapping key is {'empty' if not secret else 'too short'}:"
                f" {len(secret)} bytes, and at least {MINIMUM_BYTES} are needed",
                hint="make one with `openssl rand -hex 32` before the migration begins, put it where"
                " [sealing] says, and keep a copy where it cannot be lost",
            )
        self._key = hmac.new(secret, _LABEL, hashlib.sha256).digest()
        told = hmac.new(self._key, b"rekey/wrapping/name/v1", hashlib.sha256).digest()
        self._by = f"local:{crockford.encode(told[:_NAME_BYTES])}"

    @property
    def name(self) -> str:
        """`local:` and 32 characters by which the secret is recognised without being known."""
        return self._by

    def wraps(self, by: str) -> bool:
        """Tell whether this key is the one that wrapped something."""
        return by == self._by

    def wrap(self, key: bytes) -> Wrapped:
        """Wrap 32 bytes."""
        return Wrapped(self._by, keywrap.aes_key_wrap(self._key, key))

    def unwrap(self, wrapped: Wrapped) -> bytes:
        """Return the 32 bytes. Raises Moved when it is not what this key wrapped."""
        if not self.wraps(wrapped.by):
            raise wrong_key(wrapped.by, self.name)
        try:
            return keywrap.aes_key_unwrap(self._key, wrapped.data)
        except (keywrap.InvalidUnwrap, ValueError):
            raise not_unwrapped(self._by) from None


class WrappingKeys:
    """The present wrapping key, and one of before that still unwraps."""

    def __init__(self, present: WrappingKey, previous: WrappingKey | None = None) -> None:
        """Take both."""
        self._present = present
        self._all = (present, previous) if previous is not None else (present,)

    @property
    def name(self) -> str:
        """The present key's."""
        return self._present.name

    @property
    def is_remote(self) -> bool:
        """Tell whether any of them is asked over the network."""
        return any(one.is_remote for one in self._all)

    def wraps(self, by: str) -> bool:
        """Tell whether the present key wrapped something."""
        return self._present.wraps(by)

    def wrap(self, key: bytes) -> Wrapped:
        """Wrap with the present key."""
        return self._present.wrap(key)

    def unwrap(self, wrapped: Wrapped) -> bytes:
        """Unwrap with the one of the keys that wrapped it. Raises Moved when none did."""
        for one in self._all:
            if one.wraps(wrapped.by):
                return one.unwrap(wrapped)
        raise wrong_key(wrapped.by, self._present.name)


def wrong_key(by: str, configured: str) -> Moved:
    """Return the error for data keys that another wrapping key wrapped."""
    return Moved(
        f"the mapping is sealed with the wrapping key {by}, and [sealing] names {configured}",
        kept="everything; nothing was opened and nothing was changed",
        hint="put the wrapping key back that the migration began with; if it was replaced, name the old one"
        " under [sealing.previous] and run `rekey apply`, which wraps the data keys anew",
    )


def not_unwrapped(by: str) -> Moved:
    """Return the error for something that does not unwrap although it says that this key wrapped it."""
    return Moved(
        f"a data key that the wrapping key {by} is said to have wrapped does not unwrap with it",
        kept="everything; nothing was opened and nothing was changed",
        hint="the row of the data key in the restricted store was changed; the runbook on the wrapping"
        " key says what can be had back",
    )
