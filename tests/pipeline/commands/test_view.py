"""Database and lake as one view: each message once, at every moment of an archive."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pyarrow.parquet
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
from delayedq.pipeline.report.facts import COLUMNS
from delayedq.pipeline.report.tables import measure
from delayedq.pipeline.spark import reading, register
from tests.pipeline.given import DAY, NOW, finished, history
from tests.pipeline.queued import live_messages

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


# Of some days


def changed_after_its_restoration(pipeline, backup):
    FinishedMessage.objects.bulk_create(backup)
    books.note_restored(ArchiveBatch.objects.values_list("number", flat=True), pipeline.store.now())
    FinishedMessage.objects.filter(id=backup[0].id).update(outcome="cancelled")


def days_of(frame):
    return {re.search("day=([^/]+)", path)[1] for path in frame.inputFiles()}


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("small", [True, False], ids=["read here", "read by Spark"])
def test_a_view_of_some_days_reads_these_and_what_lives_alone(pipeline, archiving, store, monkeypatch, small):
    """Archived in two batches, of which a row was restored and changed, and rows that are in the database alone."""
    history(6, days=6)
    backup = list(FinishedMessage.objects.filter(id__in=[2, 4]).order_by("-id"))
    list(archiving().run(NOW, batch_rows=3))
    changed_after_its_restoration(pipeline, backup)
    history(6, days=6, first=11)
    live_messages(store)
    if not small:
        monkeypatch.setattr(reading, "SMALL_ROWS", 1)
    since, until = (NOW - 4 * DAY).date(), (NOW - DAY).date()

    with viewed(pipeline, since=since, until=until) as some, viewed(pipeline) as every:
        names = [name for name in every.messages.columns if name != "worker"]
        rows, whole = (sorted(view.messages.select(names).collect(), key=str) for view in (some, every))
        files, read = days_of(some.lake), {row.day for row in some.database.select("day").collect()}

    assert rows == [row for row in whole if row.day is None or since <= row.day < until]
    archived = {(row.id, row.state) for row in rows if row.day is not None and row.id < 10}
    assert archived == {(3, "succeeded"), (4, "cancelled"), (5, "succeeded")}
    days = {(NOW - number * DAY).date() for number in (4, 3, 2)}
    assert files == {str(day) for day in days}
    assert read == days | {None}


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_a_report_of_the_queue_has_what_waits_and_not_what_runs(pipeline, store):
    """No row of a live message says when its attempt began."""
    live_messages(store)
    now = store.now()

    with viewed(pipeline, columns=COLUMNS, since=now.date()) as view:
        figures = measure(view.messages, now - DAY, now + timedelta(minutes=1))

    assert sum(row["waiting"] for row in figures.rows("backlog") if row["bucket"] == figures.window.buckets()[-1]) == 1
    assert sum(row["n"] for row in figures.rows("still_open")) == 3


def measured(output):
    return sum(row["n"] for row in pyarrow.parquet.read_table(output / "tables" / "retries.parquet").to_pylist())


@ONE_STORE
def test_a_report_of_the_last_week_begins_a_week_before_now_or_before_its_end(pipeline, store, tmp_path, capsys):
    def report(*arguments):
        call_command("run_pipeline", "report", "--no-lake", "--output", str(tmp_path / "report"), *arguments)
        return re.search("Measuring (.*) UTC", capsys.readouterr().out)[1]

    now = store.now().replace(microsecond=0)
    for number, days in enumerate((1, 6, 8, 20), start=1):
        finished(number, now - days * DAY).save()

    since = report("--last", "7d").partition(" to ")[0]
    assert str(now - 7 * DAY)[:19] <= since <= str(store.now() - 7 * DAY)[:19]
    assert measured(tmp_path / "report") == 2

    until = now - 7 * DAY
    told = report("--last", "7d", "--until", until.isoformat())
    assert told == f"{until - 7 * DAY:%Y-%m-%d %H:%M:%S} to {until:%Y-%m-%d %H:%M:%S}"
    assert measured(tmp_path / "report") == 1

    FinishedMessage.objects.filter(id__lt=3).delete()
    assert report("--last", "7d")
    assert measured(tmp_path / "report") == 0


@ONE_STORE
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--last", "7d", "--since", "2026-01-01"), "not allowed with"),
        (("--last", "1w"), "is not a number and one of s, m, h and d"),
        (("--last", "0s"), "is not later than --since"),
        (("--last", "7d", "--until", "0001-01-02"), "--last: .* there is no year"),
    ],
)
def test_a_window_that_is_none_is_refused(spark, store, arguments, said):
    with pytest.raises(CommandError, match=said):
        call_command("run_pipeline", "report", "--no-lake", *arguments)


@ONE_STORE
def test_a_report_since_the_last_end_says_that_there_is_nothing(spark, store, capsys):
    history(3)

    call_command("run_pipeline", "report", "--no-lake", "--since", NOW.isoformat())

    assert "No message has ended in this time" in capsys.readouterr().out
