"""Temporary queues for replies: gone when they are closed, or when they expire and another is made."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError

from delayedq.exceptions import InvalidQueue, QueueClosed
from delayedq.models import FinishedMessage, Message
from delayedq.queue import TEXT
from tests.queue.test_waiting import until_consumers_wait, woken
from tests.store.given import NOW, together

MINUTE = timedelta(minutes=1)


@pytest.fixture
def replies(queue):
    return queue.reply_queue(expires_in=MINUTE)


def ask(queue, replies, key="question"):
    queue.offer_or_update(key, "?", NOW, reply_to=replies)
    return queue.try_poll()


def test_a_reply_comes_to_who_asked_under_the_key_of_the_question(queue, replies):
    other = queue.reply_queue(expires_in=MINUTE)
    envelope = ask(queue, replies)

    assert envelope.reply("!")
    envelope.acknowledge()
    assert [(e.key, e.payload) for e in replies.try_poll_many(9)] == [("question", "!")]
    assert other.try_poll() is None


def test_a_question_without_a_key_is_answered_under_its_id(queue, replies):
    envelope = ask(queue, replies, key=None)
    envelope.reply("!")
    assert replies.try_poll().key == str(envelope.message_id)


def test_a_question_that_is_delivered_again_has_one_reply(queue, replies):
    for reply in ("first", "second"):
        envelope = ask(queue, replies)
        assert envelope.reply(reply)
        envelope.reject()
    assert replies.try_poll_many(9).payload == ["second"]


def test_who_waits_for_a_reply_is_woken_by_it(make, settings):
    settings.DELAYEDQ = {"POLL_INTERVAL": timedelta(hours=1)}
    queue = make(clock=None)
    with queue.reply_queue(expires_in=timedelta(hours=1)) as replies:

        def answer():
            until_consumers_wait(replies)
            with queue.try_poll() as envelope:
                envelope.reply("!")

        queue.offer_or_update("question", "?", reply_to=replies)
        reply, _ = together(lambda: woken(replies), answer)
        assert reply.payload == "!"


def test_a_state_that_is_saved_keeps_the_address(queue, replies):
    ask(queue, replies).defer(NOW, state="thinking")
    envelope = queue.try_poll()

    assert envelope.state == "thinking"
    assert envelope.reply("!")
    assert replies.try_poll().payload == "!"


def test_a_closed_queue_leaves_nothing_behind(queue, replies):
    envelope = ask(queue, replies)
    envelope.reply("!")
    envelope.acknowledge()
    replies.close()

    assert Message.objects.count() == 0
    assert FinishedMessage.objects.count() == 1
    replies.close()
    with pytest.raises(QueueClosed):
        replies.try_poll()


def test_a_queue_that_can_not_be_emptied_is_closed_all_the_same(replies, store, monkeypatch):
    def fail(*args, **options):
        raise OperationalError("the server went away")

    monkeypatch.setattr(store, "drop", fail)
    with pytest.raises(OperationalError):
        replies.close()
    with pytest.raises(QueueClosed):
        replies.try_poll()


def test_after_it_expired_there_are_no_replies_and_no_requests_for_them(queue, replies, clock):
    envelope = ask(queue, replies)
    clock.move(60)

    assert not envelope.reply("!")
    assert Message.objects.count() == 1
    with pytest.raises(QueueClosed, match="expired"):
        replies.try_poll()
    replies.close()


def test_what_a_dead_process_left_is_cleared_away_by_the_next_who_asks(queue, clock):
    queue.offer_or_update("bystander", 1, NOW + MINUTE)
    dead, alive = queue.reply_queue(MINUTE), queue.reply_queue(2 * MINUTE)
    for replies in (dead, alive):
        ask(queue, replies, key=replies.name).reply("!")
    clock.move(59)
    queue.reply_queue(MINUTE)
    assert Message.objects.filter(queue__startswith="reply~").count() == 2
    clock.move(1)
    queue.reply_queue(MINUTE)
    assert Message.objects.filter(queue__startswith="reply~").get().queue == alive.address.queue
    assert queue.contains_message("bystander")


def test_a_message_that_asked_for_no_reply_gets_none(queue):
    queue.offer_or_update("a", 1, NOW)
    with pytest.raises(LookupError):
        queue.try_poll().reply("!")


def test_a_forged_address_leads_nowhere(queue, replies):
    envelope = ask(queue, replies)
    envelope.reject()
    Message.objects.update(metadata='{"reply_to":"contacts|json"}')

    assert not queue.try_poll().reply("!")
    assert Message.objects.count() == 1


def test_only_a_queue_for_replies_of_the_same_type_takes_replies(queue, make):
    for wrong in (make("others"), make("texts", TEXT).reply_queue(MINUTE)):
        with pytest.raises(InvalidQueue, match="reply_queue"):
            queue.offer_or_update("a", 1, reply_to=wrong)
    assert queue.count() == 0


@pytest.mark.parametrize("expires_in", [timedelta(0), timedelta(seconds=-1), timedelta.max, 60])
def test_what_is_no_time_to_wait_is_refused(queue, expires_in):
    with pytest.raises(InvalidQueue, match="expires_in"):
        queue.reply_queue(expires_in)
