"""Bundles for tests: a project that was migrated, its key, and its exported evidence."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bagit
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rekey.declaration.migration import Declared
from rekey.evidence import bag, contents, note, signing, statement
from rekey.evidence.export import export, record_verified
from rekey.evidence.keys import Ed25519Signer, PublicKey, Signer
from rekey.evidence.log import Tree
from rekey.evidence.verify import Trusted, Verdict, verify
from rekey.model import Row
from rekey.project.config import Config
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.projects import USERS_SCRIPT, Project, lived, project_of

SCRIPT = "0001_users"
TO_CUTOVER = ("apply", "0001", "--to", "cutover", "--writers-stopped")


class P256Signer:
    """Signs with a P-256 key, as Key Vault does."""

    def __init__(self) -> None:
        self._private = ec.generate_private_key(ec.SECP256R1())
        self.public = PublicKey(self._private.public_key())

    def sign(self, data: bytes) -> bytes:
        """Return the DER signature over the SHA-256 of some bytes."""
        return self._private.sign(data, ec.ECDSA(hashes.SHA256()))


def rows(number: int, *, mail: str = "mail.example") -> list[Row]:
    """Return rows whose RowKeys are e-mail addresses."""
    return [
        {"PartitionKey": f"p{at % 3}", "RowKey": f"user{at}@{mail}", "Nm": f"name {at}", "Ssn": "x"}
        for at in range(number)
    ]


@pytest.fixture
def rekey(tmp_path: Path, commands_on: CommandsOn, request: pytest.FixtureRequest) -> Commands:
    """The commands of a project whose source has as many rows as `ROWS` of the test file says. If the test
    takes `key`, too, the project has a key, and the migration is at its gate."""
    number, folder = request.module.ROWS, tmp_path / "project"

    def live(project: Project) -> None:
        project.script(USERS_SCRIPT)
        asyncio.run(project.fill("Users", rows(number)))
        with_key(folder)
        commands_on(project)("apply", "0001")

    if "key" in request.fixturenames:
        return commands_on(lived(("evidence", number), folder, live))
    return commands_on(project_of(folder, USERS_SCRIPT, rows(number)))


@pytest.fixture
def key(rekey: Commands) -> PublicKey:
    """The project's key."""
    return signer_of(rekey).public


def signer_of(rekey: Commands) -> Ed25519Signer:
    """Return what signs a project's evidence."""
    return signing.read_private(rekey.project.folder / "evidence.pem")


def with_key(folder: Path) -> PublicKey:
    """Give a project a key that signs its evidence; return its public half."""
    with (folder / "rekey.toml").open("a", encoding="utf-8") as file:
        file.write('[evidence]\nkey_file = "evidence.pem"\n')
    return signing.make_key(folder / "evidence.pem")


def exported(rekey: Commands, name: str = "bundle") -> Path:
    """Export the evidence of the only script; return the folder."""
    folder = rekey.project.folder / name
    rekey("evidence", "export", str(folder))
    return folder


def handed_over(folder: Path, key_file: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand where an auditor stands: a new folder with the bundle and the public key, and no project."""
    to.mkdir()
    shutil.copytree(folder, to / "bundle")
    shutil.copy(key_file, to)
    monkeypatch.delenv("REKEY_CONFIG")
    monkeypatch.chdir(to)


def checked(folder: Path, *keys: PublicKey, earlier: str | None = None) -> Verdict:
    """Check a bundle with some keys."""
    return verify(folder, Trusted(keys, earlier=earlier))


def codes(verdict: Verdict) -> set[str]:
    """Return the codes of what was found."""
    return {one.code for one in verdict.findings}


def rebagged(folder: Path) -> None:
    """Make the bag's manifests again, as somebody would who changed a file; the statement stays."""
    for name in bag.BESIDES:
        path = folder / name
        if path.exists():
            path.rename(folder.parent / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # bagit's own, on Python 3.13
        bagit.Bag(str(folder)).save(manifests=True)
    for name in bag.BESIDES:
        if (folder.parent / name).exists():
            (folder.parent / name).rename(folder / name)


def restated(folder: Path, signer: Signer | None, **said: Any) -> None:
    """Make bag and statement again, signed by somebody: what a forger does who has a key of his own.

    Args:
        folder: the bundle.
        signer: who signs, None for nobody.
        said: members of the predicate that are to be other ones.
    """
    before = statement.parsed((folder / bag.STATEMENT).read_bytes()).statement()
    rebagged(folder)
    about = {**before.predicate, **said}
    made = statement.signed(statement.Statement(bag.digests(folder), about), signer)
    (folder / bag.STATEMENT).write_bytes(made.data)


def forge(signer: Signer, folder: Path, lines: Sequence[bytes]) -> None:
    """Make a whole bundle of other events, signed by somebody: what passes for whoever trusts his key."""
    events = [json.loads(line) for line in lines]
    head = Tree(lines).checkpoint
    made = {
        contents.EVENTS: b"".join(line + b"\n" for line in lines),
        contents.CHECKPOINT: note.signed(head, signer).text.encode(),
        contents.EARLIER: b"",
        contents.PROOFS: contents.as_json(contents.proofs(SCRIPT, lines, events, head)),
        contents.GATES: contents.as_json(contents.details_of(events, SCRIPT, "gate")),
        contents.RECONCILIATION: contents.as_json(contents.details_of(events, SCRIPT, "verification")),
    }
    for path, data in made.items():
        (folder / "data" / path).write_bytes(data)
    restated(folder, signer, log=head.named, key=signer.public.named)


def relinked(lines: Sequence[bytes]) -> bytes:
    """Return a log of these events whose chain holds: seq and prev are made again."""
    prev, made = "0" * 64, []
    for seq, line in enumerate(lines, start=1):
        event = json.loads(line) | {"seq": seq, "prev": prev}
        made.append(json.dumps(event, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())
        prev = hashlib.sha256(made[-1]).hexdigest()
    return b"".join(line + b"\n" for line in made)


def prove(config: Config, declared: Declared, state: State) -> None:
    """Export evidence, signed by a key of the tests, and verify it: what `retire` asks for."""
    signer = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    folder = config.path.parent / f"evidence-{len(state.audit_events())}"
    export(config, declared, state, folder, signer=signer)
    assert record_verified(state, verify(folder, Trusted([signer.public])))
