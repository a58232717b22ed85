"""When to try again, and after how long.

Rules kept here:

* The wait doubles from a minimum to a maximum, with ±20 % of jitter, so that clients which failed together
  do not come back together. A Retry-After of the service is honoured when it is longer.
* Failures are of three kinds: nothing was sent; something was sent and no answer came; the service answered.
  Only the first and some answers say that nothing was applied.
* An endpoint that never answered is given up after a few seconds: it is most often a typing error. One that
  did answer before is waited for like a busy one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently to repeat. Waits in seconds.

    Attributes:
        attempts: attempts in all for a request that got an answer or may have reached the service.
        connect_attempts: attempts in all while the endpoint has never answered.
        min_wait: before the second attempt.
        max_wait: the longest wait of our own; Retry-After may ask for more, up to `max_retry_after`.
        max_retry_after: the longest Retry-After that is honoured.
        repeats_open_writes: whether a write that may have been applied is sent again. Where others write the
            same rows it must not be: the first sending may take effect long after the second was answered,
            and overwrite what came in between.
        content_settles: whether a row that holds what was written proves that the write was applied. Where
            others write the same rows it does not: two that raise a counter from the same number,
            conditionally, write the same content, and one of them must be told that it failed; and what
            another one has deleted, too, a request under way deletes again when it is back.
    """

    attempts: int = 10
    connect_attempts: int = 5
    min_wait: float = 0.2
    max_wait: float = 20.0
    max_retry_after: float = 120.0
    repeats_open_writes: bool = True
    content_settles: bool = True

    def wait(self, failures: int, retry_after: float | None, draw: float) -> float:
        """Return how long to wait after a number of failures.

        Args:
            failures: attempts that failed so far, at least 1.
            retry_after: what the service asked for, in seconds.
            draw: a random number of [0, 1).
        """
        grown = self.min_wait * 2.0 ** min(failures - 1, 32)
        wait = min(self.max_wait, grown) * (1.0 + _JITTER * (2.0 * draw - 1.0))
        return wait if retry_after is None else max(wait, min(retry_after, self.max_retry_after))


class Backoff:
    """Counts the failures of one request and says how long to wait, or that it is enough."""

    def __init__(self, policy: RetryPolicy, source: random.Random) -> None:
        self._policy = policy
        self._random = source
        self.failures = 0

    def next_wait(self, *, retry_after: float | None = None, only_connect: bool = False) -> float | None:
        """Count a failure and return the seconds to wait, None when no attempt is left.

        Args:
            retry_after: what the service asked for.
            only_connect: the endpoint has never answered, and this failure was a failure to connect.
        """
        self.failures += 1
        limit = self._policy.connect_attempts if only_connect else self._policy.attempts
        if self.failures >= limit:
            return None
        return self._policy.wait(self.failures, retry_after, self._random.random())


def retry_after_of(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that an answer asks to wait, None when it does not ask or asks strangely.

    Reads `x-ms-retry-after-ms`, and `Retry-After` in both its forms: seconds or a date.
    """
    milliseconds = headers.get("x-ms-retry-after-ms", "")
    if milliseconds.isascii() and milliseconds.isdigit():
        return int(milliseconds) / 1000
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    if not text:
        return None
    try:
        until = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
