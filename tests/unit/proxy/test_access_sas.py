"""Signatures of an account and of a table are verified, and all that they say is enforced.

Those of the packages for JavaScript were made by `azure-storage` 2.10.7 and `@azure/data-tables` 13.1.2.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import (
    AccountSasPermissions,
    ResourceTypes,
    TableSasPermissions,
    generate_account_sas,
    generate_table_sas,
)
from hypothesis import given
from hypothesis import strategies as st

from rekey.errors import RequestRejected
from rekey.model import EntityKey
from rekey.proxy.access import CredentialKind, PolicyUnread
from rekey.proxy.sas import Within, confined, policies_in
from tests.worlds.access import (
    ACCOUNT,
    ENCODED,
    ENDS,
    NOW,
    STARTS,
    account_sas,
    asked,
    granted,
    mac,
    refusal,
    table_sas,
)

CREDENTIAL = AzureNamedKeyCredential(ACCOUNT, ENCODED)
BEGIN, END = datetime(2026, 11, 20, 8, tzinfo=UTC), datetime(2026, 11, 27, 8, tzinfo=UTC)
RANGE = {"spk": "b", "srk": "2", "epk": "d", "erk": "5"}
HIGH, LOW = EntityKey("\U0001f600", ""), EntityKey("\uffff", "")
"""In the service's order the first is below the second; by code points it is above."""
OF_JAVASCRIPT = {
    "table, now": "sv=2019-02-02&spr=https&st=2026-11-20T08%3A00%3A00Z&se=2026-11-27T08%3A00%3A00Z"
    "&sip=10.0.0.1-10.0.0.9&sp=ra&sig=CVgHlz1Kt9bNRrTv8j3FI3yAgfgFa%2FuAjYfTa8pGcto%3D&tn=Orders&srk=a&spk=K%C3%BCche's"
    "&epk=K%C3%BCche's&erk=m",
    "table, then": "st=2026-11-20T08%3A00%3A00Z&se=2026-11-27T08%3A00%3A00Z&sp=ra&spk=a&epk=b&srk=1&erk=2&"
    "sv=2018-03-28&tn=orders&sig=3CU7tSj4JTnDWw8TzNMkKpUqoaz2fa7rLwsEgK8SaDo%3D",
    "account, now": "sv=2019-02-02&ss=t&srt=so&se=2026-11-27T08%3A00%3A00Z&sp=rl"
    "&sig=oq6ta0PZeyWlTLZ9VnB5rqtYz9CP2z10mLeIpW7Tizk%3D",
    "account, then": "sv=2018-03-28&ss=t&srt=so&sp=rl&se=2026-11-27T08%3A00%3A00Z"
    "&sig=sLHw9GjaCQJantsv984mz2ksYEsoT97bX1H2rlOI0UA%3D",
}


@pytest.mark.parametrize("name", OF_JAVASCRIPT)
def test_signatures_made_by_the_packages_for_javascript_are_good(name: str) -> None:
    key = EntityKey("Küche's", "k") if name == "table, now" else EntityKey("a", "1")
    request = asked("row", query=OF_JAVASCRIPT[name], keys=[key])
    found = granted(request)
    kind = CredentialKind.TABLE_SAS if name.startswith("table") else CredentialKind.ACCOUNT_SAS
    assert (found.name, found.kind) == ("orders", kind)
    more = {**request.parameters, "sp": f"{request.parameters['sp']}d"}
    assert refusal(replace(request, parameters=more)) == "AuthenticationFailed"


def test_signatures_made_by_the_sdk_for_python_are_good() -> None:
    of_table = generate_table_sas(
        CREDENTIAL,
        "Orders",
        permission=TableSasPermissions(read=True, update=True),
        expiry=END,
        start=BEGIN,
        ip_address_or_range="10.0.0.1-10.0.0.9",
        protocol="https",
        start_pk="a&b=c+d",
        end_pk="ü",
    )
    found = granted(asked(query=of_table, confines=True))
    assert found.within == Within(("a&b=c+d", None), ("ü", None))
    of_account = generate_account_sas(
        CREDENTIAL,
        ResourceTypes(service=True, object=True),
        AccountSasPermissions(read=True, list=True),
        END,
        start=BEGIN,
        protocol="https,http",
    )
    assert granted(asked(query=of_account)).kind is CredentialKind.ACCOUNT_SAS


@pytest.mark.parametrize("version", ["2012-02-12", "2013-08-15", "2014-02-14", "2015-02-21", "2026-02-06"])
def test_signatures_of_a_table_are_good_in_each_form_they_had(version: str) -> None:
    """Before 2015-04-05 address and protocol were not signed, before 2015-02-21 the service was not named."""
    resource = "/acme/orders" if version < "2015-02-21" else "/table/acme/orders"
    middle = ["", "", "", version] if version >= "2015-04-05" else ["", version]
    text = "\n".join(["r", "", ENDS, resource, *middle, "a", "", "b", ""])
    said = {"sv": version, "sp": "r", "se": ENDS, "tn": "Orders", "spk": "a", "epk": "b", "sig": mac(text)}
    assert granted(asked(query=urlencode(said), confines=True)).within == Within(("a", None), ("b", None))
    assert refusal(asked(query=urlencode(said | {"epk": "c"}), confines=True)) == "AuthenticationFailed"
    for unsigned in ("ses", "sip", "spr"):
        more = urlencode(said | {unsigned: {"sip": "10.0.0.5", "spr": "https"}.get(unsigned, "x")})
        assert refusal(asked(query=more, confines=True)) == "AuthenticationFailed"


@pytest.mark.parametrize("version", ["2015-04-05", "2020-10-02", "2020-12-06", "2022-11-02"])
def test_signatures_of_an_account_are_good_in_each_form_they_had(version: str) -> None:
    """From 2020-12-06 on an encryption scope is signed."""
    assert granted(asked(query=account_sas(sv=version))).name == "orders"
    if version >= "2020-12-06":
        assert granted(asked(query=account_sas(sv=version, ses="scope"))).name
        changed = account_sas(sv=version, ses="scope").replace("ses=scope", "ses=other")
        assert refusal(asked(query=changed)) == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("said", "changed", "code"),
    [
        ({}, {}, ""),
        ({"se": "2026-11-23T20:34:42Z"}, {}, "AuthenticationFailed"),
        ({"se": "2026-11-23T20:34:43Z"}, {}, ""),
        ({"se": "2026-11-24"}, {}, ""),
        ({"se": "2026-11-23T21:00+01:00"}, {}, "AuthenticationFailed"),
        ({"se": "2026-11-23T22:00:00.1234567+01:00"}, {}, ""),
        ({"st": "2026-11-23T20:34:43Z"}, {}, "AuthenticationFailed"),
        ({"st": "2026-11-23T20:34:42Z"}, {}, ""),
        ({"st": ""}, {}, ""),
        ({"se": "2026-W48-1"}, {}, "AuthenticationFailed"),
        ({"se": "2026-13-01"}, {}, "AuthenticationFailed"),
        ({"st": "now"}, {}, "AuthenticationFailed"),
        ({"spr": "https"}, {}, ""),
        ({"spr": "https"}, {"secure": False}, "AuthorizationProtocolMismatch"),
        ({"spr": "https,http"}, {"secure": False}, ""),
        ({"spr": "http"}, {"secure": False}, "AuthenticationFailed"),
        ({"sip": "10.0.0.5"}, {}, ""),
        ({"sip": "10.0.0.5"}, {"peer": "::ffff:10.0.0.5"}, ""),
        ({"sip": "10.0.0.4"}, {}, "AuthorizationSourceIPMismatch"),
        ({"sip": "10.0.0.1-10.0.0.5"}, {}, ""),
        ({"sip": "10.0.0.6-10.0.0.9"}, {}, "AuthorizationSourceIPMismatch"),
        ({"sip": "10.0.0.5"}, {"peer": ""}, "AuthorizationSourceIPMismatch"),
        ({"sip": "::-ffff::"}, {}, "AuthorizationSourceIPMismatch"),
        ({"sip": "here"}, {}, "AuthorizationSourceIPMismatch"),
        ({"sv": "2019-2-2"}, {}, "AuthenticationFailed"),
        ({"sp": "rx?"}, {}, "AuthenticationFailed"),
        ({"sp": ""}, {}, "AuthenticationFailed"),
        ({"sp": "aud"}, {}, "AuthorizationPermissionMismatch"),
    ],
)
@pytest.mark.parametrize("form", [table_sas, account_sas])
def test_sas_limits_are_enforced(form: Any, said: dict[str, str], changed: dict[str, Any], code: str) -> None:
    request = asked(query=form(**said), **changed)
    if code:
        assert refusal(request) == code
    else:
        assert granted(request).name == "orders"


@pytest.mark.parametrize(
    ("kind", "method", "right"),
    [
        ("rows", "GET", "r"),
        ("rows", "POST", "a"),
        ("row", "PUT", "au"),
        ("row", "MERGE", "au"),
        ("row", "DELETE", "d"),
    ],
)
@pytest.mark.parametrize("form", [table_sas, account_sas])
def test_each_operation_needs_its_permission(form: Any, kind: str, method: str, right: str) -> None:
    assert granted(asked(kind, method, form(sp=right))).name
    for missing in right:
        fewer = "".join(sorted(set("raud") - {missing}))
        assert refusal(asked(kind, method, form(sp=fewer))) == "AuthorizationPermissionMismatch"


def test_a_signature_of_an_account_is_for_its_services_and_types_of_resources() -> None:
    assert refusal(asked(query=account_sas(ss="bqf"))) == "AuthorizationServiceMismatch"
    assert refusal(asked(query=account_sas(srt="sc"))) == "AuthorizationResourceTypeMismatch"
    assert (
        refusal(asked("tables", table=None, query=account_sas(srt="so")))
        == "AuthorizationResourceTypeMismatch"
    )
    assert (
        refusal(asked("service", table=None, query=account_sas(srt="co")))
        == "AuthorizationResourceTypeMismatch"
    )
    assert granted(asked("tables", "POST", table=None, query=account_sas(sp="w"))).name
    assert granted(asked("tables", "POST", table=None, query=account_sas(sp="c"))).name
    refused = refusal(asked("tables", "POST", table=None, query=account_sas(sp="rlad")))
    assert refused == "AuthorizationPermissionMismatch"
    assert granted(asked("service", table=None, query=account_sas(sp="r"))).name
    every = account_sas(sp="rwdxylacuptfi")
    assert refusal(asked(comp="acl", query=every)) == "AuthorizationPermissionMismatch"


def test_a_signature_of_a_table_is_for_that_table_and_its_rows_alone() -> None:
    assert granted(asked(query=table_sas(), table="ORDERS")).name
    assert refusal(asked(query=table_sas(), table="Users")) == "AuthorizationFailure"
    assert refusal(asked(query=table_sas(), table=None)) == "AuthorizationFailure"
    assert refusal(asked("tables", query=table_sas(), table=None)) == "AuthorizationFailure"
    assert refusal(asked("table", "DELETE", table_sas())) == "AuthorizationResourceTypeMismatch"
    assert refusal(asked(comp="acl", query=table_sas())) == "AuthorizationResourceTypeMismatch"
    assert (
        refusal(asked(query=table_sas().replace("tn=Orders", "tn=Users"), table="Users"))
        == "AuthenticationFailed"
    )
    assert granted(asked("batch", "POST", table_sas(), table=None)).name, "its operations are judged next"


@pytest.mark.parametrize(
    ("key", "inside"),
    [
        (("b", "1"), False),
        (("b", "2"), True),
        (("b", "9"), True),
        (("c", ""), True),
        (("d", "5"), True),
        (("d", "50"), False),
        (("a", "9"), False),
        (("e", "3"), False),
    ],
)
def test_rows_outside_of_the_key_range_are_refused_and_not_found(key: tuple[str, str], inside: bool) -> None:
    found = EntityKey(*key)
    for kind, method in (("row", "GET"), ("row", "PUT"), ("row", "DELETE"), ("rows", "POST")):
        request = asked(kind, method, table_sas(**RANGE), keys=[EntityKey("c", "c"), found])
        if inside:
            assert granted(request).within == Within(("b", "2"), ("d", "5"))
        else:
            assert refusal(request) == "AuthorizationFailure"
    within = granted(asked(query=table_sas(**RANGE), confines=True)).within
    assert within is not None
    row = {"PartitionKey": key[0], "RowKey": key[1], "Age": 1}
    for given_filter in ("", "$filter=Age eq 1 or Age eq 2", "$top=3&$filter=Age%20eq%201"):
        assert found_by(confined(given_filter, within), row) is inside
    assert found_by(confined("$filter=Age eq 2", within), row) is False


WORDS = {
    "eq": "==",
    "gt": ">",
    "ge": ">=",
    "lt": "<",
    "le": "<=",
    "and": "and",
    "or": "or",
    "(": "(",
    ")": ")",
}


def found_by(query: str, row: dict[str, Any]) -> bool:
    """Tell whether a query finds a row."""
    [text] = [unquote(part[8:]) for part in query.split("&") if part.startswith("$filter=")]
    words = re.findall(r"'[^']*'|\w+|[()]", text)
    said = [WORDS.get(word) or (f"row[{word!r}]" if word in row else word) for word in words]
    return bool(eval(" ".join(said), {"row": row}))  # noqa: S307 - a filter of this file


def test_keys_that_are_not_known_are_not_in_the_range() -> None:
    ranged = table_sas(**RANGE)
    assert refusal(asked(query=ranged)) == "AuthorizationFailure", "a query that nobody confines"
    assert refusal(asked("rows", "POST", ranged)) == "AuthorizationFailure"
    assert refusal(asked("rows", "POST", ranged, keys=[])) == "AuthorizationFailure"
    assert refusal(asked("rows", "POST", ranged, confines=True)) == "AuthorizationFailure"
    first = asked("batch", "POST", ranged, table=None)
    assert granted(first).within is not None


def test_a_range_may_be_open_or_of_whole_partitions_and_follows_the_order_of_the_service() -> None:
    assert Within(("b", None), None).filter() == "(PartitionKey ge 'b')"
    assert Within(None, ("it's", "x")).filter() == (
        "(PartitionKey lt 'it''s' or (PartitionKey eq 'it''s' and RowKey le 'x'))"
    )
    assert Within(None, ("d", None)).holds(EntityKey("d", "z"))
    assert not Within(None, ("d", None)).holds(EntityKey("e", ""))
    assert Within(None, LOW).holds(HIGH) and not Within(LOW, None).holds(HIGH)
    assert granted(asked(query=table_sas(spk="", srk=""))).within is None


@pytest.mark.parametrize(
    "text", ["Age eq 1) or (Age eq 2", ")", "(", "Name eq 'a", "Name eq 'a') or (Name eq 'b'", "'", "'' '"]
)
def test_a_filter_that_could_end_its_parentheses_is_refused(text: str) -> None:
    with pytest.raises(RequestRejected, match="InvalidInput"):
        confined(f"$filter={quote(text)}", Within(("b", None), None))


@given(st.text("()' ao", max_size=20))
def test_a_confined_filter_holds_for_no_row_outside(text: str) -> None:
    """Whatever a filter says, in a confined one it stands in parentheses that it cannot end."""
    try:
        query = confined(f"$filter={quote(text)}", Within(("b", None), None))
    except RequestRejected:
        return
    said = unquote(query.removeprefix("$filter="))
    inner = said.removeprefix("(").removeprefix("(PartitionKey ge 'b')) and (")
    depth, quoted = 1, False
    for at, one in enumerate(inner):
        quoted ^= one == "'"
        depth += 0 if quoted else {"(": 1, ")": -1}.get(one, 0)
        assert depth > 0 or at == len(inner) - 1 or not text.strip()


@pytest.mark.parametrize(
    "said",
    [
        {"skoid": "x"},
        {"ss": "t"},
        {"srt": "sco"},
        {"srk": "1"},
        {"erk": "1"},
        {"tn": "Orders\nx"},
        {"tn": ""},
        {"sv": "2011-08-18"},
        {"spk": "a\nb"},
    ],
)
def test_what_is_not_understood_is_refused(said: dict[str, str]) -> None:
    assert refusal(asked(query=table_sas(**said), confines=True)) == "AuthenticationFailed"


POLICIES = policies_in(
    '<?xml version="1.0"?><SignedIdentifiers>\n<SignedIdentifier><Id>whole</Id><AccessPolicy>'
    f"<Start>{STARTS}</Start><Expiry>2026-11-27T08:00:00.0000000Z</Expiry><Permission>ra</Permission></AccessPolicy>"
    "</SignedIdentifier><SignedIdentifier><Id>a&amp;b</Id></SignedIdentifier><SignedIdentifier><Id>over</Id>"
    "<AccessPolicy><Expiry>2026-11-21T08:00:00.0000000Z</Expiry><Permission>r</Permission></AccessPolicy>"
    "</SignedIdentifier><SignedIdentifier><Id>rights</Id><AccessPolicy><Permission>r</Permission><Start/>"
    "</AccessPolicy></SignedIdentifier></SignedIdentifiers>".encode("utf-8-sig")
)


def by_policy(name: str, **said: str) -> str:
    """Return a signature that names a stored access policy, and says these terms itself."""
    return table_sas(**{"si": name, "sp": "", "st": "", "se": "", **said})


@pytest.mark.parametrize(
    ("query", "method", "code"),
    [
        (by_policy("whole"), "GET", ""),
        (by_policy("whole"), "POST", ""),
        (by_policy("rights", se=ENDS), "GET", ""),
        (by_policy("a&b", se=ENDS, sp="r"), "GET", ""),
        (by_policy("whole"), "DELETE", "AuthorizationPermissionMismatch"),
        (by_policy("rights", se=ENDS, sp="raud"), "GET", "AuthenticationFailed"),
        (by_policy("rights"), "GET", "AuthenticationFailed"),
        (by_policy("over"), "GET", "AuthenticationFailed"),
        (by_policy("gone"), "GET", "AuthenticationFailed"),
        (by_policy("a&b", se=ENDS), "GET", "AuthenticationFailed"),
    ],
)
def test_a_stored_access_policy_says_what_the_signature_does_not(query: str, method: str, code: str) -> None:
    """Each term in one of the two: one that neither says is missing, and one that both say is refused."""
    kind = "row" if method == "DELETE" else "rows"
    request = asked(kind, method, query, keys=(EntityKey("p", "r"),), policies=POLICIES)
    if code:
        assert refusal(request) == code
    else:
        assert granted(request).kind is CredentialKind.TABLE_SAS


def test_a_policy_is_read_for_a_verified_signature_alone() -> None:
    """And of the table that was signed."""
    with pytest.raises(PolicyUnread) as unread:
        granted(asked(query=by_policy("whole")))
    assert (unread.value.name, unread.value.table) == ("orders", "Orders")
    forged = by_policy("whole").replace("sig=", "sig=A")
    assert refusal(asked(query=forged)) == "AuthenticationFailed"
    assert (
        refusal(asked(query=by_policy("whole"), table="Other", policies=POLICIES)) == "AuthorizationFailure"
    )


@pytest.mark.parametrize(
    "said", [{"tn": "Orders"}, {"ses": "x"}, {"spk": "a"}, {"si": "x"}, {"ss": ""}, {"sv": "2014-02-14"}]
)
def test_what_does_not_belong_to_a_signature_of_an_account_is_refused(said: dict[str, str]) -> None:
    assert refusal(asked(query=account_sas(**said), confines=True)) == "AuthenticationFailed"


@given(
    st.sampled_from(
        [table_sas(**RANGE, st="", spr="https", sip="10.0.0.5"), account_sas(spr="https", st=ENDS)]
    ),
    st.data(),
)
def test_a_changed_signature_is_never_granted(query: str, data: st.DataObject) -> None:
    """One value is replaced, or a parameter is left out, moved to another name, or added."""
    said = dict(parse_qsl(query))
    others = ["si", "ses", "spk", "epk", "srk", "erk", "sip", "spr", "ss", "srt", "tn", "st"]
    name = data.draw(st.sampled_from(sorted(said)))
    form = data.draw(st.sampled_from(["value", "letter", "leave out", "rename", "add"]))
    changed = dict(said)
    if form == "value":
        changed[name] = data.draw(st.text(max_size=30))
    elif form == "letter":
        at = data.draw(st.integers(0, len(said[name]) - 1))
        changed[name] = said[name][:at] + data.draw(st.characters(codec="utf-8")) + said[name][at + 1 :]
    elif form == "leave out":
        del changed[name]
    elif form == "rename":
        changed[data.draw(st.sampled_from(others))] = changed.pop(name)
    else:
        changed[data.draw(st.sampled_from(others))] = data.draw(st.text(min_size=1, max_size=10))
    spelled = {key: value.lower() if key == "tn" else value for key, value in changed.items() if value}
    if spelled == {key: value.lower() if key == "tn" else value for key, value in said.items()}:
        return  # what is empty is signed as what is absent, and a table's name in lower case
    query = urlencode(changed, errors="surrogatepass")
    with pytest.raises(RequestRejected):
        granted(asked("row", query=query, keys=[EntityKey("c", "c")]), now=NOW)


@given(st.text(max_size=200))
def test_a_query_of_any_bytes_is_refused_in_order(query: str) -> None:
    with pytest.raises(RequestRejected):
        granted(asked(query=query))
