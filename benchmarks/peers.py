"""The same users copied by others and by `rekey apply`: whole processes on Azurite, and their phases.

Rules kept here:

* The others are written with care, as a team would that copies once: the SDK for Node.js and Python's
  asynchronous one keep 32 transactions under way; the loop is the one of `sdk_loop`. They write the target's
  rows. `rekey apply` tries every row first, writes two sealed mapping rows for each as well, sweeps, and
  compares everything. The SDK for Node.js copies once more with rows of that size beside the target's: what
  the server itself takes longer for three rows than for one, it takes whoever sends them.
* Each process has an Azurite of its own. A figure is the best of `TRIES`, in turns.
* The SDK for Node.js is pinned, with all that it needs, by `node/package-lock.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import project
from benchmarks.asked import least_requests
from benchmarks.measure import run
from benchmarks.shape import Shape
from rekey.rehearse.azurite import Azurite, find_node

TRIES = 3
REKEY, NODE, NODE_SAME_ROWS = "rekey_apply", "node_sdk", "node_sdk_same_rows"
_NODE = Path(__file__).with_name("node")
_SDK = "@azure/data-tables"


def _pinned() -> dict[str, str]:
    return dict(json.loads((_NODE / "package.json").read_text("utf-8"))["devDependencies"])


def pinned_sdk() -> str:
    """Return the version of the SDK for Node.js."""
    return _pinned()[_SDK]


def _installed(package: str) -> str:
    """Return the version that is installed of a package; "" for none."""
    found = _NODE / "node_modules" / package / "package.json"
    return str(json.loads(found.read_text("utf-8"))["version"]) if found.exists() else ""


def node_script() -> list[str]:
    """Return the command of the copy in Node.js, installing what it needs when that is not there.

    Raises ConfigurationError or CalledProcessError when it cannot be installed.
    """
    node = find_node()
    if any(_installed(package) != version for package, version in _pinned().items()):
        words = ["ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run([*node.npm, *words], cwd=_NODE, check=True, stdout=subprocess.DEVNULL)
    return [node.program, str(_NODE / "copy.mjs")]


def measure(count: int, say: Callable[[str], None], *, tries: int = TRIES) -> dict[str, Any]:
    """Return seconds and processor seconds of every peer, of its phases, and the ratios to the others."""
    python = (sys.executable, "-m")
    peers: dict[str, Sequence[str]] = {
        NODE: node_script(),
        NODE_SAME_ROWS: node_script(),
        "python_async_sdk": (*python, "benchmarks.sdk_async"),
        "python_sdk_loop": (*python, "benchmarks.sdk_loop"),
        REKEY: (*python, "benchmarks.apply_phases", project.SCRIPT_ID),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in peers}
    for _ in range(tries):
        for name, command in peers.items():
            say(f"{count:,} rows: {name}")
            runs[name].append(_once(name, command, count))
    best = {name: min(of, key=lambda one: float(one["cpu_seconds"])) for name, of in runs.items()}
    seconds = {name: min(one["seconds"] for one in of) for name, of in runs.items()}
    copying = (best[REKEY]["phases"]["backfill"], best[NODE]["phases"]["copy"])
    return {
        "rows": count,
        "node_sdk_version": pinned_sdk(),
        "best": {name: {**one, "seconds": seconds[name]} for name, one in best.items()},
        "backfill_to_node_sdk": round(copying[0]["cpu_seconds"] / copying[1]["cpu_seconds"], 2),
        "requests_of_apply": _requests(best[REKEY].pop("requests"), count),
        "rekey_apply_to": {
            name: {
                "wall": round(seconds[REKEY] / seconds[name], 2),
                "cpu": round(best[REKEY]["cpu_seconds"] / best[name]["cpu_seconds"], 2),
            }
            for name in peers
            if name != REKEY
        },
    }


def _once(name: str, command: Sequence[str], count: int) -> dict[str, Any]:
    with Azurite() as azurite, tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "project"
        environ = project.make(folder, azurite)
        project.fill(azurite, count)
        endpoints = [azurite.tables.endpoint, azurite.restricted.endpoint]
        words = {NODE: endpoints[:1], NODE_SAME_ROWS: endpoints}.get(name, [])
        taken = run(words, folder=folder, environ=environ, program=command)
        copied = project.count(azurite, "UsersV2")
        assert copied == count, f"{name} copied {copied:,} of {count:,} rows"
        if name == NODE_SAME_ROWS:
            mapped = project.count(azurite, "rekeymap", restricted=True)
            assert mapped == 2 * count, f"{name} wrote {mapped:,} mapping rows for {count:,} rows"
        phases = json.loads((folder / "phases.json").read_text("ascii"))
        sent = {"requests": _sent(folder, environ)} if name == REKEY else {}
    return {
        **taken.as_json(count),
        **sent,
        "phases": {
            phase: {clock: round(value, 2) for clock, value in one.items()} for phase, one in phases.items()
        },
    }


def _sent(folder: Path, environ: Mapping[str, str]) -> int:
    """Return how many requests `rekey apply` sent."""
    status = subprocess.run(
        [sys.executable, "-m", "rekey", "status", "--json"],
        cwd=folder,
        env=dict(environ),
        stdout=subprocess.PIPE,
        check=True,
    )
    [migration] = json.loads(status.stdout)["migrations"]
    return int(migration["requests"]["sent_in_phases_done"])


def _requests(sent: int, count: int) -> dict[str, Any]:
    """Return the requests sent, over the least: the source read by row check, copy and comparison, the target
    by the comparison, in full pages; targets and mapping written in full batches."""
    least = least_requests(Shape(count), "kept")
    total = 4 * least["read"] + least["targets"] + least["mapping"]
    return {"sent": sent, "least": total, "ratio": round(sent / total, 3)}
