"""The archive: what it moves, and what is left after it was stopped anywhere."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import DatabaseError

from delayedq.exceptions import ArchiveBusy, ArchiveFailed, LakeUnusable
from delayedq.models import FinishedMessage
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.spark import archive
from delayedq.pipeline.spark.connecting import connect
from delayedq.pipeline.spark.lake import Lake
from delayedq.pipeline.steps.archive import Archiving
from tests.pipeline.given import DAY, NOW, finished, history, ids

#: Where what is tested does not depend on the database.
ONE_DATABASE = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
ONE_STORE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


END_CONNECTIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@pytest.fixture
def lake(spark, tmp_path):
    return Lake(spark, str(tmp_path / "lake"))


@pytest.fixture
def archiving(spark, store, address, lake):
    """Makes an `Archiving` of this database and lake."""
    return lambda **changes: Archiving(spark, store, address, lake.path, **changes)


def archived(lake):
    """The ids in the lake, each as often as it is there."""
    return sorted(row.id for row in lake.history().select("id").collect())


def die_at(state):
    def tell(batch):
        if batch.state == state:
            raise Killed

    return tell


def forget_lease():
    ArchiveBatch.objects.update(leased_until=NOW - DAY)


def test_history_before_the_cutoff_moves_and_the_rest_stays(archiving, lake):
    history(90)

    [done] = archiving().run(NOW - DAY)

    assert (done.row_count, done.deleted) == (60, 60)
    assert archived(lake) == list(range(1, 61))
    assert ids() == set(range(61, 91))


def test_a_message_in_the_lake_is_the_one_that_was_in_the_table(archiving, lake):
    moment = NOW - DAY - timedelta(microseconds=1)
    finished(7, moment, outcome="failed", key="Zoë 'x'\n", metadata='{"a":"é"}', result=None, errors="[]").save()

    list(archiving().run(NOW))

    [row] = lake.history().selectExpr("*", "unix_micros(finished_at) AS micros", "string(day) AS date").collect()
    assert row.micros == round(moment.timestamp() * 1_000_000)
    assert row.date == "2026-02-28"
    assert (row.state, row.key, row.metadata) == ("failed", "Zoë 'x'\n", '{"a":"é"}')
    assert (row.result, row.errors, row.payload) == (None, "[]", '{"args":[7]}')
    assert (row.attempts, row.priority, row.schema_version) == (2, 1, 1)


@ONE_DATABASE
def test_an_empty_table_makes_no_batch(archiving, lake):
    assert list(archiving().run(NOW)) == []
    assert ArchiveBatch.objects.count() == 0
    assert not lake.exists()


def test_much_history_moves_in_batches_and_one_instant_stays_together(archiving, lake):
    history(20, days=2)
    for id_ in (21, 22, 23):
        finished(id_, NOW - 2 * DAY).save()

    done = list(archiving().run(NOW, batch_rows=8))

    assert [batch.row_count for batch in done] == [8, 8, 7]
    assert archived(lake) == list(range(1, 24))
    assert ids() == set()


@ONE_DATABASE
def test_an_instant_with_more_rows_than_a_batch_is_one_batch(archiving):
    for id_ in range(1, 6):
        finished(id_, NOW - 2 * DAY).save()
    finished(6).save()

    assert [batch.row_count for batch in archiving().run(NOW, batch_rows=2)] == [5, 1]


@ONE_DATABASE
@pytest.mark.parametrize("state", [ArchiveState.PLANNED, ArchiveState.WRITTEN, ArchiveState.VERIFIED])
def test_an_archive_that_was_killed_between_two_steps_is_finished_by_the_next(archiving, lake, state):
    history(30)

    with pytest.raises(Killed):
        list(archiving(tell=die_at(state)).run(NOW))
    assert ids() == set(range(1, 31))
    assert archived(lake) == (list(range(1, 31)) if state is ArchiveState.VERIFIED else [])

    [done] = archiving().run(NOW)
    assert (done.row_count, done.deleted) == (30, 30)
    assert archived(lake) == list(range(1, 31))
    assert ids() == set()


@ONE_DATABASE
@pytest.mark.parametrize("step", ["write", "verify", "delete"])
def test_an_archive_that_was_killed_after_a_step_and_before_it_was_recorded_is_finished(
    archiving, lake, step, monkeypatch
):
    history(30)
    real = getattr(archive, step)

    def then_die(copying):
        real(copying)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(archive, step, then_die)
        with pytest.raises(Killed):
            list(archiving().run(NOW))

    [done] = archiving().run(NOW)
    assert done.row_count == 30
    assert archived(lake) == list(range(1, 31))
    assert ids() == set()


@ONE_DATABASE
def test_files_that_differ_from_the_table_are_written_again(archiving, lake, monkeypatch):
    history(10)
    real = archive.write

    def write_and_lose(copying):
        real(copying if copying.place.attempt > 1 else replace(copying, cutoff=copying.cutoff - DAY))

    monkeypatch.setattr(archive, "write", write_and_lose)
    [done] = archiving().run(NOW)

    assert (done.row_count, done.deleted) == (10, 10)
    assert archived(lake) == list(range(1, 11))
    assert ArchiveBatch.objects.get().attempt == 2


@ONE_DATABASE
def test_files_that_never_match_fail_the_batch_and_nothing_is_deleted(archiving, lake, monkeypatch):
    history(10)
    monkeypatch.setattr(archive, "write", lambda copying: copying.lake.clear(copying.place))

    with pytest.raises(ArchiveFailed, match="3 times"):
        list(archiving().run(NOW))

    assert len(ids()) == 10
    assert archived(lake) == []


@ONE_DATABASE
def test_a_row_that_was_committed_late_is_not_deleted_unseen(archiving, lake):
    history(10)

    def tell(batch):
        if batch.state == ArchiveState.VERIFIED:
            finished(99, NOW - 2 * DAY).save()

    done = archiving(tell=tell).run(NOW)

    assert next(done).deleted == 10
    assert ids() == {99}


@ONE_DATABASE
def test_a_row_that_comes_between_copy_and_check_gets_into_the_copy(archiving, lake):
    history(10)

    def tell(batch):
        if batch.state == ArchiveState.WRITTEN and batch.attempt == 1:
            finished(99, NOW - 2 * DAY).save()

    [done] = archiving(tell=tell).run(NOW)

    assert done.row_count == 11
    assert archived(lake) == [*range(1, 11), 99]


@ONE_DATABASE
def test_pruning_takes_nothing_that_is_on_its_way(archiving, lake, store):
    history(10)

    def tell(batch):
        assert store.at(NOW + 9 * DAY).prune(timedelta(), 100) == 0

    [done] = archiving(tell=tell).run(NOW)

    assert done.deleted == 10


@ONE_DATABASE
def test_two_archives_at_once_don_t_touch_the_same_batch(archiving, lake):
    history(10)

    def tell(batch):
        with pytest.raises(ArchiveBusy):
            list(archiving().run(NOW))

    [done] = archiving(tell=tell).run(NOW)

    assert done.deleted == 10
    assert archived(lake) == list(range(1, 11))


@ONE_DATABASE
@pytest.mark.parametrize("state", [ArchiveState.PLANNED, ArchiveState.WRITTEN, ArchiveState.VERIFIED])
def test_an_archive_that_lost_its_lease_changes_nothing_any_more(archiving, lake, state, monkeypatch):
    monkeypatch.setattr("delayedq.pipeline.steps.archive.LEASE", timedelta(hours=1))  # it does not come back by renewal
    history(10)
    taken = []

    def tell(batch):
        if batch.state == state and not taken:
            taken.append(batch)
            forget_lease()
            [done] = archiving().run(NOW)
            assert done.deleted == 10

    with pytest.raises(ArchiveBusy):
        list(archiving(tell=tell).run(NOW))

    assert archived(lake) == list(range(1, 11))
    assert ids() == set()


@ONE_DATABASE
def test_a_batch_is_finished_in_the_lake_it_was_begun_for(spark, store, address, archiving, tmp_path):
    history(10)
    with pytest.raises(Killed):
        list(archiving(tell=die_at(ArchiveState.WRITTEN)).run(NOW))

    with pytest.raises(ArchiveFailed, match="finish it there"):
        list(Archiving(spark, store, address, str(tmp_path / "other")).run(NOW))

    assert len(ids()) == 10


@ONE_DATABASE
def test_the_directory_of_something_else_is_refused(archiving, lake, tmp_path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "thesis.txt").write_text("mine")
    history(3)

    with pytest.raises(LakeUnusable, match=r"thesis\.txt"):
        list(archiving().run(NOW))
    with pytest.raises(LakeUnusable, match="no lake"):
        lake.history()

    assert FinishedMessage.objects.count() == 3


@ONE_DATABASE
def test_a_lake_of_a_newer_schema_is_left_alone(archiving, lake, tmp_path):
    history(3)
    list(archiving().run(NOW))
    [manifest] = (tmp_path / "lake" / "manifests").rglob("part-*.json")
    manifest.write_text(manifest.read_text().replace('"schema_version":1', '"schema_version":2'))
    manifest.with_name(f".{manifest.name}.crc").unlink()

    with pytest.raises(LakeUnusable, match="schema version 2"):
        lake.history()
    history(3, first=9)
    with pytest.raises(LakeUnusable, match="schema version 2"):
        list(archiving().run(NOW))
    assert len(ids()) == 3


@ONE_DATABASE
@pytest.mark.parametrize("state", [ArchiveState.WRITTEN, ArchiveState.VERIFIED])
def test_a_database_that_ends_all_connections_in_the_middle_loses_nothing(archiving, lake, address, connection, state):
    history(30)

    def end_connections(batch):
        if batch.state == state:
            with connect(address) as other:
                other.rows(END_CONNECTIONS)

    with pytest.raises(DatabaseError):
        list(archiving(tell=end_connections).run(NOW))
    connection.close()
    forget_lease()

    [done] = archiving().run(NOW)
    assert done.row_count == 30
    assert archived(lake) == list(range(1, 31))
    assert ids() == set()


@ONE_DATABASE
def test_days_are_read_without_the_others(archiving, lake):
    history(30)
    list(archiving().run(NOW))

    some = lake.history(since=(NOW - 2 * DAY).date(), until=(NOW - DAY).date())

    assert {row.day for row in some.select("day").distinct().collect()} == {(NOW - 2 * DAY).date()}


# Batches that can't be read back, and databases that know less than the lake


def spoil(lake, batch):
    """Overwrite the files of a batch, as a broken disk may do."""
    for file in Path(lake.path, "messages", f"batch={batch.name}-{batch.attempt}").rglob("*.parquet"):
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
        list(Archiving(spark, store, address, str(tmp_path / "gone"), die_at(ArchiveState.WRITTEN)).run(NOW))
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(ArchiveFailed, match="archive --abandon"):
        list(archiving().run(NOW))

    assert archiving().abandon().state == ArchiveState.ABANDONED

    assert ids() == {1, 2, 3, 4}
    [done] = archiving().run(NOW)
    assert done.deleted == 4
    assert archived(lake) == [1, 2, 3, 4]


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
    real = Lake.prepare

    def prepare(self):
        with pytest.raises(ArchiveBusy):
            list(archiving().run(NOW))
        real(self)

    monkeypatch.setattr(Lake, "prepare", prepare)
    [done] = archiving().run(NOW)

    assert done.deleted == 3
    assert archived(lake) == [1, 2, 3]


def test_a_url_of_a_file_is_a_directory(spark, tmp_path):
    for url in (f"file:{tmp_path}/a%20lake", f"file://{tmp_path}/a%20lake/"):
        assert Lake(spark, url).path == f"{tmp_path}/a lake"
