"""What a handler does, or returns, that is no decision: people decide then, and nothing ends behind their backs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django import forms
from django.contrib.auth.models import Group

from delayedq import Cancel, Fail, Retry, Snooze, desk
from delayedq.compat import InvalidTask
from delayedq.desk import NeedsPerson, Proposal, automation_page, desk_task
from delayedq.desk.errors import DeskError
from delayedq.desk.models import Automation, Item, Skill, State
from delayedq.desk.options import Desk
from delayedq.desk.visits import UNKNOWN
from delayedq.exceptions import TaskCancelled
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, QUEUE, RefundForm, opened, person

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
RAISED = {
    "cancel": Cancel("a duplicate"), "fail": Fail("no"), "retry": Retry("later"), "error": ValueError("no such order"),
    "snooze": Snooze(timedelta(days=1)),
}  # fmt: skip
RETURNED = {
    "object": object(), "negative": {"amount": -5}, "none": None, "text": "100",
    "nan": Proposal(PAID, float("nan")), "percent": Proposal(PAID, 97), "word": Proposal(PAID, "sure"),
}  # fmt: skip


class CentsForm(forms.Form):
    """Its result has the names of its fields, and converts."""

    amount = forms.IntegerField()

    def result(self):
        return {"amount": 100 * self.cleaned_data["amount"]}


class StrictForm(forms.Form):
    """Takes what a browser sends, and fails at all else."""

    name = forms.CharField()

    def clean_name(self):
        return self.data["name"].strip() + self.data["not sent"]


def act(what):
    if what in RAISED:
        raise RAISED[what]
    return RETURNED[what]


@desk_task(queue_name=QUEUE, form=RefundForm)
def plain(what):
    return act(what)


@desk_task(queue_name=QUEUE, form=RefundForm, give_up_on=[ValueError], max_attempts=5, mode="automatic")
def giving_up(what):
    return act(what)


@desk_task(queue_name=QUEUE, form=RefundForm, retry_on=[OSError], max_attempts=5, mode="automatic")
def retrying(what):
    return act(what)


@desk_task(queue_name=QUEUE, form=RefundForm, max_attempts=1, mode="automatic")
def once(what):
    return act(what)


@desk_task(queue_name=QUEUE, form=RefundForm, mode="automatic")
def loose(amount):
    return {"amount": amount, "extra": "x"}


@desk_task(queue_name=QUEUE, form=CentsForm)
def cents(amount):
    return amount if isinstance(amount, dict) else CentsForm({"amount": amount})


@desk_task(queue_name=QUEUE, skill=lambda skills: skills[0], max_attempts=2, backoff=timedelta(minutes=1))
def routed(skills): ...


@desk_task(queue_name=QUEUE, skill=act, max_attempts=2, backoff=timedelta(minutes=1))
def referred(what): ...


@desk_task(queue_name=QUEUE, form=RefundForm)
def undecided(order): ...


@desk_task(queue_name=QUEUE, mode="shadow")
def of_group(name):
    return {"group": Group.objects.get(name=name)}


@desk_task(queue_name=QUEUE, form=StrictForm)
def strict(name):
    return {"name": name}


def set_mode(task, mode):
    Automation.objects.update_or_create(kind=task.module_path, defaults={"mode": mode})


@pytest.mark.parametrize("mode", ["shadow", "assisted"])
@pytest.mark.parametrize("what", [*RAISED, "object"])
def test_where_people_decide_no_handler_ends_or_repeats_the_message(store, mode, what):
    set_mode(plain, mode)
    item = opened(plain, what)
    assert (item.state, item.proposal, Message.objects.get().attempt) == (State.WAITING, None, 0)
    kind = type(RAISED[what]).__name__ if what in RAISED else "NotStorable"
    assert item.reason.startswith(f"{kind}: ")


def test_a_cancelled_message_has_no_item_whoever_decides(store, monkeypatch):
    monkeypatch.setitem(RAISED, "gone", TaskCancelled("Its message was cancelled."))
    set_mode(plain, "shadow")
    plain.enqueue("gone")
    run_due(raise_failures=False)
    assert not Item.objects.exists()


@pytest.mark.parametrize("task", [giving_up, retrying, once], ids=["give_up_on", "retry_on", "max_attempts"])
def test_after_the_last_attempt_people_decide_whatever_makes_it_the_last(store, task):
    item = opened(task, "error")
    assert (item.state, item.reason) == (State.WAITING, "ValueError: no such order")
    assert opened(once, "retry").reason == "Retry: later"


def test_what_another_attempt_may_cure_is_tried_again_and_what_the_handler_ends_ends(store):
    set_mode(plain, "automatic")
    plain.enqueue("error")
    run_due(raise_failures=False)
    assert (Item.objects.count(), Message.objects.get().attempt) == (0, 1)
    plain.enqueue("cancel")
    run_due(raise_failures=False)
    assert (Item.objects.count(), FinishedMessage.objects.get().outcome) == (0, "cancelled")


@pytest.mark.parametrize("mode", ["reviewed", "automatic"])
@pytest.mark.parametrize("what", RETURNED)
def test_what_is_no_decision_goes_to_people_with_the_reason(store, mode, what):
    set_mode(plain, mode)
    item = opened(plain, what)
    assert (item.state, item.proposal, item.decision) == (State.WAITING, None, None)
    said = {"negative": "InvalidDecision: amount", "word": "TypeError"}
    assert item.reason.startswith(said.get(what, "InvalidDecision: "))


def test_what_the_handler_decides_is_stored_as_the_form_makes_it(store):
    item = opened(loose, "7")
    assert (item.state, json.loads(item.decision)) == (State.DONE, {"amount": 7, "paid": False})
    assert FinishedMessage.objects.get(pk=item.message_id).result == item.decision


@pytest.mark.parametrize("amount", [{"amount": 700}, 7], ids=["a result", "a form"])
def test_where_a_form_makes_its_own_result_the_handler_returns_that(store, amount):
    set_mode(cents, "automatic")
    item = opened(cents, amount)
    assert (item.state, item.decision) == (State.DONE, '{"amount":700}')
    assert FinishedMessage.objects.get(pk=item.message_id).result == item.decision


@pytest.mark.parametrize(("amount", "agreed"), [(700, True), (7, False)])
def test_where_a_form_makes_its_own_result_the_handler_is_compared_with_that(store, amount, agreed):
    ann = person("ann", *ALL)
    set_mode(cents, "shadow")
    item = opened(cents, {"amount": amount})
    item.take(ann)
    item.finish({"amount": 7}, by=ann)
    assert (item.decision, item.agreed) == ('{"amount":700}', agreed)


@pytest.mark.parametrize("skills", [[], [None], ["x" * 201], ["a\0"]], ids=["error", "none", "long", "NUL"])
def test_a_skill_that_is_none_opens_the_item_to_nobody_at_the_last_attempt(store, skills):
    with clock(START) as time:
        routed.enqueue(skills)
        run_due(raise_failures=False)
        assert not Item.objects.exists()
        time.advance(minutes=2)
        run_due(raise_failures=False)
    item = Item.objects.get()
    assert (item.state, item.skill) == (State.WAITING, UNKNOWN)
    assert item.reason.startswith("IndexError: " if not skills else "ValueError: A skill is a text")


def test_a_skill_that_asks_for_another_attempt_opens_the_item_only_at_the_last(store):
    with clock(START) as time:
        referred.enqueue("retry")
        run_due(raise_failures=False)
        assert (Item.objects.count(), Message.objects.get().attempt) == (0, 1)
        time.advance(minutes=2)
        run_due(raise_failures=False)
    item = Item.objects.get()
    assert (item.state, item.skill, item.reason) == (State.WAITING, UNKNOWN, "Retry: later")


@pytest.mark.parametrize("what", ["cancel", "fail", "snooze"])
def test_what_a_skill_raises_never_opens_the_item_to_somebody(store, what):
    """Only who is given the unknown skill may take it: nobody assigns it to another, a superuser neither."""
    ann, boss, item = person("ann", *ALL), person("boss", superuser=True), opened(referred, what)
    assert (item.state, item.skill, desk.take_next(ann, QUEUE)) == (State.WAITING, UNKNOWN, None)
    assert item.reason
    for user, by in ((ann, ann), (boss, boss), (ann, boss)):
        with pytest.raises(DeskError, match=r"lacks the skill \?"):
            item.assign(user, by=by)
    assert desk.distribute(QUEUE) == 0
    Skill.objects.create(user=ann, name=UNKNOWN)
    assert desk.take_next(ann, QUEUE) == item


@pytest.mark.parametrize("mode", ["shadow", "assisted", "reviewed", "automatic"])
def test_without_a_handler_people_decide_in_each_mode(store, mode):
    set_mode(undecided, mode)
    item = opened(undecided)
    assert (item.state, item.mode, item.proposal) == (State.WAITING, "people", None)
    with pytest.raises(DeskError, match="has no handler"):
        automation_page.set_mode(person("lead", superuser=True), undecided.module_path, mode)
    with pytest.raises(InvalidTask, match=f"the mode '{mode}' needs a handler"):
        desk_task(mode=mode)(undecided.desk.handler)


def test_a_body_is_empty_without_statements():
    def documented(order):
        """Says what people decide."""

    def constant(order):
        return 0

    def asks(order):
        raise NeedsPerson

    assert [Desk(handler=one).has_handler for one in (documented, constant, asks)] == [False, True, True]


def test_a_handler_is_not_compared_once_its_row_is_gone_and_people_finish(store):
    ann = person("ann", *ALL)
    Group.objects.create(name="clerks")
    item = opened(of_group, "clerks")
    assert "clerks" not in item.proposal
    Group.objects.all().delete()
    item.take(ann)
    item.finish({"group": None}, by=ann)
    assert (item.state, item.agreed) == (State.DONE, None)


def test_a_form_that_fails_at_what_the_handler_says_disagrees(store):
    ann = person("ann", *ALL)
    set_mode(strict, "shadow")
    item = opened(strict, "A")
    item.take(ann)
    item.finish(StrictForm({"name": "a", "not sent": "b"}), by=ann)
    assert (item.decision, item.agreed) == ('{"name":"ab"}', False)
