"""The configuration that `rekey init` writes: every default, explained.

Rules kept here:

* It loads as it is, and everything in its comments is accepted, too.
* It holds no secret, and names the file of the wrapping key that `rekey init` makes beside it.
"""

DEFAULT_CONFIG = """\
# Configuration of rekey. No secret belongs in this file. Relative paths are relative to it.

# The account whose tables are migrated. With https the identity of whoever runs the command is used
# (az login, managed identity, ...). `key_env` names an environment variable that holds a shared key instead.
# This default is a local Azurite.
[tables]
endpoint = "http://127.0.0.1:10002/devstoreaccount1"
# endpoint = "https://ACCOUNT.table.core.windows.net"
# key_env = "TABLES_KEY"

# The restricted account: old keys, intents, the state of migrations. In production another account, which
# only the runner and the clients of the application may open, with shared keys switched off.
[restricted]
endpoint = "http://127.0.0.1:10002/devstoreaccount1"
# endpoint = "https://RESTRICTED.table.core.windows.net"
# key_env = "RESTRICTED_KEY"

# Progress of the runner. Holds old keys, sealed if the mapping is: keep it readable by its owner only. Losing
# it loses no data.
[state]
path = ".rekey/state.sqlite"

# The migration scripts.
[migrations]
path = "migrations"

# One section for each secret that a script names: `keys.opaque(..., secret="users")`. One of env, file,
# key_vault. At least 16 bytes: `openssl rand -hex 32` makes a good one.
# [secrets.users]
# env = "REKEY_SECRET_USERS"
# file = "/run/secrets/users"
# key_vault = "https://VAULT.vault.azure.net/secrets/users"

# The wrapping key of sealed mappings (mapping="sealed", the default of scripts with opaque keys): old keys
# stand encrypted in the restricted account, and who has not this key reads none of them. At least 32 bytes;
# one of env, file, key_vault (there: an RSA key). `rekey init` made this file. Without it the old keys of a
# migration cannot be found again: keep a copy where it cannot be lost, apart from both accounts.
[sealing]
file = "sealing.key"
# env = "REKEY_WRAPPING_KEY"
# key_vault = "https://VAULT.vault.azure.net/keys/NAME"

# After a change of the key: the one before. `rekey apply` wraps anew what it wrapped.
# [sealing.previous]
# file = "old.key"

[limits]
concurrency = 32             # writes in flight
scans = 8                    # parts of the source that are read at the same time
window_rows = 8192           # rows read ahead of what is written
window_bytes = "16MiB"       # and their bytes, whichever is reached first
# entities_per_second = 5000 # read and written at most; 20000 on https when absent, else unlimited
# partition_entities_per_second = 500 # the same of one partition; 2000 on https when absent

[gates]
verification_max_age = "24h" # cutover needs a full verification that is not older
retention = "30d"            # retire deletes the source this long after complete, not earlier
mapping_retention = "400d"   # what became of old keys can be looked up this long after complete
margin = "60s"               # for how long what was sent and not answered may take effect
clients_timeout = "120s"     # capture "dual-write": a move waits this long for the application's clients
freeze_timeout = "60s"       # capture "dual-write": a freeze that is not drained by then is given up

[lookup]
per_minute = 20              # look-ups, counted over all processes that share the state file
bulk_keys = 1000             # keys that one file may ask for; a file counts as one look-up

# Who copies and compares besides the runner; `--executor` on the command line counts more. Processes of this
# machine, or a dask cluster (rekey.executors:dask_cluster, with the extra `dask`).
# [executor]
# factory = "rekey.executors:processes"
# tasks = 4                  # at a time; as many as the executor says when absent
# slice = "15s"              # after this long a task ends at its next window, and a next one goes on
# What a plan reckons with, if money is wanted. rekey knows no price: they differ by region, redundancy and
# contract. The Azure pricing page "Azure Table Storage pricing" has them, and so has your bill. The figures
# here are examples, not prices.
# [prices]
# currency = "USD"
# scan = 0.00036             # of 10,000 pages of queries
# read = 0.00036             # of 10,000 rows read by both keys
# write = 0.00036            # of 10,000 rows or batches written
# delete = 0.00036           # of 10,000 deletes
# storage = 0.045            # of a GB for a month

# The key that signs evidence for auditors; one of key_file, key_vault. `rekey evidence keygen` makes a file.
# [evidence]
# key_file = "evidence.pem"
# key_vault = "https://VAULT.vault.azure.net/keys/NAME"
"""
