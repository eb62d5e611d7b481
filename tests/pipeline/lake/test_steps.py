"""`run_pipeline restore`, `vacuum` and `status`: the steps that need no Spark."""

from __future__ import annotations

import os
import threading
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from delayedq import history
from delayedq.core.errors import last_error, with_error
from delayedq.models import FinishedMessage
from delayedq.pipeline.books import source_of
from delayedq.pipeline.lake.side_table import RecordedSteps
from delayedq.pipeline.models import ArchiveBatch
from delayedq.store.protocol import Offer
from tests.pipeline.given import DAY, NOW, finished
from tests.pipeline.given import history as given_history
from tests.pipeline.given import ids as ids_of_table
from tests.pipeline.lake.booked import archive
from tests.pipeline.lake.files import ids, row, write

ONE_STORE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.fixture
def run(store, table, capsys):
    def run_step(*arguments):
        call_command("run_pipeline", *map(str, arguments), "--lake", table.path)
        return capsys.readouterr().out

    return run_step


@pytest.fixture
def moved(store, table):
    """Two batches of three messages, of which the table has none any more; what they were."""
    messages = [
        finished(1, NOW - DAY + timedelta(microseconds=1), key="Zoë 'x'\n", metadata='{"a":"é"}', errors="[]"),
        finished(2, key=None, started_at=None, worker=None, result=None, outcome="failed", errors=ERRORS, **OF_ERRORS),
        *[finished(id_) for id_ in (3, 4, 5, 6)],
    ]
    FinishedMessage.objects.bulk_create(messages)
    was = columns()
    archive(table, messages[:3])
    archive(table, messages[3:])
    return was


def columns():
    return list(FinishedMessage.objects.order_by("id").values())


# Restore

ERRORS = with_error(
    None, attempt=1, failed_at=NOW, seconds=1.0, worker="w", exception="app.Overbooked", message="Seat 12 is taken"
)
OF_ERRORS = last_error(ERRORS)._asdict()


def test_a_batch_is_put_back_exactly_and_once(moved, run, table):
    told = run("restore", "--batch", 1)
    assert "3 messages of the lake: 3 are in the history table again" in told
    assert columns() == moved[:3]
    assert "0 are in the history table again.\n  3 were there already" in run("restore", "--batch", 1)
    assert columns() == moved[:3]
    seen = history.read(lake=table.path)
    assert sorted(seen.column("id").to_pylist()) == [1, 2, 3, 4, 5, 6]
    assert "in the database too: 1" in run("status")


def test_messages_are_put_back_by_id_and_by_when_they_ended(moved, run):
    run("restore", "--ids", "2,6")
    assert columns() == [moved[1], moved[5]]
    assert set(ArchiveBatch.objects.filter(restored_at__isnull=False).values_list("number", flat=True)) == {1, 2}
    run("restore", "--since", (NOW - DAY).isoformat(), "--until", NOW.isoformat())
    assert columns() == moved


@ONE_STORE
def test_what_is_live_again_is_left_out(moved, run, store):
    store.offer(Offer(kind="app.tasks.send", payload="[]", key=None, queue="default", scheduled_at=None, priority=0))
    from delayedq.models import Message

    Message.objects.update(id=2)
    told = run("restore", "--batch", 1)
    assert "2 are in the history table again" in told
    assert "1 are live again" in told
    assert ids_of_table() == {1, 3}


@ONE_STORE
def test_of_a_message_that_ended_twice_the_last_end_is_put_back(store, table, run):
    archive(table, [finished(1, NOW - 2 * DAY, outcome="failed")])
    archive(table, [finished(1, NOW - DAY)])
    run("restore", "--ids", 1)
    assert [one["outcome"] for one in columns()] == ["succeeded"]


@ONE_STORE
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", 3), "--batch 3: this database has published batches 1 to 2"),
        (("--batch", -1), "has published batches 1 to 2"),
        (("--ids", "1,77,99"), "--ids: 2 of them are not in the lake: 77, 99. Nothing was restored"),
        (("--ids", "1,x"), "'1,x' is not a list of numbers"),
        (("--since", "2026-03-02", "--until", "2026-03-01"), "--until, .* is not later than --since"),
        (("--since", "yesterday"), "is not a time in ISO 8601"),
        ((), "one of the arguments --batch --ids --since is required"),
        (("--batch", 1, "--until", "2026-03-01"), "--until needs --since"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_restored(moved, run, arguments, message):
    with pytest.raises(CommandError, match=message):
        run("restore", *arguments)
    assert ids_of_table() == set()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"payload": None}, "its payload is NULL"),
        ({"id": None}, "its id is NULL"),
        ({"finished_at": None}, "its finished_at is NULL"),
        ({"queue": "x" * 201}, "its queue has more than 200 characters"),
        ({"result": "a\0b"}, "its result has a NUL in it"),
        ({"state": "leased"}, "its state is none of succeeded"),
        ({"created_at": datetime(1, 1, 1, tzinfo=UTC)}, "its created_at is not a time of the years 1000 to 9999"),
    ],
)
def test_a_row_that_others_have_written_is_named_and_nothing_is_restored(store, table, run, changes, said):
    source = source_of(store.alias)
    rows = [row(1), row(2) | changes]
    assert table.publish(table.snapshot(), source, 1, without_bounds(write(table, "theirs", own(rows, source))))
    with pytest.raises(CommandError, match=f"can't be put back: {said}.*Nothing was restored"):
        run("restore", "--batch", 1)
    assert ids_of_table() == set()


def own(rows, source):
    return [one | {"batch": 1, "source": source} for one in rows]


def without_bounds(files):
    """As other engines may write them."""
    return [file._replace(least={}, most={}, nulls={}) for file in files]


@ONE_STORE
def test_errors_of_another_form_are_put_back_as_they_are(store, table, run):
    forms = ["{}", "7", "[7]", "no JSON", '"\\ud800"']
    forms += ['[{"attempt":1,"message":{"a":[]}}]', '[{"attempt":1,"message":NaN}]']
    archive(table, [finished(number, outcome="failed", errors=text) for number, text in enumerate(forms)])
    run("restore", "--batch", 1)
    assert [one["errors"] for one in columns()] == forms
    assert [one["error"] for one in columns()] == [last_error(text).error for text in forms]


@ONE_STORE
@pytest.mark.parametrize("changes", [{"recorded_at": None}, {"name": "x" * 201}, {"result": "a\0b"}, {"result": None}])
def test_a_step_that_others_have_written_is_named_and_nothing_is_restored(moved, run, table, store, changes):
    step = {"message_id": 2, "kind": "k", "generation": 0, "name": "n", "result": "7", "recorded_at": NOW}
    RecordedSteps(table.path).add(source_of(store.alias), 1, [step | changes])
    with pytest.raises(CommandError, match=r"A recorded step of message 2 .* put back.*Nothing was restored"):
        run("restore", "--batch", 1)
    assert ids_of_table() == set()


@ONE_STORE
def test_ids_of_more_than_64_bits_are_refused_or_not_found(moved, run, table):
    with pytest.raises(CommandError, match="18446744073709551616' is no id"):
        run("restore", "--ids", f"1,{2**64}")
    assert history.find(id=2**64, lake=table.path) == ([], True)
    assert history.find(key="\ud800", lake=table.path) == ([], True)


@ONE_STORE
def test_too_many_rows_for_one_transaction_are_refused(moved, run, monkeypatch):
    monkeypatch.setattr("delayedq.pipeline.commands.restore.MOST_ROWS", 2)
    with pytest.raises(CommandError, match="more than 2 rows"):
        run("restore", "--batch", 1)


@ONE_STORE
def test_former_ends_do_not_count_as_rows_of_the_transaction(store, table, run, monkeypatch):
    monkeypatch.setattr("delayedq.pipeline.commands.restore.MOST_ROWS", 3)
    archive(table, [finished(id_, NOW - 3 * DAY, outcome="failed") for id_ in (1, 2, 3)])
    archive(table, [finished(id_, NOW - DAY) for id_ in (2, 3)])
    run("restore", "--since", (NOW - 4 * DAY).isoformat())
    assert [(one["id"], one["outcome"]) for one in columns()] == [(1, "failed"), (2, "succeeded"), (3, "succeeded")]


@ONE_STORE
def test_the_rows_of_a_restore_are_not_all_held_as_objects(store, table, run):
    few, many = 1_000, 5_000
    archive(table, [finished(id_) for id_ in range(few)])
    archive(table, [finished(id_) for id_ in range(few, few + many)])
    tracemalloc.start()
    try:
        peaks = []
        for batch in (1, 2):
            tracemalloc.reset_peak()
            run("restore", "--batch", batch)
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert FinishedMessage.objects.count() == few + many
    assert peaks[1] - peaks[0] < 500 * (many - few), peaks


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_who_reads_while_rows_are_put_back_sees_each_once(moved, run, table):
    done, seen = threading.Event(), []

    def restore():
        call_command("run_pipeline", "restore", "--since", "2026-01-01", "--lake", table.path)
        connections.close_all()
        done.set()

    thread = threading.Thread(target=restore)
    thread.start()
    while not done.is_set():
        seen.append(sorted(history.read(lake=table.path, columns=["id"]).column("id").to_pylist()))
    thread.join()
    assert len(ids_of_table()) == 6
    assert set(map(tuple, seen)) <= {(1, 2, 3, 4, 5, 6)}


@ONE_STORE
def test_a_restore_says_what_workers_will_prune(moved, run, settings):
    settings.DELAYEDQ = {"RETENTION": timedelta(days=30)}
    assert "Workers prune what ended before" in run("restore", "--batch", 1)
    settings.DELAYEDQ = {"RETENTION": None}
    assert "prune" not in run("restore", "--batch", 2)


# Vacuum and status


@ONE_STORE
def test_vacuum_leaves_what_an_open_batch_writes_and_what_is_young(moved, run, table):
    for directory in ("stray", "now-1", "young"):
        write(table, directory, [row(9)])
    ArchiveBatch.objects.create(
        name="now", number=9, attempt=1, lake=table.path, cutoff=NOW, planned_at=NOW, is_open=True
    )
    for path in Path(table.path, "messages").rglob("*.parquet"):
        if "young" not in str(path):
            os.utime(path, ((datetime.now(UTC) - 8 * DAY).timestamp(),) * 2)

    assert "This was a dry run: 1 files" in run("vacuum", "--dry-run")
    assert "1 files" in run("vacuum")
    left = {path.parts[-3] for path in Path(table.path, "messages").rglob("*.parquet")}
    assert left >= {"now-1", "young"}
    assert "stray" not in left
    assert ids(table) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(CommandError, match="--older-than: at least 7d"):
        run("vacuum", "--older-than", "1h")
    run("vacuum", "--older-than", "0s", "--force")
    assert ids(table) == [1, 2, 3, 4, 5, 6]


@ONE_STORE
def test_vacuum_takes_files_of_the_tables_beside_the_messages(moved, run, table):
    steps = RecordedSteps(table.path)
    for number in (1, 2):
        at = datetime.now(UTC)
        step = {"message_id": number, "kind": "a.b", "generation": 0, "name": "a", "result": "7", "recorded_at": at}
        steps.add("one", number, [step])
    list(steps.compact(2**20))
    old = (datetime.now(UTC) - 8 * DAY).timestamp()
    for path in Path(steps.path).glob("*.parquet"):
        os.utime(path, (old, old))
    stray = Path(steps.path, "stray.parquet")
    stray.write_bytes(b"")
    os.utime(stray, (old, old))
    told = run("vacuum", "--dry-run")
    assert "This was a dry run: 1 files" in told
    assert "  _steps/stray.parquet" in told
    run("vacuum")
    assert not stray.exists()
    assert steps.count() == 2
    assert [row["message_id"] for row in steps.rows("one", [1, 2])] == [1, 2]


@ONE_STORE
def test_status_says_what_there_is(run, store, table):
    given_history(4)
    archive(table, list(FinishedMessage.objects.all()))
    told = run("status")
    assert "4 messages in" in told
    assert "its last batch there is 1" in told


@ONE_STORE
@pytest.mark.parametrize("step", [("restore", "--batch", "1"), ("vacuum",), ("status",)])
def test_without_a_lake_each_step_says_so(store, tmp_path, step):
    with pytest.raises(CommandError, match="There is no lake at"):
        call_command("run_pipeline", *step, "--lake", str(tmp_path / "none"))
