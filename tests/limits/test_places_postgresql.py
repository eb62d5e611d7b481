"""On PostgreSQL: places of messages that a statement ends which began before they were moved."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections, transaction

from tests.limits.channels import channels_of, claims, finish, in_channel, offer, one_by_one
from tests.store.given import at, together

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)


def unscheduled(store):
    return store.at(at(2)).unschedule("mail", "first")


def dropped(store, recorded=True):
    return store.at(at(2)).drop("mail", recorded=recorded)


def erased(store):
    return dropped(store, recorded=False)


@pytest.mark.parametrize("end", [unscheduled, dropped, erased], ids=lambda end: end.__name__)
def test_what_is_ended_after_the_transaction_that_moved_and_claimed_it_has_its_place_where_it_runs(store, alias, end):
    """The statement that ends it began before, so it saw the message wait in its former channel."""
    rules = one_by_one()
    offer(store, "a", key="first", kind="mail")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=alias):
            store.at(at(1)).offer(in_channel("b", "first", payload="[2]", kind="mail"))
            ended = pool.submit(together, lambda: end(store))
            wait_until_it_waits(alias)
            (first,) = claims(store, rules=rules, now=at(1))
        assert ended.result(timeout=60) == [1]

    offer(store, "a", "b", kind="mail", now=at(3))
    assert channels_of(claims(store, rules=rules, now=at(3))) == ["a"]
    assert finish(store, first, now=at(4)).lost == {first.id}
    assert channels_of(claims(store, rules=rules, now=at(4))) == ["b"]


WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def wait_until_it_waits(alias):
    """Another connection waits for a lock of this one's transaction."""
    connection, until = connections[alias], time.monotonic() + 30
    with connection.cursor() as cursor:
        while time.monotonic() < until:
            cursor.execute(WAITING[connection.vendor])
            if cursor.fetchone()[0]:
                return
            time.sleep(0.02)
    raise AssertionError("nothing waits")
