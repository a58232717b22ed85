"""Made-up rows with every EDM type at its limits, and keys that the service takes and clients get wrong."""

from __future__ import annotations

import base64
import random
import uuid
from collections.abc import Iterator

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.edm import BINARY, DATETIME, DOUBLE, GUID, INT64
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, Row

_START = ticks_of("2021-01-01T00:00:00Z")
_THREE_YEARS = 3 * 365 * 86_400 * TICKS_PER_SECOND
_ODD = (
    "plain",
    "two words",
    " leading and trailing ",
    "it's",
    "100%25",
    "a+b=c&d",
    "é-e\u0301",
    "Straße-ẞ",
    "日本語",
    "🦊🚲",
    "dots...",
    "UPPER-lower",
    '"quoted"',
    "semi;colon,comma",
    "x" * 400,
    "~_-.!*()",
)
"""Keys the service takes and clients get wrong."""


def generic(count: int, *, seed: int = 0, partitions: int = 40) -> Iterator[Row]:
    """Yield rows with every EDM type at its limits, and keys that the service takes and clients get wrong."""
    for number in range(count):
        lot = random.Random(f"{seed}/{number}")
        odd = _ODD[number % len(_ODD)]
        yield {
            PARTITION_KEY: f"{_ODD[lot.randrange(len(_ODD))][:40]}-{lot.randrange(partitions)}",
            ROW_KEY: f"{odd}{number}",
            "Text": lot.choice(("", "text", odd, "2024-01-31T12:00:00Z", "\u2028")),
            "Number": lot.choice((0, -1, 2**31 - 1, -(2**31), lot.randrange(1000))),
            **_typed("Long", INT64, str(lot.choice((0, 2**63 - 1, -(2**63), 2**53 + 1, number)))),
            **_typed(
                "Ratio", DOUBLE, lot.choice(("NaN", "Infinity", "-Infinity", 0.1, 3.0, 1e308, number / 7))
            ),
            "Flag": lot.random() < 0.5,
            **_typed(
                "Moment",
                DATETIME,
                lot.choice(("1601-01-01T00:00:00.0000000Z", "9999-12-31T23:59:59.9999999Z", _moment(lot))),
            ),
            **_typed("Id", GUID, _guid(lot)),
            **_typed("Blob", BINARY, base64.b64encode(lot.randbytes(lot.randrange(40))).decode("ascii")),
            **({"Rare": "only some rows have it"} if lot.random() < 0.2 else {}),
        }


def _moment(lot: random.Random) -> str:
    return format_ticks(_START + lot.randrange(_THREE_YEARS))


def _guid(lot: random.Random) -> str:
    text = str(uuid.UUID(int=lot.getrandbits(128), version=4))
    return text.upper() if lot.random() < 0.5 else text


def _typed(name: str, edm: str, value: object) -> Row:
    return {name: value, name + TYPE_SUFFIX: edm}
