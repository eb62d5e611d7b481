"""Rows of the lake as Arrow, read by this process: for what is small, and where there is no Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector, FileType

from delayedq.pipeline.lake import parquet_files
from delayedq.pipeline.lake.columns import ARROW, PARTITIONED_BY
from delayedq.pipeline.lake.parquet_files import Filter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import datetime

    from delayedq.pipeline.lake.table import DataFile, LakeTable, Snapshot


class WantedRows(NamedTuple):
    """Which rows: those that ended in the window (`until` excluded), and whose columns have one of these values."""

    since: datetime | None = None
    until: datetime | None = None
    values: dict[str, Collection[Any]] = {}  # noqa: RUF012 - it is never changed

    def files(self, snapshot: Snapshot) -> list[DataFile]:
        """Those that may hold such rows."""
        return snapshot.chosen(self.since, self.until, **self.values)

    @property
    def columns(self) -> set[str]:
        """What the condition is about."""
        return {*self.values} | ({"finished_at"} if self.since or self.until else set())

    def condition(self) -> pc.Expression | None:
        """For rows; None: all are wanted."""
        parts = [pc.field(name).isin(list(values)) for name, values in self.values.items()]
        parts += [pc.field("finished_at") >= pa.scalar(self.since, _TIME)] if self.since else []
        parts += [pc.field("finished_at") < pa.scalar(self.until, _TIME)] if self.until else []
        whole = None
        for part in parts:
            whole = part if whole is None else whole & part
        return whole


_TIME = pa.timestamp("us", tz="UTC")


def read(
    table: LakeTable, files: Sequence[DataFile], wanted: WantedRows, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The wanted rows of these files, a table for each file that has some, with the columns of the lake (ARROW).

    Raises LakeUnusable if a file can't be read; it names the file.
    """
    names = list(columns or ARROW.names)
    schema = pa.schema([ARROW.field(name) for name in names])
    needed = {*names, *wanted.columns} - {PARTITIONED_BY} or {"id"}
    in_files = pa.schema([field for field in ARROW if field.name in needed])
    condition, store = wanted.condition(), table.files()
    only = None if condition is None else Filter(condition, wanted.columns)
    for file in files:
        rows = parquet_files.read(table.path, store, file.path, in_files, only)
        if rows.num_rows:
            yield _with_day(rows, file, schema)


def _with_day(rows: pa.Table, file: DataFile, schema: pa.Schema) -> pa.Table:
    """With the column that is the name of a directory, in the order of the schema."""
    days = pa.repeat(pa.scalar(file.day, pa.date32()), rows.num_rows)
    return rows.append_column(PARTITIONED_BY, days).select(schema.names)


# Files on their way between Spark and an object store that only this process reaches.
#
# Spark writes into a directory that it shares with this process, which then copies the files into the lake; what Spark
# reads is copied out of the lake first. So Spark needs no driver of the object store.


#: Bytes that are copied at once.
_PIECE = 2**20


class Staging:
    """The files of a lake, at the same paths below `directory`, which is empty at first."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def take(self, table: LakeTable, *paths: str) -> None:
        """Copy files, or all files of directories, out of the lake, unless they are here already."""
        store = table.files()
        for path in self._files(table, paths):
            here = self._directory / path
            if here.exists():
                continue
            here.parent.mkdir(parents=True, exist_ok=True)
            unfinished = here.with_name(f".{here.name}")
            with store.open_input_stream(path) as source, unfinished.open("wb") as target:
                shutil.copyfileobj(source, target, _PIECE)
            unfinished.rename(here)

    def bring(self, table: LakeTable, path: str) -> None:
        """Move the files of this directory into the lake: whoever reads them gets them from there."""
        for here in sorted((self._directory / path).rglob("[!.]*.parquet")):
            with here.open("rb") as source:
                table.put(str(here.relative_to(self._directory)), source)
        shutil.rmtree(self._directory / path)

    def _files(self, table: LakeTable, paths: tuple[str, ...]) -> Iterator[str]:
        for path in paths:
            if path.endswith(".parquet"):
                yield path
            else:
                found = table.files().get_file_info(FileSelector(path, recursive=True))
                yield from (info.path for info in found if info.type == FileType.File)
