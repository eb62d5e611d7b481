"""Ends of messages with a channel, and the claim from channels in the same transaction."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, OperationalError

from delayedq.core.metadata import FLOW
from delayedq.flows import feature
from delayedq.limits.channels import COMING, Channels
from delayedq.limits.requests import ChannelRequest
from delayedq.models import ChannelMessage, FinishedMessage, Message
from delayedq.store.claim_tokens import new_token
from tests.limits.channels import channels_of, claims, offer, one_by_one
from tests.store.given import LEASE, at, claim_one, elsewhere, message, succeed


def settle_and_claim(store, *claimed, limit=9):
    request = ChannelRequest(lambda queue, kind: one_by_one(), limit, LEASE, "first", new_token())
    ends = [succeed(one, started=1.0, finished=0.0) for one in claimed]
    return Channels.of(store.at(at(1))).settle_and_claim(ends, "first", request)


def test_the_claim_knows_of_the_room_that_the_ends_make(store):
    offer(store, "a", "a", "b", "b")
    first = claims(store, rules=one_by_one())
    settled, claim = settle_and_claim(store, *first)

    assert not any(settled)
    assert len(claim.claimed) == 2
    assert not {one.id for one in claim.claimed} & {one.id for one in first}
    assert FinishedMessage.objects.count() == 2


def test_what_is_lost_frees_no_place_of_another_attempt(store):
    offer(store, "a", "a")
    (first,) = claims(store, rules=one_by_one())
    (second,) = claims(store, rules=one_by_one(), now=at(61))
    settled, claim = settle_and_claim(store, first)

    assert (settled.lost, claim.claimed) == ({first.id}, [])
    assert ChannelMessage.objects.get(lease_token__gt=0).message_id == second.id


def test_without_room_for_a_claim_the_ends_are_told_to_the_next_one(store):
    offer(store, "a", "a")
    first = claims(store, rules=one_by_one())
    assert settle_and_claim(store, *first, limit=0)[1].claimed == []
    assert len(claims(store, rules=one_by_one(), now=at(1))) == 1


def test_an_end_that_the_database_refuses_undoes_both_and_nothing_else(store):
    """And it is the error that Django has for it, as whoever asks settles one after the other then."""
    offer(store, "a", "b", "b")
    first = claims(store, rules=one_by_one())
    row = Message.objects.filter(pk=first[0].id).values("id", "queue", "kind", "payload", "created_at", "scheduled_at")
    shared = {"scheduled_at_initially": at(0), "finished_at": at(0), "outcome": "succeeded", "priority": 0}
    FinishedMessage.objects.create(**row.get(), **shared, attempts=1, max_attempts=1)
    with pytest.raises(IntegrityError):
        settle_and_claim(store, *first)

    assert Message.objects.filter(lease_token=first[0].token).count() == 2
    assert len(settle_and_claim(store, first[1])[1].claimed) == 1


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_while_a_step_of_a_flow_ends_others_claim_from_channels(store, monkeypatch):
    """That may take long: it waits for others of its flow, and stores what follows."""
    offer(store, "a", metadata=f'{{"{FLOW}": [7, 0]}}')
    offer(store, "b", "b")
    first = claims(store, 2, rules=one_by_one())
    offer(store, "c")
    found = []

    def watched(*_):
        found.extend(elsewhere(claims, store, 1, rules=one_by_one()))
        return False

    monkeypatch.setattr(feature, "end_members", watched)
    settled, _ = settle_and_claim(store, *first)
    assert not any(settled)
    assert channels_of(found) == ["c"]


def test_an_end_stands_when_the_claim_that_follows_it_is_undone_and_tried_again(store, connection, monkeypatch):
    """It is a transaction of its own, as the message has no channel: tried again, it would find its lease gone."""
    store.at(at(0)).offer_many([message("a")])
    running = claim_one(store)
    offer(store, "a")
    undone = []

    def undo_once(execute, sql, params, many, context):
        if not undone and sql == COMING:
            undone.append(sql)
            raise OperationalError("as if")
        return execute(sql, params, many, context)

    monkeypatch.setattr(type(store.database), "is_deadlock", lambda *_: True)
    with connection.execute_wrapper(undo_once):
        settled, claim = settle_and_claim(store, running)
    assert undone
    assert not any(settled)
    assert len(claim.claimed) == 1
