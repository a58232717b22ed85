"""What the commands refuse: the exit code, the words, no traceback, nothing written.

Soak: every wrong script with every command.
Reason, and what `make test` covers: all load scripts alike; every wrong script once, every command twice.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
from pathlib import Path

import dask.config
import pytest

from rekey.mapping.rows import CONTROL_TABLE
from rekey.state.filelock import FileLock
from tests.asserts.command_line import Commands, Said
from tests.worlds.projects import CONFIG, POSTS_SCRIPT, USERS_SCRIPT, Project, project_of
from tests.worlds.small import post, user

SCRIPT = "0001_users"
CHAINED = """\
from rekey import Migration, Target, keys, props
migration = Migration(
    source="UsersV2",
    target=Target("UsersV3", partition_key=keys.literal("all"), row_key=keys.prop("RowKey"),
                  properties=[props.copy("PartitionKey", to="Region")]),
    capture="delta",
)
"""

OPAQUE = 'keys.opaque(keys.prop("RowKey"), domain="user", secret="users")'
WAIVED = USERS_SCRIPT.replace(
    'capture="delta",', 'capture="delta", waive={"personal-data": "made-up addresses"},'
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_of(tmp_path, USERS_SCRIPT, [user(f"user{number}@example.com") for number in range(5)])


def assert_clear(said: Said) -> None:
    """A way on is given, and nothing that only a programmer understands."""
    assert "\nNext: " in said.err
    assert "Traceback" not in said.all
    assert "@example.com" not in said.all


def untouched(project: Project) -> bool:
    tables = asyncio.run(project.tables.table_exists("UsersV2"))
    return not tables and not asyncio.run(project.restricted.table_exists(CONTROL_TABLE))


EDITS = [
    pytest.param("migration = Migration(source=", "syntax error in line", id="syntax error"),
    pytest.param("import nowhere_to_be_found", "import of nowhere_to_be_found", id="import error"),
    pytest.param("x = 1", "there is no `migration`", id="no migration"),
    pytest.param("raise ValueError('someone@example.com')", "it raised ValueError", id="raises"),
    pytest.param(
        f'__depends__ = {{"0009_none"}}\n{USERS_SCRIPT}',
        "there is no script 0009_none",
        id="dependency missing",
    ),
    pytest.param(
        USERS_SCRIPT.replace('"UsersV2"', '"Users"'), "own target|same|source", id="target equal to source"
    ),
    pytest.param(USERS_SCRIPT.replace('"UsersV2"', '"Users V2"'), "not a table name", id="table name"),
    pytest.param(USERS_SCRIPT.replace('capture="delta",', ""), "capture", id="capture missing"),
]
WRONG = [
    pytest.param(
        command,
        *edit.values,
        id=f"{command}: {edit.id}",
        marks=[pytest.mark.soak] if (at - number) % 4 else [],
    )
    for (number, command), (at, edit) in itertools.product(
        enumerate(["plan", "apply", "status", "verify"]), enumerate(EDITS)
    )
]


@pytest.mark.parametrize(("command", "text", "what"), WRONG)
def test_a_wrong_script_exits_2_and_names_script_and_cure(
    rekey: Commands, project: Project, command: str, text: str, what: str
) -> None:
    project.script(text)
    said = rekey(command, code=2)
    assert SCRIPT in said.err
    assert re.search(what, said.err)
    assert_clear(said)
    assert untouched(project)


def test_scripts_that_depend_on_each_other_exit_2(rekey: Commands, project: Project) -> None:
    project.script(f'__depends__ = {{"0002_posts"}}\n{USERS_SCRIPT}')
    project.script(f'__depends__ = {{"0001_users"}}\n{POSTS_SCRIPT}', "0002_posts.py")
    said = rekey("plan", code=2)
    assert "0001_users → 0002_posts → 0001_users" in said.err
    assert_clear(said)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[tables", "not valid TOML"),
        (CONFIG + "\n[surprise]\n", "surprise"),
        (CONFIG.replace("127.0.0.1", "localhost"), "127.0.0.1 instead of localhost"),
        (
            CONFIG.replace('devstoreaccount1"', 'devstoreaccount1;AccountKey=c2VjcmV0"', 1),
            "connection string",
        ),
    ],
)
def test_bad_configuration_exits_2(rekey: Commands, project: Project, text: str, what: str) -> None:
    (project.folder / "rekey.toml").write_text(text, "utf-8")
    said = rekey("plan", code=2)
    assert what in said.err
    assert "c2VjcmV0" not in said.all
    assert_clear(said)


def test_an_unknown_table_exits_2_and_is_a_finding_of_plan(rekey: Commands, project: Project) -> None:
    project.script(USERS_SCRIPT.replace('source="Users"', 'source="Nobody"'))
    assert "source-missing" in rekey("plan", code=1).out
    said = rekey("apply", code=2)
    assert "Nobody does not exist" in said.err
    assert_clear(said)
    assert untouched(project)


def test_a_missing_secret_exits_2_and_is_a_finding_of_plan(rekey: Commands, project: Project) -> None:
    (project.folder / "users.secret").unlink()
    assert "secret-missing" in rekey("plan", code=1).out
    said = rekey("apply", code=2)
    assert "secret `users`" in said.err
    assert_clear(said)
    assert untouched(project)


def test_another_secret_after_the_first_phase_exits_3(rekey: Commands, project: Project) -> None:
    rekey("apply")
    (project.folder / "users.secret").write_text("another secret of enough bytes", "utf-8")
    for words in (("apply",), ("verify",), ("rollback", "--drop-targets")):
        said = rekey(*words, code=3)
        assert "is not the one" in said.err
        assert_clear(said)
    assert "secret-moved" in rekey("plan", code=1).out


def test_an_edited_script_exits_3_and_status_names_it(rekey: Commands, project: Project) -> None:
    rekey("apply")
    project.script(USERS_SCRIPT.replace('"ContactEmail"', '"Mail"'))
    for words in (("apply",), ("verify",), ("rollback", "--drop-targets")):
        said = rekey(*words, code=3)
        assert "was edited" in said.err
        assert_clear(said)
    assert "declaration-moved" in rekey("plan", code=1).out
    assert "the script was edited" in rekey("status").out


def test_a_target_with_rows_of_somebody_else_exits_3(rekey: Commands, project: Project) -> None:
    asyncio.run(project.fill("UsersV2", [user("somebody@example.com")]))
    said = rekey("apply", code=3)
    assert "rows that this migration did not write" in said.err
    assert_clear(said)
    assert not asyncio.run(project.restricted.table_exists(CONTROL_TABLE))


def test_rows_that_collide_or_cannot_be_mapped_exit_1(rekey: Commands, project: Project) -> None:
    project.script(USERS_SCRIPT.replace(OPAQUE, 'keys.prop("Nm")'))
    asyncio.run(project.tables.table("Users").insert(user("user1@example.org")))
    assert "collision" in rekey("plan", "--exact", code=1).out
    document = rekey("plan", "--exact", "--json", code=1).json
    [collision] = document["migrations"][0]["collisions"]["first"]
    assert (collision["rows"], len(set(collision["row_ids"]))) == (2, 2)
    assert document["ids_hold"] is False, "before the first phase safe ids are valid for one plan only"
    shown = rekey("plan", "--exact", "--json", "--show-keys", code=1).json
    old_keys = shown["migrations"][0]["collisions"]["first"][0]["old_keys"]
    assert {key[1] for key in old_keys} == {"user1@example.com", "user1@example.org"}
    said = rekey("apply", code=1)
    assert "2 source rows share 1 target key" in said.err
    assert_clear(said)
    assert untouched(project)


UNMAPPED = {
    "missing property": ('keys.prop("Team") + keys.prop("RowKey")', {}, 'keys.prop("Team", default="…")'),
    "empty key": ('keys.strip(keys.prop("Team"))', {"Team": "   "}, "empty"),
    "refused character": ('keys.prop("Team") + keys.prop("RowKey")', {"Team": "a/b"}, "character"),
    "key over length": ('keys.prop("RowKey") + keys.prop("Team")', {"Team": "n" * 1_100}, "1024"),
    "row past 1 MiB": ('keys.prop("RowKey")', {f"Big{n}": "x" * 32_000 for n in range(12)}, "1048576 bytes"),
    "row past 252 properties": ('keys.prop("RowKey")', {f"P{n}": n for n in range(248)}, "252"),
}
"""By what is refused of a row: the RowKey's expression, the row's properties, words of the message."""


@pytest.mark.parametrize("refused", UNMAPPED)
def test_a_row_that_cannot_be_mapped_exits_1_before_anything_is_written(
    rekey: Commands, project: Project, refused: str
) -> None:
    row_key, properties, words = UNMAPPED[refused]
    copied = [f"Big{n}" if "Big0" in properties else "RowKey" for n in range(6)]
    more = ", ".join(f'props.copy("{name}", to="Copy{n}")' for n, name in enumerate(copied))
    project.script(WAIVED.replace(OPAQUE, row_key).replace("properties=[", f"properties=[{more}, "))
    table = project.tables.table("Users")
    for number in range(5):
        asyncio.run(table.replace({**user(f"user{number}@example.com"), "Team": "fine"}, etag="*"))
    asyncio.run(table.insert({**user("odd@example.com"), **properties}))
    rekey("plan", "--exact", code=1)
    said = rekey("apply", code=1)
    assert words in said.err
    assert "Nothing was written." in said.err
    assert_clear(said)
    assert untouched(project)


def test_a_default_cures_a_missing_property(rekey: Commands, project: Project) -> None:
    project.script(WAIVED.replace(OPAQUE, 'keys.prop("Team", default="nobody") + keys.prop("RowKey")'))
    rekey("plan", "--exact")


def test_a_dask_cluster_that_is_not_there_or_not_encrypted_exits_2(rekey: Commands, project: Project) -> None:
    words = ("apply", "--executor", "rekey.executors:dask_cluster")
    for address, what in ((None, "no dask cluster is configured"), ("tcp://there:8786", "neither encrypted")):
        with dask.config.set({"scheduler-address": address}):
            said = rekey(*words, code=2)
        assert what in said.err
        assert_clear(said)
    assert not project.rows("UsersV2")


def test_a_state_file_of_an_earlier_run_exits_2_and_its_own_goes_on(
    rekey: Commands, project: Project
) -> None:
    """The script was taken back and begun again: the old file's checkpoints are of rows that are gone."""
    rekey("apply")
    own, earlier = project.config.state, project.folder / "earlier.sqlite"
    shutil.copy(own, earlier)
    rekey("rollback", "--to", "source", "--drop-targets")
    project.clock.advance(60)  # a deleted table's name is taken for a while
    rekey("apply")
    text = (project.folder / "rekey.toml").read_text("utf-8")
    (project.folder / "rekey.toml").write_text(text.replace("state.sqlite", "earlier.sqlite"), "utf-8")
    said = rekey("apply", code=2)
    assert "the state file is of another migration" in said.err and "another run" in said.err
    assert_clear(said)
    (project.folder / "rekey.toml").write_text(text, "utf-8")
    rekey("apply")


def test_a_state_file_of_another_account_exits_2(rekey: Commands, project: Project) -> None:
    rekey("apply")
    path = project.folder / "rekey.toml"
    text = path.read_text("utf-8").replace("10002/devstoreaccount1", "10002/another", 1)
    path.write_text(text.replace('"\n[restricted]', '"\nkey_env = "KEY"\n[restricted]', 1), "utf-8")
    said = rekey("apply", code=2)
    assert "the state file is of another migration" in said.err and "another account" in said.err
    assert_clear(said)


def test_a_second_runner_exits_3_while_status_and_plan_go_on(rekey: Commands, project: Project) -> None:
    rekey("apply", "--to", "backfill")
    with FileLock(project.config.state):
        for words in (
            ("apply",),
            ("verify",),
            ("rollback", "--drop-targets"),
            ("retire", "--table", "Users", "--no-backup", "a test"),
        ):
            said = rekey(*words, code=3)
            assert f"pid {os.getpid()}" in said.err
            assert_clear(said)
        rekey("status")
        rekey("plan")
        rekey("lookup", "--old", "eu", "user1@example.com", "--reason", "ticket 4711")


@pytest.mark.parametrize("content", [b"", b"no database at all"])
def test_a_state_file_that_is_none_exits_2(rekey: Commands, project: Project, content: bytes) -> None:
    project.config.state.write_bytes(content or os.urandom(4096))
    for words in (("apply",), ("status",), ("plan",)):
        said = rekey(*words, code=2)
        assert "is damaged or is no state file" in said.err
        assert_clear(said)
    assert untouched(project)


def test_what_is_not_said_and_not_clear_is_a_usage_error(rekey: Commands, project: Project) -> None:
    project.script(POSTS_SCRIPT, "0002_posts.py")
    asyncio.run(project.fill("Posts", [post("first")]))
    assert "say which script: 0001_users, 0002_posts" in rekey("verify", code=2).err
    assert "fits more than one" in rekey("verify", "000", code=2).err
    assert "there is no script '7'" in rekey("apply", "7", code=2).err
    assert "is no script of" in rekey("plan", "elsewhere/0001_users.py", code=2).err
    assert "pending are 0001_users, 0002_posts" in rekey("apply", "--to", "cutover", code=2).err
    rekey("apply", "0002")
    assert "0002_posts\n" in rekey("verify").out  # the only one that can be meant
    rekey("plan", str(project.folder / "migrations" / "0001_users.py"))


def test_apply_retire_is_no_way_to_delete_a_table(rekey: Commands) -> None:
    rekey("apply", "--to", "retire", code=2)


def test_without_script_a_chained_migration_waits_and_is_told(rekey: Commands, project: Project) -> None:
    project.script(CHAINED, "0002_more.py")
    said = rekey("apply")
    assert "waits for `complete` of 0001_users" in said.out
    named = rekey("apply", "0002", code=3)
    assert "0002_more waits for `complete` of 0001_users" in named.err
    assert "rekey apply 0001_users --to complete --yes 0001_users" in named.err
    assert "rekey apply 0001_users --to complete --yes 0001_users" in rekey("status", "0002").out
    rekey("apply", "0001", "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
    rekey("apply")
    [row, *_] = project.rows("UsersV3")
    assert row["PartitionKey"] == "all"


def test_complete_that_is_done_already_can_be_repeated_without_naming_the_script(rekey: Commands) -> None:
    words = "apply", "--to", "complete", "--writers-stopped", "--yes", SCRIPT
    rekey(*words)
    assert rekey(*words).out == rekey("apply").out
    said = rekey("apply", "--yes", SCRIPT, code=2)
    assert f"--yes {SCRIPT}: it goes with --to complete" in said.err


def test_a_project_without_scripts_says_how_to_make_one(rekey: Commands, project: Project) -> None:
    (project.folder / "migrations" / "0001_users.py").unlink()
    said = rekey("plan", code=2)
    assert "rekey new NAME" in said.err


def test_an_outage_leaves_status_the_state_file(rekey: Commands, project: Project) -> None:
    from rekey.errors import EndpointDown
    from tests.fakes.faults import Call

    async def down(_call: Call) -> None:
        raise EndpointDown("no connection", code="EndpointDown")

    rekey("apply")
    project.restricted.gate = down
    said = rekey("status", code=4).out
    assert "could not be asked: no connection" in said
    assert "stage         reconcile done" in said
    assert rekey("apply", "--json", code=4).json["error"] == "EndpointDown"
