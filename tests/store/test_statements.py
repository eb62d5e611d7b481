"""What a verb costs: statements, and which statements wait for others."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.models import FinishedMessage
from delayedq.store.protocol import ClaimRequest, OnConflict
from tests.store.given import KIND, LANE, LEASE, NOW, at, claim, live, message, retry, settle, succeed, together

ON_POSTGRESQL = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
ON_SQLITE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
#: Later than any clock of the tests, so that no NOTIFY is sent for it.
FUTURE = NOW.replace(year=2126)


def statements(connection, act):
    with CaptureQueriesContext(connection) as captured:
        act()
    return [query["sql"].strip() for query in captured]


@pytest.mark.parametrize("policy", OnConflict)
def test_an_offer_is_one_statement_whatever_it_meets(store, connection, policy):
    for payload in "12":
        written = statements(
            connection, lambda p=payload: store.at(NOW).offer(message("a", p, scheduled_at=FUTURE), policy)
        )
        assert sum(not statement.startswith("SELECT id") for statement in written) == 1


@ON_POSTGRESQL
@pytest.mark.parametrize("size", [1, 1000])
def test_a_batch_of_offers_is_one_statement_on_postgresql(store, connection, size):
    offers = [message(f"{number}", scheduled_at=FUTURE) for number in range(size)]

    begin, insert, commit = statements(connection, partial(store.at(NOW).offer_many, offers))
    assert (begin, insert.split()[0], commit) == ("BEGIN", "WITH", "COMMIT")


@ON_POSTGRESQL
def test_a_tick_is_one_statement_on_postgresql(store, connection):
    store.at(NOW).offer_many([message(f"{number}") for number in range(200)])
    done = claim(store, 100)

    assert (
        len(
            statements(
                connection,
                lambda: store.at(NOW).settle_and_claim(
                    [*map(succeed, done)], ClaimRequest([LANE], 100, LEASE, "first")
                ),
            )
        )
        == 1
    )


@ON_POSTGRESQL
def test_a_claim_a_renewal_a_release_and_an_unschedule_are_one_statement_each_on_postgresql(store, connection):
    store.at(NOW).offer_many([message(f"{number}") for number in range(20)])
    held = [(claimed.id, claimed.token) for claimed in claim(store, 10)]

    for act in (
        partial(claim, store, 10),
        partial(store.at(NOW).scan, None),
        partial(store.at(NOW).renew, held, LEASE),
        partial(store.release, held),
        partial(store.at(NOW).unschedule, KIND, "1"),
    ):
        assert len(statements(connection, act)) == 1


def test_the_number_of_statements_does_not_grow_with_the_batch(store, connection):
    store.at(NOW).offer_many([message(f"{number}") for number in range(220)])

    def cost(size):
        return len(statements(connection, lambda: settle(store, *map(succeed, claim(store, size)))))

    assert cost(10) == cost(100)


@ON_SQLITE
def test_an_idle_worker_does_not_wait_for_a_writer_on_sqlite(store, alias):
    store.at(NOW).offer(message("a", scheduled_at=at(5)))
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("b"))
        idle = together(
            partial(store.at(NOW).scan, None),
            partial(claim, store),
            partial(store.at(NOW).settle_and_claim, [], ClaimRequest([LANE], 9, LEASE, "w")),
            partial(store.at(NOW).prune, LEASE, 9),
        )
    assert [head.first_at for head in idle[0]] == [at(5)]
    assert (idle[1], idle[2].claimed, idle[3]) == ([], [], 0)


@ON_SQLITE
def test_an_idle_worker_writes_nothing_on_sqlite(store, connection):
    store.at(NOW).offer(message("a", scheduled_at=at(5)))

    def idle():
        store.at(NOW).scan()
        store.at(NOW).settle_and_claim([], ClaimRequest([LANE], 9, LEASE, "w"))
        store.at(NOW).prune(LEASE, 9)
        store.at(NOW).settle([], "w")

    words = {statement.split()[0] for statement in statements(connection, idle)}
    assert words <= {"SELECT", "WITH"}


@ON_POSTGRESQL
def test_the_clock_of_the_host_decides_nothing_on_postgresql(store, monkeypatch):
    real = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: real + timedelta(days=1))
    for key in "abc":
        store.offer(message(key, scheduled_at=None))
    a, b = claim(store, 2, now=None)
    store.renew([(a.id, a.token), (b.id, b.token)], timedelta(hours=1))
    settle(store, succeed(a), retry(b, delay=1.0), now=None)
    ((_, _, first_at, due_in),) = store.scan()
    store.unschedule(KIND, "c")

    times = [a.created_at, a.scheduled_at, first_at, live("b").scheduled_at, *history_ends()]
    assert max(abs(time - real) for time in times) < timedelta(minutes=1)
    assert abs(due_in) < 60


def history_ends():
    return FinishedMessage.objects.values_list("finished_at", flat=True)
