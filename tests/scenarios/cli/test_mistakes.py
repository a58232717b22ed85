"""Mistakes of new users: each has its exit code and its answer: what happened, what is kept, what comes next.

They are in `mistakes.toml`, and made in this process, on tables in memory. None changes anything.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import click
import pytest

from rekey.cli.main import rekey as group
from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.model import Row
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import user

pytestmark = pytest.mark.xdist_group("mistakes")  # in one process: the projects are made once
MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))
SCRIPT, SCRIPT_FILE = "0001_users", "migrations/0001_users.py"
SECOND = USERS_SCRIPT.replace('"Users"', '"Posts"').replace('"UsersV2"', '"PostsV2"')
TO_CUTOVER = ("apply", "0001", "--to", "cutover", "--writers-stopped")
PLACES: Mapping[str, Sequence[Sequence[str]]] = {
    "nothing": (),
    "new": (),
    "two": (),
    "gate": (("apply",),),
    "cutover": (("apply",), TO_CUTOVER),
    "complete": (("apply",), TO_CUTOVER, ("apply", "--to", "complete", "--yes", SCRIPT)),
}
"""By where the user is: the commands that led there. "nothing" has no project, "two" a second script."""
_INTERNAL = re.compile(r"\b(None|Traceback|[A-Z]\w+Failed|RowRefused|GateClosed|Collision|EndpointDown)\b")
_COMMAND = re.compile(r"`rekey ([^`]*)`")


@dataclass(frozen=True)
class Mistake:
    """A mistake, and how it must be answered: an entry of `mistakes.toml`.

    Attributes:
        do: the words after `rekey`.
        code: exit code.
        what, next: what the answer must say happened, and comes next; `*` stands for any text. Of a plan it
            is the message of an error, and its cure.
        kept: what it must say is kept.
        about: which mistake it is, where the command does not tell.
        write: files that are there while the command runs, by path; "" for one that is not.
        change: texts of files that are there, by path: old and new.
        encoding: of the files that are written or changed.
        folder: where the command is run, below the project's; one called "deleted" is not there anymore.
        env: environment variables.
        shows: what must be printed besides.
        real: connect as a user does, not to the tables in memory.
    """

    do: str
    code: int
    what: str
    next: str
    kept: str = "*"
    about: str = ""
    write: Mapping[str, str] = field(default_factory=dict)
    change: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    encoding: str = "utf-8"
    folder: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    shows: str = ""
    real: bool = False


ALL = [(place, Mistake(**entry)) for place in PLACES for entry in MISTAKES[place]]
CASES = [pytest.param(*one, id=f"{one[0]}: {one[1].do}: {one[1].about}") for one in ALL]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Project]:
    """A project at each place, which no mistake may change."""
    made = {}
    for place, commands in PLACES.items():
        project = made[place] = Project(tmp_path_factory.mktemp(place))
        surroundings = Surroundings(project.connect, project.clock, is_terminal=False)
        secrets = [project.folder / name for name in ("users.secret", "sealing.key")]
        for path in secrets:
            path.chmod(0o600)
        asyncio.run(project.fill("Users", [user(f"user{number}@example.com") for number in range(8)]))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(project.folder)
            patch.delenv("REKEY_CONFIG", raising=False)
            project.script(USERS_SCRIPT.replace('props.drop("Ssn")', 'props.keep("Ssn")'))
            assert run(("plan", "--out", "other.json"), surroundings) == 0
            project.script(USERS_SCRIPT)
            assert [run(words, surroundings) for words in commands] == [0] * len(commands)
        if place == "two":
            project.script(SECOND, "0002_posts.py")
        if place == "nothing":
            for path in (*secrets, project.folder / "rekey.toml", project.folder / SCRIPT_FILE):
                path.unlink()
            (project.folder / "migrations").rmdir()
    return made


def everything(project: Project) -> object:
    """All rows of both accounts, and all files but the state file, in which look-ups are recorded."""
    names = ("Users", "UsersV2", "PostsV2", "rekeycontrol", "rekeymap", "rekeyjournal")

    async def rows() -> list[list[Row]]:
        return [
            service.dump(name)
            for service in (project.tables, project.restricted)
            for name in names
            if await service.table_exists(name)
        ]

    tables = asyncio.run(rows())
    files = [path for path in project.folder.rglob("*") if path.is_file() and "state." not in path.name]
    return tables, {path: path.read_bytes() for path in files}


@contextmanager
def made(project: Project, mistake: Mistake, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a mistake's files and variables, and take the files back afterwards."""
    patch.chdir(project.folder)
    patch.delenv("REKEY_CONFIG", raising=False)
    for name, value in mistake.env.items():
        patch.setenv(name, value)
    texts = dict(mistake.write)
    for name, (old, new) in mistake.change.items():
        text = (project.folder / name).read_text("utf-8")
        assert old in text, (name, old)
        texts[name] = text.replace(old, new)
    paths = {project.folder / name: text for name, text in texts.items()}
    before = {path: path.read_bytes() if path.exists() else None for path in paths}
    for path, text in paths.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, mistake.encoding)
        path.chmod(0o600)
        if not text:
            path.unlink()
    folder = project.folder / mistake.folder
    (folder / "x").mkdir(parents=True, exist_ok=True)
    (folder / "x").rmdir()
    patch.chdir(folder)
    if mistake.folder == "deleted":
        folder.rmdir()
    try:
        yield
    finally:
        patch.chdir(project.folder)
        for path, content in before.items():
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
                path.chmod(0o600)


def answer(out: str, err: str) -> dict[str, str]:
    """Return the parts of what was printed: of an error, of one as JSON, or of the first error of a plan."""
    error = re.search(
        r"^rekey: (?P<what>.+)\n(?:Kept: )?(?P<kept>.+)\nNext: (?P<next>.+)$", err, re.MULTILINE
    )
    if error is not None:
        return error.groupdict()
    if out.startswith("{"):
        document = json.loads(out)
        return {part: document[part] for part in ("what", "kept", "next")}
    plan = re.search(
        r"^ERROR   (?P<what>.+?)^\s+cure: (?P<next>.+?)\n\n(?P<kept>.+)", out, re.MULTILINE | re.DOTALL
    )
    assert plan is not None, out + err
    return {part: " ".join(text.split()) for part, text in plan.groupdict().items()}


def assert_commands_exist(text: str) -> None:
    """Every command in quotes has a name and options that there are."""
    for words in map(shlex.split, _COMMAND.findall(text)):
        command: click.Command = group
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(group), words.pop(0))
            assert found is not None, text
            command = found
        known = {"--help", *(option for one in command.params for option in (*one.opts, *one.secondary_opts))}
        assert {word for word in words if word.startswith("--")} <= known, text


@pytest.mark.parametrize(("place", "mistake"), CASES)
def test_a_mistake_is_answered_and_changes_nothing(
    places: dict[str, Project],
    place: str,
    mistake: Mistake,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = places[place]
    surroundings = Surroundings(None if mistake.real else project.connect, project.clock, is_terminal=False)
    with made(project, mistake, monkeypatch):
        before = everything(project)
        ended = run(shlex.split(mistake.do), surroundings)
        printed = capsys.readouterr()
        assert everything(project) == before
    told = answer(printed.out, printed.err)
    for part, wanted in (("what", mistake.what), ("kept", mistake.kept), ("next", mistake.next)):
        assert fnmatchcase(told[part], wanted.replace("[", "[[]")), f"{part}: {told[part]}"
    assert ended == mistake.code
    assert mistake.shows in printed.out + printed.err
    assert not _INTERNAL.search(printed.out + printed.err), printed
    assert_commands_exist(told["next"])


def test_there_are_about_a_hundred_mistakes_and_none_twice() -> None:
    made = [(place, one.do, one.about) for place, one in ALL]
    assert len(made) == len(set(made)) > 100
