"""Spread blog posts over months, newest first, and index them by category, tag and author.

Before: `Posts` holds every post of a blog in one partition, the RowKey is the post's slug. A page "latest
posts" has to read them all, and all writes go to one partition.

After: `PostsByMonth` has a partition for each month (`2024-03`). Its RowKeys begin with inverted ticks, which
count down as time goes by: reading a partition from the start gives the newest post first. The slug follows,
so that two posts of one moment do not collide. Three index tables answer the other questions; each of their
rows points to the main row with `MainPartitionKey` and `MainRowKey`, which every index row gets by itself.

Things to notice:

* Both keys are made of the property `Published`, a DateTime. A post without it is refused, since it has no
  month: `rekey plan` counts such posts. Changing `Published` moves the row; rekey follows.
* An expression is a value: `NEWEST_FIRST` is written once and used in four tables.
* `props.copy` of both old keys makes rollback possible.
* `each=keys.split("Tags", ",", default="")` gives one index row for each tag: blanks and repeats are left
  out, and `default=""` says that a post without Tags has no tag rows. Without it, such a post would be
  refused.
* Category and author are put through `keys.slug`: they may hold characters that a key may not, such as `/`.
* An index row carries the pointer only; `props.keep` adds what a list of posts shows.
"""

from rekey import Index, Migration, Target, keys, props

__depends__ = set()

NEWEST_FIRST = keys.join("_", keys.inverted_ticks("Published"), keys.prop("RowKey"))
SHOWN_IN_LISTS = [props.keep("Title", "Published")]

migration = Migration(
    source="Posts",
    target=Target(
        "PostsByMonth",
        partition_key=keys.date("yyyy-MM", "Published"),
        row_key=NEWEST_FIRST,
        properties=[props.copy("PartitionKey", to="Blog"), props.copy("RowKey", to="Slug")],
    ),
    indexes=[
        Index(
            "PostsByCategory",
            partition_key=keys.slug(keys.prop("Category", default="uncategorised")),
            row_key=NEWEST_FIRST,
            properties=SHOWN_IN_LISTS,
        ),
        Index(
            "PostsByTag",
            each=keys.split("Tags", ",", default=""),
            partition_key=keys.slug(keys.item()),
            row_key=NEWEST_FIRST,
            properties=SHOWN_IN_LISTS,
        ),
        Index(
            "PostsByAuthor",
            partition_key=keys.slug("Author"),
            row_key=NEWEST_FIRST,
            properties=SHOWN_IN_LISTS,
        ),
    ],
    capture="delta",
)
