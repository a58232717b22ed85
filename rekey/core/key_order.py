"""The service's order of keys: by UTF-16 code unit, so astral characters sort below U+E000. Pure."""

from __future__ import annotations

# Keys have at most so many UTF-16 units (`rekey.core.limits`).
MOST_UNITS = 1024

_ASTRAL = 0xD800
_ASTRAL_COUNT = 0x100000
_LAST = "\uffff"
_CONTROLS = ((0, 0x20), (0x7F, 0xA0))


def rank_of(character: str) -> int:
    """Return a character's rank by UTF-16 unit, as the service orders: astral ones are below U+E000."""
    code = ord(character)
    if code > 0xFFFF:
        return _ASTRAL + code - 0x10000
    return code if code < _ASTRAL else code - 0xE000 + _ASTRAL + _ASTRAL_COUNT


def character_of(rank: int) -> str:
    """Return the character of a rank; the inverse of `rank_of`."""
    if rank < _ASTRAL:
        return chr(rank)
    if rank < _ASTRAL + _ASTRAL_COUNT:
        return chr(rank - _ASTRAL + 0x10000)
    return chr(rank - _ASTRAL - _ASTRAL_COUNT + 0xE000)


def last_below(text: str) -> str:
    """Return the greatest key text below `text`, which is not empty: no text of at most `MOST_UNITS` units is
    between the two."""
    rank = rank_of(text[-1])
    if not rank:
        return text[:-1]
    below = text[:-1] + character_of(rank - 1)
    return below + _LAST * (MOST_UNITS - _units(below))


def first_after(prefix: str) -> str | None:
    """Return the least text that can be a key, or begin one, above all that begin with `prefix`; None if
    there is none."""
    stem = prefix.rstrip(_LAST)
    if not stem:
        return None
    rank = rank_of(stem[-1]) + 1
    # No key holds control characters, and some servers refuse them.
    rank = next((end for begin, end in _CONTROLS if begin <= rank < end), rank)
    return stem[:-1] + character_of(rank)


def first_above(text: str) -> str | None:
    """Return the least text above `text` if that is the last one below another (`last_below`) and has as many
    units as a key can have; otherwise None."""
    is_last = text.endswith(_LAST) and _units(text) >= MOST_UNITS
    return first_after(text) if is_last else None


def _units(text: str) -> int:
    return len(text.encode("utf-16-be", "surrogatepass")) // 2
