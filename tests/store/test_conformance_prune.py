"""Pruning: old history goes, in small batches; dead letters stay."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq.core.lifecycle import Ending
from delayedq.models import ArchiveBatch, ArchiveState, FinishedMessage, Message
from delayedq.store.protocol import Finish
from tests.store.given import KIND, LEASE, NOW, at, claim, claim_one, message, settle, succeed

DAY = timedelta(days=1)


def ended(store, key, ending=Ending.SUCCEEDED, when=NOW):
    store.offer(message(key, scheduled_at=when), now=when)
    settle(store, Finish(claim_one(store, now=when), ending, started=None, finished=0.0), now=when)


def left():
    return set(FinishedMessage.objects.values_list("key", flat=True))


def test_history_is_pruned_when_it_is_older_and_not_before(store):
    ended(store, "old", when=at(-1))
    ended(store, "new", when=at(1))

    assert store.prune(DAY, 100, NOW + DAY) == 1
    assert left() == {"new"}
    assert store.prune(DAY, 100, NOW + DAY) == 0


@pytest.mark.parametrize("ending", Ending)
def test_dead_letters_are_kept_and_all_other_ends_go(store, ending):
    ended(store, "a", ending)

    assert store.prune(DAY, 100, NOW + 9 * DAY) == (0 if ending is Ending.FAILED else 1)
    assert left() == ({"a"} if ending is Ending.FAILED else set())


def test_superseded_attempts_are_pruned_too(store):
    store.offer(message("a", "1"), now=NOW)
    claimed = claim_one(store)
    store.offer(message("a", "2"), now=NOW)
    settle(store, succeed(claimed))
    store.unschedule(KIND, "a", NOW)

    assert store.prune(DAY, 100, NOW + 9 * DAY) == 2


def test_the_oldest_go_first_and_no_more_than_the_limit(store):
    for second in (5, 1, 4, 2, 3):
        ended(store, f"{second}", when=at(second))

    assert [store.prune(DAY, 2, NOW + 9 * DAY) for _ in range(2)] == [2, 2]
    assert left() == {"5"}
    assert [store.prune(DAY, 2, NOW + 9 * DAY) for _ in range(2)] == [1, 0]


def test_dead_letters_do_not_use_up_the_limit(store):
    for second in range(3):
        ended(store, f"dead-{second}", Ending.FAILED, at(second))
    ended(store, "done", when=at(9))

    assert store.prune(DAY, 1, NOW + 9 * DAY) == 1
    assert left() == {"dead-0", "dead-1", "dead-2"}


def test_pruning_leaves_live_messages_alone(store):
    store.offer_many([message("waits"), message("runs")], now=NOW)
    claim(store, 1, lease=LEASE)

    assert store.prune(timedelta(), 100, NOW + 9 * DAY) == 0
    assert Message.objects.count() == 2


def test_pruning_uses_the_databases_clock(store):
    ended(store, "old", when=timezone.now() - 2 * DAY)
    ended(store, "new", when=timezone.now() - DAY / 2)

    assert store.prune(DAY, 100) == 1
    assert left() == {"new"}


def test_what_an_archive_moves_is_left_to_it_until_it_is_done(store):
    ended(store, "archived", when=at(-1))
    ended(store, "pruned", when=at(1))
    ArchiveBatch.objects.create(name="now", lake="/lake", cutoff=NOW, planned_at=NOW)

    assert store.prune(timedelta(), 100, NOW + DAY) == 1
    assert left() == {"archived"}

    ArchiveBatch.objects.update(state=ArchiveState.DELETED, is_open=None)
    assert store.prune(timedelta(), 100, NOW + DAY) == 1
