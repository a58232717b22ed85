"""Every error of a `refusals.toml` is raised with exactly the values that its texts name."""

from __future__ import annotations

import ast
import string
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey import errors
from rekey.runner.refusals import refusal
from tests.repo.test_structure import PACKAGE, imports_of, name_of, python_files, tree_of

pytestmark = pytest.mark.xdist_group("tidy")  # whose files are parsed once
FILES = sorted(PACKAGE.rglob("refusals.toml"))
PARTS = {"what", "kept", "hint"}


def raised(file: Path) -> Iterator[tuple[str, str, set[str]]]:
    """Yield where an error of a file is made, its code and the names of its values."""
    module = ".".join(("rekey", *file.relative_to(PACKAGE).with_suffix("").parts))
    for path in python_files("rekey"):
        if module not in imports_of(path):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "refusal":
                code, names = ast.literal_eval(node.args[0]), {one.arg for one in node.keywords}
                yield f"{name_of(path)}:{node.lineno}", code, names


def names_in(text: str) -> set[str]:
    """Return the names in braces, without attributes."""
    return {name.partition(".")[0] for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_an_error_is_given_the_values_that_its_texts_name_and_no_others(file: Path) -> None:
    entries = tomllib.loads(file.read_text("utf-8"))
    for place, code, names in raised(file):
        texts = {part: text for part, text in entries[code].items() if part != "error"}
        assert set().union(*map(names_in, texts.values())) == names - PARTS, f"{place}: {code}"
        assert not names & texts.keys(), f"{place}: {code} has that text already"
        assert {"what", "hint"} <= names | texts.keys(), f"{place}: {code}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_every_error_is_raised_and_has_a_class(file: Path) -> None:
    entries = tomllib.loads(file.read_text("utf-8"))
    assert {code for _, code, _ in raised(file)} == entries.keys()
    for code, texts in entries.items():
        assert texts.keys() <= {"error"} | PARTS, code
        assert issubclass(getattr(errors, texts["error"]), errors.RekeyError), code


def test_an_error_has_its_class_and_its_texts_with_the_values_filled_in() -> None:
    error = refusal("no-such-cohort", script="0001_users", cohort="2024-05", cohorts="2024-04")
    assert type(error) is errors.Findings
    assert error.what == "0001_users has no cohort 2024-05"
    assert error.kept == "Nothing was erased."
    assert error.hint == "there are: 2024-04"


def test_what_comes_next_may_be_given_whole() -> None:
    assert refusal("rows-differ", rows=3, hint="look at {them}").hint == "look at {them}"


def test_an_unknown_code_is_a_fault() -> None:
    with pytest.raises(KeyError):
        refusal("no-such-code")
