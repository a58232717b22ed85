"""Requests of a stress test, their responses, and the generated rows that they are about. A request is
planned completely, so that the process that sends it needs to know nothing else. Pure."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row
from rekey.stress.mix import Mix, OperationKind
from rekey.stress.spread import Spread, turns

_SILVER = math.sqrt(2) - 1
# The number of the first row inserted during the test, which sorts after those loaded before.
_FIRST_NEW = 1_000_000_000
_MOST_BATCH = 100
# Makes a row 1 KiB, the size in the service's targets: stored text takes two bytes a character; keys and
# names take the rest.
_FILLING = "x" * ((1024 - 64) // 2)
_INSERTING = (OperationKind.INSERT, OperationKind.BATCH)


class Request(NamedTuple):
    """One request."""

    # Seconds after the beginning of a step.
    due: float
    # Its kind of operation.
    kind: OperationKind
    # Number of the distribution; it keeps partitions of several ones apart.
    stage: int
    # Number of the partition, from 0.
    place: int
    # Of its row; the first one of a batch; of a range query, the first row it may return.
    number: int
    # Rows of a batch, `$top` of a range query; else 1.
    size: int = 1

    @property
    def key(self) -> EntityKey:
        return self._key(self.number)

    @property
    def before(self) -> EntityKey:
        """A key that sorts directly before its row."""
        return self._key(self.number - 1)

    @property
    def rows(self) -> list[Row]:
        """The rows that it inserts or replaces."""
        keys = map(self._key, range(self.number, self.number + self.size))
        return [{PARTITION_KEY: key.partition, ROW_KEY: key.row, "Value": _FILLING} for key in keys]

    def _key(self, number: int) -> EntityKey:
        return EntityKey(f"{self.stage}.{self.place:07d}", f"{number:010d}")


# Status of a request that was due while the maximum number was in flight.
UNSENT = -1


class Response(NamedTuple):
    """The outcome of a request."""

    # The request.
    request: Request
    # Seconds after the beginning of the step.
    sent: float
    answered: float
    # None on success; else the HTTP status, 0 without a response, or `UNSENT`.
    status: int | None
    # Rows written or returned; of a failed request, those asked for.
    entities: int


class Offered(NamedTuple):
    """The responses to all requests of a step; `processor`: share of one core used to send them."""

    responses: list[Response]
    processor: float


class Population:
    """The rows of one distribution in the test table."""

    def __init__(self, spread: Spread, stage: int, mix: Mix) -> None:
        """Create it, with no row loaded yet. `stage` keeps partitions of several distributions apart."""
        self.spread = spread.folded(mix.rows) if mix.rows else spread
        self.mix = mix
        self._stage = stage
        self._loaded = [
            max(1, round(mix.rows * n / self.spread.rows)) for n in self.spread.counts if mix.rows
        ]
        self._turns = {kind: turns(self.spread) for kind in mix.shares}
        self._reads = 0
        self._new = _FIRST_NEW

    @property
    def rows(self) -> int:
        """The number of rows loaded before the test."""
        return sum(self._loaded)

    def loading(self) -> Iterator[Request]:
        """Yield the batches that load the rows."""
        for place, count in enumerate(self._loaded):
            yield from self._batches(place, range(count))

    def plan(
        self, rates: Mapping[OperationKind, float], seconds: float
    ) -> tuple[list[Request], list[Request]]:
        """Return the batches to load before a step, and its requests, ordered by when they are due. Each kind
        is spaced evenly, and deletes are of rows loaded for them, so that no request fails because of
        another. `rates`: operations per second."""
        loading: list[Request] = []
        streams = []
        for order, (kind, rate) in enumerate(rates.items()):
            count = max(1, round(rate * seconds))
            places = list(islice(self._turns[kind], count))
            doomed = {}
            if kind is OperationKind.DELETE:
                for place, wanted in Counter(places).items():
                    numbers = self._numbers(wanted)
                    loading += self._batches(place, numbers)
                    doomed[place] = iter(numbers)
            # Each kind begins at a different moment, to avoid bursts.
            dues = [(number + order / len(rates)) * seconds / count for number in range(count)]
            due_at = zip(dues, places, strict=True)
            streams.append([self._request(due, kind, place, doomed) for due, place in due_at])
        return loading, list(heapq.merge(*streams))

    def _request(
        self, due: float, kind: OperationKind, place: int, doomed: Mapping[int, Iterator[int]]
    ) -> Request:
        size = self.mix.entities_of(kind)
        if kind in _INSERTING:
            number = self._numbers(size).start
        elif kind is OperationKind.DELETE:
            number = next(doomed[place])
        else:
            # Leave as many rows after it as a range query asks for.
            choices = max(1, self._loaded[place] - size + 1)
            self._reads += 1
            number = math.floor(self._reads * _SILVER % 1.0 * choices)
        return Request(due, kind, self._stage, place, number, size)

    def _numbers(self, count: int) -> range:
        first, self._new = self._new, self._new + count
        return range(first, self._new)

    def _batches(self, place: int, numbers: range) -> Iterator[Request]:
        for part in (numbers[at : at + _MOST_BATCH] for at in range(0, len(numbers), _MOST_BATCH)):
            yield Request(0.0, OperationKind.BATCH, self._stage, place, part.start, len(part))
