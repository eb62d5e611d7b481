"""`manage.py delayedq workers-needed`, on each database."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from delayedq.management.arguments import processes, scale_on
from delayedq.models import FinishedMessage
from delayedq.operations import backlogs
from delayedq.operations.backlogs import demand
from delayedq.operations.pauses import pause_task
from tests.app import tasks
from tests.store.given import message

ECHO = tasks.echo.module_path


def needed(*flags):
    out = StringIO()
    call_command("delayedq", "workers-needed", "--target-latency", "30s", *flags, stdout=out)
    return out.getvalue()


def ended(store, count, run, queue="default"):
    """Each was due 10 s ago, and has run for so many seconds."""
    now = store.now()
    for number in range(count):
        times = {"scheduled_at": now - timedelta(seconds=10), "finished_at": now - timedelta(seconds=1)}
        started = times["finished_at"] - timedelta(seconds=run)
        times |= {"started_at": started, "created_at": started, "scheduled_at_initially": times["scheduled_at"]}
        numbers = {"priority": 0, "attempts": 1, "max_attempts": 8}
        FinishedMessage(
            id=10_000 + number, kind=ECHO, queue=queue, outcome="succeeded", payload="{}", **times, **numbers
        ).save()


def test_nothing_to_do_needs_no_worker(store):
    assert needed().startswith("0 worker processes are needed, that is 0 threads: 0 due")


def test_what_is_due_and_what_comes_is_counted(store):
    store.offer_many([message(scheduled_at=None, queue="default", kind=ECHO)] * 600)
    store.offer(message(scheduled_at=store.now() + timedelta(hours=1), queue="default", kind=ECHO))
    ended(store, 60, run=2.0)
    found = json.loads(needed("--json", "--threads", "4"))

    assert (found["due"], found["run_seconds"]) == (600, pytest.approx(2.0))
    assert found["arrivals"] == pytest.approx(660 / 60)
    assert found["threads"] >= 22 + 600 * 2 // 30
    assert found["processes"] == -(-found["threads"] // 4)


def test_only_the_queues_that_are_served_count(store):
    store.offer_many([message(scheduled_at=None, queue=queue, kind=ECHO) for queue in ("a", "b", "b", "x|json")])
    ended(store, 3, run=1.0, queue="a")

    assert json.loads(needed("--json", "--queues", "b"))["due"] == 2
    assert json.loads(needed("--json", "--queues", "b"))["run_seconds"] == 0
    assert json.loads(needed("--json"))["due"] == 3


def test_what_waits_for_a_limit_does_not_count(store):
    store.offer_many([message(scheduled_at=None, queue="default", kind=ECHO, channel="tenant")] * 5)

    assert json.loads(needed("--json"))["due"] == 0


def test_what_is_due_in_all_queues_is_counted_together(store):
    store.offer_many([message(scheduled_at=None, queue=f"q{number % 3}", kind=ECHO) for number in range(1_500)])
    found = demand(store)

    assert found.due == 1_500
    assert found.arrivals == pytest.approx(1_500 / 60)


def test_what_is_paused_needs_no_workers(store):
    store.offer_many([message(scheduled_at=None, queue="default", kind=tasks.nothing.module_path)] * 30)
    store.offer(message(scheduled_at=None, queue="default", kind=ECHO))
    pause_task(tasks.nothing.module_path, store=store)
    found = demand(store)

    assert (found.due, found.arrivals) == (1, pytest.approx(1 / 60))


def test_the_read_is_bounded(store, monkeypatch, django_assert_max_num_queries):
    monkeypatch.setattr(backlogs, "COUNTED", 1_000)
    store.offer_many([message(scheduled_at=None, queue=f"q{number % 3}", kind=ECHO) for number in range(1_500)])
    with django_assert_max_num_queries(15, connection=connections[store.alias]) as asked:
        found = demand(store)

    assert 1_000 <= found.due <= 3_000, "an estimate, where the database has one"
    assert found.oldest_due >= 0
    counts = [one["sql"] for one in asked.captured_queries if "COUNT(*)" in one["sql"].upper()]
    assert [("LIMIT 1001" in sql) for sql in counts] == [True, True]


@pytest.mark.parametrize("text", ["", "latency", "latency=0s", "speed=3s", "latency=30"])
def test_a_scale_that_makes_no_sense_is_refused(text, store):
    with pytest.raises(CommandError, match=r"latency|age|unknown"):
        call_command("run_workers", "--processes", "1-8", "--scale-on", text)


@pytest.mark.parametrize(
    "flags",
    [
        ("--processes", "1-8"),
        ("--processes", "2", "--scale-on", "latency=9s"),
        ("--processes", "8-1"),
        ("--processes", "0-1"),
        ("--processes", "1-8", "--scale-on", "latency=9s", "--drain"),
    ],
)
def test_bounds_and_a_scale_belong_together(flags, store):
    with pytest.raises(CommandError, match=r"--processes 1-8|lower number first|over 0|drain"):
        call_command("run_workers", *flags)


@pytest.mark.parametrize(
    ("argument", "text"), [(processes, "1-"), (processes, "-8"), (scale_on, "latency=30s,latency=1s")]
)
def test_half_a_range_and_a_name_given_twice_are_refused(argument, text):
    with pytest.raises(ArgumentTypeError):
        argument(text)
