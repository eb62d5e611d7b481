"""An archived message that is sent again waits where it did: in its channel, and within the sizes of its limits."""

from __future__ import annotations

import pytest

from delayedq.exceptions import QueueFull
from delayedq.limits.rules import channel_of
from delayedq.models import ChannelMessage, FinishedMessage, Message
from delayedq.operations.archived import send_again
from delayedq.sql.priority import BOUNDARY
from tests.app import tasks


def archived(result):
    """The history row of a message that was cancelled, which has left the database."""
    assert result.cancel() == "cancelled"
    row = FinishedMessage.objects.get(pk=result.id)
    FinishedMessage.objects.filter(pk=result.id).delete()
    return row


def test_it_keeps_its_channel(store):
    sent = send_again(store, archived(tasks.deliver.enqueue("acme")))

    message = Message.objects.get(priority__lt=BOUNDARY)
    assert (message.pk, channel_of(message.metadata)) == (sent, "acme")
    assert ChannelMessage.objects.filter(message_id=sent).exists()


def test_it_finds_no_room_in_what_is_full(store):
    row = archived(tasks.post.enqueue("acme"))
    assert send_again(store, row)
    assert send_again(store, row)
    with pytest.raises(QueueFull, match="was not sent again"):
        send_again(store, row)
    assert Message.objects.count() == 2


def test_one_without_a_channel_has_none(store):
    sent = send_again(store, archived(tasks.echo.enqueue(1)))
    assert sent
    assert not ChannelMessage.objects.exists()
