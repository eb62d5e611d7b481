"""Pruning: old history goes, in small batches; dead letters stay."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import FinishedMessage, Message
from delayedq.store import retention
from delayedq.store.protocol import Finish
from tests.router import ChosenDatabase
from tests.store.given import KIND, LEASE, NOW, at, claim, claim_one, message, settle, succeed

DAY = timedelta(days=1)


def ended(store, key, outcome=FinalOutcome.SUCCEEDED, when=NOW):
    store.at(when).offer(message(key, scheduled_at=when))
    settle(store, Finish(claim_one(store, now=when), outcome, started=None, finished=0.0), now=when)


def left():
    return set(FinishedMessage.objects.values_list("key", flat=True))


def test_history_is_pruned_when_it_is_older_and_not_before(store):
    ended(store, "old", when=at(-1))
    ended(store, "new", when=at(1))

    assert store.at(NOW + DAY).prune(DAY, 100) == 1
    assert left() == {"new"}
    assert store.at(NOW + DAY).prune(DAY, 100) == 0


@pytest.mark.parametrize("outcome", FinalOutcome)
def test_dead_letters_are_kept_and_all_other_ends_go(store, outcome):
    ended(store, "a", outcome)

    assert store.at(NOW + 9 * DAY).prune(DAY, 100) == (0 if outcome is FinalOutcome.FAILED else 1)
    assert left() == ({"a"} if outcome is FinalOutcome.FAILED else set())


def test_superseded_attempts_are_pruned_too(store):
    store.at(NOW).offer(message("a", "1"))
    claimed = claim_one(store)
    store.at(NOW).offer(message("a", "2"))
    settle(store, succeed(claimed))
    store.at(NOW).unschedule(KIND, "a")

    assert store.at(NOW + 9 * DAY).prune(DAY, 100) == 2


def test_the_oldest_go_first_and_no_more_than_the_limit(store):
    for second in (5, 1, 4, 2, 3):
        ended(store, f"{second}", when=at(second))

    assert [store.at(NOW + 9 * DAY).prune(DAY, 2) for _ in range(2)] == [2, 2]
    assert left() == {"5"}
    assert [store.at(NOW + 9 * DAY).prune(DAY, 2) for _ in range(2)] == [1, 0]


def test_dead_letters_do_not_use_up_the_limit(store):
    for second in range(3):
        ended(store, f"dead-{second}", FinalOutcome.FAILED, at(second))
    ended(store, "done", when=at(9))

    assert store.at(NOW + 9 * DAY).prune(DAY, 1) == 1
    assert left() == {"dead-0", "dead-1", "dead-2"}


def test_pruning_leaves_live_messages_alone(store):
    store.at(NOW).offer_many([message("waits"), message("runs")])
    claim(store, 1, lease=LEASE)

    assert store.at(NOW + 9 * DAY).prune(timedelta(), 100) == 0
    assert Message.objects.count() == 2


def test_pruning_uses_the_databases_clock(store):
    ended(store, "old", when=timezone.now() - 2 * DAY)
    ended(store, "new", when=timezone.now() - DAY / 2)

    assert store.prune(DAY, 100) == 1
    assert left() == {"new"}


# What others need


@pytest.fixture
def registered(monkeypatch):
    """What is registered in a test is forgotten at its end; nothing is at its beginning."""
    monkeypatch.setattr(retention, "_NEEDED", [])
    return retention.keep_history


def needed_until(key):
    """History is needed from when the live message of this key is due."""
    return lambda: Message.objects.keyed(KIND, key).values_list("scheduled_at", flat=True)


def test_history_that_is_needed_is_kept_until_it_is_not(store, registered):
    registered(needed_until("a 100% 'needed' one"))
    registered(needed_until("another"))
    for second in (-1, 1, 3):
        ended(store, f"{second}", when=at(second))
    store.at(NOW).offer(message("a 100% 'needed' one", scheduled_at=NOW))
    store.at(NOW).offer(message("another", scheduled_at=at(2)))

    assert store.at(NOW + DAY).prune(timedelta(), 100) == 1
    assert left() == {"-1", "1"}

    store.at(NOW + DAY).unschedule(KIND, "another")
    assert store.at(NOW + DAY).prune(timedelta(), 100) == 1
    assert left() == {"-1", "another"}

    store.at(NOW + DAY).unschedule(KIND, "a 100% 'needed' one")
    assert store.at(NOW + 2 * DAY).prune(timedelta(), 100) == 3


def statements(connection, store):
    with CaptureQueriesContext(connection) as captured:
        store.at(NOW).prune(DAY, 9)
    return [query["sql"] for query in captured]


def test_what_is_registered_twice_is_asked_once(store, connection, registered):
    needed = needed_until("a")
    registered(needed)
    registered(needed)

    for statement in statements(connection, store):
        assert len(re.findall(r"FROM .?delayedq_message\b", statement)) <= 1


def test_pruning_reads_history_only_if_nothing_is_registered_and_no_flow_is_open(store, connection, registered):
    asked, *pruned = statements(connection, store)
    assert set(re.findall(r"delayedq_\w+", asked)) == {"delayedq_flow"}
    for statement in pruned:
        assert set(re.findall(r"delayedq_\w+", statement)) <= {"delayedq_finishedmessage"}


def test_a_table_of_another_database_is_not_asked(store, registered, monkeypatch):
    registered(needed_until("a"))
    ended(store, "old", when=at(-1))
    store.at(NOW).offer(message("a", scheduled_at=NOW))
    monkeypatch.setattr(ChosenDatabase, "allow_migrate", lambda *_, **__: False, raising=False)

    assert store.at(NOW + 2 * DAY).prune(DAY, 100) == 1
