"""The step `restore`: rows of the lake are put back into the history table, as they were, with their recorded steps.

They stay in the lake, too.

Rows and the mark in the books of their batches are committed together, so each reader that finds the rows also knows
that they are in both. The archive compares them with the lake's, and deletes them without writing them once more.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from django.db import transaction

from delayedq.conf import get_settings
from delayedq.exceptions import InvalidOption
from delayedq.models import FinishedMessage, Message
from delayedq.pipeline import books
from delayedq.pipeline.archived import as_ended
from delayedq.pipeline.commands.archive import SideRows
from delayedq.pipeline.lake.rows import WantedRows, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

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
    rows = _last_ends(read(pipeline.table, wanted.files(snapshot), wanted))
    _check_ids(options["ids"], rows)
    counts = _restored(pipeline, rows)
    pipeline.tell(f"{len(rows):,} messages of the lake: {counts['restored']:,} are in the history table again.")
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


def _last_ends(tables: Iterable[pa.Table]) -> dict[int, dict[str, Any]]:
    """The rows by id. Of a message that ended several times it is the last end: the table has one row for each."""
    found: dict[int, dict[str, Any]] = {}
    for table in tables:
        for row in table.to_pylist():
            other = found.get(row["id"])
            if other is None or other["finished_at"] < row["finished_at"]:
                found[row["id"]] = row
        if len(found) > MOST_ROWS:
            raise InvalidOption(
                f"These are more than {MOST_ROWS:,} rows, which are one transaction: restore them by --batch, or by "
                "shorter spans of --since and --until."
            )
    return found


def _check_ids(ids: list[int] | None, rows: dict[int, dict[str, Any]]) -> None:
    if missing := sorted(set(ids or ()) - set(rows)):
        shown = ", ".join(map(str, missing[:10]))
        raise InvalidOption(f"--ids: {len(missing):,} of them are not in the lake: {shown}. Nothing was restored.")


def _restored(pipeline: WithoutSpark, rows: dict[int, dict[str, Any]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    batches: set[int] = set()
    side_rows = SideRows(pipeline.store, pipeline.table.path, books.source_of(pipeline.store.alias))
    with transaction.atomic(using=pipeline.store.alias):
        for ids in _chunks(sorted(rows)):
            there = set(FinishedMessage.objects.filter(id__in=ids).values_list("id", flat=True))
            live = set(Message.objects.filter(id__in=ids).values_list("id", flat=True))
            fresh = [id_ for id_ in ids if id_ not in there and id_ not in live]
            FinishedMessage.objects.bulk_create([as_ended(rows[id_]) for id_ in fresh])
            side_rows.restore(fresh)
            counts.update(restored=len(fresh), there=len(there), live=len(live - there))
            batches |= {rows[id_]["batch"] for id_ in fresh}
        books.note_restored(batches, pipeline.store.now())
    return counts


def _chunks(ids: list[int]) -> Iterator[list[int]]:
    return (ids[first : first + INSERTED_AT_ONCE] for first in range(0, len(ids), INSERTED_AT_ONCE))


def _tell_of_pruning(pipeline: WithoutSpark, rows: dict[int, dict[str, Any]]) -> None:
    retention = get_settings().RETENTION
    if retention is None or not rows:
        return
    pruned = pipeline.store.now() - retention
    if any(row["finished_at"] < pruned and row["state"] != "failed" for row in rows.values()):
        pipeline.tell(
            f"  Workers prune what ended before {pruned:%Y-%m-%d %H:%M} UTC (RETENTION), except dead letters. It stays "
            "in the lake."
        )
