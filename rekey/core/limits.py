"""Limits of the service: keys, property names, sizes, rates, table names. Pure.

Rules kept here (Azure documentation, "Understanding the Table service data model" and "Naming tables"):

* A key is at most 1,024 UTF-16 units (the documentation says 1 KiB in one place and 1,024 characters in
  another; applications have keys of more than 512, dotnet/orleans #11257; Azurite refuses these) and holds
  none of `/ \\ # ?`, U+0000-1F, U+007F-9F, nor half a surrogate pair.
* Both keys of a row together take at most `MAX_KEYS_ADDRESS` bytes of an address: beyond that no query can
  name them (`rekey.tables.wire`), and the row cannot be carried.
* At most 252 custom properties; a name that a script makes is an identifier of at most 255 characters.
* An entity is at most 1 MiB by the documented formula, a string or binary property at most 64 KiB: exactly
  65,536 bytes or 32,768 UTF-16 units are allowed ("the maximum number of characters should be 32K or less",
  says the service's own refusal; Orleans writes chunks of 64 KiB). Azurite#2510 reports that the service
  refused that many: its answer decides, not a check before it.
* What is written for an application is checked by the service alone (`rekey.tables.rules`): these limits are
  for rows that a mapping makes.
* A table name is a letter and 2 to 62 letters or digits, in any case; `tables` is the service's own.
* A name that ends with `@targets` means a table of the account of `[targets]`. No table's name has an `@`:
  the qualified name stands wherever a name does, and is resolved where a request is made (ADR 0042).
"""

from __future__ import annotations

import re
from urllib.parse import quote

from rekey.core.edm import BINARY, BOOLEAN, DATETIME, DOUBLE, GUID, INT32, INT64, edm_type
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, SYSTEM_PROPERTIES, Row, property_names

MAX_KEY_UNITS = 1024
# What two keys of 512 CJK characters take, percent-encoded; two of 1,024 letters take 2,048 bytes.
MAX_KEYS_ADDRESS = 9 * MAX_KEY_UNITS
# So many characters in two keys never take more: one takes at most 12 bytes (astral ones).
SURELY_ADDRESSED = MAX_KEYS_ADDRESS // 12
MAX_PROPERTIES = 252
MAX_NAME_CHARACTERS = 255
MAX_ENTITY_BYTES = 1024 * 1024
MAX_VALUE_BYTES = 64 * 1024
ACCOUNT_TARGET = 20_000
# Entities of 1 KiB a second that the service is built for, in an account and in one partition ("Scalability
# and performance targets for Table storage"). It refuses more with 503, when and where it is too much.
PARTITION_TARGET = 2_000

# Lower case: the service's own name, and the tables of the restricted store.
RESERVED_TABLES = frozenset({"tables", "rekeycontrol", "rekeyjournal", "rekeymap"})

REFUSED_IN_KEYS = re.compile("[/\\\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff]")
TABLE_NAME = re.compile("[A-Za-z][A-Za-z0-9]{2,62}")
ELSEWHERE = "@targets"
_RESERVED_NAMES = frozenset(name.lower() for name in SYSTEM_PROPERTIES)

_ENTITY_OVERHEAD = 4
_PROPERTY_OVERHEAD = 8
_TEXT_OVERHEAD = 4
_FIXED_BYTES = {INT32: 4, INT64: 8, DOUBLE: 8, BOOLEAN: 1, DATETIME: 8, GUID: 16}

# A wire row of at most this many fields, keys included, cannot reach 1 MiB: 15 values of 64 KiB, their names
# and two keys are 970 KiB.
SURELY_SMALL_FIELDS = 17


def utf16_units(text: str) -> int:
    """Return the length of `text` in UTF-16 units, as the service counts."""
    if text.isascii():
        return len(text)
    return len(text) + sum(character > "\uffff" for character in text)


def check_key(key: str, field: str, *, allow_empty: bool = False) -> None:
    """Raise RowRefused when the service would refuse a PartitionKey or RowKey.

    Args:
        key: the key.
        field: where in the declaration, for the refusal.
        allow_empty: whether an empty key is allowed.
    """
    if not key and not allow_empty:
        cure = "fix the expression or the rows; where empty keys are meant, say allow_empty=True"
        raise RowRefused("empty-key", field, "the key is empty", cure=cure)
    found = REFUSED_IN_KEYS.search(key)
    if found is not None:
        problem = f"the key has the character U+{ord(found.group()):04X}, which the service refuses"
        cure = "put keys.slug, keys.regex, keys.hashed or keys.opaque around it, or fix the rows"
        raise RowRefused("refused-character", field, problem, cure=cure)
    if len(key) * 2 > MAX_KEY_UNITS and utf16_units(key) > MAX_KEY_UNITS:
        problem = f"the key is longer than {MAX_KEY_UNITS} UTF-16 units"
        raise RowRefused("key-too-long", field, problem, cure="shorten it, or use keys.hashed or keys.opaque")


def check_address(row: Row, field: str) -> None:
    """Raise RowRefused for a row whose keys are too long to be named in a query.

    Args:
        row: its keys.
        field: where in the declaration, for the refusal.
    """
    keys = row[PARTITION_KEY] + row[ROW_KEY]
    if len(keys) <= SURELY_ADDRESSED:
        return
    if len(quote(keys.replace("'", "''"), safe="", errors="replace")) > MAX_KEYS_ADDRESS:
        problem = f"both keys together take more than {MAX_KEYS_ADDRESS} bytes of an address"
        cure = "shorten them, or use keys.hashed or keys.opaque"
        raise RowRefused("key-too-long", field, problem, cure=cure)


def own_name(name: str) -> str:
    """Return the name that a table has in its account."""
    return name.removesuffix(ELSEWHERE)


def is_elsewhere(name: str) -> bool:
    """Tell whether a name means a table of the account of `[targets]`."""
    return name.endswith(ELSEWHERE)


def table_name_problem(name: object, *, qualified: bool = False) -> str | None:
    """Return what is wrong with a table name, None when it can be used. `qualified`: it may end with
    `@targets`."""
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
    """Return what is wrong with the name of a property that is to be made, None when it can be used."""
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
    query could name it.

    Cheap for ordinary rows: the exact size is only computed where an upper bound passes the limit.

    Args:
        row: as it is to be written.
        field: where in the declaration, for the refusal.
    """
    check_address(row, field)
    if len(row) <= SURELY_SMALL_FIELDS:
        return
    cure = "drop or keep properties: props.drop(…), props.keep(…)"
    if len(row) - 2 > MAX_PROPERTIES and len(property_names(row)) > MAX_PROPERTIES:
        problem = f"the row would have more than {MAX_PROPERTIES} properties"
        raise RowRefused("too-many-properties", field, problem, cure=cure)
    # a character is at most 4 bytes; name, overhead and a value of fixed size at most 534
    bound = 534 * len(row) + 4 * sum([len(value) for value in row.values() if type(value) is str])
    if bound > MAX_ENTITY_BYTES and entity_bytes(row) > MAX_ENTITY_BYTES:
        problem = f"the row would be larger than {MAX_ENTITY_BYTES} bytes"
        raise RowRefused("row-too-large", field, problem, cure=cure)
