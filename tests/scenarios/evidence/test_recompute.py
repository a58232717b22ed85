"""Whoever has a bundle, the public key and read access to the tables can compute its digests again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from rekey.evidence.keys import PublicKey
from rekey.model import EntityKey, content_of
from rekey.verify.bucket_digests import FEW
from tests.asserts.command_line import Commands, CommandsOn
from tests.asserts.every import every
from tests.worlds.evidence import exported, handed_over, key, rekey, rows, with_key
from tests.worlds.projects import USERS_SCRIPT, Project

__all__ = ["key", "rekey"]
ROWS = FEW


def wait(work: Coroutine[Any, Any, object]) -> None:
    asyncio.run(work)  # type: ignore[arg-type]


def equal(said: Any) -> dict[str, bool]:
    return {f"{one['what']} {one['table']}": one["equal"] for one in said["digests"]}


def test_untouched_tables_give_the_digests_of_the_bundle(rekey: Commands, key: PublicKey) -> None:
    folder = str(exported(rekey))
    said = rekey("evidence", "recompute", folder, "--json").json
    assert equal(said) == {"source Users": True, "target UsersV2": True}
    assert every(one["recorded_digest"] == one["found_digest"] != "" for one in said["digests"])
    assert "the same" in rekey("evidence", "recompute", folder).out


def test_with_script_and_secret_the_mapping_is_computed_again_too(rekey: Commands, key: PublicKey) -> None:
    folder = str(exported(rekey))
    said = rekey("evidence", "recompute", folder, "--mapping", "--json").json
    assert equal(said) == {"source Users": True, "expected UsersV2": True, "target UsersV2": True}
    (rekey.project.folder / "users.secret").write_text("another secret, as long as the first", "utf-8")
    said = rekey("evidence", "recompute", folder, "--mapping", "--json", code=1).json
    assert equal(said) == {"source Users": True, "expected UsersV2": False, "target UsersV2": True}


def test_a_row_that_was_changed_added_or_removed_since_is_found(rekey: Commands, key: PublicKey) -> None:
    folder = str(exported(rekey))
    tables = rekey.project.tables
    target = rekey.project.rows("UsersV2")[7]
    row_key = EntityKey(target["PartitionKey"], target["RowKey"])
    wait(tables.table("UsersV2").replace({**content_of(target), "Name": "other"}, etag="*"))
    said = rekey("evidence", "recompute", folder, "--json", code=1).json
    assert equal(said) == {"source Users": True, "target UsersV2": False}
    assert said["digests"][1]["found_rows"] == FEW
    wait(tables.table("UsersV2").replace(content_of(target), etag="*"))
    rekey("evidence", "recompute", folder)
    wait(tables.table("UsersV2").delete(row_key, etag="*"))
    wait(tables.table("Users").insert({"PartitionKey": "p", "RowKey": "more@mail.example"}))
    said = rekey("evidence", "recompute", folder, code=1)
    assert said.out.count("ANOTHER") == 2
    wait(tables.delete_table("Users"))
    assert "source Users: 0 rows, NOT there" in rekey("evidence", "recompute", folder, code=1).out


def test_an_auditor_needs_no_project(
    rekey: Commands, key: PublicKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(rekey)
    handed_over(folder, rekey.project.folder / "evidence.pub.pem", tmp_path / "auditor", monkeypatch)
    words = ("evidence", "recompute", "bundle", "--key", "evidence.pub.pem")
    account = ("--endpoint", "https://acme.table.core.windows.net", "--key-env", "ACME_KEY")
    assert equal(rekey(*words, *account, "--json").json) == {"source Users": True, "target UsersV2": True}
    assert "--endpoint" in rekey(*words, "--key-env", "ACME_KEY", code=2).err
    pasted = "https://acme.table.core.windows.net?sig=" + "x" * 40
    refused = rekey(*words, "--endpoint", pasted, code=2)
    assert "holds a SAS" in refused.err
    assert "x" * 40 not in refused.all


def test_a_bundle_that_is_not_right_is_not_computed_again(rekey: Commands, key: PublicKey) -> None:
    folder = exported(rekey)
    (folder / "data/more").write_text("x", "utf-8")
    said = rekey("evidence", "recompute", str(folder), code=1)
    assert "No table was read" in said.err


def test_another_script_does_not_pass_for_the_one_of_the_bundle(rekey: Commands, key: PublicKey) -> None:
    folder = exported(rekey)
    rekey.project.script(USERS_SCRIPT.replace('props.drop("Ssn")', ""))
    said = rekey("evidence", "recompute", str(folder), "--mapping", code=3)
    assert "is not the one of the bundle" in said.err


def test_a_small_source_has_no_digest(tmp_path: Path, commands_on: CommandsOn) -> None:
    """One e-mail address in a table that is known otherwise could be found by trying a dictionary."""
    project = Project(tmp_path)
    project.script(USERS_SCRIPT)
    wait(project.fill("Users", rows(FEW - 1)))
    rekey = commands_on(project)
    with_key(rekey.project.folder)
    rekey("apply", "0001")
    folder = str(exported(rekey))
    said = rekey("evidence", "recompute", folder, "--json").json
    source, target = said["digests"]
    assert (source["recorded_digest"], source["recorded_rows"], source["equal"]) == ("", FEW - 1, True)
    assert target["recorded_digest"]
    assert "too few for its digest" in rekey("evidence", "recompute", folder).out
    wait(rekey.project.tables.table("Users").insert({"PartitionKey": "p", "RowKey": "more@mail.example"}))
    assert equal(rekey("evidence", "recompute", folder, "--json", code=1).json)["source Users"] is False
