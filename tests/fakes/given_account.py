"""The account that `REKEY_TEST_ENDPOINT` names, in the place of the Azurite that the tests start otherwise.

Rules kept here:

* Without that variable nothing is changed.
* Names of tables are of one run alone, and tables are removed at its end, each by its name: none because
  a listing shows it. The tables of the restricted store stay, with the rows of this run.
* A test that needs an Azurite of its own (its port for a proxy, its folder, its end) is skipped and says so.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from rekey.errors import ServiceError
from rekey.rehearse.azurite import AzuriteAccount
from rekey.tables.azure import AzureTableService
from rekey.tables.credentials import credential_of

ENDPOINT = "REKEY_TEST_ENDPOINT"
IS_GIVEN = ENDPOINT in os.environ
RUN = secrets.randbelow(9 * 10**7) + 10**7 if IS_GIVEN else os.getpid()
"""A number in the names of tables: of this process, and on a given account of this run alone."""
MADE: set[str] = set()
"""Names that tests may have given to tables."""


@dataclass(frozen=True)
class GivenAccount:
    """What tests use of an Azurite, of a given account: two accounts, which may be one."""

    tables: AzuriteAccount = field(default_factory=lambda: _account("REKEY_TEST"))
    restricted: AzuriteAccount = field(default_factory=lambda: _account("REKEY_TEST_RESTRICTED"))

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.skip(f"needs an Azurite of its own (its {name}), and {ENDPOINT} is given")

    def remove_tables(self) -> None:
        """Delete the tables of this run."""

        async def remove() -> None:
            async with open_account(self.tables) as service:
                for name in sorted(MADE):
                    try:
                        await service.delete_table(name)
                    except ServiceError as failed:
                        print(f"the table {name} may be left: {failed}")

        asyncio.run(remove())


def _account(prefix: str) -> AzuriteAccount:
    """Return the account of `PREFIX_ENDPOINT` and `PREFIX_KEY`; without them, the first account."""
    if f"{prefix}_ENDPOINT" not in os.environ:
        prefix = "REKEY_TEST"
    endpoint = os.environ[f"{prefix}_ENDPOINT"].rstrip("/")
    parts = urlsplit(endpoint)
    name = parts.path.strip("/") or (parts.hostname or "").partition(".")[0]
    return AzuriteAccount(name, endpoint, os.environ.get(f"{prefix}_KEY", ""))


def open_account(account: AzuriteAccount) -> AzureTableService:
    """Open the tables of an account: with its key, or as the identity of this process; as of a service that
    guarantees what its endpoint says, or `guarantees`."""
    credential = credential_of(account.name, account.key or None)
    return AzureTableService.open(account.endpoint, credential)
