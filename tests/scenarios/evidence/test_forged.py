"""What somebody hands over does not vouch for itself: neither a project in a bundle, nor one beside it, nor a
statement that says another key or log; and the verdict says whose key it was, in full, and from where.

Soak: 15 of 18 depths of a document.
Reason, and what `make test` covers: three depths, the largest far beyond what Python can read.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from rekey.evidence import bag, contents, log, signing, statement
from rekey.evidence.keys import Ed25519Signer, PublicKey
from rekey.state import backend
from rekey.state.applied import SCHEMA_FOLDER
from rekey.state.store import State
from tests.asserts.command_line import Commands
from tests.asserts.every import every
from tests.soaking import others_in_soak
from tests.worlds.evidence import checked, codes, exported, forge, handed_over, key, rekey, relinked, restated
from tests.worlds.projects import CONFIG

VERIFY = ("evidence", "verify")

__all__ = ["key", "rekey"]
ROWS = 12


@pytest.fixture
def forged(rekey: Commands, key: PublicKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an auditor's folder beside a bundle whose history was written anew and signed by a forger."""
    handed_over(exported(rekey), rekey.project.folder / "evidence.pub.pem", tmp_path / "auditor", monkeypatch)
    folder = tmp_path / "auditor" / "bundle"
    lines = log.lines_of((folder / "data" / contents.EVENTS).read_bytes())
    others = [line.replace(b'"actor":"', b'"actor":"not-') for line in lines]
    forge(attacker(tmp_path), folder, log.lines_of(relinked(others)))
    return folder


def attacker(folder: Path) -> Ed25519Signer:
    path = folder / "attacker.pem"
    if not path.exists():
        signing.make_key(path)
    return signing.read_private(path)


def project_in(folder: Path, tmp_path: Path, state: str = "state.sqlite") -> None:
    """Put a project with the forger's key into a folder."""
    folder.mkdir(exist_ok=True)
    text = CONFIG.replace("state.sqlite", state) + '[evidence]\nkey_file = "evidence.pem"\n'
    (folder / "rekey.toml").write_text(text, "utf-8")
    attacker(tmp_path)
    shutil.copy(tmp_path / "attacker.pem", folder / "evidence.pem")


def everything_in(folder: Path) -> dict[str, bytes]:
    return {path.as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_project_in_a_forged_bundle_is_not_believed(
    rekey: Commands, forged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own statement names project and key. Wherever the auditor stands, and whatever way leads there."""
    project_in(forged, tmp_path)
    project_in(forged / "data", tmp_path)
    restated(forged, attacker(tmp_path))
    before = everything_in(forged)
    (tmp_path / "auditor" / "link").symlink_to(forged)
    (tmp_path / "auditor" / "linked.toml").symlink_to(forged / "rekey.toml")
    for stand, folder, *more in (
        (forged, "."),
        (forged / "data", ".."),
        (forged.parent, "bundle", "--config", "bundle/rekey.toml"),
        (forged.parent, "bundle", "--config", "link/rekey.toml"),
        (forged.parent, "link", "--config", "bundle/data/rekey.toml"),
        (forged.parent, "bundle", "--config", "linked.toml"),
    ):
        monkeypatch.chdir(stand)
        said = rekey(*VERIFY, folder, *more, code=2)
        assert "lies in the bundle" in said.err
        assert "--key FILE" in said.err
        assert "lies in the bundle" in rekey("evidence", "recompute", folder, *more, code=2).err
        public = ("--key", str(tmp_path / "attacker.pub.pem"))
        found = rekey(*VERIFY, folder, *more, *public, "--json", code=1).json
        assert {one["code"] for one in found["findings"]} == {"file-added"}
        assert "lies in the bundle" in rekey("evidence", "recompute", folder, *more, *public, code=2).err
    assert everything_in(forged) == before, "no state file was made, and none changed"


def test_a_project_by_a_forgery_is_not_believed(rekey: Commands, forged: Path, tmp_path: Path) -> None:
    """The state file that it names is none, an old one, somebody else's, or no state file at all."""
    beside = forged.parent
    schema = tmp_path / "schema"
    schema.mkdir()
    for step in SCHEMA_FOLDER.glob("state-000[12]-*.sql"):
        shutil.copy(step, schema)
    backend.prepare(beside / "old.sqlite", None, folder=schema).close()
    (beside / "strange.sqlite").write_text("x", "utf-8")
    shutil.copy(rekey.project.config.state, beside / "other.sqlite")
    unknown = "does not say that it exported this bundle"
    for name in ("none.sqlite", "old.sqlite", "other.sqlite", "strange.sqlite"):
        project_in(beside, tmp_path, name)
        before = everything_in(beside)
        for more in ((), ("--config", str(beside / "rekey.toml"))):
            said = rekey(*VERIFY, "bundle", *more, code=2)
            assert ("is no state file" if name == "strange.sqlite" else unknown) in said.err
            assert "--key FILE" in said.err
        public = ("--key", str(tmp_path / "attacker.pub.pem"))
        assert rekey(*VERIFY, "bundle", *public, "--json").json["recorded"] is False
        assert everything_in(beside) == before


def test_a_replaced_statement_is_not_believed(rekey: Commands, key: PublicKey, tmp_path: Path) -> None:
    folder = exported(rekey)
    restated(folder, attacker(tmp_path))
    said = rekey(*VERIFY, str(folder), code=2)
    assert "does not say that it exported this bundle" in said.err


def test_the_state_file_of_the_project_is_only_read_until_all_holds(rekey: Commands, key: PublicKey) -> None:
    folder = exported(rekey)
    (folder / "more").write_text("x", "utf-8")
    state = rekey.project.config.state
    before = state.read_bytes()
    state.chmod(0o400)
    rekey(*VERIFY, str(folder), code=1)
    assert state.read_bytes() == before
    assert sorted(path.name for path in state.parent.glob(f"{state.name}-*")) == []


def test_the_verdict_names_the_key_and_its_origin(
    rekey: Commands, key: PublicKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(rekey)
    own = rekey(*VERIFY, str(folder)).out
    assert f"  signed by   {key.key_id}\n" in own
    assert f"  key from    the project {rekey.project.config.path}, whose audit log says" in own
    public = rekey.project.folder / "evidence.pub.pem"
    given = rekey(*VERIFY, str(folder), "--key", str(public))
    assert f"  signed by   {key.key_id}\n  key from    the file {public}\n" in given.out
    as_json = rekey(*VERIFY, str(folder), "--key", str(public), "--json").json
    assert (as_json["key_id"], as_json["key_from"]) == (key.key_id, f"the file {public}")
    restated(folder, attacker(tmp_path))
    assert "signed by  " not in rekey(*VERIFY, str(folder), "--key", str(public), code=1).out


def test_a_lost_state_file_leaves_the_key_that_is_given(rekey: Commands, key: PublicKey) -> None:
    folder = exported(rekey)
    rekey.project.config.state.unlink()
    assert "--key FILE" in rekey(*VERIFY, str(folder), code=2).err
    public = str(rekey.project.folder / "evidence.pub.pem")
    assert rekey(*VERIFY, str(folder), "--key", public, "--json").json["recorded"] is False
    assert not rekey.project.config.state.exists()


def test_names_of_files_in_a_bundle_draw_no_verdict(rekey: Commands, key: PublicKey) -> None:
    folder = exported(rekey)
    clean = f"{folder}: everything holds"
    names = [f"\x1b[2J\x1b[H{clean}".replace("/", "|"), f"\n{clean}\n  recorded".replace("/", "|")]
    for name in (*names, "\u202eabc", os.fsdecode(b"\xff\x9b2J")):
        (folder / name).write_text("x", "utf-8")
    public = str(rekey.project.folder / "evidence.pub.pem")
    said = rekey(*VERIFY, str(folder), "--key", public, code=1)
    assert not set("\x1b\x9b\u202e\udcff") & set(said.all)
    assert "\\x1b[2J\\x1b[H" in said.out
    lines = said.out.splitlines()
    assert every(
        line.startswith(("  about ", "  signed by ", "  key from ", "  holds ", "  WRONG "))
        for line in lines[1:]
    )
    assert lines[0] == f"{folder}: NOT as it was exported"
    told = rekey(*VERIFY, str(folder), "--key", public, "--json", code=1).json
    assert f"{names[0]} does not belong to the bundle" in [one["what"] for one in told["findings"]]
    refused = rekey("evidence", "recompute", str(folder), "--key", public, code=1).err
    assert [line.partition(" ")[0] for line in refused.splitlines()] == ["rekey:", "No", "Next:"]


@pytest.mark.parametrize("depth", others_in_soak([*range(880, 1000, 7), 5000], kept=[880, 943, 5000]))
def test_a_nested_predicate_is_told_and_not_a_fault(rekey: Commands, forged: Path, depth: int) -> None:
    """Also where it can be read and hardly be printed."""
    before = statement.parsed((forged / bag.STATEMENT).read_bytes())
    nested = b'"about":' + b'{"a":' * depth + b"1" + b"}" * depth
    body = before.body.replace(b'"predicate":{', b'"predicate":{' + nested + b",")
    (forged / bag.STATEMENT).write_bytes(statement.Envelope(body).data)
    for more in ((), ("--json",)):
        rekey(*VERIFY, "bundle", "--key", "evidence.pub.pem", *more, code=1)


def test_the_right_key_finds_a_forgery(rekey: Commands, forged: Path, key: PublicKey, tmp_path: Path) -> None:
    """With his own key it is whole: only another way to the right key tells."""
    assert codes(checked(forged, key)) == {"signature", "checkpoint-key"}
    assert checked(forged, attacker(tmp_path).public).is_right
    assert json.loads((forged / "data" / contents.GATES).read_bytes()) == []
    with State.open(rekey.project.config.state, read_only=True) as state:
        assert state.audit_events()[-1].event == "evidence-exported"
