"""Loaded by every Python process of a traced run: keeps what that process writes.

Rules kept here:

* What is written to a socket is appended to a file of that socket, byte for byte.
* A file is copied before it is removed, written over or cut off; a folder, before it is removed. Files
  without a name get one, among what is kept. What is left at the end is found by its path, which is noted.
* The words of the command line are kept.
* It changes nothing that the traced program sees; what goes wrong here ends the program, so that nobody takes
  an incomplete trace for a whole one.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = os.environ.get("REKEY_TRACE", "")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
NOT_OURS = ("rekey-azurite-", "/proc/")
"""The service's own folder, and what the system makes up."""


class Tracer:
    """What one process leaves for whoever searches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers = itertools.count()
        self.seen: set[str] = set()
        self.busy = False
        for name in ("sent", "kept", "noted"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.note("argv", *sys.orig_argv)

    def name(self) -> str:
        return f"{os.getpid()}-{next(self.numbers)}"

    def note(self, what: str, *texts: str) -> None:
        with (self.folder / "noted" / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, *texts]) + "\n")

    def keep(self, path: str) -> None:
        """Copy a file or a folder as it is now."""
        if not path.startswith(str(self.folder)) and not any(part in path for part in NOT_OURS):
            to = self.folder / "kept" / self.name()
            if Path(path).is_dir():
                shutil.copytree(path, to, ignore=shutil.ignore_patterns("rekey-azurite-*"))
            elif Path(path).is_file():
                shutil.copyfile(path, to)

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        if self.busy or event not in ("open", "os.remove", "os.rename", "os.truncate", "shutil.rmtree"):
            return
        self.busy = True
        try:
            if event == "open":
                self.opened(*args)
            elif event == "os.truncate":
                self.keep(_path(args[0], None))
            else:
                self.keep(_path(args[1] if event == "os.rename" else args[0], args[-1]))
                if event == "os.rename":
                    self.note("file", _path(args[1], args[-1]))
        finally:
            self.busy = False

    def opened(self, path: Any, _mode: Any, flags: int) -> None:
        if isinstance(path, int) or not flags & WRITING:
            return
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - as the program means it
        if flags & os.O_TRUNC and name in self.seen:
            self.keep(name)
        if name not in self.seen:
            self.seen.add(name)
            self.note("file", name)


def _path(path: Any, folder: Any) -> str:
    """Return a path that was given relative to an open folder, or to the present one, or as an open file."""
    if isinstance(path, int):
        return os.path.realpath(f"/proc/self/fd/{path}")
    before = f"/proc/self/fd/{folder}" if isinstance(folder, int) and folder >= 0 else "."
    return os.path.join(os.path.realpath(before), os.fsdecode(path))  # noqa: PTH118 - absolute wins


def _trace_sockets(tracer: Tracer) -> None:
    names: dict[int, tuple[int, Path]] = {}

    def keep(sender: socket.socket, data: Any) -> None:
        known = names.get(sender.fileno())
        if known is None or known[0] != id(sender):
            known = names[sender.fileno()] = (id(sender), tracer.folder / "sent" / tracer.name())
        tracer.busy = True
        try:
            with known[1].open("ab") as file:
                file.write(data)
        finally:
            tracer.busy = False

    class Traced(socket.socket):
        def send(self, data: Any, *more: Any) -> int:  # type: ignore[override]
            sent = super().send(data, *more)
            keep(self, memoryview(data).cast("B")[:sent])
            return sent

        def sendall(self, data: Any, *more: Any) -> None:  # type: ignore[override]
            keep(self, memoryview(data).cast("B"))
            super().sendall(data, *more)

        def sendmsg(self, buffers: Any, *more: Any) -> int:  # type: ignore[override]
            whole = b"".join(bytes(one) for one in buffers)
            sent = super().sendmsg(buffers, *more)
            keep(self, whole[:sent])
            return sent

    socket.socket = Traced  # type: ignore[misc]


def _trace() -> None:
    tracer = Tracer(Path(FOLDER))
    kept = str(tracer.folder / "kept")

    def named(mode: str = "w+b", *_: Any, **options: Any) -> Any:
        options.pop("dir", None)
        return tempfile.NamedTemporaryFile(mode, dir=kept, delete=False, **options)

    tempfile.TemporaryFile = named
    _trace_sockets(tracer)
    sys.addaudithook(tracer.heard)


if FOLDER:
    _trace()
