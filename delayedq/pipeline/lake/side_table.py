"""Tables beside the messages of a lake: the flows that have ended, and the recorded steps of its messages.

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
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet

from delayedq.exceptions import LakeUnusable
from delayedq.pipeline.lake import parquet_files
from delayedq.pipeline.lake.columns import VERSION, arrow_schema, delta_schema
from delayedq.pipeline.lake.table import LakeTable, Snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from deltalake import Schema
    from pyarrow.fs import FileInfo

    #: A row, by the names of its columns.
    type Row = Mapping[str, Any]

#: Columns that each of these tables has, as the table of the messages has them: see `columns.COLUMNS`.
_OWN = {"schema_version": "integer", "source": "string", "batch": "long"}
#: So often rows are added, or found added: another one may commit each time.
_ATTEMPTS = 20


class Joined(NamedTuple):
    """How many files became one, with how many rows; 0 if somebody else has replaced them meanwhile."""

    files: int
    rows: int


class SideTable(LakeTable):
    """A table in a directory of the lake. Columns are only ever added, as those of messages are."""

    directory: ClassVar[str]
    #: The column whose bounds the log knows of each file.
    id_column: ClassVar[str]
    columns: ClassVar[dict[str, str]]
    #: Rows that have these in common, the id first, are versions of one row: the last that was added stays.
    identity: ClassVar[tuple[str, ...]] = ()
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
        return sum(file["num_records"] or 0 for file in self._files(self.snapshot())) if self.exists() else 0

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
            return f"is missing, with {file['num_records'] or 0:,} rows"
        if size != file["size_bytes"]:
            return f"has {size:,} bytes, and was published with {file['size_bytes']:,}"
        try:
            rows = self._read(file["path"]).num_rows
        except LakeUnusable:
            return f"can't be read, and was published with {file['num_records'] or 0:,} rows"
        published = rows if file["num_records"] is None else file["num_records"]
        return "" if rows == published else f"has {rows:,} rows that can be read, and was published with {published:,}"

    def rows(self, source: str, ids: Collection[int]) -> list[dict[str, Any]]:
        """Those of this database with these ids; none without a table. Raises LakeUnusable."""
        table = self._newest() if ids else None
        return [] if table is None else self._rows(Snapshot(table, table.version(), ()), source, ids)

    def add(self, source: str, batch: int, rows: Sequence[Row]) -> int:
        """Add those of these rows that are not there, and read all of them back; returns how many were added.

        Older versions of them go in the same commit, as the plain result of a step whose task has become sensitive.

        rows: with all of `columns`. Raises LakeUnusable, also if they are not there after they were added.
        """
        if not rows:
            return 0
        self.create()
        ids = {row[self.id_column] for row in rows}
        added = 0
        for _ in range(_ATTEMPTS):
            snapshot = self.snapshot()
            there = self._rows(snapshot, source, ids)
            cells = {self._cells(row) for row in there}
            missing = [row for row in rows if self._cells(row) not in cells]
            if not missing:
                return added
            own = {"schema_version": VERSION, "source": source, "batch": batch}
            new = pa.Table.from_pylist([{**row, **own} for row in missing], self.arrow())
            older = self._identities(there) & self._identities(missing)
            kept, removed = self._without(snapshot, source, older) if older else ([], [])
            if self._append(snapshot, pa.concat_tables([*kept, new]), removed):
                added += len(missing)
        raise LakeUnusable(f"Rows that were added to {self.path} are not there. Nothing was deleted: run it again.")

    def compact(self, small: int) -> Iterator[Joined]:
        """Join the files of less than so many bytes, about that many bytes at once; one result for each commit.

        Raises LakeUnusable. Without a table, or with one small file, there is none.
        """
        every = self._files(self.snapshot()) if self.exists() else []
        files = [file for file in every if file["size_bytes"] < small and file["num_records"] is not None]
        files.sort(key=lambda file: file.get(f"min.{self.id_column}") or 0)
        while len(files) > 1:
            taken = [files.pop(0), files.pop(0)]
            while files and sum(file["size_bytes"] for file in taken) < small:
                taken.append(files.pop(0))
            yield self._join(taken)

    def _join(self, files: list[dict[str, Any]]) -> Joined:
        rows = pa.concat_tables([self._read(file["path"]) for file in files])
        published = sum(file["num_records"] for file in files)
        added = self._written(rows, changes=False)
        if rows.num_rows != published or not self._read(added.path).equals(rows):
            raise LakeUnusable(
                f"{len(files)} files of {self.path} have {rows.num_rows:,} rows that can be read, and were published "
                f"with {published:,}; or they can't be written. Nothing was replaced: `run_pipeline check` tells more."
            )
        now, paths = round(time.time() * 1000), {file["path"] for file in files}
        removed = [RemoveAction(file["path"], False, now, file["size_bytes"], {}) for file in files]
        while True:
            snapshot = self.snapshot()
            if not paths <= {file["path"] for file in self._files(snapshot)}:
                return Joined(0, 0)
            if self._commit(snapshot, [*removed, added], CommitProperties(max_commit_retries=0)):
                return Joined(len(files), rows.num_rows)

    def unneeded(self, before: datetime) -> list[FileInfo]:
        """As that of the lake, of this table; none without it."""
        if not self.exists():
            return []
        snapshot = self.snapshot()
        needed = {file["path"] for file in self._files(snapshot)} | self._removed_since(snapshot, before)
        files = [info for info in self.stored() if not info.path.startswith("_delta_log/")]
        return [info for info in files if info.path not in needed and info.mtime is not None and info.mtime < before]

    def _cells(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.columns)

    def _rows(self, snapshot: Snapshot, source: str, ids: Collection[int]) -> list[dict[str, Any]]:
        """Of the files that may have them, by the bounds of their ids."""
        files = [file for file in self._files(snapshot) if self._may_hold(file, min(ids), max(ids))]
        condition = (pc.field("source") == source) & pc.field(self.id_column).isin(list(ids))
        wanted = parquet_files.Filter(condition, ("source", self.id_column))
        return [row for file in files for row in self._dicts(self._read(file["path"], wanted))]

    def _dicts(self, rows: pa.Table) -> list[dict[str, Any]]:
        return parquet_files.as_dicts(self.path, rows)

    def _may_hold(self, file: Mapping[str, Any], first: int, last: int) -> bool:
        """Can it have an id from the first to the last? Other engines may write files without bounds."""
        least, most = file.get(f"min.{self.id_column}"), file.get(f"max.{self.id_column}")
        return (least is None or least <= last) and (most is None or most >= first)

    def _files(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        with self._named_errors():
            return self._add_actions(snapshot.table)

    def _read(self, path: str, wanted: parquet_files.Filter | None = None) -> pa.Table:
        """A column that an older writer did not know is NULL."""
        return parquet_files.read(self.path, self.files(), path, self.arrow(), wanted)

    def _identities(self, rows: Sequence[Row]) -> set[tuple[Any, ...]]:
        return {tuple(row[name] for name in self.identity) for row in rows} if self.identity else set()

    def _without(
        self, snapshot: Snapshot, source: str, older: set[tuple[Any, ...]]
    ) -> tuple[list[pa.Table], list[dict[str, Any]]]:
        """The files of this database that have these rows, and what else is in them."""
        kept, removed = [], []
        ids = [id_ for id_, *_ in older]
        for file in (file for file in self._files(snapshot) if self._may_hold(file, min(ids), max(ids))):
            rows = self._read(file["path"])
            columns = zip(*(rows[name].to_pylist() for name in ("source", *self.identity)), strict=True)
            stays = [own != source or tuple(cells) not in older for own, *cells in columns]
            if not all(stays):
                kept.append(rows.filter(pa.array(stays, pa.bool_())))
                removed.append(file)
        return kept, removed

    def _append(self, snapshot: Snapshot, rows: pa.Table, removed: Sequence[Mapping[str, Any]]) -> bool:
        """Write a file that counts instead of these. False, and nothing is changed, if there is a newer version."""
        now = round(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [self._written(rows, changes=True)]
        actions += [RemoveAction(file["path"], True, now, file["size_bytes"], {}) for file in removed]
        return self._commit(snapshot, actions, CommitProperties(max_commit_retries=0))

    def _written(self, rows: pa.Table, *, changes: bool) -> AddAction:
        """Write a file, which counts when this is committed."""
        path = f"{secrets.token_hex(16)}.parquet"
        with self._named_errors(), self.files().open_output_stream(path) as stream:
            parquet.write_table(rows, stream, compression="zstd")
        ends = pc.min_max(rows[self.id_column]).as_py()
        bounds = {"minValues": {self.id_column: ends["min"]}, "maxValues": {self.id_column: ends["max"]}}
        statistics = json.dumps({"numRecords": rows.num_rows, **bounds, "nullCount": {self.id_column: 0}})
        size, now = self.files().get_file_info(path).size, round(time.time() * 1000)
        return AddAction(path, size, {}, now, data_change=changes, stats=statistics)


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
    identity: ClassVar[tuple[str, ...]] = ("message_id", "generation", "name", "recorded_at")


#: All of them.
SIDES: tuple[type[SideTable], ...] = (Flows, RecordedSteps)
