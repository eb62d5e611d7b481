"""From people to a machine: who decides in each mode, and how far the measured agreement lets a handler go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq import desk
from delayedq.compat import InvalidTask
from delayedq.desk import Share, desk_task
from delayedq.desk.agreement import Agreement, drawn
from delayedq.desk.models import Automation, DeskQueue, Item, State
from delayedq.desk.signals import item_due_soon, item_late
from delayedq.desk.visits import measured
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, run_due, run_until
from tests.desk.given import ALL, PAID, QUEUE, braked, broken, opened, person, refund, sure

START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def set_mode(mode, task=refund):
    Automation.objects.update_or_create(kind=task.module_path, defaults={"mode": mode})


@pytest.mark.parametrize(
    ("mode", "state", "blind", "has_proposal"),
    [
        ("people", State.WAITING, True, False),
        ("shadow", State.WAITING, True, True),
        ("assisted", State.WAITING, False, True),
        ("reviewed", State.REVIEW, False, True),
        ("automatic", State.DONE, False, True),
    ],
)
def test_who_decides_in_each_mode(store, mode, state, blind, has_proposal):
    set_mode(mode)
    item = opened()
    assert (item.state, item.is_blind, item.proposal is not None) == (state, blind, has_proposal)
    assert item.is_automated == (mode == "automatic")
    assert Message.objects.filter(pk=item.message_id).exists() == (mode != "automatic")


def test_what_the_handler_decides_is_the_result_and_is_recorded(store):
    set_mode("automatic")
    result = refund.enqueue(100)
    run_due()
    result.refresh()
    assert result.return_value == PAID
    assert '"verb":"automate"' in FinishedMessage.objects.get(kind="delayedq.desk.tasks.decided").payload


@pytest.mark.parametrize("mode", ["reviewed", "automatic"])
def test_what_needs_a_person_goes_to_people(store, mode):
    set_mode(mode)
    item = opened(refund, 500)
    assert (item.state, item.reason) == (State.WAITING, "500 is above 100")


def test_people_and_handler_are_compared_where_people_did_not_see_it(store):
    ann = person("ann", *ALL)
    for mode, amount in (("shadow", 100), ("shadow", 90), ("assisted", 90)):
        set_mode(mode)
        item = opened()
        item.take(ann)
        item.finish({"amount": amount, "paid": True}, by=ann)
    assert measured(refund.module_path) == Agreement(1, 2)


def test_of_what_the_handler_is_not_sure_is_reviewed(store):
    set_mode("reviewed", sure)
    assert opened(sure, 1, 0.95).state == State.DONE
    assert opened(sure, 2, 0.85).state == State.REVIEW


def test_a_review_approves_the_decision_of_the_handler(store):
    ann = person("ann", *ALL)
    set_mode("reviewed", sure)
    item = opened(sure, 2, 0.85)
    item.approve(by=ann)
    assert FinishedMessage.objects.get(pk=item.message_id).result == "2"


def test_a_handler_that_fails_to_its_last_attempt_leaves_the_message_to_people(store):
    set_mode("automatic", broken)
    with clock(START) as time:
        result = broken.enqueue(7)
        run_due(raise_failures=False)
        assert not desk.items().exists()
        time.advance(timedelta(minutes=2))
        run_due(raise_failures=False)
        item = desk.items().get()
        assert (item.message_id, item.state, item.reason) == (
            int(result.id),
            State.WAITING,
            "ValueError: no such order: 7",
        )


def test_a_decision_is_not_made_twice_if_the_worker_was_killed_before_the_end(store):
    """The item was committed, the end of the message was not: the next visit returns what was decided."""
    set_mode("automatic")
    result = refund.enqueue(100)
    Item.objects.create(
        message_id=result.id, queue=QUEUE, kind=refund.module_path, opened_at=START, mode="automatic",
        state=State.DONE, is_open=False, decision='{"amount":7}',
    )  # fmt: skip
    run_due()
    result.refresh()
    assert result.return_value == {"amount": 7}


def test_it_warns_before_it_is_due_and_what_is_late_goes_to_another_queue(store):
    heard = []

    def soon(item, **_):
        heard.append("soon")

    def late(item, **_):
        heard.append("late")

    item_due_soon.connect(soon)
    item_late.connect(late)
    DeskQueue.objects.create(queue=QUEUE, escalate_to="seniors")
    with clock(START):
        refund.enqueue(100)
        run_until(START + timedelta(hours=7, minutes=30))
        assert heard == ["soon"]
        run_until(START + timedelta(days=3))
        assert heard == ["soon", "late"]
        assert desk.items("seniors").unassigned().count() == 1
    item_due_soon.disconnect(soon)
    item_late.disconnect(late)


def test_without_comparisons_the_brake_lets_people_decide_all(store):
    assert [opened(braked, 1).state for _ in range(5)] == [State.WAITING] * 5


def test_the_brake_follows_the_agreement(store):
    def compared(agreed, count):
        now = store.now()
        Item.objects.all().delete()
        Item.objects.bulk_create(
            Item(
                message_id=-number - 1, queue=QUEUE, kind=braked.module_path, opened_at=now, decided_at=now,
                mode="shadow", state=State.DONE, is_open=False, agreed=number < agreed,
            )
            for number in range(count)
        )  # fmt: skip
        items = [opened(braked, 1) for _ in range(40)]
        expected = min(Agreement(agreed, count).allowed(0.95), 0.9)
        assert [one.is_automated for one in items] == [drawn(one.message_id, "people") < expected for one in items]
        return expected

    assert compared(200, 200) == 0.9
    assert 0.4 < compared(188, 200) < 0.6
    assert compared(100, 200) < 0.15
    assert compared(29, 29) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"review": Share(1.5)}, "review is a share from 0 to 1, not 1.5"),
        ({"due_in": 8}, "due_in is a timedelta above 0, not 8"),
        ({"mode": "magic"}, "'magic' is not a valid Mode"),
        ({"weight": 0}, "weight is an int of at least 1, not 0"),
        ({"exactly_once": True}, "without exactly_once"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(InvalidTask, match=said):
        desk_task(**options)(lambda order: order)


def test_without_its_app_a_desk_task_names_the_setting(settings):
    settings.INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if "desk" not in name]
    with pytest.raises(InvalidTask, match=r"add 'delayedq\.desk' to INSTALLED_APPS"):
        desk_task(queue_name="refunds")(lambda order: order)


def test_the_interval_is_wilsons():
    low, high = Agreement(95, 100).interval
    assert (round(low, 4), round(high, 4)) == (0.8882, 0.9785)
    assert Agreement(0, 0).interval == (0.0, 1.0)


def test_lots_are_uniform_and_always_the_same():
    lots = [drawn(number, "people") for number in range(10_000)]
    assert lots == [drawn(number, "people") for number in range(10_000)]
    assert 0.48 < sum(lots) / 10_000 < 0.52
    assert 0.085 < sum(lot < 0.1 for lot in lots) / 10_000 < 0.115
