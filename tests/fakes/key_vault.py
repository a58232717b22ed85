"""Key Vault in this process: its answers on the wire, as its REST reference describes them.

The real client packages run over it. It was not compared with the real service.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken
from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline.transport import HttpTransport
from azure.core.rest import HttpRequest
from azure.core.rest._http_response_impl import HttpResponseImpl
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

URL = "https://acme.vault.azure.net/keys/mapping"
FIRST, SECOND = "1" * 32, "2" * 32
OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
SAID = "what the service said"
"""Stands in each refusal; no message of ours may hold it."""
_AUTHORITY = "https://login.microsoftonline.com/00000000-0000-0000-0000-000000000000"


class Credential:
    """Gives a token."""

    def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken("token", 2**40)


class Answer(HttpResponseImpl):
    """One answer."""

    def __init__(self, request: HttpRequest, status: int, body: Any, headers: dict[str, str]) -> None:
        super().__init__(
            request=request,
            internal_response=None,
            status_code=status,
            headers=headers,
            reason="",
            content_type="application/json",
            stream_download_generator=lambda *_: iter(()),
        )
        self._content = json.dumps(body).encode()
        self._is_closed = True
        self._is_stream_consumed = True

    def body(self) -> bytes:
        return self._content  # type: ignore[return-value]


class Refused(Exception):
    """What was asked is refused, with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class FakeVault(HttpTransport[Any, Any]):
    """Challenges who comes without a token, then answers, or refuses everything with one status.

    Attributes:
        status: 200; what everything is refused with; or 0: it cannot be reached.
        asked: method and path of what was asked with a token.
    """

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.asked: list[str] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def __enter__(self) -> FakeVault:
        return self

    def answer(self, path: str, content: dict[str, str]) -> dict[str, Any]:
        """Return the body of the answer to one request. Raises Refused."""
        raise NotImplementedError

    def send(self, request: Any, **_: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.status == 0:
            raise ServiceRequestError("name not known")
        if "Authorization" not in request.headers:
            challenge = f'Bearer authorization="{_AUTHORITY}", resource="https://vault.azure.net"'
            return Answer(request, 401, {}, headers | {"WWW-Authenticate": challenge})
        path = urlsplit(request.url).path.rstrip("/")
        self.asked.append(f"{request.method} {path}")
        content = request.content if hasattr(request, "content") else request.body
        try:
            if self.status != 200:
                raise Refused(self.status)
            return Answer(request, 200, self.answer(path, json.loads(content or "{}")), headers)
        except Refused as refused:
            return Answer(request, refused.status, {"error": {"code": "X", "message": SAID}}, headers)


@cache
def _private(_version: str) -> rsa.RSAPrivateKey:
    """Return the private key of a version; generating it takes longer than most tests."""
    return rsa.generate_private_key(65537, 2048)


class Vault(FakeVault):
    """Holds the versions of one RSA key; the last one is current."""

    def __init__(self, status: int = 200, kty: str = "RSA", private: rsa.RSAPrivateKey | None = None) -> None:
        super().__init__(status)
        self.kty = kty
        self.operations = ["wrapKey", "unwrapKey", "sign"]
        self.disabled: set[str] = set()
        self.versions = {FIRST: private or _private(FIRST)}

    def rotate(self) -> None:
        self.versions[SECOND] = _private(SECOND)

    def answer(self, path: str, content: dict[str, str]) -> dict[str, Any]:
        _, _, name, *rest = path.split("/")
        assert name == "mapping"
        version = rest[0] if rest else list(self.versions)[-1]
        match rest[1:]:
            case ["unwrapkey"]:
                return self._unwrapped(version, content)
            case ["sign"]:
                return self._signed(version, content)
        return self._key(version)

    def _key(self, version: str) -> dict[str, Any]:
        numbers = self.versions[version].public_key().public_numbers()
        key = {"kid": f"{URL}/{version}", "kty": self.kty, "key_ops": self.operations}
        if self.kty == "RSA":
            key |= {
                "n": unpadded(numbers.n.to_bytes(self.versions[version].key_size // 8)),
                "e": unpadded(numbers.e.to_bytes(3)),
            }
        return {"key": key, "attributes": {"enabled": version not in self.disabled}}

    def _unwrapped(self, version: str, asked: dict[str, str]) -> dict[str, str]:
        assert asked["alg"] == "RSA-OAEP-256"
        try:
            key = self.versions[version].decrypt(decoded(asked["value"]), OAEP)
        except ValueError:
            raise Refused(400) from None
        return {"kid": f"{URL}/{version}", "value": unpadded(key)}

    def _signed(self, version: str, asked: dict[str, str]) -> dict[str, str]:
        assert asked["alg"] == "PS256"
        if "sign" not in self.operations:
            raise Refused(403)
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
        signature = self.versions[version].sign(decoded(asked["value"]), pss, Prehashed(hashes.SHA256()))
        return {"kid": f"{URL}/{version}", "value": unpadded(signature)}


def unpadded(data: bytes) -> str:
    """Return base64url without padding, as Key Vault writes bytes."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decoded(text: str) -> bytes:
    """Return the bytes of what `unpadded` made."""
    return base64.urlsafe_b64decode(text + "==")
