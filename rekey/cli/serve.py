"""`rekey serve`: what `rekey status` shows as a live page, JSON document, metrics and health over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial

import click

from rekey.cli.project import Project, open_project
from rekey.cli.shell import SCRIPTS, Shell, command
from rekey.cli.status import read_statuses
from rekey.client.sdk.thread import LoopThread
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode
from rekey.project.secrets_source import read_local
from rekey.protocol.opening import connect
from rekey.serve.server import Access, Address, serving
from rekey.serve.watch import Document, Watch

USUAL = "127.0.0.1:9460"


@command("serve", example="rekey serve\nrekey serve 0001 --address 127.0.0.1:8080")
@SCRIPTS
@click.option("--address", default=USUAL, show_default=True, help="HOST:PORT to listen on.")
def serve(shell: Shell, scripts: tuple[str, ...], address: str) -> ExitCode:
    """Show progress on a live page, as JSON and as metrics.

    Reads only; works while `apply` runs, and when it does not. Other machines may ask only where [serve] has
    a token and a certificate. Ctrl-C ends it.
    """
    project = open_project(shell)
    chosen = project.choose_all(scripts)

    async def until_interrupted() -> None:
        async with _serving(shell, project, chosen, address) as url:
            shell.note(f"serving {url} until Ctrl-C", "serving", url=url)
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):  # the usual end
        shell.do(until_interrupted())
    return ExitCode.DONE


@contextmanager
def served(shell: Shell, project: Project, chosen: Sequence[Declared], address: str) -> Iterator[None]:
    """Serve from a thread with connections of its own while the context lasts: neither command waits for the
    other. Raises ConfigurationError, SecretMissing."""
    serving = partial(_serving, shell, project, chosen, address)
    with closing(LoopThread()) as thread, thread.holding(serving) as url:
        shell.note(f"serving {url} meanwhile", "serving", url=url)
        yield


@asynccontextmanager
async def _serving(
    shell: Shell, project: Project, chosen: Sequence[Declared], address: str
) -> AsyncIterator[str]:
    """Serve some migrations while the context lasts; yield the URL. Raises as `served`."""
    where, settings = Address.of(address), project.config.serve
    source = settings.token
    token = read_local("the token of `rekey serve`", "[serve.token]", source) if source else None
    access = Access(token, settings.certificate, settings.key)

    async def document() -> Document:
        return (await read_statuses(project, chosen, accounts, shell.clock)).document

    async with (
        (shell.surroundings.connect or connect)(project.config) as accounts,
        serving(where, Watch(document, shell.clock), access) as url,
    ):
        yield url
