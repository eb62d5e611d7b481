"""What a claim reads does not grow with the channels that are blocked in front of it, nor with what is not due.

MariaDB counts the rows it reads, and SQLite the steps of its machine. For PostgreSQL, see `test_channel_scenarios`.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from delayedq.limits.rules import channel_id, group_id
from delayedq.models import Channel, ChannelGroup, ChannelMessage
from delayedq.sql.priority import LIMITED
from tests.limits.channels import claims, offer, one_by_one
from tests.store.given import KIND, at

BLOCKED = WAITING = 10_000


@contextmanager
def counted_rows(connection):
    def read():
        with connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%%'", [])
            return sum(int(number) for _, number in cursor.fetchall())

    counted = [-read()]
    yield counted
    counted[0] += read()


@contextmanager
def counted_steps(connection):
    counted = [0]

    def step():
        counted[0] += 1

    connection.connection.set_progress_handler(step, 10)
    yield counted
    connection.connection.set_progress_handler(None, 0)


def block(number):
    """As claims leave them that found all places of a channel taken: it rests until a lease ends."""
    group = ChannelGroup.objects.get()
    resting = {"group_id": group.pk, "is_ready": False, "ready_at": at(3600), "turn": -1.0}
    Channel.objects.bulk_create(
        [Channel(id=n, name=f"tenant {n}", **resting) for n in range(1, number + 1)], batch_size=1_000
    )
    waiting = {"group_id": group.pk, "urgency": 0, "due_at": at(-60)}
    ChannelMessage.objects.bulk_create(
        [ChannelMessage(message_id=10**9 + n, channel_id=n, **waiting) for n in range(1, number + 1)], batch_size=1_000
    )


@pytest.mark.parametrize(
    ("alias", "counted"), [("mariadb", counted_rows), ("sqlite", counted_steps)], indirect=["alias"]
)
def test_a_claim_reads_as_much_with_ten_thousand_blocked_channels_in_front(store, connection, counted):
    def read():
        offer(store, "free", "free")
        with counted(connection) as number:
            assert len(claims(store, 1, rules=one_by_one(9))) == 1
        return number[0]

    read()
    few = read()
    block(BLOCKED)

    assert read() <= few * 1.2 + 10


@pytest.mark.parametrize(
    ("alias", "counted"), [("mariadb", counted_rows), ("sqlite", counted_steps)], indirect=["alias"]
)
def test_a_claim_reads_as_much_with_ten_thousand_messages_that_are_not_due_in_its_channel(store, connection, counted):
    def read():
        offer(store, "acme")
        with counted(connection) as number:
            assert len(claims(store, 5, rules=one_by_one(9))) == 1
        return number[0]

    read()
    few = read()
    where = {"channel_id": channel_id("mail", KIND, "acme"), "group_id": group_id("mail", KIND)}
    waiting = {**where, "urgency": LIMITED, "due_at": at(3600)}
    ChannelMessage.objects.bulk_create(
        [ChannelMessage(message_id=10**9 + n, **waiting) for n in range(WAITING)], batch_size=1_000
    )

    assert read() <= few * 1.2 + 10
