"""Why a message with a channel does not run: its limits, in sentences."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.limits import rules_for
from delayedq.models import Message
from delayedq.operations.explain import explain
from delayedq.store import worker_registry
from delayedq.store.protocol import Offer
from tests.app import tasks
from tests.store.given import NOW, at
from tests.store.test_worker_registry import worker


@pytest.fixture
def served(store):
    worker_registry(store.alias).at(NOW).heartbeat([worker("w:1")])


def offer(store, task, number, channel=""):
    offers = [Offer("webhooks", task.module_path, "{}", None, at(-9), 0, 3, None, channel) for _ in range(number)]
    return store.at(NOW).offer_many(offers)


def claim(store):
    return store.at(NOW).claim_channels(rules_for(lambda queue: True), 9, timedelta(minutes=1), "w:1").claimed


def why(offered):
    return [answer.text for answer in explain(Message.objects.get(pk=offered.id), NOW)]


def test_what_runs_and_what_waits_before_it(store, served):
    offered = offer(store, tasks.deliver, 4, "acme")
    claim(store)

    assert why(offered[-1]) == ["Channel acme has 1 of 1 running.", "2 of channel acme wait before it."]
    assert why(offered[1]) == ["Channel acme has 1 of 1 running."]


def test_the_next_release_instant(store, served):
    offered = offer(store, tasks.report, 4)
    assert len(claim(store)) == 2

    first, second = why(offered[-1])
    assert first.startswith(f"The limit {tasks.report.module_path} has its next release in 30 min, ")
    assert second == "1 of its task wait before it."


def test_a_message_in_turn_is_ready(store, served):
    (offered,) = offer(store, tasks.deliver, 1, "acme")
    assert why(offered) == ["Nothing is in its way: a worker is about to take it."]


def test_what_its_queue_and_its_time_say_comes_first(store):
    (offered,) = offer(store, tasks.deliver, 1, "acme")
    assert why(offered) == ["No live worker serves its queue, webhooks."]
