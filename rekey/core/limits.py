"""Limits of the service for keys, property names, sizes, rates and table names. Pure. Sources: "Understanding
the Table service data model" and "Naming tables" in the Azure documentation. They apply to rows that a
mapping makes; what is written for an application is checked by the service alone (`rekey.tables.rules`)."""

from __future__ import annotations

import re
from urllib.parse import quote

from rekey.core.edm import BINARY, BOOLEAN, DATETIME, DOUBLE, GUID, INT32, INT64, edm_type
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, SYSTEM_PROPERTIES, Row, property_names

# UTF-16 units. The documentation says 1 KiB in one place and 1,024 characters in another; applications have
# keys of more than 512 (dotnet/orleans #11257), which Azurite refuses.
MAX_KEY_UNITS = 1024
# Bytes that both keys of a row may take in an address; no query can name longer ones (`rekey.tables.wire`),
# so the row cannot be copied. Two keys of 512 CJK characters take this much, percent-encoded; two of 1,024
# letters take 2,048 bytes.
MAX_KEYS_ADDRESS = 9 * MAX_KEY_UNITS
# Keys of at most this many characters always fit: a character takes at most 12 bytes (astral ones).
SURELY_ADDRESSED = MAX_KEYS_ADDRESS // 12
MAX_PROPERTIES = 252
MAX_NAME_CHARACTERS = 255
MAX_ENTITY_BYTES = 1024 * 1024
# 65,536 bytes or 32,768 UTF-16 units are allowed ("the maximum number of characters should be 32K or less",
# says the service's own error; Orleans writes chunks of 64 KiB). Azurite#2510 reports that the service
# refused that many: the service decides, not a check before it.
MAX_VALUE_BYTES = 64 * 1024
# Entities of 1 KiB per second that the service is designed for, per account and per partition ("Scalability
# and performance targets for Table storage"). Above its capacity it answers 503.
ACCOUNT_TARGET = 20_000
PARTITION_TARGET = 2_000
# The part of a rate that is used: rows read are counted only when they have arrived, and a refused request
# waits longer than this costs.
USED_SHARE = 0.98
# Rows that are looked up before authority moves: source rows in the mapping before it moves to the target,
# target rows in the source before it moves back.
GATE_SAMPLE = 100

# Lower case: the service's own name, and the tables of the restricted store.
RESERVED_TABLES = frozenset({"tables", "rekeycontrol", "rekeyjournal", "rekeymap"})

REFUSED_IN_KEYS = re.compile("[/\\\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff]")
TABLE_NAME = re.compile("[A-Za-z][A-Za-z0-9]{2,62}")
# A name ending in this is a table in the target account (`[targets]`). No table name contains `@`, so the
# qualified name is used everywhere and resolved where a request is made (ADR 0042).
TARGET_ACCOUNT_SUFFIX = "@targets"
_RESERVED_NAMES = frozenset(name.lower() for name in SYSTEM_PROPERTIES)

_ENTITY_OVERHEAD = 4
_PROPERTY_OVERHEAD = 8
_TEXT_OVERHEAD = 4
_FIXED_BYTES = {INT32: 4, INT64: 8, DOUBLE: 8, BOOLEAN: 1, DATETIME: 8, GUID: 16}

# A wire row with at most this many fields, keys included, stays below 1 MiB: 15 values of 64 KiB, their names
# and two keys are 970 KiB.
SURELY_SMALL_FIELDS = 17


def utf16_units(text: str) -> int:
    """Return the length of `text` in UTF-16 units, which the service counts."""
    if text.isascii():
        return len(text)
    return len(text) + sum(character > "\uffff" for character in text)


def check_key(key: str, field: str, *, allow_empty: bool = False) -> None:
    r"""Raise RowRefused when the service would refuse a PartitionKey or RowKey: too long, empty, or with one
    of `/ \ # ?`, U+0000-1F, U+007F-9F or a lone surrogate. `field` is where in the declaration, for the
    error."""
    if not key and not allow_empty:
        cure = "fix the expression or the rows; where empty keys are meant, say allow_empty=True"
        raise RowRefused("empty-key", field, "the key is empty", cure=cure)
    match = REFUSED_IN_KEYS.search(key)
    if match is not None:
        problem = f"the key has the character U+{ord(match.group()):04X}, which the service refuses"
        cure = "put keys.slug, keys.regex, keys.hashed or keys.opaque around it, or fix the rows"
        raise RowRefused("refused-character", field, problem, cure=cure)
    if len(key) * 2 > MAX_KEY_UNITS and utf16_units(key) > MAX_KEY_UNITS:
        problem = f"the key is longer than {MAX_KEY_UNITS} UTF-16 units"
        raise RowRefused("key-too-long", field, problem, cure="shorten it, or use keys.hashed or keys.opaque")


def check_address(row: Row, field: str) -> None:
    """Raise RowRefused for a row whose keys are too long for a query. `field`: where in the declaration."""
    keys = row[PARTITION_KEY] + row[ROW_KEY]
    if len(keys) <= SURELY_ADDRESSED:
        return
    if len(quote(keys.replace("'", "''"), safe="", errors="replace")) > MAX_KEYS_ADDRESS:
        problem = f"both keys together take more than {MAX_KEYS_ADDRESS} bytes of an address"
        cure = "shorten them, or use keys.hashed or keys.opaque"
        raise RowRefused("key-too-long", field, problem, cure=cure)


def own_name(name: str) -> str:
    """Return a table's name within its account."""
    return name.removesuffix(TARGET_ACCOUNT_SUFFIX)


def is_in_target_account(name: str) -> bool:
    """Tell whether a table is in the target account, by its qualified name."""
    return name.endswith(TARGET_ACCOUNT_SUFFIX)


def table_name_problem(name: object, *, qualified: bool = False) -> str | None:
    """Return what is wrong with a table name, None if valid. `qualified` allows `@targets` at its end."""
    if not isinstance(name, str):
        return f"a {type(name).__name__} is not a table name"
    own = own_name(name) if qualified else name
    if TABLE_NAME.fullmatch(own) is None:
        return f"{name!r} is not a table name"
    if own.lower() in RESERVED_TABLES:
        return f"the name {name!r} is reserved"
    return None


TABLE_NAME_CURE = "use a letter, then 2 to 62 letters or digits"


def property_name_problem(name: object) -> str | None:
    """Return what is wrong with the name of a property that a script makes, None if it is valid."""
    if not isinstance(name, str):
        return f"a {type(name).__name__} is not a property name"
    if not name.isidentifier() or len(name) > MAX_NAME_CHARACTERS:
        return f"{name!r} is not a property name (letters, digits and _, not beginning with a digit)"
    if name.lower() in _RESERVED_NAMES:
        return f"{name!r} belongs to the service"
    return None


def value_bytes(edm: str, value: object) -> int:
    """Return the bytes of a wire value as the service counts them, without the 4 bytes of its length."""
    if edm in _FIXED_BYTES:
        return _FIXED_BYTES[edm]
    text = str(value)
    if edm == BINARY:
        return len(text.rstrip("=")) * 3 // 4
    return 2 * utf16_units(text)


def entity_bytes(row: Row) -> int:
    """Return the bytes of a wire row by the documented formula.

    4 + 2 x (PartitionKey + RowKey) + for each property 8 + 2 x name + value, where a string or binary value
    has 4 bytes of length; lengths are UTF-16 units.
    """
    total = _ENTITY_OVERHEAD + 2 * (utf16_units(row[PARTITION_KEY]) + utf16_units(row[ROW_KEY]))
    for name in property_names(row):
        edm = edm_type(row, name)
        overhead = _PROPERTY_OVERHEAD + (0 if edm in _FIXED_BYTES else _TEXT_OVERHEAD)
        total += overhead + 2 * utf16_units(name) + value_bytes(edm, row[name])
    return total


def check_row(row: Row, field: str) -> None:
    """Raise RowRefused when the service would refuse a row for its size or number of properties, or when no
    query could name it. `field`: where in the declaration."""
    check_address(row, field)
    if len(row) <= SURELY_SMALL_FIELDS:
        return
    cure = "drop or keep properties: props.drop(…), props.keep(…)"
    if len(row) - 2 > MAX_PROPERTIES and len(property_names(row)) > MAX_PROPERTIES:
        problem = f"the row would have more than {MAX_PROPERTIES} properties"
        raise RowRefused("too-many-properties", field, problem, cure=cure)
    # A cheap upper bound: a character is at most 4 bytes; name, overhead and a fixed-size value at most 534.
    bound = 534 * len(row) + 4 * sum([len(value) for value in row.values() if type(value) is str])
    if bound > MAX_ENTITY_BYTES and entity_bytes(row) > MAX_ENTITY_BYTES:
        problem = f"the row would be larger than {MAX_ENTITY_BYTES} bytes"
        raise RowRefused("row-too-large", field, problem, cure=cure)
