"""The step `archive`: history moves into the lake, in batches that are planned, written, verified and deleted.

The driver holds a lease on the open batch and renews it; when the driver is killed, the next one continues where it
stopped. Each state is recorded under the lease's token, so a driver that lost its lease changes nothing any more. What
it may still write goes to a place that is never published, and what it may still delete was verified before. The flows
that have ended, and the steps that messages have recorded, are copied and read back before messages are deleted.

A batch that has begun to delete is never withdrawn. If some of its files are damaged by then, the rows of the others
are deleted, and `archive --abandon` gives up the damaged ones alone, and says how many rows are lost with them. The
same holds for rows that the lake no longer has, as after it was restored from an early backup.

A row that was changed while it was archived stays in the table. The next batch writes it once more; in the lake the
newer version takes the place of the older one, which is in none but former versions of the table.

Pruning keeps what finished before the cutoff of the open batch. A pruning that began before the batch was opened may
still delete such rows: then the copy and the table differ, and the copy is made again; or the copy is verified already,
and holds them.
"""

from __future__ import annotations

import json
import secrets
import shlex
import threading
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import OuterRef, Q

from delayedq.conf import get_settings
from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.core.instants import instant
from delayedq.core.masking import MASKED
from delayedq.exceptions import ArchiveBusy, ArchiveFailed, LakeUnusable
from delayedq.flows.rules import number_of, numbers
from delayedq.models import FinishedMessage, Flow, FlowStep, RecordedStep
from delayedq.pipeline import books
from delayedq.pipeline.lake.damage import damaged
from delayedq.pipeline.lake.side_table import Flows, RecordedSteps
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.spark import archive
from delayedq.pipeline.spark.archive import Copying, Deleted
from delayedq.pipeline.spark.lake import BatchPlace, Lake
from delayedq.pipeline.spark.measuring import Checksums, checksums_of
from delayedq.pipeline.spark.session import READ_ERRORS
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from django.db.models import QuerySet
    from pyspark.sql import SparkSession

    from delayedq.pipeline.lake.table import DataFile, Snapshot
    from delayedq.pipeline.opening import Options, Pipeline
    from delayedq.pipeline.spark.connecting import Address
    from delayedq.store.base import Store

# What goes into the lake beside the messages of a batch, before these are deleted from the table.
#
# Flows are copied, and stay in the database as long as `RETENTION` says; recorded steps go with their messages.


#: Rows that are held, and become one file of a table, at once.
PAGE = 10_000

#: Flows, whose steps are held with them.
FLOWS = 1_000

_OF_A_FLOW = ("id", "name", "policy", "created_at", "deadline_at", "stopped_at", "ended_at")


class SideRows:
    """The flows and the recorded steps of one database, on their way into one lake.

    masked: the tasks whose results are masked in the lake.
    """

    def __init__(self, store: Store, lake: str, source: str, masked: Collection[str] = ()) -> None:
        self._alias = store.alias
        self._lake = lake
        self._source = source
        self._masked = frozenset(masked)

    def copy(self, batch: int, cutoff: datetime, since: datetime | None = None) -> None:
        """Copy what has ended before the cutoff and is not in the lake; read all of it back. Raises LakeUnusable.

        since: flows that ended before have been copied (None: no moment is known). Their rows stay in the database.
        """
        flows = Flow.objects.using(self._alias).filter(ended_at__lt=cutoff)
        if since is not None:
            flows = flows.filter(ended_at__gte=since)
        for page in _pages(flows.values("outcome", *_OF_A_FLOW), FLOWS):
            Flows(self._lake).add(self._source, batch, self._flow_rows(page))
        ended = FinishedMessage.objects.using(self._alias).filter(id=OuterRef("message_id"), finished_at__lt=cutoff)
        steps = RecordedStep.objects.using(self._alias).annotate(kind=ended.values("kind")[:1])
        for page in _pages(steps.filter(kind__isnull=False).values("id", *RecordedSteps.columns), PAGE):
            RecordedSteps(self._lake).add(self._source, batch, [self._step_row(row) for row in page])

    def restore(self, ids: Sequence[int]) -> None:
        """Within the transaction that puts these messages back: their recorded steps, unless they were masked."""
        found = RecordedSteps(self._lake).rows(self._source, ids)
        for row in found:
            _check_step(row)
        names = [name for name in RecordedSteps.columns if name != "kind"]
        found.sort(key=lambda row: row["recorded_at"])
        steps = [RecordedStep(**{name: row[name] for name in names}) for row in found if row["result"] != MASKED]
        RecordedStep.objects.using(self._alias).bulk_create(steps, ignore_conflicts=True)

    def _flow_rows(self, flows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        steps = defaultdict(list)
        for row in (
            FlowStep.objects.using(self._alias).filter(flow_id__in=[flow["id"] for flow in flows]).order_by("id")
        ):
            steps[row.flow_id].append(_of_a_step(row))
        return [
            {name: flow[name] for name in _OF_A_FLOW}
            | {"state": flow["outcome"], "steps": json.dumps(steps[flow["id"]], ensure_ascii=False)}
            for flow in flows
        ]

    def _step_row(self, row: dict[str, Any]) -> dict[str, Any]:
        masked = {"result": MASKED} if row["kind"] in self._masked else {}
        return {name: row[name] for name in RecordedSteps.columns} | masked


def _check_step(row: Mapping[str, Any]) -> None:
    """Raises LakeUnusable: with `ignore_conflicts`, MySQL would cut what is too long, and pass over NULL."""
    empty = [name for name in RecordedSteps.columns if name != "kind" and row[name] is None]
    if empty or len(row["name"]) > NAME_LENGTH or not is_storable(row["name"] + row["result"]):
        raise LakeUnusable(
            f"A recorded step of message {row['message_id']} was not written by delayedq, and can't be put back: "
            + (f"its {empty[0]} is NULL." if empty else "it has a NUL in it, or too long a name.")
        )


def _of_a_step(row: FlowStep) -> dict[str, Any]:
    moments = {"released_at": row.released_at, "ended_at": row.ended_at}
    return {
        "number": number_of(row.pk),
        "name": row.name,
        "state": row.state,
        "after": numbers(row.after),
        "when": row.runs_when,
        "kind": row.kind,
        "is_group": row.is_group,
        "size": row.size,
        **{name: None if moment is None else moment.isoformat() for name, moment in moments.items()},
    }


def _pages(rows: QuerySet[Any, dict[str, Any]], limit: int) -> Iterator[list[dict[str, Any]]]:
    """By primary key."""
    rows = rows.order_by("id")
    page = list(rows[:limit])
    while page:
        yield page
        page = list(rows.filter(id__gt=page[-1]["id"])[:limit])


# Archive


LEASE = timedelta(seconds=60)

#: How many rows a batch has, more or less: those of one instant stay together.
BATCH_ROWS = 5_000_000

#: After this many copies that did not match the table, the archive gives up.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ArchivedBatch:
    """A batch that is done. `deleted` is less than `row_count` if others deleted or changed some meanwhile.

    changed: how many were changed since they were verified, and stay for the next batch; some: ids of these. added: how
    many the lake did not have before; replaced: how many older versions of these it had, and no longer has.
    """

    name: str
    row_count: int
    deleted: int
    changed: int = 0
    some: tuple[int, ...] = ()
    added: int = 0
    replaced: int = 0


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A batch that was given up. Of one that had begun to delete, damaged: the files that were withdrawn from the lake;
    missing: how many of its rows the lake lacked; lost: how many of all these are not in the table either.
    """

    batch: ArchiveBatch
    damaged: tuple[str, ...] = ()
    lost: int = 0
    missing: int = 0


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
        self.source = books.source_of(store.alias)

    def run(self, cutoff: datetime, batch_rows: int = BATCH_ROWS) -> Iterator[ArchivedBatch]:
        """Finish the batch that was left open, then move all that finished before the cutoff.

        Raises ArchiveBusy if another process archives; ArchiveFailed if a batch can't be made to match the table;
        LakeUnusable.
        """
        if there := books.is_there(self._lake.table):
            books.check_source(self._lake.table, self.source)
        while self._open(cutoff, batch_rows):
            with self._held() as batch:
                if batch.lake != self._lake.path:
                    self._follow(batch, there)
                if not there:
                    self._lake.table.create()
                    there = True
                done = self._finish(batch)
                if done.changed and not done.deleted and not done.added:
                    raise ArchiveFailed(_immovable(done))
                yield done

    def _follow(self, batch: ArchiveBatch, there: bool) -> None:
        """Its lake was moved here: go on with it. Raises ArchiveFailed unless what it has published is here."""
        if not there or batch.state not in books.PUBLISHED or self._missing(batch, self._lake):
            raise ArchiveFailed(
                f"Batch {batch.name} was begun for the lake {batch.lake}, and is not in {self._lake.path}: finish it "
                f"with `archive --lake {shlex.quote(batch.lake)}`, or give it up with `archive --abandon`."
            )
        self._record(batch, lake=self._lake.path)

    def abandon(self) -> GivenUp | None:
        """Give up the open batch; None if there is none. Its rows stay in the table, and the next batch takes them.

        Of a batch that has begun to delete only what is damaged or missing in the lake is given up. Raises ArchiveBusy;
        LakeUnusable if the lake does not answer; ArchiveFailed if the batch only has to be deleted.
        """
        if not ArchiveBatch.objects.filter(is_open=True).exists():
            return None
        with self._held() as batch:
            lake = self._lake = Lake(self._spark, batch.lake, self._staging)
            if self._has_deleted(batch):
                return self._give_up_files(batch, lake)
            self._withdraw(batch, lake)
            self._record(batch, state=ArchiveState.ABANDONED, is_open=None)
            return GivenUp(batch)

    def _has_deleted(self, batch: ArchiveBatch) -> bool:
        """May rows of it be gone from the table? Those of a verified batch may be, as by a pruning."""
        if batch.state != ArchiveState.VERIFIED:
            return batch.state == ArchiveState.DELETING
        return FinishedMessage.objects.filter(finished_at__lt=batch.cutoff).count() < (batch.row_count or 0)

    def _withdraw(self, batch: ArchiveBatch, lake: Lake) -> None:
        """All rows are in the table. Files that are published and can be read stay; the others are withdrawn, or no
        reader could read the lake.
        """
        while lake.table.exists():
            snapshot = lake.table.snapshot()
            published = snapshot.of(batch.directory)
            if published and damaged(lake.table, published):
                if lake.table.replace(snapshot, published, [], withdrawn=batch.number):
                    return
                continue  # there is a newer version
            if batch.state == ArchiveState.VERIFIED and published and not self._missing(batch, lake):
                raise ArchiveFailed(f"Batch {batch.name} is verified and published: run `archive` to delete its rows.")
            return

    def _give_up_files(self, batch: ArchiveBatch, lake: Lake) -> GivenUp:
        """Complete the deletion with the intact files, and withdraw those that are damaged."""
        books.is_there(lake.table)
        spoiled = damaged(lake.table, self._files(batch, lake))
        shared = [file.path for file in spoiled if not file.holds_only("batch", batch.number)]
        if shared:
            raise ArchiveFailed(
                f"{', '.join(shared)} of {lake.path} is damaged, and holds rows of other batches, too. Restore it from "
                "a backup, and run `archive`."
            )
        missing = self._missing(batch, lake)
        if not spoiled and not missing:
            raise ArchiveFailed(
                f"Batch {batch.name} has begun to delete its rows, and its files are intact: run `archive` to complete "
                "it."
            )
        deleted = self._delete_from(batch, lake, spoiled)
        kept = self._in_table(batch, [] if missing else spoiled, deleted.some)
        lost = max(0, missing + sum(file.rows for file in spoiled) - kept)
        paths = tuple(file.path for file in spoiled)
        while spoiled and not lake.table.replace(lake.table.snapshot(), spoiled, [], withdrawn=batch.number):
            pass  # there is a newer version
        sums = checksums_of(self._copying(batch, lake.table.snapshot(), ()).own())
        checksums = {**(batch.checksums or {}), **sums._asdict(), "lost": lost, "damaged": list(paths)}
        self._record(batch, checksums=checksums, **self._ended(batch, deleted))
        return GivenUp(batch, paths, lost, missing)

    def _missing(self, batch: ArchiveBatch, lake: Lake) -> int:
        """How many rows of the batch, which is published, the lake no longer has, as after it was restored from an
        early backup.
        """
        copying = self._copying(batch, lake.table.snapshot(), ())
        return max(0, booked(batch).row_count - copying.published())

    @staticmethod
    def _in_table(batch: ArchiveBatch, files: Sequence[DataFile], but: Sequence[int]) -> int:
        """How many rows of the table these files may have held; without files, the batch. but: ids of rows that other
        files hold, and that stay, too.
        """
        sums = booked(batch)
        bounds = Q() if files else Q(finished_at__range=(instant(sums.first), instant(sums.last)))
        for file in files:
            ids, ends = (file.least["id"], file.most["id"]), (file.least["finished_at"], file.most["finished_at"])
            bounds |= Q(id__range=ids, finished_at__range=ends)
        return FinishedMessage.objects.filter(bounds, finished_at__lt=batch.cutoff).exclude(id__in=but).count()

    def _files(self, batch: ArchiveBatch, lake: Lake) -> list[DataFile]:
        """The published files that hold rows of the batch."""
        return lake.table.snapshot().chosen(source=[self.source], batch=[batch.number])

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
            raise ArchiveBusy(
                "Another process archives: run it again later. If it was killed, its lease ends in a minute."
            )
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

    def _finish(self, batch: ArchiveBatch) -> ArchivedBatch:
        while batch.state not in {ArchiveState.VERIFIED, ArchiveState.DELETING}:
            self._tell(batch)
            if batch.state == ArchiveState.PLANNED:
                self._write(batch)
            else:
                self._verify(batch)
        self._tell(batch)
        return self._delete(batch)

    def _write(self, batch: ArchiveBatch) -> None:
        snapshot = self._lake.table.snapshot()
        if snapshot.last(self.source) >= batch.number:
            # By a run that this database knows nothing of, as after it was restored, or by one that was taken over:
            # what is published stays, and is not written once more.
            number, name = books.next_number(snapshot, self.source), books.new_name(self._store.now())
            self._record(batch, number=number, name=name, attempt=0)
        self._record(batch, attempt=batch.attempt + 1)
        archive.write(self._copying(batch, snapshot, self._known(batch, snapshot)))
        self._record(batch, state=ArchiveState.WRITTEN, written_at=self._store.now())

    def _place(self, batch: ArchiveBatch) -> BatchPlace:
        return BatchPlace(self.source, batch.number, batch.directory)

    def _known(self, batch: ArchiveBatch, snapshot: Snapshot) -> list[int]:
        """The batches whose rows may be in the table too, beside this one."""
        numbers = books.in_both(self._lake.table, snapshot, self.source, set(books.settled()))
        return [number for number in numbers if number != batch.number or not snapshot.of(batch.directory)]

    def _copying(self, batch: ArchiveBatch, snapshot: Snapshot, known: Sequence[int]) -> Copying:
        place, masked = self._place(batch), _masked_tasks()
        return Copying(self._spark, self._address, self._lake, place, batch.cutoff, snapshot, known, self._here, masked)

    def _verify(self, batch: ArchiveBatch) -> None:
        snapshot = self._lake.table.snapshot()
        known = self._known(batch, snapshot)
        copying = self._copying(batch, snapshot, known)
        verified = archive.verify(copying)
        if verified is None or not self._publish(batch, copying, verified):
            self._again(batch)
            return
        replaced = (batch.checksums or {}).get("replaced", {})
        checksums = verified.own._asdict() | {"known": known, "replaced": replaced, "masked": copying.masked}
        counted = {"row_count": verified.row_count, "checksums": checksums}
        self._record(batch, state=ArchiveState.VERIFIED, verified_at=self._store.now(), **counted)

    def _publish(self, batch: ArchiveBatch, copying: Copying, verified: archive.Verified) -> bool:
        """False if another process has published meanwhile: the copy no longer says what is missing in the lake.

        What is replaced is written down first: when the files count, the books of the older batches already say so.
        """
        snapshot = copying.snapshot
        if not verified.own.row_count or snapshot.of(batch.directory):
            return True
        books.check_source(self._lake.table, self.source)  # another database may have begun at the same time
        replaced = {number: sums._asdict() for number, sums in verified.replaced.items()}
        self._record(batch, checksums={"replaced": replaced})
        others = archive.rest(copying, verified.former) if replaced else archive.Rest([], [])
        about = {"rows": verified.own.row_count, "digest": verified.own.digest, "directory": batch.directory}
        return self._lake.table.publish(snapshot, self.source, batch.number, verified.files, others, **about)

    def _again(self, batch: ArchiveBatch) -> None:
        """A row that was committed late, or deleted meanwhile, makes the copy wrong. So does a broken disk."""
        self._record(batch, state=ArchiveState.PLANNED)
        if batch.attempt % ATTEMPTS == 0:
            raise ArchiveFailed(
                f"Batch {batch.name} was written {batch.attempt} times and never matched the table; all is still "
                "there. Run `archive` again when its rows no longer change, or give it up with `archive --abandon`."
            )

    def _delete(self, batch: ArchiveBatch) -> ArchivedBatch:
        assert batch.checksums is not None  # it is verified
        known = batch.checksums["known"]
        restored = books.restored(known)
        try:
            if missing := self._missing(batch, self._lake):
                raise self._incomplete(batch, missing)
            deleted = self._delete_from(batch, self._lake)
        except READ_ERRORS as error:
            spoiled = damaged(self._lake.table, self._files(batch, self._lake))
            if not spoiled:
                raise  # an outage
            self._delete_from(batch, self._lake, spoiled)
            raise self._damaged(batch, spoiled) from error
        self._record(batch, **self._ended(batch, deleted))
        if known and not deleted.changed:
            copying = self._copying(batch, self._lake.table.snapshot(), known)
            books.settle(archive.ends(copying), restored, batch)
        replaced = sum(sums["row_count"] for sums in batch.checksums.get("replaced", {}).values())
        return ArchivedBatch(batch.name, batch.row_count or 0, *deleted, batch.checksums["row_count"], replaced)

    def _delete_from(self, batch: ArchiveBatch, lake: Lake, without: Sequence[DataFile] = ()) -> Deleted:
        """Delete the rows that the files of the batch hold, without those that are damaged."""
        checksums = batch.checksums or {}
        copying = self._copying(batch, lake.table.snapshot(), checksums["known"])
        copying = replace(copying, masked=sorted({*copying.masked, *checksums.get("masked", ())}))
        sides = SideRows(self._store, batch.lake, self.source, copying.masked)
        sides.copy(batch.number, batch.cutoff, books.copied_until(batch.lake))
        # What is restored from now on may stay in the table: see `books.note_restored`.
        begun = books.deleted_at(self._store.now(), batch.restored_at)
        self._record(batch, state=ArchiveState.DELETING, deleted_at=begun)
        intact = [file for file in self._files(batch, lake) if file not in without] if without else None
        return archive.delete(copying, batch.row_count or 0, intact)

    @staticmethod
    def _ended(batch: ArchiveBatch, deleted: Deleted) -> dict[str, object]:
        """What is recorded at the end. Rows that were changed are in the table, too, as if they had been restored."""
        ended = {"state": ArchiveState.DELETED, "is_open": None}
        return ended | ({"restored_at": batch.deleted_at} if deleted.changed else {})

    @staticmethod
    def _incomplete(batch: ArchiveBatch, missing: int) -> ArchiveFailed:
        return ArchiveFailed(
            f"The lake at {batch.lake} lacks {missing:,} rows that batch {batch.name} has published. No row was "
            "deleted now. Restore the lake from a newer backup and run `archive` again, or give these rows up with "
            "`archive --abandon`."
        )

    @staticmethod
    def _damaged(batch: ArchiveBatch, files: Sequence[DataFile]) -> ArchiveFailed:
        paths = ", ".join(file.path for file in files)
        return ArchiveFailed(
            f"Batch {batch.name} has begun to delete its rows, and {len(files):,} of its files are damaged, with "
            f"{sum(file.rows for file in files):,} rows: {paths}. The rows of the other files are deleted. "
            "Restore these files from a backup and run `archive` again, or give them up with `archive --abandon`."
        )


def booked(batch: ArchiveBatch) -> Checksums:
    """What its files held when they were verified. Raises ArchiveFailed if the books say something else."""
    kept = batch.checksums if isinstance(batch.checksums, dict) else {}
    given = Checksums(**{name: kept.get(name) for name in Checksums._fields})  # type: ignore[arg-type]
    if not all(type(value) is type(usual) for value, usual in zip(given, Checksums(), strict=True)):
        raise ArchiveFailed(
            f"The books of batch {batch.name} say no checksums that delayedq has written: restore its row of "
            "delayedq_pipeline_archivebatch from a backup of the database."
        )
    return given


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
    telling = _Telling(pipeline)
    archiving = Archiving(pipeline.spark, pipeline.store, pipeline.address, path, telling, *places)
    if options["abandon"]:
        pipeline.tell(_given_up(archiving.abandon()))
        return
    if books.is_there(pipeline.lake.table) and (lacking := books.lacking(pipeline.lake.table, archiving.source)):
        pipeline.tell(
            f"The lake at {path} has batches of this database up to {lacking[0]}, and the books up to {lacking[1]}: it "
            "may be an early backup. `run_pipeline check` tells what is missing; restore a newer one if there is any."
        )
    older_than = options["older_than"]
    cutoff = pipeline.store.now() - (get_settings().ARCHIVE_AFTER if older_than is None else older_than)
    batch_rows, moved = options["batch_rows"] or BATCH_ROWS, 0
    telling.expect(ceil(FinishedMessage.objects.filter(finished_at__lt=cutoff).count() / batch_rows))
    for done in archiving.run(cutoff, batch_rows):
        moved += done.row_count
        pipeline.tell(f"Batch {done.name}: {done.row_count:,} messages are in the lake, {done.deleted:,} rows deleted.")
        if done.replaced:
            pipeline.tell(f"  {done.replaced:,} of them replace older versions that the lake had, with other values.")
        if done.changed:
            named = ", ".join(map(str, done.some))
            pipeline.tell(f"  {done.changed:,} were changed meanwhile and stay for the next batch (ids: {named}).")
    if not moved:
        pipeline.tell(f"Nothing ended before {cutoff:%Y-%m-%d %H:%M:%S} UTC.")


def _immovable(done: ArchivedBatch) -> str:
    """Rows that the lake has as they are, and that no statement finds as they are: they would be tried for ever."""
    named = ", ".join(map(str, done.some))
    return (
        f"Batch {done.name}: {done.changed:,} rows are changed again and again, or hold what their database reads in "
        f"another way than it was written. They stay in the table (ids: {named}). Look at them, and run it again."
    )


def _given_up(done: GivenUp | None) -> str:
    if done is None:
        return "No batch is open."
    if not done.damaged and not done.missing:
        return f"Batch {done.batch.name} is given up; its rows are in the table."
    what = [f"these damaged files: {', '.join(done.damaged)}"] if done.damaged else []
    what += [f"{done.missing:,} rows that the lake lacks"] if done.missing else []
    return (
        f"Of batch {done.batch.name} is given up: {'; '.join(what)}. {done.lost:,} of these rows are in neither the "
        "table nor the lake; the rest is in the table, and all other rows of the batch are in the lake."
    )


_NEXT = {
    ArchiveState.PLANNED: "writing what ended before",
    ArchiveState.WRITTEN: "reading back what ended before",
    ArchiveState.VERIFIED: "deleting what ended before",
    ArchiveState.DELETING: "completing the deletion of what ended before",
}
#: A batch is written, read back and deleted.
_STEPS = 3


class _Telling:
    """Tells each step, and which of how many it is: of a task that runs the archive, that is the progress."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._step, self._of = 0, _STEPS

    def expect(self, batches: int) -> None:
        self._of = _STEPS * max(1, batches)

    def __call__(self, batch: ArchiveBatch) -> None:
        """One that is written again has more steps than were expected."""
        self._step += 1
        self._of = max(self._step, self._of)
        does = _NEXT[ArchiveState(batch.state)]
        until, which = f"{batch.cutoff:%Y-%m-%d %H:%M:%S} UTC", f"step {self._step} of {self._of}"
        self._pipeline.tell(f"Batch {batch.name}: {does} {until}, {which} ...")


def _masked_tasks() -> list[str]:
    """The tasks whose arguments and results the archive masks."""
    if get_settings().ARCHIVE_SENSITIVE == "plain":
        return []
    return sorted(kind for kind, task in registered.items() if task.sensitive)
