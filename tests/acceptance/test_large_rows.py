"""Rows of nearly 1 MiB: the memory of a copy follows `window_bytes`, not the size of the table.

Soak: all of it.
Reason, and what `make test` covers: hundreds of rows of 1 MiB; the bound of a window in `tests/unit`.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.worlds.azurite_projects import Project
from tests.worlds.example_rows import users

pytestmark = [pytest.mark.azurite, pytest.mark.soak]
EXAMPLE = Path(__file__).parents[2] / "migrations" / "0001_users_opaque_ids.py"
ROWS, PROPERTIES, PROPERTY_BYTES = 200, 15, 49_050
WINDOW_MIB, MOST_MIB = 8, 250
_MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open(sys.argv[1], "w"))
sys.exit(code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is kibibytes on Linux")
def test_a_copy_of_large_rows_keeps_within_a_few_windows(tmp_path: Path, azurite: Azurite) -> None:
    """Rows of 981 KB on the wire, 196 MB in all."""
    project = Project(tmp_path, azurite)
    text = EXAMPLE.read_text("utf-8").replace('"UsersV2"', f'"{project.target}"')
    project.script(text.replace('source="Users"', f'source="{project.source}"'))
    project.configure()
    config = tmp_path / "rekey.toml"
    config.write_text(
        config.read_text("utf-8").replace("[limits]", f'[limits]\nwindow_bytes = "{WINDOW_MIB}MiB"')
    )
    large = base64.b64encode(bytes(PROPERTY_BYTES)).decode()
    more = {f"Large{n}": large for n in range(PROPERTIES)}
    more |= {f"Large{n}@odata.type": "Edm.Binary" for n in range(PROPERTIES)}
    project.fill({**row, **more} for row in users(ROWS))
    peaks = {}
    for words in (["plan", "--exact"], ["apply"], ["verify"]):
        peak = tmp_path / "peak"
        within = (sys.executable, "-c", _MEASURED, str(peak))
        project.run(*words, within=within, PYTHONPATH=str(EXAMPLE.parents[1])).ended(0)
        peaks[words[0]] = int(peak.read_text()) // 1024
    print(f"{ROWS} rows of 981 KB, windows of {WINDOW_MIB} MiB: peaks in MiB {peaks}")
    assert max(peaks.values()) <= MOST_MIB
