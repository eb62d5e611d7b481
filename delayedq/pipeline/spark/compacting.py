"""Compaction: the small files of a day become one, with the same rows.

It is Spark that reads and writes, and not `optimize` of delta-rs 1.6: two of these at once both commit, and each row is
there twice (`tests/pipeline/lake/test_engines.py` shows it). Here a commit is made only on the newest version, and only
while all files that it replaces are in it.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from datetime import UTC
from typing import TYPE_CHECKING, NamedTuple

from delayedq.exceptions import LakeUnusable
from delayedq.pipeline.lake.table import MESSAGES
from delayedq.pipeline.spark.measuring import checksums_of, measured

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from delayedq.pipeline.lake.table import DataFile, Snapshot
    from delayedq.pipeline.spark.lake import Lake
    from delayedq.pipeline.spark.measuring import Measured

#: Bytes: a larger file is left as it is.
SMALL = 64 * 2**20
#: Bytes that one commit replaces, about.
ROUND = 4 * 2**30


class Compacted(NamedTuple):
    """How many files became how many, with how many rows. `before` is 0 if another compaction was faster."""

    before: int
    after: int
    rows: int


def compact(lake: Lake, small: int = SMALL) -> Iterator[Compacted]:
    """Replace the small files of each day that has several; one result for each commit. Raises LakeUnusable."""
    days = crowded(lake.table.snapshot(), small)
    while days:
        taken: list[DataFile] = []
        while days and sum(file.size for file in taken) < ROUND:
            taken += days.pop(min(days))
        yield _replaced(lake, taken)


def crowded(snapshot: Snapshot, small: int = SMALL) -> dict[date, list[DataFile]]:
    """The small files of each day that has more than one."""
    days = defaultdict(list)
    for file in snapshot.files:
        if file.size < small:
            days[file.day].append(file)
    return {day: files for day, files in days.items() if len(files) > 1}


def _replaced(lake: Lake, files: list[DataFile]) -> Compacted:
    directory = f"compact-{secrets.token_hex(8)}"
    rows = lake.of(files)
    lake.write(directory, rows.repartition("day"), spread=False)
    written = measured(lake.files(f"{MESSAGES}/{directory}"))
    before = checksums_of(rows)
    if written.checksums != before:
        raise LakeUnusable(
            f"The compaction of {len(files)} files wrote {written.checksums.row_count:,} rows that differ from the "
            f"{before.row_count:,} that it read: nothing was replaced. `run_pipeline check` tells which are wrong."
        )
    _check_days(written)
    return _committed(lake, files, written)


def _check_days(written: Measured) -> None:
    """Raises LakeUnusable if rows were in the directory of another day than that on which they ended."""
    for file in written.files:
        ends = [bound["finished_at"].astimezone(UTC).date() for bound in (file.least, file.most)]
        if ends != [file.day, file.day]:
            raise LakeUnusable(
                f"Files of {file.day} hold messages that ended on {min(ends)} to {max(ends)} (UTC): nothing was "
                "replaced. Restore these files from a backup; `run_pipeline check` tells which they are."
            )


def _committed(lake: Lake, files: list[DataFile], written: Measured) -> Compacted:
    paths = {file.path for file in files}
    while True:
        snapshot = lake.table.snapshot()
        if not paths <= {file.path for file in snapshot.files}:
            return Compacted(0, 0, 0)
        if lake.table.replace(snapshot, files, written.files, compacted=len(files)):
            return Compacted(len(files), len(written.files), written.checksums.row_count)
