"""The step `restore`: rows of the lake are put back into the history table, as they were, with their recorded steps.

They stay in the lake, too.

Rows and the mark in the books of their batches are committed together, so each reader that finds the rows also knows
that they are in both. The archive compares them with the lake's, and deletes them without writing them once more.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from django.db import transaction
from django.db.models import Value

from delayedq.conf import get_settings
from delayedq.core.lifecycle import FinalOutcome
from delayedq.exceptions import InvalidOption
from delayedq.models import FinishedMessage, Message
from delayedq.pipeline import books
from delayedq.pipeline.archived import as_ended
from delayedq.pipeline.commands.archive import SideRows
from delayedq.pipeline.lake import storable
from delayedq.pipeline.lake.columns import ARROW
from delayedq.pipeline.lake.parquet_files import as_dicts
from delayedq.pipeline.lake.rows import WantedRows, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from delayedq.pipeline.lake.table import Snapshot
    from delayedq.pipeline.opening import Options, WithoutSpark

#: Rows that one statement inserts.
INSERTED_AT_ONCE = 500

#: The most that one run puts back: they are one transaction.
MOST_ROWS = 1_000_000


def run_restore(pipeline: WithoutSpark, options: Options) -> None:
    """Put rows back. Raises InvalidOption, LakeUnusable."""
    snapshot, source = pipeline.table.snapshot(), books.source_of(pipeline.store.alias)
    wanted = _wanted(options, snapshot, source)
    rows = _last_ends(_checked(pipeline, read(pipeline.table, wanted.files(snapshot), wanted)))
    _check_ids(options["ids"], rows)
    counts = _restored(pipeline, rows)
    pipeline.tell(f"{_count(rows):,} messages of the lake: {counts['restored']:,} are in the history table again.")
    for name, text in _LEFT_OUT.items():
        if counts[name]:
            pipeline.tell(f"  {counts[name]:,} {text}")
    _tell_of_pruning(pipeline, rows)


_LEFT_OUT = {
    "there": "were there already, and are left as they are",
    "live": "are live again, and are left out: a message that ends needs its place",
}


def _wanted(options: Options, snapshot: Snapshot, source: str) -> WantedRows:
    if options["until"] is not None and options["since"] is None:
        raise InvalidOption("--until needs --since.")
    values: dict[str, Any] = {"source": [source]}
    if options["batch"] is not None:
        last = snapshot.last(source)
        if not 1 <= options["batch"] <= last:
            raise InvalidOption(f"--batch {options['batch']}: this database has published batches 1 to {last}.")
        return WantedRows(values=values | {"batch": [options["batch"]]})
    if options["ids"]:
        return WantedRows(values=values | {"id": options["ids"]})
    since, until = options["since"], options["until"]
    if until is not None and until <= since:
        raise InvalidOption(f"--until, {until}, is not later than --since, {since}.")
    return WantedRows(since, until, values)


def _checked(pipeline: WithoutSpark, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        storable.check(pipeline.table.path, table)
        yield table


def _last_ends(tables: Iterable[pa.Table]) -> list[pa.Table]:
    """The rows. Of a message that ended several times it is the last end: the table has one row for each.

    They stay as Arrow has them: as dicts they would take several times the memory.
    """
    found: list[pa.Table] = []
    for table in tables:
        found.append(table)
        if _count(found) > MOST_ROWS:
            found = _without_former(found)
        if _count(found) > MOST_ROWS:
            raise InvalidOption(
                f"These are more than {MOST_ROWS:,} rows, which are one transaction: restore them by shorter spans "
                "of --since and --until."
            )
    return _without_former(found)


def _count(tables: Sequence[pa.Table]) -> int:
    return sum(table.num_rows for table in tables)


def _without_former(tables: list[pa.Table]) -> list[pa.Table]:
    """Of each id only the row that ended last."""
    if not tables:
        return []
    ends = pa.concat_tables([table.select(["id", "finished_at"]) for table in tables])
    in_order = pc.sort_indices(ends, [("id", "ascending"), ("finished_at", "descending")])
    ids = ends["id"].combine_chunks().take(in_order)
    is_last = pa.concat_arrays([pa.array([True]), pc.not_equal(ids[1:], ids[:-1])])
    last = in_order.filter(is_last)
    if len(last) == ends.num_rows:
        return tables
    kept, first = pc.is_in(pa.array(range(ends.num_rows), last.type), last), 0
    for number, table in enumerate(tables):
        tables[number] = table.filter(kept.slice(first, table.num_rows))
        first += table.num_rows
    return tables


def _check_ids(ids: list[int] | None, rows: Sequence[pa.Table]) -> None:
    if missing := sorted(set(ids or ()).difference(*(table["id"].to_pylist() for table in rows))):
        shown = ", ".join(map(str, missing[:10]))
        raise InvalidOption(f"--ids: {len(missing):,} of them are not in the lake: {shown}. Nothing was restored.")


def _restored(pipeline: WithoutSpark, tables: Sequence[pa.Table]) -> Counter[str]:
    counts: Counter[str] = Counter()
    batches: set[int] = set()
    side_rows = SideRows(pipeline.store, pipeline.table.path, books.source_of(pipeline.store.alias))
    with transaction.atomic(using=pipeline.store.alias):
        for page in _pages(pipeline.table.path, tables):
            ids = [row["id"] for row in page]
            there, live = _known(ids)
            fresh = [row for row in page if row["id"] not in there and row["id"] not in live]
            FinishedMessage.objects.bulk_create(map(as_ended, fresh))
            side_rows.restore([row["id"] for row in fresh])
            counts.update(restored=len(fresh), there=len(there), live=len(live - there))
            batches |= {row["batch"] for row in fresh}
        books.note_restored(batches, pipeline.store.now())
    return counts


def _known(ids: list[int]) -> tuple[set[int], set[int]]:
    """Those in the history, and those that live. One statement, so that none is missed that ends between two."""
    ended = FinishedMessage.objects.filter(id__in=ids).values_list("id", Value(True))
    living = Message.objects.filter(id__in=ids).values_list("id", Value(False))
    found = [*ended.union(living, all=True)]
    return {id_ for id_, is_ended in found if is_ended}, {id_ for id_, is_ended in found if not is_ended}


def _pages(root: str, tables: Sequence[pa.Table]) -> Iterator[list[dict[str, Any]]]:
    rows = pa.concat_tables(tables) if tables else ARROW.empty_table()
    for first in range(0, rows.num_rows, INSERTED_AT_ONCE):
        yield as_dicts(root, rows.slice(first, INSERTED_AT_ONCE))


def _tell_of_pruning(pipeline: WithoutSpark, tables: Sequence[pa.Table]) -> None:
    retention = get_settings().RETENTION
    if retention is None:
        return
    pruned = pipeline.store.now() - retention
    if any(_has_what_is_pruned(table, pruned) for table in tables):
        pipeline.tell(
            f"  Workers prune what ended before {pruned:%Y-%m-%d %H:%M} UTC (RETENTION), except dead letters. It stays "
            "in the lake."
        )


def _has_what_is_pruned(rows: pa.Table, before: datetime) -> bool:
    is_old = pc.less(rows["finished_at"], pa.scalar(before, rows["finished_at"].type))
    return bool(pc.any(pc.and_(is_old, pc.not_equal(rows["state"], FinalOutcome.FAILED.value))).as_py())
