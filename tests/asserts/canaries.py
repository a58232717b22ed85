"""Texts that must not be found, and the search for them in every form they could have been written in."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote


@dataclass(frozen=True)
class Canaries:
    """Texts that must not be found, by what they stand for."""

    texts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, lot: random.Random) -> Canaries:
        names = ("partition key", "row key", "value", "secret")
        return cls({name: "".join(lot.choices(string.ascii_lowercase, k=20)) for name in names})

    def found_in(self, data: bytes) -> set[str]:
        """Return what stands in some bytes, in any of the forms."""
        seen = data.lower()
        return {
            name for name, text in self.texts.items() if any(form in seen for form in _lowered_forms(text))
        } | {name for name, text in self.texts.items() if any(form in data for form in _base64_forms(text))}


def _lowered_forms(text: str) -> Iterator[bytes]:
    lowered = text.lower()
    for form in (lowered, lowered[::-1]):
        yield form.encode()
        yield form.encode("utf-16-le")
        yield form.encode().hex().encode()
        yield form.encode("utf-16-le").hex().encode()
        yield quote(form, safe="").lower().encode()
        yield "".join(f"%{byte:02x}" for byte in form.encode()).encode()
        yield "".join(f"\\x{byte:02x}" for byte in form.encode()).encode()
        yield "".join(f"\\u{byte:04x}" for byte in form.encode()).encode()


def _base64_forms(text: str) -> Iterator[bytes]:
    """Yield the characters of base64 that depend on the text alone, at each of the three alignments."""
    for form in (text.encode(), text.upper().encode(), text.encode("utf-16-le")):
        for before in range(3):
            encoded = base64.b64encode(b"\0" * before + form)
            whole = encoded[-(-before * 8 // 6) : (before + len(form)) * 8 // 6]
            yield whole
            yield whole.replace(b"+", b"-").replace(b"/", b"_")
