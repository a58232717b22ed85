"""Advice on keys as identities: what they give away; unique, lasting, the same every time. Pure. Keys appear
in logs, addresses and caches between application and service."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.declaration.keys.base import Prop
from rekey.declaration.keys.escape import Custom
from rekey.inspect.profile import KeyColumn
from rekey.inspect.shapes import Shape
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP
from rekey.plan.advice.facts import WORDS, Facts, TableFacts, advice, percent, words_among
from rekey.plan.advice.structure import MOMENTS, folds, parts_of
from rekey.plan.result import Advice
from rekey.present.text import counted

# The share of keys from which on a shape counts, because some random digits have any of these forms; and its
# name in texts.
PERSONAL = {
    Shape.EMAIL: (0.01, "e-mail addresses"),
    Shape.PHONE: (0.2, "telephone numbers"),
    Shape.NATIONAL_ID: (0.2, "national ids"),
    Shape.CARD: (0.2, "card numbers"),
    Shape.NAME: (0.5, "names of persons"),
}
LEAST_PERSONAL = 3
GUESSABLE_DIGITS = 12
# Least keys of a bucket, on average, that hide which of them is meant: a bucket of an address is a hash of
# it, too.
LEAST_SHARING = 10
GUESSABLE_SHARE = 0.5
# Collision probabilities: error, warning.
LIKELY, WORTH_SAYING = 0.01, 1e-6
LEAST_KEYS = 300
LEAST_CHARACTERS, MOST_CHARACTERS = 3, 24
EVEN = 0.95


def personal_data(facts: Facts) -> Iterator[Advice]:
    """Yield advice on personal data in keys, today's and planned."""
    for table, key, column in facts.columns:
        for shape in personal_shapes(column):
            figures = {"found": counted(column.shapes[shape], "key"), "form": PERSONAL[shape][1]}
            figures["share"] = percent(column.share(shape))
            yield table.advice("personal-data", key=key, column=column, **figures)


def secret_in_key(facts: Facts) -> Iterator[Advice]:
    """Yield advice on secrets in keys, today's and planned."""
    for table, key, column in facts.columns:
        secrets = column.shapes[Shape.SECRET]
        if secrets:
            yield table.advice("secret-in-key", key=key, found=counted(secrets, "key"), column=column)


def guessable_hash(facts: Facts) -> Iterator[Advice]:
    """Yield advice on unkeyed hashes of inputs that can be listed (1.6 million guesses a second and core)."""
    rows = max([table.rows for table in facts.planned], default=0)
    for hash_input in facts.hash_inputs:
        inputs, what = hash_input.inputs, ""
        if hash_input.buckets is not None and hash_input.buckets * LEAST_SHARING <= rows:
            continue
        shapes, most = personal_shapes(inputs), inputs.lengths.most
        numbers = inputs.share(Shape.NUMBER, Shape.PADDED) if most <= GUESSABLE_DIGITS else 0.0
        if shapes:
            what = f"{percent(inputs.share(shapes[0]))} have the form of {PERSONAL[shapes[0]][1]}"
        elif hash_input.buckets is None and inputs.keys >= LEAST_PERSONAL and numbers >= GUESSABLE_SHARE:
            what = f"{percent(numbers)} are numbers of at most {most} digits"
        if what and hash_input.buckets is not None:
            what += f", {hash_input.buckets:,} buckets for {counted(rows, 'row')}"
        if what:
            yield advice("guessable-hash", hash_input.where, one=hash_input, what=what)


def personal_shapes(column: KeyColumn) -> list[Shape]:
    """Return the personal shapes that enough of the keys have."""
    return [
        shape
        for shape, (share, _) in PERSONAL.items()
        if column.shapes[shape] >= LEAST_PERSONAL and column.share(shape) >= share
    ]


def short_id(facts: Facts) -> Iterator[Advice]:
    """Yield advice on random ids that are too short for the number of rows."""
    rows_today = facts.today.rows
    growth = max(1.0, facts.load.get("rows", 0.0) / rows_today) if rows_today else 1.0
    for table, key, column in facts.columns:
        bits = random_bits(column)
        if bits is None:
            continue
        rows = table.rows * growth
        others = table.largest_partition * growth if key == "RowKey" else rows
        # The birthday problem: 1 - exp(-pairs / 2^bits). Ids in RowKeys need to differ within a partition
        # only.
        chance = -math.expm1(-rows * max(0.0, others - 1) / 2 / 2**bits)
        if chance < WORTH_SAYING:
            continue
        severity = Severity.ERROR if chance >= LIKELY else Severity.WARNING
        text = percent(chance) if chance >= 0.001 else f"1 in {1 / chance:,.0f}"
        figures = {"most": column.lengths.most, "bits": bits, "rows": counted(round(rows), "row")}
        yield table.advice("short-id", severity, key=key, chance=text, **figures)


def merged_keys(facts: Facts) -> Iterator[Advice]:
    """Yield advice on truncation or folding that turns different keys into one."""
    for table in facts.planned:
        colliding = facts.colliding.get(table.table)
        folding = ", ".join(key.describe() for key in table.keys if folds(key))
        if colliding and folding and not _is_of_moments(table):
            yield table.advice("merged-keys", rows=counted(colliding, "row"), folding=folding)


def time_duplicates(facts: Facts) -> Iterator[Advice]:
    """Yield advice on RowKeys of moments alone, where rows share a moment."""
    for table in facts.planned:
        colliding = facts.colliding.get(table.table)
        if colliding and _is_of_moments(table):
            yield table.advice("time-duplicates", rows=counted(colliding, "row"))


def mutable_key(facts: Facts) -> Iterator[Advice]:
    """Yield advice on keys of the main target made of a property whose name says that it changes."""
    for table in facts.planned[:1]:
        for key, expression in zip((PARTITION_KEY, ROW_KEY), table.keys, strict=True):
            names = [name for name in sorted(expression.inputs()) if words_among("changing", name)]
            if names:
                yield table.advice("mutable-key", key=key, names=", ".join(names))


def unrepeatable_key(facts: Facts) -> Iterator[Advice]:
    """Yield advice on keys that are not deterministic."""
    migration = facts.migration
    if migration is None or not facts.planned:
        return
    reasons = []
    if facts.unrepeatable:
        reasons.append(f"{facts.unrepeatable:,} of {facts.repeated:,} rows got another key the second time")
    for field, expression in migration.expressions():
        for node in expression.walk():
            if isinstance(node, Custom):
                code = getattr(node.function, "__code__", None)
                names = sorted(WORDS["unrepeatable"].intersection(code.co_names)) if code is not None else []
                reasons += [f"{field}: {node.reference} uses {', '.join(names)}"] if names else []
            if node == Prop(TIMESTAMP):
                reasons.append(f"{field} is made of Timestamp, which every write changes")
    if reasons:
        yield facts.planned[0].advice("unrepeatable-key", evidence="; ".join(reasons))


def random_bits(column: KeyColumn) -> float | None:
    """Return the random bits of keys of one length, by the entropy at each place; None when any place is not
    evenly random: they are no random ids."""
    keys = [key for key in column.sample if key]
    lengths = column.lengths
    fixed = lengths.least == lengths.most and LEAST_CHARACTERS <= lengths.most <= MOST_CHARACTERS
    if not fixed or len(keys) < LEAST_KEYS or all(key.isdigit() for key in keys):
        return None
    alphabet = set().union(*keys)
    if len(alphabet) < 8:
        return None
    most, bits = math.log2(len(alphabet)), 0.0
    for characters in zip(*keys, strict=True):
        shares = [times / len(keys) for times in Counter(characters).values()]
        if -sum(share * math.log2(share) for share in shares) < EVEN * most:
            return None
        bits += most
    return bits


def _is_of_moments(table: TableFacts) -> bool:
    parts = parts_of(table.keys[1])
    return bool(parts) and all(isinstance(part, MOMENTS) for part in parts)


RULES = (
    *(personal_data, secret_in_key, guessable_hash),
    *(short_id, merged_keys, time_duplicates, mutable_key, unrepeatable_key),
)
