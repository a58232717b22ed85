"""In a whole rehearsal, which is what the demo is, no byte that anybody writes holds an old key, a secret
or an account key, but for what goes to the source table, and what the declaration copies into the target.

Every process but the table service is traced: requests, files (those that are gone at the end, too), frames
of the state file's log, command lines, output, at the loudest. Searched are the forms of
`tests/asserts/canaries.py`.

Soak: whole rehearsals.
Reason, and what `make test` covers: under a tracer system calls cost ten times as much; the tracer itself.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from rekey.rehearse.rehearsal import DEMO
from tests.acceptance.tracing import CONFIDENTIAL, Trace, traced
from tests.asserts.canaries import Canaries
from tests.worlds.example_rows import users

pytestmark = pytest.mark.azurite
ROWS = 240
SOURCE, TARGET = "tables/Users", "tables/UsersV2"
COPIED = re.compile(rb'"ContactEmail":\s*"[^"]*"')
"""What the worked example copies into the target on purpose."""


def canaries_of(folder: Path) -> tuple[Canaries, Path]:
    """Return a canary in the place of every old key, and a file of rows that have it."""
    every = Canaries.of(random.SystemRandom())
    canaries = Canaries({"old key": every.texts["row key"]})
    path = folder / "rows.jsonl"
    lines = (
        json.dumps({**row, "RowKey": f"{canaries.texts['old key']}.{number}@mail.example"}) + "\n"
        for number, row in enumerate(users(ROWS, seed=9))
    )
    path.write_text("".join(lines), "utf-8")
    return canaries, path


def check(trace: Trace, canaries: Canaries, folder: Path) -> dict[str, set[str]]:
    """Search what was written; return what was sent all the same, by whom it was sent to."""
    for written in trace.files():
        if Path(written.where).parent != folder:
            found = canaries.found_in(written.data)
            assert not found, f"{written.where} holds {found}"
    told: dict[str, set[str]] = {}
    for sent in trace.requests():
        data = COPIED.sub(b"", sent.data) if TARGET in sent.where else sent.data
        if found := canaries.found_in(data):
            told.setdefault(sent.where, set()).update(found)
    return told


@pytest.mark.soak  # minutes: under the tracer each system call costs ten times as much
@pytest.mark.parametrize("capture", ["delta", "dual-write"])
def test_nobody_but_the_source_table_is_told_an_old_key(tmp_path: Path, capture: str) -> None:
    script = tmp_path / DEMO.name
    text = DEMO.read_text("utf-8")
    script.write_text(text.replace('capture="delta"', f'capture="{capture}"'), "utf-8")
    canaries, rows = canaries_of(tmp_path)
    trace = traced(tmp_path, ["-m", "tests.acceptance.tracing", str(script), str(rows)])
    secrets = json.loads((tmp_path / CONFIDENTIAL).read_text("utf-8"))
    canaries.texts.update({f"secret {number}": text for number, text in enumerate(secrets)})
    assert len(canaries.texts) == 6, "an old key, three account keys, the ids' secret, the wrapping key"
    told = check(trace, canaries, tmp_path)
    assert told == {SOURCE: {"old key"}}, "and only there: that it is found shows that the search finds"
    tables = {sent.where for sent in trace.requests()}
    assert {"restricted/rekeymap", "restricted/rekeycontrol", TARGET} <= tables
    assert ("restricted/rekeyjournal" in tables) is (capture == "dual-write")
    logs = [written for written in trace.files() if written.data[:4] in (b"7\x7f\x06\x82", b"7\x7f\x06\x83")]
    assert max(len(log.data) for log in logs) > 100_000, "the state file's log was kept"


LEAKS = {
    "a file that is removed": "path.write_text(text); path.unlink()",
    "a file that is written over": "path.write_text(text); path.write_text('')",
    "a file that is replaced": "path.write_text(text); other.write_text(''); other.replace(path)",
    "a folder that is removed": "folder.mkdir(); (folder / 'x').write_text(text); shutil.rmtree(folder)",
    "a file without a name": "tempfile.TemporaryFile('w').write(text)",
    "a file that is left": "path.write_text(text)",
    "a command line": "subprocess.run([sys.executable, '-c', '', text])",
    "what is printed": "print(text)",
}


@pytest.mark.parametrize("code", LEAKS.values(), ids=list(LEAKS))
def test_the_tracer_finds_what_was_there_for_a_moment(
    tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the test above shows nothing."""
    canaries, _ = canaries_of(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(
        "import os, shutil, subprocess, sys, tempfile\nfrom pathlib import Path\n"
        "text = os.environ['CANARY'] + '@mail.example'\npath = Path(tempfile.gettempdir()) / 'a'\n"
        f"other, folder = path.with_name('b'), path.with_name('c')\n{code}\n",
        "utf-8",
    )
    monkeypatch.setenv("CANARY", canaries.texts["old key"])
    trace = traced(tmp_path, [str(program)])
    with pytest.raises(AssertionError, match=r"holds \{'old key'\}"):
        check(trace, canaries, tmp_path)


def test_the_tracer_finds_what_was_sent(tmp_path: Path) -> None:
    canaries, _ = canaries_of(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(
        "import socket, sys\nleft, right = socket.socketpair()\n"
        "for send in (left.send, left.sendall, lambda data: left.sendmsg([data])):\n"
        "    send(b'GET /restricted/' + sys.argv[1].encode() + b' HTTP/1.1\\r\\n\\r\\n')\n",
        "utf-8",
    )
    trace = traced(tmp_path, [str(program), canaries.texts["old key"]])
    assert len([sent for sent in trace.requests() if canaries.found_in(sent.data)]) == 3
