"""The next steps for an operator, in errors, reports and `rekey status`; the words are in `next_steps.toml`
alone. `tests/scenarios/status/test_next_steps.py` carries out every step and checks that it helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rekey.core.texts import catalogue, filled
from rekey.phases import Phase

# The entries `command` and `remark` of all steps.
TEXTS = catalogue(Path(__file__).with_name("next_steps.toml"))

# Kinds of divergences that repair cannot fix: the rows or the script must change.
_UP_TO_PEOPLE = {"collision", "refused"}


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next: a key of `TEXTS`, and values for the names in braces."""

    code: str
    values: Mapping[str, object]

    @property
    def command(self) -> str:
        """The command's words after `rekey`, complete."""
        return filled(TEXTS[self.code], self.values, "command")[0]

    @property
    def remark(self) -> str:
        """What to do before, after or instead, or ""."""
        return filled(TEXTS[self.code], self.values, "remark")[0]

    def __str__(self) -> str:
        return f"`rekey {self.command}`" + (f" ({self.remark})" if self.remark else "")


def next_step(code: str, **values: str) -> NextStep:
    """Return a step of `TEXTS`; of `values`, `script` may be `--group` and a group."""
    return NextStep(code, with_names(values))


def with_names(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values with those derived from them: the name that `complete` asks for, and whose writers
    have to stop before a rollback."""
    script = str(values.get("script", ""))
    name = script.removeprefix("--group ")
    writers = values.get("target", "") if name == script else "all targets of the group"
    return {**values, "name": name, "writers": writers}


def apply_to(script: str, phase: Phase) -> str:
    """Return the words after `rekey` that take a migration to a phase; `complete` needs its name again."""
    name = script.removeprefix("--group ")
    return f"apply {script} --to {phase}" + (f" --yes {name}" if phase is Phase.COMPLETE else "")


def after_findings(
    script: str, source: str, report: Mapping[str, Any], *, following: bool = False
) -> NextStep:
    """Return the step after a full verification of a migration with findings; `source` is its table, the rest
    as of `code_after_findings`."""
    return next_step(code_after_findings(report, following=following), script=script, source=source)


def code_after_findings(report: Mapping[str, Any], *, following: bool = False) -> str:
    """Return the code of the step after a full verification with findings.

    Args:
        report: the verification's report as JSON; {} from a version before 0.2, which stored none.
        following: `apply --follow` is running, which holds the locks and compares again by itself.
    """
    counts, repair = report.get("by_kind", {}), report.get("repair")
    up_to_people = "fix-new-rows" if report.get("authority_is_target") else "collision"
    if repair is not None:
        code = up_to_people if repair.get("counts", {}).get("refused") else "prove"
    elif counts:
        foreign = {"extra"} if counts.get("extra") == report.get("foreign") else set()
        kinds = counts.keys() - _UP_TO_PEOPLE - foreign
        code = "mend" if kinds else up_to_people
    else:
        code = "settle" if report.get("unsettled") else "compare-again" if "unexplained" in report else "mend"
    if following and code != "collision":
        code = "mend-followed" if code == "mend" else "followed"
    return code
