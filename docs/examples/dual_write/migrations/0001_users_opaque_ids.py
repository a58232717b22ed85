"""Replace the e-mail addresses in the RowKeys of Users by opaque ids, while the application writes."""

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
    capture="dual-write",
)
