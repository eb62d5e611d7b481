"""The archive: what it moves, and what is left after it was stopped anywhere."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import DatabaseError

from delayedq.exceptions import ArchiveBusy, ArchiveFailed, LakeUnusable
from delayedq.models import FinishedMessage
from delayedq.pipeline.books import source_of
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.spark import archive
from delayedq.pipeline.spark.connecting import connect
from tests.pipeline.archives import END_CONNECTIONS, ONE_DATABASE, Killed, archived, die_at, forget_lease
from tests.pipeline.given import DAY, NOW, finished, history, ids


def test_history_before_the_cutoff_moves_and_the_rest_stays(archiving, lake):
    history(90)

    [done] = archiving(here=None).run(NOW - DAY)

    assert (done.row_count, done.deleted) == (60, 60)
    assert archived(lake) == list(range(1, 61))
    assert ids() == set(range(61, 91))


def test_a_message_in_the_lake_is_the_one_that_was_in_the_table(archiving, lake, store):
    moment = NOW - DAY - timedelta(microseconds=1)
    finished(7, moment, outcome="failed", key="Zoë 'x'\n", metadata='{"a":"é"}', result=None, errors="[]").save()

    list(archiving(here=None).run(NOW))

    [row] = lake.history().selectExpr("*", "unix_micros(finished_at) AS micros", "string(day) AS date").collect()
    assert row.micros == round(moment.timestamp() * 1_000_000)
    assert row.date == "2026-02-28"
    assert (row.state, row.key, row.metadata) == ("failed", "Zoë 'x'\n", '{"a":"é"}')
    assert (row.result, row.errors, row.payload) == (None, "[]", '{"args":[7]}')
    assert (row.attempts, row.priority, row.schema_version) == (2, 1, 2)
    assert (row.source, row.batch) == (source_of(store.alias), ArchiveBatch.objects.get().number)


@ONE_DATABASE
def test_an_empty_table_makes_no_batch(archiving, lake):
    assert list(archiving().run(NOW)) == []
    assert ArchiveBatch.objects.count() == 0
    assert not lake.table.exists()


def test_much_history_moves_in_batches_and_one_instant_stays_together(archiving, lake):
    history(20, days=2)
    for id_ in (21, 22, 23):
        finished(id_, NOW - 2 * DAY).save()

    done = list(archiving(here=None).run(NOW, batch_rows=8))

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
        list(archiving(here=None, tell=die_at(state)).run(NOW))
    assert ids() == set(range(1, 31))
    assert archived(lake) == (list(range(1, 31)) if state is ArchiveState.VERIFIED else [])

    [done] = archiving(here=None).run(NOW)
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

    def then_die(*given):
        real(*given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(archive, step, then_die)
        with pytest.raises(Killed):
            list(archiving(here=None).run(NOW))

    [done] = archiving(here=None).run(NOW)
    assert done.row_count == 30
    assert archived(lake) == list(range(1, 31))
    assert ids() == set()


@ONE_DATABASE
def test_files_that_differ_from_the_table_are_written_again(archiving, lake, monkeypatch):
    history(10)
    real = archive.write

    def write_and_lose(copying):
        real(copying if copying.place.directory.endswith("-2") else replace(copying, cutoff=copying.cutoff - DAY))

    monkeypatch.setattr(archive, "write", write_and_lose)
    [done] = archiving().run(NOW)

    assert (done.row_count, done.deleted) == (10, 10)
    assert archived(lake) == list(range(1, 11))
    assert ArchiveBatch.objects.get().attempt == 2


@ONE_DATABASE
def test_files_that_never_match_fail_the_batch_and_nothing_is_deleted(archiving, lake, monkeypatch):
    history(10)
    real = archive.write
    monkeypatch.setattr(archive, "write", lambda copying: real(replace(copying, cutoff=NOW - 9 * DAY)))

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
    monkeypatch.setattr(
        "delayedq.pipeline.commands.archive.LEASE", timedelta(hours=1)
    )  # it does not come back by renewal
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

    with pytest.raises(ArchiveFailed, match="finish it with `archive --lake"):
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
    first = tmp_path / "lake" / "_delta_log" / "00000000000000000000.json"
    first.write_text(first.read_text().replace('"delayedq.schemaVersion":"2"', '"delayedq.schemaVersion":"3"'))

    with pytest.raises(LakeUnusable, match="schema version 3"):
        lake.history()
    history(3, first=9)
    with pytest.raises(LakeUnusable, match="schema version 3"):
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
