"""Move the invoices of one tenant out of a table that all tenants share.

Before: `Invoices` has one partition for each tenant, and the RowKey is the number of the invoice. The largest
tenant, Contoso, makes its partition too busy.

After: `InvoicesOfContoso` has Contoso's invoices alone, a partition for each month, under the same numbers.
Invoices of all other tenants are in `Invoices`, exactly as they were.

Things to notice:

* `where=`: the part of the table that is migrated, by its keys. Copying, comparing, rolling back and retiring
  read and write the rows of that part alone: a tenant's migration costs what a tenant's rows cost.
* A part is named by keys, not by properties: an update must not move a row in or out of it.
* Clients of the old view write all tenants: rows beside the part go to `Invoices` as before, in every phase.
  In the new view there are only Contoso's rows; a row of another tenant is refused there (`outside-part`).
* `rekey retire` deletes Contoso's rows from `Invoices`, each by its ETag, and leaves the table.
* The next tenant is another script with another `where=`, another target and `__depends__` on this one. Two
  scripts that may migrate the same row are refused.
"""

from rekey import Migration, Target, keys, props, rows

__depends__ = set()

migration = Migration(
    source="Invoices",
    where=rows.partition_key(equals="contoso"),
    target=Target(
        "InvoicesOfContoso",
        partition_key=keys.date("yyyy-MM", "IssuedAt"),
        row_key=keys.keep(),
        properties=[props.copy("PartitionKey", to="Tenant")],
    ),
    capture="dual-write",
)
