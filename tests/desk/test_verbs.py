"""What people do with an item, on every database."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction

from delayedq import desk
from delayedq.desk.errors import DeskError, InvalidDecision, InvalidPostponement, NotAllowed, NotOpen, Taken
from delayedq.desk.models import DeskQueue, Item, Skill, State
from delayedq.desk.signals import item_changed
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed, skilled, told

pytestmark = pytest.mark.usefixtures("store")
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def test_an_item_is_a_message_that_ends_with_the_decision():
    ann = person("ann", *ALL)
    result = refund.enqueue(100)
    run_due()
    item = desk.items(QUEUE).unassigned().get()
    assert Message.objects.get().pk == item.message_id

    item.take(ann)
    assert not desk.items(QUEUE).unassigned().exists()
    item.finish({"amount": "100", "paid": "on"}, by=ann)

    result.refresh()
    assert result.return_value == PAID
    assert (item.state, item.is_open, item.decided_by) == (State.DONE, False, ann)
    assert FinishedMessage.objects.get(pk=item.message_id).worker == "desk/ann"


def test_what_follows_is_stored_with_the_decision_and_the_decision_is_in_the_history():
    ann = person("ann", *ALL)
    item = opened()
    item.take(ann)
    with transaction.atomic(using=item._state.db):
        item.finish(PAID, by=ann)
        transaction.set_rollback(True, using=item._state.db)
    assert not Message.objects.filter(kind=told.module_path).exists()
    item.refresh_from_db()
    assert item.is_open

    item.finish(PAID, by=ann)
    run_due()
    assert FinishedMessage.objects.get(kind=told.module_path).outcome == "succeeded"
    recorded = FinishedMessage.objects.get(kind="delayedq.desk.tasks.decided")
    assert '"by":"ann"' in recorded.payload
    assert '"verb":"finish"' in recorded.payload


def test_of_two_who_take_it_at_once_one_wins_and_the_other_is_told():
    people = [person("ann", *ALL), person("bob", *ALL)]
    item = opened()
    barrier, said = threading.Barrier(2), []

    def take(user):
        mine = Item.objects.get(pk=item.pk)
        barrier.wait()
        try:
            mine.take(user)
        except Taken as error:
            said.append(str(error))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=take, args=[user]) for user in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    item.refresh_from_db()
    assert said == [f"Taken by {item.holder} 0 s ago."]


def test_a_reassignment_holds_only_from_the_holder_that_was_seen():
    lead, ann, bob, eve = (person(name, *ALL) for name in ("lead", "ann", "bob", "eve"))
    item = opened()
    item.take(ann)
    seen = Item.objects.get(pk=item.pk)
    item.assign(bob, by=lead)
    with pytest.raises(Taken, match="Taken by bob 0 s ago"):
        seen.assign(eve, by=lead)
    with pytest.raises(Taken):
        item.finish(PAID, by=ann)
    item.finish(PAID, by=bob)


def test_an_assignment_is_a_lease():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    with clock(START) as time:
        item = opened()
        item.take(ann)
        time.advance(timedelta(hours=1))
        item.renew(ann)
        time.advance(timedelta(hours=1, minutes=59))
        with pytest.raises(Taken, match="Taken by ann 10740 s ago"):
            Item.objects.get(pk=item.pk).take(bob)
        time.advance(timedelta(minutes=1))
        assert desk.items(QUEUE).unassigned().count() == 1
        Item.objects.get(pk=item.pk).take(bob)
        with pytest.raises(Taken):
            item.finish(PAID, by=ann)


def test_a_late_decision_is_taken_if_nobody_else_took_the_item():
    ann = person("ann", *ALL)
    with clock(START) as time:
        item = opened()
        item.take(ann)
        time.advance(timedelta(hours=3))
        item.finish(PAID, by=ann)
        assert item.state == State.DONE


def test_what_is_postponed_waits_for_its_date():
    ann = person("ann", *ALL)
    with clock(START) as time:
        item = opened()
        item.take(ann)
        with pytest.raises(InvalidPostponement):
            item.postpone(START, "yesterday", by=ann)
        item.postpone(START + timedelta(days=1), "no receipt yet", by=ann)
        assert desk.take_next(ann, QUEUE) is None
        with pytest.raises(NotOpen, match="postponed"):
            item.take(ann)
        assert desk.items(QUEUE).postponed().get().why == "no receipt yet"
        time.advance(timedelta(days=1))
        assert desk.take_next(ann, QUEUE) == item


def test_nobody_reviews_their_own():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    item = opened(reviewed)
    item.take(ann)
    item.finish(PAID, by=ann)
    assert item.state == State.REVIEW
    with pytest.raises(NotAllowed, match="Nobody reviews their own"):
        item.approve(by=ann)
    item.send_back("too much", by=bob)
    assert (item.state, item.holder, item.rejections) == (State.REJECTED, ann, 1)
    item.finish({"amount": 50}, by=ann)
    item.approve(by=bob)
    assert FinishedMessage.objects.get(pk=item.message_id).result == '{"amount":50,"paid":false}'


@pytest.mark.parametrize(
    ("verb", "needed"), [("take", "take"), ("assign", "assign"), ("approve", "review"), ("send_back", "review")]
)
def test_each_verb_needs_its_permission(verb, needed):
    ann, bob = person("ann", *ALL), person("bob", *(one for one in ALL if one != needed))
    item = opened(reviewed)
    if needed == "review":
        item.take(ann)
        item.finish(PAID, by=ann)
    arguments = {"take": (bob,), "assign": (ann, bob), "approve": (bob,), "send_back": ("no", bob)}[verb]
    before = Item.objects.values().get()
    with pytest.raises(NotAllowed):
        getattr(item, verb)(*arguments)
    assert Item.objects.values().get() == before


def test_assigning_to_somebody_without_the_permission_changes_nothing():
    lead, guest = person("lead", *ALL), person("guest", "view")
    item = opened()
    with pytest.raises(NotAllowed, match="guest may not work on the queue refunds") as refused:
        item.assign(guest, by=lead)
    assert refused.value.field == "user"


def test_taking_what_one_holds_prolongs_it_for_who_may_still_work_on_it():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    with clock(START) as time:
        item = opened(reviewed)
        item.take(ann)
        item.finish(PAID, by=ann)
        item.send_back("too much", by=bob)
        time.advance(timedelta(hours=1))
        item.take(ann)
        assert (item.state, item.why) == (State.REJECTED, "too much")
        assert item.until == START + timedelta(hours=1) + reviewed.desk.hold
        ann.user_permissions.clear()
        with pytest.raises(NotAllowed, match="ann may not work on the queue refunds"):
            item.take(type(ann).objects.get(pk=ann.pk))


def test_only_the_groups_of_a_queue_work_on_it():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    team = Group.objects.create(name="team")
    team.user_set.add(ann)
    DeskQueue.objects.create(queue=QUEUE).groups.add(team)
    item = opened()
    with pytest.raises(NotAllowed):
        item.take(bob)
    item.take(ann)


def test_one_holds_at_most_the_capacity_of_the_queue():
    ann = person("ann", *ALL)
    DeskQueue.objects.create(queue=QUEUE, capacity=5)
    opened(skilled, 1).take(ann)
    with pytest.raises(NotAllowed, match="holds as much of the queue refunds as one may: 5"):
        opened(skilled, 2).take(ann)
    opened(refund).take(ann)


def test_skills_are_dropped_after_their_time():
    ann = person("ann", *ALL)
    with clock(START) as time:
        item = opened(skilled, 11)
        assert desk.take_next(ann, QUEUE) is None
        Skill.objects.create(user=ann, name="french", until=START + timedelta(days=1))
        assert desk.take_next(ann, QUEUE) == item
        item.refresh_from_db()
        item.unassign(by=ann)
        time.advance(timedelta(days=1))
        with pytest.raises(NotAllowed, match="ann lacks the skill french"):
            item.take(ann)


def test_the_next_one_is_the_most_urgent():
    ann = person("ann", *ALL)
    with clock(START) as time:
        late = opened(skilled, 1)  # without a due date
        first = opened(refund, 1)
        time.advance(timedelta(minutes=1))
        second = opened(refund, 2)
        urgent = opened(skilled, 2, priority=9)
        assert [desk.take_next(ann, QUEUE) for _ in range(5)] == [urgent, first, second, late, None]


@pytest.mark.parametrize("deal", ["round_robin", "least_loaded"])
def test_items_are_dealt_evenly(deal):
    people = [person("ann", *ALL), person("bob", *ALL), person("guest", "view")]
    with clock(START) as time:
        for number in range(4):
            opened(refund, number)
            desk.distribute(QUEUE, people, deal)
            time.advance(timedelta(minutes=1))
        assert sorted(item.holder.username for item in desk.items(QUEUE).assigned()) == ["ann", "ann", "bob", "bob"]


def test_bad_input_changes_nothing():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    item = opened()
    item.take(ann)
    before = Item.objects.values().get()
    for refused in (
        lambda: item.finish({"amount": "much"}, by=ann),
        lambda: item.finish(PAID, by=bob),
        lambda: item.postpone(datetime(2036, 1, 1), by=ann),  # noqa: DTZ001
        lambda: item.postpone(datetime(9999, 12, 31, tzinfo=UTC), by=ann),
        lambda: item.finish(object(), by=ann),
        lambda: item.unassign(by=person("guest", "view")),
        lambda: item.approve(by=bob),
    ):
        with pytest.raises(DeskError):
            refused()
        assert Item.objects.values().get() == before
    with pytest.raises(InvalidDecision) as invalid:
        item.finish({"amount": "much"}, by=ann)
    assert invalid.value.errors == {"amount": ["Enter a whole number."]}


def test_an_item_whose_message_was_withdrawn_is_not_given_out():
    ann = person("ann", *ALL)
    refund.schedule_at(START, 100, key="refund/1")
    run_due()
    item = desk.items().get()
    item.take(ann)
    assert refund.unschedule(key="refund/1")
    with pytest.raises(NotOpen, match="withdrawn"):
        item.finish(PAID, by=ann)
    item.unassign()
    assert desk.take_next(ann, QUEUE) is None
    assert desk.items().get().state == State.WITHDRAWN


def test_a_replaced_message_is_read_again():
    ann = person("ann", *ALL)
    refund.schedule_at(START, 100, key="refund/1")
    run_due()
    item = desk.items().get()
    item.take(ann)
    refund.schedule_at(START, 50, key="refund/1")
    with pytest.raises(NotOpen, match="replaced"):
        item.finish(PAID, by=ann)
    run_due()
    item.refresh_from_db()
    item.take(ann)
    item.finish({"amount": 50}, by=ann)
    assert FinishedMessage.objects.get(pk=item.message_id).payload == '{"args":[50]}'


def test_each_change_is_told_and_a_receiver_that_fails_changes_nothing():
    heard = []

    def hear(item, verb, by, **_):
        heard.append((verb, by))
        raise ZeroDivisionError

    ann = person("ann", *ALL)
    item_changed.connect(hear)
    item = opened()
    item.take(ann)
    item.unassign(by=ann)
    item_changed.disconnect(hear)
    assert heard == [("assign", ann), ("unassign", ann)]


def test_a_receiver_with_an_error_of_the_database_does_not_undo_the_verb():
    ann = person("ann", *ALL)
    item = opened()

    def hear(item, **_):
        Item.objects.using(item._state.db).create(message_id=item.message_id, opened_at=START)

    item_changed.connect(hear)
    try:
        item.take(ann)
    finally:
        item_changed.disconnect(hear)
    assert Item.objects.get().holder == ann


def test_an_item_of_an_unknown_task_is_refused_and_left_out():
    ann = person("ann", *ALL)
    gone, known = opened(), opened()
    Item.objects.filter(pk=gone.pk).update(kind="app.tasks.gone")
    with pytest.raises(NotOpen, match="gone"):
        gone.take(ann)
    assert desk.take_next(ann, QUEUE) == known
    assert desk.take_next(ann, QUEUE) is None
