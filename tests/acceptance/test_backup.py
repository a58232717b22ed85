"""Export and import on Azurite: every value and key of the contract survives, and a killed export ends as one
that nobody disturbed.

Soak: ten kills by SIGKILL of the installed command; a copy between two accounts that is killed.
Reason, and what `make test` covers: a minute each; ends at every part in
`tests/scenarios/backup/test_export.py`, and cut-off copies in `test_copy.py` there.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from rekey.core.edm import canonical_content
from rekey.rehearse.azurite import Azurite
from tests.fakes.given_account import MADE
from tests.worlds.azurite_projects import Project
from tests.worlds.backups import every_value, manifest_of, parts_of
from tests.worlds.odd_rows import generic

pytestmark = pytest.mark.azurite


def test_every_value_and_key_of_the_contract_survives_on_azurite(tmp_path: Path, azurite: Azurite) -> None:
    project = Project(tmp_path, azurite)
    project.fill(every_value())
    back = f"{project.source}Back"
    MADE.add(back)
    project.run("export", project.source, "out").ended(0)
    ran = project.run("import", "out", back, "--json").ended(0)
    before, after = project.wire.contents(project.source), project.wire.contents(back)
    assert ran.document["inserted"] == len(before) > 40
    project.run("diff", "./out", back).ended(0)
    project.run("diff", project.source, back).ended(0)
    assert before.keys() == after.keys()
    for key, row in before.items():
        assert canonical_content(after[key]) == canonical_content(row)


@pytest.mark.soak
def test_a_copy_to_another_account_that_was_killed_is_continued(tmp_path: Path, azurite: Azurite) -> None:
    project = Project(tmp_path, azurite, elsewhere=azurite.targets)
    project.fill([*every_value(), *generic(2_000, partitions=10)])
    accounts = {"OLD": azurite.tables, "NEW": azurite.targets}
    variables = {
        name: f"AccountName={account.name};AccountKey={account.key};TableEndpoint={account.endpoint}"
        for name, account in accounts.items()
    }
    words = ("copy", f"OLD/{project.source}", "NEW/", "--json")
    running = project.start(*words, "--rate", "500", **variables)
    running.until(lambda: any(path.stat().st_size > 100 for path in tmp_path.glob("rekey-copy-*/*.journal")))
    running.kill()
    ran = project.run(*words, **variables).ended(0)
    before, after = project.wire.contents(project.source), project.wire.contents(project.target)
    assert ran.document["tables"][0]["rows"] == len(before) > 2_000
    assert before.keys() == after.keys()
    for key, row in before.items():
        assert canonical_content(after[key]) == canonical_content(row)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_ten_times_an_export_ends_as_if_undisturbed(tmp_path: Path, azurite: Azurite) -> None:
    """SIGKILL at random moments, while the rates hold the export up."""
    seed = int(os.environ.get("REKEY_SEED", random.SystemRandom().randrange(2**32)))
    lot = random.Random(seed)
    project = Project(tmp_path, azurite)
    project.fill(generic(120_000, partitions=400))
    project.run("export", project.source, "peaceful", "--plain").ended(0)
    project.configure(entities_per_second=4_000)
    landed = 0
    for _ in range(10):
        running = project.start("export", project.source, "out", "--plain")
        running.until(lambda: (tmp_path / "out/journal.jsonl").exists())
        time.sleep(lot.uniform(0, 4))
        running.kill()
        assert not (tmp_path / "out/manifest.json").exists(), f"seed {seed}: killed too late"
        landed += bool(parts_of(tmp_path / "out"))
    assert landed, f"seed {seed}: no kill came between two parts"
    project.configure()
    project.run("export", project.source, "out", "--plain").ended(0)
    ours, theirs = manifest_of(tmp_path / "out"), manifest_of(tmp_path / "peaceful")
    assert ours["parts"] == theirs["parts"], f"seed {seed}"
    assert ours["digest"] == theirs["digest"], f"seed {seed}"
    assert parts_of(tmp_path / "out") == parts_of(tmp_path / "peaceful"), f"seed {seed}"
