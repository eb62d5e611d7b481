"""What an operator does to messages: only to those that still are as they saw them."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext

from delayedq.core.conditions import KeyRange
from delayedq.models import FinishedMessage, Message
from delayedq.sql.dialects import MYSQL
from delayedq.store import operator_store
from delayedq.store.operator import Move, Revival, Seen
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


def operator(store):
    return operator_store(store.alias).at(NOW)


def seen(key):
    return Seen._make(Message.objects.values_list(*Seen._fields).get(key=key))


def move(key, **changes):
    now = seen(key)
    return Move(now, **{"scheduled_at": now.scheduled_at, "queue": now.queue, "priority": now.priority} | changes)


def dead(store, key, **fields):
    """A message that failed at its only attempt."""
    offered = store.at(NOW).offer(message(key, **fields))
    settle(store, fail(claim_one(store), errors='[{"attempt": 1}]'))
    return offered.id


# Moving


def test_a_message_is_moved_in_time_queue_and_priority(store):
    offered = store.at(NOW).offer(message("a", '{"args":[1]}'))

    assert operator(store).move([move("a", scheduled_at=at(60), queue="slow", priority=-5)]) == {offered.id}

    row = live("a")
    assert (row.id, row.scheduled_at, row.queue, row.priority) == (offered.id, at(60), "slow", -5)
    assert (row.payload, row.scheduled_at_initially, row.attempt, row.generation) == ('{"args":[1]}', NOW, 0, 0)


def test_many_messages_are_moved_each_to_a_time_of_its_own(store):
    store.at(NOW).offer_many([message(f"{number}") for number in range(1500)])
    moves = [move._replace(scheduled_at=at(move.seen.id)) for move in map(move_of, Message.objects.all())]

    assert len(operator(store).move(moves)) == 1500
    assert all(row.scheduled_at == at(row.id) for row in Message.objects.all())


def move_of(row):
    now = Seen(*(getattr(row, name) for name in Seen._fields))
    return Move(now, now.scheduled_at, now.queue, now.priority)


def test_a_running_message_is_not_moved(store):
    store.at(NOW).offer(message("a"))
    before = move("a", scheduled_at=at(60))
    claim(store)

    assert operator(store).move([before, move("a", scheduled_at=at(60))]) == set()
    assert live("a").scheduled_at == NOW


MOVES = {"rescheduled": {"scheduled_at": at(30)}, "prioritized": {"priority": 1}, "rerouted": {"queue": "other"}}


@pytest.mark.parametrize("change", ["replaced", "retried", "rescheduled", "prioritized", "rerouted", "ended"])
def test_a_message_that_is_not_as_it_was_seen_is_not_moved(store, change):
    store.at(NOW).offer(message("a"))
    stale = move("a", scheduled_at=at(60))
    if change == "replaced":
        store.at(NOW).offer(message("a", "[]"))
    elif change in MOVES:
        operator(store).move([move("a", **MOVES[change])])
    else:
        claimed = claim_one(store)
        settle(store, retry(claimed) if change == "retried" else succeed(claimed))

    assert operator(store).move([stale]) == set()
    assert operator(store).cancel([stale.seen]) == set()


def test_an_expired_lease_is_taken_away_from_its_last_holder(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)

    assert operator_store(store.alias).at(at(61)).move([move("a", scheduled_at=at(300))]) == {claimed.id}
    assert settle(store, succeed(claimed), now=at(62)).lost == {claimed.id}
    assert live("a").lease_token is None


def test_a_message_that_is_locked_is_passed_over(store, alias, connection):
    if connection.vendor == "sqlite":
        return  # it locks the whole file
    store.at(NOW).offer(message("a"))
    mine, theirs = move("a", priority=1), message("a", '{"args":[2]}')
    with transaction.atomic(using=alias):
        store.at(NOW).offer(theirs)
        (moved,) = together(partial(operator(store).move, [mine]))
        (cancelled,) = together(partial(operator(store).cancel, [mine.seen]))
    assert (moved, cancelled) == (set(), set())


def test_of_two_who_move_a_message_at_once_one_succeeds(store):
    store.at(NOW).offer(message("a"))
    first, second = move("a", priority=1), move("a", priority=2)

    answers = together(
        partial(operator(store).move, [first]),
        partial(operator(store).move, [second]),
    )

    assert sorted(map(len, answers)) == [0, 1]


def test_a_moved_message_is_claimed_at_its_new_time(store):
    store.at(NOW).offer(message("a", scheduled_at=at(600)))
    operator(store).move([move("a", scheduled_at=NOW)])
    assert claim_one(store).key == "a"


# Cancelling


def test_a_cancelled_message_is_in_the_history(store):
    store.at(NOW).offer(message("a", '{"args":[1]}', metadata="{}"))
    settle(store, retry(claim_one(store), errors='[{"attempt": 1}]'))

    assert operator_store(store.alias).at(at(5)).cancel([seen("a")]) == {history().id}

    row = history()
    assert (row.outcome, row.key, row.kind, row.finished_at, row.attempts) == ("cancelled", "a", KIND, at(5), 1)
    assert (row.payload, row.metadata, row.errors) == ('{"args":[1]}', "{}", '[{"attempt": 1}]')
    assert not Message.objects.exists()


def test_a_running_message_is_not_cancelled(store):
    store.at(NOW).offer(message("a"))
    claim(store)
    assert operator(store).cancel([seen("a")]) == set()
    assert live_keys() == {"a"}


# Reviving


def test_a_dead_letter_starts_over_under_its_old_id(store):
    id_ = dead(store, "a", payload='{"args":[1]}', metadata='{"b":1}', priority=0)

    assert operator(store).revive([Revival(id_, at(60))], "failed") == {id_}

    row = live("a")
    assert (row.id, row.scheduled_at, row.scheduled_at_initially) == (id_, at(60), at(60))
    assert (row.attempt, row.errors, row.lease_token) == (0, None, None)
    assert (row.payload, row.metadata, row.queue) == ('{"args":[1]}', '{"b":1}', "mail")
    assert not FinishedMessage.objects.exists()
    assert claim_one(store, now=at(60)).attempt == 1


def test_messages_of_no_flow_are_revived_without_a_statement_for_flows(store, connection):
    ids = [dead(store, key) for key in ("a", "b")]
    with CaptureQueriesContext(connection) as captured:
        assert operator(store).revive([Revival(id_, at(60)) for id_ in ids], "failed") == set(ids)
    assert not [one["sql"] for one in captured if "delayedq_flow" in one["sql"]]


def test_a_cancelled_message_goes_on_as_it_was(store):
    store.at(NOW).offer(message("a", max_attempts=3))
    settle(store, retry(claim_one(store), delay=30.0, errors='[{"attempt": 1}]'))
    before = seen("a")
    operator(store).cancel([before])

    assert operator(store).revive([Revival(before.id)], "cancelled") == {before.id}
    assert seen("a") == before
    assert live("a").errors == '[{"attempt": 1}]'


def test_only_what_ended_so_is_revived(store):
    id_ = dead(store, "a")
    assert operator(store).revive([Revival(id_, NOW), Revival(4711, NOW)], "cancelled") == set()
    assert outcomes() == ["failed"]


def test_a_dead_letter_stays_dead_while_a_live_message_has_its_key(store):
    id_ = dead(store, "a", payload="[1]")
    other = dead(store, "b")
    store.at(NOW).offer(message("a", "[2]"))

    assert operator(store).revive([Revival(id_, NOW), Revival(other, NOW)], "failed") == {other}
    assert live("a").payload == "[2]"
    assert outcomes() == ["failed"]


def test_of_two_dead_letters_with_one_key_one_is_revived(store):
    ids = [dead(store, "a"), dead(store, "a")]
    assert len(operator(store).revive([Revival(id_, NOW) for id_ in ids], "failed")) == 1
    assert outcomes() == ["failed"]


def test_a_dead_letter_is_revived_once_however_many_try(store):
    ids = [dead(store, None) for _ in range(3)]
    revivals = [Revival(id_, NOW) for id_ in ids]

    answers = together(*[partial(operator(store).revive, revivals, "failed")] * 3)

    assert sorted(id_ for answer in answers for id_ in answer) == ids
    assert Message.objects.count() == 3


def test_new_messages_get_new_ids_after_a_revival(store):
    id_ = dead(store, "a")
    operator(store).revive([Revival(id_, NOW)], "failed")
    assert store.at(NOW).offer(message("b")).id > id_


# Kinds


def test_the_kinds_of_keyed_messages_are_known(store):
    store.at(NOW).offer_many([message(key, kind=kind) for kind in ("b", "a", "c") for key in ("1", "2")])
    store.at(NOW).offer(message(kind="d"))
    assert operator_store(store.alias).keyed_kinds() == ["a", "b", "c"]


def test_the_kinds_are_known_that_have_keys_in_a_range(store):
    """On MySQL and MariaDB, all that have keys."""
    store.at(NOW).offer_many([message(f"{kind}/1", kind=kind) for kind in ("b", "a", "c")])
    found = operator_store(store.alias).keyed_kinds(KeyRange.of_prefix("a"))
    assert found == (["a", "b", "c"] if store.database.dialect is MYSQL else ["a"])


def test_without_messages_there_are_no_kinds(store):
    assert operator_store(store.alias).keyed_kinds() == []
