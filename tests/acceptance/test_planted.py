"""Rows planted by hand into tables that were in step: found, named by safe id, mended; and collisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rekey.model import Row
from rekey.rehearse.azurite import Azurite
from tests.acceptance.support import Key, Project, users
from tests.worlds.scripts import POSTS

pytestmark = pytest.mark.azurite

LOWERED = '''\
"""E-mail addresses in lower case."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET", partition_key=keys.prop("PartitionKey"), row_key=keys.lower("RowKey"),
        properties=[props.copy("RowKey", to="OldRowKey")],
    ),
    capture="delta",
    waive={"personal-data": "made-up addresses, folded on purpose"},
)
'''
MONTH = "2024-01"


def _typed_posts() -> list[Row]:
    """Rows that are all of one blog, month and tag, named for what will be done to their copies."""
    names = ["missing", "altered", "wider", "tick", "wrong", "index missing", "index altered", "index wrong"]
    return [
        {
            "PartitionKey": "blog",
            "RowKey": name,
            "Month": MONTH,
            "Title": f"About {name}",
            "Tags": "keys",
            "Words": 700,
            "Published": "2024-05-06T07:08:09.1234567Z",
            "Published@odata.type": "Edm.DateTime",
        }
        for name in [*names, *(f"untouched {number}" for number in range(20))]
    ]


def _plant(project: Project) -> None:
    """Do each of the wrongs to one row of its own."""
    wire, target, index = project.wire, project.target, project.index
    main = wire.contents(target)
    wire.delete(target, (MONTH, "missing"))
    wire.insert(target, {"PartitionKey": MONTH, "RowKey": "extra", "Title": "nobody's"})
    wire.replace(target, main[MONTH, "altered"] | {"Title": "About alteret"})
    wire.replace(target, main[MONTH, "wider"] | {"Words": "700", "Words@odata.type": "Edm.Int64"})
    wire.replace(target, main[MONTH, "tick"] | {"Published": "2024-05-06T07:08:09.1234568Z"})
    wire.delete(target, (MONTH, "wrong"))
    wire.insert(target, main[MONTH, "wrong"] | {"RowKey": "wrong key"})
    indexed = wire.contents(index)
    wire.delete(index, ("keys", "index missing"))
    wire.insert(index, {"PartitionKey": "keys", "RowKey": "index extra", "Title": "nobody's"})
    wire.replace(index, indexed["keys", "index altered"] | {"Title": "about index altered"})
    wire.delete(index, ("keys", "index wrong"))
    wire.insert(index, indexed["keys", "index wrong"] | {"RowKey": "index wrong key"})


def test_every_planted_wrong_is_found_by_safe_id_and_mended_by_repair(
    tmp_path: Path, azurite: Azurite
) -> None:
    """One row each, in the main target and in an index table; `lookup --id` tells which row it is."""
    project = Project(tmp_path, azurite)
    project.script(POSTS)
    project.fill(_typed_posts())
    project.run("apply").ended(0)
    in_step = [project.wire.contents(name) for name in (project.target, project.index)]
    _plant(project)

    document = project.run("verify", "--mode", "full", "--json").ended(1).document
    found: list[dict[str, Any]] = document["divergences"]
    main = [one for one in found if one["table"] == project.target]
    index = [one for one in found if one["table"] == project.index]
    assert sorted(one["kind"] for one in main) == [
        *("altered", "altered", "altered", "extra", "missing", "wrong-key")
    ]
    assert sorted(one["kind"] for one in index) == ["altered", "extra", "missing", "wrong-key"]
    assert (document["stable"], document["transient"], document["exit_code"]) == (10, 0, 1)
    _check_names(project, main, index)

    mended = project.run("verify", "--repair", "--json").ended(1).document["repair"]["counts"]
    assert mended == {"propagated": 6, "moved": 2, "deleted": 2}
    project.run("verify").ended(0)
    assert [project.wire.contents(name) for name in (project.target, project.index)] == in_step


def _check_names(project: Project, main: list[dict[str, Any]], index: list[dict[str, Any]]) -> None:
    """Check that each safe id means the row that was tampered with, and what is said of its properties."""
    by_row = {_looked_up(project, one["source_row"]): one for one in main if one["kind"] != "extra"}
    assert set(by_row) == {("blog", name) for name in ("missing", "altered", "wider", "tick", "wrong")}
    altered = {name: by_row["blog", name]["properties"][0].values() for name in ("altered", "wider", "tick")}
    assert {name: set(values) for name, values in altered.items()} == {
        "altered": {"Title", "value"},
        "wider": {"Words", "type"},
        "tick": {"Published", "value"},
    }
    assert _looked_up(project, by_row["blog", "altered"]["row"]) == ("blog", "altered"), (
        "the target's id, too"
    )
    [missing] = [one for one in index if one["kind"] == "missing"]
    assert _looked_up(project, missing["source_row"]) == ("blog", "index missing")
    [extra] = [one for one in main if one["kind"] == "extra"]
    assert "source_row" not in extra
    project.run("lookup", "--id", extra["row"], "--reason", "t").ended(1, "has no such row")


def _looked_up(project: Project, safe_id: str) -> Key:
    [row] = project.run("lookup", "--id", safe_id, "--reason", "t", "--json").ended(0).document["rows"]
    return row["old"]["partition_key"], row["old"]["row_key"]


# --- collisions -----------------------------------------------------------------------------------------


@pytest.fixture
def lowered(tmp_path: Path, azurite: Azurite) -> Project:
    project = Project(tmp_path, azurite)
    project.script(LOWERED)
    project.fill(users(300))
    return project


def _capitals(number: int) -> Row:
    """Return a row whose key differs from that of a row of `users` by case alone."""
    [row] = users(number + 1)[number:]
    return {**row, "RowKey": row["RowKey"].upper(), "Nm": "in capitals"}


def test_rows_that_map_to_one_key_are_reported_by_plan_and_refused_by_apply(lowered: Project) -> None:
    """Both rows are named by safe id, with `--show-keys` by key; nothing is written."""
    lowered.wire.insert(lowered.source, _capitals(7))
    before = lowered.everything()
    document = lowered.run("plan", "--exact", "--json").ended(1).document
    [collision] = document["migrations"][0]["collisions"]["first"]
    assert (collision["rows"], len(set(collision["row_ids"]))) == (2, 2)
    assert document["ids_hold"] is False, (
        "before the first phase safe ids are valid for one plan only, and it says so"
    )
    shown = lowered.run("plan", "--exact", "--json", "--show-keys").ended(1).document
    old_keys = {tuple(key) for key in shown["migrations"][0]["collisions"]["first"][0]["old_keys"]}
    assert old_keys == {("tenant-2", "user00007@mail.example"), ("tenant-2", "USER00007@MAIL.EXAMPLE")}
    refused = lowered.run("apply").ended(1, "2 source rows share 1 target key", "Nothing was written.")
    assert "user00007" not in refused.said.lower()
    assert lowered.everything() == before
    assert lowered.remembered() == {}


def test_a_collision_that_arises_while_copying_stops_it_and_overwrites_nothing(lowered: Project) -> None:
    """The row comes after the check and before its partition is copied: both are named, one is there."""
    lowered.configure(window_rows=20, entities_per_second=100)
    running = lowered.start("apply", "--json")
    assert running.until(lambda: lowered.state.exists() and bool(lowered.segments()))
    lowered.wire.insert(lowered.source, _capitals(299))
    document = running.wait().ended(1).document
    assert document["error"] == "Collision"
    ids = [word for word in document["what"].split() if len(word) == 12 and word.isalnum()]
    old = {_looked_up_old(lowered, key) for key in (_capitals(299), users(300)[299])}
    assert set(ids) == old
    [there] = [row for row in lowered.wire.rows(lowered.target) if row["RowKey"] == "user00299@mail.example"]
    assert there["Nm"] == "in capitals", "the row that was copied first"
    # Mended, it goes on where it stopped.
    lowered.wire.delete(lowered.source, ("tenant-4", "USER00299@MAIL.EXAMPLE"))
    lowered.configure()
    lowered.run("apply").ended(0)
    assert len(lowered.wire.rows(lowered.target)) == 300


def _looked_up_old(project: Project, row: Row) -> str:
    """Return the safe id of a source row, as `lookup` says it (also of one that it does not know)."""
    ran = project.run("lookup", "--old", row["PartitionKey"], row["RowKey"], "--reason", "t", "--json")
    if ran.code == 0:
        return str(ran.document["rows"][0]["row_id"])
    return str(ran.document["what"].rpartition("(")[2].rstrip(")"))


def test_a_collision_that_arises_at_the_gate_is_found_by_the_next_pass(lowered: Project) -> None:
    """A new row whose key is taken: `apply` stops, the row that has the key keeps it."""
    lowered.run("apply").ended(0)
    before = lowered.wire.contents(lowered.target)
    lowered.wire.insert(lowered.source, _capitals(0))
    lowered.run("apply").ended(1, "collision in", "nothing was overwritten")
    assert lowered.wire.contents(lowered.target) == before
    lowered.run("apply", "--to", "cutover", "--writers-stopped").ended(1)
    assert lowered.wire.contents(lowered.target) == before
