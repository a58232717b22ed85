"""docs/guides/verify-by-hand.md, typed as it stands: it accepts a right bundle and ends at every tampering.
Nothing of rekey takes part in the checking.

Soak: 14 of 21 tamperings.
Reason, and what `make test` covers: one for each step of the page;
`tests/scenarios/evidence/test_tampering.py` has all kinds.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.doctor.live.run import keep
from rekey.evidence import bag, contents, log, signing, statement
from rekey.evidence.export import export
from rekey.evidence.keys import Ed25519Signer
from rekey.state.store import State
from tests.asserts.documents import ROOT, blocks
from tests.scenarios.evidence.test_timestamp import Authority
from tests.soaking import others_in_soak
from tests.worlds.evidence import SCRIPT, P256Signer, rebagged, restated, rows, with_key
from tests.worlds.projects import USERS_SCRIPT, Project

PAGE = ROOT / "docs/guides/verify-by-hand.md"
EVENTS = f"data/{contents.EVENTS}"
TOOLS = ("openssl", "jq", "sha256sum")

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS), reason=f"{', '.join(TOOLS)} are not all here"
)


@dataclass(frozen=True)
class Made:
    """A stamped bundle beside the public key and the authority's root, as the page names them."""

    folder: Path
    signer: Ed25519Signer

    @property
    def bundle(self) -> Path:
        return self.folder / "evidence-0001"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("original")
    project = Project(folder / "project")
    project.script(USERS_SCRIPT)
    asyncio.run(project.fill("Users", rows(30)))
    with_key(project.folder)
    around = Surroundings(project.connect, project.clock, is_terminal=False)
    config = ("--config", str(project.folder / "rekey.toml"))
    assert run(["apply", "0001", *config], around) == 0
    assert run(["verify", "0001", "--mode", "sample", "--rows", "9", *config], around) == 0
    assert run(["apply", "0001", "--to", "cutover", "--writers-stopped", *config], around) == 0
    report = {"schema": 1, "endpoints": project.config.endpoints, "accounts": [], "checks": []}
    report["ended_at"] = "2026-01-31T12:00:00.0000000Z"
    keep(report, project.config, signing.read_private(project.folder / "evidence.pem"))
    authority = Authority(folder / "authority")
    with authority.serving() as url:
        words = ["evidence", "export", str(folder / "evidence-0001"), "--timestamp", url]
        assert run([*words, *config], around) == 0
    shutil.copy(project.folder / "evidence.pub.pem", folder)
    shutil.copy(authority.root, folder / "authority.pem")
    return Made(folder, signing.read_private(project.folder / "evidence.pem"))


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    shutil.copytree(original.bundle, tmp_path / "evidence-0001")
    for name in ("evidence.pub.pem", "authority.pem"):
        shutil.copy(original.folder / name, tmp_path)
    return Made(tmp_path, original.signer)


def section_of(line: int) -> str:
    """Return the number of the step that a line of the page belongs to, "0" before the first."""
    above = PAGE.read_text("utf-8").splitlines()[:line]
    headings = [text for text in above if text.startswith("## ")]
    return headings[-1].removeprefix("## ").partition(".")[0] if headings else "0"


def by_hand(folder: Path, *, stamped: bool = True) -> subprocess.CompletedProcess[str]:
    """Type the page's commands into one shell that has the tools and nothing of rekey."""
    typed = []
    for block in blocks(PAGE):
        if block.language == "sh" and (stamped or not block.info.startswith("if ")):
            typed += [f"echo '@@ {section_of(block.line)}'", block.text]
    script = folder / "typed.sh"
    script.write_text("\n".join([*typed, 'rm -r "$WORK"', "echo '@@ all'"]), "utf-8")
    return subprocess.run(
        ["sh", str(script)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def steps(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the steps that were begun."""
    return [line.removeprefix("@@ ") for line in done.stdout.splitlines() if line.startswith("@@ ")]


def test_a_right_bundle_is_accepted(made: Made) -> None:
    done = by_hand(made.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert steps(done) == [*"011234556667", "all"]
    assert f"signed by key {made.signer.public.key_id}" in done.stdout
    assert done.stdout.count("Signature Verified Successfully") == 4
    assert '"source_rows": 30' in done.stdout


def test_a_bundle_of_a_key_in_key_vault_is_accepted(tmp_path: Path) -> None:
    signer = P256Signer()
    project = Project(tmp_path / "project")
    project.script(USERS_SCRIPT)
    asyncio.run(project.fill("Users", rows(3)))
    around = Surroundings(project.connect, project.clock, is_terminal=False)
    assert run(["apply", "0001", "--config", str(project.folder / "rekey.toml")], around) == 0
    with State.open(project.config.state) as state:
        export(project.config, project.scripts[SCRIPT], state, tmp_path / "evidence-0001", signer=signer)
    (tmp_path / "evidence.pub.pem").write_bytes(signer.public.pem)
    done = by_hand(tmp_path, stamped=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Verified OK") == 2


def edit(made: Made, name: str, change: Callable[[bytes], bytes]) -> None:
    path = made.bundle / name
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before


def one_byte(made: Made) -> None:
    edit(made, "data/report.html", lambda data: data.replace(b"none differed", b"None differed"))


def bag_made_again(made: Made) -> None:
    one_byte(made)
    rebagged(made.bundle)


def file_added(made: Made) -> None:
    (made.bundle / "data/more.txt").write_text("x", "utf-8")
    rebagged(made.bundle)


def file_removed(made: Made) -> None:
    (made.bundle / "data/plan.json").unlink()
    rebagged(made.bundle)


def hidden_beside_the_statement(made: Made) -> None:
    (made.bundle / "statement.dsse.json.more").write_text("x", "utf-8")


def signed_by_another_key(made: Made) -> None:
    restated(made.bundle, Ed25519Signer(Ed25519PrivateKey.generate()))


def not_signed(made: Made) -> None:
    restated(made.bundle, None)


def events_changed(made: Made, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the log; make bag and statement again with the right key, as its holder could."""
    edit(made, EVENTS, lambda data: b"".join(line + b"\n" for line in change(log.lines_of(data))))
    restated(made.bundle, made.signer)


def event_removed(made: Made) -> None:
    events_changed(made, lambda lines: [*lines[:3], *lines[4:]])


def events_reordered(made: Made) -> None:
    events_changed(made, lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]])


def event_inserted(made: Made) -> None:
    events_changed(made, lambda lines: [*lines[:3], lines[3], *lines[3:]])


def log_cut(made: Made) -> None:
    events_changed(made, lambda lines: lines[:-2])


def last_event_changed(made: Made) -> None:
    """No later event holds its hash: only the root shows it."""
    events_changed(made, lambda lines: [*lines[:-1], lines[-1].replace(b'"actor":"', b'"actor":"X')])


def gates_rewritten(made: Made) -> None:
    edit(made, f"data/{contents.GATES}", lambda data: data.replace(b'"open":true', b'"open":false'))
    restated(made.bundle, made.signer)


def declaration_rewritten(made: Made) -> None:
    edit(made, f"data/{contents.DECLARATION}", lambda data: data.replace(b"UsersV2", b"UsersV9"))
    restated(made.bundle, made.signer)


def stamp_taken_away(made: Made) -> None:
    for name in (bag.TIMESTAMP, bag.TIMESTAMP_SIGNATURE):
        (made.bundle / name).unlink()


def project_put_in(made: Made) -> None:
    """By the holder of the key, whose statement names it."""
    (made.bundle / "rekey.toml").write_text("x", "utf-8")
    restated(made.bundle, made.signer)


def page_left_out(made: Made) -> None:
    (made.bundle / "data" / contents.REPORT).unlink()
    restated(made.bundle, made.signer)


def another_key_named(made: Made) -> None:
    restated(made.bundle, made.signer, key={"algorithm": "ed25519", "key_id": "0" * 64})


def another_log_named(made: Made) -> None:
    restated(made.bundle, made.signer, log={"name": "rekey-audit-0", "size": 1, "root": ""})


def live_by_another_key(made: Made) -> None:
    """The report of `rekey doctor --live`, in a bundle that its maker signed."""
    path = made.bundle / "data" / contents.LIVE
    report = statement.parsed(path.read_bytes()).statement(statement.LIVE_TYPE)
    stranger = Ed25519Signer(Ed25519PrivateKey.generate())
    path.write_bytes(statement.signed(report, stranger).data)
    restated(made.bundle, made.signer)


def stamp_changed(made: Made) -> None:
    edit(made, bag.TIMESTAMP, lambda data: data[:-1] + bytes([data[-1] ^ 1]))


TAMPERED = [
    (one_byte, "2"),
    (bag_made_again, "2"),
    (file_added, "2"),
    (file_removed, "2"),
    (hidden_beside_the_statement, "2"),
    (stamp_taken_away, "2"),
    (project_put_in, "2"),
    (page_left_out, "2"),
    (another_key_named, "1"),
    (another_log_named, "5"),
    (signed_by_another_key, "1"),
    (not_signed, "1"),
    (event_removed, "4"),
    (events_reordered, "4"),
    (event_inserted, "4"),
    (log_cut, "5"),
    (last_event_changed, "5"),
    (gates_rewritten, "6"),
    (declaration_rewritten, "6"),
    (live_by_another_key, "6"),
    (stamp_changed, "7"),
]
ONE_OF_EACH_STEP = [
    (one_byte, "2"),
    (signed_by_another_key, "1"),
    (event_removed, "4"),
    (log_cut, "5"),
    (gates_rewritten, "6"),
    (live_by_another_key, "6"),
    (stamp_changed, "7"),
]


@pytest.mark.parametrize(("tamper", "ends_at"), others_in_soak(TAMPERED, kept=ONE_OF_EACH_STEP))
def test_every_tampering_ends_it(made: Made, tamper: Callable[[Made], None], ends_at: str) -> None:
    tamper(made)
    done = by_hand(made.folder)
    assert done.returncode != 0
    assert steps(done)[-1] == ends_at


def test_the_page_needs_no_other_program() -> None:
    """Beside openssl, jq and sha256sum: what every POSIX shell has."""
    usual = "cat cd cmp cp cut echo find grep head ls mkdir mktemp mv printf read sed set sort tail test wc"
    words = "case done do else esac fi for if then while"
    typed = "\n".join(block.text for block in blocks(PAGE) if block.language == "sh")
    bare = re.sub(r"\$\(|[{(;|]|&&", "\n", re.sub(r"'[^']*'", "", typed))
    first = {line.strip().partition(" ")[0] for line in bare.splitlines()}
    named = {word for word in first if word.isalnum() and word.islower()}
    assert named & set(TOOLS) == set(TOOLS)
    assert named - set(TOOLS) - set(usual.split()) - set(words.split()) == set()
