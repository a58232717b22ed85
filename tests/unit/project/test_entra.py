"""`[proxy.access.entra]`: what is accepted, and that rights and view are listed, never inferred."""

from __future__ import annotations

from pathlib import Path

import pytest

from rekey.errors import ConfigurationError
from rekey.project.config import load_config
from rekey.project.entra import Allowed, Entra, PrincipalKind, Rights, View

ACCOUNTS = "".join(
    f'[{section}]\nendpoint = "https://{section}.table.core.windows.net"\n'
    for section in ("tables", "restricted")
)
TENANT = "11111111-2222-3333-4444-55555555555a"
USER = "aaaaaaaa-0000-0000-0000-000000000001"
ENTRY = f'{{ object_id = "{USER}", view = "old", rights = "write" }}'
SECTION = f'[proxy.access.entra]\ntenant = "{TENANT}"\n'
WHOLE = f"{SECTION}allow = [{ENTRY}]\n"


def read(folder: Path, text: str) -> Entra | None:
    (folder / "rekey.toml").write_text(ACCOUNTS + text, "utf-8")
    return load_config(folder / "rekey.toml").proxy.access.entra


def test_without_the_section_nobodys_tokens_are_verified(tmp_path: Path) -> None:
    assert read(tmp_path, "") is None


def test_tenant_and_entries_are_read_with_defaults(tmp_path: Path) -> None:
    entry = Allowed(PrincipalKind.OBJECT, USER, View.OLD, Rights.WRITE)
    entra = read(tmp_path, WHOLE)
    assert entra == Entra(
        TENANT, (entry,), "https://storage.azure.com", "https://login.microsoftonline.com", 24 * 3600
    )
    assert entra.audiences == {"https://storage.azure.com", "https://storage.azure.com/"}
    assert entra.keys_url == f"https://login.microsoftonline.com/{TENANT}/discovery/v2.0/keys"


@pytest.mark.parametrize("audience", ["https://storage.azure.com", "https://storage.azure.com/"])
def test_an_audience_counts_with_and_without_its_slash(tmp_path: Path, audience: str) -> None:
    entra = read(tmp_path, f'{WHOLE}audience = "{audience}"')
    assert entra is not None
    assert entra.audiences == {"https://storage.azure.com", "https://storage.azure.com/"}


def test_ids_are_compared_in_lower_case(tmp_path: Path) -> None:
    entra = read(tmp_path, WHOLE.replace(USER, USER.upper()).replace(TENANT, TENANT.upper()))
    assert entra is not None
    assert (entra.tenant, entra.allow[0].id) == (TENANT, USER)


@pytest.mark.parametrize(
    ("authority", "issuer"),
    [
        ("https://login.microsoftonline.us", "https://sts.windows.net"),
        ("https://login.partner.microsoftonline.cn", "https://sts.chinacloudapi.cn"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ],
)
def test_an_authority_brings_its_issuers(tmp_path: Path, authority: str, issuer: str) -> None:
    entra = read(tmp_path, f'{WHOLE}authority = "{authority}"')
    assert entra is not None
    assert entra.issuers == {"1.0": f"{issuer}/{TENANT}/", "2.0": f"{authority}/{TENANT}/v2.0"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SECTION, "allow: is not a list of principals"),
        (f"{SECTION}allow = [{ENTRY}, {ENTRY.replace('write', 'read')}]\n", "allow: names a principal twice"),
        (f"{SECTION}allow = []\n", "allow: is not a list of principals"),
        (f'{SECTION}allow = ["{USER}"]\n', "allow: is not a list of principals"),
        (
            f"{SECTION}allow = [{{ view = 'old', rights = 'read' }}]\n",
            "exactly one of object_id, app_id, group",
        ),
        (
            WHOLE.replace("object_id", f'group = "{USER}", object_id'),
            "exactly one of object_id, app_id, group",
        ),
        (WHOLE.replace(', rights = "write"', ""), "rights: is missing or unknown; it is never inferred"),
        (WHOLE.replace('view = "old", ', ""), "view: is missing or unknown; it is never inferred"),
        (WHOLE.replace('"write"', '"admin"'), "rights: is missing or unknown"),
        (WHOLE.replace('"write"', '["write"]'), "rights: is missing or unknown"),
        (WHOLE.replace('"old"', '"all"'), "view: is missing or unknown"),
        (WHOLE.replace(USER, "alice@contoso.example"), "object_id: is not an id"),
        (WHOLE.replace(TENANT, "contoso.onmicrosoft.com"), "tenant: is not an id"),
        (WHOLE.replace(TENANT, "common"), "tenant: is not an id"),
        (WHOLE.replace("tenant", "tennant"), "unknown key"),
        (WHOLE.replace("view", "views"), "unknown key"),
        (WHOLE.replace("rights =", "name = 'a b', rights ="), "name: is not a name"),
        (f'{WHOLE}audience = "a b"', "audience: is not what a token can be for"),
        (f'{WHOLE}audience = "/"', "audience: is not what a token can be for"),
        (f'{WHOLE}max_age = "0s"', "max_age: is no time"),
        (f'{WHOLE}authority = "http://login.microsoftonline.com"', "authority: is not the https address"),
        (
            f'{WHOLE}authority = "https://login.microsoftonline.com/common"',
            "authority: is not the https address",
        ),
        (f'{WHOLE}authority = "https://user@login.example"', "authority: is not the https address"),
        (f'{WHOLE}authority = "login.microsoftonline.com"', "authority: is not the https address"),
        (f"[proxy.access]\nbearer_tokens = true\n{WHOLE}", "exclude each other"),
        (f'{WHOLE}[proxy.views.orders]\nUsers = "UsersV2"\n', "no name in"),
        (
            f"{WHOLE}[proxy.access.keys.orders]\nenv = 'KEY'\n".replace(
                "rights =", "name = 'orders', rights ="
            ),
            "has the name of a key",
        ),
    ],
)
def test_what_is_configured_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert problem in str(caught.value)
    assert caught.value.hint


def test_an_entry_with_a_name_has_aliases_of_its_own(tmp_path: Path) -> None:
    named = WHOLE.replace("rights =", "name = 'orders-new', rights =")
    entra = read(tmp_path, f'{named}[proxy.views.orders-new]\nUsers = "UsersV2"\n')
    assert entra is not None
    assert entra.allow[0].name == "orders-new"
