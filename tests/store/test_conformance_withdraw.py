"""Withdrawing: what nobody has begun ends as cancelled, and nothing else is touched."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from delayedq.core.lifecycle import Ending
from delayedq.models import FinishedMessage
from tests.store.given import NOW, at, claim_one, history, live, live_keys, message, put_back, retry, settle, together


def ids(store, *offers):
    return [offered.id for offered in store.offer_many(offers, now=NOW)]


def test_waiting_messages_end_as_cancelled_with_the_reason(store):
    due, future, _ = ids(store, message("due"), message("future", scheduled_at=at(60)), message("other"))

    assert store.withdraw([due, future], '["why"]', at(1)) == {due, future}
    assert live_keys() == {"other"}
    ended = history(key="future")
    assert (ended.id, ended.outcome, ended.errors, ended.finished_at) == (future, Ending.CANCELLED, '["why"]', at(1))
    assert (ended.attempts, ended.started_at, ended.scheduled_at) == (0, None, at(60))


def test_what_runs_and_what_has_run_is_left_alone(store):
    running, failed = ids(store, message("running"), message("failed", max_attempts=3))
    claim_one(store)
    settle(store, retry(claim_one(store), delay=60.0))

    assert store.withdraw([running, failed], None, NOW) == set()
    assert live_keys() == {"running", "failed"}
    assert store.withdraw([running], None, at(3600)) == set(), "an expired lease awaits its redelivery"


def test_what_was_given_back_unstarted_can_be_withdrawn(store):
    (id_,) = ids(store, message("a"))
    settle(store, put_back(claim_one(store)))

    assert store.withdraw([id_], None, NOW) == {id_}


def test_unknown_and_ended_ids_are_not_in_the_answer(store):
    (id_,) = ids(store, message("a"))
    store.withdraw([id_], None, NOW)

    assert store.withdraw([id_, 10**12], None, NOW) == set()
    assert store.withdraw([], None, NOW) == set()
    assert FinishedMessage.objects.count() == 1


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_a_message_that_a_transaction_has_locked_is_passed_over(store, alias):
    (id_,) = ids(store, message("a"))
    with transaction.atomic(using=alias):
        store.offer(message("a", '"new"'), now=NOW)
        assert together(lambda: store.withdraw([id_], None, NOW)) == [set()]
    assert live("a").payload == '"new"'


def test_the_clock_of_the_store_is_aware_and_about_now(store):
    assert abs(store.now() - timezone.now()) < timedelta(seconds=5)
