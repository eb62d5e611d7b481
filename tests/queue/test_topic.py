"""Copying consumers: each subscription gets its own copy of what is published."""

from __future__ import annotations

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from delayedq import Topic
from delayedq.exceptions import InvalidKey, InvalidQueue, QueueClosed
from delayedq.queue import JSON
from tests.store.given import NOW, at, undone


@pytest.fixture
def topic(alias, clock):
    return Topic("prices", ["audit", "mail"], clock=clock)


def test_each_subscription_gets_one_copy(topic):
    assert topic.publish({"price": 7}, schedule_at=NOW) == {"audit": "created", "mail": "created"}

    for subscription in topic.subscriptions:
        with topic.subscribe(subscription) as queue:
            assert queue.try_poll().payload == {"price": 7}
            assert queue.try_poll() is None


def test_consumers_of_one_subscription_compete(topic):
    topic.publish(1, schedule_at=NOW)
    first, second = topic.subscribe("mail"), topic.subscribe("mail")
    assert first.try_poll().acknowledge() == "acknowledged"
    assert second.try_poll() is None


def test_a_key_replaces_the_copies_that_still_live(topic):
    topic.publish(1, "gold", NOW)
    topic.subscribe("mail").try_poll().acknowledge()

    assert topic.publish(2, "gold", NOW) == {"audit": "updated", "mail": "created"}
    assert [topic.subscribe(name).try_poll().payload for name in topic.subscriptions] == [2, 2]


def test_copies_have_their_time(topic, clock):
    topic.publish(1, schedule_at=at(5))
    assert topic.subscribe("mail").try_poll() is None
    clock.move(5)
    assert topic.subscribe("mail").try_poll().payload == 1


def test_all_copies_are_stored_or_none(topic, alias):
    with pytest.raises(InvalidKey):
        topic.publish(1, "x" * 201)
    with undone(alias):
        topic.publish(1)
    assert [topic.subscribe(name).count() for name in topic.subscriptions] == [0, 0]


def test_an_ended_subscription_gets_nothing_more_and_keeps_nothing(topic):
    topic.publish(1, schedule_at=NOW)
    mail = topic.subscribe("mail")

    assert topic.unsubscribe("mail") == 1
    assert topic.publish(2, schedule_at=NOW) == {"audit": "created"}
    assert (mail.count(), topic.subscriptions) == (0, ("audit",))
    with pytest.raises(InvalidQueue, match="audit"):
        topic.subscribe("mail")
    topic.unsubscribe("audit")
    assert topic.publish(3) == {}


def test_a_subscription_may_be_added_at_run_time_and_gets_what_comes_then(topic):
    topic.publish(1, schedule_at=NOW)
    topic.add_subscription("fraud")

    assert topic.publish(2, schedule_at=NOW) == {"audit": "created", "mail": "created", "fraud": "created"}
    assert topic.subscribe("fraud").try_poll_many(9).payload == [2]
    topic.unsubscribe("fraud")
    topic.add_subscription("fraud")
    assert topic.subscribe("fraud").count() == 0


@pytest.mark.parametrize("name", ["audit", "", "  ", "|", "x" * 200, None, 7])
def test_what_can_be_no_subscription_is_not_added(topic, name):
    with pytest.raises(InvalidQueue):
        topic.add_subscription(name)
    assert topic.subscriptions == ("audit", "mail")


def test_a_closed_subscription_harms_no_publisher(topic):
    topic.subscribe("mail").close()
    topic.publish(1, schedule_at=NOW)
    with topic.subscribe("mail") as queue:
        envelope = queue.try_poll()
    with pytest.raises(QueueClosed):
        envelope.acknowledge()


@pytest.mark.parametrize("name", ["", "|", "x" * 200])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(InvalidQueue):
        Topic("prices", [name])
    with pytest.raises(InvalidQueue):
        Topic(name, ["audit"])


def test_a_subscription_is_declared_once():
    with pytest.raises(InvalidQueue):
        Topic("prices", ["audit", "audit"], JSON)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_publishing_is_one_statement_on_postgresql(topic, alias):
    with CaptureQueriesContext(connections[alias]) as captured:
        topic.publish(1, schedule_at=NOW.replace(year=2126))
    assert [query["sql"].split()[0] for query in captured] == ["BEGIN", "INSERT", "COMMIT"]


def test_one_text_is_no_list_of_subscriptions():
    with pytest.raises(InvalidQueue, match="several names"):
        Topic("prices", "mail")
