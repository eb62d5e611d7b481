"""The steps that keep the lake: `compact`, `vacuum`, `check` and `status`."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from django.db.models import F

from delayedq.conf import get_settings
from delayedq.core.instants import instant
from delayedq.exceptions import InvalidOption, LakeDamaged
from delayedq.models import FinishedMessage
from delayedq.pipeline import books
from delayedq.pipeline.commands.archive import booked
from delayedq.pipeline.lake.side_table import SIDES
from delayedq.pipeline.lake.table import MESSAGES, RETENTION
from delayedq.pipeline.models import ArchiveBatch, ArchiveState, LakeCheck
from delayedq.pipeline.spark import archive, compacting
from delayedq.pipeline.spark.measuring import Checksums

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.pipeline.lake.table import Snapshot
    from delayedq.pipeline.opening import Options, Pipeline, WithoutSpark


def run_compact(pipeline: Pipeline, options: Options) -> None:
    """Small files become few. Raises LakeUnusable."""
    small = compacting.SMALL if options["small"] is None else options["small"] * 2**20
    done = list(compacting.compact(pipeline.lake, small))
    for part in done:
        if part.before:
            pipeline.tell(f"{part.before:,} files with {part.rows:,} messages are now {part.after:,}.")
        else:
            pipeline.tell("Another compaction has replaced these files meanwhile: nothing was changed.")
    if not done:
        pipeline.tell("No day has more than one small file: there is nothing to compact.")
    for side in SIDES:
        for joined in side(pipeline.lake.path).compact(small):
            if joined.files:
                pipeline.tell(f"{joined.files:,} files of {side.directory} with {joined.rows:,} rows are now 1.")


def run_vacuum(pipeline: WithoutSpark, options: Options) -> None:
    """Delete files that no version of the retention has, and that no open batch writes. Raises LakeUnusable."""
    older_than = RETENTION if options["older_than"] is None else options["older_than"]
    if older_than < RETENTION and not options["force"]:
        raise InvalidOption(
            f"--older-than: at least {RETENTION.days}d, for readers that have begun and archives that are under way. "
            "With --force, make sure that there are none."
        )
    written = tuple(f"{MESSAGES}/{batch.directory}/" for batch in ArchiveBatch.objects.filter(is_open=True))
    before = datetime.now(UTC) - older_than  # files have the time of their store, not of the database
    unneeded = {
        pipeline.table.path: [info for info in pipeline.table.unneeded(before) if not info.path.startswith(written)]
    }
    sides = [side(pipeline.table.path) for side in SIDES]
    unneeded |= {side.path: side.unneeded(before) for side in sides}
    sizes = [info.size or 0 for files in unneeded.values() for info in files]
    found = f"{len(sizes):,} files ({sum(sizes) / 2**20:,.1f} MB)"
    if options["dry_run"]:
        for path, files in unneeded.items():
            for info in files:
                pipeline.tell(f"  {f'{path}/{info.path}'.removeprefix(f'{pipeline.table.path}/')}")
        pipeline.tell(f"This was a dry run: {found} would be deleted.")
        return
    for table in (pipeline.table, *sides):
        table.delete([info.path for info in unneeded[table.path]])
    pipeline.tell(f"{found} that nobody needs any more were deleted.")


def run_status(pipeline: WithoutSpark, _: Options) -> None:
    """Tell what the lake holds, and how far the archive is. Raises LakeUnusable."""
    snapshot = pipeline.table.snapshot()
    days = sorted({file.day for file in snapshot.files})
    size = sum(file.size for file in snapshot.files) / 2**20
    pipeline.tell(f"Lake {pipeline.table.path}, version {snapshot.version}:")
    pipeline.tell(f"  {snapshot.row_count:,} messages in {len(snapshot.files):,} files ({size:,.1f} MB)")
    if days:
        pipeline.tell(f"  ended on {days[0]} to {days[-1]}, {len(days):,} days")
    small = sum(len(files) for files in compacting.crowded(snapshot).values())
    pipeline.tell(f"  {small:,} small files that `compact` would join")
    flows, steps = (side(pipeline.table.path).count() for side in SIDES)
    pipeline.tell(f"  {flows:,} ends of flows and {steps:,} recorded steps of messages beside them")
    source = books.source_of(pipeline.store.alias)
    pipeline.tell(f"  this database is {source!r} in it; its last batch there is {snapshot.last(source)}")
    for batch in ArchiveBatch.objects.filter(is_open=True):
        pipeline.tell(f"  batch {batch.name} is {batch.state} since {batch.planned_at:%Y-%m-%d %H:%M:%S} UTC")
    restored = ArchiveBatch.objects.filter(restored_at__isnull=False).exclude(deleted_at__gt=F("restored_at"))
    if numbers := sorted(restored.values_list("number", flat=True)):
        pipeline.tell(
            f"  rows of these batches were restored, and are in the database too: {', '.join(map(str, numbers))}"
        )


def run_check(pipeline: Pipeline, _: Options) -> None:
    """Compare the lake with its statistics and with the books. Raises LakeDamaged, which says how many faults."""
    snapshot, faults = pipeline.lake.table.snapshot(), []
    for fault in _faults(pipeline, snapshot):
        faults.append(fault)
        pipeline.tell(f"  {fault}")
    found = {"checked_at": pipeline.store.now(), "faults": len(faults), "first": faults[0] if faults else ""}
    found["last"] = snapshot.last(books.source_of(pipeline.store.alias))
    LakeCheck.objects.update_or_create(lake=pipeline.lake.path, defaults=found)
    if faults:
        raise LakeDamaged(
            f"{len(faults):,} faults in the lake at {pipeline.lake.path}: they are listed above. Restore these files "
            "from a backup; while the database has the rows, `archive --abandon` withdraws an open batch."
        )
    pipeline.tell(f"{snapshot.row_count:,} messages in {len(snapshot.files):,} files are as the books say.")


def _faults(pipeline: Pipeline, snapshot: Snapshot) -> Iterator[str]:
    sizes = {info.path: info.size for info in pipeline.lake.table.stored()}
    there = []
    for file in snapshot.files:
        if file.path not in sizes:
            yield f"{file.path} is missing, with {file.rows:,} rows"
        elif sizes[file.path] != file.size:
            yield f"{file.path} has {sizes[file.path]:,} bytes, and was published with {file.size:,}"
        else:
            there.append(file)
    rows: Counter[str] = Counter()
    batches: defaultdict[tuple[str, int], Checksums] = defaultdict(Checksums)
    for (path, source, batch), sums in pipeline.lake.sums(there).items():
        rows[path] += sums.row_count
        batches[source, batch] = batches[source, batch].with_(sums)
    for file in there:
        if rows[file.path] != file.rows:
            yield f"{file.path} has {rows[file.path]:,} rows that can be read, and was published with {file.rows:,}"
    source = books.source_of(pipeline.store.alias)
    found = {number: sums for (of, number), sums in batches.items() if of == source}
    yield from _against_books(pipeline.lake.path, found, snapshot.last(source))
    yield from _in_neither(pipeline, snapshot, source)
    for side in SIDES:
        yield from side(pipeline.lake.path).faults()


def _against_books(path: str, found: dict[int, Checksums], last: int) -> Iterator[str]:
    """What this database has published, as its books say; what it has published elsewhere is not looked for.

    found: by the number of the batch. last: the last number that the lake has.
    """
    replaced = books.replaced(last)
    for batch in ArchiveBatch.objects.filter(state__in=books.PUBLISHED, checksums__isnull=False).order_by("number"):
        expected = booked(batch)
        newer = (Checksums(**sums) for sums in replaced.get(batch.number, ()))
        sums = reduce(Checksums.with_, newer, found.get(batch.number, Checksums()))
        if sums == expected or (batch.lake != path and not sums.row_count):
            continue
        if batch.number > last:
            yield f"batch {batch.number} is not in this lake, and the books say that {expected.row_count:,} rows are"
        elif sums.row_count != expected.row_count:
            yield f"batch {batch.number} has {sums.row_count:,} rows, and the books say {expected.row_count:,}"
        else:
            yield f"batch {batch.number} has other values than the books say"


def _in_neither(pipeline: Pipeline, snapshot: Snapshot, source: str) -> Iterator[str]:
    """Rows that were in the table when their batch was verified, and are in neither the table nor the lake.

    Of a batch that was given up these are its rows in the table, and those that a later batch took. Pruning may have
    taken others, if the batch is older than RETENTION.
    """
    for batch in ArchiveBatch.objects.filter(checksums__isnull=False, lake=pipeline.lake.path).order_by("number"):
        if lost := (batch.checksums or {}).get("lost"):
            yield f"batch {batch.number}: {lost:,} rows are in neither the table nor the lake"
        if batch.state != ArchiveState.ABANDONED or not batch.row_count or _may_be_pruned(pipeline, batch):
            continue
        sums = booked(batch)
        first, last = instant(sums.first), instant(sums.last)
        table = FinishedMessage.objects.filter(finished_at__range=(first, last)).count()
        lake = archive.count_within(pipeline.lake.history(snapshot=snapshot, source=source), sums)
        if table + lake < batch.row_count:
            yield (
                f"batch {batch.number} was given up, and {batch.row_count - table - lake:,} of its {batch.row_count:,} "
                "rows are in neither the table nor the lake"
            )


def _may_be_pruned(pipeline: Pipeline, batch: ArchiveBatch) -> bool:
    retention = get_settings().RETENTION
    return retention is not None and batch.cutoff < pipeline.store.now() - retention
