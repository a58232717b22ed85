"""Executors for `--executor`: processes of this machine, or the workers of a dask cluster. A factory takes no
arguments and returns a `concurrent.futures.Executor`; any other one works too."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import wait
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from rekey.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_CONNECT_S = 30
_LOG = logging.getLogger(__name__)


class Processes(ProcessPoolExecutor):
    """Processes of this machine, spawned, not forked: they share nothing with the runner.

    Attributes:
        tasks: how many.
        runs_once: whether a task runs in one of them only, and ends with it.
    """

    runs_once = True

    def __init__(self, tasks: int | None = None) -> None:
        """Create it with a number of processes, by default that of processors."""
        self.tasks = tasks or os.cpu_count() or 1
        context = multiprocessing.get_context("spawn")
        super().__init__(self.tasks, mp_context=context, initializer=_begin_process)


def processes() -> Executor:
    """Return an executor of processes on this machine."""
    return Processes()


# Of a worker process, for its lifetime.
_logging = ExitStack()


def _begin_process() -> None:
    """Make a worker process ignore Ctrl-C, end with the runner however that ends, and log like it."""
    from rekey.core.logs import configured

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    _logging.enter_context(configured())
    try:
        importlib.import_module("rekey.copy.workers.work")
    except Exception as error:  # noqa: BLE001 - in any case the runner sees that this process ended
        _LOG.error(
            "a worker cannot import rekey (%s)", type(error).__name__, extra={"event": "worker-broken"}
        )
        os._exit(1)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class DaskExecutor(Executor):
    """The workers of a dask cluster. A task may run twice: dask gives a lost worker's to another one."""

    runs_once = False

    def __init__(self, client: Any) -> None:
        """Create it with a `distributed.Client`, which is closed with it."""
        self._client = client
        self._executor = client.get_executor(pure=False)
        self.tasks = max(1, sum(client.nthreads().values()))

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call to some worker."""
        future: Future[T] = self._executor.submit(function, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, waiting for running calls unless told otherwise."""
        self._executor.shutdown(wait=wait and not cancel_futures)
        self._client.close()


def dask_cluster() -> Executor:
    """Return an executor on the dask cluster in dask's own settings (`DASK_SCHEDULER_ADDRESS`, security).

    Raises:
        ConfigurationError: dask is not installed, no address is configured, it is not encrypted, or nothing
            answers there.
    """
    try:
        import dask.config
        import distributed
    except ImportError:
        raise ConfigurationError(
            "dask is not installed", hint="pip install 'rekey-tables[dask]', here and on the workers"
        ) from None
    address = dask.config.get("scheduler-address", None)
    if not isinstance(address, str) or not address:
        raise ConfigurationError(
            "no dask cluster is configured",
            hint="put its address into the environment: DASK_SCHEDULER_ADDRESS=tls://HOST:8786",
        )
    require_encrypted(address)
    try:
        make: Any = distributed.Client
        client = make(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise ConfigurationError(
            f"the dask scheduler does not answer ({type(error).__name__})",
            hint="see that it runs, that DASK_SCHEDULER_ADDRESS is right, and that dask's settings name the"
            " certificates (distributed.comm.tls)",
        ) from None
    return DaskExecutor(client)


def require_encrypted(address: str) -> None:
    """Refuse an address that is neither encrypted nor on this machine, because tasks can make workers write.
    Raises ConfigurationError."""
    parts = urlsplit(address)
    if parts.scheme == "tls" or (parts.hostname in _LOOPBACK and parts.scheme in ("", "tcp")):
        return
    raise ConfigurationError(
        "the dask scheduler's address is neither encrypted nor on this machine",
        hint="set the cluster up with TLS and write DASK_SCHEDULER_ADDRESS=tls://HOST:8786",
    )
