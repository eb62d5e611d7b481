"""Workers that are killed in the last attempt of a message: its item is opened, or stays, and no handler is called."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq import desk
from delayedq.desk import Proposal, desk_task
from delayedq.desk.models import Automation, Item, State
from delayedq.desk.visits import UNKNOWN
from delayedq.models import FinishedMessage, Message
from delayedq.testing import run_due
from tests.desk.given import ALL, PAID, QUEUE, RefundForm, opened, person

pytestmark = pytest.mark.usefixtures("store")
CALLED = []


@desk_task(queue_name=QUEUE, form=RefundForm, max_attempts=1, due_in=timedelta(hours=8))
def once(order):
    CALLED.append(order)
    return Proposal(PAID, 1.0)


@desk_task(queue_name=QUEUE, max_attempts=1, skill=lambda order: CALLED.append(order) or "")
def asking(order): ...


@pytest.fixture(autouse=True)
def called():
    CALLED.clear()
    return CALLED


def killed(attempt=1):
    """The message as it is left by a worker that was killed in this attempt, of one."""
    Message.objects.update(
        attempt=attempt, lease_token=1, leased_until=timezone.now() - timedelta(seconds=1), scheduled_at=timezone.now()
    )


@pytest.mark.parametrize("mode", ["people", "shadow", "assisted", "reviewed", "automatic"])
def test_what_killed_its_worker_goes_to_people(called, mode):
    Automation.objects.create(kind=once.module_path, mode=mode)
    once.enqueue(100)
    killed()
    run_due()
    item = Item.objects.get()
    assert (item.state, item.proposal, called) == (State.WAITING, None, [])
    assert ("Its worker vanished in 1 of its attempts." in item.reason) is (mode != "people")
    item.take(ann := person("ann", *ALL))
    item.finish(PAID, by=ann)
    assert FinishedMessage.objects.get(pk=item.message_id).outcome == "succeeded"


def test_what_killed_its_worker_as_it_was_asked_for_its_skill_is_for_who_has_the_unknown_one(called):
    asking.enqueue(100)
    killed()
    run_due()
    item = Item.objects.get()
    assert (item.skill, called) == (UNKNOWN, [])
    assert "Its worker vanished in 1 of its attempts." in item.reason
    assert desk.take_next(person("ann", *ALL), QUEUE) is None


def test_who_holds_an_item_keeps_it_though_the_worker_that_looks_after_it_is_killed():
    item = opened(once)
    item.take(ann := person("ann", *ALL))
    for attempt in range(1, 1 + once.spare_attempts):
        killed(attempt)
        run_due()
    item.finish(PAID, by=ann)
    assert FinishedMessage.objects.get(pk=item.message_id).outcome == "succeeded"


def test_a_decision_that_was_stored_before_the_worker_was_killed_ends_its_message(called):
    """As after a kill between the commit of the item and the end of the message."""
    Automation.objects.create(kind=once.module_path, mode="automatic")
    message_id = once.enqueue(100).id
    given = list(Message.objects.values())
    run_due()
    FinishedMessage.objects.filter(pk=message_id).delete()
    Message.objects.bulk_create(Message(**row) for row in given)
    killed()
    run_due()
    ended = FinishedMessage.objects.get(pk=message_id)
    assert (ended.outcome, Item.objects.get().is_automated, called) == ("succeeded", True, [100])


def test_what_kills_each_worker_that_opens_its_item_is_a_dead_letter_in_the_end():
    once.enqueue(100)
    killed(1 + once.spare_attempts)
    run_due(raise_failures=False)
    assert FinishedMessage.objects.get().outcome == "failed"
    assert not Item.objects.exists()
