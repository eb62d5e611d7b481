"""`delayedq.history`: database and lake as one table, and messages of the lake by id or key. No Spark."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

from delayedq import history
from delayedq.exceptions import InvalidOption, LakeUnusable
from delayedq.models import FinishedMessage
from delayedq.pipeline import books
from delayedq.pipeline import history as reading
from delayedq.pipeline.lake.columns import ARROW
from delayedq.pipeline.models import ArchiveBatch
from tests.pipeline.given import DAY, NOW, finished
from tests.pipeline.given import history as given_history
from tests.pipeline.lake.booked import archive
from tests.pipeline.lake.files import publish, row

ONE_STORE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.fixture
def moved(store, table):
    """Of ten messages, the first six are in the lake."""
    given_history(10)
    archive(table, list(FinishedMessage.objects.order_by("id")[:6]))
    return table


def ids(**given):
    return sorted(history.read(**given).column("id").to_pylist())


def test_each_message_is_there_once_with_all_its_columns(store, table):
    awkward = [
        finished(1, NOW - DAY + timedelta(microseconds=1), key="Zoë 'x'\n", metadata='{"a":"é"}', errors="[]"),
        finished(2, key=None, started_at=None, worker=None, result=None, outcome="failed"),
    ]
    FinishedMessage.objects.bulk_create(awkward)
    before = history.read(lake=table.path)
    archive(table, list(FinishedMessage.objects.all()))
    after = history.read(lake=table.path)

    assert before.schema == after.schema == ARROW
    known = [name for name in ARROW.names if name != "batch"]
    assert before.select(known).sort_by("id").equals(after.select(known).sort_by("id"))
    assert (before.column("batch").to_pylist(), after.column("batch").to_pylist()) == ([None, None], [1, 1])
    assert after.to_pandas().shape == (2, len(ARROW.names))


def test_the_window_and_the_queue_hold_on_both_sides(moved, store):
    FinishedMessage.objects.filter(id=10).update(queue="mail")
    given = {"lake": moved.path}
    assert ids(**given) == list(range(1, 11))
    ends = {finished.id: finished.finished_at for finished in FinishedMessage.objects.all()}
    assert ids(since=ends[8], **given) == [8, 9, 10]
    assert ids(until=ends[8], **given) == list(range(1, 8))
    assert (ids(queue="mail", **given), ids(queue=["mail", "x"], **given)) == ([10], [10])
    assert ids(queue="default", **given) == list(range(1, 10))
    assert history.read(columns=["day", "queue"], **given).column_names == ["day", "queue"]
    assert history.read(columns=["day"], **given).num_rows == 10


@ONE_STORE
def test_rows_that_are_in_both_count_once(moved, store):
    """Published and not yet deleted; restored; and in a database that knows nothing of the batch."""
    restore(*archived_ends(moved))
    for change in ({"state": "verified"}, {"state": "deleted", "restored_at": NOW + DAY}):
        ArchiveBatch.objects.update(**change)
        assert ids(lake=moved.path) == list(range(1, 11))
    ArchiveBatch.objects.all().delete()
    assert ids(lake=moved.path) == list(range(1, 11))
    assert ids(lake=moved.path, until=NOW - DAY * 2) == [1, 2, 3, 4]


@ONE_STORE
def test_of_what_is_in_both_the_database_has_the_newer_one(moved, store):
    """A dead letter that was restored, and discarded then."""
    restore(*archived_ends(moved))
    FinishedMessage.objects.filter(id=3).update(outcome="cancelled")
    for columns in (["id", "state"], ["state", "id", "batch", "finished_at"]):
        rows = history.read(lake=moved.path, columns=columns)
        assert rows.column_names == columns
        states = dict(zip(rows.column("id").to_pylist(), rows.column("state").to_pylist(), strict=True))
        assert (rows.num_rows, states[3], states[4]) == (10, "cancelled", "succeeded")
    assert history.read(lake=moved.path, columns=["state"]).column("state").to_pylist().count("cancelled") == 1


def archived_ends(table):
    rows = history.read(lake=table.path, columns=["id", "finished_at", "batch"]).to_pylist()
    archived = [one for one in rows if one["batch"] is not None]
    return [one["id"] for one in archived], [one["finished_at"] for one in archived]


@ONE_STORE
@pytest.mark.parametrize("what", ["archived", "restored"])
def test_what_moves_between_the_reads_is_neither_missed_nor_doubled(moved, store, monkeypatch, what):
    """Archived after the database was read; restored after the books were, and before the database is."""
    real, ends = reading._stored, archived_ends(moved)

    def stored(*given):
        if what == "restored":
            restore(*ends)
            return real(*given)
        found = real(*given)
        archive(moved, list(FinishedMessage.objects.filter(id__in=[7, 8])))
        return found

    monkeypatch.setattr(reading, "_stored", stored)
    assert ids(lake=moved.path) == list(range(1, 11))


def restore(ids, ends):
    FinishedMessage.objects.bulk_create([finished(id_, when) for id_, when in zip(ids, ends, strict=True)])
    ArchiveBatch.objects.update(restored_at=NOW + DAY)


@ONE_STORE
def test_other_databases_of_the_lake_are_not_read(moved, store):
    publish(moved, 1, [row(1, key="theirs")], "other")
    assert ids(lake=moved.path) == list(range(1, 11))
    assert history.find(key="theirs", lake=moved.path).rows == []


@ONE_STORE
def test_without_a_lake_it_is_the_database(store, tmp_path, settings):
    given_history(3)
    settings.DELAYEDQ = {"LAKE": None}
    assert ids() == [1, 2, 3]
    assert ids(lake=str(tmp_path / "none")) == [1, 2, 3]
    assert history.find(id=1, lake=str(tmp_path / "none")) == ([], True)


@ONE_STORE
def test_wrong_arguments_are_named(store):
    for given, message in (
        ({"since": datetime(2026, 3, 1)}, "since: .* no time zone"),  # noqa: DTZ001
        ({"since": NOW, "until": NOW}, "is not later than since"),
        ({"columns": ["id", "colour"]}, "columns: colour unknown"),
    ):
        with pytest.raises(InvalidOption, match=message):
            history.read(**given)
    with pytest.raises(InvalidOption, match="an id or a key"):
        history.find()


@ONE_STORE
def test_a_spoiled_file_is_named(moved, store, tmp_path):
    for file in (tmp_path / "lake" / "messages").rglob("*.parquet"):
        file.write_bytes(b"spoiled")
    with pytest.raises(LakeUnusable, match=r"messages/.*parquet can't be read.*run_pipeline check"):
        history.read(lake=moved.path)


# One message


def test_a_message_is_found_by_its_id_or_its_key(moved, store):
    [by_id] = history.find(id=5, lake=moved.path).rows
    [by_key] = history.find(key="key-5 é", lake=moved.path).rows
    assert by_id == by_key
    assert (by_id["id"], by_id["payload"], by_id["state"], by_id["batch"]) == (5, '{"args":[5]}', "succeeded", 1)
    assert history.find(id=7, lake=moved.path) == ([], True)  # it is in the database


@ONE_STORE
def test_only_files_that_may_have_it_are_opened_and_at_most_so_many(store, table, monkeypatch):
    for day in range(4):
        archive(table, [finished(day + 1, NOW - day * DAY, key="same")])
    opened = []
    real = reading.read_files
    monkeypatch.setattr(reading, "read_files", lambda *given: opened.append(given[1]) or real(*given))

    assert [one["id"] for one in history.find(id=3, lake=table.path).rows] == [3]
    assert len(opened) == 2  # once for the columns that are looked for, once for all

    found = history.find(key="same", lake=table.path, most=3)
    assert ([one["id"] for one in found.rows], found.complete) == ([1, 2, 3], False)
    monkeypatch.setattr(reading, "FILES", 2)
    found = history.find(key="same", lake=table.path)
    assert ([one["id"] for one in found.rows], found.complete) == ([1, 2], False)


WITHOUT_SPARK = """
import django, sys; django.setup()
from delayedq import history
print(history.read().num_rows, sorted(name for name in sys.modules if name in ("pyspark", "py4j")))
"""


@ONE_STORE
def test_it_needs_no_spark(environment, store):
    given_history(2)
    command = [sys.executable, "-c", WITHOUT_SPARK]
    told = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert told.stdout.splitlines()[-1:] == ["2 []"], told.stderr


def test_books_number_batches_of_all_lakes(store, table):
    archive(table, [finished(1)])
    assert (books.next_number(), books.next_number(table.snapshot(), "elsewhere")) == (2, 2)
    assert pa.types.is_int64(ARROW.field("batch").type)
