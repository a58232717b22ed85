"""Shapes of keys: e-mail addresses, GUIDs, dates, ticks, card numbers and the like, by text alone. A shape is
a form, not a truth (`order.created` has the form of a name), so advice judges many keys, never one. Nothing
here keeps a key."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from enum import StrEnum
from pathlib import Path

from rekey.core.texts import table
from rekey.declaration.keys.moments import FIRST_YEAR, LAST_YEAR, read_ticks


class Shape(StrEnum):
    """The form of a key, or of a part of it."""

    EMAIL = "email"
    GUID = "guid"
    DATE = "date"
    TICKS = "ticks"
    INVERTED_TICKS = "inverted-ticks"
    CARD = "card-number"
    NATIONAL_ID = "national-id"
    PHONE = "phone"
    NAME = "personal-name"
    SECRET = "secret"  # noqa: S105 - the name of a shape
    DIGEST = "digest"
    PADDED = "padded-number"
    NUMBER = "number"
    SLUG = "slug"


_LONGEST = 512


_EMAIL = re.compile(r"[^\s@|;,:<>()]+@(?:[^\s@.|;,:<>()_]+\.)+(?:xn--[a-z0-9-]+|[^\W\d_]{2,24})(?![\w-])")
# Without hyphens only versions in use, because MD5 digests have the same form.
_GUID = re.compile(
    r"\{?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\}?|[0-9a-f]{12}[147][0-9a-f]{3}[89ab][0-9a-f]{15}", re.I
)
_DIGEST = re.compile(  # with a digit in it, but not digits only
    r"(?=\D*\d)(?!\d+$)(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{128}|[0-9a-hjkmnp-tv-z]{32})", re.I
)
_MOMENT = re.compile(
    r"(\d{4})([-._])(\d\d)(?:\2(\d\d)(?:[T -](?:[01]\d|2[0-3])"
    r"(?:[:.-]?[0-5]\d(?:[:.-]?[0-5]\d(?:[.,]\d{1,7})?)?)?"
    r"(?:Z|[+-]\d\d:?\d\d)?)?)?"
)
_DAY_FIRST = re.compile(r"(\d{1,2})([-.])(\d{1,2})\2(\d{4})")
_WEEK = re.compile(r"(?:19|20|21)\d\d-?W(?:0[1-9]|[1-4]\d|5[0-3])(?:-?[1-7])?")
_NAMED_MONTH = re.compile(
    r"\d{1,2}[- .](?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[- .,]+\d{4}", re.I
)
_COMPACT_TIME = re.compile(r"(\d{8})T\d{4,6}Z?")
_COMPACT = re.compile(r"((?:19|20|21)\d\d)(\d\d)(\d\d)?(?:(?:[01]\d|2[0-3])(?:[0-5]\d){0,2}(?:\d{3})?)?")
_INTERNATIONAL = re.compile(r"(?:\+|00[1-9]?[-. ])[(\d](?:[\d ().-]|x(?=\d+$))*\d")
_PHONE_PARTS = re.compile(r"\(?\+?\d{1,5}\)?(?:[ .-]?\(?\d{1,8}\)?)+(?:x\d{1,6})?")
_NANP = re.compile(r"(?:1[-. ])?(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4}(?:x\d{1,6})?")
_WORD = r"(?:[^\W\d_]{2,20}|[\u3040-\u9fff\uac00-\ud7af])"
_NAME = re.compile(rf"{_WORD}(?:[-'’]{_WORD})*\.(?:[^\W\d_]\.)?(?:[^\W\d_]['’])?({_WORD})(?:[-'’]{_WORD})*")
_CARD = re.compile(r"\d{12,19}|\d{4}([ -])\d{4,6}(?:\1\d{1,5}){1,3}", re.ASCII)
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}", re.ASCII)
# JSON web tokens, signatures and keys of Azure, tokens of other services.
_SECRET = re.compile(
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"
    r"|(?i:(?:^|[?&;, ])sig=[\w%+=/-]{16,}|(?:AccountKey|SharedAccessKey|SharedAccessSignature)=)"
    r"|(?:gh[pousr]_|github_pat_|[sr]k_live_|sk_test_|xox[abprs]-|AKIA|ASIA|glpat-|SG\.|AIza|npm_)[\w.-]{16,}"
)
_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
_LONG_DIGITS = re.compile(r"(?<!\d)\d{18,19}(?!\d)")
_INNER_GUID = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", re.I)
_INNER_DAY = re.compile(r"(?<!\d)\d{4}-\d\d-\d\d(?!\d)")
_BETWEEN = re.compile(r"[_|:;,~!$ ]+")
_NO_NAMES = frozenset(table(Path(__file__).with_name("words.toml"))["no_names"].split())


def shape_of(text: str) -> Shape | None:
    """Return the shape of a whole text, None without one. An ambiguous text gets the plainer shape: bare
    digits are a number, not a telephone number."""
    if not text or len(text) > _LONGEST:
        return None
    if text.isascii() and text.isdigit():
        return _digits(text)
    return next((shape for shape, fits in _FORMS if fits(text)), None)


def shapes_in(text: str) -> tuple[Shape, ...]:
    """Return the shapes in a key: that of the whole, or those of its parts, each once."""
    whole = shape_of(text)
    if whole is not None and whole is not Shape.SLUG:
        return (whole,)
    # Forms inside a longer text, between any other characters.
    shapes = [_moment_number(digits) for digits in _LONG_DIGITS.findall(text)]
    if _INNER_GUID.search(text):
        shapes.append(Shape.GUID)
    if any(map(_is_iso, _INNER_DAY.findall(text))):
        shapes.append(Shape.DATE)
    if whole is not None and not any(shapes):
        return (whole,)
    parts = _BETWEEN.split(text)
    if len(parts) > 1:
        shapes += map(shape_of, parts)
    return tuple(dict.fromkeys(shape for shape in shapes if shape is not None))


def _digits(text: str) -> Shape:
    if (moment := _moment_number(text)) is not None:
        # Eighteen digits with a birthday and a check digit are a resident's number.
        return Shape.NATIONAL_ID if is_national_id(text) else moment
    if _is_compact_date(text):
        return Shape.DATE
    if is_card(text):
        return Shape.CARD
    if is_national_id(text):
        return Shape.NATIONAL_ID
    return Shape.PADDED if len(text) > 1 and text[0] == "0" else Shape.NUMBER


def _moment_number(digits: str) -> Shape | None:
    ticks = read_ticks(digits)
    return None if ticks is None else Shape.INVERTED_TICKS if ticks[1] else Shape.TICKS


def _is_compact_date(text: str) -> bool:
    match = _COMPACT.fullmatch(text)
    if match is None or not 6 <= len(text) <= 17:
        return False
    year, month, day = match.groups()
    if day is None:
        return FIRST_YEAR <= int(year) < LAST_YEAR and 1 <= int(month) <= 12
    return _is_day(year, month, day)


def _is_day(year: str | int, month: str | int, day: str | int, *, first: int = 1900) -> bool:
    try:
        return first <= date(int(year), int(month), int(day)).year < 2200
    except ValueError:
        return False


def _is_iso(text: str) -> bool:
    match = _MOMENT.fullmatch(text)
    return match is not None and _is_day(match[1], match[3], match[4] or "01")


def _is_date(text: str) -> bool:
    if not 6 <= len(text) <= 35 or not any(map(str.isdigit, text[:2])):
        return False
    if (day_first := _DAY_FIRST.fullmatch(text)) is not None:
        first, _, second, year = day_first.groups()
        return _is_day(year, second, first) or _is_day(year, first, second)
    if _is_iso(text) or _WEEK.fullmatch(text) or _NAMED_MONTH.fullmatch(text):
        return True
    compact = _COMPACT_TIME.fullmatch(text)
    return compact is not None and _is_compact_date(compact[1])


def _is_phone(text: str) -> bool:
    if not 7 <= len(text) <= 30 or text[0] not in "+(0123456789":
        return False
    if _ADDRESS.fullmatch(text) or _DAY_FIRST.fullmatch(text) or _MOMENT.fullmatch(text):
        return False
    number, _, extension = text.partition("x")
    digits = sum(map(str.isdigit, number))
    if not 7 <= digits <= 16 or (extension and not extension.isdigit()):
        return False
    if _INTERNATIONAL.fullmatch(text) or _NANP.fullmatch(text):
        return True
    groups = re.findall(r"\d+", number)
    # Two groups of digits may be anything; a trunk code or several short groups make a telephone number.
    trunk = text[0] in "(0" and len(groups[0]) <= 5 and 9 <= digits <= 13
    many = len(groups) >= 3 and 8 <= digits <= 12 and max(map(len, groups)) <= 5
    return (trunk or many) and _PHONE_PARTS.fullmatch(text) is not None


def _is_name(text: str) -> bool:
    match = _NAME.fullmatch(text)
    return match is not None and match[1].lower() not in _NO_NAMES


def _is_slug(text: str) -> bool:
    words = text.split("-")
    return _SLUG.fullmatch(text) is not None and any(len(word) > 2 and word.isalpha() for word in words)


# --- card numbers and national ids ---------------------------------------------------------------------

_CARDS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[68]\d)\d{11}|6(?:011|4[4-9]\d|5\d\d)\d{12}(?:\d{3})?|35\d{14}|220[0-4]\d{12}"
    r"|(?:2131|1800)\d{11}|(?:5[0678]|6\d)\d{10}(?:\d{4})?"
)
_CONTROL_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_FINNISH = "0123456789ABCDEFHJKLMNPRSTUVWXY"


def is_card(digits: str) -> bool:
    """Tell whether digits are a card number: an issuer's range and length, and Luhn's check digit."""
    return 12 <= len(digits) <= 19 and _CARDS.fullmatch(digits) is not None and luhn(digits)


def luhn(digits: str) -> bool:
    """Tell whether the last digit is Luhn's check digit of those before it (ISO/IEC 7812-1, annex B)."""
    # Every other digit counts twice, by the digits of its double.
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


def is_national_id(text: str) -> bool:
    """Tell whether a text is a national id of one of the countries in `_NATIONAL`: an unmistakable form, a
    check digit or a date. Bare digits count only where random ones would pass in less than 3 of 100 cases."""
    if not 9 <= len(text) <= 21:
        return False
    return any(pattern.fullmatch(text) and holds(text) for pattern, holds in _NATIONAL)


def _bare(text: str) -> str:
    return re.sub(r"[ .-]", "", text)


def _weighted(digits: str, weights: tuple[int, ...]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


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
    return century < 2100 and _is_day(century + year, month % 20, day, first=1800) and check == int(text[10])


def _brazilian(text: str) -> bool:
    digits = _bare(text)
    if len(set(digits)) == 1:
        return False
    rests = [_weighted(digits[:at], tuple(range(at + 1, 1, -1))) * 10 % 11 % 10 for at in (9, 10)]
    return rests == [int(digits[9]), int(digits[10])]


def _swedish(text: str) -> bool:
    digits = _bare(text.replace("+", ""))[-10:]
    return _is_day(2000, digits[2:4], int(digits[4:6]) % 60 or 1) and luhn(digits)


def _finnish(text: str) -> bool:
    return _FINNISH[int(text[:6] + text[7:10]) % 31] == text[10].upper()


def _danish(text: str) -> bool:
    return _is_day(2000, text[2:4], text[:2])


def _korean(text: str) -> bool:
    return _is_day(2000, int(text[2:4]) or 1, int(text[4:6]) or 1)


def _chinese(text: str) -> bool:
    if int(text[6:10]) >= 2100 or not _is_day(text[6:10], text[10:12], text[12:14]):
        return False
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    return "10X98765432"[_weighted(text, weights) % 11] == text[17].upper()


def _swiss(text: str) -> bool:
    digits = _bare(text)
    return (10 - _weighted(digits, (1, 3) * 6) % 10) % 10 == int(digits[12])


# United States, United Kingdom, Spain, France, Italy, Poland, Brazil, Sweden, Finland, Denmark, Korea,
# China, Switzerland.
_NATIONAL: tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...] = (
    (re.compile(r"(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}", re.ASCII), lambda _text: True),
    (re.compile(r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d\d ?\d\d ?\d\d ?[A-D]"), lambda _text: True),
    (re.compile(r"(?:\d{8}|[XYZ]\d{7})-?[A-Z]", re.I | re.ASCII), _spanish),
    (re.compile(r"\d ?\d\d ?\d\d ?(?:\d\d|2[AB]) ?\d{3} ?\d{3} ?\d\d", re.ASCII), _french),
    (re.compile(r"[A-Z]{6}\d\d[ABCDEHLMPRST]\d\d[A-Z]\d{3}[A-Z]", re.I | re.ASCII), lambda _text: True),
    (re.compile(r"\d{11}", re.ASCII), _polish),
    (re.compile(r"\d{11}|\d{3}\.\d{3}\.\d{3}-\d\d", re.ASCII), _brazilian),
    (re.compile(r"(?:19|20)?\d{6}[-+]\d{4}", re.ASCII), _swedish),
    (re.compile(r"\d{6}[-+A-FU-Y]\d{3}[0-9A-Y]", re.I | re.ASCII), _finnish),
    (re.compile(r"[0-3]\d[01]\d\d\d-\d{4}", re.ASCII), _danish),
    (re.compile(r"\d{6}-[1-4]\d{6}", re.ASCII), _korean),
    (re.compile(r"[1-9]\d{16}[\dX]", re.I | re.ASCII), _chinese),
    (re.compile(r"756\.\d{4}\.\d{4}\.\d\d", re.ASCII), _swiss),
)

# From the most to the least certain; the first match decides.
_FORMS: tuple[tuple[Shape, Callable[[str], object]], ...] = (
    (Shape.SECRET, lambda text: len(text) >= 20 and _SECRET.search(text)),
    (Shape.EMAIL, lambda text: "@" in text and _EMAIL.search(text)),
    (Shape.GUID, lambda text: len(text) in (32, 36, 38) and _GUID.fullmatch(text)),
    (Shape.DATE, _is_date),
    (Shape.CARD, lambda text: _CARD.fullmatch(text) and is_card(_bare(text))),
    (Shape.NATIONAL_ID, is_national_id),
    (Shape.PHONE, _is_phone),
    (Shape.DIGEST, _DIGEST.fullmatch),
    (Shape.NAME, _is_name),
    (Shape.SLUG, _is_slug),
)
