"""`rekey doctor`: what can be checked before a migration, with a remedy for each finding. What it writes it
removes."""

from __future__ import annotations

from dataclasses import replace

import click

from rekey.cli.shell import Shell, command, flag
from rekey.doctor.judge import examine
from rekey.doctor.observe import observe
from rekey.doctor.report import Fact, Result, finding
from rekey.errors import ExitCode, RekeyError
from rekey.evidence.contents import live_path
from rekey.evidence.signing import open_signer
from rekey.present.text import counted
from rekey.project.config import Config, load_config
from rekey.project.entra import Entra, TenantCheck


async def _check_tenant(config: Config, entra: Entra) -> TenantCheck:
    from rekey.proxy.tenant_check import check_tenant  # aiohttp, azure-core and PyJWT are slow to import

    return await check_tenant(config, entra)


@command(
    "doctor",
    example="rekey doctor\nrekey doctor --strict --json\nrekey doctor --read-only\nrekey doctor --live",
)
@flag("--strict", help="Exit code 1 for warnings, too.")
@flag("--read-only", help="Write nothing; do not try whether the restricted account takes writes.")
@flag("--live", help="Try on throw-away tables of both accounts what rekey takes for granted of them.")
def doctor(shell: Shell, strict: bool, read_only: bool, live: bool) -> ExitCode:
    """Check accounts, clock, versions, files and restricted store.

    Each finding says what was seen, why it matters and what to do. Writes one row to the restricted account
    and removes it. The exit code is 1 when there is an error.

    With --live the accounts are tried, in about two minutes and 1,600 requests: keys, scans, conditions,
    transactions, limits, Timestamps, lost answers, and a small migration of each capture with a kill and a
    rollback. Tables are made and removed, also after Ctrl-C; none of the application's is touched. The report
    is signed and kept for evidence.
    """
    if live and read_only:
        raise click.UsageError("--live makes tables: leave out --read-only")
    config = load_config(shell.config.path)
    signer = open_signer(config) if live else None
    observed = shell.do(
        observe(
            config, connect=shell.connect, ask=shell.ask, check_tenant=_check_tenant, writes=not read_only
        )
    )
    report, document = examine(observed), dict[str, object]()
    if live:
        from rekey.doctor.live import run  # imports half of rekey

        live_results: list[Result] = [finding("live-not-tried", "accounts")]
        if all(account.is_usable for account in observed.accounts):
            requests = counted(run.REQUESTS, "request")
            shell.note(f"about {requests} are sent, to throw-away tables `rekeylive…`, in about two minutes")
            kept, signed = str(live_path(config.state)), "not signed" if signer is None else "signed"
            live_results = []
            try:
                document["live"] = tried = shell.do(run.live(config, observed.accounts))
                live_results += run.tell(tried)
                run.keep(tried, config, signer)
                live_results.append(Fact("report", f"{signed}, kept in {kept}"))
                document["kept"] = kept
            except RekeyError as error:
                live_results.append(finding("live-failed", "run", seen=error.what, do=error.hint))
        report = replace(report, families={**report.families, "live": live_results})
    code = ExitCode.FINDINGS if report.fails(strict=strict) else ExitCode.DONE
    return shell.emit({"strict": strict, **report.as_json(), **document}, report.as_text(), code)
