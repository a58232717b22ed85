"""Replace the e-mail addresses in the RowKeys of Users by opaque ids.

Before: `Users` has one row for each user, and the RowKey is the user's e-mail address. Every log line, URL
and cache key of the application shows it, and a user cannot change it without becoming another row.

After: `UsersV2` has the same rows under ids like `3m9k…` (32 characters). An id is keyed with the secret
named `users`, so nobody can find out whose it is by trying addresses; whoever holds the secret can compute it
again. The address itself moves into the property `ContactEmail`, where a change of address is an ordinary
update.

Things to notice:

* `keys.opaque("RowKey", …)`: where an operand is asked for, a string is the name of a property. The id is
  made of exactly the stored text: put `keys.normalize("email", "RowKey")` there if `A@x.org` and `a@x.org`
  are to be one user. `rekey plan --exact` then lists the pairs that would collide.
* `props.copy("RowKey", to="ContactEmail")` is what makes this migration reversible: the old key of a new row
  is its ContactEmail. For that reason ContactEmail must stay as it is until the migration is complete; rekey
  refuses to write a row back whose copy was changed.
* `secret="users"` is a name. Where the secret comes from is said in rekey.toml, under `[secrets.users]`.
* `capture="delta"` needs no change to the application, only a short stop of its writers at cutover.
"""

from rekey import Migration, Target, keys, props

__depends__ = set()

migration = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque("RowKey", domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail")],
    ),
    capture="delta",
)
