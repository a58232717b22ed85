"""What is in a table: shapes of keys, partitions, order, types. Everything `rekey inspect` tells."""
