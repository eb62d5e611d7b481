"""What waits for a limit is shown apart from what is late: by the verdict, health, metrics and figures."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from delayedq import limits
from delayedq.limits import rules_for
from delayedq.limits.channels import Channels
from delayedq.limits.lateness import ChannelWait, waits
from delayedq.limits.operator import page_of_channels
from delayedq.limits.requests import Events
from delayedq.limits.waiting import due_since, waiting_in
from delayedq.models import ChannelGroup, ChannelMessage, ChannelNotice
from delayedq.operations import backlogs
from delayedq.operations.backlogs import backlog
from delayedq.operations.doctor import health
from delayedq.operations.figures import Span, figures
from delayedq.operations.rules import Rule
from delayedq.operations.verdict import late_queues, verdict
from delayedq.store import worker_registry
from delayedq.store.protocol import Offer
from tests.app import tasks
from tests.operations.test_explain_limits import cancel
from tests.store.given import NOW, at, claim_one, message, retry, succeed
from tests.store.test_worker_registry import worker

LATER = at(300)


def offer(store, task, number=1, channel="", due=0):
    offers = [Offer("webhooks", task.module_path, "{}", None, at(due), 0, 3, None, channel) for _ in range(number)]
    return store.at(NOW).offer_many(offers)


def claim(store, now=NOW, limit=9):
    lease = timedelta(minutes=60)
    return Channels.of(store.at(now)).claim(rules_for(lambda queue: True), limit, lease, "w:1").claimed


def waited(store, now=LATER):
    return waits(store, store.at(now).scan(), now)


def test_what_waits_for_a_concurrency_is_limited(store):
    offer(store, tasks.deliver, 3, "acme")
    claim(store)
    assert waited(store) == {"webhooks": ChannelWait(0.0, 300.0)}


def test_what_waits_for_a_rate_is_limited(store):
    offer(store, tasks.report, 9)
    assert len(claim(store)) == 2
    assert waited(store) == {"webhooks": ChannelWait(0.0, 300.0)}


@pytest.mark.parametrize("channel", ["acme", ""])
def test_what_is_paused_is_limited(store, channel):
    offer(store, tasks.deliver, 3, "acme")
    limits.pause(tasks.deliver.module_path, channel=channel, store=store.at(NOW))
    assert claim(store) == []
    assert waited(store) == {"webhooks": ChannelWait(0.0, 300.0)}


def test_what_waits_for_a_worker_is_late_also_behind_what_is_limited_for_longer(store):
    """The limited message is the oldest in its lane; another channel has room, and nobody comes."""
    offer(store, tasks.deliver, 2, "acme")
    claim(store)
    offer(store, tasks.deliver, 2, "other", due=100)
    assert waited(store) == {"webhooks": ChannelWait(200.0, 300.0)}
    assert late_queues(store, LATER) == {"webhooks"}


def test_what_was_cancelled_while_its_channel_was_full_does_not_wait(store):
    offered = offer(store, tasks.deliver, 3, "acme") + offer(store, tasks.deliver, 1, "acme", due=100)
    claim(store)
    cancel(store, offered[1:3])
    assert waited(store) == {"webhooks": ChannelWait(0.0, 200.0)}
    (listed,) = page_of_channels(store, LATER).channels
    assert (listed.waiting, listed.running) == (1, 1)


@pytest.mark.parametrize(("dead", "counted"), [(3, 3), (7, 3), (9, 1), (50, 0)])
def test_places_without_a_message_are_left_out_and_the_number_that_is_looked_at_is_bounded(store, dead, counted):
    ChannelMessage.objects.bulk_create(ChannelMessage(10**9 + n, 7, 7, 0, at(n - 99)) for n in range(dead))
    offered = offer(store, tasks.deliver, 3)
    ChannelMessage.objects.filter(message_id__in=[one.id for one in offered]).update(channel_id=7)
    assert waiting_in(store, [7, 8], LATER, 1) == {7: min(counted, 2), 8: 0}
    assert due_since(store, [7, 8], LATER) == {7: at(0)}


def test_the_verdict_names_what_is_late_and_says_what_is_limited(store):
    worker_registry(store.alias).at(LATER).heartbeat([worker("w:1")])
    offer(store, tasks.deliver, 2, "acme")
    claim(store)
    assert verdict(store, LATER) == []

    offer(store, tasks.deliver, 2, "other", due=100)
    (finding,) = verdict(store, LATER)
    assert (finding.rule, finding.since) == (Rule.LATE, at(100))
    assert finding.evidence[1] == "Other messages wait for a limit, the first for 5 min: they are not late."


def test_health_passes_while_messages_wait_for_a_limit_and_says_so(store):
    offer(store, tasks.deliver, 2, "acme")
    claim(store)
    *_, check = health(store.at(LATER), oldest_due=timedelta(minutes=1))
    said = "No message has been due for longer than 1 min. Some wait for a limit, the first for 5 min."
    assert check == (True, said)

    offer(store, tasks.deliver, 2, "other")
    assert not all(one.passed for one in health(store.at(LATER), oldest_due=timedelta(minutes=1)))


def test_metrics_show_both(store):
    offer(store, tasks.deliver, 2, "acme")
    claim(store)
    store.at(NOW).offer(message(queue="plain", scheduled_at=at(290)))
    found = backlog(store.at(LATER))
    assert found.oldest == {"plain": 10.0, "webhooks": 0.0}
    assert found.oldest_limited == {"webhooks": 300.0}


def blocked_one(store):
    """`a` is blocked, `acme` full and rests, and `other` is in turn as far as anybody knows."""
    offer(store, tasks.notify, 2, "a")
    offer(store, tasks.deliver, 3, "acme")
    for one in claim(store):
        if one.kind == tasks.notify.module_path:
            store.at(at(1)).settle([retry(one, until=at(3_600))], "w:1")
    claim(store, at(2))
    offer(store, tasks.deliver, 2, "other")
    Channels.of(store.at(at(3))).hear(at(3), Events(()))


def test_metrics_count_what_may_wait_for_a_limit_and_the_channels_by_state(store, monkeypatch):
    blocked_one(store)
    store.at(NOW).offer(message(queue="plain", scheduled_at=NOW))
    found = backlog(store.at(LATER))
    assert found.limited == {"webhooks": 5}
    assert found.channels == {("webhooks", state): 1 for state in ("in turn", "resting", "blocked")}
    assert sum(found.due.values()) == 6

    monkeypatch.setattr(backlogs, "FEW", 2)
    found = backlog(store.at(LATER))
    assert found.channels == {("", state): 1 for state in ("in turn", "resting", "blocked")}
    assert found.limited.keys() == {"webhooks"}


def test_latencies_of_messages_in_channels_are_apart(store):
    offer(store, tasks.deliver, 1, "acme")
    store.at(NOW).offer(message(scheduled_at=NOW))
    plain = claim_one(store)
    (limited,) = claim(store)
    store.at(at(2)).settle([succeed(plain, started=1.0, finished=0.0)], "first")
    store.at(at(40)).settle([succeed(limited, started=0.0, finished=0.0)], "w:1")
    buckets = [one for one in figures(store, Span.HOUR, at(41)).buckets if one.ended]
    assert {one.p95 for one in buckets} - {None} == {1.0}
    assert {one.limited_p95 for one in buckets} - {None} == {40.0}


def test_what_waits_behind_a_message_that_is_tried_again_is_limited(store):
    offer(store, tasks.notify, 2, "a")
    (first,) = claim(store)
    store.at(at(1)).settle([retry(first, until=at(3_600))], "w:1")
    assert claim(store, at(2)) == []
    assert waited(store) == {"webhooks": ChannelWait(0.0, 300.0)}


def test_a_queue_is_late_whatever_is_in_others(store):
    offer(store, tasks.deliver, 2, "acme")
    claim(store)
    offer(store, tasks.deliver, 2, "other", due=100)
    store.at(NOW).offer_many([Offer("a", "tests.k", "{}", None, NOW, 0, 3, None, "acme")])
    ChannelGroup.objects.bulk_create(ChannelGroup(number, "a", f"tests.k{number}") for number in range(300))
    assert late_queues(store, LATER) == {"a", "webhooks"}


def test_a_lane_whose_message_has_gone_meanwhile_is_not_late(store):
    offered = offer(store, tasks.deliver, 1, "acme")
    heads = store.at(LATER).scan()
    store.withdraw([one.id for one in offered])
    ChannelNotice.objects.all().delete()
    ChannelMessage.objects.all().delete()
    assert waits(store, heads, LATER) == {"webhooks": ChannelWait()}


def test_who_has_no_channels_pays_nothing_and_others_the_same_for_any_number_of_them(store, alias):
    def statements():
        heads = store.at(LATER).scan()
        with CaptureQueriesContext(connections[alias]) as captured:
            waits(store, heads, LATER)
        return len(captured)

    store.at(NOW).offer(message())
    assert statements() == 0

    for task in (tasks.deliver, tasks.notify):
        offer(store, task, 2, "acme")
        claim(store)
    few = statements()
    assert few <= 20
    for number in range(60):
        offer(store, tasks.deliver, 2, f"tenant {number}")
        offer(store, tasks.notify, 2, f"tenant {number}")
    claim(store, limit=99)
    assert statements() == few
