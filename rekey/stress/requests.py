"""Requests of a stress test, their responses, and the made-up rows that they are about. Pure.

Rules kept here:

* A request is planned whole before it is sent: a process that sends it needs to know nothing else.
* Kinds of operations are spaced evenly, each by itself; partitions get their shares in every stretch (see
  `spread`), for each kind anew.
* A delete is of a row that was loaded for it before the step; rows that are read, updated and queried are
  never deleted. So no request can fail because of another one.
"""

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
# The number of the first row that is inserted while the test runs: it sorts after those loaded before.
_FIRST_NEW = 1_000_000_000
_MOST_BATCH = 100
# Makes a row 1 KiB, the size that the service's targets are stated for: text takes two bytes a character
# where it is stored; keys and names take the rest.
_FILLING = "x" * ((1024 - 64) // 2)
_INSERTING = (OperationKind.INSERT, OperationKind.BATCH)


class Request(NamedTuple):
    """One request.

    Attributes:
        due: seconds after the beginning of a step.
        kind: its kind of operation.
        stage: number of the distribution that is tried; it keeps partitions of several ones apart.
        place: number of the partition, from 0.
        number: of its row; the first one of a batch; of a range query, the first row it may return.
        size: rows of a batch, `$top` of a range query; else 1.
    """

    due: float
    kind: OperationKind
    stage: int
    place: int
    number: int
    size: int = 1

    @property
    def key(self) -> EntityKey:
        """Return the key of its row."""
        return self._key(self.number)

    @property
    def before(self) -> EntityKey:
        """Return a key that sorts directly before its row."""
        return self._key(self.number - 1)

    @property
    def rows(self) -> list[Row]:
        """Return the rows that it inserts or replaces."""
        keys = map(self._key, range(self.number, self.number + self.size))
        return [{PARTITION_KEY: key.partition, ROW_KEY: key.row, "Value": _FILLING} for key in keys]

    def _key(self, number: int) -> EntityKey:
        return EntityKey(f"{self.stage}.{self.place:07d}", f"{number:010d}")


# Status of a request that was due while as many as allowed were waiting for their responses.
UNSENT = -1


class Response(NamedTuple):
    """Outcome of a request.

    Attributes:
        request: the request.
        sent, answered: seconds after the beginning of the step.
        status: None when it succeeded; else the HTTP status of the error, 0 without a response, `UNSENT`.
        entities: rows that were written or returned; of a failed request, those that were asked for.
    """

    request: Request
    sent: float
    answered: float
    status: int | None
    entities: int


class Offered(NamedTuple):
    """The responses to all requests of a step; `processor`: share of one core that was used to send them."""

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
        """Return how many rows are loaded before the test."""
        return sum(self._loaded)

    def loading(self) -> Iterator[Request]:
        """Yield the batches that load the rows."""
        for place, count in enumerate(self._loaded):
            yield from self._batches(place, range(count))

    def plan(
        self, rates: Mapping[OperationKind, float], seconds: float
    ) -> tuple[list[Request], list[Request]]:
        """Return the batches to load before a step, and its requests, ordered by when they are due.

        Args:
            rates: operations a second of each kind.
            seconds: length of the step.
        """
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
            # Each kind begins at another moment, so that they do not come in bursts.
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
            # So that as many rows follow as a range query asks for.
            choices = max(1, self._loaded[place] - size + 1)
            self._reads += 1
            number = math.floor(self._reads * _SILVER % 1.0 * choices)
        return Request(due, kind, self._stage, place, number, size)

    def _numbers(self, count: int) -> range:
        """Return the numbers of `count` new rows."""
        first, self._new = self._new, self._new + count
        return range(first, self._new)

    def _batches(self, place: int, numbers: range) -> Iterator[Request]:
        """Yield the batches that insert rows of a partition."""
        for some in (numbers[at : at + _MOST_BATCH] for at in range(0, len(numbers), _MOST_BATCH)):
            yield Request(0.0, OperationKind.BATCH, self._stage, place, some.start, len(some))
