"""The order of the archive's steps, kept in `ArchiveBatch`: planned, written, verified, deleted.

Whoever archives holds a lease on the open batch and renews it; when he dies, the next one goes on where he was. Each
step is recorded under the lease's token, so a driver that lost its lease changes nothing any more. What it may still
write goes to a place that is never published, and what it may still delete was verified before.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import Q

from delayedq.exceptions import ArchiveBusy, ArchiveFailed
from delayedq.models import ArchiveBatch, ArchiveState, FinishedMessage
from delayedq.spark import archive
from delayedq.spark.lake import Lake, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from pyspark.sql import SparkSession

    from delayedq.spark.connecting import Address
    from delayedq.store.protocol import Store

LEASE = timedelta(seconds=60)
#: How many rows a batch has, more or less: those of one instant stay together.
BATCH_ROWS = 5_000_000
#: A copy that is not right is made again so often.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Archived:
    """A batch that is done. `deleted` is less than `row_count` if others deleted some meanwhile."""

    name: str
    row_count: int
    deleted: int


class Archiving:
    """Moves history to one lake. `tell` is called with a batch before each step."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        address: Address,
        path: str,
        tell: Callable[[ArchiveBatch], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._store = store
        self._address = address
        self._lake = Lake(spark, path)
        self._tell = tell

    def run(self, cutoff: datetime, batch_rows: int = BATCH_ROWS) -> Iterator[Archived]:
        """Finish the batch that somebody left open, then move all that finished before the cutoff.

        Raises ArchiveBusy if somebody else archives; ArchiveFailed if a batch can't be made to match the table;
        LakeUnusable.
        """
        self._lake.prepare()
        while self._open(cutoff, batch_rows):
            with self._held() as batch:
                yield self._finish(batch)

    # Who archives

    def _open(self, cutoff: datetime, batch_rows: int) -> bool:
        """Is there something to do? Plans a batch if none is open."""
        if ArchiveBatch.objects.filter(is_open=True).exists():
            return True
        cutoff_of_batch = _cutoff(cutoff, batch_rows)
        if cutoff_of_batch is None:
            return False
        now = self._store.now()
        name = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        try:
            with transaction.atomic(using=self._store.alias):
                ArchiveBatch.objects.create(name=name, lake=self._lake.path, cutoff=cutoff_of_batch, planned_at=now)
        except IntegrityError:
            raise ArchiveBusy("Somebody else has just begun to archive.") from None
        return True

    @contextmanager
    def _held(self) -> Iterator[ArchiveBatch]:
        """The open batch, under a lease that is renewed until the end of the block."""
        token, now = secrets.randbits(62), self._store.now()
        free = Q(leased_until__isnull=True) | Q(leased_until__lte=now)
        open_ = ArchiveBatch.objects.filter(free, is_open=True)
        if not open_.update(lease_token=token, leased_until=now + LEASE):
            raise ArchiveBusy("Somebody else archives. If he was killed, his lease ends within a minute.")
        with _renewed(self._store, token):
            try:
                batch = ArchiveBatch.objects.get(lease_token=token)
                if batch.lake != self._lake.path:
                    raise ArchiveFailed(f"Batch {batch.name} was begun for the lake {batch.lake}: finish it there.")
                yield batch
            finally:
                with suppress(DatabaseError):  # then the lease runs out by itself
                    ArchiveBatch.objects.filter(lease_token=token).update(leased_until=None)

    def _record(self, batch: ArchiveBatch, **changes: object) -> None:
        """Write down how far the batch is, if it is still ours."""
        if not ArchiveBatch.objects.filter(pk=batch.pk, lease_token=batch.lease_token).update(**changes):
            raise ArchiveBusy(f"Somebody else took over batch {batch.name}.")
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
        if batch.attempt:
            self._lake.clear(_place(batch))
        self._record(batch, attempt=batch.attempt + 1)
        archive.write(self._spark, self._address, self._lake, _place(batch), batch.cutoff)
        self._record(batch, state=ArchiveState.WRITTEN, written_at=self._store.now())

    def _verify(self, batch: ArchiveBatch) -> None:
        checksums = archive.verify(self._address, self._lake, _place(batch), batch.cutoff)
        if checksums is None:
            self._again(batch)
            return
        if checksums.row_count:
            self._lake.publish(_place(batch), checksums)
        known = {"row_count": checksums.row_count, "checksums": checksums._asdict()}
        self._record(batch, state=ArchiveState.VERIFIED, verified_at=self._store.now(), **known)

    def _again(self, batch: ArchiveBatch) -> None:
        """A row that was committed late, or deleted by somebody, makes the copy wrong. So does a broken disk."""
        self._record(batch, state=ArchiveState.PLANNED)
        if batch.attempt % ATTEMPTS == 0:
            raise ArchiveFailed(
                f"Batch {batch.name} was written {batch.attempt} times and never matched the table; all is still there."
            )

    def _delete(self, batch: ArchiveBatch) -> Archived:
        deleted = archive.delete(self._address, self._lake, _place(batch), batch.cutoff)
        done = {"state": ArchiveState.DELETED, "is_open": None, "deleted_at": self._store.now()}
        self._record(batch, **done)
        return Archived(batch.name, batch.row_count or 0, deleted)


def _place(batch: ArchiveBatch) -> Place:
    return Place(batch.name, batch.attempt)


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
            with suppress(DatabaseError):  # it may be back in time
                ArchiveBatch.objects.filter(lease_token=token).update(leased_until=store.now() + LEASE)
            connections[store.alias].close()

    thread = threading.Thread(target=renew, name="delayedq-archive-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
