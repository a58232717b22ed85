"""Tables with several kinds of rows, as applications fill them, and tables with one."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator

from rekey.model import PARTITION_KEY, ROW_KEY, Row
from rekey.rehearse.stock import SYLLABLES


def identity(users: int = 60) -> Iterator[Row]:
    """Yield users, claims, logins and roles of ASP.NET Identity, and rows that lead to users."""
    lot = random.Random(5)
    for number in range(users):
        # First names begin several keys each, and a family name may follow after any separator.
        name = f"{lot.choice(SYLLABLES)}{lot.choice('_-.')}{lot.choice(SYLLABLES)}{number}"
        yield {PARTITION_KEY: name, ROW_KEY: f"U_{name}", "UserName": name, "Email": f"{name}@example.com"}
        for claim in range(number % 3):
            yield {PARTITION_KEY: name, ROW_KEY: f"C_{claim}", "ClaimType": "scope", "ClaimValue": "read"}
        yield {PARTITION_KEY: name, ROW_KEY: f"L_google_{number}", "LoginProvider": "google"}
        yield {PARTITION_KEY: name, ROW_KEY: "R_admin" if number % 2 else "R_reader", "RoleName": "r"}
        yield {PARTITION_KEY: f"E_{name}@example.com", ROW_KEY: name, "UserId": name}


def sagas(number: int = 40) -> Iterator[Row]:
    """Yield sagas of NServiceBus with the rows that lead from a correlation value to each."""
    lot = random.Random(6)
    for order in range(number):
        saga = str(uuid.UUID(int=lot.getrandbits(128), version=4))
        index = f"Index_OrderSaga_OrderId_{order:05}"
        yield {PARTITION_KEY: saga, ROW_KEY: saga, "OrderId": str(order), "Originator": "shop"}
        yield {PARTITION_KEY: index, ROW_KEY: "", "SagaId": saga, "InitialSagaData": "e30="}


def by_property(number: int = 60) -> Iterator[Row]:
    """Yield orders, users and notes that keys say nothing about; `Comment` and `Created` are of any kind."""
    lot = random.Random(7)
    for _ in range(number):
        shared = {"Created": "2024"} | ({"Comment": "c"} if lot.random() < 0.4 else {})
        kinds: list[Row] = [
            {"OrderId": "1", "Total": 3, "Status": "open", "UserRef": "2"},
            {"UserId": "2", "Name": "n"},
            {"Text": "t", "Status": "draft"},
        ]
        key = str(uuid.UUID(int=lot.getrandbits(128), version=4))
        yield {PARTITION_KEY: f"t{lot.randrange(4)}", ROW_KEY: key, **shared, **lot.choice(kinds)}


def tenants(number: int = 300) -> Iterator[Row]:
    """Yield documents and comments of tenants, whose names begin the PartitionKeys."""
    lot = random.Random(8)
    for each in range(number):
        partition = f"{lot.choice(('acme', 'globex', 'initech'))}_{lot.randrange(9)}"
        content: Row = {"Title": "t"} if each % 2 else {"Body": "b"}
        yield {PARTITION_KEY: partition, ROW_KEY: f"{'doc' if each % 2 else 'comment'}:{each}", **content}


def people(number: int = 400) -> Iterator[Row]:
    """Yield rows of one kind: names in both keys, a few of them frequent, and optional properties."""
    lot = random.Random(9)
    names = [f"{a}{b}" for a in SYLLABLES for b in SYLLABLES]
    for each in range(number):
        first, last = (names[min(int(lot.paretovariate(0.4)), len(names)) - 1] for _ in "12")
        row: Row = {PARTITION_KEY: f"{last}_{each % 50}", ROW_KEY: f"{first}_{last}_{each}", "Name": first}
        yield row | ({"Phone": "1"} if lot.random() < 0.5 else {}) | ({"Fax": "2"} if each % 9 == 0 else {})
