"""No old key, no value, no secret and no account key is in a bundle, in any form they could have been written
in; and a dictionary of addresses finds nothing in it.

The life before the export gives keys every chance: rows that differ and are mended, samples, look-ups, a
refused cutover, a rollback.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rekey import crockford
from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.config import AZURITE_KEY
from rekey.evidence import bag
from rekey.model import EntityKey, Row, content_of
from tests.canaries import Canaries
from tests.evidence import TO_CUTOVER, with_key
from tests.projects import USERS_SCRIPT, Project

LOT = random.Random(4)
CANARIES = Canaries.of(LOT)
ROWS = 120


def rows() -> Iterator[Row]:
    texts = CANARIES.texts
    for number in range(ROWS):
        yield {
            "PartitionKey": f"{texts['partition key']}{number % 3}",
            "RowKey": f"{number}{texts['row key']}@mail.example",
            "Nm": f"{texts['value']} {number}",
            "Ssn": texts["value"],
        }


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a life; the tests only read it."""
    project = Project(tmp_path_factory.mktemp("project"))
    project.script(USERS_SCRIPT)
    (project.folder / "users.secret").write_text(CANARIES.texts["secret"] * 2, "utf-8")
    asyncio.run(project.fill("Users", rows()))
    with_key(project.folder)
    around = Surroundings(project.connect, project.clock, is_terminal=False)

    def rekey(*words: str, code: int = 0) -> None:
        assert run([*words, "--config", str(project.folder / "rekey.toml")], around) == code, words

    live(project, rekey)
    rekey("evidence", "export", str(project.folder / "bundle"))
    return project.folder / "bundle"


def live(project: Project, rekey: Callable[..., None]) -> None:
    """Carry out a life that meets keys everywhere."""
    first = next(rows())
    old = ("--old", first["PartitionKey"], first["RowKey"])
    rekey("apply", "0001")
    rekey("lookup", "0001", *old, "--reason", "ticket 4711")
    rekey(
        "lookup", "0001", "--old", first["PartitionKey"], "nobody" + first["RowKey"], "--reason", "t", code=1
    )
    target = project.rows("UsersV2")[5]
    table = project.tables.table("UsersV2")
    asyncio.run(table.replace({**content_of(target), "Name": CANARIES.texts["value"] * 2}, etag="*"))
    gone = project.rows("UsersV2")[6]
    asyncio.run(table.delete(EntityKey(gone["PartitionKey"], gone["RowKey"]), etag="*"))
    rekey("verify", "0001", "--mode", "count", code=1)
    rekey("verify", "0001", "--mode", "sample", "--rows", "100", "--seed", "5", code=1)
    rekey("verify", "0001", code=1)
    rekey("verify", "0001", "--repair", code=1)
    rekey("verify", "0001")
    rekey("apply", "0001", "--to", "cutover", code=3)
    rekey(*TO_CUTOVER)
    rekey("rollback", "0001", "--writers-stopped")
    rekey(*TO_CUTOVER)


def test_no_file_of_a_bundle_holds_a_key_a_value_or_a_secret(bundle: Path) -> None:
    names = bag.names(bundle)
    assert len(names) > 15
    for name in names:
        assert CANARIES.found_in((bundle / name).read_bytes()) == set(), name
        assert CANARIES.found_in(name.encode()) == set()
    payload = b"".join(base64.b64decode(text) for text in _encoded(bundle))
    assert CANARIES.found_in(payload) == set(), "nor in what stands there in base64"


def _encoded(bundle: Path) -> list[bytes]:
    data = (bundle / bag.STATEMENT).read_bytes()
    return [text + b"=" * (-len(text) % 4) for text in re.findall(rb'"payload":"([^"=]+)', data)]


def test_account_keys_and_connection_strings_are_in_no_bundle(bundle: Path) -> None:
    for name in bag.names(bundle):
        data = (bundle / name).read_bytes()
        assert AZURITE_KEY.encode() not in data
        assert not re.search(rb"(?i)accountkey|sharedaccess|[?&]sig=", data), name


def test_a_dictionary_finds_no_address_in_a_bundle(bundle: Path) -> None:
    """No unkeyed hash of a key, or of a row's text, is there: what a dictionary is tried against.

    Every old key is in the dictionary. Each is hashed alone and with its PartitionKey, by what people use,
    and looked for whole and as a beginning, in the encodings of this project.
    """
    held = b"".join((bundle / name).read_bytes() for name in bag.names(bundle)).lower()
    hashes = [hashlib.md5, hashlib.sha1, hashlib.sha256, hashlib.sha512, hashlib.blake2b]
    for row in rows():
        key, partition = row["RowKey"], row["PartitionKey"]
        for text in (
            key,
            key.partition("@")[0],
            f"{partition}{key}",
            f"{partition}\0{key}",
            f"{partition}/{key}",
        ):
            for one in hashes:
                digest = one(text.encode()).digest()
                for form in (digest.hex()[:16], crockford.encode(digest[:10])[:12]):
                    assert form.lower().encode() not in held
                assert base64.b64encode(digest)[:20].lower() not in held


def test_a_dictionary_finds_every_key_where_a_plain_hash_is(tmp_path: Path) -> None:
    """Else the test above shows nothing."""
    key = next(rows())["RowKey"]
    (tmp_path / "leak").write_text(hashlib.sha256(key.encode()).hexdigest(), "utf-8")
    with pytest.raises(AssertionError):
        test_a_dictionary_finds_no_address_in_a_bundle(tmp_path)
