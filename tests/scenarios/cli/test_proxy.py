"""`rekey proxy` before it listens: which migrations it follows, which aliases it starts with, who may do what
through it, and the certificate for trials."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rekey.declaration.migration import Declared
from rekey.project.config import AZURITE_KEY
from tests.asserts.command_line import CommandsOn
from tests.fakes.issuer import APPLICATION, GROUP, TENANT
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.scripts import under_writes

SECOND = USERS_SCRIPT.replace('"Users"', '"Posts"').replace('"UsersV2"', '"PostsV2"')


@pytest.mark.parametrize(
    ("words", "followed", "not_followed"),
    [
        (("0001",), ["0001_users"], ["0002_posts"]),
        ((), ["0001_users", "0002_posts"], []),
    ],
)
def test_other_migrations_aliases_do_not_block_the_proxy(
    words: Sequence[str],
    followed: list[str],
    not_followed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commands_on: CommandsOn,
) -> None:
    project = Project(tmp_path)
    told: dict[str, list[str]] = {}

    def proxying(_config: Any, declared: Sequence[Declared], *_: Any, **options: Any) -> None:
        told["followed"] = [one.script_id for one in declared]
        told["not_followed"] = [one.script_id for one in options["not_followed"]]

    monkeypatch.setattr("rekey.cli.proxy.proxying", proxying)
    monkeypatch.setattr("rekey.cli.proxy.run", lambda served: served.close())
    monkeypatch.setenv("APP_KEY", AZURITE_KEY)
    project.script(USERS_SCRIPT, "0001_users.py")
    project.script(SECOND, "0002_posts.py")
    config = project.folder / "rekey.toml"
    aliases = '[proxy.access.keys.app]\nenv = "APP_KEY"\n[proxy.views]\nPosts = "PostsV2"\n'
    config.write_text(config.read_text("utf-8") + aliases, "utf-8")
    commands_on(project)("proxy", *words)
    assert told == {"followed": followed, "not_followed": not_followed}


ENTRA = f"""
[proxy.access.entra]
tenant = "{TENANT}"
allow = [
    {{ app_id = "{APPLICATION}", view = "new", rights = "write", name = "orders-new" }},
    {{ group = "{GROUP}", view = "both", rights = "read" }},
]
"""
VIEWS = """
[proxy.access.keys.orders]
env = "APP_KEY"
[proxy.views]
Users = "UsersV2"
[proxy.views.orders]
"""


def configured(project: Project, text: str) -> None:
    project.script(USERS_SCRIPT, "0001_users.py")
    config = project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8") + text, "utf-8")


def test_who_may_do_what_is_told_in_one_place(tmp_path: Path, commands_on: CommandsOn) -> None:
    """Also before any key is there: nothing is read but the configuration."""
    project = Project(tmp_path)
    configured(project, ENTRA + VIEWS)
    commands = commands_on(project)
    writes = "read and write rows; list, create and delete tables"
    signs = "what the signature says"
    renamed = {"Users": "UsersV2"}
    assert commands("proxy", "--explain", "--json").json == {
        "exit_code": 0,
        "tenant": TENANT,
        "audience": "https://storage.azure.com",
        "callers": [
            {"who": "key orders", "views": "both", "rights": "everything", "aliases": {}},
            {"who": "signatures made with the key orders", "views": "both", "rights": signs, "aliases": {}},
            {
                "who": f"application {APPLICATION} (orders-new)",
                "views": "new",
                "rights": writes,
                "aliases": renamed,
            },
            {
                "who": f"group {GROUP}",
                "views": "both",
                "rights": "read rows, list tables",
                "aliases": renamed,
            },
        ],
    }
    text = commands("proxy", "--explain").out
    for shown in (APPLICATION[:8], GROUP[:8], "orders-new", "read rows", TENANT, "Users = UsersV2"):
        assert shown in text


@pytest.mark.parametrize(
    ("text", "who", "rights"),
    [
        ("", [], []),
        (
            "[proxy.access]\nbearer_tokens = true\n",
            ["any token of Entra ID"],
            ["what the account lets the token do, but no write to a table of a migration"],
        ),
    ],
)
def test_whoever_is_not_configured_is_not_told(
    text: str, who: list[str], rights: list[str], tmp_path: Path, commands_on: CommandsOn
) -> None:
    project = Project(tmp_path)
    configured(project, text)
    commands = commands_on(project)
    callers = commands("proxy", "--explain", "--json").json["callers"]
    assert ([caller["who"] for caller in callers], [caller["rights"] for caller in callers]) == (who, rights)
    assert ("nobody may use the proxy" in commands("proxy", "--explain").out) is (not who)


def test_a_key_range_under_an_alias_is_told(tmp_path: Path, commands_on: CommandsOn) -> None:
    project = Project(tmp_path)
    configured(project, VIEWS.replace("[proxy.views.orders]", ""))
    callers = commands_on(project)("proxy", "--explain", "--json").json["callers"]
    assert callers[1]["rights"] == "what the signature says; with a key range not under an alias"


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a proxy would have listened with."""
    contexts: list[Any] = []

    def proxying(_config: Any, _declared: Any, _access: Any, listeners: Any, **_: Any) -> None:
        contexts.append(listeners.tls)

    monkeypatch.setattr("rekey.cli.proxy.proxying", proxying)
    monkeypatch.setattr("rekey.cli.proxy.run", lambda served: served.close())
    return contexts


def test_a_trial_has_a_certificate_and_tells_how_each_sdk_trusts_it(
    listening: list[Any], tmp_path: Path, commands_on: CommandsOn
) -> None:
    project = Project(tmp_path)
    configured(project, ENTRA)
    told = commands_on(project)("proxy", "--self-signed").err
    ca = project.folder / "proxy-trial" / "ca.pem"
    assert f"for trials: applications must trust the CA in {ca}" in told
    for sdk in ("Python", "Azure CLI", ".NET", "Java", "Node.js", "Go"):
        [line] = [line for line in told.splitlines() if line.strip().startswith(sdk)]
        assert str(ca) in line
    assert ca.read_text("utf-8").startswith("-----BEGIN CERTIFICATE-----")
    [context] = listening
    assert context is not None


def test_tokens_over_http_are_refused_before_it_listens(
    listening: list[Any], tmp_path: Path, commands_on: CommandsOn
) -> None:
    project = Project(tmp_path)
    configured(project, ENTRA)
    told = commands_on(project)("proxy", code=2).err
    assert "tokens are taken over https alone" in told
    assert "--self-signed" in told
    assert listening == []


@pytest.mark.parametrize(
    ("text", "words", "problem"),
    [
        ("", ("--listen", "0.0.0.0:0"), "0.0.0.0 can be reached by others"),
        ("[proxy.access]\ncertificate = 'c.pem'\nkey = 'k.pem'\n", (), "rekey.toml names a certificate"),
    ],
)
def test_a_trial_is_on_this_machine_and_has_no_other_certificate(
    text: str,
    words: Sequence[str],
    problem: str,
    listening: list[Any],
    tmp_path: Path,
    commands_on: CommandsOn,
) -> None:
    project = Project(tmp_path)
    configured(project, text + ENTRA)
    told = commands_on(project)("proxy", "--self-signed", *words, code=2).err
    assert problem in told
    assert listening == []
    assert not (project.folder / "proxy-trial").exists()


@pytest.mark.parametrize(
    ("listen", "admin", "problem"),
    [
        ("0.0.0.0:0", "", "certificate is missing"),
        ("127.0.0.1:0", "127.0.0.1:1", "port that is given"),
        ("127.0.0.1:10102", "127.0.0.1:10101", "port that is given"),
        ("127.0.0.1:TAKEN", "", "cannot be listened on"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(
    listen: str, admin: str, problem: str, tmp_path: Path, commands_on: CommandsOn
) -> None:
    """One that others reach, without TLS; ports of two processes; one that is taken."""
    project = Project(tmp_path)
    configured(project, "[proxy.access]\nbearer_tokens = true\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = listen.replace("TAKEN", str(taken.getsockname()[1]))
        words = ("--listen", listen, *(("--processes", "2", "--admin", admin) if admin else ()))
        assert problem in commands_on(project)("proxy", *words, code=2).err


def test_a_missing_secret_is_told(tmp_path: Path, commands_on: CommandsOn) -> None:
    project = Project(tmp_path)
    configured(project, "[proxy.access]\nbearer_tokens = true\n")
    project.script(under_writes(USERS_SCRIPT), "0001_users.py")
    (project.folder / "users.secret").unlink()
    assert "secret `users`" in commands_on(project)("proxy", "--listen", "127.0.0.1:0", code=2).err
