"""A server of the benchmarks as a process of its own: it prints its port and ends with its standard input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self


class ServerProcess:
    """Runs `python -m MODULE WORDS`; `port` is where it answers, from `__enter__` on."""

    def __init__(self, module: str, *words: object) -> None:
        """Take the module and what its command line says."""
        self._words = [module, *map(str, words)]
        self.port = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._words],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=30)
