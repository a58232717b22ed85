"""A proxy in the test's own loop, and requests over the wire to it or to the account itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from yarl import URL

from rekey.client.reading import LeaseSettings
from rekey.declaration.migration import Declared
from rekey.project.config import Config, account_key, load_config
from rekey.proxy.access import Access
from rekey.proxy.running import Listeners, Listening, proxying
from rekey.rehearse.azurite import Azurite, AzuriteAccount
from rekey.serve.server import Address
from tests.worlds.begun_migrations import SECRETS, WRAPPING_KEY

QUICK = LeaseSettings(poll_s=0.05, lease_s=15.0, longest_operation_s=30.0, freeze_wait_s=0.3)
ANYWHERE = Address("127.0.0.1", 0)
MINIMAL = "application/json;odata=minimalmetadata"


def config_of(
    folder: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch, more: str = "", *, restricted: str = ""
) -> Config:
    """Return the configuration of a proxy in front of an Azurite; `more`: its `[proxy]`."""
    monkeypatch.setenv("PROXY_TABLES_KEY", azurite.tables.key)
    monkeypatch.setenv("PROXY_RESTRICTED_KEY", azurite.restricted.key)
    monkeypatch.setenv("PROXY_SECRET", SECRETS["users"].decode())
    monkeypatch.setenv("PROXY_WRAPPING", WRAPPING_KEY.decode())
    (folder / "rekey.toml").write_text(
        f"""
[tables]
endpoint = "{azurite.tables.endpoint}"
key_env = "PROXY_TABLES_KEY"
[restricted]
endpoint = "{restricted or azurite.restricted.endpoint}"
key_env = "PROXY_RESTRICTED_KEY"
[secrets.users]
env = "PROXY_SECRET"
[sealing]
env = "PROXY_WRAPPING"
[proxy]
drain = "0s"
{more}
""",
        "utf-8",
    )
    return load_config(folder / "rekey.toml")


@asynccontextmanager
async def proxied(
    config: Config,
    *declared: Declared,
    others: Mapping[str, bytes] | None = None,
    not_followed: Sequence[Declared] = (),
) -> AsyncIterator[Listening]:
    """Run a proxy that follows some migrations.

    Args:
        config: the project.
        declared: the migrations.
        others: further keys of applications, by their names.
        not_followed: further migrations of the project.
    """
    key = base64.b64decode(account_key(config.tables) or "")
    access = Access(config.tables.name, {"application": key, **(others or {})})
    async with proxying(
        config, declared, access, Listeners(ANYWHERE, ANYWHERE), not_followed=not_followed, settings=QUICK
    ) as found:
        yield found


@dataclass(frozen=True)
class Answered:
    """An answer over the wire."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The service's error code."""
        return str(self.json["odata.error"]["code"])


@dataclass
class Wired:
    """Sends requests to one endpoint, signed with the account's key."""

    session: aiohttp.ClientSession
    endpoint: str
    account: AzuriteAccount
    etags: dict[str, str] = field(default_factory=dict)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        signs: bool = True,
    ) -> Answered:
        """Send one request. `body`: bytes as they are, else JSON. `signs`: with the account's key."""
        url = f"{self.endpoint}/{path}"
        parts, date = urlsplit(url), formatdate(usegmt=True)
        comp = parse_qs(parts.query).get("comp")
        signed = f"{date}\n/{self.account.name}{parts.path}{f'?comp={comp[0]}' if comp else ''}"
        mac = base64.b64encode(
            hmac.new(base64.b64decode(self.account.key), signed.encode(), hashlib.sha256).digest()
        )
        all_headers = {
            "x-ms-date": date,
            "x-ms-version": "2019-02-02",
            "Authorization": f"SharedKeyLite {self.account.name}:{mac.decode()}",
            "Accept": MINIMAL,
            "Content-Type": "application/json",
            "DataServiceVersion": "3.0",
            **(headers or {}),
        }
        if not signs:
            del all_headers["Authorization"]
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.request(
            method, URL(url, encoded=True), data=data, headers=all_headers
        ) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            return Answered(response.status, found, await response.read())


@asynccontextmanager
async def wired(endpoint: str, account: AzuriteAccount) -> AsyncIterator[Wired]:
    """Open a way to an endpoint."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield Wired(session, endpoint.rstrip("/"), account)


@asynccontextmanager
async def between(
    config: Config, azurite: Azurite, *declared: Declared
) -> AsyncIterator[tuple[Wired, Wired]]:
    """Run a proxy; yield a way to the account itself, and one through the proxy."""
    async with (
        proxied(config, *declared) as proxy,
        wired(azurite.tables.endpoint, azurite.tables) as direct,
        wired(through(proxy, azurite), azurite.tables) as behind,
    ):
        yield direct, behind


def through(found: Listening, azurite: Azurite) -> str:
    """Return the endpoint of a proxy, with the account's name as the path begins on Azurite."""
    return found.url + azurite.tables.name


def changeset(
    endpoint: str, operations: Sequence[tuple[str, str, Any, Mapping[str, str]]], end: str = "\r\n"
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a transaction. `operations`: method, path, body and headers of each."""
    lines = ["--batch_1", "Content-Type: multipart/mixed; boundary=changeset_1", ""]
    for number, (method, path, body, headers) in enumerate(operations):
        lines += ["--changeset_1", "Content-Type: application/http", "Content-Transfer-Encoding: binary"]
        lines += [f"Content-ID: {number}", "", f"{method} {endpoint}/{path} HTTP/1.1"]
        usual = {"Accept": MINIMAL, "Content-Type": "application/json", **headers}
        lines += [f"{name}: {value}" for name, value in usual.items()]
        lines += ["", "" if body is None else json.dumps(body)]
    lines += ["--changeset_1--", "--batch_1--", ""]
    return end.join(lines).encode(), {"Content-Type": "multipart/mixed; boundary=batch_1"}


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d(?::|%3A)\d\d(?::|%3A)\d\d(?:\.\d+)?Z")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def comparable(answer: Answered, table: str) -> tuple[Any, ...]:
    """Return what must be equal of two answers: all but times, ETags, ids, addresses and the table's name."""
    text = answer.body.decode()
    text = _ID.sub("ID", _TIME.sub("TIME", text))
    text = re.sub(r"http://[^/\"]+/(tables|targets)/", "http://HOST/", text).replace(table, "TABLE")
    text = text.replace('"targets.TABLE"', '"tables.TABLE"')
    body: Any = text
    if text and "json" in answer.headers.get("content-type", ""):
        body = json.loads(text)
    if answer.headers.get("content-type", "").startswith("multipart/"):
        inner = re.findall(r"HTTP/1\.1 (\d+) [^\r\n]*\r?\n(.*?)(?=\r?\n--)", text, re.DOTALL)
        body = [(status, "ETag: " in rest, re.findall(r"\{.*\}", rest)) for status, rest in inner]
    names = ("x-ms-continuation-nextpartitionkey", "x-ms-continuation-nextrowkey", "x-ms-error-code")
    kept = {name: answer.headers.get(name) for name in (*names, "x-ms-client-request-id")}
    # Azurite tells no address of a new row: for that see tests/unit/proxy/test_recorded.py.
    return answer.status, "etag" in answer.headers, kept, body
