"""RFC 3161 time stamps: a third party confirms that the statement existed at a time. The stamp is over the
SHA-256 of the envelope's file; only the hash is sent. An authority does not sign every byte of its answer, so
the evidence key signs the whole answer."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import rfc3161_client as rfc3161
from cryptography import x509

from rekey.errors import EndpointDown, Unavailable
from rekey.evidence.refusals import refusal

_SECONDS = 30
_MOST_BYTES = 1 << 20
_QUERY = "application/timestamp-query"


def ask(url: str, data: bytes) -> bytes:
    """Ask an authority for a stamp over some bytes and return its answer.

    Raises:
        ConfigurationError: not an http or https URL.
        EndpointDown: the authority cannot be reached.
        Unavailable: it refused, or its answer is no time stamp, or one over something else.
    """
    # http is fine: the answer is signed either way.
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise refusal("no-authority")
    builder = rfc3161.TimestampRequestBuilder().data(data).hash_algorithm(rfc3161.HashAlgorithm.SHA256)
    request = builder.cert_request(cert_request=True).nonce(nonce=True).build()
    sent = urllib.request.Request(url, request.as_bytes(), {"Content-Type": _QUERY})  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(sent, timeout=_SECONDS) as response:  # noqa: S310 - checked above
            answer: bytes = response.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        raise _refused(f"answered with status {error.code}", error.code) from None
    except (OSError, http.client.HTTPException):
        raise EndpointDown(
            "the time stamp authority could not be reached",
            code="TimestampUnreachable",
            hint="check the URL of --timestamp and the network, or export without it",
        ) from None
    try:
        stamp = rfc3161.decode_timestamp_response(answer)
        # The nonce ties the answer to this request.
        right = stamp.tst_info.nonce == request.nonce
        right = right and stamp.tst_info.message_imprint.message == request.message_imprint.message
    except ValueError:
        raise _refused("did not answer with a time stamp", 200) from None
    if not right:
        raise _refused("stamped something else", 200)
    return answer


def check(answer: bytes, data: bytes, root: bytes) -> datetime:
    """Return the time of a stamp, after checking it.

    Args:
        answer: the authority's answer; certificates in it prove nothing.
        data: the bytes that the stamp must be over.
        root: the authority's root certificate, PEM, from the auditor.

    Raises:
        ValueError: it is no stamp of this authority over `data`; the message says why.
    """
    certificate = x509.load_pem_x509_certificate(root)
    try:
        stamp = rfc3161.decode_timestamp_response(answer)
        if stamp.as_bytes() != answer:
            raise ValueError("is not in its one form")
        rfc3161.VerifierBuilder(roots=[certificate]).build().verify_message(stamp, data)
        return stamp.tst_info.gen_time
    except rfc3161.VerificationError as error:
        raise ValueError(str(error)) from None


def read_root(path: Path) -> bytes:
    """Read a root certificate in PEM form. Raises ConfigurationError when it cannot be read or is none."""
    try:
        data = path.read_bytes()
        x509.load_pem_x509_certificate(data)
    except (OSError, ValueError):
        raise refusal("no-certificate", path=path) from None
    return data


def _refused(what: str, status: int) -> Unavailable:
    return Unavailable(
        f"the time stamp authority {what}",
        code="TimestampRefused",
        status=status,
        hint="check the URL of --timestamp, or export without it; the bundle was not written",
    )
