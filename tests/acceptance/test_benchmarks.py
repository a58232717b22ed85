"""The benchmarks run and print one document with every figure. No timing is asserted.

Soak: every part; peers.
Reason, and what `make test` covers: minutes; one part is run, and a wrong name refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.asserts.every import every

ROOT = Path(__file__).parents[2]


def test_parts_are_chosen_by_name_and_an_unknown_one_is_refused() -> None:
    words = [sys.executable, "-m", "benchmarks", "--quick"]
    done = subprocess.run(
        [*words, "rows_per_cpu_second"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout).keys() == {"machine", "rows_per_cpu_second", "asked"}
    wrong = subprocess.run([*words, "nothing"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "there is no part nothing" in wrong.stderr


@pytest.mark.soak
def test_peers_copy_the_same_rows_and_each_tells_its_phases() -> None:
    words = [sys.executable, "-m", "benchmarks", "--quick", "peers", "row_check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    best = document["peers"]["best"]
    others = best.keys() - {"rekey_apply"}
    assert others == {"node_sdk", "node_sdk_same_rows", "python_async_sdk", "python_sdk_loop"}
    assert [list(best[name]["phases"]) for name in sorted(others)] == [["start", "copy"]] * 4
    phases = {"start", "row check", "rest", "prepare", "dual_write", "backfill", "reconcile"}
    assert best["rekey_apply"]["phases"].keys() == phases
    for name, one in best.items():
        taken = sum(phase["cpu_seconds"] for phase in one["phases"].values())
        assert 0 < taken <= one["cpu_seconds"] + 0.1, name
    assert document["peers"]["rekey_apply_to"].keys() == others
    assert document["row_check"]["rows"] == 2_000
    assert len(document["asked"]) == 5
    assert document["peers"]["requests_of_apply"]["sent"] >= document["peers"]["requests_of_apply"]["least"]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_quick_run_prints_every_figure(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert json.loads(out.read_text("utf-8")) == document
    assert [list(life["steps"]) for life in document["lives"]] == [["plan", "apply", "verify", "cutover"]]
    assert document["side_by_side"]["ratio_same_rows"].keys() == {"wall", "cpu"}
    assert document["memory_of_apply"]["largest_to_smallest"] > 0
    for work in ("copy", "copy_targets", "verify"):
        assert document["on_the_stub"][work]["ratio"] > 0
    assert document["on_the_stub"]["inspect"]["of_scan_speed"] > 0
    assert document["throttled"]["rows_lost"] == document["throttled"]["mapping_rows_lost"] == 0
    assert document["limits"]["least_seconds"] > 0
    for case in document["requests"]["cases"].values():
        assert every(case["sent"][kind] >= least for kind, least in case["least"].items())
    assert document["sizes"]["peak_rss_mib"]["measured"] > 0
    assert [len(one["stages"]) for one in document["rates"]["cases"].values()] == [1, 1, 1, 3]
    assert len(document["proxy"]["two_processes"]["share_of_each"]) == 2
    assert {kind: one["rows"] for kind, one in document["backup"].items()} == {
        "export": 2_000,
        "import": 2_000,
    }
    lives = document["large_life"]["lives"]
    assert {mapping: life["rows_written"] for mapping, life in lives.items()} == {
        "none": {"UsersV2": 2_000},
        "sealed": {"UsersV2": 2_000, "rekeymap": 4_000},
    }
    assert len(document["asked"]) == 36
    assert every(one.keys() == {"asked", "measured", "met"} for one in document["asked"].values())
    written = document["dual_write"]["key_derived"]
    for moment in ("before_cutover", "after_cutover"):
        for view in ("same_view", "cross_view"):
            assert written[moment][view]["times_plain"].keys() == {"insert", "replace", "merge", "delete"}
            assert every(load["cpu_times_plain"] > 0 for load in written[moment][view]["load"].values())
    assert every(figure > 0 for figure in document["rows_per_cpu_second"].values())
    assert document["machine"]["azurite"] == "3.35.0"
