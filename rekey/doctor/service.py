"""Which service answers behind an endpoint. Pure.

Rules kept here:

* Azurite and Azure Storage say who they are in the header `Server` of every answer, refusals included.
  Cosmos DB for Table is told by its host, which nobody else has.
* What says nothing known is unknown: something in between, or something that imitates one of them.
"""

from __future__ import annotations

from enum import StrEnum

from rekey.doctor.observed import AccountSeen
from rekey.plan.advice.service import is_cosmos

_AZURITE = "azurite"
_STORAGE = "windows-azure-table"


class Kind(StrEnum):
    """A service that speaks the protocol of tables."""

    STORAGE = "Azure Table Storage"
    AZURITE = "Azurite"
    COSMOS = "Cosmos DB for Table"
    UNKNOWN = "an unknown service"
    SILENT = "no answer"


def kind_of(account: AccountSeen) -> Kind:
    """Return which service it is."""
    server = account.anonymous.server.lower()
    if is_cosmos(account.endpoint):
        return Kind.COSMOS
    if not account.anonymous.answered:
        return Kind.SILENT
    if server.startswith(_AZURITE):
        return Kind.AZURITE
    return Kind.STORAGE if server.startswith(_STORAGE) else Kind.UNKNOWN


def azurite_version(account: AccountSeen) -> str:
    """Return the version in `Server: Azurite-Table/3.35.0`, "" when it is not there."""
    return account.anonymous.server.partition("/")[2].strip()
