"""The verdict: each rule is tested by making happen what it is about."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from delayedq.core.errors import fingerprint
from delayedq.models import CronSchedule, FinishedMessage
from delayedq.operations.pauses import pause, pause_task, resume, resume_task
from delayedq.operations.rules import Rule, Verb
from delayedq.operations.verdict import verdict
from delayedq.store import store_for, worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from tests.admin.given import dead, offer, run
from tests.store.given import LEASE
from tests.store.test_worker_registry import worker

MINUTE = timedelta(minutes=1)


@pytest.fixture
def now(store):
    """The moment of the verdict where it tells durations: the time that the test itself takes is in none of them."""
    return store.now()


@pytest.fixture
def works(store, now):
    """Lets worker processes have a heartbeat, so long ago."""

    def beat(name="w1", *, ago=timedelta(), **fields):
        worker_registry(store.alias).at(now - ago).heartbeat([worker(name, **fields)])

    return beat


def rules(store):
    return [finding.rule for finding in verdict(store)]


def only(store, now=None):
    (finding,) = verdict(store, now)
    return finding


def fail(store, number, line="app.Full: Seat {} is taken", **fields):
    name, _, said = line.partition(": ")
    for each in range(number):
        record = {"attempt": 1, "exception": name, "message": said.format(each)}
        dead(store, errors=json.dumps([record]), **fields)


def test_nothing_is_wrong(store, works):
    works()
    offer(store, "due just now", seconds=-1)
    offer(store, "later", seconds=600)
    assert verdict(store) == []


def test_an_empty_queue_without_workers_is_fine(store):
    offer(store, "later", seconds=600)
    assert verdict(store) == []


def test_messages_are_due_and_no_worker_lives(store, works, now):
    offer(store, seconds=-30, now=now)
    works(ago=5 * MINUTE)
    first, silent = verdict(store, now)
    assert (first.rule, silent.rule) == (Rule.NO_WORKER, Rule.WORKER)
    assert first.sentence == "No worker is running, and messages are due."
    assert abs(first.since - now + timedelta(seconds=30)) < timedelta(seconds=5)
    assert first.evidence == ["The last one was seen 5 min ago.", "The first message of mail has been due for 30 s."]
    assert (first.action.verb, first.action.command) == (Verb.WORKERS, "manage.py run_workers")


def test_a_queue_is_served_by_no_live_worker(store, works):
    works(queues="other")
    offer(store, seconds=-30)
    finding = only(store)
    assert (finding.rule, finding.subject) == (Rule.UNSERVED, "mail")
    assert finding.evidence[1] == "These workers live and serve other queues: w1"
    assert finding.action.command == "manage.py run_workers --queues mail"
    works(queues="mail")
    assert verdict(store) == []


def test_a_bare_queue_needs_no_worker(store):
    offer(store, queue="mail|str", seconds=-600)
    assert verdict(store) == []


def test_a_queue_is_late(store, works, now):
    works(threads=2, running="[1, 2]")
    offer(store, seconds=-300, now=now)
    finding = only(store, now)
    assert (finding.rule, finding.subject) == (Rule.LATE, "mail")
    assert finding.sentence == "The queue mail is late: its first message has been due for 5 min."
    assert finding.evidence == ["All 2 threads that serve it were busy at the last heartbeat."]
    assert dict(finding.action.about) == {"queue": "mail", "state": "due"}


def test_a_queue_is_late_though_threads_are_free(store, works, now):
    works(threads=12, running="[1, 2]")
    offer(store, seconds=-300, now=now)
    free = "10 of the 12 threads that serve it were free at the last heartbeat: capacity is not the cause."
    assert only(store, now).evidence == [free]


def test_a_paused_queue_has_a_backlog_until_it_is_resumed(store, works, now):
    works()
    pause("mail", "ann", store)
    assert verdict(store) == []
    offer(store, seconds=-300, now=now)
    finding = only(store, now)
    assert (finding.rule, finding.subject) == (Rule.PAUSED, "mail")
    assert finding.evidence == ["Paused by ann.", "The first message of mail has been due for 5 min."]
    assert (finding.action.verb, dict(finding.action.about)) == (Verb.RESUME, {"queue": "mail"})
    resume("mail", store)
    assert rules(store) == [Rule.LATE]


def test_a_paused_task_has_a_backlog_until_it_is_resumed(store, works, now):
    works()
    pause_task("tests.remind", "ann", store)
    assert verdict(store) == []
    offer(store, seconds=-30, now=now, kind="tests.remind")
    finding = only(store, now)
    assert (finding.rule, finding.subject) == (Rule.PAUSED, "tests.remind")
    assert finding.evidence == ["Paused by ann.", "Its first message has been due for 30 s."]
    assert (finding.action.verb, dict(finding.action.about)) == (Verb.RESUME_TASK, {"task": "tests.remind"})
    resume_task("tests.remind", store)
    assert verdict(store) == []


def test_an_error_spikes(store, works):
    works()
    fail(store, 9)
    assert verdict(store) == []
    fail(store, 3)
    finding = only(store)
    assert finding.rule is Rule.SPIKE
    assert finding.sentence == "app.Full: 12 messages failed of it for good in the last 10 min."
    assert finding.subject == "app.Full: Seat <n> is taken"
    assert abs(finding.since - store.now()) < MINUTE
    assert finding.action.verb is Verb.ERRORS
    newest = FinishedMessage.objects.latest("pk")
    assert finding.evidence[1] == f"The latest is #{newest.pk}, of {newest.kind}."
    assert finding.message_id == newest.pk
    assert dict(finding.action.about) == {"fingerprint": fingerprint("app.Full: Seat 1 is taken")}


def test_an_error_that_comes_as_often_as_ever_does_not_spike(store, works):
    works()
    fail(store, 20)
    ids = list(FinishedMessage.objects.values_list("pk", flat=True))
    for number, id_ in enumerate(ids[10:]):
        FinishedMessage.objects.filter(pk=id_).update(finished_at=store.now() - (11 + number) * MINUTE)
    (finding,) = verdict(store)
    assert finding.evidence[2] == "In the day before, 10."
    made = FinishedMessage.objects.get(pk=ids[0])
    rows = []
    for number in range(600):
        made.pk, made.finished_at = 10**6 + number, store.now() - (11 + number) * MINUTE
        rows.append(FinishedMessage(**{field.attname: getattr(made, field.attname) for field in made._meta.fields}))
    FinishedMessage.objects.bulk_create(rows)
    assert verdict(store) == []


def test_a_spike_begins_after_the_last_quiet_minutes(store, works):
    works()
    fail(store, 12)
    for minutes, row in zip([50, *range(11)], FinishedMessage.objects.all(), strict=True):
        FinishedMessage.objects.filter(pk=row.pk).update(finished_at=store.now() - minutes * MINUTE)
    finding = only(store)
    assert timedelta(minutes=9) < store.now() - finding.since < timedelta(minutes=12)


def test_no_worker_knows_a_task(store, works):
    works()
    fail(store, 1, "delayedq.exceptions.UnknownTask: gone.task is not registered", kind="gone.task")
    finding = only(store)
    assert (finding.rule, finding.subject) == (Rule.UNKNOWN_TASK, "gone.task")
    assert finding.evidence[1:] == [
        f"The latest is #{FinishedMessage.objects.get().pk}, of gone.task.",
        "Until a worker knows it, what is retried fails again.",
    ]
    assert finding.action.verb is Verb.ERRORS


def test_what_a_dead_worker_held_is_claimed_by_nobody(store, works):
    works("w2", queues="other")
    id_ = offer(store, seconds=-600)
    store.at(store.now() - 5 * MINUTE).claim(ClaimRequest([Lane("mail", 0)], 1, LEASE, "w1"))
    works("w1", ago=5 * MINUTE, running=f"[{id_}, 999999]", queues="mail")
    (finding,) = [finding for finding in verdict(store) if finding.rule is Rule.LOST]
    assert finding.subject == "w1"
    assert dict(finding.action.about) == {"state": "lost"}
    assert finding.sentence.startswith("1 message was lost by its worker")


def test_a_schedule_does_not_tick(store, works):
    works()
    row = {"owner": "", "covered_until": store.now(), "next_at": store.now() - 10 * MINUTE}
    CronSchedule.objects.create(name="report", **row)
    CronSchedule.objects.create(name="disabled", disabled_at=store.now(), **row)
    CronSchedule.objects.create(name="in time", **row | {"next_at": store.now() + MINUTE})
    finding = only(store)
    assert (finding.rule, finding.subject, dict(finding.action.about)) == (
        Rule.SCHEDULE,
        "report",
        {"schedule": "report"},
    )


def test_a_worker_reports_a_problem_or_nothing_any_more(store, works):
    works("w1", problems="its listener is deaf")
    works("w2", ago=2 * MINUTE)
    sentences = {finding.sentence for finding in verdict(store)}
    assert sentences == {"The worker w1 has a problem: its listener is deaf", "The worker w2 is silent."}


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_database_that_does_not_answer_is_the_verdict(store, tmp_path):
    connections.settings["gone"] = {**connections.settings[store.alias], "NAME": tmp_path / "no" / "file.sqlite3"}
    try:
        finding = only(store_for("gone"))
        assert (finding.rule, finding.subject) == (Rule.DATABASE, "gone")
        assert finding.evidence == ["unable to open database file"]
    finally:
        connections["gone"].close()
        del connections.settings["gone"], connections["gone"]


def test_the_worst_comes_first(store, works):
    works("w1", queues="mail", problems="deaf")
    pause("paused", "", store)
    offer(store, queue="paused", seconds=-600)
    offer(store, seconds=-600)
    offer(store, queue="unserved", seconds=-600)
    fail(store, 12)
    assert rules(store) == [Rule.UNSERVED, Rule.SPIKE, Rule.LATE, Rule.PAUSED, Rule.WORKER]


def test_the_verdict_takes_as_many_statements_for_any_number_of_messages(store, works, connection):
    works()
    counts = []
    for number in (1, 30):
        for each in range(number):
            offer(store, f"{number}-{each}", seconds=-600)
        fail(store, number)
        run(store)
        with CaptureQueriesContext(connection) as captured:
            verdict(store)
        counts.append(sum("delayedq_" in query["sql"] for query in captured))
    assert counts[0] == counts[1] <= 14  # MariaDB comes from lane to lane by one statement each: there are two here
