"""What a verified token may do: rights and view of the first entry that names its principal, and nothing
else. And how the proxy answers a token, or a request without a credential, where a tenant is configured."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from rekey import Migration, Target, keys
from rekey.errors import RequestRejected, Unavailable
from rekey.project.entra import Allowed, Entra, PrincipalKind, Rights, View
from rekey.proxy.access import RIGHTS, Access, Asked, CredentialKind, Granted, TokenUnverified, judge, needs
from rekey.proxy.parse import OPERATIONS
from rekey.proxy.route import Route, Routes, sides_of
from rekey.proxy.tokens import Principal
from tests.fakes.issuer import (
    APPLICATION,
    CLI,
    GROUP,
    SERVICE,
    USER,
    Issuer,
    application_claims,
    entra_of,
    now,
    user_claims,
)
from tests.unit.proxy.test_fuzz import World, exchange
from tests.worlds.access import ACCOUNT, KEY, NOW, asked
from tests.worlds.begun_migrations import declared_as

SHOWN = ("Authorization", "Bearer a.b.c")


def entry(
    kind: PrincipalKind, identity: str, rights: Rights, view: View = View.BOTH, name: str = ""
) -> Allowed:
    return Allowed(kind, identity, view, rights, name)


READER = entry(PrincipalKind.OBJECT, USER, Rights.READ)
WRITER = entry(PrincipalKind.OBJECT, USER, Rights.WRITE)


def access_of(*allow: Allowed) -> Access:
    return Access(ACCOUNT, {"orders": KEY}, entra=entra_of(*allow))


def by(
    principal: Principal, kind: str = "rows", method: str = "GET", **changed: Any
) -> tuple[Asked, Principal]:
    """Return a request with a token, and whose token that is."""
    return asked(kind, method, headers=[SHOWN], **changed), principal


def granted(request: tuple[Asked, Principal], access: Access) -> Granted:
    return judge(request[0], access, NOW, request[1])


def refusal(request: tuple[Asked, Principal], access: Access) -> str:
    with pytest.raises(RequestRejected) as caught:
        granted(request, access)
    assert (caught.value.status == 403) is caught.value.code.startswith(("Authorization", "AuthenticationF"))
    return str(caught.value.code)


# --- rights ----------------------------------------------------------------------------------------------

READS = {("tables", "GET"), ("table", "GET"), ("rows", "GET"), ("row", "GET")}
NOBODYS = {("service", "GET"), ("service", "PUT")}
ALL = [(kind, method) for kind, verbs in OPERATIONS.items() for method in verbs if kind != "batch"]


@pytest.mark.parametrize(("kind", "method"), ALL)
@pytest.mark.parametrize("conditional", [True, False])
def test_a_reader_reads_and_a_writer_writes(kind: str, method: str, conditional: bool) -> None:
    resource, rights = needs(kind, method, "", conditional=conditional)
    request = by(Principal(USER), resource=resource, rights=rights)
    for allowed, operations in ((READER, READS), (WRITER, set(ALL) - NOBODYS)):
        if (kind, method) in operations:
            assert granted(request, access_of(allowed)).kind is CredentialKind.PRINCIPAL
        else:
            assert refusal(request, access_of(allowed)) == "AuthorizationPermissionMismatch"


@pytest.mark.parametrize("kind", ["rows", "table"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_nobody_reaches_stored_access_policies(kind: str, method: str) -> None:
    resource, rights = needs(kind, method, "acl", conditional=False)
    request = by(Principal(USER), resource=resource, rights=rights)
    assert refusal(request, access_of(WRITER)) == "AuthorizationPermissionMismatch"


def test_a_batch_needs_the_rights_of_all_its_operations() -> None:
    request = by(Principal(USER), "batch", "POST", rights=frozenset())
    assert (
        granted(request, access_of(READER)).kind is CredentialKind.PRINCIPAL
    )  # its operations are unknown yet
    both = by(Principal(USER), rights=frozenset({"r", "d"}))
    assert refusal(both, access_of(READER)) == "AuthorizationPermissionMismatch"


def test_the_rights_of_a_reader_are_a_part_of_those_of_a_writer() -> None:
    assert RIGHTS[Rights.READ] < RIGHTS[Rights.WRITE]


# --- entries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "principal",
    [
        Principal(SERVICE),
        Principal(GROUP),
        Principal(SERVICE, USER),
        Principal(SERVICE, CLI, frozenset({USER})),
    ],
)
def test_a_principal_that_no_entry_names_is_refused(principal: Principal) -> None:
    """Rights are listed, never inferred from what the account allows or from a good token."""
    for request in (by(principal), by(principal, "batch", "POST", rights=frozenset())):
        assert refusal(request, access_of(WRITER)) == "AuthorizationPermissionMismatch"


@pytest.mark.parametrize(
    "allowed",
    [
        WRITER,
        entry(PrincipalKind.APPLICATION, APPLICATION, Rights.WRITE),
        entry(PrincipalKind.GROUP, GROUP, Rights.WRITE),
    ],
)
def test_an_entry_names_by_object_application_or_group(allowed: Allowed) -> None:
    principal = Principal(USER, APPLICATION, frozenset({GROUP}))
    assert granted(by(principal, "rows", "POST"), access_of(allowed)).kind is CredentialKind.PRINCIPAL


@pytest.mark.parametrize("order", [1, -1])
def test_the_first_entry_that_names_a_principal_decides(order: int) -> None:
    entries = [entry(PrincipalKind.GROUP, GROUP, Rights.READ, View.OLD, "readers"), WRITER][::order]
    principal = Principal(USER, groups=frozenset({GROUP}))
    found = granted(by(principal), access_of(*entries))
    assert (found.name, found.view) == (entries[0].name, entries[0].view)
    if entries[0].rights is Rights.READ:
        assert (
            refusal(by(principal, "rows", "POST"), access_of(*entries)) == "AuthorizationPermissionMismatch"
        )


# --- before a token is verified --------------------------------------------------------------------------


def test_a_token_is_verified_before_anything_is_granted() -> None:
    with pytest.raises(TokenUnverified) as caught:
        judge(asked(headers=[SHOWN]), access_of(WRITER), NOW)
    assert caught.value.token == "a.b.c"
    assert "a.b.c" not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"secure": False}, "AuthenticationFailed"),
        ({"headers": {"authorization": "Bearer"}}, "InvalidAuthenticationInfo"),
        ({"headers": {"authorization": "Bearer a b"}}, "InvalidAuthenticationInfo"),
        ({"headers": {"authorization": "bearer a.b.c"}}, "InvalidAuthenticationInfo"),
        ({"parameters": {"sig": "x"}}, "InvalidAuthenticationInfo"),
    ],
    ids=["over http", "no token", "two", "another scheme", "a signature besides"],
)
def test_such_a_request_is_refused_before_its_token_is_looked_at(changed: Any, code: str) -> None:
    request = replace(asked(headers=[SHOWN]), **changed)
    assert refusal((request, Principal(USER)), access_of(WRITER)) == code


def test_without_the_section_a_token_is_judged_as_before() -> None:
    request = by(Principal(USER))
    assert refusal(request, Access(ACCOUNT, {"orders": KEY})) == "AuthenticationFailed"
    passed = granted(request, Access(ACCOUNT, {}, tokens=True))
    assert (passed.kind, passed.token) == (CredentialKind.TOKEN, "Bearer a.b.c")


def test_a_verified_token_never_goes_upstream() -> None:
    assert granted(by(Principal(USER)), access_of(WRITER)).token == ""


def test_who_shows_nothing_is_told_the_tenant_over_https_only() -> None:
    with pytest.raises(RequestRejected) as caught:
        judge(asked(), access_of(WRITER), NOW)
    assert (caught.value.status, caught.value.code) == (401, "NoAuthenticationInformation")
    over_http, nobody = (asked(secure=False), Principal(USER)), (asked(), Principal(USER))
    assert refusal(over_http, access_of(WRITER)) == "AuthenticationFailed"
    assert refusal(nobody, Access(ACCOUNT, {"orders": KEY})) == "AuthenticationFailed"


# --- through the handler ---------------------------------------------------------------------------------


class Verifier:
    """Verifies one token; any other is refused, or cannot be judged."""

    def __init__(self, *, is_down: bool = False) -> None:
        self.is_down, self.shown = is_down, list[str]()

    async def principal(self, token: str) -> Principal:
        self.shown.append(token)
        if self.is_down:
            raise Unavailable(
                "nothing was done: the tenant's signing keys are unknown", code="SigningKeysUnknown"
            )
        if token != "a.b.c":
            raise RequestRejected("no", code="InvalidAuthenticationInfo", status=401)
        return Principal(USER)


def world(*allow: Allowed, **options: Any) -> tuple[World, Verifier]:
    made, verifier = World(), Verifier(**options)
    access = made.handler.access
    made.handler.access = Access(access.account, access.keys, entra=entra_of(*(allow or (WRITER,))))
    made.handler.verifier = cast(Any, verifier)
    routes = made.handler.routes
    routes._sides = {"moved": frozenset({View.OLD}), "movedv2": frozenset({View.NEW})}
    routes._routes[""]["movedv2"] = Route("MovedV2", cast(Any, made))
    routes._routes["renamed"] = {"moved": Route("MovedV2", cast(Any, made), "Moved")}
    return made, verifier


ROW = b'{"PartitionKey":"p","RowKey":"r"}'


def bearer(method: str, path: str, body: bytes = b"", token: str = "a.b.c", *more: str) -> bytes:  # noqa: S107
    lines = [f"{method} /acct/{path} HTTP/1.1", "Host: x", *more]
    lines += [f"Authorization: Bearer {token}"] if token else []
    lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"] if body else []
    return "\r\n".join([*lines, "", ""]).encode() + body


async def test_a_write_with_a_token_is_carried() -> None:
    there, verifier = world()
    answered = await exchange(there, [bearer("POST", "Moved", ROW)], secure=True)
    assert answered.startswith(b"HTTP/1.1 201 ")
    assert (len(there.carried), there.passed) == (1, [])
    assert set(verifier.shown) == {"a.b.c"}


BATCH = (
    b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\nContent-Type: application/http\r\n\r\n"
    b"POST /acct/Moved HTTP/1.1\r\nContent-Type: application/json\r\n\r\n" + ROW + b"\r\n--c--\r\n--b--\r\n"
)


@pytest.mark.parametrize(
    ("allowed", "method", "path", "body", "status"),
    [
        (READER, "GET", "Moved()", b"", 200),
        (READER, "POST", "Moved", ROW, 403),
        (READER, "DELETE", "Tables('Moved')", b"", 403),
        (READER, "POST", "Tables", b'{"TableName":"Plain"}', 403),
        (READER, "POST", "Plain", ROW, 403),
        (READER, "POST", "$batch", BATCH, 403),
        (WRITER, "POST", "$batch", BATCH, 202),
        (WRITER, "GET", "?restype=service&comp=properties", b"", 403),
    ],
)
async def test_rights_hold_for_whole_requests(
    allowed: Allowed, method: str, path: str, body: bytes, status: int
) -> None:
    there, _ = world(allowed)
    sent = bearer(method, path, body)
    if path == "$batch":
        sent = sent.replace(b"application/json", b"multipart/mixed; boundary=b", 1)
    answered = await exchange(there, [sent], secure=True)
    assert answered.startswith(f"HTTP/1.1 {status} ".encode())
    if status == 403:
        assert b"AuthorizationPermissionMismatch" in answered
        assert (there.carried, there.passed) == ([], [])


@pytest.mark.parametrize(
    ("view", "name", "table", "is_granted"),
    [
        (View.OLD, "", "Moved", True),
        (View.OLD, "", "MovedV2", False),
        (View.OLD, "", "movedv2", False),
        (View.NEW, "", "Moved", False),
        (View.NEW, "", "MOVED", False),
        (View.NEW, "", "MovedV2", True),
        (View.BOTH, "", "Moved", True),
        (View.BOTH, "", "MovedV2", True),
        (View.OLD, "", "Plain", True),
        (View.NEW, "", "Plain", True),
        (View.NEW, "renamed", "Moved", True),
        (View.OLD, "renamed", "Moved", False),
    ],
)
async def test_a_caller_uses_the_tables_of_its_view(
    view: View, name: str, table: str, is_granted: bool
) -> None:
    """An alias counts as the table that it stands for, and tables of no migration are in no view."""
    transaction = BATCH.replace(b"/acct/Moved ", f"/acct/{table} ".encode())
    requests = [
        bearer("GET", f"{table}()"),
        bearer("POST", table, ROW),
        bearer("POST", "Tables", f'{{"TableName":"{table}"}}'.encode()),
        bearer("DELETE", f"Tables('{table}')", b"", "a.b.c", "If-Match: *"),
        bearer("POST", "$batch", transaction).replace(b"application/json", b"multipart/mixed; boundary=b", 1),
    ]
    for sent in requests:
        there, _ = world(entry(PrincipalKind.OBJECT, USER, Rights.WRITE, view, name))
        answered = await exchange(there, [sent], secure=True)
        assert (b"AuthorizationPermissionMismatch" not in answered) is is_granted, sent
        assert bool(there.carried or there.passed) is is_granted


async def test_without_keys_of_the_tenant_the_answer_is_503_with_retry_after() -> None:
    there, _ = world(is_down=True)
    answered = await exchange(there, [bearer("POST", "Moved", ROW)], secure=True)
    assert answered.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in answered
    assert b"the tenant's signing keys are unknown" in answered
    assert (there.carried, there.passed) == ([], [])


@pytest.mark.parametrize(
    ("token", "code"), [("x.y.z", b"InvalidAuthenticationInfo"), ("", b"NoAuthenticationInfo")]
)
async def test_a_refused_token_is_answered_with_the_challenge_of_the_service(token: str, code: bytes) -> None:
    there, _ = world()
    answered = await exchange(there, [bearer("GET", "Moved()", b"", token)], secure=True)
    assert answered.startswith(b"HTTP/1.1 401 ")
    assert code in answered
    challenge = entra_of().challenge
    assert f"WWW-Authenticate: {challenge}\r\n".encode() in answered
    assert challenge == (
        "Bearer authorization_uri=https://login.microsoftonline.com/11111111-2222-3333-4444-555555555555"
        "/oauth2/authorize resource_id=https://storage.azure.com"
    )


async def test_no_token_is_in_a_log_or_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """With a real token, refused for each reason that the handler knows."""
    caplog.set_level(logging.DEBUG, "rekey.proxy")
    entra, issuer = entra_of(), Issuer()
    good = issuer.token(user_claims(entra, now()))
    nobody = issuer.token(application_claims(entra, now()))
    for token in (good, nobody, good[:-3] + "AAA"):
        for options in ({}, {"is_down": True}):
            there, _ = world(READER, **options)
            answered = await exchange(there, [bearer("POST", "Moved", ROW, token)], secure=True)
            for part in token.split("."):
                assert part.encode() not in answered
                assert part not in caplog.text


def test_settings_of_a_tenant_name_its_issuers() -> None:
    entra: Entra = entra_of()
    assert entra.issuers == {
        "1.0": "https://sts.windows.net/11111111-2222-3333-4444-555555555555/",
        "2.0": "https://login.microsoftonline.com/11111111-2222-3333-4444-555555555555/v2.0",
    }


def test_a_table_between_two_migrations_is_in_both_views() -> None:
    first, second = (
        declared_as(
            script,
            Migration(
                source=source,
                target=Target(target, partition_key=keys.prop("PartitionKey"), row_key=keys.prop("RowKey")),
                capture="delta",
            ),
        )
        for script, source, target in (("0001", "Users", "UsersV2"), ("0002", "UsersV2", "UsersV3"))
    )
    routes = Routes({}, {}, {}, sides=sides_of([first, second]))
    assert [routes.views_of(table) for table in ("USERS", "usersv2", "UsersV3", "Plain")] == [
        {View.OLD},
        {View.OLD, View.NEW},
        {View.NEW},
        set(),
    ]
