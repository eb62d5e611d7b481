"""Items that nobody can decide as they are: late ones of another queue, of a task that is gone, with secrets."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.db.models import F

from delayedq import desk
from delayedq.core.edits import Reroute
from delayedq.desk import NeedsPerson, desk_task
from delayedq.desk.errors import NotOpen
from delayedq.desk.models import DeskQueue, Item, State
from delayedq.desk.signals import item_late
from delayedq.models import FinishedMessage, Message
from delayedq.operations import edits
from delayedq.operations.browsing import Ticked
from delayedq.testing import clock, run_due, run_until
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund
from tests.desk.test_modes import START


@desk_task(queue_name=QUEUE, sensitive=["card"], max_attempts=1, mode="automatic")
def charged(card, reason):
    raise {"needs": NeedsPerson, "fails": ValueError}[reason](f"{card} was refused")


@pytest.fixture
def late():
    """The queues of the items that were late, as a receiver has them."""
    queues = []

    def hear(item, **_):
        queues.append(item.queue)

    item_late.connect(hear)
    yield queues
    item_late.disconnect(hear)


@pytest.mark.parametrize("is_senior", [False, True], ids=["no senior", "a senior"])
def test_who_holds_what_is_late_keeps_it_only_where_they_may_work(store, late, is_senior):
    seniors = Group.objects.create(name="seniors")
    ann = person("ann", *ALL)
    if is_senior:
        ann.groups.add(seniors)
    DeskQueue.objects.create(queue=QUEUE, escalate_to="seniors")
    DeskQueue.objects.create(queue="seniors").groups.add(seniors)
    with clock(START):
        refund.using(metadata={"a": 1}).enqueue(100)
        run_due()
        held = desk.take_next(ann, QUEUE)
        Item.objects.update(until=F("until") + timedelta(days=3))
        run_until(START + timedelta(days=2))

    item = Item.objects.get()
    assert (item.queue, late) == ("seniors", ["seniors"])
    assert (item.holder, item.state) == ((ann, State.ASSIGNED) if is_senior else (None, State.WAITING))
    assert (item.assignment == held.assignment) is is_senior


def test_what_is_decided_in_a_later_queue_is_recorded_by_the_workers_of_the_task(store):
    item = opened()
    Item.objects.update(queue="seniors", escalated_at=START)
    item.refresh_from_db()
    item.finish({"amount": 1, "paid": True})
    assert set(Message.objects.values_list("queue", flat=True)) == {QUEUE}


def test_what_was_late_goes_where_an_operator_moves_it(store):
    """Its message has stayed in its own queue, and is decided elsewhere; where it is moved, it is opened anew."""
    ann = person("ann", *ALL)
    DeskQueue.objects.create(queue=QUEUE, escalate_to="seniors")
    with clock(START) as time:
        item, kept = opened(), opened()
        time.advance(hours=9)
        run_due()
        assert set(Item.objects.values_list("queue", "escalated_from")) == {("seniors", QUEUE)}
        edit = edits.begin(store, edits.RESCHEDULE, "move", "an operator")
        edits.reschedule(store, edit, Ticked([item.message_id]), Reroute("secret"), store.now())
        item.refresh_from_db()
        with pytest.raises(NotOpen, match="replaced since"):
            item.take(ann)
        run_due()
        item.refresh_from_db()
        assert (item.queue, item.replaced_at, item.escalated_from) == ("secret", time(), None)
        assert desk.take_next(ann, "seniors") == kept
        desk.items("seniors").get().finish(PAID, by=ann)
    assert FinishedMessage.objects.get(pk=kept.message_id).outcome == "succeeded"


def test_what_the_version_before_has_escalated_is_decided(store):
    ann, item = person("ann", *ALL), opened()
    Item.objects.update(queue="seniors", escalated_at=START)
    desk.take_next(ann, "seniors").finish(PAID, by=ann)
    assert FinishedMessage.objects.get(pk=item.message_id).outcome == "succeeded"


def test_an_item_of_a_task_that_is_gone_is_left_out(store):
    ann, gone, other = person("ann", *ALL), opened(), opened()
    Item.objects.filter(pk=gone.pk).update(kind="shop.tasks.removed")
    assert desk.take_next(ann, QUEUE).pk == other.pk
    assert desk.take_next(ann, QUEUE) is None
    gone.refresh_from_db()
    with pytest.raises(NotOpen, match=r"No task is registered as 'shop.tasks.removed'"):
        gone.take(ann)


@pytest.mark.parametrize("reason", ["needs", "fails"])
def test_why_a_person_decides_hides_what_is_sensitive(store, reason):
    said = opened(charged, "4711 0815", reason).reason
    assert "was refused" in said
    assert "4711 0815" not in said
