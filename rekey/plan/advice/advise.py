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
    found = [advice for rule in RULES for advice in rule(facts)]
    if facts.migration is not None:
        left = {one.code for one in found if not one.today}
        found = [
            # Today's keys only inform: the migration is to replace them.
            replace(one, severity=Severity.NOTE, answered=one.code not in left)
            if one.today
            else replace(one, waived=facts.migration.waive.get(one.code))
            for one in found
        ]
    return tuple(sorted(found, key=lambda one: (one.today and bool(facts.planned), one.severity.place)))
