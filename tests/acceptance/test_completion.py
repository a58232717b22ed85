"""Completion in shells: bash with a terminal, as users press TAB; the others by what their scripts ask."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from rekey.cli.main import run
from rekey.cli.shell import Surroundings

ROOT = Path(__file__).parents[2]


def rekey_on_the_path(folder: Path) -> str:
    """Put a program `rekey` that runs this package into a folder; return the PATH with it."""
    program = folder / "rekey"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m rekey "$@"\n')
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def typed_into_bash(keys: str, folder: Path) -> str:
    """Type into an interactive bash until it ends; return what the terminal showed."""
    ours, theirs = pty.openpty()
    own = {"PATH": rekey_on_the_path(folder), "TERM": "dumb", "PS1": "> ", "HISTFILE": ""}
    words = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, **own},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as bash:
        os.close(theirs)
        os.write(ours, keys.encode())
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how Linux tells the end of a terminal
            pass
        bash.wait()
    os.close(ours)
    return shown.decode("utf-8", "replace")


def test_bash_completes_a_command_its_option_and_a_file(tmp_path: Path) -> None:
    """`rehe`, TAB, `--dat`, TAB, `row`, TAB: completed, and run with an option that ends it."""
    (tmp_path / "rows.jsonl").touch()
    keys = 'eval "$(rekey completion bash)"\nrekey rehe\t--dat\trow\t--help > told.txt\nexit\n'
    shown = typed_into_bash(keys, tmp_path)
    assert "rekey rehearse --data rows.jsonl --help > told.txt" in shown
    assert (tmp_path / "told.txt").read_text("utf-8").startswith("Usage: rekey rehearse")


def asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[str]:
    """Run `rekey` as a shell's script does; return the lines that it answers."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run([], Surroundings()) == 0
    return capsys.readouterr().out.splitlines()


def test_the_commands_are_completed_without_importing_them(tmp_path: Path) -> None:
    program = (
        "import sys; from rekey.cli.main import run; run([]); "
        "sys.exit(any(f'rekey.cli.{name}' in sys.modules for name in ('plan', 'apply', 'stress')))"
    )
    variables = {"_REKEY_COMPLETE": "bash_complete", "COMP_WORDS": "rekey ", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {"plain,plan", "plain,apply", "plain,stress"} <= set(done.stdout.splitlines())


def test_zsh_is_answered_with_what_each_command_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asked(capsys, monkeypatch, _REKEY_COMPLETE="zsh_complete", COMP_WORDS="rekey ver", COMP_CWORD="1")
    assert told == ["plain", "verify", "Compare the source of a migration with its targets."]


def test_fish_is_answered_for_the_commands_of_a_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"COMP_WORDS": "rekey evidence ex", "COMP_CWORD": "ex"}
    [told] = asked(capsys, monkeypatch, _REKEY_COMPLETE="fish_complete", **variables)
    assert told.startswith("plain,export")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_asks_the_installed_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell], Surroundings()) == 0
    assert f"_REKEY_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_what_no_shell_asks_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_REKEY_COMPLETE", "nonsense")
    assert run([], Surroundings()) == 2
    assert "unset it" in capsys.readouterr().err
