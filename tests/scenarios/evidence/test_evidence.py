"""A bundle of evidence holds what an auditor asks for, and is refused where it would not be true."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from rekey.errors import Unavailable
from rekey.evidence import bag, contents, log, merkle, note, signing, statement
from rekey.evidence.export import export
from rekey.evidence.keys import Ed25519Signer, PublicKey
from rekey.state.store import State
from tests.asserts.command_line import Commands
from tests.worlds.evidence import (
    SCRIPT,
    TO_CUTOVER,
    P256Signer,
    checked,
    codes,
    exported,
    handed_over,
    key,
    rekey,
    restated,
    signer_of,
)
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT

EVENTS = f"data/{contents.EVENTS}"
CHECKPOINT = f"data/{contents.CHECKPOINT}"

__all__ = ["key", "rekey"]
ROWS = 40


def read(folder: Path, name: str) -> bytes:
    return (folder / "data" / name).read_bytes()


# --- what a bundle holds ------------------------------------------------------------------------------------


def test_a_bundle_holds_what_an_auditor_asks_for(rekey: Commands, key: PublicKey) -> None:
    rekey("verify", "0001", "--mode", "sample", "--rows", "20", "--seed", "77")
    rekey(*TO_CUTOVER)
    folder = exported(rekey)
    declared = rekey.project.scripts[SCRIPT]
    assert hashlib.sha256(read(folder, contents.DECLARATION)).hexdigest() == declared.digest
    assert read(folder, contents.SCRIPT) == declared.path.read_bytes()
    assert json.loads(read(folder, contents.PLAN))["plan"]["migrations"][0]["script_id"] == SCRIPT
    modes = [one["mode"] for one in json.loads(read(folder, contents.RECONCILIATION))]
    assert modes == ["full", "sample", "full"]
    sample, full = json.loads(read(folder, contents.RECONCILIATION))[1:]
    assert sample["seed"] == 77
    assert len(full["tables"][0]["actual_digest"]) == 64
    [gate] = json.loads(read(folder, contents.GATES))
    assert (gate["phase"], gate["open"]) == ("cutover", True)
    state = json.loads(read(folder, contents.STATE))
    assert state["phases"][-1] == "cutover"
    assert state["segments"][0]["rows"] == 40
    assert json.loads(read(folder, contents.VERSIONS))["rekey"]
    events = log.read_events(read(folder, contents.EVENTS))
    assert events[-1]["event"] == "evidence-export"
    assert note.parsed(read(folder, contents.CHECKPOINT).decode()).is_by(key)
    assert bag.bag_problem(folder) == ""
    stated = statement.parsed((folder / bag.STATEMENT).read_bytes()).statement()
    assert set(stated.digests) == set(bag.names(folder)) - {bag.STATEMENT}
    assert stated.predicate["script_id"] == SCRIPT
    assert stated.predicate["key"] == {"algorithm": "ed25519", "key_id": key.key_id}


def test_verifying_a_right_bundle_is_recorded(rekey: Commands, key: PublicKey) -> None:
    folder = exported(rekey)
    said = rekey("evidence", "verify", str(folder), "--json").json
    assert said["right"] is True
    assert said["findings"] == []
    assert said["recorded"] is True
    assert said["key_id"] == key.key_id
    with State.open(rekey.project.config.state, read_only=True) as state:
        exports, verified = state.audit_events()[-2:]
    assert (exports.event, verified.event) == ("evidence-exported", "evidence-verified")
    assert verified.details["exported"] == exports.seq
    assert verified.details["statement_sha256"] == exports.details["statement_sha256"]


def test_an_auditor_needs_the_bundle_and_the_public_key_alone(
    rekey: Commands, key: PublicKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(rekey)
    handed_over(folder, rekey.project.folder / "evidence.pub.pem", tmp_path / "auditor", monkeypatch)
    assert "evidence.pub.pem" not in "".join(bag.names(folder)), "the key does not come with the bundle"
    said = rekey("evidence", "verify", "bundle", "--key", "evidence.pub.pem", "--json").json
    assert (said["right"], said["recorded"]) == (True, False)
    said_too = rekey("evidence", "verify", "bundle", code=2)
    assert "--key FILE" in said_too.err


def test_another_reader_of_dsse_accepts_the_envelope(rekey: Commands, key: PublicKey) -> None:
    """securesystemslib, which in-toto and TUF are built on, shares no code with ours."""
    folder = exported(rekey)
    envelope = Envelope.from_dict(json.loads((folder / bag.STATEMENT).read_bytes()))
    theirs = SSlibKey.from_crypto(key.key, keyid=key.key_id)
    assert list(envelope.verify([theirs], 1)) == [key.key_id]
    other = Ed25519PrivateKey.generate().public_key()
    with pytest.raises(VerificationError):
        envelope.verify([SSlibKey.from_crypto(other, keyid=key.key_id)], 1)


def test_one_event_can_be_shown_without_the_others(rekey: Commands, key: PublicKey) -> None:
    """An inclusion proof leads from an event's line to the root that the checkpoint signs."""
    folder = exported(rekey)
    lines = log.lines_of(read(folder, contents.EVENTS))
    proofs = json.loads(read(folder, contents.PROOFS))
    assert len(proofs["proofs"]) == len(lines)
    for one in proofs["proofs"]:
        path = [base64.b64decode(step) for step in one["path"]]
        leaf = merkle.leaf_hash(lines[one["seq"] - 1])
        root = base64.b64decode(proofs["root"])
        assert merkle.is_included(leaf, one["seq"] - 1, proofs["size"], path, root)


def test_two_migrations_have_bundles_of_their_own(rekey: Commands, key: PublicKey) -> None:
    rekey.project.script(POSTS_SCRIPT, "0002_posts.py")
    post = {"PartitionKey": "b", "RowKey": "r", "Month": "2024-01", "Tags": "a,b", "Title": "t"}
    asyncio.run(rekey.project.fill("Posts", [post]))
    rekey("apply", "0002")
    for name in ("0001_users", "0002_posts"):
        folder = rekey.project.folder / name
        rekey("evidence", "export", str(folder), name)
        verdict = checked(folder, key)
        assert verdict.is_right
        assert verdict.predicate["script_id"] == name
        about = {one["phase"] for one in json.loads(read(folder, contents.STATE))["phase_runs"]}
        assert about == {"prepare", "dual_write", "backfill", "reconcile"}


def test_without_a_key_the_bundle_says_that_nobody_signed_it(rekey: Commands) -> None:
    rekey("apply", "0001")
    folder = rekey.project.folder / "bundle"
    said = rekey("evidence", "export", str(folder))
    assert "not signed" in said.out
    assert "keygen" in said.err
    assert b"This is not signed" in read(folder, contents.REPORT)
    verdict = checked(folder)
    assert codes(verdict) == {"unsigned"}
    assert any("checkpoints cover" in one for one in verdict.checked)
    key_file = rekey.project.folder / "k.pem"
    signing.make_key(key_file)
    public = str(signing.public_path(key_file))
    assert (
        "the statement is not signed" in rekey("evidence", "verify", str(folder), "--key", public, code=1).out
    )


def test_a_key_in_key_vault_signs_bundles_too(rekey: Commands) -> None:
    """What Key Vault does on the wire is shown in tests/unit/evidence/test_keyvault.py."""
    signer = P256Signer()
    rekey("apply", "0001")
    folder = rekey.project.folder / "bundle"
    with State.open(rekey.project.config.state) as state:
        export(rekey.project.config, rekey.project.scripts[SCRIPT], state, folder, signer=signer)
    assert checked(folder, signer.public).is_right
    assert codes(checked(folder)) == {"signature", "checkpoint-key"}


def test_findings_are_told_with_exit_code_1(rekey: Commands, key: PublicKey) -> None:
    folder = exported(rekey)
    restated(folder, Ed25519Signer(Ed25519PrivateKey.generate()))
    words = ("evidence", "verify", str(folder), "--key", str(rekey.project.folder / "evidence.pub.pem"))
    assert "not signed by a key" in rekey(*words, code=1).out
    said = rekey(*words, "--json", code=1).json
    assert [one["code"] for one in said["findings"]] == ["signature"]
    assert said["recorded"] is False
    with State.open(rekey.project.config.state, read_only=True) as state:
        assert state.audit_events()[-1].event == "evidence-exported"


def test_a_key_is_made_and_it_is_said_where_to_name_it(rekey: Commands) -> None:
    path = rekey.project.folder / "made.pem"
    said = rekey("evidence", "keygen", str(path))
    assert "[evidence]" in said.out
    assert str(path) in said.out
    assert "PRIVATE" not in said.all
    again = rekey("evidence", "keygen", str(path), code=2)
    assert "already" in again.err
    other = rekey("evidence", "keygen", str(path.with_name("other.pem")), "--json").json
    assert other["key_id"] == signing.read_public(Path(other["public_key_file"])).key_id


# --- what is refused ----------------------------------------------------------------------------------------


def test_a_folder_that_holds_something_is_never_written_to(rekey: Commands, key: PublicKey) -> None:
    folder = rekey.project.folder / "bundle"
    folder.mkdir()
    rekey("evidence", "export", str(folder))
    before = bag.digests(folder)
    said = rekey("evidence", "export", str(folder), code=3)
    assert "not an empty folder" in said.err
    assert bag.digests(folder) == before
    assert [path.name for path in folder.parent.glob("*unfinished*")] == []


def test_a_log_that_does_not_hold_together_is_not_exported(rekey: Commands, key: PublicKey) -> None:
    with closing(sqlite3.connect(rekey.project.config.state, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER audit_event_is_never_removed")
        connection.execute("DELETE FROM audit_event WHERE seq = (SELECT max(seq) FROM audit_event)")
    said = rekey("evidence", "export", str(rekey.project.folder / "bundle"), code=1)
    assert "a checkpoint covers" in said.err
    assert not (rekey.project.folder / "bundle").exists()


def test_a_migration_that_has_not_begun_has_nothing_to_show(rekey: Commands) -> None:
    said = rekey("evidence", "export", str(rekey.project.folder / "bundle"), "0001", code=3)
    assert "has not begun" in said.err


def test_a_script_that_was_edited_is_not_shown_as_what_was_done(rekey: Commands, key: PublicKey) -> None:
    rekey.project.script(USERS_SCRIPT.replace('props.drop("Ssn")', ""))
    said = rekey("evidence", "export", str(rekey.project.folder / "bundle"), "0001", code=3)
    assert "was edited" in said.err


@pytest.mark.parametrize(
    "line",
    [
        "# 0123456789abcdef0123456789abcdef",
        f"# {b'0123456789abcdef0123456789abcdef'.hex()}",
        f"# {base64.b64encode(b'ab0123456789abcdef0123456789abcdefcd').decode()}",
        "# DefaultEndpointsProtocol=https;AccountName=a;AccountKey=" + "A" * 86 + "==",
        "# https://a.table.core.windows.net/?sv=1&sig=" + "B" * 43,
    ],
)
def test_a_script_with_a_secret_is_not_exported(rekey: Commands, key: PublicKey, line: str) -> None:
    rekey.project.script(f"{USERS_SCRIPT}\n{line}\n")
    said = rekey("evidence", "export", str(rekey.project.folder / "bundle"), code=1)
    assert "script.py" in said.err
    assert line.partition("=")[2] not in said.err or "=" not in line
    assert "0123456789abcdef" not in said.all
    assert not (rekey.project.folder / "bundle").exists()


def test_a_script_with_a_previous_wrapping_key_is_not_exported(rekey: Commands, key: PublicKey) -> None:
    before = "a wrapping key of before, long enough"
    (rekey.project.folder / "old.key").write_text(before, "utf-8")
    config = rekey.project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8") + '[sealing.previous]\nfile = "old.key"\n', "utf-8")
    rekey.project.script(f"{USERS_SCRIPT}\n# {before}\n")
    said = rekey("evidence", "export", str(rekey.project.folder / "bundle"), code=1)
    assert "script.py" in said.err
    assert before not in said.all


def test_a_key_that_fails_leaves_no_half_a_bundle(rekey: Commands, key: PublicKey) -> None:
    class Failing:
        def __init__(self, fails_at: int) -> None:
            self.public, self._left = key, fails_at

        def sign(self, data: bytes) -> bytes:
            self._left -= 1
            if self._left < 0:
                raise Unavailable("away", code="x", status=503, hint="later")
            return signer_of(rekey).sign(data)

    folder = rekey.project.folder / "bundle"
    for fails_at in (0, 1):
        with State.open(rekey.project.config.state) as state, pytest.raises(Unavailable):
            declared = rekey.project.scripts[SCRIPT]
            export(rekey.project.config, declared, state, folder, signer=Failing(fails_at))
        assert [path.name for path in folder.parent.glob("*bundle*")] == []
    assert checked(exported(rekey), key).is_right
