"""`rekey proxy`: the dual-write client behind a socket, in one process or several on one port."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import click

from rekey.cli.project import open_project
from rekey.cli.shell import SCRIPTS, Shell, command, flag
from rekey.errors import ExitCode
from rekey.present.text import report, table, wrapped
from rekey.project.config import Config, Proxy
from rekey.proxy.explain import callers, callers_as_json
from rekey.proxy.running import Listeners, Listening, access_of, proxying, run, until_ended
from rekey.proxy.tls import Certificate, certificate_for
from rekey.proxy.trial import trial_files, trust_lines
from rekey.runner.refusals import refusal
from rekey.serve.server import Address

_POLL_S, _AGAIN_S = 0.2, 1.0
# Environment variable by which a child knows which one it is.
_NUMBER = "REKEY_PROXY_NUMBER"


@command(
    "proxy",
    example="rekey proxy\nrekey proxy 0001 --listen 127.0.0.1:10102 --processes 2\nrekey proxy --explain",
)
@SCRIPTS
@click.option("--listen", metavar="HOST:PORT", help="Where applications connect to; [proxy] listen.")
@click.option("--admin", metavar="HOST:PORT", help="Where health and metrics are; [proxy] admin.")
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that share the port.",
)
@flag("--explain", help="Say who may do what through it, and end.")
@flag("--self-signed", help="Listen with a certificate of its own, for trials on this machine.")
def proxy(
    shell: Shell,
    scripts: tuple[str, ...],
    listen: str | None,
    admin: str | None,
    processes: int,
    explain: bool,
    self_signed: bool,
) -> ExitCode:
    """Serve tables to applications in any language while keys change.

    Speaks the Table service's protocol: an application changes its endpoint and nothing else. SCRIPT: the
    migrations to follow, without it all with capture "dual-write". SIGTERM ends it in order.
    """
    project = open_project(shell)
    limits = project.config.proxy.limits
    address, aside = Address.of(listen or limits.listen), Address.of(admin or limits.admin)
    if explain:
        return shell.emit(callers_as_json(project.config.proxy), _explained(project.config.proxy))
    access = access_of(project.config)
    number = os.environ.get(_NUMBER)
    certificate = _certificate(shell, project.config, address, self_signed=self_signed, tells=number is None)
    if access.entra is not None and certificate is None:
        raise refusal("proxy-tokens-over-http")
    if processes > 1 and number is None:
        if not address.port or address.port in range(aside.port, aside.port + processes):
            raise refusal("proxy-ports", admin=aside.port)
        return _supervised(shell, processes)
    chosen = project.choose_all(scripts)
    if number and aside.port:
        aside = Address(aside.host, aside.port + int(number))

    def started(listening: Listening) -> None:
        text = f"serving {listening.url} until SIGTERM; health at {listening.admin}"
        shell.note(text, "serving", url=listening.url, admin=listening.admin)

    tls = None if certificate is None else certificate.context
    others = [script for script in project.scripts.values() if script not in chosen]
    context = proxying(
        project.config,
        chosen,
        access,
        Listeners(address, aside, tls, shared=processes > 1),
        not_followed=others,
    )
    run(until_ended(context, started, limits.drain_s, ends_with_input=number is not None))
    return ExitCode.DONE


def _explained(configured: Proxy) -> str:
    listed, entra = list(callers(configured)), configured.access.entra
    if not listed:
        return report(["nobody may use the proxy"])
    rows = [
        (
            caller.who,
            caller.views,
            caller.rights,
            ", ".join(f"{name} = {meant}" for name, meant in caller.aliases.items()),
        )
        for caller in listed
    ]
    lines = table(("who", "views", "rights", "aliases"), rows)
    notes = [
        "Views are the tables of migrations; other tables are open to everybody listed, with the same rights."
    ]
    if entra is not None:
        notes.append(
            f"Tokens: of tenant {entra.tenant}, for {entra.audience}. The first entry that names a caller"
            " decides; an application counts only where it acts for itself."
        )
    return report([*lines, "", *(line for note in notes for line in wrapped(note))])


def _certificate(
    shell: Shell, config: Config, address: Address, *, self_signed: bool, tells: bool
) -> Certificate | None:
    """Return the certificate to listen with, None for http; `tells` how SDKs trust one that is for trials."""
    access = config.proxy.access
    if not self_signed:
        return certificate_for(address, access.certificate, access.key)
    if access.certificate is not None:
        raise refusal(
            "proxy-trial",
            problem="rekey.toml names a certificate",
            cure="leave out --self-signed, or remove certificate and key from [proxy.access]",
        )
    if not address.is_loopback:
        raise refusal(
            "proxy-trial",
            problem=f"{address.host} can be reached by others",
            cure="listen on 127.0.0.1, or name certificate and key in [proxy.access] of rekey.toml",
        )
    files = trial_files(config.state.parent / "proxy-trial")
    if tells:
        shell.note(f"for trials: applications must trust the CA in {files.ca}", ca=str(files.ca))
        for sdk, how in trust_lines(files):
            shell.note(f"  {sdk}: {how}")
    return Certificate(files.certificate, files.key)


def _supervised(shell: Shell, processes: int) -> ExitCode:
    """Keep children at work until a signal; return the exit code of the first that could not work as
    configured, if any."""
    children: dict[int, subprocess.Popen[bytes]] = {}
    replaced: set[int] = set()
    again: dict[int, float] = dict.fromkeys(range(processes), 0.0)
    code = ExitCode.DONE
    with suppress(KeyboardInterrupt):  # SIGINT, SIGTERM
        while code is ExitCode.DONE:
            for number, at in list(again.items()):
                if time.monotonic() >= at:
                    children[number] = subprocess.Popen(  # noqa: S603 - this program
                        [sys.executable, "-m", "rekey", *sys.argv[1:]],
                        stdin=subprocess.PIPE,  # a child ends when its standard input does
                        process_group=0,
                        env={**os.environ, _NUMBER: str(number)},
                    )
                    del again[number]
            time.sleep(_POLL_S)
            for number, child in list(children.items()):
                if child.poll() is None:
                    continue
                del children[number]
                if child.returncode == ExitCode.USAGE and number not in replaced:
                    code = ExitCode.USAGE
                    break
                # One that took another's place is started again even after a usage error: its port may be
                # taken for a moment, and the others serve meanwhile.
                replaced.add(number)
                shell.note(f"process {number} ended ({child.returncode}) and is started again", "warning")
                again[number] = time.monotonic() + _AGAIN_S
    _end(list(children.values()))
    return code


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End children in order; a further signal ends them at once."""
    try:
        for child in children:
            if child.stdin is not None:
                child.stdin.close()
        for child in children:
            child.wait()
    except KeyboardInterrupt:
        for child in children:
            child.kill()
