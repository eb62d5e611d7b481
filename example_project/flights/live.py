"""A Delta table of what has ended, which a stream keeps minutes behind the queue.

Each end of a message of a PostgreSQL database is in it once: one that is changed later, as its result expires or it is
discarded, comes again, and takes the place of its former row. A message that is retried after its end ends again, and
has a row of each end. Of other databases ends that were recorded late may be missing: see "Streaming" in the pipeline's
reference.

Spark writes down in its checkpoint what a batch holds before it runs the batch, and runs it again after a kill. The
table takes each number of a batch once, in the commit that adds its rows. So both belong together: the checkpoint is a
directory of the table, which readers of Delta pass over.

Each batch adds a file. Now and then the stream, the only process that writes, joins them, and deletes those that no
version of the last week has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from delayedq.pipeline.spark import register

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from delayedq.pipeline.spark.connecting import Address

CHECKPOINT = "_checkpoint"
#: What the table calls the stream.
STREAM = "live"
#: After so many batches small files are joined.
JOINED_AFTER = 100
#: Hours for which readers may go on with a version of the table.
KEPT = 168
#: Without arguments and results, which may be long or private.
COLUMNS = (
    "id,state,queue,kind,key,attempts,created_at,scheduled_at_initially,scheduled_at,started_at,finished_at,errors"
)


def stream(spark: SparkSession, address: Address, path: Path, every: timedelta | None = None) -> StreamingQuery:
    """Start to add what ends to the table. every: the pause between two batches; None: end when all is added.

    Raises ValueError if the table is there without its checkpoint, by which a stream knows what it has.
    """
    if DeltaTable.is_deltatable(str(path)) and not (path / CHECKPOINT).exists():
        raise ValueError(f"The table at {path} has lost its {CHECKPOINT}: begin with a new one.")
    register(spark)
    ended = spark.readStream.format("delayedq").options(address=address.reference, columns=COLUMNS).load()
    sink = ended.writeStream.option("checkpointLocation", str(path / CHECKPOINT))
    sink = sink.foreachBatch(lambda frame, number: _add(frame, number, path))
    return sink.trigger(**trigger(every)).start()


def trigger(every: timedelta | None) -> dict[str, Any]:
    """When Spark begins a batch: this often (in whole seconds), or as long as there is something to add."""
    return {"availableNow": True} if every is None else {"processingTime": f"{int(every.total_seconds())} seconds"}


def _add(frame: DataFrame, number: int, path: Path) -> None:
    add(frame.toArrow(), number, path)


def add(rows: pa.Table, number: int, path: Path) -> bool:
    """Commit the rows of this batch, each in the place of an older one of the same end, if there is one. False, and
    nothing is changed, if they were before.

    Raises deltalake's CommitFailedError if another stream has committed at the same moment.
    """
    table = DeltaTable(str(path)) if DeltaTable.is_deltatable(str(path)) else None
    last = None if table is None else table.transaction_version(STREAM)
    if last is not None and last >= number:
        return False
    once = CommitProperties(app_transactions=[Transaction(STREAM, number)], max_commit_retries=0)
    if table is None or not _has_any(table, rows):
        write_deltalake(table or str(path), rows, mode="append", commit_properties=once)
    else:
        same = "old.id = new.id AND old.finished_at = new.finished_at"
        merging = table.merge(rows, same, "new", "old", commit_properties=once)
        merging.when_matched_update_all().when_not_matched_insert_all().execute()
    if number % JOINED_AFTER == JOINED_AFTER - 1:
        _join(DeltaTable(str(path)))
    return True


def _join(table: DeltaTable) -> None:
    """The rows stay as they are. To optimize a table is for one process at a time."""
    table.optimize.compact()
    table.vacuum(retention_hours=KEPT, dry_run=False)


def _has_any(table: DeltaTable, rows: pa.Table) -> bool:
    """Whether there are rows of these ends. Files that end before them are not read."""
    if not rows.num_rows:
        return False
    ended, ids = rows.column("finished_at"), rows.column("id")
    same = pc.field("id").isin(ids.combine_chunks()) & (pc.field("finished_at") >= pc.min(ended))
    return bool(table.to_pyarrow_dataset().count_rows(filter=same))
