"""What PostgreSQL deals in a statement is what `channels.claims` deals, as it does where the limit has weights."""

from __future__ import annotations

from math import inf
from random import Random
from threading import Event

import pytest
from django.db import connections, transaction
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from delayedq.limits import postgresql as channels_sql
from delayedq.limits.requests import Rules
from delayedq.limits.rules import Limit
from delayedq.models import Channel, ChannelGroup, ChannelMessage, ChannelNotice, FinishedMessage, Message
from delayedq.store.postgresql import database
from tests.limits.channels import asked, claims, finish, in_channel, left_behind, offer, one_by_one
from tests.store.given import KIND, NOW, at, elsewhere, retry, settle, succeed, together
from tests.worker.conftest import eventually

WEIGHTS = {"nobody": 2}
#: Where the statement has seen all that it deals, and an advisory lock at which a test lets it wait there.
SEEN, LOCK = "SELECT count(*) FILTER (WHERE ended", 4_711
STEPS, SEEDS = 4, 4


def forget_everything():
    for model in (Message, FinishedMessage, Channel, ChannelGroup, ChannelMessage, ChannelNotice):
        model.objects.all().delete()


def what_a_claim_leaves(now):
    """The turn of each channel; and those that the next claim looks at, as far as something is due in them."""
    places = ChannelMessage.objects.filter(lease_token=0, due_at__lte=now)
    due = Channel.objects.filter(id__in=places.values("channel_id"))
    rows = Channel.objects.values_list("name", "turn", "weight")
    turns = {name: (round(turn, 6), weight) for name, turn, weight in rows}
    told = ChannelNotice.objects.filter(at__lte=now).values("channel_id")
    return turns, set(due.filter(Q(is_ready=True) | Q(id__in=told)).values_list("name", flat=True))


def what_starts_at_last(store, before, rules, seed):
    """After the same at random: offers, claims, ends, retries, cancels, and workers that die."""
    chance, running = Random(seed), []
    for step in range(STEPS):
        now = at(step)
        offers = [
            in_channel(
                f"c{chance.randrange(12)}",
                f"{step}-{n}",
                scheduled_at=at(step + chance.choice([-5, 0, 4])),
                priority=chance.choice([0, 9]),
            )
            for n in range(20)
        ]
        store.at(now).offer_many(offers)
        running += claims(store, chance.choice([5, 30]), rules=before, now=now, lease=at(2) - NOW)
        chance.shuffle(running)
        again, ended, running = running[:2], running[2:7], running[7:] if chance.random() < 0.7 else []
        settle(store, *(succeed(one, started=chance.choice([0.001, 1.0]), finished=0.0) for one in ended), now=now)
        settle(store, *(retry(one, delay=chance.choice([0, 3])) for one in again), now=now)
        for key in sorted(Message.objects.filter(lease_token=None).values_list("key", flat=True))[:2]:
            store.at(now).unschedule(KIND, key)
    taken = claims(store, chance.choice([3, 10, 100]), rules=rules, now=at(STEPS))
    return [one.key for one in taken], *what_a_claim_leaves(at(STEPS))


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_a_concurrency_alone_gives_what_it_gives_beside_weights(store, concurrency):
    weighed = Rules(channel=Limit(concurrency=concurrency, weight=WEIGHTS))
    for seed in range(SEEDS):
        expected = what_starts_at_last(store, weighed, weighed, seed)
        forget_everything()
        assert what_starts_at_last(store, weighed, one_by_one(concurrency), seed) == expected
        forget_everything()


def test_short_messages_are_dealt_in_pairs_as_beside_weights(store):
    told = []
    for rules in (one_by_one(3), Rules(channel=Limit(concurrency=3, weight=WEIGHTS))):
        store.at(NOW).offer_many([in_channel(f"c{n % 40}", f"k{n}") for n in range(240)])
        for _ in range(3):
            taken = claims(store, 64, rules=rules)
            told.append(([one.key for one in taken], *what_a_claim_leaves(NOW)))
            finish(store, *taken, seconds=0.001)
        forget_everything()
    assert told[:3] == told[3:]


def test_what_follows_a_cancelled_message_starts_at_the_next_claim(store):
    for number in range(3):
        offer(store, "a", key=f"k{number}")
    Message.objects.filter(key="k0").delete()  # as by hand: its place stays

    first = asked(store, rules=one_by_one())
    following = claims(store, rules=one_by_one())

    assert (first.claimed, first.due_in) == ([], 0.0)
    assert [one.key for one in following] == ["k1"]
    finish(store, *following)
    finish(store, *claims(store, rules=one_by_one()))
    assert (claims(store, rules=one_by_one()), left_behind()) == ([], (0, 0, 0))


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_claim_from_a_thousand_channels_is_four_statements(store, connection):
    """Whether to ask at all, what has happened, what is taken, and with that in one trip, when to ask again; beside the
    lock, and the limits of a transaction.
    """
    store.at(NOW).offer_many([in_channel(f"c{n}") for n in range(1_000)])
    with CaptureQueriesContext(connection) as captured:
        taken = claims(store, 512, rules=one_by_one(2))

    sent = [query["sql"] for query in captured if "delayedq_" in query["sql"]]
    assert (len(taken), len(sent)) == (512, 4)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_what_is_replaced_into_another_channel_while_it_is_dealt_does_not_start_there(store, alias, monkeypatch):
    """The statement has seen it in channel "a"; before it is leased, it waits in "b", where one runs."""
    offer(store, "b", key="running")
    (running,) = claims(store, rules=one_by_one())
    offer(store, "a", key="first", now=at(1))
    is_locked, deal = Event(), channels_sql.deal

    def waiting(**options):
        whole = deal(**options)
        assert whole.count(SEEN) == 1
        return whole.replace(SEEN, f"SELECT (SELECT pg_advisory_xact_lock_shared({LOCK}))::text, {SEEN[7:]}")

    def replace():
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            is_locked.set()
            eventually(lambda: waits(cursor))
            elsewhere(store.at(at(1)).offer, in_channel("b", "first", payload="[2]", scheduled_at=at(1)))

    def claim():
        assert is_locked.wait(30)
        return claims(store, rules=one_by_one(), now=at(2))

    monkeypatch.setattr(channels_sql, "deal", waiting)
    assert together(replace, claim)[1] == []
    monkeypatch.undo()

    assert claims(store, rules=one_by_one(), now=at(3)) == []
    assert Message.objects.get(key="first").attempt == 0
    finish(store, running, now=at(4))
    assert [one.key for one in claims(store, rules=one_by_one(), now=at(4))] == ["first"]


def waits(cursor):
    cursor.execute(
        "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted", [LOCK]
    )
    return cursor.fetchone()[0]


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_the_large_statements_of_a_claim_are_prepared(store, connection, monkeypatch):
    """How often the server plans them after that is its own choice, by what it knows of tables at the time."""
    monkeypatch.setattr(database, "PLANS_LAST", inf)
    connection.close()  # those of other tests are of its session
    offer(store, *["a"] * 10)
    for second in range(8):
        (one,) = claims(store, rules=one_by_one(), now=at(second))
        finish(store, one, now=at(second))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT custom_plans + generic_plans FROM pg_prepared_statements "
            "WHERE NOT from_sql AND length(statement) > 999"
        )
        assert cursor.fetchall() == [(7,)] * 3, "the end, the dealing and the claim; the first of each is not prepared"
