"""The core's own connections to both accounts, with times that fit the lease.

Rules kept here:

* A write that may have been applied is sent once: a second sending could take effect after somebody else's
  write of the same row, and overwrite it. What stays open is settled by reading back, or by the journal.
* In the application's tables a row that holds what was written does not prove who wrote it: inserts and
  conditional writes stay open then. In the restricted store it does: nobody else writes an intent or a beat
  of this client, and a claim of the same key for the same row is as good as one's own.
* Whatever a client begins has taken effect within the longest operation, or never does. So the service is
  told how long it may work on one request, and an operation sends its last request that much earlier.
"""

from __future__ import annotations

from dataclasses import replace

from rekey.client.reading import LeaseSettings
from rekey.client.sdk.plan import Endpoint, Plan
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts
from rekey.tables.requests import RetryPolicy
from rekey.tables.transport import Timeouts

RETRY = RetryPolicy(
    attempts=5, connect_attempts=4, min_wait=0.1, max_wait=3.0, max_retry_after=5.0, repeats_open_writes=False
)
_CONNECT_S = 5.0
_ON_THE_WAY_S = 2.0


def timeouts_for(settings: LeaseSettings) -> Timeouts:
    """Return the timeouts of one request."""
    service = settings.service_s
    return Timeouts(
        connect=min(_CONNECT_S, settings.longest_operation_s), read=service + _ON_THE_WAY_S, service=service
    )


def connect(plan: Plan) -> Accounts:
    """Return both accounts; the first request connects."""

    def service(endpoint: Endpoint, retry: RetryPolicy) -> AzureTableService:
        return AzureTableService.open(
            endpoint.address, endpoint.credential, retry=retry, timeouts=timeouts_for(plan.settings)
        )

    shared = replace(RETRY, content_settles=False)
    return Accounts(service(plan.tables, shared), service(plan.restricted, RETRY))
