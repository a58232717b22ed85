"""Every tampering with a bundle is found: by the statement and, where somebody signs again, by the log.

Soak: 4 of 6 depths of each document.
Reason, and what `make test` covers: 600, and beyond all bounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.errors import ConfigurationError
from rekey.evidence import bag, contents, log, merkle, note, signing, statement
from rekey.evidence.keys import Ed25519Signer, PublicKey
from tests.soaking import others_in_soak
from tests.worlds.evidence import SCRIPT, checked, codes, forge, rebagged, relinked, restated, rows, with_key
from tests.worlds.projects import USERS_SCRIPT, Project

EVENTS = f"data/{contents.EVENTS}"
CHECKPOINT = f"data/{contents.CHECKPOINT}"


@dataclass(frozen=True)
class Made:
    """A bundle of this test's own, the one exported before it, and the key that signed both."""

    folder: Path
    before: Path
    signer: Ed25519Signer

    @property
    def key(self) -> PublicKey:
        return self.signer.public


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two bundles, exported one after the other behind a closed gate; to be copied, not changed."""
    project = Project(tmp_path_factory.mktemp("original"))
    project.script(USERS_SCRIPT)
    asyncio.run(project.fill("Users", rows(40)))
    with_key(project.folder)
    around = Surroundings(project.connect, project.clock, is_terminal=False)
    config = ("--config", str(project.folder / "rekey.toml"))
    assert run(["apply", "0001", *config], around) == 0
    assert run(["apply", "0001", "--to", "cutover", *config], around) == 3
    for name in ("before", "bundle"):
        assert run(["evidence", "export", str(project.folder / name), *config], around) == 0
    signer = signing.read_private(project.folder / "evidence.pem")
    return Made(project.folder / "bundle", project.folder / "before", signer)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    shutil.copytree(original.folder, tmp_path / "bundle")
    return Made(tmp_path / "bundle", original.before, original.signer)


def test_one_byte_in_any_file_is_found(made: Made) -> None:
    """Changed, removed or added: at the beginning, at the end, and at places in between."""
    folder = made.folder
    lot = random.Random(20)
    for name in bag.names(folder):
        path = folder / name
        data = path.read_bytes()
        for at in {0, len(data) - 1, *lot.sample(range(len(data)), 2)}:
            for middle in (bytes([data[at] ^ (1 << lot.randrange(8))]), b"", data[at : at + 1] * 2):
                path.write_bytes(data[:at] + middle + data[at + 1 :])
                assert not checked(folder, made.key).is_right, (name, at, middle)
        path.write_bytes(data)
    assert checked(folder, made.key).is_right


def test_every_single_byte_of_the_signed_statement_counts(made: Made) -> None:
    data = (made.folder / bag.STATEMENT).read_bytes()
    for at in range(len(data)):
        try:
            found = statement.parsed(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        except ValueError:
            continue
        assert not found.is_by(made.key), at


def removed(lines: list[bytes]) -> bytes:
    return b"\n".join([*lines[:3], *lines[4:], b""])


def reordered(lines: list[bytes]) -> bytes:
    return b"\n".join([*lines[:3], lines[4], lines[3], *lines[5:], b""])


def inserted(lines: list[bytes]) -> bytes:
    return b"\n".join([*lines[:3], lines[2], *lines[3:], b""])


def changed(lines: list[bytes]) -> bytes:
    return b"\n".join([*lines[:3], lines[3].replace(b'"actor":"', b'"actor":"not-'), *lines[4:], b""])


def cut(lines: list[bytes]) -> bytes:
    return b"\n".join([*lines[:-2], b""])


@pytest.mark.parametrize("tamper", [removed, reordered, inserted, changed])
def test_a_tampered_log_is_found_by_the_chain(made: Made, tamper: Callable[[list[bytes]], bytes]) -> None:
    """Also by whoever holds the key: bag and statement are made again, with the right signature."""
    folder = made.folder
    path = folder / EVENTS
    path.write_bytes(tamper(log.lines_of(path.read_bytes())))
    assert {"file-altered", "chain"} <= codes(checked(folder, made.key))
    rebagged(folder)
    assert "file-altered" in codes(checked(folder, made.key))
    restated(folder, made.signer)
    found = codes(checked(folder, made.key))
    assert "chain" in found
    assert not found & {"file-altered", "signature", "bag"}


@pytest.mark.parametrize("tamper", [removed, reordered, inserted, changed])
def test_checkpoints_find_a_relinked_log(made: Made, tamper: Callable[[list[bytes]], bytes]) -> None:
    folder = made.folder
    path = folder / EVENTS
    path.write_bytes(relinked(log.lines_of(tamper(log.lines_of(path.read_bytes())))))
    restated(folder, made.signer)
    found = codes(checked(folder, made.key))
    assert "chain" not in found
    assert found & {"checkpoint", "log-cut"}


def test_a_log_that_was_cut_at_its_end_is_found(made: Made) -> None:
    """Against its checkpoint; and, when the checkpoint went with it, against one that somebody kept."""
    kept = (made.before / CHECKPOINT).read_text("utf-8")
    folder = made.folder
    assert checked(folder, made.key, earlier=kept).is_right
    path = folder / EVENTS
    lines = log.lines_of(path.read_bytes())
    path.write_bytes(cut(lines))
    restated(folder, made.signer)
    assert "log-cut" in codes(checked(folder, made.key))
    forge(made.signer, folder, lines[:4])
    assert checked(folder, made.key).is_right, (
        "whoever holds the key can do this, unless a checkpoint was kept"
    )
    assert codes(checked(folder, made.key, earlier=kept)) == {"log-cut"}


def test_a_rewritten_history_is_found_by_a_kept_checkpoint(made: Made) -> None:
    kept = (made.before / CHECKPOINT).read_text("utf-8")
    folder = made.folder
    lines = log.lines_of((folder / EVENTS).read_bytes())
    forge(made.signer, folder, log.lines_of(relinked(log.lines_of(changed(lines)))))
    assert checked(folder, made.key).is_right
    assert codes(checked(folder, made.key, earlier=kept)) == {"checkpoint"}


@pytest.mark.parametrize("where", ["more.txt", "data/more.txt", "data/audit/more", ".hidden"])
def test_an_added_file_is_found_also_in_a_bag_that_was_made_again(made: Made, where: str) -> None:
    folder = made.folder
    (folder / where).write_text("x", "utf-8")
    assert "file-added" in codes(checked(folder, made.key))
    rebagged(folder)
    found = codes(checked(folder, made.key))
    assert "file-added" in found
    assert "bag" not in found


@pytest.mark.parametrize("where", ["rekey.toml", "evidence.pem", "data/more.txt", "data/audit/more"])
def test_a_foreign_file_is_found_when_the_statement_names_it(made: Made, where: str) -> None:
    (made.folder / where).write_text("x", "utf-8")
    restated(made.folder, made.signer)
    assert codes(checked(made.folder, made.key)) == {"file-added"}


def test_a_missing_file_is_found_when_the_statement_omits_it(made: Made) -> None:
    for name in contents.ALWAYS:
        path = made.folder / "data" / name
        before = path.read_bytes()
        path.unlink()
        restated(made.folder, made.signer)
        assert "file-missing" in codes(checked(made.folder, made.key)), name
        path.write_bytes(before)


@pytest.mark.parametrize(
    "said",
    [
        {"key": None},
        {"key": {"algorithm": "ed25519", "key_id": "0" * 64}},
        {"key": ["x"]},
        {"log": None},
        {"log": {"name": "rekey-audit-0", "size": 1, "root": ""}},
    ],
)
def test_a_statement_about_another_key_or_log_is_found(made: Made, said: dict[str, object]) -> None:
    restated(made.folder, made.signer, **said)
    assert codes(checked(made.folder, made.key)) == {"not-as-stated"}


@pytest.mark.parametrize("member", ["size", "root", "log"])
def test_proofs_of_another_tree_are_found(made: Made, member: str) -> None:
    path = made.folder / "data" / contents.PROOFS
    path.write_bytes(contents.as_json({**json.loads(path.read_bytes()), member: "x"}))
    restated(made.folder, made.signer)
    assert codes(checked(made.folder, made.key)) == {"proof"}


@pytest.mark.parametrize("depth", others_in_soak([150, 300, 450, 600, 900, 99_999], kept=[600, 99_999]))
@pytest.mark.parametrize(
    "name",
    [
        *(contents.PROOFS, contents.EVENTS, contents.EARLIER, contents.GATES, contents.RECONCILIATION),
        *(contents.DECLARATION, contents.STATE, contents.VERSIONS, contents.PLAN),
    ],
)
def test_json_of_any_depth_is_a_finding_and_not_a_fault(made: Made, name: str, depth: int) -> None:
    """Also when the statement names it: at some depths it can be read and not be written."""
    path = made.folder / "data" / name
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    if name == contents.EVENTS:
        first, line, *others = log.lines_of(path.read_bytes())
        event = json.loads(line) | {"details": "HERE", "event": "gate", "script_id": SCRIPT}
        line = json.dumps(event).encode().replace(b'"HERE"', nested)
        nested = b"".join(one + b"\n" for one in (first, line, *others))
    path.write_bytes(nested)
    found = checked(made.folder, made.key)
    assert codes(found) >= {"file-altered", *(["proof"] if name == contents.PROOFS else [])}
    restated(made.folder, made.signer)
    if name not in (contents.STATE, contents.VERSIONS):
        assert not checked(made.folder, made.key).is_right, "nothing reads the others again"


def test_a_removed_file_is_found_also_in_a_bag_that_was_made_again(made: Made) -> None:
    folder = made.folder
    (folder / "data" / contents.PLAN).unlink()
    rebagged(folder)
    found = checked(folder, made.key)
    assert {"file-missing", "file-altered"} <= codes(found), "the manifest is another one, too"
    assert "bag" not in codes(found)


def test_links_and_empty_folders_belong_to_no_bundle(made: Made) -> None:
    folder = made.folder
    (folder / "data" / "link").symlink_to(folder / bag.STATEMENT)
    assert "file-added" in codes(checked(folder, made.key))
    (folder / "data" / "link").unlink()
    (folder / "data" / "empty").mkdir()
    assert "file-added" in codes(checked(folder, made.key))


def test_a_bag_that_was_made_again_over_a_changed_file_is_found(made: Made) -> None:
    folder = made.folder
    path = folder / "data" / contents.REPORT
    path.write_bytes(path.read_bytes().replace(b"none differed", b"all  differed"))
    rebagged(folder)
    assert bag.bag_problem(folder) == ""
    assert codes(checked(folder, made.key)) == {"file-altered"}


def test_a_statement_signed_with_another_key_is_found(made: Made) -> None:
    folder = made.folder
    other = Ed25519Signer(Ed25519PrivateKey.generate())
    restated(folder, other)
    assert codes(checked(folder, made.key)) == {"signature"}
    restated(folder, None)
    assert codes(checked(folder, made.key)) == {"unsigned"}
    (folder / bag.STATEMENT).unlink()
    assert "statement-missing" in codes(checked(folder, made.key))


def test_a_statement_by_the_right_key_with_another_body_is_found(made: Made) -> None:
    """The key id of the right key does not make a signature right."""
    folder = made.folder
    before = statement.parsed((folder / bag.STATEMENT).read_bytes())
    body = before.body.replace(b'"title":"', b'"title":"X')
    forged = statement.Envelope(body, before.key_id, before.signature)
    (folder / bag.STATEMENT).write_bytes(forged.data)
    assert codes(checked(folder, made.key)) == {"signature"}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (contents.GATES, (b'"open":false', b'"open":true')),
        (contents.RECONCILIATION, (b'"stable":0', b'"stable":1')),
        (contents.DECLARATION, (b"UsersV2", b"UsersV3")),
        (contents.PLAN, (b"UsersV2", b"UsersV3")),
        (contents.PROOFS, (b'"seq":2}', b'"seq":3}')),
    ],
)
def test_a_contradiction_of_the_log_is_found(made: Made, name: str, change: tuple[bytes, bytes]) -> None:
    folder = made.folder
    path = folder / "data" / name
    before = path.read_bytes()
    path.write_bytes(before.replace(*change))
    assert path.read_bytes() != before
    restated(folder, made.signer)
    assert codes(checked(folder, made.key)) <= {"not-as-logged", "proof"}
    assert codes(checked(folder, made.key))


def test_a_checkpoint_by_another_key_is_found(made: Made) -> None:
    folder = made.folder
    other = Ed25519Signer(Ed25519PrivateKey.generate())
    said = note.parsed((folder / CHECKPOINT).read_text("utf-8")).checkpoint
    (folder / CHECKPOINT).write_text(note.signed(said, other).text, "utf-8")
    restated(folder, made.signer)
    assert codes(checked(folder, made.key)) == {"checkpoint-key"}
    assert checked(folder, made.key, other.public).is_right, "unless that key is trusted, too"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"predicate":[1],"subject":[]}',
        b'{"predicate":{},"subject":[{"digest":{"sha256":"x"},"name":1},{"digest":{"sha256":"x"},"name":"a"}]}',
        b'{"predicate":{},"subject":[{"digest":{"sha256":"x"},"name":["a"]}]}',
        b"[" * 99_999,
    ],
)
def test_a_body_that_is_no_statement_is_told_and_not_a_fault(made: Made, body: bytes) -> None:
    """Also when the right key signed it."""
    signature = made.signer.sign(statement.encoded(body))
    (made.folder / bag.STATEMENT).write_bytes(statement.Envelope(body, made.key.key_id, signature).data)
    assert codes(checked(made.folder, made.key)) == {"statement-unreadable"}


def test_a_bundle_that_is_not_one_is_told_and_not_a_fault(made: Made, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert {"statement-missing", "log-unreadable"} <= codes(checked(tmp_path / "empty", made.key))
    with pytest.raises(ConfigurationError, match="there is no folder"):
        checked(tmp_path / "none")
    folder = made.folder
    for name in (EVENTS, CHECKPOINT, f"data/{contents.EARLIER}", bag.STATEMENT):
        for data in (b"", b"\xff\xfe", b"{}", b"[]\n", b"null\n", b'{"seq":1}\n', b"[" * 99_999):
            before = (folder / name).read_bytes()
            (folder / name).write_bytes(data)
            assert not checked(folder, made.key).is_right
            (folder / name).write_bytes(before)


BESIDES = ("bag-info.txt", "manifest-sha256.txt", bag.STATEMENT, bag.TIMESTAMP, EVENTS, "data/pipe")


@pytest.mark.parametrize("name", BESIDES)
def test_a_named_pipe_is_found_and_never_opened(made: Made, name: str) -> None:
    """Opening one waits for a writer, for ever."""
    path = made.folder / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    missing = "statement-missing" if name == bag.STATEMENT else "file-added"
    assert missing in codes(checked(made.folder, made.key))
    assert name in bag.strange(made.folder)


@pytest.mark.parametrize(
    "name",
    [
        "bag-info.txt",
        bag.STATEMENT,
        "data/gates.json",
        "data/audit/events.jsonl",
        "data/other",
        "other/deep/file",
    ],
)
def test_a_file_too_large_is_not_read(made: Made, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 50 MB in `bag-info.txt` took bagit minutes."""
    monkeypatch.setattr(bag, "_MOST_LOG_BYTES", 1 << 22)
    monkeypatch.setattr(bag, "_MOST_PAYLOAD_BYTES", 1 << 22)
    path = made.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(50 << 20)
    validated: list[Path] = []
    monkeypatch.setattr(bag, "bag_problem", lambda folder: validated.append(folder) or "")
    assert "file-added" in codes(checked(made.folder, made.key)) or name == bag.STATEMENT
    assert name in bag.strange(made.folder)
    assert validated == [] and name not in bag.payload(made.folder)
    assert len(bag.read(path)) <= 1 << 20


def test_checkpoints_cost_logarithmic_hashes(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle with 20,000 events and as many checkpoints took hours."""
    hashed = [0]
    node_hash = merkle.node_hash

    def counted(left: bytes, right: bytes) -> bytes:
        hashed[0] += 1
        return node_hash(left, right)

    monkeypatch.setattr(merkle, "node_hash", counted)
    line = (made.folder / EVENTS).read_bytes().splitlines(keepends=True)[0]
    earlier = note.Checkpoint("rekey-audit-x", 1_000, b"x" * 32).text
    (made.folder / EVENTS).write_bytes(line * 1_000)
    listed = made.folder / "data" / contents.EARLIER
    listed.write_bytes(json.dumps({"note": earlier}).encode() + b"\n")
    assert "checkpoint" in codes(checked(made.folder, made.key))
    one, hashed[0] = hashed[0], 0
    listed.write_bytes(listed.read_bytes() * 1_000)
    checked(made.folder, made.key)
    assert hashed[0] - one < 20 * 1_000


@pytest.mark.parametrize(
    ("name", "member", "value"),
    [
        (EVENTS, "seq", float("inf")),
        (EVENTS, "details", {"x": float("inf")}),
        (f"data/{contents.EARLIER}", "note", 5),
    ],
)
def test_json_of_no_log_is_a_finding(made: Made, name: str, member: str, value: object) -> None:
    path = made.folder / name
    lines = [{**json.loads(line), member: value} for line in path.read_bytes().splitlines()]
    assert lines
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "log-unreadable" in codes(checked(made.folder, made.key))


def test_deep_folders_and_many_files_are_bounded(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders 1,000 deep took more stack than there is; a sparse file of 1 GiB costs its maker nothing."""
    monkeypatch.setattr(bag, "_MOST_STRANGE", 20)
    path = made.folder / "data" / "data"
    path.mkdir()
    with (path / "sparse").open("wb") as file:
        file.truncate(2 << 20)
    assert "data/data/sparse" in bag.strange(made.folder) and not bag.overflows(made.folder)
    assert "data/data/sparse" not in bag.digests(made.folder)
    for deeper in range(30):
        made.folder.joinpath(*["d"] * (deeper + 1)).mkdir()
    verdict = checked(made.folder, made.key)
    assert codes(verdict) == {"file-added"}, "what belongs to the bundle was read"
    assert "more files and folders" in verdict.findings[-1].what
    assert len(bag.strange(made.folder)) < 25
