"""Limits while others do not end: a worker that was killed, and a transaction that sets a limit."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction

from delayedq import limits
from delayedq.limits.rules import Limit, Rate
from tests.limits.channels import asked, claims, offer, one_by_one, shared
from tests.limits.test_conformance_limits import known, names
from tests.store.given import LEASE, NOW, at, together

__all__ = ["known"]

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("rules", [one_by_one(3), shared(Limit(concurrency=3))], ids=["its own", "shared"])
def test_a_lease_after_a_worker_was_killed_as_much_runs_as_before(store, rules):
    """Nobody ends, renews or gives back what it ran: messages, and attempts whose messages were taken from it."""
    offer(store, "a", key="ended")
    offer(store, "a", key="moved")
    offer(store, *["a"] * 9)
    killed = claims(store, 3, rules=rules, worker="killed:1:x")
    assert names(killed) == {"a": 3}
    assert store.at(NOW).unschedule(killed[0].kind, "ended")
    offer(store, "b", key="moved", payload="[]", scheduled_at=at(900))

    seconds = 0.0
    while not (answer := asked(store, rules=rules, now=at(seconds))).claimed:
        seconds += max(answer.due_in, 2.5)  # the worker asks again by itself
        assert seconds <= LEASE.total_seconds() + 2.5
    assert seconds >= LEASE.total_seconds()
    assert names(answer.claimed + claims(store, rules=rules, now=at(seconds))) == {"a": 3}


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)  # on SQLite, one writes at a time
def test_a_claim_waits_for_no_transaction_that_sets_a_limit(store, alias, known):
    rules = shared(Limit(rate=Rate(5, SECOND, 2)))
    offer(store, *["a"] * 4)
    assert len(claims(store, 1, rules=rules)) == 1
    with transaction.atomic(using=alias):
        limits.set("mail", rate=Rate(5, SECOND, 4), store=store)
        assert [len(each) for each in together(partial(claims, store, rules=rules))] == [1]
    assert claims(store, rules=rules) == []
    assert len(claims(store, rules=rules, now=at(9))) == 2
