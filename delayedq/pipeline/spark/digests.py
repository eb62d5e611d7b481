"""The digest of one ended message: Spark, each database and Python compute the same from the same values.

It is the SHA-256 of all columns of MESSAGES: a text by the SHA-256 of its UTF-8, a number as its digits, a time as its
microseconds since 1970, NULL as `-`. What is masked in the lake is masked on the other side too, else no masked row
would be the one in the table.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, TimestampType

from delayedq.core.masking import MASKED
from delayedq.pipeline.spark.connecting import SQLITE_FUNCTION
from delayedq.pipeline.spark.reading import COLUMNS, ENDED
from delayedq.pipeline.spark.schema import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column

#: What is masked of the messages of sensitive tasks. (In the texts of errors, secrets are masked already.)
SECRET = ("payload", "result")

_SHA256 = {
    "postgresql": "encode(sha256(convert_to({}, 'UTF8')), 'hex')",
    "mysql": "SHA2({}, 256)",
    "sqlite": f"{SQLITE_FUNCTION}({{}})",
}
_TEXT = {"postgresql": "({})::text", "mysql": "CAST({} AS CHAR)", "sqlite": "CAST({} AS TEXT)"}
_MICROS = {
    "postgresql": "(extract(epoch FROM {}) * 1000000)::bigint",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {})",
    # Django writes a fraction of six digits, or none. SQLite itself rounds to milliseconds.
    "sqlite": "(CAST(strftime('%s', substr({0}, 1, 19)) AS INTEGER) * 1000000"
    " + CAST(substr({0} || '.000000', 21, 6) AS INTEGER))",
}


def digest() -> Column:
    """Of a row of MESSAGES on Spark."""
    return F.sha2(F.concat_ws(",", *(_told(name) for name in MESSAGES.names)), 256)


def masks(kinds: Collection[str]) -> Column:
    """What of a row is masked: bit n for the column n of SECRET. kinds: those whose messages may be masked.

    The messages of others may hold the same text: it is compared as any other.
    """
    may_be = F.col("kind").isin(*kinds)
    bits = (F.when(may_be & (F.col(name) == MASKED), 1 << place).otherwise(0) for place, name in enumerate(SECRET))
    return sum(bits, F.lit(0))


def digest_in_sql(vendor: str, masks: str, table: str = "finished") -> str:
    """Of a row of the history table, which the statement calls `table`. masks: the SQL of what is masked in it."""
    told = (_told_in_sql(vendor, name, table, masks) for name in MESSAGES.names)
    joined = {"sqlite": " || ',' || "}.get(vendor, ", ',', ").join(told)
    return _SHA256[vendor].format(joined if vendor == "sqlite" else f"concat({joined})")


def _told(name: str) -> Column:
    kind: Any = MESSAGES[name].dataType
    if isinstance(kind, StringType):
        value = F.sha2(F.col(name), 256)
    elif isinstance(kind, TimestampType):
        value = F.unix_micros(name).cast("string")
    else:
        value = F.col(name).cast("string")
    return F.coalesce(value, F.lit("-"))


def _told_in_sql(vendor: str, name: str, table: str, masks: str) -> str:
    column = f"{table}.{COLUMNS[vendor][ENDED][name]}"
    kind: Any = MESSAGES[name].dataType
    if isinstance(kind, TimestampType):
        column = _MICROS[vendor].format(column)
    if not isinstance(kind, StringType):
        return f"coalesce({_TEXT[vendor].format(column)}, '-')"
    value = _SHA256[vendor].format(column)
    if name in SECRET:
        masked = sha256(MASKED.encode()).hexdigest()
        bit = 1 << SECRET.index(name)
        value = f"CASE WHEN {column} IS NOT NULL AND ({masks} & {bit}) <> 0 THEN '{masked}' ELSE {value} END"
    return f"coalesce({value}, '-')"
