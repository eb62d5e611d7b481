"""Desk tasks in channels: an item that waits for a person takes no place; a strict order waits for it."""

from __future__ import annotations

import pytest

from delayedq import Limit
from delayedq.desk import desk_task
from delayedq.desk.models import Item, State
from delayedq.desk.rounds import close_withdrawn
from delayedq.models import FinishedMessage, Message
from delayedq.testing import run_due
from tests.desk.given import ALL, PAID, QUEUE, RefundForm, person

pytestmark = pytest.mark.usefixtures("store")


@desk_task(queue_name=QUEUE, form=RefundForm, channel="customer", limit=Limit(concurrency=1))
def single(customer, order): ...


@desk_task(queue_name=QUEUE, form=RefundForm, channel="customer", limit=Limit(order="strict"))
def strict(customer, order): ...


def opened_orders(task):
    calls = Message.objects.filter(pk__in=Item.objects.open().values("message_id")).order_by("pk")
    return [message.args for message in calls if message.kind == task.module_path]


def test_an_open_item_takes_no_place_of_its_channel():
    for order in (1, 2):
        single.enqueue("acme", order)
    run_due()
    assert opened_orders(single) == [["acme", 1], ["acme", 2]]
    for item in Item.objects.in_order():
        item.finish(PAID)
    assert set(FinishedMessage.objects.values_list("kind", "outcome")) == {(single.module_path, "succeeded")}


def test_in_a_strict_order_the_next_case_of_a_customer_opens_when_this_one_is_decided():
    ann = person("ann", *ALL)
    for customer, order in (("acme", 1), ("acme", 2), ("other", 3), ("acme", 4)):
        strict.enqueue(customer, order)
    for expected in ([["acme", 1], ["other", 3]], [["acme", 2], ["other", 3]], [["other", 3], ["acme", 4]]):
        run_due()
        assert opened_orders(strict) == expected
        of_acme = [message.pk for message in Message.objects.order_by("pk") if message.args[0] == "acme"]
        first = Item.objects.open().get(message_id=of_acme[0])
        first.take(ann)
        first.finish(PAID, by=ann)


def test_in_a_strict_order_what_is_withdrawn_lets_the_next_one_open(store):
    for order in (1, 2):
        strict.using(channel="acme").schedule_at(store.now(), "acme", order, key=str(order))
    run_due()
    assert opened_orders(strict) == [["acme", 1]]
    assert strict.unschedule(key="1")
    close_withdrawn(store)
    run_due()
    assert opened_orders(strict) == [["acme", 2]]
    assert set(Item.objects.values_list("key", "state")) == {("1", State.WITHDRAWN), ("2", State.WAITING)}
