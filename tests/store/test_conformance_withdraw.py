"""Withdrawing: what no attempt has begun ends as cancelled, and nothing else is touched."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import FinishedMessage
from tests.store.given import NOW, at, claim_one, history, live, live_keys, message, put_back, retry, settle, together


def ids(store, *offers):
    return [offered.id for offered in store.at(NOW).offer_many(offers)]


def test_waiting_messages_end_as_cancelled_with_the_reason(store):
    due, future, _ = ids(store, message("due"), message("future", scheduled_at=at(60)), message("other"))

    assert store.at(at(1)).withdraw([due, future], '["why"]') == {due, future}
    assert live_keys() == {"other"}
    ended = history(key="future")
    assert (ended.id, ended.outcome, ended.errors, ended.finished_at) == (
        future,
        FinalOutcome.CANCELLED,
        '["why"]',
        at(1),
    )
    assert (ended.attempts, ended.started_at, ended.scheduled_at) == (0, None, at(60))


def test_what_runs_and_what_has_run_is_left_alone(store):
    running, failed = ids(store, message("running"), message("failed", max_attempts=3))
    claim_one(store)
    settle(store, retry(claim_one(store), delay=60.0))

    assert store.at(NOW).withdraw([running, failed], None) == set()
    assert live_keys() == {"running", "failed"}
    assert store.at(at(3600)).withdraw([running], None) == set(), "an expired lease awaits its redelivery"


def test_what_was_given_back_unstarted_can_be_withdrawn(store):
    (id_,) = ids(store, message("a"))
    settle(store, put_back(claim_one(store)))

    assert store.at(NOW).withdraw([id_], None) == {id_}


def test_unknown_and_ended_ids_are_not_in_the_answer(store):
    (id_,) = ids(store, message("a"))
    store.at(NOW).withdraw([id_], None)

    assert store.at(NOW).withdraw([id_, 10**12], None) == set()
    assert store.at(NOW).withdraw([], None) == set()
    assert FinishedMessage.objects.count() == 1


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_a_message_that_a_transaction_has_locked_is_passed_over(store, alias):
    (id_,) = ids(store, message("a"))
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a", '"new"'))
        assert together(lambda: store.at(NOW).withdraw([id_], None)) == [set()]
    assert live("a").payload == '"new"'


def test_the_clock_of_the_store_is_aware_and_about_now(store):
    assert abs(store.now() - timezone.now()) < timedelta(seconds=5)
