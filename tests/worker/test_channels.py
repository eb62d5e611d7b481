"""Workers and messages with a channel: claimed, run and ended within their limits."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from delayedq import limits
from delayedq.limits.channels import Channels
from delayedq.models import Channel, ChannelMessage, FinishedMessage, Message
from delayedq.operations.leftovers import leftovers, tell_what_is_left
from delayedq.tasks import registered
from delayedq.worker.loop import Loop
from delayedq.worker.shared_leases import SharedLeases
from tests.app import tasks
from tests.limits.channels import left_behind
from tests.worker.conftest import eventually


def test_a_worker_runs_them_and_leaves_nothing_behind(drain):
    for number in range(30):
        tasks.deliver.enqueue(number % 3)
    drain()

    assert FinishedMessage.objects.filter(outcome="succeeded").count() == 30
    assert (Message.objects.count(), ChannelMessage.objects.count()) == (0, 0)


def test_what_workers_before_have_left_is_removed_also_where_nothing_waits(drain):
    tasks.deliver.enqueue(1)
    Message.objects.all().delete()
    assert sum(left_behind()) > 0
    drain()
    assert left_behind() == (0, 0, 0)


def test_beside_messages_without_a_channel(drain):
    for number in range(30):
        tasks.deliver.enqueue(number % 3)
        tasks.echo.enqueue(number)
    drain()
    assert FinishedMessage.objects.filter(outcome="succeeded").count() == 60


def test_one_at_a_time_of_each_channel(drain, options):
    running, most = [], []

    def body():
        running.append(1)
        most.append(len(running))
        eventually(lambda: True)
        running.pop()

    tasks.bodies["watched"] = body
    for _ in range(20):
        tasks.deliver.enqueue("acme", "watched")
    drain(replace(options, threads=4))

    assert len(most) == 20
    assert max(most) == 1


def test_leases_that_ran_out_are_left_to_their_keepers_while_renewals_do_not_go_through(drain, monkeypatch):
    told = set()
    claim = Channels.claim

    def watched(*arguments, expired, **options):
        told.add(expired)
        return claim(*arguments, expired=expired, **options)

    monkeypatch.setattr(Channels, "claim", watched)
    monkeypatch.setattr(SharedLeases, "may_claim_expired", lambda self: False)
    tasks.deliver.enqueue("acme")
    drain()
    assert told == {False}


def test_a_rate_leaves_the_rest_for_later(drain):
    for number in range(5):
        tasks.report.enqueue(number)
    drain()
    assert (FinishedMessage.objects.count(), Message.objects.count()) == (2, 3)
    assert Channel.objects.get().is_ready


def test_a_worker_of_another_queue_leaves_them_alone(drain, options):
    tasks.deliver.enqueue("acme")
    drain(replace(options, queues=["mail"]))
    assert Message.objects.count() == 1
    drain(replace(options, queues=["webhooks"]))
    assert Message.objects.count() == 0
    assert left_behind()[1] == 0


@pytest.mark.parametrize("obstacle", ["an unknown task", "a pause"])
def test_a_drain_ends_and_says_what_it_left(store, options, caplog, monkeypatch, obstacle):
    for number in range(3):
        tasks.deliver.enqueue(number)
    tasks.echo.enqueue(1)
    if obstacle == "a pause":
        limits.pause("webhooks", store=store)
    else:
        monkeypatch.delitem(registered, tasks.deliver.module_path)

    loop = Loop(store, replace(options, drain=True, poll_interval=timedelta(seconds=5)), "test")
    too_late = threading.Timer(60, loop.stop)
    too_late.start()
    loop.run()
    assert too_late.is_alive()
    too_late.cancel()
    assert FinishedMessage.objects.count() == 1

    said = [one.message for one in caplog.records if "leaves messages of" in one.message]
    assert len(said) == (obstacle == "an unknown task")
    assert all(tasks.deliver.module_path in text and "AppConfig.ready()" in text for text in said)
    caplog.clear()
    tell_what_is_left(store, lambda queue: True)
    (told,) = (one.message for one in caplog.records)
    assert told.startswith(f"The drain has left 3 due message(s) of {tasks.deliver.module_path} in queue webhooks. ")
    assert ("not registered" if obstacle == "an unknown task" else "paused") in told
    assert leftovers(store, lambda queue: queue != "webhooks") == []
