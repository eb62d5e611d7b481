"""The table of the lake: made, read as of one version, and changed by commits that are there whole or not at all.

    _delta_log/                           the versions: which files were added and removed
    messages/DIRECTORY/day=DAY/*.parquet  what one attempt at a batch, or at a compaction, has written

Files count from the commit that adds them. What an attempt wrote that was killed before, or lost to another, is in no
version, so no reader sees it.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Self

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from delayedq.exceptions import InvalidOption, LakeUnusable
from delayedq.pipeline.lake.columns import MEASURED, PARTITIONED_BY, VERSION, delta_schema
from delayedq.pipeline.lake.paths import absolute

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import date

    from deltalake import Schema
    from deltalake.table import ProtocolVersions
    from pyarrow.fs import FileInfo

# One version of the lake: its files, and what the statistics tell of them.


#: The directory of a lake that holds all files that we write.
MESSAGES = "messages"
#: How the paths of its files begin: of ours, and of those that another engine writes when it compacts the table.
_DATA = (f"{MESSAGES}/", f"{PARTITIONED_BY}=")


class DataFile(NamedTuple):
    """A Parquet file of the lake. `path` is relative to the lake, `size` is in bytes.

    least, most: by the name of a measured column, the bounds of its values; a column that is NULL in all rows has none.
    nulls: by its name, in how many rows it is NULL.
    """

    path: str
    size: int
    rows: int
    day: date
    least: Mapping[str, Any]
    most: Mapping[str, Any]
    nulls: Mapping[str, int]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From a row of `DeltaTable.get_add_actions(flatten=True)`."""
        least, most, nulls = (
            {name: row[f"{kind}.{name}"] for name in MEASURED if row.get(f"{kind}.{name}") is not None}
            for kind in ("min", "max", "null_count")
        )
        return cls(row["path"], row["size_bytes"], row["num_records"] or 0, row["partition.day"], least, most, nulls)

    def may_hold(self, column: str, values: Collection[Any]) -> bool:
        """Can a row have one of the values? A file whose bounds are unknown may hold any."""
        if column not in self.least or column not in self.most:
            return self.nulls.get(column) != self.rows
        return any(self.least[column] <= value <= self.most[column] for value in values)

    def ends_within(self, since: datetime | None, until: datetime | None) -> bool:
        """Can a row have ended from `since` until before `until`?"""
        least, most = self.least.get("finished_at"), self.most.get("finished_at")
        return (since is None or most is None or most >= since) and (until is None or least is None or least < until)

    def holds_only(self, column: str, value: object) -> bool:
        """Is the column this value in every row?"""
        return self.least.get(column) == value == self.most.get(column) and not self.nulls.get(column)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of the lake. It stays as it is, and its files stay readable until a vacuum, whatever is published."""

    table: DeltaTable
    version: int
    files: tuple[DataFile, ...]

    def chosen(
        self, since: datetime | None = None, until: datetime | None = None, **values: Collection[Any] | None
    ) -> list[DataFile]:
        """The files that may hold rows which ended in the window (`until` excluded) and have these values.

        values: by the name of a measured column, what it may be: `id=[7]`, `source=["app"]`. None: anything.
        """
        wanted = {column: given for column, given in values.items() if given is not None}
        return [
            file
            for file in self.files
            if file.ends_within(since, until) and all(file.may_hold(column, given) for column, given in wanted.items())
        ]

    def last(self, source: str) -> int:
        """The number of the last batch that this database has published; 0 if there is none. Raises LakeUnusable."""
        with named_errors(self.table.table_uri):
            return self.table.transaction_version(application(source)) or 0

    def of(self, directory: str) -> list[DataFile]:
        """The files that this attempt wrote, unless a compaction has replaced them."""
        return [file for file in self.files if file.path.startswith(f"{MESSAGES}/{directory}/")]

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return sum(file.rows for file in self.files)


def application(source: str) -> str:
    """What the table calls the database: it takes each number of a batch of an application once."""
    return f"delayedq/{source}"


def others(last: int, settled: Collection[int]) -> list[int]:
    """The batches, of those with numbers up to `last`, whose rows may be in the database as well.

    settled: the numbers of those whose rows are known to be deleted from it.
    """
    return [number for number in range(1, last + 1) if number not in settled]


# Table


NAME = "delayedq history"

#: Bytes that are copied at once.
_PIECE = 2**20

#: What a version removes stays readable for this long, for readers that have begun.
RETENTION = timedelta(days=7)

#: What delta-rs says of a log that lacks a version.
_GAP = "contiguous commit files"

#: What a reader of files need not know: of the log, of vacuum, and of a type that no column of ours has.
_HARMLESS = {"v2Checkpoint", "vacuumProtocolCheck", "timestampNtz"}
#: The version of the protocol that means this one feature.
_COLUMN_MAPPING = 2

_VERSION_OF_COLUMNS = "delayedq.schemaVersion"


class LakeTable:
    """The lake at `path`: a directory, which may be relative to where we are, or the URL of one or of an object store.

    options: of the object store, as delta-rs has them; else they come from the environment (AWS_ENDPOINT_URL, ...).
    """

    #: What tells a table of ours from others, and what its files are partitioned by.
    name: ClassVar[str] = NAME
    partitions: ClassVar[list[str]] = [PARTITIONED_BY]

    def __init__(self, path: str, options: Mapping[str, str] | None = None) -> None:
        self.path = absolute(path)
        if not self.path.strip("/"):
            raise InvalidOption("A lake needs a directory of its own.")
        self._options = dict(options or {}) or None

    # Reading

    def exists(self) -> bool:
        """Is there a table of ours? Raises LakeUnusable if there is another one, or of a newer delayedq."""
        return self._newest() is not None

    def snapshot(self) -> Snapshot:
        """The newest version. Raises LakeUnusable if there is no lake."""
        table = self._newest()
        if table is None:
            raise LakeUnusable(f"There is no lake at {self.path}.")
        with self._named_errors():
            actions = self._add_actions(table)
        return Snapshot(table, table.version(), tuple(DataFile.of(action) for action in actions))

    def _add_actions(self, table: DeltaTable) -> list[dict[str, Any]]:
        """What the log says of each file. Raises LakeUnusable for one without a day, or outside the lake."""
        actions: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        for action in actions:
            path = PurePosixPath(action["path"])
            known = all(action.get(f"partition.{name}") is not None for name in self.partitions)
            if not known or path.is_absolute() or ".." in path.parts or "://" in action["path"]:
                raise LakeUnusable(
                    f"The log of the lake at {self.path} has a file that delayedq has not written: {str(path)[:200]}. "
                    "Restore _delta_log from a backup."
                )
        return actions

    def _newest(self) -> DeltaTable | None:
        with self._named_errors():
            if not DeltaTable.is_deltatable(self.path, self._options):
                return None
            table = DeltaTable(self.path, storage_options=self._options)
            metadata, protocol = table.metadata(), table.protocol()
        if metadata.name != self.name or metadata.partition_columns != self.partitions:
            raise LakeUnusable(f"The table at {self.path} is not a lake of delayedq: its name is {metadata.name!r}.")
        version = metadata.configuration.get(_VERSION_OF_COLUMNS, "0")
        if version not in map(str, range(VERSION + 1)):
            raise LakeUnusable(
                f"The lake at {self.path} holds schema version {version}; this delayedq reads up to {VERSION}."
            )
        self._check_features(protocol)
        return table

    def _check_features(self, protocol: ProtocolVersions) -> None:
        """Raises LakeUnusable for a table whose files are not what it holds: we read the files themselves."""
        features = {"columnMapping"} if protocol.min_reader_version == _COLUMN_MAPPING else set()
        if unknown := (features | set(protocol.reader_features or ())) - _HARMLESS:
            raise LakeUnusable(
                f"Another engine has enabled {', '.join(sorted(unknown))} in the table at {self.path}: its files are "
                "no longer what it holds, and delayedq would show rows that were deleted. Drop that feature of it."
            )

    def check(self) -> bool:
        """Is there a lake? False: one can be made here. Raises LakeUnusable if the directory holds other files."""
        if self.exists():
            return True
        for info in self.stored():
            if not info.path.startswith(f"{MESSAGES}/"):
                raise LakeUnusable(
                    f"{self.path} is not a lake: it holds {info.path}. A lake begins in an empty directory."
                )
        return False

    def stored(self, directory: str = "") -> list[FileInfo]:
        """All files, with their paths relative to the lake, whether they count or not; none if it is not there."""
        if "://" not in self.path and not Path(self.path).is_dir():
            return []
        with self._named_errors():
            found = self.files().get_file_info(FileSelector(directory, allow_not_found=True, recursive=True))
        return [info for info in found if info.type == FileType.File]

    def bytes_of(self, path: str) -> pa.Buffer:
        """The whole of one file, whether it counts or not. Raises LakeUnusable."""
        with self._named_errors(), self.files().open_input_file(path) as file:
            return file.read_buffer()

    def files(self) -> PyFileSystem:
        """The directory of the lake as pyarrow's file system: it opens the `path` of a DataFile."""
        return PyFileSystem(DeltaStorageHandler(self.path, self._options))

    @staticmethod
    def _schema() -> Schema:
        return delta_schema()

    # Writing

    def create(self) -> None:
        """Make the table, unless it is there; of two that make it at once, one does. Raises LakeUnusable."""
        if self.exists():
            return
        with self._named_errors():
            try:
                DeltaTable.create(
                    self.path,
                    self._schema(),
                    partition_by=self.partitions,
                    name=self.name,
                    configuration={
                        _VERSION_OF_COLUMNS: str(VERSION),
                        "delta.deletedFileRetentionDuration": f"interval {RETENTION.days} days",
                        "delta.checkpointInterval": "20",
                    },
                    storage_options=self._options,
                    raise_if_key_not_exists=False,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except DeltaError:
                if not self.exists():  # else the other one was first
                    raise

    def publish(
        self,
        snapshot: Snapshot,
        source: str,
        number: int,
        files: list[DataFile],
        replaced: tuple[list[DataFile], list[DataFile]] = ([], []),
        **about: object,
    ) -> bool:
        """Let the files count, as the batch of this number of this database.

        False, and nothing is changed, if the database has published this number or a later one, or has published any
        batch since the snapshot: then what is written no longer says what is missing in the lake.
        replaced: files that stop to count with it, and those that do in their place; then it is also False if anything
        else was committed since the snapshot. about: kept with the commit.
        """
        if snapshot.last(source) >= number:
            return False
        former, others = replaced
        commit = CommitProperties(
            custom_metadata={"delayedq": {"source": source, "batch": number, **about}},
            app_transactions=[Transaction(application(source), number)],
            **({"max_commit_retries": 0} if former else {}),
        )
        added = [_added(file, changes=True) for file in [*files, *others]]
        return self._commit(snapshot, [*(_removed(file, changes=True) for file in former), *added], commit)

    def replace(self, snapshot: Snapshot, removed: list[DataFile], added: list[DataFile], **about: object) -> bool:
        """Let files count in place of others that hold the same rows.

        False, and nothing is changed, if there is a newer version than the snapshot. delta-rs 1.6 would commit on an
        older version, too, though a newer one has replaced the same files: both additions would count, and double the
        rows, as they do after two `optimize` of its own.
        """
        additions = [_added(file, changes=False) for file in added]
        commit = CommitProperties(custom_metadata={"delayedq": about}, max_commit_retries=0)
        return self._commit(snapshot, [*(_removed(file, changes=False) for file in removed), *additions], commit)

    def put(self, path: str, source: BinaryIO) -> None:
        """Write a file, which counts when it is published. Raises LakeUnusable."""
        # What delta-rs opens takes bytes, which pyarrow gives to it from a buffer of its own only.
        with (
            self._named_errors(),
            self.files().open_output_stream(path) as stream,
            pa.BufferedOutputStream(stream, _PIECE) as target,
        ):
            shutil.copyfileobj(source, target, _PIECE // 4)

    def delete(self, paths: list[str]) -> None:
        """Delete files that no version needs."""
        if not paths:
            return
        files = self.files()
        with self._named_errors():
            for path in paths:
                files.delete_file(path)

    def _commit(self, snapshot: Snapshot, actions: list[AddAction | RemoveAction], commit: CommitProperties) -> bool:
        with self._named_errors():
            try:
                snapshot.table.create_write_transaction(
                    actions, "append", snapshot.table.schema(), self.partitions, commit_properties=commit
                )
            except CommitFailedError:
                return False
        return True

    # Vacuum

    def unneeded(self, before: datetime) -> list[FileInfo]:
        """The files that were written before then, and that no version has which was current at that time or later.

        Raises LakeUnusable.
        """
        snapshot = self.snapshot()
        needed = {file.path for file in snapshot.files} | self._removed_since(snapshot, before)
        return [
            info
            for info in self.stored()
            if info.path.startswith(_DATA) and _visible(info.path) not in needed
            if info.mtime is not None and info.mtime < before
        ]

    def _removed_since(self, snapshot: Snapshot, before: datetime) -> set[str]:
        """What some version of that time or later has, and the newest one has not."""
        hours = math.ceil((datetime.now(UTC) - before) / timedelta(hours=1))
        with self._named_errors():
            ever, earlier = (
                snapshot.table.vacuum(retention_hours=since, dry_run=True, enforce_retention_duration=False)
                for since in (0, max(0, hours))
            )
        return set(ever) - set(earlier)

    def _named_errors(self) -> AbstractContextManager[None]:
        return named_errors(self.path)


@contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Errors of a table, and of its store, as one sentence. Raises LakeUnusable."""
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError, pa.ArrowException, OverflowError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        if _GAP in reason:
            raise LakeUnusable(
                f"The log of the lake at {path} lacks a version: restore the numbers that are missing in "
                "_delta_log from a backup, and run it again."
            ) from error
        raise LakeUnusable(
            f"The lake at {path} can't be used: {reason}. Make it reachable and writable, and run it again."
        ) from error


def _added(file: DataFile, *, changes: bool) -> AddAction:
    statistics = {
        "numRecords": file.rows,
        "minValues": {name: _shown(value) for name, value in file.least.items()},
        "maxValues": {name: _shown(value) for name, value in file.most.items()},
        "nullCount": dict(file.nulls),
    }
    now = round(time.time() * 1000)
    return AddAction(file.path, file.size, _partition(file), now, changes, json.dumps(statistics, ensure_ascii=False))


def _removed(file: DataFile, *, changes: bool) -> RemoveAction:
    return RemoveAction(file.path, changes, round(time.time() * 1000), file.size, _partition(file))


def _shown(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


def _partition(file: DataFile) -> dict[str, str | None]:
    return {PARTITIONED_BY: file.day.isoformat()}


def _visible(path: str) -> str:
    """Hadoop keeps the checksum of `a/b` in `a/.b.crc`: it goes with its file."""
    return re.sub(r"/\.([^/]+)\.crc$", r"/\1", path)
