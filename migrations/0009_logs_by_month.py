"""Split a table of logs by month, so that an expired month is dropped as a whole table.

Before: `Logs` has a partition for each day, `2024-01-31`, in which all services write; old rows are deleted
one by one.

After: `Logs202401`, `Logs202402` and `Logs202403`, with a partition for each service and day. Days of other
months stay in `Logs`, exactly as they were.

Things to notice:

* `for_each_part`: one script, a migration for each month, each with a `where=` of its own. Parts that may
  have a row in common are refused.
* A part is named by keys. Copying a month reads the rows of that month alone, so all of them together read
  the table once.
* `group=` lets all months cut over together; each is planned, verified and rolled back for itself.
* `rekey retire` deletes the rows of a month from `Logs`, each by its ETag, and leaves the table.
* The next month is one more name in the list.
"""

from rekey import Migration, Target, for_each_part, keys, props, rows

__depends__ = set()

migrations = for_each_part(
    ["202401", "202402", "202403"],
    lambda month: Migration(
        source="Logs",
        where=rows.partition_key(prefix=f"{month[:4]}-{month[4:]}-"),
        target=Target(
            f"Logs{month}",
            partition_key=keys.join("_", "Service", "PartitionKey"),
            row_key=keys.keep(),
            properties=[props.copy("PartitionKey", to="Day")],
        ),
        capture="delta",
        group="logs",
    ),
)
