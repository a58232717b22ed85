"""The configuration: what is accepted, and what is refused with the key, the cure and no secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rekey.errors import ConfigurationError, ExitCode, SecretMissing
from rekey.project.config import (
    AZURITE_ACCOUNT,
    AZURITE_KEY,
    Account,
    Follow,
    Gates,
    Hooks,
    Limits,
    account_key,
    default_config,
    load_config,
    resolve_secret,
)
from rekey.project.secrets_source import SecretKind, SecretSource
from rekey.project.window import Window

HTTPS = 'endpoint = "https://acme.table.core.windows.net"'
MINIMAL = f"[tables]\n{HTTPS}\n[restricted]\nendpoint = 'https://vault.table.core.windows.net/'\n"
ELSEWHERE_ON_HTTPS = '\n[targets]\nendpoint = "https://other.table.core.windows.net"'
PASTED = "c2VjcmV0c2VjcmV0c2VjcmV0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "rekey.toml"


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def refused(file: Path, text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as error:
        load_config(write(file, text))
    assert error.value.exit_code == ExitCode.USAGE
    assert error.value.hint, "every refusal names a cure"
    return error.value


def test_the_template_is_a_configuration_and_states_the_defaults(file: Path) -> None:
    config = load_config(write(file, default_config()))
    assert config.limits == Limits()
    assert config.gates == Gates()
    assert config.follow == Follow()
    assert config.state == file.parent / ".rekey" / "state.sqlite"
    assert config.migrations == file.parent / "migrations"
    assert config.tables == Account("http://127.0.0.1:10002/devstoreaccount1")


def test_everything_in_the_templates_comments_is_accepted_too(file: Path) -> None:
    text = re.sub(
        r"^# (endpoint|key_env|entities_per_second|file|\[secrets|\[sealing|\[targets)",
        r"\1",
        default_config(),
        flags=re.M,
    )
    lines, endpoints = [], 0
    for line in text.splitlines():
        endpoints = 0 if line.startswith("[") else endpoints + line.startswith("endpoint")
        # of two endpoints in one section only the second, the commented one, is kept
        lines.append("#" if line.startswith('endpoint = "http:') else line)
    config = load_config(
        write(file, re.sub("ACCOUNT|OTHER|RESTRICTED(?=[.])", lambda name: name[0].lower(), "\n".join(lines)))
    )
    assert config.tables == Account("https://account.table.core.windows.net", "TABLES_KEY")
    assert config.targets == Account("https://other.table.core.windows.net", "TARGETS_KEY")
    assert config.secrets["users"] == SecretSource(SecretKind.FILE, "/run/secrets/users")
    assert config.limits.entities_per_second == 5000
    assert config.sealing.key == SecretSource(SecretKind.FILE, str(file.parent / "sealing.key"))
    assert config.sealing.previous == SecretSource(SecretKind.FILE, str(file.parent / "old.key"))


def test_paths_are_relative_to_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        MINIMAL
        + "[state]\npath = '../state #1.db'\n[migrations]\npath = '/abs'\n[secrets.a]\nfile = 'a.key'\n"
    )
    write(file, text)
    monkeypatch.chdir(file.parent)
    config = load_config(Path("rekey.toml"))
    assert config.path == file
    assert config.state == file.parent.parent / "state #1.db"
    assert config.migrations == Path("/abs")
    assert config.secrets["a"].where == str(file.parent / "a.key")


def test_durations_and_sizes_carry_their_unit(file: Path) -> None:
    text = (
        "[gates]\nverification_max_age='90s'\nretention='30d'\nmargin='15m'\n"
        "clients_timeout='3m'\nfreeze_timeout='2h'\nmapping_retention='100d'\n"
        "[limits]\nwindow_bytes='2GiB'\nconcurrency=3\nwindow_rows=7\nentities_per_second=9"
    )
    config = load_config(write(file, MINIMAL + text))
    assert config.gates == Gates(90, 30 * 86400, 900, 180, 7200, 100 * 86400)
    assert config.limits == Limits(3, 7, 2 * 1024**3, 9)


def test_rates_follow_the_service_when_that_is_said_and_plans_reckon_with_its_targets(file: Path) -> None:
    said = load_config(write(file, MINIMAL + "[limits]\nentities_per_second = 'auto'"))
    assert said.limits.follows
    assert said.limits.account_rate is None
    assert (said.rates.account_rate, said.rates.partition_entities_per_second) == (20_000, 2_000)
    https = load_config(write(file, MINIMAL))
    assert not https.limits.follows
    assert (https.rates.account_rate, https.rates.partition_entities_per_second) == (20_000, 2_000)
    local = load_config(write(file, default_config()))
    assert not local.limits.follows
    assert local.rates.account_rate is None, "http: no limit"


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ("[tabels]\n", "[tabels]: unknown section"),
        ("[limits]\nconcurency = 3", "[limits] concurency: unknown key"),
        ("[limits]\nentities_per_second = 'fast'", "[limits] entities_per_second: is neither a whole number"),
        ("[limits]\nentities_per_second = true", "[limits] entities_per_second: is neither a whole number"),
        ("[limits]\npartition_entities_per_second = 'auto'", "is not a whole number of at least 1"),
        ("[gates]\nretention = 30", "[gates] retention: is not an amount"),
        ("[gates]\nretention = '30'", "[gates] retention: is not an amount"),
        ("[gates]\nretention = '1w'", "[gates] retention: is not an amount"),
        ("[limits]\nwindow_bytes = '64MB'", "[limits] window_bytes: is not an amount"),
        ("[limits]\nconcurrency = 0", "[limits] concurrency: is not a whole number"),
        ("[limits]\nconcurrency = true", "[limits] concurrency: is not a whole number"),
        ("[state]\npath = ''", "[state] path: is not a text"),
        ("[state]\npaths = 'x'", "[state] paths: unknown key"),
        ("[secrets.users]\n", "[secrets.users]: must have exactly one"),
        ("[secrets.users]\nenv='A'\nfile='b'", "[secrets.users]: must have exactly one"),
        ("[secrets.users]\nvalue='A'", "[secrets.users] value: unknown key"),
        ("[secrets]\nusers='A'", "[secrets] users: is not a section"),
        ("[secrets.'a b']\nenv='A'", "[secrets] a b: is not a name"),
        ("[follow]\nshare = 0", "[follow] share: is not a part of the whole"),
        ("[follow]\nshare = 1.5", "[follow] share: is not a part of the whole"),
        ("[follow]\nevery = '0s'", "[follow] every: is no time"),
        ("[follow]\ncompare_every = '0s'", "[follow] compare_every: is no time"),
        ("[follow]\nwindow = 'Saturday night'", "[follow] window: is not a window"),
        ("[follow]\nwindow = '02:00-02:00'", "[follow] window: opens and closes at the same time"),
        ("[follow]\nwindow = '02:00-04:00 Nowhere'", "[follow] window: names a time zone that this machine"),
        ("[follow]\nwindow = ['Sat']", "[follow] window: is not a text"),
        ("[hooks]\ncommand = 'tell --all'", "[hooks] command: is not a program with its arguments"),
        ("[hooks]\ncommand = []", "[hooks] command: is not a program"),
        ("[hooks]\ncommand = ['tell', 1]", "[hooks] command: is not a program"),
        ("[hooks]\ntimeout = '0s'", "[hooks] timeout: is no time"),
        ("[hooks]\nstalled_after = '0s'", "[hooks] stalled_after: is no time"),
        ("[secrets.u]\nkey_vault='http://v.vault.azure.net/secrets/x'", "[secrets.u] key_vault: is not"),
        ("[secrets.u]\nkey_vault='https://v.vault.azure.net/keys/x'", "[secrets.u] key_vault: is not"),
    ],
)
def test_a_typing_error_is_named_and_never_becomes_a_default(file: Path, extra: str, names: str) -> None:
    assert names in refused(file, MINIMAL + extra).what


def test_following_and_hooks_are_read(file: Path) -> None:
    text = (
        "[follow]\nshare = 0.5\nevery = '30s'\ncompare_every = '2h'\nwindow = 'Sat 02:00-04:00'\n"
        "[hooks]\ncommand = ['hooks/tell.sh', '--chat', '']\ntimeout = '5s'\nstalled_after = '1h'"
    )
    config = load_config(write(file, MINIMAL + text))
    assert config.follow == Follow(0.5, 30, 7200, Window.of("Sat 02:00-04:00"))
    assert config.hooks == Hooks(("hooks/tell.sh", "--chat", ""), 5, 3600)


def test_both_accounts_must_be_named(file: Path) -> None:
    assert "[tables]: is missing" in refused(file, "").what
    assert "[restricted]: is missing" in refused(file, f"[tables]\n{HTTPS}").what
    assert "[tables] endpoint: is missing" in refused(file, "[tables]\n[restricted]").what


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://acme.table.core.windows.net",
        "https://acme.table.core.windows.net:443/",
        "http://127.0.0.1:10002/devstoreaccount1",
        "http://[::1]:10002/devstoreaccount1",
    ],
)
def test_https_anywhere_and_http_on_loopback_are_accepted(file: Path, endpoint: str) -> None:
    config = load_config(write(file, MINIMAL.replace("https://acme.table.core.windows.net", endpoint)))
    assert config.tables.endpoint == endpoint.rstrip("/")
    assert config.tables.name in ("acme", "devstoreaccount1")


@pytest.mark.parametrize(
    ("endpoint", "cure"),
    [
        ("https://ACCOUNT.table.core.windows.net", "write the name of your storage account there"),
        ("https://RESTRICTED.table.core.windows.net", "write the name of your storage account there"),
        ("https://<your account>.table.core.windows.net", "write the name of your storage account there"),
        ("http://localhost:10002/devstoreaccount1", "write 127.0.0.1 instead of localhost"),
        ("https://localhost:8081", "write 127.0.0.1"),
        ("http://acme.table.core.windows.net", "https://"),
        ("http://127.0.0.2:10002/a", "https://"),
        ("acme.table.core.windows.net", "https://"),
        ("ftp://acme", "https://"),
        ("https://", "https://"),
        ("https://[::1", "https://"),
        ("https://acme:notaport", "https://"),
    ],
)
def test_other_endpoints_are_refused_with_the_cure(file: Path, endpoint: str, cure: str) -> None:
    error = refused(file, MINIMAL.replace("https://acme.table.core.windows.net", endpoint))
    assert "[tables] endpoint" in error.what
    assert cure in error.hint


@pytest.mark.parametrize(
    "line",
    [
        f'endpoint = "https://acme.table.core.windows.net/?sv=2019-02-02&sig={PASTED}"',
        f'endpoint = "https://acme.table.core.windows.net#{PASTED}"',
        f'endpoint = "https://acme:{PASTED}@acme.table.core.windows.net"',
        f'endpoint = "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={PASTED}=="',
        f'endpoint = "AccountKey={PASTED}"',
        f'endpoint = "{PASTED}=="',
        f'{HTTPS}\nkey_env = "{PASTED}=="',
        f'{HTTPS}\nkey_env = "{PASTED}"',
        f'{HTTPS}\nkey_env = ["{PASTED}"]',
        f'{HTTPS}\n[secrets.users]\nenv = "{PASTED}"',
        f'{HTTPS}\n[secrets.users]\nenv = "{PASTED}=="',
        f'{HTTPS}\n[secrets.users]\nkey_vault = "https://v.vault.azure.net/secrets/a?{PASTED}"',
        f'{HTTPS}\nkey_env = "{PASTED}',
    ],
)
def test_a_secret_that_was_pasted_in_is_refused_and_not_echoed(file: Path, line: str) -> None:
    error = refused(file, MINIMAL.replace(HTTPS, line))
    shown: BaseException | None = error
    while shown is not None:
        assert PASTED not in f"{shown} {shown!r}"
        shown = shown.__cause__


@pytest.mark.parametrize(("section", "margin"), [("", "29s"), ("", "0s"), (ELSEWHERE_ON_HTTPS, "1s")])
def test_a_margin_below_the_longest_operation_is_refused(file: Path, section: str, margin: str) -> None:
    local = MINIMAL.replace(HTTPS, 'endpoint = "http://127.0.0.1:10002/devstoreaccount1"')
    local = local.replace("https://vault.table.core.windows.net", "http://127.0.0.1:10002/devstoreaccount1")
    gates = f'\n[gates]\nmargin = "{margin}"\n'
    assert load_config(write(file, local + gates)).gates.margin_s < 30, "on a local Azurite nothing is late"
    error = refused(file, (local if section else MINIMAL) + section + gates)
    assert "[gates] margin: is shorter than the 30 s" in error.what
    assert error.hint == 'write at least margin = "30s"'


def test_an_unreadable_file_is_refused_with_the_cure(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no configuration file") as missing:
        load_config(file)
    assert "rekey init" in missing.value.hint
    assert "line 1" in refused(file, "tables = = 1").what
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load_config(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_config(file.parent)


def test_one_account_for_both_is_a_warning_except_on_loopback(file: Path) -> None:
    assert load_config(write(file, default_config())).warnings() == []
    assert load_config(write(file, MINIMAL)).warnings() == []
    config = load_config(write(file, MINIMAL.replace("vault.table", "ACME.table")))
    assert "same account" in config.warnings()[0]


def test_a_secret_file_that_others_may_read_is_a_warning(file: Path) -> None:
    config = load_config(write(file, MINIMAL + "[secrets.u]\nfile='key'\n[secrets.v]\nfile='absent'"))
    key = file.parent / "key"
    key.write_text("0123456789abcdef\n", encoding="utf-8")
    key.chmod(0o640)
    [warning] = config.warnings()
    assert "`u`" in warning
    assert f"chmod 600 {key}" in warning
    key.chmod(0o600)
    assert config.warnings() == []


def test_a_secret_that_has_no_section_is_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(write(file, MINIMAL + "[secrets.users]\nenv='USERS'"))
    monkeypatch.setenv("USERS", "0123456789abcdef")
    assert resolve_secret(config, "users") == b"0123456789abcdef"
    with pytest.raises(SecretMissing, match="`other` is not configured") as error:
        resolve_secret(config, "other")
    assert "[secrets.other]" in error.value.hint


AZURITE = Account("http://127.0.0.1:10002/devstoreaccount1")
OWN = Account("http://127.0.0.1:10002/other", "KEY")
AZURE = Account("https://acme.table.core.windows.net")


def test_https_uses_an_identity_unless_a_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", f" {PASTED}\n")
    assert account_key(AZURE) is None
    assert account_key(Account(AZURE.endpoint, "KEY")) == PASTED


def test_other_http_accounts_than_azurite_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", PASTED)
    assert account_key(AZURITE) == AZURITE_KEY
    assert account_key(OWN) == PASTED
    with pytest.raises(ConfigurationError, match="has no key") as error:
        account_key(Account(OWN.endpoint))
    assert "key_env" in error.value.hint


@pytest.mark.parametrize("value", [None, "", "  ", "AccountName=a;AccountKey=b", "not base64!"])
def test_an_absent_or_invalid_key_is_not_echoed(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("KEY", value)
    with pytest.raises(ConfigurationError, match="KEY") as error:
        account_key(OWN)
    if value and value.strip():
        assert value not in str(error.value)


def test_an_evidence_key_that_others_may_read_is_called_what_it_is(file: Path) -> None:
    """It is no secret of a script: whoever looked for [secrets.evidence] would find none."""
    config = load_config(write(file, MINIMAL + '[evidence]\nkey_file = "evidence.pem"\n'))
    key = file.with_name("evidence.pem")
    key.write_text("key", "utf-8")
    key.chmod(0o640)
    assert config.warnings() == [
        f"the file of the evidence key is open to other users (mode 0640); `chmod 600 {key}` closes it"
    ]


def test_one_account_is_told_however_its_endpoint_is_written() -> None:
    """Case and a slash at the end name no other account; another host or another path does."""
    one = Account("https://acme.table.core.windows.net")
    assert one.is_same_as(Account("https://ACME.table.core.windows.net/"))
    assert not one.is_same_as(Account("https://other.table.core.windows.net"))
    assert not Account("http://127.0.0.1:10002/a").is_same_as(Account("http://127.0.0.1:10002/b"))


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://a.table.core.windows.net",
        "https://A.table.core.windows.net:443/",
        "https://a.privatelink.table.core.windows.net",
    ],
)
def test_targets_in_the_source_account_are_refused_in_any_spelling(file: Path, endpoint: str) -> None:
    """`Users` and `Users@targets` would be one table, and retiring the one would delete the other."""
    text = """[tables]
endpoint = "https://a.table.core.windows.net"
[restricted]
endpoint = "https://r.table.core.windows.net"
[targets]
endpoint = "ENDPOINT"
"""
    with pytest.raises(ConfigurationError, match=r"line 6: \[targets\] endpoint: is the account of"):
        load_config(write(file, text.replace("ENDPOINT", endpoint)))
    other = load_config(write(file, text.replace("ENDPOINT", "https://b.table.core.windows.net")))
    assert list(other.accounts) == ["tables", "targets", "restricted"]
    assert other.warnings() == []
    same = load_config(write(file, text.replace("ENDPOINT", "https://r.table.core.windows.net")))
    assert "the same account as [targets]" in "".join(same.warnings())


@pytest.mark.parametrize("section", ["tables", "restricted", "targets"])
@pytest.mark.parametrize(
    "endpoint",
    [
        "https://shop-secondary.table.core.windows.net",
        "https://SHOP-Secondary.table.core.chinacloudapi.cn:443/",
        "https://shop-secondary.privatelink.table.core.windows.net",
        "https://shop-secondary.z12.table.storage.azure.net",
        "http://127.0.0.1:10002/devstoreaccount1-secondary",
    ],
)
def test_a_secondary_region_is_refused_in_every_section(file: Path, section: str, endpoint: str) -> None:
    """It is read-only and lags: rows copied from it would miss the latest writes."""
    sections = {
        name: f"https://{name}.table.core.windows.net" for name in ("tables", "restricted", "targets")
    }
    sections[section] = endpoint
    text = "".join(f'[{name}]\nendpoint = "{at}"\n' for name, at in sections.items())
    with pytest.raises(ConfigurationError, match="read-only endpoint of the account's secondary") as error:
        load_config(write(file, text))
    assert f"[{section}] endpoint" in error.value.what
    assert "primary endpoint" in error.value.hint


@pytest.mark.parametrize(
    ("url", "account"),
    [
        ("https://shop.table.core.windows.net/Users", "https://shop.table.core.windows.net"),
        ("https://shop.table.core.windows.net:443/Users()/", "https://shop.table.core.windows.net:443"),
        (
            "https://shop.privatelink.table.core.windows.net/T",
            "https://shop.privatelink.table.core.windows.net",
        ),
        ("https://shop.z12.table.storage.azure.net/Users", "https://shop.z12.table.storage.azure.net"),
        ("http://127.0.0.1:10002/devstoreaccount1/Users", "http://127.0.0.1:10002/devstoreaccount1"),
        ("http://azurite:10002/devstoreaccount1/Users", "http://azurite:10002/devstoreaccount1"),
    ],
)
def test_a_table_url_is_refused_and_its_account_named(file: Path, url: str, account: str) -> None:
    with pytest.raises(ConfigurationError, match="is the URL of a table") as error:
        load_config(write(file, MINIMAL.replace("https://vault.table.core.windows.net/", url)))
    assert error.value.hint == f"name the endpoint of its account: {account}"


@pytest.mark.parametrize("url", ["https://gate.example/a/tables", "http://127.0.0.1:11002/an/account/path"])
def test_a_gateway_may_have_a_path(file: Path, url: str) -> None:
    config = load_config(write(file, MINIMAL.replace("https://vault.table.core.windows.net/", url)))
    assert config.restricted.endpoint == url


@pytest.mark.parametrize("host", ["azurite", "192.0.2.7", "host.docker.internal"])
def test_plain_http_is_for_azurite_only(file: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Azurite in another container: the key is known to everybody, and protects nothing."""
    endpoint = f"http://{host}:10002/devstoreaccount1"
    text = f'[tables]\nendpoint = "{endpoint}"\n[restricted]\nendpoint = "{endpoint}"\nkey_env = "OWN"\n'
    config = load_config(write(file, text))
    assert config.tables.name == AZURITE_ACCOUNT
    assert account_key(config.tables) == AZURITE_KEY
    monkeypatch.setenv("OWN", AZURITE_KEY)
    assert account_key(config.restricted) == AZURITE_KEY
    monkeypatch.setenv("OWN", "b3duIGtleQ==")
    with pytest.raises(ConfigurationError, match="a key of your own") as error:
        account_key(config.restricted)
    assert "b3duIGtleQ" not in str(error.value)
    with pytest.raises(ConfigurationError, match="and for Azurite's account devstoreaccount1, only"):
        load_config(write(file, text.replace("devstoreaccount1", "shop")))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("[limits]\nconcurrency = 4\nscans = 0\n", 3, "[limits] scans: is not a whole number"),
        ("# [limits]\n# scans = 0\n[ limits ] # ours\n  scans=0\n", 4, "[limits] scans: is not a whole"),
        ('limits."scans" = 0\n', 1, "[limits] scans: is not a whole number"),
        ("limits = { concurrency = 4, scans = 0 }\n", 1, "[limits] scans: is not a whole number"),
        ('[hooks]\ncommand = [\n  "scans = 0",\n  1,\n]\n', 2, "[hooks] command: is not a program"),
        ('[state]\npath = """\n[limits]\nscans = 0\n"""\n[limits]\nscans = 0\n', 7, "[limits] scans: is not"),
        ('[limits]\nscans = 2\n[secrets."a b"]\nenv = 4\n', 3, "[secrets] a b: is not a name"),
        ("[follow]\n[limits]\nscans = 0\n", 3, "[limits] scans: is not a whole number"),
    ],
)
def test_an_error_names_the_line_of_its_key(file: Path, text: str, line: int, problem: str) -> None:
    above = MINIMAL.count("\n")
    whole = text + MINIMAL if text.startswith("limits") else MINIMAL + text
    error = refused(file, whole)
    assert f", line {line if whole.startswith(text) else above + line}: {problem}" in error.what


@pytest.mark.parametrize("section", ["tables", "restricted", "targets"])
@pytest.mark.parametrize("secret", ["", "c2VjcmV0"])
def test_a_cosmos_db_account_is_refused_without_its_secret(file: Path, section: str, secret: str) -> None:
    """Before anything else that the section says: `consistency` was for such accounts alone."""
    sections = {
        name: f"https://{name}.table.core.windows.net" for name in ("tables", "restricted", "targets")
    }
    at = "https://shop.table.cosmos.azure.com:443/"
    sections[section] = f"AccountName=shop;AccountKey={secret};TableEndpoint={at};" if secret else at
    text = "".join(f'[{name}]\nendpoint = "{at}"\n' for name, at in sections.items())
    text = text.replace(f'"{sections[section]}"\n', f'"{sections[section]}"\nconsistency = "strong"\n')
    error = refused(file, text)
    assert f"[{section}] endpoint: is of Azure Cosmos DB, which rekey does not support" in error.what
    assert "name an account of Azure Table Storage" in error.hint
    assert ("renew it" in error.hint) is bool(secret)
    assert "c2VjcmV0" not in str(error)


@pytest.mark.parametrize(
    "text", ["[gates]\nmargin='60s'\n[gates]\n", "[gates]\nmargin='60s'\nmargin='90s'\n"]
)
def test_what_stands_twice_is_said_to(file: Path, text: str) -> None:
    error = refused(file, MINIMAL + text)
    assert error.what.endswith(": the same section or key stands there twice")
    assert error.hint == "keep one of the two"


def test_https_on_this_machine_is_a_warning(file: Path) -> None:
    local = MINIMAL.replace("https://acme.table.core.windows.net", "https://127.0.0.1:10002/devstoreaccount1")
    [warning] = load_config(write(file, local)).warnings()
    assert warning.startswith("[tables] endpoint is https on this machine")
