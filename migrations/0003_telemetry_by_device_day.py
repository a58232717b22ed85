"""Partition device telemetry by device and day, ordered by time within the day.

Before: `Telemetry` holds all readings of a device in one partition that grows for ever, under RowKeys that
say nothing about time. Old days cannot be read, counted or deleted without reading everything.

After: `TelemetryByDay` has one partition for each device and day (`device-17_2024-03-05`). The RowKey is the
moment of the reading in .NET ticks, then its sequence number: readings come in the order they were taken, and
two of the same 100 ns stay apart.

Things to notice:

* A DateTime has seven digits of fraction; `keys.ticks` keeps them all.
* `keys.zero_pad(10, "Sequence")` makes numbers sort as text: `0000000009` comes before `0000000010`. It takes
  Int32 and Int64 alike; a negative number or one with more digits is refused.
* The day is the UTC day: DateTime properties are in UTC.
* Both old keys are copied, so old rows can be found again and the migration can be rolled back after cutover.
"""

from rekey import Migration, Target, keys, props

__depends__ = set()

migration = Migration(
    source="Telemetry",
    target=Target(
        "TelemetryByDay",
        partition_key=keys.join("_", keys.prop("DeviceId"), keys.date("yyyy-MM-dd", "RecordedAt")),
        row_key=keys.join("-", keys.ticks("RecordedAt"), keys.zero_pad(10, "Sequence")),
        properties=[
            props.copy("PartitionKey", to="OldPartitionKey"),
            props.copy("RowKey", to="OldRowKey"),
        ],
    ),
    capture="delta",
)
