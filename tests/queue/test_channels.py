"""Bare queues with channels: polls in fair turn, limits, sizes, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from threading import Event

import pytest
from django.db import transaction
from django.utils import timezone

from delayedq import DelayedQueue, Limit, Rate, limits
from delayedq.exceptions import InvalidLimit, InvalidMessage, InvalidQueue, QueueFull
from delayedq.limits.channels import Channels
from delayedq.limits.lateness import waits
from delayedq.limits.operator import page_of_channels
from delayedq.models import Message
from delayedq.operations.explain import explain
from delayedq.queue import BatchedMessage, Topic
from delayedq.store import store_for
from delayedq.store.protocol import OfferOutcome
from tests.limits.channels import left_behind
from tests.store.given import together

CREATED, UPDATED, IGNORED, DROPPED = OfferOutcome
SECOND = timedelta(seconds=1)


def queue(alias, name="contacts", **options):
    return DelayedQueue(name, using=alias, **{"channels": True} | options)


def fill(contacts, *channels):
    return [contacts.offer_or_update(None, f"{name}{n}", channel=name) for n, name in enumerate(channels)]


def polled(contacts, limit=100):
    return [envelope.payload for envelope in contacts.try_poll_many(limit)]


# In turn


def test_channels_are_polled_in_turn(alias):
    contacts = queue(alias)
    fill(contacts, *"aaaa", "b", "c")
    first = [contacts.try_poll().payload for _ in range(3)]
    assert sorted(name[0] for name in first) == ["a", "b", "c"]
    assert polled(contacts) == ["a1", "a2", "a3"]


def test_what_has_no_channel_waits_in_the_one_without_a_name(alias):
    contacts = queue(alias)
    fill(contacts, "a", "a")
    contacts.offer_or_update(None, "none")
    assert {contacts.try_poll().payload for _ in range(2)} == {"a0", "none"}


def test_what_was_offered_before_there_were_channels_is_polled_too(alias):
    queue(alias, channels=False).offer_or_update(None, "before")
    contacts = queue(alias)
    fill(contacts, "a")
    assert sorted(polled(contacts)) == ["a0", "before"]


def test_all_ends_leave_nothing(alias):
    contacts = queue(alias, max_attempts=2)
    fill(contacts, *"abcd")
    for end in ("acknowledge", "reject", "release"):
        getattr(contacts.try_poll(), end)()
    contacts.try_poll().defer(timezone.now() - SECOND, state={"step": 1})
    for envelope in contacts.try_poll_many(100):
        envelope.acknowledge()
    assert contacts.try_poll() is None
    assert (Message.objects.count(), left_behind()) == (0, (0, 0, 0))


def test_a_state_leaves_the_message_in_its_channel(alias):
    contacts = queue(alias, limit=Limit(concurrency=1))
    fill(contacts, "a", "a")
    contacts.try_poll().defer(timezone.now() - SECOND, state="later")
    envelope = contacts.try_poll()
    assert (envelope.state, contacts.try_poll()) == ("later", None)


def test_keys_batches_and_topics_name_channels(alias):
    contacts = queue(alias)
    assert contacts.offer_or_update("k", 1, channel="a") is CREATED
    assert contacts.offer_or_update("k", 2, channel="b") is UPDATED
    contacts.offer_batch([BatchedMessage(None, None, 3, channel="b"), BatchedMessage(None, None, 4, channel="c")])
    assert sorted(polled(contacts)) == [2, 3, 4]
    topic = Topic("news", ["eu"], using=alias, channels=True)
    topic.publish("new", channel="a")
    assert topic.subscribe("eu").try_poll().payload == "new"


def test_reading_sees_what_waits_in_channels(alias):
    contacts = queue(alias, priorities=[5])
    fill(contacts, "a", "b")
    contacts.offer_or_update("k", "first", channel="a", priority=5)
    contacts.offer_or_update(None, {"x": 1}, channel="c")
    assert [*contacts.browse()] == ["first", "a0", "b1", {"x": 1}]
    page = contacts.browse()
    next(page)
    assert [*contacts.browse(after=page.cursor)] == ["a0", "b1", {"x": 1}]
    assert contacts.count() == 4
    assert contacts.filter(payload__x=1).count() == 1
    assert contacts.read("k").payload == "first"
    assert contacts.drop_message("k")
    assert len(polled(contacts)) == 3


@pytest.mark.parametrize("limit", [None, Limit(concurrency=2), Limit(rate=Rate(9, per=SECOND))])
def test_a_poll_finds_what_is_due_behind_dropped_messages(alias, limit):
    contacts = queue(alias, limit=limit)
    for key in "abc":
        contacts.offer_or_update(key, key, channel="acme")
    assert contacts.drop_message("a")
    assert contacts.drop_message("b")

    assert contacts.try_poll().payload == "c"
    assert contacts.try_poll() is None


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_a_poll_that_meets_another_claim_waits_for_it(alias, monkeypatch):
    """An answer of None says that nothing is due."""
    contacts, is_locked, has_met = queue(alias), Event(), Event()
    fill(contacts, "a", "a")
    assert contacts.try_poll().payload == "a0"
    kind = type(Channels.of(store_for(alias)))
    lock = kind.lock

    def watched(channels):
        moment = lock(channels)
        if moment is None:
            has_met.set()
        return moment

    def claim():
        with transaction.atomic(using=alias):
            assert lock(Channels.of(store_for(alias))) is not None
            is_locked.set()
            assert has_met.wait(30)

    def poll():
        assert is_locked.wait(30)
        return contacts.try_poll()

    monkeypatch.setattr(kind, "lock", watched)
    assert together(claim, poll)[1].payload == "a1"


# Limits


def test_a_limit_is_that_of_each_channel(alias):
    contacts = queue(alias, channels=False, limit=Limit(concurrency=1))
    fill(contacts, "a", "a", "b")
    envelopes = contacts.try_poll_many(10).envelopes
    assert sorted(one.payload for one in envelopes) == ["a0", "b2"]
    envelopes[0].acknowledge()
    assert len(polled(contacts)) == (envelopes[0].payload == "a0")


@pytest.mark.parametrize("name", ["contacts", "contacts|json"])
def test_settings_limit_a_whole_queue(alias, settings, name):
    settings.DELAYEDQ = {"LIMITS": {name: {"concurrency": 2, "size": 3}}}
    contacts = queue(alias, channels=False)
    assert [contacts.offer_or_update(None, number) for number in range(4)] == [CREATED] * 3 + [DROPPED]
    assert polled(contacts) == [0, 1]
    assert queue(alias, "other", channels=False).offer_or_update(None, 1) is CREATED


def test_a_rate_lets_a_poll_wait_until_the_next_release(alias):
    contacts = queue(alias, limit=Limit(rate=Rate(10, per=SECOND, burst=1)))
    fill(contacts, "a", "a")
    assert contacts.try_poll().payload == "a0"
    assert contacts.poll(timeout=timedelta(seconds=30)).payload == "a1"


def test_a_full_channel_drops_or_raises(alias):
    contacts = queue(alias, limit=Limit(size=1))
    assert fill(contacts, "a", "a", "b") == [CREATED, DROPPED, CREATED]
    with pytest.raises(QueueFull, match=r"The channel 'a' of other\|json"):
        fill(queue(alias, "other", limit=Limit(size=1, on_full="raise")), "a", "a")


def test_a_limit_is_set_live_by_the_stored_name(alias, settings):
    settings.DELAYEDQ = {"LIMITS": {"contacts": {"size": 100}}}
    contacts = queue(alias)
    limits.set("contacts|json", size=1, concurrency=1, store=store_for(alias))
    assert fill(contacts, "a", "b") == [CREATED, DROPPED]
    with pytest.raises(InvalidLimit, match="A size can be set live only"):
        limits.set("other|json", size=1, store=store_for(alias))


def test_a_weight_that_is_set_for_a_channel_leaves_its_limit_as_the_queue_has_it(alias):
    contacts = queue(alias, limit=Limit(concurrency=1, size=3))
    limits.set("contacts|json", channel="a", weight=3, share=2, store=store_for(alias))
    assert fill(contacts, *"aaaa", "b") == [CREATED, CREATED, CREATED, DROPPED, CREATED]
    assert sorted(polled(contacts)) == ["a0", "b4"]
    assert limits.holding("contacts|json", "a", store_for(alias)) == Limit(concurrency=1, size=3, weight=3, share=2)


def test_a_size_of_a_channel_is_set_live_only_where_a_queue_has_one(alias):
    for contacts in (queue(alias), queue(alias, limit=Limit(concurrency=1))):
        with pytest.raises(InvalidLimit, match=r"it defines none for all channels of 'contacts\|json'"):
            limits.set("contacts|json", channel="a", size=1, store=store_for(alias))
        fill(contacts, "a")
    contacts = queue(alias, limit=Limit(size=100))
    limits.set("contacts|json", channel="a", size=2, store=store_for(alias))
    assert fill(contacts, "a", "b") == [DROPPED, CREATED]


def test_what_waits_for_the_limit_of_a_queue_is_explained_and_not_late(alias):
    contacts = queue(alias, limit=Limit(concurrency=1))
    fill(contacts, "a", "a")
    assert polled(contacts) == ["a0"]
    waiting = Message.objects.get(lease_token=None)
    now = store_for(alias).now() + timedelta(seconds=20)

    said = [answer.text for answer in explain(waiting, now)]
    assert "Channel a has 1 of 1 running." in said
    later = store_for(alias).at(now)
    found = waits(later, later.scan(), now)["contacts|json"]
    assert (found.late, found.limited > 0) == (0.0, True)
    (listed,) = page_of_channels(later, now).channels
    assert listed.limit == Limit(concurrency=1)


# What is refused


def test_a_channel_of_a_queue_without_channels_is_refused(alias):
    with pytest.raises(InvalidMessage, match=r"'contacts' has no channels.*DelayedQueue\(channels=True\)"):
        queue(alias, channels=False).offer_or_update(None, 1, channel="a")
    assert Message.objects.count() == 0


@pytest.mark.parametrize("channel", ["x" * 201, "a\0b", 7])
def test_a_wrong_channel_is_refused(alias, channel):
    with pytest.raises(InvalidMessage, match="a channel is a text of at most 200 characters"):
        queue(alias).offer_or_update(None, 1, channel=channel)
    assert Message.objects.count() == 0


@pytest.mark.parametrize("limit", [7, {"concurrency": 1}, Limit(name="shared", concurrency=1)])
def test_a_wrong_limit_is_refused(limit):
    with pytest.raises(InvalidQueue, match="The limit of a queue is a Limit without a name"):
        DelayedQueue("contacts", limit=limit)


def test_a_poll_with_a_filter_is_refused(alias):
    with pytest.raises(InvalidQueue, match="browse it with a filter, poll without"):
        queue(alias).filter(key__startswith="a").try_poll()
