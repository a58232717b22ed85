"""Sealing: legacy keys in the restricted store and the state file, encrypted and bound to their place; and
the wrapping key, which encrypts the data keys in the restricted store. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import keywrap
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rekey.core import crockford, edm
from rekey.core.safe_ids import SHORT_CHARACTERS
from rekey.errors import Erased, RekeyError, SealedUnreadable
from rekey.mapping.refusals import refusal
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, EntityKey, Row
from rekey.state.models import SEALED as SEALED_TEXT
from rekey.state.models import KeyTexts

# The row key of the root key, from which safe ids and the seal of the state file are derived. The row key of
# a data key is its cohort.
ROOT = "root"
DATA_KEY = "DataKey"
SEALED = "Sealed"
# Purposes: the two directions of the mapping, intents, and cursors in the state file.
FORWARD, REVERSE, INTENT, CURSOR = "forward", "reverse", "intent", "cursor"

# The least length of a wrapping secret: it protects every legacy key at once, and is never typed.
MINIMUM_BYTES = 32
_LABEL = b"rekey/wrapping/v1"
_NAME_BYTES = 20
# The length of a data key.
KEY_BYTES = 32
_NONCE_BYTES = 12
_LENGTH_BYTES = 4
_SMALLEST, _LARGEST = 128, 65_536
# Most sealed bytes in one property, which holds at most 65,535.
_PART_BYTES = 60_000
_ID_BYTES = 5
_PROOF = "Proof"
_CHECK_BYTES = 20


# --- the wrapping key --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A wrapped data key. `by`: the name (in Key Vault with a version) of the key that wrapped it."""

    by: str
    data: bytes = field(repr=False)


class WrappingKey(Protocol):
    """A key that wraps data keys, in this process or over the network."""

    @property
    def name(self) -> str:
        """Its name in messages, which reveals nothing of the key."""

    @property
    def is_remote(self) -> bool:
        """Whether it is over the network, so that wrapping and unwrapping block."""

    def wraps(self, by: str) -> bool:
        """Tell whether `by`, of a wrapped data key, names this wrapping key."""

    def wrap(self, key: bytes) -> Wrapped:
        """Wrap a data key of 32 bytes."""

    def unwrap(self, wrapped: Wrapped) -> bytes:
        """Return the 32 bytes of the data key. Raises Moved when it is not what this key wrapped."""

    def is_public(self, by: str) -> bool:
        """Tell whether wrapping takes no secret, so that what unwraps may have been planted. Raises Moved
        when `by`, of a wrapped data key, does not name this wrapping key."""

    def sign(self, by: str, message: bytes) -> bytes:
        """Return a signature by the wrapping key that `by` names; b"" where wrapping takes a secret."""

    def verifies(self, by: str, signature: bytes, message: bytes) -> bool:
        """Tell whether the wrapping key that `by` names made a signature. Called only if it `is_public`."""


class LocalWrappingKey:
    """A wrapping key derived from a secret that this process holds: AES-256 key wrap (RFC 3394)."""

    is_remote = False

    def __init__(self, secret: bytes) -> None:
        """Derive the key from the secret. Raises SecretMissing when that is shorter than 32 bytes."""
        if len(secret) < MINIMUM_BYTES:
            state = "too short" if secret else "empty"
            raise refusal("wrapping-key-short", how=state, length=len(secret), least=MINIMUM_BYTES)
        self._key = hmac.new(secret, _LABEL, hashlib.sha256).digest()
        digest = hmac.new(self._key, b"rekey/wrapping/name/v1", hashlib.sha256).digest()
        # The 32 characters after `local:` identify the secret without revealing it.
        self.name = f"local:{crockford.encode(digest[:_NAME_BYTES])}"

    def wraps(self, by: str) -> bool:
        return by == self.name

    def wrap(self, key: bytes) -> Wrapped:
        return Wrapped(self.name, keywrap.aes_key_wrap(self._key, key))

    def unwrap(self, wrapped: Wrapped) -> bytes:
        if not self.wraps(wrapped.by):
            raise refusal("other-wrapping-key", by=wrapped.by, configured=self.name)
        try:
            return keywrap.aes_key_unwrap(self._key, wrapped.data)
        except (keywrap.InvalidUnwrap, ValueError):
            raise refusal("not-unwrapped", by=self.name) from None

    def is_public(self, by: str) -> bool:
        """Return False: key wrap takes the secret, and authenticates. Raises as `unwrap`."""
        if not self.wraps(by):
            raise refusal("other-wrapping-key", by=by, configured=self.name)
        return False

    def sign(self, *_: object) -> bytes:
        return b""

    def verifies(self, *_: object) -> bool:
        return False


class WrappingKeys:
    """The present wrapping key, which wraps everything new, and the previous one, which still unwraps."""

    def __init__(self, present: WrappingKey, previous: WrappingKey | None = None) -> None:
        self._all = (present,) if previous is None else (present, previous)
        self.name, self.wraps, self.wrap = present.name, present.wraps, present.wrap
        self.is_remote = any(wrapping_key.is_remote for wrapping_key in self._all)

    def require(self, by: str) -> WrappingKey:
        """Return the wrapping key that `by`, of a wrapped data key, names. Raises Moved when neither does, as
        all methods do."""
        for wrapping_key in self._all:
            if wrapping_key.wraps(by):
                return wrapping_key
        raise refusal("other-wrapping-key", by=by, configured=self.name)

    def unwrap(self, wrapped: Wrapped) -> bytes:
        return self.require(wrapped.by).unwrap(wrapped)

    def is_public(self, by: str) -> bool:
        return self.require(by).is_public(by)

    def sign(self, by: str, message: bytes) -> bytes:
        return self.require(by).sign(by, message)

    def verifies(self, by: str, signature: bytes, message: bytes) -> bool:
        return self.require(by).verifies(by, signature, message)


def not_proved(script_id: str, cohort: str, *, proof: bytes) -> RekeyError:
    """Return the error for a data key that could be planted with the wrapping key's public half alone."""
    what = f"the root key of {script_id}" if cohort == ROOT else f"the data key {cohort} of {script_id}"
    if proof:
        return refusal("wrong-proof", key=what)
    return refusal("no-proof", key=what, script=script_id)


# --- data keys ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataKey:
    """A data key, unwrapped."""

    # `COHORT-ID`, e.g. `2024-05-3m9k2v7c`; unique.
    name: str
    # The month whose rows it seals, or `root`.
    cohort: str
    # 32 bytes.
    key: bytes = field(repr=False)


def cohort_of(moment: datetime) -> str:
    """Return the cohort of what is written at a moment: its month, `2024-05`."""
    return f"{moment.year:04}-{moment.month:02}"


def cohort_in(name: str) -> str:
    """Return the cohort that a data key's name begins with."""
    return name.rpartition("-")[0]


def new_data_key(cohort: str) -> DataKey:
    """Return a new random data key."""
    tail = crockford.encode(secrets.token_bytes(_ID_BYTES))
    return DataKey(f"{cohort}-{tail}", cohort, secrets.token_bytes(KEY_BYTES))


def key_partition(script_id: str) -> str:
    """Return the partition of the mapping table that holds a migration's wrapped data keys."""
    return f"{script_id}.k"


def proved(script_id: str, key: DataKey, wrapped: Wrapped) -> bytes:
    """Return what the proof of a data key's row covers: the whole row, as it is in the table."""
    parts = ("rekey/data-key-row/v1", script_id, key.cohort, key.name, wrapped.by, wrapped.data.hex())
    return "\0".join(parts).encode()


def data_key_row(script_id: str, data_key: DataKey, wrapped: Wrapped, proof: bytes = b"") -> Row:
    """Return the row of a data key in the mapping table."""
    return {
        PARTITION_KEY: key_partition(script_id),
        ROW_KEY: data_key.cohort,
        "Name": data_key.name,
        "WrappedBy": wrapped.by,
        **binary("Wrapped", wrapped.data),
        **binary("Check", _check(script_id, data_key)),
        **(binary(_PROOF, proof) if proof else {}),
    }


def wrap_data_key(script_id: str, key: DataKey, wrapping: WrappingKey, root: DataKey | None) -> Row:
    """Wrap a data key, and return its row with its proof. May block. `root`: None if `key` is the root
    key."""
    wrapped = wrapping.wrap(key.key)
    message = proved(script_id, key, wrapped)
    proof = wrapping.sign(wrapped.by, message) if root is None else _mac(root, message)
    return data_key_row(script_id, key, wrapped, proof)


def read_data_key(
    script_id: str, row: Row, wrapping: WrappingKey, root: DataKey | None = None, *, proofless: bool = False
) -> DataKey:
    """Unwrap the data key of a row. May block: a wrapping key can be remote.

    Args:
        root: the root key; None: `row` is the root key's.
        proofless: accept a row without a proof, from a version before 0.3; a wrong proof is refused.

    Raises:
        Moved: another wrapping key wrapped it, or the row was altered, swapped or planted.
    """
    try:
        wrapped = Wrapped(str(row["WrappedBy"]), base64.b64decode(row["Wrapped"], validate=True))
        check = base64.b64decode(row["Check"], validate=True)
        proof = base64.b64decode(row.get(_PROOF, ""), validate=True)
        name, cohort = str(row["Name"]), str(row[ROW_KEY])
    except (KeyError, TypeError, binascii.Error):
        raise refusal("not-unwrapped", by=str(row.get("WrappedBy", ""))) from None
    # Anyone can wrap with the public half of an RSA key: so the proof is checked before anything is
    # unwrapped, a signature by the wrapping key for the root key, a MAC under the root key for every other.
    if wrapping.is_public(wrapped.by) and (proof or not proofless):
        message = proved(script_id, DataKey(name, cohort, b""), wrapped)
        right = (
            wrapping.verifies(wrapped.by, proof, message)
            if root is None
            else hmac.compare_digest(proof, _mac(root, message))
        )
        if not proof or not right:
            raise not_proved(script_id, cohort, proof=proof)
    data_key = DataKey(name, cohort, wrapping.unwrap(wrapped))
    if not hmac.compare_digest(check, _check(script_id, data_key)):
        raise refusal("not-unwrapped", by=wrapped.by)
    return data_key


def has_proof(row: Row, wrapping: WrappingKey) -> bool:
    """Tell whether a data key's row has a proof, right or not, or needs none. Raises Moved."""
    return bool(row.get(_PROOF)) or not wrapping.is_public(str(row.get("WrappedBy", "")))


def root_fingerprint(root: DataKey, script_id: str) -> str:
    """Return what the audit log records of a root key; it reveals nothing about the key."""
    return derived(root, "fingerprint", salt=script_id.encode()).hex()


def _mac(root: DataKey, message: bytes) -> bytes:
    return hmac.new(derived(root, "data-keys", salt=b""), message, hashlib.sha256).digest()


def derived(root: DataKey, purpose: str, *, salt: bytes) -> bytes:
    """Return a key of 32 bytes derived from a root key for one purpose."""
    message = b"rekey/derived/v1\0" + purpose.encode() + b"\0" + salt
    return hmac.new(root.key, message, hashlib.sha256).digest()


def ids_key(root: DataKey, id_key: bytes) -> bytes:
    """Return the key of the safe ids of a sealed migration."""
    # Needs the root key, too: reading the restricted store is not enough to test guesses against ids.
    return derived(root, "ids", salt=id_key)


def cursors_key(root: DataKey, id_key: bytes) -> bytes:
    """Return the key that seals cursors in the state file."""
    return derived(root, "cursors", salt=id_key)


def tasks_key(root: DataKey | None, id_key: bytes) -> bytes:
    """Return the key that seals old keys in tasks and results."""
    # Used even where the mapping is in the clear (`root` None): an executor may write its tasks to a log or a
    # disk.
    return derived(root or DataKey("", ROOT, id_key), "tasks", salt=id_key)


def _check(script_id: str, data_key: DataKey) -> bytes:
    # Binds a data key to its migration, cohort and name; key wrap itself binds it to nothing.
    message = "\0".join(("rekey/data-key/v1", script_id, data_key.cohort, data_key.name)).encode()
    return hmac.new(data_key.key, message, hashlib.sha256).digest()[:_CHECK_BYTES]


def binary(name: str, data: bytes) -> Row:
    """Return a property that holds bytes."""
    return {name: binascii.b2a_base64(data, newline=False).decode("ascii"), name + TYPE_SUFFIX: edm.BINARY}


# --- sealing ---------------------------------------------------------------------------------------------


class Sealer:
    """Seals and opens content with the data keys that were added."""

    def __init__(self) -> None:
        self._keys: dict[str, DataKey] = {}
        self._ciphers: dict[tuple[str, str, str], AESGCM] = {}
        self._current = ""
        self._shredded: dict[str, str] = {}

    def add(self, key: DataKey) -> None:
        self._keys[key.name] = key

    def use(self, key: DataKey) -> None:
        self.add(key)
        self._current = key.name

    def knows(self, name: str) -> bool:
        """Tell whether the data key of this name was added, or its cohort is known to be shredded."""
        return name in self._keys or cohort_in(name) in self._shredded

    def shredded(self, cohort: str, on: str) -> None:
        self._shredded[cohort] = on

    @property
    def cohort(self) -> str:
        return cohort_in(self._current)

    def seal(self, purpose: str, table: str, key: EntityKey, plain: bytes, *, lane: str = "") -> Row:
        """Return the properties of a row that hold its sealed content.

        Args:
            purpose: what the content is, e.g. `FORWARD`.
            table, key: of the row.
            lane: selects one of the purpose's keys; opening needs the same.
        """
        name = self._current
        cipher = self._ciphers.get((name, purpose, lane)) or self._cipher(name, purpose, lane)
        sealed = encrypted(cipher, plain, bound_to(purpose, table, key, name))
        if len(sealed) <= _PART_BYTES:  # nearly always; a shortcut, since every copied row is sealed
            return {DATA_KEY: name, **binary(f"{SEALED}0", sealed)}
        row: Row = {DATA_KEY: name}
        for number, start in enumerate(range(0, len(sealed), _PART_BYTES)):
            row |= binary(f"{SEALED}{number}", sealed[start : start + _PART_BYTES])
        return row

    def unseal(self, purpose: str, table: str, row: Row, *, lane: str = "") -> bytes:
        """Return the sealed content of a row, opened. Arguments as in `seal`.

        Raises:
            SealedUnreadable: it is not sealed, was altered, swapped, or its data key was not added.
            Erased: its data key was shredded.
        """
        key = EntityKey(row[PARTITION_KEY], row[ROW_KEY])
        name = row.get(DATA_KEY)
        # Otherwise write access to the restricted store would be enough to replace a row by one in the clear.
        if not isinstance(name, str):
            raise unreadable(table, key, "it is not sealed")
        if name not in self._keys:
            if cohort_in(name) in self._shredded:
                raise Erased(f"row {key.row[:SHORT_CHARACTERS]}", self._shredded[cohort_in(name)])
            raise unreadable(table, key, "its data key is not in the restricted store")
        parts: list[str] = []
        while isinstance(part := row.get(f"{SEALED}{len(parts)}"), str):
            parts.append(part)
        try:
            sealed = b"".join(base64.b64decode(part, validate=True) for part in parts)
            return decrypted(self._cipher(name, purpose, lane), sealed, bound_to(purpose, table, key, name))
        except (InvalidTag, ValueError):
            raise unreadable(table, key, "it was altered, or belongs to another row") from None

    def _cipher(self, name: str, purpose: str, lane: str) -> AESGCM:
        known = self._ciphers.get((name, purpose, lane))
        if known is None:
            # A key for each purpose and each of the 32 partitions of a direction: 2^32 random nonces are then
            # more than any cohort needs, and no purpose opens what another one sealed.
            message = "\0".join(("rekey/sealed/v1", purpose, lane)).encode()
            key = hmac.new(self._keys[name].key, message, hashlib.sha256).digest()
            known = self._ciphers[name, purpose, lane] = AESGCM(key)
        return known


class SealedKeys(KeyTexts):
    """Keys as sealed texts, bound to migration and column: a state file alone reveals nothing."""

    def __init__(self, script_id: str, key: bytes) -> None:
        self._script_id = script_id
        self._cipher = AESGCM(key)

    def to_text(self, column: str, key: EntityKey | None) -> str | None:
        """Return a key sealed; None stays None."""
        if key is None:
            return None
        plain = json.dumps([key.partition, key.row]).encode("ascii")
        return SEALED_TEXT + base64.b64encode(self.seal(column, plain)).decode()

    def from_text(self, column: str, text: str | None) -> EntityKey | None:
        """Return the key that `to_text` sealed for that column. Raises StateUnusable for anything else, a key
        in the clear included."""
        if text is None:
            return None
        try:
            if not text.startswith(SEALED_TEXT):
                raise ValueError("not sealed")
            plain = self.unseal(column, base64.b64decode(text.removeprefix(SEALED_TEXT), validate=True))
        except ValueError:
            raise refusal("checkpoint-altered", script=self._script_id) from None
        return EntityKey(*json.loads(plain))

    def seal(self, column: str, plain: bytes) -> bytes:
        """Return `plain` sealed, bound to migration and column."""
        return encrypted(self._cipher, plain, self._bound(column))

    def unseal(self, column: str, sealed: bytes) -> bytes:
        """Return what `seal` sealed for that column. Raises ValueError when it is not that."""
        try:
            return decrypted(self._cipher, sealed, self._bound(column))
        except InvalidTag:
            raise ValueError("not sealed here") from None

    def _bound(self, column: str) -> bytes:
        return "\0".join((f"rekey/{CURSOR}/v1", self._script_id, column)).encode()


def bound_to(purpose: str, table: str, key: EntityKey, name: str) -> bytes:
    """Return what sealed content is bound to, so that content moved to another row is refused. No part can
    hold the separator, NUL: keys refuse it."""
    bound = f"rekey/sealed/v1\0{purpose}\0{table}\0{key.partition}\0{key.row}\0{name}"
    return bound.encode("utf-8", "surrogatepass")


def encrypted(cipher: AESGCM, plain: bytes, bound: bytes) -> bytes:
    """Return a random nonce followed by the content, padded, encrypted and bound to `bound`."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, padded(plain), bound)


def decrypted(cipher: AESGCM, sealed: bytes, bound: bytes) -> bytes:
    """Return the content of what `encrypted` made. Raises InvalidTag or ValueError when it is not that."""
    return unpadded(cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound))


def padded(plain: bytes) -> bytes:
    """Return content with its length before it and zeros after it, up to its size class, which hides the
    lengths of e-mail addresses."""
    return (len(plain).to_bytes(_LENGTH_BYTES) + plain).ljust(size_class(len(plain) + _LENGTH_BYTES), b"\0")


def unpadded(data: bytes) -> bytes:
    """Return the content of what `padded` made."""
    return data[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES])]


def size_class(size: int) -> int:
    """Return the padded size of content: a power of two from 128 to 64 KiB, then multiples of 64 KiB."""
    if size > _LARGEST:
        return -(-size // _LARGEST) * _LARGEST
    return max(_SMALLEST, 1 << (size - 1).bit_length())


def unreadable(table: str, key: EntityKey, why: str) -> SealedUnreadable:
    """Return the error for a sealed row. Row keys of sealed tables hold no legacy key."""
    return SealedUnreadable(table, key.row, why)
