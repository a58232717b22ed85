"""A rehearsal under a tracer, as a process of its own, and what it wrote.

    python -m tests.acceptance.tracing SCRIPT.py ROWS.jsonl

Rules kept here:

* What is traced is the rehearsal as `make demo` carries it out, each command as loud as it can be: every
  process of it, but for the table service.
* The state file's write-ahead log is kept whole: a reader that began before the first checkpoint is a reason
  for SQLite to let all frames stand. So pages that were written over are searched, too.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rekey.rehearse.project import Project, Running
from rekey.rehearse.rehearsal import rehearse
from rekey.rehearse.report import WithOutput

ROOT = Path(__file__).parents[2]
LOUD = ("-vv", "--debug")
CONFIDENTIAL = "confidential.json"
"""Where the rehearsal's keys and secrets are told to whoever searches, beside the rows."""
_HAS_A_LOG = bytes((2, 2))
"""In the header of a SQLite file: read and written by way of a write-ahead log."""
_TRACER = Path(__file__).parent / "tracer"
_REQUEST = re.compile(rb"(?:GET|POST|PUT|DELETE|MERGE|PATCH) /([a-z]+)/\S* HTTP/1\.1\r\n")
_INNER = re.compile(rb"(?:GET|POST|PUT|DELETE|MERGE|PATCH) http://\S+?/([a-z]+/\w+)")


@dataclass(frozen=True)
class Written:
    """Something that was written.

    Attributes:
        where: to whom, or in which file.
        data: what.
    """

    where: str
    data: bytes


class Trace:
    """What the processes of one run wrote."""

    def __init__(self, folder: Path, output: bytes) -> None:
        self._folder = folder
        self._output = output

    def files(self) -> Iterator[Written]:
        """Yield every file that was written, as it was when it was removed or written over, or at the end;
        command lines, and what was printed."""
        yield Written("standard output and error", self._output)
        for path in sorted((self._folder / "kept").rglob("*")):
            if path.is_file():
                yield Written(f"kept {path.relative_to(self._folder / 'kept')}", path.read_bytes())
        for what, *texts in self._noted():
            if what == "argv":
                yield Written("a command line", "\0".join(texts).encode())
            elif Path(texts[0]).is_file():
                yield Written(texts[0], Path(texts[0]).read_bytes())

    def requests(self) -> Iterator[Written]:
        """Yield every request, with the account and the tables it is about."""
        for path in sorted((self._folder / "sent").iterdir()):
            sent = path.read_bytes().strip(b"\0")  # with which an event loop wakes itself
            starts = [found.start() for found in _REQUEST.finditer(sent)]
            assert sent == b"" or starts[:1] == [0], f"what was sent to {path.name} is no request"
            for start, end in pairwise([*starts, len(sent)]):
                yield Written(_about(sent[start:end]), sent[start:end])

    def _noted(self) -> Iterator[list[str]]:
        for path in sorted((self._folder / "noted").iterdir()):
            yield from (json.loads(line) for line in path.read_text("utf-8").splitlines())


def _about(request: bytes) -> str:
    """Return account and table of a request; of a batch, those of its operations."""
    target = request.split(b" ", 2)[1].decode()
    if "/$batch" in target:
        return ",".join(sorted({found.decode() for found in _INNER.findall(request)}))
    return re.sub(r"[(?].*", "", target).strip("/")


def traced(folder: Path, words: list[str]) -> Trace:
    """Run a Python program under the tracer and return what it wrote. It must end well."""
    temporary = folder / "temporary"
    temporary.mkdir()
    paths = os.pathsep.join((str(_TRACER), str(ROOT)))
    stop = threading.Event()
    reader = threading.Thread(target=_hold, args=(temporary, stop))
    reader.start()
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "REKEY_TRACE": str(folder / "trace"),
                "TMPDIR": str(temporary),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    finally:
        stop.set()
        reader.join()
    assert done.returncode == 0, done.stdout.decode()[-3000:]
    return Trace(folder / "trace", done.stdout)


def _hold(folder: Path, stop: threading.Event) -> None:
    """Read the state file of the run from its beginning to its end, in one transaction."""
    while not stop.wait(0.005):
        for path in folder.glob("**/state.sqlite"):
            if path.read_bytes()[18:20] != _HAS_A_LOG:  # a reader would keep it from getting one
                continue
            with suppress(sqlite3.Error):
                held = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
                held.execute("BEGIN")
                held.execute("SELECT count(*) FROM sqlite_master").fetchone()
                stop.wait()
                held.close()
                return


def main(script: str, data: str) -> int:
    """Carry out the rehearsal that `make demo` is, with given rows and loud commands."""
    start = Project.start

    def loud(self: Project, *words: str) -> Running:
        told = Path(data).with_name(CONFIDENTIAL)
        if not told.exists():
            told.write_text(json.dumps(self.confidential), "utf-8")
        return start(self, *words, *LOUD)

    Project.start = loud  # type: ignore[method-assign]
    report = rehearse(
        Path(script), data=Path(data), narrator=WithOutput(print), folder=Path(tempfile.gettempdir())
    )
    print(report.text())
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
