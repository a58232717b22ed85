"""Clients in other languages that write through proxies, as processes, and their acknowledged writes."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.worlds.fleet import waited_for


class Writer:
    """A process that writes until its input ends; it prints a line of JSON for each acknowledged write.

    Attributes:
        known: the number that each row has by the acknowledged writes, None for a deleted row.
        times: the DateTime that each row has, as it was sent.
        count: acknowledged writes.
        behind: reads that did not show what was written at once.
        refused: the calls that failed.
        verbs: what was done.
    """

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.known, self.count = dict[str, int | None](), 0
        self.behind = list[str]()
        self.times = dict[str, str | None]()
        self.refused, self.verbs = list[Any](), set[str]()
        self.only_updates = False
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._follows = threading.Thread(target=self._follow, daemon=True)
        self._follows.start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line = json.loads(text)
            if "refused" in line:
                self.refused.append(line)
            elif "behind" in line:
                self.behind.append(line["behind"])
            elif "updates" in line:
                self.only_updates = True
            else:
                self.known[line["row"]] = line["number"]
                self.times[line["row"]] = line.get("when")
                self.verbs.add(line.get("verb", ""))
                self.count += 1

    def until_writing(self, further: int = 25) -> None:
        """Wait until further writes are acknowledged."""
        before = self.count
        waited_for("further writes", lambda: self.count >= before + further or self._has_failed)
        assert not self._has_failed, (self.refused, self.process.poll())

    @property
    def _has_failed(self) -> bool:
        return bool(self.refused) or self.process.poll() is not None

    def update_only(self) -> None:
        """Let it only update rows from now on, neither insert nor delete."""
        assert self.process.stdin is not None
        self.process.stdin.write("updates\n")
        self.process.stdin.flush()
        waited_for("updates", lambda: self.only_updates or self._has_failed)
        assert not self._has_failed, self.refused

    def end(self) -> None:
        """Let it finish the write that it is at."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0, self.refused
        self._follows.join(10)
        assert not self.refused, self.refused


@contextmanager
def ended(*writers: Writer) -> Iterator[None]:
    """Kill writers that still run at the end."""
    try:
        yield
    finally:
        for writer in writers:
            with writer.process:  # waits for it and closes its pipes
                writer.process.kill()


def expected_of(writers: Sequence[Writer]) -> dict[str, int]:
    """Return the rows that must be there by the acknowledged writes."""
    return {row: number for writer in writers for row, number in writer.known.items() if number is not None}
