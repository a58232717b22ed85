"""Microsoft's own tests of azure-data-tables, through the dual-write client in both views, before and after
cutover: what passes with the SDK's client passes with ours, but for what `NOT_OURS` lists with its reason.

The tests come from the SDK's source package, which pip downloads; nothing of them is kept here.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite

pytestmark = [pytest.mark.azurite, pytest.mark.soak]

VERSION = "12.7.0"
SHA256 = "b14fc94a3223a2835ff5688e17d8e107b27c7cd7c4114138f2ac81373723705d"
FILES = [
    f"test_{name}.py"
    for kind in ("table_entity", "table_batch", "table_client", "table", "retry")
    for name in (kind, f"{kind}_async")
] + ["test_encoder.py"]
"""Not among them: `*_cosmos` (another service), `table_aad` and `challenge_auth` (an identity, which Azurite
takes with HTTPS only), `table_service_*` (service properties and statistics, which no `TableClient` has)."""
SETTINGS = ["old-dual_write", "new-dual_write", "old-cutover", "new-cutover"]
NOT_OURS: dict[str, str] = {}
"""Tests that do not apply, by the end of their name, and why."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Microsoft's tests, downloaded."""
    folder = tmp_path_factory.mktemp("sdk")
    name = f"azure_data_tables-{VERSION}"
    kept = Path(sys.prefix) / "sdk-source" / f"{name}.tar.gz"
    if not kept.exists():
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--no-binary=azure-data-tables", f"--dest={kept.parent}", f"azure-data-tables=={VERSION}"),
            ],
            check=True,
        )
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == SHA256
    with tarfile.open(kept) as archive:
        archive.extractall(folder, filter="data")
    return folder / name / "tests"


@pytest.fixture(scope="module")
def own_azurite() -> Iterator[Azurite]:
    """An Azurite for these tests alone: they list and delete all tables."""
    with Azurite() as azurite:
        yield azurite


def outcomes(suite: Path, azurite: Azurite, setting: str) -> dict[str, str]:
    """Run Microsoft's tests in a process of their own; return their outcomes by name."""
    said = suite / f"{setting}.json"
    root = Path(__file__).parents[2]
    ini = suite / "empty.ini"
    ini.write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    accounts = {name: asdict(getattr(azurite, name)) for name in ("tables", "restricted")}
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", str(ini), "--rootdir", str(suite), "-q", "--timeout=300"),
            *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.acceptance.sdk_plugin", *FILES),
        ],
        cwd=suite,
        env={
            **os.environ,
            "PYTHONPATH": str(root),
            "SDK_SETTING": setting,
            "SDK_ACCOUNTS": json.dumps(accounts),
            "SDK_OUTCOMES": str(said),
        },
        check=False,
    )
    found: dict[str, str] = json.loads(said.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def plain(suite: Path, own_azurite: Azurite) -> dict[str, str]:
    """What the SDK's own client makes of them."""
    found = outcomes(suite, own_azurite, "plain")
    assert sum(one == "passed" for one in found.values()) > 250
    return found


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_passes_with_the_sdks_client_passes_with_ours(
    suite: Path, own_azurite: Azurite, plain: dict[str, str], setting: str
) -> None:
    ours = outcomes(suite, own_azurite, setting)
    passing = {name for name, outcome in plain.items() if outcome == "passed"}
    worse = {name for name in passing if ours.get(name) != "passed"}
    excused = {name for name in passing if name.endswith(tuple(NOT_OURS))}
    print(f"{setting}: {len(passing - worse)} of {len(passing)} pass, {len(excused)} do not apply")
    assert worse - excused == set()
    assert excused - worse == set(), "they pass by now"
