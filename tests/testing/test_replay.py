"""Ended messages run again with the code of today: what is compared, what is left out, what is told."""

from __future__ import annotations

import gzip
import json
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from django.db import transaction
from pyarrow import parquet

from delayedq import Cancel, current_message
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, replay, run_due
from delayedq.testing.replay import HistoryFileError, open_history
from tests.app import tasks
from tests.app.models import Mark

START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)


def play(body, *, task=tasks.play, **options):
    """Run a message that calls `body`; what it calls when it is replayed may be something else."""
    tasks.bodies["then"] = body
    return task.using(**options).enqueue("then") if options else task.enqueue("then")


def raising(error):
    def body(*_):
        raise error

    return body


def ended():
    """Run what is due, and give the history as rows of a file."""
    run_due(raise_failures=False)
    return list(FinishedMessage.objects.order_by("id").values())


@pytest.fixture
def written(tmp_path, alias):
    """Write rows as JSON lines; they are not in the database any more."""

    def write(*rows, name="history.jsonl"):
        FinishedMessage.objects.all().delete()
        path = tmp_path / name
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row, default=str)}\n" for row in rows))
        return path

    return write


def test_what_ends_as_before_is_no_difference(written):
    tasks.remind.enqueue(7, gate="B7")
    tasks.aecho.enqueue(START)
    tasks.fail.using(max_attempts=1).enqueue("no fuel")
    play(raising(Cancel("gone")))
    play(lambda: Mark.objects.create(name="once"), task=tasks.play_once)
    report = replay(written(*ended()))
    assert report, str(report)
    assert (report.same, str(report)) == (5, "5 ended as before, 0 in another way.")


def test_nothing_of_it_stays(written, alias):
    def body():
        Mark.objects.create(name="written")
        tasks.remind.enqueue(7)

    play(body)
    rows = ended()
    Mark.objects.all().delete()
    Message.objects.all().delete()
    for within in (False, True):
        if within:
            with transaction.atomic(using=alias):
                assert replay(written(*rows))
                assert (Mark.objects.count(), Message.objects.count(), FinishedMessage.objects.count()) == (0, 0, 0)
        else:
            assert replay(written(*rows))
        assert (Mark.objects.count(), Message.objects.count(), FinishedMessage.objects.count()) == (0, 0, 0)


def test_outcomes_that_differ_are_told_with_their_errors_and_first_messages(written):
    for number in range(5):
        tasks.play.enqueue("then", number)
    tasks.bodies["then"] = lambda number: number
    path = written(*ended())
    tasks.bodies["then"] = lambda number: 1 // (number - 1) if number == 1 else number["gate"]
    report = replay(path)
    assert not report
    first = [line.strip() for line in str(report).splitlines()]
    ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert first == [
        "0 ended as before, 5 in another way.",
        "4 x tests.app.tasks.play succeeded, now retry: TypeError: 'int' object is not subscriptable",
        f"line 1: message {ids[0]}, args ['then', 0], kwargs {{}}",
        f"line 3: message {ids[2]}, args ['then', 2], kwargs {{}}",
        f"line 4: message {ids[3]}, args ['then', 3], kwargs {{}}",
        "and 1 more",
        "1 x tests.app.tasks.play succeeded, now retry: ZeroDivisionError: integer division or modulo by zero",
        f"line 2: message {ids[1]}, args ['then', 1], kwargs {{}}",
    ]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"kind": "no.such.task"}, "no.such.task succeeded, now failed: UnknownTask: No task is registered as"),
        (
            {"payload": '{"args":[]}'},
            "now failed: ArgumentsMismatch: The stored arguments do not fit tests.app.tasks.remind: missing a required",
        ),
        ({"payload": "["}, "now failed: ArgumentsMismatch: The payload is not readable JSON"),
        ({"outcome": "failed"}, "tests.app.tasks.remind failed, now succeeded\n"),
    ],
    ids=["unknown task", "arguments that no longer bind", "payload that is no JSON", "failed then"],
)
def test_what_can_not_run_any_more_is_told(written, change, line):
    tasks.remind.enqueue(7)
    (row,) = ended()
    report = replay(written({**row, **change}))
    assert report.differences.total() == 1
    assert line in str(report)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "line 2: It is not JSON: Expecting property name"),
        ("[]", "line 2: It is not a JSON object, but a list."),
        ({"kind": None}, "line 2: Its kind is not a text: None."),
        ({"payload": {"args": [7]}}, "line 2: Its payload is not a text: {'args': [7]}."),
        (
            {"outcome": "lost"},
            "line 2: Its outcome is not one of succeeded, failed, cancelled, expired, superseded: 'lost'.",
        ),
        ({"attempts": "three"}, "line 2: Its attempts is not a whole number: 'three'."),
        ({"started_at": "soon"}, "line 2: Its started_at is not a time: 'soon'."),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_mangled_row_is_told_and_the_others_run(written, row, reason):
    tasks.remind.enqueue(7)
    (good,) = ended()
    report = replay(written(good, row if isinstance(row, str) else {**good, **row}, good))
    assert not report
    assert report.same == 2
    assert reason in str(report)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outcome": "waiting"}, "they had not ended"),
        ({"outcome": "superseded"}, "they were replaced while they ran"),
        ({"outcome": "cancelled"}, "they were cancelled from outside"),
        ({"attempts": 0}, "they ended before an attempt began"),
        ({"queue": "contacts|json"}, "they are of bare queues, which no task reads"),
        (
            {"outcome": "failed", "errors": '[{"attempt": 1, "exception": "delayedq.exceptions.WorkerVanished"}]'},
            "they killed or hung their process",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_has_nothing_to_compare_is_left_out(written, change, reason):
    tasks.remind.enqueue(7)
    (row,) = ended()
    report = replay(written({**row, **change}))
    assert report
    assert str(report) == f"0 ended as before, 0 in another way.\n1 left out: {reason}."


def test_it_runs_as_the_attempt_that_ended_it(written):
    seen = []

    def body():
        message = current_message()
        seen.append((message.attempt, message.max_attempts, message.key, message.metadata, message.scheduled_at))
        if message.attempt < 2:
            raise ValueError

    tasks.bodies["then"] = body
    with clock(START) as now:
        tasks.play.using(metadata={"team": "gate"}).schedule_at(START, "then", key="a")
        run_due(raise_failures=False)
        now.advance(hours=1)
        run_due()
    (row,) = FinishedMessage.objects.values()
    tasks.play.schedule_at(datetime(2040, 1, 1, tzinfo=UTC), "then", key="a")  # its key is taken today
    assert replay(written(row))
    assert seen[2] == seen[1]
    assert Message.objects.get().key == "a"


def test_time_is_that_of_the_attempt(written):
    def body():
        outcome = tasks.remind.schedule_in(timedelta(hours=1), 7)
        due = Message.objects.get(id=outcome.id).scheduled_at
        assert abs(due - START - timedelta(hours=1)) < timedelta(seconds=1), due

    with clock(START):
        play(body)
        rows = ended()
    report = replay(written(*rows))
    assert report, str(report)


def test_a_callback_that_fails_is_a_difference(written, alias):
    def body():
        transaction.on_commit(lambda: 1 // 0, using=alias)

    play(lambda: None)
    path = written(*ended())
    tasks.bodies["then"] = body
    with transaction.atomic(using=alias):
        assert "succeeded, now retry: ZeroDivisionError" in str(replay(path))
    assert not Mark.objects.exists()


def test_one_kind(written):
    tasks.remind.enqueue(7)
    tasks.echo.enqueue(7)
    path = written(*ended(), "{")
    assert replay(path, kind="tests.app.tasks.echo").same == 1
    assert open_history(path).kinds() == {
        "tests.app.tasks.remind": 1, "tests.app.tasks.echo": 1, "rows that can't be read": 1,
    }  # fmt: skip


# Files


def test_lines_may_be_compressed_and_empty(written, tmp_path):
    tasks.remind.enqueue(7)
    (row,) = ended()
    lines = written(row, "").read_bytes()
    path = tmp_path / "history.jsonl.gz"
    path.write_bytes(gzip.compress(lines))
    assert replay(path).same == 1


@pytest.mark.parametrize("kind", [None, "tests.app.tasks.remind"])
def test_parquet(written, tmp_path, kind):
    for number in range(3):
        tasks.remind.enqueue(number)
    rows = ended()
    rows[1]["payload"] = '{"args":[]}'
    table = pa.Table.from_pylist([{**row, "state": row["outcome"]} for row in rows]).drop_columns("outcome")
    written()
    parquet.write_table(table, tmp_path / "history.parquet")
    report = replay(tmp_path / "history.parquet", kind=kind)
    assert (report.same, report.differences.total()) == (2, 1)
    assert f"history.parquet, row 2: message {rows[1]['id']}, args [], kwargs {{}}" in str(report)


def test_times_without_a_zone_are_utc(written, tmp_path):
    tasks.remind.enqueue(7)
    (row,) = ended()
    naive = {name: str(value.replace(tzinfo=None)) for name, value in row.items() if isinstance(value, datetime)}
    (read,) = open_history(written({**row, **naive})).rows()
    assert read.started_at == row["started_at"]


def test_without_pyarrow_it_is_named(tmp_path, monkeypatch):
    parquet.write_table(pa.table({"kind": ["a"]}), tmp_path / "history.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(HistoryFileError, match="is Parquet, which pyarrow reads: pip install pyarrow"):
        open_history(tmp_path / "history.parquet")


def test_what_is_no_history_is_refused(tmp_path):
    with pytest.raises(HistoryFileError, match=r"nowhere\.jsonl can't be read: No such file"):
        open_history(tmp_path / "nowhere.jsonl")
    with pytest.raises(HistoryFileError, match="has no Parquet files"):
        open_history(tmp_path)
    parquet.write_table(pa.table({"kind": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(HistoryFileError, match=r"has no column payload, state \(or outcome\): is it history of delay"):
        list(open_history(tmp_path / "other.parquet").rows())
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(HistoryFileError, match="can't be read as Parquet"):
        list(open_history(tmp_path / "broken.parquet").rows())
