"""Metrics: what the databases hold, and how what workers count is shown."""

from __future__ import annotations

import re
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import RequestFactory

from delayedq import metrics
from delayedq.core.bounds import OTHERS
from delayedq.limits import rules_for
from delayedq.limits.channels import Channels
from delayedq.models import FinishedMessage
from delayedq.operations import backlogs
from delayedq.operations.pauses import pause, pause_task
from delayedq.store.protocol import ClaimRequest, Lane
from delayedq.testing import run_due
from delayedq.worker.tally import Counts
from tests.app import tasks
from tests.store.given import message

NUMBERS = {"priority": 0, "attempts": 1, "max_attempts": 8}
ECHO = tasks.echo.module_path


@pytest.fixture(autouse=True)
def _nothing_cached():
    metrics._cache.clear()


def values_of(text):
    """By name with its labels, as in the text."""
    found = re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def exposed():
    metrics._cache.clear()
    return values_of(metrics.exposed()[0].decode())


def test_messages_are_counted_by_state_queue_and_task(store):
    store.offer_many([message(scheduled_at=None, queue="a", kind=ECHO)] * 3)
    store.offer(message(scheduled_at=store.now() + timedelta(hours=1), queue="a", kind=ECHO))
    assert store.claim(ClaimRequest([Lane("a", 0)], 1, timedelta(minutes=1), "worker"))
    found, where = exposed(), f'database="{store.alias}"'
    labels = f'{{{where},queue="a",task="{ECHO}"}}'

    states = ("due", "scheduled", "running")
    assert [found[f"delayedq_{state}{labels}"] for state in states] == [2, 1, 1]
    assert found[f"delayedq_up{{{where}}}"] == 1
    assert found[f"delayedq_offers_total{{{where}}}"] >= 4
    assert found[f'delayedq_oldest_due_seconds{{{where},queue="a"}}'] >= 0


def test_the_oldest_due_message_is_known_by_task(store):
    ago = {ECHO: 50, tasks.nothing.module_path: 90, tasks.fail.module_path: 400}
    now = store.now()
    for kind, seconds in ago.items():
        store.offer(message(scheduled_at=now - timedelta(seconds=seconds), queue="a", kind=kind))
        store.offer(message(scheduled_at=now - timedelta(seconds=seconds // 2), queue="a", kind=kind))
    store.offer(message(scheduled_at=now - timedelta(seconds=900), queue="b", kind=ECHO))
    pause_task(tasks.fail.module_path, store=store)
    pause("b", store=store)
    found = {name: value for name, value in exposed().items() if name.startswith("delayedq_task_oldest_due_seconds")}

    where = f'delayedq_task_oldest_due_seconds{{database="{store.alias}",queue="a",task='
    due = {f'{where}"{kind}"}}': ago[kind] for kind in (ECHO, tasks.nothing.module_path)}
    assert found == pytest.approx(due, abs=20)


def test_channels_and_what_may_wait_for_limits_are_shown(store):
    tasks.deliver.enqueue_many([(("acme",), {})] * 2)
    Channels.of(store).claim(rules_for(lambda queue: True), 9, timedelta(minutes=1), "w:1")
    found, where = exposed(), f'{{database="{store.alias}",queue="webhooks"'

    assert found[f"delayedq_limited_due{where}}}"] == 1
    assert found[f'delayedq_channels{where},state="resting"}}'] == 1
    assert f"delayedq_oldest_limited_seconds{where}}}" in found


def test_more_than_few_are_counted_by_queue_alone(store, monkeypatch):
    monkeypatch.setattr(backlogs, "FEW", 5)
    store.offer_many([message(scheduled_at=None, queue="a", kind=ECHO)] * 4)
    store.offer_many([message(scheduled_at=None, queue="b", kind=ECHO)] * 4)
    found = exposed()

    for queue in "ab":
        assert found[f'delayedq_due{{database="{store.alias}",queue="{queue}",task=""}}'] == 4
    assert not [name for name in found if ECHO in name]


def test_names_are_bounded_and_the_queue_that_is_late_is_one_of_them(store, monkeypatch):
    """Few messages in many queues, and then more of them than are read one by one."""
    monkeypatch.setattr(backlogs, "QUEUES", 3)
    for number, late in enumerate("abcdef"):
        store.offer(message(scheduled_at=store.now() - timedelta(minutes=number + 1), queue=late, kind=ECHO))
        failed(store, number + 1, late)
    few = backlogs.backlog(store)
    monkeypatch.setattr(backlogs, "FEW", 5)
    many = backlogs.backlog(store)

    others = (backlogs.OTHERS, backlogs.OTHERS)
    assert few.due == few.dead == {("a", ECHO): 1, ("b", ECHO): 1, ("c", ECHO): 1, others: 3}
    assert list(few.oldest) == list(many.oldest) == ["f", "e", "d", OTHERS]
    assert few.oldest[OTHERS] == pytest.approx(180, abs=30)
    assert many.due == {("f", ""): 1, ("e", ""): 1, ("d", ""): 1}
    assert (many.dead, backlogs.OTHERS) == ({("", ""): 6}, OTHERS)


def failed(store, id_, queue):
    times = dict.fromkeys(
        ["finished_at", "started_at", "scheduled_at", "scheduled_at_initially", "created_at"], store.now()
    )
    ended = FinishedMessage(id=id_, kind=ECHO, queue=queue, outcome="failed", payload="{}", **times, **NUMBERS)
    ended.save(using=store.alias)


def test_dead_letters_and_the_age_of_the_history(store):
    for outcome, days in (("failed", 9), ("succeeded", 2)):
        at = store.now() - timedelta(days=days)
        times = dict.fromkeys(["finished_at", "started_at", "scheduled_at", "scheduled_at_initially", "created_at"], at)
        FinishedMessage(id=days, kind=ECHO, queue="a", outcome=outcome, payload="{}", **times, **NUMBERS).save()
    found, where = exposed(), f'database="{store.alias}"'

    assert sum(value for name, value in found.items() if name.startswith("delayedq_dead_letters")) == 1
    assert found[f"delayedq_history_oldest_seconds{{{where}}}"] == pytest.approx(2 * 86_400, abs=60)


def test_old_dead_letters_do_not_hide_the_age_of_what_is_pruned(store, monkeypatch):
    monkeypatch.setattr(backlogs, "FEW", 2)
    for number in range(4):
        failed(store, number + 1, "a")
    FinishedMessage.objects.using(store.alias).update(finished_at=store.now() - timedelta(days=60))
    assert backlogs.backlog(store).history == 0
    failed(store, 5, "a")
    FinishedMessage.objects.using(store.alias).filter(id=5).update(
        outcome="succeeded", finished_at=store.now() - timedelta(days=2)
    )

    assert backlogs.backlog(store).history == pytest.approx(2 * 86_400, abs=60)


def test_the_count_of_offers_does_not_go_back_when_all_that_ended_is_deleted(store):
    tasks.echo.enqueue("hello")
    run_due()
    metric = f'delayedq_offers_total{{database="{store.alias}"}}'
    text = metrics.exposed()[0].decode()
    FinishedMessage.objects.using(store.alias).all().delete()
    metrics._cache.expire()

    assert values_of(metrics.exposed()[0].decode())[metric] == values_of(text)[metric] > 0


def test_a_database_is_read_once_however_often_it_is_asked(store, django_assert_num_queries):
    metrics.view(RequestFactory().get("/metrics"))
    with django_assert_num_queries(0, connection=connections[store.alias]):
        answer = metrics.view(RequestFactory().get("/metrics", headers={"Accept": "application/openmetrics-text"}))

    assert answer["Content-Type"].startswith("application/openmetrics-text")
    assert answer.content.endswith(b"# EOF\n")


def test_what_it_costs_does_not_grow_with_the_number_of_messages(store, django_assert_max_num_queries):
    of_lanes = 6 if connections[store.alias].vendor == "mysql" else 0  # it looks for each lane with a statement
    statements = []
    for _ in range(2):
        store.offer_many([message(scheduled_at=None, queue=f"q{number % 3}", kind=ECHO) for number in range(1_100)])
        with django_assert_max_num_queries(25 + of_lanes, connection=connections[store.alias]) as context:
            backlogs.backlog(store)
        statements.append(len(context.captured_queries))
    assert statements[1] <= statements[0]


def test_the_command_prints_the_same(store):
    store.offer(message(scheduled_at=None, kind=ECHO))
    out = StringIO()
    call_command("delayedq", "metrics", stdout=out)

    assert f'task="{ECHO}"' in out.getvalue()


def test_histograms_are_cumulated_and_summed():
    counts = Counts()
    for seconds in (0.001, 0.2, 7_200):
        counts.observe(("run_seconds", "default", "q", ECHO), seconds)
    (family,) = [one for one in metrics.of_workers(counts) if one.name == "delayedq_run_seconds"]
    by_bound = {sample.labels.get("le"): sample.value for sample in family.samples if sample.name.endswith("bucket")}

    assert (by_bound["0.005"], by_bound["0.25"], by_bound["3600.0"], by_bound["+Inf"]) == (1, 2, 2, 3)
    assert [sample.value for sample in family.samples if sample.name.endswith("_sum")] == [pytest.approx(7_200.201)]
