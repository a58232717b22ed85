"""The documents tell of what is there: every command, option, package, exit code; every link leads on, every
table is whole, and the pictures show what the code says."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import click
import pytest

from docs.pictures import draw_phases
from rekey import Index, Migration, RowKind, Target, keys, props, rows
from rekey.cli.main import rekey
from rekey.client.sdk.errors import NOTHING_WRITTEN, OPEN
from rekey.core.distribution import VERSION
from rekey.core.edm import TYPES
from rekey.declaration.casts import PAIRS
from rekey.declaration.migration import CAPTURES
from rekey.declaration.requirements import CODES, LOADS
from rekey.errors import ConfigurationError, ExitCode, RowTooBusy
from rekey.phases import ORDER, ControlPhase
from rekey.plan import problems
from rekey.project.config import EvidenceKey, default_config, load_config
from rekey.rehearse.data import open_data
from rekey.verify.report import DifferenceKind
from tests.asserts.documents import ROOT, blocks, documents, pages
from tests.asserts.every import every
from tests.soaking import files_of_the_soak

README = (ROOT / "README.md").read_text("utf-8")
INDEX = (ROOT / "docs/README.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CAPTURE = (ROOT / "docs/guides/capture.md").read_text("utf-8")
COMMANDS = (ROOT / "docs/reference/commands.md").read_text("utf-8")
CONFIGURATION = (ROOT / "docs/reference/configuration.md").read_text("utf-8")
EXPRESSIONS = (ROOT / "docs/reference/expressions.md").read_text("utf-8")
SCRIPTS = (ROOT / "docs/guides/scripts.md").read_text("utf-8")
GLOSSARY = (ROOT / "docs/reference/glossary.md").read_text("utf-8")
RUNBOOKS = "".join(path.read_text("utf-8") for path in sorted((ROOT / "runbooks").glob("*.md")))
DEPENDENCIES = (ROOT / "docs/internals/dependencies.md").read_text("utf-8")

MAX_README_LINES, MAX_README_WORDS = 200, 1200
MAX_ARCHITECTURE_LINES = 160
MAX_CONTRIBUTING_WORDS = 1200
MAX_DECISION_WORDS = 500
SHAPES = {"svg", "title", "style", "defs", "marker", "path", "rect", "text", "g"}

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:rekey|tests|docs|runbooks|migrations)/[\w/.-]+)`")
_COMMAND = re.compile(r"`(rekey [^`]*)`")


def commands() -> list[tuple[str, click.Command]]:
    """Return the commands of the command line; those of a group with the group's name before theirs."""
    found: dict[str, click.Command] = {}
    context = click.Context(rekey)
    for name in rekey.list_commands(context):
        one = rekey.get_command(context, name)
        assert one is not None
        group = one.commands.items() if isinstance(one, click.Group) else {}
        found |= {f"{name} {below}": command for below, command in group} or {name: one}
    return sorted(found.items())


def options_of(command: click.Command) -> set[str]:
    """Return the long options of a command."""
    spelled = {
        word
        for one in command.params
        if isinstance(one, click.Option)
        for word in one.opts + one.secondary_opts
    }
    return {word for word in spelled if word.startswith("--")} | {"--help"}


def named(word: str, text: str) -> bool:
    """Tell whether an option stands in a text as a word of its own."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def anchor_of(heading: str) -> str:
    """Return the anchor that a heading gets when it is rendered."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def outside_blocks(path: Path) -> str:
    """Return a document's text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


# --- the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "command"), commands())
def test_every_command_and_option_is_on_the_page_of_commands(name: str, command: click.Command) -> None:
    """Every command has its row there; an option stands in it, or among those of every command."""
    [row] = [
        line for line in COMMANDS.splitlines() if line.startswith((f"| `rekey {name}`", f"| `rekey {name} "))
    ]
    common = COMMANDS[COMMANDS.index("## Options of every command") : COMMANDS.index("## Exit codes")]
    missing = {option for option in options_of(command) if not named(option, row + common)}
    assert not missing


@pytest.mark.parametrize(("name", "command"), commands())
def test_every_command_has_an_example_in_its_help(name: str, command: click.Command) -> None:
    assert command.help
    assert f"rekey {name}" in (command.epilog or "")


def test_documents_name_only_commands_and_options_that_are_there() -> None:
    known = dict(commands())
    wrong = []
    for path in documents():
        text = path.read_text("utf-8")
        typed = [line.removeprefix("$ ") for one in blocks(path) for line in one.text.splitlines()]
        typed = [line for line in typed if line.startswith("rekey ")]
        for words in [*_COMMAND.findall(text), *typed]:
            first, *rest = words.partition("#")[0].split()[1:] or [""]
            if rest and f"{first} {rest[0]}" in known:
                first, rest = f"{first} {rest[0]}", rest[1:]
            if first not in known and first not in rekey.commands:
                wrong += [f"{path.name}: {words}"] if re.fullmatch(r"[a-z]+", first) else []
                continue
            if first not in known:  # a group: alone, or with a command that it does not have
                wrong += [f"{path.name}: {words}"] if rest and rest[0].isalpha() else []
                continue
            options = {word.partition("=")[0] for word in rest if word.startswith("--")}
            wrong += [f"{path.name}: {words}" for word in options if word not in options_of(known[first])]
    assert not wrong


def test_every_exit_code_is_documented() -> None:
    table = COMMANDS[COMMANDS.index("## Exit codes") :]
    for code in ExitCode:
        assert f"| {int(code)} | " in table


def test_every_key_of_the_configuration_is_documented_with_its_default(tmp_path: Path) -> None:
    (tmp_path / "rekey.toml").write_text(default_config(), "utf-8")
    config = load_config(tmp_path / "rekey.toml")
    for name, default in [*vars_of(config.limits), *vars_of(config.gates)]:
        assert f"{name}`" in CONFIGURATION, name
        said = tomllib.loads(default_config())["limits" if default == "limits" else "gates"].get(name)
        if said is not None:
            shown = f'"{said}"' if isinstance(said, str) else str(said)
            assert re.search(rf"{name}` \| `{re.escape(shown)}`", CONFIGURATION), name
    for part in tomllib.loads(default_config()):
        assert f"[{part}]" in CONFIGURATION
    for name in vars(EvidenceKey)["__slots__"]:
        assert re.search(rf"\[evidence\].*`{name}`|`\[evidence\] {name}`", CONFIGURATION), name


def vars_of(settings: object) -> Iterator[tuple[str, str]]:
    """Yield the keys of `[limits]` or `[gates]`, each with the name of its section."""
    section = type(settings).__name__.lower()
    for name in type(settings).__dataclass_fields__:  # type: ignore[attr-defined]
        yield name.removesuffix("_s"), section


# --- declarations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in sorted(keys.__all__) if name.islower()])
def test_every_key_expression_is_documented(name: str) -> None:
    assert f"`keys.{name}(" in EXPRESSIONS


@pytest.mark.parametrize("name", [name for name in sorted(props.__all__) if name.islower()])
def test_every_property_operation_is_documented(name: str) -> None:
    assert f"`props.{name}(" in EXPRESSIONS


@pytest.mark.parametrize("name", [name for name in sorted(rows.__all__) if name.islower()])
def test_every_condition_is_documented(name: str) -> None:
    assert f"`rows.{name}(" in EXPRESSIONS


@pytest.mark.parametrize("declared", [Migration, RowKind, Target, Index])
def test_every_argument_of_a_declaration_is_documented(declared: type) -> None:
    [block] = [one for one in blocks(ROOT / "docs/guides/scripts.md") if one.text.startswith("Migration(")]
    [said] = [call for call in ast.walk(ast.parse(block.text)) if is_call_of(declared.__name__, call)]
    shown = [ast.unparse(one) for one in said.args] + [str(one.arg) for one in said.keywords]
    taken = list(inspect.signature(declared).parameters)  # all but the first are named
    assert (shown[0], sorted(shown)) == (taken[0], sorted(taken))


def is_call_of(name: str, node: ast.AST) -> TypeGuard[ast.Call]:
    """Tell whether a node is a call of the name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def test_the_example_of_the_readme_is_the_script_that_it_names() -> None:
    [shown] = [one for one in blocks(ROOT / "README.md", "Example") if one.language == "python"]
    script = (ROOT / "migrations/0001_users_opaque_ids.py").read_text("utf-8")
    assert script.endswith(f'"""\n\n{shown.text}')


@pytest.mark.parametrize("capture", CAPTURES)
def test_every_capture_is_documented(capture: str) -> None:
    choice = README[README.index("## Which capture to choose") : README.index("## Limits")]
    assert f'`capture="{capture}"`' in choice
    assert f'\n## capture="{capture}"\n' in CAPTURE


# --- words and codes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [*ORDER, *ControlPhase, *DifferenceKind])
def test_every_phase_and_kind_of_divergence_is_in_the_glossary(word: str) -> None:
    assert named(str(word), GLOSSARY)


@pytest.mark.parametrize("kind", DifferenceKind)
def test_the_runbook_explains_every_kind_of_divergence(kind: DifferenceKind) -> None:
    assert f"| `{kind}` |" in (ROOT / "runbooks/divergences.md").read_text("utf-8")


def test_the_runbook_knows_every_error_of_a_plan() -> None:
    errors = {code for code, texts in problems.TEXTS.items() if texts["severity"] == "error"}
    assert len(errors) > 5
    explained = (ROOT / "runbooks/plan.md").read_text("utf-8")
    assert {code for code in errors if f"`{code}`" not in explained} == set()


def test_the_runbook_for_applications_has_every_code_in_one_table() -> None:
    """Codes are constants of the client's modules and of the protocol's rules, and the first argument of the
    errors that refuse rows."""
    page = (ROOT / "runbooks/application-teams.md").read_text("utf-8")
    table = page[page.index("All codes:") : page.index("## Not recoverable")]
    modules = [*(ROOT / "rekey/client").rglob("*.py"), ROOT / "rekey/protocol/rules.py"]
    found: set[str] = set()
    constant = r'^[A-Z][A-Z_]+ = "([a-z]+(?:-[a-z]+)+|closed|frozen|forked|unavailable)"'
    for module in modules:
        found |= set(re.findall(constant, module.read_text("utf-8"), flags=re.MULTILINE))
    for module in (ROOT / "rekey").rglob("*.py"):
        refusals = re.findall(r'(?:RowRefused|\.refusal)\(\s*"([a-z-]+)"', module.read_text("utf-8"))
        found |= set(refusals)
    found |= {RowTooBusy("", hint="").code, "collision"}
    assert len(found) > 30
    told = set(re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, flags=re.MULTILINE))))
    assert {code for code in found if f"`{code}`" not in table} == set()
    assert told - found == set()
    assert f"| `{NOTHING_WRITTEN}` |" in page
    assert f"| `{OPEN}` |" in page


@pytest.mark.parametrize("code", CODES)
def test_every_kind_of_advice_has_its_page(code: str) -> None:
    page = (ROOT / f"docs/advice/{code}.md").read_text("utf-8")
    assert page.startswith(f"# {code}: {CODES[code]}\n\nSeverity: ")
    headings = re.findall(r"^## (.*)$", page, flags=re.MULTILINE)
    assert headings == ["What it says", "Why it matters", "What to do", "When it stays quiet"]
    assert f"| [{code}]({code}.md) | {CODES[code]} |" in (ROOT / "docs/advice/README.md").read_text("utf-8")


def test_every_page_on_advice_is_about_a_kind_that_there_is() -> None:
    pages = {page.stem for page in (ROOT / "docs/advice").glob("*.md")}
    assert pages - {"README"} == set(CODES)
    assert f"each of the {len(CODES)} kinds" in SCRIPTS


@pytest.mark.parametrize(
    "name", [*LOADS, "query.point", "query.range", "query.latest", *("queries", "waive")]
)
def test_every_need_that_a_script_can_declare_is_documented(name: str) -> None:
    assert name in SCRIPTS and name in (ROOT / "docs/advice/README.md").read_text("utf-8")


# --- the code ---------------------------------------------------------------------------------------------


def test_the_page_on_packages_lists_exactly_the_packages_that_exist() -> None:
    """What a module is for stands in its doc string; what a folder is for, in that table."""
    layers = (ROOT / "docs/internals/packages.md").read_text("utf-8")
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rekey").rglob("__init__.py")}
    folders = {name.removesuffix("/__init__.py") for name in there}
    assert {name for name in folders if f"`{name}`" not in layers} == set()
    assert set(re.findall(r"^\| `(\S+)` \|", layers, flags=re.MULTILINE)) <= folders


def test_every_invariant_says_where_it_is_kept_and_which_tests_show_it() -> None:
    table = ARCHITECTURE[ARCHITECTURE.index("## Invariants") : ARCHITECTURE.index("## Simulation")]
    rows = [cells_of(line) for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    for what, kept, shown in rows:
        for cell, folder in ((kept, "rekey/"), (shown, "tests/")):
            named_there = re.findall(r"`([^`]+)`", cell)
            assert named_there, what
            assert every(name.startswith(folder) for name in named_there), what
            assert every((ROOT / name).exists() for name in named_there), what


def test_every_path_that_a_document_names_exists() -> None:
    """Packages and tests move; `*` and `NNNN` stand for more than one file."""
    wrong = [
        f"{path.name}: {name}"
        for path in documents()
        for name in _PATH.findall(path.read_text("utf-8"))
        if "*" not in name and "NNNN" not in name and not (ROOT / name).exists()
    ]
    assert not wrong


def test_every_dependency_is_listed_with_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(one for several in optional for one in several)]
    names = {re.split(r"[<>=!~\[; ]", one)[0] for one in wanted}
    assert {name for name in names if f"`{name}`" not in DEPENDENCIES} == set()


def test_the_version_is_the_first_of_the_change_log() -> None:
    """What is not released yet may stand above it."""
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    assert next(one for one in headings if one != "Unreleased") == VERSION
    assert "Unreleased" not in headings[1:]


# --- links and decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path: Path) -> None:
    for link in _LINK.findall(outside_blocks(path)):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), flags=re.MULTILINE)
            assert anchor in map(anchor_of, headings), link


def test_decisions_are_numbered_listed_and_say_what_follows_from_them() -> None:
    pages = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    listed = (ROOT / "docs/adr/README.md").read_text("utf-8")
    for number, page in enumerate(pages, 1):
        text = page.read_text("utf-8")
        assert page.name.startswith(f"{number:04}-")
        assert text.startswith(f"# {number}. ")
        title = text.splitlines()[0].partition(". ")[2]
        assert f"]({page.name}) | {title}".lower() in listed.lower()
        headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences"], page.name
        assert len(text.split()) <= MAX_DECISION_WORDS, page.name


def test_every_runbook_is_in_their_list_which_the_readme_links() -> None:
    listed = (ROOT / "runbooks/README.md").read_text("utf-8")
    assert "](runbooks/README.md)" in README
    for path in (ROOT / "runbooks").glob("*.md"):
        if path.stem != "README":
            assert f"]({path.name})" in listed


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_every_page_is_linked_from_the_index(page: Path) -> None:
    assert f"]({page.relative_to(ROOT / 'docs').as_posix()})" in INDEX


def test_pages_stand_in_a_section_and_the_index_links_what_stands_elsewhere() -> None:
    assert [path.name for path in (ROOT / "docs").glob("*.md")] == ["README.md"]
    assert "](docs/README.md)" in README
    for folder in ("../runbooks", "../migrations", "adr", "advice", "../benchmarks"):
        assert f"]({folder}/README.md)" in INDEX


def test_the_folder_of_scripts_says_first_that_these_are_examples() -> None:
    page = (ROOT / "migrations/README.md").read_text("utf-8")
    assert "worked examples" in page.splitlines()[0]
    for script in (ROOT / "migrations").glob("*.py"):
        assert f"]({script.name})" in page


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_every_page_begins_with_what_it_assumes(page: Path) -> None:
    """Each may be the first that somebody opens."""
    first = page.read_text("utf-8").split("\n\n")[1]
    assert first.startswith("*Assumes:* "), first


# --- form ---------------------------------------------------------------------------------------------------


def test_pages_for_a_first_reading_are_short() -> None:
    assert len(README.splitlines()) <= MAX_README_LINES
    assert len(README.split()) <= MAX_README_WORDS
    assert len(ARCHITECTURE.splitlines()) <= MAX_ARCHITECTURE_LINES
    assert len(CONTRIBUTING.split()) <= MAX_CONTRIBUTING_WORDS


def cells_of(line: str) -> list[str]:
    """Return the cells of a table's row; `\\|` is a bar within one."""
    return [one.strip() for one in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_row_of_a_table_has_as_many_cells_as_its_head(path: Path) -> None:
    """A row of another table in the middle of one is rendered without complaint."""
    width, broken = 0, []
    for line in outside_blocks(path).splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        width = width or len(cells_of(line))
        if len(cells_of(line)) != width or not line.rstrip().endswith("|"):
            broken.append(line)
    assert not broken


# --- pictures -----------------------------------------------------------------------------------------------


def parsed(picture: str) -> ET.Element:
    """Return a picture of this repository as XML."""
    return ET.fromstring(picture)  # noqa: S314 - what stands in this repository


def test_the_picture_of_the_phases_is_what_the_table_of_phases_gives() -> None:
    assert draw_phases.PICTURE.read_text("utf-8") == draw_phases.draw(), "run `make pictures`"


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs/pictures").glob("*.svg")), ids=lambda path: path.name
)
def test_pictures_load_nothing_and_are_shown(picture: Path) -> None:
    text = picture.read_text("utf-8")
    assert {part.tag.rpartition("}")[2] for part in parsed(text).iter()} <= SHAPES
    assert re.findall(r"(?:href|src|url)\b", text.replace("url(#", "")) == []
    assert f"](docs/pictures/{picture.name})" in README


def test_the_recording_of_the_demo_shows_all_of_it_and_no_key() -> None:
    recording = parsed((ROOT / "docs/pictures/demo.svg").read_text("utf-8"))
    lines = [part.text or "" for part in recording.iter("{http://www.w3.org/2000/svg}text")]
    typed = [line.split()[2] for line in lines if line.startswith("$ rekey ")]
    assert list(dict.fromkeys(typed)) == [
        *("plan", "apply", "status", "verify", "rollback", "retire", "evidence", "export"),
    ]
    assert "Passed: everything was as it must be, after every step." in lines
    assert not any("@" in line for line in lines), "an e-mail address is a key of this table"


def test_files_with_soak_tests_say_what_make_test_leaves_out_and_why() -> None:
    marked = set(files_of_the_soak())
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        pattern = r"^Soak: .+\n(.+\n)*?Reason, and what `make test` covers: .+"
        is_explained = re.search(pattern, docstring, re.MULTILINE)
        assert (is_explained is not None) == (path in marked), path.name


def test_the_page_on_expressions_lists_every_cast() -> None:
    page = (ROOT / "docs/reference/expressions.md").read_text("utf-8").partition("## Casts")[2]
    said: set[tuple[str, str]] = set()
    for before, after in re.findall(r"^\| (Edm[^|]+) \| ([^|]+) \|$", page, re.MULTILINE):
        for one in before.split(", "):
            names = sorted(TYPES - {one}) if after == "all others" else after.split(", ")
            said |= {(one, name) for name in names}
    assert said == PAIRS


def test_the_header_that_documents_and_errors_show_is_read(tmp_path: Path) -> None:
    [block] = [one for one in blocks(ROOT / "docs/reference/commands.md") if one.language == "csv"]
    path = tmp_path / "rows.csv"
    path.write_text(block.text, "utf-8")
    [row] = open_data(path).rows()
    assert (row["Age"], row["Joined@odata.type"]) == (41, "Edm.DateTime")
    path.write_text("PartitionKey\np\n", "utf-8")
    with pytest.raises(ConfigurationError, match=re.escape("PartitionKey,RowKey,Age:Edm.Int32")):
        list(open_data(path).rows())


def test_every_test_that_the_threat_model_names_exists() -> None:
    page = (ROOT / "docs/internals/threat-model.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 20
    for path, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), name
    held = [line for line in page.splitlines() if line.startswith("| holds:")]
    assert [line for line in held if "::test_" not in line] == []
