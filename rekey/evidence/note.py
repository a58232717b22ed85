"""Checkpoints as signed notes (https://c2sp.org/tlog-checkpoint, https://c2sp.org/signed-note). A note is
accepted only in exactly the form written here, so that any changed byte is found.

A signature line is `— name base64(key id ‖ signature)`. Ed25519 (type 1) signs the text; its key id is the
beginning of SHA-256(name ‖ 0x0A ‖ 0x01 ‖ public key). P-256 (type 2) has a DER signature over the text's
SHA-256; its key id is the beginning of SHA-256 of the public key in SPKI form.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from rekey.evidence.keys import NOTE_ID_BYTES, PublicKey, Signer

_DASH = "— "
_LINES = 3
LOG_PREFIX = "rekey-audit-"
_HASH_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint: the log's name, a number of its first events, the root over them."""

    log: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The signed text: three lines."""
        return "".join(f"{part}\n" for part in self.named.values())

    @property
    def named(self) -> dict[str, str | int]:
        """The checkpoint in statements: name, size, root in base64."""
        return {"name": self.log, "size": self.size, "root": base64.b64encode(self.root).decode()}


@dataclass(frozen=True, slots=True)
class Note:
    """A checkpoint with its signature."""

    checkpoint: Checkpoint  # the signed content
    key_id: bytes = b""  # four bytes that identify the key, b"" if unsigned
    signature: bytes = b""  # b"" if unsigned

    @property
    def is_signed(self) -> bool:
        """Whether there is a signature, valid or not."""
        return bool(self.signature)

    @property
    def text(self) -> str:
        """The whole note; without signature lines if unsigned."""
        if not self.is_signed:
            return self.checkpoint.text
        signed = base64.b64encode(self.key_id + self.signature).decode()
        return f"{self.checkpoint.text}\n{_DASH}{self.checkpoint.log} {signed}\n"

    def is_by(self, key: PublicKey) -> bool:
        """Tell whether the holder of this key signed the checkpoint."""
        # Versions before 0.3 may have left a high s; the statement covers a bundle's checkpoints anyway.
        right_id = self.key_id == key.note_id(self.checkpoint.log)
        return right_id and key.verifies(self.signature, self.checkpoint.text.encode(), high_s=True)


def log_name(first_line: bytes) -> str:
    """Return the name of the log that begins with this line; its 16 digits of a hash make it unique."""
    return LOG_PREFIX + hashlib.sha256(first_line).hexdigest()[:_HASH_DIGITS]


def signed(checkpoint: Checkpoint, signer: Signer | None) -> Note:
    """Return the note of a checkpoint, unsigned without a signer. Raises the signer's errors."""
    if signer is None:
        return Note(checkpoint)
    return Note(checkpoint, signer.public.note_id(checkpoint.log), signer.sign(checkpoint.text.encode()))


def parsed(text: str) -> Note:
    """Return the note in a text. Raises ValueError unless it is exactly in the form written here."""
    body, gap, signature_line = text.partition("\n\n")
    lines = (body + "\n" if gap else body).split("\n")
    if len(lines) != _LINES + 1 or lines[-1]:
        raise ValueError("a checkpoint has three lines")
    log, size, root = lines[:_LINES]
    try:
        checkpoint = Checkpoint(log, int(size), base64.b64decode(root, validate=True))
        note = Note(checkpoint)
        if gap:
            head = f"{_DASH}{log} "
            signed_bytes = base64.b64decode(signature_line.removeprefix(head).rstrip("\n"), validate=True)
            note = Note(checkpoint, signed_bytes[:NOTE_ID_BYTES], signed_bytes[NOTE_ID_BYTES:])
    except ValueError:
        raise ValueError("a line of the checkpoint cannot be read") from None
    if note.text != text:
        raise ValueError("the checkpoint is not in the form that rekey writes")
    return note
