"""The executor, as the runner uses it: begun by a factory, begun again when it breaks, ended in any case.

Rules kept here:

* Any `concurrent.futures.Executor` will do. Two attributes are heeded where an executor has them: `tasks`,
  how many it works on at a time, and `runs_once`, that a task runs in one place only and has ended when it
  was answered, or with the executor at the latest.
* An executor that broke is left to itself, and another one is begun; what was submitted to it is lost, not
  undone.
* Ending one may take as long as its tasks take, and must not hold the event loop up meanwhile.
* What an executor or its library raises is named by its class only: its text may hold what was submitted.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from types import TracebackType

from rekey.copy.workers.tasks import Plain, Task
from rekey.copy.workers.work import work
from rekey.errors import ConfigurationError, RekeyError
from rekey.project.config import is_factory

Factory = Callable[[], Executor]


def load_factory(text: str, folder: Path) -> Factory:
    """Return the callable that `module:callable` names.

    Args:
        text: as configured, or as said on the command line.
        folder: the project's; modules are looked for there, too.

    Raises:
        ConfigurationError: there is no such callable, or it cannot be imported.
    """
    if not is_factory(text):
        raise ConfigurationError(
            "the executor is not of the form `module:callable`",
            hint="write for example --executor rekey.executors:processes",
        )
    module, _, name = text.partition(":")
    sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the executor `{text}` cannot be imported ({type(error).__name__})",
            hint="install its module in the environment of rekey, or put it beside rekey.toml; for dask:"
            " pip install 'rekey-tables[dask]'",
        ) from None
    finally:
        sys.path.remove(str(folder))
    if not callable(found):
        raise ConfigurationError(
            f"the executor `{text}` cannot be called",
            hint="name a function without arguments that returns a concurrent.futures.Executor",
        )
    factory: Factory = found
    return factory


class Pool:
    """Tasks at work in an executor. Use as an asynchronous context manager."""

    def __init__(self, factory: Factory, tasks: int | None = None) -> None:
        """Take what begins the executor, and how many tasks it is given at a time (None: as it says)."""
        self._factory = factory
        self._tasks = tasks
        self._executor: Executor | None = None

    async def __aenter__(self) -> Pool:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    @property
    def tasks(self) -> int:
        """How many tasks it is given at a time."""
        said = self._tasks or getattr(self._executor, "tasks", None) or os.cpu_count()
        return max(1, int(said or 1))

    @property
    def runs_once(self) -> bool:
        """Whether a task runs in one place, and no longer than the executor; not, unless that says so."""
        return getattr(self._executor, "runs_once", False) is True

    async def begin(self) -> None:
        """Begin an executor. Raises ConfigurationError when the factory fails."""
        try:
            made = await asyncio.to_thread(self._factory)
        except RekeyError:
            raise
        except Exception as error:  # noqa: BLE001 - a library's own; named by its class
            raise ConfigurationError(
                f"the executor could not be begun ({type(error).__name__})",
                kept="everything that was checkpointed",
                hint="see that the cluster is up and its address and certificates are where the executor"
                " looks for them",
            ) from None
        if not isinstance(made, Executor):
            raise ConfigurationError(
                f"the executor's factory returned a {type(made).__name__}",
                hint="it must return a concurrent.futures.Executor",
            )
        self._executor = made

    async def end(self) -> None:
        """End the executor, with the tasks that it still works on."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(_end, executor)

    async def again(self) -> None:
        """Begin another executor in the place of one that broke."""
        await self.end()
        await self.begin()

    def submit(self, task: Task) -> asyncio.Future[Plain]:
        """Submit a task. Raises BrokenExecutor when the executor takes none."""
        if self._executor is None:
            raise BrokenExecutor("no executor")
        try:
            submitted: Future[Plain] = self._executor.submit(work, task.plain())
        except RuntimeError as error:  # also BrokenExecutor, which is one
            raise BrokenExecutor(type(error).__name__) from None
        return asyncio.wrap_future(submitted)


def _end(executor: Executor) -> None:
    executor.__exit__(None, None, None)
