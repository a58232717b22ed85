"""Find race registrations by bib number and by age: two rows for each of them, next to each other.

Before: `Registrations` has a partition for each race, and the RowKey is the id of the registration. Who wears
a bib, or who is of an age, is found by reading the whole race.

After: `RegistrationsByKey` has a partition for each race and distance (`2011 New York City Marathon__Full`),
and in it every registration twice: as `BIB:01234__John__M__55` and as `AGE:055__1234__John__M`. Both
questions are a short stretch of one partition. The two rows are written in one transaction, by rekey as by
the application: no reader finds one without the other.

Things to notice:

* The `Index` names the table of the target: its rows are secondary rows. `BIB:` and `AGE:` are constant, so
  the RowKey alone says which of the two a row is; rekey refuses keys for which that cannot be proved.
* Both rows have the same PartitionKey. Only so can one transaction write them; where partitions differ,
  `rekey plan` says so.
* `props.keep_all()` gives the secondary row everything that the registration has, so a list by age needs no
  second read. `props.keep("Name")` would carry less, no operation at all only the pointer to the main row.
* `keys.zero_pad` makes numbers sort as text. An age of four digits is refused, and so is a name with a
  character that no key may hold: `rekey plan` counts such rows.
* A registration whose age is corrected gets another key in both places: the old rows go and the new ones come
  in one transaction.
* Advice of the plan that does not apply here is waived, with the reason.
* With a list of queries the plan says how each is answered, today and by the new keys.
"""

from rekey import Index, Migration, Target, keys, props, query

__depends__ = set()

RACE = keys.join("__", keys.prop("PartitionKey"), keys.prop("Distance"))
BY_BIB = keys.literal("BIB:") + keys.zero_pad(5, "Bib")
BY_AGE = keys.literal("AGE:") + keys.zero_pad(3, "Age")

migration = Migration(
    source="Registrations",
    target=Target(
        "RegistrationsByKey",
        partition_key=RACE,
        row_key=keys.join("__", BY_BIB, keys.prop("Name"), keys.prop("Gender"), keys.prop("Age")),
        properties=[
            props.copy("PartitionKey", to="Race"),
            props.copy("RowKey", to="RegistrationId"),
        ],
    ),
    indexes=[
        Index(
            "RegistrationsByKey",
            partition_key=RACE,
            row_key=keys.join("__", BY_AGE, keys.prop("Bib"), keys.prop("Name"), keys.prop("Gender")),
            properties=[props.keep_all()],
        ),
    ],
    queries=[
        query.point("PartitionKey", "Distance", "Bib"),
        query.range("Age", within=["PartitionKey", "Distance"], rows=100),
    ],
    capture="delta",
    waive={
        "mutable-key": "when a name is corrected, both rows move in one transaction",
        "unpadded-numbers": "ranges are asked for by age; the bib after it only tells rows apart",
    },
)
