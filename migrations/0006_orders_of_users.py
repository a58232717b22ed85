"""Let orders name users by their new ids.

Before: `Orders` has one partition for each tenant, and the property `UserEmail` says whose an order is: the
RowKey of a row of `Users`. 0001_users_opaque_ids gives users other keys, and then no order leads to its user.

After: `OrdersV2` has the same rows under the same keys, and `UserId` is the new RowKey of the user's row. An
order without a user has none. `UserEmail` stays until the application reads `UserId` everywhere; a later
migration drops it. (`keep_old=False` leaves it out at once.)

Things to notice:

* `props.reference(…, via="0001_users_opaque_ids")`: the id is made by that script's own key expression and
  secret. No row of `Users` is read, so an order may come before its user, and the two tables may be migrated
  in any order.
* Where the new key is made of the old PartitionKey as well, `partition=` says which property holds that.
* The id is part of this script's digest: editing the key expression there changes this migration, too, and is
  refused once one of them has begun.
* Scripts with the same `group=` cut over in one moment: write it into both, if no reader may see new orders
  beside old users.
"""

from rekey import Migration, Target, keys, props

__depends__ = set()

migration = Migration(
    source="Orders",
    target=Target(
        "OrdersV2",
        partition_key=keys.keep(),
        row_key=keys.keep(),
        properties=[props.reference("UserEmail", to="UserId", via="0001_users_opaque_ids")],
    ),
    capture="delta",
)
