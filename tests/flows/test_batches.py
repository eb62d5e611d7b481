"""A batch of members of a group ends and the next is claimed at once, and a step that is over is never missed."""

from __future__ import annotations

import random
from functools import partial
from threading import Barrier

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq import group
from delayedq.flows import postgresql as sql
from delayedq.flows.ending import MANY, lock_flows
from delayedq.models import FlowMember, Message
from delayedq.store.protocol import ClaimRequest, Lane
from tests.app import tasks
from tests.flows.given import states
from tests.store.given import LEASE, fail, succeed, together
from tests.worker.conftest import eventually

TASKS = Lane("default", 0)
#: An advisory lock.
GATE = 4711


def claim(store, limit):
    return store.claim(ClaimRequest([TASKS], limit, LEASE, "first"))


def next_after(store, claims, limit=MANY):
    return store.settle_and_claim([succeed(one) for one in claims], ClaimRequest([TASKS], limit, LEASE, "first"))


def grouped(size):
    return group(tasks.nothing.s() for _ in range(size)).then(tasks.nothing.si()).enqueue()


def ended():
    return FlowMember.objects.filter(outcome="succeeded").count()


def test_batches_end_until_the_step_is_over_which_releases_what_follows_once(store):
    flow = grouped(4 * MANY)
    claims, sizes = claim(store, MANY), []
    while claims:
        claims = next_after(store, claims).claimed
        sizes.append((ended(), len(claims)))
    assert sizes == [(MANY, MANY), (2 * MANY, MANY), (3 * MANY, MANY), (4 * MANY, 1), (4 * MANY + 1, 0)]
    assert flow.state == "succeeded"


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_such_a_batch_is_one_statement_unless_it_may_end_the_step(store, connection):
    grouped(3 * MANY)
    batches = [claim(store, MANY) for _ in range(3)]
    numbers = []
    for claims in batches:
        with CaptureQueriesContext(connection) as captured:
            next_after(store, claims)
        numbers.append(len(captured))
    assert numbers[:2] == [1, 1]
    assert numbers[2] > 1


def test_a_batch_goes_on_where_the_last_member_has_ended_before_the_others(store):
    flow = grouped(2 * MANY)
    claims = claim(store, 2 * MANY)
    for ending in (claims[-1:], claims[:MANY], claims[MANY:-1]):
        next_after(store, ending, limit=1)
    assert states(flow) == {"1 nothing": "succeeded", "2 nothing": "running"}


def test_of_a_batch_what_lost_its_lease_has_not_ended(store):
    flow = grouped(2 * MANY)
    claims = claim(store, MANY)
    claims[3] = claims[3]._replace(token=1)
    assert next_after(store, claims).settled.lost == {claims[3].id}
    assert ended() == MANY - 1
    assert FlowMember.objects.get(message_id=claims[3].id).outcome is None
    assert flow.state == "running"


def test_a_failure_in_a_batch_is_recorded_as_such(store):
    flow = grouped(2 * MANY)
    claims = claim(store, 2 * MANY)
    ends = [fail(claims[0]), *map(succeed, claims[1:MANY])]
    store.settle_and_claim(ends, ClaimRequest([TASKS], 1, LEASE, "first"))
    next_after(store, claims[MANY:])
    assert states(flow) == {"1 nothing": "failed", "2 nothing": "skipped"}


def test_messages_of_no_flow_end_in_the_same_batch(store):
    grouped(2 * MANY)
    store.offer_many([offer._replace(metadata=None) for offer in tasks.nothing.offers([((), {})] * 3, None)])
    Message.objects.filter(metadata=None).update(priority=0)
    claims = claim(store, 2 * MANY + 3)
    mixed = [*claims[:MANY], *claims[-3:]]
    assert next_after(store, mixed).settled.lost == set()
    assert ended() == MANY
    assert Message.objects.count() == MANY


def test_who_ends_the_last_member_in_an_open_transaction_is_waited_for(store, alias):
    if alias == "default":
        return  # SQLite has one writer at a time
    flow = grouped(MANY + 1)
    claims = claim(store, MANY + 1)
    locked = Barrier(2)

    def slow():
        with transaction.atomic(using=alias):
            lock_flows(store, [flow.id])
            locked.wait(timeout=30)
            store.settle([succeed(claims[-1])], "first")

    def batch():
        locked.wait(timeout=30)
        next_after(store, claims[:-1])

    together(slow, batch)
    assert states(flow) == {"1 nothing": "succeeded", "2 nothing": "running"}


def test_whoever_ends_the_last_members_at_the_same_moment_one_of_them_releases(store):
    """No sweep looks for what they have missed. What is busy is settled again, as a worker does."""

    def end(part):
        while part:
            busy = next_after(store, part, limit=0 if len(part) == 1 else 1).settled.busy
            part = [one for one in part if one.id in busy]

    rounds = 8
    chance = random.Random(1)
    for _ in range(rounds):
        grouped(3 * MANY)
        claims = claim(store, 3 * MANY)
        last = claims.pop()
        parts = [claims[:MANY], claims[MANY : 2 * MANY], claims[2 * MANY :], [last]]
        chance.shuffle(parts)
        together(*[partial(end, part) for part in parts])
        Message.objects.all().delete()
    assert FlowMember.objects.filter(outcome=None).count() == rounds, "each flow has released its last step"
    assert FlowMember.objects.filter(outcome="succeeded").count() == rounds * 3 * MANY


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_last_member_that_ends_while_the_statement_begins_is_not_taken_for_living(store, connection, monkeypatch):
    """The statement has its snapshot then, and waits for a lock that only this test knows."""
    flow = grouped(MANY + 1)
    claims = claim(store, MANY + 1)
    usual, first = sql.SETTLE_MEMBERS_AND_CLAIM, "SELECT id FROM delayedq_flowstep WHERE"
    assert usual.count(first) == 1
    held_up = usual.replace(first, f"{first} (SELECT pg_advisory_xact_lock({GATE})) IS NOT NULL AND")
    monkeypatch.setattr(sql, "SETTLE_MEMBERS_AND_CLAIM", held_up)

    def end_the_last():
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(f"SELECT pg_advisory_lock({GATE})")
            locked.wait(timeout=30)
            eventually(lambda: waits(cursor))
            store.settle([succeed(claims[-1])], "first")
            cursor.execute(f"SELECT pg_advisory_unlock({GATE})")

    def batch():
        locked.wait(timeout=30)
        next_after(store, claims[:-1])

    locked = Barrier(2)
    together(end_the_last, batch)
    assert states(flow) == {"1 nothing": "succeeded", "2 nothing": "running"}


def waits(cursor):
    cursor.execute(f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = {GATE} AND NOT granted")
    return cursor.fetchone()
