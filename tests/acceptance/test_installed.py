"""What is released: wheel and source distribution hold what they need and nothing else, and the wheel alone is
enough for a whole migration. No file of the repository is reached from where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.core.distribution import installed_version

pytestmark = pytest.mark.xdist_group("installed")  # built once
ROOT = Path(__file__).parents[2]
NOT_IN_A_CLONE = ("__pycache__", ".*", "node_modules", "build", "dist", "*.egg-info", "first")
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""


def clean(more: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment without what shows Python the repository."""
    hidden = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "REKEY_CONFIG"}
    return {name: value for name, value in os.environ.items() if name not in hidden} | (more or {})


def run(*words: str | Path, folder: Path, **variables: str) -> str:
    """Run a program in a folder; return what it printed. Its failure is the test's."""
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
    assert done.returncode == 0, done.stdout
    return done.stdout


def package_files() -> set[str]:
    """Return the files of the package as the clone has them."""
    found = (path for path in (ROOT / "rekey").rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with both distributions. The wheel is built from the source distribution, as `make dist` does."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "clone", ignore=shutil.ignore_patterns(*NOT_IN_A_CLONE), symlinks=True)
    run(sys.executable, "-c", BUILD, "build_sdist", folder, folder=folder / "clone")
    [source] = folder.glob("*.tar.gz")
    with tarfile.open(source) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    run(sys.executable, "-c", BUILD, "build_wheel", folder, folder=next((folder / "unpacked").iterdir()))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel in it, and the packages it needs as the tests have them."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    [own] = (folder / "lib").glob("python*/site-packages")
    # A `.pth` in a folder that a `.pth` names is not read: the editable package of the tests is not reached.
    needed = "".join(f"{folder}\n" for folder in sys.path if folder.endswith("site-packages"))
    (own / "needed.pth").write_text(needed, "utf-8")
    [wheel] = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run(*pip, "--no-index", "--no-deps", "--ignore-installed", wheel, folder=folder)
    return folder / "bin"


def test_the_wheel_holds_the_files_of_the_package_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        files = {name for name in packed.namelist() if ".dist-info/" not in name}
        script = packed.read("rekey/rehearse/demo/0001_users_opaque_ids.py")
    assert files == package_files()
    assert script == (ROOT / "migrations/0001_users_opaque_ids.py").read_bytes(), "a link there, a file here"


def test_the_source_distribution_holds_what_the_wheel_is_built_from_and_nothing_else(built: Path) -> None:
    [source] = built.glob("*.tar.gz")
    with tarfile.open(source) as packed:
        files = {one.name.partition("/")[2] for one in packed if one.isfile()}
    made = {name for name in files if ".egg-info/" in name or name in ("PKG-INFO", "setup.cfg")}
    assert files - made == package_files() | {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}


def test_the_installed_command_is_the_one_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "rekey", "--version", folder=tmp_path).split() == ["rekey", installed_version()]
    where = run(installed / "python", "-c", "import rekey; print(rekey.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


@pytest.mark.azurite
def test_the_demo_needs_nothing_but_the_installed_package(installed: Path, tmp_path: Path) -> None:
    printed = run(
        installed / "rekey", "rehearse", "--demo", "--rows", "60", "--folder", tmp_path / "own", folder=tmp_path
    )
    assert printed.startswith("A whole migration, on a local Azurite")
    shown = [line.split()[2] for line in printed.splitlines() if line.startswith("$ rekey ")]
    assert {"plan", "apply", "status", "verify", "rollback", "retire", "evidence"} == set(shown)
    assert "  stopped before `cutover`" in printed, "what commands print is shown"
    assert "\n  → " in printed, "and why they are run"
    assert "Passed: everything was as it must be, after every step." in printed
    assert list((tmp_path / "own").iterdir()) == []
