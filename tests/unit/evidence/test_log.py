"""The tree over the audit log is RFC 6962's, its checkpoints are signed notes, and a log that was cut off,
rewritten or put together is found by the checkpoints over it."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rekey.core.progress import Progress
from rekey.errors import ConfigurationError, Unavailable
from rekey.evidence import keys, log, merkle, note, signing
from rekey.state import audit, backend
from rekey.state.applied import SCHEMA_FOLDER
from rekey.state.audit import AuditEvent
from rekey.state.store import State
from tests.asserts.every import every
from tests.worlds.evidence import P256Signer

# The leaves and roots that implementations of Certificate Transparency are tested with.
LEAVES = [b"", b"\0", b"\x10", b"\x20\x21", b"\x30\x31", b"\x40\x41\x42\x43", bytes(range(0x50, 0x58))]
LEAVES.append(bytes(range(0x60, 0x70)))
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


@pytest.fixture
def signer() -> keys.Ed25519Signer:
    return keys.Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
def state(path: Path) -> Iterator[State]:
    with State.open(path) as opened:
        yield opened


# --- events -----------------------------------------------------------------------------------------------


def test_an_event_says_who_where_and_by_which_command(state: State) -> None:
    token = audit.COMMAND.set("rekey apply --to=cutover")
    try:
        event = state.audit("x", "0001", {})
    finally:
        audit.COMMAND.reset(token)
    again = state.audit("y", "0001", {})
    assert (event.command, again.command) == ("rekey apply --to=cutover", None)
    assert event.host == audit.current_host()
    assert json.loads(event.line) | {"hash": event.hash} == {
        one.name: getattr(event, one.name) for one in fields(AuditEvent)
    }


def test_an_event_is_rfc_8785_and_its_hash_is_that_of_its_line(state: State) -> None:
    details = {"z": 1.0, "a": 2**60, "é": 1e-7, "\U0001f600": 1, "ﬀ": -0.0, "lone": "\ud800"}
    event = state.audit("x", None, details)
    line = event.line.decode()
    assert event.line == rfc8785.dumps(json.loads(line))
    assert (
        '"details":{"a":"1152921504606846976","lone":"\\\\ud800","z":1,"é":1e-7,"\U0001f600":1,"ﬀ":0}' in line
    )
    assert event.hash == hashlib.sha256(event.line).hexdigest()
    assert state.audit_events() == [event]


def test_a_chain_of_the_first_format_is_read_and_goes_on(path: Path, tmp_path: Path) -> None:
    """A state file of before: its events have no host and no command, and hash as they did."""
    prev = "0" * 64
    before = tmp_path / "schema"
    before.mkdir()
    for step in SCHEMA_FOLDER.glob("state-000[12]-*.sql"):
        shutil.copy(step, before)
    backend.prepare(path, None, folder=before).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for seq in (1, 2):
            event = {"seq": seq, "at": "2024", "actor": "a", "event": "e", "script_id": None}
            event |= {"details": {"share": 1.0}, "prev": prev}
            text = json.dumps(event, sort_keys=True, separators=(",", ":"))
            prev = hashlib.sha256(text.encode()).hexdigest()
            connection.execute(
                "INSERT INTO audit_event VALUES (?, '2024', 'a', 'e', NULL, '{\"share\":1.0}', ?, ?)",
                (seq, event["prev"], prev),
            )
    with State.open(path) as state:
        assert state.check_chain() is None
        added = state.audit("x", None, {})
        assert [event.format for event in state.audit_events()] == [1, 1, 2]
        assert added.prev == prev
        assert state.check_chain() is None


def test_changes_of_host_command_and_format_are_found(state: State, path: Path) -> None:
    state.audit("x", None, {})
    for change in ("host = 'other'", "command = 'rekey verify'", "format = 1", "format = 1, host = NULL"):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("DROP TRIGGER IF EXISTS audit_event_is_never_changed")
            before = connection.execute("SELECT format, host, command FROM audit_event").fetchone()
            connection.execute(f"UPDATE audit_event SET {change}")
        assert state.check_chain() == 1, change
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE audit_event SET format = ?, host = ?, command = ?", before)
    assert state.check_chain() is None


# --- the tree ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(9))
def test_roots_are_those_of_certificate_transparency(size: int) -> None:
    assert merkle.root([merkle.leaf_hash(leaf) for leaf in LEAVES[:size]]).hex() == ROOTS[size]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 31, 32, 33])
def test_the_root_over_the_first_leaves_is_that_of_a_tree_of_them(size: int) -> None:
    leaves = [merkle.leaf_hash(bytes([number])) for number in range(40)]
    assert merkle.root_of_first(merkle.levels_of(leaves), size) == merkle.root(leaves[:size])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 31, 32, 33])
def test_every_leaf_is_proved_where_it_is_and_nowhere_else(size: int) -> None:
    leaves = [merkle.leaf_hash(bytes([number])) for number in range(size)]
    root = merkle.root(leaves)
    proofs = merkle.inclusion_proofs(leaves, range(size))
    for index, proof in enumerate(proofs):
        for claimed in range(size):
            assert merkle.is_included(leaves[index], claimed, size, proof, root) == (claimed == index)
        assert not merkle.is_included(leaves[index], index, size, [*proof, root], root)
        assert not proof or not merkle.is_included(leaves[index], index, size, proof[:-1], root)
    assert not merkle.is_included(leaves[0], size, size, proofs[0], root)


# --- notes ------------------------------------------------------------------------------------------------


def test_a_key_is_named_in_a_note_as_the_specification_says() -> None:
    """The key is the first of RFC 8032, section 7.1."""
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    key = keys.PublicKey(Ed25519PrivateKey.from_private_bytes(RFC_8032_SECRET).public_key())
    name = "example.com/foo"
    assert key.note_id(name) == hashlib.sha256(name.encode() + b"\n\x01" + public).digest()[:4]


RFC_8032_SECRET = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")


def test_a_note_is_read_as_it_was_written_and_in_no_other_form(signer: keys.Ed25519Signer) -> None:
    checkpoint = note.Checkpoint("rekey-audit-0123456789abcdef", 7, hashlib.sha256(b"x").digest())
    made = note.signed(checkpoint, signer)
    assert note.parsed(made.text) == made
    assert made.is_by(signer.public)
    body, _, last = made.text.partition("\n\n")
    assert body.split("\n") == [checkpoint.log, "7", base64.b64encode(checkpoint.root).decode()]
    assert last.startswith(f"— {checkpoint.log} ")
    data = made.text.encode()
    for at in range(len(data)):
        for changed in (bytes([data[at] ^ 1]), b"", data[at : at + 1] + b" "):
            try:
                found = note.parsed((data[:at] + changed + data[at + 1 :]).decode())
            except (ValueError, UnicodeDecodeError):
                continue
            assert not found.is_by(signer.public), at


def test_a_note_of_a_p_256_key_is_by_that_key_alone() -> None:
    signer = P256Signer()
    key = signer.public
    checkpoint = note.Checkpoint("log", 1, bytes(32))
    made = note.signed(checkpoint, signer)
    assert note.parsed(made.text).is_by(key)
    assert made.key_id == hashlib.sha256(key.spki).digest()[:4]
    other = keys.PublicKey(ec.generate_private_key(ec.SECP256R1()).public_key())
    assert not made.is_by(other)


def test_an_unsigned_note_is_by_nobody(signer: keys.Ed25519Signer) -> None:
    bare = note.Note(note.Checkpoint("log", 1, bytes(32)))
    assert note.parsed(bare.text) == bare
    assert not bare.is_signed
    assert not bare.is_by(signer.public)


# --- checkpoints over a state file --------------------------------------------------------------------------


def filled(state: State, signer: keys.Signer | None = None) -> None:
    for number in range(6):
        state.audit(f"event-{number}", None, {})
        if number in (2, 5):
            assert log.make_checkpoint(state, signer, f"after {number}", Progress()) is not None


def problems(state: State) -> list[str]:
    return log.problems_of(state.audit_events(), state.checkpoints())


def test_checkpoints_cover_the_log_as_it_grows(state: State, signer: keys.Ed25519Signer) -> None:
    filled(state, signer)
    assert problems(state) == []
    first, last = state.checkpoints()
    assert (first.size, first.remark, last.size) == (3, "after 2", 6)
    assert note.parsed(last.note).is_by(signer.public)
    lines = [merkle.leaf_hash(event.line) for event in state.audit_events()]
    assert note.parsed(last.note).checkpoint.root == merkle.root(lines)


def test_without_a_key_a_checkpoint_says_that_nobody_signed_it(state: State) -> None:
    filled(state)
    assert every("not signed: no key is configured" in one.remark for one in state.checkpoints())
    assert not note.parsed(state.checkpoints()[0].note).is_signed


def test_an_unsigned_checkpoint_has_the_reason(state: State, signer: keys.Ed25519Signer) -> None:
    class Away(keys.Ed25519Signer):
        def sign(self, data: bytes) -> bytes:
            raise Unavailable("away", code="x", status=503, hint="later")

    filled(state, Away(signer.private))
    assert [one.remark for one in state.checkpoints()] == [
        f"after {number}; not signed: Unavailable" for number in (2, 5)
    ]


def rebuilt(path: Path, keep: list[int]) -> None:
    """Write the chain anew with some of its events, so that it holds together by itself."""
    with State.open(path) as state:
        events = [state.audit_events()[number] for number in keep]
    last: AuditEvent | None = None
    chain = []
    for event in events:
        prev = audit.FIRST_PREV if last is None else last.hash
        bare = replace(event, seq=len(chain) + 1, prev=prev, hash="")
        last = replace(bare, hash=bare.computed_hash())
        chain.append(last)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER audit_event_is_never_removed")
        connection.execute("DELETE FROM audit_event")
        for one in chain:
            connection.execute(
                "INSERT INTO audit_event VALUES (?, ?, ?, ?, NULL, '{}', ?, ?, 2, ?, NULL)",
                (one.seq, one.at, one.actor, one.event, one.prev, one.hash, one.host),
            )


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ([0, 1, 2, 3], "ends at event 4, a checkpoint covers 6"),
        ([1, 2, 3, 4, 5], "the first 3 events are not those"),
        ([0, 2, 1, 3, 4, 5], "the first 3 events are not those"),
        ([0, 1, 2, 3, 3, 4, 5], "the first 6 events are not those"),
        ([0, 1, 2, 3, 5, 4], "the first 6 events are not those"),
    ],
)
def test_a_log_that_was_written_anew_is_found(path: Path, keep: list[int], said: str) -> None:
    with State.open(path) as state:
        filled(state)
    rebuilt(path, keep)
    with State.open(path) as state:
        assert state.check_chain() is None
        assert any(said in one for one in problems(state))
        made = log.make_checkpoint(state, None, "later", Progress())
        assert made is None, "nothing is signed over such a log"


def test_the_database_refuses_to_change_or_remove_a_checkpoint(state: State, path: Path) -> None:
    filled(state)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("UPDATE audit_checkpoint SET note = 'x'", "DELETE FROM audit_checkpoint"):
            with pytest.raises(sqlite3.IntegrityError, match="only ever added"):
                connection.execute(statement)


# --- keys -------------------------------------------------------------------------------------------------


def test_a_key_is_made_once_and_its_private_half_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "evidence.pem"
    made = signing.make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    read = signing.read_private(path)
    assert read.public.key_id == made.key_id == signing.read_public(tmp_path / "evidence.pub.pem").key_id
    assert made.verifies(read.sign(b"x"), b"x")
    assert not made.verifies(read.sign(b"x"), b"y")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="already"):
        signing.make_key(path)
    path.unlink()
    with pytest.raises(ConfigurationError, match="already"):
        signing.make_key(path)
    assert not path.exists()
    assert b"PRIVATE" in before
    assert "private" not in repr(read)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"", "not a private key"),
        (b"-----BEGIN PRIVATE KEY-----\nx\n", "not a private"),
    ],
)
def test_an_unusable_private_key_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "evidence.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said) as error:
        signing.read_private(path)
    assert "keygen" in error.value.hint


def test_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP384R1())
    pem = signing.serialization
    path = tmp_path / "key.pem"
    shape = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8)
    path.write_bytes(private.private_bytes(*shape, pem.NoEncryption()))
    with pytest.raises(ConfigurationError, match="not an Ed25519 key"):
        signing.read_private(path)
    path.write_bytes(private.private_bytes(*shape, pem.BestAvailableEncryption(b"x")))
    with pytest.raises(ConfigurationError, match="is encrypted"):
        signing.read_private(path)
    path.write_bytes(keys.PublicKey(private.public_key()).pem)
    with pytest.raises(ConfigurationError, match="neither an Ed25519 nor a P-256 key"):
        signing.read_public(path)
    path.write_bytes(b"x")
    with pytest.raises(ConfigurationError, match="not a public key"):
        signing.read_public(path)
