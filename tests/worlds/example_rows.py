"""Rows made up for the worked examples: seeded, so that the same call gives the same rows."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.edm import DATETIME, INT64
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, Row
from rekey.rehearse.stock import SYLLABLES, TAGS, users

_CATEGORIES = ("Engineering", "Life", "News", "R&D / Labs", "Travel")
_WORDS = ("blue", "fast", "green", "late", "new", "old", "quiet", "red", "slow", "warm")
_START = ticks_of("2021-01-01T00:00:00Z")
_YEAR_TICKS = 365 * 86_400 * TICKS_PER_SECOND


def posts(count: int, *, seed: int = 0, blogs: int = 1) -> Iterator[Row]:
    """Yield rows of the table `Posts`: a blog in the PartitionKey, a slug in the RowKey."""
    for number in range(count):
        lot = _lot(seed, number)
        words = lot.sample(_WORDS, 3)
        row: Row = {
            PARTITION_KEY: f"blog-{lot.randrange(blogs)}",
            ROW_KEY: f"{'-'.join(words)}-{number}",
            "Title": " ".join(words).capitalize(),
            "Author": f"{_name(lot).capitalize()} {lot.choice(SYLLABLES).capitalize()}",
            **_datetime("Published", lot),
            "Body": " ".join(lot.choices(_WORDS, k=40)),
        }
        if lot.random() < 0.9:
            row["Category"] = lot.choice(_CATEGORIES)
        if lot.random() < 0.9:
            row["Tags"] = ", ".join(lot.sample(TAGS, 1 + lot.randrange(4)))
        yield row


def telemetry(count: int, *, seed: int = 0, devices: int = 50) -> Iterator[Row]:
    """Yield rows of the table `Telemetry`: a device in the PartitionKey, a random id in the RowKey.

    Some readings of one device share their moment to 100 ns; only `Sequence` tells them apart.
    """
    for number in range(count):
        lot = _lot(seed, number)
        device = f"device-{number % devices:04d}"
        sequence = number // devices
        moment = _START + (sequence // 2) * 7_919 * TICKS_PER_SECOND + (sequence // 2) % TICKS_PER_SECOND
        yield {
            PARTITION_KEY: device,
            ROW_KEY: str(uuid.UUID(int=lot.getrandbits(128), version=4)),
            "DeviceId": device,
            "RecordedAt": format_ticks(moment),
            "RecordedAt" + TYPE_SUFFIX: DATETIME,
            "Sequence": str(sequence),
            "Sequence" + TYPE_SUFFIX: INT64,
            "Celsius": round(lot.uniform(-30, 60), 2) + 0.001,
            "Battery": lot.randrange(101),
            "Charging": lot.random() < 0.3,
        }


def registrations(count: int, *, seed: int = 0, races: int = 4) -> Iterator[Row]:
    """Yield rows of the table `Registrations`: a race in the PartitionKey, a random id in the RowKey.

    A bib is worn once in a race.
    """
    for number in range(count):
        lot = _lot(seed, number)
        yield {
            PARTITION_KEY: f"{2011 + number % races} New York City Marathon",
            ROW_KEY: str(uuid.UUID(int=lot.getrandbits(128), version=4)),
            "Distance": lot.choice(("Full", "Half")),
            "Bib": number // races,
            "Name": _name(lot).capitalize(),
            "Gender": lot.choice("FMX"),
            "Age": lot.randrange(16, 95),
            "Email": f"{_name(lot)}{number}@mail.example",
        }


def identities(count: int, *, seed: int = 0) -> Iterator[Row]:
    """Yield rows of the table `AspNetUsers`: of each user the own row, a claim, a login, a role and the row
    of the e-mail address."""
    for number in range(count):
        lot = _lot(seed, number // 5)
        name = f"{_name(lot)}{number // 5}@mail.example"
        user = f"U_{name}"
        keys = [(user, user), (user, "C_admin"), (user, f"L_google:{number // 5}"), (user, "R_reader")]
        partition, row = [*keys, (f"E_{name}", user)][number % 5]
        yield {PARTITION_KEY: partition, ROW_KEY: row, "Level": lot.randrange(9), **_datetime("Since", lot)}


def orders(count: int, *, seed: int = 0, tenants: int = 20) -> Iterator[Row]:
    """Yield rows of the table `Orders`: a tenant in the PartitionKey; most name a user by e-mail address."""
    for number in range(count):
        lot = _lot(seed, number)
        mail = {"UserEmail": f"{_name(lot)}@mail.example"} if lot.random() < 0.9 else {}
        tenant = f"tenant-{lot.randrange(tenants):03d}"
        key = {PARTITION_KEY: tenant, ROW_KEY: str(uuid.UUID(int=lot.getrandbits(128), version=4))}
        yield {**key, "Total": lot.randrange(1_000), **mail}


def invoices(count: int, *, seed: int = 0) -> Iterator[Row]:
    """Yield rows of the table `Invoices`: a tenant in the PartitionKey, two in three of them Contoso."""
    for number in range(count):
        lot = _lot(seed, number)
        tenant = "contoso" if number % 3 else f"tenant-{lot.randrange(20):03d}"
        key = {PARTITION_KEY: tenant, ROW_KEY: f"{number:07d}"}
        yield {**key, **_datetime("IssuedAt", lot), "Total": lot.randrange(1_000)}


def logs(count: int, *, seed: int = 0) -> Iterator[Row]:
    """Yield rows of the table `Logs`: a day of the first four months of 2024 in the PartitionKey."""
    for number in range(count):
        lot = _lot(seed, number)
        day = f"2024-{lot.randrange(1, 5):02d}-{lot.randrange(1, 29):02d}"
        service = f"service-{lot.randrange(20):02d}"
        yield {
            PARTITION_KEY: day,
            ROW_KEY: f"{lot.getrandbits(64):016x}",
            "Service": service,
            "Level": lot.randrange(6),
        }


def shipments(count: int, *, seed: int = 0, customers: int = 20) -> Iterator[Row]:
    """Yield rows of the table `Shipments`: a customer in the PartitionKey; three in four have arrived."""
    for number in range(count):
        lot = _lot(seed, number)
        row: Row = {
            PARTITION_KEY: f"customer-{lot.randrange(customers):03d}",
            ROW_KEY: f"{number:07d}",
            "Weight": lot.randrange(1_000),
        }
        if number % 4:
            day = f"{lot.randrange(2023, 2026)}-{lot.randrange(1, 13):02d}-{lot.randrange(1, 29):02d}"
            row |= {"State": "arrived", "ArrivedAt": f"{day}T08:00:00Z", "ArrivedAt" + TYPE_SUFFIX: DATETIME}
        yield row


Generator = Callable[..., Iterator[Row]]
GENERATORS: dict[str, Generator] = {
    "Users": users,
    "Posts": posts,
    "Telemetry": telemetry,
    "Registrations": registrations,
    "AspNetUsers": identities,
    "Orders": orders,
    "OrdersDE": orders,
    "OrdersFR": orders,
    "Logs": logs,
    "Invoices": invoices,
    "Shipments": shipments,
}
"""Generators by the source table of the worked example they suit."""


def _lot(seed: int, number: int) -> random.Random:
    return random.Random(f"{seed}/{number}")


def _name(lot: random.Random) -> str:
    return "".join(lot.choices(SYLLABLES, k=lot.randrange(2, 4)))


def _datetime(name: str, lot: random.Random) -> Row:
    moment = format_ticks(_START + lot.randrange(3 * _YEAR_TICKS))
    return {name: moment, name + TYPE_SUFFIX: DATETIME}
