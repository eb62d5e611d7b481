"""The schemas that messages have on Spark, and nothing else. JSON stays text; times are in UTC, to the microsecond.

Those of the lake are `pipeline.lake.columns`, in Spark's types: a reader of a lake passes LAKE, and finds NULL in the
columns that an older writer did not know.
"""

from __future__ import annotations

from pyspark.sql.types import (
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from delayedq.sql.states import FINAL_STATES, LIVE_STATES

#: What a message is, live or ended.
STATES = LIVE_STATES + FINAL_STATES


def _column(name: str, type_: DataType, *, null: bool = False) -> StructField:
    return StructField(name, type_, null)


#: A message, live or ended: `state` says which. `attempts` is how often it was started; `started_at` and `finished_at`
#: are of the last attempt, and NULL while the message lives; `worker` is who holds it, or ended it.
MESSAGES = StructType(
    [
        _column("id", LongType()),
        _column("state", StringType()),
        _column("queue", StringType()),
        _column("kind", StringType()),
        _column("key", StringType(), null=True),
        _column("priority", ShortType()),
        _column("attempts", ShortType()),
        _column("max_attempts", ShortType()),
        _column("created_at", TimestampType()),
        _column("scheduled_at_initially", TimestampType()),
        _column("scheduled_at", TimestampType()),
        _column("started_at", TimestampType(), null=True),
        _column("finished_at", TimestampType(), null=True),
        _column("worker", StringType(), null=True),
        _column("payload", StringType()),
        _column("metadata", StringType(), null=True),
        _column("result", StringType(), null=True),
        _column("errors", StringType(), null=True),
    ]
)

#: History in the lake: `source` and `batch` say which database moved it, and with which batch (NULL: it is still in the
#: database); `day` is that of `finished_at` in UTC, and what the files are partitioned by.
LAKE = StructType(
    [
        *MESSAGES.fields,
        _column("schema_version", IntegerType()),
        _column("source", StringType(), null=True),
        _column("batch", LongType(), null=True),
        _column("day", DateType()),
    ]
)

#: What is written to the queue. `key` NULL: not keyed; `scheduled_at` NULL: due at once.
OFFERS = StructType(
    [
        _column("queue", StringType()),
        _column("kind", StringType()),
        _column("key", StringType(), null=True),
        _column("priority", ShortType()),
        _column("max_attempts", ShortType()),
        _column("payload", StringType()),
        _column("metadata", StringType(), null=True),
        _column("scheduled_at", TimestampType(), null=True),
    ]
)
