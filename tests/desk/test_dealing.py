"""To whom items are dealt that not everybody may hold: what fits nobody costs no statements, and hides nothing."""

from __future__ import annotations

import pytest
from django.test.utils import CaptureQueriesContext

from delayedq import desk
from delayedq.desk import dealing
from delayedq.desk.models import DeskQueue, Item, Skill
from delayedq.desk.signals import item_changed
from delayedq.testing import run_due
from tests.desk.given import ALL, QUEUE, person, refund, skilled

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def people():
    return [person("ann", *ALL), person("bob", *ALL)]


def many(task, *orders):
    for order in orders:
        task.enqueue(order)
    run_due()


def held():
    return sorted((item.holder.username, item.skill) for item in Item.objects.assigned())


def test_a_button_passes_over_what_nobody_knows_or_can_hold(people, monkeypatch):
    monkeypatch.setattr(dealing, "DEALT", 3)
    DeskQueue.objects.create(queue=QUEUE, capacity=2)
    many(skilled.using(priority=2), 11, 12, 13, 14)  # nobody knows French
    many(skilled.using(priority=1), 1, 2, 3, 4)  # of weight 3
    many(refund, 1)
    assert desk.distribute(QUEUE, people, most=5) == 1
    assert held() == [("ann", "")]


@pytest.mark.parametrize("most", [None, 50])
def test_what_fits_nobody_costs_no_statement_each(people, connection, most):
    counts = []
    desk.distribute(QUEUE, people)  # users keep their permissions
    for orders in (range(11, 13), range(13, 23)):
        many(skilled.using(priority=1), *orders)
        with CaptureQueriesContext(connection) as captured:
            assert desk.distribute(QUEUE, people, most=most) == 0
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_who_knows_it_gets_it_though_another_one_has_less(people):
    ann, _ = people
    Skill.objects.create(user=ann, name="french")
    many(refund, 1)
    assert desk.distribute(QUEUE, [ann]) == 1
    many(skilled, 11)
    assert desk.distribute(QUEUE, people, most=5) == 1
    assert held() == [("ann", ""), ("ann", "french")]


def test_who_was_given_others_meanwhile_is_left_out(people):
    ann, bob = people
    DeskQueue.objects.create(queue=QUEUE, capacity=2)
    many(refund, 1, 2, 3, 4)

    def give(verb, by, **_):
        """As somebody else does between two items."""
        item_changed.disconnect(give)
        for item in Item.objects.unassigned()[1:]:
            item.assign(bob)

    item_changed.connect(give)
    assert desk.distribute(QUEUE, people) == 2
    assert [Item.objects.assigned(user).count() for user in (ann, bob)] == [2, 2]
