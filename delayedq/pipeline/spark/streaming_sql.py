"""The statements of the streaming reader: where the stream is, and which rows lie between two such places."""

from __future__ import annotations

from delayedq.pipeline.spark.reading_sql import ENDED, SELECTED

# PostgreSQL: by transaction ------------------------------------------------------------------------------------------

# All transactions below `settled` have ended, and `next` is not drawn yet.
TRANSACTIONS = """
SELECT pg_snapshot_xmin(snapshot)::text::bigint, pg_snapshot_xmax(snapshot)::text::bigint, statement_timestamp()
FROM pg_current_snapshot() AS snapshot
"""

# A row knows the lower 32 bits of the number of the transaction that wrote it. They are compared on a circle, as in
# PostgreSQL itself: of two numbers, the later one is ahead by less than half of it.
_AHEAD = "(xmin::text::bigint - current_setting('delayedq.{}')::bigint) & 4294967295"
BETWEEN = f"""({_AHEAD.format("settled")}) >= 2147483648
    AND (current_setting('delayedq.begun') = '0' OR ({_AHEAD.format("begun")}) < 2147483648)
    AND finished_at >= current_setting('delayedq.recorded')::timestamptz"""
ANY_BETWEEN = f"SELECT 1 FROM {ENDED} WHERE {SELECTED['postgresql'][ENDED]} AND {BETWEEN} LIMIT 1"

# SQLite and MySQL: by time -------------------------------------------------------------------------------------------

# When the oldest transaction that has written something, and is still open, began; now, if there is none.
OLDEST = """
SELECT least(UTC_TIMESTAMP(6), coalesce(min(CONVERT_TZ(trx_started, 'SYSTEM', '+00:00')), UTC_TIMESTAMP(6)))
FROM information_schema.innodb_trx WHERE trx_rows_modified > 0
"""
ANY_ENDED = {vendor: f"SELECT 1 FROM {ENDED} WHERE {SELECTED[vendor][ENDED]} LIMIT 1" for vendor in ("mysql", "sqlite")}
