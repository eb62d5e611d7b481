"""Database and lake as one view: each message once, at every moment of an archive."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from delayedq.history import read
from delayedq.models import FinishedMessage
from delayedq.pipeline import books
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.commands.view import viewed
from delayedq.pipeline.models import ArchiveBatch
from delayedq.pipeline.opening import Pipeline
from delayedq.pipeline.spark import register
from tests.pipeline.given import NOW, history

ONE_STORE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
EACH = list(range(1, 7))


@pytest.fixture
def pipeline(spark, store, address, tmp_path):
    register(spark)
    return Pipeline(spark, store, address, address, lambda line: None, str(tmp_path / "lake"))


@pytest.fixture
def archiving(spark, store, address, tmp_path):
    """Makes an `Archiving` of this database and lake."""
    return lambda **changes: Archiving(spark, store, address, str(tmp_path / "lake"), here=address, **changes)


def seen(pipeline):
    with viewed(pipeline) as view:
        return sorted(row.id for row in view.messages.select("id").collect())


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_at_each_step_of_an_archive_every_message_is_there_once(pipeline, archiving):
    history(6)
    found = []

    list(archiving(tell=lambda batch: found.append(seen(pipeline))).run(NOW, batch_rows=4))

    assert found == [EACH] * 6  # two batches, three steps each
    assert seen(pipeline) == EACH


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_an_archive_that_runs_between_the_two_reads_hides_no_message(pipeline, archiving, monkeypatch):
    history(4)
    list(archiving().run(NOW))
    history(2, first=5)
    real, archives = books.is_there, [archiving()]

    def is_there(table):
        while archives:
            list(archives.pop().run(NOW))
        return real(table)

    monkeypatch.setattr(books, "is_there", is_there)
    assert seen(pipeline) == EACH
    assert not FinishedMessage.objects.exists()


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_who_counts_again_and_again_while_an_archive_runs_always_counts_all(pipeline, archiving, store):
    def archive():
        try:
            return len(list(archiving().run(NOW, batch_rows=2)))
        finally:
            connections[store.alias].close()

    history(6)
    counted = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(archive)
        while not running.done():
            counted.append((seen(pipeline), history_of_both(pipeline)))
    assert running.result() == 3
    assert counted == [(EACH, EACH)] * len(counted)
    assert not FinishedMessage.objects.exists()


def history_of_both(pipeline):
    """As `delayedq.history` reads it, without Spark."""
    return sorted(read(lake=pipeline.lake_path, columns=["id"])["id"].to_pylist())


@ONE_STORE
def test_what_a_restored_database_holds_again_is_seen_once(pipeline, archiving):
    history(6)
    backup = list(FinishedMessage.objects.all())
    list(archiving().run(NOW))
    FinishedMessage.objects.bulk_create(backup)
    ArchiveBatch.objects.all().delete()

    assert seen(pipeline) == EACH


@ONE_STORE
def test_what_was_restored_and_changed_then_is_seen_as_it_is_now(pipeline, archiving):
    """Else a dead letter that was discarded would be one for ever, and `replay` would send it again."""
    history(6)
    backup = list(FinishedMessage.objects.filter(id__gt=2))
    list(archiving().run(NOW))
    FinishedMessage.objects.bulk_create(backup)
    books.note_restored(ArchiveBatch.objects.values_list("number", flat=True), pipeline.store.now())
    FinishedMessage.objects.filter(id=3).update(outcome="cancelled")

    with viewed(pipeline) as view:
        rows = view.messages.select("id", "state").collect()
    assert sorted(row.id for row in rows) == EACH
    assert {row.id for row in rows if row.state == "cancelled"} == {3}


@ONE_STORE
def test_a_report_without_a_lake_reads_the_database(spark, store, address, tmp_path, capsys):
    history(6)
    lake, output = str(tmp_path / "none"), str(tmp_path / "report")

    call_command("run_pipeline", "report", "--lake", lake, "--output", output)

    told = capsys.readouterr().out
    assert f"There is no lake at {lake} yet" in told
    assert "report.html" in told
    with pytest.raises(CommandError, match="not allowed with"):
        call_command("run_pipeline", "report", "--no-lake", "--only-lake")
    call_command("run_pipeline", "report", "--no-lake", "--output", output)
    assert "no lake" not in capsys.readouterr().out
