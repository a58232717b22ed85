"""No old key, no value, no secret and no account key is in a bundle, in any form they could have been written
in; and a dictionary of addresses finds nothing in it.

The life before the export gives keys every chance: rows that differ and are mended, samples, look-ups, a
refused cutover, a rollback.

Soak: a million addresses.
Reason, and what `make test` covers: 50,000, with every old key among them.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import random
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.core import crockford
from rekey.evidence import bag
from rekey.model import EntityKey, Row, content_of
from rekey.project.config import AZURITE_KEY
from tests.asserts.canaries import Canaries
from tests.asserts.hashes import MORE, PLAIN, Held, texts_of
from tests.worlds.evidence import TO_CUTOVER, with_key
from tests.worlds.projects import USERS_SCRIPT, Project

LOT = random.Random(4)
CANARIES = Canaries.of(LOT)
ROWS = 120
MILLION = 1_000_000
_NAMES = ("ada", "grace", "edsger", "barbara", "alan", "donald", "margaret", "tony")
SCRIPT = "0001_users"


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
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Live a life and export it, as `bundle`; the tests only read it."""
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
    return project


@pytest.fixture(scope="module")
def bundle(project: Project) -> Path:
    """Return the exported life."""
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


@pytest.fixture(scope="module")
def held(project: Project, bundle: Path) -> Held:
    """Return what an auditor holds, and whoever may read the target table besides: bundle and target keys."""
    in_base64 = [base64.b64decode(text) for text in _encoded(bundle)]
    keys = [f"{row['PartitionKey']}\n{row['RowKey']}".encode() for row in project.rows("UsersV2")]
    assert len(keys) == ROWS
    return Held([*((bundle / name).read_bytes() for name in bag.names(bundle)), *in_base64, *keys])


@pytest.mark.parametrize("most", [50_000, pytest.param(MILLION, marks=pytest.mark.soak)])
def test_a_dictionary_of_addresses_recovers_nothing(held: Held, most: int) -> None:
    """Every old key is in it. Each address is hashed by what people use, and looked for in every encoding."""
    assert len(held) > 10_000
    addresses = (f"{number}{name}@mail.example" for number in range(most // 8) for name in _NAMES)
    found = 0
    tried = 0
    for address in chain(addresses, (row["RowKey"] for row in rows())):
        text = address.encode()
        tried += 1
        for digest in PLAIN:
            found += held.has(digest(text))
    assert tried >= most
    assert found == 0


def test_no_old_key_is_recovered_whatever_was_hashed_with_it(held: Held) -> None:
    """Alone and with its PartitionKey, in base64, keyed with whatever is no secret."""
    known = (b"", b"user", b"Users", b"UsersV2", SCRIPT.encode(), b"rekey", b"rekey/ids/v1")
    for row in rows():
        for text in texts_of(row["PartitionKey"], row["RowKey"]):
            assert not any(held.has(digest(text)) for digest in MORE)
            assert not any(held.has(hmac.digest(key, text, "sha256")) for key in known)


@pytest.mark.parametrize("form", ["hex", "crockford", "base32", "base64", "raw", "cut off"])
def test_a_dictionary_finds_every_key_where_a_plain_hash_is(form: str) -> None:
    """Else the tests above show nothing."""
    text = next(texts_of("p", next(rows())["RowKey"]))
    for digest in MORE:
        made = digest(text)
        written = {
            "hex": made.hex().upper().encode(),
            "crockford": crockford.encode(made).encode(),
            "base32": base64.b32encode(made),
            "base64": base64.b64encode(made),
            "raw": made,
            "cut off": made.hex()[:16].encode(),
        }[form]
        assert Held([b'before "' + written + b'", after']).has(made)
