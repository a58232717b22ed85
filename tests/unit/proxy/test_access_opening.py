"""Keys of applications are found where the configuration says; a changed certificate is read again."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import subprocess
from pathlib import Path

import pytest

from rekey.errors import ConfigurationError, SecretMissing
from rekey.plan.subject import PlanOptions
from rekey.project.config import Config, load_config
from rekey.proxy import tls
from rekey.proxy.access import Access
from rekey.proxy.running import access_of
from rekey.proxy.tls import Certificate, certificate_for
from rekey.serve.server import Address
from tests.fakes.issuer import TENANT, USER

ACCOUNTS = "".join(
    f'[{one}]\nendpoint = "https://{one}.table.core.windows.net"\n' for one in ("tables", "restricted")
)
KEYS = "[proxy.access.keys.orders]\nenv = 'ORDERS_KEY'\n[proxy.access.keys.old-orders]\nfile = 'old.key'\n"
ENTRA = f"""[proxy.access.entra]
tenant = "{TENANT}"
allow = [{{ object_id = "{USER}", view = "old", rights = "read" }}]
"""
SECRET, OLD = b"a secret of the application", b"the one that it had before"


def configured(folder: Path, text: str) -> Config:
    """Return a configuration with some sections of its own."""
    (folder / "rekey.toml").write_text(ACCOUNTS + text, "utf-8")
    return load_config(folder / "rekey.toml")


def test_keys_come_from_environment_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_KEY", base64.b64encode(SECRET).decode())
    (tmp_path / "old.key").write_bytes(base64.b64encode(OLD) + b"\n")
    found = access_of(configured(tmp_path, KEYS))
    assert found == Access("tables", {"orders": SECRET, "old-orders": OLD})
    assert "secret" not in repr(found)
    (tmp_path / "old.key").chmod(0o644)
    assert any("key `old-orders` is open" in one for one in configured(tmp_path, KEYS).warnings())


def test_an_absent_or_invalid_key_is_not_echoed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(tmp_path, "[proxy.access.keys.orders]\nenv = 'ORDERS_KEY'\n")
    monkeypatch.delenv("ORDERS_KEY", raising=False)
    with pytest.raises(SecretMissing, match="ORDERS_KEY"):
        access_of(config)
    for wrong in ("not in base 64, but long enough", base64.b64encode(b"only 12bytes").decode()):
        monkeypatch.setenv("ORDERS_KEY", wrong)
        with pytest.raises(ConfigurationError, match=r"no account key") as caught:
            access_of(config)
        assert wrong not in f"{caught.value} {caught.value.hint}"
        assert "[proxy.access.keys.orders]" in str(caught.value.hint)


def test_a_proxy_that_nobody_may_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nobody may use the proxy"):
        access_of(configured(tmp_path, ""))
    found = access_of(configured(tmp_path, "[proxy.access]\nbearer_tokens = true\n"))
    assert (found.keys, found.tokens, found.entra) == ({}, True, None)
    found = access_of(configured(tmp_path, ENTRA))
    assert (found.keys, found.tokens, found.entra and found.entra.tenant) == ({}, False, TENANT)


@pytest.mark.parametrize("said", [True, False])
def test_a_plan_tells_whether_signatures_have_key_ranges(tmp_path: Path, said: bool) -> None:
    config = configured(tmp_path, "[proxy.access]\nkey_ranges = true\n" if said else "")
    assert PlanOptions.of(config).key_ranges is said


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[proxy.access]\nbearer_tokens = 'yes'\n", "neither true nor false"),
        ("[proxy.access]\ncertificate = 'c.pem'\n", "one of certificate and key"),
        ("[proxy.access]\nkeys = 'x'\n", "not a section"),
        ("[proxy.access]\nbearer = true\n", "unknown key"),
        ("[proxy.access.keys.orders]\nkey_vault = 'https://v.vault.azure.net/secrets/x'\n", "unknown key"),
        ("[proxy.access.keys.orders]\n", "exactly one"),
        ("[proxy.access.keys.'a b']\nenv = 'X'\n", "not a name"),
        ("[proxy.access.token]\nkey_vault = 'x'\n", "unknown key"),
    ],
)
def test_what_is_configured_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        configured(tmp_path, text)
    assert "proxy.access" in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[proxy.views.other]\nUsers = 'UsersV2'\n", "is no key of"),
        ("[proxy.access.keys.app]\nenv = 'X'\n[proxy.views.app]\nUsers = 'a b'\n", "not the name of a table"),
        ("[proxy.views]\nUsers = 7\n", "text"),
    ],
)
def test_aliases_that_mean_nothing_are_named(tmp_path: Path, text: str, problem: str) -> None:
    """Those of a key that nobody has would be given to nobody."""
    with pytest.raises(ConfigurationError, match=problem):
        configured(tmp_path, text)


def made(certificate: Path, key: Path, name: str) -> None:
    """Make a certificate, in place of the one that is there."""
    new = [path.with_suffix(".new") for path in (certificate, key)]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-days", "1", "-subj", f"/CN={name}", "-keyout", str(new[1]), "-out", str(new[0])],
        check=True, capture_output=True,
    )  # fmt: skip
    for path in (certificate, key):
        path.with_suffix(".new").replace(path)


async def shown(server: asyncio.Server, *, name: str | None = None) -> bytes:
    """Return the certificate that a new connection is given."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name or "")
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(found)


async def test_new_connections_get_current_certs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new certificate without its key changes nothing; neither does one that is no certificate."""
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    made(certificate, key, "first")
    loaded = Certificate(certificate, key)

    async def served(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0, ssl=loaded.context)
    async with server:
        first = await shown(server, name="proxy.test")
        former = key.read_bytes()
        made(certificate, key, "second")
        assert await shown(server) == first, "it looks seldom"
        monkeypatch.setattr(tls, "CHECK_S", 0.0)
        whole = key.read_bytes()
        key.write_bytes(former)
        assert await shown(server) == first, "certificate and key do not belong together"
        key.write_bytes(whole)
        os.utime(key, ns=(1, 1))
        second = await shown(server)
        assert second != first
        assert await shown(server, name="proxy.test") == second
        certificate.unlink()
        assert await shown(server) == second


def test_others_reach_it_by_tls_alone(tmp_path: Path) -> None:
    assert certificate_for(Address.of("127.0.0.1:0"), None, None) is None
    for everywhere in ("0.0.0.0:1", "[::]:1", "proxy.corp:1"):
        with pytest.raises(ConfigurationError, match="a certificate is missing"):
            certificate_for(Address.of(everywhere), None, None)
    made(tmp_path / "c.pem", tmp_path / "k.pem", "proxy")
    assert certificate_for(Address.of("0.0.0.0:1"), tmp_path / "c.pem", tmp_path / "k.pem") is not None
    (tmp_path / "k.pem").write_text("no key")
    with pytest.raises(ConfigurationError, match=r"c\.pem cannot be used"):
        certificate_for(Address.of("127.0.0.1:0"), tmp_path / "c.pem", tmp_path / "k.pem")
