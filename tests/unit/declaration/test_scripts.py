"""Reading scripts: order, isolation, and errors that name script, field and cure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script, load_scripts
from rekey.errors import ConfigurationError, DeclarationError

Write = Callable[..., Path]

SCRIPT = '''"""{doc}"""
from rekey import Index, Migration, Target, keys, props

__depends__ = {depends}

migration = Migration(
    source="{source}",
    target=Target("{target}", partition_key=keys.prop("PartitionKey"), row_key=keys.prop("RowKey")),
    capture="delta",
)
'''


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a script, from its text or from a source and a target table."""

    def make(
        name: str, text: str = "", source: str = "", target: str = "", depends: object = "set()"
    ) -> Path:
        path = tmp_path / f"{name}.py"
        if not text:
            text = SCRIPT.format(
                doc=f"About {name}.", depends=depends, source=source or "Old", target=target or f"T{name[:4]}"
            )
        path.write_text(text, encoding="utf-8")
        return path

    return make


def wrong(path: Path) -> DeclarationError:
    """The error a script raises, which names the script and never shows its text."""
    with pytest.raises(DeclarationError) as caught:
        load_script(path)
    assert caught.value.script in (path.stem, path.name)
    assert caught.value.hint
    assert "alice@example.com" not in str(caught.value)
    return caught.value


def test_a_script_is_read(write: Write) -> None:
    declared = load_script(write("0001_users", source="Users", target="UsersV2", depends="{'0000_first'}"))
    assert declared.script_id == "0001_users"
    assert declared.doc == "About 0001_users."
    assert declared.depends == {"0000_first"}
    assert declared.migration.tables == ("UsersV2",)
    assert declared.digest == declared.migration.digest()
    assert declared.path.name == "0001_users.py"


def test_a_script_is_read_by_its_path_as_text_too(write: Write) -> None:
    """As clients take it."""
    path = write("0001_users")
    assert load_script(str(path)) == load_script(path)


def test_reading_a_script_twice_gives_equal_declarations(write: Write) -> None:
    path = write("0001_users")
    assert load_script(path) == load_script(path)


@pytest.mark.parametrize(
    ("depends", "found"),
    [
        ("'a'", {"a"}),
        ("['a', 'b']", {"a", "b"}),
        ("('a',)", {"a"}),
        ("frozenset({'a'})", {"a"}),
        ("[]", set()),
    ],
)
def test_dependencies_are_text_or_a_plain_collection(write: Write, depends: str, found: set[str]) -> None:
    assert load_script(write("0001", depends=depends)).depends == found


def test_scripts_come_dependencies_first_then_by_id(write: Write, tmp_path: Path) -> None:
    write("0004")
    write("0002", depends="{'0003'}")
    write("0003", depends="{'0005'}")
    write("0005")
    write("0001", depends="{'0004'}")
    assert [script.script_id for script in load_scripts(tmp_path)] == ["0004", "0001", "0005", "0003", "0002"]


def test_an_empty_folder_has_no_scripts(tmp_path: Path) -> None:
    assert load_scripts(tmp_path) == []


def test_a_missing_folder_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_scripts(tmp_path / "nowhere")


def test_files_that_begin_with_an_underscore_and_folders_are_no_scripts(write: Write, tmp_path: Path) -> None:
    write("0001")
    write("_helper", "x = 1")
    write("__init__", "x = 1")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "package.py").mkdir()
    assert [script.script_id for script in load_scripts(tmp_path)] == ["0001"]


def test_a_script_whose_source_is_anothers_target_depends_on_it(write: Write, tmp_path: Path) -> None:
    write("0001", source="Middle", target="Last")
    write("0002", source="First", target="MIDDLE")
    loaded = load_scripts(tmp_path)
    assert [script.script_id for script in loaded] == ["0002", "0001"]
    assert loaded[1].depends == {"0002"}


# --- errors of one script ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["0001 users", "0001.users", "ü", "a" * 121])
def test_a_bad_file_name_is_refused(write: Write, name: str) -> None:
    assert "rename" in wrong(write(name)).hint


def test_a_syntax_error_names_the_line_and_not_the_text(write: Write) -> None:
    error = wrong(write("0001", 'x = 1\ny = "alice@example.com" oops\n'))
    assert "syntax error in line 2" in error.problem
    assert "oops" not in str(error)
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"x = '\xff\xfe'\n", "line 1 is not UTF-8"),
        ("x = 1\ny = 'Gr\u00f6\u00dfe'\n".encode("latin-1"), "line 2 is not UTF-8"),
        (b"x = 1\0\n", "the file is in UTF-16, or is no text"),
        ("x = 1\n".encode("utf-16"), "the file is in UTF-16, or is no text"),
        ("x = 1\n".encode("utf-16-le"), "the file is in UTF-16, or is no text"),
        ("x = 1\n".encode("utf-16-be"), "the file is in UTF-16, or is no text"),
        (b"# -*- coding: nonsense -*-\nx = '\xff'\n", "syntax error"),
    ],
)
def test_undecodable_bytes_are_no_syntax_error(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "0001.py"
    path.write_bytes(content)
    assert wrong(path).problem == problem
    assert "UTF-8" in wrong(path).hint or problem.startswith("syntax error")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = [1 2]", "invalid syntax. Perhaps you forgot a comma?"),
        ("x = (1, 2", "'(' was never closed"),
        ("x = 'secret-text", "unterminated string literal (detected at line 1)"),
        ("if x = 1: pass", "invalid syntax. Maybe you meant '==' or ':=' instead of '='?"),
    ],
)
def test_a_syntax_error_says_what_the_compiler_says(write: Write, text: str, said: str) -> None:
    assert wrong(write("0001", text)).problem == f"syntax error in line 1: {said}"


def test_names_that_a_script_gets_wrong_are_answered_with_those_that_are_meant(write: Write) -> None:
    """Names not imported or misspelled; arguments misspelled, unknown or without a name."""

    def cure(text: str) -> str:
        return wrong(write("0001", f"from rekey import Migration, Target, props\n{text}\n")).hint

    assert cure("keys.prop('A')") == "import it: `from rekey import keys`"
    assert cure("props.remane('A', 'B')").startswith("write rename; ")
    assert cure("props.remove('A')").startswith("write drop; ")
    assert cure("Target('A', partitionkey=1)") == "write partition_key="
    assert cure("Target('A', colour=1)") == (
        "leave it out; Target takes table, partition_key, row_key, properties, allow_empty, shared"
    )
    assert cure("props.copy('A', 'B')") == "it is copy(source, *, to): what stands after * is given by name"
    assert cure("migrations = Migration").startswith("write migrations = for_each_table(")


def test_one_migration_under_the_name_of_several_is_said_to_be_one(write: Write) -> None:
    path = write(
        "0001",
        SCRIPT.format(doc="x", depends="set()", source="Old", target="New").replace(
            "migration =", "migrations ="
        ),
    )
    assert wrong(path).hint == "write `migration = Migration(…)`, without s"


def test_an_import_error_names_the_module(write: Write) -> None:
    error = wrong(write("0001", "\nimport no_such_module_anywhere\n"))
    assert error.problem == "an import of no_such_module_anywhere failed (line 2)"


def test_an_exception_is_named_by_type_and_line(write: Write) -> None:
    error = wrong(write("0001", '\n\nraise KeyError("alice@example.com")\n'))
    assert error.problem == "it raised KeyError (line 3)"


def test_a_script_that_exits_is_an_error(write: Write) -> None:
    assert "SystemExit" in wrong(write("0001", 'import sys\nsys.exit("alice@example.com")\n')).problem


def test_no_migration_and_something_else_under_its_name(write: Write) -> None:
    assert wrong(write("0001", "x = 1")).field == "migration"
    assert "it is of type dict" in wrong(write("0002", "migration = {}")).problem


def test_a_contradiction_names_script_field_line_and_cure(write: Write) -> None:
    text = SCRIPT.format(doc="", depends="set()", source="Users", target="users")
    error = wrong(write("0001_users", text))
    assert error.script == "0001_users"
    assert error.field == "target.table"
    assert error.problem.endswith("(line 6)")
    assert "new name" in error.hint
    assert str(error).startswith("0001_users: target.table: users is also the source")


def test_a_missing_and_an_unknown_argument_are_named(write: Write) -> None:
    text = SCRIPT.format(doc="", depends="set()", source="Users", target="UsersV2")
    error = wrong(write("0001", text.replace('    capture="delta",\n', "")))
    assert (error.field, error.problem) == ("capture", "Migration needs capture (line 6)")
    assert "add capture" in error.hint
    error = wrong(write("0002", text.replace("capture=", "captures=")))
    assert error.problem == "Migration has no argument captures (line 6)"
    error = wrong(write("0003", 'from rekey import keys\nkeys.opaque("RowKey", domain="d")\n'))
    assert (error.field, error.problem) == ("secret", "opaque needs secret (line 2)")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ('rows.prop("Status", equal="open")', "write equals="),
        ('rows.row_key(prefx="U_")', "write prefix="),
        ('keys.prop("Status", equals="open")', "leave it out; prop takes name, default"),
        ('rows.row_key("U_")', "what stands after * is given by name"),
        ("rows.rowkey(prefix='U_')", "write row_key"),
        ('row.row_key(prefix="U_")', "write rows"),
    ],
)
def test_a_wrong_condition_is_answered_with_the_right_one(write: Write, call: str, told: str) -> None:
    error = wrong(write("0001", f"from rekey import keys, rows\nx = {call}\n"))
    assert "line 2" in error.problem
    assert told in error.hint


def test_other_type_errors_show_no_text(write: Write) -> None:
    error = wrong(write("0001", "raise TypeError('alice@example.com() missing nothing')\n"))
    assert error.problem == "it raised TypeError (line 1)"


@pytest.mark.parametrize("depends", ["5", "{'a': 1}", "[5]", "None"])
def test_dependencies_of_another_kind_are_refused(write: Write, depends: str) -> None:
    assert wrong(write("0001", depends=depends)).field == "__depends__"


def test_a_script_cannot_depend_on_itself(write: Write) -> None:
    assert "itself" in wrong(write("0001", depends="'0001'")).problem


def test_a_file_that_is_not_there_or_cannot_be_read_is_refused(write: Write, tmp_path: Path) -> None:
    """A client names a script by its id alone."""
    write("0002_posts")
    missing = wrong(tmp_path / "0001.py")
    assert missing.problem == f"there is no such script in {tmp_path}"
    assert missing.hint == "there are: 0002_posts"
    (tmp_path / "0003.py").mkdir()
    assert "cannot be read" in wrong(tmp_path / "0003.py").problem


# --- errors of scripts together ----------------------------------------------------------------------


def together(folder: Path) -> DeclarationError:
    with pytest.raises(DeclarationError) as caught:
        load_scripts(folder)
    return caught.value


def test_a_missing_dependency_is_named(write: Write, tmp_path: Path) -> None:
    write("0002", depends="{'0001'}")
    error = together(tmp_path)
    assert (error.script, error.field) == ("0002", "__depends__")
    assert "no script 0001" in error.problem


def test_a_cycle_is_written_out(write: Write, tmp_path: Path) -> None:
    write("0001", depends="{'0002'}")
    write("0002", depends="{'0004'}")
    write("0003", depends="{'0002'}")
    write("0004", depends="{'0003'}")
    error = together(tmp_path)
    assert error.problem == "a cycle: 0002 → 0004 → 0003 → 0002"
    assert error.script == "0002"


def test_a_cycle_of_tables_is_a_cycle(write: Write, tmp_path: Path) -> None:
    write("0001", source="Aaa", target="Bbb")
    write("0002", source="Bbb", target="Aaa")
    assert together(tmp_path).problem == "a cycle: 0001 → 0002 → 0001"


def test_two_scripts_cannot_fill_one_table(write: Write, tmp_path: Path) -> None:
    write("0001", target="Same")
    write("0002", target="SAME")
    error = together(tmp_path)
    assert error.script == "0002"
    assert "0001 fills the table SAME too" in error.problem


SHARED = '''"""A region."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="Orders{region}",
    target=Target(
        "{table}",
        partition_key=keys.literal("{region}") + keys.prop("PartitionKey"),
        row_key=keys.keep(),
        properties=[props.copy("PartitionKey", to="Customer")],
        shared={shared},
    ),
    capture="delta",
)
'''


def test_scripts_fill_one_table_where_their_keys_are_apart(write: Write, tmp_path: Path) -> None:
    write("0001", SHARED.format(region="DE", table="Orders", shared=True))
    write("0002", SHARED.format(region="FR", table="ORDERS", shared=True))
    write("0003", source="Orders", target="Next")
    assert load_scripts(tmp_path)[2].depends == {"0001", "0002"}


def test_a_script_of_a_part_waits_for_those_that_may_fill_it(write: Write, tmp_path: Path) -> None:
    write("0001", SHARED.format(region="DE", table="Orders", shared=True))
    write("0002", SHARED.format(region="FR", table="Orders", shared=True))
    text = SHARED.format(region="DE", table="Next", shared=False)
    where = 'source="ORDERS",\n    where=rows.partition_key(prefix="DE1"),'
    write(
        "0003",
        text.replace('source="OrdersDE",', where).replace("import Migration", "import Migration, rows"),
    )
    assert load_scripts(tmp_path)[2].depends == {"0001"}


@pytest.mark.parametrize(
    ("region", "shared"),
    [("DEX", True), ("D", True), ("FR", False)],
    ids=["begins with the other", "begins the other", "the whole table"],
)
def test_scripts_that_may_write_the_same_key_are_refused(
    write: Write, tmp_path: Path, region: str, shared: bool
) -> None:
    write("0001", SHARED.format(region="DE", table="Orders", shared=True))
    write("0002", SHARED.format(region=region, table="Orders", shared=shared))
    error = together(tmp_path)
    assert (error.script, error.field) == ("0002", "target")
    assert "0001 fills the table Orders too" in error.problem
    assert "shared=True in both" in error.hint


# --- isolation ---------------------------------------------------------------------------------------

CUSTOM = """
from rekey import Migration, Target, keys
import _helper
from dataclasses import dataclass

@dataclass
class Local:
    text: "str"

migration = Migration(
    source="Old",
    target=Target("New", partition_key=keys.prop("PartitionKey"),
                  row_key=keys.custom("_helper:last", "RowKey", version=1)),
    capture="delta",
    reverse=False,
)
"""


def test_custom_functions_beside_the_scripts_work_and_leave_no_trace(write: Write, tmp_path: Path) -> None:
    write("_deeper", "SEPARATOR = '-'")
    write(
        "_helper", "from _deeper import SEPARATOR\n\ndef last(text):\n    return text.split(SEPARATOR)[-1]\n"
    )
    path, modules = list(sys.path), set(sys.modules)
    declared = load_script(write("0001", CUSTOM))
    assert sys.path == path
    assert not {
        name for name in set(sys.modules) - modules if name.startswith(("_helper", "_deeper", "_rekey"))
    }
    assert not list(tmp_path.glob("__pycache__"))
    mapped = Mapper(declared.migration, {}).map({"PartitionKey": "p", "RowKey": "a-b"})
    assert mapped[0].row["RowKey"] == "b"


def test_a_failing_script_leaves_no_trace_either(write: Write) -> None:
    write("_helper", "x = 1")
    path, modules = list(sys.path), set(sys.modules)
    wrong(write("0001", "import _helper\nraise ValueError\n"))
    assert sys.path == path
    assert set(sys.modules) - modules == set()


def test_each_folder_has_its_own_modules(tmp_path: Path) -> None:
    digests = []
    for name, result in (("one", "text"), ("two", "text.lower()")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "_helper.py").write_text(f"def last(text):\n    return {result}\n")
        (folder / "0001.py").write_text(CUSTOM)
        digests.append(load_scripts(folder)[0].digest)
    assert digests[0] != digests[1]


def test_a_module_of_the_same_name_is_restored(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = type(sys)("_helper")
    monkeypatch.setitem(sys.modules, "_helper", elsewhere)
    write("_helper", "def last(text):\n    return text\n")
    load_script(write("0001", CUSTOM))
    assert sys.modules["_helper"] is elsewhere


def test_editing_a_custom_function_changes_the_digest(write: Write) -> None:
    script = write("0001", CUSTOM)
    write("_helper", "def last(text):\n    return text\n")
    before = load_script(script).digest
    write("_helper", "def last(text):\n    return text.lower()\n")
    assert load_script(script).digest != before


@pytest.mark.parametrize("name", ["json", "rekey"])
def test_a_module_that_shadows_a_dependency_is_refused(write: Write, tmp_path: Path, name: str) -> None:
    write("0001")
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    assert "hides a module" in together(tmp_path).problem


# --- parts of one table ------------------------------------------------------------------------------------

PART = '''"""A part."""
from rekey import Migration, Target, keys, rows

__depends__ = {depends}

migration = Migration(
    source="Invoices",
    where={where},
    target=Target("T{name}", partition_key=keys.prop("RowKey"), row_key=keys.prop("PartitionKey")),
    capture="{capture}",
)
'''
WITHIN_A = 'rows.all_of(rows.partition_key(equals="a"), rows.row_key(prefix="{}"))'
TENANT_A, TENANT_B = 'rows.partition_key(equals="a")', 'rows.partition_key(equals="b")'


def parts(write: Write, first: str, second: str, capture: str = "delta", depends: str = "set()") -> Path:
    """Write two scripts of one source; return their folder."""
    write("0001_first", PART.format(where=first, name="0001", capture=capture, depends="set()"))
    text = PART.format(where=second, name="0002", capture=capture, depends=depends)
    return write("0002_second", text).parent


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TENANT_A, TENANT_B),
        (TENANT_A, f"rows.none_of({TENANT_A})"),
        ('rows.partition_key(prefix="a")', 'rows.partition_key(at_least="b")'),
        (WITHIN_A.format(1), WITHIN_A.format(2)),
    ],
    ids=["tenants", "a tenant and the others", "ranges", "within a partition"],
)
def test_scripts_of_parts_that_are_apart_load(write: Write, first: str, second: str) -> None:
    assert [script.script_id for script in load_scripts(parts(write, first, second))] == [
        "0001_first",
        "0002_second",
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TENANT_A, TENANT_A),
        (TENANT_A, "None"),
        ("None", TENANT_B),
        ('rows.partition_key(prefix="a")', 'rows.partition_key(one_of=["ab", "c"])'),
        ('rows.row_key(prefix="1")', 'rows.row_key(prefix="2")'),
        ('rows.partition_key(pattern="a.*")', 'rows.partition_key(pattern="b.*")'),
        (TENANT_A, 'rows.all_of(rows.partition_key(one_of=["a", "b"]), rows.row_key(prefix="1"))'),
    ],
    ids=["the same", "the whole table", "a part of it", "overlap", "row keys alone", "patterns", "within"],
)
def test_scripts_that_may_migrate_the_same_row_are_refused(write: Write, first: str, second: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        load_scripts(parts(write, first, second))
    assert (refused.value.script, refused.value.field) == ("0002_second", "where")
    assert "0001_first" in refused.value.problem
    assert "0001_first and 0002_second" in refused.value.hint


@pytest.mark.parametrize("depends", ["set()", '{"0001_first"}'])
def test_parts_that_clients_follow_load_with_and_without_an_order(write: Write, depends: str) -> None:
    scripts = load_scripts(parts(write, TENANT_A, TENANT_B, capture="dual-write", depends=depends))
    assert [script.script_id for script in scripts] == ["0001_first", "0002_second"]
