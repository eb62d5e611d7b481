"""What an operator does to one message: another payload, an end while it runs; and dead letters that are discarded."""

from __future__ import annotations

from functools import partial

import pytest

from delayedq.models import FinishedMessage, Message
from delayedq.store import operator_store
from delayedq.store.operator import Rewrite, Seen
from tests.store.given import (
    NOW,
    at,
    claim,
    claim_one,
    fail,
    history,
    live,
    message,
    outcomes,
    retry,
    settle,
    succeed,
    together,
)

OLD, NEW = '{"args":[1]}', '{"args":["\u00e9\u202e", 2]}'


def operator(store, now=NOW):
    return operator_store(store.alias).at(now)


def seen(key):
    return Seen._make(Message.objects.values_list(*Seen._fields).get(key=key))


def rewrite(key, before=OLD, after=NEW):
    return Rewrite(seen(key), before, after)


# Another payload


def test_a_waiting_message_gets_another_payload_and_keeps_the_rest(store):
    offered = store.at(NOW).offer(message("a", OLD, metadata='{"b":1}'))

    assert operator(store).rewrite([rewrite("a")]) == {offered.id}

    row = live("a")
    assert (row.payload, row.metadata, row.attempt, row.generation, row.scheduled_at) == (NEW, '{"b":1}', 0, 0, NOW)
    assert claim_one(store).payload == NEW


def test_many_payloads_at_once_and_each_its_own(store):
    store.at(NOW).offer_many([message(f"{number}", OLD) for number in range(20)])
    rewrites = [rewrite(f"{number}", after=f'{{"args":[{number}]}}') for number in range(20)]

    assert len(operator(store).rewrite(rewrites)) == 20
    assert all(row.payload == f'{{"args":[{row.key}]}}' for row in Message.objects.all())


@pytest.mark.parametrize("change", ["claimed", "retried", "replaced", "rewritten", "ended", "moved"])
def test_what_is_not_as_it_was_seen_keeps_its_payload(store, change):
    store.at(NOW).offer(message("a", OLD))
    stale = rewrite("a")
    if change == "replaced":
        store.at(NOW).offer(message("a", '{"args":[3]}'))
    elif change == "rewritten":
        operator(store).rewrite([rewrite("a", after='{"args":[4]}')])
    elif change == "moved":
        Message.objects.update(priority=3)
    else:
        claimed = claim_one(store)
        if change == "retried":
            settle(store, retry(claimed))
        if change == "ended":
            settle(store, succeed(claimed))

    assert operator(store).rewrite([stale]) == set()
    assert not Message.objects.filter(payload=NEW).exists()


def test_a_frozen_worker_changes_nothing_after_its_message_got_another_payload(store):
    store.at(NOW).offer(message("a", OLD))
    claimed = claim_one(store)

    assert operator(store, at(61)).rewrite([rewrite("a")]) == {claimed.id}
    assert settle(store, succeed(claimed), now=at(62)).lost == {claimed.id}
    assert live("a").payload == NEW


def test_of_an_edit_and_a_claim_at_once_the_claim_has_the_payload_of_the_row(store):
    store.at(NOW).offer(message("a", OLD))
    edit = rewrite("a")

    rewritten, claimed = together(partial(operator(store).rewrite, [edit]), partial(claim, store))

    assert [one.payload for one in claimed] == [NEW if rewritten else OLD] * len(claimed)
    assert live("a").payload == (NEW if rewritten else OLD)


# An end while it runs


def test_a_running_message_is_stopped_its_worker_is_told_and_nothing_runs_it_again(store):
    store.at(NOW).offer(message("a", OLD, metadata="{}"))
    claimed = claim_one(store, worker="w1")

    assert operator(store, at(5)).stop([seen("a")]) == {claimed.id}

    row = history()
    assert (row.outcome, row.worker, row.attempts, row.started_at, row.finished_at) == (
        "cancelled",
        "w1",
        1,
        NOW,
        at(5),
    )
    assert store.at(at(6)).renew([(claimed.id, claimed.token)], at(60) - NOW).lost == {(claimed.id, claimed.token)}
    assert settle(store, succeed(claimed), now=at(6)).lost == {claimed.id}
    assert (outcomes(), claim(store, now=at(100))) == (["cancelled"], [])


@pytest.mark.parametrize("change", ["waits", "expired", "claimed again", "replaced"])
def test_what_does_not_run_as_it_was_seen_is_not_stopped(store, change):
    store.at(NOW).offer(message("a", OLD))
    moment = NOW
    if change == "waits":
        stale = seen("a")
    else:
        claimed = claim_one(store)
        stale = seen("a")
        if change == "expired":
            moment = at(61)
        elif change == "replaced":
            store.at(NOW).offer(message("a", NEW))
        else:
            settle(store, retry(claimed))
            claim_one(store)

    assert operator(store, moment).stop([stale]) == set()
    assert not FinishedMessage.objects.exists()


# Dead letters


def test_dead_letters_get_another_outcome_and_nothing_else_does(store):
    store.at(NOW).offer_many([message("a"), message("b"), message("c")])
    first, second, third = (claim_one(store) for _ in range(3))
    errors = '[{"attempt":1,"exception":"app.Late","message":"by 5"}]'
    settle(store, fail(first, errors=errors), fail(second), succeed(third))
    ids = [first.id, third.id, 10**9]
    dead = history(id=first.id)

    assert operator(store).relabel(ids, "failed", "cancelled") == {first.id}
    assert operator(store).relabel(ids, "failed", "cancelled") == set()
    assert {row.key: row.outcome for row in FinishedMessage.objects.all()} == {
        first.key: "cancelled", second.key: "failed", third.key: "succeeded",
    }  # fmt: skip
    assert (history(id=first.id).error, history(id=first.id).fingerprint) == (None, None)
    assert operator(store).relabel(ids, "cancelled", "failed") == {first.id}
    again = history(id=first.id)
    assert (again.outcome, again.error, again.fingerprint) == ("failed", "app.Late: by 5", dead.fingerprint)
