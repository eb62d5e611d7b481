"""The step `upgrade-lake`: a lake of Parquet files and manifests becomes a table, each published batch with a number.

    about/ manifests/batch=NAME-ATTEMPT/*.json messages/batch=NAME-ATTEMPT/day=DAY/*.parquet

is what an older delayedq has written. Spark writes the rows anew, with the columns that they lack, and each batch
counts from its commit: run it again after it was killed. Then `about/` and `manifests/` are deleted; the old files of
messages stay until `vacuum`, which deletes them as any that no version has.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.exceptions import LakeUnusable
from delayedq.pipeline import books
from delayedq.pipeline.lake.snapshot import MESSAGES
from delayedq.pipeline.spark.measuring import checksums_of, measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from delayedq.pipeline.lake.table import LakeTable
    from delayedq.pipeline.opening import Options, Pipeline


class Former(NamedTuple):
    """A batch that the old lake has published: of several attempts at it the last one counts."""

    batch: str
    attempt: int


def run_upgrade(pipeline: Pipeline, _: Options) -> None:
    """Convert the lake. Raises LakeUnusable."""
    lake = pipeline.lake
    if not lake.table.is_former():
        there = "is a table already" if lake.table.exists() else "holds no lake of an older delayedq"
        pipeline.tell(f"{lake.path} {there}: there is nothing to convert.")
        return
    lake.table.create()
    done = {about["former"] for about in lake.table.snapshot().abouts() if "former" in about}
    for former in _published(lake.table):
        if former.batch not in done:
            pipeline.tell(f"Batch {former.batch}: {_converted(pipeline, former):,} messages are in the table.")
    lake.table.delete([info.path for part in ("manifests", "about") for info in lake.table.stored(part)])
    pipeline.tell("All batches are converted. What the table does not use is deleted by `vacuum`, in its time.")


def _converted(pipeline: Pipeline, former: Former) -> int:
    lake, source = pipeline.lake, books.source_of(pipeline.store.alias)
    snapshot = lake.table.snapshot()
    number = books.next_number(snapshot, source)
    rows = lake.former(f"batch={former.batch}-{former.attempt}", source, number)
    directory = books.new_name(pipeline.store.now())
    lake.write(directory, rows)
    written = measured(lake.files(f"{MESSAGES}/{directory}"))
    _compare(former, rows, written.checksums.digest)
    about: dict[str, Any] = {"former": former.batch, "rows": written.checksums.row_count}
    if not lake.table.publish(snapshot, source, number, written.files, **about):
        raise LakeUnusable("Another process writes to this lake: run it again when that has ended.")
    return written.checksums.row_count


def _compare(former: Former, rows: DataFrame, digest: str) -> None:
    if checksums_of(rows).digest != digest:
        raise LakeUnusable(f"Batch {former.batch} was read back with other values: nothing of it was published.")


def _published(table: LakeTable) -> list[Former]:
    latest: dict[str, int] = {}
    store = table.files()
    for info in table.stored("manifests"):
        if info.path.endswith(".json"):
            with store.open_input_stream(info.path) as file:
                for line in file.read().decode().splitlines():
                    manifest = json.loads(line)
                    latest[manifest["batch"]] = max(manifest["attempt"], latest.get(manifest["batch"], 0))
    return [Former(*entry) for entry in sorted(latest.items())]
