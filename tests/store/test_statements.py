"""What a verb costs: statements, and who waits for whom."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.models import FinishedMessage
from delayedq.store.protocol import OnConflict
from tests.store.given import KIND, LANE, LEASE, NOW, at, claim, live, message, retry, settle, succeed, together

ON_POSTGRESQL = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
ON_SQLITE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
#: Later than any clock of the tests, so that nobody is woken for it.
FUTURE = NOW.replace(year=2126)


def statements(connection, act):
    with CaptureQueriesContext(connection) as captured:
        act()
    return [query["sql"].strip() for query in captured]


@pytest.mark.parametrize("policy", OnConflict)
def test_an_offer_is_one_statement_whatever_it_meets(store, connection, policy):
    for payload in "12":
        written = statements(
            connection, lambda p=payload: store.offer(message("a", p, scheduled_at=FUTURE), policy, NOW)
        )
        assert sum(not statement.startswith("SELECT id") for statement in written) == 1


@ON_POSTGRESQL
@pytest.mark.parametrize("size", [1, 1000])
def test_a_batch_of_offers_is_one_statement_on_postgresql(store, connection, size):
    offers = [message(f"{number}", scheduled_at=FUTURE) for number in range(size)]

    begin, insert, commit = statements(connection, partial(store.offer_many, offers, now=NOW))
    assert (begin, insert.split()[0], commit) == ("BEGIN", "WITH", "COMMIT")


@ON_POSTGRESQL
def test_a_tick_is_one_statement_on_postgresql(store, connection):
    store.offer_many([message(f"{number}") for number in range(200)], now=NOW)
    done = claim(store, 100)

    assert len(statements(connection, lambda: store.tick([*map(succeed, done)], [LANE], 100, LEASE, "first", NOW))) == 1


@ON_POSTGRESQL
def test_a_claim_a_renewal_a_release_and_an_unschedule_are_one_statement_each_on_postgresql(store, connection):
    store.offer_many([message(f"{number}") for number in range(20)], now=NOW)
    held = [(claimed.id, claimed.token) for claimed in claim(store, 10)]

    for act in (
        partial(claim, store, 10),
        partial(store.look, None, NOW),
        partial(store.renew, held, LEASE, NOW),
        partial(store.release, held),
        partial(store.unschedule, KIND, "1", NOW),
    ):
        assert len(statements(connection, act)) == 1


def test_the_number_of_statements_does_not_grow_with_the_batch(store, connection):
    store.offer_many([message(f"{number}") for number in range(220)], now=NOW)

    def cost(size):
        return len(statements(connection, lambda: settle(store, *map(succeed, claim(store, size)))))

    assert cost(10) == cost(100)


@ON_SQLITE
def test_an_idle_worker_does_not_wait_for_a_writer_on_sqlite(store, alias):
    store.offer(message("a", scheduled_at=at(5)), now=NOW)
    with transaction.atomic(using=alias):
        store.offer(message("b"), now=NOW)
        idle = together(
            partial(store.look, None, NOW),
            partial(claim, store),
            partial(store.tick, [], [LANE], 9, LEASE, "w", NOW),
            partial(store.prune, LEASE, 9, NOW),
        )
    assert [sight.first_at for sight in idle[0]] == [at(5)]
    assert (idle[1], idle[2].claimed, idle[3]) == ([], [], 0)


@ON_SQLITE
def test_an_idle_worker_writes_nothing_on_sqlite(store, connection):
    store.offer(message("a", scheduled_at=at(5)), now=NOW)

    def idle():
        store.look(now=NOW)
        store.tick([], [LANE], 9, LEASE, "w", NOW)
        store.prune(LEASE, 9, NOW)
        store.settle([], "w", NOW)

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
    ((_, _, first_at, due_in),) = store.look()
    store.unschedule(KIND, "c")

    times = [a.created_at, a.scheduled_at, first_at, live("b").scheduled_at, *history_ends()]
    assert max(abs(time - real) for time in times) < timedelta(minutes=1)
    assert abs(due_in) < 60


def history_ends():
    return FinishedMessage.objects.values_list("finished_at", flat=True)
