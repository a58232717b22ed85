"""Ten thousand rows from the first plan to `complete`, in one sitting; requests are as many as estimated.

Soak: all of it.
Reason, and what `make test` covers: 10,000 rows; the same way with 300 in
`tests/scenarios/runner/test_life.py`, estimates in `tests/scenarios/plan/test_against_actual.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.worlds.azurite_projects import Project
from tests.worlds.example_rows import users

pytestmark = pytest.mark.azurite
ROWS = 10_000
EXAMPLE = Path(__file__).parents[2] / "migrations" / "0001_users_opaque_ids.py"


@pytest.mark.soak
def test_ten_thousand_rows_go_all_the_way(tmp_path: Path, azurite: Azurite) -> None:
    """The worked example on its own kind of rows; counts and digests agree at every step."""
    project = Project(tmp_path, azurite)
    text = EXAMPLE.read_text("utf-8").replace('"UsersV2"', f'"{project.target}"')
    project.script(text.replace('source="Users"', f'source="{project.source}"'))
    project.configure(window_rows=8192)
    project.fill(users(ROWS))

    planned = project.run("plan", "--exact", "--json").ended(0).document["migrations"][0]
    assert planned["inventory"]["rows"] == ROWS
    [applied] = project.run("apply", "--json").ended(0).document["migrations"]
    assert [run["phase"] for run in applied["phases"]] == ["prepare", "dual_write", "backfill", "reconcile"]
    report = project.run("verify", "--json").ended(0).document
    [table] = report["tables"]
    assert (report["source_rows"], table["actual_rows"]) == (ROWS, ROWS)
    assert table["expected_digest"] == table["actual_digest"]
    project.run("apply", "--to", "complete", "--writers-stopped", "--yes", project.script_id).ended(0)
    [status] = project.run("status", "--json").ended(0).document["migrations"]
    estimated, sent = (status["requests"][f"{one}_phases_done"] for one in ("estimated_of", "sent_in"))
    assert abs(estimated - sent) <= 0.05 * sent, "what was planned is what the service was asked"
    assert len(project.wire.rows(project.source)) == ROWS
    assert len(project.wire.rows(project.target)) == ROWS
    assert len(project.mapping()) == 2 * ROWS
