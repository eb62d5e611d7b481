"""What a lake keeps beside its messages: the flows that have ended, and the recorded steps of its messages.

    _flows/        a table of Delta Lake
    _steps/        another one

Their directories begin with an underscore: no vacuum of the table above them looks there. A row is there once, however
often it is added: who adds rows reads those of their ids, and commits what is missing to the version that was read, or
not at all.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties
from deltalake.transaction import AddAction
from pyarrow import parquet

from delayedq.exceptions import LakeUnusable
from delayedq.pipeline.lake.columns import VERSION, arrow_schema, delta_schema
from delayedq.pipeline.lake.snapshot import Snapshot
from delayedq.pipeline.lake.table import LakeTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltalake import Schema

    #: A row, by the names of its columns.
    type Row = Mapping[str, Any]

#: Columns that each of these tables has, as the table of the messages has them: see `columns.COLUMNS`.
_OWN = {"schema_version": "integer", "source": "string", "batch": "long"}
#: So often rows are added, or found added: another one may commit each time.
_ATTEMPTS = 20


class SideTable(LakeTable):
    """A table in a directory of the lake. Columns are only ever added, as those of messages are."""

    directory: ClassVar[str]
    #: The column whose bounds the log knows of each file.
    id_column: ClassVar[str]
    columns: ClassVar[dict[str, str]]
    partitions: ClassVar[list[str]] = []

    def __init__(self, lake: str, options: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{LakeTable(lake).path}/{self.directory}", options)

    @classmethod
    def _schema(cls) -> Schema:
        return delta_schema(cls.columns | _OWN)

    @classmethod
    def arrow(cls) -> pa.Schema:
        """Its columns, as pyarrow has them."""
        return arrow_schema(cls.columns | _OWN)

    def snapshot(self) -> Snapshot:
        """The newest version, without its files. Raises LakeUnusable if there is no table."""
        table = self._newest()
        if table is None:
            raise LakeUnusable(f"There is no table at {self.path}.")
        return Snapshot(table, table.version(), ())

    def count(self) -> int:
        """How many rows there are, of all databases; 0 without a table. Raises LakeUnusable."""
        return sum(file["num_records"] for file in self._files(self.snapshot())) if self.exists() else 0

    def faults(self) -> Iterator[str]:
        """What is wrong with its files, by name; nothing without a table. Raises LakeUnusable."""
        if not self.exists():
            return
        sizes = {info.path: info.size for info in self.stored()}
        for file in self._files(self.snapshot()):
            if fault := self._fault(file, sizes.get(file["path"])):
                yield f"{self.directory}/{file['path']} {fault}"

    def _fault(self, file: dict[str, Any], size: int | None) -> str:
        """Of a file that has this size, or is not there (None)."""
        if size is None:
            return f"is missing, with {file['num_records']:,} rows"
        if size != file["size_bytes"]:
            return f"has {size:,} bytes, and was published with {file['size_bytes']:,}"
        try:
            rows = self._read(file["path"]).num_rows
        except LakeUnusable:
            return f"can't be read, and was published with {file['num_records']:,} rows"
        published = file["num_records"]
        return "" if rows == published else f"has {rows:,} rows that can be read, and was published with {published:,}"

    def rows(self, source: str, ids: Collection[int]) -> list[dict[str, Any]]:
        """Those of this database with these ids; none without a table. Raises LakeUnusable."""
        return self._rows(self.snapshot(), source, ids) if ids and self.exists() else []

    def add(self, source: str, batch: int, rows: Sequence[Row]) -> int:
        """Add those of these rows that are not there, and read all of them back; returns how many were added.

        rows: with all of `columns`. Raises LakeUnusable, also if they are not there after they were added.
        """
        if not rows:
            return 0
        self.create()
        ids = {row[self.id_column] for row in rows}
        added = 0
        for _ in range(_ATTEMPTS):
            snapshot = self.snapshot()
            there = {self._cells(row) for row in self._rows(snapshot, source, ids)}
            missing = [row for row in rows if self._cells(row) not in there]
            if not missing:
                return added
            own = {"schema_version": VERSION, "source": source, "batch": batch}
            if self._append(snapshot, [{**row, **own} for row in missing]):
                added += len(missing)
        raise LakeUnusable(f"Rows that were added to {self.path} are not there. Nothing was deleted: run it again.")

    def _cells(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.columns)

    def _rows(self, snapshot: Snapshot, source: str, ids: Collection[int]) -> list[dict[str, Any]]:
        """Of the files that may have them, by the bounds of their ids."""
        least, most = f"min.{self.id_column}", f"max.{self.id_column}"
        files = [file for file in self._files(snapshot) if file[least] <= max(ids) and file[most] >= min(ids)]
        wanted = (pc.field("source") == source) & pc.field(self.id_column).isin(list(ids))
        return [row for file in files for row in self._read(file["path"], wanted).to_pylist()]

    def _files(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        with self._named_errors():
            return pa.table(snapshot.table.get_add_actions(flatten=True)).to_pylist()  # type: ignore[no-any-return]

    def _read(self, path: str, wanted: pc.Expression | None = None) -> pa.Table:
        """A column that an older writer did not know is NULL."""
        try:
            return parquet.read_table(path, schema=self.arrow(), filesystem=self.files(), filters=wanted)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise LakeUnusable(
                f"The file {self.path}/{path} can't be read: {reason}. Restore it from a backup of the lake."
            ) from error

    def _append(self, snapshot: Snapshot, rows: list[dict[str, Any]]) -> bool:
        """Write a file and let it count; False, and nothing is changed, if there is a newer version."""
        path = f"{secrets.token_hex(16)}.parquet"
        with self._named_errors(), self.files().open_output_stream(path) as stream:
            parquet.write_table(pa.Table.from_pylist(rows, self.arrow()), stream, compression="zstd")
        ids = [row[self.id_column] for row in rows]
        bounds = {"minValues": {self.id_column: min(ids)}, "maxValues": {self.id_column: max(ids)}}
        statistics = json.dumps({"numRecords": len(rows), **bounds, "nullCount": {self.id_column: 0}})
        size, now = self.files().get_file_info(path).size, round(time.time() * 1000)
        action = AddAction(path, size, {}, now, data_change=True, stats=statistics)
        return self._commit(snapshot, [action], CommitProperties(max_commit_retries=0))


class Flows(SideTable):
    """Flows that have ended, each end of one: a flow that was retried has ended several times.

    `steps`: JSON, one object for each step with its `number`, `name`, `state`, `after` (the numbers of its
    predecessors), `when`, `kind`, `is_group`, `size` (messages), `released_at` and `ended_at`.
    """

    name: ClassVar[str] = "delayedq flows"
    directory: ClassVar[str] = "_flows"
    id_column: ClassVar[str] = "id"
    columns: ClassVar[dict[str, str]] = {
        "id": "long",
        "name": "string",
        "state": "string",
        "policy": "string",
        "created_at": "timestamp",
        "deadline_at": "timestamp",
        "stopped_at": "timestamp",
        "ended_at": "timestamp",
        "steps": "string",
    }


class RecordedSteps(SideTable):
    """The recorded steps of archived messages, with the kinds of these."""

    name: ClassVar[str] = "delayedq steps"
    directory: ClassVar[str] = "_steps"
    id_column: ClassVar[str] = "message_id"
    columns: ClassVar[dict[str, str]] = {
        "message_id": "long",
        "kind": "string",
        "generation": "integer",
        "name": "string",
        "result": "string",
        "recorded_at": "timestamp",
    }
