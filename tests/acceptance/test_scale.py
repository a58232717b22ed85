"""Ten thousand rows from the first plan to the retired source, with the installed command, in one sitting."""

from __future__ import annotations

from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from rekey.rehearse.generate import posts
from tests.acceptance.support import Project

pytestmark = pytest.mark.azurite
ROWS = 10_000
EXAMPLE = Path(__file__).parents[2] / "migrations" / "0002_posts_by_month.py"


def test_ten_thousand_rows_with_three_index_tables_live_a_whole_life(
    tmp_path: Path, azurite: Azurite
) -> None:
    """The worked example on its own kind of rows; counts and digests of all tables agree at every step."""
    project = Project(tmp_path, azurite)
    rows = {(row["PartitionKey"], row["RowKey"]): row for row in posts(ROWS, blogs=20)}
    text = EXAMPLE.read_text("utf-8")
    text = text.replace('source="Posts"', f'source="{project.source}"')
    project.script(text.replace('"PostsBy', f'"T{project.number}PostsBy'))
    project.target = f"T{project.number}PostsByMonth"
    project.configure(window_rows=8192)
    project.fill(rows.values())

    planned = project.run("plan", "--exact", "--json").ended(0).document["migrations"][0]
    assert planned["inventory"]["rows"] == ROWS
    [applied] = project.run("apply", "--json").ended(0).document["migrations"]
    assert [run["phase"] for run in applied["phases"]] == ["prepare", "dual_write", "backfill", "reconcile"]
    report = project.run("verify", "--json").ended(0).document
    assert report["source_rows"] == ROWS
    for table, fill in zip(report["tables"], planned["targets"], strict=True):
        assert table["expected_digest"] == table["actual_digest"]
        assert table["actual_rows"] == fill["rows"] > ROWS / 2
    assert len(project.wire.rows(project.target)) == ROWS
    project.run("apply", "--to", "complete", "--writers-stopped").ended(0)
    assert len(project.wire.rows(project.source)) == ROWS
