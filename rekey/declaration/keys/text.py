"""Text to text: case, white space, normalization, slugs, zero padding. Case mapping and normal forms are
those of the running Python's Unicode data, which is stable for assigned characters only."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from rekey.core.limits import MAX_KEY_UNITS
from rekey.declaration.keys.base import Changed, Expression, Plain, Scope, need_int, need_one_of, operand


def _casefold(text: str) -> str:
    # Case folding can decompose the text, hence the second pass.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


# The profiles of `normalize`. A name keeps its meaning: a changed profile gets a new name.
#
# * `nfc`: Unicode normal form C: composed characters.
# * `nfkc`: Unicode normal form KC: also full-width forms, ligatures and the like become their plain forms.
# * `casefold`: NFC, then Unicode full case folding, then NFC again.
# * `email`: white space at both ends removed, then `casefold` over the whole address, local part included.
#   Dots and `+tag` stay: what they mean is the mail provider's choice.
PROFILES: dict[str, Callable[[str], str]] = {
    "nfc": lambda text: unicodedata.normalize("NFC", text),
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
    "casefold": _casefold,
    "email": lambda text: _casefold(text.strip()),
}

_NOT_SLUG = re.compile("[^a-z0-9]+")
_DIGITS = re.compile("[0-9]+")


class Lower(Plain, op="lower"):
    """Lower case. See `lower`."""

    def change(self, scope: Scope) -> Callable[[str], str]:  # noqa: ARG002 - it refuses nothing
        return str.lower


class Upper(Plain, op="upper"):
    """Upper case. See `upper`."""

    def change(self, scope: Scope) -> Callable[[str], str]:  # noqa: ARG002 - it refuses nothing
        return str.upper


class Strip(Plain, op="strip"):
    """White space at both ends removed. See `strip`."""

    def change(self, scope: Scope) -> Callable[[str], str]:  # noqa: ARG002 - it refuses nothing
        return str.strip


@dataclass(frozen=True)
class Normalize(Changed, op="normalize"):
    """A named normalization. See `normalize`."""

    profile: str
    of: Expression

    def __post_init__(self) -> None:
        need_one_of("keys.normalize(profile)", self.profile, PROFILES)

    def change(self, scope: Scope) -> Callable[[str], str]:  # noqa: ARG002 - it refuses nothing
        return PROFILES[self.profile]


class Slug(Plain, op="slug"):
    """Lower-case ASCII words joined by hyphens. See `slug`."""

    def change(self, scope: Scope) -> Callable[[str], str]:
        def slugged(text: str) -> str:
            plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
            slug = _NOT_SLUG.sub("-", plain.lower()).strip("-")
            if not slug:
                problem = f"{self.describe()} is empty: the text has no letter or digit that ASCII can show"
                cure = "use keys.hashed or keys.opaque, which take any text, or fix the rows"
                raise scope.refusal("empty-key", problem, cure=cure)
            return slug

        return slugged


@dataclass(frozen=True)
class ZeroPad(Changed, op="zero_pad"):
    """A number with leading zeros. See `zero_pad`."""

    width: int
    of: Expression

    def __post_init__(self) -> None:
        need_int("keys.zero_pad(width)", self.width, least=1, most=MAX_KEY_UNITS)

    def change(self, scope: Scope) -> Callable[[str], str]:
        width, inverts = self.width, scope.inverts

        def padded(digits: str) -> str:
            if _DIGITS.fullmatch(digits) is None:
                problem = f"{self.of.describe()} is not a whole number of decimal digits without a sign"
                cure = "use zero_pad on integer properties only, or fix the rows"
                raise scope.refusal("not-a-number", problem, cure=cure)
            if len(digits) > width:
                problem = f"{self.of.describe()} has more than {width} digits"
                cure = "make zero_pad(width, …) as wide as the longest number"
                raise scope.refusal("out-of-range", problem, cure=cure)
            if inverts and len(digits) > 1 and digits[0] == "0":
                problem = f"{self.of.describe()} begins with a zero, which padding does not keep apart"
                cure = 'take mapping="none" out of the script before it begins, or fix the rows'
                raise scope.refusal("leading-zero", problem, cure=cure)
            return digits.zfill(width)

        return padded


def lower(of: Expression | str) -> Expression:
    """Return the text in lower case (`str.lower`). Different texts may become equal: see `plan --exact`."""
    return Lower(operand("keys.lower", of))


def upper(of: Expression | str) -> Expression:
    """Return the text in upper case (`str.upper`). Different texts may become equal: see `plan --exact`."""
    return Upper(operand("keys.upper", of))


def strip(of: Expression | str) -> Expression:
    """Return the text without Unicode white space at both ends."""
    return Strip(operand("keys.strip", of))


def normalize(profile: str, of: Expression | str) -> Expression:
    """Return the text in a named normal form: `nfc`, `nfkc`, `casefold` or `email`; see `PROFILES`."""
    return Normalize(profile, operand("keys.normalize", of))


def slug(of: Expression | str) -> Expression:
    """Return lowercase ASCII words joined by hyphens: `Éclairs & Co.` → `eclairs-co`.

    Exactly: NFKD, characters outside ASCII dropped, lower case, every run of characters other than `a-z0-9`
    becomes one hyphen, hyphens at both ends dropped. A text that leaves nothing is refused (`empty-key`).
    """
    return Slug(operand("keys.slug", of))


def zero_pad(width: int, of: Expression | str) -> Expression:
    """Return a non-negative whole number with leading zeros to `width` digits, so that text sorts as numbers
    do.

    Refuses rows whose value is no such number (`not-a-number`) or has more digits (`out-of-range`).
    """
    return ZeroPad(width, operand("keys.zero_pad", of))
