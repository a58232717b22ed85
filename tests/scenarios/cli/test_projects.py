"""`init` and `new`: a project from nothing, and nothing overwritten."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from rekey import keys
from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.declaration.scripts import load_script, load_scripts
from rekey.project.config import Config, load_config, resolve_secret
from rekey.project.secrets_source import SecretKind, SecretSource, read_wrapping
from rekey.tables.base import Accounts
from tests.asserts.command_line import CommandsOn
from tests.worlds.example_rows import users
from tests.worlds.plans import fill
from tests.worlds.projects import Project


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REKEY_CONFIG", raising=False)
    return tmp_path


def test_init_makes_a_loadable_project(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == 0
    assert "Next:" in capsys.readouterr().out
    config = load_config(folder / "rekey.toml")
    assert config.migrations == folder / "migrations"
    assert config.migrations.is_dir()
    assert (folder / "sealing.key").stat().st_mode & 0o777 == 0o600
    assert config.sealing.key == SecretSource(SecretKind.FILE, str(folder / "sealing.key"))
    assert len(read_wrapping(config.sealing.key)) == 64


def test_init_overwrites_nothing(folder: Path) -> None:
    (folder / "rekey.toml").write_text("mine", "utf-8")
    (folder / ".gitignore").write_text("*.pyc", "utf-8")
    (folder / "migrations").mkdir()
    (folder / "migrations" / "0001_mine.py").write_text("mine", "utf-8")
    assert run(["init"]) == 0
    assert run(["init"]) == 0
    assert (folder / "rekey.toml").read_text("utf-8") == "mine"
    assert (folder / ".gitignore").read_text("utf-8") == "*.pyc\n.rekey/\n*.key\n*.secret\nevidence.pem\n"
    assert not (folder / "sealing.key").exists(), "the configuration names none"
    assert [path.name for path in (folder / "migrations").iterdir()] == ["0001_mine.py"]


def test_git_leaves_out_what_a_project_keeps_to_itself(folder: Path) -> None:
    """The files that commands write, and those that documents tell users to write."""
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    assert run(["init"]) == 0 and run(["evidence", "keygen"]) == 0
    for name in ("users.secret", "users2.secret", "old.key", ".rekey/state.sqlite"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x", "utf-8")
    said = subprocess.run(
        ["git", "status", "--porcelain", "-uall"],
        cwd=folder, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert {line[3:] for line in said.splitlines()} == {
        ".gitignore",
        "evidence.pub.pem",
        "migrations/.gitkeep",
        "rekey.toml",
    }


def test_init_makes_the_folder_it_is_given(folder: Path) -> None:
    assert run(["init", "deep/down"]) == 0
    assert (folder / "deep" / "down" / "rekey.toml").is_file()


@pytest.mark.parametrize(
    ("ports", "named"), [([], 10002), ([10002], 10002), ([10742], 10742), ([10002, 10742], 10002)]
)
def test_init_names_the_azurite_that_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ports: list[int], named: int
) -> None:
    monkeypatch.setattr("rekey.cli.init.running_in_background", lambda: ports)
    assert run(["init"]) == 0
    config = load_config(folder / "rekey.toml")
    assert (
        config.tables.endpoint == f"http://127.0.0.1:{named}/devstoreaccount1" == config.restricted.endpoint
    )


def test_init_with_the_example_makes_a_project_that_can_be_planned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows go to the Azurite that runs, and its port is in the configuration."""
    accounts = Project(folder / "elsewhere")
    endpoints = []

    def connect(config: Config) -> Accounts:
        endpoints.append(config.tables.endpoint)
        return accounts.connect(config)

    monkeypatch.setattr("rekey.cli.init.running_in_background", lambda: [10742])
    assert run(["init", "--example", "trial"], Surroundings(connect)) == 0
    config = load_config(folder / "trial" / "rekey.toml")
    assert endpoints == ["http://127.0.0.1:10742/devstoreaccount1"] == [config.tables.endpoint]
    assert len(resolve_secret(config, "users")) == 64
    assert (folder / "trial" / "users.secret").stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    monkeypatch.chdir(folder / "trial")
    assert run(["plan"], Surroundings(connect)) == 0
    assert "Users: 1,200 rows" in capsys.readouterr().out


@pytest.mark.parametrize("ports", [[], [10742, 10743]])
def test_init_refuses_vague_azurite(folder: Path, monkeypatch: pytest.MonkeyPatch, ports: list[int]) -> None:
    monkeypatch.setattr("rekey.cli.init.running_in_background", lambda: ports)
    assert run(["init", "--example", "trial"]) == 2
    assert list(folder.iterdir()) == []


def test_init_with_the_example_changes_neither_a_project_nor_a_table_that_exists(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accounts = Project(folder / "elsewhere")
    asyncio.run(fill(accounts.tables, "Users", users(3)))
    monkeypatch.setattr("rekey.cli.init.running_in_background", lambda: [10002])
    assert run(["init", "--example", "trial"], Surroundings(accounts.connect)) == 2
    assert "has a table Users already" in capsys.readouterr().err
    assert not (folder / "trial").exists()
    assert len(accounts.rows("Users")) == 3
    assert run(["init", "--example", "elsewhere"], Surroundings(accounts.connect)) == 2
    assert "there is a project already" in capsys.readouterr().err
    assert not list((folder / "elsewhere" / "migrations").iterdir())


def test_init_inside_a_project_makes_another_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["init"]) == 0
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    assert run(["init"]) == 0
    assert (folder / "below" / "rekey.toml").exists()


def test_init_where_nothing_can_be_written_exits_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("", "utf-8")
    assert run(["init", "file/below"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_new_numbers_scripts_and_writes_valid_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    capsys.readouterr()
    assert run(["new", "users_opaque-ids", "--source", "Users", "--target", "UsersById"]) == 0
    path = Path(capsys.readouterr().out.splitlines()[0])
    assert path == folder / "migrations" / "0001_users_opaque-ids.py"
    script = load_script(path)
    assert (script.migration.source, script.migration.tables) == ("Users", ("UsersById",))
    assert run(["new", "a"]) == 0
    assert run(["new", "posts", "--depends", "0001", "--depends", "0002_a"]) == 0
    scripts = {one.script_id: one for one in load_scripts(folder / "migrations")}
    assert list(scripts) == ["0001_users_opaque-ids", "0002_a", "0003_posts"]
    assert scripts["0003_posts"].depends == {"0001_users_opaque-ids", "0002_a"}
    assert scripts["0002_a"].migration.tables == ("ATableV2",)


def test_every_key_that_the_template_suggests_is_valid(folder: Path) -> None:
    run(["init"])
    run(["new", "users"])
    text = (folder / "migrations" / "0001_users.py").read_text("utf-8")
    suggested = re.findall(r"#   (keys\..*\))  +\w", text)
    assert len(suggested) == 5
    for expression in suggested:
        assert eval(expression, {"keys": keys}) is not None  # noqa: S307 - our own template


@pytest.mark.parametrize("name", ["", "1st", "../up", "a b", "é", "x" * 101, "a.py"])
def test_new_refuses_a_bad_name(folder: Path, name: str) -> None:
    run(["init"])
    assert run(["new", name]) == 2
    assert not list((folder / "migrations").glob("*.py"))


@pytest.mark.parametrize(
    "words",
    [("--source", "no table"), ("--target", "1x"), ("--source", "Users", "--target", "users")],
)
def test_new_refuses_bad_tables(folder: Path, words: tuple[str, ...]) -> None:
    run(["init"])
    assert run(["new", "users", *words]) == 2
    assert not list((folder / "migrations").glob("*.py"))


def test_new_deletes_a_script_that_contradicts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    run(["new", "users"])
    assert run(["new", "people", "--source", "People", "--target", "UsersV2"]) == 2
    assert "fills the table UsersV2 too" in capsys.readouterr().err
    assert run(["new", "people", "--depends", "0007"]) == 2
    assert [path.name for path in (folder / "migrations").glob("*.py")] == ["0001_users.py"]


def test_new_without_a_project_says_how_to_begin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "users"]) == 2
    assert "`rekey init`" in capsys.readouterr().err


# --- an unedited template -----------------------------------------------------------------------------------


def test_plan_and_apply_refuse_an_unedited_template(tmp_path: Path, commands_on: CommandsOn) -> None:
    """It would copy the table to another name. An index, or another property, is something to do."""
    rekey = commands_on(Project(tmp_path))
    asyncio.run(fill(rekey.project.tables, "Users", users(50)))
    path = Path(rekey("new", "users", "--source", "Users", "--target", "UsersV2").out.splitlines()[0])
    said = rekey("plan", code=1).out
    assert "nothing-changes" in said and f"say in {path.name} what at least one key is made of" in said
    rekey("apply", code=1)
    assert not asyncio.run(rekey.project.tables.table_exists("UsersV2")), "nothing was begun"
    template = path.read_text("utf-8")
    for before, after in (
        ('partition_key=keys.prop("PartitionKey")', 'partition_key=keys.literal("all")'),
        ("        properties=[", '        properties=[\n            props.rename("Nm", "Name"),'),
    ):
        assert before in template
        path.write_text(template.replace(before, after), "utf-8")
        assert "nothing-changes" not in rekey("plan", code=1).out, "addresses in keys are another error"
