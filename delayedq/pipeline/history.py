"""Ended messages of the database and the lake together, read by this process: each once, also while history moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from delayedq.conf import get_settings
from delayedq.core.bounds import is_storable
from delayedq.exceptions import InvalidOption
from delayedq.models import FinishedMessage
from delayedq.pipeline import books
from delayedq.pipeline.lake.columns import ARROW, VERSION
from delayedq.pipeline.lake.parquet_files import as_dicts
from delayedq.pipeline.lake.rows import WantedRows
from delayedq.pipeline.lake.rows import read as read_files
from delayedq.pipeline.lake.table import LakeTable
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

#: Rows of the database that are held as Python objects at once.
BATCH = 10_000
#: How many files `find` looks into at most, the latest first.
FILES = 40
_SAME = ["id", "finished_at"]


class Archived(NamedTuple):
    """What `find` found in the lake.

    rows: columns by name, as the lake has them (`state` is the outcome), latest end first. complete: False if there are
    more files that may have such messages, or more messages than were asked for.
    """

    rows: list[dict[str, Any]]
    complete: bool


def read(
    since: datetime | None = None,
    until: datetime | None = None,
    queue: str | Collection[str] | None = None,
    *,
    lake: str | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """All messages that ended from `since` until before `until`, as an Arrow table: each once, in no order.

    since, until: aware; None: no bound. queue: one, or several; None: all. lake: where it is (DELAYEDQ['LAKE']);
    without one, or as long as nothing was archived, it is the database alone. columns: which of
    `delayedq.pipeline.lake.columns.COLUMNS` (all); `batch` is NULL for what is in the database.

    Raises InvalidOption for a wrong argument, LakeUnusable if the lake can't be read.
    """
    names = _checked(since, until, columns)
    queues = [queue] if isinstance(queue, str) else None if queue is None else list(queue)
    source, settled = books.source_of(default_store().alias), books.settled()
    stored = _stored(since, until, queues, source)  # first: what an archive has deleted by then was published before
    still, table = books.still_settled(settled), _table(lake)
    if table is None or not books.is_there(table):
        return stored.select(names)
    snapshot = table.snapshot()
    values: dict[str, Collection[Any]] = {"source": [source]}
    values |= {} if queues is None else {"queue": queues}
    repeated: set[tuple[int, int]] = set()
    if both := books.in_both(table, snapshot, source, still):
        of_both = WantedRows(since, until, values | {"batch": both})
        for part in read_files(table, of_both.files(snapshot), of_both, _SAME):
            repeated.update(_ends(part))
        repeated.intersection_update(_ends(stored))
    wanted = WantedRows(since, until, values)
    needed = names if not repeated else [*names, *(name for name in _SAME if name not in names)]
    archived = read_files(table, wanted.files(snapshot), wanted, needed)
    # Of what is in both, the database has the newer one: it may have been changed since it was restored.
    return pa.concat_tables([stored.select(names), *(_without(part, repeated).select(names) for part in archived)])


def find(
    *,
    id: int | None = None,  # noqa: A002 - as it is called everywhere
    key: str | None = None,
    lake: str | None = None,
    most: int = 20,
) -> Archived:
    """Messages of this database that were archived, by their id or their key; none if there is no lake.

    The statistics of the files tell which of them may have it: by id mostly one for each day or batch; by key many,
    of which the latest FILES are looked into. Raises InvalidOption, LakeUnusable.
    """
    if (id is None) == (key is None):
        raise InvalidOption("find: an id or a key, and not both.")
    table = _table(lake)
    if table is None or not _can_be(id, key) or not table.exists():
        return Archived([], complete=True)
    source, snapshot = books.source_of(default_store().alias), table.snapshot()
    wanted = WantedRows(values={"source": [source]} | ({"id": [id]} if key is None else {"key": [key]}))
    files = sorted(wanted.files(snapshot), key=lambda file: file.day, reverse=True)
    rows: list[dict[str, Any]] = []
    for file in files[:FILES]:
        # First the few columns that tell whether it is there.
        if any(read_files(table, [file], wanted, _SAME)):
            rows += [row for part in read_files(table, [file], wanted) for row in as_dicts(table.path, part)]
    rows.sort(key=lambda row: row["finished_at"], reverse=True)
    return Archived(rows[:most], complete=len(files) <= FILES and len(rows) <= most)


def _can_be(id_: int | None, key: str | None) -> bool:
    """Can a message have this id, or this key?"""
    return is_storable(key) if key is not None else id_ is not None and -(2**63) <= id_ < 2**63


def _checked(since: datetime | None, until: datetime | None, columns: Sequence[str] | None) -> list[str]:
    """The columns. Raises InvalidOption."""
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.utcoffset() is None:
            raise InvalidOption(f"{name}: {moment} has no time zone; pass an aware datetime.")
    if since is not None and until is not None and until <= since:
        raise InvalidOption(f"until, {until}, is not later than since, {since}.")
    if unknown := sorted(set(columns or ()) - set(ARROW.names)):
        raise InvalidOption(f"columns: {', '.join(unknown)} unknown; known are {', '.join(ARROW.names)}.")
    return list(columns or ARROW.names)


def _table(lake: str | None) -> LakeTable | None:
    path = lake or get_settings().LAKE
    return None if path is None else LakeTable(path)


def _stored(since: datetime | None, until: datetime | None, queues: list[str] | None, source: str) -> pa.Table:
    """What the database has, as one statement finds it (ARROW)."""
    found = FinishedMessage.objects.using(default_store().alias).all()
    found = found if since is None else found.filter(finished_at__gte=since)
    found = found if until is None else found.filter(finished_at__lt=until)
    found = found if queues is None else found.filter(queue__in=queues)
    return pa.Table.from_batches(_batches(found, source), ARROW)


def _batches(found: QuerySet[FinishedMessage], source: str) -> Iterator[pa.RecordBatch]:
    rows = found.values().iterator(chunk_size=BATCH)
    while part := [_row(row, source) for _, row in zip(range(BATCH), rows, strict=False)]:
        yield pa.RecordBatch.from_pylist(part, ARROW)


def _row(row: Mapping[str, Any], source: str) -> dict[str, Any]:
    own = {"state": row["outcome"], "schema_version": VERSION, "source": source, "day": row["finished_at"].date()}
    return {**row, **own}


def _without(rows: pa.Table, others: set[tuple[int, int]]) -> pa.Table:
    """The rows whose id and end are not among the others."""
    ids = pa.array({id_ for id_, _ in others}, pa.int64())
    if not others or not pc.any(pc.is_in(rows.column("id"), value_set=ids)).as_py():
        return rows
    return rows.filter(pa.array([end not in others for end in _ends(rows)], pa.bool_()))


def _ends(table: pa.Table) -> Iterator[tuple[int, int]]:
    """The id of each row, and when it ended."""
    ends = pc.cast(table.column("finished_at"), pa.int64())
    return zip(table.column("id").to_pylist(), ends.to_pylist(), strict=True)
