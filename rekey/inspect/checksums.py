"""Numbers that prove themselves: card numbers and national ids with their check digits. Pure.

Rules kept here:

* Card numbers: ISO/IEC 7812-1, Luhn's check digit, and the ranges that issuers use.
* National ids: a form that hardly anything else has, or a check digit that holds, or a valid date in it.
  Bare digits count only where random digits would pass in less than 3 of 100 cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date

_CARDS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[68]\d)\d{11}|6(?:011|4[4-9]\d|5\d\d)\d{12}(?:\d{3})?|35\d{14}|220[0-4]\d{12}"
    r"|(?:2131|1800)\d{11}|(?:5[0678]|6\d)\d{10}(?:\d{4})?"
)
_CONTROL_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_FINNISH = "0123456789ABCDEFHJKLMNPRSTUVWXY"


def is_card(digits: str) -> bool:
    """Tell whether bare digits are a card number: an issuer's range, its length, and Luhn's check digit."""
    return 12 <= len(digits) <= 19 and _CARDS.fullmatch(digits) is not None and luhn(digits)


def luhn(digits: str) -> bool:
    """Tell whether the last digit is Luhn's check digit of those before it (ISO/IEC 7812-1, annex B)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        number = int(digit)
        if place % 2:
            number = number * 2 - 9 if number > 4 else number * 2
        total += number
    return total % 10 == 0


def is_national_id(text: str) -> bool:
    """Tell whether a text is a national id of one of the countries below."""
    if not 9 <= len(text) <= 21:
        return False
    return any(pattern.fullmatch(text) and holds(text) for pattern, holds in _NATIONAL)


def _bare(text: str) -> str:
    return re.sub(r"[ .-]", "", text)


def _weighted(digits: str, weights: tuple[int, ...]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def _is_date(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _always(_text: str) -> bool:
    return True


def _american(text: str) -> bool:
    return text[:3] not in ("000", "666") and text[4:6] != "00" and text[7:] != "0000"


def _spanish(text: str) -> bool:
    digits = _bare(text)
    number = int(digits[:-1].upper().replace("X", "0").replace("Y", "1").replace("Z", "2"))
    return digits[-1].upper() == _CONTROL_LETTERS[number % 23]


def _french(text: str) -> bool:
    digits = _bare(text).replace("2A", "19").replace("2B", "18")
    return digits[0] in "12378" and 97 - int(digits[:13]) % 97 == int(digits[13:])


def _polish(text: str) -> bool:
    year, month, day = int(text[:2]), int(text[2:4]), int(text[4:6])
    century = {4: 1800, 0: 1900, 1: 2000, 2: 2100, 3: 2200}[month // 20]
    check = (10 - _weighted(text, (1, 3, 7, 9) * 2 + (1, 3)) % 10) % 10
    return century < 2100 and _is_date(century + year, month % 20, day) and check == int(text[10])


def _brazilian(text: str) -> bool:
    digits = _bare(text)
    if len(set(digits)) == 1:
        return False
    for at in (9, 10):
        rest = _weighted(digits[:at], tuple(range(at + 1, 1, -1))) * 10 % 11 % 10
        if rest != int(digits[at]):
            return False
    return True


def _swedish(text: str) -> bool:
    digits = _bare(text.replace("+", ""))[-10:]
    return _is_date(2000, int(digits[2:4]), int(digits[4:6]) % 60 or 1) and luhn(digits)


def _finnish(text: str) -> bool:
    return _FINNISH[int(text[:6] + text[7:10]) % 31] == text[10].upper()


def _day_month(text: str) -> bool:
    return _is_date(2000, int(text[2:4]), int(text[:2]))


def _korean(text: str) -> bool:
    return _is_date(2000, int(text[2:4]) or 1, int(text[4:6]) or 1)


def _chinese(text: str) -> bool:
    year = int(text[6:10])
    if not 1900 <= year < 2100 or not _is_date(year, int(text[10:12]), int(text[12:14])):
        return False
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    return "10X98765432"[_weighted(text, weights) % 11] == text[17].upper()


def _swiss(text: str) -> bool:
    digits = _bare(text)
    return (10 - _weighted(digits, (1, 3) * 6) % 10) % 10 == int(digits[12])


_NATIONAL: tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...] = (
    (re.compile(r"(?!9)\d{3}-\d\d-\d{4}", re.ASCII), _american),
    (re.compile(r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d\d ?\d\d ?\d\d ?[A-D]"), _always),
    (re.compile(r"(?:\d{8}|[XYZ]\d{7})-?[A-Z]", re.I | re.ASCII), _spanish),
    (re.compile(r"\d ?\d\d ?\d\d ?(?:\d\d|2[AB]) ?\d{3} ?\d{3} ?\d\d", re.ASCII), _french),
    (re.compile(r"[A-Z]{6}\d\d[ABCDEHLMPRST]\d\d[A-Z]\d{3}[A-Z]", re.I | re.ASCII), _always),
    (re.compile(r"\d{11}", re.ASCII), _polish),
    (re.compile(r"\d{11}|\d{3}\.\d{3}\.\d{3}-\d\d", re.ASCII), _brazilian),
    (re.compile(r"(?:19|20)?\d{6}[-+]\d{4}", re.ASCII), _swedish),
    (re.compile(r"\d{6}[-+A-FU-Y]\d{3}[0-9A-Y]", re.I | re.ASCII), _finnish),
    (re.compile(r"[0-3]\d[01]\d\d\d-\d{4}", re.ASCII), _day_month),
    (re.compile(r"\d{6}-[1-4]\d{6}", re.ASCII), _korean),
    (re.compile(r"[1-9]\d{16}[\dX]", re.I | re.ASCII), _chinese),
    (re.compile(r"756\.\d{4}\.\d{4}\.\d\d", re.ASCII), _swiss),
)
"""United States, United Kingdom, Spain, France, Italy, Poland, Brazil, Sweden, Finland, Denmark, Korea,
China, Switzerland."""
