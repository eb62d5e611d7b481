"""The books of the archive against the table of the lake: which batches moved, and whose rows may be in both.

A number is of one batch of this database, in whatever lake. A batch is *settled* when its rows are deleted from the
database, and none was restored since that began. Readers of both look for the rows of all others on both sides.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import DateTimeField, F, Max, Q, Value
from django.db.models.functions import Coalesce, Greatest

from delayedq.conf import get_settings
from delayedq.exceptions import LakeUnusable
from delayedq.models import FinishedMessage
from delayedq.pipeline.address import database_name
from delayedq.pipeline.lake.parquet_files import as_dicts
from delayedq.pipeline.lake.rows import WantedRows, read
from delayedq.pipeline.lake.side_table import Flows
from delayedq.pipeline.lake.table import others
from delayedq.pipeline.models import ArchiveBatch, ArchiveState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from delayedq.pipeline.lake.table import LakeTable, Snapshot

    #: By the number of each settled batch: when rows of it were last restored, if ever.
    Settled = dict[int, datetime | None]

#: Batches that readers of the lake see.
PUBLISHED = (ArchiveState.VERIFIED, ArchiveState.DELETING, ArchiveState.DELETED)
#: So long a transaction that ends a flow may take.
LATE = timedelta(days=1)
#: How many rows tell whether the lake is of this database.
_COMPARED = 100


def source_of(alias: str) -> str:
    """What the rows of this database are told by, in a lake that several share: LAKE_SOURCE, or the database's name."""
    return get_settings().LAKE_SOURCE or database_name(alias)


def settled() -> Settled:
    """The batches that are settled now. A database that was restored from a backup knows fewer of them."""
    kept = Q(restored_at__isnull=True) | Q(deleted_at__gt=F("restored_at"))
    return dict(ArchiveBatch.objects.filter(kept, state=ArchiveState.DELETED).values_list("number", "restored_at"))


def still_settled(before: Settled) -> set[int]:
    """Those of the batches that were settled before of which no row was restored since."""
    now = dict(ArchiveBatch.objects.values_list("number", "restored_at"))
    return {number for number, restored_at in before.items() if now.get(number) == restored_at}


def in_both(table: LakeTable, snapshot: Snapshot, source: str, settled: set[int]) -> list[int]:
    """The published batches of this database whose rows may be in it, too; none if no file has rows of them.

    The bounds of a file that a compaction wrote have numbers between them of which it has no row, as of a batch that
    was given up: of those the column of the file tells. Raises LakeUnusable.
    """
    numbers = others(snapshot.last(source), settled)
    if not numbers or not snapshot.chosen(source=[source], batch=numbers):
        return []
    archived = ArchiveBatch.objects.filter(number__in=numbers).exclude(state=ArchiveState.ABANDONED)
    doubtful = set(numbers).difference(archived.values_list("number", flat=True))
    absent = doubtful - _with_rows(table, snapshot, source, doubtful) if doubtful else set()
    numbers = [number for number in numbers if number not in absent]
    return numbers if numbers and snapshot.chosen(source=[source], batch=numbers) else []


def _with_rows(table: LakeTable, snapshot: Snapshot, source: str, numbers: set[int]) -> set[int]:
    """Those of the batches that have rows in the lake."""
    wanted = WantedRows(values={"source": [source], "batch": numbers})
    parts = read(table, wanted.files(snapshot), wanted, ["batch"])
    return {number for part in parts for number in part["batch"].unique().to_pylist()}


def replaced(last: int) -> dict[int, list[dict[str, Any]]]:
    """By the number of a batch: the checksums of what later batches, up to the number `last`, have replaced of it."""
    found: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for checksums in ArchiveBatch.objects.filter(number__lte=last).values_list("checksums", flat=True):
        for number, sums in (checksums or {}).get("replaced", {}).items():
            found[int(number)].append(sums)
    return found


def note_restored(numbers: Collection[int], now: datetime) -> None:
    """Rows of these batches are in the table again, in the transaction that puts them there.

    It is never earlier than the last deletion: the clocks of two hosts differ, and that of one may be set back.
    """
    moment = Value(now, DateTimeField())
    latest = Greatest(Coalesce("deleted_at", moment), moment)
    ArchiveBatch.objects.filter(number__in=numbers).update(restored_at=latest)


def deleted_at(now: datetime, restored_at: datetime | None) -> datetime:
    """When the deletion of rows began that were last restored then: later, whatever the clocks say."""
    return now if restored_at is None else max(now, restored_at + timedelta(microseconds=1))


def restored(numbers: Collection[int]) -> Settled:
    """By their numbers: when rows of these batches were last restored, if ever; only of those that the books have."""
    return dict(ArchiveBatch.objects.filter(number__in=numbers).values_list("number", "restored_at"))


def settle(ends: Mapping[int, tuple[int, datetime]], restored: Settled, done: ArchiveBatch) -> None:
    """Rows of these batches were in the table too, and went with the batch that is done.

    ends: by their numbers, how many rows they have in the lake, and when the last of them ended: a batch that ends
    after the cutoff may have more in the table. restored: as they were before the deletion.
    """
    for number, (count, last) in ends.items():
        if last >= done.cutoff:
            continue
        if number in restored:
            assert done.deleted_at is not None  # it is done
            before = restored[number]
            same = ArchiveBatch.objects.filter(number=number, state=ArchiveState.DELETED, restored_at=before)
            same.update(deleted_at=deleted_at(done.deleted_at, before))
        else:  # this database knew nothing of it, as after it was restored
            known = {"lake": done.lake, "cutoff": done.cutoff, "planned_at": done.planned_at}
            ended = {"state": ArchiveState.DELETED, "is_open": None, "deleted_at": done.deleted_at, "row_count": count}
            ArchiveBatch.objects.create(name=f"{done.name}-found-{number}", number=number, **known, **ended)


def copied_until(lake: str) -> datetime | None:
    """The flows of this database that ended before are in this lake; None if no moment is known.

    LATE before the latest cutoff of a batch that is done: the end of a flow is stamped before it is committed.
    """
    if not Flows(lake).exists():
        return None
    done = ArchiveBatch.objects.filter(lake=lake, state=ArchiveState.DELETED)
    last = done.aggregate(last=Max("cutoff"))["last"]
    return None if last is None else last - LATE


def next_number(snapshot: Snapshot | None = None, source: str = "") -> int:
    """A number that no batch of this database has, neither here nor, as far as the snapshot shows, in the lake."""
    last = ArchiveBatch.objects.aggregate(last=Max("number"))["last"] or 0
    return 1 + max(last, snapshot.last(source) if snapshot else 0)


def new_name(now: datetime) -> str:
    """A name that no batch has, of any database."""
    return f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def check_source(table: LakeTable, source: str) -> None:
    """Raises LakeUnusable if the lake has rows of another database that is called like this one.

    Only one that has never archived may be another. It is the same if it has any of the lake's rows among those that
    it would archive first, as after it was restored from an early backup.
    """
    if ArchiveBatch.objects.filter(state__in=PUBLISHED).exists():
        return
    snapshot = table.snapshot()
    if not snapshot.last(source):
        return
    first = FinishedMessage.objects.order_by("finished_at")[:_COMPARED]
    ends = set(first.values_list("id", "finished_at"))
    wanted = WantedRows(values={"source": [source], "id": [id_ for id_, _ in ends]})
    for rows in read(table, wanted.files(snapshot), wanted, ["id", "finished_at"]):
        if not ends.isdisjoint((row["id"], row["finished_at"]) for row in as_dicts(table.path, rows)):
            return
    raise LakeUnusable(
        f"The lake at {table.path} holds messages of another database that is called {source!r}, too: this one has "
        "never archived, and has none of them. Give it a name of its own with DELAYEDQ['LAKE_SOURCE']."
    )


def lacking(table: LakeTable, source: str) -> tuple[int, int] | None:
    """The last batch of this database that the lake has, and the last one that these books have of it, if that is a
    later one, as after the lake was restored from an early backup. Raises LakeUnusable.
    """
    published = ArchiveBatch.published(table.path).filter(checksums__row_count__gt=0)
    booked, last = published.aggregate(last=Max("number"))["last"] or 0, table.snapshot().last(source)
    return (last, booked) if last < booked else None


def is_there(table: LakeTable) -> bool:
    """Is there a lake? False: it can be made. Raises LakeUnusable, also if history was moved to a lake that is gone."""
    if table.check():
        return True
    published = ArchiveBatch.published(table.path).values_list("state", flat=True)
    if published:
        verified = ArchiveState.VERIFIED in published
        raise LakeUnusable(
            f"There is no lake at {table.path}, and {len(published):,} batches of history are in it: make it reachable "
            "again. If it was moved, say where it is now (DELAYEDQ['LAKE'] or --lake)."
            + (" `archive --abandon` gives up the open batch, whose rows are in the table." if verified else "")
        )
    return False
