"""Text from elsewhere, harmless to look at: what would move a cursor or turn a line around is spelled out.

Rules kept here:

* C0 and C1 controls, DEL, bidirectional controls, line separators and lone surrogates are shown as Python
  writes them: `\\x1b`, `\\u202e`. Everything else stays, so that text is still text in any language.
* What is spelled out once is not spelled out again.
"""

from __future__ import annotations

import re

_HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return a text of lines with every other control spelled out; UTF-8 can express the result."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def one_line(text: str) -> str:
    """Return a text in one line, so that a name cannot pass for a line of ours."""
    return visible(text).replace("\n", r"\n")
