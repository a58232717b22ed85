"""Custom functions as key expressions: found, covered by the digest, their failures contained."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey import keys
from rekey.declaration.keys import Expression, InvalidDeclaration
from rekey.declaration.keys.escape import Custom
from tests.asserts.expression_values import evaluate, refused

SOURCE = """\
def reverse(text):
    return text[::-1]

def both(first, second):
    return first + "/" + second

def whole(row):
    return row["A"] + row["RowKey"]

def writes(row):
    row["A"] = "changed"
    return "x"

def fails(text):
    raise KeyError(text)

def number(text):
    return 5

NOT_A_FUNCTION = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "custom_functions_under_test.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield path
    sys.modules.pop(path.stem, None)


def custom(name: str, *parts: Expression | str, version: int | str = 1) -> Expression:
    return keys.custom(f"custom_functions_under_test:{name}", *parts, version=version)


def test_a_custom_function_gets_the_texts_of_its_operands(module: Path) -> None:
    assert evaluate(custom("reverse", "A"), A="abc") == "cba"
    assert evaluate(custom("both", "A", keys.upper("B")), A="a", B="b") == "a/B"
    assert custom("both", "A", "B").inputs() == {"A", "B"}


def test_without_operands_it_gets_the_whole_row_to_read(module: Path) -> None:
    assert evaluate(custom("whole"), A="a") == "ar"
    assert custom("whole").inputs() == {"*"}
    refusal = refused(custom("writes"), A="alice@x")
    assert refusal.code == "custom-failed"
    assert "TypeError" in refusal.problem, "the row is read-only"


def test_a_failure_refuses_the_row_and_names_the_type_only(module: Path) -> None:
    refusal = refused(custom("fails", "A"), A="alice@example.com")
    assert refusal.code == "custom-failed"
    assert refusal.problem == "custom_functions_under_test:fails raised KeyError"
    assert refusal.__cause__ is None


def test_what_is_not_text_is_refused(module: Path) -> None:
    assert "returned int" in refused(custom("number", "A"), A="alice@x").problem


def test_the_canonical_form_covers_the_functions_source_and_version(module: Path) -> None:
    before = custom("reverse", "A").as_json()
    lines = ["def reverse(text):", "    return text[::-1]"]
    assert before["source_sha256"] == hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert custom("reverse", "A", version=2).as_json() != before

    module.write_text(SOURCE.replace("text[::-1]", "text[::-1].lower()"))
    sys.modules.pop(module.stem)
    assert custom("reverse", "A").as_json() != before


def test_line_ends_do_not_change_the_digest(module: Path) -> None:
    before = custom("reverse", "A").as_json()
    module.write_bytes(SOURCE.replace("\n", "\r\n").encode())
    sys.modules.pop(module.stem)
    assert custom("reverse", "A").as_json() == before


def test_it_pickles_as_its_reference_and_refuses_another_function(module: Path) -> None:
    made = custom("reverse", "A")
    data = pickle.dumps(made)
    assert pickle.loads(data) == made  # noqa: S301 - our own bytes
    module.write_text(SOURCE.replace("text[::-1]", "text"))
    sys.modules.pop(module.stem)
    with pytest.raises(InvalidDeclaration, match="another function"):
        pickle.loads(data)  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("no_such_module_anywhere:f", "cannot be imported"),
        ("custom_functions_under_test:nothing", "has no nothing"),
        ("custom_functions_under_test:NOT_A_FUNCTION", "not a function"),
        ("custom_functions_under_test", "not of the form"),
        ("a b:c", "not of the form"),
        ("math:sqrt", "source of math:sqrt cannot be read"),
    ],
)
def test_unusable_functions_are_refused_when_declared(module: Path, reference: str, problem: str) -> None:
    with pytest.raises(InvalidDeclaration, match=problem):
        keys.custom(reference, "A", version=1)


@pytest.mark.parametrize("version", [None, "", True, 1.5])
def test_the_version_is_a_number_or_text(module: Path, version: object) -> None:
    with pytest.raises(InvalidDeclaration, match=r"keys\.custom\(version\)"):
        keys.custom("custom_functions_under_test:reverse", "A", version=version)  # type: ignore[arg-type]


def test_it_describes_itself(module: Path) -> None:
    described = custom("reverse", "A").describe()
    assert described == "custom(custom_functions_under_test:reverse, A, version=1)"
    assert isinstance(custom("reverse", "A"), Custom)
