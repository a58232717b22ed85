"""Executors for tests: what they are given is done at once, and a test may say what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rekey.copy.workers.work import close_host, host, work
from rekey.protocol.opening import joined
from rekey.tables.sent import Sent
from tests.fakes.memory import MemoryTableService
from tests.worlds.projects import Project

Plain = dict[str, Any]
Carry = Callable[[Plain], Plain | None]
NAME = "tests.fakes.executors:begin"


@dataclass
class Inline(Executor):
    """Does what it is given at once, in the caller's thread.

    Attributes:
        runs_once: what it says of itself.
        tasks: how many it says it works on at a time.
        carry: does a task; a test puts something in its place that fails, or does it twice.
        given: all tasks as they travelled.
        answers: all results as they travelled.
    """

    runs_once: bool = True
    tasks: int = 3
    carry: Carry = work
    given: list[Plain] = field(default_factory=list)
    answers: list[Plain] = field(default_factory=list)
    begun: int = 0

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it; whatever is raised is the future's. Without an answer it stays open for ever."""
        assert function is work, "only this function travels"
        [plain] = args
        self.given.append(plain)
        future: Future[Any] = Future()
        try:
            answer = self.carry(plain)
            if answer is not None:
                self.answers.append(answer)
                future.set_result(answer)
        except Exception as error:  # noqa: BLE001 - whatever a test lets it raise
            future.set_exception(error)
        return future


_current: list[Inline] = []


def begin() -> Executor:
    """Return the executor of the test that runs: the factory that `NAME` names."""
    _current[-1].begun += 1
    return _current[-1]


class Apart(MemoryTableService):
    """Another connection to the same tables, which counts what it sends by itself, as on another machine."""

    def __init__(self, beside: MemoryTableService) -> None:
        """Take the first connection: everything else is what it is there, also what a test changes later."""
        self.__dict__.update(beside=beside, sent=Sent())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["beside"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["beside"], name, value)


@contextmanager
def inline(project: Project, **more: Any) -> Iterator[Inline]:
    """Let workers be this process, on the project's tables."""
    close_host()
    host(
        lambda config: joined(
            tables=Apart(project.tables),
            targets=None if config.targets is None else Apart(project.targets),
            restricted=Apart(project.restricted),
        )
    )
    made = Inline(**more)
    _current.append(made)
    try:
        yield made
    finally:
        _current.pop()
        close_host()
