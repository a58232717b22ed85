"""All kinds of advice by code. Each has a page in docs/advice/.

Rules kept here:

* A code is for ever: scripts waive by it.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    "one-partition": "One PartitionKey for everything",
    "partition-load": "A partition over its target at the declared load",
    "partition-share": "One partition holds much of the table",
    "partition-per-row": "A partition for each row, where rows are read or written together",
    "partition-order": "PartitionKeys that only rise or only fall",
    "random-order": "Random keys where an order is asked for",
    "unpadded-numbers": "Numbers that are not zero-padded",
    "time-not-inverted": "Oldest first where the newest are asked for",
    "query-not-served": "A declared range that the keys do not serve",
    "key-not-computable": "A key that cannot be computed from what is known",
    "personal-data": "Personal data in a key",
    "secret-in-key": "A secret in a key",
    "guessable-hash": "An unkeyed hash of something that can be guessed",
    "short-id": "Ids too short for the number of rows",
    "merged-keys": "Folding or cutting that makes two keys one",
    "time-duplicates": "Moments as keys, where moments repeat",
    "mutable-key": "A key made of a property that changes",
    "unrepeatable-key": "A key that comes out different each time",
    "escaped-characters": "Characters that have to be escaped",
    "non-ascii": "Characters outside ASCII",
    "long-keys": "Long keys",
    "row-size": "Rows near 1 MiB",
    "property-count": "Rows near 252 properties",
    "pointer-dropped": "An index table that loses its pointer",
    "fan-out": "Many index rows for each row",
    "table-name": "A table's name that will be wrong one day",
    "cosmos-limits": "Limits of Cosmos DB for Table",
}
"""Code and title."""
