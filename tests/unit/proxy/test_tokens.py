"""Tokens of the tenant's users and applications are verified; hostile and malformed ones are refused, each by
its name, with the service's 401 and without repeating anything of the token.

Soak: five million mutated tokens.
Reason, and what `make test` covers: ten minutes; 3,000, made in the same way.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.hashes import SHA256, SHA512
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from rekey.errors import RequestRejected
from rekey.project.entra import Allowed, PrincipalKind, Rights, View
from rekey.proxy.tokens import MAX_CHARACTERS, SKEW_S, Principal, key_id_of, keys_in, verify
from tests.fakes.issuer import (
    APPLICATION,
    CLI,
    GROUP,
    OTHER_TENANT,
    SERVICE,
    TENANT,
    USER,
    Issuer,
    application_claims,
    encoded,
    entra_of,
    jwk_of,
    private_key,
    signed,
    user_claims,
)

NOW = 1_790_000_000.0
ENTRA = entra_of()
ISSUER = Issuer()
KEY = ISSUER.keys["first"]
PUBLIC = KEY.public_key()
USERS = user_claims(ENTRA, NOW)
APPLICATIONS = application_claims(ENTRA, NOW)
HEADER = {"typ": "JWT", "alg": "RS256", "kid": "first"}


def principal_of(token: str, now: float = NOW) -> Principal:
    assert key_id_of(token) == "first"
    return verify(token, PUBLIC, ENTRA, now).principal


def users(**changed: Any) -> str:
    """Return a user's token with other claims, well signed."""
    return ISSUER.token(user_claims(ENTRA, NOW, **changed))


def applications(**changed: Any) -> str:
    return ISSUER.token(application_claims(ENTRA, NOW, **changed))


def headed(**changed: Any) -> str:
    """Return a user's token with another header, well signed; None leaves one out."""
    header = {name: value for name, value in {**HEADER, **changed}.items() if value is not None}
    return signed(header, json.dumps(USERS).encode(), KEY)


def hmac_signed(secret: bytes, algorithm: str = "HS256") -> str:
    """Return a token that is signed with a secret, as if the public key were one."""
    text = (
        f"{encoded(json.dumps({**HEADER, 'alg': algorithm}).encode())}.{encoded(json.dumps(USERS).encode())}"
    )
    return f"{text}.{encoded(hmac.digest(secret, text.encode(), 'sha256'))}"


def signed_by_curve() -> str:
    text = f"{encoded(json.dumps({**HEADER, 'alg': 'ES256'}).encode())}.{encoded(json.dumps(USERS).encode())}"
    signature = ec.generate_private_key(ec.SECP256R1()).sign(text.encode(), ec.ECDSA(SHA256()))
    return f"{text}.{encoded(signature)}"


def signed_otherwise(algorithm: str) -> str:
    """Return a token with another algorithm of the same key, which verifies as such."""
    text = (
        f"{encoded(json.dumps({**HEADER, 'alg': algorithm}).encode())}.{encoded(json.dumps(USERS).encode())}"
    )
    pss = padding.PSS(padding.MGF1(SHA256()), 32)
    how = (pss, SHA256()) if algorithm == "PS256" else (padding.PKCS1v15(), SHA512())
    return f"{text}.{encoded(KEY.sign(text.encode(), *how))}"


def payload(text: str) -> str:
    """Return a token with these bytes as its claims, well signed."""
    return signed(HEADER, text.encode(), KEY)


def raw_header(text: str) -> str:
    """Return a token with these bytes as its header, well signed."""
    body = f"{encoded(text.encode())}.{encoded(json.dumps(USERS).encode())}"
    return f"{body}.{encoded(KEY.sign(body.encode(), padding.PKCS1v15(), SHA256()))}"


def resealed(change: Callable[[list[str]], list[str]]) -> str:
    """Return a good token whose parts are changed after it was signed."""
    return ".".join(change(users().split(".")))


PEM = PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
DER = PUBLIC.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
EMPTY = encoded(b"")
NONE_HEADER = encoded(json.dumps({**HEADER, "alg": "none"}).encode())
HOSTILE: dict[str, Callable[[], str]] = {
    # --- algorithms
    "alg none, without signature": lambda: f"{NONE_HEADER}.{encoded(json.dumps(USERS).encode())}.",
    "alg none, with the signature of another token": lambda: resealed(lambda p: [NONE_HEADER, *p[1:]]),
    "alg None, in other letters": lambda: headed(alg="None"),
    "alg rs256, in other letters": lambda: headed(alg="rs256"),
    "no alg": lambda: headed(alg=None),
    "alg as a list": lambda: headed(alg=["RS256"]),
    "HS256 with the public key in PEM as the secret": lambda: hmac_signed(PEM),
    "HS256 with the public key in DER as the secret": lambda: hmac_signed(DER),
    "HS256 with the modulus as the secret": lambda: hmac_signed(jwk_of("first", KEY)["n"].encode()),
    "HS256 with an empty secret": lambda: hmac_signed(b""),
    "HMAC under the name RS256": lambda: hmac_signed(PEM, "RS256"),
    "ES256 with a key of its own": signed_by_curve,
    "PS256 with the tenant's key": lambda: signed_otherwise("PS256"),
    "RS512 with the tenant's key": lambda: signed_otherwise("RS512"),
    # --- keys
    "a key of somebody else under the tenant's id": lambda: signed(
        HEADER, json.dumps(USERS).encode(), private_key("stranger")
    ),
    "jku, an address of keys": lambda: headed(jku="https://keys.example/jwks"),
    "x5u, an address of certificates": lambda: headed(x5u="https://keys.example/chain.pem"),
    "jwk, a key in the header": lambda: signed(
        {**HEADER, "jwk": jwk_of("first", private_key("stranger"))},
        json.dumps(USERS).encode(),
        private_key("stranger"),
    ),
    "x5c, certificates in the header": lambda: headed(x5c=["MIIB"]),
    "no kid": lambda: headed(kid=None),
    "kid as a number": lambda: headed(kid=1),
    "an empty kid": lambda: headed(kid=""),
    # --- header
    "crit, an extension that must be understood": lambda: headed(crit=["exp"], exp=1),
    "b64 false, an unencoded payload": lambda: headed(b64=False, crit=["b64"]),
    "zip, a compressed payload": lambda: headed(zip="DEF"),
    "a nonce, for another service alone": lambda: headed(nonce="x"),
    "cty, a token within a token": lambda: headed(cty="JWT"),
    "typ pop, a proof of possession": lambda: headed(typ="pop"),
    "a header that is a list": lambda: raw_header("[]"),
    "a header that is not JSON": lambda: raw_header("alg=RS256"),
    "a header nested deeply": lambda: raw_header("[" * 3000),
    "a header that is not UTF-8": lambda: resealed(lambda p: [encoded(b'{"alg":"\xff"}'), *p[1:]]),
    # --- form
    "nothing": lambda: "",
    "two parts": lambda: resealed(lambda p: p[:2]),
    "four parts": lambda: resealed(lambda p: [*p, p[2]]),
    "five parts, an encrypted token": lambda: resealed(lambda p: [*p, p[2], p[2]]),
    "an empty signature": lambda: resealed(lambda p: [*p[:2], EMPTY]),
    "a signature with padding": lambda: resealed(lambda p: [*p[:2], p[2] + "=="]),
    "a signature with unused bits set": lambda: resealed(
        lambda p: [*p[:2], p[2][:-1] + LETTERS[LETTERS.index(p[2][-1]) ^ 1]]
    ),
    "a signature with letters that decoders skip": lambda: resealed(lambda p: [*p[:2], p[2] + "!!"]),
    "a signature with a line end": lambda: users() + "\n",
    "a shortened signature": lambda: resealed(lambda p: [*p[:2], p[2][:-8]]),
    "a signature of zeros": lambda: resealed(lambda p: [*p[:2], encoded(bytes(256))]),
    "the alphabet of plain base64": lambda: resealed(lambda p: [*p[:2], "+/" + p[2][2:]]),
    "a token in base64 once more": lambda: base64.b64encode(users().encode()).decode(),
    "a token that is too long": lambda: users(groups=["x" * MAX_CHARACTERS]),
    "claims of another token": lambda: resealed(
        lambda p: [p[0], encoded(json.dumps({**USERS, "oid": SERVICE}).encode()), p[2]]
    ),
    # --- claims
    "claims that are a list": lambda: payload("[]"),
    "claims that are no JSON": lambda: payload("oid"),
    "claims nested deeply": lambda: payload('{"a":' * 3000),
    "another tenant's issuer, version 1.0": lambda: users(iss=f"https://sts.windows.net/{OTHER_TENANT}/"),
    "another tenant's issuer, version 2.0": lambda: users(
        ver="2.0", iss=f"https://login.microsoftonline.com/{OTHER_TENANT}/v2.0"
    ),
    "another tenant in tid": lambda: users(tid=OTHER_TENANT),
    "no tid": lambda: users(tid=None),
    "an issuer that begins like the tenant's": lambda: users(iss=ENTRA.issuers["1.0"] + "evil"),
    "an issuer without its slash": lambda: users(iss=ENTRA.issuers["1.0"].rstrip("/")),
    "a list of issuers": lambda: users(iss=[ENTRA.issuers["1.0"]]),
    "no issuer": lambda: users(iss=None),
    "version 2.0 from the issuer of 1.0": lambda: users(ver="2.0", azp=CLI),
    "an unknown version": lambda: users(ver="3.0"),
    "no version": lambda: users(ver=None),
    "a version as a number": lambda: users(ver=1.0),
    "the audience of Microsoft Graph": lambda: users(aud="https://graph.microsoft.com"),
    "an audience that begins like ours": lambda: users(aud="https://storage.azure.com.evil.example"),
    "an audience with two slashes": lambda: users(aud="https://storage.azure.com//"),
    "a list of audiences with ours in it": lambda: users(aud=[ENTRA.audience]),
    "no audience": lambda: users(aud=None),
    "expired": lambda: users(exp=int(NOW) - SKEW_S),
    "not valid yet": lambda: users(nbf=int(NOW) + SKEW_S + 1),
    "no expiry": lambda: users(exp=None),
    "no beginning": lambda: users(nbf=None),
    "an expiry as a text": lambda: users(exp=str(int(NOW) + 3600)),
    "an expiry that is true": lambda: users(exp=True),
    "an expiry with a fraction": lambda: users(exp=NOW + 0.5),
    "an infinite expiry": lambda: payload(
        json.dumps({**USERS, "exp": 0}).replace('"exp": 0', '"exp": 1e999')
    ),
    "an expiry that is not a number": lambda: payload(
        json.dumps({**USERS, "exp": 0}).replace('"exp": 0', '"exp": NaN')
    ),
    "no oid": lambda: users(oid=None),
    "an oid that is no id": lambda: users(oid="root"),
    "an oid as a list": lambda: users(oid=[USER]),
    "bound to a key": lambda: users(cnf={"kid": "x"}),
    "delegated, with another scope": lambda: users(scp="user_read"),
    "delegated, with an empty scope": lambda: users(scp=""),
    "delegated, with a scope that contains ours": lambda: users(scp="user_impersonation_of_nobody"),
    "delegated, with a list of scopes": lambda: users(scp=["user_impersonation"]),
    "of an application, with a user's scope": lambda: applications(scp="user_impersonation"),
    "of a device": lambda: applications(idtyp="device"),
    "of a user without a scope": lambda: users(scp=None),
    "of a user without scope and type": lambda: users(scp=None, idtyp=None),
    "of an application without its id": lambda: applications(appid=None),
    "of an application whose id is no id": lambda: applications(appid="app"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_token_is_refused(name: str) -> None:
    token = HOSTILE[name]()
    with pytest.raises(RequestRejected) as caught:
        principal_of(token)
    assert (caught.value.status, caught.value.code) == (401, "InvalidAuthenticationInfo")
    told = f"{caught.value.what} {caught.value!r} {caught.value.hint} {caught.value.__cause__!r}"
    for part in (*token.split("."), USER, SERVICE, TENANT, OTHER_TENANT):
        assert len(part) < 8 or part not in told


@pytest.mark.parametrize(
    "name",
    [
        *(
            "alg none, with the signature of another token",
            "no alg",
            "alg as a list",
            "PS256 with the tenant's key",
        ),
        *("HS256 with the public key in PEM as the secret", "ES256 with a key of its own"),
        *("RS512 with the tenant's key", "jku, an address of keys", "x5u, an address of certificates"),
        *(
            "jwk, a key in the header",
            "crit, an extension that must be understood",
            "typ pop, a proof of possession",
        ),
        *("a signature with unused bits set", "a signature with padding", "a token that is too long"),
    ],
)
def test_such_a_token_is_refused_before_any_key_is_asked_for(name: str) -> None:
    with pytest.raises(RequestRejected):
        key_id_of(HOSTILE[name]())


def test_there_are_at_least_forty_hostile_tokens_and_no_two_are_the_same() -> None:
    assert len({make() for make in HOSTILE.values()}) == len(HOSTILE) >= 40


V2 = {"ver": "2.0", "iss": ENTRA.issuers["2.0"], "appid": None}


@pytest.mark.parametrize(
    ("claims", "principal"),
    [
        ({}, Principal(USER)),
        ({"aud": ENTRA.audience + "/"}, Principal(USER)),
        ({**V2, "azp": CLI}, Principal(USER)),
        ({"idtyp": None}, Principal(USER)),
        ({"scp": "openid user_impersonation"}, Principal(USER)),
        ({"groups": [GROUP, 7]}, Principal(USER, groups=frozenset({GROUP}))),
        ({"groups": "many", "_claim_names": {"groups": "src1"}}, Principal(USER)),
        ({"exp": int(NOW) - SKEW_S + 1}, Principal(USER)),
        ({"nbf": int(NOW) + SKEW_S}, Principal(USER)),
    ],
    ids=["v1", "slash", "v2", "no idtyp", "scopes", "groups", "overage", "just expired", "just begun"],
)
def test_a_users_token_is_taken(claims: dict[str, Any], principal: Principal) -> None:
    assert principal_of(users(**claims)) == principal


@pytest.mark.parametrize(
    "claims",
    [{}, {"idtyp": None}, {**V2, "azp": APPLICATION}, {"sub": "another", "idtyp": "app"}],
    ids=["v1", "no idtyp", "v2", "idtyp alone"],
)
def test_an_applications_token_is_taken(claims: dict[str, Any]) -> None:
    assert principal_of(applications(**claims)) == Principal(SERVICE, APPLICATION)


@pytest.mark.parametrize("header", [{}, {"x5t": "abc"}, {"typ": None}, {"typ": "at+jwt"}])
def test_headers_that_entra_id_writes_are_taken(header: dict[str, Any]) -> None:
    assert principal_of(headed(**header)) == Principal(USER)


def test_an_application_that_acts_for_a_user_is_not_named_by_its_own_id() -> None:
    """Else every user who signs in with Azure CLI would have the rights of an entry for it."""
    entry = Allowed(PrincipalKind.APPLICATION, CLI, View.BOTH, Rights.WRITE)
    assert not principal_of(users()).is_named_by(entry)
    own = Allowed(PrincipalKind.APPLICATION, APPLICATION, View.BOTH, Rights.WRITE)
    assert principal_of(applications()).is_named_by(own)


@pytest.mark.parametrize(
    ("kind", "identity", "names"),
    [
        (PrincipalKind.OBJECT, USER, True),
        (PrincipalKind.OBJECT, GROUP, False),
        (PrincipalKind.GROUP, GROUP, True),
        (PrincipalKind.GROUP, USER, False),
        (PrincipalKind.APPLICATION, USER, False),
    ],
)
def test_an_entry_names_a_principal_by_its_own_kind_of_id(
    kind: PrincipalKind, identity: str, names: bool
) -> None:
    entry = Allowed(kind, identity, View.BOTH, Rights.READ)
    assert principal_of(users(groups=[GROUP])).is_named_by(entry) is names


# --- keys of the tenant ----------------------------------------------------------------------------------


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


OURS = "https://login.microsoftonline.com/{tenantid}/v2.0"
PERSONAL = "https://login.microsoftonline.com/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0"


@pytest.mark.parametrize(
    "more",
    [{}, {"alg": "RS256"}, {"issuer": OURS}, {"issuer": ENTRA.issuers["1.0"]}, {"x5c": ["MIIB"], "x5t": "a"}],
)
def test_a_key_that_signs_the_tenants_tokens_is_read(more: dict[str, Any]) -> None:
    keys = keys_in(key_set(jwk_of("first", KEY, **more)), ENTRA)
    assert keys["first"].public_numbers() == PUBLIC.public_numbers()


@pytest.mark.parametrize(
    "key",
    [
        jwk_of("other", KEY, use="enc"),
        jwk_of("other", KEY, alg="RS512"),
        jwk_of("other", KEY, kty="oct", k="c2VjcmV0"),
        {"kty": "oct", "kid": "other", "k": "c2VjcmV0"},
        jwk_of("other", KEY, issuer=PERSONAL),
        jwk_of("other", private_key("short", 1024)),
        {"kty": "RSA", "use": "sig", "kid": "other", "n": "!", "e": "AQAB"},
        {"kty": "RSA", "use": "sig", "kid": "other"},
        {name: value for name, value in jwk_of("other", KEY).items() if name != "kid"},
        jwk_of("", KEY),
        "a text",
    ],
    ids=[
        *("for encryption", "another algorithm", "another kind with a modulus", "a secret", "another issuer"),
        *("too short", "no number", "no modulus", "no id", "an empty id", "a text"),
    ],
)
def test_a_key_of_another_kind_is_left_out(key: Any) -> None:
    assert list(keys_in(key_set(jwk_of("first", KEY), key), ENTRA)) == ["first"]
    with pytest.raises(ValueError, match="no key"):
        keys_in(key_set(key), ENTRA)


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[]}', key_set(*[jwk_of("first", KEY)] * 101), b"<html>"],
    ids=["nothing", "a list", "no keys", "keys as an object", "an empty list", "too many", "a page"],
)
def test_what_is_no_set_of_keys_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError):
        keys_in(document, ENTRA)


# --- mutated tokens --------------------------------------------------------------------------------------

WORDS = (
    *(".", "..", "=", "\n", " ", "\x00", "%00", "e30", "eyJ", "null", "bm9uZQ", "AAAA", "é", "Bearer "),
    *("eyJhbGciOiJub25lIn0", "/", "+", "-", "_", "A", "B"),
)


def mutated(draw: random.Random, token: str, other: str) -> str:
    """Return a token with one to three changes, which is neither of the two."""
    while True:
        changed = token
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(changed) + 1)
            match draw.randrange(7):
                case 0:
                    changed = changed[:at] + draw.choice(LETTERS) + changed[at + 1 :]
                case 1:
                    changed = changed[:at] + draw.choice(WORDS) + changed[at:]
                case 2:
                    changed = changed[:at] + changed[at + draw.randrange(1, 40) :]
                case 3:
                    changed = changed[:at] + other[at:]
                case 4:
                    parts = changed.split(".")
                    draw.shuffle(parts)
                    changed = ".".join(parts)
                case 5:
                    parts, donors = changed.split("."), other.split(".")
                    number = draw.randrange(min(len(parts), len(donors)))
                    parts[number] = donors[number]
                    changed = ".".join(parts)
                case 6:
                    changed = _with_other_json(draw, changed)
        if changed not in (token, other):
            return changed


def _with_other_json(draw: random.Random, token: str) -> str:
    """Return a token with another value in its header or its claims, signed as before."""
    parts = token.split(".")
    number = draw.randrange(2)
    try:
        content = json.loads(base64.urlsafe_b64decode(parts[number] + "==="))
        name = draw.choice([*content, "jku", "x"])
    except (ValueError, IndexError, TypeError):
        return token[:-1]
    content[name] = draw.choice(
        [None, True, 0, 2**70, -1.5, "none", "HS256", SERVICE, [], {}, "\ud800", "x" * 99]
    )
    parts[number] = encoded(json.dumps(content).encode())
    return ".".join(parts)


def accepted_of(draw: random.Random, number: int) -> int:
    """Try mutated tokens; return how many were accepted. Any other error than a refusal ends the test."""
    good, other, accepted = users(), applications(), 0
    for _ in range(number):
        token = mutated(draw, good, other)
        try:
            key_id_of(token)
            verify(token, PUBLIC, ENTRA, NOW)
        except RequestRejected as refused:
            assert refused.status == 401
            continue
        print(f"accepted: {token!r}")
        accepted += 1
    return accepted


def test_no_mutated_token_is_accepted() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    assert accepted_of(random.Random(seed), 3_000) == 0


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_mutated_token_of_five_million_is_accepted() -> None:
    seed, number = random.SystemRandom().randrange(2**32), int(os.environ.get("FUZZ_TOKENS", "5000000"))
    print(f"seed {seed}")
    assert accepted_of(random.Random(seed), number) == 0
