"""What code does with items: QuerySets joined with a project's own models, verbs without a user, and what follows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db.models import CharField, Count, Exists, OuterRef, Subquery, Value
from django.db.models.functions import Cast, Concat
from django.test.utils import CaptureQueriesContext

from delayedq import desk
from delayedq.compat import default_task_backend
from delayedq.desk.errors import InvalidPostponement, NotAllowed
from delayedq.desk.models import Item, Skill, State
from delayedq.desk.signals import item_changed
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, run_due
from tests.app.models import Mark
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed, skilled

pytestmark = pytest.mark.usefixtures("store")
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def marked(item):
    """Follows a decision in its transaction, which it breaks if it is told to."""
    Mark.objects.create(name=f"paid {item.message_id}")
    if item.decision == "0":
        raise ZeroDivisionError


@desk.desk_task(queue_name=QUEUE, on_finish=marked)
def claim(number):
    """A function follows."""


def counted(item):
    """Reads the item that it follows, as a query does."""
    item.refresh_from_db()
    Mark.objects.create(name=f"{item.state} {desk.items().done().count()}")


@desk.desk_task(queue_name=QUEUE, review=desk.Share(1.0), on_finish=counted)
def tallied(number):
    """A function follows, and a review comes before."""


def test_the_function_that_follows_finds_the_decision_stored():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    item = opened(tallied)
    item.take(ann)
    item.finish(1, by=ann)
    assert not Mark.objects.exists()
    item.approve(by=bob)
    assert Mark.objects.get().name == "done 1"
    item.refresh_from_db()
    assert (item.state, item.is_open, item.reviewed_by) == (State.DONE, False, bob)


def case_of(user):
    """The item of a message whose key names a row of a project's model."""
    refund.schedule_at(START, 100, key=f"refund/{user.pk}")
    run_due()
    return desk.items(QUEUE).get(key=f"refund/{user.pk}")


def test_items_are_joined_with_ones_own_models():
    ann, bob, eve = (person(name, *ALL) for name in ("ann", "bob", "eve"))
    with clock(START):
        case_of(ann)
        case_of(bob).assign(eve)
        key = Concat(Value("refund/"), Cast(OuterRef("pk"), CharField()))
        customers = get_user_model().objects.order_by("pk")
        waiting = desk.items(QUEUE).unassigned().order_by().filter(key=key)
        assert list(customers.filter(Exists(waiting))) == [ann]
        state = desk.items(QUEUE).filter(key=key).values("state")[:1]
        states = customers.annotate(case=Subquery(state)).values_list("username", "case")
        assert list(states) == [("ann", "waiting"), ("bob", "assigned"), ("eve", None)]
        loads = desk.items(QUEUE).assigned().order_by().values("holder__username").annotate(count=Count("pk"))
        assert list(loads) == [{"holder__username": "eve", "count": 1}]


def test_each_verb_of_the_queryset():
    ann = person("ann", *ALL)
    Skill.objects.create(user=ann, name="french")
    with clock(START) as time:
        free, french, held, put_off, decided, done = (
            opened(), opened(skilled, 11), opened(), opened(), opened(reviewed), opened()
        )  # fmt: skip
        Item.objects.filter(pk=free.pk).update(skill="latin")
        held.assign(ann)
        put_off.postpone(time() + timedelta(hours=1), "no receipt")
        for item in (decided, done):
            item.assign(ann)
            item.finish(PAID, by=ann)
        items = desk.items(QUEUE)
        assert list(items.unassigned()) == [free, french]
        assert list(items.unassigned().for_skills_of(ann)) == [french]
        assert list(items.assigned()) == list(items.assigned(ann)) == [held]
        assert list(items.postponed()) == [put_off]
        assert list(items.in_review()) == [decided]
        assert list(items.done()) == [done]
        assert items.open().count() == 5
        time.advance(hours=1)
        assert set(items.unassigned()) == {free, french, put_off}
        time.advance(hours=7)
        assert set(items.late()) == {free, held, put_off}
    assert list(desk.items("other")) == []
    assert desk.items().count() == 6


def test_code_may_do_what_no_user_is_named_for():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    with clock(START) as time:
        item = opened(reviewed)
        item.assign(ann)
        item.assign(bob)
        item.unassign()
        assert (item.state, item.holder) == (State.WAITING, None)
        with pytest.raises(InvalidPostponement):
            item.postpone(time(), "now")
        item.postpone(time() + timedelta(days=1), "next week")
        assert (item.state, item.why) == (State.POSTPONED, "next week")
        item.unassign()
        item.assign(ann)
        item.finish({"amount": 7})
        item.send_back("too little")
        assert (item.state, item.holder, item.rejections) == (State.WAITING, None, 1)
        item.finish(PAID)
        item.approve()
    assert FinishedMessage.objects.get(pk=item.message_id).worker == "desk"
    assert item.decided_by is None
    with pytest.raises(NotAllowed):
        opened().assign(person("guest", "view"))


def test_what_follows_is_in_the_transaction_of_the_decision():
    ann = person("ann", *ALL)
    item = opened(claim, 1)
    item.take(ann)
    with pytest.raises(ZeroDivisionError):
        item.finish(0, by=ann)
    item.refresh_from_db()
    assert (item.state, item.decision) == (State.ASSIGNED, None)
    assert Message.objects.filter(pk=item.message_id).exists()
    assert not Mark.objects.exists()
    item.finish(1, by=ann)
    assert Mark.objects.get().name == f"paid {item.message_id}"
    assert not Message.objects.filter(pk=item.message_id).exists()


def test_signals_name_each_change_who_made_it_and_the_task():
    ann, bob, heard = person("ann", *ALL), person("bob", *ALL), []

    def hear(sender, item, verb, by, **_):
        heard.append((sender, item.state, verb, by))

    item = opened(reviewed)
    item_changed.connect(hear, sender=reviewed)
    opened().assign(ann)  # of another task
    item.take(ann)
    item.report(1, 2, by=ann)
    item.finish(PAID, by=ann)
    item.approve(by=bob)
    item_changed.disconnect(hear, sender=reviewed)
    assert heard == [
        (reviewed, "assigned", "assign", ann),
        (reviewed, "assigned", "report", ann),
        (reviewed, "review", "finish", ann),
        (reviewed, "done", "approve", bob),
    ]


def test_a_signal_that_nobody_hears_makes_no_statement(connection):
    item = opened()
    with CaptureQueriesContext(connection) as unheard:
        item.take(person("ann", *ALL))
    assert not [query for query in unheard if "SAVEPOINT" in query["sql"]]


def test_who_has_submitted_it_is_told_where_it_stands():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    with clock(START) as time:
        result = reviewed.enqueue(100)
        assert desk.status_of(result) is None
        run_due()
        item = desk.items().get()

        def told():
            status = desk.status_of(default_task_backend.get_result(result.id))
            return status.state, status.until

        assert told() == (State.WAITING, None)
        item.take(ann)
        assert told() == (State.ASSIGNED, None)
        item.postpone(time() + timedelta(hours=1), "ann is ill", by=ann)
        assert told() == (State.POSTPONED, time() + timedelta(hours=1))
        time.advance(hours=1)
        assert told() == (State.WAITING, None)
        item.take(ann)
        item.finish(PAID, by=ann)
        assert told() == (State.REVIEW, None)
        item.send_back("again", by=bob)
        assert told() == (State.ASSIGNED, None)
        time.advance(hours=4)
        assert told() == (State.WAITING, None)
        item.finish(PAID, by=ann)
        item.approve(by=bob)
        assert told() == (State.DONE, None)
    assert "ill" not in repr(desk.status_of(int(result.id)))


def test_who_has_submitted_it_sees_how_far_its_holder_has_come():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    with clock(START) as time:
        result = refund.enqueue(100)
        run_due()
        item = desk.items().get()
        item.take(ann)
        for refused in (lambda: item.report(-1, by=ann), lambda: item.report(1, note="x" * 201, by=ann)):
            with pytest.raises(ValueError, match="not"):
                refused()
        with pytest.raises(desk.Taken):
            item.report(1, 3, by=bob)
        assert desk.status_of(result).progress is None
        item.report(1, 4, "asked the airline", by=ann)
        time.advance(minutes=10)
        item.report(2, 4, "got an answer", by=ann)
        result.refresh()
        assert result.progress == desk.status_of(result).progress
        assert (result.progress.share, result.progress.note) == (0.5, "got an answer")
        assert result.progress.left == timedelta(minutes=10)
