"""The command line in this process: words in, exit code and output back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from tests.worlds.projects import Project


@dataclass(frozen=True)
class Said:
    """What one command printed."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.out)

    @property
    def all(self) -> str:
        """Everything that was printed."""
        return self.out + self.err


class Commands:
    """Runs commands on a project whose tables are in memory."""

    def __init__(
        self, project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.project = project
        self._capsys = capsys
        self._surroundings = Surroundings(project.connect, project.clock, is_terminal=False)
        monkeypatch.setenv("REKEY_CONFIG", str(project.folder / "rekey.toml"))

    def __call__(self, *words: str, code: int | None = 0) -> Said:
        """Run `rekey` with these words and require the exit code; None for any."""
        ended = run(words, self._surroundings)
        printed = self._capsys.readouterr()
        assert code in (None, ended), f"rekey {' '.join(words)}: {printed.out}{printed.err}"
        return Said(printed.out, printed.err)


CommandsOn = Callable[[Project], Commands]
