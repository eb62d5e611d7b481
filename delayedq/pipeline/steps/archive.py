"""The step `archive`: history moves into the lake, in batches that are planned, written, verified and deleted.

The driver holds a lease on the open batch and renews it; when the driver is killed, the next one continues where it
stopped. Each state is recorded under the lease's token, so a driver that lost its lease changes nothing any more. What
it may still write goes to a place that is never published, and what it may still delete was verified before. The flows
that have ended, and the steps that messages have recorded, are copied and read back before messages are deleted.

Pruning keeps what finished before the cutoff of the open batch. A pruning that began before the batch was opened may
still delete such rows: then the copy and the table differ, and the copy is made again; or the copy is verified already,
and holds them.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import Q

from delayedq.conf import get_settings
from delayedq.exceptions import ArchiveBusy, ArchiveFailed
from delayedq.models import FinishedMessage
from delayedq.pipeline import books
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.spark import archive
from delayedq.pipeline.spark.archive import Copying
from delayedq.pipeline.spark.lake import Lake, Place
from delayedq.pipeline.steps.side_rows import SideRows
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from pyspark.sql import SparkSession

    from delayedq.pipeline.lake.snapshot import Snapshot
    from delayedq.pipeline.opening import Options, Pipeline
    from delayedq.pipeline.spark.connecting import Address
    from delayedq.store.base import Store

LEASE = timedelta(seconds=60)
#: How many rows a batch has, more or less: those of one instant stay together.
BATCH_ROWS = 5_000_000
#: After this many copies that did not match the table, the archive gives up.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Archived:
    """A batch that is done. `deleted` is less than `row_count` if others deleted some meanwhile."""

    name: str
    row_count: int
    deleted: int


class Archiving:
    """Moves history to one lake. `tell` is called with a batch before each step.

    here: the database as this process reaches it, if it may read and delete by itself what is little. staging: as Lake
    has it.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        address: Address,
        path: str,
        tell: Callable[[ArchiveBatch], None] = lambda _: None,
        here: Address | None = None,
        staging: str | None = None,
    ) -> None:
        self._spark = spark
        self._store = store
        self._address = address
        self._staging = staging
        self._lake = Lake(spark, path, staging)
        self._tell = tell
        self._here = here
        self._source = books.source_of(store.alias)

    def run(self, cutoff: datetime, batch_rows: int = BATCH_ROWS) -> Iterator[Archived]:
        """Finish the batch that was left open, then move all that finished before the cutoff.

        Raises ArchiveBusy if another process archives; ArchiveFailed if a batch can't be made to match the table;
        LakeUnusable.
        """
        if there := books.is_there(self._lake.table):
            books.check_source(self._lake.table, self._source)
        while self._open(cutoff, batch_rows):
            with self._held() as batch:
                if batch.lake != self._lake.path:
                    raise ArchiveFailed(
                        f"Batch {batch.name} was begun for the lake {batch.lake}: finish it there, or give it up with "
                        "`archive --abandon`."
                    )
                if not there:
                    self._lake.table.create()
                    there = True
                yield self._finish(batch)

    def abandon(self) -> ArchiveBatch | None:
        """Give up the open batch; None if there is none. Its rows stay in the table, and the next batch takes them.

        Raises ArchiveBusy; ArchiveFailed if the batch only has to be deleted, since readers of the lake see it.
        """
        if not ArchiveBatch.objects.filter(is_open=True).exists():
            return None
        with self._held() as batch:
            self._withdraw(batch, Lake(self._spark, batch.lake, self._staging))
            self._record(batch, state=ArchiveState.ABANDONED, is_open=None)
        return batch

    def _withdraw(self, batch: ArchiveBatch, lake: Lake) -> None:
        """Files that are published and can be read stay; the others are withdrawn, or no reader could read the lake."""
        while lake.table.exists():
            snapshot = lake.table.snapshot()
            published = snapshot.of(batch.directory)
            if published and not archive.is_intact(lake, self._place(batch)):
                if lake.table.replace(snapshot, published, [], withdrawn=batch.number):
                    return
                continue  # there is a newer version
            if batch.state == ArchiveState.VERIFIED and snapshot.last(self._source) >= batch.number:
                raise ArchiveFailed(f"Batch {batch.name} is verified and published: run `archive` to delete its rows.")
            return

    # Who archives

    def _open(self, cutoff: datetime, batch_rows: int) -> bool:
        """Is there something to do? Plans a batch if none is open."""
        if ArchiveBatch.objects.filter(is_open=True).exists():
            return True
        cutoff_of_batch = _cutoff(cutoff, batch_rows)
        if cutoff_of_batch is None:
            return False
        now = self._store.now()
        try:
            with transaction.atomic(using=self._store.alias):
                ArchiveBatch.objects.create(
                    name=books.new_name(now),
                    number=books.next_number(),
                    lake=self._lake.path,
                    cutoff=cutoff_of_batch,
                    planned_at=now,
                )
        except IntegrityError:
            raise ArchiveBusy("Another process has just begun to archive.") from None
        return True

    @contextmanager
    def _held(self) -> Iterator[ArchiveBatch]:
        """The open batch, under a lease that is renewed until the end of the block."""
        token, now = secrets.randbits(62), self._store.now()
        free = Q(leased_until__isnull=True) | Q(leased_until__lte=now)
        open_ = ArchiveBatch.objects.filter(free, is_open=True)
        if not open_.update(lease_token=token, leased_until=now + LEASE):
            raise ArchiveBusy("Another process archives. If it was killed, its lease ends within a minute.")
        with _renewed(self._store, token):
            try:
                yield ArchiveBatch.objects.get(lease_token=token)
            finally:
                with suppress(DatabaseError):  # then the lease runs out by itself
                    ArchiveBatch.objects.filter(lease_token=token).update(leased_until=None)

    def _record(self, batch: ArchiveBatch, **changes: object) -> None:
        """Write down how far the batch is, if it is still ours."""
        if not ArchiveBatch.objects.filter(pk=batch.pk, lease_token=batch.lease_token).update(**changes):
            raise ArchiveBusy(f"Another process took over batch {batch.name}.")
        for name, value in changes.items():
            setattr(batch, name, value)

    # The steps

    def _finish(self, batch: ArchiveBatch) -> Archived:
        while batch.state != ArchiveState.VERIFIED:
            self._tell(batch)
            if batch.state == ArchiveState.PLANNED:
                self._write(batch)
            else:
                self._verify(batch)
        self._tell(batch)
        return self._delete(batch)

    def _write(self, batch: ArchiveBatch) -> None:
        snapshot = self._lake.table.snapshot()
        if snapshot.last(self._source) >= batch.number:
            # By a run that this database knows nothing of, as after it was restored, or by one that was taken over:
            # what is published stays, and is not written once more.
            number, name = books.next_number(snapshot, self._source), books.new_name(self._store.now())
            self._record(batch, number=number, name=name, attempt=0)
        self._record(batch, attempt=batch.attempt + 1)
        archive.write(self._copying(batch, snapshot, self._known(batch, snapshot)))
        self._record(batch, state=ArchiveState.WRITTEN, written_at=self._store.now())

    def _place(self, batch: ArchiveBatch) -> Place:
        return Place(self._source, batch.number, batch.directory)

    def _known(self, batch: ArchiveBatch, snapshot: Snapshot) -> list[int]:
        """The batches whose rows may be in the table too, beside this one."""
        numbers = books.in_both(snapshot, self._source, set(books.settled()))
        return [number for number in numbers if number != batch.number or not snapshot.of(batch.directory)]

    def _copying(self, batch: ArchiveBatch, snapshot: Snapshot, known: list[int]) -> Copying:
        place, masked = self._place(batch), _masked_tasks()
        return Copying(self._spark, self._address, self._lake, place, batch.cutoff, snapshot, known, self._here, masked)

    def _verify(self, batch: ArchiveBatch) -> None:
        snapshot = self._lake.table.snapshot()
        known = self._known(batch, snapshot)
        verified = archive.verify(self._copying(batch, snapshot, known))
        if verified is None or not self._publish(batch, snapshot, verified):
            self._again(batch)
            return
        checksums = verified.own._asdict() | {"known": known}
        counted = {"row_count": verified.row_count, "checksums": checksums}
        self._record(batch, state=ArchiveState.VERIFIED, verified_at=self._store.now(), **counted)

    def _publish(self, batch: ArchiveBatch, snapshot: Snapshot, verified: archive.Verified) -> bool:
        """False if another process has published meanwhile: the copy no longer says what is missing in the lake."""
        if not verified.own.row_count or snapshot.of(batch.directory):
            return True
        about = {"rows": verified.own.row_count, "digest": verified.own.digest, "directory": batch.directory}
        return self._lake.table.publish(snapshot, self._source, batch.number, verified.files, **about)

    def _again(self, batch: ArchiveBatch) -> None:
        """A row that was committed late, or deleted meanwhile, makes the copy wrong. So does a broken disk."""
        self._record(batch, state=ArchiveState.PLANNED)
        if batch.attempt % ATTEMPTS == 0:
            raise ArchiveFailed(
                f"Batch {batch.name} was written {batch.attempt} times and never matched the table; all is still there."
            )

    def _delete(self, batch: ArchiveBatch) -> Archived:
        assert batch.checksums is not None  # it is verified
        copying = self._copying(batch, self._lake.table.snapshot(), batch.checksums["known"])
        restored = books.restored(copying.known)
        sides = SideRows(self._store, batch.lake, self._source, copying.masked)
        sides.copy(batch.number, batch.cutoff, books.copied_until(batch.lake))
        deleted = archive.delete(copying, batch.row_count or 0)
        self._record(batch, state=ArchiveState.DELETED, is_open=None, deleted_at=self._store.now())
        if copying.known:
            books.settle(archive.ends(copying), restored, batch)
        return Archived(batch.name, batch.row_count or 0, deleted)


def _cutoff(cutoff: datetime, batch_rows: int) -> datetime | None:
    """The cutoff of the next batch; None if nothing finished before the given one."""
    before = FinishedMessage.objects.filter(finished_at__lt=cutoff).order_by("finished_at")
    times = before.values_list("finished_at", flat=True)
    first = times.first()
    if first is None:
        return None
    # What finished first is in the batch, all of it, however many that are.
    later = times.filter(finished_at__gt=first)
    boundary = times[batch_rows : batch_rows + 1].first()
    return (boundary if boundary is None or boundary > first else later.first()) or cutoff


@contextmanager
def _renewed(store: Store, token: int) -> Iterator[None]:
    """Renew the lease from a thread of its own, which Spark's long calls don't hold up."""
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(LEASE.total_seconds() / 3):
            with suppress(DatabaseError):  # the database may be back before the lease ends
                ArchiveBatch.objects.filter(lease_token=token).update(leased_until=store.now() + LEASE)
            connections[store.alias].close()

    thread = threading.Thread(target=renew, name="delayedq-archive-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def run_archive(pipeline: Pipeline, options: Options) -> None:
    """Move all history that is old enough. Raises ArchiveBusy, ArchiveFailed, LakeUnusable, InvalidOption."""
    path, places = pipeline.lake.path, (pipeline.here, pipeline.staging)
    archiving = Archiving(pipeline.spark, pipeline.store, pipeline.address, path, partial(_tell, pipeline), *places)
    if options["abandon"]:
        batch = archiving.abandon()
        pipeline.tell(f"Batch {batch.name} is given up; its rows are in the table." if batch else "No batch is open.")
        return
    older_than = options["older_than"]
    cutoff = pipeline.store.now() - (get_settings().ARCHIVE_AFTER if older_than is None else older_than)
    moved = 0
    for done in archiving.run(cutoff, options["batch_rows"] or BATCH_ROWS):
        moved += done.row_count
        pipeline.tell(f"Batch {done.name}: {done.row_count:,} messages are in the lake, {done.deleted:,} rows deleted.")
    if not moved:
        pipeline.tell(f"Nothing ended before {cutoff:%Y-%m-%d %H:%M:%S} UTC.")


_NEXT = {
    ArchiveState.PLANNED: "writing what ended before",
    ArchiveState.WRITTEN: "reading back what ended before",
    ArchiveState.VERIFIED: "deleting what ended before",
}


def _tell(pipeline: Pipeline, batch: ArchiveBatch) -> None:
    step = _NEXT[ArchiveState(batch.state)]
    pipeline.tell(f"Batch {batch.name}: {step} {batch.cutoff:%Y-%m-%d %H:%M:%S} UTC ...")


def _masked_tasks() -> list[str]:
    """The tasks whose arguments and results the archive masks."""
    if get_settings().ARCHIVE_SENSITIVE == "plain":
        return []
    return sorted(kind for kind, task in registered.items() if task.sensitive)
