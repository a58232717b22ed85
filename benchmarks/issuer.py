"""An issuer for the proxy that is measured: one key, where it is fetched from, and one token."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

TENANT = "11111111-2222-3333-4444-555555555555"
PRINCIPAL = "aaaaaaaa-0000-0000-0000-000000000001"
SECTION = f"""
[proxy.access]
certificate = "{{certificate}}"
key = "{{key}}"
[proxy.access.entra]
tenant = "{TENANT}"
authority = "{{authority}}"
allow = [{{{{ object_id = "{PRINCIPAL}", view = "both", rights = "read" }}}}]
"""


@dataclass(frozen=True, slots=True)
class Issued:
    """Where the key is, and a token that is signed with it."""

    authority: str
    token: str


@contextmanager
def issuing() -> Iterator[Issued]:
    """Serve a key on this machine."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "one", "use": "sig"}
    document = json.dumps({"keys": [public]}).encode()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(document)))
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        authority, now = f"http://127.0.0.1:{server.server_port}", int(time.time())
        claims = {
            "aud": "https://storage.azure.com",
            "iss": f"{authority}/{TENANT}/",
            "tid": TENANT,
            "ver": "1.0",
            "nbf": now - 300,
            "exp": now + 86_400,
            "oid": PRINCIPAL,
            "sub": PRINCIPAL,
            "appid": PRINCIPAL,
            "idtyp": "app",
            # As long as tokens of Entra ID are.
            "xms_mirid": "x" * 700,
        }
        yield Issued(authority, jwt.encode(claims, key, "RS256", headers={"kid": "one"}))
        server.shutdown()
