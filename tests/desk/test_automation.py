"""What is known of automation: cases with a known answer, figures by period, and a share that falls by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from delayedq import Limit, desk
from delayedq.desk import desk_task, trend
from delayedq.desk.agreement import Agreement, drawn
from delayedq.desk.errors import InvalidDecision
from delayedq.desk.models import Automation, Item, State
from delayedq.desk.options import Mode
from delayedq.desk.visits import measured
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, QUEUE, braked, opened, person, refund, reviewed, told

pytestmark = pytest.mark.usefixtures("store")
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def set_mode(mode, task=refund):
    Automation.objects.update_or_create(kind=task.module_path, defaults={"mode": mode})


def planted(task=refund, *args, answer=PAID):
    result = desk.plant(task, args or (100,), answer=answer)
    run_due()
    return Item.objects.get(message_id=result.id)


@pytest.mark.parametrize("mode", Mode)
def test_a_person_decides_a_case_with_a_known_answer_in_each_mode_and_nothing_follows(mode):
    ann = person("ann", *ALL)
    set_mode(mode)
    item = planted()
    item.take(ann)
    item.finish({"amount": 90, "paid": True}, by=ann)
    assert (item.state, item.decided_by) == (State.DONE, ann)
    assert item.agreed is (None if mode is Mode.PEOPLE else True), "the handler is compared with the answer"
    assert not Message.objects.filter(kind=told.module_path).exists()
    assert FinishedMessage.objects.get(pk=item.message_id).result == '{"amount":90,"paid":true}'
    run_due()
    assert '"truth":{' in FinishedMessage.objects.get(kind="delayedq.desk.tasks.decided").payload


def test_nobody_may_take_it_before_a_worker_has_opened_it():
    ann = person("ann", *ALL)
    desk.plant(refund, (100,), answer=PAID)
    item = Item.objects.get()
    assert not desk.items().unassigned().exists()
    assert desk.take_next(ann, QUEUE) is None
    with pytest.raises(desk.NotOpen):
        item.take(ann)
    run_due()
    assert desk.take_next(ann, QUEUE) == item


@pytest.mark.urls("tests.desk.urls")
def test_what_is_blind_is_not_shown_in_the_admin_before_it_is_decided():
    ann, client = person("ann", *ALL), Client()
    client.force_login(ann)
    for mode, shown in (("shadow", []), ("assisted", ["55"])):
        set_mode(mode)
        item = planted(refund, 55, answer={"amount": 77})
        address = f"/admin/delayedq_desk/item/{item.pk}/change/"
        text = client.get(address).content.decode()
        assert [number for number in ("55", "77") if f"&quot;amount&quot;: {number}" in text] == shown
        item.take(ann)
        item.finish(PAID, by=ann)
        text = client.get(address).content.decode()
        assert all(f"&quot;amount&quot;: {number}" in text for number in (55, 77, 100))


def test_it_is_not_reviewed_and_an_answer_that_the_form_refuses_stores_nothing():
    ann = person("ann", *ALL)
    item = planted(reviewed)
    item.take(ann)
    item.finish(PAID, by=ann)
    assert item.state == State.DONE
    with pytest.raises(InvalidDecision, match="amount"):
        desk.plant(refund, (100,), answer={"amount": "much"})
    assert not Message.objects.filter(kind=refund.module_path).exists()


def test_a_case_that_is_planted_twice_with_a_key_is_one_until_it_is_decided():
    ann = person("ann", *ALL)
    first = desk.plant(refund, (100,), answer=PAID, key="known/1")
    assert desk.plant(refund, (100,), answer=PAID, key="known/1").id == first.id
    run_due()
    item = desk.take_next(ann, QUEUE)
    assert (item.message_id, item.key) == (int(first.id), "known/1")
    assert desk.plant(refund, (50,), answer={"amount": 1}, key="known/1").id == first.id
    run_due()
    item.finish(PAID, by=ann)
    assert (Item.objects.count(), item.truth) == (1, '{"amount":100,"paid":true}')
    assert desk.plant(refund, (100,), answer=PAID, key="known/1").id != first.id


def test_a_message_of_the_business_becomes_no_planted_case_by_its_key(store):
    refund.schedule_at(store.now(), 100, key="refund/1")
    for _ in range(2):
        with pytest.raises(desk.DeskError, match=r"the key 'refund/1' is not a planted case"):
            desk.plant(refund, (100,), answer=PAID, key="refund/1")
        run_due()  # which opens its item
    assert Item.objects.get().truth is None
    desk.plant(refund, (100,), answer=PAID, key="known/1")
    refund.schedule_at(store.now(), 50, key="known/1")
    with pytest.raises(desk.DeskError, match="is not a planted case"):
        desk.plant(refund, (100,), answer=PAID, key="known/1")
    run_due()
    assert not Item.objects.filter(truth__isnull=False).exists()


@desk_task(queue_name=QUEUE, limit=Limit(size=1))
def crowded(order): ...


def test_a_case_without_room_is_not_planted():
    desk.plant(crowded, (1,), answer=1)
    with pytest.raises(desk.DeskError, match="no room"):
        desk.plant(crowded, (2,), answer=1)
    assert Item.objects.count() == 1


def test_decisions_are_compared_as_values_and_as_the_form_makes_them():
    """The handler names the fields in another order, and leaves out what the form fills in."""
    ann = person("ann", *ALL)
    set_mode("shadow")
    for proposal, agreed in (
        ('{"paid":true,"amount":100}', True),
        ('{"amount":"100","paid":"on"}', True),
        ('{"amount":100}', False),
        ('{"amount":"much"}', False),
        ("100", False),
    ):
        item = opened()
        Item.objects.filter(pk=item.pk).update(proposal=proposal)
        item.take(ann)
        item.finish(PAID, by=ann)
        assert item.agreed is agreed, proposal


def test_what_happened_by_period():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    with clock(START) as time:
        set_mode("shadow")
        for amount in (100, 90):  # a day with people: one of two alike, and a known answer that ann misses
            item = opened()
            item.take(ann)
            time.advance(minutes=10)
            item.finish({"amount": amount, "paid": True}, by=ann)
        item = planted()
        item.take(ann)
        time.advance(minutes=40)
        item.finish({"amount": 1}, by=ann)
        time.advance(days=1)
        set_mode("reviewed")  # a day of the handler: three reviews find one error
        first, *others = [opened() for _ in range(3)]
        first.send_back("too much", by=bob)
        for item in others:
            item.approve(by=bob)
        set_mode("automatic")
        opened()
        now = time.advance(hours=1)
        days = trend.by_task(desk.items(QUEUE), now, count=3)[refund.module_path]
        (both,) = trend.by_task(desk.items(QUEUE), now, step=trend.WEEK, count=1)[refund.module_path]
    assert [day.done for day in days] == [0, 3, 4]
    _, people, handler = days
    assert (people.agreement, people.handler, people.people) == (Agreement(2, 3), Agreement(1, 1), Agreement(0, 1))
    assert (people.share_automated, people.by_people, people.seconds) == (0.0, 3, 3600.0)
    assert (handler.reviewed, handler.errors, handler.share_automated) == (3, 1, 0.25)
    assert handler.saved == timedelta()
    assert both == sum(days, trend.Period(both.begin))
    assert both.saved == timedelta(minutes=20)


def test_what_was_decided_before_and_after_is_in_no_period(store):
    with clock(START) as time:
        set_mode("automatic")
        opened()
        now = time.advance(days=2)
        assert trend.by_task(desk.items(), now, count=1) == {}
        assert trend.by_task(desk.items(), START, count=1) == {}
        (day,) = trend.by_task(desk.items(), START + timedelta(seconds=1), count=1)[refund.module_path]
        assert day.done == 1
    with pytest.raises(ValueError, match="a step and a count above 0"):
        trend.by_task(desk.items(), now, count=0)


def test_the_share_falls_by_itself_when_a_handler_becomes_worse_and_rises_again():
    """`braked` returns its argument: people decide otherwise from some day on, and later as it does."""
    ann, shares = person("ann", *ALL), []

    def decide(count, right):
        """People decide so many, that many of which as the handler does."""
        for number in range(count):
            desk.plant(braked, (7,), answer=7 if number < right else 8)
        run_due()
        for item in desk.items().unassigned().filter(truth__isnull=False):
            item.take(ann)
            item.finish(7, by=ann)
        expected = min(measured(braked.module_path).allowed(0.95), 0.9)
        ids = [int(braked.enqueue(7).id) for _ in range(20)]
        run_due()
        some = desk.items().filter(message_id__in=ids)
        assert [one.is_automated for one in some] == [drawn(one.message_id, "people") < expected for one in some]
        shares.append(expected)

    with clock(START):
        for count, right in ((20, 20), (60, 60), (12, 0), (30, 30)):
            decide(count, right)
    assert shares[0] == 0.0
    assert shares[1] > 0.7
    assert shares[2] < shares[1] / 3
    assert shares[2] < shares[3]
