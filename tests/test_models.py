"""The QuerySet verbs, over one message in each state."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import ClaimRequest, Finish, Lane
from tests.store.given import KIND, message, put_back, retry

HOUR = timedelta(hours=1)


def keys(rows):
    return {row.key for row in rows}


@pytest.fixture
def states(store):
    """One message in each state, named by it."""
    now = timezone.now()

    def claim(key, lease=HOUR):
        store.offer(message(key, queue=key, scheduled_at=now - HOUR))
        (claimed,) = store.claim(ClaimRequest([Lane(key, 0)], 1, lease, "worker"))
        return claimed

    store.offer(message("due", scheduled_at=now - HOUR))
    store.offer(message("scheduled", scheduled_at=now + HOUR))
    claim("leased")
    claim("expired", -HOUR)
    store.settle([retry(claim("retrying soon"), delay=3600)], "worker")
    store.settle([retry(claim("retrying now"))], "worker")
    store.settle([put_back(claim("released"))], "worker")


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("all", {"due", "scheduled", "leased", "expired", "retrying soon", "retrying now", "released"}),
        ("waiting", {"due", "scheduled", "expired", "retrying soon", "retrying now", "released"}),
        ("due", {"due", "expired", "retrying now", "released"}),
        ("scheduled", {"scheduled", "retrying soon"}),
        ("leased", {"leased"}),
        ("expired", {"expired"}),
        ("retrying", {"retrying soon", "retrying now", "expired"}),
    ],
)
def test_each_verb_finds_its_messages(states, verb, expected):
    assert keys(getattr(Message.objects, verb)()) == expected


def test_verbs_chain(states):
    assert keys(Message.objects.filter(queue="mail").waiting().due()) == {"due"}
    assert keys(Message.objects.expired().retrying()) == {"expired"}


def test_what_is_due_comes_in_the_order_of_its_claim(store):
    now = timezone.now()
    for key, hours in (("c", 1), ("a", 3), ("b", 2), ("d", 1)):
        store.offer(message(key, scheduled_at=now - hours * HOUR))
    store.offer(message("later", scheduled_at=now + 2 * HOUR))
    store.offer(message("soon", scheduled_at=now + HOUR))

    assert [row.key for row in Message.objects.due()] == ["a", "b", "c", "d"]
    assert [row.key for row in Message.objects.scheduled()] == ["soon", "later"]


def test_a_keyed_message_is_found_by_kind_and_key(states, store):
    store.offer(message("due", kind="another"))
    assert [(row.kind, row.key) for row in Message.objects.keyed(KIND, "due")] == [(KIND, "due")]
    assert not Message.objects.keyed(KIND, "DUE")


@pytest.fixture
def outcomes(store):
    """A message of each outcome, named by it."""
    for outcome in FinalOutcome:
        store.offer(message(outcome.value, scheduled_at=None))
        (claimed,) = store.claim(ClaimRequest([Lane("mail", 0)], 1, HOUR, "worker"))
        store.settle([Finish(claimed, outcome, 1.0, 0.5)], "worker")
    store.offer(message("superseded", scheduled_at=None))
    (claimed,) = store.claim(ClaimRequest([Lane("mail", 0)], 1, HOUR, "worker"))
    store.offer(message("superseded", payload='{"args":[1]}', scheduled_at=None))
    store.settle([Finish(claimed, FinalOutcome.SUCCEEDED, 1.0, 0.5)], "worker")


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled", "superseded"])
def test_history_is_found_by_outcome(outcomes, outcome):
    assert keys(getattr(FinishedMessage.objects, outcome)()) == {outcome}


def test_messages_name_themselves(store):
    store.offer(message("UA1545"))
    unkeyed = store.offer(message())
    assert str(Message.objects.keyed(KIND, "UA1545").get()) == f"{KIND} UA1545"
    assert str(Message.objects.get(id=unkeyed.id)) == f"{KIND} {unkeyed.id}"
    store.unschedule(KIND, "UA1545")
    assert str(FinishedMessage.objects.get()) == f"{KIND} UA1545 cancelled"
