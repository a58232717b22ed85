"""Which keys the address of a row carries safely. Pure.

The Table service is documented to decode addresses twice ("Understanding the Table service data model", on
`%` in keys), and gateways normalize them: `a%25b` is then read as `a%b`, or as absent. Queries and the bodies
of transactions are not affected.
"""

from __future__ import annotations

import re

from rekey.model import EntityKey

# Unreserved characters (RFC 3986, section 2.3), and some that no server misreads once decoded.
_PLAIN = re.compile(r"[A-Za-z0-9_~@:|,=.-]*")


def is_addressable(key: EntityKey) -> bool:
    """Tell whether a row may be read and written at its address: no decoding or normalizing on the way can
    turn its key into another one."""
    return _is_plain(key.partition) and _is_plain(key.row)


def _is_plain(part: object) -> bool:
    if not isinstance(part, str):
        return True  # refused where it is encoded
    dotted = part.startswith(".") or part.endswith(".") or ".." in part
    return not dotted and _PLAIN.fullmatch(part) is not None
