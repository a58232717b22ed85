"""An application that keeps writing while its keys change: its old version, and its new one.

    export USERS_SECRET=$(openssl rand -hex 32)
    python application.py old ada@example.org     # before the migration has begun, and until `complete`
    rekey apply 0001                              # copies; both versions may run from now on
    python application.py new bob@example.org
    rekey apply 0001 --to cutover                 # the authority moves; both versions go on
    python application.py old cyd@example.org
    rekey apply 0001 --to complete                # the end of the old version
    python application.py new dan@example.org

Each run signs a user in: it creates the user, or counts one more sign-in on the condition that nobody else
changed the row meanwhile. Then it lists all users. The old version addresses users by e-mail, the new one by
the id that the migration gives them.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from azure.core import MatchConditions
from azure.core.exceptions import ResourceExistsError, ResourceModifiedError

import rekey
import rekey.aio
from rekey.config import load_config, resolve_secret
from rekey.mapper import Mapper
from rekey.scripts import load_script

CONFIG = Path(__file__).with_name("rekey.toml")
MIGRATION = "0001_users_opaque_ids"
REGION = "eu"


def old_version(email: str) -> list[str]:
    """Sign a user in by e-mail; return the users' e-mails with their sign-ins."""
    with rekey.DualWriteTableClient.from_config(CONFIG, MIGRATION, view="old", name="accounts 1") as users:
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


async def new_version(email: str) -> list[str]:
    """Sign a user in by id; return the users' e-mails with their sign-ins."""
    user_id = id_of(email)
    client = rekey.aio.DualWriteTableClient.from_config(CONFIG, MIGRATION, view="new", name="accounts 2")
    async with client as users:
        try:
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


def main() -> int:
    """Run one version, as the command line says."""
    version, email = sys.argv[1:]
    try:
        users = old_version(email) if version == "old" else asyncio.run(new_version(email))
    except rekey.DualWriteRefused as refused:
        print(f"{refused.code}: {refused}", file=sys.stderr)
        return 1
    print("\n".join(users))
    return 0


if __name__ == "__main__":
    sys.exit(main())
