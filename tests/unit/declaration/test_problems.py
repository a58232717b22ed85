"""Every problem of `problems.toml` is reported with exactly the values that its texts name."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

import pytest

from rekey.declaration.keys.base import InvalidDeclaration, invalid, refuse_if
from tests.repo.test_structure import PACKAGE, name_of, python_files, tree_of
from tests.unit.runner.test_refusals import names_in

pytestmark = pytest.mark.xdist_group("tidy")  # whose files are parsed once
ENTRIES = tomllib.loads((PACKAGE / "declaration/problems.toml").read_text("utf-8"))
PARTS = {"problem", "cure"}
# Where the code is among the arguments.
CODE = {"invalid": 1, "refuse_if": 2}


def reported() -> Iterator[tuple[str, str, set[str]]]:
    """Yield where a problem is reported, its code and the names of its values."""
    for path in python_files("rekey/declaration"):
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in CODE:
                continue
            code = node.args[CODE[ast.unparse(node.func)]]
            if not isinstance(code, ast.Name):  # as in `refuse_if` itself
                names = {str(keyword.arg) for keyword in node.keywords} - {"fault"}
                yield f"{name_of(path)}:{node.lineno}", ast.literal_eval(code), names


def test_a_problem_gets_the_values_that_its_texts_name_and_no_others() -> None:
    for place, code, names in reported():
        texts = ENTRIES[code]
        assert set().union(*map(names_in, texts.values())) == names - PARTS, f"{place}: {code}"
        assert not names & texts.keys(), f"{place}: {code} has that text already"
        assert names | texts.keys() >= PARTS, f"{place}: {code}"


def test_every_problem_is_reported_and_has_no_other_texts() -> None:
    assert {code for _, code, _ in reported()} == ENTRIES.keys()
    assert {part for texts in ENTRIES.values() for part in texts} == PARTS


def test_a_problem_has_its_texts_with_the_values_filled_in() -> None:
    problem = invalid("keys.bucket(count)", "out-of-range", number=0, bounds="at least {1}")
    assert problem.field == "keys.bucket(count)"
    assert problem.problem == "0 is out of range"
    assert problem.cure == "write a number that is at least {1}"
    assert problem.fault == ""


def test_a_problem_is_raised_only_where_something_is_wrong() -> None:
    refuse_if([], "mapping", "inverse-with-kinds")
    with pytest.raises(InvalidDeclaration, match="a row's kind is not in its key"):
        refuse_if(["user"], "mapping", "inverse-with-kinds")
