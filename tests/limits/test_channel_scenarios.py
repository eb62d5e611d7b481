"""What a queue with channels must do, by the numbers of SCENARIOS.md; beside whom nobody waits, and what is read."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext

from delayedq.limits.rules import channel_of
from delayedq.models import Channel, ChannelMessage, Message
from delayedq.store.protocol import ClaimRequest
from tests.limits.channels import asked, at_a_rate, channels_of, claims, finish, in_channel, offer, one_by_one
from tests.store.given import LANE, NOW, at, elsewhere, message, put_back, retry, settle, succeed, together

MORE_THAN_ONE_WRITER = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)


def test_e1_one_by_one_a_channel_keeps_its_order_also_after_lost_leases_and_returns(store):
    offered = offer(store, *["acme"] * 100)
    ended, moment = [], 0
    while len(ended) < 100:
        (one,) = claims(store, 9, rules=one_by_one(), now=at(moment), worker="dead:1:x")
        number = len(ended)
        if number % 15 == 14 and one.attempt == 1:
            moment += 61  # its worker died
        elif number % 10 == 9 and one.attempt == 1:
            settle(store, retry(one, errors="[]"), now=at(moment))
        else:
            finish(store, one, now=at(moment))
            ended.append(one)
    assert [one.id for one in ended] == [one.id for one in offered]
    assert {number % 15 == 14 or number % 10 == 9 for number, one in enumerate(ended) if one.attempt > 1} == {True}


def test_e6_beside_a_large_backlog_small_channels_are_done_first(store):
    """As one of 100,000 and a hundred of 10, which `tests.benchmarks.fair_turn` measures: 1 of 101."""
    large = offer(store, *["large"] * 5_000)
    offered = offer(store, *[f"small {number}" for number in range(5) for _ in range(10)])
    small, taken = 0, 0
    while small < len(offered):
        claimed = claims(store, 50)
        taken += len(claimed)
        small += sum(channel_of(one.metadata) != "large" for one in claimed)
        finish(store, *claimed, seconds=0.01)
    assert taken <= 0.05 * (len(large) + len(offered))


def test_e9_a_message_that_is_put_back_keeps_its_attempts_and_does_not_beat_the_rate(store):
    offer(store, "acme", key="a", max_attempts=9)
    rules = at_a_rate(1)
    (first,) = claims(store, rules=rules)
    settle(store, retry(first, until=at(-999), metadata=None))

    assert claims(store, rules=rules, now=at(0.9)) == []
    (again,) = claims(store, rules=rules, now=at(1))
    assert (again.attempt, again.metadata) == (2, first.metadata)
    settle(store, put_back(again), now=at(1))
    assert Message.objects.get().attempt == 1


def test_e12_of_twenty_that_create_a_channel_at_once_all_succeed(store):
    together(*[partial(offer, store, "acme") for _ in range(20)])
    assert channels_of(claims(store, 100)) == ["acme"] * 20
    assert Channel.objects.count() == 1


@MORE_THAN_ONE_WRITER
def test_e13_a_producer_whose_transaction_stays_open_is_in_nobodys_way(store):
    offer(store, "acme")
    with transaction.atomic(using=store.alias):
        offer(store, "acme", "new")
        elsewhere(offer, store, "acme", "new")
        assert Counter(channels_of(elsewhere(claims, store))) == {"acme": 2, "new": 1}
    assert Counter(channel_of(one.metadata) for one in claims(store)) == {"acme": 1, "new": 1}


@MORE_THAN_ONE_WRITER
def test_e13_what_was_committed_late_is_found(store):
    with transaction.atomic(using=store.alias):
        offer(store, "acme", scheduled_at=at(-60))
        assert elsewhere(asked, store) == ([], None)
    assert len(claims(store)) == 1


def test_e14_transactions_that_offer_to_channels_in_opposite_orders_do_not_meet(store):
    names = [f"tenant {number}" for number in range(20)]

    def one_after_another(channels):
        with transaction.atomic(using=store.alias):
            for channel in channels:
                offer(store, channel)

    together(*[partial(one_after_another, names[:: 1 if number % 2 else -1]) for number in range(6)])
    assert ChannelMessage.objects.count() == 120


def test_e15_a_key_is_one_message_until_it_ends_and_has_one_place(store):
    first, again = offer(store, "acme", key="a"), offer(store, "acme", key="a")
    assert (first[0].outcome, again[0].outcome) == ("created", "ignored")
    assert ChannelMessage.objects.count() == 1

    finish(store, *claims(store))
    assert offer(store, "acme", key="a")[0].outcome == "created"
    assert len(claims(store)) == 1


# Who has no limit


def statements(connection, act):
    with CaptureQueriesContext(connection) as captured:
        act()
    return [query["sql"] for query in captured if "NOTIFY" not in query["sql"].upper()]


def test_messages_without_a_channel_take_the_same_statements_beside_channels(store, connection):
    offers = [message(f"{number}", scheduled_at=at(3600)) for number in range(10)]
    plain = [message() for _ in range(40)]

    def life():
        store.at(NOW).offer_many(plain)
        store.at(NOW).offer(offers[0]._replace(key=None))
        claimed = store.at(NOW).claim(ClaimRequest([lane], 20, at(60) - NOW, "first"))
        store.at(NOW).settle_and_claim([*map(succeed, claimed)], ClaimRequest([lane], 20, at(60) - NOW, "first"))

    lane = LANE
    before = len(statements(connection, life))
    offer(store, *[f"tenant {number}" for number in range(50)])
    claims(store, 20)
    written = statements(connection, life)

    assert len(written) == before
    assert not any("channel" in statement for statement in written)


# What is read


def rows_read(connection, act):
    """By the server's own statistics, in the tables of channels."""
    tables = ("delayedq_channel", "delayedq_channelmessage", "delayedq_message")

    def read():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
            cursor.execute(
                "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables"
                " WHERE relname = ANY(%s)",
                [list(tables)],
            )
            return cursor.fetchone()[0]

    before = read()
    act()
    return read() - before


@ON_POSTGRESQL
def test_a_claim_reads_as_much_with_a_hundred_thousand_blocked_channels_in_front(store, connection):
    """The channels and messages are written as offers and claims would leave them: it would take minutes to claim."""

    def read():
        offer(store, "free", "free")
        return rows_read(connection, lambda: claims(store, 1, rules=one_by_one(9)))

    read()
    few = read()
    with connection.cursor() as cursor:
        cursor.execute("SELECT group_id FROM delayedq_channel LIMIT 1")
        (group,) = cursor.fetchone()
        cursor.execute(
            "INSERT INTO delayedq_channel (id, group_id, name, is_ready, ready_at, turn, seconds)"
            " SELECT n, %s, 'tenant ' || n, false, %s, -1, 0 FROM generate_series(1, 100000) AS n",
            [group, at(3600)],
        )
        cursor.execute(
            "INSERT INTO delayedq_channelmessage (message_id, channel_id, group_id, urgency, due_at, lease_token)"
            " SELECT 1000000 + n, n, %s, 0, %s, 0 FROM generate_series(1, 100000) AS n",
            [group, at(-60)],
        )
        cursor.execute("ANALYZE delayedq_channel, delayedq_channelmessage")

    assert read() <= few + 10


@ON_POSTGRESQL
def test_a_claim_reads_as_much_of_a_million_channels_as_it_visits(store, connection):
    offer(store, *[f"tenant {number}" for number in range(3_000)])
    asked(store, 1)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delayedq_channel, delayedq_channelmessage, delayedq_message")

    assert rows_read(connection, lambda: claims(store, 20)) < 600


def test_a_message_in_its_channel_is_one_row_beside_it(store):
    store.at(NOW).offer_many([in_channel("acme") for _ in range(10)])
    assert ChannelMessage.objects.count() == Message.objects.count() == 10
