"""`REKEY_TEST_ENDPOINT` runs contract and acceptance tests on an account that is given.

Here it is another Azurite's: no account of Azure was at hand.

Soak: all of it.
Reason, and what `make test` covers: shows the tests, not the program: other tests, run once more on an
account that is given.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.worlds.azurite_projects import Wire

pytestmark = [pytest.mark.azurite, pytest.mark.soak]
ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/contract/test_values.py::test_keys_that_look_alike_are_different_rows",
    "tests/contract/test_lost_answers.py::test_a_write_that_was_left_without_an_answer_is_remembered",
    "tests/acceptance/test_values.py::test_every_value_and_key_survives_there_and_back_byte_for_byte",
]


def test_suites_run_on_a_given_account_and_remove_their_tables(azurite: Azurite, tmp_path: Path) -> None:
    """What stands between the tests and their own Azurite is skipped: proxies."""
    wire = Wire(azurite.tables)
    before = wire.names()
    no_folder = tmp_path / "file"
    no_folder.touch()
    given = {
        "REKEY_TEST_ENDPOINT": azurite.tables.endpoint,
        "REKEY_TEST_KEY": azurite.tables.key,
        "REKEY_TEST_RESTRICTED_ENDPOINT": azurite.restricted.endpoint,
        "REKEY_TEST_RESTRICTED_KEY": azurite.restricted.key,
        "REKEY_AZURITE_DIR": str(no_folder),  # nothing can be installed here: another Azurite would not start
    }
    words = ["-m", "pytest", "-q", "-n0", "-rs", "-p", "no:cacheprovider", *TESTS]
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"\d passed, 1 skipped", ran.stdout)
    assert "needs an Azurite of its own (its port)" in ran.stdout
    assert wire.names() == before
