"""Merge the orders of two regions into one table that already holds others.

Before: `OrdersDE` and `OrdersFR` have a partition for each customer, and the RowKey is the number of the
order. `AllOrders` holds the orders of other regions, under PartitionKeys such as `US_c-1042`.

After: the orders of both are in `AllOrders` as well, under `DE_` and `FR_` and the customer. All other rows
there are exactly as they were.

Things to notice:

* `shared=True`: others fill the table too. The migration reads and writes only rows whose PartitionKey begins
  with the text that it gives all of its own; a script whose keys have no such text is refused.
* Scripts that fill one table are refused where their keys may be the same.
* One script declares both migrations, and `group=` lets them cut over together. Each is planned, verified and
  rolled back for itself; a rollback deletes its own rows from `AllOrders`, not the table.
* The PartitionKey of the source is kept in a property, so that a rollback knows it.
* With capture "dual-write" one proxy carries both old tables and the new one, whichever region has moved.
"""

from rekey import Migration, Target, for_each_table, keys, props

__depends__ = set()

migrations = for_each_table(
    ["OrdersDE", "OrdersFR"],
    lambda table: Migration(
        source=table,
        target=Target(
            "AllOrders",
            partition_key=keys.join("_", keys.literal(table.removeprefix("Orders")), "PartitionKey"),
            row_key=keys.keep(),
            properties=[props.copy("PartitionKey", to="Customer")],
            shared=True,
        ),
        capture="delta",
        group="orders",
    ),
)
