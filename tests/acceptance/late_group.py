"""The group of a life: a second script, whose tables move with those of the life, or not at all.

Rules kept here:

* Nobody writes the second source. At rest every row of it is in its target, once, as it maps; after a way
  back whose targets are dropped there is no target.
* All that control rows of the group say is read in one request, as often as the life looks: authorities that
  are not all on the same side are found, however briefly.
"""

from __future__ import annotations

from collections.abc import Iterable

from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.model import Row, content_of
from rekey.phases import ControlPhase
from tests.fakes.given_account import MADE
from tests.worlds.azurite_projects import Project, load, users
from tests.worlds.fleet import SECRETS
from tests.worlds.scripts import USERS, named

_ROWS = 30
_OLD_SIDE = (ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)


class Group:
    """The script of a life's project and one more, in one group."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.name = f"group{project.number}"
        self.script_id = f"{project.number:04d}_a_second"
        self.source, self.target = (f"T{project.number}Second{base}" for base in ("", "V2"))
        if project.elsewhere is not None:
            self.target += TARGET_ACCOUNT_SUFFIX
        MADE.update((self.source, self.target))
        self.script_ids = (project.script_id, self.script_id)

    def joined(self, script: str) -> str:
        """Return a script as one of the group."""
        return script.replace("    capture=", f'    group="{self.name}",\n    capture=')

    def declare(self, capture: str) -> None:
        """Write the second script, and fill its source. `capture`: of the first one."""
        path = self.project.migrations / f"{self.script_id}.py"
        script = named(USERS, self.source, self.target)
        path.write_text(self.joined(script.replace('"delta"', f'"{capture}"')), "utf-8")
        self.mapper = Mapper(load_script(path).migration, SECRETS)
        load(self.project.azurite.tables, self.source, users(_ROWS))

    def controls(self) -> dict[str, Row]:
        """Return the control rows of the group, by script."""
        name = f"group:{self.name}"
        rows = self.project.restricted.rows("rekeycontrol", (name, f"{name}~"))
        return {row["RowKey"]: content_of(row) for row in rows}

    def mixed(self) -> list[str]:
        """Return what the control rows say, if authorities are on both sides; else nothing."""
        phases = {one: row["Phase"] for one, row in self.controls().items()}
        sides = {phase in _OLD_SIDE for phase in phases.values()}
        return [f"the group is mixed: {phases}"] if len(sides) > 1 else []

    def wrong(self) -> list[str]:
        """Return what is wrong with the second script's tables, at rest."""
        if self.script_id not in self.controls():
            names = self.project.wire.names() & {self.target}
            return [f"left of a run whose targets were dropped: {names}"] if names else []
        there = self.project.wire.rows(self.target)
        given = [self.mapper.map(row)[0].row for row in self.project.wire.rows(self.source)]
        same = len(given) == _ROWS and _contents(there) == _contents(given)
        return [] if same else [f"{self.target} has not what {self.source} gives"]


def _contents(rows: Iterable[Row]) -> list[str]:
    return sorted(str(sorted(content_of(row).items())) for row in rows)
