"""Why a message with a channel does not run: its limits, in sentences."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq import Limit, limits
from delayedq.exceptions import InvalidLimit, InvalidMessage
from delayedq.limits import rules_for
from delayedq.limits.channels import Channels
from delayedq.models import ChannelMessage, ChannelNotice, Message
from delayedq.operations.explain import explain
from delayedq.operations.rules import Rule
from delayedq.operations.verdict import verdict
from delayedq.store import operator_store, worker_registry
from delayedq.store.operator import Seen
from delayedq.store.protocol import Offer
from tests.app import tasks
from tests.store.given import NOW, at, retry, settle
from tests.store.test_worker_registry import worker


@pytest.fixture
def served(store):
    worker_registry(store.alias).at(NOW).heartbeat([worker("w:1")])


def offer(store, task, number, channel=""):
    offers = [Offer("webhooks", task.module_path, "{}", None, at(-9), 0, 3, None, channel) for _ in range(number)]
    return store.at(NOW).offer_many(offers)


def claim(store):
    return Channels.of(store.at(NOW)).claim(rules_for(lambda queue: True), 9, timedelta(minutes=1), "w:1").claimed


def cancel(store, offered):
    seen = [Seen._make(getattr(one, name) for name in Seen._fields) for one in found(offered)]
    assert len(operator_store(store.alias).at(NOW).cancel(seen)) == len(offered)
    assert ChannelMessage.objects.filter(message_id__in=[one.id for one in offered]).count() == len(offered)


def found(offered):
    return Message.objects.filter(pk__in=[one.id for one in offered])


def why(offered):
    return [answer.text for answer in explain(Message.objects.get(pk=offered.id), NOW)]


def test_what_runs_and_what_waits_before_it(store, served):
    offered = offer(store, tasks.deliver, 4, "acme")
    claim(store)

    assert why(offered[-1]) == ["Channel acme has 1 of 1 running.", "2 of channel acme wait before it."]
    assert why(offered[1]) == ["Channel acme has 1 of 1 running."]


def test_what_was_cancelled_in_a_full_channel_does_not_wait_before_it(store, served):
    offered = offer(store, tasks.deliver, 5, "acme")
    claim(store)
    cancel(store, offered[1:3])

    assert why(offered[-1]) == ["Channel acme has 1 of 1 running.", "1 of channel acme wait before it."]


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


# Pauses and limits that are set live


def test_a_paused_channel_is_paused_until_it_is_resumed(store, served):
    offered = offer(store, tasks.deliver, 2, "acme")
    others = offer(store, tasks.deliver, 1, "other")
    path = tasks.deliver.module_path
    assert limits.pause(path, channel="acme", by="ann", store=store.at(NOW))
    assert not limits.pause(path, channel="acme", store=store.at(NOW))

    assert [one.id for one in claim(store)] == [others[0].id]
    assert why(offered[1]) == ["Channel acme is paused.", "1 of channel acme wait before it."]
    assert limits.resume(path, channel="acme", store=store.at(NOW))
    assert not limits.resume(path, channel="acme", store=store.at(NOW))
    assert len(claim(store)) == 1
    assert limits.live(store) == {}


def test_a_pause_gives_back_the_limit_that_was_set_before(store, served):
    path = tasks.deliver.module_path
    limits.set(path, channel="acme", concurrency=2, store=store.at(NOW))
    limits.pause(path, channel="acme", store=store.at(NOW))
    assert limits.live(store)[path, "acme"].is_paused
    limits.resume(path, channel="acme", store=store.at(NOW))
    assert limits.live(store) == {(path, "acme"): Limit(concurrency=2)}


def test_a_whole_queue_and_a_whole_task_are_limited_live_also_if_the_code_limits_only_channels(store, served):
    offered = offer(store, tasks.deliver, 1, "a") + offer(store, tasks.deliver, 1, "b")
    limits.set("webhooks", concurrency=1, store=store.at(NOW))
    assert len(claim(store)) == 1
    assert claim(store) == []
    limits.set("webhooks", concurrency=2, store=store.at(NOW))
    limits.pause(tasks.deliver.module_path, store=store.at(NOW))
    assert claim(store) == []
    assert f"The limit {tasks.deliver.module_path} is paused." in why(offered[0]) + why(offered[1])
    limits.clear(tasks.deliver.module_path, store=store.at(NOW))
    assert len(claim(store)) == 1


def test_only_what_has_channels_can_be_paused(store):
    with pytest.raises(InvalidLimit, match="'nowhere' has no channels"):
        limits.pause("nowhere", store=store.at(NOW))
    with pytest.raises(InvalidMessage, match="a channel is a text"):
        limits.pause("webhooks", channel="x" * 201, store=store.at(NOW))


# Not late, but limited


def test_what_waits_for_a_limit_is_not_late_and_what_waits_for_none_is(store):
    worker_registry(store.alias).at(at(59)).heartbeat([worker("w:1")])
    offer(store, tasks.deliver, 2, "acme")
    assert [one.rule for one in verdict(store, at(59))] == [Rule.LATE]
    claim(store)
    assert verdict(store, at(59)) == []


# What blocks a channel


def blocked(store):
    """Two messages of a channel with a strict order: the first is to be tried again in half a minute."""
    offered = offer(store, tasks.notify, 2, "acme")
    (first,) = claim(store)
    settle(store, retry(first, delay=30.0))
    assert claim(store) == []
    return offered


def test_what_blocks_a_channel_is_named_and_until_when(store, served):
    first, second = blocked(store)

    (said,) = why(second)
    assert said.startswith(f"Channel acme is blocked by message {first.id}, which is tried again in 30 s, ")
    assert said.endswith("; `channels skip` lets the others start.")


def test_the_channel_of_a_message_that_is_unscheduled_is_looked_at(store, served):
    tasks.notify.schedule_at(at(-9), "acme", 1, key="first")
    (first,) = claim(store)
    settle(store, retry(first, delay=30.0))
    assert claim(store) == []
    assert tasks.notify.unschedule(key="first")

    assert ChannelNotice.objects.get().name == "acme"


def test_what_waits_behind_a_message_that_blocks_it_is_not_late(store):
    blocked(store)
    worker_registry(store.alias).at(at(20)).heartbeat([worker("w:1")])
    assert verdict(store, at(20)) == []


def test_what_no_worker_knows_is_left_alone_and_not_said_to_fail(store, served):
    (offered,) = store.at(NOW).offer_many([Offer("webhooks", "tests.gone", "{}", None, at(-9), 0, 3, None, "acme")])

    assert claim(store) == []
    (said,) = why(offered)
    assert said.startswith("Its task is not registered here: tests.gone. It has a channel or a limit, so workers")
