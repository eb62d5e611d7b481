"""Find damaged files of the lake. An outage is no damage: it is proven from the bytes themselves, without Spark.

A file is damaged if the store, which answers, has none of its name, or one of another size, or bytes that contradict
the checksums that were written with them: one of each page of a Parquet file and, on a file system, those of Hadoop
beside it. Spark reads no such file either. A store that does not answer raises LakeUnusable.
"""

from __future__ import annotations

from struct import iter_unpack, unpack
from typing import TYPE_CHECKING
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from delayedq.exceptions import LakeUnusable
from delayedq.pipeline.lake.columns import ARROW
from delayedq.pipeline.lake.table import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.pipeline.lake.table import DataFile, LakeTable

#: Bytes before the first checksum.
HEADER = 8


def damaged(table: LakeTable, files: Iterable[DataFile]) -> list[DataFile]:
    """Those of these published files that are gone, or can't be what was published. Raises LakeUnusable."""
    table.snapshot()  # a lake that is out of reach has no files either
    sizes = {info.path: info.size for info in table.stored()}
    return [file for file in files if sizes.get(file.path) != file.size or not is_readable(table, file.path)]


def is_damaged(table: LakeTable, directory: str) -> bool:
    """Is there nothing in a directory of the messages, or a file that is no Parquet file? Raises LakeUnusable."""
    table.snapshot()
    paths = [info.path for info in table.stored(f"{MESSAGES}/{directory}") if info.path.endswith(".parquet")]
    return not paths or not all(is_readable(table, path) for path in paths)


def is_readable(table: LakeTable, path: str) -> bool:
    """Are the bytes of this file a whole Parquet file, as it was written? Raises LakeUnusable."""
    held = table.bytes_of(path)
    if not _fits_checksums(table, path, memoryview(held)):
        return False
    try:
        parquet = pq.ParquetFile(pa.BufferReader(held), page_checksum_verification=True)
        for group in range(parquet.num_row_groups):
            parquet.read_row_group(group)
        # No checksum covers the names and the types of the columns.
        return all(field.type == ARROW.field(field.name).type for field in parquet.schema_arrow)
    except (pa.ArrowException, OSError, ValueError, KeyError):  # there is no store between: these bytes are wrong
        return False


def _fits_checksums(table: LakeTable, path: str, content: memoryview) -> bool:
    """Do the checksums fit that Hadoop writes beside a file, in `.name.crc`? True if there are none, as in S3.

    Their form is that of Hadoop's ChecksumFileSystem: "crc", a zero byte, the number of bytes for each checksum, and
    for each so many bytes a CRC-32; the integers have four bytes, the first one the highest.
    """
    folder, _, name = path.rpartition("/")
    try:
        sums = table.bytes_of(f"{folder}/.{name}.crc").to_pybytes()
    except LakeUnusable:
        return True
    if sums[:4] != b"crc\0" or len(sums) < HEADER:
        return False
    (width,) = unpack(">I", sums[4:HEADER])
    told = [one for (one,) in iter_unpack(">I", sums[HEADER : HEADER + (len(sums) - HEADER) // 4 * 4])]
    return width > 0 and told == [crc32(content[start : start + width]) for start in range(0, len(content), width)]
