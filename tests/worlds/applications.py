"""The two applications of the dual-write tests, in words of neither view: rows, their contents, both views.

Rules kept here:

* `users`: keys from keys alone. `posts`: keys from content with an index table; a post changes its month and
  its tags, so that its rows move.
* A row is a number; its content is what the application has in it. Each world says how the old and the new
  version of the application write and read that, and reads it back from either table: what the ledger allows
  is compared with what a table holds in the same words.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from rekey.model import Row
from tests.worlds import scripts as declared
from tests.worlds.late_ledger import Content, State
from tests.worlds.scripts import under_writes

View = Literal["old", "new"]
Key = tuple[str, str]
Entity = dict[str, Any]
NewKey = Callable[[Row], Key]
"""Maps a source row to the key of its main target row."""
MONTHS = ("2024-01", "2024-02", "2024-03")
TAGS = ("", "azure", "azure,keys", "keys,news")

USERS = under_writes(declared.USERS)
POSTS = '''\
"""Posts by month within their blog, with an index by tag, while the application writes."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.join("_", keys.prop("Month"), keys.prop("RowKey")),
        properties=[props.copy("RowKey", to="Slug")],
    ),
    indexes=[
        Index("INDEX", each=keys.split("Tags", ",", default=""), partition_key=keys.item(),
              row_key=keys.prop("RowKey"), properties=[props.keep("Title")]),
    ],
    capture="dual-write",
)
'''


class World(ABC):
    """One application. `name` is what its scripts and rows are called after."""

    name: str
    script: str
    title: str
    """What the application calls the property that every write sets."""
    _names: Mapping[View, Mapping[str, str]]
    """Property names of each view, by the application's own."""
    _blank: Content

    def __init__(self, new_key: NewKey) -> None:
        """Take what makes new keys."""
        self._new_key = new_key

    # --- keys and rows -----------------------------------------------------------------------------------

    @abstractmethod
    def old_key(self, row: str) -> Key:
        """Return the old key of a row."""

    @abstractmethod
    def identity(self, row: str, view: View) -> Entity:
        """Return the properties that every whole row has beside its content."""

    @abstractmethod
    def row_named(self, old_key: Key) -> str:
        """Return which row has an old key."""

    def key(self, row: str, view: View, content: Content) -> Key:
        """Return the key of a row with this content in a view."""
        if view == "old":
            return self.old_key(row)
        return self._new_key(self.entity(row, "old", {**self._blank, **content}))

    def new_keys(self, row: str) -> list[Key]:
        """Return all keys that a row can have in the new view."""
        return [self.key(row, "new", {})]

    def entity(self, row: str, view: View, content: Content) -> Entity:
        """Return the whole entity of a row in a view."""
        return {**self._keyed(row, view, content), **self.identity(row, view), **self.part(view, content)}

    def partial(self, row: str, view: View, part: Content, whole: Content) -> Entity:
        """Return an entity that sets part of a row's content; `whole` is what makes its key."""
        return {**self._keyed(row, view, whole), **self.part(view, part)}

    def part(self, view: View, content: Content) -> Entity:
        """Return the properties of some content."""
        return {self._names[view].get(name, name): value for name, value in content.items()}

    def _keyed(self, row: str, view: View, content: Content) -> Entity:
        partition, name = self.key(row, view, content)
        return {"PartitionKey": partition, "RowKey": name}

    # --- contents ----------------------------------------------------------------------------------------

    @abstractmethod
    def whole(self, value: str, lot: random.Random) -> Content:
        """Return content to write, with this value in it."""

    @abstractmethod
    def some(self, value: str, lot: random.Random, view: View) -> Content:
        """Return part of a content to merge."""

    # --- reading back ------------------------------------------------------------------------------------

    def content(self, view: View, entity: Mapping[str, Any]) -> Content:
        """Return the content of an entity or a wire row of a view."""
        own = {theirs: ours for ours, theirs in self._names[view].items()}
        return {
            own.get(name, name): value
            for name, value in entity.items()
            if own.get(name, name) in (*self._blank, "extra")
        }

    def states(self, view: View, rows: Iterable[Row]) -> tuple[dict[str, State], list[str]]:
        """Return what a table holds, by row; and what is there twice."""
        found: dict[str, State] = {}
        twice = []
        for row in rows:
            name = self.row_named(self.old_key_of(view, row))
            if name in found:
                twice.append(f"row {name} is there twice")
            found[name] = self.content(view, row)
        return found, twice

    @abstractmethod
    def old_key_of(self, view: View, row: Row) -> Key:
        """Return the old key that a wire row of a view says."""

    # --- before the first client -------------------------------------------------------------------------

    def loaded(self, rows: Iterable[str]) -> dict[str, State]:
        """Return the contents that rows begin with."""
        return {row: {**self._blank, self.title: f"loaded {row}"} for row in rows}


def _number(row: str) -> int:
    return int(row[1:])


class Users(World):
    """E-mail addresses become opaque ids; one property is renamed, one dropped."""

    name, script, title = "users", USERS, "name"
    _names = {"old": {"name": "Nm", "extra": "Extra"}, "new": {"name": "Name", "extra": "Extra"}}  # noqa: RUF012
    _blank = {"name": ""}  # noqa: RUF012

    def old_key(self, row: str) -> Key:
        return f"tenant-{_number(row) % 5}", f"{row}@mail.example"

    def identity(self, row: str, view: View) -> Entity:
        return {"Ssn": f"{_number(row):09d}"} if view == "old" else {"ContactEmail": self.old_key(row)[1]}

    def row_named(self, old_key: Key) -> str:
        return old_key[1].partition("@")[0]

    def old_key_of(self, view: View, row: Row) -> Key:
        return row["PartitionKey"], row["RowKey" if view == "old" else "ContactEmail"]

    def whole(self, value: str, lot: random.Random) -> Content:
        return {"name": value, **({"extra": value} if lot.random() < 0.3 else {})}

    def some(self, value: str, lot: random.Random, view: View) -> Content:
        return {lot.choice(("name", "extra")): value}


class Posts(World):
    """Slugs move to a month, and back when the post does; an index row for each tag."""

    name, script, title = "posts", POSTS, "title"
    _names = {  # noqa: RUF012
        view: {"title": "Title", "month": "Month", "tags": "Tags", "extra": "Extra"}
        for view in ("old", "new")
    }
    _blank = {"title": "", "month": MONTHS[0], "tags": TAGS[1]}  # noqa: RUF012

    def old_key(self, row: str) -> Key:
        return f"blog-{_number(row) % 3}", f"slug-{row}"

    def identity(self, row: str, view: View) -> Entity:
        return {} if view == "old" else {"Slug": self.old_key(row)[1]}

    def row_named(self, old_key: Key) -> str:
        return old_key[1].removeprefix("slug-")

    def old_key_of(self, view: View, row: Row) -> Key:
        return row["PartitionKey"], row["RowKey" if view == "old" else "Slug"]

    def new_keys(self, row: str) -> list[Key]:
        return [self.key(row, "new", {"month": month}) for month in MONTHS]

    def whole(self, value: str, lot: random.Random) -> Content:
        content = {"title": value, "month": lot.choice(MONTHS), "tags": lot.choice(TAGS)}
        return {**content, **({"extra": value} if lot.random() < 0.3 else {})}

    def some(self, value: str, lot: random.Random, view: View) -> Content:
        what = lot.choice(
            ("title", "extra", "tags", "month") if view == "old" else ("title", "extra", "tags")
        )
        match what:
            case "tags":
                return {"tags": lot.choice(TAGS), "title": value}
            case "month":
                return {"month": lot.choice(MONTHS), "title": value}
        return {what: value}


WORLDS: dict[str, type[World]] = {"users": Users, "posts": Posts}
