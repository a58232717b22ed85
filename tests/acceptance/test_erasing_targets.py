"""The installed command erases persons with their rows of the target and of an index table on Azurite, in
both captures: told before, killed and run again, and shown to an auditor.

Soak: capture "delta".
Reason, and what `make test` covers: the same in "dual-write".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.worlds.azurite_projects import Project, posts
from tests.worlds.scripts import POSTS, under_writes

pytestmark = pytest.mark.azurite

ROWS = 200
WHY = ("--reason", "request 18")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(POSTS, id="delta", marks=pytest.mark.soak),
        pytest.param(under_writes(POSTS), id="dual-write"),
    ],
)
def test_persons_go_from_all_tables_and_all_others_stay(
    tmp_path: Path, azurite: Azurite, script: str
) -> None:
    project = Project(tmp_path, azurite)
    project.configure(more='[evidence]\nkey_file = "evidence.pem"')
    project.script(script)
    rows = posts(ROWS)
    project.fill(rows)
    project.run("evidence", "keygen").ended(0)
    project.run("apply", "--to", "complete", "--writers-stopped", "--yes", project.script_id).ended(0)
    if script != POSTS:
        project.run("verify", "--mode", "full").ended(0)
        project.run("handover", "--yes", project.script_id).ended(0)
    wire, tables = project.wire, (project.source, project.target, project.index)
    before = {table: wire.contents(table) for table in tables}

    def slugs(table: str) -> set[str]:
        return {row for _, row in wire.contents(table)}

    told, first, *many = (row for row in rows if row["Tags"].count(",") == 1)
    ran = project.run("erase", "--old", told["PartitionKey"], told["RowKey"], *WHY).ended(0)
    assert f"2 rows of {project.index}" in ran.err and f"1 row of {project.target}" in ran.err
    assert told["RowKey"] in slugs(project.target) & slugs(project.index) - slugs(project.source)

    ran = project.run("erase", "--old", first["PartitionKey"], first["RowKey"], "--with-targets", *WHY)
    ran.ended(0, f"rows of {project.index} 2, rows of {project.target} 1")
    assert first["RowKey"] not in {slug for table in tables for slug in slugs(table)}

    asked = project.folder / "asked.csv"
    lines = ["old_partition_key,old_row_key", *(f"{row['PartitionKey']},{row['RowKey']}" for row in many)]
    asked.write_text("\n".join(lines) + "\n", "utf-8")
    running = project.start("erase", "--bulk", str(asked), "--with-targets", *WHY)
    assert running.until(lambda: len(wire.contents(project.target)) < ROWS - 6), (
        "it must be killed before it ends"
    )
    running.kill()
    assert slugs(project.target) & {row["RowKey"] for row in many}
    again = project.run("erase", "--bulk", str(asked), "--with-targets", *WHY).ended(0)
    assert "cut off is done now" in again.said

    gone = {row["RowKey"] for row in (first, *many)}
    for table in (project.target, project.index):
        assert wire.contents(table) == {
            key: row for key, row in before[table].items() if key[1] not in gone
        }, "and no row of anybody else"
    assert slugs(project.source) == {row["RowKey"] for row in rows} - gone - {told["RowKey"]}
    project.run("evidence", "export", "bundle").ended(0)
    project.run("evidence", "verify", "bundle").ended(0)
    report = (project.folder / "bundle" / "data" / "report.html").read_text("utf-8")
    assert f"rows of {project.index} 2, rows of {project.target} 1" in report
    assert not any(slug in report for slug in gone)
