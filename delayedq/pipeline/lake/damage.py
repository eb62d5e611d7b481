"""Which files of the lake are damaged. An outage is no damage: it is proven from the bytes themselves, without Spark.

A file is damaged if the store, which answers, has none of its name, or if it has other bytes than were published, or
bytes that are no Parquet file. A store that does not answer raises LakeUnusable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from delayedq.pipeline.lake.snapshot import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.pipeline.lake.snapshot import DataFile
    from delayedq.pipeline.lake.table import LakeTable


def damaged(table: LakeTable, files: Iterable[DataFile]) -> list[DataFile]:
    """Those of these published files that are gone, or can't be what was published. Raises LakeUnusable."""
    table.snapshot()  # a lake that is out of reach has no files either
    sizes = {info.path: info.size for info in table.stored(MESSAGES)}
    return [file for file in files if sizes.get(file.path) != file.size or not is_readable(table, file.path)]


def is_damaged(table: LakeTable, directory: str) -> bool:
    """Is there nothing in a directory of the messages, or a file that is no Parquet file? Raises LakeUnusable."""
    table.snapshot()
    paths = [info.path for info in table.stored(f"{MESSAGES}/{directory}") if info.path.endswith(".parquet")]
    return not paths or not all(is_readable(table, path) for path in paths)


def is_readable(table: LakeTable, path: str) -> bool:
    """Are the bytes of this file a whole Parquet file? Raises LakeUnusable if the store does not give them."""
    held = pa.BufferReader(table.bytes_of(path))
    try:
        parquet = pq.ParquetFile(held)
        for group in range(parquet.num_row_groups):
            parquet.read_row_group(group)
    except (pa.ArrowException, OSError, ValueError):  # there is no store between: these bytes are wrong
        return False
    return True
