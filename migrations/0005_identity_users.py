"""Replace the user names in the PartitionKeys of an ASP.NET Identity table by opaque ids.

Before: `AspNetUsers` holds rows of several kinds. A user's own row, claims, logins and roles share a
partition named after the user, and the beginning of the RowKey says what a row is: `U_`, `C_`, `L_`, `R_`. A
row in a partition `E_…` leads from an e-mail address to the user. Names and addresses are in every key.

After: `AspNetUsersV2` has the same rows, still one partition for each user, under an id like `3m9k…`. The
kinds keep the beginnings of their RowKeys, so the application finds claims and logins as before. The row that
leads from an address to the user stands under an opaque address and names the user's new partition.

Things to notice:

* `kinds=[…]`: a row is of the first kind whose `when` it meets. A row that no kind takes stops the plan, with
  its row id: no row is left behind unseen.
* Which kind a row of the new table is must be provable from the row alone, for rollback and for writes in
  the new table. Here the keys begin with constant text: `E_` in PartitionKeys; `U_`, `C_`, `L_` and `R_` in
  RowKeys, for `keys.keep()` too, because `when` names that text. `rekey plan` refuses a script in which rows
  of two kinds could be taken for each other.
* `keys.opaque(…, domain="user", secret="users")` is the same id wherever the same text goes in: in the
  PartitionKey of all rows of a user, and in the RowKey of the row that leads to it.
* Rows of one user are in one partition before and after: what the application writes in one transaction stays
  one.
"""

from rekey import Migration, RowKind, Target, keys, props, rows

__depends__ = set()

TABLE = "AspNetUsersV2"
USER = keys.opaque("PartitionKey", domain="user", secret="users")
EMAIL = keys.opaque("PartitionKey", domain="email", secret="users")
OLD_USER = props.copy("PartitionKey", to="UserName")


def kept(name: str, prefix: str) -> RowKind:
    """Rows that only move to the user's new partition."""
    return RowKind(
        name,
        when=rows.row_key(prefix=prefix),
        target=Target(TABLE, partition_key=USER, row_key=keys.keep(), properties=[OLD_USER]),
    )


migration = Migration(
    source="AspNetUsers",
    kinds=[
        RowKind(
            "email",
            when=rows.partition_key(prefix="E_"),
            target=Target(
                TABLE,
                partition_key=keys.literal("E_") + EMAIL,
                row_key=keys.literal("U_") + keys.opaque("RowKey", domain="user", secret="users"),
                properties=[props.copy("PartitionKey", to="Email"), props.copy("RowKey", to="UserName")],
            ),
        ),
        RowKind(
            "user",
            when=rows.row_key(prefix="U_"),
            target=Target(
                TABLE,
                partition_key=USER,
                row_key=keys.literal("U_") + keys.opaque("RowKey", domain="user", secret="users"),
                properties=[OLD_USER, props.copy("RowKey", to="OldRowKey")],
            ),
        ),
        kept("claim", "C_"),
        RowKind(
            "login",
            when=rows.row_key(prefix="L_"),
            target=Target(
                TABLE,
                partition_key=USER,
                row_key=keys.literal("L_") + keys.opaque("RowKey", domain="login", secret="users"),
                properties=[OLD_USER, props.copy("RowKey", to="OldRowKey")],
            ),
        ),
        kept("role", "R_"),
    ],
    capture="dual-write",
)
