"""Beside SQLite: places that a user's open transaction has locked. No claim waits for it: all claims would."""

from __future__ import annotations

import pytest
from django.db import connections, transaction

from delayedq.limits.places import unblock
from delayedq.limits.requests import Rules
from delayedq.limits.rules import Limit, Order
from delayedq.models import ChannelMessage, Message
from tests.limits.channels import channels_of, claims, in_channel, offer, one_by_one, shared
from tests.store.given import at, elsewhere, retry

pytestmark = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
RULES = [one_by_one(), shared(Limit(concurrency=5)), Rules(channel=Limit(order=Order.STRICT))]
WAITS_FOR_LOCKS = {"postgresql": "SET lock_timeout = '2s'", "mysql": "SET SESSION innodb_lock_wait_timeout = 2"}


@pytest.fixture(params=RULES, ids=["channel", "shared", "strict"])
def rules(request):
    return request.param


def claimed_beside(store, rules, now):
    """What a claim on another connection takes; it fails if it waits for a lock."""

    def claim():
        connection = connections[store.alias]
        with connection.cursor() as cursor:
            cursor.execute(WAITS_FOR_LOCKS[connection.vendor])
        return claims(store, rules=rules, now=now)

    return elsewhere(claim)


def test_what_a_transaction_replaces_keeps_no_claim_waiting(store, alias, rules):
    offer(store, "a", key="first")
    offer(store, "b", now=at(1))
    with transaction.atomic(using=alias):
        store.at(at(1)).offer(in_channel("a", "first", payload="[2]"))
        assert channels_of(claimed_beside(store, rules, at(2))) == ["b"]
    assert [one.key for one in claims(store, rules=rules, now=at(3))] == ["first"]


def test_what_is_to_be_tried_again_and_a_transaction_replaces_keeps_no_claim_waiting(store, alias, rules):
    """Its place is still as the claim has left it."""
    offer(store, "a", key="first")
    (first,) = claims(store, rules=rules)
    store.at(at(1)).settle([retry(first)], "first")
    offer(store, "b", now=at(1))
    with transaction.atomic(using=alias):
        store.at(at(1)).offer(in_channel("a", "first", payload="[2]"))
        assert channels_of(claimed_beside(store, rules, at(2))) == ["b"]
    assert [one.key for one in claims(store, rules=rules, now=at(3))] == ["first"]


def test_what_a_transaction_ends_keeps_no_claim_waiting(store, alias, rules):
    offer(store, "a", key="first")
    offer(store, "b", now=at(1))
    with transaction.atomic(using=alias):
        store.at(at(1)).unschedule("tests.remind", "first")
        assert channels_of(claimed_beside(store, rules, at(2))) == ["b"]
    assert claims(store, rules=rules, now=at(3)) == []


def test_a_channel_that_a_transaction_unblocks_keeps_no_claim_waiting(store, alias):
    rules = RULES[2]
    offer(store, "a", key="first")
    (first,) = claims(store, rules=rules)
    store.at(at(1)).settle([retry(first, delay=5)], "first")
    offer(store, "b", now=at(1))
    claims(store, rules=rules, now=at(2))
    home = ChannelMessage.objects.get(message_id=first.id).channel_id
    with transaction.atomic(using=alias):
        assert unblock(store, [home])
        assert claimed_beside(store, rules, at(7)) == []
    assert [one.key for one in claims(store, rules=rules, now=at(8))] == ["first"]


def test_a_place_that_is_as_its_message_says_is_not_written(store, alias, rules):
    """Of a message that another transaction has locked."""
    offer(store, "a", key="first")
    written = []

    def watch(execute, sql, *given):
        if sql.startswith("UPDATE") and "held_until" in sql:
            written.append(sql)
        return execute(sql, *given)

    def claim():
        with connections[alias].execute_wrapper(watch):
            return claims(store, rules=rules, now=at(2))

    with transaction.atomic(using=alias):
        Message.objects.select_for_update().get()
        assert elsewhere(claim) == []
    assert written == []
