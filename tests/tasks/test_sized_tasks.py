"""Tasks whose limits have a size: what each way in answers when there is no room, and what is refused."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq import Limit, OfferOutcome, limits, schedules, task
from delayedq.compat import InvalidTask, TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from delayedq.conf import get_settings
from delayedq.exceptions import InvalidLimit, QueueFull
from delayedq.limits.rules import OnFull, Size
from delayedq.models import CronTick, Message
from delayedq.operations.sending import Sending, send
from delayedq.signals import tick_missed
from tests.app import tasks
from tests.app.tasks import collect, post
from tests.cron.given import HOURLY, NOW, beat_at

CREATED, UPDATED, DROPPED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.DROPPED


@pytest.fixture
def missed():
    told = []

    def receive(**given):
        told.append(given["reason"])

    tick_missed.connect(receive)
    yield told
    tick_missed.disconnect(receive)


# The ways in


def test_enqueue_answers_with_a_result_that_has_failed_and_no_id(store):
    sent = []

    def receive(task_result, **_):
        sent.append(task_result)

    task_enqueued.connect(receive)
    results = [post.enqueue("acme") for _ in range(3)]
    task_enqueued.disconnect(receive)

    assert [one.status for one in results] == [TaskResultStatus.READY] * 2 + [TaskResultStatus.FAILED]
    assert (results[2].id, results[2].errors[0].exception_class) == ("", QueueFull)
    assert len(sent) == 2
    with pytest.raises(TaskResultDoesNotExist):
        results[2].refresh()


def test_schedule_at_answers_with_the_outcome_and_the_size(store):
    when = timezone.now() + timedelta(hours=1)
    scheduled = [post.schedule_at(when, "acme", key=key) for key in ("1", "2", "3", "1")]
    assert [one.outcome for one in scheduled] == [CREATED, CREATED, DROPPED, OfferOutcome.IGNORED]
    assert [one.size for one in scheduled] == [1, 2, 2, 2]
    assert scheduled[2].id is None


def test_enqueue_many_answers_for_each_and_enqueue_bulk_counts_what_is_stored(store):
    calls = [((name,), {}) for name in ("a", "a", "a", "b")]
    assert [one.outcome for one in post.enqueue_many(calls)] == [CREATED, CREATED, DROPPED, CREATED]
    assert post.enqueue_bulk(calls + [(("c",), {})] * 3, chunk_size=3) == 3


def test_raise_stores_nothing(store):
    collect.enqueue()
    for offer in (collect.enqueue, lambda: collect.enqueue_many([((), {})]), lambda: collect.schedule_in(timedelta())):
        with pytest.raises(QueueFull, match=r"The limit tests.app.tasks.collect has 1 messages, and a size of 1"):
            offer()
    assert Message.objects.count() == 1


def test_what_is_dropped_is_one_line_of_the_log(store, caplog):
    channel = f"on {store.database.connection.vendor}"  # at most one line per second and channel
    with caplog.at_level(logging.WARNING, "delayedq"):
        post.enqueue_many([((channel,), {})] * 4)
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"{channel!r} of tests.app.tasks.post in webhooks has reached its size of 2: an offer" in said


def test_an_operator_who_sends_one_is_told(store):
    post.enqueue_many([(("acme",), {})] * 2)
    with pytest.raises(QueueFull, match="nothing was stored"):
        send(store, Sending(post, {"customer": "acme"}, queue="webhooks", priority=0, max_attempts=1))


# Cron


def test_a_tick_that_finds_no_room_is_missed(store, missed, django_capture_on_commit_callbacks):
    collect.enqueue()
    with django_capture_on_commit_callbacks(using=store.alias, execute=True):
        beat_at(store, NOW, often={**HOURLY, "task": collect.module_path, "args": []})
    assert missed == ["a limit of its task is full"]
    assert CronTick.objects.get().message_id is None
    assert Message.objects.count() == 1


def test_a_schedule_that_is_run_by_hand_is_told(store):
    post.enqueue_many([(("acme",), {})] * 2)
    schedules.create("post", task=post.module_path, cron="0 0 1 1 *", args=["acme"])
    with pytest.raises(QueueFull, match="nothing was stored"):
        schedules.run_now("post")


# What is refused


@pytest.mark.parametrize("size", [0, -1, 2.5, "2", True])
def test_a_wrong_size_is_refused(size):
    with pytest.raises(
        ValueError, match="size of a Limit is a whole number of at least 1 and at most 2,147,483,647, not"
    ):
        Limit(size=size)


def test_a_wrong_on_full_is_refused():
    with pytest.raises(ValueError, match="on_full of a Limit is one of 'drop', 'raise', 'drop_oldest', not 'wait'"):
        Limit(size=1, on_full="wait")


def test_two_shared_limits_of_different_sizes_are_refused():
    task(limit=Limit(name="sized", size=1))(test_a_wrong_on_full_is_refused)
    with pytest.raises(InvalidTask, match="the shared limit 'sized' is defined differently"):
        task(limit=Limit(name="sized", size=2))(test_a_wrong_size_is_refused)


def test_settings_give_a_queue_a_size(settings, store):
    settings.DELAYEDQ = {"LIMITS": {"default": {"size": 1, "on_full": "drop_oldest"}}}
    assert get_settings().LIMITS["default"].on_full is OnFull.DROP_OLDEST
    assert tasks.echo.offer(["a"], {}, when=None).sizes == (Size("default", 1, OnFull.DROP_OLDEST),)
    assert [tasks.echo.enqueue(1).status, tasks.echo.enqueue(2).status] == [TaskResultStatus.READY] * 2
    assert Message.objects.count() == 1


# Live


def test_a_size_is_set_live_where_one_is_defined(store):
    limits.set(post.module_path, channel="acme", size=1)
    assert [one.outcome for one in post.enqueue_many([((name,), {}) for name in ("acme", "acme", "b", "b", "b")])] == [
        *(CREATED, DROPPED, CREATED, CREATED, DROPPED)
    ]
    limits.clear(post.module_path, channel="acme")
    assert post.enqueue("acme").status == TaskResultStatus.READY
    limits.set(collect.module_path, size=5)
    assert [collect.schedule_in(timedelta()).size for _ in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("channel", ["", "acme"])
def test_a_size_is_set_nowhere_else(store, channel):
    with pytest.raises(InvalidLimit, match=r"only where the code defines one.*give it a Limit with a size"):
        limits.set(tasks.deliver.module_path, channel=channel, size=1)
    assert limits.live() == {}
