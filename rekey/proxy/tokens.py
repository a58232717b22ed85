"""Verifies access tokens of a Microsoft Entra ID tenant, given its signing keys and the time (ADR 0049).
Whatever is not understood is refused. Pure.

Sources: "Access tokens in the Microsoft identity platform", "Access token claims reference", RFC 7515, 8725.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWTError
from jwt.algorithms import RSAAlgorithm
from jwt.api_jws import PyJWS

from rekey.errors import RequestRejected
from rekey.project.entra import Allowed, Entra, PrincipalKind
from rekey.tables.base import rejected

# Entra ID sets the times, so only this machine's clock can be off.
SKEW_S = 60
# A token with as many groups as one can list has some 12,000 characters.
MAX_CHARACTERS = 16_384
ALGORITHM = "RS256"
# What the service says with a 401.
CHALLENGED = (
    "Server failed to authenticate the request."
    " Please refer to the information in the www-authenticate header."
)
_LEAST_KEY_BITS, _MOST_KEYS = 2048, 100
_THREE_PARTS = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
# `jku`, `x5u`, `jwk` and `x5c` would bring a key along, `crit`, `b64` and `zip` change what is signed, and a
# token with a `nonce` is for another service alone. A key is chosen by `kid`, out of the tenant's own.
_HEADERS = frozenset({"alg", "kid", "typ", "x5t", "x5t#S256"})
_TYPES = frozenset({"jwt", "at+jwt"})
# The scope that Azure Storage exposes: an application acts for a user.
_SCOPE = "user_impersonation"
_APPLICATION_CLAIM = {"1.0": "appid", "2.0": "azp"}
_GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_JWS = PyJWS(algorithms=[ALGORITHM])


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose token it is."""

    object_id: str
    # Of an application that acts for itself; "" for one that acts for a user, whatever application that is.
    app_id: str = ""
    groups: frozenset[str] = field(default=frozenset(), repr=False)

    def is_named_by(self, entry: Allowed) -> bool:
        """Tell whether an entry of `allow` is about it."""
        match entry.kind:
            case PrincipalKind.OBJECT:
                return entry.id == self.object_id
            case PrincipalKind.APPLICATION:
                return entry.id == self.app_id
            case PrincipalKind.GROUP:
                return entry.id in self.groups


@dataclass(frozen=True, slots=True)
class Verified:
    """A token whose signature and claims hold between two times (seconds since 1970)."""

    principal: Principal
    key_id: str
    not_before: int
    expires: int

    def holds(self, now: float) -> bool:
        """Tell whether it is within its times."""
        return self.not_before - SKEW_S <= now < self.expires + SKEW_S


def key_id_of(token: str) -> str:
    """Return the id of the key that a token names, unverified. Raises RequestRejected unless its form and its
    header are those of a token that can be verified."""
    if len(token) > MAX_CHARACTERS or not _THREE_PARTS.fullmatch(token):
        raise refused_token("It is not a signed token.")
    head, _, rest = token.partition(".")
    signature = rest.rpartition(".")[2]
    # Else one signature could be spelled in several ways, each of which decodes to the same bytes.
    if _encoded(_decoded(signature)) != signature:
        raise refused_token("The signature of the token is malformed.")
    header = _json(_decoded(head))
    if not header.keys() <= _HEADERS:
        raise refused_token("The token has a header that is not taken.")
    if header.get("alg") != ALGORITHM:
        raise refused_token(f"The token is not signed with {ALGORITHM}.")
    if str(header.get("typ", "JWT")).lower() not in _TYPES:
        raise refused_token("The token is of another type.")
    key_id = header.get("kid")
    if not isinstance(key_id, str) or not key_id:
        raise refused_token("The token names no key.")
    return key_id


def verify(token: str, key: RSAPublicKey, entra: Entra, now: float) -> Verified:
    """Return whose token it is, verified with the key that it names, at `now`. Raises RequestRejected with
    the service's 401; the text repeats nothing of the token."""
    key_id = key_id_of(token)
    try:
        payload = _JWS.decode_complete(token, key, algorithms=[ALGORITHM])["payload"]
    except (PyJWTError, ValueError, TypeError):
        raise refused_token("The signature of the token is not valid.") from None
    verified = _read(_json(payload), entra, key_id)
    if not verified.holds(now):
        is_over = now >= verified.expires
        raise refused_token("The token is expired." if is_over else "The token is not valid yet.")
    return verified


def _read(claims: dict[str, Any], entra: Entra, key_id: str) -> Verified:
    """Return what claims say that were verified. Raises RequestRejected."""
    version, issuers = claims.get("ver"), entra.issuers
    issuer = issuers.get(version) if isinstance(version, str) else None
    if issuer is None or claims.get("iss") != issuer:
        raise refused_token("The token is of another issuer.")
    if claims.get("tid") != entra.tenant:
        raise refused_token("The token is of another tenant.")
    audience = claims.get("aud")
    if not isinstance(audience, str) or audience not in entra.audiences:
        raise refused_token("The token is for another audience.")
    expires, not_before = claims.get("exp"), claims.get("nbf")
    # Not bool, not float: Entra ID writes whole numbers.
    if type(expires) is not int or type(not_before) is not int:
        raise refused_token("The token says no times.")
    if "cnf" in claims:
        raise refused_token("The token is bound to a key, and no proof of it is taken here.")
    return Verified(_principal(claims, str(version)), key_id, not_before, expires)


def _principal(claims: dict[str, Any], version: str) -> Principal:
    object_id, kind, scopes = claims.get("oid"), claims.get("idtyp"), claims.get("scp")
    if not isinstance(object_id, str) or not _GUID.fullmatch(object_id):
        raise refused_token("The token names no principal.")
    groups = claims.get("groups")
    listed = [each for each in groups if isinstance(each, str)] if isinstance(groups, list) else []
    if scopes is not None:
        if kind not in (None, "user") or not isinstance(scopes, str) or _SCOPE not in scopes.split(" "):
            raise refused_token("The token is not for acting on storage as a user.")
        return Principal(object_id, groups=frozenset(listed))
    # Without `idtyp`, which is optional, this tells a token of an application (claims reference, `sub`).
    if kind != "app" and (kind is not None or claims.get("sub") != object_id):
        raise refused_token("The token is neither of a user nor of an application.")
    app_id = claims.get(_APPLICATION_CLAIM[version])
    if not isinstance(app_id, str) or not _GUID.fullmatch(app_id):
        raise refused_token("The token names no application.")
    return Principal(object_id, app_id, frozenset(listed))


def keys_in(document: bytes, entra: Entra) -> dict[str, RSAPublicKey]:
    """Return the signing keys of the tenant in a JWK set, by their ids, without keys of other kinds and of
    other issuers. Raises ValueError when there is none, or when it is no such set."""
    content = orjson.loads(document)
    listed = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(listed, list) or len(listed) > _MOST_KEYS:
        raise ValueError("no set of keys")
    keys: dict[str, RSAPublicKey] = {}
    for jwk in listed:
        key_id = jwk.get("kid") if isinstance(jwk, dict) and _is_usable(jwk, entra) else None
        if not isinstance(key_id, str) or not key_id:
            continue
        try:
            key = RSAAlgorithm.from_jwk({name: jwk[name] for name in ("kty", "n", "e")})
        except (PyJWTError, ValueError, TypeError, KeyError):
            continue
        if isinstance(key, RSAPublicKey) and key.key_size >= _LEAST_KEY_BITS:
            keys[key_id] = key
    if not keys:
        raise ValueError("no key that signs tokens")
    return keys


def _is_usable(jwk: dict[str, Any], entra: Entra) -> bool:
    issuer = jwk.get("issuer")
    # Entra ID lists keys of several issuers at once, among them that of personal accounts.
    is_ours = issuer is None or str(issuer).replace("{tenantid}", entra.tenant) in entra.issuers.values()
    return jwk.get("use", "sig") == "sig" and jwk.get("alg", ALGORITHM) == ALGORITHM and is_ours


def refused_token(why: str) -> RequestRejected:
    """Return the error for a token. `why`: a sentence without a value of the token."""
    return rejected("InvalidAuthenticationInfo", f"{CHALLENGED} {why}", status=401)


def _json(content: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(content)  # no NaN, no deep nesting, no broken UTF-8
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise refused_token("A part of the token is no JSON object.")
    return value


def _decoded(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        raise refused_token("A part of the token is malformed.") from None


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")
