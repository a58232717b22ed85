"""All advice on a table, and on the tables that a migration fills from it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from rekey.core.severity import Severity
from rekey.plan.advice import access, form, identity
from rekey.plan.advice.facts import Facts
from rekey.plan.result import Advice

Rule = Callable[[Facts], Iterator[Advice]]
RULES: tuple[Rule, ...] = (*identity.RULES, *access.RULES, *form.RULES)


def advise(facts: Facts) -> tuple[Advice, ...]:
    """Return all advice: on planned keys first, errors first. Waived advice stays, with its reason."""
    advice = [piece for rule in RULES for piece in rule(facts)]
    if facts.migration is not None:
        still_planned = {piece.code for piece in advice if not piece.today}
        advice = [
            # Advice on today's keys only informs: the migration replaces them.
            replace(piece, severity=Severity.NOTE, answered=piece.code not in still_planned)
            if piece.today
            else replace(piece, waived=facts.migration.waive.get(piece.code))
            for piece in advice
        ]
    return tuple(
        sorted(advice, key=lambda piece: (piece.today and bool(facts.planned), piece.severity.place))
    )
