"""One version of the lake: its files, and what the statistics tell of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from delayedq.pipeline.lake.columns import MEASURED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import date, datetime

    from deltalake import DeltaTable


#: The directory of a lake that holds all its files.
MESSAGES = "messages"


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
        """The number of the last batch that this database has published; 0 if there is none."""
        return self.table.transaction_version(application(source)) or 0

    def of(self, directory: str) -> list[DataFile]:
        """The files that this attempt wrote, unless a compaction has replaced them."""
        return [file for file in self.files if file.path.startswith(f"{MESSAGES}/{directory}/")]

    def abouts(self) -> list[dict[str, Any]]:
        """What was kept with each commit, as far as the log goes back."""
        return [commit["delayedq"] for commit in self.table.history() if "delayedq" in commit]

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
