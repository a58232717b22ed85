"""The reference code for keys makes what rekey makes: all vectors, in every language found."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rekey.declaration import keys
from rekey.declaration.keys.base import Expression, Scope

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs/examples/keys"
VECTORS: list[dict[str, Any]] = json.loads((FOLDER / "vectors.json").read_text("utf-8"))
LANGUAGES = ["Keys.cs", "Keys.java", "keys.go", "keys.mjs", "keys.py"]


def expression_of(vector: dict[str, Any], row: dict[str, str]) -> Expression:
    """Return the expression of a vector; what it is made of is put into the row."""
    said, names = vector["arguments"], list[str]()
    for text in said.get("parts", [said.get("text", said.get("moment"))]):
        names.append(f"Part{len(names)}")
        row[names[-1]] = text
    if vector["function"] == "opaque":
        return keys.opaque(*names, domain=said["domain"], secret="secret")
    if vector["function"] == "bucket":
        return keys.bucket(said["count"], said["algorithm"], names[0], said["prefix"])
    return keys.inverted_ticks(names[0])


@pytest.mark.parametrize("number", range(len(VECTORS)))
def test_every_vector_is_what_rekey_makes(number: int) -> None:
    vector, row = VECTORS[number], {"PartitionKey": "p", "RowKey": "r"}
    secret = bytes.fromhex(vector["arguments"].get("secret_hex", "00" * 16))
    expression = expression_of(vector, row)
    assert expression.compile(Scope("target.row_key", {"secret": secret}))(row, "") == vector["key"]


def test_the_vectors_are_of_every_function_and_of_what_is_easily_got_wrong() -> None:
    """Several parts, an empty one, text beyond ASCII and beyond 16 bits, a long secret, wide counts, both
    hashes, with the highest bit set as well, moments with and without fraction, the first and the last."""
    said = [(one["function"], one["arguments"]) for one in VECTORS]
    opaque = [arguments for name, arguments in said if name == "opaque"]
    assert {len(one["parts"]) for one in opaque} >= {1, 2, 3}
    assert any("" in one["parts"] for one in opaque) and any(
        "\U0001f600" in "".join(one["parts"]) for one in opaque
    )
    assert max(len(one["secret_hex"]) for one in opaque) > 128
    buckets = [arguments for name, arguments in said if name == "bucket"]
    assert {one["algorithm"] for one in buckets} == {"sha256", "crc32"}
    hashes = [hashlib.sha256(one["text"].encode()).digest()[0] for one in buckets]
    assert min(hashes) < 128 <= max(hashes)
    assert {one["count"] for one in buckets} >= {1, 1000, 1001}
    moments = {arguments["moment"] for name, arguments in said if name == "inverted_ticks"}
    assert {"0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9999999Z"} <= moments
    assert any("+00:00" in one for one in moments) and any(re.search(r"\.\d{1,3}Z", one) for one in moments)


def lines() -> str:
    """Return the vectors as the reference programs read them."""
    said = []
    for vector in VECTORS:
        one, name = vector["arguments"], vector["function"]
        if name == "opaque":
            fields = [bytes.fromhex(one["secret_hex"]), one["domain"], *one["parts"]]
        elif name == "bucket":
            fields = [str(one["count"]), one["algorithm"], one["prefix"], one["text"]]
        else:
            fields = [one["moment"]]
        data = [field if isinstance(field, bytes) else field.encode() for field in (name, *fields)]
        said.append(",".join(field.hex() for field in data))
    return "\n".join(said) + "\n"


def tool(name: str) -> str:
    """Return the path of a tool, or skip."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} on this machine")
    return found


def printed(*command: str | Path, folder: Path = FOLDER) -> list[str]:
    """Return what a command prints for the vectors."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        input=lines(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


EXPECTED = [vector["key"] for vector in VECTORS]


def test_python_makes_every_vector() -> None:
    assert printed(sys.executable, "keys.py") == EXPECTED


def test_javascript_makes_every_vector() -> None:
    assert printed(tool("node"), "run.mjs") == EXPECTED


def test_java_makes_every_vector(tmp_path: Path) -> None:
    subprocess.run([tool("javac"), "-d", str(tmp_path), "Keys.java", "Run.java"], cwd=FOLDER, check=True)
    assert printed(tool("java"), "-cp", tmp_path, "Run") == EXPECTED


def test_go_makes_every_vector(tmp_path: Path) -> None:
    unoptimized = "-gcflags=all=-N -l"  # a quarter less for what Go compiles of its own library, once
    subprocess.run(
        [tool("go"), "build", unoptimized, "-o", str(tmp_path / "run"), "keys.go", "run.go"],
        cwd=FOLDER, check=True, env=os.environ | {"GOFLAGS": "-mod=mod"},
    )  # fmt: skip
    assert printed(tmp_path / "run") == EXPECTED


def test_c_sharp_makes_every_vector(tmp_path: Path) -> None:
    dotnet = tool("dotnet")
    for name in ("Keys.cs", "Run.cs"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "Run.csproj").write_text(
        '<Project Sdk="Microsoft.NET.Sdk"><PropertyGroup><OutputType>Exe</OutputType>'
        "<TargetFramework>net8.0</TargetFramework><RollForward>Major</RollForward></PropertyGroup></Project>",
        "utf-8",
    )
    assert printed(dotnet, "run", folder=tmp_path) == EXPECTED


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_page_shows_each_language(name: str) -> None:
    page = (ROOT / "docs/guides/keys-in-code.md").read_text("utf-8")
    assert f"](../examples/keys/{name})" in page
