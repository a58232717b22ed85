"""The in-toto statement (https://in-toto.io/Statement/v1) over every file of a bundle except itself and its
time stamp, in a DSSE envelope. Both are RFC 8785 JSON and accepted in no other form, so that any changed byte
is found."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import rfc8785

from rekey.evidence.keys import PublicKey, Signer

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:rekey:evidence:v1"
# The type of the report of `rekey doctor --live`.
LIVE_TYPE = "urn:rekey:doctor-live:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


@dataclass(frozen=True, slots=True)
class Statement:
    """The content of a statement."""

    digests: Mapping[str, str]  # SHA-256 of the files, hex, by path within the bundle
    predicate: Mapping[str, Any]  # what the bundle is about
    kind: str = PREDICATE_TYPE  # the type of the predicate

    @property
    def body(self) -> bytes:
        files = sorted(self.digests.items())
        subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in files]
        content: dict[str, Any] = {"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": self.kind}
        return rfc8785.dumps({**content, "predicate": dict(self.predicate)})


@dataclass(frozen=True, slots=True)
class Envelope:
    """A body with at most one signature. `key_id` and `signature` are empty if unsigned."""

    body: bytes = field(repr=False)
    key_id: str = ""
    signature: bytes = b""

    @property
    def is_signed(self) -> bool:
        """Whether there is a signature, valid or not."""
        return bool(self.signature)

    @property
    def data(self) -> bytes:
        """The content of the envelope's file."""
        signatures = [{"keyid": self.key_id, "sig": _text(self.signature)}] if self.is_signed else []
        return rfc8785.dumps(
            {"payload": _text(self.body), "payloadType": PAYLOAD_TYPE, "signatures": signatures}
        )

    def is_by(self, key: PublicKey, *, high_s: bool = False) -> bool:
        """Tell whether the holder of this key signed the envelope. `high_s`: as in `PublicKey.verifies`."""
        signed_body = encoded(self.body)
        return self.key_id == key.key_id and key.verifies(self.signature, signed_body, high_s=high_s)

    @property
    def is_of_before_low_s(self) -> bool:
        """Whether a version before 0.3 exported it, which kept either s of an ECDSA signature."""
        with suppress(ValueError):
            return str(self.statement().predicate.get("rekey")).startswith(("0.1.", "0.2."))
        return False

    def statement(self, kind: str = PREDICATE_TYPE) -> Statement:
        """Return the statement with a type of predicate. Raises ValueError for any other form."""
        try:
            content = json.loads(self.body)
            digests = {subject["name"]: subject["digest"]["sha256"] for subject in content["subject"]}
            statement = Statement(digests, dict(content["predicate"]), kind)
            same = statement.body == self.body
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError("the statement lacks parts") from None
        if not same:
            raise ValueError("the statement is not in the form that rekey writes")
        return statement


def signed(statement: Statement, signer: Signer | None) -> Envelope:
    """Return the envelope of a statement, unsigned without a signer."""
    body = statement.body
    if signer is None:
        return Envelope(body)
    return Envelope(body, signer.public.key_id, signer.sign(encoded(body)))


def encoded(body: bytes) -> bytes:
    """Return the signed bytes of a body: its pre-authentication encoding `DSSEv1 SP len(type) SP type SP
    len(body) SP body` (https://github.com/secure-systems-lab/dsse)."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


def parsed(data: bytes) -> Envelope:
    """Return the envelope in a file. Raises ValueError unless it is exactly in the form written here."""
    try:
        content = json.loads(data)
        signatures = content["signatures"]
        body = base64.b64decode(content["payload"], validate=True)
        envelope = Envelope(body)
        if signatures:
            [signature] = signatures
            envelope = Envelope(body, signature["keyid"], base64.b64decode(signature["sig"], validate=True))
        same = envelope.data == data
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("the envelope lacks parts") from None
    if not same:
        raise ValueError("the envelope is not in the form that rekey writes")
    return envelope


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
