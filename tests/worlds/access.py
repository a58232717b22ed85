"""Requests to judge: an account, a key of an application, and what asks for what."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from rekey.errors import RequestRejected
from rekey.proxy.access import Access, Asked, Granted, judge, needs
from rekey.proxy.parse import parameters

ACCOUNT = "acme"
KEY = b"secret of an application, 32 bytes"
ENCODED = base64.b64encode(KEY).decode()
ACCESS = Access(ACCOUNT, {"former": b"a key that was replaced", "orders": KEY})
NOW = datetime(2026, 11, 23, 20, 34, 42, tzinfo=UTC).timestamp()
DATE = "Mon, 23 Nov 2026 20:34:42 GMT"
STARTS, ENDS = "2026-11-20T08:00:00Z", "2026-11-27T08:00:00Z"


def asked(
    kind: str = "rows",
    method: str = "GET",
    query: str = "",
    headers: Iterable[tuple[str, str]] = (),
    **changed: Any,
) -> Asked:
    """Return a request on the table Orders, over TLS. Raises RequestRejected for its query."""
    resource, rights = needs(kind, method, changed.pop("comp", ""), conditional=False)
    lower = {name.lower(): value.strip() for name, value in headers}
    whole = Asked(
        *(method, "/Orders", parameters(query), lower, "10.0.0.5", True, "Orders", resource, rights)
    )
    return replace(whole, **changed)


def mac(text: str, key: bytes = KEY) -> str:
    """Return the signature of a text."""
    return base64.b64encode(hmac.digest(key, text.encode(), "sha256")).decode()


def table_sas(**changed: str) -> str:
    """Return a signature of the table Orders that holds, with some fields changed before it is signed."""
    said = {"sp": "raud", "st": STARTS, "se": ENDS, "sv": "2019-02-02", "tn": "Orders"} | changed
    names = ("sp", "st", "se", "", "si", "sip", "spr", "sv", "spk", "srk", "epk", "erk")
    fields = [said.get(name, "") for name in names]
    fields[3] = f"/table/{ACCOUNT}/{said['tn'].lower()}"
    return urlencode({**said, "sig": mac("\n".join(fields))}, quote_via=quote)


def account_sas(**changed: str) -> str:
    """Return a signature of the account that holds, with some fields changed before it is signed."""
    said = {"sp": "rwdlacu", "ss": "bt", "srt": "sco", "se": ENDS, "sv": "2018-03-28"} | changed
    names = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
    names += ["ses"] if said["sv"] >= "2020-12-06" else []
    fields = [ACCOUNT, *(said.get(name, "") for name in names), ""]
    return urlencode({**said, "sig": mac("\n".join(fields))}, quote_via=quote)


def key_header(text: str, scheme: str = "SharedKeyLite", account: str = ACCOUNT) -> tuple[str, str]:
    """Return the header of a request that is signed as this text."""
    return "Authorization", f"{scheme} {account}:{mac(text)}"


def granted(request: Asked, access: Access = ACCESS, now: float = NOW) -> Granted:
    """Judge a request."""
    return judge(request, access, now)


def refusal(request: Asked, access: Access = ACCESS, now: float = NOW) -> str:
    """Return the code by which a request is refused."""
    with pytest.raises(RequestRejected) as caught:
        judge(request, access, now)
    assert (caught.value.status == 403) is caught.value.code.startswith(("Authorization", "AuthenticationF"))
    return str(caught.value.code)
