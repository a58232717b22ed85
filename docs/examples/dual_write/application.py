"""An application that keeps writing while its keys change: its old version, and its new one.

Each version runs in a terminal of its own and signs in whoever is typed: it creates the user, or counts one
more sign-in on the condition that nobody else changed the row meanwhile. Then it lists all users. The old
version addresses users by e-mail, the new one by the id that the migration gives them.

    export USERS_SECRET=...                  # the same in every terminal: openssl rand -hex 32
    export USERS_WRAPPING_KEY=...            # another one, the same in every terminal, too
    python application.py old                # before the migration begins, and until `complete`
    rekey apply 0001                         # copies, while the old version goes on
    python application.py new                # beside it
    rekey apply 0001 --to cutover            # the authority moves; both versions go on
    rekey apply 0001 --to complete           # once the old version has ended: Ctrl-D; asks for the name
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from azure.core import MatchConditions
from azure.core.exceptions import ResourceExistsError, ResourceModifiedError

import rekey
import rekey.aio
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.project.config import load_config, resolve_secret

CONFIG = Path(__file__).with_name("rekey.toml")
MIGRATION = "0001_users_opaque_ids"
REGION = "eu"


# --- the old version: synchronous, by e-mail ---------------------------------------------------------------


def open_old() -> rekey.DualWriteTableClient:
    """Return the old version's client. One for the life of the process."""
    return rekey.DualWriteTableClient.from_config(CONFIG, MIGRATION, view="old", name="accounts 1")


def sign_in(users: rekey.DualWriteTableClient, email: str) -> list[str]:
    """Sign a user in; return all e-mails with their sign-ins."""
    try:
        users.create_entity({"PartitionKey": REGION, "RowKey": email, "SignIns": 1})
    except ResourceExistsError:
        while True:
            user = users.get_entity(REGION, email)
            user["SignIns"] += 1
            try:
                users.update_entity(user, match_condition=MatchConditions.IfNotModified)
                break
            except ResourceModifiedError:
                continue  # somebody else signed in at the same moment: read again
    return sorted(f"{user['RowKey']} {user['SignIns']}" for user in users.list_entities())


# --- the new version: asynchronous, by id -------------------------------------------------------------------


def open_new() -> rekey.aio.DualWriteTableClient:
    """Return the new version's client."""
    return rekey.aio.DualWriteTableClient.from_config(CONFIG, MIGRATION, view="new", name="accounts 2")


async def sign_in_by_id(users: rekey.aio.DualWriteTableClient, email: str) -> list[str]:
    """Sign a user in; return all e-mails with their sign-ins."""
    user_id = id_of(email)
    try:
        # ContactEmail leads back to the old key: without it a new row would be refused before `complete`
        await users.create_entity(
            {"PartitionKey": REGION, "RowKey": user_id, "ContactEmail": email, "SignIns": 1}
        )
    except ResourceExistsError:
        while True:
            user = await users.get_entity(REGION, user_id)
            user["SignIns"] += 1
            try:
                await users.update_entity(user, match_condition=MatchConditions.IfNotModified)
                break
            except ResourceModifiedError:
                continue
    return sorted([f"{user['ContactEmail']} {user['SignIns']}" async for user in users.list_entities()])


def id_of(email: str) -> str:
    """Return the id that the migration gives a user: the declaration and the secret say it."""
    config = load_config(CONFIG)
    migration = load_script(config.migrations / f"{MIGRATION}.py").migration
    mapper = Mapper(migration, {"users": resolve_secret(config, "users")})
    new: str = mapper.map({"PartitionKey": REGION, "RowKey": email})[0].row["RowKey"]
    return new


# --- the terminals ------------------------------------------------------------------------------------------


def run_old() -> None:
    """Sign in whoever is typed."""
    with open_old() as users:
        for line in sys.stdin:
            try:
                print("\n".join(sign_in(users, line.strip())), flush=True)
            except rekey.DualWriteRefused as refused:
                print(f"{refused.code}: {refused}", flush=True)


async def run_new() -> None:
    """Sign in whoever is typed; the loop is free while nobody types."""
    async with open_new() as users:
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                print("\n".join(await sign_in_by_id(users, line.strip())), flush=True)
            except rekey.DualWriteRefused as refused:
                print(f"{refused.code}: {refused}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["old"]:
        run_old()
    else:
        asyncio.run(run_new())
