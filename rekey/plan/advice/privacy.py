"""Advice on what keys give away. Pure.

Rules kept here:

* Keys appear in every log, address and cache between application and service; nothing in them is private.
* A shape is a form, not a truth: the weaker its form, the larger the share of keys that must have it.
* An unkeyed hash of something that can be listed (addresses, telephone numbers, numbers) hides nothing: 1.6
  million guesses a second on one core.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.inspect.columns import KeyColumn
from rekey.inspect.shapes import Shape
from rekey.plan.advice.facts import Facts, advice, percent
from rekey.plan.result import Advice
from rekey.present.text import counted

# The share of keys from which on a shape counts, because some random digits have any of these forms; and
# what keys of that shape are called.
PERSONAL = {
    Shape.EMAIL: (0.01, "e-mail addresses"),
    Shape.PHONE: (0.2, "telephone numbers"),
    Shape.NATIONAL_ID: (0.2, "national ids"),
    Shape.CARD: (0.2, "card numbers"),
    Shape.NAME: (0.5, "names of persons"),
}
LEAST_KEYS = 3
GUESSABLE_DIGITS = 12
GUESSABLE_SHARE = 0.5


def personal_data(facts: Facts) -> Iterator[Advice]:
    """Yield advice on personal data in keys, today's and planned."""
    for table, key, column in facts.columns:
        for shape in personal_shapes(column):
            said = {"found": counted(column.shapes[shape], "key"), "form": PERSONAL[shape][1]}
            said["share"] = percent(column.share(shape))
            yield table.advice("personal-data", key=key, column=column, **said)


def secret_in_key(facts: Facts) -> Iterator[Advice]:
    """Yield advice on secrets in keys, today's and planned."""
    for table, key, column in facts.columns:
        found = column.shapes[Shape.SECRET]
        if found:
            yield table.advice("secret-in-key", key=key, found=counted(found, "key"), column=column)


def guessable_hash(facts: Facts) -> Iterator[Advice]:
    """Yield advice on unkeyed hashes of inputs that can be guessed."""
    for one in facts.hash_inputs:
        inputs, what = one.inputs, ""
        shapes, most = personal_shapes(inputs), inputs.lengths.most
        numbers = inputs.share(Shape.NUMBER, Shape.PADDED) if most <= GUESSABLE_DIGITS else 0.0
        if shapes:
            what = f"{percent(inputs.share(shapes[0]))} have the form of {PERSONAL[shapes[0]][1]}"
        elif inputs.keys >= LEAST_KEYS and numbers >= GUESSABLE_SHARE:
            what = f"{percent(numbers)} are numbers of at most {most} digits"
        if what:
            yield advice("guessable-hash", one.where, one=one, what=what)


def personal_shapes(column: KeyColumn) -> list[Shape]:
    """Return the personal shapes that enough of the keys have."""
    return [
        shape
        for shape, (share, _) in PERSONAL.items()
        if column.shapes[shape] >= LEAST_KEYS and column.share(shape) >= share
    ]


RULES = (personal_data, secret_in_key, guessable_hash)
