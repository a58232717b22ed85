"""One run: remove leftovers, run checks and small migrations, remove tables, sign a report. The report holds
no key of a row and no secret."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from rekey.core.concurrency import gather
from rekey.core.distribution import VERSION
from rekey.declaration.migration import CAPTURES
from rekey.doctor.live.checks import ALIKE, CATALOGUE, CHECKS, ERROR, WIRE, Check, Seen, deviations
from rekey.doctor.live.life import life
from rekey.doctor.live.stage import Scene, Stage, leftovers, new_prefix, opened
from rekey.doctor.observed import AccountSeen, ServiceKind
from rekey.doctor.report import Fact, Result, finding, listed
from rekey.errors import MachineFailed, RekeyError, reason_of
from rekey.evidence.contents import LIVE_SCHEMA, live_path
from rekey.evidence.keys import Signer
from rekey.evidence.statement import LIVE_TYPE, Statement, signed
from rekey.project.config import Config
from rekey.project.privatefiles import write_whole

# A check whose deviation rekey works around.
ADDRESSES = "addresses"
RUN_S, CHECK_S = 1500.0, 120.0
# Approximate number of requests: 250 by the checks of each account, the others by the small migrations.
REQUESTS = 1600


async def seen_of(check: Awaitable[Seen], until: float) -> Seen:
    """Return what a check saw, or that it failed (by the error's type alone) or did not end in time."""
    try:
        async with asyncio.timeout_at(until):
            return await check
    except TimeoutError:
        return {ERROR: "no end in time"}
    except RekeyError as error:
        return {ERROR: f"{type(error).__name__} {getattr(error, 'code', '')}".strip()}
    except Exception as error:  # noqa: BLE001 - an unforeseen answer is a finding too
        return {ERROR: type(error).__name__}


async def checked(stage: Stage, checks: Mapping[str, Check], until: float) -> dict[str, Seen]:
    """Run checks one after the other on a table of the stage; return what each saw."""
    table = await stage.new_table()
    now = asyncio.get_running_loop().time
    return {
        name: await seen_of(check(Scene(stage, table, name)), min(now() + CHECK_S, until))
        for name, check in checks.items()
    }


async def live(config: Config, accounts: tuple[AccountSeen, ...]) -> dict[str, Any]:
    """Run on accounts that can be reached, and return the report. After `RUN_S` nothing more is started.

    Raises:
        RekeyError: an account fails before the first check.
    """
    until = asyncio.get_running_loop().time() + RUN_S
    accounts_seen: list[dict[str, Any]] = []
    seen: list[tuple[str, str, bool, Seen]] = []
    stages: list[Stage] = []
    async with AsyncExitStack() as stack:
        for account in accounts:
            service = await stack.enter_async_context(opened(account.account))
            now = await service.server_time()
            stages.append(Stage(service, new_prefix(now), account.account))
            stack.push_async_callback(stages[-1].clear)
            stale = await leftovers(account.account, now)
            removed = [name for name in stale if await service.delete_table(name)]
            accounts_seen.append(
                {"section": account.section, "service": str(account.kind), "removed": removed}
            )
        others = [account.account for account in accounts[:-1]]
        tried = accounts[:-1] if any(map(config.restricted.is_same_as, others)) else accounts
        every = {**ALIKE, **WIRE}
        checking = [asyncio.ensure_future(checked(stage, every, until)) for stage in stages[: len(tried)]]
        await gather(checking)  # if one fails, no other creates another table
        for account, found_there in zip(tried, checking, strict=True):
            azurite = account.kind is ServiceKind.AZURITE
            seen += [
                (account.section, name, azurite, result) for name, result in found_there.result().items()
            ]
        lives = await asyncio.gather(
            *(seen_of(life(capture, config, *stages), until) for capture in CAPTURES)
        )
        seen += [
            ("both", f"migration-{capture}", False, result)
            for capture, result in zip(CAPTURES, lives, strict=True)
        ]
        now = await stages[0].service.server_time()
    return {
        "schema": LIVE_SCHEMA,
        "rekey": VERSION,
        "endpoints": " ".join(account.endpoint for account in config.accounts.values()),
        "ended_at": now,
        "accounts": [
            {**account_seen, "left": stage.left}
            for account_seen, stage in zip(accounts_seen, stages, strict=True)
        ],
        "checks": [
            {
                "check": name,
                "account": section,
                "what": CHECKS[name]["what"],
                "seen": {word: str(there) for word, there in check_seen.items()},
                "deviations": deviations(name, check_seen, azurite=azurite),
            }
            for section, name, azurite, check_seen in seen
        ],
    }


def tell(report: Mapping[str, Any]) -> Iterator[Result]:
    """Yield the findings and facts of a report."""
    checks = report["checks"]
    known = dict[str, None]()
    for check in checks:
        for each in check["deviations"]:
            if each["known"]:
                known[f"{check['check']} ({each['word']})"] = None
                continue
            texts = {name: each[name] for name in ("word", "wanted", "promise")}
            about = f"{check['account']}, {check['check']}"
            if check["check"] == ADDRESSES and each["word"] != ERROR:
                yield finding("live-addresses", about, keys=each["seen"])
                continue
            if each["word"] == ERROR:  # the account may have been busy
                texts["seen"] = f"it was tried whether {check['what']}, and that failed: {each['seen']}"
                texts["do"] = "run it again; if it stays so, do not migrate there, and report it"
            yield finding("live-deviates", about, what=check["what"], there=each["seen"], **texts)
    if known:
        yield finding("live-known", "Azurite", known=listed(list(known)))
    passed = sum(not check["deviations"] for check in checks)
    yield Fact("checks", f"{passed} of {len(checks)} behave exactly as rekey assumes")
    for account in report["accounts"]:
        about = f"[{account['section']}]"
        if account["removed"]:
            yield Fact(about, f"removed what an earlier run had left: {listed(account['removed'])}")
        if account["left"]:
            yield finding("live-left", about, tables=listed(account["left"]))


def keep(report: Mapping[str, Any], config: Config, signer: Signer | None) -> None:
    """Sign a report and store it next to the state file, where an export of evidence finds it, replacing the
    last one. Raises MachineFailed."""
    judged_by = {CATALOGUE.name: hashlib.sha256(CATALOGUE.read_bytes()).hexdigest()}
    path = live_path(config.state)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, signed(Statement(judged_by, report, LIVE_TYPE), signer).data)
    except OSError as error:
        raise MachineFailed(
            f"the report cannot be written to {path} ({reason_of(error)})",
            kept="everything; the throw-away tables are removed",
            hint="make the state file's folder writable, then run it again",
        ) from None
