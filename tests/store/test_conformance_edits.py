"""What an operator does to messages: only to those that still are as he saw them."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import transaction

from delayedq.models import FinishedMessage, Message
from delayedq.store.edits import Move, Revival, Seen
from tests.store.given import (
    KIND,
    NOW,
    at,
    claim,
    claim_one,
    fail,
    history,
    live,
    live_keys,
    message,
    outcomes,
    retry,
    settle,
    succeed,
    together,
)


def seen(key):
    return Seen._make(Message.objects.values_list(*Seen._fields).get(key=key))


def move(key, **changes):
    now = seen(key)
    return Move(now, **{"scheduled_at": now.scheduled_at, "queue": now.queue, "priority": now.priority} | changes)


def dead(store, key, **fields):
    """A message that failed at its only attempt."""
    offered = store.offer(message(key, **fields), now=NOW)
    settle(store, fail(claim_one(store), errors='[{"attempt": 1}]'))
    return offered.id


# Moving


def test_a_message_is_moved_in_time_queue_and_priority(store):
    offered = store.offer(message("a", '{"args":[1]}'), now=NOW)

    assert store.move([move("a", scheduled_at=at(60), queue="slow", priority=-5)], NOW) == {offered.id}

    row = live("a")
    assert (row.id, row.scheduled_at, row.queue, row.priority) == (offered.id, at(60), "slow", -5)
    assert (row.payload, row.scheduled_at_initially, row.attempt, row.generation) == ('{"args":[1]}', NOW, 0, 0)


def test_many_messages_are_moved_each_to_a_time_of_its_own(store):
    store.offer_many([message(f"{number}") for number in range(1500)], now=NOW)
    moves = [move._replace(scheduled_at=at(move.seen.id)) for move in map(move_of, Message.objects.all())]

    assert len(store.move(moves, NOW)) == 1500
    assert all(row.scheduled_at == at(row.id) for row in Message.objects.all())


def move_of(row):
    now = Seen(*(getattr(row, name) for name in Seen._fields))
    return Move(now, now.scheduled_at, now.queue, now.priority)


def test_a_running_message_is_not_moved(store):
    store.offer(message("a"), now=NOW)
    before = move("a", scheduled_at=at(60))
    claim(store)

    assert store.move([before, move("a", scheduled_at=at(60))], NOW) == set()
    assert live("a").scheduled_at == NOW


@pytest.mark.parametrize("change", ["replaced", "retried", "moved", "ended"])
def test_a_message_that_is_not_as_it_was_seen_is_not_moved(store, change):
    store.offer(message("a"), now=NOW)
    stale = move("a", scheduled_at=at(60))
    if change == "replaced":
        store.offer(message("a", "[]"), now=NOW)
    elif change == "moved":
        store.move([move("a", priority=1)], NOW)
    else:
        claimed = claim_one(store)
        settle(store, retry(claimed) if change == "retried" else succeed(claimed))

    assert store.move([stale], NOW) == set()
    assert store.cancel([stale.seen], NOW) == set()


def test_an_expired_lease_is_taken_away_from_whoever_lost_it(store):
    store.offer(message("a"), now=NOW)
    claimed = claim_one(store)

    assert store.move([move("a", scheduled_at=at(300))], at(61)) == {claimed.id}
    assert settle(store, succeed(claimed), now=at(62)).lost == {claimed.id}
    assert live("a").lease_token is None


def test_a_message_that_somebody_has_locked_is_passed_over(store, alias, connection):
    if connection.vendor == "sqlite":
        return  # it locks the whole file
    store.offer(message("a"), now=NOW)
    mine, theirs = move("a", priority=1), message("a", '{"args":[2]}')
    with transaction.atomic(using=alias):
        store.offer(theirs, now=NOW)
        (moved,) = together(partial(store.move, [mine], NOW))
        (cancelled,) = together(partial(store.cancel, [mine.seen], NOW))
    assert (moved, cancelled) == (set(), set())


def test_of_two_who_move_a_message_at_once_one_succeeds(store):
    store.offer(message("a"), now=NOW)
    first, second = move("a", priority=1), move("a", priority=2)

    answers = together(partial(store.move, [first], NOW), partial(store.move, [second], NOW))

    assert sorted(map(len, answers)) == [0, 1]


def test_a_moved_message_is_claimed_at_its_new_time(store):
    store.offer(message("a", scheduled_at=at(600)), now=NOW)
    store.move([move("a", scheduled_at=NOW)], NOW)
    assert claim_one(store).key == "a"


# Cancelling


def test_a_cancelled_message_is_in_the_history(store):
    store.offer(message("a", '{"args":[1]}', metadata="{}"), now=NOW)
    settle(store, retry(claim_one(store), errors='[{"attempt": 1}]'))

    assert store.cancel([seen("a")], at(5)) == {history().id}

    row = history()
    assert (row.outcome, row.key, row.kind, row.finished_at, row.attempts) == ("cancelled", "a", KIND, at(5), 1)
    assert (row.payload, row.metadata, row.errors) == ('{"args":[1]}', "{}", '[{"attempt": 1}]')
    assert not Message.objects.exists()


def test_a_running_message_is_not_cancelled(store):
    store.offer(message("a"), now=NOW)
    claim(store)
    assert store.cancel([seen("a")], NOW) == set()
    assert live_keys() == {"a"}


# Reviving


def test_a_dead_letter_starts_over_under_its_old_id(store):
    id_ = dead(store, "a", payload='{"args":[1]}', metadata='{"b":1}', priority=0)

    assert store.revive([Revival(id_, at(60))], "failed", NOW) == {id_}

    row = live("a")
    assert (row.id, row.scheduled_at, row.scheduled_at_initially) == (id_, at(60), at(60))
    assert (row.attempt, row.errors, row.lease_token) == (0, None, None)
    assert (row.payload, row.metadata, row.queue) == ('{"args":[1]}', '{"b":1}', "mail")
    assert not FinishedMessage.objects.exists()
    assert claim_one(store, now=at(60)).attempt == 1


def test_a_cancelled_message_goes_on_as_it_was(store):
    store.offer(message("a", max_attempts=3), now=NOW)
    settle(store, retry(claim_one(store), delay=30.0, errors='[{"attempt": 1}]'))
    before = seen("a")
    store.cancel([before], NOW)

    assert store.revive([Revival(before.id)], "cancelled", NOW) == {before.id}
    assert seen("a") == before
    assert live("a").errors == '[{"attempt": 1}]'


def test_only_what_ended_so_is_revived(store):
    id_ = dead(store, "a")
    assert store.revive([Revival(id_, NOW), Revival(4711, NOW)], "cancelled", NOW) == set()
    assert outcomes() == ["failed"]


def test_a_dead_letter_stays_dead_while_a_live_message_has_its_key(store):
    id_ = dead(store, "a", payload="[1]")
    other = dead(store, "b")
    store.offer(message("a", "[2]"), now=NOW)

    assert store.revive([Revival(id_, NOW), Revival(other, NOW)], "failed", NOW) == {other}
    assert live("a").payload == "[2]"
    assert outcomes() == ["failed"]


def test_of_two_dead_letters_with_one_key_one_is_revived(store):
    ids = [dead(store, "a"), dead(store, "a")]
    assert len(store.revive([Revival(id_, NOW) for id_ in ids], "failed", NOW)) == 1
    assert outcomes() == ["failed"]


def test_a_dead_letter_is_revived_once_however_many_try(store):
    ids = [dead(store, None) for _ in range(3)]
    revivals = [Revival(id_, NOW) for id_ in ids]

    answers = together(*[partial(store.revive, revivals, "failed", NOW)] * 3)

    assert sorted(id_ for answer in answers for id_ in answer) == ids
    assert Message.objects.count() == 3


def test_new_messages_get_new_ids_after_a_revival(store):
    id_ = dead(store, "a")
    store.revive([Revival(id_, NOW)], "failed", NOW)
    assert store.offer(message("b"), now=NOW).id > id_


# Kinds


def test_the_kinds_of_keyed_messages_are_known(store):
    store.offer_many([message(key, kind=kind) for kind in ("b", "a", "c") for key in ("1", "2")], now=NOW)
    store.offer(message(kind="d"), now=NOW)
    assert store.keyed_kinds() == ["a", "b", "c"]


def test_without_messages_there_are_no_kinds(store):
    assert store.keyed_kinds() == []
