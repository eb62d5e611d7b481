"""What a person or a handler decides is what they were shown: other arguments are another case."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Group

from delayedq import desk
from delayedq.core.edits import Reroute, Shift
from delayedq.desk.models import Automation, DeskQueue, Item, State
from delayedq.desk.signals import item_late
from delayedq.models import FinishedMessage, Message
from delayedq.operations import edits
from delayedq.operations.browsing import Ticked
from delayedq.operations.sending import edit_arguments
from delayedq.operations.undo import undo
from delayedq.results.cancelling import cancel
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed, skilled

START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def edited(store, item, order=999):
    """An operator gives its message other arguments; neither its generation nor its time changes."""
    message = Message.objects.get(pk=item.message_id)
    assert edit_arguments(store, message, {"order": order})
    after = Message.objects.get(pk=item.message_id)
    assert (after.generation, after.scheduled_at) == (message.generation, message.scheduled_at)
    return item


def held(ann, task=refund, **options):
    item = opened(task, **options)
    item.take(ann)
    return item


@pytest.mark.parametrize("verb", ["take", "finish", "review", "approve"])
def test_after_an_edit_nobody_decides_what_they_have_not_seen(store, verb):
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    if verb == "approve":
        item = held(ann, reviewed)
        item.finish(PAID, by=ann)
    else:
        item = {"take": opened, "finish": lambda: held(ann), "review": lambda: held(ann, reviewed)}[verb]()
    before = Item.objects.values().get(pk=item.pk)
    edited(store, item)
    with pytest.raises(desk.NotOpen, match="replaced since"):
        {"take": lambda: item.take(ann), "approve": lambda: item.approve(by=bob)}.get(
            verb, lambda: item.finish(PAID, by=ann)
        )()
    assert Item.objects.values().get(pk=item.pk) == before
    message = Message.objects.get(pk=item.message_id)
    assert message.scheduled_at <= store.now(), "a worker opens it anew now"
    assert (message.lease_token, '"args":[999]' in message.payload) == (None, True)


def test_the_next_visit_opens_what_was_edited_anew_and_asks_the_handler_again(store):
    ann = person("ann", *ALL)
    Automation.objects.create(kind=refund.module_path, mode="shadow")
    with clock(START) as time:
        item = held(ann)
        assert item.proposal == '{"amount":100,"paid":true}'
        edited(store, item, 50)
        time.advance(days=2)
        run_due()
        item.refresh_from_db()
        assert (item.state, item.holder, item.proposal) == (State.WAITING, None, '{"amount":50,"paid":true}')
        assert item.replaced_at is not None
        item.take(ann)
        item.finish({"amount": 50, "paid": True}, by=ann)
    assert item.agreed is True


@pytest.mark.parametrize("policy", ["preserve_time", "latest", "edit"])
def test_who_is_refused_makes_a_worker_open_the_item_anew_at_once(store, policy):
    """Its message waits for the next visit, in a day, and was not submitted for then."""
    ann = person("ann", *ALL)
    with clock(START) as time:
        scheduled = refund.schedule_at(START, 100, key="case")
        run_due()
        item = Item.objects.get(message_id=scheduled.id)
        time.advance(minutes=5)
        if policy == "edit":
            edited(store, item)
        else:
            refund.schedule_at(START, 999, key="case", on_conflict=policy)
        run_due()
        assert Item.objects.get().replaced_at is None
        assert desk.take_next(ann, QUEUE) is None
        run_due()
        assert desk.take_next(ann, QUEUE).replaced_at == time()


def test_what_was_replaced_at_a_later_time_is_not_opened_before(store):
    ann = person("ann", *ALL)
    with clock(START) as time:
        scheduled = refund.schedule_at(START, 100, key="case")
        run_due()
        item = Item.objects.get(message_id=scheduled.id)
        refund.schedule_at(START + timedelta(hours=30), 999, key="case")
        with pytest.raises(desk.NotOpen, match="replaced since"):
            item.take(ann)
        time.advance(hours=29)
        run_due()
        assert Item.objects.get().replaced_at is None
        time.advance(hours=1)
        run_due()
        assert Item.objects.get().replaced_at == time()


def starts_at(item):
    return Message.objects.get(pk=item.message_id).scheduled_at


def test_who_is_refused_does_not_move_a_retry(store):
    ann = person("ann", *ALL)
    with clock(START) as time:
        item = edited(store, opened(skilled, 1), "no number")
        assert desk.take_next(ann, QUEUE) is None
        run_due(raise_failures=False)
        assert (Message.objects.get().attempt, Item.objects.get().replaced_at) == (1, None)
        backoff = starts_at(item)
        assert backoff > time()
        assert desk.take_next(ann, QUEUE) is None
    assert starts_at(item) == backoff


def test_who_is_refused_does_not_move_what_an_operator_has_put_off(store):
    ann = person("ann", *ALL)
    with clock(START):
        item = edited(store, opened())
        visit = starts_at(item)
        edit = edits.begin(store, edits.RESCHEDULE, "put off", "an operator")
        edits.reschedule(store, edit, Ticked([item.message_id]), Shift(timedelta(minutes=30)), store.now())
        assert desk.take_next(ann, QUEUE) is None
    assert starts_at(item) == visit + timedelta(minutes=30)


def test_who_is_refused_moves_the_visit_after_one_that_was_late(store):
    ann = person("ann", *ALL)
    with clock(START) as time:
        item = opened(skilled, 1)
        time.advance(days=1, hours=3)
        run_due()
        assert starts_at(item) == START + timedelta(days=2)
        edited(store, item, 2)
        assert desk.take_next(ann, QUEUE) is None
        assert starts_at(item) == time()


def test_a_generation_that_comes_again_is_not_that_of_other_arguments(store):
    """Replaced, cancelled, and brought back: its generation is 0, as it was when the item was opened."""
    ann = person("ann", *ALL)
    scheduled = refund.schedule_at(store.now(), 100, key="case")
    run_due()
    item = Item.objects.get(message_id=scheduled.id)
    item.take(ann)
    refund.schedule_at(store.now() + timedelta(hours=1), 77, key="case")
    edit = edits.begin(store, edits.CANCEL, "cancel", "an operator")
    edits.cancel(store, edit, Ticked([item.message_id]), store.now())
    undo(store, edit)
    assert Message.objects.get().generation == item.generation
    with pytest.raises(desk.NotOpen, match="replaced since"):
        item.finish(PAID, by=ann)
    assert not FinishedMessage.objects.filter(pk=item.message_id, outcome="succeeded").exists()


def test_what_an_operator_moves_to_another_queue_is_decided_there(store):
    ann, law = person("ann", *ALL), Group.objects.create(name="law")
    DeskQueue.objects.create(queue="secret").groups.add(law)
    item = held(ann)
    edit = edits.begin(store, edits.RESCHEDULE, "move", "an operator")
    edits.reschedule(store, edit, Ticked([item.message_id]), Reroute("secret"), store.now())
    with pytest.raises(desk.NotOpen, match="replaced since"):
        item.finish(PAID, by=ann)
    run_due()
    item.refresh_from_db()
    assert (item.queue, item.state, item.holder) == ("secret", State.WAITING, None)
    with pytest.raises(desk.NotAllowed):
        item.take(ann)
    ann.groups.add(law)
    item.take(type(ann).objects.get(pk=ann.pk))


@pytest.mark.parametrize("escalate_to", ["", QUEUE])
def test_what_was_late_and_is_moved_to_another_queue_is_decided_there(store, escalate_to):
    """Its own queue sends nothing that is late elsewhere. That it is late is told once."""
    DeskQueue.objects.create(queue=QUEUE, escalate_to=escalate_to)
    told = []

    def hear(item, **_):
        told.append(item.queue)

    item_late.connect(hear)
    with clock(START) as time:
        item = opened()
        time.advance(hours=9)
        run_due()
        time.advance(days=2)
        run_due()
        assert told == [QUEUE]
        edit = edits.begin(store, edits.RESCHEDULE, "move", "an operator")
        edits.reschedule(store, edit, Ticked([item.message_id]), Reroute("secret"), store.now())
        with pytest.raises(desk.NotOpen, match="replaced since"):
            item.take(person("ann", *ALL))
        run_due()
    item_late.disconnect(hear)
    item.refresh_from_db()
    assert (item.queue, item.replaced_at) == ("secret", time())


def test_an_item_without_a_digest_goes_on(store):
    """It was opened by a worker of an older version."""
    ann = person("ann", *ALL)
    item = opened()
    Item.objects.update(digest=None)
    with clock(store.now() + timedelta(days=2)):
        run_due()
    item.refresh_from_db()
    assert (item.state, item.replaced_at) == (State.WAITING, None)
    desk.take_next(ann, QUEUE).finish(PAID, by=ann)
    assert FinishedMessage.objects.get(pk=item.message_id).outcome == "succeeded"


def test_a_planted_case_that_is_opened_anew_still_is_one(store):
    ann, result = person("ann", *ALL), desk.plant(refund, (100,), answer=PAID)
    run_due()
    before = Message.objects.get()
    cancel(store, [before.pk])
    assert desk.take_next(ann, QUEUE) is None
    FinishedMessage.objects.all().delete()
    before.scheduled_at = store.now()
    before.save(force_insert=True)
    run_due()
    item = desk.take_next(ann, QUEUE)
    item.finish(PAID, by=ann)
    assert (item.message_id, item.truth) == (int(result.id), '{"amount":100,"paid":true}')
    assert set(Message.objects.values_list("kind", flat=True)) == {"delayedq.desk.tasks.decided"}
