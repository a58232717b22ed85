"""Requests of a stress test and what came of them, and which rows they are about. Pure.

Rules kept here:

* A request is planned whole before it is sent: a process that sends it needs to know nothing else.
* Kinds of operations are spaced evenly, each by itself; partitions get their shares in every stretch (see
  `spread`), for each kind anew.
* A delete is of a row that is there: one that was inserted by an earlier step, or is loaded before this one.
  Rows that are read, updated and queried are never deleted. So no request can fail because of the others.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row
from rekey.stress.mix import Mix, OperationKind
from rekey.stress.spread import Spread, Turns, partition_key, place_of, row_key

_SILVER = math.sqrt(2) - 1
_FIRST_NEW = 1_000_000_000
"""The number of the first row that is inserted while the test runs: it sorts after those loaded before."""
_MOST_BATCH = 100


class Request(NamedTuple):
    """One request.

    Attributes:
        due: seconds after the beginning of a step.
        kind: what it does.
        partition: PartitionKey.
        number: of its row; the first one of a batch; of a range query, the first row it may return.
        size: rows of a batch, `$top` of a range query; else 1.
    """

    due: float
    kind: OperationKind
    partition: str
    number: int
    size: int = 1

    @property
    def key(self) -> EntityKey:
        """Return the key of its row."""
        return EntityKey(self.partition, row_key(self.number))

    def rows(self, filling: str) -> list[Row]:
        """Return the rows that it writes."""
        written = 1 if self.kind is OperationKind.RANGE_QUERY else self.size
        return [
            {PARTITION_KEY: self.partition, ROW_KEY: row_key(number), "Value": filling}
            for number in range(self.number, self.number + written)
        ]


UNSENT = -1
"""The status of what was due while as many requests as allowed were waiting for their answers."""


class Response(NamedTuple):
    """What came of a request.

    Attributes:
        request: the request.
        sent, answered: seconds after the beginning of the step.
        status: None when it was done; else the HTTP status of the error, 0 without an answer, `UNSENT`.
        entities: rows that were written or returned; of what failed, those that were asked for.
    """

    request: Request
    sent: float
    answered: float
    status: int | None
    entities: int


class Offered(NamedTuple):
    """What came of all requests of a step; `processor`: share of one core that was used to send them."""

    responses: list[Response]
    processor: float


class Population:
    """The rows of one distribution in the test table, as far as they are known to be there."""

    def __init__(self, spread: Spread, stage: int, mix: Mix) -> None:
        """Take the distribution, and a number that keeps partitions of several stages apart."""
        self.spread = spread.folded(mix.rows)
        self.mix = mix
        self._stage = stage
        self._loaded = [max(1, round(mix.rows * n / self.spread.rows)) for n in self.spread.counts]
        self._turns = {kind: Turns(self.spread) for kind in OperationKind}
        self._reads = 0
        self._new = _FIRST_NEW
        self._there: defaultdict[int, deque[int]] = defaultdict(deque)

    @property
    def rows(self) -> int:
        """Return how many rows are loaded before the test."""
        return sum(self._loaded)

    def loading(self) -> Iterator[Request]:
        """Yield the batches that load the rows."""
        for place, count in enumerate(self._loaded):
            yield from self._batches(place, 0, count)

    def plan(
        self, rates: Mapping[OperationKind, float], seconds: float
    ) -> tuple[list[Request], list[Request]]:
        """Return the batches to load before a step, and the requests of the step as they are due.

        Args:
            rates: operations a second of each kind.
            seconds: how long.
        """
        loading: list[Request] = []
        streams = []
        for order, (kind, rate) in enumerate(rates.items()):
            count = max(1, round(rate * seconds))
            places = [self._turns[kind].next() for _ in range(count)]
            if kind is OperationKind.DELETE:
                for place, wanted in Counter(places).items():
                    loading += self._supply(place, wanted)
            # Each kind begins at another moment, so that they do not come in bursts.
            offset = (order + 0.5) / len(rates)
            streams.append(
                [
                    self._request((number + offset) * seconds / count, kind, place)
                    for number, place in enumerate(places)
                ]
            )
        return loading, list(heapq.merge(*streams))

    def done(self, responses: Iterable[Response]) -> None:
        """Take note of rows that were inserted: later steps may delete them."""
        if OperationKind.DELETE not in self.mix.shares:
            return
        for one in responses:
            asked = one.request
            if one.status is None and asked.kind in (OperationKind.INSERT, OperationKind.BATCH):
                numbers = range(asked.number, asked.number + asked.size)
                self._there[place_of(asked.partition)].extend(numbers)

    def _supply(self, place: int, wanted: int) -> Iterator[Request]:
        """Yield what must be loaded so that so many rows of a partition can be deleted."""
        there = self._there[place]
        lacking = wanted - len(there)
        if lacking > 0:
            first = self._numbers(lacking)
            there.extend(range(first, first + lacking))
            yield from self._batches(place, first, lacking)

    def _request(self, due: float, kind: OperationKind, place: int) -> Request:
        count = 1
        if kind in (OperationKind.INSERT, OperationKind.BATCH):
            count = self.mix.entities_of(kind)
            number = self._numbers(count)
        elif kind is OperationKind.DELETE:
            number = self._there[place].popleft()
        else:
            if kind is OperationKind.RANGE_QUERY:
                count = self.mix.top
            # So that as many rows follow as a range query asks for.
            choices = max(1, self._loaded[place] - count + 1)
            self._reads += 1
            number = math.floor(self._reads * _SILVER % 1.0 * choices)
        return Request(due, kind, partition_key(self._stage, place), number, count)

    def _numbers(self, count: int) -> int:
        first, self._new = self._new, self._new + count
        return first

    def _batches(self, place: int, first: int, count: int) -> Iterator[Request]:
        """Yield the batches that insert so many rows of a partition."""
        partition = partition_key(self._stage, place)
        for number in range(first, first + count, _MOST_BATCH):
            size = min(_MOST_BATCH, first + count - number)
            yield Request(0.0, OperationKind.BATCH, partition, number, size)
