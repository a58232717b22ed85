"""What a dual write costs its caller: wall time of single calls, against the same calls of the plain SDK.

Rules kept here:

* Every request takes a latency on its way (30 ms, far more than anything is computed in), put there by a line
  between the calling process and Azurite. So a ratio reads as "round trips one after the other".
* The same calls with the same rows: insert, replace, merge, delete; keys derived from keys alone and from
  content with an index table; the view of the authority and the other one, before cutover and after it.
* A figure is the median of single calls, one at a time, over a connection that is warm.
* The cost: 32 tasks of one process write in turns with the plain client (`dualwrite_cost.py`), in each of the
  four views and phases, and with `acknowledge="authority"` where the view is the authority's.
* Under load, 32 tasks of one process write rows of their own while the authority moves: writes per second,
  processor for each, the freeze, and what failed; with all answers, and with 4 of 1,000 lost.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableServiceClient

from benchmarks import project
from benchmarks.dualwrite_cost import BLOCKS, WRITERS
from benchmarks.latency import Latency
from rekey.rehearse.azurite import Azurite

LATENCY_SECONDS = 0.03
CALLS = 15
LOST = 0.004
LOAD_SECONDS = 20.0
# When writes are answered, by view: in the other one replicas are always current first.
_ANSWERED = {"same": ("both", "authority"), "cross": ("both",)}
_CONFIG = """\
[tables]
endpoint = "http://127.0.0.1:{port}/tables"
key_env = "BENCH_TABLES_KEY"
[restricted]
endpoint = "http://127.0.0.1:{port}/restricted"
key_env = "BENCH_RESTRICTED_KEY"
[secrets.users]
env = "BENCH_SECRET"
[sealing]
env = "BENCH_WRAPPING_KEY"
"""
_KEY_DERIVED = project.SCRIPT.replace('capture="delta"', 'capture="dual-write"')
_CONTENT_DERIVED = '''\
"""Posts by month, with an index by tag."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="Posts",
    target=Target(
        "PostsV2",
        partition_key=keys.prop("Month"),
        row_key=keys.prop("RowKey"),
        properties=[props.copy("PartitionKey", to="Blog")],
    ),
    indexes=[
        Index("PostsByTag", each=keys.split("Tags", ","), partition_key=keys.item(),
              row_key=keys.prop("RowKey"), properties=[props.keep("Title")]),
    ],
    capture="dual-write",
)
'''


@dataclass(frozen=True)
class Kind:
    """One of the two migrations: its script, and its source's name."""

    name: str
    script_id: str
    script: str
    source: str


KINDS = (
    Kind("key_derived", "0001_users", _KEY_DERIVED, "Users"),
    Kind("content_derived", "0002_posts", _CONTENT_DERIVED, "Posts"),
)


def measure(calls: int, say: Callable[[str], None], kinds: Sequence[Kind] = KINDS) -> dict[str, Any]:
    """Return the figures of some kinds of migration."""
    with (
        Azurite() as azurite,
        tempfile.TemporaryDirectory() as name,
        Latency(azurite.port, LATENCY_SECONDS) as line,
    ):
        bench = Bench(Path(name) / "project", azurite, line.port, calls, say)
        plain = bench.calls("plain", "", "")
        figures: dict[str, Any] = {
            "latency_ms": round(1000 * LATENCY_SECONDS),
            "calls_of_each_kind": calls,
            "plain_sdk_ms": _milliseconds(plain),
        }
        for kind in kinds:
            figures[kind.name] = bench.life(kind, plain)
        seconds = LOAD_SECONDS if calls >= CALLS else 12.0
        figures["load"] = {"plain_sdk": bench.load("plain", "", "", seconds)}
        figures["load"]["all_answers"] = bench.under_load(seconds)
        with Latency(azurite.port, LATENCY_SECONDS, LOST) as losing:
            bench.behind(losing.port)
            figures["load"]["4_of_1000_answers_lost"] = bench.under_load(seconds)
    return figures


class Bench:
    """A project on an Azurite, and the line in front of it."""

    def __init__(
        self, folder: Path, azurite: Azurite, port: int, calls: int, say: Callable[[str], None]
    ) -> None:
        self.environ = project.make(folder, azurite)
        credential = AzureNamedKeyCredential(azurite.tables.name, azurite.tables.key)
        self.tables = TableServiceClient(azurite.tables.endpoint, credential=credential)
        self.folder, self._calls, self._say = folder, calls, say
        (folder / "migrations" / f"{project.SCRIPT_ID}.py").unlink()
        for kind in KINDS:
            (folder / "migrations" / f"{kind.script_id}.py").write_text(kind.script, "utf-8")
        self.behind(port)

    def behind(self, port: int) -> None:
        """Let clients reach the accounts through a line."""
        (self.folder / "far.toml").write_text(
            f'{_CONFIG.format(port=port)}[migrations]\npath = "migrations"\n', "utf-8"
        )

    def life(self, kind: Kind, plain: Mapping[str, float]) -> dict[str, Any]:
        """Measure one migration before cutover and after it, in both views."""
        self.tables.create_table(kind.source)
        self.rekey("apply", kind.script_id)
        before = self._views(kind, plain, same="old", cross="new")
        self.rekey("verify", kind.script_id, "--mode", "full")
        self.rekey("apply", kind.script_id, "--to", "cutover", "--writers-stopped")
        return {
            "before_cutover": before,
            "after_cutover": self._views(kind, plain, same="new", cross="old"),
        }

    def _views(self, kind: Kind, plain: Mapping[str, float], **views: str) -> dict[str, Any]:
        found = {}
        for name, view in views.items():
            taken = self.calls(kind.name, kind.script_id, view)
            found[f"{name}_view"] = {
                "ms": _milliseconds(taken),
                "times_plain": {verb: round(taken[verb] / plain[verb], 2) for verb in taken},
                "load": {answered: self.cost(kind, view, answered) for answered in _ANSWERED[name]},
            }
        return found

    def calls(self, kind: str, script_id: str, view: str) -> dict[str, float]:
        """Let a process make the calls; return the median seconds by verb."""
        self._say(f"{self._calls} calls of each kind: {kind} {view}".rstrip())
        words = [sys.executable, "-m", "benchmarks.dualwrite_calls", kind, script_id, view, str(self._calls)]
        return dict(json.loads(self._run(words)))

    def cost(self, kind: Kind, view: str, acknowledge: str) -> dict[str, Any]:
        """Let a process write in turns with the plain client; return its figures."""
        self._say(f"{WRITERS} writers in turns with the plain client: {kind.name} {view} {acknowledge}")
        words = [kind.name, kind.script_id, view, acknowledge, str(BLOCKS if self._calls >= CALLS else 2)]
        done: dict[str, Any] = json.loads(
            self._run([sys.executable, "-m", "benchmarks.dualwrite_cost", *words])
        )
        return done

    def load(self, kind: str, script_id: str, view: str, seconds: float) -> dict[str, Any]:
        """Put a client under load; return its figures."""
        done: dict[str, Any] = json.loads(self._run(self._loading(kind, script_id, view, seconds)))
        return done

    def under_load(self, seconds: float) -> dict[str, Any]:
        """Take the first migration back to `dual_write`, and to cutover while its old view is written."""
        kind = KINDS[0]
        self.rekey("rollback", kind.script_id, "--to", "dual_write", "--writers-stopped")
        self._say(f"{WRITERS} writers for {seconds:g} s: {kind.name}")
        words = self._loading(kind.name, kind.script_id, "old", seconds)
        with subprocess.Popen(
            words, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, text=True
        ) as writing:
            time.sleep(seconds / 4)
            self.rekey("verify", kind.script_id, "--mode", "full")  # the gate asks for one with clients
            moved = self.rekey("apply", kind.script_id, "--to", "cutover", "--json")
            written, _ = writing.communicate()
        found = re.search(r'"freeze_ms": (\d+)', moved)
        return {**json.loads(written), "freeze_ms": int(found[1]) if found else None}

    def _loading(self, kind: str, script_id: str, view: str, seconds: float) -> list[str]:
        module = "benchmarks.dualwrite_load"
        return [sys.executable, "-m", module, kind, script_id, view, str(WRITERS), str(seconds)]

    def rekey(self, *words: str) -> str:
        """Run a command to its end; return what it printed."""
        self._say(f"rekey {' '.join(words)}")
        return self._run([sys.executable, "-m", "rekey", *words])

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(
            words, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def _milliseconds(taken: Mapping[str, float]) -> dict[str, float]:
    return {verb: round(1000 * seconds, 1) for verb, seconds in taken.items()}
