"""To whom items are dealt that not everybody may hold: what fits nobody costs no statements, and hides nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import Group
from django.test.utils import CaptureQueriesContext

from delayedq import desk
from delayedq.desk import assignment, rules
from delayedq.desk.errors import NotAllowed
from delayedq.desk.models import DeskQueue, Item, Skill, State
from delayedq.desk.signals import item_changed
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, skilled

pytestmark = pytest.mark.usefixtures("store")
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


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
    monkeypatch.setattr(assignment, "DEALT", 3)
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


def test_who_has_decided_what_they_got_has_had_their_turn_all_the_same():
    ann, bob = (person(name, *ALL) for name in ("ann", "bob"))
    with clock(START) as time:
        for user in (ann, bob):
            item = opened()
            item.assign(user)
            time.advance(minutes=1)
        item.finish(PAID, by=bob)  # and holds nothing any more, while ann still does
        for expected in ("ann", "bob"):
            item = opened()
            assert desk.distribute(QUEUE, [bob, ann], "round_robin") == 1
            item.refresh_from_db()
            assert item.holder.username == expected
            time.advance(minutes=1)
            item.finish(PAID, by=item.holder)


def test_a_turn_in_another_queue_is_none_here_and_one_of_the_day_before_yesterday_neither():
    ann, bob = (person(name, *ALL) for name in ("ann", "bob"))
    with clock(START) as time:
        for user, queue, days in ((ann, QUEUE, 2), (bob, QUEUE, 0), (ann, "letters", 0)):
            item = opened()
            given = {"queue": queue, "decided_by": user, "decided_at": time(), "assigned_at": time()}
            Item.objects.filter(pk=item.pk).update(state=State.DONE, is_open=False, **given)
            time.advance(days=days)
        assert assignment._had([ann, bob], QUEUE, assignment.Deal.ROUND_ROBIN) == {
            ann.pk: 0.0,
            bob.pk: time().timestamp(),
        }


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


def test_who_holds_the_least_weight_gets_the_next_one_however_many_that_is(people):
    ann, bob = people
    many(skilled.using(priority=9), 1)  # of weight 3
    assert desk.distribute(QUEUE, [ann]) == 1
    many(refund, 1, 2, 3)  # of weight 1: as much in all
    assert desk.distribute(QUEUE, people) == 3
    assert [Item.objects.assigned(user).count() for user in (ann, bob)] == [1, 3]
    many(skilled.using(priority=9), 2)  # whose weight counts as soon as it is given
    many(refund, 4, 5, 6)
    assert desk.distribute(QUEUE, people) == 4
    assert [rules.load(user, QUEUE) for user in people] == [6, 6]


@pytest.fixture
def team(people):
    """Those who work on the queue; who leads them is one of them."""
    team, lead = Group.objects.create(name="team"), person("lead", "assign")
    team.user_set.set([*people, lead])
    DeskQueue.objects.create(queue=QUEUE).groups.add(team)
    return team, lead


@pytest.fixture
def after_the_first():
    """What happens as soon as one item was assigned."""
    acts = []

    def hear(item, **_):
        while acts:
            acts.pop()()

    item_changed.connect(hear)
    yield acts
    item_changed.disconnect(hear)


def test_who_leaves_the_team_meanwhile_is_tried_once_more_and_no_further(people, team, connection, after_the_first):
    many(refund, *range(6))
    after_the_first.append(lambda: team[0].user_set.remove(people[1]))
    with CaptureQueriesContext(connection) as asked:
        assert desk.distribute(QUEUE, people, by=team[1]) == 6
    assert held() == [("ann", "")] * 6
    locked = 'SET "state" = "delayedq_desk_item"."state"'
    assert sum(locked in query["sql"].replace("`", '"') for query in asked) == 7


def test_a_deal_ends_when_its_lead_may_deal_no_more(people, team, after_the_first):
    many(refund, *range(6))
    after_the_first.append(lambda: team[0].user_set.remove(team[1]))
    with pytest.raises(NotAllowed, match="lead may not assign"):
        desk.distribute(QUEUE, people, by=team[1])
    assert held() == [("ann", "")]
