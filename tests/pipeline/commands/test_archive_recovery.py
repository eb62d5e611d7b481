"""Batches that can't be read back, and databases that know less than the lake."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from delayedq.exceptions import ArchiveBusy, ArchiveFailed, LakeUnusable
from delayedq.models import FinishedMessage
from delayedq.pipeline import books
from delayedq.pipeline.books import source_of
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.lake.table import MESSAGES, LakeTable
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.spark.compacting import compact
from delayedq.pipeline.spark.measuring import measured
from delayedq.pipeline.spark.schema import LAKE
from tests.pipeline.archives import ONE_STORE, Killed, archived, die_at
from tests.pipeline.given import DAY, NOW, finished, history, ids


def spoil(lake, batch):
    """Overwrite the files of a batch, as a broken disk may do."""
    for file in Path(lake.path, "messages", batch.directory).rglob("*.parquet"):
        file.write_bytes(b"spoiled")
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


@ONE_STORE
def test_a_copy_that_can_not_be_read_back_is_written_anew(archiving, lake):
    history(4)

    def tell(batch):
        if batch.state == ArchiveState.WRITTEN and batch.attempt == 1:
            spoil(lake, batch)

    [done] = archiving(tell=tell).run(NOW)

    assert (done.row_count, done.deleted) == (4, 4)
    assert ArchiveBatch.objects.get().attempt == 2
    assert archived(lake) == [1, 2, 3, 4]


@ONE_STORE
def test_an_open_batch_can_be_given_up_and_its_rows_go_with_the_next(archiving, lake, spark, store, address, tmp_path):
    assert archiving().abandon() is None
    history(4)
    with pytest.raises(Killed):
        list(Archiving(spark, store, address, str(tmp_path / "gone"), die_at(ArchiveState.WRITTEN), address).run(NOW))
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(ArchiveFailed, match="archive --abandon"):
        list(archiving().run(NOW))

    assert archiving().abandon().batch.state == ArchiveState.ABANDONED

    assert ids() == {1, 2, 3, 4}
    [done] = archiving().run(NOW)
    assert done.deleted == 4
    assert archived(lake) == [1, 2, 3, 4]


def in_both(lake, store):
    return books.in_both(lake.table, lake.table.snapshot(), source_of(store.alias), set(books.settled()))


def archive_more(archiving, first):
    """A batch of messages that ended on the same day as others."""
    history(3, first=first)
    list(archiving().run(NOW))


@ONE_STORE
def test_a_batch_that_was_given_up_slows_no_later_reader_down(archiving, lake, store):
    """After a compaction the bounds of files have its number between them."""
    archive_more(archiving, 1)
    history(3, first=11)
    with pytest.raises(Killed):
        list(archiving(tell=die_at(ArchiveState.WRITTEN)).run(NOW))
    archiving().abandon()
    list(archiving().run(NOW))
    list(compact(lake))

    source = source_of(store.alias)
    assert lake.table.snapshot().chosen(source=[source], batch=[2])
    assert in_both(lake, store) == []
    assert (archived(lake), ids()) == ([1, 2, 3, 11, 12, 13], set())
    ArchiveBatch.objects.filter(number=3).update(state=ArchiveState.DELETING)  # its rows may be on both sides
    assert in_both(lake, store) == [3]


@ONE_STORE
def test_a_batch_that_a_frozen_process_publishes_after_it_was_given_up_is_looked_for(archiving, lake, store):
    archive_more(archiving, 1)
    history(3, first=11)
    frozen = archiving(tell=die_at(ArchiveState.VERIFIED))
    publish = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LakeTable, "publish", lambda *given, **about: publish.append((given, about)) or False)
        patch.setattr(frozen, "_again", die_in_again)
        with pytest.raises(Killed):
            list(frozen.run(NOW))
    archiving().abandon()
    [(given, about)] = publish
    assert in_both(lake, store) == []
    assert LakeTable.publish(*given, **about)  # it goes on

    assert in_both(lake, store) == [2]
    archive_more(archiving, 21)
    list(compact(lake))

    assert ArchiveBatch.objects.get(number=2).state == ArchiveState.ABANDONED
    assert in_both(lake, store) == [2]
    assert (archived(lake), ids()) == ([1, 2, 3, 11, 12, 13, 21, 22, 23], set())


def die_in_again(_):
    raise Killed


@ONE_STORE
def test_a_published_batch_is_given_up_only_if_its_files_are_spoiled(archiving, lake):
    history(4)
    with pytest.raises(Killed):
        list(archiving(tell=die_at(ArchiveState.VERIFIED)).run(NOW))
    with pytest.raises(ArchiveFailed, match="is verified and published"):
        archiving().abandon()
    spoil(lake, ArchiveBatch.objects.get())

    archiving().abandon()

    assert (archived(lake), ids()) == ([], {1, 2, 3, 4})


@ONE_STORE
def test_a_lake_that_is_gone_is_not_begun_anew(archiving, lake):
    history(2)
    list(archiving().run(NOW))
    shutil.rmtree(lake.path)
    history(2, first=9)

    with pytest.raises(LakeUnusable, match="make it reachable again"):
        list(archiving().run(NOW))

    assert ids() == {9, 10}


@ONE_STORE
def test_two_databases_of_one_name_do_not_archive_into_one_lake(archiving, lake, store, settings):
    history(4)
    list(archiving().run(NOW))
    ArchiveBatch.objects.all().delete()  # as if this were another one
    history(4)
    FinishedMessage.objects.update(finished_at=NOW - DAY / 2)

    with pytest.raises(LakeUnusable, match="LAKE_SOURCE"):
        list(archiving().run(NOW))
    assert ids() == {1, 2, 3, 4}
    assert not ArchiveBatch.objects.exists()

    settings.DELAYEDQ = {"LAKE_SOURCE": "another"}
    [done] = archiving().run(NOW)
    assert (done.deleted, archived(lake)) == (4, [1, 1, 2, 2, 3, 3, 4, 4])


@ONE_STORE
def test_of_two_databases_of_one_name_that_begin_at_once_one_is_refused(archiving, lake, store, settings):
    history(4)

    def begin_another(batch):
        """Publish what another database, with other ids, has written at the same time."""
        if batch.state == ArchiveState.WRITTEN and batch.number == 1:
            rows = lake.files(f"{MESSAGES}/{batch.directory}").select(LAKE.names)
            lake.write("another", rows.withColumn("id", F.col("id") + 100))
            files = measured(lake.files(f"{MESSAGES}/another")).files
            assert lake.table.publish(lake.table.snapshot(), source_of(store.alias), 1, files)

    with pytest.raises(LakeUnusable, match="LAKE_SOURCE"):
        list(archiving(tell=begin_another).run(NOW))
    assert (ids(), archived(lake)) == ({1, 2, 3, 4}, [101, 102, 103, 104])

    settings.DELAYEDQ = {"LAKE_SOURCE": "another"}
    [done] = archiving().run(NOW)
    assert (done.deleted, archived(lake)) == (4, [1, 2, 3, 4, 101, 102, 103, 104])


@ONE_STORE
@pytest.mark.parametrize("state", [None, ArchiveState.PLANNED], ids=["forgotten", "planned"])
def test_after_a_restore_of_the_database_no_row_is_in_the_lake_twice(archiving, lake, state):
    """The backup is from before the batch was planned, or from after that."""
    history(6)
    backup = list(FinishedMessage.objects.all())
    list(archiving().run(NOW))
    if state is None:
        ArchiveBatch.objects.all().delete()
    else:
        ArchiveBatch.objects.update(state=state, attempt=0, is_open=True, row_count=None)
    FinishedMessage.objects.bulk_create([*backup, finished(7)])

    done = list(archiving().run(NOW))

    assert sum(batch.deleted for batch in done) == 7
    assert archived(lake) == [1, 2, 3, 4, 5, 6, 7]
    assert ids() == set()


@ONE_STORE
def test_of_two_first_archives_one_makes_the_lake_and_the_other_is_busy(archiving, lake, monkeypatch):
    history(3)
    real = LakeTable.create

    def create(self):
        with pytest.raises(ArchiveBusy):
            list(archiving().run(NOW))
        real(self)

    monkeypatch.setattr(LakeTable, "create", create)
    [done] = archiving().run(NOW)

    assert done.deleted == 3
    assert archived(lake) == [1, 2, 3]
